//! The protocol of one UDP port: finds the connection of each datagram, and holds connections, paths and timers. It does no I/O
//! and reads no clock. Its user repeats these steps:
//!
//! 1. call [`Endpoint::handle_datagram`] for each datagram that has arrived, and [`Endpoint::handle_timeout`] when the time has come;
//! 2. call the application's verbs ([`Endpoint::write`], [`Endpoint::read`], ...), at any time;
//! 3. call [`Endpoint::poll_transmit`] until it returns `None`, and send what it returns;
//! 4. call [`Endpoint::poll_event`] until it returns `None`;
//! 5. wait as long as [`Endpoint::poll_timeout`] says.
//!
//! The files in `endpoint/`:
//!
//! - `ingress.rs`: the effect of a packet on its connection
//! - `egress.rs`: the order in which packets are sent
//! - `verbs.rs`: what the application may do
//! - `timers.rs`: work that is due at a time
//! - `calls.rs`: the calls and their paths, for the files that look at several of them
//! - `credits.rs`: how much each peer may have in flight to this host
//! - `strangers.rs`: limits on what a server keeps for callers without a name
//! - `reach.rs`: whether a peer is at the address that its packets come from
//! - `authenticate.rs`: challenge and response
//! - `network.rs`: errors that the network reports
//! - `inspect.rs`: rxdebug, and questions for the version
//! - `watch.rs`: figures and trace of one call

mod authenticate;
mod calls;
mod credits;
mod egress;
mod ingress;
mod inspect;
mod network;
mod reach;
mod strangers;
mod timers;
mod verbs;
mod watch;

pub use egress::Transmission;
pub use inspect::{ANSWER_BURST, ANSWER_RATE, ANSWER_RATE_EACH};
pub use verbs::{CallStats, Read};

use crate::abort::AbortCode;
use crate::call::CallError;
use crate::config::{CallLimits, Config};
use crate::connection::{Connection, ConnectionKey, Role};
use crate::fair::{FairQueue, Owners};
use crate::ids::{CallNumber, Channel, ChannelRef, ConnectionId, Epoch, SecurityIndex, ServiceId};
use crate::path::Path;
use crate::pieces::Pieces;
use crate::security::ServerSecurity;
use crate::stats::Stats;
use crate::time::Instant;
use crate::totals::{Share, Totals};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A connection of an endpoint. Names it for the endpoint's life: a handle is not given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionHandle {
    index: u32,
    generation: u32,
}

/// A call of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallHandle {
    connection: ConnectionHandle,
    channel: Channel,
    number: CallNumber,
}

impl CallHandle {
    /// The connection that carries it.
    pub const fn connection(self) -> ConnectionHandle {
        self.connection
    }

    /// The channel that carries it.
    pub const fn channel(self) -> Channel {
        self.channel
    }

    /// Its number on the channel.
    pub const fn number(self) -> CallNumber {
        self.number
    }
}

/// News for the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Server: a new call whose first bytes can be read.
    Incoming(CallHandle),
    /// There is more to read, or the stream has ended; given once after [`Read::Blocked`].
    Readable(CallHandle),
    /// More may be written; given once after a write that was told to wait.
    Writable(CallHandle),
    /// The call is over: it failed with this error, or (`None`) a server's reply has arrived whole.
    Closed(CallHandle, Option<CallError>),
    /// Client: a channel has become free after [`Endpoint::open`] found none.
    ChannelFree(ConnectionHandle),
}

/// A service that the endpoint offers.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its number.
    pub id: ServiceId,
    /// The security classes it takes.
    pub security: Vec<Arc<dyn ServerSecurity>>,
    /// True if a caller's address must answer a ping before its call runs (Rx notes 11). On for every AFS file server.
    pub check_reach: bool,
    /// The service that answers clients who ask for an upgrade by a status byte of 1 (Rx notes 12).
    pub upgrades_to: Option<ServiceId>,
    /// The time limits of its calls.
    pub limits: CallLimits,
}

/// The things that an endpoint holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Connections of both roles.
    pub connections: usize,
    /// Paths.
    pub paths: usize,
    /// Calls that have not ended, or that the application has not let go.
    pub calls: usize,
    /// Entries in the heap of timers: about as many as connections and paths, at most twice as many and 64.
    pub timers: usize,
    /// Bytes that receive windows beyond the initial ones promise.
    pub promised: u64,
    /// Bytes of DATA taken from peers that have not shown to be where they say they are.
    pub unproven: u64,
    /// Bytes of DATA kept for callers without a name: see [`Config::strangers_memory`].
    pub strangers: u64,
    /// Data that are offered to peers and have not come, in bytes as the kernel counts them in a socket's buffer; 0 while
    /// that is not limited.
    pub offered: u64,
    /// The limit of that. `None` while it is not limited.
    pub offer_limit: Option<u64>,
}

