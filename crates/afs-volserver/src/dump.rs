//! A volume's dump, made piece by piece from the volume as it was when the dump began (Volume service notes 5). Blocks on the disk, and
//! knows nothing of calls.

use crate::service::type_of;
use afs_dump::{
    Arrival, DumpHeader, DumpRange, VnodeAttributes, VnodeDigest, VnodeKind, VnodeRecord, WriteError, Writer,
};
use afs_volume::{
    Frozen, Kind, Reader, Schedule, VnodeId, VnodeStatus, VolumeError, VolumeHeader, VolumeKind,
};
use afs_wire::acl::Acl;
use afs_wire::ids::{AfsTime, DataVersion, LocalFid, SecurityLevel, VnodeNumber, VolumeId};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;

/// Vnodes that are asked for at once.
const BATCH: usize = 256;
/// Bytes of a file that are opened at once, as a reader costs memory for each of their chunks.
const OPENED: u64 = 1 << 30;

/// Bytes of a file that are tried together, if those around them cannot be read.
const TRIED: u64 = 1 << 20;
/// The same where a part of these was read.
const TRIED_AGAIN: usize = 4096;
/// Unreadable places that are told at most.
const LOST_MAX: usize = 10_000;
/// Bytes of a dump that are written at once.
const WRITTEN: usize = 256 << 10;

/// Data of a vnode that could not be read: the dump has zeros in their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The vnode.
    pub vnode: VnodeNumber,
    /// The first byte.
    pub from: u64,
    /// The number of bytes.
    pub length: u64,
}

/// Writes a full dump of a volume. Data that cannot be read do not end it.
///
/// # Errors
///
/// `out` failed, or the rows of a vnode cannot be read.
pub fn write(volume: Frozen, out: &mut dyn io::Write) -> io::Result<Vec<Lost>> {
    let mut dump = Dump { lost: Some(Vec::new()), ..Dump::new(volume, Wanted::default()) };
    let mut piece = Vec::new();
    loop {
        piece.clear();
        dump.fill(&mut piece, WRITTEN).map_err(|error| io::Error::other(error.to_string()))?;
        if piece.is_empty() {
            out.flush()?;
            return Ok(dump.lost.unwrap_or_default());
        }
        out.write_all(&piece)?;
    }
}

/// The reason why a volume could not be dumped.
#[derive(Debug)]
pub(crate) enum DumpFailed {
    /// It could not be read.
    Volume(VolumeError),
    /// Something of it does not fit into a dump.
    Write(WriteError),
    /// A vnode has less data than it says.
    Short(VnodeNumber),
}

impl fmt::Display for DumpFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(error) => error.fmt(f),
            Self::Write(error) => error.fmt(f),
            Self::Short(vnode) => write!(f, "vnode {vnode} has less data than it should"),
        }
    }
}

impl From<VolumeError> for DumpFailed {
    fn from(error: VolumeError) -> Self {
        Self::Volume(error)
    }
}

impl From<WriteError> for DumpFailed {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

/// The content of a dump that is to be made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Vnodes that have not changed since are named alone. 0, or what OpenAFS takes for a time before 1970, is everything.
    pub(crate) from: AfsTime,
    /// True if directories that have not changed are named alone too.
    pub(crate) omits_directories: bool,
    /// True if the dump does not say the volume's level.
    pub(crate) omits_level: bool,
}

impl Wanted {
    fn has_all_of(self, status: &VnodeStatus) -> bool {
        let is_full = self.from.0.cast_signed() <= 0;
        let is_forced = status.kind == Kind::Directory && !self.omits_directories;
        is_full || is_forced || status.server_mod_time >= self.from
    }
}

/// The vnodes that a receiver has already.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    whole: HashMap<VnodeNumber, [u8; Arrival::DIGEST_BYTES]>,
    partial: Option<Arrival>,
}

impl Arrived {
    /// Notes a vnode.
    pub(crate) fn note(&mut self, arrival: Arrival) {
        match arrival.bytes {
            None => _ = self.whole.insert(arrival.vnode, arrival.digest),
            Some(_) => self.partial = Some(arrival),
        }
    }

