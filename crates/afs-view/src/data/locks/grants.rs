//! The holders of one file's lock in this client, within the lock that the server has given. Asks nobody.

use std::sync::Arc;

use rx_proto::time::Instant;

use crate::data::locks::{LOCKS_MAX, LockKind};
use afs_reach::error::Error;
use afs_reach::fid::User;

/// A locked file. It is in the table for as long as it has holders, or the server is asked or told.
#[derive(Debug, Default)]
pub(super) struct Lock {
    pub(super) holders: Vec<(u64, LockKind)>,
    /// The lock that the server has given. It may have ended, and is asked for again then.
    pub(super) given: Option<Given>,
    /// Held while the server is called about it, so that what is asked for does not overtake what is given back.
    pub(super) asking: Arc<tokio::sync::Mutex<()>>,
}

/// A lock that a server has given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given {
    /// The user it was given to.
    pub(super) user: User,
    pub(super) kind: LockKind,
    /// The time until which the server has it, whenever it got the call: by the clock that goes on while the machine sleeps.
    pub(super) ends: Instant,
}

/// The answer whether a holder can have a lock, and what that takes.
pub(super) enum Grant {
    /// They have it: what the server has given covers it.
    Covered,
    /// The server is to be asked; what it has given before is to be given back first.
    AskServer(Option<Given>),
    /// Another holder of this client is in the way.
    Conflict,
}

impl Lock {
    pub(super) fn try_grant(
        &mut self,
        now: Instant,
        user: User,
        holder: u64,
        kind: LockKind,
    ) -> Result<Grant, Error> {
        let mut others = self.holders.iter().filter(|(who, _)| *who != holder);
        if others.any(|(_, theirs)| kind == LockKind::Write || *theirs == LockKind::Write) {
            return Ok(Grant::Conflict);
        }
        let given = self.given.filter(|given| now < given.ends);
        let is_covered = given.is_some_and(|given| {
            // What another user's last holder is about to give back was given for that user's rights.
            let is_ours = given.user == user || !self.holders.is_empty();
            is_ours && (given.kind == LockKind::Write || kind == LockKind::Read)
        });
        if !is_covered {
            return Ok(Grant::AskServer(given));
        }
        if self.holders.len() >= LOCKS_MAX {
            return Err(Error::Unsupported { what: "so many locks" });
        }
        self.holders.retain(|(who, _)| *who != holder);
        self.holders.push((holder, kind));
        Ok(Grant::Covered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);
    const LATER: Instant = Instant::from_nanos(2_000_000_000);

    fn given(user: u32, kind: LockKind) -> Option<Given> {
        Some(Given { user: User::of(user), kind, ends: LATER })
    }

    fn covered(lock: &mut Lock, holder: u64, kind: LockKind) -> Option<bool> {
        match lock.try_grant(NOW, User::of(1), holder, kind).unwrap() {
            Grant::Covered => Some(true),
            Grant::AskServer(..) => Some(false),
            Grant::Conflict => None,
        }
    }

    #[test]
    fn holders_share_what_the_server_has_given() {
        let mut lock = Lock::default();
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(false), "the server is to be asked");
        lock.given = given(1, LockKind::Read);
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(true));
        assert_eq!(covered(&mut lock, 2, LockKind::Read), Some(true), "no call for the second reader");
        assert_eq!(covered(&mut lock, 3, LockKind::Write), None, "readers are in a writer's way");
        lock.holders.retain(|(who, _)| *who != 2);
        assert_eq!(
            covered(&mut lock, 1, LockKind::Write),
            Some(false),
            "alone, but the server gave it for reading"
        );
        lock.given = given(1, LockKind::Write);
        assert_eq!(covered(&mut lock, 1, LockKind::Write), Some(true));
        assert_eq!(covered(&mut lock, 2, LockKind::Read), None);
    }

    #[test]
    fn what_one_user_is_about_to_give_back_is_not_for_another() {
        let mut lock = Lock { given: given(2, LockKind::Write), ..Lock::default() };
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(false));
        lock.given = given(1, LockKind::Write);
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(true));
    }

    #[test]
    fn what_may_have_ended_is_asked_for_and_not_given_back() {
        let mut lock = Lock { given: given(1, LockKind::Write), ..Lock::default() };
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(true));
        let grant = lock.try_grant(LATER, User::of(1), 2, LockKind::Read).unwrap();
        assert!(matches!(grant, Grant::AskServer(None)));
    }
}
