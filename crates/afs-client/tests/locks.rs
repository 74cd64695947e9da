//! Locks that a client may be unable to prolong in time: its machine sleeps, their server starts anew, or another server is silent. A lock
//! ends after five minutes then, and another client may have it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::laptop::Laptop;
use crate::support::{ALICE, Cell, ROOT_CELL, USER_VOLUME, cell_root};
use afs_client::{Client, Error, Fid, LockKind};
use afs_sim::{Fate, Sim};
use rx::Runtime;

async fn sleep(sim: &Sim, seconds: u64) {
    sim.sleep_until(sim.now() + Duration::from_secs(seconds)).await;
}

/// True if a client gets the lock of a file for itself.
async fn gets(client: &Client, file: Fid) -> bool {
    match client.lock(ALICE, file, 1, LockKind::Write, false).await {
        Ok(()) => true,
        Err(Error::Locked { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Has a client on a machine that sleeps lock a file for itself, and does something with it, with the machine and with two other clients.
fn with_laptop<F, W>(work: F)
where
    F: FnOnce(Sim, Laptop, Client, [Client; 2], Fid) -> W + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let world = Cell::new();
    let laptop = Laptop::new(&world, 1);
    let one = world.client_on(Arc::new(laptop.clone()), world.config(1));
    let others = [world.client(2), world.client(3)];
    let sim = world.sim.clone();
    world.run(async move {
        let root = cell_root(&one).await;
        let file = one.create(ALICE, root, b"file", 0o644).await.unwrap().fid;
        assert!(gets(&one, file).await);
        work(sim, laptop, one, others, file).await;
    });
}

/// Servers do not ask whose lock is prolonged.
#[test]
fn a_client_that_slept_longer_than_a_lock_lasts_does_not_prolong_the_lock_of_another() {
    with_laptop(|sim, laptop, one, [two, three], file| async move {
        sleep(&sim, 50).await;
        let wakes = laptop.fall_asleep(Duration::from_secs(400));
        sleep(&sim, 350).await;
        // Nothing prolongs it.
        two.lock_at_server(ALICE, file, LockKind::Write).await.unwrap();
        sim.sleep_until(wakes).await;
        sleep(&sim, 240).await;
        assert!(!gets(&three, file).await, "290 s old");
        sleep(&sim, 20).await;
        assert!(gets(&three, file).await, "310 s old");
        sleep(&sim, 1000).await;
        one.unlock(file, 1).await;
        assert!(!gets(&two, file).await);
    });
}

/// Nor do they ask whose lock is given back: a third client got it then, while the second had it.
#[test]
fn a_client_that_slept_longer_than_a_lock_lasts_does_not_give_back_the_lock_of_another() {
    for seconds in [0, 5, 500] {
        with_laptop(move |sim, laptop, one, [two, three], file| async move {
            sleep(&sim, 50).await;
            let wakes = laptop.fall_asleep(Duration::from_secs(400));
            sleep(&sim, 350).await;
            assert!(gets(&two, file).await);
            sim.sleep_until(wakes).await;
            sleep(&sim, seconds).await;
            one.unlock(file, 1).await;
            sleep(&sim, 1).await;
            assert!(!gets(&three, file).await, "{seconds} s after it woke");
            two.unlock(file, 1).await;
            assert!(gets(&three, file).await);
        });
    }
}

#[test]
fn a_client_that_slept_has_its_lock_again_if_nobody_took_it() {
    with_laptop(|sim, laptop, one, [two, _], file| async move {
        sleep(&sim, 50).await;
        sim.sleep_until(laptop.fall_asleep(Duration::from_secs(400))).await;
        sleep(&sim, 2).await;
        assert!(!gets(&two, file).await);
        one.unlock(file, 1).await;
        assert!(gets(&two, file).await);
    });
}

/// The lock went a moment after the program had given it up, though the program had it again by then.
#[test]
fn a_program_that_locks_again_at_once_keeps_its_lock() {
    with_laptop(|sim, _, one, [two, _], file| async move {
        let given_back = one.unlock(file, 1);
        assert!(gets(&one, file).await);
        given_back.await;
        sleep(&sim, 1).await;
        assert!(!gets(&two, file).await);
        one.unlock(file, 1).await;
        assert!(gets(&two, file).await);
    });
}

/// The timer by which locks are prolonged waits while the machine sleeps: it was late for one that had not ended yet.
#[test]
fn a_lock_that_is_about_to_end_when_its_client_wakes_is_prolonged_at_once() {
    with_laptop(|sim, laptop, one, [two, _], file| async move {
        sleep(&sim, 20).await;
        sim.sleep_until(laptop.fall_asleep(Duration::from_secs(250))).await;
        sleep(&sim, 40).await;
        assert!(!gets(&two, file).await, "310 s old");
        one.unlock(file, 1).await;
        assert!(gets(&two, file).await);
    });
}

/// A server that starts anew has no locks. Clients asked for theirs with the next prolongation, up to 100 s later.
#[test]
fn a_lock_is_asked_for_again_as_soon_as_a_client_learns_that_its_server_forgot_it() {
    let world = Cell::new();
    let (one, two, sim) = (world.client(1), world.client(2), world.sim.clone());
    let world = Arc::new(Mutex::new(world));
    let clock = sim.clone();
    sim.block_on(async move {
        let root = cell_root(&one).await;
        let file = one.create(ALICE, root, b"file", 0o644).await.unwrap().fid;
        assert!(gets(&one, file).await);
        world.lock().unwrap().kill(0);
        sleep(&clock, 5).await;
        world.lock().unwrap().start(0);
        one.create(ALICE, root, b"other", 0o644).await.unwrap();
        sleep(&clock, 1).await;
        assert!(!gets(&two, file).await);
    });
}

/// Locks were prolonged one after the other, and the server of the first one was waited for.
#[test]
fn a_silent_server_costs_no_lock_at_another() {
    let world = Cell::with_sites(2);
    world.make_volume(0, "root.cell", ROOT_CELL);
    world.make_volume(1, "user", USER_VOLUME);
    let (one, two, sim) = (world.client(1), world.client(2), world.sim.clone());
    let silent = world.sites[1].address;
    world.run(async move {
        let root = cell_root(&one).await;
        let file = one.create(ALICE, root, b"file", 0o644).await.unwrap().fid;
        assert!(gets(&one, file).await);
        for number in 0..8 {
            let (root, name) = (Fid::root_of(root.cell, USER_VOLUME), format!("file{number}"));
            let file = one.create(ALICE, root, name.as_bytes(), 0o644).await.unwrap().fid;
            assert!(gets(&one, file).await);
        }
        sim.set_network(move |_, from, to, _| {
            if [from, to].contains(&silent) { Fate::Lost } else { Fate::Arrives(Duration::ZERO) }
        });
        // The lock had to be prolonged twice until here.
        sleep(&sim, 450).await;
        assert!(!gets(&two, file).await);
    });
}
