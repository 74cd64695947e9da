//! The client: a port, a UUID, what it heard; and a server's service as one caller sees it.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use afs_wire::Uuid;
use afs_wire::afsvol::AfsVol;
use afs_wire::pt::Pr;
use afs_wire::rxafs::Rxafs;
use afs_wire::vl::Vl;
use rx::{Endpoint, EndpointConfig, Peer, PeerLimits, Runtime, TokioRuntime};
use rx_proto::ids::ServiceId;
use rxgen::{Interface, Rpc};

use super::callbacks::{self, CallbackLog, Heard};
use super::credentials::Credentials;
use super::error::Error;
use super::files::FileServer;
use super::volumes::VolumeServer;

/// A client machine, as servers see it: one UDP port, from which it calls and on which it is called back.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    uuid: Uuid,
    log: Arc<CallbackLog>,
}

impl Client {
    /// A client with an endpoint's defaults and a UUID of its own. Port 0 takes any free one. Must be called in a tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// When the port cannot be had.
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        Self::bind_with(address, EndpointConfig::default())
    }

    /// The same with a configuration.
    ///
    /// # Errors
    ///
    /// As [`Self::bind`].
    pub fn bind_with(address: SocketAddr, config: EndpointConfig) -> Result<Self, Error> {
        Self::bind_on(Arc::new(TokioRuntime::current()), address, config)
    }

    /// The same on a runtime, which has the client's socket and times.
    ///
    /// # Errors
    ///
    /// As [`Self::bind`].
    pub fn bind_on(
        runtime: Arc<dyn Runtime>,
        address: SocketAddr,
        config: EndpointConfig,
    ) -> Result<Self, Error> {
        let seed = runtime.seed().map_err(Error::Bind)?;
        let endpoint = Endpoint::bind_with(runtime, address, config).map_err(Error::Bind)?;
        let uuid = Uuid::random(&seed);
        let log = Arc::<CallbackLog>::default();
        callbacks::offer(&endpoint, uuid, Arc::clone(&log));
        Ok(Self { endpoint, uuid, log })
    }

    /// Its address and port.
    pub fn address(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// Its UUID.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Its port, for what is not here.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// A file service, port 7000.
    pub fn file_server(&self, host: Ipv4Addr, who: &Credentials) -> FileServer {
        FileServer::new(self.server::<Rxafs>(host, who))
    }

    /// A volume service, port 7005.
    pub fn volume_server(&self, host: Ipv4Addr, who: &Credentials) -> VolumeServer {
        VolumeServer::new(self.server::<AfsVol>(host, who))
    }

    /// A volume location service, port 7003.
    pub fn location_server(&self, host: Ipv4Addr, who: &Credentials) -> Server {
        self.server::<Vl>(host, who)
    }

    /// A protection service, port 7002.
    pub fn protection_server(&self, host: Ipv4Addr, who: &Credentials) -> Server {
        self.server::<Pr>(host, who)
    }

    /// Any interface's service on its own port.
    pub fn server<I: Interface>(&self, host: Ipv4Addr, who: &Credentials) -> Server {
        let who = who.clone();
        let service = ServiceId(I::SERVICE_ID);
        let address = SocketAddr::from((host, I::PORT));
        Server { peer: self.endpoint.peer(address, service, PeerLimits::default(), move || who.security()) }
    }

    /// The calls of servers so far, oldest first.
    pub fn heard(&self) -> Vec<Heard> {
        self.log.lock().clone()
    }

    /// Takes what servers have said so far.
    pub fn take_heard(&self) -> Vec<Heard> {
        std::mem::take(&mut *self.log.lock())
    }

    /// Waits until something is heard that this is true of; whether it was within the time. What was heard before
    /// counts too, unless it was taken.
    pub async fn hears(&self, patience: Duration, is_it: impl Fn(&Heard) -> bool) -> bool {
        let waiting = async {
            loop {
                let more = self.log.more.notified();
                tokio::pin!(more);
                // From here on nothing is missed.
                more.as_mut().enable();
                if self.log.lock().iter().any(&is_it) {
                    return;
                }
                more.await;
            }
        };
        tokio::time::timeout(patience, waiting).await.is_ok()
    }
}

/// A service of a server, called by one identity, any number of calls at once.
#[derive(Debug, Clone)]
pub struct Server {
    peer: Peer,
}

impl Server {
    /// Calls a procedure.
    ///
    /// # Errors
    ///
    /// When the call fails, or what comes is no reply.
    pub async fn rpc<R: Rpc>(&self, args: &R) -> Result<R::Reply, Error> {
        Ok(self.peer.rpc(args).await?)
    }
}

impl Deref for Server {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.peer
    }
}
