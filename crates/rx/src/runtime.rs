//! The interface through which endpoints and services wait: a clock, timers, tasks and ports. The operating system's is
//! in `tokio.rs`; a simulation supplies another, and everything above runs unchanged in virtual time.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rx_proto::time::Instant;

use crate::metrics::PortMetrics;
use crate::socket::{Datagram, IcmpError, SendError, SocketOptions, Transmit};

/// A task, or the wait for a timer.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The source of time, random numbers, tasks and ports.
pub trait Runtime: Debug + Send + Sync + 'static {
    /// The time, by a clock of this runtime that never runs backwards.
    fn now(&self) -> Instant;

    /// The time by a clock that also goes on while the machine sleeps, which [`Self::now`] need not do. They share no origin.
    fn boot_time(&self) -> Instant {
        self.now()
    }

    /// The time of day, which may jump: for what is written down and for tickets, never for how long something takes.
    fn wall_clock(&self) -> SystemTime;

    /// Waits until then. May be late by a millisecond: what has to be exact is the port's business.
    fn sleep_until(&self, at: Instant) -> BoxFuture;

    /// Runs a task, starting soon, until it ends.
    fn spawn(&self, task: BoxFuture);

    /// Fresh random bytes, different at each call.
    fn seed(&self) -> io::Result<[u8; 32]>;

    /// The number of shards that suit this machine, for endpoints that are not told.
    fn default_shards(&self) -> usize {
        1
    }

    /// Binds a port. Nothing is received before [`Port::start`].
    ///
    /// # Errors
    ///
    /// The message names the address and says what to do.
    fn bind(&self, address: SocketAddr, options: &SocketOptions) -> io::Result<Arc<dyn Port>>;
}

/// A bound port.
pub trait Port: Debug + Send + Sync {
    /// The address, with the port number it has got.
    fn local_addr(&self) -> SocketAddr;

    /// Begins to receive for `driven`, and to call [`Driven::run`] for each of its `shards`: once at first, when the time
    /// it gave has come, and after [`Self::wake`]. Never for the same shard twice at a time.
    fn start(&self, driven: Arc<dyn Driven>, shards: usize) -> io::Result<()>;

    /// Sends a bundle. The network may fragment it only if `dont_fragment` is false.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    fn send(&self, transmit: &Transmit<'_>, dont_fragment: bool) -> Result<(), SendError>;

    /// Has [`Driven::run`] called soon for this shard, whatever it waits for.
    fn wake(&self, shard: usize);

    /// Counters and sizes.
    fn metrics(&self) -> PortMetrics;

    /// The bytes that wait to be received, by the kernel's counting. Asked every millisecond under load.
    fn queued_bytes(&self) -> u64 {
        self.metrics().queued_bytes
    }

    /// Ends receiving and running, and lets go of what it drives. When this returns nothing runs any more, unless it was
    /// called from within.
    fn shut_down(&self);
}

/// When a driver is to be called again with what has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// As soon as something comes, and at this time at the latest.
    Wait(Option<Instant>),
    /// After [`REST`], with what has come by then, if anything has: a thread that is woken for each bundle of a stream costs more than
    /// all that is done with it.
    Rest,
}

/// The time for which a port rests: of 1 Gbit/s, 62 kB come in it, about as much as TCP hands to a network card at once.
pub const REST: Duration = Duration::from_micros(500);

/// The endpoint's driver, as a port calls it.
pub trait Driven: Send + Sync {
    /// Datagrams have come, or the time has that the last call returned. `is_drained` says that no more waited: what came may
    /// then be worked through at once, without keeping the port from receiving. Returns when to be called again.
    fn deliver(&self, datagrams: &mut dyn Iterator<Item = Datagram>, is_drained: bool) -> Next;

    /// The network has said something about a packet that was sent.
    fn report(&self, error: &IcmpError);

    /// Runs what is due for a shard; returns the time by which it must be called again.
    fn run(&self, shard: usize) -> Option<Instant>;
}
