//! The keys of rows (Volume format 4). Numbers are big-endian, so that rows sort by them; snapshots are stored
//! inverted, so that of one thing the newest version comes first.

use afs_wire::ids::{VnodeNumber, VolumeId};

pub(crate) use afs_store::Key;

/// Volumes that share vnodes: one that can be changed, perhaps, and its clones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(pub(crate) u32);

/// Counts the clones of a group: what is written carries the number that was current then, and a clone sees what
/// has its own number or a lower one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Snapshot(pub(crate) u32);

impl Snapshot {
    /// Shows nothing.
    pub(crate) const NOTHING: Self = Self(0);
    /// The first of a group, until a clone is made of it.
    pub(crate) const FIRST: Self = Self(1);
    /// The view that shows everything.
    pub(crate) const NEWEST: Self = Self(u32::MAX - 1);
}

/// The number of a file with a chunk of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId(pub(crate) u64);

/// The first byte of each kind of key.
mod table {
    pub(super) const PARTITION: u8 = 0x01;
    pub(super) const VOLUME: u8 = 0x02;
    pub(super) const COUNTERS: u8 = 0x03;
    pub(super) const GROUP: u8 = 0x04;
    pub(super) const RESERVATION: u8 = 0x05;
    pub(super) const GARBAGE: u8 = 0x06;
    pub(super) const HALF: u8 = 0x07;
    pub(super) const PARTIAL: u8 = 0x08;
    pub(super) const REPLACED: u8 = 0x09;
    pub(super) const VNODE: u8 = 0x10;
}

/// The parts of a vnode that are versioned one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Part {
    /// Its status.
    Status,
    /// Its data, where they are short; a symbolic link's target.
    Inline,
    /// A page of a directory.
    Page(u32),
    /// The place of a chunk of its data.
    Chunk(u32),
}

impl Part {
    fn number(self) -> (u8, u32) {
        match self {
            Self::Status => (1, 0),
            Self::Inline => (2, 0),
            Self::Page(n) => (3, n),
            Self::Chunk(n) => (4, n),
        }
    }

    fn from_number(kind: u8, n: u32) -> Option<Self> {
        match (kind, n) {
            (1, 0) => Some(Self::Status),
            (2, 0) => Some(Self::Inline),
            (3, n) => Some(Self::Page(n)),
            (4, n) => Some(Self::Chunk(n)),
            _ => None,
        }
    }
}

/// Bytes of a vnode's key without its snapshot.
const UNVERSIONED: usize = 1 + 4 + 4 + 1 + 4;

/// The content of a vnode's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VnodeKey {
    pub(crate) group: GroupId,
    pub(crate) vnode: VnodeNumber,
    pub(crate) part: Part,
    pub(crate) snapshot: Snapshot,
}

impl VnodeKey {
    pub(crate) fn key(self) -> Key {
        let mut key = part_prefix(self.group, self.vnode, self.part);
        key.extend_from_slice(&(!self.snapshot.0).to_be_bytes());
        Key(key)
    }

    /// The first vnode of a group whose rows are all at a key or behind it; the highest number if there is none.
    pub(crate) fn after_vnodes(key: &Key, group: GroupId) -> VnodeNumber {
        let vnode =
            key.0.strip_prefix(&group_prefix(group)[..]).and_then(|rest| rest.get(..4)?.try_into().ok());
        VnodeNumber(vnode.map_or(u32::MAX, u32::from_be_bytes))
    }

    pub(crate) fn parse(key: &Key) -> Option<Self> {
        let bytes: &[u8; UNVERSIONED + 4] = key.0.as_slice().try_into().ok()?;
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Some(Self {
            group: (bytes[0] == table::VNODE).then_some(GroupId(number(1)))?,
            vnode: VnodeNumber(number(5)),
            part: Part::from_number(bytes[9], number(10))?,
            snapshot: Snapshot(!number(UNVERSIONED)),
        })
    }
}

/// A version of a part that another one has replaced, while a view shows it: the key of a row that has nothing else to say. They sort by when they
/// were replaced, and then by when they were written, so that those are next to each other that go with a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replaced {
    /// The snapshot in which it was replaced.
    pub(crate) at: Snapshot,
    pub(crate) version: VnodeKey,
}

