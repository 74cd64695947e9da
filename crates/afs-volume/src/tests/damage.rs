//! Each kind of damage that `fsck` looks for, done to a small volume with a clone, and what is said of it: which volume, what
//! in it, what is wrong.

use super::rests::fill_log;
use super::scene::*;
use super::{assert_whole, config, open, settle, stamp, volume};
use crate::disk::{Cut, Disk, SimulatedDisk};
use crate::keys::{self, FileId, GroupId, Key, Part, Replaced, Snapshot, VnodeKey};
use crate::pages::PAGE;
use crate::records::ChunkRecord;
use crate::{Partition, SetStatus, StoreRange, VnodeId, VolumeError, fsck};
use afs_store::Batch;
use afs_wire::directory::layout::{BITMAP_AT, FREE_MAP_AT, TAG_AT};
use afs_wire::ids::{DataVersion, Uniquifier, VnodeNumber, VolumeId};
use std::path::Path;
use std::sync::Arc;

/// Does the damage, and expects this among what is found afterwards.
fn finds(expected: &str, damage: impl FnOnce(&Scene)) {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    build(&partition);
    let scene = Scene { disk: disk.clone(), partition };
    assert_whole(&scene.partition, "before the damage");
    damage(&scene);
    drop(scene);
    let report = fsck::check(&open(&disk)).unwrap();
    let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.iter().any(|finding| finding == expected), "not found: {expected}\n{found:#?}");
    assert!(!report.is_clean());
}

#[test]
fn rows_that_belong_to_nothing() {
    finds("row [99]: has a key that is none", |scene| {
        scene.change(|batch| batch.put(Key(vec![0x99]), vec![1]));
    });
    finds("vnode 2 of volume group 9: its group is not there", |scene| {
        let (snapshot, record) = scene.record(SMALL);
        let key = VnodeKey { group: GroupId(9), vnode: SMALL, part: Part::Status, snapshot }.key();
        scene.change(|batch| batch.put(key, record.encode()));
    });
    finds("vnode 2 of volume group 1: Inline of snapshot 0 is shown by no volume", |scene| {
        scene.change(|batch| batch.put(key(SMALL, Part::Inline, Snapshot(0)), b"old".to_vec()));
    });
    finds("vnode 2 of volume group 1: Status is of snapshot 7, which is to come", |scene| {
        let (_, record) = scene.record(SMALL);
        scene.change(|batch| batch.put(key(SMALL, Part::Status, Snapshot(7)), record.encode()));
    });
}

#[test]
fn notes_of_what_was_replaced_that_are_missing_or_of_nothing() {
    let note = |group, snapshot, at| {
        let snapshot = Snapshot(snapshot);
        let version = VnodeKey { group: GroupId(group), vnode: LARGE, part: Part::Chunk(0), snapshot };
        Replaced { at: Snapshot(at), version }.key()
    };
    finds("vnode 4 of volume group 1: it is not noted that Chunk(0) of snapshot 1 was replaced", |scene| {
        scene.change(|batch| batch.delete(note(1, 1, 2)));
    });
    finds(
        "note of vnode 4 of volume group 1: Chunk(0) of snapshot 2, replaced in 3, is not there",
        |scene| {
            scene.change(|batch| batch.put(note(1, 2, 3), vec![]));
            scene.change(|batch| batch.delete(key(LARGE, Part::Chunk(0), Snapshot(2))));
        },
    );
    finds("note of vnode 4 of volume group 9: its group is not there", |scene| {
        scene.change(|batch| batch.put(note(9, 1, 2), vec![]));
    });
}

#[test]
fn rows_that_cannot_be_read() {
    finds("vnode 2 of volume group 1: a vnode's row has kind 9", |scene| {
        scene.change(|batch| batch.put(key(SMALL, Part::Status, Snapshot(1)), vec![9, 1, 1]));
    });
    finds("vnode 4 of volume group 1: a chunk's row has more bytes than a chunk", |scene| {
        let chunk = ChunkRecord { length: u32::MAX, ..scene.chunk(1).0 };
        scene.change(|batch| batch.put(key(LARGE, Part::Chunk(1), Snapshot(1)), chunk.encode()));
    });
}

#[test]
fn numbers_that_will_be_given_out_again() {
    finds("vnode 200 of volume group 1: its number is to be given out, as the next is 10", |scene| {
        let (snapshot, record) = scene.record(SMALL);
        scene.change(|batch| batch.put(key(VnodeNumber(200), Part::Status, snapshot), record.encode()));
    });
    finds("vnode 2 of volume group 1: its uniquifier 999999 is to be given out", |scene| {
        scene.status(SMALL, |record| record.status.id.unique = Uniquifier(999_999));
    });
    finds("vnode 2 of volume group 1: its data version 10000000 is not reserved", |scene| {
        scene.status(SMALL, |record| record.status.data_version = DataVersion(10_000_000));
    });
}

