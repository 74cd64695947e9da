//! Restoring a volume from a dump: its ids, the volume on its server with what the dump says, its entry in the volume location
//! database. `vos restore` does it here.
//!
//! A volume that is there already keeps its place on the partition and gets the dump's contents in one call: servers of ours change all
//! of it or nothing. (OpenAFS's `vos` removes it first, and has nothing if the dump breaks off.) A volume that was made for the dump is
//! removed again when anything fails, unless the database has its entry, or nobody knows whether it has. When the entry says that the volume was elsewhere, that one is
//! removed last. Each step is told of ([`Event`]); [`RestoreFailure`] says which one failed and what is left.

mod dump;
mod location;

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use afs_wire::abort::{VL_NOENT, VNOVOL, VOLSERBADOP};
use afs_wire::afsvol::{AttachFlags, HalfVolume, VolserStatus, VolumeFlags};
use afs_wire::ids::{AfsTime, PartitionId, SecurityLevel, VolumeId};
use bytes::Bytes;

pub use dump::{Dump, ends_a_dump};

use crate::cancel::Cancel;
use crate::entry::{Entry, Kind};
use crate::error::Error;
use crate::remove::{RemoveFailure, remove};
use crate::vldb::LocationDb;
use crate::volumes::{Changes, Identity, StreamError, Transaction, VolumeServers, would_lose_level};

/// The longest time for which a dump is compared with what came before: no call is made meanwhile, and the server ends a transaction that
/// is idle for ten minutes.
const COMPARE_MAX: Duration = Duration::from_secs(240);

/// The volume that is to be restored, where, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order<'a> {
    /// The server where it is to be.
    pub server: Ipv4Addr,
    /// The partition.
    pub partition: PartitionId,
    /// The name that its entry is to have, without a suffix.
    pub name: &'a str,
    /// A read-write volume or a read-only one.
    pub kind: Kind,
    /// Its id, unless that is in the entry of this name or the database chooses one.
    pub id: Option<VolumeId>,
    /// The read-write volume of its volume group, if there is one already.
    pub parent: Option<VolumeId>,
    /// True if it gets all its contents from the dump, and its entry this place. Otherwise the dump has what has changed in the volume that
    /// is there.
    pub is_full: bool,
    /// True if it stays offline.
    pub stays_offline: bool,
    /// Its creation date.
    pub creation: DateOf,
    /// The date of its last update.
    pub last_update: DateOf,
    /// The time now.
    pub now: AfsTime,
    /// True if a volume of this id at another place stays, without an entry.
    pub keeps_previous: bool,
    /// True if a volume with a level may go to a server that knows no levels.
    pub may_lose_level: bool,
}

/// The source of a date of a restored volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DateOf {
    /// The dump's date.
    Dump,
    /// The date of the volume that was there.
    Previous,
    /// It is the time of the restore.
    Now,
}

/// An event while a volume is restored.
#[derive(Debug)]
pub enum Event<'a> {
    /// It begins, with a volume of this name and id.
    Begins {
        /// The volume's own name, with its suffix.
        name: &'a str,
        /// Its id.
        id: VolumeId,
    },
    /// The volume of this id is looked for, to be replaced if it is there.
    Replaces(VolumeId),
    /// It is there.
    HasPrevious(VolumeId),
    /// The volume has all of the dump, and is in the state that it is to have.
    IsReady(VolumeId),
    /// It has no entry: one is made.
    MakesEntry,
    /// It has this entry, which is changed.
    ChangesEntry(&'a Entry),
    /// The volume stays at its old place too.
    KeepsPrevious(VolumeId, Ipv4Addr),
    /// The volume at its old place is removed.
    RemovesPrevious(VolumeId, Ipv4Addr, PartitionId),
    /// It is gone.
    PreviousIsRemoved,
    /// This is the entry now.
    HasEntry(&'a Entry),
}

/// A step of restoring a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Looking for an entry of the name.
    FetchByName,
    /// Taking an id from the database.
    TakeId,
    /// Finding an id for a read-only volume in the entry: the read-write volume exists.
    HasReadWrite,
    /// The same: the entry has none.
    NoReadOnlyId,
    /// Beginning a transaction on the volume.
    Begin(VolumeId),
    /// Asking for its state before.
    GetOldStatus(VolumeId),
    /// Comparing the volume that is there with what is to be restored: they do not fit.
    Compare(VolumeId),
    /// Making the volume on its server.
    Make(VolumeId),
    /// Sending the dump.
    Send(VolumeId),
    /// Asking for the state that the volume has from the dump.
    GetStatus(VolumeId),
    /// Setting its name, kind and relatives.
    SetIdentity(VolumeId),
    /// Setting its creation date.
    SetCreationDate(VolumeId),
    /// Setting the date of its last update.
    SetUpdateDate(VolumeId),
    /// Bringing it online, or leaving it offline.
    SetState(VolumeId),
    /// Asking for its entry.
    FetchEntry(VolumeId),
    /// Making its entry.
    MakeEntry(VolumeId),
    /// Locking its entry.
    LockEntry(VolumeId),
    /// Finding its place among those of the entry.
    CompareSites(VolumeId),
    /// Changing its entry.
    ReplaceEntry(VolumeId),
    /// Ending the transaction on it.
    End(VolumeId),
    /// Removing the volume at its old place.
    RemovePrevious(VolumeId),
}

