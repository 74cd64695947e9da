//! Locks. Who on this machine has which lock is decided here. The server hears only of locks of a whole file, which is
//! all that servers know. So locks of parts of a file hold on this machine only, as in every client of AFS.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use afs_client::Error;
use fuse_dev::{Caller, Handle, Lock, LockKind, Reply};
use tokio::sync::Notify;

use crate::answer::Answer;
use crate::file_system::{FileSystem, just, outcome};
use crate::in_flight::EndedBy;
use crate::lock_table::{LockTable, Refusal};
use crate::nodes::Node;

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
            // It cannot be refused.
            let _ = node.locks.lock().set(&lock);
            self.freed(&node, lock.owner);
            return reply.ok();
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
                Ok(()) | Err(Error::ReadOnly { .. }) => {
                    undo.is_armed = false;
                    just(Answer::Ok)
                }
                Err(error) => outcome(move |fs, _| fs.errno(&error)),
            }
        });
    }

    /// Something of an owner's was given up: those who wait may try again, and the server is told if the owner had all
    /// of the file.
    fn freed(&self, node: &Arc<Node>, owner: u64) {
        node.locks.freed.notify_waiters();
        if node.locks.lock().has_whole(owner) {
            return;
        }
        let (client, fid) = (self.client.clone(), node.fid);
        self.runtime.spawn(async move { client.unlock(fid, owner).await });
    }

    /// A file was closed: its owner's locks of `fcntl(2)` go, whichever of the owner's descriptors it was.
    pub(crate) fn give_up_locks(&self, node: &Arc<Node>, owner: u64) {
        if node.locks.lock().give_up(owner, false) {
            self.freed(node, owner);
        }
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
        owners.into_iter().for_each(|owner| self.freed(node, owner));
    }
}

/// Gives a lock back that the server did not grant, or that nobody waits for any more.
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
            self.fs.freed(self.node, self.lock.owner);
        }
    }
}
