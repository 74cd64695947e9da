//! What the tests and benches of several crates share. Not for users, and no program depends on it.
//!
//! # What to open for a change
//!
//! - What a test may say to servers: [`caller`], a feature of this crate.
//! - Folders, processes and addresses that go with their test, and a cell of processes with its mounts: [`real`].
//! - A cell in one process and in virtual time, and its pieces: [`sim`], the features `sim` and `cell`.
//! - What we did not write: the KDC, etcd, a machine with systemd: [`peers`].
//! - How a test is skipped, and takes its turn at a processor: [`skipped`], [`cpu`](mod@cpu).

//! # The verbs of a cell
//!
//! | | in virtual time: `sim::Cell` | processes: [`real::cell::Cell`], [`real::machines::Machines`] |
//! | --- | --- | --- |
//! | make one | `new`, `with_sites`, `with_disks` | `new`, `waiting`; `Machines::new`, `configure`, `start_all` |
//! | start a server | `start` | `start` |
//! | end it as `kill -9` does | `kill`; `crash` with what its disks may lose | `kill` |
//! | and start it again | | `restart`, `restart_after` |
//! | end it as a service manager does | | `stop` |
//! | a client | `client`, `client_with` | `mount`, `mount_with` |
//! | nothing gets to a client or from it | `cut_off`, `let_in`; a `Laptop` sleeps | `Process::signal`; [`real::proxy::Proxy`] |
//! | time passes | `pass` | [`until!`] |

#![forbid(unsafe_code)]

#[cfg(feature = "caller")]
pub mod caller;
pub mod cpu;
pub mod peers;
pub mod real;
#[cfg(feature = "sim")]
pub mod sim;
pub mod skipped;
