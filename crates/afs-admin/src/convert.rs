//! Making the read-write volume of a read-only one, after that was lost: `vos convertROtoRW`. The entry is locked meanwhile.
//!
//! OpenAFS's servers of before 1.8.10 convert the volume and then say a small number, as if it had failed. So the volume is looked for after
//! such an answer, and what has been done is written into the entry. An order that is given again after an interruption does that too.

use std::fmt;

use afs_wire::abort::VL_BADENTRY;
use afs_wire::afsvol::{AttachFlags, VolumeFlags};
use afs_wire::ids::{VolumeId, VolumeType};
use afs_wire::vl::{EntryFlags, ReleaseType, SiteFlags};

use crate::cancel::Cancel;
use crate::entry::{Entry, Kind, Site};
use crate::error::Error;
use crate::transfer::Place;
use crate::vldb::LocationDb;
use crate::volumes::{NewClone, VolumeServers};

/// The volume that is to be converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order<'a> {
    /// The place of the read-only volume.
    pub place: Place,
    /// The entry by which that was decided. Nothing is done if it is another one by now.
    pub entry: &'a Entry,
    /// True if the place has a read-only volume afterwards too: a clone of what it had.
    pub keeps_read_only: bool,
}

/// A step of converting a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Locking the entry.
    Lock,
    /// Asking for it once more.
    FetchEntry,
    /// Comparing it with the one of the order: it has changed, or has no such volumes.
    Compare,
    /// Converting the volume.
    Convert,
    /// Making a read-only clone of it.
    Keep,
    /// Changing the entry. The volume is converted.
    ReplaceEntry,
    /// Releasing the lock. All is done.
    Unlock,
}

/// The reason why a volume was not converted, or not all of it.
#[derive(Debug)]
pub struct ConvertFailure {
    /// The step that failed.
    pub step: Step,
    /// The reason.
    pub error: Error,
    /// The reason why the entry's lock could not be released after that.
    pub not_unlocked: Option<Error>,
}

impl fmt::Display for ConvertFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = &self.error;
        match self.step {
            Step::Lock | Step::FetchEntry | Step::Compare | Step::Convert => error.fmt(f),
            Step::Keep => write!(f, "the volume is converted, and there is no read-only one: {error}"),
            Step::ReplaceEntry => {
                write!(
                    f,
                    "the volume is converted, and its entry does not say so: {error}; give the command again"
                )
            }
            Step::Unlock => {
                write!(f, "the volume is converted, and its entry is locked: {error}; use vos unlock")
            }
        }
    }
}

impl std::error::Error for ConvertFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Converts a volume. Says its entry as it is then. May be repeated after any failure. A wish to stop counts until the server has begun.
///
/// # Errors
///
/// The step that failed.
pub async fn convert(
    vldb: &LocationDb,
    servers: &VolumeServers,
    order: Order<'_>,
    cancel: &Cancel,
) -> Result<Entry, ConvertFailure> {
    let failed = |step, error| ConvertFailure { step, error, not_unlocked: None };
    let read_only = order.entry.id(Kind::ReadOnly);
    cancel.check().map_err(|error| failed(Step::Lock, error))?;
    let locked = vldb.set_lock(read_only, Some(Kind::ReadOnly), EntryFlags::OP_MOVE).await;
    locked.map_err(|error| failed(Step::Lock, error))?;
    let replaced = convert_locked(vldb, servers, order, cancel).await;
    let unlocked = vldb.release_lock(read_only, Some(Kind::ReadOnly)).await;
    match (replaced, unlocked) {
        // The entry was replaced, and its lock released with that.
        (Ok(entry), _) => Ok(entry),
        (Err((step, error)), unlocked) => {
            Err(ConvertFailure { not_unlocked: unlocked.err(), ..failed(step, error) })
        }
    }
}

