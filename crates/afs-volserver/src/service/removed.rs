//! What a removed volume leaves, so that it can be brought back for some days (`vos undelete`): a snapshot, which the schedule removes when its time
//! has come. These procedures are ours (Volume service notes 5.9), but `DeleteVolume` leaves one whoever calls it.

use std::sync::Arc;

use afs_volume::{Partition, SnapshotKind, Volume, VolumeError, VolumeKind};
use afs_wire::afsvol::{AttachFlags, SnapshotUndelete, reply};
use afs_wire::ids::{AfsTime, TransId, VolumeId};
use rxgen::{Abort, Serve, ServerCall};

use super::change::volume_name;
use super::{InUse, Shared, VolumeService, log, order};
use crate::codes;
use crate::transactions::{End, Transaction};
use rx::blocking::on_a_thread;

impl VolumeService {
    /// The id of the snapshot that the volume of a transaction leaves when it is removed; `None` if it leaves none.
    pub(super) async fn id_to_leave(&self, trans: TransId) -> Result<Option<VolumeId>, Abort> {
        let Some(transaction) = self.shared.transactions().by_id(trans).cloned() else { return Ok(None) };
        let volume = transaction.volume;
        if !leaves_one(&self.shared, &transaction) {
            return Ok(None);
        }
        match self.shared.peers.new_volume_ids(1).await {
            Ok(id) => Ok(Some(id)),
            Err(why) => {
                tracing::warn!(
                    target: order::ORDERS,
                    "Volser: volume {volume} was not removed, as the location database gives no id for the snapshot that it leaves: {why}. \
                     'vos zap -force' removes it for good"
                );
                Err(codes::ENOTCONN)
            }
        }
    }
}

/// True if a transaction's volume is a whole read-write one that was not made in it and has not moved elsewhere.
fn leaves_one(shared: &Shared, transaction: &Transaction) -> bool {
    let Transaction { volume: id, partition: at, end, attach, .. } = *transaction;
    let Some(volume) = shared.partitions.get(at).and_then(|partition| partition.volume(id).ok()) else {
        return false;
    };
    let info = volume.header().info;
    let is_whole = end == End::OfWhole || (end == End::Unknown && !info.destroy_me);
    let is_at_other = |(other, partition): (_, &Partition)| other != at && partition.volume(id).is_ok();
    !shared.config.undelete_limit.is_zero()
        && is_whole
        && !attach.contains(AttachFlags::CREATE)
        && info.kind == VolumeKind::ReadWrite
        && volume.is_writable()
        && !shared.partitions.iter().any(is_at_other)
}

/// Removes a transaction's volume, which leaves a snapshot of this id, if of any.
pub(super) fn remove_leaving(
    in_use: &InUse,
    partition: &Partition,
    volume: &Volume,
    left: Option<VolumeId>,
) -> Result<(), Abort> {
    let (id, name) = (volume.id(), volume.name());
    let failed = |error: VolumeError| log(&error, id);
    let Some(left) = left else { return partition.delete_volume(id).map_err(failed) };
    let shared = &in_use.shared;
    let stamp = VolumeService { shared: shared.clone() }.stamp();
    let limit = u32::try_from(shared.config.undelete_limit.as_secs()).unwrap_or(u32::MAX);
    let until = AfsTime(stamp.now.0.saturating_add(limit));
    partition.remove_leaving(id, left, until, stamp).map_err(failed)?;
    // A volume that is marked as to be destroyed goes at a start, and leaves nothing then: that mark may be on the disk already.
    partition.sync().map_err(failed)?;
    tracing::info!(
        target: order::ORDERS,
        "Volser: the removed volume {id} ({name}) is kept as snapshot {left} until {}: 'vos undelete {id}' brings it back",
        jiff::Timestamp::from_second(until.0.into()).expect("jiff has years to 9999")
    );
    Ok(())
}

/// Removes what is later than a read-only volume, if that is nothing but what removed volumes have left. Says whether it was so.
pub(super) fn remove_left(partition: &Partition, than: VolumeId) -> Result<bool, VolumeError> {
    let later = partition.later_than(than)?;
    let is_left = |volume: &Arc<Volume>| volume.snapshot_kind() == Some(SnapshotKind::Removed);
    if later.is_empty() || !later.iter().all(is_left) {
        return Ok(false);
    }
    for left in later {
        let (id, parent) = (left.id(), left.header().info.parent);
        tracing::warn!(
            target: order::ORDERS,
            "Volser: snapshot {id}, which the removed volume {parent} has left, makes way for {than}"
        );
        partition.delete_volume(id)?;
    }
    Ok(true)
}

impl Serve<SnapshotUndelete> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotUndelete>,
        args: SnapshotUndelete,
    ) -> Result<reply::SnapshotUndelete, Abort> {
        let SnapshotUndelete { partition, volid, new_vol, name } = args;
        let details = format!("brought back as {new_vol} ({})", order::printable(&name));
        let about = self.on(partition, volid, details);
        self.audited(call, about, async move {
            let Some(on) = self.partition(partition) else { return Err(codes::ILLEGAL_PARTITION) };
            let name = volume_name(name.into_bytes())?.ok_or(codes::BAD_NAME)?;
            if new_vol == VolumeId(0) || new_vol == volid {
                return Err(codes::EINVAL);
            }
            let left = self.begin(volid, partition, AttachFlags::OFFLINE, "SnapshotUndelete")?;
            let new = match self.begin(new_vol, partition, AttachFlags::CREATE, "SnapshotUndelete") {
                Ok(new) => new,
                Err(code) => {
                    left.end();
                    return Err(code);
                }
            };
            let partitions = self.shared.partitions.clone();
            on_a_thread(move || {
                let is_taken = partitions.iter().any(|(_, on)| on.volume(new_vol).is_ok());
                let brought = match is_taken {
                    true => Err(codes::VVOLEXISTS),
                    false => on.bring_back(volid, new_vol, &name).and_then(|_| on.sync()).map_err(|error| {
                        match error {
                            // It is no snapshot, or another one.
                            VolumeError::ReadOnly(_) => codes::EINVAL,
                            error => log(&error, volid),
                        }
                    }),
                };
                left.end();
                new.end();
                brought
            })
            .await?;
            self.tell(volid).await;
            self.tell(new_vol).await;
            Ok(reply::SnapshotUndelete {})
        })
        .await
    }
}
