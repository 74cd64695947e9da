//! The calling end: connections, each with four channels for a call at a time, and the set of connections to a service of a
//! peer that many calls at once need.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use rx_proto::Role;
use rx_proto::config::CallLimits;
use rx_proto::endpoint::ConnectionHandle;
use rx_proto::ids::{CHANNELS, ServiceId};
use rx_proto::security::SecurityClass;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::call::Call;
use crate::endpoint::{Endpoint, Handle};
use crate::error::CallError;
use crate::metrics::{CallMeters, Measured};

/// A connection to a service of a peer, with one user's security. Clones share it; with the last of them, and of its
/// calls, it goes. Four calls run at once, more wait in line.
#[derive(Debug, Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    endpoint: Arc<Handle>,
    shard: usize,
    handle: ConnectionHandle,
    peer: SocketAddr,
    service: ServiceId,
    /// One permit for each channel.
    channels: Arc<Semaphore>,
    meters: Arc<CallMeters>,
}

impl Connection {
    pub(crate) fn new(
        endpoint: &Endpoint,
        peer: SocketAddr,
        service: ServiceId,
        security: Box<dyn SecurityClass>,
    ) -> Self {
        let driver = endpoint.driver();
        let shard = driver.shard_of(peer);
        let handle = driver.with(shard, |state, now| state.endpoint.connect(now, peer, service, security));
        Self {
            inner: Arc::new(Inner {
                shard: shard.index,
                endpoint: endpoint.handle(),
                handle,
                peer,
                service,
                channels: Arc::new(Semaphore::new(CHANNELS)),
                meters: driver.meters.of(Role::Client, service),
            }),
        }
    }

    /// The address of the peer.
    pub fn peer(&self) -> SocketAddr {
        self.inner.peer
    }

    /// The service, as it was asked for.
    pub fn service(&self) -> ServiceId {
        self.inner.service
    }

    /// Sets how long the calls of this connection wait from now on.
    pub fn set_limits(&self, limits: CallLimits) {
        let inner = &*self.inner;
        let driver = &inner.endpoint.driver;
        driver.with(&driver.shards[inner.shard], |state, _| state.endpoint.set_limits(inner.handle, limits));
    }

    /// Begins a call, waiting for a free channel. Nothing is sent before the first bytes are.
    ///
    /// # Errors
    ///
    /// When the connection was refused by the peer, or forgotten after a long time without calls: make a new one.
    pub async fn call(&self) -> Result<ClientCall, CallError> {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.inner.channels).acquire_owned().await;
        self.open(permit.map_err(|_| CallError::EndpointClosed)?).await
    }

    /// Begins a call on a channel that nobody else wants. It may yet be busy for a moment with the end of its last call.
    async fn open(&self, permit: OwnedSemaphorePermit) -> Result<ClientCall, CallError> {
        let inner = &*self.inner;
        let driver = &inner.endpoint.driver;
        let shard = &driver.shards[inner.shard];
        let handle = poll_fn(|cx| {
            driver.with_others(shard, |state, now| {
                if state.is_closed {
                    return Poll::Ready(Err(CallError::EndpointClosed));
                }
                match state.endpoint.open(now, inner.handle) {
                    Ok(Some(call)) => {
                        state.add_call(call, true);
                        Poll::Ready(Ok((call, now)))
                    }
                    Ok(None) => {
                        state.wait_for_channel(inner.handle, cx.waker());
                        Poll::Pending
                    }
                    Err(error) => Poll::Ready(Err(CallError::of(error, inner.peer, inner.service))),
                }
            })
        });
        let (handle, started) = handle.await?;
        let measured = Measured { started, meters: Arc::clone(&inner.meters) };
        let driver = Arc::clone(driver);
        let call = Call::new(driver, inner.shard, handle, inner.peer, inner.service, true, measured);
        Ok(ClientCall { call, _channel: permit, slot: None, connection: self.clone() })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let driver = &self.endpoint.driver;
        driver.with(&driver.shards[self.shard], |state, now| {
            state.endpoint.close_connection(now, self.handle);
            state.remove_connection(self.handle);
        });
    }
}

