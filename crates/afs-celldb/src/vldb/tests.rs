//! The VLDB under random changes: its indexes find what a scan finds, what a refused change leaves is what was there, and
//! a database that is loaded anew is the same. And what single procedures check.

use std::sync::Arc;

use super::change::{NewEntry, NewSite, ReplicaChange, Update};
use super::image::Vldb;
use super::list::{Attributes, Listing, index_of};
use super::records::VolumeType;
use super::servers::ServerQuery;
use super::{Entry, VlError};
use crate::database::{Database, Image, Rows};
use crate::store::CellStore;
use crate::store::memory::MemoryStore;
use crate::testing::{Plan, Random, Recorder, now, together};

const NAMES: [&str; 6] = ["root.cell", "root.cell.readonly", "a", "b", "no name", "c_1-2"];

fn open(store: &Arc<MemoryStore>) -> Database<Vldb> {
    now(Database::open(Arc::clone(store) as Arc<dyn CellStore>)).unwrap()
}

fn new_entry(name: &str, id: u32) -> NewEntry {
    NewEntry {
        name: name.into(),
        site_count: 1,
        sites: vec![NewSite { address: 0x0a58_0001, partition: 0, flags: 4 }; 13],
        ids: [id, 0, 0],
        clone_id: 0,
        flags: 0x1000,
    }
}

fn change<T>(
    vldb: &Database<Vldb>,
    plan: impl Fn(&Vldb, &mut Rows) -> Result<T, VlError>,
) -> Result<T, VlError> {
    let mut rows = Rows::default();
    let result = vldb.read(|vldb| plan(vldb, &mut rows))?;
    // Over this store nobody else changes anything, so that the plan may be made before.
    let write = move |_: &Vldb, all: &mut Rows| {
        all.clone_from(&rows);
        Ok(())
    };
    now(vldb.change(1_700_000_000, write)).map(|()| result)
}

fn all(vldb: &Vldb) -> Vec<(u32, Entry)> {
    vldb.slots().from(0).map(|(slot, row)| (slot, row.to_entry())).collect()
}

/// Compares indexes with a scan.
fn check_indexes(vldb: &Vldb, context: &str) {
    let all = all(vldb);
    for id in (0..40).chain(all.iter().flat_map(|(_, entry)| entry.ids)) {
        let by_type = VolumeType::ALL.map(|volume_type| {
            let is_it = |entry: &Entry| {
                entry.ids[volume_type as usize] == id && (id != 0 || volume_type == VolumeType::ReadWrite)
            };
            let expected: Vec<u32> =
                all.iter().filter(|(_, entry)| is_it(entry)).map(|(slot, _)| *slot).collect();
            let found = vldb.find_id(id, Some(volume_type)).map(|found| found.slot);
            assert!(expected.len() <= 1, "{context}: id {id} is there twice");
            assert_eq!(found, expected.first().copied(), "{context}: id {id}");
            found
        });
        let first = by_type.into_iter().flatten().next();
        assert_eq!(vldb.find_id(id, None).map(|found| found.slot), first, "{context}: id {id} of any type");
    }
    for name in NAMES {
        let expected: Vec<u32> =
            all.iter().filter(|(_, entry)| entry.name == name.as_bytes()).map(|(slot, _)| *slot).collect();
        // A name with a suffix may be there twice, as nobody can find it.
        assert!(expected.len() <= 1 || name.ends_with(".readonly"), "{context}: {name} is there twice");
        let found = vldb.find_whole_name(name.as_bytes()).map(|found| found.slot);
        assert!(found.is_none() == expected.is_empty(), "{context}: {name}");
        assert!(found.is_none_or(|slot| expected.contains(&slot)), "{context}: {name}");
    }
    assert_eq!(vldb.counts().0, all.len(), "{context}");
}

