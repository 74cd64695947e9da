//! How a client of AFS gets an answer from a server, as a user: one typed call about a volume, with everything that it takes. It knows
//! cells, where volumes are, servers, users with their tokens, and connections. It knows nothing of files: `afs-view` keeps what answers
//! tell of them, and hears through [`told`] of volumes that have moved.
//!
//! [`remote::Calls`] is what servers are asked through: [`config`] puts it together. It finds the volume's sites in [`location`] (the
//! VLDB's answers, kept), an order among the servers in [`table`], a connection for the user's ticket in [`connections`] and [`users`],
//! calls, and gives what came of it to `afs_failover`: a table that says for each code and failure whether to wait, to look the volume up
//! again, to go to another server, or what error it is.
//!
//! # What to open for a change
//!
//! - What a failed call leads to: the table in `crates/afs-failover/src/verdict.rs`; `src/remote/asking.rs` follows it. The errors: [`error`].
//! - Which cells there are: [`cells`]. What the DNS is asked: [`dns`]. Tests: `crates/afs-client/tests/dns.rs`.
//! - Where a volume is: [`location`]; over a restart: [`location::place`](location::Place). What is known of a volume as a whole: [`volumes`].
//! - Which server is asked next: `src/remote/asking.rs`, [`table`], [`ranking`] (how far a server is), [`releases`] (which release of a volume is read),
//!   [`liveness`] (which servers are down), [`waiting`] (how many operations wait for them). Tests:
//!   `crates/afs-client/tests/{outages,replicas}.rs`, `crates/afs-client/tests/whole_cell/`.
//! - Which security class a file server is called with: [`offers`]. Whether a call is a file server's: [`callbacks`].
//! - How tokens come, go and end: [`users`], `src/users/changes.rs`, `src/users/ends.rs`; over a restart: [`users::kept`],
//!   `crates/afs-client/src/client/kept.rs`; as whom they were known in an earlier run: `src/users/earlier.rs`. Which PAGs there are: [`pags`], docs/decisions/0007-pags.md.
//! - How a device gets a token by its key: [`join`]; as whom its user calls: `src/users/device.rs`, `crates/afs-client/src/client/device.rs`.
//! - What fids, users and PAGs are: [`fid`].

#![forbid(unsafe_code)]

pub mod callbacks;
pub mod cells;
pub mod closing;
pub mod config;
pub mod connections;
pub mod dns;
pub mod error;
pub mod fid;
pub mod join;
pub mod liveness;
pub mod location;
mod offers;
pub mod pags;
pub mod ranking;
pub mod releases;
pub mod remote;
pub mod table;
pub mod told;
pub mod users;
pub mod volumes;
pub mod wait;
pub mod waiting;
