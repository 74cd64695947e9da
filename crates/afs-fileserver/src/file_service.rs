//! The file service: from a call to its handler, and from what the handler says to what the client is told.
//!
//! Each call is let in ([`clients`](crate::clients)), gets to know who calls ([`protection`](crate::protection)), and is then
//! answered by the handler of its procedure in one of the files below, by topic.

mod acl;
mod audit;
pub(crate) mod data;
mod locks;
mod namespace;
mod snapshots;
mod statistics;
mod status;
mod volumes;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use afs_volume::{Kind, SetStatus, Stamp, VnodeId, VnodeStatus, Volume};
use afs_wire::ids::{AfsFid, AfsTime, SecurityLevel, ViceId, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{self, Capabilities, Rxafs};
use afs_wire::status::{AfsCallBack, AfsFetchStatus, AfsStoreStatus, AfsVolSync, FileType, StoreMask};
use rx::ServerCall;
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_proto::ids::Epoch;
use rx_proto::time::Instant;
use rxgen::serve::{MAX_ARGUMENT_BYTES, receive_opcode};
use rxgen::{Abort, Dispatch, Rpc};

use crate::access::{self, Caller, Granted, Subject};
use crate::activity::{Ended, Wait, Waiting};
use crate::callbacks;
use crate::clients::told;
use crate::failure::Failure;
use crate::hosts::{Admitted, HostId};
use crate::protection::Membership;
use crate::server::Parts;
use crate::vnode_locks::VnodeLock;
use crate::work::become_task;

/// The target of events that record changes of files: who, from where, what, and the code of its failure.
/// Changes of rights and of volumes are events of the target `audit`, as all administration of a cell is.
pub const AUDIT: &str = "afs_fileserver::audit";

/// Procedures that change rights or volumes.
const ADMINISTRATION: &[u32] = &[
    rxafs::OldStoreACL::OPCODE,
    rxafs::StoreACL::OPCODE,
    rxafs::SetVolumeStatus::OPCODE,
    rxafs::FlushCPS::OPCODE,
];

/// Procedures that change something else; the audit log has them too.
const CHANGES: &[u32] = &[
    rxafs::StoreData::OPCODE,
    rxafs::StoreData64::OPCODE,
    rxafs::StoreStatus::OPCODE,
    rxafs::RemoveFile::OPCODE,
    rxafs::CreateFile::OPCODE,
    rxafs::Rename::OPCODE,
    rxafs::Symlink::OPCODE,
    rxafs::Link::OPCODE,
    rxafs::MakeDir::OPCODE,
    rxafs::RemoveDir::OPCODE,
];

/// Locks change nothing that lasts, but one that comes late would take a later one off.
const LOCKS: &[u32] = &[
    rxafs::OldSetLock::OPCODE,
    rxafs::OldExtendLock::OPCODE,
    rxafs::OldReleaseLock::OPCODE,
    rxafs::SetLock::OPCODE,
    rxafs::ExtendLock::OPCODE,
    rxafs::ReleaseLock::OPCODE,
];

/// Procedures that are answered on the thread that brings the call, which saves more time than the work takes. They change no volume,
/// and nearly always find their rows in memory. The thread brings all other packets too, so nothing that takes long is here.
const AT_ONCE: &[u32] = &[
    rxafs::FetchStatus::OPCODE,
    rxafs::GetTime::OPCODE,
    rxafs::GetCapabilities::OPCODE,
    rxafs::GiveUpCallBacks::OPCODE,
    rxafs::XStatsVersion::OPCODE,
];

/// The result of a handler's work.
type Outcome<T> = Result<T, Failure>;

/// A call's handler: what it knows of the call beside the arguments.
pub(crate) struct Session {
    server: Arc<Parts>,
    host: Admitted,
    peer: SocketAddr,
    epoch: Epoch,
    identity: Option<String>,
    /// How well the call is protected.
    level: SecurityLevel,
    membership: Arc<Membership>,
    host_groups: Arc<[ViceId]>,
    /// The server's time of day when the call came.
    now: AfsTime,
    began: Instant,
    moved: Moved,
}

/// The subject of a call, and the data that it has moved: for those who look at the server.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// The last volume that was looked at; 0: none.
    volume: AtomicU32,
    /// Bytes.
    pub(crate) stored: AtomicU64,
    /// Bytes.
    pub(crate) fetched: AtomicU64,
}

/// The status of a vnode, and what the caller may do with it.
struct Seen {
    status: VnodeStatus,
    granted: Granted,
    subject: Subject,
}

