//! The driver that runs an endpoint: it brings datagrams to the shard of their path, lets time pass, and hands on what
//! comes of it. The threads that call it belong to the port; how things are sent is in `driver/transmit.rs`.
//!
//! ```text
//!   receiving thread        worker of a shard         application's threads
//!      deliver()                 run()                     with()
//!         │  queue                 │                         │
//!         └──────────▶ handle: lock state, packets and time, events ──▶ wakers, handlers
//!                                  └──▶ transmit ◀───────────┘
//! ```

mod route;
pub(crate) mod transmit;

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use rx_proto::abort::AbortCode;
use rx_proto::endpoint::Usage;
use rx_proto::fair::Owners;
use rx_proto::ids::{Epoch, ServiceId};
use rx_proto::time::Instant;
use rx_proto::totals::Total;
use tokio::sync::watch;

use crate::endpoint::Handle;
use crate::metrics::{Counters, Meters, Metrics, Publisher, Snapshot, add};
use crate::runtime::{Driven, Next, Port, Runtime};
use crate::server::ServiceEntry;
use crate::shard::{Clock, Outcome, Queued, Shard, State};
use crate::socket::{Datagram, IcmpError, IcmpErrorKind};
use route::Registry;

/// Deliveries worked through under one lock, before readers are woken and ACKs go out: with bundles of 16, 256 packets or
/// about 60 µs.
const DELIVERIES_PER_LOCK: usize = 16;

/// The time between two questions to the kernel about how much waits there: each takes a system call of 0.3 µs.
const LOOK_AT_KERNEL: Duration = Duration::from_millis(1);
/// The bytes that the kernel counts for payload in single packets: 2304 bytes for 1472.
const KERNEL_COUNT: (u64, u64) = (2304, 1472);

/// The driver of one endpoint.
pub(crate) struct Driver {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) port: Arc<dyn Port>,
    pub(crate) shards: Vec<Shard>,
    epochs: Vec<Epoch>,
    registry: Registry,
    pub(crate) services: RwLock<HashMap<ServiceId, Arc<ServiceEntry>>>,
    queue_bytes: usize,
    /// The bytes that the queues of all shards hold.
    queued: Total,
    pub(crate) owners: Owners,
    pub(crate) counters: Counters,
    pub(crate) meters: Meters,
    publisher: Mutex<Publisher>,
    pub(crate) me: Weak<Self>,
    pub(crate) owner: OnceLock<Weak<Handle>>,
    /// Closed with the driver. The last field, so that the port has gone before.
    pub(crate) gone: watch::Sender<()>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("port", &self.port).field("shards", &self.shards.len()).finish()
    }
}

