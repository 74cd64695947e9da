//! Makes a volume: its ids, the volume on its server, and its entry in the volume location database. `vos create` and
//! `afar up` use it.
//!
//! Each step is reported ([`Event`]). If a step fails, [`CreateFailure`] says which one, and what is left behind. A
//! [`Cancel`] stops the operation before its next step. It removes a volume that has no entry yet; a volume with an
//! entry is made and stays. After any failure, the same volume may be ordered again.

use std::fmt;
use std::net::Ipv4Addr;

use afs_wire::abort::{VL_BADENTRY, VVOLEXISTS};
use afs_wire::afsvol::VolumeFlags;
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::{EntryFlags, SiteFlags};

use crate::cancel::Cancel;
use crate::doubt::Fate;
use crate::entry::{Entry, Kind, Site};
use crate::error::Error;
use crate::vldb::{LocationDb, MAX_VOLUME_ID};
use crate::volumes::{Changes, Transaction, VolumeServers};

/// A volume that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewVolume<'a> {
    /// The name of the read-write volume.
    pub name: &'a str,
    /// The server where it is to be.
    pub server: Ipv4Addr,
    /// The partition.
    pub partition: PartitionId,
    /// The quota, 0 for none.
    pub quota_kib: i32,
    /// The id, unless the database chooses one.
    pub id: Option<VolumeId>,
    /// The id that its read-only clones will have, unless the database chooses one; 0 for none at all.
    pub read_only_id: Option<VolumeId>,
}

/// The ids of the volumes of a name; 0 for one that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// The read-write volume's.
    pub read_write: VolumeId,
    /// That of the clones that will be released.
    pub read_only: VolumeId,
    /// The backup's.
    pub backup: VolumeId,
}

/// An event while a volume is made.
#[derive(Debug)]
pub enum Event<'a> {
    /// No other volume has the id that was given.
    IdIsFree(VolumeId),
    /// The quota could not be set; it goes on without.
    NoQuota(&'a Error),
    /// The volume is online, and has no entry yet.
    IsOnline(VolumeId),
    /// The volume has its entry: only the transaction has to be ended.
    HasEntry(VolumeId),
}

/// A step of making a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Checking an id that was given: another volume has it.
    CheckId(VolumeId),
    /// Finding ids for the clones behind one that was given: there are none.
    FollowId(VolumeId),
    /// Taking an id from the database.
    TakeId(Kind),
    /// Making the volume on its server.
    Make(VolumeId),
    /// Bringing it online.
    BringOnline(VolumeId),
    /// Making its entry in the database.
    MakeEntry(VolumeId),
    /// Ending the transaction on it.
    End(VolumeId),
}

/// The reason why no volume was made, and what is there all the same.
#[derive(Debug)]
pub struct CreateFailure {
    /// The step that failed.
    pub step: Step,
    /// The reason.
    pub error: Error,
    /// The reason why the transaction could not be ended after that. It ends by itself after some minutes.
    pub not_ended: Option<Error>,
    /// The volume that the server has now, if it has one: to be removed with `vos zap`, or to be taken into the database with
    /// `vos syncvldb`.
    pub left: Option<VolumeId>,
    /// True if the volume that is left may have its entry all the same, now or soon: nobody knows.
    pub may_have_entry: bool,
}

