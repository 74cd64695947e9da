//! Making, cloning, altering and removing volumes (Volume service notes 3 and 4).

use std::fmt::Write;

use afs_volume::{
    NAME_MAX, NewClone, NewVolume, Partition, SnapshotKind, Stamp, Volume, VolumeError, VolumeKind,
    VolumeState,
};
use afs_wire::afsvol::{
    AttachFlags, Clone, CreateVolume, DeleteVolume, EndTrans, NukeVolume, ReClone, SetDate, SetFlags,
    SetIdsTypes, SetInfo, TransCreate, UNCHANGED, VolintInfo, VolumeFlags, reply,
};
use afs_wire::ids::{AfsTime, PartitionId, ViceId, VolumeId, VolumeType};
use rxgen::{Abort, Serve, ServerCall};

use super::removed::remove_leaving;
use super::snapshots::{no_snapshot, tell_what_stays};
use super::{VolumeService, attach, is_known, log, order, settle};
use crate::codes;
use crate::partitions::Partitions;
use crate::transactions::End;
use rx::blocking::on_a_thread;

/// The quota that a new volume begins with, in KiB; `vos` sets another at once.
const FIRST_QUOTA_KIB: u32 = 5000;

impl Serve<TransCreate> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, TransCreate>,
        args: TransCreate,
    ) -> Result<reply::TransCreate, Abort> {
        let about = self.on(args.partition, args.volume, order::attach(args.flags));
        self.audited(call, about, async move {
            let TransCreate { volume, partition, flags } = args;
            let wanted =
                AttachFlags::OFFLINE | AttachFlags::BUSY | AttachFlags::READ_ONLY | AttachFlags::CREATE;
            if !flags.intersects(wanted) {
                return Err(codes::EINVAL);
            }
            if self.partition(partition).is_none() {
                return Err(codes::ILLEGAL_PARTITION);
            }
            let in_use = self.begin(volume, partition, flags, "TransCreate")?;
            on_a_thread(move || match in_use.volume() {
                Ok((_, volume)) => {
                    attach(&volume, flags);
                    Ok(reply::TransCreate { trans: in_use.transaction.id })
                }
                Err(code) => {
                    in_use.end();
                    Err(code)
                }
            })
            .await
        })
        .await
    }
}

impl Serve<EndTrans> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, EndTrans>, args: EndTrans) -> Result<reply::EndTrans, Abort> {
        let about = self.in_transaction(args.trans, "");
        self.audited(call, about, async move {
            let shared = std::sync::Arc::clone(&self.shared);
            let transaction = self.take_to_end(args.trans).await?;
            let volume = transaction.volume;
            let mut in_use = super::InUse { shared, transaction, is_over: false };
            let (rcode, is_changed) = on_a_thread(move || {
                in_use.keep_for_good();
                (in_use.transaction.return_code, in_use.end())
            })
            .await;
            if is_changed {
                self.tell(volume).await;
            }
            Ok(reply::EndTrans { rcode })
        })
        .await
    }
}

impl Serve<CreateVolume> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, CreateVolume>,
        args: CreateVolume,
    ) -> Result<reply::CreateVolume, Abort> {
        let details = format!("{}, of the group of {}", order::kind(args.kind), args.parent);
        let about = self.making(args.partition, args.volid, &args.name, details);
        self.audited(call, about, async move {
            let CreateVolume { partition, name, kind, parent, volid, .. } = args;
            let name = volume_name(name.into_bytes())?.ok_or(codes::BAD_NAME)?;
            let kind = kind_of(kind).ok_or(codes::EINVAL)?;
            let Some(on) = self.partition(partition) else { return Err(codes::VOLSER_NO_VOL) };
            if volid == VolumeId(0) {
                return Err(codes::E2BIG);
            }
            // Whoever names a volume as its own parent is about to restore into it, root and all.
            let with_root = !(parent == volid && kind == VolumeKind::ReadWrite);
            let parent = if parent == VolumeId(0) { volid } else { parent };
            let mut in_use = self.begin(volid, partition, AttachFlags::CREATE, "CreateVolume")?;
            let partitions = self.shared.partitions.clone();
            let stamp = self.stamp();
            on_a_thread(move || {
                let new =
                    NewVolume { id: volid, name, kind, parent, max_quota_kib: FIRST_QUOTA_KIB, with_root };
                let fits = if with_root { fits(&partitions, partition, volid, parent) } else { Ok(()) };
                let made = fits.and_then(|()| {
                    on.create_volume(&new, stamp).map_err(|error| made_nothing(&error, volid))
                });
                match made {
                    Ok(_) => {
                        in_use.transaction.is_changed = true;
                        Ok(reply::CreateVolume { volid, trans: in_use.transaction.id })
                    }
                    Err(code) => {
                        in_use.end();
                        Err(code)
                    }
                }
            })
            .await
        })
        .await
    }
}

