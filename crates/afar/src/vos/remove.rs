//! `vos remove`: removes a volume from its server, and from the volume location database.

use super::snapshot::remove_one;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::utc_of;
use crate::printer::{complain, say};
use afs_admin::entry::{Entry, Kind};
use afs_wire::abort::VOLSERBADOP;
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::EntryFlags;
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let server = given.word("server").map(|name| vos.server(name, "server", Stop::RETURNED)).transpose()?;
    let partition = match given.word("partition") {
        None => None,
        Some(name) => {
            let partition = vos.partition(name, Stop::RETURNED)?;
            let server = server.unwrap_or(Ipv4Addr::UNSPECIFIED);
            vos.check_partition(server, partition, name, Stop::RETURNED)?;
            Some(partition)
        }
    };
    let id = match vos.volume_id(text) {
        Ok(Some(id)) => id,
        other => {
            complain!(vos.printer, "Can't find volume name '{text}' in VLDB\n");
            if let Err(code) = other {
                vos.print_error(code);
            }
            return Err(Stop::RETURNED);
        }
    };
    let (server, partition) = match (server, partition) {
        (Some(server), Some(partition)) => (server, partition),
        (server, partition) => locate(vos, text, id, server, partition)?,
    };
    let drops = given.has("snapshots");
    let has_snapshots = drops && !vos.snapshots_at(server, partition, id).is_empty();
    remove(vos, server, partition, id, has_snapshots).map_err(|code| {
        if code == Code(VOLSERBADOP.0) {
            tell_of_snapshot(vos, server, id);
        }
        vos.print_diagnostics("remove", code);
        Stop::RETURNED
    })?;
    // Among them is what the volume itself has left. Each is tried, also if one cannot be removed.
    let snapshots = if drops { vos.snapshots_at(server, partition, id) } else { Vec::new() };
    let removed = snapshots.iter().filter(|snapshot| remove_one(vos, server, snapshot).is_ok()).count();
    vos.warn_of_snapshots(server, partition, id);
    if vos.json {
        let place = (server.to_string(), partition.to_string());
        let mut said = json!({ "removed": id, "server": place.0, "partition": place.1 });
        if drops {
            said["removed_snapshots"] = removed.into();
        }
        if let Some(left) = vos.removed_at(server, partition, id) {
            said["undelete_until"] = utc_of(left.until.0).into();
        }
        vos.printer.say_json(&said);
    } else {
        let host = vos.resolved(server);
        say!(vos.printer, "Volume {id} on partition {partition} server {host} deleted\n");
        vos.tell_of_undelete(server, partition, id);
        if drops {
            say!(vos.printer, "Deleted snapshots of volume {id}: {removed}\n");
        }
    }
    if removed == snapshots.len() { Ok(()) } else { Err(Stop::RETURNED) }
}

/// Says how a snapshot is removed, if the volume is one.
fn tell_of_snapshot(vos: &Vos, server: Ipv4Addr, id: u32) {
    let listed = vos.wait(vos.volumes.snapshots(server, VolumeId(0))).unwrap_or_default();
    if let Some(snapshot) = listed.into_iter().find(|snapshot| snapshot.volid.0 == id) {
        let (parent, time) = (snapshot.parent, utc_of(snapshot.made.0));
        complain!(
            vos.printer,
            "vos: volume {id} is snapshot {time} of volume {parent}: 'vos snapshot unpublish' takes its name back, 'vos snapshot remove' removes it\n"
        );
    }
}

