//! The memory that connections cost that were used once and wait.

use std::time::Duration;

use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::process::Process;
use crate::record::{Curve, Record, Run};
use crate::tools::Place;
use crate::workers::idle as idle_worker;

/// The most bytes that a connection may cost at either end.
const GOAL_BYTES: f64 = 4096.0;
/// Connections are opened in so many steps, for a curve.
const STEPS: u32 = 10;
/// A step of many calls on a slow machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// The time within which the last calls are forgotten: ends of calls are kept for a while.
const SETTLE: Duration = Duration::from_secs(5);
const SETTLE_QUICK: Duration = Duration::from_secs(2);
/// The two ends.
const SIDES: [&str; 2] = ["server", "client"];

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let count: u32 = lab.choose(100_000, 20_000);
    let settle = lab.choose(SETTLE, SETTLE_QUICK);
    record.headline = "server, bytes/connection".into();
    record.placement =
        "A server and a client process of this bench, each with one endpoint on 127.0.0.1.".into();
    record.method = format!(
        "{count} connections from one client port to one service, level clear, one call each (4 bytes each way), {} at a time. \
         Anonymous resident memory of each process {} s after the last call, less that before the first, by connections.",
        idle_worker::CALLS_AT_ONCE,
        settle.as_secs()
    );
    let cells = [Cell::new([("connections", count.to_string())], move |lab| measure(lab, count, settle))];
    interleave(lab, record, &cells, lab.repeats(3))?;
    for side in SIDES {
        let measured = record.median(&format!("{side}, bytes/connection"), &[]);
        record.at_most(&format!("An idle connection at the {side}"), measured, GOAL_BYTES, "bytes", "");
    }
    Ok(())
}

fn measure(lab: &Lab, count: u32, settle: Duration) -> Result<Run, Error> {
    let server = lab.tools.bench().and([idle_worker::NAME, "server"]);
    let mut serving = server.start(Place::Here, &lab.interrupt)?;
    let port = serving.wait_for_line("ready ", STEP_TIMEOUT)?;
    let client = lab.tools.bench().and([idle_worker::NAME, "client", &port]);
    let mut calling = client.start(Place::Here, &lab.interrupt)?;
    calling.wait_for_line("ready", STEP_TIMEOUT)?;

    let mut memory = Memory::default();
    memory.look(0, &serving, &calling)?;
    for step in 1..=STEPS {
        let opened = u64::from(count) * u64::from(step) / u64::from(STEPS);
        calling.say(&opened.to_string())?;
        calling.wait_for_line("opened ", STEP_TIMEOUT)?;
        if step == STEPS {
            lab.interrupt.sleep(settle)?;
        }
        memory.look(opened, &serving, &calling)?;
    }
    serving.say("count")?;
    let kept = serving.wait_for_line("connections ", STEP_TIMEOUT)?;

    let mut run =
        Run { is_valid: true, commands: vec![server.to_string(), client.to_string()], ..Run::default() };
    if kept.parse() != Ok(count) {
        run.is_valid = false;
        run.problems.push(format!("the server kept {kept} connections of {count}"));
    }
    for (side, points) in SIDES.iter().zip(memory.points) {
        let [first, .., last] = points[..] else { unreachable!("there are at least two looks") };
        run.figures.insert(format!("{side}, bytes/connection"), (last.1 - first.1) * 1e6 / f64::from(count));
        run.figures.insert(format!("{side}, MB before"), first.1);
        run.figures.insert(format!("{side}, MB in all"), last.1);
        run.curves.push(Curve { name: format!("{side}, MB by connections"), points });
    }
    Ok(run)
}

/// Connections, and megabytes: of the server, of the client.
#[derive(Default)]
struct Memory {
    points: [Vec<(f64, f64)>; 2],
}

impl Memory {
    fn look(&mut self, opened: u64, server: &Process, client: &Process) -> Result<(), Error> {
        for (points, process) in self.points.iter_mut().zip([server, client]) {
            let gone = || Error::run("a worker's memory cannot be read: it has ended");
            let bytes = process.memory_bytes().ok_or_else(gone)?;
            points.push((opened as f64, bytes as f64 / 1e6));
        }
        Ok(())
    }
}
