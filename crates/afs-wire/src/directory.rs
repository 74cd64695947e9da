//! Directories as file servers send and clients keep them: pages of 2048 bytes with slots, a map of what is free, and
//! hash chains (File service notes 9). Reading never trusts what it reads: whatever the bytes, it ends, in time in
//! proportion to their number. What is wrong with a directory is told by [`check`].
//!
//! Both servers and clients edit directories: a client makes the same change to its copy as the server did, when the
//! data version says that nothing else happened. Which names are allowed (`/`, `@sys`) is the server's matter, and so
//! is what the entries `.` and `..` point to.

pub mod check;
mod edit;
pub mod layout;

pub use edit::{ChangedPages, InsertError};

use layout::{
    BITMAP_AT, BUCKETS, ENTRY_HEADER, FIRST_PAGE_RESERVED, FIRST_SLOT, FREE_MAP_AT, HASH_TABLE_AT, NEXT_AT,
    PAGE_COUNT_AT, PAGE_RESERVED, SLOT_SIZE, SLOTS, TAG, TAG_AT, UNIQUE_AT, VNODE_AT, slots_for,
};

use crate::ids::{AFSNAMEMAX, LocalFid, Uniquifier, VnodeNumber};
use std::collections::BTreeMap;

/// Bytes of a page: a directory's length is a multiple.
pub const PAGE_SIZE: usize = 2048;
/// Most pages of a directory (`BIGMAXPAGES`): with this many, entry numbers still fit into 16 bits.
pub const PAGES_MAX: usize = 1023;
/// Longest name, in bytes. Stock servers make names of 256 (File service notes 6.4).
pub const NAME_MAX: usize = AFSNAMEMAX;

/// A slot's number in its directory: page times 64 plus its place there. Grows along the directory, so that it serves
/// as a position for who reads it in parts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u16);

impl Slot {
    fn new(page: usize, index: usize) -> Self {
        Self(u16::try_from(page * SLOTS + index).expect("PAGES_MAX pages have 65472 slots"))
    }

    /// The page it is on.
    #[must_use]
    pub const fn page(self) -> usize {
        self.0 as usize / SLOTS
    }

    const fn index(self) -> usize {
        self.0 as usize % SLOTS
    }

    const fn offset(self) -> usize {
        self.0 as usize * SLOT_SIZE
    }

    /// True if entries may begin here.
    const fn is_for_entries(self) -> bool {
        self.index() >= reserved(self.page())
    }
}

const fn reserved(page: usize) -> usize {
    if page == 0 { FIRST_PAGE_RESERVED } else { PAGE_RESERVED }
}

/// The chain that a name is on.
#[must_use]
pub fn hash(name: &[u8]) -> usize {
    let hash = name.iter().fold(0u32, |hash, &byte| hash.wrapping_mul(173).wrapping_add(u32::from(byte)));
    match hash as usize % BUCKETS {
        0 => 0,
        rest if hash >> 31 == 1 => BUCKETS - rest,
        rest => rest,
    }
}

/// The reason why bytes are no directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The length is no whole number of pages, or none.
    #[error("a directory has pages of {PAGE_SIZE} bytes, this has {bytes} bytes")]
    BadLength {
        /// Bytes given.
        bytes: usize,
    },
    /// More pages than a directory may have.
    #[error("a directory has at most {PAGES_MAX} pages, this has {pages}")]
    TooManyPages {
        /// Pages given.
        pages: usize,
    },
    /// A page that does not begin as pages do.
    #[error("page {page} does not begin as a page of a directory does")]
    BadTag {
        /// The page.
        page: usize,
    },
    /// The first page counts more pages than there are.
    #[error("the directory says that it has {counted} pages, there are {given}")]
    MissingPages {
        /// Pages counted.
        counted: usize,
        /// Pages given.
        given: usize,
    },
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its place.
    pub slot: Slot,
    /// Its name: at least one byte, none of them NUL.
    pub name: &'a [u8],
    /// The file that it names.
    pub fid: LocalFid,
}

impl Entry<'_> {
    /// The slot after it: where to go on reading.
    #[must_use]
    pub fn next(&self) -> Slot {
        Slot(self.slot.0.saturating_add(slots_for(self.name.len()) as u16))
    }

    /// True if it is `.` or `..`.
    #[must_use]
    pub fn is_dot(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// A directory over its bytes: `Directory<Vec<u8>>` can be edited, `Directory<&[u8]>` only be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory<B = Vec<u8>> {
    bytes: B,
    /// Pages in use; `bytes` has at least so many.
    pages: usize,
}

