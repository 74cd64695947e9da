//! Write-behind for names, by random changes: what one client's programs see is an ordinary tree, whatever becomes of the network and of the
//! client, and in the end it is at the server. Each seed tells one story.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use crate::names_behind::{on_disk, pause, tree, write_new};
use crate::support::data::WRITE;
use crate::support::{Cell, NOBODY, cell_root};
use afs_client::{Client, Fid, SetStatus};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use afs_wire::Errno;
use bytes::Bytes;
use futures_util::future::{Either, select};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// What programs expect to see: an ordinary tree.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    /// The nodes by path; several names may have one file.
    names: BTreeMap<String, usize>,
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Directory,
    File { text: String, mode: u32 },
    Link(String),
}

impl Model {
    fn put(&mut self, path: &str, node: Node) {
        self.nodes.push(node);
        self.names.insert(path.to_owned(), self.nodes.len() - 1);
    }

    fn node(&self, path: &str) -> &Node {
        &self.nodes[self.names[path]]
    }

    fn links(&self, path: &str) -> usize {
        self.names.values().filter(|node| **node == self.names[path]).count()
    }

    fn is_empty(&self, dir: &str) -> bool {
        !self.names.keys().any(|path| path.starts_with(&format!("{dir}/")))
    }

    fn rename(&mut self, from: &str, to: &str) {
        let below = format!("{from}/");
        let moved: Vec<_> =
            self.names.keys().filter(|path| *path == from || path.starts_with(&below)).cloned().collect();
        for path in moved {
            let node = self.names.remove(&path).unwrap();
            self.names.insert(format!("{to}{}", &path[from.len()..]), node);
        }
    }

    fn paths(&self, is_meant: impl Fn(&Node) -> bool) -> Vec<String> {
        self.names.keys().filter(|path| is_meant(self.node(path))).cloned().collect()
    }

    pub(crate) fn expected(&self) -> Vec<String> {
        let mut all: Vec<_> = self.names.keys().map(|path| self.line(path)).collect();
        all.sort();
        all
    }

    /// What [`tree`] says of a path.
    fn line(&self, path: &str) -> String {
        match self.node(path) {
            Node::Directory => format!("{path}/"),
            Node::File { text, .. } => format!("{path}={text}"),
            Node::Link(target) => format!("{path}->{target}"),
        }
    }

    /// The nodes that are new, or have other data, since it was as `before`.
    pub(crate) fn written_since(&self, before: &Self) -> BTreeSet<usize> {
        let text = |model: &Self, n: usize| match model.nodes.get(n) {
            Some(Node::File { text, .. }) => Some(text.clone()),
            _ => None,
        };
        (0..self.nodes.len()).filter(|&n| text(self, n) != text(before, n)).collect()
    }

    /// True if a line of a tree may be of this one: of some nodes the data may be anything.
    pub(crate) fn has(&self, line: &str, of_any_data: &BTreeSet<usize>) -> bool {
        let path = line.split_once('=').map_or(line, |(path, _)| path);
        let is_file = path.len() < line.len();
        let is_free = is_file && self.names.get(path).is_some_and(|node| of_any_data.contains(node));
        is_free || self.names.keys().any(|path| self.line(path) == line)
    }

    /// The number of names.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// True if there is something of a name.
    pub(crate) fn has_path(&self, path: &str) -> bool {
        self.names.contains_key(path)
    }

    /// The data of files, once for each name, but for some nodes.
    pub(crate) fn texts(&self, but: &BTreeSet<usize>) -> BTreeMap<String, usize> {
        let mut texts = BTreeMap::new();
        for node in self.names.values().filter(|node| !but.contains(node)) {
            if let Node::File { text, .. } = &self.nodes[*node] {
                *texts.entry(text.clone()).or_default() += 1;
            }
        }
        texts
    }
}

async fn find(client: &Client, root: Fid, path: &str) -> Fid {
    let mut fid = root;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        fid = client.lookup(NOBODY, fid, name.as_bytes()).await.unwrap_or_else(|e| panic!("{path}: {e}")).fid;
    }
    fid
}

