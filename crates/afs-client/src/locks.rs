//! Locks of whole files. AFS knows one lock for each client and file, of five minutes (File service notes 6.7): here it is shared
//! out among the holders of this client, prolonged while one has it, and given back with the last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use afs_wire::Errno;
use afs_wire::abort;
use afs_wire::rxafs::{ExtendLock, ReleaseLock, SetLock, ViceLockType};
use rxgen::Rpc;
use tokio::sync::Notify;

use crate::client::{Client, Inner};
use crate::error::Error;
use crate::fid::{Fid, User};

/// How often a lock is prolonged: twice could fail before its five minutes are over.
const EXTEND_EVERY: Duration = Duration::from_secs(100);

/// How often a lock is tried that another client has. Servers do not tell when it is free.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Files that are locked at once, and holders of one: more than any program uses, so that none can fill the memory.
const LOCKS_MAX: usize = 100_000;

/// How a file is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Alone.
    Write,
}

impl LockKind {
    fn to_wire(self) -> ViceLockType {
        match self {
            Self::Read => ViceLockType::READ,
            Self::Write => ViceLockType::WRITE,
        }
    }
}

/// The locks that this client has.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    table: Mutex<HashMap<Fid, Lock>>,
    /// Told when a holder has given a lock back.
    freed: Notify,
}

/// A locked file.
#[derive(Debug)]
struct Lock {
    user: User,
    holders: Vec<(u64, LockKind)>,
    /// What the server has given.
    at_server: Option<LockKind>,
    /// Held by who talks to the server about it.
    asking: Arc<tokio::sync::Mutex<()>>,
}

/// What is to be done for a holder.
enum Wish {
    /// He has it: what the server has given covers it.
    Covered,
    /// The server is to be asked; what it has given before is to be given back first.
    Ask(Arc<tokio::sync::Mutex<()>>, Option<LockKind>),
    /// Another holder of this client is in the way.
    InTheWay,
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, HashMap<Fid, Lock>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wish(&self, user: User, fid: Fid, holder: u64, kind: LockKind) -> Result<Wish, Error> {
        let mut table = self.lock();
        if table.len() >= LOCKS_MAX && !table.contains_key(&fid) {
            return Err(Error::Unsupported { what: "so many locks" });
        }
        let lock = table.entry(fid).or_insert_with(|| Lock {
            user,
            holders: Vec::new(),
            at_server: None,
            asking: Arc::default(),
        });
        let mut others = lock.holders.iter().filter(|(who, _)| *who != holder);
        if others.any(|(_, theirs)| kind == LockKind::Write || *theirs == LockKind::Write) {
            return Ok(Wish::InTheWay);
        }
        let is_covered = match lock.at_server {
            Some(LockKind::Write) => true,
            Some(LockKind::Read) => kind == LockKind::Read,
            None => false,
        };
        if !is_covered {
            return Ok(Wish::Ask(Arc::clone(&lock.asking), lock.at_server));
        }
        if lock.holders.len() >= LOCKS_MAX {
            return Err(Error::Unsupported { what: "so many locks" });
        }
        lock.holders.retain(|(who, _)| *who != holder);
        lock.holders.push((holder, kind));
        Ok(Wish::Covered)
    }

    fn set_at_server(&self, fid: Fid, kind: Option<LockKind>) {
        if let Some(lock) = self.lock().get_mut(&fid) {
            lock.at_server = kind;
        }
    }

    /// Takes a holder out; what is to be given back to the server if he was the last.
    fn leave(&self, fid: Fid, holder: u64) -> Option<User> {
        let mut table = self.lock();
        let lock = table.get_mut(&fid)?;
        lock.holders.retain(|(who, _)| *who != holder);
        let is_last = lock.holders.is_empty();
        let (user, at_server) = (lock.user, lock.at_server);
        if is_last {
            table.remove(&fid);
        }
        at_server.filter(|_| is_last).map(|_| user)
    }

    /// What this client has locked at servers, and as whom.
    fn at_servers(&self) -> Vec<(Fid, User)> {
        let table = self.lock();
        table
            .iter()
            .filter(|(_, lock)| lock.at_server.is_some())
            .map(|(&fid, lock)| (fid, lock.user))
            .collect()
    }

    fn is_at_server(&self, fid: Fid) -> Option<User> {
        self.lock().get(&fid).filter(|lock| lock.at_server.is_some()).map(|lock| lock.user)
    }
}