#[test]
fn counters_that_are_wrong() {
    // 2 KiB for each of three directories, 20 for the large file, 1 for each of the others.
    finds("volume 100: header: says 999 KiB are used, and its vnodes use 29", |scene| {
        scene.counters(|counters| counters.used_kib = 999);
    });
    finds("volume 100: header: says 50 vnodes, and there are 7", |scene| {
        scene.counters(|counters| counters.files = 50);
    });
}

#[test]
fn trees_that_are_broken() {
    finds("volume 100: vnode 1: the root directory is not there", |scene| {
        let (snapshot, _) = scene.record(ROOT);
        scene.change(|batch| batch.delete(key(ROOT, Part::Status, snapshot)));
    });
    finds("volume 101: vnode 1: the root directory is not there", |scene| {
        let (snapshot, _) = scene.record(ROOT);
        scene.change(|batch| batch.delete(key(ROOT, Part::Status, snapshot)));
    });
    finds("volume 100: vnode 8: is an orphan: no directory names it", |scene| {
        scene.names(ROOT, |names| assert!(names.remove(b"l").unwrap().is_some()));
    });
    finds("volume 100: vnode 2: has link count 7, and should have 2", |scene| {
        scene.status(SMALL, |record| record.status.link_count = 7);
    });
    finds("volume 100: vnode 3: has link count 9, and should have 3", |scene| {
        scene.status(DIRECTORY, |record| record.status.link_count = 9);
    });
    finds("volume 100: vnode 3: is a directory with 2 names", |scene| {
        let id = scene.id(DIRECTORY);
        scene.names(ROOT, |names| names.insert(b"again", id).unwrap());
    });
    finds("volume 100: directory 3: 'stolen' is vnode 8, which is in 1", |scene| {
        let id = scene.id(SYMLINK);
        scene.names(DIRECTORY, |names| names.insert(b"stolen", id).unwrap());
    });
    finds("volume 100: directory 3: 'ghost' is vnode 500, which is not there", |scene| {
        let id = VnodeId { vnode: VnodeNumber(500), unique: Uniquifier(5) };
        scene.names(DIRECTORY, |names| names.insert(b"ghost", id).unwrap());
    });
    // A log is read on terminals.
    finds("volume 100: directory 3: 'a\\n\\u{1b}[2Jb' is vnode 500, which is not there", |scene| {
        let id = VnodeId { vnode: VnodeNumber(500), unique: Uniquifier(5) };
        scene.names(DIRECTORY, |names| names.insert(b"a\n\x1b[2Jb", id).unwrap());
    });
    finds("volume 100: directory 3: 'inside' is vnode 6, which is not there", |scene| {
        // The same vnode number, of another use.
        scene.status(INSIDE, |record| record.status.id.unique = Uniquifier(1));
    });
}

#[test]
fn directories_that_are_damaged() {
    finds("volume 100: directory 3: page 0 is missing", |scene| {
        let snapshot = scene.snapshot(DIRECTORY, Part::Page(0));
        scene.change(|batch| batch.delete(key(DIRECTORY, Part::Page(0), snapshot)));
    });
    finds("volume 100: directory 3: page 0 is none", |scene| {
        let snapshot = scene.snapshot(DIRECTORY, Part::Page(0));
        scene.change(|batch| batch.put(key(DIRECTORY, Part::Page(0), snapshot), vec![1; 7]));
    });
    finds("volume 100: directory 3: has a page behind its end", |scene| {
        scene.change(|batch| batch.put(key(DIRECTORY, Part::Page(1), Snapshot(1)), vec![0; PAGE]));
    });
    finds("volume 100: directory 3: page 0 does not begin as a page of a directory does", |scene| {
        scene.page(DIRECTORY, |page| page[TAG_AT] = 0);
    });
    finds("volume 100: directory 3: page 0 has 47 free slots and not 3", |scene| {
        scene.page(DIRECTORY, |page| page[FREE_MAP_AT] = 3);
    });
    finds("volume 100: directory 3: slot 40 is in use by no entry", |scene| {
        scene.page(DIRECTORY, |page| page[BITMAP_AT + 5] |= 1);
    });
    finds("volume 100: directory 3: has no '.'", |scene| {
        scene.names(DIRECTORY, |names| assert!(names.remove(b".").unwrap().is_some()));
    });
    finds("volume 100: directory 3: '..' is 5, and should be 1", |scene| {
        let id = scene.id(BELOW);
        scene.names(DIRECTORY, |names| names.replace(b"..", id).unwrap());
    });
    finds("volume 100: directory 3: has two entries 'inside'", |scene| {
        let id = scene.id(INSIDE);
        scene.names(DIRECTORY, |names| names.insert(b"inside", id).unwrap());
    });
}

