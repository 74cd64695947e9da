//! Who a local user is to a cell: anonymous, or the holder of a token. A program that logs users in gives the client
//! their tokens, or the client makes them from a cell's key for the users of [`Config::users`](crate::Config::users).
//!
//! `Who` names an identity in a cell. All anonymous users share `Who::NOBODY`, and what one of them learnt counts for
//! all. The number of a token is never used for another one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::Runtime;
use rx_proto::security::{Null, SecurityClass};
use rx_security::{Identity, KeySet, Level, Token, UnixTime, rxkad, ticket};

use crate::error::Error;
use crate::fid::{CellIndex, User};

/// How long tickets are good for that are made here. A new one is made when little is left.
const TICKET_LIFE: Duration = Duration::from_secs(24 * 3600);

/// A ticket begins before it is made, as the clocks of two machines may differ.
const TICKET_AGE: Duration = Duration::from_secs(300);

/// With less than this left a ticket is replaced, so that no call is begun with one that ends on the way.
const TICKET_REST: Duration = Duration::from_secs(3600);

/// An identity in a cell, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Who(u32);

impl Who {
    /// Nobody in particular, in every cell.
    pub(crate) const NOBODY: Self = Self(0);

    /// One that no login has, for tests of tables.
    #[cfg(test)]
    pub(crate) const fn for_tests(number: u32) -> Self {
        Self(number)
    }
}

/// A token that a user has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    /// The cell.
    pub cell: CellIndex,
    /// The name in it, where that is known here.
    pub name: Option<String>,
    /// From when on it is good.
    pub start: UnixTime,
    /// Until when; tokens that are made here from the cell's key are replaced before.
    pub end: UnixTime,
    /// Whether it is made here.
    pub is_made_here: bool,
}

/// Where a token comes from.
enum Source {
    /// A cell's key, and the name.
    Key(Arc<KeySet>, String),
    /// Given, with the name if it is known.
    Given(Option<String>),
}

struct Login {
    cell: CellIndex,
    cell_name: String,
    source: Source,
    level: Level,
    token: Mutex<Arc<Token>>,
    /// A server has refused it: nobody until there is another one.
    is_refused: Mutex<bool>,
}

/// The users of a client.
pub(crate) struct Users {
    runtime: Arc<dyn Runtime>,
    who: RwLock<HashMap<(User, CellIndex), Who>>,
    logins: RwLock<Vec<Arc<Login>>>,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").finish_non_exhaustive()
    }
}

