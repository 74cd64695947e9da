//! Counters of an endpoint, named as rxdebug names them where it has them (Rx notes 14).

use crate::packet::PacketType;
use crate::transmit::{AckOutcome, TimerAction};

/// Packet types that are counted one by one: 0 to 13.
pub const COUNTED_TYPES: usize = 14;

/// The unit of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Things: packets, calls, events.
    Count,
    /// Bytes.
    Bytes,
}

/// A counter of [`Stats`], for code that publishes all of them.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// The field's name.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Its meaning, a sentence.
    pub meaning: &'static str,
    /// Its value.
    pub value: fn(&Stats) -> u64,
}

macro_rules! stats {
    ($($name:ident $unit:ident $meaning:literal)*) => {
        /// The counters of an endpoint since it was made.
        #[derive(Clone, Debug, Default)]
        pub struct Stats {
            /// Packets received, by type.
            pub packets_read: [u64; COUNTED_TYPES],
            /// Packets sent, by type.
            pub packets_sent: [u64; COUNTED_TYPES],
            $(#[doc = $meaning] pub $name: u64,)*
        }

        impl Stats {
            /// All counters but those by packet type.
            pub const COUNTERS: &[Counter] = &[$(Counter {
                name: stringify!($name),
                unit: Unit::$unit,
                meaning: $meaning,
                value: |stats| stats.$name,
            },)*];

            /// Adds what another endpoint has done.
            pub fn add(&mut self, other: &Self) {
                for (sum, n) in self.packets_read.iter_mut().zip(&other.packets_read) {
                    *sum += n;
                }
                for (sum, n) in self.packets_sent.iter_mut().zip(&other.packets_sent) {
                    *sum += n;
                }
                $(self.$name += other.$name;)*
            }
        }
    };
}

stats! {
    bogus_packets Count "Datagrams that are not Rx packets."
    spurious_packets Count "Packets for connections or calls that do not exist."
    duplicate_packets Count "DATA packets that had come before."
    data_resent Count "DATA packets sent again."
    data_lost Bytes "Bytes found lost, Rx headers included."
    losses_taken_back Count "DATA packets that counted as lost and arrived after all."
    paths_narrowed Count "Times that a path's packets became smaller because larger ones do not pass."
    timeouts Count "Times that a call got no answer in time, so that everything that it had in flight counted as lost."
    probes Count "Times that a call heard nothing for a while, and asked its peer what has arrived."
    pings_sent Count "PINGs sent."
    calls Count "Calls begun, as client and as server."
    calls_failed Count "Calls that ended early, by either end."
    busies Count "Calls that were told to wait because an older one still ran on their channel."
    withheld Count "Packets not sent because the peer's address may be forged."
    unkept Count "DATA packets of anonymous callers that the server dropped because their host already held too much."
    evicted Count "Connections dropped to make room for others."
    bytes_read Bytes "Bytes of calls received in order."
    bytes_written Bytes "Bytes of calls sent for the first time."
}

impl Stats {
    pub(crate) fn note_read(&mut self, kind: PacketType) {
        if let Some(n) = self.packets_read.get_mut(usize::from(kind.0)) {
            *n += 1;
        }
    }

    pub(crate) fn note_sent(&mut self, kind: PacketType) {
        if let Some(n) = self.packets_sent.get_mut(usize::from(kind.0)) {
            *n += 1;
        }
    }

    /// Counts what an ACK has shown.
    pub(crate) fn note_ack(&mut self, outcome: &AckOutcome) {
        self.data_lost += outcome.lost.bytes;
        self.losses_taken_back += u64::from(outcome.spurious);
    }

    /// Counts what the timer of a call's sending half has come to.
    pub(crate) fn note_timer(&mut self, action: &TimerAction) {
        match action {
            TimerAction::Nothing => {}
            TimerAction::Probe | TimerAction::ProbeTail { .. } => self.probes += 1,
            TimerAction::TimedOut { lost } => {
                self.timeouts += 1;
                self.data_lost += lost.bytes;
            }
            TimerAction::Lost { lost, .. } => self.data_lost += lost.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_have_every_counter() {
        let mut one = Stats { data_resent: 3, bytes_written: 5, ..Stats::default() };
        one.note_sent(PacketType::DATA);
        let mut sum = one.clone();
        sum.add(&one);
        let value = |name| Stats::COUNTERS.iter().find(|c| c.name == name).map(|c| (c.value)(&sum));
        assert_eq!((value("data_resent"), value("bytes_written")), (Some(6), Some(10)));
        assert_eq!(sum.packets_sent[usize::from(PacketType::DATA.0)], 2);
    }
}
