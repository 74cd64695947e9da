//! The parts of `vos syncvldb`: an entry of the volume location database is checked against what servers have, and a
//! volume that a server has against its entry. What is wrong is put right in the entry. The entry is locked only where it is
//! to change, and then looked at once more.

use super::Vos;
use super::show_volume::name_of;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::{Entry, HEADER_NAME_MAX, Kind, NAME_MAX, Site, base_name};
use afs_admin::vldb::IDS_AT_ONCE;
use afs_wire::afsvol::VolintInfo;
use afs_wire::ids::{PartitionId, VolumeId, VolumeType};
use afs_wire::vl::{EntryFlags, SiteFlags};
use serde_json::json;
use std::net::Ipv4Addr;

/// The line between what is told of one entry and of the next.
pub(super) const LINE: &str = "_______________________________\n";

/// The result of checking an entry against servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checked {
    Right,
    Changed,
    Deleted,
}

/// The options of a check.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// True if what is wrong is put right.
    pub(super) updates: bool,
    /// True if entries are shown before and after.
    pub(super) tells: bool,
}

/// The numbers of what a verb has looked at.
pub(super) struct Synced {
    /// Entries of the database, or volumes of servers.
    pub(super) entries: usize,
    pub(super) failures: usize,
    /// Those that were not right.
    pub(super) changes: usize,
    /// True if they were put right.
    pub(super) updates: bool,
}

/// A volume that a server has.
#[derive(Debug)]
struct Found {
    id: u32,
    name: String,
    kind: Kind,
    /// The read-write volume's id.
    parent: u32,
    clone: u32,
    backup: u32,
    server: Ipv4Addr,
    partition: PartitionId,
}

impl Found {
    fn new(volume: &VolintInfo, server: Ipv4Addr, partition: PartitionId) -> Self {
        let kind = match volume.kind {
            VolumeType::READ_ONLY => Kind::ReadOnly,
            VolumeType::BACKUP => Kind::Backup,
            _ => Kind::ReadWrite,
        };
        let id = volume.volid.0;
        Self {
            id,
            name: name_of(volume.name.text()),
            kind,
            parent: if kind == Kind::ReadWrite { id } else { volume.parent_id.0 },
            clone: volume.clone_id.0,
            backup: volume.backup_id.0,
            server,
            partition,
        }
    }

    const fn site(&self, flags: SiteFlags) -> Site {
        Site { server: self.server, partition: self.partition, flags }
    }
}

impl Vos {
    // ---- an entry against the servers

    /// Checks that the volumes of an entry are where it says, and puts it right.
    pub(super) fn check_entry(&self, entry: &mut Entry, updates: bool) -> Result<Checked, Code> {
        if entry.name.len() > NAME_MAX {
            complain!(self.printer, "Volume name {} exceeds limit of {NAME_MAX} characters\n", entry.name);
        }
        let id = entry.id(Kind::ReadWrite).0;
        let is_wrong = self.check_read_write(entry)? | self.check_read_only(entry)?;
        if !is_wrong {
            return Ok(Checked::Right);
        }
        if !updates {
            return Ok(Checked::Changed);
        }
        self.set_lock(id, Some(Kind::ReadWrite), EntryFlags::OP_DELETE).inspect_err(|_| {
            complain!(self.printer, "Could not lock VLDB entry for {id} \n");
        })?;
        self.put_right(entry, id).inspect_err(|_| {
            if self.release_lock(id, Some(Kind::ReadWrite)).is_err() {
                complain!(self.printer, "Could not release lock on VLDB entry for volume {id}\n");
            }
        })
    }

    /// Looks at a locked entry again, and puts it right.
    fn put_right(&self, entry: &mut Entry, id: u32) -> Result<Checked, Code> {
        *entry = self.entry_by_id(id, Some(Kind::ReadWrite)).inspect_err(|_| {
            complain!(self.printer, "Could not read VLDB entry for volume {}\n", entry.name);
        })?;
        self.check_read_write(entry)?;
        self.check_read_only(entry)?;
        if !entry.has_any() {
            self.delete_entry(id, Kind::ReadWrite).inspect_err(|_| {
                complain!(self.printer, "Could not delete VLDB entry for volume {id} \n");
            })?;
            return Ok(Checked::Deleted);
        }
        self.replace_entry(id, Kind::ReadWrite, entry).inspect_err(|_| {
            complain!(self.printer, "Could not update VLDB entry for volume {id}\n");
        })?;
        Ok(Checked::Changed)
    }

