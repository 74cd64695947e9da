//! The start of a call of the file service: at once on the thread that brought it, as long as the disk does not hold that up, or
//! as a task. Blocking work itself is `rx::blocking`'s.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use rx::Runtime;
use rx::blocking::{on_a_thread, threads};
use rx_proto::time::Instant;

/// Work that took so long has waited for the disk: a small change takes some 10 us, a change of threads and back about as much.
const SLOW: Duration = Duration::from_millis(1);
/// The number of pieces of work before a slow one of which another has to have been slow, for it to count: a thread that waits for a
/// processor, or a machine for its host, slows one piece among many, the disk one after the other.
const QUICK_BETWEEN: u32 = 32;
/// The time for which the fast path is not taken after that, at first and at most. It doubles each time that it was too short.
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A fast path for work that hardly ever waits for the disk, closed for a while after some that did, with exponential back-off.
#[derive(Debug, Default)]
pub(crate) struct FastPath {
    /// In nanoseconds of the runtime's clock.
    closed_until: AtomicU64,
    /// The time for which it was closed last, in nanoseconds.
    backoff: AtomicU64,
    /// So many pieces of work have to be quick until a slow one counts as the only one.
    quick_wanted: AtomicU32,
}

impl FastPath {
    /// True if it may be taken.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        now.as_nanos() >= self.closed_until.load(Ordering::Relaxed)
    }

    /// Work that has taken it ends.
    pub(crate) fn note(&self, began: Instant, now: Instant) {
        let near = self.quick_wanted.load(Ordering::Relaxed);
        if now.since(began) <= SLOW {
            return self.quick_wanted.store(near.saturating_sub(1), Ordering::Relaxed);
        }
        self.quick_wanted.store(QUICK_BETWEEN, Ordering::Relaxed);
        if near == 0 {
            return;
        }
        // What is slow again within as long as the path was closed before closes it for twice as long.
        let before = Duration::from_nanos(self.backoff.load(Ordering::Relaxed));
        let opened = Instant::from_nanos(self.closed_until.load(Ordering::Relaxed));
        let backoff = if began < opened + before.max(BACKOFF_MIN) { 2 * before } else { BACKOFF_MIN };
        let backoff = backoff.clamp(BACKOFF_MIN, BACKOFF_MAX);
        self.backoff.store(backoff.as_nanos() as u64, Ordering::Relaxed);
        self.closed_until.store((now + backoff).as_nanos(), Ordering::Relaxed);
    }
}

/// The place where changes are made, which most often write to the system's memory alone: right here, which saves the change
/// of threads. One at a time takes this path: a disk that hangs holds up one of the runtime's threads and not all.
#[derive(Debug, Default)]
pub(crate) struct Inline {
    is_taken: AtomicBool,
    path: FastPath,
}

impl Inline {
    /// Runs the work, and waits for it. A panic of the work is the caller's, who must be a task.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        runtime: &dyn Runtime,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let has_others = threads().is_none_or(|handle| handle.metrics().num_workers() > 1);
        let began = runtime.now();
        match self.enter(began).filter(|_| has_others) {
            Some(_guard) => {
                let value = work();
                self.path.note(began, runtime.now());
                value
            }
            None => on_a_thread(work).await,
        }
    }

    fn enter(&self, now: Instant) -> Option<InlineGuard<'_>> {
        (self.path.is_open(now) && !self.is_taken.swap(true, Ordering::Acquire)).then_some(InlineGuard(self))
    }
}

/// Held by the work that runs inline.
struct InlineGuard<'a>(&'a Inline);

impl Drop for InlineGuard<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

/// Answers a call that begins on the thread that brought it. `path` learns how long that thread was kept.
pub(crate) async fn begun_inline<T>(
    runtime: &dyn Runtime,
    path: &FastPath,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    let mut is_begun = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut is_begun, true) {
            return work.as_mut().poll(cx);
        }
        let began = runtime.now();
        let polled = work.as_mut().poll(cx);
        path.note(began, runtime.now());
        polled
    })
    .await
}

/// Lets go of the thread that brought the call: what follows is a task.
pub(crate) async fn become_task() {
    let mut has_let_go = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_let_go, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(5_000_000_000);

    #[test]
    fn one_at_a_time_takes_the_shortcut() {
        let shortcut = Inline::default();
        let first = shortcut.enter(NOW);
        assert!(first.is_some());
        assert!(shortcut.enter(NOW).is_none(), "it is taken");
        drop(first);
        assert!(shortcut.enter(NOW).is_some());
    }

    #[test]
    fn a_fast_path_is_closed_for_a_while_after_work_that_was_slow() {
        let path = FastPath::default();
        assert!(path.is_open(NOW));
        let slow = SLOW + Duration::from_nanos(1);
        for _ in 0..3 {
            path.note(NOW - slow, NOW);
            assert!(path.is_open(NOW), "one of many");
            (0..QUICK_BETWEEN).for_each(|_| path.note(NOW - SLOW, NOW));
        }
        path.note(NOW - slow, NOW);
        path.note(NOW - SLOW, NOW);
        path.note(NOW - slow, NOW);
        assert!(!path.is_open(NOW));
        assert!(!path.is_open(NOW + BACKOFF_MIN - Duration::from_nanos(1)));
        assert!(path.is_open(NOW + BACKOFF_MIN));
    }

    #[test]
    fn a_disk_that_stays_slow_is_tried_ever_more_rarely() {
        let path = FastPath::default();
        let slow = SLOW + Duration::from_micros(1);
        let mut now = NOW;
        let mut detours = Vec::new();
        path.note(now - slow, now);
        for _ in 0..10 {
            now += slow;
            path.note(now - slow, now);
            let opens = Instant::from_nanos(path.closed_until.load(Ordering::Relaxed));
            detours.push(opens.since(now).as_millis());
            now = opens;
        }
        assert_eq!(detours, [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        // It was quick for so long that this is a new matter.
        now += BACKOFF_MAX + slow;
        path.note(now - slow, now);
        assert!(!path.is_open(now) && path.is_open(now + BACKOFF_MIN));
    }
}
