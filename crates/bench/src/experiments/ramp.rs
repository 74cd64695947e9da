//! The number of round trips that a first call takes until it has the link, and a second one on the same
//! connection a second later.

use std::time::Duration;

use serde_json::Value;

use super::{DIRECTIONS, RTTS, rtt_text};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::{CEILING_MBIT, LINK_TEXT, LinkSpec, PLACEMENT_LINK, over_link};
use crate::record::{Curve, Record, Run, round};
use crate::tools::Stack;
use crate::transfer::{self, Window};

/// The share of the link that counts as having it.
const SHARE: f64 = 0.9;
/// A call is as long as the link needs for so many round trips: well beyond the goals, to see what comes after.
const CALL_RTTS: f64 = 40.0;
/// The pause between the calls, ms.
const PAUSE_MS: &str = "1000";
/// Points of a curve for each round trip.
const POINTS_PER_RTT: f64 = 4.0;
/// Round trips after the rate was reached over which it is looked whether it stays.
const AFTER_RTTS: f64 = 5.0;
/// The two calls, with their goals in round trips.
const CALLS: [(&str, f64); 2] = [("first call", 12.0), ("second call", 3.0)];

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    record.headline = "first call, RTTs".into();
    record.placement = PLACEMENT_LINK.into();
    record.method = format!(
        "{LINK_TEXT} Two calls of the same {CALL_RTTS} RTTs' worth of bytes on a connection, the second {PAUSE_MS} ms after \
         the end of the first. Time is counted from a call's first packet, at the client, until the bytes of the last RTT \
         make {SHARE} of {CEILING_MBIT} Mbit/s; so it contains the request's own round trip, the RTT over which the rate \
         is measured, and in the first call the server's ping that shows the client to be reachable. Bytes are those that \
         have come (recv) or that were acknowledged (send). 'After' is the mean rate of the {AFTER_RTTS} RTTs that follow, \
         as a share of {CEILING_MBIT} Mbit/s."
    );
    let mut cells = Vec::new();
    let rtts = lab.choose(&RTTS[..], &RTTS[..1]);
    for rtt in rtts.iter().copied() {
        let bytes = CALL_RTTS * rtt.as_secs_f64() * CEILING_MBIT * 1e6 / 8.0;
        // Both calls at a quarter of the rate, and the pause: beyond that only the CPU figures suffer.
        let window = Window { omit: Duration::ZERO, measure: rtt.mul_f64(8.0 * CALL_RTTS) };
        for direction in DIRECTIONS {
            let client =
                lab.tools.rxperf_client(Stack::Afar).and(["-c", direction, "-b", &format!("{bytes:.0}")]);
            let client = client.and(["--calls", "2", "--pause", PAUSE_MS, "--intervals", "1"]);
            cells.push(Cell::new(
                [("RTT", rtt_text(rtt)), ("direction", direction.to_string())],
                move |lab| {
                    let run = over_link(lab, &LinkSpec::wan(rtt), |lab, ends| {
                        transfer::rxperf(lab, ends, &transfer::server(Stack::Afar, &[]), &client, window)
                    })?;
                    evaluate(run, rtt)
                },
            ));
        }
    }
    interleave(lab, record, &cells, lab.repeats(5))?;
    for (call, goal) in CALLS {
        for rtt in rtts.iter().copied().map(rtt_text) {
            for direction in DIRECTIONS {
                let measured = record.median(&format!("{call}, RTTs"), &[&rtt, direction]);
                let claim = format!("Whole link in a {call}, {rtt}, {direction}");
                record.at_most(&claim, measured, goal, "RTTs", "");
            }
        }
    }
    Ok(())
}

/// Turns the client's intervals into figures and curves.
fn evaluate(mut run: Run, rtt: Duration) -> Result<Run, Error> {
    let report = run.report.as_object_mut();
    let intervals = report.and_then(|fields| fields.remove("intervals")).unwrap_or(Value::Null);
    // These are of the calls as wholes, with their pause.
    run.figures.remove("Mbit/s");
    run.figures.remove("calls/s");
    run.figures.retain(|name, _| !name.contains("CPU s/GB"));
    for (index, (call, _)) in CALLS.iter().enumerate() {
        let samples = samples(&intervals[index])
            .ok_or_else(|| Error::run(format!("the client's JSON has no intervals of the {call}")))?;
        let progress = Progress { samples, rtt_ms: rtt.as_secs_f64() * 1e3 };
        let reached = progress.reached();
        if reached.is_none() {
            run.problems.push(format!("the {call} never had {SHARE} of the link; its whole length is taken"));
        }
        let at = reached.unwrap_or_else(|| progress.length_rtts());
        run.figures.insert(format!("{call}, RTTs"), at);
        if let Some(after) = progress.share_after(at) {
            run.figures.insert(format!("{call}, after"), after);
        }
        run.curves.push(Curve { name: call.to_string(), points: progress.curve() });
    }
    Ok(run)
}

