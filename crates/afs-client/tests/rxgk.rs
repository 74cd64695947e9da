//! A cell with a key for rxgk: what its users write cannot be read on the way, and nobody on the way takes them back to rxkad.

use std::collections::BTreeSet;
use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::data::WRITE;
use crate::support::{ALICE, CELL, Cell, LOCATION, NOBODY, ROOT_CELL, USER_VOLUME, cell_root, content, put};
use afs_client::join::Refused;
use afs_client::users::Holder;
use afs_client::{Client, Error, Fid};
use afs_sim::{Fate, Nat};
use afs_wire::Errno;
use afs_wire::abort::RXGK_NOTAUTH;
use afs_wire::rxafs::{AfsCbFids, AfsCbs};
use afs_wire::rxafscb::{CallBack, InitCallBackState, Rxafscb};
use afs_wire::vl::Vl;
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Runtime, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rx_security::keys::{EncType, Key};
use rx_security::rxgk::{Dialect, Form, Token};
use rx_security::{Identity, KeySet, Level, UnixTime, ticket};
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
            let fid = Fid { volume: USER_VOLUME, ..cell_root(&client).await };
            let (_, file) = client.create_and_open(ALICE, (fid, b"x"), 0o644, WRITE, true).await.unwrap();
            file.write(0, Bytes::from_static(DATA)).await.unwrap();
            file.flush().await.unwrap();
        }
    });
    let users =
        |site: usize| classes_to(&seen, cell.sites[site].address).into_iter().filter(|class| *class != 0);
    assert_eq!([0, 1].map(|site| users(site).collect::<Vec<_>>()), [[4], [2]]);
}

/// A client that makes no tokens itself.
fn without_users(cell: &Cell) -> Client {
    cell.client_with(afs_client::Config { users: Vec::new(), keys: Vec::new(), ..cell.config(1) })
}

/// A token of alice's as a device gets it: for ten hours.
fn alices(client: &Client, keys: &KeySet) -> Token {
    let now = UnixTime::of(client.runtime().wall_clock());
    let times = (now, now.plus(Duration::from_secs(36_000)));
    let form = Form { dialect: Dialect::OURS, kind: EncType::AES256, level: Level::Crypt };
    let (alice, random) = (Identity::parse("alice").unwrap(), &mut StdRng::seed_from_u64(1));
    Token::of_user(keys, form, &alice, CELL, times, random).unwrap()
}

/// What a cell says to a device, one time after the other.
enum Says {
    Nothing,
    Token,
    Revoked,
}

/// A laptop starts where the cell is not reached.
#[test]
fn a_devices_user_does_nothing_until_the_cell_gives_a_token_nor_after_it_has_revoked_the_device() {
    let cell = with_volumes(Cell::with_rxgk(1, true));
    let (client, keys) = (without_users(&cell), cell.keys().clone());
    cell.run(async move {
        let mut says = [Says::Nothing, Says::Nothing, Says::Token, Says::Token, Says::Revoked].into_iter();
        let asked = Arc::new(AtomicUsize::new(0));
        let (asking, count) = (client.clone(), Arc::clone(&asked));
        let ask = move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            ready(match says.next() {
                Some(Says::Token) => Ok(alices(&asking, &keys)),
                Some(Says::Nothing) => Err(Refused { why: "no answer".to_owned(), is_final: false }),
                Some(Says::Revoked) | None => Err(Refused { why: "revoked".to_owned(), is_final: true }),
            })
        };
        client.log_in_by_device(ALICE, (CELL, "alice"), ask).await.unwrap();
        let root = cell_root(&client).await;
        let make = async |name: &str| {
            let made = client.create_and_open(ALICE, (root, name.as_bytes()), 0o644, WRITE, true).await;
            made.map(drop).map_err(|error| matches!(error, Error::TokenRefused { is_device: true, .. }))
        };
        assert_eq!((client.tokens(ALICE).len(), make("a").await), (0, Err(true)));
        // It is asked again every ten seconds, and then when half of ten hours is over.
        let later = async |seconds| {
            let runtime = client.runtime();
            runtime.sleep_until(runtime.now() + Duration::from_secs(seconds)).await;
            asked.load(Ordering::Relaxed)
        };
        assert_eq!((later(25).await, client.tokens(ALICE).len(), make("a").await), (3, 1, Ok(())));
        assert_eq!(later(17_000).await, 3);
        assert_eq!((later(2_000).await, make("b").await), (4, Ok(())));
        assert_eq!(later(17_500).await, 5);
        assert_eq!((client.tokens(ALICE).len(), make("c").await), (0, Err(true)));
        // Anybody may read this. The error names what is wrong: it is not read as nobody instead.
        let error = client.status(ALICE, root).await.unwrap_err();
        assert_eq!(error.errno(), Errno::EKEYREJECTED, "{error}");
        assert!(
            error.to_string().starts_with("this device has no token of alice's that servers of "),
            "{error}"
        );
        client.status(NOBODY, root).await.expect("who has no token is nobody");
        assert_eq!(client.log_out(ALICE, None), 1);
        client.status(ALICE, root).await.expect("and so is who has thrown it away");
    });
}

