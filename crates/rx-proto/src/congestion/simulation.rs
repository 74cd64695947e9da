//! The controllers on a bottleneck in virtual time. Each flow is a real [`Path`] with an endless source, and a receiver that
//! acknowledges each fourth packet. There are no calls and no windows of the peer, so a minute of a full gigabit link takes a
//! second of computing. `simulation.txt` keeps the results, so that reviewers see a change in behaviour; `UPDATE=1 cargo test -p
//! rx-proto controllers` writes it.

use super::ControllerKind;
use crate::config::Config;
use crate::path::{Path, Permit};
use crate::time::Instant;
use crate::transmit::{AckOutcome, Lost, Stamp};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const PACKET: usize = 1444;
/// Bytes of a packet with UDP and IPv4 headers.
const WIRE: u64 = 1472;
/// Packets that are sent later and arrive before one counts as lost.
const REORDERING: u64 = 3;

/// The bottleneck.
#[derive(Clone, Copy)]
struct Bottleneck {
    mbit: u64,
    queue: Duration,
    loss: f64,
    /// Mean length of a burst of losses; 1 for independent ones.
    burst: f64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake { flow: usize },
    Arrival { flow: usize, packet: u64 },
    Ack { flow: usize, packets: Vec<u64> },
}

struct Outstanding {
    stamp: Stamp,
    arrived: bool,
}

struct Flow {
    path: Path,
    rtt: Duration,
    starts: Instant,
    outstanding: VecDeque<Outstanding>,
    /// Number of the first of those.
    base: u64,
    highest: u64,
    unacked: Vec<u64>,
    expected: u64,
    wakes_at: Option<Instant>,
    heard_at: Instant,
    received: u64,
    /// Bytes received in each second.
    seconds: Vec<u64>,
    lost: u64,
}

struct World {
    now: Instant,
    link: Bottleneck,
    free_at: Instant,
    is_bursting: bool,
    /// Packets that entered the link.
    entered: u64,
    /// The packets among those that are lost in any case.
    burst: Range<u64>,
    flows: Vec<Flow>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    next_event: u64,
    longest_queue: Duration,
    rng: StdRng,
}

impl World {
    fn new(link: Bottleneck) -> Self {
        Self {
            now: Instant::ORIGIN,
            link,
            free_at: Instant::ORIGIN,
            is_bursting: false,
            entered: 0,
            burst: 0..0,
            flows: Vec::new(),
            events: BinaryHeap::new(),
            next_event: 0,
            longest_queue: Duration::ZERO,
            rng: StdRng::seed_from_u64(7),
        }
    }

