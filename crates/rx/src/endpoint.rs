//! An endpoint as applications have it: a UDP port that calls and serves. Clones share it; when the last is dropped, and
//! the last connection made from it, its threads end and its port is free.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use rx_proto::Role;
use rx_proto::config::Config;
use rx_proto::debug::DebugStats;
use rx_proto::fair::Owners;
use rx_proto::ids::ServiceId;
use rx_proto::security::SecurityClass;
use rx_proto::stats::Stats;
use rx_proto::time::Instant;
use rx_proto::totals::Totals;
use tokio::sync::oneshot;

use crate::client::{Connection, Peer, PeerLimits};
use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::runtime::Runtime;
use crate::server::{ServiceConfig, ServiceEntry};
use crate::socket::{DEFAULT_RECEIVE_BUFFER_BYTES, SocketOptions};
use crate::tokio::TokioRuntime;

/// The configuration of an endpoint.
#[derive(Debug, Clone)]
pub struct EndpointConfig {
    /// The protocol's knobs.
    pub proto: Config,
    /// The socket's.
    pub socket: SocketOptions,
    /// Parts that are worked on at the same time, peers being spread over them by their address. Each costs a thread, and
    /// calls of one peer never use more than one. Default `None`: one for every two cores but the first two, at most 8.
    pub shards: Option<usize>,
    /// Memory that received packets may hold before a shard has worked through them, in bytes; beyond it they are dropped.
    /// Default 64 MiB, some 16,000 packets: less loses packets in bursts, more only delays the loss.
    pub queue_bytes: usize,
    /// True if it begins as a server whose services are still to come: a call of a missing service gets no answer until
    /// [`Endpoint::set_starting`] says otherwise. Default false: it is refused.
    pub is_starting: bool,
    /// The time between two publications of counters and gauges through the `metrics` facade; `None` leaves that to
    /// [`Endpoint::publish_metrics`]. Default 1 s, far below the time between two looks of an exporter: it costs a lock of
    /// each shard, some system calls, and a wake-up of an idle program.
    pub publish_every: Option<Duration>,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            proto: Config::default(),
            socket: SocketOptions::default(),
            shards: None,
            queue_bytes: 64 << 20,
            is_starting: false,
            publish_every: Some(Duration::from_secs(1)),
        }
    }
}

/// A UDP port that calls and serves.
#[derive(Debug, Clone)]
pub struct Endpoint {
    handle: Arc<Handle>,
}

/// The state that all clones share; dropped, it shuts down.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) driver: Arc<Driver>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.driver.shut_down();
    }
}

/// An endpoint that does not keep it alive, for what the endpoint's own handlers hold.
#[derive(Debug, Clone)]
pub struct WeakEndpoint {
    handle: Weak<Handle>,
}

impl WeakEndpoint {
    /// The endpoint, if it is still there.
    pub fn upgrade(&self) -> Option<Endpoint> {
        self.handle.upgrade().map(Endpoint::from_handle)
    }
}

