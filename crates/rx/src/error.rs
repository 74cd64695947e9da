//! The reasons why a call or a remote procedure failed, with what to tell the user.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;

use rx_proto::abort::AbortCode;
use rx_proto::ids::ServiceId;
use rxgen::{Abort, DecodeError};

/// The reason why a call ended early, or cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The peer ended it with this code.
    Aborted {
        /// The peer.
        peer: SocketAddr,
        /// The service called.
        service: ServiceId,
        /// The peer's code: the service's own if positive, otherwise Rx's.
        code: AbortCode,
    },
    /// This end gave it up with this code: nothing comes from the peer ([`AbortCode::CALL_DEAD`], within moments where the
    /// network says that nobody is there), a time limit ran out, or the peer broke the protocol.
    Failed {
        /// The peer.
        peer: SocketAddr,
        /// The service called.
        service: ServiceId,
        /// The code of what was wrong.
        code: AbortCode,
    },
    /// The deadline given by the caller has passed; the call was aborted.
    DeadlinePassed {
        /// The peer.
        peer: SocketAddr,
        /// The service called.
        service: ServiceId,
    },
    /// The call is over and its error was told before, or a server's call was taken back by its client.
    Gone {
        /// The peer.
        peer: SocketAddr,
    },
    /// Nothing more can be written: the stream was ended, or the server has begun to reply, for which it need not have
    /// read everything. The reply can be read.
    NotSending {
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer's stream ended before as many bytes as were asked for.
    StreamEnded {
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer's stream is longer than the caller takes.
    StreamTooLong {
        /// The peer.
        peer: SocketAddr,
        /// The number of bytes that the caller takes.
        limit: usize,
    },
    /// This end's endpoint was shut down.
    EndpointClosed,
}

impl CallError {
    /// The code that names it on the wire, for those who answer or count by codes.
    pub const fn code(&self) -> AbortCode {
        match self {
            Self::Aborted { code, .. } | Self::Failed { code, .. } => *code,
            Self::DeadlinePassed { .. } => AbortCode::CALL_TIMEOUT,
            Self::Gone { .. } | Self::EndpointClosed => AbortCode::USER_ABORT,
            Self::NotSending { .. } | Self::StreamTooLong { .. } => AbortCode::PROTOCOL_ERROR,
            Self::StreamEnded { .. } => AbortCode::EOF,
        }
    }

    pub(crate) const fn of(error: rx_proto::CallError, peer: SocketAddr, service: ServiceId) -> Self {
        match error {
            rx_proto::CallError::AbortedByPeer(code) => Self::Aborted { peer, service, code },
            rx_proto::CallError::Failed(code) => Self::Failed { peer, service, code },
            rx_proto::CallError::Gone => Self::Gone { peer },
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aborted { peer, service, code } => {
                write!(f, "{peer} ended a call to its service {}: {code}", service.0)
            }
            Self::Failed { peer, service, code: AbortCode::CALL_DEAD } => write!(
                f,
                "no answer from {peer} for service {}: check that it runs and that UDP gets through",
                service.0
            ),
            Self::Failed { peer, service, code } => {
                write!(f, "the call to service {} of {peer} was given up: {code}", service.0)
            }
            Self::DeadlinePassed { peer, service } => {
                write!(f, "the call to service {} of {peer} took longer than its caller allowed", service.0)
            }
            Self::Gone { peer } => write!(f, "the call with {peer} has ended already"),
            Self::NotSending { peer } => {
                write!(
                    f,
                    "nothing more can be sent to {peer} in this call: its reply has begun, or the request was ended"
                )
            }
            Self::StreamEnded { peer } => write!(f, "{peer} sent less than expected"),
            Self::StreamTooLong { peer, limit } => {
                write!(f, "{peer} sent more than the {limit} bytes expected")
            }
            Self::EndpointClosed => f.write_str("this end of the call was shut down"),
        }
    }
}

impl Error for CallError {}

/// The reason why a remote procedure gave no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The call failed.
    #[error("{rpc}: {source}")]
    Call {
        /// The procedure.
        rpc: &'static str,
        /// The reason.
        source: CallError,
    },
    /// The bytes that came are no reply of this procedure.
    #[error("{rpc}: the reply of {peer} cannot be decoded: {source}")]
    Reply {
        /// The procedure.
        rpc: &'static str,
        /// The peer.
        peer: SocketAddr,
        /// The problem with it.
        source: DecodeError,
    },
}

impl RpcError {
    /// The code that names it on the wire.
    pub const fn code(&self) -> AbortCode {
        match self {
            Self::Call { source, .. } => source.code(),
            Self::Reply { .. } => AbortCode(Abort::CC_UNMARSHAL.0),
        }
    }
}
