//! The limit of what a volume's snapshots hold. These procedures are ours (Volume service notes 5.12); the schedule keeps to it.

use afs_volume::{SnapshotKind, VolumeKind};
use afs_wire::afsvol::{SnapshotGetLimit, SnapshotSetLimit, reply};
use rx::blocking::on_a_thread;
use rxgen::{Abort, Serve, ServerCall};

use super::{VolumeService, log};
use crate::codes;

impl Serve<SnapshotSetLimit> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotSetLimit>,
        args: SnapshotSetLimit,
    ) -> Result<reply::SnapshotSetLimit, Abort> {
        let SnapshotSetLimit { trans, is_own, limit_kib } = args;
        let words = match is_own {
            0 => "the quota".to_owned(),
            _ => format!("{limit_kib} K"),
        };
        let about = self.in_transaction(trans, words);
        self.audited(call, about, async move {
            self.within(trans, "SnapshotSetLimit", move |_, _, volume| {
                if volume.header().info.kind != VolumeKind::ReadWrite {
                    return Err(codes::EROFS);
                }
                let own = Some(limit_kib).filter(|_| is_own != 0);
                let set = volume.change_info(|info| info.snapshot_limit_kib = own);
                set.map_err(|error| log(&error, volume.id()))?;
                Ok(reply::SnapshotSetLimit {})
            })
            .await
        })
        .await
    }
}

impl Serve<SnapshotGetLimit> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SnapshotGetLimit>,
        args: SnapshotGetLimit,
    ) -> Result<reply::SnapshotGetLimit, Abort> {
        self.may_query(call.security())?;
        let SnapshotGetLimit { partition, volid } = args;
        let on = self.partition(partition).ok_or(codes::ILLEGAL_PARTITION)?;
        on_a_thread(move || {
            let info = on.volume(volid).map_err(|error| log(&error, volid))?.header().info;
            let mut snapshots = on.snapshots_of(volid);
            // That of a removed volume counts for no other one of its id.
            snapshots.retain(|snapshot| snapshot.snapshot_kind() != Some(SnapshotKind::Removed));
            let held: Option<u64> = snapshots.iter().map(|snapshot| snapshot.held_bytes()).sum();
            Ok(reply::SnapshotGetLimit {
                is_own: i32::from(info.snapshot_limit_kib.is_some()),
                limit_kib: info.snapshot_limit_kib.unwrap_or(info.max_quota_kib),
                is_counted: i32::from(held.is_some()),
                held_kib: held.unwrap_or(0).div_ceil(1024),
            })
        })
        .await
    }
}
