//! The runtime of the operating system: tokio for tasks and coarse timers, UDP sockets with threads of their own for what
//! has to be exact. The only reader of the clock.

use std::io;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant as OsInstant, SystemTime};

use rustix::time::ClockId;
use rx_proto::time::Instant;
use tokio::runtime::Handle;

use crate::metrics::PortMetrics;
use crate::runtime::{BoxFuture, Driven, Next, Port, REST, Runtime};
use crate::socket::{self, RecvBatch, SendError, Socket, SocketOptions, Transmit};

/// Most shards by default: beyond it the one receiving thread is what limits.
const MAX_DEFAULT_SHARDS: usize = 8;

/// The time for which a receiving thread rests after the socket has failed as a whole, for want of memory.
const RECEIVE_AGAIN: Duration = Duration::from_millis(10);

/// The pause after a panic, so that one that comes again and again does not fill log and core.
const AFTER_PANIC: Duration = Duration::from_millis(10);

/// The operating system with a tokio runtime.
#[derive(Debug, Clone)]
pub struct TokioRuntime {
    handle: Handle,
    origin: OsInstant,
}

impl TokioRuntime {
    /// The tokio runtime that the caller is in.
    ///
    /// # Panics
    ///
    /// If it is in none.
    pub fn current() -> Self {
        Self::new(Handle::current())
    }

    /// A given tokio runtime. Its time driver must be enabled.
    #[expect(clippy::disallowed_methods, reason = "the runtime is who reads the clock")]
    pub fn new(handle: Handle) -> Self {
        // A second before now, so that no time is the protocol's origin.
        let now = OsInstant::now();
        Self { handle, origin: now.checked_sub(Duration::from_secs(1)).unwrap_or(now) }
    }
}

impl Runtime for TokioRuntime {
    fn now(&self) -> Instant {
        Instant::ORIGIN + self.origin.elapsed()
    }

    fn boot_time(&self) -> Instant {
        let time = rustix::time::clock_gettime(ClockId::Boottime);
        let whole = Duration::from_secs(time.tv_sec.try_into().unwrap_or(0));
        Instant::ORIGIN + whole + Duration::from_nanos(time.tv_nsec.try_into().unwrap_or(0))
    }

    #[expect(clippy::disallowed_methods, reason = "the runtime is who reads the clock")]
    fn wall_clock(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture {
        let at = self.origin + at.since(Instant::ORIGIN);
        let _in_runtime = self.handle.enter();
        Box::pin(tokio::time::sleep_until(at.into()))
    }

    fn spawn(&self, task: BoxFuture) {
        drop(self.handle.spawn(task));
    }

    fn seed(&self) -> io::Result<[u8; 32]> {
        socket::random_bytes()
    }

    fn default_shards(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        (cores / 2).clamp(1, MAX_DEFAULT_SHARDS)
    }

    fn bind(&self, address: SocketAddr, options: &SocketOptions) -> io::Result<Arc<dyn Port>> {
        Ok(Arc::new(OsPort {
            socket: Arc::new(Socket::bind(address, options)?),
            runtime: self.clone(),
            workers: OnceLock::new(),
            threads: Mutex::default(),
        }))
    }
}

/// A UDP socket, the thread that receives from it, and one for each shard.
#[derive(Debug)]
struct OsPort {
    socket: Arc<Socket>,
    runtime: TokioRuntime,
    workers: OnceLock<Vec<Thread>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Port for OsPort {
    fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    fn start(&self, driven: Arc<dyn Driven>, shards: usize) -> io::Result<()> {
        let port = self.local_addr().port();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workers = Vec::with_capacity(shards);
        for shard in 0..shards {
            let (driven, socket, runtime) =
                (Arc::clone(&driven), Arc::clone(&self.socket), self.runtime.clone());
            let name = format!("rx-{port}-{shard}");
            let thread =
                thread::Builder::new().name(name).spawn(move || work(&*driven, &socket, &runtime, shard))?;
            workers.push(thread.thread().clone());
            threads.push(thread);
        }
        self.workers.set(workers).map_err(|_| io::Error::other("a port is started once"))?;
        let (socket, runtime) = (Arc::clone(&self.socket), self.runtime.clone());
        let name = format!("rx-{port}-recv");
        threads.push(thread::Builder::new().name(name).spawn(move || receive(&*driven, &socket, &runtime))?);
        Ok(())
    }

    fn send(&self, transmit: &Transmit<'_>, dont_fragment: bool) -> Result<(), SendError> {
        if dont_fragment { self.socket.send(transmit) } else { self.socket.send_fragmentable(transmit) }
    }

    fn wake(&self, shard: usize) {
        if let Some(worker) = self.workers.get().and_then(|w| w.get(shard)) {
            worker.unpark();
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
        for worker in self.workers.get().into_iter().flatten() {
            worker.unpark();
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A handler may hold the last endpoint, and run on one of these threads: that one ends by itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// A shard's thread: runs it whenever it is due or woken.
fn work(driven: &dyn Driven, socket: &Socket, runtime: &TokioRuntime, shard: usize) {
    // Handlers may begin here, and expect to be in a tokio runtime.
    let _in_runtime = runtime.handle.enter();
    socket::wake_exactly();
    while !socket.is_shut_down() {
        // After a panic at once: something may be due.
        match go_on(|| driven.run(shard)).unwrap_or(Some(Instant::ORIGIN)) {
            Some(at) => thread::park_timeout(at.since(runtime.now())),
            None => thread::park(),
        }
    }
}

/// The receiving thread: empties the socket and hands on.
fn receive(driven: &dyn Driven, socket: &Socket, runtime: &TokioRuntime) {
    let _in_runtime = runtime.handle.enter();
    socket::wake_exactly();
    let mut batch = RecvBatch::new();
    let mut next = Next::Wait(None);
    while !socket.is_shut_down() {
        let wait = match next {
            Next::Wait(call_at) => call_at.map(|at| at.since(runtime.now())),
            Next::Rest => {
                thread::sleep(REST);
                Some(Duration::ZERO)
            }
        };
        let received = match socket.recv(&mut batch, wait) {
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(%error, "cannot receive for the moment");
                thread::park_timeout(RECEIVE_AGAIN);
                continue;
            }
        };
        for error in batch.drain_errors() {
            go_on(|| driven.report(&error));
        }
        let is_due = match next {
            Next::Wait(call_at) => call_at.is_some_and(|at| at <= runtime.now()),
            Next::Rest => true,
        };
        if received > 0 || is_due {
            next = go_on(|| driven.deliver(&mut batch.drain(), received < socket::MAX_DELIVERIES))
                .unwrap_or(Next::Wait(Some(Instant::ORIGIN))); // something may be due
        }
    }
}

/// Runs a piece of work. A panic in it is logged, and the port goes on after a pause, because the calls that the defect
/// does not concern should not end with it.
fn go_on<T>(work: impl FnOnce() -> T) -> Option<T> {
    let done = panic::catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        tracing::error!(
            "a defect: a thread of an Rx port panicked, and goes on; please report the message above"
        );
        thread::sleep(AFTER_PANIC);
    }
    done
}
