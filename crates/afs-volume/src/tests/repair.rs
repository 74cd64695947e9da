//! Each kind of damage that is only bookkeeping is repaired, and taken back; and of each kind that is not, the rest is saved.

use super::scene::*;
use super::{config, open, settle, stamp};
use crate::disk::{Cut, Disk, ScratchDisk, SimulatedDisk};
use crate::fsck;
use crate::keys::{self, FileId, GroupId, Key, Part, Snapshot, VnodeKey};
use crate::pages::PAGE;
use crate::records::Rows;
use crate::repair::{self, Repaired, Salvaged, UndoError};
use crate::{Kind, Partition, SetStatus, VnodeId, VolumeError};
use afs_store::{Options, Store};
use afs_wire::directory::layout::{FREE_MAP_AT, HASH_TABLE_AT};
use afs_wire::ids::{DataVersion, Uniquifier, VnodeNumber, VolumeId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

type Damage = fn(&Scene);

/// All files of a disk, and what is in them.
fn files(disk: &dyn Disk) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for name in disk.list(&folder).unwrap() {
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            match disk.open(&path) {
                Ok(file) => {
                    let mut bytes = vec![0; file.length().unwrap() as usize];
                    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
                    found.insert(path, bytes);
                }
                Err(_) => folders.push(path),
            }
        }
    }
    found
}

fn scratch(disk: &SimulatedDisk) -> Arc<dyn Disk> {
    Arc::new(ScratchDisk::over(Arc::new(disk.clone())))
}

/// Rows, and files.
type Content = (BTreeMap<Vec<u8>, Vec<u8>>, BTreeMap<String, Vec<u8>>);

/// The rows, but for the numbers that never go back, and the files of data.
fn content(disk: &SimulatedDisk) -> Content {
    let options = Options { cache_bytes: 1 << 20, log_bytes: 64 << 10 };
    let store = Store::open(scratch(disk), options, &Rows).unwrap();
    let mut rows = BTreeMap::new();
    store
        .scan::<VolumeError>(&[], |key, row| {
            let is_number =
                keys::is_reservation(key) || *key == keys::partition() || key.0.starts_with(&keys::groups());
            if !is_number {
                rows.insert(key.0.clone(), row.to_vec());
            }
            Ok(())
        })
        .unwrap();
    let files =
        files(disk).into_iter().filter(|(name, _)| name.starts_with("data/") || name.starts_with("orphans/"));
    (rows, files.collect())
}

fn try_repair(disk: &Arc<dyn Disk>, kept: &mut Vec<u8>) -> Result<Repaired, VolumeError> {
    repair::repair(disk, Path::new("test"), &config(), Some(kept), stamp(50))
}

fn repaired(disk: &Arc<dyn Disk>) -> (Repaired, Vec<u8>) {
    let mut kept = Vec::new();
    (try_repair(disk, &mut kept).unwrap(), kept)
}

fn texts(found: &[fsck::Finding]) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

fn damaged(damage: Damage) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    build(&partition);
    let scene = Scene { disk: disk.clone(), partition };
    damage(&scene);
    disk
}

fn check(disk: &SimulatedDisk) -> Vec<String> {
    texts(&fsck::check(&open(disk)).unwrap().findings)
}

