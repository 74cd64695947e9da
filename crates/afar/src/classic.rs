//! The option syntax of the classic AFS commands: options of one dash (or two), cut to any prefix that is unambiguous,
//! with their values in the arguments that follow; values without an option, in order, where the command takes them so;
//! and `-help`. A command is a table; what its options mean is for the command.
//!
//! The rules, observed with the tools of OpenAFS 1.8.9:
//! * An argument is an option if it begins with a dash, unless a digit follows: `-5` is a value.
//! * Values without an option go to those options that take values, in the order of the table, until an option with
//!   values is named. The last list of the table takes all that is left, a list before it one value.
//! * All values after a named option belong to it, until another option that takes values is named. Flags in between change
//!   nothing.
//! * An option named twice is an error if it takes one value; flags and lists may be named again.
//! * `-option=value` is the same as `-option value`.
//! * Missing options are reported only at the end of the line. `-help` suppresses this.
//!
//! A command of our own says what is wrong in words of ours; a verb of a classic suite says it as OpenAFS's tools do
//! ([`Misuse::in_classic_words`]), since scripts read it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::process::ExitCode;

/// The exit status of a command that was called the wrong way.
pub(crate) const MISUSE: u8 = 2;

/// Columns of the usage, as OpenAFS's tools fill them.
const USAGE_WIDTH: usize = 78;

/// How many values an option takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arity {
    Flag,
    Single,
    List,
}

/// A row of a command's table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opt {
    name: &'static str,
    arity: Arity,
    value_name: &'static str,
    help: &'static str,
    /// A second name, which must be written out; empty if there is none.
    alias: &'static str,
    is_required: bool,
    is_ours: bool,
    is_hidden: bool,
    /// Its values name files, which may be any bytes.
    is_path: bool,
    /// All words without an option are its values.
    takes_all: bool,
}

impl Opt {
    const fn new(name: &'static str, arity: Arity, value_name: &'static str, help: &'static str) -> Self {
        let [is_required, is_ours, is_hidden, is_path, takes_all] = [false; 5];
        Self { name, arity, value_name, help, alias: "", is_required, is_ours, is_hidden, is_path, takes_all }
    }

    /// An option without a value.
    pub(crate) const fn flag(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Arity::Flag, "", help)
    }

    /// An option with one value; `value_name` says in the help what that is.
    pub(crate) const fn single(name: &'static str, value_name: &'static str) -> Self {
        Self::new(name, Arity::Single, value_name, "")
    }

    /// An option with one value or more.
    pub(crate) const fn list(name: &'static str, value_name: &'static str) -> Self {
        Self::new(name, Arity::List, value_name, "")
    }

    /// The same, but the command cannot do without.
    pub(crate) const fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    /// The same, as one that OpenAFS does not have. It must be written out, so that no prefix that people use becomes
    /// ambiguous, and it takes no values without its name.
    pub(crate) const fn ours(mut self) -> Self {
        self.is_ours = true;
        self
    }

    /// The same, with a second name that must be written out.
    pub(crate) const fn or(mut self, alias: &'static str) -> Self {
        self.alias = alias;
        self
    }

    /// The same, but no help shows it, and it must be written out.
    pub(crate) const fn hidden(mut self) -> Self {
        self.is_hidden = true;
        self
    }

    /// The same, to which all words without an option go, also if other options could take some.
    pub(crate) const fn takes_all(mut self) -> Self {
        self.takes_all = true;
        self
    }

    /// The same, whose values name files and need not be UTF-8.
    pub(crate) const fn path(mut self) -> Self {
        self.is_path = true;
        self
    }

    const fn takes_positions(&self) -> bool {
        !matches!(self.arity, Arity::Flag) && !self.is_ours && !self.is_hidden
    }

    const fn may_be_cut(&self) -> bool {
        !self.is_ours && !self.is_hidden
    }

    /// As a word of the usage line.
    fn word(&self) -> String {
        let value = match self.arity {
            Arity::Flag => String::new(),
            Arity::Single => format!(" <{}>", self.value_name),
            Arity::List => format!(" <{}>+", self.value_name),
        };
        let alias = if self.alias.is_empty() { String::new() } else { format!(" | -{}", self.alias) };
        match self.is_required {
            true => format!("-{}{alias}{value}", self.name),
            false => format!("[-{}{alias}{value}]", self.name),
        }
    }
}

/// `-help`, which every command has.
const HELP: Opt = Opt::flag("help", "");

/// A command: its name, as it is called, and its options. Their order is that of values without an option.
#[derive(Debug)]
pub(crate) struct Command {
    /// As called, such as `rxdebug` or `vos create`.
    pub(crate) name: &'static str,
    /// The table.
    pub(crate) options: &'static [Opt],
}

