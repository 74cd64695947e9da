//! `vos convertROtoRW`: makes a replica the read-write volume, after that was lost. How it is done is in `afs_admin::convert`.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::utc_of;
use crate::printer::complain;
use afs_admin::convert::{ConvertFailure, Order, Step, convert};
use afs_admin::entry::{Entry, Kind};
use afs_admin::transfer::Place;
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let server = vos.server(given.word("server").unwrap_or_default(), "host", Stop::RETURNED)?;
    let partition_name = given.word("partition").unwrap_or_default();
    let partition = vos.partition(partition_name, Stop::RETURNED)?;
    vos.check_partition(server, partition, partition_name, Stop::RETURNED)?;
    let text = given.word("id").unwrap_or_default();
    let id = vos.known_volume_id(text, Stop::RETURNED, || format!("Unknown volume ID or name '{text}'"))?;
    let entry = vos.entry_by_id(id, None).map_err(|code| {
        complain!(vos.printer, "Could not fetch the entry for volume {id} from VLDB\n");
        vos.print_error(code);
        Stop::RETURNED
    })?;
    check(vos, &entry, Place { server, partition }, given.has("force"))?;
    if !given.has("force") {
        check_removed(vos, &entry, Place { server, partition })?;
    }
    let order =
        Order { place: Place { server, partition }, entry: &entry, keeps_read_only: given.has("keep-ro") };
    let converted =
        vos.caller.run(convert(&vos.vldb, &vos.volumes, order, vos.cancel())).map_err(|failure| {
            complain_of(vos, id, entry.id(Kind::ReadOnly).0, &failure);
            Stop::RETURNED
        })?;
    if vos.json {
        vos.printer.say_json(&json!({
            "rw_id": converted.id(Kind::ReadWrite).0,
            "converted": entry.id(Kind::ReadOnly).0,
            "server": server.to_string(),
            "partition": partition.to_string(),
        }));
    }
    Ok(())
}

/// Looks at what the entry says of the place, and asks where it says that there is a read-write volume.
fn check(vos: &Vos, entry: &Entry, place: Place, is_forced: bool) -> Done {
    let is_here = |site: &afs_admin::entry::Site| {
        vos.is_same_server(site.server, place.server).map_err(|code| {
            let number = i32::from_ne_bytes(place.server.octets());
            complain!(
                vos.printer,
                "Failed to get info about server's {number} address(es) from vlserver (err={}); aborting call!\n",
                code.0
            );
            Stop::RETURNED
        })
    };
    let mut other_partition = None;
    let mut is_known = false;
    for site in entry.sites.iter().filter(|site| site.is(Kind::ReadOnly)) {
        if is_here(site)? {
            is_known = true;
            other_partition = (site.partition != place.partition).then_some(site.partition);
            if other_partition.is_none() {
                break;
            }
        }
    }
    if !is_known {
        complain!(vos.printer, "Warning: RO volume didn't exist in vldb!\n");
    }
    if let Some(partition) = other_partition {
        complain!(
            vos.printer,
            "Warning: RO volume should be in partition {} instead of {} (vldb)\n",
            partition.0,
            place.partition.0
        );
    }
    let Some(site) = entry.read_write_site().filter(|_| entry.has(Kind::ReadWrite)) else { return Ok(()) };
    let (host, partition) = (vos.host(site.server), site.partition);
    complain!(
        vos.printer,
        "VLDB indicates that a RW volume exists already on {host} in partition {partition}.\n"
    );
    if is_forced {
        return Ok(());
    }
    vos.ask("Overwrite this VLDB entry?")
}

/// Asks where the volume itself could be brought back: the conversion gives that up.
fn check_removed(vos: &Vos, entry: &Entry, place: Place) -> Done {
    let id = entry.id(Kind::ReadWrite).0;
    let Some(left) = vos.removed_at(place.server, place.partition, id) else { return Ok(()) };
    let time = utc_of(left.made.0);
    complain!(
        vos.printer,
        "Volume {id} was removed here at {time}, and 'vos undelete {id}' would bring it back as it was then.\n"
    );
    vos.ask("Give that up, and convert the replica?")
}

fn complain_of(vos: &Vos, id: u32, read_only: u32, failure: &ConvertFailure) {
    let code = Code(failure.error.code().0);
    match failure.step {
        Step::Lock => complain!(vos.printer, "Unable to lock volume {id}, code {}\n", code.0),
        Step::FetchEntry => complain!(vos.printer, "Could not fetch the entry for volume {id} from VLDB\n"),
        Step::Compare => {
            complain!(vos.printer, "VLDB entry for volume {id} has changed; please reissue the command.\n")
        }
        Step::Convert => {
            complain!(
                vos.printer,
                "Converting RO volume {read_only} to RW volume failed with code {}\n",
                code.0
            )
        }
        Step::Keep => complain!(vos.printer, "vos: {failure}\n"),
        Step::ReplaceEntry => complain!(
            vos.printer,
            "Warning: volume converted, but vldb update failed with code {}!\n",
            code.0
        ),
        Step::Unlock => complain!(vos.printer, "Unable to unlock volume {id}, code {}\n", code.0),
    }
    if failure.step == Step::Convert {
        vos.printer.complain("convertROtoRW ");
    }
    vos.print_error(code);
    if let Some(error) = &failure.not_unlocked {
        complain!(vos.printer, "Unable to unlock volume {id}, code {}\n", error.code().0);
    }
}
