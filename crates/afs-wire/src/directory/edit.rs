//! Making and changing directories: which slots an entry gets, and its place on its chain. The same rules as in stock
//! servers, so that our copies of their directories stay what theirs become: the first page with room, the lowest free
//! slots there, the head of the chain; pages are never given back. Only that bytes of removed names are cleared here.

use super::layout::{
    BITMAP_AT, ENTRY_HEADER, FIRST_SLOT, FREE_COUNT_AT, FREE_MAP_AT, HASH_TABLE_AT, MAPPED_PAGES, NEXT_AT,
    PAGE_COUNT_AT, PAGE_RESERVED, SLOT_SIZE, SLOTS, TAG, TAG_AT, UNIQUE_AT, VNODE_AT, slots_for,
};
use super::{Directory, Entry, Link, NAME_MAX, PAGE_SIZE, PAGES_MAX, Slot, hash, reserved, word};
use crate::ids::LocalFid;

/// The reason why an entry was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// There is an entry of this name.
    #[error("an entry of this name exists already")]
    Exists,
    /// No byte, or a NUL among them.
    #[error("a name has at least one byte and no NUL")]
    BadName,
    /// More bytes than a name may have.
    #[error("a name has at most {NAME_MAX} bytes")]
    NameTooLong,
    /// No room, and no page can be added.
    #[error("the directory is full: it has {PAGES_MAX} pages")]
    Full,
}

/// The pages that a change has touched, in ascending order: at most three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedPages {
    pages: [u16; 3],
    count: usize,
}

impl ChangedPages {
    fn of(pages: [usize; 3]) -> Self {
        let mut pages = pages.map(|page| u16::try_from(page).expect("PAGES_MAX fits"));
        pages.sort_unstable();
        let mut count = 1;
        for i in 1..pages.len() {
            if pages[i] != pages[count - 1] {
                pages[count] = pages[i];
                count += 1;
            }
        }
        Self { pages, count }
    }

    /// Their numbers.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.pages[..self.count].iter().map(|&page| usize::from(page))
    }
}

impl Directory {
    /// An empty directory: one page with `.` for itself and `..` for its parent. A volume's root is its own parent.
    #[must_use]
    pub fn new(own: LocalFid, parent: LocalFid) -> Self {
        let mut directory = Self { bytes: Vec::new(), pages: 0 };
        directory.add_page();
        let bytes = &mut directory.bytes;
        bytes[FREE_MAP_AT..HASH_TABLE_AT].fill(SLOTS as u8);
        bytes[FREE_MAP_AT] = (SLOTS - reserved(0)) as u8;
        bytes[FREE_COUNT_AT] = (SLOTS - reserved(0)) as u8;
        directory.set_used(0, (1 << reserved(0)) - 1);
        directory.insert(b".", own).expect("an empty page has room");
        directory.insert(b"..", parent).expect("an empty page has room");
        directory
    }

