//! A controller by model, in the manner of BBR: it estimates the path's delivery rate and smallest round trip, paces at
//! that rate and keeps the queue short. Loss is noticed only to leave the start phase (a later controller will weigh it).
//!
//! ```text
//!   Startup ──rate stops growing, or the queue grows──▶ Drain ──queue gone──▶ Cruise ⇄ Up ⇄ Down
//! ```
//!
//! Two things differ from BBR, both because a drop-tail queue may be far shorter than a long path (50 ms of queue, 200 ms
//! of round trip), where doubling once too often loses thousands of packets that one ACK cannot even name:
//! - In Startup each round opens with a short train of packets back to back. How far apart they arrive shows the
//!   bottleneck's rate before we reach it, and the doubling stops there.
//! - Probing upwards adds at most `PROBE_QUEUE` of queue a round trip, and the window allows at most `MAX_QUEUE` of it.

use super::{AckSample, Controller, quantum};
use crate::time::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// 4 ln 2: the smallest gain that doubles the rate each round (BBR).
const STARTUP_GAIN: f64 = 2.77;
/// Rounds without growth by a quarter after which the pipe counts as full (BBR).
const FULL_ROUNDS: u32 = 3;
/// Rounds of the cruise between two probes: BBR's eight less the probe itself and its drain.
const CRUISE_ROUNDS: u32 = 6;
/// Rounds for which a rate sample counts: a probe cycle and a bit, so that each probe's finding lives until the next.
const RATE_ROUNDS: u64 = 10;
/// Queue that probing upwards may add in a round trip.
const PROBE_QUEUE: Duration = Duration::from_millis(12);
/// Most queue that the window allows for. Below the 50 ms that links commonly have.
const MAX_QUEUE: Duration = Duration::from_millis(30);
/// Delay beyond the smallest round trip that ends Startup, at least (HyStart++: 4 ms) and at most (16 ms).
const START_DELAY: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));
/// Window before anything is known, in packets. Paced over half a round trip, but for its beginning, so that a slow link's
/// queue is not run over.
const INITIAL_PACKETS: u64 = 64;
/// Smallest window, in packets.
const MIN_PACKETS: u64 = 4;
/// A train is sent once the window is four times as long; in packets.
const TRAIN_PACKETS: u64 = 128;
/// How many trains count, and how many it takes to believe that the path is full because they say so.
const TRAINS: usize = 5;
const TRAINS_BELIEVED: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Startup,
    Drain,
    Cruise { rounds: u32 },
    Up,
    Down,
}

/// The controller; see the module.
#[derive(Debug)]
pub struct RateModel {
    phase: Phase,
    packet_len: u64,
    window: u64,
    round: u64,
    /// Rate samples with their rounds, falling: the front is the maximum (a sliding maximum).
    rates: VecDeque<(u64, u64)>,
    min_rtt: Duration,
    /// Growth watch of Startup: the best rate so far and the rounds since.
    full_rate: u64,
    full_rounds: u32,
    lost_in_round: u64,
    acked_in_round: u64,
    /// Smallest round trip seen in this round and in the one before: the standing queue.
    round_rtt: Option<Duration>,
    last_round_rtt: Option<Duration>,
    /// The last rates that trains showed.
    trains: VecDeque<u64>,
}

impl RateModel {
    /// For a path of which nothing is known yet.
    pub fn new(packet_len: usize) -> Self {
        let packet_len = packet_len as u64;
        Self {
            phase: Phase::Startup,
            packet_len,
            window: INITIAL_PACKETS * packet_len,
            round: 0,
            rates: VecDeque::new(),
            min_rtt: Duration::ZERO,
            full_rate: 0,
            full_rounds: 0,
            lost_in_round: 0,
            acked_in_round: 0,
            round_rtt: None,
            last_round_rtt: None,
            trains: VecDeque::new(),
        }
    }

    fn rate(&self) -> Option<u64> {
        self.rates.front().map(|&(_, rate)| rate)
    }

    /// The bottleneck's rate as trains show it: the median of the last five, so that odd trains do no harm; of two, the
    /// lower.
    fn train_rate(&self) -> Option<u64> {
        if self.trains.len() < 2 {
            return None;
        }
        let mut sorted: Vec<u64> = self.trains.iter().copied().collect();
        sorted.sort_unstable();
        Some(sorted[(sorted.len() - 1) / 2])
    }

    /// What is in flight when the path is full and its queue empty.
    fn pipe(&self) -> u64 {
        bytes_in(self.rate().unwrap_or(0), self.min_rtt)
    }

