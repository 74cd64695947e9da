//! Spreads what a path sends over time: a bucket of bytes that fills at the controller's rate. Its depth bounds how much
//! is caught up after a late timer. Knows nothing of packets or calls.

use crate::time::Instant;
use std::time::Duration;

/// How much a late timer may catch up: timers oversleep by milliseconds at times.
const CATCH_UP: Duration = Duration::from_millis(2);

/// The bucket.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    tokens: u64,
    filled_at: Instant,
}

impl Pacer {
    pub(crate) const fn new() -> Self {
        Self { tokens: 0, filled_at: Instant::ORIGIN }
    }

    /// How many bytes may go now. `floor` is the least depth of the bucket.
    pub(crate) fn fill(&mut self, now: Instant, rate: u64, floor: u64) -> u64 {
        let gained = u128::from(rate) * now.since(self.filled_at).as_nanos() / 1_000_000_000;
        if gained > 0 {
            let depth = floor.max((u128::from(rate) * CATCH_UP.as_nanos() / 1_000_000_000) as u64);
            self.tokens = self.tokens.saturating_add(gained as u64).min(depth.max(self.tokens));
            self.filled_at = now;
        }
        self.tokens
    }

    /// Allows a burst of at least `bytes`: a flight from an idle path, or a train.
    pub(crate) fn grant(&mut self, bytes: u64) {
        self.tokens = self.tokens.max(bytes);
    }

    pub(crate) const fn spend(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(bytes);
    }

    /// When `bytes` will be there.
    pub(crate) fn ready_at(&self, rate: u64, bytes: u64) -> Instant {
        let missing = bytes.saturating_sub(self.tokens);
        // Rounded up: a timer that comes a nanosecond early would come again and again.
        let nanos = (u128::from(missing) * 1_000_000_000).div_ceil(u128::from(rate.max(1))) as u64;
        self.filled_at + Duration::from_nanos(nanos + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_timer_catches_up_two_milliseconds_and_no_more() {
        let mut pacer = Pacer::new();
        let rate = 125_000_000;
        pacer.fill(Instant::ORIGIN + Duration::from_millis(1), rate, 1444);
        assert_eq!(pacer.fill(Instant::ORIGIN + Duration::from_secs(1), rate, 1444), 250_000);
        pacer.spend(250_000);
        let ready = pacer.ready_at(rate, 125_000);
        assert_eq!(ready, Instant::ORIGIN + Duration::from_millis(1001) + Duration::from_nanos(1));
        assert_eq!(pacer.fill(ready, rate, 1444), 125_000);
    }
}
