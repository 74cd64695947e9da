//! Locks of whole files. AFS gives a client one lock for each file, for five minutes (File service notes 6.7). The
//! client shares it among its local holders, extends it while one of them is left, and gives it back with the last.
//!
//! [`Locks`] decides what is asked of servers and when. How they are asked is left to [`LockServer`], which [`calls`] is; which holders of
//! this client share a lock, to `grants`.

pub mod calls;
mod grants;

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use afs_wire::ids::VolumeId;
use afs_wire::rxafs::ViceLockType;
use futures_util::{FutureExt, StreamExt, future::OptionFuture, stream};
use rx::Runtime;
use rx_proto::time::Instant;
use tokio::sync::{Notify, OwnedMutexGuard, oneshot};

use crate::data::locks::grants::{Given, Grant, Lock};
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, User};
use afs_reach::wait;

/// The time for which a server keeps a lock that nobody prolongs. The server does not ask whose lock a client prolongs or gives back (File
/// service notes 6.7), so a later request is about the lock of the next holder.
const LIFE: Duration = Duration::from_secs(300);

/// The time between two extensions of a lock: two in a row could fail before its five minutes are over.
const EXTEND_EVERY: Duration = Duration::from_secs(100);

/// The time between two tries to get a lock that another client has. Servers do not tell when it is free.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Locks of one volume that are prolonged at once: as many as there may be take less than [`EXTEND_EVERY`] over 12.5 ms of round trip.
const EXTENDED_AT_ONCE: usize = 16;

/// Files that are locked at once, and holders of one: more than any program uses, so that none can fill the memory.
const LOCKS_MAX: usize = 100_000;

/// The kind of lock on a file.
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

/// The answer of a server to a request about a lock.
type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// The calls to file servers that locks are made of, as a user.
pub trait LockServer: Send + Sync {
    /// Asks for a lock; [`Error::Locked`] if another client has it. Tells when the call was made that was answered, by
    /// [`Runtime::boot_time`]: the lock lasts [`LIFE`] from then on.
    fn set(&self, user: User, fid: Fid, kind: LockKind) -> Answer<'_, Instant>;

    /// Has the lock last [`LIFE`] from a moment on that it tells, as [`Self::set`]; [`Error::Gone`] if the file was removed.
    fn extend(&self, user: User, fid: Fid) -> Answer<'_, Instant>;

    /// Gives the lock back; [`Error::Gone`] likewise.
    fn release(&self, user: User, fid: Fid) -> Answer<'_, ()>;
}

/// The locks that this client has.
#[derive(Debug)]
pub struct Locks {
    shared: Arc<Shared>,
}

struct Shared {
    table: Mutex<Table>,
    /// Told when a holder has given a lock back.
    freed: Notify,
    runtime: Arc<dyn Runtime>,
    /// Weak, as it has the locks. What goes on in the background keeps it for as long as there is something to be told.
    server: Weak<dyn LockServer>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("table", &self.table).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<Fid, Lock>,
    /// True if a task prolongs what servers have given.
    is_prolonged: bool,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a holder the lock, or says what that takes. The caller has an [`EntryGuard`].
    fn try_grant(&self, fid: Fid, user: User, holder: u64, kind: LockKind) -> Result<Grant, Error> {
        let now = self.runtime.boot_time();
        let mut table = self.table();
        table
            .files
            .get_mut(&fid)
            .map_or(Ok(Grant::AskServer(None)), |lock| lock.try_grant(now, user, holder, kind))
    }

    fn set_given(&self, fid: Fid, given: Option<Given>) {
        if let Some(lock) = self.table().files.get_mut(&fid) {
            lock.given = given;
        }
    }

    /// Takes a file's lock out of the table, to give it back to the server, unless it has a holder again.
    fn take_back(&self, fid: Fid) -> Option<Given> {
        let mut table = self.table();
        let lock = table.files.get_mut(&fid).filter(|lock| lock.holders.is_empty())?;
        lock.given.take()
    }

