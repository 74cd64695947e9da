//! The identity of a local user in a cell: anonymous, or the holder of a token. A program that logs users in gives
//! the client their tokens, or the client makes them from a cell's key for the users of
//! `Config::users` of `afs-client`, or gets them by the key of a device.
//!
//! `IdentityIndex` names an identity in a cell. All anonymous users share `IdentityIndex::NOBODY`, and what one of them learnt counts for
//! all. The number of a token is never used for another one. How tokens come and
//! go is in `changes`, a device's in `device`, how they end in `ends`, how they outlive the client in `kept`, and who their owners are to servers in
//! `number`. Who was known in an earlier run: `earlier`.

mod changes;
mod device;
mod earlier;
mod ends;
pub mod kept;
mod number;
mod shown;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use afs_wire::ids::ViceId;
use lru::LruCache;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::Runtime;
use rx_proto::security::{Null, SecurityClass};
use rx_security::keys::{EncType, KeyType};
use rx_security::rxgk::{Dialect, Form};
use rx_security::{Identity, KeySet, Level, Token, UnixTime, rxgk, rxkad, ticket};
use tokio::sync::Notify;

use crate::error::Error;
use crate::fid::{CellIndex, User};
use device::Device;
use kept::Kept;
pub(crate) use shown::NotShown;
use shown::Own;
pub use shown::Shown;

/// The lifetime of tickets that are made here. A new one is made when little is left.
const TICKET_LIFE: Duration = Duration::from_secs(24 * 3600);

/// A ticket begins before it is made, as the clocks of two machines may differ.
const TICKET_AGE: Duration = Duration::from_secs(300);

/// With less than this left a ticket is replaced, so that no call is begun with one that ends on the way.
const TICKET_REST: Duration = Duration::from_secs(3600);

/// Characters of a name that are noted of what its owner writes: more than the names of any cell have.
const NOTED_MAX: usize = 1024;

/// Tokens of one local user, in all PAGs and cells together: for as many PAGs as a user may have, of four cells each. With the longest
/// tickets they take 48 MiB of the client's memory.
const PER_USER_MAX: usize = 4096;

/// Persons that are remembered to have left. What was written as one who is forgotten waits for a token, which loses nothing.
const LEFT_MAX: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// An identity in a cell, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityIndex(u32);

impl IdentityIndex {
    /// Nobody in particular, in every cell.
    pub const NOBODY: Self = Self(0);

    /// One that no login has, for tests of tables.
    pub const fn for_tests(number: u32) -> Self {
        Self(number)
    }
}

/// A token that a user has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    /// The cell.
    pub cell: CellIndex,
    /// The user's identity in it, as far as that is known here.
    pub holder: Holder,
    /// The time from which it is good.
    pub start: UnixTime,
    /// The time until which it is good; tokens that are made here are replaced before.
    pub end: UnixTime,
    /// True if it is made here from the cell's key, or got by a device's.
    pub is_made_here: bool,
}

/// The owner of a token in its cell, as the giver of the token says; only servers can read the ticket itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holder {
    /// The name; empty if nobody has said it.
    pub name: String,
    /// The number, if it is known.
    pub id: Option<ViceId>,
}

impl Holder {
    /// The name that the cache of files notes of what they write.
    fn noted(&self) -> Arc<str> {
        match (&*self.name, self.id) {
            ("", Some(id)) => format!("AFS ID {id}").into(),
            ("", None) => "of unknown name".into(),
            (name, _) => name.chars().take(NOTED_MAX).collect::<String>().into(),
        }
    }

    /// True if another token is the same person's, as far as is said. A user who gives a name or a number that is not theirs gains nothing:
    /// servers are asked anew what the owner of the new token may do.
    fn is_same_as(&self, other: &Self) -> bool {
        if self.name.is_empty() { *self == *other } else { self.name == other.name }
    }
}

