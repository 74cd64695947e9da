//! The content of rows: vnodes, chunks, volumes, volume groups, the partition (Volume format 5). Reading is total.

use crate::keys::{self, FileId, GroupId, Key, Part, Snapshot, VnodeKey};
use crate::{Kind, Schedule, SnapshotKind, VnodeId, VnodeStatus, VolumeError, VolumeInfo, VolumeKind};
use afs_store::Schema;
use afs_store::codec::{Fields, Value};
use afs_wire::acl::{Acl, ENTRIES_MAX};
use afs_wire::ids::{AfsTime, DataVersion, SecurityLevel, Uniquifier, ViceId, VnodeNumber, VolumeId};
use afs_wire::rights::Rights;

/// Bytes of a chunk. Who changes a byte in the midst of a file has one chunk copied, about 0.3 ms; who reads or writes
/// all of it opens a file for each. Part of the format.
///
/// Small in this crate's own tests, which are to have many.
pub(crate) const CHUNK: u64 = if cfg!(test) { 8 << 10 } else { 1 << 20 };
/// Data up to this many bytes are in a row: the log syncs them together with their vnode, where a file of their own
/// costs a millisecond at the next sync.
pub(crate) const INLINE_MAX: u64 = if cfg!(test) { 1 << 10 } else { 16 << 10 };
/// Longest message of a volume, in bytes (`VMSGSIZE` less the NUL).
pub(crate) const MESSAGE_MAX: usize = 127;

/// The place of a vnode's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// In a row. None there is no data.
    Inline,
    /// In files, by chunks.
    Chunks,
    /// In rows, by pages.
    Pages,
}

/// A vnode's row. An empty value stands for a vnode that was removed, where a clone still has an older row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VnodeRecord {
    pub(crate) status: VnodeStatus,
    pub(crate) layout: Layout,
    /// A directory's.
    pub(crate) acl: Acl,
}

impl VnodeRecord {
    /// KiB that it counts for in quotas (Volume format 5).
    pub(crate) fn blocks_kib(&self) -> u64 {
        blocks_kib(self.status.length)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let s = &self.status;
        let kind = match s.kind {
            Kind::File => 1,
            Kind::Directory => 2,
            Kind::Symlink => 3,
        };
        let layout = match self.layout {
            Layout::Inline => 1,
            Layout::Chunks => 2,
            Layout::Pages => 3,
        };
        let mut value = Value::default()
            .u8(kind)
            .u8(layout)
            .u16(s.mode)
            .u32(s.id.unique.0)
            .u32(s.link_count)
            .u64(s.length)
            .u64(s.data_version.0)
            .u32(s.author.0.cast_unsigned())
            .u32(s.owner.0.cast_unsigned())
            .u32(s.group.0.cast_unsigned())
            .u32(s.parent.vnode.0)
            .u32(s.parent.unique.0)
            .u32(s.client_mod_time.0)
            .u32(s.server_mod_time.0)
            .u8(u8::try_from(self.acl.positive.len()).expect("at most ENTRIES_MAX"))
            .u8(u8::try_from(self.acl.negative.len()).expect("at most ENTRIES_MAX"));
        for (id, rights) in self.acl.positive.iter().chain(&self.acl.negative) {
            value = value.u32(id.0.cast_unsigned()).u32(rights.0);
        }
        value.0
    }