impl Replaced {
    pub(crate) fn key(self) -> Key {
        let VnodeKey { group, vnode, part, snapshot } = self.version;
        let (kind, n) = part.number();
        let mut key = Self::from(group, self.at, snapshot).0;
        key.extend_from_slice(&vnode.0.to_be_bytes());
        key.push(kind);
        key.extend_from_slice(&n.to_be_bytes());
        Key(key)
    }

    /// Comes before all that were replaced in this snapshot and written in that one, or later.
    pub(crate) fn from(group: GroupId, at: Snapshot, written: Snapshot) -> Key {
        let mut key = Self::prefix(group);
        key.extend_from_slice(&at.0.to_be_bytes());
        key.extend_from_slice(&written.0.to_be_bytes());
        Key(key)
    }

    /// The prefix of all of a group.
    pub(crate) fn prefix(group: GroupId) -> Vec<u8> {
        numbered(table::REPLACED, group.0).0
    }

    pub(crate) fn parse(key: &Key) -> Option<Self> {
        let bytes: &[u8; UNVERSIONED + 8] = key.0.as_slice().try_into().ok()?;
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let version = VnodeKey {
            group: (bytes[0] == table::REPLACED).then_some(GroupId(number(1)))?,
            snapshot: Snapshot(number(9)),
            vnode: VnodeNumber(number(13)),
            part: Part::from_number(bytes[17], number(18))?,
        };
        Some(Self { at: Snapshot(number(5)), version })
    }
}

/// The prefix of all versions of a part.
pub(crate) fn part_prefix(group: GroupId, vnode: VnodeNumber, part: Part) -> Vec<u8> {
    let (kind, n) = part.number();
    let mut key = vnode_prefix(group, vnode);
    key.push(kind);
    key.extend_from_slice(&n.to_be_bytes());
    key
}

/// The prefix of all rows of a vnode.
pub(crate) fn vnode_prefix(group: GroupId, vnode: VnodeNumber) -> Vec<u8> {
    let mut key = group_prefix(group);
    key.extend_from_slice(&vnode.0.to_be_bytes());
    key
}

/// The prefix of all rows of a group's vnodes.
pub(crate) fn group_prefix(group: GroupId) -> Vec<u8> {
    let mut key = vec![table::VNODE];
    key.extend_from_slice(&group.0.to_be_bytes());
    key
}

fn numbered(table: u8, number: u32) -> Key {
    let mut key = vec![table];
    key.extend_from_slice(&number.to_be_bytes());
    Key(key)
}

/// The partition's own row.
pub(crate) fn partition() -> Key {
    Key(vec![table::PARTITION])
}

/// A volume's header.
pub(crate) fn volume(id: VolumeId) -> Key {
    numbered(table::VOLUME, id.0)
}

/// The prefix of all headers.
pub(crate) fn volumes() -> Vec<u8> {
    vec![table::VOLUME]
}

/// The id of a volume, from its header's key.
pub(crate) fn volume_of(key: &Key) -> Option<VolumeId> {
    let bytes: [u8; 4] = key.0.get(1..)?.try_into().ok()?;
    Some(VolumeId(u32::from_be_bytes(bytes)))
}

/// The key of what changes in a volume with each operation.
pub(crate) fn counters(id: VolumeId) -> Key {
    numbered(table::COUNTERS, id.0)
}

/// A volume group's row.
pub(crate) fn group(group: GroupId) -> Key {
    numbered(table::GROUP, group.0)
}

/// The prefix of all rows of groups.
pub(crate) fn groups() -> Vec<u8> {
    vec![table::GROUP]
}

/// The group, from its row's key.
pub(crate) fn group_of(key: &Key) -> Option<GroupId> {
    volume_of(key).map(|id| GroupId(id.0))
}

/// A volume that was put aside half-made.
pub(crate) fn half(id: VolumeId) -> Key {
    numbered(table::HALF, id.0)
}

/// The prefix of all of those.
pub(crate) fn halves() -> Vec<u8> {
    vec![table::HALF]
}

/// The vnode of a group whose data a restore has begun to write, and not ended.
pub(crate) fn partial(group: GroupId) -> Key {
    numbered(table::PARTIAL, group.0)
}

/// Numbers that a group may give out: two `u64`, uniquifiers and data versions.
pub(crate) fn group_reservation(group: GroupId) -> Key {
    numbered(table::RESERVATION, group.0)
}

/// Numbers that the partition may give out: two `u64`, files and groups. No group has the number 0.
pub(crate) fn partition_reservation() -> Key {
    numbered(table::RESERVATION, 0)
}

