//! The kernel's knowledge of our files: its nodes, each a fid in one incarnation, with the look-ups that it will take back,
//! the names by which it may find them without asking, and how they are open.
//!
//! Node ids are never used again while the mount lasts, so that an old one is never mistaken for another file. The number that
//! programs see (`st_ino`) is made of the fid, and the same in all incarnations: see `inodes`.
//!
//! A name that was revoked, or that the kernel asks for each time, may be in the hands of a system call that was told of it. So it stays
//! here, as one that is not kept, until the kernel has forgotten it: `old_names` looks whether it still counts.

mod table;

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use afs_client::{CellIndex, Fid};
use afs_wire::ids::{DataVersion, VolumeId};
use fuse_dev::{Attributes, Backing, NodeId};
use rx_proto::time::Instant;
use tokio::sync::Notify;

use crate::kernel_length::{Changes, EmptyPages, KernelLength};
use crate::locks::NodeLocks;
use crate::modes::Mode;
use crate::newest::{Forgets, LockedFiles, Told};
use crate::nodes::table::{Known, Table};

/// The number of missing names that the kernel remembers, in each directory; beyond that it asks each time. A compiler looks for each
/// header in some dozen directories.
const ABSENT_MAX: usize = 4096;

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) fid: Fid,
    pub(crate) locks: NodeLocks,
    pub(crate) kernel_length: KernelLength,
    state: Mutex<State>,
}

/// The mode in which a node's files are open, and the kernel's copy of its data.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    /// The backing file that the kernel reads by itself, while the mode is passthrough, and the file that it is: all opens have
    /// to use the same.
    pub(crate) backing: Option<(Arc<Backing>, Arc<File>)>,
    /// The time when [`Self::backing`] was last written, as far as we know, while mappings may write to it besides.
    pub(crate) lent: Option<SystemTime>,
    /// The version that the kernel's pages have; for directories, the version of its listing.
    pub(crate) pages: Option<DataVersion>,
    /// The versions that it was told of.
    pub(crate) told: Told,
    /// The notices about it.
    pub(crate) forgets: Forgets,
    /// True if an open was refused just now, for the kernel to look the name up.
    pub(crate) was_refused: bool,
    /// The times when others have changed the data.
    pub(crate) changes: Changes,
    /// The pages that the kernel has without data.
    pub(crate) empty: EmptyPages,
    /// True if this stands for data that are no longer the file's.
    pub(crate) is_retired: bool,
    /// True if its last name was removed here: the client keeps it under a hidden one while it is open.
    pub(crate) is_nameless: bool,
    /// The threads that were told to look it up again, as the kernel still has a name of it that others have taken away.
    pub(crate) told_again: Vec<u32>,
    /// The attributes that `fstat` tells of a directory that was removed here, when it is gone.
    pub(crate) gone: Option<Box<Attributes>>,
}

impl Node {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that the kernel is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At<'a> {
    pub(crate) dir: NodeId,
    pub(crate) name: &'a [u8],
    /// True if the kernel may use it from now on without asking.
    pub(crate) is_kept: bool,
}

/// A thing that the kernel is to be told to forget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Forget {
    /// Attributes and data.
    Data(NodeId),
    /// Attributes only.
    Attributes(NodeId),
    /// A name.
    Name(NodeId, Vec<u8>),
}

/// A node that nobody uses, as far as it is known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unused {
    pub(crate) id: NodeId,
    pub(crate) is_directory: bool,
    /// Directory and name of each name by which the kernel may find it.
    pub(crate) places: Vec<(NodeId, Vec<u8>)>,
}

/// The subject of a change of a vnode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    Status,
    Data,
    Names,
    All,
}

/// All nodes of a mount.
#[derive(Debug)]
pub(crate) struct Nodes {
    table: Mutex<Table>,
    /// Most nodes: beyond it the kernel is to let go of some.
    limit: usize,
    /// Told when there are more.
    pub(crate) over_limit: Notify,
    /// Told when the kernel has a notice, or when it turns out that it needs none.
    pub(crate) forgotten: Notify,
    pub(crate) locked: LockedFiles,
}

