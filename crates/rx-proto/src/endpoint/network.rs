//! Errors that the network reports: a peer that cannot be reached, packets that are too large; and what is done
//! before it has reported any. Anyone may send such word, so it counts for little and only with a part of a packet of ours.

use super::Endpoint;
use crate::abort::AbortCode;
use crate::call::CallError;
use crate::connection::{ConnectionKey, Role};
use crate::ids::Channel;
use crate::ids::ChannelRef;
use crate::packet::{HEADER_LEN, Header, MIN_PACKET_LEN};
use crate::time::Instant;
use std::net::SocketAddr;
use std::time::Duration;

impl Endpoint {
    /// The kernel has word from the network that `peer` cannot be reached. `quoted` is the beginning of the packet that did
    /// not arrive: it must be one of ours. Calls that have not heard from the peer for a while end.
    pub fn handle_unreachable(&mut self, now: Instant, peer: SocketAddr, quoted: &[u8]) {
        let Some(index) = self.quoted_connection(peer, quoted) else { return };
        let path = self.connections[index].path;
        let patience =
            (self.paths[path].rtt.smoothed() * 2).clamp(Duration::from_millis(50), Duration::from_secs(1));
        for channel in Channel::ALL {
            let at = ChannelRef { connection: index, channel };
            let silent = self.connections[index]
                .call(channel)
                .is_some_and(|c| now.since(c.heard_at) >= patience || !(c.rx.has_begun() || c.window_known));
            if silent && self.connections[index].is_client() {
                self.fail_call(now, at, CallError::Failed(AbortCode::CALL_DEAD), false);
            }
        }
    }

    /// A router or the kernel says that packets to `peer` may be `len` bytes of UDP payload at most.
    pub fn handle_packet_too_big(&mut self, peer: SocketAddr, len: usize, quoted: &[u8]) {
        if !quoted.is_empty() && self.quoted_connection(peer, quoted).is_none() {
            return;
        }
        let Some(&index) = self.by_peer.get(&peer) else { return };
        let path = &mut self.paths[index];
        if let Some(len) = path.mtu.handle_path_limit(len) {
            path.handle_packet_len(len);
            self.stats.paths_narrowed += 1;
        }
    }

    /// Cuts a new call's first packet so that it passes everywhere, if it is not known what passes and the server could not be sent it in pieces.
    pub(super) fn limit_first_packet(&mut self, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let path = &self.paths[connection.path];
        if path.mtu.is_unproven() && !path.takes_pieces() {
            let len = connection.security.plaintext_capacity(MIN_PACKET_LEN - HEADER_LEN);
            connection.call_mut(at.channel).into_iter().for_each(|call| call.tx.set_first_len(len));
        }
    }

    fn quoted_connection(&self, peer: SocketAddr, quoted: &[u8]) -> Option<usize> {
        let header = Header::parse(quoted).ok()?;
        // The quoted packet went the other way: what we sent as a client belongs to a client connection.
        let role = if header.is_from_client() { Role::Client } else { Role::Server };
        let key = ConnectionKey::new(header.epoch, header.connection, role, peer);
        let index = *self.by_key.get(&key)?;
        (self.paths[self.connections[index].path].peer == peer).then_some(index)
    }

    /// The kernel refused a packet to `to` of `len` bytes as too large for the interface.
    pub fn handle_too_large(&mut self, to: SocketAddr, len: usize) {
        let Some(&index) = self.by_peer.get(&to) else { return };
        let (path, stats) = (&mut self.paths[index], &mut self.stats);
        stats.paths_narrowed += u64::from(path.handle_too_large(len));
    }
}
