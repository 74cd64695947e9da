//! RXAFS, what a cache manager asks of a file server (File service notes 1 and 6).
//!
//! In the split calls the data have a layout of their own: `FetchData` sends a length word before them, `FetchData64`
//! two, the high one first; `StoreData` and `StoreData64` send exactly `length` bytes (XDR notes 2.1).

use crate::ids::{
    AFSCAPABILITIESMAX, AFSCBMAX, AFSOPAQUEMAX, AfsFid, AfsTime, HostAddr, Name, Path, ViceId, VolumeId,
};
use crate::status::{AfsCallBack, AfsFetchStatus, AfsStoreStatus, AfsVolSync};
use rxgen::xdr::{CharVec, Opaque, OpaqueFixed, XdrArray, XdrString};
use rxgen::{interface, wire_enum, wire_struct};

/// An access list as text, or a token.
pub type AfsOpaque = Opaque<AFSOPAQUEMAX>;
/// A message of a volume: why it is offline, or of the day.
pub type Message = XdrString<AFSOPAQUEMAX>;
/// Several fids.
pub type AfsCbFids = XdrArray<AfsFid, AFSCBMAX>;
/// Promises for several fids; may be fewer.
pub type AfsCbs = XdrArray<AfsCallBack, AFSCBMAX>;
/// Status of several fids.
pub type AfsBulkStats = XdrArray<AfsFetchStatus, AFSCBMAX>;
/// Words of flags: see [`Capabilities`] for the first.
pub type CapabilityWords = XdrArray<u32, AFSCAPABILITIESMAX>;
/// The users that `FlushCPS` is to forget.
pub type ViceIds = XdrArray<ViceId, 10>;
/// The hosts whose groups `FlushCPS` is to forget.
pub type IpAddrs = XdrArray<HostAddr, 10>;
/// Numbers of one collection of extended statistics.
pub type CollData = XdrArray<u32, 1024>;
/// Snapshots of a volume, of the newest at most so many as a volume can have on a partition of ours.
pub type VolumeSnapshots = XdrArray<VolumeSnapshot, SNAPSHOTS_MAX>;
/// The counters of `GetStatistics64`, in the order of File service notes 6.5.
pub type ViceStatistics64 = XdrArray<u64, 16>;

/// Snapshots that `GetSnapshots` tells of at most.
pub const SNAPSHOTS_MAX: usize = 4096;

wire_enum! {
    /// The kind of a lock (File service notes 6.7).
    enum ViceLockType: i32 {
        /// Shared.
        0 READ;
        /// Alone.
        1 WRITE;
        /// A lock that is not set: `ExtendLock` does that.
        2 EXTEND;
        /// A lock that is not set: `ReleaseLock` does that.
        3 RELEASE;
    }

    /// Kinds of volume in `GetVolumeStatus`, which differ from those of the volume service.
    enum VolumeStatusType: i32 {
        /// Read-only or backup.
        0 READ_ONLY;
        /// Read-write.
        1 READ_WRITE;
    }
}

wire_bits! {
    /// The abilities of a file server or cache manager: the first word of its capabilities (File service notes 6.6).
    Capabilities(u32) {
        /// Codes are errno numbers in the form that is the same everywhere, `UAE...`.
        1 ERRORTRANS;
        /// Files of 2 GiB and more.
        2 LARGE_FILES;
        /// The right to lock does not include write locks.
        4 WRITELOCKACL;
        /// Access lists without the exceptions of old.
        8 SANEACLS;
    }

    /// The fields of an [`AfsStoreVolumeStatus`] that are to be set.
    StoreVolumeMask(u32) {
        /// `min_quota`.
        1 MIN_QUOTA;
        /// `max_quota`.
        2 MAX_QUOTA;
    }
}