/// A server without rxgk, for a user whose tokens a device's key gets: they are of rxgk alone. Everybody may change things in these volumes.
#[test]
fn a_devices_user_does_nothing_as_nobody_at_a_server_without_rxgk() {
    let cell = with_volumes(Cell::with_rxgk(2, true));
    cell.set_rxgk(1, false);
    let seen = watch(&cell);
    let (client, keys) = (without_users(&cell), cell.keys().clone());
    cell.run({
        let client = client.clone();
        async move {
            let token = alices(&client, &keys);
            let ask = move |_| ready(Ok(token.clone()));
            client.log_in_by_device(ALICE, (CELL, "alice"), ask).await.unwrap();
            plant(client.clone()).await;
            let fid = Fid { volume: USER_VOLUME, ..cell_root(&client).await };
            let made = client.create_and_open(ALICE, (fid, b"x"), 0o644, WRITE, true).await;
            for error in [made.map(drop).unwrap_err(), client.status(ALICE, fid).await.unwrap_err()] {
                assert!(matches!(error, Error::NoRxgk { .. }), "{error}");
                assert!(error.to_string().contains("has no rxgk"), "{error}");
            }
        }
    });
    assert!(classes_to(&seen, cell.sites[0].address).contains(&4));
    assert_eq!(classes_to(&seen, cell.sites[1].address), BTreeSet::new());
}

/// A user whose realm has the service for rxgk, at a server that does not have the newest key; or somebody on the way who says so.
#[test]
fn who_has_a_token_of_rxgk_that_a_server_refuses_is_told_so_and_reads_nothing_as_nobody() {
    let cell = with_volumes(Cell::with_rxgk(1, true));
    let seen = watch(&cell);
    let (client, keys) = (without_users(&cell), cell.keys().clone());
    let others = [Key::rxgk(9, EncType::AES256, &[8; 32]), Key::rxkad_krb5(9, EncType::AES256, &[8; 32])];
    let others = KeySet::of(others).unwrap();
    cell.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            let log_in = |keys: &KeySet| {
                let holder = Holder { name: "alice".to_owned(), id: None };
                let now = UnixTime::of(client.runtime().wall_clock());
                let times = (now, now.plus(Duration::from_secs(36_000)));
                let alice = Identity::parse("alice").unwrap();
                let ticket = ticket::for_user(&others, &alice, CELL, times, &mut StdRng::seed_from_u64(1));
                client.log_in(ALICE, CELL, holder, ticket.unwrap(), true).unwrap();
                assert!(client.log_in_by_rxgk(ALICE, CELL, alices(&client, keys)));
            };
            log_in(&others);
            for _ in 0..2 {
                let error = client.status(ALICE, root).await.unwrap_err();
                assert_eq!(error.errno(), Errno::EKEYREJECTED, "{error}");
                let said = error.to_string();
                assert!(said.contains("alice") && said.contains(CELL) && said.contains("aklog"), "{said}");
                client.read_dir(ALICE, root).await.unwrap_err();
            }
            client.status(NOBODY, root).await.expect("who has no token is nobody");
            log_in(&keys);
            client.status(ALICE, root).await.unwrap();
            // The third ends before servers take it: an ordinary token that has ended leaves its owner without one, as with OpenAFS.
            log_in(&others);
            client.runtime().sleep_until(client.now() + Duration::from_secs(36_001)).await;
            client.status(ALICE, root).await.expect("it has ended");
        }
    });
    assert!(!classes_to(&seen, cell.sites[0].address).contains(&2));
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

