//! Machines that join a cell over the loopback interface: the calls that they make, and what strangers, administrators and thieves are
//! answered.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_celldb::caller::{Authority, Caller, Identity};
use afs_celldb::devices::{Devices, Granted, JoinService, NoToken, Surroundings, TokenFor};
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::{Database, rx_service};
use afs_join::{Chance, KeyPair, Limits, Membership, PublicKey, digest};
use afs_wire::abort::{
    AJBADARG, AJBADMSG, AJBUSY, AJCOOKIE, AJENCREQ, AJNOENT, AJNOKEY, AJNOSESSION, AJNOTOKEN, AJPERM,
};
use afs_wire::ids::{AfsTime, CellName};
use afs_wire::join::*;
use afs_wire::rxgk::RxgkEnctypes;
use rx::{Connection, Endpoint, EndpointConfig, RpcError};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::xdr::{Opaque, OpaqueFixed};
use rxgen::{Abort, Interface};

const TODAY: u32 = 1_700_000_000;
const DAY: u32 = 24 * 3600;

/// What callers are.
const NOBODY: u8 = 0;
const ADMINISTRATOR: u8 = 1;
/// An administrator whom the server asks nothing, so that the connection need not be encrypted.
const TRUSTED: u8 = 2;
/// A holder of the cell's key, at a server that asks nothing.
const CELL: u8 = 3;

#[derive(Debug)]
struct Callers(Arc<AtomicU8>);

impl Authority for Callers {
    fn caller(&self, _peer: SocketAddr, _security: &str) -> Caller {
        match self.0.load(Ordering::Relaxed) {
            CELL => Caller { identity: Identity::Cell, is_superuser: true },
            who => Caller { identity: Identity::Local("admin".into()), is_superuser: who != NOBODY },
        }
    }

    fn is_local_realm(&self, _realm: &str) -> bool {
        false
    }

    fn is_noauth(&self) -> bool {
        matches!(self.0.load(Ordering::Relaxed), TRUSTED | CELL)
    }
}

/// A cell of servers on one database, and a machine.
struct Cell {
    store: Arc<MemoryStore>,
    machine: Endpoint,
    callers: Arc<AtomicU8>,
    time: Arc<AtomicU32>,
    uptime: Arc<AtomicU64>,
    chance: Arc<AtomicU64>,
    made: Arc<Mutex<Vec<TokenFor>>>,
}

/// A server of the cell.
struct Server {
    _endpoint: Endpoint,
    connection: Connection,
}

fn bind() -> Endpoint {
    Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), EndpointConfig::default()).unwrap()
}

