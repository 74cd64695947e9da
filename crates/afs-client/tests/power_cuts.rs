//! Deaths at random moments, with write-behind: losses of power, ends of the client and of the server. What was promised to programs is at the
//! server in the end, or what they were told of is there as far as it was promised: see docs/semantics.md. Each seed tells one story.
//! `AFAR_CUTS` sets how many there are of each kind.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::names_behind::{on_disk, pause, tree};
use crate::names_random::{Model, change, check};
use crate::support::{Cell, NOBODY, ROOT_CELL, cell_root};
use afs_client::{Client, Config, WriteBehind};
use afs_sim::Fate;
use afs_store::disk::SimulatedDisk;
use futures_util::future::select;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::time::Instant;

/// What a loss of power may take that was done longer ago than this: nothing.
const KEPT_AFTER: Duration = Duration::from_secs(2);

/// Something that a program has done, and what it may count on then.
#[derive(Debug, Clone)]
struct Done {
    what: String,
    model: Model,
    /// The number of operations of the disk before and after it.
    operations: (u64, u64),
    at: Instant,
}

impl Done {
    fn has_closed(&self) -> bool {
        self.what.starts_with("write ") || self.what.starts_with("overwrite ")
    }
}

/// The story so far, of a client whose tree is known.
struct Story {
    world: Cell,
    mode: WriteBehind,
    disk: SimulatedDisk,
    client: Client,
    model: Model,
    random: StdRng,
    killed: Vec<SocketAddr>,
}

fn config(world: &Cell, number: u8, disk: &SimulatedDisk, mode: WriteBehind) -> Config {
    Config { write_behind: Some(mode), index_log_bytes: 1 << 20, ..on_disk(world, number, disk) }
}

/// Does some things, with pauses, until it is dropped.
async fn work(
    client: Client,
    disk: SimulatedDisk,
    mut model: Model,
    mut random: StdRng,
    (steps, longest_pause): (usize, u64),
    told: Arc<Mutex<Vec<Done>>>,
) {
    let root = cell_root(&client).await;
    for _ in 0..steps {
        let before = disk.operations();
        let mut tried = Vec::new();
        let what = change(&client, root, &mut model, &mut random, (false, &mut tried)).await;
        if !what.is_empty() {
            let operations = (before, disk.operations());
            told.lock().unwrap().push(Done { what, model: model.clone(), operations, at: client.now() });
        }
        let longest = if random.random_bool(0.1) { longest_pause } else { 30 };
        let pause = Duration::from_millis(random.random_range(0..longest));
        client.runtime().sleep_until(client.now() + pause).await;
    }
}

impl Story {
    fn new(seed: u64, mode: WriteBehind) -> Self {
        let world = Cell::with_disks(1, |_| Some(SimulatedDisk::new(256 << 20)));
        world.make_volume(0, "root.cell", ROOT_CELL);
        let disk = SimulatedDisk::new(256 << 20);
        let client = world.client_with(config(&world, 1, &disk, mode));
        let random = StdRng::seed_from_u64(seed);
        let mut story =
            Self { world, mode, disk, client, model: Model::default(), random, killed: Vec::new() };
        story.set_network(None);
        let told = story.work(10, Duration::from_secs(60));
        story.model = told.last().map_or_else(Model::default, |done| done.model.clone());
        let (client, model) = (story.client.clone(), story.model.clone());
        story.world.run(async move {
            while client.waiting().changes > 0 || client.dirty_bytes() > 0 {
                pause(&client, 1).await;
            }
            // All is synced, and known.
            pause(&client, 3).await;
            let root = cell_root(&client).await;
            check(&client, root, &model, false, "at the beginning").await;
        });
        story
    }

    /// Packets of those who were killed get nowhere, and nothing to or from `away`.
    fn set_network(&self, away: Option<SocketAddr>) {
        let cut: Vec<_> = self.killed.iter().copied().chain(away).collect();
        self.world.sim.set_network(move |_, from, to, _| match cut.contains(&from) || cut.contains(&to) {
            true => Fate::Lost,
            false => Fate::Arrives(Duration::from_millis(5)),
        });
    }