/// A file of alice's that a client has in its cache, under a promise.
fn promised(cell: &Cell, client: &Client) -> Fid {
    let client = client.clone();
    cell.run(async move {
        let root = cell_root(&client).await;
        let fid = client.create(ALICE, root, b"file", 0o644).await.unwrap().fid;
        put(&client, ALICE, fid, b"before").await;
        assert_eq!(content(&client, ALICE, fid).await, b"before");
        fid
    })
}

#[test]
fn a_file_server_takes_promises_back_by_rxgk() {
    let cell = with_volumes(Cell::with_rxgk(1, true));
    let (one, two) = (cell.client(1), cell.client(2));
    let fid = promised(&cell, &one);
    let seen = watch(&cell);
    cell.run({
        let (one, two) = (one.clone(), two.clone());
        async move {
            put(&two, ALICE, fid, b"after").await;
            assert!(one.cached_status(ALICE, fid).is_none(), "it heard of the change");
            assert_eq!(content(&one, ALICE, fid).await, b"after");
        }
    });
    // What the server begins, and what has data.
    let seen = seen.lock().unwrap();
    let calls = seen.iter().filter(|(from, to, datagram)| {
        (*from, *to) == (cell.sites[0].address, one.address()) && datagram[20] == 1 && datagram[21] & 1 != 0
    });
    assert_eq!(calls.map(|(_, _, datagram)| datagram[23]).collect::<BTreeSet<_>>(), [4].into());
}

/// Anybody can forge an address.
#[test]
fn who_forges_a_file_servers_address_takes_no_promise_back() {
    let mut cell = with_volumes(Cell::with_rxgk(1, true));
    let client = cell.client(1);
    let fid = promised(&cell, &client);
    cell.kill(0);
    let forger = cell.bind_without_service(0);
    let connection = forger.connect(client.address(), ServiceId(Rxafscb::SERVICE_ID), Box::new(Null));
    cell.run(async move {
        let fids = AfsCbFids::new(vec![fid.in_cell()]).unwrap();
        let refused = [
            connection.rpc(&CallBack { fids, callbacks: AfsCbs::default() }).await.err(),
            connection.rpc(&InitCallBackState {}).await.err(),
        ];
        for error in refused {
            let error = error.expect("nothing comes of it");
            assert!(error.to_string().contains(&RXGK_NOTAUTH.0.to_string()), "{error}");
        }
    });
    assert!(client.cached_status(ALICE, fid).is_some());
}

/// It has lost what it calls back with.
#[test]
fn a_file_server_that_starts_anew_is_believed_again_at_once() {
    let mut cell = with_volumes(Cell::with_rxgk(1, true));
    let (one, two) = (cell.client(1), cell.client(2));
    let fid = promised(&cell, &one);
    cell.kill(0);
    cell.start(0);
    cell.run(async move {
        put(&two, ALICE, fid, b"after").await;
        one.runtime().sleep_until(one.now() + Duration::from_secs(5)).await;
        assert_eq!(content(&one, ALICE, fid).await, b"after");
    });
}

