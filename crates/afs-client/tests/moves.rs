//! Volumes that move between two servers while clients work in them: a move costs a pause, and no error, no byte and no
//! lock. The volume's server says VBUSY, VOFFLINE and at last VNOVOL, each for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::data::{READ, WRITE, make, open, random_bytes, read_all};
use crate::support::moving::Mover;
use crate::support::{ALICE, Cell, NOBODY, ROOT_CELL, cell_root, content, names};
use afs_client::{Client, Error, Fid, LockKind};
use afs_sim::Sim;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::Runtime;

/// Moves in one test: there and back.
const MOVES: usize = 4;

/// Files that were written and closed, with what was written.
type Written = Vec<(Fid, Vec<u8>)>;

/// What clients do while volumes move.
#[derive(Clone)]
struct Work {
    sim: Sim,
    has_ended: Arc<AtomicBool>,
    written: Arc<Mutex<Written>>,
    running: Arc<Mutex<usize>>,
}

impl Work {
    fn new(sim: &Sim) -> Self {
        Self { sim: sim.clone(), has_ended: Arc::default(), written: Arc::default(), running: Arc::default() }
    }

    async fn sleep(&self, time: Duration) {
        self.sim.sleep_until(self.sim.now() + time).await;
    }

    /// Does something over and over, until the end.
    fn spawn<F, W>(&self, mut step: F)
    where
        F: FnMut(usize) -> W + Send + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let this = self.clone();
        *this.running.lock().unwrap() += 1;
        self.sim.spawn(Box::pin(async move {
            for round in 0.. {
                if this.has_ended.load(Ordering::Acquire) {
                    break;
                }
                step(round).await;
                this.sleep(Duration::from_millis(40)).await;
            }
            *this.running.lock().unwrap() -= 1;
        }));
    }

    async fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        for _ in 0..10_000 {
            if *self.running.lock().unwrap() == 0 {
                return;
            }
            self.sleep(Duration::from_millis(100)).await;
        }
        panic!("somebody still waits");
    }

    /// Makes files, one after the other.
    fn write_files(&self, client: Client, seed: u64) {
        let (work, random) = (self.clone(), Arc::new(Mutex::new(StdRng::seed_from_u64(seed))));
        self.spawn(move |round| {
            let (work, client, random) = (work.clone(), client.clone(), random.clone());
            async move {
                let bytes = {
                    let mut random = random.lock().unwrap();
                    let length = random.random_range(1..300_000);
                    random_bytes(&mut random, length)
                };
                let file = make(&client, &format!("new {seed} {round}")).await;
                file.write(0, bytes.clone().into()).await.unwrap();
                file.flush().await.unwrap();
                work.written.lock().unwrap().push((file.fid(), bytes));
            }
        });
    }

    /// Reads what was written, anything of it, from the server.
    fn read_files(&self, client: Client, seed: u64) {
        let (work, random) = (self.clone(), Arc::new(Mutex::new(StdRng::seed_from_u64(seed))));
        self.spawn(move |_| {
            let (work, client, random) = (work.clone(), client.clone(), random.clone());
            async move {
                let chosen = {
                    let written = work.written.lock().unwrap();
                    let count = written.len();
                    (count > 0).then(|| written[random.lock().unwrap().random_range(0..count)].clone())
                };
                let Some((fid, bytes)) = chosen else { return };
                client.flush(NOBODY, fid).await;
                let file = client.open(NOBODY, fid, READ).await.unwrap();
                assert!(read_all(&file).await == bytes, "what was read of {fid}");
            }
        });
    }

    /// Changes an open file here and there. What was written may wait in the cache for rounds.
    fn change_open_file(
        &self,
        client: Client,
        file: Arc<afs_client::OpenFile>,
        shadow: Arc<Mutex<Vec<u8>>>,
        seed: u64,
    ) {
        let random = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        self.spawn(move |round| {
            let (client, file, shadow) = (client.clone(), file.clone(), shadow.clone());
            let (at, bytes) = {
                let mut random = random.lock().unwrap();
                let at = random.random_range(0..1_000_000);
                (at, random_bytes(&mut random, 5000))
            };
            async move {
                file.write(at as u64, Bytes::from(bytes.clone())).await.unwrap();
                shadow.lock().unwrap()[at..at + 5000].copy_from_slice(&bytes);
                if round % 7 == 6 {
                    file.fsync().await.unwrap();
                }
                let expected = shadow.lock().unwrap()[at..at + 5000].to_vec();
                assert!(file.read(at as u64, 5000).await.unwrap() == expected, "what was just written");
                drop(client);
            }
        });
    }
}