/// Checks that a volume of this id and group may be made on the partition: the volumes of a group share data. A volume that is to be filled
/// is exempt: it is moving from one partition to the other.
fn fits(
    partitions: &Partitions,
    partition: PartitionId,
    volume: VolumeId,
    parent: VolumeId,
) -> Result<(), Abort> {
    for (other, on) in partitions.iter().filter(|(id, _)| *id != partition) {
        // Snapshots may have stayed there when their volume moved.
        let in_group = |v: &std::sync::Arc<Volume>| {
            v.id() == volume || (v.header().info.parent == parent && !v.is_snapshot())
        };
        if let Some(found) = on.volumes().iter().find(|v| in_group(v)) {
            let found = found.id();
            tracing::warn!(%volume, %found, %partition, %other, "not made: its group is on another partition");
            return Err(codes::EIO);
        }
    }
    Ok(())
}

/// Stock servers say EIO whatever kept a volume from being made; a full disk is worth telling apart.
fn made_nothing(error: &VolumeError, volume: VolumeId) -> Abort {
    tracing::warn!(%volume, %error, "a volume was not made");
    match error {
        VolumeError::DiskFull => codes::VDISKFULL,
        _ => codes::EIO,
    }
}

impl Serve<DeleteVolume> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, DeleteVolume>,
        args: DeleteVolume,
    ) -> Result<reply::DeleteVolume, Abort> {
        let about = self.in_transaction(args.trans, "");
        self.audited(call, about, async move {
            let left = self.id_to_leave(args.trans).await?;
            let volume = self
                .within(args.trans, "DeleteVolume", move |in_use, partition, volume| {
                    no_snapshot(volume)?;
                    let id = volume.id();
                    let now = in_use.shared.time();
                    partition.remove_carried(id).map_err(|e| log(&e, id))?;
                    if volume.header().info.destroy_me
                        && partition.put_aside(id, now).map_err(|e| log(&e, id))?
                    {
                        let name = volume.name();
                        tracing::info!(volume = %id, name, "what came of a half-made volume is kept for a while");
                    } else {
                        remove_leaving(in_use, partition, volume, left)?;
                        tell_what_stays(in_use.transaction.partition, partition, volume);
                    }
                    in_use.transaction.flags |= VolumeFlags::DELETED;
                    Ok(volume.id())
                })
                .await?;
            self.tell(volume).await;
            Ok(reply::DeleteVolume {})
        })
        .await
    }
}

impl Serve<NukeVolume> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, NukeVolume>,
        args: NukeVolume,
    ) -> Result<reply::NukeVolume, Abort> {
        let about = self.on(args.partition, args.volid, "");
        self.audited(call, about, async move {
            let NukeVolume { partition, volid } = args;
            let Some(on) = self.partition(partition) else { return Err(codes::VOLSER_NO_VOL) };
            let in_use = self.begin(volid, partition, AttachFlags::CREATE, "NukeVolume")?;
            on_a_thread(move || {
                let volume = on.volume(volid).ok();
                let removed = volume.as_ref().map_or(Ok(()), |volume| no_snapshot(volume));
                let removed = removed.and_then(|()| on.delete_volume(volid).map_err(|e| log(&e, volid)));
                let result = match (removed, on.remove_half(volid)) {
                    // That was all there was of it.
                    (Err(codes::VNOVOL), Ok(true)) => Ok(()),
                    (removed, _) => removed,
                };
                if let (Ok(()), Some(volume)) = (&result, &volume) {
                    tell_what_stays(partition, &on, volume);
                }
                in_use.end();
                result
            })
            .await?;
            self.tell(volid).await;
            Ok(reply::NukeVolume {})
        })
        .await
    }
}