impl<B: AsRef<[u8]>> Directory<B> {
    /// A directory from its pages. Costs a look at each page's header; entries are looked at when they are read.
    ///
    /// # Errors
    ///
    /// [`DirectoryError`].
    pub fn parse(bytes: B) -> Result<Self, DirectoryError> {
        let all = bytes.as_ref();
        if all.is_empty() || all.len() % PAGE_SIZE != 0 {
            return Err(DirectoryError::BadLength { bytes: all.len() });
        }
        let given = all.len() / PAGE_SIZE;
        if given > PAGES_MAX {
            return Err(DirectoryError::TooManyPages { pages: given });
        }
        // Directories of very old servers do not count their pages: those in use have less than 64 slots free.
        let counted = match word(all, PAGE_COUNT_AT) {
            0 => all[FREE_MAP_AT..HASH_TABLE_AT].iter().filter(|&&free| usize::from(free) < SLOTS).count(),
            counted => usize::from(counted),
        };
        if counted > given {
            return Err(DirectoryError::MissingPages { counted, given });
        }
        let pages = counted.max(1);
        match (0..pages).find(|page| word(all, page * PAGE_SIZE + TAG_AT) != TAG) {
            Some(page) => Err(DirectoryError::BadTag { page }),
            None => Ok(Self { bytes, pages }),
        }
    }

    /// All its bytes: what FetchData sends.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes.as_ref()[..self.pages * PAGE_SIZE]
    }

    /// Its pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// One page.
    ///
    /// # Panics
    ///
    /// If there is no such page.
    pub fn page(&self, page: usize) -> &[u8] {
        &self.bytes()[page * PAGE_SIZE..][..PAGE_SIZE]
    }

    /// The entry of this name.
    pub fn lookup(&self, name: &[u8]) -> Option<Entry<'_>> {
        self.find(name).map(|(_, entry)| entry)
    }

    /// Its entries, in the order of their slots, `.` and `..` included.
    pub fn entries(&self) -> Entries<'_, B> {
        self.entries_from(Slot(0))
    }

    /// Its entries from this slot on. With what [`Entry::next`] gave, entries that stay are met exactly once, whatever
    /// else is added and removed in between.
    pub fn entries_from(&self, slot: Slot) -> Entries<'_, B> {
        Entries { directory: self, next: usize::from(slot.0) }
    }

    /// Its entries as readers meet them that follow the chains, each slot once, in the order of the slots. In a directory without
    /// faults these are [`Directory::entries`].
    pub fn chained(&self) -> Vec<Entry<'_>> {
        let mut met = BTreeMap::new();
        for bucket in 0..BUCKETS {
            let mut link = Link::Bucket(bucket);
            while let Some(slot) = self.follow(link)
                && !met.contains_key(&slot)
            {
                met.insert(slot, self.entry(slot));
                link = Link::Entry(slot);
            }
        }
        met.into_values().flatten().collect()
    }

    /// True if there is nothing but `.` and `..`.
    pub fn is_empty(&self) -> bool {
        self.entries().all(|entry| entry.is_dot())
    }

    /// The entry of this name, and where the link to it is.
    fn find(&self, name: &[u8]) -> Option<(Link, Entry<'_>)> {
        let mut link = Link::Bucket(hash(name));
        // A chain cannot be longer than there are slots, unless it is a ring.
        for _ in 0..self.pages * SLOTS {
            let slot = self.follow(link)?;
            if let Some(entry) = self.entry(slot).filter(|entry| entry.name == name) {
                return Some((link, entry));
            }
            link = Link::Entry(slot);
        }
        None
    }

    /// The slot that a link points to; `None` at the end of a chain, and where no entry can be.
    fn follow(&self, link: Link) -> Option<Slot> {
        let slot = Slot(word(self.bytes(), link.offset()));
        (slot.0 != 0 && slot.page() < self.pages && slot.is_for_entries()).then_some(slot)
    }

    /// Reads a slot of an existing page as an entry; `None` without a name that ends on the page.
    fn entry(&self, slot: Slot) -> Option<Entry<'_>> {
        let page_end = (slot.page() + 1) * PAGE_SIZE;
        let bytes = &self.bytes()[slot.offset()..page_end];
        let (header, rest) = bytes.split_at(ENTRY_HEADER);
        let rest = &rest[..rest.len().min(NAME_MAX + 1)];
        let name = &rest[..rest.iter().position(|&byte| byte == 0)?];
        let number =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let fid = LocalFid { vnode: VnodeNumber(number(VNODE_AT)), unique: Uniquifier(number(UNIQUE_AT)) };
        (!name.is_empty()).then_some(Entry { slot, name, fid })
    }

    /// The slots of a page that are in use, a bit each; those of the header always.
    fn used(&self, page: usize) -> u64 {
        let at = page * PAGE_SIZE + BITMAP_AT;
        let mut map = [0; 8];
        map.copy_from_slice(&self.bytes()[at..at + 8]);
        u64::from_le_bytes(map) | ((1 << reserved(page)) - 1)
    }
}

