//! Readahead: how far ahead of a reader to fetch. A reader that jumps about gets nothing, one that reads on gets more each time, until
//! all the calls that the server takes at once are at work.

/// Bytes fetched ahead at the first read that may be the beginning of reading it all: a few windows, so that a reader of the first
/// line costs the server little.
const AHEAD_FIRST: u64 = 256 << 10;

/// The factor by which more is fetched ahead each time. A reader that stops has cost at most so many times what it has read; with 2, a
/// long path of 100 ms and 1 Gbit/s would be filled only after a second.
const GROWTH: u64 = 4;

/// The distance from its expected place within which a read counts as reading on: the kernel has several reads under way at once, and
/// they come in any order.
const NEAR: u64 = 1 << 20;

/// The reading of one open file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Readahead {
    /// The place behind the furthest byte that was read.
    next: u64,
    window: u64,
    /// The end of what was asked for.
    asked: u64,
}

impl Readahead {
    /// A read comes, of bytes that are not all here. How much behind it to fetch too, `most` at most.
    pub(crate) fn note(&mut self, pos: u64, length: u64, most: u64) -> u64 {
        let end = pos.saturating_add(length);
        if !self.goes_on(pos, end) {
            *self = Self { next: end, window: 0, asked: end };
            return 0;
        }
        self.next = self.next.max(end);
        self.widen(end, most)
    }

    /// A read was served by what is here. How much behind it to fetch, when half of what was ahead is used up.
    pub(crate) fn note_hit(&mut self, pos: u64, length: u64, most: u64) -> Option<u64> {
        let end = pos.saturating_add(length);
        if self.window == 0 || !self.goes_on(pos, end) {
            return None;
        }
        self.next = self.next.max(end);
        (self.asked.saturating_sub(self.next) < self.window / 2).then(|| self.widen(end, most))
    }

    fn goes_on(&self, pos: u64, end: u64) -> bool {
        pos <= self.next.saturating_add(NEAR) && end.saturating_add(NEAR) >= self.next
    }

    fn widen(&mut self, end: u64, most: u64) -> u64 {
        self.window =
            if self.window == 0 { AHEAD_FIRST } else { self.window.saturating_mul(GROWTH) }.min(most);
        self.asked = self.next.saturating_add(self.window);
        self.asked - end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 64 << 20;

    #[test]
    fn who_reads_on_gets_more_each_time() {
        let mut ahead = Readahead::default();
        let windows: Vec<u64> = (0..6).map(|n| ahead.note(n * 131_072, 131_072, MOST) >> 10).collect();
        assert_eq!(windows, [256, 1024, 4096, 16384, 65536, 65536]);
    }

    #[test]
    fn who_jumps_gets_what_he_asks_for_and_may_begin_again() {
        let mut ahead = Readahead::default();
        ahead.note(0, 4096, MOST);
        assert_eq!(ahead.note(1 << 30, 4096, MOST), 0);
        assert_eq!(ahead.note(5 << 30, 4096, MOST), 0);
        assert_eq!(ahead.note((5 << 30) + 4096, 4096, MOST), AHEAD_FIRST);
    }

    #[test]
    fn reads_in_disorder_are_reading_on() {
        let mut ahead = Readahead::default();
        ahead.note(0, 131_072, MOST);
        assert!(ahead.note(262_144, 131_072, MOST) > 0);
        assert!(ahead.note(131_072, 131_072, MOST) > 0);
    }

    #[test]
    fn a_hit_asks_for_more_when_half_of_what_was_ahead_is_used_up() {
        let mut ahead = Readahead::default();
        for n in 0..2 {
            ahead.note(n * 131_072, 131_072, MOST);
        }
        // One MiB is ahead of the second read; when less than half of it is left, four are of the one that notices it.
        let asked =
            (2..40).filter(|n| ahead.note_hit(n * 131_072, 131_072, MOST).is_some()).collect::<Vec<_>>();
        assert_eq!(asked, [6, 23]);
        // Who looks elsewhere at what is here does not end it.
        assert!(ahead.note_hit(1 << 40, 4096, MOST).is_none());
        assert!(ahead.note(40 * 131_072, 131_072, MOST) > 0);
    }
}
