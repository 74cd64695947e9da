//! The locks of a file's bytes on this machine, by the rules of `fcntl(2)` and `flock(2)`. `locks` tells the server of them.

use fuse_dev::{Handle, Lock, LockKind, LockRange};

/// Locks of one file. More are refused: a program that locks each record by itself has some thousand.
const HELD_MAX: usize = 65_536;

/// A lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    owner: u64,
    is_flock: bool,
    range: LockRange,
    is_write: bool,
    pid: u32,
    /// The open file by which it was taken.
    handle: Handle,
}

/// The locks of a file.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    held: Vec<Held>,
}

/// The reason why a lock cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Somebody else has it.
    Held,
    /// There are too many.
    TooMany,
}

impl Held {
    fn overlaps(&self, range: LockRange) -> bool {
        self.range.start <= range.end && range.start <= self.range.end
    }

    /// True if it is of the same holder. The two kinds of locks know nothing of each other.
    fn is_of(&self, lock: &Lock) -> bool {
        self.owner == lock.owner && self.is_flock == lock.is_flock
    }

    fn is_in_the_way_of(&self, lock: &Lock) -> bool {
        self.is_flock == lock.is_flock
            && self.owner != lock.owner
            && self.overlaps(lock.range)
            && (self.is_write || lock.kind == LockKind::Write)
    }
}

impl LockTable {
    /// The lock that is in the way of one, as `F_GETLK` tells it.
    pub(crate) fn conflict(&self, lock: &Lock) -> Option<Lock> {
        let held = self.held.iter().find(|held| held.is_in_the_way_of(lock))?;
        let kind = if held.is_write { LockKind::Write } else { LockKind::Read };
        Some(Lock { kind, range: held.range, pid: held.pid, owner: held.owner, ..*lock })
    }

    /// Takes a lock, or gives one up. What its holder had of these bytes is replaced.
    pub(crate) fn set(&mut self, lock: &Lock) -> Result<(), Refusal> {
        if lock.kind != LockKind::Unlock {
            if self.held.iter().any(|held| held.is_in_the_way_of(lock)) {
                return Err(Refusal::Held);
            }
            if self.held.len() >= HELD_MAX {
                return Err(Refusal::TooMany);
            }
        }
        let mut kept = Vec::with_capacity(self.held.len() + 2);
        for held in self.held.drain(..) {
            if !(held.is_of(lock) && held.overlaps(lock.range)) {
                kept.push(held);
                continue;
            }
            if held.range.start < lock.range.start {
                let range = LockRange { end: lock.range.start - 1, ..held.range };
                kept.push(Held { range, ..held });
            }
            if held.range.end > lock.range.end {
                let range = LockRange { start: lock.range.end + 1, ..held.range };
                kept.push(Held { range, ..held });
            }
        }
        if lock.kind != LockKind::Unlock {
            kept.push(Held {
                owner: lock.owner,
                is_flock: lock.is_flock,
                range: lock.range,
                is_write: lock.kind == LockKind::Write,
                pid: lock.pid,
                handle: lock.handle,
            });
        }
        self.held = kept;
        Ok(())
    }

