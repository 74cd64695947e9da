//! The handshake of a device with a cell's database server: Noise_XK_25519_ChaChaPoly_BLAKE2s, of the crate `snow`.
//!
//! ```text
//!   device, knows the cell's public key           server
//!     1: ephemeral key ─────────────────────────▶  one Diffie-Hellman
//!            ◀──────── 2: ephemeral key             two: nobody but who has the cell's key could answer
//!     3: device key, sealed; request, sealed ───▶  one: the caller has the device key
//!            ◀──────── answer, sealed
//! ```
//!
//! The device's key and the request are read by nobody who has not the cell's private key at that time; later theft of either private key
//! opens no handshake that was recorded (a thief of the cell's learns which devices called). A message that was changed, or is made with
//! another key or for another cell, ends the handshake.
//!
//! Each end is a value that is used up by its next step, so that no message is taken twice. What the messages travel in, and how often
//! somebody may try, is left to others.

use crate::keys::{KEY_BYTES, KeyPair, PublicKey};
use afs_wire::join::JOIN_MESSAGE_MAX;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState, TransportState};
use std::fmt;
use zeroize::Zeroizing;

/// The protocol, by its name in Noise's specification.
const PROTOCOL: &str = "Noise_XK_25519_ChaChaPoly_BLAKE2s";

pub(crate) const CURVE: DHChoice = DHChoice::Curve25519;

/// What both ends say first, in front of the cell's name: a handshake of another form of this protocol fails.
const PROLOGUE: &[u8] = b"afar join 1 ";

/// Bytes that a message of the handshake has at most beyond its payload: two keys, and two checksums.
const OVERHEAD: usize = 2 * KEY_BYTES + 2 * 16;

/// Longest request and longest answer, in bytes.
pub const PAYLOAD_MAX: usize = JOIN_MESSAGE_MAX - OVERHEAD;

/// Random bytes, good for one key or one handshake. Forgotten when dropped, and never printed.
pub struct Chance(Zeroizing<[u8; 32]>);

impl Chance {
    /// Takes bytes that nobody can guess.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chance(..)")
    }
}

/// The reason why a handshake ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeError {
    /// A message was changed or cut, or is made with another key or for another cell.
    BadMessage,
    /// A request or an answer is longer than [`PAYLOAD_MAX`].
    TooLong,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadMessage => "a message was changed, or made with another key or for another cell",
            Self::TooLong => "a message is too long",
        })
    }
}

impl std::error::Error for HandshakeError {}

/// The device's end.
pub struct Initiator(HandshakeState);

impl Initiator {
    /// Begins a handshake of a device with a cell; the first message.
    ///
    /// # Errors
    /// If the cell's key cannot be one.
    pub fn begin(
        device: &KeyPair,
        cell: &str,
        key: PublicKey,
        chance: Chance,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let prologue = prologue(cell);
        let builder = builder(chance).prologue(&prologue).map_err(refused)?;
        let builder = builder.local_private_key(device.private()).map_err(refused)?;
        let mut state =
            builder.remote_public_key(&key.0).and_then(Builder::build_initiator).map_err(refused)?;
        let message = write(&mut state, &[])?;
        Ok((Self(state), message))
    }

    /// Takes the second message, and makes the third with a request in it.
    ///
    /// # Errors
    /// If the message is not of the cell; the request is not sent then.
    pub fn finish(mut self, message: &[u8], request: &[u8]) -> Result<(Channel, Vec<u8>), HandshakeError> {
        // Nothing is in it. What there may be some day is for later releases.
        read(&mut self.0, message)?;
        let message = write(&mut self.0, request)?;
        let channel = self.0.into_transport_mode().map_err(refused)?;
        Ok((Channel(channel), message))
    }
}

/// The server's end, which has taken a first message.
pub struct Responder(HandshakeState);

