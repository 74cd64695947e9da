//! What a repair has changed, written down so that it can be taken back: a line for each row, with its key, its value before and after as
//! hexadecimal digits, and a line for each file that was moved. A line is on the disk before what it speaks of is done.
//!
//! Numbers that may be given out stay raised: clients may have been told of what the repair made under them. So what is taken back is shown
//! under versions of its own, as after a power loss.

use crate::disk::Disk;
use crate::keys::{self, GroupId, Key, VnodeKey};
use crate::records::{self, GroupRecord, Rows};
use crate::{Config, VolumeError};
use afs_store::{Batch, Bytes, Options, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, BufRead, Write as _};
use std::sync::Arc;

/// The first line.
const TITLE: &str = "afar fsck undo 1";
/// Stands for no row.
const NONE: &str = "-";
/// Stands for a value that could not be read.
const UNREADABLE: &str = "?";

/// Keeps what a repair is about to replace.
pub trait Undo {
    /// Appends some bytes; returns when they outlast a power loss.
    ///
    /// # Errors
    ///
    /// The system's: the repair ends then.
    fn keep(&mut self, bytes: &[u8]) -> io::Result<()>;
}

impl Undo for std::fs::File {
    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        let is_new = self.metadata()?.len() == 0;
        if is_new {
            self.write_all(format!("{TITLE}\n").as_bytes())?;
        }
        self.write_all(bytes)?;
        self.sync_all()
    }
}

impl Undo for Vec<u8> {
    fn keep(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_empty() {
            self.extend(format!("{TITLE}\n").as_bytes());
        }
        self.extend(bytes);
        Ok(())
    }
}

fn hex(out: &mut String, bytes: &[u8]) {
    // An empty value is a value.
    out.push('x');
    bytes.iter().for_each(|byte| _ = write!(out, "{byte:02x}"));
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix('x')?.as_bytes();
    let digit = |byte: u8| Some((byte as char).to_digit(16)? as u8);
    let pair = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    digits.chunks(2).map(pair).collect()
}

pub(super) fn keep_rows(undo: &mut dyn Undo, store: &Store, batch: &Batch) -> Result<(), VolumeError> {
    let mut lines = String::new();
    for (key, after) in &batch.rows {
        let before = store.get(key);
        lines += "row ";
        hex(&mut lines, &key.0);
        for value in [before.as_ref().map(Option::as_deref), Ok(after.as_deref())] {
            lines.push(' ');
            match value {
                Ok(Some(value)) => hex(&mut lines, value),
                Ok(None) => lines += NONE,
                Err(_) => lines += UNREADABLE,
            }
        }
        lines.push('\n');
    }
    keep(undo, &lines)
}

pub(super) fn keep_move(undo: &mut dyn Undo, from: &str, to: &str) -> Result<(), VolumeError> {
    let mut line = "move ".to_owned();
    hex(&mut line, from.as_bytes());
    line.push(' ');
    hex(&mut line, to.as_bytes());
    line.push('\n');
    keep(undo, &line)
}

fn keep(undo: &mut dyn Undo, lines: &str) -> Result<(), VolumeError> {
    undo.keep(lines.as_bytes()).map_err(VolumeError::io("cannot write down what the repair replaces"))
}

/// The reason why a repair was not taken back. Nothing was.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The partition cannot be read or changed.
    #[error("{0}")]
    Volume(VolumeError),
    /// What was kept cannot be read.
    #[error("{0}")]
    Read(io::Error),
    /// A line of it says nothing: its number.
    #[error("line {0} is none that a repair writes")]
    BadLine(usize),
    /// A row is not as the repair left it.
    #[error("{0} has changed since the repair, so it cannot be taken back")]
    Changed(String),
}

impl<E: Into<VolumeError>> From<E> for UndoError {
    fn from(error: E) -> Self {
        Self::Volume(error.into())
    }
}

/// The things that were taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Undone {
    /// Rows.
    pub rows: u64,
    /// Files of data.
    pub files: u64,
}

/// The values that a row had in the course of a repair, the first before it; `None` could not be read.
type Course = Vec<Option<Option<Vec<u8>>>>;

#[derive(Default)]
struct Kept {
    rows: BTreeMap<Key, Course>,
    moves: Vec<(String, String)>,
}

