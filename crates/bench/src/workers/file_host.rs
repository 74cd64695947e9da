//! A host that calls a file server: a client of its own, which the server can call back, with the files that it makes. What is done
//! with the files is the load generator's and the probe's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use afs_lab::caller::{Client, Credentials, Error, FileServer};
use afs_wire::abort::VBUSY;
use afs_wire::ids::{AfsFid, VolumeId};
use afs_wire::rxafs::Rxafs;
use bytes::Bytes;
use rx::{CallError, EndpointConfig, Peer, PeerLimits, Runtime};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::Interface;

use super::Failure;

/// The pause before a call that was refused as busy is made again. A file server of OpenAFS says so (VBUSY) when many calls wait for
/// its threads.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// One host.
pub(super) struct FileHost {
    client: Client,
    server: FileServer,
    address: SocketAddr,
    root: AfsFid,
}

impl FileHost {
    /// A host with this address that calls this server, for files of this volume.
    pub(super) fn bind(
        runtime: Arc<dyn Runtime>,
        address: Ipv4Addr,
        server: SocketAddr,
        volume: u32,
    ) -> Result<FileHost, Failure> {
        let IpAddr::V4(host) = server.ip() else { return Err(format!("{server} is no IPv4 address").into()) };
        let config = EndpointConfig { shards: Some(1), ..EndpointConfig::default() };
        let client = Client::bind_on(runtime, (address, 0).into(), config)?;
        let root = AfsFid::root_of(VolumeId(volume));
        Ok(FileHost {
            server: client.file_server(host, &Credentials::Anonymous),
            client,
            address: server,
            root,
        })
    }

    /// The server, to be called so much at once.
    pub(super) fn peer(&self, limits: PeerLimits) -> Peer {
        let service = ServiceId(Rxafs::SERVICE_ID);
        self.client.endpoint().peer(self.address, service, limits, || Box::new(Null))
    }

    /// Makes a file of so many bytes.
    pub(super) async fn make(&self, name: &str, bytes: u32) -> Result<AfsFid, Failure> {
        let fid = self.until_served(|| self.server.create_file(self.root, name)).await?.fid;
        if bytes > 0 {
            let data = Bytes::from(vec![0; bytes as usize]);
            self.until_served(|| self.server.store(fid, 0, data.clone(), u64::from(bytes))).await?;
        }
        Ok(fid)
    }

    async fn until_served<T, F>(&self, call: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            match call().await {
                Err(error) if error.code() == Some(VBUSY.0) => tokio::time::sleep(BUSY_PAUSE).await,
                answer => return answer,
            }
        }
    }
}

/// True if a call was refused by a server that has no time for it.
pub(super) fn is_busy(error: &CallError) -> bool {
    matches!(error, CallError::Aborted { code, .. } if code.0 == VBUSY.0)
}
