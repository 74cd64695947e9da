//! Finding the largest packet that a path carries: PINGs padded to a trial size with don't-fragment set (Rx notes 8), and
//! noticing when a size that worked no longer does. Sizes are bytes of UDP payload, Rx header included. Sends nothing
//! itself: says what to probe and is told what came of it.

use crate::ids::Serial;
use crate::packet::{BASE_PACKET_LEN, MIN_PACKET_LEN};
use crate::time::Instant;
use std::time::Duration;

/// Sizes worth asking for by name: Ethernet over IPv4 and IPv6 without and with jumbo frames, and the protocol's limit;
/// less 28 for IPv4 with UDP, 48 for IPv6.
const STEPS: [usize; 5] = [1452, 1472, 8952, 8972, 16384];

/// A step this small is not worth a probe.
const ENOUGH: usize = 64;

/// Lost probes after which a size counts as too large.
const TRIES: u8 = 2;

/// The time until a finished search is tried again: routes change (RFC 8899 says 600 s).
const AGAIN: Duration = Duration::from_secs(600);

/// Points after which the path counts as a black hole for packets of a size: one for each round trip in which such packets
/// are lost while later ones arrive, two for each timeout, in which silence may have many reasons; none of that size having
/// arrived meanwhile.
const BLACK_HOLE: u8 = 3;
const LOSS: u8 = 1;
const SILENCE: u8 = 2;

/// The time until the search is tried again if it was silence that ended at the base size.
const AGAIN_AFTER_SILENCE: Duration = Duration::from_secs(30);

/// A packet counts as one of that size if it is at most this much shorter: security classes pad, last packets differ.
const NEARLY_FULL: usize = 64;

/// The search on one path.
#[derive(Clone, Debug)]
pub(crate) struct MtuSearch {
    current: usize,
    /// The smallest size known not to pass, or one above the limit.
    too_large: usize,
    limit: usize,
    probe: Option<Probe>,
    /// Points towards a black hole for packets of `suspect` bytes and more, and when the last one was noticed.
    points: u8,
    suspect: usize,
    lost_at: Instant,
    /// The largest packet that ever arrived whole.
    passed: usize,
    /// Packets of the base size and less may be fragmented, since they do not pass whole.
    fragments: bool,
    next_search: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    len: usize,
    serial: Serial,
    sent: Instant,
    tries: u8,
}

impl MtuSearch {
    pub(crate) fn new(limit: usize) -> Self {
        let current = BASE_PACKET_LEN.min(limit);
        Self {
            current,
            too_large: limit + 1,
            limit,
            probe: None,
            points: 0,
            suspect: 0,
            lost_at: Instant::ORIGIN,
            passed: 0,
            fragments: false,
            next_search: Instant::ORIGIN,
        }
    }

    /// True if the network must not fragment a packet of this size. Below the base size stock peers let it always; we do
    /// once such packets have turned out not to pass.
    pub(crate) const fn keeps_whole(&self, len: usize) -> bool {
        len > BASE_PACKET_LEN || !self.fragments
    }

    /// The size known to pass.
    pub(crate) const fn current(&self) -> usize {
        self.current
    }

    /// Returns the packet size to probe for now, if any. `peer_limit` is what the peer says it takes.
    pub(crate) fn poll_probe(&mut self, now: Instant, peer_limit: usize) -> Option<usize> {
        if self.probe.is_some_and(|p| p.serial != Serial::NONE) || now < self.next_search {
            return None;
        }
        let ceiling = self.too_large.min(peer_limit + 1).min(self.limit + 1);
        let len = self.probe.map(|p| p.len).filter(|&len| len < ceiling).or_else(|| self.next_len(ceiling));
        let Some(len) = len else {
            self.probe = None;
            self.next_search = now + AGAIN;
            self.too_large = self.limit + 1;
            return None;
        };
        let tries = self.probe.filter(|p| p.len == len).map_or(0, |p| p.tries);
        self.probe = Some(Probe { len, serial: Serial::NONE, sent: now, tries });
        Some(len)
    }

    fn next_len(&self, ceiling: usize) -> Option<usize> {
        if let Some(&step) = STEPS.iter().find(|&&s| s > self.current && s < ceiling) {
            return Some(step);
        }
        (ceiling > self.current + ENOUGH).then(|| self.current.midpoint(ceiling))
    }

    /// The probe went out with this serial.
    pub(crate) fn handle_sent(&mut self, now: Instant, serial: Serial) {
        if let Some(probe) = &mut self.probe {
            (probe.serial, probe.sent, probe.tries) = (serial, now, probe.tries + 1);
        }
    }

    /// The peer answered a ping; returns the new size if it was the probe.
    pub(crate) fn handle_response(&mut self, serial: Serial) -> Option<usize> {
        let probe = self.probe.filter(|p| p.serial == serial)?;
        self.probe = None;
        self.points = 0;
        self.current = probe.len.max(self.current);
        Some(self.current)
    }

    /// The kernel said that a packet of this size was too large. Returns the new size if it shrank.
    pub(crate) fn handle_too_large(&mut self, len: usize) -> Option<usize> {
        if let Some(probe) = self.probe.filter(|p| p.len >= len) {
            self.too_large = self.too_large.min(probe.len);
            self.probe = None;
        }
        if len <= BASE_PACKET_LEN {
            self.fragments = true;
            return None;
        }
        if len <= self.current { self.handle_path_limit(BASE_PACKET_LEN) } else { None }
    }

