//! A client's machine that can be put to sleep.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use afs_sim::{Fate, Sim};
use rx::{BoxFuture, Port, Runtime, SocketOptions};
use rx_proto::time::Instant;

use super::cell::Cell;

/// The runtime of a client whose machine sleeps now and then: nothing gets to it or from it meanwhile, and its timers wait. Its clock is
/// one that goes on, as that of a process that is stopped.
#[derive(Debug, Clone)]
pub struct Laptop {
    sim: Sim,
    naps: Arc<Mutex<Vec<(Instant, Instant)>>>,
}

impl Laptop {
    /// The machine at the address of a client.
    pub fn new(cell: &Cell, client: u8) -> Self {
        let (address, naps) = (cell.config(client).bind, Arc::<Mutex<Vec<_>>>::default());
        let laptop = Self { sim: cell.sim.clone(), naps: Arc::clone(&naps) };
        cell.sim.set_network(move |now, from, to, _| {
            let sleeps = naps.lock().unwrap().iter().any(|&(began, ends)| (began..ends).contains(&now));
            if sleeps && [from, to].contains(&address) { Fate::Lost } else { Fate::Arrives(Duration::ZERO) }
        });
        laptop
    }

    /// Falls asleep; tells when it will wake.
    pub fn fall_asleep(&self, time: Duration) -> Instant {
        let now = self.sim.now();
        self.naps.lock().unwrap().push((now, now + time));
        now + time
    }

    /// When a timer ends that begins now and is to end then.
    fn end_of(&self, began: Instant, at: Instant) -> Instant {
        let naps = self.naps.lock().unwrap();
        let slept = |until: Instant| -> Duration {
            let meant = naps.iter().filter(|(from, _)| (began..until).contains(from));
            meant.map(|&(from, to)| to.since(from)).sum()
        };
        let mut end = at;
        while end < at + slept(end) {
            end = at + slept(end);
        }
        end
    }
}

impl Runtime for Laptop {
    fn now(&self) -> Instant {
        self.sim.now()
    }

    fn wall_clock(&self) -> SystemTime {
        self.sim.wall_clock()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture {
        let (laptop, began) = (self.clone(), self.sim.now());
        Box::pin(async move {
            let mut end = at;
            while laptop.sim.now() < end {
                laptop.sim.sleep_until(end).await;
                end = laptop.end_of(began, at);
            }
        })
    }

    fn spawn(&self, task: BoxFuture) {
        self.sim.spawn(task);
    }

    fn seed(&self) -> io::Result<[u8; 32]> {
        self.sim.seed()
    }

    fn bind(&self, address: SocketAddr, options: &SocketOptions) -> io::Result<Arc<dyn Port>> {
        self.sim.bind(address, options)
    }
}
