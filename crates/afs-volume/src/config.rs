//! The configuration of a partition: when changes are forced onto the disk, and what it may use.

use std::time::Duration;

/// The policy when changes are forced onto the disk, so that they outlast a power loss. The death of the process
/// loses nothing in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// A sync before an operation returns. Costs each a few milliseconds, shared by those that wait at the same time.
    Always,
    /// So often; a power loss costs at most what was done in that time, and in that of the sync itself.
    Every(Duration),
}

/// The configuration of a partition.
#[derive(Debug, Clone)]
pub struct Config {
    /// See [`SyncPolicy`]. Default: every second.
    pub sync: SyncPolicy,
    /// KiB of the file system that are left free: with less, what needs space is [`VolumeError::DiskFull`](crate::VolumeError::DiskFull). The log
    /// and the store need room to write down removals too. Default: 64 MiB, which is two segments of the log.
    pub reserve_kib: u64,
    /// Bytes of the store that are kept in memory. Default: 64 MiB; less than the metadata in use costs reads.
    pub cache_bytes: usize,
    /// Bytes of a segment of the log. Default: 32 MiB. As much is in memory; starting after a crash reads twice that.
    pub log_bytes: u64,
    /// True if a thread does what has to be done from time to time ([`Partition::maintain`](crate::Partition::maintain)). Default: yes.
    pub has_thread: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sync: SyncPolicy::Every(Duration::from_secs(1)),
            reserve_kib: 64 << 10,
            cache_bytes: 64 << 20,
            log_bytes: 32 << 20,
            has_thread: true,
        }
    }
}
