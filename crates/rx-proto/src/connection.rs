//! A connection: a security context between a client and a service, with four channels that carry one call each (Rx notes
//! 1, 5, 6). Holds what its calls share and names its packets; what comes in is routed to it by `endpoint`.

use crate::abort::AbortCode;
use crate::call::Call;
use crate::config::CallLimits;
use crate::fair::Owner;
use crate::ids::{CHANNELS, CallNumber, Channel, ConnectionId, Epoch, SecurityIndex, Seq, Serial, ServiceId};
use crate::packet::{Flags, Header, PacketType};
use crate::security::{ConnectionFacts, SecurityClass};
use crate::time::Instant;
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::Duration;

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// This side made it and calls.
    Client,
    /// The peer made it and is served.
    Server,
}

/// The key by which a packet is routed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnectionKey {
    pub(crate) epoch: Epoch,
    pub(crate) connection: ConnectionId,
    pub(crate) role: Role,
    /// The client's address, in the name of a server's connection. A connection whose DATA packets show who made them has a
    /// second name without it (see `endpoint::reach`).
    pub(crate) address: Option<SocketAddr>,
}

impl ConnectionKey {
    /// The key of the connection that a packet from `from` is for.
    pub(crate) fn of(header: &Header, from: SocketAddr) -> Self {
        let role = if header.is_from_client() { Role::Server } else { Role::Client };
        Self::new(header.epoch, header.connection, role, from)
    }

    /// The key of a connection with `peer`.
    pub(crate) fn new(epoch: Epoch, connection: ConnectionId, role: Role, peer: SocketAddr) -> Self {
        Self { epoch, connection, role, address: (role == Role::Server).then_some(peer) }
    }

    /// The name that is good from any address.
    pub(crate) const fn anywhere(self) -> Self {
        Self { address: None, ..self }
    }
}

/// The question put to an address to which the client of a server's connection seems to have moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moving {
    pub(crate) to: SocketAddr,
    /// The last serial that was given out before the question, and the question's own, which nobody can guess from it.
    pub(crate) before: Serial,
    pub(crate) serial: Serial,
    pub(crate) asked_at: Instant,
    /// Neither the old address has spoken since nor was another serial named.
    pub(crate) is_open: bool,
}

/// The remains of a channel's last call after it has ended: enough to answer a peer that has not noticed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) number: CallNumber,
    /// All before this packet has been received.
    pub(crate) next: Seq,
    /// It ended with this code.
    pub(crate) abort: Option<AbortCode>,
    /// The time when the peer was last told, so that it is not told for each packet (Rx notes 13).
    pub(crate) told_at: Instant,
}

/// The final ACK of a reply that was not sent yet: the next call on the channel tells the server the same (Rx notes 6.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct DelayedFinalAck {
    pub(crate) number: CallNumber,
    /// The sequence number behind the last packet.
    pub(crate) next: Seq,
    /// The window that the call offered.
    pub(crate) window: u32,
    /// The time when it is sent by itself.
    pub(crate) due: Instant,
}

/// The shortest time between two ACKs that a connection sends for the ends of short replies although the next call would
/// acknowledge them.
const END_TOLD_EVERY: Duration = Duration::from_millis(50);

/// One of the four channels.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The number of its newest call.
    pub(crate) number: CallNumber,
    pub(crate) call: Option<Box<Call>>,
    pub(crate) ended: Option<Ended>,
}

/// State that only clients keep: servers have many more connections.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    /// For each channel: when the server may have been left working on a call of it; forgotten when a call comes to its end.
    pub(crate) avoided_at: [Option<Instant>; CHANNELS],
    /// For each channel: that of its newest call, or of the one before.
    pub(crate) delayed_final_acks: [Option<DelayedFinalAck>; CHANNELS],
    /// The time when the end of a reply was last told by an ACK at once.
    pub(crate) end_told_at: Option<Instant>,
}

