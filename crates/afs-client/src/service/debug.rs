//! Answers to what `cmdebug` and other debuggers ask of a client on its callback port (File service notes 7.3): cells, servers,
//! cached statuses. There are no locks to be shown and no counters to be fetched: those questions end as with a client that does not
//! know them.

use std::sync::PoisonError;

use afs_wire::ids::{AfsTime, HostAddr, Name};
use afs_wire::rxafscb::{
    AfsDbCacheEntry, AfsDbCacheEntry64, AfsDbLockDesc, CacheConfig, GetCE, GetCE64, GetCacheConfig,
    GetCellByNum, GetCellServDB, GetLocalCell, GetLock, GetServerPrefs, GetXStats, ServerList, XStatsVersion,
    reply,
};
use afs_wire::status::FileType;
use rxgen::{Abort, Serve, ServerCall};

use crate::client::callbacks::CallbackService;
use afs_reach::cells::Cell;
use afs_reach::fid::Fid;

/// Ends a walk by index: there is nothing at this one.
const NO_MORE: Abort = Abort(1);

/// In `states`: the status is known.
const STATE_KNOWN: i8 = 1;

/// In `states`: of a read-only volume.
const STATE_READ_ONLY: i8 = 4;

/// The version of the configuration that `GetCacheConfig` tells.
const CONFIG_VERSION: u32 = 1;

const NO_LOCK: AfsDbLockDesc = AfsDbLockDesc {
    wait_states: 0,
    excl_locked: 0,
    readers_reading: 0,
    num_waiting: 0,
    spare: 0,
    pid_last_reader: 0,
    pid_writer: 0,
    src_indicator: 0,
};

impl CallbackService {
    /// The entry of a vnode, for a debugger.
    fn cache_entry(&self, index: i32, fid: Fid) -> AfsDbCacheEntry64 {
        let (vnode, runtime) = (self.promises.vnodes.get_or_add(fid), &self.promises.calls.runtime);
        let status = vnode.last_status();
        let promise = vnode.promise(runtime.now());
        let is_link = status.is_some_and(|status| status.file_type == FileType::SYMLINK);
        let expires = promise.as_ref().map_or(AfsTime(0), |(_, rest)| {
            // Added before the seconds are counted: the same promise is to end at the same time whenever it is asked for.
            AfsTime(rx_security::UnixTime::of(runtime.wall_clock() + *rest).0)
        });
        let server = promise.as_ref().and_then(|(server, _)| server.best());
        let callback = server.map_or(0, |address| match address.socket.ip() {
            std::net::IpAddr::V4(ip) => HostAddr::from(ip).0 as i32,
            std::net::IpAddr::V6(_) => 0,
        });
        let read_only = if vnode.volume.is_read_only() { STATE_READ_ONLY } else { 0 };
        AfsDbCacheEntry64 {
            // 0 would be no entry.
            addr: index.saturating_add(1),
            cell: vnode.fid.cell.0 as i32,
            net_fid: vnode.fid.in_cell(),
            length: status.map_or(0, |status| status.length as i64),
            data_version: status.map_or(0, |status| status.data_version.0 as i32),
            lock: NO_LOCK,
            callback,
            cb_expires: expires,
            ref_count: 0,
            opens: i16::try_from(self.open_files.count(vnode.fid)).unwrap_or(i16::MAX),
            writers: 0,
            mvstat: match vnode.fid.is_root() {
                true => 2,
                false => i8::from(is_link && vnode.mounted(runtime.now()).is_some()),
            },
            states: if promise.is_some() { STATE_KNOWN } else { 0 } | read_only,
        }
    }

    /// The vnode at a place. A walk sees the vnodes that there were when it began at 0; one at a time is remembered.
    fn entry_at(&self, index: i32) -> Result<AfsDbCacheEntry64, Abort> {
        let mut walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
        if index == 0 {
            let all = self.promises.vnodes.all();
            *walk = all.iter().map(|vnode| vnode.fid).filter(|fid| fid.cell.has_volumes()).collect();
            walk.sort_unstable();
        }
        let fid = usize::try_from(index).ok().and_then(|place| walk.get(place).copied());
        Ok(self.cache_entry(index, fid.ok_or(NO_MORE)?))
    }
}

fn cell_name(cell: &Cell) -> Result<Name, Abort> {
    Name::new(cell.name.as_str()).map_err(|_| NO_MORE)
}

fn cell_hosts(cell: &Cell) -> Result<ServerList, Abort> {
    let hosts: Vec<_> = cell.addresses.iter().take(8).map(|&address| HostAddr::from(address)).collect();
    ServerList::new(hosts).map_err(|_| NO_MORE)
}

impl Serve<GetLock> for CallbackService {
    async fn serve(&self, _: ServerCall<'_, GetLock>, _: GetLock) -> Result<reply::GetLock, Abort> {
        // The list is empty: this client has no locks that could be stuck.
        Err(NO_MORE)
    }
}

impl Serve<GetCE64> for CallbackService {
    async fn serve(&self, _: ServerCall<'_, GetCE64>, args: GetCE64) -> Result<reply::GetCE64, Abort> {
        Ok(reply::GetCE64 { entry: self.entry_at(args.index)? })
    }
}

