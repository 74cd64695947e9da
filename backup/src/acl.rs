//! An access list as the text of an extended attribute: a line for each entry, `ID RIGHTS`, and `!ID RIGHTS` for rights that are taken
//! away. Ids are those of the cell's protection database.

use afs_wire::acl::Acl;
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;
use std::fmt::Write;

/// The extended attribute that has it. Debian's restic sets attributes of the user's namespace on files and directories.
pub(crate) const ATTRIBUTE: &str = "user.afs.acl";

/// The text of a list.
pub(crate) fn to_text(acl: &Acl) -> String {
    let mut text = String::new();
    for (mark, entries) in [("", &acl.positive), ("!", &acl.negative)] {
        for (id, rights) in entries {
            let letters = rights.letters();
            // Rights without a letter, which no program gives, are kept as a number.
            let rights = match Rights::from_letters(&letters) {
                Some(same) if same == *rights && !letters.is_empty() => letters,
                _ => format!("{:#x}", rights.0),
            };
            writeln!(text, "{mark}{} {rights}", id.0).expect("a string takes all");
        }
    }
    text
}

/// The list of a text, or the line that is none.
pub(crate) fn from_text(text: &[u8]) -> Result<Acl, String> {
    let text = std::str::from_utf8(text).map_err(|_| "no text".to_owned())?;
    let mut acl = Acl::default();
    for line in text.lines() {
        let parsed = || {
            let (id, rights) = line.split_once(' ')?;
            let (list, id) = match id.strip_prefix('!') {
                Some(id) => (true, id),
                None => (false, id),
            };
            let rights = match rights.strip_prefix("0x") {
                Some(number) => Rights(u32::from_str_radix(number, 16).ok()?),
                None => Rights::from_letters(rights)?,
            };
            Some((list, (ViceId(id.parse().ok()?), rights)))
        };
        match parsed() {
            Some((true, entry)) => acl.negative.push(entry),
            Some((false, entry)) => acl.positive.push(entry),
            None => return Err(line.to_owned()),
        }
    }
    Ok(acl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_what_its_text_says() {
        let acl = Acl {
            positive: vec![
                (ViceId(-204), Rights::ALL),
                (ViceId(7), Rights(0x8000_0009)),
                (ViceId(8), Rights(0x80)),
            ],
            negative: vec![(ViceId(9), Rights::READ), (ViceId(10), Rights(0))],
        };
        let text = to_text(&acl);
        assert_eq!(text, "-204 rlidwka\n7 rlH\n8 0x80\n!9 r\n!10 0x0\n");
        assert_eq!(from_text(text.as_bytes()), Ok(acl));
    }

    #[test]
    fn a_line_that_is_no_entry_is_named() {
        for text in ["7", "x r", "7 z", "!! r", "7 0x"] {
            assert_eq!(from_text(text.as_bytes()), Err(text.to_owned()));
        }
    }
}
