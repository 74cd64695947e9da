//! Serves volumes to cache managers: the file service (RXAFS), the promises to call back, the table of clients, rights and locks.
//!
//! A [`FileServer`] is put together from volumes, the databases of the cell and an endpoint; its
//! [`service`](FileServer::service) answers the calls that come there, and calls its clients back from the same port. What is
//! decided is in plain state machines ([`callbacks`], [`hosts`], [`locks`], [`access`]); what waits is around them. How volumes
//! are kept is left to `afs-volume`, what is on the wire to `afs-wire`.
//!
//! docs/notes/fileserver.md has the facts of the protocol, cited as "File service notes".
//!
//! # What to open for a change
//!
//! - What an RPC does: [`file_service`], which has a module for each topic; `tests/edges.txt` has a stock server's
//!   answers.
//! - Who may do what: [`access`]. The error code for a failure: [`failure`]. Locks: [`locks`].
//! - When callback promises are made and end: [`callbacks`] decides, [`clients`] and `src/clients/calls.rs` call
//!   the clients.
//! - Clients that move, restart or do not answer: [`hosts`], `src/hosts/host.rs` (what is known about one),
//!   `src/hosts/breaks.rs` (which are told of a change). Tests: the table in `src/hosts/tests.rs`.
//! - Which clients are forgotten when there are too many: `src/hosts/eviction.rs`, and `make_room` in [`callbacks`]
//!   for promises.
//! - Which start of a client may change something, and what comes late of an earlier one: `src/hosts/alive.rs`.
//! - Which clients are remembered over a restart: [`remembered`].
//! - On which thread the work is done: [`work`]. Log messages when a disk is full or fails: [`alarms`].
//! - What the log says of changes: `src/file_service/audit.rs`. Who does what at the moment: [`activity`].
//! - Where volumes are (`GetVolumeInfo`): [`locations`], `crates/afs-server/src/locations.rs`.

#![forbid(unsafe_code)]

pub mod access;
pub mod activity;
mod alarms;
pub mod callbacks;
mod clients;
mod config;
pub mod failure;
mod file_service;
pub mod hosts;
mod locations;
pub mod locks;
mod protection;
pub mod remembered;
mod server;
mod statistics;
mod vnode_locks;
mod work;

pub use access::Writers;
pub use config::{Config, WallClock};
pub use file_service::AUDIT;
pub use hosts::HostLimits;
pub use locations::Locations;
pub use protection::{Answer, Membership, Protection, ProtectionError};
pub use server::{FileServer, Volumes};
