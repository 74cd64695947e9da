//! [`Statuses`], the status of vnodes: from memory where it is promised, else asked for, many at once where many are wanted; and setting it.

use std::collections::HashMap;
use std::sync::Arc;

use afs_failover::{Verdict, of_code};
use afs_wire::abort;
use afs_wire::ids::AFSCBMAX;
use afs_wire::rights::Rights;
use afs_wire::rxafs::{AfsCbFids, FetchStatus, InlineBulkStatus, Rxafs, StoreStatus};
use afs_wire::status::{AfsCallBack, AfsFetchStatus, AfsVolSync, FileType};
use futures_util::future::join_all;
use rx::{CallError, RpcError};
use rx_proto::abort::AbortCode;
use rx_proto::ids::ServiceId;
use rx_proto::time::Instant;
use rxgen::{Abort, Interface, Rpc};

use crate::events::{Change, Invalidations};
use crate::vnodes::single_flight::SingleFlight;
use crate::vnodes::status::{Kind, SetStatus, Status};
use crate::vnodes::table::Vnodes;
use crate::vnodes::vnode::{Known, PendingChange, Snapshot, Unstored, Vnode};
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::releases::ReleaseSeen;
use afs_reach::remote::{Asked, Calls};
use afs_reach::table::Responder;
use afs_reach::users::{IdentityIndex, Purpose, Users};

/// The rights that let somebody see the status of a file or link: to read it, or to list its directory.
const SEES: Rights = Rights(Rights::READ.0 | Rights::LOOKUP.0);

/// Bulk calls of one request that are under way at once: with 50 vnodes each, what `ls -l` of a large directory takes at a time.
const BULK_CALLS: usize = 8;

/// The number of times that a status is asked for again because the server that told it has an older release of the volume: each time
/// another server is asked.
const BEHIND_MAX: u32 = 8;

/// The status of a vnode as one identity is told it, and until when it counts.
struct StatusOfIdentity {
    status: AfsFetchStatus,
    rights: Rights,
    anonymous_rights: Rights,
    until: Instant,
    unstored: Option<Unstored>,
}

/// The parts that it takes to tell a status: the table of vnodes, those who are asked for what is not in it, and those who
/// keep copies.
#[derive(Debug)]
pub struct Statuses {
    /// The table of vnodes.
    pub vnodes: Arc<Vnodes>,
    /// The users and their tokens.
    pub users: Arc<Users>,
    /// The calls to servers.
    pub calls: Arc<Calls>,
    /// The statuses that are being asked for.
    pub single_flight: SingleFlight,
    /// Those who keep copies.
    pub invalidations: Arc<Invalidations>,
}

impl Statuses {
    pub(crate) fn now(&self) -> Instant {
        self.calls.runtime.now()
    }

    /// The status of a vnode for a user, if it is known, without asking anybody. `asked` is what the answer is about, `fid` the
    /// vnode itself: they differ for mount points.
    pub(crate) fn known_status(&self, user: User, asked: Fid, fid: Fid) -> Option<Result<Status, Error>> {
        let who = self.users.who(user, fid.cell);
        let vnode = self.vnodes.get(fid)?;
        let told = self.known_of(&vnode, who)?;
        Some(self.seen(asked, &vnode, &told))
    }

    /// The promise for a vnode, and the rights of an identity: no rights if its token may be refused any time.
    pub(crate) fn known(&self, vnode: &Vnode, who: IdentityIndex) -> Option<Known> {
        let now = self.now();
        let known = vnode.known(now, who)?;
        let earlier = || vnode.known(now, self.users.as_earlier(who)?)?.rights;
        let rights =
            known.rights.or_else(earlier).filter(|_| !self.users.shows_ended(who) || vnode.is_offline(now));
        Some(Known { rights, ..known })
    }

