//! Operations of administrators on a cell, without the commands. `vos`, `pts`, `afar up` and the servers'
//! registration add arguments and texts.
//!
//! - [`DatabaseServers`] are the servers of a cell's database. A call goes to the one that can answer it, by the rule of
//!   `afs_failover`, which the client follows too.
//! - [`ptdb::ProtectionDb`], [`vldb::LocationDb`] and [`volumes::VolumeServers`] have the operations on the protection database, the
//!   volume location database and volumes.
//! - [`devices::DeviceDb`] has those on invitations and devices.
//! - [`remove`] and [`clone`](mod@clone) are steps that several operations share. A failure says which step it was.
//! - [`create`] makes a volume with its entry: an operation of several steps, which reports them, can be stopped with a
//!   [`Cancel`], and says what it leaves behind.
//! - [`restore`] gives a volume what a dump has, and makes or changes its entry, in the same manner.
//! - [`transfer`] moves, copies and shadows volumes, [`release`] brings their replicas up to date, [`convert`] makes a read-write volume of a
//!   replica. They tell of their steps as [`steps::Event`].
//! - [`Login`] is the identity with which servers are called.
//! - [`Error`] says which servers were asked, for what, and what they answered.
//!
//! The caller passes in the cell, the addresses of its servers, and the endpoint from which they are called.
//!
//! # What to open for a change
//!
//! - What `vos`, `pts` and `afar devices` ask of servers: [`vldb`], [`volumes`], [`ptdb`], [`devices`]; `src/volumes/streams.rs` receives and
//!   sends dumps.
//! - Which server of a database is asked, and as which user: [`database`], [`login`].
//! - How a volume is made, cloned, removed or restored, and what a failure leaves: [`create`], [`mod@clone`],
//!   [`mod@remove`], [`restore`], `src/restore/dump.rs`. Tests: `tests/create.rs`, `tests/clone_and_remove.rs`,
//!   `tests/restore.rs`.
//! - How a volume is moved, copied or shadowed, and what a failure undoes: [`transfer`] (the steps),
//!   [`transfer::relocate`], [`mod@transfer::copy`]. Tests: `tests/transfer.rs`;
//!   `crates/afar/tests/motion_killed.rs` kills at random points.
//! - How a volume is released: [`release`] (the order of steps), `src/release/plan.rs`, `src/release/sites.rs`.
//! - How a replica becomes the read-write volume: [`convert`].
#![forbid(unsafe_code)]

mod cancel;
pub mod clone;
pub mod convert;
pub mod create;
mod database;
pub mod devices;
mod doubt;
pub mod entry;
mod error;
mod login;
pub mod negotiation;
pub mod offers;
pub mod ptdb;
pub mod release;
pub mod remove;
pub mod restore;
pub mod steps;
mod text;
pub mod transfer;
pub mod vldb;
pub mod volumes;

pub use cancel::Cancel;
pub use database::{DatabaseServers, Machine};
pub use error::Error;
pub use login::Login;
pub use offers::Offers;
