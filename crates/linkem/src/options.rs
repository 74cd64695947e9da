//! The options of a link: rate, queue, loss, delay and so on, for each direction, with their names
//! on the command line. Values only; direction carries them out.

use std::time::Duration;

use crate::error::Error;

/// Longest delay of any kind. Beyond an hour a typing error is more likely than a link.
const DELAY_MAX: Duration = Duration::from_secs(3600);
/// Lowest rate in bit/s other than 0 (unlimited): keeps the picosecond clock of the queue far from its end.
const RATE_MIN_BIT_S: u64 = 1000;
/// Highest rate in Mbit/s; far above what a TUN device can carry.
const RATE_MAX_MBIT: f64 = 1e6;
/// Largest queue and token bucket, far above any router's.
const BYTES_MAX: f64 = 1e12;

/// The treatment of packets by one direction of the link, in this order: queue, rate, loss, delay. So a lost
/// packet has used the link. Defaults: nothing at all, an unlimited link without delay.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionOptions {
    /// One-way delay after the last bit left the queue; at most an hour. Packets on the way stay in memory.
    pub delay: Duration,
    /// Link rate in bit/s, counted in IP bytes; 0: unlimited, else 1000 or more.
    pub rate_bit_s: u64,
    /// Bytes that each packet takes on the link on top of its IP bytes (Ethernet framing: 38).
    pub overhead_bytes: u64,
    /// Token bucket depth: so much may pass at once after a pause. 0 is strict serialisation.
    pub burst_bytes: u64,
    /// The drop-tail queue's limit. The sender has no slower first hop, a 64 KB super-packet enters the
    /// queue at once: below 128 KB expect more loss than a sender behind a faster card would see.
    pub queue: QueueLimit,
    /// Probability that a packet is lost, 0 to 1.
    pub loss: f64,
    /// Above 1: losses come in runs of this many packets on average, `loss` stays the average share.
    pub loss_burst_packets: f64,
    /// A two-state loss model in full; `loss` and `loss_burst_packets` are then unused.
    pub gilbert_elliott: Option<GilbertElliott>,
    /// The line is cut: every packet is lost. The rest stays set for when it is back.
    pub blackout: bool,
    /// Longer packets are lost, and nobody is told: a narrower line in the middle whose word does not get through. In IP bytes; 0: none.
    pub longest_bytes: u64,
    /// Extra delay from 0 up to this.
    pub jitter: Duration,
    /// The extra delay drifts smoothly between random points this far apart, and keeps the order.
    pub jitter_period: Duration,
    /// Each packet draws its extra delay alone instead (as netem does): reorders heavily.
    pub jitter_iid: bool,
    /// Share of packets held back by `reorder_by`, 0 to 1.
    pub reorder: f64,
    /// The delay of those.
    pub reorder_by: Duration,
    /// Share of packets delivered twice, 0 to 1.
    pub duplicate: f64,
}

/// The limit of a drop-tail queue. Without a rate limit nothing queues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueLimit {
    /// As much as the link sends in this time.
    Time(Duration),
    /// So many bytes.
    Bytes(u64),
}

/// The Gilbert-Elliott model: a good and a bad state, each with its own loss. All values 0 to 1, per packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// Probability of going from good to bad.
    pub good_to_bad: f64,
    /// Probability of going from bad to good; its inverse is the mean length of a bad spell in packets.
    pub bad_to_good: f64,
    /// Loss in the bad state.
    pub loss_bad: f64,
    /// Loss in the good state.
    pub loss_good: f64,
}

impl Default for DirectionOptions {
    fn default() -> Self {
        DirectionOptions {
            delay: Duration::ZERO,
            rate_bit_s: 0,
            overhead_bytes: 0,
            burst_bytes: 0,
            queue: QueueLimit::Time(Duration::from_millis(50)),
            loss: 0.0,
            loss_burst_packets: 0.0,
            gilbert_elliott: None,
            blackout: false,
            longest_bytes: 0,
            jitter: Duration::ZERO,
            jitter_period: Duration::from_millis(10),
            jitter_iid: false,
            reorder: 0.0,
            reorder_by: Duration::from_millis(1),
            duplicate: 0.0,
        }
    }
}

impl DirectionOptions {
    /// Sets the rate in Mbit/s; 0: unlimited. What makes no sense (negative, not a number, tiny) becomes a
    /// rate that [`check`](DirectionOptions::check) refuses, rather than an unlimited one.
    pub fn set_rate_mbit(&mut self, rate: f64) {
        self.rate_bit_s = if rate == 0.0 { 0 } else { (rate * 1e6).max(1.0) as u64 };
    }

