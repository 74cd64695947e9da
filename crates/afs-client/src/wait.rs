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
pub(crate) async fn until<F: Future>(
    runtime: &Arc<dyn Runtime>,
    at: Instant,
    future: F,
) -> Option<F::Output> {
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

/// What each of some futures comes to, all of them going on at once. For tens of them: each wake-up polls all that are left.
pub(crate) async fn all<F: Future + Send>(futures: Vec<F>) -> Vec<F::Output>
where
    F::Output: Send,
{
    let mut running: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut outputs: Vec<_> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut is_done = true;
        for (slot, output) in running.iter_mut().zip(&mut outputs) {
            let Some(future) = slot else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(value) => {
                    *output = Some(value);
                    *slot = None;
                }
                Poll::Pending => is_done = false,
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().map(|output| output.expect("all are done")).collect()
}
