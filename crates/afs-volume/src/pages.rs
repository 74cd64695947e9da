//! A directory's pages, as clients fetch them (File service notes 9), read and changed page by page: a directory of 60,000
//! names has a thousand pages, and one more name changes two of them. `afs_wire::directory` knows the layout of a page. Its
//! own `Directory` has all pages in memory, as clients do.

use crate::{VnodeId, VolumeError};
use afs_wire::directory::layout::{
    BITMAP_AT as BITMAP, BUCKETS, ENTRY_HEADER as NAME, FIRST_PAGE_RESERVED as SLOTS_OF_HEADER,
    FREE_MAP_AT as ALLOCATION_MAP, HASH_TABLE_AT as HASH_TABLE, MAPPED_PAGES as MAPPED, SLOT_SIZE as SLOT,
    SLOTS, TAG, slots_for,
};
use afs_wire::directory::{PAGES_MAX as MOST_PAGES, hash as bucket_of};
use afs_wire::ids::{Uniquifier, VnodeNumber};
use std::collections::BTreeMap;

pub(crate) use afs_wire::directory::{NAME_MAX, PAGE_SIZE as PAGE};
/// Most pages.
pub(crate) const PAGES_MAX: u32 = MOST_PAGES as u32;
/// Pages that the allocation map in page 0 speaks of.
const MAPPED_PAGES: u32 = MAPPED as u32;

type Page = Vec<u8>;

/// A directory that is being looked at or changed.
pub(crate) struct Directory<'a> {
    load: Box<dyn Fn(u32) -> Result<Page, VolumeError> + 'a>,
    vnode: VnodeNumber,
    pages: BTreeMap<u32, Page>,
    changed: BTreeMap<u32, ()>,
    count: u32,
}

/// A name of a directory.
pub(crate) type Entry = (Vec<u8>, VnodeId);

fn slots_of(name: &[u8]) -> usize {
    slots_for(name.len())
}

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([page[at], page[at + 1]])
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

/// A page with nothing in it but its header.
pub(crate) fn empty_page(used_slots: usize) -> Page {
    let mut page = vec![0; PAGE];
    page[2..4].copy_from_slice(&TAG.to_be_bytes());
    page[4] = (SLOTS - used_slots) as u8;
    (0..used_slots).for_each(|slot| page[BITMAP + slot / 8] |= 1 << (slot % 8));
    page
}

impl<'a> Directory<'a> {
    /// The directory `vnode` of `length` bytes, whose pages are read by `load` when they are needed.
    pub(crate) fn open(
        vnode: VnodeNumber,
        length: u64,
        load: impl Fn(u32) -> Result<Vec<u8>, VolumeError> + 'a,
    ) -> Result<Self, VolumeError> {
        let count = u32::try_from(length / PAGE as u64).unwrap_or(u32::MAX);
        let this =
            Self { load: Box::new(load), vnode, pages: BTreeMap::new(), changed: BTreeMap::new(), count };
        if !length.is_multiple_of(PAGE as u64) || count == 0 || count > PAGES_MAX {
            return Err(this.bad(format!("has {length} bytes")));
        }
        Ok(this)
    }

    /// A new one, with "." and "..".
    pub(crate) fn new(this: VnodeId, parent: VnodeId) -> Result<Self, VolumeError> {
        let mut page = empty_page(SLOTS_OF_HEADER);
        page[0..2].copy_from_slice(&1u16.to_be_bytes());
        page[ALLOCATION_MAP..HASH_TABLE].fill(SLOTS as u8);
        page[ALLOCATION_MAP] = (SLOTS - SLOTS_OF_HEADER) as u8;
        let mut directory = Self {
            load: Box::new(|_| unreachable!("all pages are here")),
            vnode: this.vnode,
            pages: BTreeMap::from([(0, page)]),
            changed: BTreeMap::from([(0, ())]),
            count: 1,
        };
        directory.insert(b".", this)?;
        directory.insert(b"..", parent)?;
        Ok(directory)
    }

