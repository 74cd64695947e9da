//! VL, what everybody asks of a volume location server (VLDB notes).

use crate::ids::{HostAddr, PartitionId, VolumeId, VolumeType};
use rxgen::xdr::{CharVec, Uuid, XdrArray, XdrList, XdrString};
use rxgen::{interface, wire_struct};

/// What a file server sends in `RegisterAddrs` that takes calls by rxgk with tokens of the cell-wide key.
pub const REGISTERS_RXGK: i32 = 1;
/// Bytes of a name in an entry, with the NUL.
pub const VL_MAXNAMELEN: usize = 65;
/// Sites in an entry of the oldest form.
pub const OMAXNSERVERS: usize = 8;
/// Sites in an entry.
pub const NMAXNSERVERS: usize = 13;
/// Kinds of volume: an entry has an id for each.
pub const MAXTYPES: usize = 3;
/// Most addresses in a list.
pub const BULKADDRS_MAX: usize = 500;
/// Most entries in a list. The protocol has no limit; this many are 500 MB.
pub const BULK_MAX: usize = 1 << 20;

/// A volume's name, or its id as digits, in requests.
pub type VlName = XdrString<VL_MAXNAMELEN>;
/// Entries of the oldest form.
pub type BulkEntries = XdrArray<VldbEntry, BULK_MAX>;
/// Entries.
pub type NBulkEntries = XdrArray<NvldbEntry, BULK_MAX>;
/// Addresses.
pub type BulkAddrs = XdrArray<HostAddr, BULKADDRS_MAX>;
/// Entries of the oldest form, as a linked list.
pub type VldbList = XdrList<VldbEntry, BULK_MAX>;
/// Entries, as a linked list.
pub type NvldbList = XdrList<NvldbEntry, BULK_MAX>;

wire_bits! {
    /// The `flags` of an entry (VLDB notes 2), and the operation in `SetLock`.
    EntryFlags(i32) {
        /// The lock of `vos move`.
        0x10 OP_MOVE;
        /// The lock of `vos release`.
        0x20 OP_RELEASE;
        /// The lock of `vos backup`.
        0x40 OP_BACKUP;
        /// The lock of `vos remove` and `vos addsite`.
        0x80 OP_DELETE;
        /// The lock of `vos dump` and `vos restore`.
        0x100 OP_DUMP;
        /// There is a read-write volume.
        0x1000 RW_EXISTS;
        /// There are read-only volumes.
        0x2000 RO_EXISTS;
        /// There is a backup volume.
        0x4000 BACK_EXISTS;
        /// A fileset of DFS.
        0x8000 DFS_FILESET;
    }

    /// The volumes at a site (VLDB notes 2).
    SiteFlags(i32) {
        /// Has the newest release, in one that is not complete.
        0x1 NEW_REP_SITE;
        /// The read-only volume.
        0x2 RO_VOL;
        /// The read-write volume, and the backup volume if there is one.
        0x4 RW_VOL;
        /// The backup volume.
        0x8 BACK_VOL;
        /// The server is named by its UUID.
        0x10 UUID;
        /// Nothing has been released to it.
        0x20 DONT_USE;
        /// A replica of the read-write volume.
        0x40 RW_REPLICA;
    }

    /// The locks that `ReleaseLock` and `ReplaceEntry` release (VLDB notes 2).
    ReleaseType(i32) {
        /// The time of the lock.
        1 TIMESTAMP;
        /// The operation.
        2 OPCODE;
        /// The id of the locker.
        4 AFSID;
    }

    /// The attributes by which a list is asked for.
    ListMask(u32) {
        /// `server`.
        0x1 SERVER;
        /// `partition`.
        0x2 PARTITION;
        /// `volumeid`.
        0x8 VOLUME_ID;
        /// `flag`.
        0x10 FLAG;
    }

    /// The attribute by which an address list is asked for: exactly one.
    AddrMask(i32) {
        /// `ipaddr`.
        0x1 IPADDR;
        /// `index`, from 1.
        0x2 INDEX;
        /// `uuid`.
        0x4 UUID;
    }

    /// The fields of an entry that `UpdateEntry` is to change.
    UpdateMask(u32) {
        /// `name`.
        0x1 VOLUME_NAME;
        /// `flags`.
        0x4 FLAGS;
        /// `read_only_id`.
        0x8 READ_ONLY_ID;
        /// `backup_id`.
        0x10 BACKUP_ID;
        /// The sites.
        0x20 REP_SITES;
        /// `clone_id`.
        0x80 CLONE_ID;
        /// The index by name is to be made again.
        0x100 VOLUME_NAME_HASH;
        /// The index by id is to be made again.
        0x200 RW_ID;
    }

    /// The fields of a site that `UpdateEntry` is to change.
    RepSiteMask(u32) {
        /// Take it out.
        0x100 DELETE;
        /// Add it.
        0x200 ADD;
        /// Change its server.
        0x400 MOD_SERVER;
        /// Change its partition.
        0x800 MOD_PARTITION;
        /// Change its flags.
        0x1000 MOD_FLAGS;
    }
}

