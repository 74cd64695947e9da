//! The check whether the machine is quiet enough to measure on: the load average, and other builds.

use std::fs;
use std::process;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::interrupt::Interrupt;

/// Highest load average of the last minute to start at. Two cores carry sender, receiver and emulator.
const LOAD_MAX: f64 = 1.0;
/// The time for which to wait until the load falls: our own build raised it, or a crowd before, to 130, which is 1 after
/// five minutes.
const TIMEOUT: Duration = Duration::from_secs(360);
/// Programs that take whole cores for a while.
const BUILDERS: &[&str] = &["cargo", "rustc", "clippy-driver", "rustdoc", "cc1", "ld", "lld"];

/// Waits for a quiet machine. Returns whether it is: false only if `force` is set, with which it does not wait.
pub(crate) fn wait(force: bool, interrupt: &Interrupt) -> Result<bool, Error> {
    let deadline = Instant::now() + TIMEOUT;
    let mut was_told = false;
    loop {
        let builders = other_builders();
        let problem = if !builders.is_empty() {
            format!("other builds run ({})", builders.join(", "))
        } else if load_average() > LOAD_MAX {
            format!("the load average is {:.2}, at most {LOAD_MAX:.1} may be", load_average())
        } else {
            return Ok(true);
        };
        if force {
            eprintln!("afar-bench: the machine is not quiet: {problem}; going on, as told");
            return Ok(false);
        }
        if !builders.is_empty() || Instant::now() > deadline {
            return Err(Error::setup(format!("the machine is not quiet: {problem}. --force starts anyway")));
        }
        if !was_told {
            eprintln!("afar-bench: {problem}; waiting up to {} s for it to fall", TIMEOUT.as_secs());
            was_told = true;
        }
        interrupt.sleep(Duration::from_secs(1))?;
    }
}

/// The load average of the last minute; 0 if the system does not say.
pub(crate) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// The names of builds that run now, but for the one that started us.
pub(crate) fn other_builders() -> Vec<String> {
    let mut ancestors = vec![process::id()];
    while let Some(parent) =
        ancestors.last().and_then(|pid| Some(name_and_parent(*pid)?.1)).filter(|p| *p > 1)
    {
        ancestors.push(parent);
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<String> = pids
        .filter(|pid| !ancestors.contains(pid))
        .filter_map(|pid| Some(name_and_parent(pid)?.0))
        .filter(|name| BUILDERS.contains(&name.as_str()))
        .collect();
    found.sort();
    found.dedup();
    found
}

fn name_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (start, rest) = stat.rsplit_once(')')?;
    let name = start.split_once('(')?.1.to_string();
    Some((name, rest.split_whitespace().nth(1)?.parse().ok()?))
}
