//! Write-behind for names with two clients, by random changes: each has a directory of its own, which is an ordinary tree whatever becomes of
//! the network and of the client, and both make the same names in one that they share. Of what was closed there nothing is lost: it is under its
//! name, or was put aside. Each seed tells one story.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use crate::names_behind::{on_disk, pause, tree};
use crate::names_random::{Model, change, check};
use crate::support::data::WRITE;
use crate::support::{Cell, NOBODY, cell_root, names};
use afs_client::{Client, Error, Fid};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use bytes::Bytes;
use futures_util::future::{Either, join, select};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// One of the two, and what must be true of what it has done.
#[derive(Clone)]
struct Party {
    name: &'static str,
    client: Client,
    random: StdRng,
    model: Model,
    has_started: bool,
    is_away: bool,
    /// What it has made in the shared directory: directory, name, file, content.
    made: Vec<(String, String, Fid, String)>,
    /// What was closed there and that it has not removed since.
    closed: BTreeSet<String>,
    files: usize,
}

async fn find(client: &Client, mut fid: Fid, path: &str) -> Result<Fid, Error> {
    for name in path.split('/').filter(|name| !name.is_empty()) {
        fid = client.lookup(NOBODY, fid, name.as_bytes()).await?.fid;
    }
    Ok(fid)
}

impl Party {
    /// A random change in the directory that both have. What does not succeed there may be because of the other.
    async fn share(&mut self, shared: Fid, done: &mut Vec<String>) -> Result<(), Error> {
        let dir = ["", "/d0", "/d1"][self.random.random_range(0..3)].to_owned();
        let name = format!("n{}", self.random.random_range(0..6));
        let dice = self.random.random_range(0..100);
        done.push(format!("{dice} at shared{dir}/{name}"));
        let client = self.client.clone();
        if dice < 15 && !dir.is_empty() {
            client.make_dir(NOBODY, shared, &dir.as_bytes()[1..], 0o755).await?;
            return Ok(());
        }
        let parent = find(&client, shared, &dir).await?;
        if dice < 70 {
            self.files += 1;
            let text = format!("{}{}.", self.name, self.files);
            // By its mode an empty file is known from the other's.
            let mode = if self.name == "one" { 0o640 } else { 0o600 };
            let made = client.create_and_open(NOBODY, (parent, name.as_bytes()), mode, WRITE, true).await?;
            made.1.write(0, Bytes::from(text.clone().into_bytes())).await?;
            made.1.close().await?;
            done.push(format!("made {text}"));
            self.made.push((dir, name, made.0.fid, text.clone()));
            self.closed.insert(text);
            return Ok(());
        }
        let Some(own) = self.made.choose(&mut self.random).cloned() else { return Ok(()) };
        let (old_dir, old_name, fid, text) = &own;
        let old_parent = find(&client, shared, old_dir).await?;
        if client.lookup(NOBODY, old_parent, old_name.as_bytes()).await?.fid != *fid {
            return Ok(());
        }
        if dice < 85 {
            // Within a round trip a rename may replace what the other has just made of the name: so it is one that the other makes nothing of.
            let name = format!("{}{}", self.name, self.random.random_range(0..6));
            client.rename(NOBODY, (old_parent, old_name.as_bytes()), (parent, name.as_bytes()), true).await?;
            done.push(format!("renamed {text} from shared{old_dir}/{old_name}"));
            self.made.retain(|made| *made != own);
            self.made.push((dir, name, *fid, text.clone()));
        } else {
            client.remove(NOBODY, old_parent, old_name.as_bytes()).await?;
            done.push(format!("removed {text}"));
            self.made.retain(|made| *made != own);
            self.closed.remove(text);
        }
        Ok(())
    }

    /// Some random changes. None may wait for ever.
    async fn work(mut self, what: String) -> Self {
        let client = self.client.clone();
        let root = cell_root(&client).await;
        let own = find(&client, root, self.name).await.unwrap();
        // Where it is cut off, the other may have changed it since it has looked.
        let soon = client.runtime().sleep_until(client.now() + Duration::from_secs(1));
        let shared = match select(pin!(find(&client, root, "shared")), soon).await {
            Either::Left((found, _)) => found.ok(),
            Either::Right(_) => None,
        };
        client.read_dir(NOBODY, own).await.unwrap();
        let mut done = Vec::new();
        for _ in 0..self.random.random_range(5..30) {
            let (is_shared, may_wait) = (self.random.random_bool(0.5), !self.is_away);
            // What waits for the server while that is away is given up, before the client loses what it knows: by a store that fails, for one.
            let patience = Duration::from_secs(if is_shared && self.is_away { 1 } else { 3600 });
            let late = client.runtime().sleep_until(client.now() + patience);
            let is_late = if let (true, Some(shared)) = (is_shared, shared) {
                let shared = pin!(self.share(shared, &mut done));
                matches!(select(shared, late).await, Either::Right(_)) && may_wait
            } else {
                let (mut model, mut random) = (self.model.clone(), self.random.clone());
                let changed = change(&client, own, &mut model, &mut random, (may_wait, &mut done));
                let is_late = matches!(select(pin!(changed), late).await, Either::Right(_));
                (self.model, self.random) = (model, random);
                is_late
            };
            assert!(!is_late, "{what}, {}: waits: {done:?}", self.name);
            if self.random.random_bool(0.2) {
                let pause = Duration::from_millis(self.random.random_range(0..30));
                client.runtime().sleep_until(client.now() + pause).await;
            }
        }
        let what = format!("{what}, {}: {done:?}", self.name);
        check(&client, own, &self.model, self.has_started, &what).await;
        self
    }

