//! What an incoming packet does: which connection it is for (Rx notes 5), which call (Rx notes 6), and what changes there.

use super::{ChannelRef, Endpoint, Event, Target, data_capacity};
use crate::abort::AbortCode;
use crate::ack::{Ack, AckReason};
use crate::call::{CallError, Stage, Step};
use crate::connection::{Challenging, Connection, ConnectionKey, Ended, Role};
use crate::ids::{CHANNELS, CallNumber, Channel, Serial};
use crate::jumbo::Subpackets;
use crate::packet::{Flags, HEADER_LEN, Header, PacketType};
use crate::path::PeerKind;
use crate::receive::Received;
use crate::time::Instant;
use bytes::{Buf, Bytes};
use std::net::SocketAddr;
use std::time::Duration;

/// Most packets held for a client that has not yet shown who it is: OpenAFS's first window twice.
const MAX_HELD: usize = 32;
/// How often the peer of a call that has ended is told so (Rx notes 13: repeats are rate-limited).
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// The same for a finished call's last ACK: its peer waits for it, but may also send a whole window of late packets.
const ACK_AGAIN: Duration = Duration::from_millis(2);
/// How long a client that seems to have moved may take to answer from there.
const MOVE_PATIENCE: Duration = Duration::from_secs(2);
/// DATA packets of a call after which its path's packet size is worth probing.
const PROBE_AFTER: u32 = 32;

impl Endpoint {
    /// A datagram came. Whatever it holds, this ends well: what makes no sense is counted and dropped.
    pub fn handle_datagram(&mut self, now: Instant, from: SocketAddr, mut datagram: Bytes) {
        let Ok(header) = Header::parse(&datagram) else {
            self.stats.bogus_packets += 1;
            return;
        };
        self.stats.note_read(header.kind);
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
        let len = datagram.len();
        datagram.advance(HEADER_LEN);
        let key = ConnectionKey::of(&header, from);
        let Some(index) = self.lookup(&key).or_else(|| self.accept(now, from, len, &header, key)) else {
            return;
        };
        let connection = &mut self.connections[index];
        if connection.security_index() != header.security {
            self.stats.spurious_packets += 1;
            return;
        }
        let path = &mut self.paths[connection.path];
        if path.peer == from {
            path.handle_received(now, len);
        } else if !self.handle_other_address(now, from, len, &header, &datagram, index) {
            return;
        }
        self.handle_packet(now, index, header, datagram);
        if self.connections.contains(index) {
            self.rearm_connection(index);
        }
    }

    fn lookup(&mut self, key: &ConnectionKey) -> Option<usize> {
        if let Some((last, index)) = &self.last_found
            && last == key
        {
            return Some(*index);
        }
        let index = *self.by_key.get(key)?;
        self.last_found = Some((*key, index));
        Some(index)
    }

    /// Makes a server's connection for the first packet of one, if a service wants it.
    fn accept(
        &mut self,
        now: Instant,
        from: SocketAddr,
        len: usize,
        header: &Header,
        key: ConnectionKey,
    ) -> Option<usize> {
        if key.role == Role::Client
            || header.kind != PacketType::DATA
            || header.call == CallNumber::CONNECTION
        {
            self.stats.spurious_packets += 1;
            return None;
        }
        let path = self.path_index(now, from);
        let Some(security) = self.server_security(header.service, header.security) else {
            self.paths[path].handle_received(now, len);
            let refusal = Header {
                flags: Flags::NONE,
                kind: PacketType::ABORT,
                seq: crate::ids::Seq(0),
                serial: Serial::NONE,
                user_status: 0,
                checksum: 0,
                ..*header
            };
            self.push_packet(path, refusal, &AbortCode::INVALID_OPERATION.0.to_be_bytes());
            self.wake_path(path);
            self.forget_idle_path_later(now, path);
            return None;
        };
        let facts = crate::security::ConnectionFacts {
            epoch: header.epoch,
            connection: header.connection,
            service: header.service,
            calls: [CallNumber(0); CHANNELS],
        };
        let security = security.accept(&facts);
        if self.connections.len() >= self.config.max_connections && !self.evict_unverified(now) {
            self.stats.spurious_packets += 1;
            return None;
        }
        let service = &self.services[&header.service];
        let mut connection = Connection::new(now, key, path, header.service, security, service.limits);
        connection.check_reach = service.check_reach;
        if header.user_status == 1
            && let Some(better) = service.upgrades_to.filter(|s| self.services.contains_key(s))
        {
            connection.service = better;
        }
        let verified = self.paths[path].is_verified();
        let index = self.insert_connection(connection);
        if !verified {
            let generation = self.connections[index].generation;
            self.unverified.push_back((index, generation));
            if self.unverified.len() > self.config.max_unverified {
                self.evict_unverified(now);
            }
        }
        Some(index)
    }

