//! Which of a cell's database servers does what is asked, when others are silent, out of order or not to be trusted. In virtual
//! time, so that silence costs none.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_admin::{DatabaseServers, Error, Login};
use afs_sim::Sim;
use afs_wire::abort::{UNOQUORUM, UNOSERVERS, UNOTSYNC, VL_IO, VL_NAMEEXIST, VL_NOENT};
use afs_wire::vl::{GetNewVolumeId, Vl};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Endpoint, EndpointConfig, Runtime, ServerCall, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, ServerSecurity};
use rx_security::keys::{EncType, Key};
use rx_security::{KeySet, Level, UnixTime, rxkad};
use rxgen::{Abort, Interface};

/// What a server does with every call.
#[derive(Clone, Copy)]
enum Does {
    /// Gives its own number as the id of a new volume.
    Answers,
    /// Refuses with a code.
    Says(Abort),
    /// Refuses with a code so many times, then answers.
    SaysAtFirst(Abort, u32),
    /// Nothing at all.
    IsSilent,
}
use Does::{Answers, IsSilent, Says, SaysAtFirst};

/// The database servers 10.0.0.1, 10.0.0.2 and so on, and one who calls them.
struct Cell {
    sim: Sim,
    servers: Vec<Endpoint>,
    caller: Endpoint,
    does: Arc<Mutex<Vec<Does>>>,
    /// The servers that were asked, in this order.
    asked: Arc<Mutex<Vec<u32>>>,
}

fn machine(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number as u8)
}

fn keys(secret: u8) -> KeySet {
    KeySet::of([Key::rxkad_krb5(1, EncType::AES256, &[secret; 32])]).unwrap()
}

impl Cell {
    fn new(does: &[Does]) -> Self {
        let with_keys: Vec<_> = does.iter().map(|does| (*does, keys(1))).collect();
        Self::with_keys(&with_keys)
    }

    fn with_keys(servers: &[(Does, KeySet)]) -> Self {
        let sim = Sim::new(Duration::from_millis(1));
        let options = || EndpointConfig { publish_every: None, shards: Some(1), ..EndpointConfig::default() };
        let bind = |address: (Ipv4Addr, u16)| {
            Endpoint::bind_with(Arc::new(sim.clone()), SocketAddr::from(address), options()).unwrap()
        };
        let does = Arc::new(Mutex::new(servers.iter().map(|(does, _)| *does).collect::<Vec<_>>()));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let endpoints = servers.iter().enumerate().map(|(index, (_, keys))| {
            let endpoint = bind((machine(index + 1), Vl::PORT));
            let rxkad = rxkad::ServerOptions::of_cell("one.test");
            let rxkad = rxkad::Server::new(keys.clone(), rxkad, Arc::new(|| UnixTime(1_700_000_000)));
            let security: Vec<Arc<dyn ServerSecurity>> = vec![Arc::new(Null), Arc::new(rxkad)];
            let limits = CallLimits::default();
            let id = ServiceId(Vl::SERVICE_ID);
            let service = Service { id, security, check_reach: false, upgrades_to: None, limits };
            let (does, asked, said) = (Arc::clone(&does), Arc::clone(&asked), Arc::new(AtomicU32::new(0)));
            endpoint.add_service(ServiceConfig::new(service, move |mut call: ServerCall| {
                let (does, said) = (does.lock().unwrap()[index], Arc::clone(&said));
                asked.lock().unwrap().push(index as u32 + 1);
                async move {
                    call.read_to_end(100).await.map_err(|error| Abort(error.code().0))?;
                    match does {
                        Says(code) => return Err(code),
                        SaysAtFirst(code, times) if said.fetch_add(1, Ordering::Relaxed) < times => {
                            return Err(code);
                        }
                        Answers | SaysAtFirst(..) => {}
                        IsSilent => unreachable!("it has no port"),
                    }
                    let number = (index as u32 + 1).to_be_bytes();
                    call.write_all(&number).await.map_err(|error| Abort(error.code().0))
                }
            }));
            endpoint
        });
        let servers: Vec<_> = endpoints.collect();
        let cell = Self { caller: bind((machine(100), 4000)), servers, does, asked, sim };
        for (index, does) in cell.does.lock().unwrap().iter().enumerate() {
            if matches!(does, IsSilent) {
                cell.sim.cut_off(cell.servers[index].local_addr());
            }
        }
        cell
    }