/// Finds the place of the volume in the database, as far as it is not given.
fn locate(
    vos: &Vos,
    text: &str,
    id: u32,
    server: Option<Ipv4Addr>,
    partition: Option<PartitionId>,
) -> Result<(Ipv4Addr, PartitionId), Stop> {
    let entry = vos.entry_by_id(id, None).map_err(|code| {
        complain!(vos.printer, "Could not fetch the entry for volume {id} from VLDB\n");
        vos.print_error(code);
        Stop::RETURNED
    })?;
    let fits = |site: &&afs_admin::entry::Site| {
        server.is_none_or(|server| server == site.server)
            && partition.is_none_or(|partition| partition == site.partition)
    };
    let no_match = || {
        complain!(vos.printer, "VLDB: Volume '{text}' no match\n");
        Stop::RETURNED
    };
    let is = |kind| entry.id(kind).0 == id && entry.has(kind);
    let site = if is(Kind::ReadWrite) || is(Kind::Backup) {
        entry.read_write_site().filter(|site| fits(&site)).ok_or_else(no_match)?
    } else if is(Kind::ReadOnly) {
        let mut all = entry.sites.iter().filter(|site| site.is(Kind::ReadOnly)).filter(fits);
        let first = *all.next().ok_or_else(no_match)?;
        if all.next().is_some() {
            complain!(vos.printer, "VLDB: Volume '{text}' matches more than one RO\n");
            return Err(Stop::RETURNED);
        }
        first
    } else {
        return Err(no_match());
    };
    Ok((site.server, site.partition))
}

/// The database's knowledge of a volume.
enum Known {
    /// Its entry, which is locked.
    Entry(Entry),
    Nothing,
}

/// Removes a volume, which may be gone already if only its snapshots are left.
fn remove(
    vos: &Vos,
    server: Ipv4Addr,
    partition: PartitionId,
    id: u32,
    has_snapshots: bool,
) -> Result<(), Code> {
    let known = match vos.set_lock(id, None, EntryFlags::OP_DELETE) {
        Err(Code::VL_NOENT) => Known::Nothing,
        Err(code) => {
            vos.print_failure(code, &format!("Could not lock VLDB entry for the volume {id}\n"));
            return failed(vos, code);
        }
        Ok(()) => match vos.entry_by_id(id, None) {
            Ok(entry) => {
                if vos.verbose && !vos.json {
                    vos.show_entry(&entry);
                }
                Known::Entry(entry)
            }
            Err(code) => {
                vos.print_failure(code, &format!("Could not fetch VLDB entry for volume {id}\n"));
                let result = failed(vos, code);
                return unlock(vos, id, result);
            }
        },
    };
    let is_locked = matches!(known, Known::Entry(_));
    let (result, is_released) = remove_known(vos, server, partition, id, known, has_snapshots);
    if is_locked && !is_released { unlock(vos, id, result) } else { result }
}

/// Removes the volume, then what the entry says of it. Also says whether the entry's lock is released.
fn remove_known(
    vos: &Vos,
    server: Ipv4Addr,
    partition: PartitionId,
    id: u32,
    known: Known,
    has_snapshots: bool,
) -> (Result<(), Code>, bool) {
    if let Err(code) = vos.may_begin() {
        return (failed(vos, code), false);
    }
    let is_on_disk = match vos.delete_volume(server, partition, id, "the") {
        Ok(()) => true,
        Err(Code::VNOVOL) => has_snapshots,
        Err(code) => return (failed(vos, code), false),
    };
    let updated = match known {
        Known::Nothing => Ok(Updated::NoEntry),
        Known::Entry(entry) => update_entry(vos, server, partition, id, entry),
    };
    let (result, is_released, missing) = match updated {
        Ok(Updated::Done) => (Ok(()), true, None),
        Ok(Updated::NoEntry) => (Ok(()), false, Some("")),
        Ok(Updated::NotThere) => (Ok(()), false, Some("on server and partition")),
        Err(code) => (failed(vos, code), false, None),
    };
    match (is_on_disk, missing) {
        (false, Some(place)) => {
            let code = Code::VOLSERNOVOL;
            vos.print_failure(code, &format!("Volume {id} does not exist {place}\n"));
            (result.and(Err(code)), is_released)
        }
        (false, None) => {
            complain!(vos.printer, "WARNING: Volume {id} did not exist on the partition\n");
            (result, is_released)
        }
        (true, Some(place)) => {
            complain!(vos.printer, "WARNING: Volume {id} does not exist in VLDB {place}\n");
            (result, is_released)
        }
        (true, None) => (result, is_released),
    }
}