    fn known_of(&self, vnode: &Vnode, who: IdentityIndex) -> Option<StatusOfIdentity> {
        let known = self.known(vnode, who)?;
        let told = |rights, anonymous_rights, until| StatusOfIdentity {
            status: known.status,
            rights,
            anonymous_rights,
            until,
            unstored: known.unstored,
        };
        if known.status.file_type == FileType::DIRECTORY {
            return Some(told(known.rights?, known.status.anonymous_access, known.until));
        }
        // The rights on a file are those of its directory, which alone is told of when they change.
        let dir = self.vnodes.local_ids.shown(vnode.fid.sibling(known.parent?));
        let dir = self.known(&*self.vnodes.get(dir)?, who)?;
        Some(told(dir.rights?, dir.status.anonymous_access, known.until.min(dir.until)))
    }

    /// The status, if a caller with these rights may see it. Anybody may see the status of a directory (File service
    /// notes 6.1).
    fn seen(&self, asked: Fid, vnode: &Vnode, told: &StatusOfIdentity) -> Result<Status, Error> {
        let fid = vnode.fid;
        let Some(kind) = Kind::of(told.status.file_type) else {
            let what = format!("the status of {fid}");
            return Err(Error::BadReply { what, problem: format!("{:?}", told.status.file_type) });
        };
        if kind != Kind::Directory && !told.rights.intersects(SEES) {
            return Err(Error::NoAccess { fid, needed: Rights::LOOKUP });
        }
        let status = &told.status;
        Ok(Status {
            fid: asked,
            kind,
            length: told.unstored.map_or(status.length, |unstored| unstored.length),
            data_version: status.data_version,
            links: status.link_count,
            mode: status.unix_mode_bits & 0o7777,
            owner: status.owner,
            group: status.group,
            author: status.author,
            modified: told.unstored.map_or(status.client_mod_time, |unstored| unstored.modified),
            changed: status.server_mod_time,
            rights: told.rights,
            anonymous_rights: told.anonymous_rights,
            locks: status.lock_count,
            is_read_only: vnode.volume.is_read_only(),
            is_volume_root: fid.is_root(),
            // A store changes what the server tells, and nobody is told of that.
            valid_until: if told.unstored.is_some() { self.now() } else { told.until },
        })
    }

    /// The status of a vnode itself; nothing is crossed.
    pub(crate) async fn own_status(&self, user: User, asked: Fid, fid: Fid) -> Result<Status, Error> {
        if let Some(known) = self.known_status(user, asked, fid) {
            return known;
        }
        let who = self.users.who(user, fid.cell);
        let vnode = self.vnodes.get_or_add(fid);
        self.single_flight.wait(who, &[fid]).await;
        let _fetching = vnode.fetching.lock().await;
        if let Some(known) = self.known_status(user, asked, fid) {
            return known;
        }
        let dir = self.vnodes.parent_of(&vnode).filter(|_| !fid.vnode.is_directory());
        let needs_dir = |dir: Fid| {
            let known = self.vnodes.get(dir).and_then(|dir| dir.known(self.now(), who));
            known.is_none()
        };
        let asked_for = match dir.filter(|&dir| needs_dir(dir)) {
            // Both at once, as the one counts only with the other.
            Some(dir) => match self.fetch_bulk(who, &[fid, dir]).await {
                Ok(mut told) => told.swap_remove(0),
                Err(error) => Err(error),
            },
            None => self.fetch_status(who, &vnode).await,
        };
        let status = match asked_for {
            Ok(status) => status,
            // Nobody answers, and what was known may go on to count.
            Err(error) => return self.known_status(user, asked, fid).unwrap_or(Err(error)),
        };
        if let Some(dir) = self.vnodes.parent_of(&vnode).filter(|_| !fid.vnode.is_directory()) {
            let dir = self.vnodes.get_or_add(dir);
            if self.known(&dir, who).is_none_or(|known| known.rights.is_none()) {
                // What the file's status said of rights counts for this answer, whatever becomes of this.
                let _ = self.fetch_status(who, &dir).await;
            }
        }
        if let Some(known) = self.known_status(user, asked, fid) {
            return known;
        }
        // A store of ours may have been answered since the server told this. In this order: see `Vnode::known`.
        let unstored = vnode.unstored();
        let newer = vnode.last_status().filter(|last| last.data_version >= status.data_version);
        let told = StatusOfIdentity {
            status: newer.unwrap_or(status),
            rights: status.caller_access,
            anonymous_rights: status.anonymous_access,
            until: Instant::ORIGIN,
            unstored,
        };
        self.seen(asked, &vnode, &told)
    }

