//! A router that translates addresses (NAT), as homes and hotels have them: all machines behind it share its address. What comes from outside
//! finds a machine only by a mapping that a packet of the machine's own has made, to the same peer and not long ago.

use rx_proto::time::Instant;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The first of its ports that it gives out.
const FIRST_PORT: u16 = 20_000;

/// The router. Each mapping has a port that none had before, so a machine whose mapping has ended is at another port from its next packet on.
#[derive(Debug)]
pub struct Nat {
    outside: IpAddr,
    inside: Vec<IpAddr>,
    ends_after: Duration,
    next_port: u16,
    mappings: Vec<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    inside: SocketAddr,
    outside: SocketAddr,
    peer: SocketAddr,
    until: Instant,
}

impl Nat {
    /// A router with one address, before machines with these. A mapping ends when nothing has left by it for so long.
    pub fn new(outside: IpAddr, inside: &[IpAddr], ends_after: Duration) -> Self {
        Self { outside, inside: inside.to_vec(), ends_after, next_port: FIRST_PORT, mappings: Vec::new() }
    }

    /// It starts anew: all mappings end.
    pub(crate) fn forget(&mut self) {
        self.mappings.clear();
    }

    /// What becomes of the addresses of a packet from somebody to somebody; `None` if it gets nowhere.
    pub(crate) fn translate(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<(SocketAddr, SocketAddr)> {
        self.mappings.retain(|mapping| now < mapping.until);
        match (self.inside.contains(&from.ip()), self.inside.contains(&to.ip())) {
            (true, false) => Some((self.leave(now, from, to), to)),
            (false, true) => None,
            (false, false) if to.ip() == self.outside => {
                let found =
                    self.mappings.iter().find(|mapping| (mapping.outside, mapping.peer) == (to, from));
                found.map(|mapping| (from, mapping.inside))
            }
            _ => Some((from, to)),
        }
    }

    /// The address from which a packet seems to come.
    fn leave(&mut self, now: Instant, inside: SocketAddr, peer: SocketAddr) -> SocketAddr {
        let until = now + self.ends_after;
        let known = self.mappings.iter_mut().find(|mapping| (mapping.inside, mapping.peer) == (inside, peer));
        if let Some(mapping) = known {
            mapping.until = until;
            return mapping.outside;
        }
        let outside = SocketAddr::new(self.outside, self.next_port);
        self.next_port += 1;
        self.mappings.push(Mapping { inside, outside, peer, until });
        outside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_lets_one_peer_in_until_nothing_has_left_for_its_time() {
        let [inside, other, server, stranger]: [SocketAddr; 4] =
            ["10.0.0.1:7001", "10.0.0.2:7001", "10.0.1.1:7000", "10.0.1.2:7000"]
                .map(|text| text.parse().unwrap());
        let router = IpAddr::from([192, 0, 2, 1]);
        let mut nat = Nat::new(router, &[inside.ip(), other.ip()], Duration::from_secs(30));
        let at = |seconds| Instant::ORIGIN + Duration::from_secs(seconds);
        let (one, _) = nat.translate(at(0), inside, server).unwrap();
        let (two, _) = nat.translate(at(0), other, server).unwrap();
        assert!(one.ip() == router && two.ip() == router && one != two);
        assert_eq!(nat.translate(at(1), server, one), Some((server, inside)));
        assert_eq!(nat.translate(at(1), server, two), Some((server, other)));
        assert_eq!(nat.translate(at(1), stranger, one), None);
        assert_eq!(nat.translate(at(1), server, inside), None, "nobody outside knows this address");
        assert_eq!(nat.translate(at(1), server, stranger), Some((server, stranger)));
        assert_eq!(nat.translate(at(20), inside, server), Some((one, server)));
        assert_eq!(nat.translate(at(49), server, one), Some((server, inside)));
        assert_eq!(nat.translate(at(49), server, two), None);
        assert_eq!(nat.translate(at(50), server, one), None, "what comes in prolongs nothing");
        assert_ne!(nat.translate(at(50), inside, server), Some((one, server)));
        nat.forget();
        assert!(nat.mappings.is_empty());
    }
}
