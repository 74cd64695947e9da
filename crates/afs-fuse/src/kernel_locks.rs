//! The locks that the kernel holds while it waits for our answers: of the pages that it reads, and of the directory in which it looks up or
//! changes a name. A notice waits for them in the kernel, and nothing ends that wait but the answer: the process could not be killed, and
//! others would queue for the directory behind the notice. So a thread waits here before it sends one.
//!
//! A notice does not wait here for a request that has just come, because most requests are answered in a moment. It then waits in the kernel,
//! and for long only if a server falls silent at that very moment. Nor does it wait for requests that come while it waits, unless they take
//! long, and for those it waits a few times only: otherwise a file that is always being read would never get its notice.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuse_dev::KernelLock;

use crate::nodes::Forget;

/// The time for which a request may be unanswered before a notice waits for it here.
const SHORT: Duration = Duration::from_millis(20);

/// The time for which a request that came while a notice waits may be unanswered before the notice waits for it too: servers that answer do
/// so sooner.
const LONG: Duration = Duration::from_secs(1);

/// The number of times that a notice waits for the requests that are there. With a silent server, programs that are killed while they wait
/// make one request each.
const ROUNDS: usize = 8;

/// The locks that the kernel holds for requests that are not answered.
#[derive(Debug, Default)]
pub(crate) struct KernelLocks {
    table: Mutex<Table>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    /// The locks by a number of their own, with the time since when.
    held: HashMap<u64, (KernelLock, Instant)>,
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

    /// A request has come for which the kernel holds a lock.
    pub(crate) fn hold(self: &Arc<Self>, lock: KernelLock) -> Held {
        self.hold_since(lock, Instant::now())
    }

    fn hold_since(self: &Arc<Self>, lock: KernelLock, since: Instant) -> Held {
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        table.held.insert(number, (lock, since));
        Held { locks: Arc::clone(self), number }
    }

    /// Waits while the kernel holds a lock that a notice would wait for, for a request that has not been answered for a while.
    pub(crate) fn wait(&self, notice: &Forget) {
        let lock = match notice {
            Forget::Data(node) => KernelLock::Pages(*node),
            Forget::Name(dir, _) => KernelLock::Names(*dir),
            Forget::Attributes(_) => return,
        };
        let mut table = self.lock();
        let mut least = SHORT;
        for _ in 0..ROUNDS {
            let is_waited_for =
                |(held, since): &(KernelLock, Instant)| *held == lock && since.elapsed() >= least;
            let held = table.held.iter().filter(|(_, held)| is_waited_for(held));
            let waited_for: Vec<u64> = held.map(|(number, _)| *number).collect();
            if waited_for.is_empty() {
                return;
            }
            while waited_for.iter().any(|number| table.held.contains_key(number)) {
                table = self.released.wait(table).unwrap_or_else(PoisonError::into_inner);
            }
            least = LONG;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuse_dev::NodeId;
    use std::sync::mpsc;
    use std::thread;

    const NODE: NodeId = NodeId(7);
    const PAGES: KernelLock = KernelLock::Pages(NODE);

    /// Waits for a node's pages in a thread; what comes when the wait is over.
    fn waiter(locks: &Arc<KernelLocks>) -> mpsc::Receiver<()> {
        let (locks, (over, is_over)) = (Arc::clone(locks), mpsc::channel());
        thread::spawn(move || {
            locks.wait(&Forget::Data(NODE));
            over.send(()).unwrap();
        });
        is_over
    }

    #[test]
    fn a_notice_waits_for_the_requests_that_it_finds_and_for_no_new_one() {
        let locks = Arc::new(KernelLocks::default());
        let now = Instant::now();
        let hold = |lock: KernelLock, since: Instant| locks.hold_since(lock, since);
        locks.wait(&Forget::Data(NODE));
        let other = hold(KernelLock::Pages(NodeId(8)), now - 2 * SHORT);
        // As if it came later.
        let new = hold(PAGES, now + Duration::from_secs(1000));
        locks.wait(&Forget::Data(NODE));
        let (first, second) = (hold(PAGES, now - 2 * SHORT), hold(PAGES, now - 2 * SHORT));
        let is_over = waiter(&locks);
        assert!(is_over.recv_timeout(5 * SHORT).is_err());
        drop(second);
        assert!(is_over.recv_timeout(5 * SHORT).is_err());
        drop(first);
        is_over.recv_timeout(Duration::from_secs(10)).unwrap();
        drop((new, other));
        assert!(locks.lock().held.is_empty());
    }

    #[test]
    fn a_request_that_came_meanwhile_is_waited_for_if_it_takes_long() {
        let locks = Arc::new(KernelLocks::default());
        let first = locks.hold_since(PAGES, Instant::now() - 2 * SHORT);
        let is_over = waiter(&locks);
        assert!(is_over.recv_timeout(SHORT).is_err());
        let meanwhile = locks.hold(PAGES);
        thread::sleep(LONG);
        drop(first);
        assert!(is_over.recv_timeout(5 * SHORT).is_err());
        drop(meanwhile);
        is_over.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    /// Clients that change one directory waited for each other: the notice of the directory's data waited for the change here.
    #[test]
    fn a_notice_of_data_does_not_wait_for_a_change_of_names() {
        let locks = Arc::new(KernelLocks::default());
        let _change = locks.hold_since(KernelLock::Names(NODE), Instant::now() - 2 * SHORT);
        locks.wait(&Forget::Data(NODE));
        locks.wait(&Forget::Attributes(NODE));
    }

    #[test]
    fn a_file_that_is_read_slowly_all_the_time_gets_its_notice() {
        let locks = Arc::new(KernelLocks::default());
        let read = || locks.hold_since(PAGES, Instant::now() - 2 * LONG);
        let mut reading = read();
        let is_over = waiter(&locks);
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            if is_over.recv_timeout(2 * SHORT).is_ok() {
                return;
            }
            // The next one is there before this one is answered.
            reading = read();
        }
        drop(reading);
        panic!("the notice is not sent");
    }
}
