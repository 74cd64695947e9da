//! The experiments: reads the command line, sees to it that the machine is quiet and the programs are built, runs
//! what was asked for, and writes one JSON record an experiment and one report of all. What is measured is in
//! `experiments/`, how, in `lab.rs` and `transfer.rs`.
//!
//! # What to open for a change
//!
//! - An experiment and its goals: the table in [`experiments`], which has a module for each.
//! - How runs are repeated, and the links of experiments: [`lab`], [`network`], [`nat`].
//! - What the report says about a record: [`report`], and [`findings`] for the sentence about it.
//! - The mounts, cells and trees of files: [`mounts`], [`cells`], [`trees`].
//! - Many clients at once at a server, and a server limited to part of a core: [`crowd`], [`cpu_limit`].
//! - The programs that experiments start (`afar-bench load-worker ...`): [`workers`], with [`workers::files`] (a
//!   client of file servers), [`workers::paths`] (programs in a mount), [`workers::mirror`] (the empty FUSE mount).
#![deny(unsafe_code)]

mod cells;
mod cpu_limit;
mod crowd;
mod distribution;
mod error;
mod experiments;
mod findings;
mod flows;
mod folder;
mod host;
mod interrupt;
mod json;
mod lab;
mod machine;
mod mounts;
mod nat;
mod network;
mod process;
mod quiet;
mod record;
mod report;
mod sys;
mod tools;
mod transfer;
mod trees;
mod workers;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::error::Error;
use crate::experiments::EXPERIMENTS;
use crate::host::{Awake, FreeMemory};
use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::record::{Experiment, Record, Setting};
use crate::tools::Tools;

/// Measures the transport, beside OpenAFS's and TCP. Needs root, a quiet machine, iperf3 and libopenafs-dev.
#[derive(Parser)]
#[command(after_help = help_on_experiments())]
struct Cli {
    /// Short runs, one of each: whether it works, not how fast it is. Written to target/bench unless told otherwise
    #[arg(long)]
    quick: bool,
    /// Starts though the machine is not quiet; the records say so
    #[arg(long)]
    force: bool,
    /// Takes the programs as they are, without building them
    #[arg(long)]
    no_build: bool,
    /// Only makes the report again, from the records that are there
    #[arg(long)]
    report_only: bool,
    /// Goes on with records that an interrupted series left, if they are of the same code
    #[arg(long)]
    resume: bool,
    /// Where records and report go
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// How often each thing is measured; each experiment has a number of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    repeats: Option<u16>,
    /// Measures only rows whose names contain this, such as "12.5 ms". Written to target/bench unless told otherwise
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Those to run; all of them if none is named (with --quick those about distance, crowds, the cache and many files)
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<String>,
}

fn help_on_experiments() -> String {
    let mut text = String::from("Experiments:\n");
    for experiment in EXPERIMENTS {
        text += &format!("  {:<9} {}\n", experiment.name, experiment.title);
    }
    text
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    if let Some(code) = workers::run(arguments.get(1..).unwrap_or_default()) {
        return code;
    }
    match bench(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("afar-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures everything. Returns whether everything could be measured.
fn bench(cli: &Cli) -> Result<bool, Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let is_partial = cli.quick || cli.only.is_some();
    let out = cli
        .out
        .clone()
        .unwrap_or_else(|| root.join(if is_partial { "target/bench" } else { "bench/results" }));
    fs::create_dir_all(&out).map_err(|e| Error::setup(format!("making {}: {e}", out.display())))?;
    if cli.report_only {
        return report::write(&out).map(|()| true);
    }
    let wanted = choose(&cli.experiments, cli.quick)?;
    let interrupt = Interrupt::take_signals()?;
    linkem::available().map_err(Error::Setup)?;
    let tools = Tools::find(&root, !cli.no_build, &interrupt)?;
    let is_quiet = quiet::wait(cli.force, &interrupt)?;
    let awake = Awake::start();
    let free_memory = FreeMemory::look(cli.quick);
    let setting =
        Setting { idle_cores: awake.describe(), free_memory: free_memory.describe(), ..Setting::look(&root) };
    let lab = Lab {
        tools,
        interrupt,
        free_memory,
        is_quick: cli.quick,
        repeats: cli.repeats.map(usize::from),
        only: cli.only.clone(),
        out,
    };

    let mut is_complete = true;
    for experiment in wanted {
        eprintln!("== {}: {}", experiment.name, experiment.title);
        let mut record = setting.begin_record(experiment, &lab, is_quiet);
        if cli.resume {
            record = resume(&root, record, &lab.out)?;
        }
        (experiment.run)(&lab, &mut record)?;
        record.is_unfinished = false;
        is_complete &= record.is_complete();
        for verdict in &record.verdicts {
            eprintln!("{verdict}");
        }
        record.write(&lab.out)?;
        // After each, so that an interrupted series leaves a report of what it has.
        report::write(&lab.out)?;
    }
    eprintln!("report: {}", lab.out.join(report::FILE_NAME).display());
    if !is_complete {
        eprintln!("afar-bench: some runs failed or were not valid; the records say which and why");
    }
    Ok(is_complete)
}

/// The record that was begun earlier, if it can be gone on with; else the new one.
fn resume(root: &Path, new: Record, folder: &Path) -> Result<Record, Error> {
    let Some(mut begun) = Record::read(folder, &new.experiment)?.filter(|begun| begun.is_unfinished) else {
        return Ok(new);
    };
    let is_same = begun.is_quick == new.is_quick
        && begun.only == new.only
        && begun.setting.kernel == new.setting.kernel
        && begun.setting.cpu == new.setting.cpu
        && machine::is_same_code(root, &begun.setting.afar, &new.setting.afar);
    if !is_same {
        eprintln!(
            "   the record that was begun is of other code, another kernel or other rows: not gone on with"
        );
        return Ok(new);
    }
    eprintln!("   {} rows of {} are there", begun.rows.len(), begun.setting.date);
    begun.resumed.push(new.setting.date);
    Ok(begun)
}

fn choose(names: &[String], is_quick: bool) -> Result<Vec<&'static Experiment>, Error> {
    if names.is_empty() {
        return Ok(EXPERIMENTS.iter().filter(|e| e.is_main || !is_quick).collect());
    }
    let find = |name: &String| {
        EXPERIMENTS.iter().find(|e| e.name == name).ok_or_else(|| {
            let known: Vec<_> = EXPERIMENTS.iter().map(|e| e.name).collect();
            Error::setup(format!("there is no experiment '{name}'; there are {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}
