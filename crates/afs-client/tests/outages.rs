//! Servers that are away for a while in the middle of reads and writes, links that lose, servers that never answer: operations
//! wait and go on by themselves, no byte is wrong, and whoever does not want to wait is let go.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::data::{READ, WRITE, make, open, random_bytes, read_all};
use crate::support::{Cell, NOBODY, cell_root, content, names};
use afs_client::{Client, Error, OpenFile};
use afs_sim::{Fate, Sim};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::{Runtime, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rx_proto::time::Instant;

/// What is read and written: some round trips, so that an outage within them is in the middle.
const BYTES: usize = 4 << 20;

/// How a server is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    /// Nothing gets to it, and nothing from it.
    Cut,
    /// It is killed, and started again.
    Killed,
}

const OUTAGES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(300)];

async fn sleep(sim: &Sim, time: Duration) {
    sim.sleep_until(sim.now() + time).await;
}

/// What a future comes to, if it does in so much time; else it is interrupted, as by a signal.
async fn within<T>(sim: &Sim, time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut timer = sim.sleep_until(sim.now() + time);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// A cell whose server goes away.
struct Place {
    sim: Sim,
    world: Arc<Mutex<Cell>>,
    one: Client,
    two: Client,
    random: StdRng,
    away: Away,
    lasts: Duration,
}

impl Place {
    /// Has the server go away within so many milliseconds.
    fn go_away(&mut self, within: u64) {
        let (world, sim) = (Arc::clone(&self.world), self.sim.clone());
        let at = sim.now() + Duration::from_millis(self.random.random_range(0..within));
        let until = at + self.lasts;
        if self.away == Away::Cut {
            let address = world.lock().unwrap().sites[0].address;
            sim.set_network(move |now: Instant, from, to, _| {
                let is_cut = at <= now && now < until && (from == address || to == address);
                if is_cut { Fate::Lost } else { Fate::Arrives(Duration::ZERO) }
            });
            return;
        }
        let clock = sim.clone();
        sim.spawn(Box::pin(async move {
            clock.sleep_until(at).await;
            world.lock().unwrap().kill(0);
            clock.sleep_until(until).await;
            world.lock().unwrap().start(0);
        }));
    }
}

/// Does something with each outage. Told is when it began and ended.
fn with_outages<F, W>(work: F)
where
    F: Fn(Place) -> W,
    W: Future<Output = (Instant, Instant)> + Send + 'static,
{
    let mut hit = 0;
    for away in [Away::Cut, Away::Killed] {
        for lasts in OUTAGES {
            for seed in 0..2 {
                let world = Cell::new();
                let (one, two, sim) = (world.client(1), world.client(2), world.sim.clone());
                let world = Arc::new(Mutex::new(world));
                let random = StdRng::seed_from_u64(seed);
                let place = Place { sim: sim.clone(), world, one, two, random, away, lasts };
                let clients = [place.one.clone(), place.two.clone()];
                let work = work(place);
                let clock = sim.clone();
                let (began, ended) = sim.block_on(async move {
                    // A server that never answered is not waited for.
                    for client in &clients {
                        drop(names(client, NOBODY, cell_root(client).await).await);
                    }
                    let times = work.await;
                    // What is still to be started is.
                    sleep(&clock, Duration::from_secs(400)).await;
                    times
                });
                let what = format!("{away:?} for {lasts:?}, seed {seed}: it took {:?}", ended.since(began));
                println!("{what}");
                hit += u32::from(ended.since(began) >= lasts / 2);
                // A server is given up after some seconds, and is looked for every 15 s then.
                assert!(ended.since(began) < lasts + Duration::from_secs(15), "{what}");
            }
        }
    }
    assert!(hit >= 6, "only {hit} of 12 were in the middle");
}

#[test]
fn a_read_goes_on_when_the_server_is_back() {
    with_outages(|mut place| async move {
        let bytes = random_bytes(&mut place.random, BYTES);
        let file = make(&place.one, "file").await;
        file.write(0, bytes.clone().into()).await.unwrap();
        file.flush().await.unwrap();
        let file = open(&place.two, "file", READ).await;
        let began = place.sim.now();
        place.go_away(30);
        assert!(read_all(&file).await == bytes, "what was read");
        (began, place.sim.now())
    });
}

#[test]
fn a_close_goes_on_when_the_server_is_back() {
    with_outages(|mut place| async move {
        let bytes = random_bytes(&mut place.random, BYTES);
        let file = make(&place.one, "file").await;
        file.write(0, Bytes::from(vec![1; 3 << 20])).await.unwrap();
        file.flush().await.unwrap();
        // Some in the middle, and the end.
        file.write(0, bytes[..1 << 20].to_vec().into()).await.unwrap();
        file.write(2 << 20, bytes[2 << 20..].to_vec().into()).await.unwrap();
        let began = place.sim.now();
        place.go_away(30);
        file.flush().await.unwrap();
        let ended = place.sim.now();
        let mut expected = bytes;
        expected[1 << 20..2 << 20].fill(1);
        assert!(content(&place.two, NOBODY, file.fid()).await == expected, "at the server");
        assert!(read_all(&open(&place.one, "file", READ).await).await == expected, "here");
        (began, ended)
    });
}

#[test]
fn names_are_made_and_listed_when_the_server_is_back() {
    with_outages(|mut place| async move {
        let root = cell_root(&place.one).await;
        let wide = place.one.make_dir(NOBODY, root, b"wide", 0o755).await.unwrap().fid;
        for n in 0..150 {
            place.one.create(NOBODY, wide, format!("{n:03}").as_bytes(), 0o644).await.unwrap();
        }
        cell_root(&place.two).await;
        let began = place.sim.now();
        place.go_away(30);
        let there = place.two.lookup(NOBODY, cell_root(&place.two).await, b"wide").await.unwrap().fid;
        assert_eq!(names(&place.two, NOBODY, there).await.len(), 150);
        for n in 0..4 {
            let name = format!("new{n}");
            match place.one.create(NOBODY, wide, name.as_bytes(), 0o644).await {
                // The server had done it when its answer was lost: as the file is there, all is well but who made it.
                Ok(_) | Err(Error::Exists { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let ended = place.sim.now();
        assert_eq!(names(&place.two, NOBODY, there).await.len(), 154);
        (began, ended)
    });
}

/// What is promised and in the cache takes no server, for as long as it is promised: also when the server is known to be away.
#[test]
fn what_is_in_the_cache_is_found_opened_and_read_while_the_server_is_away() {
    let world = Cell::new();
    let (one, two, sim) = (world.client(1), world.client(2), world.sim.clone());
    let address = world.sites[0].address;
    world.run(async move {
        let file = make(&two, "file").await;
        file.write(0, Bytes::from_static(b"cached")).await.unwrap();
        file.flush().await.unwrap();
        make(&two, "other").await.flush().await.unwrap();
        assert!(read_all(&open(&one, "file", READ).await).await == b"cached");
        sim.set_network(move |_, from, to, _| {
            if from == address || to == address { Fate::Lost } else { Fate::Arrives(Duration::ZERO) }
        });
        for minutes in 0..30 {
            let begin = sim.now();
            let fid = file.fid();
            let status = one.cached_status(NOBODY, fid).expect("it is promised").unwrap();
            assert_eq!(status.length, 6);
            let open = one.cached_open(NOBODY, fid, READ).expect("it is here").unwrap();
            assert!(read_all(&open).await == b"cached");
            assert_eq!(sim.now(), begin, "after {minutes} minutes");
            if minutes == 20 {
                assert!(one.servers().iter().any(|server| server.is_down), "that is known");
            }
            sleep(&sim, Duration::from_secs(60)).await;
        }
    });
}

#[test]
fn a_link_that_loses_costs_no_byte() {
    for seed in 0..4 {
        let world = Cell::new();
        let (one, two, sim) = (world.client(1), world.client(2), world.sim.clone());
        let mut chance = StdRng::seed_from_u64(seed);
        sim.set_network(move |_, _, _, _| match chance.random_bool(0.05) {
            true => Fate::Lost,
            false => Fate::Arrives(Duration::from_micros(chance.random_range(0..3000))),
        });
        world.run(async move {
            let mut random = StdRng::seed_from_u64(seed);
            let mut bytes = random_bytes(&mut random, BYTES);
            let file = make(&one, "file").await;
            file.write(0, bytes.clone().into()).await.unwrap();
            file.flush().await.unwrap();
            assert!(read_all(&open(&two, "file", READ).await).await == bytes, "seed {seed}");
            let file = open(&two, "file", WRITE).await;
            bytes[1000..2000].fill(1);
            file.write(1000, Bytes::from(vec![1; 1000])).await.unwrap();
            file.flush().await.unwrap();
            assert!(read_all(&open(&one, "file", READ).await).await == bytes, "seed {seed}");
        });
    }
}

/// A server that takes calls, is alive by all that Rx says, and never answers one.
fn mute(world: &Cell) -> rx::Endpoint {
    let endpoint = world.bind_without_service(0);
    let service = Service {
        id: ServiceId(1),
        security: vec![Arc::new(Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    endpoint.add_service(ServiceConfig::new(service, |call: rx::ServerCall| async move {
        std::future::pending::<()>().await;
        drop(call);
        Ok(())
    }));
    endpoint
}

#[test]
fn a_server_that_never_answers_holds_nobody_who_does_not_want_to_wait() {
    let mut world = Cell::new();
    let (one, two, sim) = (world.client(1), world.client(2), world.sim.clone());
    let (written, read): (OpenFile, OpenFile) = world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            let written = make(&one, "written").await;
            let file = make(&two, "read").await;
            file.write(0, Bytes::from(vec![7; 1 << 20])).await.unwrap();
            file.flush().await.unwrap();
            (written, open(&one, "read", READ).await)
        }
    });
    world.kill(0);
    let mute = mute(&world);
    let (written, read) = world.run({
        let (one, sim) = (one.clone(), sim.clone());
        async move {
            written.write(0, Bytes::from_static(b"text")).await.unwrap();
            let root = cell_root(&one).await;
            // Each is interrupted, some sooner and some later.
            for seconds in [1, 20, 100] {
                let time = Duration::from_secs(seconds);
                assert!(within(&sim, time, written.flush()).await.is_none());
                assert!(within(&sim, time, read.read(0, 4096)).await.is_none());
                assert!(within(&sim, time, one.create(NOBODY, root, b"new", 0o644)).await.is_none());
            }
            assert_eq!(one.dirty_bytes(), 4);
            (written, read)
        }
    });
    mute.shut_down();
    world.start(0);
    world.run(async move {
        let begin = sim.now();
        written.flush().await.unwrap();
        assert!(read_all(&read).await == vec![7; 1 << 20]);
        assert_eq!(content(&two, NOBODY, written.fid()).await, b"text");
        assert!(sim.now().since(begin) < Duration::from_secs(40), "{:?}", sim.now().since(begin));
    });
}

#[test]
fn a_server_that_never_answers_is_given_up_by_who_waits() {
    let mut world = Cell::new();
    let (one, two, sim) = (world.client(1), world.client(2), world.sim.clone());
    let read = world.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            let file = make(&two, "read").await;
            file.write(0, Bytes::from(vec![7; 1 << 20])).await.unwrap();
            file.flush().await.unwrap();
            open(&one, "read", READ).await
        }
    });
    world.kill(0);
    let _mute = mute(&world);
    world.run(async move {
        let begin = sim.now();
        let error = read.read(0, 4096).await.unwrap_err();
        assert!(error.is_passing(), "{error}");
        let root = cell_root(&one).await;
        let error = one.create(NOBODY, root, b"new", 0o644).await.unwrap_err();
        assert!(error.is_passing(), "{error}");
        assert!(sim.now().since(begin) < 3 * one.config().patience, "{:?}", sim.now().since(begin));
        assert!(one.servers().iter().any(|server| server.is_down), "and told of");
    });
}

#[test]
fn a_server_that_never_was_there_is_told_of_within_a_minute() {
    let mut world = Cell::new();
    let (one, sim) = (world.client(1), world.sim.clone());
    world.kill(0);
    world.run(async move {
        let begin = sim.now();
        let found = one.lookup(NOBODY, one.root(), b".one.test").await;
        let error = match found {
            Ok(found) => one.read_dir(NOBODY, found.fid).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert!(sim.now().since(begin) < Duration::from_secs(60), "{:?}", sim.now().since(begin));
    });
}

/// The newcomer's test of CONTRIBUTING.md.
#[test]
fn a_mount_that_was_cut_off_is_told_later_what_was_written_meanwhile() {
    let cell = Cell::new();
    let (here, away) = (cell.client(1), cell.client(2));
    cell.write(&here, "notes", "old");
    assert_eq!(cell.read(&away, "notes"), "old");
    cell.cut_off(&away);
    cell.write(&here, "notes", "new");
    cell.let_in();
    cell.pass(Duration::from_secs(200));
    assert_eq!(cell.read(&away, "notes"), "new");
}
