//! Our Rx with OpenAFS's, in both roles, beside OpenAFS's with itself; and a receiver as stock Linux clients are, which
//! offers 255 packets and makes one call of 128 KiB after the other.

use std::time::Duration;

use super::DIRECTIONS;
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::{LINK_TEXT, LOOPBACK, LinkSpec, PLACEMENT_LINK, PLACEMENT_LOOPBACK, over_link};
use crate::record::{Record, Run, short};
use crate::tools::{Invocation, Stack};
use crate::transfer::{self, Window};

/// More than any of these can carry in a run, and less than the 2^31 that OpenAFS's rxperf can say.
const CALL_BYTES: &str = "2000000000";
/// The distance.
const RTT: Duration = Duration::from_micros(12_500);
/// None is the loopback interface.
const DISTANCES: [(&str, Option<Duration>); 2] = [("0 ms", None), ("12.5 ms", Some(RTT))];
/// Client and server, with options for both. OpenAFS with itself as its servers run unless told otherwise, without
/// jumbograms (`-j`), twice: what the two rows differ by is noise. And with jumbograms, which we take but do not send
/// (docs/decisions/0002).
const PAIRS: [(&str, Stack, Stack, &[&str]); 5] = [
    ("afar to OpenAFS", Stack::Afar, Stack::OpenAfs, &[]),
    ("OpenAFS to afar", Stack::OpenAfs, Stack::Afar, &[]),
    ("OpenAFS to OpenAFS", Stack::OpenAfs, Stack::OpenAfs, &["-j"]),
    ("OpenAFS to OpenAFS again", Stack::OpenAfs, Stack::OpenAfs, &["-j"]),
    ("OpenAFS to OpenAFS, jumbograms", Stack::OpenAfs, Stack::OpenAfs, &[]),
];
/// The receiver that offers 255 packets: what its calls carry, and what they are to make in Mbit/s (8 MB/s).
const SMALL_CALL_BYTES: &str = "131072";
const SMALL_CALLS_GOAL_MBIT: f64 = 64.0;

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let window = lab.choose(Window::new(2, 8), Window::new(1, 3));
    let (omit, measure) = (window.omit.as_secs(), window.measure.as_secs());
    record.headline = "Mbit/s".into();
    record.placement = format!("12.5 ms: {PLACEMENT_LINK} 0 ms: {PLACEMENT_LOOPBACK}");
    record.method = format!(
        "'A to B': A is the client, B the server; recv: from server to client. One call, level clear, {measure} s measured after \
         {omit} s that are not. 0 ms is the loopback interface. 12.5 ms: {LINK_TEXT} OpenAFS is Debian's library with its \
         defaults, but that it sends no jumbograms to itself either (-j), as is the default of its servers; a row shows it with \
         them. Repetitions in turns; OpenAFS with itself is measured twice, the slower of the two medians is the bound. \
         '128 KiB calls': afar's client without its announcement, offering 255 packets, receives one call of \
         {SMALL_CALL_BYTES} bytes after the other."
    );
    for (distance, rtt) in DISTANCES {
        let mut cells = Vec::new();
        for direction in DIRECTIONS {
            for (name, from, to, options) in PAIRS {
                let client = lab.tools.rxperf_client(from).and(["-c", direction, "-b", CALL_BYTES]);
                let client = client.and(window.rxperf()).and(options);
                let labels = labels(distance, name, direction);
                cells.push(Cell::new(labels, move |lab| one(lab, rtt, to, options, &client, window)));
            }
        }
        interleave(lab, record, &cells, lab.repeats(3))?;
    }
    small_calls(lab, record)?;

    for (distance, _) in DISTANCES {
        for direction in DIRECTIONS {
            let [to_stock, from_stock, stock, again, jumbo] =
                PAIRS.map(|(name, ..)| record.median("Mbit/s", &[distance, name, direction]));
            let (Some((a, b)), Some(jumbo)) = (stock.zip(again), jumbo) else { continue };
            let note = format!(
                "OpenAFS with itself: {} and {}, with jumbograms {}",
                short(a),
                short(b),
                short(jumbo)
            );
            for (name, measured) in [(PAIRS[0].0, to_stock), (PAIRS[1].0, from_stock)] {
                let claim = format!("{name}, {distance}, {direction}, no slower than OpenAFS with itself");
                record.at_least(&claim, measured, a.min(b), "Mbit/s", &note);
            }
        }
    }
    let [ours, theirs] =
        [Stack::Afar, Stack::OpenAfs].map(|who| record.median("Mbit/s", &[&small_name(who), "12.5 ms"]));
    let note = format!(
        "in MB/s: {} from afar, {} from OpenAFS",
        ours.map_or("-".into(), |mbit| short(mbit / 8.0)),
        theirs.map_or("-".into(), |mbit| short(mbit / 8.0))
    );
    let claim = "128 KiB calls to a receiver of 255 packets, 12.5 ms";
    record.at_least(claim, ours, SMALL_CALLS_GOAL_MBIT, "Mbit/s", &note);
    Ok(())
}

/// Calls of 128 KiB by a receiver that offers 255 packets, from our server and OpenAFS's.
fn small_calls(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let window = lab.choose(Window::new(0, 10), Window::new(0, 3));
    let client = lab.tools.rxperf_client(Stack::Afar).and(["-c", "recv", "-b", SMALL_CALL_BYTES]);
    let client = client.and(["--stock-like", "-W", "255"]).and(window.rxperf());
    let client = &client;
    let cells = [Stack::Afar, Stack::OpenAfs].map(|server| {
        let labels = labels("12.5 ms", &small_name(server), "recv");
        Cell::new(labels, move |lab| one(lab, Some(RTT), server, &[], client, window))
    });
    interleave(lab, record, &cells, lab.repeats(3))
}

/// One run, over a link or on the loopback interface.
fn one(
    lab: &Lab,
    rtt: Option<Duration>,
    server: Stack,
    server_options: &[&str],
    client: &Invocation,
    window: Window,
) -> Result<Run, Error> {
    let server = transfer::server(server, server_options);
    match rtt {
        None => transfer::rxperf(lab, LOOPBACK, &server, client, window),
        Some(rtt) => over_link(lab, &LinkSpec::wan(rtt), |lab, ends| {
            transfer::rxperf(lab, ends, &server, client, window)
        }),
    }
}

fn small_name(server: Stack) -> String {
    format!("128 KiB calls from {}", server.name())
}

fn labels(distance: &str, pair: &str, direction: &str) -> [(&'static str, String); 3] {
    [("RTT", distance.to_string()), ("who", pair.to_string()), ("direction", direction.to_string())]
}