impl Users {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, who: RwLock::default(), logins: RwLock::default() }
    }

    /// Who a user is to a cell. Never waits for more than a look.
    pub(crate) fn who(&self, user: User, cell: CellIndex) -> Who {
        let who = self.who.read().unwrap_or_else(PoisonError::into_inner);
        who.get(&(user, cell)).copied().unwrap_or(Who::NOBODY)
    }

    /// Has a user's tickets made from a cell's key from now on.
    pub(crate) fn log_in_by_key(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        keys: &Arc<KeySet>,
        name: &str,
        level: Level,
    ) -> Result<(), Error> {
        let token = self.make_token(keys, name, cell_name)?;
        let source = Source::Key(Arc::clone(keys), name.to_owned());
        self.add(user, cell, cell_name, source, level, token);
        Ok(())
    }

    /// Gives a user a token.
    pub(crate) fn log_in(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        name: Option<String>,
        token: Token,
        level: Level,
    ) {
        self.add(user, cell, cell_name, Source::Given(name), level, token);
    }

    fn add(&self, user: User, cell: CellIndex, cell_name: &str, source: Source, level: Level, token: Token) {
        let login = Login {
            cell,
            cell_name: cell_name.to_owned(),
            source,
            level,
            token: Mutex::new(Arc::new(token)),
            is_refused: Mutex::new(false),
        };
        let mut logins = self.logins.write().unwrap_or_else(PoisonError::into_inner);
        // Two users with the same name in a cell, by the cell's key, are the same to it: what one may, the other may.
        let same = match &login.source {
            Source::Key(_, name) => logins.iter().position(|other| {
                other.cell == cell
                    && other.level == level
                    && matches!(&other.source, Source::Key(_, theirs) if theirs == name)
            }),
            Source::Given(_) => None,
        };
        let index = same.unwrap_or_else(|| {
            logins.push(Arc::new(login));
            logins.len() - 1
        });
        drop(logins);
        let who = Who(u32::try_from(index + 1).expect("fewer than 2^32 logins in the life of a client"));
        self.who.write().unwrap_or_else(PoisonError::into_inner).insert((user, cell), who);
    }

    /// Takes a user's token for a cell away, or those for all cells if none is named. Returns the identities that were
    /// logged in.
    pub(crate) fn log_out(&self, user: User, cell: Option<CellIndex>) -> Vec<Who> {
        let mut gone = Vec::new();
        self.who.write().unwrap_or_else(PoisonError::into_inner).retain(|(theirs, in_cell), who| {
            let goes = *theirs == user && cell.is_none_or(|cell| cell == *in_cell);
            gone.extend(goes.then_some(*who));
            !goes
        });
        gone
    }

    /// The tokens of a user.
    pub(crate) fn tokens(&self, user: User) -> Vec<TokenInfo> {
        let who = self.who.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> =
            who.iter().filter(|((theirs, _), _)| *theirs == user).map(|(_, who)| *who).collect();
        all.sort_unstable();
        let infos = all.into_iter().filter_map(|who| self.login(who)).map(|login| {
            let token = login.token();
            let (name, is_made_here) = match &login.source {
                Source::Key(_, name) => (Some(name.clone()), true),
                Source::Given(name) => (name.clone(), false),
            };
            TokenInfo { cell: login.cell, name, start: token.start, end: token.end, is_made_here }
        });
        infos.collect()
    }

    /// The security of one more connection. A ticket that is made here and about to end is replaced.
    pub(crate) fn security(&self, who: Who) -> Box<dyn SecurityClass> {
        let Some(login) = self.login(who) else { return Box::new(Null) };
        if *login.is_refused.lock().unwrap_or_else(PoisonError::into_inner) {
            return Box::new(Null);
        }
        let now = UnixTime::of(SystemTime::now());
        if login.token().end < now.plus(TICKET_REST) {
            self.renew(&login);
        }
        Box::new(rxkad::Client::new(login.token(), login.level))
    }

    /// A server has refused a ticket. The next connection shows a new one if tickets are made here; else the ticket's
    /// owner is anonymous until the next login. Returns whether trying again makes sense.
    pub(crate) fn refused(&self, who: Who) -> bool {
        let Some(login) = self.login(who) else { return false };
        let renewed = self.renew(&login);
        if !renewed {
            let cell = &login.cell_name;
            tracing::warn!(cell, "a token was refused; its owner is anonymous until there is another one");
            *login.is_refused.lock().unwrap_or_else(PoisonError::into_inner) = true;
        }
        true
    }

    fn renew(&self, login: &Login) -> bool {
        let Source::Key(keys, name) = &login.source else { return false };
        match self.make_token(keys, name, &login.cell_name) {
            Ok(token) => {
                *login.token.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(token);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "no new ticket");
                false
            }
        }
    }

    fn login(&self, who: Who) -> Option<Arc<Login>> {
        let index = usize::try_from(who.0).ok()?.checked_sub(1)?;
        self.logins.read().unwrap_or_else(PoisonError::into_inner).get(index).map(Arc::clone)
    }

    fn make_token(&self, keys: &KeySet, name: &str, cell: &str) -> Result<Token, Error> {
        let invalid =
            |why: String| Error::Invalid { what: format!("making a ticket for {name} of {cell}: {why}") };
        let who = Identity::parse(name).ok_or_else(|| invalid("not a user's name".to_owned()))?;
        let seed = self.runtime.seed().map_err(|error| Error::local("asking for chance", error))?;
        let now = SystemTime::now();
        let times = (UnixTime::of(now - TICKET_AGE), UnixTime::of(now + TICKET_LIFE));
        ticket::for_user(keys, &who, cell, times, &mut StdRng::from_seed(seed))
            .map_err(|error| invalid(error.to_string()))
    }
}

impl Login {
    fn token(&self) -> Arc<Token> {
        Arc::clone(&self.token.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rx_security::keys::{EncType, Key};

    const CELL: (CellIndex, &str) = (CellIndex(1), "one.test");

    fn keys() -> Arc<KeySet> {
        Arc::new(KeySet::of([Key::rxkad_krb5(1, EncType(18), &[7; 32])]).unwrap())
    }

    fn users() -> Users {
        Users::new(Arc::new(rx::TokioRuntime::current()))
    }

    #[tokio::test]
    async fn users_without_a_token_are_the_same_nobody() {
        let users = users();
        users.log_in_by_key(User(1), CELL, &keys(), "alice", Level::Clear).unwrap();
        assert_eq!(users.who(User(2), CELL.0), Who::NOBODY);
        assert_eq!(users.who(User(1), CellIndex(2)), Who::NOBODY, "a token is for one cell");
        assert_ne!(users.who(User(1), CELL.0), Who::NOBODY);
    }

    #[tokio::test]
    async fn two_users_of_one_name_are_one_and_a_login_after_a_logout_is_as_before() {
        let users = users();
        users.log_in_by_key(User(1), CELL, &keys(), "admin", Level::Clear).unwrap();
        users.log_in_by_key(User(2), CELL, &keys(), "admin", Level::Clear).unwrap();
        let who = users.who(User(1), CELL.0);
        assert_eq!(users.who(User(2), CELL.0), who);
        assert_eq!(users.log_out(User(1), None), [who]);
        assert_eq!(users.who(User(1), CELL.0), Who::NOBODY);
        assert_eq!(users.who(User(2), CELL.0), who);
        assert_eq!(users.tokens(User(2))[0].name.as_deref(), Some("admin"));
        assert!(users.tokens(User(1)).is_empty());
    }

    #[tokio::test]
    async fn a_given_token_that_is_refused_makes_its_owner_nobody() {
        let users = users();
        let keys = keys();
        let token = users.make_token(&keys, "alice", CELL.1).unwrap();
        users.log_in(User(1), CELL, Some("alice".to_owned()), token, Level::Crypt);
        let who = users.who(User(1), CELL.0);
        assert_eq!(users.security(who).index().0, 2);
        assert!(users.refused(who));
        assert_eq!(users.security(who).index().0, 0);
        assert!(!users.refused(Who::NOBODY));
    }
}
