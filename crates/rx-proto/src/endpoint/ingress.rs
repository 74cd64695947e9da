//! The effect of an incoming packet: which connection it is for (Rx notes 5), which call (Rx notes 6), and what changes
//! there.

use super::reach::{ASK_FROM, UNPROVEN_WINDOW};
use super::{Endpoint, Event, data_capacity};
use crate::abort::AbortCode;
use crate::ack::{Ack, AckReason};
use crate::call::{CallError, Stage, Step};
use crate::connection::{ConnectionKey, Ended, Role};
use crate::ids::ChannelRef;
use crate::ids::{CallNumber, Seq};
use crate::jumbo::Subpackets;
use crate::packet::{Flags, HEADER_LEN, Header, MIN_PACKET_LEN, PacketType};
use crate::path::PeerKind;
use crate::receive::Received;
use crate::time::Instant;
use bytes::{Buf, Bytes};
use std::net::SocketAddr;
use std::time::Duration;

/// The shortest time between two answers to the peer of a call that has ended (Rx notes 13: repeats are rate-limited).
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// The same for a finished call's last ACK: its peer waits for it, but may also send a whole window of late packets.
const ACK_AGAIN: Duration = Duration::from_millis(2);
/// Answers in a row by which a peer shows that it or we have forgotten a call in the middle. One or two may be old ones: OpenAFS builds ACKs in
/// two threads (Rx notes 17.6).
const CONTRADICTIONS: u8 = 3;
/// DATA packets of a call after which its path's packet size is worth probing.
const PROBE_AFTER: u32 = 32;

impl Endpoint {
    /// Notes how many bytes, as the kernel counts, have come and wait to be given to this endpoint. The driver calls it often, at least every
    /// few milliseconds while there are any, and when there are none any more.
    pub fn handle_backlog(&mut self, now: Instant, bytes: u64) {
        let (credits, mut calls) = self.credits();
        credits.handle_backlog(now, bytes, &mut calls);
    }

    /// A datagram came. Whatever it holds, this ends well: what makes no sense is counted and dropped.
    pub fn handle_datagram(&mut self, now: Instant, from: SocketAddr, datagram: Bytes) {
        self.credits.handle_packet(datagram.len());
        let Ok(header) = Header::parse(&datagram) else {
            self.stats.bogus_packets += 1;
            return;
        };
        if header.kind != PacketType::PIECE {
            return self.handle_whole(now, from, datagram, header);
        }
        let is_known = self.by_peer.get(&from).is_some_and(|&path| self.paths[path].is_verified());
        if let Some(packet) = self.pieces.handle(from, &datagram, is_known) {
            self.handle_whole(now, from, packet, Header { kind: PacketType::DATA, ..header });
        }
    }

    fn handle_whole(&mut self, now: Instant, from: SocketAddr, mut datagram: Bytes, header: Header) {
        self.stats.note_read(header.kind);
        if self.refuse_if_away(now, from, datagram.len(), &header) {
            return;
        }
        match header.kind {
            PacketType::DEBUG | PacketType::VERSION => {
                return self.handle_question(now, from, &header, &datagram[HEADER_LEN..]);
            }
            PacketType::DATA
            | PacketType::ACK
            | PacketType::BUSY
            | PacketType::ABORT
            | PacketType::ACKALL
            | PacketType::CHALLENGE
            | PacketType::RESPONSE => {}
            _ => return,
        }
        if self.keep_if_early(now, from, &header, &datagram) {
            return;
        }
        let len = datagram.len();
        datagram.advance(HEADER_LEN);
        let key = ConnectionKey::of(&header, from);
        let Some(index) = self.lookup(now, &key).or_else(|| self.accept(now, from, len, &header, key)) else {
            return;
        };
        let connection = &mut self.connections[index];
        if connection.security_index() != header.security {
            self.stats.spurious_packets += 1;
            return;
        }
        let is_client = connection.is_client();
        let path = connection.path;
        let is_elsewhere = self.paths[path].peer != from;
        if !is_elsewhere {
            self.paths[path].handle_received(now, len);
            if !is_client && header.kind == PacketType::DATA && !self.paths[path].is_verified() {
                self.charge_unproven(now, path, len);
                if !self.connections.contains(index) {
                    return;
                }
            }
            self.note_old_address(now, index, &header);
        } else if is_client {
            if !self.is_known_address(index, from) {
                self.stats.spurious_packets += 1;
                return;
            }
        } else if self.follow_if_moved(now, from, len, &header, &datagram, index) {
            // It is there now: the packet is one like others.
        } else if !self.is_made_by_client(index, &header, &datagram) {
            self.stats.spurious_packets += 1;
            return;
        }
        self.handle_packet(now, index, header, datagram);
        let Some(connection) = self.connections.get(index) else { return };
        let path = connection.path;
        if !is_client && self.paths[path].peer != from {
            self.ask_new_address(now, from, len, header.channel, index);
        }
        if !self.paths[path].is_verified() {
            self.wake_path(path); // more may be sent to it than before
        }
        self.rearm_connection(index);
    }

