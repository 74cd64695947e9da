//! A cell with a key for rxgk: what its users write cannot be read on the way, and nobody on the way takes them back to rxkad.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::data::WRITE;
use crate::support::{ALICE, Cell, LOCATION, NOBODY, ROOT_CELL, USER_VOLUME, cell_root, content, put};
use afs_client::Client;
use afs_sim::Fate;
use afs_wire::vl::Vl;
use bytes::Bytes;
use rx::ServiceConfig;
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rx_security::Level;
use rxgen::{Abort, Interface};

/// What is looked for in what went over the network.
const NAME: &str = "planted-name-4711";
const DATA: &[u8] = b"planted bytes of nobody's business";

/// All that went over the network: from, to, and the datagram.
type Seen = Arc<Mutex<Vec<(SocketAddr, SocketAddr, Vec<u8>)>>>;

fn watch(cell: &Cell) -> Seen {
    let seen = Seen::default();
    let all = Arc::clone(&seen);
    cell.sim.set_network(move |_, from, to, datagram| {
        all.lock().unwrap().push((from, to, datagram.to_vec()));
        Fate::Arrives(Duration::ZERO)
    });
    seen
}

/// True if some datagram has these bytes.
fn has(seen: &Seen, bytes: &[u8]) -> bool {
    seen.lock()
        .unwrap()
        .iter()
        .any(|(_, _, datagram)| datagram.windows(bytes.len()).any(|window| window == bytes))
}

/// The security classes of what went to an address.
fn classes_to(seen: &Seen, address: SocketAddr) -> BTreeSet<u8> {
    let seen = seen.lock().unwrap();
    seen.iter()
        .filter(|(_, to, _)| *to == address)
        .filter_map(|(_, _, datagram)| datagram.get(23).copied())
        .collect()
}

/// Alice makes a file in the root directory of the cell, and writes it.
async fn plant(client: Client) {
    let root = cell_root(&client).await;
    let (_, file) = client.create_and_open(ALICE, (root, NAME.as_bytes()), 0o644, WRITE, true).await.unwrap();
    file.write(0, Bytes::from_static(DATA)).await.unwrap();
    file.flush().await.unwrap();
    assert_eq!(content(&client, ALICE, file.fid()).await, DATA);
}

fn with_volumes(cell: Cell) -> Cell {
    cell.make_volume(0, "root.cell", ROOT_CELL);
    let second = cell.sites.len() - 1;
    cell.make_volume(second, "user", USER_VOLUME);
    cell
}

#[test]
fn neither_names_nor_data_can_be_read_on_the_way() {
    let (secret, clear) = (with_volumes(Cell::with_rxgk(1, true)), with_volumes(Cell::with_rxgk(1, false)));
    let seen = watch(&secret);
    secret.run(plant(secret.client(1)));
    assert!(!has(&seen, NAME.as_bytes()) && !has(&seen, DATA));
    assert!(!has(&seen, b"root.cell"), "the names of volumes neither");
    assert!(classes_to(&seen, secret.sites[0].address).contains(&4));
    // The search can find them.
    let seen = watch(&clear);
    let config = clear.config(1);
    clear.run(plant(clear.client_with(afs_client::Config { level: Level::Clear, ..config })));
    assert!(has(&seen, NAME.as_bytes()) && has(&seen, DATA) && has(&seen, b"root.cell"));
}

/// A file server of OpenAFS's in a cell that has a key for rxgk.
#[test]
fn a_server_that_has_no_rxgk_is_called_by_rxkad_and_no_other_is() {
    let cell = with_volumes(Cell::with_rxgk(2, true));
    cell.set_rxgk(1, false);
    let seen = watch(&cell);
    let client = cell.client(1);
    cell.run({
        let client = client.clone();
        async move {
            plant(client.clone()).await;
            let fid = afs_client::Fid { volume: USER_VOLUME, ..cell_root(&client).await };
            let (_, file) = client.create_and_open(ALICE, (fid, b"x"), 0o644, WRITE, true).await.unwrap();
            file.write(0, Bytes::from_static(DATA)).await.unwrap();
            file.flush().await.unwrap();
        }
    });
    let users =
        |site: usize| classes_to(&seen, cell.sites[site].address).into_iter().filter(|class| *class != 0);
    assert_eq!([0, 1].map(|site| users(site).collect::<Vec<_>>()), [[4], [2]]);
}

/// Somebody on the way takes the place of the database servers, with what anybody can forge: answers without a security class. The client's
/// calls to the file server stay in rxgk, also when what it has learnt before is old.
#[test]
fn who_forges_answers_of_the_database_servers_takes_nobody_back_to_rxkad() {
    let mut cell = with_volumes(Cell::with_rxgk(1, true));
    let client = cell.client(1);
    let fid = cell.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            let (found, _) =
                client.create_and_open(NOBODY, (root, b"file"), 0o644, WRITE, true).await.unwrap();
            found.fid
        }
    });
    cell.databases.kill();
    let forger = afs_lab::sim::bind(&cell.sim, SocketAddr::from((LOCATION, 7003)));
    for id in [Vl::SERVICE_ID, afs_wire::rxgk::Rxgk::SERVICE_ID] {
        let service = Service {
            id: ServiceId(id),
            security: vec![Arc::new(Null)],
            check_reach: false,
            upgrades_to: None,
            limits: CallLimits::default(),
        };
        forger.add_service(ServiceConfig::new(service, |_| async { Err(Abort::OPCODE) }));
    }
    let seen = watch(&cell);
    cell.run({
        let client = client.clone();
        async move {
            put(&client, ALICE, fid, DATA).await;
            client.runtime().sleep_until(client.now() + Duration::from_secs(1800)).await;
            put(&client, ALICE, fid, DATA).await;
        }
    });
    assert!(!has(&seen, DATA));
    let classes = classes_to(&seen, cell.sites[0].address);
    assert!(classes.contains(&4) && !classes.contains(&2), "{classes:?}");
}
