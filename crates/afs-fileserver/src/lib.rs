//! Serves volumes to cache managers: the file service (RXAFS), the promises to call back, the table of clients, rights and locks.
//!
//! A [`FileServer`] is put together from volumes, the databases of the cell and an endpoint; its
//! [`service`](FileServer::service) answers the calls that come there, and calls its clients back from the same port. What is
//! decided is in plain state machines ([`callbacks`], [`hosts`], [`locks`], [`access`]); what waits is around them. How volumes
//! are kept is left to `afs-volume`, what is on the wire to `afs-wire`.
//!
//! docs/notes/fileserver.md has the facts of the protocol, cited as "File service notes".

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
