//! The client's end of an rxgk connection: shows a token when it is asked, and seals with keys of the token's secret from the start.

use super::response::{Authenticator, CHALLENGE_LEN, Response};
use super::transport::{Limits, Origin, Role, Transport, overhead};
use super::{AppData, Fault, RxgkTime, Token};
use crate::time::Clock;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::abort::AbortCode;
use rx_proto::ids::{ConnectionId, Epoch, SecurityIndex, ServiceId};
use rx_proto::packet::Header;
use rx_proto::security::{ConnectionFacts, SecurityClass};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The services of file servers, which alone get [`AppData`]: AFS's and AuriStor's.
const FILE_SERVICES: [ServiceId; 2] = [ServiceId(1), ServiceId(2500)];

/// The client's end of a connection. It shows what it has whether it has expired or not: that is the server's to say.
pub struct Client {
    token: Arc<Token>,
    app_data: Option<Arc<AppData>>,
    clock: Clock,
    seed: [u8; 32],
    /// Made with the first packet, which tells the connection's name.
    transport: Option<Box<Transport>>,
}

impl Client {
    /// An end that shows this token. The seed is for what encryption needs of chance: no two connections may have the same. Connections
    /// share a token: see [`Self::factory`].
    pub fn new(token: Arc<Token>, clock: Clock, seed: [u8; 32]) -> Self {
        Self { token, app_data: None, clock, seed, transport: None }
    }

    /// Adds this to the answer to file servers.
    #[must_use]
    pub fn with_app_data(self, app_data: Arc<AppData>) -> Self {
        Self { app_data: Some(app_data), ..self }
    }

    /// Returns the factory that `rx`'s `Endpoint::peer` wants: it makes an end for each connection that it makes.
    pub fn factory(
        token: Token,
        clock: Clock,
        seed: [u8; 32],
    ) -> impl Fn() -> Box<dyn SecurityClass> + Send + Sync + 'static {
        Self::factory_with(token, None, clock, seed)
    }

    /// The same for a cache manager, which adds this to the answer to file servers.
    pub fn factory_with(
        token: Token,
        app_data: Option<Arc<AppData>>,
        clock: Clock,
        seed: [u8; 32],
    ) -> impl Fn() -> Box<dyn SecurityClass> + Send + Sync + 'static {
        let (token, seeds) = (Arc::new(token), Mutex::new(StdRng::from_seed(seed)));
        move || {
            let seed = seeds.lock().unwrap_or_else(PoisonError::into_inner).random();
            Box::new(Self {
                app_data: app_data.clone(),
                ..Self::new(Arc::clone(&token), Arc::clone(&clock), seed)
            })
        }
    }

    fn transport(&mut self, epoch: Epoch, connection: ConnectionId) -> &mut Transport {
        self.transport.get_or_insert_with(|| {
            let Token { dialect, level, lifetime, bytelife, .. } = *self.token;
            let mut rng = StdRng::from_seed(self.seed);
            // The second, and within it a random part: no two connections of a name have the same.
            let start = RxgkTime::of((self.clock)()).0 + rng.random_range(0..RxgkTime::SECOND);
            let secret = self.token.secret.clone();
            let origin = Origin { secret, epoch, connection, start: RxgkTime(start) };
            let limits = Limits::of(dialect, lifetime, bytelife);
            Box::new(Transport::new(origin, Role::Client, dialect, level, limits, 0, rng))
        })
    }

    fn answer(&mut self, facts: &ConnectionFacts, challenge: &[u8]) -> Result<Vec<u8>, Fault> {
        let nonce = *challenge.first_chunk::<CHALLENGE_LEN>().ok_or(Fault::PacketShort)?;
        let token = Arc::clone(&self.token);
        let app_data = self.app_data.as_ref().filter(|_| FILE_SERVICES.contains(&facts.service));
        let app_data = app_data.map(|data| data.to_bytes(token.dialect)).unwrap_or_default();
        let transport = self.transport(facts.epoch, facts.connection);
        let authenticator = Authenticator {
            nonce,
            app_data: &app_data,
            level: token.level.number(),
            epoch: facts.epoch,
            connection: facts.connection.0,
            calls: facts.calls,
        };
        let key = transport.origin().key(transport.number());
        let authenticator = authenticator.seal(&key, transport.rng());
        let start = transport.origin().start;
        Ok(Response { start, token: &token.token, authenticator: &authenticator }.to_bytes())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Token { dialect, level, .. } = &*self.token;
        f.debug_struct("rxgk::Client").field("dialect", dialect).field("level", level).finish_non_exhaustive()
    }
}

impl SecurityClass for Client {
    fn index(&self) -> SecurityIndex {
        self.token.dialect.index()
    }

    fn plaintext_capacity(&self, body: usize) -> usize {
        body.saturating_sub(overhead(self.token.level, self.token.secret.kind()))
    }

    fn prepare(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        let now = (self.clock)();
        self.transport(header.epoch, header.connection).prepare(now, header, plain, out);
    }

    fn finish(&mut self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        if let Some(transport) = &mut self.transport {
            transport.finish(bodies);
        }
    }

    fn open(&mut self, header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        let dialect = self.token.dialect;
        let opened = self.transport(header.epoch, header.connection).open(header, body);
        opened.map_err(|fault| fault.code(dialect))
    }

    fn handle_challenge(&mut self, facts: &ConnectionFacts, body: &[u8]) -> Result<Vec<u8>, AbortCode> {
        self.answer(facts, body).map_err(|fault| fault.code(self.token.dialect))
    }

    fn response_checksum(&self) -> u16 {
        self.transport.as_ref().map_or(0, |transport| transport.number() as u16)
    }
}
