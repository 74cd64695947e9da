//! The numbers of files as programs see them (`st_ino`). The whole mount is one device, so they have to tell files of all volumes apart:
//! in 53 bits, as programs keep them in floating-point numbers, and, as well as can be, in the lowest 32 alone, as archives do.
//!
//! The upper 21 bits are the volume's, which no other volume of the mount has. The lower 32 are the vnode's number, mixed with bits of the
//! volume: volumes number their first files alike. So two files of a volume never share these, and files of two volumes seldom.
//! That a volume uses a vnode's number again makes no two files with one number, as the first is gone.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock};

use afs_client::{CellIndex, Fid};
use afs_wire::ids::VolumeId;

/// Bits that are a volume's own. No number is 0, which programs take for none: volumes begin at 1.
const VOLUME_BITS: u32 = 21;

/// Volumes of a mount that get bits of their own. Far beyond what a mount sees; further ones may share them.
const VOLUMES_MAX: usize = 1 << (VOLUME_BITS - 1);

/// The upper and lower parts with which the numbers of a volume's files are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    upper: u32,
    lower: u32,
}

#[derive(Debug, Default)]
struct Table {
    keys: HashMap<(CellIndex, VolumeId), Key>,
    taken: HashSet<u32>,
}

/// The numbers of a mount's files. A file's stays the same while the mount lives.
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    table: RwLock<Table>,
}

impl Inodes {
    /// The number of a file.
    pub(crate) fn number(&self, fid: Fid) -> u64 {
        let key = self.key((fid.cell, fid.volume));
        u64::from(key.upper) << 32 | u64::from(fid.vnode.0 ^ key.lower)
    }

    fn key(&self, volume: (CellIndex, VolumeId)) -> Key {
        if let Some(key) = self.table.read().unwrap_or_else(PoisonError::into_inner).keys.get(&volume) {
            return *key;
        }
        self.table.write().unwrap_or_else(PoisonError::into_inner).add(volume, hash(volume))
    }
}

impl Table {
    /// A volume that has not been seen, with a hash that says which bits it is to have if no other has them.
    fn add(&mut self, volume: (CellIndex, VolumeId), hash: u64) -> Key {
        if let Some(key) = self.keys.get(&volume) {
            return *key;
        }
        let lower = hash as u32;
        let mut upper = in_range((hash >> 32) as u32);
        if self.keys.len() >= VOLUMES_MAX {
            return Key { upper, lower };
        }
        // Half of them are free, so one is soon found.
        while !self.taken.insert(upper) {
            upper = in_range(upper + 1);
        }
        let key = Key { upper, lower };
        self.keys.insert(volume, key);
        key
    }
}

/// The upper bits, but never 0.
fn in_range(bits: u32) -> u32 {
    (bits % (1 << VOLUME_BITS)).max(1)
}

/// A hash of a volume that is the same at each start: splitmix64's, whose every bit depends on every bit of what is hashed.
fn hash((cell, volume): (CellIndex, VolumeId)) -> u64 {
    let mut bits = (u64::from(cell.0) << 32 | u64::from(volume.0)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::{AfsFid, Uniquifier, VnodeNumber};

    fn fid(cell: u32, volume: u32, vnode: u32) -> Fid {
        let fid = AfsFid { volume: VolumeId(volume), vnode: VnodeNumber(vnode), unique: Uniquifier(1) };
        Fid::new(CellIndex(cell), fid)
    }

    /// cpio writes 32 bits of a number, and took files of two volumes for one with two names.
    #[test]
    fn the_first_files_of_a_thousand_volumes_differ_in_32_bits_and_fit_into_53() {
        let inodes = Inodes::default();
        let (mut whole, mut low) = (HashSet::new(), HashSet::new());
        for cell in 1..3 {
            for volume in 0..500 {
                for vnode in 1..50 {
                    let number = inodes.number(fid(cell, 0x2000_0000 + volume, vnode));
                    assert!(number >> 53 == 0 && number != 0);
                    assert!(whole.insert(number));
                    low.insert(number as u32);
                }
            }
        }
        assert!(low.len() * 1000 > whole.len() * 999, "{} of {}", low.len(), whole.len());
    }

    #[test]
    fn a_files_number_stays_the_same() {
        let inodes = Inodes::default();
        let before = inodes.number(fid(1, 7, 3));
        for volume in 0..1000 {
            inodes.number(fid(1, volume, 1));
        }
        assert_eq!(inodes.number(fid(1, 7, 3)), before);
        assert_eq!(
            Inodes::default().number(fid(1, 7, 3)),
            before,
            "nor does it depend on what was seen before"
        );
    }

    #[test]
    fn volumes_of_one_hash_have_no_number_in_common() {
        let mut table = Table::default();
        for hash in [5 << 32, u64::from(u32::MAX) << 32] {
            let keys =
                [1, 2, 3].map(|volume| table.add((CellIndex(hash as u32 + 9), VolumeId(volume)), hash));
            let again = table.add((CellIndex(hash as u32 + 9), VolumeId(2)), hash);
            assert_eq!(again, keys[1]);
        }
        assert_eq!(table.taken.len(), table.keys.len());
    }
}
