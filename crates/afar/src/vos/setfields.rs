//! `vos setfields`: changes the quota of a volume or its security level, or begins its counters anew.

use super::volser::OFFLINE;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::complain;
use afs_admin::entry::Kind;
use afs_admin::volumes::Changes;
use afs_wire::ids::{PartitionId, SecurityLevel};
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
    let level = given.word("level").map(|text| level(vos, text)).transpose()?;
    if changes == Changes::default() && level.is_none() {
        complain!(vos.printer, "Nothing to set.\n");
        return Err(Stop::RETURNED);
    }
    set(vos, site.server, site.partition, id, changes, level).map_err(|_| {
        complain!(vos.printer, "Could not update volume info fields for volume number {id}\n");
        Stop::RETURNED
    })?;
    if vos.json {
        vos.printer.say_json(&json!({
            "id": id,
            "quota_kib": quota_kib,
            "cleared_use": changes.day_use.is_some(),
            "cleared_update_counter": changes.update_counter.is_some(),
            "level": level.and_then(SecurityLevel::word),
        }));
    }
    Ok(())
}

fn level(vos: &Vos, text: &str) -> Result<SecurityLevel, Stop> {
    SecurityLevel::NAMED.iter().copied().find(|level| level.word() == Some(text)).ok_or_else(|| {
        complain!(vos.printer, "vos: -level {text} is none of clear, auth and crypt\n");
        Stop::RETURNED
    })
}

fn set(
    vos: &Vos,
    server: Ipv4Addr,
    partition: PartitionId,
    id: u32,
    changes: Changes,
    level: Option<SecurityLevel>,
) -> Result<(), Code> {
    let transaction = vos
        .begin(server, partition, id, OFFLINE)
        .inspect_err(|_| complain!(vos.printer, "SetVolumeInfo: TransCreate Failed\n"))?;
    let mut set = Ok(());
    // First what not every server can do.
    if let Some(level) = level {
        set = vos.caller.run(vos.volumes.set_level(transaction, level)).map_err(|error| {
            complain!(vos.printer, "vos: {error}\n");
            Code(error.code().0)
        });
    }
    if set.is_ok() && changes != Changes::default() {
        set = vos
            .set_info(transaction, Some(id), changes)
            .inspect_err(|_| complain!(vos.printer, "SetVolumeInfo: SetInfo Failed\n"));
    }
    let ended =
        vos.end(transaction).inspect_err(|_| complain!(vos.printer, "SetVolumeInfo: EndTrans Failed\n"));
    set.and(ended)
}