/// All that a damaged directory names was told of as orphans, with wrong numbers of links, and one damaged row kept what comes
/// behind it from being looked at.
#[test]
fn what_a_damaged_directory_may_name_is_no_orphan_and_all_else_is_looked_at() {
    type Case = (fn(&Scene), &'static [&'static str]);
    fn orphan(scene: &Scene) {
        scene.names(DIRECTORY, |names| assert!(names.remove(b"below").unwrap().is_some()));
    }
    fn cut(scene: &Scene, vnode: VnodeNumber, part: Part) {
        let snapshot = scene.snapshot(vnode, part);
        scene.change(|batch| batch.put(key(vnode, part, snapshot), vec![1; 7]));
    }
    let table: [Case; 5] = [
        (
            |scene| {
                cut(scene, SMALL, Part::Status);
                orphan(scene);
            },
            &[
                "vnode 2: a vnode's row: is cut off",
                "vnode 3: has link count 3, and should have 2",
                "vnode 5: is an orphan: no directory names it",
            ],
        ),
        (|scene| cut(scene, DIRECTORY, Part::Page(0)), &["directory 3: page 0 is none"]),
        (|scene| cut(scene, ROOT, Part::Page(0)), &["directory 1: page 0 is none"]),
        (
            |scene| {
                cut(scene, ROOT, Part::Page(0));
                orphan(scene);
            },
            &[
                "directory 1: page 0 is none",
                "vnode 3: has link count 3, and should have 2",
                "vnode 5: is an orphan: no directory names it",
            ],
        ),
        (
            |scene| {
                cut(scene, LARGE, Part::Chunk(0));
                orphan(scene);
            },
            &[
                "a chunk's row: is cut off",
                "vnode 3: has link count 3, and should have 2",
                "vnode 5: is an orphan: no directory names it",
            ],
        ),
    ];
    for (damage, expected) in table {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        build(&partition);
        let scene = Scene { disk: disk.clone(), partition };
        damage(&scene);
        let report = fsck::check_one(&scene.partition, VolumeId(ID)).unwrap();
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        let expected: Vec<String> = expected.iter().map(|why| format!("volume {ID}: {why}")).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn data_that_are_not_what_the_status_says() {
    finds("volume 100: vnode 2: has 3 bytes of data, and says 5", |scene| {
        scene.status(SMALL, |record| record.status.length = 5);
    });
    finds("volume 100: vnode 4: chunk 1 goes beyond its 9000 bytes", |scene| {
        scene.status(LARGE, |record| record.status.length = 9000);
    });
}

#[test]
fn files_of_data_that_are_lost_or_of_nobody() {
    let name_of = |n| {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        build(&partition);
        Scene { disk, partition }.chunk(n).1
    };
    let (first, second) = (name_of(0), name_of(1));
    finds(&format!("volume 100: vnode 4: {second} has 10 bytes, and should have 8192"), |scene| {
        scene.disk.open(&second).unwrap().set_length(10).unwrap();
    });
    finds(&format!("volume 101: vnode 4: {second} is not there"), |scene| {
        // The clone shares the second chunk.
        scene.disk.remove(&second).unwrap();
    });
    finds(&format!("volume 100: vnode 4: {first} is not there"), |scene| {
        scene.disk.remove(&first).unwrap();
    });
    finds("data/00000000/notes.txt: is no file of ours", |scene| {
        scene.disk.create("data/00000000/notes.txt").unwrap();
    });
    finds("data/00000000/00000000000000ff.1.4.0.1: is an orphan: no row names it", |scene| {
        scene.disk.create("data/00000000/00000000000000ff.1.4.0.1").unwrap();
    });
    finds(&format!("{first}: is among the garbage, and a row names it"), |scene| {
        let FileId(file) = scene.chunk(0).0.file;
        scene.change(|batch| batch.put(keys::garbage(FileId(file)), first.clone().into_bytes()));
    });
}

/// One row kept a whole partition from opening, and with it all that others had on it.
#[test]
fn a_damaged_volume_is_offline_and_the_others_are_served() {
    type Damaging = fn(&Scene);
    // What is damaged, what fsck says, and which volumes cannot be shown then.
    let table: [(Damaging, &str, &[u32]); 6] = [
        (
            |scene| scene.change(|batch| batch.put(keys::volume(VolumeId(ID)), vec![1, 2])),
            "volume 100: a volume's row: is cut off",
            &[ID],
        ),
        (
            |scene| scene.change(|batch| batch.put(keys::volume(VolumeId(CLONE)), vec![1, 2])),
            "volume 101: a volume's row: is cut off",
            &[CLONE],
        ),
        (
            |scene| {
                let mut record = scene.partition.volume(VolumeId(CLONE)).unwrap().record();
                record.group = GroupId(77);
                scene.change(|batch| batch.put(keys::volume(VolumeId(CLONE)), record.encode()));
            },
            "volume 101: its row: names a volume group that is not there",
            &[CLONE],
        ),
        (
            |scene| scene.change(|batch| batch.delete(keys::counters(VolumeId(ID)))),
            "volume 100: its counters: are not there",
            &[ID],
        ),
        (
            |scene| scene.change(|batch| batch.put(keys::group(GROUP), vec![7])),
            "volume group 1: a volume group's row is cut off",
            &[ID, CLONE],
        ),
        (
            |scene| scene.change(|batch| batch.put(keys::garbage(FileId(900)), b"x".to_vec())),
            "row [06, 00, 00, 00, 00, 00, 00, 03, 84]: is of garbage, and names no file of data",
            &[],
        ),
    ];
    for (damage, finding, hidden) in table {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        build(&partition);
        let scene = Scene { disk: disk.clone(), partition };
        let other = volume(&scene.partition, 200);
        damage(&scene);
        drop((other, scene));

        let partition = open(&disk);
        let damaged: Vec<u32> = partition.damaged_volumes().into_iter().map(|(id, _)| id.0).collect();
        assert_eq!(damaged, hidden, "{finding}");
        for id in [ID, CLONE, 200] {
            let found = partition.volume(VolumeId(id)).map(|volume| volume.check_online());
            if hidden.contains(&id) {
                assert!(matches!(found, Err(VolumeError::Offline { .. })), "{finding}: {found:?}");
                let again = partition.create_volume(&super::new_volume(id), stamp(9));
                assert!(matches!(again, Err(VolumeError::VolumeExists(_))), "{finding}: {again:?}");
            } else {
                assert!(matches!(found, Ok(Ok(()))), "{finding}: {found:?}");
            }
        }
        let report = fsck::check(&partition).unwrap();
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|found| found == finding), "not found: {finding}\n{found:#?}");
        // The others go on, over maintenance and another start.
        let other = partition.volume(VolumeId(200)).unwrap();
        other.create_file(VnodeId::ROOT, b"new", &SetStatus::default(), stamp(9)).unwrap();
        drop(other);
        settle(&partition);
        drop(partition);
        assert_eq!(open(&disk).damaged_volumes().len(), hidden.len(), "{finding}");
    }
}

