//! The interface of a security class, and the null class that does nothing (Rx notes 1). A class
//! is an object per connection and end: it seals what leaves and opens what comes, and speaks the challenge and response.

use crate::abort::AbortCode;
use crate::ids::{CHANNELS, CallNumber, ConnectionId, Epoch, SecurityIndex, SecurityLevel, ServiceId};
use crate::packet::Header;
use bytes::Bytes;
use std::fmt::Debug;
use std::net::SocketAddr;

/// The connection as a class sees it.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionFacts {
    /// The client instance.
    pub epoch: Epoch,
    /// The connection.
    pub connection: ConnectionId,
    /// The service it is for.
    pub service: ServiceId,
    /// The call number of each channel, as a RESPONSE tells them to a server: of the running call, or of the next one if none runs.
    pub calls: [CallNumber; CHANNELS],
    /// The address of the other end. A server's client may get another one later.
    pub peer: SocketAddr,
    /// What stands in the header of the RESPONSE in place of a checksum, for a server that reads it: rxgk's key number. Else 0.
    pub checksum: u16,
}

/// One end of one connection's security.
pub trait SecurityClass: Send + Debug {
    /// The number of the class.
    fn index(&self) -> SecurityIndex;

    /// The bytes of plain text that fit into a packet body of `body` bytes. All packets of a call but the last carry as
    /// much.
    fn plaintext_capacity(&self, body: usize) -> usize {
        body
    }

    /// Appends a body for `plain` to `out`, as long as its sealed form will be, and sets the header's checksum. Called again with
    /// the same header, but for serial and flags, when a packet is sent again. What goes out is what [`finish`](Self::finish) then
    /// makes of the body.
    fn prepare(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>);

    /// Makes the sealed form of prepared bodies, in place; with several at once, a processor is used better. All have one length, but
    /// the last may be shorter.
    fn finish(&mut self, bodies: &mut dyn Iterator<Item = &mut [u8]>);

    /// Appends the sealed form of `plain` to `out`, and sets the header's checksum.
    fn seal(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        self.prepare(header, plain, out);
        self.finish(&mut std::iter::once(&mut out[start..]));
    }

    /// Checks and opens a DATA packet's body. An error ends the connection with that code.
    fn open(&mut self, header: &Header, body: Bytes) -> Result<Bytes, AbortCode>;

    /// Server: whether the client is still let in, for its packets other than DATA: a client that only fetches sends nothing that is opened. An
    /// error ends the connection with that code.
    fn may_go_on(&mut self) -> Result<(), AbortCode> {
        Ok(())
    }

    /// Server: whether calls may run. Until then a challenge goes out and requests are held.
    fn is_authenticated(&self) -> bool {
        true
    }

    /// Server: whether a DATA packet that opens was made by the client, and by nobody else. Only then is it believed from another
    /// address than the connection's. Never so where packets are neither sealed nor encrypted.
    fn authenticates_data(&self) -> bool {
        false
    }

    /// Server: the body of a CHALLENGE; `nonce` is random.
    fn challenge(&mut self, nonce: u64) -> Vec<u8> {
        let _ = nonce;
        Vec::new()
    }

    /// Server: checks a RESPONSE. Returns the client's current call numbers, so that a restarted server goes on where the
    /// client is.
    fn handle_response(
        &mut self,
        facts: &ConnectionFacts,
        body: &[u8],
    ) -> Result<[CallNumber; CHANNELS], AbortCode> {
        let _ = (facts, body);
        Err(AbortCode::PROTOCOL_ERROR)
    }

    /// Client: the body of the RESPONSE to a challenge.
    fn handle_challenge(&mut self, facts: &ConnectionFacts, body: &[u8]) -> Result<Vec<u8>, AbortCode> {
        let _ = (facts, body);
        Err(AbortCode::PROTOCOL_ERROR)
    }

    /// Client: what stands in the header of that RESPONSE in place of a checksum.
    fn response_checksum(&self) -> u16 {
        0
    }

    /// The identity that the peer has shown, in the class's own notation, which its crate reads back (`rx_security::Identity`
    /// does for rxkad); `None` for nobody. All tickets of a user have the same text: bytes are counted for it (see `fair`).
    fn identity(&self) -> Option<&str> {
        None
    }

    /// Server: how well what the connection carries is protected.
    fn level(&self) -> SecurityLevel {
        SecurityLevel::CLEAR
    }
}

/// The maker of a security object for each new connection of a service, of one security class.
pub trait ServerSecurity: Send + Sync + Debug {
    /// The number of the class.
    fn index(&self) -> SecurityIndex;
    /// The server's end for a new connection.
    fn accept(&self, facts: &ConnectionFacts) -> Box<dyn SecurityClass>;
}

/// rxnull: nothing is checked and nothing hidden.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl SecurityClass for Null {
    fn index(&self) -> SecurityIndex {
        SecurityIndex(0)
    }

    fn prepare(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        header.checksum = 0;
        out.extend_from_slice(plain);
    }

    fn finish(&mut self, _bodies: &mut dyn Iterator<Item = &mut [u8]>) {}

    fn open(&mut self, _header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        Ok(body)
    }
}

impl ServerSecurity for Null {
    fn index(&self) -> SecurityIndex {
        SecurityIndex(0)
    }

    fn accept(&self, _facts: &ConnectionFacts) -> Box<dyn SecurityClass> {
        Box::new(Self)
    }
}
