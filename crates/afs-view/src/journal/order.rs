//! The order in which changes are sent: one that uses what an earlier one has made, or changes what an earlier one uses, waits for it. All
//! others may go at the same time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use afs_cache::{Change, NewKind, What};
use afs_reach::fid::{CellIndex, Fid};
use afs_wire::ids::VolumeId;

/// What a change uses or changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Thing {
    /// A name in a directory, whatever has it.
    Name(Fid, Vec<u8>),
    /// A vnode.
    Vnode(Fid),
    /// All of a volume.
    Volume(CellIndex, VolumeId),
}

/// The things that a change uses, and whether it changes them: then all of before go first, and all of after wait.
pub(super) fn uses(change: &Change<Fid>) -> Vec<(Thing, bool)> {
    let name = |place: &afs_cache::Place<Fid>| (Thing::Name(place.dir, place.name.clone()), true);
    let volume = |fid: Fid, is_all| (Thing::Volume(fid.cell, fid.volume), is_all);
    match &change.what {
        What::Make { place, made, .. } => vec![
            name(place),
            (Thing::Vnode(*made), true),
            (Thing::Vnode(place.dir), false),
            volume(*made, false),
        ],
        What::Link { place, of } | What::Remove { place, of, .. } => {
            vec![name(place), (Thing::Vnode(*of), true), (Thing::Vnode(place.dir), false), volume(*of, false)]
        }
        What::Rename { from, to, of, replaced, is_barrier } => {
            let mut uses = vec![
                name(from),
                name(to),
                (Thing::Vnode(*of), true),
                (Thing::Vnode(from.dir), false),
                volume(*of, *is_barrier),
            ];
            if from.dir != to.dir {
                uses.push((Thing::Vnode(to.dir), false));
            }
            uses.extend(replaced.map(|replaced| (Thing::Vnode(replaced), true)));
            uses
        }
        What::Set { of, .. } => vec![(Thing::Vnode(*of), true), volume(*of, false)],
        What::Sync { of } => vec![(Thing::Vnode(*of), true), volume(*of, true)],
    }
}

/// True if a change makes a vnode, or is about one that has no other name: without it, there is nothing left of the vnode.
pub(super) fn is_about_only(change: &Change<Fid>, fid: Fid) -> bool {
    match &change.what {
        What::Make { made, kind, .. } => *made == fid && *kind != NewKind::Directory,
        What::Set { of, .. } => *of == fid,
        What::Link { .. } | What::Remove { .. } | What::Rename { .. } | What::Sync { .. } => false,
    }
}

/// The file that is no longer there after a change.
pub(super) fn removed(change: &Change<Fid>) -> Option<Fid> {
    let gone = match &change.what {
        What::Remove { of, is_last, .. } => is_last.then_some(*of),
        What::Rename { replaced, .. } => *replaced,
        What::Make { .. } | What::Link { .. } | What::Set { .. } | What::Sync { .. } => None,
    };
    gone.filter(|fid| !fid.vnode.is_directory())
}

#[derive(Debug)]
struct Waiting {
    uses: Vec<(Thing, bool)>,
    volume: (CellIndex, VolumeId),
    /// Changes that it waits for, and those that wait for it.
    before: usize,
    after: Vec<u64>,
    is_sent: bool,
}

/// The changes that use a thing.
#[derive(Debug, Default)]
struct Users {
    /// The last one that changes it.
    changing: Option<u64>,
    /// Those since.
    using: BTreeSet<u64>,
    /// All, and whether they change it.
    all: BTreeMap<u64, bool>,
}

/// The changes that are not at a server yet, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Order {
    waiting: BTreeMap<u64, Waiting>,
    things: HashMap<Thing, Users>,
    ready: BTreeMap<(CellIndex, VolumeId), BTreeSet<u64>>,
}