impl ReleaseType {
    /// All of the lock, as usual.
    pub const ALL: Self = Self(7);
}

impl EntryFlags {
    /// The bits that are locks.
    pub const OPERATIONS: Self = Self(0x1f0);
}

wire_struct! {
    /// The fields that `UpdateEntry` changes.
    struct VldbUpdateEntry {
        /// The fields that count.
        mask: UpdateMask,
        /// New name.
        name: CharVec<VL_MAXNAMELEN>,
        /// 0.
        spares3: i32,
        /// New flags.
        flags: EntryFlags,
        /// New id of the read-only volume.
        read_only_id: VolumeId,
        /// New id of the backup volume.
        backup_id: VolumeId,
        /// New id of the clone in a release.
        clone_id: VolumeId,
        /// The number of the following that count.
        n_modified_repsites: i32,
        /// The changes at each.
        repsites_mask: [RepSiteMask; OMAXNSERVERS],
        /// The server it is at.
        repsites_target_server: [HostAddr; OMAXNSERVERS],
        /// The partition it is on.
        repsites_target_part: [PartitionId; OMAXNSERVERS],
        /// The server to be.
        repsites_new_server: [HostAddr; OMAXNSERVERS],
        /// The partition to be.
        repsites_new_part: [PartitionId; OMAXNSERVERS],
        /// The flags to be.
        repsites_new_flags: [SiteFlags; OMAXNSERVERS],
    }

    /// The attributes by which a list is asked for.
    #[derive(Copy)]
    struct VldbListByAttributes {
        /// The fields that count.
        mask: ListMask,
        /// A server.
        server: HostAddr,
        /// A partition.
        partition: PartitionId,
        /// 0.
        spares3: i32,
        /// A volume.
        volumeid: VolumeId,
        /// Flags of the entry; one of them must be set.
        flag: EntryFlags,
    }

    /// An entry of the oldest form, 384 bytes: eight sites.
    struct VldbEntry {
        /// The volume's name.
        name: CharVec<VL_MAXNAMELEN>,
        /// 0.
        spares3: i32,
        /// The number of sites that count.
        n_servers: i32,
        /// The sites' servers.
        server_number: [HostAddr; OMAXNSERVERS],
        /// The sites' partitions.
        server_partition: [PartitionId; OMAXNSERVERS],
        /// The flags of each.
        server_flags: [SiteFlags; OMAXNSERVERS],
        /// Ids of the read-write, the read-only and the backup volume.
        volume_id: [VolumeId; MAXTYPES],
        /// The clone in a release.
        clone_id: VolumeId,
        /// The volumes that exist, and the lock's owner.
        flags: EntryFlags,
    }

    /// An entry, 476 bytes: thirteen sites, servers by their first address.
    struct NvldbEntry {
        /// The volume's name.
        name: CharVec<VL_MAXNAMELEN>,
        /// The number of sites that count.
        n_servers: i32,
        /// The sites' servers.
        server_number: [HostAddr; NMAXNSERVERS],
        /// The sites' partitions.
        server_partition: [PartitionId; NMAXNSERVERS],
        /// The flags of each.
        server_flags: [SiteFlags; NMAXNSERVERS],
        /// Ids of the read-write, the read-only and the backup volume.
        volume_id: [VolumeId; MAXTYPES],
        /// The clone in a release.
        clone_id: VolumeId,
        /// The volumes that exist, and the lock's owner.
        flags: EntryFlags,
        /// In lists, which of the sites was asked for.
        match_index: i32,
        /// 0.
        spares: [i32; 8],
    }

    /// The attributes by which an address list is asked for.
    #[derive(Copy)]
    struct ListAddrByAttributes {
        /// The field that counts.
        mask: AddrMask,
        /// An address.
        ipaddr: HostAddr,
        /// A place in the table of servers, from 1.
        index: i32,
        /// 0.
        spare1: i32,
        /// A server.
        uuid: Uuid,
    }

    /// An entry, 1048 bytes: thirteen sites, servers by UUID.
    struct UvldbEntry {
        /// The volume's name.
        name: CharVec<VL_MAXNAMELEN>,
        /// The number of sites that count.
        n_servers: i32,
        /// The sites' servers; without [`SiteFlags::UUID`] the address is in `time_low`.
        server_number: [Uuid; NMAXNSERVERS],
        /// Changes of the server's addresses.
        server_unique: [i32; NMAXNSERVERS],
        /// The sites' partitions.
        server_partition: [PartitionId; NMAXNSERVERS],
        /// The flags of each.
        server_flags: [SiteFlags; NMAXNSERVERS],
        /// Ids of the read-write, the read-only and the backup volume.
        volume_id: [VolumeId; MAXTYPES],
        /// The clone in a release.
        clone_id: VolumeId,
        /// The volumes that exist, and the lock's owner.
        flags: EntryFlags,
        /// In lists, which of the sites was asked for.
        match_index: i32,
        /// 0.
        spares: [i32; 8],
    }

    /// The beginning of OpenAFS's database.
    #[derive(Copy)]
    struct VitalVlHeader {
        /// Version of the format.
        vldb_version: i32,
        /// Bytes of the header.
        header_size: i32,
        /// A free entry.
        free_ptr: i32,
        /// The end of the file.
        eof_ptr: i32,
        /// Entries made.
        allocs: i32,
        /// Entries removed.
        frees: i32,
        /// The next id that will be given.
        max_volume_id: VolumeId,
        /// Entries with a volume of each kind.
        total_entries: [i32; MAXTYPES],
    }

    /// Calls so far.
    struct VldStats {
        /// The time when the server was started.
        start_time: u32,
        /// Calls by opcode, less 501.
        requests: [i32; 50],
        /// The failed ones among these.
        aborts: [i32; 50],
        /// 0.
        reserved: [i32; 5],
    }

    /// Is not used.
    #[derive(Copy, Default)]
    struct VlCallBack {
        /// 0.
        version: u32,
        /// 0.
        expiration_time: u32,
        /// 0.
        kind: u32,
        /// 0.
        handle: u32,
    }
}

