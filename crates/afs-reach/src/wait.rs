//! Waiting for whichever comes first, on the runtime that everything else waits through.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use rx::Runtime;
use rx_proto::time::Instant;

/// Returns what a future comes to, if it does before the limit.
pub async fn within<F: Future>(runtime: &Arc<dyn Runtime>, limit: Duration, future: F) -> Option<F::Output> {
    until(runtime, runtime.now() + limit, future).await
}

/// Returns what a future comes to, if it does before that time.
pub(crate) async fn until<F: Future>(
    runtime: &Arc<dyn Runtime>,
    at: Instant,
    future: F,
) -> Option<F::Output> {
    match select(pin!(future), runtime.sleep_until(at)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

/// Waits for the first of two.
pub async fn either<A: Future, B: Future>(a: A, b: B) {
    select(pin!(a), pin!(b)).await;
}
