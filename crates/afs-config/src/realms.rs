//! `krb.conf` and `krb.excl`: whose Kerberos principals are users of this cell.

use std::path::Path;

use crate::cells::CellName;
use crate::error::ConfigError;
use crate::text;

/// Which realms count as this cell, and who of them does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalRealms {
    /// The realms of `krb.conf`'s first line; the first is the cell's own. Empty: the cell's name, in upper case.
    pub realms: Vec<String>,
    /// The principals of `krb.excl`, as `name.instance@REALM`: never taken for local.
    pub excluded: Vec<String>,
}

impl LocalRealms {
    /// From the texts of `krb.conf` and `krb.excl`. Every text is one.
    pub fn parse(krb_conf: &str, krb_excl: &str) -> Self {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        Self {
            realms: words(krb_conf.lines().next().unwrap_or_default()),
            excluded: text::lines(krb_excl).filter_map(|(_, line)| words(line).into_iter().next()).collect(),
        }
    }

    /// Reads the two files of a server's folder; each may be missing.
    ///
    /// # Errors
    ///
    /// When one cannot be read.
    pub fn read(folder: &Path) -> Result<Self, ConfigError> {
        let read = |name| match text::read(&folder.join(name)) {
            Err(error) if error.is_missing() => Ok(String::new()),
            other => other,
        };
        Ok(Self::parse(&read("krb.conf")?, &read("krb.excl")?))
    }

    /// The realm whose tickets the cell's own users have.
    pub fn default_realm(&self, cell: &CellName) -> String {
        self.realms.first().cloned().unwrap_or_else(|| cell.as_str().to_ascii_uppercase())
    }

    /// Whether `name` (with its instance, as `name.instance`) of this realm is a user of the cell: the realm is the
    /// cell's name or listed, and the principal is not excluded (security notes 3.2).
    pub fn is_local(&self, cell: &CellName, name: &str, realm: &str) -> bool {
        let is_realm = |known: &str| known.eq_ignore_ascii_case(realm);
        let is_excluded = |listed: &String| {
            listed.split_once('@').is_some_and(|(who, of)| who == name && of.eq_ignore_ascii_case(realm))
        };
        (is_realm(cell.as_str()) || self.realms.iter().any(|known| is_realm(known)))
            && !self.excluded.iter().any(is_excluded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_realm_is_local_by_name_or_list_and_principals_may_be_excluded() {
        let cell = CellName::new("lab.test").unwrap();
        let realms =
            LocalRealms::parse("FIRST.TEST AD.TEST\nIGNORED.TEST\n", "admin@AD.TEST\nsmith.admin@AD.TEST\n");
        let check = |name, realm, expected| {
            assert_eq!(realms.is_local(&cell, name, realm), expected, "{name}@{realm}");
        };
        check("user", "LAB.TEST", true);
        check("user", "ad.test", true);
        check("user", "IGNORED.TEST", false);
        check("admin", "AD.TEST", false);
        check("admin", "FIRST.TEST", true);
        check("smith.admin", "AD.TEST", false);
        assert_eq!(realms.default_realm(&cell), "FIRST.TEST");
        assert_eq!(LocalRealms::default().default_realm(&cell), "LAB.TEST");
        assert_eq!(LocalRealms::read(Path::new("/nowhere")), Ok(LocalRealms::default()));
    }
}
