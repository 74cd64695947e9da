//! What an identity shows to servers: a token of rxkad, one of rxgk, or both.

use std::sync::Arc;

use rx_security::rxgk::RxgkTime;
use rx_security::{Token, UnixTime, rxgk};

/// What an identity shows to servers. Of the two tokens, that of rxgk is shown if there is one.
#[derive(Debug, Clone)]
pub struct Shown {
    pub(crate) own: Arc<Own>,
    pub(crate) rxgk: Option<Arc<rxgk::Token>>,
}

/// The time in which what an identity shows is good, with its token of rxkad. Devices have none.
#[derive(Debug)]
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
        Self { own: Arc::new(own), rxgk: None }
    }

    /// A token of rxgk alone.
    pub(super) fn only_rxgk(token: rxgk::Token, start: UnixTime) -> Self {
        let seconds = (token.end.0 / RxgkTime::SECOND).max(0);
        let end = match token.end {
            RxgkTime::NONE => UnixTime::NEVER,
            _ => UnixTime(u32::try_from(seconds).unwrap_or(u32::MAX)),
        };
        Self { own: Arc::new(Own { start, end, rxkad: None }), rxgk: Some(Arc::new(token)) }
    }

    /// True if there is nothing that a server could be shown.
    pub(crate) fn is_nothing(&self) -> bool {
        self.rxgk.is_none() && self.own.rxkad.is_none()
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
