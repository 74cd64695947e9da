//! The curves over time that a plot shows of a trace. `draw` chooses colours and places.

use crate::trace::{Event, TraceFile};

/// Points of the rate's curve: fewer hide how it goes up and down, more show single ACKs.
const RATE_BINS: usize = 150;

/// Time in seconds, and a value.
pub(super) type Point = (f64, f64);

/// The curves; empty where the trace has nothing of the kind.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Curves {
    /// True if the call mostly sent: then numbers are of the packets sent, otherwise of those received.
    pub(super) is_sender: bool,
    /// True if there were more losses than are shown one by one.
    pub(super) is_cut: bool,
    /// The time that it took, in seconds.
    pub(super) duration: f64,
    /// Bytes of plain text in the direction that is shown.
    pub(super) bytes: u64,
    /// The highest packet sent for the first time, or received.
    pub(super) highest: Vec<Point>,
    /// The first packet that the receiver lacks, as ACKs say.
    pub(super) next: Vec<Point>,
    /// The last packet that the receiver's window allows.
    pub(super) allowed: Vec<Point>,
    /// Packets found lost.
    pub(super) lost: Vec<Point>,
    /// Packets sent again; at the receiver, those that came after later ones.
    pub(super) again: Vec<Point>,
    /// The times when no ACK came for a whole timeout, and when the peer was asked.
    pub(super) timeouts: Vec<f64>,
    pub(super) probes: Vec<f64>,
    /// Phases of the congestion controller, from when.
    pub(super) phases: Vec<(f64, String)>,
    /// Bytes.
    pub(super) in_flight: Vec<Point>,
    pub(super) window: Vec<Point>,
    /// Packets behind the first that is missing; only of a receiver.
    pub(super) behind: Vec<Point>,
    /// Bits a second: at which DATA arrived, and at which it was paced.
    pub(super) arriving: Vec<Point>,
    pub(super) pacing: Vec<Point>,
    /// Milliseconds: time, smallest, largest.
    pub(super) rtt: Vec<(f64, f64, f64)>,
}

impl Curves {
    pub(super) fn of(trace: &TraceFile) -> Self {
        let (mut sent, mut received) = (0, 0);
        for line in &trace.lines {
            match line.event {
                Event::Sent { bytes, .. } => sent += bytes,
                Event::Received { bytes, .. } => received += bytes,
                _ => {}
            }
        }
        let mut curves = Self {
            is_sender: sent >= received,
            bytes: sent.max(received),
            duration: trace.lines.last().map_or(0.0, |line| seconds(line.ns)),
            ..Self::default()
        };
        let is_mark = |event: &Event| matches!(event, Event::Lost { .. } | Event::Resent { .. });
        let last_mark = trace.lines.iter().rev().find(|line| is_mark(&line.event)).map(|line| line.ns);
        let last_mark = last_mark.filter(|_| trace.heading.marks_left_out > 0);
        curves.is_cut = last_mark.is_some();
        let (mut top, mut next) = (0, 1);
        let mut arrived = Vec::new();
        for line in &trace.lines {
            let at = seconds(line.ns);
            match &line.event {
                Event::Sent { last, in_flight, .. } if curves.is_sender => {
                    top = top.max(*last);
                    curves.highest.push((at, f64::from(top)));
                    curves.in_flight.push((at, *in_flight as f64));
                }
                Event::Acked(acked) => {
                    if let Some((min, max)) = acked.rtt_ns {
                        curves.rtt.push((at, min as f64 / 1e6, max as f64 / 1e6));
                    }
                    if curves.is_sender {
                        curves.next.push((at, f64::from(acked.first)));
                        let allowed = acked.first.saturating_add(acked.peer_window).saturating_sub(1);
                        curves.allowed.push((at, f64::from(allowed)));
                        curves.in_flight.push((at, acked.in_flight as f64));
                        curves.window.push((at, acked.window as f64));
                        curves.pacing.extend(acked.rate.map(|rate| (at, rate as f64 * 8.0)));
                        arrived.push((at, acked.acked));
                        // The marks may have run out; that something was lost stands here too.
                        if acked.lost > 0 && last_mark.is_some_and(|last| line.ns > last) {
                            curves.lost.push((at, f64::from(acked.first)));
                        }
                    }
                }
                Event::Received { first, last, bytes, .. } if !curves.is_sender => {
                    if *first < top {
                        curves.again.push((at, f64::from(*first)));
                    }
                    top = top.max(*last);
                    curves.highest.push((at, f64::from(top)));
                    curves.behind.push((at, f64::from((top + 1).saturating_sub(next.max(1)))));
                    arrived.push((at, *bytes));
                }
                Event::AckSent { next: missing, window, .. } if !curves.is_sender => {
                    next = *missing;
                    curves.next.push((at, f64::from(next)));
                    let allowed = next.saturating_add(*window).saturating_sub(1);
                    curves.allowed.push((at, f64::from(allowed)));
                    curves.behind.push((at, f64::from((top + 1).saturating_sub(next))));
                }
                Event::AllAcked {} if curves.is_sender => curves.next.push((at, f64::from(top + 1))),
                Event::Lost { seq } if curves.is_sender => curves.lost.push((at, f64::from(*seq))),
                Event::Resent { seq } if curves.is_sender => curves.again.push((at, f64::from(*seq))),
                Event::TimedOut {} => curves.timeouts.push(at),
                Event::Probed {} => curves.probes.push(at),
                Event::Phase { name } if curves.is_sender => curves.phases.push((at, name.clone())),
                _ => {}
            }
        }
        let step = (curves.duration / RATE_BINS as f64).max(seconds(trace.heading.span_ns));
        curves.arriving = rate(&arrived, curves.duration, step);
        curves
    }

