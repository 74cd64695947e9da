//! Locks. Who on this machine has which lock is decided here. The server hears only of locks of a whole file, which is
//! all that servers know. So locks of parts of a file hold on this machine only, as in every client of AFS.
//!
//! Whoever gets a lock of a whole file finds in it what others wrote while they had theirs: before the server is told that a lock
//! is given up, what was written is stored, and before a program is told that it has the lock, the kernel has what is newest
//! (`newest`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_client::Error;
use fuse_dev::{Caller, Handle, Lock, LockKind, Reply};
use tokio::sync::Notify;

use crate::answer::Answer;
use crate::file_system::{FileSystem, just, outcome};
use crate::handles::FileHandle;
use crate::in_flight::EndedBy;
use crate::lock_table::{LockTable, Refusal};
use crate::nodes::Node;

/// The longest wait until a server has taken a lock back. Other clients ask for it again only after a second.
const GIVE_BACK_MAX: Duration = Duration::from_secs(1);

/// The locks of a node.
#[derive(Debug, Default)]
pub(crate) struct NodeLocks {
    table: Mutex<LockTable>,
    /// Told when one is given up.
    freed: Notify,
}

impl NodeLocks {
    fn lock(&self) -> MutexGuard<'_, LockTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait_for(&self, lock: &Lock) -> Result<(), Refusal> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // From here on nothing is missed.
            freed.as_mut().enable();
            match self.lock().set(lock) {
                Err(Refusal::Held) => {}
                other => return other,
            }
            freed.await;
        }
    }
}

impl FileSystem {
    pub(crate) fn get_lock(&self, node: &Node, lock: Lock, reply: Reply) {
        let answer = node.locks.lock().conflict(&lock).unwrap_or(Lock { kind: LockKind::Unlock, ..lock });
        reply.lock(&answer);
    }

    pub(crate) fn set_lock(
        self: &Arc<Self>,
        caller: Caller,
        node: Arc<Node>,
        lock: Lock,
        waits: bool,
        reply: Reply,
    ) {
        if !lock.is_flock
            && self.handles.file(lock.handle).is_some_and(|open| open.file.is_in_read_only_volume())
        {
            // Only files that are open to be written can be locked against others by `fcntl(2)`. So here nothing can be in the way, and
            // nothing is remembered that a close would have to give up: see `install`.
            return reply.ok();
        }
        if lock.kind == LockKind::Unlock {
            return self.unlock(caller, node, lock, reply);
        }
        let (fs, user) = (Arc::clone(self), self.user(caller));
        let ended_by = if waits { EndedBy::Any } else { EndedBy::Meant };
        self.run_until(ended_by, caller, reply, async move {
            let taken = if waits { node.locks.wait_for(&lock).await } else { node.locks.lock().set(&lock) };
            match taken {
                Err(Refusal::Held) => return just(Answer::Error(libc::EAGAIN)),
                Err(Refusal::TooMany) => return just(Answer::Error(libc::ENOLCK)),
                Ok(()) if !lock.range.is_whole() => return just(Answer::Ok),
                Ok(()) => {}
            }
            let mut undo = Undo { fs: &fs, node: &node, lock, is_armed: true };
            let kind = match lock.kind {
                LockKind::Write => afs_client::LockKind::Write,
                LockKind::Read | LockKind::Unlock => afs_client::LockKind::Read,
            };
            match fs.client.lock(user, node.fid, lock.owner, kind, waits).await {
                // In a volume that nobody can change there is nothing to be kept from.
                Ok(()) | Err(Error::ReadOnly { .. }) => {}
                Err(error) => return outcome(move |fs, _| fs.errno(&error)),
            }
            let shown = match fs.handles.file(lock.handle) {
                Some(open) => fs.show_newest(&open).await,
                None => Ok(true),
            };
            match shown {
                Ok(true) => {}
                Ok(false) => return just(Answer::Error(libc::ESTALE)),
                Err(error) => return outcome(move |fs, _| fs.errno(&error)),
            }
            undo.is_armed = false;
            just(Answer::Ok)
        });
    }

