//! A proxy between the mounts of a cell and its servers, which needs no rights: what goes through it can be lost or come late.
//!
//! Clients find it where their CellServDB says that the databases are, and as those tell them where volumes are, the server's address
//! is replaced by the proxy's in what they say. (They are asked by nobody in particular, so no checksum covers it.)

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The ports of the services: files, protection, locations of volumes, volumes, and the overseer's.
const PORTS: [u16; 5] = [7000, 7002, 7003, 7005, 7007];

/// How often the threads look whether they should end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Where the flags are in an Rx header, and that of them which says that who began the call has sent this (Rx notes 2).
const FLAGS: usize = 21;
const OF_CLIENT: u8 = 1;

/// What becomes of what goes through.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Weather {
    /// What the file server says of its own accord does not arrive.
    pub(crate) callbacks_lost: bool,
    /// It arrives so much later.
    pub(crate) callbacks_late: Duration,
    /// So many of a hundred datagrams do not arrive, each way.
    pub(crate) lost_percent: u64,
}

/// The proxy; dropped, it ends.
pub(crate) struct Proxy {
    pub(crate) address: Ipv4Addr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    address: Ipv4Addr,
    server: Ipv4Addr,
    weather: Mutex<Weather>,
    chance: AtomicU64,
    is_over: AtomicBool,
    lost_callbacks: AtomicU64,
    late_callbacks: AtomicU64,
    /// What is looked for in datagrams, and in how many it was.
    looked_for: Mutex<Vec<u8>>,
    found: AtomicU64,
}

impl Proxy {
    pub(crate) fn start(address: Ipv4Addr, server: Ipv4Addr, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            address,
            server,
            weather: Mutex::default(),
            chance: AtomicU64::new(seed),
            is_over: AtomicBool::new(false),
            lost_callbacks: AtomicU64::new(0),
            late_callbacks: AtomicU64::new(0),
            looked_for: Mutex::default(),
            found: AtomicU64::new(0),
        });
        let threads = PORTS.map(|port| {
            let front = Arc::new(socket(SocketAddr::from((address, port))));
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.forward_to_server(&front, port))
        });
        Self { address, shared, threads: threads.into() }
    }

    pub(crate) fn set(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }

    /// Counts datagrams with this in them from now on.
    pub(crate) fn look_for(&self, text: &[u8]) {
        *self.shared.looked_for.lock().unwrap_or_else(PoisonError::into_inner) = text.to_vec();
    }

    /// In how many datagrams it was.
    pub(crate) fn found(&self) -> u64 {
        self.shared.found.load(Ordering::Relaxed)
    }

    /// How many datagrams of callbacks were lost, and how many came late.
    pub(crate) fn callbacks(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.shared.lost_callbacks), of(&self.shared.late_callbacks))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn socket(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(LOOK_EVERY)).unwrap();
    socket
}

impl Shared {
    /// How much later a datagram arrives; `None`: not at all.
    fn fate(&self, port: u16, to_client: bool, datagram: &[u8]) -> Option<Duration> {
        let looked_for = self.looked_for.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !looked_for.is_empty() && datagram.windows(looked_for.len()).any(|bytes| bytes == looked_for) {
            self.found.fetch_add(1, Ordering::Relaxed);
        }
        let weather = *self.weather.lock().unwrap_or_else(PoisonError::into_inner);
        let random = self.chance.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let random = (random ^ (random >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33;
        if random % 100 < weather.lost_percent {
            return None;
        }
        let is_callers = datagram.get(FLAGS).is_some_and(|flags| flags & OF_CLIENT != 0);
        let is_callback = port == PORTS[0] && is_callers == to_client;
        if is_callback && weather.callbacks_lost {
            self.lost_callbacks.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if is_callback && !weather.callbacks_late.is_zero() {
            self.late_callbacks.fetch_add(1, Ordering::Relaxed);
            return Some(weather.callbacks_late);
        }
        Some(Duration::ZERO)
    }

    fn send(self: &Arc<Self>, from: &Arc<UdpSocket>, to: SocketAddr, bytes: &[u8], late: Duration) {
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

    fn forward_to_server(self: Arc<Self>, front: &Arc<UdpSocket>, port: u16) {
        let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let mut threads = Vec::new();
        let mut buffer = vec![0; 65_536];
        let to = SocketAddr::from((self.server, port));
        while !self.is_over.load(Ordering::SeqCst) {
            let Some((length, client)) = receive(front, &mut buffer) else { continue };
            let back = Arc::clone(clients.entry(client).or_insert_with(|| {
                let back = Arc::new(socket(SocketAddr::from((self.address, 0))));
                let (shared, front, of) = (Arc::clone(&self), Arc::clone(front), Arc::clone(&back));
                threads.push(thread::spawn(move || shared.forward_to_client(&front, client, &of, port)));
                back
            }));
            if let Some(late) = self.fate(port, false, &buffer[..length]) {
                self.send(&back, to, &buffer[..length], late);
            }
        }
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn forward_to_client(
        self: Arc<Self>,
        front: &Arc<UdpSocket>,
        client: SocketAddr,
        back: &UdpSocket,
        port: u16,
    ) {
        let mut buffer = vec![0; 65_536];
        while !self.is_over.load(Ordering::SeqCst) {
            let Some((length, _)) = receive(back, &mut buffer) else { continue };
            let datagram = &mut buffer[..length];
            if port != PORTS[0] {
                replace(datagram, self.server, self.address);
            }
            if let Some(late) = self.fate(port, true, datagram) {
                self.send(front, client, datagram, late);
            }
        }
    }
}

/// A datagram, if there is one within a moment. That the peer's port is closed is none of the proxy's business.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    match socket.recv_from(buffer) {
        Ok(received) => Some(received),
        Err(error) => {
            let kinds = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::ConnectionRefused];
            assert!(kinds.contains(&error.kind()), "the proxy cannot receive: {error}");
            None
        }
    }
}

/// Replaces an address, wherever it is.
fn replace(datagram: &mut [u8], old: Ipv4Addr, new: Ipv4Addr) {
    let mut at = 0;
    while at + 4 <= datagram.len() {
        if datagram[at..at + 4] == old.octets() {
            datagram[at..at + 4].copy_from_slice(&new.octets());
            at += 4;
        } else {
            at += 1;
        }
    }
}
