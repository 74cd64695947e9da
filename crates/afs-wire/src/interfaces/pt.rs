//! PR, what everybody asks of a protection server (PTDB notes).

use crate::ids::{HostAddr, ViceId};
use rxgen::xdr::{CharVec, XdrArray, XdrString};
use rxgen::{interface, wire_struct};

/// Bytes of a name, with the NUL.
pub const PR_MAXNAMELEN: usize = 64;
/// Most names, ids or entries in one list (`PR_MAXLIST`).
pub const PR_MAXLIST: usize = 500_000;

/// A name in requests.
pub type PrName = XdrString<PR_MAXNAMELEN>;
/// A name in lists and entries.
pub type PrNameVec = CharVec<PR_MAXNAMELEN>;
/// Names.
pub type NameList = XdrArray<PrNameVec, PR_MAXLIST>;
/// Ids.
pub type IdList = XdrArray<ViceId, PR_MAXLIST>;
/// Entries.
pub type PrEntries = XdrArray<PrListEntry, PR_MAXLIST>;

wire_bits! {
    /// The right to see and change an entry (PTDB notes 4).
    Privacy(i32) {
        /// Members may take others out.
        0x01 REMOVE_MEM;
        /// Members may put others in.
        0x02 ADD_MEM;
        /// Anyone may put others in.
        0x04 ADD_ANY;
        /// Members may see the members.
        0x08 MEMBER_MEM;
        /// Anyone may see the members.
        0x10 MEMBER_ANY;
        /// Anyone may see what it owns.
        0x20 OWNED_ANY;
        /// Members may see the entry.
        0x40 STATUS_MEM;
        /// Anyone may see the entry.
        0x80 STATUS_ANY;
    }

    /// The fields that `SetFieldsEntry` sets (PTDB notes 4).
    SetFieldsMask(i32) {
        /// All of `flags`.
        0xff ALL_FLAGS;
        /// `nusers`.
        0x4000_0000 NUSERS;
    }

    /// The fields that `UpdateEntry` sets.
    PrUpdateMask(u32) {
        /// `name`.
        0x1 NAME;
        /// `id`.
        0x2 ID;
        /// `flags`.
        0x4 FLAGS;
        /// The index by name is to be made again.
        0x8 NAME_HASH;
        /// The index by id is to be made again.
        0x10 ID_HASH;
    }

    /// The entries that `ListEntries` lists.
    ListEntriesFlags(i32) {
        /// Users.
        1 USERS;
        /// Groups.
        2 GROUPS;
    }
}

impl SetFieldsMask {
    /// `ngroups`: how many groups the user may make.
    pub const NGROUPS: Self = Self(i32::MIN);
}

/// The `flag` of `NewEntry` for a user.
pub const PRUSER: i32 = 0;
/// The `flag` of `NewEntry` for a group.
pub const PRGRP: i32 = 2;

wire_struct! {
    /// An entry as it is in OpenAFS's database.
    struct PrDebugEntry {
        /// Kind and privacy.
        flags: i32,
        /// The id.
        id: ViceId,
        /// 0.
        cellid: i32,
        /// The next of the same entry.
        next: i32,
        /// 0.
        reserved: [i32; 5],
        /// Groups or members.
        entries: [ViceId; 10],
        /// The next with the same hash of the id.
        next_id: i32,
        /// The next with the same hash of the name.
        next_name: i32,
        /// The owner.
        owner: ViceId,
        /// The creator.
        creator: ViceId,
        /// Groups it may make.
        ngroups: i32,
        /// Foreign users it may make.
        nusers: i32,
        /// Groups or members.
        count: i32,
        /// Is not used.
        instance: i32,
        /// The first entry that it owns.
        owned: i32,
        /// The next with the same owner.
        next_owned: i32,
        /// Is not used.
        parent: i32,
        /// Is not used.
        sibling: i32,
        /// Is not used.
        child: i32,
        /// The name.
        name: PrNameVec,
    }

    /// An entry, 304 bytes.
    struct PrCheckEntry {
        /// The right to see and change it.
        flags: Privacy,
        /// The id.
        id: ViceId,
        /// The owner.
        owner: ViceId,
        /// The creator.
        creator: ViceId,
        /// Groups it may make.
        ngroups: i32,
        /// Foreign users it may make.
        nusers: i32,
        /// Groups or members.
        count: i32,
        /// 0.
        reserved: [i32; 5],
        /// The name.
        name: PrNameVec,
    }

    /// An entry in a list, of the same form as a [`PrCheckEntry`].
    struct PrListEntry {
        /// The right to see and change it.
        flags: Privacy,
        /// The id.
        id: ViceId,
        /// The owner.
        owner: ViceId,
        /// The creator.
        creator: ViceId,
        /// Groups it may make.
        ngroups: i32,
        /// Foreign users it may make.
        nusers: i32,
        /// Groups or members.
        count: i32,
        /// 0.
        reserved: [i32; 5],
        /// The name.
        name: PrNameVec,
    }

    /// The fields that `UpdateEntry` sets.
    struct PrUpdateEntry {
        /// The fields that count.
        mask: PrUpdateMask,
        /// New flags.
        flags: i32,
        /// New id.
        id: ViceId,
        /// New owner.
        owner: ViceId,
        /// New creator.
        creator: ViceId,
        /// Groups it may make.
        ngroups: i32,
        /// Foreign users it may make.
        nusers: i32,
        /// Groups or members.
        count: i32,
        /// 0.
        reserved: [i32; 5],
        /// New name.
        name: PrNameVec,
    }
}

