//! AFSVol, what `vos` and other volume servers ask of a volume server (Volume service notes).

use crate::ids::{
    AfsTime, HostAddr, PartitionId, SecurityLevel, TransId, ViceId, VnodeNumber, VolumeId, VolumeType,
};
use rxgen::xdr::{CharVec, XdrArray, XdrString};
use rxgen::{interface, wire_enum, wire_struct};

/// Bytes of a volume's name in its header, with the NUL (`VNAMESIZE`).
pub const VNAMESIZE: usize = 32;
/// Most volumes in one list. The protocol has no limit; a partition with more would not fit into a call's reply of
/// 300 MB, and no client waits for that.
pub const LIST_MAX: usize = 1 << 20;
/// Most transactions in one list: each volume can have one.
pub const TRANSACTIONS_MAX: usize = 1 << 20;
/// Most destinations of `ForwardMultiple`: a volume has no more sites.
pub const DESTINATIONS_MAX: usize = 13;

/// Bytes of a call in a packet, as a stock server sends it on most networks: what `transmit_next` and `read_next` of
/// [`TransDebugInfo`] count.
pub const PACKET_BYTES: u64 = 1412;

/// A volume's name in requests. The count of `VNAMESIZE` is without a NUL on the wire.
pub type VolName = XdrString<VNAMESIZE>;
/// Names of partitions in requests.
pub type PartitionName = XdrString<4096>;
/// Numbers of partitions.
pub type PartEntries = XdrArray<PartitionId, 255>;
/// Volumes of a partition.
pub type VolEntries = XdrArray<VolintInfo, LIST_MAX>;
/// Volumes of a partition, with statistics.
pub type VolXEntries = XdrArray<VolintXInfo, LIST_MAX>;
/// Transactions.
pub type TransDebugEntries = XdrArray<TransDebugInfo, TRANSACTIONS_MAX>;
/// The servers to forward a dump to.
pub type ManyDests = XdrArray<Replica, DESTINATIONS_MAX>;
/// Most volumes that a partition has put aside half-made.
pub const HALVES_MAX: usize = 1024;
/// The half-made volumes that a partition has put aside.
pub type Halves = XdrArray<HalfVolume, HALVES_MAX>;
/// The snapshots of a volume, or of a server.
pub type Snapshots = XdrArray<SnapshotInfo, LIST_MAX>;
/// A code for each destination.
pub type ManyResults = XdrArray<i32, DESTINATIONS_MAX>;

wire_enum! {
    /// The kinds of snapshots, by who may remove them (Volume service notes 5.7).
    enum SnapshotType: i32 {
        /// Somebody has made it.
        0 MANUAL;
        /// A schedule has made it, and removes it.
        1 SCHEDULED;
        /// A removed volume has left it.
        2 REMOVED;
        /// It has a name of its own.
        3 PUBLISHED;
    }
}

wire_bits! {
    /// The use of a volume while a transaction has it (Volume service notes 3).
    AttachFlags(i32) {
        /// Clients get `VOFFLINE`.
        0x1 OFFLINE;
        /// Clients get `VBUSY`.
        0x2 BUSY;
        /// Is not used.
        0x8 READ_ONLY;
        /// Made and not yet valid.
        0x10 CREATE;
        /// Made under an id.
        0x1000 CREATE_VOLUME_ID;
    }

    /// The parts of vnodes in the digests of `GetArrived`.
    ArrivedFlags(i32) {
        /// The digests contain the data too, not only the attributes.
        0x1 WITH_DATA;
    }

    /// State of a volume, as `SetFlags` sets it (Volume service notes 3).
    VolumeFlags(i32) {
        /// The next salvage removes it.
        0x1 DELETE_ON_SALVAGE;
        /// The volume is not to be served.
        0x2 OUT_OF_SERVICE;
        /// Removed.
        0x4 DELETED;
    }

    /// The treatment by `Restore` of what the volume has already (Volume service notes 4).
    RestoreFlags(i32) {
        /// Keep what the dump does not speak of.
        0x1 INCREMENTAL;
    }

    /// Options of `DumpV2`.
    DumpFlags(i32) {
        /// Leave directories out that did not change.
        0x1 OMIT_DIRS;
    }
}