    /// Asks for the status of a vnode and notes it.
    pub(crate) async fn fetch_status(
        &self,
        who: IdentityIndex,
        vnode: &Arc<Vnode>,
    ) -> Result<AfsFetchStatus, Error> {
        self.fetch_status_as(who, vnode, counts_without_server(vnode)).await
    }

    /// The same for who asks again later: it is told at once if no server answers.
    pub(crate) async fn try_to_fetch_status(
        &self,
        who: IdentityIndex,
        vnode: &Arc<Vnode>,
    ) -> Result<AfsFetchStatus, Error> {
        self.fetch_status_as(who, vnode, true).await
    }

    async fn fetch_status_as(
        &self,
        who: IdentityIndex,
        vnode: &Arc<Vnode>,
        is_known: bool,
    ) -> Result<AfsFetchStatus, Error> {
        let fid = vnode.fid;
        let in_cell = self.vnodes.local_ids.at_server(fid).await?.in_cell();
        let asked = match is_known {
            true => Asked::Known(fid.cell, fid.volume),
            false => Asked::Volume(fid.cell, fid.volume),
        };
        for _ in 0..BEHIND_MAX {
            let (before, dir) = (vnode.snapshot(), self.dir_snapshot(vnode));
            let answer = self.calls.call_about(asked, who, FetchStatus { fid: in_cell }).await;
            let answer = answer.map_err(|failure| {
                let error = self.note_gone(fid, failure.of(FetchStatus::NAME, fid));
                self.note_away(vnode, &error);
                error
            })?;
            let (reply, responder) = (answer.reply, answer.responder);
            if self.note_volume(vnode, &responder, &reply.sync) == ReleaseSeen::Behind {
                continue;
            }
            self.note_status(vnode, (&before, &responder), who, &reply.status, Some(&reply.callback));
            self.note_rights(dir, who, &reply.status);
            return Ok(reply.status);
        }
        Err(Error::Busy { rpc: FetchStatus::NAME, fid, code: abort::VBUSY })
    }

    /// None of a volume's servers answers. What is known of a read-only one, which nobody writes, goes on to count.
    fn note_away(&self, vnode: &Vnode, error: &Error) {
        if vnode.volume.is_read_only() && matches!(error, Error::Unreachable { .. }) {
            vnode.volume.note_away(self.now());
        }
    }