/// Answers a call. What it waits for is pinned where it is made: a future that is handed on by value has room in both, each time, and is
/// copied.
pub(crate) async fn answer(server: Arc<Parts>, mut call: ServerCall) -> Result<(), Abort> {
    let opcode = receive_opcode(&mut call).await?;
    if !AT_ONCE.contains(&opcode) || !server.inline_starts.is_open(server.runtime.now()) {
        become_task().await;
    }
    let work = pin!(async {
        let is_change =
            [CHANGES, ADMINISTRATION, LOCKS].iter().any(|procedures| procedures.contains(&opcode));
        let session = Session::begin(Arc::clone(&server), &mut call, is_change).await?;
        match opcode {
            // These move data: without a copy of it. In boxes, as small calls should not have the room that these need.
            rxafs::FetchData::OPCODE => {
                Box::pin(data::answer_fetch::<rxafs::FetchData>(&session, &mut call)).await
            }
            rxafs::FetchData64::OPCODE => {
                Box::pin(data::answer_fetch::<rxafs::FetchData64>(&session, &mut call)).await
            }
            rxafs::StoreData::OPCODE => {
                Box::pin(data::answer_store::<rxafs::StoreData>(&session, &mut call)).await
            }
            rxafs::StoreData64::OPCODE => {
                Box::pin(data::answer_store::<rxafs::StoreData64>(&session, &mut call)).await
            }
            _ => Rxafs::dispatch(&session, opcode, &mut call, MAX_ARGUMENT_BYTES).await,
        }
    });
    server.procedures.measure(opcode, &*server.runtime, work).await
}

/// Calls that have waited for longer before they are carried out are looked after: whether their callers are still there. Callers that are
/// asked who they are answer sooner, unless they are far away.
const SOON: Duration = Duration::from_millis(100);

/// The time after which a caller of whom nothing is heard is gone, and the time between two looks.
const GONE: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// No packet is on its way for longer. Answers to pings are told from others only while few pings are under way, as on a quick path.
const ON_THE_WAY: Duration = Duration::from_secs(10);

/// Returns when a caller has shown that it is there. A client that was killed while its call waited, and may have been started again, has
/// forgotten the call: what it has done since must not be undone by it.
async fn still_there(
    server: &Parts,
    call: &mut ServerCall,
    is_shown: impl Fn(&ServerCall) -> Option<bool>,
) -> Result<(), Abort> {
    // It is pinged all the time.
    call.set_limits(CallLimits { silence: Some(GONE), ..CallLimits::default() });
    while !is_shown(call).ok_or(Abort(AbortCode::CALL_DEAD.0))? {
        server.runtime.sleep_until(server.runtime.now() + LOOK_EVERY).await;
    }
    call.set_limits(CallLimits::default());
    Ok(())
}

impl Session {
    async fn begin(server: Arc<Parts>, call: &mut ServerCall, is_change: bool) -> Result<Self, Abort> {
        let (peer, epoch, identity) = (call.peer(), call.epoch(), call.identity().map(str::to_owned));
        let level = SecurityLevel(call.level().0.into());
        let began = server.runtime.now();
        let waits = |wait| {
            let user = &identity;
            move || Waiting { wait, fid: None, user: user.clone(), client: peer, since: began }
        };
        let host = {
            let admit = pin!(server.clients.admit(peer, epoch));
            server.activity.waits(waits(Wait::Introduction), admit).await
        };
        let now = server.runtime.now();
        let (membership, host_groups) = {
            let groups = pin!(async {
                let membership = server.memberships.of(now, identity.as_deref()).await;
                (membership, server.memberships.of_host(now, peer.ip()).await)
            });
            server.activity.waits(waits(Wait::Groups), groups).await
        };
        let since = server.runtime.now();
        if since.since(began) > SOON {
            Box::pin(still_there(&server, call, |call| Some(call.heard_at()? > since))).await?;
        }
        if is_change && !server.clients.is_alive(peer, epoch) {
            // Another start of the client was. What comes of this one may have been on its way for long, but for answers to what it is asked now.
            let is_shown = |call: &ServerCall| {
                let is_answered = call.answered_at()? > since || call.heard_at()? > since + ON_THE_WAY;
                Some(is_answered || server.clients.is_alive(peer, epoch))
            };
            Box::pin(still_there(&server, call, is_shown)).await?;
            server.clients.note_alive(peer, epoch);
        }
        let now = server.clock.now();
        let moved = Moved::default();
        Ok(Self { server, host, peer, epoch, identity, level, membership, host_groups, now, began, moved })
    }

