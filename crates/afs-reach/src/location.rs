//! The locations of volumes: what the VLDB says, kept until it is old or a server says that it is wrong (VLDB notes 3).
//!
//! [`Locations`] decides what is asked and what is kept; how database servers are asked is left to [`Vldb`] (`location/asking.rs`). What of it outlasts the client: [`place`].

mod asking;
mod place;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_wire::Uuid;
use afs_wire::abort;
use afs_wire::ids::{HostAddr, VolumeId, VolumeType};
use afs_wire::vl::{EntryFlags, NvldbEntry, SiteFlags, UvldbEntry, VlName};
use lru::LruCache;
use rx::Runtime;
use rx_proto::time::Instant;
use rxgen::Abort;

use crate::cells::Cell;
use crate::error::Error;
use crate::fid::CellIndex;
use crate::remote::Failure;
use crate::table::{Server, ServerKind, Servers};

pub use place::{Place, PlaceSite};

/// The time for which an entry is used without asking again. A volume that moves is found at once by what its old server says; this is
/// for replicas that are added.
const ENTRY_LIFE: Duration = Duration::from_secs(2 * 3600);

/// The same during a release: the other sites can be used when it is complete.
const RELEASE_LIFE: Duration = Duration::from_secs(60);

/// The time for which the client believes that a cell has no such volume, so that a broken mount point does not cost a call at each
/// look.
const MISSING_LIFE: Duration = Duration::from_secs(10);

/// Entries that are kept, and names that are known to be missing. Beyond that, the least recently used go. An entry takes some hundred
/// bytes.
const ENTRIES_MAX: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// A queue of calls that change volumes: those of one server share one, so that one which does not answer holds up no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The server of this number.
    Server(u32),
    /// A volume whose server is not known.
    Volume(CellIndex, VolumeId),
}

/// A volume, with all of its kinds, and the servers that have them.
#[derive(Debug)]
pub struct VolumeEntry {
    pub(crate) cell: CellIndex,
    /// The name without `.readonly` or `.backup`.
    pub name: String,
    ids: [VolumeId; 3],
    flags: EntryFlags,
    /// The servers that have it.
    pub sites: Vec<Site>,
    until: Instant,
}

/// A server with some of the kinds.
#[derive(Debug, Clone)]
pub struct Site {
    /// The server.
    pub server: Arc<Server>,
    pub(crate) flags: SiteFlags,
}

impl VolumeEntry {
    /// Makes a volume with these ids (0 stands for none) and without servers.
    pub fn for_tests(ids: [u32; 3]) -> Self {
        let exists = [EntryFlags::RW_EXISTS, EntryFlags::RO_EXISTS, EntryFlags::BACK_EXISTS];
        Self {
            cell: CellIndex(1),
            name: "v".to_owned(),
            ids: ids.map(VolumeId),
            flags: ids.iter().zip(exists).fold(
                EntryFlags(0),
                |all, (&id, flag)| {
                    if id == 0 { all } else { all | flag }
                },
            ),
            sites: Vec::new(),
            until: Instant::MAX,
        }
    }

    /// The id of a kind, if there is such a volume.
    pub fn id_of(&self, kind: VolumeType) -> Option<VolumeId> {
        let (place, flag) = match kind {
            VolumeType::READ_WRITE => (0, EntryFlags::RW_EXISTS),
            VolumeType::READ_ONLY => (1, EntryFlags::RO_EXISTS),
            VolumeType::BACKUP => (2, EntryFlags::BACK_EXISTS),
            _ => return None,
        };
        Some(self.ids[place]).filter(|id| self.flags.contains(flag) && id.0 != 0)
    }

    /// The kind that an id is of.
    pub fn kind_of(&self, volume: VolumeId) -> Option<VolumeType> {
        [VolumeType::READ_WRITE, VolumeType::READ_ONLY, VolumeType::BACKUP]
            .into_iter()
            .find(|&kind| self.id_of(kind) == Some(volume))
    }

    /// True if a file server has told of it, as of a snapshot that it has.
    fn is_snapshot(&self) -> bool {
        self.ids[..2] == [VolumeId(0); 2]
    }

    /// True if somebody works on the volume: moves, releases or restores it. Or has begun to, and never ended.
    fn is_worked_on(&self) -> bool {
        self.flags.intersects(EntryFlags::OPERATIONS)
    }

    /// True if sites have different releases, or will have in a moment.
    fn is_being_released(&self) -> bool {
        let is_new = |site: &Site| site.flags.contains(SiteFlags::NEW_REP_SITE);
        self.flags.contains(EntryFlags::OP_RELEASE) || self.sites.iter().any(is_new)
    }

