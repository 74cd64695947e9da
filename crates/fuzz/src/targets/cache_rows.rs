//! Content that the disk of a client's cache may have: rows of files, of changes and of their data, and of what was known; the first byte says which.

use crate::shape::Shape;
use afs_cache::fuzzing;

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((&kind, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let kind = kind % fuzzing::KINDS;
    let shape = Shape::EMPTY.with(u64::from(kind)).with_count(bytes.len());
    shape.with(u64::from(fuzzing::row(kind, bytes))).feature()
}
