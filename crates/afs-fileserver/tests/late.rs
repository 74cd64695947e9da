//! A client that was killed, and its next start at the same address: what the one before had sent comes late.

use std::time::Duration;

use crate::support::client::{Client, Kind};
use crate::support::{Cell, ROOT};
use afs_sim::{Fate, Sim};
use rx::Runtime;
use rx_proto::packet::PacketType;

async fn pass(sim: &Sim, seconds: u64) {
    sim.sleep_until(sim.now() + Duration::from_secs(seconds)).await;
}

/// Kills the client and starts it again.
fn next_start(cell: &Cell, client: Client) -> Client {
    cell.sim.cut_off(client.endpoint.local_addr());
    client.endpoint.shut_down();
    Client::of_kind(&cell.sim, &cell.endpoint, 1, Kind::default())
}

/// The server has begun to carry out the store, and waits for the rest of its data.
#[test]
fn a_store_whose_data_come_late_is_not_carried_out_once_the_next_start_has_changed_something() {
    for changes in [false, true] {
        let cell = Cell::new();
        let (client, sim) = (cell.client(1), cell.sim.clone());
        let own = client.endpoint.local_addr();
        let (client, fid) = cell.run(async move {
            let fid = client.create(ROOT, "file").await.unwrap().fid;
            client.store(fid, 0, b"text", 4).await.unwrap();
            (client, fid)
        });
        let mut epoch = None;
        cell.sim.set_network(move |_, from, _, datagram| {
            let (kind, is_of_call) = (PacketType(datagram[20]), datagram[21] & 1 != 0);
            if from != own || !is_of_call || datagram[..4] != *epoch.get_or_insert(datagram[..4].to_vec()) {
                return Fate::Arrives(Duration::ZERO);
            }
            let is_first = datagram[12..16] == [0, 0, 0, 1];
            match kind {
                PacketType::DATA | PacketType::PIECE if !is_first => Fate::Arrives(Duration::from_secs(5)),
                // It is killed, and says nothing of it.
                PacketType::ABORT => Fate::Lost,
                _ => Fate::Arrives(Duration::ZERO),
            }
        });
        let client = cell.run(async move {
            tokio::select! {
                stored = client.store(fid, 0, &[b'x'; 24_000], 24_000) => panic!("it has not waited: {stored:?}"),
                () = pass(&sim, 1) => {}
            }
            client
        });
        let (next, sim) = (next_start(&cell, client), cell.sim.clone());
        cell.run(async move {
            if changes {
                next.create(ROOT, "other").await.unwrap();
            }
            pass(&sim, 10).await;
            let (bytes, _) = next.fetch(fid, 0, 100_000).await.unwrap();
            assert_eq!(
                bytes.len(),
                if changes { 4 } else { 24_000 },
                "the next start changes something: {changes}"
            );
        });
    }
}

/// It is so far away, and asked so often for its many calls, that the server does not know which question an answer is for.
#[test]
fn the_next_start_of_a_client_changes_things_over_a_long_path_too() {
    let cell = Cell::new();
    let client = cell.client(1);
    let client = cell.run(async move {
        client.create(ROOT, "before").await.unwrap();
        client
    });
    let (next, sim) = (next_start(&cell, client), cell.sim.clone());
    let mut count = 0;
    cell.sim.set_network(move |_, _, _, _| {
        count += 1;
        Fate::Arrives(Duration::from_millis(700 + count * 77 % 300))
    });
    cell.run(async move {
        let began = sim.now();
        let make = |name| next.create(ROOT, name);
        tokio::select! {
            () = pass(&sim, 60) => panic!("they wait for ever"),
            made = async {
                tokio::join!(make("0"), make("1"), make("2"), make("3"), make("4"), make("5"), make("6"), make("7"))
            } => drop(made.0.unwrap()),
        }
        assert!(sim.now().since(began) > Duration::from_secs(10), "no answer was told from the others");
    });
}
