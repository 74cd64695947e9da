//! `vos clone`: makes a clone of a volume, under any name, which the volume location database does not know.

use super::backup::locate;
use super::volser::{CloneOrder, OFFLINE};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::{HEADER_NAME_MAX, Kind};
use afs_wire::afsvol::VolumeFlags;
use serde_json::json;

/// The bytes of its own name that stay in front of `.clone`.
const STEM_MAX: usize = HEADER_NAME_MAX - 7;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id = volume(vos, text)?;
    let (server, partition) = match (given.word("server"), given.word("partition")) {
        (None, None) => {
            let found = locate(vos, id, Stop::RETURNED)?;
            (found.server, found.partition)
        }
        (Some(server), Some(name)) => {
            let server = vos.server(server, "server", Stop::RETURNED)?;
            let partition = vos.partition(name, Stop::RETURNED)?;
            vos.check_partition(server, partition, name, Stop::RETURNED)?;
            (server, partition)
        }
        (Some(_), None) | (None, Some(_)) => {
            complain!(vos.printer, "Must specify both -server and -partition options\n");
            return Err(Stop::RETURNED);
        }
    };
    let name = given.word("toname");
    if let Some(name) = name {
        check_name(vos, name)?;
    }
    let clone = given.word("toid").map(|text| volume(vos, text)).transpose()?;
    let kind = match (given.has("readonly"), given.has("readwrite")) {
        (true, true) => {
            complain!(vos.printer, "vos: cannot specify that a volume be -readwrite and -readonly\n");
            return Err(Stop::RETURNED);
        }
        (true, false) => Kind::ReadOnly,
        (false, true) => Kind::ReadWrite,
        (false, false) => Kind::Backup,
    };
    let cloned = (|| {
        let name = match name {
            Some(name) => name.to_owned(),
            None => own_name(vos, server, partition, id)?,
        };
        let clone = match clone {
            Some(clone) => clone,
            None => new_id(vos, id)?,
        };
        vos.clone_volume(CloneOrder {
            server,
            partition,
            volume: id,
            clone,
            kind,
            name: &name,
            what: "clone",
        })?;
        if !given.has("offline") {
            bring_online(vos, server, partition, clone)?;
        }
        Ok((name, clone))
    })();
    let (name, clone) = cloned.map_err(|code| {
        vos.print_error(code);
        vos.print_diagnostics("clone", code);
        Stop::RETURNED
    })?;
    say!(vos.printer, "Created clone for volume {text}\n");
    if vos.json {
        vos.printer.say_json(&json!({ "id": id, "clone_id": clone, "name": name }));
    }
    Ok(())
}

fn volume(vos: &Vos, text: &str) -> Result<u32, Stop> {
    match vos.volume_id(text) {
        Ok(Some(id)) => return Ok(id),
        Ok(None) => complain!(vos.printer, "vos: can't find volume ID or name '{text}'\n"),
        Err(code) => vos.print_error(code),
    }
    Err(Stop::RETURNED)
}

fn check_name(vos: &Vos, name: &str) -> Done {
    if name.len() >= HEADER_NAME_MAX {
        let max = HEADER_NAME_MAX - 1;
        complain!(vos.printer, "vos: the name of the root volume {name} exceeds the size limit of {max}\n");
    } else if name.bytes().all(|b| b.is_ascii_digit()) {
        complain!(vos.printer, "Illegal volume name {name}, should not be a number\n");
    } else {
        return Ok(());
    }
    Err(Stop::RETURNED)
}

fn own_name(
    vos: &Vos,
    server: std::net::Ipv4Addr,
    partition: afs_wire::ids::PartitionId,
    id: u32,
) -> Result<String, Code> {
    let volume = vos.volume_quietly(server, partition, id).inspect_err(|_| {
        complain!(vos.printer, "Could not get info for volume {id}\n");
    })?;
    let name = super::show_volume::name_of(volume.name.text());
    let end = (0..=name.len().min(STEM_MAX)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    Ok(format!("{}.clone", &name[..end]))
}

fn new_id(vos: &Vos, id: u32) -> Result<u32, Code> {
    vos.tell(&format!("Allocating new volume id for clone of volume {id} ..."));
    let new = vos.new_volume_ids(1).inspect_err(|code| {
        let what = format!("Could not get an ID for the clone of volume {id} from the VLDB\n");
        vos.print_failure(*code, &what);
    })?;
    vos.tell(" done\n");
    Ok(new)
}

fn bring_online(
    vos: &Vos,
    server: std::net::Ipv4Addr,
    partition: afs_wire::ids::PartitionId,
    clone: u32,
) -> Result<(), Code> {
    let transaction = vos.begin(server, partition, clone, OFFLINE).inspect_err(|_| {
        complain!(vos.printer, "Failed to start a transaction on the clone volume {clone}\n");
    })?;
    if let Err(code) = vos.set_flags(transaction, VolumeFlags::NONE) {
        complain!(vos.printer, "Could not mark the clone volume {clone} on line \n");
        if vos.end(transaction).is_err() {
            complain!(vos.printer, "Could not end transaction on the clone volume {clone}\n");
        }
        return Err(code);
    }
    vos.end(transaction).inspect_err(|_| {
        complain!(vos.printer, "Failed to end the transaction on the clone volume {clone}\n");
    })
}
