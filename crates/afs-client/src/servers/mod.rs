//! Servers, and what it takes to get an answer from one: which cells there are ([`cells`]), where a volume is
//! ([`location`]), which servers there are and which is preferred ([`table`]), whether they answer ([`liveness`]), as
//! whom a user calls them ([`users`]), a connection ([`connections`]), the call itself with its streams ([`remote`]),
//! and how many operations wait for servers that are away or busy ([`waiting`]).
//!
//! What to do when a call fails is left to the crate `afs-failover`, what a reply tells of a vnode to `vnodes`. Calls that servers make
//! to this client are answered in `service`.

pub(crate) mod cells;
pub(crate) mod connections;
pub(crate) mod liveness;
pub(crate) mod location;
pub mod remote;
pub(crate) mod table;
pub mod users;
pub(crate) mod waiting;
