//! Alarms: troubles of a volume, and not of what was asked of it, are written down with the volume's name; so is a volume
//! without room left by its quota, which an administrator can change. On a full disk every call has the same to say, so each is
//! written down once in a while, and says how many there were.

use std::mem::{self, Discriminant};
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use afs_volume::{Volume, VolumeError};
use afs_wire::ids::VolumeId;
use lru::LruCache;
use rx_proto::time::Instant;

/// The same of the same volume is written down so often at most: enough to see whether it goes on.
const EVERY: Duration = Duration::from_secs(10);

/// Volumes, and kinds of error, that are remembered; with more, those that came least recently are forgotten, and said again.
const MAX_REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The alarms that were written down, and when.
#[derive(Debug, Default)]
pub(crate) struct Alarms(Mutex<LastLogged>);

type What = (VolumeId, Discriminant<VolumeError>);

/// The time when each alarm was last written, and how often it came since.
#[derive(Debug)]
struct LastLogged(LruCache<What, (Instant, u64)>);

impl Default for LastLogged {
    fn default() -> Self {
        Self(LruCache::new(MAX_REMEMBERED))
    }
}

impl LastLogged {
    /// Returns how often the alarm came since it was last written, if it is to be written now.
    fn is_due(&mut self, now: Instant, what: What) -> Option<u64> {
        if let Some((at, unsaid)) = self.0.get_mut(&what)
            && now.since(*at) < EVERY
        {
            *unsaid += 1;
            return None;
        }
        Some(self.0.put(what, (now, 0)).map_or(0, |(_, unsaid)| unsaid))
    }
}

impl Alarms {
    /// An operation has failed. Writes it down if an administrator should hear of it.
    pub(crate) fn note(&self, now: Instant, volume: &Volume, error: &VolumeError) {
        let is_over_quota = matches!(error, VolumeError::OverQuota(_));
        if !is_over_quota && !error.is_alarming() {
            return;
        }
        let what = (volume.id(), mem::discriminant(error));
        let due = self.0.lock().unwrap_or_else(PoisonError::into_inner).is_due(now, what);
        let Some(more) = due else { return };
        let (id, name) = (volume.id().0, volume.name());
        if is_over_quota {
            // Nothing is broken: it does what it was told to.
            tracing::warn!(volume = id, name, %error, more, "a volume's quota is used up");
        } else {
            tracing::error!(volume = id, name, %error, more, "a volume could not be changed or read");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_in_a_while_with_how_often_it_came() {
        let mut logged = LastLogged::default();
        let full = |volume| (VolumeId(volume), mem::discriminant(&VolumeError::DiskFull));
        let at = |seconds| Instant::ORIGIN + Duration::from_secs(seconds);
        assert_eq!(logged.is_due(at(1), full(5)), Some(0));
        assert_eq!(logged.is_due(at(2), full(5)), None);
        assert_eq!(logged.is_due(at(10), full(5)), None);
        assert_eq!(logged.is_due(at(10), full(6)), Some(0), "of another volume");
        let other = (VolumeId(5), mem::discriminant(&VolumeError::NoEntry));
        assert_eq!(logged.is_due(at(10), other), Some(0), "something else");
        assert_eq!(logged.is_due(at(11), full(5)), Some(2));
        assert_eq!(logged.is_due(at(12), full(5)), None);
    }

    #[test]
    fn a_server_of_many_volumes_remembers_a_bounded_number() {
        let mut logged = LastLogged::default();
        for volume in 0..10_000 {
            let what = (VolumeId(volume), mem::discriminant(&VolumeError::DiskFull));
            assert_eq!(logged.is_due(Instant::ORIGIN, what), Some(0));
            assert!(logged.0.len() <= MAX_REMEMBERED.get());
        }
    }
}