async fn convert_locked(
    vldb: &LocationDb,
    servers: &VolumeServers,
    order: Order<'_>,
    cancel: &Cancel,
) -> Result<Entry, (Step, Error)> {
    let Order { place, entry, keeps_read_only } = order;
    let Place { server, partition } = place;
    let [read_write, read_only] = [Kind::ReadWrite, Kind::ReadOnly].map(|kind| entry.id(kind));
    let now = vldb.entry_by_id(read_only, Some(Kind::ReadOnly)).await;
    let now = now.map_err(|error| (Step::FetchEntry, error))?;
    if (Entry { flags: entry.flags, ..now }) != *entry || read_write == VolumeId(0) {
        let what = format!("the entry of volume {read_only} has changed, or names no read-write volume");
        return Err((Step::Compare, Error::Local { what, code: VL_BADENTRY }));
    }
    cancel.check().map_err(|error| (Step::Convert, error))?;
    let mut has_clone = false;
    if let Err(error) = servers.convert_to_read_write(server, partition, read_only).await {
        let is_there = |found: &Result<_, Error>| matches!(found, Ok(true));
        let found = servers.volume(server, partition, read_write).await;
        let found = found.map(|found| found.kind == VolumeType::READ_WRITE);
        let old = servers.has_volume(server, partition, read_only).await;
        // What the order before this one has made of the volume, and did not get into the entry.
        has_clone = keeps_read_only && matches!(old, Ok(true)) && is_clone(servers, order).await;
        if !is_there(&found) || !(has_clone || matches!(old, Ok(false))) {
            return Err((Step::Convert, error));
        }
    }
    if keeps_read_only {
        keep(servers, order, has_clone).await.map_err(|error| (Step::Keep, error))?;
    }
    let changed = changed_entry(vldb, order).await.map_err(|error| (Step::ReplaceEntry, error))?;
    let replaced = vldb.replace_entry(read_only, Kind::ReadOnly, &changed, ReleaseType::ALL).await;
    replaced.map_err(|error| (Step::ReplaceEntry, error))?;
    Ok(changed)
}

/// True if the read-only volume is a clone of the read-write one beside it, and has the same content. A replica beside a read-write volume
/// that a move has left is no such clone.
async fn is_clone(servers: &VolumeServers, order: Order<'_>) -> bool {
    let Order { place: Place { server, partition }, entry, .. } = order;
    let (read_write, id) = (entry.id(Kind::ReadWrite), entry.id(Kind::ReadOnly));
    let clone = servers.volume(server, partition, id).await;
    let original = servers.volume(server, partition, read_write).await;
    let (Ok(clone), Ok(original)) = (clone, original) else { return false };
    clone.kind == VolumeType::READ_ONLY
        && clone.parent_id == read_write
        && clone.update_date == original.update_date
}

/// Makes a read-only clone of the volume under the id that it had, unless it is there, and brings it online.
async fn keep(servers: &VolumeServers, order: Order<'_>, has_clone: bool) -> Result<(), Error> {
    let Order { place: Place { server, partition }, entry, .. } = order;
    let (read_write, id) = (entry.id(Kind::ReadWrite), entry.id(Kind::ReadOnly));
    let name = format!("{}.readonly", entry.name);
    if !has_clone {
        let transaction = servers.begin(server, partition, read_write, AttachFlags::BUSY).await?;
        let new = NewClone { id, kind: Kind::ReadOnly, name: &name };
        let cloned = servers.clone_volume(transaction, new).await;
        let ended = servers.end_well(transaction).await;
        cloned.and(ended)?;
    }
    let transaction = servers.begin(server, partition, id, AttachFlags::OFFLINE).await?;
    let set = servers.set_flags(transaction, VolumeFlags::NONE).await;
    let ended = servers.end_well(transaction).await;
    set.and(ended)
}

/// The entry with the read-write volume where the read-only one was.
async fn changed_entry(vldb: &LocationDb, order: Order<'_>) -> Result<Entry, Error> {
    let Order { place: Place { server, partition }, entry, keeps_read_only } = order;
    let mut changed = entry.clone();
    // As OpenAFS's does it: the last site takes the place of the one that goes.
    if let Some(old) = changed.read_write_index() {
        changed.sites.swap_remove(old);
    }
    let mut index = None;
    for (at, site) in changed.sites.iter().enumerate() {
        if site.is(Kind::ReadOnly)
            && site.partition == partition
            && vldb.is_same_server(site.server, server).await?
        {
            index = Some(at);
        }
    }
    let flags = SiteFlags::RW_VOL;
    match index {
        Some(at) if keeps_read_only => {
            changed.sites[at].flags = SiteFlags::RO_VOL;
            changed.sites.insert(0, Site { server, partition, flags });
        }
        Some(at) => changed.sites[at].flags = flags,
        None => changed.sites.push(Site { server, partition, flags }),
    }
    let has_read_only =
        changed.sites.iter().any(|site| site.is(Kind::ReadOnly) && !site.flags.contains(SiteFlags::DONT_USE));
    changed.set_exists(Kind::ReadWrite, true);
    changed.set_exists(Kind::ReadOnly, has_read_only);
    changed.set_exists(Kind::Backup, false);
    Ok(changed)
}
