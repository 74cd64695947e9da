//! The server's end of rxgk connections: asks, opens the token that it is shown, and lets nothing pass before.

use super::response::{Authenticator, CHALLENGE_LEN, Response, open_authenticator};
use super::transport::{Limits, OVERHEAD_MAX, Origin, Role, Transport};
use super::{AppData, AuthName, Client, Content, Dialect, Fault, RxgkTime, names, token};
use crate::Level;
use crate::identity::LocalRealms;
use crate::keys::KeySet;
use crate::ticket::NameRules;
use crate::time::{Clock, UnixTime};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CHANNELS, CallNumber, SecurityIndex, SecurityLevel};
use rx_proto::packet::Header;
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};
use rxgen::xdr::Uuid;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use subtle::ConstantTimeEq;

/// A server's demands on clients.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The least level; connections below it are refused. Default crypt: the level is the token's, so that who makes tokens chooses.
    pub min_level: Level,
    /// The realms that are the cell's own. Without any, no user's name is of the cell.
    pub realms: LocalRealms,
    /// The rules for names of callers.
    pub names: NameRules,
}

impl ServerOptions {
    /// Returns the demand of encryption; and the realm of the cell's name is the cell's.
    pub fn of_cell(cell: &str) -> Self {
        Self { min_level: Level::Crypt, realms: LocalRealms::of_cell(cell), names: NameRules::default() }
    }
}

/// rxgk for the services of a server, in one dialect. It may be given to all of them: clones share its keys.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    dialect: Dialect,
    uuid: Option<Uuid>,
    callbacks: Option<TellCallback>,
}

/// Makes the ends of connections by which a client is called back.
type MakeCallback = Arc<dyn Fn() -> Box<dyn SecurityClass> + Send + Sync>;

/// Told of a client, by its address, and how it is called back.
type TellCallback = Arc<dyn Fn(SocketAddr, MakeCallback) + Send + Sync>;

/// Looks for newer keys, and has the server take them.
type LookForKeys = Box<dyn Fn() + Send + Sync>;

/// Tells whether the token of a device is not to be taken.
type RefuseDevice = Box<dyn Fn(u32) -> bool + Send + Sync>;

struct Shared {
    keys: RwLock<Arc<KeySet>>,
    look: OnceLock<LookForKeys>,
    refuse_device: OnceLock<RefuseDevice>,
    options: ServerOptions,
    /// True if callers are file servers that call back, and not users.
    is_cache_manager: bool,
    clock: Clock,
    /// The source of connections' seeds.
    seeds: Mutex<StdRng>,
}

impl Server {
    /// rxgk with these keys. The clock is asked for each packet, since a token may expire between two. The seed is for challenges, and
    /// for what encryption needs of chance.
    pub fn new(dialect: Dialect, keys: KeySet, options: ServerOptions, clock: Clock, seed: [u8; 32]) -> Self {
        Self::of(dialect, keys, options, false, clock, seed)
    }

    /// The end of a cache manager, for file servers that call back with tokens of these keys.
    pub(super) fn of_cache_manager(keys: KeySet, clock: Clock, seed: [u8; 32]) -> Self {
        Self::of(Dialect::OURS, keys, ServerOptions::of_cell(""), true, clock, seed)
    }

    fn of(
        dialect: Dialect,
        keys: KeySet,
        options: ServerOptions,
        is_cache_manager: bool,
        clock: Clock,
        seed: [u8; 32],
    ) -> Self {
        let (keys, look) = (RwLock::new(Arc::new(keys)), OnceLock::new());
        let seeds = Mutex::new(StdRng::from_seed(seed));
        let refuse_device = OnceLock::new();
        let shared = Shared { keys, look, refuse_device, options, is_cache_manager, clock, seeds };
        Self { shared: Arc::new(shared), dialect, uuid: None, callbacks: None }
    }

    /// The same in a dialect, with the same keys.
    #[must_use]
    pub fn in_dialect(&self, dialect: Dialect) -> Self {
        Self { dialect, ..self.clone() }
    }

    /// The same for the services of a file server: who has [`AppData`] for another one is refused.
    #[must_use]
    pub fn of_file_server(&self, uuid: Uuid) -> Self {
        Self { uuid: Some(uuid), ..self.clone() }
    }