    /// Makes the entry say whether the read-write and the backup volume are there. Returns whether it said otherwise.
    fn check_read_write(&self, entry: &mut Entry) -> Result<bool, Code> {
        let index = entry.read_write_index();
        let mut is_changed = false;
        for (kind, letters) in [(Kind::ReadWrite, "RW"), (Kind::Backup, "BK")] {
            let is_there = match index.map(|index| entry.sites[index]) {
                None => false,
                Some(Site { server, partition, .. }) => {
                    match self.has_volume(server, partition, entry.id(kind).0) {
                        Ok(is_there) => is_there,
                        // What is not said to be there need not be.
                        Err(_) if !entry.has(kind) => false,
                        Err(code) => {
                            complain!(
                                self.printer,
                                "Transaction call failed for {letters} volume {} on server {} {partition}\n",
                                entry.id(kind).0,
                                self.host(server)
                            );
                            return Err(code);
                        }
                    }
                }
            };
            if entry.has(kind) != is_there {
                entry.set_exists(kind, is_there);
                is_changed = true;
            }
        }
        if let Some(index) = index
            && !entry.has(Kind::ReadWrite)
            && !entry.has(Kind::Backup)
        {
            entry.sites.remove(index);
            is_changed = true;
        }
        Ok(is_changed)
    }

    /// The same for the read-only volumes.
    fn check_read_only(&self, entry: &mut Entry) -> Result<bool, Code> {
        let id = entry.id(Kind::ReadOnly).0;
        let (mut is_changed, mut exists) = (false, false);
        let mut kept = Vec::new();
        for site in &entry.sites {
            let is_kept = !site.is(Kind::ReadOnly)
                || self.has_volume(site.server, site.partition, id).inspect_err(|_| {
                    let (host, partition) = (self.host(site.server), site.partition);
                    complain!(
                        self.printer,
                        "Transaction call failed for RO {id} on server {host} {partition}\n"
                    );
                })?;
            exists |= is_kept && site.is(Kind::ReadOnly);
            is_changed |= !is_kept;
            if is_kept {
                kept.push(*site);
            }
        }
        entry.sites = kept;
        if entry.has(Kind::ReadOnly) != exists {
            entry.set_exists(Kind::ReadOnly, exists);
            is_changed = true;
        }
        Ok(is_changed)
    }

    // ---- a volume against its entry

    /// Checks that the entry of a volume that a server has says so, and puts it right or makes it. With `known` that is the
    /// entry. True if it was not right. The highest id that there is goes to `max_id`.
    pub(super) fn check_volume(
        &self,
        volume: &VolintInfo,
        server: Ipv4Addr,
        partition: PartitionId,
        how: How,
        max_id: &mut u32,
        known: Option<&mut Entry>,
    ) -> Result<bool, Code> {
        let found = Found::new(volume, server, partition);
        let result = self.check_found(&found, how, max_id, known);
        if how.tells {
            say!(self.printer, "\n{LINE}");
        }
        result
    }

    fn check_found(
        &self,
        found: &Found,
        how: How,
        max_id: &mut u32,
        known: Option<&mut Entry>,
    ) -> Result<bool, Code> {
        let id = found.parent;
        let (mut entry, is_new) = self.entry_of(found, known.as_deref())?;
        if how.tells {
            self.tell_before((!is_new).then_some(&entry));
        }
        let mut is_changed = self.enter(found, &mut entry, is_new, true)?;
        if is_changed && how.updates {
            if is_new {
                self.create_entry(&entry).inspect_err(|_| {
                    say!(self.printer, "Could not create a VLDB entry for the volume {id}\n");
                })?;
            } else {
                is_changed = self.enter_locked(found, &mut entry, known.as_deref())?;
            }
        }
        *max_id = entry.ids.into_iter().map(|id| id.0).fold(*max_id, u32::max);
        if how.tells {
            self.tell_after(if is_changed { Checked::Changed } else { Checked::Right }, &entry);
        }
        if let Some(known) = known {
            *known = entry;
        }
        Ok(is_changed)
    }

    /// The entry of a volume, or a new one.
    fn entry_of(&self, found: &Found, known: Option<&Entry>) -> Result<(Entry, bool), Code> {
        if let Some(known) = known {
            return Ok((known.clone(), false));
        }
        match self.entry_by_id(found.parent, Some(Kind::ReadWrite)) {
            Ok(entry) => Ok((entry, false)),
            Err(Code::VL_NOENT) => {
                let name = base_name(&found.name).to_owned();
                Ok((
                    Entry {
                        name,
                        sites: Vec::new(),
                        ids: [VolumeId(0); 3],
                        clone_id: VolumeId(0),
                        flags: EntryFlags::NONE,
                    },
                    true,
                ))
            }
            Err(code) => {
                say!(self.printer, "Could not retrieve the VLDB entry for volume {} \n", found.parent);
                Err(code)
            }
        }
    }