/// What is done about a damage; then all is well, and can be as it was.
fn mends(expected: &[&str], damage: Damage) {
    let disk = damaged(damage);
    let (before, found) = (content(&disk), {
        let copy = disk.after_kill();
        Partition::open_on(Arc::new(copy.clone()), Path::new("test"), config()).map(|_| check(&copy))
    });
    // What would be done: not a byte changes.
    let bytes = files(&disk);
    let would = repaired(&scratch(&disk)).0;
    assert!(files(&disk) == bytes, "{expected:?}: trying has changed the disk");

    let this: Arc<dyn Disk> = Arc::new(disk.clone());
    let (repair, kept) = repaired(&this);
    let done = texts(&repair.repairs);
    for expected in expected {
        assert!(done.iter().any(|done| done == expected), "not done: {expected}\n{done:#?}");
    }
    assert_eq!(texts(&would.repairs), done, "it says before what it does");
    assert_eq!((texts(&repair.left.findings), would.left), (vec![], repair.left), "{expected:?}");
    let (again, nothing) = repaired(&this);
    assert_eq!((texts(&again.repairs), nothing), (vec![], vec![]), "{expected:?}: a second repair");
    settle(&open(&disk));
    assert_eq!(check(&disk), Vec::<String>::new(), "{expected:?}: when the server has run");

    // Back from a copy, as the server has run meanwhile.
    let disk = damaged(damage);
    let this: Arc<dyn Disk> = Arc::new(disk.clone());
    let (_, kept_again) = repaired(&this);
    assert_eq!(kept.len(), kept_again.len());
    repair::undo(&this, &config(), &mut &kept_again[..]).unwrap();
    let after = content(&disk);
    assert!(after.1 == before.1, "{expected:?}: the files of data are as before");
    for (key, row) in &before.0 {
        assert_eq!(after.0.get(key), Some(row), "{expected:?}: row {key:02x?}");
    }
    assert_eq!(after.0.len(), before.0.len(), "{expected:?}");
    // Numbers stay as they are.
    let is_number = |found: &String| {
        found.contains("to be given out") || found.contains("reserved") || found.contains("to come")
    };
    let expected_back: Vec<String> = found
        .into_iter()
        .flatten()
        .filter(|found| {
            !is_number(found) && !found.contains("group's row") && !found.contains("a reservation")
        })
        .collect();
    let back = check(&disk);
    for found in expected_back.iter().filter(|found| !found.contains("counters")) {
        assert!(back.contains(found), "{expected:?}: {found} is back\n{back:#?}");
    }
}

fn ghost(n: u32) -> VnodeId {
    VnodeId { vnode: VnodeNumber(n), unique: Uniquifier(5) }
}

#[test]
fn counts_are_set_to_what_is_there() {
    mends(
        &[
            "volume 100: header: sets the space in use from 999 to 29 KiB, and the number of vnodes from 50 to 7",
        ],
        |scene| scene.counters(|counters| (counters.used_kib, counters.files) = (999, 50)),
    );
    mends(&["volume 100: counters: makes them anew: they cannot be read"], |scene| {
        scene.change(|batch| batch.delete(keys::counters(VolumeId(ID))));
    });
    mends(&["volume 100: vnode 2: sets its link count from 7 to 2"], |scene| {
        scene.status(SMALL, |record| record.status.link_count = 7);
    });
    mends(&["volume 100: vnode 3: sets its link count from 9 to 3"], |scene| {
        scene.status(DIRECTORY, |record| record.status.link_count = 9);
    });
    mends(&["volume 100: vnode 2: sets its length from 5 to 3, which its data have"], |scene| {
        scene.status(SMALL, |record| record.status.length = 5);
    });
    mends(&["volume 100: vnode 4: sets its length from 9000 to 20000, which its data have"], |scene| {
        scene.status(LARGE, |record| record.status.length = 9000);
    });
}

#[test]
fn names_that_lead_nowhere_or_twice_to_one_place_go() {
    mends(
        &[
            "volume 100: directory 3: removes 'ghost': vnode 500 is not there",
            "volume 100: directory 3: removes 'unlike': vnode 8 is not there",
            "volume 100: directory 5: removes 'up': vnode 1 is the root directory",
        ],
        |scene| {
            scene.names(DIRECTORY, |names| {
                names.insert(b"ghost", ghost(500)).unwrap();
                names.insert(b"unlike", ghost(8)).unwrap();
            });
            scene.names(BELOW, |names| names.insert(b"up", VnodeId::ROOT).unwrap());
        },
    );
    mends(&["volume 100: directory 1: removes 'again': directory 3 has another name"], |scene| {
        let id = scene.id(DIRECTORY);
        scene.names(ROOT, |names| names.insert(b"again", id).unwrap());
    });
    mends(&["volume 100: directory 3: removes 'stolen': vnode 8 is in directory 1"], |scene| {
        let id = scene.id(SYMLINK);
        scene.names(DIRECTORY, |names| names.insert(b"stolen", id).unwrap());
    });
    mends(&["volume 100: directory 1: removes the second name 'small' (vnode 4)"], |scene| {
        let id = scene.id(LARGE);
        scene.names(ROOT, |names| names.insert(b"small", id).unwrap());
    });
    mends(&["volume 100: directory 3: lets '..' be vnode 1"], |scene| {
        scene.names(DIRECTORY, |names| names.replace(b"..", ghost(5)).unwrap());
    });
    mends(&["volume 100: directory 3: lets '.' be vnode 3"], |scene| {
        scene.names(DIRECTORY, |names| _ = names.remove(b".").unwrap());
    });
}

