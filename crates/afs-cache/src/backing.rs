//! Backing files: where on the disk the data of a cached file are. A small one has a slot in a file that a thousand share (a
//! slab), and needs no inode of its own; what outgrows its slot moves into a file of its own, and stays there.
//!
//! Which slot is a file's follows from its number, and no number is given twice in the life of a process: nothing has to be written
//! down, and what a slot had before is looked to once, at the start. What is in a slot behind the file's length is zeros. How long a
//! file in a slot is, only its row says.
//!
//! Leaves to others: what of a file is there, and what rows say (`file.rs`, `records.rs`).

mod file;

use crate::records;
use afs_store::disk::{Disk, DiskFile};
use afs_store::lock;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

pub(crate) use file::BackingFile;
use file::Slot;

/// Bytes of a slot. Most files of a source tree fit, and less than that a file does not take either: what is not written is a
/// hole. The kernel is given nothing that is so small to read by itself.
pub(crate) const SLOT: u64 = 64 << 10;
/// Slabs are made longer by so much.
const STEP: u64 = 16 * SLOT;
/// Slabs that are kept open after their last use: each is a file descriptor.
const RECENT_SLABS: usize = 16;
/// The backing files of a cache.
#[derive(Debug)]
pub(crate) struct BackingFiles {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    slabs: Mutex<Slabs>,
    /// True if nothing was left behind the end of a file in its slot: not so after the death of a process, or a failed write.
    has_clean_ends: AtomicBool,
}

#[derive(Debug, Default)]
struct Slabs {
    known: BTreeMap<u64, Slab>,
    /// Those that were used last.
    recent: VecDeque<Arc<SlabFile>>,
}

#[derive(Debug, Default)]
struct Slab {
    /// The numbers that are given to existing files: a bit for each.
    numbers: [u64; records::IN_FOLDER as usize / 64],
    file: Weak<SlabFile>,
}

impl Slab {
    fn set(&mut self, number: u64) {
        let at = number % records::IN_FOLDER;
        self.numbers[at as usize / 64] |= 1 << (at % 64);
    }

    /// Says whether it was set.
    fn clear(&mut self, number: u64) -> bool {
        let at = number % records::IN_FOLDER;
        let (word, bit) = (&mut self.numbers[at as usize / 64], 1 << (at % 64));
        let was_set = *word & bit != 0;
        *word &= !bit;
        was_set
    }

    fn is_empty(&self) -> bool {
        self.numbers == Self::default().numbers
    }

    fn has(&self, number: u64) -> bool {
        let at = number % records::IN_FOLDER;
        self.numbers[at as usize / 64] >> (at % 64) & 1 != 0
    }

    /// The ranges of the slab whose slots belong to no file, from the lowest up. Neighbours count as one range.
    fn free(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = (at..records::IN_FOLDER).find(|&at| !self.has(at))?;
            at = (first..records::IN_FOLDER).find(|&at| self.has(at)).unwrap_or(records::IN_FOLDER);
            Some(first * SLOT..at * SLOT)
        })
    }
}

#[derive(Debug)]
struct SlabFile {
    index: u64,
    file: Arc<dyn DiskFile>,
    /// The length of the slab's file: at least up to the end of each slot that was given, unless somebody has cut it.
    end: Mutex<u64>,
}

impl SlabFile {
    fn cover(&self, range: &Range<u64>) -> io::Result<()> {
        let mut end = lock(&self.end);
        if *end < range.end {
            let longer = range.end.next_multiple_of(STEP);
            self.file.set_length(longer)?;
            *end = longer;
        }
        Ok(())
    }
}

/// The range of a file's slot in its slab.
const fn range_of(number: u64) -> Range<u64> {
    let start = number % records::IN_FOLDER * SLOT;
    start..start + SLOT
}

