//! What `admin_services` starts from: a call of every procedure, by an administrator and by others, and what tools do with
//! volumes, users and groups.

use afar_fuzz::targets::admin_services::{MAX_CALLS, RW, SERVICES, encode_call, entry, numbers_of};
use afs_wire::afsvol::{self, AfsVol, AttachFlags};
use afs_wire::bos::{self, Bozo};
use afs_wire::ids::{AfsTime, HostAddr, PartitionId, TransId, ViceId, VolumeId, VolumeType};
use afs_wire::pt::{self, Pr};
use afs_wire::ubik::vote::{self, Vote};
use afs_wire::vl::{self, Vl};
use rxgen::xdr::{CharVec, Uuid, XdrArray, XdrString};
use rxgen::{Interface, Rpc};

/// The numbers of callers in the target's table.
const NOBODY: usize = 0;
const CELL: usize = 1;
const ADMIN: usize = 2;
const ALICE: usize = 3;

const A: PartitionId = PartitionId(0);

pub(crate) fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (caller, fill) in [(CELL, 0u32), (ADMIN, 1), (ALICE, 1), (NOBODY, 0)] {
        inputs.extend(sweep(caller, fill));
    }
    inputs.extend([
        volumes(),
        clones(),
        listings(),
        entries(),
        sites(),
        servers(),
        users(),
        groups(),
        fields(),
    ]);
    inputs.push(overseer());
    inputs
}

/// Every procedure of every service, its arguments of their shortest form and all of one number.
fn sweep(caller: usize, fill: u32) -> Vec<Vec<u8>> {
    let procedures = SERVICES.iter().enumerate().flat_map(|(service, (_, rpcs))| {
        rpcs.iter().enumerate().map(move |(which, rpc)| (service, which, rpc.args_size.min))
    });
    let calls: Vec<_> = procedures
        .map(|(service, which, bytes)| {
            let words = bytes.div_ceil(4) + 1;
            let arguments: Vec<u8> = std::iter::repeat_n(fill.to_be_bytes(), words).flatten().collect();
            encode_call(service, caller, which, &arguments)
        })
        .collect();
    calls.chunks(MAX_CALLS).map(<[Vec<u8>]>::concat).collect()
}

fn call<I: Interface, R: Rpc>(caller: usize, args: &R) -> Vec<u8> {
    let (service, which) = numbers_of::<I, R>();
    encode_call(service, caller, which, &rxgen::xdr::to_bytes(args))
}

fn vol<R: Rpc>(args: R) -> Vec<u8> {
    call::<AfsVol, R>(CELL, &args)
}

fn location<R: Rpc>(args: R) -> Vec<u8> {
    call::<Vl, R>(CELL, &args)
}

fn protection<R: Rpc>(caller: usize, args: R) -> Vec<u8> {
    call::<Pr, R>(caller, &args)
}

fn text<const N: usize>(text: &str) -> XdrString<N> {
    XdrString::new(text).expect("it is short")
}

/// As `vos create`, `vos rename` and `vos remove`.
fn volumes() -> Vec<u8> {
    let volid = VolumeId(RW.0 + 9);
    let kind = VolumeType::READ_WRITE;
    let trans = TransId(1);
    let none = VolumeId(0);
    let parent = volid;
    [
        vol(afsvol::CreateVolume { partition: A, name: text("new"), kind, parent, volid }),
        vol(afsvol::SetInfo { trans, info: info(volid) }),
        vol(afsvol::SetFlags { trans, flags: afsvol::VolumeFlags(0) }),
        vol(afsvol::EndTrans { trans }),
        vol(afsvol::TransCreate { volume: volid, partition: A, flags: AttachFlags::OFFLINE }),
        vol(afsvol::SetIdsTypes {
            trans: TransId(2),
            name: text("other"),
            kind,
            parent_id: volid,
            clone_id: none,
            backup_id: none,
        }),
        vol(afsvol::SetDate { trans: TransId(2), new_date: AfsTime(77) }),
        vol(afsvol::GetName { trans: TransId(2) }),
        vol(afsvol::GetStatus { trans: TransId(2) }),
        vol(afsvol::GetFlags { trans: TransId(2) }),
        vol(afsvol::DeleteVolume { trans: TransId(2) }),
        vol(afsvol::EndTrans { trans: TransId(2) }),
        vol(afsvol::NukeVolume { partition: A, volid: RW }),
    ]
    .concat()
}

