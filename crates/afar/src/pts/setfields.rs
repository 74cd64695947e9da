//! `pts setfields`: who may see and change users and groups, and how many groups users may make.

use super::examine::letters;
use super::nameorid::{self, Named};
use super::{Failed, Pts};
use crate::classic::Given;
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::complain;
use afs_wire::pt::Privacy;
use serde_json::{Value, json};

/// For each of the five letters: where all may, where members may, and the bits it has.
const LETTERS: [(char, char, u32); 5] =
    [('S', 's', 2), ('O', ' ', 1), ('M', 'm', 2), ('A', 'a', 2), (' ', 'r', 1)];

/// What is wrong with the flags.
#[derive(Debug, PartialEq, Eq)]
enum BadFlags {
    /// They are not five of the letters.
    Form,
    /// Letters at the wrong place.
    Order,
    /// A number that has more bits than flags have.
    Number(BadNumber),
}

pub(super) fn run(pts: &Pts, given: &Given) -> Result<(), Failed> {
    let found = nameorid::find(pts, given)?;
    let flags = given.word("access").map(|access| {
        parse(access).map_err(|error| {
            match error {
                BadFlags::Form => {
                    complain!(pts.printer, "Access bits must be of the form 'somar', not {access}\n");
                }
                BadFlags::Number(bad) => complain!(pts.printer, "pts: -access {access} {bad}\n"),
                BadFlags::Order => complain!(
                    pts.printer,
                    "Access bits out of order or illegal:\n  must be a combination of letters from 'SOMA ' or 's mar' or hyphen, not {access}\n"
                ),
            }
            Failed
        })
    });
    let flags = flags.transpose()?.map(Privacy);
    let quota = given.word("groupquota").map(|quota| {
        numbers::parse_i32(quota).map_err(|bad| {
            match bad {
                BadNumber::NoNumber => pts.complain(Code::DEAD, &format!("because ngroups was: '{quota}'")),
                BadNumber::OutOfRange { .. } => {
                    complain!(pts.printer, "pts: -groupquota {quota} {bad}\n");
                }
            }
            Failed
        })
    });
    let quota = quota.transpose()?;
    let mut changed = Vec::new();
    for Named { id, name } in found {
        pts.wait(pts.db.set_fields(id, flags, quota)).map_err(|code| {
            pts.complain(code, &format!("; unable to set fields for {name} (id: {id})"));
            Failed
        })?;
        let flags = flags.map(letters);
        changed.push(json!({ "name": name, "id": id.0, "flags": flags, "group_quota": quota }));
    }
    if pts.json {
        pts.printer.say_json(&Value::Array(changed));
    }
    Ok(())
}

/// Reads flags: five letters or dashes, or an octal number, which is anything with an octal digit in it.
fn parse(text: &str) -> Result<i32, BadFlags> {
    if text.contains(|c: char| c.is_digit(8)) {
        let digits: String = text.chars().take_while(|c| c.is_digit(8)).collect();
        return numbers::parse(&format!("0{digits}"), 0..=i32::MAX).map_err(BadFlags::Number);
    }
    if text.chars().count() != LETTERS.len() || !text.contains(['s', 'o', 'm', 'a', 'r', '-']) {
        return Err(BadFlags::Form);
    }
    text.chars().zip(LETTERS).try_fold(0, |flags, (letter, (all, members, bits))| {
        let value = match letter {
            '-' => 0,
            c if c == all => 2,
            c if c == members => 1,
            _ => return Err(BadFlags::Order),
        };
        let value = if bits == 1 { value.min(1) } else { value };
        Ok((flags << bits) | value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_letters_or_octal() {
        for (text, flags) in [
            ("S-M--", Ok(0x90)),
            ("sOmar", Ok(0x6b)),
            ("SOMAr", Ok(0xb5)),
            ("-----", Ok(0)),
            ("220", Ok(0o220)),
            ("40000000220", Err(BadFlags::Number(BadNumber::OutOfRange { min: 0, max: i32::MAX.into() }))),
            ("SOMA", Err(BadFlags::Form)),
            ("SOMAQ", Err(BadFlags::Form)),
            ("MMMar", Err(BadFlags::Order)),
            ("-o---", Err(BadFlags::Order)),
            ("S O-r", Err(BadFlags::Order)),
        ] {
            assert_eq!(parse(text), flags, "{text}");
        }
    }
}
