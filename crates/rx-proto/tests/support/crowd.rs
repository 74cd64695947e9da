//! The world of `fairness`, in virtual time: a server whose socket has a buffer of limited size, that works through packets
//! at a limited rate and sends at a limited rate, and clients of several hosts, each with a controller of its own. An owner
//! here is an IP address; its hosts are ports of it. What is to come of it, the tests say.
#![allow(clippy::cast_possible_truncation, reason = "sizes and rates of a test are small")]

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::config::{CallLimits, Config};
use rx_proto::endpoint::{CallHandle, ConnectionHandle, Endpoint, Event, Read, Service};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rx_proto::time::Instant;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const SERVICE: ServiceId = ServiceId(1);
const SERVER: ([u8; 4], u16) = ([10, 9, 9, 9], 7000);
const DELAY: Duration = Duration::from_millis(5);
/// What Linux grants without the capability, by its defaults, and what is forced.
pub(crate) const SMALL_BUFFER: u64 = 212_992;
pub(crate) const FORCED_BUFFER: u64 = 32 << 20;
/// Packets that the server works through before it looks at what is to be sent.
const BATCH: usize = 16;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What the kernel counts for a packet (measured on loopback).
fn kernel_cost(len: usize) -> u64 {
    match len {
        0..=128 => 832,
        129..=1472 => 2304,
        _ => len.next_power_of_two() as u64 + 832,
    }
}

fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(7) ^ (at >> 8)) as u8
}

fn piece(from: u64, len: u64) -> Bytes {
    (from..from + len).map(pattern).collect::<Vec<u8>>().into()
}

/// What a client does, again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) owner: u8,
    /// Bytes to and from the server, at least and at most.
    pub(crate) send: (u64, u64),
    pub(crate) receive: (u64, u64),
    /// The time from the beginning of one call to that of the next, at least.
    pub(crate) every: Duration,
    /// How long after the start of the world it begins.
    pub(crate) after: Duration,
    /// It behaves as OpenAFS does.
    pub(crate) is_stock: bool,
    /// It stands still for up to so long, again and again, as a host without CPU; what comes waits for it.
    pub(crate) naps: Duration,
}

/// One direction of one call.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    written: u64,
    total: u64,
    finished: bool,
    read: u64,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) endpoint: Endpoint,
    address: SocketAddr,
    pub(crate) work: Work,
    connection: ConnectionHandle,
    pub(crate) call: Option<CallHandle>,
    flow: Flow,
    expects: u64,
    began: Instant,
    next_at: Instant,
    progress_at: Instant,
    /// Bytes of its calls that have been read at either end.
    pub(crate) moved: u64,
    pub(crate) times: Vec<Duration>,
    /// It stands still until then.
    sleeps_until: Instant,
    mail: Vec<(SocketAddr, Bytes)>,
}

#[derive(Debug, Default)]
pub(crate) struct Serving {
    header: Vec<u8>,
    read: u64,
    sends: u64,
    reply: Option<Flow>,
}

#[derive(Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) packets: VecDeque<(SocketAddr, Bytes)>,
    pub(crate) used: u64,
    pub(crate) arrived: u64,
    pub(crate) dropped: u64,
}

pub(crate) struct Crowd {
    seed: u64,
    pub(crate) rng: StdRng,
    pub(crate) now: Instant,
    pub(crate) server: Endpoint,
    pub(crate) serving: HashMap<CallHandle, Serving>,
    pub(crate) clients: Vec<Client>,
    by_address: BTreeMap<SocketAddr, usize>,
    pub(crate) flying: BinaryHeap<Reverse<(Instant, u64)>>,
    pub(crate) packets: BTreeMap<u64, (SocketAddr, SocketAddr, Bytes)>,
    next_packet: u64,
    pub(crate) buffer: Buffer,
    pub(crate) buffer_bytes: u64,
    /// Kernel's bytes a second that the server works through; bytes a second that it sends.
    pub(crate) work_rate: u64,
    pub(crate) send_rate: u64,
    pub(crate) works_at: Instant,
    sends_at: Instant,
    /// How much of each period the server has a core for, and the period.
    pub(crate) core: Option<(Duration, Duration)>,
    pub(crate) stalls_after: Duration,
    /// Part of the packets that the network loses, and the longest that passes.
    pub(crate) loss: f64,
    pub(crate) longest: usize,
    /// How long each packet is under way, and bytes a second that clients get onto the way to the server, all together.
    pub(crate) delay: Duration,
    pub(crate) link_rate: u64,
    link_free_at: Instant,
    /// Clients begin no more calls.
    pub(crate) is_ending: bool,
}