interface! {
    /// Procedures that everybody calls on a volume location server.
    Vl on service 52 port 7003 {
        /// Makes an entry.
        501 CreateEntry (entry: VldbEntry);
        /// Removes an entry.
        502 DeleteEntry (volid: VolumeId, kind: VolumeType);
        /// An entry, by id.
        503 GetEntryByID (volid: VolumeId, kind: VolumeType) -> (entry: VldbEntry);
        /// An entry, by name.
        504 GetEntryByNameO (name: VlName) -> (entry: VldbEntry);
        /// Takes ids for new volumes.
        505 GetNewVolumeId (bump_count: u32) -> (new_volid: VolumeId);
        /// Replaces an entry.
        506 ReplaceEntry (volid: VolumeId, kind: VolumeType, entry: VldbEntry, release: ReleaseType);
        /// Changes fields of an entry.
        507 UpdateEntry (volid: VolumeId, kind: VolumeType, update: VldbUpdateEntry, release: ReleaseType);
        /// Locks an entry.
        508 SetLock (volid: VolumeId, kind: VolumeType, operation: EntryFlags);
        /// Unlocks an entry.
        509 ReleaseLock (volid: VolumeId, kind: VolumeType, release: ReleaseType);
        /// The entry after an index.
        510 ListEntry (previous_index: i32) -> (count: i32, next_index: i32, entry: VldbEntry);
        /// Entries by attributes.
        511 ListAttributes (attributes: VldbListByAttributes) -> (n_entries: i32, entries: BulkEntries);
        /// Entries by attributes, as a linked list.
        512 LinkedList (attributes: VldbListByAttributes) -> (n_entries: i32, entries: VldbList);
        /// Calls so far.
        513 GetStats () -> (stats: VldStats, header: VitalVlHeader);
        /// Asks whether the server is there.
        514 ProbeServer ();
        /// The table of servers as it is.
        515 GetAddrs (handle: i32, spare2: i32) -> (spare3: VlCallBack, n_entries: i32, addrs: BulkAddrs);
        /// Gives a server another address.
        516 ChangeAddr (old: HostAddr, new: HostAddr);
        /// Makes an entry.
        517 CreateEntryN (entry: NvldbEntry);
        /// An entry, by id.
        518 GetEntryByIDN (volid: VolumeId, kind: VolumeType) -> (entry: NvldbEntry);
        /// An entry, by name.
        519 GetEntryByNameN (name: VlName) -> (entry: NvldbEntry);
        /// Replaces an entry.
        520 ReplaceEntryN (volid: VolumeId, kind: VolumeType, entry: NvldbEntry, release: ReleaseType);
        /// The entry after an index.
        521 ListEntryN (previous_index: i32) -> (count: i32, next_index: i32, entry: NvldbEntry);
        /// Entries by attributes.
        522 ListAttributesN (attributes: VldbListByAttributes) -> (n_entries: i32, entries: NBulkEntries);
        /// Entries by attributes, as a linked list.
        523 LinkedListN (attributes: VldbListByAttributes) -> (n_entries: i32, entries: NvldbList);
        /// Changes fields of an entry.
        524 UpdateEntryByName (name: VlName, update: VldbUpdateEntry, release: ReleaseType);
        /// An entry with UUIDs, by name.
        527 GetEntryByNameU (name: VlName) -> (entry: UvldbEntry);
        /// A file server says which addresses it has. Of ours, `spare1` is [`REGISTERS_RXGK`] if it has rxgk; others send 0, and nobody else reads it.
        532 RegisterAddrs (uuid: Uuid, spare1: i32, addrs: BulkAddrs);
        /// The addresses of a server.
        533 GetAddrsU (by: ListAddrByAttributes)
            -> (uuid: Uuid, uniquifier: i32, n_entries: i32, addrs: BulkAddrs);
        /// Entries by attributes and a regular expression for the name.
        534 ListAttributesN2 (attributes: VldbListByAttributes, name: VlName, start_index: i32)
            -> (n_entries: i32, entries: NBulkEntries, next_start_index: i32);
    }
}