/// One of the changes that clients may ask for.
fn some_change(random: &mut Random) -> impl Fn(&Vldb, &mut Rows) -> Result<(), VlError> + Clone + use<> {
    let (id, kind) = (random.below(24), random.below(4) as i32 - 1);
    let mut new = new_entry(NAMES[random.below(6) as usize], random.below(24));
    new.ids[1] = random.below(24);
    new.ids[2] = random.below(24);
    new.site_count = random.below(4) as i32;
    new.sites.iter_mut().for_each(|site| site.address = 1 + random.below(9));
    let update = Update {
        name: (random.below(3) == 0).then(|| new.name.clone()),
        ids: [None, Some(random.below(24)).filter(|_| id % 2 == 0), None],
        ..Update::default()
    };
    let uuid = [random.below(3) as u8 + 1; 16];
    let addresses = [1 + random.below(9), 1 + random.below(9)];
    let kind_of_change = random.below(9);
    move |vldb, rows| match kind_of_change {
        0 | 1 => vldb.create(&new, rows),
        2 => vldb.delete(id, kind, rows),
        3 => {
            let own = NewEntry { ids: [id, new.ids[1], new.ids[2]], ..new.clone() };
            vldb.replace(id, 0, &own, 7, id % 2 == 0, rows)
        }
        4 => vldb.update(id, kind, &update, 0, rows),
        5 => vldb.lock(id, kind, 0x10, 5, rows),
        6 => vldb.unlock(id, kind, 7, rows),
        7 => vldb.register(uuid, &addresses, None, rows),
        _ => vldb.change_address(if id % 2 == 0 { u32::MAX } else { addresses[0] }, addresses[1], rows),
    }
}

/// What is compared of two databases.
fn parts(vldb: &Vldb) -> impl PartialEq + std::fmt::Debug + use<> {
    (all(vldb), vldb.servers().to_vec(), vldb.header())
}

#[test]
fn changes_made_together_come_to_what_they_come_to_one_after_the_other() {
    for seed in 1..=8 {
        let mut random = Random::new(seed);
        let (store, alone) = (Recorder::new(), open(&Arc::new(MemoryStore::new())));
        let vldb: Database<Vldb> = now(Database::open(Arc::clone(&store) as Arc<dyn CellStore>)).unwrap();
        // What another server sees.
        let mut other = Vldb::empty();
        for step in 0..400 {
            let context = format!("seed {seed}, step {step}");
            let changes: Vec<_> = (0..1 + random.below(8)).map(|_| some_change(&mut random)).collect();
            let expected: Vec<_> = changes.iter().map(|one| change(&alone, one)).collect();
            let plans = changes.into_iter().map(|one| Box::new(one) as Plan<_, _, _>).collect();
            assert_eq!(together(&vldb, plans), expected, "{context}");
            assert_eq!(vldb.read(parts), alone.read(parts), "{context}");
            for (key, value) in store.changed() {
                let key = key.strip_prefix(Vldb::PREFIX).unwrap();
                if key != b"REVISION" {
                    other.set_row(key, value.as_deref()).unwrap();
                }
            }
            assert_eq!(parts(&other), alone.read(parts), "{context}");
            vldb.read(|vldb| check_indexes(vldb, &context));
            check_indexes(&other, &context);
        }
    }
}

#[test]
fn indexes_equal_a_scan_and_a_database_read_again_is_the_same() {
    for seed in 1..=8 {
        let mut random = Random::new(seed);
        let store = Arc::new(MemoryStore::new());
        let vldb = open(&store);
        let (mut done, mut refused) = (0, 0);
        for step in 0..1500 {
            let context = format!("seed {seed}, step {step}");
            let before = store.rows();
            let result = change(&vldb, some_change(&mut random));
            match result {
                Ok(()) => done += 1,
                Err(_) => {
                    refused += 1;
                    assert_eq!(store.rows(), before, "{context}: a refused change has changed something");
                }
            }
            if step % 50 == 0 {
                vldb.read(|vldb| check_indexes(vldb, &context));
                let again = open(&store);
                assert_eq!(again.read(parts), vldb.read(parts), "{context}");
                again.read(|vldb| check_indexes(vldb, &context));
            }
        }
        assert!(done > 150 && refused > 300, "seed {seed}: {done} changes were made, {refused} refused");
    }
}

