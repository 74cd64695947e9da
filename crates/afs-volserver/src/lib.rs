//! The volume service (AFSVol): what `vos` and other volume servers ask of the volumes of a server. Volumes themselves are
//! `afs-volume`'s, shared with the file service of the same process.
//!
//! A [`VolumeService`] answers the calls; [`transactions`] is its table of who works on which volume. What the file service
//! has to be told is said through [`Watcher`], who may change volumes is asked of [`Authority`], other servers are reached through
//! [`Peers`]. Facts are from docs/notes/volser.md, cited as "Volume service notes".
#![forbid(unsafe_code)]

mod codes;
mod dump;
pub mod partitions;
mod restore;
mod service;
pub mod transactions;

pub use dump::{Lost, write as write_dump};
pub use partitions::Partitions;
pub use service::{Authority, Config, OF_VOLUMES, ORDERS, Peers, Unchecked, VolumeService, Watcher};
