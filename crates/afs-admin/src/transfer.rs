//! Volumes that go to another place: what moving, copying and shadowing have in common. The source is cloned for a moment, the clone is
//! sent while clients go on, and then what they have changed meanwhile, for which they wait. Or all is sent at once while they wait
//! (`-live`). Servers send to each other; nothing comes here.
//!
//! [`relocate`] and [`copy`](mod@copy) say which steps there are in which order, and what a failure undoes.

pub mod copy;
pub mod relocate;

use std::fmt;
use std::net::Ipv4Addr;

use afs_wire::abort::VNOVOL;
use afs_wire::afsvol::{AttachFlags, VolserStatus, VolumeFlags};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};

use crate::entry::Kind;
use crate::error::Error;
use crate::remove::{remove, remove_copy};
use crate::steps::{Event, Failed, Steps, since};
use crate::vldb::LocationDb;
use crate::volumes::{Identity, NewClone, Transaction, VolumeServers};

/// A partition of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The server.
    pub server: Ipv4Addr,
    /// Its partition.
    pub partition: PartitionId,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.server, self.partition)
    }
}

/// A step of moving, copying or shadowing, with the volume that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Asking for the entry.
    FetchEntry(VolumeId),
    /// Locking it.
    Lock(VolumeId),
    /// Comparing it with what is asked for: no read-write volume, or at no such place.
    Compare(VolumeId),
    /// Asking for the state of the volume.
    Look(VolumeId),
    /// Beginning a transaction on the source.
    BeginSource(VolumeId),
    /// Taking an id for a clone of the volume.
    TakeCloneId(VolumeId),
    /// Taking an id for a copy of the volume.
    TakeCopyId(VolumeId),
    /// Cloning the source.
    Clone(VolumeId),
    /// Asking for its name.
    GetName(VolumeId),
    /// Ending the transaction on it.
    EndSource(VolumeId),
    /// Beginning a transaction on the clone.
    BeginClone(VolumeId),
    /// Having the clone removed if its server ends.
    SetCloneState(VolumeId),
    /// Asking for the state of the clone.
    GetCloneStatus(VolumeId),
    /// Beginning a transaction on what is at the target.
    BeginTarget(VolumeId),
    /// Asking for its state.
    GetTargetStatus(VolumeId),
    /// Removing it.
    RemoveExisting(VolumeId),
    /// Making the volume at the target.
    Make(VolumeId),
    /// Having it removed if its server ends.
    SetTargetState(VolumeId),
    /// Sending the clone.
    Send {
        /// The clone.
        clone: VolumeId,
        /// The volume at the target.
        to: VolumeId,
    },
    /// Sending a snapshot of the volume, or what has changed from the one before to it.
    SendSnapshot(VolumeId),
    /// Having the target keep what came as that snapshot.
    KeepSnapshot(VolumeId),
    /// Ending the transaction on the clone.
    EndClone(VolumeId),
    /// Beginning another transaction on the source, from which on clients wait.
    BeginSourceAgain(VolumeId),
    /// Sending what has changed since the clone was made.
    SendChanges(VolumeId),
    /// Sending everything, or all that has changed since the last time, without a clone.
    SendAll(VolumeId),
    /// Taking the source offline.
    TakeOffline(VolumeId),
    /// Bringing the volume online at the target, or leaving it offline there.
    SetState(VolumeId),
    /// Ending the transaction at the target.
    EndTarget(VolumeId),
    /// Having the database say where the volume is now.
    ReplaceEntry(VolumeId),
    /// Having the old server say that the volume has moved.
    SetForwarding(VolumeId),
    /// Removing the volume there.
    RemoveSource(VolumeId),
    /// Ending the last transaction on it.
    EndOldSource(VolumeId),
    /// Ending the transaction on a source that stays.
    EndSourceAgain(VolumeId),
    /// Removing the old backup volume.
    RemoveBackup(VolumeId),
    /// Removing the clone.
    RemoveClone(VolumeId),
    /// Removing the volume where an earlier move has left it.
    RemoveLeftover(VolumeId),
    /// The same for the backup volume.
    RemoveLeftoverBackup(VolumeId),
    /// Making an entry.
    MakeEntry(VolumeId),
    /// Releasing the lock.
    Unlock(VolumeId),
}