    fn bad(&self, why: impl Into<String>) -> VolumeError {
        VolumeError::damaged(format!("directory {}", self.vnode), why)
    }

    /// Its bytes.
    pub(crate) fn length(&self) -> u64 {
        u64::from(self.count) * PAGE as u64
    }

    /// The pages that differ from what was loaded.
    pub(crate) fn into_changed(self) -> Vec<(u32, Vec<u8>)> {
        let changed = self.changed;
        self.pages.into_iter().filter(|(n, _)| changed.contains_key(n)).collect()
    }

    fn page(&mut self, n: u32) -> Result<&Page, VolumeError> {
        if !self.pages.contains_key(&n) {
            let page = (self.load)(n)?;
            if page.len() != PAGE || u16_at(&page, 2) != TAG {
                return Err(self.bad(format!("page {n} is none")));
            }
            if n == 0 && u32::from(u16_at(&page, 0)) != self.count {
                return Err(self.bad(format!("page 0 says {} pages", u16_at(&page, 0))));
            }
            self.pages.insert(n, page);
        }
        Ok(&self.pages[&n])
    }

    fn page_mut(&mut self, n: u32) -> Result<&mut Page, VolumeError> {
        self.page(n)?;
        self.changed.insert(n, ());
        Ok(self.pages.get_mut(&n).expect("just read"))
    }

    /// The entry with a number: the next one's number, its name, what it stands for.
    fn entry(&mut self, number: u16) -> Result<(u16, Entry), VolumeError> {
        let (n, slot) = (u32::from(number) / SLOTS as u32, usize::from(number) % SLOTS);
        let first = if n == 0 { SLOTS_OF_HEADER } else { 1 };
        if n >= self.count || slot < first {
            return Err(self.bad(format!("there can be no entry {number}")));
        }
        let entry = &self.page(n)?[slot * SLOT..];
        let name = entry[NAME..].split(|&b| b == 0).next().unwrap_or_default();
        if entry[0] != 1 || name.is_empty() || name.len() > NAME_MAX || name.len() == entry.len() - NAME {
            return Err(self.bad(format!("entry {number} is none")));
        }
        let id = VnodeId { vnode: VnodeNumber(u32_at(entry, 4)), unique: Uniquifier(u32_at(entry, 8)) };
        Ok((u16_at(entry, 2), (name.to_vec(), id)))
    }

    /// The number of a name's entry, and that of the one before it in its chain.
    fn find(&mut self, name: &[u8]) -> Result<Option<(u16, u16)>, VolumeError> {
        let head = HASH_TABLE + 2 * bucket_of(name);
        let (mut before, mut number) = (0, u16_at(self.page(0)?, head));
        let mut left = self.count as usize * SLOTS;
        while number != 0 {
            let (next, entry) = self.entry(number)?;
            if entry.0 == name {
                return Ok(Some((before, number)));
            }
            left = left.checked_sub(1).ok_or_else(|| self.bad("has a chain that is a ring"))?;
            (before, number) = (number, next);
        }
        Ok(None)
    }

    /// Returns the vnode for which a name stands.
    pub(crate) fn lookup(&mut self, name: &[u8]) -> Result<Option<VnodeId>, VolumeError> {
        match self.find(name)? {
            Some((_, number)) => Ok(Some(self.entry(number)?.1.1)),
            None => Ok(None),
        }
    }

    /// All names, by buckets.
    pub(crate) fn entries(&mut self) -> Result<Vec<Entry>, VolumeError> {
        self.some_entries(usize::MAX)
    }

    /// Tells whether there is nothing but "." and "..".
    pub(crate) fn is_empty(&mut self) -> Result<bool, VolumeError> {
        Ok(self.some_entries(3)?.len() <= 2)
    }