    /// Counts the call, which has ended.
    fn note_call(&self, opcode: u32, failure: Option<Failure>) {
        let now = self.server.runtime.now();
        let took = now.since(self.began);
        self.server.statistics.note_call(opcode, failure.is_none(), took);
        let volume = self.moved.volume.load(Ordering::Relaxed);
        let ended = Ended {
            volume: (volume != 0).then_some(VolumeId(volume)),
            user: self.identity.as_deref(),
            client: self.peer,
            failure,
            stored_bytes: self.moved.stored.load(Ordering::Relaxed),
            fetched_bytes: self.moved.fetched.load(Ordering::Relaxed),
            took,
        };
        self.server.activity.note(now, &ended);
    }

    /// Waits for something about a file, which is told to those who look at the server.
    async fn wait_for<T>(&self, wait: Wait, fid: AfsFid, work: impl Future<Output = T>) -> T {
        let describe = || Waiting {
            wait,
            fid: Some(fid),
            user: self.identity.clone(),
            client: self.peer,
            since: self.server.runtime.now(),
        };
        self.server.activity.waits(describe, pin!(work)).await
    }

    /// Waits until nobody else changes the file.
    async fn lock_vnode(&self, fid: AfsFid) -> VnodeLock {
        self.wait_for(Wait::Change, fid, self.server.vnode_locks.take(fid, self.peer)).await
    }

    /// Waits until nobody else changes either.
    async fn lock_vnodes(&self, one: AfsFid, other: AfsFid) -> (VnodeLock, Option<VnodeLock>) {
        self.wait_for(Wait::Change, one, self.server.vnode_locks.take_both(one, other, self.peer)).await
    }

    /// The end of a call's work: counts it, writes it down, and says what the client is told.
    fn finish<R: Rpc>(&self, result: Outcome<R::Reply>) -> Result<R::Reply, Abort> {
        self.note_call(R::OPCODE, result.as_ref().err().copied());
        result.map_err(|failure| {
            let abort = failure.abort(self.translates());
            tracing::debug!(rpc = R::NAME, caller = self.membership.id.0, ?failure, "refused");
            abort
        })
    }

    /// The arguments of a change in words, if changes are written down.
    fn to_audit<R: Rpc>(&self, args: &R) -> Option<String> {
        let is_wanted = if ADMINISTRATION.contains(&R::OPCODE) {
            tracing::enabled!(target: "audit", tracing::Level::INFO)
        } else {
            CHANGES.contains(&R::OPCODE) && tracing::enabled!(target: AUDIT, tracing::Level::INFO)
        };
        is_wanted.then(|| audit::words(args).unwrap_or_default())
    }

    fn audit<R: Rpc>(&self, what: Option<String>, error: Option<&Abort>) {
        let Some(what) = what else { return };
        let caller = self.identity.as_deref().unwrap_or("anonymous");
        let (rpc, id, code) = (R::NAME, self.membership.id.0, error.map_or(0, |error| error.0));
        if ADMINISTRATION.contains(&R::OPCODE) {
            tracing::info!(target: "audit", rpc, what, caller, id, peer = %self.peer, code, "file service");
        } else {
            tracing::info!(target: AUDIT, rpc, what, caller, id, peer = %self.peer, code, "file service");
        }
    }

    /// Returns the time that the call has taken until now.
    fn took(&self) -> Duration {
        self.server.runtime.now().since(self.began)
    }

    fn translates(&self) -> bool {
        Capabilities(self.host.capabilities).contains(Capabilities::ERRORTRANS)
    }

    // ---- who calls

