//! `afar fsck PARTITION`: whether all that is in a partition of a server that is not running fits together, and if not, what is wrong where;
//! repairs of what is only bookkeeping, and dumps of what can be read. The checks and repairs are `afs_volume`'s.

use crate::classic::{Command, Given, Opt};
use crate::output;
use afs_volume::disk::{Disk, FolderDisk, ScratchDisk};
use afs_volume::fsck::{self, Finding, Report};
use afs_volume::repair::{self, Repaired, Undo};
use afs_volume::{Config, Partition, Stamp};
use afs_wire::ids::{AfsTime, ViceId};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

/// What the command does, as lists of commands and its help say it.
pub(crate) const ABOUT: &str = "checks, repairs or dumps the volumes of a partition whose server is stopped";

static COMMAND: Command = Command {
    name: "fsck",
    options: &[
        Opt::single("partition", "folder with the volumes, such as /vicepa").required().path(),
        Opt::flag("json", "print one JSON object"),
        Opt::flag("repair", "repair what is only bookkeeping: counts, orphans, names that lead nowhere")
            .ours(),
        Opt::flag("n", "only say what -repair would do").ours(),
        Opt::single("keep", "file for what -repair replaces; else one in the partition").ours().path(),
        Opt::single("undo", "file that -repair has written: take that repair back").ours().path(),
        Opt::single("dump", "name or number of a volume: write what can be read of it as a dump").ours(),
        Opt::single("file", "file for the dump; else the standard output").ours().path(),
    ],
};

/// A file that each partition has.
const ROWS: &str = "rows.redb";

/// Runs the command with the arguments behind its name. The status is that of a failure if something is wrong.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let given = match COMMAND.start(ABOUT, args) {
        Ok(given) => given,
        Err(status) => return status,
    };
    let volume = match given.text("dump") {
        Ok(volume) => volume,
        Err(misuse) => return misuse.report(),
    };
    if let Err(text) = check_options(&given) {
        eprintln!("{}: {text}; see 'fsck -help'", COMMAND.name);
        return ExitCode::from(crate::classic::MISUSE);
    }
    let folder = Path::new(given.value("partition").unwrap_or_default());
    let done = match (given.value("undo"), volume) {
        (Some(file), _) => undo(folder, Path::new(file)),
        (None, Some(volume)) => dump(folder, volume, given.value("file").map(Path::new)),
        (None, None) if given.has("repair") => repair(folder, &given),
        (None, None) => check(folder, given.has("json")),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{}: {}: {error}", COMMAND.name, folder.display());
        ExitCode::FAILURE
    })
}

/// One thing at a time, each with its own options.
fn check_options(given: &Given) -> Result<(), String> {
    let acts: Vec<&str> = ["repair", "undo", "dump"].into_iter().filter(|act| given.has(act)).collect();
    if let [one, other, ..] = acts[..] {
        return Err(format!("-{one} and -{other} do not go together"));
    }
    for (option, act) in [("n", "repair"), ("keep", "repair"), ("file", "dump")] {
        if given.has(option) && acts != [act] {
            return Err(format!("-{option} is for -{act}"));
        }
    }
    match given.has("json") && matches!(acts[..], ["undo" | "dump"]) {
        true => Err("-json is for checks and -repair".into()),
        false => Ok(()),
    }
}

fn config() -> Config {
    Config { has_thread: false, reserve_kib: 0, ..Config::default() }
}

fn stamp() -> Stamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Stamp { who: ViceId(0), now: AfsTime(u32::try_from(now.as_secs()).unwrap_or(u32::MAX)) }
}

/// The folder's disk, locked: no server has it.
fn open(folder: &Path) -> Result<Arc<dyn Disk>, String> {
    // Another folder is left as it is: its rights, too.
    if !folder.join(ROWS).exists() {
        return Err(format!("this is no partition of a server of ours: it has no {ROWS}"));
    }
    match FolderDisk::open(folder) {
        Ok(disk) => Ok(Arc::new(disk)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err("cannot open the partition: a server, or another fsck, has it open; stop that first".into())
        }
        Err(error) => Err(format!("cannot open the partition: {error}")),
    }
}

/// The same, to try things on: nothing of it changes.
fn open_to_try(folder: &Path) -> Result<Arc<dyn Disk>, String> {
    Ok(Arc::new(ScratchDisk::over(open(folder)?)))
}

fn told(error: impl ToString) -> String {
    error.to_string()
}

fn check(folder: &Path, as_json: bool) -> Result<ExitCode, String> {
    let partition = Partition::open_on(open_to_try(folder)?, folder, config()).map_err(told)?;
    let report = fsck::check(&partition).map_err(told)?;
    let written = match as_json {
        true => output::write_json(&json_of(&report)),
        false => output::write(&text_of(&report)),
    };
    let status = output::finish(COMMAND.name, written);
    Ok(if report.is_clean() { status } else { ExitCode::FAILURE })
}