impl fmt::Display for CreateFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = &self.error;
        match self.step {
            Step::CheckId(_) | Step::FollowId(_) => write!(f, "{error}")?,
            Step::TakeId(_) => write!(f, "no id for the volume: {error}")?,
            Step::Make(id) => write!(f, "volume {id} was not made: {error}")?,
            Step::BringOnline(id) => write!(f, "volume {id} did not come online: {error}")?,
            Step::MakeEntry(id) if self.may_have_entry => {
                write!(
                    f,
                    "it is not known whether volume {id} got its entry in the location database: {error}"
                )?;
            }
            Step::MakeEntry(id) => write!(f, "volume {id} got no entry in the location database: {error}")?,
            Step::End(id) => write!(f, "the transaction on volume {id} was not ended: {error}")?,
        }
        match self.left {
            Some(_) if self.may_have_entry => f.write_str(
                "; the server keeps it: when the database is in order, look with vos listvldb, and if there is no entry, remove the volume with vos zap",
            ),
            Some(id) => write!(f, "; the server keeps volume {id}: remove it with vos zap"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CreateFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Makes a volume with its entry, and tells of what happens.
///
/// # Errors
///
/// The step that failed, and what is left.
pub async fn create(
    vldb: &LocationDb,
    servers: &VolumeServers,
    new: NewVolume<'_>,
    cancel: &Cancel,
    mut tell: impl FnMut(Event<'_>),
) -> Result<Ids, CreateFailure> {
    let failed =
        |step, error| CreateFailure { step, error, not_ended: None, left: None, may_have_entry: false };
    let mut ids = choose_ids(vldb, &new, &mut tell).await.map_err(|(step, error)| failed(step, error))?;
    cancel.check().map_err(|error| failed(Step::Make(ids.read_write), error))?;
    let made = servers.create_volume(new.server, new.partition, new.name, ids.read_write).await;
    let (id, transaction) = made.map_err(|error| failed(Step::Make(ids.read_write), error))?;
    ids.read_write = id;
    let filled = fill(vldb, servers, &new, ids, transaction, cancel, &mut tell).await;
    let ended = servers.end(transaction).await;
    match (filled, ended) {
        (Ok(()), Ok(_)) => Ok(ids),
        (Ok(()), Err(error)) => Err(CreateFailure { left: Some(id), ..failed(Step::End(id), error) }),
        (Err(failure), ended) => Err(CreateFailure { not_ended: ended.err(), ..failure }),
    }
}

/// Brings a new volume online and makes its entry; without one it is removed again, unless nobody knows whether it has one. A volume
/// that stays offline is left, as stock tools leave it, for somebody to see why.
async fn fill(
    vldb: &LocationDb,
    servers: &VolumeServers,
    new: &NewVolume<'_>,
    ids: Ids,
    transaction: Transaction,
    cancel: &Cancel,
    tell: &mut impl FnMut(Event<'_>),
) -> Result<(), CreateFailure> {
    let id = ids.read_write;
    if let Err(error) = cancel.check() {
        return Err(remove(servers, transaction, id, Step::BringOnline(id), error).await);
    }
    let changes = Changes { quota_kib: Some(new.quota_kib), ..Changes::default() };
    if let Err(error) = servers.set_info(transaction, None, changes).await {
        tell(Event::NoQuota(&error));
    }
    if let Err(error) = servers.set_flags(transaction, VolumeFlags::NONE).await {
        let step = Step::BringOnline(id);
        return Err(CreateFailure { step, error, not_ended: None, left: Some(id), may_have_entry: false });
    }
    tell(Event::IsOnline(id));
    let entry = entry(new, ids);
    let has_entry = match cancel.check() {
        Ok(()) => vldb.create_entry(&entry).await,
        cancelled => cancelled,
    };
    if let Err(error) = has_entry {
        let step = Step::MakeEntry(id);
        match vldb.fate_of_entry(&error, id, &entry).await {
            Fate::Made => {}
            Fate::NotMade => return Err(remove(servers, transaction, id, step, error).await),
            Fate::Unknown => {
                return Err(CreateFailure {
                    step,
                    error,
                    not_ended: None,
                    left: Some(id),
                    may_have_entry: true,
                });
            }
        }
    }
    tell(Event::HasEntry(id));
    Ok(())
}

/// Removes a volume that is not to be after all, because of an error in a step.
async fn remove(
    servers: &VolumeServers,
    transaction: Transaction,
    id: VolumeId,
    step: Step,
    error: Error,
) -> CreateFailure {
    let is_removed = servers.delete(transaction).await.is_ok();
    CreateFailure { step, error, not_ended: None, left: (!is_removed).then_some(id), may_have_entry: false }
}

fn entry(new: &NewVolume<'_>, ids: Ids) -> Entry {
    let mut entry = Entry {
        name: new.name.to_owned(),
        sites: vec![Site { server: new.server, partition: new.partition, flags: SiteFlags::RW_VOL }],
        ids: [VolumeId(0); 3],
        clone_id: VolumeId(0),
        flags: EntryFlags::RW_EXISTS,
    };
    entry.set_id(Kind::ReadWrite, ids.read_write);
    entry.set_id(Kind::ReadOnly, ids.read_only);
    entry.set_id(Kind::Backup, ids.backup);
    entry
}

/// Takes ids from the database, unless they are given. Those of the clones follow a given one.
async fn choose_ids(
    vldb: &LocationDb,
    new: &NewVolume<'_>,
    tell: &mut impl FnMut(Event<'_>),
) -> Result<Ids, (Step, Error)> {
    if let Some(id) = new.id {
        if vldb.entry_by_id(id, None).await.is_ok() {
            let what = format!("another volume has the id {id}");
            return Err((Step::CheckId(id), Error::Local { what, code: VVOLEXISTS }));
        }
        tell(Event::IdIsFree(id));
        return clones_of(id, new.read_only_id).ok_or_else(|| {
            let what = format!("there are no ids above {id} for its clones");
            (Step::FollowId(id), Error::Local { what, code: VL_BADENTRY })
        });
    }
    let take = async |kind| vldb.new_volume_ids(1).await.map_err(|error| (Step::TakeId(kind), error));
    let read_write = take(Kind::ReadWrite).await?;
    let read_only = match new.read_only_id {
        Some(id) => id,
        None => take(Kind::ReadOnly).await?,
    };
    Ok(Ids { read_write, read_only, backup: take(Kind::Backup).await? })
}

/// The ids that follow a given one, unless there are no more.
fn clones_of(read_write: VolumeId, read_only_id: Option<VolumeId>) -> Option<Ids> {
    let mut last = read_write.0.max(read_only_id.map_or(0, |id| id.0));
    let mut following = || {
        last = last.checked_add(1).filter(|id| *id <= MAX_VOLUME_ID)?;
        Some(VolumeId(last))
    };
    let read_only = match read_only_id {
        Some(id) => id,
        None => following()?,
    };
    Some(Ids { read_write, read_only, backup: following()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_clones_do_not_begin_again() {
        let ids = |id, read_only: Option<u32>| {
            clones_of(VolumeId(id), read_only.map(VolumeId)).map(|ids| (ids.read_only.0, ids.backup.0))
        };
        assert_eq!(ids(10, None), Some((11, 12)));
        assert_eq!(ids(10, Some(20)), Some((20, 21)));
        assert_eq!(ids(u32::MAX - 3, None), Some((u32::MAX - 2, u32::MAX - 1)));
        assert_eq!(ids(u32::MAX - 2, None), None);
        assert_eq!(ids(u32::MAX, None), None);
        assert_eq!(ids(u32::MAX, Some(5)), None);
    }
}