    /// Asks for the status of at most [`AFSCBMAX`] vnodes of a volume with one call, and notes them.
    async fn fetch_bulk(
        &self,
        who: IdentityIndex,
        fids: &[Fid],
    ) -> Result<Vec<Result<AfsFetchStatus, Error>>, Error> {
        let mut in_cell = Vec::new();
        for &fid in fids {
            in_cell.push(self.vnodes.local_ids.at_server(fid).await?.in_cell());
        }
        let vnodes: Vec<_> = fids.iter().map(|&fid| self.vnodes.get_or_add(fid)).collect();
        let before: Vec<_> =
            vnodes.iter().map(|vnode| (vnode.snapshot(), self.dir_snapshot(vnode))).collect();
        let first = fids[0];
        let args = AfsCbFids::new(in_cell).expect("callers ask for at most AFSCBMAX");
        let asked = match vnodes.iter().all(|vnode| counts_without_server(vnode)) {
            true => Asked::Known(first.cell, first.volume),
            false => Asked::Volume(first.cell, first.volume),
        };
        let args = InlineBulkStatus { fids: args };
        let asking = self.calls.ask(asked, who, Purpose::Read, |attempt| {
            let peer = self.calls.file_peer(&attempt, who);
            let args = &args;
            async move {
                let failed = |source| RpcError::Call { rpc: InlineBulkStatus::NAME, source };
                let reply = attempt.begin(&peer).await.map_err(failed)?.rpc(args).await?;
                // What became of the volume in the middle of the call is told of each vnode, and goes for the call as a whole.
                match reply.statuses.iter().find(|status| is_of_volume(Abort(status.error_code))) {
                    Some(status) => {
                        let (peer, service) = (attempt.socket, ServiceId(Rxafs::SERVICE_ID));
                        let code = AbortCode(status.error_code);
                        Err(failed(CallError::Aborted { peer, service, code }))
                    }
                    None => Ok(reply),
                }
            }
        });
        let (reply, responder) = match asking.await {
            Ok(answer) => answer,
            Err(failure) if failure.code() == Some(Abort::OPCODE) => {
                let mut told = Vec::new();
                for vnode in &vnodes {
                    told.push(self.fetch_status(who, vnode).await);
                }
                return Ok(told);
            }
            Err(failure) => {
                let error = failure.of(InlineBulkStatus::NAME, first);
                self.note_away(&vnodes[0], &error);
                return Err(error);
            }
        };
        if reply.statuses.len() != fids.len() || reply.callbacks.len() != fids.len() {
            let what = format!("{} of {} vnodes", InlineBulkStatus::NAME, fids.len());
            return Err(Error::BadReply { what, problem: format!("{} statuses came", reply.statuses.len()) });
        }
        if self.note_volume(&vnodes[0], &responder, &reply.sync) == ReleaseSeen::Behind {
            let mut told = Vec::new();
            for vnode in &vnodes {
                told.push(self.fetch_status(who, vnode).await);
            }
            return Ok(told);
        }
        let told = vnodes.iter().zip(before).zip(reply.statuses.iter().zip(reply.callbacks.iter()));
        Ok(told
            .map(|((vnode, (before, dir)), (status, callback))| {
                let code = match (status.error_code, Kind::of(status.file_type)) {
                    (0, Some(_)) => {
                        self.note_status(vnode, (&before, &responder), who, status, Some(callback));
                        self.note_rights(dir, who, status);
                        return Ok(*status);
                    }
                    (0, None) => abort::VIO,
                    (code, _) => Abort(code),
                };
                let error = Error::Refused { rpc: InlineBulkStatus::NAME, fid: vnode.fid, code };
                Err(self.note_gone(vnode.fid, error))
            })
            .collect())
    }

    /// Asks for the status of many vnodes of one volume, and notes the answers. Returns the vnodes whose status the server refuses to this
    /// identity, with the errors. If a call failed as a whole, a caller that needs its vnodes has to ask again.
    pub async fn fetch_statuses(&self, who: IdentityIndex, fids: &[Fid]) -> HashMap<Fid, Error> {
        let mut refused = HashMap::new();
        let (claim, others) = self.single_flight.claim(who, fids);
        for some in claim.fids().chunks(AFSCBMAX * BULK_CALLS) {
            let calls = some.chunks(AFSCBMAX).map(|fids| self.fetch_bulk(who, fids));
            for (fids, outcome) in some.chunks(AFSCBMAX).zip(join_all(calls).await) {
                match outcome {
                    Ok(told) => refused
                        .extend(fids.iter().zip(told).filter_map(|(&fid, told)| Some((fid, told.err()?)))),
                    Err(error) => tracing::debug!(%error, "statuses in bulk"),
                }
            }
        }
        drop(claim);
        self.single_flight.wait(who, &others).await;
        refused
    }

    fn dir_snapshot(&self, vnode: &Vnode) -> Option<(Arc<Vnode>, Snapshot)> {
        let dir = self.vnodes.parent_of(vnode).filter(|_| !vnode.fid.vnode.is_directory())?;
        let dir = self.vnodes.get(dir)?;
        let before = dir.snapshot();
        Some((dir, before))
    }

