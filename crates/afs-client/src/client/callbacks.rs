//! Calls of servers to the client: they ask whether it is there, who it is, and to drop what they have promised (File service
//! notes 7.3).
//!
//! The client notes a break in the table of vnodes and tells those who keep copies. It answers the server when they
//! have handled the break, or after a while, because a writer waits for the answer.
//!
//! A file server that is called by rxgk calls back by it too, and is not believed without (`afs_reach::callbacks`): it is told so, gets its
//! token once more, and then says again what it had to say. Calls of others are not authenticated. So their breaks and resets count only when
//! they come from the address and port of a file server that the VLDB tells, and a reset only for the promises of that server. Somebody who
//! forges a server's address makes the client ask that server anew for what it uses, in bulk, and nothing else. A server that has got a new
//! address says its UUID with `InitCallBackState3`; the VLDB is then asked whether it has that address.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use afs_config::CellName;
use afs_wire::Uuid;
use afs_wire::abort::RXGK_NOTAUTH;
use afs_wire::ids::{AfsFid, HostAddr};
use afs_wire::rxafs::{Capabilities, CapabilityWords};
use afs_wire::rxafscb::{
    CallBack, InitCallBackState, InitCallBackState2, InitCallBackState3, InterfaceAddr, Probe, ProbeUuid,
    Rxafscb, TellMeAboutYourself, WhoAreYou, reply,
};
use rx::ServiceConfig;
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::serve::{Dispatch, MAX_ARGUMENT_BYTES, receive_opcode};
use rxgen::{Abort, Interface, Serve, ServerCall};

use afs_reach::callbacks::Callers;
use afs_reach::fid::Fid;
use afs_reach::remote::Calls;
use afs_reach::table::{Server, ServerKind};
use afs_view::data::locks::Locks;
use afs_view::data::open_files::OpenFiles;
use afs_view::events::{Change, Invalidations};
use afs_view::vnodes::table::Vnodes;

/// Aborts `ProbeUuid` from a server that means another client (File service notes 7.3).
const NOT_ME: Abort = Abort(1);

/// Aborts calls when the client has gone.
const GONE: Abort = Abort(rx_proto::abort::AbortCode::USER_ABORT.0);

/// The service: what servers and debuggers are answered from.
#[derive(Debug)]
pub(crate) struct CallbackService {
    pub(crate) uuid: Uuid,
    pub(crate) promises: Promises,
    /// The counts of opens of files, for debuggers.
    pub(crate) open_files: Arc<OpenFiles>,
    /// The client's own cell.
    pub(crate) home: CellName,
    pub(crate) status_entries: usize,
    /// The limit of the cache on the disk, if there is one.
    pub(crate) cache_limit_bytes: Option<u64>,
    /// The vnodes that a debugger is going through.
    pub(crate) walk: Mutex<Vec<Fid>>,
}

/// The promises of servers, as they take them back.
#[derive(Debug)]
pub(crate) struct Promises {
    /// The servers, and what they have.
    pub(crate) calls: Arc<Calls>,
    pub(crate) vnodes: Arc<Vnodes>,
    /// The locks, which end when their volume moves or its server starts anew.
    pub(crate) locks: Arc<Locks>,
    /// Those who keep copies of what was promised.
    pub(crate) invalidations: Arc<Invalidations>,
}

impl CallbackService {
    /// Answers servers and debuggers on the client's endpoint, for as long as somebody has this.
    pub(crate) fn offer(self: &Arc<Self>) {
        let service = Service {
            id: ServiceId(Rxafscb::SERVICE_ID),
            security: vec![Arc::new(Null), self.promises.calls.callback_class()],
            check_reach: false,
            upgrades_to: None,
            limits: CallLimits::default(),
        };
        // Weak, as this has the endpoint.
        let me = Arc::downgrade(self);
        let config = ServiceConfig::new(service, move |mut call: rx::ServerCall| {
            let me = me.clone();
            async move {
                let opcode = receive_opcode(&mut call).await;
                let me = me.upgrade().ok_or(GONE)?;
                if opcode.is_err() {
                    // A server has given a message up before it was read, as when this client stood still: it may have been a
                    // break.
                    let identity = call.identity().unwrap_or_default().to_owned();
                    me.promises.note_reset(call.peer(), &identity, None).await?;
                }
                Rxafscb::dispatch(&*me, opcode?, &mut call, MAX_ARGUMENT_BYTES).await
            }
        });
        self.promises.calls.connections.endpoint().add_service(config);
    }

    /// The interfaces of this client, as servers learn them.
    fn interface(&self) -> InterfaceAddr {
        let addresses = match self.promises.calls.connections.endpoint().local_addr().ip() {
            IpAddr::V4(address) if !address.is_unspecified() => vec![HostAddr::from(address)],
            _ => Vec::new(),
        };
        InterfaceAddr::new(self.uuid, &addresses)
    }
}

impl Promises {
    /// The servers that have made a call; none of a stranger.
    ///
    /// # Errors
    ///
    /// They would have shown a token. They get it once more.
    fn callers(&self, peer: SocketAddr, identity: &str) -> Result<Vec<Arc<Server>>, Abort> {
        let Callers { believed, doubted } = self.calls.callers(peer, identity);
        for server in &doubted {
            tracing::debug!(%peer, "a call without the file server's token is not believed");
            self.calls.bring_token(server);
        }
        if believed.is_empty() && !doubted.is_empty() { Err(RXGK_NOTAUTH) } else { Ok(believed) }
    }

