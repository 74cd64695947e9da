//! Turns between owners: a queue that gives each owner the same number of bytes (deficit round robin), and lets owners who
//! want less than their share go first (as fq_codel does, RFC 8290). This file also defines owners. The users of the queue
//! decide what they queue, and how much a turn costs.
//!
//! ```text
//!            push, with bytes left            its bytes used up
//!   resting ───────────────────────▶ sparse ───────────────────▶ busy ──┐ bytes used up: a quantum more,
//!    ▲ ▲ │  ◀─────────────────────── empty                       │ ▲ ▲──┘ and to the end
//!    │ │ └───── push, with none ─────────────────────────────────┼─┘
//!    │ └──────────────────────── empty when its turn comes ──────┘
//! ```
//! A resting owner keeps the bytes that it has not used, up to one quantum. So an owner may ask for its bytes at once, or little by
//! little, as a call does that waits for answers in between. An owner gains nothing by leaving and coming back, because it waits for
//! a turn among the busy owners for each quantum. A busy owner that begins something new becomes sparse again
//! ([`FairQueue::push_first`]), but so rarely that it gains little.

use crate::time::Instant;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

/// An owner who has been quiet for so long is new: what it wants then waits for nobody. Shorter than the pauses of someone who
/// writes a little now and then, whom a crowd so large that even this is above a share would otherwise hold up more and more.
/// Longer than a call on a short path pauses between windows; on a long one each pause may bring it what is given at once, and
/// no more than that in this time.
const QUIET: Duration = Duration::from_millis(25);
/// An owner who begins something new while more is queued than their share goes ahead all the same, but only so often.
/// Otherwise an owner who wants little again and again, and was held up once, would wait longer and longer. An owner of
/// many hosts gets so much more than their share.
const AHEAD: Duration = Duration::from_millis(80);
/// Owners remembered for having been active within [`QUIET`]; beyond it the one that stopped first is taken for quiet. One
/// costs about 100 bytes.
const MAX_RESTING: usize = 4096;

/// The owner of bytes: the user whom the security class has found, or else the peer's host. It is a hash of that with a secret of the
/// endpoint, so it needs no table that addresses could fill, and nobody can choose to be taken for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner(u64);

/// Makes [`Owner`]s.
#[derive(Clone, Copy, Debug)]
pub struct Owners {
    secret: [u64; 2],
}

impl Owners {
    /// Different secrets make different owners of the same names: compare only those of one.
    pub const fn new(secret: [u64; 2]) -> Self {
        Self { secret }
    }

    /// The owner of what a connection carries: all hosts of a user are one, and all ports of a host.
    pub fn owner(&self, identity: Option<&str>, address: IpAddr) -> Owner {
        // SipHash, with the secret as the head of what is hashed.
        let mut hasher = DefaultHasher::new();
        self.secret.hash(&mut hasher);
        match identity {
            Some(name) => (0u8, name).hash(&mut hasher),
            None => (1u8, address).hash(&mut hasher),
        }
        Owner(hasher.finish())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Resting,
    Sparse,
    Busy,
}

/// The things that one owner has queued.
#[derive(Debug)]
struct Flow<T> {
    items: VecDeque<T>,
    /// Bytes it may still have in this turn; negative after a turn that cost more.
    deficit: i64,
    place: Place,
    /// It has an entry in `resting`.
    is_listed: bool,
    /// The time when it last had something; never, if it has just come.
    used_at: Option<Instant>,
    /// The time when it last was let ahead.
    ahead_at: Option<Instant>,
}

/// The queue; see the module.
#[derive(Debug)]
pub struct FairQueue<T> {
    quantum: i64,
    fresh: i64,
    flows: HashMap<Owner, Flow<T>>,
    sparse: VecDeque<Owner>,
    busy: VecDeque<Owner>,
    /// Those that have left the lists lately, in the order of their leaving.
    resting: VecDeque<(Instant, Owner)>,
    len: usize,
}

impl<T> FairQueue<T> {
    /// A queue that gives `quantum` in each turn, and `fresh` at once to those who have been quiet for 25 ms. Nothing
    /// should cost more than a quantum, or turns go round several times for it.
    ///
    /// # Panics
    /// If either is 0.
    pub fn new(quantum: u32, fresh: u32) -> Self {
        assert!(quantum > 0 && fresh > 0, "a turn has to allow something");
        Self {
            quantum: quantum.into(),
            fresh: fresh.into(),
            flows: HashMap::new(),
            sparse: VecDeque::new(),
            busy: VecDeque::new(),
            resting: VecDeque::new(),
            len: 0,
        }
    }

