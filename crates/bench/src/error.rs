//! Errors that end a run, and those that end everything.

/// The reason why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The user wants to stop: everything ends.
    #[error("interrupted")]
    Interrupted,
    /// Something is missing or in the way: everything ends.
    #[error("{0}")]
    Setup(String),
    /// This run went wrong, another may not.
    #[error("{0}")]
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

impl From<linkem::Error> for Error {
    fn from(error: linkem::Error) -> Self {
        Error::Setup(format!("the emulated link: {error}"))
    }
}
