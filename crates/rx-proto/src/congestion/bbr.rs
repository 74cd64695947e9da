//! A controller by model, in the manner of BBRv3 (draft-ietf-ccwg-bbr): it estimates the path's delivery rate and smallest
//! round trip, paces at that rate, keeps the queue short, and takes loss for a sign only where there is more of it than
//! links lose by themselves.
//!
//! ```text
//!   Startup ──rate stops growing, queue or loss──▶ Drain ──queue gone──▶ Cruise ─▶ Refill ─▶ Up ─▶ Check ─▶ Down ─┐
//!      ▲                                                                  │▲  ▲              ▲     │               │
//!      └────────────────────found more again and again──────────────────── │┼──┼──────────────┴more─┘               │
//!                                   ProbeRtt ◀─no small round trip for 5 s─┘┘  └───────────queue gone───────────────┘
//! ```
//!
//! What differs from the draft, and why:
//! - In Startup each round opens with a short train of packets back to back (docs/decisions/0001), and a queue ends it as
//!   well: doubling once too often loses thousands of packets where the queue is far shorter than the path.
//! - Probing upwards adds at most `PROBE_QUEUE` of queue a round trip, and the window allows at most `MAX_QUEUE` of it, as a
//!   quarter of a long path exceeds the queue that links commonly have. It comes every five to twelve rounds, as chance has
//!   it, about as often as in BBRv1, not each 2 to 3 s, so that two flows of ours share within seconds. What it found shows
//!   a round later, in Check; if there was more it is repeated, and where there is more and more, Startup begins anew.
//! - A round counts as lossy from 2 % on, as in the draft, but not for a packet or two of a small window, and in Startup not
//!   for a burst, unless the next round is lossy as well; and the short-term bounds need such a round as well, where the draft
//!   lets any loss lower them: with 1 % of random loss they would creep down.
//! - The headroom in Cruise is taken from the queue that the upper bound allows, never from the pipe itself.

mod aggregation;

use super::{AckSample, Controller, bytes_in, quantum};
use crate::pacer::CATCH_UP;
use crate::time::Instant;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Duration;

use aggregation::Aggregation;

/// 4 ln 2: the smallest gain that doubles the rate each round.
const STARTUP_GAIN: f64 = 2.77;
/// Rounds without growth by a quarter after which the pipe counts as full.
const FULL_ROUNDS: u32 = 3;
/// Rounds of the cruise between two probes: with the four of a probe about BBRv1's eight. Chance says how many (as in the
/// draft): two flows that always probe at the same distance from each other keep what shares they have.
const CRUISE_ROUNDS: RangeInclusive<u32> = 1..=6;
/// Rounds for which a rate sample counts: the longest probe cycle, so that each probe's finding lives until the next.
const RATE_ROUNDS: u64 = 12;
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
/// Packets of a full train. Trains are sent from twice this window on.
const TRAIN_PACKETS: u64 = 128;
/// The number of trains that count, and the number that must show a full path before it is believed.
const TRAINS: usize = 5;
const TRAINS_BELIEVED: usize = 3;
/// Share of a round that may be lost (the draft's LossThresh).
const LOSS_THRESHOLD: f64 = 0.02;
/// A round is no sign if its losses were found at fewer times than this (the draft's StartupFullLossCnt, here for every
/// phase), as a burst on the line is one; unless they are more than this share of it.
const LOSS_EVENTS: u32 = 6;
/// The number of standard deviations by which the loss has to exceed the threshold: of the few packets at the beginning of a
/// round 2 % are lost now and then where it is 1 % in the long run.
const LOSS_DEVIATIONS: f64 = 2.0;
const LOSS_HEAVY: f64 = 0.1;
/// Rounds that a probe's queue is given to drain. Beside flows that keep the queue filled it never does, and a flow
/// that waited for it would give them its share.
const DOWN_ROUNDS: u32 = 1;
/// A round trip within so much of the smallest shows no queue.
const NO_QUEUE: Duration = Duration::from_millis(2);
/// Probes in a row that found more, after which as much may be missing as at the beginning.
const PROBES_TO_START: u32 = 3;
/// The part of a bound that remains after a lossy round, at least (the draft's Beta).
const BETA: f64 = 0.7;
/// The delay of a late timer that may be caught up while nothing is known of the path's queue. Measured on a machine whose
/// timers are sometimes 2 to 10 ms late: with 2 ms a call loses a tenth of 1 Gbit/s at 50 ms, with 10 ms nothing. A queue of 5
/// ms overflows with it, so losses in the cruise halve it, and it grows by a step with each probe.
const MAX_CATCH_UP: Duration = Duration::from_millis(10);
const CATCH_UP_STEP: Duration = Duration::from_micros(250);
/// Share of the upper bound that is left free for others between probes (the draft's Headroom).
const HEADROOM: f64 = 0.15;
/// A smallest round trip is looked for after so long without one, for so long, with half of the pipe in flight.
const PROBE_RTT_AFTER: Duration = Duration::from_secs(5);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Startup,
    Drain,
    /// So many rounds are left.
    Cruise {
        rounds: u32,
    },
    /// The bounds of lossy rounds are lifted, and the pipe filled before more is asked of it.
    Refill,
    /// More than the rate is sent; `found` probes before it, one after the other, have found more.
    Up {
        found: u32,
    },
    /// Packets that were sent in Up arrive. The rate was `rate` before.
    Check {
        rate: u64,
        found: u32,
    },
    Down {
        rounds: u32,
    },
    /// Little is in flight, since `low` once that has become so.
    ProbeRtt {
        low: Option<Instant>,
    },
}

