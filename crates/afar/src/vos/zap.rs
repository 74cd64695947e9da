//! `vos zap`: removes a volume from its server, whatever the volume location database says.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::Kind;
use afs_wire::ids::PartitionId;
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    if given.has("force") {
        return nuke(vos, given);
    }
    let text = given.word("id").unwrap_or_default();
    let partition_name = given.word("partition").unwrap_or_default();
    let id = vos.known_volume_id(text, Stop::EXITED, || format!("vos: can't find volume '{text}'"))?;
    let partition = vos.partition(partition_name, Stop::EXITED)?;
    let server = vos.server(given.word("server").unwrap_or_default(), "host", Stop::EXITED)?;
    vos.check_partition(server, partition, partition_name, Stop::EXITED)?;
    let (mut backup_id, mut zapped_backup) = (0, None);
    if let Ok(entry) = vos.entry_by_id(id, None) {
        if id == entry.id(Kind::ReadWrite).0 {
            backup_id = entry.id(Kind::Backup).0;
        }
        complain!(
            vos.printer,
            "Warning: Entry for volume number {id} exists in VLDB (but we're zapping it anyway!)\n"
        );
    }
    if given.has("backup") {
        if backup_id == 0
            && let Ok(volume) = vos.volume(server, partition, id)
            && volume.parent_id.0 == id
        {
            backup_id = volume.backup_id.0;
        }
        if backup_id != 0 {
            zap(vos, server, partition, backup_id)?;
            zapped_backup = Some(backup_id);
            say!(vos.printer, "Backup Volume {backup_id} deleted\n");
            vos.may_begin().map_err(|_| Stop::EXITED)?;
        }
    }
    zap(vos, server, partition, id)?;
    say!(vos.printer, "Volume {id} deleted\n");
    vos.tell_of_undelete(server, partition, id);
    vos.warn_of_snapshots(server, partition, id);
    say_json(vos, server, partition, id, zapped_backup);
    Ok(())
}

fn say_json(vos: &Vos, server: Ipv4Addr, partition: PartitionId, id: u32, backup_id: Option<u32>) {
    if vos.json {
        vos.printer.say_json(&json!({
            "zapped": id,
            "zapped_backup": backup_id,
            "server": server.to_string(),
            "partition": partition.to_string(),
        }));
    }
}

fn zap(vos: &Vos, server: Ipv4Addr, partition: PartitionId, id: u32) -> Done {
    vos.delete_volume(server, partition, id, "the").map_err(|code| {
        if code == Code::VNOVOL {
            vos.print_failure(code, &format!("Failed to start transaction on {id}\n"));
        }
        vos.print_error(code);
        vos.print_diagnostics("zap", code);
        Stop::EXITED
    })
}

/// Removes what there is of a volume, which may not even be attachable.
fn nuke(vos: &Vos, given: &Given) -> Done {
    let (text, partition_name) =
        (given.word("id").unwrap_or_default(), given.word("partition").unwrap_or_default());
    let server = vos.server(given.word("server").unwrap_or_default(), "server", Stop::RETURNED)?;
    let partition = PartitionId::parse(partition_name).ok_or_else(|| {
        complain!(vos.printer, "vos: could not parse '{partition_name}' as a partition name");
        Stop::RETURNED
    })?;
    let id = vos.known_volume_id(text, Stop::RETURNED, || {
        format!("vos: could not parse '{text}' as a numeric volume ID")
    })?;
    let signed = id.cast_signed();
    say!(vos.printer, "vos: forcibly removing all traces of volume {signed}, please wait...");
    vos.printer.flush();
    match vos.nuke_volume(server, partition, id) {
        Ok(()) => {
            say!(vos.printer, "done.\n");
            vos.warn_of_snapshots(server, partition, id);
            say_json(vos, server, partition, id, None);
            Ok(())
        }
        Err(code) => {
            say!(vos.printer, "failed with code {}.\n", code.0);
            Err(Stop::RETURNED)
        }
    }
}
