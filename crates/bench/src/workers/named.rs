//! A security class for the lab: the client says its name, and is believed. It seals nothing and proves nothing; what it
//! gives is an identity, so that a server's calls have owners that are not addresses.

use bytes::Bytes;
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CHANNELS, CallNumber, SecurityIndex};
use rx_proto::packet::Header;
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};

/// A number that no class of AFS has.
const INDEX: SecurityIndex = SecurityIndex(200);
/// Longest name, bytes.
const NAME_MAX: usize = 64;
/// A response begins with the challenge's nonce and the current call numbers.
const NONCE_LEN: usize = 8;
const CALLS_LEN: usize = 4 * CHANNELS;

/// One end.
#[derive(Debug)]
pub(super) enum Named {
    /// Says this name.
    Client(String),
    /// Waits for one, which answers this nonce.
    Server { nonce: Option<u64>, name: Option<String> },
}

impl Named {
    pub(super) fn client(name: &str) -> Box<dyn SecurityClass> {
        assert!(name.len() <= NAME_MAX, "names are the bench's own");
        Box::new(Named::Client(name.to_string()))
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
        matches!(self, Named::Client(_) | Named::Server { name: Some(_), .. })
    }

    fn challenge(&mut self, fresh: u64) -> Vec<u8> {
        let Named::Server { nonce, .. } = self else { return Vec::new() };
        nonce.get_or_insert(fresh).to_be_bytes().to_vec()
    }

    fn handle_challenge(&mut self, facts: &ConnectionFacts, body: &[u8]) -> Result<Vec<u8>, AbortCode> {
        let Named::Client(name) = self else { return Err(AbortCode::PROTOCOL_ERROR) };
        let mut response = body.get(..NONCE_LEN).ok_or(AbortCode::PROTOCOL_ERROR)?.to_vec();
        response.extend(facts.calls.iter().flat_map(|call| call.0.to_be_bytes()));
        response.extend_from_slice(name.as_bytes());
        Ok(response)
    }

    fn handle_response(
        &mut self,
        _facts: &ConnectionFacts,
        body: &[u8],
    ) -> Result<[CallNumber; CHANNELS], AbortCode> {
        const BAD: AbortCode = AbortCode::PROTOCOL_ERROR;
        let Named::Server { nonce: Some(nonce), name } = self else { return Err(BAD) };
        let (answer, rest) = body.split_at_checked(NONCE_LEN).ok_or(BAD)?;
        let (calls, said) = rest.split_at_checked(CALLS_LEN).ok_or(BAD)?;
        if answer != nonce.to_be_bytes() || said.is_empty() || said.len() > NAME_MAX {
            return Err(BAD);
        }
        *name = Some(std::str::from_utf8(said).map_err(|_| BAD)?.to_string());
        let call = |i: usize| u32::from_be_bytes(std::array::from_fn(|byte| calls[4 * i + byte]));
        Ok(std::array::from_fn(|i| CallNumber(call(i))))
    }

    fn identity(&self) -> Option<&str> {
        match self {
            Named::Client(_) => None,
            Named::Server { name, .. } => name.as_deref(),
        }
    }
}

/// The security by which a service accepts such clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedServer;

impl ServerSecurity for NamedServer {
    fn index(&self) -> SecurityIndex {
        INDEX
    }

    fn accept(&self, _facts: &ConnectionFacts) -> Box<dyn SecurityClass> {
        Box::new(Named::Server { nonce: None, name: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rx_proto::ids::{ConnectionId, Epoch, ServiceId};

    fn facts() -> ConnectionFacts {
        let calls = std::array::from_fn(|i| CallNumber(i as u32 + 7));
        ConnectionFacts { epoch: Epoch(1), connection: ConnectionId(4), service: ServiceId(147), calls }
    }

    #[test]
    fn a_client_is_who_it_says_it_is() {
        let (mut client, mut server) = (Named::client("crowd"), NamedServer.accept(&facts()));
        assert!(!server.is_authenticated());
        let challenge = server.challenge(0x1234);
        assert_eq!(server.challenge(0x5678), challenge, "a challenge that is sent again is the same");
        let response = client.handle_challenge(&facts(), &challenge).unwrap();
        assert_eq!(server.handle_response(&facts(), &response), Ok(facts().calls));
        assert_eq!((server.is_authenticated(), server.identity()), (true, Some("crowd")));
    }

    #[test]
    fn a_response_that_is_none_is_refused() {
        let mut server = NamedServer.accept(&facts());
        let challenge = server.challenge(1);
        let good = Named::client("x").handle_challenge(&facts(), &challenge).unwrap();
        let mut other_nonce = good.clone();
        other_nonce[7] ^= 1;
        for bad in [&good[..good.len() - 1], &good[..20], &[], &other_nonce] {
            assert_eq!(server.handle_response(&facts(), bad), Err(AbortCode::PROTOCOL_ERROR));
            assert_eq!(server.identity(), None);
        }
    }
}