fn parse(kept: &mut dyn BufRead) -> Result<Kept, UndoError> {
    let mut found = Kept::default();
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        if kept.read_until(b'\n', &mut text).map_err(UndoError::Read)? == 0 {
            break;
        }
        // A repair that was killed may have left a line in part: what it speaks of was not done.
        let Some(line) = text.strip_suffix(b"\n") else { break };
        let bad = || UndoError::BadLine(number);
        let line = std::str::from_utf8(line).map_err(|_| bad())?;
        let words: Vec<&str> = line.split(' ').collect();
        let value = |word: &str| match word {
            NONE => Some(Some(None)),
            UNREADABLE => Some(None),
            _ => Some(Some(Some(unhex(word)?))),
        };
        let name = |word: &str| String::from_utf8(unhex(word)?).ok().filter(|name| is_name(name));
        match words[..] {
            _ if number == 1 && line == TITLE => {}
            ["row", key, before, after] if number > 1 => {
                let key = Key(unhex(key).ok_or_else(bad)?);
                let (before, after) = (value(before).ok_or_else(bad)?, value(after).ok_or_else(bad)?);
                let course: &mut Course = found.rows.entry(key).or_default();
                if course.is_empty() {
                    course.push(before);
                }
                course.push(after);
            }
            ["move", from, to] if number > 1 => {
                found.moves.push((name(from).ok_or_else(bad)?, name(to).ok_or_else(bad)?));
            }
            _ => return Err(bad()),
        }
    }
    Ok(found)
}

/// True if it can be the name of a file of a partition, and of none elsewhere.
fn is_name(name: &str) -> bool {
    name.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Takes back what a repair has kept in `kept`, unless what it has changed was changed since. Numbers that it has raised stay so.
///
/// # Errors
///
/// [`UndoError`].
pub fn undo(disk: &Arc<dyn Disk>, config: &Config, kept: &mut dyn BufRead) -> Result<Undone, UndoError> {
    let Kept { rows, moves } = parse(kept)?;
    let options = Options { cache_bytes: config.cache_bytes, log_bytes: config.log_bytes };
    let store = Store::open(disk.clone(), options, &Rows)?;
    let result = undo_in(&store, rows, &moves);
    // What was written is in the log.
    let _ = store.close();
    result
}

fn undo_in(
    store: &Store,
    rows: BTreeMap<Key, Course>,
    moves: &[(String, String)],
) -> Result<Undone, UndoError> {
    let mut batch = Batch::default();
    let mut groups = BTreeSet::new();
    let mut undone = Undone::default();
    for (key, course) in rows {
        groups.extend(VnodeKey::parse(&key).map(|key| key.group));
        if is_number(&key) {
            continue;
        }
        let now: Option<Bytes> = store.get(&key)?;
        if !course.iter().any(|value| value.as_ref().is_some_and(|value| value.as_deref() == now.as_deref()))
        {
            return Err(UndoError::Changed(name_of(&key)));
        }
        match course.into_iter().next().flatten() {
            Some(before) if before.as_deref() == now.as_deref() => continue,
            Some(Some(before)) => batch.put(key, before),
            Some(None) => batch.delete(key),
            // What could not be read does not come back.
            None => continue,
        }
        undone.rows += 1;
    }
    for group in groups {
        raise(store, group, &mut batch)?;
    }
    let disk = store.disk();
    for (from, to) in moves.iter().rev() {
        match disk.rename(to, from) {
            Ok(()) => undone.files += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(VolumeError::io(format!("cannot move {to} to {from}"))(error).into()),
        }
    }
    let folders: BTreeSet<&str> = moves
        .iter()
        .flat_map(|(from, to)| [from, to])
        .filter_map(|name| Some(name.rsplit_once('/')?.0))
        .collect();
    for folder in folders {
        disk.sync_folder(folder).map_err(VolumeError::io(format!("cannot sync the folder {folder}")))?;
    }
    let seq = store.submit(batch)?;
    store.sync(seq)?;
    Ok(undone)
}

/// Rows that say what may be given out.
fn is_number(key: &Key) -> bool {
    keys::is_reservation(key) || *key == keys::partition() || key.0.starts_with(&keys::groups())
}

/// What a group shows from now on has versions that no client was told.
fn raise(store: &Store, group: GroupId, batch: &mut Batch) -> Result<(), UndoError> {
    let (Some(row), Some(reserved)) =
        (store.get(&keys::group(group))?, store.get(&keys::group_reservation(group))?)
    else {
        return Ok(());
    };
    let (Ok(mut record), Ok(reserved)) = (GroupRecord::decode(&row), records::decode_reservation(&reserved))
    else {
        return Ok(());
    };
    record.version_floor = record.version_floor.max(reserved[1]);
    record.floor_since = record.current;
    batch.put(keys::group(group), record.encode());
    Ok(())
}

fn name_of(key: &Key) -> String {
    match (VnodeKey::parse(key), keys::volume_of(key)) {
        (Some(key), _) => format!("vnode {} of volume group {}", key.vnode, key.group.0),
        (None, Some(id)) if key.0.starts_with(&keys::volumes()) || *key == keys::counters(id) => {
            format!("volume {id}")
        }
        _ => format!("row {:02x?}", key.0),
    }
}
