//! The reading of ACKs: which packets of a call have arrived (Rx notes 7.2, 7.3; docs/rx-extensions.md), and which are lost:
//! RACK on serials (RFC 8985, with transmissions named exactly). A packet is lost once a transmission made sufficiently
//! later is known to have arrived, and the ACK speaks of the packet and does not have it. How much later is sufficient the
//! path knows (see `reordering`).

use super::{AckOutcome, LOG_SPARE, Lost, Resent, Sent, State, Transmit};
use crate::ack::{Ack, AckReason, Described};
use crate::ids::{Seq, Serial};
use crate::reordering::Reordering;
use crate::rtt::Rtt;
use crate::time::Instant;
use std::time::Duration;

/// Packets that have overtaken one which make its loss likely (RFC 8985, as RFC 5681: DupThresh).
const OVERTAKEN_BY: u32 = 3;

/// An ACK on its way through the packets.
struct Reading<'a> {
    now: Instant,
    rtt: &'a Rtt,
    reordering: &'a mut Reordering,
    /// The transmission that it names, if it is one of ours.
    named: Option<(Serial, Seq)>,
    reason: AckReason,
    /// The packets that the previous ACK described.
    described: Described,
    highest: Seq,
    out: AckOutcome,
}

impl Transmit {
    fn place_in_log(&self, serial: Serial) -> Option<usize> {
        self.log
            .binary_search_by(|sent| match sent.serial.is_after(serial) {
                true => std::cmp::Ordering::Greater,
                false if sent.serial == serial => std::cmp::Ordering::Equal,
                false => std::cmp::Ordering::Less,
            })
            .ok()
    }

    /// Reads an ACK (Rx notes 7.2, 7.3). `None` when it says nothing new because it was overtaken, or is malformed.
    /// `trusts_serials` if a peer of our own sent it: what its serial names has arrived, whether or not it speaks of it.
    /// `ping_sent_at` if it answers a ping: when that was sent.
    pub(crate) fn handle_ack(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        rtt: &Rtt,
        reordering: &mut Reordering,
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
        let place = if ack.serial == Serial::NONE { None } else { self.place_in_log(ack.serial) };
        let mut reading = Reading {
            now,
            rtt,
            reordering,
            named: place.map(|i| (ack.serial, self.log[i].seq)),
            reason: ack.reason,
            described: self.described,
            highest: self.highest,
            out: AckOutcome { named: place.is_some(), ..AckOutcome::default() },
        };
        let (mut prompted_at, learnt_at) = (ping_sent_at, self.learnt_at);
        if let Some(place) = place {
            self.judge_repetition(place, &mut reading);
            let seq = self.log[place].seq;
            let current = self.packet(seq).filter(|p| p.serial == ack.serial).map(|p| p.stamp.sent_at);
            if let Some(sent_at) = current {
                // A delayed ACK's serial says when the delay began, not how long the way is (Rx notes 7.1).
                reading.out.rtt = (ack.reason != AckReason::DELAY).then(|| now.since(sent_at));
                prompted_at = Some(sent_at);
                self.note_arrived(sent_at, ack.serial);
            }
            if trusts_serials {
                self.mark_received(seq, &mut reading);
                if ack.reason == AckReason::EXCEEDS_WINDOW {
                    self.note_refused(seq);
                }
            }
        }
        if let Some(sent_at) = ping_sent_at {
            self.note_arrived(sent_at, ack.serial);
        }
        let is_later = prompted_at.is_some_and(|at| at >= learnt_at);
        while self.base < ack.first {
            self.mark_received(self.base, &mut reading);
            let Some(packet) = self.packets.pop_front() else { break };
            if packet.state == State::Received {
                self.received -= 1;
                self.received_len -= packet.payload.len();
            }
            self.held_len -= packet.payload.len();
            self.base = self.base.plus(1);
        }
        self.known.remove_below(self.base);
        let described = ack.described();
        if ack.has_ranges() {
            self.read_ranges(ack, described, is_later, &mut reading);
        } else {
            self.read_table(ack, described, &mut reading);
        }
        self.find_unknown(described);
        self.described = described;
        self.find_lost(now, rtt, reading.reordering, &mut reading.out.lost);
        if self.recovers_until.is_some_and(|until| self.base >= until) {
            self.recovers_until = None;
            reading.reordering.handle_recovered();
        }
        let mut out = reading.out;
        out.left = self.take_left();
        if out.acked > 0 || out.named || ping_sent_at.is_some() {
            (self.progress_at, self.probed, self.backoff) = (now, false, 0);
        }
        Some(out)
    }

