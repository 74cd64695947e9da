//! The PTDB under random changes: indexes equal a scan, members and groups name each other, and a database that is loaded
//! anew is the same. And what single procedures check.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::image::position_of;
use super::*;
use crate::caller::{Caller, Identity};
use crate::database::{Database, Image, Rows};
use crate::store::CellStore;
use crate::store::memory::MemoryStore;
use crate::testing::{Plan, Random, Recorder, now, together};

const CELL: Caller = Caller { identity: Identity::Cell, is_superuser: true };
const RULES: Rules = Rules {
    is_noauth: false,
    is_restricted: false,
    restricts_anonymous: false,
    supergroups: None,
    user_privacy: 0x80,
    group_privacy: 0x90,
};

fn user(name: &str) -> Caller {
    Caller { identity: Identity::Local(name.into()), is_superuser: false }
}

fn open(store: &Arc<MemoryStore>) -> Database<Ptdb> {
    now(Database::open(Arc::clone(store) as Arc<dyn CellStore>)).unwrap()
}

/// A new cell with its administrator, `admin`.
fn cell() -> (Arc<MemoryStore>, Database<Ptdb>) {
    let store = Arc::new(MemoryStore::new());
    let ptdb = open(&store);
    let admin = Administrator { name: "admin".into(), id: None };
    change(&ptdb, |ptdb, rows| initialize(ptdb, Some(&admin), 1000, rows)).unwrap();
    (store, ptdb)
}

fn change<T>(
    ptdb: &Database<Ptdb>,
    plan: impl Fn(&Ptdb, &mut Rows) -> Result<T, PtError>,
) -> Result<T, PtError> {
    let mut rows = Rows::default();
    let result = ptdb.read(|ptdb| plan(ptdb, &mut rows))?;
    // Over this store nobody else changes anything, so that the plan may be made before.
    let write = move |_: &Ptdb, all: &mut Rows| {
        all.clone_from(&rows);
        Ok(())
    };
    now(ptdb.change(1000, write)).map(|()| result)
}

fn create(ptdb: &Database<Ptdb>, caller: &Caller, name: &str, flag: i32, owner: i32) -> Result<i32, PtError> {
    let new = NewPrincipal { name: name.into(), flag, id: None, owner };
    change(ptdb, |ptdb, rows| ptdb.new_entry(&RULES, caller, &new, 1000, rows))
}

fn add(ptdb: &Database<Ptdb>, caller: &Caller, id: i32, group: i32) -> Result<(), PtError> {
    change(ptdb, |ptdb, rows| ptdb.add_to_group(&RULES, caller, id, group, 1000, rows))
}

fn id(ptdb: &Database<Ptdb>, name: &str) -> i32 {
    ptdb.read(|ptdb| ptdb.name_to_id(name.as_bytes(), |_| false))
}

fn all(ptdb: &Ptdb) -> Vec<(u32, Entry)> {
    ptdb.slots().from(0).map(|(slot, entry)| (slot, entry.clone())).collect()
}

