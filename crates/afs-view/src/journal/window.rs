//! How many calls that nobody waits for are under way to a server at once: fewer while its answers come much later than they could, so that
//! those who do wait for it, also on other machines, get theirs. A value without a clock: times are arguments.

use std::time::Duration;

use rx_proto::time::Instant;

/// For so long, and for as long again, an answer counts as what the server can do: afterwards the way to it may be another one.
const PERIOD: Duration = Duration::from_secs(10);

/// An answer is late that takes so many times the shortest one, and so much.
const LATE: u32 = 2;
const SLACK: Duration = Duration::from_millis(2);

/// All of so many answers in a row are late: one alone may have lost a packet.
const IN_A_ROW: usize = 4;

/// Calls that are sent at once before anything is known of the server.
const FIRST: f64 = 16.0;

/// The calls of one kind to one server.
#[derive(Debug)]
pub(crate) struct Window {
    most: usize,
    limit: f64,
    /// False until the first answers were late: nothing is known of what is too much, and it grows by one with each answer.
    has_shrunk: bool,
    /// The shortest answer of this period and of the one before, and the end of this one.
    shortest: (Duration, Duration),
    period_ends: Option<Instant>,
    /// Answers in a row that were late.
    late: usize,
    /// Answers to calls that were under way when the window became smaller: they say nothing of the smaller one.
    before_it_shrank: usize,
}

impl Window {
    /// One of at most so many calls.
    pub(crate) fn new(most: usize) -> Self {
        let shortest = (Duration::MAX, Duration::MAX);
        let limit = FIRST.min(most as f64);
        Self { most, limit, has_shrunk: false, shortest, period_ends: None, late: 0, before_it_shrank: 0 }
    }

    /// So many may be under way; one at least.
    pub(crate) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// A call was answered after this time.
    pub(crate) fn note_answer(&mut self, now: Instant, took: Duration) {
        if self.period_ends.is_none_or(|end| now >= end) {
            self.shortest = (took, self.shortest.0);
            self.period_ends = Some(now + PERIOD);
        }
        self.shortest.0 = self.shortest.0.min(took);
        if self.before_it_shrank > 0 {
            self.before_it_shrank -= 1;
            return;
        }
        let shortest = self.shortest.0.min(self.shortest.1);
        if took <= shortest * LATE + SLACK {
            self.late = 0;
            let more = if self.has_shrunk { 1.0 / self.limit } else { 1.0 };
            self.limit = (self.limit + more).min(self.most as f64);
            return;
        }
        self.late += 1;
        if self.late == IN_A_ROW {
            self.shrink();
        }
    }

    /// The server has said that it has too much to do.
    pub(crate) fn note_busy(&mut self) {
        match self.before_it_shrank {
            0 => self.shrink(),
            _ => self.before_it_shrank -= 1,
        }
    }

    fn shrink(&mut self) {
        self.before_it_shrank = self.limit();
        self.late = 0;
        self.has_shrunk = true;
        self.limit = (self.limit / 2.0).max(1.0);
    }
}

/// The tasks that make such calls to one server, one after the other each: as many as the window lets.
#[derive(Debug)]
pub(crate) struct Senders {
    tasks: usize,
    pub(crate) window: Window,
}

impl Senders {
    /// None yet, and at most so many.
    pub(crate) fn new(most: usize) -> Self {
        Self { tasks: 0, window: Window::new(most) }
    }

    /// Counts the tasks that are to be started for so many calls more.
    pub(crate) fn start(&mut self, calls: usize) -> usize {
        let more = calls.min(self.window.limit().saturating_sub(self.tasks));
        self.tasks += more;
        more
    }

    /// True if a task may make another call; else it is to end.
    pub(crate) fn may_go_on(&self) -> bool {
        self.tasks <= self.window.limit()
    }

    /// A task ends.
    pub(crate) fn end_one(&mut self) {
        self.tasks -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that takes a time for each call, one after the other, behind a way of this length: what becomes of the window after so many
    /// answers, from a time on.
    fn after(window: &mut Window, now: &mut Instant, answers: usize, way: Duration, each: Duration) -> usize {
        for _ in 0..answers {
            let took = way + each * u32::try_from(window.limit()).unwrap();
            *now += took / u32::try_from(window.limit()).unwrap();
            window.note_answer(*now, took);
        }
        window.limit()
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_server_with_little_to_do_gets_all_at_once_near_and_far() {
        for way in [MS / 10, 12 * MS, 200 * MS] {
            let (mut window, mut now) = (Window::new(64), Instant::ORIGIN);
            window.note_answer(now, way);
            assert_eq!(after(&mut window, &mut now, 1000, way, MS / 100), 64, "{way:?}");
        }
    }

    #[test]
    fn a_server_that_is_late_gets_fewer_calls_and_more_again_when_it_is_not() {
        for way in [MS / 10, 12 * MS] {
            let (mut window, mut now) = (Window::new(64), Instant::ORIGIN);
            window.note_answer(now, way);
            let few = after(&mut window, &mut now, 1000, way, 2 * MS);
            let queue = 2 * MS * u32::try_from(few).unwrap();
            assert!(few < 10 && queue <= way + 3 * SLACK, "{way:?}: {few}");
            assert_eq!(after(&mut window, &mut now, 4000, way, MS / 100), 64, "{way:?}");
        }
    }

    #[test]
    fn a_lost_packet_now_and_then_changes_nothing() {
        let (mut window, now) = (Window::new(64), Instant::ORIGIN);
        (0..64).for_each(|_| window.note_answer(now, 12 * MS));
        for n in 0..1000 {
            window.note_answer(now, if n % 10 == 9 { 400 * MS } else { 12 * MS });
        }
        assert_eq!(window.limit(), 64);
    }

    #[test]
    fn a_server_that_says_that_it_is_busy_gets_half_once_for_all_that_were_under_way() {
        let mut window = Window::new(64);
        (0..64).for_each(|_| window.note_answer(Instant::ORIGIN, MS));
        assert_eq!(window.limit(), 64);
        (0..64).for_each(|_| window.note_busy());
        assert_eq!(window.limit(), 32);
        (0..1000).for_each(|_| window.note_busy());
        assert_eq!(window.limit(), 1);
    }

    #[test]
    fn a_longer_way_is_not_taken_for_a_busy_server_for_ever() {
        let (mut window, mut now) = (Window::new(64), Instant::ORIGIN);
        window.note_answer(now, MS);
        assert!(after(&mut window, &mut now, 100, 50 * MS, Duration::ZERO) < 64);
        now += 2 * PERIOD;
        assert_eq!(after(&mut window, &mut now, 4000, 50 * MS, Duration::ZERO), 64);
    }
}