    /// Enters a volume once more, with the entry locked.
    fn enter_locked(&self, found: &Found, entry: &mut Entry, known: Option<&Entry>) -> Result<bool, Code> {
        let id = found.parent;
        self.set_lock(id, Some(Kind::ReadWrite), EntryFlags::OP_DELETE).inspect_err(|_| {
            complain!(self.printer, "Could not lock VLDB entry for {id}\n");
        })?;
        let unlock = || {
            if let Err(code) = self.release_lock(id, Some(Kind::ReadWrite)) {
                complain!(self.printer, "Could not unlock VLDB entry ");
                self.print_error(code);
            }
        };
        let entered = self.entry_of(found, known).and_then(|(again, is_new)| {
            *entry = again;
            self.enter(found, entry, is_new, false)
        });
        match entered {
            Ok(true) => {
                self.replace_entry(id, Kind::ReadWrite, entry).inspect_err(|_| {
                    complain!(self.printer, "Could not update entry for {id}\n");
                    unlock();
                })?;
                Ok(true)
            }
            other => {
                unlock();
                other
            }
        }
    }

    /// Enters a volume into its entry, as far as it is not there. True if that changed it. Warns of volumes that are at the
    /// wrong place if `warns`.
    fn enter(&self, found: &Found, entry: &mut Entry, is_new: bool, warns: bool) -> Result<bool, Code> {
        match found.kind {
            Kind::ReadWrite => self.enter_read_write(found, entry, is_new, warns),
            Kind::Backup => self.enter_backup(found, entry, is_new, warns),
            Kind::ReadOnly => self.enter_read_only(found, entry, warns),
        }
    }

    fn warn(&self, id: u32, kind: &str, server: Ipv4Addr, partition: PartitionId, truth: &str) {
        let host = self.host(server);
        complain!(
            self.printer,
            "*** Warning: Orphaned {kind} volume {id} exists on {host} {partition}\n    VLDB reports {truth}\n"
        );
    }

    fn enter_read_write(
        &self,
        found: &Found,
        entry: &mut Entry,
        is_new: bool,
        warns: bool,
    ) -> Result<bool, Code> {
        let mut is_changed = false;
        let mut index = Some(0);
        let mut is_missing = true;
        if !is_new {
            is_changed = self.check_read_write(entry)?;
            index = entry.read_write_index();
            if let Some(index) = index {
                let Site { server, partition, .. } = entry.sites[index];
                let is_here =
                    self.site_index(entry, Kind::ReadWrite, found.server, found.partition).is_some();
                let id = found.parent;
                if is_here {
                    is_missing = (found.backup != 0 && entry.id(Kind::Backup).0 == 0)
                        || (found.clone != 0 && entry.id(Kind::ReadOnly).0 == 0)
                        || head(&entry.name) != head(&found.name);
                } else if entry.has(Kind::ReadWrite) {
                    is_missing = false;
                    if warns {
                        let truth = format!("RW volume {id} exists on {} {partition}", self.host(server));
                        self.warn(id, "RW", found.server, found.partition, &truth);
                    }
                } else if entry.has(Kind::Backup) && warns {
                    let (host, at) = (self.host(found.server), found.partition);
                    let truth = format!("its RW volume {id} exists on {host} {at}");
                    self.warn(entry.id(Kind::Backup).0, "BK", server, partition, &truth);
                }
            }
        }
        if is_missing {
            put(entry, index, found.site(SiteFlags::RW_VOL));
            entry.set_exists(Kind::ReadWrite, true);
            entry.set_id(Kind::ReadWrite, VolumeId(found.parent));
            for (kind, id) in [(Kind::Backup, found.backup), (Kind::ReadOnly, found.clone)] {
                if entry.id(kind).0 == 0 {
                    entry.set_id(kind, VolumeId(id));
                }
            }
            entry.name.clone_from(&found.name);
            self.check_read_write(entry)?;
            is_changed = true;
        }
        Ok(is_changed)
    }

    fn enter_backup(
        &self,
        found: &Found,
        entry: &mut Entry,
        is_new: bool,
        warns: bool,
    ) -> Result<bool, Code> {
        let mut is_changed = false;
        let mut index = Some(0);
        let mut is_missing = true;
        if !is_new {
            is_changed = self.check_read_write(entry)?;
            index = entry.read_write_index();
            if let Some(index) = index {
                let Site { server, partition, .. } = entry.sites[index];
                let listed = entry.id(Kind::Backup).0;
                let is_here =
                    self.site_index(entry, Kind::ReadWrite, found.server, found.partition).is_some();
                if !is_here {
                    is_missing = false;
                    if warns {
                        let (parent, host) = (found.parent, self.host(server));
                        let truth = format!("its RW/BK volume {parent} exists on {host} {partition}");
                        self.warn(found.id, "BK", found.server, found.partition, &truth);
                    }
                } else if found.id == listed {
                    is_missing = false;
                } else if entry.has(Kind::Backup) {
                    // Of two the newer one counts, which has the higher id.
                    is_missing = found.id > listed;
                    let (orphan, valid) = if is_missing { (listed, found.id) } else { (found.id, listed) };
                    if warns {
                        let truth = format!("its BK volume ID is {valid}");
                        self.warn(orphan, "BK", found.server, partition, &truth);
                    }
                }
            }
        }
        if is_missing {
            put(entry, index, found.site(SiteFlags::RW_VOL));
            entry.set_exists(Kind::Backup, true);
            entry.set_id(Kind::ReadWrite, VolumeId(found.parent));
            entry.set_id(Kind::Backup, VolumeId(found.id));
            is_changed = true;
        }
        Ok(is_changed)
    }