/// Compares indexes with a scan, and what entries say of each other.
fn check(ptdb: &Ptdb, context: &str) {
    let all = all(ptdb);
    assert_eq!(ptdb.len(), all.len(), "{context}");
    for (slot, entry) in &all {
        assert_eq!(ptdb.slot_of(entry.id), Some(*slot), "{context}: {entry:?}");
        assert_eq!(ptdb.slot_of_name(&entry.name), Some(*slot), "{context}: {entry:?}");
        let owned: BTreeSet<i32> = all
            .iter()
            .filter(|(_, other)| other.is_group() && other.owner == entry.id)
            .map(|(_, other)| other.id)
            .collect();
        assert_eq!(ptdb.owned(entry.id).collect::<BTreeSet<_>>(), owned, "{context}: {entry:?}");
        let dump = ptdb.dump(&RULES, &CELL, position_of(*slot)).unwrap();
        let siblings = all.iter().map(|(_, other)| other).filter(|other| other.is_group());
        let later = siblings.filter(|other| other.owner == entry.owner && other.id > entry.id);
        let next = later.map(|other| other.id).min().filter(|_| entry.is_group());
        let place = |id: Option<&i32>| id.and_then(|id| ptdb.slot_of(*id)).map_or(0, position_of);
        let expected = (place(owned.first()), place(next.as_ref()));
        assert_eq!((dump.owned, dump.next_owned), expected, "{context}: {entry:?}");
        for other in &entry.list {
            let other = ptdb.find_id(*other).unwrap_or_else(|| panic!("{context}: {other} is in {entry:?}"));
            let back = if entry.is_group() && other.is_group() { &other.supergroups } else { &other.list };
            assert!(back.contains(&entry.id), "{context}: {entry:?} has {other:?}");
        }
        for group in &entry.supergroups {
            let group = ptdb.find_id(*group).unwrap_or_else(|| panic!("{context}: {entry:?} is in {group}"));
            assert!(group.list.contains(&entry.id), "{context}: {entry:?} is in {group:?}");
        }
    }
}

/// One of the changes that clients may ask for.
fn some_change(
    ptdb: &Ptdb,
    supergroups: Option<u32>,
    random: &mut Random,
) -> impl Fn(&Ptdb, &mut Rows) -> Result<(), PtError> + Clone + use<> {
    let there: Vec<i32> = all(ptdb).iter().map(|(_, entry)| entry.id).collect();
    let mut some_id = || match random.below(8) {
        0 => 1 + random.below(10) as i32,
        1 => -206 - random.below(10) as i32,
        _ => there[random.below(there.len() as u32) as usize],
    };
    let (one, other) = (some_id(), some_id());
    let names = ["u1", "u2", "u1:a", "u2:b", "system:c", "plain", "admin:x", "system:authuser@x.y", "me@x.y"];
    let name = names[random.below(9) as usize];
    let (kind, flag) = (random.below(8), 2 * random.below(2) as i32);
    let caller = if random.below(4) == 0 { user("u1") } else { CELL };
    // Where nobody is asked for authentication more names go.
    let rules = Rules { supergroups, is_noauth: random.below(2) == 0, ..RULES };
    let owner = if kind == 0 { one } else { 0 };
    let new = NewPrincipal { name: name.into(), flag, id: None, owner };
    let to = Renaming {
        name: if flag == 0 { name.into() } else { vec![] },
        owner: if kind % 2 == 0 { other } else { 0 },
        id: if random.below(3) == 0 { other } else { 0 },
    };
    move |ptdb, rows| match kind {
        0 | 1 => ptdb.new_entry(&rules, &caller, &new, 1000, rows).map(drop),
        2 => ptdb.new_entry_with_id(&rules, &caller, &new, one, 1000, rows),
        3 | 4 => ptdb.add_to_group(&rules, &caller, one, other, 1000, rows),
        5 => ptdb.remove_from_group(&rules, &caller, one, other, 1000, rows),
        6 => ptdb.delete(&rules, &caller, one, 1000, rows),
        _ => ptdb.change_entry(&rules, &caller, one, &to, 1000, rows),
    }
}

