//! Many hosts in one process: a runtime whose ports share one thread, which waits for all their sockets and times. With two threads for each of
//! 250 endpoints, as `rx` has them, it is the machine's scheduler that decides when a host of a crowd comes to send or to
//! read; here each comes as soon as its process does.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, ThreadId};
use std::time::{Duration, SystemTime};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::{read, retry_on_intr, write};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use rx::socket::{self, RecvBatch, SendError, Socket, Transmit};
use rx::{BoxFuture, Driven, Next, Port, PortMetrics, REST, Runtime, SocketOptions, TokioRuntime};
use rx_proto::time::Instant;
use tokio::runtime::Handle;

/// The events of the thread beside those of its sockets, which have their numbers.
const WOKEN: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
/// The number of events that are found at once.
const EVENTS: usize = 64;

/// The runtime: tokio's, but for its ports. Their thread ends when it has gone.
#[derive(Debug)]
pub(super) struct Hosts {
    tokio: TokioRuntime,
    shared: Arc<Shared>,
    thread: ThreadId,
    bound: AtomicU64,
}

/// The things that the thread and its ports share.
#[derive(Debug)]
struct Shared {
    /// An eventfd.
    wake: OwnedFd,
    asked: Mutex<Asked>,
}

/// The requests to the thread.
#[derive(Default)]
struct Asked {
    requests: Requests,
    is_over: bool,
    /// The thread waits, or is about to.
    is_asleep: bool,
}

#[derive(Default)]
struct Requests {
    started: Vec<Started>,
    woken: Vec<u64>,
    /// The hosts to let go of; the end of the channel tells those who wait for that.
    ended: Vec<(u64, mpsc::Sender<()>)>,
}

/// A port that has something to drive.
struct Started {
    number: u64,
    socket: Arc<Socket>,
    driven: Arc<dyn Driven>,
    is_woken: Arc<AtomicBool>,
    run_at: Option<Instant>,
    deliver_at: Option<Instant>,
    is_readable: bool,
}

/// A port of one shard.
#[derive(Debug)]
struct HostPort {
    number: u64,
    socket: Arc<Socket>,
    is_woken: Arc<AtomicBool>,
    shared: Arc<Shared>,
    thread: ThreadId,
}

impl Hosts {
    /// A runtime on the tokio runtime that the caller is in.
    pub(super) fn new() -> io::Result<Arc<Hosts>> {
        let tokio = TokioRuntime::current();
        let shared = Arc::new(Shared { wake: eventfd(0, EventfdFlags::empty())?, asked: Mutex::default() });
        let mut waiting = Waiting::new(&shared.wake)?;
        let (handle, its) = (Handle::current(), (tokio.clone(), Arc::clone(&shared)));
        let thread = thread::Builder::new().name("hosts".into()).spawn(move || {
            // Callers may be woken here, and expect to be in a tokio runtime.
            let _in_runtime = handle.enter();
            socket::wake_exactly();
            let (tokio, shared) = its;
            serve(&shared, &tokio, &mut waiting);
        })?;
        Ok(Arc::new(Hosts { tokio, shared, thread: thread.thread().id(), bound: AtomicU64::new(0) }))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.shared.ask(|asked| asked.is_over = true);
    }
}

impl Runtime for Hosts {
    fn now(&self) -> Instant {
        self.tokio.now()
    }

    fn wall_clock(&self) -> SystemTime {
        self.tokio.wall_clock()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture {
        self.tokio.sleep_until(at)
    }

    fn spawn(&self, task: BoxFuture) {
        self.tokio.spawn(task);
    }

    fn seed(&self) -> io::Result<[u8; 32]> {
        self.tokio.seed()
    }

    fn bind(&self, address: SocketAddr, options: &SocketOptions) -> io::Result<Arc<dyn Port>> {
        Ok(Arc::new(HostPort {
            number: self.bound.fetch_add(1, Ordering::Relaxed),
            socket: Arc::new(Socket::bind(address, options)?),
            is_woken: Arc::default(),
            shared: Arc::clone(&self.shared),
            thread: self.thread,
        }))
    }
}

impl Port for HostPort {
    fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    fn start(&self, driven: Arc<dyn Driven>, shards: usize) -> io::Result<()> {
        assert_eq!(shards, 1, "all calls of a host go to one peer, which is one shard's");
        let started = Started {
            number: self.number,
            socket: Arc::clone(&self.socket),
            driven,
            is_woken: Arc::clone(&self.is_woken),
            run_at: Some(Instant::ORIGIN),
            deliver_at: None,
            is_readable: false,
        };
        self.shared.ask(|asked| asked.requests.started.push(started));
        Ok(())
    }

    fn send(&self, transmit: &Transmit<'_>, dont_fragment: bool) -> Result<(), SendError> {
        if dont_fragment { self.socket.send(transmit) } else { self.socket.send_fragmentable(transmit) }
    }

