//! Volumes and servers as `fs` asks of them: quota and room, where a volume is, which servers answer; and forgetting what is known.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use afs_config::CellName;
use afs_wire::ids::{Name, VolumeId, VolumeType};
use afs_wire::rxafs::{
    AfsStoreVolumeStatus, GetVolumeStatus, Message, SetVolumeStatus, StoreVolumeMask, reply,
};
use futures_util::future::join_all;

use crate::client::{Client, Space};
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, User};
use afs_reach::table::ServerKind;
use afs_view::events::{Change, Changed};
use afs_view::names::dynroot;

/// The fields of a volume to set; those that are `None` stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetVolume {
    /// Quota in KiB; 0 is none.
    pub max_quota: Option<i32>,
    /// The message of the day.
    pub motd: Option<String>,
    /// The reason why it is offline.
    pub offline_message: Option<String>,
}

/// A volume as the cell's database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name, without a suffix.
    pub name: String,
    /// Ids of the read-write, the read-only and the backup volume, of those that there are.
    pub ids: [Option<VolumeId>; 3],
    /// The servers that have the volume that was asked for, each by its best address, in the order of preference.
    pub servers: Vec<SocketAddr>,
}

/// A server, as it is known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// The service that it offers.
    pub kind: ServerKind,
    /// The cell.
    pub cell: CellIndex,
    /// An address.
    pub address: SocketAddr,
    /// Its rank; less is better.
    pub rank: u32,
    /// True if it counts as down.
    pub is_down: bool,
}

/// A cell, as it is known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellInfo {
    /// Its number.
    pub index: CellIndex,
    /// Its name.
    pub name: CellName,
    /// Its database servers.
    pub servers: Vec<Ipv4Addr>,
    /// The cell in which volumes are looked for that this one does not have.
    pub linked: Option<CellName>,
}

fn kib(number: i32) -> u64 {
    // Servers count in signed words; a volume or partition beyond them shows as negative.
    u64::from(number as u32)
}