    /// `None` is a vnode that was removed.
    pub(crate) fn decode(vnode: VnodeNumber, bytes: &[u8]) -> Result<Option<Self>, VolumeError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut f = Fields::new("a vnode's row", bytes);
        let kind = match f.u8()? {
            1 => Kind::File,
            2 => Kind::Directory,
            3 => Kind::Symlink,
            other => return Err(f.bad(&format!("has kind {other}")).into()),
        };
        let layout = match f.u8()? {
            1 => Layout::Inline,
            2 => Layout::Chunks,
            3 => Layout::Pages,
            other => return Err(f.bad(&format!("has layout {other}")).into()),
        };
        if (kind == Kind::Directory) != vnode.is_directory()
            || (kind == Kind::Directory) != (layout == Layout::Pages)
        {
            return Err(f.bad("is of a kind that its number or layout is not for").into());
        }
        let mode = f.u16()?;
        let status = VnodeStatus {
            kind,
            mode,
            id: VnodeId { vnode, unique: Uniquifier(f.u32()?) },
            link_count: f.u32()?,
            length: f.u64()?,
            data_version: DataVersion(f.u64()?),
            author: ViceId(f.u32()?.cast_signed()),
            owner: ViceId(f.u32()?.cast_signed()),
            group: ViceId(f.u32()?.cast_signed()),
            parent: VnodeId { vnode: VnodeNumber(f.u32()?), unique: Uniquifier(f.u32()?) },
            client_mod_time: AfsTime(f.u32()?),
            server_mod_time: AfsTime(f.u32()?),
        };
        if status.length > crate::MAX_FILE_BYTES {
            return Err(f.bad("is longer than a file can be").into());
        }
        let (positive, negative) = (usize::from(f.u8()?), usize::from(f.u8()?));
        if positive + negative > ENTRIES_MAX {
            return Err(f.bad("has too many access entries").into());
        }
        let mut entries = |n: usize| -> Result<Vec<(ViceId, Rights)>, VolumeError> {
            (0..n).map(|_| Ok((ViceId(f.u32()?.cast_signed()), Rights(f.u32()?)))).collect()
        };
        let acl = Acl { positive: entries(positive)?, negative: entries(negative)? };
        f.end()?;
        Ok(Some(Self { status, layout, acl }))
    }
}

/// KiB that data of so many bytes count for in quotas: whole ones, and one for no data, as OpenAFS counts.
pub(crate) fn blocks_kib(length: u64) -> u64 {
    length.div_ceil(1024).max(1)
}

/// A chunk's row: which file its bytes are in, and how many. An empty value is a hole over an older row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkRecord {
    pub(crate) file: FileId,
    pub(crate) length: u32,
}

impl ChunkRecord {
    pub(crate) fn encode(self) -> Vec<u8> {
        Value::default().u64(self.file.0).u32(self.length).0
    }

    /// `None` is a hole.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, VolumeError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut f = Fields::new("a chunk's row", bytes);
        let this = Self { file: FileId(f.u64()?), length: f.u32()? };
        if u64::from(this.length) > CHUNK {
            return Err(f.bad("has more bytes than a chunk").into());
        }
        f.end()?;
        Ok(Some(this))
    }
}

/// The name of the file with a chunk, which tells what it is of, and in which snapshot it was written.
pub(crate) fn file_name(file: FileId, key: &VnodeKey, chunk: u32) -> String {
    let (group, vnode, snapshot) = (key.group.0, key.vnode.0, key.snapshot.0);
    format!("data/{:08x}/{:016x}.{group:x}.{vnode:x}.{chunk:x}.{snapshot:x}", file.0 >> 10, file.0)
}

/// The version of the format: 2 has no notes of what was replaced (Volume format 12).
pub(crate) const VERSION: u64 = 3;

/// The facts that the store has to know of our rows.
#[derive(Debug)]
pub(crate) struct Rows;

impl Schema for Rows {
    fn version(&self) -> u64 {
        VERSION
    }

    fn is_reservation(&self, key: &Key) -> bool {
        keys::is_reservation(key)
    }

    fn larger_reservation(&self, a: Option<&[u8]>, b: &[u8]) -> Vec<u8> {
        keys::larger_reservation(a, b)
    }

    fn files_of(&self, key: &Key, row: &[u8]) -> Vec<String> {
        file_of(key, row).into_iter().collect()
    }
}

/// The file with data that a row names, if it is one that does.
fn file_of(key: &Key, row: &[u8]) -> Option<String> {
    let key = VnodeKey::parse(key)?;
    let Part::Chunk(n) = key.part else { return None };
    let chunk = ChunkRecord::decode(row).ok()??;
    Some(file_name(chunk.file, &key, n))
}

