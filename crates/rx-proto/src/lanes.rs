//! The calls of a path that have something to send, by their owners: most paths have one, a host of many users one for
//! each. In a lane short calls go first, then each in its turn. Which lane is served is decided between all paths (see
//! `endpoint::egress`); here only which of them ask for it.

use crate::endpoint::ChannelRef;
use crate::fair::Owner;
use std::collections::VecDeque;

/// A call that has sent less than this is short and goes before the others.
const SHORT_CALL: u64 = 32 << 10;
/// What a lane may send before the others of its path come first again: a bundle.
const LANE_QUANTUM: i64 = 64 << 10;
/// Lanes of a path that ask to be served at the same time: each costs a look when the path may not send.
const ASKING: usize = 8;
/// Entries of calls that are no more, beside as many that are, before they are looked for.
const REMOVED_SPARE: usize = 32;

/// The calls of one owner on one path.
#[derive(Debug)]
struct Lane {
    owner: Owner,
    short: VecDeque<ChannelRef>,
    bulk: VecDeque<ChannelRef>,
    /// It stands in the endpoint's queue.
    asks: bool,
    deficit: i64,
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.short.is_empty() && self.bulk.is_empty()
    }
}

/// The lanes of a path, those to be served next in front. An empty one is kept if it is the only one, for its memory.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: VecDeque<Lane>,
    /// How many entries are of calls that have been taken out.
    removed: usize,
}

impl Lanes {
    /// True if no call has anything to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.iter().all(Lane::is_empty)
    }

    fn lane(&mut self, owner: Owner) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|l| l.owner == owner)
    }

    /// A call of this owner has something to send, having sent that many bytes.
    pub(crate) fn push(&mut self, owner: Owner, call: ChannelRef, sent: u64) {
        let lane = match self.lanes.iter().position(|l| l.owner == owner) {
            Some(i) => &mut self.lanes[i],
            None => {
                self.lanes.retain(|l| !l.is_empty() || l.asks);
                self.lanes.push_back(Lane {
                    owner,
                    short: VecDeque::new(),
                    bulk: VecDeque::new(),
                    asks: false,
                    deficit: LANE_QUANTUM,
                });
                let last = self.lanes.len() - 1;
                &mut self.lanes[last]
            }
        };
        if sent < SHORT_CALL { lane.short.push_back(call) } else { lane.bulk.push_back(call) }
    }

    /// The next call of this owner.
    pub(crate) fn pop(&mut self, owner: Owner) -> Option<ChannelRef> {
        let lane = self.lane(owner)?;
        lane.short.pop_front().or_else(|| lane.bulk.pop_front())
    }

    /// Puts back a call that could not send yet, at the head.
    pub(crate) fn unpop(&mut self, owner: Owner, call: ChannelRef, sent: u64) {
        if let Some(lane) = self.lane(owner) {
            if sent < SHORT_CALL { lane.short.push_front(call) } else { lane.bulk.push_front(call) }
        }
    }

    /// An owner that is now to be queued, as it has something to send and does not stand there.
    pub(crate) fn poll_asking(&mut self) -> Option<Owner> {
        let mut waiting = self.lanes.iter_mut().filter(|l| !l.is_empty()).take(ASKING);
        let lane = waiting.find(|l| !l.asks)?;
        lane.asks = true;
        Some(lane.owner)
    }

    /// An owner's turn has come. Returns whether it had asked.
    pub(crate) fn take_asking(&mut self, owner: Owner) -> bool {
        self.lane(owner).is_some_and(|l| std::mem::take(&mut l.asks))
    }

    /// A lane has sent `bytes`.
    pub(crate) fn handle_sent(&mut self, owner: Owner, bytes: usize) {
        let Some(i) = self.lanes.iter().position(|l| l.owner == owner) else { return };
        let lane = &mut self.lanes[i];
        lane.deficit -= bytes as i64;
        if self.lanes.len() > 1 && (self.lanes[i].deficit <= 0 || self.lanes[i].is_empty()) {
            let mut lane = self.lanes.remove(i).expect("it is there");
            if !lane.is_empty() {
                lane.deficit += LANE_QUANTUM;
                self.lanes.push_back(lane);
            }
        } else if self.lanes.len() == 1 {
            self.lanes[0].deficit = LANE_QUANTUM;
        }
    }

    /// A call that stands here is no more. Its entry stays, to be passed over, until there are many of such.
    pub(crate) const fn remove(&mut self) {
        self.removed += 1;
    }

    /// True if so many entries are of removed calls that [`Self::retain`] is worth its cost.
    pub(crate) fn wants_tidying(&self) -> bool {
        let entries: usize = self.lanes.iter().map(|l| l.short.len() + l.bulk.len()).sum();
        self.removed > REMOVED_SPARE && self.removed > entries / 2
    }

    /// Keeps the entries of calls that are still to be there.
    pub(crate) fn retain(&mut self, mut is_there: impl FnMut(&ChannelRef) -> bool) {
        for lane in &mut self.lanes {
            lane.short.retain(&mut is_there);
            lane.bulk.retain(&mut is_there);
        }
        self.removed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fair::Owners;
    use crate::ids::Channel;

    fn owner(n: u8) -> Owner {
        Owners::new([3, 3]).owner(None, [10, 0, 0, n].into())
    }

    const fn call(connection: usize) -> ChannelRef {
        ChannelRef { connection, channel: Channel::ALL[0] }
    }

    /// A host of many users: however many calls one has, lanes come round by bytes.
    #[test]
    fn users_of_one_host_get_the_same_bytes() {
        let mut lanes = Lanes::default();
        (0..100).for_each(|i| lanes.push(owner(1), call(i), 1 << 20));
        lanes.push(owner(2), call(100), 1 << 20);
        let mut sent = [0usize; 2];
        for _ in 0..1000 {
            // The path may send one bundle, then is full: whoever asks first has it.
            let next = lanes.poll_asking().expect("there is more");
            while lanes.poll_asking().is_some() {}
            let at = lanes.pop(next).expect("who asks has a call");
            let (user, bytes) = if next == owner(1) { (0, 64 << 10) } else { (1, 16 << 10) };
            sent[user] += bytes;
            lanes.push(next, at, 1 << 20);
            lanes.handle_sent(next, bytes);
            [1, 2].into_iter().for_each(|n| _ = lanes.take_asking(owner(n)));
        }
        assert!(sent[0].abs_diff(sent[1]) <= 4 * LANE_QUANTUM as usize, "{sent:?}");
    }

    #[test]
    fn few_of_many_users_ask_at_once_and_all_come_round() {
        let mut lanes = Lanes::default();
        (0..50).for_each(|n| lanes.push(owner(n), call(n.into()), 0));
        let mut served = std::collections::HashSet::new();
        while let Some(first) = lanes.poll_asking() {
            let asking = 1 + std::iter::from_fn(|| lanes.poll_asking()).count();
            assert!(asking <= ASKING);
            lanes.pop(first);
            assert!(lanes.take_asking(first) && served.insert(first));
            lanes.handle_sent(first, 100);
            (0..50).for_each(|n| _ = lanes.take_asking(owner(n)));
        }
        assert_eq!((served.len(), lanes.is_empty()), (50, true));
    }
}
