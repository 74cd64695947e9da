//! The volume location database of a cell: entries, their locks, volume ids, and the file servers' addresses (VLDB notes).

use std::net::Ipv4Addr;

use afs_wire::Uuid;
use afs_wire::abort::{VL_BADENTRY, VL_BADVOLIDBUMP, VL_INDEXERANGE, VL_NOENT};
use afs_wire::ids::{HostAddr, PartitionId, VolumeId, VolumeType};
use afs_wire::vl::{
    self, AddrMask, BulkAddrs, EntryFlags, ListAddrByAttributes, ListMask, ReleaseType, VlName,
    VldbListByAttributes,
};
use futures_util::future::join_all;
use rx::Endpoint;
use rxgen::{Abort, Rpc};

use crate::database::{DatabaseServers, Machine};
use crate::entry::{Entry, Kind, base_name, kind_of_name};
use crate::error::Error;
use crate::login::Login;

/// The largest id that a volume may have: the counter of new ids stands above all, and has 32 bits.
pub const MAX_VOLUME_ID: u32 = u32::MAX - 1;
/// Places for file servers that a database can have (`MAXSERVERID`).
pub const SERVERS_MAX: i32 = 254;
/// Places that are asked for at once.
const SERVERS_AT_ONCE: usize = 16;
/// Most ids that a database gives out at once.
pub const IDS_AT_ONCE: u32 = 0x7fff_ffff;

/// The volume location database of a cell, called as one identity.
#[derive(Debug)]
pub struct LocationDb {
    servers: DatabaseServers,
}

/// The entries of the database that are listed: those that fulfil all that is given.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Those with a volume on this server.
    pub server: Option<Ipv4Addr>,
    /// Those with a volume on this partition.
    pub partition: Option<PartitionId>,
    /// Those that are locked.
    pub is_locked: bool,
}

/// The key by which a file server is looked up.
#[derive(Debug, Clone, Copy)]
pub enum ServerKey {
    /// One of its addresses.
    Address(Ipv4Addr),
    /// Its place in the database, from 1.
    Index(i32),
    /// Its own number.
    Uuid(Uuid),
}

/// A file server as it has registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Its own number.
    pub uuid: Uuid,
    /// The number of times that its addresses were changed.
    pub uniquifier: i32,
    /// Its addresses.
    pub addresses: Vec<Ipv4Addr>,
}

impl LocationDb {
    /// The database on these machines.
    pub fn new(endpoint: &Endpoint, machines: &[impl Machine], login: &Login) -> Self {
        Self::at(DatabaseServers::new::<vl::Vl>(endpoint, machines, login))
    }

    /// The database at these servers of [`Vl`](vl::Vl).
    pub const fn at(servers: DatabaseServers) -> Self {
        Self { servers }
    }

    async fn call<R: Rpc>(&self, args: R) -> Result<R::Reply, Error> {
        self.servers.call(&args).await
    }

    // ---- entries

