//! Vnode locks: those who change the same file or directory do it one after the other. A change that waits
//! blocks no thread, and a file that nobody changes costs nothing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use afs_wire::ids::AfsFid;
use tokio::sync::OwnedMutexGuard;

/// Those who change a file or wait to.
#[derive(Debug, Default)]
struct Queue {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// The client that holds it.
    holder: Option<SocketAddr>,
}

/// The files that somebody changes or waits to change.
#[derive(Debug, Default)]
pub(crate) struct VnodeLocks {
    queues: Mutex<HashMap<AfsFid, Queue>>,
}

/// The right to change a file, until it is dropped.
#[derive(Debug)]
pub(crate) struct VnodeLock {
    locks: Arc<VnodeLocks>,
    fid: AfsFid,
    guard: Option<OwnedMutexGuard<()>>,
}

impl VnodeLocks {
    fn queues(&self) -> MutexGuard<'_, HashMap<AfsFid, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else changes the file.
    pub(crate) async fn take(self: &Arc<Self>, fid: AfsFid, client: SocketAddr) -> VnodeLock {
        let lock = Arc::clone(&self.queues().entry(fid).or_default().lock);
        // Made first, so that the queue is let go too if the wait is given up.
        let mut taken = VnodeLock { locks: Arc::clone(self), fid, guard: None };
        taken.guard = Some(lock.lock_owned().await);
        if let Some(queue) = self.queues().get_mut(&fid) {
            queue.holder = Some(client);
        }
        taken
    }

    /// Waits until nobody else changes either, in an order that is the same for all.
    pub(crate) async fn take_both(
        self: &Arc<Self>,
        one: AfsFid,
        other: AfsFid,
        client: SocketAddr,
    ) -> (VnodeLock, Option<VnodeLock>) {
        if one == other {
            return (self.take(one, client).await, None);
        }
        let first = self.take(one.min(other), client).await;
        (first, Some(self.take(one.max(other), client).await))
    }

    /// The client that holds the file's lock, if one does.
    pub(crate) fn holder(&self, fid: AfsFid) -> Option<SocketAddr> {
        self.queues().get(&fid)?.holder
    }
}

impl VnodeLock {
    /// True if others wait for it.
    pub(crate) fn is_wanted(&self) -> bool {
        // The map has one, this lock another, and each that waits one more.
        self.guard.as_ref().is_some_and(|guard| Arc::strong_count(OwnedMutexGuard::mutex(guard)) > 2)
    }
}

impl Drop for VnodeLock {
    fn drop(&mut self) {
        let mut queues = self.locks.queues();
        self.guard = None;
        // The map has one, and each who waits another.
        if queues.get(&self.fid).is_some_and(|queue| Arc::strong_count(&queue.lock) == 1) {
            queues.remove(&self.fid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::VolumeId;

    const CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7001);

    fn fid(volume: u32) -> AfsFid {
        AfsFid::root_of(VolumeId(volume))
    }

    #[tokio::test]
    async fn locks_are_taken_one_after_the_other_and_leave_nothing_behind() {
        let locks = Arc::new(VnodeLocks::default());
        let first = locks.take(fid(1), CLIENT).await;
        let other = locks.take(fid(2), CLIENT).await;
        let waiting = tokio::spawn({
            let locks = Arc::clone(&locks);
            async move { drop(locks.take(fid(1), CLIENT).await) }
        });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished());
        assert!(first.is_wanted() && !other.is_wanted());
        assert_eq!(locks.holder(fid(1)), Some(CLIENT));
        drop((first, other));
        waiting.await.unwrap();
        assert!(locks.queues().is_empty());
    }

    #[tokio::test]
    async fn who_gives_up_waiting_leaves_nothing_behind() {
        let locks = Arc::new(VnodeLocks::default());
        let first = locks.take(fid(1), CLIENT).await;
        let waiting = tokio::spawn({
            let locks = Arc::clone(&locks);
            async move { drop(locks.take(fid(1), CLIENT).await) }
        });
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.is_err());
        drop(first);
        assert!(locks.queues().is_empty());
    }

    #[tokio::test]
    async fn two_at_once_in_either_order_do_not_lock_each_other_out() {
        let locks = Arc::new(VnodeLocks::default());
        let both = |one, other| {
            let locks = Arc::clone(&locks);
            tokio::spawn(async move {
                for _ in 0..100 {
                    let both = locks.take_both(fid(one), fid(other), CLIENT).await;
                    tokio::task::yield_now().await;
                    drop(both);
                }
            })
        };
        let (one, other, same) = (both(1, 2), both(2, 1), both(1, 1));
        one.await.unwrap();
        other.await.unwrap();
        same.await.unwrap();
        assert!(locks.queues().is_empty());
    }
}
