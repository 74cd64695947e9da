//! Changes of names and attributes that were made here and that no server has yet: the rows that keep them, in the order in which programs
//! made them. Who makes them, and who sends them, is `afs-view`.
//!
//! What was made here gets a number of ours, as only the server gives real ones: while something of it is kept under our number, a row says which
//! real one it has got.

use crate::records::{self, Writer};
use crate::{Cache, CacheError, CellNumber, FileKey};
use afs_store::codec::{Fields, Value};
use afs_store::{Batch, StoreError};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place<F> {
    /// The directory.
    pub dir: F,
    /// The name: bytes without NUL and slash, at most 255.
    pub name: Vec<u8>,
}

/// Something new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewKind {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
}

/// What is changed. `F` is how vnodes are told: the cache keeps [`FileKey`]s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What<F> {
    /// Something is made.
    Make {
        /// Its name.
        place: Place<F>,
        /// Our number for it.
        made: F,
        /// What it is.
        kind: NewKind,
        /// The twelve low mode bits.
        mode: u32,
        /// The time of modification that it gets, in seconds since 1970.
        modified: u32,
    },
    /// A file gets one more name.
    Link {
        /// The name.
        place: Place<F>,
        /// The file.
        of: F,
    },
    /// A name is removed, and with its last one what has it.
    Remove {
        /// The name.
        place: Place<F>,
        /// What has it.
        of: F,
        /// True if that has no other name.
        is_last: bool,
    },
    /// A name becomes another one.
    Rename {
        /// The name.
        from: Place<F>,
        /// The one that it becomes.
        to: Place<F>,
        /// What has it.
        of: F,
        /// What had the new name.
        replaced: Option<F>,
        /// True if all that was changed and closed in the volume before goes first: what is in a directory, or what a symbolic link leads to,
        /// is not to show less by the new name than it had by the old one.
        is_barrier: bool,
    },
    /// Attributes are set; those that are `None` stay.
    Set {
        /// What has them.
        of: F,
        /// The twelve low mode bits.
        mode: Option<u32>,
        /// The time of modification, in seconds since 1970.
        modified: Option<u32>,
    },
    /// A program was told that a file is safe, while its server was away: all that was changed and closed in the volume before goes first, and
    /// what comes after waits.
    Sync {
        /// The file.
        of: F,
    },
}

/// A change that was made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<F> {
    /// The user who has made it.
    pub writer: Writer,
    /// The time, in seconds since 1970.
    pub time: u32,
    /// What is changed.
    pub what: What<F>,
}

impl<F> Place<F> {
    fn map<G>(self, id: &mut impl FnMut(F) -> Option<G>) -> Option<Place<G>> {
        Some(Place { dir: id(self.dir)?, name: self.name })
    }
}

impl<F> Change<F> {
    /// The same with vnodes told otherwise; `None` if one of them cannot be.
    pub fn map<G>(self, mut id: impl FnMut(F) -> Option<G>) -> Option<Change<G>> {
        let id = &mut id;
        let what = match self.what {
            What::Make { place, made, kind, mode, modified } => {
                What::Make { place: place.map(id)?, made: id(made)?, kind, mode, modified }
            }
            What::Link { place, of } => What::Link { place: place.map(id)?, of: id(of)? },
            What::Remove { place, of, is_last } => {
                What::Remove { place: place.map(id)?, of: id(of)?, is_last }
            }
            What::Rename { from, to, of, replaced, is_barrier } => What::Rename {
                from: from.map(id)?,
                to: to.map(id)?,
                of: id(of)?,
                replaced: match replaced {
                    Some(replaced) => Some(id(replaced)?),
                    None => None,
                },
                is_barrier,
            },
            What::Set { of, mode, modified } => What::Set { of: id(of)?, mode, modified },
            What::Sync { of } => What::Sync { of: id(of)? },
        };
        Some(Change { writer: self.writer, time: self.time, what })
    }
}

/// The first byte of each kind of change.
mod kind {
    pub(super) const FILE: u8 = 1;
    pub(super) const DIRECTORY: u8 = 2;
    pub(super) const SYMLINK: u8 = 3;
    pub(super) const LINK: u8 = 4;
    pub(super) const REMOVE: u8 = 5;
    pub(super) const RENAME: u8 = 6;
    pub(super) const SET: u8 = 7;
    pub(super) const SYNC: u8 = 8;
}

fn put_key(value: Value, key: FileKey) -> Value {
    value.u32(key.cell.0).u32(key.volume).u32(key.vnode).u32(key.unique)
}

