//! The sending half of a call: cuts the stream into packets, knows which are under way, and when to ask for news of them. What
//! ACKs say and what is lost is in `transmit/loss.rs`. Decides neither how fast to send (see `path`) nor what the bytes are.

mod loss;

use crate::ack::{Ack, Described};
use crate::ids::{Seq, Serial};
use crate::ranges::Ranges;
use crate::reordering::Reordering;
use crate::rtt::Rtt;
use crate::time::Instant;
use crate::trace::LossNotes;
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Longest wait between two timeouts without an answer (Rx notes 10).
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Transmissions remembered beyond twice the packets that are held: a peer that takes nothing while it has us send again and
/// again costs no more.
const LOG_SPARE: usize = 1024;

/// The path's state when a packet is sent, noted to measure the delivery rate when it is acknowledged (the delivery
/// rate estimation of BBR).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamp {
    pub(crate) sent_at: Instant,
    /// Bytes the path had delivered by then, and when it last did.
    pub(crate) delivered: u64,
    pub(crate) delivered_at: Instant,
    /// The time when the packet was sent that `delivered_at` is about.
    pub(crate) first_sent_at: Instant,
    /// Bytes in flight on the path, this packet's included.
    pub(crate) in_flight: u64,
    pub(crate) app_limited: bool,
    /// The train of back-to-back packets that it belongs to; 0 for none.
    pub(crate) train: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Cut, never sent.
    Waiting,
    /// Under way.
    InFlight,
    /// No longer in flight, since something sent later has arrived, but the ACK that says so does not describe it: neither lost nor
    /// received. This happens with long windows, because an ACK describes only a part of them.
    Unknown,
    /// The peer says that it has it, and may still throw it away.
    Received,
    /// It has to be sent again.
    Lost,
}

/// A packet that is not acknowledged for good.
#[derive(Debug)]
struct Packet {
    payload: Bytes,
    stamp: Stamp,
    serial: Serial,
    wire_len: u16,
    state: State,
    resent: Resent,
    last: bool,
}

/// The record whether a packet was sent before, and why it was sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Resent {
    No,
    /// It was given up.
    Lost,
    /// Nothing was heard: a tail loss probe.
    Probe,
}

/// A transmission in the log.
#[derive(Clone, Copy, Debug)]
struct Sent {
    serial: Serial,
    seq: Seq,
    wire_len: u16,
    /// It repeats a packet that had been given up, and nothing has shown yet whether that was right.
    repeats: bool,
}

/// Packets found lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lost {
    pub(crate) bytes: u64,
    /// The largest of them.
    pub(crate) largest: usize,
}

/// The changes that an ACK made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckOutcome {
    /// Bytes that arrived, not known before.
    pub(crate) acked: u64,
    /// Those of them that were in flight until now: the rest had been given up.
    pub(crate) landed: u64,
    /// Bytes no longer in flight because they are lost, and the largest packet among them.
    pub(crate) lost: Lost,
    /// Bytes no longer in flight that may or may not be lost.
    pub(crate) left: u64,
    /// The stamp of the newest packet among those that arrived.
    pub(crate) newest: Option<Stamp>,
    pub(crate) rtt: Option<Duration>,
    /// Bytes of a train that arrived, and which train.
    pub(crate) train: (u32, u64),
    /// The largest packet that arrived.
    pub(crate) largest: usize,
    /// Packets that had been given up and did arrive.
    pub(crate) spurious: u32,
    pub(crate) spurious_bytes: u64,
    /// Bytes that were lost, as a tail loss probe has shown by bringing them itself. They left the flight when the probe went.
    pub(crate) repaired: u64,
    /// True if the ACK names a transmission of ours: its sender has seen that.
    pub(crate) named: bool,
}

/// The action after the timer has run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerAction {
    Nothing,
    /// Ask the peer what it has.
    Probe,
    /// The newest packet goes again, to make the peer say what it has; it leaves the flight, with so many bytes, until then.
    ProbeTail {
        left: u64,
    },
    /// Everything under way counts as lost.
    TimedOut {
        lost: Lost,
    },
    /// Some packets turned out lost as their reordering time ran out; of others, so many bytes, it is not known.
    Lost {
        lost: Lost,
        left: u64,
    },
}

