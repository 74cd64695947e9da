//! `pts rename`: gives a user or group another name.

use super::{Failed, Pts};
use crate::classic::Given;

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let old = given.word("oldname").unwrap_or_default();
    let new = given.word("newname").unwrap_or_default();
    pts.db.change(old, new, None).map_err(|code| {
        pts.complain(code, &format!("; unable to change name of {old} to {new}"));
        Failed
    })
}
