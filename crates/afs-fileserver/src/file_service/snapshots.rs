//! Which snapshots of a volume there are, and what callers may do in one: what the access lists of then and those of now both allow. So who
//! loses a right in the volume loses it in its snapshots too, but in those that an administrator has published. A directory that is gone counts as
//! the nearest one above it that is there. Where the volume itself is not on this server, only administrators may look into its snapshots.

use std::sync::Arc;

use afs_volume::{Kind, SnapshotKind, VnodeId, VnodeStatus, Volume, VolumeError};
use afs_wire::acl::Acl;
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;
use afs_wire::rxafs::{self, SNAPSHOTS_MAX, VolumeSnapshot, VolumeSnapshots, reply};
use rx_proto::time::Instant;

use super::{Outcome, Session, handlers};
use crate::access::Granted;
use crate::failure::Failure;

/// Directories above each other that are looked at: more than a path can name.
const DEPTH_MAX: usize = 4096;

handlers! {
    GetSnapshots get_snapshots;
}

/// True of a snapshot in which the rights of now count as well as those of then.
pub(super) fn is_bound_to_now(volume: &Volume) -> bool {
    volume.snapshot_kind().is_some_and(|kind| kind != SnapshotKind::Published)
}

impl Session {
    /// The snapshots in which a directory is, the oldest first. Those of a replica are the snapshots of its read-write volume that are here; a
    /// snapshot has none.
    async fn get_snapshots(&self, args: rxafs::GetSnapshots) -> Outcome<reply::GetSnapshots> {
        let volume = self.volume(args.dir)?;
        if volume.is_snapshot() {
            return Err(Failure::INVALID);
        }
        self.look_in(&volume, args.dir, Rights::LOOKUP)?;
        let of = if volume.is_writable() { volume.id() } else { volume.header().info.parent };
        let is_served = |snapshot: &Volume| {
            let checked = snapshot.check_online().and_then(|()| snapshot.check_level(self.level));
            checked.is_ok() && snapshot.status(VnodeId::from(&args.dir)).is_ok()
        };
        let here = self.server.volumes.snapshots_of(of).into_iter();
        let mut snapshots: Vec<_> = here
            .filter_map(|id| self.server.volumes.volume(id).ok().filter(|snapshot| is_served(snapshot)))
            .map(|snapshot| VolumeSnapshot { volume: snapshot.id(), made: snapshot.sync_date() })
            .collect();
        snapshots.sort_unstable_by_key(|snapshot| (snapshot.made, snapshot.volume));
        snapshots.drain(..snapshots.len().saturating_sub(SNAPSHOTS_MAX));
        Ok(reply::GetSnapshots { snapshots: VolumeSnapshots::new(snapshots).map_err(|_| Failure::TOO_BIG)? })
    }

    /// What the list of now gives the caller at the place of a vnode of a snapshot.
    pub(super) fn granted_now(&self, snapshot: &Volume, status: &VnodeStatus) -> Outcome<Granted> {
        let caller = self.caller();
        let nothing = caller.granted(&Acl::default());
        let Some(volume) = self.volume_of(snapshot) else { return Ok(nothing) };
        let mut directory = if status.kind == Kind::Directory { status.id } else { status.parent };
        for _ in 0..DEPTH_MAX {
            match volume.status_and_acl(directory) {
                Ok((found, acl)) if found.kind == Kind::Directory => return Ok(caller.granted(&acl)),
                Ok(_) | Err(VolumeError::NoVnode(_)) if directory != VnodeId::ROOT => {}
                Ok(_) | Err(_) => break,
            }
            let above = snapshot.status(directory).map_err(|error| self.failed(snapshot, error))?;
            directory = above.parent;
        }
        Ok(nothing)
    }

    /// The owner of a volume: its root directory's owner. Of a snapshot, who owns the volume too.
    pub(super) fn volume_owner(&self, volume: &Volume) -> ViceId {
        let owner = |volume: &Volume| volume.status(VnodeId::ROOT).map_or(ViceId::BAD, |status| status.owner);
        let then = owner(volume);
        let is_still = || self.volume_of(volume).is_some_and(|volume| owner(&volume) == then);
        if !is_bound_to_now(volume) || is_still() { then } else { ViceId::BAD }
    }

    /// Tells who looks into snapshots of a volume that rights in it have changed.
    pub(super) async fn tell_of_snapshots(&self, volume: &Volume, until: Instant) {
        for snapshot in self.server.volumes.snapshots_of(volume.id()) {
            self.server.clients.volume_changed(snapshot, until).await;
        }
    }

    /// The volume that a snapshot is of, if this server serves it.
    fn volume_of(&self, snapshot: &Volume) -> Option<Arc<Volume>> {
        let volume = self.server.volumes.volume(snapshot.snapshot_of()?).ok()?;
        volume.check_online().ok()?;
        Some(volume)
    }
}
