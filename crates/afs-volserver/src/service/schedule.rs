//! Snapshots by a schedule: makes those that are due of the volumes that are here, and removes those that have expired, also those that removed
//! volumes have left. When that is, is for
//! [`crate::schedule`] to say. What cannot be done now is tried again at the next look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use afs_volume::{Partition, Schedule, SnapshotKind, Space, VolumeKind, VolumeState};
use afs_wire::afsvol::{AttachFlags, SnapshotGetSchedule, SnapshotSchedule, SnapshotSetSchedule, reply};
use afs_wire::ids::{PartitionId, VolumeId};
use rx::Runtime;
use rx::blocking::on_a_thread;
use rxgen::{Abort, Serve, ServerCall};

use super::{Shared, VolumeService, log};
use crate::codes;
use crate::schedule::plan;

/// The time between two looks. So late may a snapshot be.
const LOOK_EVERY: Duration = Duration::from_secs(20);

/// Most snapshots that are made at one look, for which ids are taken at once: a location database that is far away is asked once.
const AT_ONCE: usize = 1024;

/// What is to be done on a partition.
#[derive(Debug, Default)]
struct Work {
    /// The volumes of which snapshots are due.
    due: Vec<VolumeId>,
    /// The snapshots that are to go, and why.
    expired: Vec<(VolumeId, Why)>,
}

/// The reason why a snapshot goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Its time is over.
    Expired,
    /// A removed volume has left it, and its partition is nearly full.
    Room,
}

/// A partition with less than one part in so many free keeps nothing of removed volumes.
const FREE_PART: u64 = 20;

/// Keeps the schedules until the service is gone.
pub(super) async fn keep(shared: Weak<Shared>, runtime: Arc<dyn Runtime>) {
    let mut told = None;
    loop {
        runtime.sleep_until(runtime.now() + LOOK_EVERY).await;
        let Some(shared) = shared.upgrade() else { return };
        let trouble = VolumeService { shared }.keep_schedules().await.err();
        if trouble != told {
            match &trouble {
                Some(why) => tracing::warn!("scheduled snapshots wait, and are tried again: {why}"),
                None => tracing::info!("scheduled snapshots are made again"),
            }
            told = trouble;
        }
    }
}

impl VolumeService {
    /// Makes the snapshots that are due by the volumes' schedules at this time, and removes those that have expired. The service does so
    /// itself, every 20 seconds.
    ///
    /// # Errors
    ///
    /// The reason why something could not be done, for people. All else was done.
    pub async fn keep_schedules(&self) -> Result<(), String> {
        let mut done = Ok(());
        for (at, partition) in self.shared.partitions.iter() {
            let kept = self.keep_schedules_of(at, partition).await;
            done = done.and(kept);
        }
        done
    }

    async fn keep_schedules_of(&self, at: PartitionId, partition: &Partition) -> Result<(), String> {
        let (default, now) = (self.shared.config.schedule, self.shared.time());
        let on = partition.clone();
        let Work { due, expired } = on_a_thread(move || work(&on, default, now.0)).await;
        let this = self.clone();
        let on = partition.clone();
        let (removed, mut done) = on_a_thread(move || this.remove_expired(at, &on, expired)).await;
        for id in removed {
            self.tell(id).await;
        }
        for some in due.chunks(AT_ONCE) {
            let first = self.shared.peers.new_volume_ids(some.len() as u32).await;
            let first = match first {
                Ok(first) => first.0,
                Err(why) => {
                    return done.and(Err(format!("the location database gives no volume ids: {why}")));
                }
            };
            let some: Vec<_> = some.iter().copied().zip((first..).map(VolumeId)).collect();
            let (this, on) = (self.clone(), partition.clone());
            done = done.and(on_a_thread(move || this.make_due(at, &on, some)).await);
        }
        done
    }

    /// Removes snapshots that nobody works on, and says which.
    fn remove_expired(
        &self,
        at: PartitionId,
        partition: &Partition,
        expired: Vec<(VolumeId, Why)>,
    ) -> (Vec<VolumeId>, Result<(), String>) {
        let mut removed = Vec::new();
        let mut done = Ok(());
        for (id, why) in expired {
            let Ok(in_use) = self.begin(id, at, AttachFlags::OFFLINE, "SnapshotRemove") else { continue };
            match partition.delete_volume(id) {
                Ok(()) => {
                    match why {
                        Why::Expired => tracing::debug!(
                            snapshot = %id, partition = %at, "a snapshot has expired and was removed"
                        ),
                        Why::Room => tracing::warn!(
                            snapshot = %id, partition = %at,
                            "a removed volume cannot be brought back any more, as the partition is nearly full"
                        ),
                    }
                    removed.push(id);
                }
                Err(error) => {
                    log(&error, id);
                    done = done.and(Err(format!("snapshot {id} was not removed: {error}")));
                }
            }
            in_use.end();
        }
        (removed, done)
    }

