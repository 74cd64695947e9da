//! Errors while a link is made. A running link has no errors of its own: what happens to it is
//! in its counters (see counters).

use std::fmt;
use std::io;

/// The reason why a link could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option's value makes no sense; `problem` says what is expected.
    #[error("option {name} = {value}: {problem}")]
    Option {
        /// The option, as on the command line but without dashes.
        name: String,
        /// The value that was given.
        value: String,
        /// The problem with it.
        problem: String,
    },
    /// A namespace of that name is there already.
    #[error("network namespace {name} exists already (`ip netns del {name}` removes it)")]
    NamespaceExists {
        /// The name asked for.
        name: String,
    },
    /// The `ip` tool refused.
    #[error("ip {arguments}: {problem}")]
    Ip {
        /// Its arguments.
        arguments: String,
        /// Its standard error, or why it could not be started.
        problem: String,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// The operation.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The emulator's thread has ended, so it cannot take orders any more.
    #[error("the emulator of this link has ended (its counters say why)")]
    EmulatorEnded,
}

impl Error {
    pub(crate) fn option(name: &str, value: impl fmt::Display, problem: &str) -> Error {
        Error::Option { name: name.to_string(), value: value.to_string(), problem: problem.to_string() }
    }

    pub(crate) fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let doing = doing.into();
        move |source| Error::System { doing, source }
    }
}
