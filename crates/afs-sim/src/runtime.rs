//! A runtime in virtual time: ports are joined by a network with delay and loss, and time passes when nobody has anything
//! to do. One thread, so that every run is the same.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rx::socket::{Datagram, SendError, Transmit};
use rx::{BoxFuture, Driven, Next, Port, PortMetrics, REST, Runtime, SocketOptions};
use rx_proto::time::Instant;

use crate::Nat;

/// The time when every world begins, since 1970: in June 2026.
const STARTED: Duration = Duration::from_secs(1_780_000_000);

/// The world: clock, network, tasks. A clone is the same world.
#[derive(Clone)]
pub struct Sim(Arc<Shared>);

struct Shared {
    world: Mutex<World>,
}

struct World {
    now: Instant,
    sequence: u64,
    events: BinaryHeap<Reverse<(Instant, u64)>>,
    what: HashMap<u64, What>,
    ready: VecDeque<Arc<Task>>,
    /// Tasks that have not ended: one that waits for nothing is kept too.
    tasks: HashMap<usize, Arc<Task>>,
    ports: HashMap<SocketAddr, Arc<SimPort>>,
    /// Ports whose address the others see as another one.
    moved: HashMap<SocketAddr, SocketAddr>,
    nat: Option<Nat>,
    delay: Duration,
    /// Every so many datagrams one is lost; 0 for none.
    lose_every: u64,
    /// Says what becomes of each of the others.
    network: Option<Box<Network>>,
    sent: u64,
    random: u64,
    /// A port finds all that has come at the same time when it looks.
    delivers_together: bool,
}

/// Decides the fate of a datagram that is sent at a time, from an address to another.
type Network = dyn FnMut(Instant, SocketAddr, SocketAddr, &[u8]) -> Fate + Send;

/// The fate of a datagram in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives, so much later than others.
    Arrives(Duration),
    /// It never arrives.
    Lost,
}

enum What {
    Wake(Waker),
    Deliver {
        to: SocketAddr,
        datagram: Datagram,
    },
    /// The receiving side asked to be called.
    Tick(Weak<SimPort>),
    Run(Weak<SimPort>, usize),
}

struct Task {
    work: Mutex<Option<BoxFuture>>,
    sim: Weak<Shared>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.sim.upgrade() {
            shared.world.lock().unwrap().ready.push_back(self);
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sim")
    }
}

impl Sim {
    /// A world in which every datagram takes `delay`.
    pub fn new(delay: Duration) -> Self {
        Self(Arc::new(Shared {
            world: Mutex::new(World {
                now: Instant::ORIGIN + Duration::from_secs(1),
                sequence: 0,
                events: BinaryHeap::new(),
                what: HashMap::new(),
                ready: VecDeque::new(),
                tasks: HashMap::new(),
                ports: HashMap::new(),
                moved: HashMap::new(),
                nat: None,
                delay,
                lose_every: 0,
                network: None,
                sent: 0,
                random: 1,
                delivers_together: false,
            }),
        }))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.world.lock().unwrap()
    }

    /// Has all chance come from this seed.
    pub fn set_seed(&self, seed: u64) {
        self.world().random = seed;
    }

    /// Loses one datagram in so many.
    pub fn lose_every(&self, n: u64) {
        self.world().lose_every = n;
    }

    /// Has a function say what becomes of each datagram from now on. It must not ask the world anything.
    pub fn set_network(
        &self,
        network: impl FnMut(Instant, SocketAddr, SocketAddr, &[u8]) -> Fate + Send + 'static,
    ) {
        self.world().network = Some(Box::new(network));
    }

    /// Gives a port all that comes at the same time at once from now on, as sockets do under load.
    pub fn deliver_together(&self) {
        self.world().delivers_together = true;
    }

    /// Others see the port at `from` as `to` from now on.
    pub fn move_port(&self, from: SocketAddr, to: SocketAddr) {
        self.world().moved.insert(from, to);
    }

    /// Puts a router before some addresses.
    pub fn set_nat(&self, nat: Nat) {
        self.world().nat = Some(nat);
    }

    /// The router starts anew: what is behind it is at other ports from now on.
    pub fn restart_nat(&self) {
        self.world().nat.as_mut().expect("a router").forget();
    }

    /// Lets nobody run for so long, as on a machine that others have: what is due meanwhile happens late, and what comes
    /// waits.
    pub fn stand_still(&self, time: Duration) {
        self.world().now += time;
    }

    /// Cuts off this port: nothing gets to it or from it any more, and nobody is told.
    pub fn cut_off(&self, address: SocketAddr) {
        self.world().ports.remove(&address);
    }