wire_struct! {
    /// A partition in [`ViceStatistics`].
    #[derive(Copy)]
    struct ViceDisk {
        /// Blocks of 1 KiB that are free.
        blocks_available: i32,
        /// Blocks of 1 KiB in all.
        total_blocks: i32,
        /// `/vicepa` and NULs.
        name: OpaqueFixed<32>,
    }

    /// The old statistics. Stock servers fill most of the fields with zeros.
    struct ViceStatistics {
        /// Is not used.
        current_msg_number: u32,
        /// Is not used.
        oldest_msg_number: u32,
        /// The server's clock.
        current_time: AfsTime,
        /// The time when the machine was started.
        boot_time: AfsTime,
        /// The time when the server was started.
        start_time: AfsTime,
        /// Connections.
        current_connections: i32,
        /// Calls.
        total_vice_calls: u32,
        /// Calls that fetch data, status or access lists.
        total_fetchs: u32,
        /// Calls that fetch data.
        fetch_datas: u32,
        /// Bytes fetched.
        fetched_bytes: u32,
        /// Bytes fetched a second.
        fetch_data_rate: i32,
        /// Calls that store.
        total_stores: u32,
        /// Calls that store data.
        store_datas: u32,
        /// Bytes stored.
        stored_bytes: u32,
        /// Bytes stored a second.
        store_data_rate: i32,
        /// Bytes sent.
        total_rpc_bytes_sent: u32,
        /// Bytes received.
        total_rpc_bytes_received: u32,
        /// Packets sent.
        total_rpc_packets_sent: u32,
        /// Packets received.
        total_rpc_packets_received: u32,
        /// Packets lost.
        total_rpc_packets_lost: u32,
        /// Packets that made no sense.
        total_rpc_bogus_packets: u32,
        /// Processor time.
        system_cpu: i32,
        /// Processor time.
        user_cpu: i32,
        /// Processor time.
        nice_cpu: i32,
        /// Processor time.
        idle_cpu: i32,
        /// Disk operations.
        total_io: i32,
        /// Memory.
        active_vm: i32,
        /// Memory.
        total_vm: i32,
        /// Errors of the network interface.
        ether_net_total_errors: i32,
        /// Writes of the network interface.
        ether_net_total_writes: i32,
        /// Interrupts of the network interface.
        ether_net_total_interrupts: i32,
        /// Good reads of the network interface.
        ether_net_good_reads: i32,
        /// Bytes that the network interface has written.
        ether_net_total_bytes_written: i32,
        /// Bytes that the network interface has read.
        ether_net_total_bytes_read: i32,
        /// Size of the server's process.
        process_size: i32,
        /// Clients known.
        work_stations: i32,
        /// Clients that called lately.
        active_work_stations: i32,
        /// 0.
        spares: [i32; 8],
        /// The first ten partitions.
        disks: [ViceDisk; 10],
    }

    /// The reply of `GetVolumeStatus` about a volume. Sizes are in KiB.
    #[derive(Copy)]
    struct AfsFetchVolumeStatus {
        /// The volume.
        vid: VolumeId,
        /// Its read-write volume.
        parent_id: VolumeId,
        /// Nonzero if it can be used.
        online: u8,
        /// Nonzero if it is in service.
        in_service: u8,
        /// Nonzero if the administrator has let it into service.
        blessed: u8,
        /// Nonzero if it is damaged.
        needs_salvage: u8,
        /// Its kind.
        kind: VolumeStatusType,
        /// Quota that is reserved.
        min_quota: i32,
        /// Quota; 0 is none.
        max_quota: i32,
        /// Used.
        blocks_in_use: i32,
        /// Free on its partition.
        part_blocks_avail: i32,
        /// Size of its partition.
        part_max_blocks: i32,
    }

    /// The fields that `SetVolumeStatus` sets.
    #[derive(Copy)]
    struct AfsStoreVolumeStatus {
        /// The fields that count.
        mask: StoreVolumeMask,
        /// Quota that is reserved, in KiB.
        min_quota: i32,
        /// Quota in KiB; 0 is none.
        max_quota: i32,
    }

    /// The places of a volume, in the form of `NGetVolumeInfo`.
    struct AfsVolumeInfo {
        /// The volume.
        vid: VolumeId,
        /// Its kind.
        kind: i32,
        /// Ids of the volumes of each kind.
        types: [VolumeId; 5],
        /// The number of servers that follow.
        server_count: u32,
        /// Their addresses.
        servers: [HostAddr; 8],
        /// Their ports.
        ports: [u16; 8],
    }

    /// The places of a volume, in the form of `GetVolumeInfo`.
    struct VolumeInfo {
        /// The volume.
        vid: VolumeId,
        /// Its kind.
        kind: i32,
        /// Ids of the volumes of each kind.
        types: [VolumeId; 5],
        /// The number of servers that follow.
        server_count: u32,
        /// Their addresses.
        servers: [HostAddr; 8],
    }

    /// A snapshot of a volume.
    #[derive(Copy)]
    struct VolumeSnapshot {
        /// The volume by whose id the snapshot is read.
        volume: VolumeId,
        /// The time that it shows.
        made: AfsTime,
    }

    /// A command of `FsCmd`; no server has any.
    struct FsCmdInputs {
        /// The command.
        command: i32,
        /// The file or directory that it is about.
        fid: AfsFid,
        /// Parameters.
        int64s: [i64; 3],
        /// Parameters.
        int32s: [u32; 200],
        /// Parameters.
        chars: CharVec<256>,
    }

    /// The outcome of a command.
    struct FsCmdOutputs {
        /// Its code.
        code: i32,
        /// Status of what it was on.
        status: AfsFetchStatus,
        /// Results.
        int64s: [i64; 3],
        /// Results.
        int32s: [u32; 200],
        /// Results.
        chars: CharVec<256>,
    }
}

