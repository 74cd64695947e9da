//! What servers do to a client: they are busy, move volumes, go away and come back, forget what they have promised.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::{ALICE, BOB, CELL, Cell, NOBODY, ROOT_CELL, cell_root, content, names, put};
use afs_client::{LockKind, SetStatus};
use afs_sim::Fate;
use afs_volume::VolumeState;
use afs_wire::Errno;
use afs_wire::ids::VolumeId;
use afs_wire::vl::SiteFlags;

const OTHER: VolumeId = VolumeId(0x2000_0020);

#[test]
fn a_busy_volume_is_waited_for() {
    let world = Cell::new();
    let client = world.client(1);
    let volume = world.volume(0, ROOT_CELL);
    let sim = world.sim.clone();
    world.run(async move {
        use rx::Runtime;
        let root = cell_root(&client).await;
        volume.set_state(VolumeState::Busy);
        let begin = client.now();
        let busy = volume.clone();
        let clock = sim.clone();
        sim.spawn(Box::pin(async move {
            clock.sleep_until(begin + Duration::from_secs(20)).await;
            busy.set_state(VolumeState::Online);
        }));
        client.create(NOBODY, root, b"file", 0o644).await.unwrap();
        let took = client.now().since(begin);
        assert!(took >= Duration::from_secs(20) && took < Duration::from_secs(30), "{took:?}");
        volume.set_state(VolumeState::Offline("for a test".to_owned()));
        let begin = client.now();
        let error = client.create(NOBODY, root, b"file2", 0o644).await.unwrap_err();
        assert_eq!(error.errno(), Errno::EIO, "{error}");
        assert!(client.now().since(begin) < Duration::from_secs(40));
    });
}

/// A program that has a directory locked lets go of it in a minute where nobody answers, but not where a volume is busy.
#[test]
fn who_waits_for_a_server_that_is_away_is_told_from_who_waits_for_a_busy_one() {
    let world = Cell::new();
    let client = world.client(1);
    let volume = world.volume(0, ROOT_CELL);
    let (sim, address) = (world.sim.clone(), world.sites[0].address);
    world.run(async move {
        use rx::Runtime;
        let root = cell_root(&client).await;
        // A server that never answered is not waited for.
        names(&client, NOBODY, root).await;
        let create = |name: &'static [u8]| {
            let client = client.clone();
            sim.spawn(Box::pin(async move { drop(client.create(NOBODY, root, name, 0o644).await) }));
        };
        let seconds = |count| sim.sleep_until(sim.now() + Duration::from_secs(count));
        volume.set_state(VolumeState::Busy);
        create(b"busy");
        for _ in 0..60 {
            seconds(1).await;
            assert!(!client.waits_in_vain());
        }
        volume.set_state(VolumeState::Online);
        seconds(30).await;
        sim.set_network(move |_, from, to, _| {
            if from == address || to == address { Fate::Lost } else { Fate::Arrives(Duration::ZERO) }
        });
        create(b"away");
        seconds(60).await;
        assert!(client.waits_in_vain());
        sim.set_network(|_, _, _, _| Fate::Arrives(Duration::ZERO));
        seconds(60).await;
        assert!(!client.waits_in_vain());
        assert_eq!(names(&client, NOBODY, root).await, ["away", "busy"]);
    });
}

#[test]
fn a_volume_that_has_moved_is_found_where_it_is() {
    let world = Cell::with_sites(2);
    world.make_volume(0, "root.cell", ROOT_CELL);
    let client = world.client(1);
    let root = world.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            client.read_dir(NOBODY, root).await.unwrap();
            root
        }
    });
    world.sites[0].partition.delete_volume(ROOT_CELL).unwrap();
    world.make_volume(1, "root.cell", ROOT_CELL);
    world.run(async move {
        client.create(NOBODY, root, b"there", 0o644).await.unwrap();
        assert_eq!(names(&client, NOBODY, root).await, ["there"]);
    });
}