impl Endpoint {
    /// Binds a UDP port and begins to receive, on the tokio runtime that the caller is in. Port 0 takes any free one;
    /// `[::]` serves IPv4 and IPv6.
    ///
    /// # Errors
    ///
    /// When the port cannot be had; the message says why and what to do.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn bind(address: SocketAddr, config: EndpointConfig) -> io::Result<Self> {
        Self::bind_with(Arc::new(TokioRuntime::current()), address, config)
    }

    /// The same on a runtime of the caller's choice.
    ///
    /// # Errors
    ///
    /// As [`Self::bind`].
    pub fn bind_with(
        runtime: Arc<dyn Runtime>,
        address: SocketAddr,
        config: EndpointConfig,
    ) -> io::Result<Self> {
        let EndpointConfig { mut proto, socket, shards, queue_bytes, is_starting, publish_every } = config;
        let port = runtime.bind(address, &socket)?;
        let shards = shards.unwrap_or_else(|| runtime.default_shards()).max(1);
        proto.receive_buffer = proto
            .receive_buffer
            .or_else(|| small_buffer(&socket, port.metrics().receive_buffer_bytes))
            .map(|bytes| bytes / shards as u64);
        let totals = Totals::default();
        let mut endpoints = Vec::with_capacity(shards);
        for _ in 0..shards {
            let mut endpoint =
                rx_proto::endpoint::Endpoint::with_totals(proto.clone(), runtime.seed()?, &totals);
            endpoint.set_starting(runtime.now(), is_starting);
            endpoints.push(endpoint);
        }
        let seed = runtime.seed()?;
        let (first, second) = seed.split_at(16);
        let owners = Owners::new([word(first), word(second)]);
        let driver = Driver::new(runtime, port, endpoints, queue_bytes, owners);
        let handle = Arc::new(Handle { driver });
        let driver = &handle.driver;
        driver.owner.set(Arc::downgrade(&handle)).expect("a driver is given its owner once");
        driver.port.start(Arc::clone(driver) as _, shards)?;
        if let Some(every) = publish_every {
            driver.runtime.spawn(Box::pin(publish(Arc::downgrade(driver), every)));
        }
        Ok(Self { handle })
    }

    pub(crate) fn from_handle(handle: Arc<Handle>) -> Self {
        Self { handle }
    }

    pub(crate) fn handle(&self) -> Arc<Handle> {
        Arc::clone(&self.handle)
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.handle.driver
    }

    /// An endpoint that does not keep this one alive.
    pub fn downgrade(&self) -> WeakEndpoint {
        WeakEndpoint { handle: Arc::downgrade(&self.handle) }
    }

    /// The address it is bound to, with the port number it has got.
    pub fn local_addr(&self) -> SocketAddr {
        self.driver().port.local_addr()
    }

    /// The runtime it runs on.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.driver().runtime
    }

    /// The time by its runtime, for deadlines.
    pub fn now(&self) -> Instant {
        self.driver().runtime.now()
    }

    /// Offers a service; replaces one of the same number for calls that begin from now on.
    pub fn add_service(&self, config: ServiceConfig) {
        let driver = self.driver();
        let service = config.service.clone();
        let meters = driver.meters.of(Role::Server, service.id);
        let entry = Arc::new(ServiceEntry::new(config, meters));
        driver.services.write().unwrap_or_else(PoisonError::into_inner).insert(entry.id(), entry);
        for shard in &driver.shards {
            shard.lock().endpoint.add_service(service.clone());
        }
    }

    /// Sets whether services are still to come ([`EndpointConfig::is_starting`]). Once they have, clients that asked too
    /// early are answered, or refused.
    pub fn set_starting(&self, is_starting: bool) {
        let driver = self.driver();
        for shard in &driver.shards {
            driver.with(shard, |state, now| state.endpoint.set_starting(now, is_starting));
        }
    }

    /// Sets whether the endpoint's services are away: see [`rx_proto::endpoint::Endpoint::set_away`]. Calls that run end; their
    /// handlers see that when they next read or write, and [`Self::served_calls`] tells whether all have.
    pub fn set_away(&self, is_away: bool) {
        let driver = self.driver();
        for shard in &driver.shards {
            driver.with(shard, |state, now| state.endpoint.set_away(now, is_away));
        }
        if is_away {
            let services: Vec<_> = {
                let services = driver.services.read().unwrap_or_else(PoisonError::into_inner);
                services.values().map(Arc::clone).collect()
            };
            services.iter().for_each(|service| service.clear());
        }
    }

    /// The number of clients' calls that run or wait for a slot, including those whose handlers have not noticed the
    /// end.
    pub fn served_calls(&self) -> usize {
        let services = self.driver().services.read().unwrap_or_else(PoisonError::into_inner);
        services.values().map(|service| service.calls()).sum()
    }

    /// Says that these are addresses of one server: its answers are taken from any of them ([`rx_proto::endpoint::Endpoint::know_host`]).
    pub fn know_host(&self, addresses: &[IpAddr]) {
        let driver = self.driver();
        for shard in &driver.shards {
            driver.with(shard, |state, _| state.endpoint.know_host(addresses));
        }
    }

    /// Makes a connection to a service of a peer. Nothing is sent before its first call.
    pub fn connect(
        &self,
        peer: SocketAddr,
        service: ServiceId,
        security: Box<dyn SecurityClass>,
    ) -> Connection {
        Connection::new(self, peer, service, security)
    }

    /// A service of a peer, for any number of calls at once; `security` is asked for each connection that it makes.
    pub fn peer(
        &self,
        peer: SocketAddr,
        service: ServiceId,
        limits: PeerLimits,
        security: impl Fn() -> Box<dyn SecurityClass> + Send + Sync + 'static,
    ) -> Peer {
        Peer::new(self.clone(), peer, service, limits, Box::new(security))
    }

    /// The smoothed and the smallest round-trip time to a peer, as far as known.
    pub fn rtt_to(&self, peer: SocketAddr) -> Option<(Duration, Duration)> {
        let state = self.driver().shard_of(peer).lock();
        let rtt = state.endpoint.path_to(peer)?.rtt();
        rtt.is_known().then(|| (rtt.smoothed(), rtt.min()))
    }

    /// Keeps the mapping of a NAT router on the way to a peer alive, by a packet that the peer does not answer. Nothing is sent to a peer
    /// to which there is no connection.
    pub fn ping_nat(&self, peer: SocketAddr) {
        let driver = self.driver();
        driver.with(driver.shard_of(peer), |state, _| state.endpoint.ping_nat(peer));
    }

    /// Asks the endpoint at a peer for its `rxdebug` statistics: how many of its threads are idle, and how many calls wait for one.
    /// `None` if there is no connection to it from here, if it does not tell, or not within `wait`.
    pub async fn statistics_of(&self, peer: SocketAddr, wait: Duration) -> Option<DebugStats> {
        let driver = self.driver();
        let (sender, mut answer) = oneshot::channel();
        driver.with(driver.shard_of(peer), |state, _| state.ask_statistics(peer, sender));
        let mut timer = driver.runtime.sleep_until(driver.runtime.now() + wait);
        poll_fn(|cx| match Pin::new(&mut answer).poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer.ok()),
            Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Counters of the port, the queues and the services.
    pub fn metrics(&self) -> Metrics {
        self.driver().metrics()
    }

    /// The protocol's counters, added up over the shards.
    pub fn stats(&self) -> Stats {
        self.driver().snapshot().stats
    }

    /// Publishes counters and gauges through the `metrics` facade now, beside
    /// [`publish_every`](EndpointConfig::publish_every): for an exporter that is about to be read. Costs a lock of each shard and some system calls.
    pub fn publish_metrics(&self) {
        self.driver().publish_metrics();
    }

    /// The number of connections, of both roles.
    pub fn connection_count(&self) -> usize {
        self.driver().shards.iter().map(|shard| shard.lock().endpoint.connection_count()).sum()
    }

    /// Ends it now, even if others still have it: all calls are aborted, handlers see theirs fail, and the threads end before this returns
    /// (unless it is called by one of them). The port is free when the last handler has gone, which [`close`](Self::close) waits for.
    pub fn shut_down(&self) {
        self.driver().shut_down();
    }

    /// Ends it, and waits until the port is free: until handlers have returned, and other clones and the connections made from
    /// it are dropped. (Where this process starts programs meanwhile, each has a copy of the socket until its exec.)
    pub async fn close(self) {
        self.shut_down();
        let mut gone = self.driver().gone.subscribe();
        drop(self);
        // Nothing is ever sent: it is the sender that goes.
        let _ = gone.changed().await;
    }
}

