//! Errors that end a run, and those that end everything.

use std::fmt;

/// The reason why something could not be measured.
#[derive(Debug)]
pub(crate) enum Error {
    /// The user wants to stop: everything ends.
    Interrupted,
    /// Something is missing or in the way: everything ends.
    Setup(String),
    /// This run went wrong, another may not.
    Run(String),
}

impl Error {
    pub(crate) fn setup(message: impl Into<String>) -> Self {
        Error::Setup(message.into())
    }

    pub(crate) fn run(message: impl Into<String>) -> Self {
        Error::Run(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Interrupted => write!(f, "interrupted"),
            Error::Setup(message) | Error::Run(message) => write!(f, "{message}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<linkem::Error> for Error {
    fn from(error: linkem::Error) -> Self {
        Error::Setup(format!("the emulated link: {error}"))
    }
}
