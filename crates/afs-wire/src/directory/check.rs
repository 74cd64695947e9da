//! The faults of a directory, found for salvaging, and for tests. A directory without faults is read alike by
//! readers that follow the chains, as stock servers and clients do, and by those that go through the slots, as
//! Linux does.

use super::layout::{BUCKETS, FIRST_SLOT, FREE_MAP_AT, MAPPED_PAGES, SLOTS, slots_for};
use super::{Directory, Link, Slot, hash, reserved, word};
use std::collections::BTreeSet;
use std::fmt;

/// Most faults that are told of one directory: who has read so many makes the directory anew.
pub const FAULTS_MAX: usize = 100;

/// Something that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A chain leads to where no entry can be.
    BadLink {
        /// The chain.
        bucket: usize,
        /// The slot to which it leads.
        to: Slot,
    },
    /// A chain comes to a slot that some chain has been to.
    Ring {
        /// The chain.
        bucket: usize,
        /// The slot.
        to: Slot,
    },
    /// An entry without a name that ends on its page.
    BadName(Slot),
    /// An entry on another chain than its name's.
    WrongBucket(Slot),
    /// An entry that is not marked as one.
    NotMarked(Slot),
    /// Two entries of one name.
    Duplicate(Slot),
    /// A slot of an entry that is free by the map, or of another entry too.
    NotOwned(Slot),
    /// A slot in use, by the map, of no entry.
    Lost(Slot),
    /// The number of free slots of a page is wrong.
    FreeCount {
        /// The page.
        page: usize,
        /// The number that stands there.
        says: usize,
        /// The right one.
        has: usize,
    },
    /// No entry `.`.
    NoDot,
    /// No entry `..`.
    NoDotDot,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadLink { bucket, to } => {
                write!(f, "chain {bucket} leads to slot {}, where no entry is", to.0)
            }
            Self::Ring { bucket, to } => write!(f, "chain {bucket} leads to slot {} a second time", to.0),
            Self::BadName(slot) => write!(f, "the name at slot {} does not end", slot.0),
            Self::WrongBucket(slot) => write!(f, "the entry at slot {} is on the wrong chain", slot.0),
            Self::NotMarked(slot) => write!(f, "the entry at slot {} is not marked as one", slot.0),
            Self::Duplicate(slot) => write!(f, "the entry at slot {} has the name of another", slot.0),
            Self::NotOwned(slot) => write!(f, "slot {} is free or of two entries", slot.0),
            Self::Lost(slot) => write!(f, "slot {} is in use by no entry", slot.0),
            Self::FreeCount { page, says, has } => {
                write!(f, "page {page} has {has} free slots and not {says}")
            }
            Self::NoDot => f.write_str("there is no entry \".\""),
            Self::NoDotDot => f.write_str("there is no entry \"..\""),
        }
    }
}

impl<B: AsRef<[u8]>> Directory<B> {
    /// Returns its faults, at most [`FAULTS_MAX`] things; nothing is said of what `.` and `..` name. Costs a set of
    /// bits for the slots, and a set of the names of one chain.
    #[must_use]
    pub fn check(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut owned = vec![0u64; self.pages];
        let mut met = vec![0u64; self.pages];
        for bucket in 0..BUCKETS {
            self.check_chain(bucket, &mut met, &mut owned, &mut faults);
        }
        for (page, owned) in owned.iter().enumerate() {
            let used = self.used(page) & !((1 << reserved(page)) - 1);
            let lost = used & !owned;
            faults.extend(
                (0..SLOTS).filter(|index| lost >> index & 1 == 1).map(|i| Fault::Lost(Slot::new(page, i))),
            );
            let has = (!self.used(page)).count_ones() as usize;
            if page < MAPPED_PAGES && usize::from(self.bytes()[FREE_MAP_AT + page]) != has {
                let says = usize::from(self.bytes()[FREE_MAP_AT + page]);
                faults.push(Fault::FreeCount { page, says, has });
            }
        }
        for (name, fault) in [(&b"."[..], Fault::NoDot), (&b".."[..], Fault::NoDotDot)] {
            if self.lookup(name).is_none() {
                faults.push(fault);
            }
        }
        faults.truncate(FAULTS_MAX);
        faults
    }