#[test]
fn what_no_directory_names_gets_a_name() {
    mends(
        &[
            "volume 100: vnode 8: names it /lost+found/__ORPHANFILE__.8.7: no directory names it",
            "volume 100: vnode 5: names it /lost+found/__ORPHANDIR__.5.6: no directory names it",
        ],
        |scene| {
            scene.names(ROOT, |names| assert!(names.remove(b"l").unwrap().is_some()));
            scene.names(DIRECTORY, |names| assert!(names.remove(b"below").unwrap().is_some()));
        },
    );
    mends(
        &["volume 100: directory 5: takes vnode 8 as 'mine': its own directory does not name it"],
        |scene| {
            let id = scene.id(SYMLINK);
            scene.names(ROOT, |names| assert!(names.remove(b"l").unwrap().is_some()));
            scene.names(BELOW, |names| names.insert(b"mine", id).unwrap());
        },
    );
    mends(
        &[
            "volume 100: directory 5: removes 'up': directory 3 is above it",
            "volume 100: vnode 3: names it /lost+found/__ORPHANDIR__.3.4: no directory names it",
        ],
        |scene| {
            let (up, down) = (scene.id(DIRECTORY), scene.id(BELOW));
            scene.names(ROOT, |names| assert!(names.remove(b"d").unwrap().is_some()));
            scene.names(BELOW, |names| names.insert(b"up", up).unwrap());
            scene.status(DIRECTORY, |record| record.status.parent = down);
        },
    );
}

/// Only administrators see what was found: nobody knows who might.
#[test]
fn nobody_but_administrators_looks_into_the_folder_of_orphans() {
    let disk = damaged(|scene| {
        scene.names(ROOT, |names| assert!(names.remove(b"l").unwrap().is_some()));
    });
    repaired(&(Arc::new(disk.clone()) as Arc<dyn Disk>));
    let volume = open(&disk).volume(VolumeId(ID)).unwrap();
    let folder = volume.lookup(VnodeId::ROOT, b"lost+found").unwrap();
    let (status, acl) = volume.status_and_acl(folder).unwrap();
    assert_eq!((status.kind, acl), (Kind::Directory, afs_wire::acl::Acl::administrators()));
    assert_eq!(volume.entries(folder).unwrap().len(), 3);
}

#[test]
fn maps_and_chains_of_directories_are_made_anew() {
    mends(&["volume 100: directory 3: makes its pages anew: they contradict each other"], |scene| {
        scene.page(DIRECTORY, |page| page[FREE_MAP_AT] = 3);
    });
    mends(&["volume 100: directory 3: makes its pages anew: they contradict each other"], |scene| {
        scene.page(DIRECTORY, |page| page[HASH_TABLE_AT..HASH_TABLE_AT + 256].fill(0));
    });
    mends(&["volume 100: directory 3: makes its pages anew: they contradict each other"], |scene| {
        let snapshot = scene.snapshot(DIRECTORY, Part::Page(0));
        scene.change(|batch| batch.put(key(DIRECTORY, Part::Page(1), snapshot), crate::pages::empty_page(1)));
    });
    // Without its chains it has all its names.
    let disk = damaged(|scene| scene.page(ROOT, |page| page[HASH_TABLE_AT..HASH_TABLE_AT + 256].fill(0)));
    repaired(&(Arc::new(disk.clone()) as Arc<dyn Disk>));
    let volume = open(&disk).volume(VolumeId(ID)).unwrap();
    for name in [&b"small"[..], b"small again", b"large", b"d", b"l"] {
        volume.lookup(VnodeId::ROOT, name).unwrap();
    }
}

