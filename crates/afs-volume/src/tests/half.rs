//! Restores that break off, are put aside, and are gone on with: what came is not sent again, and the volume is whole or not there.

use super::restore::{Tree, change, get, in_order, tree};
use super::rests::in_time;
use super::{assert_whole, finish, new_clone, new_volume, open, settle, stamp, volume};
use crate::disk::{Cut, SimulatedDisk};
use crate::records::CHUNK;
use crate::{
    Arrived, NewVolume, Partition, Restore, SetStatus, StoreRange, VnodeId, VnodeStatus, Volume, VolumeError,
};
use afs_wire::acl::Acl;
use afs_wire::ids::{AfsTime, VnodeNumber, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

const ID: VolumeId = VolumeId(2);
pub(super) const PIECE: usize = 3000;

/// A volume that is to be filled.
fn make(partition: &Partition, with_root: bool) -> Arc<Volume> {
    partition.create_volume(&NewVolume { with_root, ..new_volume(ID.0) }, stamp(1)).unwrap()
}

pub(super) fn statuses(arrived: &Arrived) -> BTreeMap<VnodeNumber, (VnodeStatus, Acl)> {
    let of_class = |class| arrived.vnodes_of_class(class, VnodeNumber(0), usize::MAX).unwrap();
    let all = of_class(true).into_iter().chain(of_class(false));
    all.map(|(status, acl)| (status.id.vnode, (status, acl))).collect()
}

/// Begins to fill the volume, from where the last attempt has come to.
fn begin(partition: &Partition) -> (Option<Arrived>, Restore) {
    begin_at(partition, ID)
}

/// The same of any volume.
pub(super) fn begin_at(partition: &Partition, id: VolumeId) -> (Option<Arrived>, Restore) {
    let arrived = partition.arrived(id).unwrap();
    let restore = match &arrived {
        Some(_) => partition.resume_restore(id).unwrap().unwrap(),
        None => partition.begin_restore(id).unwrap(),
    };
    (arrived, restore)
}

/// Sends what has not come, at most so many bytes of data. Says how many there were, and whether that was all.
fn send(restore: &mut Restore, arrived: Option<&Arrived>, wanted: &Tree, most: usize) -> (usize, bool) {
    send_since(restore, arrived, wanted, &Tree::new(), most)
}

/// The same of what has changed since `base`.
pub(super) fn send_since(
    restore: &mut Restore,
    arrived: Option<&Arrived>,
    wanted: &Tree,
    base: &Tree,
    most: usize,
) -> (usize, bool) {
    let have = arrived.map(statuses).unwrap_or_default();
    let mut partial = arrived.and_then(Arrived::partial);
    let mut sent = 0;
    for vnode in in_order(wanted) {
        let (status, acl, data) = vnode;
        let number = status.id.vnode;
        let rest = partial.take_if(|(found, _)| found == status);
        let is_unchanged = match have.get(&number) {
            Some((found, list)) => (found, list) == (status, acl),
            None => rest.is_none() && base.get(&number) == Some(vnode),
        };
        if is_unchanged {
            restore.unchanged(number).unwrap();
            continue;
        }
        let mut from = 0;
        match rest {
            Some((_, bytes)) => {
                let mut came = vec![0; 2 * PIECE];
                let read = arrived.unwrap().read_partial(0, &mut came).unwrap();
                assert!(came[..read] == data[..read]);
                from = bytes as usize;
                restore.rest_of_vnode(*status, bytes).unwrap();
            }
            None => restore.vnode(*status, acl.clone()).unwrap(),
        }
        for piece in data[from..].chunks(PIECE) {
            if sent + piece.len() > most {
                return (sent, false);
            }
            restore.write(piece).unwrap();
            sent += piece.len();
        }
    }
    (sent, true)
}

pub(super) fn commit(restore: Restore) -> Arc<Volume> {
    let info = restore.volume().header().info;
    restore.commit(info, 0).unwrap()
}

fn is_hidden(partition: &Partition) -> bool {
    matches!(partition.volume(ID), Err(VolumeError::NoVolume(_)))
        && partition.volumes().iter().all(|v| v.id() != ID)
}

pub(super) fn add_file(source: &Arc<Volume>, name: &str, bytes: &[u8]) -> VnodeId {
    let made = source.create_file(VnodeId::ROOT, name.as_bytes(), &SetStatus::default(), stamp(2)).unwrap();
    let range = StoreRange { position: 0, length: bytes.len() as u64, file_length: 0 };
    let mut store = source.begin_store(made.vnode.id, range).unwrap();
    store.write(bytes).unwrap();
    store.commit(&SetStatus::default(), stamp(5), false).unwrap();
    made.vnode.id
}

pub(super) fn bytes_of(tree: &Tree) -> usize {
    tree.values().map(|(.., data)| data.len()).sum()
}

#[test]
fn a_volume_whose_restores_break_off_anywhere_is_whole_at_the_end() {
    for seed in 0..30 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut disk = SimulatedDisk::new(1 << 30);
        let mut partition = open(&disk);
        let source = volume(&partition, 1);
        (1..25).for_each(|n| change(&source, &mut rng, n));
        add_file(&source, "long", &vec![7; rng.random_range(0..150_000)]);
        drop(source);
        partition.sync().unwrap();
        let mut wanted = tree(&get(&partition, 1));
        for attempt in 1.. {
            let when = format!("seed {seed}, attempt {attempt}");
            if rng.random_bool(0.3) {
                (0..3).for_each(|i| change(&get(&partition, 1), &mut rng, 100 * attempt + i));
                wanted = tree(&get(&partition, 1));
            }
            make(&partition, rng.random_bool(0.5));
            let (arrived, mut restore) = begin(&partition);
            assert!(tree(&get(&partition, 2)).len() <= 1, "{when}: it shows a half");
            let most = rng.random_range(0..2 * bytes_of(&wanted));
            let (_, is_whole) = send(&mut restore, arrived.as_ref(), &wanted, most);
            drop(arrived);
            if is_whole {
                let volume = commit(restore);
                if attempt > 1 && rng.random_bool(0.3) {
                    // What is whole is not lost either before somebody brings it online.
                    assert!(partition.put_aside(ID, AfsTime(9)).unwrap());
                    assert!(is_hidden(&partition), "{when}");
                    continue;
                }
                finish(&volume);
                assert!(tree(&get(&partition, 2)) == wanted, "{when}");
                assert_eq!(partition.halves(AfsTime(9)).unwrap(), [], "{when}");
                settle(&partition);
                assert_whole(&partition, &when);
                break;
            }
            match rng.random_range(0..5) {
                0 => {
                    disk = disk.after_kill();
                    drop((restore, partition));
                    partition = open(&disk);
                }
                1 => {
                    if rng.random_bool(0.5) {
                        partition.sync().unwrap();
                    }
                    disk = disk.after_power_loss(seed);
                    drop((restore, partition));
                    partition = open(&disk);
                    wanted = tree(&get(&partition, 1));
                    if partition.volume(ID).is_ok() {
                        panic!("{when}: a half-made volume is there after a start");
                    }
                }
                2 => {
                    drop(restore);
                    // Another one begins from nothing.
                    drop(partition.begin_restore(ID).unwrap());
                    assert!(tree(&get(&partition, 2)).len() <= 1, "{when}");
                    if !partition.put_aside(ID, AfsTime(9)).unwrap() {
                        partition.delete_volume(ID).unwrap();
                    }
                }
                _ => {
                    drop(restore);
                    assert!(partition.put_aside(ID, AfsTime(9)).unwrap(), "{when}");
                }
            }
            assert!(is_hidden(&partition), "{when}");
            settle(&partition);
            assert_whole(&partition, &when);
        }
    }
}

