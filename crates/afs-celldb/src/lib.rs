//! The cell's databases: where volumes are (VLDB), and who users and groups are (PTDB), as OpenAFS's vlserver and
//! ptserver serve them ("VLDB notes" and "PTDB notes" are docs/notes/vldb.md and docs/notes/ptdb.md).
//!
//! A [`Database`] keeps an image of one database in memory, from which everything is read, and a [`store::CellStore`]
//! under it, in which every change is before anyone is told of it. The services [`vldb::VlService`],
//! [`ptdb::PtService`] and [`ubik::VoteService`] answer the RPCs.
//!
//! Left to others: sockets and security classes (`rx`), which names callers may have ([`caller::Authority`], which the
//! server supplies), and where the store lies.
#![forbid(unsafe_code)]

pub mod caller;
pub mod database;
pub mod files;
mod fill;
pub mod ptdb;
mod record;
mod serving;
mod slots;
pub mod store;
#[cfg(test)]
mod testing;
pub mod ubik;
pub mod vldb;

pub use caller::{Authority, Caller, Identity};
pub use database::{
    Database, Freshness, NoQuorum, OpenError, Options, Version, rows_of, version_in, was_changed_by,
};
pub use fill::{Existing, FillError, Filling, begin, check_empty, fill};
pub use serving::{Clock, rx_service};
pub use store::{CellStore, StoreError};
