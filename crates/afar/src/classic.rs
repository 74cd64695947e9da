//! The option syntax of the classic AFS commands: options of one dash (or two), cut to any prefix that is unambiguous,
//! with their values in the arguments that follow; values without an option, in order, where the command takes them so;
//! and `-help`. A command is a table; what its options mean is for the command.
//!
//! The rules, observed with the tools of OpenAFS 1.8.9:
//! * An argument is an option if it begins with a dash, unless a digit follows: `-5` is a value.
//! * Values without an option go to those options that take values, in the order of the table, until an option with
//!   values is named; flags may stand between. A list takes all that is left.
//! * An option named twice is an error if it takes one value; flags and lists may be named again.
//! * `-option=value` is the same as `-option value`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::process::ExitCode;

/// The exit status of a command that was called the wrong way.
pub(crate) const MISUSE: u8 = 2;

/// Width of the help.
const HELP_WIDTH: usize = 80;

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
    is_required: bool,
    is_ours: bool,
}

impl Opt {
    /// An option without a value.
    pub(crate) const fn flag(name: &'static str, help: &'static str) -> Self {
        Self { name, arity: Arity::Flag, value_name: "", help, is_required: false, is_ours: false }
    }

    /// An option with one value; `value_name` says in the help what that is.
    pub(crate) const fn single(name: &'static str, value_name: &'static str) -> Self {
        Self { name, arity: Arity::Single, value_name, help: "", is_required: false, is_ours: false }
    }

    /// An option with one value or more.
    #[cfg_attr(not(test), expect(dead_code, reason = "rxdebug has no list; other suites do"))]
    pub(crate) const fn list(name: &'static str, value_name: &'static str) -> Self {
        Self { name, arity: Arity::List, value_name, help: "", is_required: false, is_ours: false }
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

    const fn takes_positions(&self) -> bool {
        !matches!(self.arity, Arity::Flag) && !self.is_ours
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

/// What stood on the command line, by option.
#[derive(Debug)]
pub(crate) struct Given {
    command: &'static Command,
    /// For each row of the table: `None` if it was not named.
    values: Vec<Option<Vec<OsString>>>,
}

/// What a command line comes to.
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
                write!(f, "-{option} takes one value; there is no place for '{value}'")?
            }
            MisuseKind::Unplaced { value } => write!(f, "there is no place for '{value}'")?,
            MisuseKind::Missing { option, value_name } => write!(f, "-{option} <{value_name}> is missing")?,
            MisuseKind::NotText { option, value } => {
                write!(f, "the value of -{option}, '{value}', is not UTF-8")?
            }
        }
        write!(f, "; see '{} -help'", self.command)
    }
}

impl std::error::Error for Misuse {}

impl Misuse {
    /// Tells the user.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("{self}");
        ExitCode::from(MISUSE)
    }
}

impl Command {
    /// Reads a command line, or answers the user by itself: the error is the exit status.
    pub(crate) fn start(&'static self, args: &[OsString]) -> Result<Given, ExitCode> {
        match self.parse(args) {
            Ok(Parsed::Run(given)) => Ok(given),
            Ok(Parsed::Help) => Err(crate::output::print(&self.help())),
            Err(misuse) => Err(misuse.report()),
        }
    }

