//! `pts setmax`: sets the highest ids in use, after which new ids are given to users and groups.

use super::{Failed, Pts};
use crate::classic::Given;
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::complain;
use afs_wire::ids::ViceId;
use serde_json::{Map, Value};

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let (user, group) = (given.word("user"), given.word("group"));
    let (mut done, mut values) = (Ok(()), Map::new());
    if let Some(text) = user {
        let set = set(pts, text, "User", |id| pts.wait(pts.db.set_max_user(ViceId(id))));
        done = set.map(|id| drop(values.insert("max_user_id".to_owned(), id.into())));
    }
    if let Some(text) = group {
        let set = set(pts, text, "Group", |id| pts.wait(pts.db.set_max_group(ViceId(id))));
        done = set.map(|id| drop(values.insert("max_group_id".to_owned(), id.into())));
    }
    if user.is_none() && group.is_none() {
        complain!(pts.printer, "Must specify at least one of group or user.\n");
        done = Err(Failed);
    }
    if pts.json && !values.is_empty() {
        pts.printer.say_json(&Value::Object(values));
    }
    // Of two, the latter's success counts, as with OpenAFS's.
    done
}

fn set(pts: &Pts, text: &str, kind: &str, set: impl Fn(i32) -> Result<(), Code>) -> Result<i32, Failed> {
    let id = numbers::parse_i32(text).map_err(|bad| {
        match bad {
            BadNumber::NoNumber => pts.complain(Code::DEAD, &format!("because id was: '{text}'")),
            BadNumber::OutOfRange { .. } => {
                complain!(pts.printer, "pts: -{} {text} {bad}\n", kind.to_ascii_lowercase());
            }
        }
        Failed
    })?;
    set(id).map(|()| id).map_err(|code| {
        pts.complain(code, &format!("so couldn't set Max {kind} Id to {id}"));
        Failed
    })
}