    /// Marks what an ACK's ranges name. Only an ACK that was prompted by what we sent after we had learnt all that we know (`is_later`)
    /// can take anything back: others may have been overtaken. The first packet it always speaks of, and lacks; of the others it has to
    /// speak of all.
    fn read_ranges(
        &mut self,
        ack: &Ack<'_>,
        described: Described,
        is_later: bool,
        reading: &mut Reading<'_>,
    ) {
        let mut fresh = std::mem::take(&mut self.fresh);
        let end = self.sent_until();
        let mut confirmed = 0;
        for range in ack.ranges() {
            let range = range.start.max(self.base)..range.end.min(end);
            confirmed += range.end.after(range.start).unwrap_or(0);
            self.known.insert(range, |part| fresh.push(part));
        }
        for part in fresh.drain(..) {
            (part.start.0..part.end.0).for_each(|seq| self.mark_received(Seq(seq), reading));
        }
        self.fresh = fresh;
        let speaks_of_all = described == Described::ALL;
        if is_later && !speaks_of_all {
            self.take_back(self.base);
        }
        if is_later && speaks_of_all && self.received > confirmed + self.refused.len() as u32 {
            self.known.clear();
            for range in ack.ranges() {
                self.known.insert(range.start.max(self.base)..range.end.min(end), |_| ());
            }
            for offset in 0..self.packets.len() as u32 {
                let seq = self.base.plus(offset);
                if !self.known.contains(seq) && !self.refused.contains(&seq) {
                    self.take_back(seq);
                }
            }
        }
    }

    fn read_table(&mut self, ack: &Ack<'_>, described: Described, reading: &mut Reading<'_>) {
        let table_len = ack.table.len();
        let mut confirmed = 0;
        for offset in 0..table_len.min(self.packets.len() as u32) {
            match ack.table.is_received(offset) {
                Some(true) => {
                    confirmed += 1;
                    self.mark_received(self.base.plus(offset), reading);
                }
                Some(false) => self.take_back(self.base.plus(offset)),
                None => {}
            }
        }
        // What was soft-acknowledged and is no longer must go again (Rx notes 7.2): a restarted peer has forgotten it.
        if described == Described::ALL && self.received > confirmed {
            for offset in table_len..self.packets.len() as u32 {
                self.take_back(self.base.plus(offset));
            }
        }
    }

    /// Finds the packets whose fate was unknown, and that this ACK describes without having them.
    fn find_unknown(&mut self, described: Described) {
        if self.unknown.is_empty() {
            return;
        }
        let found: Vec<Seq> = self.unknown.iter().copied().filter(|&seq| described.contains(seq)).collect();
        found.into_iter().for_each(|seq| self.take_back(seq));
    }

    /// An ACK was prompted by a transmission that repeats a packet: whether the one before had arrived.
    fn judge_repetition(&mut self, place: usize, reading: &mut Reading<'_>) {
        if std::mem::take(&mut self.log[place].repeats) && reading.reason == AckReason::DUPLICATE {
            let len = u64::from(self.log[place].wire_len);
            note_spurious(len, reading);
        }
    }