    /// Runs everything until this is done, however much virtual time that takes.
    ///
    /// # Panics
    ///
    /// When nothing is left to happen and this is not done, or a task panics.
    pub fn block_on<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        self.spawn(Box::pin(async move {
            let value = work.await;
            *slot.lock().unwrap() = Some(value);
        }));
        loop {
            let task = self.world().ready.pop_front();
            if let Some(task) = task {
                task.poll();
            } else if let Some(value) = result.lock().unwrap().take() {
                return value;
            } else {
                self.advance();
            }
        }
    }

    /// Ends the world: its tasks are dropped, which hold it, and what they hold.
    pub fn end(&self) {
        let mut world = self.world();
        let tasks = std::mem::take(&mut world.tasks);
        let ready = std::mem::take(&mut world.ready);
        let what = std::mem::take(&mut world.what);
        let ports = std::mem::take(&mut world.ports);
        let network = world.network.take();
        world.events.clear();
        // What is dropped may want to tell the world.
        drop(world);
        for task in tasks.values() {
            let work = task.work.lock().unwrap().take();
            drop(work);
        }
        for port in ports.values() {
            let driven = port.state.lock().unwrap().driven.take();
            drop(driven);
        }
        drop((ready, what, network));
    }

    /// Lets the next thing happen.
    fn advance(&self) {
        let mut world = self.world();
        let Reverse((at, sequence)) =
            world.events.pop().expect("something is to happen: nobody waits for ever");
        // A timer that nobody waits for any more: no time passes for it.
        let Some(what) = world.what.remove(&sequence) else { return };
        world.now = world.now.max(at);
        match what {
            What::Deliver { to, datagram } => {
                let mut datagrams = vec![datagram];
                world.take_deliveries(at, to, &mut datagrams);
                let port = world.ports.get(&to).cloned();
                drop(world);
                if let Some(port) = port {
                    port.deliver(self, datagrams);
                }
            }
            what => {
                drop(world);
                self.run_event(what, sequence);
            }
        }
    }

    fn run_event(&self, what: What, sequence: u64) {
        match what {
            What::Wake(waker) => waker.wake(),
            What::Deliver { .. } => unreachable!("a port gets what has come for it at once"),
            What::Tick(port) => {
                if let Some(port) = port.upgrade().filter(|p| p.state.lock().unwrap().tick == sequence) {
                    port.deliver(self, Vec::new());
                }
            }
            What::Run(port, shard) => {
                if let Some(port) = port.upgrade().filter(|p| p.state.lock().unwrap().runs[shard] == sequence)
                {
                    port.run(self, shard);
                }
            }
        }
    }

    fn at(&self, at: Instant, what: What) -> u64 {
        let mut world = self.world();
        world.sequence += 1;
        let sequence = world.sequence;
        let at = at.max(world.now);
        world.events.push(Reverse((at, sequence)));
        world.what.insert(sequence, what);
        sequence
    }

    fn transmit(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) {
        let mut world = self.world();
        world.sent += 1;
        if world.lose_every > 0 && world.sent.is_multiple_of(world.lose_every) {
            return;
        }
        let now = world.now;
        let fate = world.network.as_mut().map(|network| network(now, from, to, payload));
        let Fate::Arrives(late) = fate.unwrap_or(Fate::Arrives(Duration::ZERO)) else { return };
        let from = world.moved.get(&from).copied().unwrap_or(from);
        let to = world.moved.iter().find(|(_, seen)| **seen == to).map_or(to, |(port, _)| *port);
        let translated = world.nat.as_mut().map_or(Some((from, to)), |nat| nat.translate(now, from, to));
        let Some((from, to)) = translated else { return };
        let at = now + world.delay + late;
        drop(world);
        let datagram = Datagram {
            from,
            to: Some(to.ip()),
            segment_size: payload.len(),
            data: Bytes::copy_from_slice(payload),
        };
        self.at(at, What::Deliver { to, datagram });
    }
}

impl World {
    /// Takes the other datagrams that come for a port at the same time, if it gets them at once.
    fn take_deliveries(&mut self, now: Instant, port: SocketAddr, into: &mut Vec<Datagram>) {
        while self.delivers_together
            && let Some(&Reverse((at, sequence))) = self.events.peek()
            && at == now
            && matches!(&self.what[&sequence], What::Deliver { to, .. } if *to == port)
        {
            self.events.pop();
            if let Some(What::Deliver { datagram, .. }) = self.what.remove(&sequence) {
                into.push(datagram);
            }
        }
    }
}

impl Task {
    fn poll(self: Arc<Self>) {
        let Some(mut work) = self.work.lock().unwrap().take() else { return };
        let waker = Waker::from(Arc::clone(&self));
        if work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            *self.work.lock().unwrap() = Some(work);
        } else if let Some(shared) = self.sim.upgrade() {
            shared.world.lock().unwrap().tasks.remove(&self.name());
        }
    }

    fn name(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }
}

impl Runtime for Sim {
    fn now(&self) -> Instant {
        self.world().now
    }