/// As `vos release` and `vos backup`, at one site.
fn clones() -> Vec<u8> {
    let trans = TransId(1);
    let (backup, again) = (VolumeId(RW.0 + 2), VolumeId(RW.0 + 1));
    let new_type = VolumeType::BACKUP;
    let purge_vol = VolumeId(0);
    [
        vol(afsvol::TransCreate { volume: RW, partition: A, flags: AttachFlags::BUSY }),
        vol(afsvol::Clone { trans, purge_vol, new_type, new_name: text("fuzz.backup"), new_vol: backup }),
        vol(afsvol::TransCreate { volume: backup, partition: A, flags: AttachFlags::OFFLINE }),
        vol(afsvol::SetFlags { trans: TransId(2), flags: afsvol::VolumeFlags(0) }),
        vol(afsvol::EndTrans { trans: TransId(2) }),
        vol(afsvol::ReClone { trans, clone_id: again }),
        vol(afsvol::Clone { trans, purge_vol: again, new_type, new_name: text("x"), new_vol: VolumeId(0) }),
        vol(afsvol::GetSize { from_trans: trans, from_date: AfsTime(0) }),
        vol(afsvol::Monitor {}),
        vol(afsvol::DeleteVolume { trans }),
        vol(afsvol::EndTrans { trans }),
    ]
    .concat()
}

/// As `vos listvol`, `vos examine` and `vos partinfo`.
fn listings() -> Vec<u8> {
    [
        vol(afsvol::XListPartitions {}),
        vol(afsvol::ListVolumes { partition: A, flags: 0 }),
        vol(afsvol::ListVolumes { partition: A, flags: 1 }),
        vol(afsvol::XListVolumes { partition: A, flags: 1 }),
        vol(afsvol::ListOneVolume { partition: A, volid: RW }),
        vol(afsvol::XListOneVolume { partition: A, volid: RW }),
        vol(afsvol::XListOneVolume { partition: PartitionId(1), volid: RW }),
        vol(afsvol::PartitionInfo { name: text("/vicepa") }),
        vol(afsvol::PartitionInfo64 { name: text("/vicepb") }),
        vol(afsvol::PartitionInfo { name: text("/vicepzzz") }),
        call::<Vote, _>(NOBODY, &vote::XDebug {}),
    ]
    .concat()
}

fn info(volid: VolumeId) -> afsvol::VolintInfo {
    let same = afsvol::UNCHANGED;
    let date = AfsTime(same as u32);
    afsvol::VolintInfo {
        name: CharVec([0; afsvol::VNAMESIZE]),
        volid,
        kind: VolumeType::READ_WRITE,
        backup_id: VolumeId(0),
        parent_id: VolumeId(0),
        clone_id: VolumeId(0),
        status: 0,
        copy_date: date,
        in_use: 0,
        needs_salvaged: 0,
        destroy_me: 0,
        creation_date: date,
        access_date: date,
        update_date: AfsTime(5),
        backup_date: date,
        day_use: 3,
        filecount: same,
        maxquota: 100,
        size: same,
        flags: 0,
        spare0: same,
        spare1: same,
        spare2: 9,
        spare3: same,
    }
}

/// As `vos` does with an entry.
fn entries() -> Vec<u8> {
    let id = VolumeId(RW.0 + 12);
    let (kind, name) = (VolumeType::READ_WRITE, || text("a.volume"));
    let release = vl::ReleaseType(7);
    [
        location(vl::GetNewVolumeId { bump_count: 3 }),
        location(vl::CreateEntryN { entry: entry("a.volume", id) }),
        location(vl::SetLock { volid: id, kind, operation: vl::EntryFlags(0x20) }),
        location(vl::ReplaceEntryN { volid: id, kind, entry: entry("b.volume", id), release }),
        location(vl::ReleaseLock { volid: id, kind, release }),
        location(vl::GetEntryByNameN { name: name() }),
        location(vl::GetEntryByNameU { name: name() }),
        location(vl::GetEntryByNameO { name: text("root.cell.readonly") }),
        location(vl::GetEntryByIDN { volid: id, kind: VolumeType::ANY }),
        location(vl::GetEntryByID { volid: RW, kind }),
        location(vl::ListEntryN { previous_index: 0 }),
        location(vl::ListEntry { previous_index: 1 }),
        location(vl::DeleteEntry { volid: id, kind }),
    ]
    .concat()
}