    /// Waits until the server has all, and looks at all, so that it is known while the server is away.
    async fn learn(self, what: String) {
        let client = self.client;
        for _ in 0..600 {
            if client.waiting().changes == 0 && client.dirty_bytes() == 0 {
                break;
            }
            pause(&client, 1).await;
        }
        let root = cell_root(&client).await;
        let own = find(&client, root, self.name).await.unwrap();
        check(&client, own, &self.model, false, &format!("{what}, {}, before it is cut off", self.name))
            .await;
        // The other may be changing it.
        let shared = find(&client, root, "shared").await.unwrap();
        for path in ["", "/d0", "/d1"] {
            let Ok(dir) = find(&client, shared, path).await else { continue };
            for name in names(&client, NOBODY, dir).await {
                let _ = client.lookup(NOBODY, dir, name.as_bytes()).await;
            }
        }
    }
}

/// What was put aside.
fn aside(client: &Client) -> Vec<String> {
    let text = |conflict| String::from_utf8(client.read_conflict(&conflict, 0, 1000).unwrap()).unwrap();
    client.conflicts().into_iter().map(text).collect()
}

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
    let mut disks = [0, 1].map(|_| SimulatedDisk::new(256 << 20));
    let mut parties = [("one", 0), ("two", 1)].map(|(name, number)| Party {
        name,
        client: world.client_with(on_disk(&world, 1 + number as u8, &disks[number])),
        random: StdRng::seed_from_u64(seed * 2 + number as u64),
        model: Model::default(),
        has_started: false,
        is_away: false,
        made: Vec::new(),
        closed: BTreeSet::new(),
        files: 0,
    });
    world.run_with(&parties[0].client, |client| async move {
        let root = cell_root(&client).await;
        for name in ["one", "two", "shared"] {
            client.make_dir(NOBODY, root, name.as_bytes(), 0o755).await.unwrap();
        }
        pause(&client, 5).await;
    });
    for round in 0..rounds {
        let what = format!("seed {seed}, round {round}");
        let mut away = killed.clone();
        for party in &mut parties {
            party.is_away = random.random_bool(0.3);
            if party.is_away {
                world.run(party.clone().learn(what.clone()));
                away.push(party.client.address());
            }
        }
        cut_off(away);
        let [one, two] = parties;
        parties = world.run(async move { join(one.work(what.clone()), two.work(what)).await }).into();
        for (party, disk) in parties.iter_mut().zip(&mut disks) {
            party.random = StdRng::seed_from_u64(random.random());
            if random.random_bool(0.25) {
                // Killed: what the process had is gone, and what it has written is there.
                *disk = disk.after_kill();
                killed.push(party.client.address());
                cut_off(killed.clone());
                party.client = world.client_with(on_disk(&world, 3 + killed.len() as u8, disk));
                party.has_started = true;
                // It has other numbers now.
                party.made.clear();
            }
        }
        cut_off(killed.clone());
    }
    let three = world.client(60);
    world.run(async move {
        pause(&three, 400).await;
        let root = cell_root(&three).await;
        let shared = tree(&three, find(&three, root, "shared").await.unwrap()).await;
        let aside: Vec<_> = parties.iter().flat_map(|party| aside(&party.client)).collect();
        for Party { name, client, model, closed, .. } in parties {
            let what = format!("seed {seed}, {name}");
            assert_eq!((client.waiting().changes, client.dirty_bytes()), (0, 0), "{what}");
            for (looker, who) in [(&client, "itself"), (&three, "another client")] {
                let own = find(looker, cell_root(looker).await, name).await.unwrap();
                check(looker, own, &model, false, &format!("{what}, at the end, by {who}")).await;
            }
            for text in closed {
                let is_there = shared.iter().any(|file| file.ends_with(&format!("={text}")));
                assert!(is_there || aside.contains(&text), "{what}: {text} is lost: {shared:?}, {aside:?}");
            }
            assert_eq!(tree(&client, find(&client, root, "shared").await.unwrap()).await, shared, "{what}");
        }
        let mut texts: Vec<_> =
            shared.iter().filter_map(|file| file.split_once('=')).map(|(_, text)| text).collect();
        texts.sort_unstable();
        let count = texts.len();
        texts.dedup();
        assert_eq!(texts.len(), count, "seed {seed}: something is there twice: {shared:?}");
    });
}

#[test]
fn of_what_two_clients_make_at_once_nothing_is_lost_or_made_twice() {
    let seeds = std::env::var("AFAR_NAMES_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(4);
    let first = std::env::var("AFAR_NAMES_FIRST").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        random_changes(seed, 10);
    }
}
