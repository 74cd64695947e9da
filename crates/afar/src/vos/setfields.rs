//! `vos setfields`: changes the quota of a volume, or begins its counters anew.

use super::volser::OFFLINE;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::complain;
use afs_admin::entry::Kind;
use afs_admin::volumes::Changes;
use afs_wire::ids::PartitionId;
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id = vos.known_volume_id(text, Stop::RETURNED, || format!("Unknown volume ID or name '{text}'"))?;
    let entry = vos.entry_by_id(id, Some(Kind::ReadWrite)).map_err(|_| {
        complain!(vos.printer, "Could not fetch the entry for volume number {id} from VLDB \n");
        Stop::RETURNED
    })?;
    let site = entry.read_write_site().ok_or_else(|| {
        complain!(vos.printer, "Volume {text} does not exist in VLDB\n\n");
        Stop::RETURNED
    })?;
    let quota_kib = match given.word("maxquota") {
        None => None,
        Some(text) => Some(numbers::parse_kib(text).map_err(|bad| {
            match bad {
                BadNumber::NoNumber => complain!(vos.printer, "invalid quota value\n"),
                BadNumber::OutOfRange { .. } => complain!(vos.printer, "vos: -maxquota {text} {bad}\n"),
            }
            Stop::RETURNED
        })?),
    };
    let changes = Changes {
        quota_kib,
        day_use: given.has("clearuse").then_some(0),
        update_counter: given.has("clearVolUpCounter").then_some(0),
        ..Changes::default()
    };
    if changes.quota_kib.is_none() && changes.day_use.is_none() && changes.update_counter.is_none() {
        complain!(vos.printer, "Nothing to set.\n");
        return Err(Stop::RETURNED);
    }
    set(vos, site.server, site.partition, id, changes).map_err(|_| {
        complain!(vos.printer, "Could not update volume info fields for volume number {id}\n");
        Stop::RETURNED
    })?;
    if vos.json {
        vos.printer.say_json(&json!({
            "id": id,
            "quota_kib": quota_kib,
            "cleared_use": changes.day_use.is_some(),
            "cleared_update_counter": changes.update_counter.is_some(),
        }));
    }
    Ok(())
}

fn set(vos: &Vos, server: Ipv4Addr, partition: PartitionId, id: u32, changes: Changes) -> Result<(), Code> {
    let transaction = vos
        .begin(server, partition, id, OFFLINE)
        .inspect_err(|_| complain!(vos.printer, "SetVolumeInfo: TransCreate Failed\n"))?;
    let set = vos
        .set_info(transaction, Some(id), changes)
        .inspect_err(|_| complain!(vos.printer, "SetVolumeInfo: SetInfo Failed\n"));
    let ended =
        vos.end(transaction).inspect_err(|_| complain!(vos.printer, "SetVolumeInfo: EndTrans Failed\n"));
    set.and(ended)
}
