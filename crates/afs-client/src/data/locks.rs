//! Locks of whole files. AFS knows one lock for each client and file, of five minutes (File service notes 6.7): here it is shared
//! out among the holders of this client, prolonged while one has it, and given back with the last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use afs_wire::Errno;
use afs_wire::abort;
use afs_wire::rxafs::{ExtendLock, ReleaseLock, SetLock, ViceLockType};
use rxgen::Rpc;
use tokio::sync::{Notify, OwnedMutexGuard, oneshot};

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
    table: Mutex<Table>,
    /// Told when a holder has given a lock back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<Fid, Lock>,
    /// Whether a task prolongs what servers have given.
    is_prolonged: bool,
}

/// A locked file. It is in the table for as long as it has holders, or the server is asked or told.
#[derive(Debug)]
struct Lock {
    /// Whom the server gave it to.
    user: User,
    holders: Vec<(u64, LockKind)>,
    /// What the server has given.
    at_server: Option<LockKind>,
    /// Held by who talks to the server about it, so that what is asked for does not overtake what is given back.
    asking: Arc<tokio::sync::Mutex<()>>,
}

/// Whether a holder can have a lock, and what that takes.
enum Grant {
    /// He has it: what the server has given covers it.
    Covered,
    /// The server is to be asked; what it has given before is to be given back first.
    AskServer(Option<LockKind>),
    /// Another holder of this client is in the way.
    Conflict,
}

impl Lock {
    fn new(user: User) -> Self {
        Self { user, holders: Vec::new(), at_server: None, asking: Arc::default() }
    }