    /// The locks that servers have given to this client, in the order of fids.
    fn given(&self) -> Vec<(Fid, Given)> {
        let table = self.table();
        let given = table.files.iter().filter_map(|(&fid, lock)| Some((fid, lock.given?)));
        let mut given: Vec<_> = given.collect();
        given.sort_unstable_by_key(|(fid, _)| *fid);
        given
    }

    /// Returns a server's answer about a lock that it has given. Returns `None` if the lock may have ended before the answer: such an
    /// answer may be about another client's lock.
    async fn while_given<T>(&self, given: Given, answer: impl Future<Output = T>) -> Option<T> {
        let left = given.ends.since(self.runtime.boot_time());
        if left.is_zero() {
            return None;
        }
        let answer = wait::within(&self.runtime, left, answer).await;
        // The timer does not know for how long the machine has slept.
        answer.filter(|_| self.runtime.boot_time() < given.ends)
    }

    /// Has a lock last on. A server that does not have it is asked for it anew: it has ended, the volume has come to it without its locks,
    /// or it has started anew without them.
    async fn keep(&self, server: &dyn LockServer, fid: Fid) {
        let Some(asking) = self.table().files.get(&fid).map(|lock| Arc::clone(&lock.asking)) else { return };
        // It is being asked for, prolonged or given back, and the server may be silent.
        let Ok(_asking) = asking.try_lock() else { return };
        let Some(given) = self.table().files.get(&fid).and_then(|lock| lock.given) else { return };
        let outcome = match self.while_given(given, server.extend(given.user, fid)).await {
            Some(Err(Error::Refused { .. })) | None => server.set(given.user, fid, given.kind).await,
            Some(other) => other,
        };
        match outcome {
            Ok(asked) => self.set_given(fid, Some(Given { ends: asked + LIFE, ..given })),
            Err(Error::Gone { .. }) => {}
            Err(Error::Locked { .. }) => {
                self.set_given(fid, None);
                tracing::warn!(
                    %fid,
                    "a lock is lost, though programs here hold it: it could not be prolonged in time, and another client has it"
                );
            }
            Err(error) => tracing::warn!(%fid, %error, "a lock could not be prolonged"),
        }
    }

    /// Has locks last on, in the background. Those of each volume wait for nobody else's, as its server may be silent.
    fn keep_all(self: &Arc<Self>, server: &Arc<dyn LockServer>, given: &[(Fid, Given)]) {
        for locks in given.chunk_by(|(one, _), (next, _)| (one.cell, one.volume) == (next.cell, next.volume))
        {
            let fids: Vec<_> = locks.iter().map(|(fid, _)| *fid).collect();
            let (shared, server) = (Arc::clone(self), Arc::clone(server));
            self.runtime.spawn(Box::pin(async move {
                let keep = |fid| shared.keep(&*server, fid);
                stream::iter(fids).for_each_concurrent(EXTENDED_AT_ONCE, keep).await;
            }));
        }
    }

    /// True if the task that prolongs them goes on.
    fn are_prolonged(&self) -> bool {
        let mut table = self.table();
        table.is_prolonged = table.files.values().any(|lock| lock.given.is_some());
        table.is_prolonged
    }
}

/// Keeps a file's entry in the table, so that all operations on the file share one entry. The end of the last one
/// removes the entry, or has the server told if nobody holds what it gave.
#[derive(Clone)]
struct EntryGuard {
    shared: Arc<Shared>,
    server: Arc<dyn LockServer>,
    fid: Fid,
    /// Some until it is dropped.
    asking: Option<Arc<tokio::sync::Mutex<()>>>,
}

impl EntryGuard {
    fn new(shared: &Arc<Shared>, fid: Fid) -> Result<Self, Error> {
        let server = shared.server()?;
        let mut table = shared.table();
        if table.files.len() >= LOCKS_MAX && !table.files.contains_key(&fid) {
            return Err(Error::Unsupported { what: "so many locks" });
        }
        let lock = table.files.entry(fid).or_default();
        let asking = Some(Arc::clone(&lock.asking));
        drop(table);
        Ok(Self { shared: Arc::clone(shared), server, fid, asking })
    }

