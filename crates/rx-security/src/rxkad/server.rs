//! The server's end of rxkad connections: asks, opens the ticket that it is shown, and lets nothing pass before.

use super::packet::Sealer;
use super::response::{Challenge, SealedResponse};
use super::{INDEX, Level, codes};
use crate::identity::LocalRealms;
use crate::keys::KeySet;
use crate::ticket::{self, NameRules, TicketError};
use crate::time::{Clock, UnixTime};
use bytes::Bytes;
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CHANNELS, CallNumber, SecurityIndex, SecurityLevel};
use rx_proto::packet::Header;
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// A server's demands on clients.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The least level; connections below it are refused. Default clear, as in OpenAFS, whose clients choose.
    pub min_level: Level,
    /// The realms that are the cell's own. Without any, only tickets made from the cell's key are of the cell.
    pub realms: LocalRealms,
    /// The rules for names of callers.
    pub names: NameRules,
}

impl ServerOptions {
    /// Returns OpenAFS's demands: any level, and the realm of the cell's name is the cell's.
    pub fn of_cell(cell: &str) -> Self {
        Self { min_level: Level::Clear, realms: LocalRealms::of_cell(cell), names: NameRules::default() }
    }
}

/// rxkad for the services of a server. It may be given to all of them: clones share its keys.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

/// Looks for newer keys, and has the server take them.
type LookForKeys = Box<dyn Fn() + Send + Sync>;

struct Shared {
    keys: RwLock<Arc<KeySet>>,
    look: OnceLock<LookForKeys>,
    options: ServerOptions,
    clock: Clock,
}

impl Server {
    /// rxkad with these keys. The clock is asked for each packet, since a ticket may expire between two.
    pub fn new(keys: KeySet, options: ServerOptions, clock: Clock) -> Self {
        let (keys, look) = (RwLock::new(Arc::new(keys)), OnceLock::new());
        Self { shared: Arc::new(Shared { keys, look, options, clock }) }
    }

    /// Takes other keys from now on; connections that stand go on.
    pub fn set_keys(&self, keys: KeySet) {
        *self.shared.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Has this called, and the ticket tried once more, when a ticket is for a key that is not there: who has added it uses it at once. It must be
    /// cheap, as anybody may show such tickets. Only the first one counts.
    pub fn when_key_is_unknown(&self, look: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.look.set(Box::new(look));
    }

    /// The keys, for making tickets of the server's own.
    pub fn keys(&self) -> Arc<KeySet> {
        Arc::clone(&self.shared.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("rxkad::Server").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl ServerSecurity for Server {
    fn index(&self) -> SecurityIndex {
        INDEX
    }

    fn accept(&self, _facts: &ConnectionFacts) -> Box<dyn SecurityClass> {
        Box::new(End { shared: Arc::clone(&self.shared), nonce: None, caller: None })
    }
}

/// The server's end of a connection.
struct End {
    shared: Arc<Shared>,
    /// The nonce of the challenge. A challenge that is sent again has the same, so that an answer to either is
    /// good.
    nonce: Option<u32>,
    caller: Option<Caller>,
}

/// The caller, once it is known.
struct Caller {
    sealer: Sealer,
    level: Level,
    identity: String,
    end: UnixTime,
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("rxkad::End").field("identity", &self.identity()).finish_non_exhaustive()
    }
}

impl SecurityClass for End {
    fn index(&self) -> SecurityIndex {
        INDEX
    }

    fn plaintext_capacity(&self, body: usize) -> usize {
        // Nothing is sent before the level is known.
        Sealer::capacity(self.caller.as_ref().map_or(Level::Crypt, |c| c.level), body)
    }

    fn prepare(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        let caller = self.caller.as_ref().expect("calls run, and answer, once the client is known");
        caller.sealer.prepare(header, plain, out);
    }

    fn finish(&mut self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        if let Some(caller) = &self.caller {
            caller.sealer.finish(bodies);
        }
    }

    fn open(&mut self, header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        let caller = self.caller.as_ref().ok_or(codes::NOAUTH)?;
        if (self.shared.clock)() > caller.end {
            return Err(codes::EXPIRED);
        }
        caller.sealer.open(header, body)
    }

    fn is_authenticated(&self) -> bool {
        self.caller.is_some()
    }

    fn authenticates_data(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.level != Level::Clear)
    }

    fn challenge(&mut self, nonce: u64) -> Vec<u8> {
        let nonce = *self.nonce.get_or_insert(nonce as u32);
        Challenge { nonce, min_level: self.shared.options.min_level.number() }.to_bytes().to_vec()
    }

    fn handle_response(
        &mut self,
        facts: &ConnectionFacts,
        body: &[u8],
    ) -> Result<[CallNumber; CHANNELS], AbortCode> {
        let nonce = self.nonce.ok_or(codes::OUTOFSEQUENCE)?;
        let options = &self.shared.options;
        let sealed = SealedResponse::parse(body)?;
        let open = || {
            let keys = Arc::clone(&self.shared.keys.read().unwrap_or_else(PoisonError::into_inner));
            ticket::open(&keys, sealed.kvno, sealed.ticket, (self.shared.clock)(), options.names)
        };
        let ticket = open().or_else(|error| match (&error, self.shared.look.get()) {
            (TicketError::UnknownKey { .. }, Some(look)) => {
                look();
                open()
            }
            _ => Err(error),
        });
        let ticket = ticket.map_err(|error| error.code())?;
        let response = sealed.open(&ticket.session_key)?;
        if response.epoch != facts.epoch
            || response.connection != facts.connection
            || response.calls.iter().any(|call| call.0 > i32::MAX as u32)
        {
            return Err(codes::SEALEDINCON);
        }
        if response.nonce != nonce.wrapping_add(1) {
            return Err(codes::OUTOFSEQUENCE);
        }
        let level = response.level().filter(|level| *level >= options.min_level).ok_or(codes::LEVELFAIL)?;
        let identity = options.realms.identify(&ticket.name, &ticket.instance, &ticket.realm);
        let identity = identity.ok_or(codes::BADTICKET)?.to_string();
        let sealer = Sealer::new(&ticket.session_key, facts.epoch, facts.connection, level);
        self.caller = Some(Caller { sealer, level, identity, end: ticket.end });
        Ok(response.calls)
    }

    fn identity(&self) -> Option<&str> {
        self.caller.as_ref().map(|caller| &*caller.identity)
    }

    fn level(&self) -> SecurityLevel {
        self.caller.as_ref().map_or(SecurityLevel::CLEAR, |caller| caller.level.into())
    }
}