/// The command line's options and their values.
#[derive(Debug)]
pub(crate) struct Given {
    command: &'static Command,
    /// For each row of the table: `None` if it was not named.
    values: Vec<Option<Vec<OsString>>>,
}

/// The result of parsing a command line.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// The options as given.
    Run(Given),
    /// `-help` is among them: nothing else counts.
    Help,
}

/// A command line that is not understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misuse {
    command: &'static str,
    kind: MisuseKind,
}

#[derive(Debug, PartialEq, Eq)]
enum MisuseKind {
    Unknown { switch: String },
    Ambiguous { switch: String, options: Vec<&'static str> },
    NoValue { option: &'static str, value_name: &'static str },
    UnwantedValue { option: &'static str },
    TooMany { option: &'static str, value: String },
    Unplaced { value: String },
    Missing { option: &'static str, value_name: &'static str },
    NotText { option: &'static str, value: String },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.command)?;
        match &self.kind {
            MisuseKind::Unknown { switch } => write!(f, "there is no option {switch}")?,
            MisuseKind::Ambiguous { switch, options } => {
                write!(f, "{switch} could be any of -{}", options.join(", -"))?
            }
            MisuseKind::NoValue { option, value_name } => {
                write!(f, "-{option} needs a value: <{value_name}>")?
            }
            MisuseKind::UnwantedValue { option } => write!(f, "-{option} takes no value")?,
            MisuseKind::TooMany { option, value } => {
                write!(f, "-{option} takes one value; unexpected argument '{value}'")?
            }
            MisuseKind::Unplaced { value } => write!(f, "unexpected argument '{value}'")?,
            MisuseKind::Missing { option, value_name } => write!(f, "-{option} <{value_name}> is missing")?,
            MisuseKind::NotText { option, value } => {
                write!(f, "the value of -{option}, '{value}', is not UTF-8")?
            }
        }
        write!(f, "; see '{} -help'", self.command)
    }
}

impl std::error::Error for Misuse {}

/// The numbers that OpenAFS's parser gives to what can be wrong with a command line, as far as an exit status shows them.
mod cmd {
    pub(super) const NOTLIST: u8 = 2;
    pub(super) const TOOMANY: u8 = 3;
    pub(super) const UNKNOWNSWITCH: u8 = 6;
    pub(super) const TOOFEW: u8 = 8;
}

impl Misuse {
    /// Returns the message that OpenAFS's `program` prints. The hint names `help VERB`, or `-help` if the program has no
    /// verbs.
    pub(crate) fn in_classic_words(&self, program: &str) -> String {
        let help = match self.command.split_once(' ') {
            Some((_, verb)) => format!("help {verb}"),
            None => "-help".to_owned(),
        };
        match &self.kind {
            MisuseKind::Unknown { switch } | MisuseKind::Ambiguous { switch, .. } => format!(
                "{program}: Unrecognized or ambiguous switch '{switch}'; type '{program} {help}' for detailed help"
            ),
            // Two blanks: so it is there.
            MisuseKind::NoValue { option, .. } => {
                format!("{program}:  The field '-{option}' isn't completed properly")
            }
            MisuseKind::UnwantedValue { option } => {
                format!("{program}: Switch '-{option}' doesn't take an argument")
            }
            MisuseKind::TooMany { option, .. } => {
                format!("{program}: Too many values after switch -{option}")
            }
            MisuseKind::Unplaced { .. } => format!("{program}: Too many arguments"),
            MisuseKind::Missing { option, .. } => {
                format!("{program}: Missing required parameter '-{option}'")
            }
            MisuseKind::NotText { option, value } => {
                format!("{program}: the value of -{option}, '{value}', is not UTF-8")
            }
        }
    }

    /// The lowest byte of the code that OpenAFS's parser has for this.
    pub(crate) const fn classic_code(&self) -> u8 {
        match self.kind {
            MisuseKind::Unknown { .. } | MisuseKind::Ambiguous { .. } => cmd::UNKNOWNSWITCH,
            MisuseKind::NoValue { .. } | MisuseKind::Missing { .. } => cmd::TOOFEW,
            MisuseKind::UnwantedValue { .. } | MisuseKind::Unplaced { .. } => cmd::TOOMANY,
            MisuseKind::TooMany { .. } => cmd::NOTLIST,
            MisuseKind::NotText { .. } => MISUSE,
        }
    }

    /// Tells the user.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("{self}");
        ExitCode::from(MISUSE)
    }
}

impl Command {
    /// Reads a command line, or answers the user by itself: the error is the exit status. The help of a command of ours begins with what it does;
    /// that of a program of OpenAFS's (an empty text) is as it is there.
    pub(crate) fn start(&'static self, about: &str, args: &[OsString]) -> Result<Given, ExitCode> {
        match self.parse(args) {
            Ok(Parsed::Run(given)) => Ok(given),
            Ok(Parsed::Help) if about.is_empty() => Err(crate::output::print(&self.help())),
            Ok(Parsed::Help) => {
                Err(crate::output::print(&format!("afar {}: {about}\n{}", self.name, self.help())))
            }
            Err(misuse) => Err(misuse.report()),
        }
    }

    /// Reads the arguments behind the command's name.
    pub(crate) fn parse(&'static self, args: &[OsString]) -> Result<Parsed, Misuse> {
        let mut given = Given { command: self, values: vec![None; self.options.len()] };
        let mut takes = Takes { row: 0, is_positional: true };
        let mut wants_help = false;
        for arg in args {
            let Some(switch) = as_switch(arg) else {
                takes = self.place(arg, takes, &mut given)?;
                continue;
            };
            let (name, value) = match switch.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (switch, None),
            };
            let Some(row) = self.find(name, arg)? else {
                wants_help = true;
                continue;
            };
            given.values[row].get_or_insert_default();
            match (self.options[row].arity, value) {
                (Arity::Flag, None) => {}
                (Arity::Flag, Some(_)) => {
                    return Err(self.misuse(MisuseKind::UnwantedValue { option: self.options[row].name }));
                }
                (Arity::Single | Arity::List, value) => {
                    takes = Takes { row, is_positional: false };
                    if let Some(value) = value {
                        takes = self.place(OsStr::new(value), takes, &mut given)?;
                    }
                }
            }
        }
        if wants_help {
            return Ok(Parsed::Help);
        }
        for (option, values) in self.options.iter().zip(&given.values) {
            let Opt { name, arity, value_name, is_required, .. } = *option;
            match values {
                Some(values) if values.is_empty() && arity != Arity::Flag => {
                    return Err(self.misuse(MisuseKind::NoValue { option: name, value_name }));
                }
                None if is_required => {
                    return Err(self.misuse(MisuseKind::Missing { option: name, value_name }));
                }
                Some(_) | None => {}
            }
        }
        Ok(Parsed::Run(given))
    }

    /// The help, in the form of the classic commands: a summary, and the explanations of the options that have one.
    pub(crate) fn help(&self) -> String {
        self.usage(self.name, |option| !option.is_hidden) + &self.flags(|option| !option.is_hidden)
    }

    /// The summary alone, of the command as it was called, with OpenAFS's options only.
    pub(crate) fn classic_usage(&self, called: &str) -> String {
        self.usage(called, |option| !option.is_hidden && !option.is_ours)
    }

    /// The summary and what flags mean, with OpenAFS's options only, then afar's own options.
    pub(crate) fn classic_help(&self, called: &str) -> String {
        let mut text =
            self.classic_usage(called) + &self.flags(|option| !option.is_hidden && !option.is_ours);
        for option in self.options.iter().filter(|option| option.is_ours) {
            let help = if option.help.is_empty() { String::new() } else { format!("  {}", option.help) };
            text += &format!("Only in afar: {}{help}\n", option.word());
        }
        text
    }

    fn usage(&self, called: &str, shows: impl Fn(&Opt) -> bool) -> String {
        let mut text = format!("Usage: {called}");
        let mut column = text.len();
        for word in self.options.iter().chain([&HELP]).filter(|option| shows(option)).map(Opt::word) {
            if column + 1 + word.len() > USAGE_WIDTH {
                text += "\n        ";
                column = 8;
            }
            text += " ";
            text += &word;
            column += 1 + word.len();
        }
        text.push('\n');
        text
    }

    fn flags(&self, shows: impl Fn(&Opt) -> bool) -> String {
        let mut text = String::new();
        let explained: Vec<_> = self.options.iter().filter(|o| !o.help.is_empty() && shows(o)).collect();
        let width = explained.iter().map(|o| o.name.len()).max().unwrap_or(0);
        for (i, option) in explained.iter().enumerate() {
            let lead = if i == 0 { "Where:" } else { "      " };
            text += &format!("{lead} -{:<width$}  {}\n", option.name, option.help);
        }
        text
    }

    /// The row that a name, or the beginning of one, stands for; `None` is the help. `typed` is how it stood there.
    fn find(&self, name: &str, typed: &OsStr) -> Result<Option<usize>, Misuse> {
        let switch = || typed.display().to_string();
        let rows = || self.options.iter().chain([&HELP]).enumerate();
        let is_whole = |o: &Opt| o.name == name || (!name.is_empty() && o.alias == name);
        let row = match rows().find(|(_, o)| is_whole(o)) {
            Some((row, _)) => row,
            None => {
                let fits: Vec<_> = rows()
                    .filter(|(_, o)| !name.is_empty() && o.may_be_cut() && o.name.starts_with(name))
                    .collect();
                match fits[..] {
                    [(row, _)] => row,
                    [] => return Err(self.misuse(MisuseKind::Unknown { switch: switch() })),
                    _ => {
                        let options = fits.iter().map(|(_, o)| o.name).collect();
                        return Err(self.misuse(MisuseKind::Ambiguous { switch: switch(), options }));
                    }
                }
            }
        };
        Ok((row < self.options.len()).then_some(row))
    }

    /// A value has come.
    fn place(&self, value: &OsStr, takes: Takes, given: &mut Given) -> Result<Takes, Misuse> {
        let Takes { mut row, is_positional } = takes;
        if is_positional {
            let free = (row..self.options.len()).find(|row| self.options[*row].takes_positions());
            let Some(free) = free else {
                return Err(self.misuse(MisuseKind::Unplaced { value: value.display().to_string() }));
            };
            row = free;
        }
        let values = given.values[row].get_or_insert_default();
        if self.options[row].arity == Arity::Single && !values.is_empty() {
            let (option, value) = (self.options[row].name, value.display().to_string());
            return Err(self.misuse(MisuseKind::TooMany { option, value }));
        }
        values.push(value.to_owned());
        if is_positional {
            row = self.next_position(row);
        }
        Ok(Takes { row, is_positional })
    }

    /// The row that takes the next value without an option, behind one that went to `row`. At the last option it stays
    /// there, so that a further value is reported as one too many.
    fn next_position(&self, row: usize) -> usize {
        let last_list = self.options.iter().rposition(|o| o.arity == Arity::List);
        if last_list == Some(row) || self.options[row].takes_all {
            return row;
        }
        let later = (row + 1..self.options.len()).find(|row| self.options[*row].takes_positions());
        later.unwrap_or(row)
    }

    fn misuse(&self, kind: MisuseKind) -> Misuse {
        Misuse { command: self.name, kind }
    }
}

/// Where the next value goes. `is_positional`: to the first option from `row` on that takes values without being named.
/// Otherwise: to `row`.
#[derive(Clone, Copy, Debug)]
struct Takes {
    row: usize,
    is_positional: bool,
}

impl Given {
    /// True if the flag, or an option with values, was given. The name must be in the table.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.row(name).is_some()
    }

