//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

mod clone;
mod format_2;
mod kill;
