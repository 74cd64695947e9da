//! The identity with which servers are called: anonymous, or the holder of a token. Where the holder has one of rxgk, that is shown, to all
//! servers but those of which the database servers say, by rxgk, that they have none ([`crate::offers`]).

use std::fmt;
use std::sync::Arc;

use rand::{CryptoRng, Rng};
use rx_proto::security::{Null, SecurityClass};
use rx_security::keys::{EncType, KeyType};
use rx_security::rxgk::{self, Dialect, Form};
use rx_security::ticket::{self, ForgeError};
use rx_security::time::Clock;
use rx_security::{KeySet, Level, Token, rxkad};

/// Makes the security of one more connection.
type Maker = Arc<dyn Fn() -> Box<dyn SecurityClass> + Send + Sync>;

/// The identity of a caller, and how well what is said is protected. A clone is the same identity.
#[derive(Clone, Default)]
pub struct Login {
    rxgk: Option<Rxgk>,
    rxkad: Option<Maker>,
}

/// What it takes to call by rxgk.
#[derive(Clone)]
struct Rxgk {
    token: Arc<rxgk::Token>,
    clock: Clock,
    maker: Maker,
}

impl Login {
    /// Makes an anonymous login: servers do not know by whom they are called.
    pub const fn anonymous() -> Self {
        Self { rxgk: None, rxkad: None }
    }

    /// The owner of a token of rxkad.
    pub fn with_token(token: Token, level: Level) -> Self {
        Self { rxgk: None, rxkad: Some(Arc::new(rxkad::Client::factory(token, level))) }
    }

    /// The same owner with a token of rxgk, which is shown instead wherever it can be. The seed is of good randomness.
    #[must_use]
    pub fn and_rxgk(self, token: rxgk::Token, clock: Clock, seed: [u8; 32]) -> Self {
        let maker: Maker = Arc::new(rxgk::Client::factory(token.clone(), Arc::clone(&clock), seed));
        Self { rxgk: Some(Rxgk { token: Arc::new(token), clock, maker }), ..self }
    }

    /// The cell's own superuser, whose token is made from the cell's key, as `-localauth` does it: of rxgk, always encrypted, if the cell has
    /// a key for that, and one of rxkad at this level for servers that have no rxgk. The randomness is for the sessions' keys and must be good.
    ///
    /// # Errors
    ///
    /// When there is no key that makes tickets.
    pub fn local_superuser(
        keys: &KeySet,
        level: Level,
        clock: Clock,
        random: &mut impl CryptoRng,
    ) -> Result<Self, ForgeError> {
        let ticket = ticket::local_superuser(keys, random);
        let Some(key) = keys.newest(KeyType::RXGK) else {
            return Ok(Self::with_token(ticket?, level));
        };
        let form = Form { dialect: Dialect::OURS, kind: EncType(key.subtype), level: Level::Crypt };
        let login = ticket.map_or_else(|_| Self::anonymous(), |ticket| Self::with_token(ticket, level));
        let token = rxgk::Token::of_superuser(keys, form, random).map_err(|_| ForgeError::NoKey)?;
        Ok(login.and_rxgk(token, clock, random.random()))
    }

    /// True if servers know by whom they are called.
    pub const fn is_authenticated(&self) -> bool {
        self.rxgk.is_some() || self.rxkad.is_some()
    }

    /// The token of rxgk, if there is one.
    pub fn rxgk(&self) -> Option<&rxgk::Token> {
        self.rxgk.as_ref().map(|rxgk| &*rxgk.token)
    }

    /// The same identity, as it calls a server that has no rxgk. `None` if it cannot.
    pub fn without_rxgk(&self) -> Option<Self> {
        self.rxkad.is_some().then(|| Self { rxgk: None, ..self.clone() })
    }

    /// The same identity, as it calls the server that a token of rxgk was made for.
    pub(crate) fn for_server(&self, token: rxgk::Token, seed: [u8; 32]) -> Self {
        match &self.rxgk {
            Some(rxgk) => Self::anonymous().and_rxgk(token, Arc::clone(&rxgk.clock), seed),
            None => self.clone(),
        }
    }

    /// The security of one more connection: to a database server, or to one for which this login was made.
    pub fn security(&self) -> Box<dyn SecurityClass> {
        match (&self.rxgk, &self.rxkad) {
            (Some(rxgk), _) => (rxgk.maker)(),
            (None, Some(maker)) => maker(),
            (None, None) => Box::new(Null),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (&self.rxgk, &self.rxkad) {
            (Some(_), _) => "Login(with a token of rxgk)",
            (None, Some(_)) => "Login(with a token)",
            (None, None) => "Login(anonymous)",
        })
    }
}
