//! Procedures that show what there is: partitions, volumes, transactions (Volume service notes 2 to 4).

use std::sync::Arc;

use afs_volume::{Partition, SnapshotKind, Volume, VolumeError, VolumeHeader, VolumeKind, VolumeState};
use afs_wire::afsvol::{
    DiskPartition, DiskPartition64, GetFlags, GetName, GetSize, GetStatus, ListOneVolume, ListPartitions,
    ListVolumes, Monitor, PACKET_BYTES, PIds, PartEntries, PartitionInfo, PartitionInfo64, TransDebugEntries,
    TransDebugInfo, VOK, VolEntries, VolXEntries, VolintInfo, VolintSize, VolintXInfo, VolserStatus,
    XListOneVolume, XListPartitions, XListVolumes, reply,
};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId, VolumeType};
use rxgen::xdr::{CharVec, XdrArray, XdrString};
use rxgen::{Abort, Serve, ServerCall};

use super::size::dump_size;
use super::{VolumeService, log};
use crate::codes;
use rx::blocking::on_a_thread;

/// The value for "to be destroyed" in a header on disk, which the list shows (Volume service notes 2).
const DESTROY_ME: u8 = 0xd3;

impl Serve<GetName> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, GetName>, args: GetName) -> Result<reply::GetName, Abort> {
        self.may_query(call.security())?;
        self.within(args.trans, "GetName", |_, _, volume| {
            let name = XdrString::new(volume.header().info.name).map_err(|_| codes::EIO)?;
            Ok(reply::GetName { name })
        })
        .await
    }
}

impl Serve<GetFlags> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, GetFlags>, args: GetFlags) -> Result<reply::GetFlags, Abort> {
        self.may_query(call.security())?;
        self.within(args.trans, "GetFlags", |in_use, _, _| {
            Ok(reply::GetFlags { flags: in_use.transaction.flags })
        })
        .await
    }
}

impl Serve<GetStatus> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, GetStatus>,
        args: GetStatus,
    ) -> Result<reply::GetStatus, Abort> {
        self.may_query(call.security())?;
        self.within(args.trans, "GetStatus", |_, _, volume| {
            let header = volume.header();
            let parent_id = parent_of(&header);
            let VolumeHeader { id, info, next_unique, .. } = header;
            let status = VolserStatus {
                vol_id: id,
                next_unique: number(next_unique),
                kind: type_of(info.kind),
                parent_id,
                clone_id: info.clone,
                backup_id: info.backup,
                restored_from_id: info.restored_from,
                max_quota: number(info.max_quota_kib),
                min_quota: number(info.min_quota_kib),
                owner: info.owner,
                creation_date: info.creation_date,
                access_date: info.access_date,
                update_date: info.update_date,
                expiration_date: info.expiration_date,
                backup_date: info.backup_date,
                copy_date: info.copy_date,
            };
            Ok(reply::GetStatus { status })
        })
        .await
    }
}

impl Serve<GetSize> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, GetSize>, args: GetSize) -> Result<reply::GetSize, Abort> {
        self.must_be_superuser(call.security())?;
        let GetSize { from_trans, from_date } = args;
        self.within(from_trans, "GetSize", move |_, _, volume| {
            let dump_size = dump_size(volume, from_date).map_err(|e| log(&e, volume.id()))?;
            Ok(reply::GetSize { size: VolintSize { dump_size } })
        })
        .await
    }
}

/// Packets that so many bytes are to a stock server, which has [`PACKET_BYTES`] in each.
fn packets(bytes: u64) -> i32 {
    i32::try_from(bytes.div_ceil(PACKET_BYTES)).unwrap_or(i32::MAX)
}

impl Serve<Monitor> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, Monitor>, _: Monitor) -> Result<reply::Monitor, Abort> {
        self.may_query(call.security())?;
        let table = self.shared.transactions();
        let entries =
            table.iter().map(|t| (t, t.moved.bytes())).map(|(t, [sent, received])| TransDebugInfo {
                tid: t.id,
                time: t.used,
                creation_time: t.created,
                return_code: t.return_code,
                volid: t.volume,
                partition: t.partition,
                iflags: t.attach.0 as i16,
                vflags: t.flags.0 as i8,
                tflags: 0,
                last_proc_name: CharVec::from_text(t.procedure).unwrap_or(CharVec([0; 30])),
                call_valid: i32::from(sent + received > 0),
                read_next: packets(received),
                transmit_next: packets(sent),
                last_send_time: if sent > 0 { t.used } else { AfsTime(0) },
                last_receive_time: if received > 0 { t.used } else { AfsTime(0) },
            });
        let entries: TransDebugEntries =
            XdrArray::new(entries.collect::<Vec<_>>()).map_err(|_| codes::EIO)?;
        Ok(reply::Monitor { entries })
    }
}

