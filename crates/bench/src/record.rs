//! The findings of an experiment: rows of runs, their medians and spread, and what was promised beside it. The
//! files under `bench/results` are these records as JSON, and the report is made from those files alone.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use plots::{Summary, round, short};

use crate::error::Error;
use crate::json;
use crate::lab::Lab;

/// Something to measure.
pub(crate) struct Experiment {
    /// Its name on the command line, and its file.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// True if it is about what AFS is blamed for: distance, crowds, the cache, many files. A quick run without names has only these
    /// experiments.
    pub(crate) is_main: bool,
    /// Measures it, adding to a record that says nothing but when and where. Errors end everything.
    pub(crate) run: fn(&Lab, &mut Record) -> Result<(), Error>,
}

/// The machine and what ran on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// The revision, with "+" behind it if files were changed since.
    pub(crate) afar: String,
    pub(crate) rustc: String,
    pub(crate) kernel: String,
    pub(crate) iperf3: String,
    pub(crate) libopenafs: String,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    /// The time when the experiment began, UTC.
    pub(crate) date: String,
    /// The load average of the minute before the experiment began; between experiments it is that
    /// of the one before.
    pub(crate) load_average: f64,
    /// The state of idle cores, if not as ever.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) idle_cores: String,
    /// The measure against memory that the host takes back, if anything.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) free_memory: String,
}

/// An experiment's outcome. All its figures have their unit in their name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) experiment: String,
    pub(crate) title: String,
    /// Short runs that say little of speed.
    pub(crate) is_quick: bool,
    /// Text of --only: rows whose names do not contain it are missing, and goals that need them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) only: Option<String>,
    /// It was interrupted: rows and goals are missing, which --resume measures.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_unfinished: bool,
    /// The times when it was resumed, UTC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) resumed: Vec<String>,
    /// False: started by --force on a machine with other work.
    pub(crate) was_quiet_at_start: bool,
    pub(crate) setting: Setting,
    /// The place where processes ran.
    pub(crate) placement: String,
    /// The method of measuring, in sentences.
    pub(crate) method: String,
    /// The figure that counts, shown first and in the plot.
    pub(crate) headline: String,
    /// The label whose values stand beside each other in the plot, a mark each in a row of the other labels; without it each row is a bar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compared: Option<String>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) rows: Vec<Row>,
}

/// A goal, and what was measured. A goal that was missed is a result, not a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The claim, with its bound.
    pub(crate) claim: String,
    /// None: could not be measured.
    pub(crate) measured: Option<f64>,
    pub(crate) unit: String,
    pub(crate) bound: f64,
    pub(crate) is_met: bool,
    /// A note beside it.
    pub(crate) note: String,
}

/// The measurements that were made in one way, several times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The labels that tell it from the others: pairs of name and value.
    pub(crate) labels: Vec<(String, String)>,
    /// Valid runs that were wanted.
    pub(crate) wanted: usize,
    /// The summaries over the valid runs, by figure.
    pub(crate) figures: BTreeMap<String, Summary>,
    /// All of them, also those that do not count.
    pub(crate) runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The repetition, from 1, and the attempt at it.
    pub(crate) repeat: usize,
    pub(crate) attempt: usize,
    /// True if it counts: nothing failed, and the link's counters are in order.
    pub(crate) is_valid: bool,
    /// The reasons why it does not count, and other oddities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
    pub(crate) figures: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) commands: Vec<String>,
    /// The client's report.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) report: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<linkem::Counters>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) curves: Vec<Curve>,
}

/// Something over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Pairs of x and y.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Record {
    /// The row with all of these label values.
    pub(crate) fn row(&self, values: &[&str]) -> Option<&Row> {
        self.rows.iter().find(|row| values.iter().all(|v| row.labels.iter().any(|(_, value)| value == v)))
    }

    /// The median of a figure in the row with all of these label values.
    pub(crate) fn median(&self, figure: &str, values: &[&str]) -> Option<f64> {
        Some(self.row(values)?.figures.get(figure)?.median)
    }

    /// True if every row has the valid runs that it should have.
    pub(crate) fn is_complete(&self) -> bool {
        self.rows.iter().all(|row| row.valid_runs().count() == row.wanted)
    }

    /// Notes a goal of at least `bound`.
    pub(crate) fn at_least(
        &mut self,
        claim: &str,
        measured: Option<f64>,
        bound: f64,
        unit: &str,
        note: &str,
    ) {
        let is_met = measured.is_some_and(|m| m >= bound);
        self.push_verdict(
            format!("{claim}: at least {} {unit}", short(bound)),
            measured,
            bound,
            unit,
            is_met,
            note,
        );
    }

    /// Notes a goal of at most `bound`.
    pub(crate) fn at_most(&mut self, claim: &str, measured: Option<f64>, bound: f64, unit: &str, note: &str) {
        let is_met = measured.is_some_and(|m| m <= bound);
        self.push_verdict(
            format!("{claim}: at most {} {unit}", short(bound)),
            measured,
            bound,
            unit,
            is_met,
            note,
        );
    }

    fn push_verdict(
        &mut self,
        claim: String,
        measured: Option<f64>,
        bound: f64,
        unit: &str,
        is_met: bool,
        note: &str,
    ) {
        if measured.is_none() && self.only.is_some() {
            return;
        }
        let (unit, note) = (unit.to_string(), note.to_string());
        self.verdicts.push(Verdict {
            claim,
            measured: measured.map(round),
            unit,
            bound: round(bound),
            is_met,
            note,
        });
    }

    /// Writes it to its file in this folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        let path = folder.join(format!("{}.json", self.experiment));
        let value =
            serde_json::to_value(self).map_err(|e| Error::setup(format!("{}: {e}", self.experiment)))?;
        fs::write(&path, json::text(&value))
            .map_err(|e| Error::setup(format!("writing {}: {e}", path.display())))
    }

    /// Reads an experiment's file, if it is there.
    pub(crate) fn read(folder: &Path, experiment: &str) -> Result<Option<Record>, Error> {
        let path = folder.join(format!("{experiment}.json"));
        let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
        let again = "measure it again, or remove it";
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|e| Error::setup(format!("{} is not such a record ({again}): {e}", path.display())))
    }
}

