//! The application's verbs: connect, open calls, write, read, end them. Every verb returns at once; an answer of
//! "blocked" is followed by an event.

use super::{CallHandle, ConnectionHandle, Endpoint, Event};
use crate::abort::AbortCode;
use crate::call::{Call, CallError, Stage, Step};
use crate::config::CallLimits;
use crate::connection::{Connection, ConnectionKey, DelayedFinalAck, Ended, Role};
use crate::debug::{NAT_PING, VERSION_REQUEST};
use crate::ids::ChannelRef;
use crate::ids::{Channel, ConnectionId, Epoch, SecurityIndex, SecurityLevel, ServiceId};
use crate::packet::PacketType;
use crate::path::Path;
use crate::security::SecurityClass;
use crate::stall_timer::StallTimer;
use crate::time::Instant;
use bytes::Bytes;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The time for which the end of a short reply waits for the next call on its channel before it is acknowledged by itself. A server of
/// our own begins to ask for it after 10 ms and two round trips.
const FINAL_ACK_DELAY: Duration = Duration::from_millis(2);

/// Addresses of servers with several that are remembered: more than the servers of a large cell have. Later ones are not heard but
/// from where they were called.
const MAX_HOST_ADDRESSES: usize = 16_384;

/// The result of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Read {
    /// The next piece of the stream; not empty.
    Data(Bytes),
    /// The stream has ended.
    End,
    /// Nothing yet; [`Event::Readable`] follows.
    Blocked,
}

/// Figures of one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallStats {
    /// Bytes of the stream handed to the network for the first time.
    pub bytes_sent: u64,
    /// Bytes of the stream that the peer has acknowledged for good.
    pub bytes_acked: u64,
    /// Bytes of the stream received in order.
    pub bytes_received: u64,
    /// DATA packets sent again.
    pub resent_packets: u64,
    /// The peer's window, in packets.
    pub send_window: u32,
    /// Our window, in packets.
    pub receive_window: u32,
    /// The time from when there was something to send until the first DATA packet went out; `None` before.
    pub send_wait: Option<Duration>,
    /// True if the peer's stream has come and been read whole.
    pub is_read: bool,
}

impl Endpoint {
    /// Makes a client connection. Nothing is sent before its first call.
    pub fn connect(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        service: ServiceId,
        mut security: Box<dyn SecurityClass>,
    ) -> ConnectionHandle {
        let mut name = self.next_connection;
        loop {
            self.next_connection = name.next();
            // After 2³⁰ connections the numbers come round: one that is in use is passed over.
            match self.make_client(now, peer, service, security, (self.epoch, name)) {
                Ok(handle) => return handle,
                Err(unused) => (security, name) = (unused, name.next()),
            }
        }
    }

    /// Makes a client connection of a given name, as if another endpoint's: for replaying what was captured, and for taking
    /// over connections. `None` if there is one of that name.
    pub fn connect_as(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        service: ServiceId,
        security: Box<dyn SecurityClass>,
        name: (Epoch, ConnectionId),
    ) -> Option<ConnectionHandle> {
        self.make_client(now, peer, service, security, name).ok()
    }

    /// Gives the security object back if the name is taken.
    fn make_client(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        service: ServiceId,
        security: Box<dyn SecurityClass>,
        (epoch, connection): (Epoch, ConnectionId),
    ) -> Result<ConnectionHandle, Box<dyn SecurityClass>> {
        let key = ConnectionKey::new(epoch, connection, Role::Client, peer);
        if self.by_key.contains_key(&key) {
            return Err(security);
        }
        let path = self.path_index(now, peer);
        self.verify_path(now, path); // what we send there is our own wish
        let owner = self.owners.owner(security.identity(), peer.ip());
        let connection = Connection::new(now, key, path, service, owner, security, self.config.limits);
        let index = self.insert_connection(connection);
        self.rearm_connection(index);
        Ok(self.handle_of(index))
    }

