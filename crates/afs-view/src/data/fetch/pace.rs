//! Limits on how many calls fetch from a server at a time, and on their size. All files and users share these limits,
//! because they share the server's threads and the path to it.
//!
//! One call to a server of our own carries all that the path does. Two large calls are in flight, so that one always
//! sends while the next begins; there are more if a call takes long to begin. Each small file takes a call, so many of
//! these calls run at a time. A stock server sends 32 packets in each round trip of a call, so several small calls run
//! beside each other: [`STOCK_FIRST`] at first, and one more after each round of calls in which the server began to
//! answer as quickly as at its best, if it then has threads left for others. (The client asks it for that, as `rxdebug`
//! does.) If the server answers late, others wait for its threads or for the path: then there are a quarter fewer
//! calls, and half as many if it says that it is busy.
//!
//! Knows no files and no clock.

use std::collections::VecDeque;
use std::time::Duration;

use rx_proto::time::Instant;

/// Calls to a server that has not said what it is, and to a stock one at first.
pub(crate) const STOCK_FIRST: u32 = 4;

/// Calls to a stock server at most: 64 channels are what the client has to one server, and others need some.
const STOCK_MAX: u32 = 40;

/// Calls to a stock server at least: one would not cover the pause between two.
const STOCK_MIN: u32 = 2;

/// Threads that a stock file server says are idle and that never take a call of ours: it keeps them for other services. Seen with 1.8.9:
/// calls wait while two are idle.
const RESERVED: i32 = 2;

/// Threads that a stock server is to have left for others, who would else wait until a call of ours ends.
const SPARE: i32 = 2;

/// Calls beyond the limit to a server that tells of its threads, if a reader waits for them, so that the reader does
/// not wait behind others' prefetch. The spare threads include room for them.
const WAITED_FOR: u32 = 1;

/// Calls to a server of our own: the second fills the gap when the first one ends.
const OWN_CALLS: u32 = 2;

/// A server may get one more call for each such part of the time that a call takes to begin. A call's last packets, its end and the
/// beginning of the next take two to three round trips, lost packets among them more. In that time the calls beside it need something to
/// send: at 1 Gbit/s and 200 ms some 60 MB, and half of [`OWN_PIECE`] is what each of them has left.
const OWN_CALL_EVERY: Duration = Duration::from_millis(40);

/// Calls to a server of our own at most.
const OWN_CALLS_MAX: u32 = 8;

/// Calls for small files to a server of our own, if nobody waits for them; and beyond those, if somebody does. 64 channels are what the
/// client has to one server.
const OWN_SMALL: u32 = 32;
const OWN_SMALL_WAITED_FOR: u32 = 16;

/// Bytes of a call to a server of our own at most. At 1 Gbit/s an eighth of a second, in which a round trip of 12.5 ms
/// for the next call's beginning is hidden behind the other's data; and what is lost when a call breaks.
const OWN_PIECE: u64 = 16 << 20;

/// Bytes of a call to a stock server at most: 23 windows of 32 packets, so that the round trip in which nothing comes is 4 %.
const STOCK_PIECE: u64 = 1 << 20;

/// Bytes of a call at least, if as many are wanted: below a window or two a call is mostly its beginning.
const PIECE_MIN: u64 = 128 << 10;

/// The time by which a latency may exceed the best one without meaning anything: the clock ticks of a busy machine.
const LATENCY_NOISE: Duration = Duration::from_millis(2);

/// The time for which the best latency is remembered: servers and ways change.
const LATENCY_MEMORY: Duration = Duration::from_secs(30);

/// A call that took so much longer than the best to begin was refused with VBUSY and repeated (see `afs_failover`), or waited for
/// a thread for as long.
const BUSY_WAIT: Duration = Duration::from_millis(200);

/// Samples of the latency that are kept.
const SAMPLES_MAX: usize = 64;

/// The calls to one server.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    is_own: Option<bool>,
    limit: u32,
    /// Calls that are under way: for pieces of large files, and for small ones.
    pieces: u32,
    small: u32,
    /// Calls that have begun, ever.
    begun: u64,
    /// The times when calls began to be answered, and how long each had waited; below it, the shortest of these waits.
    samples: VecDeque<(Instant, Duration)>,
    best: Duration,
    /// Calls in a row that were answered as quickly as at best.
    quick: u32,
    /// Slow ones before this are of calls that were sent before the limit went down.
    reduced_at: Option<Instant>,
    /// The server was asked for its threads, and has not answered: how many calls had begun then.
    asked: Option<u64>,
    /// It does not answer that.
    is_silent: bool,
}

