//! A part of an endpoint that one thread at a time works on: the protocol's state for some of the peers, who waits for it,
//! and what has come and is not worked through. All packets of one path go to one shard. Who calls when is in `driver`,
//! how things are sent in `transmit`.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use rx_proto::debug::DebugStats;
use rx_proto::endpoint::{CallHandle, ConnectionHandle, Endpoint, Event};
use rx_proto::ids::{Epoch, SecurityIndex, SecurityLevel, ServiceId};
use rx_proto::time::Instant;
use rx_proto::totals::Total;
use tokio::sync::oneshot;

use crate::driver::transmit::TxBuffer;
use crate::socket::Datagram;

/// Addresses of ours that are remembered for answers, by peer; beyond it all are forgotten and learnt anew. The price of
/// forgetting is that the kernel chooses the address of a packet or two.
const MAX_LOCAL_IPS: usize = 65_536;

/// The shard.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) index: usize,
    pub(crate) queue: Mutex<Queue>,
    state: Mutex<State>,
    /// The lock of the thread that sends, so that packets leave in the order in which the protocol made them. Taken before
    /// `state`.
    pub(crate) tx: Mutex<TxBuffer>,
    /// Somebody has something to send; see `transmit`.
    pub(crate) tx_wanted: AtomicBool,
    /// Several callers were woken at once, and what they send waits until all have had their turn; see `transmit`.
    pub(crate) is_gathering: AtomicBool,
    /// The times, in nanoseconds, when the worker and the receiving thread will look at the time by themselves; 0 while they
    /// are awake, as they look before they sleep.
    sleeping_until: [AtomicU64; 2],
}

/// A thread that lets time pass for a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The shard's own.
    Worker,
    /// The port's, when it works through what it has received.
    Receiver,
}

/// The datagrams that have come and are not worked through.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) datagrams: Vec<Queued>,
    /// Memory that they hold.
    pub(crate) bytes: u64,
    /// Payload that has come in here and has not been worked through, even if a thread has taken it meanwhile.
    pub(crate) unworked: u64,
    /// The worker found nothing and waits: a thread that puts something in has to wake it, or may do its work.
    pub(crate) is_idle: bool,
}

/// A delivery.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) datagram: Datagram,
    /// Another shard sent it here.
    pub(crate) forwarded: bool,
}

/// The state behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) endpoint: Endpoint,
    /// In order, as the channels are: what ends all of them ends them in the same order each time.
    calls: BTreeMap<CallHandle, Slot>,
    channel_waiters: BTreeMap<ConnectionHandle, Vec<Waker>>,
    /// The tasks that wait for the statistics of a peer.
    curious: HashMap<SocketAddr, Vec<oneshot::Sender<DebugStats>>>,
    /// The address that each peer sends to, to answer from, on a port of all addresses.
    local_ips: Option<HashMap<SocketAddr, IpAddr>>,
    /// Wakers that are not needed any more. Dropping one may drop a task, hence a call, which takes this state's lock: that
    /// has to wait until it is let go.
    spent: Vec<Waker>,
    pub(crate) is_closed: bool,
    /// The bytes that waited in the kernel, and when that was looked at.
    pub(crate) queued_in_kernel: u64,
    pub(crate) looked_at: Instant,
    /// The call whose reader will be woken when there is more to read, and the deliveries that it has waited for.
    held: Option<(CallHandle, u32)>,
    /// The port rests after the last delivery.
    rests: bool,
}

/// Further deliveries, a [`crate::REST`] apart, that the reader of a lone stream waits for: a task that is woken for each of them costs as
/// much as the port.
const HELD_DELIVERIES: u32 = 2;

/// The task that waits for a call. One task at a time has it.
#[derive(Debug, Default)]
struct Slot {
    waker: Option<Waker>,
    is_client: bool,
    /// The last write was told to wait.
    write_blocked: bool,
}

/// The work to be done after the lock is let go.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) wakers: Vec<Waker>,
    /// The number of calls that get the whole reply of a call that they have made, and may make the next one.
    pub(crate) callers: usize,
    pub(crate) incoming: Vec<Incoming>,
    pub(crate) answers: Vec<(oneshot::Sender<DebugStats>, DebugStats)>,
    /// The wakers that are only dropped.
    _spent: Vec<Waker>,
}

/// A call that a client has begun.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) handle: CallHandle,
    pub(crate) service: ServiceId,
    pub(crate) peer: SocketAddr,
    pub(crate) epoch: Epoch,
    pub(crate) identity: Option<String>,
    pub(crate) class: SecurityIndex,
    pub(crate) level: SecurityLevel,
}

