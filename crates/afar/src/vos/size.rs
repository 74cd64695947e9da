//! `vos size`: how large a dump of a volume would be.

use super::backup::locate;
use super::volser::BUSY;
use super::{Done, Stop, Vos, dump};
use crate::classic::Given;
use crate::codes::Code;
use crate::hosts;
use crate::printer::{complain, say};
use afs_wire::ids::{AfsTime, PartitionId};
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id = vos.known_volume_id(text, Stop::RETURNED, || format!("vos: can't find volume '{text}'"))?;
    let sentence = |text: &'static str| {
        complain!(vos.printer, "{text}\n");
        Stop::RETURNED
    };
    let (server, partition) = match (given.word("server"), given.word("partition")) {
        (None, None) => {
            let found = locate(vos, id, Stop::RETURNED)?;
            (found.server, found.partition)
        }
        (Some(server), Some(partition)) => (
            hosts::find_server(server).ok_or_else(|| sentence("Invalid server name"))?,
            PartitionId::parse(partition).ok_or_else(|| sentence("Invalid partition name"))?,
        ),
        (Some(_), None) | (None, Some(_)) => {
            return Err(sentence("Must specify both -server and -partition options"));
        }
    };
    let since = AfsTime(dump::since(vos, given)?);
    say!(vos.printer, "Volume: {text}\n");
    let mut dump_bytes = None;
    if given.has("dump") {
        let size = measure(vos, (server, partition, id), since).map_err(|code| {
            vos.print_error(code);
            vos.print_diagnostics("size", code);
            Stop::RETURNED
        })?;
        say!(vos.printer, "dump_size: {size}\n");
        dump_bytes = Some(size);
    }
    if vos.json {
        vos.printer.say_json(&json!({ "id": id, "dump_bytes": dump_bytes }));
    }
    Ok(())
}

/// Returns the size of a dump of a volume on a server's partition: of all of it, or of what has changed since some
/// time.
fn measure(
    vos: &Vos,
    (server, partition, id): (Ipv4Addr, PartitionId, u32),
    since: AfsTime,
) -> Result<u64, Code> {
    vos.tell(&format!("Starting transaction on volume {id}..."));
    let transaction = vos.begin(server, partition, id, BUSY).inspect_err(|code| {
        let what = format!("Could not start transaction on the volume {id} to be measured\n");
        vos.print_failure(*code, &what);
    })?;
    vos.tell(" done\n");
    vos.tell(&format!("Getting size of volume on volume {id}..."));
    let size = vos.dump_size(transaction, since).inspect_err(|code| {
        vos.print_failure(*code, "Could not start the measurement process \n");
    });
    if size.is_ok() {
        vos.tell(" done\n");
    }
    vos.tell(&format!("Ending transaction on volume {id}..."));
    let ended = vos.end(transaction).inspect_err(|_| {
        complain!(vos.printer, "Could not end transaction on the volume {id}\n");
    });
    vos.tell(" done\n");
    size.and_then(|size| ended.map(|()| size))
}
