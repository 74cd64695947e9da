//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

mod activity;
mod callbacks;
mod disk;
mod edges;
mod late;
mod loopback;
mod restart;
mod rights;
mod rpcs;
mod snapshots;
mod support;