impl Client {
    /// Quota, use and messages of the volume of a vnode.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn volume_status(&self, user: User, fid: Fid) -> Result<reply::GetVolumeStatus, Error> {
        let inner = &self.inner;
        let real = inner.mount_points.real(user, fid).await?;
        if real.is_made_up() {
            return Err(Error::Unsupported { what: "a volume of the dynamic root" });
        }
        let who = inner.users.who(user, real.cell);
        Ok(inner.calls.call(who, real, GetVolumeStatus { volume: real.volume }).await?.reply)
    }

    /// Sets quota or messages of the volume of a vnode.
    ///
    /// # Errors
    ///
    /// The server's; it takes an administrator.
    pub async fn set_volume_status(&self, user: User, fid: Fid, set: &SetVolume) -> Result<(), Error> {
        let inner = &self.inner;
        let real = inner.mount_points.real(user, fid).await?;
        if real.is_made_up() {
            return Err(Error::ReadOnly { fid });
        }
        let message = |text: &Option<String>| {
            let text = text.clone().unwrap_or_default();
            Message::new(text).map_err(|error| Error::Invalid { what: format!("the message: {error}") })
        };
        let mut status = AfsStoreVolumeStatus { mask: StoreVolumeMask::NONE, min_quota: 0, max_quota: 0 };
        if let Some(quota) = set.max_quota {
            status.mask |= StoreVolumeMask::MAX_QUOTA;
            status.max_quota = quota;
        }
        let args = SetVolumeStatus {
            volume: real.volume,
            status,
            name: Name::default(),
            offline_message: message(&set.offline_message)?,
            motd: message(&set.motd)?,
        };
        inner.calls.call(inner.users.who(user, real.cell), real, args).await?;
        Ok(())
    }

    /// Room in the volume of a vnode.
    ///
    /// # Errors
    ///
    /// The server's. The dynamic root has no room.
    pub async fn space(&self, user: User, fid: Fid) -> Result<Space, Error> {
        if self.inner.mount_points.real(user, fid).await?.is_made_up() {
            return Ok(Space::default());
        }
        let status = self.volume_status(user, fid).await?.status;
        let (partition, free) = (kib(status.part_max_blocks), kib(status.part_blocks_avail));
        Ok(match kib(status.max_quota) {
            0 => Space { total_kib: partition, free_kib: free },
            quota => {
                let left = quota.saturating_sub(kib(status.blocks_in_use));
                Space { total_kib: quota, free_kib: left.min(free) }
            }
        })
    }

    /// The location of a volume, by its id.
    ///
    /// # Errors
    ///
    /// [`Error::NoVolume`].
    pub async fn volume_info(&self, cell: CellIndex, volume: VolumeId) -> Result<VolumeInfo, Error> {
        let inner = &self.inner;
        let entry = inner.locations.by_id(&*inner.calls, &*inner.cells.numbered(cell)?, volume).await?;
        let kind = entry.kind_of(volume).unwrap_or(VolumeType::READ_WRITE);
        let mut servers = entry.servers_of(kind);
        afs_reach::table::Servers::sort(&mut servers);
        Ok(VolumeInfo {
            name: entry.name.clone(),
            ids: [VolumeType::READ_WRITE, VolumeType::READ_ONLY, VolumeType::BACKUP]
                .map(|kind| entry.id_of(kind)),
            servers: servers.iter().filter_map(|server| Some(server.best()?.socket)).collect(),
        })
    }

    /// The cells, in the order of their numbers.
    pub fn cells(&self) -> Vec<CellInfo> {
        let cells = self.inner.cells.all();
        let info = cells.iter().map(|cell| CellInfo {
            index: cell.index,
            name: cell.name.clone(),
            servers: cell.addresses.clone(),
            linked: cell.linked.clone(),
        });
        info.collect()
    }

    /// The cell of this machine.
    pub fn own_cell(&self) -> Option<CellIndex> {
        self.inner.cells.named(self.inner.config.cell.as_str()).map(|cell| cell.index)
    }

    /// The cell of a name.
    pub fn cell_named(&self, name: &str) -> Option<CellIndex> {
        self.inner.cells.named(name).map(|cell| cell.index)
    }

    /// Adds a cell, or gives one other database servers (`fs newcell`).
    ///
    /// # Errors
    ///
    /// When there are too many.
    pub async fn set_cell(
        &self,
        name: &CellName,
        linked: Option<CellName>,
        servers: &[Ipv4Addr],
    ) -> Result<CellIndex, Error> {
        let inner = &self.inner;
        let index = inner.cells.set(name, linked, servers, &inner.servers);
        inner.invalidations.tell_of_names(dynroot::ROOT).await;
        index.ok_or_else(|| Error::Invalid { what: format!("too many cells for {name}") })
    }

    /// The servers that were heard of.
    pub fn servers(&self) -> Vec<ServerInfo> {
        let servers = self.inner.servers.all();
        let infos = servers.iter().flat_map(|server| {
            let addresses = server.addresses();
            addresses.into_iter().map(|address| ServerInfo {
                kind: server.kind,
                cell: server.cell,
                address: address.socket,
                rank: address.rank(),
                is_down: address.down_since().is_some(),
            })
        });
        infos.collect()
    }

    /// Asks servers whether they are there, all at once, and tells which are (`fs checkservers`); of one cell, or of all.
    pub async fn check_servers(&self, cell: Option<CellIndex>) -> Vec<ServerInfo> {
        let inner = &self.inner;
        let servers = inner.servers.all();
        let wanted = servers.iter().filter(|server| cell.is_none_or(|cell| cell == server.cell));
        let probes = wanted.map(|server| inner.liveness.ask_once(server, false));
        join_all(probes).await;
        let infos = self.servers();
        infos.into_iter().filter(|info| cell.is_none_or(|cell| cell == info.cell)).collect()
    }

    /// Sets the rank of a server's address (`fs setserverprefs`), also of one that was not heard of yet. Whether there was room to
    /// remember it.
    pub fn set_rank(&self, host: IpAddr, kind: ServerKind, rank: u32) -> bool {
        self.inner.servers.set_rank(host, kind, rank)
    }

    /// The ranks that were set for addresses, heard of or not.
    pub fn ranks_set(&self, kind: ServerKind) -> Vec<(IpAddr, u32)> {
        self.inner.servers.ranks_set(kind)
    }

    /// The names that `@sys` stands for.
    pub fn sysnames(&self) -> Vec<String> {
        self.inner.names.sysnames.all()
    }

    /// Sets them.
    pub async fn set_sysnames(&self, names: Vec<String>) {
        let invalidations = &self.inner.invalidations;
        self.inner.names.sysnames.set(names);
        // What a name with @sys names is another now, wherever there is one.
        invalidations.tell_and_wait(&invalidations.changes(self.root(), Change::Everything)).await;
    }

    /// Forgets what is known of a vnode (`fs flush`).
    pub async fn flush(&self, user: User, fid: Fid) {
        let inner = &self.inner;
        for fid in [Some(fid), inner.mount_points.known_real(user, fid)].into_iter().flatten() {
            if let Some(vnode) = inner.vnodes.get(fid) {
                vnode.forget();
            }
            if let Err(error) = inner.files.flush(fid) {
                tracing::warn!(%fid, %error, "the data stay in the cache");
            }
            inner.invalidations.tell_and_wait(&inner.invalidations.changes(fid, Change::Vnode)).await;
        }
    }

    /// The same of a whole volume (`fs flushvolume`).
    pub async fn flush_volume(&self, cell: CellIndex, volume: VolumeId) {
        let inner = &self.inner;
        for vnode in inner.vnodes.all() {
            if (vnode.fid.cell, vnode.fid.volume) == (cell, volume) {
                vnode.forget();
            }
        }
        if let Err(error) = inner.files.flush_volume(cell, volume) {
            tracing::warn!(volume = volume.0, %error, "data stay in the cache");
        }
        let changes = inner.invalidations.changes(Fid::root_of(cell, volume), Change::Volume);
        inner.invalidations.tell_and_wait(&changes).await;
    }

    /// Forgets where volumes are and what is mounted (`fs checkvolumes`).
    pub async fn forget_locations(&self) {
        let inner = &self.inner;
        inner.locations.forget_all();
        let mut changes = Vec::new();
        for vnode in inner.vnodes.all() {
            if vnode.forget_mounted() {
                // Another volume may be mounted there by now. Its data are those of other files.
                changes.push(Changed { fid: vnode.fid, change: Change::Names });
            }
        }
        inner.invalidations.tell_and_wait(&changes).await;
    }
}
