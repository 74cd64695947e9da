//! Read-only volumes at several servers: a reader goes on at another server when its own is silent, never reads bytes of
//! two releases, and with all servers away what is cached is told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::data::{READ, WRITE, make, random_bytes, read_all};
use crate::support::moving::Mover;
use crate::support::{CELL, Cell, NOBODY, ROOT_CELL, cell_root, names};
use afs_client::{Client, Fid, OpenFile, ServerKind};
use afs_sim::{Fate, Sim};
use afs_volume::disk::{Cut, SimulatedDisk};
use afs_wire::Errno;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::Runtime;
use rx_proto::time::Instant;

/// What is read: many calls.
const BYTES: usize = 16 << 20;

/// What a reader asks for at a time.
const PIECE: usize = 128 << 10;

/// True if a datagram carries much data: packets of data are of type 1, and statuses are small. Probes of the path's MTU are of
/// another type.
fn is_data(payload: &[u8]) -> bool {
    payload.len() >= 1000 && payload[20] == 1
}

/// A cell with `root.cell` at the first of some servers, and its releases at all of them.
struct Place {
    world: Cell,
    mover: Mover,
    writer: Client,
    sites: Vec<usize>,
}

impl Place {
    fn new(count: u8) -> Self {
        Self::of(Cell::with_sites(count), count)
    }

    fn of(world: Cell, count: u8) -> Self {
        world.make_volume(0, "root.cell", ROOT_CELL);
        let (mover, writer) = (Mover::new(&world), world.client(1));
        Self { world, mover, writer, sites: (0..usize::from(count)).collect() }
    }
}

/// The read-only root directory of the cell, by its name in the dynamic root.
async fn read_only_root(client: &Client) -> Fid {
    let found = client.lookup(NOBODY, client.root(), CELL.as_bytes()).await.unwrap();
    client.target(NOBODY, found.fid).await.unwrap()
}

async fn open_read_only(client: &Client, name: &str) -> OpenFile {
    let root = read_only_root(client).await;
    let found = client.lookup(NOBODY, root, name.as_bytes()).await.unwrap();
    client.open(NOBODY, found.fid, READ).await.unwrap()
}

/// How the network is, and what was seen on it.
#[derive(Debug, Clone, Copy)]
struct Network {
    /// How long a datagram takes.
    delay: Duration,
    /// The part of all datagrams that is lost.
    loss: f64,
    /// After how many datagrams with data the server that has sent them is silent, if ever.
    silent_after: Option<u32>,
}

/// Which servers have sent data, and which is silent since when.
#[derive(Debug, Default)]
struct Seen {
    senders: Vec<SocketAddr>,
    datagrams: u32,
    silent: Option<(SocketAddr, Instant)>,
}

impl Network {
    fn set(self, sim: &Sim, seed: u64) -> Arc<Mutex<Seen>> {
        let seen = Arc::<Mutex<Seen>>::default();
        let (told, mut chance) = (seen.clone(), StdRng::seed_from_u64(seed));
        // The world has 5 ms of its own.
        let late = self.delay.saturating_sub(Duration::from_millis(5));
        sim.set_network(move |now, from, to, payload| {
            let mut seen = told.lock().unwrap();
            let is_silent = |at: SocketAddr| seen.silent.is_some_and(|(silent, _)| silent == at);
            if is_silent(from) || is_silent(to) || chance.random_bool(self.loss) {
                return Fate::Lost;
            }
            if from.port() == 7000 && is_data(payload) {
                if !seen.senders.contains(&from) {
                    seen.senders.push(from);
                }
                seen.datagrams += 1;
                if self.silent_after == Some(seen.datagrams) {
                    seen.silent = Some((from, now));
                }
            }
            Fate::Arrives(late)
        });
        seen
    }
}

/// Reads a file to its end. The longest time that one read took, and the bytes.
async fn read_timed(client: &Client, file: &OpenFile) -> (Duration, Vec<u8>) {
    let (mut longest, mut bytes) = (Duration::ZERO, Vec::new());
    loop {
        let begin = client.now();
        let piece = file.read(bytes.len() as u64, PIECE).await.unwrap();
        longest = longest.max(client.now().since(begin));
        if piece.is_empty() {
            return (longest, bytes);
        }
        bytes.extend_from_slice(&piece);
    }
}

/// A file at all servers of a place, in the first release.
fn with_released_file(place: Place, seed: u64) -> (Cell, Vec<u8>) {
    let Place { world, mover, writer, sites } = place;
    let bytes = random_bytes(&mut StdRng::seed_from_u64(seed), BYTES);
    let content = bytes.clone();
    world.run(async move {
        let file = make(&writer, "file").await;
        file.write(0, content.into()).await.unwrap();
        file.flush().await.unwrap();
        mover.release("root.cell", ROOT_CELL, &sites).await;
    });
    (world, bytes)
}