    /// Gives a lock up. What was written under a lock of the whole file is stored first; if that fails, the lock goes all the same.
    fn unlock(self: &Arc<Self>, caller: Caller, node: Arc<Node>, lock: Lock, reply: Reply) {
        let open = self.handles.file(lock.handle);
        let has_whole = node.locks.lock().has_whole(lock.owner);
        let (Some(open), true) = (open, has_whole) else {
            let _ = node.locks.lock().set(&lock);
            drop(self.freed(&node, lock.owner));
            return reply.ok();
        };
        self.note_lent(&open, false);
        let fs = Arc::clone(self);
        self.run(caller, reply, async move {
            let mut interrupted = Undo { fs: &fs, node: &node, lock, is_armed: true };
            let stored = open.file.flush().await;
            interrupted.is_armed = false;
            let _ = node.locks.lock().set(&lock);
            if let Some(given_back) = fs.freed(&node, lock.owner) {
                let _ = tokio::time::timeout(GIVE_BACK_MAX, fs.runtime.spawn(given_back)).await;
            }
            outcome(move |fs, _| {
                if stored.is_ok() {
                    fs.note_stored(&open);
                }
                fs.done(stored)
            })
        });
    }

    /// Something of an owner's was given up: those who wait may try again. If the owner had all of the file, the client's lock ends too;
    /// the future is done when the server knows.
    fn freed(&self, node: &Arc<Node>, owner: u64) -> Option<impl Future<Output = ()> + Send + use<>> {
        node.locks.freed.notify_waiters();
        let has_whole = node.locks.lock().has_whole(owner);
        (!has_whole).then(|| self.client.unlock(node.fid, owner))
    }

    /// The same in the background, when what was written is stored: the owner is gone, and asks for no lock again.
    fn freed_when_stored(&self, node: &Arc<Node>, owner: u64, open: Option<Arc<FileHandle>>) {
        node.locks.freed.notify_waiters();
        if node.locks.lock().has_whole(owner) {
            return;
        }
        let (client, fid) = (self.client.clone(), node.fid);
        self.runtime.spawn(async move {
            if let Some(open) = open
                && let Err(error) = open.file.flush().await
            {
                tracing::warn!(%fid, %error, "what was written under a lock is not stored, and the lock is given up");
            }
            client.unlock(fid, owner).await;
        });
    }

    /// True if an owner has a lock of the whole file.
    pub(crate) fn has_whole_lock(&self, node: &Node, owner: u64) -> bool {
        node.locks.lock().has_whole(owner)
    }

    /// The last descriptor of an open file is closed.
    pub(crate) fn give_up_locks_of(&self, node: &Arc<Node>, handle: Handle, flock_owner: Option<u64>) {
        let mut owners = node.locks.lock().give_up_of(handle);
        if let Some(owner) = flock_owner
            && node.locks.lock().give_up(owner, true)
            && !owners.contains(&owner)
        {
            owners.push(owner);
        }
        for owner in owners {
            self.freed_when_stored(node, owner, self.handles.file(handle));
        }
    }
}

/// Gives up the locks of `fcntl(2)` that an owner has of a file when it is dropped: a file was closed, whichever of the owner's descriptors
/// it was.
pub(crate) struct GivesUpLocks {
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) open: Arc<FileHandle>,
    pub(crate) owner: u64,
}

impl Drop for GivesUpLocks {
    fn drop(&mut self) {
        let node = &self.open.node;
        if node.locks.lock().give_up(self.owner, false) {
            self.fs.freed_when_stored(node, self.owner, Some(Arc::clone(&self.open)));
        }
    }
}

/// Gives a lock back that the server did not grant, or that nobody waits for any more; or that is being given up by one who no longer waits.
struct Undo<'a> {
    fs: &'a FileSystem,
    node: &'a Arc<Node>,
    lock: Lock,
    is_armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            let _ = self.node.locks.lock().set(&Lock { kind: LockKind::Unlock, ..self.lock });
            self.fs.freed_when_stored(self.node, self.lock.owner, self.fs.handles.file(self.lock.handle));
        }
    }
}