/// The remains of an operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// A part of the volume where it was to be.
    Target(Place, VolumeId),
    /// A clone of the source.
    Clone(Place, VolumeId),
    /// The volume where it was.
    Source(Place, VolumeId),
    /// The source, out of service.
    Offline(Place, VolumeId),
    /// The copy, as nobody can say whether it has an entry.
    Unrecorded(Place, VolumeId),
    /// The volume at both places, as nobody can say which of them its entry names.
    Either(Place, Place, VolumeId),
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(place, id) => write!(
                f,
                "{place} may have a part of volume {id}: give the command again, or remove it with vos zap"
            ),
            Self::Clone(place, id) => {
                write!(
                    f,
                    "{place} may have the temporary clone {id}: it goes when the server starts again, or with vos zap"
                )
            }
            Self::Source(place, id) => {
                write!(
                    f,
                    "the volume has moved, and {place} still has {id}: give the command again, or remove that with vos zap"
                )
            }
            Self::Offline(place, id) => {
                write!(
                    f,
                    "volume {id} on {place} may be offline: give the command again, or bring it back with vos online"
                )
            }
            Self::Unrecorded(place, id) => write!(
                f,
                "it is not known whether volume {id} on {place} has an entry: when the database is in order, look with vos listvldb, and if there is none, remove the volume with vos zap"
            ),
            Self::Either(from, to, id) => write!(
                f,
                "it is not known whether the entry of volume {id} names {from} or {to}: give the command again, after vos unlock"
            ),
        }
    }
}

/// The reason why a volume is not where it was to be, and what is left.
#[derive(Debug)]
pub struct TransferFailure {
    /// The step that failed.
    pub step: Step,
    /// The reason.
    pub error: Error,
    /// The reason why the entry's lock could not be released.
    pub not_unlocked: Option<Error>,
    /// The remains; nothing has changed if there are none.
    pub left: Vec<Left>,
}