#[test]
fn a_volume_that_the_database_knows_and_no_server_has_is_told_of_soon() {
    let world = Cell::new();
    world.set_entry("phantom", OTHER, &[(0, SiteFlags::RW_VOL)]);
    let client = world.client(1);
    world.run(async move {
        let root = cell_root(&client).await;
        client.make_mount(NOBODY, root, b"phantom", "#phantom.").await.unwrap();
        let begin = client.now();
        let error = client.lookup(NOBODY, root, b"phantom").await.unwrap_err();
        assert_eq!(error.errno(), Errno::ENODEV, "{error}");
        assert!(client.now().since(begin) < Duration::from_secs(10));
    });
}

#[test]
fn a_server_that_was_away_is_waited_for_and_goes_on() {
    let mut world = Cell::new();
    let client = world.client(1);
    let (root, fid) = world.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            let fid = client.create(NOBODY, root, b"file", 0o644).await.unwrap().fid;
            put(&client, NOBODY, fid, b"text").await;
            (root, fid)
        }
    });
    world.kill(0);
    // What is promised is still told, and what is not is waited for.
    let begin = client.now();
    assert!(client.cached_status(NOBODY, fid).is_some());
    let (asking, sim) = (client.clone(), world.sim.clone());
    let pending = std::sync::Arc::new(std::sync::Mutex::new(None));
    let slot = pending.clone();
    {
        use rx::Runtime;
        sim.spawn(Box::pin(async move {
            let read = content(&asking, NOBODY, fid).await;
            *slot.lock().unwrap() = Some((read, asking.now()));
        }));
    }
    let later = begin + Duration::from_secs(60);
    world.run({
        let sim = sim.clone();
        async move {
            use rx::Runtime;
            sim.sleep_until(later).await
        }
    });
    assert!(pending.lock().unwrap().is_none(), "the server is away");
    let down = client.servers().into_iter().filter(|server| server.is_down).count();
    assert_eq!(down, 1, "and that is known");
    world.start(0);
    world.run({
        let (client, sim) = (client.clone(), sim.clone());
        async move {
            use rx::Runtime;
            sim.sleep_until(later + Duration::from_secs(30)).await;
            // A server that was started anew has promised nothing.
            assert_eq!(client.lookup(NOBODY, root, b"file").await.unwrap().fid, fid);
        }
    });
    let (read, at) = pending.lock().unwrap().take().expect("it goes on by itself");
    assert_eq!(read, b"text");
    assert!(at.since(later) < Duration::from_secs(20), "soon after the server is back");
}

/// A server takes its port before it serves; in between it says that there is no such service. Found by killing a server under two
/// mounts: what was written then could not be stored.
#[test]
fn a_server_that_is_only_starting_is_waited_for() {
    use rx::Runtime;
    let mut world = Cell::new();
    let client = world.client(1);
    let fid = world.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            client.create(NOBODY, root, b"file", 0o644).await.unwrap().fid
        }
    });
    world.kill(0);
    let bare = world.bind_without_service(0);
    let stored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (flag, sim) = (stored.clone(), world.sim.clone());
    sim.spawn(Box::pin(async move {
        put(&client, NOBODY, fid, b"text").await;
        flag.store(true, std::sync::atomic::Ordering::Relaxed);
    }));
    let pause = |seconds| {
        let sim = world.sim.clone();
        async move { sim.sleep_until(sim.now() + Duration::from_secs(seconds)).await }
    };
    world.run(pause(5));
    assert!(!stored.load(std::sync::atomic::Ordering::Relaxed));
    let done = pause(10);
    bare.shut_down();
    world.start(0);
    world.run(done);
    assert!(stored.load(std::sync::atomic::Ordering::Relaxed));
}

#[test]
fn a_server_that_never_answers_costs_seconds() {
    let mut world = Cell::new();
    let client = world.client(1);
    world.kill(0);
    world.run(async move {
        let begin = client.now();
        let cell = client.lookup(NOBODY, client.root(), CELL.as_bytes()).await.unwrap().fid;
        let error = client.read_dir(NOBODY, cell).await.unwrap_err();
        assert_eq!(error.errno(), Errno::ETIMEDOUT, "{error}");
        let took = client.now().since(begin);
        assert!(took < Duration::from_secs(20), "{took:?}");
        let begin = client.now();
        assert!(client.read_dir(NOBODY, cell).await.is_err());
        assert!(client.now().since(begin) < Duration::from_secs(1), "and the next time less");
    });
}

