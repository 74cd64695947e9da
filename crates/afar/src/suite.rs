//! A suite of commands under one name, such as `vos`: which verb is meant, and what all suites have, `help`, `apropos` and
//! `version`. What a verb does is in a file of its own; how options are read is in `classic`.
//!
//! Everything that is printed here, and every exit status, is that of OpenAFS 1.8.9's tools, line by line, except for the
//! version and for lines of the help that tell options beyond theirs.

use crate::classic::{Command, Given, Opt, Parsed};
use crate::output;
use std::ffi::OsString;
use std::process::ExitCode;

/// A suite: its name, its verbs, and its habits.
pub(crate) struct Suite {
    /// As called, such as `vos`.
    pub(crate) name: &'static str,
    /// Its verbs. `help`, `apropos` and `version` are added.
    pub(crate) verbs: &'static [Verb],
    /// The exit status for a command line that is not understood, by the lowest byte of the parser's code.
    pub(crate) misuse_status: fn(u8) -> u8,
}

/// A verb of a suite.
pub(crate) struct Verb {
    /// Its options; the name is `suite verb`.
    pub(crate) command: Command,
    /// The description, in a few words.
    pub(crate) about: &'static str,
    /// Other names of it, which the help lists in this order.
    pub(crate) aliases: &'static [&'static str],
    /// Runs the verb, and returns the exit status. All values are text.
    pub(crate) run: fn(&Given) -> u8,
}

/// Codes of OpenAFS's parser, their lowest byte.
const USAGE: u8 = 4;
const UNKNOWN_COMMAND: u8 = 5;

/// A verb that every suite has.
struct Common {
    command: Command,
    about: &'static str,
    run: fn(&Suite, &Given) -> u8,
}

static APROPOS: Common = Common {
    command: Command { name: "apropos", options: &[Opt::single("topic", "help string").required()] },
    about: "search by help text",
    run: Suite::apropos,
};

static HELP: Common = Common {
    command: Command { name: "help", options: &[Opt::list("topic", "help string")] },
    about: "get help on commands",
    run: Suite::help,
};

static VERSION: Common = Common {
    command: Command { name: "version", options: &[] },
    about: "show version",
    run: |_, _| {
        say(&format!("afar {}\n", env!("CARGO_PKG_VERSION")));
        0
    },
};

static COMMON: [&Common; 3] = [&APROPOS, &HELP, &VERSION];

/// The verb or common command that a name stands for.
#[derive(Clone, Copy)]
enum Choice {
    Verb { verb: &'static Verb, called: &'static str },
    Common(&'static Common),
}

/// No verb of that name.
struct NoSuch {
    is_ambiguous: bool,
}

impl Verb {
    fn name(&self) -> &'static str {
        self.command.name.split_once(' ').map_or(self.command.name, |(_, verb)| verb)
    }

    /// Returns the first of its names that fits, the proper one before the others.
    fn name_that(&self, fits: impl Fn(&str) -> bool) -> Option<&'static str> {
        [self.name()].into_iter().chain(self.aliases.iter().copied()).find(|name| fits(name))
    }
}

impl Choice {
    fn called(&self) -> &'static str {
        match self {
            Self::Verb { called, .. } => called,
            Self::Common(common) => common.command.name,
        }
    }

    const fn command(&self) -> &'static Command {
        match self {
            Self::Verb { verb, .. } => &verb.command,
            Self::Common(common) => &common.command,
        }
    }
}

impl Suite {
    /// Runs the suite with the arguments behind its name.
    pub(crate) fn run(&self, args: &[OsString]) -> ExitCode {
        ExitCode::from(self.status(args))
    }

    fn status(&self, args: &[OsString]) -> u8 {
        match self.understand(args) {
            Ok((verb, given)) => (verb.run)(&given),
            Err(status) => status,
        }
    }

    /// Returns the verb that is meant, and what is given to it. Verbs that all suites have, and what is not understood, are
    /// answered at once: the error is the exit status.
    pub(crate) fn understand(&self, args: &[OsString]) -> Result<(&'static Verb, Given), u8> {
        let name = self.name;
        let Some((first, rest)) = args.split_first() else {
            say(&format!("{name}: Type '{name} help' or '{name} help <topic>' for help\n"));
            return Err((self.misuse_status)(USAGE));
        };
        let first = first.to_string_lossy();
        match self.choose(&first) {
            Ok(choice) => self.parse(choice, rest),
            Err(NoSuch { is_ambiguous }) => {
                let kind = if is_ambiguous { "Ambiguous" } else { "Unrecognized" };
                eprintln!("{name}: {kind} operation '{first}'; type '{name} help' for list");
                Err((self.misuse_status)(UNKNOWN_COMMAND))
            }
        }
    }

    fn parse(&self, choice: Choice, args: &[OsString]) -> Result<(&'static Verb, Given), u8> {
        let command = choice.command();
        let misuse = match command.parse(args) {
            Ok(Parsed::Run(given)) => match (given.check_text(), choice) {
                (Ok(()), Choice::Verb { verb, .. }) => return Ok((verb, given)),
                (Ok(()), Choice::Common(common)) => return Err((common.run)(self, &given)),
                (Err(misuse), _) => misuse,
            },
            Ok(Parsed::Help) => {
                say(&command.classic_usage(&format!("{} {}", self.name, choice.called())));
                return Err(0);
            }
            Err(misuse) => misuse,
        };
        eprintln!("{}", misuse.in_classic_words(self.name));
        Err((self.misuse_status)(misuse.classic_code()))
    }

