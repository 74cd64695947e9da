//! The division of the servers' memory: one number in (`server.memory_mib`), and for each table and cache its limit. What a
//! setting asks for of one of them counts up to its share.

use afs_config::memory::{PARTS, Share, Used, total};
use afs_fileserver::HostLimits;
use metrics::Unit;

use crate::config::Config;

/// The least that servers run with, in MiB: below it, a client's promises would be broken before they are of use.
pub const LEAST_MIB: u32 = 32;

/// The bytes of a callback promise, in three tables (measured: 180 to 190 bytes).
const PROMISE_BYTES: u64 = 192;

/// The bytes of a client in the table of clients, with its addresses and counts.
const HOST_BYTES: u64 = 512;

/// The bytes of a connection without running calls, with its path.
const CONNECTION_BYTES: u64 = 1024;

/// Ports beside the file service's: volume service, databases, overseer.
const OTHER_PORTS: u64 = 4;

/// The least that packets which wait may take, in bytes: a burst from a client on a fast network.
const PACKETS_LEAST: u64 = 4 << 20;

/// Promises to call back.
pub const CALLBACKS: Share = Share { name: "callbacks", parts: 12 };
/// Clients that the file service knows.
pub const HOSTS: Share = Share { name: "hosts", parts: 4 };
/// Connections of the file service's port.
pub const CONNECTIONS: Share = Share { name: "connections", parts: 8 };
/// The B-trees of all partitions.
pub const BTREES: Share = Share { name: "btrees", parts: 4 };
/// The rows of all partitions that are not in their B-trees yet.
pub const LOGS: Share = Share { name: "logs", parts: 4 };
/// Data of stores that have arrived and not been taken.
pub const RECEIVED: Share = Share { name: "received", parts: 12 };
/// The same of callers without a name, who are kept to less.
pub const STRANGERS: Share = Share { name: "strangers", parts: 8 };
/// Packets that have arrived and not been looked at.
pub const PACKETS: Share = Share { name: "packets", parts: 4 };
/// The share of all other ports together, for which it is what the last four are for the file service.
pub const OTHERS: Share = Share { name: "other_ports", parts: 8 };

/// All shares.
pub const SHARES: [Share; 9] =
    [CALLBACKS, HOSTS, CONNECTIONS, BTREES, LOGS, RECEIVED, STRANGERS, PACKETS, OTHERS];

const _: () = assert!(total(&SHARES) == PARTS);

/// The limits of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Promises to call back.
    pub callbacks: usize,
    /// Clients that the file service knows.
    pub hosts: usize,
    /// Bytes of the B-trees of all partitions.
    btrees_bytes: u64,
    /// Bytes of the logs of all partitions in memory, and most bytes of a segment.
    logs_bytes: u64,
    segment_bytes: u64,
    /// The file service's port.
    pub file_port: Port,
    /// Each of the others.
    pub other_port: Port,
}

/// The limits of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Connections.
    pub connections: usize,
    /// Bytes of data that have arrived and not been taken.
    pub received_bytes: u64,
    /// The same of callers without a name.
    pub strangers_bytes: u64,
    /// Bytes of packets that have not been looked at.
    pub packet_bytes: usize,
}

/// The gauges of a memory, each with its meaning.
#[derive(Debug)]
pub struct Gauges {
    /// The gauge of each share's size.
    pub used: (&'static str, &'static str),
    /// The gauge of each share's limit.
    pub limit: (&'static str, &'static str),
}

impl Gauges {
    /// Says what they mean.
    pub fn describe(&self) {
        for (name, meaning) in [self.used, self.limit] {
            metrics::describe_gauge!(name, Unit::Bytes, meaning);
        }
    }

    /// Publishes how full a share is.
    pub fn publish(&self, used: Used) {
        if let Some(bytes) = used.bytes {
            metrics::gauge!(self.used.0, "share" => used.share.name).set(bytes as f64);
        }
        metrics::gauge!(self.limit.0, "share" => used.share.name).set(used.limit_bytes as f64);
    }
}

