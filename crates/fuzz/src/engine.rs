//! Runs a target on inputs: first those given, then mutations of those that made something new happen. Ends at the first
//! input that panics or costs too much. Everything follows from the seed but how far it gets in a given time. Reads no
//! files, and writes none.

use crate::alloc;
use crate::mutate::mutate;
use crate::rng::Rng;
use rustix::time::{ClockId, clock_gettime};
use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

/// Most inputs kept at once; beyond it a new one takes the place of an old one, so that a target whose shapes never end
/// costs a bounded amount of memory.
const MAX_KEPT: usize = 4096;

/// Every second input is made from one of so many newest: what was just found leads on.
const NEWEST: usize = 16;

/// The number of times that an input which took too long is tried again before it counts: a busy machine also makes its
/// work slower, and may stand still.
const SECOND_CHANCES: usize = 3;
/// The longest time that an input may wait for something: none has to, but the machine may be busy.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Something to be fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name on the command line; also its directory in the corpus.
    pub name: &'static str,
    /// The subject of it, in a sentence.
    pub about: &'static str,
    /// Takes an input and says what happened, as a [`crate::shape::Shape`]'s number. Panics if something is wrong.
    pub run: fn(&[u8]) -> u64,
    /// The bound on an input's cost.
    pub bound: Bound,
}

/// The bound on an input's cost. A peer that sends few bytes must not make us work or remember much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Bytes of memory for each byte of input.
    pub bytes_per_byte: usize,
    /// Bytes of memory on top.
    pub bytes: usize,
    /// CPU time of the thread, however long the input: what others do on the machine does not count.
    pub time: Duration,
}

impl Bound {
    /// 64 times the input and 1 MiB; 100 ms, generous as tests run unoptimised and beside others.
    pub const DEFAULT: Self = Self { bytes_per_byte: 64, bytes: 1 << 20, time: Duration::from_millis(100) };

    /// Most bytes that an input of `len` bytes may cost.
    pub const fn memory(&self, len: usize) -> usize {
        self.bytes + self.bytes_per_byte * len
    }
}

/// The end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// So many inputs, those given included if there are fewer; all of those given run in any case.
    Runs(u64),
    /// So long.
    Time(Duration),
}

/// The reason why an input is a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The target panicked with this message.
    Panic(String),
    /// It held more memory than it may.
    Memory {
        /// Bytes held at one time.
        peak: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// It took longer than it may, each time.
    Time {
        /// The shortest of several tries.
        took: Duration,
        /// The limit.
        limit: Duration,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(message) => write!(f, "panicked: {message}"),
            Self::Memory { peak, limit } => write!(f, "held {peak} bytes of memory, more than {limit}"),
            Self::Time { took, limit } => write!(f, "took {took:?}, longer than {limit:?}"),
        }
    }
}

/// An input that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Crash {
    /// The input.
    pub input: Vec<u8>,
    /// The failure.
    pub failure: Failure,
    /// Inputs run, this one included.
    pub runs: u64,
}

/// The report of a run without failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Inputs run.
    pub runs: u64,
    /// Different shapes seen.
    pub features: usize,
    /// Inputs kept.
    pub kept: usize,
    /// The most memory that an input held, in bytes; 0 if the allocator does not count.
    pub peak: usize,
    /// The most CPU time that an input took.
    pub slowest: Duration,
}

/// Runs `target` on the corpus, then on mutations, until `limit`. `before` sees each input before it runs, so that the
/// input is known if the process dies.
///
/// # Errors
/// The first input that fails.
pub fn fuzz(
    target: &Target,
    corpus: &[Vec<u8>],
    seed: u64,
    limit: Limit,
    before: &mut dyn FnMut(&[u8]),
) -> Result<Report, Box<Crash>> {
    let start = Instant::now();
    let (mut rng, mut seen, mut kept) = (Rng::new(seed), HashSet::new(), Vec::<Vec<u8>>::new());
    let mut report = Report::default();
    let mut given = corpus.iter();
    let mut next = given.next().cloned().unwrap_or_default();
    loop {
        before(&next);
        report.runs += 1;
        let cost = match check(target, &next) {
            Ok(cost) => cost,
            Err(failure) => return Err(Box::new(Crash { input: next, failure, runs: report.runs })),
        };
        report.peak = report.peak.max(cost.peak);
        report.slowest = report.slowest.max(cost.took);
        if seen.insert(cost.feature) {
            if kept.len() < MAX_KEPT {
                kept.push(next);
            } else {
                let at = rng.below(kept.len());
                kept[at] = next;
            }
        }
        next = match given.next() {
            Some(input) => input.clone(),
            None if is_over(limit, report.runs, start) => break,
            None => {
                let pool = if rng.below(2) == 0 { kept.len() } else { kept.len().min(NEWEST) };
                let mut input = kept[kept.len() - 1 - rng.below(pool)].clone();
                mutate(&mut input, &kept, &mut rng);
                input
            }
        };
    }
    (report.features, report.kept) = (seen.len(), kept.len());
    Ok(report)
}

fn is_over(limit: Limit, runs: u64, start: Instant) -> bool {
    match limit {
        Limit::Runs(most) => runs >= most,
        // Asking for the time costs as much as a small input does.
        Limit::Time(most) => runs.is_multiple_of(64) && start.elapsed() >= most,
    }
}

/// The cost of one input, and its shape.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The value that the target returned.
    pub feature: u64,
    /// Most memory held at one time, in bytes.
    pub peak: usize,
    /// CPU time taken.
    pub took: Duration,
    /// The time from its begin to its end, by the clock.
    pub waited: Duration,
}

/// Runs a target on one input.
///
/// # Errors
/// What is wrong, if it panics or costs more than its bound.
pub fn check(target: &Target, input: &[u8]) -> Result<Cost, Failure> {
    let mut cost = once(target, input)?;
    let limit = target.bound.memory(input.len());
    if cost.peak > limit {
        return Err(Failure::Memory { peak: cost.peak, limit });
    }
    for _ in 0..SECOND_CHANCES {
        if cost.took > target.bound.time || cost.waited > WAIT_MAX {
            let again = once(target, input)?;
            cost.took = cost.took.min(again.took);
            cost.waited = cost.waited.min(again.waited);
        }
    }
    if cost.waited > WAIT_MAX {
        return Err(Failure::Time { took: cost.waited, limit: WAIT_MAX });
    }
    if cost.took > target.bound.time {
        return Err(Failure::Time { took: cost.took, limit: target.bound.time });
    }
    Ok(cost)
}

/// The CPU time of this thread.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let whole = Duration::from_secs(time.tv_sec.try_into().unwrap_or(0));
    whole + Duration::from_nanos(time.tv_nsec.try_into().unwrap_or(0))
}

fn once(target: &Target, input: &[u8]) -> Result<Cost, Failure> {
    let (start, begun) = (cpu_time(), Instant::now());
    let (result, peak) = alloc::measure(|| catch_unwind(|| (target.run)(input)));
    let feature = result.map_err(|panic| Failure::Panic(message(&*panic)))?;
    let waited = begun.elapsed();
    Ok(Cost { feature, peak, took: cpu_time().saturating_sub(start), waited })
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
