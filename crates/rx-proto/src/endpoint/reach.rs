//! Proof of who is at an address: connections for first packets, the ping that shows a peer to be where its packets say
//! they come from, what is withheld until then, and clients that move (Rx notes 5, 11, 17.12). What the packets of a
//! connection do is in `ingress`.
//!
//! A server's connection is bound to its client's address, and who names it from elsewhere is somebody else, whose packets make a
//! connection of their own. But for connections whose DATA packets show that the client made them (rxkad at level auth or crypt): new
//! DATA from elsewhere make the server ask that address, and its answer moves the connection, unless the client goes on calling from
//! the old one. Nothing else moves one: names and numbers of connections are no secrets.
//!
//! The sender of a first packet is believed nothing: it gets at most three bytes for each of its own (`path`), its
//! connections are the first to go when there are many, and what all such peers together make us keep is bounded. What
//! counts as a proof is an ACK that names the serial of a packet of ours; serials of server connections start anywhere,
//! so that they cannot be guessed.

use super::{CallHandle, ChannelRef, Endpoint, Event, Target};
use crate::abort::AbortCode;
use crate::ack::{Ack, AckReason};
use crate::connection::{Connection, ConnectionKey, Moving, Role};
use crate::ids::{CHANNELS, CallNumber, Channel, Seq, Serial};
use crate::jumbo::Subpackets;
use crate::packet::{Flags, Header, PacketType};
use crate::security::ConnectionFacts;
use crate::time::Instant;
use bytes::Bytes;
use rand::Rng;
use std::net::SocketAddr;
use std::time::Duration;

/// The time within which a client that seems to have moved must answer from its new address.
const MOVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Before the ping that asks a new address, the server skips a random number of serials: up to 2²⁸, this many bits less than a serial
/// has. So an attacker who knows the earlier serials has one guess in 2²⁸.
const MOVE_SERIALS: u32 = 4;
/// A path of no connection, made to answer something, goes after this time at the latest.
pub(super) const IDLE_PATH: Duration = Duration::from_secs(2);
/// Most bytes of DATA taken from peers that have not shown to be there, over all of them; beyond it the oldest of their
/// connections go. A thousand file server requests of the largest kind at once, or 20,000 small ones.
const MAX_UNPROVEN: u64 = 32 << 20;
/// DATA packets of a call that are taken before its peer has shown to be there: stock clients send 16 before they hear
/// anything, and their answer to our ping comes with the next ones.
pub(super) const UNPROVEN_WINDOW: u32 = 32;
/// The packet of a call from which on a peer that has not shown to be there is asked, whatever the service.
pub(super) const ASK_FROM: u32 = 8;

/// Datagrams that are kept while services are still to come, the newest: their clients would ask again after a second or more.
const MAX_EARLY: usize = 256;
/// Older ones have been repeated, or their callers may have given up.
pub(super) const MAX_EARLY_AGE: Duration = Duration::from_secs(2);

impl Endpoint {
    /// The time of the last ping of a call that its peer has answered, which says that it was there then; `None` once the call has failed or is
    /// gone. All else that comes of the call it may have sent before.
    pub fn answered_at(&self, call: CallHandle) -> Option<Instant> {
        self.call(call).filter(|c| c.error.is_none()).map(|c| c.answered_at)
    }

    /// Keeps what asks for a service that is still to come, and says so.
    pub(super) fn keep_if_early(
        &mut self,
        now: Instant,
        from: SocketAddr,
        header: &Header,
        datagram: &Bytes,
    ) -> bool {
        let is_early = self.is_starting
            && header.kind == PacketType::DATA
            && ConnectionKey::of(header, from).role == Role::Server
            && !self.services.contains_key(&header.service);
        if is_early {
            if self.early.len() == MAX_EARLY {
                self.early.pop_front();
                self.stats.spurious_packets += 1;
            }
            // A copy, as what was received may hold a whole bundle in memory.
            self.early.push_back((now, from, Bytes::copy_from_slice(datagram)));
        }
        is_early
    }

