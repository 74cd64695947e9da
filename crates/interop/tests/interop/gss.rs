//! Our GSS-API against MIT Kerberos's, in both roles and with tickets of a KDC of each enctype that rxgk has: the contexts, what both ends
//! seal, sign and make of a seed in them, and the negotiation of a token of rxgk. What was changed on the way, or is of somebody without the
//! key, is refused by both.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use afar_interop::gss::GssPeer;
use afar_interop::lab::Lab;
use afar_interop::network::{Kind, Network};
use afar_interop::process;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_admin::negotiation::{Ticket as Shown, negotiate};
use afs_admin::{DatabaseServers, Login};
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::tokens::TokenService;
use afs_celldb::vldb::Vldb;
use afs_celldb::{Database, rx_service};
use afs_kerberos::{Kerberos, Ticket, services};
use afs_lab::peers::kdc::{self, Kdc, Realm};
use afs_lab::real::address::own_address;
use afs_lab::real::folder::Folder;
use afs_wire::rxgk::{
    AFSCombineTokens, GSSNegotiate, Rxgk, RxgkClientInfo, RxgkData, RxgkEnctypes, RxgkLevel, RxgkLevels,
    RxgkNonce, RxgkStartParams, reply,
};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Endpoint, EndpointConfig, PeerLimits, TokioRuntime};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rx_security::gss::{self, Context, GssError, Initiator};
use rx_security::keys::{EncType, Key};
use rx_security::rxgk::{self, AuthName, Dialect, ENCTYPES, Secret};
use rx_security::{KeySet, UnixTime};
use rxgen::xdr::{Opaque, from_bytes, to_bytes};
use rxgen::{Abort, Interface, Serve, ServerCall};

use crate::sides::{failed, soon};

const REALM: &str = "GSS.TEST";
const USER: &str = "alice/admin";

/// A program of Kerberos's has no reason to take longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// All cases of this module. They share a realm, which the first of them makes.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let realm = Arc::new(OnceLock::new());
    let mut cases = Vec::new();
    let mut add = |name: &str, check: Box<dyn Fn(&World) -> Verdict + Send>| {
        let (lab, realm) = (Arc::clone(lab), Arc::clone(&realm));
        cases.push(Case::new(format!("gss/{name}"), Weight::Busy, move || {
            let world: &Result<World, Trouble> = realm.get_or_init(|| World::new(&lab));
            check(world.as_ref().map_err(Clone::clone)?)
        }));
    };
    for kind in ENCTYPES {
        let called = name(kind);
        add(
            &format!("mits_initiator_and_our_acceptor_understand_each_other_with_{called}"),
            Box::new(move |world| our_acceptor(world, kind)),
        );
        add(
            &format!("our_initiator_and_mits_acceptor_understand_each_other_with_{called}"),
            Box::new(move |world| our_initiator(world, kind)),
        );
    }
    add("a_user_with_mits_library_gets_a_token_of_our_servers", Box::new(our_servers));
    add("our_client_gets_a_token_of_a_server_with_mits_library", Box::new(our_client));
    cases
}

/// A realm with a user, who has a ticket for a service of each enctype: that of a cell that is called like it.
struct World {
    kdc: Kdc,
    folder: Folder,
    peer: PathBuf,
    network: Network,
}

fn name(kind: EncType) -> &'static str {
    kind.name().expect("rxgk has no others")
}

fn cell(kind: EncType) -> String {
    format!("{}.test", name(kind))
}

impl World {
    fn new(lab: &Lab) -> Result<Self, Trouble> {
        let peer = lab.gss_peer()?.to_owned();
        kdc::available().map_err(Trouble::Skipped)?;
        let (folder, network) = (Folder::new("gss"), Network::new(lab, Kind::Loopback)?);
        let kdc = Kdc::start(&folder, &Realm { name: REALM, address: own_address(), more: "" })?;
        let world = Self { kdc, folder, peer, network };
        world.kdc.add_user(USER)?;
        for kind in ENCTYPES {
            let service = format!("afs-rxgk/_afs.{}", cell(kind));
            world.kdc.add_service(&service, name(kind), &world.keytab(kind))?;
            // Else the KDC takes every service for one that knows AES-256 with SHA-1.
            world.kdc.admin(&format!("setstr {service} session_enctypes {}", name(kind)))?;
        }
        world.kdc.kinit(USER, &[])?;
        let mut command = world.kdc.command("kvno");
        let got = process::run(
            command.args(ENCTYPES.map(|kind| services::negotiation(&cell(kind), REALM))),
            PATIENCE,
        )?;
        if got.status == Some(0) { Ok(world) } else { failed(format!("kvno: {got:?}")) }
    }

