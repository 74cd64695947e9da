//! A model of what volumes should do, in memory and without anything clever: a copy for each clone. Operations by
//! random on both.

use crate::tests::stamp;
use crate::{
    Kind, Partition, SetStatus, StoreRange, VnodeId, VnodeStatus, Volume, VolumeError, VolumeHeader,
};
use afs_wire::ids::VolumeId;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A vnode as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) parent: VnodeId,
    pub(super) links: u32,
    pub(super) version: u64,
    pub(super) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, VnodeId>),
}

/// A volume as it should be.
pub(super) type Tree = BTreeMap<VnodeId, Node>;

/// A new volume's.
pub(super) fn new_tree() -> Tree {
    let what = What::Directory(BTreeMap::new());
    Tree::from([(VnodeId::ROOT, Node { parent: VnodeId::ROOT, links: 2, version: 0, what })])
}

fn kind(node: &Node) -> Kind {
    match node.what {
        What::File(_) => Kind::File,
        What::Symlink(_) => Kind::Symlink,
        What::Directory(_) => Kind::Directory,
    }
}

fn names(tree: &mut Tree, directory: VnodeId) -> &mut BTreeMap<Vec<u8>, VnodeId> {
    match &mut tree.get_mut(&directory).expect("a directory").what {
        What::Directory(names) => names,
        _ => panic!("no directory"),
    }
}

/// The name of an operation's error; errors are compared by it.
fn name_of(error: &VolumeError) -> String {
    format!("{error:?}").chars().take_while(|c| c.is_alphanumeric()).collect()
}

/// One operation, chosen by chance.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Create(VnodeId, Vec<u8>),
    MakeDir(VnodeId, Vec<u8>),
    Symlink(VnodeId, Vec<u8>, Vec<u8>),
    Link(VnodeId, Vec<u8>, VnodeId),
    RemoveFile(VnodeId, Vec<u8>),
    RemoveDir(VnodeId, Vec<u8>),
    Rename(VnodeId, Vec<u8>, VnodeId, Vec<u8>),
    Store(VnodeId, StoreRange, u8),
    Chmod(VnodeId, u16),
}

fn pick<'a, T>(rng: &mut StdRng, all: &'a [T]) -> &'a T {
    &all[rng.random_range(0..all.len())]
}

/// A name of few, so that they meet; sometimes a long one.
fn name(rng: &mut StdRng) -> Vec<u8> {
    let n = rng.random_range(0..12);
    let length = if rng.random_ratio(1, 8) { 100 } else { 3 };
    format!("{n:0length$}").into_bytes()
}

pub(super) fn choose(rng: &mut StdRng, tree: &Tree) -> Operation {
    let of = |wanted: Kind| {
        tree.iter().filter(move |(_, n)| kind(n) == wanted).map(|(id, _)| *id).collect::<Vec<_>>()
    };
    let (directories, files) = (of(Kind::Directory), of(Kind::File));
    let directory = *pick(rng, &directories);
    let any: Vec<VnodeId> = tree.keys().copied().collect();
    match rng.random_range(0..20) {
        0..4 => Operation::Create(directory, name(rng)),
        4..6 => Operation::MakeDir(directory, name(rng)),
        6 => Operation::Symlink(directory, name(rng), vec![b'x'; rng.random_range(1..100)]),
        7 => Operation::Link(directory, name(rng), *pick(rng, &any)),
        8..10 => Operation::RemoveFile(directory, name(rng)),
        10 => Operation::RemoveDir(directory, name(rng)),
        11..14 => Operation::Rename(directory, name(rng), *pick(rng, &directories), name(rng)),
        14 => Operation::Chmod(*pick(rng, &any), rng.random_range(0..0o1000)),
        _ if files.is_empty() => Operation::Create(directory, name(rng)),
        _ => {
            let file = *pick(rng, &files);
            let What::File(data) = &tree[&file].what else { unreachable!("chosen among files") };
            let now = data.len() as u64;
            let most = if rng.random_ratio(1, 3) { 900 } else { 30_000 };
            let length = if rng.random_ratio(1, 6) { 0 } else { rng.random_range(0..most) };
            let position = match rng.random_range(0..4) {
                0 => 0,
                1 => now,
                2 => rng.random_range(0..=now),
                _ => rng.random_range(0..=now + 20_000),
            };
            let file_length = match rng.random_range(0..4) {
                0 => rng.random_range(0..=now),
                1 => 0,
                _ => u64::MAX,
            };
            Operation::Store(file, StoreRange { position, length, file_length }, rng.random())
        }
    }
}

pub(super) fn bytes_of(range: StoreRange, seed: u8) -> Vec<u8> {
    (0..range.length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) | 1).collect()
}

