//! The volume location database, as the verbs of `vos` ask it: one question after the other, by numbers as they are on the command
//! line. How it is asked is in `afs_admin`.

use super::{Stop, Vos};
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::complain;
use afs_admin::entry::{Entry, Kind, base_name};
use afs_admin::vldb::{MAX_VOLUME_ID, ServerKey, Wanted};
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
        Ok(Some(entry.id(kind).0).filter(|id| *id != 0))
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

    /// Takes so many ids for new volumes, of which this is the first.
    pub(super) fn new_volume_ids(&self, count: u32) -> Result<u32, Code> {
        self.wait(self.vldb.new_volume_ids(count)).map(|first| first.0)
    }

    // ---- file servers

    /// How many file servers the database has places for.
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

    /// Whether two addresses are of one file server.
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
        }
    }
}
