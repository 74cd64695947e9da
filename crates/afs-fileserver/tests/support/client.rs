//! A client: calls the file server, and answers what the server asks and tells.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use afs_wire::Uuid;
use afs_wire::ids::{AfsFid, AfsTime, Name, Path, ViceId};
use afs_wire::rxafs::{self, CapabilityWords, Rxafs, reply};
use afs_wire::rxafscb::{self, InterfaceAddr, Rxafscb};
use afs_wire::status::{AfsFetchStatus, AfsStoreStatus, StoreMask};
use bytes::Bytes;
use rx::{CallError, Connection, Endpoint, Peer, PeerLimits, RpcError, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, SecurityClass};
use rxgen::serve::{MAX_ARGUMENT_BYTES, serve_call};
use rxgen::{Abort, Interface, Rpc, Serve, ServerCall};

use afs_lab::caller::named::Named;
use afs_lab::sim::bind;
use afs_sim::Sim;

/// What the server has said to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    Asked,
    Reset,
    Break(Vec<AfsFid>),
    Probe,
}

/// What a client answers with.
pub(crate) struct CallbackLog {
    uuid: Uuid,
    heard: Mutex<Vec<Heard>>,
    /// A client from before UUIDs: knows neither TellMeAboutYourself nor WhoAreYou nor InitCallBackState3.
    is_old: bool,
    capabilities: u32,
    /// It takes messages and answers none.
    is_silent: AtomicBool,
}

pub(crate) struct Client {
    pub(crate) endpoint: Endpoint,
    pub(crate) peer: Peer,
    pub(crate) ears: Arc<CallbackLog>,
}

/// How a client is made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kind {
    pub(crate) name: Option<String>,
    pub(crate) is_old: bool,
    pub(crate) without_capabilities: bool,
    /// Another than follows from its address.
    pub(crate) uuid: Option<u32>,
}

impl Client {
    pub(crate) fn new(sim: &Sim, server: &Endpoint, number: u8, name: Option<String>) -> Self {
        Self::of_kind(sim, server, number, Kind { name, ..Kind::default() })
    }

    pub(crate) fn of_kind(sim: &Sim, server: &Endpoint, number: u8, kind: Kind) -> Self {
        let address = SocketAddr::from(([10, 0, 1, number], 7001));
        let endpoint = bind(sim, address);
        Self::at(endpoint, server.local_addr(), kind.uuid.unwrap_or(number.into()), &kind)
    }

    pub(crate) fn at(endpoint: Endpoint, server: SocketAddr, uuid: u32, kind: &Kind) -> Self {
        let ears = Arc::new(CallbackLog {
            uuid: Uuid { time_low: uuid, ..Uuid::default() },
            heard: Mutex::default(),
            is_old: kind.is_old,
            capabilities: u32::from(!kind.without_capabilities),
            is_silent: AtomicBool::new(false),
        });
        let service = Service {
            id: ServiceId(Rxafscb::SERVICE_ID),
            security: vec![Arc::new(Null)],
            check_reach: false,
            upgrades_to: None,
            limits: CallLimits::default(),
        };
        let for_calls = Arc::clone(&ears);
        endpoint.add_service(ServiceConfig::new(service, move |mut call: rx::ServerCall| {
            let ears = Arc::clone(&for_calls);
            async move { serve_call::<Rxafscb, _>(&*ears, &mut call, MAX_ARGUMENT_BYTES).await }
        }));
        let name = kind.name.clone();
        let security = move || -> Box<dyn SecurityClass> {
            match &name {
                Some(name) => Box::new(Named { name: Some(name.clone()) }),
                None => Box::new(Null),
            }
        };
        let peer = endpoint.peer(server, ServiceId(Rxafs::SERVICE_ID), PeerLimits::default(), security);
        Self { endpoint, peer, ears }
    }

