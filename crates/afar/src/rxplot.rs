//! `afar rxplot`: draws the trace of a call, so that one sees where its time went. Here are the options, and what is
//! taken from the trace in `rxplot/curves.rs`; how it is drawn, in `rxplot/draw.rs`; the file, in `trace.rs`.

mod curves;
mod draw;

use crate::classic::{Command, Given, Misuse, Opt};
use crate::output;
use crate::trace::TraceFile;
use curves::Curves;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// What the command does, as lists of commands and its help say it.
pub(crate) const ABOUT: &str = "draws the trace of a call from a file that 'rxperf --trace' wrote";

static COMMAND: Command = Command {
    name: "rxplot",
    options: &[
        Opt::single("trace", "file that rxperf --trace wrote").required(),
        Opt::single("output", "SVG file to write; default: the trace's name with .svg added"),
    ],
};

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let given = match COMMAND.start(ABOUT, args) {
        Ok(given) => given,
        Err(status) => return status,
    };
    match plot(&given) {
        Ok(said) => output::print(&said),
        Err(Refusal::Misuse(misuse)) => misuse.report(),
        Err(Refusal::Failed(sentence)) => {
            eprintln!("{}: {sentence}", COMMAND.name);
            ExitCode::FAILURE
        }
    }
}

enum Refusal {
    Misuse(Misuse),
    Failed(String),
}

fn plot(given: &Given) -> Result<String, Refusal> {
    let from = PathBuf::from(given.value("trace").unwrap_or_default());
    let to = match given.value("output") {
        Some(to) => PathBuf::from(to),
        None => {
            let mut name = from.clone().into_os_string();
            name.push(".svg");
            PathBuf::from(name)
        }
    };
    let failed = |sentence: String| Refusal::Failed(sentence);
    let trace = TraceFile::load(&from).map_err(|error| failed(format!("{} {error}", from.display())))?;
    let curves = Curves::of(&trace);
    let svg = draw::svg(&trace.heading, &curves).map_err(|error| failed(format!("cannot draw: {error}")))?;
    std::fs::write(&to, svg).map_err(|error| failed(format!("cannot write {}: {error}", to.display())))?;
    Ok(format!("{}\n{}\n", curves.summary(), to.display()))
}

impl From<Misuse> for Refusal {
    fn from(misuse: Misuse) -> Self {
        Self::Misuse(misuse)
    }
}