#[test]
fn changes_made_together_come_to_what_they_come_to_one_after_the_other() {
    let parts = |ptdb: &Ptdb| (all(ptdb), ptdb.header());
    for (seed, supergroups) in (1..=8).flat_map(|seed| [(seed, None), (seed, Rules::DEBIAN_SUPERGROUPS)]) {
        let mut random = Random::new(seed);
        let (store, (_, alone)) = (Recorder::new(), cell());
        let ptdb: Database<Ptdb> = now(Database::open(Arc::clone(&store) as Arc<dyn CellStore>)).unwrap();
        let admin = Administrator { name: "admin".into(), id: None };
        change(&ptdb, |ptdb, rows| initialize(ptdb, Some(&admin), 1000, rows)).unwrap();
        // What another server sees.
        let mut other = Ptdb::empty();
        for step in 0..400 {
            let context = format!("seed {seed}, step {step}");
            let changes: Vec<_> = (0..1 + random.below(8))
                .map(|_| ptdb.read(|ptdb| some_change(ptdb, supergroups, &mut random)))
                .collect();
            let expected: Vec<_> = changes.iter().map(|one| change(&alone, one)).collect();
            let plans = changes.into_iter().map(|one| Box::new(one) as Plan<_, _, _>).collect();
            assert_eq!(together(&ptdb, plans), expected, "{context}");
            for (key, value) in store.changed() {
                let key = key.strip_prefix(Ptdb::PREFIX).unwrap();
                if key != b"REVISION" {
                    other.set_row(key, value.as_deref()).unwrap();
                }
            }
            for ptdb in [&alone, &ptdb].map(|database| database.read(parts)) {
                assert_eq!(ptdb, parts(&other), "{context}");
            }
            ptdb.read(|ptdb| check(ptdb, &context));
            check(&other, &context);
        }
    }
}

#[test]
fn groups_that_change_places_in_one_transaction_stay_their_owners_at_other_servers() {
    let store = Recorder::new();
    let ptdb: Database<Ptdb> = now(Database::open(Arc::clone(&store) as Arc<dyn CellStore>)).unwrap();
    let admin = Administrator { name: "admin".into(), id: None };
    change(&ptdb, |ptdb, rows| initialize(ptdb, Some(&admin), 1000, rows)).unwrap();
    let make = |id: i32| {
        let new = NewPrincipal { name: format!("admin:{id}").into(), flag: 2, id: None, owner: 1 };
        move |ptdb: &Ptdb, rows: &mut Rows| ptdb.new_entry_with_id(&RULES, &CELL, &new, id, 1000, rows)
    };
    let delete = |id: i32| move |ptdb: &Ptdb, rows: &mut Rows| ptdb.delete(&RULES, &CELL, id, 1000, rows);
    for id in [-300, -301] {
        change(&ptdb, make(id)).unwrap();
    }
    // The place that was freed last is taken first.
    let plans: Vec<Plan<Ptdb, (), PtError>> =
        vec![Box::new(delete(-300)), Box::new(delete(-301)), Box::new(make(-300)), Box::new(make(-301))];
    assert_eq!(together(&ptdb, plans), [Ok(()), Ok(()), Ok(()), Ok(())]);
    let mut other = Ptdb::empty();
    for (key, value) in store.changed() {
        let key = key.strip_prefix(Ptdb::PREFIX).unwrap();
        if key != b"REVISION" {
            other.set_row(key, value.as_deref()).unwrap();
        }
    }
    check(&other, "another server");
    assert_eq!(other.owned(1).collect::<Vec<_>>(), [-301, -300]);
}

#[test]
fn indexes_equal_a_scan_and_members_and_groups_name_each_other() {
    for (seed, supergroups) in (1..=8).flat_map(|seed| [(seed, None), (seed, Rules::DEBIAN_SUPERGROUPS)]) {
        let mut random = Random::new(seed);
        let (store, ptdb) = cell();
        let (mut done, mut refused) = (0, 0);
        for step in 0..1500 {
            let context = format!("seed {seed}, step {step}");
            let before = store.rows();
            let one = ptdb.read(|ptdb| some_change(ptdb, supergroups, &mut random));
            let result = change(&ptdb, one);
            match result {
                Ok(()) => done += 1,
                Err(_) => {
                    refused += 1;
                    assert_eq!(store.rows(), before, "{context}: a refused change has changed something");
                }
            }
            if step % 50 == 0 {
                ptdb.read(|ptdb| check(ptdb, &context));
                let again = open(&store);
                let parts = |ptdb: &Ptdb| (all(ptdb), ptdb.header());
                assert_eq!(again.read(parts), ptdb.read(parts), "{context}");
                again.read(|ptdb| check(ptdb, &context));
            }
        }
        assert!(done > 100 && refused > 200, "seed {seed}: {done} changes were made, {refused} refused");
    }
}

