//! `vos listvol`: the volumes of a server, or with `-half` only the volumes whose transfer was interrupted, or with `-snapshots` only snapshots.

use super::show_volume::Totals;
use super::snapshot::{as_json, kind_of, note_of};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::dates::utc_of;
use crate::printer::{complain, say};
use afs_wire::ids::{PartitionId, SecurityLevel, VolumeId};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// The form in which volumes are shown.
#[derive(Clone, Copy)]
struct Form {
    /// Ids only.
    is_fast: bool,
    is_long: bool,
    is_extended: bool,
    has_fields: bool,
    is_quiet: bool,
}

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let machine = given.word("server").unwrap_or_default();
    let form = Form {
        is_fast: given.has("fast"),
        is_long: given.has("long"),
        is_extended: given.has("extended"),
        has_fields: given.has("format"),
        is_quiet: given.has("quiet"),
    };
    if form.is_extended && form.is_fast {
        complain!(vos.printer, "vos: Can't use the -fast and -extended flags together\n");
        return Err(Stop::EXITED);
    }
    let named = given.word("partition");
    let partition = named.map(|name| vos.partition(name, Stop::EXITED)).transpose()?;
    let server = vos.server(machine, "server", Stop::EXITED)?;
    let partitions = match partition {
        Some(partition) => {
            vos.check_partition(server, partition, named.unwrap_or_default(), Stop::EXITED)?;
            vec![partition]
        }
        None => vos.partitions(server).map_err(|code| {
            vos.print_diagnostics("listvol", code);
            Stop::EXITED
        })?,
    };
    let mut shown = Vec::new();
    if given.has("half") {
        return list_halves(vos, machine, server, &partitions);
    }
    if given.has("snapshots") {
        return list_snapshots(vos, machine, server, &partitions);
    }
    for partition in partitions {
        let listed = match form.is_extended {
            true => list_extended(vos, machine, server, partition, form, &mut shown),
            false => list(vos, machine, server, partition, form, &mut shown),
        };
        listed.map_err(|code| {
            vos.print_diagnostics("listvol", code);
            Stop::EXITED
        })?;
    }
    if vos.json {
        vos.printer.say_json(&json!({ "server": server.to_string(), "volumes": shown }));
    }
    Ok(())
}

/// Lists the volumes of which the server keeps only a part, because a restore, move or release was interrupted. OpenAFS's servers keep
/// none.
fn list_halves(vos: &Vos, machine: &str, server: Ipv4Addr, partitions: &[PartitionId]) -> Done {
    let mut shown = Vec::new();
    for &partition in partitions {
        let mut halves = vos.wait(vos.volumes.halves(server, partition)).map_err(|code| {
            complain!(vos.printer, "Could not fetch the list of half-made volumes from the server\n");
            vos.print_error(code);
            vos.print_diagnostics("listvol", code);
            Stop::EXITED
        })?;
        halves.sort_by_key(|half| (half.volume, half.since));
        say!(
            vos.printer,
            "Total number of half-made volumes on server {machine} partition {partition}: {} \n",
            halves.len()
        );
        for half in halves {
            let name = super::show_volume::name_of(&half.name.into_bytes());
            let kind = super::show_volume::letters(half.kind).unwrap_or("??");
            let (id, since) = (half.volume.0, vos.date(half.since));
            say!(vos.printer, "{name:<32} {id:>10} {kind} since {since}\n");
            shown.push(json!({
                "name": name,
                "id": id,
                "type": kind,
                "parent_id": half.parent.0,
                "since": half.since.0,
                "partition": partition.to_string(),
            }));
        }
        say!(vos.printer, "\n");
    }
    if vos.json {
        vos.printer.say_json(&json!({ "server": server.to_string(), "half_made": shown }));
    }
    Ok(())
}

/// Lists the snapshots, which are volumes that the other lists leave out. OpenAFS's servers have none.
fn list_snapshots(vos: &Vos, machine: &str, server: Ipv4Addr, partitions: &[PartitionId]) -> Done {
    let found = vos.wait(vos.volumes.snapshots(server, VolumeId(0))).map_err(|code| {
        complain!(vos.printer, "Could not fetch the list of snapshots from the server\n");
        vos.print_error(code);
        vos.print_diagnostics("listvol", code);
        Stop::EXITED
    })?;
    let mut shown = Vec::new();
    for &partition in partitions {
        let here = || found.iter().filter(|snapshot| snapshot.partition == partition);
        say!(
            vos.printer,
            "Total number of snapshots on server {machine} partition {partition}: {} \n",
            here().count()
        );
        for snapshot in here() {
            let name = super::show_volume::name_of(&snapshot.name);
            let (id, parent, size) = (snapshot.volid.0, snapshot.parent.0, snapshot.used_kib);
            let (time, by, note) = (utc_of(snapshot.made.0), kind_of(snapshot), note_of(snapshot));
            say!(vos.printer, "{name:<32} {id:>10} {size:>10} K {time} {by} of {parent}{note}\n");
            shown.push(as_json(&(server, snapshot.clone())));
        }
        say!(vos.printer, "\n");
    }
    if vos.json {
        vos.printer.say_json(&json!({ "server": server.to_string(), "snapshots": shown }));
    }
    Ok(())
}

