//! The volume service (AFSVol): what `vos` and other volume servers ask of the volumes of a server. Volumes themselves are
//! `afs-volume`'s, shared with the file service of the same process.
//!
//! A [`VolumeService`] answers the calls; [`transactions`] is its table of who works on which volume. What the file service
//! has to be told is said through [`Watcher`], who may change volumes is asked of [`Authority`], other servers are reached through
//! [`Peers`]. Facts are from docs/notes/volser.md, cited as "Volume service notes".
//!
//! # What to open for a change
//!
//! - What an RPC does: [`service`], which has a module for each topic. What a transaction may do: [`transactions`].
//! - How a volume is sent to another server: `src/service/forward.rs`; `crates/afs-server/src/peers.rs` has the
//!   identity for it.
//! - What is in a dump, and in which order: [`dump`]. What a restore makes of its header: [`restore`].
//! - What is kept of a volume whose move, release or restore was interrupted: `src/service/halves.rs`.
//! - The level of a volume: `src/service/level.rs`. `Volume::check_level` decides who is served, here and in the file service.
//! - Snapshots of a volume, and published ones, and ones that come along with a volume: `src/service/snapshots.rs`. When they are made and removed by a schedule: [`schedule`], `src/service/schedule.rs`. Which go before their time, as a limit is reached or the disk is full: [`room`].
//! - What a removed volume leaves, and how it comes back: `src/service/removed.rs`.
//! - What VolserLog says of changes: `src/service/order.rs`.
#![forbid(unsafe_code)]

mod codes;
mod dump;
pub mod partitions;
mod restore;
mod room;
mod schedule;
mod service;
pub mod transactions;

pub use dump::{Lost, write as write_dump};
pub use partitions::Partitions;
pub use service::{
    Authority, Config, Connecting, NewIds, OF_VOLUMES, ORDERS, Peers, SnapshotSpace, Unchecked,
    VolumeService, Watcher, snapshot_space,
};