#[test]
fn what_came_is_not_sent_again_not_even_of_a_long_file() {
    for dies in [false, true] {
        let mut disk = SimulatedDisk::new(1 << 30);
        let mut partition = open(&disk);
        let source = volume(&partition, 1);
        for n in 0..100 {
            add_file(&source, &format!("f{n}"), &[n; 500]);
        }
        let length = 200 * CHUNK as usize + 77;
        add_file(&source, "long", &vec![5; length]);
        let wanted = tree(&source);
        let total = bytes_of(&wanted);
        make(&partition, false);
        let (_, mut restore) = begin(&partition);
        let (first, _) = send(&mut restore, None, &wanted, total - 10 * CHUNK as usize);
        if dies {
            disk = disk.after_kill();
            drop((restore, source, partition));
            partition = open(&disk);
        } else {
            drop(restore);
            assert!(partition.put_aside(ID, AfsTime(9)).unwrap());
        }
        settle(&partition);
        assert_whole(&partition, "while it is aside");
        make(&partition, false);
        let (arrived, mut restore) = begin(&partition);
        let (second, is_whole) = send(&mut restore, arrived.as_ref(), &wanted, usize::MAX);
        assert!(is_whole);
        // Up to 64 chunks have no row yet when the process is killed.
        let again = first + second - total;
        assert!(again <= CHUNK as usize * if dies { 65 } else { 2 }, "{again} bytes were sent twice");
        finish(&commit(restore));
        assert!(tree(&get(&partition, 2)) == wanted);
        settle(&partition);
        assert_whole(&partition, "at the end");
    }
}