wire_struct! {
    /// The reply of `GetStatus` about a transaction's volume.
    #[derive(Copy)]
    struct VolserStatus {
        /// The volume.
        vol_id: VolumeId,
        /// The next uniquifier.
        next_unique: i32,
        /// Its kind.
        kind: VolumeType,
        /// The read-write volume.
        parent_id: VolumeId,
        /// The read-only volume.
        clone_id: VolumeId,
        /// The backup volume.
        backup_id: VolumeId,
        /// The volume that it was restored from.
        restored_from_id: VolumeId,
        /// Quota in KiB; 0 is none.
        max_quota: i32,
        /// Quota that is reserved, in KiB.
        min_quota: i32,
        /// Its owner.
        owner: ViceId,
        /// The time when it was made; for a clone, when it was cloned.
        creation_date: AfsTime,
        /// Last access.
        access_date: AfsTime,
        /// Last change by a user.
        update_date: AfsTime,
        /// 0.
        expiration_date: AfsTime,
        /// The time when the backup volume was made.
        backup_date: AfsTime,
        /// The time when this copy was made.
        copy_date: AfsTime,
    }

    /// A volume server to send to.
    #[derive(Copy)]
    struct DestServer {
        /// Its address.
        host: HostAddr,
        /// Its port as a number, 7005.
        port: i32,
        /// 1.
        ssid: i32,
    }

    /// A volume in a list, 220 bytes.
    struct VolintInfo {
        /// Its name.
        name: CharVec<VNAMESIZE>,
        /// Its id.
        volid: VolumeId,
        /// Its kind.
        kind: VolumeType,
        /// The backup volume.
        backup_id: VolumeId,
        /// The read-write volume.
        parent_id: VolumeId,
        /// The read-only volume.
        clone_id: VolumeId,
        /// [`VOK`], or the code with which it cannot be used.
        status: i32,
        /// The time when this copy was made.
        copy_date: AfsTime,
        /// Nonzero if it is attached.
        in_use: u8,
        /// Nonzero if it is damaged.
        needs_salvaged: u8,
        /// The flag that [`VolumeFlags::DELETE_ON_SALVAGE`] sets; OpenAFS has 0xd3 for yes.
        destroy_me: u8,
        /// The time when it was made.
        creation_date: AfsTime,
        /// Last access.
        access_date: AfsTime,
        /// Last change by a user.
        update_date: AfsTime,
        /// The time when the backup volume was made.
        backup_date: AfsTime,
        /// Accesses today.
        day_use: i32,
        /// Vnodes.
        filecount: i32,
        /// Quota in KiB; 0 is none.
        maxquota: i32,
        /// Used, in KiB.
        size: i32,
        /// Is not used.
        flags: i32,
        /// Holds the reserved quota.
        spare0: i32,
        /// Holds the accesses of the last week.
        spare1: i32,
        /// Holds the update counter.
        spare2: i32,
        /// 0.
        spare3: i32,
    }

    /// A volume in a list with statistics, 320 bytes.
    struct VolintXInfo {
        /// Its name.
        name: CharVec<VNAMESIZE>,
        /// Its id.
        volid: VolumeId,
        /// Its kind.
        kind: VolumeType,
        /// The backup volume.
        backup_id: VolumeId,
        /// The read-write volume.
        parent_id: VolumeId,
        /// The read-only volume.
        clone_id: VolumeId,
        /// [`VOK`], or the code with which it cannot be used.
        status: i32,
        /// The time when this copy was made.
        copy_date: AfsTime,
        /// Nonzero if it is attached.
        in_use: u8,
        /// The time when it was made.
        creation_date: AfsTime,
        /// Last access.
        access_date: AfsTime,
        /// Last change by a user.
        update_date: AfsTime,
        /// The time when the backup volume was made.
        backup_date: AfsTime,
        /// Accesses today.
        day_use: i32,
        /// Vnodes.
        filecount: i32,
        /// Quota in KiB; 0 is none.
        maxquota: i32,
        /// Used, in KiB.
        size: i32,
        /// Reads: same network, of these with a name, other networks, of these with a name.
        stat_reads: [i32; 4],
        /// Writes, likewise.
        stat_writes: [i32; 4],
        /// Changes of files by the last author, by time since the last.
        stat_file_same_author: [i32; 6],
        /// Changes of files by others.
        stat_file_diff_author: [i32; 6],
        /// Changes of directories by the last author.
        stat_dir_same_author: [i32; 6],
        /// Changes of directories by others.
        stat_dir_diff_author: [i32; 6],
    }

    /// A transaction, as `Monitor` shows it.
    struct TransDebugInfo {
        /// The transaction.
        tid: TransId,
        /// The time when it was last used.
        time: AfsTime,
        /// The time when it was made.
        creation_time: AfsTime,
        /// Its result so far.
        return_code: i32,
        /// Its volume.
        volid: VolumeId,
        /// The volume's partition.
        partition: PartitionId,
        /// The way in which the volume was attached; see [`AttachFlags`].
        iflags: i16,
        /// The volume's state; see [`VolumeFlags`].
        vflags: i8,
        /// 1: deleted when nobody uses it.
        tflags: i8,
        /// The procedure that used it last.
        last_proc_name: CharVec<30>,
        /// Nonzero if the following fields count.
        call_valid: i32,
        /// The next packet to be read.
        read_next: i32,
        /// The next packet to be sent.
        transmit_next: i32,
        /// The time when something was sent last.
        last_send_time: AfsTime,
        /// The time when something was received last.
        last_receive_time: AfsTime,
    }

    /// Partitions in the old form.
    #[derive(Copy)]
    struct PIds {
        /// Their numbers; -1 for each that is not there.
        part_ids: [PartitionId; 26],
    }

    /// A partition. Sizes are in KiB.
    struct DiskPartition {
        /// `/vicepa`.
        name: CharVec<32>,
        /// Its device.
        dev_name: CharVec<32>,
        /// 0 or a number that means nothing to others.
        lock_fd: i32,
        /// Size.
        total_usable: i32,
        /// Free.
        free: i32,
        /// Is not to be used.
        min_free: i32,
    }

    /// A partition of any size. Sizes are in KiB.
    struct DiskPartition64 {
        /// `/vicepa`.
        name: CharVec<256>,
        /// Its device.
        dev_name: CharVec<256>,
        /// 0 or a number that means nothing to others.
        lock_fd: i32,
        /// Size.
        total_usable: i64,
        /// Free.
        free: i64,
        /// Is not to be used.
        min_free: i64,
    }

    /// The name and kind of a restored volume, instead of those in the dump.
    struct RestoreCookie {
        /// Its name.
        name: CharVec<32>,
        /// Its kind.
        kind: VolumeType,
        /// The read-only volume.
        clone: VolumeId,
        /// The read-write volume.
        parent: VolumeId,
    }

    /// One destination of `ForwardMultiple`.
    #[derive(Copy)]
    struct Replica {
        /// The transaction at the destination.
        trans: TransId,
        /// The destination.
        server: DestServer,
    }

    /// The size that a dump would have.
    #[derive(Copy)]
    struct VolintSize {
        /// Bytes.
        dump_size: u64,
    }

    /// A volume of which only a part came.
    struct HalfVolume {
        /// Its id.
        volume: VolumeId,
        /// The name that it was to have.
        name: VolName,
        /// Its kind.
        kind: VolumeType,
        /// Its read-write volume.
        parent: VolumeId,
        /// The time since which it is aside.
        since: AfsTime,
    }

    /// How many snapshots a schedule keeps.
    #[derive(Copy)]
    struct SnapshotSchedule {
        /// The number of hours of which the first one is kept.
        hourly: u32,
        /// The number of days.
        daily: u32,
        /// The number of weeks.
        weekly: u32,
        /// The number of months.
        monthly: u32,
    }

    /// A snapshot of a volume.
    struct SnapshotInfo {
        /// Its id.
        volid: VolumeId,
        /// Its partition.
        partition: PartitionId,
        /// The volume.
        parent: VolumeId,
        /// The name that the volume had.
        name: VolName,
        /// The time that it shows.
        made: AfsTime,
        /// Its kind.
        kind: SnapshotType,
        /// The time until which the server keeps it, if a removed volume has left it; otherwise 0.
        until: AfsTime,
        /// KiB of its contents, as quotas count them.
        used_kib: u64,
    }
}