/// A router gives the client another port: the server knows nothing to call that one with.
#[test]
fn a_client_whose_address_changes_hears_of_changes() {
    let cell = with_volumes(Cell::with_rxgk(1, true));
    let (one, two) = (cell.client(1), cell.client(2));
    let fid = promised(&cell, &one);
    cell.sim.move_port(one.address(), SocketAddr::new(one.address().ip(), 40_000));
    cell.run(async move {
        // A call tells the server.
        one.status(ALICE, cell_root(&one).await).await.unwrap();
        put(&two, ALICE, fid, b"after").await;
        one.runtime().sleep_until(one.now() + Duration::from_secs(5)).await;
        assert_eq!(content(&one, ALICE, fid).await, b"after");
    });
}

/// Homes and hotels have one address for all, mappings that end after half a minute, and routers that start anew now and then. A server learns of
/// a client's new port from its next call, which an idle client makes every three minutes.
#[test]
fn two_clients_behind_a_nat_router_see_a_change_within_two_seconds_after_ten_idle_minutes() {
    let cell = with_volumes(Cell::with_rxgk(1, true));
    let inside = [1, 2].map(|number| cell.config(number).bind.ip());
    let sim = cell.sim.clone();
    sim.set_nat(Nat::new(IpAddr::from([192, 0, 2, 1]), &inside, Duration::from_secs(30)));
    let (one, two, other) = (cell.client(1), cell.client(2), cell.client(3));
    let fid = promised(&cell, &one);
    cell.run(async move {
        let pass = |time| sim.sleep_until(sim.now() + time);
        for (restarts, text) in [(false, b"first".as_slice()), (true, b"second")] {
            for client in [&one, &two] {
                client.status(ALICE, fid).await.unwrap();
            }
            pass(Duration::from_secs(200)).await;
            if restarts {
                sim.restart_nat();
            }
            pass(Duration::from_secs(400)).await;
            let began = other.now();
            put(&other, ALICE, fid, text).await;
            let took = other.now().since(began);
            assert!(took < Duration::from_secs(1), "the server waits for a client: {took:?}");
            sim.sleep_until(began + Duration::from_millis(1500)).await;
            for client in [&one, &two] {
                let known = client.cached_status(ALICE, fid);
                assert!(known.is_none(), "it heard of the change, restarts: {restarts}");
                assert_eq!(content(client, ALICE, fid).await, text);
            }
            let took = other.now().since(began);
            assert!(took < Duration::from_secs(2), "{took:?}, restarts: {restarts}");
        }
    });
}

/// A router starts anew while a file is on its way. A server learns of the new port from a request alone, and who only takes data sends none.
#[test]
fn a_file_that_is_being_read_comes_within_six_seconds_when_a_router_gives_its_reader_another_port() {
    let cell = with_volumes(Cell::with_rxgk(1, true));
    let sim = cell.sim.clone();
    sim.set_nat(Nat::new(IpAddr::from([192, 0, 2, 1]), &[cell.config(1).bind.ip()], Duration::from_secs(30)));
    let (one, other) = (cell.client(1), cell.client(2));
    let fid = promised(&cell, &other);
    cell.run(async move {
        let long: &'static [u8] = vec![7; 64 << 20].leak();
        put(&other, ALICE, fid, long).await;
        let began = one.now();
        let (mut length, mut has_restarted) = (0, false);
        while length < long.len() {
            // One call, as that of a file that is not long.
            let mut fetch = one.fetch(ALICE, fid, length as u64, 1 << 30).await.unwrap();
            while let Ok(Some(piece)) = fetch.next().await {
                length += piece.len();
                if length > long.len() / 4 && !std::mem::replace(&mut has_restarted, true) {
                    sim.restart_nat();
                }
            }
        }
        let took = one.now().since(began);
        assert!(took > Duration::from_secs(1), "nothing was lost: {took:?}");
        assert!(took < Duration::from_secs(6), "{took:?}");
    });
}
