//! `pts chown`: gives a group another owner.

use super::{Failed, Pts};
use crate::classic::Given;

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let name = given.word("name").unwrap_or_default();
    let owner = given.word("owner").unwrap_or_default();
    pts.db.change(name, "", Some(owner)).map_err(|code| {
        pts.complain(code, &format!("; unable to change owner of {name} to {owner}"));
        Failed
    })
}
