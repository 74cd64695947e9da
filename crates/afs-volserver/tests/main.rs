//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

mod carried;
mod dump;
mod forward;
mod halves;
mod level;
mod limit;
mod removed;
mod restore;
mod schedule;
mod service;
mod snapshots;
mod support;
mod vanished;
