//! A service's slots for running calls, and the calls that wait for one.
//!
//! An owner (a user, else a host) may hold as many slots as are free, so one owner alone gets half of them, and two get a
//! third each. Whoever comes next always finds a slot, however many calls the others have and however long these
//! take: a host whose calls never end waits for itself only.
//!
//! The waiting owner with the fewest running calls goes first, and among equals the one that was served the longest
//! ago. When there is no more room to wait, the owner with the most waiting calls loses the newest, so that nobody can fill
//! the queue and have the others refused. What a call is, and its end, are the business of `server`.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};

use rx_proto::fair::Owner;

/// The decision about a new call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission<T> {
    /// It runs, and has a slot.
    Runs(T),
    /// It waits.
    Waits,
    /// It waits or is refused; this one is refused, which may be the new one.
    Refused(T),
}

#[derive(Debug)]
struct Calls<T> {
    running: usize,
    waiting: VecDeque<T>,
    /// The number of the turn in which one of its calls last got a slot.
    served: u64,
}

impl<T> Default for Calls<T> {
    fn default() -> Self {
        Self { running: 0, waiting: VecDeque::new(), served: 0 }
    }
}

/// The slots of a service; see the module.
#[derive(Debug)]
pub(super) struct Slots<T> {
    free: usize,
    max_waiting: usize,
    waiting: usize,
    turn: u64,
    /// Owners with a call that runs or waits: at most as many as there may be calls.
    owners: HashMap<Owner, Calls<T>>,
    /// Owners that wait: by their running calls, then by when they were last served.
    next: BTreeSet<(usize, u64, Owner)>,
    /// Owners that wait, by how many of their calls do.
    by_count: BTreeSet<(usize, Owner)>,
}

impl<T> Slots<T> {
    /// Makes slots: so many calls run at once, and so many wait.
    pub(super) fn new(max_running: usize, max_waiting: usize) -> Self {
        Self {
            free: max_running.max(1),
            max_waiting,
            waiting: 0,
            turn: 0,
            owners: HashMap::new(),
            next: BTreeSet::new(),
            by_count: BTreeSet::new(),
        }
    }

    /// A call of `owner` has come.
    pub(super) fn admit(&mut self, owner: Owner, call: T) -> Admission<T> {
        let calls = self.owners.entry(owner).or_default();
        if may_run(self.free, calls.running) {
            debug_assert!(calls.waiting.is_empty(), "whoever waits may not run");
            self.turn += 1;
            (calls.running, calls.served) = (calls.running + 1, self.turn);
            self.free -= 1;
            return Admission::Runs(call);
        }
        let mut refused = None;
        if self.waiting >= self.max_waiting {
            let count = calls.waiting.len();
            match self.by_count.last() {
                // An owner with as many as anybody gives way itself: who is there stays.
                Some(&(most, largest)) if most > count + 1 => {
                    refused = self.take(largest, VecDeque::pop_back)
                }
                _ => {
                    self.forget_if_idle(owner);
                    return Admission::Refused(call);
                }
            }
        }
        self.unlist(owner);
        self.owners.entry(owner).or_default().waiting.push_back(call);
        self.waiting += 1;
        self.list(owner);
        refused.map_or(Admission::Waits, Admission::Refused)
    }

    /// A running call of `owner` has ended.
    pub(super) fn release(&mut self, owner: Owner) {
        let Entry::Occupied(mut entry) = self.owners.entry(owner) else { return };
        if entry.get().waiting.is_empty() {
            // Such an owner is in no list. They are most, so this is short.
            entry.get_mut().running -= 1;
            if entry.get().running == 0 {
                entry.remove();
            }
        } else {
            self.unlist(owner);
            if let Some(calls) = self.owners.get_mut(&owner) {
                calls.running -= 1;
            }
            self.list(owner);
        }
        self.free += 1;
    }

    /// The next waiting call that may run now; it has a slot. To be asked until there is none.
    pub(super) fn next(&mut self) -> Option<(Owner, T)> {
        let &(running, _, owner) = self.next.first()?;
        if !may_run(self.free, running) {
            return None;
        }
        let call = self.take(owner, VecDeque::pop_front)?;
        self.unlist(owner);
        if let Some(calls) = self.owners.get_mut(&owner) {
            self.turn += 1;
            (calls.running, calls.served) = (calls.running + 1, self.turn);
            self.free -= 1;
        }
        self.list(owner);
        Some((owner, call))
    }

    /// The number of calls that run or wait.
    pub(super) fn calls(&self) -> usize {
        self.waiting + self.owners.values().map(|calls| calls.running).sum::<usize>()
    }

    /// Takes out all that wait.
    pub(super) fn drain(&mut self) -> Vec<T> {
        (self.waiting, self.next, self.by_count) = (0, BTreeSet::new(), BTreeSet::new());
        let waiting = self.owners.values_mut().flat_map(|calls| calls.waiting.drain(..)).collect();
        self.owners.retain(|_, calls| calls.running > 0);
        waiting
    }

    /// Takes out a waiting call of an owner, who is not forgotten even if it was the last.
    fn take(&mut self, owner: Owner, which: impl FnOnce(&mut VecDeque<T>) -> Option<T>) -> Option<T> {
        self.unlist(owner);
        let call = self.owners.get_mut(&owner).and_then(|calls| which(&mut calls.waiting));
        self.waiting -= usize::from(call.is_some());
        self.list(owner);
        call
    }