impl Order {
    /// Adds a change that comes after all others.
    pub(super) fn add(&mut self, number: u64, uses: Vec<(Thing, bool)>) {
        let mut before = BTreeSet::new();
        for (thing, changes) in &uses {
            let users = self.things.entry(thing.clone()).or_default();
            users.all.insert(number, *changes);
            before.extend(users.changing);
            if *changes {
                before.append(&mut users.using);
                users.changing = Some(number);
            } else {
                users.using.insert(number);
            }
        }
        before.remove(&number);
        for earlier in &before {
            self.waiting.get_mut(earlier).expect("it is not done").after.push(number);
        }
        let volume = uses.iter().find_map(|(thing, _)| match thing {
            Thing::Volume(cell, volume) => Some((*cell, *volume)),
            Thing::Name(..) | Thing::Vnode(_) => None,
        });
        let volume = volume.expect("each change is of a volume");
        let waiting = Waiting { uses, volume, before: before.len(), after: Vec::new(), is_sent: false };
        self.waiting.insert(number, waiting);
        if before.is_empty() {
            self.set_ready(number);
        }
    }

    fn set_ready(&mut self, number: u64) {
        if let Some(waiting) = self.waiting.get(&number) {
            self.ready.entry(waiting.volume).or_default().insert(number);
        }
    }

    fn unset_ready(&mut self, volume: (CellIndex, VolumeId), number: u64) {
        if let Some(ready) = self.ready.get_mut(&volume) {
            ready.remove(&number);
            if ready.is_empty() {
                self.ready.remove(&volume);
            }
        }
    }

    /// The first change that may be sent and is not, in the volumes that are meant.
    pub(super) fn next(&mut self, is_meant: impl Fn(CellIndex, VolumeId) -> bool) -> Option<u64> {
        let meant = self.ready.iter().filter(|((cell, volume), _)| is_meant(*cell, *volume));
        let (number, volume) = meant.filter_map(|(volume, ready)| Some((*ready.first()?, *volume))).min()?;
        self.unset_ready(volume, number);
        self.waiting.get_mut(&number).expect("it is not done").is_sent = true;
        Some(number)
    }