#[test]
fn what_is_aside_and_not_wanted_gives_back_its_space() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let source = volume(&partition, 1);
    add_file(&source, "long", &vec![5; 50 * CHUNK as usize]);
    let wanted = tree(&source);
    settle(&partition);
    let files = || crate::fsck::check(&partition).unwrap().data_files;
    let before = files();
    make(&partition, true);
    let (_, mut restore) = begin(&partition);
    send(&mut restore, None, &wanted, 40 * CHUNK as usize);
    drop(restore);
    assert!(partition.put_aside(ID, AfsTime(9)).unwrap());
    settle(&partition);
    assert!(files() > before + 30);
    let halves = partition.halves(AfsTime(20)).unwrap();
    let found: Vec<_> = halves.iter().map(|half| (half.volume, &half.name[..], half.since)).collect();
    assert_eq!(found, [(ID, "v2", AfsTime(9))]);
    assert!(partition.remove_half(ID).unwrap());
    assert!(!partition.remove_half(ID).unwrap());
    settle(&partition);
    assert_eq!(files(), before);
    assert_whole(&partition, "when it has gone");
}

#[test]
fn what_a_start_puts_aside_counts_from_the_first_look_on() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let source = volume(&partition, 1);
    add_file(&source, "long", &vec![5; 100 * CHUNK as usize]);
    let wanted = tree(&source);
    make(&partition, true);
    let (_, mut restore) = begin(&partition);
    send(&mut restore, None, &wanted, 90 * CHUNK as usize);
    let disk = disk.after_kill();
    drop((restore, source, partition));
    let partition = open(&disk);
    let since = |partition: &Partition, now| partition.halves(AfsTime(now)).unwrap()[0].since;
    assert_eq!(since(&partition, 50), AfsTime(50));
    assert_eq!(since(&partition, 60), AfsTime(50));
    let disk = disk.after_kill();
    drop(partition);
    assert_eq!(since(&open(&disk), 70), AfsTime(50), "another start does not change it");
}

