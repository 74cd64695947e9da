//! A database of the cell, as this server asks it: the first of its servers that answers, with the server's own token.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use rx::{Endpoint, Peer, PeerLimits, RpcError};
use rx_proto::ids::ServiceId;
use rx_security::{Level, Token, rxkad};
use rxgen::{Interface, Rpc};

/// UNOTSYNC, UNOQUORUM: another server may do it (VLDB notes 9).
const NOT_HERE: [i32; 2] = [afs_wire::abort::UNOTSYNC.0, afs_wire::abort::UNOQUORUM.0];

/// Servers of one database.
#[derive(Debug)]
pub(crate) struct CellServers {
    peers: Vec<Peer>,
    /// The one that answered last.
    current: AtomicUsize,
}

impl CellServers {
    /// The servers of interface `I` at these addresses, called from an endpoint.
    pub(crate) fn new<I: Interface>(
        endpoint: &Endpoint,
        addresses: &[Ipv4Addr],
        port: u16,
        token: &Token,
    ) -> Self {
        let peer = |address: &Ipv4Addr| {
            let address = SocketAddr::from((*address, port));
            let security = rxkad::Client::factory(token.clone(), Level::Crypt);
            endpoint.peer(address, ServiceId(I::SERVICE_ID), PeerLimits::default(), security)
        };
        Self { peers: addresses.iter().map(peer).collect(), current: AtomicUsize::new(0) }
    }

    /// Calls a procedure at the first server that can do it.
    ///
    /// # Errors
    ///
    /// That of the last server, when none can.
    pub(crate) async fn ask<R: Rpc>(&self, args: &R) -> Result<R::Reply, RpcError> {
        let first = self.current.load(Ordering::Relaxed);
        let mut last = None;
        for at in (first..first + self.peers.len()).map(|at| at % self.peers.len()) {
            match self.peers[at].rpc(args).await {
                Ok(reply) => {
                    self.current.store(at, Ordering::Relaxed);
                    return Ok(reply);
                }
                // Rx's own codes are negative: the server is away, or too busy.
                Err(error) if error.code().0 < 0 || NOT_HERE.contains(&error.code().0) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or(RpcError::Call { rpc: R::NAME, source: rx::CallError::EndpointClosed }))
    }
}