#[test]
fn a_volume_that_moves_under_readers_and_writers_costs_a_pause_and_nothing_else() {
    for seed in 0..2 {
        println!("seed {seed}");
        let world = Cell::with_sites(2);
        world.make_volume(0, "root.cell", ROOT_CELL);
        let (one, two, three) = (world.client(1), world.client(2), world.client(3));
        let (mover, sim) = (Mover::new(&world), world.sim.clone());
        world.run(async move {
            let root = cell_root(&one).await;
            let work = Work::new(&sim);
            let locked = one.create(ALICE, root, b"locked", 0o644).await.unwrap().fid;
            two.lock(ALICE, locked, 1, LockKind::Write, false).await.unwrap();
            let big = make(&one, "big").await;
            big.write(0, vec![0; 1_005_000].into()).await.unwrap();
            big.flush().await.unwrap();
            let opened = Arc::new(open(&one, "big", WRITE).await);
            let shadow = Arc::new(Mutex::new(vec![0; 1_005_000]));
            // Written before the first move, and stored after the last one.
            let waiting = make(&one, "waiting").await;
            waiting.write(0, Bytes::from_static(b"dirty")).await.unwrap();
            work.write_files(one.clone(), 10 * seed);
            work.write_files(two.clone(), 10 * seed + 1);
            work.read_files(two.clone(), 10 * seed + 2);
            work.change_open_file(one.clone(), opened.clone(), shadow.clone(), 10 * seed + 3);
            for number in 0..MOVES {
                let (from, to) = (number % 2, (number + 1) % 2);
                mover.move_volume("root.cell", ROOT_CELL, from, to).await;
                // Whoever holds a lock learns of the move with the next call.
                work.sleep(Duration::from_secs(2)).await;
                let refused = three.lock(ALICE, locked, 1, LockKind::Read, false).await;
                assert!(matches!(refused, Err(Error::Locked { .. })), "move {number}: {refused:?}");
                let before = work.written.lock().unwrap().len();
                work.sleep(Duration::from_secs(2)).await;
                assert!(work.written.lock().unwrap().len() > before, "they go on");
            }
            work.end().await;
            waiting.flush().await.unwrap();
            opened.flush().await.unwrap();
            two.unlock(locked, 1).await;
            three.lock(ALICE, locked, 1, LockKind::Write, false).await.unwrap();
            let written = work.written.lock().unwrap().clone();
            println!("{} files in {:?}", written.len(), sim.now());
            assert!(written.len() > 50);
            // Somebody who comes later finds all of it.
            assert_eq!(names(&three, NOBODY, root).await.len(), written.len() + 3);
            for (fid, bytes) in &written {
                assert!(content(&three, NOBODY, *fid).await == *bytes, "{fid}");
            }
            assert!(content(&three, NOBODY, opened.fid()).await == *shadow.lock().unwrap());
            assert_eq!(content(&three, NOBODY, waiting.fid()).await, b"dirty");
        });
    }
}

/// A client that only writes into its cache calls no server, so it did not learn of the move, and another client got its lock.
#[test]
fn a_lock_follows_a_volume_that_moves_though_its_holder_calls_no_server() {
    let world = Cell::with_sites(2);
    world.make_volume(0, "root.cell", ROOT_CELL);
    let (one, two) = (world.client(1), world.client(2));
    let (mover, sim) = (Mover::new(&world), world.sim.clone());
    world.run(async move {
        let root = cell_root(&one).await;
        let locked = one.create(ALICE, root, b"locked", 0o644).await.unwrap().fid;
        one.lock(ALICE, locked, 1, LockKind::Write, false).await.unwrap();
        mover.move_volume("root.cell", ROOT_CELL, 0, 1).await;
        sim.sleep_until(sim.now() + Duration::from_secs(2)).await;
        let refused = two.lock(ALICE, locked, 1, LockKind::Read, false).await;
        assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    });
}

/// OpenAFS's server says that a volume is offline while the last of it is sent; over a slow link that takes minutes. The VLDB tells
/// that somebody moves it.
#[test]
fn a_move_whose_last_part_takes_minutes_is_waited_for() {
    let world = Cell::with_sites(2);
    world.make_volume(0, "root.cell", ROOT_CELL);
    let client = world.client(1);
    let (mut mover, sim) = (Mover::new(&world), world.sim.clone());
    mover.pause = Duration::from_secs(100);
    world.run(async move {
        let file = make(&client, "file").await;
        file.write(0, Bytes::from_static(b"before")).await.unwrap();
        file.flush().await.unwrap();
        let work = Work::new(&sim);
        work.write_files(client.clone(), 1);
        mover.move_volume("root.cell", ROOT_CELL, 0, 1).await;
        work.end().await;
        assert!(content(&client, NOBODY, file.fid()).await == b"before");
        assert!(!work.written.lock().unwrap().is_empty());
    });
}
