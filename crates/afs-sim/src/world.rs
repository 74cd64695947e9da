//! A network in virtual time: endpoints joined by links with delay, rate, queue, loss, reordering, duplication, blackouts and
//! packet size limits, and a simple application on each. Everything follows from a seed.
//!
//! A test adds nodes, sets their links, starts calls as [`Job`]s and runs the [`World`] until something is so.

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::CallError;
use rx_proto::config::{CallLimits, Config};
use rx_proto::endpoint::{CallHandle, ConnectionHandle, Endpoint, Event, Service};
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, SecurityClass, ServerSecurity};
use rx_proto::time::Instant;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

mod application;

/// The service that each node offers.
pub const SERVICE: ServiceId = ServiceId(4321);

/// Milliseconds.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// One direction of the way between two nodes.
#[derive(Clone, Debug)]
pub struct Link {
    /// The time that a datagram takes, besides the queue.
    pub delay: Duration,
    /// Bits a second of IP packets; 0 is unlimited.
    pub rate: u64,
    /// Time that the queue holds at that rate.
    pub queue: Duration,
    /// Parts of all datagrams that are lost, come twice, and come late.
    pub loss: f64,
    /// See `loss`.
    pub duplicate: f64,
    /// See `loss`.
    pub reorder: f64,
    /// The delay of those.
    pub reorder_by: Duration,
    /// Largest UDP payload that passes whole; larger ones vanish if they must not be fragmented.
    pub mtu: usize,
    /// Largest UDP payload that passes at all.
    pub narrow: usize,
    /// While set nothing passes.
    pub is_down: bool,
    /// The time when the queue will be empty.
    pub free_at: Instant,
    /// Datagrams that did not pass.
    pub dropped: u64,
    /// Datagrams that passed.
    pub passed: u64,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: ms(5),
            rate: 0,
            queue: ms(50),
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: ms(2),
            mtu: 65_507,
            narrow: 65_507,
            is_down: false,
            free_at: Instant::ORIGIN,
            dropped: 0,
            passed: 0,
        }
    }
}

/// Sees each datagram that a node sends; returns whether it passes.
pub type Filter = Box<dyn FnMut(Instant, SocketAddr, &[u8]) -> bool>;

/// Changes a datagram on its way.
pub type Rewrite = Box<dyn FnMut(&mut Vec<u8>)>;

/// The work of a client in one call: it sends `send` bytes and expects `receive` bytes of pattern.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Bytes of the request.
    pub send: usize,
    /// Bytes of the reply.
    pub receive: usize,
    /// The server aborts with this code after the request instead of replying.
    pub abort: i32,
    /// The time for which the server computes before it replies.
    pub think: Duration,
}

impl Job {
    /// A job that ends well and at once.
    pub const fn new(send: usize, receive: usize) -> Self {
        Self { send, receive, abort: 0, think: Duration::ZERO }
    }
}

/// Bytes of a request that tell the server of the job, before its data.
pub const JOB_HEADER: usize = 16;

/// The content of all data: the byte at a place.
pub fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(7) ^ (at >> 8)) as u8
}

fn pattern_bytes(from: usize, len: usize) -> Bytes {
    (from..from + len).map(pattern).collect::<Vec<u8>>().into()
}

/// A client's call on its way.
#[derive(Debug)]
pub struct Running {
    /// The work that it is to do.
    pub job: Job,
    /// The connection that it is on.
    pub connection: ConnectionHandle,
    /// Its call, once a channel was free.
    pub call: Option<CallHandle>,
    written: usize,
    received: usize,
    finished: bool,
    /// The time when it was started.
    pub started: Instant,
    /// The time when it had a result.
    pub ended: Option<Instant>,
    /// The result.
    pub result: Option<Result<(), CallError>>,
    /// Time and bytes received so far, once a millisecond at most.
    pub progress: Vec<(Instant, usize)>,
}

#[derive(Debug, Default)]
struct Serving {
    /// Its number among the node's calls.
    arrived: u64,
    request: Vec<u8>,
    request_len: usize,
    job: Option<Job>,
    think_until: Option<Instant>,
    request_done: bool,
    written: usize,
    finished: bool,
}

/// A process with an endpoint, that calls and serves.
pub struct Node {
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// Its address; others may see it as another one, see [`World::nat`].
    pub address: SocketAddr,
    /// The calls that it has made, in the order in which they were started.
    pub jobs: Vec<Running>,
    connections: Vec<ConnectionHandle>,
    serving: HashMap<CallHandle, Serving>,
    /// Calls that have come, ever.
    arrivals: u64,
    /// Calls that it has answered.
    pub served: usize,
    /// Calls to it that failed.
    pub served_failed: usize,
    /// The application does not read before this time.
    pub reads_after: Instant,
    /// The number of reads that it makes in a turn.
    pub reads_per_step: usize,
    /// The process gets no time before this: what comes waits in its socket, and then is worked through in one go.
    pub stands_until: Instant,
    socket: VecDeque<(SocketAddr, Bytes)>,
}