/// The bounds that losses have shown; `u64::MAX` where they have shown none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bounds {
    /// More in flight than this lost too much when it was tried.
    inflight_hi: u64,
    /// Bounds until the next probe: others have taken a share.
    inflight_lo: u64,
    rate_lo: u64,
}

impl Bounds {
    const NONE: Self = Self { inflight_hi: u64::MAX, inflight_lo: u64::MAX, rate_lo: u64::MAX };
}

/// The controller; see the module.
#[derive(Debug)]
pub struct Bbr {
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
    bounds: Bounds,
    /// The bounds before the last lossy round, and what was lost since and has arrived after all.
    before: Option<(Bounds, u64, u64)>,
    lost_in_round: u64,
    acked_in_round: u64,
    /// ACKs of this round that found something lost.
    loss_events: u32,
    /// True if the round before this one was lossy.
    was_lossy: bool,
    /// Best delivery rate and largest flight of this round.
    round_rate: u64,
    round_in_flight: u64,
    /// The bytes by which `inflight_hi` may grow in this round; doubles while nothing is lost, up to what a probe asks for.
    hi_growth: u64,
    /// True if the window was what limited the flight in this round.
    is_held_by_hi: bool,
    /// Smallest round trip seen in this round and in the one before: the standing queue.
    round_rtt: Option<Duration>,
    last_round_rtt: Option<Duration>,
    /// The delay of a late timer that may be caught up, after the losses so far.
    catch_up: Duration,
    /// The time when the smallest round trip was last looked for.
    probed_rtt_at: Instant,
    /// The last rates that trains showed.
    trains: VecDeque<u64>,
    aggregation: Aggregation,
    rng: SmallRng,
}

