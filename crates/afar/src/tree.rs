//! Directories, mount points and access lists that are made by calls to a file server, without a mount: for commands that prepare a cell.

use afs_admin::Login;
use afs_wire::Errno;
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsFid, Name, Path, ViceId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{
    AfsOpaque, FetchData64, FetchStatus, GiveUpAllCallBacks, MakeDir, OldStoreACL, Rxafs, StoreStatus,
    Symlink,
};
use afs_wire::rxafscb::Rxafscb;
use afs_wire::status::{AfsStoreStatus, StoreMask};
use rx::{Endpoint, Peer, PeerLimits, RpcError, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::{Abort, Interface, Rpc};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Longest directory or link that is read: a directory has 2 MiB at most.
const DATA_MAX_BYTES: i64 = 2 << 20;

/// The text of a mount point that leads to a volume, and to its read-only copies where a client may take them.
pub(crate) fn mount_text(volume: &str) -> String {
    format!("#{volume}.")
}

/// A file server, called as one user.
pub(crate) struct Tree {
    files: Peer,
}

impl Tree {
    /// The file server on a machine. [`refuse_callbacks`] has to be done at the endpoint before.
    pub(crate) fn new(endpoint: &Endpoint, server: Ipv4Addr, login: &Login) -> Self {
        let (to, login) = (SocketAddr::from((server, Rxafs::PORT)), login.clone());
        let security = Box::new(move || login.security());
        Self { files: endpoint.peer(to, ServiceId(Rxafs::SERVICE_ID), PeerLimits::default(), security) }
    }

    async fn ask<R: Rpc>(&self, args: &R, doing: &str) -> Result<R::Reply, String> {
        self.files.rpc(args).await.map_err(|error| format!("{doing}: {error}"))
    }

    /// Makes a mount point of this text, unless there is something of its name.
    pub(crate) async fn mount_point(&self, dir: AfsFid, name: &str, text: &str) -> Result<(), String> {
        let doing = format!("cannot make the mount point {name} ({text})");
        let order = Symlink {
            dir,
            name: Name::new(name).map_err(|error| format!("{doing}: {error}"))?,
            contents: Path::new(text).map_err(|error| format!("{doing}: {error}"))?,
            // No x bit: so it is a mount point, and no link.
            status: mode(0o644),
        };
        match self.files.rpc(&order).await {
            Err(error) if is(Abort(error.code().0), Errno::EEXIST) => Ok(()),
            other => other.map(drop).map_err(|error| format!("{doing}: {error}")),
        }
    }

    /// A folder of this name, which is made if there is none.
    pub(crate) async fn folder(&self, dir: AfsFid, name: &str) -> Result<AfsFid, String> {
        let doing = format!("cannot make the folder {name}");
        let wire_name = Name::new(name).map_err(|error| format!("{doing}: {error}"))?;
        match self.files.rpc(&MakeDir { dir, name: wire_name, status: mode(0o755) }).await {
            Ok(reply) => Ok(reply.fid),
            Err(error) if is(Abort(error.code().0), Errno::EEXIST) => {
                let found = self.find(dir, name).await.map_err(|error| format!("{doing}: {error}"))?;
                found.ok_or_else(|| format!("{doing}: it existed, and then it was gone"))
            }
            Err(error) => Err(format!("{doing}: {error}")),
        }
    }

    /// What has this name in a directory.
    pub(crate) async fn find(&self, dir: AfsFid, name: &str) -> Result<Option<AfsFid>, String> {
        let pages = self.data(dir).await?;
        let directory = Directory::parse(&pages).map_err(|error| error.to_string())?;
        let entry = directory.lookup(name.as_bytes());
        Ok(entry.map(|entry| AfsFid { volume: dir.volume, vnode: entry.fid.vnode, unique: entry.fid.unique }))
    }

    /// True if there is nothing in a directory.
    pub(crate) async fn is_empty(&self, dir: AfsFid) -> Result<bool, String> {
        let pages = self.data(dir).await?;
        let directory = Directory::parse(&pages).map_err(|error| error.to_string())?;
        Ok(directory.is_empty())
    }

    /// The bytes of a directory or link.
    pub(crate) async fn data(&self, fid: AfsFid) -> Result<Vec<u8>, String> {
        self.fetch(fid).await.map_err(|error| format!("cannot read {fid}: {error}"))
    }

    /// A word of two with the length, the bytes, and the results (File service notes 6.3).
    async fn fetch(&self, fid: AfsFid) -> Result<Vec<u8>, RpcError> {
        let failed = |source| RpcError::Call { rpc: FetchData64::NAME, source };
        let mut call = self.files.call().await.map_err(failed)?;
        call.send_request(&FetchData64 { fid, pos: 0, length: DATA_MAX_BYTES }).await?;
        call.finish().map_err(failed)?;
        let mut length = [0; 8];
        call.read_exact(&mut length).await.map_err(failed)?;
        let mut bytes = vec![0; u64::from_be_bytes(length).min(DATA_MAX_BYTES as u64) as usize];
        call.read_exact(&mut bytes).await.map_err(failed)?;
        call.reply::<FetchData64>().await?;
        Ok(bytes)
    }

    /// Gives a directory this access list, and no other entries.
    pub(crate) async fn access_list(&self, dir: AfsFid, entries: &[(&str, Rights)]) -> Result<(), String> {
        let mut text = format!("{}\n0\n", entries.len());
        for (name, rights) in entries {
            let _ = writeln!(text, "{name}\t{}", rights.0);
        }
        // Servers want a NUL at its end.
        text.push('\0');
        let doing = format!("cannot set the access list of {dir}");
        let access_list = AfsOpaque::new(text).map_err(|error| format!("{doing}: {error}"))?;
        self.ask(&OldStoreACL { fid: dir, access_list }, &doing).await.map(drop)
    }

    /// The owner of a file or directory.
    pub(crate) async fn owner(&self, fid: AfsFid) -> Result<ViceId, String> {
        let doing = format!("cannot get the status of {fid}");
        Ok(self.ask(&FetchStatus { fid }, &doing).await?.status.owner)
    }

    /// Sets owner or mode, or both. Nothing is done for an owner who is that already.
    pub(crate) async fn set(
        &self,
        fid: AfsFid,
        mask: StoreMask,
        owner: ViceId,
        bits: u32,
    ) -> Result<(), String> {
        let doing = format!("cannot set the status of {fid}");
        let status = AfsStoreStatus { mask, owner, unix_mode_bits: bits, ..AfsStoreStatus::default() };
        if mask == StoreMask::OWNER && self.owner(fid).await? == owner {
            return Ok(());
        }
        self.ask(&StoreStatus { fid, status }, &doing).await.map(drop)
    }

    /// Ends it: the server is told to forget this caller.
    pub(crate) async fn finish(&self) {
        // Who has heard of no promises is not called back; if this fails, it is found out then.
        let _ = self.files.rpc(&GiveUpAllCallBacks {}).await;
    }
}

/// The file server asks who its clients are: this one keeps nothing that could have to be taken back.
pub(crate) fn refuse_callbacks(endpoint: &Endpoint) {
    let service = Service {
        id: ServiceId(Rxafscb::SERVICE_ID),
        security: vec![Arc::new(Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    endpoint.add_service(ServiceConfig::new(service, |_call| async { Err(Abort::OPCODE) }));
}

/// True if a server's code means this.
pub(crate) fn is(code: Abort, errno: Errno) -> bool {
    afs_wire::abort::errno(code) == Some(errno)
}

fn mode(bits: u32) -> AfsStoreStatus {
    AfsStoreStatus { mask: StoreMask::MODE, unix_mode_bits: bits, ..AfsStoreStatus::default() }
}