    fn some_entries(&mut self, limit: usize) -> Result<Vec<Entry>, VolumeError> {
        let mut entries = Vec::new();
        let most = self.count as usize * SLOTS;
        for bucket in 0..BUCKETS {
            let mut number = u16_at(self.page(0)?, HASH_TABLE + 2 * bucket);
            while number != 0 && entries.len() < limit {
                let (next, entry) = self.entry(number)?;
                if bucket_of(&entry.0) != bucket {
                    return Err(
                        self.bad(format!("entry {number} is in bucket {bucket}, where it is not looked for"))
                    );
                }
                entries.push(entry);
                if entries.len() > most {
                    return Err(self.bad("has a chain that is a ring"));
                }
                number = next;
            }
        }
        Ok(entries)
    }

    /// Adds a name, which must not be there.
    pub(crate) fn insert(&mut self, name: &[u8], id: VnodeId) -> Result<(), VolumeError> {
        let slots = slots_of(name);
        let (n, slot) = self.allocate(slots)?;
        let number = (n as usize * SLOTS + slot) as u16;
        let head = HASH_TABLE + 2 * bucket_of(name);
        let next = u16_at(self.page(0)?, head);
        let entry = &mut self.page_mut(n)?[slot * SLOT..(slot + slots) * SLOT];
        // What is free may hold an old entry, in directories that OpenAFS has made.
        entry.fill(0);
        entry[0] = 1;
        entry[2..4].copy_from_slice(&next.to_be_bytes());
        entry[4..8].copy_from_slice(&id.vnode.0.to_be_bytes());
        entry[8..12].copy_from_slice(&id.unique.0.to_be_bytes());
        entry[NAME..NAME + name.len()].copy_from_slice(name);
        self.page_mut(0)?[head..head + 2].copy_from_slice(&number.to_be_bytes());
        Ok(())
    }

    /// Takes free slots that lie together; adds a page where there are none.
    fn allocate(&mut self, slots: usize) -> Result<(u32, usize), VolumeError> {
        let mapped = self.count.min(MAPPED_PAGES);
        let mut candidates: Vec<u32> = {
            let map = &self.page(0)?[ALLOCATION_MAP..HASH_TABLE];
            (0..mapped).filter(|&n| usize::from(map[n as usize]) >= slots).collect()
        };
        if self.count > MAPPED_PAGES {
            // Of pages beyond the map nothing is known: the last one is tried, and all only when no page can be added.
            candidates.push(self.count - 1);
            if self.count == PAGES_MAX {
                candidates.extend(MAPPED_PAGES..self.count - 1);
            }
        }
        for n in candidates {
            let first = if n == 0 { SLOTS_OF_HEADER } else { 1 };
            let page = self.page(n)?;
            let is_free = |slot: usize| page[BITMAP + slot / 8] & 1 << (slot % 8) == 0;
            if let Some(slot) = (first..=SLOTS - slots).find(|&s| (s..s + slots).all(is_free)) {
                self.take(n, slot, slots)?;
                return Ok((n, slot));
            }
        }
        if self.count == PAGES_MAX {
            return Err(VolumeError::DirectoryFull(self.vnode));
        }
        let n = self.count;
        self.page(0)?;
        self.count += 1;
        let count = u16::try_from(self.count).expect("at most PAGES_MAX");
        self.pages.insert(n, empty_page(1));
        let page = self.page_mut(0)?;
        page[0..2].copy_from_slice(&count.to_be_bytes());
        if n < MAPPED_PAGES {
            page[ALLOCATION_MAP + n as usize] = (SLOTS - 1) as u8;
        }
        self.take(n, 1, slots)?;
        Ok((n, 1))
    }

    fn take(&mut self, n: u32, slot: usize, slots: usize) -> Result<(), VolumeError> {
        let page = self.page_mut(n)?;
        (slot..slot + slots).for_each(|s| page[BITMAP + s / 8] |= 1 << (s % 8));
        if n < MAPPED_PAGES {
            let free = &mut self.page_mut(0)?[ALLOCATION_MAP + n as usize];
            *free = free.saturating_sub(slots as u8);
        }
        Ok(())
    }

