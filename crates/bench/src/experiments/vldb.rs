//! Look-ups of volumes by name in a database of a million: in memory, and as calls.

use std::time::Duration;

use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::PLACEMENT_LOOPBACK;
use crate::record::{Record, Run};
use crate::tools::Place;
use crate::workers::vldb as worker;

/// The goal, look-ups per second.
const GOAL: f64 = 100_000.0;
/// Callers of the clients.
const CALLERS: [u64; 2] = [1, 64];
/// A million volumes are made in some seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The name of the row without a network.
const MEMORY: &str = "memory";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let volumes: u32 = lab.choose(1_000_000, 100_000);
    let (omit, seconds) = (1, lab.choose(5, 1));
    record.headline = "look-ups/s".into();
    record.placement = PLACEMENT_LOOPBACK.into();
    record.method = format!(
        "{volumes} volumes with a read-only copy and a backup each, in memory. 'memory': one thread looks up names chosen at \
         random. Else: GetEntryByNameU over Rx (reply 1048 bytes), level clear, each caller making one call after the other \
         for {seconds} s after {omit} s that are not counted; the server's CPU time is of those {seconds} s and what came before."
    );
    let mut cells =
        vec![Cell::new([("through", MEMORY.to_string())], move |lab| in_memory(lab, volumes, seconds))];
    for callers in CALLERS {
        let labels = [("through", format!("Rx, {callers} callers"))];
        cells.push(Cell::new(labels, move |lab| over_rx(lab, volumes, callers, omit, seconds)));
    }
    interleave(lab, record, &cells, lab.repeats(5))?;
    for through in [MEMORY.to_string(), format!("Rx, {} callers", CALLERS[1])] {
        let measured = record.median("look-ups/s", &[&through]);
        record.at_least(&format!("Look-ups by name, {through}"), measured, GOAL, "look-ups/s", "");
    }
    Ok(())
}

fn in_memory(lab: &Lab, volumes: u32, seconds: u32) -> Result<Run, Error> {
    let tool = lab.tools.bench().and([worker::NAME, "memory", &volumes.to_string(), &seconds.to_string()]);
    let mut looking = tool.start(Place::Here, &lab.interrupt)?;
    let looked = looking.wait_for_line("looked ", TIMEOUT)?;
    let mut run = Run { is_valid: true, commands: vec![tool.to_string()], ..Run::default() };
    run.figures.insert("look-ups/s".into(), rate(&looked)?);
    Ok(run)
}

fn over_rx(lab: &Lab, volumes: u32, callers: u64, omit: u32, seconds: u32) -> Result<Run, Error> {
    let server = lab.tools.bench().and([worker::NAME, "server", &volumes.to_string()]);
    let mut serving = server.start(Place::Here, &lab.interrupt)?;
    let port = serving.wait_for_line("ready ", TIMEOUT)?;
    let gone = || Error::run("the server has ended");
    let (memory, before) =
        (serving.memory_bytes().ok_or_else(gone)?, serving.cpu_seconds().ok_or_else(gone)?);
    let numbers = [port, volumes.to_string(), callers.to_string(), omit.to_string(), seconds.to_string()];
    let client = lab.tools.bench().and([worker::NAME, "client"]).and(numbers.each_ref().map(String::as_str));
    let mut calling = client.start(Place::Here, &lab.interrupt)?;
    let looked = calling.wait_for_line("looked ", TIMEOUT)?;
    let cpu = serving.cpu_seconds().ok_or_else(gone)? - before;
    let mut run =
        Run { is_valid: true, commands: vec![server.to_string(), client.to_string()], ..Run::default() };
    let rate = rate(&looked)?;
    run.figures.insert("look-ups/s".into(), rate);
    run.figures.insert("server with its store, bytes/volume".into(), memory as f64 / f64::from(volumes));
    // Calls go on at the same rate while they are not counted.
    let calls = rate * f64::from(omit + seconds);
    run.figures.insert("server, CPU us/look-up".into(), cpu / calls * 1e6);
    Ok(run)
}

/// Look-ups per second of a count and its seconds.
fn rate(looked: &str) -> Result<f64, Error> {
    let numbers = looked.split_once(' ').and_then(|(count, seconds)| {
        Some((count.parse::<f64>().ok()?, seconds.parse::<f64>().ok().filter(|seconds| *seconds > 0.0)?))
    });
    let (count, seconds) = numbers.ok_or_else(|| Error::run(format!("a worker says 'looked {looked}'")))?;
    Ok(count / seconds)
}
