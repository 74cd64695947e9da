//! Limits on the data that all peers together have in flight to this host, and the share of each owner. The socket's receive
//! buffer is not a window: it only holds packets while no thread drains it. So the endpoint limits what it offers to peers
//! where their packets could fill the buffer. There are two cases:
//!
//! - The buffer is small, because it could not be forced (`Config::receive_buffer`). Then the packets that are offered and
//!   have not arrived stay below the size of the buffer and what is drained in [`DRAINED`].
//! - Packets wait for long before they are handled, whatever the size of the buffer (`handle_backlog`). All peers share the
//!   kernel's queue, so an owner who sends from many hosts would have most of it. The endpoint then offers as much as it
//!   handles in a round trip and a few milliseconds more. It offers more while the queue is short and somebody waits,
//!   because hosts without CPU take longer than a round trip.
//!
//! [`drain`] finds such a queue and computes the limit for it. In all other cases nothing is limited here, and windows
//! follow the readers (`receive`). Owners take turns, and each gets the same number of bytes (`fair`); an owner's calls get
//! theirs one after the other. In the second case, all owners together hold at most half of the limit, in equal parts. A
//! call that has to wait is offered a window of one packet that has already arrived, never an empty one (Rx notes 17.9).
//!
//! ```text
//!                   data arrive, and it has memory for more
//!     holds credit ───────────────────────────────────────▶ queued
//!       │      ▲                                              │
//!       │      └───────────── its turn: granted ──────────────┘
//!       └── nothing arrives: told again; if others wait, keeps one packet (with a small buffer, until that packet arrives)
//! ```

mod drain;

use super::calls::Calls;
use crate::call::Credit;
use crate::congestion::bytes_in;
use crate::fair::{FairQueue, Owner};
use crate::ids::CallNumber;
use crate::ids::ChannelRef;
use crate::packet::{BASE_PACKET_LEN, MAX_PACKET_LEN};
use crate::time::Instant;
use drain::{Change, Drain};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The time whose drained bytes may be in flight in addition to what the buffer holds.
const DRAINED: Duration = Duration::from_millis(2);
/// The divisor of a small buffer that gives the part for packets that are not offered: ACKs, pings, first packets of new calls.
const RESERVE: u64 = 8;
/// The bytes that the kernel counts for a packet of up to [`PART`] bytes (measured: 1444 and 1472 bytes cost 2304). A larger one may
/// come in fragments, each of which counts so much, or whole: then it counts the next power of two and up to 832 more (measured on
/// loopback: 2000 bytes 4352, 4000 bytes 8448, 8972 bytes 16,640, 16,384 bytes 17,216).
const PART_COST: u64 = 2304;
const PART: u64 = 1472;
const WHOLE_OVERHEAD: u64 = 1024;
/// Packets that a new call is offered before its peer is known to use them: as many as peers send uninvited.
const FIRST_OFFER: u32 = 16;
/// Packets that a call is granted at once, at most: the fewer, the more ACKs, the more, the longer others wait.
const GRANT: u64 = 16;
/// Packets of a call before it is listed while nothing is limited.
const LISTED_FROM: u32 = 8;
/// Kernel's bytes of credit that an owner gets in a turn, at most: an equal part of what there is, but a packet at
/// least, so that nobody waits for longer than that takes to come once. And what an owner gets at once after having
/// been quiet: the cost of 128 KiB.
const TURN: u32 = 64 << 10;
const FRESH: u32 = 208 << 10;
/// The time between two looks at calls that hold credit, and the number of calls at a time, which is larger with a small buffer.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_AT: usize = 64;
const LOOK_AT_IN_SMALL: usize = 256;
/// A call to which nothing comes for two round trips and this has not heard of its window, does not want it, or has no CPU.
/// In a small buffer it is the shortest ever and less: round trips grow as a host waits for CPU, and what little room there is
/// it holds meanwhile. (In a large one another user waits for twice as long with this, as a simulation shows.)
const GRACE: Duration = Duration::from_millis(30);
const GRACE_IN_SMALL: Duration = Duration::from_millis(5);
/// The longest that a round trip counts there: one that never was shorter is that of a host without CPU too.
/// An owner who is really farther away is late each time when others wait, and gets credit in turns.
const FAR: Duration = Duration::from_millis(40);
/// An owner who was left one packet is told so again after this, and each time after this. In a small buffer they get
/// no more before it has come: a host without CPU would only hold it.
const TOLD_AGAIN: Duration = Duration::from_millis(500);

