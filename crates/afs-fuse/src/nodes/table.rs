//! The table of nodes behind its lock: which names the kernel was told of, and which it may use without asking.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use afs_client::Fid;
use fuse_dev::NodeId;
use lru::LruCache;
use rx_proto::time::Instant;

use super::{ABSENT_MAX, About, At, Forget, Node};
use crate::kernel_length::KernelLength;
use crate::locks::NodeLocks;
use crate::modes::OnChange;
use crate::newest::Told;

/// Names of one node that the kernel asks for each time, and that are remembered: beyond it the first is taken for one that no system
/// call has any longer.
const ASKED_MAX: usize = 16;

/// A name by which the kernel was told of a node.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) dir: NodeId,
    pub(super) name: Vec<u8>,
    /// True if the kernel may use it without asking.
    is_kept: bool,
    /// True if no system call has it any longer: the kernel was told to forget it since. It still knows the name, and asks what it is.
    pub(super) is_forgotten: bool,
}

/// What a name of a directory is to the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    /// The node of this name; none if it is not there.
    pub(super) child: Option<NodeId>,
    /// True if the kernel may use it without asking.
    pub(super) is_kept: bool,
    /// When the kernel was last told of it, as [`Table::told`] counts.
    told: u64,
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) node: Arc<Node>,
    /// Look-ups that the kernel has not taken back.
    pub(super) lookups: u64,
    /// The names by which the kernel may have it.
    pub(super) places: Vec<Place>,
    /// The names of a directory that the kernel was told of.
    pub(super) names: HashMap<Vec<u8>, Name>,
    absent: usize,
    /// The time when the kernel was last told of a name in it that it may use without asking.
    pub(super) named_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Table {
    /// The nodes, in the order in which the kernel last asked about them.
    pub(super) known: LruCache<NodeId, Known>,
    pub(super) current: HashMap<Fid, NodeId>,
    next: u64,
    /// The number of times that the kernel was told of a name.
    pub(super) told: u64,
}

impl Table {
    pub(super) fn new(root: Fid) -> Self {
        let (known, current) = (LruCache::unbounded(), HashMap::new());
        let mut table = Self { known, current, next: NodeId::ROOT.0, told: 0 };
        table.make(root);
        // The kernel never takes the root back.
        table.known.peek_mut(&NodeId::ROOT).expect("it was made just now").lookups = 1;
        table
    }