/// The remains of a restore that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing: volumes and entries are what they were.
    Nothing,
    /// The volume that was there. A server of OpenAFS may have changed a part of it; one of ours has not.
    Previous(VolumeId),
    /// A volume that has no entry: to be removed with `vos zap`.
    Volume(VolumeId),
    /// A volume of which nobody knows whether it has an entry.
    Unrecorded(VolumeId),
    /// The volume that was there, with the contents of the dump: to be restored again.
    Restored(VolumeId),
    /// The restored volume with its entry, and the one at the old place: to be removed with `vos zap`.
    Both {
        /// The volume.
        id: VolumeId,
        /// The old place.
        server: Ipv4Addr,
        /// The old place.
        partition: PartitionId,
    },
    /// The restored volume with its entry.
    All(VolumeId),
}

/// The reason why a volume was not restored, and what is there all the same.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {left}")]
pub struct RestoreFailure {
    /// The step that failed.
    pub step: Step,
    /// The reason.
    #[source]
    pub error: StreamError,
    /// The reason why the transaction could not be ended after that. It ends by itself after some minutes; until then the
    /// volume is busy.
    pub not_ended: Option<Error>,
    /// The reason why the entry's lock could not be released.
    pub not_unlocked: Option<Error>,
    /// The reason why the volume at the old place was not removed, if that is what failed.
    pub not_removed: Option<RemoveFailure>,
    /// The remains.
    pub left: Left,
}

impl RestoreFailure {
    fn new(step: Step, error: impl Into<StreamError>, left: Left) -> Self {
        let error = error.into();
        Self { step, error, not_ended: None, not_unlocked: None, not_removed: None, left }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing has changed"),
            Self::Previous(id) => {
                write!(
                    f,
                    "volume {id} is as it was, unless its server is OpenAFS's, which may have changed a part of it"
                )
            }
            Self::Volume(id) => {
                write!(f, "the server keeps volume {id}, which has no entry: remove it with vos zap")
            }
            Self::Unrecorded(id) => write!(
                f,
                "the server keeps volume {id}, and it is not known whether its entry names that place: when the database is in order, look with vos listvldb, and if it does not, remove the volume there with vos zap"
            ),
            Self::Restored(id) => {
                write!(f, "volume {id} has the contents of the dump, and may be offline: restore it again")
            }
            Self::Both { id, server, partition } => write!(
                f,
                "volume {id} is restored; the one on {server} {partition} has no entry any more: remove it with vos zap"
            ),
            Self::All(id) => write!(f, "volume {id} is restored and has its entry"),
        }
    }
}

/// Ids and name of the volume.
#[derive(Debug)]
struct Target {
    id: VolumeId,
    parent: VolumeId,
    /// The volume's own, with its suffix.
    name: String,
    /// True if the id was taken from the database just now.
    is_new_id: bool,
}

/// The volume on its server, in a transaction.
#[derive(Debug)]
struct Attached {
    transaction: Transaction,
    /// The volume's status before, if it was there.
    before: Option<VolserStatus>,
}

