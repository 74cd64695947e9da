//! Waiting for something with a deadline, in a process that may be stopped for a while: by a signal, with its machine, or because others
//! have the cores.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rx_proto::time::{Instant, STOOD_STILL};

use crate::runtime::Runtime;

/// The time to read what came meanwhile after a standstill, and the number of standstills allowed while one thing is waited for.
pub(crate) const CATCH_UP: Duration = Duration::from_secs(1);
pub(crate) const STANDSTILLS: u32 = 3;

/// The time that it may take to read what has come when the time is over, if the process did not stand still then: it may have until
/// just before.
const LAST_LOOK: Duration = Duration::from_millis(50);

/// Returns what a future comes to, or `None` if it is not done in time. Time in which this process stood still does not count, because
/// answers that came meanwhile have to be read first: a peer whose answer waits at the door is not to be taken for one that does not
/// answer.
pub async fn in_time<T>(
    runtime: &dyn Runtime,
    mut until: Instant,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let now = runtime.now();
    // What had to be done before has been looked for.
    let (mut standstills, mut has_looked) = (0, until <= now);
    until = until.max(now);
    loop {
        let mut timer = runtime.sleep_until(until);
        let done = std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
        });
        if let Some(result) = done.await {
            return Some(result);
        }
        let now = runtime.now();
        if now.since(until) >= STOOD_STILL && standstills < STANDSTILLS {
            standstills += 1;
            until = now + CATCH_UP;
        } else if !has_looked {
            has_looked = true;
            until = now + LAST_LOOK;
        } else {
            return None;
        }
    }
}