/// Parses the name of a file with a chunk; the reverse of [`file_name`] without its folders.
pub(crate) fn parse_file_name(name: &str) -> Option<(FileId, VnodeKey)> {
    let mut parts = name.split('.');
    let file = FileId(u64::from_str_radix(parts.next()?, 16).ok()?);
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    let (group, vnode, chunk, snapshot) = (number()?, number()?, number()?, number()?);
    let key = VnodeKey {
        group: GroupId(group),
        vnode: VnodeNumber(vnode),
        part: Part::Chunk(chunk),
        snapshot: Snapshot(snapshot),
    };
    parts.next().is_none().then_some((file, key))
}

/// The folder of a file's number below `data`, and all that have their files in it.
pub(crate) fn file_folder(file: FileId) -> String {
    format!("data/{:08x}", file.0 >> 10)
}

/// What may stand behind the fields of a volume's row, in this order: a byte that the volume is being restored, one for its level,
/// one for its own schedule with the counts of that, and one for the limit of its snapshots with that.
const IS_RESTORING: u8 = 1;
const IS_AUTH: u8 = 2;
const IS_CRYPT: u8 = 3;
const HAS_SCHEDULE: u8 = 4;
const HAS_LIMIT: u8 = 5;

/// A volume's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub(crate) group: GroupId,
    /// The snapshot that it shows; `None` is the newest, which can be changed.
    pub(crate) snapshot: Option<Snapshot>,
    /// True if what is behind the snapshot comes from a restore that has not ended.
    pub(crate) is_restoring: bool,
    pub(crate) info: VolumeInfo,
}