    fn add(&mut self, kind: ControllerKind, rtt: Duration, starts: Duration) {
        let starts = Instant::ORIGIN + starts;
        let config = Config { controller: kind, max_packet_len: PACKET, ..Config::default() };
        let peer = SocketAddr::from(([10, 0, 0, 1], 7000));
        let mut path = Path::new(starts, peer, &config, self.rng.random());
        path.set_verified();
        let flow = self.flows.len();
        self.flows.push(Flow {
            path,
            rtt,
            starts,
            outstanding: VecDeque::new(),
            base: 0,
            highest: 0,
            unacked: Vec::new(),
            expected: 0,
            wakes_at: Some(starts),
            heard_at: starts,
            received: 0,
            seconds: Vec::new(),
            lost: 0,
        });
        self.push(starts, Event::Wake { flow });
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse((at, self.next_event, event)));
    }

    fn run_until(&mut self, end: Duration) {
        let end = Instant::ORIGIN + end;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > end {
                self.events.push(Reverse((at, 0, event)));
                break;
            }
            self.now = at;
            match event {
                // Another was asked for since, and for earlier.
                Event::Wake { flow } if self.flows[flow].wakes_at != Some(at) => {}
                Event::Wake { flow } => {
                    self.flows[flow].wakes_at = None;
                    self.handle_silence(flow);
                    self.send(flow);
                }
                Event::Arrival { flow, packet } => self.arrive(flow, packet),
                Event::Ack { flow, packets } => {
                    self.acknowledge(flow, &packets);
                    self.send(flow);
                }
            }
        }
        self.now = end;
    }

    fn wake(&mut self, flow: usize, at: Instant) {
        if self.flows[flow].wakes_at.is_none_or(|earlier| at < earlier) {
            self.flows[flow].wakes_at = Some(at);
            self.push(at, Event::Wake { flow });
        }
    }

    fn send(&mut self, flow: usize) {
        loop {
            let now = self.now;
            let f = &mut self.flows[flow];
            match f.path.permit(now, PACKET) {
                Permit::Go => {}
                Permit::At(at) => return self.wake(flow, at),
                Permit::Full => {
                    let at = f.heard_at + f.path.rtt.timeout(Duration::from_millis(10));
                    return self.wake(flow, at.max(now + Duration::from_millis(1)));
                }
                Permit::Unverified => unreachable!("it is verified"),
            }
            let stamp = f.path.handle_data_sent(now, PACKET, false);
            let packet = f.base + f.outstanding.len() as u64;
            f.outstanding.push_back(Outstanding { stamp, arrived: false });
            let rtt = f.rtt;
            if let Some(leaves) = self.cross() {
                self.push(leaves + rtt / 2, Event::Arrival { flow, packet });
            }
        }
    }

    /// The time when a packet leaves the bottleneck, if it does.
    fn cross(&mut self) -> Option<Instant> {
        let Bottleneck { mbit, queue, loss, burst } = self.link;
        let is_in_burst = self.burst.contains(&self.entered);
        self.entered += 1;
        let start = self.free_at.max(self.now);
        let waits = start.since(self.now);
        if waits > queue {
            return None;
        }
        self.longest_queue = self.longest_queue.max(waits);
        self.free_at = start + Duration::from_nanos(WIRE * 8 * 1000 / mbit);
        let is_lost = if self.is_bursting { true } else { self.rng.random_bool(loss / burst) };
        self.is_bursting = is_lost && burst > 1.0 && self.rng.random_bool(1.0 - 1.0 / burst);
        (!is_lost && !is_in_burst).then_some(self.free_at)
    }

    fn arrive(&mut self, flow: usize, packet: u64) {
        let f = &mut self.flows[flow];
        f.received += PACKET as u64;
        let second = (self.now.as_nanos() / 1_000_000_000) as usize;
        if f.seconds.len() <= second {
            f.seconds.resize(second + 1, 0);
        }
        f.seconds[second] += PACKET as u64;
        f.unacked.push(packet);
        let is_gap = packet != f.expected;
        f.expected = packet + 1;
        if f.unacked.len() >= 4 || is_gap || packet < 8 {
            let packets = std::mem::take(&mut f.unacked);
            let at = self.now + f.rtt / 2;
            self.push(at, Event::Ack { flow, packets });
        }
    }

    fn acknowledge(&mut self, flow: usize, packets: &[u64]) {
        let now = self.now;
        let f = &mut self.flows[flow];
        f.heard_at = now;
        let len = PACKET as u64;
        let mut out = AckOutcome { named: true, ..AckOutcome::default() };
        for &packet in packets {
            let Some(index) = packet.checked_sub(f.base) else { continue };
            let outstanding = &mut f.outstanding[index as usize];
            outstanding.arrived = true;
            out.acked += len;
            out.landed += len;
            out.largest = PACKET;
            out.newest = Some(outstanding.stamp);
            if outstanding.stamp.train != 0 {
                let counted = if out.train.0 == outstanding.stamp.train { out.train.1 } else { 0 };
                out.train = (outstanding.stamp.train, counted + len);
            }
            f.highest = f.highest.max(packet);
        }
        out.rtt = out.newest.map(|stamp| now.since(stamp.sent_at));
        while let Some(first) = f.outstanding.front() {
            if !first.arrived {
                if f.base + REORDERING > f.highest {
                    break;
                }
                out.lost.bytes += len;
                out.lost.largest = PACKET;
                f.lost += 1;
            }
            f.outstanding.pop_front();
            f.base += 1;
        }
        f.path.handle_ack(now, &out);
    }

    /// Handles a silence: everything in flight may be lost.
    fn handle_silence(&mut self, flow: usize) {
        let now = self.now;
        let f = &mut self.flows[flow];
        let patience = f.path.rtt.timeout(Duration::from_millis(10));
        if f.outstanding.is_empty() || now < f.heard_at + patience || now < f.starts + patience {
            return;
        }
        let bytes = f.outstanding.iter().filter(|p| !p.arrived).count() as u64 * PACKET as u64;
        f.path.handle_timeout(now, Lost { bytes, largest: PACKET });
        f.base += f.outstanding.len() as u64;
        f.outstanding.clear();
        f.heard_at = now;
    }

    /// The throughput of a flow's stream between two times, in Mbit/s.
    fn mbit(&self, flow: usize, from: usize, to: usize) -> f64 {
        let bytes: u64 = self.flows[flow].seconds.iter().take(to).skip(from).sum();
        bytes as f64 * 8.0 / 1e6 / (to - from) as f64 * 1416.0 / 1444.0
    }
}

