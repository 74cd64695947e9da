//! The services over the loopback interface, as clients call them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use afs_celldb::caller::{Authority, Caller, Identity, NoAuth};
use afs_celldb::ptdb::{Administrator, PtService, Ptdb, Rules};
use afs_celldb::store::CellStore;
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::ubik::VoteService;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Clock, Database, rx_service};
use afs_wire::ids::{HostAddr, PartitionId, ViceId, VolumeId, VolumeType};
use afs_wire::ubik::vote::{self, Vote};
use afs_wire::{pt, vl};
use rx::{Connection, Endpoint, EndpointConfig};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::Interface;
use rxgen::xdr::{CharVec, Uuid, XdrArray, XdrString};

/// Takes nobody for anybody.
#[derive(Debug)]
struct Strangers;

impl Authority for Strangers {
    fn caller(&self, _peer: SocketAddr, _security: &str) -> Caller {
        Caller { identity: Identity::Anonymous, is_superuser: false }
    }

    fn is_local_realm(&self, _realm: &str) -> bool {
        false
    }

    fn is_noauth(&self) -> bool {
        false
    }
}

/// A server of everything on one port, and a client of it.
struct Cell {
    server: Endpoint,
    client: Endpoint,
}

impl Cell {
    async fn new(authority: Arc<dyn Authority>, restriction: RestrictedQuery) -> Self {
        Self::with_rules(authority, restriction, Rules::default()).await
    }

    async fn with_rules(authority: Arc<dyn Authority>, restriction: RestrictedQuery, rules: Rules) -> Self {
        let store: Arc<dyn CellStore> = Arc::new(MemoryStore::new());
        let clock: Clock = Arc::new(|| 1_700_000_000);
        let vldb = Arc::new(Database::<Vldb>::open(Arc::clone(&store)).await.unwrap());
        let ptdb = Arc::new(Database::<Ptdb>::open(store).await.unwrap());
        let bind = || Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), EndpointConfig::default()).unwrap();
        let (server, client) = (bind(), bind());
        let vl = VlService::new(Arc::clone(&vldb), Arc::clone(&authority), Arc::clone(&clock), restriction);
        let pt = PtService::new(ptdb, authority, Arc::clone(&clock), rules);
        pt.initialize(Some(&Administrator { name: "admin".into(), id: None })).await.unwrap();
        let votes = VoteService::new(vldb, vec![Ipv4Addr::LOCALHOST], clock);
        server.add_service(rx_service::<vl::Vl, _>(Arc::new(vl), vec![Arc::new(Null)]));
        server.add_service(rx_service::<pt::Pr, _>(Arc::new(pt), vec![Arc::new(Null)]));
        server.add_service(rx_service::<Vote, _>(Arc::new(votes), vec![Arc::new(Null)]));
        Self { server, client }
    }

    fn connect<I: Interface>(&self) -> Connection {
        self.client.connect(self.server.local_addr(), ServiceId(I::SERVICE_ID), Box::new(Null))
    }
}

fn entry(name: &str, id: u32) -> vl::NvldbEntry {
    let mut entry = vl::NvldbEntry {
        name: CharVec::from_text(name).unwrap(),
        n_servers: 1,
        server_number: [HostAddr(0); vl::NMAXNSERVERS],
        server_partition: [PartitionId(0); vl::NMAXNSERVERS],
        server_flags: [vl::SiteFlags(0); vl::NMAXNSERVERS],
        volume_id: [VolumeId(id), VolumeId(0), VolumeId(id + 2)],
        clone_id: VolumeId(0),
        flags: vl::EntryFlags::RW_EXISTS,
        match_index: 0,
        spares: [0; 8],
    };
    entry.server_number[0] = HostAddr(0x0a58_0001);
    entry.server_flags[0] = vl::SiteFlags::RW_VOL;
    entry
}