/// Lists by each attribute, and the old form of changes.
fn sites() -> Vec<u8> {
    let by = |mask| vl::VldbListByAttributes {
        mask: vl::ListMask(mask),
        server: HostAddr(0x0a00_0001),
        partition: A,
        spares3: 0,
        volumeid: RW,
        flag: vl::EntryFlags::RW_EXISTS,
    };
    let update = vl::VldbUpdateEntry {
        mask: vl::UpdateMask(0x3ff),
        name: CharVec::from_text("renamed").expect("it is short"),
        spares3: 0,
        flags: vl::EntryFlags::RW_EXISTS,
        read_only_id: VolumeId(RW.0 + 20),
        backup_id: VolumeId(RW.0 + 21),
        clone_id: VolumeId(RW.0 + 22),
        n_modified_repsites: 1,
        repsites_mask: [vl::RepSiteMask(0x10); vl::OMAXNSERVERS],
        repsites_target_server: [HostAddr(0x0a00_0001); vl::OMAXNSERVERS],
        repsites_target_part: [A; vl::OMAXNSERVERS],
        repsites_new_server: [HostAddr(0x0a00_0002); vl::OMAXNSERVERS],
        repsites_new_part: [A; vl::OMAXNSERVERS],
        repsites_new_flags: [vl::SiteFlags::RO_VOL; vl::OMAXNSERVERS],
    };
    let (name, release) = (text("root.cell"), vl::ReleaseType(0));
    [
        location(vl::ListAttributes { attributes: by(1) }),
        location(vl::ListAttributesN { attributes: by(3) }),
        location(vl::LinkedList { attributes: by(8) }),
        location(vl::LinkedListN { attributes: by(16) }),
        location(vl::ListAttributesN2 { attributes: by(0), name: text("[a-u].*\\.(x|y)*"), start_index: 0 }),
        location(vl::ListAttributesN2 { attributes: by(0), name: text("user.*"), start_index: 0 }),
        location(vl::UpdateEntry {
            volid: RW,
            kind: VolumeType::READ_WRITE,
            update: update.clone(),
            release,
        }),
        location(vl::UpdateEntryByName { name, update, release }),
    ]
    .concat()
}

/// As file servers and `vos changeaddr` do.
fn servers() -> Vec<u8> {
    let uuid = Uuid { time_low: 9, ..Uuid::default() };
    let addrs = XdrArray::new(vec![HostAddr(0x0a00_0011), HostAddr(0x0a00_0012)]).expect("two fit");
    let by = |mask, index| vl::ListAddrByAttributes {
        mask: vl::AddrMask(mask),
        ipaddr: HostAddr(0x0a00_0011),
        index,
        spare1: 0,
        uuid,
    };
    let (old, new) = (HostAddr(0x0a00_0001), HostAddr(0x0a00_0021));
    [
        location(vl::RegisterAddrs { uuid, spare1: 0, addrs }),
        location(vl::GetAddrsU { by: by(1, 0) }),
        location(vl::GetAddrsU { by: by(2, 1) }),
        location(vl::GetAddrsU { by: by(4, 0) }),
        location(vl::GetAddrs { handle: 0, spare2: 0 }),
        location(vl::ChangeAddr { old, new }),
        location(vl::ChangeAddr { old: HostAddr(0x0a00_0011), new: HostAddr(0xffff_ffff) }),
        location(vl::GetStats {}),
        location(vl::ProbeServer {}),
    ]
    .concat()
}

/// As `pts` does with users.
fn users() -> Vec<u8> {
    let names: Vec<_> =
        ["alice", "bob", "nobody"].iter().map(|n| CharVec::from_text(n).expect("short")).collect();
    let (name, id) = (|| text("dora"), ViceId(4));
    [
        protection(ADMIN, pt::NewEntry { name: name(), flag: pt::PRUSER, owner: ViceId(0) }),
        protection(ADMIN, pt::INewEntry { name: text("emil"), id: ViceId(77), owner: ViceId(0) }),
        protection(ADMIN, pt::NameToID { names: XdrArray::new(names).expect("three fit") }),
        protection(NOBODY, pt::IDToName { ids: XdrArray::new(vec![id, ViceId(-9)]).expect("two fit") }),
        protection(ADMIN, pt::ChangeEntry { id, name: text("eve"), owner: ViceId(0), new_id: ViceId(5) }),
        protection(ADMIN, pt::ListEntry { id: ViceId(5) }),
        protection(ALICE, pt::GetCPS { id: ViceId(2) }),
        protection(CELL, pt::GetCPS2 { id: ViceId(2), host: HostAddr(0x0a00_0002) }),
        protection(CELL, pt::GetHostCPS { host: HostAddr(0x0a00_0002) }),
        protection(ADMIN, pt::SetMax { id: ViceId(500), gflag: 0 }),
        protection(ADMIN, pt::ListMax {}),
        protection(ADMIN, pt::Delete { id: ViceId(5) }),
        protection(ADMIN, pt::ListEntries { flags: pt::ListEntriesFlags(3), start_index: 0 }),
    ]
    .concat()
}

