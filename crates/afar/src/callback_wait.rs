//! How long a change waits for those who have copies of what it changes. Tests set it: on a busy machine a client may stand still for
//! longer than a person wants to wait, and what it shows then is allowed but proves nothing.

use afs_client::Config as ClientConfig;
use afs_server::Config as ServerConfig;
use std::time::Duration;

/// Returns the seconds in the environment variable `AFAR_CALLBACK_WAIT`, if it is set.
fn seconds() -> Option<u32> {
    std::env::var("AFAR_CALLBACK_WAIT").ok()?.parse().ok()
}

/// Has the servers wait for clients for so long.
pub(crate) fn of_server(config: &mut ServerConfig) {
    if let Some(seconds) = seconds() {
        config.file.callback_wait_ms = seconds.saturating_mul(1000);
    }
}

/// Has a client wait for its kernel for so long, and not take itself for suspended before servers give it up.
pub(crate) fn of_client(config: &mut ClientConfig) {
    if let Some(seconds) = seconds() {
        config.handling_max = Duration::from_secs(seconds.into());
        config.lapse = config.handling_max;
    }
}
