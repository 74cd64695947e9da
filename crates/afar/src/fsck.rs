//! `afar fsck PARTITION`: whether all that is in a partition of a server that is not running fits together, and if
//! not, what is wrong where. The checks are `afs_volume::fsck`'s.

use crate::classic::{Command, Opt};
use crate::output;
use afs_volume::fsck::{self, Report};
use afs_volume::{Config, Partition, VolumeError};
use serde_json::json;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

static COMMAND: Command = Command {
    name: "fsck",
    options: &[
        Opt::single("partition", "folder with the volumes, such as /vicepa").required(),
        Opt::flag("json", "print one JSON object"),
    ],
};

/// Runs the command with the arguments behind its name. The status is that of a failure if something is wrong.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let given = match COMMAND.start(args) {
        Ok(given) => given,
        Err(status) => return status,
    };
    let folder = Path::new(given.value("partition").unwrap_or_default());
    let report = match check(folder) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{}: {}: {error}", COMMAND.name, folder.display());
            return ExitCode::FAILURE;
        }
    };
    let written = output::finish(COMMAND.name, write(&report, given.has("json")));
    if report.is_clean() { written } else { ExitCode::FAILURE }
}

fn check(folder: &Path) -> Result<Report, VolumeError> {
    let partition = Partition::open(folder, Config { has_thread: false, ..Config::default() })?;
    fsck::check(&partition)
}

fn write(report: &Report, as_json: bool) -> io::Result<()> {
    if as_json {
        let findings: Vec<_> = report
            .findings
            .iter()
            .map(|f| json!({ "volume": f.volume.map(|id| id.0), "what": f.what, "why": f.why }))
            .collect();
        return output::write_json(&json!({
            "clean": report.is_clean(),
            "volumes": report.volumes,
            "vnodes": report.vnodes,
            "data_files": report.data_files,
            "findings": findings,
            "more_findings": report.more_findings,
        }));
    }
    let mut text = String::new();
    for finding in &report.findings {
        text += &format!("{}\n", output::harmless(&finding.to_string()));
    }
    let wrong = report.findings.len() as u64 + report.more_findings;
    text += &format!(
        "{} volumes, {} vnodes, {} files of data: ",
        report.volumes, report.vnodes, report.data_files
    );
    text += &match wrong {
        0 => "nothing is wrong\n".to_owned(),
        n => format!("{n} things are wrong\n"),
    };
    output::write(&text)
}
