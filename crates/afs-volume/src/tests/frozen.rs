//! A volume that is frozen shows what it was, and leaves nothing behind.

use super::{assert_whole, finish, new_clone, open, settle, stamp, volume};
use crate::disk::SimulatedDisk;
use crate::{SetStatus, StoreRange, VnodeId, Volume};
use afs_wire::ids::{VnodeNumber, VolumeId};
use std::sync::Arc;

fn store(volume: &Arc<Volume>, file: VnodeId, bytes: &[u8]) {
    let range = StoreRange { position: 0, length: bytes.len() as u64, file_length: 0 };
    let mut store = volume.begin_store(file, range).unwrap();
    store.write(bytes).unwrap();
    store.commit(&SetStatus::default(), stamp(5), false).unwrap();
}

fn read(volume: &Arc<Volume>, file: VnodeId) -> Vec<u8> {
    let reader = volume.open(file, 0, u64::MAX).unwrap();
    let mut bytes = vec![0; reader.status().length as usize];
    assert_eq!(reader.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// A volume with a short file and a long one.
fn filled(volume: &Arc<Volume>) -> [VnodeId; 2] {
    let set = SetStatus::default();
    [(&b"short"[..], 10), (b"long", 20_000)].map(|(name, length)| {
        let file = volume.create_file(VnodeId::ROOT, name, &set, stamp(2)).unwrap().vnode.id;
        store(volume, file, &vec![b'a'; length]);
        file
    })
}

fn change(volume: &Arc<Volume>, [short, long]: [VnodeId; 2]) {
    store(volume, short, &[b'b'; 30_000]);
    store(volume, long, b"bb");
    volume.remove_file(VnodeId::ROOT, b"short", stamp(6)).unwrap();
    volume.make_dir(VnodeId::ROOT, b"new", &SetStatus::default(), stamp(7)).unwrap();
}

#[test]
fn what_is_frozen_stays_while_the_volume_changes() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, 1);
    let files = filled(&volume);
    let header = volume.header();
    let frozen = volume.freeze().unwrap();
    change(&volume, files);
    settle(&partition);
    assert_eq!([read(&frozen, files[0]), read(&frozen, files[1])], [vec![b'a'; 10], vec![b'a'; 20_000]]);
    let numbers = |is_directory| -> Vec<VnodeNumber> {
        let found = frozen.vnodes_of_class(is_directory, VnodeNumber(0), 10).unwrap();
        found.iter().map(|(status, _)| status.id.vnode).collect()
    };
    assert_eq!((numbers(true), numbers(false)), (vec![VnodeNumber(1)], vec![files[0].vnode, files[1].vnode]));
    assert_eq!((frozen.header().info, frozen.header().used_kib), (header.info, header.used_kib));
    assert!(!frozen.is_writable());
    // Also when the volume goes.
    partition.delete_volume(VolumeId(1)).unwrap();
    settle(&partition);
    assert_eq!(read(&frozen, files[1]), vec![b'a'; 20_000]);
    drop(frozen);
    settle(&partition);
    assert_whole(&partition, "after all has gone");
}

#[test]
fn what_only_a_frozen_volume_shows_goes_with_it() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, 1);
    let files = filled(&volume);
    let frozen = volume.freeze().unwrap();
    change(&volume, files);
    let killed = disk.after_kill();
    drop(frozen);
    settle(&partition);
    assert_whole(&partition, "after it was let go");
    drop(partition);
    let partition = open(&disk);
    assert_whole(&partition, "after a restart");
    drop(partition);

    let partition = open(&killed);
    assert_whole(&partition, "after the process was killed");
    settle(&partition);
    assert_whole(&partition, "after the sweep");
}

#[test]
fn a_frozen_clone_stays_when_the_clone_is_made_anew() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, 1);
    let files = filled(&volume);
    let clone = partition.clone_volume(VolumeId(1), &new_clone(2), stamp(3)).unwrap();
    finish(&clone);
    let frozen = clone.freeze().unwrap();
    change(&volume, files);
    partition.reclone_volume(VolumeId(1), VolumeId(2), stamp(8)).unwrap();
    settle(&partition);
    assert_eq!(read(&frozen, files[1]), vec![b'a'; 20_000]);
    drop(frozen);
    settle(&partition);
    assert_whole(&partition, "after it was let go");
}

#[test]
fn each_view_lists_its_own_of_hundreds_of_versions() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, 1);
    let files = filled(&volume);
    let folder = volume.make_dir(VnodeId::ROOT, b"folder", &SetStatus::default(), stamp(2)).unwrap().vnode.id;
    // More rows of one vnode than are read at once, of its status and of other parts.
    for n in 0..300 {
        volume.create_file(folder, format!("{n:0200}").as_bytes(), &SetStatus::default(), stamp(2)).unwrap();
    }
    let views: Vec<_> = (0..300)
        .map(|n| {
            let set = SetStatus { mode: Some(n), ..SetStatus::default() };
            volume.set_status(files[0], &set, stamp(3)).unwrap();
            (n, volume.freeze().unwrap())
        })
        .collect();
    for is_checkpoint in [false, true] {
        if is_checkpoint {
            partition.shared().store.checkpoint().unwrap();
        }
        for (n, view) in &views {
            let all = view.vnodes_of_class(false, VnodeNumber(0), usize::MAX).unwrap();
            assert_eq!((all.len(), all[0].0.mode), (302, *n));
            let folders = view.vnodes_of_class(true, VnodeNumber(0), usize::MAX).unwrap();
            assert_eq!(folders.len(), 2);
        }
        let (mut some, mut next) = (Vec::new(), VnodeNumber(0));
        loop {
            let found = views[7].1.vnodes(next, 7).unwrap();
            let Some(last) = found.last() else { break };
            next = VnodeNumber(last.id.vnode.0 + 1);
            some.extend(found);
        }
        assert_eq!(some, views[7].1.vnodes(VnodeNumber(0), usize::MAX).unwrap());
    }
}
