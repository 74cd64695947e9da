//! `vos snapshot publish` and `unpublish`: gives a snapshot a name and an entry in the volume location database, so that every client can mount it, and
//! takes them back. The entry has the snapshot as its read-write volume, because clients look for such a one under a plain name. Nobody can write
//! into it all the same.

use super::show_volume::name_of;
use super::snapshot::{Placed, find, times};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::utc_of;
use crate::printer::{complain, say};
use afs_admin::entry::{Entry, Kind, NAME_MAX, Site, check_name};
use afs_wire::afsvol::{SnapshotInfo, SnapshotType};
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::vl::{EntryFlags, SiteFlags};
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn publish(vos: &Vos, given: &Given, id: u32) -> Done {
    let (server, snapshot) = one(vos, given, id)?;
    let time = utc_of(snapshot.made.0);
    if snapshot.kind == SnapshotType::REMOVED {
        complain!(
            vos.printer,
            "vos: {time} is what the removed volume {id} has left: 'vos undelete {id}' brings it back\n"
        );
        return Err(Stop::RETURNED);
    }
    let name = given
        .word("name")
        .map_or_else(|| format!("{}.{}", name_of(&snapshot.name), snapshot.volid), str::to_owned);
    if check_name(&name).is_err() {
        complain!(
            vos.printer,
            "vos: '{name}' is no name for a volume: give one with -name that has at most {NAME_MAX} bytes, is no number, and does not end in .readonly or .backup\n"
        );
        return Err(Stop::RETURNED);
    }
    let has_entry = has_entry(vos, &snapshot, &name)?;
    if !given.has("force") {
        complain!(
            vos.printer,
            "Whoever had the right to read the volume at {time} can read it there again, whatever its access lists are now.\n"
        );
        vos.ask(&format!("Publish it as {name}?"))?;
    }
    vos.may_begin().map_err(|_| Stop::RETURNED)?;
    if !has_entry {
        vos.create_entry(&entry(server, &snapshot, &name)).map_err(|code| {
            complain!(
                vos.printer,
                "Could not create a VLDB entry for the volume {name} {}\n",
                snapshot.volid
            );
            vos.print_error(code);
            Stop::RETURNED
        })?;
    }
    vos.caller.run(vos.volumes.publish_snapshot(server, &snapshot, &name, true)).map_err(|error| {
        complain!(vos.printer, "vos: snapshot {time} of volume {id} was not published: {error}\n");
        if !has_entry {
            let _ = delete_entry(vos, &snapshot);
        }
        Stop::RETURNED
    })?;
    say!(vos.printer, "Published snapshot {time} of volume {id} as {name}\n");
    if vos.json {
        vos.printer.say_json(
            &json!({ "id": id, "snapshot_id": snapshot.volid.0, "time": time, "published_as": name }),
        );
    }
    Ok(())
}

pub(super) fn unpublish(vos: &Vos, given: &Given, id: u32) -> Done {
    let (server, snapshot) = one(vos, given, id)?;
    let time = utc_of(snapshot.made.0);
    if snapshot.kind != SnapshotType::PUBLISHED && vos.entry_by_id(snapshot.volid.0, None).is_err() {
        complain!(vos.printer, "vos: snapshot {time} of volume {id} is not published\n");
        return Err(Stop::RETURNED);
    }
    // The volume may have another name than at that time, or be gone.
    let name = vos.entry_by_id(id, None).map_or_else(|_| name_of(&snapshot.name), |entry| entry.name);
    vos.may_begin().map_err(|_| Stop::RETURNED)?;
    vos.caller.run(vos.volumes.publish_snapshot(server, &snapshot, &name, false)).map_err(|error| {
        complain!(vos.printer, "vos: snapshot {time} of volume {id} is still published: {error}\n");
        Stop::RETURNED
    })?;
    delete_entry(vos, &snapshot)?;
    say!(vos.printer, "Snapshot {time} of volume {id} is not published any more\n");
    if vos.json {
        let snapshot = snapshot.volid.0;
        vos.printer
            .say_json(&json!({ "id": id, "snapshot_id": snapshot, "time": time, "published_as": null }));
    }
    Ok(())
}

/// The snapshot whose time is given.
fn one(vos: &Vos, given: &Given, id: u32) -> Result<Placed, Stop> {
    let [time] = times(vos, given, id)?[..] else {
        complain!(vos.printer, "vos: give the time of one snapshot\n");
        return Err(Stop::RETURNED);
    };
    let mut found = find(vos, given, id)?;
    found.retain(|(_, snapshot)| snapshot.made == AfsTime(time));
    let time = utc_of(time);
    match &found[..] {
        [one] => return Ok(one.clone()),
        [] => complain!(
            vos.printer,
            "vos: volume {id} has no snapshot {time}: 'vos snapshot list {id}' shows those that it has\n"
        ),
        _ => complain!(
            vos.printer,
            "vos: several servers have a snapshot {time} of volume {id}: give one with -server\n"
        ),
    }
    Err(Stop::RETURNED)
}

/// True if the database has the entry already: an earlier attempt was broken off. No other volume may have the name, nor the snapshot another one.
fn has_entry(vos: &Vos, snapshot: &SnapshotInfo, name: &str) -> Result<bool, Stop> {
    let stopped = |code: Code| {
        vos.print_error(code);
        Stop::RETURNED
    };
    match vos.entry_by_id(snapshot.volid.0, None) {
        Ok(entry) if entry.name == name => return Ok(true),
        Ok(entry) => {
            let (time, parent) = (utc_of(snapshot.made.0), snapshot.parent);
            complain!(
                vos.printer,
                "vos: snapshot {time} of volume {parent} is published as {} already\n",
                entry.name
            );
            return Err(Stop::RETURNED);
        }
        Err(Code::VL_NOENT) => {}
        Err(code) => return Err(stopped(code)),
    }
    match vos.entry_by_name(name) {
        Err(Code::VL_NOENT) => Ok(false),
        Ok(entry) => {
            let other = entry.id(Kind::ReadWrite);
            complain!(vos.printer, "vos: volume {other} is called {name}: give another name with -name\n");
            Err(Stop::RETURNED)
        }
        Err(code) => Err(stopped(code)),
    }
}

fn entry(server: Ipv4Addr, snapshot: &SnapshotInfo, name: &str) -> Entry {
    Entry {
        name: name.to_owned(),
        sites: vec![Site { server, partition: snapshot.partition, flags: SiteFlags::RW_VOL }],
        ids: [snapshot.volid, VolumeId(0), VolumeId(0)],
        clone_id: VolumeId(0),
        flags: EntryFlags::RW_EXISTS,
    }
}

fn delete_entry(vos: &Vos, snapshot: &SnapshotInfo) -> Done {
    match vos.delete_entry(snapshot.volid.0, Kind::ReadWrite) {
        Ok(()) | Err(Code::VL_NOENT) => Ok(()),
        Err(code) => {
            complain!(vos.printer, "Could not delete the VLDB entry for the volume {} \n", snapshot.volid);
            vos.print_error(code);
            Err(Stop::RETURNED)
        }
    }
}