    fn mark_received(&mut self, seq: Seq, reading: &mut Reading<'_>) {
        let Some(packet) = self.packet(seq) else { return };
        let len = u64::from(packet.wire_len);
        let (state, stamp, serial, resent) = (packet.state, packet.stamp, packet.serial, packet.resent);
        if matches!(state, State::Received | State::Waiting) {
            self.refused.remove(&seq);
            return;
        }
        packet.state = State::Received;
        let payload_len = packet.payload.len();
        self.received += 1;
        self.received_len += payload_len;
        self.learnt_at = reading.now;
        self.highest = self.highest.max(seq);
        // Which of its transmissions arrived is not certain if there were several. One that is acknowledged sooner than it
        // can be did not (RFC 8985, section 6.2), nor one that the ACK does not name though it names another.
        let named = reading.named.filter(|(_, s)| *s == seq).map(|(serial, _)| serial);
        let too_soon = reading.now.since(stamp.sent_at) < reading.rtt.min() / 16 * 15;
        let is_earlier = resent != Resent::No
            && (state == State::Lost || named.is_some_and(|s| s != serial) || (named.is_none() && too_soon));
        match resent {
            Resent::No => {
                self.note_arrived(stamp.sent_at, serial);
                if seq < reading.highest && reading.described.contains(seq) {
                    reading.reordering.handle_overtaken(reading.now);
                }
            }
            Resent::Lost if is_earlier => {
                note_spurious(len, reading);
                if let Some(place) = self.place_in_log(serial) {
                    self.log[place].repeats = false; // counted
                }
            }
            Resent::Probe if !is_earlier && named.is_some() && reading.reason != AckReason::DUPLICATE => {
                reading.out.repaired += len;
            }
            Resent::Lost | Resent::Probe => {}
        }
        match state {
            State::InFlight => {
                self.in_flight -= len;
                self.in_flight_packets -= 1;
                reading.out.landed += len;
            }
            State::Unknown => _ = self.unknown.remove(&seq),
            State::Lost | State::Waiting | State::Received => {}
        }
        let out = &mut reading.out;
        out.acked += len;
        out.largest = out.largest.max(len as usize);
        if !is_earlier && out.newest.is_none_or(|s| s.sent_at <= stamp.sent_at) {
            out.newest = Some(stamp);
        }
        if stamp.train != 0 {
            let counted = if out.train.0 == stamp.train { out.train.1 } else { 0 };
            out.train = (stamp.train, counted + len);
        }
    }

    /// A packet that has arrived was beyond what the peer takes, which threw it away: it goes again when the window covers it.
    /// Until then the call is not at its end.
    fn note_refused(&mut self, seq: Seq) {
        if self.packet(seq).is_some_and(|p| p.state == State::Received) {
            self.refused.insert(seq);
        }
    }

    /// Sends refused packets again that the peer's window covers now: it took nothing beyond the window until then.
    pub(super) fn resend_refused(&mut self) {
        let edge = self.base.plus(self.window);
        while let Some(seq) = self.refused.pop_first() {
            if seq >= edge {
                self.refused.insert(seq);
                return;
            }
            self.take_back(seq);
        }
    }

    fn note_arrived(&mut self, sent_at: Instant, serial: Serial) {
        let (at, newest) = self.newest_arrived;
        if sent_at > at || (sent_at == at && serial.is_after(newest)) {
            self.newest_arrived = (sent_at, serial);
        }
    }

    /// An ACK says that the peer does not have what it had said to have, or what no ACK had spoken of.
    pub(super) fn take_back(&mut self, seq: Seq) {
        let Some(packet) = self.packet(seq) else { return };
        match packet.state {
            State::Received => {
                let len = packet.payload.len();
                self.received -= 1;
                self.received_len -= len;
                self.refused.remove(&seq);
            }
            State::Unknown => _ = self.unknown.remove(&seq),
            State::Waiting | State::InFlight | State::Lost => return,
        }
        self.note_lost(seq);
    }

    fn note_lost(&mut self, seq: Seq) {
        let next = self.next_seq();
        let Some(packet) = self.packet(seq) else { return };
        (packet.state, packet.resent) = (State::Lost, Resent::Lost);
        self.recovers_until.get_or_insert(next);
        self.lost.insert(seq);
        self.losses.note(seq);
    }