/// The round trip of a long path, and the bytes of a call that is a stream (see [`Endpoint::is_lone_stream`]).
const FAR: Duration = Duration::from_millis(2);
const STREAM: u64 = 1 << 20;
/// The time after which whoever else has sent something has probably nothing more to ask at once.
const ALONE: Duration = Duration::from_millis(100);

/// The object that a timer is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Target {
    Path(usize),
    Connection(usize),
}

/// One port's worth of Rx; see the module.
#[derive(Debug)]
pub struct Endpoint {
    config: Arc<Config>,
    epoch: Epoch,
    next_connection: ConnectionId,
    next_generation: u32,
    rng: StdRng,
    services: HashMap<ServiceId, Service>,
    /// True if services are still to come: see [`Endpoint::set_starting`].
    is_starting: bool,
    /// True if clients are told that nobody is here: see [`Endpoint::set_away`].
    is_away: bool,
    /// Datagrams that came meanwhile for missing services, as far as they are kept, with their times.
    early: VecDeque<(Instant, SocketAddr, Bytes)>,
    connections: Slab<Box<Connection>>,
    by_key: HashMap<ConnectionKey, usize>,
    /// The host of each address that is known to belong to one with several: see [`Endpoint::know_host`].
    hosts: HashMap<IpAddr, u64>,
    next_host: u64,
    /// The connection of the last datagram: the next is most often for the same.
    last_found: Option<(ConnectionKey, usize)>,
    /// The time since which all datagrams have been for the same.
    alone_since: Instant,
    paths: Slab<Box<Path>>,
    by_peer: HashMap<SocketAddr, usize>,
    /// Server connections from addresses not shown to be reachable, oldest first; with generations, as slots are reused.
    unverified: VecDeque<(usize, u32)>,
    /// Paths that may have something to send and have not been asked since.
    ready: VecDeque<usize>,
    /// Paths with data to send now, by owner.
    senders: FairQueue<usize>,
    owners: Owners,
    credits: credits::Credits,
    pieces: Pieces,
    events: VecDeque<Event>,
    timers: BinaryHeap<Reverse<(Instant, Target)>>,
    /// Bytes that receive windows beyond the initial ones promise.
    promised: Share,
    /// Bytes of DATA from peers that have not shown to be there.
    unproven: u64,
    strangers: strangers::Strangers,
    /// As many as there are connections, for the total.
    counted: Share,
    calls: usize,
    client_connections: u64,
    inspect: inspect::Inspection,
    stats: Stats,
}

impl Endpoint {
    /// An endpoint without services, alone at its port. All chance comes from `seed`; give each a different one.
    pub fn new(config: Config, seed: [u8; 32]) -> Self {
        Self::with_totals(config, seed, &Totals::default())
    }

    /// The same for one of several at a port: [`Config::receive_budget`], [`Config::strangers_memory`] and [`Config::max_connections`]
    /// are limits of all that have these totals.
    pub fn with_totals(config: Config, seed: [u8; 32], totals: &Totals) -> Self {
        let mut rng = StdRng::from_seed(seed);
        let epoch = Epoch::from_random(rng.random());
        let next_connection = ConnectionId::of(rng.random());
        let owners = Owners::new(rng.random());
        let inspect = inspect::Inspection::new(StdRng::from_seed(seed.map(|byte| !byte)).random());
        let credits = credits::Credits::new(config.receive_buffer);
        Self {
            config: Arc::new(config),
            epoch,
            next_connection,
            next_generation: 0,
            rng,
            services: HashMap::new(),
            is_starting: false,
            is_away: false,
            early: VecDeque::new(),
            connections: Slab::new(),
            by_key: HashMap::new(),
            hosts: HashMap::new(),
            next_host: 0,
            last_found: None,
            alone_since: Instant::ORIGIN,
            paths: Slab::new(),
            by_peer: HashMap::new(),
            unverified: VecDeque::new(),
            ready: VecDeque::new(),
            senders: FairQueue::new(egress::TURN, egress::FRESH),
            owners,
            credits,
            pieces: Pieces::default(),
            events: VecDeque::new(),
            timers: BinaryHeap::new(),
            promised: Share::of(&totals.promised),
            unproven: 0,
            strangers: strangers::Strangers::of(&totals.strangers),
            counted: Share::of(&totals.connections),
            calls: 0,
            client_connections: 0,
            inspect,
            stats: Stats::default(),
        }
    }

