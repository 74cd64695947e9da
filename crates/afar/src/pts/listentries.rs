//! `pts listentries`: all users, all groups, or both.

use super::{Failed, Pts};
use crate::classic::Given;
use crate::printer::say;
use afs_admin::ptdb::Entry;
use afs_wire::pt::ListEntriesFlags;
use serde_json::{Value, json};

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let flags = match (given.has("users"), given.has("groups")) {
        (true, true) => ListEntriesFlags::USERS | ListEntriesFlags::GROUPS,
        (false, true) => ListEntriesFlags::GROUPS,
        (_, false) => ListEntriesFlags::USERS,
    };
    if !pts.json {
        say!(pts.printer, "Name                          ID  Owner Creator\n");
    }
    let mut listed = Vec::new();
    let mut next = Some(0);
    while let Some(start) = next {
        let (entries, following) = pts.wait(pts.db.entries(flags, start)).map_err(|code| {
            pts.complain(code, "; unable to list entries");
            Failed
        })?;
        for Entry { name, id, owner, creator, .. } in entries {
            if pts.json {
                listed
                    .push(json!({ "name": name, "id": id.0, "owner_id": owner.0, "creator_id": creator.0 }));
            } else {
                say!(pts.printer, "{name:<25} {:>6} {:>6} {:>7} \n", id.0, owner.0, creator.0);
            }
        }
        next = following;
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(listed));
    }
    Ok(())
}