    /// Waits until nobody else talks to the server about the file.
    async fn come(&self) -> Option<OwnedMutexGuard<()>> {
        match &self.asking {
            Some(asking) => Some(Arc::clone(asking).lock_owned().await),
            None => None,
        }
    }

    /// Asks the server for what a holder needs, unless somebody else has just got it.
    async fn ask(
        &self,
        user: User,
        holder: u64,
        kind: LockKind,
    ) -> Result<Option<OwnedMutexGuard<()>>, Error> {
        let asking = self.come().await;
        if let Grant::AskServer(before) = self.shared.try_grant(self.fid, user, holder, kind)? {
            self.shared.set(&*self.server, user, self.fid, kind, before).await?;
            self.shared.prolong();
        }
        Ok(asking)
    }

    /// Gives what the server has given back, unless there is a holder.
    async fn give_back(&self) {
        let _asking = self.come().await;
        if let Some(given) = self.shared.take_back(self.fid) {
            self.shared.release(&*self.server, given, self.fid).await;
        }
    }
}

impl Drop for EntryGuard {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        self.asking = None;
        let Some(lock) = table.files.get(&self.fid) else { return };
        if Arc::strong_count(&lock.asking) > 1 || !lock.holders.is_empty() {
            return;
        }
        if lock.given.is_none() {
            table.files.remove(&self.fid);
            return;
        }
        // Whoever asked for it was interrupted.
        let asking = Some(Arc::clone(&lock.asking));
        drop(table);
        let entry = Self {
            shared: Arc::clone(&self.shared),
            server: Arc::clone(&self.server),
            fid: self.fid,
            asking,
        };
        self.shared.runtime.spawn(Box::pin(async move { entry.give_back().await }));
    }
}

impl Locks {
    /// None yet, of files of this server's.
    pub fn new(runtime: Arc<dyn Runtime>, server: Weak<dyn LockServer>) -> Self {
        let (table, freed) = Default::default();
        Self { shared: Arc::new(Shared { table, freed, runtime, server }) }
    }