impl Shard {
    pub(crate) fn new(index: usize, endpoint: Endpoint, is_wildcard: bool) -> Self {
        Self {
            index,
            queue: Mutex::default(),
            state: Mutex::new(State {
                endpoint,
                calls: BTreeMap::new(),
                channel_waiters: BTreeMap::new(),
                curious: HashMap::new(),
                local_ips: is_wildcard.then(HashMap::new),
                spent: Vec::new(),
                is_closed: false,
                queued_in_kernel: 0,
                looked_at: Instant::ORIGIN,
                held: None,
                rests: false,
            }),
            tx: Mutex::default(),
            tx_wanted: AtomicBool::new(false),
            is_gathering: AtomicBool::new(false),
            sleeping_until: [AtomicU64::new(0), AtomicU64::new(u64::MAX)],
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // The protocol does not panic on what peers send; should it after all, the other calls go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this thread is awake, and will look at the deadline before it sleeps again.
    pub(crate) fn note_awake(&self, clock: Clock) {
        self.sleeping_until[clock as usize].store(0, Ordering::Relaxed);
    }

    /// Notes that this thread sleeps until the protocol's deadline, which is returned. As this and [`Self::wants_earlier`]
    /// are ordered by the state's lock, either the thread has seen a deadline, or the thread that sets it sees when the
    /// other wakes.
    pub(crate) fn note_asleep(&self, clock: Clock, state: &State) -> Option<Instant> {
        let deadline = state.endpoint.poll_timeout();
        self.sleeping_until[clock as usize].store(nanos(deadline), Ordering::Relaxed);
        deadline
    }

    /// The receiving thread leaves time to the worker, which it is about to wake or has found awake.
    pub(crate) fn leave_to_worker(&self) {
        self.sleeping_until[Clock::Receiver as usize].store(u64::MAX, Ordering::Relaxed);
    }

    /// True if the worker has to be woken, since both threads sleep for longer than the protocol allows. Says so once.
    pub(crate) fn wants_earlier(&self, state: &State) -> bool {
        let deadline = nanos(state.endpoint.poll_timeout());
        let is_earlier = self.sleeping_until.iter().all(|until| deadline < until.load(Ordering::Relaxed));
        if is_earlier {
            self.sleeping_until[Clock::Worker as usize].store(deadline, Ordering::Relaxed);
        }
        is_earlier
    }
}

fn nanos(deadline: Option<Instant>) -> u64 {
    deadline.map_or(u64::MAX, Instant::as_nanos)
}

impl Queue {
    /// Puts a delivery in, if there is room: the queues of all shards hold no more than the limit.
    pub(crate) fn push(&mut self, queued: Queued, all: &Total, limit_bytes: usize) -> bool {
        let bytes = queued.datagram.held_bytes() as u64;
        let fits = all.take(bytes, limit_bytes as u64);
        if fits {
            self.bytes += bytes;
            self.unworked += queued.datagram.data.len() as u64;
            self.datagrams.push(queued);
        }
        fits
    }

    /// Notes that so many bytes of payload have been handled, perhaps without having been in here. Returns how many are
    /// left.
    pub(crate) fn take_worked(&mut self, payload: u64) -> u64 {
        self.unworked = self.unworked.saturating_sub(payload);
        self.unworked
    }

    /// Exchanges what is there for an empty vector.
    pub(crate) fn take(&mut self, into: &mut Vec<Queued>, all: &Total) {
        mem::swap(&mut self.datagrams, into);
        all.give_back(mem::take(&mut self.bytes));
    }
}

impl State {
    /// A call begins to be used.
    pub(crate) fn add_call(&mut self, call: CallHandle, is_client: bool) {
        self.calls.insert(call, Slot { is_client, ..Slot::default() });
    }

    /// A call is let go.
    pub(crate) fn remove_call(&mut self, call: CallHandle) {
        self.spent.extend(self.calls.remove(&call).and_then(|slot| slot.waker));
    }

    /// All calls in use.
    pub(crate) fn calls(&self) -> Vec<CallHandle> {
        self.calls.keys().copied().collect()
    }

    /// Wakes this task when something happens to the call.
    pub(crate) fn wait_for_call(&mut self, call: CallHandle, waker: &Waker) {
        if let Some(slot) = self.calls.get_mut(&call)
            && !slot.waker.as_ref().is_some_and(|w| w.will_wake(waker))
        {
            self.spent.extend(slot.waker.replace(waker.clone()));
        }
    }

    /// Wakes this task when a channel of the connection may be free.
    pub(crate) fn wait_for_channel(&mut self, connection: ConnectionHandle, waker: &Waker) {
        let waiters = self.channel_waiters.entry(connection).or_default();
        if !waiters.iter().any(|w| w.will_wake(waker)) {
            waiters.push(waker.clone());
        }
    }

    /// Asks a peer for its statistics, for who waits at the other end of this. Asked or not, that ends without them in time.
    pub(crate) fn ask_statistics(&mut self, peer: SocketAddr, answer: oneshot::Sender<DebugStats>) {
        self.curious.retain(|_, waiting| {
            waiting.retain(|answer| !answer.is_closed());
            !waiting.is_empty()
        });
        if self.endpoint.ask_statistics(peer) {
            self.curious.entry(peer).or_default().push(answer);
        }
    }

    /// A connection is let go.
    pub(crate) fn remove_connection(&mut self, connection: ConnectionHandle) {
        self.spent.extend(self.channel_waiters.remove(&connection).unwrap_or_default());
    }

    pub(crate) fn is_write_blocked(&self, call: CallHandle) -> bool {
        self.calls.get(&call).is_some_and(|s| s.write_blocked)
    }

    pub(crate) fn set_write_blocked(&mut self, call: CallHandle, blocked: bool) {
        if let Some(slot) = self.calls.get_mut(&call) {
            slot.write_blocked = blocked;
        }
    }

    /// Returns the wakers of all who wait for anything, to tell them that the endpoint is closed.
    pub(crate) fn take_all_wakers(&mut self) -> Vec<Waker> {
        let calls = self.calls.values_mut().filter_map(|s| s.waker.take());
        calls.chain(mem::take(&mut self.channel_waiters).into_values().flatten()).collect()
    }

    /// Learns which address of ours a peer sends to.
    pub(crate) fn note_local_ip(&mut self, datagram: &Datagram) {
        let (Some(ips), Some(to)) = (&mut self.local_ips, datagram.to) else { return };
        if ips.len() >= MAX_LOCAL_IPS && !ips.contains_key(&datagram.from) {
            ips.clear();
        }
        ips.insert(datagram.from, to);
    }

    /// The address to send from to this peer; `None` lets the kernel choose.
    pub(crate) fn local_ip(&self, peer: SocketAddr) -> Option<IpAddr> {
        self.local_ips.as_ref()?.get(&peer).copied()
    }

    /// Notes a delivery. If the port rests after it, another one follows in any case, and the reader of the only stream need not be woken yet.
    pub(crate) fn note_delivery(&mut self, rests: bool) {
        self.rests = rests;
        if let Some((_, deliveries)) = &mut self.held {
            *deliveries += 1;
        }
    }

    /// Turns the protocol's events into what is to be done.
    pub(crate) fn take_outcome(&mut self) -> Outcome {
        let mut outcome = Outcome { _spent: mem::take(&mut self.spent), ..Outcome::default() };
        if let Some((call, deliveries)) = self.held
            && (!self.rests || deliveries >= HELD_DELIVERIES)
        {
            self.held = None;
            outcome.wakers.extend(self.waker_of(call, false));
        }
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Incoming(call) => outcome.incoming.extend(self.accept(call)),
                Event::Readable(call)
                    if self.rests
                        && self.held.is_none_or(|(held, _)| held == call)
                        && !self.endpoint.has_come_whole(call) =>
                {
                    self.held.get_or_insert((call, 0));
                }
                Event::Readable(call) => {
                    let waker = self.waker_of(call, false);
                    let is_caller = waker.is_some()
                        && self.calls.get(&call).is_some_and(|slot| slot.is_client)
                        && self.endpoint.has_come_whole(call);
                    outcome.callers += usize::from(is_caller);
                    outcome.wakers.extend(waker);
                }
                Event::Writable(call) | Event::Closed(call, _) => {
                    outcome.wakers.extend(self.waker_of(call, true));
                }
                Event::ChannelFree(connection) => {
                    outcome.wakers.extend(self.channel_waiters.remove(&connection).unwrap_or_default());
                }
            }
        }
        while let Some((peer, stats)) = self.endpoint.poll_answer() {
            let waiting = self.curious.remove(&peer).unwrap_or_default();
            outcome.answers.extend(waiting.into_iter().map(|answer| (answer, stats)));
        }
        outcome
    }

