//! The volume location database, as the verbs of `vos` ask it: one question after the other, by numbers as they are on the command
//! line. How it is asked is in `afs_admin`.

use super::{Stop, Vos};
use crate::codes::Code;
use crate::printer::complain;
use afs_admin::Error;
use afs_admin::entry::{Entry, Kind};
use afs_admin::vldb::{ServerKey, Wanted};
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::{EntryFlags, ReleaseType};
use rxgen::xdr::Uuid;
use std::net::Ipv4Addr;

impl Vos {
    // ---- entries

    /// The entry of a volume.
    pub(super) fn entry_by_id(&self, id: u32, kind: Option<Kind>) -> Result<Entry, Code> {
        self.wait(self.vldb.entry_by_id(VolumeId(id), kind))
    }

    /// The entry of a volume; the name may be a number, or have a suffix.
    pub(super) fn entry_by_name(&self, name: &str) -> Result<Entry, Code> {
        self.wait(self.vldb.entry_by_name(name))
    }

    /// The id of a volume by its name, or the number that the text is; `None` if that is 0, or the volume has none.
    pub(super) fn volume_id(&self, text: &str) -> Result<Option<u32>, Code> {
        let id = self.caller.run(self.vldb.volume_id(text));
        let id = id.map_err(|error| {
            // What no server has said, nobody else tells.
            if let Error::Local { what, .. } = &error {
                complain!(self.printer, "vos: {what}\n");
            }
            Code(error.code().0)
        })?;
        Ok(id.map(|id| id.0))
    }

    /// The same for a command that needs one: `unknown` is what it says if there is none.
    pub(super) fn known_volume_id(
        &self,
        text: &str,
        stop: Stop,
        unknown: impl FnOnce() -> String,
    ) -> Result<u32, Stop> {
        match self.volume_id(text) {
            Ok(Some(id)) => return Ok(id),
            Ok(None) => complain!(self.printer, "{}\n", unknown()),
            Err(code) => self.print_error(code),
        }
        Err(stop)
    }

    /// Makes an entry.
    pub(super) fn create_entry(&self, entry: &Entry) -> Result<(), Code> {
        self.wait(self.vldb.create_entry(entry))
    }

    /// Replaces an entry, and releases its lock.
    pub(super) fn replace_entry(&self, id: u32, kind: Kind, entry: &Entry) -> Result<(), Code> {
        self.wait(self.vldb.replace_entry(VolumeId(id), kind, entry, ReleaseType::ALL))
    }

    /// Replaces an entry, and leaves its lock.
    pub(super) fn replace_locked_entry(&self, id: u32, kind: Kind, entry: &Entry) -> Result<(), Code> {
        self.wait(self.vldb.replace_entry(VolumeId(id), kind, entry, ReleaseType::NONE))
    }

    /// Removes an entry.
    pub(super) fn delete_entry(&self, id: u32, kind: Kind) -> Result<(), Code> {
        self.wait(self.vldb.delete_entry(VolumeId(id), kind))
    }

    /// Entries, a part at a time, which `take` is given.
    pub(super) fn list_entries(&self, wanted: Wanted, mut take: impl FnMut(Vec<Entry>)) -> Result<(), Code> {
        let mut next = Some(0);
        while let Some(start) = next {
            let (entries, following) = self.wait(self.vldb.entries(wanted, start))?;
            take(entries);
            next = following;
        }
        Ok(())
    }

    /// Entries, all in one reply.
    pub(super) fn list_all_entries(&self, wanted: Wanted) -> Result<Vec<Entry>, Code> {
        self.wait(self.vldb.all_entries(wanted))
    }

    // ---- locks

    /// Locks an entry for an operation. From then on Ctrl-C ends the verb in order.
    pub(super) fn set_lock(&self, id: u32, kind: Option<Kind>, operation: EntryFlags) -> Result<(), Code> {
        self.may_begin()?;
        self.wait(self.vldb.set_lock(VolumeId(id), kind, operation))
    }

    /// Releases the lock of an entry.
    pub(super) fn release_lock(&self, id: u32, kind: Option<Kind>) -> Result<(), Code> {
        self.wait(self.vldb.release_lock(VolumeId(id), kind))
    }

    // ---- ids

    /// Takes so many ids for new volumes. Returns the first of them.
    pub(super) fn new_volume_ids(&self, count: u32) -> Result<u32, Code> {
        self.wait(self.vldb.new_volume_ids(count)).map(|first| first.0)
    }

    // ---- file servers

    /// The number of file servers for which the database has places.
    pub(super) fn server_count(&self) -> Result<i32, Code> {
        self.wait(self.vldb.server_count())
    }

    /// A file server and its addresses.
    pub(super) fn server_addresses(&self, key: ServerKey) -> Result<(Uuid, Vec<Ipv4Addr>), Code> {
        self.wait(self.vldb.server_addresses(key))
    }

    /// Gives a file server another address.
    pub(super) fn change_address(&self, old: Ipv4Addr, new: Ipv4Addr) -> Result<(), Code> {
        self.wait(self.vldb.change_address(old, new))
    }

    /// Tells whether two addresses are of one file server.
    pub(super) fn is_same_server(&self, a: Ipv4Addr, b: Ipv4Addr) -> Result<bool, Code> {
        self.wait(self.vldb.is_same_server(a, b))
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
