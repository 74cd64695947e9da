//! The user whom a device's key stands for (Join notes). The cell gives the device one token of rxgk after the other; who asks for them is
//! told when a server refuses one. In between the user neither reads nor changes anything.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rx_security::{UnixTime, rxgk};
use tokio::sync::Notify;

use super::{IdentityIndex, Login, Shown, Source, Users};
use crate::fid::{CellIndex, User};

/// What makes a login a device's.
pub(super) struct Device {
    /// The user in the cell.
    pub(super) name: String,
    /// Told when the token is good no more.
    pub(super) wanted: Arc<Notify>,
}

impl Users {
    /// Makes a user the one for whom a device gets tokens. There is none yet. What is returned is told when a token is wanted.
    pub fn log_in_by_device(
        &self,
        user: User,
        (cell, cell_name): (CellIndex, &str),
        name: &str,
    ) -> (IdentityIndex, Arc<Notify>) {
        let wanted = Arc::new(Notify::new());
        let source = Source::Device(Device { name: name.to_owned(), wanted: Arc::clone(&wanted) });
        let login = Login::new((cell, cell_name), source, Shown::nothing());
        login.is_refused.store(true, Ordering::Relaxed);
        login.is_end_told.store(true, Ordering::Relaxed);
        let mut identities = self.identities_mut();
        identities.set(user, login);
        (identities.who[&(user, cell)], wanted)
    }

    /// Gives a device's user the next token. False if the user is that no more.
    pub fn renew_by_device(&self, who: IdentityIndex, token: rxgk::Token) -> bool {
        let Some(login) = self.login(who) else { return false };
        // Until the end nobody tells of a refusal of the old one.
        let _identities = self.identities_mut();
        let shown = Shown::only_rxgk(token, UnixTime::of(self.runtime.wall_clock()));
        *login.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
        login.is_refused.store(false, Ordering::Release);
        login.is_end_told.store(false, Ordering::Relaxed);
        true
    }

    /// The time for which an identity's token is good yet.
    pub fn rest_of(&self, who: IdentityIndex) -> Duration {
        let now = UnixTime::of(self.runtime.wall_clock());
        let end = self.login(who).map_or(now, |login| login.own().end);
        Duration::from_secs(end.0.saturating_sub(now.0).into())
    }

    /// The cell gives the device no more tokens, and its servers take the last one no more.
    pub fn end_by_device(&self, who: IdentityIndex) {
        let Some(login) = self.login(who) else { return };
        login.is_refused.store(true, Ordering::Release);
        *login.shown.lock().unwrap_or_else(PoisonError::into_inner) = Shown::nothing();
        login.is_end_told.store(false, Ordering::Relaxed);
        self.look.notify_one();
    }
}
