//! Reads the rows in redb's file without redb, which answers nothing more once it has met a damaged page, and opens nothing where one of the
//! pages with its own notes is damaged. Here each page is read by itself, by its checksums: a damaged one costs what is in it and below it.
//!
//! This follows version 3 of redb's file format: the header with two commit slots, trees of pages with a tree of tables above them.
//! Nothing may be written to the file meanwhile.

use super::checked::{BLOCK, CheckedFile};
use super::{Bytes, Key, Row};
use std::cell::Cell;
use std::io;
use std::ops::Range;

/// The flags in the header's tenth byte: which commit slot counts; that the file was not closed; that the slot which counts is whole.
const FLAGS: usize = 9;
const SECOND_SLOT: u8 = 1;
const NOT_CLOSED: u8 = 2;
const TWO_PHASES: u8 = 4;
/// The places of the numbers of pages in a region: those of its header, which newer files do not have, and the others at most.
const REGION_HEADER: usize = 16;
const REGION_PAGES: usize = 20;
/// The places of the commit slots, and in a slot of its version, of a byte that is 0 where there is no tree, and of the tree's root.
const SLOTS: [usize; 2] = [64, 192];
const SLOT_HAS_ROOT: usize = 1;
const SLOT_ROOT: usize = 8;
/// The version of the file format.
const VERSION: u8 = 3;
/// The kind of a table, which is in the first byte of its record; the place behind that of a byte that is 0 where there is no tree, whose root
/// follows.
const TABLE_IS_PLAIN: u8 = 3;
const TABLE_HAS_ROOT: usize = 8;
/// The kinds of pages.
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// Levels of a tree: redb's trees have fewer.
const MAX_LEVELS: u32 = 64;

/// A table: its root, and how long its values are if all have the same length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    root: Option<u64>,
    fixed: Option<usize>,
}

/// The file as it was committed last.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    file: &'a CheckedFile,
    tables: Table,
    /// Blocks of a region, those of its header among them.
    region: u64,
    region_header: u64,
}

/// The keys that are looked for, and how many at most; and the pages that may still be read for them: a tree has each once, whatever a file
/// says that somebody has made.
struct Wanted<'k> {
    from: &'k [u8],
    end: Option<&'k [u8]>,
    limit: usize,
    pages: Cell<u64>,
}

impl Wanted<'_> {
    /// True if none of these keys comes after `last`.
    fn is_behind(&self, last: &[u8]) -> bool {
        let is_end = |end: &[u8]| last >= end.strip_suffix(&[0]).unwrap_or(end);
        self.end.is_some_and(is_end)
    }

    fn has(&self, key: &[u8]) -> bool {
        key >= self.from && self.end.is_none_or(|end| key < end)
    }
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The number of entries of a page.
fn count(page: &[u8]) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(*page.get(2..)?.first_chunk()?)))
}

/// Where things are that lie one behind the other from `start` on, whose ends are written at `ends`.
fn ranges(page: &[u8], ends: usize, count: usize, start: usize) -> Option<Vec<Range<usize>>> {
    let mut from = start;
    let next = |n| {
        let range = from..u32_at(page, ends + 4 * n)?;
        from = range.end;
        page.get(range.clone()).map(|_| range)
    };
    (0..count).map(next).collect()
}

/// Keys and values of a leaf.
fn leaf(page: &[u8], fixed: Option<usize>) -> Option<Vec<(&[u8], &[u8])>> {
    let count = count(page)?;
    let values_at = 4 + 4 * count;
    let start = if fixed.is_some() { values_at } else { values_at + 4 * count };
    let keys = ranges(page, 4, count, start)?;
    let start = keys.last()?.end;
    let values = match fixed {
        Some(length) => (0..count).map(|n| start + n * length..start + (n + 1) * length).collect(),
        None => ranges(page, values_at, count, start)?,
    };
    let pair = |(key, value): (Range<usize>, Range<usize>)| Some((page.get(key)?, page.get(value)?));
    keys.into_iter().zip(values).map(pair).collect()
}

/// A child of a branch, and the last key that may be in it; the last child has none.
type Child<'p> = (u64, Option<&'p [u8]>);

/// The children of a branch.
fn branch(page: &[u8]) -> Option<Vec<Child<'_>>> {
    let count = count(page)?;
    let pages = 8 + 16 * (count + 1);
    let ends = pages + 8 * (count + 1);
    let keys = ranges(page, ends, count, ends + 4 * count)?;
    let keys = keys.into_iter().map(|range| Some(&page[range])).chain([None]);
    (0..=count).zip(keys).map(|(n, key)| Some((u64_at(page, pages + 8 * n)?, key))).collect()
}

impl<'a> Pages<'a> {
    /// Makes them of a file, by its header.
    pub(super) fn new(file: &'a CheckedFile) -> io::Result<Self> {
        let header = file.header();
        let flags = header[FLAGS];
        let slot = &header[SLOTS[usize::from(flags & SECOND_SLOT)]..];
        // Else it is not certain which slot counts.
        if slot[0] != VERSION || flags & (NOT_CLOSED | TWO_PHASES) == NOT_CLOSED {
            return Err(wrong("its header is of another form"));
        }
        let pages = |at| u32_at(&header, at).map_or(0, |pages| pages as u64);
        let root = (slot[SLOT_HAS_ROOT] != 0).then(|| u64_at(slot, SLOT_ROOT)).flatten();
        let region_header = pages(REGION_HEADER);
        let region = region_header + pages(REGION_PAGES);
        Ok(Self { file, tables: Table { root, fixed: None }, region, region_header })
    }

