//! The entry of a volume that was restored: it is made, or says the new place. As OpenAFS's `vos` does it, but that the database is
//! changed before the volume at an old place is removed, so that what it says is there at any time.

use std::net::Ipv4Addr;

use afs_wire::abort::VL_NOENT;
use afs_wire::afsvol::VolserStatus;
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::{EntryFlags, ReleaseType, SiteFlags};

use super::{Event, Order, Step, Target};
use crate::doubt::Fate;
use crate::entry::{Entry, Kind, Site};
use crate::error::Error;
use crate::vldb::LocationDb;

/// The content of the entry now.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) entry: Entry,
    /// The place where the read-write volume was, if that was elsewhere.
    pub(super) previous: Option<(Ipv4Addr, PartitionId)>,
}

/// The reason why the entry does not say it.
#[derive(Debug)]
pub(super) struct NotRecorded {
    pub(super) step: Step,
    pub(super) error: Error,
    /// The reason why the lock was not released after that.
    pub(super) not_unlocked: Option<Error>,
    /// True if the entry may say it all the same, now or soon: nobody knows.
    pub(super) is_unknown: bool,
}

fn failed(step: Step, error: Error) -> NotRecorded {
    NotRecorded { step, error, not_unlocked: None, is_unknown: false }
}

/// Makes the entry, or changes it.
pub(super) async fn record(
    vldb: &LocationDb,
    order: &Order<'_>,
    target: &Target,
    status: &VolserStatus,
    tell: &mut impl FnMut(Event<'_>),
) -> Result<Recorded, NotRecorded> {
    let (id, kind) = (target.id, order.kind);
    match vldb.entry_by_id(id, Some(kind)).await {
        Ok(old) => {
            tell(Event::ChangesEntry(&old));
            change(vldb, order, id, old).await
        }
        Err(error) if error.code() == VL_NOENT => {
            tell(Event::MakesEntry);
            let entry = new_entry(order, target, status);
            if let Err(error) = vldb.create_entry(&entry).await {
                return settle(vldb, failed(Step::MakeEntry(id), error), id, entry, None).await;
            }
            Ok(Recorded { entry, previous: None })
        }
        Err(error) => Err(failed(Step::FetchEntry(id), error)),
    }
}

async fn change(
    vldb: &LocationDb,
    order: &Order<'_>,
    id: VolumeId,
    old: Entry,
) -> Result<Recorded, NotRecorded> {
    let kind = order.kind;
    let locked = vldb.set_lock(id, Some(kind), EntryFlags::OP_DUMP).await;
    locked.map_err(|error| failed(Step::LockEntry(id), error))?;
    let changed =
        changed_entry(vldb, order, old.clone()).await.map_err(|error| (Step::CompareSites(id), error));
    let replaced = match changed {
        Ok((entry, previous)) => match vldb.replace_entry(id, kind, &entry, ReleaseType::ALL).await {
            Ok(()) => return Ok(Recorded { entry, previous }),
            Err(error) => settle(vldb, failed(Step::ReplaceEntry(id), error), id, entry, previous).await,
        },
        Err((step, error)) => Err(failed(step, error)),
    };
    // The lock went with the change, if the entry shows that. One that was to stay as it was, as the volume keeps its place, shows nothing.
    if let Ok(Recorded { entry, .. }) = &replaced
        && (&entry.name, &entry.sites) != (&old.name, &old.sites)
    {
        return replaced;
    }
    let not_unlocked = vldb.release_lock(id, Some(kind)).await.err();
    replaced.map_err(|failure| NotRecorded { not_unlocked, ..failure })
}

/// Finds out whether a change was made that has failed.
async fn settle(
    vldb: &LocationDb,
    failure: NotRecorded,
    id: VolumeId,
    entry: Entry,
    previous: Option<(Ipv4Addr, PartitionId)>,
) -> Result<Recorded, NotRecorded> {
    match vldb.fate_of_entry(&failure.error, id, &entry).await {
        Fate::Made => Ok(Recorded { entry, previous }),
        Fate::NotMade => Err(failure),
        Fate::Unknown => Err(NotRecorded { is_unknown: true, ..failure }),
    }
}

fn new_entry(order: &Order<'_>, target: &Target, status: &VolserStatus) -> Entry {
    let flags = site_flags(order.kind);
    let mut entry = Entry {
        name: order.name.to_owned(),
        sites: vec![Site { server: order.server, partition: order.partition, flags }],
        ids: [VolumeId(0); 3],
        clone_id: VolumeId(0),
        flags: EntryFlags::NONE,
    };
    entry.set_exists(order.kind, true);
    entry.set_id(Kind::ReadWrite, target.parent);
    entry.set_id(Kind::ReadOnly, if order.kind == Kind::ReadOnly { target.id } else { status.clone_id });
    entry.set_id(Kind::Backup, status.backup_id);
    entry
}

const fn site_flags(kind: Kind) -> SiteFlags {
    match kind {
        Kind::ReadOnly => SiteFlags::RO_VOL,
        Kind::ReadWrite | Kind::Backup => SiteFlags::RW_VOL,
    }
}

/// The entry with the new place; and the read-write volume's old one, if that is another.
async fn changed_entry(
    vldb: &LocationDb,
    order: &Order<'_>,
    mut entry: Entry,
) -> Result<(Entry, Option<(Ipv4Addr, PartitionId)>), Error> {
    let Order { server, partition, kind, .. } = *order;
    let mut previous = None;
    let mut known = None;
    for (index, site) in entry.sites.iter().enumerate().filter(|(_, site)| site.is(kind)) {
        let is_here = site.partition == partition && vldb.is_same_server(site.server, server).await?;
        // There are several places of read-only volumes, and one of the read-write volume.
        if is_here || kind != Kind::ReadOnly {
            known = Some(index);
            previous = (!is_here).then_some((site.server, site.partition));
            break;
        }
    }
    match known {
        Some(index) => (entry.sites[index].server, entry.sites[index].partition) = (server, partition),
        None => entry.sites.push(Site { server, partition, flags: site_flags(kind) }),
    }
    order.name.clone_into(&mut entry.name);
    entry.set_exists(kind, true);
    Ok((entry, previous))
}