impl Serve<Clone> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, Clone>, args: Clone) -> Result<reply::Clone, Abort> {
        let (name, kind) = (order::printable(&args.new_name), order::kind(args.new_type));
        let mut details = format!("cloned as {} ({name}), {kind}", args.new_vol);
        if args.purge_vol != VolumeId(0) {
            let _ = write!(details, ", in place of {}", args.purge_vol);
        }
        let about = self.in_transaction(args.trans, details);
        self.audited(call, about, async move {
            let Clone { trans, purge_vol, new_type, new_name, new_vol } = args;
            let name = volume_name(new_name.into_bytes())?;
            let kind = match new_type {
                VolumeType::READ_ONLY => VolumeKind::ReadOnly,
                VolumeType::BACKUP => VolumeKind::Backup,
                _ => return Err(codes::EINVAL),
            };
            if new_vol == VolumeId(0) {
                return Err(codes::EINVAL);
            }
            let this = self.clone();
            let stamp = self.stamp();
            self.within(trans, "Clone", move |in_use, partition, volume| {
                let id = in_use.transaction.partition;
                // Nobody else may begin to work on the clone, or on the one that goes.
                let new = this.begin(new_vol, id, AttachFlags::CREATE, "Clone")?;
                let others = [new_vol, volume.id()];
                let old = match purge_vol {
                    VolumeId(0) => None,
                    old if others.contains(&old) => None,
                    old => Some(this.begin(old, id, AttachFlags::OFFLINE, "Clone")?),
                };
                let result = clone(
                    &this.shared.partitions,
                    id,
                    partition,
                    volume,
                    purge_vol,
                    NewClone {
                        id: new_vol,
                        name: name.unwrap_or_else(|| default_name(&volume.header().info.name, kind)),
                        kind,
                    },
                    stamp,
                );
                new.end();
                old.map(super::InUse::end);
                result
            })
            .await?;
            if purge_vol != VolumeId(0) {
                self.tell(purge_vol).await;
            }
            Ok(reply::Clone { new_vol })
        })
        .await
    }
}

fn clone(
    partitions: &Partitions,
    at: PartitionId,
    partition: &Partition,
    original: &Volume,
    purge: VolumeId,
    new: NewClone,
    stamp: Stamp,
) -> Result<(), Abort> {
    let failed = |error: &VolumeError| log(error, original.id());
    if original.snapshot_kind() == Some(SnapshotKind::Published) {
        // It looks like a read-write volume, and a clone of it would be taken for one of the volume itself.
        return Err(codes::BAD_OP);
    }
    let parent = original.header().info.parent;
    if purge != VolumeId(0) {
        let old = partition.volume(purge).map_err(|e| failed(&e))?;
        no_snapshot(&old)?;
        if old.header().info.parent != parent || old.is_writable() {
            return Err(codes::EXDEV);
        }
    }
    // Clones of this original on another partition are those that it has left when it moved.
    if partitions.iter().any(|(id, on)| id != at && on.volume(new.id).is_ok()) {
        return Err(codes::EXDEV);
    }
    if purge != VolumeId(0) {
        partition.delete_volume(purge).map_err(|e| failed(&e))?;
    }
    let made = partition.clone_volume(original.id(), &new, stamp).map_err(|e| failed(&e))?;
    settle(&made);
    Ok(())
}

/// The name of a clone that none was given for.
fn default_name(original: &str, kind: VolumeKind) -> String {
    let suffix = match kind {
        VolumeKind::ReadOnly => ".readonly",
        VolumeKind::Backup => ".backup",
        VolumeKind::ReadWrite | VolumeKind::Snapshot { .. } => "",
    };
    let fits = original.chars().scan(0, |bytes, c| {
        *bytes += c.len_utf8();
        (*bytes + suffix.len() <= NAME_MAX).then_some(c)
    });
    fits.chain(suffix.chars()).collect()
}

