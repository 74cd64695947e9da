//! Snapshots of a volume, one a second: the time to make one whatever the volume has, what writers beside notice, what hundreds of them take,
//! and how soon their space is back.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::cells::{Cells, PLACEMENT_CELL, Served};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::record::{Record, Run};
use crate::tools::Stack;
use crate::workers::snapshots::{NAME, VERSION_BYTES};

/// Files of the small volume and of the large one.
const FILES: [&str; 2] = ["100", "100,000"];
/// Writers beside, and whether snapshots are made.
const BESIDE: [(&str, bool); 3] = [("0", true), ("64", false), ("64", true)];
/// The next of their volume ids, far from those that the cell gives out: none is used twice.
static NEXT: AtomicU32 = AtomicU32::new(700_000_001);
const TIMEOUT: Duration = Duration::from_secs(1800);
/// The time between two looks whether the space is back.
const LOOK: Duration = Duration::from_millis(50);
const MOST: &str = "most of a snapshot, ms";
const P99: &str = "store, p99, ms";
const MADE: &str = "one a second";
const MANY: &str = "hundreds";
/// The goals: of one snapshot in ms, and how many times the p99 of stores may be what it is without.
const GOAL_MS: f64 = 50.0;
const GOAL_P99: f64 = 2.0;

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let (large, seconds, many) = lab.choose((100_000, 20, 500), (2_000, 3, 5));
    record.headline = MOST.into();
    record.placement = PLACEMENT_CELL.into();
    record.method = format!(
        "A volume of 100 and one of {large} files of 8 KiB in folders of 1000, at our servers with their defaults. Once a second 20 files of 100 kB are written \
         anew and a snapshot is made by the three calls of `vos snapshot create`, {seconds} times; 'none' writes only. Writers store a file of 8 KiB each, \
         again and again. Then all are removed. '{MANY}': {many} snapshots of the large volume; space is that of the files with data, memory \
         the server's resident one, and the space counts as back when little more than one version is left."
    );
    let cells = Cells::start(lab)?;
    let served = cells.of(Stack::Afar)?;
    let volumes = [("few", 100), ("many", large)].map(|(name, files)| -> Result<String, Error> {
        let volume = served.volume(lab, name)?;
        worked(lab, served, ["fill", &volume, &files.to_string()])?;
        Ok(volume)
    });
    let [few, many_files] = volumes;
    let volumes = [few?, many_files?];
    let mut compared = Vec::new();
    for (files, volume) in FILES.into_iter().zip(&volumes) {
        for (writers, is_made) in BESIDE {
            let made = if is_made { MADE } else { "none" };
            let labels = [("files", files), ("writers", writers), ("snapshots", made)];
            compared.push(Cell::new(labels.map(|(name, text)| (name, text.to_string())), move |lab| {
                make(lab, served, volume, is_made, seconds, writers)
            }));
        }
    }
    let labels = [("files", FILES[1]), ("writers", "0"), ("snapshots", MANY)];
    let large = &volumes[1];
    compared.push(Cell::new(labels.map(|(name, text)| (name, text.to_string())), move |lab| {
        make(lab, served, large, true, many, "0")
    }));
    interleave(lab, record, &compared, lab.repeats(3))?;
    drop(compared);
    for files in FILES {
        let most = record.median(MOST, &[files, "0", MADE]);
        record.at_most(&format!("A snapshot of a volume of {files} files"), most, GOAL_MS, "ms", "");
        let [with, without] = [MADE, "none"].map(|made| record.median(P99, &[files, "64", made]));
        let times = with.zip(without).map(|(with, without)| with / without);
        let claim = format!("p99 of 64 writers of {files} files beside a snapshot a second, by none");
        record.at_most(&claim, times, GOAL_P99, "times", "");
    }
    let most = record.median(MOST, &[FILES[1], MANY]);
    record.at_most("A snapshot among hundreds", most, GOAL_MS, "ms", "");
    Ok(())
}

/// Runs the client program; what it reports.
fn worked<const N: usize>(
    lab: &Lab,
    served: &Served,
    arguments: [&str; N],
) -> Result<crate::cells::Measured, Error> {
    let [what, rest @ ..] = &arguments[..] else { unreachable!("it is told what to do") };
    let host = afar_interop::cell::ADDRESS.to_string();
    let client = lab.tools.bench().and([NAME, what, &host]).and(rest);
    served.measure(lab, &client, TIMEOUT)
}

/// Makes snapshots, and removes them.
fn make(
    lab: &Lab,
    served: &Served,
    volume: &str,
    is_made: bool,
    count: u32,
    writers: &str,
) -> Result<Run, Error> {
    let keys = served.keys();
    let data = served.partition().join("data");
    let before = (space_of(&data), served.memory_bytes()?);
    let first = if is_made { NEXT.fetch_add(count, Ordering::Relaxed) } else { 0 };
    let arguments = ["make", volume, &keys, &first.to_string(), &count.to_string(), writers];
    let made = worked(lab, served, arguments)?;
    let held = space_of(&data) - before.0;
    let mut run = Run { is_valid: true, report: made.report.clone(), ..Run::default() };
    let mut note = |name: &str, value: f64| {
        if value.is_finite() {
            run.figures.insert(name.into(), value);
        }
    };
    note("median of a snapshot, ms", made.number("median_ms"));
    note(MOST, made.number("most_ms"));
    if writers != "0" {
        note("stores/s", made.number("stores_a_second"));
        note(P99, made.number("store_p99_ms"));
    }
    if is_made {
        note("snapshots hold, MB", held / 1e6);
        note("server, more memory, MB", (served.memory_bytes()? - before.1) / 1e6);
        let cpu = served.cpu_s()?;
        let removed = worked(lab, served, ["remove", volume, &keys])?;
        note("median of a removal, ms", removed.number("median_ms"));
        let began = Instant::now();
        while space_of(&data) > before.0 + 1.1 * VERSION_BYTES && began.elapsed() < TIMEOUT {
            lab.interrupt.sleep(LOOK)?;
        }
        note("space is back, s", began.elapsed().as_secs_f64());
        note("server, CPU s of all removals", served.cpu_s()? - cpu);
    }
    Ok(run)
}

/// Bytes of all files in a folder.
fn space_of(folder: &Path) -> f64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => space_of(&entry.path()),
            Ok(found) => found.blocks() as f64 * 512.0,
            Err(_) => 0.0,
        })
        .sum()
}
