//! Runs cases and reports as `cargo test` does. It exists since a case that waits for a timeout costs nothing but time: all
//! of those run at once, beside the few that keep a processor busy. What a case does is its own business.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use afs_lab::real::wait::PATIENCE;
use afs_lab::skipped;

/// Busy cases at a time: as many as make two processors busy, each case being two programs that talk to each other.
const BUSY_AT_ONCE: usize = 2;

/// The time between two looks of [`until`].
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// After so long it is told that a case still runs: if it hangs, nothing else says which it is.
const LONG: Duration = Duration::from_secs(300);

/// The reason why a case did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// It cannot run on this machine, or a program that is not ours has crashed or given up in it, so that nothing is known of ours: for this
    /// reason.
    Skipped(String),
    /// It has failed.
    Failed(String),
}

impl From<String> for Trouble {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

/// The result of a case.
pub type Verdict = Result<(), Trouble>;

/// Waits until something is so.
///
/// # Errors
///
/// When that fails, or it is not so in time.
pub fn until(what: &str, mut is_so: impl FnMut() -> Result<bool, Trouble>) -> Verdict {
    let end = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > end {
            return Err(format!("it is still not so that {what}").into());
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The need of a case for a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// It needs one.
    Busy,
    /// It mostly waits: for a timeout, or for packets on a long line.
    Waiting,
}

/// A test.
pub struct Case {
    name: String,
    weight: Weight,
    run: Box<dyn Fn() -> Verdict + Send>,
}

impl Case {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A case; its name is a path with `/`, and no other has it.
    pub fn new(name: impl Into<String>, weight: Weight, run: impl Fn() -> Verdict + Send + 'static) -> Self {
        Self { name: name.into(), weight, run: Box::new(run) }
    }
}

/// The tests that the command line asks for; flags of `cargo test` that mean nothing here are passed over.
struct Wanted {
    filters: Vec<String>,
    is_exact: bool,
    is_list: bool,
}

impl Wanted {
    fn from_args(args: impl Iterator<Item = String>) -> Self {
        let mut wanted = Self { filters: Vec::new(), is_exact: false, is_list: false };
        let mut args = args.skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--exact" => wanted.is_exact = true,
                "--list" => wanted.is_list = true,
                "--test-threads" | "--skip" | "--format" | "--color" => drop(args.next()),
                flag if flag.starts_with('-') => {}
                _ => wanted.filters.push(arg),
            }
        }
        wanted
    }

    fn has(&self, name: &str) -> bool {
        let is_wanted =
            |filter: &String| if self.is_exact { name == filter } else { name.contains(&**filter) };
        self.filters.is_empty() || self.filters.iter().any(is_wanted)
    }
}

/// Runs the cases that the command line asks for, in their order: the longest come first, so that none of them runs alone in the
/// end. So many of those that wait run at once, beside the busy ones.
pub fn run(cases: Vec<Case>, waiting_at_once: usize) -> ExitCode {
    let wanted = Wanted::from_args(std::env::args());
    let all = cases.len();
    let cases: Vec<Case> = cases.into_iter().filter(|case| wanted.has(&case.name)).collect();
    if wanted.is_list {
        cases.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    let started = Instant::now();
    let (count, filtered) = (cases.len(), all - cases.len());
    println!("\nrunning {count} tests");
    let (waiting, busy): (VecDeque<Case>, VecDeque<Case>) =
        cases.into_iter().partition(|case| case.weight == Weight::Waiting);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (queue, at_once) in [(waiting, waiting_at_once), (busy, BUSY_AT_ONCE)] {
            let workers = at_once.min(queue.len());
            let queue = std::sync::Arc::new(Mutex::new(queue));
            for _ in 0..workers {
                let (queue, failures) = (std::sync::Arc::clone(&queue), &failures);
                scope.spawn(move || {
                    loop {
                        let next = lock(&queue).pop_front();
                        let Some(case) = next else { break };
                        run_case(case, failures);
                    }
                });
            }
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failures.is_empty() {
        // As cargo's own tests print them: scripts/test.sh reads it.
        println!("\nfailures:");
        failures.iter().for_each(|(name, message)| println!("\n---- {name} ----\n{message}"));
        println!("\nfailures:");
        failures.iter().for_each(|(name, _)| println!("    {name}"));
    }
    let (word, failed) = (if failures.is_empty() { "ok" } else { "FAILED" }, failures.len());
    println!(
        "\ntest result: {word}. {} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out; finished in {:.2}s\n",
        count - failed,
        started.elapsed().as_secs_f64()
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

fn run_case(case: Case, failures: &Mutex<Vec<(String, String)>>) {
    let Case { name, run, .. } = case;
    let started = Instant::now();
    let (ended, has_ended) = mpsc::channel::<()>();
    let long_name = name.clone();
    thread::spawn(move || {
        if has_ended.recv_timeout(LONG) == Err(mpsc::RecvTimeoutError::Timeout) {
            println!("test {long_name} has been running for over {} seconds", LONG.as_secs());
        }
    });
    // What a case leaves behind when it panics is its own.
    let verdict = panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Trouble::Failed(format!("panicked: {text}")))
    });
    drop(ended);
    let seconds = started.elapsed().as_secs_f64();
    match verdict {
        Ok(()) => println!("test {name} ... ok ({seconds:.2}s)"),
        Err(Trouble::Skipped(reason)) => {
            println!("test {name} ... SKIPPED: {reason}");
            skipped::note(&name, &reason);
        }
        Err(Trouble::Failed(message)) => {
            println!("test {name} ... FAILED ({seconds:.2}s): {message}");
            lock(failures).push((name, message));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_chosen_by_their_parts_or_exactly() {
        let wanted = |line: &str| Wanted::from_args(line.split_whitespace().map(str::to_owned));
        assert!(wanted("program").has("a/b"));
        assert!(wanted("program --nocapture b x").has("a/b"));
        assert!(!wanted("program --test-threads a b/").has("a/b"));
        assert!(!wanted("program --exact a").has("a/b"));
    }
}
