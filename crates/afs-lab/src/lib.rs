//! What the tests and benches of several crates share. Not for users, and no program depends on it.
//!
//! # What to open for a change
//!
//! - What a test may say to servers: [`caller`], a feature of this crate.
//! - Folders, processes and addresses that go with their test, and a cell of processes with its mounts: [`real`].
//! - A cell in one process and in virtual time, and its pieces: [`sim`], the features `sim` and `cell`.
//! - What we did not write: the KDC, etcd, a machine with systemd: [`peers`].
//! - How a test is skipped, and takes its turn at a processor: [`skipped`], [`cpu`](mod@cpu).

#![forbid(unsafe_code)]

#[cfg(feature = "caller")]
pub mod caller;
pub mod cpu;
pub mod peers;
pub mod real;
#[cfg(feature = "sim")]
pub mod sim;
pub mod skipped;
