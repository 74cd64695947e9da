//! Finding the largest packet that a path carries: PINGs padded to a trial size with don't-fragment set (Rx notes 8), and
//! noticing when a size that worked no longer does. Sizes are bytes of UDP payload, Rx header included. Sends nothing
//! itself: says what to probe and is told what came of it.
//!
//! The search begins at the size that all peers take, and not below it, so good paths lose nothing. Loss and silence alone prove nothing: the
//! peer may stand still, or the line may be full. They raise a doubt. While it lasts, pings go in pairs, one of the size in use and one that
//! passes everywhere. If only the small ones are answered, the size falls to theirs, and the search begins anew from there. Calls go on
//! meanwhile: what goes again goes in pieces (see `pieces`), in doubt and if it was cut when larger packets passed. Peers that know no pieces get packets that the network
//! may fragment first.

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

/// Round trips in a row in which packets are lost and no large one arrives, after which it is doubtful whether large ones pass.
const LOSSES: u8 = 3;

/// Small pings that are answered, while no large packet gets through, and which prove that large ones do not pass. Where one packet in ten is
/// lost in each direction, this happens by chance in one doubt of 60,000.
const PROOFS: u8 = 6;

/// The least time between two pairs of pings, so that what fills a buffer for a moment does not swallow all large ones.
const PAIR_EVERY: Duration = Duration::from_millis(15);

/// A packet counts as one of the size in use if it is at most this much shorter: security classes pad, last packets differ.
const NEARLY_FULL: usize = 64;

/// The search on one path.
#[derive(Clone, Debug)]
pub(crate) struct MtuSearch {
    current: usize,
    /// The smallest size known not to pass, or one above the limit.
    too_large: usize,
    limit: usize,
    probe: Option<Probe>,
    /// Round trips with losses, and when the last one was noticed.
    losses: u8,
    lost_at: Instant,
    doubt: Option<Doubt>,
    /// The largest packet that arrived since the size last fell or was in doubt.
    passed: u16,
    /// Packets of the base size and less may be fragmented, since they do not seem to pass whole.
    fragments: bool,
    next_search: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    len: usize,
    /// When it went out, if it has.
    sent: Option<Instant>,
    tries: u8,
}

/// The question whether packets of the size in use pass.
#[derive(Clone, Copy, Debug, Default)]
struct Doubt {
    /// When the last pair of pings went out.
    asked: Option<Instant>,
    /// Pairs since a small one was answered.
    unanswered: u32,
    /// The small ones that were answered.
    proofs: u8,
}