fn bytes_of(number: u64) -> [u8; 32] {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

impl Cell {
    fn new() -> Self {
        Self {
            store: Arc::default(),
            machine: bind(),
            callers: Arc::new(AtomicU8::new(TRUSTED)),
            time: Arc::new(AtomicU32::new(TODAY)),
            uptime: Arc::new(AtomicU64::new(1000)),
            chance: Arc::default(),
            made: Arc::default(),
        }
    }

    async fn server(&self, limits: Limits) -> Server {
        let store = Arc::clone(&self.store) as Arc<dyn afs_celldb::CellStore>;
        let database = Arc::new(Database::<Devices>::open(store).await.unwrap());
        let (time, uptime, chance) =
            (Arc::clone(&self.time), Arc::clone(&self.uptime), Arc::clone(&self.chance));
        let made = Arc::clone(&self.made);
        let of = Surroundings {
            cell: "home.example".into(),
            authority: Arc::new(Callers(Arc::clone(&self.callers))),
            clock: Arc::new(move || time.load(Ordering::Relaxed)),
            uptime: Arc::new(move || Duration::from_secs(uptime.load(Ordering::Relaxed))),
            randomness: Arc::new(move || Ok(bytes_of(chance.fetch_add(1, Ordering::Relaxed)))),
            tokens: Arc::new(move |wanted| {
                if wanted.device != 0 {
                    made.lock().unwrap().push(wanted.clone());
                }
                if wanted.user == "nobody" {
                    return Err(NoToken::Cell("there is no key".to_owned()));
                }
                let enctype = *wanted.enctypes.first().ok_or(NoToken::Enctype)?;
                Ok(Granted {
                    dialect: 4,
                    enctype,
                    level: 2,
                    lifetime: 36_000,
                    bytelife: 30,
                    expiration: i64::from(wanted.now + 36_000) * 10_000_000,
                    secret: JoinK0(vec![wanted.device as u8; 16]),
                    token: vec![5; 300],
                })
            }),
        };
        let service = Arc::new(JoinService::new(database, of, limits).unwrap());
        let endpoint = bind();
        endpoint.add_service(rx_service::<Join, _>(service, vec![Arc::new(Null)]));
        let connection =
            self.machine.connect(endpoint.local_addr(), ServiceId(Join::SERVICE_ID), Box::new(Null));
        Server { _endpoint: endpoint, connection }
    }

    fn device(&self, number: u64, key: PublicKey) -> Membership {
        let cell = CellName::new("home.example").unwrap();
        Membership { cell, key, device: KeyPair::generate(Chance::new(bytes_of(1 << 32 | number))) }
    }
}

fn secret(number: u8) -> JoinSecret {
    JoinSecret([number; JOIN_SECRET_BYTES])
}

fn request(want: JoinWant, invitation: u8) -> JoinRequest {
    let enctypes = RxgkEnctypes::new(vec![18, 17]).unwrap();
    JoinRequest { want, secret: secret(invitation), name: JoinName::new("laptop").unwrap(), enctypes }
}

fn abort(error: &RpcError) -> Abort {
    Abort(error.code().0)
}

impl Server {
    async fn invite(&self, number: u8, user: &str) -> Result<PublicKey, Abort> {
        self.invite_with(number, user, JoinFlags::NONE).await
    }

    async fn invite_with(&self, number: u8, user: &str, flags: JoinFlags) -> Result<PublicKey, Abort> {
        let (digest, user) = (OpaqueFixed(digest(&secret(number))), JoinUser::new(user).unwrap());
        let call = JoinInvite { digest, user, expires: AfsTime(TODAY + 7 * DAY), flags };
        let invited = self.connection.rpc(&call).await;
        invited.map(|reply| PublicKey(reply.key.0)).map_err(|error| abort(&error))
    }

    async fn ask(&self, device: &Membership, request: &JoinRequest) -> Result<JoinReply, Abort> {
        let failed = |error: RpcError| abort(&error);
        let hello = self.connection.rpc(&device.hello()).await.map_err(failed)?;
        let (begun, call) = device.begin(&hello, Chance::new([3; 32])).unwrap();
        let begin = self.connection.rpc(&call).await.map_err(failed)?;
        let (asked, call) = begun.finish(&begin, request).unwrap();
        Ok(asked.answer(&self.connection.rpc(&call).await.map_err(failed)?).unwrap())
    }

    async fn join(&self, device: &Membership, invitation: u8) -> JoinReply {
        self.ask(device, &request(JoinWant::JOIN, invitation)).await.unwrap()
    }

    async fn renew(&self, device: &Membership) -> JoinReply {
        self.ask(device, &request(JoinWant::RENEW, 0)).await.unwrap()
    }

    async fn devices(&self) -> Vec<DeviceInfo> {
        self.connection.rpc(&JoinListDevices { after: 0 }).await.unwrap().devices.into_vec()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_joins_and_gets_tokens_by_its_key_from_then_on() {
    let cell = Cell::new();
    let server = cell.server(Limits::default()).await;
    let key = server.invite(1, "Alice").await.unwrap();
    let device = cell.device(1, key);
    let joined = server.join(&device, 1).await;
    assert_eq!((joined.outcome, joined.device, &joined.user[..]), (JoinOutcome::DONE, 1, &b"alice"[..]));
    assert_eq!((joined.dialect, joined.enctype, joined.level, joined.secret.0.len()), (4, 18, 2, 16));
    assert_eq!((joined.token.len(), PublicKey(joined.key.0)), (300, key));
    cell.time.fetch_add(10 * 3600, Ordering::Relaxed);
    let renewed = server.renew(&device).await;
    assert_eq!((renewed.outcome, renewed.device), (JoinOutcome::DONE, 1));
    assert!(renewed.expiration > joined.expiration);
    let made = cell.made.lock().unwrap().clone();
    assert_eq!(made.len(), 2);
    assert!(made.iter().all(|token| (&token.user[..], token.device) == ("alice", 1)));
    let devices = server.devices().await;
    assert_eq!((&devices[0].from[..], &devices[0].invited_by[..]), (&b"127.0.0.1"[..], &b"admin"[..]));
    assert_eq!(PublicKey(devices[0].key.0), device.device.public());
}

/// Each way in which an invitation is not good has its own answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_told_why_its_invitation_is_not_good() {
    let cell = Cell::new();
    let one = cell.server(Limits::default()).await;
    let key = one.invite(1, "alice").await.unwrap();
    one.invite(2, "bob").await.unwrap();
    let (thief, alice) = (cell.device(66, key), cell.device(1, key));
    assert_eq!(one.join(&thief, 9).await.outcome, JoinOutcome::UNKNOWN_INVITATION, "a guess");
    assert_eq!(one.join(&thief, 1).await.outcome, JoinOutcome::DONE, "stolen");
    let late = one.join(&alice, 1).await;
    assert_eq!((late.outcome, late.device, late.token.len()), (JoinOutcome::USED, 0, 0));
    assert_eq!(one.renew(&alice).await.outcome, JoinOutcome::UNKNOWN_DEVICE);
    let revoke = JoinRevoke { target: JoinTarget::DEVICE, device: 1, user: JoinUser::default() };
    let revoked = one.connection.rpc(&revoke).await.unwrap();
    assert_eq!((revoked.devices, revoked.invitations), (1, 0));
    assert_eq!(one.renew(&thief).await.outcome, JoinOutcome::REVOKED);
    cell.time.fetch_add(7 * DAY, Ordering::Relaxed);
    assert_eq!(one.join(&alice, 2).await.outcome, JoinOutcome::EXPIRED);
    assert!(cell.made.lock().unwrap().len() == 1, "only the thief had a token, once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_leaves_and_its_key_is_of_no_use_then() {
    let cell = Cell::new();
    let server = cell.server(Limits::default()).await;
    let device = cell.device(1, server.invite(1, "alice").await.unwrap());
    server.join(&device, 1).await;
    let left = server.ask(&device, &request(JoinWant::LEAVE, 0)).await.unwrap();
    assert_eq!((left.outcome, left.device, left.token.len()), (JoinOutcome::DONE, 1, 0));
    assert_eq!(server.renew(&device).await.outcome, JoinOutcome::REVOKED);
    let revoked = server.connection.rpc(&JoinRevoked { since: 0 }).await.unwrap();
    assert_eq!((revoked.version, revoked.devices.into_vec()), (1, vec![1]));
    let again = server.connection.rpc(&JoinRevoked { since: 1 }).await.unwrap();
    assert_eq!((again.version, again.devices.into_vec()), (1, vec![]), "nothing new");
}

/// Somebody who has seen the line of an administrator's invitation, or has an administrator's device, cannot make a device an administrator's.
#[tokio::test(flavor = "multi_thread")]
async fn an_administrators_device_gets_no_token_until_who_has_the_cells_key_approves_it() {
    let cell = Cell::new();
    let server = cell.server(Limits::default()).await;
    let device = cell.device(1, server.invite_with(1, "alice", JoinFlags::ADMIN).await.unwrap());
    for reply in [server.join(&device, 1).await, server.renew(&device).await] {
        assert_eq!((reply.outcome, reply.device), (JoinOutcome::NOT_APPROVED, 1));
        assert_eq!((&reply.user[..], reply.token.len(), reply.secret.0.len()), (&b"alice"[..], 0, 0));
    }
    assert!(cell.made.lock().unwrap().is_empty());
    assert_eq!(server.devices().await[0].flags, DeviceFlags::WAITS);
    let approve = JoinApprove { device: 1 };
    for callers in [NOBODY, ADMINISTRATOR, TRUSTED] {
        cell.callers.store(callers, Ordering::Relaxed);
        assert_eq!(abort(&server.connection.rpc(&approve).await.unwrap_err()), AJPERM);
        assert_eq!(server.renew(&device).await.outcome, JoinOutcome::NOT_APPROVED);
    }
    cell.callers.store(CELL, Ordering::Relaxed);
    assert_eq!(&server.connection.rpc(&approve).await.unwrap().user[..], b"alice");
    assert_eq!(abort(&server.connection.rpc(&JoinApprove { device: 2 }).await.unwrap_err()), AJNOENT);
    assert_eq!(server.renew(&device).await.outcome, JoinOutcome::DONE);
    assert_eq!(server.devices().await[0].flags, DeviceFlags::NONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_follow_when_the_cells_key_is_replaced() {
    let cell = Cell::new();
    let server = cell.server(Limits::default()).await;
    let old = server.invite(1, "alice").await.unwrap();
    let device = cell.device(1, old);
    server.join(&device, 1).await;
    let new = PublicKey(server.connection.rpc(&JoinRotateKey {}).await.unwrap().key.0);
    assert_ne!(new, old);
    let renewed = server.renew(&device).await;
    assert_eq!(PublicKey(renewed.key.0), new, "the old key vouches for the new one");
    let device = Membership { key: new, ..device };
    assert_eq!(server.renew(&device).await.outcome, JoinOutcome::DONE);
    assert_eq!(server.connection.rpc(&JoinRemoveOldKeys {}).await.unwrap().removed, 1);
    let stays_behind = Membership { key: old, ..device.clone() };
    let refused = server.ask(&stays_behind, &request(JoinWant::RENEW, 0)).await;
    assert_eq!(refused.unwrap_err(), AJNOKEY);
    assert_eq!(server.renew(&device).await.outcome, JoinOutcome::DONE);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_superusers_on_encrypted_connections_administer_devices() {
    let cell = Cell::new();
    let server = cell.server(Limits::default()).await;
    server.invite(1, "alice").await.unwrap();
    for (callers, want) in [(NOBODY, AJPERM), (ADMINISTRATOR, AJENCREQ)] {
        cell.callers.store(callers, Ordering::Relaxed);
        let to = &server.connection;
        let name = JoinName::new("x").unwrap();
        let refused = |result: Result<(), RpcError>| assert_eq!(abort(&result.unwrap_err()), want);
        assert_eq!(server.invite(2, "bob").await, Err(want));
        refused(to.rpc(&JoinListInvitations { after: OpaqueFixed([0; 32]) }).await.map(drop));
        refused(to.rpc(&JoinListDevices { after: 0 }).await.map(drop));
        refused(to.rpc(&JoinRename { device: 1, name }).await.map(drop));
        let (target, user) = (JoinTarget::ALL, JoinUser::default());
        refused(to.rpc(&JoinRevoke { target, device: 0, user }).await.map(drop));
        refused(to.rpc(&JoinRotateKey {}).await.map(drop));
        refused(to.rpc(&JoinRemoveOldKeys {}).await.map(drop));
        refused(to.rpc(&JoinRevoked { since: 0 }).await.map(drop));
    }
    cell.callers.store(TRUSTED, Ordering::Relaxed);
    let open = server.connection.rpc(&JoinListInvitations { after: OpaqueFixed([0; 32]) }).await.unwrap();
    assert_eq!(open.invitations.into_vec().len(), 1, "nothing was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused_before_they_cost_anything() {
    let cell = Cell::new();
    let limits = Limits { burst_of_source: 2, ..Limits::default() };
    let server = cell.server(limits).await;
    let hello = server.connection.rpc(&JoinHello { key: 1 }).await;
    assert_eq!(abort(&hello.unwrap_err()), AJNOKEY, "nobody was invited yet");
    let key = server.invite(1, "alice").await.unwrap();
    let device = cell.device(1, key);
    let hello = server.connection.rpc(&device.hello()).await.unwrap();
    let (_, good) = device.begin(&hello, Chance::new([3; 32])).unwrap();
    let refused = |result: Result<reply::JoinBegin, RpcError>| abort(&result.unwrap_err());
    let forged = JoinBegin { cookie: OpaqueFixed([0; 16]), ..good.clone() };
    assert_eq!(refused(server.connection.rpc(&forged).await), AJCOOKIE);
    let of_another_cell = JoinBegin { key: 1, ..good.clone() };
    assert_eq!(refused(server.connection.rpc(&of_another_cell).await), AJNOKEY);
    let broken = JoinBegin { message: Opaque::new(vec![0; 48]).unwrap(), ..good.clone() };
    assert_eq!(refused(server.connection.rpc(&broken).await), AJBADMSG);
    let begun = server.connection.rpc(&good).await.unwrap();
    assert_eq!(refused(server.connection.rpc(&good).await), AJBUSY);
    cell.uptime.fetch_add(120, Ordering::Relaxed);
    assert_eq!(refused(server.connection.rpc(&good).await), AJCOOKIE, "an old one");
    let message = Opaque::new(vec![0; 64]).unwrap();
    for session in [begun.session, 0, u64::MAX] {
        let finish = JoinFinish { session, message: message.clone() };
        assert_eq!(abort(&server.connection.rpc(&finish).await.unwrap_err()), AJNOSESSION);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_cannot_be_are_refused() {
    let cell = Cell::new();
    let server = cell.server(Limits::default()).await;
    let long = ["x".repeat(64), "\u{130}".repeat(60)];
    for user in ["", "a b", "a\n", "bob@else.where", "alice:friends", "anonymous", &long[0], &long[1]] {
        assert_eq!(server.invite(1, user).await, Err(AJBADARG), "{user:?}");
    }
    assert_eq!(server.invite(1, "nobody").await, Err(AJNOTOKEN), "as in a cell without a key for rxgk");
    let name = JoinName::new("desk").unwrap();
    let renamed = server.connection.rpc(&JoinRename { device: 1, name: name.clone() }).await;
    assert_eq!(abort(&renamed.unwrap_err()), AJNOENT);
    let device = cell.device(1, server.invite(1, "alice").await.unwrap());
    server.join(&device, 1).await;
    server.connection.rpc(&JoinRename { device: 1, name }).await.unwrap();
    assert_eq!(&server.devices().await[0].name[..], b"desk");
    let empty = JoinRename { device: 1, name: JoinName::default() };
    assert_eq!(abort(&server.connection.rpc(&empty).await.unwrap_err()), AJBADARG);
    let none = JoinRequest { enctypes: RxgkEnctypes::new(vec![]).unwrap(), ..request(JoinWant::RENEW, 0) };
    assert_eq!(server.ask(&device, &none).await.unwrap().outcome, JoinOutcome::NO_ENCTYPE);
    assert_eq!(server.ask(&device, &request(JoinWant(77), 0)).await.unwrap().outcome, JoinOutcome::TRY_LATER);
}
