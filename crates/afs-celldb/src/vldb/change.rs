//! Changes of entries: each function looks at the database, makes the checks of stock servers in their order
//! (VLDB notes 4 to 6 and 13), and says which rows change.

use crate::database::Rows;
use crate::slots::free_row;

use super::errors::VlError;
use super::image::{Found, HEADER_KEY, MAX_SLOTS, Vldb, entry_key, server_key};
use super::records::{Entry, Header, MAX_NAME, MAX_SITES, Server, ServerNumber, Site, VolumeType};

/// Sites in the older forms of entries, and the most that [`Vldb::update`] looks at.
const OLD_SITES: usize = 8;

/// Largest flags of a site that are taken.
const MAX_SITE_FLAG: i32 = 0x80;

/// Most ids that can be asked for at once.
const MAX_ID_BUMP: u32 = 0x7fff_ffff;

/// A caller that asks for more ids than this wants the counter to be above ids that volumes have, as `vos syncvldb` does, and takes none of
/// them: looking for so many free ones would not end below 2^32. New volumes want three at most.
const MOST_FOR_VOLUMES: u32 = 1024;

/// The largest id of a volume. The counter of new ids has to stand above all that there are, and has 32 bits; and one of a stock
/// `vos` that counts on from a larger one begins again with 0, and means other volumes.
pub(crate) const MAX_VOLUME_ID: u32 = u32::MAX - 1;

/// The bits of an entry's flags that tell an operation: move, release, backup, delete, dump.
const OPERATIONS: [u32; 5] = [0x10, 0x20, 0x40, 0x80, 0x100];
const ALL_OPERATIONS: u32 = 0x1f0;
const RELEASE: u32 = 0x20;

/// The bit of an entry's flags that marks it as deleted. Nothing sets it but who writes flags.
pub(crate) const DELETED: u32 = 2;

/// What releasing a lock clears: the time, the operation, who holds it.
const RELEASE_TIMESTAMP: i32 = 1;
const RELEASE_OPERATION: i32 = 2;
const RELEASE_AFS_ID: i32 = 4;

/// An entry as a client wants it to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// The name, up to the first NUL; all bytes if there is none.
    pub name: Vec<u8>,
    /// The number of the sites that count, as it was sent.
    pub site_count: i32,
    /// As many sites as this form of an entry has room for.
    pub sites: Vec<NewSite>,
    /// The ids by [`VolumeType`].
    pub ids: [u32; 3],
    /// The id of a clone.
    pub clone_id: u32,
    /// VLF_...
    pub flags: u32,
}

/// A site as a client names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewSite {
    /// An address of the server.
    pub address: u32,
    /// The partition, as it was sent.
    pub partition: i32,
    /// VLSF_..., as they were sent.
    pub flags: i32,
}

/// The changes of an entry; `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// The name, up to the first NUL.
    pub name: Option<Vec<u8>>,
    /// VLF_...
    pub flags: Option<u32>,
    /// The id of a clone.
    pub clone_id: Option<u32>,
    /// The ids by [`VolumeType`].
    pub ids: [Option<u32>; 3],
    /// The changes of sites, and their number as it was sent.
    pub replicas: Option<(i32, Vec<ReplicaChange>)>,
}

/// A change of one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaChange {
    /// The actions: [`Self::ADD`] and so on, several at once in this order: delete, add, server, partition, flags.
    pub mask: u32,
    /// An address of the site's server.
    pub target_address: u32,
    /// The site's partition.
    pub target_partition: i32,
    /// The site that is to be there.
    pub new: NewSite,
}

impl ReplicaChange {
    /// Adds a site.
    pub const ADD: u32 = 0x200;
    /// Removes the site.
    pub const DELETE: u32 = 0x100;
    /// Replaces its server.
    pub const SERVER: u32 = 0x400;
    /// Replaces its partition.
    pub const PARTITION: u32 = 0x800;
    /// Replaces its flags.
    pub const FLAGS: u32 = 0x1000;
}