    /// Has the client work for a time at most.
    fn work(&mut self, steps: usize, time: Duration) -> Vec<Done> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let longest = self.random.random_range(30..4000);
        let work = work(
            self.client.clone(),
            self.disk.clone(),
            self.model.clone(),
            StdRng::seed_from_u64(self.random.random()),
            (steps, longest),
            Arc::clone(&told),
        );
        let client = self.client.clone();
        self.world.run_with(&self.client, |_| async move {
            let end = client.runtime().sleep_until(client.now() + time);
            select(pin!(work), end).await;
        });
        told.lock().unwrap().clone()
    }

    /// The client is no more, and another one starts on this disk. Returns what is at the server when all is done.
    fn start_on(&mut self, disk: SimulatedDisk) -> Vec<String> {
        self.killed.push(self.client.address());
        self.set_network(None);
        let number = 2 + self.killed.len() as u8;
        let next = self.world.client_with(config(&self.world, number, &disk, self.mode));
        // It is not closed.
        std::mem::forget(std::mem::replace(&mut self.client, next));
        self.disk = disk;
        self.found()
    }

    fn found(&self) -> Vec<String> {
        let (client, looker) = (self.client.clone(), self.world.client(60));
        self.world.run(async move {
            pause(&client, 300).await;
            assert_eq!((client.waiting().changes, client.dirty_bytes()), (0, 0));
            let found = tree(&looker, cell_root(&looker).await).await;
            assert_eq!(tree(&client, cell_root(&client).await).await, found, "here and there");
            found
        })
    }
}

/// The nodes into which something was written that is not promised in the state `at`, of which all up to `kept` is.
fn unsure(all: &[Done], first: &Model, at: usize, kept: usize) -> BTreeSet<usize> {
    let model = |n: usize| if n == 0 { first } else { &all[n - 1].model };
    (at.max(1)..=all.len()).filter(|n| *n > kept).flat_map(|n| model(n).written_since(model(n - 1))).collect()
}

/// The server is away, and the power is lost in the midst of something. What is there is what was there at some moment after the last one
/// that was promised: the end is lost, and nothing in between.
fn lose_power_away(seed: u64, mode: WriteBehind) {
    let mut story = Story::new(seed, mode);
    story.set_network(Some(story.client.address()));
    let steps = story.random.random_range(1..25);
    story.disk.copy_after(story.random.random_range(0..steps as u64 * 8));
    let told = story.work(steps, Duration::from_secs(600));
    let (copy, operations) = story.disk.copied().unwrap_or((story.disk.clone(), u64::MAX));
    // What had not begun then is not to be looked for.
    let told: Vec<_> = told.into_iter().filter(|done| done.operations.0 <= operations).collect();
    let ended = told.iter().filter(|done| done.operations.1 <= operations).count();
    let last = told[..ended].last().map(|done| done.at);
    let is_kept = |done: &Done| {
        let is_old = last.is_some_and(|last| last >= done.at + KEPT_AFTER);
        is_old || mode == WriteBehind::Always && done.has_closed()
    };
    let kept = told[..ended].iter().rposition(is_kept).map_or(0, |at| at + 1);
    let first = story.model.clone();
    let found = story.start_on(copy.after_power_loss(seed));
    let is_state = |at: &usize| {
        let model = if *at == 0 { &first } else { &told[*at - 1].model };
        let unsure = unsure(&told, &first, *at, kept);
        model.len() == found.len() && found.iter().all(|line| model.has(line, &unsure))
    };
    let done: Vec<_> = told.iter().map(|done| (&done.what, done.operations, done.at)).collect();
    assert!(
        (kept..=told.len()).any(|at| is_state(&at)),
        "seed {seed}, {mode:?}: {found:?} is no state after {kept} of {done:?}; power was lost at {operations}: {:?}",
        told.iter().map(|done| done.model.expected()).collect::<Vec<_>>()
    );
}

