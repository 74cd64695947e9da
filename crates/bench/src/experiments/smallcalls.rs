//! Files made with 8 KiB in them, and files looked at, per second and per second of the server's CPU time.

use std::time::Duration;

use crate::cells::{CELLS_TEXT, Cells, KINDS, PLACEMENT_CELL};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::record::{Record, short};

/// The operations, as the worker and the record call them, and how many run at a time.
const CASES: [(&str, &str, &str); 4] = [
    ("create", "CreateFile and StoreData", "1"),
    ("create", "CreateFile and StoreData", "64"),
    ("status", "FetchStatus", "1"),
    ("status", "FetchStatus", "64"),
];
/// The factor by which the operations for each second of CPU time should exceed OpenAFS's.
const GOAL: f64 = 3.0;
/// Beyond the time that is measured: connections, a thousand files.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The figure that is compared.
const PER_CPU: &str = "operations/server CPU s";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let seconds = lab.choose("8", "2");
    record.headline = "operations/s".into();
    record.placement = PLACEMENT_CELL.into();
    record.method = format!(
        "{CELLS_TEXT} 'CreateFile and StoreData' is one operation of two calls, the second with 8192 bytes, in a new volume, each \
         caller in directories of its own of at most 2000 files; nothing asks for a sync to the disk. 'FetchStatus' goes round 1000 \
         files. Each caller makes one call after the other, for {seconds} s after a quarter of that which is not counted; what is refused with VBUSY is asked for again after 2 ms. Repetitions in \
         turns; 'OpenAFS again' is the same as 'OpenAFS', so their difference is noise."
    );
    let cells = Cells::start(lab)?;
    let cells = &cells;
    let mut compared = Vec::new();
    for (what, title, parallel) in CASES {
        for (name, who) in KINDS {
            let labels = [
                ("what", title.to_string()),
                ("in parallel", parallel.to_string()),
                ("server", name.to_string()),
            ];
            compared.push(Cell::new(labels, move |lab| {
                let served = cells.of(who)?;
                let volume = served.volume(lab, "small")?;
                let client = served.client(lab, what, [&volume, parallel, seconds]);
                let measured = served.measure(lab, &client, TIMEOUT);
                served.remove("small")?;
                let measured = measured?;
                let (count, time) = (measured.number("operations"), measured.number("seconds"));
                let (server, client_cpu) = (measured.server_cpu_s, measured.client_cpu_s);
                Ok(measured.into_run(
                    &client,
                    [
                        ("operations/s", count / time),
                        (PER_CPU, count / server),
                        ("server, CPU s/s", server / time),
                        ("client, CPU s/s", client_cpu / time),
                    ],
                ))
            }));
        }
    }
    interleave(lab, record, &compared, lab.repeats(5))?;
    for (_, title, parallel) in CASES {
        let [ours, theirs, again] = KINDS.map(|(name, _)| record.median(PER_CPU, &[title, parallel, name]));
        let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
        let [a, b, c] = [ours, theirs, again].map(|value| value.map_or("-".to_string(), short));
        let note = format!("per CPU second: afar {a}, OpenAFS {b} and {c}");
        let claim = format!("{title}, {parallel} in flight, per CPU second of the server against OpenAFS");
        record.at_least(&claim, ratio, GOAL, "times", &note);
    }
    Ok(())
}
