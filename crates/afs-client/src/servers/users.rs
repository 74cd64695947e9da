//! Who a local user is to a cell: anonymous, or the holder of a token. A program that logs users in gives the client
//! their tokens, or the client makes them from a cell's key for the users of [`Config::users`](crate::Config::users).
//!
//! `Who` names an identity in a cell. All anonymous users share `Who::NOBODY`, and what one of them learnt counts for
//! all. The number of a token is never used for another one.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use afs_cache::Writer;
use afs_wire::ids::ViceId;
use lru::LruCache;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::Runtime;
use rx_proto::security::{Null, SecurityClass};
use rx_security::{Identity, KeySet, Level, Token, UnixTime, rxkad, ticket};
use tokio::sync::Notify;

use crate::error::Error;
use crate::fid::{CellIndex, User};
use crate::wait;

/// How long tickets are good for that are made here. A new one is made when little is left.
const TICKET_LIFE: Duration = Duration::from_secs(24 * 3600);

/// A ticket begins before it is made, as the clocks of two machines may differ.
const TICKET_AGE: Duration = Duration::from_secs(300);

/// With less than this left a ticket is replaced, so that no call is begun with one that ends on the way.
const TICKET_REST: Duration = Duration::from_secs(3600);

/// With less than this left of a token that was given, or less than a quarter of its life, its end is warned of, once.
const WARN_BEFORE: Duration = Duration::from_secs(15 * 60);

/// How often it is looked for tokens that end soon.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Characters of a name that are noted of what its owner writes: more than the names of any cell have.
const NOTED_MAX: usize = 1024;

/// Tokens of one local user, in all PAGs and cells together: for as many PAGs as a user may have, of four cells each. With the longest
/// tickets they take 48 MiB of the client's memory.
const PER_USER_MAX: usize = 4096;

/// Persons that are remembered to have left. What was written as one who is forgotten waits for a token, which loses nothing.
const LEFT_MAX: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

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
    /// Who the user is in it, as far as that is known here.
    pub holder: Holder,
    /// From when on it is good.
    pub start: UnixTime,
    /// Until when; tokens that are made here from the cell's key are replaced before.
    pub end: UnixTime,
    /// Whether it is made here.
    pub is_made_here: bool,
}

/// Who the owner of a token is in its cell. What somebody says who gives a token; only servers can read the ticket itself.
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

    /// Whether another token is the same person's, as far as is said. Whoever says a name or a number that is not theirs gains nothing:
    /// servers are asked anew what the owner of the new token may do.
    fn is_same_as(&self, other: &Self) -> bool {
        if self.name.is_empty() { *self == *other } else { self.name == other.name }
    }
}

/// What became of a token that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoggedIn {
    /// The user has this token already: nothing has changed.
    Before,
    /// A newer one for the same person: the identity is the same, and what is under way goes on with it.
    Renewed(Who),
    /// A person that the client has not seen at this user; the identity that the user had before is nobody any more.
    Anew(Option<Who>),
    /// The user has too many already, in all PAGs together: nothing has changed.
    TooMany,
}

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It changes nothing. It goes on as nobody where a user's token is good no more.
    Read,
    /// It changes something, or brings a user's data to a server: never in the name of nobody in the place of a user, as it would
    /// go unencrypted, and the answer could be anybody's. Aborts are not authenticated: who forges one decides that a token counts
    /// as refused.
    Change,
}

/// An identity has no token to show that is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoToken;

/// Where a token comes from.
enum Source {
    /// A cell's key, and the name.
    Key(Arc<KeySet>, String),
    /// Given, for somebody.
    Given(Mutex<Holder>),
}

struct Login {
    cell: CellIndex,
    cell_name: String,
    source: Source,
    /// The owner, as it is noted of what they write.
    noted: Arc<str>,
    token: Mutex<Arc<Token>>,
    /// A server has refused it: nobody to readers until there is another one.
    is_refused: AtomicBool,
    /// Its end has been warned of.
    is_warned: AtomicBool,
    /// It was told that it is good no more, and nothing has happened to it since.
    is_end_told: AtomicBool,
}

/// How many tokens that were given there are, and how many of them are good no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenCounts {
    /// All.
    pub all: usize,
    /// Those that have ended or were refused: their owners are anonymous.
    pub ended: usize,
}