    /// Makes a server's connection for the first packet of one, if a service wants it.
    pub(super) fn accept(
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
        let facts = ConnectionFacts {
            epoch: header.epoch,
            connection: header.connection,
            service: header.service,
            calls: [CallNumber(0); CHANNELS],
            peer: from,
            checksum: 0,
        };
        let Some(security) = self.server_security(header.service, header.security).map(|s| s.accept(&facts))
        else {
            // There is no such service or security class.
            self.refuse(now, from, len, header, AbortCode::INVALID_OPERATION);
            return None;
        };
        // Room is made before anything is made for the newcomer: who goes may be of the same path.
        let owner = self.owners.owner(None, from.ip());
        if !self.make_room_for_stranger(now, owner) {
            self.stats.spurious_packets += 1;
            return None;
        }
        if self.unverified.len() >= self.config.max_unverified.max(1) {
            self.evict_oldest(now);
        }
        let path = self.path_index(now, from);
        let service = &self.services[&header.service];
        let mut connection = Connection::new(now, key, path, header.service, owner, security, service.limits);
        connection.check_reach = service.check_reach;
        if header.user_status == 1
            && let Some(better) = service.upgrades_to.filter(|s| self.services.contains_key(s))
        {
            connection.service = better;
        }
        connection.start_serials_at(Serial(self.rng.random::<u32>() >> 4));
        let index = self.insert_connection(connection);
        self.add_stranger(index, owner);
        if !self.paths[path].is_verified() {
            self.unverified.push_back((index, self.connections[index].generation));
        }
        Some(index)
    }

    /// Ends calls of clients while the services are away, and returns whether it did. Tells each client that sends data, or asks how a call
    /// goes on.
    pub(super) fn refuse_if_away(
        &mut self,
        now: Instant,
        from: SocketAddr,
        len: usize,
        header: &Header,
    ) -> bool {
        if !self.is_away || !header.is_from_client() {
            return false;
        }
        let asks = header.kind == PacketType::ACK && header.flags.contains(Flags::REQUEST_ACK);
        if header.call != CallNumber::CONNECTION && (header.kind == PacketType::DATA || asks) {
            self.refuse(now, from, len, header, AbortCode::CALL_DEAD);
        }
        true
    }

    /// Answers a packet of a call that nobody here takes.
    fn refuse(&mut self, now: Instant, from: SocketAddr, len: usize, header: &Header, code: AbortCode) {
        let Some(path) = self.path_for_answer(now, from) else { return };
        self.paths[path].handle_received(now, len);
        let refusal = Header {
            flags: Flags::NONE,
            kind: PacketType::ABORT,
            seq: Seq(0),
            serial: Serial::NONE,
            user_status: 0,
            checksum: 0,
            ..*header
        };
        self.push_packet(path, refusal, &code.0.to_be_bytes());
        self.wake_path(path);
    }

    /// A path to answer an address on which perhaps nothing else is known: it goes with its last packet. `None` while too
    /// many wait to be sent to.
    pub(super) fn path_for_answer(&mut self, now: Instant, to: SocketAddr) -> Option<usize> {
        if let Some(&index) = self.by_peer.get(&to) {
            return Some(index);
        }
        if self.ready.len() >= self.config.max_unverified.max(1) {
            self.stats.withheld += 1;
            return None;
        }
        let index = self.path_index(now, to);
        self.arm(Target::Path(index), now + IDLE_PATH);
        Some(index)
    }

    /// Drops the oldest connection whose peer has never shown to be there. Returns whether there was one.
    pub(super) fn evict_unverified(&mut self, now: Instant) -> bool {
        while !self.unverified.is_empty() {
            if self.evict_oldest(now) {
                return true;
            }
        }
        false
    }

    /// Takes the oldest entry off the list of connections whose peer has not shown to be there, and drops the connection if
    /// that is still so. Returns whether it did.
    fn evict_oldest(&mut self, now: Instant) -> bool {
        let Some((index, generation)) = self.unverified.pop_front() else { return false };
        let is_of_stranger = self
            .connections
            .get(index)
            .is_some_and(|c| c.generation == generation && !self.paths[c.path].is_verified());
        if is_of_stranger {
            self.stats.evicted += 1;
            self.remove_connection(now, index);
        }
        is_of_stranger
    }

    /// DATA came from a peer that has not shown to be there: what such peers send is kept within bounds.
    pub(super) fn charge_unproven(&mut self, now: Instant, path: usize, len: usize) {
        self.paths[path].unproven += len as u64;
        self.unproven += len as u64;
        while self.unproven > MAX_UNPROVEN && self.evict_unverified(now) {}
    }