    fn keytab(&self, kind: EncType) -> PathBuf {
        self.folder.join(format!("keytab-{}", name(kind)))
    }

    /// The service's keys, as our servers read them.
    fn keys(&self, kind: EncType) -> Result<Vec<Key>, Trouble> {
        let bytes = fs::read(self.keytab(kind)).map_err(told)?;
        let keys = KeySet::parse_negotiation_keytab(&bytes).map_err(told)?;
        Ok(keys.iter().cloned().collect())
    }

    /// The user's ticket, as our client has it.
    fn ticket(&self, kind: EncType) -> Result<(Ticket, Secret), Trouble> {
        let kerberos = Kerberos::open().map_err(told)?;
        let cache = kerberos.cache(&format!("FILE:{}", self.folder.join("ccache").display()));
        let ticket = cache.and_then(|cache| cache.ticket(&services::negotiation(&cell(kind), REALM)));
        let ticket = ticket.map_err(|error| error.text)?;
        let session = Secret::new(EncType(ticket.key_kind), &ticket.key).filter(|key| key.kind() == kind);
        let session = session.ok_or_else(|| format!("a session key of the kind {}", ticket.key_kind))?;
        Ok((ticket, session))
    }

    fn initiator(&self, kind: EncType) -> Result<GssPeer, Trouble> {
        self.start("initiate", kind, &self.keytab(kind))
    }

    fn acceptor(&self, kind: EncType) -> Result<GssPeer, Trouble> {
        self.start("accept", kind, &self.keytab(kind))
    }

    fn start(&self, role: &str, kind: EncType, keytab: &Path) -> Result<GssPeer, Trouble> {
        let mut command = std::process::Command::new(&self.peer);
        self.kdc.prepare(&mut command);
        command.env("KRB5_KTNAME", keytab).args([role, &format!("afs-rxgk@_afs.{}", cell(kind))]);
        GssPeer::start(&mut command)
    }
}

fn told(error: impl std::fmt::Display) -> Trouble {
    Trouble::Failed(error.to_string())
}

fn now() -> UnixTime {
    UnixTime::of(SystemTime::now())
}

fn rng() -> StdRng {
    StdRng::from_os_rng()
}

fn parts<const N: usize>(answer: Vec<Vec<u8>>) -> Result<[Vec<u8>; N], Trouble> {
    answer.try_into().map_err(|answer: Vec<_>| told(format!("{} words in an answer", answer.len())))
}

/// A message in which one byte is changed, for each of its bytes, with that byte's place; and cut off at places all over.
fn changed(good: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> + '_ {
    let flipped = (0..good.len()).map(|at| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1 << (at % 8);
        (at, bytes)
    });
    flipped.chain((0..good.len()).step_by(16).map(|len| (good.len(), good[..len].to_vec())))
}

/// The place in an initiator's message from which on nothing is in the clear: behind the service's name are only the kind, version and length
/// of what is encrypted. By the names and unused flags in front of it nothing is decided, so a change there may pass, and change nothing.
fn sealed_from(message: &[u8], kind: EncType) -> Result<usize, Trouble> {
    let cell = cell(kind);
    let at = message.windows(cell.len()).position(|bytes| bytes == cell.as_bytes());
    Ok(at.ok_or_else(|| "a ticket without the service's name".to_owned())? + cell.len() + 26)
}

