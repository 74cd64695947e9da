//! Snapshots by a schedule: makes those that are due of the volumes that are here, and removes those that have expired, also those that removed
//! volumes have left. When that is, is for [`crate::schedule`] to say, and which go before their time for [`crate::room`]. What cannot be done now
//! is tried again at the next look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use afs_volume::{Partition, Schedule, SnapshotKind, VolumeInfo, VolumeKind, VolumeState};
use afs_wire::afsvol::{AttachFlags, SnapshotGetSchedule, SnapshotSchedule, SnapshotSetSchedule, reply};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use rx::Runtime;
use rx::blocking::on_a_thread;
use rxgen::{Abort, Serve, ServerCall};

use super::{Shared, VolumeService, log};
use crate::codes;
use crate::room::{Kept, give_up};
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
    /// For volumes of which it is known what their snapshots hold: what is to be said if that comes near the limit.
    near_limit: Vec<(VolumeId, Option<String>)>,
}

/// The reason why a snapshot goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Its time is over.
    Expired,
    /// Its volume's snapshots hold more than they may.
    Limit,
    /// Its partition is nearly full.
    Room,
}

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
        let Work { due, expired, near_limit } = on_a_thread(move || work(&on, default, now.0)).await;
        self.tell_of_limits(near_limit);
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
            let header = in_use.volume().ok().map(|(_, volume)| volume.header().info);
            match partition.delete_volume(id) {
                Ok(()) => {
                    if let Some(info) = header {
                        tell_of_removed(at, id, &info, why);
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

    /// Says once of each volume that its snapshots come near their limit.
    fn tell_of_limits(&self, near_limit: Vec<(VolumeId, Option<String>)>) {
        let mut told = self.shared.near_limit.lock().unwrap_or_else(PoisonError::into_inner);
        for (volume, words) in near_limit {
            match words {
                Some(words) if told.insert(volume) => tracing::warn!("{words}"),
                Some(_) => {}
                None => _ = told.remove(&volume),
            }
        }
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

fn tell_of_removed(at: PartitionId, id: VolumeId, info: &VolumeInfo, why: Why) {
    let (snapshot, volume, partition) = (id, info.parent, at);
    match why {
        Why::Expired => {
            tracing::debug!(%snapshot, %volume, %partition, "a snapshot has expired and was removed")
        }
        Why::Limit => tracing::info!(
            %snapshot, %volume, %partition,
            "a scheduled snapshot was removed before its time, as the volume's snapshots hold more than they may"
        ),
        Why::Room if info.kind == VolumeKind::Snapshot(SnapshotKind::Removed) => tracing::warn!(
            %snapshot, %volume, %partition,
            "a removed volume cannot be brought back any more, as the partition is nearly full"
        ),
        Why::Room => tracing::warn!(
            %snapshot, %volume, %partition,
            "a scheduled snapshot was removed before its time, as the partition is nearly full"
        ),
    }
}

/// What there is of snapshots on a partition.
#[derive(Debug, Default)]
struct Look {
    /// Those of each volume that is here, or has been.
    of: BTreeMap<VolumeId, Of>,
    /// Those that removed volumes have left, by when.
    left: Vec<(AfsTime, VolumeId)>,
    /// Those of them whose time is over.
    expired: Vec<VolumeId>,
    /// Bytes that removed volumes have left.
    left_bytes: u64,
}

/// The snapshots of a volume.
#[derive(Debug, Default)]
struct Of {
    kept: Kept,
    /// True if it is not known what they hold, or space comes back of some that have gone.
    is_unsettled: bool,
    /// The volume's name and its own schedule, if it is here and served.
    served: Option<(String, Option<Schedule>)>,
}

fn look(partition: &Partition, now: u32) -> Look {
    let mut look = Look::default();
    for volume in partition.volumes() {
        let info = volume.header().info;
        let VolumeKind::Snapshot(kind) = info.kind else {
            if info.kind == VolumeKind::ReadWrite && volume.is_writable() && !info.destroy_me {
                let of = look.of.entry(volume.id()).or_default();
                of.kept.limit = info.snapshot_limit_bytes();
                of.served =
                    (volume.state() == VolumeState::Online).then(|| (info.name.clone(), info.schedule));
            }
            continue;
        };
        let (made, held) = (info.creation_date, volume.held_bytes());
        if kind == SnapshotKind::Removed {
            look.left_bytes += held.unwrap_or(0);
            match info.expiration_date.0 <= now {
                true => look.expired.push(volume.id()),
                false => look.left.push((made, volume.id())),
            }
            continue;
        }
        let of = look.of.entry(info.parent).or_default();
        of.is_unsettled |= held.is_none() || volume.gives_space_back();
        of.kept.held += held.unwrap_or(0);
        if kind == SnapshotKind::Scheduled && made.0 <= now {
            of.kept.scheduled.insert(made.0, (volume.id(), held.unwrap_or(0)));
        }
    }
    look
}

/// The space that the snapshots on a partition take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotSpace {
    /// Bytes that they hold, as far as that is known.
    pub held_bytes: u64,
    /// Those of them that are beyond the volumes' limits.
    pub over_bytes: u64,
    /// Volumes whose snapshots come near their limit, or are beyond it.
    pub near_limit: usize,
}

/// The space that the snapshots on a partition take now.
pub fn snapshot_space(partition: &Partition) -> SnapshotSpace {
    let Look { of, left_bytes, .. } = look(partition, u32::MAX);
    let mut space = SnapshotSpace { held_bytes: left_bytes, ..SnapshotSpace::default() };
    for Of { kept, .. } in of.values() {
        space.held_bytes += kept.held;
        space.over_bytes += kept.over();
        space.near_limit += usize::from(kept.is_near());
    }
    space
}

/// Looks what is to be done. A volume that is not served is left alone.
fn work(partition: &Partition, default: Schedule, now: u32) -> Work {
    let Look { of, left, expired, .. } = look(partition, now);
    let mut work = Work::default();
    work.expired.extend(expired.into_iter().map(|id| (id, Why::Expired)));
    let mut settled = Vec::new();
    for (volume, Of { kept, is_unsettled, served }) in of {
        let Some((name, schedule)) = served else { continue };
        let made: BTreeSet<u32> = kept.scheduled.keys().copied().collect();
        let planned = plan(schedule.unwrap_or(default), &made, now);
        let expired = planned.expired.iter().filter_map(|time| kept.scheduled.get(time));
        work.expired.extend(expired.map(|(id, _)| (*id, Why::Expired)));
        if planned.is_due {
            work.due.push(volume);
        }
        if is_unsettled {
            continue;
        }
        work.near_limit.push((volume, kept.is_near().then(|| words_of_limit(volume, &name, &kept))));
        // What those that have expired give back may be enough.
        if planned.expired.is_empty() {
            work.expired.extend(kept.beyond_limit().into_iter().map(|id| (id, Why::Limit)));
        }
        settled.push(kept);
    }
    // Each time it waits for what comes back, and looks again whether that was enough.
    if work.expired.is_empty()
        && !partition.gives_space_back()
        && let Ok(space) = partition.space()
    {
        work.expired.extend(give_up(space, &left, &settled).into_iter().map(|id| (id, Why::Room)));
    }
    work
}

fn words_of_limit(volume: VolumeId, name: &str, kept: &Kept) -> String {
    let (held, limit) = (kept.held >> 10, kept.limit.unwrap_or(0) >> 10);
    format!(
        "snapshots of volume {name} ({volume}) hold {held} K, and may hold {limit} K: beyond that, the oldest scheduled ones go before their \
         time. 'vos snapshot schedule {volume} -limit KIB' sets another limit"
    )
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
