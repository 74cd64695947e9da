//! The servers of a machine in one process: reads its configuration, makes what a first start needs, puts the services
//! together over their ports, tells the cell where they are, and writes log, audit log and metrics.
//!
//! What each service answers is in its own crate; the overseer's (BOS) is here, since it speaks of this process. The
//! command line is left to the program.
//!
//! # What to open for a change
//!
//! - The order in which roles start and stop: [`server`], and `src/server/assembly.rs` for how each is put
//!   together.
//! - A setting: `src/config/settings.rs`. An option of OpenAFS's servers: `src/config/parm.rs`.
//!   docs/administration.md is the guide.
//! - What the first start makes, and how the next one finishes it: [`first_start`].
//! - Who may administer a server: [`authority`].
//! - By which security classes callers come: [`classes`]. The keys: [`keys`]. How they get tokens of rxgk, and learn which
//!   servers have it: `crates/afs-celldb/src/tokens.rs`.
//! - Answers to `bos`: [`bozo`], [`bozo::instances`] (which roles are stopped), `src/bozo/salvage.rs`. Clients
//!   learn that a role is stopped by `set_away` in `crates/rx-proto/src/endpoint.rs`.
//! - How the VLDB learns this server's addresses: [`registration`], [`sysid`].
//! - Tokens for devices that have joined by an invitation: [`join`]. How a server hears which were revoked: [`revocations`].
//! - etcd's settings, and metrics of databases: [`databases`].
//! - Logs: [`log`](mod@log), [`audit`], and `src/log/recent.rs` for what `bos getlog` shows. Metrics: [`exporter`];
//!   alerts and the dashboard are in `packaging/prometheus/` and `packaging/grafana/`, which
//!   `crates/afar/tests/monitoring.rs` tests. `afar top`: [`top`].
//! - The state of a partition, and the messages about it: [`health`].
//! - How much memory each cache may take: [`memory`].
#![forbid(unsafe_code)]

mod addresses;
pub mod audit;
mod authority;
mod bozo;
mod classes;
pub mod config;
pub mod databases;
pub mod exporter;
mod first_start;
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod join;
mod keys;
mod locations;
pub mod log;
pub mod memory;
pub mod notify;
pub mod orders;
mod peers;
mod protection;
mod registration;
mod revocations;
mod server;
mod sysid;
pub mod top;
mod vice;

pub use config::{Config, LoadError, Role};
pub use server::{Server, StartError};
