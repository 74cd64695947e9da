//! The processes that this program starts of itself, as `afar-bench NAME ...`: their table, and what they share. They
//! talk to the bench in lines on their standard streams.

mod calling;
mod file_host;
pub(crate) mod files;
mod hosts;
pub(crate) mod idle;
pub(crate) mod load;
pub(crate) mod mirror;
pub(crate) mod named_server;
pub(crate) mod paths;
pub(crate) mod probe;
pub(crate) mod snapshots;
pub(crate) mod stream;
pub(crate) mod vldb;

use std::fmt::Arguments;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

/// The error that ends a worker.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs as a worker with the arguments behind its name.
type Run = fn(&[String]) -> Result<(), Failure>;

/// The first argument, and what it makes of this program.
const WORKERS: [(&str, Run); 10] = [
    (files::NAME, files::run),
    (idle::NAME, idle::run),
    (load::NAME, load::run),
    (mirror::NAME, mirror::run),
    (paths::NAME, paths::run),
    (probe::NAME, probe::run),
    (named_server::NAME, named_server::run),
    (snapshots::NAME, snapshots::run),
    (stream::NAME, stream::run),
    (vldb::NAME, vldb::run),
];

/// Runs as a worker, if the arguments (behind the program's name) say so.
pub(crate) fn run(arguments: &[String]) -> Option<ExitCode> {
    let first = arguments.first()?;
    let (name, run) = WORKERS.iter().find(|(name, _)| name == first)?;
    Some(match run(&arguments[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("afar-bench: {name}: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Prints a line at once.
fn print(line: Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Waits for a line from the bench; none once it has gone.
fn hear() -> io::Result<Option<String>> {
    io::stdin().lock().lines().next().transpose()
}
