//! `afs.conf` and `afs.conf.client`: what Debian's (and `/etc/sysconfig/openafs`: what Red Hat's) startup script gives to
//! `afsd`. They are shell scripts; read are their assignments of plain values, which may name earlier ones, and nothing is
//! run.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{ConfigError, Problem};
use crate::text;

/// The content of `OPTIONS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfsdOptions {
    /// `AUTOMATIC`, or nothing: whatever suits.
    Automatic,
    /// The words of the command line.
    Words(Vec<String>),
}

/// The assignments of one or more such files; later ones win.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AfsConf {
    values: BTreeMap<String, Assigned>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Assigned {
    Value(String),
    /// For a shell: an error only if somebody wants it.
    Unknown(ConfigError),
}

impl AfsConf {
    /// Adds the assignments of a text.
    ///
    /// # Errors
    ///
    /// When a quotation is not ended in its line.
    pub fn parse(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        for (number, line) in text::lines(text) {
            let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
            let Some((name, rest)) = line.split_once('=') else { continue };
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                continue;
            }
            let value = match self.value(rest) {
                Ok(value) => Assigned::Value(value),
                Err(problem @ Problem::Quote) => return Err(ConfigError::new(path, number, problem)),
                Err(problem) => Assigned::Unknown(ConfigError::new(path, number, problem)),
            };
            self.values.insert(name.to_owned(), value);
        }
        Ok(())
    }

    /// Adds the assignments of a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, and as [`Self::parse`].
    pub fn read(&mut self, path: &Path) -> Result<(), ConfigError> {
        self.parse(&text::read(path)?, path)
    }

    /// The value of a variable; `None` when it has none.
    ///
    /// # Errors
    ///
    /// When only a shell could tell.
    pub fn get(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        match self.values.get(name) {
            None => Ok(None),
            Some(Assigned::Value(value)) => Ok(Some(value)),
            Some(Assigned::Unknown(error)) => Err(error.clone()),
        }
    }

    /// The content of `OPTIONS` (Debian), or of `AFSD_ARGS` (Red Hat).
    ///
    /// # Errors
    ///
    /// When only a shell could tell.
    pub fn options(&self) -> Result<AfsdOptions, ConfigError> {
        let value = match self.get("OPTIONS")? {
            Some(value) => value,
            None => self.get("AFSD_ARGS")?.unwrap_or_default(),
        };
        Ok(match value.trim() {
            "" | "AUTOMATIC" => AfsdOptions::Automatic,
            words => AfsdOptions::Words(words.split_whitespace().map(str::to_owned).collect()),
        })
    }

    /// Tells whether a variable says yes, as the scripts take it: `true`, `yes` or `1`, in any case; Debian's
    /// `AFS_DYNROOT` also has `Sparse`.
    ///
    /// # Errors
    ///
    /// When only a shell could tell.
    pub fn is_set(&self, name: &str) -> Result<bool, ConfigError> {
        let value = self.get(name)?.unwrap_or_default().to_ascii_lowercase();
        Ok(matches!(value.as_str(), "true" | "yes" | "1" | "y" | "sparse"))
    }

    /// The value that is assigned by what stands behind `=`: one word of the shell's.
    fn value(&self, text: &str) -> Result<String, Problem> {
        let mut value = String::new();
        let mut quote = None;
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(c),
                (Some(open), _) if c == open => quote = None,
                (Some('\''), _) => value.push(c),
                (None, ' ' | '\t' | ';' | '&') => return Ok(value),
                (_, '\\') => {
                    let next = rest.chars().next().ok_or(Problem::Quote)?;
                    rest = &rest[next.len_utf8()..];
                    value.push(next);
                }
                (_, '`') => return Err(Problem::Shell(text.to_owned())),
                (_, '$') => {
                    let (name, after) = variable(rest).ok_or_else(|| Problem::Shell(text.to_owned()))?;
                    rest = after;
                    match self.values.get(name) {
                        Some(Assigned::Value(of)) => value += of,
                        Some(Assigned::Unknown(error)) => return Err(error.problem.clone()),
                        None => {}
                    }
                }
                (_, c) => value.push(c),
            }
        }
        if quote.is_some() { Err(Problem::Quote) } else { Ok(value) }
    }
}

/// The name behind a `$`, and what follows it.
fn variable(text: &str) -> Option<(&str, &str)> {
    if let Some(inner) = text.strip_prefix('{') {
        return inner.split_once('}').filter(|(name, _)| is_name(name));
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    Some(text.split_at(end)).filter(|(name, _)| is_name(name))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> AfsConf {
        let mut conf = AfsConf::default();
        conf.parse(text, Path::new("F")).unwrap();
        conf
    }

    #[test]
    fn options_are_the_words_of_a_command_line() {
        let check = |text: &str, expected: &[&str]| {
            let words = expected.iter().map(|w| (*w).to_owned()).collect();
            assert_eq!(parse(text).options(), Ok(AfsdOptions::Words(words)), "{text}");
        };
        check("OPTIONS=\"-daemons 6 -chunksize 22\"\n", &["-daemons", "6", "-chunksize", "22"]);
        check("OPTIONS='-stat 4000'", &["-stat", "4000"]);
        check("OPTIONS=-memcache # small", &["-memcache"]);
        check("LARGE=\"-stat 2800 -dcache 2400\"\nOPTIONS=$LARGE\n", &["-stat", "2800", "-dcache", "2400"]);
        check("L=-a\nOPTIONS=\"${L} $MISSING-b\"\n", &["-a", "-b"]);
        check("AFSD_ARGS=\"-dynroot\"", &["-dynroot"]);
        check("export OPTIONS=-x", &["-x"]);
    }

    #[test]
    fn nothing_or_automatic_is_whatever_suits() {
        for text in ["", "OPTIONS=AUTOMATIC\n", "OPTIONS=\n", "#OPTIONS=-x\n", "afs_server_prefs() {\n}\n"] {
            assert_eq!(parse(text).options(), Ok(AfsdOptions::Automatic), "{text}");
        }
    }

    #[test]
    fn what_only_a_shell_knows_is_an_error_for_those_who_ask_for_it() {
        let conf = parse("VERBOSE=`uname -r`\nOPTIONS=\"-stat $(nproc)\"\nAFS_CRYPT=true\n");
        let error = conf.options().unwrap_err();
        assert_eq!(error.line, Some(2));
        assert!(error.to_string().contains("evaluated by a shell"), "{error}");
        assert_eq!(conf.is_set("AFS_CRYPT"), Ok(true));
        assert_eq!(conf.is_set("AFS_DYNROOT"), Ok(false));
    }

    #[test]
    fn a_quotation_ends_in_its_line() {
        let error = AfsConf::default().parse("\nOPTIONS=\"-a\n-b\"\n", Path::new("F")).unwrap_err();
        assert_eq!(error, ConfigError::new(Path::new("F"), 2, Problem::Quote));
    }
}
