//! Copying a volume to another place under another name and id: `vos copy`; and shadowing it, where the copy has no entry and may be brought
//! up to date: `vos shadow`. Nothing is locked. A failure removes a copy that has no entry, unless nobody knows whether it has one.

use afs_wire::abort::{VL_NOENT, VOLSERBADOP};
use afs_wire::afsvol::VolumeFlags;
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::vl::{EntryFlags, SiteFlags};

use super::{Left, Place, Step, Transfer, TransferFailure};
use crate::cancel::Cancel;
use crate::doubt::Fate;
use crate::entry::{Entry, Kind, Site};
use crate::error::Error;
use crate::steps::{Event, Failed, Steps, since};
use crate::vldb::LocationDb;
use crate::volumes::{Identity, VolumeServers};

/// The name of the clone that is sent.
const CLONE_NAME: &str = "copy-clone-temp";

/// The volume that is to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order<'a> {
    /// The source.
    pub volume: VolumeId,
    /// Its place.
    pub from: Place,
    /// The place where the copy is to be.
    pub to: Place,
    /// The name of the copy.
    pub name: &'a str,
    /// Its id, unless the database chooses one.
    pub id: Option<VolumeId>,
    /// A read-write volume, or a read-only one.
    pub kind: Kind,
    /// True if it stays offline.
    pub stays_offline: bool,
    /// True if clients wait for all of it, instead of for what they have changed meanwhile.
    pub is_live: bool,
    /// True if it gets an entry.
    pub has_entry: bool,
    /// True if a volume that is there gets what has changed. Otherwise it is removed.
    pub is_incremental: bool,
    /// True if a volume with a level may go to a server that knows no levels.
    pub may_lose_level: bool,
}

/// Copies a volume, and tells of what happens. Says the id of the copy.
///
/// # Errors
///
/// The step that failed, and what is left.
pub async fn copy(
    vldb: &LocationDb,
    servers: &VolumeServers,
    order: Order<'_>,
    cancel: &Cancel,
    tell: impl FnMut(Event<Step>),
) -> Result<VolumeId, TransferFailure> {
    let steps = Steps { cancel, tell };
    let mut transfer =
        Transfer::new(vldb, servers, steps, (order.volume, order.from, order.to), order.may_lose_level);
    let copied = match transfer.copy(order).await {
        Ok(id) => match transfer.finish(order, id).await {
            Ok(()) => Ok(id),
            Err(failure) => Err(failure),
        },
        Err(failure) => Err(failure),
    };
    match copied {
        Ok(id) => Ok(id),
        Err(failure) => Err(transfer.give_up(failure).await),
    }
}

