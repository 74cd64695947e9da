//! Several flows over one link, each beginning when it is told to, and how many bytes each has carried by when. Knows what
//! rxperf and iperf3 print of that; not what is compared.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::Error;
use crate::lab::Lab;
use crate::network::Ends;
use crate::process::Process;
use crate::record::{Curve, round};
use crate::tools::{Invocation, Stack};

/// The first port of iperf3's servers; each takes one client and then ends.
const IPERF_PORT: u16 = 5201;
/// More than is carried in a minute would have to be two calls: the protocol says less than 2^32.
const CALL_BYTES: &str = "4000000000";
/// The time between two notes of afar's client about its bytes, ms. iperf3 makes one every second.
const SAMPLE_MS: &str = "100";
/// The time within which a server must listen, and a client must end after its time.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Something that sends all the time.
#[derive(Clone, Debug)]
pub(crate) enum Flow {
    /// A process of afar's rxperf client, with so many calls at once, from this address.
    Afar { direction: &'static str, calls: usize, from: Ipv4Addr },
    /// TCP from client to server, with this congestion control.
    Tcp(&'static str),
}

/// A flow and its time.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) flow: Flow,
    /// The time when it begins after the first, and for which it lasts. Whole seconds, as the programs take them.
    pub(crate) begin: Duration,
    pub(crate) length: Duration,
}

/// The progress of a flow: seconds since the first one began, and bytes by then.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    samples: Vec<(f64, f64)>,
}

/// The result of all.
pub(crate) struct Seen {
    pub(crate) commands: Vec<String>,
    /// The flows, in the order of the plan.
    pub(crate) flows: Vec<Progress>,
}

/// Runs them all, each from the client's end, and waits for their ends. They are to be in the order of their beginnings.
pub(crate) fn run(lab: &Lab, ends: Ends<'_>, plan: &[Planned]) -> Result<Seen, Error> {
    let mut commands = Vec::new();
    let mut servers = Vec::new();
    let mut start = |invocation: &Invocation, place| {
        commands.push(invocation.to_string());
        invocation.start(place, &lab.interrupt)
    };
    if plan.iter().any(|planned| matches!(planned.flow, Flow::Afar { .. })) {
        let mut server = start(&lab.tools.rxperf_server(Stack::Afar, ends.port), ends.server)?;
        server.wait_for_line("ready ", READY_TIMEOUT)?;
        servers.push(server);
    }
    let mut clients = Vec::new();
    for (planned, port) in plan.iter().zip(IPERF_PORT..) {
        let seconds = planned.length.as_secs().to_string();
        clients.push(match planned.flow {
            Flow::Afar { direction, calls, from } => {
                let client = lab.tools.rxperf_client(Stack::Afar).and(["-c", direction, "-b", CALL_BYTES]);
                let (host, port, calls) = (ends.host.to_string(), ends.port.to_string(), calls.to_string());
                let client = client.and(["-s", &host, "-p", &port, "-t", &calls, "--sample", SAMPLE_MS]);
                client.and(["--bind", &from.to_string(), "--seconds", &seconds])
            }
            Flow::Tcp(control) => {
                let (host, port) = (ends.host.to_string(), port.to_string());
                let mut server =
                    start(&lab.tools.iperf3().and(["-s", "-1", "--forceflush", "-p", &port]), ends.server)?;
                server.wait_for_line("Server listening", READY_TIMEOUT)?;
                servers.push(server);
                let client = lab.tools.iperf3().and(["-c", &host, "-p", &port, "-J", "-i", "1"]);
                client.and(["-C", control, "-t", &seconds])
            }
        });
    }
    let origin = Instant::now();
    let mut running: Vec<(Process, f64)> = Vec::new();
    for (planned, client) in plan.iter().zip(&clients) {
        lab.interrupt.sleep_until(origin + planned.begin)?;
        let process = start(client, ends.client)?;
        running.push((process, origin.elapsed().as_secs_f64()));
    }
    let mut flows = Vec::new();
    for ((planned, client), (process, begin)) in plan.iter().zip(&clients).zip(running) {
        let output = process.finish(planned.length + END_TIMEOUT)?;
        let report: Value = serde_json::from_str(&output)
            .map_err(|e| Error::run(format!("{client}: what it printed is no JSON: {e}")))?;
        let samples = match planned.flow {
            Flow::Afar { .. } => samples(&report),
            Flow::Tcp(_) => intervals(&report),
        };
        let problem = || Error::run(format!("{client}: its JSON does not say what was carried by when"));
        flows.push(Progress::new(begin, &samples.ok_or_else(problem)?));
    }
    Ok(Seen { commands, flows })
}

