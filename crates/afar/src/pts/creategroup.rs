//! `pts creategroup`: makes groups, of the caller's or of others.

use super::{Failed, Pts};
use crate::classic::Given;
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::{complain, say};
use afs_wire::ids::ViceId;
use serde_json::{Value, json};

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let owner = given.word("owner");
    let ids = given.words("id");
    let mut made = Vec::new();
    for (index, name) in given.words("name").into_iter().enumerate() {
        let id = ids.get(index).map(|text| group_id(pts, text)).transpose()?;
        let id = match pts.wait(pts.db.create_group(name, owner, id.map(ViceId))) {
            Ok(id) => id.0,
            Err(code) => {
                let ignored = pts.ignored();
                let what = match (owner, id) {
                    (None, None) => format!("; unable to create group {name} {ignored}"),
                    (owner, id) => {
                        let owner = owner.map_or(String::new(), |owner| format!(" owned by '{owner}'"));
                        let ignored = if pts.force { " (ignored)" } else { "" };
                        format!("; unable to create group {name} with id {}{owner}{ignored}", id.unwrap_or(0))
                    }
                };
                pts.complain(code, &what);
                if !pts.force {
                    return Err(Failed);
                }
                id.unwrap_or(0)
            }
        };
        made.push(json!({ "name": name, "id": id }));
        if !pts.json {
            say!(pts.printer, "group {name} has id {id}\n");
        }
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(made));
    }
    Ok(())
}

fn group_id(pts: &Pts, text: &str) -> Result<i32, Failed> {
    match numbers::parse_i32(text) {
        Err(BadNumber::NoNumber) => pts.complain(Code::DEAD, &format!("because group id was: '{text}'")),
        Err(bad) => complain!(pts.printer, "pts: -id {text} {bad}\n"),
        Ok(0) => complain!(pts.printer, "0 isn't a valid group id; aborting\n"),
        Ok(id) if id > 0 => {
            pts.complain(Code::PRBADARG, &format!("because group id {id} was not negative"));
        }
        Ok(id) => return Ok(id),
    }
    Err(Failed)
}
