//! Every knob of an endpoint, with its unit, its default and what goes wrong at the extremes. A value: no statics, no
//! environment.

use crate::congestion::ControllerKind;
use crate::packet::{BASE_PACKET_LEN, MAX_PACKET_LEN};
use std::time::Duration;

/// The configuration of an endpoint. One for all its connections; what differs by service or call is in
/// [`CallLimits`] and [`crate::endpoint::Service`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest DATA packet to send, in bytes of UDP payload with the Rx header; the path MTU search goes no further.
    /// Default 16384, the protocol's limit. At 1444 or below nothing is searched.
    pub max_packet_len: usize,
    /// Most segments of one bundle given to the kernel at once (UDP_SEGMENT). Default 16: measured, most of the gain of
    /// segmentation offload without the overruns of 44.
    pub max_bundle: usize,
    /// Receive window offered when a call starts and nothing is known of the path, in packets. Default 255: what a plain
    /// ACK can describe, and what Linux offers. OpenAFS clamps it to 32.
    pub initial_window: u32,
    /// Largest receive window offered to peers of our own kind, in packets. Default 65,535 (190 MB at 200 ms need half).
    pub max_window: u32,
    /// Memory that receive windows beyond [`Self::initial_window`] may promise over all calls, in bytes; each call at most half of what
    /// is left. Default 256 MiB.
    /// Smaller values slow calls over long paths; larger ones let slow readers hold memory.
    pub receive_budget: u64,
    /// The size of the socket's receive buffer, in bytes as the kernel counts (a packet of 1472 bytes is 2304), if it is too
    /// small to be taken for endless: what all peers may have on their way is kept below it. Calls over long paths then share
    /// that much per round trip: with 212,992 bytes, some 6 MB/s at 20 ms. Default `None`: not limited by it, and neither with
    /// `u64::MAX`, where a driver would put in what the kernel has granted.
    pub receive_buffer: Option<u64>,
    /// The least number of bytes that a call takes from its writer before it says "wait". It grows to twice the path's
    /// window, not counting what has arrived beyond a hole. Default 256 KiB.
    pub send_buffer: usize,
    /// Most that a call holds of what its writer gave and the peer has not acknowledged for good, in bytes. Default 128 MiB.
    pub max_send_buffer: usize,
    /// True if this endpoint says in its ACKs that it is of our own kind, and believes peers that do. Default true. Off, it
    /// behaves as a stock peer would: for tests and for looking into trouble.
    pub announce: bool,
    /// Connections a server keeps before it refuses new ones. Default 1,000,000 (about 500 bytes each when idle).
    pub max_connections: usize,
    /// Connections from addresses that have not been shown to be reachable; beyond it the oldest of them goes. Default 4096:
    /// a spoofer costs a bounded amount of memory.
    pub max_unverified: usize,
    /// Connections that a host may have without a user's name; beyond it the oldest idle one of the host goes. Default 16,384,
    /// about 30 MB. Behind a gateway that hides more clients their next calls make new connections.
    pub max_connections_of_host: usize,
    /// Bytes that callers without a name may have a server keep, over all connections: data that wait until their sender has
    /// shown who it is, and data that the service has not read. A host has as much as it leaves free, so one alone has
    /// half. Default 128 MiB: what 1 Gbit/s over 200 ms needs while losses are repaired. Smaller values slow large anonymous stores over
    /// lossy links; larger ones let strangers hold memory.
    pub strangers_memory: u64,
    /// A connection that nobody used for so long is forgotten. Default 700 s, OpenAFS's.
    pub reap_after: Duration,
    /// The time limits of calls, unless the connection or service says otherwise.
    pub limits: CallLimits,
    /// The text that answers a VERSION packet: at most 64 bytes are sent.
    pub version: String,
    /// The congestion controller of the paths. Default BBR: CUBIC falls to a hundredth of a long link where one packet in a
    /// thousand is lost by chance.
    pub controller: ControllerKind,
    /// Rate that replaces the controller's, in bytes a second, for experiments. Default `None`.
    pub fixed_rate: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_packet_len: MAX_PACKET_LEN,
            max_bundle: 16,
            initial_window: 255,
            max_window: 65_535,
            receive_budget: 256 << 20,
            receive_buffer: None,
            send_buffer: 256 << 10,
            max_send_buffer: 128 << 20,
            announce: true,
            max_connections: 1_000_000,
            max_unverified: 4096,
            max_connections_of_host: 16_384,
            strangers_memory: 128 << 20,
            reap_after: Duration::from_secs(700),
            limits: CallLimits::default(),
            version: concat!("afar ", env!("CARGO_PKG_VERSION")).to_owned(),
            controller: ControllerKind::default(),
            fixed_rate: None,
        }
    }
}

impl Config {
    /// The behaviour of a stock peer, as far as a sender can tell: no announcement, packets of 1444 bytes.
    pub fn stock_like() -> Self {
        Self { announce: false, max_packet_len: BASE_PACKET_LEN, ..Self::default() }
    }
}

/// The time limits of a call (Rx notes 11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallLimits {
    /// With no packet at all from the peer for so long, the call ends with CALL_DEAD; pings go out every sixth of it.
    /// Default 12 s; values below 6 s count as 6 s, so that one lost ping ends nothing.
    pub dead: Duration,
    /// The same, in place of [`Self::dead`], for a caller that can turn to another peer at once, and whom a mistake costs
    /// only that: what it says counts, however small it is. Default off.
    pub silence: Option<Duration>,
    /// With no progress (data in either direction) for so long, the call ends with CALL_TIMEOUT. Default off.
    pub idle: Option<Duration>,
    /// The whole call may take so long, then it ends with CALL_TIMEOUT. Default off.
    pub hard: Option<Duration>,
    /// Server: with the call waiting for its client for so long, for more of the request or for the reply to be taken, it ends
    /// with CALL_TIMEOUT. Every 256 bytes that move buy a second of it again. Time in which the server itself works does not
    /// count. Default 60 s, as OpenAFS's servers have it: kAFS needs some tens of seconds after an outage. Smaller values
    /// end the calls of clients that recover from one; larger ones let a client that has stopped hold its call, and with a
    /// store the file, for longer.
    pub stall: Option<Duration>,
}

/// Default of [`CallLimits::stall`].
pub const STALL: Duration = Duration::from_secs(60);

impl Default for CallLimits {
    fn default() -> Self {
        Self { dead: Duration::from_secs(12), silence: None, idle: None, hard: None, stall: Some(STALL) }
    }
}

impl CallLimits {
    /// [`Self::silence`], else [`Self::dead`], at least 6 s.
    pub fn dead_after(&self) -> Duration {
        self.silence.unwrap_or(self.dead.max(Duration::from_secs(6)))
    }

    /// The time between two pings of a silent peer.
    pub fn keepalive(&self) -> Duration {
        self.dead_after() / 6
    }
}
