//! The decision when a call fails: wait, look the volume up again, ask another server, or tell the user. `verdict.rs`
//! is the table, one line for each code; [`Rotation`] goes through the servers of one operation by it. The client and
//! the administration of a cell follow this one rule.
//!
//! It knows no servers and no clock: callers pass in the servers, their order and the time.
//!
//! # What to open for a change
//!
//! - What is done about an error code: the table in [`mod@verdict`].
//! - Which server is asked next: [`rotation`].
#![forbid(unsafe_code)]

mod rotation;
mod verdict;

#[cfg(test)]
mod tests;

pub use rotation::{Candidate, Rotation, Step};
pub use verdict::{Verdict, of_call, of_code, peers_code, verdict};