    fn lookup(&mut self, now: Instant, key: &ConnectionKey) -> Option<usize> {
        if let Some((last, index)) = &self.last_found
            && last == key
        {
            return Some(*index);
        }
        self.alone_since = now;
        let found = self.by_key.get(key);
        let index = *found.or_else(|| {
            // A client that has moved, perhaps: under that name are connections alone that notice a liar.
            let may_move = key.role == Role::Server && key.epoch.ignores_address();
            may_move.then(|| self.by_key.get(&key.anywhere())).flatten()
        })?;
        self.last_found = Some((*key, index));
        Some(index)
    }

    fn handle_packet(&mut self, now: Instant, index: usize, header: Header, body: Bytes) {
        let connection = &mut self.connections[index];
        connection.last_used = now;
        let is_client = connection.is_client();
        // A stock server's refusal of a service has the service's number in the wrong place (seen of OpenAFS 1.8.9).
        if is_client && header.service != connection.service && header.kind != PacketType::ABORT {
            if !connection.upgrade {
                self.stats.spurious_packets += 1;
                return;
            }
            (connection.service, connection.upgrade) = (header.service, false);
        }
        if let (Some(code), false) = (connection.error, header.kind == PacketType::ABORT) {
            return self.push_connection_abort(index, code);
        }
        match header.kind {
            PacketType::CHALLENGE if is_client => return self.handle_challenge(now, index, &body),
            PacketType::RESPONSE if !is_client => return self.handle_response(now, index, &header, &body),
            PacketType::CHALLENGE | PacketType::RESPONSE => return,
            PacketType::ABORT if header.call == CallNumber::CONNECTION => {
                let code = abort_code(&body);
                return self.fail_connection(now, index, CallError::AbortedByPeer(code), false);
            }
            _ if header.call == CallNumber::CONNECTION => return,
            _ => {}
        }
        let at = ChannelRef { connection: index, channel: header.channel };
        if header.kind == PacketType::DATA {
            for (header, payload) in Subpackets::new(header, body) {
                self.handle_data(now, at, header, payload);
                if !self.connections.contains(index) {
                    return;
                }
            }
            return;
        }
        if !self.is_current(now, at, &header) {
            return;
        }
        if !is_client && let Err(code) = self.connections[index].security.may_go_on() {
            return self.fail_connection(now, index, CallError::Failed(code), true);
        }
        self.note_heard(now, at, &header);
        match header.kind {
            PacketType::ACK => self.handle_ack(now, at, &header, &body),
            PacketType::ACKALL => self.handle_all_acked(now, at),
            PacketType::ABORT => {
                let error = CallError::AbortedByPeer(abort_code(&body));
                self.fail_call(now, at, error, false);
            }
            // The channel still works on an older call: this one is sent again as if lost, later ones go elsewhere (Rx notes
            // 17.15).
            PacketType::BUSY => self.connections[at.connection].avoid(at.channel, now),
            _ => {}
        }
    }

