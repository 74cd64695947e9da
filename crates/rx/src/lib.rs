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
//!
//! # How a datagram becomes a byte of a call
//!
//! 1. A receiving thread ([`driver`]) drains the socket ([`socket`]) in batches and routes each datagram to a
//!    *shard* by the peer's address. The thread does nothing else, so that the kernel's buffer does not overflow.
//! 2. The shard ([`shard`]) is a lock around an [`rx_proto::endpoint::Endpoint`], the protocol of one UDP port. The
//!    shard's worker gives the endpoint the datagrams (`handle_datagram`) and the time (`handle_timeout`), and
//!    collects events for the applications that are waiting. It sends the packets that `poll_transmit` returns, in
//!    bundles that the kernel splits (UDP_SEGMENT). If no other thread is sending, the application's thread that
//!    writes also sends. This saves a thread switch.
//! 3. In the endpoint, `crates/rx-proto/src/endpoint/ingress.rs` finds the *connection* by (epoch, cid, direction),
//!    and the *call* by channel and number. The call's receiving half (`receive` there) puts packets in order and
//!    decides when to acknowledge. Its sending half (`transmit`) reads ACKs and finds what is lost.
//! 4. All calls to one address share a *path* ([`rx_proto::path`]): round-trip time, congestion controller, pacing,
//!    packet size, and the order in which calls send. To the network, sixteen parallel calls are one sender.
//!
//! Time is [`rx_proto::time::Instant`]: nanoseconds that the driver counts. Random numbers come from a seed. So
//! tests can run whole networks in virtual time (`crates/afs-sim`).
//!
//! # What to open for a change
//!
//! - A UDP system call, offload, buffers: [`socket`] and the modules under it; `unsafe` is in `src/socket/sys.rs`
//!   alone.
//! - Threads, locks, and which thread sends: [`driver`], [`shard`].
//! - The call API, a service, its limits: [`mod@call`], [`client`], [`server`].
//! - Which call gets a handler next, and which call is refused: `src/server/slots.rs`.
//! - On which thread the work of a call is done: [`blocking`].
//! - The clock, timers and tasks: [`runtime`] (the trait), [`mod@tokio`] (the operating system's), [`mod@in_time`]
//!   (waiting with a deadline in a process that may be stopped for a while).
//! - How RPCs of all services are counted and timed: [`interface`]. How all counters are published: [`metrics`].

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
pub use runtime::{BoxFuture, Driven, Next, Port, REST, Runtime};
pub use rxgen::Abort;
pub use server::{Handler, ServerCall, ServiceConfig};
pub use socket::SocketOptions;
pub use tokio::TokioRuntime;
