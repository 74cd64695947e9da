//! Calls that wait for a handler: each owner's in the order in which they came, the owners in turns. When there is no more
//! room, the owner of whom most wait loses the newest, so that nobody can fill the queue and have the others refused.

use std::collections::BTreeSet;

use rx_proto::fair::{FairQueue, Owner};
use rx_proto::time::Instant;

/// Calls of an owner that go ahead of the others after it was quiet.
const FRESH_CALLS: u32 = 2;

/// The queue.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    queue: FairQueue<T>,
    /// Owners by how many of their calls wait.
    by_count: BTreeSet<(usize, Owner)>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { queue: FairQueue::new(1, FRESH_CALLS), by_count: BTreeSet::new() }
    }
}

impl<T> Waiting<T> {
    /// Adds a call. With `limit` calls waiting, one has to go, which is returned: the newest of the owner with the most,
    /// which may be this very one.
    pub(super) fn push(&mut self, now: Instant, owner: Owner, call: T, limit: usize) -> Option<T> {
        let count = self.queue.len_of(owner);
        let mut refused = None;
        if self.queue.len() >= limit {
            match self.by_count.last() {
                // Whoever has as many as anybody gives way himself: who is there stays.
                Some(&(most, largest)) if most > count + 1 => {
                    refused = self.queue.pop_newest(largest);
                    self.by_count.remove(&(most, largest));
                    self.by_count.insert((most - 1, largest));
                }
                _ => return Some(call),
            }
        }
        self.queue.push(now, owner, call);
        self.by_count.remove(&(count, owner));
        self.by_count.insert((count + 1, owner));
        refused
    }

    /// The call whose turn it is.
    pub(super) fn pop(&mut self, now: Instant) -> Option<T> {
        let (owner, call) = self.queue.pop(now)?;
        self.queue.charge(now, owner, 1);
        let left = self.queue.len_of(owner);
        self.by_count.remove(&(left + 1, owner));
        if left > 0 {
            self.by_count.insert((left, owner));
        }
        Some(call)
    }

    /// Takes all out.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.by_count.clear();
        self.queue.drain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rx_proto::fair::Owners;

    const LIMIT: usize = 100;

    fn owner(n: u8) -> Owner {
        Owners::new([7, 7]).owner(None, [10, 0, 0, n].into())
    }

    #[test]
    fn nobody_fills_the_queue_against_others() {
        let now = Instant::ORIGIN;
        let mut waiting = Waiting::default();
        let refused: Vec<i32> = (0..500).filter_map(|i| waiting.push(now, owner(1), i, LIMIT)).collect();
        assert_eq!(refused, (100..500).collect::<Vec<_>>(), "the newest are refused");
        assert_eq!(waiting.push(now, owner(2), 1000, LIMIT), Some(99), "another's call makes the newest go");
        assert_eq!(waiting.pop(now), Some(0));
        assert_eq!(waiting.pop(now), Some(1));
        assert_eq!(waiting.pop(now), Some(1000), "and waits for no more than a quiet owner's first calls");
        assert_eq!(waiting.pop(now), Some(2));
        // Two owners with half the queue each: who is there stays.
        for i in 0..60 {
            waiting.push(now, owner(2), 2000 + i, LIMIT);
        }
        let shares = [1, 2].map(|n| waiting.queue.len_of(owner(n)));
        assert_eq!(shares.iter().sum::<usize>(), LIMIT);
        assert!(shares[0].abs_diff(shares[1]) <= 1, "{shares:?}");
        assert!(waiting.push(now, owner(2), 3000, LIMIT).is_some_and(|call| call == 3000));
        assert_eq!(waiting.drain().len(), LIMIT);
        assert_eq!(waiting.pop(now), None);
    }

    #[test]
    fn owners_take_turns_however_many_calls_they_have() {
        let now = Instant::ORIGIN;
        let mut waiting = Waiting::default();
        for i in 0..1000 {
            assert_eq!(waiting.push(now, owner(1), 1, 2000), None);
            if i < 100 {
                assert_eq!(waiting.push(now, owner(2), 2, 2000), None);
            }
        }
        let first: Vec<i32> = (0..200).filter_map(|_| waiting.pop(now)).collect();
        let of_second = first.iter().filter(|&&n| n == 2).count();
        assert!((98..=100).contains(&of_second), "{of_second}");
    }
}