/// Assumed round trip while none is known.
const UNKNOWN_RTT: Duration = Duration::from_millis(10);
/// An owner who begins after having been quiet may have this while a standing queue is limited, half as much more than
/// the most that others have, as they wait for nobody.
const MOST_WITH_NEW: u64 = 24 << 20;

/// The cost of a packet of so many bytes in the socket's buffer.
pub(super) fn cost(len: usize) -> u64 {
    let len = len as u64;
    match len.div_ceil(PART) {
        0 | 1 => PART_COST,
        parts => (parts * PART_COST).max(len.next_power_of_two() + WHOLE_OVERHEAD),
    }
}

/// The cost of a packet of any kind in the socket's buffer. The kernel counts less for short ones (measured on loopback: up to 150
/// bytes 832, 300 and 600 bytes 1280).
fn cost_of_any(len: usize) -> u64 {
    match len {
        0..=150 => 832,
        151..=600 => 1280,
        len => cost(len),
    }
}

/// A call that receives; may be gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Receiver {
    at: ChannelRef,
    number: CallNumber,
}

/// The credit that an owner holds, and the owner's calls that want more than they may have.
#[derive(Debug, Default)]
struct Share {
    held: u64,
    aside: Vec<Receiver>,
}

/// The room on the way to here, and who has it. What calls receive and what their paths are like is asked of [`Calls`], by which those
/// are told, too, that have got more or less.
#[derive(Debug)]
pub(super) struct Credits {
    buffer: Option<u64>,
    drain: Drain,
    /// Kernel's bytes that may still come: what is offered, and what peers send by older offers.
    held: u64,
    uninvited: u64,
    waiting: FairQueue<Receiver>,
    receivers: VecDeque<Receiver>,
    /// The number of entries whose calls are gone.
    gone: usize,
    /// The shares of owners who hold something. The map is ordered, so that a simulation goes the same way each time.
    shares: BTreeMap<Owner, Share>,
    /// The time when calls that hold credit are looked after next.
    armed: Option<Instant>,
}

impl Credits {
    pub(super) fn new(buffer: Option<u64>) -> Self {
        Self {
            buffer,
            drain: Drain::new(),
            held: 0,
            uninvited: 0,
            waiting: FairQueue::new(TURN, FRESH),
            receivers: VecDeque::new(),
            gone: 0,
            shares: BTreeMap::new(),
            armed: None,
        }
    }

    /// Kernel's bytes that are offered and have not come, while that is limited.
    pub(super) const fn offered(&self) -> u64 {
        self.held - self.uninvited
    }

    /// The longest packet that peers should send: at least sixteen are to fit into the buffer.
    pub(super) fn longest_packet(&self) -> usize {
        let Some(buffer) = self.buffer else { return MAX_PACKET_LEN };
        let fits = |len: &usize| cost(*len) * u64::from(FIRST_OFFER) <= buffer;
        let lens = [MAX_PACKET_LEN, 8972, 8192, 4096, 2048];
        lens.into_iter().find(fits).unwrap_or(BASE_PACKET_LEN)
    }