/// What a change has come to so far.
struct Draft<'a> {
    base: &'a Vldb,
    header: Header,
    /// Servers that are new, by number.
    servers: Vec<(ServerNumber, Server)>,
}

impl<'a> Draft<'a> {
    fn new(base: &'a Vldb) -> Self {
        Self { base, header: base.header(), servers: Vec::new() }
    }

    /// The server of an address, which is given a number if it has none.
    fn server(&mut self, address: u32) -> Result<ServerNumber, VlError> {
        let new = self.servers.iter().find(|(_, server)| server.has_address(address)).map(|(n, _)| *n);
        if let Some(number) = new.or_else(|| self.base.find_address(address)) {
            return Ok(number);
        }
        // Stock servers take an address of 0 for that of a server that is free: it never becomes a server.
        let taken = |number: &ServerNumber| self.servers.iter().any(|(new, _)| new == number);
        let number = (0..=254)
            .map(ServerNumber)
            .find(|number| matches!(self.base.server(*number), Server::Free { .. }) && !taken(number));
        let number = number.filter(|_| address != 0).ok_or(VlError::BadServer)?;
        self.servers.push((number, Server::Address(address)));
        Ok(number)
    }

    fn sites(&mut self, new: &NewEntry) -> Result<Vec<Site>, VlError> {
        let count = usize::try_from(new.site_count).unwrap_or(0);
        let sites = new.sites.iter().take(count);
        sites.map(|site| self.site(*site)).collect()
    }

    /// A site of which partition and flags were checked.
    fn site(&mut self, new: NewSite) -> Result<Site, VlError> {
        Ok(Site { server: self.server(new.address)?, partition: new.partition as u8, flags: new.flags as u8 })
    }

    fn finish(self, rows: &mut Rows) {
        for (number, server) in &self.servers {
            rows.put(server_key(*number), server.to_row());
        }
        if self.header != self.base.header() {
            rows.put(HEADER_KEY.to_vec(), self.header.to_row());
        }
    }
}

impl NewEntry {
    fn check(&self) -> Result<(), VlError> {
        check_name(&self.name)?;
        let count = usize::try_from(self.site_count).map_err(|_| VlError::BadServer)?;
        if count == 0 || count > self.sites.len() || count > MAX_SITES {
            return Err(VlError::BadServer);
        }
        self.sites[..count].iter().try_for_each(|site| {
            check_partition(site.partition)?;
            check_flags(site.flags)
        })
    }
}

/// Checks that a volume may be called so.
pub(crate) fn check_name(name: &[u8]) -> Result<(), VlError> {
    let is_legal = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_".contains(byte);
    if name.len() <= MAX_NAME && name.iter().all(is_legal) { Ok(()) } else { Err(VlError::BadName) }
}

fn check_partition(partition: i32) -> Result<(), VlError> {
    if (0..=255).contains(&partition) { Ok(()) } else { Err(VlError::BadPartition) }
}

fn check_flags(flags: i32) -> Result<(), VlError> {
    if (0..=MAX_SITE_FLAG).contains(&flags) { Ok(()) } else { Err(VlError::BadServerFlag) }
}

/// The type that a look-up names; -1 is any.
pub(crate) fn check_type(number: i32) -> Result<Option<VolumeType>, VlError> {
    if number == -1 {
        return Ok(None);
    }
    VolumeType::from_wire(number).map(Some).ok_or(VlError::BadVolumeType)
}

fn check_release(kind: i32) -> Result<(), VlError> {
    let known = RELEASE_TIMESTAMP | RELEASE_OPERATION | RELEASE_AFS_ID;
    if kind == 0 || kind & known != 0 { Ok(()) } else { Err(VlError::BadReleaseType) }
}

fn release(entry: &mut Entry, kind: i32) {
    if kind & RELEASE_TIMESTAMP != 0 {
        entry.lock_timestamp = 0;
    }
    if kind & RELEASE_OPERATION != 0 {
        entry.flags &= !ALL_OPERATIONS;
    }
    if kind & RELEASE_AFS_ID != 0 {
        entry.lock_afs_id = 0;
    }
}

