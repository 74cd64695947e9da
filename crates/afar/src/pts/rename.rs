//! `pts rename`: gives a user or group another name.

use super::{Failed, Pts};
use crate::classic::Given;
use serde_json::json;

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let old = given.word("oldname").unwrap_or_default();
    let new = given.word("newname").unwrap_or_default();
    pts.wait(pts.db.rename(old, new)).map_err(|code| {
        pts.complain(code, &format!("; unable to change name of {old} to {new}"));
        Failed
    })?;
    if pts.json {
        pts.printer.say_json(&json!({ "old_name": old, "name": new }));
    }
    Ok(())
}