/// The outcome of giving a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedIn {
    /// The user has this token already: nothing has changed.
    Before,
    /// A newer one for the same person: the identity is the same, and what is under way goes on with it.
    Renewed(IdentityIndex),
    /// A person that the client has not seen at this user; the identity that the user had before is nobody any more.
    Anew(Option<IdentityIndex>),
    /// The user has too many already, in all PAGs together: nothing has changed.
    TooMany,
}

/// The purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It changes nothing. It goes on as nobody where a user's token has ended, as with OpenAFS; not where a server has refused one of rxgk.
    Read,
    /// It changes something, or brings a user's data to a server: never in the name of nobody in the place of a user, as it would
    /// go unencrypted, and the answer could be anybody's. Aborts are not authenticated: who forges one decides that a token counts
    /// as refused.
    Change,
}

/// An identity has no token to show that is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoToken;

/// The source of a token.
enum Source {
    /// A cell's key, and the name.
    Key(Arc<KeySet>, String),
    /// Given, for somebody.
    Given(Mutex<Holder>),
    /// Got from the cell by a device's key.
    Device(Device),
}

impl Source {
    fn holder(&self) -> Holder {
        match self {
            Self::Key(_, name) | Self::Device(Device { name, .. }) => Holder { name: name.clone(), id: None },
            Self::Given(holder) => holder.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

struct Login {
    cell: CellIndex,
    cell_name: String,
    source: Source,
    /// The owner, as it is noted of what they write.
    noted: Arc<str>,
    /// The owner's number, once a server has shown it.
    number: Mutex<Option<ViceId>>,
    shown: Mutex<Shown>,
    /// A server has refused it: nobody to readers until there is another one.
    is_refused: AtomicBool,
    /// Its end has been warned of.
    is_warned: AtomicBool,
    /// It was told that it is good no more, and nothing has happened to it since.
    is_end_told: AtomicBool,
}

/// The number of tokens that were given, and of those among them that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenCounts {
    /// All.
    pub all: usize,
    /// Those that have ended or were refused: their owners are anonymous.
    pub ended: usize,
}

/// The users of a client.
pub struct Users {
    runtime: Arc<dyn Runtime>,
    /// True if somebody looks for tokens that end.
    is_watched: AtomicBool,
    /// Wakes the task that looks: there is another token, or one was refused.
    look: Arc<Notify>,
    level: RwLock<Level>,
    /// True if it was told that a server refuses this level.
    is_level_told: AtomicBool,
    /// Told when somebody has got a token.
    pub changed: Notify,
    identities: RwLock<Identities>,
    /// Where tokens are kept over a restart, if they are. Locked before the identities, and for the whole of a change of both.
    kept: Mutex<Option<Kept>>,
    /// The reason why they are not kept, until that is told: with the first token.
    why_not_kept: Mutex<Option<io::Error>>,
}

/// The identity of each user in each cell. There is an entry only for each user and cell with a token.
struct Identities {
    who: HashMap<(User, CellIndex), IdentityIndex>,
    logins: HashMap<IdentityIndex, Arc<Login>>,
    /// The persons of a cell whose last token a user has thrown away: what the user has written as them does not wait for another one.
    left: LruCache<(u32, CellIndex, Arc<str>), ()>,
    /// The numbers of persons of an earlier run: see `earlier`.
    earlier: HashMap<(u32, CellIndex, Arc<str>), IdentityIndex>,
    /// The newest number, which is never given to another identity.
    last: u32,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").finish_non_exhaustive()
    }
}

impl Identities {
    /// A user's identity in a cell. In a PAG without a token for it, tickets that are made from the cell's key and a device's tokens go on: they
    /// are the user's by the machine's configuration, and no session's.
    fn of(&self, user: User, cell: CellIndex) -> Option<IdentityIndex> {
        let own = self.who.get(&(user, cell)).copied();
        own.or_else(|| {
            let outside = *self.who.get(&(User::of(user.uid), cell)).filter(|_| user.pag.is_some())?;
            (!self.logins.get(&outside)?.is_given()).then_some(outside)
        })
    }