enum Updated {
    /// The entry says so, and is not locked any more.
    Done,
    /// There is no entry.
    NoEntry,
    /// The entry says that the volume is not there.
    NotThere,
}

fn update_entry(
    vos: &Vos,
    server: Ipv4Addr,
    partition: PartitionId,
    id: u32,
    mut entry: Entry,
) -> Result<Updated, Code> {
    let site = |entry: &Entry, kind| vos.site_index(entry, kind, server, partition);
    let kind = if id == entry.id(Kind::Backup).0 {
        if !entry.has(Kind::Backup) || site(&entry, Kind::ReadWrite).is_none() {
            return Ok(Updated::NotThere);
        }
        vos.tell(&format!("Marking the backup volume {id} deleted in the VLDB\n"));
        entry.set_exists(Kind::Backup, false);
        Kind::Backup
    } else if id == entry.id(Kind::ReadOnly).0 {
        let Some(index) = site(&entry, Kind::ReadOnly) else { return Ok(Updated::NotThere) };
        vos.tell(&format!("Marking the readonly volume {id} deleted in the VLDB\n"));
        entry.sites.remove(index);
        if !entry.sites.iter().any(|site| site.is(Kind::ReadOnly)) {
            entry.set_exists(Kind::ReadOnly, false);
        }
        Kind::ReadOnly
    } else if id == entry.id(Kind::ReadWrite).0 {
        let index = site(&entry, Kind::ReadWrite).filter(|_| entry.has(Kind::ReadWrite));
        let Some(index) = index else { return Ok(Updated::NotThere) };
        let backup = entry.id(Kind::Backup).0;
        if backup != 0 {
            match vos.delete_volume(server, partition, backup, "the backup") {
                Ok(()) | Err(Code::VNOVOL) => {}
                Err(code) => return Err(code),
            }
        }
        let and_backup = if entry.has(Kind::Backup) { ", and its backup volume," } else { "" };
        vos.tell(&format!("Marking the readwrite volume {id}{and_backup} deleted in the VLDB\n"));
        entry.sites.remove(index);
        entry.set_exists(Kind::Backup, false);
        entry.set_exists(Kind::ReadWrite, false);
        if entry.has(Kind::ReadOnly) {
            complain!(vos.printer, "WARNING: ReadOnly copy(s) may still exist\n");
        }
        Kind::ReadWrite
    } else {
        return Ok(Updated::NotThere);
    };
    if entry.sites.is_empty() || !(entry.has(Kind::ReadOnly) || entry.has(Kind::ReadWrite)) {
        vos.tell(&format!("Last reference to the VLDB entry for {id} - deleting entry\n"));
        vos.delete_entry(id, kind).inspect_err(|code| {
            vos.print_failure(*code, &format!("Could not delete the VLDB entry for the volume {id} \n"));
        })?;
    } else {
        vos.replace_entry(id, kind, &entry).inspect_err(|code| {
            vos.print_failure(*code, &format!("Could not update the VLDB entry for the volume {id} \n"));
        })?;
    }
    Ok(Updated::Done)
}

fn failed(vos: &Vos, code: Code) -> Result<(), Code> {
    vos.print_failure(code, "\n");
    Err(code)
}

fn unlock(vos: &Vos, id: u32, result: Result<(), Code>) -> Result<(), Code> {
    let unlocked = vos.release_lock(id, None).inspect_err(|code| {
        let what = format!("Could not release the lock on the VLDB entry for the volume {id} \n");
        vos.print_failure(*code, &what);
    });
    result.and(unlocked)
}
