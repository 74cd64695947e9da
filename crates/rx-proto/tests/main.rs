//! The tests of this crate that use it from outside: one program, so that it is linked once and waits overlap.

mod calls;
mod crowded;
mod fairness;
mod faults;
mod hostile;
mod inspect;
mod loss;
mod narrow;
mod recovery;
mod replays;
mod security;
mod support;
mod throughput;
mod trace;
mod vectors;