    /// The verb of a name, or of the beginning of one.
    fn choose(&self, name: &str) -> Result<Choice, NoSuch> {
        match name {
            "-help" | "--help" => return Ok(Choice::Common(&HELP)),
            "-version" | "--version" => return Ok(Choice::Common(&VERSION)),
            _ => {}
        }
        if let Some(choice) = self.choices(|full| full == name).first() {
            return Ok(*choice);
        }
        match self.choices(|full| full.starts_with(name))[..] {
            [choice] => Ok(choice),
            ref all => Err(NoSuch { is_ambiguous: !all.is_empty() }),
        }
    }

    /// Returns all verbs with a name that fits.
    fn choices(&self, fits: impl Fn(&str) -> bool) -> Vec<Choice> {
        let verb = |verb: &'static Verb| {
            let called = verb.name_that(&fits)?;
            Some(Choice::Verb { verb, called })
        };
        let common = COMMON.iter().filter(|common| fits(common.command.name));
        self.verbs.iter().filter_map(verb).chain(common.map(|common| Choice::Common(common))).collect()
    }

    /// All verbs, by name, with what they do.
    fn listed(&self) -> Vec<(&'static str, &'static str)> {
        let own = self.verbs.iter().map(|verb| (verb.name(), verb.about));
        let mut all: Vec<_> =
            own.chain(COMMON.iter().map(|common| (common.command.name, common.about))).collect();
        all.sort_unstable();
        all
    }

    fn help(&self, given: &Given) -> u8 {
        let topics = given.words("topic");
        if topics.is_empty() {
            let mut text = format!("{}: Commands are:\n", self.name);
            for (name, about) in self.listed() {
                text += &format!("{name:<15} {about}\n");
            }
            say(&text);
            return 0;
        }
        let mut status = 0;
        for topic in topics {
            status = match self.choose(topic) {
                Ok(choice) => {
                    say(&self.help_of(choice));
                    0
                }
                Err(NoSuch { is_ambiguous }) => {
                    let name = self.name;
                    match is_ambiguous {
                        true => eprintln!("{name}: Ambiguous topic '{topic}'; use 'apropos' to list"),
                        false => eprintln!("{name}: Unknown topic '{topic}'"),
                    }
                    (self.misuse_status)(UNKNOWN_COMMAND)
                }
            };
        }
        status
    }

    fn help_of(&self, choice: Choice) -> String {
        let called = format!("{} {}", self.name, choice.called());
        let (about, names) = match choice {
            Choice::Common(common) => (common.about, "\n".to_owned()),
            Choice::Verb { verb, called } => {
                let names = match verb.aliases {
                    _ if called != verb.name() => format!("(alias for {})\n", verb.name()),
                    [] => "\n".to_owned(),
                    aliases => format!("\naliases: {} \n", aliases.join(" ")),
                };
                (verb.about, names)
            }
        };
        format!("{called}: {about} {names}{}", choice.command().classic_help(&called))
    }

    fn apropos(&self, given: &Given) -> u8 {
        let topic = given.word("topic").unwrap_or_default();
        let fits = |(name, about): &(&str, &str)| name.contains(topic) || about.contains(topic);
        let found: Vec<_> = self.listed().into_iter().filter(fits).collect();
        if found.is_empty() {
            say("Sorry, no commands found\n");
        }
        found.iter().for_each(|(name, about)| say(&format!("{name}: {about}\n")));
        0
    }
}

/// Writes, where a reader that has gone away is no reason to do anything else.
fn say(text: &str) {
    output::print(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn verb(name: &'static str, aliases: &'static [&'static str]) -> Verb {
        Verb { command: Command { name, options: &[] }, about: "does something", aliases, run: |_| 0 }
    }

    static SUITE: Suite = Suite {
        name: "t",
        misuse_status: |code| code,
        verbs: &[verb("t list", &["ls"]), verb("t listall", &[]), verb("t remove", &["r", "rm"])],
    };

    #[test]
    fn a_verb_goes_by_its_names_and_by_any_beginning_that_is_unambiguous() {
        for (text, called) in [
            ("list", "list"),
            ("lista", "listall"),
            ("ls", "ls"),
            ("rem", "remove"),
            ("r", "r"),
            ("rm", "rm"),
            ("h", "help"),
            ("--help", "help"),
            ("-version", "version"),
            ("l", "ambiguous"),
            ("lis", "ambiguous"),
            ("", "ambiguous"),
            ("x", "nothing"),
        ] {
            let found = match SUITE.choose(text) {
                Ok(choice) => choice.called(),
                Err(NoSuch { is_ambiguous: true }) => "ambiguous",
                Err(NoSuch { is_ambiguous: false }) => "nothing",
            };
            assert_eq!(found, called, "{text}");
        }
    }

    #[test]
    fn help_of_another_name_says_whose_it_is() {
        let help = |text| SUITE.choose(text).map(|choice| SUITE.help_of(choice)).ok();
        let proper = "t remove: does something \naliases: r rm \nUsage: t remove [-help]\n";
        assert_eq!(help("rem").as_deref(), Some(proper));
        assert_eq!(
            help("rm").as_deref(),
            Some("t rm: does something (alias for remove)\nUsage: t rm [-help]\n")
        );
    }
}