/// The users of a client.
pub(crate) struct Users {
    runtime: Arc<dyn Runtime>,
    /// Whether somebody looks for tokens that end.
    is_watched: AtomicBool,
    /// Wakes whoever does: there is another token, or one was refused.
    look: Arc<Notify>,
    level: RwLock<Level>,
    /// Told when somebody has got a token.
    pub(crate) changed: Notify,
    identities: RwLock<Identities>,
}

/// Who is who. There is an entry for each user and cell with a token at most.
struct Identities {
    who: HashMap<(User, CellIndex), Who>,
    logins: HashMap<Who, Arc<Login>>,
    /// The persons of a cell whose last token a user has thrown away: what the user has written as them does not wait for another one.
    left: LruCache<(u32, CellIndex, Arc<str>), ()>,
    /// The newest number, which is never given to another identity.
    last: u32,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").finish_non_exhaustive()
    }
}

impl Identities {
    /// Gives a user an identity, an existing one or a new one. Returns the one that nobody has any more.
    fn set(&mut self, user: User, login: Login) -> Option<Who> {
        let (cell, noted) = (login.cell, Arc::clone(&login.noted));
        // Two users with the same name in a cell, by the cell's key, are the same to it: what one may, the other may.
        let same = match &login.source {
            Source::Key(_, name) => self.logins.iter().find(|(_, other)| {
                other.cell == cell && matches!(&other.source, Source::Key(_, theirs) if theirs == name)
            }),
            Source::Given(_) => None,
        };
        let who = match same {
            Some((who, _)) => *who,
            None => {
                self.last = self.last.checked_add(1).expect("fewer than 2^32 logins in the life of a client");
                self.logins.insert(Who(self.last), Arc::new(login));
                Who(self.last)
            }
        };
        self.left.pop(&(user.uid, cell, noted));
        let old = self.who.insert((user, cell), who);
        old.filter(|old| *old != who && self.forget_if_unused(*old))
    }

    /// Whether a user is this person in a PAG or outside, with a token that may also have ended.
    fn is_somewhere(&self, uid: u32, cell: CellIndex, noted: &str) -> bool {
        let mut theirs = self.who.iter().filter(|((user, of), _)| user.uid == uid && *of == cell);
        theirs.any(|(_, who)| self.logins.get(who).is_some_and(|login| *login.noted == *noted))
    }

    /// How many tokens a local user has, in all PAGs together.
    fn count_of(&self, uid: u32) -> usize {
        self.who.keys().filter(|(user, _)| user.uid == uid).count()
    }

    /// Whether nobody has it any more: then it is gone.
    fn forget_if_unused(&mut self, who: Who) -> bool {
        let is_unused = !self.who.values().any(|theirs| *theirs == who);
        if is_unused {
            self.logins.remove(&who);
        }
        is_unused
    }
}

impl Users {
    /// Nobody has a token yet; connections will be protected so well.
    pub(crate) fn new(runtime: Arc<dyn Runtime>, level: Level) -> Self {
        let (is_watched, look, level) = (AtomicBool::new(false), Arc::default(), RwLock::new(level));
        let (who, logins, left) = (HashMap::new(), HashMap::new(), LruCache::new(LEFT_MAX));
        let identities = RwLock::new(Identities { who, logins, left, last: 0 });
        Self { runtime, is_watched, look, level, changed: Notify::new(), identities }
    }