impl Serve<ReClone> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, ReClone>, args: ReClone) -> Result<reply::ReClone, Abort> {
        let about = self.in_transaction(args.trans, format!("cloned into {}", args.clone_id));
        self.audited(call, about, async move {
            let ReClone { trans, clone_id } = args;
            let this = self.clone();
            let stamp = self.stamp();
            self.within(trans, "ReClone", move |in_use, partition, volume| {
                if clone_id == volume.id() {
                    return Err(codes::EINVAL);
                }
                let clone =
                    this.begin(clone_id, in_use.transaction.partition, AttachFlags::OFFLINE, "ReClone")?;
                let attached = clone.volume().and_then(|(_, old)| {
                    let info = old.header().info;
                    if info.kind == VolumeKind::ReadWrite || info.parent != volume.header().info.parent {
                        return Err(codes::EXDEV);
                    }
                    attach(&old, AttachFlags::OFFLINE);
                    partition
                        .reclone_volume(volume.id(), clone_id, stamp)
                        .map_err(|e| log(&e, clone_id))
                        .map(|_| ())
                });
                clone.end();
                attached
            })
            .await?;
            self.tell(clone_id).await;
            Ok(reply::ReClone {})
        })
        .await
    }
}

impl Serve<SetFlags> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, SetFlags>, args: SetFlags) -> Result<reply::SetFlags, Abort> {
        let about = self.in_transaction(args.trans, order::state(args.flags));
        self.audited(call, about, async move {
            let SetFlags { trans, flags } = args;
            self.within(trans, "SetFlags", move |in_use, partition, volume| {
                let (in_service, destroy_me) = (
                    !flags.contains(VolumeFlags::OUT_OF_SERVICE),
                    flags.contains(VolumeFlags::DELETE_ON_SALVAGE),
                );
                let set = |volume: &Volume| {
                    volume.change_info(|info| (info.in_service, info.destroy_me) = (in_service, destroy_me))
                };
                if destroy_me {
                    no_snapshot(volume)?;
                }
                let renewed;
                let volume = if destroy_me {
                    volume
                } else {
                    // What came of it and is not all is not to be gone on with.
                    let id = volume.id();
                    partition.forget_half(id).map_err(|e| log(&e, id))?;
                    partition.remove_half(id).map_err(|e| log(&e, id))?;
                    renewed = partition.volume(id).map_err(|e| log(&e, id))?;
                    &*renewed
                };
                let before = volume.header().info;
                let was_busy = volume.state() == VolumeState::Busy;
                let mut result = set(volume);
                if matches!(result, Err(VolumeError::Io { .. })) && in_service {
                    // 'vos online' is how an administrator says that a disk works again.
                    let reopened = || partition.reopen().and_then(|()| set(&*partition.volume(volume.id())?));
                    // Of a write that failed before Linux tells at the first sync of a file that is opened later, once.
                    result = reopened().or_else(|_| reopened());
                }
                result.map_err(|e| log(&e, volume.id()))?;
                if before.destroy_me && !destroy_me {
                    partition.keep_carried(volume.id()).map_err(|e| log(&e, volume.id()))?;
                }
                if !in_service && was_busy {
                    // It is moving, and its clients wait until they are told where it is.
                    volume.set_state(VolumeState::Busy);
                }
                if before.in_service != in_service {
                    let (id, name) = (volume.id(), volume.name());
                    let state = if in_service { "online" } else { "offline" };
                    tracing::info!(target: order::OF_VOLUMES, "Volume {id} ({name}) is now {state}");
                }
                if destroy_me && !before.destroy_me && in_use.transaction.end == End::Unknown {
                    in_use.transaction.end = End::OfWhole;
                }
                in_use.transaction.flags = flags;
                in_use.transaction.is_for_good |= before.destroy_me && !destroy_me;
                in_use.transaction.is_changed |=
                    before.in_service != in_service || before.destroy_me != destroy_me;
                Ok(reply::SetFlags {})
            })
            .await
        })
        .await
    }
}