    /// The same, and `tell` learns of each client that has shown a token, from which address, and makes the ends of connections to it that it wants
    /// to be called back by. Only clients with [`Dialect::OURS`] are told of. The endpoint calls it, so it must not use the endpoint.
    #[must_use]
    pub fn telling_callbacks(&self, tell: impl Fn(SocketAddr, MakeCallback) + Send + Sync + 'static) -> Self {
        Self { callbacks: Some(Arc::new(tell)), ..self.clone() }
    }

    /// Takes other keys from now on; connections that stand go on.
    pub fn set_keys(&self, keys: KeySet) {
        *self.shared.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Has this called, and the token tried once more, when a token is for a key that is not there: who has added it uses it at once. It
    /// must be cheap, as anybody may show such tokens. Only the first one counts.
    pub fn when_key_is_unknown(&self, look: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.look.set(Box::new(look));
    }

    /// Has this asked, by its number, about a device whose token is shown, and again at most once a second while its connection is in use:
    /// a device that was revoked is as one whose token has expired. Only the first one counts; without one, tokens of devices are taken.
    pub fn refuse_devices(&self, refuses: impl Fn(u32) -> bool + Send + Sync + 'static) {
        let _ = self.shared.refuse_device.set(Box::new(refuses));
    }

    fn refuses(&self, device: Option<u32>) -> bool {
        device.zip(self.shared.refuse_device.get()).is_some_and(|(device, refuses)| refuses(device))
    }

    /// The keys, for making tokens of the server's own.
    pub fn keys(&self) -> Arc<KeySet> {
        Arc::clone(&self.shared.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("rxgk::Server")
            .field("dialect", &self.dialect)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl ServerSecurity for Server {
    fn index(&self) -> SecurityIndex {
        self.dialect.index()
    }

    fn accept(&self, _facts: &ConnectionFacts) -> Box<dyn SecurityClass> {
        let (seed, nonce) = self.shared.seeds.lock().unwrap_or_else(PoisonError::into_inner).random();
        Box::new(End { server: self.clone(), seed, nonce, is_asked: false, caller: None })
    }
}

/// The server's end of a connection.
struct End {
    server: Server,
    seed: [u8; 32],
    /// The nonce of the challenge. A challenge that is sent again has the same, so that an answer to either is good.
    nonce: [u8; CHALLENGE_LEN],
    is_asked: bool,
    caller: Option<Box<Caller>>,
}

/// The caller, once it is known.
struct Caller {
    transport: Transport,
    identity: String,
    end: RxgkTime,
    /// The device that the token is of, and the second in which it was last seen not to be refused.
    device: Option<u32>,
    not_refused: UnixTime,
}

impl Caller {
    /// True if the device was revoked meanwhile.
    fn is_refused(&mut self, server: &Server, now: UnixTime) -> bool {
        if self.not_refused != now && server.refuses(self.device) {
            return true;
        }
        self.not_refused = now;
        false
    }
}

impl End {
    fn now(&self) -> UnixTime {
        (self.server.shared.clock)()
    }

    fn code(&self, fault: Fault) -> AbortCode {
        fault.code(self.server.dialect)
    }

    /// The caller, if it is known, its token has not expired, and its device was not revoked.
    fn let_in(&mut self) -> Result<&mut Caller, Fault> {
        let now = self.now();
        let caller = self.caller.as_deref_mut().ok_or(Fault::NotAuth)?;
        if caller.end.has_passed(now) || caller.is_refused(&self.server, now) {
            return Err(Fault::Expired);
        }
        Ok(caller)
    }

    /// Opens a token. With a key that is not there, looks for it and tries once more.
    fn open_token(&self, token: &[u8]) -> Result<Content, Fault> {
        let open = || token::open(&self.server.keys(), self.server.dialect, token);
        open().or_else(|fault| match (fault, self.server.shared.look.get()) {
            (Fault::BadKeyNo, Some(look)) => {
                look();
                open()
            }
            _ => Err(fault),
        })
    }

    /// The order of the checks is that of rxgk notes 4.3.
    fn check(&self, facts: &ConnectionFacts, body: &[u8]) -> Result<(Caller, [CallNumber; CHANNELS]), Fault> {
        if !self.is_asked {
            return Err(Fault::BadChallenge);
        }
        let (options, dialect) = (&self.server.shared.options, self.server.dialect);
        let response = Response::parse(body)?;
        let content = self.open_token(response.token)?;
        content.check_times(self.now())?;
        let Content { secret, level, lifetime, bytelife, end, .. } = content;
        let origin =
            Origin { secret, epoch: facts.epoch, connection: facts.connection, start: response.start };
        let number = facts.checksum.into();
        let plain = open_authenticator(&origin.key(number), response.authenticator)?;
        let authenticator = Authenticator::parse(&plain)?;
        if !bool::from(authenticator.nonce.ct_eq(&self.nonce))
            || authenticator.level != level.number()
            || authenticator.epoch != facts.epoch
            || authenticator.connection != facts.connection.0
            || authenticator.calls.iter().any(|call| call.0 > i32::MAX as u32)
        {
            return Err(Fault::BadChallenge);
        }
        if level < options.min_level {
            return Err(Fault::BadLevel);
        }
        let mut callback = None;
        if !authenticator.app_data.is_empty() {
            let data = AppData::parse(dialect, authenticator.app_data)?;
            if self.server.uuid.is_some_and(|uuid| uuid != data.server) {
                return Err(Fault::SealedIncon);
            }
            callback = data.callback.filter(|_| dialect == Dialect::OURS);
        }
        let identity = match self.server.shared.is_cache_manager {
            true => names::identify_file_server(&content.names)?,
            false => names::identify(&content.names, &options.realms, options.names)?.to_string(),
        };
        let device = content.names.first().and_then(AuthName::device);
        if self.server.refuses(device) {
            return Err(Fault::Expired);
        }
        if let Some((tell, token)) = self.server.callbacks.as_ref().zip(callback.and_then(|it| it.to_token()))
        {
            let shared = &self.server.shared;
            let seed = shared.seeds.lock().unwrap_or_else(PoisonError::into_inner).random();
            tell(facts.peer, Arc::new(Client::factory(token, Arc::clone(&shared.clock), seed)));
        }
        let not_refused = self.now();
        let limits = Limits::of(dialect, lifetime, bytelife);
        let rng = StdRng::from_seed(self.seed);
        let transport = Transport::new(origin, Role::Server, dialect, level, limits, number, rng);
        Ok((Caller { transport, identity, end, device, not_refused }, authenticator.calls))
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("rxgk::End").field("identity", &self.identity()).finish_non_exhaustive()
    }
}

impl SecurityClass for End {
    fn index(&self) -> SecurityIndex {
        self.server.dialect.index()
    }

    fn plaintext_capacity(&self, body: usize) -> usize {
        // Nothing is sent before the caller is known.
        let transport = self.caller.as_ref().map(|caller| &caller.transport);
        transport.map_or(body.saturating_sub(OVERHEAD_MAX), |transport| transport.capacity(body))
    }

    fn prepare(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        let now = self.now();
        let caller = self.caller.as_mut().expect("calls run, and answer, once the client is known");
        caller.transport.prepare(now, header, plain, out);
    }

    fn finish(&mut self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        if let Some(caller) = &mut self.caller {
            caller.transport.finish(bodies);
        }
    }

    fn open(&mut self, header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        let dialect = self.server.dialect;
        let opened = self.let_in().and_then(|caller| caller.transport.open(header, body));
        opened.map_err(|fault| fault.code(dialect))
    }

    fn may_go_on(&mut self) -> Result<(), AbortCode> {
        let dialect = self.server.dialect;
        self.let_in().map(drop).map_err(|fault| fault.code(dialect))
    }

    fn is_authenticated(&self) -> bool {
        self.caller.is_some()
    }

    fn authenticates_data(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.transport.level() != Level::Clear)
    }

    fn challenge(&mut self, nonce: u64) -> Vec<u8> {
        if !std::mem::replace(&mut self.is_asked, true) {
            self.nonce.iter_mut().zip(nonce.to_be_bytes()).for_each(|(ours, given)| *ours ^= given);
        }
        self.nonce.to_vec()
    }

    fn handle_response(
        &mut self,
        facts: &ConnectionFacts,
        body: &[u8],
    ) -> Result<[CallNumber; CHANNELS], AbortCode> {
        let (caller, calls) = self.check(facts, body).map_err(|fault| self.code(fault))?;
        self.caller = Some(Box::new(caller));
        Ok(calls)
    }

    fn identity(&self) -> Option<&str> {
        self.caller.as_ref().map(|caller| &*caller.identity)
    }

    fn level(&self) -> SecurityLevel {
        self.caller.as_ref().map_or(SecurityLevel::CLEAR, |caller| caller.transport.level().into())
    }
}
