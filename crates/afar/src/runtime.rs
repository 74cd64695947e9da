//! The threads of servers, mounts and whatever else does many things at once. A command that makes one call after another
//! has one thread, see `calls.rs`.

use tokio::runtime::{Builder, Runtime};

/// Starts a thread for each core.
///
/// # Errors
///
/// Says that there are none.
pub(crate) fn start() -> Result<Runtime, String> {
    let runtime = Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| format!("no threads can be started: {error}"))
}
