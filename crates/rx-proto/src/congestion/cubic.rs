//! CUBIC (RFC 9438) with HyStart++ (RFC 9406), paced: a controller by loss, for paths where others are so too, and to compare
//! with. A window that a loss made smaller grows along a cubic curve of the time since then, flat where the loss was.
//! A reduction whose losses all turn out spurious is undone.

use super::{AckSample, Controller, quantum};
use crate::time::Instant;
use std::time::Duration;

/// The curve's steepness, in packets per second cubed (RFC 9438, 5).
const C: f64 = 0.4;
/// The part of the window that remains after a loss (RFC 9438, 4.6).
const BETA: f64 = 0.7;
/// Growth in the Reno-friendly region, packets per window (RFC 9438, 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Initial window, in packets (RFC 6928).
const INITIAL_PACKETS: u64 = 10;
/// Smallest window, in packets.
const MIN_PACKETS: u64 = 2;
/// HyStart++: delay beyond the round before that ends slow start, at least and at most; samples a round must have; what of
/// slow start's growth the conservative part keeps, and for how many rounds (RFC 9406, 4.3).
const START_DELAY: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));
const ROUND_SAMPLES: u32 = 8;
const SLOW_GROWTH: f64 = 0.25;
const SLOW_ROUNDS: u32 = 5;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    SlowStart,
    /// Conservative slow start: if the round trip falls below this again, the delay was none of ours.
    Slower {
        baseline: Duration,
        rounds: u32,
    },
    Avoidance,
}

/// The state before a reduction, to undo the reduction.
#[derive(Clone, Copy, Debug)]
struct Before {
    state: State,
    lost: u64,
    spurious: u64,
}

/// The state that a loss changes.
#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    /// In bytes, with its fraction.
    window: f64,
    /// Window at the last loss, where the curve is flat.
    max_window: f64,
    /// The start of the curve, and the window then; `None` until the first ACK after a loss.
    epoch: Option<(Instant, f64)>,
    /// The window that Reno's growth would have reached since then.
    reno_window: f64,
}

/// The controller; see the module.
#[derive(Debug)]
pub struct Cubic {
    packet_len: f64,
    state: State,
    /// Losses are part of the reduction that was made, until so much has been delivered.
    recovery_until: u64,
    before: Option<Before>,
    smoothed_rtt: Duration,
    round_rtt: Option<Duration>,
    last_round_rtt: Option<Duration>,
    round_samples: u32,
}

impl Cubic {
    /// Makes a controller for a new path.
    pub fn new(packet_len: usize) -> Self {
        let packet_len = packet_len as f64;
        Self {
            packet_len,
            state: State {
                phase: Phase::SlowStart,
                window: INITIAL_PACKETS as f64 * packet_len,
                max_window: 0.0,
                epoch: None,
                reno_window: 0.0,
            },
            recovery_until: 0,
            before: None,
            smoothed_rtt: Duration::ZERO,
            round_rtt: None,
            last_round_rtt: None,
            round_samples: 0,
        }
    }

    fn min_window(&self) -> f64 {
        MIN_PACKETS as f64 * self.packet_len
    }

    /// A loss that is not part of the last one's.
    fn reduce(&mut self, sample: &AckSample) {
        self.before = Some(Before { state: self.state, lost: 0, spurious: 0 });
        self.recovery_until = sample.delivered + sample.in_flight;
        let window = self.state.window;
        // Fast convergence (RFC 9438, 4.7): a flow whose window no longer reaches the last one's makes room for others.
        let falls = window < self.state.max_window;
        self.state = State {
            phase: Phase::Avoidance,
            window: (window * BETA).max(self.min_window()),
            max_window: if falls { window * (1.0 + BETA) / 2.0 } else { window },
            epoch: None,
            reno_window: 0.0,
        };
    }

    /// Losses after a reduction belong to it; once all of them have arrived after all, it was for nothing (RFC 9438, 4.9).
    fn weigh_losses(&mut self, sample: &AckSample) {
        let in_recovery = sample.delivered < self.recovery_until;
        if sample.lost > 0 && !in_recovery {
            self.reduce(sample);
        }
        let Some(before) = &mut self.before else { return };
        before.lost += sample.lost;
        before.spurious += sample.spurious;
        if before.spurious >= before.lost {
            if before.state.window > self.state.window {
                self.state = before.state;
            }
            self.before = None;
            self.recovery_until = 0;
        }
    }

    fn grow(&mut self, sample: &AckSample) {
        let acked = sample.acked as f64;
        match self.state.phase {
            Phase::SlowStart => {
                self.state.window += acked;
                // After a timeout up to where the last loss would have left it.
                let State { window, max_window, .. } = self.state;
                if max_window > 0.0 && window >= BETA * max_window {
                    self.state.phase = Phase::Avoidance;
                }
            }
            Phase::Slower { .. } => self.state.window += acked * SLOW_GROWTH,
            Phase::Avoidance => self.follow_curve(sample, acked),
        }
    }