impl Caller {
    /// True if the next call may tell the server that a reply has come: always, except once in a while to show the server
    /// the round trip.
    pub(crate) fn may_delay_final_ack(&mut self, now: Instant) -> bool {
        let is_due = self.end_told_at.is_none_or(|at| now.since(at) >= END_TOLD_EVERY);
        if is_due {
            self.end_told_at = Some(now);
        }
        !is_due
    }
}

/// A server's question that has not been answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Challenging {
    pub(crate) sent_at: Instant,
    pub(crate) tries: u8,
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) key: ConnectionKey,
    pub(crate) generation: u32,
    pub(crate) path: usize,
    pub(crate) service: ServiceId,
    /// The owner for whom its calls' bytes are counted; set anew by each call that begins.
    pub(crate) owner: Owner,
    /// The host that made it, and whether what is kept for it counts for that host: a server's does, as long as the client
    /// has shown no name.
    host: Owner,
    is_strangers: bool,
    pub(crate) security: Box<dyn SecurityClass>,
    serial: Serial,
    pub(crate) slots: [Slot; CHANNELS],
    pub(crate) caller: Option<Box<Caller>>,
    pub(crate) error: Option<AbortCode>,
    pub(crate) limits: CallLimits,
    /// Server: requests wait for a ping's answer.
    pub(crate) check_reach: bool,
    pub(crate) last_used: Instant,
    pub(crate) challenging: Option<Challenging>,
    /// Server: DATA packets that came before the client has shown who it is.
    pub(crate) held: Vec<(Header, Bytes)>,
    /// Server: where the client seems to have moved.
    pub(crate) moving: Option<Box<Moving>>,
    pub(crate) armed: Option<Instant>,
    /// The application holds it; a server's connection is held by nobody.
    pub(crate) is_open: bool,
    /// A bit for each channel that waits in its path's list for the peer to show that it is there.
    pub(crate) waiting: u8,
    /// The application waits for a free channel.
    pub(crate) wants_channel: bool,
    /// Client: the status byte to put into the first packet of each call (service upgrade, Rx notes 12).
    pub(crate) upgrade: bool,
}

impl Connection {
    pub(crate) fn new(
        now: Instant,
        key: ConnectionKey,
        path: usize,
        service: ServiceId,
        owner: Owner,
        security: Box<dyn SecurityClass>,
        limits: CallLimits,
    ) -> Self {
        Self {
            key,
            generation: 0,
            path,
            service,
            owner,
            host: owner,
            is_strangers: false,
            security,
            serial: Serial(0),
            slots: Default::default(),
            caller: (key.role == Role::Client).then(Box::default),
            error: None,
            limits,
            check_reach: false,
            last_used: now,
            challenging: None,
            held: Vec::new(),
            moving: None,
            armed: None,
            is_open: key.role == Role::Client,
            waiting: 0,
            wants_channel: false,
            upgrade: false,
        }
    }

    pub(crate) fn is_client(&self) -> bool {
        self.key.role == Role::Client
    }

    pub(crate) fn security_index(&self) -> SecurityIndex {
        self.security.index()
    }

    /// Sets where serials start, before anything is sent. A server's start anywhere, so that nobody can name one without
    /// having seen it; stock peers take them as they come.
    pub(crate) const fn start_serials_at(&mut self, serial: Serial) {
        self.serial = serial;
    }

    /// Passes over serials, so that the next one cannot be told from those before.
    pub(crate) const fn skip_serials(&mut self, count: u32) {
        self.serial = Serial(self.serial.0.wrapping_add(count));
    }

    /// The host for which counts what is kept for the client, as long as that has shown no name.
    pub(crate) fn host(&self) -> Option<Owner> {
        self.is_strangers.then_some(self.host)
    }

    /// Counts it for its host from now on, or no more.
    pub(crate) const fn set_strangers(&mut self, host: Owner, is_strangers: bool) {
        (self.host, self.is_strangers) = (host, is_strangers);
    }

