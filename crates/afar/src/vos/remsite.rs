//! `vos remsite`: takes a place of a read-only volume out of the volume location database. The volume stays.

use super::{Done, Stop, Vos, lock};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::{Kind, base_name};
use afs_wire::ids::PartitionId;
use afs_wire::vl::EntryFlags;
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let machine = given.word("server").unwrap_or_default();
    let text = given.word("id").unwrap_or_default();
    let id = lock::volume_called(vos, base_name(text), text)?;
    let server = vos.server(machine, "server", Stop::EXITED)?;
    // The partition may be gone.
    let partition = vos.partition(given.word("partition").unwrap_or_default(), Stop::EXITED)?;
    remove(vos, id, server, partition).map_err(|code| {
        vos.print_diagnostics("remsite", code);
        Stop::EXITED
    })?;
    say!(vos.printer, "Removed replication site {machine} {partition} for volume {text}\n");
    if vos.json {
        let (server, partition) = (server.to_string(), partition.to_string());
        vos.printer.say_json(&json!({ "removed_site_of": id, "server": server, "partition": partition }));
    }
    Ok(())
}

fn remove(vos: &Vos, id: u32, server: Ipv4Addr, partition: PartitionId) -> Result<(), Code> {
    let said = |code: Code, what: String| {
        complain!(vos.printer, "{what}");
        vos.print_error(code);
    };
    vos.set_lock(id, Some(Kind::ReadWrite), EntryFlags::OP_DELETE)
        .inspect_err(|code| said(*code, format!(" Could not lock the VLDB entry for volume {id} \n")))?;
    let unlock = || vos.release_lock(id, Some(Kind::ReadWrite));
    let mut entry = vos.entry_by_id(id, Some(Kind::ReadWrite)).inspect_err(|code| {
        said(*code, format!("Could not fetch the entry for volume number {id} from VLDB \n"));
        // Nothing more can be done about a lock that stays.
        let _ = unlock();
    })?;
    let Some(index) = vos.site_index(&entry, Kind::ReadOnly, server, partition) else {
        complain!(vos.printer, "This site is not a replication site \n");
        unlock().inspect_err(|code| {
            said(*code, format!("Could not update entry for volume {id} \n"));
        })?;
        return Err(Code::VOLSERBADOP);
    };
    entry.sites.remove(index);
    if entry.sites.len() == 1 && entry.has(Kind::ReadWrite) {
        entry.set_exists(Kind::ReadOnly, false);
    }
    if entry.sites.is_empty() {
        vos.tell(&format!("Deleting the VLDB entry for {id} ..."));
        vos.delete_entry(id, Kind::ReadOnly).inspect_err(|code| {
            said(*code, format!("Could not delete VLDB entry for volume {id} \n"));
        })?;
        vos.tell(" done\n");
    }
    say!(vos.printer, "Deleting the replication site for volume {id} ...");
    vos.printer.flush();
    vos.replace_entry(id, Kind::ReadWrite, &entry).inspect_err(|code| {
        said(*code, format!("Could not release lock on volume entry for {id} \n"));
        let _ = unlock();
    })?;
    say!(vos.printer, " done\n");
    Ok(())
}