fn our_acceptor(world: &World, kind: EncType) -> Verdict {
    let keys = world.keys(kind)?;
    let accept = |keys: &[Key], message: &[u8]| gss::accept(keys, message, now(), &mut rng());
    let begin = || {
        let mut mit = world.initiator(kind)?;
        let [message] = parts(mit.step("start", &[])?)?;
        let accepted = accept(&keys, &message).map_err(told)?;
        Ok::<_, Trouble>((mit, message, accepted))
    };
    let (mut mit, message, mut accepted) = begin()?;
    if accepted.principal != format!("{USER}@{REALM}") {
        return failed(format!("the user is taken for {}", accepted.principal));
    }
    let from = sealed_from(&message, kind)?;
    for (at, message) in changed(&message) {
        match accept(&keys, &message) {
            Ok(other) if at >= from || other.principal != accepted.principal => {
                return failed(format!("a message with byte {at} changed is accepted"));
            }
            _ => {}
        }
    }
    for (kvno, bit, why) in [(0, 1, GssError::DefectiveCredential), (1, 0, GssError::NoKey)] {
        let mut other = keys.clone();
        for key in &mut other {
            key.kvno += kvno;
            key.secret[0] ^= bit;
        }
        let got = accept(&other, &message).map(drop);
        if got != Err(why) {
            return failed(format!("another key: {got:?}, expected {why:?}"));
        }
    }
    // The answer to another message, and what is no answer. MIT's library does not look at the number of the message's type, which is in the
    // clear and which a tag says too.
    let number = accepted.answer.windows(5).position(|bytes| bytes == b"\xa1\x03\x02\x01\x0f");
    let number = number.ok_or_else(|| "an answer of another type".to_owned())? + 4;
    let (_, _, of_another) = begin()?;
    for (at, answer) in changed(&accepted.answer).chain([(0, of_another.answer)]) {
        if at != number && mit.attempt("finish", &[&answer])?.is_some() {
            return failed(format!("MIT's library takes an answer with byte {at} changed"));
        }
    }
    mit.step("finish", &[&accepted.answer])?;
    understand(&mut accepted.context, &mut mit)
}

fn our_initiator(world: &World, kind: EncType) -> Verdict {
    let ((ticket, session), at) = (world.ticket(kind)?, now());
    // The same seed makes the same message, so one end can try many answers.
    let start = |session: &Secret, who: &str, seed: u64| {
        let rng = &mut StdRng::seed_from_u64(seed);
        Initiator::start(&ticket.bytes, session.clone(), (who, REALM), at, rng)
    };
    let (initiator, message) = start(&session, USER, 1);
    let mut mit = world.acceptor(kind)?;
    let stolen = Secret::new(kind, &vec![7; session.bytes().len()]).expect("as long as the other");
    for (what, message) in [("session key", start(&stolen, USER, 1).1), ("name", start(&session, "bob", 1).1)]
    {
        if mit.attempt("accept", &[&message])?.is_some() {
            return failed(format!("MIT's library accepts a ticket with another {what}"));
        }
    }
    let mut keytab = fs::read(world.keytab(kind)).map_err(told)?;
    for key in world.keys(kind)? {
        let at = keytab.windows(key.secret.len()).position(|bytes| bytes == &key.secret[..]);
        keytab[at.ok_or_else(|| "a key that is not in its keytab".to_owned())?] ^= 1;
    }
    let wrong = world.folder.write(&format!("wrong-{}", name(kind)), keytab);
    if world.start("accept", kind, &wrong)?.attempt("accept", &[&message])?.is_some() {
        return failed("MIT's library accepts a ticket that is for another key");
    }
    let who = format!("{USER}@{REALM}");
    let from = sealed_from(&message, kind)?;
    for (at, message) in changed(&message) {
        match mit.attempt("accept", &[&message])? {
            Some(answer) if at >= from || answer.get(2).is_none_or(|name| name != who.as_bytes()) => {
                return failed(format!("MIT's library accepts a message with byte {at} changed"));
            }
            _ => {}
        }
    }
    let [answer, exported, display] = parts(mit.step("accept", &[&message])?)?;
    if display != who.as_bytes() || exported != AuthName::of_principal(&who).data {
        return failed(format!(
            "the user is exported as {exported:x?}, {:?}",
            String::from_utf8_lossy(&display)
        ));
    }
    let of_another = world.acceptor(kind)?.step("accept", &[&start(&session, USER, 2).1])?.swap_remove(0);
    for (at, answer) in changed(&answer).chain([(0, of_another)]) {
        if start(&session, USER, 1).0.finish(&answer).is_ok() {
            return failed(format!("we take an answer with byte {at} changed"));
        }
    }
    understand(&mut initiator.finish(&answer).map_err(told)?, &mut mit)
}