struct Flying {
    to: SocketAddr,
    from: SocketAddr,
    bytes: Bytes,
}

/// Nodes, the links between them, and the time.
pub struct World {
    /// The time.
    pub now: Instant,
    /// The nodes, in the order in which they were added.
    pub nodes: Vec<Node>,
    links: HashMap<(usize, usize), Link>,
    /// The properties of links that nobody has looked at yet.
    pub default_link: Link,
    flying: BinaryHeap<Reverse<(Instant, u64)>>,
    packets: HashMap<u64, Flying>,
    next_packet: u64,
    /// The source of random numbers.
    pub rng: StdRng,
    seed: u64,
    /// The address from which a node's packets seem to come and to which packets to it are sent: a NAT's mapping.
    pub nat: HashMap<SocketAddr, SocketAddr>,
    /// Datagrams that were sent.
    pub datagrams: u64,
    /// Called with each datagram that a node sends; may drop it by returning `false`.
    pub filter: Option<Filter>,
    /// Called with each datagram that a node sends and that passes.
    pub rewrite: Option<Rewrite>,
    /// The security classes of nodes that are added, as servers.
    pub server_security: Vec<Arc<dyn ServerSecurity>>,
    /// True if these check that callers can be reached.
    pub check_reach: bool,
    /// A service that answers for those of [`SERVICE`]'s callers who ask for an upgrade.
    pub upgrades_to: Option<ServiceId>,
    /// Turns of [`World::run_until`]; a world that takes too many is in a loop.
    pub steps: u64,
}

/// Most turns of a world.
const MAX_STEPS: u64 = 3_000_000;

impl World {
    /// A world without nodes.
    pub fn new(seed: u64) -> Self {
        Self {
            now: Instant::ORIGIN + Duration::from_secs(1),
            nodes: Vec::new(),
            links: HashMap::new(),
            default_link: Link::default(),
            flying: BinaryHeap::new(),
            packets: HashMap::new(),
            next_packet: 0,
            rng: StdRng::seed_from_u64(seed),
            seed,
            nat: HashMap::new(),
            datagrams: 0,
            filter: None,
            rewrite: None,
            server_security: vec![Arc::new(Null)],
            check_reach: true,
            upgrades_to: None,
            steps: 0,
        }
    }

    /// A world of a client (node 0) and a server (node 1).
    pub fn pair(seed: u64, config: Config, link: Link) -> Self {
        let mut world = Self::new(seed);
        world.default_link = link;
        world.add(config.clone());
        world.add(config);
        world
    }