#[test]
fn ids_are_given_out_once_also_after_a_restart() {
    let store = Arc::new(MemoryStore::new());
    let mut given = Vec::new();
    for count in [1, 3, 0, 5] {
        // Opened anew each time, as by a server that was killed.
        let first = change(&open(&store), |vldb, rows| vldb.take_ids(count, rows)).unwrap();
        given.extend(first..first + count);
    }
    assert_eq!(given, (0x2000_0000..0x2000_0009).collect::<Vec<_>>());
}

#[test]
fn ids_that_volumes_have_are_not_given_out() {
    let vldb = open(&Arc::new(MemoryStore::new()));
    for (name, id) in [("a", 0x2000_0001), ("b", 0x2000_0005), ("c", 7)] {
        change(&vldb, |vldb, rows| vldb.create(&new_entry(name, id), rows)).unwrap();
    }
    let take = |count| change(&vldb, |vldb, rows| vldb.take_ids(count, rows));
    assert_eq!(take(1), Ok(0x2000_0000));
    assert_eq!(take(4), Ok(0x2000_0006), "between the used ones there is room for three");
    assert_eq!(take(0x8000_0000), Err(VlError::BadIdBump));
    assert_eq!(take(0x7fff_ffff), Ok(0x2000_000a));
    assert_eq!(take(0x7fff_ffff), Err(VlError::BadIdBump), "so many are not left");
}

/// A stock `vos` makes an entry of volume 2^32 - 1 whose backup is volume 1.
#[test]
fn ids_near_the_end_of_all_numbers_are_refused() {
    let vldb = open(&Arc::new(MemoryStore::new()));
    let create = |name, ids| {
        let entry = NewEntry { ids, ..new_entry(name, 0) };
        change(&vldb, |vldb, rows| vldb.create(&entry, rows))
    };
    assert_eq!(create("top", [u32::MAX, 0, 1]), Err(VlError::BadEntry));
    assert_eq!(create("top", [u32::MAX - 1, u32::MAX, 0]), Err(VlError::BadEntry));
    create("high", [u32::MAX - 3, u32::MAX - 2, u32::MAX - 1]).unwrap();
    create("low", [5, 6, 7]).unwrap();
    let entry = NewEntry { ids: [5, 6, u32::MAX], ..new_entry("low", 0) };
    let replaced = change(&vldb, |vldb, rows| vldb.replace(5, -1, &entry, 7, false, rows));
    assert_eq!(replaced, Err(VlError::BadEntry));
}

/// `vos syncvldb` raises the counter above the ids that it finds: it took as many again behind them, until there were none left.
#[test]
fn the_counter_is_raised_above_the_ids_that_volumes_have() {
    let vldb = open(&Arc::new(MemoryStore::new()));
    change(&vldb, |vldb, rows| vldb.create(&new_entry("high", 2_258_391_753), rows)).unwrap();
    let take = |count| change(&vldb, |vldb, rows| vldb.take_ids(count, rows));
    let next = take(0).unwrap();
    assert_eq!(take(2_258_391_753 - next + 1), Ok(next));
    assert_eq!(take(0), Ok(2_258_391_754));
    assert_eq!(take(1), Ok(2_258_391_754));
}

#[test]
fn a_lock_holds_until_it_is_released() {
    let vldb = open(&Arc::new(MemoryStore::new()));
    change(&vldb, |vldb, rows| vldb.create(&new_entry("a", 5), rows)).unwrap();
    let lock = |operation| change(&vldb, |vldb, rows| vldb.lock(5, -1, operation, 9, rows));
    let unlock = |kind| change(&vldb, |vldb, rows| vldb.unlock(5, -1, kind, rows));
    assert_eq!(lock(0x30), Err(VlError::BadOperation));
    assert_eq!(lock(0x20), Ok(()));
    assert_eq!(lock(0x10), Err(VlError::EntryLocked));
    assert_eq!(unlock(8), Err(VlError::BadReleaseType));
    assert_eq!(unlock(1), Ok(()));
    assert_eq!(lock(0x10), Err(VlError::Rerelease), "the release was not finished");
    assert_eq!(unlock(7), Ok(()));
    assert_eq!(lock(0x10), Ok(()));
}

