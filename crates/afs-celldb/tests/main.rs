//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

mod devices;
#[cfg(feature = "etcd")]
mod etcd;
mod join;
mod killed;
mod wire;