/// The status of a volume in a list that is all right.
pub const VOK: i32 = 2;
/// "Leave as it is", in a field of the [`VolintInfo`] that `SetInfo` is given.
pub const UNCHANGED: i32 = -1;

interface! {
    /// Procedures that `vos` and other volume servers call on a volume server.
    AfsVol on service 4 port 7005 {
        /// Makes a volume, out of service, and a transaction on it.
          100 CreateVolume (partition: PartitionId, name: VolName, kind: VolumeType, parent: VolumeId,
                            volid: VolumeId) -> (volid: VolumeId, trans: TransId);
        /// Removes the transaction's volume.
          101 DeleteVolume (trans: TransId);
        /// Fills the transaction's volume from a dump.
          102 Restore (trans: TransId, flags: RestoreFlags, cookie: RestoreCookie) split from_client;
        /// Has the server dump to another server's transaction.
          103 Forward (from_trans: TransId, from_date: AfsTime, destination: DestServer, dest_trans: TransId,
                       cookie: RestoreCookie);
        /// Ends a transaction.
          104 EndTrans (trans: TransId) -> (rcode: i32);
        /// Clones the transaction's volume.
          105 Clone (trans: TransId, purge_vol: VolumeId, new_type: VolumeType, new_name: VolName,
                     new_vol: VolumeId) -> (new_vol: VolumeId);
        /// Sets the state of the transaction's volume.
          106 SetFlags (trans: TransId, flags: VolumeFlags);
        /// The state of the transaction's volume.
          107 GetFlags (trans: TransId) -> (flags: VolumeFlags);
        /// Begins a transaction on a volume.
          108 TransCreate (volume: VolumeId, partition: PartitionId, flags: AttachFlags) -> (trans: TransId);
        /// A dump of the transaction's volume.
          109 Dump (from_trans: TransId, from_date: AfsTime) split from_server;
        /// A volume by index.
          110 GetNthVolume (index: i32) -> (volume: VolumeId, partition: PartitionId);
        /// Says that the transaction's volume has moved to another server.
          111 SetForwarding (trans: TransId, new_site: i32);
        /// The name of the transaction's volume.
          112 GetName (trans: TransId) -> (name: XdrString<256>);
        /// The header of the transaction's volume.
          113 GetStatus (trans: TransId) -> (status: VolserStatus);
        /// Is not served.
          114 SignalRestore (name: VolName, kind: VolumeType, pid: VolumeId, clone_id: VolumeId);
        /// The first 26 partitions.
          115 ListPartitions () -> (part_ids: PIds);
        /// The volumes of a partition; flags 1 for all that is known of them, 0 for their ids.
          116 ListVolumes (partition: PartitionId, flags: i32) -> (entries: VolEntries);
        /// Sets name, kind and relatives of the transaction's volume.
          117 SetIdsTypes (trans: TransId, name: VolName, kind: VolumeType, parent_id: VolumeId,
                           clone_id: VolumeId, backup_id: VolumeId);
        /// The transactions.
          118 Monitor () -> (entries: TransDebugEntries);
        /// A partition, by name.
          119 PartitionInfo (name: PartitionName) -> (partition: DiskPartition);
        /// Clones the transaction's volume into a clone that exists.
          120 ReClone (trans: TransId, clone_id: VolumeId);
        /// One volume of a partition.
          121 ListOneVolume (partition: PartitionId, volid: VolumeId) -> (entries: VolEntries);
        /// Removes a volume without looking at it.
          122 NukeVolume (partition: PartitionId, volid: VolumeId);
        /// Sets the creation date of the transaction's volume.
          123 SetDate (trans: TransId, new_date: AfsTime);
        /// The volumes of a partition, with statistics.
          124 XListVolumes (partition: PartitionId, flags: i32) -> (entries: VolXEntries);
        /// One volume of a partition, with statistics.
          125 XListOneVolume (partition: PartitionId, volid: VolumeId) -> (entries: VolXEntries);
        /// Sets quota, dates and use of the transaction's volume.
          126 SetInfo (trans: TransId, info: VolintInfo);
        /// The partitions.
          127 XListPartitions () -> (part_ids: PartEntries);
        /// `Forward` to several at once.
          128 ForwardMultiple (from_trans: TransId, from_date: AfsTime, destinations: ManyDests, spare: i32,
                               cookie: RestoreCookie) -> (results: ManyResults);
        /// Makes a read-only volume the read-write one.
        65536 ConvertROtoRWvolume (partition: PartitionId, volid: VolumeId);
        /// Tells the size of a dump of the transaction's volume.
        65537 GetSize (from_trans: TransId, from_date: AfsTime) -> (size: VolintSize);
        /// A dump of the transaction's volume.
        65538 DumpV2 (from_trans: TransId, from_date: AfsTime, flags: DumpFlags) split from_server;
        /// A partition of any size, by name.
        65539 PartitionInfo64 (name: PartitionName) -> (partition: DiskPartition64);
        /// Is not served.
        65547 SplitVolume (volid: VolumeId, new_id: VolumeId, vnode: u32, verbose: i32) split from_server;
        /// Tells what came of the transaction's volume, which is new, when an earlier one of its id was filled and that broke
        /// off: an `afs_dump::Arrival` for each vnode. Ours (Volume service notes 5.5).
        1_634_099_456 GetArrived (trans: TransId, flags: ArrivedFlags) split from_server;
        /// As `Restore`, from a dump that names alone what came, and of this file lacks as many bytes as came (0: none). Ours.
        1_634_099_457 RestoreRest (trans: TransId, cookie: RestoreCookie, vnode: VnodeNumber, bytes: u64)
                       split from_client;
        /// Returns the volumes of a partition of which only a part came. Ours.
        1_634_099_458 ListHalves (partition: PartitionId) -> (halves: Halves);
        /// Sets the level of the transaction's volume, which is a read-write one (Volume service notes 5.6). Ours.
        1_634_099_459 SetLevel (trans: TransId, level: SecurityLevel);
        /// The level of a volume. Ours: a server that does not know the procedure knows no levels.
        1_634_099_460 GetLevel (partition: PartitionId, volid: VolumeId) -> (level: SecurityLevel);
        /// Lets the transaction's volume be sent to servers that know no levels. Ours.
        1_634_099_461 MayLoseLevel (trans: TransId);
        /// Makes a snapshot of the transaction's volume, which is a read-write one (Volume service notes 5.7). Ours.
        1_634_099_462 SnapshotCreate (trans: TransId, new_vol: VolumeId) -> (made: AfsTime);
        /// Returns the snapshots of a volume that the server has, or those of all volumes (volume 0). Ours: a server that does not know
        /// the procedure has none.
        1_634_099_463 SnapshotList (volume: VolumeId) -> (snapshots: Snapshots);
        /// Removes a snapshot. Ours.
        1_634_099_464 SnapshotRemove (partition: PartitionId, volid: VolumeId);
        /// Sets by which schedule the server makes snapshots of the transaction's read-write volume: one of its own, or, if that is 0, the
        /// server's (Volume service notes 5.8). Ours.
        1_634_099_465 SnapshotSetSchedule (trans: TransId, is_own: i32, schedule: SnapshotSchedule);
        /// The schedule of a volume, and whether it is its own. Ours.
        1_634_099_466 SnapshotGetSchedule (partition: PartitionId, volid: VolumeId)
                       -> (is_own: i32, schedule: SnapshotSchedule);
        /// Makes of the snapshot that a removed volume has left a read-write volume again, with this id and name (Volume service notes 5.9). Ours.
        1_634_099_467 SnapshotUndelete (partition: PartitionId, volid: VolumeId, new_vol: VolumeId, name: VolName);
        /// Gives a snapshot a name of its own, under which it is served as it was then; or, if that is 0, the volume's (Volume service notes 5.10). Ours.
        1_634_099_468 SnapshotPublish (partition: PartitionId, volid: VolumeId, is_published: i32, name: VolName);
        /// Makes a snapshot of the transaction's volume, which is being filled, with the id and the time that it has at another server (Volume
        /// service notes 5.11). Replies 0 if there is one of this id or time, or if the id is 0, by which callers ask whether the server takes
        /// snapshots over; otherwise 1. Ours.
        1_634_099_469 SnapshotCarry (trans: TransId, new_vol: VolumeId, made: AfsTime, kind: SnapshotType)
                       -> (is_made: i32);
        /// As `Forward`, of what differs from a snapshot of the volume, as which the other server has it; of everything if that is 0. Ours.
        1_634_099_470 SnapshotForward (from_trans: TransId, base: VolumeId, destination: DestServer,
                                       dest_trans: TransId, cookie: RestoreCookie);
        /// Sets how much the snapshots of the transaction's read-write volume may hold, in KiB: a limit of its own, 0 for none, or, if that is 0,
        /// its quota (Volume service notes 5.12). Ours.
        1_634_099_471 SnapshotSetLimit (trans: TransId, is_own: i32, limit_kib: u32);
        /// The limit of a volume, whether it is its own, and what its snapshots hold, if the server has counted that. Ours.
        1_634_099_472 SnapshotGetLimit (partition: PartitionId, volid: VolumeId)
                       -> (is_own: i32, limit_kib: u32, is_counted: i32, held_kib: u64);
    }
}