impl Serve<ListPartitions> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, ListPartitions>,
        _: ListPartitions,
    ) -> Result<reply::ListPartitions, Abort> {
        self.may_query(call.security())?;
        let mut part_ids = [PartitionId(-1); 26];
        for (slot, (id, _)) in part_ids.iter_mut().zip(self.shared.partitions.iter()) {
            *slot = id;
        }
        Ok(reply::ListPartitions { part_ids: PIds { part_ids } })
    }
}

impl Serve<XListPartitions> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, XListPartitions>,
        _: XListPartitions,
    ) -> Result<reply::XListPartitions, Abort> {
        self.may_query(call.security())?;
        let ids: Vec<_> = self.shared.partitions.iter().map(|(id, _)| id).collect();
        let part_ids: PartEntries = XdrArray::new(ids).map_err(|_| codes::EIO)?;
        Ok(reply::XListPartitions { part_ids })
    }
}

impl Serve<PartitionInfo> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, PartitionInfo>,
        args: PartitionInfo,
    ) -> Result<reply::PartitionInfo, Abort> {
        self.may_query(call.security())?;
        let Info { id, device, total_kib, free_kib } = self.info(args.name.into_bytes()).await?;
        // `vos partinfo` shows the last field as the size, and stock servers put it there.
        let clamped = |kib: u64| i32::try_from(kib).unwrap_or(i32::MAX);
        let partition = DiskPartition {
            name: cut(&id.to_string()),
            dev_name: cut(&device),
            lock_fd: -1,
            total_usable: clamped(total_kib),
            free: clamped(free_kib),
            min_free: clamped(total_kib),
        };
        Ok(reply::PartitionInfo { partition })
    }
}

impl Serve<PartitionInfo64> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, PartitionInfo64>,
        args: PartitionInfo64,
    ) -> Result<reply::PartitionInfo64, Abort> {
        self.may_query(call.security())?;
        let Info { id, device, total_kib, free_kib } = self.info(args.name.into_bytes()).await?;
        let partition = DiskPartition64 {
            name: cut(&id.to_string()),
            dev_name: cut(&device),
            lock_fd: -1,
            total_usable: total_kib as i64,
            free: free_kib as i64,
            min_free: total_kib as i64,
        };
        Ok(reply::PartitionInfo64 { partition })
    }
}

struct Info {
    id: PartitionId,
    device: String,
    total_kib: u64,
    free_kib: u64,
}

impl VolumeService {
    async fn info(&self, name: Vec<u8>) -> Result<Info, Abort> {
        let name = String::from_utf8(name).ok();
        let id = name.and_then(|name| PartitionId::parse(&name)).ok_or(codes::ILLEGAL_PARTITION)?;
        let partition = self.partition(id).ok_or(codes::ILLEGAL_PARTITION)?;
        on_a_thread(move || {
            let space = partition.space().map_err(|error| {
                tracing::error!(partition = %id, %error, "the space of a partition is not known");
                codes::EIO
            })?;
            let device = partition.folder().display().to_string();
            Ok(Info { id, device, total_kib: space.total_kib, free_kib: space.free_kib })
        })
        .await
    }

    /// The volumes of a partition but its snapshots, of which most callers know nothing; or one volume.
    async fn list<T: Send + 'static>(
        &self,
        partition: PartitionId,
        only: Option<VolumeId>,
        entry: impl Fn(VolumeId, Listed<'_>) -> T + Send + 'static,
    ) -> Result<Vec<T>, Abort> {
        let on = self.partition(partition).ok_or(codes::ILLEGAL_PARTITION)?;
        // A volume that somebody works on is told by its id alone.
        let taken: Vec<_> = {
            let table = self.shared.transactions();
            table.iter().filter(|t| t.partition == partition).map(|t| t.volume).collect()
        };
        on_a_thread(move || {
            let volumes = match only {
                Some(id) => vec![(id, on.volume(id))],
                None => sorted(&on).filter(|(_, volume)| is_listed(volume)).collect(),
            };
            let volumes = volumes.into_iter().map(|(id, volume)| match volume {
                Ok(_) if taken.contains(&id) => Ok(entry(id, Listed::InUse)),
                Ok(volume) => Ok(entry(id, Listed::Whole(&volume))),
                Err(VolumeError::Offline { .. }) => Ok(entry(id, Listed::Damaged)),
                Err(_) => Err(codes::ENODEV),
            });
            volumes.collect()
        })
        .await
    }
}