    pub(super) fn make(&mut self, fid: Fid) -> NodeId {
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

    /// Notes that the kernel is told of a name. False: it may not be.
    pub(super) fn remember(&mut self, at: At<'_>, child: Option<NodeId>, now: Instant) -> bool {
        let At { dir, name, is_kept } = at;
        self.told += 1;
        let told = self.told;
        let Some(parent) = self.known.peek_mut(&dir) else { return false };
        if is_kept {
            parent.named_at = Some(now);
        }
        match parent.names.get_mut(name) {
            Some(before) if before.child == child => {
                before.is_kept |= is_kept;
                before.told = told;
            }
            before if child.is_none() && parent.absent >= ABSENT_MAX => {
                if before.is_some() {
                    self.revoke(dir, name);
                }
                return false;
            }
            Some(_) => self.replace(at, child),
            None => {
                parent.absent += usize::from(child.is_none());
                parent.names.insert(name.to_vec(), Name { child, is_kept, told });
            }
        }
        if let Some(id) = child
            && let Some(dropped) = self.known.peek_mut(&id).and_then(|known| known.add_place(at))
        {
            self.drop_name_of(id, dropped.dir, &dropped.name);
        }
        true
    }

    /// Notes that a name is something else's. A system call may have it as what it was.
    fn replace(&mut self, At { dir, name, is_kept }: At<'_>, child: Option<NodeId>) {
        let told = self.told;
        let Some(parent) = self.known.peek_mut(&dir) else { return };
        let before = parent.names.insert(name.to_vec(), Name { child, is_kept, told });
        parent.absent += usize::from(child.is_none());
        match before.and_then(|before| before.child) {
            Some(before) => {
                if let Some(place) = self.known.peek_mut(&before).and_then(|known| known.place(dir, name)) {
                    place.is_kept = false;
                }
            }
            None => parent.absent -= 1,
        }
    }

    /// The kernel no longer has a name, or has it for something else.
    pub(super) fn drop_name(&mut self, dir: NodeId, name: &[u8]) {
        let Some(parent) = self.known.peek_mut(&dir) else { return };
        match parent.names.remove(name) {
            Some(Name { child: Some(child), .. }) => self.drop_place(child, dir, name),
            Some(Name { child: None, .. }) => parent.absent -= 1,
            None => {}
        }
    }

    pub(super) fn note_place_forgotten(&mut self, id: NodeId, dir: NodeId, name: &[u8]) {
        if let Some(place) = self.known.peek_mut(&id).and_then(|known| known.place(dir, name)) {
            place.is_forgotten = !place.is_kept;
        }
    }

    fn drop_place(&mut self, id: NodeId, dir: NodeId, name: &[u8]) {
        if let Some(known) = self.known.peek_mut(&id) {
            known.places.retain(|place| place.dir != dir || place.name != name);
        }
        self.drop_name_of(id, dir, name);
    }

    /// Takes a name out of its directory, if it is this node's.
    fn drop_name_of(&mut self, id: NodeId, dir: NodeId, name: &[u8]) {
        if let Some(parent) = self.known.peek_mut(&dir)
            && parent.names.get(name).is_some_and(|named| named.child == Some(id))
        {
            parent.names.remove(name);
        }
    }

    /// The kernel is to forget a name. It has it until it says so.
    pub(super) fn revoke(&mut self, dir: NodeId, name: &[u8]) {
        let Some(named) = self.known.peek_mut(&dir).and_then(|parent| parent.names.get_mut(name)) else {
            return;
        };
        named.is_kept = false;
        match named.child {
            Some(child) => {
                if let Some(place) = self.known.peek_mut(&child).and_then(|known| known.place(dir, name)) {
                    place.is_kept = false;
                }
            }
            None => self.drop_name(dir, name),
        }
    }

    pub(super) fn note_forgotten(&mut self, dir: NodeId, name: &[u8], told: u64) {
        let named = self.known.peek(&dir).and_then(|parent| parent.names.get(name));
        let child = named.filter(|named| !named.is_kept && named.told <= told).and_then(|named| named.child);
        if let Some(child) = child {
            self.note_place_forgotten(child, dir, name);
        }
    }

    pub(super) fn forget(&mut self, id: NodeId, lookups: u64) {
        let Some(known) = self.known.peek_mut(&id) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 || id == NodeId::ROOT {
            return;
        }
        let known = self.known.pop(&id).expect("it was there just now");
        for place in &known.places {
            self.drop_name_of(id, place.dir, &place.name);
        }
        for child in known.names.values().filter_map(|named| named.child) {
            if let Some(child) = self.known.peek_mut(&child) {
                child.places.retain(|place| place.dir != id);
            }
        }
        if self.current.get(&known.node.fid) == Some(&id) {
            self.current.remove(&known.node.fid);
        }
    }

    /// Has the kernel forget all names in a directory.
    pub(super) fn forget_names(&mut self, id: NodeId, forgets: &mut Vec<Forget>) {
        let Some(known) = self.known.peek(&id) else { return };
        let told =
            known.names.iter().filter(|(name, named)| named.is_kept || self.is_in_use(id, name, named));
        let mut names: Vec<_> = told.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        for name in names {
            self.revoke(id, &name);
            forgets.push(Forget::Name(id, name));
        }
    }

    /// True if a name that the kernel asks for each time is of what has one inode only, whatever becomes of its names: of a directory, or
    /// of a file that is open. A look-up of it under another name is answered at once if the kernel has forgotten this one before.
    fn is_in_use(&self, dir: NodeId, name: &[u8], named: &Name) -> bool {
        let Some(known) = named.child.and_then(|child| self.known.peek(&child)) else { return false };
        let is_told = |place: &Place| place.dir == dir && place.name == name && !place.is_forgotten;
        let is_single = known.node.fid.vnode.is_directory() || !known.node.state().mode.is_closed();
        is_single && known.places.iter().any(is_told)
    }

    /// Notes that the next look-up of a node's fid makes a new node.
    pub(super) fn note_retired(&mut self, node: &Node) {
        if self.current.get(&node.fid) == Some(&node.id) {
            self.current.remove(&node.fid);
        }
    }

    /// Revokes the names of a node that the kernel may use without asking.
    pub(super) fn revoke_places(&mut self, id: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        let Some(known) = self.known.peek(&id) else { return Vec::new() };
        let kept = known.places.iter().filter(|place| place.is_kept);
        let names: Vec<_> = kept.map(|place| (place.dir, place.name.clone())).collect();
        for (dir, name) in &names {
            self.revoke(*dir, name);
        }
        names
    }

    pub(super) fn on_change(&mut self, fid: Fid, about: About, forgets: &mut Vec<Forget>) {
        let Some(id) = self.current.get(&fid).copied() else { return };
        if matches!(about, About::Names | About::All | About::Status) {
            // A change of the access list changes who may see names.
            self.forget_names(id, forgets);
        }
        let Some(known) = self.known.peek_mut(&id) else { return };
        known.node.kernel_length.note_notice();
        let mut state = known.node.state();
        if about == About::Status {
            state.forgets.begin_attributes();
            forgets.push(Forget::Attributes(id));
            return;
        }
        state.pages = None;
        state.told = Told::Nothing;
        match state.mode.on_change() {
            OnChange::Forget => {
                state.forgets.begin();
                forgets.push(Forget::Data(id));
            }
            OnChange::Retire => {
                state.is_retired = true;
                state.forgets.begin_attributes();
                drop(state);
                self.current.remove(&fid);
                forgets.push(Forget::Attributes(id));
                let names = self.revoke_places(id);
                forgets.extend(names.into_iter().map(|(dir, name)| Forget::Name(dir, name)));
            }
        }
    }
}

impl Known {
    fn place(&mut self, dir: NodeId, name: &[u8]) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.dir == dir && place.name == name)
    }

    /// Adds one, for which another may have to go.
    fn add_place(&mut self, At { dir, name, is_kept }: At<'_>) -> Option<Place> {
        if let Some(place) = self.place(dir, name) {
            place.is_kept |= is_kept;
            place.is_forgotten = false;
            return None;
        }
        let mut asked = self.places.iter().enumerate().filter(|(_, place)| !place.is_kept);
        let first = asked.next().map(|(first, _)| first).filter(|_| asked.count() + 1 >= ASKED_MAX);
        let dropped = first.map(|first| self.places.remove(first));
        self.places.push(Place { dir, name: name.to_vec(), is_kept, is_forgotten: false });
        dropped
    }
}
