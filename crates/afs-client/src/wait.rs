//! Waiting for whichever comes first, on the runtime that everything else waits through.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rx::Runtime;
use rx_proto::time::Instant;

/// What a future comes to, if it does before the limit.
pub(crate) async fn within<F: Future>(
    runtime: &Arc<dyn Runtime>,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    until(runtime, runtime.now() + limit, future).await
}

/// What a future comes to, if it does before that time.
pub(crate) async fn until<F: Future>(runtime: &Arc<dyn Runtime>, at: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut timer = runtime.sleep_until(at);
    poll_fn(move |cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        timer.as_mut().poll(cx).map(|()| None)
    })
    .await
}