impl Crowd {
    pub(crate) fn new(seed: u64, config: Config, buffer_bytes: u64, works: &[Work]) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let now = Instant::ORIGIN + Duration::from_secs(1);
        let mut server = Endpoint::new(config, rng.random());
        server.add_service(Service {
            id: SERVICE,
            security: vec![Arc::new(Null)],
            check_reach: true,
            upgrades_to: None,
            limits: CallLimits::default(),
        });
        let mut crowd = Self {
            seed,
            now,
            server,
            serving: HashMap::new(),
            clients: Vec::new(),
            by_address: BTreeMap::new(),
            flying: BinaryHeap::new(),
            packets: BTreeMap::new(),
            next_packet: 0,
            buffer: Buffer::default(),
            buffer_bytes,
            work_rate: 1_000_000_000,
            send_rate: 1_000_000_000,
            works_at: now,
            sends_at: now,
            core: None,
            stalls_after: Duration::from_secs(3),
            loss: 0.0,
            longest: usize::MAX,
            delay: DELAY,
            link_rate: u64::MAX,
            link_free_at: now,
            is_ending: false,
            rng,
        };
        works.iter().for_each(|work| crowd.add(*work));
        crowd
    }

    pub(crate) fn add(&mut self, work: Work) {
        let index = self.clients.len();
        let address = SocketAddr::from(([10, 0, 0, work.owner], 7000 + index as u16));
        let config = if work.is_stock { Config::stock_like() } else { Config::default() };
        let mut endpoint = Endpoint::new(config, self.rng.random());
        let connection = endpoint.connect(self.now, SERVER.into(), SERVICE, Box::new(Null));
        self.by_address.insert(address, index);
        self.clients.push(Client {
            endpoint,
            address,
            work,
            connection,
            call: None,
            flow: Flow::default(),
            expects: 0,
            began: self.now,
            next_at: self.now + work.after,
            progress_at: self.now,
            moved: 0,
            times: Vec::new(),
            sleeps_until: self.now + work.naps,
            mail: Vec::new(),
        });
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        for index in 0..self.clients.len() {
            self.step_client(index);
        }
        loop {
            let mut next = end;
            if let Some(Reverse((at, _))) = self.flying.peek() {
                next = next.min(*at);
            }
            let mut server = self.server.poll_timeout().unwrap_or(end);
            if !self.buffer.packets.is_empty() {
                server = server.min(self.works_at);
            }
            if self.sends_at > self.now {
                server = server.min(self.sends_at); // perhaps there is more
            }
            next = next.min(server.max(self.server_has_core_at()));
            for client in &self.clients {
                if client.sleeps_until > self.now {
                    next = next.min(client.sleeps_until);
                    continue;
                }
                next = next.min(client.endpoint.poll_timeout().unwrap_or(end));
                if client.call.is_none() && !self.is_ending {
                    next = next.min(client.next_at);
                }
            }
            if next >= end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            self.deliver();
            self.step_server();
            for index in 0..self.clients.len() {
                let client = &mut self.clients[index];
                if client.sleeps_until > self.now {
                    continue;
                }
                if !client.mail.is_empty() {
                    for (from, bytes) in std::mem::take(&mut client.mail) {
                        client.endpoint.handle_datagram(self.now, from, bytes);
                    }
                    self.step_client(index);
                    self.send_to_sleep(index);
                    continue;
                }
                let begins = client.call.is_none() && client.next_at <= self.now && !self.is_ending;
                if client.endpoint.poll_timeout().is_some_and(|at| at <= self.now) {
                    client.endpoint.handle_timeout(self.now);
                    self.step_client(index);
                } else if begins {
                    self.step_client(index);
                }
            }
            self.check();
        }
    }

    /// What has to hold at every step.
    pub(crate) fn check(&mut self) {
        let usage = self.server.usage();
        if let Some(limit) = usage.offer_limit {
            let buffer = self.server.config().receive_buffer;
            // A limit that falls leaves standing what was offered under it before: no more than was drained in 2 ms.
            let most = buffer.map_or(u64::MAX, |b| b.max(limit) + self.work_rate / 500);
            assert!(usage.offered <= most, "seed {}: {} offered, {limit} allowed", self.seed, usage.offered);
        }
        for client in &self.clients {
            let waits = self.now.since(client.progress_at);
            assert!(
                client.call.is_none() || waits <= self.stalls_after,
                "seed {}: {} makes no progress for {waits:?}, at {:?}: {:?}",
                self.seed,
                client.address,
                self.now,
                (
                    client.call.and_then(|c| client.endpoint.call_stats(c)),
                    &client.flow,
                    client.expects,
                    client.work
                ),
            );
        }
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if bytes.len() > self.longest || self.rng.random_bool(self.loss) {
            return;
        }
        self.next_packet += 1;
        let mut leaves_at = self.now;
        if to == SERVER.into() {
            let takes = Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / self.link_rate);
            leaves_at = self.link_free_at.max(self.now) + takes;
            self.link_free_at = leaves_at;
        }
        let jitter = Duration::from_micros(self.rng.random_range(0..50));
        self.flying.push(Reverse((leaves_at + self.delay + jitter, self.next_packet)));
        self.packets.insert(self.next_packet, (from, to, Bytes::copy_from_slice(bytes)));
    }

    fn deliver(&mut self) {
        while let Some(&Reverse((at, id))) = self.flying.peek() {
            if at > self.now {
                return;
            }
            self.flying.pop();
            let (from, to, bytes) = self.packets.remove(&id).expect("it was sent");
            if let Some(&index) = self.by_address.get(&to) {
                if !self.clients[index].work.naps.is_zero() {
                    self.clients[index].mail.push((from, bytes)); // read when it is awake, all at once
                    continue;
                }
                self.clients[index].endpoint.handle_datagram(self.now, from, bytes);
                self.step_client(index);
                continue;
            }
            let cost = kernel_cost(bytes.len());
            self.buffer.arrived += 1;
            if self.buffer.used + cost > self.buffer_bytes {
                self.buffer.dropped += 1;
                continue;
            }
            if self.buffer.packets.is_empty() {
                self.works_at = self.works_at.max(self.now);
            }
            self.buffer.used += cost;
            self.buffer.packets.push_back((from, bytes));
        }
    }

    /// A host that gets no time stands still for a while after it has done something.
    fn send_to_sleep(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if !client.work.naps.is_zero() {
            client.sleeps_until = self.now + client.work.naps.mul_f64(self.rng.random_range(0.2..1.0));
        }
    }

    /// When the server next has a core; now, if it has one.
    fn server_has_core_at(&self) -> Instant {
        let Some((runs, period)) = self.core else { return self.now };
        let into = Duration::from_nanos(self.now.as_nanos() % period.as_nanos() as u64);
        if into < runs { self.now } else { self.now + (period - into) }
    }

    fn step_server(&mut self) {
        let now = self.now;
        if self.server_has_core_at() > now {
            return;
        }
        if self.server.poll_timeout().is_some_and(|at| at <= now) {
            self.server.handle_timeout(now);
        }
        if self.works_at <= now && !self.buffer.packets.is_empty() {
            let mut cost = 0;
            for _ in 0..BATCH {
                let Some((from, bytes)) = self.buffer.packets.pop_front() else { break };
                cost += kernel_cost(bytes.len());
                self.server.handle_datagram(now, from, bytes);
            }
            self.buffer.used -= cost;
            self.works_at = now + Duration::from_nanos(cost * 1_000_000_000 / self.work_rate);
            self.server.handle_backlog(now, self.buffer.used);
        }
        self.serve();
        let mut out = Vec::new();
        while self.sends_at <= now
            && let Some(transmission) = self.server.poll_transmit(now, &mut out)
        {
            let time = Duration::from_nanos(out.len() as u64 * 1_000_000_000 / self.send_rate);
            self.sends_at = self.sends_at.max(now) + time;
            for segment in out.chunks(transmission.segment_len) {
                self.send(SERVER.into(), transmission.to, segment);
            }
        }
        self.serve();
    }

    // ---- the server's application

    fn serve(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Incoming(call) => {
                    self.serving.insert(call, Serving::default());
                    self.serve_call(call);
                }
                Event::Readable(call) | Event::Writable(call) => self.serve_call(call),
                Event::Closed(call, error) => {
                    assert_eq!(error, None, "seed {}: a call of the server fails", self.seed);
                    self.serving.remove(&call);
                    self.server.release(self.now, call);
                }
                Event::ChannelFree(_) => {}
            }
        }
    }

    fn serve_call(&mut self, call: CallHandle) {
        let now = self.now;
        let Some(s) = self.serving.get_mut(&call) else { return };
        let peer = self.server.path_of(call).expect("a call has a path").peer();
        let client = &mut self.clients[self.by_address[&peer]];
        while s.reply.is_none() {
            match self.server.read(now, call).expect("the client goes on") {
                Read::Data(bytes) => {
                    let head = (16 - s.header.len()).min(bytes.len());
                    s.header.extend_from_slice(&bytes[..head]);
                    for byte in &bytes[head..] {
                        assert_eq!(*byte, pattern(s.read), "seed {}: request byte {}", self.seed, s.read);
                        s.read += 1;
                    }
                    client.moved += bytes.len() as u64;
                    client.progress_at = now;
                }
                Read::Blocked => return,
                Read::End => {
                    let word = |at: usize| s.header[at..at + 8].iter().fold(0, |n, b| n << 8 | u64::from(*b));
                    s.sends = word(0);
                    assert_eq!(s.read, s.sends, "seed {}: the request is whole", self.seed);
                    s.reply = Some(Flow { total: word(8), ..Flow::default() });
                }
            }
        }
        let Some(reply) = &mut s.reply else { return };
        write_some(&mut self.server, now, call, reply);
    }

    // ---- the clients'

    fn step_client(&mut self, index: usize) {
        let now = self.now;
        let client = &mut self.clients[index];
        if client.call.is_none() && client.next_at <= now && !self.is_ending {
            let pick = |rng: &mut StdRng, (least, most): (u64, u64)| rng.random_range(least..=most);
            let (send, receive) =
                (pick(&mut self.rng, client.work.send), pick(&mut self.rng, client.work.receive));
            if let Some(call) = client.endpoint.open(now, client.connection).expect("the server is there") {
                let mut header = send.to_be_bytes().to_vec();
                header.extend_from_slice(&receive.to_be_bytes());
                client.endpoint.write(now, call, header.into()).expect("a new call takes bytes");
                client.flow = Flow { total: send, ..Flow::default() };
                (client.call, client.expects) = (Some(call), receive);
                (client.began, client.progress_at) = (now, now);
                client.next_at = now + client.work.every;
            }
        }
        while client.endpoint.poll_event().is_some() {}
        if let Some(call) = client.call {
            write_some(&mut client.endpoint, now, call, &mut client.flow);
            loop {
                match client.endpoint.read(now, call).expect("the server answers") {
                    Read::Data(bytes) => {
                        for byte in &bytes {
                            assert_eq!(
                                *byte,
                                pattern(client.flow.read),
                                "seed {}: a reply's byte",
                                self.seed
                            );
                            client.flow.read += 1;
                        }
                        client.moved += bytes.len() as u64;
                        client.progress_at = now;
                    }
                    Read::Blocked => break,
                    Read::End => {
                        assert_eq!(client.flow.read, client.expects, "seed {}: a reply is whole", self.seed);
                        client.times.push(now.since(client.began));
                        client.endpoint.release(now, call);
                        client.call = None;
                        break;
                    }
                }
            }
        }
        let mut out = Vec::new();
        let from = self.clients[index].address;
        while let Some(transmission) = self.clients[index].endpoint.poll_transmit(now, &mut out) {
            for segment in out.chunks(transmission.segment_len) {
                self.send(from, SERVER.into(), segment);
            }
        }
    }

    /// Bytes that an owner's calls have moved, both ways.
    pub(crate) fn moved(&self, owner: u8) -> u64 {
        self.clients.iter().filter(|c| c.work.owner == owner).map(|c| c.moved).sum()
    }
}

/// Writes until the call says "wait", and ends the stream after its last byte.
fn write_some(endpoint: &mut Endpoint, now: Instant, call: CallHandle, flow: &mut Flow) {
    while !flow.finished {
        if flow.written == flow.total {
            flow.finished = true;
            endpoint.finish(now, call).expect("the call goes on");
            return;
        }
        if !endpoint.takes_bytes(call) {
            return;
        }
        let len = (64 << 10).min(flow.total - flow.written);
        let goes_on = endpoint.write(now, call, piece(flow.written, len)).expect("the call goes on");
        flow.written += len;
        if !goes_on && flow.written < flow.total {
            return;
        }
    }
}
