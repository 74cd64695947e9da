//! Rx, the transport of AFS, over UDP: what drives an [`rx_proto::endpoint::Endpoint`] and the calls that applications make
//! and serve.
//!
//! An [`Endpoint`] is one UDP port. Clients make a [`Connection`] to a service of a peer, or a [`Peer`] that holds as many
//! connections as its calls need, and on it [`ClientCall`]s; servers add services, whose handlers are given
//! [`ServerCall`]s. A call is two streams of bytes, the request and the reply; both wait where the other end is slow, and
//! letting go of a call aborts it.
//!
//! What the protocol does is in `rx-proto`, how arguments are encoded in `rxgen`. Everything that waits, waits through a
//! [`Runtime`]; the operating system's is [`TokioRuntime`], the only reader of its clock.

#![deny(unsafe_code)]

pub mod blocking;
mod call;
mod client;
mod driver;
mod endpoint;
mod error;
mod in_time;
mod interface;
mod metrics;
mod rpc;
mod runtime;
mod server;
mod shard;
pub mod socket;
mod tokio;

pub use call::Call;
pub use client::{ClientCall, Connection, Peer, PeerLimits};
pub use endpoint::{Endpoint, EndpointConfig, WeakEndpoint};
pub use error::{CallError, RpcError};
pub use in_time::in_time;
pub use interface::Procedures;
pub use metrics::{Metrics, PortMetrics};
pub use runtime::{BoxFuture, Driven, Port, Runtime};
pub use rxgen::Abort;
pub use server::{Handler, ServerCall, ServiceConfig};
pub use socket::SocketOptions;
pub use tokio::TokioRuntime;
