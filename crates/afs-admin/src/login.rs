//! The identity with which servers are called: anonymous, or the holder of a token.

use std::fmt;
use std::sync::Arc;

use rand::CryptoRng;
use rx_proto::security::{Null, SecurityClass};
use rx_security::ticket::{self, ForgeError};
use rx_security::{KeySet, Level, Token, rxkad};

/// The identity of a caller, and how well what is said is protected. A clone is the same identity.
#[derive(Clone)]
pub struct Login(Option<(Arc<Token>, Level)>);

impl Login {
    /// Makes an anonymous login: servers do not know by whom they are called.
    pub const fn anonymous() -> Self {
        Self(None)
    }

    /// The owner of a token.
    pub fn with_token(token: Token, level: Level) -> Self {
        Self(Some((Arc::new(token), level)))
    }

    /// The cell's own superuser, whose ticket is made from the cell's key, as `-localauth` does it. The randomness is for the
    /// session's key and must be good.
    ///
    /// # Errors
    ///
    /// When there is no key that makes tickets.
    pub fn local_superuser(
        keys: &KeySet,
        level: Level,
        random: &mut impl CryptoRng,
    ) -> Result<Self, ForgeError> {
        Ok(Self::with_token(ticket::local_superuser(keys, random)?, level))
    }

    /// True if servers know by whom they are called.
    pub const fn is_authenticated(&self) -> bool {
        self.0.is_some()
    }

    /// The security of one more connection.
    pub fn security(&self) -> Box<dyn SecurityClass> {
        match &self.0 {
            Some((token, level)) => Box::new(rxkad::Client::new(Arc::clone(token), *level)),
            None => Box::new(Null),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_authenticated() { "Login(with a token)" } else { "Login(anonymous)" })
    }
}
