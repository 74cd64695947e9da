//! Rx, the transport of AFS, as a value: packets, connections, calls, acknowledgement, congestion control. No sockets, no
//! clock, no threads: time, chance and datagrams come in as arguments, and what is to be done is polled (see
//! [`endpoint::Endpoint`], which also says in which order).
//!
//! An [`endpoint::Endpoint`] is one UDP port. It routes datagrams by (epoch, connection, direction) to connections, each
//! with four channels that carry a call at a time; all calls to one peer share a [`path::Path`], which owns the round-trip
//! time, the congestion controller, pacing and the packet size. The methods of each are of four kinds: getters (nouns),
//! `handle_*` for what arrives, verbs for what the application wants, `poll_*` for what is to be done.
//!
//! Absent on purpose: anything of AFS, security classes other than the null one, encodings of arguments (see `rxgen`).
#![forbid(unsafe_code)]

pub mod abort;
pub mod ack;
mod call;
pub mod config;
pub mod congestion;
mod connection;
pub mod debug;
pub mod endpoint;
pub mod fair;
pub mod ids;
pub mod jumbo;
mod mtu;
mod owner_queues;
mod pacer;
pub mod packet;
pub mod path;
mod ranges;
mod receive;
mod reordering;
pub mod rtt;
pub mod security;
mod stall_timer;
pub mod stats;
pub mod time;
pub mod totals;
pub mod trace;
mod train;
mod transmit;

pub use call::CallError;
pub use connection::Role;
