//! Volumes that are filled from others, as a dump would do it: whole or not at all, beside clones, through kills and power losses.

use super::{assert_whole, finish, new_clone, new_volume, open, settle, stamp, volume};
use crate::disk::SimulatedDisk;
use crate::{
    Kind, NewVolume, Partition, Restore, SetStatus, StoreRange, VnodeId, VnodeStatus, Volume, VolumeError,
};
use afs_wire::acl::Acl;
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsTime, DataVersion, LocalFid, VnodeNumber, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A vnode with its data.
pub(super) type Vnode = (VnodeStatus, Acl, Vec<u8>);
/// All that a volume has.
pub(super) type Tree = BTreeMap<VnodeNumber, Vnode>;

pub(super) fn tree(volume: &Arc<Volume>) -> Tree {
    let mut tree = Tree::new();
    for is_directory in [true, false] {
        for (status, acl) in volume.vnodes_of_class(is_directory, VnodeNumber(0), usize::MAX).unwrap() {
            let mut data = vec![0; status.length as usize];
            volume.open(status.id, 0, u64::MAX).unwrap().read_at(0, &mut data).unwrap();
            tree.insert(status.id.vnode, (status, acl, data));
        }
    }
    tree
}

/// Directories, then the others.
pub(super) fn in_order(tree: &Tree) -> impl Iterator<Item = &Vnode> {
    let of_class =
        |class: bool| tree.values().filter(move |(status, ..)| status.id.vnode.is_directory() == class);
    of_class(true).chain(of_class(false))
}

/// Fills a volume with the vnodes of a tree. The volume has those of `base` already. Ends before so many vnodes are complete.
fn fill(restore: &mut Restore, tree: &Tree, base: &Tree, most: usize) -> Result<(), VolumeError> {
    for vnode in in_order(tree).take(most) {
        let (status, acl, data) = vnode;
        if base.get(&status.id.vnode) == Some(vnode) {
            restore.unchanged(status.id.vnode)?;
            continue;
        }
        restore.vnode(*status, acl.clone())?;
        for piece in data.chunks(3000) {
            restore.write(piece)?;
        }
    }
    Ok(())
}

pub(super) fn restore(
    partition: &Partition,
    id: VolumeId,
    tree: &Tree,
    base: &Tree,
) -> Result<Arc<Volume>, VolumeError> {
    let mut restore = partition.begin_restore(id)?;
    fill(&mut restore, tree, base, usize::MAX)?;
    let info = restore.volume().header().info;
    restore.commit(info, 0)
}

/// A volume that waits for a restore.
fn empty(partition: &Partition, id: u32) -> Arc<Volume> {
    let made = partition.create_volume(&NewVolume { with_root: false, ..new_volume(id) }, stamp(1)).unwrap();
    finish(&made);
    made
}

fn store(volume: &Arc<Volume>, file: VnodeId, bytes: &[u8]) {
    let range = StoreRange { position: 0, length: bytes.len() as u64, file_length: 0 };
    let mut store = volume.begin_store(file, range).unwrap();
    store.write(bytes).unwrap();
    store.commit(&SetStatus::default(), stamp(5), false).unwrap();
}

/// Changes a volume at random.
pub(super) fn change(volume: &Arc<Volume>, rng: &mut StdRng, n: u32) {
    let set = SetStatus { mode: Some(rng.random_range(0..0o1000)), ..SetStatus::default() };
    let all: Vec<VnodeStatus> = volume.vnodes(VnodeNumber(0), 1000).unwrap();
    let directories: Vec<_> = all.iter().filter(|status| status.kind == Kind::Directory).collect();
    let directory = directories[rng.random_range(0..directories.len())].id;
    let name = format!("n{n}").into_bytes();
    let (_, mut acl) = volume.status_and_acl(directory).unwrap();
    match rng.random_range(0..10) {
        0 => drop(volume.make_dir(directory, &name, &set, stamp(n)).unwrap()),
        1 => drop(volume.symlink(directory, &name, b"some where", &set, stamp(n)).unwrap()),
        2..=4 => {
            let file = volume.create_file(directory, &name, &set, stamp(n)).unwrap().vnode.id;
            store(volume, file, &vec![n as u8; rng.random_range(0..40_000)]);
        }
        5 | 6 => {
            let files: Vec<_> = all.iter().filter(|status| status.kind == Kind::File).collect();
            if let Some(file) = files.get(rng.random_range(0..files.len().max(1))) {
                let length = [0, 100, 5_000, 30_000][rng.random_range(0..4)];
                store(volume, file.id, &vec![n as u8; length]);
            }
        }
        7 | 8 => {
            for (name, id) in volume.entries(directory).unwrap() {
                if name.starts_with(b"n") && !id.vnode.is_directory() {
                    volume.remove_file(directory, &name, stamp(n)).unwrap();
                    break;
                }
            }
        }
        _ => {
            acl.negative.clear();
            acl.positive.truncate(1);
            volume.set_acl(directory, &acl, stamp(n)).unwrap();
        }
    }
}