fn key_of(f: &mut Fields<'_>) -> Result<FileKey, StoreError> {
    Ok(FileKey { cell: CellNumber(f.u32()?), volume: f.u32()?, vnode: f.u32()?, unique: f.u32()? })
}

fn put_bytes(value: Value, bytes: &[u8]) -> Value {
    value.u16(u16::try_from(bytes.len()).expect("names and targets are checked before")).bytes(bytes)
}

fn bytes_of(f: &mut Fields<'_>) -> Result<Vec<u8>, StoreError> {
    let length = f.u16()?;
    Ok(f.bytes(usize::from(length))?.to_vec())
}

fn put_place(value: Value, place: &Place<FileKey>) -> Value {
    put_bytes(put_key(value, place.dir), &place.name)
}

fn place_of(f: &mut Fields<'_>) -> Result<Place<FileKey>, StoreError> {
    Ok(Place { dir: key_of(f)?, name: bytes_of(f)? })
}

fn put_some(value: Value, number: Option<u32>) -> Value {
    value.u8(u8::from(number.is_some())).u32(number.unwrap_or(0))
}

fn some_of(f: &mut Fields<'_>) -> Result<Option<u32>, StoreError> {
    let is_some = f.u8()? != 0;
    let number = f.u32()?;
    Ok(is_some.then_some(number))
}

impl Change<FileKey> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let value = Value::default().u32(self.writer.user).u8(u8::from(self.writer.holder.is_some()));
        let value = value.string(self.writer.holder.as_deref().unwrap_or_default()).u32(self.time);
        let value = match &self.what {
            What::Make { place, made, kind, mode, modified } => {
                let (byte, target) = match kind {
                    NewKind::File => (kind::FILE, None),
                    NewKind::Directory => (kind::DIRECTORY, None),
                    NewKind::Symlink(target) => (kind::SYMLINK, Some(target)),
                };
                let value = put_key(put_place(value.u8(byte), place), *made).u32(*mode).u32(*modified);
                match target {
                    Some(target) => put_bytes(value, target),
                    None => value,
                }
            }
            What::Link { place, of } => put_key(put_place(value.u8(kind::LINK), place), *of),
            What::Remove { place, of, is_last } => {
                put_key(put_place(value.u8(kind::REMOVE), place), *of).u8(u8::from(*is_last))
            }
            What::Rename { from, to, of, replaced, is_barrier } => {
                let value = put_place(put_place(value.u8(kind::RENAME), from), to);
                let value = put_key(value, *of).u8(u8::from(*is_barrier)).u8(u8::from(replaced.is_some()));
                match replaced {
                    Some(replaced) => put_key(value, *replaced),
                    None => value,
                }
            }
            What::Set { of, mode, modified } => {
                put_some(put_some(put_key(value.u8(kind::SET), *of), *mode), *modified)
            }
            What::Sync { of } => put_key(value.u8(kind::SYNC), *of),
        };
        value.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let f = &mut Fields::new("a change's row", bytes);
        let (user, has_holder) = (f.u32()?, f.u8()? != 0);
        let holder = f.string()?;
        let writer = Writer { user, holder: has_holder.then(|| holder.into()) };
        let time = f.u32()?;
        let byte = f.u8()?;
        let what = match byte {
            kind::FILE | kind::DIRECTORY | kind::SYMLINK => {
                let (place, made, mode, modified) = (place_of(f)?, key_of(f)?, f.u32()?, f.u32()?);
                let kind = match byte {
                    kind::FILE => NewKind::File,
                    kind::DIRECTORY => NewKind::Directory,
                    _ => NewKind::Symlink(bytes_of(f)?),
                };
                What::Make { place, made, kind, mode, modified }
            }
            kind::LINK => What::Link { place: place_of(f)?, of: key_of(f)? },
            kind::REMOVE => What::Remove { place: place_of(f)?, of: key_of(f)?, is_last: f.u8()? != 0 },
            kind::RENAME => {
                let (from, to, of, is_barrier) = (place_of(f)?, place_of(f)?, key_of(f)?, f.u8()? != 0);
                let replaced = if f.u8()? != 0 { Some(key_of(f)?) } else { None };
                What::Rename { from, to, of, replaced, is_barrier }
            }
            kind::SET => What::Set { of: key_of(f)?, mode: some_of(f)?, modified: some_of(f)? },
            kind::SYNC => What::Sync { of: key_of(f)? },
            _ => return Err(f.bad("is of an unknown kind")),
        };
        match f.is_empty() {
            true => Ok(Self { writer, time, what }),
            false => Err(f.bad("is too long")),
        }
    }
}