/// A random change, by the client and in the model. `may_wait`: the server is there, so that one that is made there is possible too.
pub(crate) async fn change(
    client: &Client,
    root: Fid,
    model: &mut Model,
    random: &mut StdRng,
    (may_wait, done): (bool, &mut Vec<String>),
) -> String {
    let mut dirs = model.paths(|node| *node == Node::Directory);
    dirs.push(String::new());
    let some = |all: &[String], random: &mut StdRng| all.choose(random).cloned();
    let files = model.paths(|node| matches!(node, Node::File { .. }));
    let others = model.paths(|node| *node != Node::Directory);
    let dir = some(&dirs, random).unwrap();
    let name = format!("n{}", random.random_range(0..12));
    let path = format!("{dir}/{name}");
    let is_free = !model.names.contains_key(&path);
    let text = format!("text{}", random.random_range(0..1_000_000));
    let parent = find(client, root, &dir).await;
    let split = |path: &str| {
        let (dir, name) = path.rsplit_once('/').unwrap();
        (dir.to_owned(), name.as_bytes().to_vec())
    };
    let dice = random.random_range(0..100);
    done.push(format!("{dice} at {path}"));
    match dice {
        0..10 if is_free && dir.matches('/').count() < 3 => {
            client.make_dir(NOBODY, parent, name.as_bytes(), 0o755).await.unwrap();
            model.put(&path, Node::Directory);
            format!("mkdir {path}")
        }
        10..35 if is_free => {
            write_new(client, parent, &name, &text).await;
            model.put(&path, Node::File { text, mode: 0o640 });
            format!("write {path}")
        }
        35..40 if is_free => {
            client.symlink(NOBODY, parent, name.as_bytes(), text.as_bytes()).await.unwrap();
            model.put(&path, Node::Link(text));
            format!("symlink {path}")
        }
        40..52 => {
            let Some(path) = some(&files, random) else { return String::new() };
            let file = client.open(NOBODY, find(client, root, &path).await, WRITE).await.unwrap();
            file.truncate(0).await.unwrap();
            file.write(0, Bytes::from(text.clone().into_bytes())).await.unwrap();
            file.close().await.unwrap();
            let Node::File { text: old, .. } = &mut model.nodes[model.names[&path]] else { unreachable!() };
            *old = text;
            format!("overwrite {path}")
        }
        52..67 => {
            let Some(path) = some(&others, random) else { return String::new() };
            let (dir, name) = split(&path);
            client.remove(NOBODY, find(client, root, &dir).await, &name).await.unwrap();
            model.names.remove(&path);
            format!("remove {path}")
        }
        67..72 => {
            let Some(path) = some(&dirs, random).filter(|path| !path.is_empty()) else {
                return String::new();
            };
            if !model.is_empty(&path) {
                return String::new();
            }
            let (dir, name) = split(&path);
            client.remove_dir(NOBODY, find(client, root, &dir).await, &name).await.unwrap();
            model.names.remove(&path);
            format!("rmdir {path}")
        }
        72..84 => {
            let Some(from) = some(&others, random) else { return String::new() };
            if from == path
                || !is_free && (*model.node(&path) == Node::Directory || model.links(&path) > 1 && !may_wait)
            {
                return String::new();
            }
            let (old_dir, old_name) = split(&from);
            // Names of a file are in one directory, and the server has the say.
            let is_refused = model.links(&from) > 1 && old_dir != dir;
            if is_refused && !may_wait {
                return String::new();
            }
            let old = find(client, root, &old_dir).await;
            let is_same = !is_free && model.names[&from] == model.names[&path];
            let renamed = client.rename(NOBODY, (old, &old_name), (parent, name.as_bytes()), false).await;
            match renamed {
                Err(error) if is_refused => assert_eq!(error.errno(), Errno::EXDEV, "{from} to {path}"),
                Ok(()) if is_same => {}
                renamed => {
                    renamed.unwrap();
                    model.rename(&from, &path);
                }
            }
            format!("rename {from} {path}")
        }
        84..88 if may_wait && is_free => {
            let Some(from) = some(&dirs, random).filter(|from| !from.is_empty()) else {
                return String::new();
            };
            if format!("{path}/").starts_with(&format!("{from}/")) || path.matches('/').count() > 3 {
                return String::new();
            }
            let (old_dir, old_name) = split(&from);
            let old = find(client, root, &old_dir).await;
            client.rename(NOBODY, (old, &old_name), (parent, name.as_bytes()), false).await.unwrap();
            model.rename(&from, &path);
            format!("rename directory {from} {path}")
        }
        88..93 if is_free => {
            let Some(of) = some(&files, random) else { return String::new() };
            let (place, _) = split(&of);
            if place != dir {
                return String::new();
            }
            client.link(NOBODY, find(client, root, &of).await, parent, name.as_bytes()).await.unwrap();
            model.names.insert(path.clone(), model.names[&of]);
            format!("link {of} {path}")
        }
        93..100 => {
            let Some(path) = some(&files, random) else { return String::new() };
            let mode = 0o600 + random.random_range(0..0o100);
            let set = SetStatus { mode: Some(mode), ..SetStatus::default() };
            client.set_status(NOBODY, find(client, root, &path).await, set).await.unwrap();
            let Node::File { mode: old, .. } = &mut model.nodes[model.names[&path]] else { unreachable!() };
            *old = mode;
            format!("chmod {path}")
        }
        _ => String::new(),
    }
}

