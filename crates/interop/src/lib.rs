//! Interop with OpenAFS: the parts of the tests in `tests/interop` (Rx) and `tests/cells` (whole cells).
//!
//! [`lab`] finds and builds the programs, [`process`] runs them, [`suite`] runs the cases. For Rx, [`service`] is our implementation of
//! both ends of the test service, and `interop/oafs-peer` is OpenAFS's; [`network`] is between the two sides, [`proxy`] records what
//! passes there, and [`wire`] judges the record. [`gss`] is MIT Kerberos's end of a negotiation of rxgk. For cells, [`cell`] starts one of OpenAFS's servers or of ours and mounts it with a
//! stock client, [`our_mount`] mounts it with ours, [`guest`] does so with a stock kernel in qemu, [`commands`] compares the answers of stock tools in two cells, and [`celldb`] makes
//! random calls to servers of the cell's databases.
//!
//! Nothing here is used outside of tests and benches.
//!
//! # What to open for a change
//!
//! - The cells of tests and benches, their machines and clients, and how they end: `interop/cell/`, and [`cell`]
//!   (the guard).
//! - Machines with stock kernels: `scripts/kernels.sh`, `interop/kernels/`, [`guest`] (the guard),
//!   `tests/cells/kernels.rs`.
//! - Which commands stock tools run against our servers: `interop/cell/commands.txt`; [`commands::rules`] says what
//!   may differ; then docs/interop.md.
//! - What programs do in a mount, compared with a local disk: `interop/programs/`, `tests/cells/programs.rs`,
//!   `crates/afar/tests/work.rs`.
//! - Volumes that go from OpenAFS's servers to ours and back: `tests/cells/dumps.rs`. Their counters and dates,
//!   compared with a stock server's: `tests/cells/volumes.rs`.

#![forbid(unsafe_code)]

pub mod cell;
pub mod celldb;
pub mod commands;
pub mod gss;
pub mod guest;
pub mod lab;
pub mod network;
pub mod our_mount;
pub mod process;
pub mod proxy;
pub mod service;
pub mod suite;
pub mod wire;
