//! The client's cost when all is in its cache: large files beside the local file system, and small ones beside an empty
//! FUSE mount, with and without PAGs.

use crate::error::Error;
use crate::folder::folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{Mount, OurCell, Scene, work, work_in_pag};
use crate::network::LinkSpec;
use crate::record::{Record, Run, short};
use afs_lab::real::folder::Folder;

/// All processes that are measured are here.
const CORE: Option<usize> = Some(0);
/// The servers, which have nothing to do while something is measured.
const SERVER_CORE: Option<usize> = Some(1);

/// The place of a file; the local file system twice for the noise.
const LARGE: [&str; 3] = ["local", "local again", "afar"];
/// The ways of reading a large file.
const WAYS: [&str; 3] = ["sequential, 1 MiB", "random, 4 KiB", "mmap"];
/// The same for small files; the local ones are only for comparison.
const SMALL: [&str; 6] = ["empty mount", "empty mount again", "afar", "local", BESIDE_PAGS, IN_PAG];
/// In a mount in which somebody has a PAG: by a process that has none, and by one that has another.
const BESIDE_PAGS: &str = "afar, beside a PAG";
const IN_PAG: &str = "afar, in a PAG";
/// These two, which are the last.
const WITH_PAGS: usize = 2;
const SMALL_WAY: &str = "open, read, close";
/// The number of folders with small files, and the bytes of each file.
const FOLDERS: usize = 10;
const SMALL_BYTES: usize = 8192;

/// A large file has to be read at so much of the local speed, and a small one in so many times the empty mount's time.
const GOAL_LARGE: f64 = 0.95;
const GOAL_SMALL: f64 = 1.15;
/// PAGs may cost so many times the time without.
const GOAL_PAG: f64 = 1.1;

const MB: &str = "MB/s";
const US: &str = "µs/file";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let large_mib: u64 = lab.choose(512, 64);
    let files = lab.choose(10_000, 1_000) / FOLDERS;
    let passes = lab.choose(5, 3);
    record.headline = MB.into();
    record.placement = "The program that reads, the client and the empty mount on core 0, the servers on core 1, all in one network \
        namespace; niceness 0."
        .into();
    record.method = format!(
        "A file of {large_mib} MiB, in a mount of our cell (all of it in the client's cache, and in memory), and the same beside it on \
         the disk that has the cache. Each pass opens it, and reads all of it in MiB, or as many blocks of 4 KiB at random places as \
         make up a quarter of it, or maps it and adds up all words; the median of {passes} passes is a run. {} files of {SMALL_BYTES} \
         bytes in {FOLDERS} folders are opened, read whole and closed, one after the other, in passes likewise; 'empty mount' is a FUSE \
         file system on our fuse-dev that serves a local folder with the same flags, threads and times to live as the client's mount. \
         '{BESIDE_PAGS}' is a second mount in which somebody has a PAG, '{IN_PAG}' the same mount, read in another PAG. Before that they are read once. Repetitions in turns, those with PAGs last, as all mounts of a machine know its PAGs; 'again' is the same measured twice, so that the difference is noise.",
        files * FOLDERS
    );
    let local = folder("local");
    let cell = OurCell::new()?;
    let scene = Scene::open_on(lab, &cell, &LinkSpec::none(), SERVER_CORE)?;
    let mount = Mount::afar(lab, scene.near(), &cell.client(), CORE)?;
    let mirror = Mount::mirror(lab, local.path(), CORE)?;
    let bytes = (large_mib << 20).to_string();
    let shape = [FOLDERS.to_string(), files.to_string(), SMALL_BYTES.to_string()];
    let large = |place: &str| match place {
        "afar" => mount.file("large"),
        "local" => local.path().join("large").display().to_string(),
        _ => local.path().join("large again").display().to_string(),
    };
    let tree = |place: &str| match place {
        "afar" => mount.file("tree"),
        "local" => local.path().join("tree").display().to_string(),
        _ => mirror.file("tree"),
    };
    for place in LARGE {
        work(lab, CORE, ["make-file", &large(place), &bytes])?;
    }
    // What the client has written it has in its cache too: but a mount that has only read is what is asked for.
    for place in ["local", "afar"] {
        let folder = tree(place);
        std::fs::create_dir(&folder).map_err(|e| Error::setup(format!("making {folder}: {e}")))?;
        work(lab, CORE, ["make-tree", &folder, &shape[0], &shape[1], &shape[2]])?;
    }
    mount.stop()?;
    let mount = Mount::afar(lab, scene.near(), &cell.client(), CORE)?;
    let with_pags = Mount::afar(lab, scene.near(), &cell.client(), CORE)?;
    let large = |place: &str| if place == "afar" { mount.file("large") } else { large_of(&local, place) };
    let tree = |place: &str| match place {
        "afar" => mount.file("tree"),
        BESIDE_PAGS | IN_PAG => with_pags.file("tree"),
        "local" => local.path().join("tree").display().to_string(),
        _ => mirror.file("tree"),
    };
    for place in LARGE {
        work(lab, CORE, ["check", &large(place)])?;
    }
    for place in SMALL {
        work(lab, CORE, ["small", &tree(place), "1"])?;
    }

    let passes = passes.to_string();
    let blocks = ((large_mib << 20) / 4 / 4096).to_string();
    let mut cells = Vec::new();
    for way in WAYS {
        for place in LARGE {
            let file = large(place);
            let words = match way {
                "mmap" => vec!["map".to_owned(), file, passes.clone()],
                "random, 4 KiB" => {
                    vec!["random".to_owned(), file, "4096".into(), blocks.clone(), passes.clone()]
                }
                _ => vec!["read".to_owned(), file, "1048576".into(), "0".into(), passes.clone()],
            };
            let mount = &mount;
            cells.push(Cell::new([("how", way.to_string()), ("where", place.to_string())], move |lab| {
                let before = mount.cpu_s();
                let worked = work(lab, CORE, &words)?;
                let mut run =
                    Run { is_valid: true, commands: vec![worked.command.clone()], ..Run::default() };
                run.figures.insert(MB.into(), worked.mb_per_s());
                if place == "afar" {
                    run.figures.insert("client, CPU s".into(), mount.cpu_s() - before);
                }
                Ok(run)
            }));
        }
    }
    for place in SMALL {
        let folder = tree(place);
        let (mount, with_pags, mirror, passes) = (&mount, &with_pags, &mirror, &passes);
        cells.push(Cell::new([("how", SMALL_WAY.to_string()), ("where", place.to_string())], move |lab| {
            let process = match place {
                "afar" => mount,
                BESIDE_PAGS | IN_PAG => with_pags,
                _ => mirror,
            };
            let (before, words) = (process.cpu_s(), ["small", &folder, passes]);
            let worked = match place {
                IN_PAG => work_in_pag(lab, CORE, with_pags, words)?,
                _ => work(lab, CORE, words)?,
            };
            let mut run = Run { is_valid: true, commands: vec![worked.command.clone()], ..Run::default() };
            run.figures.insert(US.into(), worked.us_per_file());
            let all = worked.files * worked.seconds.len() as f64;
            let cpu = process.cpu_s() - before;
            run.figures.insert("file system's process, CPU µs/file".into(), cpu * 1e6 / all);
            Ok(run)
        }));
    }
    let (without, with) = cells.split_at(cells.len() - WITH_PAGS);
    interleave(lab, record, without, lab.repeats(5))?;
    // All mounts of the machine know the PAG.
    let session = with_pags.session(lab)?;
    interleave(lab, record, with, lab.repeats(5))?;
    drop(session);
    judge(record);
    Ok(())
}

