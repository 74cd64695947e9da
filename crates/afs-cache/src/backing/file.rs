//! One backing file as it is read and written: in its slot, or by itself once it has outgrown that. Which slot it has is left to the
//! parent.

use super::{SLOT, Shared, SlabFile, range_of};
use crate::records;
use afs_store::disk::DiskFile;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

static ZEROS: [u8; SLOT as usize] = [0; SLOT as usize];

/// An open backing file. Only one thread at a time changes it (`CacheFile::changing`); readers need no lock.
#[derive(Debug)]
pub(crate) struct BackingFile {
    /// The slot in which the file began, if any. The slot keeps its data when the file outgrows it, because a reader may be reading them.
    pub(super) slot: Option<Slot>,
    /// A file of its own, if it has one: then its data are there.
    pub(super) own: OnceLock<Arc<dyn DiskFile>>,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u64,
    pub(super) slab: Arc<SlabFile>,
    pub(super) length: AtomicU64,
}

/// The place of a file's data.
enum Place<'a> {
    Own(&'a dyn DiskFile),
    Slot(&'a Slot),
}

impl BackingFile {
    pub(super) fn by_itself(file: Arc<dyn DiskFile>) -> Self {
        Self { slot: None, own: OnceLock::from(file) }
    }

    fn place(&self) -> Place<'_> {
        match (self.own.get(), &self.slot) {
            (Some(own), _) => Place::Own(&**own),
            (None, Some(slot)) => Place::Slot(slot),
            (None, None) => unreachable!("it is somewhere"),
        }
    }

    /// The place of the data when the file has this length.
    fn place_for(&self, length: u64) -> io::Result<Place<'_>> {
        if length > SLOT {
            self.set_apart()?;
        }
        Ok(self.place())
    }

    /// Gives it a file of its own, if it has none.
    ///
    /// # Errors
    ///
    /// The system's; then it is as it was.
    pub(crate) fn set_apart(&self) -> io::Result<()> {
        if let Place::Slot(slot) = self.place() {
            let name = records::backing_name(slot.number);
            let own = match slot.length() {
                0 => slot.shared.disk.create(&name)?,
                _ => slot.copy_to(&name)?,
            };
            self.own.get_or_init(|| own);
        }
        Ok(())
    }

    pub(crate) fn is_small(&self) -> bool {
        matches!(self.place(), Place::Slot(_))
    }

    /// The file itself, where it has one and the disk is the system's.
    pub(crate) fn as_file(&self) -> Option<&File> {
        self.own.get()?.as_file()
    }

    /// As [`DiskFile::read_at`].
    pub(crate) fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        match self.place() {
            Place::Own(own) => own.read_at(position, out),
            Place::Slot(slot) => slot.slab.file.read_at(slot.start(position), slot.clip(position, out)),
        }
    }

    /// As [`DiskFile::read_at_once`].
    pub(crate) fn read_at_once(&self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        match self.place() {
            Place::Own(own) => own.read_at_once(position, out),
            Place::Slot(slot) => slot.slab.file.read_at_once(slot.start(position), slot.clip(position, out)),
        }
    }

    /// As [`DiskFile::write_at`].
    pub(crate) fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        match self.place_for(position + bytes.len() as u64)? {
            Place::Own(own) => own.write_at(position, bytes),
            Place::Slot(slot) => slot.write_at(position, bytes),
        }
    }

    /// As [`DiskFile::length`].
    pub(crate) fn length(&self) -> io::Result<u64> {
        match self.place() {
            Place::Own(own) => own.length(),
            Place::Slot(slot) => Ok(slot.length()),
        }
    }

    /// As [`DiskFile::set_length`].
    pub(crate) fn set_length(&self, length: u64) -> io::Result<()> {
        match self.place_for(length)? {
            Place::Own(own) => own.set_length(length),
            Place::Slot(slot) => {
                let old = slot.length.swap(length, Ordering::AcqRel);
                if length < old { slot.clear(length..old) } else { Ok(()) }
            }
        }
    }

    /// As [`DiskFile::punch`].
    pub(crate) fn punch(&self, position: u64, length: u64) -> io::Result<()> {
        match self.place() {
            Place::Own(own) => own.punch(position, length),
            Place::Slot(slot) => slot.slab.file.punch(range_of(slot.number).start + position, length),
        }
    }
}

impl Slot {
    fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// The offset in the slab of a position of the data.
    fn start(&self, position: u64) -> u64 {
        range_of(self.number).start + position
    }

    /// The part of `out` for which there are data.
    fn clip<'a>(&self, position: u64, out: &'a mut [u8]) -> &'a mut [u8] {
        let n = out.len().min(self.length().saturating_sub(position) as usize);
        &mut out[..n]
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.slab.file.write_at(range_of(self.number).start + position, bytes);
        match written {
            Ok(()) => _ = self.length.fetch_max(position + bytes.len() as u64, Ordering::AcqRel),
            Err(_) => self.shared.has_clean_ends.store(false, Ordering::Release),
        }
        written
    }

    /// Zeroes a range of the slot, but no part that was never written: zeros there would take space.
    pub(super) fn clear(&self, range: Range<u64>) -> io::Result<()> {
        let start = range_of(self.number).start + range.start;
        let mut bytes = [0; SLOT as usize];
        let n = self.slab.file.read_at(start, &mut bytes[..(range.end - range.start) as usize])?;
        match bytes[..n].iter().rposition(|&byte| byte != 0) {
            Some(last) => self.slab.file.write_at(start, &ZEROS[..=last]),
            None => Ok(()),
        }
    }

    /// Copies it to a file with that name, which is whole or not there.
    pub(super) fn copy_to(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let disk = &self.shared.disk;
        let new = format!("{name}.new");
        let copy = || {
            let file = disk.create(&new)?;
            let mut bytes = vec![0; self.length() as usize];
            self.slab.file.read_at(self.start(0), &mut bytes)?;
            file.write_at(0, &bytes)?;
            disk.rename(&new, name)?;
            Ok(file)
        };
        copy().inspect_err(|_| _ = disk.remove(&new))
    }
}
