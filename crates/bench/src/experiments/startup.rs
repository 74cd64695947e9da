//! The time until a file server with many volumes answers after an orderly stop.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cells::{CELLS_TEXT, Cells, KINDS, PLACEMENT_CELL};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::record::{Record, Run, short};
use crate::tools::Stack;

/// The number of the first of the volumes: far from those that the cell gives out.
const FIRST: u32 = 700_000_001;
/// Making ten thousand volumes, or asking them.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// The figures that count.
const FIRST_ANSWER: &str = "to the first answer, s";
const ALL_ANSWERS: &str = "to the answers of all volumes, s";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let count: u32 = lab.choose(10_000, 300);
    record.headline = FIRST_ANSWER.into();
    record.placement = PLACEMENT_CELL.into();
    record.method = format!(
        "{CELLS_TEXT} Each server has {count} volumes with nothing in them, made by calls to its volume server. It is stopped in order \
         (`bos shutdown`; SIGTERM), then started (`bos startup`; the program), while the client asks for the status of the last \
         volume's root every 5 ms: time from before that command to the first answer, then to that of the last of all volumes, asked 16 at a \
         time. Repetitions in turns; 'OpenAFS again' is the same as 'OpenAFS'."
    );
    let cells = Cells::start(lab)?;
    let mut made = BTreeMap::new();
    for who in [Stack::Afar, Stack::OpenAfs] {
        made.insert(who.name(), make_volumes(lab, &cells, who, count));
    }
    let (cells, made) = (&cells, &made);
    let compared: Vec<_> = KINDS
        .iter()
        .map(|&(name, who)| {
            Cell::new([("server", name.to_string())], move |lab| {
                let creation_s = made[who.name()].as_ref().map_err(|why| Error::run(why.clone()))?;
                let mut run = restart(lab, cells, who, count)?;
                run.figures.insert("making them, s".into(), *creation_s);
                Ok(run)
            })
        })
        .collect();
    interleave(lab, record, &compared, lab.repeats(3))?;
    for figure in [FIRST_ANSWER, ALL_ANSWERS] {
        let [ours, theirs, again] = KINDS.map(|(name, _)| record.median(figure, &[name]));
        let Some((a, b)) = theirs.zip(again) else { continue };
        let note = format!("OpenAFS with itself: {} and {}", short(a), short(b));
        let claim = format!("Start with {count} volumes, {figure}, no later than OpenAFS");
        record.at_most(&claim, ours, a.max(b), "s", &note);
    }
    Ok(())
}

/// Seconds that it took.
fn make_volumes(lab: &Lab, cells: &Cells, who: Stack, count: u32) -> Result<f64, String> {
    let make = || -> Result<f64, Error> {
        let served = cells.of(who)?;
        let client = served.client(lab, "volumes", [&served.keys(), &FIRST.to_string(), &count.to_string()]);
        Ok(served.measure(lab, &client, TIMEOUT)?.number("seconds"))
    };
    make().map_err(|error| format!("making {count} volumes: {error}"))
}

fn restart(lab: &Lab, cells: &Cells, who: Stack, count: u32) -> Result<Run, Error> {
    let served = cells.of(who)?;
    served.cell().set_serving(false).map_err(Error::Run)?;
    let client = served.client(lab, "answers", [FIRST.to_string(), count.to_string()]);
    let mut asking = client.start(served.place(), &lab.interrupt)?;
    asking.wait_for_line("begin", TIMEOUT)?;
    served.cell().set_serving(true).map_err(Error::Run)?;
    let report = asking.wait_for_line("end ", TIMEOUT)?;
    let report: serde_json::Value = serde_json::from_str(&report).map_err(|e| Error::run(e.to_string()))?;
    asking.say("done")?;
    asking.finish(TIMEOUT)?;
    let figure = |name: &str| report.get(name).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
    let figures = [
        (FIRST_ANSWER.to_string(), figure("first_s")),
        (ALL_ANSWERS.to_string(), figure("all_s")),
        ("CPU of the start, s".to_string(), served.cpu_s()?),
    ];
    Ok(Run {
        is_valid: figures.iter().all(|(_, value)| value.is_finite()),
        figures: figures.into(),
        commands: vec![client.to_string()],
        report,
        ..Run::default()
    })
}
