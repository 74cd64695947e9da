//! Entries and the header of the PTDB, and the rows that they are in the store.

use crate::record::{BadRow, Fields, PutFields};

/// Longest name in bytes, which on the wire is an array of 64 with a NUL (PTDB notes 2).
pub(crate) const MAX_NAME: usize = 63;

/// How entries and the header are written: the first byte of their rows.
const ROW_VERSION: u8 = 1;

/// The flags of an entry: its kind, in the lower half, and who may see and change it, in the upper (PTDB notes 4 and
/// 10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// A place without an entry.
    pub const FREE: Self = Self(1);
    /// A group.
    pub const GROUP: Self = Self(2);
    /// The upper half counts; without it the defaults do.
    pub const ACCESS: Self = Self(0x40);
    /// The quotas count; without it they are those of the default.
    pub const QUOTA: Self = Self(0x80);
    /// The bits that tell kinds of entries apart. A user has none of them.
    pub const KINDS: Self = Self(0x3f);
    /// Bits by which the upper half is shifted against its numbers on the wire.
    pub const PRIVACY_SHIFT: u32 = 16;

    /// True if one of these bits is set.
    #[must_use]
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 != 0
    }

    /// Returns the flags with these bits too.
    #[must_use]
    pub const fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }
}

/// A user or a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its kind, and who may see and change it.
    pub flags: Flags,
    /// Positive for users, negative for groups.
    pub id: i32,
    /// For a user of another cell: the group of the cell's users.
    pub cell_group: i32,
    /// The time when it was made, in seconds since 1970.
    pub created: u32,
    /// The time when something was added to its list last.
    pub added: u32,
    /// The time when something was removed from its list last.
    pub removed: u32,
    /// The time when its name, owner or id was changed last.
    pub changed: u32,
    /// The owner, who may change it. 0 for a group whose owner was deleted.
    pub owner: i32,
    /// The creator.
    pub creator: i32,
    /// The number of groups that it may still make; for the group of another cell's users, of these users.
    pub group_quota: i32,
    /// For the group of another cell's users, the last number that was given to one.
    pub user_quota: i32,
    /// In lower case, at most 63 bytes.
    pub name: Vec<u8>,
    /// A user's groups, or a group's members; sorted.
    pub list: Vec<i32>,
    /// The groups that a group is in; sorted.
    pub supergroups: Vec<i32>,
}

impl Entry {
    /// True if it is a group.
    pub fn is_group(&self) -> bool {
        self.flags.has(Flags::GROUP)
    }

    /// True if it belongs to another cell.
    pub fn is_foreign(&self) -> bool {
        self.name.contains(&b'@')
    }

    pub(crate) fn to_row(&self) -> Vec<u8> {
        let mut row = vec![ROW_VERSION];
        row.put_u32(self.flags.0);
        row.put_i32(self.id);
        row.put_i32(self.cell_group);
        [self.created, self.added, self.removed, self.changed].iter().for_each(|time| row.put_u32(*time));
        [self.owner, self.creator, self.group_quota, self.user_quota]
            .iter()
            .for_each(|number| row.put_i32(*number));
        row.put_short_bytes(&self.name);
        row.put_numbers(&self.list);
        row.put_numbers(&self.supergroups);
        row
    }

    pub(crate) fn parse(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = Fields::new(row);
        if fields.u8()? != ROW_VERSION {
            return Err(BadRow("it is of a version that this program does not know"));
        }
        let entry = Self {
            flags: Flags(fields.u32()?),
            id: fields.i32()?,
            cell_group: fields.i32()?,
            created: fields.u32()?,
            added: fields.u32()?,
            removed: fields.u32()?,
            changed: fields.u32()?,
            owner: fields.i32()?,
            creator: fields.i32()?,
            group_quota: fields.i32()?,
            user_quota: fields.i32()?,
            name: fields.short_bytes()?.to_vec(),
            list: fields.numbers()?,
            supergroups: fields.numbers()?,
        };
        fields.finish()?;
        let is_sorted = |list: &[i32]| list.is_sorted_by(|a, b| a < b);
        if entry.name.len() > MAX_NAME || !is_sorted(&entry.list) || !is_sorted(&entry.supergroups) {
            return Err(BadRow("its name is too long, or its lists are not sorted"));
        }
        Ok(entry)
    }
}

/// Fields that exist once in a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// The highest id of a user that was given, and the lowest of a group; near them the next ones are looked for.
    pub(crate) max_user: i32,
    pub(crate) max_group: i32,
    /// The place that was freed last.
    pub(crate) free: Option<u32>,
}

impl Header {
    pub(crate) fn to_row(self) -> Vec<u8> {
        let mut row = vec![ROW_VERSION];
        row.put_i32(self.max_user);
        row.put_i32(self.max_group);
        row.put_u32(self.free.map_or(0, |slot| slot + 1));
        row
    }

    pub(crate) fn parse(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = Fields::new(row);
        if fields.u8()? != ROW_VERSION {
            return Err(BadRow("it is of a version that this program does not know"));
        }
        let header =
            Self { max_user: fields.i32()?, max_group: fields.i32()?, free: fields.u32()?.checked_sub(1) };
        fields.finish()?;
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_the_same_after_its_row_and_no_other_bytes_are_one() {
        let entry = Entry {
            flags: Flags(0x90_00c2),
            id: -205,
            cell_group: -4,
            created: 1,
            added: 2,
            removed: 3,
            changed: 4,
            owner: -204,
            creator: i32::MIN,
            group_quota: 20,
            user_quota: -1,
            name: b"system:backup".to_vec(),
            list: vec![i32::MIN, -3, 5],
            supergroups: vec![-7],
        };
        for entry in [entry, Entry::default()] {
            let row = entry.to_row();
            assert_eq!(Entry::parse(&row), Ok(entry));
            assert!((0..row.len()).all(|length| Entry::parse(&row[..length]).is_err()));
            assert!(Entry::parse(&[&row[..], &[0]].concat()).is_err());
        }
        let unsorted = Entry { list: vec![2, 1], ..Entry::default() };
        assert!(Entry::parse(&unsorted.to_row()).is_err());
        let twice = Entry { supergroups: vec![1, 1], ..Entry::default() };
        assert!(Entry::parse(&twice.to_row()).is_err());
    }

    #[test]
    fn the_header_is_the_same_after_its_row() {
        let header = Header { max_user: 77, max_group: -208, free: Some(0) };
        assert_eq!(Header::parse(&header.to_row()), Ok(header));
    }
}
