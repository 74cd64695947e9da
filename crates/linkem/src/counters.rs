//! The counters of a link, and whether a measurement over it can be trusted. The field names are those
//! of the JSON lines, so that recorded runs stay readable.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A run with a larger share of packets leaving over 200 us late is invalid. On a machine that keeps up the
/// share is below 1-2 % (see the README's tables); above it the machine stalled or is overloaded.
pub const LATE_SHARE_MAX: f64 = 0.02;

/// The counters of a link since it was started, as one consistent snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Seconds since the start.
    pub uptime_s: f64,
    /// CPU seconds of the emulator's thread. Includes the kernel's receive path of the far end, which runs
    /// inside the write to the TUN device.
    pub cpu_s: f64,
    /// The part of `cpu_s` spent outside the kernel.
    pub cpu_user_s: f64,
    /// Packets from A to B.
    pub a_to_b: DirectionCounters,
    /// Packets from B to A.
    pub b_to_a: DirectionCounters,
    /// The reason why the emulator ended by itself, if it did: a run with this set is invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The counters of one direction. Packets are segments of MTU size, bytes are IP bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionCounters {
    /// Packets that came in from the sender.
    pub packets_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Packets handed to the receiver, duplicates included.
    pub packets_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Packets that found the queue full.
    pub drop_queue: u64,
    /// Packets lost by chance, to a blackout, or because they were too long.
    pub drop_loss: u64,
    /// Packets dropped because the emulator did not keep up. Must be 0 in a valid run.
    pub drop_emulator: u64,
    /// Packets the receiving device refused. Must be 0 in a valid run.
    pub write_errors: u64,
    /// Extra copies made.
    pub duplicated: u64,
    /// Packets that passed an earlier one (a packet held back may count many).
    pub overtook: u64,
    /// The fullest the queue was.
    pub queue_max_bytes: u64,
    /// The queue's limit; 0 when the rate is unlimited and nothing queues.
    pub queue_limit_bytes: u64,
    /// Packets on the way now.
    pub held_now: u64,
    /// The most packets on the way at one time.
    pub held_max: u64,
    /// Reads from the sender's device; fewer than `packets_in` when it hands over super-packets.
    pub reads: u64,
    /// Writes to the receiver's device; fewer than `packets_out` when neighbours left together.
    pub writes: u64,
    /// The average delay of packets against plan, in microseconds. (The time a packet waits to be
    /// read is not in it: up to the quantum under load.)
    pub late_mean_us: f64,
    /// The latest a packet left against plan, in microseconds.
    pub late_max_us: f64,
    /// Packets that left more than 200 us late.
    pub late_over_200us: u64,
}

impl Counters {
    /// Share of packets, both directions together, that left more than 200 us late; 0 when none left.
    pub fn late_share(&self) -> f64 {
        let out = self.a_to_b.packets_out + self.b_to_a.packets_out;
        (self.a_to_b.late_over_200us + self.b_to_a.late_over_200us) as f64 / out.max(1) as f64
    }

    /// Checks that a run with these counters is valid: the emulator dropped nothing by itself, had no write
    /// refused, and at most [`LATE_SHARE_MAX`] of the packets left over 200 us late.
    ///
    /// The share means little for a handful of packets. Measure what a run did with [`Counters::since`],
    /// so that the set-up is not in it.
    pub fn check(&self) -> Result<(), Invalid> {
        let mut reasons = Vec::new();
        reasons.extend(self.failure.clone().map(Reason::EmulatorFailed));
        for (direction, counters) in [("A to B", &self.a_to_b), ("B to A", &self.b_to_a)] {
            if counters.drop_emulator > 0 {
                reasons.push(Reason::EmulatorDrops { direction, packets: counters.drop_emulator });
            }
            if counters.write_errors > 0 {
                reasons.push(Reason::WriteErrors { direction, writes: counters.write_errors });
            }
        }
        if self.late_share() > LATE_SHARE_MAX {
            reasons.push(Reason::Late { share: self.late_share() });
        }
        if reasons.is_empty() { Ok(()) } else { Err(Invalid { reasons }) }
    }

    /// The difference between the snapshot `before` and this one. The peaks (`*_max*`) and states
    /// (`held_now`, `queue_limit_bytes`) are this snapshot's: peaks are counted since the start.
    pub fn since(&self, before: &Counters) -> Counters {
        Counters {
            uptime_s: self.uptime_s - before.uptime_s,
            cpu_s: self.cpu_s - before.cpu_s,
            cpu_user_s: self.cpu_user_s - before.cpu_user_s,
            a_to_b: self.a_to_b.since(&before.a_to_b),
            b_to_a: self.b_to_a.since(&before.b_to_a),
            failure: self.failure.clone(),
        }
    }
}

