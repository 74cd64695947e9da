//! The number of threads that should answer the kernel: small cached files read by one, two and four programs at once, in mounts
//! with one, two and four such threads. Nothing is pinned, so that threads may answer on other cores than those that ask.

use std::thread;

use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{Mount, OurCell, Scene, work};
use crate::network::LinkSpec;
use crate::record::{Record, Run, short};

const THREADS: [&str; 3] = ["1", "2", "4"];
/// Programs that read at once, each in a tree of its own.
const READERS: [usize; 3] = [1, 2, 4];
/// The number that `afar mount` has without an option; the others are judged by it.
const USUAL: &str = "2";
/// The number of folders in a tree, and the bytes of a file.
const FOLDERS: usize = 10;
const BYTES: usize = 8192;
/// The usual number has to reach so much of the best.
const GOAL: f64 = 0.95;

const RATE: &str = "files/s";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let files = lab.choose(5_000, 500) / FOLDERS;
    let passes = lab.choose(5, 3).to_string();
    record.headline = RATE.into();
    record.placement =
        "Servers, clients and programs on all cores of this machine, nothing pinned, niceness 0.".into();
    record.method = format!(
        "Mounts of our cell with so many threads that answer the kernel (afar mount --threads). One, two or four programs at once open, \
         read and close {} files of {BYTES} bytes in {FOLDERS} folders, each program in a tree of its own, {passes} times; all of it is in \
         the client's cache. The figure is the sum of what each program reaches in its median pass. Repetitions in turns.",
        files * FOLDERS
    );
    let cell = OurCell::new()?;
    let scene = Scene::open(lab, &cell, &LinkSpec::none())?;
    let trees = READERS.iter().copied().max().unwrap_or(1);
    let tree = |mount: &Mount, number: usize| mount.file(&format!("tree{number}"));
    let maker = Mount::afar(lab, scene.near(), &cell.client(), None)?;
    for number in 0..trees {
        let folder = tree(&maker, number);
        std::fs::create_dir(&folder).map_err(|e| Error::setup(format!("making {folder}: {e}")))?;
        work(
            lab,
            None,
            ["make-tree", &folder, &FOLDERS.to_string(), &files.to_string(), &BYTES.to_string()],
        )?;
    }
    maker.stop()?;
    let mounts = THREADS.map(|threads| {
        let client = cell.client().with(["--threads", threads]);
        let mount = Mount::afar(lab, scene.near(), &client, None)?;
        for number in 0..trees {
            work(lab, None, ["small", &tree(&mount, number), "1"])?;
        }
        Ok::<_, Error>((threads, mount))
    });
    let mounts = mounts.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut cells = Vec::new();
    for (threads, mount) in &mounts {
        for readers in READERS {
            let (tree, passes) = (&tree, &passes);
            let labels = [("threads", threads_text(threads)), ("programs", programs_text(readers))];
            cells.push(Cell::new(labels, move |lab| {
                let before = mount.cpu_s();
                let folders: Vec<String> = (0..readers).map(|number| tree(mount, number)).collect();
                let read = |folder| work(lab, None, ["small", folder, passes]);
                let all: Vec<_> = thread::scope(|scope| {
                    let started: Vec<_> =
                        folders.iter().map(|folder| scope.spawn(move || read(folder))).collect();
                    let failed = |_| Err(Error::run("a thread panicked"));
                    started.into_iter().map(|one| one.join().unwrap_or_else(failed)).collect()
                });
                let all = all.into_iter().collect::<Result<Vec<_>, _>>()?;
                let mut run = Run { is_valid: true, ..Run::default() };
                run.commands = all.iter().map(|worked| worked.command.clone()).collect();
                run.figures.insert(RATE.into(), all.iter().map(|worked| 1e6 / worked.us_per_file()).sum());
                let files: f64 = all.iter().map(|worked| worked.files * worked.seconds.len() as f64).sum();
                run.figures.insert("client, CPU µs/file".into(), (mount.cpu_s() - before) * 1e6 / files);
                Ok(run)
            }));
        }
    }
    interleave(lab, record, &cells, lab.repeats(5))?;
    judge(record);
    Ok(())
}

fn threads_text(threads: &str) -> String {
    format!("{threads} threads")
}

fn programs_text(readers: usize) -> String {
    format!("{readers} programs")
}

fn judge(record: &mut Record) {
    for readers in READERS {
        let rate = |threads: &str| record.median(RATE, &[&threads_text(threads), &programs_text(readers)]);
        let rates = THREADS.map(rate);
        let best = rates.iter().flatten().copied().fold(f64::NAN, f64::max);
        let usual = rate(USUAL).map(|usual| usual / best);
        let note = THREADS
            .iter()
            .zip(rates)
            .map(|(threads, rate)| format!("{threads}: {} files/s", rate.map_or("-".into(), short)));
        let note = note.collect::<Vec<_>>().join(", ");
        let claim = format!("{USUAL} threads, {readers} programs at once, by the best number of threads");
        record.at_least(&claim, usual, GOAL, "times", &note);
    }
}
