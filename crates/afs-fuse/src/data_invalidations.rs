//! Telling the kernel to forget data of files. That waits for pages that a READ asks us for (`kernel_locks`), and a READ may wait for a server
//! for as long as the server is silent. So a thread of its own sends the notices. If a file takes long, another thread continues with the other files, and the
//! first thread ends when its notice is sent.
//!
//! What is told, and when, is left to `notices`.

use std::collections::HashMap;
use std::mem;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fuse_dev::NodeId;

/// The time for which the other files of a notice wait for those that take long. After this time, a server takes a break for acknowledged,
/// whether the kernel has forgotten or not.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which they wait for one when that is over: many times as long as it takes if there is nothing to wait for.
const LEAST: Duration = Duration::from_millis(5);

/// Tells the kernel of one file.
type Tell = Arc<dyn Fn(NodeId) + Send + Sync>;

/// The notices that are kept until the files that take long are told of, by file: `N` is a notice.
type Slow<N> = Arc<Mutex<HashMap<NodeId, Vec<N>>>>;

/// The thread that tells the kernel.
pub(crate) struct DataInvalidations<N> {
    tell: Tell,
    patience: Duration,
    /// See [`LEAST`].
    least: Duration,
    notifier: Option<Notifier<N>>,
    slow: Slow<N>,
}

/// A thread, and what it says of each file that it has told of. It ends when this is dropped and it is done with the file that it is at.
struct Notifier<N> {
    nodes: mpsc::Sender<(Vec<NodeId>, N)>,
    told: mpsc::Receiver<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<N: Clone + Send + 'static> DataInvalidations<N> {
    pub(crate) fn new(tell: impl Fn(NodeId) + Send + Sync + 'static) -> Self {
        Self { tell: Arc::new(tell), patience: TIMEOUT, least: LEAST, notifier: None, slow: Slow::default() }
    }

    /// Has the kernel forget what it has of these files. The notice is kept until all are told of; this returns when those are that do not
    /// take long.
    pub(crate) fn tell(&mut self, mut nodes: Vec<NodeId>, notice: &N) {
        {
            // Whoever tells of them tells once more.
            let mut slow = lock(&self.slow);
            nodes.retain(|node| slow.get_mut(node).map(|kept| kept.push(notice.clone())).is_none());
        }
        let until = Instant::now() + self.patience;
        let mut rest = &nodes[..];
        while !rest.is_empty() {
            let Some(notifier) = self.notifier() else {
                return rest.iter().for_each(|node| (self.tell)(*node));
            };
            if notifier.nodes.send((rest.to_vec(), notice.clone())).is_err() {
                self.notifier = None;
                continue;
            }
            rest = self.follow(rest, until);
        }
    }

    /// Waits while files are told of. Which are left when one takes long.
    fn follow<'a>(&mut self, nodes: &'a [NodeId], until: Instant) -> &'a [NodeId] {
        let Some(notifier) = &self.notifier else { return nodes };
        for (at, node) in nodes.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now()).max(self.least);
            match notifier.told.recv_timeout(left) {
                Ok(()) => continue,
                Err(RecvTimeoutError::Timeout) => {}
                // It has panicked.
                Err(RecvTimeoutError::Disconnected) => {
                    self.notifier = None;
                    return &nodes[at + 1..];
                }
            }
            let mut slow = lock(&self.slow);
            if notifier.told.try_recv().is_ok() {
                continue;
            }
            tracing::debug!(
                ?node,
                "the kernel waits for data that it has asked for before it forgets a file"
            );
            slow.insert(*node, Vec::new());
            drop(slow);
            self.notifier = None;
            return &nodes[at + 1..];
        }
        &[]
    }

    fn notifier(&mut self) -> Option<&Notifier<N>> {
        if self.notifier.is_none() {
            let ((nodes, wanted), (done, told)) = (mpsc::channel(), mpsc::channel());
            let (tell, slow) = (Arc::clone(&self.tell), Arc::clone(&self.slow));
            let started = std::thread::Builder::new()
                .name("fuse-data".to_owned())
                .spawn(move || run(&wanted, &done, &tell, &slow));
            match started {
                Ok(_) => self.notifier = Some(Notifier { nodes, told }),
                Err(error) => tracing::warn!(%error, "no thread can be started to tell the kernel of data"),
            }
        }
        self.notifier.as_ref()
    }
}

fn run<N>(wanted: &mpsc::Receiver<(Vec<NodeId>, N)>, done: &mpsc::Sender<()>, tell: &Tell, slow: &Slow<N>) {
    for (nodes, _notice) in wanted {
        for node in nodes {
            tell(node);
            loop {
                let again = {
                    let mut slow = lock(slow);
                    let again = slow.get_mut(&node).map(mem::take).unwrap_or_default();
                    if again.is_empty() {
                        slow.remove(&node);
                        // With it locked: whether it has taken long is decided here or there.
                        if done.send(()).is_err() {
                            return;
                        }
                        break;
                    }
                    again
                };
                tell(node);
                drop(again);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that forgets one file only when it is let; what it was told of.
    struct Kernel {
        told: Mutex<Vec<u64>>,
        gate: Mutex<mpsc::Receiver<()>>,
    }

    const SLOW: NodeId = NodeId(1);

    fn kernel() -> (Arc<Kernel>, mpsc::Sender<()>, DataInvalidations<Arc<u32>>) {
        let (open, gate) = mpsc::channel();
        let kernel = Arc::new(Kernel { told: Mutex::default(), gate: Mutex::new(gate) });
        let of = Arc::clone(&kernel);
        let mut invalidations = DataInvalidations::new(move |node| {
            if node == SLOW {
                lock(&of.gate).recv().unwrap();
            }
            lock(&of.told).push(node.0);
        });
        (invalidations.patience, invalidations.least) = (Duration::from_millis(50), Duration::from_secs(5));
        (kernel, open, invalidations)
    }

    fn until(what: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !what() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_file_that_waits_for_its_server_does_not_hold_up_others() {
        let (kernel, open, mut invalidations) = kernel();
        let [all, again, other] = [1, 2, 3].map(Arc::new);
        invalidations.tell(vec![NodeId(7), SLOW, NodeId(8), NodeId(9)], &all);
        assert_eq!(*lock(&kernel.told), [7, 8, 9]);
        invalidations.tell(vec![SLOW], &again);
        invalidations.tell(vec![NodeId(10)], &other);
        until(|| Arc::strong_count(&other) == 1);
        assert_eq!((Arc::strong_count(&all), Arc::strong_count(&again)), (2, 2), "they are not handled yet");
        for _ in 0..2 {
            open.send(()).unwrap();
        }
        until(|| Arc::strong_count(&all) == 1 && Arc::strong_count(&again) == 1);
        assert_eq!(*lock(&kernel.told), [7, 8, 9, 10, 1, 1], "what came meanwhile is told of anew");
        until(|| lock(&invalidations.slow).is_empty());
        open.send(()).unwrap();
        invalidations.tell(vec![SLOW, NodeId(11)], &other);
        assert_eq!(lock(&kernel.told)[6..], [1, 11]);
    }
}
