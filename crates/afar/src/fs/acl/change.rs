//! The change of a list by one entry of `fs setacl`'s command line: a name, and rights in letters or as a word, with `+` or
//! `-` behind them where they are to be added or taken away.

use afs_wire::rights::Rights;

/// An entry, as it is to be or to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    name: String,
    rights: Rights,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// These are its rights.
    Set,
    /// These too.
    Add,
    /// Takes these away.
    Take,
    /// `none`: the entry goes.
    Remove,
}

/// A letter that is no right.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadRight(pub(super) char);

/// Words for rights.
const WORDS: &[(&str, Rights)] = &[
    ("read", Rights(Rights::READ.0 | Rights::LOOKUP.0)),
    ("write", Rights(Rights::ALL.0 & !Rights::ADMINISTER.0)),
    ("mail", Rights(Rights::INSERT.0 | Rights::LOCK.0 | Rights::LOOKUP.0)),
    ("all", Rights::ALL),
];

impl Entry {
    /// Reads the two words of an entry.
    pub(super) fn parse(name: &str, rights: &str) -> Result<Self, BadRight> {
        let (word, mut how) = match rights.as_bytes().last() {
            Some(b'+') => (&rights[..rights.len() - 1], How::Add),
            Some(b'-') => (&rights[..rights.len() - 1], How::Take),
            Some(b'=') => (&rights[..rights.len() - 1], How::Set),
            Some(_) | None => (rights, How::Set),
        };
        let rights = match WORDS.iter().find(|(known, _)| *known == word) {
            Some((_, rights)) => *rights,
            None if word == "none" => {
                how = How::Remove;
                Rights::NONE
            }
            None => letters(word)?,
        };
        Ok(Self { name: name.to_owned(), rights, how })
    }

    /// An entry with exactly these rights.
    pub(super) fn set(name: &str, rights: Rights) -> Self {
        Self { name: name.to_owned(), rights, how: How::Set }
    }

    /// Changes a list. Capitals in names do not count; what is new comes first; who has no rights left goes.
    pub(super) fn apply_to(&self, list: &mut Vec<(String, Rights)>) {
        let place = list.iter().position(|(name, _)| name.eq_ignore_ascii_case(&self.name));
        let there = match (place, self.how) {
            (Some(place), _) => &mut list[place].1,
            (None, How::Take | How::Remove) => return,
            (None, How::Set | How::Add) => {
                list.insert(0, (self.name.clone(), Rights::NONE));
                &mut list[0].1
            }
        };
        *there = match self.how {
            How::Set => self.rights,
            How::Add => *there | self.rights,
            How::Take => there.without(self.rights),
            How::Remove => Rights::NONE,
        };
        list.retain(|(_, rights)| !rights.is_empty());
    }
}

fn letters(word: &str) -> Result<Rights, BadRight> {
    let mut rights = Rights::NONE;
    for letter in word.chars() {
        rights |= Rights::from_letters(letter.encode_utf8(&mut [0; 4])).ok_or(BadRight(letter))?;
    }
    Ok(rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list after these entries, as text.
    fn check(before: &[(&str, &str)], entries: &[(&str, &str)], after: &[(&str, &str)]) {
        let mut list: Vec<_> =
            before.iter().map(|(n, r)| (n.to_string(), Rights::from_letters(r).unwrap())).collect();
        for (name, rights) in entries {
            Entry::parse(name, rights).unwrap().apply_to(&mut list);
        }
        let list: Vec<_> = list.iter().map(|(name, rights)| (name.as_str(), rights.letters())).collect();
        let after: Vec<_> = after.iter().map(|(name, rights)| (*name, rights.to_string())).collect();
        assert_eq!(list, after, "{entries:?}");
    }

    const LIST: &[(&str, &str)] = &[("alice", "rl"), ("bob", "rlidwka")];

    #[test]
    fn entries_set_add_and_take() {
        check(LIST, &[("alice", "w")], &[("alice", "w"), ("bob", "rlidwka")]);
        check(LIST, &[("alice", "w=")], &[("alice", "w"), ("bob", "rlidwka")]);
        check(LIST, &[("alice", "wi+")], &[("alice", "rliw"), ("bob", "rlidwka")]);
        check(LIST, &[("BOB", "a-")], &[("alice", "rl"), ("bob", "rlidwk")]);
        check(LIST, &[("alice", "write"), ("bob", "mail")], &[("alice", "rlidwk"), ("bob", "lik")]);
        check(LIST, &[("bob", "read"), ("alice", "all")], &[("alice", "rlidwka"), ("bob", "rl")]);
        check(LIST, &[("alice", "write-")], &[("bob", "rlidwka")]);
        check(LIST, &[("alice", "A")], &[("alice", "A"), ("bob", "rlidwka")]);
    }

    #[test]
    fn who_has_no_rights_is_not_in_the_list() {
        check(LIST, &[("alice", "none")], &[("bob", "rlidwka")]);
        check(LIST, &[("alice", "")], &[("bob", "rlidwka")]);
        check(LIST, &[("alice", "rl-")], &[("bob", "rlidwka")]);
        check(LIST, &[("carol", "none"), ("carol", "rl-"), ("carol", "")], LIST);
    }

    #[test]
    fn what_is_new_comes_first() {
        check(&[], &[("a", "r"), ("b", "l+")], &[("b", "l"), ("a", "r")]);
    }

    #[test]
    fn a_letter_that_is_no_right_is_named() {
        assert_eq!(Entry::parse("a", "rx"), Err(BadRight('x')));
        assert_eq!(Entry::parse("a", "null"), Err(BadRight('n')));
        assert_eq!(Entry::parse("a", "r+l"), Err(BadRight('+')));
        assert_eq!(Entry::parse("a", "\u{e9}"), Err(BadRight('\u{e9}')));
    }
}
