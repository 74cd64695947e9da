//! `pts listmax`: the highest id that a user has, the lowest of a group.

use super::{Failed, Pts};
use crate::classic::Given;
use crate::printer::say;
use serde_json::json;

pub(super) fn run(pts: &Pts, _given: &Given) -> Result<(), Failed> {
    let (user, group) = pts.wait(pts.db.max()).map_err(|code| {
        pts.complain(code, "getting maximum user id");
        Failed
    })?;
    if pts.json {
        pts.printer.say_json(&json!({ "max_user_id": user.0, "max_group_id": group.0 }));
    } else {
        say!(pts.printer, "Max user id is {user} and max group id is {group}.\n");
    }
    Ok(())
}
