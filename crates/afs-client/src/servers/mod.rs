//! Servers, and what it takes to get an answer from one: which cells there are ([`cells`]) and which the DNS knows
//! ([`dns`]), where a volume is
//! ([`location`]), which servers there are ([`table`]), how far they are ([`ranking`]), which release of a
//! read-only volume each has ([`releases`]), whether they answer ([`liveness`]), as whom a user calls them ([`users`]),
//! a connection ([`connections`]), the call itself ([`remote`]), what is known of volumes ([`volumes`]), how many operations
//! wait for servers that are away or busy ([`waiting`]), and who is told of volumes that have moved ([`told`]). [`config`] puts
//! them together.
//!
//! What to do when a call fails is left to the crate `afs-failover`, what a reply tells of a vnode to `vnodes`. Calls that servers make
//! to this client are answered in `service`.

pub(crate) mod cells;
pub(crate) mod config;
pub(crate) mod connections;
pub(crate) mod dns;
pub(crate) mod liveness;
pub(crate) mod location;
pub(crate) mod pags;
pub(crate) mod ranking;
pub(crate) mod releases;
pub(crate) mod remote;
pub(crate) mod table;
pub(crate) mod told;
pub mod users;
pub(crate) mod volumes;
pub(crate) mod waiting;
