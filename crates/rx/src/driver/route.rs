//! The choice of the shard that a datagram is for. What servers send goes by epoch, since each shard makes its client
//! connections under an epoch of its own. What clients send goes by their IP address, so that the calls of a host share a
//! path and a shard; a connection that moved to another address (Rx notes 5) is still known to the shard that has it, and
//! found by a registry that is only asked about connections that the first shard does not have.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use rx_proto::ids::{ConnectionId, Epoch};
use rx_proto::packet::{Header, PacketType};
use rx_proto::security::{Null, SecurityClass};

use crate::shard::{Shard, State};
use crate::socket::Datagram;

/// Entries of a shard after which those of connections that are gone are looked for; doubled with what remains.
const FIRST_SWEEP: usize = 4096;

/// The shard of a peer's address.
pub(super) fn shard_of(ip: IpAddr, shards: usize) -> usize {
    if shards == 1 {
        return 0;
    }
    let bits = match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    };
    // Fibonacci hashing. A peer that chooses its addresses can fill one shard, as it can fill the link.
    let folded = (bits as u64) ^ ((bits >> 64) as u64).rotate_left(29);
    let hash = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (hash as usize * shards) >> 32
}

/// Returns the shard to which a datagram is brought first.
pub(super) fn first_shard(epochs: &[Epoch], datagram: &Datagram) -> usize {
    by_epoch(epochs, &datagram.data, false).unwrap_or_else(|| shard_of(datagram.from.ip(), epochs.len()))
}

/// Returns the shard that has sent the packet that begins with these bytes.
pub(super) fn shard_of_sent(epochs: &[Epoch], sent: &[u8], to: SocketAddr) -> usize {
    by_epoch(epochs, sent, true).unwrap_or_else(|| shard_of(to.ip(), epochs.len()))
}

/// The shard of a client connection of ours, by a packet to the client or from it.
fn by_epoch(epochs: &[Epoch], packet: &[u8], is_from_client: bool) -> Option<usize> {
    let header = Header::parse(packet).ok().filter(|h| h.is_from_client() == is_from_client)?;
    epochs.iter().position(|epoch| *epoch == header.epoch)
}

type Key = (Epoch, ConnectionId);

/// The shards of server connections, for epochs that ignore addresses. Its lock is taken under that of a shard's
/// state, never the other way round.
#[derive(Debug, Default)]
pub(super) struct Registry(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    shards: HashMap<Key, usize>,
    /// For each shard, the number of its entries, and the number at which dead ones are looked for.
    counts: HashMap<usize, (usize, usize)>,
}

impl Registry {
    /// The other shard that is to have this datagram, if one is. Notes a connection that begins here.
    pub(super) fn elsewhere(
        &self,
        state: &State,
        shard: &Shard,
        datagram: &Datagram,
        forwarded: bool,
    ) -> Option<usize> {
        let header = Header::parse(&datagram.data).ok()?;
        let key = (header.epoch, header.connection);
        let asks = matches!(header.kind, PacketType::DEBUG | PacketType::VERSION);
        if asks || !header.is_from_client() || !header.epoch.ignores_address() || is_bound(&header) {
            return None;
        }
        if state.endpoint.serves(key.0, key.1, datagram.from) {
            return None;
        }
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match entries.shards.get(&key) {
            Some(&other) if other != shard.index && !forwarded => return Some(other),
            // It is gone there too: it begins anew here.
            _ if header.kind == PacketType::DATA => entries.insert(key, shard.index, state),
            _ => {}
        }
        None
    }
}

impl Entries {
    fn insert(&mut self, key: Key, shard: usize, state: &State) {
        if let Some(old) = self.shards.insert(key, shard) {
            self.counts.entry(old).and_modify(|(count, _)| *count -= 1);
        }
        let (count, sweep_at) = self.counts.entry(shard).or_insert((0, FIRST_SWEEP));
        *count += 1;
        if *count >= *sweep_at {
            let is_alive = |(epoch, connection): &Key| state.endpoint.serves_anywhere(*epoch, *connection);
            self.shards.retain(|k, s| *s != shard || k == &key || is_alive(k));
            *count = self.shards.values().filter(|s| **s == shard).count();
            *sweep_at = (2 * *count).max(FIRST_SWEEP);
        }
    }
}

/// True if the connection of a packet stays with the address that it comes from: those without security do.
fn is_bound(header: &Header) -> bool {
    header.security == Null.index()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_spread_evenly_over_shards() {
        for shards in [1usize, 2, 3, 8] {
            let mut counts = vec![0; shards];
            for i in 0..1000u32 {
                counts[shard_of(IpAddr::V4((0x0a00_0000 + i).into()), shards)] += 1;
            }
            let fair = 1000 / shards;
            assert!(counts.iter().all(|n| (fair * 9 / 10..=fair * 11 / 10 + 1).contains(n)), "{counts:?}");
        }
    }
}