#[test]
fn a_replica_answers_when_another_does_not() {
    let mut world = Cell::with_sites(2);
    for site in 0..2 {
        // The same content at both, as a release leaves it.
        world.make_volume(site, "root.cell", ROOT_CELL);
        world.release(site, "root.cell", ROOT_CELL);
    }
    let sites = [(0, SiteFlags::RW_VOL), (0, SiteFlags::RO_VOL), (1, SiteFlags::RO_VOL)];
    world.set_entry("root.cell", ROOT_CELL, &sites);
    let client = world.client(1);
    let is_one_down = || client.servers().iter().any(|server| server.is_down);
    let asking = client.clone();
    world.kill(0);
    world.run(async move {
        let client = asking;
        let begin = client.now();
        let cell = client.lookup(NOBODY, client.root(), CELL.as_bytes()).await.unwrap().fid;
        client.read_dir(NOBODY, cell).await.unwrap();
        assert!(client.now().since(begin) < Duration::from_secs(20));
        let begin = client.now();
        let real = client.target(NOBODY, cell).await.unwrap();
        client.flush_volume(real.cell, real.volume).await;
        client.read_dir(NOBODY, cell).await.unwrap();
        assert!(client.now().since(begin) < Duration::from_secs(1), "the dead one is passed over");
    });
    world.pass(Duration::from_secs(300));
    assert!(is_one_down());
    world.start(0);
    world.pass(Duration::from_secs(300));
    assert!(!is_one_down(), "that it is back is noticed though nobody needs it");
}

/// The calls of servers are not authenticated: anybody could make a client forget all that it had been promised.
#[test]
fn a_stranger_ends_no_promise_and_a_server_only_its_own() {
    use afs_wire::Uuid;
    use afs_wire::ids::AfsFid;
    use afs_wire::rxafs::{AfsCbFids, AfsCbs};
    use afs_wire::rxafscb::{CallBack, InitCallBackState, InitCallBackState3, Rxafscb};
    use rx_proto::security::Null;
    use rxgen::Interface;
    let mut world = Cell::with_sites(2);
    world.make_volume(0, "root.cell", ROOT_CELL);
    world.make_volume(1, "other", OTHER);
    let client = world.client(1);
    let (fid, other) = world.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            client.make_mount(NOBODY, root, b"other", "#other.").await.unwrap();
            let fid = client.create(NOBODY, root, b"file", 0o644).await.unwrap().fid;
            let dir = client.lookup(NOBODY, root, b"other").await.unwrap().fid;
            let other = client.create(NOBODY, dir, b"file", 0o644).await.unwrap().fid;
            client.status(NOBODY, fid).await.unwrap();
            client.status(NOBODY, other).await.unwrap();
            (fid, other)
        }
    });
    let to = client.address();
    let service = rx_proto::ids::ServiceId(Rxafscb::SERVICE_ID);
    let tell = |world: &Cell, from: &rx::Endpoint, number: u8| {
        let connection = from.connect(to, service, Box::new(Null));
        // That of the first site.
        let server_uuid = Uuid { time_low: 7000, ..Uuid::default() };
        let fids = AfsCbFids::new(vec![AfsFid::root_of(ROOT_CELL), fid.in_cell()]).unwrap();
        world.run(async move {
            match number {
                0 => drop(connection.rpc(&InitCallBackState {}).await.unwrap()),
                1 => drop(connection.rpc(&InitCallBackState3 { server_uuid }).await.unwrap()),
                _ => drop(connection.rpc(&CallBack { fids, callbacks: AfsCbs::default() }).await.unwrap()),
            }
        });
    };
    let stranger = world.stranger();
    for number in 0..3 {
        tell(&world, &stranger, number);
        assert!(client.cached_status(NOBODY, fid).is_some(), "number {number}");
        assert!(client.cached_status(NOBODY, other).is_some(), "number {number}");
    }
    // The second server's address, with the UUID of the first.
    world.kill(1);
    let second = world.bind_without_service(1);
    tell(&world, &second, 1);
    assert!(client.cached_status(NOBODY, fid).is_some(), "who calls is known by the address");
    assert!(client.cached_status(NOBODY, other).is_none());
}