/// A file with data that no row names any more.
pub(crate) fn garbage(file: FileId) -> Key {
    let mut key = vec![table::GARBAGE];
    key.extend_from_slice(&file.0.to_be_bytes());
    Key(key)
}

/// The prefix of all garbage.
pub(crate) fn all_garbage() -> Vec<u8> {
    vec![table::GARBAGE]
}

/// The file, from its key among the garbage.
pub(crate) fn garbage_of(key: &Key) -> Option<FileId> {
    let bytes: [u8; 8] = key.0.get(1..)?.try_into().ok()?;
    Some(FileId(u64::from_be_bytes(bytes)))
}

/// True if there are keys like this.
pub(crate) fn is_key(key: &Key) -> bool {
    match key.0.first() {
        Some(&table::PARTITION) => key.0.len() == 1,
        Some(
            &(table::VOLUME
            | table::COUNTERS
            | table::GROUP
            | table::RESERVATION
            | table::HALF
            | table::PARTIAL),
        ) => key.0.len() == 5,
        Some(&table::GARBAGE) => key.0.len() == 9,
        Some(&table::VNODE) => VnodeKey::parse(key).is_some(),
        Some(&table::REPLACED) => Replaced::parse(key).is_some(),
        _ => false,
    }
}

/// True if a row only says what may be given out. Such rows count although what was done with them may not.
pub(crate) fn is_reservation(key: &Key) -> bool {
    key.0.first() == Some(&table::RESERVATION)
}

/// Returns the larger of two reservations, number by number.
pub(crate) fn larger_reservation(a: Option<&[u8]>, b: &[u8]) -> Vec<u8> {
    let number = |bytes: &[u8], i: usize| {
        bytes.get(i * 8..i * 8 + 8).map_or(0, |n| u64::from_be_bytes(n.try_into().expect("eight bytes")))
    };
    (0..2).flat_map(|i| number(a.unwrap_or_default(), i).max(number(b, i)).to_be_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_a_part_comes_first() {
        let key = |snapshot| {
            let (group, vnode, part) = (GroupId(7), VnodeNumber(2), Part::Chunk(3));
            VnodeKey { group, vnode, part, snapshot: Snapshot(snapshot) }
        };
        assert!(key(2).key() < key(1).key());
        assert_eq!(VnodeKey::parse(&key(9).key()), Some(key(9)));
        assert!(key(0).key() < afs_store::after(&part_prefix(GroupId(7), VnodeNumber(2), Part::Chunk(3))));
    }

    #[test]
    fn replaced_versions_come_by_when_they_were_replaced_and_written() {
        let replaced = |at, written, vnode| {
            let (group, part, snapshot) = (GroupId(7), Part::Chunk(3), Snapshot(written));
            let version = VnodeKey { group, vnode: VnodeNumber(vnode), part, snapshot };
            Replaced { at: Snapshot(at), version }
        };
        let keys = [replaced(2, 1, 9), replaced(3, 1, 8), replaced(3, 2, 4), replaced(3, 2, 5)];
        assert!(keys.windows(2).all(|two| two[0].key() < two[1].key()));
        for replaced in keys {
            assert_eq!(Replaced::parse(&replaced.key()), Some(replaced));
            assert!(is_key(&replaced.key()) && VnodeKey::parse(&replaced.key()).is_none());
            assert!(Replaced::from(GroupId(7), replaced.at, replaced.version.snapshot) < replaced.key());
            assert!(
                Replaced::from(GroupId(7), replaced.at, Snapshot(replaced.version.snapshot.0 + 1))
                    > replaced.key()
            );
        }
    }

    #[test]
    fn a_prefix_ends_where_the_next_begins() {
        assert_eq!(afs_store::after(&[0x10, 0, 0xff, 0xff]), Key(vec![0x10, 1]));
        assert_eq!(afs_store::after(&group_prefix(GroupId(u32::MAX))), Key(vec![0x11]));
    }

    #[test]
    fn reservations_never_shrink() {
        let two = |a: u64, b: u64| [a.to_be_bytes(), b.to_be_bytes()].concat();
        assert_eq!(larger_reservation(Some(&two(5, 1)), &two(4, 2)), two(5, 2));
        assert_eq!(larger_reservation(None, &two(4, 2)), two(4, 2));
    }
}
