//! Replicas that get what has changed, when that breaks off: they show what they had, and what came is not sent again.

use super::half::{PIECE, add_file, begin_at, bytes_of, commit, send_since as send, statuses};
use super::restore::{Tree, change, get, tree};
use super::{assert_whole, finish, new_clone, new_volume, open, settle, stamp, volume};
use crate::disk::{Cut, SimulatedDisk};
use crate::keys::{self, Part, VnodeKey};
use crate::records::CHUNK;
use crate::{Arrived, NewVolume, Partition, Restore, Volume, VolumeError, VolumeKind};
use afs_store::{Batch, lock};
use afs_wire::ids::{AfsTime, DataVersion, VnodeNumber, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const REPLICA: VolumeId = VolumeId(2);

/// A replica of this contents, in service.
fn replica(partition: &Partition, contents: &Tree) -> Arc<Volume> {
    let (kind, parent) = (VolumeKind::ReadOnly, VolumeId(1));
    let new = NewVolume { kind, parent, with_root: false, ..new_volume(REPLICA.0) };
    partition.create_volume(&new, stamp(1)).unwrap();
    let mut restore = partition.begin_restore(REPLICA).unwrap();
    assert!(send(&mut restore, None, contents, &Tree::new(), usize::MAX).1);
    let volume = commit(restore);
    finish(&volume);
    volume
}

/// Begins to fill the replica, from where the last attempt has come to.
fn begin(partition: &Partition) -> (Option<Arrived>, Restore) {
    begin_at(partition, REPLICA)
}

/// The contents of a volume without data versions: a power loss raises these.
fn without_versions(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    tree.values_mut().for_each(|(status, ..)| status.data_version = DataVersion(0));
    tree
}

#[test]
fn a_replica_whose_releases_break_off_anywhere_shows_the_last_or_the_next_one() {
    let (mut all, mut lost) = (0, 0);
    for seed in 0..40 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let origin = open(&SimulatedDisk::new(1 << 30));
        let source = volume(&origin, 1);
        (1..25).for_each(|n| change(&source, &mut rng, n));
        add_file(&source, "long", &vec![7; rng.random_range(0..150_000)]);
        let mut disk = SimulatedDisk::new(1 << 30);
        let mut partition = open(&disk);
        let mut base = tree(&source);
        replica(&partition, &base);
        partition.sync().unwrap();
        // What it may show after a power loss: the release that was synced, or one after that.
        let mut possible = vec![base.clone()];
        let mut has_lost = false;
        let mut releases = 0;
        for attempt in 1..60 {
            let when = format!("seed {seed}, attempt {attempt}");
            if rng.random_bool(0.5) {
                (0..6).for_each(|i| change(&source, &mut rng, 100 * attempt + i));
                if rng.random_bool(0.3) {
                    add_file(&source, &format!("long{attempt}"), &vec![attempt as u8; 100_000]);
                }
            }
            let wanted = tree(&source);
            let shows = |partition: &Partition, expected: &Tree, has_lost: bool| {
                let found = tree(&get(partition, REPLICA.0));
                match has_lost {
                    true => assert!(without_versions(&found) == without_versions(expected), "{when}"),
                    false => assert!(found == *expected, "{when}"),
                }
            };
            let (arrived, mut restore) = begin(&partition);
            shows(&partition, &base, has_lost);
            let most = rng.random_range(0..bytes_of(&wanted) / 2);
            let (_, is_whole) = send(&mut restore, arrived.as_ref(), &wanted, &base, most);
            drop(arrived);
            shows(&partition, &base, has_lost);
            if is_whole && rng.random_bool(0.7) {
                commit(restore);
                base = wanted;
                possible.push(base.clone());
                releases += 1;
                assert_eq!(partition.halves(AfsTime(9)).unwrap(), [], "{when}");
            } else {
                match rng.random_range(0..7) {
                    0 => {
                        disk = disk.after_kill();
                        drop((restore, partition));
                        partition = open(&disk);
                    }
                    1 => {
                        partition.sync().unwrap();
                        disk = disk.after_power_loss(seed + u64::from(attempt));
                        drop((restore, partition));
                        partition = open(&disk);
                        possible = vec![base.clone()];
                        has_lost = true;
                    }
                    2 => {
                        // Without a sync.
                        drop(restore);
                        disk = disk.after_power_loss(seed + u64::from(attempt));
                        drop(partition);
                        partition = open(&disk);
                        let found = without_versions(&tree(&get(&partition, REPLICA.0)));
                        let is_found = |possible: &Tree| without_versions(possible) == found;
                        let shown = possible.iter().rposition(is_found);
                        let shown = shown.unwrap_or_else(|| panic!("{when}: no release since the last sync"));
                        lost += possible.len() - 1 - shown;
                        base = possible.swap_remove(shown);
                        possible = vec![base.clone()];
                        has_lost = true;
                    }
                    3 => {
                        restore.give_up();
                        assert_eq!(partition.halves(AfsTime(9)).unwrap(), [], "{when}");
                    }
                    4 => {
                        drop(restore);
                        partition.remove_half(REPLICA).unwrap();
                        assert_eq!(partition.halves(AfsTime(9)).unwrap(), [], "{when}");
                    }
                    _ => drop(restore),
                }
            }
            shows(&partition, &base, has_lost);
            // It brings to the disk what was not synced.
            if rng.random_bool(0.5) {
                settle(&partition);
            }
            assert_whole(&partition, &when);
        }
        all += releases;
    }
    assert!(all > 200, "{all} releases");
    assert!(lost > 10, "{lost} releases were lost with the power");
}