    /// The entry of a volume, of this kind if one is given.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn entry_by_id(&self, volid: VolumeId, kind: Option<Kind>) -> Result<Entry, Error> {
        let reply = self.call(vl::GetEntryByIDN { volid, kind: on_wire(kind) }).await?;
        Ok(Entry::from_wire(&reply.entry))
    }

    /// The entry of a volume; the name may be a number, or have a suffix.
    ///
    /// # Errors
    ///
    /// The database's; VL_NOENT for what can be no name.
    pub async fn entry_by_name(&self, name: &str) -> Result<Entry, Error> {
        let reply = self.call(vl::GetEntryByNameN { name: name_on_wire(name)? }).await?;
        Ok(Entry::from_wire(&reply.entry))
    }

    /// The id of the volume that a text names: by its number, or by its name, which may have the suffix of a kind. `None` if the number
    /// is 0, or the entry has no volume of that kind.
    ///
    /// # Errors
    ///
    /// The database's; VL_NOENT for a number that is too large, and for what can be no name.
    pub async fn volume_id(&self, text: &str) -> Result<Option<VolumeId>, Error> {
        let id = match volume_number(text)? {
            Some(id) => id,
            None => self.entry_by_name(base_name(text)).await?.id(kind_of_name(text)),
        };
        Ok(Some(id).filter(|id| id.0 != 0))
    }

    /// Makes an entry.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn create_entry(&self, entry: &Entry) -> Result<(), Error> {
        let entry = entry.to_wire().ok_or_else(|| bad_entry(entry))?;
        self.call(vl::CreateEntryN { entry }).await.map(drop)
    }

    /// Replaces an entry, and releases these of its locks.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn replace_entry(
        &self,
        volid: VolumeId,
        kind: Kind,
        entry: &Entry,
        release: ReleaseType,
    ) -> Result<(), Error> {
        let entry = entry.to_wire().ok_or_else(|| bad_entry(entry))?;
        self.call(vl::ReplaceEntryN { volid, kind: kind.on_wire(), entry, release }).await.map(drop)
    }

    /// Removes an entry.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn delete_entry(&self, volid: VolumeId, kind: Kind) -> Result<(), Error> {
        self.call(vl::DeleteEntry { volid, kind: kind.on_wire() }).await.map(drop)
    }

    /// Entries from a place on, and the place of the next part, if there is one. The first place is 0.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn entries(&self, wanted: Wanted, start: i32) -> Result<(Vec<Entry>, Option<i32>), Error> {
        let (attributes, name) = (attributes(wanted), VlName::default());
        match self.call(vl::ListAttributesN2 { attributes, name, start_index: start }).await {
            Ok(reply) => {
                let entries = reply.entries.iter().map(Entry::from_wire).collect();
                // A server that gives the same place again would give it for ever.
                Ok((entries, Some(reply.next_start_index).filter(|next| *next > start)))
            }
            // Servers of long ago know no parts.
            Err(error) if error.code() == Abort::OPCODE => Ok((self.all_entries(wanted).await?, None)),
            Err(error) => Err(error),
        }
    }

    /// Entries, all in one reply.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn all_entries(&self, wanted: Wanted) -> Result<Vec<Entry>, Error> {
        let reply = self.call(vl::ListAttributesN { attributes: attributes(wanted) }).await?;
        Ok(reply.entries.iter().map(Entry::from_wire).collect())
    }

    // ---- locks

    /// Locks an entry for an operation.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn set_lock(
        &self,
        volid: VolumeId,
        kind: Option<Kind>,
        operation: EntryFlags,
    ) -> Result<(), Error> {
        self.call(vl::SetLock { volid, kind: on_wire(kind), operation }).await.map(drop)
    }

    /// Releases the locks of an entry.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn release_lock(&self, volid: VolumeId, kind: Option<Kind>) -> Result<(), Error> {
        self.call(vl::ReleaseLock { volid, kind: on_wire(kind), release: ReleaseType::ALL }).await.map(drop)
    }

    // ---- ids

    /// Takes so many ids for new volumes, and returns the first. Databases give out [`IDS_AT_ONCE`] at once at most.
    ///
    /// # Errors
    ///
    /// The database's; VL_BADVOLIDBUMP when its counter has come to its end.
    pub async fn new_volume_ids(&self, count: u32) -> Result<VolumeId, Error> {
        let first = self.call(vl::GetNewVolumeId { bump_count: count }).await?.new_volid;
        if all_fit(first.0, count) {
            return Ok(first);
        }
        let what = format!("the database gave {first} as the first of {count} ids: there are no more");
        Err(Error::Local { what, code: VL_BADVOLIDBUMP })
    }

    // ---- file servers

    /// The number of file servers for which the database has places.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn server_count(&self) -> Result<i32, Error> {
        self.places().await.map(|(count, _)| count)
    }

    /// The addresses of file servers that have one and did not register. In place of those that did are numbers that are no
    /// addresses, which are left out.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn plain_servers(&self) -> Result<Vec<Ipv4Addr>, Error> {
        self.places().await.map(|(_, plain)| plain)
    }

    /// The number of places, and the addresses of file servers that did not register.
    async fn places(&self) -> Result<(i32, Vec<Ipv4Addr>), Error> {
        let reply = self.call(vl::GetAddrs { handle: 0, spare2: 0 }).await?;
        let addresses = reply.addrs.iter().map(|address| address.ip());
        let plain = addresses.filter(|address| !matches!(address.octets()[0], 0 | 255)).collect();
        Ok((reply.n_entries, plain))
    }

    /// The addresses of each file server.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn file_servers(&self) -> Result<Vec<Vec<Ipv4Addr>>, Error> {
        let (mut left, plain) = self.places().await?;
        let mut found: Vec<_> = plain.into_iter().map(|address| vec![address]).collect();
        for first in (1..=SERVERS_MAX).step_by(SERVERS_AT_ONCE) {
            if left <= 0 {
                break;
            }
            let places = (first..=SERVERS_MAX).take(SERVERS_AT_ONCE);
            let asked = places.map(|place| self.server_addresses(ServerKey::Index(place)));
            for answer in join_all(asked).await {
                match answer {
                    Ok((_, addresses)) => {
                        found.push(addresses);
                        left -= 1;
                    }
                    // A place that is free.
                    Err(error) if error.code() == VL_NOENT => {}
                    Err(error) if error.code() == VL_INDEXERANGE => left = 0,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }

    /// The next volume id that the database gives out.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn next_volume_id(&self) -> Result<VolumeId, Error> {
        self.call(vl::GetStats {}).await.map(|reply| reply.header.max_volume_id)
    }

    /// A file server and its addresses.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn server_addresses(&self, key: ServerKey) -> Result<(Uuid, Vec<Ipv4Addr>), Error> {
        self.registration(key).await.map(|server| (server.uuid, server.addresses))
    }

    /// A file server as it has registered.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn registration(&self, key: ServerKey) -> Result<Registration, Error> {
        let mut by = ListAddrByAttributes {
            mask: AddrMask::NONE,
            ipaddr: HostAddr(0),
            index: 0,
            spare1: 0,
            uuid: Uuid::default(),
        };
        match key {
            ServerKey::Address(address) => (by.mask, by.ipaddr) = (AddrMask::IPADDR, HostAddr::from(address)),
            ServerKey::Index(index) => (by.mask, by.index) = (AddrMask::INDEX, index),
            ServerKey::Uuid(uuid) => (by.mask, by.uuid) = (AddrMask::UUID, uuid),
        }
        let reply = self.call(vl::GetAddrsU { by }).await?;
        let addresses = reply.addrs.iter().map(|address| address.ip()).collect();
        Ok(Registration { uuid: reply.uuid, uniquifier: reply.uniquifier, addresses })
    }

    /// Tells the database where a file server is, and whether it has rxgk, which is believed only where it is said by rxgk.
    ///
    /// # Errors
    ///
    /// The database's; VL_BADENTRY for more addresses than a call can have.
    pub async fn register(&self, uuid: Uuid, addresses: &[Ipv4Addr], has_rxgk: bool) -> Result<(), Error> {
        let addrs: Vec<_> = addresses.iter().copied().map(HostAddr::from).collect();
        let count = addrs.len();
        let too_many = |_| {
            let what = format!("{count} addresses are more than a call can have");
            Error::Local { what, code: VL_BADENTRY }
        };
        let addrs = BulkAddrs::new(addrs).map_err(too_many)?;
        let spare1 = if has_rxgk { vl::REGISTERS_RXGK } else { 0 };
        self.call(vl::RegisterAddrs { uuid, spare1, addrs }).await.map(drop)
    }

    /// Gives a file server another address.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn change_address(&self, old: Ipv4Addr, new: Ipv4Addr) -> Result<(), Error> {
        self.call(vl::ChangeAddr { old: HostAddr::from(old), new: HostAddr::from(new) }).await.map(drop)
    }

    /// Tells whether two addresses are of one file server.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn is_same_server(&self, a: Ipv4Addr, b: Ipv4Addr) -> Result<bool, Error> {
        if a == b {
            return Ok(true);
        }
        match self.server_addresses(ServerKey::Address(a)).await {
            Ok((_, addresses)) => Ok(addresses.contains(&b)),
            Err(error) if [VL_NOENT, Abort::OPCODE].contains(&error.code()) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The kind of a volume as calls have it; `None` where any will do.
const fn on_wire(kind: Option<Kind>) -> VolumeType {
    match kind {
        None => VolumeType::ANY,
        Some(kind) => kind.on_wire(),
    }
}

/// The number that a text is from its first to its last digit, which is decimal whatever it begins with; `None` if it is none.
///
/// # Errors
///
/// VL_NOENT for a number that no volume can have.
pub fn volume_number(text: &str) -> Result<Option<VolumeId>, Error> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    match text.parse() {
        Ok(id @ 0..=MAX_VOLUME_ID) => Ok(Some(VolumeId(id))),
        // It has digits alone, so it is too large.
        Ok(_) | Err(_) => {
            let what = format!("the volume ID {text} is out of range: it may be from 0 to {MAX_VOLUME_ID}");
            Err(Error::Local { what, code: VL_NOENT })
        }
    }
}