pub(super) fn get(partition: &Partition, id: u32) -> Arc<Volume> {
    partition.volume(VolumeId(id)).unwrap()
}

/// One volume follows another by full and incremental restores, beside clones that come and go. Some of the restores are given up, or
/// end with the process or the power.
#[test]
fn a_volume_that_is_restored_again_and_again_is_always_what_it_was_or_what_came() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut disk = SimulatedDisk::new(1 << 30);
        let mut partition = open(&disk);
        volume(&partition, 1);
        empty(&partition, 2);
        let mut shown = Tree::new();
        let mut clone: Option<Tree> = None;
        for n in 1..60 {
            let source = get(&partition, 1);
            (0..rng.random_range(1..4)).for_each(|i| change(&source, &mut rng, 10 * n + i));
            let mut wanted = tree(&source);
            if rng.random_bool(0.2) {
                // A number that was used is another vnode now.
                if let Some((status, ..)) = wanted.values_mut().find(|(status, ..)| status.kind == Kind::File)
                {
                    status.data_version = DataVersion(status.data_version.0 + 5000);
                }
            }
            let nothing = Tree::new();
            let base = if rng.random_bool(0.5) { &shown } else { &nothing };
            match rng.random_range(0..5) {
                0 => {
                    let mut restore = partition.begin_restore(VolumeId(2)).unwrap();
                    let most = rng.random_range(0..wanted.len());
                    fill(&mut restore, &wanted, base, most).unwrap();
                    assert_eq!(tree(&get(&partition, 2)), shown, "while it goes on");
                    assert!(get(&partition, 2).freeze().is_ok());
                }
                1 => {
                    let mut restore = partition.begin_restore(VolumeId(2)).unwrap();
                    let most = rng.random_range(0..=wanted.len());
                    fill(&mut restore, &wanted, base, most).unwrap();
                    if rng.random_bool(0.5) {
                        partition.maintain().unwrap();
                    }
                    disk = disk.after_kill();
                    drop((restore, source, partition));
                    partition = open(&disk);
                }
                _ => {
                    assert!(tree(&restore(&partition, VolumeId(2), &wanted, base).unwrap()) == wanted);
                    shown = wanted;
                    if !get(&partition, 2).header().info.in_service {
                        finish(&get(&partition, 2));
                    }
                }
            }
            assert!(tree(&get(&partition, 2)) == shown, "round {n}");
            assert!(get(&partition, 2).is_writable());
            if rng.random_bool(0.3) {
                settle(&partition);
                assert_whole(&partition, &format!("seed {seed}, round {n}"));
            }
            match (&clone, rng.random_range(0..4)) {
                (None, 0) if !shown.is_empty() => {
                    finish(&partition.clone_volume(VolumeId(2), &new_clone(3), stamp(n)).unwrap());
                    clone = Some(shown.clone());
                }
                (Some(_), 0) => {
                    partition.delete_volume(VolumeId(3)).unwrap();
                    clone = None;
                }
                (Some(_), 1) => {
                    partition.reclone_volume(VolumeId(2), VolumeId(3), stamp(n)).unwrap();
                    clone = Some(shown.clone());
                }
                _ => {}
            }
            if let Some(clone) = &clone {
                assert!(tree(&get(&partition, 3)) == *clone, "round {n}");
            }
        }
        settle(&partition);
        assert_whole(&partition, &format!("seed {seed}"));
        // It can be used like any other.
        let volume = get(&partition, 2);
        if !shown.is_empty() {
            (0..20).for_each(|i| change(&volume, &mut rng, 1000 + i));
            settle(&partition);
            assert_whole(&partition, "after changes");
        }
    }
}