/// Publishes an endpoint's counters for as long as it is there.
async fn publish(driver: Weak<Driver>, every: Duration) {
    while let Some(sleep) = driver.upgrade().map(|d| d.runtime.sleep_until(d.runtime.now() + every)) {
        sleep.await;
        if let Some(driver) = driver.upgrade() {
            driver.publish_metrics();
            if driver.is_shut_down() {
                break;
            }
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The receive buffer, if it is one that offers have to be kept below: where an administrator has set a limit, or the
/// kernel has granted less than was asked for. `None` for a port that has none.
fn small_buffer(options: &SocketOptions, granted: u64) -> Option<u64> {
    let is_limited = options.receive_buffer_bytes.is_some() || granted < DEFAULT_RECEIVE_BUFFER_BYTES as u64;
    (is_limited && granted > 0).then_some(granted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_kept_below_a_buffer_that_could_not_be_forced_or_was_set() {
        let options = SocketOptions::default();
        assert_eq!(small_buffer(&options, 212_992), Some(212_992));
        assert_eq!(small_buffer(&options, DEFAULT_RECEIVE_BUFFER_BYTES as u64), None);
        assert_eq!(small_buffer(&options, 0), None, "a simulated port has none");
        let set = SocketOptions { receive_buffer_bytes: Some(64 << 20), ..options };
        assert_eq!(small_buffer(&set, 64 << 20), Some(64 << 20));
    }
}
