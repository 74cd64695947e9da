//! The command line of the fuzzer: picks a target, reads its corpus, hands both to `engine`, and keeps an input that
//! fails. It also ends a run if an input never returns.
#![forbid(unsafe_code)]

use afar_fuzz::alloc::Counting;
use afar_fuzz::engine::{self, Crash, Failure, Limit, Target};
use afar_fuzz::targets::{self, CANARY, TARGETS};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An input that has not returned after so long never will: a target's own bound is a fraction of a second.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// Feeds targets with mutated inputs until one fails or time is up.
#[derive(Parser)]
#[command(name = "afar-fuzz")]
struct Arguments {
    /// Which target; "all" for each in turn but the canary. Without one, the targets are listed.
    target: Option<String>,
    /// Inputs to run as they are, instead of fuzzing: to see a failure again.
    files: Vec<PathBuf>,
    /// How long to go on, in seconds a target [default: 10]
    #[arg(long, conflicts_with = "runs")]
    seconds: Option<u64>,
    /// How many inputs to run a target, instead of how long.
    #[arg(long)]
    runs: Option<u64>,
    /// Chance: the same seed makes the same inputs [default: the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Directory of inputs to start from [default: the target's in this crate's corpus/]
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Write each input to this file before it runs: for failures that end the process, as a stack overflow does.
    #[arg(long)]
    trace: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let chosen: Vec<&Target> = match arguments.target.as_deref() {
        None => {
            TARGETS.iter().for_each(|target| println!("{:14} {}", target.name, target.about));
            return ExitCode::SUCCESS;
        }
        Some("all") => TARGETS.iter().filter(|target| target.name != CANARY).collect(),
        Some(name) => match targets::find(name) {
            Some(target) => vec![target],
            None => return fail(&format!("no target is called {name}: run without arguments for a list")),
        },
    };
    for target in chosen {
        let done = match arguments.files.is_empty() {
            true => fuzz(target, &arguments),
            false => run_files(target, &arguments.files),
        };
        if let Err(message) = done {
            return fail(&message);
        }
    }
    ExitCode::SUCCESS
}

fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}

fn run_files(target: &Target, files: &[PathBuf]) -> Result<(), String> {
    for file in files {
        let cost = engine::check(target, &read(file)?)
            .map_err(|failure| format!("{}: {}: {failure}", target.name, file.display()))?;
        println!("{}: {}: {cost:?}", target.name, file.display());
    }
    Ok(())
}

fn fuzz(target: &Target, arguments: &Arguments) -> Result<(), String> {
    let seed = arguments.seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64 & 0xffff_ffff)
    });
    let limit = match arguments.runs {
        Some(runs) => Limit::Runs(runs),
        None => Limit::Time(Duration::from_secs(arguments.seconds.unwrap_or(10))),
    };
    let directory = arguments.corpus.clone().unwrap_or_else(|| here("corpus").join(target.name));
    let corpus = read_corpus(&directory)?;
    println!("{}: seed {seed}, {} inputs to start from", target.name, corpus.len());
    let current = Arc::new(Mutex::new((Instant::now(), Vec::new())));
    watch(target.name, Arc::downgrade(&current));
    let mut trace_error = None;
    let mut before = |input: &[u8]| {
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        current.0 = Instant::now();
        current.1.clear();
        current.1.extend_from_slice(input);
        if let Some(path) = &arguments.trace {
            trace_error = trace_error.take().or(std::fs::write(path, input).err());
        }
    };
    let report = engine::fuzz(target, &corpus, seed, limit, &mut before);
    if let Some(error) = trace_error {
        eprintln!("cannot write the trace: {error}");
    }
    let report = report.map_err(|crash| keep(target.name, &crash))?;
    println!(
        "{}: {} inputs, {} shapes, {} kept, at most {} bytes and {:?} for one",
        target.name, report.runs, report.features, report.kept, report.peak, report.slowest
    );
    Ok(())
}

/// The input that runs now, and since when.
type Current = Mutex<(Instant, Vec<u8>)>;

/// Ends the process when an input hangs, and keeps that input. Ends itself when the run is over.
fn watch(target: &'static str, current: Weak<Current>) {
    std::thread::spawn(move || {
        while let Some(current) = current.upgrade() {
            let (since, input) = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let took = since.elapsed();
            if took > HANGS_AFTER {
                let failure = Failure::Time { took, limit: HANGS_AFTER };
                eprintln!("{}", keep(target, &Crash { input, failure, runs: 0 }));
                std::process::exit(1);
            }
            drop(current);
            std::thread::sleep(Duration::from_secs(1));
        }
    });
}

/// Writes a failing input to `crashes/`; returns what to tell the user.
fn keep(target: &str, crash: &Crash) -> String {
    let name = crash.input.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let path = here("crashes").join(format!("{target}-{name:016x}"));
    let written = std::fs::create_dir_all(here("crashes")).and_then(|()| std::fs::write(&path, &crash.input));
    let Crash { input, failure, runs } = crash;
    let what = format!("{target}: input of {} bytes, the {runs}th, {failure}", input.len());
    match written {
        Ok(()) => format!("{what}\nagain: cargo run -p afar-fuzz -- {target} {}", path.display()),
        Err(error) => format!("{what}\ncannot write it to {}: {error}\n{input:02x?}", path.display()),
    }
}

/// A corpus is the files of a directory, in the order of their names, so that a seed means the same everywhere.
fn read_corpus(directory: &Path) -> Result<Vec<Vec<u8>>, String> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let entries =
        std::fs::read_dir(directory).map_err(|e| format!("cannot list {}: {e}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files.iter().filter(|file| file.is_file()).map(|file| read(file)).collect()
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|e| format!("cannot read {}: {e}", file.display()))
}

/// A directory of this crate's sources.
fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}