    fn gain(&self) -> f64 {
        let step = (PROBE_QUEUE.as_secs_f64() / self.min_rtt.as_secs_f64().max(1e-6)).min(0.25);
        match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => 0.5,
            Phase::Cruise { .. } => 1.0,
            Phase::Up => 1.0 + step,
            Phase::Down => 1.0 - step,
        }
    }

    fn handle_rate(&mut self, rate: u64, app_limited: bool) {
        if app_limited && rate < self.rate().unwrap_or(0) {
            return;
        }
        while self.rates.back().is_some_and(|&(_, r)| r <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
    }

    fn start_round(&mut self, app_limited: bool) {
        self.round += 1;
        // While the application does not fill the path nothing new is learnt, so nothing old is forgotten either.
        if app_limited {
            self.rates.iter_mut().for_each(|(round, _)| *round += 1);
        }
        while self.rates.len() > 1 && self.rates.front().is_some_and(|&(r, _)| r + RATE_ROUNDS < self.round) {
            self.rates.pop_front();
        }
        if self.phase == Phase::Startup && !app_limited {
            let rate = self.rate().unwrap_or(0);
            if rate >= self.full_rate + self.full_rate / 4 {
                (self.full_rate, self.full_rounds) = (rate, 0);
            } else {
                self.full_rounds += 1;
            }
            let believed = self.train_rate().filter(|_| self.trains.len() >= TRAINS_BELIEVED);
            let reached = believed.is_some_and(|train| rate >= train - train / 20);
            let much_lost = self.lost_in_round > (self.acked_in_round + self.lost_in_round) / 50;
            if self.full_rounds >= FULL_ROUNDS || reached || much_lost {
                self.phase = Phase::Drain;
            }
        }
        self.phase = match self.phase {
            Phase::Cruise { rounds } if rounds >= CRUISE_ROUNDS && !app_limited => Phase::Up,
            Phase::Cruise { rounds } => Phase::Cruise { rounds: rounds + 1 },
            Phase::Up => Phase::Down,
            other => other,
        };
        (self.lost_in_round, self.acked_in_round) = (0, 0);
        self.last_round_rtt = self.round_rtt.take();
    }

    /// Startup ends as soon as a round's smallest round trip shows a queue.
    fn watch_startup_delay(&mut self) {
        let limit = (self.min_rtt / 8).clamp(START_DELAY.0, START_DELAY.1);
        let queued = |rtt: Option<Duration>| rtt.is_some_and(|r| r > self.min_rtt + limit);
        let deep_enough = self.window > INITIAL_PACKETS * self.packet_len;
        if self.phase == Phase::Startup
            && deep_enough
            && queued(self.round_rtt)
            && queued(self.last_round_rtt)
        {
            self.phase = Phase::Drain;
        }
    }

    fn set_window(&mut self, sample: &AckSample) {
        let queue = self.min_rtt.min(MAX_QUEUE);
        let rate = self.rate().unwrap_or(0);
        let spare = 3 * quantum(rate, self.packet_len); // what offload holds back at either end
        let target = match self.phase {
            Phase::Startup => (self.pipe() as f64 * STARTUP_GAIN) as u64 + spare,
            _ => self.pipe() + bytes_in(rate, queue) + spare,
        };
        self.window = if self.phase == Phase::Startup {
            // Grows by what is delivered, and never shrinks while starting.
            if self.window < target { self.window + sample.acked } else { self.window }
        } else {
            (self.window + sample.acked).min(target)
        };
        self.window = self.window.max(MIN_PACKETS * self.packet_len);
    }
}

impl Controller for RateModel {
    fn name(&self) -> &'static str {
        match self.phase {
            Phase::Startup => "startup",
            Phase::Drain => "drain",
            Phase::Cruise { .. } => "cruise",
            Phase::Up => "up",
            Phase::Down => "down",
        }
    }

    fn handle_ack(&mut self, sample: &AckSample) {
        self.min_rtt = sample.min_rtt;
        self.lost_in_round += sample.lost;
        self.acked_in_round += sample.acked;
        if let Some(rtt) = sample.rtt {
            self.round_rtt = Some(self.round_rtt.map_or(rtt, |r| r.min(rtt)));
        }
        if let Some(rate) = sample.train_rate {
            self.trains.push_back(rate);
            if self.trains.len() > TRAINS {
                self.trains.pop_front();
            }
        }
        if let Some(rate) = sample.delivery_rate {
            self.handle_rate(rate, sample.app_limited);
        }
        if sample.round_start {
            self.start_round(sample.app_limited);
        }
        self.watch_startup_delay();
        let drained = sample.in_flight <= self.pipe() + quantum(self.rate().unwrap_or(0), self.packet_len);
        if matches!(self.phase, Phase::Drain | Phase::Down) && drained {
            self.phase = Phase::Cruise { rounds: 0 };
        }
        self.set_window(sample);
    }

    fn handle_timeout(&mut self, _now: Instant) {
        self.window = (self.window / 2).max(MIN_PACKETS * self.packet_len);
    }

    fn set_packet_len(&mut self, len: usize) {
        let packets = self.window / self.packet_len.max(1);
        self.packet_len = len as u64;
        self.window = self.window.max(packets.min(INITIAL_PACKETS) * self.packet_len);
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn pacing_rate(&self) -> Option<u64> {
        let rate = self.rate()?;
        let paced = (rate as f64 * self.gain()) as u64;
        if self.phase != Phase::Startup {
            return Some(paced);
        }
        // The first rounds' rates are low for want of packets: there the window sets the pace.
        let by_window = (2.0 * self.window as f64 / self.min_rtt.as_secs_f64().max(1e-6)) as u64;
        let bottleneck = self.train_rate().map_or(u64::MAX, |train| train.max(rate));
        Some(paced.max(by_window).min(bottleneck))
    }

    fn wanted_train(&self) -> u64 {
        let train = TRAIN_PACKETS * self.packet_len;
        if self.phase == Phase::Startup && self.window >= 2 * train { train.min(self.window / 4) } else { 0 }
    }
}

/// Bytes that flow in `time` at `rate` bytes a second.
fn bytes_in(rate: u64, time: Duration) -> u64 {
    (u128::from(rate) * time.as_nanos() / 1_000_000_000) as u64
}
