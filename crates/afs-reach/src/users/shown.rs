//! What an identity shows to servers: a token of rxkad, one of rxgk, or both.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rx_security::rxgk::RxgkTime;
use rx_security::{Token, UnixTime, rxgk};

use super::{IdentityIndex, Purpose, Source, TICKET_REST, Users};

/// What an identity shows to servers. Of the two tokens, that of rxgk is shown if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub(crate) own: Arc<Own>,
    pub(crate) rxgk: Option<Arc<rxgk::Token>>,
    /// What a file server gets with the token of rxgk, to call back with.
    pub(crate) callback: Option<Arc<rxgk::AppData>>,
}

/// What an identity shows is good no more: the reason why a call is not made as nobody in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotShown {
    /// The token has ended or was thrown away, or a server has refused one of rxkad.
    Ended,
    /// A server has refused a token of rxgk, or a device has none.
    Refused {
        /// The owner's name, as far as it is known.
        name: String,
        /// True if the token is a device's.
        is_device: bool,
    },
}

/// The time in which what an identity shows is good, with its token of rxkad. Who has one of rxgk alone has none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) start: UnixTime,
    pub(crate) end: UnixTime,
    pub(crate) rxkad: Option<Arc<Token>>,
}

impl Own {
    /// With a token of rxkad, whatever else there is.
    pub(super) fn of(token: Token) -> Arc<Self> {
        Arc::new(Self { start: token.start, end: token.end, rxkad: Some(Arc::new(token)) })
    }
}

impl Shown {
    /// Nothing, yet or any more.
    pub(super) fn nothing() -> Self {
        let own = Own { start: UnixTime::ORIGIN, end: UnixTime::ORIGIN, rxkad: None };
        Self { own: Arc::new(own), rxgk: None, callback: None }
    }

    /// A token of rxgk alone.
    pub(super) fn only_rxgk(token: rxgk::Token, start: UnixTime) -> Self {
        let end = end_of(&token);
        Self { own: Arc::new(Own { start, end, rxkad: None }), rxgk: Some(Arc::new(token)), callback: None }
    }

    /// True if there is nothing that a server could be shown.
    pub(crate) fn is_nothing(&self) -> bool {
        self.rxgk.is_none() && self.own.rxkad.is_none()
    }

    /// True if there is a token of rxgk, and neither it nor what is beside it has ended.
    pub(super) fn has_good_rxgk(&self, now: UnixTime) -> bool {
        let is_good = |token: &Arc<rxgk::Token>| now <= end_of(token);
        self.rxgk.as_ref().is_some_and(is_good) && now <= self.own.end
    }

    /// True if it is the very same, and not only equal.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same = match (&self.rxgk, &other.rxgk) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        is_same && Arc::ptr_eq(&self.own, &other.own)
    }
}

impl Users {
    /// Returns what an identity's next call shows to a server: a token, or nothing. A ticket that is made here and about to end is
    /// replaced. One that has ended by the clock here is shown: servers have the say.
    ///
    /// # Errors
    ///
    /// When a server has refused the token, or the user has thrown it away since the operation began: for a change always, and for a
    /// reader if it is of rxgk or a device's, and has not ended by the clock here. A refusal can be forged, and what would be read as nobody too.
    pub(crate) fn shown(&self, who: IdentityIndex, purpose: Purpose) -> Result<Option<Shown>, NotShown> {
        let ended = || {
            let goes_on = who == IdentityIndex::NOBODY || purpose == Purpose::Read;
            if goes_on { Ok(None) } else { Err(NotShown::Ended) }
        };
        let Some(login) = self.login(who) else { return ended() };
        let now = UnixTime::of(self.runtime.wall_clock());
        if login.is_refused.load(Ordering::Acquire) {
            let is_device = matches!(login.source, Source::Device(_));
            if is_device || login.shown().has_good_rxgk(now) {
                return Err(NotShown::Refused { name: login.holder().name, is_device });
            }
            return ended();
        }
        if login.own().end < now.plus(TICKET_REST) {
            self.renew(&login);
        }
        Ok(Some(login.shown()))
    }
}

/// The second in which a token ends.
fn end_of(token: &rxgk::Token) -> UnixTime {
    let seconds = (token.end.0 / RxgkTime::SECOND).max(0);
    match token.end {
        RxgkTime::NONE => UnixTime::NEVER,
        _ => UnixTime(u32::try_from(seconds).unwrap_or(u32::MAX)),
    }
}