/// Runs the operation on the volume. Returns the new vnode, or the error's name.
pub(super) fn run(volume: &Arc<Volume>, operation: &Operation, now: u32) -> Result<Option<VnodeId>, String> {
    let (set, stamp) = (SetStatus::default(), stamp(now));
    let result = match operation {
        Operation::Create(d, n) => volume.create_file(*d, n, &set, stamp).map(|made| Some(made.vnode)),
        Operation::MakeDir(d, n) => volume.make_dir(*d, n, &set, stamp).map(|made| Some(made.vnode)),
        Operation::Symlink(d, n, target) => {
            volume.symlink(*d, n, target, &set, stamp).map(|made| Some(made.vnode))
        }
        Operation::Link(d, n, file) => volume.link(*d, n, *file, stamp).map(|made| Some(made.vnode)),
        Operation::RemoveFile(d, n) => volume.remove_file(*d, n, stamp).map(|gone| gone.left),
        Operation::RemoveDir(d, n) => volume.remove_dir(*d, n, stamp).map(|gone| gone.left),
        Operation::Rename(d, n, to, m) => volume.rename(*d, n, *to, m, stamp).map(|moved| Some(moved.moved)),
        Operation::Chmod(id, mode) => {
            volume.set_status(*id, &SetStatus { mode: Some(*mode), ..set }, stamp).map(Some)
        }
        Operation::Store(id, range, seed) => volume.begin_store(*id, *range).and_then(|mut store| {
            for part in bytes_of(*range, *seed).chunks(5000) {
                store.write(part)?;
            }
            store.commit(&set, stamp, false).map(Some)
        }),
    };
    result.map(|status: Option<VnodeStatus>| status.map(|status| status.id)).map_err(|error| name_of(&error))
}

/// Changes the tree as the operation should, when the volume has answered with `made`.
pub(super) fn expect(tree: &mut Tree, operation: &Operation, made: Option<VnodeId>) -> Result<(), String> {
    let fail = |what: &str| Err(what.to_owned());
    match operation {
        Operation::Create(d, n) | Operation::MakeDir(d, n) | Operation::Symlink(d, n, _) => {
            if names(tree, *d).contains_key(n) {
                return fail("Exists");
            }
            let id = made.unwrap_or(VnodeId::ROOT);
            assert!(made.is_none() || !tree.contains_key(&id), "{id:?} is in use");
            let (what, links) = match operation {
                Operation::MakeDir(..) => (What::Directory(BTreeMap::new()), 2),
                Operation::Symlink(_, _, target) => (What::Symlink(target.clone()), 1),
                _ => (What::File(Vec::new()), 1),
            };
            if made.is_some() {
                names(tree, *d).insert(n.clone(), id);
                tree.get_mut(d).expect("there").links += u32::from(links == 2);
                tree.insert(id, Node { parent: *d, links, version: 0, what });
            }
        }
        Operation::Link(d, n, file) => {
            let node = &tree[file];
            match kind(node) {
                Kind::Directory => return fail("IsDirectory"),
                Kind::Symlink => return fail("WrongKind"),
                Kind::File if node.parent != *d => return fail("CrossDirectory"),
                Kind::File => {}
            }
            if names(tree, *d).contains_key(n) {
                return fail("Exists");
            }
            names(tree, *d).insert(n.clone(), *file);
            tree.get_mut(file).expect("there").links += 1;
        }
        Operation::RemoveFile(d, n) => {
            let Some(&id) = names(tree, *d).get(n) else { return fail("NoEntry") };
            if kind(&tree[&id]) == Kind::Directory {
                return fail("IsDirectory");
            }
            names(tree, *d).remove(n);
            unlink(tree, id);
        }
        Operation::RemoveDir(d, n) => {
            let Some(&id) = names(tree, *d).get(n) else { return fail("NoEntry") };
            if kind(&tree[&id]) != Kind::Directory {
                return fail("NotDirectory");
            }
            if !names(tree, id).is_empty() {
                return fail("NotEmpty");
            }
            names(tree, *d).remove(n);
            tree.get_mut(d).expect("there").links -= 1;
            tree.remove(&id);
        }
        Operation::Rename(d, n, to, m) => return rename(tree, *d, n, *to, m),
        Operation::Chmod(..) => {}
        Operation::Store(id, range, seed) => {
            let What::File(data) = &mut tree.get_mut(id).expect("there").what else { panic!("no file") };
            data.truncate(usize::try_from(range.file_length).unwrap_or(usize::MAX));
            let end = (range.position + range.length) as usize;
            if data.len() < end {
                data.resize(end, 0);
            }
            data[range.position as usize..end].copy_from_slice(&bytes_of(*range, *seed));
        }
    }
    Ok(())
}