    /// The servers that have a kind.
    pub fn servers_of(&self, kind: VolumeType) -> Vec<Arc<Server>> {
        let is_released =
            |site: &Site| site.flags.contains(SiteFlags::RO_VOL) && !site.flags.contains(SiteFlags::DONT_USE);
        let is_new = |site: &Site| is_released(site) && site.flags.contains(SiteFlags::NEW_REP_SITE);
        // Sites of a release that is not complete have old and new data. Once one has the new, the others are not asked.
        let has_new = self.sites.iter().any(is_new);
        let has = |site: &Site| match kind {
            VolumeType::READ_ONLY if has_new => is_new(site),
            VolumeType::READ_ONLY => is_released(site),
            // The backup volume is where the read-write one is.
            _ => site.flags.intersects(SiteFlags::RW_VOL | SiteFlags::BACK_VOL),
        };
        self.sites.iter().filter(|site| has(site)).map(|site| Arc::clone(&site.server)).collect()
    }
}

/// A question to a cell's database servers, on its way.
type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// A cell's database servers, and those who need to know at once what they say. In boxes, since to ask file servers takes asking
/// database servers first, by the same means.
pub trait Vldb: Send + Sync {
    /// The entry of a volume, by its name or its id in digits.
    fn entry<'a>(&'a self, cell: &'a Cell, name: VlName) -> Asking<'a, UvldbEntry>;

    /// The same of a server that does not know the former.
    fn entry_without_uuids<'a>(&'a self, cell: &'a Cell, name: VlName) -> Asking<'a, NvldbEntry>;

    /// The addresses of the file server of a UUID.
    fn addresses<'a>(&'a self, cell: &'a Cell, uuid: Uuid) -> Asking<'a, Vec<HostAddr>>;

    /// These addresses are of one host.
    fn note_host(&self, addresses: &[IpAddr]);

    /// A volume is one that nobody writes.
    fn note_read_only(&self, cell: CellIndex, volume: VolumeId);
}

/// The entries that are kept, and what it takes to ask for more.
#[derive(Debug)]
pub struct Locations {
    table: Mutex<Table>,
    runtime: Arc<dyn Runtime>,
    servers: Arc<Servers>,
    file_port: u16,
}

#[derive(Debug)]
struct Table {
    by_name: LruCache<(CellIndex, String), Arc<VolumeEntry>>,
    /// The entries of `by_name` by each of their ids.
    by_id: HashMap<(CellIndex, VolumeId), Arc<VolumeEntry>>,
    missing: LruCache<(CellIndex, String), Instant>,
}

impl Default for Table {
    fn default() -> Self {
        // Grown as needed: `new` would take the memory for all at once.
        let (mut by_name, mut missing) = (LruCache::unbounded(), LruCache::unbounded());
        by_name.resize(ENTRIES_MAX);
        missing.resize(ENTRIES_MAX);
        Self { by_name, by_id: HashMap::new(), missing }
    }
}

impl Table {
    /// Takes the ids of an entry away that has left `by_name`.
    fn drop_ids(&mut self, entry: &Arc<VolumeEntry>) {
        for id in entry.ids {
            let key = (entry.cell, id);
            if self.by_id.get(&key).is_some_and(|there| Arc::ptr_eq(there, entry)) {
                self.by_id.remove(&key);
            }
        }
    }
}

impl Locations {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of the volume of an id, if it is known.
    pub fn known(&self, cell: CellIndex, volume: VolumeId) -> Option<Arc<VolumeEntry>> {
        let mut table = self.lock();
        let entry = table.by_id.get(&(cell, volume)).map(Arc::clone)?;
        table.by_name.promote(&(cell, entry.name.clone()));
        Some(entry)
    }

    /// The queue in which calls to a volume wait for their turn.
    pub fn queue_of(&self, cell: CellIndex, volume: VolumeId) -> Queue {
        let entry = self.lock().by_id.get(&(cell, volume)).map(Arc::clone);
        let site =
            entry.as_ref().and_then(|e| e.sites.iter().find(|site| site.flags.contains(SiteFlags::RW_VOL)));
        site.map_or(Queue::Volume(cell, volume), |site| Queue::Server(site.server.id))
    }

    /// The time since when none of the servers that have a volume answers, as far as is known.
    pub fn away_since(&self, cell: CellIndex, volume: VolumeId) -> Option<Instant> {
        let entry = self.lock().by_id.get(&(cell, volume)).map(Arc::clone)?;
        let servers = entry.servers_of(entry.kind_of(volume)?);
        let since: Option<Vec<_>> = servers.iter().map(|server| server.down_since()).collect();
        since?.into_iter().max()
    }