/// Whether both ends of a context open what the other seals, believe what it signs, and nothing else, and make the same of a seed.
fn understand(ours: &mut Context, mit: &mut GssPeer) -> Verdict {
    for text in [&b""[..], b"a short text", &[7; 5000]] {
        let (sealed, signature) = (ours.wrap(text, &mut rng()), ours.sign(text));
        let [opened] = parts(mit.step("unwrap", &[&sealed])?)?;
        if opened != text {
            return failed(format!("MIT's library opens {} bytes as {opened:x?}", text.len()));
        }
        mit.step("verify", &[text, &signature])?;
        let [theirs] = parts(mit.step("wrap", &[text])?)?;
        let [their_signature] = parts(mit.step("sign", &[text])?)?;
        if ours.unwrap(&theirs).map_err(told)?[..] != *text {
            return failed(format!("we open {} bytes as something else", text.len()));
        }
        ours.verify(text, &their_signature).map_err(told)?;
        // Each end's own words, sent back, are as bad as another text's.
        let other = [text, b"."].concat();
        let taken = [
            ours.unwrap(&sealed).is_ok(),
            ours.verify(text, &signature).is_ok(),
            ours.verify(&other, &their_signature).is_ok(),
            mit.attempt("unwrap", &[&theirs])?.is_some(),
            mit.attempt("verify", &[text, &their_signature])?.is_some(),
            mit.attempt("verify", &[&other, &signature])?.is_some(),
        ];
        if taken.contains(&true) {
            return failed(format!("sent back, or for another text: {taken:?}"));
        }
        if text.len() > 100 {
            continue;
        }
        let ours_changed = changed(&sealed).map(|(at, bytes)| ("unwrap", at, vec![bytes]));
        let signed = changed(&signature).map(|(at, bytes)| ("verify", at, vec![text.to_vec(), bytes]));
        for (verb, at, words) in ours_changed.chain(signed) {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            if mit.attempt(verb, &words)?.is_some() {
                return failed(format!("MIT's library does {verb} with byte {at} changed"));
            }
        }
        let sealed = changed(&theirs).map(|(at, bytes)| (at, ours.unwrap(&bytes).is_ok()));
        let signed = changed(&their_signature).map(|(at, bytes)| (at, ours.verify(text, &bytes).is_ok()));
        if let Some((at, _)) = sealed.chain(signed).find(|(_, is_taken)| *is_taken) {
            return failed(format!("we believe what has byte {at} changed"));
        }
    }
    for len in [16, 32, 100] {
        if ours.pseudo_random(b"seed", len)[..] != mit.pseudo_random(b"seed", len)? {
            return failed(format!("the two make different {len} bytes of a seed"));
        }
    }
    Ok(())
}

fn bind(address: SocketAddr) -> Result<Endpoint, Trouble> {
    Endpoint::bind(address, EndpointConfig::default()).map_err(told)
}

/// A database server of ours; the user's program does by MIT's library what our client does by itself.
fn our_servers(world: &World) -> Verdict {
    world.network.at_ours(async || {
        for kind in ENCTYPES {
            let service = world.keys(kind)?;
            let keys = Arc::new(
                KeySet::of(service.into_iter().chain([Key::rxgk(1, EncType::AES256, &[7; 32])]))
                    .map_err(told)?,
            );
            let endpoint = bind((own_address(), Rxgk::PORT).into())?;
            let vldb = Database::<Vldb>::open(Arc::new(MemoryStore::new())).await.map_err(told)?;
            let (given, runtime) = (Arc::clone(&keys), Arc::new(TokioRuntime::current()));
            let tokens = TokenService::new(
                Arc::new(vldb),
                Arc::new(move || Arc::clone(&given)),
                Arc::new(now),
                runtime,
            );
            endpoint.add_service(rx_service::<Rxgk, _>(Arc::new(tokens), vec![Arc::new(Null)]));
            let caller = bind(world.network.ours(0))?;
            let peer = caller.peer(
                endpoint.local_addr(),
                ServiceId(Rxgk::SERVICE_ID),
                PeerLimits::default(),
                || Box::new(Null),
            );
            let mut mit = world.initiator(kind)?;
            let [message] = parts(mit.step("start", &[])?)?;
            let nonce = b"twenty bytes of noise".to_vec();
            let client_start = RxgkStartParams {
                enctypes: RxgkEnctypes::new(vec![kind.0]).map_err(told)?,
                levels: RxgkLevels::new(vec![RxgkLevel::CRYPT]).map_err(told)?,
                lifetime: 36_000,
                bytelife: 30,
                client_nonce: RxgkNonce::new(nonce.clone()).map_err(told)?,
            };
            let signed = to_bytes(&client_start);
            let input_token_buffer = RxgkData::new(message).map_err(told)?;
            let question = GSSNegotiate { client_start, input_token_buffer, opaque_in: RxgkData::default() };
            let reply = soon("a negotiation", peer.rpc(&question)).await?.map_err(told)?;
            mit.step("finish", &[&reply.output_token_buffer])?;
            let [info] = parts(mit.step("unwrap", &[&reply.rxgk_info])?)?;
            let info: RxgkClientInfo = from_bytes(&info).map_err(told)?;
            mit.step("verify", &[&signed, &info.mic])?;
            let seed = [&nonce[..], &info.server_nonce].concat();
            let secret = mit.pseudo_random(&seed, kind.key_len().expect("it has one"))?;
            let token = rxgk::open(&keys, Dialect::OURS, &info.token).map_err(told)?;
            let who = token.names.iter().map(|name| &name.display[..]).collect::<Vec<_>>();
            if (info.error_code, info.enctype) != (0, kind.0) || token.secret.bytes() != secret {
                return failed(format!("the user and the servers have different secrets: {info:?}"));
            }
            if who != [format!("{USER}@{REALM}").as_bytes()] {
                return failed(format!("a token of {who:?}"));
            }
        }
        Ok(())
    })
}