    /// Looks at all transmissions made well before one that arrived: what they carried is no longer under way. It is lost
    /// if the ACK speaks of it and does not have it.
    pub(super) fn find_lost(&mut self, now: Instant, rtt: &Rtt, reordering: &Reordering, lost: &mut Lost) {
        self.reorder_deadline = None;
        let is_obvious = self.received >= OVERTAKEN_BY || self.recovers_until.is_some();
        let patience = reordering.window(rtt, is_obvious);
        let round_trip = rtt.smoothed().max(rtt.latest());
        let (newest, newest_serial) = self.newest_arrived;
        while let Some(&sent) = self.log.get(self.judged) {
            let (serial, seq) = (sent.serial, sent.seq);
            let current = self.packet(seq).filter(|p| p.serial == serial && p.state == State::InFlight);
            let Some(sent_at) = current.map(|p| p.stamp.sent_at) else {
                self.judged += 1;
                continue;
            };
            if sent_at > newest || (sent_at == newest && !newest_serial.is_after(serial)) {
                break;
            }
            let due = sent_at + round_trip + patience;
            if now < due && newest.since(sent_at) <= patience && patience > Duration::ZERO {
                self.reorder_deadline = Some(due);
                break;
            }
            self.judged += 1;
            if self.described.contains(seq) {
                self.give_up(seq, lost);
            } else {
                self.forget(seq);
            }
        }
        self.shorten_log();
    }

    /// Forgets transmissions that nothing will be asked of.
    fn shorten_log(&mut self) {
        let spare = (2 * self.packets.len()).saturating_add(LOG_SPARE);
        while self.judged > 0
            && self.log.front().is_some_and(|sent| sent.seq < self.base || self.log.len() > spare)
        {
            self.log.pop_front();
            self.judged -= 1;
        }
    }

    /// The packet is no longer under way, and nobody knows whether it arrived.
    fn forget(&mut self, seq: Seq) {
        let Some(packet) = self.packet(seq) else { return };
        packet.state = State::Unknown;
        let len = u64::from(packet.wire_len);
        self.in_flight -= len;
        self.in_flight_packets -= 1;
        self.unknown.insert(seq);
        self.left += len;
    }

    pub(super) fn give_up(&mut self, seq: Seq, lost: &mut Lost) {
        let Some(packet) = self.packet(seq) else { return };
        let len = u64::from(packet.wire_len);
        self.in_flight -= len;
        self.in_flight_packets -= 1;
        lost.bytes += len;
        lost.largest = lost.largest.max(len as usize);
        self.note_lost(seq);
    }

    /// Has the newest packet under way sent again, before all others (a tail loss probe, RFC 8985, section 7). There is no new
    /// data to send instead: what may go has gone. Returns whether there is such a packet.
    pub(super) fn queue_tail(&mut self) -> bool {
        let base = self.base;
        let packets = &self.packets;
        let is_live = |sent: &&Sent| {
            let packet = sent.seq.after(base).and_then(|i| packets.get(i as usize));
            packet.is_some_and(|p| p.serial == sent.serial && p.state == State::InFlight)
        };
        let Some(&Sent { seq, .. }) = self.log.iter().rev().find(is_live) else { return false };
        let Some(packet) = self.packet(seq) else { return false };
        (packet.state, packet.resent) = (State::Lost, Resent::Probe);
        let len = u64::from(packet.wire_len);
        self.in_flight -= len;
        self.in_flight_packets -= 1;
        self.left += len;
        self.lost.insert(seq);
        self.tail = Some(seq);
        true
    }

    /// Bytes that left the flight with an unknown fate since this was last asked.
    pub(super) const fn take_left(&mut self) -> u64 {
        std::mem::replace(&mut self.left, 0)
    }
}

/// A packet of so many bytes that had been given up has arrived.
fn note_spurious(len: u64, reading: &mut Reading<'_>) {
    reading.out.spurious += 1;
    reading.out.spurious_bytes += len;
    reading.reordering.handle_spurious(reading.now, reading.rtt);
}