    /// True if somebody works on the volume of an id, as the VLDB said last.
    pub(crate) fn is_worked_on(&self, cell: CellIndex, volume: VolumeId) -> bool {
        self.lock().by_id.get(&(cell, volume)).is_some_and(|entry| entry.is_worked_on())
    }

    /// The entry of the volume of a name, if it is known and not old.
    pub(crate) fn known_name(&self, now: Instant, cell: CellIndex, name: &str) -> Option<Arc<VolumeEntry>> {
        self.last_known_name(cell, name).filter(|entry| now < entry.until)
    }

    /// The entry that was known last, however old it is.
    fn last_known_name(&self, cell: CellIndex, name: &str) -> Option<Arc<VolumeEntry>> {
        self.lock().by_name.get(&(cell, name.to_owned())).map(Arc::clone)
    }

    /// The entry of a volume is wrong.
    pub(crate) fn forget(&self, cell: CellIndex, volume: VolumeId) {
        let mut table = self.lock();
        if let Some(entry) = table.by_id.remove(&(cell, volume)) {
            table.by_name.pop(&(cell, entry.name.clone()));
            for id in entry.ids {
                table.by_id.remove(&(cell, id));
            }
        }
    }

    /// Forgets all entries, and those that were missing, so that they are asked for anew (`fs checkvolumes`).
    pub fn forget_all(&self) {
        *self.lock() = Table::default();
    }

    /// The volumes that a server has, as far as known.
    pub fn on_server(&self, server: &Server) -> Vec<(CellIndex, VolumeId)> {
        let table = self.lock();
        let on = table
            .by_id
            .iter()
            .filter(|(_, entry)| entry.sites.iter().any(|site| site.server.id == server.id));
        on.map(|(&key, _)| key).collect()
    }

    fn keep(&self, entry: &Arc<VolumeEntry>) {
        let mut table = self.lock();
        table.missing.pop(&(entry.cell, entry.name.clone()));
        // An earlier one of that name, or the one that makes room.
        if let Some((_, left)) = table.by_name.push((entry.cell, entry.name.clone()), Arc::clone(entry)) {
            table.drop_ids(&left);
        }
        for kind in [VolumeType::READ_WRITE, VolumeType::READ_ONLY, VolumeType::BACKUP] {
            if let Some(id) = entry.id_of(kind) {
                table.by_id.insert((entry.cell, id), Arc::clone(entry));
            }
        }
    }

    /// A server has a snapshot of a volume that it has, by its own word: database servers have no entry of it. What these have an entry of is no
    /// snapshot, whatever the server says.
    pub fn note_snapshot(&self, vldb: &dyn Vldb, cell: CellIndex, snapshot: VolumeId, server: &Arc<Server>) {
        if self.known(cell, snapshot).is_some_and(|known| !known.is_snapshot()) {
            return;
        }
        let site = Site { server: Arc::clone(server), flags: SiteFlags::BACK_VOL };
        self.keep(&Arc::new(VolumeEntry {
            cell,
            name: snapshot.0.to_string(),
            ids: [VolumeId(0), VolumeId(0), snapshot],
            flags: EntryFlags::BACK_EXISTS,
            sites: vec![site],
            until: Instant::MAX,
        }));
        vldb.note_read_only(cell, snapshot);
    }

    fn is_missing(&self, now: Instant, cell: CellIndex, name: &str) -> bool {
        self.lock().missing.get(&(cell, name.to_owned())).is_some_and(|until| now < *until)
    }

    fn note_missing(&self, now: Instant, cell: CellIndex, name: &str) {
        self.lock().missing.put((cell, name.to_owned()), now + MISSING_LIFE);
    }
}

/// A volume's name without what says its kind, and that kind.
pub fn split_name(name: &str) -> (&str, Option<VolumeType>) {
    let split = |suffix, kind| Some((name.strip_suffix(suffix).filter(|rest| !rest.is_empty())?, Some(kind)));
    split(".readonly", VolumeType::READ_ONLY)
        .or_else(|| split(".backup", VolumeType::BACKUP))
        .unwrap_or((name, None))
}

/// Asking database servers.
impl Locations {
    /// Makes the table. Nothing is known yet. File servers are added to `servers`, at this port.
    pub(crate) fn new(runtime: Arc<dyn Runtime>, servers: Arc<Servers>, file_port: u16) -> Self {
        Self { table: Mutex::default(), runtime, servers, file_port }
    }

