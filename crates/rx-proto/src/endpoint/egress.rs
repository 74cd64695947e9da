//! The order of sending: small packets of any path come first, then data. Each owner gets the same number of bytes of data
//! (`fair`). The paths of an owner take turns, and so do the calls of a path (`owner_queues`). Data leave in bundles of equal
//! packets that the kernel splits.

use super::{Endpoint, data_capacity};
use crate::ack::{ACK_FIXED_LEN, AckFields, AckReason, RANGE_LEN};
use crate::fair::Owner;
use crate::ids::ChannelRef;
use crate::ids::{CallNumber, Seq, Serial};
use crate::packet::{BASE_PACKET_LEN, Flags, HEADER_LEN, Header, MIN_PACKET_LEN, PacketType};
use crate::path::{Control, Path, PeerKind, Permit};
use crate::pieces;
use crate::receive::AckForm;
use crate::time::Instant;
use crate::transmit::Next;
use bytes::Bytes;
use std::net::SocketAddr;

/// Bytes of an ACK with an empty table: what a padded ping starts from.
const EMPTY_ACK_LEN: usize = HEADER_LEN + ACK_FIXED_LEN + 3 + 20;

/// Most ranges in an ACK, however large the packets of the path are: reading them costs the peer some tens of microseconds.
const MAX_RANGES: usize = 1024;

/// Bytes that an owner may send in its turn: a bundle, which is at most so long. Less makes no difference, more makes the
/// turns of many owners long.
pub(super) const TURN: u32 = 64 << 10;
/// The bytes that an owner may send ahead of all others after having been quiet: the first reply of most who come anew.
pub(super) const FRESH: u32 = 128 << 10;

/// One call of the kernel's send: a packet, or several of equal length but for the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmission {
    /// The destination.
    pub to: SocketAddr,
    /// Length of each packet in the buffer; the last may be shorter.
    pub segment_len: usize,
    /// True if the network must not fragment it. Clear only for packets that were cut before the path turned out narrower.
    pub dont_fragment: bool,
}

/// Packets that the kernel is given together, and cuts at equal lengths; the last may be shorter.
#[derive(Debug, Default)]
struct Bundle {
    packets: usize,
    /// Payload of the first packet, as it is before it is sealed, and the most that such a one may have.
    plain_len: usize,
    capacity: usize,
    /// The first packet's length.
    segment_len: usize,
    keeps_whole: bool,
    /// It is one packet that does not go whole, for a peer that takes it in pieces.
    in_pieces: bool,
    is_over: bool,
}

impl Bundle {
    /// True if a packet may follow, of a call whose packets take up to `capacity`, with `bytes` in the bundle so far. Calls of
    /// one path with the same capacity have the same security, so that equal payloads are sealed to equal lengths.
    const fn takes(&self, next: &Next, capacity: usize, bytes: usize, path: &Path) -> bool {
        !self.is_over
            && capacity == self.capacity
            && next.len <= self.plain_len
            && bytes + self.segment_len <= u16::MAX as usize - 100
            && !is_oversized(next, capacity, path)
    }
}

/// True if a packet was cut when longer ones passed, or has to get there while it is in doubt whether those of its size do.
const fn is_oversized(next: &Next, capacity: usize, path: &Path) -> bool {
    let goes_small = next.again && path.takes_pieces() && path.mtu.is_in_doubt();
    next.len > capacity || (goes_small && next.len + HEADER_LEN > MIN_PACKET_LEN)
}