impl DirectionCounters {
    fn since(&self, before: &DirectionCounters) -> DirectionCounters {
        let packets_out = self.packets_out.saturating_sub(before.packets_out);
        let late_sum_us =
            self.late_mean_us * self.packets_out as f64 - before.late_mean_us * before.packets_out as f64;
        DirectionCounters {
            packets_in: self.packets_in.saturating_sub(before.packets_in),
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            packets_out,
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
            drop_queue: self.drop_queue.saturating_sub(before.drop_queue),
            drop_loss: self.drop_loss.saturating_sub(before.drop_loss),
            drop_emulator: self.drop_emulator.saturating_sub(before.drop_emulator),
            write_errors: self.write_errors.saturating_sub(before.write_errors),
            duplicated: self.duplicated.saturating_sub(before.duplicated),
            overtook: self.overtook.saturating_sub(before.overtook),
            reads: self.reads.saturating_sub(before.reads),
            writes: self.writes.saturating_sub(before.writes),
            late_mean_us: late_sum_us.max(0.0) / packets_out.max(1) as f64,
            late_over_200us: self.late_over_200us.saturating_sub(before.late_over_200us),
            ..*self
        }
    }
}

/// The reasons why a run over the link must be repeated.
#[derive(Clone, Debug, PartialEq)]
pub struct Invalid {
    /// All that was wrong, at least one thing.
    pub reasons: Vec<Reason>,
}

/// One thing that makes a run invalid.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The emulator did not keep up and packets were dropped for it.
    EmulatorDrops {
        /// "A to B" or "B to A".
        direction: &'static str,
        /// The number of packets.
        packets: u64,
    },
    /// The receiving device refused packets.
    WriteErrors {
        /// "A to B" or "B to A".
        direction: &'static str,
        /// The number of writes.
        writes: u64,
    },
    /// Too many packets left late: the machine stalled or is overloaded.
    Late {
        /// Share of the packets, 0 to 1.
        share: f64,
    },
    /// The emulator ended by itself.
    EmulatorFailed(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::EmulatorDrops { direction, packets } => {
                write!(f, "the emulator did not keep up: {packets} packets dropped {direction}")
            }
            Reason::WriteErrors { direction, writes } => {
                write!(f, "{writes} writes refused {direction}")
            }
            Reason::Late { share } => write!(
                f,
                "{:.1} % of the packets left over 200 us late (at most {:.0} % may): the machine stalled",
                share * 100.0,
                LATE_SHARE_MAX * 100.0
            ),
            Reason::EmulatorFailed(why) => write!(f, "the emulator ended: {why}"),
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the run is not valid: ")?;
        for (i, reason) in self.reasons.iter().enumerate() {
            write!(f, "{}{reason}", if i > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(out: u64, late: u64) -> Counters {
        let a_to_b = DirectionCounters { packets_out: out, late_over_200us: late, ..Default::default() };
        Counters { a_to_b, ..Default::default() }
    }

    #[test]
    fn a_run_with_up_to_two_percent_late_is_valid() {
        assert_eq!(counters(1000, 20).check(), Ok(()));
        let invalid = counters(1000, 21).check().unwrap_err();
        assert_eq!(invalid.reasons, [Reason::Late { share: 0.021 }]);
        assert_eq!(counters(0, 0).check(), Ok(()));
    }

    #[test]
    fn a_run_with_emulator_drops_or_write_errors_is_invalid() {
        let mut run = counters(1000, 0);
        run.b_to_a.drop_emulator = 3;
        run.a_to_b.write_errors = 1;
        run.failure = Some("wan0 is gone".into());
        let text = run.check().unwrap_err().to_string();
        assert!(text.contains("3 packets dropped B to A"), "{text}");
        assert!(text.contains("1 writes refused A to B"), "{text}");
        assert!(text.contains("wan0 is gone"), "{text}");
    }

    #[test]
    fn since_leaves_out_what_was_before() {
        let (mut before, mut after) = (counters(100, 50), counters(1100, 55));
        (before.a_to_b.late_mean_us, after.a_to_b.late_mean_us) = (110.0, 20.0);
        let run = after.since(&before);
        assert_eq!((run.a_to_b.packets_out, run.a_to_b.late_over_200us), (1000, 5));
        assert!((run.a_to_b.late_mean_us - 11.0).abs() < 1e-9);
        assert_eq!(run.check(), Ok(()));
    }

    #[test]
    fn json_keeps_its_names() {
        let json = serde_json::to_value(Counters::default()).unwrap();
        let names: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert_eq!(names, ["a_to_b", "b_to_a", "cpu_s", "cpu_user_s", "uptime_s"]);
        for name in ["packets_in", "drop_queue", "drop_loss", "drop_emulator", "write_errors"] {
            assert_eq!(json["a_to_b"][name], 0, "{name}");
        }
        assert_eq!(serde_json::from_value::<Counters>(json).unwrap(), Counters::default());
    }
}