#[test]
fn rows_of_nobody_go_and_numbers_are_raised() {
    mends(&["row [99]: removes it: its key is none"], |scene| {
        scene.change(|batch| batch.put(Key(vec![0x99]), vec![1]));
    });
    mends(
        &[
            "row [06, 00, 00, 00, 00, 00, 00, 03, 84]: removes it: it is of garbage, and names no file of data",
        ],
        |scene| {
            scene.change(|batch| batch.put(keys::garbage(FileId(900)), b"x".to_vec()));
        },
    );
    mends(&["vnode 2 of volume group 1: removes Inline of snapshot 0, which no volume shows"], |scene| {
        scene.change(|batch| batch.put(key(SMALL, Part::Inline, Snapshot(0)), b"old".to_vec()))
    });
    let raises = "volume group 1: raises the numbers that it may give out next above those in use";
    let raising: [Damage; 4] = [
        |scene| scene.status(SMALL, |record| record.status.data_version = DataVersion(10_000_000)),
        |scene| {
            let (snapshot, record) = scene.record(SMALL);
            scene.change(|batch| batch.put(key(VnodeNumber(200), Part::Status, snapshot), record.encode()));
        },
        |scene| {
            let (_, record) = scene.record(SMALL);
            scene.change(|batch| batch.put(key(SMALL, Part::Status, Snapshot(7)), record.encode()));
        },
        |scene| {
            scene.status(SYMLINK, |record| record.status.id.unique = Uniquifier(999_999));
            let id = VnodeId { vnode: SYMLINK, unique: Uniquifier(999_999) };
            scene.names(ROOT, |names| names.replace(b"l", id).unwrap());
        },
    ];
    raising.into_iter().for_each(|damage| mends(&[raises], damage));
    mends(&["partition: raises the numbers that it may give out next above those in use"], |scene| {
        scene.disk.create("data/00000000/00000000000fffff.1.4.0.1").unwrap();
    });
}

/// With one of these damaged, a server did not come up, or all volumes of a group were off-line.
#[test]
fn rows_that_say_what_may_be_given_out_are_made_anew() {
    mends(&["volume group 1: makes its row anew from its vnodes: it cannot be read"], |scene| {
        scene.change(|batch| batch.put(keys::group(GROUP), vec![7]));
    });
    mends(&["volume group 1: makes its reservation anew from its vnodes: it cannot be read"], |scene| {
        scene.change(|batch| batch.put(keys::group_reservation(GROUP), vec![7]));
    });
    mends(&["partition: makes its row anew: it cannot be read"], |scene| {
        scene.change(|batch| batch.put(keys::partition(), vec![7]));
    });
    mends(&["partition: raises the numbers that it may give out next above those in use"], |scene| {
        scene.change(|batch| batch.put(keys::partition_reservation(), vec![7]));
    });
}

#[test]
fn files_of_data_that_nobody_names_are_put_apart() {
    mends(&["data/00000000/notes.txt: moves it to orphans/00000000.notes.txt: no row names it"], |scene| {
        _ = scene.disk.create("data/00000000/notes.txt").unwrap().write_at(0, b"keep me")
    });
    mends(
        &[
            "data/00000000/0000000000000002.1.4.0.9: moves it to orphans/00000000.0000000000000002.1.4.0.9: no row names it",
        ],
        |scene| _ = scene.disk.create("data/00000000/0000000000000002.1.4.0.9").unwrap(),
    );
}