impl Nodes {
    /// A mount with this root, of whose files the kernel may know so many.
    pub(crate) fn new(root: Fid, limit: usize) -> Self {
        let (over_limit, forgotten, locked) = Default::default();
        Self { table: Mutex::new(Table::new(root)), limit, over_limit, forgotten, locked }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node that the kernel knows, and asks about.
    pub(crate) fn get(&self, id: NodeId) -> Option<Arc<Node>> {
        self.lock().known.get(&id).map(|known| Arc::clone(&known.node))
    }

    /// The node that the kernel has for a fid now, if it has one.
    pub(crate) fn of_fid(&self, fid: Fid) -> Option<Arc<Node>> {
        let table = self.lock();
        table.known.peek(table.current.get(&fid)?).map(|known| Arc::clone(&known.node))
    }

    /// The directory by which the kernel knows a name.
    pub(crate) fn directory_at(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        let table = self.lock();
        let id = table.known.peek(&dir)?.names.get(name)?.child?;
        table.known.peek(&id).filter(|known| known.node.fid.vnode.is_directory()).map(|_| id)
    }

    /// A node that the kernel knows, whoever asks about it.
    pub(crate) fn peek(&self, id: NodeId) -> Option<Arc<Node>> {
        self.lock().known.peek(&id).map(|known| Arc::clone(&known.node))
    }

    /// The node of a fid, for an answer that counts as a look-up, and says where the kernel has found it.
    pub(crate) fn look_up(&self, fid: Fid, at: At<'_>, now: Instant) -> Arc<Node> {
        let mut table = self.lock();
        let id = match table.current.get(&fid) {
            Some(id) => *id,
            None => table.make(fid),
        };
        table.remember(at, Some(id), now);
        let known = table.known.get_mut(&id).expect("what is current is known");
        known.lookups += 1;
        let node = Arc::clone(&known.node);
        let is_over_limit = table.known.len() > self.limit;
        drop(table);
        if is_over_limit {
            self.over_limit.notify_one();
        }
        node
    }

    /// The kernel may take a name for one that is not there. False: it may not, there are too many.
    pub(crate) fn note_absent(&self, dir: NodeId, name: &[u8], now: Instant) -> bool {
        self.lock().remember(At { dir, name, is_kept: true }, None, now)
    }

    /// True if the kernel was told since then that it may use a name of a directory without asking.
    pub(crate) fn was_named_since(&self, dir: NodeId, since: Instant) -> bool {
        self.lock().known.peek(&dir).and_then(|known| known.named_at).is_some_and(|at| at >= since)
    }

    /// The kernel takes look-ups back.
    pub(crate) fn forget(&self, id: NodeId, lookups: u64) {
        self.lock().forget(id, lookups);
    }

    /// The kernel no longer has a name, or has it for something else: it was removed or renamed here.
    pub(crate) fn drop_name(&self, dir: NodeId, name: &[u8]) {
        self.lock().drop_name(dir, name);
    }

    /// The kernel may have a name, and is about to be told to forget it.
    pub(crate) fn revoke(&self, dir: NodeId, name: &[u8]) {
        self.lock().revoke(dir, name);
    }

    /// The number of times that the kernel was told of a name.
    pub(crate) fn told(&self) -> u64 {
        self.lock().told
    }

    /// The kernel has forgotten a name that it was told to forget when it had been told of names so many times: it may have been told of
    /// this one again since.
    pub(crate) fn note_forgotten(&self, dir: NodeId, name: &[u8], told: u64) {
        self.lock().note_forgotten(dir, name, told);
    }

    /// The same of a name of one node, whatever has the name now.
    pub(crate) fn note_place_forgotten(&self, id: NodeId, dir: NodeId, name: &[u8]) {
        self.lock().note_place_forgotten(id, dir, name);
    }

    /// The kernel has moved a name, with what it has of it. False: it may find it by its new name without asking, although that is not
    /// noted, as it was being told to forget the old one.
    pub(crate) fn move_name(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), now: Instant) -> bool {
        let mut table = self.lock();
        let moved = table.known.peek(&from.0).and_then(|dir| dir.names.get(from.1).copied());
        table.drop_name(from.0, from.1);
        table.drop_name(to.0, to.1);
        let Some(moved) = moved.filter(|moved| moved.child.is_some()) else { return false };
        let at = At { dir: to.0, name: to.1, is_kept: moved.is_kept };
        table.remember(at, moved.child, now) && moved.is_kept
    }