impl BackingFiles {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        let shared = Shared { disk, slabs: Mutex::default(), has_clean_ends: AtomicBool::new(false) };
        Self { shared: Arc::new(shared) }
    }

    /// Begins with the numbers of a start: these have files, and `next` is above all of them. Data in the slots of other numbers go,
    /// so that a file that is given such a number finds zeros. `was_unclean` if the last process did not close the cache. Returns
    /// the first number that may be given.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn begin(
        &self,
        known: impl Iterator<Item = u64>,
        next: u64,
        was_unclean: bool,
    ) -> io::Result<u64> {
        let disk = &self.shared.disk;
        let mut first = next;
        let mut slabs = lock(&self.shared.slabs);
        for number in known {
            slabs.known.entry(number / records::IN_FOLDER).or_default().set(number);
        }
        let newest = next / records::IN_FOLDER;
        for folder in disk.list("data")? {
            let Ok(index) = u64::from_str_radix(&folder, 16) else { continue };
            if !slabs.known.contains_key(&index) {
                unless_missing(disk.remove(&records::slab_name(index)))?;
            }
            // What could not be removed in an earlier life is not to be taken for a new file.
            let names = if index < newest { Vec::new() } else { disk.list(&format!("data/{folder}"))? };
            for number in names.iter().filter_map(|name| records::backing_number(name)) {
                if number >= next {
                    disk.remove(&records::backing_name(number))?;
                }
            }
        }
        let indexes: Vec<u64> = slabs.known.keys().copied().collect();
        for index in indexes.into_iter().filter(|index| was_unclean || *index == newest) {
            let slab = self.shared.slab(&mut slabs, index, false)?;
            if index == newest {
                let mut end = slab.as_ref().map(|slab| lock(&slab.end));
                match (&slab, &mut end) {
                    (Some(slab), Some(end)) if **end >= range_of(next).start => {
                        **end = range_of(next).start;
                        slab.file.set_length(**end)?;
                    }
                    // It was cut, or is gone: made longer, it would look as if what was in it were there.
                    _ => first = (newest + 1) * records::IN_FOLDER,
                }
            }
            let Some(slab) = slab.filter(|_| was_unclean) else { continue };
            let end = *lock(&slab.end);
            for free in slabs.known[&index].free().take_while(|free| free.start < end) {
                slab.file.punch(free.start, free.end - free.start)?;
            }
        }
        self.shared.has_clean_ends.store(!was_unclean, Ordering::Release);
        Ok(first)
    }

    /// Makes an empty one, with a number that none has had.
    ///
    /// # Errors
    ///
    /// The system's; [`Self::remove`] then leaves nothing of it.
    pub(crate) fn create(&self, number: u64) -> io::Result<BackingFile> {
        let mut slabs = lock(&self.shared.slabs);
        let slab = self.shared.slab(&mut slabs, number / records::IN_FOLDER, true)?.expect("it is made");
        slab.cover(&range_of(number))?;
        slabs.known.entry(slab.index).or_default().set(number);
        Ok(BackingFile { slot: Some(self.slot(number, slab, 0)), own: OnceLock::new() })
    }

    /// Opens the one with a number, and says how long it is. If its row says that it is in a slot (it may have outgrown that
    /// since), `in_slot` is how long it is there.
    ///
    /// # Errors
    ///
    /// The system's; not found, if it is not there, or its slot is not: the slab was cut.
    pub(crate) fn open(&self, number: u64, in_slot: Option<u64>) -> io::Result<(BackingFile, u64)> {
        match self.shared.disk.open(&records::backing_name(number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            file => {
                let file = file?;
                let length = file.length()?;
                return Ok((BackingFile::by_itself(file), length));
            }
        }
        let mut slabs = lock(&self.shared.slabs);
        let slab = self.shared.slab(&mut slabs, number / records::IN_FOLDER, false)?;
        drop(slabs);
        let (Some(slab), Some(length @ 0..=SLOT)) = (slab, in_slot) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if *lock(&slab.end) < range_of(number).end {
            return Err(io::ErrorKind::NotFound.into());
        }
        let slot = self.slot(number, slab, length);
        if !self.shared.has_clean_ends.load(Ordering::Acquire) {
            slot.clear(length..SLOT)?;
        }
        Ok((BackingFile { slot: Some(slot), own: OnceLock::new() }, length))
    }

    /// Makes one by itself, for a number whose data are gone.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn create_apart(&self, number: u64) -> io::Result<BackingFile> {
        Ok(BackingFile::by_itself(self.shared.disk.create(&records::backing_name(number))?))
    }

    fn slot(&self, number: u64, slab: Arc<SlabFile>, length: u64) -> Slot {
        Slot { shared: self.shared.clone(), number, slab, length: AtomicU64::new(length) }
    }

    /// Removes the one with a number, wherever its data are. Who has it open must not read any more, if it has a slot.
    ///
    /// # Errors
    ///
    /// The system's. One that is not there is none.
    pub(crate) fn remove(&self, number: u64) -> io::Result<()> {
        let (shared, index) = (&self.shared, number / records::IN_FOLDER);
        let removed = unless_missing(shared.disk.remove(&records::backing_name(number)));
        let mut slabs = lock(&shared.slabs);
        if !slabs.known.get_mut(&index).is_some_and(|slab| slab.clear(number)) {
            return removed;
        }
        let is_newest = slabs.known.last_key_value().is_some_and(|(last, _)| *last == index);
        if slabs.known[&index].is_empty() && !is_newest {
            slabs.known.remove(&index);
            slabs.recent.retain(|slab| slab.index != index);
            unless_missing(shared.disk.remove(&records::slab_name(index)))?;
        } else if let Some(slab) = shared.slab(&mut slabs, index, false)? {
            slab.file.punch(range_of(number).start, SLOT)?;
        }
        removed
    }

    /// Moves the data of one to a file with this name, if they are not there already. Those in a slot, `length` bytes, are copied;
    /// they stay until [`Self::remove`], for who has them open.
    ///
    /// # Errors
    ///
    /// The system's. One that is not there is none.
    pub(crate) fn move_away(&self, number: u64, to: &str, length: u64) -> io::Result<()> {
        let disk = &self.shared.disk;
        match disk.rename(&records::backing_name(number), to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            moved => return moved,
        }
        if disk.open(to).is_ok() || length > SLOT {
            return Ok(());
        }
        let slab = {
            let mut slabs = lock(&self.shared.slabs);
            if !slabs.known.contains_key(&(number / records::IN_FOLDER)) {
                return Ok(());
            }
            self.shared.slab(&mut slabs, number / records::IN_FOLDER, false)?
        };
        match slab {
            Some(slab) => self.slot(number, slab, length).copy_to(to).map(drop),
            None => Ok(()),
        }
    }
}

