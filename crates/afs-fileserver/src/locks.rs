//! Advisory locks on whole files, as clients ask for them on behalf of their programs.
//!
//! A state machine: time is an argument. A lock belongs to the vnode and to nobody in particular: whoever may lock may also
//! extend and release (File service notes 6.7). Locks are kept in memory, and end with the server as stock clients expect of a
//! lock that was not extended in time. Who may lock is in [`access`](crate::access).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use afs_wire::ids::AfsFid;
use rx_proto::time::Instant;

/// The time that a lock lasts if it is not extended (`AFS_LOCKWAIT`).
pub const LIFE: Duration = Duration::from_secs(300);

/// Most files locked at once: beyond it locks are refused as if somebody had them. A lock takes some 100 bytes.
pub const MAX_LOCKS: usize = 100_000;

/// The kind of a lock: what it keeps others from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Others may lock for reading too.
    Read,
    /// Nobody else may lock.
    Write,
}

/// The reason why a lock was not set or extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockError {
    /// Somebody has it (EAGAIN).
    Held,
    /// There is none to extend (EINVAL).
    NotLocked,
}

/// The locks of a server.
#[derive(Debug, Default)]
pub struct Locks {
    locks: HashMap<AfsFid, Lock>,
    ends: BTreeSet<(Instant, AfsFid)>,
}

#[derive(Debug, Clone, Copy)]
struct Lock {
    /// -1 for writing, or the number of readers.
    count: i32,
    ends: Instant,
}

impl Locks {
    /// Files that are locked.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// True if no file is.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// The word of a status: -1 locked for writing, the number of read locks, or 0.
    pub fn count(&self, now: Instant, fid: AfsFid) -> i32 {
        self.locks.get(&fid).filter(|lock| lock.ends > now).map_or(0, |lock| lock.count)
    }

    /// Locks a file for [`LIFE`]; a read lock beside others extends them too.
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] where it is locked for writing, or for reading and is to be for writing; also if the same client has
    /// the lock.
    pub fn set(&mut self, now: Instant, fid: AfsFid, kind: Kind) -> Result<(), LockError> {
        self.handle_timeout(now);
        let held = self.locks.get(&fid).map_or(0, |lock| lock.count);
        let count = match kind {
            Kind::Read if held >= 0 => held.saturating_add(1),
            Kind::Write if held == 0 => -1,
            Kind::Read | Kind::Write => return Err(LockError::Held),
        };
        if held == 0 && self.locks.len() >= MAX_LOCKS {
            return Err(LockError::Held);
        }
        self.put(fid, Lock { count, ends: now + LIFE });
        Ok(())
    }

    /// Lets the lock last [`LIFE`] from now.
    ///
    /// # Errors
    ///
    /// [`LockError::NotLocked`].
    pub fn extend(&mut self, now: Instant, fid: AfsFid) -> Result<(), LockError> {
        self.handle_timeout(now);
        let count = self.locks.get(&fid).ok_or(LockError::NotLocked)?.count;
        self.put(fid, Lock { count, ends: now + LIFE });
        Ok(())
    }

    /// Takes one lock off the file; whether it was the last. Without one nothing happens.
    pub fn release(&mut self, now: Instant, fid: AfsFid) -> bool {
        self.handle_timeout(now);
        match self.locks.get_mut(&fid) {
            Some(lock) if lock.count > 1 => {
                lock.count -= 1;
                false
            }
            Some(_) => {
                self.removed(fid);
                true
            }
            None => false,
        }
    }

    /// The file is gone.
    pub fn removed(&mut self, fid: AfsFid) {
        if let Some(lock) = self.locks.remove(&fid) {
            self.ends.remove(&(lock.ends, fid));
        }
    }

    /// Forgets what has ended. The verbs do it too.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, fid)) = self.ends.first().copied().filter(|(at, _)| *at <= now) {
            self.ends.remove(&(at, fid));
            self.locks.remove(&fid);
        }
    }

    fn put(&mut self, fid: AfsFid, lock: Lock) {
        if let Some(old) = self.locks.insert(fid, lock) {
            self.ends.remove(&(old.ends, fid));
        }
        self.ends.insert((lock.ends, fid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::VolumeId;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const FILE: AfsFid = AfsFid::root_of(VolumeId(7));

    /// File service notes 6.7 and 14: each state of a lock against each request, as a stock server was seen to answer.
    #[test]
    fn every_state_answers_every_request() {
        use Kind::{Read, Write};
        use LockError::{Held, NotLocked};
        type Request = fn(&mut Locks) -> Result<(), LockError>;
        let read: Request = |l| l.set(NOW, FILE, Read);
        let write: Request = |l| l.set(NOW, FILE, Write);
        let extend: Request = |l| l.extend(NOW, FILE);
        let release: Request = |l| {
            let count = l.count(NOW, FILE);
            assert_eq!(l.release(NOW, FILE), matches!(count, -1 | 1), "the last of {count}");
            Ok(())
        };
        let table: &[(i32, Request, Result<(), LockError>, i32)] = &[
            (0, read, Ok(()), 1),
            (0, write, Ok(()), -1),
            (0, extend, Err(NotLocked), 0),
            (0, release, Ok(()), 0),
            (1, read, Ok(()), 2),
            (1, write, Err(Held), 1),
            (1, extend, Ok(()), 1),
            (1, release, Ok(()), 0),
            (2, read, Ok(()), 3),
            (2, write, Err(Held), 2),
            (2, extend, Ok(()), 2),
            (2, release, Ok(()), 1),
            (-1, read, Err(Held), -1),
            (-1, write, Err(Held), -1),
            (-1, extend, Ok(()), -1),
            (-1, release, Ok(()), 0),
        ];
        for (row, (before, request, result, after)) in table.iter().enumerate() {
            let mut locks = Locks::default();
            for _ in 0..*before {
                read(&mut locks).unwrap();
            }
            if *before < 0 {
                write(&mut locks).unwrap();
            }
            assert_eq!(request(&mut locks), *result, "row {row}");
            assert_eq!(locks.count(NOW, FILE), *after, "row {row}");
            assert_eq!(locks.ends.len(), locks.len(), "row {row}");
        }
    }

    #[test]
    fn a_lock_ends_after_five_minutes_unless_extended() {
        let mut locks = Locks::default();
        locks.set(NOW, FILE, Kind::Write).unwrap();
        let later = NOW + Duration::from_secs(299);
        assert_eq!(locks.set(later, FILE, Kind::Read), Err(LockError::Held));
        locks.extend(later, FILE).unwrap();
        assert_eq!(locks.count(later + Duration::from_secs(299), FILE), -1);
        let end = later + LIFE;
        assert_eq!(locks.count(end, FILE), 0);
        assert_eq!(locks.extend(end, FILE), Err(LockError::NotLocked));
        assert!(locks.is_empty());
    }

    #[test]
    fn beyond_the_limit_locks_are_refused() {
        let mut locks = Locks::default();
        for volume in 0..MAX_LOCKS as u32 {
            locks.set(NOW, AfsFid::root_of(VolumeId(volume)), Kind::Read).unwrap();
        }
        assert_eq!(locks.set(NOW, AfsFid::root_of(VolumeId(u32::MAX)), Kind::Read), Err(LockError::Held));
        locks.set(NOW, AfsFid::root_of(VolumeId(1)), Kind::Read).unwrap();
        locks.set(NOW + LIFE, AfsFid::root_of(VolumeId(u32::MAX)), Kind::Read).unwrap();
        assert_eq!(locks.len(), 1);
    }
}
