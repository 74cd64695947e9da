//! A suite of commands under one name, such as `vos`: which verb is meant, and what all suites have, `help`, `apropos` and
//! `version`. What a verb does is in a file of its own; how options are read is in `classic`.
//!
//! Everything that is printed here, and every exit status, is that of OpenAFS 1.8.9's tools, line by line, except for the
//! version and for lines of the help that tell options beyond theirs.

use crate::classic::{Command, Given, Opt, Parsed};
use crate::output;
use std::ffi::OsString;
use std::process::ExitCode;

/// A suite: its name, its verbs in the order of the alphabet, and its habits.
pub(crate) struct Suite {
    /// As called, such as `vos`.
    pub(crate) name: &'static str,
    /// What it has. `help`, `apropos` and `version` are added.
    pub(crate) verbs: &'static [Verb],
    /// The exit status for a command line that is not understood, by the lowest byte of the parser's code.
    pub(crate) misuse_status: fn(u8) -> u8,
}

/// A verb of a suite.
pub(crate) struct Verb {
    /// Its options; the name is `suite verb`.
    pub(crate) command: Command,
    /// What it does, in a few words.
    pub(crate) about: &'static str,
    /// Other names of it, which the help lists in this order.
    pub(crate) aliases: &'static [&'static str],
    /// Does it, and says how it ended: the exit status. All values are text.
    pub(crate) run: fn(&Given) -> u8,
}

/// Codes of OpenAFS's parser, their lowest byte.
const USAGE: u8 = 4;
const UNKNOWN_COMMAND: u8 = 5;

impl Verb {
    fn name(&self) -> &'static str {
        self.command.name.split_once(' ').map_or(self.command.name, |(_, verb)| verb)
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name()].into_iter().chain(self.aliases.iter().copied())
    }
}

/// What the first argument means.
enum Choice {
    Verb(&'static Verb),
    Help,
    Apropos,
    Version,
}

/// The verbs that every suite has, with what they do.
const ALL_HAVE: &[(&str, &str)] =
    &[("apropos", "search by help text"), ("help", "get help on commands"), ("version", "show version")];

/// The options of the verbs that every suite has.
static HELP: Command = Command { name: "help", options: &[Opt::list("topic", "help string")] };
static APROPOS: Command =
    Command { name: "apropos", options: &[Opt::single("topic", "help string").required()] };

/// No verb of that name.
struct NoSuch {
    is_ambiguous: bool,
}

impl Suite {
    /// Runs the suite with the arguments behind its name.
    pub(crate) fn run(&'static self, args: &[OsString]) -> ExitCode {
        ExitCode::from(self.status(args))
    }

    fn status(&'static self, args: &[OsString]) -> u8 {
        let name = self.name;
        let Some((first, rest)) = args.split_first() else {
            say(&format!("{name}: Type '{name} help' or '{name} help <topic>' for help\n"));
            return (self.misuse_status)(USAGE);
        };
        let first = first.to_string_lossy();
        match self.choose(&first) {
            Ok(Choice::Verb(verb)) => self.run_verb(verb, rest),
            Ok(Choice::Help) => self.run_help(rest),
            Ok(Choice::Apropos) => self.run_apropos(rest),
            Ok(Choice::Version) => {
                say(&format!("afar {}\n", env!("CARGO_PKG_VERSION")));
                0
            }
            Err(NoSuch { is_ambiguous }) => {
                let kind = if is_ambiguous { "Ambiguous" } else { "Unrecognized" };
                eprintln!("{name}: {kind} operation '{first}'; type '{name} help' for list");
                (self.misuse_status)(UNKNOWN_COMMAND)
            }
        }
    }

    fn run_verb(&self, verb: &'static Verb, args: &[OsString]) -> u8 {
        let misuse = match verb.command.parse(args) {
            Ok(Parsed::Run(given)) => match given.check_text() {
                Ok(()) => return (verb.run)(&given),
                Err(misuse) => misuse,
            },
            Ok(Parsed::Help) => {
                say(&verb.command.classic_usage());
                return 0;
            }
            Err(misuse) => misuse,
        };
        eprintln!("{}", misuse.in_classic_words(self.name));
        (self.misuse_status)(misuse.classic_code())
    }