impl VolumeRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let i = &self.info;
        let kind = match i.kind {
            VolumeKind::ReadWrite => 0,
            VolumeKind::ReadOnly => 1,
            VolumeKind::Backup => 2,
            VolumeKind::Snapshot(SnapshotKind::Manual) => 3,
            VolumeKind::Snapshot(SnapshotKind::Scheduled) => 4,
            VolumeKind::Snapshot(SnapshotKind::Removed) => 5,
            VolumeKind::Snapshot(SnapshotKind::Published) => 6,
        };
        let mut value = Value::default()
            .u32(self.group.0)
            .u32(self.snapshot.map_or(u32::MAX, |s| s.0))
            .string(&i.name)
            .u8(kind)
            .u32(i.parent.0)
            .u32(i.clone.0)
            .u32(i.backup.0)
            .u32(i.restored_from.0)
            .u32(i.owner.0.cast_unsigned())
            .u32(i.account)
            .u32(i.max_quota_kib)
            .u32(i.min_quota_kib);
        for time in
            [i.creation_date, i.copy_date, i.backup_date, i.expiration_date, i.access_date, i.update_date]
        {
            value = value.u32(time.0);
        }
        value = value.u32(i.day_use).u32(i.day_use_date.0);
        value = i.week_use.iter().fold(value, |value, &uses| value.u32(uses));
        value = value
            .u8(u8::from(i.in_service))
            .u8(u8::from(i.destroy_me))
            .string(&i.offline_message)
            .string(&i.motd)
            .u32(i.update_counter);
        if self.is_restoring {
            value = value.u8(IS_RESTORING);
        }
        value = match i.level {
            SecurityLevel::AUTH => value.u8(IS_AUTH),
            SecurityLevel::CRYPT => value.u8(IS_CRYPT),
            _ => value,
        };
        if let Some(schedule) = i.schedule {
            value = schedule.counts().into_iter().fold(value.u8(HAS_SCHEDULE), Value::u16);
        }
        if let Some(limit_kib) = i.snapshot_limit_kib {
            value = value.u8(HAS_LIMIT).u32(limit_kib);
        }
        value.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, VolumeError> {
        let mut f = Fields::new("a volume's row", bytes);
        let group = GroupId(f.u32()?);
        let snapshot = Some(f.u32()?).filter(|&s| s != u32::MAX).map(Snapshot);
        let name = f.string()?;
        let kind = match f.u8()? {
            0 => VolumeKind::ReadWrite,
            1 => VolumeKind::ReadOnly,
            2 => VolumeKind::Backup,
            3 => VolumeKind::Snapshot(SnapshotKind::Manual),
            4 => VolumeKind::Snapshot(SnapshotKind::Scheduled),
            5 => VolumeKind::Snapshot(SnapshotKind::Removed),
            6 => VolumeKind::Snapshot(SnapshotKind::Published),
            other => return Err(f.bad(&format!("has kind {other}")).into()),
        };
        let mut info = VolumeInfo {
            name,
            kind,
            parent: VolumeId(f.u32()?),
            clone: VolumeId(f.u32()?),
            backup: VolumeId(f.u32()?),
            restored_from: VolumeId(f.u32()?),
            owner: ViceId(f.u32()?.cast_signed()),
            account: f.u32()?,
            max_quota_kib: f.u32()?,
            min_quota_kib: f.u32()?,
            creation_date: AfsTime(f.u32()?),
            copy_date: AfsTime(f.u32()?),
            backup_date: AfsTime(f.u32()?),
            expiration_date: AfsTime(f.u32()?),
            access_date: AfsTime(f.u32()?),
            update_date: AfsTime(f.u32()?),
            day_use: f.u32()?,
            day_use_date: AfsTime(f.u32()?),
            week_use: {
                let mut uses = [0; 7];
                for day in &mut uses {
                    *day = f.u32()?;
                }
                uses
            },
            in_service: f.u8()? != 0,
            destroy_me: f.u8()? != 0,
            offline_message: f.string()?,
            motd: f.string()?,
            update_counter: f.u32()?,
            level: SecurityLevel::CLEAR,
            schedule: None,
            snapshot_limit_kib: None,
        };
        let rest = f.rest();
        let (is_restoring, rest) = match rest {
            [IS_RESTORING, rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (level, rest) = match rest {
            [IS_AUTH, rest @ ..] => (SecurityLevel::AUTH, rest),
            [IS_CRYPT, rest @ ..] => (SecurityLevel::CRYPT, rest),
            rest => (SecurityLevel::CLEAR, rest),
        };
        info.level = level;
        let (schedule, rest) = match *rest {
            [HAS_SCHEDULE, a, b, c, d, e, f, g, h, ref rest @ ..] => {
                (Some(Schedule::of([[a, b], [c, d], [e, f], [g, h]].map(u16::from_be_bytes))), rest)
            }
            ref rest => (None, rest),
        };
        info.schedule = schedule;
        info.snapshot_limit_kib = match *rest {
            [] => None,
            [HAS_LIMIT, a, b, c, d] => Some(u32::from_be_bytes([a, b, c, d])),
            _ => return Err(f.bad("has at its end what nobody here knows").into()),
        };
        Ok(Self { group, snapshot, is_restoring, info })
    }
}

/// The row of a volume that was put aside half-made: since when, and its header as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HalfRecord {
    /// 0: nobody has looked at the time yet.
    pub(crate) since: AfsTime,
    pub(crate) volume: VolumeRecord,
}

impl HalfRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Value::default().u32(self.since.0).0;
        value.extend(self.volume.encode());
        value
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, VolumeError> {
        let (since, volume) = first_word("the row of a half-made volume", bytes)?;
        Ok(Self { since: AfsTime(since), volume: VolumeRecord::decode(volume)? })
    }
}

/// The row of a vnode whose data are still to come.
pub(crate) fn encode_partial(record: &VnodeRecord) -> Vec<u8> {
    let mut value = Value::default().u32(record.status.id.vnode.0).0;
    value.extend(record.encode());
    value
}

/// See [`encode_partial`].
pub(crate) fn decode_partial(bytes: &[u8]) -> Result<Option<VnodeRecord>, VolumeError> {
    let (vnode, record) = first_word("the row of a vnode that is being restored", bytes)?;
    VnodeRecord::decode(VnodeNumber(vnode), record)
}

