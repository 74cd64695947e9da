//! A read-only volume that becomes the read-write one, after that was lost (`vos convertROtoRW`). No transaction of the caller's is needed.
//! That the read-write volume is not on another server is for the caller to know.

use afs_volume::{NAME_MAX, VolumeError, VolumeKind};
use afs_wire::afsvol::{AttachFlags, ConvertROtoRWvolume, reply};
use afs_wire::ids::VolumeId;
use rxgen::{Abort, Serve, ServerCall};

use super::removed::remove_left;
use super::{InUse, VolumeService, log};
use crate::codes;
use rx::blocking::on_a_thread;

impl Serve<ConvertROtoRWvolume> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, ConvertROtoRWvolume>,
        args: ConvertROtoRWvolume,
    ) -> Result<reply::ConvertROtoRWvolume, Abort> {
        let about = self.on(args.partition, args.volid, "");
        self.audited(call, about, async move {
            let ConvertROtoRWvolume { partition, volid } = args;
            if self.partition(partition).is_none() {
                return Err(codes::ILLEGAL_PARTITION);
            }
            let in_use = self.begin(volid, partition, AttachFlags::OFFLINE, "ConvertROtoRWvolume")?;
            let converted = on_a_thread(move || {
                let converted = convert(&in_use);
                in_use.end();
                converted
            })
            .await?;
            // Clients of the read-only volume look where it is now, and those who asked for the read-write one in vain ask again.
            self.tell(volid).await;
            self.tell(converted).await;
            Ok(reply::ConvertROtoRWvolume {})
        })
        .await
    }
}

/// Says the id of the read-write volume.
fn convert(in_use: &InUse) -> Result<VolumeId, Abort> {
    let id = in_use.transaction.volume;
    let (partition, volume) = match in_use.volume() {
        Err(codes::VNOVOL) => return Err(codes::ENODEV),
        found => found?,
    };
    let info = volume.header().info;
    if info.kind != VolumeKind::ReadOnly || info.parent == id || info.parent == VolumeId(0) {
        return Err(codes::EINVAL);
    }
    if info.destroy_me {
        tracing::warn!(volume = %id, "not converted: it is half made, or about to be removed");
        return Err(codes::EINVAL);
    }
    let is_original = |other: &afs_volume::Volume| {
        let info = other.header().info;
        other.id() == volume.header().info.parent
            || (info.kind == VolumeKind::ReadWrite && info.parent == volume.header().info.parent)
    };
    let partitions = &in_use.shared.partitions;
    if partitions.iter().any(|(_, partition)| partition.volumes().iter().any(|other| is_original(other))) {
        return Err(codes::EXDEV);
    }
    let name = info.name.strip_suffix(".readonly").filter(|name| !name.is_empty()).unwrap_or(&info.name);
    debug_assert!(name.len() <= NAME_MAX, "it is a part of one");
    let convert = || partition.convert_to_read_write(id, info.parent, name);
    let converted = match convert() {
        // Who has a replica take the volume's place does not want the volume back.
        Err(VolumeError::VolumeExists(_)) if remove_left(&partition, id).map_err(|e| log(&e, id))? => {
            convert()
        }
        converted => converted,
    };
    converted.map_err(|error| match error {
        VolumeError::VolumeExists(other) => {
            tracing::warn!(volume = %id, %other, "not converted: another volume of its group is newer");
            codes::EXDEV
        }
        error => log(&error, id),
    })?;
    // The database is told next that this is the volume.
    partition.sync().map_err(|error| log(&error, info.parent))?;
    Ok(info.parent)
}
