//! `vos online`: brings a volume back that was taken offline.

use super::volser::OFFLINE;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::complain;
use afs_wire::afsvol::VolumeFlags;
use afs_wire::ids::PartitionId;
use serde_json::json;
use std::net::Ipv4Addr;
use std::time::Duration;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (server, partition, id) = place(vos, given)?;
    let set = vos.set_volume_state(server, partition, id, OFFLINE, VolumeFlags::NONE, Duration::ZERO);
    set.map_err(|code| failed(vos, code))?;
    if vos.json {
        let (server, partition) = (server.to_string(), partition.to_string());
        vos.printer.say_json(&json!({ "online": id, "server": server, "partition": partition }));
    }
    Ok(())
}

/// The volume that the options name, and where it is to be.
pub(super) fn place(vos: &Vos, given: &Given) -> Result<(Ipv4Addr, PartitionId, u32), Stop> {
    let machine = given.word("server").unwrap_or_default();
    let server = vos.server(machine, "server", Stop::RETURNED)?;
    let partition = vos.partition(given.word("partition").unwrap_or_default(), Stop::RETURNED)?;
    match vos.volume_id(given.word("id").unwrap_or_default()) {
        Ok(Some(id)) => Ok((server, partition, id)),
        Ok(None) => {
            // The server's name, not the volume's: so it is with OpenAFS's.
            complain!(vos.printer, "Unknown volume ID or name '{machine}'\n");
            Err(Stop::RETURNED)
        }
        Err(code) => {
            vos.print_error(code);
            Err(Stop::RETURNED)
        }
    }
}

pub(super) fn failed(vos: &Vos, code: Code) -> Stop {
    complain!(vos.printer, "Failed to set volume. Code = {}\n", code.0);
    Stop::RETURNED
}