    /// Reads the arguments behind the command's name.
    pub(crate) fn parse(&'static self, args: &[OsString]) -> Result<Parsed, Misuse> {
        let mut given = Given { command: self, values: vec![None; self.options.len()] };
        let mut takes = Takes::Positions { next: 0 };
        for arg in args {
            let Some(switch) = as_switch(arg) else {
                takes = self.place(arg, takes, &mut given)?;
                continue;
            };
            let (name, value) = match switch.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (switch, None),
            };
            takes.check(self)?;
            let Some(row) = self.find(name)? else { return Ok(Parsed::Help) };
            takes = self.open(row, takes, &mut given)?;
            if let Some(value) = value {
                if self.options[row].arity == Arity::Flag {
                    return Err(self.misuse(MisuseKind::UnwantedValue { option: self.options[row].name }));
                }
                takes = self.place(OsStr::new(value), takes, &mut given)?;
            }
        }
        takes.check(self)?;
        let missing = self.options.iter().zip(&given.values).find(|(o, v)| o.is_required && v.is_none());
        match missing {
            Some((option, _)) => {
                Err(self.misuse(MisuseKind::Missing { option: option.name, value_name: option.value_name }))
            }
            None => Ok(Parsed::Run(given)),
        }
    }

    /// The help, in the form of the classic commands: a summary, and what the options mean that say so.
    pub(crate) fn help(&self) -> String {
        let mut text = format!("Usage: {}", self.name);
        let mut column = text.len();
        for option in self.options.iter().chain([&HELP]) {
            let value = match option.arity {
                Arity::Flag => String::new(),
                Arity::Single => format!(" <{}>", option.value_name),
                Arity::List => format!(" <{}>+", option.value_name),
            };
            let word = match option.is_required {
                true => format!("-{}{value}", option.name),
                false => format!("[-{}{value}]", option.name),
            };
            if column + 1 + word.len() >= HELP_WIDTH {
                text += "\n        ";
                column = 8;
            }
            text += " ";
            text += &word;
            column += 1 + word.len();
        }
        text.push('\n');
        let explained: Vec<_> = self.options.iter().filter(|o| !o.help.is_empty()).collect();
        let width = explained.iter().map(|o| o.name.len()).max().unwrap_or(0);
        for (i, option) in explained.iter().enumerate() {
            let lead = if i == 0 { "Where:" } else { "      " };
            text += &format!("{lead} -{:<width$}  {}\n", option.name, option.help);
        }
        text
    }

    /// The row that a name, or the beginning of one, stands for; `None` is the help.
    fn find(&self, name: &str) -> Result<Option<usize>, Misuse> {
        let rows = || self.options.iter().chain([&HELP]).enumerate();
        let row = match rows().find(|(_, o)| o.name == name) {
            Some((row, _)) => row,
            None => {
                let fits: Vec<_> = rows()
                    .filter(|(_, o)| !name.is_empty() && !o.is_ours && o.name.starts_with(name))
                    .collect();
                match fits[..] {
                    [(row, _)] => row,
                    [] => return Err(self.misuse(MisuseKind::Unknown { switch: format!("-{name}") })),
                    _ => {
                        let options = fits.iter().map(|(_, o)| o.name).collect();
                        return Err(
                            self.misuse(MisuseKind::Ambiguous { switch: format!("-{name}"), options })
                        );
                    }
                }
            }
        };
        Ok((row < self.options.len()).then_some(row))
    }

    /// An option has been named.
    fn open(&self, row: usize, takes: Takes, given: &mut Given) -> Result<Takes, Misuse> {
        let values = &mut given.values[row];
        match self.options[row].arity {
            Arity::Flag => {
                *values = Some(Vec::new());
                // Only where no option with values came before do positions go on behind a flag.
                Ok(if let Takes::Positions { .. } = takes {
                    takes
                } else {
                    Takes::Nothing { after: takes.row() }
                })
            }
            Arity::Single | Arity::List => {
                values.get_or_insert_default();
                Ok(Takes::Values { row, so_far: 0 })
            }
        }
    }

    /// A value has come.
    fn place(&self, value: &OsStr, takes: Takes, given: &mut Given) -> Result<Takes, Misuse> {
        let too_many = |row: usize| {
            let (option, value) = (self.options[row].name, value.display().to_string());
            self.misuse(match self.options[row].arity {
                Arity::Single => MisuseKind::TooMany { option, value },
                Arity::Flag | Arity::List => MisuseKind::Unplaced { value },
            })
        };
        match takes {
            Takes::Nothing { after } => Err(too_many(after)),
            Takes::Values { row, so_far } => {
                let values = given.values[row].get_or_insert_default();
                if self.options[row].arity == Arity::Single && !values.is_empty() {
                    return Err(too_many(row));
                }
                values.push(value.to_owned());
                Ok(Takes::Values { row, so_far: so_far + 1 })
            }
            Takes::Positions { next } => {
                let free = (next..self.options.len()).find(|row| self.options[*row].takes_positions());
                let Some(row) = free else {
                    let last = self.options.iter().rposition(Opt::takes_positions);
                    return Err(last.map_or_else(
                        || self.misuse(MisuseKind::Unplaced { value: value.display().to_string() }),
                        too_many,
                    ));
                };
                given.values[row].get_or_insert_default().push(value.to_owned());
                let stays = self.options[row].arity == Arity::List;
                Ok(Takes::Positions { next: if stays { row } else { row + 1 } })
            }
        }
    }

    fn misuse(&self, kind: MisuseKind) -> Misuse {
        Misuse { command: self.name, kind }
    }
}

/// Where the next value goes.
#[derive(Clone, Copy, Debug)]
enum Takes {
    /// To the first option from row `next` on that takes values.
    Positions { next: usize },
    /// To the option of this row, which has had `so_far` since it was named.
    Values { row: usize, so_far: usize },
    /// Nowhere: a flag came behind the option of this row.
    Nothing { after: usize },
}

impl Takes {
    /// Before another option, and at the end: an option that was named must have its value by now.
    fn check(self, command: &Command) -> Result<(), Misuse> {
        match self {
            Self::Values { row, so_far: 0 } => {
                let Opt { name: option, value_name, .. } = command.options[row];
                Err(command.misuse(MisuseKind::NoValue { option, value_name }))
            }
            _ => Ok(()),
        }
    }

    const fn row(self) -> usize {
        match self {
            Self::Positions { next: row } | Self::Values { row, .. } | Self::Nothing { after: row } => row,
        }
    }
}

impl Given {
    /// Whether the flag, or an option with values, was given. The name must be in the table.
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

    fn row(&self, name: &str) -> Option<&[OsString]> {
        let row = self.command.options.iter().position(|o| o.name == name);
        let row = row.unwrap_or_else(|| panic!("{} has no option -{name} in its table", self.command.name));
        self.values[row].as_deref()
    }
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
