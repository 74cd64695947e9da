//! Moving a volume to another partition, of the same server or of another one: `vos move`. The entry of the volume is locked meanwhile, and
//! names the new place from the moment on at which all is there. A failure before that leaves the volume where it was; one after that, or the
//! end of this program at any time, is repaired by the same order.
//!
//! What earlier moves have left is recognised by what they had done: a source out of service beside a volume at the target was about to be
//! replaced, and a temporary clone that the source's header names is nobody's.

use std::time::Duration;

use afs_wire::abort::{VNOVOL, VOFFLINE, VOLSERBADOP, VOLSERVOLMOVED};
use afs_wire::afsvol::{AttachFlags, SnapshotType, VOK, VolintInfo, VolumeFlags};
use afs_wire::ids::{AfsTime, VolumeId, VolumeType};
use afs_wire::vl::{EntryFlags, ReleaseType};

use super::{Left, Place, Step, Transfer, TransferFailure};
use crate::cancel::Cancel;
use crate::doubt::Fate;
use crate::entry::{Entry, Kind};
use crate::error::Error;
use crate::remove::remove;
use crate::steps::{Event, Failed, Steps};
use crate::vldb::LocationDb;
use crate::volumes::{Identity, Transaction, VolumeServers};

/// The name of the clone that is sent.
const CLONE_NAME: &str = "move-clone-temp";

/// The number of tries to bring a source back whose server does not answer, and the pause between two of them.
const BRING_BACK: (u32, Duration) = (10, Duration::from_secs(3));

/// The volume that is to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The read-write volume.
    pub volume: VolumeId,
    /// Its place.
    pub from: Place,
    /// The place where it is to be.
    pub to: Place,
    /// True if clients wait for all of it, instead of for what they have changed meanwhile: it needs no space for a clone's changes.
    pub is_live: bool,
    /// True if a volume with a level may go to a server that knows no levels.
    pub may_lose_level: bool,
}

/// The outcome for a volume that was to be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// It is at the new place.
    Here {
        /// True if read-only volumes stay where they were.
        has_replicas: bool,
    },
    /// It was there already, and what an earlier move had left at the old place is removed.
    Before,
    /// It is at neither place: this is its entry.
    Elsewhere(Entry),
    /// Both places are one, where it is.
    SamePlace,
}

/// Moves a volume, and tells of what happens.
///
/// # Errors
///
/// The step that failed, and what is left. The volume is where its entry says.
pub async fn move_volume(
    vldb: &LocationDb,
    servers: &VolumeServers,
    order: Order,
    cancel: &Cancel,
    tell: impl FnMut(Event<Step>),
) -> Result<Moved, TransferFailure> {
    let steps = Steps { cancel, tell };
    let transfer =
        Transfer::new(vldb, servers, steps, (order.volume, order.from, order.to), order.may_lose_level);
    Move { transfer, is_live: order.is_live, is_offline: false, is_online_there: false }.run().await
}

/// True if an earlier move has brought the volume to its new place: the entry names that, and the old place lacks the volume. Whatever the
/// entry names, what a move has left at an old place without the volume itself is removed there: its backup volume and the temporary clone. Looks
/// through the partition.
pub async fn has_moved(vldb: &LocationDb, servers: &VolumeServers, order: Order) -> bool {
    let Order { volume, from, to, .. } = order;
    if !matches!(servers.has_volume(from.server, from.partition, volume).await, Ok(false)) {
        return false;
    }
    // If it cannot be removed, the server does it when it starts again.
    let _ = remove_leftovers(vldb, servers, order).await;
    match vldb.entry_by_id(volume, None).await {
        Ok(entry) if entry.id(Kind::ReadWrite) == volume && from != to => {
            is_at(vldb, &entry, to).await.unwrap_or(false)
        }
        Ok(_) => false,
        Err(_) => false,
    }
}

