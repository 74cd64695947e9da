//! The client of AFS, which a mount, `fs` and `afsio` use: [`Client`], with its configuration, its beginning and end, and its answers to
//! servers and to `fs`. What it shows of files is in `afs-view`, how it reaches servers in `afs-reach`. It has no FUSE type (`afs-fuse` has
//! those).
//!
//! # How a request goes through
//!
//! 1. A program calls `stat("/afs/afar.local/a")`; `afs-fuse` asks [`Client::cached_lookup`] and [`Client::cached_status`] on the
//!    kernel's thread. Both only look into `afs_view::vnodes`, the table of what is known. No network, no waiting.
//! 2. Where that says `None`, [`Client::lookup`] or [`Client::status`] goes on in a task: `afs_view::names` and `afs_view::vnodes`.
//! 3. What has to be asked of a server goes through `afs_reach::remote`: one typed call on a fid, as a user.
//! 4. The reply's status goes into `afs_view::vnodes`.
//! 5. Servers call back on the client's port: [`client::callbacks`] breaks promises in `vnodes` and tells the
//!    subscribers ([`Notices`]), which invalidate the kernel's copies before the server is answered.
//!
//! Reads and writes of data go from [`OpenFile`] to `afs_view::data`. [`service::control`] answers `fs` and the like on a socket.
//!
//! To interrupt an operation, drop its future: only stores go on in the background.
//!
//! # What to open for a change
//!
//! - What a caller can ask: `src/client/{names,statuses,files}.rs`. What the verbs do: `afs-view`.
//! - Which server is asked, and what becomes of tokens: `afs-reach`.
//! - Which parts hold which others: [`client::parts`]. How much memory each may take: [`memory`].
//! - The answers to servers: [`client::callbacks`]; to `cmdebug`: `src/service/debug.rs`.
//! - The answers to `fs`: [`service::control`], `src/service/control/answers.rs`, to `fs storebehind` `src/service/control/behind.rs`, to `fs pin`
//!   `src/service/control/pins.rs`, and
//!   `src/service/control/places.rs` for too many connections.
//! - What a client sees while a volume is moved or released: `tests/moves.rs`.

#![deny(unsafe_code)]

mod client;
pub mod config;
pub mod memory;
mod service;

// What stands in the signatures of `Client`, of `Config` and of `OpenFile`.
pub use afs_cache::AtOnce;
pub use afs_reach::error::Error;
pub use afs_reach::fid::{CellIndex, Fid, Pag, User};
pub use afs_reach::join;
pub use afs_reach::pags::groups_of;
pub use afs_reach::table::ServerKind;
pub use afs_reach::users;
pub use afs_view::data::fsync::Fsync;
pub use afs_view::data::locks::LockKind;
pub use afs_view::data::open_file::{OpenFile, OpenFlags};
pub use afs_view::data::read::DataOf;
pub use afs_view::data::store_behind::{BehindOf, Setting};
pub use afs_view::data::streams;
pub use afs_view::data::write_behind::WriteBehind;
pub use afs_view::events::{Audience, Change, Changed, Notice, Notices, Pending};
pub use afs_view::names::directory::{DirEntry, Listing};
pub use afs_view::names::lookup::{Found, Made};
pub use afs_view::pins;
pub use afs_view::vnodes::status::{Kind, SetStatus, Status};
pub use client::{Client, Space};
pub use config::Config;
pub use service::{control, volumes};