#[test]
fn volumes_that_people_use_are_never_put_aside() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let source = volume(&partition, 1);
    add_file(&source, "f", &[5; 100]);
    let wanted = tree(&source);
    assert!(!partition.put_aside(VolumeId(1), AfsTime(9)).unwrap());
    make(&partition, true);
    assert!(!partition.put_aside(ID, AfsTime(9)).unwrap(), "nothing has come");
    let (_, mut restore) = begin(&partition);
    send(&mut restore, None, &wanted, usize::MAX);
    let made = commit(restore);
    partition.clone_volume(ID, &new_clone(3), stamp(3)).unwrap();
    assert!(!partition.put_aside(ID, AfsTime(9)).unwrap(), "another volume shares it");
    partition.delete_volume(VolumeId(3)).unwrap();
    finish(&made);
    assert!(!partition.put_aside(ID, AfsTime(9)).unwrap(), "it is online");
    assert!(tree(&get(&partition, 2)) == wanted);
    // A restore of it that breaks off leaves it as it was.
    drop(partition.begin_restore(ID).unwrap());
    assert!(tree(&get(&partition, 2)) == wanted && get(&partition, 2).is_writable());
    settle(&partition);
    assert_whole(&partition, "at the end");
}

#[test]
fn what_did_not_come_cannot_be_named_alone() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let source = volume(&partition, 1);
    let file = add_file(&source, "long", &vec![5; 50 * CHUNK as usize]);
    let wanted = tree(&source);
    make(&partition, true);
    let (_, mut restore) = begin(&partition);
    send(&mut restore, None, &wanted, 40 * CHUNK as usize);
    drop(restore);
    assert!(partition.put_aside(ID, AfsTime(9)).unwrap());
    make(&partition, true);
    let (arrived, mut restore) = begin(&partition);
    assert!(arrived.unwrap().partial().is_some_and(|(status, _)| status.id == file));
    restore.unchanged(VnodeNumber::ROOT).unwrap();
    assert!(restore.unchanged(file.vnode).is_err());
    let status = wanted[&file.vnode].0;
    assert!(restore.rest_of_vnode(status, 45 * CHUNK).is_err());
    restore.give_up();
    assert!(tree(&get(&partition, 2)).is_empty(), "nothing is kept of what was wrong");
    assert!(!partition.put_aside(ID, AfsTime(9)).unwrap() || partition.arrived(ID).unwrap().is_some());
    settle(&partition);
    assert_whole(&partition, "at the end");
}

/// Volumes that once shared data with others were kept, unseen, for a day: each moved volume in whole.
#[test]
fn a_volume_that_was_served_goes_when_it_is_removed() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let served = volume(&partition, 1);
    add_file(&served, "file", &[1; 20_000]);
    let clone = partition.clone_volume(VolumeId(1), &new_clone(3), stamp(3)).unwrap();
    drop(served.freeze().unwrap());
    served.change_info(|info| info.destroy_me = true).unwrap();
    assert!(!partition.put_aside(VolumeId(1), AfsTime(9)).unwrap());
    partition.delete_volume(VolumeId(1)).unwrap();
    clone.change_info(|info| info.destroy_me = true).unwrap();
    assert!(!partition.put_aside(VolumeId(3), AfsTime(9)).unwrap(), "a clone that is left alone");

    // One that a restore has filled is kept until it is shown.
    add_file(&volume(&partition, 1), "file", &[1; 20_000]);
    let wanted = tree(&get(&partition, 1));
    make(&partition, true);
    let (_, mut restore) = begin(&partition);
    assert!(send(&mut restore, None, &wanted, usize::MAX).1);
    let filled = commit(restore);
    finish(&filled);
    filled.change_info(|info| info.destroy_me = true).unwrap();
    assert!(!partition.put_aside(ID, AfsTime(9)).unwrap());
}

/// The status of the version before stayed with the first chunks of the next one, and was told of as whole.
#[test]
fn a_second_dump_that_breaks_off_leaves_what_the_first_has_brought() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let source = volume(&partition, 1);
    let file = add_file(&source, "file", &vec![1; 4 * CHUNK as usize]);
    let first = tree(&source);
    make(&partition, true);
    let (_, mut restore) = begin(&partition);
    assert!(send(&mut restore, None, &first, usize::MAX).1);
    commit(restore);

    let range = StoreRange { position: 0, length: 4 * CHUNK, file_length: 0 };
    let mut store = source.begin_store(file, range).unwrap();
    store.write(&vec![2; 4 * CHUNK as usize]).unwrap();
    store.commit(&SetStatus::default(), stamp(6), false).unwrap();
    let second = tree(&source);
    let mut restore = partition.begin_restore(ID).unwrap();
    let most = bytes_of(&second) - CHUNK as usize;
    assert!(!send(&mut restore, None, &second, most).1);
    drop(restore);
    assert!(partition.put_aside(ID, AfsTime(9)).unwrap());

    make(&partition, true);
    let (arrived, mut restore) = begin(&partition);
    assert_eq!(send(&mut restore, arrived.as_ref(), &first, usize::MAX), (0, true));
    drop(arrived);
    finish(&commit(restore));
    assert!(tree(&get(&partition, 2)) == first);
    settle(&partition);
    assert_whole(&partition, "at the end");
}