    /// Takes a name away; says what it stood for.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Result<Option<VnodeId>, VolumeError> {
        let Some((before, number)) = self.find(name)? else { return Ok(None) };
        let (next, (_, id)) = self.entry(number)?;
        let (n, at) = match before {
            0 => (0, HASH_TABLE + 2 * bucket_of(name)),
            _ => (u32::from(before) / SLOTS as u32, usize::from(before) % SLOTS * SLOT + 2),
        };
        self.page_mut(n)?[at..at + 2].copy_from_slice(&next.to_be_bytes());
        let (n, slot, slots) =
            (u32::from(number) / SLOTS as u32, usize::from(number) % SLOTS, slots_of(name));
        if slot + slots > SLOTS {
            return Err(self.bad(format!("entry {number} goes beyond its page")));
        }
        let page = self.page_mut(n)?;
        page[slot * SLOT..(slot + slots) * SLOT].fill(0);
        (slot..slot + slots).for_each(|s| page[BITMAP + s / 8] &= !(1 << (s % 8)));
        if n < MAPPED_PAGES {
            let free = &mut self.page_mut(0)?[ALLOCATION_MAP + n as usize];
            *free = free.saturating_add(slots as u8);
        }
        Ok(Some(id))
    }

    /// Lets a name that is there stand for something else.
    pub(crate) fn replace(&mut self, name: &[u8], id: VnodeId) -> Result<(), VolumeError> {
        let Some((_, number)) = self.find(name)? else {
            return Err(self.bad(format!("has no '{}'", String::from_utf8_lossy(name))));
        };
        let at = usize::from(number) % SLOTS * SLOT;
        let page = self.page_mut(u32::from(number) / SLOTS as u32)?;
        page[at + 4..at + 8].copy_from_slice(&id.vnode.0.to_be_bytes());
        page[at + 8..at + 12].copy_from_slice(&id.unique.0.to_be_bytes());
        Ok(())
    }
}