impl MtuSearch {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            current: BASE_PACKET_LEN.min(limit),
            too_large: limit + 1,
            limit,
            probe: None,
            losses: 0,
            lost_at: Instant::ORIGIN,
            doubt: None,
            passed: 0,
            fragments: false,
            next_search: Instant::ORIGIN,
        }
    }

    /// The peer turns out to take packets in pieces, which gets them there more surely.
    pub(crate) const fn forbid_fragments(&mut self) {
        self.fragments = false;
    }

    /// True if the network must not fragment a packet of this size. Below the base size stock peers let it always; we do
    /// once such packets do not seem to pass.
    pub(crate) const fn keeps_whole(&self, len: usize) -> bool {
        len > BASE_PACKET_LEN || !self.fragments
    }

    /// The same for a ping padded to this size: it shows whether the data pass as they are sent, or larger ones would pass whole.
    pub(crate) const fn probes_whole(&self, len: usize) -> bool {
        len > self.current || self.keeps_whole(len)
    }

    /// The size to send.
    pub(crate) const fn current(&self) -> usize {
        self.current
    }

    /// True if it is smaller than what all peers take, so that a larger one is worth looking for in any case.
    pub(crate) const fn is_narrow(&self) -> bool {
        self.current < BASE_PACKET_LEN
    }

    /// True while nobody knows whether packets of the size in use pass, and there is reason to ask.
    pub(crate) const fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// True if nobody knows whether packets of the size that is sent pass.
    pub(crate) const fn is_unproven(&self) -> bool {
        self.passed as usize + NEARLY_FULL < self.current
    }

    /// Returns the packet size to probe for now, if any. `peer_limit` is what the peer says it takes.
    pub(crate) fn poll_probe(&mut self, now: Instant, peer_limit: usize) -> Option<usize> {
        if self.doubt.is_some() || self.probe.is_some_and(|p| p.sent.is_some()) || now < self.next_search {
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
        self.probe = Some(Probe { len, sent: Some(now), tries: tries + 1 });
        Some(len)
    }

    fn next_len(&self, ceiling: usize) -> Option<usize> {
        if let Some(&step) = STEPS.iter().find(|&&s| s > self.current && s < ceiling) {
            return Some(step);
        }
        (ceiling > self.current + ENOUGH).then(|| self.current.midpoint(ceiling))
    }

    /// Returns the size of the large ping, if a pair of pings is due. `timeout` is the time within which a ping is usually answered.
    pub(crate) fn poll_doubt(&mut self, now: Instant, timeout: Duration) -> Option<usize> {
        let doubt = self.doubt.as_mut()?;
        let wait = match doubt.unanswered {
            0 => PAIR_EVERY,
            pairs => timeout * 2u32.saturating_pow(pairs - 1),
        };
        if doubt.asked.is_some_and(|at| now.since(at) < wait) {
            return None;
        }
        (doubt.asked, doubt.unanswered) = (Some(now), (doubt.unanswered + 1).min(6));
        Some(self.current)
    }

    /// The peer answered a ping padded to this size; returns the new size if that changes it.
    pub(crate) fn handle_response(&mut self, len: usize) -> Option<usize> {
        if len == MIN_PACKET_LEN {
            let doubt = self.doubt.as_mut()?;
            (doubt.proofs, doubt.unanswered) = (doubt.proofs + 1, 0);
            return if doubt.proofs >= PROOFS { self.fall() } else { None };
        }
        self.handle_delivered(len);
        self.doubt = self.doubt.filter(|_| len < self.current);
        self.probe.filter(|p| p.len == len)?;
        self.probe = None;
        self.current = len.max(self.current);
        Some(self.current)
    }

    /// The kernel said that a packet of this size was too large. Returns the new size if it shrank. `splits` here and below if the peer takes
    /// packets in pieces.
    pub(crate) fn handle_too_large(&mut self, len: usize, splits: bool) -> Option<usize> {
        if let Some(probe) = self.probe.filter(|p| p.len >= len) {
            self.too_large = self.too_large.min(probe.len);
            self.probe = None;
        }
        if len > self.current {
            return None;
        }
        if splits {
            self.too_large = self.too_large.min(len);
            return self.fall();
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
        (len < self.current).then(|| {
            self.current = len;
            len
        })
    }

    /// The time when the probe under way counts as lost.
    pub(crate) fn deadline(&self, timeout: Duration) -> Option<Instant> {
        self.probe?.sent.map(|sent| sent + timeout)
    }

    /// The probe's time ran out.
    pub(crate) fn handle_probe_timeout(&mut self) {
        let Some(probe) = &mut self.probe else { return };
        if probe.tries >= TRIES {
            self.too_large = self.too_large.min(probe.len);
            self.probe = None;
        } else {
            probe.sent = None;
        }
    }

    /// A packet of this size was acknowledged: it passes, whole or in pieces of the size in use.
    pub(crate) fn handle_delivered(&mut self, len: usize) {
        self.passed = self.passed.max(u16::try_from(len).unwrap_or(u16::MAX));
        if len + NEARLY_FULL >= self.current {
            self.losses = 0;
        }
    }

    /// Packets of up to this size were lost, while something sent later arrived.
    pub(crate) fn handle_lost(&mut self, now: Instant, largest: usize, round_trip: Duration, splits: bool) {
        if largest <= MIN_PACKET_LEN || (self.losses > 0 && now.since(self.lost_at) < round_trip) {
            return; // the small pass everywhere, so their loss shows nothing
        }
        (self.losses, self.lost_at) = (self.losses + 1, now);
        if self.losses >= LOSSES {
            self.suspect(splits);
        }
    }

    /// A call waited in vain with packets of up to this size under way.
    pub(crate) fn handle_timeout(&mut self, largest: usize, splits: bool) {
        if largest > MIN_PACKET_LEN {
            self.suspect(splits);
        }
    }

    fn suspect(&mut self, splits: bool) {
        if self.current <= MIN_PACKET_LEN {
            return;
        }
        (self.losses, self.passed, self.probe) = (0, 0, None);
        // Fragments are tried first with a peer that knows no pieces: what is under way cannot get there in another way.
        if splits || self.fragments || self.current > BASE_PACKET_LEN {
            self.doubt.get_or_insert_default();
        } else {
            self.fragments = true;
        }
    }

    /// The size that is sent does not pass: the search begins anew from what passes everywhere.
    fn fall(&mut self) -> Option<usize> {
        (self.losses, self.doubt, self.probe, self.next_search) = (0, None, None, Instant::ORIGIN);
        (self.current, self.passed, self.fragments) = (MIN_PACKET_LEN, MIN_PACKET_LEN as u16, false);
        Some(self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(20);

    fn at(ms: u64) -> Instant {
        Instant::ORIGIN + Duration::from_millis(ms)
    }

    /// Runs the search over a path that carries `path` bytes; returns what it found and the probes it took.
    fn search(mtu: &mut MtuSearch, path: usize) -> (usize, usize) {
        let (mut probes, now) = (0, at(0));
        while let Some(len) = mtu.poll_probe(now, 16384) {
            probes += 1;
            if len <= path {
                mtu.handle_response(len);
            } else {
                mtu.handle_probe_timeout();
            }
            assert!(probes < 100);
        }
        (mtu.current(), probes)
    }

    #[test]
    fn ethernet_is_found_exactly_and_odd_paths_nearly() {
        let found = |path, limit| search(&mut MtuSearch::new(limit), path);
        assert_eq!(found(1472, 16384).0, 1472);
        assert_eq!(found(8972, 16384).0, 8972);
        assert_eq!(found(16384, 16384).0, 16384);
        assert!((5000 - ENOUGH..=5000).contains(&found(5000, 16384).0));
        assert!(found(1472, 16384).1 < 30);
        assert_eq!(found(1472, 1444), (1444, 0), "nothing is searched at the base size");
    }

    /// Loses packets in rounds until the size is in doubt.
    fn lose(mtu: &mut MtuSearch, splits: bool) {
        (1..=3).for_each(|round| mtu.handle_lost(at(20 * round), 1444, ROUND_TRIP, splits));
    }

    #[test]
    fn small_pings_that_alone_are_answered_prove_a_black_hole() {
        let mut mtu = MtuSearch::new(16384);
        assert_eq!(search(&mut mtu, 8972).0, 8972);
        [1, 2, 3, 12].into_iter().for_each(|ms| mtu.handle_lost(at(ms), 8972, ROUND_TRIP, true));
        assert_eq!(mtu.poll_doubt(at(30), ROUND_TRIP), None, "once a round trip");
        lose(&mut mtu, true);
        assert_eq!(
            [100, 110, 120].map(|ms| mtu.poll_doubt(at(ms), ROUND_TRIP)),
            [Some(8972), None, Some(8972)]
        );
        assert_eq!([520; 5].map(|len| mtu.handle_response(len)), [None; 5]);
        assert_eq!(mtu.handle_response(520), Some(520));
        assert_eq!(mtu.poll_doubt(at(200), ROUND_TRIP), None);
        assert!(search(&mut mtu, 1300).0 > 1300 - ENOUGH);
    }

    #[test]
    fn neither_silence_nor_loss_of_all_sizes_makes_packets_smaller() {
        let mut mtu = MtuSearch::new(16384);
        for ms in 0..1000 {
            mtu.handle_timeout(1444, true);
            mtu.handle_lost(at(ms), 1444, ROUND_TRIP, true);
            mtu.poll_doubt(at(ms), ROUND_TRIP);
        }
        assert_eq!([520; 5].map(|len| mtu.handle_response(len)), [None; 5]);
        mtu.handle_response(1444);
        assert_eq!([520; 9].map(|len| mtu.handle_response(len)), [None; 9], "the large one has passed");
        assert_eq!(mtu.current(), 1444);
    }

    #[test]
    fn a_peer_that_knows_no_pieces_gets_fragments_first_and_small_packets_if_those_are_lost_too() {
        let mut mtu = MtuSearch::new(1444);
        lose(&mut mtu, false);
        assert!(!mtu.keeps_whole(1444) && mtu.keeps_whole(1472));
        assert_eq!(mtu.poll_doubt(at(100), ROUND_TRIP), None);
        lose(&mut mtu, false);
        assert_eq!(mtu.poll_doubt(at(100), ROUND_TRIP), Some(1444));
        assert!(!mtu.probes_whole(1444), "asked in fragments too");
        assert_eq!((0..PROOFS).filter_map(|_| mtu.handle_response(520)).collect::<Vec<_>>(), [520]);
        assert_eq!((mtu.current(), mtu.keeps_whole(1444)), (520, true));
    }
}