interface! {
    /// Procedures that everybody calls on a protection server.
    Pr on service 73 port 7002 {
        /// Makes an entry with a given id.
        500 INewEntry (name: PrName, id: ViceId, owner: ViceId);
        /// Tells where an entry is in the database.
        501 WhereIsIt (id: ViceId) -> (pos: i32);
        /// An entry of the database, by its place.
        502 DumpEntry (pos: i32) -> (entry: PrDebugEntry);
        /// Puts a user into a group.
        503 AddToGroup (uid: ViceId, gid: ViceId);
        /// Ids of names; 32766 for each that does not exist.
        504 NameToID (names: NameList) -> (ids: IdList);
        /// Names of ids; digits for each that does not exist.
        505 IDToName (ids: IdList) -> (names: NameList);
        /// Removes an entry.
        506 Delete (id: ViceId);
        /// Takes a user out of a group.
        507 RemoveFromGroup (id: ViceId, gid: ViceId);
        /// All that a user is, on access lists.
        508 GetCPS (id: ViceId) -> (ids: IdList, over: i32);
        /// Makes an entry.
        509 NewEntry (name: PrName, flag: i32, owner: ViceId) -> (id: ViceId);
        /// The highest id of a user, the lowest of a group.
        510 ListMax () -> (uid: ViceId, gid: ViceId);
        /// Sets one of these.
        511 SetMax (id: ViceId, gflag: i32);
        /// An entry.
        512 ListEntry (id: ViceId) -> (entry: PrCheckEntry);
        /// Changes name, owner or id of an entry.
        513 ChangeEntry (id: ViceId, name: PrName, owner: ViceId, new_id: ViceId);
        /// The groups of a user, the members of a group.
        514 ListElements (id: ViceId) -> (ids: IdList, over: i32);
        /// Tells whether this user is in this group.
        515 IsAMemberOf (uid: ViceId, gid: ViceId) -> (flag: i32);
        /// Sets privacy and quotas of an entry.
        516 SetFieldsEntry (id: ViceId, mask: SetFieldsMask, flags: i32, ngroups: i32, nusers: i32, spare1: i32,
                            spare2: i32);
        /// Lists what an entry owns, in parts.
        517 ListOwned (id: ViceId, last: i32) -> (ids: IdList, last: i32);
        /// All that a user at a host is.
        518 GetCPS2 (id: ViceId, host: HostAddr) -> (ids: IdList, over: i32);
        /// The groups of a host.
        519 GetHostCPS (host: HostAddr) -> (ids: IdList, over: i32);
        /// Repairs an entry.
        520 UpdateEntry (id: ViceId, name: PrName, update: PrUpdateEntry);
        /// Entries, in parts.
        521 ListEntries (flags: ListEntriesFlags, start_index: i32)
            -> (entries: PrEntries, next_start_index: i32);
        /// The groups that a group is in.
        530 ListSuperGroups (id: ViceId) -> (ids: IdList, over: i32);
    }
}
