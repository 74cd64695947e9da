//! The client of AFS, which a mount, `fs` and `afsio` use. It knows cells, volumes, vnodes and what servers have
//! promised of them. It has no FUSE type (`afs-fuse` has those), and leaves how data lie on the disk to `afs-cache`.
//!
//! # How a request goes through
//!
//! 1. A program calls `stat("/afs/afar.local/a")`; `afs-fuse` asks [`Client::cached_lookup`] and [`Client::cached_status`] on the
//!    kernel's thread. Both only look into `vnodes`, the table of what is known: a status counts while the server's promise to
//!    call back has neither expired nor been broken, and the user's rights are known. No network, no waiting.
//! 2. Where that says `None`, [`Client::lookup`] or [`Client::status`] goes on in a task. The directory's pages come from `names::directory`,
//!    which fetches them once and keeps them, edited here after changes of our own. `names::mount_point` crosses into other volumes.
//! 3. What has to be asked of a server goes through `servers::remote`: one typed call on a fid, as a user. It finds the volume's sites in
//!    `location` (the VLDB's answers, kept), an order among the servers in `table`, a connection for the user's ticket in
//!    `connections` and `users`, calls, and gives what came of it to `afs_failover`: a table that says for each code and failure
//!    whether to wait, to look the volume up again, to go to another server, or what error it is.
//! 4. The reply's status goes into `vnodes`. Its promise counts only if none was broken while the reply was on its way
//!    (counters of breaks tell).
//! 5. Servers call back on the client's port: `client::callbacks` breaks promises in `vnodes` and tells the
//!    subscribers ([`Notices`]), which invalidate the kernel's copies before the server is answered.
//!
//! Reads and writes of data go from [`OpenFile`] to `data`, which keeps them in the cache, and fetches and stores them through
//! `data::streams`. `service::control` answers `fs` and the like on a socket.
//!
//! To interrupt an operation, drop its future: only stores go on in the background.
//!
//! # What to open for a change
//!
//! - What a failed call leads to: the table in `crates/afs-failover/src/verdict.rs`; [`servers::remote`] follows
//!   it.
//! - Which server is asked next: [`servers::table`], [`servers::ranking`] (how far a server is),
//!   [`servers::releases`] (which release of a volume is read; `may_be_mixed` in [`data::fetch`] keeps a read from
//!   mixing two), [`servers::liveness`] (which servers are down). Tests: `tests/outages.rs`, `tests/replicas.rs`,
//!   `tests/whole_cell/`.
//! - What the DNS is asked: [`servers::dns`]. Tests: `tests/dns.rs`.
//! - How tokens come, go and end: [`servers::users`], `src/servers/users/changes.rs`, `src/servers/users/ends.rs`;
//!   over a restart: [`servers::users::kept`], `src/client/kept.rs`. Which PAGs there are: [`servers::pags`],
//!   docs/decisions/0007-pags.md.
//! - How long a status is valid, and for which user: [`vnodes::vnode`]. Tests: `src/vnodes/vnode/tests.rs`.
//! - How a change of names edits the copy of a directory: [`names::changes`], `src/names/changes/ends.rs`,
//!   [`names::directory`].
//! - Mount points, the dynamic root, `@sys`: [`names::mount_point`], [`names::dynroot`], [`names::lookup`],
//!   [`names::links`].
//! - Which version of a file is read: [`data::files`]. How many calls fetch: [`data::fetch`],
//!   [`data::fetch::pace`], [`data::fetch::readahead`], [`data::fetch::prefetch`].
//! - How written data are kept and stored: `src/data/write.rs`, `src/data/write_back.rs`. Locks: [`data::locks`];
//!   `tests/locks.rs`.
//! - The answers to `fs`: [`service::control`], `src/service/control/answers.rs`, and
//!   `src/service/control/places.rs` for too many connections; to servers and `cmdebug`: [`client::callbacks`],
//!   `src/service/debug.rs`.
//! - Which parts hold which others: [`client::parts`]. How much memory each may take: [`memory`].
//! - What a client sees while a volume is moved or released: `tests/moves.rs`.

#![deny(unsafe_code)]

mod client;
mod closing;
pub mod config;
mod data;
mod dependents;
mod error;
mod events;
mod fid;
pub mod memory;
mod names;
mod servers;
mod service;
mod vnodes;
mod wait;

pub use afs_cache::AtOnce;
pub use client::{Client, Space};
pub use config::Config;
pub use data::locks::LockKind;
pub use data::open_file::{OpenFile, OpenFlags};
pub use data::read::DataOf;
pub use data::streams;
pub use error::Error;
pub use events::{Audience, Change, Changed, Notice, Notices, Pending};
pub use fid::{CellIndex, Fid, Pag, User};
pub use names::directory::{DirEntry, Listing};
pub use names::lookup::{Found, Made};
pub use servers::pags::groups_of;
pub use servers::table::ServerKind;
pub use servers::users;
pub use service::{control, volumes};
pub use vnodes::status::{Kind, SetStatus, Status};