    /// Gives a user an identity, an existing one or a new one. Returns the one that nobody has any more.
    fn set(&mut self, user: User, login: Login) -> Option<IdentityIndex> {
        let (cell, noted) = (login.cell, Arc::clone(&login.noted));
        // Two users with the same name in a cell, by the cell's key, are the same to it: what one may, the other may.
        let same = match &login.source {
            Source::Key(_, name) => self.logins.iter().find(|(_, other)| {
                other.cell == cell && matches!(&other.source, Source::Key(_, theirs) if theirs == name)
            }),
            Source::Given(_) | Source::Device(_) => None,
        };
        let who = match same {
            Some((who, _)) => *who,
            None => {
                self.last = self.last.checked_add(1).expect("fewer than 2^32 logins in the life of a client");
                self.logins.insert(IdentityIndex(self.last), Arc::new(login));
                IdentityIndex(self.last)
            }
        };
        self.left.pop(&(user.uid, cell, noted));
        let old = self.who.insert((user, cell), who);
        old.filter(|old| *old != who && self.forget_if_unused(*old))
    }

    /// True if a user is this person in a PAG or outside, with a token that may also have ended.
    fn is_somewhere(&self, uid: u32, cell: CellIndex, noted: &str) -> bool {
        let mut theirs = self.who.iter().filter(|((user, of), _)| user.uid == uid && *of == cell);
        theirs.any(|(_, who)| self.logins.get(who).is_some_and(|login| *login.noted == *noted))
    }

    /// The number of tokens that a local user has, in all PAGs together.
    fn count_of(&self, uid: u32) -> usize {
        self.who.keys().filter(|(user, _)| user.uid == uid).count()
    }

    /// True if nobody has it any more: then it is gone.
    fn forget_if_unused(&mut self, who: IdentityIndex) -> bool {
        let is_unused = !self.who.values().any(|theirs| *theirs == who);
        if is_unused {
            self.logins.remove(&who);
        }
        is_unused
    }
}

impl Users {
    /// Makes the table. Nobody has a token yet; connections will be protected so well.
    pub(crate) fn new(runtime: Arc<dyn Runtime>, level: Level) -> Self {
        let [is_watched, is_level_told] = [false; 2].map(AtomicBool::new);
        let (look, level) = (Arc::default(), RwLock::new(level));
        let (who, logins, left) = (HashMap::new(), HashMap::new(), LruCache::new(LEFT_MAX));
        let identities = RwLock::new(Identities { who, logins, left, earlier: HashMap::new(), last: 0 });
        let (changed, kept, why_not_kept) = Default::default();
        Self { runtime, is_watched, look, level, is_level_told, changed, identities, kept, why_not_kept }
    }

