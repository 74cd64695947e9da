//! The cell's databases: where volumes are (VLDB), and who users and groups are (PTDB), as OpenAFS's vlserver and
//! ptserver serve them ("VLDB notes" and "PTDB notes" are docs/notes/vldb.md and docs/notes/ptdb.md); and one of our own, of invitations
//! and devices ("Join notes": docs/notes/join.md).
//!
//! A [`Database`] keeps an image of one database in memory, from which everything is read, and a [`store::CellStore`]
//! under it, in which every change is before anyone is told of it. The services [`vldb::VlService`],
//! [`ptdb::PtService`], [`devices::JoinService`], [`ubik::VoteService`] and [`tokens::TokenService`] answer the RPCs.
//!
//! Left to others: sockets and security classes (`rx`), which names callers may have ([`caller::Authority`], which the
//! server supplies), and where the store lies.
//!
//! # What to open for a change
//!
//! - Where databases are stored: [`store`] (the trait) and the modules under it. For etcd,
//!   docs/decisions/0008-etcd.md first, then `src/store/etcd.rs`.
//! - How a server learns of other servers' changes, and what it answers while etcd is silent:
//!   `src/database/following.rs`, `src/database/follower.rs`. Tests: `tests/etcd/`,
//!   `crates/afar/tests/etcd_faults.rs`.
//! - How a database is loaded, and what changes its image: `src/database/mirror.rs`.
//! - What has to be on disk before anybody sees a change, and which changes share a transaction: [`database`],
//!   `src/database/batch.rs`. `cargo run --release -p afs-celldb --features etcd --example etcd_speed` measures the
//!   speed.
//! - OpenAFS's vldb.DB0 and prdb.DB0, and what may be odd in them: [`files`]. How they get into a store:
//!   [`mod@fill`]. Tests: `cargo test -p afar-interop --test cells databases`.
//! - What a VL procedure checks and changes: `src/vldb/change.rs`, `src/vldb/servers.rs`, `src/vldb/list.rs`. How
//!   look-ups find volumes: `src/vldb/index.rs`, `src/vldb/image.rs`.
//! - Which tokens of rxgk are made, and what is said of which servers have it: [`tokens`].
//! - What a PR procedure checks and changes: `src/ptdb/change.rs`, `src/ptdb/create.rs`; `src/ptdb/access.rs` says
//!   which callers may.
//! - How an invitation is used up, and what becomes of a device: `src/devices/change.rs`; the calls: `src/devices/service.rs`.
#![forbid(unsafe_code)]

pub mod caller;
pub mod database;
pub mod devices;
pub mod files;
mod fill;
pub mod ptdb;
mod record;
mod serving;
mod slots;
pub mod store;
#[cfg(test)]
mod testing;
pub mod tokens;
pub mod ubik;
pub mod vldb;

pub use caller::{Authority, Caller, Identity};
pub use database::{
    Database, Freshness, NoQuorum, OpenError, Options, Version, rows_of, version_in, was_changed_by,
};
pub use fill::{Existing, FillError, Filling, begin, check_empty, fill};
pub use serving::{Clock, rx_service};
pub use store::{CellStore, StoreError};