    /// Offers a service. Replaces one of the same number.
    pub fn add_service(&mut self, service: Service) {
        self.services.insert(service.id, service);
    }

    /// Sets whether services are still to come. While they are, what asks for one that is not there gets no answer, and what came
    /// last of it is taken up when they have come; otherwise it is refused, which clients take for the last word.
    pub fn set_starting(&mut self, now: Instant, is_starting: bool) {
        self.is_starting = is_starting;
        if !is_starting {
            for (at, from, datagram) in mem::take(&mut self.early) {
                if now.since(at) <= reach::MAX_EARLY_AGE {
                    self.handle_datagram(now, from, datagram);
                }
            }
        }
    }

    /// Sets whether the services are away. While they are, calls of clients end with [`AbortCode::CALL_DEAD`], those that run and new
    /// ones: for OpenAFS's clients and ours that is a server that does not answer, and they need not wait to know it. Nothing else
    /// from a client is answered. Calls that this endpoint makes go on.
    pub fn set_away(&mut self, now: Instant, is_away: bool) {
        self.is_away = is_away;
        if !is_away {
            return;
        }
        self.early.clear();
        let served: Vec<usize> =
            self.connections.iter().filter(|(_, c)| !c.is_client()).map(|(index, _)| index).collect();
        for connection in served {
            for channel in Channel::ALL {
                let at = ChannelRef { connection, channel };
                self.fail_call(now, at, CallError::Failed(AbortCode::CALL_DEAD), true);
            }
        }
    }

    /// The endpoint's epoch.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The endpoint's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Counters over all connections.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The number of connections, of both roles.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// The number of paths.
    pub fn path_count(&self) -> usize {
        self.paths.len()
    }