    /// How well new connections are protected.
    pub(crate) fn level(&self) -> Level {
        *self.level.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has new connections protected so well.
    pub(crate) fn set_level(&self, level: Level) {
        *self.level.write().unwrap_or_else(PoisonError::into_inner) = level;
    }

    fn identities(&self) -> RwLockReadGuard<'_, Identities> {
        self.identities.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn identities_mut(&self) -> RwLockWriteGuard<'_, Identities> {
        self.identities.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who a user is to a cell. Never waits for more than a look.
    pub(crate) fn who(&self, user: User, cell: CellIndex) -> Who {
        self.identities().who.get(&(user, cell)).copied().unwrap_or(Who::NOBODY)
    }

    /// Has a user's tickets made from a cell's key from now on.
    pub(crate) fn log_in_by_key(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        keys: &Arc<KeySet>,
        name: &str,
    ) -> Result<(), Error> {
        let token = self.make_token(keys, name, cell_name)?;
        let source = Source::Key(Arc::clone(keys), name.to_owned());
        self.identities_mut().set(user, Login::new((cell, cell_name), source, token));
        Ok(())
    }

    /// Gives a user a token. With `is_forced` it counts as another one even if it is the one that the user has.
    pub(crate) fn log_in(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        holder: Holder,
        token: Token,
        is_forced: bool,
    ) -> LoggedIn {
        let mut identities = self.identities_mut();
        let who = identities.who.get(&(user, cell)).copied();
        let before = who.and_then(|who| Some((who, identities.logins.get(&who)?)));
        if let Some((who, login)) = before
            && let Source::Given(theirs) = &login.source
            && let mut theirs = theirs.lock().unwrap_or_else(PoisonError::into_inner)
            && theirs.is_same_as(&holder)
        {
            // The database may have answered the last time only.
            theirs.id = holder.id.or(theirs.id);
            let is_refused = login.is_refused.load(Ordering::Relaxed);
            if *login.token() == token && !is_forced && !is_refused {
                return LoggedIn::Before;
            }
            *login.token.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(token);
            login.is_refused.store(false, Ordering::Release);
            login.is_warned.store(false, Ordering::Relaxed);
            login.is_end_told.store(false, Ordering::Relaxed);
            return LoggedIn::Renewed(who);
        }
        if who.is_none() && identities.count_of(user.uid) >= PER_USER_MAX {
            return LoggedIn::TooMany;
        }
        LoggedIn::Anew(
            identities.set(user, Login::new((cell, cell_name), Source::Given(Mutex::new(holder)), token)),
        )
    }

    /// Takes a user's token for a cell away, or those for all cells if none is named. Returns how many there were, and the identities
    /// that nobody has any more. What the user has written as somebody waits as long as another session of theirs is the same person.
    pub(crate) fn log_out(&self, user: User, cell: Option<CellIndex>) -> (usize, Vec<Who>) {
        let mut identities = self.identities_mut();
        let Identities { who: all, logins, .. } = &mut *identities;
        let (mut gone, mut persons) = (Vec::new(), Vec::new());
        all.retain(|(theirs, in_cell), who| {
            let goes = *theirs == user && cell.is_none_or(|cell| cell == *in_cell);
            if goes {
                gone.push(*who);
                persons.extend(logins.get(who).map(|login| (*in_cell, Arc::clone(&login.noted))));
            }
            !goes
        });
        let count = gone.len();
        for (cell, noted) in persons {
            if !identities.is_somewhere(user.uid, cell, &noted) {
                identities.left.put((user.uid, cell, noted), ());
            }
        }
        gone.retain(|who| identities.forget_if_unused(*who));
        (count, gone)
    }

    /// Forgets the tokens of a PAG that has ended. What was written with them waits for others of the same person's. Returns the identities
    /// that nobody has any more.
    pub(crate) fn end(&self, user: User) -> Vec<Who> {
        let mut identities = self.identities_mut();
        let mut gone = Vec::new();
        identities.who.retain(|(theirs, _), who| {
            gone.extend((*theirs == user).then_some(*who));
            *theirs != user
        });
        gone.retain(|who| identities.forget_if_unused(*who));
        gone
    }

    /// Whether a user has a token that is still good.
    pub(crate) fn has_token(&self, user: User) -> bool {
        let now = UnixTime::of(self.runtime.wall_clock());
        let identities = self.identities();
        let mut theirs = identities.who.iter().filter(|((owner, _), _)| *owner == user);
        theirs.any(|(_, who)| identities.logins.get(who).is_some_and(|login| !login.has_ended(now)))
    }

    /// The tokens of a user, in the order in which they came.
    pub(crate) fn tokens(&self, user: User) -> Vec<TokenInfo> {
        let identities = self.identities();
        let theirs = identities.who.iter().filter(|((owner, _), _)| *owner == user).map(|(_, who)| *who);
        let mut all: Vec<_> = theirs.collect();
        all.sort_unstable();
        let infos = all.into_iter().filter_map(|who| identities.logins.get(&who)).map(|login| {
            let token = login.token();
            let (holder, is_made_here) = match &login.source {
                Source::Key(_, name) => (Holder { name: name.clone(), id: None }, true),
                Source::Given(holder) => {
                    (holder.lock().unwrap_or_else(PoisonError::into_inner).clone(), false)
                }
            };
            TokenInfo { cell: login.cell, holder, start: token.start, end: token.end, is_made_here }
        });
        infos.collect()
    }

    /// Who a user is to a cell now, as it is to be noted of what they write.
    pub(crate) fn writer(&self, user: User, cell: CellIndex) -> Writer {
        let identities = self.identities();
        let login = identities.who.get(&(user, cell)).and_then(|who| identities.logins.get(who));
        Writer::new(user.uid, login.map_or_else(Arc::default, |login| Arc::clone(&login.noted)))
    }

    /// As whom that is stored which somebody has written: as the same person, whoever the user has become since.
    ///
    /// # Errors
    ///
    /// When the user has no token of that person's now.
    pub(crate) fn who_wrote(&self, writer: &Writer, cell: CellIndex) -> Result<Who, NoToken> {
        let Some(holder) = &writer.holder else { return Ok(self.who(User::of(writer.user), cell)) };
        if holder.is_empty() {
            return Ok(Who::NOBODY);
        }
        let now = UnixTime::of(self.runtime.wall_clock());
        let identities = self.identities();
        // In whichever PAG: to the cell it is the same person.
        let theirs = identities.who.iter().filter(|((user, of), _)| user.uid == writer.user && *of == cell);
        let same = theirs.filter_map(|(_, who)| {
            let login = identities.logins.get(who).filter(|login| login.noted == *holder)?;
            Some((login.has_ended(now), *who))
        });
        same.min().map(|(_, who)| who).ok_or(NoToken)
    }

    /// Whether what somebody has written cannot be stored before the user has another token of that person's.
    pub(crate) fn is_without_token(&self, writer: &Writer, cell: CellIndex) -> bool {
        self.who_wrote(writer, cell).map_or(true, |who| self.has_ended(who))
    }

    /// Whether what a user has written waits for the next token of the same person's: it does, unless they have thrown the last one away.
    pub(crate) fn waits_for_login(&self, writer: &Writer, cell: CellIndex) -> bool {
        let left = &self.identities().left;
        match &writer.holder {
            Some(holder) => !left.contains(&(writer.user, cell, Arc::clone(holder))),
            None => !left.iter().any(|((user, of, _), ())| (*user, *of) == (writer.user, cell)),
        }
    }

    /// Whether an identity's token has ended or was refused, so that a new one may make good what fails now.
    pub(crate) fn has_ended(&self, who: Who) -> bool {
        let now = UnixTime::of(self.runtime.wall_clock());
        self.login(who).is_some_and(|login| login.has_ended(now))
    }

    /// Whether an identity still shows a token that has ended by the clock here: any server may refuse it from now on, and none says when
    /// it begins to. What servers tell of its rights counts for the one answer.
    pub(crate) fn shows_ended(&self, who: Who) -> bool {
        if who == Who::NOBODY {
            return false;
        }
        let now = UnixTime::of(self.runtime.wall_clock());
        let is_refused = |login: &Login| login.is_refused.load(Ordering::Relaxed);
        self.login(who).is_some_and(|login| login.has_ended(now) && !is_refused(&login))
    }

    /// How many tokens were given.
    pub(crate) fn counts(&self) -> TokenCounts {
        let now = UnixTime::of(self.runtime.wall_clock());
        let identities = self.identities();
        let given = || identities.logins.values().filter(|login| matches!(login.source, Source::Given(_)));
        TokenCounts { all: given().count(), ended: given().filter(|login| login.has_ended(now)).count() }
    }

    /// Says in the log which tokens end soon. Returns how many there were to be told of.
    fn warn_of_ends(&self, now: UnixTime) -> usize {
        let logins: Vec<_> = self.identities().logins.values().map(Arc::clone).collect();
        let soon = logins.iter().filter(|login| login.is_to_be_warned_of(now));
        soon.inspect(|login| {
            let Source::Given(holder) = &login.source else { return };
            let name = holder.lock().unwrap_or_else(PoisonError::into_inner).name.clone();
            let minutes = login.token().end.0.saturating_sub(now.0) / 60;
            let cell = &login.cell_name;
            tracing::warn!(cell, name, minutes, "a token ends soon: 'aklog -renew' replaces it");
        })
        .count()
    }

    /// The users whose tokens are good no more since this was asked the last time: first by the clock here, and then, as what servers tell may
    /// be others' only from then on, once more when a server has refused it.
    fn ended(&self, now: UnixTime) -> Vec<(User, Who)> {
        let identities = self.identities();
        let is_new = |who: &Who| {
            let login = identities.logins.get(who).filter(|login| login.has_ended(now));
            login.is_some_and(|login| !login.is_end_told.swap(true, Ordering::Relaxed))
        };
        let ended = identities.who.iter().filter(|(_, who)| is_new(who));
        ended.map(|((user, _), who)| (*user, *who)).collect()
    }

    /// How long there is nothing to look for.
    fn pause(&self, now: UnixTime) -> Duration {
        let identities = self.identities();
        let given = identities.logins.values().filter(|login| matches!(login.source, Source::Given(_)));
        let next = given.map(|login| login.token().end).filter(|end| *end >= now).min();
        // At its end it is good still.
        next.map_or(LOOK_EVERY, |end| LOOK_EVERY.min(Duration::from_secs(u64::from(end.0 - now.0) + 1)))
    }

    /// Looks for tokens that end from now on, if nobody does yet, and tells once of each that is good no more.
    pub(crate) fn begin_to_watch(self: &Arc<Self>, tell: impl Fn(User, Who) + Send + 'static) {
        self.look.notify_one();
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let (users, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        let look = Arc::clone(&self.look);
        self.runtime.spawn(Box::pin(async move {
            while let Some(users) = users.upgrade() {
                let now = UnixTime::of(runtime.wall_clock());
                users.warn_of_ends(now);
                users.ended(now).into_iter().for_each(|(user, who)| tell(user, who));
                let pause = users.pause(now);
                drop(users);
                wait::within(&runtime, pause, look.notified()).await;
            }
        }));
    }

    /// A user's token for a cell with its key, for this user alone; and who the user is there. One that is made here is good for a while.
    pub(crate) fn held(&self, user: User, cell: CellIndex) -> Option<(Holder, Arc<Token>)> {
        let login = self.login(self.who(user, cell))?;
        if login.token().end < UnixTime::of(self.runtime.wall_clock()).plus(TICKET_REST) {
            self.renew(&login);
        }
        let holder = match &login.source {
            Source::Key(_, name) => Holder { name: name.clone(), id: None },
            Source::Given(holder) => holder.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        Some((holder, login.token()))
    }

    /// What an identity's next call shows to a server: a token, or nothing. A ticket that is made here and about to end is replaced. One
    /// that has ended by the clock here is shown: servers have the say.
    ///
    /// # Errors
    ///
    /// For a change, when a server has refused the token, or the user has thrown it away since the operation began.
    pub(crate) fn shown(&self, who: Who, purpose: Purpose) -> Result<Option<Arc<Token>>, NoToken> {
        let login = self.login(who).filter(|login| !login.is_refused.load(Ordering::Acquire));
        let Some(login) = login else {
            return if who == Who::NOBODY || purpose == Purpose::Read { Ok(None) } else { Err(NoToken) };
        };
        let now = UnixTime::of(self.runtime.wall_clock());
        if login.token().end < now.plus(TICKET_REST) {
            self.renew(&login);
        }
        Ok(Some(login.token()))
    }

    /// The security of one more connection that shows a token, or nothing.
    pub(crate) fn security(&self, shown: Option<&Arc<Token>>) -> Box<dyn SecurityClass> {
        match shown {
            Some(token) => Box::new(rxkad::Client::new(Arc::clone(token), self.level())),
            None => Box::new(Null),
        }
    }

    /// A server has refused a ticket. The next connection shows a new one if tickets are made here; else the ticket's
    /// owner reads as nobody until the next login, and changes nothing. Where it is not the identity's any more, nothing comes of it:
    /// `shown` is what the call had shown. Returns whether trying again makes sense.
    pub(crate) fn refused(&self, who: Who, shown: Option<&Arc<Token>>) -> bool {
        let (Some(login), Some(shown)) = (self.login(who), shown) else { return false };
        // Until the end no other token comes.
        let _identities = self.identities();
        if !Arc::ptr_eq(&login.token(), shown) {
            return true;
        }
        let renewed = self.renew(&login);
        if !renewed {
            let Source::Given(holder) = &login.source else { return false };
            let is_old = login.token().end < UnixTime::of(self.runtime.wall_clock());
            let why = if is_old { "it has expired" } else { "a server refuses it" };
            // Calls that were under way at the same time are refused too.
            if !login.is_refused.swap(true, Ordering::Relaxed) {
                // Whoever looks between the two tells once too often.
                login.is_end_told.store(false, Ordering::Relaxed);
                self.look.notify_one();
                let name = holder.lock().unwrap_or_else(PoisonError::into_inner).name.clone();
                let cell = &login.cell_name;
                tracing::warn!(
                    cell,
                    name,
                    why,
                    "a token is good no more; its owner is anonymous and changes nothing until the next 'aklog'"
                );
            }
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
        self.identities().logins.get(&who).map(Arc::clone)
    }

    fn make_token(&self, keys: &KeySet, name: &str, cell: &str) -> Result<Token, Error> {
        let invalid =
            |why: String| Error::Invalid { what: format!("making a ticket for {name} of {cell}: {why}") };
        let who = Identity::parse(name).ok_or_else(|| invalid("not a user's name".to_owned()))?;
        let seed = self.runtime.seed().map_err(|error| Error::local("asking for chance", error))?;
        let now = self.runtime.wall_clock();
        let times = (UnixTime::of(now - TICKET_AGE), UnixTime::of(now + TICKET_LIFE));
        ticket::for_user(keys, &who, cell, times, &mut StdRng::from_seed(seed))
            .map_err(|error| invalid(error.to_string()))
    }
}

impl Login {
    fn new((cell, cell_name): (CellIndex, &str), source: Source, token: Token) -> Self {
        let token = Mutex::new(Arc::new(token));
        let [is_refused, is_warned, is_end_told] = [false; 3].map(AtomicBool::new);
        let noted = match &source {
            Source::Key(_, name) => Holder { name: name.clone(), id: None }.noted(),
            Source::Given(holder) => holder.lock().unwrap_or_else(PoisonError::into_inner).noted(),
        };
        Self {
            cell,
            cell_name: cell_name.to_owned(),
            source,
            noted,
            token,
            is_refused,
            is_warned,
            is_end_told,
        }
    }

    /// Whether it was given and is good no more.
    fn has_ended(&self, now: UnixTime) -> bool {
        let is_over = || self.is_refused.load(Ordering::Relaxed) || self.token().end < now;
        matches!(self.source, Source::Given(_)) && is_over()
    }

    /// Whether it was given and ends soon, and that was not said yet.
    fn is_to_be_warned_of(&self, now: UnixTime) -> bool {
        let token = self.token();
        let life = Duration::from_secs(token.end.0.saturating_sub(token.start.0).into());
        let is_soon = now.plus(WARN_BEFORE.min(life / 4)) >= token.end && now < token.end;
        matches!(self.source, Source::Given(_)) && is_soon && !self.is_warned.swap(true, Ordering::Relaxed)
    }

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
        Users::new(Arc::new(rx::TokioRuntime::current()), Level::Crypt)
    }

    fn holder(name: &str) -> Holder {
        Holder { name: name.to_owned(), id: None }
    }

    #[tokio::test]
    async fn users_without_a_token_are_the_same_nobody() {
        let users = users();
        users.log_in_by_key(User::of(1), CELL, &keys(), "alice").unwrap();
        assert_eq!(users.who(User::of(2), CELL.0), Who::NOBODY);
        assert_eq!(users.who(User::of(1), CellIndex(2)), Who::NOBODY, "a token is for one cell");
        assert_ne!(users.who(User::of(1), CELL.0), Who::NOBODY);
    }

    #[tokio::test]
    async fn two_users_of_one_name_are_one_until_both_have_left() {
        let users = users();
        users.log_in_by_key(User::of(1), CELL, &keys(), "admin").unwrap();
        users.log_in_by_key(User::of(2), CELL, &keys(), "admin").unwrap();
        let who = users.who(User::of(1), CELL.0);
        assert_eq!(users.who(User::of(2), CELL.0), who);
        assert_eq!(users.log_out(User::of(1), None), (1, vec![]));
        assert_eq!(users.who(User::of(1), CELL.0), Who::NOBODY);
        assert_eq!(users.who(User::of(2), CELL.0), who);
        assert_eq!(users.tokens(User::of(2))[0].holder, holder("admin"));
        assert!(users.tokens(User::of(1)).is_empty());
        assert_eq!(users.log_out(User::of(2), Some(CELL.0)), (1, vec![who]));
        assert_eq!(users.log_out(User::of(2), Some(CELL.0)), (0, vec![]));
    }

    /// The end of any session of a user's gave up what the others had written and could not store yet.
    #[tokio::test]
    async fn what_one_session_has_written_waits_after_another_has_thrown_its_token_away() {
        let users = users();
        let session = |number| User { uid: 1, pag: Some(crate::fid::Pag::chosen_by(number)) };
        let log_in = |user, name| {
            let token = users.make_token(&keys(), name, CELL.1).unwrap();
            users.log_in(user, CELL, holder(name), token, false);
        };
        let waits = |name: &str| users.waits_for_login(&Writer::new(1, name.into()), CELL.0);
        for (user, name) in [(User::of(1), "alice"), (session(1), "alice"), (session(2), "bob")] {
            log_in(user, name);
        }
        users.log_out(session(2), None);
        assert_eq!([waits("alice"), waits("bob")], [true, false]);
        users.log_out(session(1), None);
        assert!(waits("alice"), "another session is alice still");
        users.log_out(User::of(1), Some(CELL.0));
        assert!(!waits("alice"));
        log_in(session(3), "bob");
        assert_eq!([waits("alice"), waits("bob")], [false, true]);
        users.end(session(3));
        assert!(waits("bob"), "a session that has ended has thrown nothing away");
        assert!(users.waits_for_login(&Writer::new(2, "bob".into()), CELL.0), "nor has another user");
    }

    #[tokio::test]
    async fn a_given_token_that_is_refused_makes_its_owner_nobody_until_the_next() {
        let users = users();
        let token = users.make_token(&keys(), "alice", CELL.1).unwrap();
        assert_eq!(
            users.log_in(User::of(1), CELL, holder("alice"), token.clone(), false),
            LoggedIn::Anew(None)
        );
        let who = users.who(User::of(1), CELL.0);
        let index = |purpose| users.shown(who, purpose).map(|shown| users.security(shown.as_ref()).index().0);
        let both = || [Purpose::Read, Purpose::Change].map(index);
        assert_eq!(both(), [Ok(2), Ok(2)]);
        let shown = users.shown(who, Purpose::Change).unwrap();
        assert!(users.refused(who, shown.as_ref()));
        assert_eq!(both(), [Ok(0), Err(NoToken)], "what nobody may do is not done in the user's place");
        assert!(!users.refused(Who::NOBODY, None));
        assert_eq!(users.log_in(User::of(1), CELL, holder("alice"), token, false), LoggedIn::Renewed(who));
        assert_eq!(both(), [Ok(2), Ok(2)]);
        assert!(users.shown(Who::NOBODY, Purpose::Change).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_late_refusal_of_the_last_token_leaves_the_new_one_good() {
        let users = users();
        let token = || users.make_token(&keys(), "alice", CELL.1).unwrap();
        users.log_in(User::of(1), CELL, holder("alice"), token(), false);
        let who = users.who(User::of(1), CELL.0);
        let first = users.shown(who, Purpose::Change).unwrap();
        users.log_in(User::of(1), CELL, holder("alice"), token(), false);
        assert!(users.refused(who, first.as_ref()), "the call is made again");
        let second = users.shown(who, Purpose::Change).expect("nobody has refused it");
        assert_ne!(first, second);
        assert!(!users.has_ended(users.who(User::of(1), CELL.0)));
        users.refused(who, second.as_ref());
        assert!(users.shown(who, Purpose::Change).is_err());
    }

    #[tokio::test]
    async fn a_newer_token_of_the_same_person_is_the_same_identity_and_of_another_person_is_not() {
        let users = users();
        let token = |name| users.make_token(&keys(), name, CELL.1).unwrap();
        let (first, second) = (token("alice"), token("alice"));
        let log_in = |name, token: &Token, is_forced| {
            users.log_in(User::of(1), CELL, holder(name), token.clone(), is_forced)
        };
        log_in("alice", &first, false);
        let who = users.who(User::of(1), CELL.0);
        assert_eq!(log_in("alice", &first, false), LoggedIn::Before);
        assert_eq!(log_in("alice", &first, true), LoggedIn::Renewed(who));
        assert_eq!(log_in("alice", &second, false), LoggedIn::Renewed(who));
        assert_eq!(users.who(User::of(1), CELL.0), who);
        assert_eq!(log_in("bob", &token("bob"), false), LoggedIn::Anew(Some(who)));
        assert_ne!(users.who(User::of(1), CELL.0), who);
        // Somebody else who says to be bob is not the same: nobody here can tell whether that is true.
        users.log_in(User::of(2), CELL, holder("bob"), second, false);
        assert_ne!(users.who(User::of(2), CELL.0), users.who(User::of(1), CELL.0));
        assert!(
            users.shown(who, Purpose::Read).unwrap().is_none(),
            "an identity that has left shows nothing"
        );
        assert!(users.shown(who, Purpose::Change).is_err(), "nor does it change anything as nobody");
    }

    #[tokio::test]
    async fn the_end_of_a_token_is_warned_of_once_and_waited_for_after() {
        let users = users();
        let token = users.make_token(&keys(), "alice", CELL.1).unwrap();
        let end = token.end;
        let at = |before: u32| UnixTime(end.0 - before);
        users.log_in(User::of(1), CELL, holder("alice"), token.clone(), false);
        assert_eq!([at(3600), at(900), at(899)].map(|now| users.warn_of_ends(now)), [0, 1, 0]);
        users.log_in(User::of(1), CELL, holder("alice"), token.clone(), true);
        assert_eq!([at(60), UnixTime(end.0 + 1)].map(|now| users.warn_of_ends(now)), [1, 0]);
        assert!(!users.has_ended(users.who(User::of(1), CELL.0)));
        assert_eq!(users.counts(), TokenCounts { all: 1, ended: 0 });
        let who = users.who(User::of(1), CELL.0);
        users.refused(who, users.shown(who, Purpose::Read).unwrap().as_ref());
        assert!(users.has_ended(users.who(User::of(1), CELL.0)));
        assert_eq!(users.counts(), TokenCounts { all: 1, ended: 1 });
        assert!(!users.has_ended(users.who(User::of(2), CELL.0)), "whoever never had one waits for nothing");
        users.log_out(User::of(1), None);
        assert!(!users.has_ended(users.who(User::of(1), CELL.0)), "nor does one who threw it away");
    }

    #[tokio::test]
    async fn the_end_of_a_token_is_told_once_and_once_more_of_the_next() {
        let users = users();
        let token = users.make_token(&keys(), "alice", CELL.1).unwrap();
        let (end, after) = (token.end, UnixTime(token.end.0 + 1));
        let log_in = || users.log_in(User::of(1), CELL, holder("alice"), token.clone(), true);
        log_in();
        let who = users.who(User::of(1), CELL.0);
        assert_eq!([end, after, after].map(|now| users.ended(now).len()), [0, 1, 0]);
        assert_eq!(users.pause(UnixTime(end.0 - 4)), Duration::from_secs(5), "its end is not slept through");
        assert_eq!([UnixTime(1), after].map(|now| users.pause(now)), [LOOK_EVERY; 2]);
        log_in();
        users.refused(who, users.shown(who, Purpose::Read).unwrap().as_ref());
        assert_eq!([end, end].map(|now| users.ended(now)), [vec![(User::of(1), who)], vec![]]);
    }

    /// What servers told between the end by the clock here and by theirs was never forgotten.
    #[tokio::test]
    async fn a_refusal_is_told_of_also_when_the_end_was_told_before() {
        let users = users();
        let now = UnixTime::of(users.runtime.wall_clock());
        let token = Token { end: UnixTime(now.0 - 1), ..users.make_token(&keys(), "alice", CELL.1).unwrap() };
        users.log_in(User::of(1), CELL, holder("alice"), token, false);
        let who = users.who(User::of(1), CELL.0);
        assert_eq!([now, now].map(|now| users.ended(now).len()), [1, 0]);
        assert!(users.shows_ended(who));
        users.refused(who, users.shown(who, Purpose::Read).unwrap().as_ref());
        assert_eq!([now, now].map(|now| users.ended(now).len()), [1, 0]);
        assert!(!users.shows_ended(who), "it shows nothing");
    }

    #[tokio::test]
    async fn one_user_does_not_fill_the_memory_with_tokens_of_many_pags() {
        let users = users();
        let token = users.make_token(&keys(), "alice", CELL.1).unwrap();
        let log_in = |user| users.log_in(user, CELL, holder("alice"), token.clone(), true);
        let session = |number| User { uid: 1, pag: Some(crate::fid::Pag::chosen_by(number)) };
        assert_eq!(log_in(User::of(1)), LoggedIn::Anew(None));
        (2..=PER_USER_MAX).for_each(|n| assert_eq!(log_in(session(n as u32)), LoggedIn::Anew(None), "{n}"));
        let (more, other) = (session(1), User { uid: 2, ..session(1) });
        assert_eq!(log_in(more), LoggedIn::TooMany);
        assert_eq!(users.who(more, CELL.0), Who::NOBODY);
        assert!(matches!(log_in(session(2)), LoggedIn::Renewed(_)), "in the place of one that there is");
        assert_eq!(log_in(other), LoggedIn::Anew(None), "another user has as many");
        users.log_out(User::of(1), None);
        assert_eq!(log_in(more), LoggedIn::Anew(None));
    }

    #[tokio::test]
    async fn tokens_that_are_replaced_for_years_take_no_more_room() {
        let users = users();
        let token = users.make_token(&keys(), "alice", CELL.1).unwrap();
        for turn in 0..1000 {
            users.log_in(User::of(1), CELL, holder(&format!("user{turn}")), token.clone(), false);
        }
        assert_eq!(users.identities().logins.len(), 1);
    }
}
