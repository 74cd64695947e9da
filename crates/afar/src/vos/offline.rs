//! `vos offline`: takes a volume offline, for good or for some seconds.

use super::online::{failed, place};
use super::volser::{BUSY, OFFLINE};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::numbers;
use crate::printer::complain;
use afs_wire::afsvol::VolumeFlags;
use serde_json::json;
use std::time::Duration;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (server, partition, id) = place(vos, given)?;
    let is_busy = given.has("busy");
    // What is no time must not become 0, which is for good.
    let seconds = given.word("sleep").map_or(Ok(0), |text| {
        numbers::parse(text, 0..=u32::MAX).map_err(|bad| {
            complain!(vos.printer, "vos: -sleep {text} {bad}\n");
            Stop::RETURNED
        })
    })?;
    if is_busy && !given.has("sleep") {
        complain!(vos.printer, "-sleep option must be used with -busy flag\n");
        return Err(Stop::RETURNED);
    }
    let attach = if is_busy { BUSY } else { OFFLINE };
    let is_for_good = seconds == 0 && !is_busy;
    let state = if is_for_good { VolumeFlags::OUT_OF_SERVICE } else { VolumeFlags::NONE };
    let set = vos.set_volume_state(server, partition, id, attach, state, Duration::from_secs(seconds.into()));
    set.map_err(|code| failed(vos, code))?;
    if vos.json {
        vos.printer.say_json(&json!({
            "offline": id,
            "server": server.to_string(),
            "partition": partition.to_string(),
            "busy": is_busy,
            // None where it is for good.
            "seconds": (!is_for_good).then_some(seconds),
        }));
    }
    Ok(())
}
