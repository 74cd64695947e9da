//! Names of Kerberos, and what their owners are called in a cell (Security notes 3.1 and 3.2).

use rx_security::Identity;
use rx_security::ticket::{NameRules, name_of_principal};

/// A principal: the parts of its name, and its realm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The parts between slashes. There may be any number.
    pub parts: Vec<String>,
    /// The realm; empty where the name has none.
    pub realm: String,
}

impl Principal {
    /// Reads what libkrb5 writes: a backslash takes the meaning from what follows it. `None` if nothing follows, or if there are two realms.
    pub fn parse(text: &str) -> Option<Self> {
        let (mut parts, mut realm) = (vec![String::new()], None::<String>);
        let mut rest = text.chars();
        while let Some(char) = rest.next() {
            let (char, is_plain) = match char {
                '\\' => match rest.next()? {
                    'n' => ('\n', true),
                    't' => ('\t', true),
                    'b' => ('\x08', true),
                    '0' => ('\0', true),
                    other => (other, true),
                },
                char => (char, false),
            };
            match (char, is_plain, &mut realm) {
                ('@', false, Some(_)) => return None,
                ('@', false, none @ None) => *none = Some(String::new()),
                ('/', false, None) => parts.push(String::new()),
                (char, _, Some(realm)) => realm.push(char),
                (char, _, None) => parts.last_mut()?.push(char),
            }
        }
        Some(Self { parts, realm: realm.unwrap_or_default() })
    }

    /// The name of its owner in the protection database, where the cell's own realm is `cell_realm`: `name`, `name.instance`,
    /// and with `@realm` behind it for those of another realm; all in lower case. `None` for principals that AFS has no names
    /// for.
    pub fn name_in_cell(&self, cell_realm: &str) -> Option<String> {
        let (first, second) = match &self.parts[..] {
            [first] => (first, None),
            [first, second] => (first, Some(second.as_str())),
            _ => return None,
        };
        // Whether names with a dot are taken is the servers' to say.
        let (name, instance) = name_of_principal(first, second, NameRules { allow_dotted: true }).ok()?;
        let foreign = (self.realm != cell_realm).then_some(self.realm.as_str());
        Identity::new(&name, &instance, foreign).map(|who| who.to_string().to_lowercase())
    }

    /// True if it is of another realm than a cell's.
    pub fn is_foreign_to(&self, cell_realm: &str) -> bool {
        self.realm != cell_realm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_the_library_writes_them() {
        let parse =
            |text| Principal::parse(text).map(|principal| (principal.parts.join("|"), principal.realm));
        let read = |parts: &str, realm: &str| Some((parts.to_owned(), realm.to_owned()));
        assert_eq!(parse("alice@LAB.TEST"), read("alice", "LAB.TEST"));
        assert_eq!(parse("alice/admin@LAB.TEST"), read("alice|admin", "LAB.TEST"));
        assert_eq!(parse("a\\/b\\@c/d\\\\@R"), read("a/b@c|d\\", "R"));
        assert_eq!(parse("afs/lab.test@"), read("afs|lab.test", ""));
        assert_eq!(parse("alice"), read("alice", ""));
        assert_eq!(parse("a@b@c"), None);
        assert_eq!(parse("a\\"), None);
    }

    #[test]
    fn a_user_is_called_in_a_cell_as_its_servers_read_the_ticket() {
        let name = |text| Principal::parse(text).and_then(|principal| principal.name_in_cell("LAB.TEST"));
        for (principal, want) in [
            ("user1@LAB.TEST", Some("user1")),
            ("user1/admin@LAB.TEST", Some("user1.admin")),
            ("host/db1.lab.test@LAB.TEST", Some("rcmd.db1")),
            ("Frank@OTHER.TEST", Some("frank@other.test")),
            ("frank/admin@OTHER.TEST", Some("frank.admin@other.test")),
            ("a/b/c@LAB.TEST", None),
            ("a\\@lab.test@OTHER.TEST", None),
            ("a b@LAB.TEST", None),
        ] {
            assert_eq!(name(principal).as_deref(), want, "{principal}");
        }
    }
}