/// The servers'.
pub(crate) const GAUGES: Gauges = Gauges {
    used: (
        "afs_server_memory_bytes",
        "Memory that the servers use, by share. For a table, this is the number of its entries times their usual size.",
    ),
    limit: ("afs_server_memory_limit_bytes", "How much memory the servers may use, by share."),
};

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Memory {
    /// Shares it out by a configuration.
    pub fn new(config: &Config) -> Self {
        let memory = u64::from(config.server.memory_mib) << 20;
        let wanted_strangers = u64::from(config.transport.strangers_mib) << 20;
        let port = |memory: u64| Port {
            connections: size(CONNECTIONS.of(memory) / CONNECTION_BYTES),
            received_bytes: RECEIVED.of(memory),
            strangers_bytes: STRANGERS.of(memory).min(wanted_strangers),
            packet_bytes: size(PACKETS.of(memory).max(PACKETS_LEAST)),
        };
        let of_port = CONNECTIONS.parts + RECEIVED.parts + STRANGERS.parts + PACKETS.parts;
        Self {
            callbacks: size((CALLBACKS.of(memory) / PROMISE_BYTES).min(config.file.callbacks.into())),
            hosts: size(HOSTS.of(memory) / HOST_BYTES).min(HostLimits::default().hosts),
            btrees_bytes: BTREES.of(memory),
            logs_bytes: LOGS.of(memory),
            segment_bytes: u64::from(config.volumes.log_mib) << 20,
            file_port: port(memory),
            other_port: port(OTHERS.of(memory) / OTHER_PORTS / of_port * PARTS),
        }
    }

    /// Bytes of the B-tree of one of so many partitions.
    pub fn btree_bytes(&self, partitions: usize) -> usize {
        size(self.btrees_bytes / partitions.max(1) as u64)
    }

    /// Bytes of a segment of the log of one of so many partitions: so many rows are collected, while as many go into the B-tree.
    pub fn log_bytes(&self, partitions: usize) -> u64 {
        (self.logs_bytes / 2 / partitions.max(1) as u64).min(self.segment_bytes).max(1 << 20)
    }

    /// The use of the tables of clients and of promises to them, given how many there are.
    pub(crate) fn used(&self, (hosts, promises): (usize, usize)) -> [Used; 2] {
        let table = |share, used: usize, limit: usize, each| Used {
            share,
            bytes: Some(used as u64 * each),
            limit_bytes: limit as u64 * each,
        };
        [
            table(HOSTS, hosts, self.hosts, HOST_BYTES),
            table(CALLBACKS, promises, self.callbacks, PROMISE_BYTES),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_gauge() {
        let page = include_str!("../../../docs/seeing.md");
        for (name, meaning) in [GAUGES.used, GAUGES.limit] {
            assert!(page.contains(&format!("| `{name}` |")) && page.contains(meaning), "{name}: {meaning}");
        }
    }

    fn with(mib: u32) -> Memory {
        let mut config = Config::default();
        config.server.memory_mib = mib;
        Memory::new(&config)
    }

    #[test]
    fn all_other_ports_together_stay_within_their_share() {
        let memory = with(1024);
        let bytes_of = |port: Port| {
            port.connections as u64 * CONNECTION_BYTES
                + port.received_bytes
                + port.strangers_bytes
                + port.packet_bytes as u64
        };
        let others = OTHER_PORTS * bytes_of(memory.other_port);
        assert!(others <= OTHERS.of(1 << 30), "{others}");
    }

    #[test]
    fn by_default_no_setting_is_cut_short_on_a_server_of_one_partition() {
        let (config, memory) = (Config::default(), with(Config::default().server.memory_mib));
        assert_eq!(memory.callbacks, config.file.callbacks as usize);
        assert_eq!(memory.log_bytes(1), u64::from(config.volumes.log_mib) << 20);
        assert_eq!(memory.file_port.strangers_bytes, u64::from(config.transport.strangers_mib) << 20);
    }

    #[test]
    fn less_memory_and_more_partitions_are_less_for_each() {
        let (all, less) = (with(1024), with(128));
        assert!(less.callbacks < all.callbacks / 7 && less.hosts < all.hosts);
        assert_eq!(less.btree_bytes(4), all.btree_bytes(1) / 32);
        assert_eq!(less.log_bytes(4), 1 << 20);
        assert_eq!(less.file_port.received_bytes, all.file_port.received_bytes / 8);
        assert!(less.other_port.packet_bytes as u64 >= PACKETS_LEAST);
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
