//! A WAN link between two network namespaces, emulated in user space: rate, drop-tail queue, loss, delay,
//! jitter, reordering and duplication, without the kernel's `sch_netem`.
//!
//! A thread of this process owns a TUN device in each namespace and carries packets between them, so tests
//! and benches of any crate can use it without a program to find:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::{net::UdpSocket, time::Duration};
//! if let Err(why) = linkem::available() {
//!     eprintln!("skipped: {why}");
//!     return Ok(());
//! }
//! let link = linkem::Link::builder().rtt(Duration::from_millis(50)).rate_mbit(100.0).loss(0.001).start()?;
//! let server = link.b().run_in(|| UdpSocket::bind((linkem::ADDRESS_B, 7001)))??;
//! let status = link.a().command("ping").args(["-c", "3", "10.99.0.2"]).status()?;
//! link.set(|direction| direction.blackout = true)?;
//! link.counters().check()?; // was the run valid?
//! # Ok(())
//! # }
//! ```
//!
//! The README has the limits within which measurements can be trusted. This crate leaves to its users what
//! runs inside the namespaces. It needs Linux and root; see [`available`].
//!
//! # What to open for a change
//!
//! - Queue, loss and delay: [`direction`]. The guard that tests use: [`link`].

#![deny(unsafe_code)]

mod counters;
mod direction;
mod emulator;
mod error;
mod link;
mod namespace;
mod options;
mod packet;
mod random;
mod sys;
mod tun;

pub use counters::{Counters, DirectionCounters, Invalid, LATE_SHARE_MAX, Reason};
pub use emulator::EmulatorOptions;
pub use error::Error;
pub use link::{ADDRESS_A, ADDRESS_B, ADDRESS6_A, ADDRESS6_B, Builder, Link, available};
pub use namespace::Namespace;
pub use options::{DirectionOptions, GilbertElliott, LinkOptions, QueueLimit, SETTINGS, Setting};
pub use sys::Termination;