/// The data that a call fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// A piece of a large file.
    Piece,
    /// All of a small one.
    SmallFile,
}

/// A stock server's report of its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Threads {
    /// Those without a call.
    pub(crate) idle: i32,
    /// Calls that wait for one.
    pub(crate) waiting: i32,
}

impl Pace {
    /// The pace of a server that nothing is known of.
    pub(crate) const fn new() -> Self {
        Self {
            is_own: None,
            limit: STOCK_FIRST,
            pieces: 0,
            small: 0,
            begun: 0,
            samples: VecDeque::new(),
            best: Duration::ZERO,
            quick: 0,
            reduced_at: None,
            asked: None,
            is_silent: false,
        }
    }

    /// Calls that may be under way at a time; to a server of our own, those that bring pieces.
    pub(crate) fn limit(&self) -> u32 {
        if self.is_own != Some(true) {
            return self.limit;
        }
        let more = self.best.as_millis() / OWN_CALL_EVERY.as_millis();
        OWN_CALLS + u32::try_from(more).unwrap_or(u32::MAX).min(OWN_CALLS_MAX - OWN_CALLS)
    }

    /// True if another may begin. One that a reader waits for may always, to a bound: it is not to wait behind others' fetching
    /// ahead.
    pub(crate) fn may_begin(&self, kind: CallKind, is_waited_for: bool) -> bool {
        let limit = self.limit();
        if self.is_own == Some(true) {
            let (active, limit, more) = match kind {
                CallKind::Piece => (self.pieces, limit, limit),
                CallKind::SmallFile => (self.small, OWN_SMALL, OWN_SMALL_WAITED_FOR),
            };
            return active < limit + if is_waited_for { more } else { 0 };
        }
        let more = match is_waited_for {
            false => 0,
            true if self.is_silent => limit,
            true => WAITED_FOR,
        };
        self.pieces + self.small < (limit + more).min(STOCK_MAX + STOCK_FIRST)
    }

    /// The size of the next call's piece of what is wanted: small enough that all calls have some of it.
    pub(crate) fn piece(&self, wanted: u64) -> u64 {
        let most = if self.is_own == Some(true) { OWN_PIECE } else { STOCK_PIECE };
        let share = wanted.div_ceil(u64::from(self.limit()));
        share.clamp(PIECE_MIN, most).next_multiple_of(4096).min(wanted.max(1))
    }

    /// The bytes to fetch ahead of a sequential reader: twice what all calls together bring, so that none pauses.
    pub(crate) fn ahead_max(&self) -> u64 {
        if self.is_own == Some(true) {
            2 * u64::from(self.limit()) * OWN_PIECE
        } else {
            2 * u64::from(self.limit) * STOCK_PIECE
        }
    }

    fn active(&mut self, kind: CallKind) -> &mut u32 {
        match kind {
            CallKind::Piece => &mut self.pieces,
            CallKind::SmallFile => &mut self.small,
        }
    }

    /// A call begins.
    pub(crate) fn note_begun(&mut self, kind: CallKind) {
        *self.active(kind) += 1;
        self.begun += 1;
    }

    /// A call's first bytes have come, after so long; and whether the server is one of our own, if it has said so. True: it is to be
    /// asked for its threads, and [`note_threads`](Self::note_threads) told the answer.
    #[must_use]
    pub(crate) fn note_answer(&mut self, now: Instant, waited: Duration, is_own: Option<bool>) -> bool {
        if is_own.is_some() {
            self.is_own = is_own;
        }
        while self.samples.front().is_some_and(|(at, _)| now.since(*at) > LATENCY_MEMORY)
            || self.samples.len() >= SAMPLES_MAX
        {
            self.samples.pop_front();
        }
        let best = self.samples.iter().map(|(_, waited)| *waited).min();
        self.samples.push_back((now, waited));
        self.best = best.map_or(waited, |best| best.min(waited));
        let Some(best) = best else { return false };
        if waited >= best + BUSY_WAIT {
            self.reduce(now, waited, 2);
        } else if waited <= best + best / 4 + LATENCY_NOISE {
            self.quick += 1;
            if self.quick >= self.limit {
                self.quick = 0;
                let asks = self.is_own != Some(true) && self.asked.is_none();
                if asks {
                    self.asked = Some(self.begun);
                }
                return asks;
            }
        } else if waited > best * 2 + LATENCY_NOISE {
            self.reduce(now, waited, 4);
        }
        false
    }

