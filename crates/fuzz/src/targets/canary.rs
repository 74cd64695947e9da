//! A planted panic behind four gates, each opened by one byte: found only if inputs that get further are kept.

use crate::shape::Shape;

const GATES: &[u8] = b"afar";

/// Panics if the input begins with the right four bytes.
pub fn run(input: &[u8]) -> u64 {
    let open = input.iter().zip(GATES).take_while(|(byte, gate)| byte == gate).count();
    assert!(open < GATES.len(), "the canary sings: this panic is planted");
    Shape::EMPTY.with(open as u64).feature()
}
