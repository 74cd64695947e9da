//! `vos addsite`: says where a read-only volume is to be from the next release on.

use super::{Done, Stop, Vos, lock};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::{Kind, NAME_MAX, Site, base_name};
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::{EntryFlags, NMAXNSERVERS, SiteFlags};
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (machine, partition_name) =
        (given.word("server").unwrap_or_default(), given.word("partition").unwrap_or_default());
    let text = given.word("id").unwrap_or_default();
    let id = lock::volume_called(vos, base_name(text), text)?;
    let read_only_id = match given.word("roid") {
        None => None,
        Some(text) => match vos.volume_id(base_name(text)) {
            Ok(Some(id)) => Some(id),
            Ok(None) | Err(_) => {
                complain!(vos.printer, "vos: invalid ro volume id '{text}'\n");
                return Err(Stop::EXITED);
            }
        },
    };
    let server = vos.server(machine, "server", Stop::EXITED)?;
    let partition = vos.partition(partition_name, Stop::EXITED)?;
    vos.check_partition(server, partition, partition_name, Stop::EXITED)?;
    let flags = if given.has("valid") { SiteFlags::RO_VOL } else { SiteFlags::RO_VOL | SiteFlags::DONT_USE };
    add(vos, id, Site { server, partition, flags }, read_only_id).map_err(|code| {
        vos.print_error(code);
        vos.print_diagnostics("addsite", code);
        Stop::EXITED
    })?;
    say!(vos.printer, "Added replication site {machine} {partition} for volume {text}\n");
    if vos.json {
        let (server, partition) = (server.to_string(), partition.to_string());
        vos.printer.say_json(&json!({ "added_site_of": id, "server": server, "partition": partition }));
    }
    Ok(())
}

fn add(vos: &Vos, id: u32, site: Site, read_only_id: Option<u32>) -> Result<(), Code> {
    vos.set_lock(id, Some(Kind::ReadWrite), EntryFlags::OP_DELETE).inspect_err(|_| {
        complain!(vos.printer, " Could not lock the VLDB entry for the volume {id} \n");
    })?;
    add_locked(vos, id, site, read_only_id).inspect_err(|_| {
        if let Err(code) = vos.release_lock(id, Some(Kind::ReadWrite)) {
            complain!(vos.printer, "Could not release lock on volume entry for {id} \n");
            vos.print_error(code);
        }
    })
}

fn add_locked(vos: &Vos, id: u32, site: Site, read_only_id: Option<u32>) -> Result<(), Code> {
    let mut entry = vos.entry_by_id(id, Some(Kind::ReadWrite)).inspect_err(|_| {
        complain!(vos.printer, "Could not fetch the VLDB entry for volume number {id}  \n");
    })?;
    if entry.name.len() > NAME_MAX {
        complain!(vos.printer, "Volume name {} is too long, rename before adding site\n", entry.name);
        return Err(Code::VOLSERBADOP);
    }
    if entry.sites.len() >= NMAXNSERVERS {
        complain!(vos.printer, "Total number of entries will exceed {NMAXNSERVERS}\n");
        return Err(Code::VOLSERBADOP);
    }
    check_is_new(vos, &entry.sites, site.server)?;
    let read_only = entry.sites.iter().filter(|site| site.is(Kind::ReadOnly)).count();
    if read_only >= NMAXNSERVERS - 1 {
        complain!(vos.printer, "Total number of sites will exceed {}\n", NMAXNSERVERS - 1);
        return Err(Code::VOLSERBADOP);
    }
    if let Some(given) = read_only_id {
        match entry.id(Kind::ReadOnly).0 {
            0 => {
                if vos.entry_by_id(given, None).is_ok() {
                    complain!(vos.printer, "Volume ID {given} already exists\n");
                    return Err(Code::VVOLEXISTS);
                }
                vos.tell(&format!("Using RO volume id {given}.\n"));
                entry.set_id(Kind::ReadOnly, VolumeId(given));
            }
            id => {
                complain!(vos.printer, "Ignoring given RO id {given}, since volume already has RO id {id}\n")
            }
        }
    }
    vos.tell("Adding a new site ...");
    entry.sites.push(site);
    vos.replace_entry(id, Kind::ReadWrite, &entry).inspect_err(|_| {
        complain!(vos.printer, "Could not update entry for volume {id} \n");
    })?;
    vos.tell(" done\n");
    Ok(())
}

/// A server can have one read-only volume of a name.
fn check_is_new(vos: &Vos, sites: &[Site], server: Ipv4Addr) -> Result<(), Code> {
    for site in sites.iter().filter(|site| site.is(Kind::ReadOnly)) {
        let partition: PartitionId = site.partition;
        match vos.is_same_server(server, site.server) {
            Ok(false) => {}
            Ok(true) => {
                complain!(
                    vos.printer,
                    "RO already exists on partition {partition}. Multiple ROs on a single server aren't allowed\n"
                );
                return Err(Code::VOLSERBADOP);
            }
            Err(code) => {
                let address = i32::from_ne_bytes(server.octets());
                complain!(
                    vos.printer,
                    "Failed to get info about server's {address} address(es) from vlserver (err={}); aborting call!\n",
                    code.0
                );
                return Err(code);
            }
        }
    }
    Ok(())
}
