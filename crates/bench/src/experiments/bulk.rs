//! A gigabyte to a file server and from it: how fast, and for how much CPU time.

use std::time::Duration;

use crate::cells::{CELLS_TEXT, Cells, KINDS, PLACEMENT_CELL};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::record::{Record, short};

/// The operations, as the worker and the record call them.
const WAYS: [(&str, &str); 2] = [("store", "StoreData"), ("fetch", "FetchData")];
/// Bytes of each call (0: all of them), and calls at a time: one call, and what a cache manager with chunks of a mebibyte does.
const SHAPES: [(&str, u64, &str); 2] = [("one call", 0, "1"), ("1 MiB calls, 8 at a time", 1 << 20, "8")];
/// The factor by which the bytes for each second of CPU time should exceed OpenAFS's.
const GOAL: f64 = 5.0;
/// For a gigabyte at 10 MB/s, twice.
const TIMEOUT: Duration = Duration::from_secs(240);
/// The figure that is compared.
const PER_GB: &str = "server, CPU s/GB";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let bytes: u64 = lab.choose(1_000_000_000, 50_000_000);
    record.headline = "MB/s".into();
    record.placement = PLACEMENT_CELL.into();
    record.method = format!(
        "{CELLS_TEXT} {bytes} bytes (a gigabyte is 10^9) are stored in a new file, or fetched from one that was just stored and is in the \
         page cache; the client checks what it fetches. 'one call' is a single StoreData64 or FetchData64. Nothing asks for a sync to \
         the disk. Repetitions in turns; 'OpenAFS again' is the same as 'OpenAFS', so their difference is noise."
    );
    let cells = Cells::start(lab)?;
    let cells = &cells;
    let mut compared = Vec::new();
    for (what, title) in WAYS {
        for (shape, call, parallel) in SHAPES {
            for (name, who) in KINDS {
                let labels =
                    [("what", title.to_string()), ("how", shape.to_string()), ("server", name.to_string())];
                compared.push(Cell::new(labels, move |lab| {
                    let served = cells.of(who)?;
                    let volume = served.volume(lab, "bulk")?;
                    let call = if call == 0 { bytes } else { call };
                    let arguments = [&volume, &bytes.to_string(), &call.to_string(), parallel];
                    let client = served.client(lab, what, arguments);
                    let measured = served.measure(lab, &client, TIMEOUT);
                    served.remove("bulk")?;
                    let measured = measured?;
                    let (moved, time) = (measured.number("bytes"), measured.number("seconds"));
                    let (server, client_cpu) = (measured.server_cpu_s, measured.client_cpu_s);
                    Ok(measured.into_run(
                        &client,
                        [
                            ("MB/s", moved / 1e6 / time),
                            (PER_GB, server / (moved / 1e9)),
                            ("client, CPU s/GB", client_cpu / (moved / 1e9)),
                        ],
                    ))
                }));
            }
        }
    }
    interleave(lab, record, &compared, lab.repeats(5))?;
    for (_, title) in WAYS {
        for (shape, ..) in SHAPES {
            let [ours, theirs, again] = KINDS.map(|(name, _)| record.median(PER_GB, &[title, shape, name]));
            let ratio = ours.zip(theirs).map(|(ours, theirs)| theirs / ours);
            let [a, b, c] = [ours, theirs, again].map(|value| value.map_or("-".to_string(), short));
            let note = format!("CPU s/GB: afar {a}, OpenAFS {b} and {c}");
            let claim = format!("{title}, {shape}, bytes per CPU second of the server against OpenAFS");
            record.at_least(&claim, ratio, GOAL, "times", &note);
        }
    }
    Ok(())
}
