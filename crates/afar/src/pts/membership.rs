//! `pts membership`: the groups that users are in, the members of groups.

use super::nameorid::{self, Named};
use super::{Failed, Pts};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::ptdb::Ids;
use afs_wire::ids::ViceId;
use serde_json::{Value, json};
use std::collections::HashSet;

/// Buckets of the hash table that decides the order of expanded lists, as in OpenAFS's `pts`.
const BUCKETS: u32 = 1024;

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let (expands, wants_supergroups) = (given.has("expandgroups"), given.has("supergroups"));
    let mut shown = Vec::new();
    for Named { id, name } in nameorid::find(pts, given)? {
        let names = if expands { expanded(pts, id) } else { elements(pts, id) };
        let names = match names {
            Ok(names) => names,
            Err(code) => {
                pts.complain(code, &format!("; unable to get membership of {name} (id: {id})"));
                continue;
            }
        };
        let supergroups = match wants_supergroups && id.0 < 0 {
            false => None,
            true => match pts.wait(pts.db.supergroups(id)).and_then(|found| named(pts, id, &found)) {
                Ok(names) => Some(names),
                Err(Code::NO_SUCH_PROCEDURE) => None,
                Err(code) => {
                    print(pts, &name, id, &names, expands);
                    pts.complain(code, &format!("; unable to get supergroups of {name} (id: {id})"));
                    continue;
                }
            },
        };
        if pts.json {
            let kind = if id.0 < 0 { "members" } else { "groups" };
            let mut object = json!({ "name": name, "id": id.0, kind: names });
            if let Some(supergroups) = supergroups {
                object["supergroups"] = json!(supergroups);
            }
            shown.push(object);
            continue;
        }
        print(pts, &name, id, &names, expands);
        if let Some(supergroups) = supergroups {
            say!(pts.printer, "Groups {name} (id: {id}) is a member of:\n");
            supergroups.iter().for_each(|name| say!(pts.printer, "  {name}\n"));
        }
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(shown));
    }
    Ok(())
}

fn print(pts: &Pts, name: &str, id: ViceId, names: &[String], is_expanded: bool) {
    if pts.json {
        return;
    }
    let expanded = if is_expanded { "Expanded " } else { "" };
    if id.0 < 0 {
        say!(pts.printer, "{expanded}Members of {name} (id: {id}) are:\n");
    } else {
        say!(pts.printer, "{expanded}Groups {name} (id: {id}) is a member of:\n");
    }
    names.iter().for_each(|name| say!(pts.printer, "  {name}\n"));
}

fn elements(pts: &Pts, id: ViceId) -> Result<Vec<String>, Code> {
    let elements = pts.wait(pts.db.elements(id))?;
    named(pts, id, &elements)
}

fn named(pts: &Pts, id: ViceId, found: &Ids) -> Result<Vec<String>, Code> {
    warn_if_cut(pts, id, found);
    pts.wait(pts.db.names_of(&found.ids))
}

fn warn_if_cut(pts: &Pts, id: ViceId, found: &Ids) {
    if found.is_cut {
        complain!(pts.printer, "membership list for id {id} exceeds display limit\n");
    }
}

/// All users of a group, or all groups that a user is in, with groups in groups followed, through whatever others.
fn expanded(pts: &Pts, of: ViceId) -> Result<Vec<String>, Code> {
    let mut seen = HashSet::new();
    let mut order = Vec::new();
    let mut pending = vec![of];
    let mut is_first = true;
    while let Some(id) = pending.pop() {
        let answer = if is_first || of.0 < 0 {
            pts.wait(pts.db.elements(id))
        } else {
            pts.wait(pts.db.supergroups(id))
        };
        is_first = false;
        let found = match answer {
            Err(Code::NO_SUCH_PROCEDURE) => Ids { ids: Vec::new(), is_cut: false },
            other => other?,
        };
        warn_if_cut(pts, id, &found);
        for id in found.ids {
            if seen.insert(id) {
                order.push(id);
                if id.0 < 0 {
                    pending.push(id);
                }
            }
        }
    }
    let is_wanted = |id: &ViceId| (of.0 < 0) == (id.0 >= 0);
    let mut wanted: Vec<ViceId> = order.into_iter().rev().filter(is_wanted).collect();
    wanted.sort_by_key(|id| id.0.unsigned_abs() % BUCKETS);
    pts.wait(pts.db.names_of(&wanted))
}
