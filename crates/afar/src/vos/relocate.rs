//! `vos move`: moves a volume to another partition, of the same server or of another one. How it is done is in `afs_admin::transfer::relocate`.

use super::transfer::{Sending, carried_kib, check_space, complain_of, tell, way};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::Kind;
use afs_admin::steps::Event;
use afs_admin::transfer::Step;
use afs_admin::transfer::relocate::{Moved, Order, has_moved, move_volume};
use afs_wire::abort::VOLSERVOLMOVED;
use afs_wire::ids::VolumeId;
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id =
        vos.known_volume_id(text, Stop::RETURNED, || format!("vos: can't find volume ID or name '{text}'"))?;
    let way = way(vos, given, Stop::RETURNED)?;
    let volume = VolumeId(id);
    let order = Order {
        volume,
        from: way.from,
        to: way.to,
        is_live: given.has("live"),
        may_lose_level: given.has("force"),
    };
    let cancel = vos.cancel();
    // Where it has moved already, there is nothing to send, and the move says so. The same order is given again by those who do not know.
    let bytes = match vos.caller.run(has_moved(&vos.vldb, &vos.volumes, order)) {
        true => 0,
        false => check_space(vos, &way, id, "move", carried_kib(vos, &way, id), Stop::EXITED)?,
    };
    let mut sending = Sending::new(vos, &way, bytes);
    let events = |event: Event<Step>| {
        sending.handle(event);
        match event {
            Event::Begins(Step::SetState(id)) => {
                vos.tell(&format!("Setting volume flags on new source volume {id} ..."));
            }
            event => tell(vos, event),
        }
    };
    let moved = vos.caller.run(move_volume(&vos.vldb, &vos.volumes, order, cancel, events));
    match moved {
        Ok(Moved::Here { has_replicas }) => {
            if has_replicas {
                complain!(vos.printer, "WARNING : readOnly copies still exist \n");
            }
        }
        Ok(Moved::Before) => {}
        Ok(Moved::SamePlace) => {
            let what = format!("Warning: Moving volume {id} to its home partition ignored!\n");
            vos.print_failure(Code(VOLSERVOLMOVED.0), &what);
            return Err(Stop::EXITED);
        }
        Ok(Moved::Elsewhere(entry)) => {
            complain!(vos.printer, "The volume {id} is not on the specified site. \nThe current site is :");
            for site in entry.sites.iter().filter(|site| site.is(Kind::ReadWrite)) {
                let host = vos.host(site.server);
                complain!(vos.printer, " server {host} partition {} \n", site.partition);
            }
            return Err(Stop::EXITED);
        }
        Err(failure) => {
            if let Step::Compare(_) = failure.step {
                complain!(vos.printer, "Only RW volume can be moved\n");
            } else {
                complain_of(vos, "move", &failure);
            }
            return Err(Stop::EXITED);
        }
    }
    vos.warn_of_snapshots(way.from.server, way.from.partition, id);
    if vos.json {
        let place = |place: afs_admin::transfer::Place| json!({ "server": place.server.to_string(), "partition": place.partition.to_string() });
        vos.printer.say_json(&json!({ "moved": id, "from": place(way.from), "to": place(way.to) }));
    } else {
        let (from, to) = (way.from.partition, way.to.partition);
        say!(vos.printer, "Volume {id} moved from {} {from} to {} {to} \n", way.from_name, way.to_name);
    }
    Ok(())
}