/// A database server whose GSS-API is MIT's. It gives a token that nobody can open, and keeps the secret.
struct OfMit {
    mit: Mutex<GssPeer>,
    kind: EncType,
    secret: Mutex<Vec<u8>>,
}

const NONCE: &[u8] = b"the server's nonce";
const TOKEN: &[u8] = b"a token";

impl OfMit {
    fn negotiated(&self, args: &GSSNegotiate) -> Result<reply::GSSNegotiate, Trouble> {
        let mut mit = self.mit.lock().unwrap_or_else(PoisonError::into_inner);
        let [answer, ..] = parts::<3>(mit.step("accept", &[&args.input_token_buffer])?)?;
        let [mic] = parts(mit.step("sign", &[&to_bytes(&args.client_start)])?)?;
        let seed = [&args.client_start.client_nonce[..], NONCE].concat();
        let secret = mit.pseudo_random(&seed, self.kind.key_len().expect("it has one"))?;
        *self.secret.lock().unwrap_or_else(PoisonError::into_inner) = secret;
        let info = RxgkClientInfo {
            error_code: 0,
            enctype: self.kind.0,
            level: RxgkLevel::CRYPT,
            lifetime: 1000,
            bytelife: 20,
            expiration: rxgk::RxgkTime::of(now().plus(PATIENCE)).0,
            mic: Opaque::new(mic).map_err(told)?,
            token: RxgkData::new(TOKEN.to_vec()).map_err(told)?,
            server_nonce: RxgkNonce::new(NONCE.to_vec()).map_err(told)?,
        };
        let [sealed] = parts(mit.step("wrap", &[&to_bytes(&info)])?)?;
        Ok(reply::GSSNegotiate {
            output_token_buffer: RxgkData::new(answer).map_err(told)?,
            opaque_out: RxgkData::default(),
            gss_major_status: 0,
            gss_minor_status: 0,
            rxgk_info: RxgkData::new(sealed).map_err(told)?,
        })
    }
}

impl Serve<GSSNegotiate> for OfMit {
    async fn serve(
        &self,
        _call: ServerCall<'_, GSSNegotiate>,
        args: GSSNegotiate,
    ) -> Result<reply::GSSNegotiate, Abort> {
        self.negotiated(&args).map_err(|trouble| {
            println!("gss/our_client...: {trouble:?}");
            Abort::OPCODE
        })
    }
}

impl Serve<AFSCombineTokens> for OfMit {
    async fn serve(
        &self,
        _call: ServerCall<'_, AFSCombineTokens>,
        _args: AFSCombineTokens,
    ) -> Result<reply::AFSCombineTokens, Abort> {
        Err(Abort::OPCODE)
    }
}

fn our_client(world: &World) -> Verdict {
    world.network.at_ours(async || {
        for kind in ENCTYPES {
            let address = own_address();
            let endpoint = bind((address, Rxgk::PORT).into())?;
            let mit = Mutex::new(world.acceptor(kind)?);
            let service = Arc::new(OfMit { mit, kind, secret: Mutex::default() });
            endpoint.add_service(rx_service::<Rxgk, _>(Arc::clone(&service), vec![Arc::new(Null)]));
            let caller = bind(world.network.ours(0))?;
            let servers = DatabaseServers::new::<Rxgk>(&caller, &[address], &Login::anonymous());
            let (ticket, session) = world.ticket(kind)?;
            let shown = Shown { bytes: &ticket.bytes, session, principal: USER, realm: REALM };
            let token = soon("a negotiation", negotiate(&servers, shown, now(), &mut rng())).await?;
            let token = token.map_err(told)?;
            let secret = service.secret.lock().unwrap_or_else(PoisonError::into_inner);
            if token.secret.bytes() != &secret[..] || token.token != TOKEN {
                return failed("the user and the server have different secrets");
            }
        }
        Ok(())
    })
}