    /// A change that was sent has come to nothing, and is to be sent again.
    pub(super) fn again(&mut self, number: u64) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            waiting.is_sent = false;
            self.set_ready(number);
        }
    }

    /// The changes that use a thing.
    pub(super) fn users(&self, thing: &Thing) -> Vec<u64> {
        self.things.get(thing).map(|users| users.all.keys().copied().collect()).unwrap_or_default()
    }

    /// These changes, and all that they wait for.
    pub(super) fn with_those_before(&self, numbers: &[u64]) -> BTreeSet<u64> {
        let (mut found, mut left) = (BTreeSet::new(), numbers.to_vec());
        while let Some(number) = left.pop() {
            let Some(waiting) = self.waiting.get(&number).filter(|_| found.insert(number)) else { continue };
            for (thing, changes) in &waiting.uses {
                let users = self.things.get(thing).into_iter().flat_map(|users| users.all.range(..number));
                left.extend(users.filter(|(_, theirs)| *changes || **theirs).map(|(number, _)| *number));
            }
        }
        found
    }

    /// True if it was sent.
    pub(super) fn is_sent(&self, number: u64) -> bool {
        self.waiting.get(&number).is_some_and(|waiting| waiting.is_sent)
    }

    /// A change is at the server, or will not be.
    pub(super) fn done(&mut self, number: u64) {
        let Some(done) = self.waiting.remove(&number) else { return };
        self.unset_ready(done.volume, number);
        for (thing, _) in &done.uses {
            let Some(users) = self.things.get_mut(thing) else { continue };
            users.using.remove(&number);
            users.all.remove(&number);
            if users.changing == Some(number) {
                // One that is taken back has others before it, which those after it wait for.
                users.changing =
                    users.all.iter().rev().find(|(_, changes)| **changes).map(|(number, _)| *number);
                let since = users.changing.map_or(0, |changing| changing + 1);
                users.using = users.all.range(since..).map(|(number, _)| *number).collect();
            }
            if users.all.is_empty() {
                self.things.remove(thing);
            }
        }
        for later in done.after {
            let Some(waiting) = self.waiting.get_mut(&later) else { continue };
            waiting.before -= 1;
            if waiting.before == 0 {
                self.set_ready(later);
            }
        }
    }

    /// The numbers of changes that may be sent and are not, by volume.
    pub(super) fn ready(&self) -> impl Iterator<Item = ((CellIndex, VolumeId), usize)> {
        self.ready.iter().map(|(volume, ready)| (*volume, ready.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_cache::{Place, Writer};
    use afs_wire::ids::{LocalFid, Uniquifier, VnodeNumber};

    const ROOT: Fid = Fid::root_of(CellIndex(1), VolumeId(7));

    fn fid(vnode: u32) -> Fid {
        ROOT.sibling(LocalFid { vnode: VnodeNumber(vnode), unique: Uniquifier(1) })
    }

    fn place(dir: Fid, name: &str) -> Place<Fid> {
        Place { dir, name: name.as_bytes().to_vec() }
    }

    fn make(dir: Fid, name: &str, made: u32) -> What<Fid> {
        let kind = if fid(made).vnode.is_directory() { NewKind::Directory } else { NewKind::File };
        What::Make { place: place(dir, name), made: fid(made), kind, mode: 0o644, modified: 0 }
    }

    fn order(changes: Vec<What<Fid>>) -> Order {
        let mut order = Order::default();
        for (number, what) in changes.into_iter().enumerate() {
            order.add(number as u64, uses(&Change { writer: Writer::default(), time: 0, what }));
        }
        order
    }

    fn all_next(order: &mut Order) -> Vec<u64> {
        std::iter::from_fn(|| order.next(|_, _| true)).collect()
    }

    #[test]
    fn what_is_made_in_a_new_directory_waits_for_it_and_all_that_goes_at_once() {
        let mut order =
            order(vec![make(ROOT, "d", 3), make(fid(3), "a", 2), make(fid(3), "b", 4), make(ROOT, "c", 6)]);
        assert_eq!(order.with_those_before(&[2]), BTreeSet::from([0, 2]));
        assert_eq!(all_next(&mut order), [0, 3]);
        order.done(0);
        assert_eq!(all_next(&mut order), [1, 2]);
    }

    #[test]
    fn changes_of_one_name_and_of_one_file_go_in_order() {
        let remove = What::Remove { place: place(ROOT, "a"), of: fid(2), is_last: true };
        let mut order = order(vec![
            make(ROOT, "a", 2),
            What::Set { of: fid(2), mode: Some(0o600), modified: None },
            remove,
            make(ROOT, "a", 4),
        ]);
        for number in 0..4 {
            assert_eq!(all_next(&mut order), [number]);
            order.again(number);
            assert_eq!(all_next(&mut order), [number], "it is sent again, and no other");
            order.done(number);
        }
        assert!(order.waiting.is_empty() && order.things.is_empty());
    }

    #[test]
    fn what_is_made_after_something_that_was_taken_back_waits_for_what_was_before() {
        let remove = What::Remove { place: place(ROOT, "a"), of: fid(2), is_last: true };
        let mut order = order(vec![remove, make(ROOT, "a", 4)]);
        order.done(1);
        order.add(2, uses(&Change { writer: Writer::default(), time: 0, what: make(ROOT, "a", 6) }));
        assert_eq!(all_next(&mut order), [0]);
        order.done(0);
        assert_eq!(all_next(&mut order), [2]);
    }

    #[test]
    fn a_directory_is_renamed_and_removed_after_all_that_was_made_in_it() {
        let rename = What::Rename {
            from: place(ROOT, "d"),
            to: place(ROOT, "e"),
            of: fid(3),
            replaced: None,
            is_barrier: true,
        };
        let remove = What::Remove { place: place(ROOT, "e"), of: fid(3), is_last: true };
        let mut order =
            order(vec![make(fid(3), "a", 2), make(fid(5), "b", 4), rename, remove, make(ROOT, "f", 6)]);
        assert_eq!(all_next(&mut order), [0, 1]);
        order.done(0);
        assert_eq!(all_next(&mut order), [], "others of the volume go before too: a link may lead there");
        order.done(1);
        assert_eq!(all_next(&mut order), [2]);
        order.done(2);
        assert_eq!(all_next(&mut order), [3, 4]);
    }
}