    /// The protection of new connections.
    pub fn level(&self) -> Level {
        *self.level.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server wants calls protected better. It is told once for each level.
    pub(crate) fn level_refused(&self, server: SocketAddr) {
        if !self.is_level_told.swap(true, Ordering::Relaxed) {
            let level = self.level();
            tracing::warn!(%server, %level, "a server refuses this level of protection; 'fs setcrypt on' has calls encrypted");
        }
    }

    /// Has new connections protected so well.
    pub fn set_level(&self, level: Level) {
        self.is_level_told.store(false, Ordering::Relaxed);
        *self.level.write().unwrap_or_else(PoisonError::into_inner) = level;
    }

    fn identities(&self) -> RwLockReadGuard<'_, Identities> {
        self.identities.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn identities_mut(&self) -> RwLockWriteGuard<'_, Identities> {
        self.identities.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identity of a user in a cell. Never waits for more than a look.
    pub fn who(&self, user: User, cell: CellIndex) -> IdentityIndex {
        self.identities().of(user, cell).unwrap_or(IdentityIndex::NOBODY)
    }

    /// Has a user's tickets made from a cell's key from now on.
    pub fn log_in_by_key(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        keys: &Arc<KeySet>,
        name: &str,
    ) -> Result<(), Error> {
        let shown = self.make_tokens(keys, name, cell_name)?;
        let source = Source::Key(Arc::clone(keys), name.to_owned());
        self.identities_mut().set(user, Login::new((cell, cell_name), source, shown));
        Ok(())
    }

    /// True if a user has a token that is still good.
    pub fn has_token(&self, user: User) -> bool {
        let now = UnixTime::of(self.runtime.wall_clock());
        let identities = self.identities();
        let mut theirs = identities.who.iter().filter(|((owner, _), _)| *owner == user);
        theirs.any(|(_, who)| identities.logins.get(who).is_some_and(|login| !login.has_ended(now)))
    }

    /// The tokens of a user, in the order in which they came.
    pub fn tokens(&self, user: User) -> Vec<TokenInfo> {
        let identities = self.identities();
        let theirs = identities.who.keys().filter(|(owner, _)| owner.uid == user.uid);
        let mut all: Vec<_> = theirs.filter_map(|(_, cell)| identities.of(user, *cell)).collect();
        all.sort_unstable();
        all.dedup();
        let theirs = all.into_iter().filter_map(|who| identities.logins.get(&who));
        // A device may have got none yet.
        let infos = theirs.filter(|login| !login.shown().is_nothing()).map(|login| {
            let (own, is_made_here) = (login.own(), !login.is_given());
            TokenInfo {
                cell: login.cell,
                holder: login.holder(),
                start: own.start,
                end: own.end,
                is_made_here,
            }
        });
        infos.collect()
    }

    /// The name of a user's identity in a cell now, as it is to be noted of what they write; empty for an anonymous one.
    pub fn noted_name(&self, user: User, cell: CellIndex) -> Arc<str> {
        let identities = self.identities();
        let login = identities.of(user, cell).and_then(|who| identities.logins.get(&who));
        login.map_or_else(Arc::default, |login| Arc::clone(&login.noted))
    }

    /// Returns the identity as which data are stored that somebody has written: the same person, even if the user has become somebody else
    /// since.
    ///
    /// # Errors
    ///
    /// When the user has no token of that person's now.
    pub fn who_wrote(
        &self,
        (uid, name): (u32, Option<&Arc<str>>),
        cell: CellIndex,
    ) -> Result<IdentityIndex, NoToken> {
        let Some(holder) = name else { return Ok(self.who(User::of(uid), cell)) };
        if holder.is_empty() {
            return Ok(IdentityIndex::NOBODY);
        }
        let now = UnixTime::of(self.runtime.wall_clock());
        let identities = self.identities();
        // In whichever PAG: to the cell it is the same person.
        let theirs = identities.who.iter().filter(|((user, of), _)| user.uid == uid && *of == cell);
        let same = theirs.filter_map(|(_, who)| {
            let login = identities.logins.get(who).filter(|login| login.noted == *holder)?;
            Some((login.has_ended(now), *who))
        });
        same.min().map(|(_, who)| who).ok_or(NoToken)
    }

    /// The identities that a local user has in a cell, in PAGs and outside, with a token that is good: a user who has each, and its noted name.
    pub fn persons_of(&self, uid: u32, cell: CellIndex) -> Vec<(User, IdentityIndex, Arc<str>)> {
        let now = UnixTime::of(self.runtime.wall_clock());
        let identities = self.identities();
        let theirs = identities.who.iter().filter(|((user, of), _)| user.uid == uid && *of == cell);
        let good = theirs.filter_map(|((user, _), who)| {
            let login = identities.logins.get(who).filter(|login| !login.has_ended(now))?;
            Some((*user, *who, Arc::clone(&login.noted)))
        });
        let mut all: Vec<_> = good.collect();
        all.sort_unstable();
        all
    }

    /// True if what somebody has written cannot be stored before the user has another token of that person's.
    pub fn is_without_token(&self, (uid, name): (u32, Option<&Arc<str>>), cell: CellIndex) -> bool {
        self.who_wrote((uid, name), cell).map_or(true, |who| self.has_ended(who))
    }

    /// True if what a user has written waits for the next token of the same person's: it does, unless they have thrown the last one away.
    pub fn waits_for_login(&self, (uid, name): (u32, Option<&Arc<str>>), cell: CellIndex) -> bool {
        let left = &self.identities().left;
        match name {
            Some(holder) => !left.contains(&(uid, cell, Arc::clone(holder))),
            None => !left.iter().any(|((user, of, _), ())| (*user, *of) == (uid, cell)),
        }
    }

    /// The number of tokens that were given.
    pub fn counts(&self) -> TokenCounts {
        let now = UnixTime::of(self.runtime.wall_clock());
        let identities = self.identities();
        let given = || identities.logins.values().filter(|login| login.is_given());
        TokenCounts { all: given().count(), ended: given().filter(|login| login.has_ended(now)).count() }
    }

    /// A user's token for a cell with its key, for this user alone; and who the user is there. One that is made here is good for a while.
    pub fn held(&self, user: User, cell: CellIndex) -> Option<(Holder, Arc<Token>)> {
        let login = self.login_for_a_while(user, cell)?;
        Some((login.holder(), login.own().rxkad.clone()?))
    }

    /// A user's token of rxgk for a cell with its secret, for this user alone.
    pub fn held_rxgk(&self, user: User, cell: CellIndex) -> Option<Arc<rxgk::Token>> {
        self.login_for_a_while(user, cell)?.shown().rxgk
    }

    fn login_for_a_while(&self, user: User, cell: CellIndex) -> Option<Arc<Login>> {
        let login = self.login(self.who(user, cell))?;
        if login.own().end < UnixTime::of(self.runtime.wall_clock()).plus(TICKET_REST) {
            self.renew(&login);
        }
        Some(login)
    }

    /// Returns who in a cell has a token of rxgk that is good, whoever it is: the database servers tell everybody the same, and tell it to
    /// whom they can tell it in secret.
    pub(crate) fn anybody_with_rxgk(&self, cell: CellIndex) -> IdentityIndex {
        let now = UnixTime::of(self.runtime.wall_clock());
        let identities = self.identities();
        let is_good = |login: &Login| {
            login.cell == cell
                && login.shown().rxgk.is_some()
                && !login.is_refused.load(Ordering::Relaxed)
                && !login.has_ended(now)
        };
        let good = identities.logins.iter().filter(|(_, login)| is_good(login));
        // The first who came: the order of a table is chance.
        good.map(|(who, _)| *who).min().unwrap_or(IdentityIndex::NOBODY)
    }

    /// Makes the security of connections that show this, or nothing. The seed is of good randomness.
    pub(crate) fn security(
        self: &Arc<Self>,
        shown: Option<&Shown>,
        seed: [u8; 32],
    ) -> Box<dyn Fn() -> Box<dyn SecurityClass> + Send + Sync> {
        let Some(Shown { own, rxgk, callback }) = shown else { return Box::new(|| Box::new(Null)) };
        if let Some(rxgk) = rxgk {
            let runtime = Arc::clone(&self.runtime);
            let clock = Arc::new(move || UnixTime::of(runtime.wall_clock()));
            return Box::new(rxgk::Client::factory_with((**rxgk).clone(), callback.clone(), clock, seed));
        }
        let Some(token) = own.rxkad.clone() else { return Box::new(|| Box::new(Null)) };
        let users = Arc::clone(self);
        Box::new(move || Box::new(rxkad::Client::new(Arc::clone(&token), users.level())))
    }

    /// A server has refused a ticket. The next connection shows a new one if tickets are made here; else the ticket's
    /// owner changes nothing until the next login, and reads as nobody or not at all ([`Self::shown`]). Where it is not the identity's any more, nothing comes of it:
    /// `shown` is what the call had shown. Returns whether trying again makes sense.
    pub(crate) fn refused(&self, who: IdentityIndex, shown: Option<&Shown>) -> bool {
        let (Some(login), Some(shown)) = (self.login(who), shown) else { return false };
        // Until the end no other token comes.
        let _identities = self.identities();
        if !Arc::ptr_eq(&login.own(), &shown.own) {
            return true;
        }
        if self.renew(&login) {
            return true;
        }
        if matches!(login.source, Source::Key(..)) {
            return false;
        }
        // Calls that were under way at the same time are refused too.
        if !login.is_refused.swap(true, Ordering::Relaxed) {
            // Whoever looks between the two tells once too often.
            login.is_end_told.store(false, Ordering::Relaxed);
            self.look.notify_one();
            login.tell_of_refusal(UnixTime::of(self.runtime.wall_clock()));
        }
        true
    }

    fn renew(&self, login: &Login) -> bool {
        let Source::Key(keys, name) = &login.source else { return false };
        match self.make_tokens(keys, name, &login.cell_name) {
            Ok(shown) => {
                *login.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "no new ticket");
                false
            }
        }
    }

