//! The reasons why something was not done.

use std::io;

use rx::{CallError, RpcError};
use rx_security::ticket::ForgeError;

/// The reason why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no port to call from.
    #[error("binding a port for the client: {0}")]
    Bind(io::Error),
    /// No ticket can be made.
    #[error("making a ticket: {0}")]
    Ticket(ForgeError),
    /// A procedure failed, or its reply is none.
    #[error("{0}")]
    Rpc(RpcError),
    /// A split call's data were cut short, or too long.
    #[error("{0}")]
    Data(CallError),
    /// A value that cannot be said in the protocol.
    #[error("this cannot be sent: {0}")]
    Unsayable(String),
    /// A server's text cannot be read.
    #[error("the server sent a text that cannot be read: {0:?}")]
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