impl<T: FnMut(Event<Step>)> Transfer<'_, T> {
    /// Has all of the volume at the target.
    async fn copy(&mut self, order: Order<'_>) -> Result<VolumeId, Failed<Step>> {
        let (servers, vldb, volume) = (self.servers, self.vldb, self.volume);
        let mut clone = None;
        if !order.is_live {
            self.begin_source(Step::BeginSource(volume)).await?;
            clone = Some(self.take(Step::TakeCloneId(volume), vldb.new_volume_ids(1)).await?);
        }
        let id = match order.id {
            Some(id) => id,
            None => self.take(Step::TakeCopyId(volume), vldb.new_volume_ids(1)).await?,
        };
        if let Some(clone) = clone {
            self.clone_source(clone, CLONE_NAME).await?;
        }
        self.end_source(Step::EndSource(volume)).await?;
        let opened = match clone {
            Some(clone) => Some((clone, self.open_clone(clone).await?)),
            None => None,
        };
        let none = VolumeId(0);
        let identity = Identity { name: order.name, kind: order.kind, parent: id, clone: none, backup: none };
        let (target, mut date) = match self.existing(order, id).await? {
            Some(existing) => existing,
            None => (self.make_target(id, identity).await?, AfsTime(0)),
        };
        if let Some((clone, (transaction, cloned))) = opened {
            self.send(Step::Send { clone, to: id }, transaction, date, target, identity).await?;
            self.end_clone().await?;
            date = cloned;
        }
        let source = self.begin_source(Step::BeginSourceAgain(volume)).await?;
        let step = if order.is_live && date == AfsTime(0) {
            Step::SendAll(volume)
        } else {
            Step::SendChanges(volume)
        };
        self.send(step, source, date, target, identity).await?;
        let state = if order.stays_offline { VolumeFlags::OUT_OF_SERVICE } else { VolumeFlags::NONE };
        self.take(Step::SetState(id), servers.set_flags(target, state)).await?;
        self.end_target(id).await?;
        self.end_source(Step::EndSourceAgain(volume)).await?;
        Ok(id)
    }

    /// Opens the volume at the target if it is to be brought up to date, and returns since when the source may have changed. Removes it
    /// otherwise.
    async fn existing(
        &mut self,
        order: Order<'_>,
        id: VolumeId,
    ) -> Result<Option<(crate::volumes::Transaction, AfsTime)>, Failed<Step>> {
        if order.id.is_none() {
            return Ok(None);
        }
        if order.to == order.from && id == order.volume {
            let what = format!("volume {id} would be copied into itself");
            return Err(Failed { step: Step::Compare(id), error: Error::Local { what, code: VOLSERBADOP } });
        }
        self.check_is_no_volume_of_the_database(id).await?;
        if order.is_incremental {
            return Ok(self
                .open_existing(id)
                .await?
                .map(|(target, status)| (target, since(status.update_date))));
        }
        self.remove_existing(id).await
    }

    /// Refuses a volume that the database has at the target: it is nobody's shadow, because clients are sent there.
    async fn check_is_no_volume_of_the_database(&mut self, id: VolumeId) -> Result<(), Failed<Step>> {
        let (vldb, to) = (self.vldb, self.to);
        let look = async {
            let entry = match vldb.entry_by_id(id, None).await {
                Err(error) if error.code() == VL_NOENT => return Ok(false),
                found => found?,
            };
            let kind = if entry.id(Kind::ReadOnly) == id && entry.id(Kind::ReadWrite) != id {
                Kind::ReadOnly
            } else {
                Kind::ReadWrite
            };
            for site in entry.sites.iter().filter(|site| site.is(kind) && site.partition == to.partition) {
                if vldb.is_same_server(site.server, to.server).await? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        if self.quietly(Step::FetchEntry(id), look).await? {
            let what = format!(
                "volume {id} on {to} is no shadow, as its entry names that place: choose another id with -toid"
            );
            return Err(Failed { step: Step::Compare(id), error: Error::Local { what, code: VOLSERBADOP } });
        }
        Ok(())
    }

    async fn remove_existing<R>(&mut self, id: VolumeId) -> Result<Option<R>, Failed<Step>> {
        let (servers, Place { server, partition }) = (self.servers, self.to);
        let look = servers.has_volume(server, partition, id);
        if self.quietly(Step::RemoveExisting(id), look).await? {
            self.remove_at(Step::RemoveExisting(id), self.to, id).await?;
        }
        Ok(None)
    }

    /// Removes the clone and makes the entry.
    async fn finish(&mut self, order: Order<'_>, id: VolumeId) -> Result<(), Failed<Step>> {
        if let Some(clone) = self.clone {
            self.remove_at(Step::RemoveClone(clone), self.from, clone).await?;
            self.clone = None;
        }
        if !order.has_entry {
            self.made = None;
            return Ok(());
        }
        let vldb = self.vldb;
        let entry = entry(order, id);
        let made = self.take(Step::MakeEntry(id), vldb.create_entry(&entry)).await;
        let Err(failure) = made else {
            self.made = None;
            return Ok(());
        };
        match vldb.fate_of_entry(&failure.error, id, &entry).await {
            Fate::Made => {
                self.made = None;
                Ok(())
            }
            Fate::NotMade => Err(failure),
            Fate::Unknown => {
                self.unrecorded = self.made.take();
                Err(failure)
            }
        }
    }

    async fn give_up(&mut self, failure: Failed<Step>) -> TransferFailure {
        self.let_go().await;
        let unrecorded = self.unrecorded.map(|id| Left::Unrecorded(self.to, id));
        let mut left: Vec<Left> = self.undo_target().await.into_iter().chain(unrecorded).collect();
        if let Some(target) = self.target.take() {
            // A shadow that was there stays.
            let _ = self.servers.end(target).await;
        }
        left.extend(self.undo_clone().await);
        TransferFailure { step: failure.step, error: failure.error, not_unlocked: None, left }
    }
}

fn entry(order: Order<'_>, id: VolumeId) -> Entry {
    let Place { server, partition } = order.to;
    let flags = if order.kind == Kind::ReadOnly { SiteFlags::RO_VOL } else { SiteFlags::RW_VOL };
    let mut entry = Entry {
        name: order.name.to_owned(),
        sites: vec![Site { server, partition, flags }],
        ids: [VolumeId(0); 3],
        clone_id: VolumeId(0),
        flags: EntryFlags::NONE,
    };
    entry.set_id(Kind::ReadWrite, id);
    if order.kind == Kind::ReadOnly {
        entry.set_id(Kind::ReadOnly, id);
    }
    entry.set_exists(order.kind, true);
    entry
}
