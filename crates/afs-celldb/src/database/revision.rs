//! The state that a database is in, and the rows that say it: how often it was changed, and in a store that several
//! machines share also by which transaction, so that two histories of the same length are not taken for one.

use crate::record::{BadRow, Fields, PutFields};

/// The row of the revision, behind the image's prefix. Sorts before all rows of an image, which are lower-case.
pub(crate) const REVISION: &[u8] = b"REVISION";

/// First byte of the revision's row, without and with a stamp.
const PLAIN: u8 = 1;
const STAMPED: u8 = 2;

/// What the keys of the rows begin with that tell of each process's last transaction. The database's prefix follows, and the process's number.
const WRITERS: &[u8] = b"writers/";

/// The state that a database is in, as `udebug` shows it: when it was made, in seconds since 1970, and how often it
/// was changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The time when it was made; 0 if it has not been yet.
    pub epoch: u32,
    /// Changes since.
    pub counter: u64,
}

/// Names a transaction: which process made it, and which of its transactions it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) writer: u64,
    pub(crate) sequence: u64,
}

impl Stamp {
    /// The key of the row that tells of the last transaction of this process.
    pub(crate) fn key(self, prefix: &[u8]) -> Vec<u8> {
        [&writers(prefix), format!("{:016x}", self.writer).as_bytes()].concat()
    }

    /// That row: which transaction, and when, in seconds since 1970.
    pub(crate) fn to_row(self, now: u32) -> Vec<u8> {
        let mut row = Vec::new();
        row.put_u64(self.sequence);
        row.put_u32(now);
        row
    }
}

/// The prefix of the keys of the rows about the processes that change a database.
pub(super) fn writers(prefix: &[u8]) -> Vec<u8> {
    [WRITERS, prefix].concat()
}

/// The state of a database in its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Revision {
    pub(crate) version: Version,
    /// The transaction that made it, in a store that several machines share.
    pub(crate) stamp: Option<Stamp>,
}

impl Revision {
    /// The state after one more change.
    pub(crate) fn next(self, now: u32, stamp: Option<Stamp>) -> Self {
        let Version { epoch, counter } = self.version;
        let epoch = if epoch == 0 { now.max(1) } else { epoch };
        Self { version: Version { epoch, counter: counter + 1 }, stamp }
    }

    /// True if this may be the state that a change has made of another.
    pub(super) fn follows(self, other: Self) -> bool {
        let (own, other) = (self.version, other.version);
        own.counter == other.counter + 1 && (own.epoch == other.epoch || other.epoch == 0)
    }

    /// True if the other is a later state of the same database.
    pub(super) fn is_behind(self, other: Self) -> bool {
        let (own, other) = (self.version, other.version);
        own.counter < other.counter && (own.epoch == other.epoch || own.epoch == 0)
    }

    pub(crate) fn to_row(self) -> Option<Vec<u8>> {
        (self != Self::default()).then(|| {
            let mut row = vec![if self.stamp.is_some() { STAMPED } else { PLAIN }];
            row.put_u32(self.version.epoch);
            row.put_u64(self.version.counter);
            if let Some(stamp) = self.stamp {
                row.put_u64(stamp.writer);
                row.put_u64(stamp.sequence);
            }
            row
        })
    }

    pub(crate) fn from_row(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = Fields::new(row);
        let is_stamped = match fields.u8()? {
            PLAIN => false,
            STAMPED => true,
            _ => return Err(BadRow("it is of a version that this program does not know")),
        };
        let version = Version { epoch: fields.u32()?, counter: fields.u64()? };
        let stamp = match is_stamped {
            true => Some(Stamp { writer: fields.u64()?, sequence: fields.u64()? }),
            false => None,
        };
        fields.finish()?;
        Ok(Self { version, stamp })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_the_same_after_its_row() {
        let version = Version { epoch: 1, counter: u64::MAX };
        for stamp in [None, Some(Stamp { writer: u64::MAX, sequence: 7 })] {
            let revision = Revision { version, stamp };
            let row = revision.to_row().unwrap();
            assert_eq!(Revision::from_row(&row), Ok(revision));
            assert!((0..row.len()).all(|length| Revision::from_row(&row[..length]).is_err()));
        }
        assert_eq!(Revision::default().to_row(), None);
        assert!(Revision::from_row(&[3]).is_err());
    }

    #[test]
    fn states_of_one_database_have_an_order() {
        let state = |epoch, counter| Revision { version: Version { epoch, counter }, stamp: None };
        let new = Revision::default();
        assert!(state(5, 1).follows(new) && new.is_behind(state(5, 1)) && new.next(5, None) == state(5, 1));
        assert!(state(5, 3).follows(state(5, 2)) && state(5, 2).is_behind(state(5, 4)));
        assert!(!state(5, 4).follows(state(5, 2)) && !state(6, 3).follows(state(5, 2)));
        assert!(!state(5, 3).is_behind(state(6, 4)) && !state(5, 3).is_behind(state(5, 3)));
    }
}
