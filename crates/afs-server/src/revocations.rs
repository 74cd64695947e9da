//! The devices that were revoked, as far as this server has heard (Join notes 6). A server with the databases looks there; others ask the
//! database servers every two minutes. A server that has not heard for ten minutes refuses the tokens of all devices, unless its
//! configuration is lenient.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use afs_admin::devices::DeviceDb;
use afs_celldb::Database;
use afs_celldb::devices::Devices;
use rx::Runtime;
use rx_proto::time::Instant;

use crate::config::Revocation;

/// The time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(120);

/// The time until the next question after one that was not answered.
const RETRY_AFTER: Duration = Duration::from_secs(15);

/// What was heard longer ago is not relied on: a device that was revoked ends within this time at all servers.
const OLD_AFTER: Duration = Duration::from_secs(600);

/// The source of the list.
pub(crate) enum Source {
    /// The database of this process.
    Local(Arc<Database<Devices>>),
    /// The cell's database servers.
    Remote(DeviceDb),
}

/// What this server knows of revoked devices.
pub(crate) struct Revocations {
    runtime: Arc<dyn Runtime>,
    policy: Revocation,
    known: Known,
}

enum Known {
    Local(Arc<Database<Devices>>),
    Heard(RwLock<Heard>),
}

/// The list as it was heard last.
#[derive(Default)]
struct Heard {
    at: Option<Instant>,
    version: u64,
    devices: BTreeSet<u32>,
    /// The log says that it is too old.
    is_old_told: bool,
}

impl fmt::Debug for Revocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocations").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Revocations {
    /// Knows of the devices in this source, and asks again and again for as long as it is there.
    pub(crate) fn new(source: Source, policy: Revocation, runtime: &Arc<dyn Runtime>) -> Arc<Self> {
        let (known, remote) = match source {
            Source::Local(database) => (Known::Local(database), None),
            Source::Remote(servers) => (Known::Heard(RwLock::default()), Some(servers)),
        };
        let this = Arc::new(Self { runtime: Arc::clone(runtime), policy, known });
        if let Some(servers) = remote {
            runtime.spawn(Box::pin(ask(Arc::downgrade(&this), servers, Arc::clone(runtime))));
        }
        this
    }

    /// True if the token of this device is not to be taken.
    pub(crate) fn refuses(&self, device: u32) -> bool {
        let is_strict = self.policy == Revocation::Strict;
        match &self.known {
            Known::Local(database) => {
                let is_old = database.freshness().is_some_and(|freshness| freshness.age > OLD_AFTER);
                // A number that was never given out is of a database that was put back to an older state.
                is_strict && is_old
                    || database
                        .read(|devices| devices.device(device).is_none_or(|device| device.revoked != 0))
            }
            Known::Heard(heard) => {
                let heard = heard.read().unwrap_or_else(PoisonError::into_inner);
                heard.refuses(self.runtime.now(), self.policy, device)
            }
        }
    }

    /// Takes what the database servers have said; how long to wait until the next question.
    fn take(&self, said: Result<(u64, Vec<u32>), String>) -> Duration {
        let Known::Heard(heard) = &self.known else { return ASK_EVERY };
        let mut heard = heard.write().unwrap_or_else(PoisonError::into_inner);
        heard.take(self.runtime.now(), self.policy, said)
    }

    fn version(&self) -> u64 {
        match &self.known {
            Known::Local(_) => 0,
            // Before anything was heard, the whole list is wanted, whatever its version.
            Known::Heard(heard) => {
                let heard = heard.read().unwrap_or_else(PoisonError::into_inner);
                if heard.at.is_some() { heard.version } else { u64::MAX }
            }
        }
    }
}

impl Heard {
    fn is_old(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| now.since(at) > OLD_AFTER)
    }

    fn refuses(&self, now: Instant, policy: Revocation, device: u32) -> bool {
        policy == Revocation::Strict && self.is_old(now) || self.devices.contains(&device)
    }

    fn take(&mut self, now: Instant, policy: Revocation, said: Result<(u64, Vec<u32>), String>) -> Duration {
        match said {
            Ok((version, devices)) => {
                if self.at.is_none() || version != self.version {
                    tracing::info!(version, count = devices.len(), "heard which devices were revoked");
                    self.devices = devices.into_iter().collect();
                    self.version = version;
                }
                (self.at, self.is_old_told) = (Some(now), false);
                ASK_EVERY
            }
            Err(error) => {
                if self.is_old(now) && !std::mem::replace(&mut self.is_old_told, true) {
                    let then = match policy {
                        Revocation::Strict => "tokens of devices are refused until they do",
                        Revocation::Lenient => "devices that were revoked since are still let in",
                    };
                    tracing::warn!(error, then, "the database servers do not say which devices were revoked");
                }
                RETRY_AFTER
            }
        }
    }
}

async fn ask(revocations: Weak<Revocations>, servers: DeviceDb, runtime: Arc<dyn Runtime>) {
    loop {
        let Some(since) = revocations.upgrade().map(|revocations| revocations.version()) else { return };
        let said = servers.revoked(since).await.map_err(|error| error.to_string());
        let Some(wait) = revocations.upgrade().map(|revocations| revocations.take(said)) else { return };
        runtime.sleep_until(runtime.now() + wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn silent() -> Result<(u64, Vec<u32>), String> {
        Err("no answer".to_owned())
    }

    #[test]
    fn a_revoked_device_is_refused_from_the_next_answer_on() {
        let (mut heard, strict) = (Heard::default(), Revocation::Strict);
        assert!(heard.refuses(at(0), strict, 1), "nothing was heard yet");
        assert_eq!(heard.take(at(0), strict, Ok((0, vec![]))), ASK_EVERY);
        assert!(!heard.refuses(at(0), strict, 1) && !heard.refuses(at(120), strict, 1));
        heard.take(at(120), strict, Ok((1, vec![1, 3])));
        assert!(heard.refuses(at(120), strict, 1) && !heard.refuses(at(120), strict, 2));
        // The list of a version that is known is not said again.
        heard.take(at(240), strict, Ok((1, vec![])));
        assert!(heard.refuses(at(240), strict, 1) && heard.refuses(at(240), strict, 3));
        // A database that was put back to an older state has another list.
        heard.take(at(360), strict, Ok((0, vec![])));
        assert!(!heard.refuses(at(360), strict, 1));
    }

    #[test]
    fn what_is_ten_minutes_old_is_not_relied_on_unless_the_server_is_lenient() {
        for (policy, refuses) in [(Revocation::Strict, true), (Revocation::Lenient, false)] {
            let mut heard = Heard::default();
            assert_eq!(heard.refuses(at(0), policy, 1), refuses, "before the first answer");
            heard.take(at(0), policy, Ok((1, vec![7])));
            assert_eq!(heard.take(at(600), policy, silent()), RETRY_AFTER);
            assert!(!heard.refuses(at(600), policy, 1) && heard.refuses(at(600), policy, 7));
            assert_eq!(heard.refuses(at(601), policy, 1), refuses);
            assert!(heard.refuses(at(601), policy, 7), "revoked is revoked");
            heard.take(at(700), policy, Ok((1, vec![])));
            assert!(!heard.refuses(at(700), policy, 1) && heard.refuses(at(700), policy, 7));
        }
    }
}
