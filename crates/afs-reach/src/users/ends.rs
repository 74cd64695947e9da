//! Tokens that end: a warning before it, and once word of each that is good no more. What becomes of what was shown by it is the client's matter.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rx_security::UnixTime;

use super::{IdentityIndex, Login, Source, Users};
use crate::fid::User;
use crate::wait;

/// With less than this left of a token that was given, or less than a quarter of its life, its end is warned of, once.
const WARN_BEFORE: Duration = Duration::from_secs(15 * 60);

/// The time between two looks for tokens that end soon.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(30);

impl Users {
    /// True if an identity's token has ended or was refused, so that a new one may make good what fails now.
    pub fn has_ended(&self, who: IdentityIndex) -> bool {
        let now = UnixTime::of(self.runtime.wall_clock());
        self.login(who).is_some_and(|login| login.has_ended(now))
    }

    /// True if an identity still shows a token that has ended by the clock here: any server may refuse it from now on, and none says when
    /// it begins to. What servers tell of its rights counts for the one answer.
    pub fn shows_ended(&self, who: IdentityIndex) -> bool {
        if who == IdentityIndex::NOBODY {
            return false;
        }
        let now = UnixTime::of(self.runtime.wall_clock());
        let is_refused = |login: &Login| login.is_refused.load(Ordering::Relaxed);
        self.login(who).is_some_and(|login| login.has_ended(now) && !is_refused(&login))
    }

    /// Says in the log which tokens end soon. Returns how many there were to be told of.
    pub(super) fn warn_of_ends(&self, now: UnixTime) -> usize {
        let logins: Vec<_> = self.identities().logins.values().map(Arc::clone).collect();
        let soon = logins.iter().filter(|login| login.is_to_be_warned_of(now));
        soon.inspect(|login| {
            let name = login.holder().name;
            let minutes = login.own().end.0.saturating_sub(now.0) / 60;
            let cell = &login.cell_name;
            tracing::warn!(cell, name, minutes, "a token ends soon: 'aklog -renew' replaces it");
        })
        .count()
    }

    /// The time for which there is nothing to look for.
    pub(super) fn pause(&self, now: UnixTime) -> Duration {
        let identities = self.identities();
        let ending = identities.logins.values().filter(|login| !matches!(login.source, Source::Key(..)));
        let next = ending.map(|login| login.own().end).filter(|end| *end >= now).min();
        // At its end it is good still.
        next.map_or(LOOK_EVERY, |end| LOOK_EVERY.min(Duration::from_secs(u64::from(end.0 - now.0) + 1)))
    }

    /// Looks for tokens that end from now on, if nobody does yet, and tells once of each that is good no more.
    pub fn begin_to_watch(self: &Arc<Self>, tell: impl Fn(User, IdentityIndex) + Send + 'static) {
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
}

impl Login {
    /// Says that a server has refused it, and asks for a device's next one.
    pub(super) fn tell_of_refusal(&self, now: UnixTime) {
        let why = if self.own().end < now { "it has expired" } else { "a server refuses it" };
        let (cell, name) = (&self.cell_name, self.holder().name);
        match &self.source {
            Source::Device(device) => {
                device.wanted.notify_one();
                tracing::warn!(
                    cell,
                    name,
                    why,
                    "a device's token is no longer good; the cell is asked for another one"
                );
            }
            Source::Given(_) if self.shown().has_good_rxgk(now) => tracing::warn!(
                cell,
                name,
                "a server refuses a token of rxgk; its owner can neither read nor change anything until the next 'aklog'"
            ),
            Source::Key(..) | Source::Given(_) => tracing::warn!(
                cell,
                name,
                why,
                "a token is no longer good; its owner is anonymous and can change nothing until the next 'aklog'"
            ),
        }
    }

    /// True if it was given and ends soon, and that was not said yet.
    fn is_to_be_warned_of(&self, now: UnixTime) -> bool {
        let own = self.own();
        let life = Duration::from_secs(own.end.0.saturating_sub(own.start.0).into());
        let is_soon = now.plus(WARN_BEFORE.min(life / 4)) >= own.end && now < own.end;
        self.is_given() && is_soon && !self.is_warned.swap(true, Ordering::Relaxed)
    }
}