#[test]
fn a_server_that_forgets_its_promises_ends_them() {
    let mut world = Cell::new();
    let (client, other) = (world.client(1), world.client(2));
    let (root, fid) = world.run({
        let (client, other) = (client.clone(), other.clone());
        async move {
            let root = cell_root(&client).await;
            let fid = other.create(NOBODY, root, b"file", 0o644).await.unwrap().fid;
            client.lookup(NOBODY, root, b"file").await.unwrap();
            (root, fid)
        }
    });
    world.kill(0);
    world.start(0);
    world.run(async move {
        let set = SetStatus { mode: Some(0o600), ..SetStatus::default() };
        other.set_status(NOBODY, fid, set).await.unwrap();
        // The server knows nothing of the first client until it calls: this is the window that stock servers have too.
        client.create(NOBODY, root, b"new", 0o644).await.unwrap();
        assert_eq!(client.status(NOBODY, fid).await.unwrap().mode, 0o600);
    });
}

/// Routers of homes and hotels forget a way that nothing has taken for half a minute: a promise would be broken without the client's
/// hearing of it, after the server has waited for its answer in vain.
#[test]
fn a_client_behind_a_nat_router_hears_of_changes_also_after_a_pause() {
    let world = Cell::new();
    let (client, other) = (world.client(1), world.client(2));
    let behind = world.config(1).bind;
    let mut open_until = HashMap::new();
    world.sim.set_network(move |now, from, to, _| {
        if from == behind {
            open_until.insert(to, now + Duration::from_secs(30));
        }
        let is_open = to != behind || open_until.get(&from).is_some_and(|until| now < *until);
        if is_open { Fate::Arrives(Duration::ZERO) } else { Fate::Lost }
    });
    world.run(async move {
        let root = cell_root(&client).await;
        let fid = other.create(NOBODY, root, b"file", 0o644).await.unwrap().fid;
        for mode in [0o600, 0o640, 0o644] {
            client.status(NOBODY, fid).await.unwrap();
            client.runtime().sleep_until(client.now() + Duration::from_secs(170)).await;
            let (set, began) = (SetStatus { mode: Some(mode), ..SetStatus::default() }, other.now());
            other.set_status(NOBODY, fid, set).await.unwrap();
            assert!(other.now().since(began) < Duration::from_secs(1), "the server waits for the client");
            assert_eq!(client.status(NOBODY, fid).await.unwrap().mode, mode);
        }
    });
}

#[test]
fn lost_datagrams_cost_time_and_nothing_else() {
    let world = Cell::new();
    let client = world.client(1);
    let sim = world.sim.clone();
    world.run(async move {
        let root = cell_root(&client).await;
        sim.lose_every(7);
        for number in 0..30 {
            let name = format!("file{number}");
            let fid = client.create(NOBODY, root, name.as_bytes(), 0o644).await.unwrap().fid;
            put(&client, NOBODY, fid, b"some text").await;
            assert_eq!(content(&client, NOBODY, fid).await, b"some text");
        }
        assert_eq!(names(&client, NOBODY, root).await.len(), 30);
    });
}

