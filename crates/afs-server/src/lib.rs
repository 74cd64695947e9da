//! The servers of a machine in one process: reads its configuration, makes what a first start needs, puts the services
//! together over their ports, tells the cell where they are, and writes log, audit log and metrics.
//!
//! What each service answers is in its own crate; the overseer's (BOS) is here, since it speaks of this process. The
//! command line is left to the program.
#![forbid(unsafe_code)]

pub mod config;

pub use config::{Config, LoadError, Role};
