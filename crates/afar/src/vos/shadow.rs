//! `vos shadow`: makes a copy of a volume, or brings it up to date. The location database knows nothing of the copy.
//! `afs_admin::transfer::copy` does the work.

use super::transfer::{Sending, check_space, complain_of, tell_of_copy, way};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::{HEADER_NAME_MAX, Kind};
use afs_admin::transfer::Place;
use afs_admin::transfer::copy::{Order, copy};
use afs_wire::ids::VolumeId;
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id =
        vos.known_volume_id(text, Stop::RETURNED, || format!("vos: can't find volume ID or name '{text}'"))?;
    let way = way(vos, given, Stop::RETURNED)?;
    let to_name = given.word("toname");
    if let Some(name) = to_name {
        check(vos, name)?;
    }
    let to_id = match given.word("toid").or(to_name) {
        None => id,
        Some(text) => vos.known_volume_id(text, Stop::RETURNED, || {
            format!("vos: can't find volume ID or name '{text}'")
        })?,
    };
    let name = match to_name {
        Some(name) => name.to_owned(),
        None => own_name(vos, way.from, id).map_err(|_| Stop::EXITED)?,
    };
    let bytes = check_space(vos, &way, id, "copy", 0, Stop::EXITED)?;
    // That there is none yet is no failure.
    let _ = vos.volume(way.to.server, way.to.partition, to_id);
    let order = Order {
        volume: VolumeId(id),
        from: way.from,
        to: way.to,
        name: &name,
        id: Some(VolumeId(to_id)),
        kind: if given.has("readonly") { Kind::ReadOnly } else { Kind::ReadWrite },
        stays_offline: given.has("offline"),
        is_live: given.has("live"),
        has_entry: false,
        is_incremental: given.has("incremental"),
        may_lose_level: given.has("force"),
    };
    let cancel = vos.cancel();
    let mut sending = Sending::new(vos, &way, bytes);
    let events = |event| {
        sending.handle(event);
        tell_of_copy(vos, event);
    };
    let copied = vos.caller.run(copy(&vos.vldb, &vos.volumes, order, cancel, events));
    copied.map_err(|failure| {
        // So it is called by OpenAFS's.
        complain_of(vos, "copy", &failure);
        Stop::EXITED
    })?;
    let (from, to) = (way.from.partition, way.to.partition);
    if vos.json {
        let (server, partition) = (way.to.server.to_string(), to.to_string());
        let value =
            json!({ "id": id, "shadow_id": to_id, "name": name, "server": server, "partition": partition });
        vos.printer.say_json(&value);
    } else {
        say!(vos.printer, "Volume {id} shadowed from {} {from} to {} {to} \n", way.from_name, way.to_name);
    }
    Ok(())
}

fn check(vos: &Vos, name: &str) -> Done {
    if name.len() >= HEADER_NAME_MAX {
        let max = HEADER_NAME_MAX - 1;
        complain!(vos.printer, "vos: the name of the root volume {name} exceeds the size limit of {max}\n");
    } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
        complain!(vos.printer, "Illegal volume name {name}, should not be a number\n");
    } else {
        return Ok(());
    }
    Err(Stop::RETURNED)
}

fn own_name(vos: &Vos, place: Place, id: u32) -> Result<String, Code> {
    let volume = vos.volume(place.server, place.partition, id).inspect_err(|_| {
        complain!(vos.printer, "vos:cannot access volume {id}\n");
    })?;
    Ok(super::show_volume::name_of(volume.name.text()))
}