/// A call as its caller has it: the request is sent, the reply received. Dropped before the reply has been read to its end,
/// it is aborted.
pub struct ClientCall {
    call: Call,
    /// Its channel, and its slot among the calls of a [`Peer`]; given back when the call has been let go.
    _channel: OwnedSemaphorePermit,
    slot: Option<OwnedSemaphorePermit>,
    connection: Connection,
}

impl ClientCall {
    /// The connection that carries it.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl fmt::Debug for ClientCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientCall").field(&self.call).finish()
    }
}

impl Deref for ClientCall {
    type Target = Call;

    fn deref(&self) -> &Call {
        &self.call
    }
}

impl DerefMut for ClientCall {
    fn deref_mut(&mut self) -> &mut Call {
        &mut self.call
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        self.call.release();
    }
}

/// Limits of a [`Peer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLimits {
    /// Most connections, four calls each; further calls wait. Default 16: what 64 calls at once need. Servers keep some
    /// 500 bytes for each, and OpenAFS's file servers count them per host.
    pub connections: usize,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self { connections: 16 }
    }
}

/// A service of a peer, called with one user's security by any number of calls at once: makes connections as they are
/// needed, uses them again, and replaces those that the peer has refused or that were idle for too long.
#[derive(Debug, Clone)]
pub struct Peer {
    inner: Arc<PeerInner>,
}

type SecurityFactory = Box<dyn Fn() -> Box<dyn SecurityClass> + Send + Sync>;

struct PeerInner {
    endpoint: Endpoint,
    peer: SocketAddr,
    service: ServiceId,
    security: SecurityFactory,
    channels: Arc<Semaphore>,
    connections: Mutex<Vec<Connection>>,
}

impl fmt::Debug for PeerInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("peer", &self.peer)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

impl Peer {
    pub(crate) fn new(
        endpoint: Endpoint,
        peer: SocketAddr,
        service: ServiceId,
        limits: PeerLimits,
        security: SecurityFactory,
    ) -> Self {
        let channels = Arc::new(Semaphore::new(limits.connections.max(1) * CHANNELS));
        Self {
            inner: Arc::new(PeerInner {
                endpoint,
                peer,
                service,
                security,
                channels,
                connections: Mutex::default(),
            }),
        }
    }

    /// The address of the peer.
    pub fn address(&self) -> SocketAddr {
        self.inner.peer
    }

    /// The number of connections.
    pub fn connection_count(&self) -> usize {
        self.lock().len()
    }

    /// Begins a call, on a connection that has a free channel or on a new one.
    ///
    /// # Errors
    ///
    /// When a new connection cannot call either.
    pub async fn call(&self) -> Result<ClientCall, CallError> {
        let permit = Arc::clone(&self.inner.channels).acquire_owned().await;
        let permit = permit.map_err(|_| CallError::EndpointClosed)?;
        let (connection, channel, is_new) = self.pick();
        let call = match connection.open(channel).await {
            Err(CallError::EndpointClosed) => return Err(CallError::EndpointClosed),
            Err(_) if !is_new => {
                self.lock().retain(|c| !Arc::ptr_eq(&c.inner, &connection.inner));
                drop(connection);
                let (connection, channel, _) = self.pick();
                connection.open(channel).await
            }
            call => call,
        };
        let mut call = call?;
        call.slot = Some(permit);
        Ok(call)
    }

    /// A connection with a channel that nobody uses.
    fn pick(&self) -> (Connection, OwnedSemaphorePermit, bool) {
        let mut connections = self.lock();
        let free = connections.iter().find_map(|connection| {
            let channel = Arc::clone(&connection.inner.channels).try_acquire_owned().ok()?;
            Some((connection.clone(), channel))
        });
        if let Some((connection, channel)) = free {
            return (connection, channel, false);
        }
        let inner = &*self.inner;
        let connection = Connection::new(&inner.endpoint, inner.peer, inner.service, (inner.security)());
        connections.push(connection.clone());
        let channel = Arc::clone(&connection.inner.channels)
            .try_acquire_owned()
            .expect("a new connection has four channels");
        (connection, channel, true)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.inner.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
