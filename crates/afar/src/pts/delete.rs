//! `pts delete`: removes users and groups.

use super::nameorid::{self, Named};
use super::{Failed, Pts};
use crate::classic::Given;
use serde_json::{Value, json};

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let mut deleted = Vec::new();
    for Named { id, name } in nameorid::find(pts, given)? {
        if let Err(code) = pts.wait(pts.db.delete(id)) {
            pts.complain(code, &format!("deleting {name} (id: {id}) {}", pts.ignored()));
            if !pts.force {
                return Err(Failed);
            }
        } else {
            deleted.push(json!({ "name": name, "id": id.0 }));
        }
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(deleted));
    }
    Ok(())
}