/// The place of a slot's number: in the hash table, or in the entry before it on the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Bucket(usize),
    Entry(Slot),
}

impl Link {
    fn offset(self) -> usize {
        match self {
            Self::Bucket(bucket) => HASH_TABLE_AT + 2 * bucket,
            Self::Entry(slot) => slot.offset() + NEXT_AT,
        }
    }

    fn page(self) -> usize {
        match self {
            Self::Bucket(_) => 0,
            Self::Entry(slot) => slot.page(),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Iterator over a directory's entries: see [`Directory::entries`].
#[derive(Debug, Clone)]
pub struct Entries<'a, B = Vec<u8>> {
    directory: &'a Directory<B>,
    next: usize,
}

impl<'a, B: AsRef<[u8]>> Iterator for Entries<'a, B> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        while self.next < self.directory.pages * SLOTS {
            let slot = Slot::new(self.next / SLOTS, self.next % SLOTS);
            self.next += 1;
            let in_use = slot.is_for_entries() && self.directory.used(slot.page()) >> slot.index() & 1 == 1;
            if !in_use || self.directory.bytes()[slot.offset()] != FIRST_SLOT {
                continue;
            }
            if let Some(entry) = self.directory.entry(slot) {
                self.next = usize::from(entry.next().0);
                return Some(entry);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// File service notes 9.
    #[test]
    fn names_are_on_the_chains_that_stock_servers_put_them_on() {
        for (name, bucket) in [
            (".", 46),
            ("..", 68),
            ("a", 97),
            ("b", 98),
            ("foo", 72),
            ("hello.txt", 18),
            ("README", 6),
            ("x1", 73),
            ("lost+found", 43),
            ("zzzzzzzzzzzz", 40),
            ("Makefile", 98),
            ("index.html", 53),
            ("this-is-a-rather-long-file-name-for-afs.dat", 96),
        ] {
            assert_eq!(hash(name.as_bytes()), bucket, "{name}");
        }
    }

    #[test]
    fn long_names_take_more_slots() {
        for (len, slots) in [(1, 1), (15, 1), (16, 2), (47, 2), (48, 3), (255, 9), (256, 9)] {
            assert_eq!(slots_for(len), slots, "{len}");
        }
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let good = Directory::new(LocalFid::ROOT, LocalFid::ROOT).into_bytes();
        let refused = |bytes: &[u8]| Directory::parse(bytes).unwrap_err();
        assert_eq!(refused(&[]), DirectoryError::BadLength { bytes: 0 });
        assert_eq!(refused(&good[1..]), DirectoryError::BadLength { bytes: 2047 });
        assert_eq!(refused(&[0; PAGE_SIZE]), DirectoryError::MissingPages { counted: 128, given: 1 });
        let mut other = good.clone();
        other[TAG_AT] = 0;
        assert_eq!(refused(&other), DirectoryError::BadTag { page: 0 });
        other[1] = 2;
        assert_eq!(refused(&other), DirectoryError::MissingPages { counted: 2, given: 1 });
        assert_eq!(refused(&good.repeat(1024)), DirectoryError::TooManyPages { pages: 1024 });
    }

    #[test]
    fn a_chain_that_is_a_ring_ends() {
        let mut bytes = Directory::new(LocalFid::ROOT, LocalFid::ROOT).into_bytes();
        let at = HASH_TABLE_AT + 2 * hash(b"a");
        bytes[at..at + 2].copy_from_slice(&13u16.to_be_bytes());
        bytes[13 * SLOT_SIZE + NEXT_AT..][..2].copy_from_slice(&13u16.to_be_bytes());
        assert_eq!(Directory::parse(&bytes[..]).unwrap().lookup(b"a"), None);
    }

    #[test]
    fn a_directory_of_old_that_does_not_count_its_pages_is_read() {
        let mut directory = Directory::new(LocalFid::ROOT, LocalFid::ROOT);
        for i in 0..60 {
            directory.insert(format!("file{i}").as_bytes(), LocalFid::ROOT).unwrap();
        }
        assert_eq!(directory.pages(), 2);
        let mut bytes = directory.into_bytes();
        bytes[PAGE_COUNT_AT..PAGE_COUNT_AT + 2].fill(0);
        let old = Directory::parse(bytes).unwrap();
        assert_eq!((old.pages(), old.entries().count()), (2, 62));
    }
}