#[test]
fn a_file_in_use_that_counts_as_garbage_stays() {
    let disk = damaged(|scene| {
        let (chunk, name) = scene.chunk(0);
        scene.change(|batch| batch.put(keys::garbage(chunk.file), name.into_bytes()));
    });
    let (repair, _) = repaired(&(Arc::new(disk.clone()) as Arc<dyn Disk>));
    assert_eq!(texts(&repair.left.findings), Vec::<String>::new());
    let partition = open(&disk);
    settle(&partition);
    let volume = partition.volume(VolumeId(ID)).unwrap();
    let large = volume.lookup(VnodeId::ROOT, b"large").unwrap();
    let mut bytes = vec![0; LARGE_BYTES as usize];
    assert_eq!(volume.open(large, 0, u64::MAX).unwrap().read_at(0, &mut bytes).unwrap(), bytes.len());
}

/// A clone shares rows with the volume: each is repaired as it is shown there, and the other goes on to show what it shows.
#[test]
fn clones_are_repaired_by_themselves() {
    mends(
        &[
            "volume 101: vnode 2: sets its link count from 1 to 2",
            "volume 100: vnode 2: sets its link count from 1 to 2",
        ],
        |scene| {
            scene.status(SMALL, |record| record.status.link_count = 1);
        },
    );
    // Only the clone is damaged: the volume was changed since.
    mends(&["volume 101: directory 1: removes 'l': vnode 8 is not there"], |scene| {
        let volume = scene.partition.volume(VolumeId(ID)).unwrap();
        volume.remove_file(VnodeId::ROOT, b"l", stamp(9)).unwrap();
        scene.change(|batch| batch.delete(key(SYMLINK, Part::Status, Snapshot(1))));
        scene.counters_of(CLONE, |counters| (counters.used_kib, counters.files) = (28, 6));
        settle(&scene.partition);
    });
    mends(
        &["volume 101: vnode 8: names it /lost+found/__ORPHANFILE__.8.7: no directory names it"],
        |scene| {
            let volume = scene.partition.volume(VolumeId(ID)).unwrap();
            volume.create_file(VnodeId::ROOT, b"newer", &SetStatus::default(), stamp(9)).unwrap();
            // The root's page of the clone loses a name, not that of the volume.
            scene.remove_in(ROOT, Snapshot(1), b"l");
        },
    );
}

#[test]
fn what_is_not_bookkeeping_stays_and_is_told() {
    let table: [(Damage, &str); 4] = [
        (
            |scene| scene.change(|batch| batch.put(key(SMALL, Part::Status, Snapshot(1)), vec![9, 1, 1])),
            "vnode 2 of volume group 1: a vnode's row has kind 9",
        ),
        (
            |scene| {
                let snapshot = scene.snapshot(DIRECTORY, Part::Page(0));
                scene.change(|batch| batch.put(key(DIRECTORY, Part::Page(0), snapshot), vec![1; 7]));
            },
            "volume 100: directory 3: page 0 is none",
        ),
        (
            |scene| scene.change(|batch| batch.put(keys::volume(VolumeId(ID)), vec![1, 2])),
            "volume 100: a volume's row: is cut off",
        ),
        (
            |scene| {
                let (snapshot, record) = scene.record(SMALL);
                let key = VnodeKey { group: GroupId(9), vnode: SMALL, part: Part::Status, snapshot }.key();
                scene.change(|batch| batch.put(key, record.encode()));
            },
            "vnode 2 of volume group 9: its group is not there",
        ),
    ];
    for (damage, expected) in table {
        let disk = damaged(damage);
        let before = content(&disk);
        let (repair, _) = repaired(&(Arc::new(disk.clone()) as Arc<dyn Disk>));
        let left = texts(&repair.left.findings);
        assert!(left.iter().any(|left| left == expected), "{expected}\n{left:#?}");
        assert!(content(&disk) == before, "{expected}: {:#?}", texts(&repair.repairs));
    }
}