    /// What was heard since the last time.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut *self.ears.heard.lock().unwrap())
    }

    /// The fids of the breaks heard since the last time, in order.
    pub(crate) fn breaks(&self) -> Vec<AfsFid> {
        let fids = |heard| match heard {
            Heard::Break(fids) => fids,
            Heard::Asked | Heard::Reset | Heard::Probe => Vec::new(),
        };
        self.heard().into_iter().flat_map(fids).collect()
    }

    /// Calls a procedure: its results, or the code of the abort.
    pub(crate) async fn call<R: Rpc>(&self, args: R) -> Result<R::Reply, i32> {
        self.peer.rpc(&args).await.map_err(code)
    }

    pub(crate) async fn status(&self, fid: AfsFid) -> Result<reply::FetchStatus, i32> {
        self.call(rxafs::FetchStatus { fid }).await
    }

    pub(crate) async fn create(&self, dir: AfsFid, name: &str) -> Result<reply::CreateFile, i32> {
        self.call(rxafs::CreateFile { dir, name: text(name), status: mode(0o644) }).await
    }

    pub(crate) async fn make_dir(&self, dir: AfsFid, name: &str) -> Result<reply::MakeDir, i32> {
        self.call(rxafs::MakeDir { dir, name: text(name), status: mode(0o755) }).await
    }

    pub(crate) async fn symlink(&self, dir: AfsFid, name: &str, to: &str) -> Result<reply::Symlink, i32> {
        let contents = Path::try_from(to).unwrap();
        self.call(rxafs::Symlink { dir, name: text(name), contents, status: mode(0o777) }).await
    }

    pub(crate) async fn link(&self, dir: AfsFid, name: &str, existing: AfsFid) -> Result<reply::Link, i32> {
        self.call(rxafs::Link { dir, name: text(name), existing }).await
    }

    pub(crate) async fn remove(&self, dir: AfsFid, name: &str) -> Result<reply::RemoveFile, i32> {
        self.call(rxafs::RemoveFile { dir, name: text(name) }).await
    }

    pub(crate) async fn remove_dir(&self, dir: AfsFid, name: &str) -> Result<reply::RemoveDir, i32> {
        self.call(rxafs::RemoveDir { dir, name: text(name) }).await
    }

    pub(crate) async fn rename(
        &self,
        (old_dir, old_name): (AfsFid, &str),
        (new_dir, new_name): (AfsFid, &str),
    ) -> Result<reply::Rename, i32> {
        let (old_name, new_name) = (text(old_name), text(new_name));
        self.call(rxafs::Rename { old_dir, old_name, new_dir, new_name }).await
    }

    pub(crate) async fn store_status(
        &self,
        fid: AfsFid,
        status: AfsStoreStatus,
    ) -> Result<AfsFetchStatus, i32> {
        self.call(rxafs::StoreStatus { fid, status }).await.map(|reply| reply.status)
    }

    pub(crate) async fn fetch(
        &self,
        fid: AfsFid,
        pos: i64,
        length: i64,
    ) -> Result<(Vec<u8>, reply::FetchData64), i32> {
        let mut call = self.peer.call().await.map_err(|error| error.code().0)?;
        call.send_request(&rxafs::FetchData64 { fid, pos, length }).await.map_err(code)?;
        call.finish().map_err(of)?;
        let mut prefix = [0; 8];
        call.read_exact(&mut prefix).await.map_err(of)?;
        let mut data = vec![0; u64::from_be_bytes(prefix) as usize];
        call.read_exact(&mut data).await.map_err(of)?;
        let reply = call.reply::<rxafs::FetchData64>().await.map_err(code)?;
        Ok((data, reply))
    }

    pub(crate) async fn store(
        &self,
        fid: AfsFid,
        pos: u64,
        data: &[u8],
        file_length: u64,
    ) -> Result<AfsFetchStatus, i32> {
        self.store_with(fid, AfsStoreStatus::default(), pos, data, file_length).await
    }

    pub(crate) async fn store_with(
        &self,
        fid: AfsFid,
        status: AfsStoreStatus,
        pos: u64,
        data: &[u8],
        file_length: u64,
    ) -> Result<AfsFetchStatus, i32> {
        let length = data.len() as u64;
        let args = rxafs::StoreData64 { fid, status, pos, length, file_length };
        let mut call = self.peer.call().await.map_err(|error| error.code().0)?;
        call.send_request(&args).await.map_err(code)?;
        for piece in data.chunks(64 << 10) {
            match call.send(Bytes::copy_from_slice(piece)).await {
                // The server does not want more: the reply says why.
                Ok(()) | Err(CallError::NotSending { .. }) => {}
                Err(error) => return Err(of(error)),
            }
        }
        call.reply::<rxafs::StoreData64>().await.map_err(code).map(|reply| reply.status)
    }

    pub(crate) async fn set_acl(&self, fid: AfsFid, text: &str) -> Result<reply::OldStoreACL, i32> {
        let access_list = rxafs::AfsOpaque::new(format!("{text}\0")).unwrap();
        self.call(rxafs::OldStoreACL { fid, access_list }).await
    }

    pub(crate) async fn acl(&self, fid: AfsFid) -> Result<String, i32> {
        let reply = self.call(rxafs::FetchACL { fid }).await?;
        Ok(String::from_utf8(reply.access_list.into_bytes()).unwrap())
    }

    /// A connection of its own, for calls that are made by hand.
    pub(crate) fn connection(&self) -> Connection {
        let server = self.peer.address();
        self.endpoint.connect(server, ServiceId(Rxafs::SERVICE_ID), Box::new(Null))
    }
}

pub(crate) fn code(error: RpcError) -> i32 {
    error.code().0
}

