//! One call between two processes of this machine: how fast, and for how much CPU time.

use super::DIRECTIONS;
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::{LOOPBACK, PLACEMENT_LOOPBACK};
use crate::record::Record;
use crate::tools::Stack;
use crate::transfer::{self, Window};

/// One call after the other of so many bytes: the most that OpenAFS's rxperf can say is 2^31 - 1.
const CALL_BYTES: &str = "2000000000";
/// The rate that is hoped for, and the least, Mbit/s in packets of 1444 bytes.
const GOAL_MBIT: f64 = 8000.0;
const LEAST_MBIT: f64 = 5000.0;
/// The programs that are measured, with the options of both ends. OpenAFS twice: the difference between
/// its two rows is noise.
const KINDS: [(&str, Stack, &[&str]); 4] = [
    ("afar, 1444-byte packets", Stack::Afar, &["-m", "1444"]),
    ("afar", Stack::Afar, &[]),
    ("OpenAFS", Stack::OpenAfs, &[]),
    ("OpenAFS again", Stack::OpenAfs, &[]),
];

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let window = lab.choose(Window::new(1, 6), Window::new(1, 2));
    let (omit, measure) = (window.omit.as_secs(), window.measure.as_secs());
    record.headline = "Mbit/s".into();
    record.placement = PLACEMENT_LOOPBACK.into();
    record.method = format!(
        "One call at a time, level clear, of {CALL_BYTES} bytes, one after the other; {measure} s are measured after {omit} s \
         that are not. CPU seconds per gigabyte (10^9 bytes) are those of the whole process, user and kernel, in that time; the \
         kernel does the receiver's part of a loopback packet's way in the sender's time. 'afar' alone searches for the \
         largest packet, as it does by default; OpenAFS is Debian's library with its defaults, with itself; TCP is iperf3, one \
         connection. Repetitions in turns; 'OpenAFS again' is the same as 'OpenAFS', so their difference is noise."
    );
    let mut cells = Vec::new();
    for direction in DIRECTIONS {
        for (name, who, options) in KINDS {
            let client = lab.tools.rxperf_client(who).and(["-c", direction, "-b", CALL_BYTES]);
            let client = client.and(options).and(window.rxperf());
            cells.push(Cell::new(
                [("who", name.to_string()), ("direction", direction.to_string())],
                move |lab| transfer::rxperf(lab, LOOPBACK, &transfer::server(who, options), &client, window),
            ));
        }
        let arguments: &[&str] = if direction == "recv" { &["-R"] } else { &[] };
        cells.push(Cell::new(
            [("who", "TCP".to_string()), ("direction", direction.to_string())],
            move |lab| transfer::iperf3(lab, LOOPBACK, arguments, window),
        ));
    }
    interleave(lab, record, &cells, lab.repeats(5))?;
    for direction in DIRECTIONS {
        let measured = record.median("Mbit/s", &["afar, 1444-byte packets", direction]);
        let stock = record.median("Mbit/s", &["OpenAFS", direction]);
        let ratio = measured.zip(stock).map(|(ours, theirs)| format!("{:.2} times OpenAFS's", ours / theirs));
        let note = ratio.unwrap_or_default();
        let claim = format!("One call on loopback in 1444-byte packets, {direction}");
        record.at_least(&format!("{claim}, goal"), measured, GOAL_MBIT, "Mbit/s", &note);
        record.at_least(&format!("{claim}, floor"), measured, LEAST_MBIT, "Mbit/s", &note);
    }
    Ok(())
}
