//! The kernel's knowledge of our files: its nodes, each a fid in one incarnation, with the look-ups that it will take back,
//! the names by which it may find them without asking, and how they are open.
//!
//! Node ids are never used again while the mount lasts, so that an old one is never mistaken for another file. The number that
//! programs see (`st_ino`) is made of the fid, and the same in all incarnations: see `inodes`.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use afs_client::{CellIndex, Fid};
use afs_wire::ids::{DataVersion, VolumeId};
use fuse_dev::{Attributes, Backing, NodeId};
use lru::LruCache;
use rx_proto::time::Instant;
use tokio::sync::Notify;

use crate::kernel_length::{Changes, EmptyPages, KernelLength};
use crate::locks::NodeLocks;
use crate::modes::{Mode, OnChange};

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
    /// The times when others have changed the data.
    pub(crate) changes: Changes,
    /// The pages that the kernel has without data.
    pub(crate) empty: EmptyPages,
    /// True if this stands for data that are no longer the file's.
    pub(crate) is_retired: bool,
    /// True if its last name was removed here: the client keeps it under a hidden one while it is open.
    pub(crate) is_nameless: bool,
    /// The attributes that `fstat` tells of a directory that was removed here, when it is gone.
    pub(crate) gone: Option<Box<Attributes>>,
}

impl Node {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

#[derive(Debug)]
struct Known {
    node: Arc<Node>,
    /// Look-ups that the kernel has not taken back.
    lookups: u64,
    /// Directory and name of each name by which the kernel may find it.
    places: Vec<(NodeId, Vec<u8>)>,
    /// The names of a directory that the kernel may use without asking; with no node for those that are not there.
    names: HashMap<Vec<u8>, Option<NodeId>>,
    absent: usize,
    /// The time when the kernel was last told of one of them.
    named_at: Option<Instant>,
}

#[derive(Debug)]
struct Table {
    /// In the order in which the kernel last asked about them.
    known: LruCache<NodeId, Known>,
    current: HashMap<Fid, NodeId>,
    next: u64,
}

/// All nodes of a mount.
#[derive(Debug)]
pub(crate) struct Nodes {
    table: Mutex<Table>,
    /// Most nodes: beyond it the kernel is to let go of some.
    limit: usize,
    /// Told when there are more.
    pub(crate) over_limit: Notify,
}

impl Nodes {
    /// A mount with this root, of whose files the kernel may know so many.
    pub(crate) fn new(root: Fid, limit: usize) -> Self {
        let mut table = Table { known: LruCache::unbounded(), current: HashMap::new(), next: NodeId::ROOT.0 };
        table.make(root);
        // The kernel never takes the root back.
        table.known.peek_mut(&NodeId::ROOT).expect("it was made just now").lookups = 1;
        Self { table: Mutex::new(table), limit, over_limit: Notify::new() }
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
        let id = table.known.peek(&dir)?.names.get(name).copied().flatten()?;
        table.known.peek(&id).filter(|known| known.node.fid.vnode.is_directory()).map(|_| id)
    }

