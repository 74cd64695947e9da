//! The sending half of a call: cuts the stream into packets, knows which are under way, and reads ACKs. Finds what is lost
//! by RACK on serials (RFC 8985, with transmissions named exactly): a packet is lost once a transmission made sufficiently
//! later is known to have arrived, and the ACK speaks of the packet and does not have it. Decides neither how fast to
//! send (see `path`) nor what the bytes are.

use crate::ack::{Ack, AckReason, MAX_TABLE};
use crate::ids::{Seq, Serial};
use crate::rtt::Rtt;
use crate::time::Instant;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::time::Duration;

/// Longest wait between two timeouts without an answer (Rx notes 10).
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Holes that are filled one by one before all that is unknown is sent again. One or two are common after a single loss.
const MAX_HOLES: u32 = 3;

/// What is noted of the path when a packet is sent, to measure the delivery rate when it is acknowledged (the delivery
/// rate estimation of BBR).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamp {
    pub(crate) sent_at: Instant,
    /// Bytes the path had delivered by then, and when it last did.
    pub(crate) delivered: u64,
    pub(crate) delivered_at: Instant,
    /// When the packet was sent that `delivered_at` is about.
    pub(crate) first_sent_at: Instant,
    pub(crate) app_limited: bool,
    /// Which train of back-to-back packets it belongs to; 0 for none.
    pub(crate) train: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Cut, never sent.
    Waiting,
    /// Under way.
    InFlight,
    /// No longer under way, since something sent later has arrived, but no ACK has spoken of it yet: neither lost nor
    /// received. So it is with long windows, of which an ACK describes 255 packets.
    Unknown,
    /// The peer says that it has it, and may still throw it away.
    Received,
    /// To be sent again.
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
    resent: bool,
    last: bool,
}

/// Packets found lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lost {
    pub(crate) bytes: u64,
    /// The largest of them.
    pub(crate) largest: usize,
}

/// What an ACK changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckOutcome {
    /// Bytes that arrived, not known before.
    pub(crate) acked: u64,
    /// Those of them that were in flight until now: the rest had been given up.
    pub(crate) landed: u64,
    /// Bytes no longer in flight because they are lost, and the largest packet among them.
    pub(crate) lost: Lost,
    /// Bytes no longer in flight, of which it is not known whether they are lost.
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
    /// The ACK names a transmission of ours: whoever wrote it has seen that.
    pub(crate) named: bool,
}