    /// Notes what the server says of its threads; if it says nothing, only the latency can tell.
    pub(crate) fn note_threads(&mut self, now: Instant, threads: Option<Threads>) {
        self.is_silent = threads.is_none();
        // Those that have begun since come to threads that the server still had for idle, between two of our calls.
        let begun = self.asked.take().map_or(0, |before| self.begun - before);
        let taken = i32::try_from(begun).unwrap_or(i32::MAX);
        let threads = threads.map(|told| Threads { idle: told.idle.saturating_sub(taken), ..told });
        let enough = RESERVED + SPARE + WAITED_FOR as i32;
        match threads {
            Some(threads) if threads.waiting > 0 => self.reduce(now, Duration::ZERO, 4),
            Some(threads) if threads.idle < enough => self.limit = (self.limit - 1).max(STOCK_MIN),
            Some(threads) if threads.idle == enough => {}
            Some(_) | None => self.limit = (self.limit + 1).min(STOCK_MAX),
        }
    }

    /// The server says that it is busy.
    pub(crate) fn note_busy(&mut self, now: Instant) {
        self.reduce(now, Duration::ZERO, 2);
    }

    /// A call has ended, well or not.
    pub(crate) fn note_ended(&mut self, kind: CallKind) {
        let active = self.active(kind);
        *active = active.checked_sub(1).expect("it had begun");
    }

