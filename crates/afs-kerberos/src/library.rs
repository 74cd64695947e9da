//! The library's results, as values.

use rx_security::keys::EncType;
use rx_security::{Token, UnixTime};
use std::fmt;
use zeroize::Zeroizing;

/// A ticket of Kerberos, with the key that it is used with.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The owner, as the library writes principals.
    pub client: String,
    /// The service. A referral may have led to another realm than was asked for.
    pub server: String,
    /// The encryption type of the session key.
    pub key_kind: i32,
    /// The session key.
    pub key: Zeroizing<Vec<u8>>,
    /// The time from which it is good, in seconds since 1970.
    pub start: u32,
    /// The time until which it is good.
    pub end: u32,
    /// The time until which it can be renewed; 0 if it cannot.
    pub renewable_until: u32,
    /// The ticket itself, in DER.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("client", &self.client)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Ticket {
    /// The token that an AFS client shows for it. `None` if its session key is of a kind that rxkad has no use for, or if it is too long.
    pub fn token(&self) -> Option<Token> {
        let kind = EncType(self.key_kind);
        Token::of_kerberos(self.bytes.clone(), kind, &self.key, UnixTime(self.start), UnixTime(self.end))
    }
}

/// The lifetime for which a ticket is asked. The KDC may give less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TicketLife {
    /// In seconds; `None` for what krb5.conf says.
    pub seconds: Option<u32>,
    /// The time for which it is to be renewable, in seconds; `None` for what krb5.conf says.
    pub renewable_seconds: Option<u32>,
}
