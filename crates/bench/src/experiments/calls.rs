//! Calls that carry nothing: how many a second, one after the other and 64 at a time.

use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::{LOOPBACK, PLACEMENT_LOOPBACK};
use crate::record::{Record, short};
use crate::tools::Stack;
use crate::transfer::{self, Window};

/// Calls at a time, as rxperf's `-t`, and the connections that OpenAFS's client needs for them, four calls each.
const PARALLEL: [(&str, &str); 2] = [("1", "1"), ("64", "16")];
/// The programs that are measured; OpenAFS twice for the noise.
const KINDS: [(&str, Stack); 3] =
    [("afar", Stack::Afar), ("OpenAFS", Stack::OpenAfs), ("OpenAFS again", Stack::OpenAfs)];

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let window = lab.choose(Window::new(1, 5), Window::new(1, 2));
    record.headline = "calls/s".into();
    record.placement = PLACEMENT_LOOPBACK.into();
    record.method = format!(
        "rxperf's rpc with no bytes either way (20 bytes of request, 4 of reply), each caller making one after the other for {} s \
         after {} s that are not counted. With 64 callers OpenAFS's client spreads them over 16 connections and its server has 64 \
         threads. Repetitions in turns; 'OpenAFS again' is the same as 'OpenAFS', so their difference is noise.",
        window.measure.as_secs(),
        window.omit.as_secs()
    );
    let mut cells = Vec::new();
    for (parallel, connections) in PARALLEL {
        for (name, who) in KINDS {
            let client =
                lab.tools.rxperf_client(who).and(["-c", "rpc", "-S", "0", "-R", "0", "-t", parallel]);
            let (client, server_options): (_, &[&str]) = match who {
                Stack::Afar => (client, &[]),
                Stack::OpenAfs => (client.and(["--connections", connections]), &["--threads", "64"]),
            };
            let client = client.and(window.rxperf());
            cells.push(Cell::new(
                [("who", name.to_string()), ("in parallel", parallel.to_string())],
                move |lab| {
                    let server = transfer::server(who, server_options);
                    let mut run = transfer::rxperf(lab, LOOPBACK, &server, &client, window)?;
                    run.figures.remove("Mbit/s");
                    Ok(run)
                },
            ));
        }
    }
    interleave(lab, record, &cells, lab.repeats(5))?;
    for (parallel, _) in PARALLEL {
        let [ours, theirs, again] = KINDS.map(|(name, _)| record.median("calls/s", &[name, parallel]));
        let Some((a, b)) = theirs.zip(again) else { continue };
        let note = format!("OpenAFS with itself: {} and {}", short(a), short(b));
        let claim = format!("Empty calls, {parallel} in parallel, no slower than OpenAFS with itself");
        record.at_least(&claim, ours, a.min(b), "calls/s", &note);
    }
    Ok(())
}