    fn unlist(&mut self, owner: Owner) {
        if let Some(calls) = self.owners.get(&owner) {
            self.next.remove(&(calls.running, calls.served, owner));
            self.by_count.remove(&(calls.waiting.len(), owner));
        }
    }

    fn list(&mut self, owner: Owner) {
        if let Some(calls) = self.owners.get(&owner).filter(|calls| !calls.waiting.is_empty()) {
            self.next.insert((calls.running, calls.served, owner));
            self.by_count.insert((calls.waiting.len(), owner));
        }
    }

    fn forget_if_idle(&mut self, owner: Owner) {
        if self.owners.get(&owner).is_some_and(|calls| calls.running == 0 && calls.waiting.is_empty()) {
            self.owners.remove(&owner);
        }
    }
}

/// True if an owner with so many running calls may have another: while it would leave others as many slots as it had.
const fn may_run(free: usize, running: usize) -> bool {
    free > 0 && running <= free
}

#[cfg(test)]
mod tests {
    use super::*;
    use rx_proto::fair::Owners;

    const LIMIT: usize = 100;

    fn owner(n: u8) -> Owner {
        Owners::new([7, 7]).owner(None, [10, 0, 0, n].into())
    }

    fn refused(admission: Admission<i32>) -> Option<i32> {
        match admission {
            Admission::Refused(call) => Some(call),
            Admission::Runs(_) | Admission::Waits => None,
        }
    }

    #[test]
    fn nobody_fills_the_queue_against_others() {
        let mut slots = Slots::new(1, LIMIT);
        assert_eq!(slots.admit(owner(9), -1), Admission::Runs(-1));
        let newest: Vec<i32> = (0..500).filter_map(|i| refused(slots.admit(owner(1), i))).collect();
        assert_eq!(newest, (100..500).collect::<Vec<_>>(), "the newest are refused");
        assert_eq!(slots.admit(owner(2), 1000), Admission::Refused(99), "another's call makes the newest go");
        slots.release(owner(9));
        let mut order = Vec::new();
        for _ in 0..3 {
            let (owner, call) = slots.next().unwrap();
            assert_eq!(slots.next(), None, "there is one slot");
            slots.release(owner);
            order.push(call);
        }
        assert!(order[..2].contains(&1000), "a quiet owner waits for one call of another: {order:?}");
        // Two owners with half the queue each: who is there stays.
        assert_eq!(slots.admit(owner(9), -1), Admission::Runs(-1));
        for i in 0..60 {
            slots.admit(owner(2), 2000 + i);
        }
        let shares = [1, 2].map(|n| slots.owners[&owner(n)].waiting.len());
        assert_eq!(shares.iter().sum::<usize>(), LIMIT);
        assert!(shares[0].abs_diff(shares[1]) <= 1, "{shares:?}");
        assert_eq!(slots.admit(owner(2), 3000), Admission::Refused(3000));
        assert_eq!(slots.drain().len(), LIMIT);
        assert_eq!(slots.next(), None);
        slots.release(owner(9));
        assert!(slots.owners.is_empty() && slots.by_count.is_empty(), "{slots:?}");
    }

    #[test]
    fn an_owner_leaves_others_as_many_places_as_it_has() {
        let mut slots = Slots::new(1024, 4096);
        let mut running = |n: u8| {
            let admitted = (0..2000).filter(|i| matches!(slots.admit(owner(n), *i), Admission::Runs(_)));
            admitted.count()
        };
        assert_eq!(running(1), 513);
        assert_eq!(running(2), 256);
        assert_eq!(running(3), 128);
        for n in 4..8 {
            assert!(running(n) > 0, "whoever comes next finds a slot");
        }
    }

    #[test]
    fn owners_take_turns_however_many_calls_they_have() {
        let mut slots = Slots::new(1, 2000);
        assert_eq!(slots.admit(owner(9), 9), Admission::Runs(9));
        for i in 0..1000 {
            assert_eq!(slots.admit(owner(1), 1), Admission::Waits);
            if i < 100 {
                assert_eq!(slots.admit(owner(2), 2), Admission::Waits);
            }
        }
        slots.release(owner(9));
        let first = (0..200).map(|_| {
            let (owner, call) = slots.next().unwrap();
            slots.release(owner);
            call
        });
        let of_second = first.filter(|&n| n == 2).count();
        assert!((98..=100).contains(&of_second), "{of_second}");
    }

    #[test]
    fn who_may_run_again_does_as_soon_as_its_own_call_ends() {
        let mut slots = Slots::new(8, 100);
        let running = (0..20).filter(|i| matches!(slots.admit(owner(1), *i), Admission::Runs(_))).count();
        assert_eq!((running, slots.next()), (5, None));
        slots.release(owner(1));
        assert_eq!(slots.next(), Some((owner(1), 5)));
        assert_eq!(slots.next(), None);
        // The slots of another that are free let it have more.
        assert_eq!(slots.admit(owner(2), 100), Admission::Runs(100));
        slots.release(owner(1));
        slots.release(owner(1));
        slots.release(owner(2));
        let next: Vec<_> = std::iter::from_fn(|| slots.next()).collect();
        assert_eq!(next, [(owner(1), 6), (owner(1), 7)]);
    }
}