#[test]
fn places_are_reused_last_freed_first_also_after_a_restart() {
    let store = Arc::new(MemoryStore::new());
    for (id, name) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
        change(&open(&store), |vldb, rows| vldb.create(&new_entry(name, id), rows)).unwrap();
    }
    for id in [2, 1] {
        change(&open(&store), |vldb, rows| vldb.delete(id, -1, rows)).unwrap();
    }
    for (id, name) in [(5, "e"), (6, "f"), (7, "g")] {
        change(&open(&store), |vldb, rows| vldb.create(&new_entry(name, id), rows)).unwrap();
    }
    let order = open(&store).read(|vldb| all(vldb).iter().map(|(_, entry)| entry.ids[0]).collect::<Vec<_>>());
    assert_eq!(order, [5, 6, 3, 4, 7]);
}

#[test]
fn a_server_that_registers_keeps_its_number_and_its_counter_goes_up() {
    let vldb = open(&Arc::new(MemoryStore::new()));
    let register = |uuid: u8, addresses: &[u32]| {
        let addresses = addresses.to_vec();
        change(&vldb, move |vldb, rows| vldb.register([uuid; 16], &addresses, None, rows))
    };
    let known =
        |query| vldb.read(|vldb| vldb.registration(query)).map(|known| (known.uniquifier, known.addresses));
    change(&vldb, |vldb, rows| vldb.create(&new_entry("a", 5), rows)).unwrap();
    assert_eq!(known(ServerQuery::Address(0x0a58_0001)), Err(VlError::NoEntry), "it has not registered");
    register(1, &[0, 0x0a58_0001, 0x0a58_0001, 2]).unwrap();
    assert_eq!(known(ServerQuery::Index(1)), Ok((1, vec![0x0a58_0001, 2])));
    register(1, &[0x0a58_0001, 2]).unwrap();
    assert_eq!(known(ServerQuery::Uuid([1; 16])), Ok((1, vec![0x0a58_0001, 2])), "nothing has changed");
    register(1, &[3]).unwrap();
    assert_eq!(known(ServerQuery::Address(3)), Ok((2, vec![3])));
    register(2, &[4]).unwrap();
    register(3, &[5]).unwrap();
    assert_eq!(register(4, &[4, 5]), Err(VlError::MultipleAddresses));
    assert_eq!(register(1, &[3, 4]), Err(VlError::MultipleAddresses));
    assert_eq!(register(9, &[]), Err(VlError::IndexRange));
    let remove = |address| change(&vldb, |vldb, rows| vldb.change_address(u32::MAX, address, rows));
    assert_eq!(remove(3), Err(VlError::IdExists), "a volume is there");
    assert_eq!(remove(4), Ok(()));
    assert_eq!(known(ServerQuery::Uuid([2; 16])), Err(VlError::NoEntry));
    register(2, &[6]).unwrap();
    assert_eq!(known(ServerQuery::Uuid([2; 16])), Ok((2, vec![6])), "a counter is not used twice");
}

/// Somebody who can break rxkad must not be able to make clients go back to it.
#[test]
fn a_server_that_has_rxgk_has_it_until_somebody_says_by_rxgk_that_it_has_not() {
    let vldb = open(&Arc::new(MemoryStore::new()));
    let register = |uuid: u8, addresses: &[u32], rxgk| {
        let addresses = addresses.to_vec();
        change(&vldb, move |vldb, rows| vldb.register([uuid; 16], &addresses, rxgk, rows)).unwrap();
    };
    let has = |address| vldb.read(|vldb| vldb.registration(ServerQuery::Address(address))).unwrap().has_rxgk;
    register(1, &[5], None);
    assert!(!has(5), "nobody has said it");
    register(1, &[5], Some(true));
    assert!(has(5));
    register(1, &[5], None);
    register(1, &[5, 6], None);
    assert!(has(6), "said by rxkad, it changes nothing");
    register(2, &[5, 6], None);
    assert!(has(6), "not as another server at its addresses either");
    register(2, &[5, 6], Some(false));
    assert!(!has(6));
}

