//! `vos lock`: locks the entry of a volume against changes.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::printer::{complain, say};
use afs_wire::vl::EntryFlags;
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id = volume(vos, text)?;
    vos.set_lock(id, None, EntryFlags::OP_DELETE).map_err(|code| {
        complain!(vos.printer, "Could not lock VLDB entry for volume {text}\n");
        vos.print_error(code);
        Stop::EXITED
    })?;
    say!(vos.printer, "Locked VLDB entry for volume {text}\n");
    if vos.json {
        vos.printer.say_json(&json!({ "locked": id }));
    }
    Ok(())
}

/// The volume that the option names.
pub(super) fn volume(vos: &Vos, text: &str) -> Result<u32, Stop> {
    volume_called(vos, text, text)
}

/// The same, where complaints call it otherwise.
pub(super) fn volume_called(vos: &Vos, text: &str, called: &str) -> Result<u32, Stop> {
    match vos.volume_id(text) {
        Ok(Some(id)) => return Ok(id),
        Ok(None) => complain!(vos.printer, "vos: can't find volume '{called}'\n"),
        Err(code) => vos.print_error(code),
    }
    Err(Stop::EXITED)
}