/// Seconds and bytes of rxperf's `samples`, milliseconds and bytes.
fn samples(report: &Value) -> Option<Vec<(f64, f64)>> {
    let pairs = report["samples"].as_array()?.iter();
    let samples: Vec<_> =
        pairs.map(|pair| Some((pair[0].as_f64()? / 1e3, pair[1].as_f64()?))).collect::<Option<_>>()?;
    (!samples.is_empty()).then_some(samples)
}

/// Seconds and bytes so far of iperf3's `intervals`.
fn intervals(report: &Value) -> Option<Vec<(f64, f64)>> {
    let mut bytes = 0.0;
    let intervals = report["intervals"].as_array()?.iter().map(|interval| {
        let sum = &interval["sum"];
        bytes += sum["bytes"].as_f64()?;
        Some((sum["end"].as_f64()?, bytes))
    });
    let samples: Vec<_> = intervals.collect::<Option<_>>()?;
    (!samples.is_empty()).then_some(samples)
}

impl Progress {
    /// Makes the progress of a flow that began at `begin`, its samples counted from there.
    pub(crate) fn new(begin: f64, samples: &[(f64, f64)]) -> Progress {
        let later = samples.iter().map(|(at, bytes)| (begin + at, *bytes));
        Progress { samples: [(begin, 0.0)].into_iter().chain(later).collect() }
    }

    /// Bytes by a time, between samples on a straight line.
    fn bytes_at(&self, at: f64) -> f64 {
        let next = self.samples.partition_point(|(time, _)| *time <= at);
        let Some(before) = next.checked_sub(1).map(|i| self.samples[i]) else { return 0.0 };
        match self.samples.get(next) {
            Some(after) => before.1 + (after.1 - before.1) * (at - before.0) / (after.0 - before.0),
            None => before.1,
        }
    }

    /// Mean rate between two times.
    pub(crate) fn mbit(&self, from: f64, to: f64) -> f64 {
        (self.bytes_at(to) - self.bytes_at(from)) * 8.0 / (to - from) / 1e6
    }

    /// The time when it began.
    pub(crate) fn begin(&self) -> f64 {
        self.samples.first().map_or(0.0, |first| first.0)
    }

    /// The time when it was last heard of.
    pub(crate) fn end(&self) -> f64 {
        self.samples.last().map_or(0.0, |last| last.0)
    }

    /// Rate over each second.
    pub(crate) fn curve(&self, name: &str) -> Curve {
        let seconds = self.begin().ceil() as u32 + 1..=self.end() as u32;
        let points = seconds.map(|at| (f64::from(at), round(self.mbit(f64::from(at) - 1.0, f64::from(at)))));
        Curve { name: name.to_string(), points: points.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_both_programs_print_comes_to_the_same() {
        let rxperf = json!({ "samples": [[500.0, 50], [1000.0, 100], [2000.0, 300]] });
        let sum = |end: f64, bytes: u64| json!({ "sum": { "start": end - 1.0, "end": end, "bytes": bytes } });
        let iperf3 = json!({ "intervals": [sum(1.0, 100), sum(2.0, 200)] });
        let ours = Progress::new(3.0, &samples(&rxperf).unwrap());
        let theirs = Progress::new(3.0, &intervals(&iperf3).unwrap());
        for at in [0.0, 3.0, 3.25, 4.0, 4.5, 5.0, 9.0] {
            assert_eq!(ours.bytes_at(at), theirs.bytes_at(at), "{at}");
        }
        assert_eq!((ours.bytes_at(4.5), ours.begin(), ours.end()), (200.0, 3.0, 5.0));
    }

    #[test]
    fn nothing_measured_is_no_progress() {
        assert_eq!(samples(&json!({ "samples": [] })), None);
        assert_eq!(intervals(&json!({ "error": "no route" })), None);
    }

    #[test]
    fn rates_are_of_the_time_that_is_asked_for() {
        let progress = Progress::new(0.5, &[(1.0, 1e6), (2.0, 4e6)]);
        assert_eq!(progress.mbit(1.5, 2.5), 24.0);
        let curve = progress.curve("x");
        assert_eq!(curve.points, [(2.0, 16.0)]);
    }
}
