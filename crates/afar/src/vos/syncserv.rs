//! `vos syncserv`: looks whether the volumes that the volume location database has on a server are there, and takes those out
//! of it that are not.

use super::sync::{Checked, LINE, Synced};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::vldb::Wanted;
use afs_wire::ids::PartitionId;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let machine = given.word("server").unwrap_or_default();
    let server = vos.server(machine, "host", Stop::EXITED)?;
    let partition = match given.word("partition") {
        None => None,
        Some(name) => {
            let partition = vos.partition(name, Stop::EXITED)?;
            vos.check_partition(server, partition, name, Stop::EXITED)?;
            Some(partition)
        }
    };
    sync(vos, server, partition, !given.has("dryrun")).map_err(|code| {
        vos.print_diagnostics("syncserv", code);
        Stop::EXITED
    })?;
    let on = partition.map_or(String::new(), |partition| format!(" partition {partition}"));
    say!(vos.printer, "Server {machine}{on} synchronized with VLDB\n");
    Ok(())
}

fn sync(vos: &Vos, server: Ipv4Addr, partition: Option<PartitionId>, updates: bool) -> Result<(), Code> {
    let tells = vos.verbose || !updates;
    let tell = |text: &str| {
        if tells {
            vos.printer.say(text);
        }
    };
    tell("Processing VLDB entries ...\n");
    let wanted = Wanted { server: Some(server), partition, is_locked: false };
    let (mut entries, mut failures, mut changes) = (0, 0, 0);
    let mut parts = Vec::new();
    vos.list_entries(wanted, |part| parts.push(part)).inspect_err(|_| {
        complain!(vos.printer, "Could not access the VLDB for attributes\n");
    })?;
    for part in &mut parts {
        for (index, entry) in part.iter_mut().enumerate() {
            if updates {
                vos.may_begin()?;
            }
            let number = index + 1;
            entries += 1;
            tell(&format!("Processing VLDB entry {number} ...\n"));
            if tells {
                vos.tell_before(Some(entry));
            }
            let checked = vos.check_entry(entry, updates);
            if let (true, Ok(checked)) = (tells, checked) {
                vos.tell_after(checked, entry);
            }
            tell(&format!("\n{LINE}"));
            match checked {
                Err(code) => {
                    vos.print_error(code);
                    complain!(vos.printer, "Could not process VLDB entry for volume {}\n", entry.name);
                    failures += 1;
                    tell("...error encountered\n\n");
                }
                Ok(checked) => {
                    changes += usize::from(checked != Checked::Right);
                    tell(&format!("...done entry {number}\n\n"));
                }
            }
        }
    }
    let changed = if updates { "Changed" } else { "Would change" };
    tell(&format!("Total entries: {entries}, Failed to process {failures}, {changed} {changes}\n"));
    vos.say_synced(Synced { entries, failures, changes, updates });
    if failures > 0 { Err(Code::VOLSERFAILEDOP) } else { Ok(()) }
}