/// A server that is stopped (SIGSTOP), or behind a link that swallows all: nothing says that it is away.
#[test]
fn a_read_goes_on_at_another_server_within_two_seconds_when_its_own_is_silent() {
    for (delay, silent_after) in [(1, 1), (1, 1500), (20, 3), (20, 1200), (100, 1), (100, 100), (100, 900)] {
        let seed = u64::from(silent_after);
        let (world, bytes) = with_released_file(Place::new(3), seed);
        let client = world.client(2);
        let (sim, delay) = (world.sim.clone(), Duration::from_millis(delay));
        let what = format!("{delay:?}, silent after {silent_after}");
        world.run(async move {
            let network = Network { delay, loss: 0.0, silent_after: None };
            network.set(&sim, seed);
            let file = open_read_only(&client, "file").await;
            let seen = Network { silent_after: Some(silent_after), ..network }.set(&sim, seed);
            let (longest, read) = read_timed(&client, &file).await;
            assert!(read == bytes, "{what}: what was read");
            let seen = seen.lock().unwrap();
            println!("{what}: the longest read took {longest:?}, data came from {:?}", seen.senders);
            assert!(seen.silent.is_some() && seen.senders.len() >= 2, "{what}: {seen:?}");
            assert!(longest < Duration::from_secs(2), "{what}: {longest:?}");
        });
    }
}

/// Disks with bad places, under servers that answer as before: they abort in the midst of the data.
#[test]
fn a_read_goes_on_at_another_server_when_the_disk_of_its_own_fails() {
    let disks: Vec<_> = (0..3).map(|_| SimulatedDisk::new(1 << 30)).collect();
    let world = Cell::with_disks(3, |number| Some(disks[usize::from(number)].clone()));
    let (world, bytes) = with_released_file(Place::of(world, 3), 1);
    let client = world.client(2);
    let sim = world.sim.clone();
    world.run(async move {
        let network = Network { delay: Duration::from_millis(5), loss: 0.0, silent_after: None };
        let seen = network.set(&sim, 1);
        let file = open_read_only(&client, "file").await;
        // Of each file with data; the last server is the only one that has all.
        disks[..2].iter().for_each(|disk| disk.set_cut(Some(Cut::UnreadableFrom(600 << 10))));
        let (longest, read) = read_timed(&client, &file).await;
        assert!(read == bytes, "what was read");
        assert!(seen.lock().unwrap().senders.len() >= 2 && longest < Duration::from_secs(1), "{longest:?}");
    });
}

/// Names and statuses are asked for in the same way.
#[test]
fn names_are_looked_up_at_another_server_within_two_seconds() {
    let (world, _) = with_released_file(Place::new(2), 1);
    for number in 0..2 {
        let client = world.client(2 + number);
        let (sim, address) = (world.sim.clone(), world.sites[usize::from(number)].address);
        world.run(async move {
            sim.set_network(|_, _, _, _| Fate::Arrives(Duration::ZERO));
            let root = read_only_root(&client).await;
            names(&client, NOBODY, root).await;
            sim.set_network(move |_, from, to, _| {
                if from == address || to == address { Fate::Lost } else { Fate::Arrives(Duration::ZERO) }
            });
            for _ in 0..3 {
                client.flush_volume(root.cell, root.volume).await;
                let begin = client.now();
                assert_eq!(names(&client, NOBODY, root).await, ["file"]);
                assert!(
                    client.now().since(begin) < Duration::from_secs(2),
                    "{:?}",
                    client.now().since(begin)
                );
            }
        });
    }
}

#[test]
fn a_far_server_whose_link_loses_is_not_left() {
    for (seed, loss) in [(1, 0.0), (2, 0.01), (3, 0.03), (4, 0.05)] {
        let (world, bytes) = with_released_file(Place::new(2), seed);
        let (client, sim) = (world.client(2), world.sim.clone());
        world.run(async move {
            let network = Network { delay: Duration::from_millis(100), loss, silent_after: None };
            let seen = network.set(&sim, seed);
            let file = open_read_only(&client, "file").await;
            // They are measured when the volume is first used.
            sim.sleep_until(sim.now() + Duration::from_secs(5)).await;
            seen.lock().unwrap().senders.clear();
            assert!(read_all(&file).await == bytes, "loss {loss}: what was read");
            let senders = seen.lock().unwrap().senders.clone();
            assert_eq!(senders.len(), 1, "loss {loss}: data came from {senders:?}");
        });
    }
}

