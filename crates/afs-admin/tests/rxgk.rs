//! Tokens of rxgk from database servers: who has a ticket gets one, and who has one learns which file servers have rxgk. The ticket is one
//! of MIT Kerberos's KDC, of user1@LAB.TEST for afs-rxgk/_afs.lab.test; the realm is no more.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use afs_admin::negotiation::{Ticket, negotiate};
use afs_admin::offers::for_linux;
use afs_admin::{DatabaseServers, Error, Login, Offers};
use afs_celldb::caller::NoAuth;
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::tokens::TokenService;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Database, rx_service};
use afs_sim::Sim;
use afs_wire::Uuid;
use afs_wire::rxgk::{AFSCombineTokens, Rxgk};
use afs_wire::vl::Vl;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Endpoint, EndpointConfig};
use rx_proto::security::{Null, ServerSecurity};
use rx_security::keys::{EncType, Key, KeyType};
use rx_security::rxgk::{self, Dialect, Secret, Token};
use rx_security::{KeySet, Level, UnixTime};

const DATABASE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const WITH_RXGK: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const WITHOUT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

/// A time at which the ticket is good.
const NOW: UnixTime = UnixTime(1_795_695_000);
const TICKET: &str = include_str!("captures/ticket.hex");
const SERVICE_KEY: &str = "f6e349229eb5b78feb47554165b6d1d85acb8148bba9ab18de738dc34cc6e671";
const SESSION_KEY: &str = "bd98eb5386db18bad20c830ca04ea87757f44632a703794fffcdbb4b447e5819";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn keys(service_key: &[u8]) -> KeySet {
    let service = Key { kind: KeyType::NEGOTIATION, ..Key::rxkad_krb5(2, EncType::AES256, service_key) };
    KeySet::of([Key::rxgk(1, EncType::AES256, &[7; 32]), service]).unwrap()
}

fn bind(sim: &Sim, address: Ipv4Addr, port: u16) -> Endpoint {
    let config = EndpointConfig { publish_every: None, shards: Some(1), ..EndpointConfig::default() };
    Endpoint::bind_with(Arc::new(sim.clone()), SocketAddr::from((address, port)), config).unwrap()
}

/// A database server with two file servers in its database.
async fn serve(sim: Sim, keys: KeySet, now: UnixTime) -> Endpoint {
    let endpoint = bind(&sim, DATABASE, 7003);
    let vldb = Arc::new(Database::<Vldb>::open(Arc::new(MemoryStore::new())).await.unwrap());
    for (uuid, address, has_rxgk) in [(2, WITH_RXGK, true), (3, WITHOUT, false)] {
        let addresses = [address.to_bits()];
        let planned =
            move |vldb: &Vldb, rows: &mut _| vldb.register([uuid; 16], &addresses, Some(has_rxgk), rows);
        vldb.change(1, planned).await.unwrap();
    }
    let options = rxgk::ServerOptions::of_cell("lab.test");
    let rxgk = rxgk::Server::new(Dialect::OURS, keys.clone(), options, Arc::new(move || now), [1; 32]);
    let security: Vec<Arc<dyn ServerSecurity>> = vec![Arc::new(Null), Arc::new(rxgk)];
    let keys = Arc::new(keys);
    let given = Arc::new(move || Arc::clone(&keys));
    let tokens = TokenService::new(Arc::clone(&vldb), given, Arc::new(move || now), Arc::new(sim));
    let vl = VlService::new(vldb, Arc::new(NoAuth), Arc::new(|| 1), RestrictedQuery::AnyUser);
    endpoint.add_service(rx_service::<Rxgk, _>(Arc::new(tokens), security.clone()));
    endpoint.add_service(rx_service::<Vl, _>(Arc::new(vl), security));
    endpoint
}

/// The token that user1 gets of a server with this key, at a time by its clock.
fn ask(sim: &Sim, caller: &Endpoint, service_key: &[u8], now: UnixTime) -> (Endpoint, Result<Token, Error>) {
    let (world, keys, caller) = (sim.clone(), keys(service_key), caller.clone());
    sim.block_on(async move {
        let server = serve(world, keys, now).await;
        let servers = DatabaseServers::new::<Rxgk>(&caller, &[DATABASE], &Login::anonymous());
        let ticket = bytes(TICKET);
        let session = Secret::new(EncType::AES256, &bytes(SESSION_KEY)).unwrap();
        let ticket = Ticket { bytes: &ticket, session, principal: "user1", realm: "LAB.TEST" };
        let token = negotiate(&servers, ticket, NOW, &mut StdRng::seed_from_u64(1)).await;
        (server, token)
    })
}