#[test]
fn a_repair_that_was_killed_is_ended_by_another() {
    let damage: Damage = |scene| {
        scene.change(|batch| batch.put(keys::group(GROUP), vec![7]));
        scene.change(|batch| batch.delete(keys::counters(VolumeId(ID))));
        scene.names(ROOT, |names| assert!(names.remove(b"l").unwrap().is_some()));
        scene.names(DIRECTORY, |names| names.insert(b"ghost", ghost(500)).unwrap());
        scene.disk.create("data/00000000/notes.txt").unwrap();
    };
    let mut cut = 0;
    loop {
        let disk = damaged(damage);
        disk.set_cut(Some(Cut::After(cut)));
        let is_done = try_repair(&(Arc::new(disk.clone()) as Arc<dyn Disk>), &mut Vec::new()).is_ok();
        for (disk, how) in [(disk.after_kill(), "killed"), (disk.after_power_loss(cut), "power lost")] {
            let (repair, _) = repaired(&(Arc::new(disk.clone()) as Arc<dyn Disk>));
            assert_eq!(texts(&repair.left.findings), Vec::<String>::new(), "{how} after {cut} operations");
            let volume = open(&disk).volume(VolumeId(ID)).unwrap();
            let folder = volume.lookup(VnodeId::ROOT, b"lost+found").unwrap();
            assert!(volume.lookup(folder, b"__ORPHANFILE__.8.7").is_ok(), "{how} after {cut} operations");
        }
        if is_done {
            break;
        }
        cut += 1 + cut / 8;
    }
    assert!(cut > 20, "it has many moments: {cut}");
}

#[test]
fn what_was_changed_since_a_repair_is_not_taken_back() {
    let disk = damaged(|scene| scene.names(DIRECTORY, |names| names.insert(b"ghost", ghost(500)).unwrap()));
    let this: Arc<dyn Disk> = Arc::new(disk.clone());
    let (_, kept) = repaired(&this);
    let partition = open(&disk);
    let volume = partition.volume(VolumeId(ID)).unwrap();
    let directory = volume.lookup(VnodeId::ROOT, b"d").unwrap();
    volume.create_file(directory, b"new", &SetStatus::default(), stamp(60)).unwrap();
    drop((volume, partition));
    let before = content(&disk);
    let error = repair::undo(&this, &config(), &mut &kept[..]).unwrap_err();
    assert!(
        matches!(&error, UndoError::Changed(what) if what.contains("volume 100") || what.contains("vnode 3")),
        "{error}"
    );
    assert!(content(&disk) == before);
    for bad in
        [&b"something else\n"[..], b"afar fsck undo 1\nrow x1 - -\n", b"afar fsck undo 1\nmove x2e2e x61\n"]
    {
        let error = repair::undo(&this, &config(), &mut &bad[..]).unwrap_err();
        assert!(matches!(error, UndoError::BadLine(_)), "{error}");
    }
}

/// A client keeps what it was told under a version for ever.
#[test]
fn no_version_is_told_for_two_contents_when_a_repair_is_taken_back() {
    let disk = damaged(|scene| scene.names(DIRECTORY, |names| names.insert(b"ghost", ghost(500)).unwrap()));
    let this: Arc<dyn Disk> = Arc::new(disk.clone());
    let version = || {
        let volume = open(&disk).volume(VolumeId(ID)).unwrap();
        volume.status(volume.lookup(VnodeId::ROOT, b"d").unwrap()).unwrap().data_version
    };
    let first = version();
    let (_, kept) = repaired(&this);
    let second = version();
    repair::undo(&this, &config(), &mut &kept[..]).unwrap();
    let third = version();
    assert!(first < second && second < third, "{first} {second} {third}");
}

/// The volume as it is salvaged on a scratch disk, which is whole.
fn salvaged(disk: &SimulatedDisk, wanted: &str) -> Salvaged {
    let bytes = files(disk);
    let salvaged = repair::salvage(&scratch(disk), Path::new("test"), &config(), wanted, stamp(50)).unwrap();
    let report = fsck::check_one(&salvaged.partition, salvaged.volume.id()).unwrap();
    // What cannot be read is still there, and is not shown.
    let lost = texts(&salvaged.lost);
    assert!(
        texts(&report.findings).iter().all(|found| lost.contains(found)),
        "{:#?}\n{lost:#?}",
        report.findings
    );
    assert!(files(disk) == bytes, "the disk is as it was");
    salvaged
}