#[test]
fn the_nearest_server_is_asked_and_another_when_the_administrator_says_so() {
    let (world, bytes) = with_released_file(Place::new(3), 5);
    let (client, sim) = (world.client(2), world.sim.clone());
    let sites: Vec<_> = world.sites.iter().map(|site| site.address).collect();
    world.run(async move {
        let far = |address: SocketAddr| {
            Duration::from_millis([80, 2, 30][sites.iter().position(|s| *s == address).unwrap()])
        };
        let near = sites[1];
        let seen = Arc::<Mutex<Vec<SocketAddr>>>::default();
        let (told, known) = (seen.clone(), sites.clone());
        let delays: Vec<_> = sites.iter().map(|&site| (site, far(site))).collect();
        sim.set_network(move |_, from, to, payload| {
            let delay = delays.iter().find(|(site, _)| *site == from || *site == to);
            if known.contains(&from) && is_data(payload) && !told.lock().unwrap().contains(&from) {
                told.lock().unwrap().push(from);
            }
            Fate::Arrives(delay.map_or(Duration::ZERO, |(_, delay)| *delay))
        });
        let file = open_read_only(&client, "file").await;
        // They are measured when the volume is first used.
        sim.sleep_until(sim.now() + Duration::from_secs(1)).await;
        seen.lock().unwrap().clear();
        assert!(read_all(&file).await == bytes);
        assert_eq!(*seen.lock().unwrap(), [near], "it is the nearest");
        let ranks = |client: &Client| {
            let servers = client.servers();
            sites
                .iter()
                .map(|site| servers.iter().find(|s| s.address == *site).unwrap().rank)
                .collect::<Vec<_>>()
        };
        let measured = ranks(&client);
        assert!(measured[1] < measured[2] && measured[2] < measured[0], "{measured:?}");
        assert!(client.set_rank(sites[0].ip(), ServerKind::File, 1));
        client.flush_volume(file.fid().cell, file.fid().volume).await;
        seen.lock().unwrap().clear();
        assert!(read_all(&file).await == bytes);
        assert_eq!(*seen.lock().unwrap(), [sites[0]]);
    });
}

/// Each release has the same byte throughout a file. While releases go from server to server, and servers are cut off in turn, no read
/// has two of them. None goes back, unless no server with the newer one can be reached.
#[test]
fn a_reader_never_sees_half_of_a_release() {
    for seed in 0..4 {
        println!("seed {seed}");
        let Place { world, mut mover, writer, sites } = Place::new(3);
        let (reader, sim) = (world.client(2), world.sim.clone());
        let addresses: Vec<_> = world.sites.iter().map(|site| site.address).collect();
        world.run(async move {
            const LENGTH: usize = 2 << 20;
            let file = make(&writer, "file").await;
            file.write(0, vec![1; LENGTH].into()).await.unwrap();
            file.flush().await.unwrap();
            mover.release("root.cell", ROOT_CELL, &sites).await;
            // Only the readers' way is cut: releases arrive.
            let (cut, mut chance) = (Arc::new(Mutex::new(None)), StdRng::seed_from_u64(seed));
            let (is_cut, mut losses) = (cut.clone(), StdRng::seed_from_u64(seed + 100));
            sim.set_network(move |_, from, to, _| {
                let is_of_reader = |at: SocketAddr| at.ip().to_string() == "10.0.0.102";
                let cut: Option<SocketAddr> = *is_cut.lock().unwrap();
                let hits = cut
                    .is_some_and(|at| (from == at && is_of_reader(to)) || (to == at && is_of_reader(from)));
                // Slow, and some are lost: so releases come in the middle of calls.
                let is_lost = (is_of_reader(from) || is_of_reader(to)) && losses.random_bool(0.03);
                if hits || is_lost { Fate::Lost } else { Fate::Arrives(Duration::from_millis(30)) }
            });
            let has_ended = Arc::new(Mutex::new(false));
            let (ended, clock) = (has_ended.clone(), sim.clone());
            sim.spawn(Box::pin(async move {
                mover.pause = Duration::from_millis(50);
                for release in 2..=60 {
                    file.write(0, vec![release; LENGTH].into()).await.unwrap();
                    file.flush().await.unwrap();
                    mover.release("root.cell", ROOT_CELL, &sites).await;
                    clock.sleep_until(clock.now() + Duration::from_millis(200)).await;
                }
                *ended.lock().unwrap() = true;
            }));
            let mut newest = 0;
            let (mut reads, mut releases) = (0, Vec::new());
            while !*has_ended.lock().unwrap() {
                *cut.lock().unwrap() = (seed % 2 == 1 && chance.random_bool(0.3))
                    .then(|| addresses[chance.random_range(0..addresses.len())]);
                let file = open_read_only(&reader, "file").await;
                if chance.random_bool(0.1) {
                    reader.flush(NOBODY, file.fid()).await;
                }
                for _ in 0..6 {
                    let at = chance.random_range(0..LENGTH - 200_000) as u64;
                    let length = chance.random_range(1..400_000);
                    let bytes = file.read(at, length).await.unwrap();
                    let first = bytes[0];
                    assert!(
                        bytes.iter().all(|byte| *byte == first),
                        "a read of two releases, {at} and {length}"
                    );
                    assert!(first >= newest || seed % 2 == 1, "{first} after {newest}");
                    if first > newest {
                        releases.push(first);
                    }
                    newest = newest.max(first);
                    reads += 1;
                    sim.sleep_until(sim.now() + Duration::from_millis(chance.random_range(0..20))).await;
                }
            }
            println!("{reads} reads, releases {releases:?}");
            assert!(reads > 100 && releases.len() >= 4);
        });
    }
}