    /// The names, other than this one, that the kernel was told of a node and may still have: by their directories.
    pub(crate) fn other_names(&self, id: NodeId, dir: NodeId, name: &[u8]) -> Vec<(NodeId, Vec<u8>)> {
        let table = self.lock();
        let Some(known) = table.known.peek(&id) else { return Vec::new() };
        let others = known
            .places
            .iter()
            .filter(|place| !place.is_forgotten && (place.dir != dir || place.name != name));
        others.map(|place| (place.dir, place.name.clone())).collect()
    }

    /// A node stands for data that are no longer the file's: the next look-up of the fid makes a new one.
    pub(crate) fn retire(&self, node: &Node) {
        let mut table = self.lock();
        node.state().is_retired = true;
        table.note_retired(node);
    }

    /// The same, if nobody has it open: its names that the kernel has to forget.
    pub(crate) fn retire_closed(&self, node: &Node) -> Option<Vec<(NodeId, Vec<u8>)>> {
        let mut table = self.lock();
        let mut state = node.state();
        if !state.mode.is_closed() {
            return None;
        }
        state.is_retired = true;
        drop(state);
        table.note_retired(node);
        Some(table.revoke_places(node.id))
    }

    /// A vnode has changed elsewhere: what the kernel has to forget for it.
    pub(crate) fn on_change(&self, fid: Fid, about: About) -> Vec<Forget> {
        let mut forgets = Vec::new();
        self.lock().on_change(fid, about, &mut forgets);
        forgets
    }

    /// True if the kernel was told of no version of a file but this one.
    pub(crate) fn knows_none_but(&self, fid: Fid, version: DataVersion) -> bool {
        self.of_fid(fid).is_none_or(|node| node.state().told.is_none_but(version))
    }

    /// Notes that all that is known of a volume, or of all of them, may have changed.
    pub(crate) fn on_change_of(&self, volume: Option<(CellIndex, VolumeId)>) -> Vec<Forget> {
        let mut forgets = Vec::new();
        let mut table = self.lock();
        let mut fids: Vec<Fid> = table.current.keys().copied().collect();
        fids.retain(|fid| volume.is_none_or(|volume| volume == (fid.cell, fid.volume)));
        // No order of a hash map in what is sent.
        fids.sort_unstable();
        for fid in fids {
            table.on_change(fid, About::All, &mut forgets);
        }
        forgets
    }

