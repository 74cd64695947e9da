//! `vos copy`: copies a volume to another place, under another name. How it is done is in `afs_admin::transfer::copy`.

use super::transfer::{Sending, check_space, complain_of, tell_of_copy, way};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::printer::{complain, say};
use afs_admin::entry::{BadName, Kind, check_name};
use afs_admin::steps::Event;
use afs_admin::transfer::Step;
use afs_admin::transfer::copy::{Order, copy};
use afs_wire::ids::VolumeId;
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id =
        vos.known_volume_id(text, Stop::RETURNED, || format!("vos: can't find volume ID or name '{text}'"))?;
    let name = given.word("toname").unwrap_or_default();
    for machine in ["fromserver", "toserver"] {
        vos.server(given.word(machine).unwrap_or_default(), "server", Stop::RETURNED)?;
    }
    check(vos, name)?;
    let way = way(vos, given, Stop::RETURNED)?;
    let bytes = check_space(vos, &way, id, "copy", 0, Stop::EXITED)?;
    let order = Order {
        volume: VolumeId(id),
        from: way.from,
        to: way.to,
        name,
        id: None,
        kind: if given.has("readonly") { Kind::ReadOnly } else { Kind::ReadWrite },
        stays_offline: given.has("offline"),
        is_live: given.has("live"),
        has_entry: true,
        is_incremental: false,
        may_lose_level: given.has("force"),
    };
    let cancel = vos.cancel();
    let mut sending = Sending::new(vos, &way, bytes);
    let events = |event: Event<Step>| {
        sending.handle(event);
        match event {
            Event::IsDone(Step::MakeEntry(copy)) => {
                vos.tell(&format!("Created the VLDB entry for the volume {name} {copy}\n"));
            }
            event => tell_of_copy(vos, event),
        }
    };
    let copied = vos.caller.run(copy(&vos.vldb, &vos.volumes, order, cancel, events));
    let copy = copied.map_err(|failure| {
        complain_of(vos, "copy", &failure);
        Stop::EXITED
    })?;
    let (from, to) = (way.from.partition, way.to.partition);
    if vos.json {
        let (server, partition) = (way.to.server.to_string(), to.to_string());
        let value =
            json!({ "id": id, "copy_id": copy.0, "name": name, "server": server, "partition": partition });
        vos.printer.say_json(&value);
    } else {
        say!(
            vos.printer,
            "Volume {id} copied from {} {from} to {name} on {} {to} \n",
            way.from_name,
            way.to_name
        );
    }
    Ok(())
}

fn check(vos: &Vos, name: &str) -> Done {
    match check_name(name) {
        Ok(()) => {}
        Err(BadName::TooLong) => {
            let max = afs_admin::entry::NAME_MAX;
            complain!(
                vos.printer,
                "vos: the name of the root volume {name} exceeds the size limit of {max}\n"
            );
            return Err(Stop::RETURNED);
        }
        Err(BadName::Suffix) => {
            complain!(vos.printer, "Illegal volume name {name}, should not end in .readonly or .backup\n");
            return Err(Stop::RETURNED);
        }
        Err(BadName::Number) => {
            complain!(vos.printer, "Illegal volume name {name}, should not be a number\n");
            return Err(Stop::RETURNED);
        }
    }
    if vos.entry_by_name(name).is_ok() {
        complain!(vos.printer, "Volume {name} already exists\nError in vos copy command.\n");
        return Err(Stop::RETURNED);
    }
    Ok(())
}