#[test]
fn a_new_cell_has_the_entries_of_stock_cells_and_an_administrator() {
    let (_, ptdb) = cell();
    let listed = ptdb.read(|ptdb| {
        let kinds = Kinds { users: true, groups: true };
        let page = ptdb.list_entries(&RULES, &CELL, kinds, 0).unwrap();
        assert_eq!(page.next, None);
        page.items
            .iter()
            .map(|e| (String::from_utf8(e.name.clone()).unwrap(), e.id, e.owner, e.creator))
            .collect::<Vec<_>>()
    });
    let expected = [
        ("system:administrators", -204),
        ("system:backup", -205),
        ("system:anyuser", -101),
        ("system:authuser", -102),
        ("system:ptsviewers", -203),
        ("anonymous", 32766),
        ("admin", 1),
    ];
    assert_eq!(listed, expected.map(|(name, id)| (name.to_owned(), id, -204, -204)));
    assert_eq!(ptdb.read(|ptdb| ptdb.list_max(&RULES, &CELL)), Ok((1, -205)));
    assert_eq!(ptdb.read(|ptdb| ptdb.is_member_of(&RULES, &CELL, 1, -204)), Ok(true));
    let admin = Administrator { name: "other".into(), id: None };
    let again = change(&ptdb, |ptdb, rows| initialize(ptdb, Some(&admin), 1, rows));
    assert_eq!(again, Err(PtError::Exists), "a cell begins once");
}

#[test]
fn users_make_groups_of_their_own_until_their_quota_is_used_up() {
    let (_, ptdb) = cell();
    let u1 = create(&ptdb, &user("admin"), "u1", 0, 0).unwrap();
    assert_eq!(
        create(&ptdb, &user("u1"), "u2", 0, 0),
        Err(PtError::Permission),
        "users are made by administrators"
    );
    assert_eq!(create(&ptdb, &user("nobody"), "nobody:g", 2, 0), Err(PtError::Permission));
    assert_eq!(create(&ptdb, &Caller::ANONYMOUS, "u1:g", 2, u1), Err(PtError::Permission));
    assert_eq!(
        create(&ptdb, &user("u1"), "other:g", 2, 0),
        Err(PtError::BadName),
        "the prefix is the owner's name"
    );
    assert_eq!(create(&ptdb, &user("u1"), "plain", 2, 0), Err(PtError::BadName));
    assert_eq!(create(&ptdb, &user("u1"), "system:g", 2, 0), Err(PtError::BadName));
    let empty = create(&ptdb, &user("u1"), "u1:empty", 2, 0).unwrap();
    assert_eq!(create(&ptdb, &user("u1"), "u1:sub", 2, empty), Err(PtError::GroupEmpty));
    for n in 1..20 {
        create(&ptdb, &user("u1"), &format!("u1:g{n}"), 2, 0).unwrap();
    }
    assert_eq!(create(&ptdb, &user("u1"), "u1:more", 2, 0), Err(PtError::NoMore));
    change(&ptdb, |ptdb, rows| ptdb.delete(&RULES, &user("u1"), empty, 1, rows)).unwrap();
    assert!(create(&ptdb, &user("u1"), "u1:more", 2, 0).is_ok(), "what is deleted is given back");
}

