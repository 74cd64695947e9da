//! Looks at the partitions from time to time, and says in the log when one has failed, is full, or is well again. What an
//! operation meets, the services write down with the volume's name; what goes wrong between operations is seen here only.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use afs_volserver::Partitions;
use afs_volume::{Partition, VolumeError};
use afs_wire::ids::PartitionId;
use rx::Runtime;

/// How often they are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Names of volumes in one line of the log.
const MAX_NAMES: usize = 20;

/// How a partition is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Health {
    Well,
    /// There is no room for changes; what is there is served.
    Full,
    /// Its volumes are offline, and why.
    Failed(String),
}

impl Health {
    /// Of what was seen; `None` where the file system does not say how much room it has.
    fn of(failure: Option<VolumeError>, free_kib: Option<u64>) -> Self {
        match (failure, free_kib) {
            (Some(error), _) => Self::Failed(error.to_string()),
            (None, Some(0)) => Self::Full,
            (None, _) => Self::Well,
        }
    }

    fn seen(partition: &Partition) -> Self {
        Self::of(partition.failure(), partition.space().ok().map(|space| space.free_kib))
    }
}

/// Names of volumes, some of them if there are many.
struct Names<'a>(&'a Partition);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volumes = self.0.volumes();
        for (n, volume) in volumes.iter().take(MAX_NAMES).enumerate() {
            write!(f, "{}{}", if n == 0 { "" } else { " " }, volume.name())?;
        }
        match volumes.len().checked_sub(MAX_NAMES) {
            Some(more) if more > 0 => write!(f, " and {more} more"),
            _ => Ok(()),
        }
    }
}

/// Looks at the partitions for as long as the server is there.
pub(crate) async fn watch(partitions: Partitions, runtime: Arc<dyn Runtime>, alive: Weak<()>) {
    let mut known: Vec<Health> = partitions.iter().map(|_| Health::Well).collect();
    while alive.strong_count() > 0 {
        let all = partitions.clone();
        // A file system that hangs holds up this thread alone.
        let look = move || all.iter().map(|(_, partition)| Health::seen(partition)).collect::<Vec<_>>();
        let Ok(seen) = tokio::task::spawn_blocking(look).await else { return };
        for (((id, partition), known), seen) in partitions.iter().zip(&mut known).zip(seen) {
            if *known != seen {
                say(id, partition, &seen);
                *known = seen;
            }
        }
        runtime.sleep_until(runtime.now() + EVERY).await;
    }
}

fn say(id: PartitionId, partition: &Partition, health: &Health) {
    match health {
        Health::Well => tracing::info!(partition = %id, "the partition is well again"),
        Health::Full => tracing::error!(
            partition = %id,
            "the partition is full: remove or move volumes; what is there is served"
        ),
        Health::Failed(error) => tracing::error!(
            partition = %id,
            error,
            volumes = %Names(partition),
            "the partition's volumes are offline, as what is on disk may be something else than what was told: repair the disk, \
             then bring one back with 'vos online', which opens the partition again"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_more_than_that_it_is_full() {
        assert_eq!(Health::of(None, Some(1)), Health::Well);
        assert_eq!(Health::of(None, Some(0)), Health::Full);
        assert_eq!(Health::of(None, None), Health::Well);
        let failed = Health::of(Some(VolumeError::DiskFull), Some(0));
        assert!(matches!(failed, Health::Failed(why) if why.contains("full")));
    }
}