    /// See `Client::lock`.
    pub async fn lock(
        &self,
        user: User,
        fid: Fid,
        holder: u64,
        kind: LockKind,
        wait: bool,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        loop {
            let mut freed = std::pin::pin!(shared.freed.notified());
            freed.as_mut().enable();
            let entry = EntryGuard::new(shared, fid)?;
            match shared.try_grant(fid, user, holder, kind)? {
                Grant::Covered => return Ok(()),
                Grant::Conflict if !wait => return Err(Error::Locked { fid }),
                Grant::Conflict => {
                    drop(entry);
                    freed.await;
                }
                Grant::AskServer(_) => {
                    let (done, outcome) = oneshot::channel();
                    let asks = entry.clone();
                    // Not given up with this call: or the server would keep a lock that nobody knows of.
                    shared.runtime.spawn(Box::pin(async move {
                        drop(done.send(asks.ask(user, holder, kind).await));
                    }));
                    match outcome.await.unwrap_or(Err(Error::Closing)) {
                        Ok(_asking) => {
                            if let Grant::Covered = shared.try_grant(fid, user, holder, kind)? {
                                return Ok(());
                            }
                        }
                        Err(Error::Locked { .. }) if wait => {
                            drop(entry);
                            shared.runtime.sleep_until(shared.runtime.now() + TRY_EVERY).await;
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// See `Client::lock_at_server`.
    pub async fn lock_at_server(&self, user: User, fid: Fid, kind: LockKind) -> Result<(), Error> {
        let server = self.shared.server()?;
        self.shared.set(&*server, user, fid, kind, None).await
    }

    /// See `Client::unlock`.
    pub fn unlock(&self, fid: Fid, holder: u64) -> impl Future<Output = ()> + Send + use<> {
        let given_back = self.end_hold(fid, holder).map(|entry| async move { entry.give_back().await });
        OptionFuture::from(given_back).map(drop)
    }

    fn end_hold(&self, fid: Fid, holder: u64) -> Option<EntryGuard> {
        let server = self.shared.server().ok()?;
        let mut table = self.shared.table();
        let lock = table.files.get_mut(&fid)?;
        lock.holders.retain(|(who, _)| *who != holder);
        let asking = Some(Arc::clone(&lock.asking));
        drop(table);
        self.shared.freed.notify_waiters();
        Some(EntryGuard { shared: Arc::clone(&self.shared), server, fid, asking })
    }

    /// A volume has moved. No server takes locks with it: those that this client has are asked for at the new server.
    /// The same for one whose server has forgotten what it knew of this client.
    pub fn renew(&self, cell: CellIndex, volume: VolumeId) {
        self.keep(|fid| (fid.cell, fid.volume) == (cell, volume));
    }

    /// Renews the locks after this client did not run for a while: locks that may soon end are prolonged, and ended ones are asked for
    /// again.
    pub(crate) fn renew_all(&self) {
        self.keep(|_| true);
    }

    fn keep(&self, is_meant: impl Fn(Fid) -> bool) {
        let Some(server) = self.shared.server.upgrade() else { return };
        let mut given = self.shared.given();
        given.retain(|(fid, _)| is_meant(*fid));
        self.shared.keep_all(&server, &given);
    }

    /// Gives all locks back.
    pub async fn release_all(&self) {
        let Ok(server) = self.shared.server() else { return };
        for (fid, given) in self.shared.given() {
            self.shared.release(&*server, given, fid).await;
        }
    }
}

impl Shared {
    fn server(&self) -> Result<Arc<dyn LockServer>, Error> {
        self.server.upgrade().ok_or(Error::Closing)
    }

    /// Asks the server for a lock, and gives back what it has given before.
    async fn set(
        &self,
        server: &dyn LockServer,
        user: User,
        fid: Fid,
        kind: LockKind,
        before: Option<Given>,
    ) -> Result<(), Error> {
        if let Some(before) = before {
            // A read lock does not become a write lock (File service notes 14); for a moment there is none.
            self.release(server, Given { user, ..before }, fid).await;
            self.set_given(fid, None);
        }
        let given = |kind| move |asked| Given { user, kind, ends: asked + LIFE };
        match (server.set(user, fid, kind).await.map(given(kind)), before) {
            (Ok(given), _) => self.set_given(fid, Some(given)),
            (Err(error), Some(before)) => {
                // Those who had a read lock go on to have it, if nobody else was faster.
                let kept = server.set(user, fid, before.kind).await;
                self.set_given(fid, kept.ok().map(given(before.kind)));
                return Err(error);
            }
            (Err(error), None) => return Err(error),
        }
        Ok(())
    }

    /// Gives the server a lock back, if it has not ended by itself.
    async fn release(&self, server: &dyn LockServer, given: Given, fid: Fid) {
        match self.while_given(given, server.release(given.user, fid)).await {
            // The lock of a file that was removed has gone with it.
            Some(Ok(()) | Err(Error::Gone { .. })) | None => {}
            Some(Err(error)) => {
                tracing::warn!(%fid, %error, "a lock was not given back; it ends by itself within five minutes");
            }
        }
    }

    /// Sees to it that what servers have given is prolonged.
    fn prolong(self: &Arc<Self>) {
        let is_prolonged = std::mem::replace(&mut self.table().is_prolonged, true);
        if !is_prolonged {
            self.runtime.spawn(Box::pin(prolong(Arc::downgrade(self))));
        }
    }
}

/// Prolongs what servers have given, until they have given nothing.
async fn prolong(locks: Weak<Shared>) {
    while let Some(shared) = locks.upgrade() {
        let runtime = Arc::clone(&shared.runtime);
        drop(shared);
        runtime.sleep_until(runtime.now() + EXTEND_EVERY).await;
        let Some(shared) = locks.upgrade() else { break };
        let Ok(server) = shared.server() else { break };
        if !shared.are_prolonged() {
            break;
        }
        shared.keep_all(&server, &shared.given());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that lets another client have the lock or not, and remembers what it was asked.
    #[derive(Debug, Default)]
    struct Server {
        asked: Mutex<Vec<String>>,
        /// Other clients read, or write.
        others: Mutex<Option<LockKind>>,
    }

    impl Server {
        fn answer<T: Send + 'static>(&self, what: String, answer: Result<T, Error>) -> Answer<'_, T> {
            self.asked.lock().unwrap().push(what);
            Box::pin(std::future::ready(answer))
        }

        fn asked(&self) -> Vec<String> {
            std::mem::take(&mut self.asked.lock().unwrap())
        }
    }

    impl LockServer for Server {
        fn set(&self, _: User, fid: Fid, kind: LockKind) -> Answer<'_, Instant> {
            let is_free = match *self.others.lock().unwrap() {
                None => true,
                Some(LockKind::Read) => kind == LockKind::Read,
                Some(LockKind::Write) => false,
            };
            self.answer(
                format!("{kind:?}"),
                if is_free { Ok(NEVER_ENDS) } else { Err(Error::Locked { fid }) },
            )
        }

        fn extend(&self, _: User, _: Fid) -> Answer<'_, Instant> {
            self.answer("Extend".to_owned(), Ok(NEVER_ENDS))
        }

        fn release(&self, _: User, _: Fid) -> Answer<'_, ()> {
            self.answer("Release".to_owned(), Ok(()))
        }
    }

    /// The end of a lock that does not end.
    const NEVER_ENDS: Instant = Instant::MAX;

    const FILE: Fid = Fid::root_of(afs_reach::fid::CellIndex(1), afs_wire::ids::VolumeId(7));

    fn locks(server: &Arc<Server>) -> Locks {
        let server: Weak<Server> = Arc::downgrade(server);
        Locks::new(Arc::new(rx::TokioRuntime::current()), server)
    }

    #[tokio::test]
    async fn the_server_is_asked_for_the_first_holder_and_told_of_the_last() {
        let server = Arc::<Server>::default();
        let locks = locks(&server);
        for holder in [1, 2, 3] {
            locks.lock(User::of(1), FILE, holder, LockKind::Read, false).await.unwrap();
        }
        assert_eq!(server.asked(), ["Read"]);
        locks.unlock(FILE, 1).await;
        locks.unlock(FILE, 3).await;
        assert_eq!(server.asked(), [""; 0], "one is left");
        locks.unlock(FILE, 2).await;
        assert_eq!(server.asked(), ["Release"]);
        assert!(locks.shared.table().files.is_empty(), "nothing is kept of files that are not locked");
    }

    #[tokio::test]
    async fn readers_keep_their_lock_where_the_server_does_not_give_the_writers() {
        let server = Arc::<Server>::default();
        let locks = locks(&server);
        locks.lock(User::of(1), FILE, 1, LockKind::Read, false).await.unwrap();
        *server.others.lock().unwrap() = Some(LockKind::Read);
        let outcome = locks.lock(User::of(1), FILE, 1, LockKind::Write, false).await;
        assert!(matches!(outcome, Err(Error::Locked { .. })));
        assert_eq!(server.asked(), ["Read", "Release", "Write", "Read"]);
        locks.release_all().await;
        assert_eq!(server.asked(), ["Release"], "it had the read lock again");
    }

    #[tokio::test]
    async fn a_holder_of_this_client_is_waited_for_without_a_call() {
        let server = Arc::<Server>::default();
        let locks = locks(&server);
        locks.lock(User::of(1), FILE, 1, LockKind::Write, false).await.unwrap();
        assert!(matches!(
            locks.lock(User::of(1), FILE, 2, LockKind::Write, false).await,
            Err(Error::Locked { .. })
        ));
        let waits = locks.lock(User::of(1), FILE, 2, LockKind::Write, true);
        let (waited, ()) = tokio::join!(waits, locks.unlock(FILE, 1));
        waited.unwrap();
        assert_eq!(server.asked()[0], "Write");
        locks.unlock(FILE, 2).await;
        assert_eq!(server.asked().last().map(String::as_str), Some("Release"));
    }

    #[tokio::test]
    async fn no_lock_is_given_once_the_client_has_gone() {
        let server = Arc::<Server>::default();
        let locks = locks(&server);
        drop(server);
        let outcome = locks.lock(User::of(1), FILE, 1, LockKind::Read, true).await;
        assert!(matches!(outcome, Err(Error::Closing)));
    }
}
