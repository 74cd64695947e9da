//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

mod clone_and_remove;
mod convert;
mod create;
mod failover;
mod interrupted;
mod listing;
mod restore;
mod rxgk;
mod shadow;
mod sites;
mod support;
mod transfer;
