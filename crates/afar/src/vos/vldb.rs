//! The volume location database of a cell, as its servers show it: entries, their locks, volume ids, and file servers'
//! addresses. What is printed of it is for the verbs.

use super::Vos;
use super::entry::{Entry, Kind, base_name};
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use afs_wire::ids::{HostAddr, PartitionId, VolumeId, VolumeType};
use afs_wire::vl::{
    self, AddrMask, EntryFlags, ListAddrByAttributes, ListMask, ReleaseType, VlName, VldbListByAttributes,
};
use rxgen::Rpc;
use rxgen::xdr::Uuid;
use std::net::Ipv4Addr;

/// The largest id that a volume may have: the counter of new ids stands above all, and has 32 bits.
pub(super) const MAX_VOLUME_ID: u32 = u32::MAX - 1;
/// Most ids that a database gives out at once.
pub(super) const IDS_AT_ONCE: u32 = 0x7fff_ffff;

/// Which entries of the database are listed: those that fulfil all that is given.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted {
    pub(super) server: Option<Ipv4Addr>,
    pub(super) partition: Option<PartitionId>,
    pub(super) is_locked: bool,
}

/// What a file server is looked up by.
#[derive(Debug, Clone, Copy)]
pub(super) enum ServerKey {
    Address(Ipv4Addr),
    /// From 1.
    Index(i32),
    Uuid(Uuid),
}

/// The type of a volume as calls have it; `None` where any will do.
fn kind_on_wire(kind: Option<Kind>) -> VolumeType {
    match kind {
        None => VolumeType::ANY,
        Some(Kind::ReadWrite) => VolumeType::READ_WRITE,
        Some(Kind::ReadOnly) => VolumeType::READ_ONLY,
        Some(Kind::Backup) => VolumeType::BACKUP,
    }
}

fn name_on_wire(name: &str) -> Result<VlName, Code> {
    // Servers that read numbers without looking at their size would take it for the volume of its lowest 32 bits.
    if matches!(as_number(name), Some(Err(_))) {
        return Err(Code::VL_NOENT);
    }
    // What is too long for a name is no name that exists.
    VlName::try_from(name).map_err(|_| Code::VL_NOENT)
}

impl Vos {
    fn ask<R: Rpc>(&self, args: &R) -> Result<R::Reply, Code> {
        self.caller.wait(self.vldb.call(args))
    }

    // ---- entries

    /// The entry of a volume.
    pub(super) fn entry_by_id(&self, id: u32, kind: Option<Kind>) -> Result<Entry, Code> {
        let reply = self.ask(&vl::GetEntryByIDN { volid: VolumeId(id), kind: kind_on_wire(kind) })?;
        Ok(Entry::from_wire(&reply.entry))
    }

    /// The entry of a volume; the name may be a number, or have a suffix.
    pub(super) fn entry_by_name(&self, name: &str) -> Result<Entry, Code> {
        let reply = self.ask(&vl::GetEntryByNameN { name: name_on_wire(name)? })?;
        Ok(Entry::from_wire(&reply.entry))
    }

    /// The id of a volume by its name, or the number that the text is; `None` if that is 0, or the volume has none.
    pub(super) fn volume_id(&self, text: &str) -> Result<Option<u32>, Code> {
        if let Some(number) = as_number(text) {
            let number = number.map_err(|bad| {
                self.printer.complain(&format!("vos: the volume ID {text} {bad}\n"));
                Code::VL_NOENT
            })?;
            return Ok((number != 0).then_some(number));
        }
        let entry = self.entry_by_name(base_name(text))?;
        let kind = if text.ends_with(".readonly") {
            Kind::ReadOnly
        } else if text.ends_with(".backup") {
            Kind::Backup
        } else {
            Kind::ReadWrite
        };
        Ok(Some(entry.id(kind)).filter(|id| *id != 0))
    }

    /// Makes an entry.
    pub(super) fn create_entry(&self, entry: &Entry) -> Result<(), Code> {
        let entry = entry.to_wire().ok_or(Code::VL_BADENTRY)?;
        self.ask(&vl::CreateEntryN { entry }).map(drop)
    }