    /// Says that these are addresses of one host. A client takes a server's packets from the address that it calls alone; a server
    /// with several may answer from another of them, as OpenAFS's do, and is heard if its addresses have been told here.
    pub fn know_host(&mut self, addresses: &[IpAddr]) {
        let name = self.next_host;
        self.next_host += 1;
        for address in addresses {
            if self.hosts.len() < MAX_HOST_ADDRESSES || self.hosts.contains_key(address) {
                self.hosts.insert(*address, name);
            }
        }
    }

    /// True if a packet for a client's connection comes from its server.
    pub(super) fn is_known_address(&self, index: usize, from: SocketAddr) -> bool {
        let peer = self.paths[self.connections[index].path].peer;
        let host = |address: SocketAddr| self.hosts.get(&address.ip());
        peer == from || (peer.port() == from.port() && host(peer).is_some() && host(peer) == host(from))
    }

    /// Sets how long the calls of a connection wait from now on.
    pub fn set_limits(&mut self, connection: ConnectionHandle, limits: CallLimits) {
        if let Some(c) = self.connection_mut(connection) {
            c.limits = limits;
            c.slots.iter_mut().filter_map(|s| s.call.as_mut()).for_each(|call| call.set_limits(limits));
            let index = connection.index as usize;
            self.rearm_connection(index);
        }
    }

    /// Sets how long one call waits from now on. A call that is gone is left alone.
    pub fn set_call_limits(&mut self, call: CallHandle, limits: CallLimits) {
        let Ok(at) = self.find(call) else { return };
        if let Some(call) = self.connections[at.connection].call_mut(at.channel) {
            call.set_limits(limits);
            self.rearm_connection(at.connection);
        }
    }

    /// Asks for the better service in the calls of a client connection from now on (Rx notes 12). What the server made of it
    /// shows in [`Self::service`]. AuriStor's servers have better services. afar's have none yet, so that
    /// only tests call this.
    pub fn ask_for_upgrade(&mut self, connection: ConnectionHandle) {
        if let Some(c) = self.connection_mut(connection) {
            c.upgrade = true;
        }
    }

    /// Keeps the mapping of a NAT router on the way to a peer alive, by a packet that the peer does not answer (Rx notes 11). Nothing
    /// is sent to a peer to which there is no connection.
    pub fn ping_nat(&mut self, peer: SocketAddr) {
        if let Some(&path) = self.by_peer.get(&peer) {
            self.push_packet(path, NAT_PING, &VERSION_REQUEST);
            self.wake_path(path);
        }
    }

    /// The service of a connection; differs from the one asked for once a server has upgraded it.
    pub fn service(&self, connection: ConnectionHandle) -> Option<ServiceId> {
        self.connection(connection).map(|c| c.service)
    }

    /// The epoch of a connection: of one made by the peer, which start of the peer made it.
    pub fn epoch_of(&self, connection: ConnectionHandle) -> Option<Epoch> {
        self.connection(connection).map(|c| c.key.epoch)
    }

    /// The identity that the peer of a connection has shown, in the notation of the security class.
    pub fn identity(&self, connection: ConnectionHandle) -> Option<&str> {
        self.connection(connection)?.security.identity()
    }

    /// The security class of a connection.
    pub fn security_index(&self, connection: ConnectionHandle) -> Option<SecurityIndex> {
        self.connection(connection).map(|connection| connection.security.index())
    }

    /// How well what goes over a connection is protected.
    pub fn security_level(&self, connection: ConnectionHandle) -> Option<SecurityLevel> {
        self.connection(connection).map(|connection| connection.security.level())
    }

    /// Lets a client connection go. Calls on it are aborted.
    pub fn close_connection(&mut self, now: Instant, connection: ConnectionHandle) {
        let Some(c) = self.connection_mut(connection) else { return };
        c.is_open = false;
        let index = connection.index as usize;
        for channel in Channel::ALL {
            let at = ChannelRef { connection: index, channel };
            if let Some(call) = self.connections[index].call_mut(channel) {
                call.released = true;
                self.fail_call(now, at, CallError::Failed(AbortCode::USER_ABORT), true);
                self.drop_if_over(now, at); // one that had ended before
            }
            self.send_delayed_final_ack(at);
        }
        self.rearm_connection(index); // goes once its last packets are out
    }

