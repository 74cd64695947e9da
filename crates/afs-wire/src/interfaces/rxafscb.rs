//! RXAFSCB, what a file server and the debugging tools ask of a cache manager (File service notes 7.3).

use super::rxafs::{AfsCbFids, AfsCbs, CapabilityWords};
use crate::ids::{AFS_MAX_INTERFACE_ADDR, AfsFid, AfsTime, HostAddr, Name};
use rxgen::xdr::{CharVec, Uuid, XdrArray};
use rxgen::{interface, wire_struct};

/// Numbers of one collection of extended statistics.
pub type CollData = XdrArray<u32, 2048>;
/// Database servers of a cell.
pub type ServerList = XdrArray<HostAddr, 8>;
/// Words of the cache's configuration: version 1 has seven. No limit in the protocol; nobody has more than this.
pub type CacheConfig = XdrArray<u32, 1024>;

wire_struct! {
    /// The identity of a client, and its addresses.
    struct InterfaceAddr {
        /// The number of slots that count. Not checked here: a peer may claim any number.
        number_of_interfaces: i32,
        /// The client.
        uuid: Uuid,
        /// Its addresses.
        addresses: [HostAddr; AFS_MAX_INTERFACE_ADDR],
        /// Their masks.
        subnet_masks: [HostAddr; AFS_MAX_INTERFACE_ADDR],
        /// Their MTUs.
        mtus: [i32; AFS_MAX_INTERFACE_ADDR],
    }

    /// The state of a lock inside a cache manager.
    #[derive(Copy)]
    struct AfsDbLockDesc {
        /// The waiters, as bits.
        wait_states: i8,
        /// The way in which it is held, as bits.
        excl_locked: i8,
        /// Readers.
        readers_reading: i16,
        /// The number of waiters.
        num_waiting: i16,
        /// 0.
        spare: i16,
        /// The last process that read.
        pid_last_reader: i32,
        /// The process that writes.
        pid_writer: i32,
        /// The place in the client where it was locked.
        src_indicator: i32,
    }

    /// A lock with its name.
    struct AfsDbLock {
        /// Its name.
        name: CharVec<16>,
        /// Its state.
        lock: AfsDbLockDesc,
    }

    /// An entry of the cache of statuses.
    #[derive(Copy)]
    struct AfsDbCacheEntry {
        /// The entry's place in memory.
        addr: i32,
        /// The cell.
        cell: i32,
        /// The vnode in it.
        net_fid: AfsFid,
        /// Bytes.
        length: i32,
        /// Version of its data.
        data_version: i32,
        /// Its lock.
        lock: AfsDbLockDesc,
        /// The server that promised.
        callback: i32,
        /// The time until which it lasts.
        cb_expires: AfsTime,
        /// References.
        ref_count: i16,
        /// Opens.
        opens: i16,
        /// Opens for writing.
        writers: i16,
        /// 1 a mount point, 2 a volume's root.
        mvstat: i8,
        /// Bits of state.
        states: i8,
    }

    /// An entry of the cache of statuses, with a length of 64 bits.
    #[derive(Copy)]
    struct AfsDbCacheEntry64 {
        /// The entry's place in memory.
        addr: i32,
        /// The cell.
        cell: i32,
        /// The vnode in it.
        net_fid: AfsFid,
        /// Bytes.
        length: i64,
        /// Version of its data.
        data_version: i32,
        /// Its lock.
        lock: AfsDbLockDesc,
        /// The server that promised.
        callback: i32,
        /// The time until which it lasts.
        cb_expires: AfsTime,
        /// References.
        ref_count: i16,
        /// Opens.
        opens: i16,
        /// Opens for writing.
        writers: i16,
        /// 1 a mount point, 2 a volume's root.
        mvstat: i8,
        /// Bits of state.
        states: i8,
    }
}

impl InterfaceAddr {
    /// Makes a client with these addresses. Only the first 32 count.
    #[must_use]
    pub fn new(uuid: Uuid, addresses: &[HostAddr]) -> Self {
        let mut slots = [HostAddr(0); AFS_MAX_INTERFACE_ADDR];
        let count = addresses.len().min(slots.len());
        slots[..count].copy_from_slice(&addresses[..count]);
        Self {
            number_of_interfaces: count as i32,
            uuid,
            addresses: slots,
            subnet_masks: [HostAddr(0); AFS_MAX_INTERFACE_ADDR],
            mtus: [0; AFS_MAX_INTERFACE_ADDR],
        }
    }

    /// The addresses that count, whatever number the peer claims.
    #[must_use]
    pub fn addresses(&self) -> &[HostAddr] {
        let count = usize::try_from(self.number_of_interfaces).unwrap_or(0).min(self.addresses.len());
        &self.addresses[..count]
    }
}

interface! {
    /// Procedures that a file server calls on a cache manager.
    Rxafscb on service 1 port 7001 {
        /// Ends promises. Always to be answered with success.
          204 CallBack (fids: AfsCbFids, callbacks: AfsCbs);
        /// Ends all promises of the calling server.
          205 InitCallBackState ();
        /// Asks whether the client is there.
          206 Probe ();
        /// A lock, by index.
          207 GetLock (index: i32) -> (lock: AfsDbLock);
        /// An entry of the cache, by index.
          208 GetCE (index: i32) -> (entry: AfsDbCacheEntry);
        /// Version of the extended statistics.
          209 XStatsVersion () -> (version: i32);
        /// A collection of extended statistics.
          210 GetXStats (client_version: i32, collection: i32)
              -> (server_version: i32, time: AfsTime, data: CollData);
        /// `InitCallBackState` that also asks who the client is.
          211 InitCallBackState2 () -> (addr: InterfaceAddr);
        /// Asks a client who it is.
          212 WhoAreYou () -> (addr: InterfaceAddr);
        /// Ends all promises of the server with this UUID.
          213 InitCallBackState3 (server_uuid: Uuid);
        /// Asks whether this is the client with this UUID. Aborted with 1 if not.
          214 ProbeUuid (client_uuid: Uuid);
        /// The rank of a server, by index.
          215 GetServerPrefs (server_index: i32) -> (server_addr: HostAddr, server_rank: i32);
        /// The database servers of a cell, by index.
          216 GetCellServDB (cell_index: i32) -> (cell_name: Name, cell_hosts: ServerList);
        /// The client's own cell.
          217 GetLocalCell () -> (cell_name: Name);
        /// Tells how the cache is set up.
          218 GetCacheConfig (caller_version: u32)
              -> (server_version: u32, config_count: u32, config: CacheConfig);
        /// An entry of the cache, by index.
        65536 GetCE64 (index: i32) -> (entry: AfsDbCacheEntry64);
        /// The database servers of a cell, by its number.
        65537 GetCellByNum (cell_number: i32) -> (cell_name: Name, cell_hosts: ServerList);
        /// Asks a client who it is and what it can do. See [`Capabilities`](super::rxafs::Capabilities).
        65538 TellMeAboutYourself () -> (addr: InterfaceAddr, capabilities: CapabilityWords);
    }
}
