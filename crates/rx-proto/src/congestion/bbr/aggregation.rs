//! Measures how many more bytes ACKs report at once than the measured rate explains. The controller decides what follows from it.

use crate::congestion::{AckSample, bytes_in};
use crate::time::Instant;

/// Rounds for which acknowledgements that came together count, up to twice as many (the draft's ExtraAckedFilterLen is 10).
const AGGREGATION_ROUNDS: u64 = 5;

/// The bytes that ACKs bring at once beyond those that the rate lets expect, as the peer, or a radio link, stands still now
/// and then and makes up for it (the draft's extra_acked). So much has to be allowed in flight, or standing still divides
/// the rate again and again: measured by the rate of a window that waited, the next window is smaller still.
#[derive(Debug)]
pub(super) struct Aggregation {
    /// The time since which more has been acknowledged than expected, and how much in all.
    since: Instant,
    acked: u64,
    /// The most beyond expectation in the last rounds since `from`, and in as many before.
    most: u64,
    most_before: u64,
    from: u64,
}

impl Aggregation {
    pub(super) const NONE: Self = Self { since: Instant::ORIGIN, acked: 0, most: 0, most_before: 0, from: 0 };

    pub(super) fn handle_ack(&mut self, sample: &AckSample, round: u64, rate: u64, window: u64) {
        let mut expected = bytes_in(rate, sample.now.since(self.since));
        if self.acked <= expected {
            (self.since, self.acked, expected) = (sample.now, 0, 0);
        }
        self.acked += sample.acked;
        if round >= self.from + AGGREGATION_ROUNDS {
            (self.most_before, self.most, self.from) = (self.most, 0, round);
        }
        self.most = self.most.max((self.acked - expected).min(window));
    }

    pub(super) fn extra(&self) -> u64 {
        self.most.max(self.most_before)
    }
}
