//! SIGHUP for what runs in the foreground: its terminal was closed, so it is to stop as by Ctrl-C. Where it was ignored when the process
//! began (`nohup`), it stays ignored.

use std::fs;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The bit of SIGHUP, signal 1, in the ignored signals of `/proc/self/status`: the lowest.
const HANGUP: u64 = 1;

/// Waits for SIGHUP.
pub(crate) struct Hangup(Option<Signal>);

impl Hangup {
    /// Begins to listen, unless the signal is ignored. Must be called in a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the system has no way to.
    pub(crate) fn listen() -> Result<Self, String> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if is_ignored(&status) {
            return Ok(Self(None));
        }
        let signal =
            signal(SignalKind::hangup()).map_err(|error| format!("cannot wait for signals: {error}"))?;
        Ok(Self(Some(signal)))
    }

    /// Returns when the signal has come; never where it is ignored.
    pub(crate) async fn told(&mut self) {
        match &mut self.0 {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }
}

fn is_ignored(status: &str) -> bool {
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).is_some_and(|bits| bits & HANGUP != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_nohup_ignores_stays_ignored() {
        assert!(is_ignored("Name:\tafar\nSigIgn:\t0000000000001001\n"));
        assert!(!is_ignored("SigIgn:\t0000000000001000\n"));
        assert!(!is_ignored(""));
    }
}