/// A packet to send now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) seq: Seq,
    pub(crate) len: usize,
    pub(crate) again: bool,
    pub(crate) last: bool,
}

/// The sending half of a call.
#[derive(Debug)]
pub(crate) struct Transmit {
    unsent: VecDeque<Bytes>,
    unsent_len: usize,
    /// Bytes taken from the writer in all.
    taken: u64,
    /// Bytes cut into packets and not hard-acknowledged.
    held_len: usize,
    finished: bool,
    /// The peer ended it by its reply, before we did.
    cut_short: bool,
    flush: bool,
    last_cut: bool,
    /// Most bytes in the first packet.
    first_len: usize,
    packets: VecDeque<Packet>,
    base: Seq,
    /// Bytes and packets under way.
    in_flight: u64,
    in_flight_packets: u32,
    /// Packets to send again, and some that have arrived meanwhile. The first go first: what is behind a hole the peer may not be able to
    /// keep. A tail loss probe goes before them all.
    lost: BTreeSet<Seq>,
    tail: Option<Seq>,
    /// Packets in state [`State::Received`], and the bytes in them.
    received: u32,
    received_len: usize,
    /// Those of them that the peer threw away, as they were beyond what it takes.
    refused: BTreeSet<Seq>,
    /// Packets that ranges have reported as received, so that each packet is looked at once and not with every ACK.
    known: Ranges,
    /// Packets in state [`State::Unknown`], and bytes that came into it since the path was last told.
    unknown: BTreeSet<Seq>,
    left: u64,
    /// The packets that the last ACK described, and the highest packet that was known to have arrived with it.
    described: Described,
    highest: Seq,
    /// The time when a packet was last learnt to have arrived.
    learnt_at: Instant,
    /// The end of the losses that are being repaired.
    recovers_until: Option<Seq>,
    /// Transmissions in the order of their serials, to find the packet that an ACK's serial names, and how many of them
    /// need not be looked at again for what is lost.
    log: VecDeque<Sent>,
    judged: usize,
    /// Parts of an ACK's ranges that are new: here so that its memory is used again.
    fresh: Vec<Range<Seq>>,
    /// Window of the peer in packets, counted from `base`.
    window: u32,
    previous: Seq,
    /// The newest transmission known to have arrived, and when it was made.
    newest_arrived: (Instant, Serial),
    reorder_deadline: Option<Instant>,
    /// The time when something was last sent or acknowledged; below it, the time when something was last sent.
    progress_at: Instant,
    sent_at: Instant,
    probed: bool,
    backoff: u32,
    /// Longest wait between two timeouts.
    patience: Duration,
    resent_packets: u64,
    pub(crate) losses: LossNotes,
}

impl Transmit {
    pub(crate) fn new(now: Instant, window: u32) -> Self {
        Self {
            unsent: VecDeque::new(),
            unsent_len: 0,
            taken: 0,
            held_len: 0,
            finished: false,
            cut_short: false,
            flush: false,
            last_cut: false,
            first_len: usize::MAX,
            packets: VecDeque::new(),
            base: Seq::FIRST,
            in_flight: 0,
            in_flight_packets: 0,
            lost: BTreeSet::new(),
            tail: None,
            received: 0,
            received_len: 0,
            refused: BTreeSet::new(),
            known: Ranges::default(),
            unknown: BTreeSet::new(),
            left: 0,
            described: Described::NOTHING,
            highest: Seq(0),
            learnt_at: now,
            recovers_until: None,
            log: VecDeque::new(),
            judged: 0,
            fresh: Vec::new(),
            window: window.max(1),
            previous: Seq(0),
            newest_arrived: (Instant::ORIGIN, Serial::NONE),
            reorder_deadline: None,
            progress_at: now,
            sent_at: now,
            probed: false,
            backoff: 0,
            patience: MAX_BACKOFF,
            resent_packets: 0,
            losses: LossNotes::default(),
        }
    }