#[test]
fn what_came_of_a_release_is_not_sent_again_not_even_of_a_long_file() {
    for dies in [false, true] {
        let origin = open(&SimulatedDisk::new(1 << 30));
        let source = volume(&origin, 1);
        let long = add_file(&source, "long", &vec![5; 200 * CHUNK as usize]);
        let base = tree(&source);
        let mut disk = SimulatedDisk::new(1 << 30);
        let mut partition = open(&disk);
        replica(&partition, &base);
        for n in 0..100 {
            add_file(&source, &format!("f{n}"), &[n; 500]);
        }
        let length = 300 * CHUNK as usize + 77;
        let range = crate::StoreRange { position: 0, length: length as u64, file_length: 0 };
        let mut store = source.begin_store(long, range).unwrap();
        store.write(&vec![6; length]).unwrap();
        store.commit(&crate::SetStatus::default(), stamp(9), false).unwrap();
        let last = add_file(&source, "longer", &vec![8; length]);
        assert!(last.vnode > long.vnode);
        let wanted = tree(&source);
        let (_, mut restore) = begin(&partition);
        let total = bytes_of(&wanted);
        let most = total - 10 * CHUNK as usize;
        let (first, is_whole) = send(&mut restore, None, &wanted, &base, most);
        assert!(!is_whole);
        if dies {
            disk = disk.after_kill();
            drop((restore, partition));
            partition = open(&disk);
        } else {
            drop(restore);
        }
        assert!(tree(&get(&partition, REPLICA.0)) == base, "readers have the last release");
        settle(&partition);
        assert_whole(&partition, "while a part is there");
        let halves = partition.halves(AfsTime(20)).unwrap();
        assert_eq!((halves[0].volume, halves[0].since), (REPLICA, AfsTime(20)));
        let (arrived, mut restore) = begin(&partition);
        let (second, is_whole) = send(&mut restore, arrived.as_ref(), &wanted, &base, usize::MAX);
        assert!(is_whole);
        // Up to 64 chunks have no row yet when the process is killed.
        let again = first + second - (total - 2 * PIECE);
        assert!(again <= CHUNK as usize * if dies { 65 } else { 3 }, "{again} bytes were sent twice");
        commit(restore);
        assert!(tree(&get(&partition, REPLICA.0)) == wanted);
        settle(&partition);
        assert_whole(&partition, "at the end");
    }
}

/// A replica into which a part of a release has come.
fn with_a_part() -> (SimulatedDisk, Partition, Tree) {
    let origin = open(&SimulatedDisk::new(1 << 30));
    let source = volume(&origin, 1);
    add_file(&source, "file", &[1; 30_000]);
    let base = tree(&source);
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    replica(&partition, &base);
    add_file(&source, "next", &[2; 30_000]);
    add_file(&source, "last", &[3; 30_000]);
    let (_, mut restore) = begin(&partition);
    assert!(!send(&mut restore, None, &tree(&source), &base, 40_000).1);
    drop(restore);
    assert_eq!(partition.halves(AfsTime(9)).unwrap().len(), 1);
    (disk, partition, base)
}