    /// A path that was made for a refusal goes soon, unless it is used after all.
    fn forget_idle_path_later(&mut self, now: Instant, path: usize) {
        if self.paths[path].connections == 0 {
            self.arm(Target::Path(path), now + Duration::from_secs(2));
        }
    }

    /// Drops the oldest connection whose peer has never shown to be there. Returns whether there was one.
    fn evict_unverified(&mut self, now: Instant) -> bool {
        while let Some((index, generation)) = self.unverified.pop_front() {
            let Some(connection) = self.connections.get(index) else { continue };
            if connection.generation != generation || self.paths[connection.path].is_verified() {
                continue;
            }
            self.stats.evicted += 1;
            self.remove_connection(now, index);
            return true;
        }
        false
    }

    /// A packet of a connection came from elsewhere than its path. Returns whether to read it.
    ///
    /// A client takes it from any address of its server, by the port. A server takes it where the epoch says so, and asks
    /// the new address whether the client is there; once it answers, replies go there (OpenAFS goes on replying to the
    /// old one; Rx notes 17.12).
    fn handle_other_address(
        &mut self,
        now: Instant,
        from: SocketAddr,
        len: usize,
        header: &Header,
        body: &[u8],
        index: usize,
    ) -> bool {
        let connection = &self.connections[index];
        if connection.is_client() {
            return self.paths[connection.path].peer.port() == from.port();
        }
        let answers = |serial: Serial| {
            header.kind == PacketType::ACK
                && Ack::parse(body, false)
                    .is_ok_and(|a| a.reason == AckReason::PING_RESPONSE && a.serial == serial)
        };
        if let Some((to, serial, _)) = connection.moving
            && to == from
            && answers(serial)
        {
            self.move_connection(now, index, from);
            self.paths[self.connections[index].path].handle_received(now, len);
            return true;
        }
        if connection.moving.is_none_or(|(_, _, at)| now.since(at) >= MOVE_PATIENCE) {
            self.ask_new_address(now, from, header, index);
        }
        true
    }

    /// Sends a ping to an address from which a known client seems to call. It is smaller than three times any packet.
    fn ask_new_address(&mut self, now: Instant, from: SocketAddr, header: &Header, index: usize) {
        let at = ChannelRef { connection: index, channel: header.channel };
        if self.connections[index].call(at.channel).is_none() {
            return; // nothing is to be sent to it yet; a new call asks anew
        }
        let bytes = self.build_ping(at, 0);
        let serial = self.connections[index].last_serial();
        self.connections[index].moving = Some((from, serial, now));
        let path = self.path_index(now, from);
        self.paths[path].handle_received(now, HEADER_LEN);
        self.push_bytes(path, bytes, true);
        self.wake_path(path);
        self.forget_idle_path_later(now, path);
    }

    fn move_connection(&mut self, now: Instant, index: usize, to: SocketAddr) {
        let new = self.path_index(now, to);
        let old = self.connections[index].path;
        self.paths[new].set_verified();
        for channel in Channel::ALL {
            let at = ChannelRef { connection: index, channel };
            let Some(call) = self.connections[index].call_mut(channel) else { continue };
            let moved = call.tx.in_flight();
            let (queued, ack_queued) = (call.queued, call.ack_queued);
            (call.queued, call.ack_queued) = (false, false);
            self.paths[old].forget_in_flight(moved);
            self.paths[new].adopt_in_flight(moved);
            if queued {
                self.paths[old].remove_call(at);
            }
            if ack_queued {
                self.paths[old].remove_ack(at);
            }
        }
        let connection = &mut self.connections[index];
        (connection.path, connection.moving) = (new, None);
        self.paths[old].connections -= 1;
        self.paths[old].last_used = now;
        self.paths[new].connections += 1;
        if self.paths[old].connections == 0 {
            let at = now + self.config.reap_after;
            self.arm(Target::Path(old), at);
        }
        for channel in Channel::ALL {
            self.queue_call(ChannelRef { connection: index, channel });
        }
    }