    /// A connection has shown who its client is: from now on it is found from other addresses too, if what comes from there can
    /// be checked.
    pub(super) fn name_anywhere(&mut self, index: usize) {
        let connection = &self.connections[index];
        if connection.security.authenticates_data() && connection.key.epoch.ignores_address() {
            self.by_key.insert(connection.key.anywhere(), index);
            self.last_found = None;
        }
    }

    /// True if a datagram for a server's connection, from elsewhere than its path, is new DATA that the client alone can have made.
    /// Copies of what has come, and all that is not sealed, show nothing.
    pub(super) fn is_made_by_client(&mut self, index: usize, header: &Header, body: &Bytes) -> bool {
        let connection = &mut *self.connections[index];
        if header.kind != PacketType::DATA
            || !connection.security.authenticates_data()
            || connection.error.is_some()
        {
            return false;
        }
        let slot = &connection.slots[header.channel.index()];
        let is_next = header.call.0.wrapping_sub(slot.number.0) as i32 > 0;
        let running = slot.call.as_deref().filter(|c| c.number == header.call && !c.stage.has_ended());
        let is_new = |seq| is_next || running.is_some_and(|c| !c.rx.has(seq));
        let mut packets = Subpackets::new(*header, body.clone()).peekable();
        if packets.peek().is_none() || !Subpackets::new(*header, body.clone()).all(|(h, _)| is_new(h.seq)) {
            return false;
        }
        packets.all(|(h, payload)| connection.security.open(&h, payload).is_ok())
    }

    /// A packet came from where a server's connection is: if it has been asked meanwhile whether it moved, it has not.
    pub(super) fn note_old_address(&mut self, now: Instant, index: usize, header: &Header) {
        // DATA of the client's, or an answer to the ping that went to both: anybody can send the rest with its address.
        let connection = &mut self.connections[index];
        if let Some(moving) = &mut connection.moving
            && now.since(moving.asked_at) < MOVE_TIMEOUT
            && header.kind == PacketType::DATA
        {
            moving.is_open = false;
        }
    }

    /// A packet for a server's connection came from elsewhere than its path. If it answers the question that was put to that
    /// address, replies go there from now on (OpenAFS goes on replying to the old one; Rx notes 17.12). Returns whether it did.
    pub(super) fn follow_if_moved(
        &mut self,
        now: Instant,
        from: SocketAddr,
        len: usize,
        header: &Header,
        body: &[u8],
        index: usize,
    ) -> bool {
        let Some(moving) = &mut self.connections[index].moving else { return false };
        if moving.to != from || !moving.is_open || header.kind != PacketType::ACK {
            return false;
        }
        let Ok(ack) = Ack::parse(body, false) else { return false };
        if ack.reason != AckReason::PING_RESPONSE {
            return false;
        }
        if ack.serial != moving.serial {
            // Answers to what was sent to the old address may come. Other serials are guesses, of which there is one.
            moving.is_open &= ack.serial <= moving.before;
            return false;
        }
        self.move_connection(now, index, from);
        self.paths[self.connections[index].path].handle_received(now, len);
        true
    }

    /// Sends a ping to an address from which a client has called that is known elsewhere, unless that was done lately.
    pub(super) fn ask_new_address(
        &mut self,
        now: Instant,
        from: SocketAddr,
        len: usize,
        channel: Channel,
        index: usize,
    ) {
        let connection = &self.connections[index];
        let at = ChannelRef { connection: index, channel };
        let is_asked = connection.moving.as_ref().is_some_and(|m| now.since(m.asked_at) < MOVE_TIMEOUT);
        let runs = connection.call(channel).is_some_and(|c| !c.stage.has_ended());
        if is_asked || !runs {
            return; // nothing is to be sent there; the next call asks anew
        }
        let Some(path) = self.path_for_answer(now, from) else { return };
        let before = self.connections[index].last_serial();
        let skipped = self.rng.random::<u32>() >> MOVE_SERIALS;
        self.connections[index].skip_serials(skipped);
        let bytes = self.build_ping(at, 0);
        let serial = self.connections[index].last_serial();
        self.paths[path].handle_received(now, len);
        if !self.paths[path].is_within_reach_limit(bytes.len()) {
            return; // too long for so short a packet: a longer one will come
        }
        let moving = Moving { to: from, before, serial, asked_at: now, is_open: true };
        self.connections[index].moving = Some(Box::new(moving));
        self.push_bytes(path, bytes, true);
        self.wake_path(path);
    }

