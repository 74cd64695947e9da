//! What `fs` asks and changes beyond files: cells, servers and their ranks, what is kept, who the users are. Changes count until the client
//! ends; what is to last is in its configuration.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::PoisonError;

use afs_config::{CellAlias, CellName};
use afs_wire::control::CacheUse;
use afs_wire::rxafs::{AfsStoreVolumeStatus, Message, SetVolumeStatus, StoreVolumeMask};
use afs_wire::Uuid;
use rx_security::{Level, UnixTime};
use tokio::task::JoinSet;

use crate::cells::Cell;
use crate::client::Client;
use crate::error::Error;
use crate::fid::{CellIndex, Fid, User};
use crate::servers::ServerKind;

/// A cell as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellInfo {
    /// Its number.
    pub index: CellIndex,
    /// Its name.
    pub name: String,
    /// Its database servers.
    pub servers: Vec<Ipv4Addr>,
}

/// A token, for those who list them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldToken {
    /// The cell's name.
    pub cell: String,
    /// Who it says that the user is, where that is known.
    pub name: Option<String>,
    /// Until when it is good.
    pub end: UnixTime,
}

impl Client {
    /// Who this client is to servers.
    pub fn uuid(&self) -> Uuid {
        self.inner.uuid
    }

    // ---- volumes

    /// The servers that have the volume of a fid, the one that is asked first in front.
    ///
    /// # Errors
    ///
    /// Those of finding a volume.
    pub async fn servers_of(&self, fid: Fid) -> Result<Vec<IpAddr>, Error> {
        if fid.is_made_up() {
            return Err(Error::Invalid { what: format!("{fid} is on no server") });
        }
        let mut sites = self.inner.sites_of(fid.cell, fid.volume).await?;
        crate::servers::Servers::sort(&mut sites);
        Ok(sites.iter().filter_map(|site| site.best()).map(|address| address.socket.ip()).collect())
    }

    /// Sets the quota of the volume of a fid, in KiB, and its offline message, what of them is given.
    ///
    /// # Errors
    ///
    /// The server's: it takes an administrator.
    pub async fn set_volume_status(
        &self,
        user: User,
        fid: Fid,
        max_quota_kib: Option<i32>,
        offline_message: Option<Message>,
    ) -> Result<(), Error> {
        let inner = &self.inner;
        let who = inner.users.who(user, fid.cell);
        let mask = match max_quota_kib {
            Some(_) => StoreVolumeMask::MAX_QUOTA,
            None => StoreVolumeMask::NONE,
        };
        let status = AfsStoreVolumeStatus { mask, min_quota: 0, max_quota: max_quota_kib.unwrap_or(0) };
        let nothing = || Message::new("").expect("it is short");
        let args = SetVolumeStatus {
            volume: fid.volume,
            status,
            // Not to be changed: empty, as stock clients send it.
            name: afs_wire::ids::Name::new("").expect("it is short"),
            offline_message: offline_message.unwrap_or_else(nothing),
            motd: nothing(),
        };
        inner.call(who, fid, args).await.map(drop)
    }

    // ---- what is kept

    /// Forgets all that is known, and all data but those that are dirty.
    pub async fn flush_all(&self) {
        for vnode in self.inner.vnodes.all() {
            self.flush(vnode.fid).await;
        }
    }

    /// Forgets where volumes are, and which names they have.
    pub fn forget_locations(&self) {
        self.inner.locations.forget_all();
    }

    /// What the cache has. A client without a cache on disk has none.
    pub fn cache_use(&self) -> CacheUse {
        CacheUse { statuses: self.inner.vnodes.len() as u64, ..CacheUse::default() }
    }

    /// Sets how much may be kept, in KiB; 0 is what is configured.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] without a cache on disk.
    pub async fn set_cache_size(&self, _size_kib: u64) -> Result<(), Error> {
        Err(Error::Unsupported { what: "a cache in memory alone has no size to be set" })
    }

    // ---- servers

    /// The servers of a cell, or of all, that do not answer: as far as known, or, unless it `is_fast`, after asking each. One that
    /// has several addresses is shown by the first.
    pub async fn check_servers(&self, cell: Option<CellIndex>, is_fast: bool) -> Vec<IpAddr> {
        let inner = &self.inner;
        let servers = || {
            let all = inner.servers.all().into_iter();
            all.filter(|server| cell.is_none_or(|cell| server.cell == cell))
        };
        if !is_fast {
            let mut probes = JoinSet::new();
            for server in servers() {
                for address in server.addresses() {
                    let (client, server) = (self.clone(), server.clone());
                    probes.spawn(async move { client.inner.check(&server, &address).await });
                }
            }
            while probes.join_next().await.is_some() {}
        }
        let mut down: Vec<IpAddr> = servers()
            .filter(|server| server.candidate().down_since.is_some())
            .filter_map(|server| server.best())
            .map(|address| address.socket.ip())
            .collect();
        down.sort_unstable();
        down.dedup();
        down
    }