    fn caller(&self) -> Caller<'_> {
        Caller {
            id: self.membership.id,
            groups: &self.membership.groups,
            host_groups: &self.host_groups,
            anyone: &self.server.memberships.anonymous().groups,
            implicit: self.server.implicit_rights,
        }
    }

    fn stamp(&self) -> Stamp {
        Stamp { who: self.membership.id, now: self.now }
    }

    fn host(&self) -> HostId {
        self.host.host
    }

    // ---- what is asked for

    /// The volume of a fid, if it serves clients, and calls that are protected as little as this one.
    fn volume(&self, fid: AfsFid) -> Outcome<Arc<Volume>> {
        if fid.volume.0 == 0 || fid.vnode.0 == 0 {
            return Err(Failure::INVALID);
        }
        self.volume_by_id(fid.volume)
    }

    fn volume_by_id(&self, id: VolumeId) -> Outcome<Arc<Volume>> {
        let volume = self.server.volumes.volume(id)?;
        self.moved.volume.store(id.0, Ordering::Relaxed);
        volume.check_online()?;
        volume.check_level(self.level)?;
        volume.note_use(self.now);
        Ok(volume)
    }

    /// The volume of a fid that is to be changed.
    fn writable(&self, fid: AfsFid) -> Outcome<Arc<Volume>> {
        let volume = self.volume(fid)?;
        access::to_write(&self.caller(), self.server.writers)?;
        if volume.is_writable() { Ok(volume) } else { Err(Failure::READ_ONLY) }
    }

    /// The status of a vnode, and what the caller may do with it.
    fn look(&self, volume: &Volume, fid: AfsFid) -> Outcome<Seen> {
        let found = volume.status_and_acl(VnodeId::from(&fid));
        let (status, acl) = found.map_err(|error| self.failed(volume, error))?;
        let mut granted = self.caller().granted(&acl);
        if snapshots::is_bound_to_now(volume) {
            granted = granted.and(self.granted_now(volume, &status)?);
        }
        let subject = Subject {
            file_type: file_type(status.kind),
            owner: status.owner,
            group: status.group,
            mode: u32::from(status.mode),
            rights: granted.caller,
        };
        Ok(Seen { status, granted, subject })
    }

    /// The same of a directory in which the caller is to have these rights.
    fn look_in(&self, volume: &Volume, directory: AfsFid, needed: Rights) -> Outcome<Seen> {
        let seen = self.look(volume, directory)?;
        if seen.status.kind != Kind::Directory {
            return Err(Failure::NOT_DIRECTORY);
        }
        access::in_directory(seen.granted.caller, needed)?;
        Ok(seen)
    }

    // ---- what is told

    fn fetch_status(&self, fid: AfsFid, status: &VnodeStatus, granted: Granted) -> AfsFetchStatus {
        // Directories name themselves (observed; File service notes 3).
        let parent = if status.kind == Kind::Directory { status.id } else { status.parent };
        AfsFetchStatus {
            interface_version: AfsFetchStatus::VERSION,
            file_type: file_type(status.kind),
            link_count: status.link_count,
            length: status.length,
            data_version: status.data_version,
            author: status.author,
            owner: status.owner,
            caller_access: granted.caller,
            anonymous_access: granted.anyone,
            unix_mode_bits: u32::from(status.mode),
            parent_vnode: parent.vnode,
            parent_unique: parent.unique,
            residency_mask: 1,
            client_mod_time: status.client_mod_time,
            server_mod_time: status.server_mod_time,
            group: status.group,
            sync_counter: 0,
            lock_count: self.lock_count(fid),
            error_code: 0,
        }
    }

    fn lock_count(&self, fid: AfsFid) -> i32 {
        let locks = self.server.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.count(self.server.runtime.now(), fid)
    }

    fn sync(volume: &Volume) -> AfsVolSync {
        AfsVolSync { creation: volume.sync_date(), ..AfsVolSync::default() }
    }

    /// Promises the caller to call back and then looks, again if there was a change between the two: what is returned is
    /// what the promise is for.
    fn promised<T>(
        &self,
        volume: &Volume,
        fid: AfsFid,
        kind: callbacks::Kind,
        mut look: impl FnMut() -> Outcome<T>,
    ) -> Outcome<(T, AfsCallBack)> {
        /// A file that changes all the time is told without a promise.
        const ATTEMPTS: usize = 3;
        let kind = if volume.is_writable() { kind } else { callbacks::Kind::ReadOnly };
        for _ in 0..ATTEMPTS {
            let promise = self.server.clients.promise(self.host, fid, kind);
            let seen = match look() {
                Ok(seen) => seen,
                Err(failure) => {
                    // Another user of the host may have been told of the file before.
                    if promise.is_some_and(|promise| promise.is_new) && kind != callbacks::Kind::ReadOnly {
                        self.server.clients.gave_up(self.host(), &[fid]);
                    }
                    return Err(failure);
                }
            };
            if promise.is_none() || self.server.clients.still_promised(self.host(), fid) {
                return Ok((seen, told(promise)));
            }
        }
        Ok((look()?, told(None)))
    }

    /// The promise for something that the caller has just made, if it still is as it was made.
    fn promise_new(&self, volume: &Volume, made: &VnodeStatus) -> AfsCallBack {
        let fid = fid_of(volume.id(), made.id);
        let promise = self.server.clients.promise(self.host, fid, callbacks::Kind::Single);
        if volume.status(made.id).is_ok_and(|status| status == *made) {
            return told(promise);
        }
        self.server.clients.gave_up(self.host(), &[fid]);
        told(None)
    }

    // ---- what is changed

    /// Returns the attributes that a caller may set of something that they make or write. Only administrators set owner and group;
    /// StoreStatus has refused others before.
    fn to_set(&self, status: &AfsStoreStatus) -> SetStatus {
        let caller = self.caller();
        let has = |field| status.mask.contains(field);
        let is_administrator = caller.is_administrator();
        SetStatus {
            client_mod_time: has(StoreMask::MOD_TIME).then_some(status.client_mod_time),
            owner: (has(StoreMask::OWNER) && is_administrator).then_some(status.owner),
            group: (has(StoreMask::GROUP) && is_administrator).then_some(status.group),
            mode: has(StoreMask::MODE).then(|| access::stored_mode(&caller, status.unix_mode_bits) as u16),
        }
    }

    /// Changes a volume, which may block. A caller of whom another start has shown since that it is alive is to ask again.
    async fn change<T: Send + 'static>(
        &self,
        volume: &Arc<Volume>,
        change: impl FnOnce(&Arc<Volume>) -> Result<T, afs_volume::VolumeError> + Send + 'static,
    ) -> Outcome<T> {
        let changed = Arc::clone(volume);
        let server = &self.server;
        if !server.clients.is_alive(self.peer, self.epoch) {
            return Err(Failure::BUSY);
        }
        let result = server.inline.run(&*server.runtime, move || change(&changed)).await;
        result.map_err(|error| self.failed(volume, error))
    }

    /// Returns the failure for an error, and writes down one that is not the caller's.
    fn failed(&self, volume: &Volume, error: afs_volume::VolumeError) -> Failure {
        self.server.alarms.note(self.server.runtime.now(), volume, &error);
        Failure::from(error)
    }

    /// The time until which the changes of this call wait for clients to be told.
    fn break_deadline(&self) -> Instant {
        self.server.clients.break_deadline()
    }

    /// Tells all others who hold a promise for the file.
    async fn tell_others(&self, fid: AfsFid, until: Instant) {
        let changed = self.server.clients.changed(fid, Some(self.host()), until);
        self.wait_for(Wait::Callbacks, fid, changed).await;
    }

    /// Tells all who hold a promise for the file, the caller too.
    async fn tell_all(&self, fid: AfsFid, until: Instant) {
        self.wait_for(Wait::Callbacks, fid, self.server.clients.changed(fid, None, until)).await;
    }

    /// The file is gone: nobody is told, and its locks end.
    fn forget(&self, fid: AfsFid) {
        self.server.clients.removed(fid);
        self.server.locks.lock().unwrap_or_else(PoisonError::into_inner).removed(fid);
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::FILE,
        Kind::Directory => FileType::DIRECTORY,
        Kind::Symlink => FileType::SYMLINK,
    }
}

