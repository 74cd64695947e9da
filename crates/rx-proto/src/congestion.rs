//! What a congestion controller is told and what it answers: how much may be in flight on a path, and how fast to send.
//! The path counts and paces (see `path`, `pacer`); loss is found in `transmit`; controllers are in the files below.

use crate::time::Instant;
use std::fmt::Debug;
use std::time::Duration;

pub mod rate;

/// How many bytes should leave together at this rate, so that offload pays and no queue is made by it: a millisecond's
/// worth, from 2 to 16 packets.
pub(crate) fn quantum(rate: u64, packet_len: u64) -> u64 {
    (rate / 1000).clamp(2 * packet_len, 16 * packet_len)
}

/// What one ACK tells of a path.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// When it came.
    pub now: Instant,
    /// Bytes that it shows to have arrived, not known before; Rx headers included.
    pub acked: u64,
    /// Bytes in flight after it.
    pub in_flight: u64,
    /// Bytes that it shows to be lost.
    pub lost: u64,
    /// Delivery rate over the last round trip, in bytes a second, where it could be measured.
    pub delivery_rate: Option<u64>,
    /// Whether that rate was bound by the application or the peer's window rather than by the path.
    pub app_limited: bool,
    /// The round trip of the newest packet that it acknowledges, where its transmission is known.
    pub rtt: Option<Duration>,
    /// Smallest round trip of late.
    pub min_rtt: Duration,
    /// Whether a round trip has gone by since the last sample that said so.
    pub round_start: bool,
    /// The rate at which the path let a train of packets through that was sent back to back, in bytes a second, where this
    /// ACK ended one.
    pub train_rate: Option<u64>,
}

/// Decides how much may be under way on one path. Shared by all calls over it: sixteen parallel calls are one sender to
/// the network.
pub trait Controller: Send + Debug {
    /// A name for traces.
    fn name(&self) -> &'static str;

    /// An ACK came.
    fn handle_ack(&mut self, sample: &AckSample);

    /// No ACK came for a whole timeout; everything in flight counts as lost.
    fn handle_timeout(&mut self, now: Instant);

    /// Packets are now of this size, in bytes.
    fn set_packet_len(&mut self, len: usize);

    /// Most bytes that may be in flight.
    fn window(&self) -> u64;

    /// How fast to send, in bytes a second; `None` before anything is known.
    fn pacing_rate(&self) -> Option<u64>;

    /// How many bytes the sender should let go back to back at the start of a round, so that the path's rate shows in how
    /// far apart they arrive; 0 for none.
    fn wanted_train(&self) -> u64 {
        0
    }
}
