//! Figures about the server, in the old forms and as numbered collections of words.

use afs_wire::ids::AfsTime;
use afs_wire::rxafs::{self, CollData, ViceDisk, ViceStatistics, ViceStatistics64, reply};
use rx_proto::packet::PacketType;
use rx_proto::stats::COUNTED_TYPES;
use rxgen::xdr::OpaqueFixed;

use super::{Outcome, Session, handlers};
use crate::callbacks::Totals;
use crate::failure::Failure;

/// The version of the collections.
const XSTATS_VERSION: i32 = 2;

/// Collections (File service notes 6.8).
const CALL_INFO: i32 = 0;
const PERFORMANCE: i32 = 1;
const FULL_PERFORMANCE: i32 = 2;
const CALLBACKS: i32 = 3;

/// Words of [`PERFORMANCE`], and where in it the figures are that this server has.
const PERFORMANCE_WORDS: usize = 98;
/// Packets received and sent, resent, and connections, among the words of Rx.
const RX_DATA_READ: usize = 31;
const RX_ACKS_READ: usize = 32;
const RX_ACKS_SENT: usize = 38;
const RX_ABORTS_SENT: usize = 40;
const RX_DATA_SENT: usize = 42;
const RX_DATA_RESENT: usize = 43;
const RX_SERVER_CONNECTIONS: usize = 53;
/// Hosts, in three ways of counting.
const HOSTS: usize = 58;
const HOSTS_NOT_DELETED: usize = 60;

/// Words of [`CALLBACKS`]. Those behind these tell how OpenAFS's server looks for room in its table, which this one does otherwise.
const CALLBACK_WORDS: usize = 16;

/// Figures in GetStatistics64.
const STATISTICS_64: usize = 16;

handlers! {
    GetStatistics get_statistics;
    GetStatistics64 get_statistics_64;
    XStatsVersion xstats_version;
    GetXStats get_xstats;
}

impl Session {
    async fn get_statistics(&self, _args: rxafs::GetStatistics) -> Outcome<reply::GetStatistics> {
        let totals = self.server.statistics.totals();
        let clients = self.server.clients.counts();
        let none = ViceDisk { blocks_available: 0, total_blocks: 0, name: OpaqueFixed([0; 32]) };
        let mut disks = [none; 10];
        for (disk, (name, space)) in disks.iter_mut().zip(self.server.volumes.partitions()) {
            let length = name.len().min(disk.name.0.len() - 1);
            disk.name.0[..length].copy_from_slice(&name.as_bytes()[..length]);
            disk.blocks_available = signed(space.free_kib);
            disk.total_blocks = signed(space.total_kib);
        }
        let connections = self.server.endpoint.upgrade().map_or(0, |endpoint| endpoint.connection_count());
        let statistics = ViceStatistics {
            current_msg_number: 0,
            oldest_msg_number: 0,
            current_time: self.now,
            boot_time: self.server.statistics.started,
            start_time: self.server.statistics.started,
            current_connections: signed(connections as u64),
            total_vice_calls: totals.calls as u32,
            total_fetchs: totals.fetches as u32,
            fetch_datas: totals.fetched_datas as u32,
            fetched_bytes: totals.fetched_bytes as u32,
            fetch_data_rate: self.rate(totals.fetched_bytes) as i32,
            total_stores: totals.stores as u32,
            store_datas: totals.stored_datas as u32,
            stored_bytes: totals.stored_bytes as u32,
            store_data_rate: self.rate(totals.stored_bytes) as i32,
            total_rpc_bytes_sent: 0,
            total_rpc_bytes_received: 0,
            total_rpc_packets_sent: 0,
            total_rpc_packets_received: 0,
            total_rpc_packets_lost: 0,
            total_rpc_bogus_packets: 0,
            system_cpu: 0,
            user_cpu: 0,
            nice_cpu: 0,
            idle_cpu: 0,
            total_io: 0,
            active_vm: 0,
            total_vm: 0,
            ether_net_total_errors: 0,
            ether_net_total_writes: 0,
            ether_net_total_interrupts: 0,
            ether_net_good_reads: 0,
            ether_net_total_bytes_written: 0,
            ether_net_total_bytes_read: 0,
            process_size: 0,
            work_stations: signed(clients.hosts as u64),
            active_work_stations: signed(clients.active_hosts as u64),
            spares: [0; 8],
            disks,
        };
        Ok(reply::GetStatistics { statistics })
    }

