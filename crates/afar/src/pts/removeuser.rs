//! `pts removeuser`: takes users, or groups, out of groups.

use super::{Failed, Pts};
use crate::classic::Given;

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    for user in given.words("user") {
        for group in given.words("group") {
            if let Err(code) = pts.db.remove(user, group) {
                let ignored = pts.ignored();
                pts.complain(code, &format!("; unable to remove user {user} from group {group} {ignored}"));
                if !pts.force {
                    return Err(Failed);
                }
            }
        }
    }
    Ok(())
}