fn name_on_wire(name: &str) -> Result<VlName, Error> {
    // Servers that read numbers without looking at their size would take it for the volume of its lowest 32 bits.
    volume_number(name)?;
    // What is too long for a name is no name that exists.
    VlName::try_from(name)
        .map_err(|_| Error::Local { what: format!("no volume can be called {name}"), code: VL_NOENT })
}

fn bad_entry(entry: &Entry) -> Error {
    let (name, sites) = (&entry.name, entry.sites.len());
    let what = format!("an entry cannot have the name {name} and {sites} sites: one of them is too long");
    Error::Local { what, code: VL_BADENTRY }
}

fn attributes(wanted: Wanted) -> VldbListByAttributes {
    let mut mask = ListMask::NONE;
    if wanted.server.is_some() {
        mask |= ListMask::SERVER;
    }
    if wanted.partition.is_some() {
        mask |= ListMask::PARTITION;
    }
    if wanted.is_locked {
        mask |= ListMask::FLAG;
    }
    VldbListByAttributes {
        mask,
        server: wanted.server.map_or(HostAddr(0), HostAddr::from),
        partition: wanted.partition.unwrap_or(PartitionId(0)),
        spares3: 0,
        volumeid: VolumeId(0),
        flag: if wanted.is_locked { EntryFlags::OPERATIONS } else { EntryFlags::NONE },
    }
}

