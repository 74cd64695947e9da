//! The records of a dump, apart from the data: of itself, of its volume, and of each vnode. How the fields stand in the stream
//! is the reader's and the writer's.

use afs_wire::acl::Acl;
use afs_wire::ids::{
    AfsTime, DataVersion, LocalFid, SecurityLevel, ViceId, VnodeNumber, VolumeId, VolumeType,
};

/// The dump's header, at its beginning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DumpHeader {
    /// The volume that was dumped: the read-only one's or a clone's id, if it was that.
    pub volume: VolumeId,
    /// The name of that volume.
    pub name: Vec<u8>,
    /// The changes that it has. OpenAFS writes one range, and reads up to [`crate::Reader::RANGES_MAX`].
    pub ranges: Vec<DumpRange>,
}

/// The time whose changes are in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DumpRange {
    /// Vnodes that have not changed since are named, and nothing else is said of them. 0: the dump is full.
    pub from: AfsTime,
    /// The state that was dumped: the update date of a read-write volume, the creation or backup date of a clone.
    pub to: AfsTime,
}

/// A volume's header as a dump has it. What a stream does not say is 0 or empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeHeader {
    /// `i`: its id.
    pub id: VolumeId,
    /// `v`: the version of the header's format; OpenAFS writes 1.
    pub version: u32,
    /// `n`: its name.
    pub name: Vec<u8>,
    /// `s`: whether clients are served from it.
    pub in_service: bool,
    /// `b`: the other half of that. A volume that is not blessed is not served either.
    pub blessed: bool,
    /// `u`: the next uniquifier.
    pub next_unique: u32,
    /// `t`: its kind.
    pub kind: VolumeType,
    /// `p`: the read-write volume of its group.
    pub parent: VolumeId,
    /// `c`: the latest clone, or 0.
    pub clone: VolumeId,
    /// `q`: most KiB that it may use; 0 is no limit.
    pub max_quota_kib: u32,
    /// `m`: KiB promised to it.
    pub min_quota_kib: u32,
    /// `d`: KiB used.
    pub used_kib: u32,
    /// `f`: files, directories and symbolic links.
    pub file_count: u32,
    /// `a`: a number for accounting.
    pub account: u32,
    /// `o`: whose it is.
    pub owner: ViceId,
    /// `C`: when its contents were made.
    pub creation_date: AfsTime,
    /// `A`: when it was last read.
    pub access_date: AfsTime,
    /// `U`: when its contents changed last.
    pub update_date: AfsTime,
    /// `E`: after this it may be removed; 0 is never.
    pub expiration_date: AfsTime,
    /// `B`: when the last backup clone was made of it.
    pub backup_date: AfsTime,
    /// `O`: why it is offline.
    pub offline_message: Vec<u8>,
    /// `M`: message of the day. OpenAFS writes it empty.
    pub motd: Vec<u8>,
    /// `W`: uses on each of the last seven days.
    pub week_use: [u32; 7],
    /// `D`: the day that `day_use` is about.
    pub day_use_date: AfsTime,
    /// `Z`: uses on that day.
    pub day_use: u32,
    /// `l`, which is ours: the least level with which its contents may be served (Volume service notes 5.6). Written, unless it is
    /// clear, as a tag that a reader must know.
    pub level: SecurityLevel,
    /// `S`, which is ours: its own schedule of snapshots, if it has one, as numbers of hourly, daily, weekly and monthly ones.
    pub schedule: Option<[u16; 4]>,
    /// `S` of another length, which is ours: most KiB that its snapshots may hold, if it has a limit of its own.
    pub snapshot_limit_kib: Option<u32>,
}

/// The kind of a vnode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VnodeKind {
    /// A file: 1.
    File,
    /// A directory: 2.
    Directory,
    /// A symbolic link or a mount point: 3.
    Symlink,
}

/// A vnode as a dump names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VnodeRecord {
    /// The vnode.
    pub fid: LocalFid,
    /// All that there is of it. `None`: it has not changed since the dump's [`DumpRange::from`].
    pub attributes: Option<VnodeAttributes>,
}

/// A vnode's attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VnodeAttributes {
    /// `t`: what it is.
    pub kind: VnodeKind,
    /// `l`: names of a file; of a directory 2 and its subdirectories.
    pub link_count: u16,
    /// `v`: version of the data. A dump has the low 32 bits.
    pub data_version: DataVersion,
    /// `m`: when it was changed, as clients set it.
    pub client_mod_time: AfsTime,
    /// `a`: who wrote last.
    pub author: ViceId,
    /// `o`: whose it is.
    pub owner: ViceId,
    /// `g`: its group. Left out of the stream if it is 0.
    pub group: ViceId,
    /// `b`: the low bits of a Unix mode.
    pub mode: u16,
    /// `p`: the directory it is in; the root's is 0.
    pub parent: VnodeNumber,
    /// `s`: when it was changed, by the server's clock.
    pub server_mod_time: AfsTime,
    /// `A`: a directory's access list.
    pub acl: Option<Acl>,
    /// `f` or `h`: bytes of data that follow. `None`: the server had no file for it; a directory always has one.
    pub length: Option<u64>,
}