    /// One part of so many less, unless that was done since the call that says so began.
    fn reduce(&mut self, now: Instant, waited: Duration, part: u32) {
        self.quick = 0;
        if self.reduced_at.is_some_and(|at| now.since(at) < waited) {
            return;
        }
        self.reduced_at = Some(now);
        self.limit = (self.limit - self.limit.div_ceil(part)).max(STOCK_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    /// A server in virtual time: threads that serve a call each, one window a round trip, and a way that carries so many bytes a
    /// second.
    struct Server {
        threads: usize,
        /// True if it says how many of them are idle.
        tells: bool,
        rtt: Duration,
        bytes_per_second: u64,
        is_own: bool,
    }

    const WINDOW: u64 = 32 * 1416;

    /// The result of a simulated load.
    struct Outcome {
        bytes_per_second: u64,
        /// The time for which a call waited for a thread, on average and at most.
        mean_wait: Duration,
        largest_limit: u32,
        last_limit: u32,
    }

    /// Fetches for so long, as a reader that reads on and on would.
    fn run(server: &Server, pace: &mut Pace, time: Duration) -> Outcome {
        let mut now = Instant::ORIGIN;
        let end = now + time;
        // Ends of calls that threads serve; what waits for a thread: when it was sent, and its bytes.
        let mut busy: BinaryHeap<Reverse<(Instant, u64)>> = BinaryHeap::new();
        let mut way_free = now;
        let mut fetched = 0;
        let (mut waits, mut calls, mut largest) = (Duration::ZERO, 0, 0);
        while now < end {
            while pace.may_begin(CallKind::Piece, false) {
                let bytes = pace.piece(1 << 30);
                pace.note_begun(CallKind::Piece);
                // A thread is free at once, or when the one that ends first does.
                let begins = if busy.len() < server.threads {
                    now
                } else {
                    let mut ends: Vec<_> = busy.iter().map(|Reverse((at, _))| *at).collect();
                    ends.sort();
                    ends[busy.len() - server.threads]
                };
                let waited = begins.since(now) + server.rtt;
                let rounds = if server.is_own { 1 } else { bytes.div_ceil(WINDOW) };
                let by_rounds = begins + server.rtt * u32::try_from(rounds).unwrap();
                let carried = Duration::from_nanos(bytes * 1_000_000_000 / server.bytes_per_second);
                way_free = way_free.max(begins) + carried;
                let done = by_rounds.max(way_free);
                waits += begins.since(now);
                calls += 1;
                let asks = pace.note_answer(now + waited, waited, Some(server.is_own));
                busy.push(Reverse((done, bytes)));
                if asks {
                    let spare = server.threads as i32 - busy.len() as i32;
                    let told = Threads { idle: spare.max(0) + RESERVED, waiting: -spare.min(0) };
                    pace.note_threads(now + waited, server.tells.then_some(told));
                }
                largest = largest.max(pace.limit());
            }
            let Some(Reverse((at, bytes))) = busy.pop() else { break };
            now = at;
            fetched += bytes;
            pace.note_ended(CallKind::Piece);
        }
        Outcome {
            bytes_per_second: fetched * 1000 / u64::try_from(now.since(Instant::ORIGIN).as_millis()).unwrap(),
            mean_wait: waits / calls,
            largest_limit: largest,
            last_limit: pace.limit(),
        }
    }

    const GIGABIT: u64 = 120_000_000;

    const STOCK: Server = Server {
        threads: 8,
        tells: false,
        rtt: Duration::from_micros(12_500),
        bytes_per_second: GIGABIT,
        is_own: false,
    };

    #[test]
    fn a_stock_server_with_many_threads_is_asked_for_more_and_more() {
        for tells in [true, false] {
            let server = Server { threads: 128, tells, ..STOCK };
            let outcome = run(&server, &mut Pace::new(), Duration::from_secs(20));
            let one_call = WINDOW * 80;
            assert!(outcome.bytes_per_second > 15 * one_call, "{} bytes/s", outcome.bytes_per_second);
            assert!(outcome.largest_limit > 30, "{}", outcome.largest_limit);
        }
    }

    #[test]
    fn a_stock_server_that_tells_of_its_threads_always_has_some_for_others() {
        let server = Server { threads: 9, tells: true, ..STOCK };
        let outcome = run(&server, &mut Pace::new(), Duration::from_secs(30));
        assert!(outcome.bytes_per_second > 5 * WINDOW * 80, "{} bytes/s", outcome.bytes_per_second);
        assert_eq!((outcome.largest_limit, outcome.mean_wait), (6, Duration::ZERO));
        let mut pace = Pace::new();
        for _ in 0..STOCK_FIRST + WAITED_FOR {
            assert!(pace.may_begin(CallKind::Piece, true));
            pace.note_begun(CallKind::Piece);
        }
        assert!(
            !pace.may_begin(CallKind::Piece, true),
            "who is waited for does not take more than are spare"
        );
        pace.note_threads(Instant::ORIGIN, None);
        assert!(pace.may_begin(CallKind::Piece, true), "how many that are is not known");
    }

    #[test]
    fn who_takes_its_threads_meanwhile_gets_them() {
        let (mut pace, now) = (Pace::new(), Instant::ORIGIN);
        let told = |idle, waiting| Some(Threads { idle, waiting });
        for _ in 0..16 {
            pace.note_threads(now, told(6, 0));
        }
        assert_eq!(pace.limit(), STOCK_FIRST + 16);
        for (threads, limit) in [(told(5, 0), 20), (told(4, 0), 19), (told(2, 0), 18), (told(2, 3), 13)] {
            pace.note_threads(now + Duration::from_secs(1), threads);
            assert_eq!(pace.limit(), limit, "{threads:?}");
        }
        for _ in 0..100 {
            pace.note_threads(now, told(0, 0));
        }
        // Idle while the next call was on its way to it.
        pace.limit = 20;
        pace.asked = Some(pace.begun);
        pace.note_begun(CallKind::Piece);
        pace.note_threads(now, told(6, 0));
        assert_eq!(pace.limit(), 20);
        for _ in 0..100 {
            pace.note_threads(now, told(0, 0));
        }
        assert_eq!(pace.limit(), STOCK_MIN);
    }

    #[test]
    fn a_stock_server_with_few_threads_that_does_not_tell_is_left_some_for_others() {
        let server = Server { threads: 8, ..STOCK };
        let outcome = run(&server, &mut Pace::new(), Duration::from_secs(30));
        assert!(outcome.bytes_per_second > 5 * WINDOW * 80, "{} bytes/s", outcome.bytes_per_second);
        assert!(outcome.largest_limit <= 10, "{}", outcome.largest_limit);
        assert!(outcome.mean_wait < Duration::from_millis(20), "{:?}", outcome.mean_wait);
        assert!(outcome.last_limit >= 4, "{}", outcome.last_limit);
    }

    #[test]
    fn a_server_of_our_own_gets_few_and_large_calls() {
        let server = Server { is_own: true, ..STOCK };
        let mut pace = Pace::new();
        let outcome = run(&server, &mut pace, Duration::from_secs(5));
        assert_eq!((outcome.last_limit, pace.piece(1 << 30)), (2, OWN_PIECE));
        assert!(outcome.bytes_per_second > GIGABIT * 9 / 10, "{} bytes/s", outcome.bytes_per_second);
    }

    #[test]
    fn a_server_of_our_own_that_is_far_away_gets_more_calls() {
        for (rtt_ms, calls) in [(50, 3), (100, 4), (200, 7), (2000, OWN_CALLS_MAX)] {
            let mut pace = Pace::new();
            assert!(!pace.note_answer(Instant::ORIGIN, Duration::from_millis(rtt_ms), Some(true)));
            assert_eq!(pace.limit(), calls, "{rtt_ms} ms");
        }
    }

    #[test]
    fn a_busy_server_is_asked_for_half_and_once_for_all_calls_that_say_so() {
        let mut pace = Pace::new();
        let mut now = Instant::ORIGIN;
        for _ in 0..500 {
            now += Duration::from_millis(13);
            if pace.note_answer(now, Duration::from_millis(13), Some(false)) {
                pace.note_threads(now, None);
            }
        }
        let before = pace.limit();
        assert!(before > 16, "{before}");
        let slow = Duration::from_millis(263);
        for _ in 0..before {
            now += Duration::from_micros(100);
            assert!(!pace.note_answer(now, slow, Some(false)));
        }
        assert_eq!(pace.limit(), before / 2);
        pace.note_busy(now + Duration::from_millis(1));
        assert_eq!(pace.limit(), before / 2 - (before / 2).div_ceil(2));
    }

    #[test]
    fn who_is_waited_for_does_not_wait_behind_fetching_ahead() {
        let mut pace = Pace::new();
        while pace.may_begin(CallKind::Piece, false) {
            pace.note_begun(CallKind::Piece);
        }
        assert_eq!(pace.pieces, STOCK_FIRST);
        assert!(
            !pace.may_begin(CallKind::SmallFile, false),
            "a stock server has one number of threads for all"
        );
        assert!(pace.may_begin(CallKind::Piece, true));
    }

    #[test]
    fn small_files_and_pieces_of_large_ones_are_in_nobodys_way_at_a_server_of_our_own() {
        let mut pace = Pace::new();
        assert!(!pace.note_answer(Instant::ORIGIN, Duration::from_millis(12), Some(true)));
        for (kind, ahead, waited_for) in
            [(CallKind::SmallFile, OWN_SMALL, OWN_SMALL_WAITED_FOR), (CallKind::Piece, OWN_CALLS, OWN_CALLS)]
        {
            let mut begun = 0;
            for (is_waited_for, most) in [(false, ahead), (true, ahead + waited_for)] {
                while pace.may_begin(kind, is_waited_for) {
                    pace.note_begun(kind);
                    begun += 1;
                }
                assert_eq!(begun, most, "{kind:?}");
            }
        }
        pace.note_ended(CallKind::SmallFile);
        assert!(pace.may_begin(CallKind::SmallFile, true) && !pace.may_begin(CallKind::Piece, true));
    }

    #[test]
    fn what_is_wanted_is_shared_among_the_calls() {
        let mut pace = Pace::new();
        assert_eq!(pace.piece(100), 100);
        assert_eq!(pace.piece(1 << 20), 256 << 10);
        assert_eq!(pace.piece(1 << 30), STOCK_PIECE);
        assert!(!pace.note_answer(Instant::ORIGIN, Duration::from_millis(1), Some(true)));
        assert_eq!(pace.piece(1 << 20), 512 << 10);
        assert_eq!(pace.piece(1 << 30), OWN_PIECE);
    }
}
