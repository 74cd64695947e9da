//! Content that a volume's disk may have: rows of every kind and records of the log; the first byte says which.

use crate::shape::Shape;
use afs_volume::fuzzing;

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((&kind, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let kind = kind % 9;
    let shape = Shape::EMPTY.with(u64::from(kind)).with_count(bytes.len());
    match kind {
        8 => shape.with_count(usize::try_from(fuzzing::log_records(bytes)).unwrap_or(usize::MAX)).feature(),
        kind => shape.with(u64::from(fuzzing::row(kind, bytes))).feature(),
    }
}