/// The numbers that a vnode got from its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RealId {
    /// The vnode's number.
    pub vnode: u32,
    /// The use of it.
    pub unique: u32,
}

/// Changes that no server has yet.
impl Cache {
    /// Keeps a change under a number: those of lower numbers were made before. It outlasts the process; a loss of power from the cache's next sync
    /// on.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn keep_change(&self, number: u64, change: &Change<FileKey>) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        records::put(&mut batch, records::change(number), change.encode());
        self.inner.shared.commit_changes(batch)
    }

    /// Forgets changes, which servers have now or which came to nothing; and keeps the real numbers of what was made by one of them.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn end_changes(&self, numbers: &[u64], made: Option<(FileKey, RealId)>) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        for &number in numbers {
            batch.delete(records::change(number));
        }
        if let Some((key, real)) = made {
            let row = Value::default().u32(real.vnode).u32(real.unique);
            records::put(&mut batch, records::real_id(key), row.0);
        }
        self.inner.shared.commit_changes(batch)
    }

    /// The changes that the last run has left, with their numbers, in order. A row that makes no sense is dropped, and told in the log.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn changes(&self) -> Result<Vec<(u64, Change<FileKey>)>, CacheError> {
        let mut changes = Vec::new();
        self.inner.shared.scan_or_drop(&records::changes(), |key, row| {
            let change = Change::decode(records::unsealed(key, row)?).ok()?;
            changes.push((records::number_of(key)?, change));
            Some(())
        })?;
        Ok(changes)
    }

    /// What was made here and has real numbers by now.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn real_ids(&self) -> Result<Vec<(FileKey, RealId)>, CacheError> {
        let mut all = Vec::new();
        self.inner.shared.scan_or_drop(&records::real_ids(), |key, row| {
            let mut f = Fields::new("a vnode's real numbers", records::unsealed(key, row)?);
            let real = RealId { vnode: f.u32().ok()?, unique: f.u32().ok()? };
            f.end().ok()?;
            all.push((records::file_of(key)?, real));
            Some(())
        })?;
        Ok(all)
    }

    /// Forgets the real numbers of what nothing is kept of any more under ours.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn forget_real_ids(&self, keys: &[FileKey]) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        for &key in keys {
            batch.delete(records::real_id(key));
        }
        self.inner.shared.commit(batch)
    }

    /// The files into which something was written that was put aside, and that were not stored since: what is there is less than programs have
    /// seen.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn put_aside_files(&self) -> Result<Vec<FileKey>, CacheError> {
        let mut all = Vec::new();
        self.inner.shared.scan_or_drop(&records::all_aside(), |key, row| {
            records::unsealed(key, row)?;
            all.push(records::file_of(key)?);
            Some(())
        })?;
        Ok(all)
    }

    /// Forgets that something of these files was put aside: they are stored now, or nothing waits that is about them. What was put aside stays.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn forget_put_aside(&self, keys: &[FileKey]) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        for &key in keys {
            batch.delete(records::aside(key));
        }
        self.inner.shared.commit(batch)
    }

    /// Returns when all that was kept and promised before outlasts a loss of power. It waits for the disk.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn sync(&self) -> Result<(), CacheError> {
        self.inner.shared.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_it_was_written_and_cut_off_is_an_error() {
        let key = |vnode| FileKey { cell: CellNumber(1), volume: 2, vnode, unique: 4 };
        let place = |name: &str| Place { dir: key(1), name: name.as_bytes().to_vec() };
        let make = |kind| What::Make { place: place("made"), made: key(3), kind, mode: 0o644, modified: 7 };
        let rename = |replaced| What::Rename {
            from: place("from"),
            to: place("to"),
            of: key(3),
            replaced,
            is_barrier: true,
        };
        let all = [
            make(NewKind::File),
            make(NewKind::Directory),
            make(NewKind::Symlink(b"target".to_vec())),
            What::Link { place: place("link"), of: key(3) },
            What::Remove { place: place("gone"), of: key(3), is_last: true },
            rename(None),
            rename(Some(key(5))),
            What::Set { of: key(3), mode: Some(0o600), modified: None },
            What::Sync { of: key(3) },
        ];
        for what in all {
            let change = Change { writer: Writer::new(1000, "alice".into()), time: 9, what };
            let bytes = change.encode();
            assert_eq!(Change::decode(&bytes).unwrap(), change);
            for length in 0..bytes.len() {
                assert!(Change::decode(&bytes[..length]).is_err(), "{change:?} cut off at {length}");
            }
            assert_eq!(change.clone().map(Some), Some(change));
        }
    }
}