    /// RFC 9438, 4.2 to 4.5.
    fn follow_curve(&mut self, sample: &AckSample, acked: f64) {
        let State { window, max_window, .. } = self.state;
        let (began, window_then) = *self.state.epoch.get_or_insert((sample.now, window));
        if self.state.reno_window == 0.0 {
            self.state.reno_window = window_then;
        }
        let packets = |bytes: f64| bytes / self.packet_len;
        let top = packets(max_window.max(window_then));
        let k = cube_root((top - packets(window_then)) / C);
        let t = (sample.now.since(began) + sample.smoothed_rtt).as_secs_f64();
        let target = (C * (t - k).powi(3) + top).clamp(packets(window), 1.5 * packets(window));
        // As fast as Reno with the same losses, from the loss on; and as Reno proper once it has caught up with where that was.
        let alpha = if self.state.reno_window < max_window { ALPHA } else { 1.0 };
        self.state.reno_window += alpha * self.packet_len * acked / window;
        let grown = window + (target - packets(window)) * self.packet_len * acked / window;
        self.state.window = grown.max(self.state.reno_window);
    }

    /// HyStart++ at the end of a round.
    fn end_round(&mut self) {
        if let Phase::Slower { rounds, .. } = &mut self.state.phase {
            *rounds += 1;
            if *rounds >= SLOW_ROUNDS {
                self.state.phase = Phase::Avoidance;
                self.state.max_window = self.state.window;
            }
        }
        self.last_round_rtt = self.round_rtt.take();
        self.round_samples = 0;
    }

    /// HyStart++ within a round.
    fn watch_delay(&mut self, sample: &AckSample) {
        let Some(rtt) = sample.rtt else { return };
        self.round_samples += 1;
        let least = self.round_rtt.map_or(rtt, |r| r.min(rtt));
        self.round_rtt = Some(least);
        if self.round_samples < ROUND_SAMPLES {
            return;
        }
        match (self.state.phase, self.last_round_rtt) {
            (Phase::SlowStart, Some(last))
                if least >= last + (last / 8).clamp(START_DELAY.0, START_DELAY.1) =>
            {
                self.state.phase = Phase::Slower { baseline: least, rounds: 0 };
            }
            (Phase::Slower { baseline, .. }, _) if least < baseline => {
                self.state.phase = Phase::SlowStart;
            }
            _ => {}
        }
    }
}

impl Controller for Cubic {
    fn phase(&self) -> &'static str {
        match self.state.phase {
            Phase::SlowStart => "slow start",
            Phase::Slower { .. } => "slower start",
            Phase::Avoidance => "avoidance",
        }
    }

    fn handle_ack(&mut self, sample: &AckSample) {
        self.smoothed_rtt = sample.smoothed_rtt;
        if sample.round_start {
            self.end_round();
        }
        self.watch_delay(sample);
        self.weigh_losses(sample);
        // A window that the application does not fill says nothing of the path (RFC 9438, 5.8).
        if !sample.app_limited && sample.delivered >= self.recovery_until {
            self.grow(sample);
        }
    }

    fn handle_timeout(&mut self, _now: Instant) {
        let window = self.state.window;
        self.state = State {
            phase: Phase::SlowStart,
            window: self.min_window(),
            max_window: window,
            epoch: None,
            reno_window: 0.0,
        };
        self.before = None;
    }

    fn set_packet_len(&mut self, len: usize) {
        let packets = self.state.window / self.packet_len;
        self.packet_len = len as f64;
        self.state.window = self.state.window.max(packets.min(INITIAL_PACKETS as f64) * self.packet_len);
    }

    fn window(&self) -> u64 {
        self.state.window as u64
    }

    fn pacing_rate(&self) -> Option<u64> {
        let round = self.smoothed_rtt.as_secs_f64();
        // Above the window's own rate, so that the window is what limits; twice as fast where it doubles each round.
        let gain = if self.state.phase == Phase::SlowStart { 2.0 } else { 1.25 };
        (round > 0.0).then(|| {
            let rate = (gain * self.state.window / round) as u64;
            rate.max(quantum(rate, self.packet_len as u64))
        })
    }
}

/// The C library's would not give the same on every machine, and then neither would the simulation.
fn cube_root(n: f64) -> f64 {
    let mut root = 1.0 + n / 3.0;
    for _ in 0..64 {
        let better = (2.0 * root + n / (root * root)) / 3.0;
        if better >= root {
            break;
        }
        root = better;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_found_from_above() {
        for n in [0.001, 1.0, 27.0, 1e6, 2.5e12] {
            assert!((cube_root(n).powi(3) / n - 1.0).abs() < 1e-12, "{n}");
        }
        assert!(cube_root(0.0) < 1e-6);
    }
}
