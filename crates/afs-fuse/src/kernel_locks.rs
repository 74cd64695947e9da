//! The locks that the kernel holds while it waits for our answers: of the pages that it reads, and of the directory in which it looks up or
//! changes a name. A notice waits for them in the kernel, and nothing ends that wait but the answer: the process could not be killed, and
//! others would queue for the directory behind the notice. So a thread waits here before it sends one.
//!
//! A notice does not wait here for a request that has just come, because most requests are answered in a moment. It then waits in the kernel,
//! and for long only if a server falls silent at that very moment. Nor does it wait for requests that come while it waits, unless they take
//! long: otherwise a file that is always being read would never get its notice.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuse_dev::NodeId;

/// How long a request may be unanswered before a notice waits for it here.
const SHORT: Duration = Duration::from_millis(20);

/// How long a request that came while a notice waits may be unanswered before the notice waits for it too: servers that answer do so sooner.
const LONG: Duration = Duration::from_secs(1);

/// The locks that the kernel holds for requests that are not answered.
#[derive(Debug, Default)]
pub(crate) struct KernelLocks {
    table: Mutex<Table>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    /// By a number of their own: the node, and since when.
    held: HashMap<u64, (NodeId, Instant)>,
    next: u64,
}

/// A lock that the kernel holds until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    locks: Arc<KernelLocks>,
    number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let held = self.locks.lock().held.remove(&self.number);
        // A notice waits for no other.
        if held.is_some_and(|(_, since)| since.elapsed() >= SHORT) {
            self.locks.released.notify_all();
        }
    }
}

impl KernelLocks {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come for which the kernel holds a node locked.
    pub(crate) fn hold(self: &Arc<Self>, node: NodeId) -> Held {
        self.hold_since(node, Instant::now())
    }

    fn hold_since(self: &Arc<Self>, node: NodeId, since: Instant) -> Held {
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        table.held.insert(number, (node, since));
        Held { locks: Arc::clone(self), number }
    }

    /// Waits while the kernel holds a lock of a node for a request that has not been answered for a while.
    pub(crate) fn wait(&self, node: NodeId) {
        let begin = Instant::now();
        let is_waited_for =
            |since: Instant| begin.saturating_duration_since(since) >= SHORT || since.elapsed() >= LONG;
        let mut table = self.lock();
        while table.held.values().any(|(held, since)| *held == node && is_waited_for(*since)) {
            table = self.released.wait(table).unwrap_or_else(PoisonError::into_inner);
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
        // As if it came later.
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
        assert!(locks.lock().held.is_empty());
    }

    #[test]
    fn a_request_that_came_meanwhile_is_waited_for_if_it_takes_long() {
        let locks = Arc::new(KernelLocks::default());
        let first = locks.hold_since(NODE, Instant::now() - 2 * SHORT);
        let is_over = waiter(&locks);
        assert!(is_over.recv_timeout(SHORT).is_err());
        let meanwhile = locks.hold(NODE);
        thread::sleep(LONG);
        drop(first);
        assert!(is_over.recv_timeout(5 * SHORT).is_err());
        drop(meanwhile);
        is_over.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
