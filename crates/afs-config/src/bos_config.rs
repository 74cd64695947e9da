//! `BosConfig`: what OpenAFS's overseer starts, and with which options.

use std::path::Path;

use crate::error::{ConfigError, Problem};
use crate::text;

/// A time at which the overseer restarts something, as the file and the BOZO interface have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KTime {
    /// The fields that count: 1 hour, 2 minute, 4 second, 8 day; 0x10 never, 0x20 now.
    pub mask: i32,
    /// 0 to 23.
    pub hour: i16,
    /// 0 to 59.
    pub min: i16,
    /// 0 to 59.
    pub sec: i16,
    /// 0 (Sunday) to 6.
    pub day: i16,
}

impl KTime {
    /// Never.
    pub const NEVER: Self = Self { mask: 0x10, hour: 0, min: 0, sec: 0, day: 0 };
}

/// A command line of a bnode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The path of the program.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The line it stands on, for messages.
    pub line: usize,
}

impl Command {
    /// The program's name without its folder.
    pub fn name(&self) -> &str {
        self.program.rsplit('/').next().unwrap_or_default()
    }
}

/// Something the overseer starts: one process, or several that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bnode {
    /// `simple`, `cron`, `fs` or `dafs`.
    pub kind: String,
    /// The name in `bos status`.
    pub name: String,
    /// 1 if it is to run, 0 if not.
    pub is_enabled: bool,
    /// The program that is told when a process ends.
    pub notifier: Option<String>,
    /// Its `parm` lines.
    pub commands: Vec<Command>,
}

/// `BosConfig`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BosConfig {
    /// True if `bos` may not change what runs.
    pub is_restricted: bool,
    /// The time when everything is restarted.
    pub restart_time: KTime,
    /// The time when what has a new binary is restarted.
    pub check_binaries_time: KTime,
    /// The processes that are started, in the order of the file.
    pub bnodes: Vec<Bnode>,
}

impl Default for BosConfig {
    /// The contents of a new file of OpenAFS 1.8: never restarted, new binaries looked for at 5:00.
    fn default() -> Self {
        let five = KTime { mask: 3, hour: 5, ..KTime::NEVER };
        Self {
            is_restricted: false,
            restart_time: KTime::NEVER,
            check_binaries_time: five,
            bnodes: Vec::new(),
        }
    }
}

impl BosConfig {
    /// The configuration in the text.
    ///
    /// # Errors
    ///
    /// When a line is not known, a bnode is not ended, or has too few `parm` lines for its type.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let mut open: Option<(usize, Bnode)> = None;
        for (number, line) in text::lines(text) {
            let failed = |problem| ConfigError::new(path, number, problem);
            let words: Vec<&str> = line.split_whitespace().collect();
            match (words[0], open.as_mut()) {
                ("restrictmode", None) => {
                    config.is_restricted = numbers::<1>(path, number, "restrictmode 0|1", &words)? != [0];
                }
                ("restarttime", None) => config.restart_time = ktime(path, number, &words)?,
                ("checkbintime", None) => config.check_binaries_time = ktime(path, number, &words)?,
                ("bnode", None) => open = Some((number, bnode(path, number, &words)?)),
                ("parm", Some((_, bnode))) => {
                    let [program, args @ ..] = &words[1..] else {
                        return Err(failed(Problem::Fields { expected: "parm COMMAND ...", found: 1 }));
                    };
                    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
                    bnode.commands.push(Command { program: (*program).to_owned(), args, line: number });
                }
                ("end", Some(_)) => {
                    let (_, bnode) = open.take().expect("matched above");
                    let needed = match bnode.kind.as_str() {
                        "simple" => 1,
                        "cron" => 2,
                        "fs" => 3,
                        "dafs" => 4,
                        kind => return Err(failed(Problem::Keyword(kind.to_owned()))),
                    };
                    if bnode.commands.len() < needed {
                        let found = bnode.commands.len();
                        return Err(failed(Problem::Parameters { bnode: bnode.name, needed, found }));
                    }
                    config.bnodes.push(bnode);
                }
                ("parm" | "end", None) => {
                    return Err(failed(Problem::Unbalanced("it stands outside of any bnode")));
                }
                ("restrictmode" | "restarttime" | "checkbintime" | "bnode", Some((begun, _))) => {
                    let begun = *begun;
                    return Err(ConfigError::new(
                        path,
                        begun,
                        Problem::Unbalanced("this bnode has no 'end'"),
                    ));
                }
                (word, _) => return Err(failed(Problem::Keyword(word.to_owned()))),
            }
        }
        match open {
            None => Ok(config),
            Some((begun, _)) => {
                Err(ConfigError::new(path, begun, Problem::Unbalanced("this bnode has no 'end'")))
            }
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, and as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&text::read(path)?, path)
    }

    /// The command of an enabled bnode whose program has one of these names, such as `fileserver` and `dafileserver`.
    pub fn command(&self, names: &[&str]) -> Option<&Command> {
        let mut enabled =
            self.bnodes.iter().filter(|bnode| bnode.is_enabled).flat_map(|bnode| &bnode.commands);
        enabled.find(|command| names.contains(&command.name()))
    }
}