impl Driver {
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        port: Arc<dyn Port>,
        endpoints: Vec<rx_proto::endpoint::Endpoint>,
        queue_bytes: usize,
        owners: Owners,
    ) -> Arc<Self> {
        let is_wildcard = port.local_addr().ip().is_unspecified();
        Arc::new_cyclic(|me| Self {
            epochs: endpoints.iter().map(rx_proto::endpoint::Endpoint::epoch).collect(),
            shards: endpoints
                .into_iter()
                .enumerate()
                .map(|(index, endpoint)| Shard::new(index, endpoint, is_wildcard))
                .collect(),
            runtime,
            port,
            registry: Registry::default(),
            services: RwLock::default(),
            queue_bytes,
            queued: Total::default(),
            owners,
            counters: Counters::default(),
            meters: Meters::default(),
            publisher: Mutex::new(Publisher::new()),
            me: me.clone(),
            owner: OnceLock::new(),
            gone: watch::Sender::new(()),
        })
    }

    /// The shard of a peer's path.
    pub(crate) fn shard_of(&self, peer: SocketAddr) -> &Shard {
        &self.shards[route::shard_of(peer.ip(), self.shards.len())]
    }

    /// Changes a shard's state, and then wakes tasks, starts calls and sends, as the change requires.
    pub(crate) fn with<T>(&self, shard: &Shard, verb: impl FnOnce(&mut State, Instant) -> T) -> T {
        let result = self.change(shard, verb);
        self.transmit(shard);
        result
    }

    /// The same, but what is to be sent may go out a little later, with what others send that were woken at the same time.
    pub(crate) fn with_others<T>(&self, shard: &Shard, verb: impl FnOnce(&mut State, Instant) -> T) -> T {
        let result = self.change(shard, verb);
        self.transmit_with_others(shard);
        result
    }

    fn change<T>(&self, shard: &Shard, verb: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = shard.lock();
        // Read under the lock: time must not run backwards for the protocol.
        let now = self.runtime.now();
        let result = verb(&mut state, now);
        let outcome = state.take_outcome();
        drop(state);
        self.settle(shard, outcome, false);
        result
    }

    /// Wakes who waited and starts the calls that have come.
    fn settle(&self, shard: &Shard, outcome: Outcome, may_run_handlers: bool) {
        let Outcome { wakers, incoming, answers, .. } = outcome;
        for waker in wakers {
            waker.wake();
        }
        for (answer, stats) in answers {
            // Who has asked may have gone.
            let _ = answer.send(stats);
        }
        for incoming in incoming {
            self.dispatch(shard, incoming, may_run_handlers);
        }
    }

    /// Works through deliveries, and what is due by time. Returns true if there was a delivery, and that of a lone stream: with `may_rest`
    /// its reader may be woken later, if the port rests now.
    fn handle(&self, shard: &Shard, deliveries: &mut dyn Iterator<Item = Queued>, may_rest: bool) -> bool {
        let mut state = shard.lock();
        let now = self.runtime.now();
        let mut payload = 0;
        for Queued { datagram, forwarded } in deliveries {
            payload += datagram.data.len() as u64;
            if self.shards.len() > 1
                && let Some(elsewhere) = self.registry.elsewhere(&state, shard, &datagram, forwarded)
            {
                add(&self.counters.forwarded, 1);
                self.push(&self.shards[elsewhere], Queued { datagram, forwarded: true });
                continue;
            }
            state.note_local_ip(&datagram);
            for segment in datagram.segments() {
                state.endpoint.handle_datagram(now, datagram.from, segment);
            }
        }
        if state.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            state.endpoint.handle_timeout(now);
        }
        self.note_backlog(shard, &mut state, now, payload);
        let rests = may_rest && payload > 0 && state.endpoint.is_lone_stream(now);
        state.note_delivery(rests);
        let outcome = state.take_outcome();
        drop(state);
        let gathers = outcome.callers > 1 && self.begin_gathering(shard);
        // What the calls that have come are answered at once goes out together, as one bundle where it can.
        let together = (outcome.incoming.len() > 1).then(|| shard.tx.try_lock());
        self.settle(shard, outcome, true);
        drop(together);
        if gathers {
            self.end_gathering_after_others(shard);
        }
        self.transmit(shard);
        rests
    }

    /// Tells the protocol how much waits to be worked through, after `payload` bytes have been.
    fn note_backlog(&self, shard: &Shard, state: &mut State, now: Instant, payload: u64) {
        if now.since(state.looked_at) >= LOOK_AT_KERNEL {
            state.looked_at = now;
            state.queued_in_kernel = self.port.queued_bytes() / self.shards.len() as u64;
        }
        let here = shard.lock_queue().take_worked(payload);
        let waiting = state.queued_in_kernel + here * KERNEL_COUNT.0 / KERNEL_COUNT.1;
        state.endpoint.handle_backlog(now, waiting);
    }

    /// Puts a delivery into a shard's queue and sees to it that its worker runs.
    fn push(&self, shard: &Shard, queued: Queued) {
        let mut queue = shard.lock_queue();
        if !queue.push(queued, &self.queued, self.queue_bytes) {
            add(&self.counters.queue_dropped, 1);
        }
        let was_idle = mem::take(&mut queue.is_idle);
        drop(queue);
        if was_idle {
            self.wake(shard);
        }
    }

    fn wake(&self, shard: &Shard) {
        add(&self.counters.worker_wakes, 1);
        self.port.wake(shard.index);
    }

    /// Counters.
    pub(crate) fn metrics(&self) -> Metrics {
        self.counters.snapshot(self.port.metrics())
    }

    /// All counters and what is held.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut sum = Snapshot { metrics: self.metrics(), ..Snapshot::default() };
        for shard in &self.shards {
            let state = shard.lock();
            sum.stats.add(state.endpoint.stats());
            sum.add_usage(state.endpoint.usage());
        }
        sum
    }

    /// Publishes what has changed since the last time. An endpoint that is shut down holds nothing.
    pub(crate) fn publish_metrics(&self) {
        let mut publisher = self.publisher.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = self.snapshot();
        if self.is_shut_down() {
            now.usage = Usage::default();
            (now.metrics.port.receive_buffer_bytes, now.metrics.port.queued_bytes) = (0, 0);
        }
        publisher.publish(now);
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_closed)
    }

    /// Ends everything: calls are aborted, waiting callers are told, the threads end.
    pub(crate) fn shut_down(&self) {
        for shard in &self.shards {
            let mut state = shard.lock();
            if mem::replace(&mut state.is_closed, true) {
                continue;
            }
            let now = self.runtime.now();
            for call in state.calls() {
                state.endpoint.abort(now, call, AbortCode::USER_ABORT);
            }
            state.endpoint.settle();
            let wakers = state.take_all_wakers();
            drop(state);
            for waker in wakers {
                waker.wake();
            }
            self.transmit(shard);
        }
        self.port.shut_down();
        let services = mem::take(&mut *self.services.write().unwrap_or_else(PoisonError::into_inner));
        for service in services.values() {
            service.clear();
        }
        self.publish_metrics();
    }
}