impl Row {
    /// An empty row.
    pub(crate) fn new(labels: &[(&str, String)], wanted: usize) -> Row {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        Row { labels, wanted, figures: BTreeMap::new(), runs: Vec::new() }
    }

    /// The label's values, for people.
    pub(crate) fn name(&self) -> String {
        let values: Vec<_> = self.labels.iter().map(|(_, value)| value.as_str()).collect();
        values.join(", ")
    }

    pub(crate) fn valid_runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.is_valid)
    }

    /// Adds a run and computes medians and spread anew.
    pub(crate) fn push(&mut self, mut run: Run) {
        for value in run.figures.values_mut() {
            *value = round(*value);
        }
        for text in run.commands.iter_mut().chain(&mut run.problems) {
            *text = from_the_root(text);
        }
        self.runs.push(run);
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for run in self.valid_runs() {
            for (name, value) in &run.figures {
                values.entry(name.clone()).or_default().push(*value);
            }
        }
        let summed_up = values.into_iter().filter_map(|(name, v)| Some((name, Summary::of(v)?)));
        self.figures = summed_up.collect();
    }
}

/// A text with its paths as seen from the project's folder: where that is on one machine is of no use to others.
fn from_the_root(text: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().unwrap_or(root);
    text.replace(&format!("{}/", root.display()), "")
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.is_met { "met" } else { "MISSED" };
        match self.measured {
            Some(measured) => write!(f, "{word:6} {} (measured: {})", self.claim, short(measured)),
            None => write!(f, "{word:6} {} (not measured)", self.claim),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;

    fn run(value: f64, is_valid: bool) -> Run {
        Run { is_valid, figures: BTreeMap::from([("Mbit/s".to_string(), value)]), ..Run::default() }
    }

    #[test]
    fn only_valid_runs_count() {
        let mut row = Row::new(&[("who", "afar".to_string())], 3);
        for (value, is_valid) in [(3.0, true), (1.0, true), (900.0, false), (2.0, true)] {
            row.push(run(value, is_valid));
        }
        assert_eq!(row.figures["Mbit/s"], Summary { median: 2.0, min: 1.0, max: 3.0, runs: 3 });
        assert_eq!(row.runs.len(), 4);
    }

    #[test]
    fn records_name_no_folder_of_one_machine() {
        let mut row = Row::new(&[("who", "afar".to_string())], 1);
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
        let commands = vec![format!("dd if={}/src/main.rs of=/tmp/x", here.display())];
        let problems = vec![format!("{}/src/main.rs is not a file", here.display())];
        row.push(Run { commands, problems, ..run(1.0, true) });
        assert_eq!(row.runs[0].commands, ["dd if=crates/bench/src/main.rs of=/tmp/x"]);
        assert_eq!(row.runs[0].problems, ["crates/bench/src/main.rs is not a file"]);
    }

    #[test]
    fn a_record_survives_its_file() {
        let folder = Folder::new("bench-record");
        let mut record = Record { experiment: "wan".to_string(), ..Record::default() };
        let mut row = Row::new(&[("RTT", "50 ms".to_string()), ("who", "afar".to_string())], 1);
        row.push(Run { link: Some(linkem::Counters::default()), ..run(923.456789, true) });
        record.rows.push(row);
        record.at_least("a call", record.median("Mbit/s", &["50 ms", "afar"]), 914.0, "Mbit/s", "");
        record.write(&folder).unwrap();
        let read = Record::read(&folder, "wan").unwrap().unwrap();
        assert_eq!(read, record);
        assert!(read.is_complete());
        assert_eq!(read.verdicts[0].to_string(), "met    a call: at least 914 Mbit/s (measured: 923)");
    }

    #[test]
    fn a_part_of_an_experiment_has_only_the_goals_that_it_measured() {
        let mut record = Record { only: Some("afar".to_string()), ..Record::default() };
        record.at_least("a call", None, 914.0, "Mbit/s", "");
        assert!(record.verdicts.is_empty());
        record.only = None;
        record.at_least("a call", None, 914.0, "Mbit/s", "");
        assert!(!record.verdicts[0].is_met);
    }
}