impl Client {
    /// Locks a file for one holder (an open file of the kernel, a process: the caller's number), all of it. The server's lock
    /// is shared by all holders of this client, kept alive while one has it, and given back with the last.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], unless it is to be waited for; the server's.
    pub async fn lock(
        &self,
        user: User,
        fid: Fid,
        holder: u64,
        kind: LockKind,
        wait: bool,
    ) -> Result<(), Error> {
        let inner = &self.inner;
        let locks = &inner.locks;
        loop {
            let mut freed = std::pin::pin!(locks.freed.notified());
            freed.as_mut().enable();
            match locks.wish(user, fid, holder, kind)? {
                Wish::Covered => return Ok(()),
                Wish::InTheWay if !wait => return Err(Error::Locked { fid }),
                Wish::InTheWay => freed.await,
                Wish::Ask(asking, _) => {
                    let _asking = asking.lock().await;
                    // It may have been given to another of us meanwhile.
                    let before = match locks.wish(user, fid, holder, kind)? {
                        Wish::Covered => return Ok(()),
                        Wish::InTheWay => continue,
                        Wish::Ask(_, before) => before,
                    };
                    match inner.set_lock(user, fid, kind, before).await {
                        Ok(()) => {
                            locks.set_at_server(fid, Some(kind));
                            if before.is_none() {
                                inner.runtime.spawn(Box::pin(extend(inner.me.clone(), fid)));
                            }
                        }
                        Err(error) => {
                            locks.leave(fid, u64::MAX);
                            if !(wait && matches!(error, Error::Locked { .. })) {
                                return Err(error);
                            }
                            drop(_asking);
                            inner.runtime.sleep_until(inner.now() + TRY_EVERY).await;
                        }
                    }
                }
            }
        }
    }

    /// Gives a holder's lock back.
    pub async fn unlock(&self, fid: Fid, holder: u64) {
        let inner = &self.inner;
        let user = inner.locks.leave(fid, holder);
        inner.locks.freed.notify_waiters();
        if let Some(user) = user {
            inner.release_lock(user, fid).await;
        }
    }
}

impl Inner {
    async fn set_lock(
        &self,
        user: User,
        fid: Fid,
        kind: LockKind,
        before: Option<LockKind>,
    ) -> Result<(), Error> {
        let who = self.users.who(user, fid.cell);
        if before.is_some() {
            // A read lock does not become a write lock (File service notes 14); for a moment there is none.
            self.release_lock(user, fid).await;
            self.locks.set_at_server(fid, None);
        }
        match self.try_call(who, fid, SetLock { fid: fid.in_cell(), kind: kind.to_wire() }).await {
            Ok(_) => Ok(()),
            Err(failure) => {
                let is_held = failure.code().and_then(abort::errno) == Some(Errno::EAGAIN);
                if let Some(before) = before {
                    // Those who had a read lock go on to have it, if nobody else was faster.
                    let again = SetLock { fid: fid.in_cell(), kind: before.to_wire() };
                    let kept = self.try_call(who, fid, again).await.is_ok();
                    self.locks.set_at_server(fid, kept.then_some(before));
                }
                if is_held { Err(Error::Locked { fid }) } else { Err(failure.of(SetLock::NAME, fid)) }
            }
        }
    }

    async fn release_lock(&self, user: User, fid: Fid) {
        let who = self.users.who(user, fid.cell);
        if let Err(error) = self.call(who, fid, ReleaseLock { fid: fid.in_cell() }).await {
            tracing::warn!(%fid, %error, "a lock was not given back; it ends by itself within five minutes");
        }
    }

    /// Gives all locks back.
    pub(crate) async fn release_locks(&self) {
        for (fid, user) in self.locks.at_servers() {
            self.release_lock(user, fid).await;
        }
    }
}

/// Prolongs the server's lock of a file for as long as somebody here has it.
async fn extend(client: Weak<Inner>, fid: Fid) {
    while let Some(inner) = client.upgrade() {
        let runtime = Arc::clone(&inner.runtime);
        drop(inner);
        runtime.sleep_until(runtime.now() + EXTEND_EVERY).await;
        let Some(inner) = client.upgrade() else { break };
        let Some(user) = inner.locks.is_at_server(fid) else { break };
        let who = inner.users.who(user, fid.cell);
        if let Err(error) = inner.call(who, fid, ExtendLock { fid: fid.in_cell() }).await {
            tracing::warn!(%fid, %error, "a lock could not be prolonged");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fid::CellIndex;
    use afs_wire::ids::VolumeId;

    const FID: Fid = Fid::root_of(CellIndex(1), VolumeId(1));
    const USER: User = User(1);

    fn covered(locks: &Locks, holder: u64, kind: LockKind) -> Option<bool> {
        match locks.wish(USER, FID, holder, kind).unwrap() {
            Wish::Covered => Some(true),
            Wish::Ask(..) => Some(false),
            Wish::InTheWay => None,
        }
    }

    #[test]
    fn holders_share_what_the_server_has_given_and_the_last_gives_it_back() {
        let locks = Locks::default();
        assert_eq!(covered(&locks, 1, LockKind::Read), Some(false), "the server is to be asked");
        locks.set_at_server(FID, Some(LockKind::Read));
        assert_eq!(covered(&locks, 1, LockKind::Read), Some(true));
        assert_eq!(covered(&locks, 2, LockKind::Read), Some(true), "no call for the second reader");
        assert_eq!(covered(&locks, 3, LockKind::Write), None, "readers are in a writer's way");
        assert_eq!(locks.leave(FID, 2), None);
        assert_eq!(
            covered(&locks, 1, LockKind::Write),
            Some(false),
            "alone, but the server gave it for reading"
        );
        locks.set_at_server(FID, Some(LockKind::Write));
        assert_eq!(covered(&locks, 1, LockKind::Write), Some(true));
        assert_eq!(covered(&locks, 2, LockKind::Read), None);
        assert_eq!(locks.leave(FID, 1), Some(USER));
        assert_eq!(locks.leave(FID, 1), None);
    }
}