    /// Returns what is held for the moment, for metrics and tests.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.connections.len(),
            paths: self.paths.len(),
            calls: self.calls,
            timers: self.timers.len(),
            promised: self.promised.own(),
            unproven: self.unproven,
            strangers: self.strangers.bytes(),
            offered: self.credits.offered(),
            offer_limit: self.credits.limit(),
        }
    }

    /// True if one call runs here and no other, it has carried much over a long path, and for a while nobody else has sent anything:
    /// nothing here waits for a fraction of a millisecond.
    pub fn is_lone_stream(&self, now: Instant) -> bool {
        let is_alone = self.calls == 1 && now.since(self.alone_since) >= ALONE;
        let last = self.last_found.filter(|_| is_alone).and_then(|(_, index)| self.connections.get(index));
        last.is_some_and(|connection| {
            let is_far = self.paths[connection.path].rtt.min() >= FAR;
            let mut calls = connection.slots.iter().filter_map(|slot| slot.call.as_deref());
            is_far && calls.any(|call| call.rx.bytes().max(call.tx.acked()) >= STREAM)
        })
    }

    /// The path of a connection.
    pub fn path(&self, connection: ConnectionHandle) -> Option<&Path> {
        self.connection(connection).map(|c| &*self.paths[c.path])
    }

    /// The path to a peer.
    pub fn path_to(&self, peer: SocketAddr) -> Option<&Path> {
        self.by_peer.get(&peer).map(|&i| &*self.paths[i])
    }

    /// True if there is a server connection for a packet from `from`. For a program that spreads connections over several
    /// endpoints.
    pub fn serves(&self, epoch: Epoch, connection: ConnectionId, from: SocketAddr) -> bool {
        let key = ConnectionKey::new(epoch, connection, Role::Server, from);
        self.by_key.contains_key(&key) || self.by_key.contains_key(&key.anywhere())
    }

    /// True if there is such a server connection that packets from any address may be for.
    pub fn serves_anywhere(&self, epoch: Epoch, connection: ConnectionId) -> bool {
        self.by_key.contains_key(&ConnectionKey { epoch, connection, role: Role::Server, address: None })
    }

    /// Returns the next event that has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn connection(&self, handle: ConnectionHandle) -> Option<&Connection> {
        let connection = self.connections.get(handle.index as usize)?;
        (connection.generation == handle.generation).then_some(connection)
    }

    fn handle_of(&self, index: usize) -> ConnectionHandle {
        ConnectionHandle { index: index as u32, generation: self.connections[index].generation }
    }

    /// Finds the place of a call, if the call still exists.
    fn find(&self, call: CallHandle) -> Result<ChannelRef, CallError> {
        let connection = self.connection(call.connection).ok_or(CallError::Gone)?;
        match connection.call(call.channel) {
            Some(c) if c.number == call.number => {
                Ok(ChannelRef { connection: call.connection.index as usize, channel: call.channel })
            }
            _ => Err(CallError::Gone),
        }
    }

    /// The path to `peer`, made if there is none.
    fn path_index(&mut self, now: Instant, peer: SocketAddr) -> usize {
        if let Some(&index) = self.by_peer.get(&peer) {
            return index;
        }
        let index = self.paths.insert(Box::new(Path::new(now, peer, &self.config, self.rng.random())));
        self.by_peer.insert(peer, index);
        index
    }

    fn insert_connection(&mut self, mut connection: Connection) -> usize {
        self.next_generation = self.next_generation.wrapping_add(1);
        connection.generation = self.next_generation;
        self.paths[connection.path].connections += 1;
        let key = connection.key;
        self.client_connections += u64::from(connection.is_client());
        let index = self.connections.insert(Box::new(connection));
        self.counted.add(1);
        self.by_key.insert(key, index);
        index
    }

    /// Forgets a connection and what its calls hold; its path stays a while, for what it has learnt.
    fn remove_connection(&mut self, now: Instant, index: usize) {
        for channel in Channel::ALL {
            self.drop_call(ChannelRef { connection: index, channel });
        }
        self.stop_waiting(index);
        self.remove_stranger(index);
        let connection = self.connections.remove(index);
        self.counted.remove(1);
        self.client_connections -= u64::from(connection.is_client());
        for key in [connection.key, connection.key.anywhere()] {
            if self.by_key.get(&key) == Some(&index) {
                self.by_key.remove(&key);
            }
        }
        self.last_found = None;
        self.leave_path(now, connection.path);
    }

    /// A path has a connection less.
    fn leave_path(&mut self, now: Instant, index: usize) {
        let path = &mut self.paths[index];
        path.connections -= 1;
        path.last_used = now;
        if path.connections == 0 {
            if path.is_verified() {
                let at = now + self.config.reap_after;
                self.arm(Target::Path(index), at);
            } else {
                self.remove_path(index);
            }
        }
    }

    fn remove_path(&mut self, index: usize) {
        let path = self.paths.remove(index);
        self.by_peer.remove(&path.peer);
        self.unproven -= path.unproven;
        // It may still stand in `ready`: sending passes over it.
        if self.paths.is_empty() {
            self.credits.disarm();
            self.timers.clear(); // every connection has a path: what is left is for what is gone
        }
    }

    /// Bytes left a path's flight without being acknowledged or lost, since their call ended: others may go.
    fn release_flight(&mut self, path: usize, bytes: u64) {
        self.paths[path].forget_in_flight(bytes);
        if bytes > 0 {
            self.wake_path(path);
        }
    }

    /// The credits, and the calls that have them.
    fn credits(&mut self) -> (&mut credits::Credits, calls::Calls<'_>) {
        let Self { credits, connections, paths, ready, .. } = self;
        (credits, calls::Calls { connections, paths, ready })
    }

    /// Counts anew what a call holds of the room on the way to here.
    fn settle_credit(&mut self, now: Instant, at: ChannelRef) {
        let (credits, mut calls) = self.credits();
        credits.settle(now, at, &mut calls);
    }

    /// Sees to it that a path with something to send is asked for it.
    fn wake_path(&mut self, index: usize) {
        self.credits().1.wake_path(index);
    }

    /// Queues a call that may have something to send.
    fn queue_call(&mut self, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let path = &mut self.paths[connection.path];
        let capacity = data_capacity(&*connection.security, path);
        let (index, owner) = (connection.path, connection.owner);
        let Some(call) = connection.call_mut(at.channel) else { return };
        if !call.queued && call.tx.has_work(capacity) {
            call.queued = true;
            path.owner_queues.push(owner, at, call.bytes_sent);
        }
        self.wake_path(index);
    }

    /// Queues the ACK that a call's receiving half has due.
    fn queue_ack(&mut self, at: ChannelRef) {
        self.credits().1.queue_ack(at);
    }

    /// Security class of a service by number.
    fn server_security(&self, service: ServiceId, index: SecurityIndex) -> Option<&Arc<dyn ServerSecurity>> {
        self.services.get(&service)?.security.iter().find(|s| s.index() == index)
    }
}

/// The number of bytes of plain text that a DATA packet of this connection carries on this path now.
fn data_capacity(security: &dyn crate::security::SecurityClass, path: &Path) -> usize {
    security.plaintext_capacity(path.packet_len() - crate::packet::HEADER_LEN)
}