/// True if so many ids from this one on are ids. When the counter of a database has come to its end, some servers begin again at
/// 0, and the ids are those of other volumes.
fn all_fit(first: u32, count: u32) -> bool {
    let last = first.checked_add(count.saturating_sub(1));
    first != 0 && last.is_some_and(|last| last <= MAX_VOLUME_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_digits_is_no_other_volume_if_it_is_too_large() {
        for text in ["4294967295", "4294967297", "9999999999999999999999"] {
            assert_eq!(name_on_wire(text).unwrap_err().code(), VL_NOENT, "{text}");
        }
        for text in ["536870912", "010", "root.cell", "1a", ""] {
            assert!(name_on_wire(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_volume_is_named_by_decimal_digits_alone() {
        for (text, id) in [
            ("536870912", Some(536_870_912)),
            ("010", Some(10)),
            ("000", Some(0)),
            ("a1", None),
            ("1a", None),
            ("", None),
            ("-1", None),
            ("+1", None),
        ] {
            assert_eq!(volume_number(text).unwrap(), id.map(VolumeId), "{text}");
        }
        let error = volume_number("4294967295").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the volume ID 4294967295 is out of range: it may be from 0 to 4294967294"
        );
    }

    #[test]
    fn new_ids_do_not_begin_again() {
        assert!(all_fit(MAX_VOLUME_ID, 1));
        assert!(all_fit(MAX_VOLUME_ID - 2, 3));
        for (first, count) in [(0, 1), (u32::MAX, 1), (MAX_VOLUME_ID - 1, 3), (u32::MAX, u32::MAX)] {
            assert!(!all_fit(first, count), "{first} {count}");
        }
    }
}
