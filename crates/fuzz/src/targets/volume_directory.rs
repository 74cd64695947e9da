//! Pages of a directory, from the disk or from a dump: read, searched, changed.

use crate::shape::Shape;
use afs_volume::fuzzing;

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let names = fuzzing::directory(input);
    Shape::EMPTY
        .with(u64::from(names.is_some()))
        .with_count(names.unwrap_or(0))
        .with_count(input.len())
        .feature()
}
