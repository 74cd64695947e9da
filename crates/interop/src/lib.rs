//! Interop with OpenAFS: the parts of the tests in `tests/interop` (Rx) and `tests/cells` (whole cells).
//!
//! [`lab`] finds and builds the programs, [`process`] runs them, [`suite`] runs the cases. For Rx, [`service`] is our implementation of
//! both ends of the test service, and `interop/oafs-peer` is OpenAFS's; [`network`] is between the two sides, [`proxy`] records what
//! passes there, and [`wire`] judges the record. For cells, [`cell`] starts one of OpenAFS's servers or of ours and mounts it with a
//! stock client, [`our_mount`] mounts it with ours, [`guest`] does so with a stock kernel in qemu, [`commands`] compares the answers of stock tools in two cells, and [`celldb`] makes
//! random calls to servers of the cell's databases.
//!
//! Nothing here is used outside of tests and benches.

#![forbid(unsafe_code)]

pub mod cell;
pub mod celldb;
pub mod commands;
pub mod guest;
pub mod lab;
pub mod network;
pub mod our_mount;
pub mod process;
pub mod proxy;
pub mod service;
pub mod suite;
pub mod wire;