    /// The limit of that. `None` while nothing is limited.
    pub(super) fn limit(&self) -> Option<u64> {
        match (self.in_buffer(), self.drain.limit()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The most that an owner may hold while there is a standing queue: an equal part of half of the limit. If owners could hold all
    /// of it, hosts that get no time to send would hold it, and others would wait for them though the server is idle.
    fn most_of_an_owner(&self) -> u64 {
        let owners = self.shares.len().max(self.waiting.owners()).max(1) as u64;
        self.drain.limit().map_or(u64::MAX, |limit| limit / (2 * owners))
    }

    /// An owner's calls hold `holds` where they held `held`. Those that were put aside are queued again when there is room.
    fn count(&mut self, owner: Owner, held: u64, holds: u64) {
        if held == holds {
            return;
        }
        self.held = self.held - held + holds;
        let most = self.most_of_an_owner();
        let share = self.shares.entry(owner).or_default();
        share.held = share.held - held + holds;
        if share.held < most || share.held == 0 {
            for receiver in share.aside.drain(..) {
                self.waiting.push_more(owner, receiver);
            }
            if share.held == 0 {
                self.shares.remove(&owner);
            }
        }
    }

    /// Queues again what was put aside of owners who may hold more by now.
    fn recall(&mut self) {
        let most = self.most_of_an_owner();
        for (owner, share) in self.shares.iter_mut().filter(|(_, share)| share.held < most) {
            for receiver in share.aside.drain(..) {
                self.waiting.push_more(*owner, receiver);
            }
        }
    }

    fn is_calm(&self) -> bool {
        is_calm(&self.waiting, &self.shares)
    }

    /// The bytes that a small buffer takes.
    fn in_buffer(&self) -> Option<u64> {
        self.buffer.map(|b| b - b / RESERVE + bytes_in(self.drain.data_rate(), DRAINED))
    }
}

/// True if no owner waits for more than they have.
fn is_calm(waiting: &FairQueue<Receiver>, shares: &BTreeMap<Owner, Share>) -> bool {
    waiting.is_empty() && shares.values().all(|share| share.aside.is_empty())
}

impl Credits {
    /// Notes that so many bytes, by the kernel's count, have come and wait to be given to this endpoint. The driver calls it often, at
    /// least every few milliseconds while there are any, and when there are none any more.
    pub(super) fn handle_backlog(&mut self, now: Instant, bytes: u64, calls: &mut Calls<'_>) {
        self.drain.note_backlog(bytes);
        self.note_period(now, calls);
    }

    /// A call begins while offers are limited.
    pub(super) fn handle_new_call(&mut self, at: ChannelRef, calls: &mut Calls<'_>) {
        if self.limit().is_some()
            && let Some(call) = calls.connections[at.connection].call_mut(at.channel)
        {
            call.rx.gate(FIRST_OFFER);
            call.credit.is_listed = true; // so that it is freed when the limit ends
            self.receivers.push_back(Receiver { at, number: call.number });
        }
    }

    /// A packet of any kind came.
    pub(super) fn handle_packet(&mut self, len: usize) {
        self.drain.note_packet(cost_of_any(len));
    }

    /// Data came for a call.
    pub(super) fn handle_data(&mut self, now: Instant, at: ChannelRef, len: usize, calls: &mut Calls<'_>) {
        self.note_period(now, calls);
        let connection = &mut calls.connections[at.connection];
        let rtt = &calls.paths[connection.path].rtt;
        self.drain.note_data(cost(len), rtt.is_known().then(|| rtt.min()));
        let limit = self.limit();
        let Some(call) = connection.call_mut(at.channel) else { return };
        call.credit.handle_data(now, rtt.smoothed());
        let receives = !call.rx.is_complete() && (limit.is_some() || call.rx.next().0 > LISTED_FROM);
        let is_new = call.rx.next().0 <= 2;
        if receives && !call.credit.is_listed {
            call.credit.is_listed = true;
            self.receivers.push_back(Receiver { at, number: call.number });
        }
        if let Some(limit) = limit {
            if !call.rx.is_gated() {
                call.rx.gate(FIRST_OFFER);
            }
            self.settle(now, at, calls);
            // Taking back helps where the queue is long, and with a new call, which may not have sent all that it may.
            let takes_back = self.held > limit && (self.drain.limit().is_some() || is_new);
            if takes_back && let Some(call) = calls.connections[at.connection].call_mut(at.channel) {
                if is_new {
                    call.rx.refuse_first_flight();
                } else {
                    call.rx.cut(0);
                }
                self.settle(now, at, calls);
            }
        }
    }

    /// Counts anew what a call holds, and queues it if it wants more.
    pub(super) fn settle(&mut self, now: Instant, at: ChannelRef, calls: &mut Calls<'_>) {
        let connection = &mut calls.connections[at.connection];
        let each = cost(calls.paths[connection.path].longest_received());
        let user = connection.owner;
        let Some(call) = connection.call_mut(at.channel) else { return };
        let owner = *call.credit.owner.get_or_insert(user);
        let grew_from = std::mem::replace(&mut call.credit.each, each);
        if each > grew_from && call.rx.is_gated() {
            // The peer has found that larger packets pass, and may use what it has for such: it keeps as many bytes. What it has cut
            // before stays as it is.
            call.credit.small = (call.rx.newest(), if grew_from == 0 { each } else { grew_from });
            let keeps = u32::try_from(call.credit.held / each).unwrap_or(u32::MAX);
            call.rx.retract(
                call.rx.outstanding().saturating_sub(keeps.max(FIRST_OFFER * u32::from(grew_from == 0))),
            );
        }
        let counts = call.rx.is_gated() && !call.credit.is_idle && !call.stage.has_ended();
        let (outstanding, small) = (call.rx.outstanding(), call.rx.missing(call.credit.small.0));
        let less = u64::from(small) * each.saturating_sub(call.credit.small.1);
        let holds = if counts { u64::from(outstanding) * each - less } else { 0 };
        let uninvited = (u64::from(call.rx.uninvited()) * each).min(holds);
        let held = std::mem::replace(&mut call.credit.held, holds);
        self.uninvited =
            self.uninvited - std::mem::replace(&mut call.credit.uninvited, uninvited) + uninvited;
        self.count(owner, held, holds);
        // As a sender doubles in a round trip, it may have twice what it used in one; more would lie about.
        let used = call.credit.came.max(call.credit.came_before);
        let has_use = call.rx.outstanding() < 2 * used + GRANT as u32;
        let sleeps = self.buffer.is_some() && call.credit.is_idle;
        let wants = call.rx.wanted() > 0 && call.rx.has_begun() && !call.stage.has_ended() && !sleeps;
        if wants && has_use && !call.credit.is_queued {
            call.credit.is_queued = true;
            let receiver = Receiver { at, number: call.number };
            // Its first wish alone: where turns are far apart, each would else be that of someone who has been quiet.
            let begins = call.rx.next().0 <= FIRST_OFFER + 1 && !call.credit.has_asked;
            call.credit.has_asked = true;
            match begins {
                true => self.waiting.push_first(now, owner, receiver),
                false => self.waiting.push_more(owner, receiver),
            }
        }
        if self.armed.is_none() && (self.held > 0 || !self.waiting.is_empty()) {
            self.arm(now + LOOK);
        }
    }

    /// A call is no more: what it held is free.
    pub(super) fn handle_end(&mut self, credit: &Credit, calls: &Calls<'_>) {
        self.uninvited -= credit.uninvited;
        self.gone += usize::from(credit.is_listed);
        if let Some(owner) = credit.owner {
            self.count(owner, credit.held, 0);
        }
        if self.gone > LOOK_AT && self.gone > self.receivers.len() / 2 {
            let connections = &calls.connections;
            self.receivers.retain(|Receiver { at, number }| {
                let call = connections.get(at.connection).and_then(|c| c.call(at.channel));
                call.is_some_and(|c| c.number == *number)
            });
            self.gone = 0;
        }
    }

    /// Grants what there is to those who wait.
    pub(super) fn grant(&mut self, now: Instant, calls: &mut Calls<'_>) {
        let Some(limit) = self.limit() else { return };
        let limit_of_new = limit.max(self.in_buffer().unwrap_or(MOST_WITH_NEW));
        let turn = limit / self.waiting.owners().max(1) as u64;
        self.waiting.set_quantum(turn.clamp(PART_COST, TURN.into()) as u32);
        while let Some((owner, receiver)) = self.waiting.pop(now) {
            let Receiver { at, number } = receiver;
            let Some(connection) = calls.connections.get_mut(at.connection) else { continue };
            let each = cost(calls.paths[connection.path].longest_received());
            let Some(call) = connection.call_mut(at.channel).filter(|c| c.number == number) else { continue };
            let wanted = call.rx.wanted();
            let sleeps = self.buffer.is_some() && call.credit.is_idle;
            if wanted == 0 || call.stage.has_ended() || sleeps {
                call.credit.is_queued = false;
                continue;
            }
            let waiting = &mut self.waiting;
            let sharers = (waiting.owners().max(1) * (waiting.len_of(owner) + 1)) as u64;
            let packets = (limit / (4 * sharers) / each).clamp(1, GRANT).min(wanted.into());
            let bytes = packets * each;
            let is_new = waiting.is_sparse(owner);
            let limit = if is_new { limit_of_new } else { limit };
            if self.held + bytes > limit && self.held > 0 {
                return self.waiting.unpop(owner, receiver);
            }
            let most = self.most_of_an_owner();
            if let Some(share) = self.shares.get_mut(&owner)
                && share.held + bytes > most
                && !is_new
            {
                share.aside.push(receiver);
                continue;
            }
            let waiting = &mut self.waiting;
            waiting.charge(now, owner, bytes);
            call.rx.grant(packets as u32);
            call.credit.is_queued = false;
            if call.credit.held == 0 {
                call.credit.data_at = now; // with more it is no sooner late
            }
            (call.credit.is_idle, call.credit.is_reminded) = (false, false);
            self.settle(now, at, calls);
            calls.queue_ack(at);
        }
    }

    /// The time when [`Self::handle_timeout`] is to be called next; `None` while nothing waits for time.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.armed
    }

    /// Notes that there are no calls any more that could be looked after.
    pub(super) const fn disarm(&mut self) {
        self.armed = None;
    }

    fn arm(&mut self, at: Instant) {
        self.armed = Some(self.armed.map_or(at, |earlier| earlier.min(at)));
    }

    /// Looks after calls that hold credit and to which nothing comes.
    pub(super) fn handle_timeout(&mut self, now: Instant, calls: &mut Calls<'_>) {
        self.armed = None;
        self.note_period(now, calls);
        if self.limit().is_none() {
            return;
        }
        let is_calm = self.is_calm();
        let at_once = if self.buffer.is_some() { LOOK_AT_IN_SMALL } else { LOOK_AT };
        for _ in 0..self.receivers.len().min(at_once) {
            let Some(receiver) = self.receivers.pop_front() else { break };
            if self.look_after(now, is_calm, receiver, calls) {
                self.receivers.push_back(receiver);
            }
        }
        self.recall();
        self.grant(now, calls);
        if self.held > 0 || !self.waiting.is_empty() || self.drain.limit().is_some() {
            self.arm(now + LOOK);
        }
    }

    /// Returns whether the call still receives.
    fn look_after(
        &mut self,
        now: Instant,
        is_calm: bool,
        Receiver { at, number }: Receiver,
        calls: &mut Calls<'_>,
    ) -> bool {
        let connection = calls.connections.get_mut(at.connection);
        let path = connection.as_ref().map(|c| c.path);
        let call = connection.and_then(|c| c.call_mut(at.channel)).filter(|c| c.number == number);
        let (Some(call), Some(path)) = (call, path) else {
            self.gone = self.gone.saturating_sub(1);
            return false;
        };
        if call.rx.is_complete() || call.stage.has_ended() {
            call.credit.is_listed = false;
            self.settle(now, at, calls);
            return false;
        }
        let rtt = &calls.paths[path].rtt;
        let grace = match self.buffer {
            Some(_) => rtt.lifetime_min().unwrap_or(UNKNOWN_RTT).min(FAR) + GRACE_IN_SMALL,
            None => 2 * rtt.smoothed() + GRACE,
        };
        let quiet_for = now.since(call.credit.data_at);
        if call.credit.is_idle && quiet_for >= TOLD_AGAIN {
            call.credit.data_at = now; // what told it may have been lost
        } else if call.credit.held == 0 || quiet_for < grace {
            return true;
        } else if !is_calm {
            // Perhaps it has nothing to send. If it has, one packet says so.
            call.rx.leave_one();
            call.credit.is_idle = true;
        } else if call.credit.is_reminded {
            return true;
        }
        call.credit.is_reminded = true;
        call.rx.tell_window();
        self.settle(now, at, calls);
        calls.queue_ack(at);
        true
    }

    /// Ends a period of counting, if it is over, and does what it shows.
    fn note_period(&mut self, now: Instant, calls: &mut Calls<'_>) {
        let Self { drain, waiting, shares, .. } = self;
        match drain.end_period(now, || is_calm(waiting, shares)) {
            Some(Change::Limit(limit)) => self.limit_to(now, limit, calls),
            Some(Change::End) => self.end_limit(calls),
            None => {}
        }
    }

    /// Limits offers from now on: there is a standing queue. Calls keep an even part of what they were offered.
    fn limit_to(&mut self, now: Instant, limit: u64, calls: &mut Calls<'_>) {
        let was_limited = self.limit().is_some();
        self.drain.begin_limit(limit);
        let receivers = self.receivers.clone();
        let keep = limit / (receivers.len() as u64 * PART_COST).max(1);
        for Receiver { at, number } in receivers.into_iter().filter(|_| !was_limited) {
            let call = calls.connections.get_mut(at.connection).and_then(|c| c.call_mut(at.channel));
            let Some(call) = call.filter(|c| c.number == number && !c.rx.is_complete()) else { continue };
            call.rx.gate(keep.min(GRANT) as u32);
            call.rx.tell_window();
            self.settle(now, at, calls);
            calls.queue_ack(at);
        }
        self.arm(now + LOOK);
    }

    /// The standing queue is gone, and nobody is kept waiting.
    fn end_limit(&mut self, calls: &mut Calls<'_>) {
        self.drain.end_limit();
        if self.buffer.is_some() {
            return;
        }
        for Receiver { at, number } in self.receivers.clone() {
            let call = calls.connections.get_mut(at.connection).and_then(|c| c.call_mut(at.channel));
            let Some(call) = call.filter(|c| c.number == number) else { continue };
            let held = std::mem::take(&mut call.credit.held);
            if let Some(owner) = call.credit.owner {
                self.count(owner, held, 0);
            }
            self.uninvited -= std::mem::take(&mut call.credit.uninvited);
            call.rx.ungate();
            calls.queue_ack(at);
        }
    }
}

#[cfg(test)]
mod tests;
