//! The rate at which packets are worked through, and the queue before that: then, and for as long, offers are limited. Counts
//! periods of [`PERIOD`]; knows no calls and no owners, and limits nothing itself.

use super::{PART_COST, UNKNOWN_RTT};
use crate::congestion::bytes_in;
use crate::time::Instant;
use std::time::Duration;

/// Time over which arrivals are counted.
const PERIOD: Duration = Duration::from_millis(10);
/// A queue that packets wait in for longer than this, all through two periods, is a standing one.
const STANDING: Duration = Duration::from_millis(5);
/// The delay that a limited queue is kept at: long enough that the thread that drains it always has something to do.
const AIM: Duration = Duration::from_millis(3);
/// Periods without anybody waiting for credit after which nothing is limited any more: 200 ms.
const CALM: u32 = 20;
/// The limit never goes below this: 28 packets.
const LEAST_LIMIT: u64 = 64 << 10;
/// Nor above this, half of the buffer that is forced, and twice what is worked through in a round trip: a lone owner,
/// who may have half, is to have more than that, or they would never be faster than when the limit began.
const MOST_LIMIT: u64 = 16 << 20;

/// The change of offers to which a period leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// There is a standing queue: they are to be limited to so many of the kernel's bytes.
    Limit(u64),
    /// It is gone, and nobody waits.
    End,
}

/// The rate at which packets are worked through.
#[derive(Debug)]
pub(super) struct Drain {
    from: Instant,
    /// Bytes of data, and of packets of all kinds: both wait in one queue, but the endpoint offers room only for data.
    data_bytes: u64,
    bytes: u64,
    /// Kernel's bytes a second in the last periods, likewise.
    data_rate: u64,
    rate: u64,
    /// The same of all packets while there was always something to work through, or as good as known.
    capacity: u64,
    /// Smoothed over packets: the shortest round trip of the path that each came on.
    rtt: Duration,
    /// The least that has waited in this period; `None` if nobody has said.
    least_waiting: Option<u64>,
    standing_periods: u32,
    calm_periods: u32,
    limit: Option<u64>,
}

impl Drain {
    pub(super) const fn new() -> Self {
        Self {
            from: Instant::ORIGIN,
            data_bytes: 0,
            bytes: 0,
            data_rate: 0,
            rate: 0,
            capacity: 0,
            rtt: UNKNOWN_RTT,
            least_waiting: None,
            standing_periods: 0,
            calm_periods: 0,
            limit: None,
        }
    }

    /// The limit while there is a standing queue, in the kernel's bytes.
    pub(super) const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Data that are worked through, in the kernel's bytes a second.
    pub(super) const fn data_rate(&self) -> u64 {
        self.data_rate
    }

    /// Notes that so many bytes wait to be handled.
    pub(super) fn note_backlog(&mut self, bytes: u64) {
        self.least_waiting = Some(self.least_waiting.map_or(bytes, |least| least.min(bytes)));
    }

    /// A packet of any kind came, which cost so much.
    pub(super) const fn note_packet(&mut self, cost: u64) {
        self.bytes += cost;
    }

    /// Notes that the packet had data, and the shortest round trip of its path, if that is known.
    pub(super) fn note_data(&mut self, cost: u64, rtt_min: Option<Duration>) {
        self.data_bytes += cost;
        if let Some(rtt) = rtt_min {
            self.rtt = (self.rtt * 63 + rtt) / 64;
        }
    }

    /// Offers are limited from now on.
    pub(super) const fn begin_limit(&mut self, limit: u64) {
        self.limit = Some(limit);
        self.calm_periods = 0;
    }

    /// Ends the limit of offers.
    pub(super) const fn end_limit(&mut self) {
        self.limit = None;
        self.standing_periods = 0;
    }