interface! {
    /// Procedures that a cache manager calls on a file server.
    Rxafs on service 1 port 7000 {
        /// Bytes of a file below 2 GiB, of a directory or of a symbolic link.
          130 FetchData (fid: AfsFid, pos: i32, length: i32) split from_server
              -> (status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync);
        /// The access list that governs a vnode, as text.
          131 FetchACL (fid: AfsFid) -> (access_list: AfsOpaque, status: AfsFetchStatus, sync: AfsVolSync);
        /// Status of one vnode, with a promise to call back when it changes.
          132 FetchStatus (fid: AfsFid) -> (status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync);
        /// Writes part of a file below 2 GiB.
          133 StoreData (fid: AfsFid, status: AfsStoreStatus, pos: u32, length: u32, file_length: u32)
              split from_client -> (status: AfsFetchStatus, sync: AfsVolSync);
        /// Sets the access list of a directory; called `StoreACL` in OpenAFS 1.8.
          134 OldStoreACL (fid: AfsFid, access_list: AfsOpaque) -> (status: AfsFetchStatus, sync: AfsVolSync);
        /// Sets times, owner, group or mode.
          135 StoreStatus (fid: AfsFid, status: AfsStoreStatus) -> (status: AfsFetchStatus, sync: AfsVolSync);
        /// Takes a file's or symbolic link's name out of a directory; the vnode goes with its last name.
          136 RemoveFile (dir: AfsFid, name: Name) -> (dir_status: AfsFetchStatus, sync: AfsVolSync);
        /// Makes an empty file.
          137 CreateFile (dir: AfsFid, name: Name, status: AfsStoreStatus)
              -> (fid: AfsFid, status: AfsFetchStatus, dir_status: AfsFetchStatus, callback: AfsCallBack,
                  sync: AfsVolSync);
        /// Gives something another name, in the same volume.
          138 Rename (old_dir: AfsFid, old_name: Name, new_dir: AfsFid, new_name: Name)
              -> (old_dir_status: AfsFetchStatus, new_dir_status: AfsFetchStatus, sync: AfsVolSync);
        /// Makes a symbolic link or mount point.
          139 Symlink (dir: AfsFid, name: Name, contents: Path, status: AfsStoreStatus)
              -> (fid: AfsFid, status: AfsFetchStatus, dir_status: AfsFetchStatus, sync: AfsVolSync);
        /// Gives a file one more name in its directory.
          140 Link (dir: AfsFid, name: Name, existing: AfsFid)
              -> (status: AfsFetchStatus, dir_status: AfsFetchStatus, sync: AfsVolSync);
        /// Makes an empty directory.
          141 MakeDir (dir: AfsFid, name: Name, status: AfsStoreStatus)
              -> (fid: AfsFid, status: AfsFetchStatus, dir_status: AfsFetchStatus, callback: AfsCallBack,
                  sync: AfsVolSync);
        /// Removes an empty directory.
          142 RemoveDir (dir: AfsFid, name: Name) -> (dir_status: AfsFetchStatus, sync: AfsVolSync);
        /// `SetLock` of old clients.
          143 OldSetLock (fid: AfsFid, kind: ViceLockType, sync: AfsVolSync);
        /// `ExtendLock` of old clients.
          144 OldExtendLock (fid: AfsFid, sync: AfsVolSync);
        /// `ReleaseLock` of old clients.
          145 OldReleaseLock (fid: AfsFid, sync: AfsVolSync);
        /// The old statistics.
          146 GetStatistics () -> (statistics: ViceStatistics);
        /// Ends promises that the client no longer wants.
          147 GiveUpCallBacks (fids: AfsCbFids, callbacks: AfsCbs);
        /// Tells where a volume is; clients ask the VLDB.
          148 GetVolumeInfo (name: Name) -> (info: VolumeInfo);
        /// Quota, use and messages of a volume.
          149 GetVolumeStatus (volume: VolumeId)
              -> (status: AfsFetchVolumeStatus, name: Name, offline_message: Message, motd: Message);
        /// Sets quota and messages of a volume.
          150 SetVolumeStatus (volume: VolumeId, status: AfsStoreVolumeStatus, name: Name,
                               offline_message: Message, motd: Message);
        /// Is not served.
          151 GetRootVolume () -> (name: Name);
        /// Is not served.
          152 CheckToken (vice_id: ViceId, token: AfsOpaque);
        /// The server's clock: what clients probe with.
          153 GetTime () -> (seconds: u32, useconds: u32);
        /// Tells where a volume is; clients ask the VLDB.
          154 NGetVolumeInfo (name: Name) -> (info: AfsVolumeInfo);
        /// Status of several vnodes: all or nothing.
          155 BulkStatus (fids: AfsCbFids) -> (statuses: AfsBulkStats, callbacks: AfsCbs, sync: AfsVolSync);
        /// Locks a vnode for five minutes.
          156 SetLock (fid: AfsFid, kind: ViceLockType) -> (sync: AfsVolSync);
        /// Locks it for five minutes more.
          157 ExtendLock (fid: AfsFid) -> (sync: AfsVolSync);
        /// Gives one lock back.
          158 ReleaseLock (fid: AfsFid) -> (sync: AfsVolSync);
        /// Version of the extended statistics.
          159 XStatsVersion () -> (version: i32);
        /// A collection of extended statistics.
          160 GetXStats (client_version: i32, collection: i32)
              -> (server_version: i32, time: AfsTime, data: CollData);
        /// Is not served.
          161 Lookup (dir: AfsFid, name: Name)
              -> (fid: AfsFid, status: AfsFetchStatus, dir_status: AfsFetchStatus, callback: AfsCallBack,
                  sync: AfsVolSync);
        /// Makes the server ask anew whose groups somebody has.
          162 FlushCPS (ids: ViceIds, addrs: IpAddrs, spare1: i32) -> (spare2: i32, spare3: i32);
        /// Is not served.
          163 DFSSymlink (dir: AfsFid, name: Name, contents: Path, status: AfsStoreStatus)
              -> (fid: AfsFid, status: AfsFetchStatus, dir_status: AfsFetchStatus, callback: AfsCallBack,
                  sync: AfsVolSync);
        /// Sets the access list of a directory, checked as 134 is not in old servers; not in OpenAFS 1.8.
          164 StoreACL (fid: AfsFid, access_list: AfsOpaque) -> (status: AfsFetchStatus, sync: AfsVolSync);
        /// A command; none is served.
          220 FsCmd (fid: AfsFid, inputs: FsCmdInputs) -> (outputs: FsCmdOutputs);
        /// Status of several vnodes, with a code for each.
        65536 InlineBulkStatus (fids: AfsCbFids)
              -> (statuses: AfsBulkStats, callbacks: AfsCbs, sync: AfsVolSync);
        /// Bytes of a file, of a directory or of a symbolic link.
        65537 FetchData64 (fid: AfsFid, pos: i64, length: i64) split from_server
              -> (status: AfsFetchStatus, callback: AfsCallBack, sync: AfsVolSync);
        /// Writes part of a file.
        65538 StoreData64 (fid: AfsFid, status: AfsStoreStatus, pos: u64, length: u64, file_length: u64)
              split from_client -> (status: AfsFetchStatus, sync: AfsVolSync);
        /// Ends all promises of the calling client.
        65539 GiveUpAllCallBacks ();
        /// Tells what the server can do.
        65540 GetCapabilities () -> (capabilities: CapabilityWords);
        /// Is not served.
        65541 CallBackRxConnAddr (addr: HostAddr);
        /// Counters of 64 bits.
        65542 GetStatistics64 (version: i32) -> (statistics: ViceStatistics64);
        /// The snapshots in which a directory is, for who may look it up. Only servers of ours have it (File service notes 6.9).
   1634099456 GetSnapshots (dir: AfsFid) -> (snapshots: VolumeSnapshots);
    }
}
