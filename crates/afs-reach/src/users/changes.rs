//! How tokens come and go. Where they are kept over a restart, that changes with them.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rx_security::{Token, UnixTime, rxgk};

use super::kept::{Kept, KeptToken};
use super::{Holder, Identities, IdentityIndex, LoggedIn, Login, Own, PER_USER_MAX, Shown, Source, Users};
use crate::fid::{CellIndex, User};

impl Users {
    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps tokens there from now on, and those that there are.
    pub fn keep(&self, folder: Kept) {
        let mut kept = self.kept();
        *kept = Some(folder);
        let all: Vec<_> = self.identities().who.keys().copied().collect();
        for (user, cell) in all {
            self.keep_token(&mut kept, user, cell);
        }
    }

    /// Keeps none, and tells why as soon as somebody has one to lose.
    pub fn keep_none(&self, why: io::Error) {
        *self.why_not_kept() = Some(why);
    }

    fn why_not_kept(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.why_not_kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the token that a user has for a cell now, if somebody has given it.
    fn keep_token(&self, kept: &mut Option<Kept>, user: User, cell: CellIndex) {
        let Some(login) = self.login(self.who(user, cell)) else { return };
        if let Source::Given(holder) = &login.source {
            let Some(kept) = kept else {
                if let Some(error) = self.why_not_kept().take() {
                    tracing::warn!(%error, "a restart of this client will take all users' tokens away");
                }
                return;
            };
            let holder = holder.lock().unwrap_or_else(PoisonError::into_inner).clone();
            kept.put(user, &login.cell_name, &holder, &login.shown());
        }
    }

    /// A token that was kept is good no more: it is over, or its PAG is.
    pub fn forget_kept(&self, token: &KeptToken) {
        if let Some(kept) = &mut *self.kept() {
            kept.remove(token.user, Some(token.cell.as_str()));
        }
    }

    /// Gives a user a token that was kept, unless they have thrown it away since, or have another one.
    pub fn restore(&self, (cell, cell_name): (CellIndex, &str), kept: &KeptToken) -> Option<LoggedIn> {
        let folder = self.kept();
        let is_kept = folder.as_ref().is_some_and(|folder| folder.has(kept.user, &kept.cell));
        if !is_kept || self.who(kept.user, cell) != IdentityIndex::NOBODY {
            return None;
        }
        Some(self.give(kept.user, (cell, cell_name), kept.holder.clone(), kept.shown.clone(), false))
    }

    /// Gives a user a token of rxgk, beside the one that somebody has given the user for the cell. Returns the identity that has it; `None` if
    /// there is no such token.
    pub fn log_in_by_rxgk(&self, user: User, cell: CellIndex, token: rxgk::Token) -> Option<IdentityIndex> {
        let mut kept = self.kept();
        let who = self.add_rxgk(user, cell, token)?;
        self.keep_token(&mut kept, user, cell);
        Some(who)
    }

    fn add_rxgk(&self, user: User, cell: CellIndex, token: rxgk::Token) -> Option<IdentityIndex> {
        let identities = self.identities();
        let who = *identities.who.get(&(user, cell))?;
        let login = identities.logins.get(&who).filter(|login| matches!(login.source, Source::Given(_)))?;
        login.shown.lock().unwrap_or_else(PoisonError::into_inner).rxgk = Some(Arc::new(token));
        login.is_refused.store(false, Ordering::Release);
        Some(who)
    }

    /// Gives a user a token. With `is_forced` it counts as another one even if it is the one that the user has.
    pub fn log_in(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        holder: Holder,
        token: Token,
        is_forced: bool,
    ) -> LoggedIn {
        let shown = Shown { own: Own::of(token), rxgk: None, callback: None };
        self.give_and_keep(user, (cell, cell_name), holder, shown, is_forced)
    }

    /// Gives a user a token of rxgk, and none of rxkad.
    pub fn log_in_by_rxgk_alone(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        holder: Holder,
        token: rxgk::Token,
    ) -> LoggedIn {
        let shown = Shown::only_rxgk(token, UnixTime::of(self.runtime.wall_clock()));
        self.give_and_keep(user, (cell, cell_name), holder, shown, true)
    }

    fn give_and_keep(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        holder: Holder,
        shown: Shown,
        is_forced: bool,
    ) -> LoggedIn {
        let mut kept = self.kept();
        let outcome = self.give(user, (cell, cell_name), holder, shown, is_forced);
        if matches!(outcome, LoggedIn::Renewed(_) | LoggedIn::Anew(_)) {
            self.keep_token(&mut kept, user, cell);
        }
        outcome
    }

    fn give(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        holder: Holder,
        given: Shown,
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
            if login.own().rxkad == given.own.rxkad && !is_forced && !is_refused {
                return LoggedIn::Before;
            }
            // That of rxgk stays until another one comes: between the two, nothing goes by rxkad.
            let mut shown = login.shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.own = given.own;
            shown.rxgk = given.rxgk.or_else(|| shown.rxgk.take());
            drop(shown);
            login.is_refused.store(false, Ordering::Release);
            login.is_warned.store(false, Ordering::Relaxed);
            login.is_end_told.store(false, Ordering::Relaxed);
            return LoggedIn::Renewed(who);
        }
        if who.is_none() && identities.count_of(user.uid) >= PER_USER_MAX {
            return LoggedIn::TooMany;
        }
        let source = Source::Given(Mutex::new(holder));
        LoggedIn::Anew(identities.set(user, Login::new((cell, cell_name), source, given)))
    }

    /// Takes a user's token for a cell away, or those for all cells if none is named. Returns how many there were, and the identities
    /// that nobody has any more. What the user has written as somebody waits as long as another session of theirs is the same person.
    pub fn log_out(&self, user: User, cell: Option<(CellIndex, &str)>) -> (usize, Vec<IdentityIndex>) {
        let mut kept = self.kept();
        if let Some(kept) = &mut *kept {
            kept.remove(user, cell.map(|(_, name)| name));
        }
        let mut identities = self.identities_mut();
        let Identities { who: all, logins, .. } = &mut *identities;
        let (mut gone, mut persons) = (Vec::new(), Vec::new());
        all.retain(|(theirs, in_cell), who| {
            let goes = *theirs == user && cell.is_none_or(|(cell, _)| cell == *in_cell);
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
    pub fn end(&self, user: User) -> Vec<IdentityIndex> {
        let mut kept = self.kept();
        if let Some(kept) = &mut *kept {
            kept.remove(user, None);
        }
        let mut identities = self.identities_mut();
        let mut gone = Vec::new();
        identities.who.retain(|(theirs, _), who| {
            gone.extend((*theirs == user).then_some(*who));
            *theirs != user
        });
        gone.retain(|who| identities.forget_if_unused(*who));
        gone
    }

    /// The users whose tokens are good no more since this was asked the last time: first by the clock here, and then, as what servers tell may
    /// be others' only from then on, once more when a server has refused it.
    pub(super) fn ended(&self, now: UnixTime) -> Vec<(User, IdentityIndex)> {
        let mut kept = self.kept();
        let identities = self.identities();
        let ended = |who: &IdentityIndex| identities.logins.get(who).filter(|login| login.has_ended(now));
        let is_new = |login: &&Arc<Login>| !login.is_end_told.swap(true, Ordering::Relaxed);
        let all = identities
            .who
            .iter()
            .filter_map(|((user, _), who)| Some((*user, *who, ended(who).filter(is_new)?)));
        let told = all.map(|(user, who, login)| {
            if let Some(kept) = &mut *kept {
                kept.remove(user, Some(&login.cell_name));
            }
            (user, who)
        });
        told.collect()
    }
}