impl Endpoint {
    /// Puts what to send now into `out`, which is cleared first. `None` when there is nothing, until time has
    /// passed or something has happened.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Transmission> {
        out.clear();
        let (credits, mut calls) = self.credits();
        credits.grant(now, &mut calls);
        while let Some(index) = self.ready.pop_front() {
            // Entries of paths that went meanwhile are passed over here.
            if self.paths.get(index).is_none_or(|p| !p.is_ready) {
                continue;
            }
            let sent = self.transmit_control(now, index, out);
            let path = &mut self.paths[index];
            if let Some((segment_len, dont_fragment)) = sent {
                self.ready.push_back(index);
                return Some(Transmission { to: path.peer, segment_len, dont_fragment });
            }
            path.is_ready = false;
            while let Some(owner) = path.owner_queues.poll_asking() {
                self.senders.push(now, owner, index);
            }
            if path.connections == 0 && !path.is_verified() {
                self.remove_path(index);
            }
        }
        while let Some((owner, index)) = self.senders.pop(now) {
            if !self.paths.get_mut(index).is_some_and(|p| p.owner_queues.take_asking(owner)) {
                continue;
            }
            let Some((segment_len, dont_fragment)) = self.transmit_data(now, index, owner, out) else {
                // It asks again when something has been acknowledged, or its time has come.
                continue;
            };
            self.senders.charge(now, owner, out.len() as u64);
            let path = &mut self.paths[index];
            path.owner_queues.handle_sent(owner, out.len());
            while let Some(owner) = path.owner_queues.poll_asking() {
                self.senders.push(now, owner, index);
            }
            return Some(Transmission { to: path.peer, segment_len, dont_fragment });
        }
        None
    }

    fn transmit_control(&mut self, now: Instant, index: usize, out: &mut Vec<u8>) -> Option<(usize, bool)> {
        while let Some(control) = self.paths[index].control.pop_front() {
            let dont_fragment = match control {
                Control::Ack(at) => {
                    self.trace_ack_sent(now, at);
                    self.build_due_ack(at, out);
                    self.drop_if_over(now, at);
                    true
                }
                Control::Packet { bytes, dont_fragment } => {
                    out.extend_from_slice(&bytes);
                    dont_fragment
                }
            };
            if !self.paths[index].is_within_reach_limit(out.len()) {
                out.clear();
                self.stats.withheld += 1;
                continue;
            }
            if !out.is_empty() {
                self.paths[index].note_sent(out.len());
                self.stats.note_sent(PacketType(out[20]));
                return Some((out.len(), dont_fragment));
            }
        }
        None
    }

    /// A bundle of an owner's calls on this path: of as many as there is room for if they are short, as replies to small calls
    /// are of one length and cost the kernel little more together than one does. `None` if none of them may send, or the path
    /// may not.
    fn transmit_data(
        &mut self,
        now: Instant,
        index: usize,
        owner: Owner,
        out: &mut Vec<u8>,
    ) -> Option<(usize, bool)> {
        let mut held_by_peer = false;
        let mut bundle = Bundle::default();
        while let Some(at) = self.paths[index].owner_queues.pop(owner) {
            if !self.is_queued(index, &at) {
                continue;
            }
            let capacity = self.capacity(at);
            let Some(call) = self.connections[at.connection].call_mut(at.channel) else { continue };
            let Some(next) = call.tx.peek(capacity) else {
                held_by_peer |= call.tx.is_blocked_by_window();
                call.queued = false;
                continue;
            };
            let so_far = call.bytes_sent;
            let permit = self.paths[index].permit(now, next.len + HEADER_LEN);
            if bundle.packets > 0
                && (permit != Permit::Go || !bundle.takes(&next, capacity, out.len(), &self.paths[index]))
            {
                self.paths[index].owner_queues.unpop(owner, at, so_far);
                break;
            }
            match permit {
                Permit::Go => {}
                Permit::Full => {
                    self.paths[index].owner_queues.unpop(owner, at, so_far);
                    return None;
                }
                Permit::At(when) => {
                    self.paths[index].owner_queues.unpop(owner, at, so_far);
                    self.paths[index].send_at = Some(when);
                    self.rearm_path(index);
                    return None;
                }
                Permit::Unverified => {
                    self.paths[index].owner_queues.unpop(owner, at, so_far);
                    self.stats.withheld += 1;
                    self.ask_reach(now, at);
                    // The ping itself may go.
                    return self.transmit_control(now, index, out);
                }
            }
            self.fill_bundle(now, index, at, &mut bundle, out);
            let connection = &mut self.connections[at.connection];
            let path = &mut self.paths[index];
            let capacity = data_capacity(&*connection.security, path);
            if let Some(call) = connection.call_mut(at.channel) {
                if call.tx.has_work(capacity) {
                    path.owner_queues.push(owner, at, call.bytes_sent);
                    bundle.is_over = true;
                } else {
                    if call.tx.is_blocked_by_window() {
                        path.note_app_limited(true);
                    }
                    call.queued = false;
                }
            }
            self.rearm_connection(at.connection);
            if bundle.is_over || bundle.packets >= self.config.max_bundle {
                break;
            }
        }
        let is_all = self.paths[index].owner_queues.is_empty();
        if is_all {
            self.paths[index].note_nothing_to_send(held_by_peer);
        }
        if bundle.in_pieces {
            bundle.segment_len = self.paths[index].piece_len();
            pieces::split(out, bundle.segment_len);
        }
        if bundle.packets > 0 {
            return Some((bundle.segment_len, bundle.keeps_whole));
        }
        if !is_all {
            self.wake_path(index); // its other owners, of whom perhaps not all have asked
        }
        None
    }

    /// True if an entry of a path's queue is of a call that is there and stands in it.
    pub(super) fn is_queued(&self, path: usize, at: &ChannelRef) -> bool {
        let connection = self.connections.get(at.connection).filter(|c| c.path == path);
        connection.and_then(|c| c.call(at.channel)).is_some_and(|c| c.queued)
    }

    /// Adds packets of one call until the bundle is full or something forbids the next.
    fn fill_bundle(
        &mut self,
        now: Instant,
        index: usize,
        at: ChannelRef,
        bundle: &mut Bundle,
        out: &mut Vec<u8>,
    ) {
        let connection = &mut *self.connections[at.connection];
        let path = &mut *self.paths[index];
        let capacity = data_capacity(&*connection.security, path);
        // The new call tells the server that it need not keep the reply to the one before.
        connection.take_delayed_final_ack(at.channel);
        let begin = out.len();
        for packet in bundle.packets..self.config.max_bundle.max(1) {
            let Some(call) = connection.call_mut(at.channel) else { break };
            let Some(next) = call.tx.peek(capacity) else { break };
            let takes = packet == 0 || bundle.takes(&next, capacity, out.len(), path);
            if !takes || (packet > 0 && path.permit(now, next.len + HEADER_LEN) != Permit::Go) {
                bundle.is_over = true;
                break;
            }
            let (number, status, payload) = (call.number, call.status, call.tx.payload(next.seq).clone());
            let upgrade = connection.upgrade && connection.is_client() && next.seq == Seq::FIRST;
            let mut header = connection.header(PacketType::DATA, at.channel, number);
            header.seq = next.seq;
            header.user_status = if upgrade { 1 } else { status };
            if next.last {
                header.flags = header.flags.with(Flags::LAST_PACKET);
            }
            let start = out.len();
            out.extend_from_slice(&[0; HEADER_LEN]);
            connection.security.prepare(&mut header, &payload, out);
            let Some(call) = connection.call_mut(at.channel) else { break };
            let len = out.len() - start;
            let oversized = is_oversized(&next, capacity, path);
            let in_pieces = oversized && path.takes_pieces();
            let stamp = path.handle_data_sent(now, len, next.again);
            call.tx.handle_sent(next.seq, header.serial, len, stamp);
            call.wait.note_sent(now);
            call.trace_sent(now, &next, path);
            if !next.again {
                call.bytes_sent += next.len as u64;
                self.stats.bytes_written += next.len as u64;
            }
            // The peer is asked for an ACK where nothing else would bring one: for what is sent again, and at the end of
            // what may be sent; never on the first way of a reply's last packet (Rx notes 10, 17.7).
            let room = path.window().saturating_sub(path.in_flight());
            let at_end = !next.last && (room < len as u64 || !call.tx.has_work(capacity));
            // A short request would never show how far the server is: its reply comes when it comes.
            let measures = next.last && connection.is_client() && path.rtt.wants_sample(now);
            if next.again || at_end || measures || (!next.last && !path.rtt.is_known()) {
                header.flags = header.flags.with(Flags::REQUEST_ACK);
            }
            out[start..start + HEADER_LEN].copy_from_slice(&header.to_bytes());
            self.stats.note_sent(PacketType::DATA);
            self.stats.data_resent += u64::from(next.again);
            if packet == 0 {
                *bundle = Bundle {
                    plain_len: next.len,
                    capacity,
                    segment_len: len,
                    keeps_whole: in_pieces || (!oversized && path.mtu.keeps_whole(len)),
                    in_pieces,
                    ..Bundle::default()
                };
                path.send_at = None;
            }
            bundle.packets += 1;
            assert!(
                len <= bundle.segment_len,
                "a security class seals equal lengths to equal lengths, shorter ones to no more"
            );
            // A packet shorter than the first ends the bundle: the kernel cuts at equal lengths.
            bundle.is_over = len < bundle.segment_len || oversized;
            if bundle.is_over || next.len < capacity {
                break;
            }
        }
        if begin < out.len() {
            let packets = out[begin..].chunks_mut(bundle.segment_len);
            connection.security.finish(&mut packets.map(|packet| &mut packet[HEADER_LEN..]));
        }
    }

    // ---- small packets

    pub(super) fn push_packet(&mut self, path: usize, header: Header, body: &[u8]) {
        let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(body);
        // A RESPONSE with a long ticket is the only one beyond what passes everywhere, and there is no other way to send it
        // (Security notes 2.3).
        let dont_fragment = bytes.len() <= MIN_PACKET_LEN;
        self.push_bytes(path, bytes.into(), dont_fragment);
    }

    pub(super) fn push_bytes(&mut self, path: usize, bytes: Bytes, dont_fragment: bool) {
        self.paths[path].push_control(Control::Packet { bytes, dont_fragment });
    }

    /// The largest packet we say to take, and the size we use: a stock peer hears the base size.
    fn packet_lens(&self, path: usize) -> (u32, u32) {
        let path = &self.paths[path];
        let longest = self.credits.longest_packet();
        match path.peer_kind() {
            PeerKind::Own => (longest as u32, path.packet_len() as u32),
            PeerKind::Unknown if self.config.announce => {
                (longest.min(self.config.max_packet_len) as u32, BASE_PACKET_LEN as u32)
            }
            PeerKind::Stock | PeerKind::Unknown => (BASE_PACKET_LEN as u32, BASE_PACKET_LEN as u32),
        }
    }

    /// The form in which ACKs tell the peer of a path what has arrived: the longest that fits, or one that stays small.
    fn ack_form(&self, path: usize, is_long: bool) -> AckForm {
        let path = &self.paths[path];
        if !self.config.announce || !path.view().takes_ranges {
            return AckForm::Table;
        }
        let room = path.packet_len().saturating_sub(EMPTY_ACK_LEN + 4) / RANGE_LEN;
        if is_long { AckForm::Ranges(room.min(MAX_RANGES)) } else { AckForm::FewRanges }
    }

    fn build_due_ack(&mut self, at: ChannelRef, out: &mut Vec<u8>) {
        let path = self.connections[at.connection].path;
        let lens = self.packet_lens(path);
        let announce = self.config.announce;
        let connection = &mut *self.connections[at.connection];
        let Some(call) = connection.call_mut(at.channel) else { return };
        call.ack_queued = false;
        if !call.rx.is_ack_due() {
            return;
        }
        let is_asked = call.rx.is_asked();
        let (reason, serial) = call.rx.take_due();
        let (number, status) = (call.number, call.status);
        let fields = call.rx.fields(reason, serial, lens);
        let mut header = connection.header(PacketType::ACK, at.channel, number);
        header.user_status = status;
        out.extend_from_slice(&header.to_bytes());
        let form = self.ack_form(path, is_asked);
        if let Some(call) = self.connections[at.connection].call(at.channel) {
            call.rx.encode_ack(&fields, form, announce, out);
        }
    }

    /// A ping of the call on this channel, padded to `len` bytes.
    pub(super) fn build_ping(&mut self, at: ChannelRef, len: usize) -> Bytes {
        self.stats.pings_sent += 1;
        self.build_call_ack(at, AckReason::PING, Serial::NONE, Flags::REQUEST_ACK, len)
    }

    /// An ACK with the state of the call on this channel, if there is one.
    fn build_call_ack(
        &mut self,
        at: ChannelRef,
        reason: AckReason,
        serial: Serial,
        flags: Flags,
        len: usize,
    ) -> Bytes {
        let path = self.connections[at.connection].path;
        let lens = self.packet_lens(path);
        let announce = self.config.announce;
        let form = self.ack_form(path, len == 0); // a probe of the packet size is filled up with zeros
        let connection = &mut *self.connections[at.connection];
        let Some(call) = connection.call_mut(at.channel) else { return Bytes::new() };
        let (number, status) = (call.number, call.status);
        let fields = call.rx.fields(reason, serial, lens);
        let mut header = connection.header(PacketType::ACK, at.channel, number);
        header.flags = header.flags.with(flags);
        header.user_status = status;
        let mut bytes = Vec::with_capacity(len.max(EMPTY_ACK_LEN + 255));
        bytes.extend_from_slice(&header.to_bytes());
        if let Some(call) = connection.call(at.channel) {
            call.rx.encode_ack(&fields, form, announce, &mut bytes);
        }
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        bytes.into()
    }

    /// Builds the ACK of a call that has ended. All that is left of the call is the next sequence number.
    pub(super) fn build_final_ack(
        &mut self,
        at: ChannelRef,
        number: CallNumber,
        next: Seq,
        reason: AckReason,
        serial: Serial,
    ) -> Bytes {
        self.build_final_ack_with(at, number, next, reason, serial, self.config.initial_window)
    }

    /// Sends the final ACK of a reply that was delayed, if there is one.
    pub(super) fn send_delayed_final_ack(&mut self, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let Some(delayed) = connection.take_delayed_final_ack(at.channel) else { return };
        let path = connection.path;
        let (reason, serial) = (AckReason::DELAY, Serial::NONE);
        let bytes =
            self.build_final_ack_with(at, delayed.number, delayed.next, reason, serial, delayed.window);
        self.push_bytes(path, bytes, true);
        self.wake_path(path);
    }

    fn build_final_ack_with(
        &mut self,
        at: ChannelRef,
        number: CallNumber,
        next: Seq,
        reason: AckReason,
        serial: Serial,
        window: u32,
    ) -> Bytes {
        let lens = self.packet_lens(self.connections[at.connection].path);
        let fields = AckFields {
            first: next,
            previous: Seq(next.0.saturating_sub(1)),
            serial,
            reason,
            window,
            max_packet_len: lens.0,
            natural_packet_len: lens.1,
        };
        let mut header = self.connections[at.connection].header(PacketType::ACK, at.channel, number);
        if reason == AckReason::PING {
            header.flags = header.flags.with(Flags::REQUEST_ACK);
        }
        let mut bytes = header.to_bytes().to_vec();
        fields.encode(std::iter::empty(), self.config.announce, &mut bytes);
        bytes.into()
    }

    /// Asks the peer of a call what it has, whether it is there and how far away; padded to `len`, whether such packets pass.
    pub(super) fn ping(&mut self, now: Instant, at: ChannelRef, len: usize) {
        let bytes = self.build_ping(at, len);
        let connection = &mut self.connections[at.connection];
        let (path, serial) = (connection.path, connection.last_serial());
        let is_stranger = !self.paths[path].is_verified();
        if let Some(call) = connection.call_mut(at.channel) {
            call.pinged_at = now;
            if is_stranger {
                // A ping says all that an ACK does, and a stranger's few bytes do not pay for both.
                call.rx.take_due();
            }
        }
        self.paths[path].pings.note(now, at.connection, serial, len);
        let keeps_whole = self.paths[path].mtu.probes_whole(len);
        self.push_bytes(path, bytes, keeps_whole);
        self.wake_path(path);
    }

    /// Answers a ping of the running call.
    pub(super) fn answer_ping(&mut self, now: Instant, at: ChannelRef, serial: Serial) {
        self.settle_credit(now, at); // before the peer learns that longer packets pass
        let bytes = self.build_call_ack(at, AckReason::PING_RESPONSE, serial, Flags::NONE, 0);
        let path = self.connections[at.connection].path;
        self.push_bytes(path, bytes, true);
        self.wake_path(path);
    }
}
