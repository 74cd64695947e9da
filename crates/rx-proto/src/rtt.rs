//! The round-trip time of a path: smoothed, its deviation, and the smallest of late (Rx notes 10; RFC 6298). Fed with
//! samples whose transmission is known by its serial, so retransmissions need no special rule.

use crate::time::Instant;
use std::time::Duration;

/// The time for which a smallest sample counts. BBR's ten seconds: longer and a changed route goes unseen, shorter and the
/// queue that we fill ourselves becomes the measure.
const MIN_WINDOW: Duration = Duration::from_secs(10);

/// The round trip that is assumed before any sample (Rx notes 10: OpenAFS starts with 2 to 3 s; RFC 6298 with 1 s).
const INITIAL: Duration = Duration::from_secs(1);

/// Round-trip estimates of one path.
#[derive(Clone, Debug)]
pub struct Rtt {
    smoothed: Option<Duration>,
    deviation: Duration,
    latest: Duration,
    min: Duration,
    min_at: Instant,
    lifetime_min: Duration,
    last_sample: Instant,
    samples: u64,
}

impl Rtt {
    pub(crate) const fn new() -> Self {
        Self {
            smoothed: None,
            deviation: Duration::ZERO,
            latest: INITIAL,
            min: INITIAL,
            min_at: Instant::ORIGIN,
            lifetime_min: INITIAL,
            last_sample: Instant::ORIGIN,
            samples: 0,
        }
    }

    pub(crate) fn handle_sample(&mut self, now: Instant, sample: Duration) {
        let sample = sample.max(Duration::from_micros(1));
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.deviation = sample / 2;
                self.min = sample;
                self.lifetime_min = sample;
                self.min_at = now;
            }
            Some(smoothed) => {
                let error = smoothed.abs_diff(sample);
                self.deviation = (self.deviation * 3 + error) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
        // A sample next to the minimum renews it: an undisturbed path need not be drained to be measured.
        let near = self.min + self.min / 64 + Duration::from_micros(100);
        if sample <= near || now.since(self.min_at) > MIN_WINDOW {
            self.min = if now.since(self.min_at) > MIN_WINDOW { sample } else { self.min.min(sample) };
            self.min_at = now;
        }
        self.lifetime_min = self.lifetime_min.min(sample);
        self.latest = sample;
        self.last_sample = now;
        self.samples += 1;
    }

    /// Smoothed round trip; one second before the first sample.
    pub fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL)
    }

    /// Mean deviation of the round trip.
    pub const fn deviation(&self) -> Duration {
        self.deviation
    }

    /// The last sample.
    pub const fn latest(&self) -> Duration {
        self.latest
    }

    /// The smallest sample of about the last ten seconds; one second before the first.
    pub const fn min(&self) -> Duration {
        self.min
    }

    /// The time since a sample was as small as [`Self::min`].
    pub const fn min_age(&self, now: Instant) -> Duration {
        now.since(self.min_at)
    }

    /// The smallest sample ever; `None` before the first.
    pub fn lifetime_min(&self) -> Option<Duration> {
        self.is_known().then_some(self.lifetime_min)
    }

    /// True if there was a sample.
    pub const fn is_known(&self) -> bool {
        self.smoothed.is_some()
    }

    /// The number of samples.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// True if a new sample is due: fewer than three, or the last over a second old.
    pub(crate) fn wants_sample(&self, now: Instant) -> bool {
        self.samples < 3 || now.since(self.last_sample) > Duration::from_secs(1)
    }

    /// The time to wait for an acknowledgement before everything sent counts as lost. `peer_delay` is how long the peer may
    /// hold an ACK back.
    pub(crate) fn timeout(&self, peer_delay: Duration) -> Duration {
        let Some(smoothed) = self.smoothed else { return INITIAL * 2 };
        smoothed + (self.deviation * 4).max(Duration::from_millis(20)) + peer_delay
    }

    /// The time to wait before asking the peer what it has: shorter than [`Self::timeout`], and asking costs one small
    /// packet.
    pub(crate) fn probe_timeout(&self, peer_delay: Duration) -> Duration {
        let Some(smoothed) = self.smoothed else { return INITIAL };
        smoothed * 2 + Duration::from_millis(5) + peer_delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_minimum_gives_way() {
        let mut rtt = Rtt::new();
        let ms = Duration::from_millis;
        rtt.handle_sample(Instant::ORIGIN + ms(10), ms(10));
        rtt.handle_sample(Instant::ORIGIN + ms(9000), ms(50));
        assert_eq!(rtt.min(), ms(10));
        rtt.handle_sample(Instant::ORIGIN + ms(10_500), ms(50));
        assert_eq!((rtt.min(), rtt.lifetime_min()), (ms(50), Some(ms(10))));
    }

    #[test]
    fn the_timeout_covers_the_peers_delay() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.timeout(Duration::ZERO), Duration::from_secs(2));
        (0..50).for_each(|i| rtt.handle_sample(Instant::from_nanos(i), Duration::from_millis(12)));
        assert_eq!(rtt.timeout(Duration::from_millis(200)), Duration::from_millis(12 + 20 + 200));
    }
}
