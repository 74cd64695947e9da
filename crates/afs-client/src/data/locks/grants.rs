//! What the holders of this client have of one file's lock, by what the server has given. Asks nobody.

use std::sync::Arc;

use crate::data::locks::{LOCKS_MAX, LockKind};
use crate::error::Error;
use crate::fid::User;

/// A locked file. It is in the table for as long as it has holders, or the server is asked or told.
#[derive(Debug)]
pub(super) struct Lock {
    /// Whom the server gave it to.
    pub(super) user: User,
    pub(super) holders: Vec<(u64, LockKind)>,
    /// What the server has given.
    pub(super) at_server: Option<LockKind>,
    /// Held while the server is called about it, so that what is asked for does not overtake what is given back.
    pub(super) asking: Arc<tokio::sync::Mutex<()>>,
}

/// Whether a holder can have a lock, and what that takes.
pub(super) enum Grant {
    /// They have it: what the server has given covers it.
    Covered,
    /// The server is to be asked; what it has given before is to be given back first.
    AskServer(Option<LockKind>),
    /// Another holder of this client is in the way.
    Conflict,
}

impl Lock {
    pub(super) fn new(user: User) -> Self {
        Self { user, holders: Vec::new(), at_server: None, asking: Arc::default() }
    }

    pub(super) fn try_grant(&mut self, user: User, holder: u64, kind: LockKind) -> Result<Grant, Error> {
        let mut others = self.holders.iter().filter(|(who, _)| *who != holder);
        if others.any(|(_, theirs)| kind == LockKind::Write || *theirs == LockKind::Write) {
            return Ok(Grant::Conflict);
        }
        // What another user's last holder is about to give back was given for his rights.
        let is_ours = self.user == user || !self.holders.is_empty();
        let is_covered = match self.at_server {
            Some(LockKind::Write) => is_ours,
            Some(LockKind::Read) => is_ours && kind == LockKind::Read,
            None => false,
        };
        if !is_covered {
            return Ok(Grant::AskServer(self.at_server));
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

    fn covered(lock: &mut Lock, holder: u64, kind: LockKind) -> Option<bool> {
        match lock.try_grant(User::of(1), holder, kind).unwrap() {
            Grant::Covered => Some(true),
            Grant::AskServer(..) => Some(false),
            Grant::Conflict => None,
        }
    }

    #[test]
    fn holders_share_what_the_server_has_given() {
        let mut lock = Lock::new(User::of(1));
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(false), "the server is to be asked");
        lock.at_server = Some(LockKind::Read);
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(true));
        assert_eq!(covered(&mut lock, 2, LockKind::Read), Some(true), "no call for the second reader");
        assert_eq!(covered(&mut lock, 3, LockKind::Write), None, "readers are in a writer's way");
        lock.holders.retain(|(who, _)| *who != 2);
        assert_eq!(
            covered(&mut lock, 1, LockKind::Write),
            Some(false),
            "alone, but the server gave it for reading"
        );
        lock.at_server = Some(LockKind::Write);
        assert_eq!(covered(&mut lock, 1, LockKind::Write), Some(true));
        assert_eq!(covered(&mut lock, 2, LockKind::Read), None);
    }

    #[test]
    fn what_one_user_is_about_to_give_back_is_not_for_another() {
        let mut lock = Lock::new(User::of(2));
        lock.at_server = Some(LockKind::Write);
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(false));
        lock.user = User::of(1);
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(true));
    }
}
