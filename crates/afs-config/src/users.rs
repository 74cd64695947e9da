//! `UserList`: who may administer a server.

use std::fmt;
use std::path::Path;

use crate::error::ConfigError;
use crate::text;

/// A line of a `UserList`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Superuser {
    /// `name` or `name.instance`, also written `name/instance`: of this cell.
    Local(String),
    /// The same of another realm: `name@REALM`.
    Foreign {
        /// The name with its instance, as `name.instance`.
        name: String,
        /// The realm or cell, as written; compared without regard to case.
        realm: String,
    },
    /// An identity of a security class that is not served here (such a line begins with a blank). Kept, matches nobody.
    Extended(String),
    /// A name that is not UTF-8, as the file has it. Kept, matches nobody: the names of tickets that are served are UTF-8.
    NotUtf8(Vec<u8>),
}

impl Superuser {
    /// The bytes that `bos listusers` is told.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::NotUtf8(name) => name.clone(),
            Self::Local(_) | Self::Foreign { .. } | Self::Extended(_) => self.to_string().into_bytes(),
        }
    }
}

/// `UserList`: one superuser a line. An empty list is nobody, not everyone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserList {
    /// The superusers, in the order of the file, which is that of `bos listusers`.
    pub users: Vec<Superuser>,
}

impl UserList {
    /// The superusers of the text. Every text is a list: what is no name matches nobody.
    pub fn parse(text: &str) -> Self {
        let user = |line: &str| {
            if line.starts_with(' ') || line.starts_with('\t') {
                return Some(Superuser::Extended(line.trim().to_owned())).filter(|_| !line.trim().is_empty());
            }
            let name = line.split_whitespace().next().filter(|name| !name.starts_with('#'))?;
            let dotted = |name: &str| name.replacen('/', ".", 1);
            Some(match name.split_once('@') {
                Some((name, realm)) => Superuser::Foreign { name: dotted(name), realm: realm.to_owned() },
                None => Superuser::Local(dotted(name)),
            })
        };
        Self { users: text.lines().filter_map(user).collect() }
    }

    /// The same of a file's bytes. Comments may be in any encoding.
    pub fn parse_bytes(bytes: &[u8]) -> Self {
        let users = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
            let name = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
            if std::str::from_utf8(name).is_err() && !name.starts_with(b"#") {
                return Some(Superuser::NotUtf8(name.to_vec()));
            }
            Self::parse(&String::from_utf8_lossy(line)).users.pop()
        });
        Self { users: users.collect() }
    }

    /// Reads a file; one that is not there is an empty list.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        match text::read_bytes(path) {
            Ok(bytes) => Ok(Self::parse_bytes(&bytes)),
            Err(error) if error.is_missing() => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// True if `name` (with its instance, as `name.instance`) is listed: with no realm for those whose realm counts as
    /// local, else of that realm. A local user may also be listed by one of the local realms: ask for both then.
    pub fn contains(&self, name: &str, realm: Option<&str>) -> bool {
        self.users.iter().any(|user| match (user, realm) {
            (Superuser::Local(listed), None) => listed == name,
            (Superuser::Foreign { name: listed, realm: of }, Some(realm)) => {
                listed == name && of.eq_ignore_ascii_case(realm)
            }
            (
                Superuser::Local(_)
                | Superuser::Foreign { .. }
                | Superuser::Extended(_)
                | Superuser::NotUtf8(_),
                _,
            ) => false,
        })
    }
}

impl fmt::Display for Superuser {
    /// Writes the user as `bos listusers` shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(name) => f.write_str(name),
            Self::Foreign { name, realm } => write!(f, "{name}@{realm}"),
            Self::Extended(line) => f.write_str(line),
            Self::NotUtf8(name) => f.write_str(&String::from_utf8_lossy(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superusers_are_told_by_name_instance_and_realm() {
        let list =
            UserList::parse("admin\nsmith/admin\n\njones.admin\neve@OTHER.EXAMPLE\n 1 bmFtZQ== eve\n#no\n");
        let check =
            |name, realm, expected| assert_eq!(list.contains(name, realm), expected, "{name} {realm:?}");
        check("admin", None, true);
        check("Admin", None, false);
        check("smith.admin", None, true);
        check("jones.admin", None, true);
        check("jones", None, false);
        check("admin", Some("OTHER.EXAMPLE"), false);
        check("eve", Some("other.example"), true);
        check("eve", None, false);
        check("#no", None, false);
        check("1", None, false);
        assert_eq!(list.users.len(), 5);
        assert_eq!(list.users[3].to_string(), "eve@OTHER.EXAMPLE");
    }

    #[test]
    fn names_that_are_not_utf8_are_kept_and_match_nobody() {
        let bytes = b"# f\xfcr alle\nadmin # f\xfcr alle\r\nm\xfcller\n\nm\xc3\xbcller\n".to_vec();
        let list = UserList::parse_bytes(&bytes);
        let names: Vec<_> = list.users.iter().map(Superuser::to_bytes).collect();
        assert_eq!(names, [&b"admin"[..], b"m\xfcller", "m\u{fc}ller".as_bytes()]);
        assert!(list.contains("admin", None) && list.contains("m\u{fc}ller", None));
        assert!(!list.contains("m\u{fffd}ller", None), "which is what is shown of any such name");
        let text = "admin\n x y\n\n#no\nsmith/admin@REALM\n";
        assert_eq!(UserList::parse_bytes(text.as_bytes()), UserList::parse(text));
    }

    #[test]
    fn an_empty_list_is_nobody() {
        assert!(!UserList::default().contains("", None));
        assert_eq!(UserList::read(Path::new("/nowhere/UserList")), Ok(UserList::default()));
    }
}