    async fn get_statistics_64(&self, args: rxafs::GetStatistics64) -> Outcome<reply::GetStatistics64> {
        let totals = self.server.statistics.totals();
        let clients = self.server.clients.counts();
        let started = u64::from(self.server.statistics.started.0);
        let connections = self.server.endpoint.upgrade().map_or(0, |endpoint| endpoint.connection_count());
        let figures: [u64; STATISTICS_64] = [
            self.now.0.into(),
            started,
            started,
            connections as u64,
            totals.fetches,
            totals.fetched_datas,
            totals.fetched_bytes,
            self.rate(totals.fetched_bytes),
            totals.stores,
            totals.stored_datas,
            totals.stored_bytes,
            self.rate(totals.stored_bytes),
            totals.calls,
            clients.hosts as u64,
            clients.active_hosts as u64,
            0,
        ];
        // The "version" says how many figures the caller knows.
        let count = usize::try_from(args.version).unwrap_or(0).min(STATISTICS_64);
        let statistics = ViceStatistics64::new(figures[..count].to_vec()).expect("no more than fit");
        Ok(reply::GetStatistics64 { statistics })
    }

    /// Bytes a second since the start.
    fn rate(&self, bytes: u64) -> u64 {
        self.server.statistics.rate(bytes, self.server.clock.now())
    }

    async fn xstats_version(&self, _args: rxafs::XStatsVersion) -> Outcome<reply::XStatsVersion> {
        Ok(reply::XStatsVersion { version: XSTATS_VERSION })
    }

    async fn get_xstats(&self, args: rxafs::GetXStats) -> Outcome<reply::GetXStats> {
        let words = match args.collection {
            CALL_INFO => Vec::new(),
            PERFORMANCE => self.performance_words(),
            FULL_PERFORMANCE => [self.performance_words(), self.server.statistics.detail_words()].concat(),
            CALLBACKS => self.callback_words(),
            // As stock servers answer: nothing, and success.
            _ => Vec::new(),
        };
        Ok(reply::GetXStats {
            server_version: XSTATS_VERSION,
            time: AfsTime(self.now.0),
            data: CollData::new(words).map_err(|_| Failure::TOO_BIG)?,
        })
    }

    fn performance_words(&self) -> Vec<u32> {
        let mut words = vec![0; PERFORMANCE_WORDS];
        words[0] = self.server.statistics.totals().calls as u32;
        if let Some(endpoint) = self.server.endpoint.upgrade() {
            words[RX_SERVER_CONNECTIONS] = endpoint.connection_count() as u32;
            let stats = endpoint.stats();
            let of = |counts: &[u64; COUNTED_TYPES], kind: PacketType| counts[usize::from(kind.0)] as u32;
            words[RX_DATA_READ] = of(&stats.packets_read, PacketType::DATA);
            words[RX_ACKS_READ] = of(&stats.packets_read, PacketType::ACK);
            words[RX_ACKS_SENT] = of(&stats.packets_sent, PacketType::ACK);
            words[RX_ABORTS_SENT] = of(&stats.packets_sent, PacketType::ABORT);
            words[RX_DATA_SENT] = of(&stats.packets_sent, PacketType::DATA);
            words[RX_DATA_RESENT] = stats.data_resent as u32;
        }
        let clients = self.server.clients.counts();
        words[HOSTS] = clients.hosts as u32;
        words[HOSTS_NOT_DELETED] = clients.hosts as u32;
        words
    }

    fn callback_words(&self) -> Vec<u32> {
        let clients = self.server.clients.counts();
        let Totals { made, broken, files_gone, given_up, clients_gone, timed_out, was_full } = clients.totals;
        let (files, promises) = (clients.promised_files as u32, clients.promises as u32);
        // The ninth is the size of a table that grows here.
        let mut words =
            vec![files_gone, given_up, broken, made, was_full, clients_gone, files, promises, 0, timed_out];
        words.resize(CALLBACK_WORDS, 0);
        words
    }
}

fn signed(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
