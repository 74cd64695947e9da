//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

mod common;
mod damage;
mod flips;
mod lock;
mod pages;
mod power;
mod version;