impl Serve<SetIdsTypes> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SetIdsTypes>,
        args: SetIdsTypes,
    ) -> Result<reply::SetIdsTypes, Abort> {
        let (name, kind) = (order::printable(&args.name), order::kind(args.kind));
        let SetIdsTypes { parent_id, clone_id, backup_id, .. } = args;
        let details = format!(
            "named {name}, {kind}, of the group of {parent_id}, with clone {clone_id} and backup {backup_id}"
        );
        let about = self.in_transaction(args.trans, details);
        self.audited(call, about, async move {
            let SetIdsTypes { trans, name, kind, parent_id, clone_id, backup_id } = args;
            let name = volume_name(name.into_bytes())?.ok_or(codes::BAD_NAME)?;
            let kind = kind_of(kind).ok_or(codes::EINVAL)?;
            self.within(trans, "SetIdsTypes", move |in_use, _, volume| {
                no_snapshot(volume)?;
                let change = |info: &mut afs_volume::VolumeInfo| {
                    (info.name, info.kind) = (name, kind);
                    (info.parent, info.clone, info.backup) = (parent_id, clone_id, backup_id);
                };
                volume.change_info(change).map_err(|e| log(&e, volume.id()))?;
                in_use.transaction.is_changed = true;
                Ok(reply::SetIdsTypes {})
            })
            .await
        })
        .await
    }
}

impl Serve<SetDate> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, SetDate>, args: SetDate) -> Result<reply::SetDate, Abort> {
        let about = self.in_transaction(args.trans, format!("made at {}", args.new_date.0));
        self.audited(call, about, async move {
            let SetDate { trans, new_date } = args;
            self.within(trans, "SetDate", move |_, _, volume| {
                no_snapshot(volume)?;
                volume.change_info(|info| info.creation_date = new_date).map_err(|e| log(&e, volume.id()))?;
                Ok(reply::SetDate {})
            })
            .await
        })
        .await
    }
}

impl Serve<SetInfo> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, SetInfo>, args: SetInfo) -> Result<reply::SetInfo, Abort> {
        let about = self.in_transaction(args.trans, changes(&args.info));
        self.audited(call, about, async move {
            let SetInfo { trans, info: wanted } = args;
            let number = |value: i32| (value != UNCHANGED).then_some(value as u32);
            let date = move |value: AfsTime| number(value.0 as i32).map(AfsTime);
            self.within(trans, "SetInfo", move |_, _, volume| {
                no_snapshot(volume)?;
                let change = |info: &mut afs_volume::VolumeInfo| {
                    set(&mut info.max_quota_kib, number(wanted.maxquota));
                    set(&mut info.day_use, number(wanted.day_use));
                    set(&mut info.creation_date, date(wanted.creation_date));
                    set(&mut info.update_date, date(wanted.update_date));
                    set(&mut info.update_counter, number(wanted.spare2));
                };
                volume.change_info(change).map_err(|e| log(&e, volume.id()))?;
                Ok(reply::SetInfo {})
            })
            .await
        })
        .await
    }
}

/// The numbers that an order sets, in words.
fn changes(info: &VolintInfo) -> String {
    let fields = [
        ("quota in KiB", info.maxquota),
        ("accesses today", info.day_use),
        ("made at", info.creation_date.0.cast_signed()),
        ("changed at", info.update_date.0.cast_signed()),
        ("update counter", info.spare2),
    ];
    let set = fields.iter().filter(|(_, value)| *value != UNCHANGED);
    set.map(|(name, value)| format!("{name} {}", value.cast_unsigned())).collect::<Vec<_>>().join(", ")
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

impl VolumeService {
    /// Volume operations are nobody's in particular.
    pub(super) fn stamp(&self) -> Stamp {
        Stamp { who: ViceId(0), now: self.shared.time() }
    }
}

pub(super) fn kind_of(kind: VolumeType) -> Option<VolumeKind> {
    Some(match kind {
        VolumeType::READ_WRITE => VolumeKind::ReadWrite,
        VolumeType::READ_ONLY => VolumeKind::ReadOnly,
        VolumeType::BACKUP => VolumeKind::Backup,
        other => {
            debug_assert!(!is_known(other), "each known kind has an arm above");
            return None;
        }
    })
}

/// A volume's name from the wire; `None` for the empty one.
pub(super) fn volume_name(bytes: Vec<u8>) -> Result<Option<String>, Abort> {
    let name = String::from_utf8(bytes).map_err(|_| codes::BAD_NAME)?;
    if name.len() > NAME_MAX {
        return Err(codes::BAD_NAME);
    }
    Ok(Some(name).filter(|name| !name.is_empty()))
}