/// Whether volumes may have these ids, where they are new.
fn check_ids(ids: impl IntoIterator<Item = u32>) -> Result<(), VlError> {
    if ids.into_iter().all(|id| id <= MAX_VOLUME_ID) { Ok(()) } else { Err(VlError::BadEntry) }
}

impl Vldb {
    /// Makes an entry (CreateEntry, CreateEntryN).
    ///
    /// # Errors
    ///
    /// If it is not as it should be, or one of its ids or its name exists.
    pub fn create(&self, new: &NewEntry, rows: &mut Rows) -> Result<(), VlError> {
        new.check()?;
        check_ids(new.ids)?;
        if new.ids.iter().any(|id| *id != 0 && self.find_id(*id, None).is_some()) {
            return Err(VlError::IdExists);
        }
        if self.find_name(&new.name).is_some() {
            return Err(VlError::NameExists);
        }
        let mut draft = Draft::new(self);
        let slot = match draft.header.free {
            Some(slot) => {
                draft.header.free = self.slots().next_free(slot);
                slot
            }
            None => Some(self.slots().len()).filter(|slot| *slot < MAX_SLOTS).ok_or(VlError::CreateFailed)?,
        };
        draft.header.allocs = draft.header.allocs.wrapping_add(1);
        let entry = Entry {
            name: new.name.clone(),
            ids: new.ids,
            clone_id: new.clone_id,
            flags: new.flags,
            lock_timestamp: 0,
            lock_afs_id: 0,
            sites: draft.sites(new)?,
        };
        // Ids other than 0 were looked for; two volumes without an id would be two with that of a read-write volume.
        self.check_hashable(VolumeType::ReadWrite, entry.ids[0], None)?;
        rows.put(entry_key(slot), entry.to_row());
        draft.finish(rows);
        Ok(())
    }

    /// Removes an entry (DeleteEntry).
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn delete(&self, id: u32, volume_type: i32, rows: &mut Rows) -> Result<(), VlError> {
        let volume_type = check_type(volume_type)?;
        let found = self.find_existing(id, volume_type)?;
        let mut draft = Draft::new(self);
        rows.put(entry_key(found.slot), free_row(draft.header.free));
        draft.header.free = Some(found.slot);
        draft.header.frees = draft.header.frees.wrapping_add(1);
        draft.finish(rows);
        Ok(())
    }

    /// Replaces an entry (ReplaceEntry, ReplaceEntryN), and releases its lock if `release_kind` says so.
    ///
    /// # Errors
    ///
    /// If there is none, the new one is not as it should be, or another has one of its ids or its name. `checks_ids` is
    /// for the older form, which refuses an id that a volume of another type has as well.
    pub fn replace(
        &self,
        id: u32,
        volume_type: i32,
        new: &NewEntry,
        release_kind: i32,
        checks_ids: bool,
        rows: &mut Rows,
    ) -> Result<(), VlError> {
        new.check()?;
        let volume_type = check_type(volume_type)?;
        check_release(release_kind)?;
        let found = self.find_id(id, volume_type).ok_or(VlError::NoEntry)?;
        let mut entry = found.row.to_entry();
        if new.ids[0] != entry.ids[0] {
            return Err(VlError::BadEntry);
        }
        for volume_type in [VolumeType::ReadOnly, VolumeType::Backup] {
            let (old, new) = (entry.ids[volume_type as usize], new.ids[volume_type as usize]);
            if old == new || new == 0 {
                continue;
            }
            check_ids([new])?;
            if checks_ids && self.find_id(new, None).is_some() {
                return Err(VlError::IdExists);
            }
            self.check_hashable(volume_type, new, Some(found.slot))?;
        }
        // Stock servers check this in the older form only, and in the newer one make two entries of one name.
        if new.name != entry.name && self.find_name(&new.name).is_some() {
            return Err(VlError::NameExists);
        }
        let mut draft = Draft::new(self);
        entry.name.clone_from(&new.name);
        entry.sites = draft.sites(new)?;
        entry.ids = new.ids;
        entry.clone_id = new.clone_id;
        entry.flags = new.flags;
        release(&mut entry, release_kind);
        rows.put(entry_key(found.slot), entry.to_row());
        draft.finish(rows);
        Ok(())
    }

