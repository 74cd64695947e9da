//! A UDP proxy on the loopback interface that records every datagram and may drop or stop them: needs no rights, and sees
//! what really is sent.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time between two looks of the threads at whether they should end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Receive buffers: a window of 255 packets takes 600 kB by the kernel's counting.
const BUFFER_BYTES: usize = 4 << 20;

/// The way that a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The way from the client to the server.
    ToServer,
    /// The way from the server to the client.
    ToClient,
}

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
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    server: SocketAddr,
    front: UdpSocket,
    /// Every so many datagrams of a way one is dropped; 0: none.
    drop_every: usize,
    record: Mutex<Vec<Datagram>>,
    is_cut: AtomicBool,
    is_over: AtomicBool,
}

impl Proxy {
    /// Starts one in front of a server. Of `drop_every` datagrams each way it drops one, the first ones excepted; 0: it
    /// drops none.
    ///
    /// # Errors
    ///
    /// When there is no socket to be had.
    pub fn start(server: SocketAddr, drop_every: usize) -> Result<Self, String> {
        let front = socket().map_err(|error| format!("the proxy has no socket: {error}"))?;
        let address = front.local_addr().map_err(|error| error.to_string())?;
        let (record, is_cut, is_over) = (Mutex::default(), AtomicBool::new(false), AtomicBool::new(false));
        let shared =
            Arc::new(Shared { started: Instant::now(), server, front, drop_every, record, is_cut, is_over });
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.forward_to_server()
        });
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// The address at which clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Drops everything from now on, or no longer.
    pub fn set_cut(&self, cut: bool) {
        self.shared.is_cut.store(cut, Ordering::SeqCst);
    }

    /// The datagrams that have come so far, in the order in which they came.
    pub fn record(&self) -> Vec<Datagram> {
        self.shared.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(LOOK_EVERY))?;
    // Less is granted where the system's limit is lower; what is lost then is seen by its serials.
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(BUFFER_BYTES);
    Ok(socket)
}

impl Shared {
    /// Notes a datagram, and whether to send it on.
    fn admit(&self, client: SocketAddr, way: Way, bytes: &[u8], count: usize) -> bool {
        let is_dropped = self.drop_every > 0 && count > 5 && count.is_multiple_of(self.drop_every);
        let delivered = !is_dropped && !self.is_cut.load(Ordering::SeqCst);
        // In the record before it arrives: what answers it comes after it.
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.push(Datagram { client, at: self.started.elapsed(), way, delivered, bytes: bytes.to_vec() });
        delivered
    }

    fn forward_to_server(self: Arc<Self>) {
        let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let mut threads = Vec::new();
        let mut buffer = vec![0; 65_536];
        let mut count = 0;
        while !self.is_over.load(Ordering::SeqCst) {
            // A timeout, or word that the peer's port is closed: neither is the proxy's business.
            let Ok((length, client)) = self.front.recv_from(&mut buffer) else { continue };
            let back = match clients.get(&client) {
                Some(back) => Arc::clone(back),
                None => {
                    let Ok(back) = socket().map(Arc::new) else { continue };
                    clients.insert(client, Arc::clone(&back));
                    threads.push(thread::spawn({
                        let (shared, back) = (Arc::clone(&self), Arc::clone(&back));
                        move || shared.forward_to_client(client, &back)
                    }));
                    back
                }
            };
            count += 1;
            if self.admit(client, Way::ToServer, &buffer[..length], count) {
                let _ = back.send_to(&buffer[..length], self.server);
            }
        }
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn forward_to_client(&self, client: SocketAddr, back: &UdpSocket) {
        let mut buffer = vec![0; 65_536];
        let mut count = 0;
        while !self.is_over.load(Ordering::SeqCst) {
            let Ok((length, from)) = back.recv_from(&mut buffer) else { continue };
            // This port may have been that of a client that has gone, for which the server goes on for a while: what is for it comes
            // here from our own front then, and was seen already.
            if from != self.server {
                continue;
            }
            count += 1;
            if self.admit(client, Way::ToClient, &buffer[..length], count) {
                let _ = self.front.send_to(&buffer[..length], client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The port of a client that has gone can be that of the proxy's next socket.
    #[test]
    fn what_does_not_come_from_the_server_is_not_taken_for_its_word() {
        let server = socket().unwrap();
        let proxy = Proxy::start(server.local_addr().unwrap(), 0).unwrap();
        let client = socket().unwrap();
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