    fn wall_clock(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + STARTED + Duration::from_nanos(self.world().now.as_nanos())
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture {
        Box::pin(Sleep { sim: self.clone(), at, event: None })
    }

    fn spawn(&self, task: BoxFuture) {
        let task = Arc::new(Task { work: Mutex::new(Some(task)), sim: Arc::downgrade(&self.0) });
        let mut world = self.world();
        world.tasks.insert(task.name(), Arc::clone(&task));
        world.ready.push_back(task);
    }

    fn seed(&self) -> io::Result<[u8; 32]> {
        let mut world = self.world();
        world.random += 1;
        let number = world.random;
        Ok(std::array::from_fn(|at| number.to_le_bytes()[at % 8]))
    }

    fn bind(&self, address: SocketAddr, _: &SocketOptions) -> io::Result<Arc<dyn Port>> {
        let port = Arc::new(SimPort { address, sim: self.clone(), state: Mutex::default() });
        self.world().ports.insert(address, Arc::clone(&port));
        Ok(port)
    }
}

struct Sleep {
    sim: Sim,
    at: Instant,
    /// The event that wakes it, once it was waited for.
    event: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.sim.now() >= self.at {
            return Poll::Ready(());
        }
        let wake = What::Wake(cx.waker().clone());
        // One event, however often it is polled: a task may have many timers and be woken by each.
        let is_pending = self.event.is_some_and(|event| self.sim.world().what.contains_key(&event));
        let before = match self.event.filter(|_| is_pending) {
            Some(event) => self.sim.world().what.insert(event, wake),
            None => {
                self.event = Some(self.sim.at(self.at, wake));
                None
            }
        };
        // A waker may hold the last of a task, which is not dropped with the world locked.
        drop(before);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(event) = self.event {
            let wake = self.sim.world().what.remove(&event);
            drop(wake);
        }
    }
}

struct SimPort {
    address: SocketAddr,
    sim: Sim,
    state: Mutex<PortState>,
}

#[derive(Default)]
struct PortState {
    driven: Option<Arc<dyn Driven>>,
    /// The events that count; others came too late.
    tick: u64,
    runs: Vec<u64>,
    /// What has come while the port rests.
    resting: Option<Vec<Datagram>>,
}

impl fmt::Debug for SimPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimPort({})", self.address)
    }
}

impl SimPort {
    fn is(&self, port: &Arc<SimPort>) -> bool {
        std::ptr::eq(Arc::as_ptr(port), self)
    }

    fn driven(&self) -> Option<Arc<dyn Driven>> {
        self.state.lock().unwrap().driven.clone()
    }

    /// Hands on what has come, or what is due with nothing that has.
    fn deliver(self: &Arc<Self>, sim: &Sim, mut datagrams: Vec<Datagram>) {
        let Some(driven) = self.driven() else { return };
        match &mut self.state.lock().unwrap().resting {
            Some(waiting) if !datagrams.is_empty() => return waiting.append(&mut datagrams),
            resting => datagrams.extend(resting.take().unwrap_or_default()),
        }
        let next = driven.deliver(&mut datagrams.into_iter(), true);
        let (at, resting) = match next {
            Next::Wait(at) => (at, None),
            Next::Rest => (Some(sim.now() + REST), Some(Vec::new())),
        };
        let tick = at.map_or(0, |at| sim.at(at, What::Tick(Arc::downgrade(self))));
        let mut state = self.state.lock().unwrap();
        (state.tick, state.resting) = (tick, resting);
    }

    fn run(self: &Arc<Self>, sim: &Sim, shard: usize) {
        let Some(driven) = self.driven() else { return };
        self.state.lock().unwrap().runs[shard] = 0;
        let next = driven.run(shard);
        let mut state = self.state.lock().unwrap();
        // It may have been woken while it ran.
        if let (Some(at), 0) = (next, state.runs[shard]) {
            state.runs[shard] = sim.at(at, What::Run(Arc::downgrade(self), shard));
        }
    }
}

impl Port for SimPort {
    fn local_addr(&self) -> SocketAddr {
        self.address
    }

    fn start(&self, driven: Arc<dyn Driven>, shards: usize) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        (state.driven, state.runs) = (Some(driven), vec![0; shards]);
        drop(state);
        (0..shards).for_each(|shard| self.wake(shard));
        Ok(())
    }

    fn send(&self, transmit: &Transmit<'_>, _: bool) -> Result<(), SendError> {
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for segment in transmit.contents.chunks(size) {
            self.sim.transmit(self.address, transmit.to, segment);
        }
        Ok(())
    }

    fn wake(&self, shard: usize) {
        let port = self.sim.world().ports.get(&self.address).filter(|port| self.is(port)).map(Arc::downgrade);
        if let Some(port) = port {
            let run = self.sim.at(Instant::ORIGIN, What::Run(port, shard));
            self.state.lock().unwrap().runs[shard] = run;
        }
    }

    fn metrics(&self) -> PortMetrics {
        PortMetrics::default()
    }

    fn shut_down(&self) {
        self.state.lock().unwrap().driven = None;
        let mut world = self.sim.world();
        // Another may have taken the address since this was cut off.
        if world.ports.get(&self.address).is_some_and(|port| self.is(port)) {
            world.ports.remove(&self.address);
        }
    }
}
