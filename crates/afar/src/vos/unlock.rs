//! `vos unlock`: releases the lock of the entry of a volume, even if somebody else holds it.

use super::{Done, Stop, Vos, lock};
use crate::classic::Given;
use crate::printer::{complain, say};
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id = lock::volume(vos, text)?;
    vos.tell("Binding to the VLDB server\n");
    vos.release_lock(id, None).map_err(|code| {
        complain!(vos.printer, "Could not unlock the entry for volume number {id} in VLDB \n");
        vos.print_error(code);
        vos.print_diagnostics("unlock", code);
        Stop::EXITED
    })?;
    vos.tell("VLDB updated\n");
    say!(vos.printer, "Released lock on vldb entry for volume {text}\n");
    if vos.json {
        vos.printer.say_json(&json!({ "unlocked": id }));
    }
    Ok(())
}
