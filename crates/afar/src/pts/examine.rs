//! `pts examine`: what the database has of users and groups.

use super::nameorid::{self, Named};
use super::{Failed, Pts};
use crate::classic::Given;
use crate::printer::say;
use afs_wire::ids::ViceId;
use afs_wire::pt::Privacy;
use serde_json::{Value, json};

/// The group whose members may make any number of groups.
const ADMINISTRATORS: &str = "system:administrators";

/// The five letters of the privacy flags: for each the bits it has, and how they are shown where members, and where all
/// may.
const LETTERS: [(u32, char, char); 5] =
    [(2, 's', 'S'), (1, 'O', 'O'), (2, 'm', 'M'), (2, 'a', 'A'), (1, 'r', 'r')];

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let found = nameorid::find(pts, given)?;
    // If there is nothing to show, that is a failure.
    let mut done = Err(Failed);
    let mut shown = Vec::new();
    for Named { id, .. } in found {
        done = show(pts, id, &mut shown);
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(shown));
    }
    // Of several, the last one's success counts, as with OpenAFS's.
    done
}

fn show(pts: &Pts, id: ViceId, shown: &mut Vec<Value>) -> Result<(), Failed> {
    let entry = pts.wait(pts.db.entry(id)).map_err(|code| {
        pts.complain(code, &format!("; unable to find entry for (id: {id})"));
        Failed
    })?;
    let names = pts.wait(pts.db.names_of(&[entry.owner, entry.creator])).map_err(|code| {
        let (owner, creator) = (entry.owner, entry.creator);
        pts.complain(code, &format!("translating owner ({owner}) and creator ({creator}) ids"));
        Failed
    })?;
    let [owner, creator] = &names[..] else { return Err(Failed) };
    let is_administrator = entry.id == ViceId::SYSTEM_ADMINISTRATORS
        || pts.wait(pts.db.is_member(&entry.name, ADMINISTRATORS)).unwrap_or(false);
    let flags = letters(entry.flags);
    if pts.json {
        shown.push(json!({
            "name": entry.name,
            "id": entry.id.0,
            "owner": owner,
            "owner_id": entry.owner.0,
            "creator": creator,
            "creator_id": entry.creator.0,
            "membership": entry.membership,
            "flags": flags,
            "group_quota": (!is_administrator).then_some(entry.group_quota),
        }));
        return Ok(());
    }
    let quota = if is_administrator { "unlimited".to_owned() } else { entry.group_quota.to_string() };
    say!(
        pts.printer,
        "Name: {}, id: {}, owner: {owner}, creator: {creator},\n  membership: {}, flags: {flags}, group quota: {quota}.\n",
        entry.name,
        entry.id,
        entry.membership
    );
    Ok(())
}

/// Flags as letters: small where members may, large where all may, a dash where only owners and administrators may.
pub(super) fn letters(flags: Privacy) -> String {
    let mut shift: u32 = LETTERS.iter().map(|(bits, ..)| bits).sum();
    let letter = |(bits, members, all): (u32, char, char)| {
        shift -= bits;
        match (flags.0 >> shift) & ((1 << bits) - 1) {
            0 => '-',
            1 => members,
            2 => all,
            _ => 'X',
        }
    };
    LETTERS.map(letter).iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_shown_as_five_letters() {
        for (flags, text) in [
            (0x90, "S-M--"),
            (0x80, "S----"),
            (0x6b, "sOmar"),
            (0xb5, "SOMAr"),
            (0, "-----"),
            (0xc0, "X----"),
        ] {
            assert_eq!(letters(Privacy(flags)), text, "{flags:#x}");
        }
    }
}