#[test]
fn a_power_loss_leaves_what_was_or_what_came() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        let source = volume(&partition, 1);
        (1..30).for_each(|n| change(&source, &mut rng, n));
        let before = tree(&source);
        empty(&partition, 2);
        restore(&partition, VolumeId(2), &before, &Tree::new()).unwrap();
        partition.sync().unwrap();
        (30..60).for_each(|n| change(&source, &mut rng, n));
        let after = tree(&source);
        let mut restore = partition.begin_restore(VolumeId(2)).unwrap();
        fill(&mut restore, &after, &before, usize::MAX).unwrap();
        if rng.random_bool(0.5) {
            partition.sync().unwrap();
        }
        let info = restore.volume().header().info;
        restore.commit(info, 0).unwrap();
        let lost = disk.after_power_loss(seed);
        let partition = open(&lost);
        let found = tree(&get(&partition, 2));
        // Versions are at least the floor then.
        let contents = |tree: &Tree| -> Vec<(VnodeId, Vec<u8>)> {
            tree.values().map(|(status, _, data)| (status.id, data.clone())).collect()
        };
        assert!(contents(&found) == contents(&before) || contents(&found) == contents(&after));
        settle(&partition);
        assert_whole(&partition, "after the power loss");
    }
}

#[test]
fn what_a_volume_cannot_have_is_refused_and_changes_nothing() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let source = volume(&partition, 1);
    let directory = source.make_dir(VnodeId::ROOT, b"d", &SetStatus::default(), stamp(2)).unwrap().vnode.id;
    let file = source.create_file(directory, b"f", &SetStatus::default(), stamp(2)).unwrap().vnode.id;
    store(&source, file, b"data");
    let whole = tree(&source);
    empty(&partition, 2);
    restore(&partition, VolumeId(2), &whole, &Tree::new()).unwrap();
    let is_refused = |change: &dyn Fn(&mut Tree)| {
        let mut tree_ = whole.clone();
        change(&mut tree_);
        let error = restore(&partition, VolumeId(2), &tree_, &Tree::new()).map(drop).unwrap_err();
        assert!(tree(&get(&partition, 2)) == whole, "{error}");
        settle(&partition);
        assert_whole(&partition, &error.to_string());
        error.to_string()
    };
    let no_root = is_refused(&|tree| drop(tree.remove(&VnodeNumber::ROOT)));
    assert!(no_root.contains("root directory"), "{no_root}");
    let no_parent = is_refused(&|tree| drop(tree.remove(&directory.vnode)));
    assert!(no_parent.contains("directory 3, which is not there"), "{no_parent}");
    is_refused(&|tree| tree.get_mut(&directory.vnode).unwrap().2[2] ^= 1);
    let slash = is_refused(&|tree| {
        let local = |id: VnodeId| LocalFid { vnode: id.vnode, unique: id.unique };
        let entries = [(&b"a/b"[..], local(file))].into_iter();
        let pages = Directory::build(local(directory), local(VnodeId::ROOT), entries).unwrap().into_bytes();
        let (status, _, data) = tree.get_mut(&directory.vnode).unwrap();
        status.length = pages.len() as u64;
        *data = pages;
    });
    assert!(slash.contains("the name \"a/b\""), "{slash}");
    is_refused(&|tree| tree.get_mut(&directory.vnode).unwrap().0.parent.vnode = VnodeNumber(5));
    is_refused(&|tree| tree.get_mut(&file.vnode).unwrap().2.clear());
    is_refused(&|tree| tree.get_mut(&file.vnode).unwrap().2.push(0));
    is_refused(&|tree| tree.get_mut(&VnodeNumber::ROOT).unwrap().0.id.unique.0 = 2);
    // One restore at a time, and none into a clone.
    let _first = partition.begin_restore(VolumeId(2)).unwrap();
    assert!(matches!(partition.begin_restore(VolumeId(2)), Err(VolumeError::ReadOnly(_))));
    partition.clone_volume(VolumeId(1), &new_clone(3), stamp(3)).unwrap();
    assert!(matches!(partition.begin_restore(VolumeId(3)), Err(VolumeError::ReadOnly(_))));
}

#[test]
fn a_full_disk_leaves_the_volume_as_it_was() {
    let disk = SimulatedDisk::new(4 << 20);
    let partition = open(&disk);
    let source = volume(&partition, 1);
    let file = source.create_file(VnodeId::ROOT, b"f", &SetStatus::default(), stamp(2)).unwrap().vnode.id;
    store(&source, file, &vec![1; 200_000]);
    let whole = tree(&source);
    empty(&partition, 2);
    restore(&partition, VolumeId(2), &whole, &Tree::new()).unwrap();
    settle(&partition);
    let mut larger = whole.clone();
    let (status, _, data) = larger.get_mut(&file.vnode).unwrap();
    *data = vec![2; 8 << 20];
    (status.length, status.client_mod_time) = (data.len() as u64, AfsTime(9));
    assert!(restore(&partition, VolumeId(2), &larger, &whole).is_err());
    settle(&partition);
    assert!(tree(&get(&partition, 2)) == whole);
    assert_whole(&partition, "after the disk was full");
}
