//! The calls of a path that have something to send, by their owners: most paths have one, a host of many users one for
//! each. In a queue short calls go first, then each in its turn. Which queue is served is decided between all paths (see
//! `endpoint::egress`); here only which of them ask for it.

use crate::fair::Owner;
use crate::ids::ChannelRef;
use std::collections::VecDeque;

/// A call that has sent less than this is short and goes before the others.
const SHORT_CALL: u64 = 32 << 10;
/// The bytes that a queue may send before its path serves the other queues: a bundle.
const OWNER_QUANTUM: i64 = 64 << 10;
/// Queues of a path that ask to be served at the same time: each costs a look when the path may not send.
const ASKING: usize = 8;
/// Entries of calls that are no more, beside as many that are, before they are looked for.
const REMOVED_SPARE: usize = 32;

/// The calls of one owner on one path.
#[derive(Debug)]
struct OwnerQueue {
    owner: Owner,
    short: VecDeque<ChannelRef>,
    bulk: VecDeque<ChannelRef>,
    /// It stands in the endpoint's queue.
    asks: bool,
    deficit: i64,
}

impl OwnerQueue {
    fn is_empty(&self) -> bool {
        self.short.is_empty() && self.bulk.is_empty()
    }
}

/// The queues of a path, those to be served next in front. An empty one is kept if it is the only one, for its memory.
#[derive(Debug, Default)]
pub(crate) struct OwnerQueues {
    queues: VecDeque<OwnerQueue>,
    /// The number of entries of calls that have been taken out.
    removed: usize,
}

impl OwnerQueues {
    /// True if no call has anything to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(OwnerQueue::is_empty)
    }

    fn queue(&mut self, owner: Owner) -> Option<&mut OwnerQueue> {
        self.queues.iter_mut().find(|queue| queue.owner == owner)
    }

    /// A call of this owner has something to send, having sent that many bytes.
    pub(crate) fn push(&mut self, owner: Owner, call: ChannelRef, sent: u64) {
        let queue = match self.queues.iter().position(|queue| queue.owner == owner) {
            Some(i) => &mut self.queues[i],
            None => {
                self.queues.retain(|queue| !queue.is_empty() || queue.asks);
                self.queues.push_back(OwnerQueue {
                    owner,
                    short: VecDeque::new(),
                    bulk: VecDeque::new(),
                    asks: false,
                    deficit: OWNER_QUANTUM,
                });
                let last = self.queues.len() - 1;
                &mut self.queues[last]
            }
        };
        if sent < SHORT_CALL { queue.short.push_back(call) } else { queue.bulk.push_back(call) }
    }

    /// The next call of this owner.
    pub(crate) fn pop(&mut self, owner: Owner) -> Option<ChannelRef> {
        let queue = self.queue(owner)?;
        queue.short.pop_front().or_else(|| queue.bulk.pop_front())
    }

    /// Puts back a call that could not send yet, at the head.
    pub(crate) fn unpop(&mut self, owner: Owner, call: ChannelRef, sent: u64) {
        if let Some(queue) = self.queue(owner) {
            if sent < SHORT_CALL { queue.short.push_front(call) } else { queue.bulk.push_front(call) }
        }
    }

    /// An owner that is now to be queued, as it has something to send and does not stand there.
    pub(crate) fn poll_asking(&mut self) -> Option<Owner> {
        let mut waiting = self.queues.iter_mut().filter(|queue| !queue.is_empty()).take(ASKING);
        let queue = waiting.find(|queue| !queue.asks)?;
        queue.asks = true;
        Some(queue.owner)
    }

    /// An owner's turn has come. Returns whether it had asked.
    pub(crate) fn take_asking(&mut self, owner: Owner) -> bool {
        self.queue(owner).is_some_and(|queue| std::mem::take(&mut queue.asks))
    }

    /// A queue has sent `bytes`.
    pub(crate) fn handle_sent(&mut self, owner: Owner, bytes: usize) {
        let Some(i) = self.queues.iter().position(|queue| queue.owner == owner) else { return };
        let queue = &mut self.queues[i];
        queue.deficit -= bytes as i64;
        if self.queues.len() > 1 && (self.queues[i].deficit <= 0 || self.queues[i].is_empty()) {
            let mut queue = self.queues.remove(i).expect("it is there");
            if !queue.is_empty() {
                queue.deficit += OWNER_QUANTUM;
                self.queues.push_back(queue);
            }
        } else if self.queues.len() == 1 {
            self.queues[0].deficit = OWNER_QUANTUM;
        }
    }

    /// A call that stands here is no more. Its entry stays, to be passed over, until there are many of such.
    pub(crate) const fn remove(&mut self) {
        self.removed += 1;
    }

    /// True if so many entries are of removed calls that [`Self::retain`] is worth its cost.
    pub(crate) fn wants_tidying(&self) -> bool {
        let entries: usize = self.queues.iter().map(|queue| queue.short.len() + queue.bulk.len()).sum();
        self.removed > REMOVED_SPARE && self.removed > entries / 2
    }

    /// Keeps the entries of calls that are still to be there.
    pub(crate) fn retain(&mut self, mut is_there: impl FnMut(&ChannelRef) -> bool) {
        for queue in &mut self.queues {
            queue.short.retain(&mut is_there);
            queue.bulk.retain(&mut is_there);
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

    /// A host of many users: however many calls one has, queues come round by bytes.
    #[test]
    fn users_of_one_host_get_the_same_bytes() {
        let mut queues = OwnerQueues::default();
        (0..100).for_each(|i| queues.push(owner(1), call(i), 1 << 20));
        queues.push(owner(2), call(100), 1 << 20);
        let mut sent = [0usize; 2];
        for _ in 0..1000 {
            // The path may send one bundle, then is full: whoever asks first has it.
            let next = queues.poll_asking().expect("there is more");
            while queues.poll_asking().is_some() {}
            let at = queues.pop(next).expect("who asks has a call");
            let (user, bytes) = if next == owner(1) { (0, 64 << 10) } else { (1, 16 << 10) };
            sent[user] += bytes;
            queues.push(next, at, 1 << 20);
            queues.handle_sent(next, bytes);
            [1, 2].into_iter().for_each(|n| _ = queues.take_asking(owner(n)));
        }
        assert!(sent[0].abs_diff(sent[1]) <= 4 * OWNER_QUANTUM as usize, "{sent:?}");
    }

    #[test]
    fn few_of_many_users_ask_at_once_and_all_come_round() {
        let mut queues = OwnerQueues::default();
        (0..50).for_each(|n| queues.push(owner(n), call(n.into()), 0));
        let mut served = std::collections::HashSet::new();
        while let Some(first) = queues.poll_asking() {
            let asking = 1 + std::iter::from_fn(|| queues.poll_asking()).count();
            assert!(asking <= ASKING);
            queues.pop(first);
            assert!(queues.take_asking(first) && served.insert(first));
            queues.handle_sent(first, 100);
            (0..50).for_each(|n| _ = queues.take_asking(owner(n)));
        }
        assert_eq!((served.len(), queues.is_empty()), (50, true));
    }
}