fn first_word<'a>(what: &'static str, bytes: &'a [u8]) -> Result<(u32, &'a [u8]), VolumeError> {
    let (word, rest) = bytes.split_at(bytes.len().min(4));
    Ok((Fields::new(what, word).u32()?, rest))
}

/// The facts of a volume that change with each operation, apart from its row because that is longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counters {
    pub(crate) used_kib: u64,
    pub(crate) files: u32,
    pub(crate) updates: u32,
    pub(crate) update_date: u32,
}

impl Counters {
    /// True if the volume has nothing but its root.
    pub(crate) fn is_empty(self) -> bool {
        self.files <= 1
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        Value::default().u64(self.used_kib).u32(self.files).u32(self.updates).u32(self.update_date).0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, VolumeError> {
        let mut f = Fields::new("a volume's counters", bytes);
        let this = Self { used_kib: f.u64()?, files: f.u32()?, updates: f.u32()?, update_date: f.u32()? };
        f.end()?;
        Ok(this)
    }
}

/// A volume group's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    /// The snapshot whose number is in what is written now.
    pub(crate) current: Snapshot,
    /// The run in which its numbers were last looked after (Volume format 6).
    pub(crate) epoch: u32,
    /// Data versions below this may have been given out for contents that were lost.
    pub(crate) version_floor: u64,
    /// The oldest snapshot whose views show no version below the floor.
    pub(crate) floor_since: Snapshot,
    /// The next vnode numbers: of files, of directories.
    pub(crate) next_file: u32,
    pub(crate) next_directory: u32,
    pub(crate) next_unique: u64,
    /// True if there are rows that no volume shows.
    pub(crate) needs_sweep: bool,
}

impl GroupRecord {
    pub(crate) fn encode(self) -> Vec<u8> {
        Value::default()
            .u32(self.current.0)
            .u32(self.epoch)
            .u64(self.version_floor)
            .u32(self.next_file)
            .u32(self.next_directory)
            .u64(self.next_unique)
            .u8(u8::from(self.needs_sweep))
            .u32(self.floor_since.0)
            .0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, VolumeError> {
        let mut f = Fields::new("a volume group's row", bytes);
        let mut this = Self {
            current: Snapshot(f.u32()?),
            epoch: f.u32()?,
            version_floor: f.u64()?,
            next_file: f.u32()?,
            next_directory: f.u32()?,
            next_unique: f.u64()?,
            needs_sweep: f.u8()? != 0,
            floor_since: Snapshot(0),
        };
        this.floor_since = match f.is_empty() {
            // An older row, of when no view showed the floor.
            true => this.current,
            false => Snapshot(f.u32()?),
        };
        f.end()?;
        Ok(this)
    }
}

/// Two numbers up to which may be given out (see [`crate::keys::larger_reservation`]).
pub(crate) fn encode_reservation(numbers: [u64; 2]) -> Vec<u8> {
    Value::default().u64(numbers[0]).u64(numbers[1]).0
}

/// See [`encode_reservation`].
pub(crate) fn decode_reservation(bytes: &[u8]) -> Result<[u64; 2], VolumeError> {
    let mut f = Fields::new("a reservation", bytes);
    let numbers = [f.u64()?, f.u64()?];
    f.end()?;
    Ok(numbers)
}

/// The partition's row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PartitionRecord {
    /// Counts the power losses, and whatever else may have taken back what was acknowledged.
    pub(crate) epoch: u32,
    /// The number from which there may be files without a row.
    pub(crate) low_file: u64,
    /// The start of the machine in which it was last opened; empty where that is not known.
    pub(crate) boot: String,
}

impl PartitionRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        Value::default().u32(self.epoch).u64(self.low_file).string(&self.boot).0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, VolumeError> {
        let mut f = Fields::new("the partition's row", bytes);
        let (epoch, low_file) = (f.u32()?, f.u64()?);
        // An older row does not say.
        let boot = if f.is_empty() { String::new() } else { f.string()? };
        f.end()?;
        Ok(Self { epoch, low_file, boot })
    }
}
