//! A proxy between the mounts of a cell and its servers, which needs no rights: what goes through it can be lost or come late.
//!
//! Clients find it where their CellServDB says that the databases are, and as those tell them where volumes are, the server's address
//! is replaced by the proxy's in what they say. (They are asked by nobody in particular, so no checksum covers it.)

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::relay::{Relay, Way};

/// The ports of the services: files, protection, locations of volumes, volumes, and the overseer's.
const PORTS: [u16; 5] = [7000, 7002, 7003, 7005, 7007];

/// Where the flags are in an Rx header, and that of them which says that who began the call has sent this (Rx notes 2).
const FLAGS: usize = 21;
const OF_CLIENT: u8 = 1;

/// The fate of what goes through.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Weather {
    /// Nothing arrives that the file server says of its own accord.
    pub callbacks_lost: bool,
    /// It arrives so much later.
    pub callbacks_late: Duration,
    /// Datagrams of a hundred that do not arrive, each way.
    pub lost_percent: u64,
}

/// The proxy; dropped, it ends.
pub struct Proxy {
    /// Its address, in place of the servers'.
    pub address: Ipv4Addr,
    shared: Arc<Shared>,
    _relays: Vec<Relay>,
}

struct Shared {
    weather: Mutex<Weather>,
    chance: AtomicU64,
    lost_callbacks: AtomicU64,
    late_callbacks: AtomicU64,
    /// What is looked for in datagrams, and in how many it was.
    looked_for: Mutex<Vec<u8>>,
    found: AtomicU64,
}

impl Proxy {
    /// Starts one at an address, in front of the servers at another. Who loses what follows from the seed.
    ///
    /// # Panics
    ///
    /// If the address is taken.
    pub fn start(address: Ipv4Addr, server: Ipv4Addr, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            weather: Mutex::default(),
            chance: AtomicU64::new(seed),
            lost_callbacks: AtomicU64::new(0),
            late_callbacks: AtomicU64::new(0),
            looked_for: Mutex::default(),
            found: AtomicU64::new(0),
        });
        let relays = PORTS.map(|port| {
            let shared = Arc::clone(&shared);
            let fate = move |way, _, datagram: &mut [u8]| {
                if way == Way::ToClient && port != PORTS[0] {
                    replace(datagram, server, address);
                }
                shared.fate(port, way == Way::ToClient, datagram)
            };
            Relay::start((address, port).into(), (server, port).into(), Arc::new(fate))
                .expect("the address is free")
        });
        Self { address, shared, _relays: relays.into() }
    }

    /// Changes the weather.
    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap_or_else(PoisonError::into_inner) = weather;
    }

    /// Counts datagrams with this in them from now on.
    pub fn look_for(&self, text: &[u8]) {
        *self.shared.looked_for.lock().unwrap_or_else(PoisonError::into_inner) = text.to_vec();
    }

    /// The number of datagrams in which it was.
    pub fn found(&self) -> u64 {
        self.shared.found.load(Ordering::Relaxed)
    }

    /// The numbers of datagrams of callbacks that were lost, and that came late.
    pub fn callbacks(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.shared.lost_callbacks), of(&self.shared.late_callbacks))
    }
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