    fn enter_read_only(&self, found: &Found, entry: &mut Entry, warns: bool) -> Result<bool, Code> {
        let here = |entry: &Entry| self.site_index(entry, Kind::ReadOnly, found.server, found.partition);
        let listed = entry.id(Kind::ReadOnly).0;
        let mut is_changed = false;
        // Whether it is to be entered, and at which of the sites; at none that there is, as another.
        let missing_at = if found.id == listed {
            match here(entry) {
                Some(index) => (!entry.has(Kind::ReadOnly)).then_some(Some(index)),
                None => Some(None),
            }
        } else {
            is_changed = self.check_read_only(entry)?;
            if !entry.has(Kind::ReadOnly) {
                Some(None)
            } else if found.id > listed {
                // The newer one counts, which has the higher id: the others are left over.
                for site in entry.sites.iter().filter(|site| warns && site.is(Kind::ReadOnly)) {
                    let truth = format!("its RO volume ID is {}", found.id);
                    self.warn(listed, "RO", site.server, found.partition, &truth);
                }
                entry.sites.retain(|site| !site.is(Kind::ReadOnly));
                is_changed = true;
                Some(None)
            } else {
                if warns {
                    let truth = format!("its RO volume ID is {listed}");
                    self.warn(found.id, "RO", found.server, found.partition, &truth);
                }
                None
            }
        };
        if let Some(index) = missing_at {
            put(entry, index, found.site(SiteFlags::RO_VOL));
            entry.set_exists(Kind::ReadOnly, true);
            entry.set_id(Kind::ReadWrite, VolumeId(found.parent));
            entry.set_id(Kind::ReadOnly, VolumeId(found.id));
            is_changed = true;
        }
        Ok(is_changed)
    }

    // ---- what is told

    /// Prints the numbers, with `-json`.
    pub(super) fn say_synced(&self, synced: Synced) {
        if self.json {
            let Synced { entries, failures, changes, updates } = synced;
            let changed = if updates { "changed" } else { "would_change" };
            self.printer.say_json(&json!({ "entries": entries, "failed": failures, changed: changes }));
        }
    }

    /// The entry as it was.
    pub(super) fn tell_before(&self, entry: Option<&Entry>) {
        say!(self.printer, "{LINE}\n-- status before -- \n");
        match entry {
            None => say!(self.printer, "\n**does not exist**\n"),
            Some(entry) if entry.has_any() => self.show_entry(entry),
            Some(_) => {}
        }
        say!(self.printer, "\n");
    }

    /// Tells what has become of it.
    pub(super) fn tell_after(&self, checked: Checked, entry: &Entry) {
        say!(self.printer, "-- status after --\n");
        match checked {
            Checked::Right => say!(self.printer, "\n**no change**\n"),
            Checked::Changed => self.show_entry(entry),
            Checked::Deleted => say!(self.printer, "\n**entry deleted**\n"),
        }
    }

    // ---- ids

    /// Makes sure that no new volume gets an id that is there already.
    pub(super) fn raise_max_id(&self, max_id: u32) -> Result<(), Code> {
        if max_id == 0 {
            return Ok(());
        }
        let next = self.new_volume_ids(0).inspect_err(|_| {
            complain!(self.printer, "Could not get the highest allocated volume id from the VLDB\n");
        })?;
        // None is left above the largest; who has such a volume gives it another id.
        let end = max_id.saturating_add(1);
        let mut next = next;
        while next < end {
            let count = (end - next).min(IDS_AT_ONCE);
            next += count;
            self.new_volume_ids(count).inspect_err(|_| {
                complain!(self.printer, "Error in increasing highest allocated volume id in VLDB\n");
            })?;
        }
        Ok(())
    }
}

/// Replaces a site, or adds one.
fn put(entry: &mut Entry, index: Option<usize>, site: Site) {
    match index.and_then(|index| entry.sites.get_mut(index)) {
        Some(old) => *old = site,
        None => entry.sites.push(site),
    }
}

/// The part of a name that a volume's header has room for.
fn head(name: &str) -> &[u8] {
    &name.as_bytes()[..name.len().min(HEADER_NAME_MAX)]
}
