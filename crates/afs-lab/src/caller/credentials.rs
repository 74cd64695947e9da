//! The maker of a call: nobody, the holder of the cell's key, or a user for whom that key makes a ticket.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::{Runtime, TokioRuntime};
use rx_proto::security::{Null, SecurityClass};
use rx_security::keys::EncType;
use rx_security::rxgk::{self, Dialect, Form};
use rx_security::rxkad::Client;
use rx_security::{Identity, KeySet, Level, Token, UnixTime, ticket};

use super::error::Error;

/// How long tickets are good for: a test's or a bench's length, and what Kerberos gives by default.
const TICKET_LIFE: Duration = Duration::from_secs(10 * 3600);

/// A ticket begins before it is made, as the clocks of two machines may differ.
const TICKET_AGE: Duration = Duration::from_secs(300);

/// The maker of a call.
#[derive(Clone)]
pub enum Credentials {
    /// Nobody: Rx's null class.
    Anonymous,
    /// The user of this token, by rxkad at this level.
    Token(Arc<Token>, Level),
    /// The user of a token of rxgk.
    Rxgk(Maker),
}

/// Makes the security of one more connection.
type Maker = Arc<dyn Fn() -> Box<dyn SecurityClass> + Send + Sync>;

impl Credentials {
    /// The holder of the cell's key, as `-localauth` is: a superuser to all servers but the file server, which knows no such
    /// name.
    ///
    /// # Errors
    ///
    /// When there is no key. Must be called in a tokio runtime.
    pub fn superuser(keys: &KeySet) -> Result<Self, Error> {
        let token = ticket::local_superuser(keys, &mut random()?).map_err(Error::Ticket)?;
        Ok(Self::Token(Arc::new(token), Level::Crypt))
    }

    /// The holder of the cell's key by rxgk, encrypted.
    ///
    /// # Errors
    ///
    /// When there is no such key. Must be called in a tokio runtime.
    pub fn superuser_by_rxgk(keys: &KeySet, dialect: Dialect) -> Result<Self, Error> {
        let token = rxgk::Token::of_superuser(keys, form(dialect), &mut random()?);
        Self::by_rxgk(token.map_err(|error| Error::Unsayable(error.to_string()))?)
    }

    /// A user of the cell by rxgk, encrypted.
    ///
    /// # Errors
    ///
    /// When there is no such key, or the name is none. Must be called in a tokio runtime.
    pub fn user_by_rxgk(name: &str, cell: &str, keys: &KeySet, dialect: Dialect) -> Result<Self, Error> {
        let now = SystemTime::now();
        let times = (UnixTime::of(now - TICKET_AGE), UnixTime::of(now + TICKET_LIFE));
        let who =
            Identity::parse(name).ok_or_else(|| Error::Unsayable(format!("{name:?} as a user's name")))?;
        let token = rxgk::Token::of_user(keys, form(dialect), &who, cell, times, &mut random()?);
        Self::by_rxgk(token.map_err(|error| Error::Unsayable(error.to_string()))?)
    }

    fn by_rxgk(token: rxgk::Token) -> Result<Self, Error> {
        let clock = Arc::new(|| UnixTime::of(SystemTime::now()));
        Ok(Self::Rxgk(Arc::new(rxgk::Client::factory(token, clock, random()?.random()))))
    }

    /// A user of the cell, `name` or `name.instance`, as if the cell's Kerberos had been asked; the level is clear.
    ///
    /// # Errors
    ///
    /// When there is no key, or the name is none. Must be called in a tokio runtime.
    pub fn user(name: &str, cell: &str, keys: &KeySet) -> Result<Self, Error> {
        let now = SystemTime::now();
        let times = (UnixTime::of(now - TICKET_AGE), UnixTime::of(now + TICKET_LIFE));
        Self::user_between(name, cell, keys, times)
    }

    /// The same with a ticket of these times, such as one that has expired.
    ///
    /// # Errors
    ///
    /// As [`Self::user`].
    pub fn user_between(
        name: &str,
        cell: &str,
        keys: &KeySet,
        times: (UnixTime, UnixTime),
    ) -> Result<Self, Error> {
        let who =
            Identity::parse(name).ok_or_else(|| Error::Unsayable(format!("{name:?} as a user's name")))?;
        let token = ticket::for_user(keys, &who, cell, times, &mut random()?).map_err(Error::Ticket)?;
        Ok(Self::Token(Arc::new(token), Level::Clear))
    }

    /// The same with another level; for nobody there is none, and for rxgk the token has it.
    #[must_use]
    pub fn at(self, level: Level) -> Self {
        match self {
            Self::Anonymous => Self::Anonymous,
            Self::Token(token, _) => Self::Token(token, level),
            Self::Rxgk(maker) => Self::Rxgk(maker),
        }
    }

    pub(crate) fn security(&self) -> Box<dyn SecurityClass> {
        match self {
            Self::Anonymous => Box::new(Null),
            Self::Token(token, level) => Box::new(Client::new(Arc::clone(token), *level)),
            Self::Rxgk(maker) => maker(),
        }
    }
}

fn form(dialect: Dialect) -> Form {
    Form { dialect, kind: EncType::AES256, level: Level::Crypt }
}

fn random() -> Result<StdRng, Error> {
    TokioRuntime::current().seed().map(StdRng::from_seed).map_err(Error::Bind)
}
