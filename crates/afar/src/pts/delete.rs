//! `pts delete`: removes users and groups.

use super::nameorid::{self, Named};
use super::{Failed, Pts};
use crate::classic::Given;

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    for Named { id, name } in nameorid::find(pts, given)? {
        if let Err(code) = pts.db.delete(id) {
            pts.complain(code, &format!("deleting {name} (id: {id}) {}", pts.ignored()));
            if !pts.force {
                return Err(Failed);
            }
        }
    }
    Ok(())
}