    fn make_endpoint(&mut self, config: Config, node: usize) -> Endpoint {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&(node as u64).to_le_bytes());
        seed[16..24].copy_from_slice(&self.now.as_nanos().to_le_bytes());
        let mut endpoint = Endpoint::new(config, seed);
        for (id, upgrades_to) in
            [(SERVICE, self.upgrades_to)].into_iter().chain(self.upgrades_to.map(|s| (s, None)))
        {
            endpoint.add_service(Service {
                id,
                security: self.server_security.clone(),
                check_reach: self.check_reach,
                upgrades_to,
                limits: CallLimits::default(),
            });
        }
        endpoint
    }

    /// Adds a node; returns its number.
    pub fn add(&mut self, config: Config) -> usize {
        let node = self.nodes.len();
        let endpoint = self.make_endpoint(config, node);
        let address = SocketAddr::from(([10, 0, 0, node as u8 + 1], 7000 + node as u16));
        self.nodes.push(Node {
            endpoint,
            address,
            jobs: Vec::new(),
            connections: Vec::new(),
            serving: HashMap::new(),
            arrivals: 0,
            served: 0,
            served_failed: 0,
            reads_after: Instant::ORIGIN,
            reads_per_step: usize::MAX,
            stands_until: Instant::ORIGIN,
            socket: VecDeque::new(),
        });
        node
    }

    /// The node's process dies and starts anew: same address, nothing remembered.
    pub fn restart(&mut self, node: usize) {
        let config = self.nodes[node].endpoint.config().clone();
        self.nodes[node].endpoint = self.make_endpoint(config, node);
        self.nodes[node].serving.clear();
        self.nodes[node].connections.clear();
        self.nodes[node].socket.clear();
        self.nodes[node].stands_until = Instant::ORIGIN;
    }

    /// The mapping of the NAT before a node changes: it now seems to be at `outside`.
    pub fn rebind(&mut self, node: usize, outside: SocketAddr) {
        self.nat.insert(self.nodes[node].address, outside);
    }

    /// True if every call that was started has a result.
    pub fn is_done(&self) -> bool {
        self.nodes.iter().all(|n| n.jobs.iter().all(|j| j.result.is_some()))
    }

    /// Lets a call of a node go, whatever it is at.
    pub fn drop_call(&mut self, node: usize, job: usize) {
        let now = self.now;
        let n = &mut self.nodes[node];
        let running = &mut n.jobs[job];
        if running.result.is_none() {
            (running.result, running.ended) = (Some(Err(CallError::Gone)), Some(now));
            if let Some(call) = running.call {
                n.endpoint.release(now, call);
            }
        }
        self.step_node(node);
    }

    /// The link from a node to another.
    pub fn link(&mut self, from: usize, to: usize) -> &mut Link {
        let default = self.default_link.clone();
        self.links.entry((from, to)).or_insert(default)
    }

    /// Changes the links between two nodes in both directions.
    pub fn both_links(&mut self, a: usize, b: usize, change: impl Fn(&mut Link)) {
        change(self.link(a, b));
        change(self.link(b, a));
    }

    /// A connection from a node to another, without security.
    pub fn connect(&mut self, from: usize, to: usize) -> ConnectionHandle {
        self.connect_with(from, to, Box::new(Null))
    }

    /// The same with a security class.
    pub fn connect_with(
        &mut self,
        from: usize,
        to: usize,
        security: Box<dyn SecurityClass>,
    ) -> ConnectionHandle {
        let peer = self.nodes[to].address;
        let connection = self.nodes[from].endpoint.connect(self.now, peer, SERVICE, security);
        self.nodes[from].connections.push(connection);
        connection
    }

    /// The clients let their connections go.
    pub fn close_connections(&mut self) {
        let now = self.now;
        for node in &mut self.nodes {
            node.connections.drain(..).for_each(|c| node.endpoint.close_connection(now, c));
        }
    }

    /// Queues a call; returns its place in the node's `jobs`.
    pub fn start(&mut self, node: usize, connection: ConnectionHandle, job: Job) -> usize {
        let started = self.now;
        self.nodes[node].jobs.push(Running {
            job,
            connection,
            call: None,
            written: 0,
            received: 0,
            finished: false,
            started,
            ended: None,
            result: None,
            progress: Vec::new(),
        });
        self.step_node(node);
        self.nodes[node].jobs.len() - 1
    }

    /// Runs one call to its end, at most `limit`. Returns how long it took.
    ///
    /// # Errors
    ///
    /// Those of the call.
    ///
    /// # Panics
    ///
    /// With the seed, if it takes longer.
    pub fn call(
        &mut self,
        node: usize,
        connection: ConnectionHandle,
        job: Job,
        limit: Duration,
    ) -> Result<Duration, CallError> {
        let index = self.start(node, connection, job);
        self.run_until(limit, |w| w.nodes[node].jobs[index].result.is_some());
        let running = &self.nodes[node].jobs[index];
        let Some(result) = running.result else {
            panic!("seed {}: a call of {job:?} does not end within {limit:?}", self.seed)
        };
        result.map(|()| running.ended.unwrap().since(running.started))
    }

    /// Lets time pass.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Runs until `done`, or until `limit` has passed. Returns whether it is done.
    ///
    /// # Panics
    ///
    /// With the seed, if so much happens that it must be a loop.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        for node in 0..self.nodes.len() {
            self.step_node(node);
        }
        while !done(self) {
            let packet = self.flying.peek().map(|Reverse((at, _))| *at);
            let timers =
                self.nodes.iter().filter_map(|n| Some(n.endpoint.poll_timeout()?.max(n.stands_until)));
            let thinking = self.nodes.iter().flat_map(|n| n.serving.values().filter_map(|s| s.think_until));
            let thinking = thinking.filter(|&at| at > self.now);
            let waiting =
                self.nodes.iter().flat_map(|n| [n.reads_after, n.stands_until]).filter(|&at| at > self.now);
            let Some(next) = timers.chain(packet).chain(thinking).chain(waiting).min() else { break };
            if next > end {
                self.now = end;
                return done(self);
            }
            self.now = self.now.max(next);
            self.steps += 1;
            assert!(self.steps < MAX_STEPS, "seed {}: an endless loop, at {:?}", self.seed, self.now);
            self.deliver();
            for node in 0..self.nodes.len() {
                let n = &mut self.nodes[node];
                if n.stands_until > self.now {
                    continue;
                }
                for (from, bytes) in n.socket.drain(..) {
                    n.endpoint.handle_datagram(self.now, from, bytes);
                }
                if n.endpoint.poll_timeout().is_some_and(|t| t <= self.now) {
                    n.endpoint.handle_timeout(self.now);
                }
                self.step_node(node);
            }
        }
        true
    }

    fn deliver(&mut self) {
        while let Some(&Reverse((at, id))) = self.flying.peek() {
            if at > self.now {
                break;
            }
            self.flying.pop();
            let Some(packet) = self.packets.remove(&id) else { continue };
            let inside = self.nat.iter().find(|(_, outside)| **outside == packet.to).map(|(i, _)| *i);
            let to = inside.unwrap_or(packet.to);
            if inside.is_none() && self.nat.contains_key(&to) {
                continue; // the old mapping is gone
            }
            if let Some(node) = self.nodes.iter_mut().find(|n| n.address == to) {
                node.socket.push_back((packet.from, packet.bytes));
            }
        }
    }

    /// Throws a datagram at a node, from anywhere.
    pub fn inject(&mut self, node: usize, from: SocketAddr, bytes: Bytes) {
        self.nodes[node].endpoint.handle_datagram(self.now, from, bytes);
        self.step_node(node);
    }

    fn step_node(&mut self, node: usize) {
        if self.nodes[node].stands_until > self.now {
            return;
        }
        self.application(node);
        let mut out = Vec::new();
        let from = self.nodes[node].address;
        while let Some(t) = self.nodes[node].endpoint.poll_transmit(self.now, &mut out) {
            for segment in out.chunks(t.segment_len) {
                self.datagrams += 1;
                let passes = self.filter.as_mut().is_none_or(|f| f(self.now, from, segment));
                if passes {
                    let mut bytes = segment.to_vec();
                    if let Some(rewrite) = &mut self.rewrite {
                        rewrite(&mut bytes);
                    }
                    self.send(node, t.to, bytes.into(), t.dont_fragment);
                }
            }
        }
        self.application(node);
    }

    fn send(&mut self, from: usize, to: SocketAddr, bytes: Bytes, dont_fragment: bool) {
        let source = self.nodes[from].address;
        let source = self.nat.get(&source).copied().unwrap_or(source);
        let inside = self.nat.iter().find(|(_, outside)| **outside == to).map_or(to, |(i, _)| *i);
        let Some(to_node) = self.nodes.iter().position(|n| n.address == inside) else { return };
        let now = self.now;
        let mut rng = std::mem::replace(&mut self.rng, StdRng::seed_from_u64(0));
        let link = self.link(from, to_node);
        let mut arrivals = VecDeque::new();
        let wire = bytes.len() as u64 + 28;
        let is_too_large = bytes.len() > link.narrow || (bytes.len() > link.mtu && dont_fragment);
        if link.is_down || is_too_large || rng.random_bool(link.loss) {
            link.dropped += 1;
        } else {
            let start = link.free_at.max(now);
            if link.rate > 0 && start.since(now) > link.queue {
                link.dropped += 1;
            } else {
                let sent = match link.rate {
                    0 => now,
                    rate => start + Duration::from_nanos(wire * 8 * 1_000_000_000 / rate),
                };
                link.free_at = sent;
                link.passed += 1;
                let late = if rng.random_bool(link.reorder) { link.reorder_by } else { Duration::ZERO };
                arrivals.push_back(sent + link.delay + late);
                if rng.random_bool(link.duplicate) {
                    arrivals.push_back(sent + link.delay + ms(1));
                }
            }
        }
        self.rng = rng;
        for at in arrivals {
            self.next_packet += 1;
            self.flying.push(Reverse((at, self.next_packet)));
            self.packets.insert(self.next_packet, Flying { to, from: source, bytes: bytes.clone() });
        }
    }

    // ---- the application

    fn application(&mut self, node: usize) {
        let now = self.now;
        let n = &mut self.nodes[node];
        while let Some(event) = n.endpoint.poll_event() {
            match event {
                Event::Incoming(call) => {
                    n.arrivals += 1;
                    n.serving.insert(call, Serving { arrived: n.arrivals, ..Serving::default() });
                }
                Event::Closed(call, error) => {
                    if n.serving.remove(&call).is_some() {
                        n.served_failed += usize::from(error.is_some());
                        n.endpoint.release(now, call);
                    }
                }
                Event::Readable(_) | Event::Writable(_) | Event::ChannelFree(_) => {}
            }
        }
        for i in 0..n.jobs.len() {
            if n.jobs[i].result.is_none() {
                n.step_job(now, i);
            }
        }
        // In an order that is the same each time, or no seed would give the same run again.
        let mut calls: Vec<(u64, CallHandle)> =
            n.serving.iter().map(|(call, s)| (s.arrived, *call)).collect();
        calls.sort_unstable_by_key(|(arrived, _)| *arrived);
        for (_, call) in calls {
            n.step_serving(now, call);
        }
    }
}