    /// A sentence with the figures.
    pub(super) fn summary(&self) -> String {
        let did = if self.is_sender { "sent" } else { "received" };
        let mbit = if self.duration > 0.0 { self.bytes as f64 * 8.0 / 1e6 / self.duration } else { 0.0 };
        let mut text =
            format!("{} {did} in {:.3} s, {mbit:.0} Mbit/s", bytes(self.bytes as f64), self.duration);
        let rtt = self.rtt.iter().map(|(_, min, _)| *min).reduce(f64::min);
        let most = self.rtt.iter().map(|(.., max)| *max).reduce(f64::max);
        if let (Some(min), Some(max)) = (rtt, most) {
            text += &format!("; round trip {min:.1} to {max:.1} ms");
        }
        text += &match self.is_sender {
            true => {
                let least = if self.is_cut { "more than " } else { "" };
                format!("; {least}{} packets lost, {least}{} sent again", self.lost.len(), self.again.len())
            }
            false => format!("; {} packets came late", self.again.len()),
        };
        if !self.timeouts.is_empty() {
            text += &format!(", {} timeouts", self.timeouts.len());
        }
        text
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Bytes with a unit.
pub(super) fn bytes(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n if n >= 1e3 => format!("{:.0} kB", n / 1e3),
        n => format!("{n:.0} B"),
    }
}

/// Bits a second in steps of so many seconds, from what arrived when. A step that the call's end cuts short is left out.
fn rate(arrived: &[(f64, u64)], duration: f64, step: f64) -> Vec<Point> {
    if duration <= 0.0 || step <= 0.0 {
        return Vec::new();
    }
    let mut sums = vec![0u64; ((duration / step) + 1e-6) as usize];
    for (at, bytes) in arrived {
        if let Some(sum) = sums.get_mut((at / step) as usize) {
            *sum += bytes;
        }
    }
    let points = sums.iter().enumerate();
    points.map(|(i, sum)| ((i as f64 + 0.5) * step, *sum as f64 * 8.0 / step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::sample;

    #[test]
    fn a_sender_shows_its_losses_and_resends_where_they_were() {
        let curves = Curves::of(&TraceFile::from(&sample()));
        assert!(curves.is_sender);
        assert_eq!((&curves.lost[..], &curves.again[..]), (&[(0.04, 3.0)][..], &[(0.05, 3.0)][..]));
        assert_eq!(curves.timeouts, [0.07]);
        assert_eq!(curves.next, [(0.03, 3.0), (0.08, 10.0)]);
        assert_eq!(curves.allowed, [(0.03, 257.0)]);
        assert_eq!(curves.pacing, [(0.03, 1e7)]);
        assert_eq!(curves.rtt, [(0.03, 20.0, 25.0)]);
        let summary = curves.summary();
        assert!(
            summary.contains("13 kB sent in 0.100 s") && summary.contains("more than 1 packets lost"),
            "{summary}"
        );
    }

    #[test]
    fn a_receiver_shows_what_came_late() {
        let mut trace = TraceFile::from(&sample());
        let received = |ns, seq| crate::trace::Line {
            ns,
            event: Event::Received {
                first: seq,
                last: seq,
                packets: 1,
                bytes: 1_000_000,
                held: 0,
                duplicates: 0,
                refused: 0,
            },
        };
        trace.lines.extend([received(200_000_000, 5), received(300_000_000, 4)]);
        let curves = Curves::of(&trace);
        assert!(!curves.is_sender && curves.lost.is_empty());
        assert_eq!(curves.again, [(0.3, 4.0)]);
        assert_eq!(curves.highest.last(), Some(&(0.3, 5.0)));
    }

    #[test]
    fn a_rate_is_what_came_in_each_step() {
        let points = rate(&[(0.0, 1000), (0.05, 1000), (0.15, 500)], 0.2, 0.1);
        assert_eq!(points.len(), 2);
        assert!((points[0].1 - 160_000.0).abs() < 1.0 && (points[1].1 - 40_000.0).abs() < 1.0);
        assert!(rate(&[], 0.0, 0.0).is_empty());
    }
}
