//! The client's cost when nothing is in its cache, far from our servers: a gigabyte, beside what rxperf carries; the first
//! line of a long file; a tree of files listed.

use std::time::Duration;

use super::rtt_text;
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{Mount, OurCell, Scene, work};
use crate::network::{LINK_TEXT, LinkSpec, over_link};
use crate::record::{Record, Run, short};
use crate::tools::Stack;
use crate::transfer::{self, Window};

const RTTS: [Duration; 3] =
    [Duration::from_micros(12_500), Duration::from_millis(50), Duration::from_millis(100)];
/// The round trip at which the first line and the listing are measured.
const NEAR: Duration = RTTS[0];
const WHO: [&str; 2] = ["afar rxperf", "afar mount"];

/// The bytes of the long files, and their number: each is read once.
const LONG_BYTES: u64 = 10_000_000_000;
const LONG_FILES: usize = 5;
/// The number of folders in the tree.
const FOLDERS: usize = 100;

const GOAL_BULK: f64 = 0.9;
const GOAL_FIRST_LINE_RTT: f64 = 3.0;
const GOAL_LIST_S: f64 = 3.0;

const MBIT: &str = "Mbit/s";
const ROUND_TRIPS: &str = "round trips";
const SECONDS: &str = "s";
const FIRST_LINE: &str = "first line of 10 GB";
const LIST: &str = "ls -lR";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let bytes: u64 = lab.choose(1_000_000_000, 200_000_000);
    let files = lab.choose(100, 10);
    record.headline = MBIT.into();
    record.placement = "The client and the program that reads in namespace A or beside it, the servers in namespace B, the emulator's \
        thread (SCHED_FIFO 10) in the bench's process; nothing is pinned, niceness 0, all on the cores of this machine."
        .into();
    record.method = format!(
        "{LINK_TEXT} A file of {bytes} bytes on our server is read from its beginning to its end in MiB by a program in a mount whose cache \
         is empty, from its open to its last byte; its folder's location and listing are known. Beside it rxperf receives as many bytes in \
         one call. The first line of each of {LONG_FILES} files of 10 GB: from open to the line, in round trips; the median counts. ls -lR \
         of {} files in {FOLDERS} folders, of which the client knows only the folder above.",
        files * FOLDERS
    );
    let cell = OurCell::new()?;
    prepare(lab, &cell, bytes, files)?;
    let cell = &cell;
    let mut cells = Vec::new();
    for rtt in lab.choose(&RTTS[..], &RTTS[..1]) {
        for who in WHO {
            let labels = [("RTT", rtt_text(*rtt)), ("what", "bulk".to_string()), ("who", who.to_string())];
            cells.push(Cell::new(labels, move |lab| match who {
                "afar mount" => bulk(lab, cell, *rtt),
                _ => rxperf(lab, *rtt, bytes),
            }));
        }
    }
    let labels =
        |what: &str| [("RTT", rtt_text(NEAR)), ("what", what.to_string()), ("who", WHO[1].to_string())];
    cells.push(Cell::new(labels(FIRST_LINE), move |lab| first_line(lab, cell)));
    cells.push(Cell::new(labels(LIST), move |lab| list(lab, cell)));
    interleave(lab, record, &cells, lab.repeats(3))?;

    for rtt in RTTS {
        let rtt = rtt_text(rtt);
        let [theirs, ours] = WHO.map(|who| record.median(MBIT, &[&rtt, "bulk", who]));
        if ours.is_none() && lab.is_quick {
            continue;
        }
        let note = format!(
            "Mbit/s: {} and rxperf {}",
            ours.map_or("-".into(), short),
            theirs.map_or("-".into(), short)
        );
        let claim = format!("{bytes} bytes cold at {rtt}, by rxperf");
        record.at_least(&claim, ours.zip(theirs).map(|(a, b)| a / b), GOAL_BULK, "times", &note);
    }
    let rtt = rtt_text(NEAR);
    let trips = record.median(ROUND_TRIPS, &[&rtt, FIRST_LINE]);
    // Time that is no round trip, of system calls and processes, is in it too.
    record.at_most("The first line of a file of 10 GB", trips, GOAL_FIRST_LINE_RTT, ROUND_TRIPS, "");
    let seconds = record.median(SECONDS, &[&rtt, LIST]);
    record.at_most(&format!("ls -lR of {} files", files * FOLDERS), seconds, GOAL_LIST_S, SECONDS, "");
    Ok(())
}

/// Makes what is read, without a delay.
fn prepare(lab: &Lab, cell: &OurCell, bytes: u64, files: usize) -> Result<(), Error> {
    let scene = Scene::open(lab, cell, &LinkSpec::none())?;
    let mount = Mount::afar(lab, scene.near(), &cell.client(), None)?;
    for folder in ["bulk", "long", "tree"] {
        let path = mount.file(folder);
        std::fs::create_dir(&path).map_err(|e| Error::setup(format!("making {path}: {e}")))?;
    }
    work(lab, None, ["make-file", &mount.file("bulk/file"), &bytes.to_string()])?;
    for number in 0..LONG_FILES {
        work(lab, None, ["make-lines", &mount.file(&format!("long/{number}")), &LONG_BYTES.to_string()])?;
    }
    let (folders, files) = (FOLDERS.to_string(), files.to_string());
    work(lab, None, ["make-tree", &mount.file("tree"), &folders, &files, "0"])?;
    mount.stop()
}