/// A list of pairs of milliseconds and bytes, of at least two.
fn samples(list: &Value) -> Option<Vec<(f64, f64)>> {
    let pairs = list.as_array()?.iter().map(|pair| Some((pair[0].as_f64()?, pair[1].as_f64()?)));
    let samples: Vec<_> = pairs.collect::<Option<_>>()?;
    (samples.len() >= 2).then_some(samples)
}

/// The progress of a call: milliseconds and bytes so far.
struct Progress {
    samples: Vec<(f64, f64)>,
    rtt_ms: f64,
}

impl Progress {
    /// Bytes at a time, between samples on a straight line.
    fn bytes_at(&self, ms: f64) -> f64 {
        let next = self.samples.partition_point(|(at, _)| *at <= ms);
        let before = if next == 0 { (0.0, 0.0) } else { self.samples[next - 1] };
        match self.samples.get(next) {
            Some(after) if after.0 > before.0 => {
                before.1 + (after.1 - before.1) * ((ms - before.0) / (after.0 - before.0)).clamp(0.0, 1.0)
            }
            _ => before.1,
        }
    }

    /// Mbit/s over the round trips before `ms`.
    fn rate(&self, ms: f64, rtts: f64) -> f64 {
        let span = self.rtt_ms * rtts;
        (self.bytes_at(ms) - self.bytes_at(ms - span).max(0.0)) * 8.0 / span / 1e3
    }

    fn length_rtts(&self) -> f64 {
        self.samples.last().map_or(0.0, |last| last.0) / self.rtt_ms
    }

    /// The time when the rate over one round trip first was that of the link, in round trips.
    fn reached(&self) -> Option<f64> {
        let bound = SHARE * CEILING_MBIT;
        self.samples.iter().find(|(at, _)| self.rate(*at, 1.0) >= bound).map(|(at, _)| at / self.rtt_ms)
    }

    /// The share of the link in the round trips after, if the call goes on for so long.
    fn share_after(&self, rtts: f64) -> Option<f64> {
        let end = rtts + AFTER_RTTS;
        (end <= self.length_rtts()).then(|| self.rate(end * self.rtt_ms, AFTER_RTTS) / CEILING_MBIT)
    }

    /// The rate over the last round trip, by round trips.
    fn curve(&self) -> Vec<(f64, f64)> {
        let count = (self.length_rtts() * POINTS_PER_RTT).min(1000.0) as usize;
        let points = (0..=count).map(|i| i as f64 / POINTS_PER_RTT);
        points.map(|rtts| (rtts, round(self.rate(rtts * self.rtt_ms, 1.0)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_doubles_each_round_trip_reaches_the_link_when_its_flight_does() {
        // 10 ms, 1202.5 kB a round trip are the ceiling; a flight of 10 % doubles, to 100 % in the fifth.
        let full = CEILING_MBIT * 1e6 / 8.0 * 0.01;
        let mut samples = vec![(0.0, 0.0)];
        let mut bytes = 0.0;
        for ms in 1..=300 {
            let flight: f64 = 0.1 * 2f64.powi((ms - 1) / 10);
            bytes += flight.min(1.0) * full / 10.0;
            samples.push((f64::from(ms), bytes));
        }
        let progress = Progress { samples, rtt_ms: 10.0 };
        let reached = progress.reached().unwrap();
        assert!((4.4..=4.9).contains(&reached), "{reached}");
        assert!((progress.share_after(reached).unwrap() - 1.0).abs() < 0.02);
        let curve = progress.curve();
        assert_eq!(curve.len(), 121);
        assert!((curve[4].1 - 96.2).abs() < 0.1, "{:?}", curve[4]);
        assert!((curve[120].1 - CEILING_MBIT).abs() < 1.0, "{:?}", curve[120]);
    }

    #[test]
    fn a_call_that_never_gets_there_has_no_time() {
        let samples = vec![(0.0, 0.0), (10.0, 1000.0), (20.0, 2000.0)];
        assert_eq!(Progress { samples, rtt_ms: 5.0 }.reached(), None);
        assert_eq!(samples_of_nothing(), None);
    }

    fn samples_of_nothing() -> Option<Vec<(f64, f64)>> {
        samples(&serde_json::json!([[0, 0]]))
    }
}