const MS: fn(u64) -> Duration = Duration::from_millis;
const RTTS: [u64; 4] = [12, 50, 100, 200];

/// One flow alone: Mbit/s from the fifth to the tenth second, and the longest queue in that time.
fn alone(kind: ControllerKind, rtt: u64, link: Bottleneck) -> (f64, Duration) {
    let mut world = World::new(link);
    world.add(kind, MS(rtt), Duration::ZERO);
    world.run_until(MS(5000));
    world.longest_queue = Duration::ZERO;
    world.run_until(MS(10_000));
    (world.mbit(0, 5, 10), world.longest_queue)
}

/// Seconds from one on until the first flow carries 90 % of 1 Gbit/s.
fn seconds_until_full(world: &World, from: usize) -> Option<usize> {
    (0..20).find(|second| world.mbit(0, from + second, from + second + 1) > 0.9 * 962.0)
}

/// One flow on a link that carries 1 Gbit/s again after 5 s of 20 Mbit/s: seconds until it carries 90 % of that.
fn after_narrows(kind: ControllerKind, rtt: u64) -> Option<usize> {
    let mut world = World::new(Bottleneck { mbit: 20, queue: MS(50), loss: 0.0, burst: 1.0 });
    world.add(kind, MS(rtt), Duration::ZERO);
    world.run_until(MS(5000));
    world.link.mbit = 1000;
    world.run_until(MS(25_000));
    seconds_until_full(&world, 5)
}

/// One flow, of whose beginning a burst of 14 packets is lost: seconds until it carries 90 % of 1 Gbit/s.
fn after_burst(kind: ControllerKind, rtt: u64) -> Option<usize> {
    let mut world = World::new(Bottleneck { mbit: 1000, queue: MS(50), loss: 0.0, burst: 1.0 });
    world.burst = 104..118;
    world.add(kind, MS(rtt), Duration::ZERO);
    world.run_until(MS(20_000));
    seconds_until_full(&world, 0)
}

/// One flow on a link that loses 15 % for its first 2 s: seconds from then on until it carries 90 % of 1 Gbit/s.
fn after_storm(kind: ControllerKind, rtt: u64) -> Option<usize> {
    let mut world = World::new(Bottleneck { mbit: 1000, queue: MS(50), loss: 0.15, burst: 1.0 });
    world.add(kind, MS(rtt), Duration::ZERO);
    world.run_until(MS(2000));
    world.link.loss = 0.0;
    world.run_until(MS(22_000));
    seconds_until_full(&world, 2)
}

/// Two flows, the second `later` ms after the first: their shares of the link from the 15th to the 35th second, in percent.
fn beside(first: ControllerKind, second: ControllerKind, rtt: u64, queue: u64, later: u64) -> [f64; 2] {
    let mut world = World::new(Bottleneck { mbit: 200, queue: MS(queue), loss: 0.0, burst: 1.0 });
    // By the same chance in each run both would probe alike in each.
    world.rng = StdRng::seed_from_u64(later);
    world.add(first, MS(rtt), Duration::ZERO);
    world.add(second, MS(rtt), MS(later));
    world.run_until(MS(35_000));
    let [a, b] = [0, 1].map(|flow| world.mbit(flow, 15, 35));
    [a, b].map(|mbit| mbit * 100.0 / (a + b))
}