#[test]
fn who_shows_a_ticket_gets_a_token_and_learns_which_servers_have_rxgk() {
    let sim = Sim::new(Duration::from_millis(1));
    let caller = bind(&sim, Ipv4Addr::new(10, 0, 0, 9), 4000);
    let (_server, token) = ask(&sim, &caller, &bytes(SERVICE_KEY), NOW);
    let token = token.unwrap();
    assert_eq!((token.level, token.secret.kind()), (Level::Crypt, EncType::AES256));
    // What only the servers can read.
    let content = rxgk::open(&keys(&bytes(SERVICE_KEY)), Dialect::OURS, &token.token).unwrap();
    assert_eq!(content.secret, token.secret);
    assert_eq!(content.names[0].display, b"user1@LAB.TEST");
    assert_eq!(content.end, rxgk::RxgkTime::of(UnixTime(1_795_780_943)), "that of the ticket");
    sim.block_on(async move {
        let login = Login::anonymous().and_rxgk(token, Arc::new(|| NOW), [5; 32]);
        let offers = Offers::new(&caller, &[DATABASE], &login);
        let told = offers.login_for(WITH_RXGK).await.unwrap();
        assert_ne!(told.rxgk().unwrap().secret, login.rxgk().unwrap().secret, "one of its own");
        let refused = offers.login_for(WITHOUT).await.unwrap_err().to_string();
        assert!(refused.contains("has no rxgk") && refused.contains("aklog"), "{refused}");
        // Nobody knows it: it gets nothing weaker.
        let unknown = offers.login_for(Ipv4Addr::new(10, 0, 0, 77)).await.unwrap();
        assert_eq!(unknown.rxgk(), login.rxgk());
        // Nor does a database server that a registration has not reached say that there is no rxgk.
        let (servers, user) =
            (DatabaseServers::new::<Rxgk>(&caller, &[DATABASE], &login), login.rxgk().unwrap());
        let ask = async |uuid: u8| {
            let uuid = Uuid::from_bytes([uuid; 16]);
            let question =
                AFSCombineTokens::for_server(&user.token, &user.enctypes(), user.level.number(), uuid)
                    .unwrap();
            servers.call(&question).await.map(|reply| reply.new_token.is_empty())
        };
        assert_eq!((ask(2).await.unwrap(), ask(3).await.unwrap()), (false, true));
        assert!(ask(99).await.is_err());
        // Linux has its own dialect, and one token for all servers.
        let linux = for_linux(&caller, &[DATABASE], &login).await.unwrap();
        assert_eq!((linux.dialect, linux.level, linux.end), (Dialect::Yfs, Level::Crypt, user.end));
        let content = rxgk::open(&keys(&bytes(SERVICE_KEY)), Dialect::Yfs, &linux.token).unwrap();
        assert_eq!(content.secret, linux.secret);
        assert_ne!(content.secret, user.secret, "one of its own");
        assert_eq!(content.names[0].display, b"user1@LAB.TEST");
        assert!(for_linux(&caller, &[DATABASE], &Login::anonymous()).await.is_err());
    });
}

#[test]
fn a_server_with_another_key_and_a_ticket_that_has_ended_give_no_token() {
    for (key, now, why) in [
        (vec![9; 32], NOW, "another key"),
        (bytes(SERVICE_KEY), UnixTime(NOW.0 + 200_000), "expired"),
        (bytes(SERVICE_KEY), UnixTime(NOW.0 - 3600), "another key"),
    ] {
        let sim = Sim::new(Duration::from_millis(1));
        let caller = bind(&sim, Ipv4Addr::new(10, 0, 0, 9), 4000);
        let (_server, token) = ask(&sim, &caller, &key, now);
        let said = token.unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
}

/// Somebody in the place of the database server has not the service's key, whatever they answer.
#[test]
fn an_answer_of_who_has_not_the_services_key_is_not_believed() {
    use afs_wire::rxgk::{GSSNegotiate, RxgkData, reply};
    use rx::ServiceConfig;
    use rx_proto::config::CallLimits;
    use rx_proto::endpoint::Service;
    use rx_proto::ids::ServiceId;
    use rxgen::{Interface, Rpc};
    let sim = Sim::new(Duration::from_millis(1));
    let forger = bind(&sim, DATABASE, 7003);
    let service = Service {
        id: ServiceId(Rxgk::SERVICE_ID),
        security: vec![Arc::new(Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    forger.add_service(ServiceConfig::new(service, |mut call: rx::ServerCall| async move {
        let answer = reply::GSSNegotiate {
            output_token_buffer: RxgkData::new(vec![0x60; 100]).unwrap(),
            opaque_out: RxgkData::default(),
            gss_major_status: 0,
            gss_minor_status: 0,
            rxgk_info: RxgkData::new(vec![5; 200]).unwrap(),
        };
        assert_eq!(GSSNegotiate::OPCODE, 1);
        while call.recv().await.is_ok_and(|bytes| bytes.is_some()) {}
        let _ = call.send(rxgen::xdr::to_bytes(&answer).into()).await;
        Ok(())
    }));
    let caller = bind(&sim, Ipv4Addr::new(10, 0, 0, 9), 4000);
    let error = sim.block_on(async move {
        let servers = DatabaseServers::new::<Rxgk>(&caller, &[DATABASE], &Login::anonymous());
        let ticket = bytes(TICKET);
        let session = Secret::new(EncType::AES256, &bytes(SESSION_KEY)).unwrap();
        let ticket = Ticket { bytes: &ticket, session, principal: "user1", realm: "LAB.TEST" };
        negotiate(&servers, ticket, NOW, &mut StdRng::seed_from_u64(1)).await.unwrap_err()
    });
    assert!(error.to_string().contains("not believed"), "{error}");
}