/// As `pts` does with groups, and with groups in groups.
fn groups() -> Vec<u8> {
    let (friends, staff) = (ViceId(-206), ViceId(-207));
    let owner = ViceId(2);
    [
        protection(ALICE, pt::NewEntry { name: text("alice:g"), flag: pt::PRGRP, owner }),
        protection(ALICE, pt::AddToGroup { uid: ViceId(3), gid: ViceId(-208) }),
        protection(CELL, pt::AddToGroup { uid: friends, gid: staff }),
        protection(CELL, pt::AddToGroup { uid: staff, gid: friends }),
        protection(ALICE, pt::ListElements { id: friends }),
        protection(CELL, pt::ListSuperGroups { id: friends }),
        protection(ALICE, pt::IsAMemberOf { uid: ViceId(3), gid: staff }),
        protection(CELL, pt::GetCPS { id: ViceId(3) }),
        protection(ALICE, pt::RemoveFromGroup { id: ViceId(3), gid: friends }),
        protection(ALICE, pt::ListOwned { id: owner, last: 0 }),
        protection(ALICE, pt::Delete { id: ViceId(-208) }),
        protection(CELL, pt::Delete { id: staff }),
    ]
    .concat()
}

/// Privacy and quotas, and what looks at the database as it would lie in a file.
fn fields() -> Vec<u8> {
    let mask = pt::SetFieldsMask::NGROUPS | pt::SetFieldsMask::NUSERS | pt::SetFieldsMask::ALL_FLAGS;
    let update = pt::PrUpdateEntry {
        mask: pt::PrUpdateMask(7),
        flags: 0,
        id: ViceId(70),
        owner: ViceId(2),
        creator: ViceId(2),
        ngroups: 1,
        nusers: 1,
        count: 0,
        reserved: [0; 5],
        name: CharVec::from_text("bert").expect("it is short"),
    };
    let id = ViceId(3);
    let set = pt::SetFieldsEntry {
        id: ViceId(-206),
        mask,
        flags: 0xa9,
        ngroups: 3,
        nusers: 4,
        spare1: 0,
        spare2: 0,
    };
    [
        protection(ADMIN, set.clone()),
        protection(ALICE, set),
        protection(ADMIN, pt::WhereIsIt { id }),
        protection(ADMIN, pt::DumpEntry { pos: 0x10000 + 192 }),
        protection(ADMIN, pt::DumpEntry { pos: 64 }),
        protection(ADMIN, pt::UpdateEntry { id, name: text("bob"), update: update.clone() }),
        protection(ADMIN, pt::UpdateEntry { id: ViceId(0), name: text("alice"), update }),
    ]
    .concat()
}

/// As `bos status -long` and others do.
fn overseer() -> Vec<u8> {
    let instance = || text("dafs");
    [
        call::<Bozo, _>(NOBODY, &bos::EnumerateInstance { index: 1 }),
        call::<Bozo, _>(NOBODY, &bos::GetStatus { instance: instance() }),
        call::<Bozo, _>(NOBODY, &bos::GetInstanceInfo { instance: instance() }),
        call::<Bozo, _>(NOBODY, &bos::GetInstanceParm { instance: instance(), num: 1 }),
        call::<Bozo, _>(NOBODY, &bos::GetInstanceStrings { instance: instance() }),
        call::<Bozo, _>(CELL, &bos::ListKeys { index: 0 }),
        call::<Bozo, _>(NOBODY, &bos::ListSUsers { index: 0 }),
        call::<Bozo, _>(NOBODY, &bos::GetCellHost { index: 1 }),
        call::<Bozo, _>(NOBODY, &bos::GetRestartTime { kind: bos::RestartTimeKind::GENERAL }),
        call::<Bozo, _>(NOBODY, &bos::GetDates { path: text("/usr/lib/openafs/bosserver") }),
        call::<Bozo, _>(ADMIN, &bos::Exec { cmd: text("true") }),
        call::<Bozo, _>(ALICE, &bos::Exec { cmd: text("true") }),
    ]
    .concat()
}