    /// The value of an option that takes one.
    pub(crate) fn value(&self, name: &str) -> Option<&OsStr> {
        self.values(name).first().map(OsString::as_os_str)
    }

    /// The values of an option that takes many.
    pub(crate) fn values(&self, name: &str) -> &[OsString] {
        self.row(name).unwrap_or_default()
    }

    /// The value of an option that takes one, as text.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, Misuse> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.to_str().map(Some).ok_or_else(|| Misuse {
            command: self.command.name,
            kind: MisuseKind::NotText { option: name, value: value.display().to_string() },
        })
    }

    /// Refuses values that are not UTF-8, of any option but those that name files. After it, [`Self::word`] and
    /// [`Self::words`] can be used.
    pub(crate) fn check_text(&self) -> Result<(), Misuse> {
        self.command.options.iter().filter(|o| o.arity != Arity::Flag && !o.is_path).try_for_each(|option| {
            let odd = self.values(option.name).iter().find(|value| value.to_str().is_none());
            odd.map_or(Ok(()), |value| {
                let value = value.display().to_string();
                Err(self.command.misuse(MisuseKind::NotText { option: option.name, value }))
            })
        })
    }

    /// The value of an option that takes one, all values being text.
    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.values(name).first().map(checked_text)
    }

    /// The values of an option that takes many, all being text.
    pub(crate) fn words(&self, name: &str) -> Vec<&str> {
        self.values(name).iter().map(checked_text).collect()
    }

    fn row(&self, name: &str) -> Option<&[OsString]> {
        let row = self.command.options.iter().position(|o| o.name == name);
        let row = row.unwrap_or_else(|| panic!("{} has no option -{name} in its table", self.command.name));
        self.values[row].as_deref()
    }
}

fn checked_text(value: &OsString) -> &str {
    value.to_str().expect("check_text() comes first")
}

/// The name of the option that an argument is, without its dashes.
fn as_switch(arg: &OsStr) -> Option<&str> {
    let text = arg.to_str()?;
    let name = text.strip_prefix("--").or_else(|| text.strip_prefix('-'))?;
    let is_number = text.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    (text != "-" && !is_number).then_some(name)
}

#[cfg(test)]
mod tests;