    /// A server breaks promises.
    async fn note_breaks(&self, peer: SocketAddr, identity: &str, fids: &[AfsFid]) -> Result<(), Abort> {
        let mut cells: Vec<_> = self.callers(peer, identity)?.iter().map(|server| server.cell).collect();
        cells.sort_unstable();
        cells.dedup();
        if cells.is_empty() {
            tracing::debug!(%peer, "a break from no known file server is ignored");
            return Ok(());
        }
        let mut changes = Vec::new();
        for &fid in fids {
            for &cell in &cells {
                let fid = self.vnodes.local_ids.shown(Fid::new(cell, fid));
                self.vnodes.note_break(fid);
                let is_volume = fid.in_cell().is_whole_volume();
                if is_volume {
                    // It may have moved, and no server takes locks with it.
                    self.locks.renew(cell, fid.volume);
                }
                changes.extend(
                    self.invalidations.changes(fid, if is_volume { Change::Volume } else { Change::Vnode }),
                );
            }
        }
        tracing::debug!(server = %peer.ip(), count = fids.len(), first = ?fids.first(), "promises are broken");
        self.invalidations.tell_and_wait(&changes).await;
        Ok(())
    }

    /// A server breaks all of its promises.
    async fn note_reset(&self, peer: SocketAddr, identity: &str, uuid: Option<Uuid>) -> Result<(), Abort> {
        let mut servers = self.callers(peer, identity)?;
        if servers.is_empty() && self.has_come_to(peer, uuid).await {
            servers = self.callers(peer, identity)?;
        }
        if servers.is_empty() {
            tracing::debug!(%peer, "a reset from no known file server is ignored");
            return Ok(());
        }
        let mut changes = Vec::new();
        // One that has never answered a call has promised nothing: it says this to each new client, before it answers its first.
        for server in servers.iter().filter(|server| server.candidate().has_answered) {
            server.reset();
            let volumes = self.calls.locations.on_server(server);
            for (cell, volume) in volumes {
                // It may have started anew, without the locks.
                self.locks.renew(cell, volume);
                changes.extend(self.invalidations.changes(Fid::root_of(cell, volume), Change::Volume));
            }
        }
        tracing::debug!(server = %peer.ip(), volumes = changes.len(), "all promises of a server are broken");
        self.invalidations.tell_and_wait(&changes).await;
        Ok(())
    }

    /// True if a server of this UUID has this address by now, as the VLDB says.
    async fn has_come_to(&self, peer: SocketAddr, uuid: Option<Uuid>) -> bool {
        let Some(uuid) = uuid else { return false };
        let mut has_come = false;
        for cell in self.calls.cells.all() {
            let Some(server) = self.calls.servers.by_uuid(ServerKind::File, cell.index, uuid) else {
                continue;
            };
            has_come |= server.may_ask_anew(self.calls.runtime.now())
                && self.calls.locations.ask_addresses(&*self.calls, &cell, uuid).await.is_ok()
                && server.has(peer);
        }
        has_come
    }
}

impl Serve<CallBack> for CallbackService {
    async fn serve(&self, call: ServerCall<'_, CallBack>, args: CallBack) -> Result<reply::CallBack, Abort> {
        self.promises.note_breaks(call.peer(), call.security(), &args.fids).await?;
        Ok(reply::CallBack {})
    }
}

impl Serve<InitCallBackState> for CallbackService {
    async fn serve(
        &self,
        call: ServerCall<'_, InitCallBackState>,
        _: InitCallBackState,
    ) -> Result<reply::InitCallBackState, Abort> {
        self.promises.note_reset(call.peer(), call.security(), None).await?;
        Ok(reply::InitCallBackState {})
    }
}

impl Serve<InitCallBackState2> for CallbackService {
    async fn serve(
        &self,
        call: ServerCall<'_, InitCallBackState2>,
        _: InitCallBackState2,
    ) -> Result<reply::InitCallBackState2, Abort> {
        self.promises.note_reset(call.peer(), call.security(), None).await?;
        Ok(reply::InitCallBackState2 { addr: self.interface() })
    }
}

impl Serve<InitCallBackState3> for CallbackService {
    async fn serve(
        &self,
        call: ServerCall<'_, InitCallBackState3>,
        args: InitCallBackState3,
    ) -> Result<reply::InitCallBackState3, Abort> {
        self.promises.note_reset(call.peer(), call.security(), Some(args.server_uuid)).await?;
        Ok(reply::InitCallBackState3 {})
    }
}

impl Serve<Probe> for CallbackService {
    async fn serve(&self, _: ServerCall<'_, Probe>, _: Probe) -> Result<reply::Probe, Abort> {
        Ok(reply::Probe {})
    }
}

impl Serve<ProbeUuid> for CallbackService {
    async fn serve(&self, _: ServerCall<'_, ProbeUuid>, args: ProbeUuid) -> Result<reply::ProbeUuid, Abort> {
        if args.client_uuid == self.uuid { Ok(reply::ProbeUuid {}) } else { Err(NOT_ME) }
    }
}

impl Serve<WhoAreYou> for CallbackService {
    async fn serve(&self, _: ServerCall<'_, WhoAreYou>, _: WhoAreYou) -> Result<reply::WhoAreYou, Abort> {
        Ok(reply::WhoAreYou { addr: self.interface() })
    }
}

impl Serve<TellMeAboutYourself> for CallbackService {
    async fn serve(
        &self,
        _: ServerCall<'_, TellMeAboutYourself>,
        _: TellMeAboutYourself,
    ) -> Result<reply::TellMeAboutYourself, Abort> {
        let capabilities =
            CapabilityWords::new(vec![Capabilities::ERRORTRANS.0]).expect("one word is not too many");
        Ok(reply::TellMeAboutYourself { addr: self.interface(), capabilities })
    }
}
