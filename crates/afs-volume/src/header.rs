//! A volume's own facts: its header, as the volume service shows and sets it, its counters, its state.

use crate::{Partition, SNAPSHOTS_MAX, Volume, VolumeError};
use afs_wire::ids::{AfsTime, SecurityLevel, ViceId, VolumeId};
use std::sync::Arc;

/// Longest name of a volume, in bytes (`VNAMESIZE` less the NUL; Volume service notes 2).
pub const NAME_MAX: usize = 31;

/// The kind of a volume, with its number in the protocol (Volume service notes 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeKind {
    /// A volume that can be changed: 0.
    ReadWrite,
    /// A clone that is released to clients: 1.
    ReadOnly,
    /// A clone of yesterday: 2.
    Backup,
    /// A clone of some moment that is kept beside others ([`Partition::make_snapshot`]). Ours: others are told that it is a backup.
    Snapshot(SnapshotKind),
}

/// The kinds of snapshots of a volume, by who may remove them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotKind {
    /// Somebody has made it, and only people remove it.
    Manual,
    /// A schedule has made it, and removes it.
    Scheduled,
    /// What a volume has left that was removed ([`Partition::remove_leaving`]): it goes at its expiration date.
    Removed,
    /// One that somebody has made or a schedule, and that people have given a name of its own. Only people remove it.
    Published,
}

/// How many snapshots of a volume are kept that are made by a schedule: the first one of each of so many hours, days, weeks and months, the
/// last that have one. With none of these, none is made or removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The number of hours.
    pub hourly: u16,
    /// The number of days, which are UTC's.
    pub daily: u16,
    /// The number of weeks, which begin on Mondays.
    pub weekly: u16,
    /// The number of months.
    pub monthly: u16,
}

impl Schedule {
    /// The numbers, from hours to months.
    #[must_use]
    pub const fn counts(self) -> [u16; 4] {
        [self.hourly, self.daily, self.weekly, self.monthly]
    }

    /// True if it keeps no more than a volume may have, and leaves half of these to people.
    #[must_use]
    pub fn fits(self) -> bool {
        self.counts().into_iter().map(usize::from).sum::<usize>() <= SNAPSHOTS_MAX / 2
    }

    /// See [`Schedule::counts`].
    #[must_use]
    pub const fn of([hourly, daily, weekly, monthly]: [u16; 4]) -> Self {
        Self { hourly, daily, weekly, monthly }
    }
}

/// The properties of a volume that may be set, and stay until they are set again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name, at most [`NAME_MAX`] bytes.
    pub name: String,
    /// The kind of volume. Setting another does not make a clone writable: that is [`crate::Volume::is_writable`].
    pub kind: VolumeKind,
    /// The read-write volume of its group; its own id if it is that.
    pub parent: VolumeId,
    /// The latest clone for release, or 0.
    pub clone: VolumeId,
    /// The backup volume, or 0.
    pub backup: VolumeId,
    /// The volume that it was restored from, or 0.
    pub restored_from: VolumeId,
    /// The owner: that of its root directory.
    pub owner: ViceId,
    /// A number for accounting, which no one reads.
    pub account: u32,
    /// Most KiB that it may use; 0 is no limit.
    pub max_quota_kib: u32,
    /// KiB promised to it, which no one enforces.
    pub min_quota_kib: u32,
    /// The time when its contents were made; of a clone, when it was cloned. Tells clients of a release (File service
    /// notes 3).
    pub creation_date: AfsTime,
    /// The time when this copy was made.
    pub copy_date: AfsTime,
    /// The time when the last backup clone was made of it.
    pub backup_date: AfsTime,
    /// After this it may be removed; 0 is never. Only of snapshots that a removed volume has left does a server look at it.
    pub expiration_date: AfsTime,
    /// The time when it was last read.
    pub access_date: AfsTime,
    /// The time when its contents changed last.
    pub update_date: AfsTime,
    /// Uses on the day that begins at `day_use_date`.
    pub day_use: u32,
    /// See `day_use`.
    pub day_use_date: AfsTime,
    /// Uses on each of the seven days before.
    pub week_use: [u32; 7],
    /// True if clients are served from it (the reverse of `VTOutOfService`).
    pub in_service: bool,
    /// True if it is half-made and to be removed after a restart (`VTDeleteOnSalvage`).
    pub destroy_me: bool,
    /// The reason why it is offline, for those who ask; at most 127 bytes.
    pub offline_message: String,
    /// Message of the day; at most 127 bytes.
    pub motd: String,
    /// Counts the vnodes that changes have changed, for `vos` (`volUpdateCounter`).
    pub update_counter: u32,
    /// The least level with which its contents are served ([`crate::Volume::check_level`]): one that has a word. Set by
    /// [`crate::Partition::set_level`], as the clones of the volume go along.
    pub level: SecurityLevel,
    /// Its own schedule of snapshots; without one it goes by its server's.
    pub schedule: Option<Schedule>,
    /// Most KiB that its snapshots may hold, of its own; 0 is no limit. Without one it is the quota.
    pub snapshot_limit_kib: Option<u32>,
}

