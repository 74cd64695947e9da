//! Looks at the partitions from time to time: publishes how they are as metrics, and says in the log when one has failed, is
//! full, or is well again. What an operation meets, the services write down with the volume's name; what goes wrong
//! between operations is seen here only.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use afs_volserver::{Partitions, snapshot_space};
use afs_volume::{Partition, Space, VolumeError};
use afs_wire::ids::PartitionId;
use metrics::Unit;
use rx::Runtime;
use rx::blocking::on_a_thread;

/// The time between two looks at them.
const EVERY: Duration = Duration::from_secs(1);

/// Looks at the partitions between two at their snapshots, which ask each of them.
const SNAPSHOTS_EVERY: u32 = 20;

/// With less room for volumes than that a partition is called full, in KiB: hardly anything can be stored.
const FULL_BELOW_KIB: u64 = 1024;

/// Names of volumes in one line of the log.
const MAX_NAMES: usize = 20;

/// The state of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Health {
    Well,
    /// There is no room for changes; what is there is served.
    Full,
    /// Its volumes are offline, and why.
    Failed(String),
}

impl Health {
    /// Returns the state that follows from these facts; `None` where the file system does not say how much room it has.
    fn of(failure: Option<VolumeError>, free_kib: Option<u64>) -> Self {
        match (failure, free_kib) {
            (Some(error), _) => Self::Failed(error.to_string()),
            (None, Some(free)) if free < FULL_BELOW_KIB => Self::Full,
            (None, _) => Self::Well,
        }
    }

    fn seen(id: PartitionId, partition: &Partition, counts_snapshots: bool) -> Self {
        let space = partition.space().ok();
        let this = Self::of(partition.failure(), space.map(|space| space.free_kib));
        publish(id, partition, space, &this);
        if counts_snapshots {
            publish_snapshots(id, partition);
        }
        this
    }
}

/// The gauges of a partition: name, unit, meaning.
const BYTES: (&str, Unit, &str) =
    ("afs_partition_bytes", Unit::Bytes, "Size of the partition's file system.");
const FREE_BYTES: (&str, Unit, &str) =
    ("afs_partition_free_bytes", Unit::Bytes, "Bytes of the partition that volumes can still use.");
const VOLUMES: (&str, Unit, &str) = ("afs_partition_volumes", Unit::Count, "Volumes on the partition.");
const FAILED: (&str, Unit, &str) = (
    "afs_partition_failed",
    Unit::Count,
    "1 while the partition's volumes are offline because its disk failed, otherwise 0.",
);

const SNAPSHOT_BYTES: (&str, Unit, &str) = (
    "afs_partition_snapshot_bytes",
    Unit::Bytes,
    "Bytes that only snapshots hold, counted every 20 seconds.",
);
const SNAPSHOT_OVER_BYTES: (&str, Unit, &str) =
    ("afs_partition_snapshot_over_bytes", Unit::Bytes, "Those of them that are over the volumes' limits.");
const SNAPSHOTS_NEAR_LIMIT: (&str, Unit, &str) = (
    "afs_partition_snapshots_near_limit",
    Unit::Count,
    "Volumes whose snapshots hold more than 80 % of what they may.",
);

/// All of them.
const GAUGES: [(&str, Unit, &str); 7] =
    [BYTES, FREE_BYTES, VOLUMES, FAILED, SNAPSHOT_BYTES, SNAPSHOT_OVER_BYTES, SNAPSHOTS_NEAR_LIMIT];

fn set(id: PartitionId, (name, ..): (&'static str, Unit, &str), value: f64) {
    metrics::gauge!(name, "partition" => id.to_string()).set(value);
}

fn publish_snapshots(id: PartitionId, partition: &Partition) {
    let space = snapshot_space(partition);
    set(id, SNAPSHOT_BYTES, space.held_bytes as f64);
    set(id, SNAPSHOT_OVER_BYTES, space.over_bytes as f64);
    set(id, SNAPSHOTS_NEAR_LIMIT, space.near_limit as f64);
}

fn publish(id: PartitionId, partition: &Partition, space: Option<Space>, health: &Health) {
    let gauge = |gauge, value| set(id, gauge, value);
    if let Some(Space { total_kib, free_kib }) = space {
        gauge(BYTES, (total_kib << 10) as f64);
        gauge(FREE_BYTES, (free_kib << 10) as f64);
    }
    gauge(VOLUMES, partition.volumes().len() as f64);
    gauge(FAILED, f64::from(u8::from(matches!(health, Health::Failed(_)))));
}

/// Names of volumes, some of them if there are many. Snapshots have the names of others.
struct Names<'a>(&'a Partition);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut volumes = self.0.volumes();
        volumes.retain(|volume| !volume.is_snapshot());
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
    for (name, unit, meaning) in GAUGES {
        metrics::describe_gauge!(name, unit, meaning);
    }
    let mut looks: u32 = 0;
    while alive.strong_count() > 0 {
        let all = partitions.clone();
        let counts_snapshots = looks.is_multiple_of(SNAPSHOTS_EVERY);
        looks = looks.wrapping_add(1);
        // A file system that hangs holds up this thread alone.
        let look = move || -> Vec<Health> {
            all.iter().map(|(id, partition)| Health::seen(id, partition, counts_snapshots)).collect()
        };
        let seen = on_a_thread(look).await;
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
            "the partition's volumes are offline, as the disk may lack what clients were told: repair the disk, \
             then bring one back with 'vos online', which opens the partition again"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_gauge() {
        let page = include_str!("../../../docs/seeing.md");
        for (name, _, meaning) in GAUGES {
            assert!(page.contains(&format!("| `{name}` |")) && page.contains(meaning), "{name}: {meaning}");
        }
    }

    #[test]
    fn a_failure_counts_more_than_that_it_is_full() {
        assert_eq!(Health::of(None, Some(FULL_BELOW_KIB)), Health::Well);
        assert_eq!(Health::of(None, Some(FULL_BELOW_KIB - 1)), Health::Full);
        assert_eq!(Health::of(None, Some(0)), Health::Full);
        assert_eq!(Health::of(None, None), Health::Well);
        let failed = Health::of(Some(VolumeError::DiskFull), Some(0));
        assert!(matches!(failed, Health::Failed(why) if why.contains("full")));
    }
}
