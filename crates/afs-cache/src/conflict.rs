//! Data that were written and could not be stored, kept for their writer: a file with the data, and a text that says
//! what they are.

use afs_store::Key;
use afs_store::codec::{Fields, Value};
use std::fmt::Write;
use std::ops::Range;

/// Something that was put aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Its number, in the folder.
    pub number: u64,
    /// The cell.
    pub cell: String,
    /// The volume.
    pub volume: u32,
    /// The vnode's number.
    pub vnode: u32,
    /// The use of it.
    pub unique: u32,
    /// The version of the data that was written on.
    pub version: u64,
    /// The local user who wrote last.
    pub writer: u32,
    /// The length of the file.
    pub length: u64,
    /// The ranges of it that were written; the rest may not be there, and reads as zeros.
    pub ranges: Vec<Range<u64>>,
    /// The reason why it could not be stored.
    pub why: String,
}

impl Conflict {
    /// The file with the data, below the cache's folder.
    #[must_use]
    pub fn data_name(&self) -> String {
        format!(
            "conflicts/{}.{}.{}.{}.v{}.{:x}",
            self.cell, self.volume, self.vnode, self.unique, self.version, self.number
        )
    }

    /// The file with the text, below the cache's folder.
    #[must_use]
    pub fn text_name(&self) -> String {
        format!("{}.txt", self.data_name())
    }

    /// The content of the text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "What user {} wrote to file {}.{}.{} of the cell {}, on version {}, was not stored:\n{}.\n\
             The file beside this one has it. Of its {} bytes these were written, the others may read as zeros:\n",
            self.writer, self.volume, self.vnode, self.unique, self.cell, self.version, self.why, self.length
        );
        for range in &self.ranges {
            let _ = writeln!(text, "{} to {}", range.start, range.end);
        }
        text
    }

    /// The bytes that were written, which is the most that it takes.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.ranges.iter().map(|range| range.end.saturating_sub(range.start)).fold(0, u64::saturating_add)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Value::default()
            .string(&self.cell)
            .u32(self.volume)
            .u32(self.vnode)
            .u32(self.unique)
            .u64(self.version)
            .u32(self.writer)
            .u64(self.length)
            .string(&self.why.chars().take(WHY_MAX).collect::<String>())
            .u32(u32::try_from(self.ranges.len()).expect("there are at most some thousand"));
        for range in &self.ranges {
            value = value.u64(range.start).u64(range.end);
        }
        value.0
    }
}

/// Characters of a reason at most.
const WHY_MAX: usize = 1000;

/// Reads a conflict's row; `None` if it is none.
pub(crate) fn decode(key: &Key, row: &[u8]) -> Option<Conflict> {
    let mut f = Fields::new("a conflict's key", key.0.get(1..)?);
    let number = f.u64().ok()?;
    f.end().ok()?;
    let mut f = Fields::new("a conflict", row);
    let mut conflict = Conflict {
        number,
        cell: f.string().ok()?,
        volume: f.u32().ok()?,
        vnode: f.u32().ok()?,
        unique: f.u32().ok()?,
        version: f.u64().ok()?,
        writer: f.u32().ok()?,
        length: f.u64().ok()?,
        why: f.string().ok()?,
        ranges: Vec::new(),
    };
    for _ in 0..f.u32().ok()? {
        conflict.ranges.push(f.u64().ok()?..f.u64().ok()?);
    }
    f.end().ok()?;
    Some(conflict)
}