#[test]
fn memberships_are_seen_by_whom_the_flags_let_see_them() {
    let (_, ptdb) = cell();
    let [u1, u2] = ["u1", "u2"].map(|name| create(&ptdb, &CELL, name, 0, 0).unwrap());
    let group = create(&ptdb, &user("u1"), "u1:g", 2, 0).unwrap();
    assert_eq!(add(&ptdb, &user("u2"), u2, group), Err(PtError::Permission));
    add(&ptdb, &user("u1"), u2, group).unwrap();
    assert_eq!(add(&ptdb, &user("u1"), u2, group), Err(PtError::IdExists));
    assert_eq!(add(&ptdb, &user("u1"), group, group), Err(PtError::NotUser));
    let elements =
        |caller: &Caller, id| ptdb.read(|ptdb| ptdb.list_elements(&RULES, caller, id).map(<[i32]>::to_vec));
    assert_eq!(elements(&Caller::ANONYMOUS, group), Ok(vec![u2]), "anyone sees the members of a group");
    assert_eq!(elements(&Caller::ANONYMOUS, u2), Err(PtError::Permission), "but nobody the groups of a user");
    assert_eq!(elements(&user("u1"), u2), Err(PtError::Permission));
    assert_eq!(elements(&user("u2"), u2), Ok(vec![group]), "but the user themselves");
    assert_eq!(elements(&user("admin"), u2), Ok(vec![group]), "and administrators");
    let hide = FieldChange { privacy: Some((0xff, 0x08)), ..FieldChange::default() };
    change(&ptdb, |ptdb, rows| ptdb.set_fields(&RULES, &user("u1"), group, &hide, 1, rows)).unwrap();
    assert_eq!(elements(&Caller::ANONYMOUS, group), Err(PtError::Permission));
    assert_eq!(elements(&user("u2"), group), Ok(vec![u2]), "members still do");
    let _ = u1;
    let quota = FieldChange { group_quota: Some(99), ..FieldChange::default() };
    let refused = change(&ptdb, |ptdb, rows| ptdb.set_fields(&RULES, &user("u2"), u2, &quota, 1, rows));
    assert_eq!(refused, Err(PtError::Permission), "users do not set their own quota");
}

#[test]
fn the_ids_of_a_user_are_sorted_and_have_those_of_everybody() {
    let (_, ptdb) = cell();
    let u1 = create(&ptdb, &CELL, "u1", 0, 0).unwrap();
    let group = create(&ptdb, &user("u1"), "u1:g", 2, 0).unwrap();
    add(&ptdb, &CELL, u1, group).unwrap();
    let cps = |caller: &Caller, id| ptdb.read(|ptdb| ptdb.get_cps(&RULES, caller, id));
    assert_eq!(cps(&CELL, u1), Ok(vec![group, -102, -101, u1]));
    assert_eq!(cps(&Caller::ANONYMOUS, 32766), Ok(vec![-101, 32766]));
    assert_eq!(cps(&Caller::ANONYMOUS, u1), Err(PtError::Permission));
    assert_eq!(cps(&CELL, 4711), Err(PtError::NoEntry));
    // A host's groups come with those of the networks around it.
    let (host, network) =
        (create(&ptdb, &CELL, "10.88.0.1", 0, 0).unwrap(), create(&ptdb, &CELL, "10.88.0.0", 0, 0).unwrap());
    let hosts = create(&ptdb, &CELL, "hosts", 2, 0).unwrap();
    add(&ptdb, &CELL, host, group).unwrap();
    add(&ptdb, &CELL, network, hosts).unwrap();
    let host_cps = |address| ptdb.read(|ptdb| ptdb.host_cps(&RULES, &CELL, address)).unwrap();
    assert_eq!(host_cps(0x0a58_0001), [hosts, group]);
    assert_eq!(host_cps(0x0a58_0002), [hosts]);
    assert_eq!(host_cps(0x0a59_0001), [0; 0]);
    let at = ptdb.read(|ptdb| ptdb.get_cps_at(&RULES, &Caller::ANONYMOUS, 32766, 0x0a58_0001)).unwrap();
    assert_eq!(at, [hosts, group, -101, 32766]);
}