    /// A page by its number: twenty bits of its place in a region in units of its size, twenty of the region, and five of the size's exponent.
    fn page(&self, number: u64) -> io::Result<Vec<u8>> {
        let place = || {
            let order = (number >> 59) as u32;
            let blocks = 1_u64 << order;
            let first = (number & (0xf_ffff >> order)) * blocks;
            let region = (number >> 20 & 0xf_ffff).checked_mul(self.region)?;
            let at = (1 + region + self.region_header + first).checked_mul(BLOCK as u64)?;
            Some((at, blocks.checked_mul(BLOCK as u64)?))
        };
        let length = self.file.length()?;
        match place() {
            Some((at, bytes)) if at.checked_add(bytes).is_some_and(|end| end <= length) => {
                let mut page = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
                self.file.read(at, &mut page)?;
                Ok(page)
            }
            _ => Err(wrong("it speaks of a page behind its end")),
        }
    }

    /// Adds the rows that are wanted, of those in a page and below it.
    fn collect(
        &self,
        root: u64,
        fixed: Option<usize>,
        wanted: &Wanted<'_>,
        levels: u32,
        rows: &mut Vec<Row>,
    ) -> io::Result<()> {
        let left =
            wanted.pages.get().checked_sub(1).ok_or_else(|| wrong("its pages go round in a circle"))?;
        wanted.pages.set(left);
        let page = self.page(root)?;
        match page[0] {
            LEAF => {
                let found = leaf(&page, fixed).ok_or_else(|| wrong("a page with rows is of another form"))?;
                let left = wanted.limit - rows.len();
                let found = found.into_iter().filter(|(key, _)| wanted.has(key)).take(left);
                rows.extend(found.map(|(key, value)| (Key(key.to_vec()), value.into())));
            }
            BRANCH if levels > 0 => {
                let children = branch(&page).ok_or_else(|| wrong("a page above rows is of another form"))?;
                let mut first = None;
                for (child, last) in children {
                    if first.is_some_and(|first| wanted.is_behind(first)) || rows.len() == wanted.limit {
                        break;
                    }
                    if last.is_none_or(|last| last >= wanted.from) {
                        self.collect(child, fixed, wanted, levels - 1, rows)?;
                    }
                    first = last;
                }
            }
            _ => return Err(wrong("a page is of no kind that is known")),
        }
        Ok(())
    }

    /// Rows of a table from a key on, and before `end`.
    pub(super) fn rows(
        &self,
        table: Table,
        from: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> io::Result<Vec<Row>> {
        let mut rows = Vec::new();
        if let Some(root) = table.root.filter(|_| limit > 0) {
            let pages = Cell::new(self.file.length()? / BLOCK as u64);
            self.collect(root, table.fixed, &Wanted { from, end, limit, pages }, MAX_LEVELS, &mut rows)?;
        }
        Ok(rows)
    }

    /// The row with this key.
    pub(super) fn row(&self, table: Table, key: &[u8]) -> io::Result<Option<Bytes>> {
        let behind = [key, &[0]].concat();
        Ok(self.rows(table, key, Some(&behind), 1)?.pop().map(|(_, value)| value))
    }

    /// The table with a name, empty if it is not there; `fixed` is how long its values are, if all have the same length.
    pub(super) fn table(&self, name: &str, fixed: Option<usize>) -> io::Result<Table> {
        let root = match self.row(self.tables, name.as_bytes())?.as_deref() {
            None => None,
            Some([TABLE_IS_PLAIN, record @ ..]) => match record.get(TABLE_HAS_ROOT) {
                Some(0) => None,
                _ => Some(
                    u64_at(record, TABLE_HAS_ROOT + 1).ok_or_else(|| wrong("a table is of another form"))?,
                ),
            },
            Some(_) => return Err(wrong("a table is of another form")),
        };
        Ok(Table { root, fixed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, SimulatedDisk};

    /// Its checksums say that a file is whole, and not who has made it.
    #[test]
    fn a_page_that_is_its_own_child_is_not_read_for_ever() {
        let disk = SimulatedDisk::new(1 << 20);
        let file = disk.create("rows").unwrap();
        let mut bytes = vec![0; 2 * BLOCK];
        bytes[REGION_PAGES] = 8;
        (bytes[SLOTS[0]], bytes[SLOTS[0] + SLOT_HAS_ROOT]) = (VERSION, 1);
        // One key, one byte long, between two children: both are this page, whose number is 0.
        let page = &mut bytes[BLOCK..];
        (page[0], page[2], page[56], page[60]) = (BRANCH, 1, 61, b'k');
        file.write_at(0, &bytes).unwrap();
        CheckedFile::make(&disk, &*file, "sums").unwrap();
        let file = CheckedFile::open(file, disk.open("sums").unwrap(), "sums").unwrap();
        let error = Pages::new(&file).unwrap().table("rows", None).unwrap_err();
        assert_eq!(error.to_string(), "its pages go round in a circle");
    }
}
