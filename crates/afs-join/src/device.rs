//! The device's side of a call to the cell: the three procedures of JOIN in their order, each with what the answer before it gave. Whoever
//! has the network makes the calls, and begins anew when one of them fails.

use crate::handshake::{Chance, Channel, HandshakeError, Initiator};
use crate::keys::{KeyPair, PublicKey};
use afs_wire::ids::CellName;
use afs_wire::join::{JoinBegin, JoinFinish, JoinHello, JoinReply, JoinRequest, reply};
use rxgen::xdr::{Opaque, from_bytes, to_bytes};
use std::fmt;
use zeroize::Zeroizing;

/// What a device knows of its cell, and by what the cell knows the device.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The cell.
    pub cell: CellName,
    /// The cell's public key.
    pub key: PublicKey,
    /// The device's key.
    pub device: KeyPair,
}

/// The reason why an answer is no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerError {
    /// It is not of the cell, or was changed.
    Handshake(HandshakeError),
    /// It is of another release, which this program does not understand.
    Unknown,
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handshake(error) => write!(f, "the server does not have the cell's key: {error}"),
            Self::Unknown => f.write_str("the server's answer is of another release of afar"),
        }
    }
}

impl std::error::Error for AnswerError {}

impl From<HandshakeError> for AnswerError {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl Membership {
    /// The first call, for a cookie.
    pub fn hello(&self) -> JoinHello {
        JoinHello { key: self.key.id() }
    }

    /// The second call, with the cookie: the handshake begins.
    ///
    /// # Errors
    /// If the cell's key cannot be one.
    pub fn begin(
        &self,
        hello: &reply::JoinHello,
        chance: Chance,
    ) -> Result<(Begun, JoinBegin), HandshakeError> {
        let (initiator, message) = Initiator::begin(&self.device, self.cell.as_str(), self.key, chance)?;
        let message = Opaque::new(message).map_err(|_| HandshakeError::TooLong)?;
        Ok((Begun(initiator), JoinBegin { cookie: hello.cookie, key: self.key.id(), message }))
    }
}

/// A device that has begun a handshake.
#[derive(Debug)]
pub struct Begun(Initiator);

impl Begun {
    /// The third call, with what the device wants.
    ///
    /// # Errors
    /// If the answer is not of the cell: nothing of the request is shown to its sender.
    pub fn finish(
        self,
        begin: &reply::JoinBegin,
        request: &JoinRequest,
    ) -> Result<(Asked, JoinFinish), HandshakeError> {
        let request = Zeroizing::new(to_bytes(request));
        let (channel, message) = self.0.finish(&begin.message, &request)?;
        let message = Opaque::new(message).map_err(|_| HandshakeError::TooLong)?;
        Ok((Asked(channel), JoinFinish { session: begin.session, message }))
    }
}

/// A device that has said what it wants.
#[derive(Debug)]
pub struct Asked(Channel);

impl Asked {
    /// What the cell says.
    ///
    /// # Errors
    /// If it is not the cell that says it.
    pub fn answer(mut self, finish: &reply::JoinFinish) -> Result<JoinReply, AnswerError> {
        let answer = self.0.open(&finish.message)?;
        from_bytes(&answer).map_err(|_| AnswerError::Unknown)
    }
}