#[test]
fn a_replica_with_a_part_of_a_release_can_be_used_as_if_it_had_none() {
    let shows = |partition: &Partition, id: u32, base: &Tree| assert!(tree(&get(partition, id)) == *base);
    // It takes the place of a read-write volume that was lost.
    let (_, partition, base) = with_a_part();
    let converted = partition.convert_to_read_write(REPLICA, VolumeId(1), "v1").unwrap();
    assert!(converted.is_writable());
    shows(&partition, 1, &base);
    add_file(&converted, "new", b"it can be written");
    settle(&partition);
    assert_whole(&partition, "a conversion");
    // It is cloned, and gone on with.
    let (_, partition, base) = with_a_part();
    partition.clone_volume(REPLICA, &new_clone(3), stamp(3)).unwrap();
    drop(partition.resume_restore(REPLICA).unwrap().unwrap());
    assert!(partition.remove_half(REPLICA).unwrap(), "it was still there");
    shows(&partition, 3, &base);
    shows(&partition, REPLICA.0, &base);
    settle(&partition);
    assert_whole(&partition, "a clone");
    // It becomes a clone of a volume that has moved here.
    let (_, partition, _) = with_a_part();
    let moved = volume(&partition, 1);
    add_file(&moved, "of the moved one", b"1");
    partition.reclone_volume(VolumeId(1), REPLICA, stamp(4)).unwrap();
    shows(&partition, REPLICA.0, &tree(&moved));
    settle(&partition);
    assert_whole(&partition, "a clone anew");
    // It is dumped, and removed.
    let (disk, partition, base) = with_a_part();
    let frozen = get(&partition, REPLICA.0).freeze().unwrap();
    assert_eq!(frozen.vnodes_of_class(false, VnodeNumber(0), 100).unwrap().len(), base.len() - 1);
    drop(frozen);
    partition.delete_volume(REPLICA).unwrap();
    assert!(matches!(partition.volume(REPLICA), Err(VolumeError::NoVolume(_))));
    settle(&partition);
    assert_whole(&partition, "no replica");
    assert_eq!(crate::fsck::check(&partition).unwrap().data_files, 0);
    drop(disk);
}

#[test]
fn what_came_of_a_release_is_told_whole_in_pieces_of_any_size() {
    let origin = open(&SimulatedDisk::new(1 << 30));
    let source = volume(&origin, 1);
    let add = |numbers: std::ops::Range<u32>, bytes: &[u8]| {
        for n in numbers {
            add_file(&source, &format!("f{n}"), bytes);
        }
    };
    add(0..300, &[1]);
    let base = tree(&source);
    let partition = open(&SimulatedDisk::new(1 << 30));
    replica(&partition, &base);
    // Numbers of vnodes far beyond those that the replica shows.
    add(300..900, &[2]);
    let wanted = tree(&source);
    let (_, mut restore) = begin(&partition);
    assert!(send(&mut restore, None, &wanted, &base, usize::MAX).1);
    drop(restore);
    let arrived = partition.arrived(REPLICA).unwrap().unwrap();
    let came: Vec<_> = wanted.iter().filter(|(number, vnode)| base.get(number) != Some(vnode)).collect();
    assert_eq!(came.len(), 601, "the new files, and the directory that they are in");
    for limit in [1, 7, 1000] {
        let mut told = Vec::new();
        for is_directory in [false, true] {
            let mut from = VnodeNumber(0);
            loop {
                let piece = arrived.vnodes_of_class(is_directory, from, limit).unwrap();
                assert!(piece.len() <= limit);
                let Some((last, _)) = piece.last() else { break };
                from = VnodeNumber(last.id.vnode.0 + 1);
                told.extend(piece);
            }
        }
        told.sort_by_key(|(status, _)| status.id.vnode);
        let expected = came.iter().map(|(_, (status, acl, _))| (status, acl));
        assert!(told.iter().map(|(status, acl)| (status, acl)).eq(expected), "by {limit}");
    }
}