fn repair(folder: &Path, given: &Given) -> Result<ExitCode, String> {
    let as_json = given.has("json");
    let below = open(folder)?;
    let scratch: Arc<dyn Disk> = Arc::new(ScratchDisk::over(below.clone()));
    let plan = repair::repair(&scratch, folder, &config(), None, stamp()).map_err(told)?;
    drop(scratch);
    if !as_json {
        output::write(&text_of_repairs(&plan)).map_err(told)?;
    }
    let is_dry = given.has("n");
    let (done, kept) = if is_dry || plan.repairs.is_empty() {
        (plan, None)
    } else {
        let (path, mut file) = make_file(folder, given.value("keep"))?;
        let undo: &mut dyn Undo = &mut file;
        let done = repair::repair(&below, folder, &config(), Some(undo), stamp());
        let advice = || format!("'afar fsck -undo {}' takes back what was repaired", path.display());
        (done.map_err(|error| format!("{error}; {}", advice()))?, Some(path))
    };
    let status = if done.left.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if as_json {
        let mut value = json_of(&done.left);
        value["repairs"] = done.repairs.iter().map(json_of_finding).collect();
        value["more_repairs"] = done.more_repairs.into();
        value["undo"] = kept.map(|path| output::text_of(path.as_os_str())).into();
        output::write_json(&value).map_err(told)?;
        return Ok(status);
    }
    let mut text = String::new();
    if let Some(path) = kept {
        let path = output::text_of(path.as_os_str());
        _ = writeln!(text, "this was done; 'afar fsck {} -undo {path}' takes it back", folder.display());
    } else if is_dry {
        text += "nothing was changed\n";
    }
    if !done.left.is_clean() {
        text += "what is left is more than bookkeeping; -dump saves what can be read of a volume:\n";
    }
    output::write(&(text + &text_of(&done.left))).map_err(told)?;
    Ok(status)
}

/// The file for what a repair replaces. It has data of users.
fn make_file(folder: &Path, wanted: Option<&OsStr>) -> Result<(PathBuf, File), String> {
    let name = || jiff::Zoned::now().strftime("fsck-%Y%m%d-%H%M%S.undo").to_string();
    let path = wanted.map_or_else(|| folder.join(name()), PathBuf::from);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file =
        file.map_err(|error| format!("cannot make {}: {error}; -keep names another", path.display()))?;
    Ok((path, file))
}

fn undo(folder: &Path, path: &Path) -> Result<ExitCode, String> {
    let file = File::open(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let undone = repair::undo(&open(folder)?, &config(), &mut BufReader::new(file));
    let undone = undone.map_err(|error| format!("{}: {error}", path.display()))?;
    let text = format!("took back {} rows and {} files of data\n", undone.rows, undone.files);
    Ok(output::finish(COMMAND.name, output::write(&text)))
}

fn dump(folder: &Path, volume: &str, path: Option<&Path>) -> Result<ExitCode, String> {
    let salvaged = repair::salvage(&open_to_try(folder)?, folder, &config(), volume, stamp());
    let salvaged = salvaged.map_err(|error| format!("volume {volume}: {error}"))?;
    let shown = Arc::clone(&salvaged.volume);
    let cannot = |error: io::Error| format!("cannot write the dump: {error}");
    let lost = match path {
        None => afs_volserver::write_dump(salvaged.volume, &mut BufWriter::new(io::stdout().lock())),
        Some(path) => {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
            let mut file = file.map_err(|error| format!("cannot make {}: {error}", path.display()))?;
            afs_volserver::write_dump(salvaged.volume, &mut file).and_then(|lost| file.flush().map(|()| lost))
        }
    };
    let lost = lost.map_err(cannot)?;
    let mut text = String::new();
    for repair in &salvaged.repairs {
        _ = writeln!(text, "mended in the dump: {repair}");
    }
    for thing in &salvaged.lost {
        _ = writeln!(text, "lost: {thing}");
    }
    for lost in &lost {
        let (path, end) = (repair::path(&shown, lost.vnode), lost.from + lost.length);
        _ = writeln!(text, "lost: volume {}: {path}: bytes {} to {end} are zeros", shown.id(), lost.from);
    }
    if salvaged.more_lost > 0 {
        _ = writeln!(text, "and {} more are lost", salvaged.more_lost);
    }
    let is_whole = salvaged.lost.is_empty() && lost.is_empty();
    if !is_whole {
        text += "the dump has all that can be read\n";
    }
    eprint!("{}", text.lines().map(|line| output::harmless(line) + "\n").collect::<String>());
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn json_of_finding(finding: &Finding) -> Value {
    json!({ "volume": finding.volume.map(|id| id.0), "what": finding.what, "why": finding.why })
}

fn json_of(report: &Report) -> Value {
    json!({
        "clean": report.is_clean(),
        "volumes": report.volumes,
        "vnodes": report.vnodes,
        "data_files": report.data_files,
        "findings": report.findings.iter().map(json_of_finding).collect::<Vec<_>>(),
        "more_findings": report.more_findings,
    })
}

fn lines_of(findings: &[Finding]) -> String {
    findings.iter().map(|finding| output::harmless(&finding.to_string()) + "\n").collect()
}

fn text_of_repairs(repaired: &Repaired) -> String {
    let mut text = lines_of(&repaired.repairs);
    match (repaired.repairs.len(), repaired.more_repairs) {
        (0, _) => text += "there is nothing to repair\n",
        (_, 0) => {}
        (_, more) => _ = writeln!(text, "and {more} more repairs"),
    }
    text
}

fn text_of(report: &Report) -> String {
    let mut text = lines_of(&report.findings);
    let wrong = report.findings.len() as u64 + report.more_findings;
    text += &format!(
        "{} volumes, {} vnodes, {} files of data: ",
        report.volumes, report.vnodes, report.data_files
    );
    text += &match wrong {
        0 => "nothing is wrong\n".to_owned(),
        n => format!("{n} things are wrong\n"),
    };
    text
}