/// The throughput of the slower of two flows of this kind, divided by that of the faster: the least and the median of twelve
/// runs. In each run, the second flow begins `later` ms after the first and a little more, so that their probes meet in other
/// ways.
fn equality(kind: ControllerKind, rtt: u64, queue: u64, later: u64) -> [f64; 2] {
    let mut ratios: Vec<f64> = (0..12)
        .map(|run| {
            let [a, b] = beside(kind, kind, rtt, queue, later + run * 37);
            a.min(b) / a.max(b)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    [ratios[0], f64::midpoint(ratios[5], ratios[6])]
}

/// The lines of a table, computed on as many threads as the machine runs at once.
fn lines<T: Sync>(rows: &[T], line: impl Fn(&T) -> String + Sync) -> String {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(vec![String::new(); rows.len()]);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(row) = rows.get(index) else { break };
                    let text = line(row);
                    done.lock().unwrap()[index] = text;
                }
            });
        }
    });
    done.into_inner().unwrap().concat()
}

#[test]
fn controllers_keep_their_table() {
    let mut single = Vec::new();
    let mut pairs = Vec::new();
    let mut equals = Vec::new();
    for kind in ControllerKind::ALL {
        for rtt in RTTS {
            let losses = [(50, 0.0, 1.0), (5, 0.0, 1.0), (50, 0.001, 1.0), (50, 0.01, 1.0), (50, 0.001, 5.0)];
            single.extend(losses.map(|(queue, loss, burst)| {
                (kind, rtt, queue, Bottleneck { mbit: 1000, queue: MS(queue), loss, burst })
            }));
        }
        const PATHS: [(u64, u64); 3] = [(12, 50), (12, 10), (50, 50)];
        for second in ControllerKind::ALL {
            pairs.extend(PATHS.map(|(rtt, queue)| (kind, second, rtt, queue)));
        }
        for later in [0, 5000] {
            equals.extend(PATHS.map(|(rtt, queue)| (kind, rtt, queue, later)));
        }
    }
    let single = lines(&single, |&(kind, rtt, queue, link)| {
        let (mbit, longest) = alone(kind, rtt, link);
        let loss = format!("{}%{}", link.loss * 100.0, if link.burst > 1.0 { " by 5" } else { "" });
        let longest = longest.as_secs_f64() * 1e3;
        format!("{:8} {rtt:7} {queue:9}  {loss:10} {mbit:7.1} {longest:7.1}\n", kind.name())
    });
    let pairs = lines(&pairs, |&(first, second, rtt, queue)| {
        let [a, b] = beside(first, second, rtt, queue, 5000);
        format!("{:8}  {:8} {rtt:7} {queue:9}  {a:5.1} : {b:4.1}\n", first.name(), second.name())
    });
    let equals = lines(&equals, |&(kind, rtt, queue, later)| {
        let [least, median] = equality(kind, rtt, queue, later);
        format!("{:8} {rtt:7} {queue:9} {:8}  {least:7.2} {median:7.2}\n", kind.name(), later / 1000)
    });
    let returns = lines(&RTTS, |&rtt| {
        let cases = [after_narrows, after_burst, after_storm].map(|case| {
            let [bbr, cubic] = ControllerKind::ALL.map(|kind| match case(kind, rtt) {
                Some(seconds) => seconds.to_string(),
                None => "-".to_owned(),
            });
            format!(" {bbr:>6} {cubic:>6}   ")
        });
        format!("{rtt:6}{}\n", cases.concat().trim_end())
    });
    let table = format!(
        "one flow on 1 Gbit/s (962 Mbit/s of stream): Mbit/s and the longest queue in ms, from the fifth second to the tenth\n\n\
         control   RTT ms  queue ms  loss        Mbit/s   queue\n{single}\n\
         one flow on 1 Gbit/s after 5 s of 20 Mbit/s, with a burst of losses at its start, after 2 s of 15 % of loss:\n\
         seconds until it carries 90 %, of 20\n\n\
         \x20         20 Mbit/s        a burst        15 % lost\n\
         RTT ms    bbr  cubic       bbr  cubic       bbr  cubic\n{returns}\n\
         two flows on 200 Mbit/s, the second 5 s after the first: shares in percent over the last 20 s of 35\n\n\
         first     second    RTT ms  queue ms  shares\n{pairs}\n\
         two flows of one kind likewise, twelve times, the second a little later each time: smaller by larger\n\n\
         control   RTT ms  queue ms  s later    least  median\n{equals}"
    );
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/congestion/simulation.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        table == kept,
        "the controllers changed; if that is meant, UPDATE=1 writes the new table:\n{table}"
    );
}
