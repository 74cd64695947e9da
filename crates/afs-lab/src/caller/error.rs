//! The reasons why something was not done.

use std::fmt;
use std::io;

use rx::{CallError, RpcError};
use rx_security::ticket::ForgeError;

/// The reason why something was not done.
#[derive(Debug)]
pub enum Error {
    /// There is no port to call from.
    Bind(io::Error),
    /// No ticket can be made.
    Ticket(ForgeError),
    /// A procedure failed, or its reply is none.
    Rpc(RpcError),
    /// A split call's data were cut short, or too long.
    Data(CallError),
    /// A value that cannot be said in the protocol.
    Unsayable(String),
    /// A server's text cannot be read.
    BadText(String),
}

impl Error {
    /// The code with which the server ended the call, if that is what happened.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Rpc(RpcError::Call { source: CallError::Aborted { code, .. }, .. })
            | Self::Data(CallError::Aborted { code, .. }) => Some(code.0),
            Self::Bind(_)
            | Self::Ticket(_)
            | Self::Rpc(_)
            | Self::Data(_)
            | Self::Unsayable(_)
            | Self::BadText(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(error) => write!(f, "binding a port for the client: {error}"),
            Self::Ticket(error) => write!(f, "making a ticket: {error}"),
            Self::Rpc(error) => write!(f, "{error}"),
            Self::Data(error) => write!(f, "{error}"),
            Self::Unsayable(what) => write!(f, "this cannot be sent: {what}"),
            Self::BadText(text) => write!(f, "the server sent a text that cannot be read: {text:?}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<RpcError> for Error {
    fn from(error: RpcError) -> Self {
        Self::Rpc(error)
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        Self::Data(error)
    }
}
