//! The environment of the figures: versions, machine, date. Reads them once, for all records.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use crate::lab::Lab;
use crate::quiet;
use crate::record::{Experiment, Record, Setting};

impl Setting {
    /// Asks the system. What cannot be had is "unknown".
    pub(crate) fn look(root: &Path) -> Setting {
        let git = |arguments: &[&str]| answer(Command::new("git").arg("-C").arg(root).args(arguments));
        let revision = git(&["rev-parse", "--short=12", "HEAD"]);
        // Records that were just written do not make the measured code another.
        let changes = git(&["status", "--porcelain", "--", ".", ":!bench/results"]);
        let is_changed = changes.is_some_and(|text| !text.is_empty());
        let unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".to_string());
        let package = ["-W", "-f", "${Version}", "libopenafs-dev"];
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_kib: u64 = field(&meminfo, "MemTotal")
            .and_then(|text| text.strip_suffix(" kB")?.trim().parse().ok())
            .unwrap_or(0);
        Setting {
            afar: unknown(revision) + if is_changed { "+" } else { "" },
            rustc: unknown(answer(Command::new("rustc").arg("--version"))),
            kernel: unknown(fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|t| t.trim().into())),
            iperf3: unknown(answer(Command::new("iperf3").arg("--version")).map(first_line)),
            libopenafs: unknown(answer(Command::new("dpkg-query").args(package))),
            cpu: unknown(field(&cpuinfo, "model name").map(str::to_string)),
            cores: thread::available_parallelism().map_or(0, |n| n.get()),
            memory_mib: memory_kib >> 10,
            ..Setting::default()
        }
    }

    /// An empty record of an experiment that begins now.
    pub(crate) fn begin_record(&self, experiment: &Experiment, lab: &Lab, is_quiet: bool) -> Record {
        let date = answer(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"])).unwrap_or_default();
        Record {
            experiment: experiment.name.to_string(),
            title: experiment.title.to_string(),
            is_quick: lab.is_quick,
            only: lab.only.clone(),
            was_quiet_at_start: is_quiet,
            setting: Setting { date, load_average: quiet::load_average(), ..self.clone() },
            ..Record::default()
        }
    }
}

/// True if two revisions, as a setting names them, measure the same: no program or bench differs.
pub(crate) fn is_same_code(root: &Path, one: &str, other: &str) -> bool {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["diff", "--quiet", one, other, "--", "crates", "Cargo.toml", "Cargo.lock"]);
    // A revision with changes is no name that git knows.
    answer(&mut git).is_some()
}

fn first_line(text: String) -> String {
    text.lines().next().unwrap_or_default().to_string()
}

/// The output of a command, if it succeeds.
fn answer(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The value of the first line "name : value".
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}