    fn handle_packet(&mut self, now: Instant, index: usize, header: Header, body: Bytes) {
        let connection = &mut self.connections[index];
        connection.last_used = now;
        let is_client = connection.is_client();
        if is_client && header.service != connection.service {
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
            PacketType::RESPONSE if !is_client => return self.handle_response(now, index, &body),
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
        self.note_heard(now, at, &header);
        match header.kind {
            PacketType::ACK => self.handle_ack(now, at, &header, &body),
            PacketType::ACKALL => self.handle_all_acked(now, at),
            PacketType::ABORT => {
                let error = CallError::AbortedByPeer(abort_code(&body));
                self.fail_call(now, at, error, false);
            }
            // BUSY: the channel still works on an older call. The call is sent again as if lost (Rx notes 17.15).
            _ => {}
        }
    }

    /// Whether a packet other than DATA is for the channel's running call; answers for the one that has ended.
    fn is_current(&mut self, now: Instant, at: ChannelRef, header: &Header) -> bool {
        let slot = &self.connections[at.connection].slots[at.channel.index()];
        if slot.call.as_ref().is_some_and(|c| c.number == header.call && !c.stage.has_ended()) {
            return true;
        }
        if header.kind == PacketType::ACK && header.flags.contains(Flags::REQUEST_ACK) {
            self.answer_for_ended(now, at, header, AckReason::PING_RESPONSE);
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

    fn handle_data(&mut self, now: Instant, at: ChannelRef, header: Header, payload: Bytes) {
        let connection = &mut self.connections[at.connection];
        let is_client = connection.is_client();
        if !is_client && !connection.security.is_authenticated() {
            if connection.held.len() < MAX_HELD
                && !connection
                    .held
                    .iter()
                    .any(|(h, _)| h.seq == header.seq && h.channel == header.channel && h.call == header.call)
            {
                connection.held.push((header, payload));
            }
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
        let path = &mut self.paths[connection.path];
        let view = path.view();
        let check_reach = connection.check_reach;
        let Some(call) = connection.call_mut(at.channel) else { return };
        if is_client && call.stage == Stage::Request {
            // The reply's first packet acknowledges the whole request (Rx notes 6.2).
            call.stage = call.stage.after(Step::ReplyBegins);
            let forgotten = call.tx.handle_all_acked();
            path.forget_in_flight(forgotten);
        }
        let before = call.rx.bytes();
        let received = call.rx.handle_data(now, &header, payload, view);
        self.stats.bytes_read += call.rx.bytes() - before;
        match received {
            Received::Readable => {
                call.progress_at = now;
                let wants = call.wants_read && call.rx.is_readable();
                call.wants_read &= !wants;
                let handle = wants.then(|| self.call_handle(at));
                self.events.extend(handle.map(Event::Readable));
            }
            Received::Duplicate => self.stats.duplicate_packets += 1,
            Received::Held | Received::Refused => {}
        }
        self.measure_if_receiving(now, at);
        self.queue_ack(at);
        if !is_client {
            self.announce(now, at, check_reach);
        }
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

    /// Tells the application of a new call, as soon as it may be.
    fn announce(&mut self, now: Instant, at: ChannelRef, check_reach: bool) {
        let handle = self.call_handle(at);
        let connection = &mut self.connections[at.connection];
        let path = &mut self.paths[connection.path];
        let Some(call) = connection.call_mut(at.channel) else { return };
        if call.announced || !call.rx.is_readable() {
            return;
        }
        if check_reach && !path.is_verified() {
            return self.ask_reach(now, at);
        }
        call.announced = true;
        self.events.push_back(Event::Incoming(handle));
    }

    /// Asks a path whether its peer is there, if it has not been asked lately.
    pub(super) fn ask_reach(&mut self, now: Instant, at: ChannelRef) {
        let path = self.connections[at.connection].path;
        if self.paths[path].wants_reach_ping(now) {
            self.ping(now, at, 0);
            self.rearm_path(path);
        }
    }

    /// A path's peer has shown to be there: what waited for that goes on.
    fn handle_verified(&mut self, now: Instant, path: usize) {
        let waiting: Vec<usize> =
            self.connections.iter().filter(|(_, c)| c.path == path).map(|(i, _)| i).collect();
        for connection in waiting {
            for channel in Channel::ALL {
                let at = ChannelRef { connection, channel };
                let c = &self.connections[connection];
                if c.call(channel).is_some() {
                    if !c.is_client() {
                        self.announce(now, at, true);
                    }
                    self.queue_call(at);
                }
            }
        }
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
        let was_verified = path.is_verified();
        let was_own = path.peer_kind() == PeerKind::Own;
        let is_answer = ack.reason == AckReason::PING_RESPONSE;
        let ping_sent_at = is_answer.then(|| path.handle_ping_response(now, ack.serial)).flatten();
        if ping_sent_at.is_some()
            && let Some(len) = path.mtu.handle_response(ack.serial)
        {
            path.handle_packet_len(len);
        }
        let window = path.handle_trailer(&ack.trailer, believes, max_window);
        let is_own = path.is_own();
        let Some(call) = connection.call_mut(at.channel) else { return };
        let before = call.tx.buffered();
        let outcome = call.tx.handle_ack(now, &ack, &path.rtt, is_own, ping_sent_at);
        if let Some(out) = outcome {
            path.handle_ack(now, &out);
            if let Some(window) = window {
                call.tx.set_window(window);
                if !call.window_known || path.first_window() < window {
                    path.note_window(window);
                }
                call.window_known = true;
            }
            if call.tx.buffered() < before {
                call.progress_at = now;
            }
            if out.acked > 0 && !path.is_verified() && header.serial != Serial::NONE {
                // It has seen what we sent there.
                path.set_verified();
            }
        }
        let verified = !was_verified && path.is_verified();
        if header.flags.contains(Flags::REQUEST_ACK) || ack.reason == AckReason::PING {
            self.answer_ping(at, header.serial);
        }
        if verified {
            self.handle_verified(now, index);
        }
        self.after_progress(now, at);
        if is_own && (!was_own || self.worth_probing(at)) {
            self.probe_mtu(now, at);
        }
        self.queue_call(at);
        self.wake_path(index);
    }

    fn worth_probing(&self, at: ChannelRef) -> bool {
        let call = self.connections[at.connection].call(at.channel);
        call.is_some_and(|c| c.bytes_sent > u64::from(PROBE_AFTER) * 1416)
    }

    /// Sends the next probe of the path's packet size, if one is due. A call of the path carries it.
    fn probe_mtu(&mut self, now: Instant, at: ChannelRef) {
        let index = self.connections[at.connection].path;
        let path = &mut self.paths[index];
        let limit = path.peer_limit();
        if let Some(len) = path.mtu.poll_probe(now, limit) {
            self.ping(now, at, len);
            let serial = self.connections[at.connection].last_serial();
            self.paths[index].mtu.handle_sent(now, serial);
            self.rearm_path(index);
        }
    }

    fn handle_all_acked(&mut self, now: Instant, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let path = connection.path;
        let Some(call) = connection.call_mut(at.channel) else { return };
        if call.tx.has_begun() && call.tx.is_finished() {
            let forgotten = call.tx.handle_all_acked();
            self.paths[path].forget_in_flight(forgotten);
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
        if call.wants_write && call.tx.buffered() < room - room / 4 {
            call.wants_write = false;
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

    // ---- security

    /// Asks the client of a connection who it is, unless that was done lately.
    pub(super) fn challenge(&mut self, now: Instant, index: usize) {
        let nonce = rand::Rng::random(&mut self.rng);
        let connection = &mut self.connections[index];
        if connection.challenging.is_some_and(|c| now.since(c.sent_at) < Duration::from_secs(2)) {
            return;
        }
        let tries = connection.challenging.map_or(0, |c| c.tries) + 1;
        connection.challenging = Some(Challenging { sent_at: now, tries });
        let body = connection.security.challenge(nonce);
        let path = connection.path;
        let header = connection.header(PacketType::CHALLENGE, Channel::ALL[0], CallNumber::CONNECTION);
        self.push_packet(path, header, &body);
        self.wake_path(path);
        self.rearm_connection(index);
    }

    fn handle_challenge(&mut self, now: Instant, index: usize, body: &[u8]) {
        let connection = &mut self.connections[index];
        let facts = connection.facts();
        match connection.security.handle_challenge(&facts, body) {
            Ok(response) => {
                let path = connection.path;
                let header = connection.header(PacketType::RESPONSE, Channel::ALL[0], CallNumber::CONNECTION);
                self.push_packet(path, header, &response);
                self.wake_path(path);
            }
            Err(code) => self.fail_connection(now, index, CallError::Failed(code), true),
        }
    }

    fn handle_response(&mut self, now: Instant, index: usize, body: &[u8]) {
        let connection = &mut self.connections[index];
        if connection.security.is_authenticated() {
            return;
        }
        let facts = connection.facts();
        match connection.security.handle_response(&facts, body) {
            Ok(calls) => {
                connection.challenging = None;
                for (slot, number) in connection.slots.iter_mut().zip(calls) {
                    // The client's word on where it is; what it has not sent yet is one further (Rx notes 11).
                    slot.number = slot.number.max(CallNumber(number.0.saturating_sub(1)));
                }
                let held = std::mem::take(&mut connection.held);
                let path = connection.path;
                self.paths[path].set_verified();
                for (header, payload) in held {
                    if !self.connections.contains(index) {
                        return;
                    }
                    let at = ChannelRef { connection: index, channel: header.channel };
                    self.handle_data(now, at, header, payload);
                }
            }
            Err(code) => self.fail_connection(now, index, CallError::Failed(code), true),
        }
    }

    /// Ends a connection with all its calls.
    pub(super) fn fail_connection(&mut self, now: Instant, index: usize, error: CallError, tell: bool) {
        let connection = &mut self.connections[index];
        connection.error = Some(error.code());
        connection.held = Vec::new();
        connection.challenging = None;
        for channel in Channel::ALL {
            self.fail_call(now, ChannelRef { connection: index, channel }, error, false);
        }
        if tell {
            self.push_connection_abort(index, error.code());
        }
    }

    fn push_connection_abort(&mut self, index: usize, code: AbortCode) {
        let connection = &mut self.connections[index];
        let path = connection.path;
        let header = connection.header(PacketType::ABORT, Channel::ALL[0], CallNumber::CONNECTION);
        self.push_packet(path, header, &code.0.to_be_bytes());
        self.wake_path(path);
    }

    // ---- the network's word

    /// The kernel has word from the network that `peer` cannot be reached. `quoted` is the beginning of the packet that did
    /// not arrive: it must be one of ours. Calls that have not heard from the peer for a while end.
    pub fn handle_unreachable(&mut self, now: Instant, peer: SocketAddr, quoted: &[u8]) {
        let Some(index) = self.quoted_connection(peer, quoted) else { return };
        let path = self.connections[index].path;
        let patience =
            (self.paths[path].rtt.smoothed() * 2).clamp(Duration::from_millis(50), Duration::from_secs(1));
        for channel in Channel::ALL {
            let at = ChannelRef { connection: index, channel };
            let silent = self.connections[index]
                .call(channel)
                .is_some_and(|c| now.since(c.heard_at) >= patience || !(c.rx.has_begun() || c.window_known));
            if silent && self.connections[index].is_client() {
                self.fail_call(now, at, CallError::Failed(AbortCode::CALL_DEAD), false);
            }
        }
    }

    /// A router or the kernel says that packets to `peer` may be `len` bytes of UDP payload at most.
    pub fn handle_packet_too_big(&mut self, peer: SocketAddr, len: usize, quoted: &[u8]) {
        if !quoted.is_empty() && self.quoted_connection(peer, quoted).is_none() {
            return;
        }
        let Some(&index) = self.by_peer.get(&peer) else { return };
        let path = &mut self.paths[index];
        if let Some(len) = path.mtu.handle_path_limit(len) {
            path.handle_packet_len(len);
        }
    }

    fn quoted_connection(&self, peer: SocketAddr, quoted: &[u8]) -> Option<usize> {
        let header = Header::parse(quoted).ok()?;
        // The quoted packet went the other way: what we sent as a client belongs to a client connection.
        let role = if header.is_from_client() { Role::Client } else { Role::Server };
        let address = (role == Role::Server && !header.epoch.ignores_address()).then_some(peer);
        let key = ConnectionKey { epoch: header.epoch, connection: header.connection, role, address };
        let index = *self.by_key.get(&key)?;
        (self.paths[self.connections[index].path].peer == peer).then_some(index)
    }

    /// How much a DATA packet of this channel's connection carries now.
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
