//! `vos changeloc`: says in the volume location database that the read-write volume is at another place. Nothing is moved.

use super::{Done, Stop, Vos, lock};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::Kind;
use afs_admin::transfer::Place;
use afs_wire::vl::EntryFlags;
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (machine, partition_name) =
        (given.word("server").unwrap_or_default(), given.word("partition").unwrap_or_default());
    let text = given.word("id").unwrap_or_default();
    let id = lock::volume(vos, text)?;
    let server = vos.server(machine, "server", Stop::EXITED)?;
    let partition = vos.partition(partition_name, Stop::EXITED)?;
    vos.check_partition(server, partition, partition_name, Stop::EXITED)?;
    change(vos, id, Place { server, partition }).map_err(|code| {
        vos.print_diagnostics("changeloc", code);
        Stop::EXITED
    })?;
    if vos.json {
        let (server, partition) = (server.to_string(), partition.to_string());
        vos.printer.say_json(&json!({ "changed_location_of": id, "server": server, "partition": partition }));
    } else {
        say!(vos.printer, "Changed location to {machine} {partition} for volume {text}\n");
    }
    Ok(())
}

fn change(vos: &Vos, id: u32, to: Place) -> Result<(), Code> {
    let said = |code: Code, what: String| {
        complain!(vos.printer, "{what}");
        vos.print_error(code);
    };
    let kind = Some(Kind::ReadWrite);
    vos.set_lock(id, kind, EntryFlags::OP_DELETE).inspect_err(|code| {
        said(*code, format!(" Could not lock the VLDB entry for volume {id} \n"));
    })?;
    let changed = (|| {
        let mut entry = vos.entry_by_id(id, kind).inspect_err(|code| {
            said(*code, format!("Could not fetch the entry for volume number {id} from VLDB \n"));
        })?;
        let Some(index) = entry.read_write_index() else {
            complain!(vos.printer, "No existing RW site for volume {id}\n");
            return Err(Code::VOLSERBADOP);
        };
        (entry.sites[index].server, entry.sites[index].partition) = (to.server, to.partition);
        vos.replace_entry(id, Kind::ReadWrite, &entry).inspect_err(|code| {
            said(*code, format!("Could not update entry for volume {id} \n"));
        })?;
        vos.tell(" done\n");
        Ok(())
    })();
    if changed.is_err() {
        vos.release_lock(id, kind).inspect_err(|code| {
            said(*code, format!("Could not release lock on entry for volume {id} \n"));
        })?;
    }
    changed
}