impl fmt::Display for TransferFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        self.left.iter().try_for_each(|left| write!(f, "; {left}"))?;
        match &self.not_unlocked {
            Some(_) => write!(f, "; the lock of the entry was not released: do it with vos unlock"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for TransferFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The flags of a half-made volume: it is removed if its server ends, and nobody is served from it.
const HALF_MADE: VolumeFlags = VolumeFlags::DELETE_ON_SALVAGE.union(VolumeFlags::OUT_OF_SERVICE);

/// A volume on its way.
struct Transfer<'a, T> {
    vldb: &'a LocationDb,
    servers: &'a VolumeServers,
    steps: Steps<'a, T>,
    from: Place,
    to: Place,
    /// The source.
    volume: VolumeId,
    source: Option<Transaction>,
    /// The clone, as soon as it may be there.
    clone: Option<VolumeId>,
    clone_transaction: Option<Transaction>,
    /// The volume that was made at the target, as soon as it may be there.
    made: Option<VolumeId>,
    /// The copy of which nobody knows whether it has an entry.
    unrecorded: Option<VolumeId>,
    target: Option<Transaction>,
    /// True if a volume with a level may go to a server that knows no levels.
    may_lose_level: bool,
}

impl<'a, T> Transfer<'a, T> {
    /// Makes the transfer of a volume from one place to another. Nothing has begun yet.
    fn new(
        vldb: &'a LocationDb,
        servers: &'a VolumeServers,
        steps: Steps<'a, T>,
        (volume, from, to): (VolumeId, Place, Place),
        may_lose_level: bool,
    ) -> Self {
        Self {
            vldb,
            servers,
            steps,
            from,
            to,
            volume,
            source: None,
            clone: None,
            clone_transaction: None,
            made: None,
            unrecorded: None,
            target: None,
            may_lose_level,
        }
    }
}

impl<T: FnMut(Event<Step>)> Transfer<'_, T> {
    async fn take<R>(
        &mut self,
        step: Step,
        work: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Failed<Step>> {
        self.steps.take(step, work).await
    }

    /// Takes a step without telling anybody.
    async fn quietly<R>(
        &mut self,
        step: Step,
        work: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Failed<Step>> {
        self.steps.cancel.check().map_err(|error| Failed { step, error })?;
        work.await.map_err(|error| Failed { step, error })
    }

    async fn begin_source(&mut self, step: Step) -> Result<Transaction, Failed<Step>> {
        let (servers, Place { server, partition }) = (self.servers, self.from);
        let begun = self.take(step, servers.begin(server, partition, self.volume, AttachFlags::BUSY)).await?;
        self.source = Some(begun);
        Ok(begun)
    }

    /// Ends the transaction on the source, in which nothing may have gone wrong.
    async fn end_source(&mut self, step: Step) -> Result<(), Failed<Step>> {
        let servers = self.servers;
        let Some(source) = self.source.take() else { return Ok(()) };
        self.steps.take_surely(step, servers.end_well(source)).await
    }

    /// Clones the source within its transaction.
    async fn clone_source(&mut self, clone: VolumeId, name: &str) -> Result<(), Failed<Step>> {
        let servers = self.servers;
        let Some(source) = self.source else { return Ok(()) };
        let step = Step::Clone(self.volume);
        self.steps.cancel.check().map_err(|error| Failed { step, error })?;
        // Whatever comes of the call, the clone may be there.
        self.clone = Some(clone);
        let new = NewClone { id: clone, kind: Kind::ReadOnly, name };
        self.steps.take_surely(step, servers.clone_volume(source, new)).await
    }

    /// Opens the clone, which goes if its server ends. Says from which date on its source may have changed after it.
    async fn open_clone(&mut self, clone: VolumeId) -> Result<(Transaction, AfsTime), Failed<Step>> {
        let (servers, Place { server, partition }) = (self.servers, self.from);
        let begin = servers.begin(server, partition, clone, AttachFlags::OFFLINE);
        let transaction = self.take(Step::BeginClone(clone), begin).await?;
        self.clone_transaction = Some(transaction);
        self.take(Step::SetCloneState(clone), servers.set_flags(transaction, HALF_MADE)).await?;
        let status = self.take(Step::GetCloneStatus(clone), servers.status(transaction)).await?;
        Ok((transaction, since(status.creation_date)))
    }

    /// Makes an empty volume at the target, which goes if its server ends.
    async fn make_target(
        &mut self,
        id: VolumeId,
        identity: Identity<'_>,
    ) -> Result<Transaction, Failed<Step>> {
        let (servers, Place { server, partition }) = (self.servers, self.to);
        let step = Step::Make(id);
        self.steps.cancel.check().map_err(|error| Failed { step, error })?;
        self.made = Some(id);
        let make = servers.create_to_fill(server, partition, id, identity);
        let target = self.steps.take_surely(step, make).await?;
        self.target = Some(target);
        self.take(Step::SetTargetState(id), servers.set_flags(target, HALF_MADE)).await?;
        Ok(target)
    }

    /// Sends what a transaction has into the one at the target.
    async fn send(
        &mut self,
        step: Step,
        from: Transaction,
        date: AfsTime,
        target: Transaction,
        identity: Identity<'_>,
    ) -> Result<(), Failed<Step>> {
        let servers = self.servers;
        self.send_by(step, from, servers.forward(from, date, target, identity)).await
    }

    /// The same of what differs from a snapshot that the target has, or all.
    async fn send_against(
        &mut self,
        step: Step,
        from: Transaction,
        base: Option<VolumeId>,
        target: Transaction,
        identity: Identity<'_>,
    ) -> Result<(), Failed<Step>> {
        let servers = self.servers;
        self.send_by(step, from, servers.forward_against(from, base, target, identity)).await
    }

    /// The same of the volume itself. Servers that have no snapshots get the order that all servers know.
    async fn send_first(
        &mut self,
        step: Step,
        from: Transaction,
        base: Option<VolumeId>,
        target: Transaction,
        identity: Identity<'_>,
    ) -> Result<(), Failed<Step>> {
        match base {
            Some(_) => self.send_against(step, from, base, target, identity).await,
            None => self.send(step, from, AfsTime(0), target, identity).await,
        }
    }

    async fn send_by(
        &mut self,
        step: Step,
        from: Transaction,
        sent: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Failed<Step>> {
        let (servers, may_lose_level) = (self.servers, self.may_lose_level);
        let send = async {
            if may_lose_level {
                servers.may_lose_level(from).await?;
            }
            sent.await
        };
        self.steps.take_long(step, send).await
    }

    async fn end_clone(&mut self) -> Result<(), Failed<Step>> {
        let servers = self.servers;
        let (Some(transaction), Some(clone)) = (self.clone_transaction.take(), self.clone) else {
            return Ok(());
        };
        self.steps.take_surely(Step::EndClone(clone), servers.end_well(transaction)).await
    }

    async fn end_target(&mut self, id: VolumeId) -> Result<(), Failed<Step>> {
        let servers = self.servers;
        let Some(target) = self.target.take() else { return Ok(()) };
        self.steps.take_surely(Step::EndTarget(id), servers.end_well(target)).await
    }

    /// Removes a volume of a place, also if the operation is to stop. Says whether it was there.
    async fn remove_at(&mut self, step: Step, place: Place, id: VolumeId) -> Result<bool, Failed<Step>> {
        self.remove_copy_at(step, place, id, None).await
    }

    /// The same of a copy of a volume that is at another server, if one is named.
    async fn remove_copy_at(
        &mut self,
        step: Step,
        place: Place,
        id: VolumeId,
        is_at: Option<Ipv4Addr>,
    ) -> Result<bool, Failed<Step>> {
        (self.steps.tell)(Event::Begins(step));
        match remove_copy(self.servers, place.server, place.partition, id, is_at).await {
            Ok(()) => {
                (self.steps.tell)(Event::IsDone(step));
                Ok(true)
            }
            Err(failure) if failure.is_missing() => Ok(false),
            Err(failure) => Err(Failed { step, error: failure.error }),
        }
    }

    /// Lets the transactions on source and clone go.
    async fn let_go(&mut self) {
        for transaction in [self.source.take(), self.clone_transaction.take()].into_iter().flatten() {
            // It ends by itself after some minutes.
            let _ = self.servers.end(transaction).await;
        }
    }

    /// Removes what was made, after a failure. Says what could not be removed.
    async fn undo_target(&mut self) -> Option<Left> {
        let id = self.made.take()?;
        let (servers, Place { server, partition }) = (self.servers, self.to);
        let is_removed = match self.target.take() {
            None => false,
            Some(target) => {
                let deleted = servers.delete(target).await;
                // It ends by itself after some minutes.
                let _ = servers.end(target).await;
                deleted.is_ok()
            }
        };
        if is_removed {
            return None;
        }
        let is_at = Some(self.from.server).filter(|from| *from != server);
        match remove_copy(servers, server, partition, id, is_at).await {
            Ok(()) => None,
            Err(failure) if failure.is_missing() => None,
            Err(_) => Some(Left::Target(self.to, id)),
        }
    }

    /// The same for the clone.
    async fn undo_clone(&mut self) -> Option<Left> {
        let clone = self.clone.take()?;
        match remove(self.servers, self.from.server, self.from.partition, clone).await {
            Ok(()) => None,
            Err(failure) if failure.is_missing() => None,
            Err(_) => Some(Left::Clone(self.from, clone)),
        }
    }

    /// The state of a volume at the target, in a transaction that is left open; `None` if it is not there.
    async fn open_existing(
        &mut self,
        id: VolumeId,
    ) -> Result<Option<(Transaction, VolserStatus)>, Failed<Step>> {
        let (servers, Place { server, partition }) = (self.servers, self.to);
        match servers.begin(server, partition, id, AttachFlags::OFFLINE).await {
            Err(error) if error.code() == VNOVOL => Ok(None),
            Err(error) => Err(Failed { step: Step::BeginTarget(id), error }),
            Ok(transaction) => {
                self.target = Some(transaction);
                let status = self.take(Step::GetTargetStatus(id), servers.status(transaction)).await?;
                Ok(Some((transaction, status)))
            }
        }
    }
}
