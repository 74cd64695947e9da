//! Interop with OpenAFS: what the tests in `tests/interop` (Rx) and `tests/cells` (whole cells) are made of.
//!
//! [`lab`] finds and builds the programs, [`process`] runs them, [`suite`] runs the cases. For Rx, [`service`] is our
//! implementation of the test service, both ends, of which `interop/oafs-peer` is the other one; [`network`] is what lies between
//! the two sides, [`proxy`] records what is said on it and [`wire`] judges that. For cells, [`cell`] starts one of OpenAFS's
//! servers or of ours and mounts it with a stock client, [`our_mount`] with ours, [`commands`] compares what stock tools say of two, and
//! [`celldb`] makes random calls to servers of the cell's databases.
//!
//! Nothing here is used outside of tests and benches.

#![forbid(unsafe_code)]

pub mod cell;
pub mod celldb;
pub mod commands;
pub mod lab;
pub mod network;
pub mod our_mount;
pub mod process;
pub mod proxy;
pub mod service;
pub mod suite;
pub mod wire;
