//! `vos unlockvldb`: releases the locks of all entries, or of those of a server.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::printer::{complain, say};
use afs_admin::entry::Kind;
use afs_admin::vldb::Wanted;
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (machine, partition_name) = (given.word("server"), given.word("partition"));
    let server = machine.map(|name| vos.server(name, "server", Stop::EXITED)).transpose()?;
    let partition = partition_name.map(|name| vos.partition(name, Stop::EXITED)).transpose()?;
    if let (Some(partition), Some(name)) = (partition, partition_name) {
        let server = server.unwrap_or(Ipv4Addr::UNSPECIFIED);
        vos.check_partition(server, partition, name, Stop::EXITED)?;
    }
    let locked = vos.list_all_entries(Wanted { server, partition, is_locked: true }).map_err(|code| {
        complain!(vos.printer, "Could not access the VLDB for attributes\n");
        vos.print_error(code);
        Stop::EXITED
    })?;
    let (mut unlocked, mut failed) = (Vec::new(), Vec::new());
    for entry in &locked {
        if let Err(code) = vos.release_lock(entry.id(Kind::ReadWrite).0, None) {
            complain!(vos.printer, "Could not unlock entry for volume {}\n", entry.name);
            vos.print_error(code);
            failed.push(&entry.name);
        } else {
            unlocked.push(&entry.name);
        }
    }
    if vos.json {
        vos.printer.say_json(&json!({ "unlocked": unlocked, "failed": failed }));
    }
    if !failed.is_empty() {
        let (failed, all) = (failed.len(), locked.len());
        say!(vos.printer, "Could not lock {failed} VLDB entries of {all} locked entries\n");
    } else if let Some(name) = machine {
        say!(vos.printer, "Unlocked all the VLDB entries for volumes on server {name} ");
        match partition {
            Some(partition) => say!(vos.printer, "partition {partition}\n"),
            None => say!(vos.printer, "\n"),
        }
    } else if let Some(partition) = partition {
        say!(
            vos.printer,
            "Unlocked all the VLDB entries for volumes on partition {partition} on all servers\n"
        );
    }
    Ok(())
}
