//! A small volume with a clone, and how it is damaged: below what keeps it whole.

use super::{finish, new_clone, settle, stamp, volume};
use crate::disk::SimulatedDisk;
use crate::group::{self};
use crate::keys::{self, GroupId, Key, Part, Snapshot, VnodeKey};
use crate::pages::Directory;
use crate::records::{ChunkRecord, Counters, VnodeRecord};
use crate::{Partition, SetStatus, StoreRange, VnodeId};
use afs_store::{Batch, Store};
use afs_wire::ids::{VnodeNumber, VolumeId};

pub(super) const ID: u32 = 100;
pub(super) const CLONE: u32 = 101;
pub(super) const GROUP: GroupId = GroupId(1);

pub(super) const ROOT: VnodeNumber = VnodeNumber::ROOT;
/// 3 bytes, in a row; has a second name.
pub(super) const SMALL: VnodeNumber = VnodeNumber(2);
/// 20,000 bytes, in three chunks. The first chunk was written again after the clone was made.
pub(super) const LARGE: VnodeNumber = VnodeNumber(4);
/// A directory with a file and a directory.
pub(super) const DIRECTORY: VnodeNumber = VnodeNumber(3);
pub(super) const BELOW: VnodeNumber = VnodeNumber(5);
pub(super) const INSIDE: VnodeNumber = VnodeNumber(6);
pub(super) const SYMLINK: VnodeNumber = VnodeNumber(8);

pub(super) const LARGE_BYTES: u64 = 20_000;

pub(super) fn build(partition: &Partition) {
    let volume = volume(partition, ID);
    let set = SetStatus::default();
    let root = VnodeId::ROOT;
    let small = volume.create_file(root, b"small", &set, stamp(1)).unwrap().vnode.id;
    let large = volume.create_file(root, b"large", &set, stamp(1)).unwrap().vnode.id;
    let directory = volume.make_dir(root, b"d", &set, stamp(1)).unwrap().vnode.id;
    let inside = volume.create_file(directory, b"inside", &set, stamp(1)).unwrap().vnode.id;
    let below = volume.make_dir(directory, b"below", &set, stamp(1)).unwrap().vnode.id;
    let link = volume.symlink(root, b"l", b"target", &set, stamp(1)).unwrap().vnode.id;
    volume.link(root, b"small again", small, stamp(1)).unwrap();
    let made = [small, large, directory, inside, below, link].map(|id| id.vnode);
    assert_eq!(made, [SMALL, LARGE, DIRECTORY, INSIDE, BELOW, SYMLINK]);
    let store = |id, position, bytes: &[u8], file_length| {
        let range = StoreRange { position, length: bytes.len() as u64, file_length };
        let mut store = volume.begin_store(id, range).unwrap();
        store.write(bytes).unwrap();
        store.commit(&set, stamp(2), false).unwrap();
    };
    store(small, 0, b"abc", 3);
    store(large, 0, &[7; LARGE_BYTES as usize], LARGE_BYTES);
    finish(&partition.clone_volume(VolumeId(ID), &new_clone(CLONE), stamp(3)).unwrap());
    store(large, 0, &[8; 100], LARGE_BYTES);
    settle(partition);
}

/// A partition to be damaged.
pub(super) struct Scene {
    pub(super) disk: SimulatedDisk,
    pub(super) partition: Partition,
}

impl Scene {
    pub(super) fn store(&self) -> Shared {
        Shared(self.partition.shared())
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::default();
        change(&mut batch);
        self.store().0.store.submit(batch).unwrap();
    }

    /// Changes what the newest row of a vnode says.
    pub(super) fn status(&self, vnode: VnodeNumber, change: impl FnOnce(&mut VnodeRecord)) {
        let (snapshot, mut record) = self.record(vnode);
        change(&mut record);
        self.change(|batch| batch.put(key(vnode, Part::Status, snapshot), record.encode()));
    }

    pub(super) fn record(&self, vnode: VnodeNumber) -> (Snapshot, VnodeRecord) {
        group::vnode(self.store().store(), GROUP, vnode, Snapshot::NEWEST).unwrap().unwrap()
    }

    pub(super) fn id(&self, vnode: VnodeNumber) -> VnodeId {
        self.record(vnode).1.status.id
    }

    /// Changes the names in a directory, and nothing that goes with it.
    pub(super) fn names(&self, vnode: VnodeNumber, change: impl FnOnce(&mut Directory<'_>)) {
        let shared = self.store();
        let (_, record) = self.record(vnode);
        let mut pages = group::directory(shared.store(), GROUP, &record, Snapshot::NEWEST).unwrap();
        change(&mut pages);
        let changed = pages.into_changed();
        self.change(|batch| {
            for (n, page) in changed {
                batch.put(key(vnode, Part::Page(n), self.snapshot(vnode, Part::Page(n))), page);
            }
        });
    }

    /// Changes the bytes of a directory's first page.
    pub(super) fn page(&self, vnode: VnodeNumber, change: impl FnOnce(&mut [u8])) {
        let (snapshot, page) =
            group::part(self.store().store(), GROUP, vnode, Part::Page(0), Snapshot::NEWEST)
                .unwrap()
                .unwrap();
        let mut page = page.to_vec();
        change(&mut page);
        self.change(|batch| batch.put(key(vnode, Part::Page(0), snapshot), page));
    }

    pub(super) fn snapshot(&self, vnode: VnodeNumber, part: Part) -> Snapshot {
        group::part(self.store().store(), GROUP, vnode, part, Snapshot::NEWEST).unwrap().unwrap().0
    }

    pub(super) fn counters(&self, change: impl FnOnce(&mut Counters)) {
        self.counters_of(ID, change);
    }

    pub(super) fn counters_of(&self, volume: u32, change: impl FnOnce(&mut Counters)) {
        let key = keys::counters(VolumeId(volume));
        let row = self.store().store().get(&key).unwrap().unwrap();
        let mut counters = Counters::decode(&row).unwrap();
        change(&mut counters);
        self.change(|batch| batch.put(key, counters.encode()));
    }

    /// The row of a chunk as the volume that can be changed shows it, and the name of its file.
    pub(super) fn chunk(&self, n: u32) -> (ChunkRecord, String) {
        let part = Part::Chunk(n);
        let (snapshot, row) =
            group::part(self.store().store(), GROUP, LARGE, part, Snapshot::NEWEST).unwrap().unwrap();
        let chunk = ChunkRecord::decode(&row).unwrap().unwrap();
        let key = VnodeKey { group: GROUP, vnode: LARGE, part, snapshot };
        (chunk, crate::records::file_name(chunk.file, &key, n))
    }

    /// Takes a name from the first page of a directory as a clone shows it.
    pub(super) fn remove_in(&self, vnode: VnodeNumber, snapshot: Snapshot, name: &[u8]) {
        let shared = self.store();
        let (_, record) = group::vnode(shared.store(), GROUP, vnode, snapshot).unwrap().unwrap();
        let mut pages = group::directory(shared.store(), GROUP, &record, snapshot).unwrap();
        pages.remove(name).unwrap().unwrap();
        let page = pages.into_changed().remove(0).1;
        self.change(|batch| batch.put(key(vnode, Part::Page(0), snapshot), page));
    }
}

pub(super) struct Shared(std::sync::Arc<crate::shared::Shared>);

impl Shared {
    pub(super) fn store(&self) -> &Store {
        &self.0.store
    }
}

pub(super) fn key(vnode: VnodeNumber, part: Part, snapshot: Snapshot) -> Key {
    VnodeKey { group: GROUP, vnode, part, snapshot }.key()
}
