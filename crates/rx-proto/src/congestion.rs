//! The interface of a congestion controller: what it is told, and what it answers, namely how much may be in flight on a path,
//! and how fast to send. The path counts and paces (see `path`, `pacer`); loss is found in `transmit`; controllers are in the
//! files below. To add one: implement [`Controller`], name it in [`ControllerKind`], and look at what it does in
//! `congestion/simulation.rs`.

use crate::pacer::CATCH_UP;
use crate::time::Instant;
use std::fmt::{self, Debug};
use std::str::FromStr;
use std::time::Duration;

pub mod bbr;
pub mod cubic;
#[cfg(test)]
mod simulation;

/// The controllers there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ControllerKind {
    /// A model of the path: rate and smallest round trip (see [`bbr`]).
    #[default]
    Bbr,
    /// Loss, RFC 9438 (see [`cubic`]).
    Cubic,
}

impl ControllerKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Bbr, Self::Cubic];

    /// Its name, as configuration and command line have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
        }
    }

    /// Makes a controller of this kind for a new path with packets of `packet_len` bytes. All random choices come from `seed`.
    pub fn start(self, packet_len: usize, seed: u64) -> Box<dyn Controller> {
        match self {
            Self::Bbr => Box::new(bbr::Bbr::new(packet_len, seed)),
            Self::Cubic => Box::new(cubic::Cubic::new(packet_len)),
        }
    }
}

impl fmt::Display for ControllerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ControllerKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("no congestion controller is called '{name}'; there are {known}"))
    }
}

/// The number of bytes that should leave together at this rate, so that offload pays and no queue is made by it: a
/// millisecond's worth, from 2 to 16 packets.
pub(crate) fn quantum(rate: u64, packet_len: u64) -> u64 {
    (rate / 1000).clamp(2 * packet_len, 16 * packet_len)
}

/// Bytes that flow in `time` at `rate` bytes a second.
pub(crate) fn bytes_in(rate: u64, time: Duration) -> u64 {
    (u128::from(rate) * time.as_nanos() / 1_000_000_000) as u64
}

/// One ACK's news of a path.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// The time at which it came.
    pub now: Instant,
    /// Bytes that it shows to have arrived, not known before; Rx headers included.
    pub acked: u64,
    /// Bytes that have arrived on the path in all.
    pub delivered: u64,
    /// Bytes in flight after it.
    pub in_flight: u64,
    /// Bytes that were in flight when the newest packet that it acknowledges was sent, that packet included; 0 where that is
    /// not known.
    pub sent_in_flight: u64,
    /// Bytes found lost since the sample before.
    pub lost: u64,
    /// Bytes among those found lost, in this sample or before, that have arrived after all.
    pub spurious: u64,
    /// Delivery rate over the last round trip, in bytes a second, where it could be measured.
    pub delivery_rate: Option<u64>,
    /// True if that rate was bound by the application or the peer's window rather than by the path.
    pub app_limited: bool,
    /// The round trip of the newest packet that it acknowledges, where its transmission is known.
    pub rtt: Option<Duration>,
    /// Smallest round trip of late, and how long ago one was as small.
    pub min_rtt: Duration,
    /// See [`Self::min_rtt`].
    pub min_rtt_age: Duration,
    /// Smoothed round trip.
    pub smoothed_rtt: Duration,
    /// True if a round trip has gone by since the last sample that said so.
    pub round_start: bool,
    /// The rate at which the path let a train of packets through that was sent back to back, in bytes a second, where this
    /// ACK ended one.
    pub train_rate: Option<u64>,
}

/// Decides how much may be under way on one path. Shared by all calls over it: sixteen parallel calls are one sender to
/// the network.
pub trait Controller: Send + Debug {
    /// A name for traces: what it is at.
    fn phase(&self) -> &'static str;

    /// An ACK came.
    fn handle_ack(&mut self, sample: &AckSample);

    /// Handles a whole timeout without an ACK; everything in flight counts as lost.
    fn handle_timeout(&mut self, now: Instant);

    /// Packets are now of this size, in bytes.
    fn set_packet_len(&mut self, len: usize);

    /// Most bytes that may be in flight.
    fn window(&self) -> u64;

    /// The rate at which to send, in bytes a second; `None` before anything is known.
    fn pacing_rate(&self) -> Option<u64>;

    /// The time that a sender may make up for by a burst when it was woken late: as much as the path's queue
    /// is trusted to take. What is not made up for is lost to the path.
    fn catch_up(&self) -> Duration {
        CATCH_UP
    }

    /// The number of bytes that the sender should send back to back at the start of a round, so that the path's rate
    /// shows in how far apart they arrive; 0 for none.
    fn wanted_train(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_goes_by_its_name() {
        for kind in ControllerKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "reno".parse::<ControllerKind>().unwrap_err();
        assert_eq!(error, "no congestion controller is called 'reno'; there are bbr, cubic");
    }
}