/// The facts about a volume in a list.
enum Listed<'a> {
    /// All that can be said of it.
    Whole(&'a Volume),
    /// Somebody works on it: its id alone, and VBUSY.
    InUse,
    /// It cannot be shown: its id alone, in the way of a stock server that cannot attach it.
    Damaged,
}

impl Listed<'_> {
    fn entry(&self, id: VolumeId) -> VolintInfo {
        match self {
            Self::Whole(volume) => full(volume),
            Self::InUse => bare(id, codes::VBUSY.0),
            Self::Damaged => bare(id, 0),
        }
    }
}

type Found = Result<Arc<Volume>, VolumeError>;

/// True unless it is a snapshot of which the location database knows nothing.
fn is_listed(volume: &Found) -> bool {
    let kind = volume.as_ref().ok().and_then(|volume| volume.snapshot_kind());
    matches!(kind, None | Some(SnapshotKind::Published))
}

fn sorted(partition: &Partition) -> impl Iterator<Item = (VolumeId, Found)> {
    let whole = partition.volumes().into_iter().map(|volume| volume.id());
    let mut ids: Vec<_> = whole.chain(partition.damaged_volumes().into_iter().map(|(id, _)| id)).collect();
    ids.sort_unstable();
    // One that was removed meanwhile is not listed.
    let found = ids.into_iter().map(|id| (id, partition.volume(id)));
    found.filter(|(_, volume)| !matches!(volume, Err(VolumeError::NoVolume(_))))
}

impl Serve<ListVolumes> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, ListVolumes>,
        args: ListVolumes,
    ) -> Result<reply::ListVolumes, Abort> {
        self.may_query(call.security())?;
        let is_full = args.flags != 0;
        let entry = move |id, listed: Listed<'_>| if is_full { listed.entry(id) } else { bare(id, 0) };
        let entries: VolEntries = array(self.list(args.partition, None, entry).await?)?;
        Ok(reply::ListVolumes { entries })
    }
}

impl Serve<ListOneVolume> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, ListOneVolume>,
        args: ListOneVolume,
    ) -> Result<reply::ListOneVolume, Abort> {
        self.may_query(call.security())?;
        let entry = |id, listed: Listed<'_>| listed.entry(id);
        let entries: VolEntries = array(self.list(args.partition, Some(args.volid), entry).await?)?;
        Ok(reply::ListOneVolume { entries })
    }
}

impl Serve<XListVolumes> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, XListVolumes>,
        args: XListVolumes,
    ) -> Result<reply::XListVolumes, Abort> {
        self.may_query(call.security())?;
        let is_full = args.flags != 0;
        let entry =
            move |id, listed: Listed<'_>| extended(if is_full { listed.entry(id) } else { bare(id, 0) });
        let entries: VolXEntries = array(self.list(args.partition, None, entry).await?)?;
        Ok(reply::XListVolumes { entries })
    }
}

impl Serve<XListOneVolume> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, XListOneVolume>,
        args: XListOneVolume,
    ) -> Result<reply::XListOneVolume, Abort> {
        self.may_query(call.security())?;
        let entry = |id, listed: Listed<'_>| extended(listed.entry(id));
        let entries: VolXEntries = array(self.list(args.partition, Some(args.volid), entry).await?)?;
        Ok(reply::XListOneVolume { entries })
    }
}

fn array<T, const MAX: usize>(entries: Vec<T>) -> Result<XdrArray<T, MAX>, Abort> {
    XdrArray::new(entries).map_err(|error| {
        tracing::error!(%error, "there are more volumes than a list can have");
        codes::EIO
    })
}