pub(crate) fn of(error: CallError) -> i32 {
    error.code().0
}

pub(crate) fn text(name: &str) -> Name {
    Name::try_from(name).unwrap()
}

pub(crate) fn mode(mode: u32) -> AfsStoreStatus {
    AfsStoreStatus { mask: StoreMask::MODE, unix_mode_bits: mode, ..AfsStoreStatus::default() }
}

pub(crate) fn owner(owner: ViceId) -> AfsStoreStatus {
    AfsStoreStatus { mask: StoreMask::OWNER, owner, ..AfsStoreStatus::default() }
}

pub(crate) fn mod_time(seconds: u32) -> AfsStoreStatus {
    AfsStoreStatus {
        mask: StoreMask::MOD_TIME,
        client_mod_time: AfsTime(seconds),
        ..AfsStoreStatus::default()
    }
}

impl CallbackLog {
    /// Sets whether messages are answered from now on.
    pub(crate) fn be_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::Relaxed);
    }

    fn note(&self, heard: Heard) {
        self.heard.lock().unwrap().push(heard);
    }

    fn unless_old(&self) -> Result<(), Abort> {
        if self.is_old { Err(Abort::OPCODE) } else { Ok(()) }
    }
}

impl Serve<rxafscb::CallBack> for CallbackLog {
    async fn serve(
        &self,
        _: ServerCall<'_, rxafscb::CallBack>,
        args: rxafscb::CallBack,
    ) -> Result<rxafscb::reply::CallBack, Abort> {
        assert!(args.callbacks.is_empty(), "as stock servers send it");
        if self.is_silent.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        self.note(Heard::Break(args.fids.to_vec()));
        Ok(rxafscb::reply::CallBack {})
    }
}

impl Serve<rxafscb::InitCallBackState> for CallbackLog {
    async fn serve(
        &self,
        _: ServerCall<'_, rxafscb::InitCallBackState>,
        _: rxafscb::InitCallBackState,
    ) -> Result<rxafscb::reply::InitCallBackState, Abort> {
        self.note(Heard::Reset);
        Ok(rxafscb::reply::InitCallBackState {})
    }
}

impl Serve<rxafscb::InitCallBackState3> for CallbackLog {
    async fn serve(
        &self,
        _: ServerCall<'_, rxafscb::InitCallBackState3>,
        args: rxafscb::InitCallBackState3,
    ) -> Result<rxafscb::reply::InitCallBackState3, Abort> {
        self.unless_old()?;
        assert_eq!(args.server_uuid.time_low, 7000);
        self.note(Heard::Reset);
        Ok(rxafscb::reply::InitCallBackState3 {})
    }
}

impl Serve<rxafscb::TellMeAboutYourself> for CallbackLog {
    async fn serve(
        &self,
        _: ServerCall<'_, rxafscb::TellMeAboutYourself>,
        _: rxafscb::TellMeAboutYourself,
    ) -> Result<rxafscb::reply::TellMeAboutYourself, Abort> {
        self.note(Heard::Asked);
        self.unless_old()?;
        let capabilities = CapabilityWords::new(vec![self.capabilities]).unwrap();
        Ok(rxafscb::reply::TellMeAboutYourself { addr: InterfaceAddr::new(self.uuid, &[]), capabilities })
    }
}

impl Serve<rxafscb::Probe> for CallbackLog {
    async fn serve(
        &self,
        _: ServerCall<'_, rxafscb::Probe>,
        _: rxafscb::Probe,
    ) -> Result<rxafscb::reply::Probe, Abort> {
        self.note(Heard::Probe);
        Ok(rxafscb::reply::Probe {})
    }
}

impl Serve<rxafscb::ProbeUuid> for CallbackLog {
    async fn serve(
        &self,
        _: ServerCall<'_, rxafscb::ProbeUuid>,
        args: rxafscb::ProbeUuid,
    ) -> Result<rxafscb::reply::ProbeUuid, Abort> {
        self.note(Heard::Probe);
        if args.client_uuid == self.uuid { Ok(rxafscb::reply::ProbeUuid {}) } else { Err(Abort(1)) }
    }
}

macro_rules! not_served {
    ($($rpc:ident)*) => { $(
        impl Serve<rxafscb::$rpc> for CallbackLog {
            async fn serve(
                &self,
                _: ServerCall<'_, rxafscb::$rpc>,
                _: rxafscb::$rpc,
            ) -> Result<rxafscb::reply::$rpc, Abort> {
                Err(Abort::OPCODE)
            }
        }
    )* };
}

not_served! {
    GetLock GetCE XStatsVersion GetXStats InitCallBackState2 WhoAreYou GetServerPrefs GetCellServDB
    GetLocalCell GetCacheConfig GetCE64 GetCellByNum
}
