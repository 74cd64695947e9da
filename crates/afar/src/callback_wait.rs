//! How long a change waits for those who have copies of what it changes. Tests set it: on a busy machine a client may stand still for
//! longer than a person wants to wait, and what it shows then is allowed but proves nothing.

use afs_client::Config as ClientConfig;
use afs_server::Config as ServerConfig;
use std::time::Duration;

const NAME: &str = "AFAR_CALLBACK_WAIT";

/// The longest.
const SECONDS_MAX: u16 = 3600;

/// Returns the time in the environment variable `AFAR_CALLBACK_WAIT`, in seconds, if it is set.
fn time() -> Result<Option<Duration>, String> {
    let Some(text) = std::env::var_os(NAME) else { return Ok(None) };
    match text.to_str().and_then(|text| text.parse().ok()) {
        Some(seconds @ 1..=SECONDS_MAX) => Ok(Some(Duration::from_secs(seconds.into()))),
        _ => Err(format!("{NAME} is for tests: 1 to {SECONDS_MAX} seconds, and not {text:?}")),
    }
}

/// Has the servers wait for clients for so long.
pub(crate) fn of_server(config: &mut ServerConfig) -> Result<(), String> {
    if let Some(time) = time()? {
        config.file.callback_wait_ms = time.as_millis() as u32;
    }
    Ok(())
}

/// Has a client wait for its kernel for so long, and not take itself for suspended before servers give it up.
pub(crate) fn of_client(config: &mut ClientConfig) -> Result<(), String> {
    if let Some(time) = time()? {
        (config.handling_max, config.lapse) = (time, time);
    }
    Ok(())
}