/// All that a list says of a volume.
fn full(volume: &Volume) -> VolintInfo {
    let header = volume.header();
    let parent_id = parent_of(&header);
    let VolumeHeader { id, info, used_kib, file_count, .. } = header;
    let is_served = matches!(volume.state(), VolumeState::Online);
    VolintInfo {
        name: cut(&info.name),
        kind: type_of(info.kind),
        backup_id: info.backup,
        parent_id,
        clone_id: info.clone,
        copy_date: info.copy_date,
        in_use: u8::from(is_served),
        destroy_me: if info.destroy_me { DESTROY_ME } else { 0 },
        creation_date: info.creation_date,
        access_date: info.access_date,
        update_date: info.update_date,
        backup_date: info.backup_date,
        day_use: number(info.day_use),
        filecount: number(file_count),
        maxquota: number(info.max_quota_kib),
        size: i32::try_from(used_kib).unwrap_or(i32::MAX),
        spare0: number(info.min_quota_kib),
        spare1: info.week_use.iter().fold(0, |sum: i32, day| sum.saturating_add(number(*day))),
        spare2: number(info.update_counter),
        ..bare(id, VOK)
    }
}

/// Makes the entry of a volume with its id alone.
fn bare(volid: VolumeId, status: i32) -> VolintInfo {
    VolintInfo {
        name: CharVec([0; afs_wire::afsvol::VNAMESIZE]),
        volid,
        kind: VolumeType::READ_WRITE,
        backup_id: VolumeId(0),
        parent_id: VolumeId(0),
        clone_id: VolumeId(0),
        status,
        copy_date: AfsTime(0),
        in_use: 0,
        needs_salvaged: 0,
        destroy_me: 0,
        creation_date: AfsTime(0),
        access_date: AfsTime(0),
        update_date: AfsTime(0),
        backup_date: AfsTime(0),
        day_use: 0,
        filecount: 0,
        maxquota: 0,
        size: 0,
        flags: 0,
        spare0: 0,
        spare1: 0,
        spare2: 0,
        spare3: 0,
    }
}

/// The same with statistics, which are not kept.
fn extended(info: VolintInfo) -> VolintXInfo {
    VolintXInfo {
        name: info.name,
        volid: info.volid,
        kind: info.kind,
        backup_id: info.backup_id,
        parent_id: info.parent_id,
        clone_id: info.clone_id,
        status: info.status,
        copy_date: info.copy_date,
        in_use: info.in_use,
        creation_date: info.creation_date,
        access_date: info.access_date,
        update_date: info.update_date,
        backup_date: info.backup_date,
        day_use: info.day_use,
        filecount: info.filecount,
        maxquota: info.maxquota,
        size: info.size,
        stat_reads: [0; 4],
        stat_writes: [0; 4],
        stat_file_same_author: [0; 6],
        stat_file_diff_author: [0; 6],
        stat_dir_same_author: [0; 6],
        stat_dir_diff_author: [0; 6],
    }
}

/// The read-write volume of a volume's entry.
fn parent_of(header: &VolumeHeader) -> VolumeId {
    let is_published = header.info.kind == VolumeKind::Snapshot(SnapshotKind::Published);
    if is_published { header.id } else { header.info.parent }
}

/// A kind as the protocol has it, which knows no snapshots: they are told to be backups, and those that have an
/// entry of their own in the location database to be the volume of that.
pub(crate) const fn type_of(kind: VolumeKind) -> VolumeType {
    match kind {
        VolumeKind::ReadWrite | VolumeKind::Snapshot(SnapshotKind::Published) => VolumeType::READ_WRITE,
        VolumeKind::ReadOnly => VolumeType::READ_ONLY,
        VolumeKind::Backup | VolumeKind::Snapshot { .. } => VolumeType::BACKUP,
    }
}

/// A number that the protocol declares with a sign.
fn number(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// A text that is cut where the field ends.
fn cut<const N: usize>(text: &str) -> CharVec<N> {
    let mut end = text.len().min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    CharVec::from_text(&text[..end]).unwrap_or(CharVec([0; N]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_its_characters() {
        let check = |text: &str, expected: &str| assert_eq!(cut::<8>(text).text(), expected.as_bytes());
        check("/vicepa", "/vicepa");
        check("/vicepaa", "/vicepa");
        check("123456\u{e4}", "123456");
        check("", "");
    }
}
