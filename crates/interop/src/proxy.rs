//! A UDP proxy on the loopback interface that records every datagram and may drop or stop them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use afs_lab::real::relay::Relay;
pub use afs_lab::real::relay::Way;

/// The first datagrams of a way, of which none is dropped.
const NEVER_DROPPED: usize = 5;

/// A datagram that came to the proxy.
#[derive(Debug, Clone)]
pub struct Datagram {
    /// The client that it is from or for.
    pub client: SocketAddr,
    /// The time when it came, since the proxy was started.
    pub at: Duration,
    /// Its way.
    pub way: Way,
    /// True if it went on.
    pub delivered: bool,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The proxy; dropped, it ends.
#[derive(Debug)]
pub struct Proxy {
    relay: Relay,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    /// Every so many datagrams of a way one is dropped; 0: none.
    drop_every: usize,
    seen: Mutex<Seen>,
    is_cut: AtomicBool,
}

#[derive(Debug, Default)]
struct Seen {
    record: Vec<Datagram>,
    /// How many came to the server, and how many for each client.
    counts: HashMap<Option<SocketAddr>, usize>,
}

impl Proxy {
    /// Starts one in front of a server. Of `drop_every` datagrams each way it drops one, the first ones excepted; 0: it
    /// drops none.
    ///
    /// # Errors
    ///
    /// When there is no socket to be had.
    pub fn start(server: SocketAddr, drop_every: usize) -> Result<Self, String> {
        let (seen, is_cut) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { started: Instant::now(), drop_every, seen, is_cut });
        let of = Arc::clone(&shared);
        let fate =
            move |way, client, bytes: &mut [u8]| of.admit(client, way, bytes).then_some(Duration::ZERO);
        let relay = Relay::start((Ipv4Addr::LOCALHOST, 0).into(), server, Arc::new(fate));
        Ok(Self { relay: relay.map_err(|error| format!("the proxy has no socket: {error}"))?, shared })
    }

    /// The address at which clients find it.
    pub fn address(&self) -> SocketAddr {
        self.relay.address()
    }

    /// Drops everything from now on, or no longer.
    pub fn set_cut(&self, cut: bool) {
        self.shared.is_cut.store(cut, Ordering::SeqCst);
    }

    /// The datagrams that have come so far, in the order in which they came.
    pub fn record(&self) -> Vec<Datagram> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).record.clone()
    }
}

impl Shared {
    /// Notes a datagram, and whether to send it on.
    fn admit(&self, client: SocketAddr, way: Way, bytes: &[u8]) -> bool {
        // In the record before it arrives: what answers it comes after it.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let count = seen.counts.entry((way == Way::ToClient).then_some(client)).or_default();
        *count += 1;
        let is_dropped =
            self.drop_every > 0 && *count > NEVER_DROPPED && count.is_multiple_of(self.drop_every);
        let delivered = !is_dropped && !self.is_cut.load(Ordering::SeqCst);
        seen.record.push(Datagram {
            client,
            at: self.started.elapsed(),
            way,
            delivered,
            bytes: bytes.to_vec(),
        });
        delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// The port of a client that has gone can be that of the proxy's next socket.
    #[test]
    fn what_does_not_come_from_the_server_is_not_taken_for_its_word() {
        let socket = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = socket();
        let proxy = Proxy::start(server.local_addr().unwrap(), 0).unwrap();
        let client = socket();
        client.send_to(b"question", proxy.address()).unwrap();
        let mut buffer = [0; 100];
        let patience = Some(Duration::from_secs(10));
        server.set_read_timeout(patience).unwrap();
        let (_, back) = server.recv_from(&mut buffer).unwrap();
        client.send_to(b"of somebody else", back).unwrap();
        server.send_to(b"answer", back).unwrap();
        client.set_read_timeout(patience).unwrap();
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"answer"[..], proxy.address()));
        let seen: Vec<_> = proxy.record().into_iter().map(|datagram| datagram.bytes).collect();
        assert_eq!(seen, [b"question".to_vec(), b"answer".to_vec()]);
    }
}