/// Checks that a name may be given to something in a directory (File service notes 6.4).
pub(crate) fn check_name(name: &[u8]) -> Result<(), VolumeError> {
    let is_bad = name.is_empty()
        || name.len() > NAME_MAX
        || name.contains(&b'/')
        || name.contains(&0)
        || name.ends_with(b"@sys");
    if is_bad { Err(VolumeError::BadName) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::LocalFid;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn id(n: u32) -> VnodeId {
        VnodeId { vnode: VnodeNumber(n), unique: Uniquifier(n + 1) }
    }

    fn reopened(pages: &BTreeMap<u32, Page>) -> Directory<'_> {
        let load = |n| Ok(pages[&n].clone());
        Directory::open(VnodeNumber(1), pages.len() as u64 * PAGE as u64, load).unwrap()
    }

    /// As clients have it: all pages at once, read and checked by their code.
    fn whole(directory: &mut Directory<'_>) -> afs_wire::directory::Directory {
        let pages = (0..directory.count).flat_map(|n| directory.page(n).unwrap().clone()).collect();
        afs_wire::directory::Directory::parse(pages).unwrap()
    }

    /// A client whose copy of a directory is one version old makes the same change to it, and takes it for the new version.
    #[test]
    fn a_client_that_makes_the_same_changes_gets_the_same_pages() {
        let fid = |id: VnodeId| LocalFid { vnode: id.vnode, unique: id.unique };
        let mut ours = Directory::new(id(1), id(1)).unwrap();
        let mut theirs = afs_wire::directory::Directory::new(fid(id(1)), fid(id(1)));
        let mut rng = StdRng::seed_from_u64(7);
        let mut names: Vec<Vec<u8>> = Vec::new();
        for n in 0..6000 {
            match rng.random_range(0..10) {
                0..=5 => {
                    let name = format!("{n}-{}", "y".repeat(rng.random_range(0..120))).into_bytes();
                    ours.insert(&name, id(n)).unwrap();
                    theirs.insert(&name, fid(id(n))).unwrap();
                    names.push(name);
                }
                6..=8 if !names.is_empty() => {
                    let name = names.swap_remove(rng.random_range(0..names.len()));
                    ours.remove(&name).unwrap().unwrap();
                    theirs.remove(&name).unwrap();
                }
                _ if !names.is_empty() => {
                    let name = &names[rng.random_range(0..names.len())];
                    ours.replace(name, id(n)).unwrap();
                    theirs.replace(name, fid(id(n))).unwrap();
                }
                _ => {}
            }
            if n % 500 == 499 {
                assert!(whole(&mut ours) == theirs, "after {n} changes");
            }
        }
        assert!(theirs.pages() > 50 && theirs.pages() < 128, "{} pages", theirs.pages());
    }

    #[test]
    fn a_new_directory_is_the_page_that_openafs_makes() {
        let pages = Directory::new(id(1), id(1)).unwrap().into_changed();
        let page = &pages[0].1;
        assert_eq!(page[..8], [0, 1, 4, 0xd2, 51, 0xff, 0x7f, 0]);
        assert_eq!(page[ALLOCATION_MAP..ALLOCATION_MAP + 2], [49, 64]);
        assert_eq!((u16_at(page, HASH_TABLE + 92), u16_at(page, HASH_TABLE + 136)), (13, 14));
        assert_eq!(page[13 * SLOT..][..14], [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, b'.', 0]);
    }

    #[test]
    fn thousands_of_names_come_and_go_over_many_pages() {
        let mut pages: BTreeMap<u32, Page> =
            Directory::new(id(1), id(1)).unwrap().into_changed().into_iter().collect();
        let name = |n: u32| format!("{n}-{}", "x".repeat(n as usize % 250)).into_bytes();
        for n in 0..3000 {
            let changed = {
                let mut directory = reopened(&pages);
                directory.insert(&name(n), id(n)).unwrap();
                directory.into_changed()
            };
            assert!(changed.len() <= 3, "{} pages changed for one name", changed.len());
            pages.extend(changed);
        }
        let mut directory = reopened(&pages);
        let whole = whole(&mut directory);
        assert_eq!(whole.check(), []);
        assert!((0..3000).all(|n| whole.lookup(&name(n)).is_some_and(|e| e.fid.vnode == VnodeNumber(n))));
        assert_eq!(directory.entries().unwrap().len(), 3002);
        for n in (0..3000).step_by(2) {
            assert_eq!(directory.remove(&name(n)).unwrap(), Some(id(n)));
        }
        assert_eq!(self::whole(&mut directory).check(), []);
        let length = directory.length();
        for n in 0..3000 {
            assert_eq!(directory.lookup(&name(n)).unwrap(), (n % 2 == 1).then_some(id(n)));
        }
        for n in (0..3000).step_by(2) {
            directory.insert(&name(n), id(n)).unwrap();
        }
        assert!(directory.length() < length + length / 4, "what was freed is used again");
        directory.replace(b"..", id(9)).unwrap();
        assert_eq!(directory.lookup(b"..").unwrap(), Some(id(9)));
        (0..3000).for_each(|n| assert!(directory.remove(&name(n)).unwrap().is_some()));
        assert!(directory.is_empty().unwrap());
    }

    #[test]
    fn a_directory_that_is_full_says_so() {
        let mut directory = Directory::new(id(1), id(1)).unwrap();
        let mut n = 0;
        let error = loop {
            match directory.insert(format!("{n:08}").as_bytes(), id(n)) {
                Ok(()) => n += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, VolumeError::DirectoryFull(_)), "{error}");
        assert_eq!(n, 51 - 2 + 1022 * 63);
        directory.remove(b"00000000").unwrap();
        directory.insert(b"again", id(1)).unwrap();
    }

    #[test]
    fn pages_of_nonsense_are_errors() {
        let good = Directory::new(id(1), id(1)).unwrap().into_changed().remove(0).1;
        for at in 0..PAGE {
            for value in [0, 1, 0x7f, 0xff] {
                let mut page = good.clone();
                page[at] = value;
                let pages = BTreeMap::from([(0, page)]);
                let mut directory = reopened(&pages);
                let _ = directory.entries();
                let _ = directory.lookup(b"foo");
                let _ = directory.insert(b"foo", id(5));
                let _ = directory.remove(b".");
            }
        }
    }
}