fn show_total(vos: &Vos, machine: &str, partition: PartitionId, form: Form, count: usize) {
    if !form.is_quiet {
        say!(vos.printer, "Total number of volumes on server {machine} partition {partition}: {count} \n");
    }
}

fn list(
    vos: &Vos,
    machine: &str,
    server: Ipv4Addr,
    partition: PartitionId,
    form: Form,
    shown: &mut Vec<Value>,
) -> Result<(), crate::codes::Code> {
    let mut volumes = vos.volumes(server, partition, !form.is_fast)?;
    if form.is_fast {
        volumes.sort_by_key(|volume| volume.volid);
    } else {
        volumes.sort_by_key(|volume| volume.name);
    }
    if vos.json {
        let of = |volume| match form.is_fast {
            true => fast_as_json(partition, volume),
            false => vos.volume_as_json(volume, server, partition),
        };
        shown.extend(volumes.iter().map(of));
        return Ok(());
    }
    show_total(vos, machine, partition, form, volumes.len());
    if form.has_fields {
        for volume in &volumes {
            say!(vos.printer, "BEGIN_OF_ENTRY\n");
            vos.show_volume_fields(volume, server, partition);
            say!(vos.printer, "END_OF_ENTRY\n\n");
        }
        return Ok(());
    }
    let mut totals = Totals::default();
    for volume in &volumes {
        if form.is_fast {
            say!(vos.printer, "{:<10}\n", volume.volid.0);
        } else if form.is_long {
            vos.show_volume_paragraph(volume, server, partition, &mut totals, false, SecurityLevel::CLEAR);
        } else {
            vos.show_volume_line(volume, &mut totals);
        }
    }
    vos.show_problems(&totals);
    if !form.is_quiet {
        say!(vos.printer, "\n");
        if !form.is_fast {
            let Totals { online, offline, busy, .. } = totals;
            say!(
                vos.printer,
                "Total volumes onLine {online} ; Total volumes offLine {offline} ; Total busy {busy}\n\n"
            );
        }
    }
    Ok(())
}

fn list_extended(
    vos: &Vos,
    machine: &str,
    server: Ipv4Addr,
    partition: PartitionId,
    form: Form,
    shown: &mut Vec<Value>,
) -> Result<(), crate::codes::Code> {
    let mut volumes = vos.volumes_with_statistics(server, partition, true)?;
    volumes.sort_by_key(|volume| volume.name);
    if vos.json {
        shown.extend(volumes.iter().map(|volume| vos.extended_as_json(volume, server, partition)));
        return Ok(());
    }
    show_total(vos, machine, partition, form, volumes.len());
    let mut totals = Totals::default();
    for volume in &volumes {
        if form.has_fields {
            say!(vos.printer, "BEGIN_OF_ENTRY\n");
            vos.show_extended_fields(volume, server, partition, &mut totals);
            say!(vos.printer, "END_OF_ENTRY\n");
        } else {
            vos.show_extended_paragraph(volume, server, partition, &mut totals, false, SecurityLevel::CLEAR);
        }
    }
    let Totals { online, offline, busy, .. } = totals;
    if form.has_fields {
        for id in totals.busy_ids.iter().rev() {
            say!(vos.printer, "BUSY_VOL\t{id}\n");
        }
        for id in totals.broken_ids.iter().rev() {
            say!(vos.printer, "COULD_NOT_ATTACH\t{id}\n");
        }
    } else {
        vos.show_problems(&totals);
    }
    if !form.is_quiet {
        say!(vos.printer, "\n");
        if form.has_fields {
            say!(vos.printer, "VOLUMES_ONLINE\t{online}\nVOLUMES_OFFLINE\t{offline}\nVOLUMES_BUSY\t{busy}\n");
        } else {
            say!(vos.printer, "Total volumes: {online} on-line, {offline} off-line, {busy}  busyd\n\n");
        }
    }
    Ok(())
}

fn fast_as_json(partition: PartitionId, volume: &afs_wire::afsvol::VolintInfo) -> Value {
    json!({ "id": volume.volid.0, "partition": partition.to_string() })
}