    fn wake(&self, _shard: usize) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.shared.ask(|asked| asked.requests.woken.push(self.number));
        }
    }

    fn metrics(&self) -> PortMetrics {
        PortMetrics::of(&self.socket)
    }

    fn queued_bytes(&self) -> u64 {
        self.socket.queued_bytes().unwrap_or_default() as u64
    }

    fn shut_down(&self) {
        self.socket.shut_down();
        let (ended, is_let_go) = mpsc::channel();
        self.shared.ask(|asked| asked.requests.ended.push((self.number, ended)));
        if thread::current().id() != self.thread {
            // Nothing is sent: it is the sender that goes.
            let _ = is_let_go.recv();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the thread for something, and wakes it if it waits.
    fn ask(&self, add: impl FnOnce(&mut Asked)) {
        let mut asked = self.lock();
        add(&mut asked);
        let was_asleep = std::mem::take(&mut asked.is_asleep);
        drop(asked);
        if was_asleep {
            write(&self.wake, &1u64.to_ne_bytes())
                .expect("a counter of what is read each time does not overflow");
        }
    }
}

/// The thread: works for whichever port has something to do, and waits if none has.
fn serve(shared: &Shared, clock: &TokioRuntime, waiting: &mut Waiting) {
    let mut ports: Vec<Started> = Vec::new();
    let mut batch = RecvBatch::new();
    loop {
        let mut asked = shared.lock();
        let is_idle = asked.requests.is_empty();
        asked.is_asleep = is_idle;
        let requests = std::mem::take(&mut asked.requests);
        if asked.is_over {
            return;
        }
        drop(asked);
        for port in requests.started {
            waiting.add(&port).expect("a process may wait for all the sockets that it may have");
            ports.push(port);
        }
        for number in requests.woken {
            for port in ports.iter_mut().filter(|port| port.number == number) {
                port.is_woken.store(false, Ordering::Release);
                port.run_at = Some(Instant::ORIGIN);
            }
        }
        for (number, _ended) in requests.ended {
            let gone = ports.extract_if(.., |port| port.number == number);
            gone.for_each(|port| waiting.remove(&port));
        }
        let next = ports.iter().filter_map(Started::next).min();
        let wait = if is_idle { next.map(|at| at.since(clock.now())) } else { Some(Duration::ZERO) };
        waiting.wait(shared, wait, &mut ports);
        let now = clock.now();
        for port in &mut ports {
            port.work(now, &mut batch);
        }
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("is_asleep", &self.is_asleep).finish_non_exhaustive()
    }
}

impl Requests {
    fn is_empty(&self) -> bool {
        self.started.is_empty() && self.woken.is_empty() && self.ended.is_empty()
    }
}

impl Started {
    /// The time when it has something to do at the latest.
    fn next(&self) -> Option<Instant> {
        [self.run_at, self.deliver_at].into_iter().flatten().min()
    }

    fn work(&mut self, now: Instant, batch: &mut RecvBatch) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if self.is_readable || is_due(self.deliver_at) {
            self.is_readable = false;
            let received = self.socket.recv(batch, Some(Duration::ZERO)).unwrap_or(0);
            for error in batch.drain_errors() {
                self.driven.report(&error);
            }
            if received > 0 || is_due(self.deliver_at) {
                let is_drained = received < socket::MAX_DELIVERIES;
                self.deliver_at = match self.driven.deliver(&mut batch.drain(), is_drained) {
                    Next::Wait(at) => at,
                    Next::Rest => Some(now + REST),
                };
            }
        }
        if is_due(self.run_at) {
            self.run_at = self.driven.run(0);
        }
    }
}

/// The descriptors that the thread waits with.
struct Waiting {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Waiting {
    fn new(wake: &OwnedFd) -> io::Result<Waiting> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // epoll counts milliseconds, and pacing does not.
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        epoll::add(&epoll, wake, EventData::new_u64(WOKEN), EventFlags::IN)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        Ok(Waiting { epoll, timer })
    }

    /// The port's socket is waited for as long as it is open.
    fn add(&self, port: &Started) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, &*port.socket, EventData::new_u64(port.number), EventFlags::IN)?)
    }

    fn remove(&self, port: &Started) {
        epoll::delete(&self.epoll, &*port.socket).expect("it was added");
    }

    /// Waits for so long (for ever with `None`), for a socket, or to be woken; notes who can read.
    fn wait(&self, shared: &Shared, wait: Option<Duration>, ports: &mut [Started]) {
        let is_now = wait.is_some_and(|wait| wait.is_zero());
        if let Some(wait) = wait.filter(|_| !is_now) {
            let it_value = wait.try_into().expect("seconds that are counted from the start of the process");
            let once = Itimerspec { it_interval: Timespec::default(), it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).expect("a time that is not zero");
        }
        let mut events = Vec::with_capacity(EVENTS);
        let timeout = is_now.then(Timespec::default);
        // A signal ends the wait with nothing found.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref());
        shared.lock().is_asleep = false;
        let mut count = [0; 8];
        for event in events {
            match event.data.u64() {
                WOKEN => _ = read(&shared.wake, &mut count),
                TIMER => _ = retry_on_intr(|| read(&self.timer, &mut count)),
                number => {
                    ports
                        .iter_mut()
                        .filter(|port| port.number == number)
                        .for_each(|port| port.is_readable = true);
                }
            }
        }
    }
}
