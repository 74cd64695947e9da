//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

mod calls;
mod metrics;
mod narrow;
mod ports;
mod rpc;
mod support;
mod virtual_time;