/// The data that a clone shows stay for as long as nobody knows what it shows; when it is removed their space comes back.
#[test]
fn nothing_goes_that_a_damaged_clone_may_show() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    build(&partition);
    let scene = Scene { disk: disk.clone(), partition };
    let row = scene.store().store().get(&keys::volume(VolumeId(CLONE))).unwrap().unwrap();
    scene.change(|batch| batch.put(keys::volume(VolumeId(CLONE)), vec![1, 2]));
    drop(scene);

    let partition = open(&disk);
    let original = partition.volume(VolumeId(ID)).unwrap();
    let large = original.lookup(VnodeId::ROOT, b"large").unwrap();
    original.remove_file(VnodeId::ROOT, b"large", stamp(9)).unwrap();
    settle(&partition);
    // As if it had been repaired: all that it showed is there.
    let mut batch = Batch::default();
    batch.put(keys::volume(VolumeId(CLONE)), row);
    partition.shared().store.submit(batch).unwrap();
    drop((original, partition));
    let partition = open(&disk);
    let clone = partition.volume(VolumeId(CLONE)).unwrap();
    let mut bytes = vec![0; LARGE_BYTES as usize];
    assert_eq!(clone.open(large, 0, LARGE_BYTES).unwrap().read_at(0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.iter().all(|byte| *byte == 7));
    drop(clone);
    settle(&partition);
    assert_whole(&partition, "after the repair");

    let files = |disk: &SimulatedDisk| disk.list("data/00000000").unwrap().len();
    assert!(files(&disk) > 0);
    let mut batch = Batch::default();
    batch.put(keys::volume(VolumeId(CLONE)), vec![1, 2]);
    partition.shared().store.submit(batch).unwrap();
    drop(partition);
    let partition = open(&disk);
    partition.delete_volume(VolumeId(CLONE)).unwrap();
    settle(&partition);
    assert_whole(&partition, "after its removal");
    assert_eq!(files(&disk), 0, "only the clone had files of data");
}