    /// The serial of the next packet.
    pub(crate) const fn next_serial(&mut self) -> Serial {
        self.serial = self.serial.next();
        self.serial
    }

    pub(crate) const fn last_serial(&self) -> Serial {
        self.serial
    }

    pub(crate) fn call(&self, channel: Channel) -> Option<&Call> {
        self.slots[channel.index()].call.as_deref()
    }

    pub(crate) fn call_mut(&mut self, channel: Channel) -> Option<&mut Call> {
        self.slots[channel.index()].call.as_deref_mut()
    }

    pub(crate) fn calls_mut(&mut self) -> impl Iterator<Item = &mut Call> {
        self.slots.iter_mut().filter_map(|slot| slot.call.as_deref_mut())
    }

    /// A channel on which the client may start a call: none runs there, or one that has ended and been let go.
    ///
    /// The server may still work on a call that ended early here, and would answer BUSY: such channels come last.
    pub(crate) fn free_channel(&self) -> Option<Channel> {
        let free = Channel::ALL.into_iter().filter(|c| self.slots[c.index()].call.is_none());
        free.min_by_key(|c| self.caller.as_ref().map(|caller| caller.avoided_at[c.index()]))
    }

    /// The server may be busy on this channel.
    pub(crate) fn avoid(&mut self, channel: Channel, now: Instant) {
        if let Some(caller) = &mut self.caller {
            caller.avoided_at[channel.index()] = Some(now);
        }
    }

    /// The final ACK that was not sent, for the caller to send or to leave to a new call.
    pub(crate) fn take_delayed_final_ack(&mut self, channel: Channel) -> Option<DelayedFinalAck> {
        self.caller.as_mut()?.delayed_final_acks[channel.index()].take()
    }

    /// The time when the delayed final ACK of this channel is to be sent.
    pub(crate) fn final_ack_due(&self, channel: Channel) -> Option<Instant> {
        Some(self.caller.as_ref()?.delayed_final_acks[channel.index()].as_ref()?.due)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.slots.iter().all(|s| s.call.is_none())
    }

    /// What a class is told, of a connection to this peer.
    pub(crate) fn facts(&self, peer: SocketAddr) -> ConnectionFacts {
        let mut calls = [CallNumber(0); CHANNELS];
        for (number, slot) in calls.iter_mut().zip(&self.slots) {
            // A call that is over must not be executed again by a restarted server, which goes by this number: it is told the next one.
            let is_over = slot.call.as_ref().is_none_or(|call| call.stage.has_ended());
            *number = CallNumber(slot.number.0 + u32::from(is_over && slot.number.0 > 0));
        }
        ConnectionFacts {
            epoch: self.key.epoch,
            connection: self.key.connection,
            service: self.service,
            calls,
            peer,
            checksum: 0,
        }
    }

    /// The header of a packet of this end, with a new serial.
    pub(crate) fn header(&mut self, kind: PacketType, channel: Channel, call: CallNumber) -> Header {
        let direction = if self.is_client() { Flags::CLIENT_INITIATED } else { Flags::NONE };
        let flags = if kind == PacketType::ACK { direction.with(Flags::SLOW_START_OK) } else { direction };
        Header {
            epoch: self.key.epoch,
            connection: self.key.connection,
            channel,
            call,
            seq: Seq(0),
            serial: self.next_serial(),
            kind,
            flags,
            user_status: 0,
            security: self.security_index(),
            checksum: 0,
            service: self.service,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::bbr::Bbr;
    use crate::path::Path;

    /// The memory that a file server needs for each of 100,000 idle clients: a connection on a path of its own, and their
    /// places in the slabs, the maps (at half their load) and the heap of timers.
    #[test]
    fn an_idle_client_costs_less_than_two_kilobytes() {
        let objects = size_of::<Connection>() + size_of::<Path>() + size_of::<Bbr>();
        let places = 2 * (16 + 2 * (size_of::<ConnectionKey>() + 8) + 2 * 24);
        assert!(objects + places < 2048, "{objects} and {places}");
    }
}
