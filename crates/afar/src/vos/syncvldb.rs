//! `vos syncvldb`: makes the volume location database say what servers have.

use super::sync::{Checked, How, LINE, Synced};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::Error;
use afs_admin::entry::Kind;
use afs_admin::vldb::volume_number;
use afs_wire::afsvol::VolintInfo;
use afs_wire::ids::{PartitionId, VolumeType};
use std::cmp::Reverse;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (machine, partition_name) = (given.word("server"), given.word("partition"));
    let server = machine.map(|name| vos.server(name, "host", Stop::EXITED)).transpose()?;
    let partition = match partition_name {
        None => None,
        Some(name) => {
            let partition = vos.partition(name, Stop::EXITED)?;
            check_partition(vos, server.unwrap_or(Ipv4Addr::UNSPECIFIED), partition, name)?;
            if server.is_none() {
                complain!(vos.printer, "The -partition option requires a -server option\n");
                return Err(Stop::EXITED);
            }
            Some(partition)
        }
    };
    let updates = !given.has("dryrun");
    let volume = given.word("volume");
    let synced = match (volume, server) {
        (Some(name), server) => sync_volume(vos, server, partition, name, updates),
        (None, Some(server)) => sync_server(vos, server, partition, updates),
        (None, None) => {
            complain!(vos.printer, "Without a -volume option, the -server option is required\n");
            return Err(Stop::EXITED);
        }
    };
    synced.map_err(|code| {
        vos.print_error(code);
        vos.print_diagnostics("syncvldb", code);
        Stop::EXITED
    })?;
    match volume {
        Some(name) => say!(vos.printer, "VLDB volume {name} synchronized"),
        None => say!(vos.printer, "VLDB synchronized"),
    }
    if let Some(name) = machine {
        say!(vos.printer, " with state of server {name}");
    }
    if let Some(partition) = partition {
        say!(vos.printer, " partition {partition}\n");
    }
    say!(vos.printer, "\n");
    Ok(())
}

fn check_partition(vos: &Vos, server: Ipv4Addr, partition: PartitionId, name: &str) -> Done {
    match vos.partitions(server) {
        Ok(all) if all.contains(&partition) => return Ok(()),
        // One blank less than in other verbs.
        Ok(_) => complain!(vos.printer, "vos: partition {name} does not exist on the server\n"),
        Err(code) => vos.print_error(code),
    }
    Err(Stop::EXITED)
}

/// The partitions to look at.
fn partitions(vos: &Vos, server: Ipv4Addr, partition: Option<PartitionId>) -> Result<Vec<PartitionId>, Code> {
    match partition {
        Some(partition) => Ok(vec![partition]),
        None => vos.partitions(server).inspect_err(|_| {
            complain!(vos.printer, "Could not fetch the list of partitions from the server\n");
        }),
    }
}

// ---- all volumes of a server

fn sync_server(
    vos: &Vos,
    server: Ipv4Addr,
    partition: Option<PartitionId>,
    updates: bool,
) -> Result<(), Code> {
    let mut max_id = 0;
    let synced = sync_partitions(vos, server, partition, updates, &mut max_id);
    let raised = vos.raise_max_id(max_id);
    synced.and(raised)
}

fn sync_partitions(
    vos: &Vos,
    server: Ipv4Addr,
    partition: Option<PartitionId>,
    updates: bool,
    max_id: &mut u32,
) -> Result<(), Code> {
    let how = How { updates, tells: vos.verbose };
    let (mut entries, mut failures, mut changes) = (0, 0, 0);
    let partitions = partitions(vos, server, partition)?;
    vos.tell("Processing volume entries ...\n");
    for partition in partitions {
        let mut volumes = vos.volumes_quietly(server, partition, true).inspect_err(|_| {
            complain!(vos.printer, "Could not fetch the list of volumes from the server\n");
        })?;
        volumes.sort_by_key(order);
        let failures_before = failures;
        for (index, volume) in volumes.iter().enumerate().filter(|(_, volume)| volume.status != 0) {
            if updates {
                vos.may_begin()?;
            }
            entries += 1;
            let number = index + 1;
            if vos.verbose {
                let name = super::show_volume::name_of(volume.name.text());
                let (id, host) = (volume.volid.0, vos.host(server));
                say!(
                    vos.printer,
                    "Processing volume entry {number}: {name} ({id}) on server {host} {partition}...\n"
                );
            }
            match vos.check_volume(volume, server, partition, how, max_id, None) {
                Err(code) => {
                    vos.print_error(code);
                    failures += 1;
                    vos.tell("...error encountered\n\n");
                }
                Ok(is_changed) => {
                    changes += usize::from(is_changed);
                    vos.tell(&format!("...done entry {number}\n\n"));
                }
            }
        }
        if failures > failures_before {
            let host = vos.host(server);
            complain!(vos.printer, "Could not process entries on server {host} partition {partition}\n");
        }
    }
    let changed = if updates { "Changed" } else { "Would change" };
    vos.say_synced(Synced { entries, failures, changes, updates });
    vos.tell(&format!("Total entries: {entries}, Failed to process {failures}, {changed} {changes}\n"));
    Ok(())
}