#[test]
fn of_a_damaged_volume_all_is_saved_that_can_be_read() {
    let root_page: Damage = |scene| {
        let snapshot = scene.snapshot(ROOT, Part::Page(0));
        scene.change(|batch| batch.put(key(ROOT, Part::Page(0), snapshot), vec![1; PAGE]));
    };
    let table: [(Damage, &[&str], &[&str]); 5] = [
        (|_| {}, &[], &["small", "large", "d/inside", "d/below", "l"]),
        (
            |scene| scene.change(|batch| batch.put(key(SMALL, Part::Status, Snapshot(1)), vec![9, 1, 1])),
            &[
                "volume 100: /small: the row of vnode 2 cannot be read",
                "volume 100: /small again: the row of vnode 2 cannot be read",
            ],
            &["large", "d/inside", "d/below", "l"],
        ),
        (
            root_page,
            &["volume 100: /: pages of the directory cannot be read: names are lost"],
            &[
                "__ORPHANFILE__.2.2",
                "__ORPHANFILE__.4.3",
                "__ORPHANDIR__.3.4/inside",
                "__ORPHANDIR__.3.4/below",
            ],
        ),
        (
            |scene| scene.change(|batch| batch.put(key(ROOT, Part::Status, Snapshot(1)), vec![9, 1, 1])),
            &["volume 100: /: the root directory's row cannot be read: its owner and rights are lost"],
            &["small", "large", "d/inside", "d/below", "l"],
        ),
        (|scene| scene.change(|batch| batch.put(keys::volume(VolumeId(ID)), vec![1, 2])), &[], &[]),
    ];
    for (damage, lost, there) in table {
        let disk = damaged(damage);
        if there.is_empty() {
            // The clone shows the same group: which one the volume showed is not known.
            let error = repair::salvage(&scratch(&disk), Path::new("test"), &config(), "100", stamp(50));
            assert!(error.is_err());
            continue;
        }
        let salvaged = salvaged(&disk, "100");
        for lost in lost {
            let said = texts(&salvaged.lost);
            assert!(said.iter().any(|said| said == lost), "{lost}\n{said:#?}");
        }
        assert_eq!(salvaged.lost.is_empty(), lost.is_empty(), "{:#?}", texts(&salvaged.lost));
        for path in there {
            let lookup = |at, name: &str| salvaged.volume.lookup(at, name.as_bytes());
            let found = path.split('/').try_fold(VnodeId::ROOT, lookup);
            assert!(found.is_ok(), "{path}: {found:?}");
        }
        if there.contains(&"large") {
            let large = salvaged.volume.lookup(VnodeId::ROOT, b"large").unwrap();
            let mut bytes = vec![1; LARGE_BYTES as usize];
            assert_eq!(
                salvaged.volume.open(large, 0, u64::MAX).unwrap().read_at(0, &mut bytes).unwrap(),
                bytes.len()
            );
            assert_eq!((bytes[0], bytes[8000], bytes[LARGE_BYTES as usize - 1]), (8, 7, 7));
        }
    }
}

#[test]
fn a_volume_whose_row_is_lost_is_found_by_what_is_left_of_it() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = super::volume(&partition, 300);
    volume.create_file(VnodeId::ROOT, b"here", &SetStatus::default(), stamp(2)).unwrap();
    super::volume(&partition, 301);
    let mut batch = afs_store::Batch::default();
    batch.put(keys::volume(VolumeId(300)), vec![1, 2]);
    partition.shared().store.submit(batch).unwrap();
    drop((volume, partition));
    let salvaged = salvaged(&disk, "300");
    salvaged.volume.lookup(VnodeId::ROOT, b"here").unwrap();
    assert!(texts(&salvaged.lost)[0].contains("its row cannot be read"), "{:?}", salvaged.lost);
}