fn name(text: &str) -> vl::VlName {
    XdrString::new(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_found_in_all_forms_and_removed() {
    let cell = Cell::new(Arc::new(NoAuth), RestrictedQuery::AnyUser).await;
    let vl = cell.connect::<vl::Vl>();
    let first = vl.rpc(&vl::GetNewVolumeId { bump_count: 3 }).await.unwrap().new_volid;
    assert_eq!(first, VolumeId(0x2000_0000));
    vl.rpc(&vl::CreateEntryN { entry: entry("root.cell", first.0) }).await.unwrap();
    let uuid = Uuid {
        time_low: 1,
        time_mid: 2,
        time_hi_and_version: 3,
        clock_seq_hi_and_reserved: 0xaa,
        clock_seq_low: 5,
        node: [6, 7, 8, 9, 10, 0xff],
    };
    let addrs = XdrArray::new(vec![HostAddr(0x0a58_0001), HostAddr(0x0a58_0002)]).unwrap();
    vl.rpc(&vl::RegisterAddrs { uuid, spare1: 0, addrs: addrs.clone() }).await.unwrap();
    for text in ["root.cell", "root.cell.backup", "536870912", "536870914"] {
        let found = vl.rpc(&vl::GetEntryByNameU { name: name(text) }).await.unwrap().entry;
        assert_eq!(found.name.text(), b"root.cell", "{text}");
        assert_eq!((found.server_number[0], found.server_unique[0]), (uuid, 1));
        assert_eq!(found.server_flags[0], vl::SiteFlags::RW_VOL | vl::SiteFlags::UUID);
    }
    let old = vl.rpc(&vl::GetEntryByNameO { name: name("root.cell") }).await.unwrap().entry;
    assert_eq!((old.n_servers, old.server_number[0]), (1, HostAddr(0x0a58_0001)));
    let by =
        vl::ListAddrByAttributes { mask: vl::AddrMask::UUID, ipaddr: HostAddr(0), index: 0, spare1: 0, uuid };
    let known = vl.rpc(&vl::GetAddrsU { by }).await.unwrap();
    assert_eq!((known.uuid, known.uniquifier, known.addrs), (uuid, 1, addrs));
    vl.rpc(&vl::DeleteEntry { volid: VolumeId(first.0 + 2), kind: VolumeType::ANY }).await.unwrap();
    let error = vl.rpc(&vl::GetEntryByNameN { name: name("root.cell") }).await.unwrap_err();
    assert_eq!(error.code().0, 363_524, "VL_NOENT");
    let stats = vl.rpc(&vl::GetStats {}).await.unwrap();
    assert_eq!((stats.header.allocs, stats.header.frees), (1, 1));
    assert_eq!(stats.stats.requests[527 - 501], 4);
    assert_eq!(stats.stats.aborts[519 - 501], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_look_but_change_nothing() {
    let cell = Cell::new(Arc::new(Strangers), RestrictedQuery::Admin).await;
    let vl = cell.connect::<vl::Vl>();
    let denied = 363_546;
    let refused = vl.rpc(&vl::CreateEntryN { entry: entry("a", 5) }).await.unwrap_err();
    assert_eq!(refused.code().0, denied);
    let refused = vl.rpc(&vl::GetNewVolumeId { bump_count: 1 }).await.unwrap_err();
    assert_eq!(refused.code().0, denied);
    let refused = vl.rpc(&vl::ListEntryN { previous_index: 0 }).await.unwrap_err();
    assert_eq!(refused.code().0, denied, "listings are restricted here");
    let refused = vl.rpc(&vl::GetEntryByNameU { name: name("a") }).await.unwrap_err();
    assert_eq!(refused.code().0, 363_524, "look-ups are not");
    let pr = cell.connect::<pt::Pr>();
    let name = XdrString::new("u1").unwrap();
    let refused = pr.rpc(&pt::NewEntry { name, flag: 0, owner: ViceId(0) }).await.unwrap_err();
    assert_eq!(refused.code().0, 267_269);
    let refused = pr.rpc(&pt::GetCPS { id: ViceId(1) }).await.unwrap_err();
    assert_eq!(refused.code().0, 267_269);
    let own = pr.rpc(&pt::GetCPS { id: ViceId::ANONYMOUS }).await.unwrap().ids;
    assert_eq!(*own, [ViceId::SYSTEM_ANYUSER, ViceId::ANONYMOUS]);
    let refused = pr.rpc(&pt::ListSuperGroups { id: ViceId(-204) }).await.unwrap_err();
    assert_eq!(refused.code().0, -455, "groups are not in groups");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_become_ids_and_ids_names() {
    let cell = Cell::new(Arc::new(NoAuth), RestrictedQuery::AnyUser).await;
    let pr = cell.connect::<pt::Pr>();
    let name = XdrString::new("Alice").unwrap();
    let id = pr.rpc(&pt::NewEntry { name, flag: 0, owner: ViceId(0) }).await.unwrap().id;
    assert_eq!(id, ViceId(2));
    let names = ["alice", "ALICE", "nobody", "system:anyuser", "alice@"]
        .map(|name| CharVec::from_text(name).unwrap());
    let names = XdrArray::new(names.to_vec()).unwrap();
    let ids = pr.rpc(&pt::NameToID { names }).await.unwrap().ids;
    assert_eq!(*ids, [2, 32766, 32766, -101, 2].map(ViceId));
    let ids = XdrArray::new(vec![id, ViceId(-9999)]).unwrap();
    let names = pr.rpc(&pt::IDToName { ids }).await.unwrap().names;
    assert_eq!(names.iter().map(CharVec::text).collect::<Vec<_>>(), [&b"alice"[..], b"-9999"]);
    // More than are looked up before others have a turn.
    let ids = XdrArray::new(vec![ViceId(1); 5000]).unwrap();
    let names = pr.rpc(&pt::IDToName { ids }).await.unwrap().names;
    assert!(names.len() == 5000 && names.iter().all(|name| name.text() == b"admin"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_the_database_is_told() {
    let cell = Cell::new(Arc::new(NoAuth), RestrictedQuery::AnyUser).await;
    let votes = cell.connect::<Vote>();
    let before = votes.rpc(&vote::XDebug {}).await.unwrap();
    assert_eq!((before.db.state.am_sync_site, before.is_clone), (1, 0));
    assert_eq!(before.db.interface_addr[0], HostAddr(0x7f00_0001));
    let vl = cell.connect::<vl::Vl>();
    vl.rpc(&vl::GetNewVolumeId { bump_count: 1 }).await.unwrap();
    let after = votes.rpc(&vote::Debug {}).await.unwrap().db.state;
    assert_eq!(after.local_version.counter, before.db.state.local_version.counter + 1);
    assert_eq!(votes.rpc(&vote::XSDebug { which: 0 }).await.unwrap_err().code().0, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_answers_probes_and_lists_all_addresses_that_it_knows() {
    let cell = Cell::new(Arc::new(NoAuth), RestrictedQuery::AnyUser).await;
    let vl = cell.connect::<vl::Vl>();
    vl.rpc(&vl::ProbeServer {}).await.unwrap();
    let all = vl::GetAddrs { handle: 0, spare2: 0 };
    let none = vl.rpc(&all).await.unwrap();
    assert_eq!((none.n_entries, none.addrs.len()), (0, 0));
    for (low, address) in [(1, 0x0a58_0001), (2, 0x0a58_0002)] {
        let addrs = XdrArray::new(vec![HostAddr(address)]).unwrap();
        let uuid = Uuid { time_low: low, ..Uuid::default() };
        vl.rpc(&vl::RegisterAddrs { uuid, spare1: 0, addrs }).await.unwrap();
    }
    let two = vl.rpc(&all).await.unwrap();
    assert_eq!((two.n_entries, two.addrs.len()), (2, 2));
    let stats = vl.rpc(&vl::GetStats {}).await.unwrap().stats;
    assert_eq!(stats.requests[515 - 501], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_places_of_entries_are_told_to_those_who_may_see_all() {
    const NO_ENTRY: i32 = 267_268;
    const PERMISSION: i32 = 267_269;
    const BAD_ADDRESS: i32 = 267_278;
    let cell = Cell::new(Arc::new(NoAuth), RestrictedQuery::AnyUser).await;
    let pr = cell.connect::<pt::Pr>();
    let new = |name: &str, flag, owner| pt::NewEntry {
        name: XdrString::new(name).unwrap(),
        flag,
        owner: ViceId(owner),
    };
    let alice = pr.rpc(&new("alice", pt::PRUSER, 0)).await.unwrap().id;
    let friends = pr.rpc(&new("alice:friends", pt::PRGRP, alice.0)).await.unwrap().id;
    pr.rpc(&pt::AddToGroup { uid: alice, gid: friends }).await.unwrap();
    let pos = pr.rpc(&pt::WhereIsIt { id: alice }).await.unwrap().pos;
    let group = pr.rpc(&pt::WhereIsIt { id: friends }).await.unwrap().pos;
    // Behind the header, a multiple of an entry's length (PTDB notes 5).
    assert!(pos != group && [pos, group].iter().all(|pos| pos % 192 == 65_600 % 192 && *pos >= 65_600));
    let entry = pr.rpc(&pt::DumpEntry { pos }).await.unwrap().entry;
    assert_eq!((entry.id, entry.name.text(), entry.count), (alice, &b"alice"[..], 1));
    assert_eq!((entry.entries[0], entry.owned), (friends, group));
    let entry = pr.rpc(&pt::DumpEntry { pos: group }).await.unwrap().entry;
    assert_eq!((entry.id, entry.owner, entry.entries[0], entry.count), (friends, alice, alice, 1));
    let code =
        |result: Result<_, rx::RpcError>| result.map(|_: pt::reply::DumpEntry| ()).unwrap_err().code().0;
    for pos in [-1, 0, 64, pos + 1, pos + 192 * 1000, i32::MAX, i32::MIN] {
        assert_eq!(code(pr.rpc(&pt::DumpEntry { pos }).await), BAD_ADDRESS, "{pos}");
    }
    let nothing = pr.rpc(&pt::WhereIsIt { id: ViceId(4711) }).await.unwrap_err();
    assert_eq!(nothing.code().0, NO_ENTRY);

    let strangers = Cell::new(Arc::new(Strangers), RestrictedQuery::AnyUser).await;
    let pr = strangers.connect::<pt::Pr>();
    let pos = pr.rpc(&pt::WhereIsIt { id: ViceId(1) }).await.unwrap().pos;
    assert_eq!(code(pr.rpc(&pt::DumpEntry { pos }).await), PERMISSION);
}

/// There is nothing to repair here: an entry is found by its name and id or is not there.
#[tokio::test(flavor = "multi_thread")]
async fn a_repair_of_an_entry_changes_nothing_and_is_for_administrators() {
    let cell = Cell::new(Arc::new(NoAuth), RestrictedQuery::AnyUser).await;
    let pr = cell.connect::<pt::Pr>();
    let update = |id: i32, name: &str| pt::UpdateEntry {
        id: ViceId(id),
        name: XdrString::new(name).unwrap(),
        update: pt::PrUpdateEntry {
            mask: pt::PrUpdateMask(0x1f),
            flags: -1,
            id: ViceId(77),
            owner: ViceId(1),
            creator: ViceId(1),
            ngroups: 9,
            nusers: 9,
            count: 9,
            reserved: [0; 5],
            name: CharVec::from_text("other").unwrap(),
        },
    };
    let before = pr.rpc(&pt::ListEntry { id: ViceId(1) }).await.unwrap();
    pr.rpc(&update(1, "")).await.unwrap();
    pr.rpc(&update(0, "Admin")).await.unwrap();
    for (id, name, code) in [(4711, "", 267_268), (0, "nobody", 267_268), (-204, "", 267_269)] {
        assert_eq!(pr.rpc(&update(id, name)).await.unwrap_err().code().0, code, "{id} {name}");
    }
    assert_eq!(pr.rpc(&pt::ListEntry { id: ViceId(1) }).await.unwrap(), before);
    let strangers = Cell::new(Arc::new(Strangers), RestrictedQuery::AnyUser).await;
    let refused = strangers.connect::<pt::Pr>().rpc(&update(1, "")).await.unwrap_err();
    assert_eq!(refused.code().0, 267_269);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_groups_that_a_group_is_in_are_listed_where_groups_may_be_in_groups() {
    let rules = Rules { supergroups: Rules::DEBIAN_SUPERGROUPS, ..Rules::default() };
    let cell = Cell::with_rules(Arc::new(NoAuth), RestrictedQuery::AnyUser, rules).await;
    let pr = cell.connect::<pt::Pr>();
    let mut groups = Vec::new();
    for name in ["admin:inner", "admin:outer", "admin:outermost"] {
        let name = XdrString::new(name).unwrap();
        groups.push(pr.rpc(&pt::NewEntry { name, flag: pt::PRGRP, owner: ViceId(1) }).await.unwrap().id);
    }
    for (uid, gid) in [(0, 1), (0, 2), (1, 2)] {
        pr.rpc(&pt::AddToGroup { uid: groups[uid], gid: groups[gid] }).await.unwrap();
    }
    for (group, expected) in [(0, vec![groups[2], groups[1]]), (1, vec![groups[2]]), (2, vec![])] {
        let mut ids = pr.rpc(&pt::ListSuperGroups { id: groups[group] }).await.unwrap().ids.to_vec();
        ids.sort_unstable_by_key(|id| id.0);
        assert_eq!(ids, expected, "group {group}");
    }
    pr.rpc(&pt::RemoveFromGroup { id: groups[0], gid: groups[1] }).await.unwrap();
    let ids = pr.rpc(&pt::ListSuperGroups { id: groups[0] }).await.unwrap().ids.to_vec();
    assert_eq!(ids, [groups[2]]);
    let nothing = pr.rpc(&pt::ListSuperGroups { id: ViceId(-4711) }).await.unwrap_err();
    assert_eq!(nothing.code().0, 267_268);
}
