//! `pts listentries`: all users, all groups, or both.

use super::ptdb::Entry;
use super::{Failed, Pts};
use crate::classic::Given;
use crate::printer::say;
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
        let (entries, following) = pts.db.entries(flags, start).map_err(|code| {
            pts.complain(code, "; unable to list entries");
            Failed
        })?;
        for Entry { name, id, owner, creator, .. } in entries {
            if pts.json {
                listed.push(json!({ "name": name, "id": id, "owner_id": owner, "creator_id": creator }));
            } else {
                say!(pts.printer, "{name:<25} {id:>6} {owner:>6} {creator:>7} \n");
            }
        }
        // A server that gives the same place again would give it for ever.
        next = following.filter(|following| *following > start);
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(listed));
    }
    Ok(())
}