fn fid_of(volume: VolumeId, id: VnodeId) -> AfsFid {
    AfsFid { volume, vnode: id.vnode, unique: id.unique }
}

/// Binds procedures to the methods that answer them.
macro_rules! handlers {
    ($( $rpc:ident $method:ident; )*) => { $(
        impl rxgen::Serve<afs_wire::rxafs::$rpc> for $crate::file_service::Session {
            async fn serve(
                &self,
                _call: rxgen::ServerCall<'_, afs_wire::rxafs::$rpc>,
                args: afs_wire::rxafs::$rpc,
            ) -> Result<afs_wire::rxafs::reply::$rpc, rxgen::Abort> {
                let what = self.to_audit(&args);
                let result = self.finish::<afs_wire::rxafs::$rpc>(self.$method(args).await);
                self.audit::<afs_wire::rxafs::$rpc>(what, result.as_ref().err());
                result
            }
        }
    )* };
}
pub(crate) use handlers;

#[cfg(test)]
mod tests {
    use super::*;

    /// Each small call had 15 KiB here, and twice as much with what begins it, which were copied several times.
    #[test]
    fn a_call_takes_little_room() {
        fn room<F>(_: impl Fn(Arc<Parts>, ServerCall) -> F) -> usize {
            size_of::<F>()
        }
        let room = room(answer);
        assert!(room <= 2048, "{room} bytes");
    }
}