async fn remove_leftovers(vldb: &LocationDb, servers: &VolumeServers, order: Order) -> Result<(), Error> {
    let Order { volume, from, to, .. } = order;
    vldb.set_lock(volume, Some(Kind::ReadWrite), EntryFlags::OP_MOVE).await?;
    let removed = async {
        let entry = vldb.entry_by_id(volume, None).await?;
        if is_at(vldb, &entry, from).await? {
            return Ok(());
        }
        if is_at(vldb, &entry, to).await? {
            let _ = servers.remove_twins(volume, from, to).await;
        }
        let backup = entry.id(Kind::Backup);
        for found in servers.volumes(from.server, from.partition, true).await? {
            let is_clone = found.name.text() == CLONE_NAME.as_bytes();
            if found.parent_id == volume && (is_clone || (found.volid == backup && !entry.has(Kind::Backup)))
            {
                // If it cannot be removed, the server does it when it starts again.
                let _ = remove(servers, from.server, from.partition, found.volid).await;
            }
        }
        Ok(())
    }
    .await;
    let unlocked = vldb.release_lock(volume, Some(Kind::ReadWrite)).await;
    removed.and(unlocked)
}

/// True if an entry says that the read-write volume is there.
async fn is_at(vldb: &LocationDb, entry: &Entry, place: Place) -> Result<bool, Error> {
    match entry.read_write_site() {
        Some(site) if site.partition == place.partition => {
            vldb.is_same_server(site.server, place.server).await
        }
        _ => Ok(false),
    }
}

/// Sends the snapshots of the volume that are beside it, the oldest first and of each what differs from the one before, to a target that takes them
/// over. Says which one the target has then as its newest contents. What cannot be had or kept stays where it is.
async fn carry_snapshots<T: FnMut(Event<Step>)>(
    transfer: &mut Transfer<'_, T>,
    target: Transaction,
    identity: Identity<'_>,
) -> Result<Option<VolumeId>, Failed<Step>> {
    let Transfer { servers, volume, from, .. } = *transfer;
    let mut snapshots = servers.snapshots(from.server, volume).await.unwrap_or_default();
    snapshots.retain(|snapshot| {
        let is_carried = [SnapshotType::MANUAL, SnapshotType::SCHEDULED].contains(&snapshot.kind);
        is_carried && snapshot.partition == from.partition
    });
    snapshots.sort_by_key(|snapshot| snapshot.made);
    let mut base = None;
    if snapshots.is_empty() || !servers.takes_snapshots(target).await {
        return Ok(base);
    }
    let level = servers.level(from.server, from.partition, volume).await.ok();
    for snapshot in snapshots {
        let id = snapshot.volid;
        // With one of a higher level the volume itself would get that.
        if servers.level(from.server, from.partition, id).await.ok() != level {
            continue;
        }
        let begun = servers.begin(from.server, from.partition, id, AttachFlags::READ_ONLY).await;
        let Ok(transaction) = begun else { continue };
        let sent = transfer.send_against(Step::SendSnapshot(id), transaction, base, target, identity).await;
        // It ends by itself after some minutes.
        let _ = servers.end(transaction).await;
        sent?;
        base = Some(id);
        transfer.take(Step::KeepSnapshot(id), servers.carry_snapshot(target, &snapshot)).await?;
    }
    Ok(base)
}

struct Move<'a, T> {
    transfer: Transfer<'a, T>,
    is_live: bool,
    /// True if the source may have been taken offline.
    is_offline: bool,
    /// True if the volume may be online at the target.
    is_online_there: bool,
}

