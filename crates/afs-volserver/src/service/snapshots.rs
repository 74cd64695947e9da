//! Snapshots of a volume. These procedures are ours (Volume service notes 5.7): others list no snapshots, and can neither remove one nor change
//! its header, so that it is as it was until somebody who knows what it is removes it.

use std::sync::Arc;

use afs_volume::{Partition, SnapshotKind, Volume, VolumeError, VolumeInfo, VolumeKind};
use afs_wire::afsvol::{
    AttachFlags, SnapshotCarry, SnapshotCreate, SnapshotInfo, SnapshotList, SnapshotPublish, SnapshotRemove,
    SnapshotType, Snapshots, VolName, reply,
};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use rxgen::xdr::XdrArray;
use rxgen::{Abort, Serve, ServerCall};

use super::change::volume_name;
use super::{VolumeService, log, order};
use crate::codes;
use rx::blocking::on_a_thread;

impl Serve<SnapshotCreate> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotCreate>,
        args: SnapshotCreate,
    ) -> Result<reply::SnapshotCreate, Abort> {
        let SnapshotCreate { trans, new_vol } = args;
        let about = self.in_transaction(trans, format!("as {new_vol}"));
        self.audited(call, about, async move {
            if new_vol == VolumeId(0) {
                return Err(codes::EINVAL);
            }
            let this = self.clone();
            let stamp = self.stamp();
            self.within(trans, "SnapshotCreate", move |in_use, partition, volume| {
                let at = in_use.transaction.partition;
                if this.shared.partitions.iter().any(|(id, on)| id != at && on.volume(new_vol).is_ok()) {
                    return Err(codes::VVOLEXISTS);
                }
                let made = partition.make_snapshot(volume.id(), new_vol, false, stamp);
                made.map_err(|error| log(&error, volume.id()))?;
                Ok(reply::SnapshotCreate { made: stamp.now })
            })
            .await
        })
        .await
    }
}

impl Serve<SnapshotList> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotList>,
        args: SnapshotList,
    ) -> Result<reply::SnapshotList, Abort> {
        self.may_query(call.security())?;
        let wanted = args.volume;
        let partitions = self.shared.partitions.clone();
        let found = on_a_thread(move || {
            let of = |(id, on): (PartitionId, &Partition)| {
                let volumes = on.volumes().into_iter();
                volumes.filter_map(|volume| info(id, &volume)).collect::<Vec<_>>()
            };
            let mut found: Vec<_> = partitions.iter().flat_map(of).collect();
            found.retain(|snapshot| [snapshot.parent, VolumeId(0)].contains(&wanted));
            found.sort_by_key(|snapshot| (snapshot.parent, snapshot.made, snapshot.volid));
            found
        })
        .await;
        let snapshots: Snapshots = XdrArray::new(found).map_err(|_| codes::EIO)?;
        Ok(reply::SnapshotList { snapshots })
    }
}

/// What a list says of a volume that is a snapshot.
fn info(partition: PartitionId, volume: &Volume) -> Option<SnapshotInfo> {
    let (kind, header) = (volume.snapshot_kind()?, volume.header());
    if header.info.destroy_me {
        // Its volume is still on its way.
        return None;
    }
    Some(SnapshotInfo {
        volid: header.id,
        partition,
        parent: header.info.parent,
        name: VolName::try_from(&*header.info.name).ok()?,
        made: header.info.creation_date,
        kind: match kind {
            SnapshotKind::Manual => SnapshotType::MANUAL,
            SnapshotKind::Scheduled => SnapshotType::SCHEDULED,
            SnapshotKind::Removed => SnapshotType::REMOVED,
            SnapshotKind::Published => SnapshotType::PUBLISHED,
        },
        until: if kind == SnapshotKind::Removed { header.info.expiration_date } else { AfsTime(0) },
        used_kib: header.used_kib,
    })
}

impl Serve<SnapshotRemove> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotRemove>,
        args: SnapshotRemove,
    ) -> Result<reply::SnapshotRemove, Abort> {
        let SnapshotRemove { partition, volid } = args;
        let about = self.on(partition, volid, "");
        self.audited(call, about, async move {
            let Some(on) = self.partition(partition) else { return Err(codes::ILLEGAL_PARTITION) };
            let in_use = self.begin(volid, partition, AttachFlags::OFFLINE, "SnapshotRemove")?;
            on_a_thread(move || {
                let removed = in_use.volume().and_then(|(_, volume)| match volume.snapshot_kind() {
                    None => Err(codes::EINVAL),
                    // The location database has its name.
                    Some(SnapshotKind::Published) => Err(codes::BAD_OP),
                    Some(_) => on.delete_volume(volid).map_err(|error| log(&error, volid)),
                });
                in_use.end();
                removed
            })
            .await?;
            self.tell(volid).await;
            Ok(reply::SnapshotRemove {})
        })
        .await
    }
}