    /// Replaces an entry, and releases its lock.
    pub(super) fn replace_entry(&self, id: u32, kind: Kind, entry: &Entry) -> Result<(), Code> {
        self.replace_entry_and_release(id, kind, entry, ReleaseType::ALL)
    }

    /// Replaces an entry, and leaves its lock.
    pub(super) fn replace_locked_entry(&self, id: u32, kind: Kind, entry: &Entry) -> Result<(), Code> {
        self.replace_entry_and_release(id, kind, entry, ReleaseType::NONE)
    }

    fn replace_entry_and_release(
        &self,
        id: u32,
        kind: Kind,
        entry: &Entry,
        release: ReleaseType,
    ) -> Result<(), Code> {
        let entry = entry.to_wire().ok_or(Code::VL_BADENTRY)?;
        let (volid, kind) = (VolumeId(id), kind_on_wire(Some(kind)));
        self.ask(&vl::ReplaceEntryN { volid, kind, entry, release }).map(drop)
    }

    /// Removes an entry.
    pub(super) fn delete_entry(&self, id: u32, kind: Kind) -> Result<(), Code> {
        self.ask(&vl::DeleteEntry { volid: VolumeId(id), kind: kind_on_wire(Some(kind)) }).map(drop)
    }

    /// Entries, a part at a time, which `take` is given.
    pub(super) fn list_entries(&self, wanted: Wanted, mut take: impl FnMut(Vec<Entry>)) -> Result<(), Code> {
        let attributes = attributes(wanted);
        let mut next = Some(0);
        while let Some(start_index) = next {
            let name = VlName::default();
            match self.ask(&vl::ListAttributesN2 { attributes, name, start_index }) {
                Ok(reply) => {
                    take(reply.entries.iter().map(Entry::from_wire).collect());
                    // A server that gives the same place again would give it for ever.
                    next = Some(reply.next_start_index).filter(|next| *next > start_index);
                }
                Err(Code::NO_SUCH_PROCEDURE) => {
                    take(self.list_all_entries(wanted)?);
                    next = None;
                }
                Err(code) => return Err(code),
            }
        }
        Ok(())
    }

    /// Entries, all in one reply.
    pub(super) fn list_all_entries(&self, wanted: Wanted) -> Result<Vec<Entry>, Code> {
        let reply = self.ask(&vl::ListAttributesN { attributes: attributes(wanted) })?;
        Ok(reply.entries.iter().map(Entry::from_wire).collect())
    }

    // ---- locks

    /// Locks an entry for an operation.
    pub(super) fn set_lock(&self, id: u32, kind: Option<Kind>, operation: EntryFlags) -> Result<(), Code> {
        self.ask(&vl::SetLock { volid: VolumeId(id), kind: kind_on_wire(kind), operation }).map(drop)
    }

    /// Releases the lock of an entry.
    pub(super) fn release_lock(&self, id: u32, kind: Option<Kind>) -> Result<(), Code> {
        let (volid, kind) = (VolumeId(id), kind_on_wire(kind));
        self.ask(&vl::ReleaseLock { volid, kind, release: ReleaseType::ALL }).map(drop)
    }

    // ---- ids

    /// Takes so many ids for new volumes, of which this is the first. Databases give out [`IDS_AT_ONCE`] at once at most.
    pub(super) fn new_volume_ids(&self, count: u32) -> Result<u32, Code> {
        let reply = self.ask(&vl::GetNewVolumeId { bump_count: count })?;
        all_fit(reply.new_volid.0, count)
    }

    // ---- file servers

    /// How many file servers the database has places for.
    pub(super) fn server_count(&self) -> Result<i32, Code> {
        self.ask(&vl::GetAddrs { handle: 0, spare2: 0 }).map(|reply| reply.n_entries)
    }

