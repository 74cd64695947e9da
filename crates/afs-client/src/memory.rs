//! The division of a client's memory: one number in, and for each cache its limit.
//!
//! This module tells the shares; each cache keeps to its own. What grows with the work of programs, and not with what
//! they have used of late (open files, data on their way to servers), has limits of its own, in `config`.

use afs_config::memory::{PARTS, Share, Used, total};

use crate::client::Client;
use crate::config::Config;

/// The memory of a client that is told nothing: enough to fill a path of 8 Gbit/s and 100 ms, and for 200,000 files in use.
pub const DEFAULT_BYTES: u64 = 1 << 30;

/// The least that a client runs with: below it, caches would be emptied before they are of use.
pub const LEAST_BYTES: u64 = 32 << 20;

/// The bytes that a status takes, with what is known of rights, promise and parent, and its place in the table (measured:
/// 490 bytes).
pub const STATUS_BYTES: u64 = 512;

/// The bytes that a node takes that the kernel knows, with one name of 13 bytes in its directory's table (measured: 670 to
/// 710 bytes).
pub const NODE_BYTES: u64 = 768;

/// The bytes that a file of the cache takes in the table of its index (estimated).
pub const CACHED_FILE_BYTES: u64 = 128;

/// Statuses, nodes and cached files below which no memory is too small: a directory of some size can be listed.
const ENTRIES_LEAST: u64 = 4096;

/// Returns the number of entries of this size that a share has room for.
fn entries(share: Share, memory_bytes: u64, each: u64) -> usize {
    usize::try_from((share.of(memory_bytes) / each).max(ENTRIES_LEAST)).unwrap_or(usize::MAX)
}

/// Statuses of files and directories.
pub const STATUSES: Share = Share { name: "statuses", parts: 8 };
/// Pages of directories.
pub const DIRECTORIES: Share = Share { name: "directories", parts: 4 };
/// Files that the kernel knows.
pub const NODES: Share = Share { name: "nodes", parts: 6 };
/// The table of the files that are in the cache.
pub const CACHED_FILES: Share = Share { name: "cached_files", parts: 6 };
/// The B-tree of the cache's index.
pub const INDEX: Share = Share { name: "index", parts: 2 };
/// The rows of the index that are not in its B-tree yet.
pub const INDEX_LOG: Share = Share { name: "index_log", parts: 2 };
/// Data of calls that have arrived and not been taken.
pub const RECEIVED: Share = Share { name: "received", parts: 16 };
/// Packets that have arrived and not been looked at.
pub const PACKETS: Share = Share { name: "packets", parts: 4 };
/// Data of files, where there is no folder for them.
pub const DATA: Share = Share { name: "data", parts: 16 };

/// All shares.
pub const SHARES: [Share; 9] =
    [STATUSES, DIRECTORIES, NODES, CACHED_FILES, INDEX, INDEX_LOG, RECEIVED, PACKETS, DATA];

const _: () = assert!(total(&SHARES) == PARTS);

impl Client {
    /// The use of each share, but for [`NODES`], which the mount counts.
    pub fn memory(&self) -> Vec<Used> {
        let (inner, config) = (&self.inner, self.config());
        let bytes_of = |count: usize, each| count as u64 * each;
        let used = |share, bytes, limit_bytes| Used { share, bytes, limit_bytes };
        let cache = inner.files.cache.usage();
        let data = config.cache.is_none().then_some(cache.bytes);
        let statuses = bytes_of(inner.vnodes.count(), STATUS_BYTES);
        let pages = inner.vnodes.page_bytes() as u64;
        vec![
            used(STATUSES, Some(statuses), bytes_of(config.status_entries, STATUS_BYTES)),
            used(DIRECTORIES, Some(pages), config.directory_bytes as u64),
            used(
                CACHED_FILES,
                Some(bytes_of(cache.files, CACHED_FILE_BYTES)),
                bytes_of(config.cached_files, CACHED_FILE_BYTES),
            ),
            used(INDEX, None, config.index_bytes as u64),
            used(INDEX_LOG, None, 2 * config.index_log_bytes),
            used(RECEIVED, None, config.received_bytes),
            used(PACKETS, None, config.packet_bytes as u64),
            used(DATA, data, config.data_bytes),
        ]
    }
}

impl Config {
    /// Shares out so much memory, whatever the caches were set to before.
    pub fn set_memory(&mut self, bytes: u64) {
        let bytes = bytes.max(LEAST_BYTES);
        let size = |share: Share| usize::try_from(share.of(bytes)).unwrap_or(usize::MAX);
        self.status_entries = entries(STATUSES, bytes, STATUS_BYTES);
        self.directory_bytes = size(DIRECTORIES);
        self.kernel_nodes = entries(NODES, bytes, NODE_BYTES);
        self.cached_files = entries(CACHED_FILES, bytes, CACHED_FILE_BYTES);
        self.index_bytes = size(INDEX);
        // The rows that are being collected, and those that are on their way into the B-tree.
        self.index_log_bytes = INDEX_LOG.of(bytes).div_euclid(2).clamp(1 << 20, 8 << 20);
        self.received_bytes = RECEIVED.of(bytes);
        self.packet_bytes = size(PACKETS);
        self.data_bytes = DATA.of(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_config::{CellName, CellServDb};

    fn with(bytes: u64) -> Config {
        let mut config = Config::new(CellName::new("a.test").unwrap(), CellServDb::default());
        config.set_memory(bytes);
        config
    }

    #[test]
    fn twice_the_memory_is_twice_of_each_cache() {
        let (one, two) = (with(256 << 20), with(512 << 20));
        assert_eq!(two.status_entries, 2 * one.status_entries);
        assert_eq!(two.kernel_nodes, 2 * one.kernel_nodes);
        assert_eq!(two.directory_bytes, 2 * one.directory_bytes);
        assert_eq!(two.received_bytes, 2 * one.received_bytes);
    }

    #[test]
    fn too_little_memory_is_still_enough_to_work_with() {
        let config = with(0);
        assert_eq!(config.status_entries, with(LEAST_BYTES).status_entries);
        assert!(config.kernel_nodes as u64 >= ENTRIES_LEAST && config.index_log_bytes >= 512 << 10);
        assert!(config.index_bytes > 0 && config.packet_bytes > 0);
    }

    #[test]
    fn the_administrators_guide_has_every_share() {
        let guide = include_str!("../../../docs/administration.md");
        for share in SHARES {
            let row = format!("| `{}` | {}/{PARTS} |", share.name, share.parts);
            assert!(guide.contains(&row), "docs/administration.md has no row {row}");
        }
    }
}