#[test]
fn groups_may_be_in_groups_where_that_is_on() {
    let (_, ptdb) = cell();
    let u1 = create(&ptdb, &CELL, "u1", 0, 0).unwrap();
    let groups: Vec<i32> = (0..7).map(|n| create(&ptdb, &CELL, &format!("g{n}"), 2, 0).unwrap()).collect();
    let rules = Rules { supergroups: Rules::DEBIAN_SUPERGROUPS, ..RULES };
    let add = |id, group| change(&ptdb, |ptdb, rows| ptdb.add_to_group(&rules, &CELL, id, group, 1, rows));
    add(u1, groups[0]).unwrap();
    for pair in groups.windows(2) {
        add(pair[0], pair[1]).unwrap();
    }
    let is_in = |group| ptdb.read(|ptdb| ptdb.is_member_of(&rules, &CELL, u1, group)).unwrap();
    let depth = groups.iter().take_while(|group| is_in(**group)).count();
    assert_eq!(depth, 5, "as deep as the default says");
    let cps = ptdb.read(|ptdb| ptdb.get_cps(&rules, &CELL, u1)).unwrap();
    assert!(groups[..6].iter().all(|group| cps.contains(group)) && !cps.contains(&groups[6]));
    // A circle ends too.
    add(groups[3], groups[0]).unwrap();
    assert!(ptdb.read(|ptdb| ptdb.get_cps(&rules, &CELL, u1)).is_ok());
    add(-101, groups[6]).unwrap();
    assert!(
        ptdb.read(|ptdb| ptdb.is_member_of(&rules, &CELL, 32766, groups[6])).unwrap(),
        "everybody is in it"
    );
}

/// There are 19 to the 30th ways through these groups.
#[test]
fn groups_that_are_all_in_each_other_keep_no_server_busy() {
    let (_, ptdb) = cell();
    let [u1, u2] = ["u1", "u2"].map(|name| create(&ptdb, &CELL, name, 0, 0).unwrap());
    let mut groups: Vec<i32> =
        (0..20).map(|n| create(&ptdb, &CELL, &format!("g{n}"), 2, 0).unwrap()).collect();
    let rules = Rules { supergroups: Some(30), ..RULES };
    let add = |id, group| change(&ptdb, |ptdb, rows| ptdb.add_to_group(&rules, &CELL, id, group, 1, rows));
    add(u1, groups[0]).unwrap();
    for (id, group) in groups.iter().flat_map(|id| groups.iter().map(move |group| (*id, *group))) {
        assert_eq!(add(id, group).is_ok(), id != group);
    }
    let is_in = |id| ptdb.read(|ptdb| ptdb.is_member_of(&rules, &CELL, id, groups[19])).unwrap();
    assert!(is_in(u1) && !is_in(u2));
    let cps = ptdb.read(|ptdb| ptdb.get_cps(&rules, &CELL, u1)).unwrap();
    groups.extend([-101, -102, u1]);
    groups.sort_unstable();
    assert_eq!(cps, groups);
}

#[test]
fn a_user_of_another_cell_registers_himself_once_the_cell_is_known() {
    let (_, ptdb) = cell();
    let me = Caller { identity: Identity::Foreign("me@other.cell".into()), is_superuser: false };
    assert_eq!(create(&ptdb, &me, "me@other.cell", 0, 0), Err(PtError::BadName), "the cell is not known");
    let group = create(&ptdb, &CELL, "system:authuser@other.cell", 2, 0).unwrap();
    assert_eq!(create(&ptdb, &me, "you@other.cell", 0, 0), Err(PtError::Permission));
    let id = create(&ptdb, &me, "me@other.cell", 0, 0).unwrap();
    assert_eq!(id, 1 << 16 | group & 0xffff);
    let cps = ptdb.read(|ptdb| ptdb.get_cps(&RULES, &CELL, id)).unwrap();
    assert_eq!(cps, [group, -101, id], "not system:authuser, but that of the user's cell");
    let delete = |id| change(&ptdb, |ptdb, rows| ptdb.delete(&RULES, &CELL, id, 1, rows));
    assert_eq!(delete(group), Err(PtError::BadArgument), "it has users");
    assert_eq!((delete(id), delete(group)), (Ok(()), Ok(())));
}

