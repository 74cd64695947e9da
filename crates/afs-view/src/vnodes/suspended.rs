//! Finding out that this program did not run for a while: it was stopped by a signal, or its machine slept. Servers have given up telling
//! it what changed meanwhile, and say so only when it next asks them for something: until then its promises would be believed. Its locks
//! may have ended, or are about to.
//!
//! A silent server is another matter: promises hold while it is away.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rx::Runtime;
use rx_proto::time::Instant;

use crate::data::locks::Locks;
use crate::events::{Change, Invalidations};
use afs_reach::closing::Closing;
use afs_reach::fid::Fid;
use afs_reach::table::Servers;

/// The time between two moments at which a running client is seen to run.
const SEE_EVERY: Duration = Duration::from_millis(500);

/// A client that was not seen for so long did not run: shorter than a server goes on trying to reach a client, longer than a busy machine lets it wait.
pub const LAPSE: Duration = Duration::from_secs(3);

/// Detects that the machine slept: knows when the client was last seen to run, by a clock that goes on meanwhile, and who
/// learns of it.
#[derive(Debug)]
pub struct SuspendDetector {
    seen: AtomicU64,
    /// Held by the one who finds that it did not run, until no promise is believed: others wait for that.
    finding: Mutex<()>,
    /// The servers whose promises are not believed then.
    servers: Arc<Servers>,
    invalidations: Arc<Invalidations>,
    locks: Arc<Locks>,
    lapse: Duration,
}

impl SuspendDetector {
    /// Makes the detector, at a time when the client runs.
    pub fn new(
        now: Instant,
        servers: Arc<Servers>,
        invalidations: Arc<Invalidations>,
        locks: Arc<Locks>,
    ) -> Self {
        Self {
            seen: AtomicU64::new(now.as_nanos()),
            finding: Mutex::default(),
            servers,
            invalidations,
            locks,
            lapse: LAPSE,
        }
    }

    /// Takes a client for suspended that was not seen for so long, in place of [`LAPSE`].
    #[must_use]
    pub fn after(self, lapse: Duration) -> Self {
        Self { lapse, ..self }
    }

    /// Notes that the client runs now. If it did not until then, no promise is believed when this returns, and all is to be looked at again
    /// from this root on.
    pub fn notice(&self, now: Instant, root: Fid) {
        let Some(lapse) = self.see(now) else { return };
        tracing::info!(?lapse, "the client was suspended: it asks servers again what has changed");
        self.invalidations.mention(root, Change::Everything);
        self.locks.renew_all();
    }

    /// Notes that the client runs now. If it was suspended, no promise is believed any longer, and one caller is told for how long it was.
    fn see(&self, now: Instant) -> Option<Duration> {
        let lapse = || now.since(Instant::from_nanos(self.seen.load(Ordering::Acquire)));
        if lapse() < SEE_EVERY {
            return None;
        }
        let _finding = self.finding.lock().unwrap_or_else(PoisonError::into_inner);
        let found = Some(lapse()).filter(|lapse| *lapse >= self.lapse);
        if found.is_some() {
            self.servers.all().iter().for_each(|server| server.reset());
        }
        self.seen.fetch_max(now.as_nanos(), Ordering::AcqRel);
        found
    }
}

/// Sees a client run until it begins to end or is gone: `root` is its root directory.
pub async fn watch(detector: Weak<SuspendDetector>, runtime: Arc<dyn Runtime>, root: Fid, closing: Closing) {
    while let Some(detector) = detector.upgrade().filter(|_| !closing.has_begun()) {
        detector.notice(runtime.boot_time(), root);
        drop(detector);
        runtime.sleep_until(runtime.now() + SEE_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::locks::calls::LockCalls;
    use crate::events::Audience;
    use crate::names::dynroot;
    use crate::vnodes::mounts::Mounts;
    use afs_reach::fid::CellIndex;
    use afs_reach::table::ServerKind;
    use afs_sim::Sim;
    use std::net::SocketAddr;

    fn at(millis: u64) -> Instant {
        Instant::ORIGIN + Duration::from_millis(millis)
    }

    fn detector(now: Instant) -> SuspendDetector {
        let sim = Arc::new(Sim::new(Duration::ZERO));
        let locks = Locks::new(sim.clone(), Weak::<LockCalls>::new());
        let invalidations = Invalidations::new(sim, Arc::<Mounts>::default());
        SuspendDetector::new(now, Arc::<Servers>::default(), Arc::new(invalidations), Arc::new(locks))
    }

    #[test]
    fn a_client_that_did_not_run_for_a_while_is_told_so_once() {
        let detector = detector(at(1000));
        for millis in [1000, 1400, 1900, 2500, 5400] {
            assert_eq!(detector.see(at(millis)), None, "after {millis} ms");
        }
        assert_eq!(detector.see(at(8400)), Some(Duration::from_secs(3)));
        assert_eq!(detector.see(at(8400)), None);
        assert_eq!(detector.see(at(8300)), None, "a thread that read the clock earlier");
    }

    #[test]
    fn no_promise_is_believed_after_a_time_in_which_the_client_did_not_run() {
        let detector = detector(at(0));
        let socket = SocketAddr::from(([192, 0, 2, 1], 7000));
        let server = detector.servers.get_or_add(ServerKind::File, CellIndex(1), None, &[socket]).unwrap();
        let mut notices = detector.invalidations.subscribe(Audience::Anybody);
        let before = server.resets();
        detector.notice(at(2900), dynroot::ROOT);
        assert_eq!(server.resets(), before, "a busy machine");
        detector.notice(at(60_000), dynroot::ROOT);
        assert_ne!(server.resets(), before);
        let changed = notices.next_blocking().unwrap().changed;
        assert_eq!((changed.fid, changed.change), (dynroot::ROOT, Change::Everything));
    }
}