    /// The queue's limit in bytes; 0 when the rate is unlimited.
    pub fn queue_limit_bytes(&self) -> u64 {
        match self.queue {
            _ if self.rate_bit_s == 0 => 0,
            QueueLimit::Bytes(bytes) => bytes,
            QueueLimit::Time(time) => (time.as_secs_f64() * self.rate_bit_s as f64 / 8.0) as u64,
        }
    }

    /// The two-state model in force: the one given, or the one that makes bursts of `loss_burst_packets`.
    pub(crate) fn loss_model(&self) -> Option<GilbertElliott> {
        if self.gilbert_elliott.is_some() {
            return self.gilbert_elliott;
        }
        (self.loss_burst_packets > 1.0 && self.loss < 1.0).then(|| GilbertElliott {
            good_to_bad: self.loss / self.loss_burst_packets / (1.0 - self.loss),
            bad_to_good: 1.0 / self.loss_burst_packets,
            loss_bad: 1.0,
            loss_good: 0.0,
        })
    }

    /// Checks that the values make sense; the error names the first that does not.
    pub fn check(&self) -> Result<(), Error> {
        let share = |name: &str, value: f64| {
            let fits = (0.0..=1.0).contains(&value);
            if fits { Ok(()) } else { Err(Error::option(name, value, "must be from 0 to 1")) }
        };
        share("loss", self.loss)?;
        share("reorder", self.reorder)?;
        share("dup", self.duplicate)?;
        if let Some(ge) = self.gilbert_elliott {
            for value in [ge.good_to_bad, ge.bad_to_good, ge.loss_bad, ge.loss_good] {
                share("ge", value)?;
            }
        } else if let Some(ge) = self.loss_model().filter(|ge| ge.good_to_bad > 1.0) {
            let problem = format!(
                "bursts that short cannot lose {:.0} % (the good state would end with probability {:.2})",
                self.loss * 100.0,
                ge.good_to_bad
            );
            return Err(Error::option("loss-burst", self.loss_burst_packets, &problem));
        }
        for (name, value) in [("delay", self.delay), ("jitter", self.jitter), ("reorder-ms", self.reorder_by)]
        {
            if value > DELAY_MAX {
                return Err(Error::option(name, format!("{value:?}"), "at most an hour"));
            }
        }
        if (1..RATE_MIN_BIT_S).contains(&self.rate_bit_s) {
            return Err(Error::option("rate", self.rate_bit_s as f64 / 1e6, "0, or 0.001 Mbit/s and more"));
        }
        Ok(())
    }
}

/// The link options of both directions, as [`DirectionOptions`] each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkOptions {
    /// For packets from A to B.
    pub a_to_b: DirectionOptions,
    /// For packets from B to A.
    pub b_to_a: DirectionOptions,
}

impl LinkOptions {
    /// Applies settings given as text, such as `("rate", "100")` for both directions or
    /// `("loss-ab", "0.01")` for one. The order of the pairs does not matter: a direction's own value counts
    /// before the common one, `delay` before `rtt`, `queue-kb` before `queue-ms`; within one name the last
    /// pair counts. The result is checked.
    ///
    /// Errors: an unknown name, a value that does not parse or makes no sense; `self` is then unchanged.
    pub fn apply<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), Error> {
        let pairs: Vec<(&str, &str)> = pairs.into_iter().collect();
        for (name, value) in &pairs {
            let common = name.strip_suffix("-ab").or(name.strip_suffix("-ba")).unwrap_or(name);
            if !SETTINGS.iter().any(|setting| setting.name == common) {
                return Err(Error::option(name, value, "there is no such link option"));
            }
        }
        let mut changed = self.clone();
        for setting in SETTINGS {
            for (suffix, to_ab, to_ba) in [("", true, true), ("-ab", true, false), ("-ba", false, true)] {
                let named = |name: &str| name.strip_prefix(setting.name) == Some(suffix);
                let Some((name, value)) = pairs.iter().rev().find(|(name, _)| named(name)) else { continue };
                for (wanted, direction) in [(to_ab, &mut changed.a_to_b), (to_ba, &mut changed.b_to_a)] {
                    if wanted {
                        (setting.set)(direction, value)
                            .map_err(|problem| Error::option(name, value, &problem))?;
                    }
                }
            }
        }
        changed.a_to_b.check()?;
        changed.b_to_a.check()?;
        *self = changed;
        Ok(())
    }
}