#[test]
fn with_all_servers_away_what_is_cached_is_told_and_what_is_not_fails_soon() {
    let Place { mut world, mover, writer, sites } = Place::new(2);
    let (client, sim) = (world.client(2), world.sim.clone());
    let (root, file) = world.run({
        let (client, writer) = (client.clone(), writer.clone());
        async move {
            for name in ["cached", "other"] {
                let file = make(&writer, name).await;
                file.write(0, Bytes::from_static(b"text")).await.unwrap();
                file.flush().await.unwrap();
            }
            let dir = writer.make_dir(NOBODY, cell_root(&writer).await, b"dir", 0o755).await.unwrap().fid;
            drop(writer.create_and_open(NOBODY, (dir, b"in it"), 0o644, WRITE, true).await.unwrap());
            mover.release("root.cell", ROOT_CELL, &sites).await;
            let root = read_only_root(&client).await;
            assert_eq!(names(&client, NOBODY, root).await, ["cached", "dir", "other"]);
            let file = open_read_only(&client, "cached").await;
            assert!(read_all(&file).await == b"text");
            client.lookup(NOBODY, root, b"other").await.unwrap();
            (root, file)
        }
    });
    world.kill(0);
    world.kill(1);
    world.run({
        let (client, sim) = (client.clone(), sim.clone());
        async move {
            for hours in [0, 1, 3, 10] {
                sim.sleep_until(Instant::ORIGIN + Duration::from_secs(3600 * hours + 100)).await;
                let begin = client.now();
                let what = format!("after {hours} hours");
                assert_eq!(names(&client, NOBODY, root).await, ["cached", "dir", "other"], "{what}");
                let found = client.lookup(NOBODY, root, b"cached").await.unwrap();
                assert_eq!(found.status.length, 4, "{what}");
                assert!(read_all(&file).await == b"text", "{what}");
                let opened = client.open(NOBODY, found.fid, READ).await.unwrap();
                assert!(read_all(&opened).await == b"text", "{what}");
                assert!(
                    client.now().since(begin) < Duration::from_secs(30),
                    "{what}: {:?}",
                    client.now().since(begin)
                );
                let begin = client.now();
                let other = client.lookup(NOBODY, root, b"other").await.unwrap().fid;
                let opened = client.open(NOBODY, other, READ).await.unwrap();
                let error = opened.read(0, 10).await.unwrap_err();
                assert_eq!(error.errno(), Errno::ETIMEDOUT, "{what}: {error}");
                let dir = client.lookup(NOBODY, root, b"dir").await;
                let error = match dir {
                    Ok(dir) => client.read_dir(NOBODY, dir.fid).await.unwrap_err(),
                    Err(error) => error,
                };
                assert_eq!(error.errno(), Errno::ETIMEDOUT, "{what}: {error}");
                let took = client.now().since(begin);
                let limit = if hours == 0 { 130 } else { 2 };
                assert!(took < Duration::from_secs(limit), "{what}: {took:?}");
            }
        }
    });
    world.start(1);
    world.run(async move {
        sim.sleep_until(sim.now() + Duration::from_secs(31)).await;
        let other = client.lookup(NOBODY, root, b"other").await.unwrap().fid;
        let opened = client.open(NOBODY, other, READ).await.unwrap();
        assert!(read_all(&opened).await == b"text", "it is noticed when one is back");
    });
}