    /// Sets the bytes that a turn is worth from now on.
    ///
    /// # Panics
    /// If that is 0.
    pub fn set_quantum(&mut self, quantum: u32) {
        assert!(quantum > 0, "a turn has to allow something");
        self.quantum = quantum.into();
    }

    /// The number of things that are queued.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if nothing is queued.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of owners that have something queued, or have had until lately.
    pub fn owners(&self) -> usize {
        self.sparse.len() + self.busy.len()
    }

    /// The number of things of this owner that are queued.
    pub fn len_of(&self, owner: Owner) -> usize {
        self.flows.get(&owner).map_or(0, |f| f.items.len())
    }

    /// Queues a thing with which an owner may begin something, behind the others of its owner.
    pub fn push(&mut self, now: Instant, owner: Owner, item: T) {
        self.add(owner, item, Some(now));
    }

    /// Queues a thing with which an owner begins something for certain: it goes ahead then even if it is busy, if it has not for 80 ms.
    pub fn push_first(&mut self, now: Instant, owner: Owner, item: T) {
        self.add(owner, item, Some(now));
        let Some(flow) = self.flows.get_mut(&owner).filter(|f| f.place == Place::Busy) else { return };
        if flow.ahead_at.is_none_or(|at| now.since(at) >= AHEAD) {
            (flow.deficit, flow.place, flow.ahead_at) = (self.fresh, Place::Sparse, Some(now));
            self.busy.retain(|busy| *busy != owner);
            self.sparse.push_back(owner);
        }
    }

    /// Queues a thing with which an owner goes on with what it began before. However long it has paused, that makes it no new
    /// owner: a host that gets no time to send is not a quiet one.
    pub fn push_more(&mut self, owner: Owner, item: T) {
        self.add(owner, item, None);
    }

    /// Queues a thing with which an owner begins something at a time, or goes on.
    fn add(&mut self, owner: Owner, item: T, begins: Option<Instant>) {
        let flow = self.flows.entry(owner).or_insert_with(|| Flow {
            items: VecDeque::new(),
            deficit: 0,
            place: Place::Resting,
            is_listed: false,
            used_at: None,
            ahead_at: None,
        });
        flow.items.push_back(item);
        self.len += 1;
        if flow.place != Place::Resting {
            return;
        }
        if begins.is_some_and(|now| flow.used_at.is_none_or(|at| now.since(at) >= QUIET)) {
            (flow.deficit, flow.ahead_at) = (self.fresh, begins);
        }
        if flow.deficit > 0 {
            flow.place = Place::Sparse;
            self.sparse.push_back(owner);
        } else {
            flow.place = Place::Busy;
            self.busy.push_back(owner);
        }
    }

    /// The next thing, and whose it is. It is taken out; what it costs is told by [`Self::charge`].
    pub fn pop(&mut self, now: Instant) -> Option<(Owner, T)> {
        self.forget_quiet(now);
        loop {
            let (list, is_sparse) = match self.sparse.is_empty() {
                true => (&mut self.busy, false),
                false => (&mut self.sparse, true),
            };
            let &owner = list.front()?;
            let flow = self.flows.get_mut(&owner).expect("an owner in a list has a flow");
            if flow.deficit > 0
                && let Some(item) = flow.items.pop_front()
            {
                self.len -= 1;
                return Some((owner, item));
            }
            list.pop_front();
            let is_used_up = flow.deficit <= 0;
            if is_used_up {
                flow.deficit += self.quantum;
            }
            if flow.items.is_empty() && !(is_sparse && is_used_up) {
                flow.place = Place::Resting;
                self.rest(now, owner);
                continue;
            }
            flow.place = Place::Busy;
            self.busy.push_back(owner);
        }
    }