/// The highest read-write id first; of one group the read-write, then the backup, then the read-only volumes.
fn order(volume: &VolintInfo) -> (Reverse<u32>, u8, Reverse<u32>) {
    let id = volume.volid.0;
    let (group, rank) = match volume.kind {
        VolumeType::READ_WRITE => (id, 0),
        VolumeType::BACKUP => (volume.parent_id.0, 1),
        _ => (volume.parent_id.0, 2),
    };
    (Reverse(group), rank, Reverse(id))
}

// ---- one volume

fn sync_volume(
    vos: &Vos,
    server: Option<Ipv4Addr>,
    partition: Option<PartitionId>,
    name: &str,
    updates: bool,
) -> Result<(), Code> {
    let tells = vos.verbose || !updates;
    let mut max_id = 0;
    let synced = sync_named(vos, server, partition, name, How { updates, tells }, &mut max_id);
    let raised = vos.raise_max_id(max_id);
    let result = match (synced, raised) {
        (Ok(checked), Ok(())) => {
            let changes = usize::from(checked != Checked::Right);
            vos.say_synced(Synced { entries: 1, failures: 0, changes, updates });
            Ok(())
        }
        (Err(code), _) | (Ok(_), Err(code)) => Err(code),
    };
    if tells {
        match result {
            Ok(()) => say!(vos.printer, "...done entry\n"),
            Err(_) => say!(vos.printer, "...error encountered"),
        }
    }
    result
}

fn sync_named(
    vos: &Vos,
    server: Option<Ipv4Addr>,
    partition: Option<PartitionId>,
    name: &str,
    how: How,
    max_id: &mut u32,
) -> Result<Checked, Code> {
    // No volume has a number that is out of range, so there is nothing to look at.
    if let Err(Error::Local { what, code }) = volume_number(name) {
        complain!(vos.printer, "vos: {what}\n");
        return Err(Code(code.0));
    }
    let found = match vos.entry_by_name(name) {
        Ok(entry) => Some(entry),
        Err(Code::VL_NOENT) => None,
        Err(code) => {
            complain!(vos.printer, "Could not access the VLDB for volume {name}\n");
            return Err(code);
        }
    };
    if how.tells {
        say!(vos.printer, "Processing VLDB entry {name} ...\n");
        vos.tell_before(found.as_ref());
    }
    let mut checked = Checked::Right;
    let mut entry = found;
    if let Some(entry) = &mut entry {
        checked = vos.check_entry(entry, how.updates).inspect_err(|_| {
            complain!(vos.printer, "Could not process VLDB entry for volume {}\n", entry.name);
        })?;
    }
    if let Some(server) = server {
        let how = How { tells: false, ..how };
        for partition in partitions(vos, server, partition)? {
            for id in ids(name, entry.as_ref()) {
                let volume = match vos.volume_quietly(server, partition, id) {
                    Ok(volume) => volume,
                    Err(Code::ENODEV) => continue,
                    Err(code) => {
                        complain!(vos.printer, "Could not query server\n");
                        return Err(code);
                    }
                };
                let known = entry.as_mut().filter(|_| checked != Checked::Deleted);
                if vos.check_volume(&volume, server, partition, how, max_id, known)? {
                    checked = Checked::Changed;
                }
            }
        }
    }
    if how.tells {
        match &entry {
            Some(entry) => vos.tell_after(checked, entry),
            None => say!(vos.printer, "-- status after --\n\n**no change**\n"),
        }
        say!(vos.printer, "\n{LINE}");
    }
    Ok(checked)
}

/// Ids under which a server may have the volume: the one that was given, and those of the entry.
fn ids(name: &str, entry: Option<&afs_admin::entry::Entry>) -> Vec<u32> {
    let mut ids: Vec<u32> = name.parse().ok().into_iter().collect();
    if let Some(entry) = entry {
        ids.extend([Kind::ReadWrite, Kind::ReadOnly, Kind::Backup].map(|kind| entry.id(kind).0));
    }
    ids.retain(|id| *id != 0);
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    ids
}