    /// Gives up what an owner has: of `fcntl(2)` when the owner closes any descriptor of the file, of `flock(2)` when
    /// the last one is closed.
    pub(crate) fn give_up(&mut self, owner: u64, is_flock: bool) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.owner != owner || held.is_flock != is_flock);
        self.held.len() < before
    }

    /// Gives up what was taken by an open file that is no more, and returns the owners.
    pub(crate) fn give_up_of(&mut self, handle: Handle) -> Vec<u64> {
        let mut owners = Vec::new();
        self.held.retain(|held| {
            let goes = held.handle == handle;
            if goes && !owners.contains(&held.owner) {
                owners.push(held.owner);
            }
            !goes
        });
        owners
    }

    /// True if an owner has the whole file.
    pub(crate) fn has_whole(&self, owner: u64) -> bool {
        self.held.iter().any(|held| held.owner == owner && held.range.is_whole())
    }

    /// True if nobody has any.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
        let range = LockRange { start, end };
        Lock { handle: Handle(owner), owner, range, kind, pid: owner as u32, is_flock: false }
    }

    use LockKind::{Read, Unlock, Write};

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let mut table = LockTable::default();
        assert_eq!(table.set(&lock(1, Read, 0, 99)), Ok(()));
        assert_eq!(table.set(&lock(2, Read, 50, 149)), Ok(()));
        assert_eq!(table.set(&lock(3, Write, 149, 200)), Err(Refusal::Held));
        assert_eq!(table.set(&lock(3, Write, 150, 200)), Ok(()));
        let in_the_way = table.conflict(&lock(4, Read, 0, 1000)).unwrap();
        assert_eq!((in_the_way.pid, in_the_way.kind, in_the_way.range.start), (3, Write, 150));
        assert_eq!(table.conflict(&lock(4, Read, 0, 149)), None);
    }

    #[test]
    fn an_owner_replaces_what_he_has_and_keeps_the_rest() {
        let mut table = LockTable::default();
        table.set(&lock(1, Write, 0, 99)).unwrap();
        table.set(&lock(1, Unlock, 40, 59)).unwrap();
        assert_eq!(table.conflict(&lock(2, Write, 40, 59)), None);
        assert!(table.conflict(&lock(2, Write, 39, 39)).is_some());
        assert!(table.conflict(&lock(2, Write, 60, 60)).is_some());
        table.set(&lock(1, Read, 0, u64::MAX >> 1)).unwrap();
        assert!(table.has_whole(1) && table.conflict(&lock(2, Read, 0, 10)).is_none());
        assert!(table.give_up(1, false) && table.is_empty() && !table.give_up(1, false));
    }

    #[test]
    fn both_kinds_of_locks_know_nothing_of_each_other() {
        let mut table = LockTable::default();
        let whole = lock(1, Write, 0, u64::MAX >> 1);
        table.set(&Lock { is_flock: true, ..whole }).unwrap();
        assert_eq!(table.set(&lock(2, Write, 0, 0)), Ok(()));
        assert!(!table.give_up(1, false) && table.give_up(1, true));
    }

    #[test]
    fn a_file_that_is_closed_takes_its_locks_with_it() {
        let mut table = LockTable::default();
        table.set(&lock(1, Read, 0, 9)).unwrap();
        table.set(&lock(1, Read, 20, 29)).unwrap();
        table.set(&lock(2, Read, 0, 9)).unwrap();
        assert_eq!(table.give_up_of(Handle(1)), [1]);
        assert!(!table.is_empty());
    }

    /// Against a table of one entry a byte.
    #[test]
    fn ranges_are_as_if_each_byte_were_locked_by_itself() {
        const BYTES: usize = 24;
        let mut seed = 0x5eed_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut table = LockTable::default();
        let mut bytes = [[None::<bool>; 3]; BYTES];
        for step in 0..5000 {
            let (owner, a, b) = (random(3), random(BYTES as u64), random(BYTES as u64));
            let kind = [Read, Write, Unlock][random(3) as usize];
            let asked = lock(owner, kind, a.min(b), a.max(b));
            let range = asked.range.start as usize..=asked.range.end as usize;
            let is_free = kind == Unlock
                || bytes[range.clone()].iter().all(|byte| {
                    (0..3).filter(|o| *o != owner as usize).all(|o| match byte[o] {
                        None => true,
                        Some(is_write) => !is_write && kind == Read,
                    })
                });
            assert_eq!(table.set(&asked).is_ok(), is_free, "step {step}: {asked:?}");
            if is_free {
                let state = (kind != Unlock).then_some(kind == Write);
                bytes[range].iter_mut().for_each(|byte| byte[owner as usize] = state);
            }
        }
    }
}