impl<T: FnMut(Event<Step>)> Move<'_, T> {
    async fn run(mut self) -> Result<Moved, TransferFailure> {
        let (vldb, volume) = (self.transfer.vldb, self.transfer.volume);
        let failed = |failed: Failed<Step>, not_unlocked| TransferFailure {
            step: failed.step,
            error: failed.error,
            not_unlocked,
            left: Vec::new(),
        };
        self.lock().await.map_err(|failure| failed(failure, None))?;
        let unlock = || vldb.release_lock(volume, Some(Kind::ReadWrite));
        let entry =
            match self.transfer.quietly(Step::FetchEntry(volume), vldb.entry_by_id(volume, None)).await {
                Ok(entry) => entry,
                Err(failure) => return Err(failed(failure, unlock().await.err())),
            };
        let other_outcome = match self.compare(&entry).await {
            Ok(outcome) => outcome,
            Err(failure) => return Err(failed(failure, unlock().await.err())),
        };
        if let Some(moved) = other_outcome {
            let unlocked = unlock().await;
            unlocked.map_err(|error| failed(Failed { step: Step::Unlock(volume), error }, None))?;
            return Ok(moved);
        }
        match self.bring_over(&entry).await {
            Ok(()) => {}
            Err(failure) => return Err(self.give_up(failure).await),
        }
        match self.commit(entry.clone()).await {
            Ok(()) => {}
            Err((failure, true)) => {
                self.transfer.let_go().await;
                let left = vec![Left::Either(self.transfer.from, self.transfer.to, volume)];
                return Err(TransferFailure { left, ..failed(failure, None) });
            }
            Err((failure, false)) => return Err(self.give_up(failure).await),
        }
        self.clean_up(&entry).await?;
        Ok(Moved::Here { has_replicas: entry.has(Kind::ReadOnly) })
    }

    async fn lock(&mut self) -> Result<(), Failed<Step>> {
        let (vldb, volume) = (self.transfer.vldb, self.transfer.volume);
        let fetched = vldb.entry_by_id(volume, None).await;
        let entry = fetched.map_err(|error| Failed { step: Step::FetchEntry(volume), error })?;
        if entry.id(Kind::ReadWrite) != volume {
            let what = format!("volume {volume} is no read-write volume");
            return Err(Failed {
                step: Step::Compare(volume),
                error: Error::Local { what, code: VOLSERVOLMOVED },
            });
        }
        let lock = vldb.set_lock(volume, Some(Kind::ReadWrite), EntryFlags::OP_MOVE);
        self.transfer.quietly(Step::Lock(volume), lock).await
    }

    async fn is_at(&self, entry: &Entry, place: Place) -> Result<bool, Error> {
        is_at(self.transfer.vldb, entry, place).await
    }

    /// Returns the outcome if the volume is not to be moved; `None` if it is.
    async fn compare(&mut self, entry: &Entry) -> Result<Option<Moved>, Failed<Step>> {
        let Transfer { volume, from, to, .. } = self.transfer;
        let failed = |error| Failed { step: Step::Compare(volume), error };
        if self.is_at(entry, from).await.map_err(failed)? {
            let is_same = self.is_at(entry, to).await.map_err(failed)?;
            return Ok(is_same.then_some(Moved::SamePlace));
        }
        if !self.is_at(entry, to).await.map_err(failed)? {
            return Ok(Some(Moved::Elsewhere(entry.clone())));
        }
        self.look_at_moved().await?;
        let source = self.transfer.servers.volume(from.server, from.partition, volume).await;
        if let Ok(source) = source {
            self.remove_old_clone(entry, &source).await;
        }
        let _ = self.transfer.servers.remove_twins(volume, from, to).await;
        let is_at = Some(to.server).filter(|to| *to != from.server);
        self.transfer.remove_copy_at(Step::RemoveLeftover(volume), from, volume, is_at).await?;
        let backup = entry.id(Kind::Backup);
        if backup != VolumeId(0) && !entry.has(Kind::Backup) {
            self.transfer.remove_at(Step::RemoveLeftoverBackup(backup), from, backup).await?;
        }
        Ok(Some(Moved::Before))
    }

    /// Makes sure that the volume is at the new place, before what may be the only other copy of it is removed.
    async fn look_at_moved(&mut self) -> Result<(), Failed<Step>> {
        let Transfer { servers, volume, to, .. } = self.transfer;
        let look = async {
            match servers.has_volume(to.server, to.partition, volume).await? {
                true => servers.volume(to.server, to.partition, volume).await.map(Some),
                false => Ok(None),
            }
        };
        let found = self.transfer.quietly(Step::Look(volume), look).await?;
        let (why, code) = match found {
            None => ("does not have it: have the entry say where it is, with vos syncserv", VNOVOL),
            Some(found) if found.kind != VolumeType::READ_WRITE => {
                ("has another kind of volume", VOLSERBADOP)
            }
            Some(found) if found.status != VOK || found.in_use == 0 || found.needs_salvaged != 0 => {
                ("does not serve it now: try again, or bring it back with vos online", VOFFLINE)
            }
            Some(_) => return Ok(()),
        };
        let what = format!("volume {volume} was not removed from {}, as {to} {why}", self.transfer.from);
        Err(Failed { step: Step::RemoveLeftover(volume), error: Error::Local { what, code } })
    }

    /// Undoes what a move has left that was broken off, where that would be in the way.
    async fn repair(&mut self, entry: &Entry) -> Result<(), Failed<Step>> {
        let Transfer { servers, volume, from, to, .. } = self.transfer;
        let look = servers.volume(from.server, from.partition, volume);
        let source = self.transfer.quietly(Step::Look(volume), look).await?;
        let is_there = is_out_of_service(&source)
            && servers
                .volume(to.server, to.partition, volume)
                .await
                .is_ok_and(|there| there.kind == VolumeType::READ_WRITE);
        if is_there {
            self.transfer.made = Some(volume);
            if self.undo_target().await.is_none() {
                self.bring_back().await.map_err(|error| Failed { step: Step::Look(volume), error })?;
            }
        }
        self.remove_old_clone(entry, &source).await;
        Ok(())
    }

    /// Removes the clone that a move has left which was broken off.
    async fn remove_old_clone(&self, entry: &Entry, source: &VolintInfo) {
        let Transfer { servers, volume, from, .. } = self.transfer;
        let clone = source.clone_id;
        if clone == VolumeId(0) || clone == entry.id(Kind::ReadOnly) {
            return;
        }
        let found = servers.volume(from.server, from.partition, clone).await;
        if found.is_ok_and(|found| found.name.text() == CLONE_NAME.as_bytes() && found.parent_id == volume) {
            // If it cannot be removed, the server does it when it starts again.
            let _ = remove(servers, from.server, from.partition, clone).await;
        }
    }

    /// Has all of the volume at the target, and takes the source offline.
    async fn bring_over(&mut self, entry: &Entry) -> Result<(), Failed<Step>> {
        self.repair(entry).await?;
        let is_live = self.is_live;
        let transfer = &mut self.transfer;
        let (servers, vldb, volume) = (transfer.servers, transfer.vldb, transfer.volume);
        let source = transfer.begin_source(Step::BeginSource(volume)).await?;
        if !is_live {
            let take = vldb.new_volume_ids(1);
            let clone = transfer.take(Step::TakeCloneId(volume), take).await?;
            transfer.clone_source(clone, CLONE_NAME).await?;
        }
        let name = transfer.quietly(Step::GetName(volume), servers.name(source)).await?;
        transfer.end_source(Step::EndSource(volume)).await?;
        let opened = match transfer.clone {
            Some(clone) => Some((clone, transfer.open_clone(clone).await?)),
            None => None,
        };
        let (kind, none) = (Kind::ReadWrite, VolumeId(0));
        let identity = Identity { name: &name, kind, parent: volume, clone: none, backup: none };
        transfer.remove_at(Step::RemoveExisting(volume), transfer.to, volume).await?;
        let target = transfer.make_target(volume, identity).await?;
        let base = carry_snapshots(transfer, target, identity).await?;
        let mut since = AfsTime(0);
        if let Some((clone, (transaction, date))) = opened {
            let step = Step::Send { clone, to: volume };
            transfer.send_first(step, transaction, base, target, identity).await?;
            transfer.end_clone().await?;
            since = date;
        }
        let source = transfer.begin_source(Step::BeginSourceAgain(volume)).await?;
        let step = if is_live { Step::SendAll(volume) } else { Step::SendChanges(volume) };
        match is_live {
            true => transfer.send_first(step, source, base, target, identity).await?,
            false => transfer.send(step, source, since, target, identity).await?,
        }
        self.is_offline = true;
        let take_offline = servers.set_flags(source, VolumeFlags::OUT_OF_SERVICE);
        self.transfer.take(Step::TakeOffline(volume), take_offline).await?;
        self.is_online_there = true;
        self.transfer.take(Step::SetState(volume), servers.set_flags(target, VolumeFlags::NONE)).await?;
        self.transfer.end_target(volume).await
    }

    /// Has the entry name the new place. A failure says whether the entry may do so all the same.
    async fn commit(&mut self, mut entry: Entry) -> Result<(), (Failed<Step>, bool)> {
        let Transfer { vldb, volume, to, .. } = self.transfer;
        let step = Step::ReplaceEntry(volume);
        if let Some(site) = entry.read_write_index() {
            (entry.sites[site].server, entry.sites[site].partition) = (to.server, to.partition);
        }
        // The backup volume does not move along: `clean_up` removes it at the old place.
        entry.set_exists(Kind::Backup, false);
        // One call changes the entry and releases its lock: no end of this program leaves the one without the other.
        let replace = vldb.replace_entry(volume, Kind::ReadWrite, &entry, ReleaseType::ALL);
        let Err(failure) = self.transfer.take(step, replace).await else { return Ok(()) };
        let look = async {
            let found = vldb.entry_by_id(volume, None).await?;
            self.is_at(&found, to).await
        };
        // The answer may be lost though the change was made: undoing the move would remove the volume from where its entry says it is.
        match vldb.fate(&failure.error, look).await {
            Fate::Made => Ok(()),
            Fate::NotMade => Err((failure, false)),
            Fate::Unknown => Err((failure, true)),
        }
    }

    /// Removes what is at the old place. Nothing of this is broken off by a wish to stop.
    async fn clean_up(&mut self, entry: &Entry) -> Result<(), TransferFailure> {
        let uncancelled = Cancel::default();
        let (servers, volume, from) = (self.transfer.servers, self.transfer.volume, self.transfer.from);
        let mut steps = Steps { cancel: &uncancelled, tell: &mut self.transfer.steps.tell };
        // A failure keeps nothing else from being removed: the volume has moved, and all that is left here is in the way.
        let mut failures: Vec<Failed<Step>> = Vec::new();
        let mut left = Vec::new();
        // What cannot be removed is told of as what stays, and goes when the order is given again.
        let _ = servers.remove_twins(volume, from, self.transfer.to).await;
        if let Some(source) = self.transfer.source.take() {
            // Clients then look the volume up again at once. A server that has it at another partition serves it from there.
            if self.transfer.to.server != from.server {
                let forward = servers.set_forwarding(source, self.transfer.to.server);
                failures.extend(steps.take(Step::SetForwarding(volume), forward).await.err());
            }
            let removed = steps.take(Step::RemoveSource(volume), servers.delete(source)).await;
            if let Err(failure) = removed {
                failures.push(failure);
                left.push(Left::Source(from, volume));
            }
            let ended = steps.take(Step::EndOldSource(volume), servers.end_well(source)).await;
            // A volume that was not removed is told already: its transaction says nothing new.
            if left.is_empty() {
                failures.extend(ended.err());
            }
        }
        let backup = entry.id(Kind::Backup);
        if backup != VolumeId(0) {
            let removed = self.transfer.remove_at(Step::RemoveBackup(backup), from, backup).await;
            if let Err(failure) = removed {
                failures.push(failure);
                left.push(Left::Source(from, backup));
            }
        }
        if let Some(clone) = self.transfer.clone.take() {
            let removed = self.transfer.remove_at(Step::RemoveClone(clone), from, clone).await;
            if let Err(failure) = removed {
                failures.push(failure);
                left.push(Left::Clone(from, clone));
            }
        }
        match failures.into_iter().next() {
            None => Ok(()),
            Some(Failed { step, error }) => Err(TransferFailure { step, error, not_unlocked: None, left }),
        }
    }

    /// Removes the volume from the target, with the snapshots that came along with it and are still where they were.
    async fn undo_target(&mut self) -> Option<Left> {
        let was_made = self.transfer.made.is_some();
        let left = self.transfer.undo_target().await;
        let Transfer { servers, volume, from, to, .. } = self.transfer;
        if was_made && left.is_none() {
            // If they cannot be removed, the order finds them when it is given again.
            let _ = servers.remove_twins(volume, to, from).await;
        }
        left
    }

    /// Has everything as it was before.
    async fn give_up(&mut self, failure: Failed<Step>) -> TransferFailure {
        let (vldb, volume) = (self.transfer.vldb, self.transfer.volume);
        let mut left = Vec::new();
        // Never are both online.
        let mut target = None;
        if self.is_online_there {
            target = self.undo_target().await;
        }
        let is_in_the_way = target.is_some() && self.is_served_beside().await;
        if self.is_offline && (is_in_the_way || self.bring_back().await.is_err()) {
            left.push(Left::Offline(self.transfer.from, volume));
        }
        self.transfer.let_go().await;
        if !self.is_online_there {
            target = self.undo_target().await;
        }
        left.extend(target);
        left.extend(self.transfer.undo_clone().await);
        let not_unlocked = vldb.release_lock(volume, Some(Kind::ReadWrite)).await.err();
        TransferFailure { step: failure.step, error: failure.error, not_unlocked, left }
    }

    /// True if the source's server may serve the volume from the other partition: it would have two of it, and nobody knows which one
    /// clients change.
    async fn is_served_beside(&self) -> bool {
        let Transfer { vldb, servers, volume, from, to, .. } = self.transfer;
        if !vldb.is_same_server(from.server, to.server).await.unwrap_or(true) {
            return false;
        }
        let is_served = async {
            if !servers.has_volume(to.server, to.partition, volume).await? {
                return Ok::<_, Error>(false);
            }
            Ok(!is_out_of_service(&servers.volume(to.server, to.partition, volume).await?))
        };
        is_served.await.unwrap_or(true)
    }

    /// Brings the source online, in the transaction that there is, or in another one.
    async fn bring_back(&mut self) -> Result<(), Error> {
        let Transfer { servers, volume, from, .. } = self.transfer;
        if let Some(source) = self.transfer.source.take() {
            let set = servers.set_flags(source, VolumeFlags::NONE).await;
            let ended = servers.end(source).await;
            if set.is_ok() && ended.is_ok() {
                return Ok(());
            }
        }
        let (attempts, pause) = BRING_BACK;
        let mut attempt = 0;
        loop {
            attempt += 1;
            match online(servers, from, volume).await {
                // Nobody answers, which is the case while a server starts again; or the volume is in use for a moment.
                Err(error) if error.code().0 < 0 && attempt < attempts => {
                    let runtime = servers.runtime();
                    runtime.sleep_until(runtime.now() + pause).await;
                }
                outcome => return outcome,
            }
        }
    }
}

async fn online(servers: &VolumeServers, place: Place, volume: VolumeId) -> Result<(), Error> {
    let Place { server, partition } = place;
    let transaction = servers.begin(server, partition, volume, AttachFlags::OFFLINE).await?;
    let set = servers.set_flags(transaction, VolumeFlags::NONE).await;
    let ended = servers.end_well(transaction).await;
    set.and(ended)
}

/// True if nobody is served from a volume, and that by order.
fn is_out_of_service(volume: &VolintInfo) -> bool {
    volume.status == VOK && volume.in_use == 0 && volume.needs_salvaged == 0
}