#[test]
fn a_group_of_a_deleted_owner_is_listed_with_those_of_nobody() {
    let (_, ptdb) = cell();
    let u1 = create(&ptdb, &CELL, "u1", 0, 0).unwrap();
    let group = create(&ptdb, &user("u1"), "u1:g", 2, 0).unwrap();
    change(&ptdb, |ptdb, rows| ptdb.delete(&RULES, &CELL, u1, 1, rows)).unwrap();
    let orphans =
        |caller: &Caller| ptdb.read(|ptdb| ptdb.list_owned(&RULES, caller, 0, 0)).map(|page| page.items);
    assert_eq!(orphans(&CELL), Ok(vec![group]));
    assert_eq!(orphans(&Caller::ANONYMOUS), Err(PtError::Permission));
    let to = Renaming { owner: 1, ..Renaming::default() };
    change(&ptdb, |ptdb, rows| ptdb.change_entry(&RULES, &CELL, group, &to, 1, rows)).unwrap();
    assert_eq!(id(&ptdb, "admin:g"), group, "the name follows the owner");
    assert_eq!(id(&ptdb, "u1:g"), 32766);
}

#[test]
fn who_is_restricted_changes_and_sees_nothing() {
    let (_, ptdb) = cell();
    let u1 = create(&ptdb, &CELL, "u1", 0, 0).unwrap();
    let group = create(&ptdb, &user("u1"), "u1:g", 2, 0).unwrap();
    let rules = Rules { is_restricted: true, restricts_anonymous: true, ..RULES };
    let add =
        |caller: &Caller| change(&ptdb, |ptdb, rows| ptdb.add_to_group(&rules, caller, u1, group, 1, rows));
    assert_eq!(add(&user("u1")), Err(PtError::Permission));
    assert_eq!(add(&user("admin")), Ok(()));
    let see =
        |caller: &Caller| ptdb.read(|ptdb| ptdb.list_entry(&rules, caller, group).map(|entry| entry.id));
    assert_eq!(see(&Caller::ANONYMOUS), Err(PtError::Permission));
    assert_eq!(see(&user("u1")), Ok(group));
}

/// A name with a blank in an access list made that list one that nobody could read, or mend.
#[test]
fn names_that_break_the_text_of_an_access_list_are_refused_and_older_ones_stay_usable() {
    let (_, ptdb) = cell();
    let u1 = create(&ptdb, &CELL, "u1", 0, 0).unwrap();
    let group = create(&ptdb, &user("u1"), "u1:g", 2, 0).unwrap();
    let rename = |id: i32, name: &str| {
        let to = Renaming { name: name.into(), ..Renaming::default() };
        change(&ptdb, |ptdb, rows| ptdb.change_entry(&RULES, &CELL, id, &to, 1, rows))
    };
    for name in ["", "bob 7", "a\tb", "a\nb", "a\u{1}", "a\u{7f}", " "] {
        assert_eq!(create(&ptdb, &CELL, name, 0, 0), Err(PtError::BadName), "{name:?}");
        if name.is_empty() {
            // No name is no change of it.
            continue;
        }
        assert_eq!(rename(u1, name), Err(PtError::BadName), "{name:?}");
        let of_group = format!("u1:{name}");
        assert_eq!(create(&ptdb, &user("u1"), &of_group, 2, 0), Err(PtError::BadName), "{of_group:?}");
        assert_eq!(rename(group, &of_group), Err(PtError::BadName), "{of_group:?}");
    }
    create(&ptdb, &CELL, "b\u{f6}b.x_7-z", 0, 0).unwrap();
    // As a stock server has made them.
    let older = |id: i32, name: &str| {
        let name = name.as_bytes().to_vec();
        now(ptdb.change(1, move |ptdb, rows| {
            let slot = ptdb.slot_of(id).unwrap();
            let entry = Entry { name: name.clone(), ..ptdb.find_id(id).unwrap().clone() };
            rows.put(image::entry_key(slot), entry.to_row());
            Ok::<_, PtError>(())
        }))
        .unwrap();
    };
    older(u1, "bob 7");
    older(group, "bob 7:my group");
    assert_eq!(id(&ptdb, "bob 7"), u1);
    add(&ptdb, &CELL, u1, group).unwrap();
    rename(u1, "bob7").unwrap();
}