impl Responder {
    /// Takes the first message of a handshake with a key of the cell, and makes the second.
    ///
    /// # Errors
    /// If it is not for this key and cell.
    pub fn begin(
        key: &KeyPair,
        cell: &str,
        message: &[u8],
        chance: Chance,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let prologue = prologue(cell);
        let builder = builder(chance).prologue(&prologue).map_err(refused)?;
        let mut state =
            builder.local_private_key(key.private()).and_then(Builder::build_responder).map_err(refused)?;
        read(&mut state, message)?;
        let message = write(&mut state, &[])?;
        Ok((Self(state), message))
    }

    /// Takes the third message: the request in it, and whose it is.
    ///
    /// # Errors
    /// If it does not fit to the first two.
    pub fn finish(
        mut self,
        message: &[u8],
    ) -> Result<(Channel, PublicKey, Zeroizing<Vec<u8>>), HandshakeError> {
        let request = read(&mut self.0, message)?;
        let device = self.0.get_remote_static().and_then(|key| key.try_into().ok());
        let device = device.map(PublicKey).filter(|key| !key.is_degenerate());
        let device = device.ok_or(HandshakeError::BadMessage)?;
        let channel = self.0.into_transport_mode().map_err(refused)?;
        Ok((Channel(channel), device, request))
    }
}

/// What the handshake has made: what one end seals, only the other can open.
pub struct Channel(TransportState);

impl Channel {
    /// Seals an answer.
    ///
    /// # Errors
    /// If it is too long.
    pub fn seal(&mut self, answer: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        let mut out = room(answer)?;
        let length = self.0.write_message(answer, &mut out).map_err(refused)?;
        out.truncate(length);
        Ok(out)
    }

    /// Opens what the other end has sealed.
    ///
    /// # Errors
    /// If it was changed.
    pub fn open(&mut self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, HandshakeError> {
        let mut out = Zeroizing::new(vec![0; fits(sealed)?]);
        let length = self.0.read_message(sealed, &mut out).map_err(refused)?;
        out.truncate(length);
        Ok(out)
    }
}

macro_rules! unprinted {
    ($($name:ident)*) => { $(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    )* };
}

unprinted!(Initiator Responder Channel);

fn refused(_: snow::Error) -> HandshakeError {
    HandshakeError::BadMessage
}

fn prologue(cell: &str) -> Vec<u8> {
    [PROLOGUE, cell.to_ascii_lowercase().as_bytes()].concat()
}

fn room(payload: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    if payload.len() > PAYLOAD_MAX {
        Err(HandshakeError::TooLong)
    } else {
        Ok(vec![0; payload.len() + OVERHEAD])
    }
}

/// The length of a message, which what is in it does not exceed.
fn fits(message: &[u8]) -> Result<usize, HandshakeError> {
    if message.len() > JOIN_MESSAGE_MAX { Err(HandshakeError::TooLong) } else { Ok(message.len()) }
}

fn write(state: &mut HandshakeState, payload: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    let mut out = room(payload)?;
    let length = state.write_message(payload, &mut out).map_err(refused)?;
    out.truncate(length);
    Ok(out)
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Result<Zeroizing<Vec<u8>>, HandshakeError> {
    let mut out = Zeroizing::new(vec![0; fits(message)?]);
    let length = state.read_message(message, &mut out).map_err(refused)?;
    out.truncate(length);
    Ok(out)
}

fn builder(chance: Chance) -> Builder<'static> {
    let params: NoiseParams = PROTOCOL.parse().expect("the protocol is one that is built in");
    Builder::with_resolver(params, Box::new(Chosen(chance)))
}

/// The ciphers of `snow`, with random numbers that come in as an argument.
struct Chosen(Chance);

impl CryptoResolver for Chosen {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Seeded(StdRng::from_seed(*self.0.bytes()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct Seeded(StdRng);

impl Random for Seeded {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        self.0.fill_bytes(out);
        Ok(())
    }
}
