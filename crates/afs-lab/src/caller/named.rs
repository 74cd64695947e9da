//! A security class for tests, in the place of rxkad: the client says its name and is believed. A name such as `user!auth` or `user!crypt`
//! is that of a user whose connection is protected so well.

use bytes::Bytes;
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CHANNELS, CallNumber, SecurityIndex, SecurityLevel};
use rx_proto::packet::Header;
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};

const INDEX: SecurityIndex = SecurityIndex(2);

/// Either end of a connection.
#[derive(Debug)]
pub struct Named {
    /// The client's own name, or what the client has said.
    pub name: Option<String>,
}

/// Accepts everybody who says a name.
#[derive(Debug)]
pub struct NamedServer;

impl ServerSecurity for NamedServer {
    fn index(&self) -> SecurityIndex {
        INDEX
    }

    fn accept(&self, _facts: &ConnectionFacts) -> Box<dyn SecurityClass> {
        Box::new(Named { name: None })
    }
}

impl SecurityClass for Named {
    fn index(&self) -> SecurityIndex {
        INDEX
    }

    fn prepare(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        header.checksum = 0;
        out.extend_from_slice(plain);
    }

    fn finish(&mut self, _bodies: &mut dyn Iterator<Item = &mut [u8]>) {}

    fn open(&mut self, _header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        Ok(body)
    }

    fn is_authenticated(&self) -> bool {
        self.name.is_some()
    }

    fn challenge(&mut self, nonce: u64) -> Vec<u8> {
        nonce.to_be_bytes().to_vec()
    }

    fn handle_response(
        &mut self,
        facts: &ConnectionFacts,
        body: &[u8],
    ) -> Result<[CallNumber; CHANNELS], AbortCode> {
        let name = String::from_utf8(body.to_vec()).map_err(|_| AbortCode::PROTOCOL_ERROR)?;
        self.name = Some(name);
        Ok(facts.calls)
    }

    fn handle_challenge(&mut self, _facts: &ConnectionFacts, _body: &[u8]) -> Result<Vec<u8>, AbortCode> {
        Ok(self.name.clone().unwrap_or_default().into_bytes())
    }

    fn identity(&self) -> Option<&str> {
        Some(self.name.as_deref()?.split('!').next().unwrap_or_default())
    }

    fn level(&self) -> SecurityLevel {
        match self.name.as_deref().and_then(|name| name.split_once('!')) {
            Some((_, "auth")) => SecurityLevel::AUTH,
            Some((_, "crypt")) => SecurityLevel::CRYPT,
            _ => SecurityLevel::CLEAR,
        }
    }
}
