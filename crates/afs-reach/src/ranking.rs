//! The distance of servers, as a rank: of the servers that have a volume, the one with the lowest is asked first. It is
//! what the administrator has set, else what the round trip says that was measured, else a guess by the place of the
//! address.
//!
//! [`Distance`] decides this for one address from what it is told. Who measures is left to `liveness` and `remote`, and
//! whether the server answers to `table`.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Ranks of OpenAFS by place (Client notes 4), and ours by round trip on the same scale.
mod rank {
    /// This machine. Nothing that is measured makes another one better.
    pub(super) const SAME_HOST: u32 = 5000;
    /// The same network of 256 addresses.
    pub(super) const SAME_SUBNET: u32 = 20_000;
    /// The same network of 2^24 addresses.
    pub(super) const SAME_NET: u32 = 30_000;
    /// Anywhere else.
    pub(super) const FAR: u32 = 40_000;
    /// A round trip of less than a millisecond.
    pub(super) const MEASURED: u32 = 10_000;
    /// The rank that each whole millisecond adds: with 100 ms, a server is as far as one in the same subnet is guessed
    /// to be.
    pub(super) const PER_MILLISECOND: u32 = 100;
    /// The most that a round trip adds, so that a rank keeps within the 16 bits that OpenAFS has for it.
    pub(super) const BY_ROUND_TRIP_MAX: u32 = 50_000;
}

/// A round trip counts as another one if it differs from the one that counts by a quarter of it, and by this. Below, a
/// choice between two servers that are about as far would go back and forth, and each change costs what is known of the
/// path.
const CHANGE_MIN: Duration = Duration::from_millis(1);

/// The distance of an address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Distance {
    by_place: u32,
    set: Option<u32>,
    place: u16,
    /// The round trip that counts.
    rtt: Option<Duration>,
    salt: u64,
}

/// The key by which addresses are sorted; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    place: u16,
    rank: u32,
    /// Among equals each client has an order of its own, so that not all of them ask the same server.
    salt: u64,
}

impl Order {
    /// The place behind all others.
    pub(crate) const LAST: Self = Self { place: u16::MAX, rank: u32::MAX, salt: u64::MAX };
}

impl Distance {
    /// Makes the distance of an address from its place alone. The seed is the client's.
    pub(crate) fn new(socket: SocketAddr, seed: u64) -> Self {
        Self::at_place(by_place(own_address(socket), socket.ip()), salt_of(socket, seed))
    }

    fn at_place(by_place: u32, salt: u64) -> Self {
        Self { by_place, set: None, place: 0, rtt: None, salt }
    }

    /// The administrator has set its rank; nothing else counts from now on.
    pub(crate) fn set(&mut self, rank: u32) {
        self.set = Some(rank);
    }

    /// The cell's administrator wishes servers to be asked in this order, the least first, however far they are. What this machine's
    /// administrator sets counts more.
    pub(crate) fn set_place(&mut self, place: u16) {
        self.place = place;
    }

    /// The smallest round trip of late, as measured just now.
    pub(crate) fn note_rtt(&mut self, measured: Duration) {
        let is_other = self.rtt.is_none_or(|rtt| measured.abs_diff(rtt) > (rtt / 4).max(CHANGE_MIN));
        if is_other {
            self.rtt = Some(measured);
        }
    }

    /// The round trip that counts, if one was measured.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// The rank; less is better.
    pub(crate) fn rank(&self) -> u32 {
        match (self.set, self.rtt) {
            (Some(set), _) => set,
            (None, Some(rtt)) if self.by_place != rank::SAME_HOST => {
                let milliseconds = u32::try_from(rtt.as_millis()).unwrap_or(u32::MAX);
                let far = milliseconds.saturating_mul(rank::PER_MILLISECOND).min(rank::BY_ROUND_TRIP_MAX);
                rank::MEASURED + far
            }
            (None, _) => self.by_place,
        }
    }

    /// The key by which it is sorted.
    pub(crate) fn order(&self) -> Order {
        let place = if self.set.is_some() { 0 } else { self.place };
        Order { place, rank: self.rank(), salt: self.salt }
    }
}

/// Returns the address of ours from which we would call another one: nothing is sent for that.
fn own_address(socket: SocketAddr) -> Option<IpAddr> {
    let probe = UdpSocket::bind("0.0.0.0:0").ok()?;
    probe.connect(socket).ok()?;
    probe.local_addr().ok().map(|own| own.ip())
}