    fn check_chain(&self, bucket: usize, met: &mut [u64], owned: &mut [u64], faults: &mut Vec<Fault>) {
        let mut names = BTreeSet::new();
        let mut link = Link::Bucket(bucket);
        while let Some(slot) = self.follow(link) {
            if met[slot.page()] >> slot.index() & 1 == 1 {
                faults.push(Fault::Ring { bucket, to: slot });
                return;
            }
            met[slot.page()] |= 1 << slot.index();
            if self.bytes()[slot.offset()] != FIRST_SLOT {
                faults.push(Fault::NotMarked(slot));
            }
            match self.entry(slot) {
                None => faults.push(Fault::BadName(slot)),
                Some(entry) => {
                    if hash(entry.name) != bucket {
                        faults.push(Fault::WrongBucket(slot));
                    }
                    if !names.insert(entry.name) {
                        faults.push(Fault::Duplicate(slot));
                    }
                    let mine = ((1u64 << slots_for(entry.name.len())) - 1) << slot.index();
                    if mine & !self.used(slot.page()) != 0 || mine & owned[slot.page()] != 0 {
                        faults.push(Fault::NotOwned(slot));
                    }
                    owned[slot.page()] |= mine;
                }
            }
            link = Link::Entry(slot);
        }
        let to = Slot(word(self.bytes(), link.offset()));
        if to.0 != 0 {
            faults.push(Fault::BadLink { bucket, to });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::layout::{BITMAP_AT, HASH_TABLE_AT, NEXT_AT, SLOT_SIZE};
    use crate::ids::LocalFid;

    /// A directory with `a` at slot 15 and `b` at slot 16, damaged, and what is said of it.
    fn check(damage: impl FnOnce(&mut [u8]), expected: &[Fault]) {
        let mut directory = Directory::new(LocalFid::ROOT, LocalFid::ROOT);
        directory.insert(b"a", LocalFid::ROOT).unwrap();
        directory.insert(b"b", LocalFid::ROOT).unwrap();
        let mut bytes = directory.into_bytes();
        damage(&mut bytes);
        assert_eq!(Directory::parse(bytes).unwrap().check(), expected);
    }

    const A: Slot = Slot(15);
    const B: Slot = Slot(16);
    const AT_A: usize = 15 * SLOT_SIZE;
    const BUCKET_OF_A: usize = HASH_TABLE_AT + 2 * 97;

    #[test]
    fn a_good_directory_has_no_faults() {
        check(|_| {}, &[]);
    }

    #[test]
    fn each_fault_is_found() {
        check(|bytes| bytes[AT_A] = 0, &[Fault::NotMarked(A)]);
        check(|bytes| bytes[AT_A + 12] = b'c', &[Fault::WrongBucket(A)]);
        check(|bytes| bytes[AT_A + 12] = 0, &[Fault::BadName(A), Fault::Lost(A)]);
        check(|bytes| bytes[BUCKET_OF_A + 1] = 0, &[Fault::Lost(A)]);
        check(
            |bytes| bytes[BUCKET_OF_A + 1] = 12,
            &[Fault::BadLink { bucket: 97, to: Slot(12) }, Fault::Lost(A)],
        );
        check(|bytes| bytes[AT_A + NEXT_AT + 1] = 15, &[Fault::Ring { bucket: 97, to: A }]);
        check(
            |bytes| bytes[AT_A + NEXT_AT + 1] = 16,
            &[Fault::WrongBucket(B), Fault::Ring { bucket: 98, to: B }],
        );
        check(|bytes| bytes[FREE_MAP_AT] = 1, &[Fault::FreeCount { page: 0, says: 1, has: 47 }]);
        check(
            |bytes| bytes[BITMAP_AT + 1] &= 0x7f,
            &[Fault::NotOwned(A), Fault::FreeCount { page: 0, says: 47, has: 48 }],
        );
        check(|bytes| bytes[HASH_TABLE_AT + 2 * 46 + 1] = 0, &[Fault::Lost(Slot(13)), Fault::NoDot]);
        check(|bytes| bytes[HASH_TABLE_AT + 2 * 68 + 1] = 0, &[Fault::Lost(Slot(14)), Fault::NoDotDot]);
    }

    #[test]
    fn two_entries_of_one_name_are_found() {
        check(
            |bytes| {
                bytes[AT_A + SLOT_SIZE + 12] = b'a';
                bytes[AT_A + NEXT_AT + 1] = 16;
                bytes[HASH_TABLE_AT + 2 * 98 + 1] = 0;
            },
            &[Fault::Duplicate(B)],
        );
    }
}
