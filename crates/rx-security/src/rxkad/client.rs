//! The client's end of an rxkad connection: shows a token when it is asked, and seals with the token's key from the start.

use super::packet::Sealer;
use super::response::{Challenge, Response};
use super::{INDEX, Level, codes};
use crate::ticket::Token;
use bytes::Bytes;
use rx_proto::abort::AbortCode;
use rx_proto::ids::SecurityIndex;
use rx_proto::packet::Header;
use rx_proto::security::{ConnectionFacts, SecurityClass};
use std::fmt;
use std::sync::Arc;

/// The client's end of a connection. It shows what it has whether it has expired or not: that is the server's to say.
pub struct Client {
    token: Arc<Token>,
    level: Level,
    /// Made with the first packet, which tells the connection's name.
    sealer: Option<Sealer>,
}

impl Client {
    /// An end that shows this token and protects so much. Connections share a token: see [`Self::factory`].
    pub fn new(token: Arc<Token>, level: Level) -> Self {
        Self { token, level, sealer: None }
    }

    /// Returns the factory that `rx`'s `Endpoint::peer` wants: it makes an end for each connection that it makes.
    pub fn factory(
        token: Token,
        level: Level,
    ) -> impl Fn() -> Box<dyn SecurityClass> + Send + Sync + 'static {
        let token = Arc::new(token);
        move || Box::new(Self::new(Arc::clone(&token), level))
    }

    fn sealer(&mut self, header: &Header) -> &Sealer {
        self.sealer.get_or_insert_with(|| {
            Sealer::new(&self.token.session_key, header.epoch, header.connection, self.level)
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("rxkad::Client").field("level", &self.level).finish_non_exhaustive()
    }
}

impl SecurityClass for Client {
    fn index(&self) -> SecurityIndex {
        INDEX
    }

    fn plaintext_capacity(&self, body: usize) -> usize {
        Sealer::capacity(self.level, body)
    }

    fn prepare(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        self.sealer(header).prepare(header, plain, out);
    }

    fn finish(&mut self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        if let Some(sealer) = &self.sealer {
            sealer.finish(bodies);
        }
    }

    fn open(&mut self, header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        self.sealer(header).open(header, body)
    }

    fn handle_challenge(&mut self, facts: &ConnectionFacts, body: &[u8]) -> Result<Vec<u8>, AbortCode> {
        let challenge = Challenge::parse(body)?;
        if challenge.min_level > self.level.number() {
            return Err(codes::LEVELFAIL);
        }
        let response = Response {
            epoch: facts.epoch,
            connection: facts.connection,
            calls: facts.calls,
            nonce: challenge.nonce.wrapping_add(1),
            level: self.level.number(),
        };
        Ok(response.seal(&self.token.session_key, self.token.kvno, &self.token.ticket))
    }
}
