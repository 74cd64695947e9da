//! What ACKs say of a call's packets (Rx notes 7.2, 7.3), and which of them are lost: RACK on serials (RFC 8985, with
//! transmissions named exactly). A packet is lost once a transmission made sufficiently later is known to have arrived, and
//! the ACK speaks of the packet and does not have it.

use super::{AckOutcome, Lost, MAX_HOLES, State, Transmit};
use crate::ack::{Ack, AckReason, MAX_TABLE};
use crate::ids::{Seq, Serial};
use crate::rtt::Rtt;
use crate::time::Instant;

impl Transmit {
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
    pub(super) fn take_back(&mut self, seq: Seq) {
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
        self.losses.note(seq);
        // A peer that has a packet, has it not, has it again, leaves an entry each time.
        if self.lost.len() > 2 * self.packets.len() + 16 {
            let packets = self.packets.iter().zip(0..);
            let still = packets.filter(|(p, _)| p.state == State::Lost).map(|(_, i)| self.base.plus(i));
            self.lost = still.collect();
        }
    }

    /// Looks at all transmissions made well before one that arrived: what they carried is no longer under way. It is lost
    /// if the ACK speaks of it and does not have it.
    pub(super) fn find_lost(&mut self, now: Instant, rtt: &Rtt, lost: &mut Lost) {
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

    pub(super) fn give_up(&mut self, seq: Seq, lost: &mut Lost) {
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
    pub(super) const fn take_left(&mut self) -> u64 {
        std::mem::replace(&mut self.left, 0)
    }
}