    fn note_rights(&self, dir: Option<(Arc<Vnode>, Snapshot)>, who: IdentityIndex, status: &AfsFetchStatus) {
        if let Some((dir, before)) = dir.filter(|_| status.file_type != FileType::DIRECTORY) {
            dir.note_rights(self.now(), &before, who, status.caller_access);
        }
    }

    /// Notes a status that came, and tells if it says that the data are others.
    pub(crate) fn note_status(
        &self,
        vnode: &Vnode,
        responder: (&Snapshot, &Responder),
        who: IdentityIndex,
        status: &AfsFetchStatus,
        callback: Option<&AfsCallBack>,
    ) {
        let noted = vnode.note(self.now(), responder, who, status, callback);
        if noted.is_other_data {
            let change = match status.file_type {
                FileType::FILE => Change::Version(status.data_version),
                _ => Change::Vnode,
            };
            self.invalidations.mention(vnode.fid, change);
        }
    }

    /// Notes what a reply says of the volume, and tells whether the reply counts.
    pub(crate) fn note_volume(&self, vnode: &Vnode, responder: &Responder, sync: &AfsVolSync) -> ReleaseSeen {
        // A server that no longer has the volume cannot be asked for the release that it had.
        let is_site = |id| {
            let entry = self.calls.locations.known(vnode.fid.cell, vnode.fid.volume);
            entry.is_none_or(|entry| entry.sites.iter().any(|site| site.server.id == id))
        };
        let can_ask = |id| {
            is_site(id)
                && self.calls.servers.by_id(id).is_some_and(|server| server.candidate().down_since.is_none())
        };
        let told = vnode.volume.note_release(self.now(), responder.server.id, sync, can_ask);
        match told {
            ReleaseSeen::Same => {}
            ReleaseSeen::Another => {
                tracing::info!(volume = vnode.fid.volume.0, "a read-only volume was released anew");
                self.invalidations.mention(vnode.fid, Change::Volume);
            }
            ReleaseSeen::Behind => {
                let (volume, server) = (vnode.fid.volume.0, &responder.server);
                tracing::info!(volume, ?server, "a server has an older release; another one is asked");
            }
        }
        told
    }

    /// A server says that a vnode is no longer there.
    pub fn note_gone(&self, fid: Fid, error: Error) -> Error {
        match error {
            Error::Refused { code: abort::VNOVNODE, .. } => {
                self.vnodes.remove(fid);
                self.invalidations.mention(fid, Change::Vnode);
                Error::Gone { fid }
            }
            other => other,
        }
    }

    /// Sets some of a status at the server, the length aside.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn store_status(&self, user: User, vnode: &Arc<Vnode>, set: SetStatus) -> Result<(), Error> {
        let wire = set.to_wire();
        if wire.mask.is_empty() {
            return Ok(());
        }
        let fid = vnode.fid;
        let in_cell = self.vnodes.local_ids.at_server(fid).await?.in_cell();
        let who = self.users.who(user, fid.cell);
        let _changing = vnode.changing.lock().await;
        let pending = PendingChange::new([Arc::clone(vnode)]);
        let before = vnode.snapshot();
        let answer = self.calls.call(who, fid, StoreStatus { fid: in_cell, status: wire }).await;
        let answer = answer.map_err(|error| self.note_gone(fid, error))?;
        pending.done();
        vnode.note_change(self.now(), (&before, &answer.responder), who, &answer.reply.status, None);
        Ok(())
    }

    /// True if a vnode's own status is promised, and the user's rights known.
    pub fn is_known(&self, user: User, fid: Fid) -> bool {
        self.known_status(user, fid, fid).is_some()
    }
}

/// True if what is known of a vnode counts once no server of its volume answers, so that nobody need wait until one does.
fn counts_without_server(vnode: &Vnode) -> bool {
    vnode.may_count_offline() || vnode.volume.is_read_only() && vnode.last_status().is_some()
}

/// True if a code says that the volume cannot be asked here, or not now.
fn is_of_volume(code: Abort) -> bool {
    matches!(of_code(code), Verdict::Wait | Verdict::Offline | Verdict::LookAgain)
}