    /// The number of vnodes that have come whole.
    pub(crate) fn len(&self) -> usize {
        self.whole.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.partial.is_none()
    }
}

/// A dump that is being made.
pub(crate) struct Dump {
    volume: Frozen,
    wanted: Wanted,
    /// The volume as the receiver has it, if all is wanted that differs from it.
    base: Option<Frozen>,
    arrived: Arrived,
    /// The file whose first bytes have come, and how many.
    rest: Option<(VnodeNumber, u64)>,
    /// `None`: nothing was written yet, or everything.
    writer: Option<Writer>,
    stage: Stage,
    /// The next vnodes of the class.
    vnodes: VecDeque<(VnodeStatus, Acl)>,
    /// The vnode from which it goes on behind these.
    next: u32,
    /// The data of the last vnode.
    data: Option<Data>,
    /// The data that could not be read, if that does not end the dump.
    lost: Option<Vec<Lost>>,
}

/// Data of a vnode that are to follow.
struct Data {
    status: VnodeStatus,
    /// The place from which they are missing.
    at: u64,
    /// Has those up to `end`, if they can be read.
    reader: Option<Reader>,
    end: u64,
}

impl Data {
    /// Fills `out` with the next bytes. Those that cannot be read are zeros, and are noted in `lost`, or else an error.
    fn read(&self, out: &mut [u8], lost: Option<&mut Vec<Lost>>) -> Result<(), DumpFailed> {
        let vnode = self.status.id.vnode;
        let read = |at, out: &mut [u8]| match &self.reader {
            Some(reader) if reader.read_at(at, out)? == out.len() => Ok(()),
            _ => Err(DumpFailed::Short(vnode)),
        };
        let Err(error) = read(self.at, out) else { return Ok(()) };
        let Some(lost) = lost else { return Err(error) };
        let (mut from, mut rest) = (self.at, out);
        while !rest.is_empty() {
            let length = TRIED_AGAIN - (from % TRIED_AGAIN as u64) as usize;
            let (piece, behind) = rest.split_at_mut(length.min(rest.len()));
            let length = piece.len() as u64;
            if read(from, piece).is_err() {
                piece.fill(0);
                let has_room = lost.len() < LOST_MAX;
                match lost.last_mut() {
                    Some(last) if last.vnode == vnode && last.from + last.length == from => {
                        last.length += length
                    }
                    _ if has_room => lost.push(Lost { vnode, from, length }),
                    _ => {}
                }
            }
            (from, rest) = (from + length, behind);
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Headers,
    Directories,
    Files,
    Done,
}

impl Dump {
    pub(crate) fn new(volume: Frozen, wanted: Wanted) -> Self {
        let (vnodes, stage, arrived) = (VecDeque::new(), Stage::Headers, Arrived::default());
        let (base, rest, writer, data, lost) = (None, None, None, None, None);
        Self { volume, wanted, base, arrived, rest, writer, stage, vnodes, next: 0, data, lost }
    }

    /// The same dump, which names a vnode without attributes if it is as in `base`, whenever it was changed.
    pub(crate) fn against(self, base: Option<Frozen>) -> Self {
        Self { base, ..self }
    }

    /// The same dump, which names an arrived vnode without attributes if it is still the same: the receiver then keeps the vnode.
    pub(crate) fn of_the_rest(volume: Frozen, wanted: Wanted, arrived: Arrived) -> Result<Self, DumpFailed> {
        let mut rest = None;
        if let Some(Arrival { vnode, bytes: Some(bytes), digest }) = arrived.partial {
            let found = volume.vnodes_of_class(false, vnode, 1)?;
            if let Some((status, acl)) = found.into_iter().find(|(status, _)| status.id.vnode == vnode)
                && bytes < status.length
                && has_digest(&record(&status, acl), digest)
            {
                rest = Some((vnode, bytes));
            }
        }
        Ok(Self { arrived, rest, ..Self::new(volume, wanted) })
    }

    /// True if it names alone what has arrived.
    pub(crate) fn is_of_the_rest(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// The file whose first bytes the dump lacks, and their number.
    pub(crate) fn rest(&self) -> Option<(VnodeNumber, u64)> {
        self.rest
    }

    /// Appends the next part, until `out` has about `length` bytes. Nothing more in it is the end of the dump.
    pub(crate) fn fill(&mut self, out: &mut Vec<u8>, length: usize) -> Result<(), DumpFailed> {
        while out.len() < length && self.stage != Stage::Done {
            if self.data.is_some() {
                self.fill_data(out, length)?;
            } else {
                self.step(out)?;
            }
        }
        Ok(())
    }

    fn fill_data(&mut self, out: &mut Vec<u8>, length: usize) -> Result<(), DumpFailed> {
        let (Some(data), Some(writer)) = (&mut self.data, &mut self.writer) else { return Ok(()) };
        let left = usize::try_from(data.end - data.at).unwrap_or(usize::MAX);
        let begin = out.len();
        let wanted = left.min(length - begin);
        out.resize(begin + wanted, 0);
        data.read(&mut out[begin..], self.lost.as_mut())?;
        writer.pass(wanted as u64);
        data.at += wanted as u64;
        if wanted == left {
            let (status, at) = (data.status, data.at);
            self.data = if at < status.length { Some(self.open(status, at)?) } else { None };
        }
        Ok(())
    }

    /// True if a vnode is to be sent with attributes and data.
    fn has_all_of(&self, status: &VnodeStatus, acl: &Acl) -> Result<bool, DumpFailed> {
        let Some(base) = &self.base else { return Ok(self.wanted.has_all_of(status)) };
        let was = match status.kind {
            Kind::Directory => base.status_and_acl(status.id),
            Kind::File | Kind::Symlink => base.status(status.id).map(|was| (was, acl.clone())),
        };
        match was {
            Ok((was, list)) => Ok(was != *status || list != *acl),
            Err(VolumeError::NoVnode(_)) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn open(&self, status: VnodeStatus, at: u64) -> Result<Data, DumpFailed> {
        let length = (status.length - at).min(OPENED);
        match self.volume.open(status.id, at, length) {
            Ok(reader) => Ok(Data { status, at, reader: Some(reader), end: at + length }),
            Err(_) if self.lost.is_some() => {
                let end = ((at / TRIED + 1) * TRIED).min(status.length);
                Ok(Data { status, at, reader: self.volume.open(status.id, at, end - at).ok(), end })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn step(&mut self, out: &mut Vec<u8>) -> Result<(), DumpFailed> {
        match (self.stage, self.vnodes.pop_front()) {
            (Stage::Headers, _) => {
                let (dump, volume) = headers(&self.volume.header(), self.wanted);
                self.writer = Some(Writer::new(&dump, &volume, out)?);
                self.stage = Stage::Directories;
            }
            (Stage::Directories | Stage::Files, Some((status, acl))) => {
                let vnode = status.id.vnode;
                let has_all = self.has_all_of(&status, &acl)?;
                let mut record = record(&status, acl);
                let rest = self.rest.filter(|(rest, _)| *rest == vnode);
                let is_whole = match self.arrived.whole.get(&vnode) {
                    Some(digest) => !has_digest(&record, *digest),
                    None => rest.is_some() || has_all,
                };
                if !is_whole {
                    record.attributes = None;
                }
                let at = rest.map_or(0, |(_, bytes)| bytes);
                if let Some(writer) = &mut self.writer {
                    writer.vnode(&record, out)?;
                    if is_whole {
                        writer.pass(at);
                    }
                }
                if is_whole && status.length > 0 {
                    self.data = Some(self.open(status, at)?);
                }
            }
            (Stage::Directories | Stage::Files, None) => {
                let is_directory = self.stage == Stage::Directories;
                let found = self.volume.vnodes_of_class(is_directory, VnodeNumber(self.next), BATCH)?;
                self.vnodes = found.into();
                match self.vnodes.back() {
                    Some((last, _)) => self.next = last.id.vnode.0.saturating_add(1),
                    None if is_directory => (self.stage, self.next) = (Stage::Files, 0),
                    None => {
                        if let Some(writer) = self.writer.take() {
                            writer.end(out);
                        }
                        self.stage = Stage::Done;
                    }
                }
            }
            (Stage::Done, _) => {}
        }
        Ok(())
    }
}

/// Returns the headers of a dump: about itself, and about its volume.
fn headers(header: &VolumeHeader, wanted: Wanted) -> (DumpHeader, afs_dump::VolumeHeader) {
    let info = &header.info;
    let to = match info.kind {
        VolumeKind::ReadWrite => info.update_date,
        VolumeKind::ReadOnly | VolumeKind::Snapshot { .. } => info.creation_date,
        VolumeKind::Backup if info.backup_date == AfsTime(0) => info.creation_date,
        VolumeKind::Backup => info.backup_date,
    };
    let name = info.name.clone().into_bytes();
    let dump = DumpHeader {
        volume: header.id,
        name: name.clone(),
        ranges: vec![DumpRange { from: wanted.from, to }],
    };
    let volume = afs_dump::VolumeHeader {
        id: header.id,
        version: 1,
        name,
        in_service: info.in_service,
        // A volume that is not would not be served by OpenAFS whatever is set afterwards.
        blessed: true,
        next_unique: header.next_unique,
        kind: type_of(info.kind),
        parent: if info.parent == VolumeId(0) { header.id } else { info.parent },
        clone: info.clone,
        max_quota_kib: info.max_quota_kib,
        min_quota_kib: info.min_quota_kib,
        used_kib: u32::try_from(header.used_kib).unwrap_or(u32::MAX),
        file_count: header.vnode_count,
        account: info.account,
        owner: info.owner,
        creation_date: info.creation_date,
        access_date: info.access_date,
        update_date: info.update_date,
        expiration_date: info.expiration_date,
        backup_date: info.backup_date,
        offline_message: info.offline_message.clone().into_bytes(),
        // As OpenAFS's volserver.
        motd: Vec::new(),
        week_use: info.week_use,
        day_use_date: info.day_use_date,
        day_use: info.day_use,
        level: if wanted.omits_level { SecurityLevel::CLEAR } else { info.level },
        schedule: info.schedule.map(Schedule::counts),
        snapshot_limit_kib: info.snapshot_limit_kib,
    };
    (dump, volume)
}

/// A vnode as a dump has it.
pub(crate) fn record(status: &VnodeStatus, acl: Acl) -> VnodeRecord {
    let fid = LocalFid { vnode: status.id.vnode, unique: status.id.unique };
    VnodeRecord { fid, attributes: Some(attributes(status, acl)) }
}

fn has_digest(record: &VnodeRecord, digest: [u8; Arrival::DIGEST_BYTES]) -> bool {
    VnodeDigest::of(record).ok().flatten().is_some_and(|found| found.end() == digest)
}

fn attributes(status: &VnodeStatus, acl: Acl) -> VnodeAttributes {
    VnodeAttributes {
        kind: match status.kind {
            Kind::File => VnodeKind::File,
            Kind::Directory => VnodeKind::Directory,
            Kind::Symlink => VnodeKind::Symlink,
        },
        // At most MAX_LINKS.
        link_count: u16::try_from(status.link_count).unwrap_or(u16::MAX),
        data_version: DataVersion(status.data_version.0),
        client_mod_time: status.client_mod_time,
        author: status.author,
        owner: status.owner,
        group: status.group,
        mode: status.mode,
        parent: if status.id == VnodeId::ROOT { VnodeNumber(0) } else { status.parent.vnode },
        server_mod_time: status.server_mod_time,
        acl: (status.kind == Kind::Directory).then_some(acl),
        length: Some(status.length),
    }
}