    fn move_connection(&mut self, now: Instant, index: usize, to: SocketAddr) {
        let new = self.path_index(now, to);
        let old = self.connections[index].path;
        let stamp = self.paths[new].stamp(now);
        for channel in Channel::ALL {
            let at = ChannelRef { connection: index, channel };
            let Some(call) = self.connections[index].call_mut(channel) else { continue };
            let (queued, ack_queued) = (call.queued, call.ack_queued);
            (call.queued, call.ack_queued) = (false, false);
            // It went to where the client is no longer.
            let lost = call.tx.handle_moved(now, stamp);
            self.release_flight(old, lost);
            if queued {
                self.paths[old].owner_queues.remove();
            }
            if ack_queued {
                self.paths[old].remove_ack(at);
            }
        }
        self.stop_waiting(index);
        let connection = &mut self.connections[index];
        let (was, is) = (connection.key, ConnectionKey { address: Some(to), ..connection.key });
        (connection.path, connection.moving, connection.key) = (new, None, is);
        self.by_key.remove(&was);
        self.by_key.insert(is, index);
        self.last_found = None;
        self.paths[new].connections += 1;
        self.leave_path(now, old);
        self.verify_path(now, new);
        for channel in Channel::ALL {
            let at = ChannelRef { connection: index, channel };
            self.announce(now, at);
            self.queue_call(at);
            self.queue_ack(at);
        }
    }

    /// Tells the application of a new call, as soon as it may be. Does nothing for other calls.
    pub(super) fn announce(&mut self, now: Instant, at: ChannelRef) {
        let handle = self.call_handle(at);
        let connection = &mut self.connections[at.connection];
        let path = &mut self.paths[connection.path];
        let (is_client, check_reach) = (connection.is_client(), connection.check_reach);
        let Some(call) = connection.call_mut(at.channel) else { return };
        if is_client || call.announced || call.stage.has_ended() || !call.rx.is_readable() {
            return;
        }
        if check_reach && !path.is_verified() {
            return self.ask_reach(now, at);
        }
        (call.announced, call.is_pending, call.heard_at) = (true, false, now);
        self.events.push_back(Event::Incoming(handle));
    }

    /// Asks a path whether its peer is there, if it has not been asked lately; the call goes on when it is.
    pub(super) fn ask_reach(&mut self, now: Instant, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let path = connection.path;
        let bit = 1 << at.channel.index();
        if connection.waiting & bit == 0 && !self.paths[path].is_verified() {
            connection.waiting |= bit;
            self.paths[path].waiting.push_back(at);
        }
        if self.paths[path].wants_reach_ping(now) {
            self.ping(now, at, 0);
            self.rearm_path(path);
        }
    }

    /// Some call of the path may still wait for its peer to show that it is there.
    pub(super) fn ask_reach_again(&mut self, now: Instant, index: usize) {
        while let Some(&at) = self.paths[index].waiting.front() {
            let connection = &mut self.connections[at.connection];
            if connection.call(at.channel).is_some_and(|c| !c.stage.has_ended()) {
                return self.ask_reach(now, at);
            }
            connection.waiting &= !(1 << at.channel.index());
            self.paths[index].waiting.pop_front();
        }
        self.paths[index].forget_reach_ping();
    }

    /// A connection leaves its path's list of those that wait. The oldest go first, so they are found at the front.
    pub(super) fn stop_waiting(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let count = std::mem::take(&mut connection.waiting).count_ones();
        let waiting = &mut self.paths[connection.path].waiting;
        for _ in 0..count {
            if let Some(i) = waiting.iter().position(|at| at.connection == index) {
                waiting.remove(i);
            }
        }
    }

    /// A path's peer has shown to be there: what waited for that goes on.
    pub(super) fn verify_path(&mut self, now: Instant, index: usize) {
        let path = &mut self.paths[index];
        if path.is_verified() {
            return;
        }
        path.set_verified();
        self.unproven -= std::mem::take(&mut path.unproven);
        for at in std::mem::take(&mut path.waiting) {
            self.connections[at.connection].waiting = 0;
            self.announce(now, at);
        }
        self.wake_path(index);
    }
}