    /// Makes snapshots of volumes that nobody works on, with these ids.
    fn make_due(
        &self,
        at: PartitionId,
        partition: &Partition,
        due: Vec<(VolumeId, VolumeId)>,
    ) -> Result<(), String> {
        let mut done = Ok(());
        for (volume, id) in due {
            let Ok(in_use) = self.begin(volume, at, AttachFlags::READ_ONLY, "SnapshotCreate") else {
                continue;
            };
            match partition.make_snapshot(volume, id, true, self.stamp()) {
                Ok(_) => {
                    tracing::debug!(%volume, snapshot = %id, partition = %at, "a scheduled snapshot was made")
                }
                Err(error) => {
                    log(&error, volume);
                    done = done.and(Err(format!("of volume {volume} none was made: {error}")));
                }
            }
            in_use.end();
        }
        done
    }
}

/// Looks what is to be done. A volume that is not served is left alone.
fn work(partition: &Partition, default: Schedule, now: u32) -> Work {
    let mut work = Work::default();
    let mut wanted = Vec::new();
    let mut left = Vec::new();
    let mut snapshots: BTreeMap<VolumeId, BTreeMap<u32, VolumeId>> = BTreeMap::new();
    for volume in partition.volumes() {
        let info = volume.header().info;
        match info.kind {
            VolumeKind::Snapshot(SnapshotKind::Scheduled) => {
                snapshots.entry(info.parent).or_default().insert(info.creation_date.0, volume.id());
            }
            VolumeKind::Snapshot(SnapshotKind::Removed) if info.expiration_date.0 <= now => {
                work.expired.push((volume.id(), Why::Expired));
            }
            VolumeKind::Snapshot(SnapshotKind::Removed) => left.push((info.creation_date, volume.id())),
            VolumeKind::ReadWrite if volume.is_writable() && volume.state() == VolumeState::Online => {
                wanted.push((volume.id(), info.schedule.unwrap_or(default)));
            }
            VolumeKind::ReadWrite
            | VolumeKind::ReadOnly
            | VolumeKind::Backup
            | VolumeKind::Snapshot(SnapshotKind::Manual | SnapshotKind::Published) => {}
        }
    }
    for (volume, schedule) in wanted {
        let made = snapshots.remove(&volume).unwrap_or_default();
        let planned = plan(schedule, &made.keys().copied().collect::<BTreeSet<_>>(), now);
        let expired = planned.expired.iter().filter_map(|time| made.get(time));
        work.expired.extend(expired.map(|id| (*id, Why::Expired)));
        if planned.is_due {
            work.due.push(volume);
        }
    }
    // The next one goes if this one's space is not enough.
    let is_short = |space: Space| space.free_kib < space.total_kib / FREE_PART;
    if let Some((_, oldest)) = left.into_iter().min()
        && partition.space().is_ok_and(is_short)
    {
        work.expired.push((oldest, Why::Room));
    }
    work
}

impl Serve<SnapshotSetSchedule> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotSetSchedule>,
        args: SnapshotSetSchedule,
    ) -> Result<reply::SnapshotSetSchedule, Abort> {
        let SnapshotSetSchedule { trans, is_own, schedule } = args;
        let SnapshotSchedule { hourly, daily, weekly, monthly } = schedule;
        let words = match is_own {
            0 => "by the server's schedule".to_owned(),
            _ => format!("hourly {hourly}, daily {daily}, weekly {weekly}, monthly {monthly}"),
        };
        let about = self.in_transaction(trans, words);
        self.audited(call, about, async move {
            let mut counts = [0; 4];
            for (count, wanted) in counts.iter_mut().zip([hourly, daily, weekly, monthly]) {
                *count = u16::try_from(wanted).map_err(|_| codes::EINVAL)?;
            }
            let own = Some(Schedule::of(counts)).filter(|_| is_own != 0);
            if own.is_some_and(|schedule| !schedule.fits()) {
                return Err(codes::EINVAL);
            }
            self.within(trans, "SnapshotSetSchedule", move |_, _, volume| {
                if volume.header().info.kind != VolumeKind::ReadWrite {
                    return Err(codes::EROFS);
                }
                volume.change_info(|info| info.schedule = own).map_err(|e| log(&e, volume.id()))?;
                Ok(reply::SnapshotSetSchedule {})
            })
            .await
        })
        .await
    }
}

impl Serve<SnapshotGetSchedule> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotGetSchedule>,
        args: SnapshotGetSchedule,
    ) -> Result<reply::SnapshotGetSchedule, Abort> {
        self.may_query(call.security())?;
        let SnapshotGetSchedule { partition, volid } = args;
        let partition = self.partition(partition).ok_or(codes::ILLEGAL_PARTITION)?;
        let found = on_a_thread(move || partition.volume(volid)).await;
        let own = found.map_err(|error| log(&error, volid))?.header().info.schedule;
        let [hourly, daily, weekly, monthly] =
            own.unwrap_or(self.shared.config.schedule).counts().map(u32::from);
        Ok(reply::SnapshotGetSchedule {
            is_own: i32::from(own.is_some()),
            schedule: SnapshotSchedule { hourly, daily, weekly, monthly },
        })
    }
}