    /// True if a packet other than DATA is for the channel's running call; answers for the one that has ended.
    fn is_current(&mut self, now: Instant, at: ChannelRef, header: &Header) -> bool {
        let slot = &self.connections[at.connection].slots[at.channel.index()];
        if slot.call.as_ref().is_some_and(|c| c.number == header.call && !c.stage.has_ended()) {
            return true;
        }
        if header.kind == PacketType::ACK && header.flags.contains(Flags::REQUEST_ACK) {
            let is_next = header.call.0.wrapping_sub(slot.number.0) as i32 > 0;
            let connection = &self.connections[at.connection];
            if is_next && !connection.is_client() && connection.security.is_authenticated() {
                // Its first packet was lost. Linux (7.2) sends that again once it is told, and else gives the call up.
                self.answer_for_unknown(at, header);
            } else {
                self.answer_for_ended(now, at, header, AckReason::PING_RESPONSE);
            }
        } else if header.kind == PacketType::ACK && slot.number == header.call {
            // The last ACK of a call that is over here: nothing to do.
        } else {
            self.stats.spurious_packets += 1;
        }
        false
    }

    fn note_heard(&mut self, now: Instant, at: ChannelRef, header: &Header) {
        if let Some(call) = self.connections[at.connection].call_mut(at.channel) {
            call.heard_at = now;
            call.peer_status = header.user_status;
        }
    }

    /// Answers a client that asks about a call of which no data have arrived, with a packet that is no longer than the client's own.
    /// Nothing is kept.
    fn answer_for_unknown(&mut self, at: ChannelRef, header: &Header) {
        let path = self.connections[at.connection].path;
        let (first, reason) = (Seq::FIRST, AckReason::PING_RESPONSE);
        let bytes = self.build_final_ack(at, header.call, first, reason, header.serial);
        self.push_bytes(path, bytes, true);
        self.wake_path(path);
    }

    /// The peer still sends for a call that has ended here: it missed how.
    fn answer_for_ended(&mut self, now: Instant, at: ChannelRef, header: &Header, reason: AckReason) {
        let connection = &mut self.connections[at.connection];
        let Some(ended) = &mut connection.slots[at.channel.index()].ended else { return };
        if ended.number != header.call {
            return;
        }
        let is_ping = reason == AckReason::PING_RESPONSE;
        let pause = if ended.abort.is_some() { TELL_AGAIN } else { ACK_AGAIN };
        if !is_ping && now.since(ended.told_at) < pause {
            return;
        }
        ended.told_at = now;
        let (number, abort, next) = (ended.number, ended.abort, ended.next);
        let path = connection.path;
        match abort {
            Some(code) => {
                let header = connection.header(PacketType::ABORT, at.channel, number);
                self.push_packet(path, header, &code.0.to_be_bytes());
            }
            None => {
                let bytes = self.build_final_ack(at, number, next, reason, header.serial);
                self.push_bytes(path, bytes, true);
            }
        }
        self.wake_path(path);
    }

    // ---- DATA