    fn connection_mut(&mut self, handle: ConnectionHandle) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(handle.index as usize)?;
        (connection.generation == handle.generation).then_some(&mut **connection)
    }

    /// Starts a call. `Ok(None)` when all four channels are in use: [`Event::ChannelFree`] follows.
    pub fn open(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
    ) -> Result<Option<CallHandle>, CallError> {
        let c = self.connection(connection).filter(|c| c.is_open && c.is_client()).ok_or(CallError::Gone)?;
        if let Some(code) = c.error {
            return Err(CallError::AbortedByPeer(code));
        }
        let Some(channel) = c.free_channel() else {
            self.connection_mut(connection).into_iter().for_each(|c| c.wants_channel = true);
            return Ok(None);
        };
        let number = c.slots[channel.index()].number.next();
        let at = ChannelRef { connection: connection.index as usize, channel };
        self.start_call(now, at, number);
        self.limit_first_packet(at);
        Ok(Some(CallHandle { connection, channel, number }))
    }

    /// Memory that a call may be promised for a larger window, in bytes: half of what is left, so that there is some for who comes later.
    fn budget_of_one(&self) -> u64 {
        self.config.receive_budget.saturating_sub(self.promised.all()) / 2
    }

    /// Puts a new call into a channel that has none.
    pub(super) fn start_call(&mut self, now: Instant, at: ChannelRef, number: crate::ids::CallNumber) {
        let budget = self.budget_of_one();
        let connection = &mut self.connections[at.connection];
        let path = &self.paths[connection.path];
        connection.owner = self.owners.owner(connection.security.identity(), path.peer.ip());
        // As much of what the path had before as there is memory for: the peer may begin with all that it was offered then, and what is
        // refused as it is beyond the window is sent twice.
        let wanted = path.receive_window.saturating_sub(self.config.initial_window);
        let each = path.packet_len() as u64;
        let extra = (budget / each).min(wanted.into()) as u32;
        let (window, promise) = (self.config.initial_window + extra, u64::from(extra) * each);
        self.promised.add(promise);
        let mut call = Box::new(Call::new(now, number, connection.limits, path.first_window(), window));
        call.promised = promise;
        call.is_pending = !connection.is_client();
        if !connection.is_client() {
            call.stall_timer = StallTimer::new(connection.limits.stall, connection.limits.keepalive());
        }
        let slot = &mut connection.slots[at.channel.index()];
        (slot.number, slot.call) = (number, Some(call));
        connection.last_used = now;
        self.stats.calls += 1;
        self.calls += 1;
        let (credits, mut calls) = self.credits();
        credits.handle_new_call(at, &mut calls);
        self.rearm_connection(at.connection);
    }

    /// Adds bytes to the outgoing stream. Returns whether more may follow at once; after `false`, [`Event::Writable`]
    /// follows. The bytes are taken in either case. After a client's reply has begun they are of no use any more, and lost:
    /// see [`Self::takes_bytes`].
    ///
    /// # Panics
    /// If the stream was ended by [`Self::finish`].
    pub fn write(&mut self, now: Instant, call: CallHandle, bytes: Bytes) -> Result<bool, CallError> {
        let at = self.find(call)?;
        let (room, most) = (self.room(at), self.config.max_send_buffer);
        let c = self.sending(now, at)?;
        c.tx.write(bytes);
        let goes_on = c.tx.ahead() < room && c.tx.buffered() < most;
        c.wants_write = !goes_on;
        if !goes_on {
            c.stall_timer.begin(now);
        }
        self.queue_call(at);
        self.note_wish(now, at);
        Ok(goes_on)
    }

    /// The number of bytes that a call's writer may be ahead of what has arrived: twice the path's window, within the
    /// configured limits. What has arrived beyond a hole is held as well, until the hole is filled, and does not count: with
    /// loss on a long way that takes several round trips, and the path would run dry.
    pub(super) fn room(&self, at: ChannelRef) -> usize {
        let path = &self.paths[self.connections[at.connection].path];
        let wanted = usize::try_from(path.window().saturating_mul(2)).unwrap_or(usize::MAX);
        wanted.clamp(self.config.send_buffer, self.config.max_send_buffer.max(self.config.send_buffer))
    }

    /// The call, about to send. For a server that is the beginning of its reply.
    fn sending(&mut self, now: Instant, at: ChannelRef) -> Result<&mut Call, CallError> {
        let connection = &mut self.connections[at.connection];
        let is_server = !connection.is_client();
        let call = connection.call_mut(at.channel).ok_or(CallError::Gone)?;
        if let Some(error) = call.error {
            return Err(error);
        }
        if is_server {
            call.stage = call.stage.after(Step::ReplyBegins);
            call.rx.leave_end_to_reply();
            call.stall_timer.end(now);
        }
        call.progress_at = now;
        Ok(call)
    }

    /// Sends what has been written even if it fills no packet.
    pub fn flush(&mut self, now: Instant, call: CallHandle) -> Result<(), CallError> {
        let at = self.find(call)?;
        self.sending(now, at)?.tx.flush();
        self.queue_call(at);
        self.note_wish(now, at);
        Ok(())
    }

    /// Ends the outgoing stream.
    pub fn finish(&mut self, now: Instant, call: CallHandle) -> Result<(), CallError> {
        let at = self.find(call)?;
        let call = self.sending(now, at)?;
        call.tx.finish();
        call.stall_timer.begin(now);
        self.queue_call(at);
        self.note_wish(now, at);
        self.rearm_connection(at.connection);
        Ok(())
    }

    /// The next piece of the incoming stream.
    pub fn read(&mut self, now: Instant, call: CallHandle) -> Result<Read, CallError> {
        let at = self.find(call)?;
        let budget = self.budget_of_one();
        let connection = &mut self.connections[at.connection];
        let (path, is_client) = (&mut *self.paths[connection.path], connection.is_client());
        let view = path.view();
        let c = connection.call_mut(at.channel).ok_or(CallError::Gone)?;
        if let Some(error) = c.error {
            return Err(error);
        }
        let Some(bytes) = c.rx.read() else {
            if !is_client && c.tx.has_begun() && !c.rx.is_complete() {
                // The client dropped the rest of its request when the reply began (Rx notes 6.2).
                return Err(CallError::Failed(AbortCode::EOF));
            }
            if !c.rx.is_complete() {
                c.wants_read = true;
                c.stall_timer.begin(now); // noticed with the next ping at the latest: no timer is set for it here
                return Ok(Read::Blocked);
            }
            if is_client {
                self.finish_reading(now, at);
            }
            return Ok(Read::End);
        };
        if view.is_own
            && let Some(wanted) = c.rx.poll_wanted_window(now, view)
        {
            let wanted = wanted.min(self.config.max_window);
            let each = path.packet_len() as u64;
            let more = u64::from(wanted.saturating_sub(c.rx.window())).min(budget / each);
            if more > 0 {
                self.promised.add(more * each);
                c.promised += more * each;
                let window = c.rx.window() + more as u32;
                c.rx.grow_window(window);
                path.receive_window = path.receive_window.max(window);
            }
        }
        if c.rx.is_gated() {
            self.settle_credit(now, at);
        }
        self.count_unread(at);
        self.queue_ack(at);
        Ok(Read::Data(bytes))
    }

    /// Tells all servers what they wait to hear and what could wait: this endpoint is about to end.
    pub fn settle(&mut self) {
        let all: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for connection in all {
            for channel in Channel::ALL {
                self.send_delayed_final_ack(ChannelRef { connection, channel });
            }
        }
    }

    /// A client has read the whole reply: the server hears it, perhaps by the next call, and the call is through.
    fn finish_reading(&mut self, now: Instant, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let is_own = self.paths[connection.path].is_own();
        let index = at.channel.index();
        let (Some(call), Some(caller)) = (&mut connection.slots[index].call, &mut connection.caller) else {
            return;
        };
        if call.stage == Stage::Done {
            return;
        }
        call.stage = call.stage.after(Step::ReplyThrough);
        caller.avoided_at[index] = None;
        if is_own && call.rx.may_delay_final_ack() && caller.may_delay_final_ack(now) {
            let (next, window) = (call.rx.next(), call.rx.window());
            caller.delayed_final_acks[index] =
                Some(DelayedFinalAck { number: call.number, next, window, due: now + FINAL_ACK_DELAY });
        } else {
            call.rx.acknowledge_end();
        }
        connection.last_used = now;
        self.queue_ack(at);
        self.rearm_connection(at.connection);
    }

    /// Ends a call early, with a code for the peer.
    pub fn abort(&mut self, now: Instant, call: CallHandle, code: AbortCode) {
        if let Ok(at) = self.find(call) {
            self.fail_call(now, at, CallError::Failed(code), true);
        }
    }

    /// Lets a call go: no more is read or written. One that is not through is aborted, but for a server's whose reply is
    /// ended: it goes on until the client has it.
    pub fn release(&mut self, now: Instant, call: CallHandle) {
        let Ok(at) = self.find(call) else { return };
        let connection = &mut self.connections[at.connection];
        let is_client = connection.is_client();
        let Some(c) = connection.call_mut(at.channel) else { return };
        c.released = true;
        if is_client && c.rx.is_drained() {
            self.finish_reading(now, at);
        }
        let Some(c) = self.connections[at.connection].call_mut(at.channel) else { return };
        let lingers = !is_client && c.tx.is_finished();
        if !c.stage.has_ended() && !lingers {
            self.fail_call(now, at, CallError::Failed(AbortCode::USER_ABORT), true);
        }
        self.drop_if_over(now, at);
    }

    /// Sets the status byte that this end's packets of the call carry (Rx notes 12).
    pub fn set_status(&mut self, call: CallHandle, status: u8) {
        if let Ok(at) = self.find(call)
            && let Some(c) = self.connections[at.connection].call_mut(at.channel)
        {
            c.status = status;
        }
    }

    /// The status byte that the peer's last packet of the call carried.
    pub fn peer_status(&self, call: CallHandle) -> Option<u8> {
        self.call(call).map(|c| c.peer_status)
    }

    /// The time of the peer's last packet of the call; `None` once the call has failed or is gone.
    pub fn heard_at(&self, call: CallHandle) -> Option<Instant> {
        self.call(call).filter(|c| c.error.is_none()).map(|c| c.heard_at)
    }

    /// True if the outgoing stream still takes bytes: not after its end, nor after a client's reply has begun.
    pub fn takes_bytes(&self, call: CallHandle) -> bool {
        self.call(call).is_some_and(|c| c.error.is_none() && !c.tx.is_finished())
    }

    /// True if all of the peer's stream is here, read or not.
    pub fn has_come_whole(&self, call: CallHandle) -> bool {
        self.call(call).is_some_and(|c| c.rx.is_complete())
    }

    /// The reason why a call failed, if it did.
    pub fn call_error(&self, call: CallHandle) -> Option<CallError> {
        match self.call(call) {
            Some(c) => c.error,
            None => Some(CallError::Gone),
        }
    }

    /// Figures of a call; `None` once it is gone.
    pub fn call_stats(&self, call: CallHandle) -> Option<CallStats> {
        let c = self.call(call)?;
        Some(CallStats {
            bytes_sent: c.bytes_sent,
            bytes_acked: c.tx.acked(),
            bytes_received: c.rx.bytes(),
            resent_packets: c.tx.resent_packets(),
            send_window: c.tx.window(),
            receive_window: c.rx.window(),
            send_wait: c.wait.time(),
            is_read: c.rx.is_drained(),
        })
    }

    /// The path of a call's connection.
    pub fn path_of(&self, call: CallHandle) -> Option<&Path> {
        self.path(call.connection)
    }

    pub(super) fn call(&self, call: CallHandle) -> Option<&Call> {
        let at = self.find(call).ok()?;
        self.connections[at.connection].call(at.channel)
    }

    /// Ends a call with an error; the peer hears the code if `tell`.
    pub(super) fn fail_call(&mut self, now: Instant, at: ChannelRef, error: CallError, tell: bool) {
        let handle = self.call_handle(at);
        let connection = &mut self.connections[at.connection];
        let path = connection.path;
        let Some(call) = connection.call_mut(at.channel) else { return };
        if call.stage.has_ended() {
            return;
        }
        call.stage = call.stage.after(Step::Aborted);
        call.error = Some(error);
        let begun = call.tx.has_begun() || call.rx.has_begun();
        let forgotten = call.tx.clear();
        call.rx.clear();
        self.count_unread(at);
        let connection = &mut self.connections[at.connection];
        let Some(call) = connection.call_mut(at.channel) else { return };
        let (number, next, announced) =
            (call.number, call.rx.next(), call.announced || connection.is_client());
        self.release_flight(path, forgotten);
        self.settle_credit(now, at);
        self.stats.calls_failed += 1;
        let connection = &mut self.connections[at.connection];
        let abort = matches!(error, CallError::Failed(_)).then(|| error.code());
        if abort.is_some() && begun {
            connection.avoid(at.channel, now);
        }
        connection.slots[at.channel.index()].ended = Some(Ended { number, next, abort, told_at: now });
        if tell && begun {
            let header = connection.header(PacketType::ABORT, at.channel, number);
            self.push_packet(path, header, &error.code().0.to_be_bytes());
        }
        if announced {
            self.events.push_back(Event::Closed(handle, Some(error)));
        }
        self.wake_path(path);
        self.drop_if_over(now, at);
    }

    pub(super) fn call_handle(&self, at: ChannelRef) -> CallHandle {
        let number = self.connections[at.connection].slots[at.channel.index()].number;
        CallHandle { connection: self.handle_of(at.connection), channel: at.channel, number }
    }

    /// Frees a call that is over and let go; what may have to be answered later is noted in its slot.
    pub(super) fn drop_if_over(&mut self, now: Instant, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let is_client = connection.is_client();
        let Some(call) = connection.call(at.channel) else { return };
        let through = call.stage.has_ended() && (call.released || !(is_client || call.announced));
        if !through || call.rx.is_ack_due() {
            return; // an ACK that is due goes out first
        }
        let next = call.rx.next();
        let slot = &mut connection.slots[at.channel.index()];
        if slot.ended.is_none_or(|e| e.number != slot.number) {
            slot.ended = Some(Ended { number: slot.number, next, abort: None, told_at: now });
        }
        self.drop_call(at);
        let handle = self.handle_of(at.connection);
        let connection = &mut self.connections[at.connection];
        if std::mem::take(&mut connection.wants_channel) {
            self.events.push_back(Event::ChannelFree(handle));
        }
        connection.last_used = now;
        self.rearm_connection(at.connection); // perhaps it is idle now
    }

    /// Takes a call out of its slot and gives back what it held.
    pub(super) fn drop_call(&mut self, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let Some(mut call) = connection.slots[at.channel.index()].call.take() else { return };
        let index = connection.path;
        let forgotten = call.tx.clear();
        if let Some(host) = connection.host() {
            self.strangers.count(host, call.counted, 0);
        }
        self.promised.remove(call.promised);
        let (credits, calls) = self.credits();
        credits.handle_end(&call.credit, &calls);
        self.calls -= 1;
        let path = &mut self.paths[index];
        if call.ack_queued {
            path.remove_ack(at);
        }
        if call.queued {
            path.owner_queues.remove();
            if path.owner_queues.wants_tidying() {
                let connections = &self.connections;
                path.owner_queues.retain(|at| {
                    let connection = connections.get(at.connection).filter(|c| c.path == index);
                    connection.and_then(|c| c.call(at.channel)).is_some_and(|c| c.queued)
                });
            }
        }
        self.release_flight(index, forgotten);
    }
}