    /// True if an owner is ahead of the others for now, as it was quiet.
    pub fn is_sparse(&self, owner: Owner) -> bool {
        self.flows.get(&owner).is_some_and(|f| f.place == Place::Sparse)
    }

    /// Puts back what [`Self::pop`] has just given, to be the next again.
    pub fn unpop(&mut self, owner: Owner, item: T) {
        let flow = self.flows.get_mut(&owner).expect("it was there a moment ago");
        flow.items.push_front(item);
        self.len += 1;
    }

    /// An owner had `bytes`.
    pub fn charge(&mut self, now: Instant, owner: Owner, bytes: u64) {
        if let Some(flow) = self.flows.get_mut(&owner) {
            flow.deficit -= i64::try_from(bytes).unwrap_or(i64::MAX / 2);
            flow.used_at = Some(now);
        }
    }

    fn rest(&mut self, now: Instant, owner: Owner) {
        let Some(flow) = self.flows.get_mut(&owner).filter(|f| !f.is_listed) else { return };
        flow.is_listed = true;
        self.resting.push_back((now, owner));
    }

    /// Forgets who has been quiet for long, or who went first if there are too many.
    fn forget_quiet(&mut self, now: Instant) {
        while let Some(&(since, owner)) = self.resting.front() {
            let is_full = self.resting.len() > MAX_RESTING;
            if !is_full && now.since(since) < QUIET {
                return;
            }
            self.resting.pop_front();
            let Some(flow) = self.flows.get_mut(&owner) else { continue };
            flow.is_listed = false;
            if flow.place != Place::Resting {
                continue; // comes again when it leaves
            }
            match flow.used_at.filter(|at| !is_full && now.since(*at) < QUIET) {
                Some(used_at) => self.rest(used_at, owner),
                None => _ = self.flows.remove(&owner),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    const QUANTUM: u32 = 64 << 10;

    impl FairQueue<i32> {
        fn take_newest(&mut self, owner: Owner) -> Option<i32> {
            self.len -= 1;
            self.flows.get_mut(&owner)?.items.pop_back()
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::ORIGIN + Duration::from_millis(10_000 + ms)
    }

    #[test]
    fn all_hosts_of_a_user_are_one_owner_and_all_ports_of_a_host() {
        let owners = Owners::new([1, 2]);
        let (here, there) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        assert_eq!(owners.owner(Some("alice"), here), owners.owner(Some("alice"), there));
        assert_ne!(owners.owner(Some("alice"), here), owners.owner(Some("bob"), here));
        assert_eq!(owners.owner(None, here), owners.owner(None, here));
        assert_ne!(owners.owner(None, here), owners.owner(None, there));
        assert_ne!(owners.owner(None, here), Owners::new([1, 3]).owner(None, here));
    }

    /// A call that is granted what it may have little by little, with a round trip between, waited for a turn of all the others
    /// each time but the first.
    #[test]
    fn who_was_quiet_waits_for_nobody_though_it_asks_little_by_little() {
        let mut queue = FairQueue::new(QUANTUM, 2 * QUANTUM);
        (1..200).for_each(|owner| queue.push(at(0), Owner(owner), 0));
        let crowd = |queue: &mut FairQueue<i32>| {
            let (owner, item) = queue.pop(at(0)).expect("the crowd always wants more");
            queue.charge(at(0), owner, 16_000);
            queue.push(at(0), owner, item);
            owner
        };
        (0..2000).for_each(|_| _ = crowd(&mut queue));
        for part in 0..8 {
            queue.push(at(1), Owner(0), 7);
            assert_eq!(queue.pop(at(1)), Some((Owner(0), 7)), "part {part}");
            queue.charge(at(1), Owner(0), u64::from(QUANTUM) / 4);
            (0..20).for_each(|_| assert_ne!(crowd(&mut queue), Owner(0)));
        }
        queue.push(at(1), Owner(0), 7);
        assert_ne!(crowd(&mut queue), Owner(0), "its first bytes are used up");
    }

    /// However many things an owner queues and however large they are, bytes are shared evenly.
    #[test]
    fn busy_owners_get_the_same_bytes() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut queue = FairQueue::new(QUANTUM, 2 * QUANTUM);
        let mut got = [0u64; 3];
        let sizes = [1500u64, 23_000, 64_000];
        for (i, count) in [250, 1, 7].into_iter().enumerate() {
            (0..count).for_each(|_| queue.push(at(0), Owner(i as u64), sizes[i]));
        }
        for step in 0..20_000 {
            let now = at(step / 100);
            let (owner, size) = queue.pop(now).expect("they are always queued again");
            let bytes = rng.random_range(size / 2..=size);
            queue.charge(now, owner, bytes);
            got[owner.0 as usize] += bytes;
            queue.push(now, owner, size);
        }
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        assert!(most - least <= 4 * u64::from(QUANTUM), "{got:?}");
    }

    /// Hosts that get time to send only now and then went ahead of busy owners, each time.
    #[test]
    fn who_goes_on_after_a_pause_is_not_new() {
        let mut queue = FairQueue::new(QUANTUM, 2 * QUANTUM);
        queue.push(at(0), Owner(1), 0);
        assert_eq!(queue.pop(at(0)), Some((Owner(1), 0)));
        queue.charge(at(0), Owner(1), 2 * u64::from(QUANTUM));
        queue.push(at(0), Owner(2), 0);
        assert_eq!(queue.pop(at(0)), Some((Owner(2), 0)));
        queue.charge(at(0), Owner(2), 2 * u64::from(QUANTUM));
        queue.push(at(0), Owner(2), 0);
        queue.push_more(Owner(1), 0);
        assert!(!queue.is_sparse(Owner(1)), "it goes on");
        queue.push(at(1000), Owner(3), 0);
        assert!(queue.is_sparse(Owner(3)), "it begins");
        assert_eq!(queue.pop(at(1000)), Some((Owner(3), 0)));
    }

    #[test]
    fn who_was_quiet_waits_for_nobody() {
        let mut queue = FairQueue::new(QUANTUM, 2 * QUANTUM);
        for owner in 1..200 {
            queue.push(at(0), Owner(owner), 0);
        }
        for step in 0..2000 {
            let (owner, item) = queue.pop(at(0)).unwrap();
            queue.charge(at(0), owner, u64::from(QUANTUM) / 2);
            queue.push(at(0), owner, item);
            assert_ne!(owner, Owner(0), "in step {step}");
        }
        queue.push(at(1), Owner(0), 7);
        for part in 0..4 {
            assert_eq!(queue.pop(at(1)), Some((Owner(0), 7)), "part {part}");
            queue.charge(at(1), Owner(0), u64::from(QUANTUM) / 2);
            queue.push(at(1), Owner(0), 7);
        }
        assert_ne!(queue.pop(at(1)).unwrap().0, Owner(0), "its first bytes are used up");
    }

    /// One that is busy is let ahead with what it begins anew, but not more often than every 80 ms, however often it begins.
    #[test]
    fn a_busy_owner_is_let_ahead_now_and_then() {
        let mut queue = FairQueue::new(QUANTUM, QUANTUM);
        let mut got = [0u64; 2];
        queue.push_first(at(0), Owner(1), 0);
        queue.push_first(at(0), Owner(0), 0);
        for ms in 0..8000 {
            let (owner, _) = queue.pop(at(ms)).expect("both always want more");
            queue.charge(at(ms), owner, u64::from(QUANTUM));
            got[owner.0 as usize] += u64::from(QUANTUM);
            match owner {
                Owner(0) => queue.push_first(at(ms), owner, 0),
                _ => queue.push_more(owner, 0),
            }
        }
        let more = got[0] - got[1];
        assert!((90..=110).contains(&(more / u64::from(QUANTUM))), "a hundred times in 8 s: {got:?}");
    }

    /// In a crowd whose shares are two fifths of what it asks for, one that asks for little at a time does not wait
    /// longer and longer: after each pause it is new.
    #[test]
    fn little_now_and_then_waits_at_most_a_turn_of_the_crowd() {
        const PROBE: Owner = Owner(0);
        let bytes_per_ms = 105_000;
        let mut queue = FairQueue::new(QUANTUM, 3 * QUANTUM);
        (1..=250).for_each(|owner| queue.push(at(0), Owner(owner), 36_000u64));
        // When each part of the probe's was queued: every 100 ms 108,000 bytes in three parts.
        let (mut asked, mut worst) = (VecDeque::new(), 0);
        let (mut bytes, mut next) = (0, 1000);
        while next < 31_000 {
            let now = bytes / bytes_per_ms;
            if now >= next {
                (0..3).for_each(|_| queue.push(at(now), PROBE, 36_000));
                asked.extend([next; 3]);
                next += 100;
            }
            let (owner, size) = queue.pop(at(now)).expect("the crowd always wants more");
            queue.charge(at(now), owner, size);
            bytes += size;
            if owner == PROBE {
                worst = worst.max(now - asked.pop_front().expect("it has asked"));
            } else {
                queue.push(at(now), owner, size);
            }
        }
        let turn = 250 * u64::from(QUANTUM) / bytes_per_ms;
        assert!(worst <= turn + 10, "{worst} ms, and a turn of all is {turn} ms");
    }

    /// One that comes and goes is first at most once for each turn of the others.
    #[test]
    fn coming_and_going_gains_nothing() {
        let mut queue = FairQueue::new(QUANTUM, 2 * QUANTUM);
        let mut got = [0u64; 2];
        queue.push(at(0), Owner(1), 0);
        queue.push(at(0), Owner(0), 0);
        for _ in 0..10_000 {
            let (owner, _) = queue.pop(at(0)).unwrap();
            got[owner.0 as usize] += 16_000;
            queue.charge(at(0), owner, 16_000);
            // The other's only thing is never there when the queue looks for more of it.
            queue.push(at(0), owner, 0);
            if owner == Owner(0) {
                assert_eq!(queue.take_newest(owner), Some(0));
                let (other, _) = queue.pop(at(0)).unwrap();
                got[other.0 as usize] += 16_000;
                queue.charge(at(0), other, 16_000);
                queue.push(at(0), other, 0);
                queue.push(at(0), owner, 0);
            }
        }
        assert!(got[0] <= got[1] + 4 * u64::from(QUANTUM), "{got:?}");
    }

    /// A spoofer of addresses costs a bounded amount of memory; what is queued is bounded by its users.
    #[test]
    fn owners_are_forgotten() {
        let mut queue = FairQueue::new(QUANTUM, 2 * QUANTUM);
        for owner in 0..50_000 {
            queue.push(at(0), Owner(owner), ());
            let (owner, ()) = queue.pop(at(0)).unwrap();
            queue.charge(at(0), owner, 100);
            assert_eq!(queue.pop(at(0)), None);
        }
        assert!(queue.flows.len() <= MAX_RESTING + 1, "{}", queue.flows.len());
        assert_eq!(queue.pop(at(2000)), None);
        assert_eq!((queue.flows.len(), queue.resting.len()), (0, 0));
    }
}
