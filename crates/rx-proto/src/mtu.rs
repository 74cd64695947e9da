//! Finding the largest packet that a path carries: PINGs padded to a trial size with don't-fragment set (Rx notes 8), and
//! noticing when a size that worked no longer does. Sizes are bytes of UDP payload, Rx header included. Sends nothing
//! itself: says what to probe and is told what came of it.
//!
//! The search begins at the size that all peers take, and not below it, so good paths lose nothing. If that does not pass, or a larger size no
//! longer does, the size falls to what passes everywhere, and the search begins anew from there. Calls go on meanwhile: what is under way in
//! larger packets goes again in pieces (see `pieces`). Peers that know no pieces get packets that the network may fragment.

use crate::ids::Serial;
use crate::packet::{BASE_PACKET_LEN, MIN_PACKET_LEN};
use crate::time::Instant;
use std::time::Duration;

/// Sizes worth asking for by name: the least of IPv6, WireGuard's 1420, the base size, Ethernet over IPv6 and IPv4 without and
/// with jumbo frames, and the protocol's limit; less 28 for IPv4 with UDP, 48 for IPv6.
const STEPS: [usize; 8] = [1232, 1372, BASE_PACKET_LEN, 1452, 1472, 8952, 8972, 16384];

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
    /// The largest packet that arrived whole since the size last fell.
    passed: usize,
    /// Packets of the base size and less may be fragmented, since they do not pass whole.
    fragments: bool,
    /// The size from which it fell last, and when.
    fell: Option<(usize, Instant)>,
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
            fell: None,
            next_search: Instant::ORIGIN,
        }
    }

    /// The peer turns out to take packets in pieces. Returns the new size if it shrank: larger packets had to be fragmented until now.
    pub(crate) fn handle_splits(&mut self, now: Instant) -> Option<usize> {
        if std::mem::take(&mut self.fragments) { self.fall(now, false) } else { None }
    }

    /// True if the network must not fragment a packet of this size. Below the base size stock peers let it always; we do
    /// once such packets have turned out not to pass.
    pub(crate) const fn keeps_whole(&self, len: usize) -> bool {
        len > BASE_PACKET_LEN || !self.fragments
    }

    /// The size to send.
    pub(crate) const fn current(&self) -> usize {
        self.current
    }

    /// True if it is smaller than what all peers take, so that a larger one is worth looking for in any case.
    pub(crate) const fn is_narrow(&self) -> bool {
        self.current < BASE_PACKET_LEN
    }

    /// True if nobody knows yet whether packets of the size that is sent pass.
    pub(crate) const fn is_unproven(&self) -> bool {
        self.passed < self.current
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
        if self.too_large <= self.limit && self.is_unproven() {
            return Some(self.current); // a larger one was lost: perhaps this one does not pass either
        }
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
        self.passed = probe.len.max(self.passed);
        self.current = probe.len.max(self.current);
        Some(self.current)
    }

    /// The kernel said that a packet of this size was too large. Returns the new size if it shrank. `splits` here and below if the peer takes
    /// packets in pieces.
    pub(crate) fn handle_too_large(&mut self, now: Instant, len: usize, splits: bool) -> Option<usize> {
        if let Some(probe) = self.probe.filter(|p| p.len >= len) {
            self.too_large = self.too_large.min(probe.len);
            self.probe = None;
        }
        if len > self.current {
            return None;
        }
        if splits {
            self.too_large = self.too_large.min(len);
            return self.fall(now, false);
        }
        if len <= BASE_PACKET_LEN {
            self.fragments = true;
            return None;
        }
        self.handle_path_limit(BASE_PACKET_LEN)
    }

    /// A router named the largest packet that passes; returns the new size if it shrank.
    pub(crate) fn handle_path_limit(&mut self, len: usize) -> Option<usize> {
        let len = len.clamp(MIN_PACKET_LEN, self.limit);
        self.too_large = self.too_large.min(len + 1);
        self.probe = self.probe.filter(|p| p.len <= len);
        self.passed = self.passed.min(len);
        (len < self.current).then(|| {
            self.current = len;
            len
        })
    }

    /// The time when the probe under way counts as lost.
    pub(crate) fn deadline(&self, timeout: Duration) -> Option<Instant> {
        self.probe.filter(|p| p.serial != Serial::NONE).map(|p| p.sent + timeout)
    }

    /// The probe's time ran out. Returns the new size if it shrank.
    pub(crate) fn handle_probe_timeout(&mut self, now: Instant) -> Option<usize> {
        let probe = self.probe.as_mut()?;
        if probe.tries < TRIES {
            probe.serial = Serial::NONE;
            return None;
        }
        self.too_large = self.too_large.min(probe.len);
        let is_of_size_sent = probe.len <= self.current;
        self.probe = None;
        if is_of_size_sent { self.fall(now, false) } else { None }
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
        splits: bool,
    ) -> Option<usize> {
        if self.points > 0 && now.since(self.lost_at) < round_trip {
            return None;
        }
        self.suspect(now, largest, LOSS, splits)
    }

    /// A call waited in vain with packets of up to this size under way; returns the new size if that makes a black hole.
    pub(crate) fn handle_timeout(&mut self, now: Instant, largest: usize, splits: bool) -> Option<usize> {
        self.suspect(now, largest, SILENCE, splits)
    }

    fn suspect(&mut self, now: Instant, largest: usize, points: u8, splits: bool) -> Option<usize> {
        if largest <= MIN_PACKET_LEN || largest > self.current {
            // That passes everywhere, so its loss shows nothing; or it was sent before the size fell.
            return None;
        }
        let suspect = largest - NEARLY_FULL;
        self.suspect = if self.points == 0 { suspect } else { suspect.max(self.suspect) };
        (self.points, self.lost_at) = (self.points + points, now);
        // Where no such packet ever came through, the first silence is enough: a call over a narrow path stands still until then.
        let is_new = points == SILENCE && self.passed < suspect;
        if self.points < BLACK_HOLE && !is_new {
            return None;
        }
        (self.points, self.probe) = (0, None);
        // Fragments are tried first with a peer that knows no pieces: what is under way cannot get there in another way. If they are
        // lost too while smaller packets arrive, later calls at least are to get through.
        if splits || self.current > BASE_PACKET_LEN || (self.fragments && points == LOSS) {
            return self.fall(now, points == LOSS);
        }
        self.fragments = true;
        None
    }

    /// The size that is sent does not pass: the search begins anew from what passes everywhere. `is_certain` if smaller packets arrived.
    fn fall(&mut self, now: Instant, is_certain: bool) -> Option<usize> {
        let from = self.current;
        if from <= MIN_PACKET_LEN {
            return None;
        }
        // Where probes pass and data of the same size do not, the search would lead back to that size again and again.
        if self.fell.is_some_and(|(size, at)| is_certain && from >= size && now.since(at) < AGAIN) {
            self.too_large = self.too_large.min(from);
        } else if is_certain {
            self.fell = Some((from, now));
        }
        (self.points, self.probe, self.next_search) = (0, None, now);
        (self.current, self.passed) = (MIN_PACKET_LEN, MIN_PACKET_LEN);
        Some(self.current)
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
                mtu.handle_probe_timeout(now).map_or((), drop)
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

    fn lose(mtu: &mut MtuSearch, ms: u64, len: usize, splits: bool) -> Option<usize> {
        mtu.handle_lost(Instant::ORIGIN + Duration::from_millis(ms), len, Duration::from_millis(10), splits)
    }

    #[test]
    fn a_black_hole_falls_back_to_what_passes_everywhere() {
        let mut mtu = MtuSearch::new(16384);
        mtu.poll_probe(Instant::ORIGIN, 16384);
        mtu.handle_sent(Instant::ORIGIN, Serial(1));
        assert_eq!(mtu.handle_response(Serial(1)), Some(1452));
        assert_eq!([1, 2, 3, 12].map(|ms| lose(&mut mtu, ms, 1452, true)), [None; 4], "once a round trip");
        mtu.handle_delivered(1452);
        assert_eq!([30, 40, 45, 50].map(|ms| lose(&mut mtu, ms, 1452, true)), [None, None, None, Some(520)]);
        assert_eq!([60, 70, 80].map(|ms| lose(&mut mtu, ms, 1452, true)), [None; 3], "sent before it fell");
        assert_eq!(mtu.poll_probe(Instant::ORIGIN + Duration::from_secs(1), 16384), Some(1232));
        assert!(mtu.keeps_whole(1444));
    }

    #[test]
    fn a_peer_that_knows_no_pieces_gets_fragments_first_and_small_packets_if_those_are_lost_too() {
        let mut mtu = MtuSearch::new(1444);
        assert_eq!([10, 20, 30].map(|ms| lose(&mut mtu, ms, 1444, false)), [None; 3]);
        assert!(!mtu.keeps_whole(1444) && mtu.keeps_whole(1472));
        assert_eq!([40, 50, 60].map(|ms| lose(&mut mtu, ms, 1444, false)), [None, None, Some(520)]);
    }

    #[test]
    fn a_size_whose_probes_pass_and_whose_data_do_not_is_left_for_a_while() {
        let mut mtu = MtuSearch::new(16384);
        for (ms, expected) in [(0, 1444..=1444), (1000, 1372..=1443)] {
            assert_eq!(
                [10, 20, 30].map(|more| lose(&mut mtu, ms + more, 1444, true)),
                [None, None, Some(520)]
            );
            let now = Instant::ORIGIN + Duration::from_millis(ms + 40);
            while let Some(len) = mtu.poll_probe(now, BASE_PACKET_LEN) {
                mtu.handle_sent(now, Serial(len as u32));
                mtu.handle_response(Serial(len as u32));
            }
            assert!(expected.contains(&mtu.current()), "{}", mtu.current());
        }
    }
}