    /// A router named the largest packet that passes; returns the new size if it shrank.
    pub(crate) fn handle_path_limit(&mut self, len: usize) -> Option<usize> {
        let len = len.clamp(MIN_PACKET_LEN, self.limit);
        self.too_large = self.too_large.min(len + 1);
        self.probe = self.probe.filter(|p| p.len <= len);
        (len < self.current).then(|| {
            self.current = len;
            len
        })
    }

    /// The time when the probe under way counts as lost.
    pub(crate) fn deadline(&self, timeout: Duration) -> Option<Instant> {
        self.probe.filter(|p| p.serial != Serial::NONE).map(|p| p.sent + timeout)
    }

    /// The probe's time ran out.
    pub(crate) fn handle_probe_timeout(&mut self) {
        let Some(probe) = &mut self.probe else { return };
        if probe.tries >= TRIES {
            self.too_large = self.too_large.min(probe.len);
            self.probe = None;
        } else {
            probe.serial = Serial::NONE;
        }
    }

    /// A packet of this size was acknowledged: it passes.
    pub(crate) fn handle_delivered(&mut self, len: usize) {
        if len >= self.suspect {
            self.points = 0;
        }
        if !self.fragments {
            self.passed = self.passed.max(len);
        }
    }

    /// Packets of up to this size were lost, while something sent later arrived; returns the new size if that makes a black
    /// hole.
    pub(crate) fn handle_lost(
        &mut self,
        now: Instant,
        largest: usize,
        round_trip: Duration,
    ) -> Option<usize> {
        if self.points > 0 && now.since(self.lost_at) < round_trip {
            return None;
        }
        self.suspect(now, largest, LOSS)
    }

    /// A call waited in vain with packets of up to this size under way; returns the new size if that makes a black hole.
    pub(crate) fn handle_timeout(&mut self, now: Instant, largest: usize) -> Option<usize> {
        self.suspect(now, largest, SILENCE)
    }

    fn suspect(&mut self, now: Instant, largest: usize, points: u8) -> Option<usize> {
        if largest <= MIN_PACKET_LEN {
            return None; // passes everywhere: its loss shows nothing
        }
        let suspect = largest.min(self.current) - NEARLY_FULL;
        self.suspect = if self.points == 0 { suspect } else { suspect.max(self.suspect) };
        (self.points, self.lost_at) = (self.points + points, now);
        // Where no such packet ever came through, the first silence is enough: until packets of the base size may be fragmented, which
        // costs nothing, a call over a narrow path stands still.
        let is_new = points == SILENCE && self.current <= BASE_PACKET_LEN && self.passed < suspect;
        if self.points < BLACK_HOLE && !is_new {
            return None;
        }
        (self.points, self.probe) = (0, None);
        if self.current <= BASE_PACKET_LEN || self.suspect + NEARLY_FULL <= BASE_PACKET_LEN {
            self.fragments = true;
            return None;
        }
        if points == LOSS {
            self.too_large = self.current;
            self.next_search = now + AGAIN;
        } else {
            self.next_search = now + AGAIN_AFTER_SILENCE;
        }
        self.current = BASE_PACKET_LEN;
        Some(BASE_PACKET_LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the search over a path that carries `path` bytes; returns what it found and the probes it took.
    fn search(path: usize, limit: usize) -> (usize, usize) {
        let (mut mtu, mut probes, now) = (MtuSearch::new(limit), 0, Instant::ORIGIN);
        while let Some(len) = mtu.poll_probe(now, 16384) {
            probes += 1;
            mtu.handle_sent(now, Serial(probes as u32));
            if len <= path {
                mtu.handle_response(Serial(probes as u32)).map_or((), drop)
            } else {
                mtu.handle_probe_timeout()
            }
            assert!(probes < 100);
        }
        (mtu.current(), probes)
    }

    #[test]
    fn ethernet_is_found_exactly_and_odd_paths_nearly() {
        assert_eq!(search(1472, 16384).0, 1472);
        assert_eq!(search(8972, 16384).0, 8972);
        assert_eq!(search(16384, 16384).0, 16384);
        assert!((5000 - ENOUGH..=5000).contains(&search(5000, 16384).0));
        assert!(search(1472, 16384).1 < 30);
    }

    #[test]
    fn nothing_is_searched_at_the_base_size() {
        assert_eq!(search(1472, 1444), (1444, 0));
    }

    #[test]
    fn a_black_hole_falls_back_to_the_base() {
        let mut mtu = MtuSearch::new(16384);
        mtu.poll_probe(Instant::ORIGIN, 16384);
        mtu.handle_sent(Instant::ORIGIN, Serial(1));
        assert_eq!(mtu.handle_response(Serial(1)), Some(1452));
        let lose = |mtu: &mut MtuSearch, ms: u64, len| {
            mtu.handle_lost(Instant::ORIGIN + Duration::from_millis(ms), len, Duration::from_millis(10))
        };
        let now = Instant::ORIGIN + Duration::from_secs(1);
        assert_eq!([1, 2, 3, 12].map(|ms| lose(&mut mtu, ms, 1452)), [None; 4], "once a round trip");
        mtu.handle_delivered(1452);
        assert_eq!([30, 40, 45, 50].map(|ms| lose(&mut mtu, ms, 1452)), [None, None, None, Some(1444)]);
        assert_eq!(mtu.poll_probe(now, 16384), None);
        assert!(mtu.keeps_whole(1444));
        assert_eq!([60, 70, 80].map(|ms| lose(&mut mtu, ms, 1444)), [None; 3]);
        assert!(
            !mtu.keeps_whole(1444) && mtu.keeps_whole(1472),
            "the path is narrower than any peer's packets"
        );
    }
}