#[test]
fn at_most_255_servers_are_known() {
    let vldb = open(&Arc::new(MemoryStore::new()));
    for number in 0..255u32 {
        let uuid = std::array::from_fn(|index| if index == 0 { number as u8 } else { 7 });
        change(&vldb, |vldb, rows| vldb.register(uuid, &[1000 + number], None, rows)).unwrap();
    }
    assert_eq!(change(&vldb, |vldb, rows| vldb.register([9; 16], &[5], None, rows)), Err(VlError::SitesFull));
    let one_more = change(&vldb, |vldb, rows| vldb.create(&new_entry("a", 5), rows));
    assert_eq!(one_more, Err(VlError::BadServer));
    assert_eq!(vldb.read(|vldb| vldb.addresses().len()), 255);
}

#[test]
fn sites_are_changed_one_after_the_other_or_not_at_all() {
    let vldb = open(&Arc::new(MemoryStore::new()));
    change(&vldb, |vldb, rows| vldb.create(&new_entry("a", 5), rows)).unwrap();
    let site = |address, partition| NewSite { address, partition, flags: 2 };
    let add =
        |address| ReplicaChange { mask: ReplicaChange::ADD, new: site(address, 1), ..Default::default() };
    let update = |changes: &[ReplicaChange]| {
        let replicas = Some((changes.len() as i32, changes.to_vec()));
        let update = Update { replicas, ..Update::default() };
        change(&vldb, move |vldb, rows| vldb.update(5, -1, &update, 0, rows))
    };
    let sites = || vldb.read(|vldb| vldb.find_id(5, None).unwrap().row.sites().count());
    assert_eq!(update(&[add(1), add(2)]), Ok(()));
    assert_eq!(sites(), 3);
    assert_eq!(update(&[add(3), add(2)]), Err(VlError::DuplicateSite));
    assert_eq!(sites(), 3, "the first of the two is not made either");
    let gone = ReplicaChange {
        mask: ReplicaChange::DELETE,
        target_address: 1,
        target_partition: 1,
        ..Default::default()
    };
    assert_eq!(update(&[gone]), Ok(()));
    assert_eq!(update(&[gone]), Err(VlError::NoSite));
    assert_eq!(update(&[]), Err(VlError::BadServer));
    assert_eq!(update(&[add(4), add(5), add(6), add(7), add(8), add(9)]), Ok(()));
    assert_eq!(update(&[add(10)]), Err(VlError::SitesFull));
}

#[test]
fn a_long_listing_comes_in_steps_and_misses_nothing() {
    let store = Arc::new(MemoryStore::new());
    let vldb = open(&store);
    let count = 10_000;
    for part in 0..10 {
        // Rows of many entries in one transaction, as no client would make them.
        now(vldb.change(1, move |vldb: &Vldb, rows| {
            for id in part * count / 10..(part + 1) * count / 10 {
                let entry = Entry {
                    name: format!("v{id}").into_bytes(),
                    ids: [id + 1, 0, 0],
                    clone_id: 0,
                    flags: 0x1000,
                    lock_timestamp: 0,
                    lock_afs_id: 0,
                    sites: vec![],
                };
                rows.put(super::image::entry_key(vldb.slots().len() + id % (count / 10)), entry.to_row());
            }
            Ok::<_, VlError>(())
        }))
        .unwrap();
    }
    let listing = Listing::New(Attributes::default());
    let (mut from, mut found, mut steps) = (Some(0), Vec::new(), 0);
    while let Some(place) = from {
        let progress = vldb.read(|vldb| vldb.list(&listing, place, 3000));
        assert!(progress.found.len() <= 3000);
        found.extend(progress.found.iter().map(|found| found.slot));
        (from, steps) = (progress.next, steps + 1);
    }
    assert_eq!(found, (0..count).collect::<Vec<_>>());
    assert!(steps >= 4);
    assert_eq!(vldb.read(|vldb| vldb.entry_behind(index_of(4))), (Some(5), count as i32 - 6));
    assert_eq!(vldb.read(|vldb| vldb.entry_behind(index_of(count - 1))), (None, 0));
    assert_eq!(vldb.read(|vldb| vldb.entry_behind(17)), (None, -1));
}
