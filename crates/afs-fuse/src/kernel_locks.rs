//! The locks that the kernel holds while it waits for our answers: of the pages that it reads, and of the directory in which it looks up or
//! changes a name. A notice waits for them in the kernel, and nothing ends that wait but the answer: the process could not be killed, and
//! others would queue for the directory behind the notice. So whoever sends one waits here first.
//!
//! A lock of which the request has just come is left to the kernel: most are answered in a moment. The wait there is long only if a server
//! falls silent at that very moment. So are those that come while others are waited for: a file that is always being read would never be told
//! of.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuse_dev::NodeId;

/// How long a request may be unanswered before a notice waits for it here.
const SHORT: Duration = Duration::from_millis(20);

/// The requests that hold a lock, by node: when they came.
#[derive(Debug, Default)]
pub(crate) struct KernelLocks {
    held: Mutex<HashMap<NodeId, Vec<Instant>>>,
    released: Condvar,
}

/// A lock that the kernel holds until this is dropped, which is after the answer.
#[derive(Debug)]
pub(crate) struct Held {
    locks: Arc<KernelLocks>,
    node: NodeId,
    since: Instant,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.locks.lock();
        if let Some(times) = held.get_mut(&self.node) {
            times.iter().position(|since| *since == self.since).map(|at| times.swap_remove(at));
            if times.is_empty() {
                held.remove(&self.node);
            }
        }
        self.locks.released.notify_all();
    }
}

impl KernelLocks {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Vec<Instant>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come for which the kernel holds a node locked.
    pub(crate) fn hold(self: &Arc<Self>, node: NodeId) -> Held {
        self.hold_since(node, Instant::now())
    }

    fn hold_since(self: &Arc<Self>, node: NodeId, since: Instant) -> Held {
        self.lock().entry(node).or_default().push(since);
        Held { locks: Arc::clone(self), node, since }
    }

    /// Waits while the kernel holds a lock of a node for a request that has not been answered for a while.
    pub(crate) fn wait(&self, node: NodeId) {
        // What came later is as short, or the next notice waits for it.
        let Some(before) = Instant::now().checked_sub(SHORT) else { return };
        let mut held = self.lock();
        while held.get(&node).is_some_and(|times| times.iter().any(|since| *since <= before)) {
            held = self.released.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    const NODE: NodeId = NodeId(7);

    /// Says when a wait for the node is over.
    fn waiter(locks: &Arc<KernelLocks>) -> mpsc::Receiver<()> {
        let (over, is_over) = mpsc::channel();
        let locks = Arc::clone(locks);
        thread::spawn(move || {
            locks.wait(NODE);
            let _ = over.send(());
        });
        is_over
    }

    #[test]
    fn a_request_that_is_not_answered_soon_is_waited_for_and_no_other() {
        let (locks, now) = (Arc::new(KernelLocks::default()), Instant::now());
        let hold = |node: NodeId, since: Instant| locks.hold_since(node, since);
        locks.wait(NODE);
        let other = hold(NodeId(8), now - 2 * SHORT);
        let new = hold(NODE, now + Duration::from_secs(1000));
        locks.wait(NODE);
        let (first, second) = (hold(NODE, now - 2 * SHORT), hold(NODE, now - 2 * SHORT));
        let is_over = waiter(&locks);
        assert!(is_over.recv_timeout(5 * SHORT).is_err());
        drop(second);
        assert!(is_over.recv_timeout(5 * SHORT).is_err(), "the first one is not answered");
        drop(first);
        is_over.recv_timeout(Duration::from_secs(10)).unwrap();
        drop((new, other));
        assert!(locks.lock().is_empty());
    }
}
