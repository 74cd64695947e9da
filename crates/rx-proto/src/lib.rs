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
//!
//! # What to open for a change
//!
//! - Congestion control: [`congestion`] (the trait), [`congestion::bbr`] (the default), [`congestion::cubic`].
//!   `src/congestion/simulation.txt` and `tests/throughput.txt` show what a change does.
//! - The sending rate of a path: [`pacer`], and [`train`] for what bounds it at the start.
//! - Which owner and which call of a path sends next: [`fair`], [`owner_queues`]. Tests: `tests/fairness.rs`.
//! - How much each peer may have in flight to this host (credits): `src/endpoint/credits.rs`,
//!   `src/endpoint/credits/drain.rs` for when credits are limited. `note_backlog` in `crates/rx/src/driver.rs` and
//!   `small_buffer` in `crates/rx/src/endpoint.rs` say what the driver tells the endpoint.
//! - When ACKs are sent and which window they offer: [`receive`], `src/receive/answer.rs` (what an ACK says about
//!   the stream), `src/receive/grants.rs` (which windows are offered while room is short). The packet itself:
//!   [`ack`], docs/rx-extensions.md.
//! - Which packets count as lost: `src/transmit/loss.rs`, [`reordering`] (how long the sender waits for an
//!   overtaken packet). Tests: `tests/loss.rs`.
//! - When a call probes its peer, waits, times out or is kept alive: [`transmit`], [`call`],
//!   `src/endpoint/timers.rs`.
//! - A type of packet: [`packet`] (its number), `src/endpoint/ingress.rs` (its effect), `src/endpoint/egress.rs`
//!   (how small packets and bundles of data are sent). The path MTU: [`mtu`],
//!   [`pieces`]; tests: `tests/narrow.rs`. ICMP errors: `src/endpoint/network.rs`.
//! - How an address proves that it is not forged, and when a connection moves: `src/endpoint/reach.rs`. Challenge
//!   and response: `src/endpoint/authenticate.rs`. A security class: [`security`] is the trait.
//! - Answers to `rxdebug`: `src/endpoint/inspect.rs`, and [`debug`] for the records.
//! - Counters and the trace of a call: [`stats`], [`trace`].
//! - A setting: [`config`], and [`totals`] for limits that hold for all shards of a port.
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
mod pieces;
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