#[test]
fn locks_are_shared_out_and_given_back() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&one).await;
        let fid = one.create(ALICE, root, b"file", 0o644).await.unwrap().fid;
        one.lock(ALICE, fid, 1, LockKind::Read, false).await.unwrap();
        one.lock(ALICE, fid, 2, LockKind::Read, false).await.unwrap();
        two.lock(ALICE, fid, 1, LockKind::Read, false).await.unwrap();
        let refused = two.lock(ALICE, fid, 1, LockKind::Write, false).await.unwrap_err();
        assert_eq!(refused.errno(), Errno::EAGAIN);
        // Longer than a lock lives that nobody prolongs.
        one.runtime().sleep_until(one.now() + Duration::from_secs(1000)).await;
        assert!(two.lock(ALICE, fid, 1, LockKind::Write, false).await.is_err());
        one.unlock(fid, 1).await;
        one.unlock(fid, 2).await;
        two.lock(ALICE, fid, 1, LockKind::Write, false).await.unwrap();
        assert!(one.lock(ALICE, fid, 1, LockKind::Read, false).await.is_err());
        let begin = one.now();
        let waiting = one.clone();
        let got = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = got.clone();
        one.runtime().spawn(Box::pin(async move {
            waiting.lock(ALICE, fid, 1, LockKind::Read, true).await.unwrap();
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        }));
        one.runtime().sleep_until(begin + Duration::from_secs(10)).await;
        assert!(!got.load(std::sync::atomic::Ordering::Relaxed));
        two.unlock(fid, 1).await;
        one.runtime().sleep_until(begin + Duration::from_secs(13)).await;
        assert!(got.load(std::sync::atomic::Ordering::Relaxed), "within a second or two");
    });
}

#[test]
fn a_lock_on_its_way_back_is_in_nobody_of_the_same_clients_way() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&one).await;
        let fid = one.create(ALICE, root, b"file", 0o644).await.unwrap().fid;
        for moment in 0..40 {
            for (user, kind) in [(ALICE, LockKind::Write), (ALICE, LockKind::Read), (BOB, LockKind::Read)] {
                one.lock(ALICE, fid, 1, LockKind::Write, false).await.unwrap();
                let giver = one.clone();
                one.runtime().spawn(Box::pin(async move { giver.unlock(fid, 1).await }));
                one.runtime().sleep_until(one.now() + Duration::from_micros(moment * 25)).await;
                one.lock(user, fid, 2, kind, true).await.unwrap();
                assert!(two.lock(ALICE, fid, 1, LockKind::Write, false).await.is_err());
                one.unlock(fid, 2).await;
                two.lock(ALICE, fid, 1, LockKind::Write, false).await.unwrap();
                two.unlock(fid, 1).await;
            }
        }
    });
}

#[test]
fn who_is_interrupted_while_he_asks_for_a_lock_leaves_none() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&one).await;
        let fid = one.create(ALICE, root, b"file", 0o644).await.unwrap().fid;
        let mut asked = Box::pin(one.lock(ALICE, fid, 1, LockKind::Write, false));
        std::future::poll_fn(|context| {
            assert!(asked.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(asked);
        one.runtime().sleep_until(one.now() + Duration::from_secs(1)).await;
        two.lock(ALICE, fid, 1, LockKind::Write, false).await.unwrap();
        two.unlock(fid, 1).await;
        one.lock(ALICE, fid, 1, LockKind::Write, false).await.unwrap();
    });
}

#[test]
fn the_end_of_a_client_is_an_error_to_who_waits() {
    let mut world = Cell::new();
    let client = world.client(1);
    let root = world.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            client.status(NOBODY, root).await.unwrap();
            root
        }
    });
    world.kill(0);
    world.run(async move {
        let waiting = client.clone();
        let ended = std::sync::Arc::new(std::sync::Mutex::new(None));
        let slot = ended.clone();
        client.runtime().spawn(Box::pin(async move {
            let outcome = waiting.create(NOBODY, root, b"file", 0o644).await;
            *slot.lock().unwrap() = Some(outcome.unwrap_err().errno());
        }));
        client.runtime().sleep_until(client.now() + Duration::from_secs(30)).await;
        assert!(ended.lock().unwrap().is_none());
        client.shut_down().await;
        client.runtime().sleep_until(client.now() + Duration::from_secs(1)).await;
        assert_eq!(*ended.lock().unwrap(), Some(Errno::ESHUTDOWN));
    });
}
