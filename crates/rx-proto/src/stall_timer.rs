//! The time for which a server's call still waits for its client: for more of the request, or for the reply to be
//! taken. Time in which the server itself works does not count. What ends a call is in `call`, when it waits is told by
//! the endpoint's verbs.
//!
//! A call begins with [`CallLimits::stall`](crate::config::CallLimits::stall). Waiting spends it, bytes that arrive earn
//! it back at [`LEAST_RATE`]. So a transfer may take days as long as it goes on, a pause may be as long as the limit,
//! and a client that sends a byte now and then is not taken for one that works.

use crate::time::Instant;
use std::time::Duration;

/// Bytes a second that a client has to move, as an average: a fifth of what a modem of 9600 bit/s moves, so that several calls
/// may share one.
const LEAST_RATE: u64 = 256;

/// The rest of a call's limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StallTimer {
    /// `None`: without end.
    limit: Option<Duration>,
    left: Duration,
    /// The most patience that is spent at once. A longer time in which nobody looked was a leap of the clock, as of a machine
    /// that slept, and says nothing of the client.
    most: Duration,
    /// The server waits since then, or has looked then.
    since: Option<Instant>,
}

impl StallTimer {
    /// So much, or without end; somebody looks at least every `look`.
    pub(crate) fn new(limit: Option<Duration>, look: Duration) -> Self {
        Self { limit, left: limit.unwrap_or_default(), most: 2 * look, since: None }
    }

    /// Notes that the server waits for the client from now on.
    pub(crate) const fn begin(&mut self, now: Instant) {
        if self.since.is_none() {
            self.since = Some(now);
        }
    }

    /// The server goes on by itself.
    pub(crate) fn end(&mut self, now: Instant) {
        self.look(now);
        self.since = None;
    }

    /// Time has passed.
    pub(crate) fn look(&mut self, now: Instant) {
        if let Some(since) = &mut self.since {
            self.left = self.left.saturating_sub(now.since(*since).min(self.most));
            *since = now;
        }
    }

    /// The client has moved so many bytes.
    pub(crate) fn earn(&mut self, now: Instant, bytes: u64) {
        let Some(limit) = self.limit else { return };
        self.look(now);
        let earned = Duration::from_nanos(bytes.saturating_mul(1_000_000_000 / LEAST_RATE));
        self.left = self.left.saturating_add(earned).min(limit);
    }

    /// True if it is over, by the last look.
    pub(crate) fn is_over(&self) -> bool {
        self.limit.is_some() && self.since.is_some() && self.left.is_zero()
    }

    /// The time when it is over, if nothing comes.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        self.limit?;
        Some(self.since? + self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn at(s: u64) -> Instant {
        Instant::ORIGIN + Duration::from_secs(s)
    }

    #[test]
    fn only_waiting_spends_it() {
        let mut timer = StallTimer::new(Some(LIMIT), LIMIT);
        assert_eq!(timer.ends_at(), None);
        timer.begin(at(1000));
        timer.begin(at(1010));
        assert_eq!(timer.ends_at(), Some(at(1060)));
        timer.end(at(1020));
        assert_eq!(timer.ends_at(), None);
        timer.begin(at(5000));
        assert_eq!(timer.ends_at(), Some(at(5040)));
    }

    #[test]
    fn bytes_earn_it_at_a_least_rate() {
        let mut timer = StallTimer::new(Some(LIMIT), LIMIT);
        timer.begin(at(0));
        for hour in 0..24 {
            timer.earn(at(hour * 50), 60 * LEAST_RATE);
            assert_eq!(timer.ends_at(), Some(at(hour * 50 + 60)), "bytes in time keep it up");
        }
        let mut timer = StallTimer::new(Some(LIMIT), LIMIT);
        timer.begin(at(0));
        for second in 0..58 {
            timer.earn(at(second), 1);
        }
        assert!(timer.ends_at().unwrap() < at(61), "a byte a second does not");
    }

    #[test]
    fn a_leap_of_the_clock_is_not_the_clients_fault() {
        let mut timer = StallTimer::new(Some(LIMIT), Duration::from_secs(2));
        timer.begin(at(0));
        timer.look(at(400));
        assert!(!timer.is_over());
        assert_eq!(timer.ends_at(), Some(at(456)));
        (0..28).for_each(|i| timer.look(at(402 + 2 * i)));
        assert!(timer.is_over());
    }

    #[test]
    fn without_a_limit_it_never_ends() {
        let mut timer = StallTimer::new(None, LIMIT);
        timer.begin(at(0));
        timer.earn(at(1), 100);
        assert_eq!(timer.ends_at(), None);
    }
}