/// A restore that continued, and broke off before it named a vnode, threw away what all earlier ones had brought.
#[test]
fn a_release_that_breaks_off_at_its_very_beginning_keeps_what_had_come() {
    let (_disk, partition, base) = with_a_part();
    let came = statuses(&partition.arrived(REPLICA).unwrap().unwrap());
    for _ in 0..2 {
        drop(partition.resume_restore(REPLICA).unwrap().unwrap());
        let arrived = partition.arrived(REPLICA).unwrap().expect("it was kept");
        assert!(statuses(&arrived) == came);
    }
    assert!(tree(&get(&partition, REPLICA.0)) == base);
    // One that begins anew and brings nothing has nothing to keep.
    drop(partition.begin_restore(REPLICA).unwrap());
    assert_eq!(partition.halves(AfsTime(9)).unwrap(), []);
    settle(&partition);
    assert_whole(&partition, "at the end");
}

/// A row behind what the replica shows, of a vnode whose status did not come: of a commit that was cut off.
fn add_a_stray(partition: &Partition) {
    let shared = partition.shared();
    let group = get(partition, REPLICA.0).group.clone();
    let snapshot = lock(&group.state).record.current;
    let key = VnodeKey { group: group.id, vnode: VnodeNumber(2), part: Part::Status, snapshot };
    let mut batch = Batch::default();
    batch.put(key.key(), Vec::new());
    shared.store.submit(batch).unwrap();
}

/// No row can be written any more.
pub(super) fn fill_log(disk: &SimulatedDisk, partition: &Partition) {
    disk.set_capacity(0);
    let shared = partition.shared();
    loop {
        let mut batch = Batch::default();
        batch.delete(keys::half(VolumeId(77)));
        if shared.store.submit(batch).is_err() {
            return;
        }
    }
}

/// Runs something that must not wait for ever.
pub(super) fn in_time<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(f()));
    result.recv_timeout(Duration::from_secs(60)).expect("it hangs")
}

/// The thread held the lock that the restore's end takes.
#[test]
fn a_restore_that_cannot_begin_on_a_full_disk_blocks_nobody_and_loses_nothing() {
    let (disk, partition, base) = with_a_part();
    let came = statuses(&partition.arrived(REPLICA).unwrap().unwrap());
    add_a_stray(&partition);
    let again = partition.clone();
    fill_log(&disk, &partition);
    let began = in_time(move || again.resume_restore(REPLICA).map(|_| ()));
    assert!(matches!(began, Err(VolumeError::DiskFull)), "{began:?}");
    let again = partition.clone();
    let made = in_time(move || again.create_volume(&new_volume(9), stamp(9)).map(|_| ()));
    assert!(matches!(made, Err(VolumeError::DiskFull)), "{made:?}");
    disk.set_capacity(1 << 30);
    assert!(statuses(&partition.arrived(REPLICA).unwrap().unwrap()) == came);
    drop(partition.resume_restore(REPLICA).unwrap().unwrap());
    assert!(tree(&get(&partition, REPLICA.0)) == base);
    settle(&partition);
    assert_whole(&partition, "at the end");
}

#[test]
fn a_restore_that_cannot_begin_on_a_disk_that_fails_blocks_nobody() {
    let (disk, partition, base) = with_a_part();
    assert!(partition.remove_half(REPLICA).unwrap());
    disk.set_cut(Some(Cut::ErrorsFrom(0)));
    let again = partition.clone();
    let began = in_time(move || again.begin_restore(REPLICA).map(|_| ()));
    assert!(matches!(began, Err(VolumeError::Io { .. })), "{began:?}");
    disk.set_cut(None);
    let again = partition.clone();
    in_time(move || again.reopen()).unwrap();
    assert!(tree(&get(&partition, REPLICA.0)) == base);
    drop(partition.begin_restore(REPLICA).unwrap());
    assert_whole(&partition, "at the end");
}

/// Such a replica could be filled again only after the next start.
#[test]
fn what_cannot_be_removed_on_a_full_disk_is_removed_when_there_is_room() {
    for begins in [false, true] {
        let (disk, partition, base) = with_a_part();
        let restore = partition.resume_restore(REPLICA).unwrap().unwrap();
        fill_log(&disk, &partition);
        restore.give_up();
        disk.set_capacity(1 << 30);
        if begins {
            drop(partition.begin_restore(REPLICA).unwrap());
        } else {
            assert!(partition.remove_half(REPLICA).unwrap());
        }
        assert_eq!(partition.halves(AfsTime(9)).unwrap(), []);
        assert!(get(&partition, REPLICA.0).is_writable(), "it is no restore's any more");
        assert!(tree(&get(&partition, REPLICA.0)) == base);
        settle(&partition);
        assert_whole(&partition, "at the end");
    }
}