    /// Ends a period of counting, if it is over, and moves the limit, if there is one. `is_calm`: nobody waits to be offered more.
    pub(super) fn end_period(&mut self, now: Instant, is_calm: impl FnOnce() -> bool) -> Option<Change> {
        let time = now.since(self.from);
        if time < PERIOD {
            return None;
        }
        // After a pause what was before says nothing.
        let is_after_pause = time > 5 * PERIOD;
        let rate_of = |bytes: u64| (u128::from(bytes) * 1_000_000_000 / time.as_nanos()) as u64;
        let smooth = |before: u64, rate: u64| if is_after_pause { rate } else { (before + rate) / 2 };
        let rate = rate_of(self.bytes);
        self.rate = smooth(self.rate, rate);
        self.data_rate = smooth(self.data_rate, rate_of(self.data_bytes));
        (self.from, self.bytes, self.data_bytes) = (now, 0, 0);
        let waiting = match (self.least_waiting.take(), self.limit) {
            (Some(waiting), _) => waiting,
            (None, Some(_)) => 0, // nothing came
            (None, None) => return None,
        };
        self.capacity = match waiting {
            0 => (self.capacity - self.capacity / 64).max(self.rate),
            _ => (3 * self.capacity + rate) / 4,
        };
        let delay = Duration::from_secs_f64(waiting as f64 / self.rate.max(PART_COST) as f64);
        self.standing_periods = if delay > STANDING { self.standing_periods + 1 } else { 0 };
        let fits = bytes_in(self.capacity, self.rtt + AIM).max(LEAST_LIMIT);
        let Some(limit) = self.limit else {
            return (self.standing_periods >= 2).then_some(Change::Limit(fits));
        };
        let is_calm = is_calm();
        self.calm_periods = if is_calm { self.calm_periods + 1 } else { 0 };
        if self.calm_periods >= CALM {
            return Some(Change::End);
        }
        // Towards the aim, but never far from what should fit: what is done now is seen a round trip later, and what was
        // offered before still comes then.
        let limit: u64 = match delay {
            delay if delay > 2 * AIM => limit - limit / 8,
            delay if delay < AIM / 2 && !is_calm => limit + limit / 16,
            _ => limit,
        };
        let most = MOST_LIMIT + 2 * bytes_in(self.capacity, self.rtt);
        self.limit = Some(limit.clamp(fits / 2, most.max(fits)));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A period in which packets of 1 MB came, with so many bytes waiting all the time.
    fn period(drain: &mut Drain, now: &mut Instant, waiting: u64, is_calm: bool) -> Option<Change> {
        drain.note_packet(1_000_000);
        drain.note_data(1_000_000, Some(Duration::from_millis(10)));
        drain.note_backlog(waiting);
        *now += PERIOD;
        drain.end_period(*now, || is_calm)
    }

    #[test]
    fn a_queue_that_stands_for_two_periods_is_limited_to_what_is_drained_in_a_round_trip() {
        let (mut drain, mut now) = (Drain::new(), Instant::ORIGIN);
        // 100 MB/s: 1 MB waits for 10 ms.
        for _ in 0..10 {
            assert_eq!(period(&mut drain, &mut now, 0, true), None);
        }
        assert_eq!(period(&mut drain, &mut now, 1_000_000, true), None, "it may be a burst");
        let Some(Change::Limit(limit)) = period(&mut drain, &mut now, 1_000_000, true) else {
            panic!("no limit")
        };
        let (least, most) = (1_000_000, 1_500_000);
        assert!((least..=most).contains(&limit), "{limit} for 10 ms and 3 more at 100 MB/s");
    }

    #[test]
    fn a_short_queue_is_not_limited_however_long_it_lasts() {
        let (mut drain, mut now) = (Drain::new(), Instant::ORIGIN);
        for _ in 0..100 {
            assert_eq!(period(&mut drain, &mut now, 100_000, false), None);
        }
    }

    #[test]
    fn the_limit_falls_while_the_queue_is_long_and_rises_while_it_is_short_and_somebody_waits() {
        let (mut drain, mut now) = (Drain::new(), Instant::ORIGIN);
        for _ in 0..10 {
            period(&mut drain, &mut now, 0, true);
        }
        drain.begin_limit(1_300_000);
        period(&mut drain, &mut now, 2_000_000, false);
        let low = drain.limit().unwrap();
        assert!(low < 1_300_000, "{low}");
        period(&mut drain, &mut now, 1000, false);
        assert!(drain.limit().unwrap() > low);
    }

    #[test]
    fn the_limit_ends_when_nobody_has_waited_for_a_while() {
        let (mut drain, mut now) = (Drain::new(), Instant::ORIGIN);
        drain.begin_limit(1_000_000);
        for n in 1..CALM {
            assert_eq!(period(&mut drain, &mut now, 0, true), None, "period {n}");
        }
        assert_eq!(period(&mut drain, &mut now, 0, true), Some(Change::End));
        drain.end_limit();
        assert_eq!(drain.limit(), None);
    }
}