fn by_place(own: Option<IpAddr>, there: IpAddr) -> u32 {
    match (own, there) {
        (Some(own), there) if own == there || there.is_loopback() => rank::SAME_HOST,
        (Some(IpAddr::V4(own)), IpAddr::V4(there)) => {
            match (own.to_bits() ^ there.to_bits()).leading_zeros() {
                24.. => rank::SAME_SUBNET,
                8.. => rank::SAME_NET,
                _ => rank::FAR,
            }
        }
        _ => rank::FAR,
    }
}

/// A number for an address that is another one at each client.
fn salt_of(socket: SocketAddr, seed: u64) -> u64 {
    let address = match socket.ip() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() % u128::from(u64::MAX)) as u64,
    };
    let mut mixed = seed ^ (address << 16 | u64::from(socket.port()));
    // The steps of SplitMix64: each bit of the input reaches each of the output.
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
    }
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn measured(by_place: u32, rtt: Duration) -> Distance {
        let mut distance = Distance::at_place(by_place, 0);
        distance.note_rtt(rtt);
        distance
    }

    #[test]
    fn a_place_counts_more_than_a_round_trip_and_a_rank_that_is_set_more_than_a_place() {
        let (mut first, mut second) = (measured(rank::FAR, ms(80)), measured(rank::FAR, ms(1)));
        first.set_place(0);
        second.set_place(1);
        assert!(first.order() < second.order());
        second.set(1);
        assert!(second.order() < first.order());
    }

    #[test]
    fn what_was_measured_counts_more_than_the_place_of_an_address() {
        let near = measured(rank::FAR, ms(2));
        let far = measured(rank::SAME_SUBNET, ms(80));
        assert!(near.order() < far.order(), "it is near, whatever its address is");
        assert_eq!((near.rank(), far.rank()), (10_200, 18_000));
        let unknown = Distance::at_place(rank::SAME_SUBNET, 0);
        assert!(far.order() < unknown.order(), "a guess is for what was not measured");
        assert!(measured(rank::FAR, ms(200)).order() > unknown.order());
        let here = measured(rank::SAME_HOST, ms(3));
        assert_eq!(here.rank(), rank::SAME_HOST, "its own load is no distance");
    }

    #[test]
    fn what_the_administrator_sets_counts_alone() {
        let mut far = measured(rank::FAR, ms(300));
        far.set(1);
        far.note_rtt(ms(400));
        assert_eq!(far.rank(), 1);
        assert_eq!(far.rtt(), Some(ms(400)), "it is measured all the same");
    }

    #[test]
    fn two_servers_about_as_far_do_not_take_turns() {
        let (mut one, two) = (measured(rank::FAR, ms(20)), measured(rank::FAR, ms(21)));
        for jitter in [22, 18, 24, 21, 19, 25, 16] {
            one.note_rtt(ms(jitter));
            assert!(one.order() < two.order(), "{jitter} ms");
        }
        one.note_rtt(ms(40));
        assert!(one.order() > two.order(), "its way is another one now");
        one.note_rtt(ms(10));
        assert!(one.order() < two.order(), "and now again");
    }

    #[test]
    fn however_far_a_server_is_its_rank_has_16_bits() {
        assert_eq!(measured(rank::FAR, Duration::from_secs(100)).rank(), 60_000);
        assert_eq!(measured(rank::FAR, Duration::MAX).rank(), 60_000);
    }

    #[test]
    fn clients_spread_over_servers_that_are_as_good() {
        let servers = [1, 2, 3].map(|last| SocketAddr::from(([198, 51, 100, last], 7000)));
        let mut chosen = [0; 3];
        for seed in 0..300_u64 {
            let client = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let orders = servers.map(|socket| Distance::at_place(rank::FAR, salt_of(socket, client)).order());
            let best = (0..3).min_by_key(|&place| orders[place]).unwrap();
            chosen[best] += 1;
        }
        assert!(chosen.iter().all(|&count| count > 50), "{chosen:?}");
    }

    #[test]
    fn places_are_ranked_as_openafs_ranks_them() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (own, there, expected) in [
            ("10.1.2.3", "10.1.2.3", rank::SAME_HOST),
            ("10.1.2.3", "127.0.0.9", rank::SAME_HOST),
            ("10.1.2.3", "10.1.2.200", rank::SAME_SUBNET),
            ("10.1.2.3", "10.200.2.3", rank::SAME_NET),
            ("10.1.2.3", "192.0.2.1", rank::FAR),
        ] {
            assert_eq!(by_place(Some(ip(own)), ip(there)), expected, "{there} from {own}");
        }
        assert_eq!(by_place(None, ip("192.0.2.1")), rank::FAR);
    }
}
