//! Turns: those who change the same file or directory do it one after the other. A change that waits for its turn
//! blocks no thread, and a file that nobody changes costs nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use afs_wire::ids::AfsFid;
use tokio::sync::OwnedMutexGuard;

type Queue = Arc<tokio::sync::Mutex<()>>;

/// The files that somebody changes or waits to change.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    queues: Mutex<HashMap<AfsFid, Queue>>,
}

/// Somebody's turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    fid: AfsFid,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    fn queues(&self) -> MutexGuard<'_, HashMap<AfsFid, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else changes the file.
    pub(crate) async fn take(self: &Arc<Self>, fid: AfsFid) -> Turn {
        let queue = Arc::clone(self.queues().entry(fid).or_default());
        // Made first, so that the queue is let go too if the wait is given up.
        let mut turn = Turn { turns: Arc::clone(self), fid, guard: None };
        turn.guard = Some(queue.lock_owned().await);
        turn
    }

    /// Waits until nobody else changes either, in an order that is the same for all.
    pub(crate) async fn take_both(self: &Arc<Self>, one: AfsFid, other: AfsFid) -> (Turn, Option<Turn>) {
        if one == other {
            return (self.take(one).await, None);
        }
        let first = self.take(one.min(other)).await;
        (first, Some(self.take(one.max(other)).await))
    }
}

impl Turn {
    /// Whether others wait for it to end.
    pub(crate) fn is_wanted(&self) -> bool {
        // The map has one, this turn another, and each that waits one more.
        self.guard.as_ref().is_some_and(|guard| Arc::strong_count(OwnedMutexGuard::mutex(guard)) > 2)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = self.turns.queues();
        self.guard = None;
        // The map has one, and each who waits another.
        if queues.get(&self.fid).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&self.fid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::VolumeId;

    fn fid(volume: u32) -> AfsFid {
        AfsFid::root_of(VolumeId(volume))
    }

    #[tokio::test]
    async fn turns_are_taken_one_after_the_other_and_leave_nothing_behind() {
        let turns = Arc::new(Turns::default());
        let first = turns.take(fid(1)).await;
        let other = turns.take(fid(2)).await;
        let waiting = tokio::spawn({
            let turns = Arc::clone(&turns);
            async move { drop(turns.take(fid(1)).await) }
        });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished());
        assert!(first.is_wanted() && !other.is_wanted());
        drop((first, other));
        waiting.await.unwrap();
        assert!(turns.queues().is_empty());
    }

    #[tokio::test]
    async fn who_gives_up_waiting_leaves_nothing_behind() {
        let turns = Arc::new(Turns::default());
        let first = turns.take(fid(1)).await;
        let waiting = tokio::spawn({
            let turns = Arc::clone(&turns);
            async move { drop(turns.take(fid(1)).await) }
        });
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.is_err());
        drop(first);
        assert!(turns.queues().is_empty());
    }

    #[tokio::test]
    async fn two_at_once_in_either_order_do_not_lock_each_other_out() {
        let turns = Arc::new(Turns::default());
        let both = |one, other| {
            let turns = Arc::clone(&turns);
            tokio::spawn(async move {
                for _ in 0..100 {
                    let both = turns.take_both(fid(one), fid(other)).await;
                    tokio::task::yield_now().await;
                    drop(both);
                }
            })
        };
        let (one, other, same) = (both(1, 2), both(2, 1), both(1, 1));
        one.await.unwrap();
        other.await.unwrap();
        same.await.unwrap();
        assert!(turns.queues().is_empty());
    }
}
