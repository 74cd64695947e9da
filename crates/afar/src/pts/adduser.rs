//! `pts adduser`: puts users, or groups, into groups.

use super::{Failed, Pts};
use crate::classic::Given;
use serde_json::{Value, json};

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let mut added = Vec::new();
    for user in given.words("user") {
        for group in given.words("group") {
            if let Err(code) = pts.wait(pts.db.add(user, group)) {
                let ignored = pts.ignored();
                pts.complain(code, &format!("; unable to add user {user} to group {group} {ignored}"));
                if !pts.force {
                    return Err(Failed);
                }
            } else {
                added.push(json!({ "user": user, "group": group }));
            }
        }
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(added));
    }
    Ok(())
}
