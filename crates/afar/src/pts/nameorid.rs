//! The values of `-nameorid`: users and groups by name, or by id where there is no such name.

use super::{Failed, Pts};
use crate::classic::Given;
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::complain;
use afs_wire::ids::ViceId;

/// A user or group that exists by name, or whose id was given.
pub(super) struct Named {
    /// The id.
    pub(super) id: ViceId,
    /// The name, as it was given or as the servers have it.
    pub(super) name: String,
}

/// Looks up what `-nameorid` names: first the names, then the ids. Complains of names that do not exist and leaves them out.
pub(super) fn find(pts: &Pts, given: &Given) -> Result<Vec<Named>, Failed> {
    let (mut names, mut ids) = (Vec::new(), Vec::new());
    for word in given.words("nameorid") {
        let is_name = matches!(pts.wait(pts.db.ids_of(&[word])), Ok(found) if found != [ViceId::ANONYMOUS]);
        match numbers::parse_i32(word) {
            Ok(id) if !is_name => ids.push(ViceId(id)),
            Err(bad @ BadNumber::OutOfRange { .. }) if !is_name => {
                complain!(pts.printer, "pts: -nameorid {word} {bad}\n");
            }
            Ok(_) | Err(_) => names.push(word),
        }
    }
    let mut found = Vec::new();
    match pts.wait(pts.db.ids_of(&names)) {
        Err(code) => {
            pts.complain(code, "so couldn't look up names");
            return Err(Failed);
        }
        Ok(of_names) => {
            for (name, id) in names.iter().map(|name| name.to_ascii_lowercase()).zip(of_names) {
                if id == ViceId::ANONYMOUS {
                    pts.complain(Code::PRNOENT, &format!("so couldn't look up id for {name}"));
                } else {
                    found.push(Named { id, name });
                }
            }
        }
    }
    let of_ids = pts.wait(pts.db.names_of(&ids)).map_err(|code| {
        pts.complain(code, "translating ids");
        Failed
    })?;
    let is_somebody = |named: &Named| named.id != ViceId::ANONYMOUS;
    found.extend(ids.into_iter().zip(of_ids).map(|(id, name)| Named { id, name }).filter(is_somebody));
    Ok(found)
}