    /// The entry of a volume, by its name without suffix or by its id in digits. If it is known without a volume of the wanted kind, it
    /// is asked for again: there may be one by now.
    ///
    /// # Errors
    ///
    /// [`Error::NoVolume`]; [`Error::Unreachable`] if no database server answers.
    pub async fn by_name(
        &self,
        vldb: &dyn Vldb,
        cell: &Cell,
        name: &str,
        wanted: Option<VolumeType>,
    ) -> Result<Arc<VolumeEntry>, Error> {
        let now = self.runtime.now();
        let has_it = |entry: &VolumeEntry| wanted.is_none_or(|kind| entry.id_of(kind).is_some());
        // While all database servers are away, an old entry does as well.
        let known = match cell.is_away() {
            true => self.last_known_name(cell.index, name),
            false => self.known_name(now, cell.index, name),
        };
        let suffixed = match wanted {
            Some(VolumeType::BACKUP) => format!("{name}.backup"),
            _ => format!("{name}.readonly"),
        };
        if let Some(entry) = known
            && (has_it(&entry) || self.is_missing(now, cell.index, &suffixed))
        {
            return Ok(entry);
        }
        if let Some(id) = id_of_digits(name) {
            return self.by_id(vldb, cell, id).await;
        }
        let entry = match self.ask_for_volume(vldb, cell, name).await {
            // An old entry is better than none: mount points lead on while all database servers are away.
            Err(error) if error.is_passing() => {
                return self.last_known_name(cell.index, name).filter(|entry| has_it(entry)).ok_or(error);
            }
            other => other?,
        };
        if !has_it(&entry) {
            self.note_missing(self.runtime.now(), cell.index, &suffixed);
        }
        Ok(entry)
    }

    /// The entry of the volume with an id.
    ///
    /// # Errors
    ///
    /// As [`Self::by_name`].
    pub async fn by_id(
        &self,
        vldb: &dyn Vldb,
        cell: &Cell,
        volume: VolumeId,
    ) -> Result<Arc<VolumeEntry>, Error> {
        let known = self.known(cell.index, volume);
        let counts = |entry: &&Arc<VolumeEntry>| self.runtime.now() < entry.until || cell.is_away();
        if let Some(entry) = known.as_ref().filter(counts) {
            return Ok(Arc::clone(entry));
        }
        match self.ask_for_volume(vldb, cell, &volume.0.to_string()).await {
            // An old entry is better than none.
            Err(error) if error.is_passing() => known.ok_or(error),
            other => other,
        }
    }

    /// The servers that have a volume.
    ///
    /// # Errors
    ///
    /// As [`Self::by_name`].
    pub(crate) async fn sites_of(
        &self,
        vldb: &dyn Vldb,
        cell: &Cell,
        volume: VolumeId,
    ) -> Result<Vec<Arc<Server>>, Error> {
        let entry = self.by_id(vldb, cell, volume).await?;
        let kind = entry.kind_of(volume).unwrap_or(VolumeType::READ_WRITE);
        Ok(entry.servers_of(kind))
    }

    /// Asks for the addresses of the file server of a UUID, and keeps them.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if no database server answers, and what they say.
    pub async fn ask_addresses(
        &self,
        vldb: &dyn Vldb,
        cell: &Cell,
        uuid: Uuid,
    ) -> Result<Option<Arc<Server>>, Error> {
        let asked = vldb.addresses(cell, uuid).await;
        let addresses =
            asked.map_err(|failure| failure.about(format!("asking for a file server of {}", cell.name)))?;
        let sockets: Vec<_> = addresses.iter().map(|&address| self.file_socket(address)).collect();
        let server = self.servers.get_or_add(ServerKind::File, cell.index, Some(uuid), &sockets);
        if let Some(server) = &server {
            server.set_addresses(&sockets);
            let addresses: Vec<_> = sockets.iter().map(|socket| socket.ip()).collect();
            vldb.note_host(&addresses);
        }
        Ok(server)
    }