impl Serve<GetCE> for CallbackService {
    async fn serve(&self, _: ServerCall<'_, GetCE>, args: GetCE) -> Result<reply::GetCE, Abort> {
        let AfsDbCacheEntry64 {
            addr,
            cell,
            net_fid,
            length,
            data_version,
            lock,
            callback,
            cb_expires,
            ref_count,
            opens,
            writers,
            mvstat,
            states,
        } = self.entry_at(args.index)?;
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        let entry = AfsDbCacheEntry {
            addr,
            cell,
            net_fid,
            length,
            data_version,
            lock,
            callback,
            cb_expires,
            ref_count,
            opens,
            writers,
            mvstat,
            states,
        };
        Ok(reply::GetCE { entry })
    }
}

impl Serve<GetCellServDB> for CallbackService {
    async fn serve(
        &self,
        _: ServerCall<'_, GetCellServDB>,
        args: GetCellServDB,
    ) -> Result<reply::GetCellServDB, Abort> {
        let cells = self.promises.calls.cells.all();
        // An empty name ends the walk.
        match usize::try_from(args.cell_index).ok().and_then(|place| cells.get(place).cloned()) {
            Some(cell) => {
                Ok(reply::GetCellServDB { cell_name: cell_name(&cell)?, cell_hosts: cell_hosts(&cell)? })
            }
            None => {
                Ok(reply::GetCellServDB { cell_name: Name::default(), cell_hosts: ServerList::default() })
            }
        }
    }
}

impl Serve<GetCellByNum> for CallbackService {
    async fn serve(
        &self,
        _: ServerCall<'_, GetCellByNum>,
        args: GetCellByNum,
    ) -> Result<reply::GetCellByNum, Abort> {
        let index = u32::try_from(args.cell_number).map_err(|_| NO_MORE)?;
        match self.promises.calls.cells.get(afs_reach::fid::CellIndex(index)) {
            Some(cell) => {
                Ok(reply::GetCellByNum { cell_name: cell_name(&cell)?, cell_hosts: cell_hosts(&cell)? })
            }
            None => Ok(reply::GetCellByNum { cell_name: Name::default(), cell_hosts: ServerList::default() }),
        }
    }
}

impl Serve<GetLocalCell> for CallbackService {
    async fn serve(
        &self,
        _: ServerCall<'_, GetLocalCell>,
        _: GetLocalCell,
    ) -> Result<reply::GetLocalCell, Abort> {
        Ok(reply::GetLocalCell { cell_name: Name::new(self.home.as_str()).map_err(|_| NO_MORE)? })
    }
}

impl Serve<GetServerPrefs> for CallbackService {
    async fn serve(
        &self,
        _: ServerCall<'_, GetServerPrefs>,
        args: GetServerPrefs,
    ) -> Result<reply::GetServerPrefs, Abort> {
        let servers = self.promises.calls.servers.all();
        let mut all = servers.iter().flat_map(|server| server.addresses());
        let address = usize::try_from(args.server_index).ok().and_then(|place| all.nth(place));
        // Address and rank of all ones end the walk.
        let end = reply::GetServerPrefs { server_addr: HostAddr(u32::MAX), server_rank: -1 };
        Ok(match address.map(|address| (address.socket.ip(), address.rank())) {
            Some((std::net::IpAddr::V4(ip), rank)) => reply::GetServerPrefs {
                server_addr: HostAddr::from(ip),
                server_rank: i32::try_from(rank).unwrap_or(i32::MAX),
            },
            Some((std::net::IpAddr::V6(_), _)) | None => end,
        })
    }
}

impl Serve<GetCacheConfig> for CallbackService {
    async fn serve(
        &self,
        _: ServerCall<'_, GetCacheConfig>,
        _: GetCacheConfig,
    ) -> Result<reply::GetCacheConfig, Abort> {
        let kib = self.cache_limit_bytes.map_or(0, |bytes| bytes >> 10);
        let statuses = u32::try_from(self.status_entries).unwrap_or(u32::MAX);
        // Control notes 3. There are no chunks, and the clock is nobody's business here.
        let words = vec![
            0,
            statuses,
            0,
            u32::try_from(self.promises.vnodes.volumes.ids().len()).unwrap_or(u32::MAX),
            0,
            0,
            u32::try_from(kib).unwrap_or(u32::MAX),
            0,
            u32::from(self.cache_limit_bytes.is_none()),
        ];
        let bytes = u32::try_from(words.len() * 4).expect("nine words");
        let config = CacheConfig::new(words).map_err(|_| NO_MORE)?;
        Ok(reply::GetCacheConfig { server_version: CONFIG_VERSION, config_count: bytes, config })
    }
}

impl Serve<XStatsVersion> for CallbackService {
    async fn serve(
        &self,
        _: ServerCall<'_, XStatsVersion>,
        _: XStatsVersion,
    ) -> Result<reply::XStatsVersion, Abort> {
        Err(Abort::OPCODE)
    }
}

impl Serve<GetXStats> for CallbackService {
    async fn serve(&self, _: ServerCall<'_, GetXStats>, _: GetXStats) -> Result<reply::GetXStats, Abort> {
        Err(Abort::OPCODE)
    }
}
