//! Where blocking work is done: on tokio's threads for that, so that the tasks of calls go on; or right here where there is no
//! tokio, as in a simulation, in which nothing else would run meanwhile anyway.

use std::future::poll_fn;
use std::panic;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use rx::Runtime;
use rx_proto::time::Instant;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Does what may block on the disk, and waits for it. A panic of the work is the caller's.
pub(crate) async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match handle() {
        Some(handle) => match handle.spawn_blocking(work).await {
            Ok(value) => value,
            Err(error) => panic::resume_unwind(error.into_panic()),
        },
        None => work(),
    }
}

/// Work that took so long has waited for the disk: a small change takes some 10 us, a change of threads and back about as much.
const SLOW: Duration = Duration::from_millis(1);
/// How long a shorter way is not taken after that.
const DETOUR: Duration = Duration::from_secs(1);

/// A shorter way for work that hardly ever waits for the disk, closed for a while after some that did.
#[derive(Debug, Default)]
pub(crate) struct ShortWay {
    /// In nanoseconds of the runtime's clock.
    closed_until: AtomicU64,
}

impl ShortWay {
    /// Whether it may be taken.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        now.as_nanos() >= self.closed_until.load(Ordering::Relaxed)
    }

    /// Work that has taken it ends.
    pub(crate) fn note(&self, began: Instant, now: Instant) {
        if now.since(began) > SLOW {
            self.closed_until.store((now + DETOUR).as_nanos(), Ordering::Relaxed);
        }
    }
}

/// Where changes are made, which most often write to the system's memory alone: right here, which saves the change of threads.
/// One at a time takes this way: a disk that hangs holds up one of the runtime's threads and not all.
#[derive(Debug, Default)]
pub(crate) struct Shortcut {
    is_taken: AtomicBool,
    way: ShortWay,
}

impl Shortcut {
    /// Does it and waits for it. A panic of the work is the caller's, who must be a task.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        runtime: &dyn Runtime,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let has_others = handle().is_none_or(|handle| handle.metrics().num_workers() > 1);
        let began = runtime.now();
        match self.enter(began).filter(|_| has_others) {
            Some(_inside) => {
                let value = work();
                self.way.note(began, runtime.now());
                value
            }
            None => on_a_thread(work).await,
        }
    }

    fn enter(&self, now: Instant) -> Option<Inside<'_>> {
        (self.way.is_open(now) && !self.is_taken.swap(true, Ordering::Acquire)).then_some(Inside(self))
    }
}

/// Whoever has taken it.
struct Inside<'a>(&'a Shortcut);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

/// Answers a call that begins on the thread that brought it, of which `way` is to know how long that was kept.
pub(crate) async fn begun_at_once<T>(
    runtime: &dyn Runtime,
    way: &ShortWay,
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
        way.note(began, runtime.now());
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

/// Does what may block without being waited for.
pub(crate) fn in_background(work: impl FnOnce() + Send + 'static) {
    match handle() {
        Some(handle) => drop(handle.spawn_blocking(work)),
        None => work(),
    }
}

fn handle() -> Option<Handle> {
    Handle::try_current().ok().filter(|handle| handle.runtime_flavor() != RuntimeFlavor::CurrentThread)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(5_000_000_000);

    #[test]
    fn one_at_a_time_takes_the_shortcut() {
        let shortcut = Shortcut::default();
        let first = shortcut.enter(NOW);
        assert!(first.is_some());
        assert!(shortcut.enter(NOW).is_none(), "it is taken");
        drop(first);
        assert!(shortcut.enter(NOW).is_some());
    }

    #[test]
    fn a_short_way_is_closed_for_a_while_after_work_that_was_slow() {
        let way = ShortWay::default();
        assert!(way.is_open(NOW));
        way.note(NOW - SLOW, NOW);
        assert!(way.is_open(NOW), "that was not slow");
        way.note(NOW - SLOW - Duration::from_nanos(1), NOW);
        assert!(!way.is_open(NOW));
        assert!(!way.is_open(NOW + DETOUR - Duration::from_nanos(1)));
        assert!(way.is_open(NOW + DETOUR));
    }
}