    pub(super) fn handle_data(&mut self, now: Instant, at: ChannelRef, header: Header, payload: Bytes) {
        let connection = &mut self.connections[at.connection];
        let is_client = connection.is_client();
        if !is_client && !connection.security.is_authenticated() {
            self.hold(at.connection, header, payload);
            return self.challenge(now, at.connection);
        }
        let slot = &connection.slots[at.channel.index()];
        let running = slot.call.as_deref();
        if header.call != slot.number || running.is_none_or(|c| c.stage.has_ended()) {
            // Not for the running call: the next one begins, or a late packet of an ended one.
            let newer = header.call.0.wrapping_sub(slot.number.0) as i32 > 0;
            if is_client || !newer {
                if slot.ended.is_some_and(|e| e.number == header.call) {
                    self.answer_for_ended(now, at, &header, AckReason::DUPLICATE);
                } else {
                    self.stats.spurious_packets += 1;
                }
                return;
            }
            if !self.make_room_for_call(now, at, &header) {
                return;
            }
            self.start_call(now, at, header.call);
        }
        self.note_heard(now, at, &header);
        let connection = &mut self.connections[at.connection];
        let payload = match connection.security.open(&header, payload) {
            Ok(payload) => payload,
            Err(code) => return self.fail_connection(now, at.connection, CallError::Failed(code), true),
        };
        let path = connection.path;
        let view = self.paths[path].view();
        if !is_client && !self.paths[path].is_verified() && header.seq.0 >= ASK_FROM {
            self.ask_reach(now, at);
            if header.seq.0 > UNPROVEN_WINDOW {
                return;
            }
        }
        let Some(call) = self.connections[at.connection].call_mut(at.channel) else { return };
        if is_client && call.stage == Stage::Request {
            // The reply's first packet acknowledges the whole request (Rx notes 6.2).
            call.stage = call.stage.after(Step::ReplyBegins);
            let forgotten = call.tx.handle_all_acked();
            call.trace_all_acked(now);
            let wakes_writer = std::mem::take(&mut call.wants_write);
            self.release_flight(path, forgotten);
            if wakes_writer {
                let handle = self.call_handle(at);
                self.events.push_back(Event::Writable(handle));
            }
        }
        if !self.may_keep_data(at, header.seq, payload.len()) {
            self.stats.unkept += 1;
            return;
        }
        let connection = &mut self.connections[at.connection];
        let is_stranger = connection.host().is_some();
        let Some(call) = connection.call_mut(at.channel) else { return };
        // What waits behind a hole may hold a whole bundle in memory.
        let is_beyond = is_stranger && header.seq > call.rx.next();
        let payload = if is_beyond { Bytes::copy_from_slice(&payload) } else { payload };
        let (before, len) = (call.rx.bytes(), payload.len());
        let received = call.rx.handle_data(now, &header, payload, view);
        call.trace_received(now, &header, len, received);
        let moved = call.rx.bytes() - before;
        self.stats.bytes_read += moved;
        match received {
            Received::Readable => {
                call.progress_at = now;
                call.stall_timer.earn(now, moved);
                let wants = call.wants_read && call.rx.is_readable();
                if wants {
                    call.wants_read = false;
                    call.stall_timer.end(now);
                }
                let handle = wants.then(|| self.call_handle(at));
                self.events.extend(handle.map(Event::Readable));
            }
            Received::Duplicate => self.stats.duplicate_packets += 1,
            Received::Held | Received::Refused => {}
        }
        self.count_unread(at);
        let (credits, mut calls) = self.credits();
        credits.handle_data(now, at, len, &mut calls);
        self.measure_if_receiving(now, at);
        self.announce(now, at); // may ping, which makes the ACK to a stranger unnecessary
        self.queue_ack(at);
    }

    /// A server's channel gets a new call: the one before must be over. Returns whether it is.
    fn make_room_for_call(&mut self, now: Instant, at: ChannelRef, header: &Header) -> bool {
        let connection = &mut self.connections[at.connection];
        if header.seq.0 > self.config.initial_window.max(self.paths[connection.path].receive_window) {
            return false;
        }
        let Some(call) = connection.call_mut(at.channel) else { return true };
        if !call.stage.has_ended() && call.tx.is_finished() {
            // The client would not call again if it had not had the whole reply: its last ACK was lost (Rx notes 6.2).
            call.stage = call.stage.after(Step::ReplyThrough);
            if call.announced {
                let handle = self.call_handle(at);
                self.events.push_back(Event::Closed(handle, None));
            }
        }
        let Some(call) = self.connections[at.connection].call_mut(at.channel) else { return true };
        if call.stage.has_ended() {
            call.rx.clear();
            call.released = true;
            self.count_unread(at);
            self.drop_if_over(now, at);
            return true;
        }
        // The client has given up a call that still runs here (Rx notes 6.1).
        self.fail_call(now, at, CallError::Failed(AbortCode::CALL_DEAD), false);
        self.stats.busies += 1;
        let connection = &mut self.connections[at.connection];
        let path = connection.path;
        let busy = connection.header(PacketType::BUSY, at.channel, header.call);
        self.push_packet(path, busy, &[]);
        self.wake_path(path);
        let connection = &mut self.connections[at.connection];
        if let Some(call) = connection.call_mut(at.channel) {
            call.released = true;
        }
        self.drop_if_over(now, at);
        false
    }