/// Power is lost while the client sends. Each name is as it was at some moment after the last one that was promised, and no data are lost.
fn lose_power_in_replay(seed: u64, mode: WriteBehind) {
    let mut story = Story::new(seed, mode);
    let time = Duration::from_millis(story.random.random_range(1..3000));
    let told = story.work(100, time);
    let now = story.client.now();
    let is_kept =
        |done: &Done| now >= done.at + KEPT_AFTER || mode == WriteBehind::Always && done.has_closed();
    let kept = told.iter().rposition(is_kept).map_or(0, |at| at + 1);
    let first = story.model.clone();
    let lost = story.disk.after_power_loss(seed);
    let found = story.start_on(lost);
    let states: Vec<_> = (kept..=told.len())
        .map(|at| (if at == 0 { &first } else { &told[at - 1].model }, unsure(&told, &first, at, kept)))
        .collect();
    let about = || {
        let done: Vec<_> = told.iter().map(|done| (&done.what, done.at)).collect();
        format!("seed {seed}, {mode:?}: after {kept} of {done:?}, power lost at {now:?}: {found:?}")
    };
    for line in &found {
        assert!(states.iter().any(|(model, unsure)| model.has(line, unsure)), "{}: {line}", about());
    }
    let paths: BTreeSet<&str> = found
        .iter()
        .map(|line| line.split(['=', '>']).next().unwrap().trim_end_matches(['/', '-']))
        .collect();
    for path in states[0].0.expected() {
        let path = path.split(['=', '>']).next().unwrap().trim_end_matches(['/', '-']);
        let is_always = states.iter().all(|(model, _)| model.has_path(path));
        assert!(!is_always || paths.contains(path), "{}: {path} is lost", about());
    }
    for (text, _) in states[0].0.texts(&states[0].1) {
        let is_always = states.iter().all(|(model, unsure)| model.texts(unsure).contains_key(&text));
        let is_there = found.iter().any(|line| line.ends_with(&format!("={text}")));
        assert!(!is_always || is_there, "{}: {text} is lost", about());
    }
}

/// The client is killed while it sends, and the server too; answers get lost. All is there once.
fn kill_in_replay(seed: u64) {
    let mut story = Story::new(seed, WriteBehind::Second);
    for round in 0..3 {
        let time = Duration::from_millis(story.random.random_range(1..1000));
        let told = story.work(100, time);
        if let Some(done) = told.last() {
            story.model = done.model.clone();
        }
        let what = format!(
            "seed {seed}, round {round}: {:?}",
            told.iter().map(|done| &done.what).collect::<Vec<_>>()
        );
        for _ in 0..story.random.random_range(0..3) {
            let (client, time) = (story.client.clone(), story.random.random_range(1..40));
            if story.random.random_bool(0.5) {
                story.world.crash(0, None);
                story.world.start(0);
            }
            story.world.run(async move {
                client.runtime().sleep_until(client.now() + Duration::from_millis(time)).await;
            });
        }
        let found = match story.random.random_bool(0.6) {
            true => {
                let disk = story.disk.after_kill();
                story.start_on(disk)
            }
            false => story.found(),
        };
        let conflicts = story.client.conflicts();
        assert!(conflicts.is_empty(), "{what}: {conflicts:?}");
        assert_eq!(found, story.model.expected(), "{what}");
        let (client, model) = (story.client.clone(), story.model.clone());
        story.world.run(async move {
            let root = cell_root(&client).await;
            check(&client, root, &model, false, &what).await;
            client.read_dir(NOBODY, root).await.unwrap();
        });
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|seeds| seeds.parse().ok());
    let first = number("AFAR_CUTS_FIRST").unwrap_or(0);
    first..first + number("AFAR_CUTS").unwrap_or(8)
}

#[test]
fn what_a_loss_of_power_takes_is_the_end_and_nothing_that_was_promised() {
    for seed in seeds() {
        lose_power_away(seed, WriteBehind::Always);
        lose_power_away(seed, WriteBehind::Second);
    }
}

#[test]
fn what_was_promised_is_there_after_a_loss_of_power_while_it_was_sent() {
    for seed in seeds() {
        lose_power_in_replay(seed, WriteBehind::Always);
        lose_power_in_replay(seed, WriteBehind::Second);
    }
}

#[test]
fn all_is_there_once_though_client_and_server_are_killed_while_it_is_sent() {
    for seed in seeds() {
        kill_in_replay(seed);
    }
}

/// Here a store is carried out by the server that is killed then, and by the next one, which the client sends it again to.
#[test]
fn a_store_that_two_starts_of_a_server_carry_out_is_our_own() {
    kill_in_replay(27);
}

#[test]
fn names_alone_outlast_a_loss_of_power_two_seconds_later() {
    let world = Cell::new();
    let disk = SimulatedDisk::new(64 << 20);
    let one = world.client_with(on_disk(&world, 1, &disk));
    let root = crate::names_behind::cut_off_at_root(&world, &one);
    world.run_with(&one, |one| async move {
        one.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap();
        pause(&one, 2).await;
    });
    let after = disk.after_power_loss(0);
    world.cut_off(&one);
    std::mem::forget(one);
    let two = world.client_with(on_disk(&world, 2, &after));
    world.run(async move {
        pause(&two, 60).await;
        assert_eq!(tree(&two, cell_root(&two).await).await, ["/dir/"]);
    });
}
