//! Blocking work: done on tokio's threads for that, so that the tasks of calls go on; or right here where there is no
//! tokio, as in a simulation, in which nothing else would run meanwhile anyway.

use std::panic;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs work that may block on the disk, and waits for it. A panic of the work becomes the caller's.
pub async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match threads() {
        // Boxed, so that a task is compiled once for each kind of result, and not for each kind of work.
        Some(handle) => match handle.spawn_blocking(Box::new(work) as Box<dyn FnOnce() -> T + Send>).await {
            Ok(value) => value,
            Err(error) => panic::resume_unwind(error.into_panic()),
        },
        None => work(),
    }
}

/// Starts work that may block, without waiting for it.
pub fn in_background(work: impl FnOnce() + Send + 'static) {
    match threads() {
        Some(handle) => drop(handle.spawn_blocking(Box::new(work) as Box<dyn FnOnce() + Send>)),
        None => work(),
    }
}

/// The runtime whose threads do blocking work, if there is one with more than one thread.
pub fn threads() -> Option<Handle> {
    Handle::try_current().ok().filter(|handle| handle.runtime_flavor() != RuntimeFlavor::CurrentThread)
}