    /// A call that receives much without sending learns the round trip by asking for it: for its ACKs and its window.
    fn measure_if_receiving(&mut self, now: Instant, at: ChannelRef) {
        let connection = &self.connections[at.connection];
        let path = &self.paths[connection.path];
        let Some(call) = connection.call(at.channel) else { return };
        let streaming = call.rx.next().0 > PROBE_AFTER;
        if streaming
            && path.rtt.wants_sample(now)
            && now.since(call.pinged_at) >= path.rtt.smoothed().min(Duration::from_secs(1))
        {
            self.ping(now, at, 0);
        }
    }

    // ---- ACK

    fn handle_ack(&mut self, now: Instant, at: ChannelRef, header: &Header, body: &[u8]) {
        let Ok(ack) = Ack::parse(body, header.flags.contains(Flags::EXTENDED_SACK)) else {
            self.stats.bogus_packets += 1;
            return;
        };
        let (believes, max_window) = (self.config.announce, self.config.max_window);
        let connection = &mut self.connections[at.connection];
        let index = connection.path;
        let path = &mut self.paths[index];
        let was_own = path.peer_kind() == PeerKind::Own;
        let is_answer = ack.reason == AckReason::PING_RESPONSE;
        let ping = is_answer.then(|| path.handle_ping_response(now, at.connection, ack.serial)).flatten();
        let ping_sent_at = ping.map(|p| p.sent_at);
        let before = path.mtu.current();
        if let Some(len) = ping.and_then(|p| path.mtu.handle_response(p.len.into())) {
            path.handle_packet_len(len);
            self.stats.paths_narrowed += u64::from(len < before);
        }
        let window = path.handle_trailer(&ack.trailer, believes, max_window);
        let is_own = path.is_own();
        let Some(call) = connection.call_mut(at.channel) else { return };
        call.answered_at = call.answered_at.max(ping_sent_at.unwrap_or(Instant::ORIGIN));
        let before = call.tx.buffered();
        let outcome = call.tx.handle_ack(now, &ack, &path.rtt, &mut path.reordering, is_own, ping_sent_at);
        if let Some(out) = outcome {
            path.handle_ack(now, &out);
            self.stats.note_ack(&out);
            if let Some(window) = window {
                call.tx.set_window(window);
                if !call.window_known || path.first_window() < window {
                    path.note_window(window);
                }
                call.window_known = true;
            }
            if call.tx.buffered() < before {
                call.progress_at = now;
                call.stall_timer.earn(now, (before - call.tx.buffered()) as u64);
            }
            call.contradictions = 0;
        } else if ping_sent_at.is_some_and(|at| at > call.progress_at) && call.tx.is_contradicted_by(&ack) {
            // It was asked after it had acknowledged more, or has what we never sent: one of us has forgotten the call. An answer to
            // an earlier question says nothing: who had no time to send may have sent an ACK first that he made later.
            call.contradictions += 1;
        }
        call.trace_ack(now, &ack, outcome.as_ref(), ping_sent_at, path);
        let has_forgotten = call.contradictions >= CONTRADICTIONS;
        // Only who has seen a packet of ours can name its serial.
        if ping.is_some() || outcome.is_some_and(|o| o.named) {
            self.verify_path(now, index);
        }
        if header.flags.contains(Flags::REQUEST_ACK) || ack.reason == AckReason::PING {
            self.answer_ping(now, at, header.serial);
        }
        if has_forgotten {
            return self.fail_call(now, at, CallError::Failed(AbortCode::CALL_DEAD), true);
        }
        self.after_progress(now, at);
        if let Some(call) = self.connections[at.connection].call(at.channel) {
            let is_long = call.bytes_sent > u64::from(PROBE_AFTER) * 1416;
            if self.paths[index].mtu.is_narrow() || (is_own && (!was_own || is_long)) {
                self.probe_mtu(now, at);
            }
            self.examine_doubt(now, at);
        }
        self.queue_call(at);
        self.wake_path(index);
    }