    /// Sets the time after which silence ends the call: there shall be several tries within it, as the peer may not even know the call, so
    /// that no ping of it is answered.
    pub(crate) fn set_dead_time(&mut self, dead: Duration) {
        self.patience = (dead / 4).min(MAX_BACKOFF);
    }

    /// Limits the first packet, if it is not known what passes: it gets there in any case, and makes the peer speak.
    pub(crate) const fn set_first_len(&mut self, len: usize) {
        self.first_len = len;
    }

    /// The most that the next new packet carries.
    fn limit(&self, capacity: usize) -> usize {
        if self.next_seq() == Seq::FIRST { capacity.min(self.first_len) } else { capacity }
    }

    /// Takes bytes to send.
    pub(crate) fn write(&mut self, bytes: Bytes) {
        assert!(!self.finished || self.cut_short, "nothing is written after the end of the stream");
        if !bytes.is_empty() && !self.cut_short {
            self.unsent_len += bytes.len();
            self.taken += bytes.len() as u64;
            self.unsent.push_back(bytes);
        }
    }

    /// Notes that no more bytes will come.
    pub(crate) const fn finish(&mut self) {
        self.finished = true;
    }

    /// Has what is there sent, though it fills no packet.
    pub(crate) const fn flush(&mut self) {
        self.flush = true;
    }

    pub(crate) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Bytes taken and not yet acknowledged for good.
    pub(crate) const fn buffered(&self) -> usize {
        self.unsent_len + self.held_len
    }

    /// Bytes taken from the application that the peer has not confirmed.
    pub(crate) const fn ahead(&self) -> usize {
        self.buffered() - self.received_len
    }

    /// Bytes acknowledged for good.
    pub(crate) const fn acked(&self) -> u64 {
        self.taken - self.buffered() as u64
    }

