//! A server that ends and starts again: who held promises is told, and before a change that would have to be told to it.

mod support;

use std::time::Duration;

use rx::Runtime;
use support::client::Heard;
use support::{Cell, ROOT};

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
    let (cell, client) = restarted(|config| config.promises_file = None);
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
