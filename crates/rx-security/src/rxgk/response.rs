//! The bodies of CHALLENGE and RESPONSE, and what is sealed in the latter (rxgk notes 4).

use super::{Fault, RxgkTime, Secret, usage};
use crate::kerberos;
use rand::CryptoRng;
use rx_proto::ids::{CHANNELS, CallNumber, Epoch};
use rxgen::{DecodeError, Decoder, Xdr};
use zeroize::Zeroizing;

/// Length of a CHALLENGE: a nonce, and nothing else.
pub const CHALLENGE_LEN: usize = 20;
/// Most call numbers in an answer: one for each channel.
pub const CALLS_MAX: usize = CHANNELS;

/// Longest token in a RESPONSE, in bytes: as Linux has it.
pub(super) const TOKEN_MAX: usize = 16_384;
/// Longest sealed authenticator, in bytes. OpenAFS makes 1416 at most; that of the other dialect has a callback's token in it.
const AUTHENTICATOR_MAX: usize = 4096;

/// The body of a RESPONSE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response<'a> {
    /// The client's time, a part of what keys are made of.
    pub start: RxgkTime,
    /// The token, which the server can open.
    pub token: &'a [u8],
    /// The sealed [`Authenticator`].
    pub authenticator: &'a [u8],
}

impl<'a> Response<'a> {
    /// Reads the body. What stands behind it is passed over.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(body: &'a [u8]) -> Result<Self, Fault> {
        let read = |mut fields: Decoder<'a>| {
            Ok::<_, DecodeError>(Self {
                start: RxgkTime(i64::decode(&mut fields)?),
                token: opaque(&mut fields, TOKEN_MAX, "token")?,
                authenticator: opaque(&mut fields, AUTHENTICATOR_MAX, "authenticator")?,
            })
        };
        read(Decoder::new(body)).map_err(|_| Fault::Unreadable)
    }

    /// The body.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24 + self.token.len() + self.authenticator.len());
        self.start.0.encode(&mut out);
        put_opaque(&mut out, self.token);
        put_opaque(&mut out, self.authenticator);
        out
    }
}

/// A client's word on what connection its token is shown for, and in answer to what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Authenticator<'a> {
    /// The server's challenge.
    pub nonce: [u8; CHALLENGE_LEN],
    /// What the application adds, or nothing: see [`AppData`](super::AppData).
    pub app_data: &'a [u8],
    /// The level of the connection, as a number.
    pub level: u32,
    /// The connection.
    pub epoch: Epoch,
    /// The connection, as the number on the wire: the channel's bits are 0.
    pub connection: u32,
    /// The number of each channel's running call, or of its next one; 0 if there was none yet.
    pub calls: [CallNumber; CALLS_MAX],
}

impl<'a> Authenticator<'a> {
    /// Reads what was sealed.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(plain: &'a [u8]) -> Result<Self, Fault> {
        let read = |mut fields: Decoder<'a>| {
            let nonce = fields.take(CHALLENGE_LEN, "nonce")?.try_into().expect("so many bytes were taken");
            let app_data = opaque(&mut fields, AUTHENTICATOR_MAX, "appdata")?;
            let (level, epoch) = (fields.word("level")?, Epoch(fields.word("epoch")?));
            let connection = fields.word("cid")?;
            let mut calls = [CallNumber(0); CALLS_MAX];
            let count = fields.count(CALLS_MAX, 4, "call numbers")?;
            for call in &mut calls[..count] {
                *call = CallNumber(fields.word("call number")?);
            }
            fields.finish()?;
            Ok::<_, DecodeError>(Self { nonce, app_data, level, epoch, connection, calls })
        };
        read(Decoder::new(plain)).map_err(|_| Fault::Unreadable)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(56 + self.app_data.len());
        out.extend_from_slice(&self.nonce);
        put_opaque(&mut out, self.app_data);
        for word in [self.level, self.epoch.0, self.connection, CALLS_MAX as u32] {
            word.encode(&mut out);
        }
        self.calls.iter().for_each(|call| call.0.encode(&mut out));
        out
    }

    /// The sealed form, under a transport key.
    pub(super) fn seal(&self, key: &Secret, rng: &mut impl CryptoRng) -> Vec<u8> {
        kerberos::encrypt(key.kind(), key.bytes(), usage::AUTHENTICATOR, &self.to_bytes(), rng)
            .expect("secrets are of kinds that encrypt")
    }
}

/// Opens a sealed authenticator; [`Authenticator::parse`] reads it.
pub(super) fn open_authenticator(key: &Secret, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Fault> {
    kerberos::decrypt(key.kind(), key.bytes(), usage::AUTHENTICATOR, sealed).ok_or(Fault::SealedIncon)
}

/// The bytes behind a count.
pub(super) fn opaque<'a>(
    fields: &mut Decoder<'a>,
    max: usize,
    what: &'static str,
) -> Result<&'a [u8], DecodeError> {
    let count = fields.count(max, 1, what)?;
    fields.take_padded(count, what)
}

/// Appends a count, so many bytes, and zeros up to a word.
pub(super) fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    (bytes.len() as u32).encode(out);
    out.extend_from_slice(bytes);
    out.resize(out.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
}
