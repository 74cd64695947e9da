//! The identity of a caller (Security notes 3.2), and the text of it that passes through `rx` to service code:
//! `ServerCall::identity` there, read back here by [`Identity::parse`]. What the caller may do is not decided here, with one
//! exception: who holds the cell's own key needs nobody's word.

use std::fmt;

/// Longest name, instance or realm, in bytes (MAXKTCNAMELEN and MAXKTCREALMLEN of OpenAFS, less the end).
pub const PART_MAX: usize = 63;

/// The name in tickets that are made from the cell's key.
const SUPERUSER: &str = "afs";

/// The identity that a caller has shown.
///
/// Its text, as [`Display`](fmt::Display) writes it and [`Identity::parse`] reads it, is the name that the protection database
/// and UserList know: `name` or `name.instance` for people of the cell, with `@realm` in lower case behind it for others. The
/// text is the same for all tickets of a person, and thus also whom bytes are counted for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    name: String,
    instance: String,
    realm: Option<String>,
}

impl Identity {
    /// Makes a user of the cell: `realm` is `None`; or of another realm, whose name is put into lower case.
    ///
    /// `None` if a part is too long or has a character that would make the text mean somebody else: `@`, `/`, blanks and control
    /// characters, or the name is empty.
    pub fn new(name: &str, instance: &str, realm: Option<&str>) -> Option<Self> {
        let is_good = |part: &str| {
            part.len() <= PART_MAX
                && !part.contains(|c: char| c == '@' || c == '/' || c.is_whitespace() || c.is_control())
        };
        let is_realm_good = realm.is_none_or(|r| !r.is_empty() && is_good(r));
        (!name.is_empty() && is_good(name) && is_good(instance) && is_realm_good).then(|| Self {
            name: name.to_owned(),
            instance: instance.to_owned(),
            realm: realm.map(str::to_lowercase),
        })
    }

    /// The holder of the cell's own key: see [`Self::is_local_superuser`].
    pub fn local_superuser() -> Self {
        Self { name: SUPERUSER.to_owned(), instance: String::new(), realm: None }
    }

    /// Reads the text back. A name with a dot in it comes out as name and instance: the two are one to all who use them.
    pub fn parse(text: &str) -> Option<Self> {
        let (local, realm) = match text.split_once('@') {
            Some((local, realm)) => (local, Some(realm)),
            None => (text, None),
        };
        let (name, instance) = local.split_once('.').unwrap_or((local, ""));
        Self::new(name, instance, realm)
    }

    /// The first part of the principal.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The second part of the principal, or "".
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The realm in lower case, for people of another one than the cell's.
    pub fn realm(&self) -> Option<&str> {
        self.realm.as_deref()
    }

    /// True if the caller holds the cell's own key, as servers and tools with `-localauth` do: name `afs` of the cell, no
    /// instance (Security notes 3.2). To the protection database that is one of system:administrators.
    pub fn is_local_superuser(&self) -> bool {
        self.realm.is_none() && self.instance.is_empty() && self.name == SUPERUSER
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.instance.is_empty() {
            write!(f, ".{}", self.instance)?;
        }
        match &self.realm {
            Some(realm) => write!(f, "@{realm}"),
            None => Ok(()),
        }
    }
}

/// The realms that are the cell's own, and the principals of them that are not (Security notes 3.2).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LocalRealms {
    realms: Vec<String>,
    excluded: Vec<String>,
}

impl LocalRealms {
    /// The realm of the cell's name alone, whatever its case.
    pub fn of_cell(cell: &str) -> Self {
        Self { realms: vec![cell.to_owned()], excluded: Vec::new() }
    }

    /// Adds these realms, which OpenAFS has in krb.conf.
    #[must_use]
    pub fn with_realms(mut self, realms: &[String]) -> Self {
        self.realms.extend_from_slice(realms);
        self
    }

    /// Excludes these principals, `name[.instance]@REALM`, which OpenAFS has in krb.excl: they are foreign.
    #[must_use]
    pub fn without(mut self, principals: &[String]) -> Self {
        self.excluded.extend_from_slice(principals);
        self
    }

    /// The identity that the principal of a ticket is. An empty realm is the cell's: only its key makes such tickets.
    pub fn identify(&self, name: &str, instance: &str, realm: &str) -> Option<Identity> {
        let local = Identity::new(name, instance, None)?;
        if realm.is_empty() {
            return Some(local);
        }
        let full = format!("{local}@{realm}");
        let is_local = self.realms.iter().any(|r| r.eq_ignore_ascii_case(realm))
            && !self.excluded.iter().any(|e| e.eq_ignore_ascii_case(&full));
        if is_local { Some(local) } else { Identity::new(name, instance, Some(realm)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(principal: (&str, &str, &str), text: &str) {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let realms = LocalRealms::of_cell("lab.test").with_realms(&words(&["OTHER.LOCAL", "THIRD"]));
        let realms = realms.without(&words(&["eve@LAB.TEST", "bob.admin@lab.test"]));
        let identity = realms.identify(principal.0, principal.1, principal.2);
        assert_eq!(identity.as_ref().map(ToString::to_string), (!text.is_empty()).then(|| text.to_owned()));
        if let Some(identity) = identity {
            assert_eq!(Identity::parse(text), Some(identity), "the text reads back");
        }
    }

    #[test]
    fn names_are_those_of_the_protection_database() {
        check(("user1", "", "LAB.TEST"), "user1");
        check(("user1", "admin", "lab.TEST"), "user1.admin");
        check(("user1", "", "Third"), "user1");
        check(("user1", "", "IGNORED"), "user1@ignored");
        check(("user1", "admin", "ELSE.WHERE"), "user1.admin@else.where");
        check(("eve", "", "LAB.TEST"), "eve@lab.test");
        check(("bob", "admin", "LAB.TEST"), "bob.admin@lab.test");
        check(("afs", "", ""), "afs");
    }

    #[test]
    fn a_name_that_would_read_as_somebody_else_is_nobody() {
        check(("admin@lab.test", "", "EVIL.ORG"), "");
        check(("a", "b@c", "LAB.TEST"), "");
        check(("", "", "LAB.TEST"), "");
        check(("a\0b", "", "LAB.TEST"), "");
        check(("a b", "", "LAB.TEST"), "");
        check((&"x".repeat(64), "", "LAB.TEST"), "");
        check(("x", "", "a@b"), "");
        assert_eq!(Identity::parse(""), None);
        assert_eq!(Identity::parse("a@"), None);
    }

    #[test]
    fn only_the_cells_own_key_makes_a_superuser() {
        let is_super = |text| Identity::parse(text).unwrap().is_local_superuser();
        assert!(is_super("afs"));
        assert!(!is_super("afs.lab.test"));
        assert!(!is_super("afs@other.org"));
        assert!(!is_super("admin"));
    }
}