    /// A file server and its addresses.
    pub(super) fn server_addresses(&self, key: ServerKey) -> Result<(Uuid, Vec<Ipv4Addr>), Code> {
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
        let reply = self.ask(&vl::GetAddrsU { by })?;
        Ok((reply.uuid, reply.addrs.iter().map(|address| address.ip()).collect()))
    }

    /// Gives a file server another address.
    pub(super) fn change_address(&self, old: Ipv4Addr, new: Ipv4Addr) -> Result<(), Code> {
        self.ask(&vl::ChangeAddr { old: HostAddr::from(old), new: HostAddr::from(new) }).map(drop)
    }

    /// Whether two addresses are of one file server.
    pub(super) fn is_same_server(&self, a: Ipv4Addr, b: Ipv4Addr) -> Result<bool, Code> {
        if a == b {
            return Ok(true);
        }
        match self.server_addresses(ServerKey::Address(a)) {
            Ok((_, addresses)) => Ok(addresses.contains(&b)),
            Err(Code::VL_NOENT | Code::NO_SUCH_PROCEDURE) => Ok(false),
            Err(code) => Err(code),
        }
    }

    /// The first of an entry's sites with a volume of this kind on this partition of this server.
    pub(super) fn site_index(
        &self,
        entry: &Entry,
        kind: Kind,
        server: Ipv4Addr,
        partition: PartitionId,
    ) -> Option<usize> {
        for (index, site) in entry.sites.iter().enumerate().filter(|(_, site)| site.is(kind)) {
            if site.partition == partition {
                match self.is_same_server(site.server, server) {
                    Ok(true) => return Some(index),
                    Ok(false) => {}
                    Err(code) => {
                        let address = i32::from_ne_bytes(site.server.octets());
                        self.printer.complain(&format!(
                            "Failed to get info about server's {address} address(es) from vlserver (err={})\n",
                            code.0
                        ));
                        return None;
                    }
                }
            }
            // There is one read-write volume.
            if kind != Kind::ReadOnly {
                return None;
            }
        }
        None
    }
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

/// The first of so many ids, unless the counter of the database has come to its end: some servers begin again at 0 then, and the ids are
/// those of other volumes.
fn all_fit(first: u32, count: u32) -> Result<u32, Code> {
    let last = first.checked_add(count.saturating_sub(1)).filter(|last| *last <= MAX_VOLUME_ID);
    last.filter(|_| first != 0).map(|_| first).ok_or(Code::VL_BADVOLIDBUMP)
}

/// The number that a text is from its first to its last digit, which is decimal whatever it begins with.
fn as_number(text: &str) -> Option<Result<u32, BadNumber>> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = text.trim_start_matches('0');
    Some(numbers::parse(if digits.is_empty() { "0" } else { digits }, 0..=MAX_VOLUME_ID))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_digits_is_no_other_volume_if_it_is_too_large() {
        assert_eq!(as_number("536870912"), Some(Ok(536_870_912)));
        assert_eq!(as_number("010"), Some(Ok(10)));
        assert_eq!(as_number("000"), Some(Ok(0)));
        assert_eq!(
            (as_number("a1"), as_number("1a"), as_number(""), as_number("-1")),
            (None, None, None, None)
        );
        for text in ["4294967295", "4294967297", "9999999999999999999999"] {
            assert!(matches!(as_number(text), Some(Err(BadNumber::OutOfRange { .. }))), "{text}");
            assert_eq!(name_on_wire(text).unwrap_err(), Code::VL_NOENT, "{text}");
        }
    }

    #[test]
    fn new_ids_do_not_begin_again() {
        assert_eq!(all_fit(MAX_VOLUME_ID, 1), Ok(MAX_VOLUME_ID));
        assert_eq!(all_fit(MAX_VOLUME_ID - 2, 3), Ok(MAX_VOLUME_ID - 2));
        for (first, count) in [(0, 1), (u32::MAX, 1), (MAX_VOLUME_ID - 1, 3), (u32::MAX, u32::MAX)] {
            assert_eq!(all_fit(first, count), Err(Code::VL_BADVOLIDBUMP), "{first} {count}");
        }
    }
}