/// Chunks without a status are not removed by a sweep while the vnode is being filled.
#[test]
fn a_sweep_that_goes_on_leaves_a_restore_its_chunks() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    add_file(&volume(&partition, 1), "file", &vec![1; 100 * CHUNK as usize]);
    let wanted = tree(&get(&partition, 1));
    make(&partition, true);
    let (_, mut restore) = begin(&partition);
    let most = bytes_of(&wanted) - CHUNK as usize;
    assert!(!send(&mut restore, None, &wanted, most).1, "the file's status is still to come");
    let group = restore.volume().group.clone();
    crate::group::sweep(&partition.shared(), &group, &|| false).unwrap();
    drop(restore);
    assert!(partition.put_aside(ID, AfsTime(9)).unwrap());
    let (_, bytes) = partition.arrived(ID).unwrap().unwrap().partial().expect("its chunks are there");
    assert!(bytes >= 64 * CHUNK);
}

/// A restore that continued, and broke off before it named a vnode, threw away what all earlier ones had brought.
#[test]
fn a_restore_that_breaks_off_at_its_very_beginning_keeps_what_had_come() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let source = volume(&partition, 1);
    add_file(&source, "long", &vec![5; 50 * CHUNK as usize]);
    let wanted = tree(&source);
    make(&partition, false);
    let (_, mut restore) = begin(&partition);
    let (first, _) = send(&mut restore, None, &wanted, 40 * CHUNK as usize);
    drop(restore);
    for _ in 0..2 {
        assert!(partition.put_aside(ID, AfsTime(9)).unwrap(), "it was kept");
        make(&partition, false);
        drop(partition.resume_restore(ID).unwrap().unwrap());
    }
    assert!(partition.put_aside(ID, AfsTime(9)).unwrap());
    make(&partition, false);
    let (arrived, mut restore) = begin(&partition);
    let (second, is_whole) = send(&mut restore, arrived.as_ref(), &wanted, usize::MAX);
    assert!(is_whole && first + second < bytes_of(&wanted) + 2 * CHUNK as usize, "{first} and {second}");
    finish(&commit(restore));
    assert!(tree(&get(&partition, 2)) == wanted);
    settle(&partition);
    assert_whole(&partition, "at the end");
}

/// The thread held the lock that the restore's end takes.
#[test]
fn going_on_with_what_is_aside_on_a_disk_that_fails_blocks_nobody_and_loses_nothing() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let source = volume(&partition, 1);
    add_file(&source, "long", &vec![5; 50 * CHUNK as usize]);
    make(&partition, false);
    let (_, mut restore) = begin(&partition);
    send(&mut restore, None, &tree(&source), 40 * CHUNK as usize);
    drop(restore);
    assert!(partition.put_aside(ID, AfsTime(9)).unwrap());
    make(&partition, false);
    disk.set_cut(Some(Cut::ErrorsFrom(0)));
    let again = partition.clone();
    let began = in_time(move || again.resume_restore(ID).map(|_| ()));
    assert!(matches!(began, Err(VolumeError::Io { .. })), "{began:?}");
    disk.set_cut(None);
    let again = partition.clone();
    in_time(move || again.reopen()).unwrap();
    assert!(partition.arrived(ID).unwrap().is_some());
    assert_whole(&partition, "at the end");
}
