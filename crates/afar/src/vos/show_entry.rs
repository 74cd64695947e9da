//! An entry of the volume location database, as `vos` prints it.

use super::Vos;
use crate::printer::say;
use afs_admin::entry::{Entry, Kind};
use afs_wire::vl::{EntryFlags, SiteFlags};
use serde_json::{Value, json};

/// The operations for which an entry is locked.
const LOCKS: &[(EntryFlags, &str, &str)] = &[
    (EntryFlags::OP_MOVE, "a move", "move"),
    (EntryFlags::OP_RELEASE, "a release", "release"),
    (EntryFlags::OP_BACKUP, "a backup", "backup"),
    (EntryFlags::OP_DELETE, "a delete/misc", "delete"),
    (EntryFlags::OP_DUMP, "a dump/restore", "dump"),
];

impl Vos {
    /// Name, ids and sites.
    pub(super) fn show_entry(&self, entry: &Entry) {
        say!(self.printer, "\n{} \n", entry.name);
        self.show_sites(entry);
    }

    /// Ids and sites.
    pub(super) fn show_sites(&self, entry: &Entry) {
        for (kind, label) in
            [(Kind::ReadWrite, "RWrite"), (Kind::ReadOnly, "ROnly"), (Kind::Backup, "Backup")]
        {
            if entry.has(kind) {
                say!(self.printer, "    {label}: {:<10}", entry.id(kind).0);
            }
        }
        if entry.clone_id.0 != 0 && entry.has(Kind::ReadOnly) {
            say!(self.printer, "    RClone: {:<10}", entry.clone_id.0);
        }
        say!(self.printer, "\n    number of sites -> {}\n", entry.sites.len());
        let is_mixed = entry.sites.iter().any(|site| site.flags.contains(SiteFlags::NEW_REP_SITE));
        for site in &entry.sites {
            let is_read_write = site.flags.contains(SiteFlags::RW_VOL);
            let kind = if is_read_write { "RW Site " } else { "RO Site " };
            let state = if is_mixed {
                match site.flags.contains(SiteFlags::NEW_REP_SITE) {
                    true => " -- New release",
                    false if is_read_write => "",
                    false => " -- Old release",
                }
            } else if site.flags.contains(SiteFlags::DONT_USE) {
                " -- Not released"
            } else {
                ""
            };
            let host = self.host(site.server);
            say!(self.printer, "       server {host} partition {} {kind}{state}\n", site.partition);
        }
    }

    /// Shows whether it is locked, and for what.
    pub(super) fn show_locks(&self, entry: &Entry) {
        if !entry.flags.intersects(EntryFlags::OPERATIONS) {
            return;
        }
        say!(self.printer, "    Volume is currently LOCKED  \n");
        for (flag, operation, _) in LOCKS {
            if entry.flags.contains(*flag) {
                say!(self.printer, "    Volume is locked for {operation} operation\n");
            }
        }
    }

    /// All of the entry.
    pub(super) fn entry_as_json(&self, entry: &Entry) -> Value {
        let id = |kind| Some(entry.id(kind).0).filter(|id| *id != 0);
        let sites: Vec<Value> = entry
            .sites
            .iter()
            .map(|site| {
                json!({
                    "server": site.server.to_string(),
                    "host": self.host(site.server),
                    "partition": site.partition.to_string(),
                    "type": if site.flags.contains(SiteFlags::RW_VOL) { "RW" } else { "RO" },
                    "new_release": site.flags.contains(SiteFlags::NEW_REP_SITE),
                    "released": !site.flags.contains(SiteFlags::DONT_USE),
                })
            })
            .collect();
        let locks: Vec<&str> =
            LOCKS.iter().filter(|(flag, ..)| entry.flags.contains(*flag)).map(|(.., name)| *name).collect();
        json!({
            "name": entry.name,
            "rw_id": id(Kind::ReadWrite),
            "ro_id": id(Kind::ReadOnly),
            "backup_id": id(Kind::Backup),
            "clone_id": Some(entry.clone_id.0).filter(|id| *id != 0),
            "rw_exists": entry.has(Kind::ReadWrite),
            "ro_exists": entry.has(Kind::ReadOnly),
            "backup_exists": entry.has(Kind::Backup),
            "sites": sites,
            "locks": locks,
        })
    }
}
