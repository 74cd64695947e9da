//! rx.
pub mod socket;