    fn login(&self, who: IdentityIndex) -> Option<Arc<Login>> {
        self.identities().logins.get(&who).map(Arc::clone)
    }

    fn make_tokens(&self, keys: &KeySet, name: &str, cell: &str) -> Result<Shown, Error> {
        let invalid =
            |why: String| Error::Invalid { what: format!("making a ticket for {name} of {cell}: {why}") };
        let who = Identity::parse(name).ok_or_else(|| invalid("not a user's name".to_owned()))?;
        let seed = self.runtime.seed().map_err(|error| Error::local("getting random numbers", error))?;
        let now = self.runtime.wall_clock();
        let times = (UnixTime::of(now - TICKET_AGE), UnixTime::of(now + TICKET_LIFE));
        let random = &mut StdRng::from_seed(seed);
        let token = ticket::for_user(keys, &who, cell, times, random);
        let own = Own::of(token.map_err(|error| invalid(error.to_string()))?);
        let Some(key) = keys.newest(KeyType::RXGK) else {
            return Ok(Shown { own, rxgk: None, callback: None });
        };
        let form = Form { dialect: Dialect::OURS, kind: EncType(key.subtype), level: Level::Crypt };
        let rxgk = rxgk::Token::of_user(keys, form, &who, cell, times, random);
        let rxgk = Some(Arc::new(rxgk.map_err(|error| invalid(error.to_string()))?));
        Ok(Shown { own, rxgk, callback: None })
    }
}

impl Login {
    fn new((cell, cell_name): (CellIndex, &str), source: Source, shown: Shown) -> Self {
        let shown = Mutex::new(shown);
        let [is_refused, is_warned, is_end_told] = [false; 3].map(AtomicBool::new);
        let noted = source.holder().noted();
        Self {
            cell,
            cell_name: cell_name.to_owned(),
            source,
            noted,
            number: Mutex::default(),
            shown,
            is_refused,
            is_warned,
            is_end_told,
        }
    }

    /// True if it is good no more; one that is made from a cell's key always is.
    fn has_ended(&self, now: UnixTime) -> bool {
        let is_over = || self.is_refused.load(Ordering::Relaxed) || self.own().end < now;
        !matches!(self.source, Source::Key(..)) && is_over()
    }

    const fn is_given(&self) -> bool {
        matches!(self.source, Source::Given(_))
    }

    fn holder(&self) -> Holder {
        self.source.holder()
    }

    fn shown(&self) -> Shown {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn own(&self) -> Arc<Own> {
        self.shown().own
    }
}

#[cfg(test)]
mod tests;