    /// The node of a fid, for an answer that counts as a look-up. With `place`, the kernel may find it by that name from now on
    /// without asking.
    pub(crate) fn look_up(&self, fid: Fid, place: Option<(NodeId, &[u8])>, now: Instant) -> Arc<Node> {
        let mut table = self.lock();
        let id = match table.current.get(&fid) {
            Some(id) => *id,
            None => table.make(fid),
        };
        if let Some((dir, name)) = place {
            table.remember(dir, name, Some(id), now);
        }
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
        self.lock().remember(dir, name, None, now)
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

    /// The kernel has moved a name, with what it has of it. False: it may find it by its new name without asking, although that is not
    /// noted, as it was being told to forget the old one.
    pub(crate) fn move_name(&self, from: (NodeId, &[u8]), to: (NodeId, &[u8]), now: Instant) -> bool {
        let mut table = self.lock();
        let child = table.known.peek(&from.0).and_then(|dir| dir.names.get(from.1).copied()).flatten();
        table.drop_name(from.0, from.1);
        table.drop_name(to.0, to.1);
        child.is_some_and(|child| table.remember(to.0, to.1, Some(child), now))
    }

    /// A node stands for data that are no longer the file's: the next look-up of the fid makes a new one.
    pub(crate) fn retire(&self, node: &Node) {
        let mut table = self.lock();
        node.state().is_retired = true;
        if table.current.get(&node.fid) == Some(&node.id) {
            table.current.remove(&node.fid);
        }
    }

    /// A vnode has changed elsewhere: what the kernel has to forget for it.
    pub(crate) fn on_change(&self, fid: Fid, about: About) -> Vec<Forget> {
        let mut forgets = Vec::new();
        self.lock().on_change(fid, about, &mut forgets);
        forgets
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
            places: known.places.clone(),
        };
        let chosen: Vec<_> = oldest.take(count).map(unused).collect();
        for unused in &chosen {
            table.known.promote(&unused.id);
        }
        chosen
    }
}

impl Table {
    fn make(&mut self, fid: Fid) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        let node = Arc::new(Node {
            id,
            fid,
            locks: NodeLocks::default(),
            kernel_length: KernelLength::default(),
            state: Mutex::default(),
        });
        let (places, names) = (Vec::new(), HashMap::new());
        let known = Known { node, lookups: 0, places, names, absent: 0, named_at: None };
        self.known.put(id, known);
        self.current.insert(fid, id);
        id
    }

    fn remember(&mut self, dir: NodeId, name: &[u8], child: Option<NodeId>, now: Instant) -> bool {
        let Some(parent) = self.known.peek_mut(&dir) else { return false };
        parent.named_at = Some(now);
        match parent.names.get(name) {
            Some(before) if *before == child => return true,
            Some(_) => self.drop_name(dir, name),
            None => {}
        }
        let parent = self.known.peek_mut(&dir).expect("it was there just now");
        if child.is_none() {
            if parent.absent >= ABSENT_MAX {
                return false;
            }
            parent.absent += 1;
        }
        parent.names.insert(name.to_vec(), child);
        if let Some(child) = child.and_then(|id| self.known.peek_mut(&id)) {
            child.places.push((dir, name.to_vec()));
        }
        true
    }

    fn drop_name(&mut self, dir: NodeId, name: &[u8]) {
        let Some(parent) = self.known.peek_mut(&dir) else { return };
        match parent.names.remove(name) {
            Some(Some(child)) => {
                if let Some(child) = self.known.peek_mut(&child) {
                    child.places.retain(|(d, n)| *d != dir || n != name);
                }
            }
            Some(None) => parent.absent -= 1,
            None => {}
        }
    }

    fn forget(&mut self, id: NodeId, lookups: u64) {
        let Some(known) = self.known.peek_mut(&id) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 || id == NodeId::ROOT {
            return;
        }
        let known = self.known.pop(&id).expect("it was there just now");
        for (dir, name) in &known.places {
            if let Some(parent) = self.known.peek_mut(dir) {
                parent.names.remove(name);
            }
        }
        for child in known.names.values().flatten() {
            if let Some(child) = self.known.peek_mut(child) {
                child.places.retain(|(dir, _)| *dir != id);
            }
        }
        if self.current.get(&known.node.fid) == Some(&id) {
            self.current.remove(&known.node.fid);
        }
    }

    /// Has the kernel forget all names in a directory.
    fn forget_names(&mut self, id: NodeId, forgets: &mut Vec<Forget>) {
        let Some(known) = self.known.peek_mut(&id) else { return };
        let mut names: Vec<_> = known.names.drain().collect();
        known.absent = 0;
        names.sort_unstable();
        for (name, child) in names {
            if let Some(child) = child.and_then(|child| self.known.peek_mut(&child)) {
                child.places.retain(|(d, n)| *d != id || *n != name);
            }
            forgets.push(Forget::Name(id, name));
        }
    }