    async fn ask_for_volume(
        &self,
        vldb: &dyn Vldb,
        cell: &Cell,
        name: &str,
    ) -> Result<Arc<VolumeEntry>, Error> {
        let none = || Error::NoVolume { cell: cell.name.to_string(), volume: name.to_owned() };
        if self.is_missing(self.runtime.now(), cell.index, name) {
            return Err(none());
        }
        let text = VlName::new(name).map_err(|_| none())?;
        let what = || format!("asking where the volume {name} of {} is", cell.name);
        let asked = match vldb.entry(cell, text.clone()).await {
            Ok(entry) => Ok(self.sites_with_uuids(vldb, cell, &entry).await?),
            Err(failure) if failure.code() == Some(Abort::OPCODE) => {
                let entry = vldb.entry_without_uuids(cell, text).await;
                entry.map(|entry| self.sites_with_addresses(cell, &entry))
            }
            Err(failure) => Err(failure),
        };
        let entry = match asked {
            Ok(mut entry) => {
                let life = if entry.is_being_released() { RELEASE_LIFE } else { ENTRY_LIFE };
                entry.until = self.runtime.now() + life;
                Arc::new(entry)
            }
            Err(failure) => {
                let is_missing = [abort::VL_NOENT, abort::VL_ENTDELETED, abort::VL_BADNAME];
                if failure.code().is_some_and(|code| is_missing.contains(&code)) {
                    self.note_missing(self.runtime.now(), cell.index, name);
                    return Err(none());
                }
                return Err(failure.about(what()));
            }
        };
        self.keep(&entry);
        for kind in [VolumeType::READ_ONLY, VolumeType::BACKUP] {
            if let Some(id) = entry.id_of(kind) {
                vldb.note_read_only(cell.index, id);
            }
        }
        Ok(entry)
    }

    /// An entry with its servers named by UUID: their addresses are asked for where they are not known, or have changed.
    async fn sites_with_uuids(
        &self,
        vldb: &dyn Vldb,
        cell: &Cell,
        entry: &UvldbEntry,
    ) -> Result<VolumeEntry, Error> {
        let count = usize::try_from(entry.n_servers).unwrap_or(0).min(entry.server_number.len());
        let mut sites = Vec::new();
        for place in 0..count {
            let (uuid, flags) = (entry.server_number[place], entry.server_flags[place]);
            let server = if flags.contains(SiteFlags::UUID) {
                // The counter's numbers are the server's own: only whether it differs is looked at.
                let unique = entry.server_unique[place] as u32;
                match self.file_server(vldb, cell, uuid, unique).await {
                    Ok(server) => server,
                    Err(error) => {
                        tracing::warn!(cell = %cell.name, %error, "a file server's addresses are not known");
                        continue;
                    }
                }
            } else {
                self.servers.get_or_add(
                    ServerKind::File,
                    cell.index,
                    None,
                    &[self.file_socket(HostAddr(uuid.time_low))],
                )
            };
            sites.extend(server.map(|server| Site { server, flags }));
        }
        Ok(VolumeEntry {
            cell: cell.index,
            name: String::from_utf8_lossy(entry.name.text()).into_owned(),
            ids: entry.volume_id,
            flags: entry.flags,
            sites,
            until: self.runtime.now() + ENTRY_LIFE,
        })
    }

    fn sites_with_addresses(&self, cell: &Cell, entry: &NvldbEntry) -> VolumeEntry {
        let count = usize::try_from(entry.n_servers).unwrap_or(0).min(entry.server_number.len());
        let sites = (0..count).filter_map(|place| {
            let sockets = [self.file_socket(entry.server_number[place])];
            let server = self.servers.get_or_add(ServerKind::File, cell.index, None, &sockets)?;
            Some(Site { server, flags: entry.server_flags[place] })
        });
        VolumeEntry {
            cell: cell.index,
            name: String::from_utf8_lossy(entry.name.text()).into_owned(),
            ids: entry.volume_id,
            flags: entry.flags,
            sites: sites.collect(),
            until: self.runtime.now() + ENTRY_LIFE,
        }
    }

    /// The file server of a UUID, with its addresses.
    async fn file_server(
        &self,
        vldb: &dyn Vldb,
        cell: &Cell,
        uuid: Uuid,
        unique: u32,
    ) -> Result<Option<Arc<Server>>, Error> {
        let known = self.servers.by_uuid(ServerKind::File, cell.index, uuid);
        if let Some(server) = known.as_ref().filter(|s| s.unique.load(Ordering::Relaxed) == unique) {
            return Ok(Some(Arc::clone(server)));
        }
        let server = match self.ask_addresses(vldb, cell, uuid).await {
            Ok(server) => server,
            // Known addresses are better than none.
            Err(error) => return known.map(Some).ok_or(error),
        };
        if let Some(server) = &server {
            server.unique.store(unique, Ordering::Relaxed);
        }
        Ok(server)
    }

    fn file_socket(&self, address: HostAddr) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(address.ip()), self.file_port)
    }
}

/// A name of digits only is an id.
fn id_of_digits(name: &str) -> Option<VolumeId> {
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| name.parse().ok()).flatten().map(VolumeId)
}

#[cfg(test)]
mod tests;