/// Restores a volume, and tells of what happens. Says the volume's id.
///
/// # Errors
///
/// The step that failed, and what is left.
pub async fn restore<S: FnMut() -> io::Result<Bytes>>(
    vldb: &LocationDb,
    servers: &VolumeServers,
    order: &Order<'_>,
    dump: &mut Dump<S>,
    cancel: &Cancel,
    mut tell: impl FnMut(Event<'_>),
) -> Result<VolumeId, RestoreFailure> {
    let target = find_ids(vldb, servers, order).await?;
    let id = target.id;
    tell(Event::Begins { name: &target.name, id });
    cancel.check().map_err(|error| RestoreFailure::new(Step::Begin(id), error, Left::Nothing))?;
    fit_level(servers, order, dump)
        .await
        .map_err(|error| RestoreFailure::new(Step::Compare(id), error, Left::Nothing))?;
    let attached = attach(servers, order, &target, dump.is_incremental(), &mut tell).await?;
    let filled = fill(vldb, servers, order, &target, &attached, dump, cancel, &mut tell).await;
    let ended = servers.end(attached.transaction).await;
    let recorded = match filled {
        Err(failure) => return Err(RestoreFailure { not_ended: ended.err(), ..failure }),
        Ok(recorded) => recorded,
    };
    ended.map_err(|error| RestoreFailure::new(Step::End(id), error, Left::All(id)))?;
    let Some(location::Recorded { entry, previous }) = recorded else { return Ok(id) };
    if let Some((server, partition)) = previous {
        if order.keeps_previous {
            tell(Event::KeepsPrevious(id, server));
        } else {
            tell(Event::RemovesPrevious(id, server, partition));
            match remove(servers, server, partition, id).await {
                Ok(()) => tell(Event::PreviousIsRemoved),
                Err(failure) if failure.is_missing() => {}
                Err(failure) => {
                    let (step, left) = (Step::RemovePrevious(id), Left::Both { id, server, partition });
                    let told = RestoreFailure::new(step, failure.error.clone(), left);
                    return Err(RestoreFailure { not_removed: Some(failure), ..told });
                }
            }
        }
    }
    tell(Event::HasEntry(&entry));
    Ok(id)
}

/// Takes the level from a dump whose server knows none, if it may.
async fn fit_level<S: FnMut() -> io::Result<Bytes>>(
    servers: &VolumeServers,
    order: &Order<'_>,
    dump: &mut Dump<S>,
) -> Result<(), Error> {
    if dump.level() == SecurityLevel::CLEAR || servers.knows_levels(order.server).await? {
        return Ok(());
    }
    if !order.may_lose_level {
        let what = would_lose_level(order.server, "give -force to have it there without one");
        return Err(Error::Local { what, code: VOLSERBADOP });
    }
    dump.leave_out_level();
    Ok(())
}

/// Finds the volume's ids: those that are given, those of the entry of its name, or a new one.
async fn find_ids(
    vldb: &LocationDb,
    servers: &VolumeServers,
    order: &Order<'_>,
) -> Result<Target, RestoreFailure> {
    let failed = |step, error: Error| RestoreFailure::new(step, error, Left::Nothing);
    let refused = |step, what: String| failed(step, Error::Local { what, code: VOLSERBADOP });
    let mut is_new_id = false;
    let (id, parent) = match order.id {
        Some(id) => (id, order.parent),
        None => match vldb.entry_by_name(order.name).await {
            Err(error) if error.code() == VL_NOENT => {
                is_new_id = true;
                match id_of_half(vldb, servers, order).await {
                    Some(id) => (id, order.parent),
                    None => {
                        let id = vldb.new_volume_ids(1).await.map_err(|error| failed(Step::TakeId, error))?;
                        (id, order.parent)
                    }
                }
            }
            Err(error) => return Err(failed(Step::FetchByName, error)),
            Ok(entry) => {
                let parent = entry.id(Kind::ReadWrite);
                if order.kind == Kind::ReadOnly {
                    if entry.has(Kind::ReadWrite) {
                        let what = format!("the read-write volume {} exists", entry.name);
                        return Err(refused(Step::HasReadWrite, what));
                    }
                    if entry.id(Kind::ReadOnly) == VolumeId(0) {
                        let what = format!("the entry of {} has no id for a read-only volume", entry.name);
                        return Err(refused(Step::NoReadOnlyId, what));
                    }
                }
                (entry.id(order.kind), Some(parent))
            }
        },
    };
    let parent = parent.filter(|parent| parent.0 != 0).unwrap_or(id);
    let suffix = if order.kind == Kind::ReadOnly && parent != id { ".readonly" } else { "" };
    Ok(Target { id, parent, name: format!("{}{suffix}", order.name), is_new_id })
}

/// Returns the id of a volume of this name whose restore here was interrupted, so that a part of it has come. If nobody knows, there is
/// none.
async fn id_of_half(vldb: &LocationDb, servers: &VolumeServers, order: &Order<'_>) -> Option<VolumeId> {
    let halves = servers.halves(order.server, order.partition).await.ok()?;
    let is_wanted = |half: &HalfVolume| {
        half.kind == order.kind.on_wire() && half.name.clone().into_bytes() == order.name.as_bytes()
    };
    let id = halves.into_iter().filter(is_wanted).max_by_key(|half| half.since)?.volume;
    // A replica that is there may have a part of its next release.
    if servers.has_volume(order.server, order.partition, id).await != Ok(false) {
        return None;
    }
    // An id that has an entry by now is somebody else's.
    vldb.entry_by_id(id, None).await.err().filter(|error| error.code() == VL_NOENT).map(|_| id)
}

/// Begins a transaction on the volume, and makes it if it is not there.
async fn attach(
    servers: &VolumeServers,
    order: &Order<'_>,
    target: &Target,
    is_incremental: bool,
    tell: &mut impl FnMut(Event<'_>),
) -> Result<Attached, RestoreFailure> {
    let (id, Order { server, partition, .. }) = (target.id, *order);
    let failed = |step, error| RestoreFailure::new(step, error, Left::Nothing);
    if order.is_full {
        tell(Event::Replaces(id));
    }
    let transaction = match servers.begin(server, partition, id, AttachFlags::OFFLINE).await {
        Ok(transaction) => transaction,
        Err(error) if error.code() == VNOVOL => {
            let made = servers.create_to_fill(server, partition, id, identity(order, target, None)).await;
            let transaction = made.map_err(|error| failed(Step::Make(id), error))?;
            return Ok(Attached { transaction, before: None });
        }
        Err(error) => return Err(failed(Step::Begin(id), error)),
    };
    let compared = match servers.status(transaction).await {
        Err(error) => Err((Step::GetOldStatus(id), error)),
        Ok(status) => match unlike(order, target, is_incremental, &status) {
            Some(what) => Err((Step::Compare(id), Error::Local { what, code: VOLSERBADOP })),
            None => Ok(status),
        },
    };
    match compared {
        Ok(status) => {
            if order.is_full {
                tell(Event::HasPrevious(id));
            }
            Ok(Attached { transaction, before: Some(status) })
        }
        Err((step, error)) => {
            let not_ended = servers.end(transaction).await.err();
            Err(RestoreFailure { not_ended, ..failed(step, error) })
        }
    }
}

/// Returns the reason why the dump cannot be restored into the volume that is there.
fn unlike(order: &Order<'_>, target: &Target, is_incremental: bool, status: &VolserStatus) -> Option<String> {
    let id = target.id;
    if status.kind != order.kind.on_wire() || status.parent_id != target.parent {
        return Some(format!(
            "the volume {id} that is there is of another kind or volume group: remove it with vos zap first"
        ));
    }
    (order.is_full && is_incremental).then(|| {
        format!("the dump has only what has changed since a time, and cannot replace volume {id}: restore it as incremental")
    })
}

fn identity<'a>(order: &Order<'_>, target: &'a Target, before: Option<&VolserStatus>) -> Identity<'a> {
    Identity {
        name: &target.name,
        kind: order.kind,
        parent: target.parent,
        clone: before.map_or(VolumeId(0), |status| status.clone_id),
        backup: before.map_or(VolumeId(0), |status| status.backup_id),
    }
}

/// Gives the volume what the dump has, and has the database say where it is.
#[expect(clippy::too_many_arguments, reason = "they are those of the operation")]
async fn fill<S: FnMut() -> io::Result<Bytes>>(
    vldb: &LocationDb,
    servers: &VolumeServers,
    order: &Order<'_>,
    target: &Target,
    attached: &Attached,
    dump: &mut Dump<S>,
    cancel: &Cancel,
    tell: &mut impl FnMut(Event<'_>),
) -> Result<Option<location::Recorded>, RestoreFailure> {
    let (id, transaction) = (target.id, attached.transaction);
    let is_new = attached.before.is_none();
    if let Err((step, error)) = send(servers, order, target, attached, dump, cancel).await {
        let left = if is_new { undo(servers, transaction, id).await } else { Left::Previous(id) };
        return Err(RestoreFailure::new(step, error, left));
    }
    let settled = match settle(servers, order, target, attached).await {
        Ok(status) => cancel.check().map(|()| status).map_err(|error| (Step::SetState(id), error)),
        failed => failed,
    };
    let status = match settled {
        Ok(status) => status,
        Err((step, error)) => {
            let left = if is_new { undo(servers, transaction, id).await } else { Left::Restored(id) };
            return Err(RestoreFailure::new(step, error, left));
        }
    };
    tell(Event::IsReady(id));
    if !order.is_full && !target.is_new_id {
        return Ok(None);
    }
    match location::record(vldb, order, target, &status, tell).await {
        Ok(recorded) => Ok(Some(recorded)),
        Err(failure) => {
            let left = match (is_new, failure.is_unknown) {
                (true, false) => undo(servers, transaction, id).await,
                (true, true) => Left::Unrecorded(id),
                (false, _) => Left::Restored(id),
            };
            let told = RestoreFailure::new(failure.step, failure.error, left);
            Err(RestoreFailure { not_unlocked: failure.not_unlocked, ..told })
        }
    }
}

/// Removes a volume that was made for the dump.
async fn undo(servers: &VolumeServers, transaction: Transaction, id: VolumeId) -> Left {
    if servers.delete(transaction).await.is_ok() { Left::Nothing } else { Left::Volume(id) }
}

async fn send<S: FnMut() -> io::Result<Bytes>>(
    servers: &VolumeServers,
    order: &Order<'_>,
    target: &Target,
    attached: &Attached,
    dump: &mut Dump<S>,
    cancel: &Cancel,
) -> Result<(), (Step, StreamError)> {
    let failed = |error: StreamError| {
        let error = match error {
            StreamError::Local(_) if cancel.is_cancelled() => StreamError::Server(Error::Cancelled),
            error => error,
        };
        (Step::Send(target.id), error)
    };
    let mut rest = None;
    if attached.before.is_none() && !dump.is_incremental() {
        // If the server cannot tell, as something of it is damaged, everything is sent.
        let arrived = servers.arrived(attached.transaction).await.unwrap_or_default();
        if !arrived.is_empty() {
            let until = servers.runtime().now() + COMPARE_MAX;
            let goes_on = || match cancel.check() {
                Ok(()) => Ok(servers.runtime().now() < until),
                Err(_) => Err(io::ErrorKind::Interrupted.into()),
            };
            rest = dump.leave_out(&arrived, goes_on).map_err(|error| failed(StreamError::Local(error)))?;
        }
    }
    let goes_on = || cancel.check().map_err(|_| io::ErrorKind::Interrupted.into());
    let pieces = || dump.next_piece(goes_on);
    let identity = identity(order, target, None);
    let sent = match rest {
        None => servers.restore(attached.transaction, identity, pieces).await,
        Some(rest) => servers.restore_rest(attached.transaction, identity, rest, pieces).await,
    };
    sent.map_err(failed)
}

/// Sets what of the volume's header is not the dump's. Says what the dump has made of it.
async fn settle(
    servers: &VolumeServers,
    order: &Order<'_>,
    target: &Target,
    attached: &Attached,
) -> Result<VolserStatus, (Step, Error)> {
    let Attached { transaction, before } = attached;
    let (id, transaction, before) = (target.id, *transaction, before.as_ref());
    let status = servers.status(transaction).await.map_err(|error| (Step::GetStatus(id), error))?;
    let identified = servers.set_identity(transaction, identity(order, target, before)).await;
    identified.map_err(|error| (Step::SetIdentity(id), error))?;
    let creation = match (order.creation, before.map(|status| status.creation_date)) {
        (DateOf::Dump, _) => status.creation_date,
        (DateOf::Previous, Some(date)) if date.0 != 0 => date,
        (DateOf::Previous | DateOf::Now, _) => order.now,
    };
    let last_update = match order.last_update {
        DateOf::Dump => status.update_date,
        // As OpenAFS's: that of a volume that was not there is 0.
        DateOf::Previous => before.map_or(AfsTime(0), |status| status.update_date),
        DateOf::Now => order.now,
    };
    let dated = servers.set_creation_date(transaction, creation).await;
    dated.map_err(|error| (Step::SetCreationDate(id), error))?;
    let changes =
        Changes { creation_date: Some(creation), update_date: Some(last_update), ..Changes::default() };
    let dated = servers.set_info(transaction, None, changes).await;
    dated.map_err(|error| (Step::SetUpdateDate(id), error))?;
    let state = if order.stays_offline { VolumeFlags::OUT_OF_SERVICE } else { VolumeFlags::NONE };
    servers.set_flags(transaction, state).await.map_err(|error| (Step::SetState(id), error))?;
    Ok(status)
}
