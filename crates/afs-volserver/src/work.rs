//! Where blocking work is done: on tokio's threads for that, or right here where there is no tokio, as in a simulation, in
//! which nothing else would run meanwhile anyway.

use std::panic;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does what may block without being waited for.
pub(crate) fn in_background(work: impl FnOnce() + Send + 'static) {
    let handle = Handle::try_current().ok();
    match handle.filter(|handle| handle.runtime_flavor() != RuntimeFlavor::CurrentThread) {
        Some(handle) => drop(handle.spawn_blocking(work)),
        None => work(),
    }
}

/// Does what may block on the disk, and waits for it. A panic of the work is the caller's.
pub(crate) async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let handle = Handle::try_current().ok();
    match handle.filter(|handle| handle.runtime_flavor() != RuntimeFlavor::CurrentThread) {
        Some(handle) => match handle.spawn_blocking(work).await {
            Ok(value) => value,
            Err(error) => panic::resume_unwind(error.into_panic()),
        },
        None => work(),
    }
}
