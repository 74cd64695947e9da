//! Finding out that this program did not run for a while: it was stopped by a signal, or its machine slept. Servers have given up telling
//! it what changed meanwhile, and say so only when it next asks them for something: until then its promises would be believed.
//!
//! A silent server is another matter: promises hold while it is away.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rx_proto::time::Instant;

use crate::client::{Client, Inner};
use crate::events::Change;

/// How often a running client is seen to run.
const SEE_EVERY: Duration = Duration::from_millis(500);

/// Not seen for so long, it did not run: shorter than a server goes on trying to reach a client, longer than a busy machine lets it wait.
const LAPSE: Duration = Duration::from_secs(3);

/// When the client was last seen to run, by a clock that goes on while the machine sleeps.
#[derive(Debug)]
pub(crate) struct SuspendDetector {
    seen: AtomicU64,
}

impl SuspendDetector {
    /// It runs now.
    pub(crate) fn new(now: Instant) -> Self {
        Self { seen: AtomicU64::new(now.as_nanos()) }
    }

    /// It runs now. For how long it did not before, if it was suspended; one caller is told.
    fn see(&self, now: Instant) -> Option<Duration> {
        let lapse = |seen| now.since(Instant::from_nanos(seen));
        let seen = self.seen.load(Ordering::Acquire);
        if lapse(seen) < SEE_EVERY {
            return None;
        }
        let before = self.seen.fetch_max(now.as_nanos(), Ordering::AcqRel);
        Some(lapse(before)).filter(|lapse| *lapse >= LAPSE)
    }
}

impl Client {
    /// To be called before something is answered from memory: if the client was suspended until now, promises that were made before
    /// are not believed any longer.
    pub fn notice_suspension(&self) {
        self.inner.notice_suspension();
    }
}

impl Inner {
    fn notice_suspension(&self) {
        let Some(lapse) = self.suspended.see(self.runtime.boot_time()) else { return };
        tracing::info!(?lapse, "the client was suspended: it asks servers again what has changed");
        for server in self.servers.all() {
            server.reset();
        }
        self.invalidations.mention(self.root(), Change::Everything);
    }
}

/// Sees it run, for as long as it is there.
pub(crate) async fn watch(client: Weak<Inner>) {
    while let Some(inner) = client.upgrade().filter(|inner| !inner.closing.has_begun()) {
        inner.notice_suspension();
        let runtime = Arc::clone(&inner.runtime);
        drop(inner);
        runtime.sleep_until(runtime.now() + SEE_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_did_not_run_for_a_while_is_told_so_once() {
        let at = |millis| Instant::ORIGIN + Duration::from_millis(millis);
        let detector = SuspendDetector::new(at(1000));
        for millis in [1000, 1400, 1900, 2500, 5400] {
            assert_eq!(detector.see(at(millis)), None, "after {millis} ms");
        }
        assert_eq!(detector.see(at(8400)), Some(Duration::from_secs(3)));
        assert_eq!(detector.see(at(8400)), None);
        assert_eq!(detector.see(at(8300)), None, "a thread that read the clock earlier");
    }
}