impl Serve<SnapshotCarry> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotCarry>,
        args: SnapshotCarry,
    ) -> Result<reply::SnapshotCarry, Abort> {
        let SnapshotCarry { trans, new_vol, made, kind } = args;
        let about = self.in_transaction(trans, format!("as {new_vol}, made at {}", made.0));
        self.audited(call, about, async move {
            let kind = match kind {
                SnapshotType::MANUAL => SnapshotKind::Manual,
                SnapshotType::SCHEDULED => SnapshotKind::Scheduled,
                _ => return Err(codes::EINVAL),
            };
            self.within(trans, "SnapshotCarry", move |_, partition, volume| {
                if new_vol == VolumeId(0) {
                    return Ok(reply::SnapshotCarry { is_made: 0 });
                }
                // One that is here already is no failure of the transaction.
                match partition.carry_snapshot(volume.id(), new_vol, kind, made) {
                    Ok(_) => Ok(reply::SnapshotCarry { is_made: 1 }),
                    Err(VolumeError::VolumeExists(_)) => Ok(reply::SnapshotCarry { is_made: 0 }),
                    Err(error) => Err(log(&error, volume.id())),
                }
            })
            .await
        })
        .await
    }
}

impl Serve<SnapshotPublish> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotPublish>,
        args: SnapshotPublish,
    ) -> Result<reply::SnapshotPublish, Abort> {
        let SnapshotPublish { partition, volid, is_published, name } = args;
        let what = if is_published == 0 { "not published any more" } else { "published" };
        let about = self.on(partition, volid, format!("{what}, as {}", order::printable(&name)));
        self.audited(call, about, async move {
            if self.partition(partition).is_none() {
                return Err(codes::ILLEGAL_PARTITION);
            }
            let name = volume_name(name.into_bytes())?.ok_or(codes::BAD_NAME)?;
            let kind = if is_published == 0 { SnapshotKind::Manual } else { SnapshotKind::Published };
            let in_use = self.begin(volid, partition, AttachFlags::READ_ONLY, "SnapshotPublish")?;
            on_a_thread(move || {
                let published = in_use.volume().and_then(|(on, volume)| {
                    match volume.snapshot_kind() {
                        // It makes way for the volume that it was.
                        None | Some(SnapshotKind::Removed) => return Err(codes::EINVAL),
                        Some(_) => {}
                    }
                    let change = |info: &mut VolumeInfo| {
                        (info.name, info.kind) = (name, VolumeKind::Snapshot(kind));
                        (info.clone, info.backup) = (VolumeId(0), VolumeId(0));
                    };
                    volume.change_info(change).and_then(|()| on.sync()).map_err(|e| log(&e, volid))
                });
                in_use.end();
                published
            })
            .await?;
            // Other rights count in it from now on.
            self.tell(volid).await;
            Ok(reply::SnapshotPublish {})
        })
        .await
    }
}

/// Checks that a volume is no snapshot, where an order would change or remove it that does not know what a snapshot is.
pub(super) fn no_snapshot(volume: &Volume) -> Result<(), Abort> {
    if volume.is_snapshot() { Err(codes::BAD_OP) } else { Ok(()) }
}

/// Says in the log which snapshots are left of a volume that was removed.
pub(super) fn tell_what_stays(at: PartitionId, partition: &Partition, removed: &Volume) {
    let (id, name) = (removed.id(), removed.name());
    let stays = |snapshot: &&Arc<Volume>| snapshot.snapshot_kind() != Some(SnapshotKind::Removed);
    let left = match removed.is_writable() {
        true => partition.snapshots_of(id).iter().filter(stays).count(),
        false => 0,
    };
    if left > 0 {
        tracing::warn!(
            target: order::ORDERS,
            "Volser: snapshots of the removed volume {id} ({name}) stay on {at}, {left} in all: \
             'vos snapshot list {id}' shows them, and 'vos remove -snapshots' removes them"
        );
    }
}