fn bnode(path: &Path, number: usize, words: &[&str]) -> Result<Bnode, ConfigError> {
    let failed = |problem| ConfigError::new(path, number, problem);
    let (kind, name, goal, notifier) = match *words {
        [_, kind, name, goal] => (kind, name, goal, None),
        [_, kind, name, goal, notifier, ..] => (kind, name, goal, Some(notifier.to_owned())),
        [..] => {
            let expected = "bnode TYPE NAME GOAL [NOTIFIER]";
            return Err(failed(Problem::Fields { expected, found: words.len() }));
        }
    };
    let is_enabled = match goal {
        "0" => false,
        "1" => true,
        other => {
            let of = "the goal, 0 or 1,";
            return Err(failed(Problem::Number { of, found: other.to_owned() }));
        }
    };
    Ok(Bnode { kind: kind.to_owned(), name: name.to_owned(), is_enabled, notifier, commands: Vec::new() })
}

fn ktime(path: &Path, number: usize, words: &[&str]) -> Result<KTime, ConfigError> {
    let [mask, day, hour, min, sec] = numbers::<5>(path, number, "TIME MASK DAY HOUR MIN SEC", words)?;
    Ok(KTime { mask: i32::from(mask), day, hour, min, sec })
}

fn numbers<const N: usize>(
    path: &Path,
    number: usize,
    expected: &'static str,
    words: &[&str],
) -> Result<[i16; N], ConfigError> {
    let failed = |problem| ConfigError::new(path, number, problem);
    if words.len() != N + 1 {
        return Err(failed(Problem::Fields { expected, found: words.len() }));
    }
    let mut found = [0; N];
    for (value, word) in found.iter_mut().zip(&words[1..]) {
        *value = word
            .parse()
            .map_err(|_| failed(Problem::Number { of: "a number", found: (*word).to_owned() }))?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: &str = "restrictmode 0\nrestarttime 16 0 0 0 0\ncheckbintime 3 0 5 0 0\n\
        bnode simple ptserver 1\nparm /usr/lib/openafs/ptserver\nend\n\
        bnode dafs dafs 1 /usr/local/bin/told\nparm /usr/lib/openafs/dafileserver -p 23 -busyat 600\n\
        parm /usr/lib/openafs/davolserver\nparm /usr/lib/openafs/salvageserver\n\
        parm /usr/lib/openafs/dasalvager\nend\nbnode simple vlserver 0\nparm /usr/lib/openafs/vlserver -d 1\nend\n";

    #[test]
    fn a_file_of_a_running_server_is_read() {
        let config = BosConfig::parse(LIVE, Path::new("F")).unwrap();
        assert_eq!(config.restart_time, KTime::NEVER);
        assert_eq!(config.check_binaries_time, BosConfig::default().check_binaries_time);
        let names: Vec<_> = config.bnodes.iter().map(|b| (b.name.as_str(), b.is_enabled)).collect();
        assert_eq!(names, [("ptserver", true), ("dafs", true), ("vlserver", false)]);
        assert_eq!(config.bnodes[1].notifier.as_deref(), Some("/usr/local/bin/told"));
        let command = config.command(&["fileserver", "dafileserver"]).unwrap();
        assert_eq!((command.args.join(" "), command.line), ("-p 23 -busyat 600".to_owned(), 8));
        assert_eq!(config.command(&["vlserver"]), None, "it is not to run");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let check = |text: &str, expected: &str| {
            assert_eq!(BosConfig::parse(text, Path::new("F")).unwrap_err().to_string(), expected);
        };
        check("restrictmode\n", "F, line 1: there are 1 fields, where 'restrictmode 0|1' is expected");
        check("checkbintime 3 0 x 0 0\n", "F, line 1: a number is expected, not 'x'");
        check("parm a\n", "F, line 1: it stands outside of any bnode");
        check("\nbnode simple a 1\nparm x\nbnode simple b 1\n", "F, line 2: this bnode has no 'end'");
        check("bnode simple a 1\nparm x\n", "F, line 1: this bnode has no 'end'");
        check("bnode simple a 2\n", "F, line 1: the goal, 0 or 1, is expected, not '2'");
        check(
            "bnode simple\n",
            "F, line 1: there are 2 fields, where 'bnode TYPE NAME GOAL [NOTIFIER]' is expected",
        );
        check(
            "bnode dafs d 1\nparm x\nend\n",
            "F, line 3: bnode d has 1 'parm' lines, and its type needs at least 4",
        );
        check("bnode odd d 1\nend\n", "F, line 2: 'odd' is not known here");
        check(
            "bnode simple d 1\nparm\nend\n",
            "F, line 2: there are 1 fields, where 'parm COMMAND ...' is expected",
        );
        check("hello\n", "F, line 1: 'hello' is not known here");
    }
}