    /// True if all was sent and all of it has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.last_cut && self.refused.is_empty() && self.packets.iter().all(|p| p.state == State::Received)
    }

    /// True if something was sent at all.
    pub(crate) fn has_begun(&self) -> bool {
        self.last_cut || self.base.0 > 1 || !self.packets.is_empty()
    }

    #[cfg(test)]
    pub(crate) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    #[cfg(test)]
    pub(crate) const fn in_flight_packets(&self) -> u32 {
        self.in_flight_packets
    }

    pub(crate) const fn resent_packets(&self) -> u64 {
        self.resent_packets
    }

    fn next_seq(&self) -> Seq {
        self.base.plus(self.packets.len() as u32)
    }

    /// The first packet that was never sent.
    fn sent_until(&self) -> Seq {
        let waits = self.packets.back().is_some_and(|p| p.state == State::Waiting);
        Seq(self.next_seq().0 - u32::from(waits))
    }

    /// True if an ACK takes back what was acknowledged for good, or has what was never sent: it is of another life of the call.
    pub(crate) fn is_contradicted_by(&self, ack: &Ack<'_>) -> bool {
        ack.first < self.base || ack.first > self.sent_until()
    }

    fn packet(&mut self, seq: Seq) -> Option<&mut Packet> {
        self.packets.get_mut(seq.after(self.base)? as usize)
    }

    /// The packet to send next, cut at `capacity` bytes of plain text if it is a new one.
    pub(crate) fn peek(&mut self, capacity: usize) -> Option<Next> {
        while let Some(seq) = self.tail.or_else(|| self.lost.first().copied()) {
            match self.packet(seq) {
                Some(p) if p.state == State::Lost => {
                    return Some(Next { seq, len: p.payload.len(), again: true, last: p.last });
                }
                _ => self.forget_lost(seq), // arrived meanwhile
            }
        }
        if let Some(p) = self.packets.back().filter(|p| p.state == State::Waiting) {
            let seq = self.base.plus(self.packets.len() as u32 - 1);
            return Some(Next { seq, len: p.payload.len(), again: false, last: p.last });
        }
        if self.last_cut || self.packets.len() as u32 >= self.window {
            return None;
        }
        let is_due = self.finished || (self.flush && self.unsent_len > 0);
        let capacity = self.limit(capacity);
        if self.unsent_len < capacity && !is_due {
            return None;
        }
        let payload = self.cut(capacity);
        let last = self.finished && self.unsent_len == 0;
        self.flush &= self.unsent_len > 0;
        self.last_cut = last;
        let next = Next { seq: self.next_seq(), len: payload.len(), again: false, last };
        self.held_len += payload.len();
        self.packets.push_back(Packet {
            payload,
            stamp: Stamp::default(),
            serial: Serial::NONE,
            wire_len: 0,
            state: State::Waiting,
            resent: Resent::No,
            last,
        });
        Some(next)
    }

    /// A packet need not be sent again.
    fn forget_lost(&mut self, seq: Seq) {
        self.lost.remove(&seq);
        self.tail = self.tail.filter(|&tail| tail != seq);
    }

    /// True if [`Self::peek`] would return something, without cutting a packet.
    pub(crate) fn has_work(&self, capacity: usize) -> bool {
        if !self.lost.is_empty() || self.packets.back().is_some_and(|p| p.state == State::Waiting) {
            return true;
        }
        !self.last_cut
            && (self.packets.len() as u32) < self.window
            && (self.unsent_len >= self.limit(capacity)
                || self.finished
                || (self.flush && self.unsent_len > 0))
    }

    /// True if only the peer's window keeps us from sending.
    pub(crate) fn is_blocked_by_window(&self) -> bool {
        !self.last_cut && self.packets.len() as u32 >= self.window && self.unsent_len > 0
    }

    fn cut(&mut self, capacity: usize) -> Bytes {
        let len = self.unsent_len.min(capacity);
        self.unsent_len -= len;
        let Some(front) = self.unsent.front_mut() else { return Bytes::new() };
        if front.len() > len {
            return front.split_to(len);
        }
        if front.len() == len {
            return self.unsent.pop_front().unwrap_or_default();
        }
        // The packet spans what the application wrote in several pieces: the one case in which bytes are copied here.
        let mut joined = BytesMut::with_capacity(len);
        while joined.len() < len {
            let Some(front) = self.unsent.front_mut() else { break };
            let part = front.len().min(len - joined.len());
            joined.extend_from_slice(&front.split_to(part));
            if front.is_empty() {
                self.unsent.pop_front();
            }
        }
        joined.freeze()
    }

    /// The bytes of a packet that [`Self::peek`] named.
    pub(crate) fn payload(&self, seq: Seq) -> &Bytes {
        let index = seq.after(self.base).expect("peek names packets that are held");
        &self.packets[index as usize].payload
    }

    /// The packet went out.
    pub(crate) fn handle_sent(&mut self, seq: Seq, serial: Serial, wire_len: usize, stamp: Stamp) {
        let packet = self.packet(seq).expect("peek names packets that are held");
        let again = packet.state == State::Lost;
        (packet.serial, packet.stamp, packet.state) = (serial, stamp, State::InFlight);
        packet.wire_len = wire_len as u16;
        let repeats = again && packet.resent == Resent::Lost;
        if again {
            self.forget_lost(seq);
            self.resent_packets += 1;
        }
        self.in_flight += wire_len as u64;
        self.in_flight_packets += 1;
        self.log.push_back(Sent { serial, seq, wire_len: wire_len as u16, repeats });
        (self.progress_at, self.sent_at) = (stamp.sent_at, stamp.sent_at);
    }

    /// The peer's window, from the trailer of the ACK that was read last. While it is 0 nothing new goes, and the peer is asked now and
    /// then: the ACK that opens it may be lost.
    pub(crate) fn set_window(&mut self, packets: u32) {
        self.window = packets;
        self.resend_refused();
    }

    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    /// Moves the call to another path, whose state is in `stamp`. The packets in flight went to an address that the peer has left, so they
    /// count as lost. Returns the bytes that were in flight.
    pub(crate) fn handle_moved(&mut self, now: Instant, stamp: Stamp) -> u64 {
        let was = self.in_flight;
        let mut lost = Lost::default();
        for offset in 0..self.packets.len() as u32 {
            let seq = self.base.plus(offset);
            let Some(packet) = self.packet(seq) else { break };
            packet.stamp = Stamp { sent_at: packet.stamp.sent_at, ..stamp };
            match packet.state {
                State::InFlight => self.give_up(seq, &mut lost),
                State::Unknown => self.take_back(seq),
                State::Waiting | State::Received | State::Lost => {}
            }
        }
        self.log.clear();
        self.judged = 0;
        self.reorder_deadline = None;
        (self.progress_at, self.probed, self.backoff) = (now, false, 0);
        was
    }

    /// Notes that everything has arrived: the first packet of the reply says so (Rx notes 6.2). Returns the bytes that were in flight.
    pub(crate) fn handle_all_acked(&mut self) -> u64 {
        let was = self.in_flight;
        self.clear();
        self.cut_short |= !self.finished;
        (self.last_cut, self.finished) = (true, true);
        was
    }

    /// Forgets all that is held; the call has ended. Returns the bytes that were under way.
    pub(crate) fn clear(&mut self) -> u64 {
        let was = self.in_flight;
        self.base = self.next_seq();
        self.packets = VecDeque::new();
        (self.lost, self.tail) = (BTreeSet::new(), None);
        self.log = VecDeque::new();
        self.unsent = VecDeque::new();
        (self.unsent_len, self.held_len, self.in_flight, self.in_flight_packets) = (0, 0, 0, 0);
        self.unknown = BTreeSet::new();
        self.known.clear();
        (self.judged, self.received, self.received_len) = (0, 0, 0);
        self.refused = BTreeSet::new();
        self.fresh = Vec::new();
        self.reorder_deadline = None;
        was
    }

    /// True if an answer of the peer is awaited: something is under way or was refused, or its window is shut.
    fn awaits_ack(&self) -> bool {
        self.in_flight_packets > 0
            || !self.unknown.is_empty()
            || !self.refused.is_empty()
            || self.is_blocked_by_window()
    }

    /// The time when [`Self::handle_timer`] is due.
    pub(crate) fn deadline(&self, rtt: &Rtt, peer_delay: Duration) -> Option<Instant> {
        let ack = self.awaits_ack().then(|| {
            if self.probed {
                let once = rtt.timeout(peer_delay);
                let wait = once * 2u32.saturating_pow(self.backoff.min(10));
                self.progress_at + wait.min(self.patience.max(once))
            } else if self.in_flight_packets > 0 {
                // Of what was sent last the answer is late, though there were answers to what went before; but not while
                // they keep coming.
                let quiet = self.progress_at + rtt.smoothed() + peer_delay;
                quiet.max(self.sent_at + rtt.probe_timeout(peer_delay))
            } else {
                self.progress_at + rtt.probe_timeout(peer_delay)
            }
        });
        [ack, self.reorder_deadline].into_iter().flatten().min()
    }

    /// Time has passed.
    pub(crate) fn handle_timer(
        &mut self,
        now: Instant,
        rtt: &Rtt,
        reordering: &Reordering,
        peer_delay: Duration,
    ) -> TimerAction {
        if self.reorder_deadline.is_some_and(|d| d <= now) {
            let mut lost = Lost::default();
            self.find_lost(now, rtt, reordering, &mut lost);
            return TimerAction::Lost { lost, left: self.take_left() };
        }
        if self.deadline(rtt, peer_delay).is_none_or(|d| d > now) {
            return TimerAction::Nothing;
        }
        self.progress_at = now;
        if !self.probed || self.in_flight_packets == 0 {
            self.probed = true;
            self.backoff += u32::from(self.in_flight_packets == 0);
            // After a timeout a ping: who has forgotten the call shows it by its answer to that.
            let probes_tail = self.backoff == 0 && self.queue_tail();
            return if probes_tail {
                TimerAction::ProbeTail { left: self.take_left() }
            } else {
                TimerAction::Probe
            };
        }
        self.backoff += 1;
        self.probed = false;
        let mut lost = Lost::default();
        for offset in 0..self.packets.len() as u32 {
            let seq = self.base.plus(offset);
            if self.packet(seq).is_some_and(|p| p.state == State::InFlight) {
                self.give_up(seq, &mut lost);
            }
        }
        TimerAction::TimedOut { lost }
    }
}

#[cfg(test)]
mod tests;