    /// Changes what `update` names (UpdateEntry).
    ///
    /// # Errors
    ///
    /// If there is no such entry, or a change of it cannot be made; nothing is changed then.
    pub fn update(
        &self,
        id: u32,
        volume_type: i32,
        update: &Update,
        release_kind: i32,
        rows: &mut Rows,
    ) -> Result<(), VlError> {
        let volume_type = check_type(volume_type)?;
        check_release(release_kind)?;
        let found = self.find_id(id, volume_type).ok_or(VlError::NoEntry)?;
        self.update_found(found, update, release_kind, rows)
    }

    /// Changes what `update` names (UpdateEntryByName).
    ///
    /// # Errors
    ///
    /// As [`Self::update`].
    pub fn update_by_name(
        &self,
        name: &[u8],
        update: &Update,
        release_kind: i32,
        rows: &mut Rows,
    ) -> Result<(), VlError> {
        check_release(release_kind)?;
        let found = self.find_name(name).ok_or(VlError::NoEntry)?;
        self.update_found(found, update, release_kind, rows)
    }

    fn update_found(
        &self,
        found: Found<'_>,
        update: &Update,
        release_kind: i32,
        rows: &mut Rows,
    ) -> Result<(), VlError> {
        check_ids(update.ids.iter().flatten().copied())?;
        if update.ids.iter().flatten().any(|id| *id != 0 && self.find_id(*id, None).is_some()) {
            return Err(VlError::IdExists);
        }
        let mut entry = found.row.to_entry();
        if let Some(name) = &update.name {
            check_name(name)?;
            if self.find_name(name).is_some() {
                return Err(VlError::NameExists);
            }
            entry.name.clone_from(name);
        }
        entry.flags = update.flags.unwrap_or(entry.flags);
        entry.clone_id = update.clone_id.unwrap_or(entry.clone_id);
        for volume_type in VolumeType::ALL {
            if let Some(id) = update.ids[volume_type as usize] {
                if id != 0 || volume_type == VolumeType::ReadWrite {
                    self.check_hashable(volume_type, id, Some(found.slot))?;
                }
                entry.ids[volume_type as usize] = id;
            }
        }
        let mut draft = Draft::new(self);
        if let Some((count, changes)) = &update.replicas {
            let count = usize::try_from(*count).ok().filter(|count| (1..=OLD_SITES).contains(count));
            for change in changes.iter().take(count.ok_or(VlError::BadServer)?) {
                change_site(&mut draft, &mut entry.sites, change)?;
            }
        }
        release(&mut entry, release_kind);
        rows.put(entry_key(found.slot), entry.to_row());
        draft.finish(rows);
        Ok(())
    }

    /// Locks an entry for an operation (SetLock). A lock does not expire.
    ///
    /// # Errors
    ///
    /// If there is none, it is locked, or a release of it was not finished.
    pub fn lock(
        &self,
        id: u32,
        volume_type: i32,
        operation: i32,
        now: u32,
        rows: &mut Rows,
    ) -> Result<(), VlError> {
        let volume_type = check_type(volume_type)?;
        let operation = operation as u32;
        if !OPERATIONS.contains(&operation) {
            return Err(VlError::BadOperation);
        }
        let found = self.find_existing(id, volume_type)?;
        let mut entry = found.row.to_entry();
        if entry.lock_timestamp != 0 {
            return Err(VlError::EntryLocked);
        }
        if entry.flags & RELEASE != 0 {
            return Err(VlError::Rerelease);
        }
        entry.lock_timestamp = now.max(1);
        entry.lock_afs_id = 0;
        entry.flags = entry.flags & !ALL_OPERATIONS | operation;
        rows.put(entry_key(found.slot), entry.to_row());
        Ok(())
    }