    fn waker_of(&mut self, call: CallHandle, may_write: bool) -> Option<Waker> {
        let slot = self.calls.get_mut(&call)?;
        slot.write_blocked &= !may_write;
        slot.waker.take()
    }

    fn accept(&mut self, handle: CallHandle) -> Option<Incoming> {
        let connection = handle.connection();
        let service = self.endpoint.service(connection)?;
        let peer = self.endpoint.path(connection)?.peer();
        let epoch = self.endpoint.epoch_of(connection)?;
        let identity = self.endpoint.identity(connection).map(str::to_owned);
        let class = self.endpoint.security_index(connection)?;
        let level = self.endpoint.security_level(connection)?;
        self.add_call(handle, false);
        Some(Incoming { handle, service, peer, epoch, identity, class, level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue is limited by the memory that waiting datagrams hold, not by the bytes in them.
    #[test]
    fn a_full_queue_refuses() {
        let datagram = |bytes: usize| Datagram {
            from: ([127, 0, 0, 1], 7000).into(),
            to: None,
            segment_size: bytes,
            data: vec![0; bytes].into(),
        };
        let (mut queue, mut other, all) = (Queue::default(), Queue::default(), Total::default());
        let limit = 3 * 64 * 1024;
        let queued = |bytes| Queued { datagram: datagram(bytes), forwarded: false };
        let mut push = |bytes| queue.push(queued(bytes), &all, limit);
        assert!(push(10_000), "which holds a receive buffer of 64 KiB");
        assert!(push(60_000));
        assert!(push(100));
        assert!(!push(10_000));
        assert!(push(1000));
        assert!(!other.push(queued(10_000), &all, limit), "what another shard has counts");
        let mut taken = Vec::new();
        queue.take(&mut taken, &all);
        assert_eq!((taken.len(), queue.bytes, queue.datagrams.len()), (4, 0, 0));
        assert!(other.push(queued(10_000), &all, limit));
    }
}
