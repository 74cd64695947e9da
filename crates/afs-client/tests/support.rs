//! The simulated cell of these tests, and what they do in it.

pub(crate) use afs_lab::sim::Cell;
pub(crate) use afs_lab::sim::cell::*;
pub(crate) use afs_lab::sim::{SMALL_LOG, databases, files as data, laptop, moving};