/// What to do when the timer has run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerAction {
    Nothing,
    /// Ask the peer what it has.
    Probe,
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
    packets: VecDeque<Packet>,
    base: Seq,
    /// Bytes and packets under way.
    in_flight: u64,
    in_flight_packets: u32,
    lost: VecDeque<Seq>,
    /// Packets in state [`State::Received`].
    received: u32,
    /// Packets in state [`State::Unknown`], and bytes that came into it since the path was last told.
    unknown: u32,
    left: u64,
    /// Holes filled one after another while there are unknown packets: each needs a round trip.
    holes_filled: u32,
    /// How many packets from `base` on the last ACK spoke of.
    described: u32,
    /// Transmissions in the order of their serials, to find the packet that an ACK's serial names.
    log: VecDeque<(Serial, Seq)>,
    /// Window of the peer in packets, counted from `base`.
    window: u32,
    previous: Seq,
    /// The newest transmission known to have arrived, and when it was made.
    newest_arrived: (Instant, Serial),
    reorder_deadline: Option<Instant>,
    /// When something was last sent or acknowledged.
    progress_at: Instant,
    probed: bool,
    backoff: u32,
    /// Longest wait between two timeouts.
    patience: Duration,
    resent_packets: u64,
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
            packets: VecDeque::new(),
            base: Seq::FIRST,
            in_flight: 0,
            in_flight_packets: 0,
            lost: VecDeque::new(),
            received: 0,
            unknown: 0,
            left: 0,
            holes_filled: 0,
            described: 0,
            log: VecDeque::new(),
            window: window.max(1),
            previous: Seq(0),
            newest_arrived: (Instant::ORIGIN, Serial::NONE),
            reorder_deadline: None,
            progress_at: now,
            probed: false,
            backoff: 0,
            patience: MAX_BACKOFF,
            resent_packets: 0,
        }
    }

    /// For how long silence ends the call: there shall be several tries within it, as the peer may not even know the call, so
    /// that no ping of it is answered.
    pub(crate) fn set_dead_time(&mut self, dead: Duration) {
        self.patience = (dead / 4).min(MAX_BACKOFF);
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

    /// No more bytes will come.
    pub(crate) const fn finish(&mut self) {
        self.finished = true;
    }

    /// What is there shall go, though it fills no packet.
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

    /// Bytes acknowledged for good.
    pub(crate) const fn acked(&self) -> u64 {
        self.taken - self.buffered() as u64
    }

    /// Whether all was sent and all of it has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.last_cut && self.packets.iter().all(|p| p.state == State::Received)
    }

    /// Whether something was sent at all.
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

    /// Whether an ACK takes back what was acknowledged for good, or has what was never sent: it is of another life of the call.
    pub(crate) fn is_contradicted_by(&self, ack: &Ack<'_>) -> bool {
        ack.first < self.base || ack.first > self.sent_until()
    }

    fn packet(&mut self, seq: Seq) -> Option<&mut Packet> {
        self.packets.get_mut(seq.after(self.base)? as usize)
    }

    /// The packet to send next, cut at `capacity` bytes of plain text if it is a new one.
    pub(crate) fn peek(&mut self, capacity: usize) -> Option<Next> {
        while let Some(&seq) = self.lost.front() {
            match self.packet(seq) {
                Some(p) if p.state == State::Lost => {
                    return Some(Next { seq, len: p.payload.len(), again: true, last: p.last });
                }
                _ => drop(self.lost.pop_front()), // arrived meanwhile
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
            resent: false,
            last,
        });
        Some(next)
    }

    /// Whether [`Self::peek`] would return something, without cutting a packet.
    pub(crate) fn has_work(&self, capacity: usize) -> bool {
        if !self.lost.is_empty() || self.packets.back().is_some_and(|p| p.state == State::Waiting) {
            return true;
        }
        !self.last_cut
            && (self.packets.len() as u32) < self.window
            && (self.unsent_len >= capacity || self.finished || (self.flush && self.unsent_len > 0))
    }

    /// Whether only the peer's window keeps us from sending.
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
        (packet.wire_len, packet.resent) = (wire_len as u16, packet.resent || again);
        if again {
            self.lost.pop_front();
            self.resent_packets += 1;
        }
        self.in_flight += wire_len as u64;
        self.in_flight_packets += 1;
        self.log.push_back((serial, seq));
        self.progress_at = stamp.sent_at;
    }

    /// The peer's window, from a trailer.
    pub(crate) fn set_window(&mut self, packets: u32) {
        self.window = packets.max(1);
    }

    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    fn packet_of_serial(&self, serial: Serial) -> Option<Seq> {
        let at = self.log.binary_search_by(|(s, _)| match s.is_after(serial) {
            true => std::cmp::Ordering::Greater,
            false if *s == serial => std::cmp::Ordering::Equal,
            false => std::cmp::Ordering::Less,
        });
        at.ok().map(|i| self.log[i].1)
    }

    /// Reads an ACK (Rx notes 7.2, 7.3). `None` when it says nothing new because it was overtaken, or is malformed.
    /// `trusts_serials` if a peer of our own sent it: what its serial names has arrived, also beyond the table.
    /// `ping_sent_at` if it answers a ping: when that was sent.
    pub(crate) fn handle_ack(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        rtt: &Rtt,
        trusts_serials: bool,
        ping_sent_at: Option<Instant>,
    ) -> Option<AckOutcome> {
        if self.is_contradicted_by(ack) {
            return None;
        }
        let overtaken = ack.first == self.base
            && ack.previous < self.previous
            && ack.previous.0 < ack.first.0.saturating_add(self.window);
        if overtaken {
            return None;
        }
        self.previous = ack.previous;
        let mut out = AckOutcome::default();
        let named = self.packet_of_serial(ack.serial).filter(|_| ack.serial != Serial::NONE);
        out.named = named.is_some();
        if let Some(seq) = named {
            let newest = self.packet(seq).filter(|p| p.serial == ack.serial).map(|p| p.stamp.sent_at);
            if let Some(sent_at) = newest {
                // A delayed ACK's serial says when the delay began, not how long the way is (Rx notes 7.1).
                out.rtt = (ack.reason != AckReason::DELAY).then(|| now.since(sent_at));
                self.note_arrived(sent_at, ack.serial);
                if trusts_serials {
                    self.mark_received(seq, &mut out);
                }
            }
        }
        if let Some(sent_at) = ping_sent_at {
            self.note_arrived(sent_at, ack.serial);
        }
        let fills_hole = self.base < ack.first && self.packets.front().is_some_and(|p| p.resent);
        while self.base < ack.first {
            self.mark_received(self.base, &mut out);
            let Some(packet) = self.packets.pop_front() else { break };
            self.received -= u32::from(packet.state == State::Received);
            self.held_len -= packet.payload.len();
            self.base = self.base.plus(1);
        }
        // A table that is not full ends with the last packet received: it speaks of all behind it too.
        let table_len = ack.table.len();
        let described = if table_len < MAX_TABLE as u32 { u32::MAX } else { table_len };
        let mut confirmed = 0;
        for offset in 0..table_len.min(self.packets.len() as u32) {
            match ack.table.is_received(offset) {
                Some(true) => {
                    confirmed += 1;
                    self.mark_received(self.base.plus(offset), &mut out);
                }
                Some(false) => self.take_back(self.base.plus(offset)),
                None => {}
            }
        }
        // What was soft-acknowledged and is no longer must go again (Rx notes 7.2): a restarted peer has forgotten it.
        if described == u32::MAX && (self.unknown > 0 || self.received > confirmed) {
            for offset in table_len..self.packets.len() as u32 {
                self.take_back(self.base.plus(offset));
            }
        }
        self.described = described;
        self.holes_filled = if self.unknown == 0 { 0 } else { self.holes_filled + u32::from(fills_hole) };
        if self.holes_filled >= MAX_HOLES && self.unknown > MAX_TABLE as u32 {
            self.give_up_unknown();
        }
        self.find_lost(now, rtt, &mut out.lost);
        out.left = self.take_left();
        if out.acked > 0 || named.is_some() || ping_sent_at.is_some() {
            (self.progress_at, self.probed, self.backoff) = (now, false, 0);
        }
        Some(out)
    }

    fn mark_received(&mut self, seq: Seq, out: &mut AckOutcome) {
        let Some(packet) = self.packet(seq) else { return };
        let len = u64::from(packet.wire_len);
        let (state, stamp, serial) = (packet.state, packet.stamp, packet.serial);
        if matches!(state, State::Received | State::Waiting) {
            return;
        }
        packet.state = State::Received;
        let resent = packet.resent;
        self.received += 1;
        // Which of its transmissions arrived is certain only if there was one.
        if !resent {
            self.note_arrived(stamp.sent_at, serial);
        }
        if state == State::InFlight {
            self.in_flight -= len;
            self.in_flight_packets -= 1;
            out.landed += len;
        } else if state == State::Unknown {
            self.unknown -= 1;
        } else {
            out.spurious += 1;
        }
        out.acked += len;
        out.largest = out.largest.max(len as usize);
        if out.newest.is_none_or(|s| s.sent_at <= stamp.sent_at) {
            out.newest = Some(stamp);
        }
        if stamp.train != 0 {
            let counted = if out.train.0 == stamp.train { out.train.1 } else { 0 };
            out.train = (stamp.train, counted + len);
        }
    }

    fn note_arrived(&mut self, sent_at: Instant, serial: Serial) {
        let (at, newest) = self.newest_arrived;
        if sent_at > at || (sent_at == at && serial.is_after(newest)) {
            self.newest_arrived = (sent_at, serial);
        }
    }

    /// An ACK says that the peer does not have what it had said to have, or what no ACK had spoken of.
    fn take_back(&mut self, seq: Seq) {
        let Some(packet) = self.packet(seq) else { return };
        if matches!(packet.state, State::Received | State::Unknown) {
            let was_unknown = packet.state == State::Unknown;
            packet.state = State::Lost;
            self.unknown -= u32::from(was_unknown);
            self.received -= u32::from(!was_unknown);
            self.note_lost(seq);
        }
    }

    fn note_lost(&mut self, seq: Seq) {
        self.lost.push_back(seq);
        // A peer that has a packet, has it not, has it again, leaves an entry each time.
        if self.lost.len() > 2 * self.packets.len() + 16 {
            let packets = self.packets.iter().zip(0..);
            let still = packets.filter(|(p, _)| p.state == State::Lost).map(|(_, i)| self.base.plus(i));
            self.lost = still.collect();
        }
    }

    /// Looks at all transmissions made well before one that arrived: what they carried is no longer under way. It is lost
    /// if the ACK speaks of it and does not have it.
    fn find_lost(&mut self, now: Instant, rtt: &Rtt, lost: &mut Lost) {
        self.reorder_deadline = None;
        let reordering = rtt.min() / 4;
        let round_trip = rtt.smoothed().max(rtt.latest());
        let (newest, newest_serial) = self.newest_arrived;
        while let Some(&(serial, seq)) = self.log.front() {
            let described = self.described;
            let offset = seq.after(self.base);
            let settled = match self.packet(seq) {
                Some(p) if p.serial == serial && p.state == State::InFlight => p.stamp.sent_at,
                _ => {
                    self.log.pop_front();
                    continue;
                }
            };
            if settled > newest || (settled == newest && !newest_serial.is_after(serial)) {
                break;
            }
            let due = settled + round_trip + reordering;
            if now < due && newest.since(settled) <= reordering {
                self.reorder_deadline = Some(due);
                break;
            }
            self.log.pop_front();
            if offset.is_some_and(|o| o < described) {
                self.give_up(seq, lost);
            } else {
                self.forget(seq);
            }
        }
    }

    /// The packet is no longer under way, and nobody knows whether it arrived.
    fn forget(&mut self, seq: Seq) {
        let Some(packet) = self.packet(seq) else { return };
        packet.state = State::Unknown;
        let len = u64::from(packet.wire_len);
        self.in_flight -= len;
        self.in_flight_packets -= 1;
        self.unknown += 1;
        self.left += len;
    }

    /// So much is missing that learning of it 255 packets a round trip takes longer than sending it all again.
    fn give_up_unknown(&mut self) {
        for offset in 0..self.packets.len() as u32 {
            let seq = self.base.plus(offset);
            if self.packet(seq).is_some_and(|p| p.state == State::Unknown) {
                self.take_back(seq);
            }
        }
        self.holes_filled = 0;
    }

    fn give_up(&mut self, seq: Seq, lost: &mut Lost) {
        let Some(packet) = self.packet(seq) else { return };
        packet.state = State::Lost;
        let len = u64::from(packet.wire_len);
        self.in_flight -= len;
        self.in_flight_packets -= 1;
        lost.bytes += len;
        lost.largest = lost.largest.max(len as usize);
        self.note_lost(seq);
    }

    /// Bytes that left the flight with an unknown fate since this was last asked.
    const fn take_left(&mut self) -> u64 {
        std::mem::replace(&mut self.left, 0)
    }

    /// The call goes on over another path, of which `stamp` says where it stands. What is under way went where nobody is any
    /// more, so it counts as lost. Returns the bytes that were under way.
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
        self.reorder_deadline = None;
        (self.progress_at, self.probed, self.backoff) = (now, false, 0);
        was
    }

    /// Everything has arrived: the first packet of the reply says so (Rx notes 6.2). Returns the bytes that were under way.
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
        self.lost = VecDeque::new();
        self.log = VecDeque::new();
        self.unsent = VecDeque::new();
        (self.unsent_len, self.held_len, self.in_flight, self.in_flight_packets) = (0, 0, 0, 0);
        (self.unknown, self.received) = (0, 0);
        self.reorder_deadline = None;
        was
    }

    /// Whether an answer of the peer is awaited: something is under way, or its window is shut.
    fn awaits_ack(&self) -> bool {
        self.in_flight_packets > 0 || self.unknown > 0 || self.is_blocked_by_window()
    }

    /// When [`Self::handle_timer`] is due.
    pub(crate) fn deadline(&self, rtt: &Rtt, peer_delay: Duration) -> Option<Instant> {
        let ack = self.awaits_ack().then(|| {
            let wait = if self.probed {
                let once = rtt.timeout(peer_delay);
                (once * 2u32.saturating_pow(self.backoff.min(10))).min(self.patience.max(once))
            } else {
                rtt.probe_timeout(peer_delay)
            };
            self.progress_at + wait
        });
        [ack, self.reorder_deadline].into_iter().flatten().min()
    }

    /// Time has passed.
    pub(crate) fn handle_timer(&mut self, now: Instant, rtt: &Rtt, peer_delay: Duration) -> TimerAction {
        if self.reorder_deadline.is_some_and(|d| d <= now) {
            let mut lost = Lost::default();
            self.find_lost(now, rtt, &mut lost);
            return TimerAction::Lost { lost, left: self.take_left() };
        }
        if self.deadline(rtt, peer_delay).is_none_or(|d| d > now) {
            return TimerAction::Nothing;
        }
        self.progress_at = now;
        if !self.probed || self.in_flight_packets == 0 {
            self.probed = true;
            self.backoff += u32::from(self.in_flight_packets == 0);
            return TimerAction::Probe;
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
mod tests {
    use super::*;
    use crate::ack::AckFields;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Instant {
        Instant::ORIGIN + MS * ms
    }

    fn rtt() -> Rtt {
        let mut rtt = Rtt::new();
        (0..3).for_each(|_| rtt.handle_sample(at(0), MS * 10));
        rtt
    }

    /// Sends all that may go at `now`, one serial after another.
    fn send_all(t: &mut Transmit, now: Instant, serial: &mut u32) -> Vec<u32> {
        let mut sent = Vec::new();
        while let Some(next) = t.peek(1000) {
            *serial += 1;
            t.handle_sent(
                next.seq,
                Serial(*serial),
                next.len + 28,
                Stamp { sent_at: now, ..Stamp::default() },
            );
            sent.push(next.seq.0);
        }
        sent
    }

    fn ack(t: &mut Transmit, now: Instant, first: u32, serial: u32, table: &[u8]) -> Option<AckOutcome> {
        let fields = AckFields {
            first: Seq(first),
            previous: Seq(first + table.len() as u32),
            serial: Serial(serial),
            reason: AckReason::REQUESTED,
            window: 32,
            max_packet_len: 1444,
            natural_packet_len: 1444,
        };
        let mut body = Vec::new();
        fields.encode(table.iter().map(|&b| b == 1), true, &mut body);
        t.handle_ack(now, &Ack::parse(&body, false).unwrap(), &rtt(), false, None)
    }

    fn stream(packets: usize) -> Transmit {
        let mut t = Transmit::new(at(0), 32);
        t.write(Bytes::from(vec![7; packets * 1000]));
        t.finish();
        t
    }

    #[test]
    fn a_stream_is_cut_joined_and_ended() {
        let mut t = Transmit::new(at(0), 32);
        (0..5).for_each(|i| t.write(Bytes::from(vec![i; 450])));
        let mut serial = 0;
        assert_eq!(send_all(&mut t, at(0), &mut serial), [1, 2]);
        t.finish();
        assert_eq!(send_all(&mut t, at(0), &mut serial), [3]);
        assert_eq!(&t.payload(Seq(2))[..450], [[2u8; 350].as_slice(), &[3; 100]].concat());
        assert_eq!(t.payload(Seq(3)).len(), 250);
        assert_eq!(t.in_flight(), 2250 + 3 * 28);
    }

    #[test]
    fn an_empty_stream_is_one_empty_last_packet() {
        let mut t = Transmit::new(at(0), 32);
        assert!(t.peek(1000).is_none());
        t.finish();
        let next = t.peek(1000).unwrap();
        assert_eq!((next.len, next.last), (0, true));
    }

    #[test]
    fn a_hole_is_sent_again_once_a_later_transmission_arrived() {
        let (mut t, mut serial) = (stream(6), 0);
        send_all(&mut t, at(0), &mut serial);
        let out = ack(&mut t, at(10), 2, 6, &[0, 1, 1, 1, 1]).unwrap();
        assert_eq!(out.lost.bytes, 0, "sent at the same time: waits for reordering");
        let due = t.deadline(&rtt(), Duration::ZERO).unwrap();
        assert!(matches!(
            t.handle_timer(due, &rtt(), Duration::ZERO),
            TimerAction::Lost { lost: Lost { bytes: 1028, largest: 1028 }, .. }
        ));
        assert_eq!(send_all(&mut t, due, &mut serial), [2]);
        ack(&mut t, due + MS * 10, 7, 7, &[]).unwrap();
        assert!(t.is_complete());
    }

    #[test]
    fn what_an_ack_does_not_describe_is_neither_lost_nor_received() {
        let mut t = Transmit::new(at(0), 1000);
        t.write(Bytes::from(vec![0; 600_000]));
        let mut serial = 0;
        for ms in 0..600 {
            serial += 1;
            let next = t.peek(1000).unwrap();
            t.handle_sent(next.seq, Serial(serial), 1028, Stamp { sent_at: at(ms), ..Stamp::default() });
        }
        let mut table = [1u8; 255];
        table[0] = 0;
        let out = ack(&mut t, at(600), 1, 600, &table).unwrap();
        assert_eq!(out.lost.bytes, 1028, "only the described hole");
        assert_eq!(out.acked, 254 * 1028);
        assert_eq!(
            t.in_flight_packets() + 342,
            345,
            "what was sent well before the packet that arrived has left the path"
        );
        assert_eq!(send_all(&mut t, at(600), &mut serial), [1]);
        // The hole filled, one of the unknown ones turns out missing.
        let mut table = vec![0u8; 4];
        table[1..].fill(1);
        let out = ack(&mut t, at(610), 597, 601, &table).unwrap();
        assert_eq!(out.acked, 1028 + 341 * 1028 + 3 * 1028);
        assert_eq!(send_all(&mut t, at(610), &mut serial), [597]);
    }

    #[test]
    fn a_packet_taken_back_is_sent_again() {
        let (mut t, mut serial) = (stream(3), 0);
        send_all(&mut t, at(0), &mut serial);
        ack(&mut t, at(10), 1, 3, &[1, 1, 1]).unwrap();
        assert!(t.is_complete());
        ack(&mut t, at(20), 2, 3, &[0, 1]).unwrap();
        assert!(!t.is_complete());
        assert_eq!(send_all(&mut t, at(20), &mut serial), [2]);
    }

    #[test]
    fn overtaken_and_malformed_acks_change_nothing() {
        let (mut t, mut serial) = (stream(6), 0);
        send_all(&mut t, at(0), &mut serial);
        ack(&mut t, at(10), 4, 6, &[]).unwrap();
        assert!(ack(&mut t, at(10), 3, 6, &[]).is_none());
        assert!(ack(&mut t, at(10), 8, 6, &[]).is_none());
        assert_eq!(t.in_flight_packets(), 3);
    }

    #[test]
    fn silence_brings_a_probe_and_then_a_timeout_that_doubles() {
        let (mut t, mut serial) = (stream(2), 0);
        send_all(&mut t, at(0), &mut serial);
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..6 {
            let due = t.deadline(&rtt(), Duration::ZERO).unwrap();
            waits.push(due.since(now).as_millis());
            now = due;
            if let TimerAction::TimedOut { lost } = t.handle_timer(now, &rtt(), Duration::ZERO) {
                assert_eq!(lost.bytes, 2056);
                assert_eq!(send_all(&mut t, now, &mut serial), [1, 2]);
            }
        }
        assert_eq!(waits, [25, 30, 25, 60, 25, 120]);
    }
}