pub(crate) async fn check(client: &Client, root: Fid, model: &Model, has_started: bool, what: &str) {
    assert_eq!(tree(client, root).await, model.expected(), "{what}");
    for path in model.names.keys() {
        let fid = find(client, root, path).await;
        let status = client.status(NOBODY, fid).await.unwrap();
        if let Node::File { mode, text } = model.node(path) {
            // After a start nobody knows which of the changes that wait are done already.
            let is_unsure = has_started && client.waiting().changes > 0;
            let links = if is_unsure { status.links as usize } else { model.links(path) };
            assert_eq!(
                (status.mode, status.length, status.links as usize),
                (*mode, text.len() as u64, links),
                "{what}: {path}"
            );
        }
    }
}

/// Random changes of one client, while it is cut off from the network at times, and killed.
fn random_changes(seed: u64, rounds: usize) {
    let mut random = StdRng::seed_from_u64(seed);
    let world = Cell::new();
    // Packets of these get nowhere.
    let cut_off = |away: Vec<SocketAddr>| {
        world.sim.set_network(move |_, from, to, _| match [from, to].iter().any(|end| away.contains(end)) {
            true => Fate::Lost,
            false => Fate::Arrives(Duration::from_millis(5)),
        });
    };
    let mut killed = Vec::new();
    cut_off(killed.clone());
    let mut disk = SimulatedDisk::new(256 << 20);
    let mut one = world.client_with(on_disk(&world, 1, &disk));
    let two = world.client(50);
    let mut model = Model::default();
    for round in 0..rounds {
        let is_away = random.random_bool(0.3);
        if is_away {
            // What is known is enough for what follows.
            let (client, checked) = (one.clone(), model.clone());
            let what = format!("seed {seed}, round {round}, before the network is cut");
            world.run(async move {
                while client.waiting().changes > 0 {
                    pause(&client, 1).await;
                }
                check(&client, cell_root(&client).await, &checked, false, &what).await
            });
            cut_off(killed.iter().copied().chain([one.address()]).collect());
        }
        let (client, mut own, mut own_model) = (one.clone(), random.clone(), model.clone());
        let has_started = !killed.is_empty();
        model = world.run(async move {
            let root = cell_root(&client).await;
            client.read_dir(NOBODY, root).await.unwrap();
            let mut done = Vec::new();
            for _ in 0..own.random_range(5..40) {
                let about = (!is_away, &mut done);
                let changed = change(&client, root, &mut own_model, &mut own, about);
                let late = client.runtime().sleep_until(client.now() + Duration::from_secs(300));
                let changed = match select(pin!(changed), late).await {
                    Either::Left((changed, _)) => Some(changed),
                    Either::Right(_) => None,
                };
                let Some(changed) = changed else {
                    panic!("seed {seed}, round {round}, away {is_away}: waits: {done:?}")
                };
                done.push(changed);
                if own.random_bool(0.2) {
                    client
                        .runtime()
                        .sleep_until(client.now() + Duration::from_millis(own.random_range(0..30)))
                        .await;
                }
            }
            check(&client, root, &own_model, has_started, &format!("seed {seed}, round {round}: {done:?}"))
                .await;
            own_model
        });
        random = StdRng::seed_from_u64(seed * 1000 + round as u64);
        if random.random_bool(0.3) {
            // Killed: what the process had is gone, and what it has written is there.
            disk = disk.after_kill();
            killed.push(one.address());
            cut_off(killed.clone());
            one = world.client_with(on_disk(&world, 2 + round as u8, &disk));
        }
        cut_off(killed.clone());
    }
    world.run(async move {
        pause(&one, 200).await;
        assert_eq!((one.waiting().changes, one.dirty_bytes()), (0, 0), "seed {seed}");
        assert!(one.conflicts().is_empty(), "seed {seed}: {:?}", one.conflicts());
        check(&one, cell_root(&one).await, &model, false, &format!("seed {seed}, at the end")).await;
        check(&two, cell_root(&two).await, &model, false, &format!("seed {seed}, by another client")).await;
    });
}

#[test]
fn random_changes_are_seen_as_in_an_ordinary_tree_and_come_to_the_server() {
    let seeds = std::env::var("AFAR_NAMES_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(4);
    let first = std::env::var("AFAR_NAMES_FIRST").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        random_changes(seed, 12);
    }
}