    /// Releases a lock, or parts of it (ReleaseLock).
    ///
    /// # Errors
    ///
    /// If there is no such entry.
    pub fn unlock(&self, id: u32, volume_type: i32, kind: i32, rows: &mut Rows) -> Result<(), VlError> {
        let volume_type = check_type(volume_type)?;
        check_release(kind)?;
        let found = self.find_existing(id, volume_type)?;
        let mut entry = found.row.to_entry();
        release(&mut entry, kind);
        rows.put(entry_key(found.slot), entry.to_row());
        Ok(())
    }

    /// Gives out `count` ids and returns the first (GetNewVolumeId). What was given out once never is again: the counter
    /// is in the store before anyone hears of it.
    ///
    /// # Errors
    ///
    /// If so many cannot be given out.
    pub fn take_ids(&self, count: u32, rows: &mut Rows) -> Result<u32, VlError> {
        if count > MAX_ID_BUMP {
            return Err(VlError::BadIdBump);
        }
        let mut draft = Draft::new(self);
        let first = match count > MOST_FOR_VOLUMES {
            true => Some(self.next_ids(0)).flatten().filter(|first| first.checked_add(count).is_some()),
            false => self.next_ids(count),
        };
        let first = first.ok_or(VlError::BadIdBump)?;
        draft.header.max_volume_id = first + count;
        draft.finish(rows);
        Ok(first)
    }

    /// An entry that is not marked as deleted.
    fn find_existing(&self, id: u32, volume_type: Option<VolumeType>) -> Result<Found<'_>, VlError> {
        let found = self.find_id(id, volume_type).ok_or(VlError::NoEntry)?;
        if found.row.flags() & DELETED != 0 { Err(VlError::EntryDeleted) } else { Ok(found) }
    }

    /// Whether an entry may get this id: no other has it for its volume of this type.
    fn check_hashable(&self, volume_type: VolumeType, id: u32, own: Option<u32>) -> Result<(), VlError> {
        match self.find_id(id, Some(volume_type)) {
            Some(found) if Some(found.slot) != own => Err(VlError::IdAlreadyHashed),
            _ => Ok(()),
        }
    }
}

/// Makes one change of a volume's sites.
fn change_site(draft: &mut Draft<'_>, sites: &mut Vec<Site>, change: &ReplicaChange) -> Result<(), VlError> {
    check_partition(change.target_partition)?;
    let is = |kind: u32| change.mask & kind != 0;
    let find = |draft: &mut Draft<'_>, sites: &[Site], address: u32, partition: i32| {
        let server = draft.server(address).ok()?;
        let is_it = |site: &Site| site.server == server && i32::from(site.partition) == partition;
        sites.iter().take(OLD_SITES).position(is_it)
    };
    let target = |draft: &mut Draft<'_>, sites: &[Site]| {
        find(draft, sites, change.target_address, change.target_partition).ok_or(VlError::NoSite)
    };
    if is(ReplicaChange::DELETE) {
        let at = target(draft, sites)?;
        sites.remove(at);
    }
    if is(ReplicaChange::ADD) {
        check_partition(change.new.partition)?;
        if find(draft, sites, change.new.address, change.new.partition).is_some() {
            return Err(VlError::DuplicateSite);
        }
        if sites.len() >= OLD_SITES {
            return Err(VlError::SitesFull);
        }
        draft.server(change.new.address)?;
        check_flags(change.new.flags)?;
        sites.push(draft.site(change.new)?);
    }
    if is(ReplicaChange::SERVER) {
        let at = target(draft, sites)?;
        sites[at].server = draft.server(change.new.address)?;
    }
    if is(ReplicaChange::PARTITION) {
        check_partition(change.new.partition)?;
        let at = target(draft, sites)?;
        sites[at].partition = change.new.partition as u8;
    }
    if is(ReplicaChange::FLAGS) {
        let at = target(draft, sites)?;
        check_flags(change.new.flags)?;
        sites[at].flags = change.new.flags as u8;
    }
    Ok(())
}
