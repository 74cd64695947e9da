//! `pts chown`: gives a group another owner.

use super::{Failed, Pts};
use crate::classic::Given;
use serde_json::json;

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let name = given.word("name").unwrap_or_default();
    let owner = given.word("owner").unwrap_or_default();
    pts.wait(pts.db.change_owner(name, owner)).map_err(|code| {
        pts.complain(code, &format!("; unable to change owner of {name} to {owner}"));
        Failed
    })?;
    if pts.json {
        pts.printer.say_json(&json!({ "name": name, "owner": owner }));
    }
    Ok(())
}
