//! rxgk, the security class with the encryption of Kerberos (rxgk notes): a client shows a token in answer to a challenge, and from then
//! on each packet has the number of its key in its header, at level auth a checksum, and at level crypt all of it is encrypted. There
//! are two dialects of it, which differ in little but their tokens and codes: see [`Dialect`].
//!
//! ```text
//!   client                                server
//!     DATA, sealed ──────────────────────▶  held
//!            ◀──────── CHALLENGE: nonce
//!     RESPONSE: start time, token, {nonce, level, connection, call numbers} ─▶  opens the token with its key: knows who, and K0
//!            ◀──────── DATA, sealed
//! ```
//!
//! K0 is the secret that client and server share by the token. Each connection's transport keys are made of it (`transport`); they
//! are replaced by others after a time and so many bytes, without a pause. How a client gets its token is not decided here: those who
//! have the cell's key make one with [`Token::of_superuser`] or [`Token::of_user`].
//!
//! Here are the dialects and what both ends share; the ends are [`Client`] and [`Server`].

mod appdata;
mod callback;
mod client;
pub mod codes;
mod combine;
mod names;
mod response;
mod server;
mod token;
mod transport;

use crate::keys::EncType;
use crate::time::UnixTime;
use rx_proto::ids::SecurityIndex;
use std::fmt;
use std::time::Duration;
use zeroize::Zeroizing;

pub use appdata::{AppData, Callback};
pub use callback::{CallbackKeys, file_server};
pub use client::Client;
pub use codes::Fault;
pub use combine::combine_for_server;
pub use names::AuthName;
pub use response::{Authenticator, CALLS_MAX, CHALLENGE_LEN, Response};
pub use server::{Server, ServerOptions};
pub use token::{Combined, Content, FOR_LINUX, Form, Grant, MakeError, Token, open, read, seal};

#[cfg(test)]
mod tests;

/// The two forms of rxgk (rxgk notes 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dialect {
    /// That of OpenAFS's development branches, of the drafts.
    Rxgk,
    /// That of AuriStor and of Linux since 6.16.
    Yfs,
}

impl Dialect {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Rxgk, Self::Yfs];

    /// That of calls between programs of afar: OpenAFS's codes say more.
    pub const OURS: Self = Self::Rxgk;

    /// Its number.
    pub const fn index(self) -> SecurityIndex {
        match self {
            Self::Rxgk => SecurityIndex(4),
            Self::Yfs => SecurityIndex(6),
        }
    }

    /// The dialect of a number.
    pub fn of_index(index: SecurityIndex) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.index() == index)
    }
}

/// The enctypes of tokens and transport keys, as clients wish for them (rxgk notes 2.1). All are strong. The last is some three times slower
/// than the others, as processors have instructions for SHA-1 and SHA-256, and few for SHA-384.
pub const ENCTYPES: [EncType; 4] =
    [EncType::AES256, EncType::AES128_SHA256, EncType::AES128, EncType::AES256_SHA384];

/// Key usages (rxgk notes 2.2).
mod usage {
    pub(super) const CLIENT_ENCRYPT: u32 = 1026;
    pub(super) const CLIENT_SUM: u32 = 1027;
    pub(super) const SERVER_ENCRYPT: u32 = 1028;
    pub(super) const SERVER_SUM: u32 = 1029;
    pub(super) const AUTHENTICATOR: u32 = 1030;
    pub(super) const TOKEN: u32 = 1036;
}

/// A secret with the enctype that it is for: K0, which is in a token, or a transport key. Forgotten when dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    kind: EncType,
    bytes: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// A secret of these bytes. `None` unless the enctype is one of [`ENCTYPES`], and they are as many as its keys have.
    pub fn new(kind: EncType, bytes: &[u8]) -> Option<Self> {
        let is_good = ENCTYPES.contains(&kind) && kind.key_len() == Some(bytes.len());
        is_good.then(|| Self { kind, bytes: Zeroizing::new(bytes.to_vec()) })
    }

    /// The enctype.
    pub const fn kind(&self) -> EncType {
        self.kind
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.kind.0)
    }
}

/// A time on the wire: steps of 100 ns since 1970; 0 for none (rxgk notes 2.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct RxgkTime(pub i64);

impl RxgkTime {
    /// No time: as an end it means "never".
    pub const NONE: Self = Self(0);

    /// Steps of a second.
    pub const SECOND: i64 = 10_000_000;

    /// The time of a second.
    pub const fn of(time: UnixTime) -> Self {
        Self(time.0 as i64 * Self::SECOND)
    }

    /// True if it is an end that has passed. One before 1970 always has.
    pub fn has_passed(self, now: UnixTime) -> bool {
        self != Self::NONE && self < Self::of(now)
    }

    /// True if it is a start that is to come yet, however much the clocks of servers differ.
    fn is_ahead(self, now: UnixTime) -> bool {
        self > Self::of(now.plus(CLOCK_SKEW))
    }
}

/// The time by which the clocks of servers may differ, as for tickets. It does not lengthen a token's life.
const CLOCK_SKEW: Duration = Duration::from_secs(15 * 60);
