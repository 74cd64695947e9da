//! `krb.conf` and `krb.excl`: whose Kerberos principals are users of this cell. Who that makes of the principal of a ticket, the
//! security class decides (`rx_security::identity`).

use std::path::Path;

use crate::error::ConfigError;
use crate::text;

/// The realms that count as this cell, and the principals in them that do not: the content of the two files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RealmFiles {
    /// The realms of `krb.conf`'s first line, besides the one of the cell's name; the first is the cell's own.
    pub realms: Vec<String>,
    /// The principals of `krb.excl`, as `name.instance@REALM`: never taken for local.
    pub excluded: Vec<String>,
}

impl RealmFiles {
    /// Makes them from the texts of `krb.conf` and `krb.excl`. Every text is one.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_has_realms_and_each_line_of_the_other_file_a_principal() {
        let files = RealmFiles::parse(
            "FIRST.TEST AD.TEST\nIGNORED.TEST\n",
            "admin@AD.TEST\n smith.admin@AD.TEST x\n",
        );
        assert_eq!(files.realms, ["FIRST.TEST", "AD.TEST"]);
        assert_eq!(files.excluded, ["admin@AD.TEST", "smith.admin@AD.TEST"]);
        assert_eq!(RealmFiles::read(Path::new("/nowhere")), Ok(RealmFiles::default()));
    }
}
