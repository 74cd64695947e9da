//! A UDP relay in front of a server's port. It needs no rights, and sees what is really sent; what becomes of each datagram is
//! for its user to say.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size;

/// The time between two looks of the threads at whether they should end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Receive buffers: a window of 255 packets takes 600 kB by the kernel's counting.
const BUFFER_BYTES: usize = 4 << 20;

/// The way that a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// The way from the client to the server.
    ToServer,
    /// The way from the server to the client.
    ToClient,
}

/// Says what becomes of a datagram on its way from or to a client: how much later it goes on, maybe changed. `None`: it does not.
pub type Fate = dyn Fn(Way, SocketAddr, &mut [u8]) -> Option<Duration> + Send + Sync;

/// A relay; dropped, it ends.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts one at an address, in front of a server.
    ///
    /// # Errors
    ///
    /// When there is no socket to be had.
    pub fn start(at: SocketAddr, server: SocketAddr, fate: Arc<Fate>) -> io::Result<Self> {
        let front = socket(at)?;
        let (address, is_over) = (front.local_addr()?, Arc::<AtomicBool>::default());
        let shared = Arc::new(Shared { front: Arc::new(front), server, fate, is_over: Arc::clone(&is_over) });
        let thread = thread::spawn(move || shared.forward_to_server(address));
        Ok(Self { address, is_over, thread: Some(thread) })
    }

    /// The address at which clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Shared {
    front: Arc<UdpSocket>,
    server: SocketAddr,
    fate: Arc<Fate>,
    is_over: Arc<AtomicBool>,
}

impl Shared {
    fn forward_to_server(self: Arc<Self>, address: SocketAddr) {
        let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let mut threads = Vec::new();
        let mut buffer = vec![0; 65_536];
        while !self.is_over.load(Ordering::SeqCst) {
            let Some((length, client)) = receive(&self.front, &mut buffer) else { continue };
            let back = Arc::clone(clients.entry(client).or_insert_with(|| {
                let back = Arc::new(socket((address.ip(), 0).into()).expect("a port is free"));
                let (shared, of) = (Arc::clone(&self), Arc::clone(&back));
                threads.push(thread::spawn(move || shared.forward_to_client(client, &of)));
                back
            }));
            let datagram = &mut buffer[..length];
            if let Some(late) = (self.fate)(Way::ToServer, client, datagram) {
                send(&back, self.server, datagram, late);
            }
        }
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn forward_to_client(&self, client: SocketAddr, back: &UdpSocket) {
        let mut buffer = vec![0; 65_536];
        while !self.is_over.load(Ordering::SeqCst) {
            let Some((length, from)) = receive(back, &mut buffer) else { continue };
            // This port may have been that of a client that has gone, for which the server goes on for a while: what is for it comes
            // here from our own front then, and was seen already.
            if from != self.server {
                continue;
            }
            let datagram = &mut buffer[..length];
            if let Some(late) = (self.fate)(Way::ToClient, client, datagram) {
                send(&self.front, client, datagram, late);
            }
        }
    }
}

fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_read_timeout(Some(LOOK_EVERY))?;
    // Less is granted where the system's limit is lower; what is lost then is seen by its serials.
    let _ = set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
    Ok(socket)
}

/// Receives a datagram, if there is one within a moment. That the peer's port is closed is none of the relay's business.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    match socket.recv_from(buffer) {
        Ok(received) => Some(received),
        Err(error) => {
            let kinds = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::ConnectionRefused];
            assert!(kinds.contains(&error.kind()), "the relay cannot receive: {error}");
            None
        }
    }
}

fn send(from: &Arc<UdpSocket>, to: SocketAddr, bytes: &[u8], late: Duration) {
    if late.is_zero() {
        // Nobody may be there just now.
        drop(from.send_to(bytes, to));
        return;
    }
    let (from, bytes) = (Arc::clone(from), bytes.to_vec());
    thread::spawn(move || {
        thread::sleep(late);
        drop(from.send_to(&bytes, to));
    });
}
