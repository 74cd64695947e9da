//! The servers of a machine in one process: reads its configuration, makes what a first start needs, puts the services
//! together over their ports, tells the cell where they are, and writes log, audit log and metrics.
//!
//! What each service answers is in its own crate; the overseer's (BOS) is here, since it speaks of this process. The
//! command line is left to the program.
#![forbid(unsafe_code)]

mod addresses;
pub mod audit;
mod authority;
mod bozo;
pub mod config;
pub mod databases;
pub mod exporter;
mod first_start;
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod keys;
mod locations;
pub mod log;
pub mod memory;
pub mod notify;
pub mod orders;
mod peers;
mod protection;
mod registration;
mod server;
mod sysid;
pub mod top;
mod vice;

pub use config::{Config, LoadError, Role};
pub use server::{Server, StartError};