impl Shared {
    /// The slab with an index, opened; made, if it is not there and shall be.
    fn slab(&self, slabs: &mut Slabs, index: u64, shall_be: bool) -> io::Result<Option<Arc<SlabFile>>> {
        if let Some(open) = slabs.known.get(&index).and_then(|slab| slab.file.upgrade()) {
            return Ok(Some(open));
        }
        let name = records::slab_name(index);
        let file = match self.disk.open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && shall_be => self.disk.create(&name)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let end = Mutex::new(file.length()?);
        let open = Arc::new(SlabFile { index, file, end });
        slabs.known.entry(index).or_default().file = Arc::downgrade(&open);
        slabs.recent.push_back(open.clone());
        if slabs.recent.len() > RECENT_SLABS {
            slabs.recent.pop_front();
        }
        Ok(Some(open))
    }
}

fn unless_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_store::disk::SimulatedDisk;

    fn begun(disk: &SimulatedDisk, known: &[u64], next: u64, was_unclean: bool) -> BackingFiles {
        let files = BackingFiles::new(Arc::new(disk.clone()));
        assert_eq!(files.begin(known.iter().copied(), next, was_unclean).unwrap(), next);
        files
    }

    fn content(file: &BackingFile) -> Vec<u8> {
        let mut out = vec![0xee; SLOT as usize * 2];
        let n = file.read_at(0, &mut out).unwrap();
        out.truncate(n);
        out
    }

    #[test]
    fn small_files_share_one_and_what_outgrows_its_slot_is_by_itself() {
        let disk = SimulatedDisk::new(64 << 20);
        let files = begun(&disk, &[], 1, false);
        let (a, b) = (files.create(1).unwrap(), files.create(2).unwrap());
        a.write_at(3, b"abc").unwrap();
        b.write_at(0, &[7; SLOT as usize]).unwrap();
        assert_eq!(disk.list("data/0").unwrap(), ["small"]);
        assert_eq!(content(&a), b"\0\0\0abc");
        b.write_at(SLOT, b"!").unwrap();
        assert!(a.is_small() && !b.is_small());
        let long: Vec<u8> = [vec![7; SLOT as usize], vec![b'!']].concat();
        assert_eq!(content(&b), long);
        // As its row may still say that it is in the slot.
        let (b, length) = files.open(2, Some(SLOT)).unwrap();
        assert_eq!((content(&b), length), (long, SLOT + 1));
        // And never goes back.
        b.set_length(2).unwrap();
        assert_eq!((content(&b), content(&files.open(2, None).unwrap().0)), (vec![7; 2], vec![7; 2]));
        assert!(files.open(3, None).is_err(), "it was never made");
    }

    #[test]
    fn behind_the_end_of_a_file_are_zeros_whatever_was_there() {
        let disk = SimulatedDisk::new(64 << 20);
        let files = begun(&disk, &[], 1, false);
        let file = files.create(1).unwrap();
        file.write_at(0, &[1; 5000]).unwrap();
        file.set_length(10).unwrap();
        file.set_length(20).unwrap();
        assert_eq!(content(&file), [[1; 10], [0; 10]].concat());
        // A write that no row tells of: the process has died.
        file.write_at(20, &[1; 5000]).unwrap();
        let files = begun(&disk, &[1], 2, true);
        let (file, length) = files.open(1, Some(10)).unwrap();
        assert_eq!(length, 10);
        file.set_length(100).unwrap();
        assert_eq!(content(&file), [vec![1; 10], vec![0; 90]].concat());
    }

    #[test]
    fn a_new_file_is_empty_whatever_had_its_number_before() {
        for was_unclean in [false, true] {
            let disk = SimulatedDisk::new(64 << 20);
            let files = begun(&disk, &[], 1, false);
            for number in 1..8 {
                files.create(number).unwrap().write_at(0, &[1; 5000]).unwrap();
            }
            files.create(9).unwrap().write_at(0, &[1; SLOT as usize + 1]).unwrap();
            files.remove(4).unwrap();
            let files = begun(&disk, &[2, 3], 4, was_unclean);
            for number in [4, 5, 9] {
                let file = files.create(number).unwrap();
                file.set_length(6000).unwrap();
                assert_eq!(content(&file), [0; 6000], "{number}");
            }
            assert_eq!(content(&files.open(3, Some(5000)).unwrap().0), [1; 5000]);
        }
    }

    #[test]
    fn in_a_slab_that_was_cut_no_slot_is_given_any_more() {
        let disk = SimulatedDisk::new(64 << 20);
        let files = begun(&disk, &[], 1, false);
        for number in 1..4 {
            files.create(number).unwrap().write_at(0, b"x").unwrap();
        }
        disk.open("data/0/small").unwrap().set_length(range_of(3).start + 1).unwrap();
        let files = BackingFiles::new(Arc::new(disk.clone()));
        assert_eq!(files.begin([1, 2, 3].into_iter(), 4, false).unwrap(), records::IN_FOLDER);
        assert_eq!(content(&files.open(2, Some(1)).unwrap().0), b"x");
        assert!(files.open(3, Some(1)).is_err());
    }

    #[test]
    fn slots_of_none_that_are_beside_each_other_are_one() {
        let mut slab = Slab::default();
        assert!(slab.free().eq(std::iter::once(0..records::IN_FOLDER * SLOT)));
        [0, 1, 64, 66, records::IN_FOLDER - 1].into_iter().for_each(|number| slab.set(number));
        let last = records::IN_FOLDER - 1;
        let free = [2..64, 65..66, 67..last].map(|free: Range<u64>| free.start * SLOT..free.end * SLOT);
        assert_eq!(slab.free().collect::<Vec<_>>(), free);
        assert!(slab.has(64) && !slab.has(65) && slab.clear(64) && !slab.clear(64));
    }

    #[test]
    fn a_slab_goes_with_the_last_of_its_files() {
        let disk = SimulatedDisk::new(64 << 20);
        let last = records::IN_FOLDER - 1;
        let files = begun(&disk, &[], last, false);
        // No space is simulated for the slots before it.
        disk.set_capacity(256 << 20);
        for number in [last, last + 1, last + 2] {
            files.create(number).unwrap().write_at(0, b"x").unwrap();
        }
        files.remove(last + 2).unwrap();
        files.remove(last + 2).unwrap();
        assert_eq!(disk.list("data/1").unwrap(), ["small"]);
        assert_eq!(disk.list("data/0").unwrap(), ["small"]);
        files.remove(last).unwrap();
        assert_eq!(disk.list("data/0").unwrap(), Vec::<String>::new());
        assert_eq!(content(&files.open(last + 1, Some(1)).unwrap().0), b"x");
        let files = begun(&disk, &[], 5000, false);
        assert_eq!(disk.list("data/1").unwrap(), Vec::<String>::new());
        assert!(files.open(last + 1, Some(1)).is_err());
    }

    #[test]
    fn what_is_moved_away_is_copied_once_and_can_still_be_read() {
        let disk = SimulatedDisk::new(64 << 20);
        let files = begun(&disk, &[], 1, false);
        let file = files.create(1).unwrap();
        file.write_at(0, b"mine and garbage").unwrap();
        files.move_away(1, "conflicts/1", 4).unwrap();
        assert_eq!(content(&file), b"mine and garbage");
        let moved = BackingFile::by_itself(disk.open("conflicts/1").unwrap());
        assert_eq!(content(&moved), b"mine");
        files.remove(1).unwrap();
        files.move_away(1, "conflicts/1", 4).unwrap();
        assert_eq!(content(&moved), b"mine");
    }
}