impl Bbr {
    /// Makes a controller for a new path. All random choices come from `seed`.
    pub fn new(packet_len: usize, seed: u64) -> Self {
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
            bounds: Bounds::NONE,
            before: None,
            lost_in_round: 0,
            acked_in_round: 0,
            loss_events: 0,
            was_lossy: false,
            round_rate: 0,
            round_in_flight: 0,
            hi_growth: packet_len,
            is_held_by_hi: false,
            round_rtt: None,
            last_round_rtt: None,
            catch_up: MAX_CATCH_UP,
            probed_rtt_at: Instant::ORIGIN,
            trains: VecDeque::new(),
            aggregation: Aggregation::NONE,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    fn cruise(&mut self) -> Phase {
        Phase::Cruise { rounds: self.rng.random_range(CRUISE_ROUNDS) }
    }

    fn max_rate(&self) -> Option<u64> {
        self.rates.front().map(|&(_, rate)| rate)
    }

    fn rate(&self) -> Option<u64> {
        self.max_rate().map(|rate| rate.min(self.bounds.rate_lo))
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

    /// The bytes in flight when the path is full and its queue is empty.
    fn pipe(&self) -> u64 {
        bytes_in(self.rate().unwrap_or(0), self.min_rtt)
    }

    /// The part of the rate by which a probe goes up or down. It doubles with each probe that found more and made no queue.
    fn step(&self) -> f64 {
        let doublings = if let Phase::Up { found } = self.phase { found.min(8) } else { 0 };
        let first = PROBE_QUEUE.as_secs_f64() / self.min_rtt.as_secs_f64().max(1e-6);
        (first * f64::from(1 << doublings)).min(0.25)
    }

    fn gain(&self) -> f64 {
        match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => 0.5,
            Phase::Cruise { .. } | Phase::Refill | Phase::Check { .. } | Phase::ProbeRtt { .. } => 1.0,
            Phase::Up { .. } => 1.0 + self.step(),
            Phase::Down { .. } => 1.0 - self.step(),
        }
    }

    /// The bytes that offload holds back at both ends.
    fn spare(&self) -> u64 {
        3 * quantum(self.rate().unwrap_or(0), self.packet_len)
    }

    fn handle_rate(&mut self, rate: u64, app_limited: bool) {
        self.round_rate = self.round_rate.max(rate);
        if app_limited && rate < self.max_rate().unwrap_or(0) {
            return;
        }
        while self.rates.back().is_some_and(|&(_, r)| r <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
    }

    /// True if so much of this round is lost that the path, not chance, must have done it.
    fn is_lossy(&self) -> bool {
        let packets = |bytes: u64| bytes as f64 / self.packet_len as f64;
        let (lost, sent) = (packets(self.lost_in_round), packets(self.lost_in_round + self.acked_in_round));
        match self.loss_events {
            0 => false,
            1..LOSS_EVENTS => lost > LOSS_HEAVY * sent.max(packets(self.round_in_flight)),
            _ => {
                let expected = LOSS_THRESHOLD * sent;
                lost > expected + LOSS_DEVIATIONS * expected.sqrt()
            }
        }
    }

    // ---- rounds

    fn start_round(&mut self, sample: &AckSample) {
        self.round += 1;
        // While the application does not fill the path nothing new is learnt, so nothing old is forgotten either.
        if sample.app_limited {
            self.rates.iter_mut().for_each(|(round, _)| *round += 1);
        }
        while self.rates.len() > 1 && self.rates.front().is_some_and(|&(r, _)| r + RATE_ROUNDS < self.round) {
            self.rates.pop_front();
        }
        let is_lossy = self.is_lossy();
        // A burst on the line takes a tenth of an early round, which is small; a queue that overflows goes on doing so.
        let is_odd = self.phase == Phase::Startup && self.loss_events < LOSS_EVENTS && !self.was_lossy;
        self.was_lossy = is_lossy;
        if !is_lossy {
            self.handle_clean_round();
        } else if !is_odd {
            self.handle_lossy_round(sample);
        }
        self.watch_startup_rate(sample.app_limited);
        self.phase = match self.phase {
            Phase::Cruise { rounds: 0 } if !sample.app_limited => {
                (self.bounds.inflight_lo, self.bounds.rate_lo) = (u64::MAX, u64::MAX);
                Phase::Refill
            }
            Phase::Cruise { rounds } => Phase::Cruise { rounds: rounds.saturating_sub(1) },
            Phase::Refill => {
                self.catch_up = (self.catch_up + CATCH_UP_STEP).min(MAX_CATCH_UP);
                Phase::Up { found: 0 }
            }
            Phase::Up { found } => Phase::Check { rate: self.max_rate().unwrap_or(0), found },
            Phase::Check { rate, found } => self.after_check(rate, found, sample.app_limited),
            Phase::Down { rounds } if rounds >= DOWN_ROUNDS => self.cruise(),
            Phase::Down { rounds } => Phase::Down { rounds: rounds + 1 },
            other => other,
        };
        (self.lost_in_round, self.acked_in_round, self.loss_events) = (0, 0, 0);
        (self.round_rate, self.round_in_flight, self.is_held_by_hi) = (0, 0, false);
        self.last_round_rtt = self.round_rtt.take();
    }

    /// A probe is repeated while it finds more that nobody else has, as no queue grows: the rate grew as it was asked to, or
    /// the upper bound held it back and moves.
    fn after_check(&mut self, rate: u64, found: u32, app_limited: bool) -> Phase {
        let now = self.max_rate().unwrap_or(0);
        let grows = now as f64 > rate as f64 * (1.0 + self.step() / 2.0);
        let is_queue_free = self.round_rtt.is_some_and(|rtt| rtt <= self.min_rtt + NO_QUEUE);
        if app_limited || !is_queue_free || !(grows || self.is_held_by_hi) {
            return Phase::Down { rounds: 0 };
        }
        let found = found + u32::from(grows);
        if found < PROBES_TO_START {
            return Phase::Up { found };
        }
        (self.full_rate, self.full_rounds) = (0, 0);
        self.trains.clear();
        self.bounds = Bounds::NONE;
        Phase::Startup
    }

    fn handle_lossy_round(&mut self, sample: &AckSample) {
        self.before = Some((self.bounds, self.lost_in_round, 0));
        self.hi_growth = self.packet_len;
        match self.phase {
            Phase::Startup | Phase::Refill | Phase::Up { .. } | Phase::Check { .. } => {
                let least = (self.window as f64 * BETA) as u64;
                let tried =
                    if sample.sent_in_flight > 0 { sample.sent_in_flight } else { self.round_in_flight };
                self.bounds.inflight_hi = self.bounds.inflight_hi.min(tried).max(least);
                self.phase =
                    if self.phase == Phase::Startup { Phase::Drain } else { Phase::Down { rounds: 0 } };
            }
            Phase::Drain | Phase::Cruise { .. } | Phase::Down { .. } | Phase::ProbeRtt { .. } => {
                let lower = |bound: u64, now: u64, latest: u64| {
                    let bound = if bound == u64::MAX { now } else { bound };
                    latest.max((bound as f64 * BETA) as u64).min(bound)
                };
                self.catch_up = (self.catch_up / 2).max(CATCH_UP);
                let (rate, window) = (self.max_rate().unwrap_or(u64::MAX), self.window);
                self.bounds.rate_lo = lower(self.bounds.rate_lo, rate, self.round_rate);
                self.bounds.inflight_lo = lower(self.bounds.inflight_lo, window, self.round_in_flight);
            }
        }
    }

    fn handle_clean_round(&mut self) {
        if self.bounds.inflight_hi == u64::MAX {
            return;
        }
        if self.round_in_flight > self.bounds.inflight_hi {
            self.bounds.inflight_hi = self.round_in_flight;
        }
        if matches!(self.phase, Phase::Up { .. } | Phase::Check { .. }) && self.is_held_by_hi {
            self.bounds.inflight_hi += self.hi_growth;
            self.hi_growth = (self.hi_growth * 2).min(self.window / 4).max(self.packet_len);
        }
    }

    fn watch_startup_rate(&mut self, app_limited: bool) {
        if self.phase != Phase::Startup || app_limited {
            return;
        }
        let rate = self.max_rate().unwrap_or(0);
        if rate >= self.full_rate + self.full_rate / 4 {
            (self.full_rate, self.full_rounds) = (rate, 0);
        } else {
            self.full_rounds += 1;
        }
        let believed = self.train_rate().filter(|_| self.trains.len() >= TRAINS_BELIEVED);
        let reached = believed.is_some_and(|train| rate >= train - train / 20);
        if self.full_rounds >= FULL_ROUNDS || reached {
            self.phase = Phase::Drain;
        }
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

    // ---- the smallest round trip

    /// Watches the smallest round trip. If others keep the queue filled, it shows only when everybody sends less for a moment.
    fn watch_min_rtt(&mut self, sample: &AckSample) {
        let since_probe = sample.now.since(self.probed_rtt_at);
        match self.phase {
            Phase::Startup | Phase::Drain => {}
            Phase::ProbeRtt { low: None } if sample.in_flight <= self.probe_rtt_window() => {
                self.phase = Phase::ProbeRtt { low: Some(sample.now) };
            }
            Phase::ProbeRtt { low: Some(since) }
                if sample.now.since(since) >= PROBE_RTT_TIME.max(self.min_rtt) =>
            {
                self.probed_rtt_at = sample.now;
                self.phase = Phase::Refill;
            }
            Phase::ProbeRtt { .. } => {}
            _ if sample.min_rtt_age >= PROBE_RTT_AFTER
                && since_probe >= PROBE_RTT_AFTER
                && !sample.app_limited =>
            {
                self.phase = Phase::ProbeRtt { low: None };
            }
            _ => {}
        }
    }

    fn probe_rtt_window(&self) -> u64 {
        (self.pipe() / 2).max(MIN_PACKETS * self.packet_len)
    }

    fn undo_if_spurious(&mut self, sample: &AckSample) {
        let Some((bounds, lost, spurious)) = &mut self.before else { return };
        *lost += sample.lost;
        *spurious += sample.spurious;
        if *spurious * 2 > *lost {
            self.bounds = *bounds;
            self.before = None;
        }
    }

    fn set_window(&mut self, sample: &AckSample) {
        let queue = self.min_rtt.min(MAX_QUEUE);
        let rate = self.rate().unwrap_or(0);
        let (pipe, spare) = (self.pipe(), self.spare());
        let target = match self.phase {
            Phase::Startup => (pipe as f64 * STARTUP_GAIN) as u64 + spare,
            _ => pipe + bytes_in(rate, queue) + spare + self.aggregation.extra(),
        };
        if self.phase == Phase::Startup {
            // Grows by what is delivered, and never shrinks while starting.
            if self.window < target {
                self.window += sample.acked;
            }
        } else {
            self.window = (self.window + sample.acked).min(target);
        }
        let hi = self.bounds.inflight_hi;
        let hi = match self.phase {
            Phase::Startup | Phase::Up { .. } | Phase::Check { .. } | Phase::Refill => hi,
            _ if hi == u64::MAX => hi,
            _ => (hi - (hi as f64 * HEADROOM) as u64).max(hi.min(pipe + spare)),
        };
        self.window = self.window.min(hi).min(self.bounds.inflight_lo);
        if matches!(self.phase, Phase::ProbeRtt { .. }) {
            self.window = self.window.min(self.probe_rtt_window());
        }
        self.window = self.window.max(MIN_PACKETS * self.packet_len);
        self.is_held_by_hi |=
            self.window == self.bounds.inflight_hi && sample.in_flight + spare >= self.window;
    }
}

impl Controller for Bbr {
    fn phase(&self) -> &'static str {
        match self.phase {
            Phase::Startup => "startup",
            Phase::Drain => "drain",
            Phase::Cruise { .. } => "cruise",
            Phase::Refill => "refill",
            Phase::Up { .. } => "up",
            Phase::Check { .. } => "check",
            Phase::Down { .. } => "down",
            Phase::ProbeRtt { .. } => "probe rtt",
        }
    }

    fn handle_ack(&mut self, sample: &AckSample) {
        self.min_rtt = sample.min_rtt;
        self.undo_if_spurious(sample);
        self.lost_in_round += sample.lost;
        self.loss_events += u32::from(sample.lost > 0);
        self.acked_in_round += sample.acked;
        self.round_in_flight = self.round_in_flight.max(sample.sent_in_flight);
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
        let rate = self.rate().unwrap_or(0);
        self.aggregation.handle_ack(sample, self.round, rate, self.window);
        if sample.round_start {
            self.start_round(sample);
        } else if matches!(self.phase, Phase::Up { .. } | Phase::Check { .. }) && self.is_lossy() {
            // A probe that loses too much is not carried on to the end of its round.
            self.handle_lossy_round(sample);
            (self.lost_in_round, self.acked_in_round, self.loss_events) = (0, 0, 0);
        }
        self.watch_startup_delay();
        self.watch_min_rtt(sample);
        let drained = sample.in_flight <= self.pipe() + quantum(self.rate().unwrap_or(0), self.packet_len);
        if matches!(self.phase, Phase::Drain | Phase::Down { .. }) && drained {
            self.phase = self.cruise();
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

    fn catch_up(&self) -> Duration {
        let hi = self.bounds.inflight_hi;
        if hi == u64::MAX {
            return self.catch_up;
        }
        // Half of the queue that the upper bound allows.
        let queue = hi.saturating_sub(self.pipe()) as f64 / self.rate().unwrap_or(0).max(1) as f64;
        self.catch_up.min(Duration::from_secs_f64(queue / 2.0)).max(CATCH_UP)
    }

    fn wanted_train(&self) -> u64 {
        let train = TRAIN_PACKETS * self.packet_len;
        if self.phase == Phase::Startup && self.window >= 2 * train { train.min(self.window / 4) } else { 0 }
    }
}
