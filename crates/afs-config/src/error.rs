//! Errors in a configuration file: which file, which line, what, and what is expected there.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A configuration file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; `None` when it is about the whole file.
    pub line: Option<usize>,
    /// The problem with it.
    pub problem: Problem,
}

/// The problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file is not there.
    #[error("there is no such file")]
    Missing,
    /// It cannot be read; why, in the system's words.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// It is larger than any such file needs to be, in bytes.
    #[error("it has {} bytes, and no such file needs more than {}", .0, crate::MAX_FILE_BYTES)]
    TooLarge(u64),
    /// It has nothing in it.
    #[error("there is nothing in it")]
    Empty,
    /// This is not the name of a cell.
    #[error(
        "'{}' cannot be the name of a cell: 1 to {} letters, digits, dots, hyphens and underscores",
        .0, crate::MAX_CELL_NAME_BYTES
    )]
    CellName(String),
    /// This is not an IPv4 address.
    #[error("'{0}' is not an IPv4 address, as in 192.0.2.1")]
    Address(String),
    /// This is not an address with an optional prefix length.
    #[error("'{0}' is not an IPv4 address or network, as in 192.0.2.1 or 192.0.2.0/24")]
    AddressRule(String),
    /// A server stands before the first line that begins a cell.
    #[error("a server stands here before any cell: begin with a line '>CELL'")]
    ServerBeforeCell,
    /// This cell, which ThisCell names, is not in it.
    #[error("cell {0}, which ThisCell names, is not in it")]
    CellNotListed(String),
    /// A cell has more servers than this.
    #[error("the cell has more than {0} servers")]
    TooManyServers(usize),
    /// This is not the name of an alias: it is empty, begins with a dot or has a slash.
    #[error("'{0}' cannot be an alias: it is one name, without a dot in front and without a slash")]
    Alias(String),
    /// So many fields were expected, and so many are there.
    #[error("there are {found} fields, where '{expected}' is expected")]
    Fields {
        /// The form that the line should have.
        expected: &'static str,
        /// The number of fields that there are.
        found: usize,
    },
    /// This is no number of the kind expected.
    #[error("{of} is expected, not '{found}'")]
    Number {
        /// The thing that it should be.
        of: &'static str,
        /// The text that stands there.
        found: String,
    },
    /// The line begins with a word that is not known here.
    #[error("'{0}' is not known here")]
    Keyword(String),
    /// A line of a bnode stands outside of one, or a bnode was not ended.
    #[error("{0}")]
    Unbalanced(&'static str),
    /// A bnode of this type has another number of `parm` lines than it needs.
    #[error("bnode {bnode} has {found} 'parm' lines, and its type needs at least {needed}")]
    Parameters {
        /// The bnode.
        bnode: String,
        /// The fewest it needs.
        needed: usize,
        /// The number of lines that there are.
        found: usize,
    },
    /// A quotation was not ended.
    #[error("a quotation is not ended in its line")]
    Quote,
    /// Text that is for a shell to evaluate, which this program is not.
    #[error("'{0}' would have to be evaluated by a shell: write the value itself")]
    Shell(String),
}

impl ConfigError {
    pub(crate) fn new(path: &Path, line: impl Into<Option<usize>>, problem: Problem) -> Self {
        Self { path: path.to_owned(), line: line.into(), problem }
    }

    pub(crate) fn of_io(path: &Path, error: &io::Error) -> Self {
        let problem = match error.kind() {
            io::ErrorKind::NotFound => Problem::Missing,
            _ => Problem::Unreadable(error.to_string()),
        };
        Self::new(path, None, problem)
    }

    /// True if the file is just not there, which for many files is no error.
    pub fn is_missing(&self) -> bool {
        self.problem == Problem::Missing
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl Error for ConfigError {}
