//! The reordering of a path's packets, as far as it matters for calling one lost (RFC 8985, section 6.2): the time for which
//! one that was overtaken is waited for. It grows with each round trip in which packets were given up that arrived after all.

use crate::rtt::Rtt;
use crate::time::Instant;
use std::time::Duration;

/// Recoveries from loss for which a grown window stays (RFC 8985: 16).
const PERSISTS: u32 = 16;

/// The state of one path; see the module.
#[derive(Debug)]
pub(crate) struct Reordering {
    /// A packet has overtaken another here.
    seen: bool,
    /// The window, in quarters of the smallest round trip.
    steps: u32,
    recoveries_left: u32,
    grown_at: Instant,
}

impl Reordering {
    pub(crate) const fn new() -> Self {
        Self { seen: false, steps: 1, recoveries_left: 0, grown_at: Instant::ORIGIN }
    }

    /// The time for which a packet that was overtaken may still come. `is_obvious` if loss is likely anyhow: several
    /// later packets have arrived, or a loss is being repaired already. Then a path that has never reordered anything
    /// gets no patience.
    pub(crate) fn window(&self, rtt: &Rtt, is_obvious: bool) -> Duration {
        if is_obvious && !self.seen {
            return Duration::ZERO;
        }
        (rtt.min() / 4 * self.steps).min(rtt.smoothed())
    }

    /// A packet that was missing has come by its only transmission.
    pub(crate) const fn handle_overtaken(&mut self, now: Instant) {
        if !self.seen {
            (self.seen, self.grown_at, self.recoveries_left) = (true, now, PERSISTS);
        }
    }

    /// A packet that had been given up has arrived. Those of one round trip are one lesson: the window that they show to be
    /// too small is no longer in use when the last of them is heard of.
    pub(crate) fn handle_spurious(&mut self, now: Instant, rtt: &Rtt) {
        if !self.seen {
            return self.handle_overtaken(now);
        }
        self.recoveries_left = PERSISTS;
        if now.since(self.grown_at) >= rtt.smoothed() && self.window(rtt, false) < rtt.smoothed() {
            self.steps += 1;
            self.grown_at = now;
        }
    }

    /// Notes that all that was lost in a row has been repaired.
    pub(crate) const fn handle_recovered(&mut self) {
        self.recoveries_left = self.recoveries_left.saturating_sub(1);
        if self.recoveries_left == 0 {
            self.steps = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rtt() -> Rtt {
        let mut rtt = Rtt::new();
        (0..3).for_each(|_| rtt.handle_sample(Instant::ORIGIN, MS * 40));
        rtt
    }

    #[test]
    fn patience_begins_with_the_first_overtaken_packet() {
        let (mut r, rtt) = (Reordering::new(), rtt());
        assert_eq!((r.window(&rtt, true), r.window(&rtt, false)), (Duration::ZERO, MS * 10));
        r.handle_overtaken(Instant::ORIGIN);
        assert_eq!((r.window(&rtt, true), r.window(&rtt, false)), (MS * 10, MS * 10));
    }

    #[test]
    fn patience_grows_by_a_step_a_round_trip_up_to_the_round_trip() {
        let (mut r, rtt) = (Reordering::new(), rtt());
        let steps: Vec<u128> = (0..24)
            .map(|i| {
                r.handle_spurious(Instant::ORIGIN + MS * 10 * i, &rtt);
                r.window(&rtt, true).as_millis()
            })
            .collect();
        let expected: Vec<u128> = (0..24).map(|i| 10 * (1 + i / 4).min(4)).collect();
        assert_eq!(steps, expected);
    }

    #[test]
    fn patience_is_forgotten_after_sixteen_recoveries() {
        let (mut r, rtt) = (Reordering::new(), rtt());
        (0..3).for_each(|i| r.handle_spurious(Instant::ORIGIN + MS * 50 * i, &rtt));
        (0..15).for_each(|_| r.handle_recovered());
        assert_eq!(r.window(&rtt, true), MS * 30);
        r.handle_recovered();
        assert_eq!(r.window(&rtt, true), MS * 10);
    }
}
