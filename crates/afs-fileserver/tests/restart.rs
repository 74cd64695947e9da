//! A server that ends and starts again: who held promises is told, and before a change that would have to be told to it.

use crate::support;
use std::time::Duration;

use crate::support::client::Heard;
use crate::support::{Cell, ROOT};
use afs_sim::Fate;
use afs_volume::disk::Cut;
use afs_wire::status::CallBackType;
use rx::Runtime;

/// Lets a clients' promises be, ends the server, and starts it again with these settings.
fn restarted(configure: impl FnOnce(&mut afs_fileserver::Config)) -> (Cell, support::client::Client) {
    let mut cell = Cell::new();
    let client = cell.client(1);
    let client = cell.run(async move {
        client.status(ROOT).await.unwrap();
        assert_eq!(client.heard(), [Heard::Asked, Heard::Reset]);
        client
    });
    cell.restart(configure);
    (cell, client)
}

#[test]
fn who_held_promises_is_told_without_calling() {
    let (cell, client) = restarted(|_| {});
    let sim = cell.sim.clone();
    cell.run(async move {
        sim.sleep_until(sim.now() + Duration::from_secs(5)).await;
        assert_eq!(client.heard(), [Heard::Reset]);
        client.status(ROOT).await.unwrap();
        assert_eq!(client.heard(), [Heard::Asked], "it is known by its UUID, and has been told");
    });
}

#[test]
fn a_change_right_after_the_start_waits_until_they_were_told() {
    let (cell, client) = restarted(|_| {});
    let writer = cell.client(2);
    cell.run(async move {
        writer.create(ROOT, "a").await.unwrap();
        assert!(client.heard().contains(&Heard::Reset));
    });
}

#[test]
fn without_the_file_they_are_told_when_they_call() {
    let (cell, client) = restarted(|config| config.promises = None);
    let sim = cell.sim.clone();
    cell.run(async move {
        sim.sleep_until(sim.now() + Duration::from_secs(5)).await;
        assert_eq!(client.heard(), []);
        client.status(ROOT).await.unwrap();
        assert_eq!(client.heard(), [Heard::Asked, Heard::Reset]);
    });
}

#[test]
fn who_is_gone_after_the_restart_holds_up_nobody_for_long() {
    let (cell, client) = restarted(|_| {});
    let writer = cell.client(2);
    let sim = cell.sim.clone();
    sim.cut_off(client.endpoint.local_addr());
    cell.run(async move {
        writer.status(ROOT).await.unwrap();
        let start = sim.now();
        writer.create(ROOT, "a").await.unwrap();
        let took = sim.now().since(start);
        assert!(took <= Duration::from_secs(2), "{took:?}");
        let start = sim.now();
        writer.create(ROOT, "b").await.unwrap();
        assert!(sim.now().since(start) < Duration::from_millis(100));
    });
}

/// It was asleep, and a change right after the start waits for it in vain.
#[test]
fn who_could_not_be_told_is_told_after_the_next_restart() {
    let (mut cell, client) = restarted(|_| {});
    let (writer, sim, away) = (cell.client(2), cell.sim.clone(), client.endpoint.local_addr());
    cell.sim.set_network(move |_, _, to, _| match to == away {
        true => Fate::Lost,
        false => Fate::Arrives(Duration::ZERO),
    });
    cell.run(async move { writer.create(ROOT, "a").await.unwrap() });
    cell.sim.set_network(|_, _, _, _| Fate::Arrives(Duration::ZERO));
    cell.restart(|_| {});
    cell.run(async move {
        sim.sleep_until(sim.now() + Duration::from_secs(5)).await;
        assert_eq!(client.heard(), [Heard::Reset]);
    });
}

/// The second restart must not find what the first has told already, nor lose who came since.
#[test]
fn restarts_do_not_add_up() {
    let (mut cell, client) = restarted(|_| {});
    for _ in 0..3 {
        let (sim, waits) = (cell.sim.clone(), Duration::from_secs(5));
        let client_ref = &client;
        let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let clock = sim.clone();
        cell.run(async move { clock.sleep_until(clock.now() + waits).await });
        heard.lock().unwrap().extend(client_ref.heard());
        assert_eq!(*heard.lock().unwrap(), [Heard::Reset]);
        cell.restart(|_| {});
        cell.run(async move { sim.sleep_until(sim.now() + waits).await });
        assert_eq!(client.heard(), [], "it holds nothing any longer");
        let status = client.peer.clone();
        cell.run(async move {
            status.rpc(&afs_wire::rxafs::FetchStatus { fid: ROOT }).await.unwrap();
        });
        client.heard();
        cell.restart(|_| {});
    }
}

/// The list was synced when something else was to be done, which could take a minute: a power loss took as much of it, and those who
/// were in it went on reading what others had changed.
#[test]
fn who_held_promises_for_two_seconds_is_told_after_a_power_loss() {
    for seed in 0..20 {
        let mut cell = Cell::new();
        let client = cell.client(1);
        let sim = cell.sim.clone();
        let client = cell.run(async move {
            client.status(ROOT).await.unwrap();
            sim.sleep_until(sim.now() + Duration::from_secs(2)).await;
            client.heard();
            client
        });
        cell.restart_after_power_loss(seed);
        let sim = cell.sim.clone();
        cell.run(async move {
            sim.sleep_until(sim.now() + Duration::from_secs(5)).await;
            assert_eq!(client.heard(), [Heard::Reset], "seed {seed}");
        });
    }
}

/// It was promised something all the same, and once a write had failed the list never had it: after a restart the client read what
/// others had changed.
#[test]
fn a_client_that_cannot_be_written_down_gets_no_promise_until_it_can() {
    for is_full in [false, true] {
        let cell = Cell::new();
        let client = cell.client(1);
        let (sim, state) = (cell.sim.clone(), cell.state.clone());
        cell.run(async move {
            if is_full {
                state.set_capacity(0);
            } else {
                state.set_cut(Some(Cut::ErrorsFrom(0)));
            }
            for _ in 0..3 {
                let callback = client.status(ROOT).await.unwrap().callback;
                assert_eq!(callback.kind, CallBackType::DROPPED, "full: {is_full}");
                sim.sleep_until(sim.now() + Duration::from_secs(2)).await;
            }
            state.set_cut(None);
            state.set_capacity(1 << 20);
            sim.sleep_until(sim.now() + Duration::from_secs(2)).await;
            let callback = client.status(ROOT).await.unwrap().callback;
            assert_eq!(callback.kind, CallBackType::SHARED, "full: {is_full}");
        });
    }
}