/// A link option as it is written on a command line. With `-ab` or `-ba` appended to its name it holds for
/// that direction only.
pub struct Setting {
    /// The name without dashes.
    pub name: &'static str,
    /// The name of the value in the help.
    pub value_name: &'static str,
    /// One line of help.
    pub help: &'static str,
    set: fn(&mut DirectionOptions, &str) -> Result<(), String>,
}

/// All link options. Where two set the same thing the later line counts (see [`LinkOptions::apply`]).
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "rtt",
        value_name: "MS",
        help: "Round trip; each direction gets half",
        set: |o, v| millis(v).map(|rtt| o.delay = rtt / 2),
    },
    Setting {
        name: "delay",
        value_name: "MS",
        help: "One-way delay",
        set: |o, v| millis(v).map(|value| o.delay = value),
    },
    Setting {
        name: "rate",
        value_name: "MBIT",
        help: "Link rate in Mbit/s of IP bytes; 0: unlimited (the default)",
        set: |o, v| number(v, RATE_MAX_MBIT).map(|mbit| o.set_rate_mbit(mbit)),
    },
    Setting {
        name: "overhead",
        value_name: "BYTES",
        help: "Extra bytes per packet on the link",
        set: |o, v| number(v, 65535.0).map(|bytes| o.overhead_bytes = bytes as u64),
    },
    Setting {
        name: "burst-kb",
        value_name: "KB",
        help: "Token bucket depth (default 0: strict serialisation)",
        set: |o, v| number(v, BYTES_MAX / 1e3).map(|kb| o.burst_bytes = (kb * 1e3) as u64),
    },
    Setting {
        name: "queue-ms",
        value_name: "MS",
        help: "Drop-tail limit at the link rate (default 50)",
        set: |o, v| millis(v).map(|time| o.queue = QueueLimit::Time(time)),
    },
    Setting {
        name: "queue-kb",
        value_name: "KB",
        help: "The same in 1000 bytes",
        set: |o, v| number(v, BYTES_MAX / 1e3).map(|kb| o.queue = QueueLimit::Bytes((kb * 1e3) as u64)),
    },
    Setting {
        name: "loss",
        value_name: "P",
        help: "Loss probability 0..1, independent per packet",
        set: |o, v| number(v, 1.0).map(|value| o.loss = value),
    },
    Setting {
        name: "loss-burst",
        value_name: "PACKETS",
        help: "The same average in Gilbert-Elliott bursts of so many packets on average",
        set: |o, v| number(v, 1e9).map(|value| o.loss_burst_packets = value),
    },
    Setting {
        name: "ge",
        value_name: "G2B,B2G,LB,LG",
        help: "Gilbert-Elliott in full: transitions good-bad and bad-good, loss in bad and in good state",
        set: |o, v| gilbert_elliott(v).map(|model| o.gilbert_elliott = Some(model)),
    },
    Setting {
        name: "blackout",
        value_name: "0|1",
        help: "1: the line is cut, every packet is lost",
        set: |o, v| switch(v).map(|value| o.blackout = value),
    },
    Setting {
        name: "longest",
        value_name: "BYTES",
        help: "Longer packets are lost, and nobody is told; 0: none (the default)",
        set: |o, v| number(v, 65535.0).map(|bytes| o.longest_bytes = bytes as u64),
    },
    Setting {
        name: "jitter",
        value_name: "MS",
        help: "Extra delay 0..MS, drifting smoothly, keeps order",
        set: |o, v| millis(v).map(|value| o.jitter = value),
    },
    Setting {
        name: "jitter-period",
        value_name: "MS",
        help: "Time between the drift's turning points (default 10)",
        set: |o, v| millis(v).map(|value| o.jitter_period = value),
    },
    Setting {
        name: "jitter-iid",
        value_name: "0|1",
        help: "1: draw jitter for each packet alone (as netem does; reorders)",
        set: |o, v| switch(v).map(|value| o.jitter_iid = value),
    },
    Setting {
        name: "reorder",
        value_name: "P",
        help: "Hold this share of packets back by --reorder-ms",
        set: |o, v| number(v, 1.0).map(|value| o.reorder = value),
    },
    Setting {
        name: "reorder-ms",
        value_name: "MS",
        help: "How long those are held back (default 1)",
        set: |o, v| millis(v).map(|value| o.reorder_by = value),
    },
    Setting {
        name: "dup",
        value_name: "P",
        help: "Duplicate this share of packets",
        set: |o, v| number(v, 1.0).map(|value| o.duplicate = value),
    },
];

