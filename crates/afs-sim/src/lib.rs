//! A simulated network for tests, in virtual time. No clock, no thread and no socket: time passes when nobody has anything to do, chance
//! comes from a seed, and each run is the same as the one before.
//!
//! [`world`] joins endpoints of `rx-proto` by links with delay, rate, loss and more, with a simple application on each: it tests the
//! protocol. [`Sim`] is a runtime for everything above `rx`: clients and servers run in it as they are. Knows nothing of AFS itself.

#![forbid(unsafe_code)]

mod nat;
mod runtime;
pub mod world;

pub use nat::Nat;
pub use runtime::{Fate, Sim};