    /// A directory of these entries, besides `.` and `..`, which are left out where they occur. For copies and
    /// repairs: of two entries of one name the first stays.
    ///
    /// # Errors
    ///
    /// [`InsertError`], but for [`InsertError::Exists`].
    pub fn build<'a>(
        own: LocalFid,
        parent: LocalFid,
        entries: impl IntoIterator<Item = (&'a [u8], LocalFid)>,
    ) -> Result<Self, InsertError> {
        let mut directory = Self::new(own, parent);
        for (name, fid) in entries {
            match directory.insert(name, fid) {
                Ok(_) | Err(InsertError::Exists) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(directory)
    }

    /// Its bytes, without a copy.
    #[must_use]
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.truncate(self.pages * PAGE_SIZE);
        self.bytes
    }

    /// Makes an entry.
    ///
    /// # Errors
    ///
    /// [`InsertError`]; nothing is changed then.
    pub fn insert(&mut self, name: &[u8], fid: LocalFid) -> Result<ChangedPages, InsertError> {
        if name.is_empty() || name.contains(&0) {
            return Err(InsertError::BadName);
        }
        if name.len() > NAME_MAX {
            return Err(InsertError::NameTooLong);
        }
        if self.find(name).is_some() {
            return Err(InsertError::Exists);
        }
        let slots = slots_for(name.len());
        let slot = self.allocate(slots).ok_or(InsertError::Full)?;
        let head = Link::Bucket(hash(name)).offset();
        let next = word(&self.bytes, head);
        let entry = &mut self.bytes[slot.offset()..slot.offset() + slots * SLOT_SIZE];
        entry.fill(0);
        entry[0] = FIRST_SLOT;
        entry[NEXT_AT..VNODE_AT].copy_from_slice(&next.to_be_bytes());
        entry[VNODE_AT..UNIQUE_AT].copy_from_slice(&fid.vnode.0.to_be_bytes());
        entry[UNIQUE_AT..ENTRY_HEADER].copy_from_slice(&fid.unique.0.to_be_bytes());
        entry[ENTRY_HEADER..ENTRY_HEADER + name.len()].copy_from_slice(name);
        self.set_word(head, slot.0);
        Ok(ChangedPages::of([0, slot.page(), 0]))
    }

    /// Removes the entry of this name and says what it named; `None` without one.
    pub fn remove(&mut self, name: &[u8]) -> Option<(LocalFid, ChangedPages)> {
        let (link, Entry { slot, fid, .. }) = self.find(name)?;
        let next = word(&self.bytes, slot.offset() + NEXT_AT);
        self.set_word(link.offset(), next);
        self.free(slot, slots_for(name.len()));
        Some((fid, ChangedPages::of([0, link.page(), slot.page()])))
    }

    /// Has a name that exists name something else, and says what it named before; `None` if it does not exist.
    pub fn replace(&mut self, name: &[u8], fid: LocalFid) -> Option<(LocalFid, ChangedPages)> {
        let (_, Entry { slot, fid: before, .. }) = self.find(name)?;
        let entry = &mut self.bytes[slot.offset()..];
        entry[VNODE_AT..UNIQUE_AT].copy_from_slice(&fid.vnode.0.to_be_bytes());
        entry[UNIQUE_AT..ENTRY_HEADER].copy_from_slice(&fid.unique.0.to_be_bytes());
        Some((before, ChangedPages::of([slot.page(); 3])))
    }

    /// Takes so many slots in a row: the lowest of the first page that has them, if need be of a new one.
    fn allocate(&mut self, slots: usize) -> Option<Slot> {
        for page in 0..PAGES_MAX {
            if page == self.pages {
                self.add_page();
            }
            if page < MAPPED_PAGES && usize::from(self.bytes[FREE_MAP_AT + page]) < slots {
                continue;
            }
            let used = self.used(page);
            if let Some(index) = first_run(!used, slots) {
                self.set_used(page, used | run(slots) << index);
                if page < MAPPED_PAGES {
                    self.bytes[FREE_MAP_AT + page] -= slots as u8;
                }
                return Some(Slot::new(page, index));
            }
        }
        None
    }

    fn free(&mut self, slot: Slot, slots: usize) {
        let (page, index) = (slot.page(), slot.index());
        // In a damaged directory a name can stand in the last slot that the formula gives a slot more.
        let slots = slots.min(SLOTS - index);
        self.bytes[slot.offset()..slot.offset() + slots * SLOT_SIZE].fill(0);
        let used = self.used(page) & !(run(slots) << index);
        self.set_used(page, used);
        if page < MAPPED_PAGES {
            let free = &mut self.bytes[FREE_MAP_AT + page];
            *free = free.saturating_add(slots as u8).min((SLOTS - reserved(page)) as u8);
        }
    }

    fn add_page(&mut self) {
        let (page, start) = (self.pages, self.pages * PAGE_SIZE);
        self.bytes.truncate(start);
        self.bytes.resize(start + PAGE_SIZE, 0);
        self.pages += 1;
        self.set_word(start + TAG_AT, TAG);
        self.bytes[start + FREE_COUNT_AT] = (SLOTS - PAGE_RESERVED) as u8;
        self.set_used(page, (1 << PAGE_RESERVED) - 1);
        self.set_word(PAGE_COUNT_AT, u16::try_from(self.pages).expect("PAGES_MAX fits"));
        if (1..MAPPED_PAGES).contains(&page) {
            self.bytes[FREE_MAP_AT + page] = (SLOTS - PAGE_RESERVED) as u8;
        }
    }

    fn set_used(&mut self, page: usize, used: u64) {
        let at = page * PAGE_SIZE + BITMAP_AT;
        self.bytes[at..at + 8].copy_from_slice(&used.to_le_bytes());
    }

    fn set_word(&mut self, at: usize, word: u16) {
        self.bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
    }
}

/// Returns so many ones from the lowest bit on. No entry takes more than nine slots.
const fn run(slots: usize) -> u64 {
    (1 << slots) - 1
}

/// The lowest place of so many ones in a row.
fn first_run(free: u64, slots: usize) -> Option<usize> {
    let starts = (1..slots).fold(free, |starts, shift| starts & (free >> shift));
    (starts != 0).then(|| starts.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Uniquifier, VnodeNumber};

    fn fid(number: u32) -> LocalFid {
        LocalFid { vnode: VnodeNumber(number), unique: Uniquifier(number + 1) }
    }

    /// File service notes 9: what a stock server has, byte by byte.
    #[test]
    fn an_empty_directory_looks_as_stock_servers_make_it() {
        let directory = Directory::new(LocalFid::ROOT, LocalFid::ROOT);
        let bytes = directory.bytes();
        assert_eq!(bytes[..13], [0, 1, 0x04, 0xd2, 51, 0xff, 0x7f, 0, 0, 0, 0, 0, 0]);
        assert_eq!((bytes[32], &bytes[33..160]), (49, &[64; 127][..]));
        assert_eq!(word(bytes, HASH_TABLE_AT + 2 * 46), 13);
        assert_eq!(word(bytes, HASH_TABLE_AT + 2 * 68), 14);
        assert_eq!(bytes[416..432], [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, b'.', 0, 0, 0]);
        assert!(directory.is_empty());
    }

    #[test]
    fn what_is_inserted_is_found_until_it_is_removed() {
        let mut directory = Directory::new(fid(1), fid(1));
        directory.insert(b"a", fid(2)).unwrap();
        assert_eq!(directory.insert(b"a", fid(4)), Err(InsertError::Exists));
        assert_eq!(directory.lookup(b"a").map(|entry| entry.fid), Some(fid(2)));
        assert_eq!(directory.replace(b"a", fid(6)).map(|(before, _)| before), Some(fid(2)));
        assert!(!directory.is_empty());
        assert_eq!(directory.remove(b"a").map(|(before, _)| before), Some(fid(6)));
        assert_eq!(directory.remove(b"a"), None);
        assert_eq!(directory, Directory::new(fid(1), fid(1)), "nothing is left of it");
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        let mut directory = Directory::new(fid(1), fid(1));
        assert_eq!(directory.insert(b"", fid(2)), Err(InsertError::BadName));
        assert_eq!(directory.insert(b"a\0b", fid(2)), Err(InsertError::BadName));
        assert_eq!(directory.insert(&[b'a'; 257], fid(2)), Err(InsertError::NameTooLong));
        assert!(directory.insert(&[b'a'; 256], fid(2)).is_ok());
        assert_eq!(directory.insert(b".", fid(2)), Err(InsertError::Exists));
    }

    #[test]
    fn a_removed_names_slots_are_used_again() {
        let mut directory = Directory::new(fid(1), fid(1));
        for i in 0..40 {
            directory.insert(format!("file{i}").as_bytes(), fid(2 * i)).unwrap();
        }
        let slot = directory.lookup(b"file7").unwrap().slot;
        directory.remove(b"file7").unwrap();
        directory.insert(b"another", fid(100)).unwrap();
        assert_eq!(directory.lookup(b"another").unwrap().slot, slot);
    }

    #[test]
    fn a_change_names_the_pages_it_touched() {
        let mut directory = Directory::new(fid(1), fid(1));
        let mut before = directory.bytes().to_vec();
        let mut check = |directory: &Directory, changed: ChangedPages| {
            before.resize(directory.bytes().len(), 0);
            let pages = before.chunks(PAGE_SIZE).zip(directory.bytes().chunks(PAGE_SIZE));
            let really: Vec<usize> =
                pages.enumerate().filter(|(_, (a, b))| a != b).map(|(page, _)| page).collect();
            let said: Vec<usize> = changed.iter().collect();
            assert!(really.iter().all(|page| said.contains(page)), "{really:?} were changed, {said:?} said");
            before = directory.bytes().to_vec();
        };
        for i in 0..500 {
            let changed = directory.insert(format!("some longer name {i}").as_bytes(), fid(i)).unwrap();
            check(&directory, changed);
        }
        for i in (0..500).rev().step_by(3) {
            let (_, changed) = directory.remove(format!("some longer name {i}").as_bytes()).unwrap();
            check(&directory, changed);
        }
    }

    #[test]
    fn a_full_directory_says_so_and_stays_as_it_was() {
        let name = |i: usize| format!("{i:0255}");
        let mut directory = Directory::new(fid(1), fid(1));
        let mut count = 0;
        let error = loop {
            match directory.insert(name(count).as_bytes(), fid(2)) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        // Nine slots each: five of them fit into the first page, seven into each other.
        assert_eq!((error, count), (InsertError::Full, 5 + 7 * 1022));
        assert_eq!(directory.pages(), PAGES_MAX);
        assert_eq!(directory.entries().count(), count + 2);
        assert!(directory.insert(b"short", fid(4)).is_ok(), "there is room for short names");
        assert!(directory.check().is_empty());
    }
}