fn number(text: &str, max: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=max).contains(&value) => Ok(value),
        _ => Err(format!("not a number from 0 to {max}")),
    }
}

fn millis(text: &str) -> Result<Duration, String> {
    Ok(Duration::from_secs_f64(number(text, DELAY_MAX.as_secs_f64() * 1e3)? / 1e3))
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("takes 0 or 1".to_string()),
    }
}

fn gilbert_elliott(text: &str) -> Result<GilbertElliott, String> {
    let values = text.split(',').map(|v| number(v, 1.0)).collect::<Result<Vec<f64>, String>>()?;
    let [good_to_bad, bad_to_good, loss_bad, loss_good] =
        values.try_into().map_err(|_| "takes four numbers, G2B,B2G,LOSS_BAD,LOSS_GOOD".to_string())?;
    Ok(GilbertElliott { good_to_bad, bad_to_good, loss_bad, loss_good })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(pairs: &[(&str, &str)]) -> Result<LinkOptions, String> {
        let mut options = LinkOptions::default();
        options.apply(pairs.iter().copied()).map_err(|e| e.to_string())?;
        Ok(options)
    }

    #[test]
    fn a_directions_own_value_counts_before_the_common_one() {
        let link = applied(&[("rate-ba", "100"), ("rate", "1000"), ("rtt", "12.5")]).unwrap();
        assert_eq!((link.a_to_b.rate_bit_s, link.b_to_a.rate_bit_s), (1_000_000_000, 100_000_000));
        assert_eq!(link.a_to_b.delay, Duration::from_micros(6250));
        // The default queue is 50 ms at the rate of each direction.
        assert_eq!((link.a_to_b.queue_limit_bytes(), link.b_to_a.queue_limit_bytes()), (6_250_000, 625_000));
    }

    #[test]
    fn delay_counts_before_rtt_and_queue_kb_before_queue_ms() {
        let link = applied(&[
            ("delay", "7"),
            ("rtt-ab", "100"),
            ("queue-kb", "64"),
            ("queue-ms", "9"),
            ("rate", "8"),
        ])
        .unwrap();
        assert_eq!(link.a_to_b.delay, Duration::from_millis(7));
        assert_eq!(link.b_to_a.queue_limit_bytes(), 64_000);
    }

    #[test]
    fn bad_values_are_named() {
        for (name, value, expected) in [
            ("loss", "1.5", "option loss = 1.5: not a number from 0 to 1"),
            ("loss-ab", "-1", "option loss-ab = -1: not a number from 0 to 1"),
            ("delay", "NaN", "option delay = NaN: not a number from 0 to 3600000"),
            ("ge", "0.1,0.2", "takes four numbers"),
            ("jitter-iid", "yes", "takes 0 or 1"),
            ("rate", "0.0001", "0, or 0.001 Mbit/s and more"),
            ("rate", "1e-30", "0, or 0.001 Mbit/s and more"),
            ("colour", "red", "no such link option"),
            ("colour-ab", "red", "no such link option"),
        ] {
            let problem = applied(&[(name, value)]).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
        let problem = applied(&[("loss", "0.95"), ("loss-burst", "2")]).unwrap_err();
        assert!(problem.contains("cannot lose 95 %"), "{problem}");
    }

    #[test]
    fn a_failed_change_leaves_the_options_alone() {
        let mut options = applied(&[("loss", "0.5")]).unwrap();
        let before = options.clone();
        assert!(options.apply([("rtt", "3"), ("dup", "2")]).is_err());
        assert_eq!(options, before);
    }

    #[test]
    fn loss_in_bursts_keeps_the_average() {
        let link = applied(&[("loss", "0.01"), ("loss-burst", "8")]).unwrap();
        let ge = link.a_to_b.loss_model().unwrap();
        let share_bad = ge.good_to_bad / (ge.good_to_bad + ge.bad_to_good);
        assert!((share_bad - 0.01).abs() < 1e-12);
        assert_eq!((ge.bad_to_good, ge.loss_bad, ge.loss_good), (0.125, 1.0, 0.0));
        assert_eq!(applied(&[("loss", "0.01")]).unwrap().a_to_b.loss_model(), None);
    }
}
