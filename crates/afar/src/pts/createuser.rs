//! `pts createuser`: makes users.

use super::{Failed, Pts};
use crate::classic::Given;
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::{complain, say};
use afs_wire::ids::ViceId;
use serde_json::{Value, json};

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let ids = given.words("id");
    let mut made = Vec::new();
    for (index, name) in given.words("name").into_iter().enumerate() {
        let id = ids.get(index).map(|text| user_id(pts, text)).transpose()?;
        let id = match pts.wait(pts.db.create_user(name, id.map(ViceId))) {
            Ok(id) => id.0,
            Err(code) => {
                let with_id = id.map_or(String::new(), |id| format!(" with id {id}"));
                pts.complain(code, &format!("; unable to create user {name}{with_id} {}", pts.ignored()));
                if !pts.force {
                    return Err(Failed);
                }
                id.unwrap_or(0)
            }
        };
        made.push(json!({ "name": name, "id": id }));
        if !pts.json {
            say!(pts.printer, "User {name} has id {id}\n");
        }
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(made));
    }
    Ok(())
}

fn user_id(pts: &Pts, text: &str) -> Result<i32, Failed> {
    match numbers::parse_i32(text) {
        Err(BadNumber::NoNumber) => pts.complain(Code::DEAD, &format!("because id was: '{text}'")),
        Err(bad) => complain!(pts.printer, "pts: -id {text} {bad}\n"),
        Ok(0) => complain!(pts.printer, "0 isn't a valid user id; aborting\n"),
        Ok(id) if id < 0 => {
            pts.complain(Code::PRBADARG, &format!("because user id {id} was not positive"));
        }
        Ok(id) => return Ok(id),
    }
    Err(Failed)
}