impl Driven for Driver {
    fn deliver(&self, datagrams: &mut dyn Iterator<Item = Datagram>, is_drained: bool) -> Next {
        let mut datagrams = datagrams.inspect(|datagram| {
            add(&self.counters.bundles_received, 1);
            add(&self.counters.bytes_received, datagram.data.len() as u64);
        });
        let [shard] = &self.shards[..] else {
            for datagram in &mut datagrams {
                let shard = &self.shards[route::first_shard(&self.epochs, &datagram)];
                self.push(shard, Queued { datagram, forwarded: false });
            }
            return Next::Wait(None);
        };
        // Waking a worker on another core takes longer (20 to 40 µs) than working through a delivery (0.2 µs a packet).
        // Only the receiving thread puts packets into this queue, so nothing overtakes.
        if is_drained && shard.lock_queue().is_idle {
            add(&self.counters.worked_inline, 1);
            shard.note_awake(Clock::Receiver);
            // It stays awake for the protocol's deadlines, which wait for less than the round trip varies.
            if self.handle(shard, &mut datagrams.map(|datagram| Queued { datagram, forwarded: false }), true)
            {
                return Next::Rest;
            }
            return Next::Wait(shard.note_asleep(Clock::Receiver, &shard.lock()));
        }
        shard.leave_to_worker();
        let mut queue = shard.lock_queue();
        for datagram in datagrams {
            if !queue.push(Queued { datagram, forwarded: false }, &self.queued, self.queue_bytes) {
                add(&self.counters.queue_dropped, 1);
            }
        }
        let was_idle = mem::take(&mut queue.is_idle);
        drop(queue);
        if was_idle {
            self.wake(shard);
        }
        Next::Wait(None)
    }

    fn report(&self, error: &IcmpError) {
        add(&self.counters.icmp_errors, 1);
        let quoted = error.sent_payload_prefix();
        let shard = &self.shards[route::shard_of_sent(&self.epochs, quoted, error.peer)];
        self.with(shard, |state, now| match error.kind {
            IcmpErrorKind::Unreachable { .. } => {
                state.endpoint.handle_unreachable(now, error.peer, quoted);
            }
            IcmpErrorKind::PacketTooBig { mtu } => {
                let headers = if error.peer.is_ipv4() { 20 + 8 } else { 40 + 8 };
                // 0 is an old router that does not say; the path's search finds out by itself.
                if let Some(len) = (mtu as usize).checked_sub(headers).filter(|len| *len > 0) {
                    state.endpoint.handle_packet_too_big(error.peer, len, quoted);
                }
            }
            IcmpErrorKind::Other { .. } => {}
        });
    }

    fn run(&self, index: usize) -> Option<Instant> {
        let shard = &self.shards[index];
        let mut work = Vec::new();
        loop {
            shard.note_awake(Clock::Worker);
            shard.lock_queue().take(&mut work, &self.queued);
            let mut work = work.drain(..).peekable();
            loop {
                self.handle(shard, &mut work.by_ref().take(DELIVERIES_PER_LOCK), false);
                if work.peek().is_none() {
                    break;
                }
            }
            drop(work);
            let state = shard.lock();
            if state.endpoint.poll_timeout().is_some_and(|at| at <= self.runtime.now()) {
                continue;
            }
            let mut queue = shard.lock_queue();
            if queue.datagrams.is_empty() {
                queue.is_idle = true;
                return shard.note_asleep(Clock::Worker, &state);
            }
        }
    }
}
