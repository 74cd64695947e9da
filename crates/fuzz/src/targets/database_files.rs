//! vldb.DB0 and prdb.DB0, as changes to files that OpenAFS's servers wrote: what is read can be written, and is then read as
//! the same; and it is a database here.

use crate::shape::Shape;
use afs_celldb::database::Image;
use afs_celldb::files::{Oddities, read_prdb, read_vldb, write_prdb, write_vldb};
use afs_celldb::ptdb::Ptdb;
use afs_celldb::vldb::Vldb;

const VLDB: &[u8] = include_bytes!("../../../afs-celldb/tests/data/vldb.DB0");
const PRDB: &[u8] = include_bytes!("../../../afs-celldb/tests/data/prdb.DB0");

/// The place from which changes with even places count: shortly before the first entry.
const ENTRIES: [usize; 2] = [132_000, 65_500];

/// See the module. The first byte says which file, and whether it is cut and has a log; then changes: a place in three bytes,
/// how many bytes, and these.
pub fn run(input: &[u8]) -> u64 {
    let Some((&first, mut rest)) = input.split_first() else { return Shape::EMPTY.feature() };
    let which = usize::from(first & 1);
    let mut file = [VLDB, PRDB][which].to_vec();
    let mut log = vec![0; 64];
    while let Some(([a, b, c, length], behind)) = rest.split_first_chunk::<4>() {
        let (bytes, behind) = behind.split_at(behind.len().min(usize::from(*length)));
        rest = behind;
        let place = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        if first & 2 != 0 {
            log.extend_from_slice(bytes);
            continue;
        }
        let start = if place.is_multiple_of(2) { ENTRIES[which] } else { 0 };
        let place = start + place % (file.len() - start);
        let end = (place + bytes.len()).min(file.len());
        file[place..end].copy_from_slice(&bytes[..end - place]);
    }
    if first & 4 != 0 {
        file.truncate(ENTRIES[which] + usize::from(first) * 37);
    }
    let log = Some(&log[..]).filter(|_| first & 2 != 0);
    if which == 0 { vldb(&file, log) } else { prdb(&file, log) }.feature()
}

fn shape_of(oddities: &Oddities) -> Shape {
    oddities.iter().fold(Shape::EMPTY, |shape, (oddity, count, _)| {
        shape.with(oddity as u64).with_count(usize::try_from(count).unwrap_or(usize::MAX))
    })
}

fn vldb(file: &[u8], log: Option<&[u8]>) -> Shape {
    let (contents, oddities) = match read_vldb(file, log) {
        Ok(read) => read,
        Err(error) => return Shape::EMPTY.with(error.to_string().len() as u64),
    };
    let written = write_vldb(&contents, 1).expect("what was read is not too much");
    assert_eq!(read_vldb(&written, None).expect("it was written here").0, contents);
    let mut vldb = Vldb::empty();
    contents
        .rows()
        .for_each(|(key, row)| vldb.set_row(&key, Some(&row)).expect("rows are made as they are read"));
    shape_of(&oddities)
}

fn prdb(file: &[u8], log: Option<&[u8]>) -> Shape {
    let (contents, oddities) = match read_prdb(file, log) {
        Ok(read) => read,
        Err(error) => return Shape::EMPTY.with(error.to_string().len() as u64),
    };
    let written = write_prdb(&contents, 1).expect("what was read is not too much");
    assert_eq!(read_prdb(&written, None).expect("it was written here").0, contents);
    let mut ptdb = Ptdb::empty();
    contents
        .rows()
        .for_each(|(key, row)| ptdb.set_row(&key, Some(&row)).expect("rows are made as they are read"));
    shape_of(&oddities)
}
