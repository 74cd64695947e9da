//! `pts listowned`: the groups that users and groups own, or that nobody owns.

use super::nameorid::{self, Named};
use super::{Failed, Pts};
use crate::classic::Given;
use crate::printer::{complain, say};
use serde_json::{Value, json};

/// Old servers return this as if there were more groups, although there are none.
const MORE_IS_LOST: i32 = 1;

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let mut shown = Vec::new();
    for Named { id, name } in nameorid::find(pts, given)? {
        if !pts.json {
            match id.0 {
                0 => say!(pts.printer, "Orphaned groups are:\n"),
                _ => say!(pts.printer, "Groups owned by {name} (id: {id}) are:\n"),
            }
        }
        let mut owned = Vec::new();
        let mut last = 0;
        loop {
            let part = pts
                .wait(pts.db.owned(id, last))
                .and_then(|(ids, next)| Ok((pts.wait(pts.db.names_of(&ids))?, next)));
            let (names, next) = match part {
                Ok(part) => part,
                Err(code) => {
                    pts.complain(code, &format!("; unable to get owner list for {name} (id: {id})"));
                    break;
                }
            };
            if next == MORE_IS_LOST {
                complain!(pts.printer, "membership list for id {id} exceeds display limit\n");
            }
            let is_empty = names.is_empty();
            if pts.json {
                owned.extend(names);
            } else {
                names.iter().for_each(|name| say!(pts.printer, "  {name}\n"));
            }
            // A server that gives nothing and says that there is more would do so for ever.
            if next == 0 || next == MORE_IS_LOST || is_empty {
                break;
            }
            last = next;
        }
        if pts.json {
            shown.push(json!({ "name": name, "id": id.0, "owned": owned }));
        }
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(shown));
    }
    Ok(())
}