fn large_of(local: &Folder, place: &str) -> String {
    let name = if place == "local" { "large" } else { "large again" };
    local.path().join(name).display().to_string()
}

fn judge(record: &mut Record) {
    for way in WAYS {
        let [local, again, ours] = LARGE.map(|place| record.median(MB, &[way, place]));
        let Some((local, again)) = local.zip(again) else { continue };
        // A difference within that of the local file system with itself is none.
        let bound = GOAL_LARGE.min(local.min(again) / local.max(again));
        let note = format!("local: {} and {} MB/s", short(local), short(again));
        let claim = format!("{way}, cached, by the local file system's speed");
        record.at_least(&claim, ours.map(|ours| ours / local.max(again)), bound, "times", &note);
    }
    let [empty, again, ours, beside, inside, local] =
        SMALL.map(|place| record.median(US, &[SMALL_WAY, place]));
    let note = format!(
        "µs/file: empty mount {} and {}, local {}",
        empty.map_or("-".into(), short),
        again.map_or("-".into(), short),
        local.map_or("-".into(), short)
    );
    let ratio = ours.zip(empty.zip(again)).map(|(ours, (a, b))| ours / ((a + b) / 2.0));
    record.at_most(
        "Small files opened, read and closed, by an empty FUSE mount",
        ratio,
        GOAL_SMALL,
        "times",
        &note,
    );
    for (what, with) in [("beside a PAG", beside), ("in a PAG", inside)] {
        let note =
            format!("µs/file: {} and {}", ours.map_or("-".into(), short), with.map_or("-".into(), short));
        let claim = format!("Small files {what}, by the same where there are no PAGs");
        record.at_most(&claim, with.zip(ours).map(|(with, ours)| with / ours), GOAL_PAG, "times", &note);
    }
}
