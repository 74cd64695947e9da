//! The repetition of runs: in turns, so that a slow minute of the machine hits all that is compared, and again
//! when one failed or was not valid.

use std::path::PathBuf;
use std::time::Instant;

use crate::error::Error;
use crate::host::{self, FreeMemory};
use crate::interrupt::Interrupt;
use crate::record::{Record, Row, Run, short};
use crate::sys;
use crate::tools::Tools;
use crate::transfer;

/// Attempts at a run until it is given up; a quick run has one.
const ATTEMPTS: usize = 3;

/// The tools of experiments.
pub(crate) struct Lab {
    pub(crate) tools: Tools,
    pub(crate) interrupt: Interrupt,
    pub(crate) free_memory: FreeMemory,
    /// Short runs, one of each.
    pub(crate) is_quick: bool,
    /// The number of measurements of each thing, if not as often as the experiment says.
    pub(crate) repeats: Option<usize>,
    /// Only rows whose names contain this are measured.
    pub(crate) only: Option<String>,
    /// The folder for records.
    pub(crate) out: PathBuf,
}

impl Lab {
    /// One value for real runs, another for quick ones.
    pub(crate) fn choose<T>(&self, full: T, quick: T) -> T {
        if self.is_quick { quick } else { full }
    }

    /// The number of measurements of each thing; once in quick runs.
    pub(crate) fn repeats(&self, full: usize) -> usize {
        self.repeats.unwrap_or(if self.is_quick { 1 } else { full })
    }

    /// True if a row of this name is to be measured.
    fn wants(&self, row: &Row) -> bool {
        is_named(row, self.only.as_deref())
    }
}

/// True if a row's name contains the text, if there is one.
fn is_named(row: &Row, only: Option<&str>) -> bool {
    only.is_none_or(|text| row.name().contains(text))
}

/// Measures something once.
type Measure<'a> = Box<dyn Fn(&Lab) -> Result<Run, Error> + 'a>;

/// One of the things that are compared, and how to measure it once.
pub(crate) struct Cell<'a> {
    /// Pairs of name and value that tell it from the others.
    pub(crate) labels: Vec<(&'static str, String)>,
    /// Measures it.
    pub(crate) run: Measure<'a>,
}

impl<'a> Cell<'a> {
    pub(crate) fn new(
        labels: impl IntoIterator<Item = (&'static str, String)>,
        run: impl Fn(&Lab) -> Result<Run, Error> + 'a,
    ) -> Cell<'a> {
        Cell { labels: labels.into_iter().collect(), run: Box::new(run) }
    }
}

/// Measures all of them that are wanted `repeats` times, in turns that begin with another one each time, and adds
/// their rows to the record, which is written as far as it is: who is interrupted can go on from there. What the record has from an
/// earlier sitting is not measured again.
///
/// Errors: the end of everything only; what went wrong with a run is in the record.
pub(crate) fn interleave(
    lab: &Lab,
    record: &mut Record,
    cells: &[Cell<'_>],
    repeats: usize,
) -> Result<(), Error> {
    let all = cells.iter().map(|cell| (cell, Row::new(&cell.labels, repeats)));
    let is_missing = |row: &Row| !record.rows.iter().any(|measured| measured.labels == row.labels);
    let (cells, mut rows): (Vec<_>, Vec<_>) =
        all.filter(|(_, row)| lab.wants(row) && is_missing(row)).unzip();
    for repeat in 1..=repeats {
        for turn in 0..cells.len() {
            let index = (turn + repeat - 1) % cells.len();
            measure(lab, cells[index], &mut rows[index], &record.headline, repeat)?;
        }
    }
    record.rows.extend(rows);
    record.is_unfinished = true;
    record.write(&lab.out)
}

/// One run, with its further attempts.
fn measure(lab: &Lab, cell: &Cell<'_>, row: &mut Row, headline: &str, repeat: usize) -> Result<(), Error> {
    for attempt in 1..=lab.choose(ATTEMPTS, 1) {
        lab.free_memory.take_back();
        let (began, stolen) = (Instant::now(), host::stolen_ticks());
        let mut run = match (cell.run)(lab) {
            Ok(run) => run,
            Err(Error::Run(problem)) => {
                // A signal may have ended the processes before it came to us.
                lab.interrupt.check()?;
                Run { problems: vec![problem], ..Run::default() }
            }
            Err(fatal) => return Err(fatal),
        };
        (run.repeat, run.attempt) = (repeat, attempt);
        let stolen = host::stolen_ticks().saturating_sub(stolen);
        let share = host::stolen_share(stolen, sys::clock_ticks(), began.elapsed());
        run.figures.insert("taken by the host, % of the cores".to_string(), share);
        transfer::note_disturbance(&mut run);
        let value = run.figures.get(headline).map_or("-".to_string(), |value| short(*value));
        let counts = if run.is_valid { "" } else { "  DOES NOT COUNT" };
        let problems: String = run.problems.iter().map(|problem| format!("  ({problem})")).collect();
        eprintln!("   {repeat}: {:<44} {value:>9} {headline}{counts}{problems}", row.name());
        let is_valid = run.is_valid;
        row.push(run);
        if is_valid {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_any_part_of_their_names() {
        let row = Row::new(&[("RTT", "12.5 ms".to_string()), ("who", "afar".to_string())], 1);
        assert!(is_named(&row, None));
        assert!(is_named(&row, Some("ms, afar")));
        assert!(!is_named(&row, Some("TCP")));
    }
}