impl VolumeInfo {
    /// Most bytes that its snapshots may hold ([`Volume::held_bytes`]) before the oldest ones go that a schedule has made; `None` is no limit.
    #[must_use]
    pub fn snapshot_limit_bytes(&self) -> Option<u64> {
        let limit_kib = self.snapshot_limit_kib.unwrap_or(self.max_quota_kib);
        (limit_kib > 0).then_some(u64::from(limit_kib) << 10)
    }
}

/// A volume's header at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeHeader {
    /// Its id.
    pub id: VolumeId,
    /// The properties that may be set.
    pub info: VolumeInfo,
    /// KiB used, in blocks as quotas count them.
    pub used_kib: u64,
    /// Files, directories and symbolic links, the root directory among them.
    pub vnode_count: u32,
    /// The same as `vos` shows it: without the root directory, until the first clone is made (Volume service notes 4).
    pub file_count: u32,
    /// The next uniquifier.
    pub next_unique: u32,
}

impl Partition {
    /// Sets the least level with which a read-write volume's contents are served, one that has a word. Its clones and replicas here get at least that,
    /// too: they have its contents. A lower level than before they get when they are made anew.
    ///
    /// # Errors
    ///
    /// It is not here, or no read-write volume ([`VolumeError::ReadOnly`]); the disk failed: then some have the level, and the call can be
    /// repeated.
    pub fn set_level(&self, id: VolumeId, level: SecurityLevel) -> Result<(), VolumeError> {
        let _one_at_a_time = self.changing();
        let volume = self.volume(id)?;
        if volume.header().info.kind != VolumeKind::ReadWrite {
            return Err(VolumeError::ReadOnly(id));
        }
        // Also replicas that were sent here, before the volume was moved here.
        let is_of_it = |other: &Volume| other.group.id == volume.group.id || other.header().info.parent == id;
        let is_lower_clone = |other: &Arc<Volume>| other.id != id && is_of_it(other) && other.level() < level;
        for clone in self.volumes().into_iter().filter(is_lower_clone) {
            clone.change_info(|info| info.level = level)?;
        }
        volume.change_info(|info| info.level = level)
    }
}

/// The state of a volume: whether clients are served from it. Kept in memory only; after a start, a volume is
/// online if it is in service and whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeState {
    /// Served.
    Online,
    /// In use by a volume operation; clients are to try again.
    Busy,
    /// Now at another server; clients are to ask the VLDB.
    Moved,
    /// It is not served, and why.
    Offline(String),
}

/// A volume to be made.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Its id, which the VLDB gave; not 0.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its kind. A volume made as read-only is filled by a restore.
    pub kind: VolumeKind,
    /// Its read-write volume; 0 is itself.
    pub parent: VolumeId,
    /// See [`VolumeInfo::max_quota_kib`].
    pub max_quota_kib: u32,
    /// True if it gets an empty root directory, or none as a restore will bring one.
    pub with_root: bool,
}

/// A clone to be made.
#[derive(Debug, Clone)]
pub struct NewClone {
    /// Its id; not 0.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Read-only or backup; or a snapshot, which [`Partition::make_snapshot`] makes.
    pub kind: VolumeKind,
}