    fn on_change(&mut self, fid: Fid, about: About, forgets: &mut Vec<Forget>) {
        let Some(id) = self.current.get(&fid).copied() else { return };
        if matches!(about, About::Names | About::All | About::Status) {
            // A change of the access list changes who may see names.
            self.forget_names(id, forgets);
        }
        let Some(known) = self.known.peek_mut(&id) else { return };
        if about == About::Status {
            forgets.push(Forget::Attributes(id));
            return;
        }
        let on_change = {
            let mut state = known.node.state();
            state.pages = None;
            let on_change = state.mode.on_change();
            state.is_retired |= on_change == OnChange::Retire;
            on_change
        };
        match on_change {
            OnChange::Forget => forgets.push(Forget::Data(id)),
            OnChange::Retire => {
                self.current.remove(&fid);
                forgets.push(Forget::Attributes(id));
                let places = std::mem::take(&mut known.places);
                for (dir, name) in places {
                    if let Some(parent) = self.known.peek_mut(&dir) {
                        parent.names.remove(&name);
                    }
                    forgets.push(Forget::Name(dir, name));
                }
            }
        }
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

    #[test]
    fn a_node_lives_until_its_last_look_up_is_taken_back() {
        let nodes = Nodes::new(fid(1), 100);
        let one = nodes.look_up(fid(2), None, NOW);
        assert_eq!(nodes.look_up(fid(2), None, NOW).id, one.id);
        nodes.forget(one.id, 1);
        assert!(nodes.get(one.id).is_some());
        nodes.forget(one.id, 5);
        assert!(nodes.get(one.id).is_none());
        assert_ne!(nodes.look_up(fid(2), None, NOW).id, one.id, "an id is never used again");
        nodes.forget(NodeId::ROOT, 1000);
        assert_eq!(nodes.get(NodeId::ROOT).unwrap().fid, fid(1));
    }

    #[test]
    fn a_directory_tells_since_when_the_kernel_has_no_new_name_of_it() {
        let (nodes, at) = (Nodes::new(fid(1), 100), Instant::from_nanos);
        assert!(!nodes.was_named_since(NodeId::ROOT, at(0)));
        nodes.look_up(fid(2), None, at(1));
        assert!(!nodes.was_named_since(NodeId::ROOT, at(0)), "this one it asks for each time");
        nodes.look_up(fid(2), Some((NodeId::ROOT, b"f")), at(2));
        assert!(nodes.was_named_since(NodeId::ROOT, at(2)) && !nodes.was_named_since(NodeId::ROOT, at(3)));
        nodes.look_up(fid(2), Some((NodeId::ROOT, b"f")), at(4));
        nodes.note_absent(NodeId::ROOT, b"none", at(5));
        assert!(nodes.was_named_since(NodeId::ROOT, at(5)));
        nodes.on_change(fid(1), About::Names);
        assert!(nodes.was_named_since(NodeId::ROOT, at(5)), "that was told nevertheless");
    }

    #[test]
    fn a_changed_directory_takes_its_names_with_it_and_no_others() {
        let nodes = Nodes::new(fid(1), 100);
        let root = nodes.get(NodeId::ROOT).unwrap();
        let sub = nodes.look_up(fid(3), Some((root.id, b"sub")), NOW);
        let file = nodes.look_up(fid(4), Some((root.id, b"a")), NOW);
        nodes.look_up(fid(4), Some((sub.id, b"b")), NOW);
        assert!(nodes.note_absent(root.id, b"none", NOW));
        let forgets = nodes.on_change(fid(1), About::Names);
        assert_eq!(
            forgets,
            [name(&root, "a"), name(&root, "none"), name(&root, "sub"), Forget::Data(root.id)]
        );
        assert_eq!(nodes.on_change(fid(1), About::Names), [Forget::Data(root.id)], "once is enough");
        assert_eq!(nodes.on_change(fid(4), About::Status), [Forget::Attributes(file.id)]);
        assert_eq!(nodes.on_change(fid(3), About::Status), [name(&sub, "b"), Forget::Attributes(sub.id)]);
        assert_eq!(nodes.on_change(fid(9), About::All), []);
    }

    #[test]
    fn what_the_kernel_reads_by_itself_is_retired_and_the_fid_gets_a_new_node() {
        let nodes = Nodes::new(fid(1), 100);
        let old = nodes.look_up(fid(2), Some((NodeId::ROOT, b"film")), NOW);
        let opened = old.state().mode.open(OpenKind::ReadWhole).0;
        old.state().mode = opened;
        let forgets = nodes.on_change(fid(2), About::All);
        let expected = [Forget::Attributes(old.id), Forget::Name(NodeId::ROOT, b"film".to_vec())];
        assert_eq!(forgets, expected);
        assert!(old.state().is_retired && nodes.get(old.id).is_some());
        let new = nodes.look_up(fid(2), Some((NodeId::ROOT, b"film")), NOW);
        assert_ne!(new.id, old.id);
        nodes.forget(old.id, 1);
        assert_eq!(nodes.of_fid(fid(2)).unwrap().id, new.id, "the old one does not take the new one with it");
        assert_eq!(nodes.on_change(fid(2), About::Data), [Forget::Data(new.id)]);
    }

    #[test]
    fn names_go_with_their_nodes() {
        let nodes = Nodes::new(fid(1), 100);
        let dir = nodes.look_up(fid(3), Some((NodeId::ROOT, b"d")), NOW);
        let file = nodes.look_up(fid(2), Some((dir.id, b"f")), NOW);
        nodes.look_up(fid(2), Some((dir.id, b"hard")), NOW);
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
        nodes.look_up(fid(2), Some((root.id, b"a")), NOW);
        assert!(nodes.move_name((root.id, b"a"), (root.id, b"b"), NOW));
        assert_eq!(nodes.on_change(fid(1), About::Names), [name(&root, "b"), Forget::Data(root.id)]);
        assert!(!nodes.move_name((root.id, b"b"), (root.id, b"c"), NOW));
    }

    #[test]
    fn names_that_are_not_there_are_bounded() {
        let nodes = Nodes::new(fid(1), 100);
        for number in 0..ABSENT_MAX {
            assert!(nodes.note_absent(NodeId::ROOT, number.to_string().as_bytes(), NOW));
        }
        assert!(!nodes.note_absent(NodeId::ROOT, b"more", NOW));
        nodes.look_up(fid(2), Some((NodeId::ROOT, b"0")), NOW);
        assert!(nodes.note_absent(NodeId::ROOT, b"more", NOW), "one of them is there now");
    }

    #[test]
    fn all_of_a_volume_can_change_at_once() {
        let nodes = Nodes::new(fid(1), 100);
        let file = nodes.look_up(fid(2), Some((NodeId::ROOT, b"f")), NOW);
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
        let dir = nodes.look_up(fid(3), Some((NodeId::ROOT, b"dir")), NOW);
        let [old, open, used, new] =
            [4, 6, 8, 10].map(|n| nodes.look_up(fid(n), Some((dir.id, n.to_string().as_bytes())), NOW));
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
        let file = nodes.look_up(fid(2), Some((NodeId::ROOT, b"file")), NOW);
        file.state().pages = Some(afs_wire::ids::DataVersion(1));
        nodes.note_absent(NodeId::ROOT, b"none", NOW);
        let root = nodes.get(NodeId::ROOT).unwrap();
        assert_eq!(nodes.on_identity(), [name(&root, "file"), name(&root, "none")]);
        assert!(nodes.on_identity().is_empty(), "the kernel asks for them");
        assert!(file.state().pages.is_some(), "data are asked for at each open");
    }
}
