//! rxkad, the security class that OpenAFS and Linux speak (Security notes 2): a client shows a ticket in answer to a challenge, and
//! from then on each packet has a checksum in its header, at level auth a few encrypted bytes, at level crypt all of them.
//!
//! ```text
//!   client                                server
//!     DATA, sealed ──────────────────────▶  held
//!            ◀──────── CHALLENGE: nonce, least level
//!     RESPONSE: ticket, {nonce + 1, call numbers, level} ─▶  opens the ticket with its key: knows who, and the session key
//!            ◀──────── DATA, sealed
//! ```
//!
//! Here are the levels, the codes and what both ends share; the ends are [`Client`] and [`Server`].

mod client;
pub mod codes;
mod packet;
mod response;
mod server;

use std::fmt;
use std::str::FromStr;

pub use client::Client;
pub use response::{CHALLENGE_LEN, Challenge, Response};
pub use server::{Server, ServerOptions};

use rx_proto::ids::{SecurityIndex, SecurityLevel};

#[cfg(test)]
mod tests;

/// rxkad's number.
pub const INDEX: SecurityIndex = SecurityIndex(2);

/// The parts of packets that are protected (Security notes 2.5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// The caller's name, and the place of each packet: a checksum in the header.
    Clear,
    /// The same, and the length and the first four bytes of each packet.
    Auth,
    /// The same, and all that is said.
    Crypt,
}

impl Level {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::Clear, Self::Auth, Self::Crypt];

    /// The number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Self::Clear => 0,
            Self::Auth => 1,
            Self::Crypt => 2,
        }
    }

    /// The level of that number.
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.number() == number)
    }

    /// The name, as OpenAFS's options have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Auth => "auth",
            Self::Crypt => "crypt",
        }
    }
}

impl From<Level> for SecurityLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Clear => Self::CLEAR,
            Level::Auth => Self::AUTH,
            Level::Crypt => Self::CRYPT,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoLevel;

impl fmt::Display for NoLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a level is clear, auth or crypt")
    }
}

impl std::error::Error for NoLevel {}

impl FromStr for Level {
    type Err = NoLevel;

    fn from_str(name: &str) -> Result<Self, NoLevel> {
        Self::ALL.into_iter().find(|level| level.name() == name).ok_or(NoLevel)
    }
}