/// A mount with an empty cache over a fresh link, which knows the folder but nothing in it.
fn cold(
    lab: &Lab,
    cell: &OurCell,
    rtt: Duration,
    folder: &str,
    measure: impl FnOnce(&Mount) -> Result<Run, Error>,
) -> Result<Run, Error> {
    let scene = Scene::open(lab, cell, &LinkSpec::wan(rtt))?;
    let mount = Mount::afar(lab, scene.far(), &cell.client(), None)?;
    std::fs::metadata(mount.file(folder)).map_err(|e| Error::run(format!("{folder} of the mount: {e}")))?;
    if folder != "tree" {
        // Its names are known when one that is not there was looked for; of what they name nothing is.
        let absent = std::fs::metadata(mount.file(&format!("{folder}/absent")));
        if absent.is_ok() {
            return Err(Error::run(format!("{folder} has a file that nobody made")));
        }
    }
    let before = scene.link().counters();
    let cpu = (mount.cpu_s(), scene.server_cpu_s());
    let mut run = measure(&mount)?;
    let counters = scene.link().counters().since(&before);
    if let Err(invalid) = counters.check() {
        run.is_valid = false;
        run.problems.push(invalid.to_string());
    }
    run.figures.insert("client, CPU s".into(), mount.cpu_s() - cpu.0);
    run.figures.insert("server, CPU s".into(), scene.server_cpu_s() - cpu.1);
    run.figures.insert("late packets, %".into(), counters.late_share() * 100.0);
    let drops = counters.a_to_b.drop_queue + counters.b_to_a.drop_queue;
    run.figures.insert("dropped by the queue, packets".into(), drops as f64);
    run.commands.splice(0..0, [scene.command().to_owned(), mount.command().to_owned()]);
    run.link = Some(counters);
    Ok(run)
}

fn bulk(lab: &Lab, cell: &OurCell, rtt: Duration) -> Result<Run, Error> {
    cold(lab, cell, rtt, "bulk", |mount| {
        let worked = work(lab, None, ["read", &mount.file("bulk/file"), "1048576", "0", "1"])?;
        let mut run = Run { is_valid: true, commands: vec![worked.command.clone()], ..Run::default() };
        run.figures.insert(MBIT.into(), worked.mb_per_s() * 8.0);
        run.figures.insert(SECONDS.into(), worked.median_s());
        Ok(run)
    })
}

fn rxperf(lab: &Lab, rtt: Duration, bytes: u64) -> Result<Run, Error> {
    let client =
        lab.tools.rxperf_client(Stack::Afar).and(["-c", "recv", "-b", &bytes.to_string(), "-T", "1"]);
    // The whole call is measured: a reader waits for its slow start too. The window is for the CPU time.
    let window = Window::new(0, 1);
    let server = transfer::server(Stack::Afar, &[]);
    over_link(lab, &LinkSpec::wan(rtt), |lab, ends| transfer::rxperf(lab, ends, &server, &client, window))
}

fn first_line(lab: &Lab, cell: &OurCell) -> Result<Run, Error> {
    cold(lab, cell, NEAR, "long", |mount| {
        let files: Vec<String> =
            (0..LONG_FILES).map(|number| mount.file(&format!("long/{number}"))).collect();
        // One after the other, with time between in which what was read ahead comes to its end.
        let (mut seconds, mut commands) = (Vec::new(), Vec::new());
        for file in &files {
            let worked = work(lab, None, ["first-line", file])?;
            seconds.extend(worked.seconds);
            commands.push(worked.command);
            lab.interrupt.sleep(Duration::from_millis(200))?;
        }
        let mut run = Run { is_valid: true, commands, ..Run::default() };
        seconds.sort_by(f64::total_cmp);
        let trips = |seconds: f64| seconds / NEAR.as_secs_f64();
        run.figures.insert(ROUND_TRIPS.into(), trips(seconds[seconds.len() / 2]));
        run.figures.insert("round trips, most".into(), trips(seconds[seconds.len() - 1]));
        run.figures.insert("round trips, least".into(), trips(seconds[0]));
        Ok(run)
    })
}

fn list(lab: &Lab, cell: &OurCell) -> Result<Run, Error> {
    cold(lab, cell, NEAR, "tree", |mount| {
        let worked = work(lab, None, ["list", &mount.file("tree")])?;
        let mut run = Run { is_valid: true, commands: vec![worked.command.clone()], ..Run::default() };
        run.figures.insert(SECONDS.into(), worked.median_s());
        Ok(run)
    })
}