    /// Sends the next probe of the path's packet size, if one is due. A call of the path carries it.
    fn probe_mtu(&mut self, now: Instant, at: ChannelRef) {
        let index = self.connections[at.connection].path;
        let path = &mut self.paths[index];
        let limit = path.peer_limit();
        if let Some(len) = path.mtu.poll_probe(now, limit) {
            self.ping(now, at, len);
            self.rearm_path(index);
        }
    }

    /// Asks whether packets of the size in use do not pass though small ones do, if that is in doubt. The large ping goes first: where a
    /// buffer is full, there is no more room for it than for the small one.
    pub(super) fn examine_doubt(&mut self, now: Instant, at: ChannelRef) {
        let index = self.connections[at.connection].path;
        let path = &mut self.paths[index];
        if let Some(len) = path.mtu.poll_doubt(now, path.rtt.timeout(Duration::ZERO)) {
            self.ping(now, at, len);
            self.ping(now, at, MIN_PACKET_LEN);
        }
    }

    fn handle_all_acked(&mut self, now: Instant, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let path = connection.path;
        let Some(call) = connection.call_mut(at.channel) else { return };
        if call.tx.has_begun() && call.tx.is_finished() {
            let forgotten = call.tx.handle_all_acked();
            call.trace_all_acked(now);
            self.release_flight(path, forgotten);
        }
        self.after_progress(now, at);
    }

    /// The peer has taken something: the writer may go on, or a server's reply is through.
    pub(super) fn after_progress(&mut self, now: Instant, at: ChannelRef) {
        let room = self.room(at);
        let handle = self.call_handle(at);
        let connection = &mut self.connections[at.connection];
        let is_client = connection.is_client();
        let Some(call) = connection.call_mut(at.channel) else { return };
        let has_room = |len: usize, limit: usize| len < limit - (limit / 4).min(256 << 10);
        if call.wants_write
            && has_room(call.tx.ahead(), room)
            && has_room(call.tx.buffered(), self.config.max_send_buffer)
        {
            call.wants_write = false;
            call.stall_timer.end(now);
            self.events.push_back(Event::Writable(handle));
        }
        if !is_client && call.stage == Stage::Reply && call.tx.is_complete() {
            call.stage = call.stage.after(Step::ReplyThrough);
            if call.announced {
                self.events.push_back(Event::Closed(handle, None));
            }
            self.drop_if_over(now, at);
        }
    }

    /// The bytes that a DATA packet of this channel's connection carries now.
    pub(super) fn capacity(&self, at: ChannelRef) -> usize {
        let connection = &self.connections[at.connection];
        data_capacity(&*connection.security, &self.paths[connection.path])
    }
}

fn abort_code(body: &[u8]) -> AbortCode {
    // An ABORT without its code still ends the call.
    body.first_chunk::<4>().map_or(AbortCode::PROTOCOL_ERROR, |b| AbortCode(i32::from_be_bytes(*b)))
}

/// Kept out of line: `Ended` is written where calls end, and read here.
const _: () = assert!(size_of::<Ended>() <= 32);