    /// The verb of a name, or of the beginning of one.
    fn choose(&self, name: &str) -> Result<Choice, NoSuch> {
        match name {
            "-help" | "--help" => return Ok(Choice::Help),
            "-version" | "--version" => return Ok(Choice::Version),
            _ => {}
        }
        let own = |name| match name {
            "apropos" => Choice::Apropos,
            "help" => Choice::Help,
            _ => Choice::Version,
        };
        if let Some(verb) = self.verbs.iter().find(|verb| verb.names().any(|n| n == name)) {
            return Ok(Choice::Verb(verb));
        }
        if let Some((name, _)) = ALL_HAVE.iter().find(|(n, _)| *n == name) {
            return Ok(own(name));
        }
        let begins = |full: &str| !name.is_empty() && full.starts_with(name);
        let verbs: Vec<_> = self.verbs.iter().filter(|verb| verb.names().any(begins)).collect();
        let others: Vec<_> = ALL_HAVE.iter().filter(|(full, _)| begins(full)).collect();
        match (&verbs[..], &others[..]) {
            ([verb], []) => Ok(Choice::Verb(verb)),
            ([], [(name, _)]) => Ok(own(name)),
            ([], []) => Err(NoSuch { is_ambiguous: false }),
            _ => Err(NoSuch { is_ambiguous: true }),
        }
    }

    /// All verbs, by name, with what they do.
    fn listed(&self) -> Vec<(&'static str, &'static str)> {
        let mut all: Vec<_> = self.verbs.iter().map(|verb| (verb.name(), verb.about)).collect();
        all.extend(ALL_HAVE);
        all.sort_unstable();
        all
    }

    fn run_help(&self, args: &[OsString]) -> u8 {
        let given = match HELP.parse(args) {
            Ok(Parsed::Run(given)) => given,
            Ok(Parsed::Help) => {
                say(&format!("Usage: {} help [-topic <help string>+] [-help]\n", self.name));
                return 0;
            }
            Err(misuse) => {
                eprintln!("{}", misuse.in_classic_words(self.name));
                return (self.misuse_status)(misuse.classic_code());
            }
        };
        if given.values("topic").is_empty() {
            let mut text = format!("{}: Commands are:\n", self.name);
            for (name, about) in self.listed() {
                text += &format!("{name:<15} {about}\n");
            }
            say(&text);
            return 0;
        }
        let mut status = 0;
        for topic in given.values("topic") {
            let topic = topic.to_string_lossy();
            status = match self.choose(&topic) {
                Ok(choice) => {
                    say(&self.help_of(&choice, &topic));
                    0
                }
                Err(NoSuch { is_ambiguous: true }) => {
                    eprintln!("{}: Ambiguous topic '{topic}'; use 'apropos' to list", self.name);
                    (self.misuse_status)(UNKNOWN_COMMAND)
                }
                Err(NoSuch { is_ambiguous: false }) => {
                    eprintln!("{}: Unknown topic '{topic}'", self.name);
                    (self.misuse_status)(UNKNOWN_COMMAND)
                }
            };
        }
        status
    }

    /// The help of a verb; `topic` is how it was asked for.
    fn help_of(&self, choice: &Choice, topic: &str) -> String {
        let suite = self.name;
        let verb = match choice {
            Choice::Verb(verb) => verb,
            Choice::Help => {
                return format!(
                    "{suite} help: get help on commands \nUsage: {suite} help [-topic <help string>+] [-help]\n"
                );
            }
            Choice::Apropos => {
                return format!(
                    "{suite} apropos: search by help text \nUsage: {suite} apropos -topic <help string> [-help]\n"
                );
            }
            Choice::Version => {
                return format!("{suite} version: show version \nUsage: {suite} version [-help]\n");
            }
        };
        let names = match verb.aliases.iter().find(|alias| **alias == topic) {
            Some(_) => format!("(alias for {})\n", verb.name()),
            None if verb.aliases.is_empty() => "\n".to_owned(),
            None => format!("\naliases: {} \n", verb.aliases.join(" ")),
        };
        let called = verb.aliases.iter().find(|alias| **alias == topic).map_or(verb.name(), |alias| alias);
        format!("{suite} {called}: {} {names}{}", verb.about, verb.command.classic_help())
    }

    fn run_apropos(&self, args: &[OsString]) -> u8 {
        let given = match APROPOS.parse(args) {
            Ok(Parsed::Run(given)) => given,
            Ok(Parsed::Help) => {
                say(&format!("Usage: {} apropos -topic <help string> [-help]\n", self.name));
                return 0;
            }
            Err(misuse) => {
                eprintln!("{}", misuse.in_classic_words(self.name));
                return (self.misuse_status)(misuse.classic_code());
            }
        };
        let topic = given.value("topic").unwrap_or_default().to_string_lossy();
        let mut text = String::new();
        for (name, about) in self.listed() {
            if name.contains(&*topic) || about.contains(&*topic) {
                text += &format!("{name}: {about}\n");
            }
        }
        if text.is_empty() {
            text += "Sorry, no commands found\n";
        }
        say(&text);
        0
    }
}

/// Writes, where a reader that has gone away is no reason to do anything else.
fn say(text: &str) {
    output::print(text);
}