    fn try_grant(&mut self, user: User, holder: u64, kind: LockKind) -> Result<Grant, Error> {
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

impl Locks {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a holder the lock, or says what that takes. The caller has a turn.
    fn try_grant(&self, fid: Fid, user: User, holder: u64, kind: LockKind) -> Result<Grant, Error> {
        let mut table = self.lock();
        table
            .files
            .get_mut(&fid)
            .map_or(Ok(Grant::AskServer(None)), |lock| lock.try_grant(user, holder, kind))
    }

    fn set_at_server(&self, fid: Fid, user: User, kind: Option<LockKind>) {
        if let Some(lock) = self.lock().files.get_mut(&fid) {
            (lock.user, lock.at_server) = (user, kind);
        }
    }

    /// What is to be given back to the server, and as whom, unless there is a holder again.
    fn take_back(&self, fid: Fid) -> Option<User> {
        let mut table = self.lock();
        let lock = table.files.get_mut(&fid).filter(|lock| lock.holders.is_empty())?;
        lock.at_server.take().map(|_| lock.user)
    }

    /// What this client has locked at servers, and as whom.
    fn at_servers(&self) -> Vec<(Fid, User)> {
        let table = self.lock();
        let given = table.files.iter().filter(|(_, lock)| lock.at_server.is_some());
        given.map(|(&fid, lock)| (fid, lock.user)).collect()
    }

    /// Whether the task that prolongs them goes on.
    fn are_prolonged(&self) -> bool {
        let mut table = self.lock();
        table.is_prolonged = table.files.values().any(|lock| lock.at_server.is_some());
        table.is_prolonged
    }
}

/// Keeps a file's entry in the table, so that all who are about the file are about one entry. The last one's end takes it out, or
/// has the server told if nobody holds what it gave.
#[derive(Debug, Clone)]
struct Turn {
    inner: Arc<Inner>,
    fid: Fid,
    /// Some until it is dropped.
    asking: Option<Arc<tokio::sync::Mutex<()>>>,
}

impl Turn {
    fn new(inner: &Arc<Inner>, fid: Fid, user: User) -> Result<Self, Error> {
        let mut table = inner.locks.lock();
        if table.files.len() >= LOCKS_MAX && !table.files.contains_key(&fid) {
            return Err(Error::Unsupported { what: "so many locks" });
        }
        let lock = table.files.entry(fid).or_insert_with(|| Lock::new(user));
        let asking = Some(Arc::clone(&lock.asking));
        drop(table);
        Ok(Self { inner: Arc::clone(inner), fid, asking })
    }

    /// Waits until nobody else talks to the server about the file.
    async fn come(&self) -> Option<OwnedMutexGuard<()>> {
        match &self.asking {
            Some(asking) => Some(Arc::clone(asking).lock_owned().await),
            None => None,
        }
    }

    /// Asks the server for what a holder wishes, unless it was given to another of us meanwhile. Until what is returned is dropped,
    /// it is not given back.
    async fn ask(
        &self,
        user: User,
        holder: u64,
        kind: LockKind,
    ) -> Result<Option<OwnedMutexGuard<()>>, Error> {
        let asking = self.come().await;
        if let Grant::AskServer(before) = self.inner.locks.try_grant(self.fid, user, holder, kind)? {
            self.inner.set_lock(user, self.fid, kind, before).await?;
            self.inner.prolong();
        }
        Ok(asking)
    }

    /// Gives what the server has given back, unless there is a holder.
    async fn give_back(&self) {
        let _asking = self.come().await;
        if let Some(user) = self.inner.locks.take_back(self.fid) {
            self.inner.release_lock(user, self.fid).await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut table = self.inner.locks.lock();
        self.asking = None;
        let Some(lock) = table.files.get(&self.fid) else { return };
        if Arc::strong_count(&lock.asking) > 1 || !lock.holders.is_empty() {
            return;
        }
        if lock.at_server.is_none() {
            table.files.remove(&self.fid);
            return;
        }
        // Whoever asked for it was interrupted.
        let asking = Some(Arc::clone(&lock.asking));
        drop(table);
        let turn = Self { inner: Arc::clone(&self.inner), fid: self.fid, asking };
        self.inner.runtime.spawn(Box::pin(async move { turn.give_back().await }));
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
            let turn = Turn::new(inner, fid, user)?;
            match locks.try_grant(fid, user, holder, kind)? {
                Grant::Covered => return Ok(()),
                Grant::Conflict if !wait => return Err(Error::Locked { fid }),
                Grant::Conflict => {
                    drop(turn);
                    freed.await;
                }
                Grant::AskServer(_) => {
                    let (done, outcome) = oneshot::channel();
                    let asks = turn.clone();
                    // Not given up with this call: or the server would keep a lock that nobody knows of.
                    inner.runtime.spawn(Box::pin(async move {
                        drop(done.send(asks.ask(user, holder, kind).await));
                    }));
                    match outcome.await.unwrap_or(Err(Error::Closing)) {
                        Ok(_asking) => {
                            if let Grant::Covered = locks.try_grant(fid, user, holder, kind)? {
                                return Ok(());
                            }
                        }
                        Err(Error::Locked { .. }) if wait => {
                            drop(turn);
                            inner.runtime.sleep_until(inner.now() + TRY_EVERY).await;
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// Asks the server for its lock of a file, once, and leaves it there: no holder here is known of, nothing prolongs it, and the end of
    /// this client does not give it back. It ends by itself after five minutes. For tools that lock and go away.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`]; the server's.
    pub async fn lock_at_server(&self, user: User, fid: Fid, kind: LockKind) -> Result<(), Error> {
        self.inner.set_lock(user, fid, kind, None).await
    }

    /// Gives the server's lock of a file back, whoever has it: servers do not tell holders apart.
    ///
    /// # Errors
    ///
    /// The server's, also where there is no lock.
    pub async fn unlock_at_server(&self, user: User, fid: Fid) -> Result<(), Error> {
        let who = self.inner.users.who(user, fid.cell);
        self.inner.call(who, fid, ReleaseLock { fid: fid.in_cell() }).await.map(drop)
    }

    /// Gives a holder's lock back.
    pub async fn unlock(&self, fid: Fid, holder: u64) {
        let inner = &self.inner;
        let turn = {
            let mut table = inner.locks.lock();
            let Some(lock) = table.files.get_mut(&fid) else { return };
            lock.holders.retain(|(who, _)| *who != holder);
            let asking = Some(Arc::clone(&lock.asking));
            Turn { inner: Arc::clone(inner), fid, asking }
        };
        inner.locks.freed.notify_waiters();
        turn.give_back().await;
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
            self.locks.set_at_server(fid, user, None);
        }
        match self.try_call(who, fid, SetLock { fid: fid.in_cell(), kind: kind.to_wire() }).await {
            Ok(_) => {
                self.locks.set_at_server(fid, user, Some(kind));
                Ok(())
            }
            Err(failure) => {
                let is_held = failure.code().and_then(abort::errno) == Some(Errno::EAGAIN);
                if let Some(before) = before {
                    // Those who had a read lock go on to have it, if nobody else was faster.
                    let again = SetLock { fid: fid.in_cell(), kind: before.to_wire() };
                    let kept = self.try_call(who, fid, again).await.is_ok();
                    self.locks.set_at_server(fid, user, kept.then_some(before));
                }
                if is_held { Err(Error::Locked { fid }) } else { Err(failure.of(SetLock::NAME, fid)) }
            }
        }
    }

    /// Sees to it that what servers have given is prolonged.
    fn prolong(&self) {
        let is_prolonged = std::mem::replace(&mut self.locks.lock().is_prolonged, true);
        if !is_prolonged {
            self.runtime.spawn(Box::pin(prolong(self.me.clone())));
        }
    }

    async fn release_lock(&self, user: User, fid: Fid) {
        let who = self.users.who(user, fid.cell);
        let answer = self.call(who, fid, ReleaseLock { fid: fid.in_cell() }).await;
        // The lock of a file that was removed has gone with it.
        if let Err(error) = answer.map_err(|error| self.note_gone(fid, error))
            && !matches!(error, Error::Gone { .. })
        {
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

/// Prolongs what servers have given, until they have given nothing.
async fn prolong(client: Weak<Inner>) {
    while let Some(inner) = client.upgrade() {
        let runtime = Arc::clone(&inner.runtime);
        drop(inner);
        runtime.sleep_until(runtime.now() + EXTEND_EVERY).await;
        let Some(inner) = client.upgrade() else { break };
        if !inner.locks.are_prolonged() {
            break;
        }
        for (fid, user) in inner.locks.at_servers() {
            let who = inner.users.who(user, fid.cell);
            let answer = inner.call(who, fid, ExtendLock { fid: fid.in_cell() }).await;
            if let Err(error) = answer.map_err(|error| inner.note_gone(fid, error))
                && !matches!(error, Error::Gone { .. })
            {
                tracing::warn!(%fid, %error, "a lock could not be prolonged");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(lock: &mut Lock, holder: u64, kind: LockKind) -> Option<bool> {
        match lock.try_grant(User(1), holder, kind).unwrap() {
            Grant::Covered => Some(true),
            Grant::AskServer(..) => Some(false),
            Grant::Conflict => None,
        }
    }

    #[test]
    fn holders_share_what_the_server_has_given() {
        let mut lock = Lock::new(User(1));
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
        let mut lock = Lock::new(User(2));
        lock.at_server = Some(LockKind::Write);
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(false));
        lock.user = User(1);
        assert_eq!(covered(&mut lock, 1, LockKind::Read), Some(true));
    }
}