#[test]
fn rows_that_were_cut_short_are_named_and_nothing_panics() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    volume(&partition, 100);
    drop(partition);
    let length = disk.open("rows.redb").unwrap().length().unwrap();
    let lengths = [0, 1, 9, 31, 32, 63, 64, 320, 4095, 4096, 4097, 8192, 40_000];
    for cut in lengths.into_iter().chain([1, 100, 4096, 30_000].map(|less| length - less)) {
        assert!(cut < length);
        let disk = disk.after_kill();
        disk.open("rows.redb").unwrap().set_length(cut).unwrap();
        let error = match Partition::open_on(Arc::new(disk.clone()), Path::new("test"), config()) {
            // Nothing was in what is missing.
            Ok(partition) => {
                let findings = fsck::check(&partition).unwrap().findings;
                assert!(
                    matches!(&findings[..], [told] if told.why.contains("no row is lost")),
                    "{cut}: {findings:?}"
                );
                assert!(partition.volume(VolumeId(100)).is_ok() && cut > 40_000, "{cut}");
                continue;
            }
            Err(error) => error,
        };
        let told = error.to_string();
        assert!(told.contains("rows.redb") && told.contains("put back a copy"), "{cut}: {told}");
        assert_eq!(disk.open("rows.redb").unwrap().length().unwrap(), cut, "it is left as it is");
    }
}

#[test]
fn nothing_is_found_in_a_volume_that_is_changed_while_it_is_checked() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    build(&partition);
    let volume = partition.volume(VolumeId(ID)).unwrap();
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let set = SetStatus::default();
            let name = |n: u64| format!("new {}", n % 50).into_bytes();
            for n in 0..500 {
                if n >= 50 {
                    volume.remove_file(VnodeId::ROOT, &name(n), stamp(4)).unwrap();
                }
                let file = volume.create_file(VnodeId::ROOT, &name(n), &set, stamp(4)).unwrap().vnode.id;
                let range = StoreRange { position: 0, length: 9000, file_length: 9000 };
                let mut store = volume.begin_store(file, range).unwrap();
                store.write(&[1; 9000]).unwrap();
                store.commit(&set, stamp(5), false).unwrap();
            }
        });
        while !changes.is_finished() {
            let report = fsck::check_one(&partition, VolumeId(ID)).unwrap();
            assert_eq!(report.findings, [], "of {} vnodes", report.vnodes);
        }
    });
    settle(&partition);
    assert_whole(&partition, "afterwards");
}

/// It was not checked then: the row that freezes it found no room.
#[test]
fn a_volume_is_checked_also_while_its_disk_is_full_or_has_failed() {
    type Case = (fn(&SimulatedDisk, &Partition), fn(&VolumeError) -> bool);
    let table: [Case; 2] = [
        (fill_log, |error| matches!(error, VolumeError::DiskFull)),
        (
            |disk, partition| {
                disk.set_cut(Some(Cut::ErrorsFrom(0)));
                let mut batch = Batch::default();
                batch.delete(keys::half(VolumeId(77)));
                partition.shared().store.submit(batch).unwrap();
                partition.sync().unwrap_err();
            },
            |error| matches!(error, VolumeError::Io { .. }),
        ),
    ];
    for (fails, is_expected) in table {
        for is_damaged in [false, true] {
            let disk = SimulatedDisk::new(1 << 30);
            let partition = open(&disk);
            build(&partition);
            let scene = Scene { disk: disk.clone(), partition };
            if is_damaged {
                scene.status(SMALL, |record| record.status.length = 5);
            }
            fails(&disk, &scene.partition);
            let volume = scene.partition.volume(VolumeId(ID)).unwrap();
            assert!(is_expected(&volume.freeze().unwrap_err()));
            let report = fsck::check_one(&scene.partition, VolumeId(ID)).unwrap();
            let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
            let expected: &[&str] =
                if is_damaged { &["volume 100: vnode 2: has 3 bytes of data, and says 5"] } else { &[] };
            assert_eq!(found, expected);
            assert_eq!((report.volumes, report.vnodes), (1, 7));
        }
    }
}