fn unlink(tree: &mut Tree, id: VnodeId) {
    let node = tree.get_mut(&id).expect("there");
    node.links -= 1;
    if node.links == 0 {
        tree.remove(&id);
    }
}

fn rename(tree: &mut Tree, d: VnodeId, n: &[u8], to: VnodeId, m: &[u8]) -> Result<(), String> {
    let fail = |what: &str| Err(what.to_owned());
    let Some(&id) = names(tree, d).get(n) else { return fail("NoEntry") };
    let target = names(tree, to).get(m).copied();
    if target == Some(id) {
        return fail("SameFile");
    }
    let is_directory = kind(&tree[&id]) == Kind::Directory;
    if d != to && is_directory {
        let mut at = to;
        while at != VnodeId::ROOT {
            if at == id {
                return fail("Loop");
            }
            at = tree[&at].parent;
        }
    }
    if d != to && !is_directory && tree[&id].links > 1 {
        return fail("CrossDirectory");
    }
    if let Some(target) = target {
        match (is_directory, kind(&tree[&target]) == Kind::Directory) {
            (true, false) => return fail("NotDirectory"),
            (false, true) => return fail("IsDirectory"),
            (true, true) => {
                if !names(tree, target).is_empty() {
                    return fail("NotEmpty");
                }
                tree.remove(&target);
                tree.get_mut(&to).expect("there").links -= 1;
            }
            (false, false) => unlink(tree, target),
        }
    }
    names(tree, d).remove(n);
    names(tree, to).insert(m.to_vec(), id);
    tree.get_mut(&id).expect("there").parent = to;
    if d != to && is_directory {
        tree.get_mut(&d).expect("there").links -= 1;
        tree.get_mut(&to).expect("there").links += 1;
    }
    Ok(())
}

/// The vnode that has a name, if the operation is one that makes something.
pub(super) fn made_by(operation: &Operation, found: &Tree) -> Option<VnodeId> {
    let (Operation::Create(d, n) | Operation::MakeDir(d, n) | Operation::Symlink(d, n, _)) = operation else {
        return None;
    };
    match &found.get(d)?.what {
        What::Directory(names) => names.get(n).copied(),
        _ => None,
    }
}

/// A volume as it is. The versions are in it.
pub(super) fn read_tree(volume: &Arc<Volume>) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![VnodeId::ROOT];
    while let Some(id) = left.pop() {
        let status = volume.status(id).unwrap();
        let what = match status.kind {
            Kind::Directory => {
                let mut entries: BTreeMap<Vec<u8>, VnodeId> =
                    volume.entries(id).unwrap().into_iter().collect();
                assert_eq!(entries.remove(&b"."[..]), Some(id));
                assert_eq!(entries.remove(&b".."[..]), Some(status.parent));
                left.extend(entries.values().filter(|id| !tree.contains_key(id)));
                What::Directory(entries)
            }
            kind => {
                let data = read_all(volume, id);
                assert_eq!(data.len() as u64, status.length);
                if kind == Kind::File { What::File(data) } else { What::Symlink(data) }
            }
        };
        let (links, version) = (status.link_count, status.data_version.0);
        tree.insert(id, Node { parent: status.parent, links, version, what });
    }
    tree
}

pub(super) fn read_all(volume: &Arc<Volume>, id: VnodeId) -> Vec<u8> {
    let reader = volume.open(id, 0, u64::MAX).unwrap();
    let mut data = vec![0; reader.status().length as usize];
    assert_eq!(reader.read_at(0, &mut data).unwrap(), data.len());
    data
}

/// True if two are the same but for the versions.
pub(super) fn is_same(a: &Tree, b: &Tree) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|((id, a), (other, b))| {
            (id, a.parent, a.links, &a.what) == (other, b.parent, b.links, &b.what)
        })
}

/// Compares all but the versions, and says what differs.
pub(super) fn assert_same(found: &Tree, expected: &Tree, when: &str) {
    let keys = |tree: &Tree| tree.keys().copied().collect::<Vec<_>>();
    assert_eq!(keys(found), keys(expected), "{when}: other vnodes");
    for (id, node) in found {
        let expected = &expected[id];
        assert_eq!((node.parent, node.links), (expected.parent, expected.links), "{when}: {id:?}");
        if node.what != expected.what {
            let length = |what: &What| match what {
                What::File(data) | What::Symlink(data) => data.len(),
                What::Directory(names) => names.len(),
            };
            panic!(
                "{when}: {id:?} has other data, {} and not {}",
                length(&node.what),
                length(&expected.what)
            );
        }
    }
}

/// Header of a volume of a partition.
pub(super) fn header(partition: &Partition, id: VolumeId) -> VolumeHeader {
    partition.volume(id).unwrap().header()
}