    fn database(&self, login: &Login) -> Arc<DatabaseServers> {
        let machines: Vec<_> = (1..=self.servers.len()).map(machine).collect();
        Arc::new(DatabaseServers::new::<Vl>(&self.caller, &machines, login))
    }

    /// Asks for an id: which server gave it.
    fn ask(&self, database: &Arc<DatabaseServers>) -> Result<u32, Error> {
        let database = Arc::clone(database);
        let ask = async move { database.call(&GetNewVolumeId { bump_count: 1 }).await };
        self.sim.block_on(ask).map(|reply| reply.new_volid.0)
    }

    /// Returns the servers that were asked since the last time.
    fn asked(&self) -> Vec<u32> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

#[test]
fn the_next_server_does_what_the_first_cannot() {
    for first in [IsSilent, Says(UNOTSYNC), Says(UNOQUORUM)] {
        let cell = Cell::new(&[first, Answers]);
        assert_eq!(cell.ask(&cell.database(&Login::anonymous())), Ok(2));
    }
}

#[test]
fn an_answer_is_final_though_others_might_say_something_else() {
    let cell = Cell::new(&[Says(VL_NOENT), Answers]);
    let error = cell.ask(&cell.database(&Login::anonymous())).unwrap_err();
    assert!(matches!(error, Error::Call(_)) && error.code() == VL_NOENT, "{error}");
    assert!(!error.may_be_done());
    assert_eq!(cell.asked(), [1]);
}

#[test]
fn a_refusal_after_an_attempt_that_may_have_been_made_is_no_plain_refusal() {
    // A server dies after its store has made the change, or does not know whether it has. The next one refuses, as the change is there.
    // Or its quorum is gone before it knows: that is said by OpenAFS's sync site.
    for first in [IsSilent, Says(VL_IO), Says(UNOQUORUM)] {
        let cell = Cell::new(&[first, Says(VL_NAMEEXIST)]);
        let error = cell.ask(&cell.database(&Login::anonymous())).unwrap_err();
        assert_eq!(error.code(), VL_NAMEEXIST);
        assert!(matches!(error, Error::Repeated(_)) && error.may_be_done(), "{error}");
    }
    // This one has not begun with it.
    let cell = Cell::new(&[Says(UNOTSYNC), Says(VL_NAMEEXIST)]);
    let error = cell.ask(&cell.database(&Login::anonymous())).unwrap_err();
    assert!(matches!(error, Error::Call(_)) && !error.may_be_done(), "{error}");
}

#[test]
fn a_change_of_which_one_server_does_not_know_may_be_done_though_no_other_takes_changes() {
    let cell = Cell::new(&[Says(VL_IO), Says(UNOQUORUM)]);
    let error = cell.ask(&cell.database(&Login::anonymous())).unwrap_err();
    assert!(matches!(error, Error::NoServer { .. }) && error.may_be_done(), "{error}");
    assert!(error.to_string().contains("may have done it"), "{error}");
    let cell = Cell::new(&[Says(UNOTSYNC), Says(UNOQUORUM)]);
    let error = cell.ask(&cell.database(&Login::anonymous())).unwrap_err();
    assert!(!error.may_be_done(), "{error}");
}

#[test]
fn the_server_that_takes_changes_is_asked_first_the_next_time() {
    let cell = Cell::new(&[Says(UNOTSYNC), IsSilent, Answers]);
    let database = cell.database(&Login::anonymous());
    assert_eq!((cell.ask(&database), cell.asked()), (Ok(3), vec![1, 3]));
    let before = cell.sim.now();
    assert_eq!((cell.ask(&database), cell.asked()), (Ok(3), vec![3]));
    assert!(cell.sim.now().since(before) < Duration::from_secs(1), "nobody is waited for");
}

#[test]
fn an_election_is_waited_for() {
    let cell = Cell::new(&[SaysAtFirst(UNOQUORUM, 3), SaysAtFirst(UNOQUORUM, 3)]);
    assert_eq!(cell.ask(&cell.database(&Login::anonymous())), Ok(1));
}

#[test]
fn an_election_that_does_not_end_is_told_of_after_a_while() {
    let cell = Cell::new(&[Says(UNOQUORUM)]);
    let before = cell.sim.now();
    let error = cell.ask(&cell.database(&Login::anonymous())).unwrap_err();
    assert_eq!(error.code(), UNOQUORUM);
    let waited = cell.sim.now().since(before);
    assert!(waited >= Duration::from_secs(10) && waited < Duration::from_secs(30), "{waited:?}");
}

#[test]
fn a_server_that_has_another_key_is_passed_over_and_named_when_there_is_no_other() {
    let login = |secret| {
        let clock = Arc::new(|| UnixTime(1));
        Login::local_superuser(&keys(secret), Level::Crypt, clock, &mut StdRng::seed_from_u64(1)).unwrap()
    };
    let cell = Cell::with_keys(&[(Answers, keys(2)), (Answers, keys(1))]);
    assert_eq!(cell.ask(&cell.database(&login(1))), Ok(2));
    let error = cell.ask(&cell.database(&login(3))).unwrap_err();
    assert!(matches!(error, Error::NoServer { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("10.0.0.1:7003") && text.contains("10.0.0.2:7003"), "{text}");
}

#[test]
fn when_all_are_away_the_message_names_them() {
    let cell = Cell::new(&[IsSilent, Says(UNOTSYNC), IsSilent]);
    let error = cell.ask(&cell.database(&Login::anonymous())).unwrap_err();
    let text = error.to_string();
    for name in ["GetNewVolumeId", "10.0.0.1:7003", "10.0.0.2:7003", "10.0.0.3:7003", "may have done it"] {
        assert!(text.contains(name), "{name} is not in: {text}");
    }
    assert_eq!(error.code(), UNOTSYNC, "what one has said counts more than silence");
}

#[test]
fn a_server_that_was_away_is_asked_again_before_a_call_is_given_up() {
    let cell = Cell::new(&[Says(UNOTSYNC), Says(UNOTSYNC)]);
    let database = cell.database(&Login::anonymous());
    // The second one dies, and comes back as the one that takes changes.
    let address = cell.servers[1].local_addr();
    cell.sim.set_network(move |_, from, to, _| {
        if from == address || to == address {
            afs_sim::Fate::Lost
        } else {
            afs_sim::Fate::Arrives(Duration::ZERO)
        }
    });
    assert!(cell.ask(&database).is_err());
    cell.sim.set_network(|_, _, _, _| afs_sim::Fate::Arrives(Duration::ZERO));
    cell.does.lock().unwrap()[1] = Answers;
    assert_eq!(cell.ask(&database), Ok(2));
}

/// The only database server is started again in the middle of an operation, which takes it a second.
#[test]
fn an_operation_outlives_a_restart_of_the_only_database_server() {
    let cell = Cell::new(&[Answers]);
    let database = cell.database(&Login::anonymous());
    let address = cell.servers[0].local_addr();
    let begins = cell.sim.now();
    let away_for = |time: Duration| {
        let back = cell.sim.now() + time;
        cell.sim.set_network(move |now, from, to, _| {
            match (from == address || to == address) && now < back {
                true => afs_sim::Fate::Lost,
                false => afs_sim::Fate::Arrives(Duration::ZERO),
            }
        });
    };
    away_for(Duration::from_secs(1000));
    assert!(cell.ask(&database).is_err(), "one that never answered is not waited for");
    assert!(cell.sim.now().since(begins) < Duration::from_secs(15));
    away_for(Duration::ZERO);
    assert_eq!(cell.ask(&database), Ok(1));
    // Longer than a call waits for a silent server.
    away_for(Duration::from_secs(14));
    assert_eq!(cell.ask(&database), Ok(1));
    away_for(Duration::from_secs(1000));
    let before = cell.sim.now();
    let error = cell.ask(&database).unwrap_err();
    assert!(error.may_be_done(), "{error}");
    assert!(cell.sim.now().since(before) < Duration::from_secs(60), "it is told of after a while");
}

#[test]
fn a_cell_without_servers_is_told_of() {
    let cell = Cell::new(&[]);
    let error = cell.ask(&cell.database(&Login::anonymous())).unwrap_err();
    assert_eq!(error.code(), UNOSERVERS);
    assert!(error.to_string().contains("CellServDB"), "{error}");
}