    /// The one user whose mount it is has become somebody else: what the kernel has by names may not be theirs to see. Data and attributes
    /// are only got at by names, and by opens, which are asked for.
    pub(crate) fn on_identity(&self) -> Vec<Forget> {
        let mut forgets = Vec::new();
        let mut table = self.lock();
        let mut ids: Vec<NodeId> = table.known.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            table.forget_names(id, &mut forgets);
        }
        forgets
    }

    /// The number of nodes that the kernel knows.
    pub(crate) fn len(&self) -> usize {
        self.lock().known.len()
    }

    /// Most nodes that it is to know.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns up to so many closed nodes that the kernel has asked about least of late. They count as asked about now: if the kernel uses
    /// one in a way that does not show here, others come before it the next time.
    pub(crate) fn least_used(&self, count: usize) -> Vec<Unused> {
        let mut table = self.lock();
        let oldest = table.known.iter().rev().filter(|(id, known)| {
            **id != NodeId::ROOT && known.lookups > 0 && known.node.state().mode.is_closed()
        });
        let unused = |(id, known): (&NodeId, &Known)| Unused {
            id: *id,
            is_directory: known.node.fid.vnode.is_directory(),
            places: known.places.iter().map(|place| (place.dir, place.name.clone())).collect(),
        };
        let chosen: Vec<_> = oldest.take(count).map(unused).collect();
        for unused in &chosen {
            table.known.promote(&unused.id);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::OpenKind;
    use afs_wire::ids::{AfsFid, Uniquifier, VnodeNumber};

    const NOW: Instant = Instant::ORIGIN;

    fn fid(vnode: u32) -> Fid {
        let fid = AfsFid { volume: VolumeId(7), vnode: VnodeNumber(vnode), unique: Uniquifier(vnode) };
        Fid::new(CellIndex(1), fid)
    }

    fn name(node: &Node, name: &str) -> Forget {
        Forget::Name(node.id, name.as_bytes().to_vec())
    }

    /// What the kernel may use without asking.
    fn kept(dir: NodeId, name: &[u8]) -> At<'_> {
        At { dir, name, is_kept: true }
    }

    /// What it asks for each time.
    fn asked(dir: NodeId, name: &[u8]) -> At<'_> {
        At { dir, name, is_kept: false }
    }

    #[test]
    fn a_node_lives_until_its_last_look_up_is_taken_back() {
        let nodes = Nodes::new(fid(1), 100);
        let one = nodes.look_up(fid(2), asked(NodeId::ROOT, b"x"), NOW);
        assert_eq!(nodes.look_up(fid(2), asked(NodeId::ROOT, b"x"), NOW).id, one.id);
        nodes.forget(one.id, 1);
        assert!(nodes.get(one.id).is_some());
        nodes.forget(one.id, 5);
        assert!(nodes.get(one.id).is_none());
        assert_ne!(
            nodes.look_up(fid(2), asked(NodeId::ROOT, b"x"), NOW).id,
            one.id,
            "an id is never used again"
        );
        nodes.forget(NodeId::ROOT, 1000);
        assert_eq!(nodes.get(NodeId::ROOT).unwrap().fid, fid(1));
    }

    #[test]
    fn a_directory_tells_since_when_the_kernel_has_no_new_name_of_it() {
        let (nodes, at) = (Nodes::new(fid(1), 100), Instant::from_nanos);
        assert!(!nodes.was_named_since(NodeId::ROOT, at(0)));
        nodes.look_up(fid(2), asked(NodeId::ROOT, b"x"), at(1));
        assert!(!nodes.was_named_since(NodeId::ROOT, at(0)), "this one it asks for each time");
        nodes.look_up(fid(2), kept(NodeId::ROOT, b"f"), at(2));
        assert!(nodes.was_named_since(NodeId::ROOT, at(2)) && !nodes.was_named_since(NodeId::ROOT, at(3)));
        nodes.look_up(fid(2), kept(NodeId::ROOT, b"f"), at(4));
        nodes.note_absent(NodeId::ROOT, b"none", at(5));
        assert!(nodes.was_named_since(NodeId::ROOT, at(5)));
        nodes.on_change(fid(1), About::Names);
        assert!(nodes.was_named_since(NodeId::ROOT, at(5)), "that was told nevertheless");
    }

    #[test]
    fn a_changed_directory_takes_its_names_with_it_and_no_others() {
        let nodes = Nodes::new(fid(1), 100);
        let root = nodes.get(NodeId::ROOT).unwrap();
        let sub = nodes.look_up(fid(3), kept(root.id, b"sub"), NOW);
        let file = nodes.look_up(fid(4), kept(root.id, b"a"), NOW);
        nodes.look_up(fid(4), kept(sub.id, b"b"), NOW);
        assert!(nodes.note_absent(root.id, b"none", NOW));
        let forgets = nodes.on_change(fid(1), About::Names);
        assert_eq!(
            forgets,
            [name(&root, "a"), name(&root, "none"), name(&root, "sub"), Forget::Data(root.id)]
        );
        // A directory has one inode only, so its name is told again until the kernel has forgotten it.
        nodes.note_forgotten(root.id, b"sub", nodes.told());
        assert_eq!(nodes.on_change(fid(1), About::Names), [Forget::Data(root.id)], "once is enough");
        assert_eq!(nodes.on_change(fid(4), About::Status), [Forget::Attributes(file.id)]);
        assert_eq!(nodes.on_change(fid(3), About::Status), [name(&sub, "b"), Forget::Attributes(sub.id)]);
        assert_eq!(nodes.on_change(fid(9), About::All), []);
    }

    #[test]
    fn what_the_kernel_reads_by_itself_is_retired_and_the_fid_gets_a_new_node() {
        let nodes = Nodes::new(fid(1), 100);
        let old = nodes.look_up(fid(2), kept(NodeId::ROOT, b"film"), NOW);
        let opened = old.state().mode.open(OpenKind::ReadWhole).0;
        old.state().mode = opened;
        let forgets = nodes.on_change(fid(2), About::All);
        let expected = [Forget::Attributes(old.id), Forget::Name(NodeId::ROOT, b"film".to_vec())];
        assert_eq!(forgets, expected);
        assert!(old.state().is_retired && nodes.get(old.id).is_some());
        let new = nodes.look_up(fid(2), kept(NodeId::ROOT, b"film"), NOW);
        assert_ne!(new.id, old.id);
        nodes.forget(old.id, 1);
        assert_eq!(nodes.of_fid(fid(2)).unwrap().id, new.id, "the old one does not take the new one with it");
        assert_eq!(nodes.on_change(fid(2), About::Data), [Forget::Data(new.id)]);
    }

    #[test]
    fn names_go_with_their_nodes() {
        let nodes = Nodes::new(fid(1), 100);
        let dir = nodes.look_up(fid(3), kept(NodeId::ROOT, b"d"), NOW);
        let file = nodes.look_up(fid(2), kept(dir.id, b"f"), NOW);
        nodes.look_up(fid(2), kept(dir.id, b"hard"), NOW);
        nodes.drop_name(dir.id, b"hard");
        nodes.forget(file.id, 2);
        assert_eq!(nodes.on_change(fid(3), About::Names), [Forget::Data(dir.id)]);
        nodes.forget(dir.id, 1);
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes.on_change(fid(1), About::Names), [Forget::Data(NodeId::ROOT)]);
    }

    /// The kernel is told in the background, which comes too late for a name that it moves meanwhile.
    #[test]
    fn who_renames_is_told_of_a_name_that_the_kernel_was_about_to_forget() {
        let nodes = Nodes::new(fid(1), 100);
        let root = nodes.get(NodeId::ROOT).unwrap();
        nodes.look_up(fid(2), kept(root.id, b"a"), NOW);
        assert!(nodes.move_name((root.id, b"a"), (root.id, b"b"), NOW));
        assert_eq!(nodes.on_change(fid(1), About::Names), [name(&root, "b"), Forget::Data(root.id)]);
        assert!(!nodes.move_name((root.id, b"b"), (root.id, b"c"), NOW));
    }

    /// Two clients gave one file a name each at the same time, and both were told that they had.
    #[test]
    fn a_name_that_the_kernel_may_still_have_is_known_until_it_is_forgotten() {
        let nodes = Nodes::new(fid(1), 100);
        let dir = nodes.look_up(fid(3), kept(NodeId::ROOT, b"d"), NOW);
        let old = (dir.id, b"old".to_vec());
        for at in [kept(dir.id, b"old"), asked(dir.id, b"old")] {
            let file = nodes.look_up(fid(2), at, NOW);
            assert!(nodes.other_names(file.id, dir.id, b"old").is_empty());
            nodes.on_change(fid(3), About::Names);
            nodes.look_up(fid(2), kept(NodeId::ROOT, b"new"), NOW);
            assert_eq!(
                nodes.other_names(file.id, NodeId::ROOT, b"new"),
                std::slice::from_ref(&old),
                "{at:?}"
            );
            let told = nodes.told();
            nodes.look_up(fid(2), asked(dir.id, b"old"), NOW);
            nodes.note_forgotten(dir.id, b"old", told);
            assert_eq!(
                nodes.other_names(file.id, NodeId::ROOT, b"new"),
                std::slice::from_ref(&old),
                "it was told of it again"
            );
            nodes.note_forgotten(dir.id, b"old", nodes.told());
            assert!(nodes.other_names(file.id, NodeId::ROOT, b"new").is_empty());
            nodes.forget(file.id, 3);
        }
        // Another is called so by now, and a third name is asked for that is not there.
        let file = nodes.look_up(fid(2), kept(dir.id, b"old"), NOW);
        nodes.look_up(fid(4), kept(dir.id, b"old"), NOW);
        assert!(nodes.note_absent(dir.id, b"old", NOW));
        assert_eq!(nodes.other_names(file.id, NodeId::ROOT, b"new"), [old]);
        nodes.note_place_forgotten(file.id, dir.id, b"old");
        assert!(nodes.other_names(file.id, NodeId::ROOT, b"new").is_empty());
        assert_eq!(
            nodes.on_change(fid(3), About::Names)[..1],
            [name(&dir, "old")],
            "as one that is not there"
        );
    }

    #[test]
    fn a_closed_file_is_retired_with_its_names_and_an_open_one_is_not() {
        let nodes = Nodes::new(fid(1), 100);
        let file = nodes.look_up(fid(2), kept(NodeId::ROOT, b"a"), NOW);
        nodes.look_up(fid(2), asked(NodeId::ROOT, b"b"), NOW);
        let opened = file.state().mode.open(OpenKind::Read).0;
        file.state().mode = opened;
        assert_eq!(nodes.retire_closed(&file), None);
        assert_eq!(nodes.of_fid(fid(2)).unwrap().id, file.id);
        let released = opened.release();
        file.state().mode = released;
        assert_eq!(nodes.retire_closed(&file), Some(vec![(NodeId::ROOT, b"a".to_vec())]));
        let new = nodes.look_up(fid(2), kept(NodeId::ROOT, b"b"), NOW);
        assert_ne!(new.id, file.id);
        nodes.forget(file.id, 2);
        assert_eq!(nodes.directory_at(NodeId::ROOT, b"b"), None, "it is a file");
        assert_eq!(nodes.on_change(fid(1), About::Names)[0], name(&nodes.peek(NodeId::ROOT).unwrap(), "b"));
    }

    #[test]
    fn names_that_are_not_there_are_bounded() {
        let nodes = Nodes::new(fid(1), 100);
        for number in 0..ABSENT_MAX {
            assert!(nodes.note_absent(NodeId::ROOT, number.to_string().as_bytes(), NOW));
        }
        assert!(!nodes.note_absent(NodeId::ROOT, b"more", NOW));
        nodes.look_up(fid(2), kept(NodeId::ROOT, b"0"), NOW);
        assert!(nodes.note_absent(NodeId::ROOT, b"more", NOW), "one of them is there now");
    }

    #[test]
    fn all_of_a_volume_can_change_at_once() {
        let nodes = Nodes::new(fid(1), 100);
        let file = nodes.look_up(fid(2), kept(NodeId::ROOT, b"f"), NOW);
        let forgets = nodes.on_change_of(Some((CellIndex(1), VolumeId(7))));
        let expected =
            [Forget::Name(NodeId::ROOT, b"f".to_vec()), Forget::Data(NodeId::ROOT), Forget::Data(file.id)];
        assert_eq!(forgets, expected);
        assert_eq!(nodes.on_change_of(Some((CellIndex(2), VolumeId(7)))), []);
        assert_eq!(nodes.on_change_of(None).len(), 2);
    }

    #[test]
    fn the_least_used_are_those_that_were_not_asked_about_and_are_closed() {
        let nodes = Nodes::new(fid(1), 4);
        let dir = nodes.look_up(fid(3), kept(NodeId::ROOT, b"dir"), NOW);
        let [old, open, used, new] =
            [4, 6, 8, 10].map(|n| nodes.look_up(fid(n), kept(dir.id, n.to_string().as_bytes()), NOW));
        let opened = open.state().mode.open(OpenKind::Read).0;
        open.state().mode = opened;
        nodes.get(used.id);
        nodes.get(dir.id);
        let ids = |count| nodes.least_used(count).into_iter().map(|unused| unused.id).collect::<Vec<_>>();
        assert_eq!(ids(2), [old.id, new.id]);
        assert_eq!(ids(1), [used.id], "those of before have had their turn");
        assert_eq!(ids(10), [dir.id, old.id, new.id, used.id]);
        let unused = nodes.least_used(2);
        assert!(unused[0].is_directory && !unused[1].is_directory);
        assert_eq!(unused[1].places, [(dir.id, b"4".to_vec())]);
        assert_eq!(nodes.len(), 6);
        nodes.forget(old.id, 1);
        assert_eq!(nodes.len(), 5);
    }

    #[test]
    fn names_are_forgotten_when_the_one_user_of_a_mount_becomes_somebody_else() {
        let nodes = Nodes::new(fid(1), 100);
        let file = nodes.look_up(fid(2), kept(NodeId::ROOT, b"file"), NOW);
        file.state().pages = Some(afs_wire::ids::DataVersion(1));
        nodes.note_absent(NodeId::ROOT, b"none", NOW);
        let root = nodes.get(NodeId::ROOT).unwrap();
        assert_eq!(nodes.on_identity(), [name(&root, "file"), name(&root, "none")]);
        assert!(nodes.on_identity().is_empty(), "the kernel asks for them");
        assert!(file.state().pages.is_some(), "data are asked for at each open");
    }
}
