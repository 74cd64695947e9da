//! Spreads what a path sends over time: a bucket of bytes that fills at the controller's rate. Its depth bounds how much
//! is caught up after a late timer or turn; who had nothing to send catches up little. Knows nothing of packets or calls.

use crate::congestion::bytes_in;
use crate::time::Instant;
use std::time::Duration;

/// The time that may be caught up in any case: timers oversleep by milliseconds at times, and so do writers.
pub(crate) const CATCH_UP: Duration = Duration::from_millis(2);

/// The bucket.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    tokens: u64,
    filled_at: Instant,
    /// Somebody has more to send, and waits: for the bucket to fill, or for their turn among others.
    is_awaited: bool,
}

impl Pacer {
    pub(crate) const fn new() -> Self {
        Self { tokens: 0, filled_at: Instant::ORIGIN, is_awaited: false }
    }

    /// The number of bytes that may go now, for somebody who has some. `floor` is the least depth of the bucket, `late` what may be
    /// caught up of a wait.
    pub(crate) fn fill(&mut self, now: Instant, rate: u64, floor: u64, late: Duration) -> u64 {
        let gained = bytes_in(rate, now.since(self.filled_at));
        if gained > 0 {
            let catch_up = if self.is_awaited { late.max(CATCH_UP) } else { CATCH_UP };
            let depth = floor.max(bytes_in(rate, catch_up));
            self.tokens = self.tokens.saturating_add(gained).min(depth.max(self.tokens));
            self.filled_at = now;
        }
        self.is_awaited = true;
        self.tokens
    }

    /// Notes that nobody has anything to send for now, or may: the time until somebody does is a pause, not a wait.
    pub(crate) const fn rest(&mut self) {
        self.is_awaited = false;
    }

    /// Allows a burst of at least `bytes`: a flight from an idle path, or a train.
    pub(crate) fn grant(&mut self, bytes: u64) {
        self.tokens = self.tokens.max(bytes);
    }

    pub(crate) const fn spend(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(bytes);
    }

    /// The time when `bytes` will be there.
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

    const RATE: u64 = 125_000_000;
    const LATE: Duration = Duration::from_millis(10);

    #[test]
    fn a_pause_is_caught_up_by_two_milliseconds_and_no_more() {
        let mut pacer = Pacer::new();
        pacer.fill(Instant::ORIGIN + Duration::from_millis(1), RATE, 1444, LATE);
        pacer.rest();
        assert_eq!(pacer.fill(Instant::ORIGIN + Duration::from_secs(1), RATE, 1444, LATE), 250_000);
        pacer.spend(250_000);
        let ready = pacer.ready_at(RATE, 125_000);
        assert_eq!(ready, Instant::ORIGIN + Duration::from_millis(1001) + Duration::from_nanos(1));
        assert_eq!(pacer.fill(ready, RATE, 1444, LATE), 125_000);
    }

    #[test]
    fn a_late_timer_is_caught_up_as_far_as_the_controller_says() {
        let mut pacer = Pacer::new();
        let start = Instant::ORIGIN + Duration::from_secs(1);
        let tokens = pacer.fill(start, RATE, 1444, LATE);
        pacer.spend(tokens);
        let ready = pacer.ready_at(RATE, 20_000);
        assert_eq!(pacer.fill(ready + Duration::from_millis(5), RATE, 1444, LATE), 20_000 + 625_000);
        pacer.spend(645_000);
        let ready = pacer.ready_at(RATE, 20_000);
        assert_eq!(pacer.fill(ready + Duration::from_secs(1), RATE, 1444, LATE), 1_250_000);
    }

    /// A server without CPU time has each path wait for its turn with bytes in its bucket. The faster a path, the more of
    /// them it would lose, and a user on one host would have half of what one on 250 has.
    #[test]
    fn a_turn_that_comes_late_is_caught_up_like_a_timer() {
        let mut pacer = Pacer::new();
        let start = Instant::ORIGIN + Duration::from_secs(1);
        let tokens = pacer.fill(start, RATE, 1444, LATE);
        pacer.spend(tokens - 1444);
        assert_eq!(pacer.fill(start + Duration::from_millis(8), RATE, 1444, LATE), 1444 + 1_000_000);
    }
}