    /// The addresses of servers and their ranks, by address: less is better.
    pub fn server_ranks(&self, kind: ServerKind) -> Vec<(IpAddr, u32)> {
        let servers = self.inner.servers.all().into_iter().filter(|server| server.kind == kind);
        let addresses = servers.flat_map(|server| server.addresses());
        let ranks: BTreeMap<IpAddr, u32> =
            addresses.map(|address| (address.socket.ip(), address.rank())).collect();
        ranks.into_iter().collect()
    }

    /// Sets the rank of an address. Whether there is such a server.
    pub fn set_server_rank(&self, kind: ServerKind, address: IpAddr, rank: u32) -> bool {
        self.inner.servers.set_rank(address, kind, rank)
    }

    // ---- cells

    /// The cell of this machine.
    pub fn own_cell(&self) -> CellInfo {
        let name = self.inner.config.cell.as_str();
        match self.inner.cells.named(name) {
            Some(cell) => info(&cell),
            None => CellInfo { index: CellIndex::DYNROOT, name: name.to_owned(), servers: Vec::new() },
        }
    }

    /// All cells that are known.
    pub fn cells(&self) -> Vec<CellInfo> {
        self.inner.cells.all().iter().map(|cell| info(cell)).collect()
    }

    /// A cell by its name, an alias, or a beginning of its name that no other has.
    ///
    /// # Errors
    ///
    /// [`Error::NoCell`].
    pub fn find_cell(&self, name: &str) -> Result<CellInfo, Error> {
        let inner = &self.inner;
        if let Some(cell) = inner.cells.named(name) {
            return Ok(info(&cell));
        }
        let aliased = self.aliases().into_iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        if let Some(cell) = aliased.and_then(|(_, cell)| inner.cells.named(&cell)) {
            return Ok(info(&cell));
        }
        let start = name.to_ascii_lowercase();
        let all = inner.cells.all();
        let mut begins = all.iter().filter(|cell| !start.is_empty() && cell.name.as_str().starts_with(&start));
        match (begins.next(), begins.next()) {
            (Some(cell), None) => Ok(info(cell)),
            _ => Err(Error::NoCell { cell: name.to_owned() }),
        }
    }

    /// Makes a cell known, or gives it other servers. `linked` is where volumes are looked for that it does not have.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for what is no cell's name, or has no servers.
    pub fn add_cell(&self, name: &str, servers: &[Ipv4Addr], linked: Option<&str>) -> Result<(), Error> {
        let inner = &self.inner;
        if servers.is_empty() {
            return Err(Error::Invalid { what: format!("cell {name} without servers") });
        }
        let linked = linked.map(cell_name).transpose()?;
        let name = cell_name(name)?;
        match inner.cells.set(&name, linked, servers, &inner.servers) {
            Some(_) => Ok(()),
            None => Err(Error::Unsupported { what: "so many cells" }),
        }
    }

    /// Other names of cells.
    pub fn aliases(&self) -> Vec<(String, String)> {
        let aliases = self.inner.aliases.read().unwrap_or_else(PoisonError::into_inner);
        aliases.iter().map(|alias| (alias.alias.clone(), alias.cell.to_string())).collect()
    }

    /// Gives a cell another name, which shows in the dynamic root.
    ///
    /// # Errors
    ///
    /// [`Error::NoCell`]; [`Error::Exists`] for a name that a cell has.
    pub fn add_alias(&self, alias: &str, cell: &str) -> Result<(), Error> {
        let inner = &self.inner;
        if inner.cells.named(alias).is_some() {
            return Err(Error::Exists { dir: self.root(), name: alias.to_owned() });
        }
        let alias = cell_name(alias)?.to_string();
        let cell = self.find_cell(cell)?.name;
        let cell = cell_name(&cell)?;
        let mut aliases = inner.aliases.write().unwrap_or_else(PoisonError::into_inner);
        match aliases.iter_mut().find(|known| known.alias == alias) {
            Some(known) => known.cell = cell,
            None => aliases.push(CellAlias { alias, cell }),
        }
        Ok(())
    }

    // ---- users and this machine

    /// The tokens of a user.
    pub fn tokens(&self, user: User) -> Vec<HeldToken> {
        let inner = &self.inner;
        let held = |token: crate::users::TokenInfo| HeldToken {
            cell: inner.cells.name_of(token.cell),
            name: token.name,
            end: token.end,
        };
        inner.users.tokens(user).into_iter().map(held).collect()
    }

    /// What `@sys` stands for.
    pub fn sysnames(&self) -> Vec<String> {
        self.inner.sysnames.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what `@sys` stands for.
    pub fn set_sysnames(&self, sysnames: Vec<String>) {
        *self.inner.sysnames.write().unwrap_or_else(PoisonError::into_inner) = sysnames;
    }

    /// Whether what is said with a ticket is encrypted.
    pub fn is_encrypting(&self) -> bool {
        self.inner.config.level == Level::Crypt
    }
}

fn info(cell: &Cell) -> CellInfo {
    CellInfo { index: cell.index, name: cell.name.to_string(), servers: cell.addresses.clone() }
}

fn cell_name(name: &str) -> Result<CellName, Error> {
    CellName::new(name).ok_or_else(|| Error::Invalid { what: format!("{name:?} is no cell's name") })
}
