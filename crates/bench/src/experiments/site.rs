//! The day of a small site: three clients at a distance. One streams a film, the second fetches an install image again and again, and the
//! third gets the contents of a git-annex repository. The film must not stall.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::far::{number, work};
use crate::cells::STOCK_FLAGS;
use crate::error::Error;
use crate::folder::folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{AFSD_SIZES, CellScene, ClientOf, Mount, OurCell, Scene};
use crate::network::LinkSpec;
use crate::process::Process;
use crate::record::{Record, Run, short};
use crate::tools::{Invocation, Place, Stack};
use crate::workers::{paths, stream};

pub(super) const RTT: Duration = Duration::from_micros(12_500);
/// The rate of the film, Mbit/s: high definition, as a broadcaster sends it.
const FILM_MBIT: f64 = 25.0;
const FILM: &str = "film";
pub(super) const IMAGE: &str = "image.iso";
const ANNEX: &str = "photographs";
/// Beyond the film's length: start, and the stalls of who has some.
const TIMEOUT: Duration = Duration::from_secs(900);

pub(super) const STALLED: &str = "film stood still, s";
pub(super) const IMAGE_RATE: &str = "image, MB/s";
pub(super) const GOT: &str = "third client got, MB";

/// The size of everything.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) film_s: u64,
    image_bytes: u64,
    photographs: usize,
    photograph_bytes: usize,
    /// True if git-annex is there.
    has_annex: bool,
}

/// The kind of client and server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ours,
    Stock,
}

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let size = Size::of(lab);
    record.headline = STALLED.into();
    record.placement = "Three clients, each a process with a cache of its own, in namespace A of one emulated link of 12.5 ms RTT, 1 Gbit/s, 50 ms queue, \
        no loss; the servers at its other end. Nothing is pinned, niceness 0, all on the cores of this machine."
        .into();
    record.method = format!(
        "{} The second client reads the image from end to end, dropping nothing: its first pass comes over the link, further ones from its cache. OpenAFS: \
         dafileserver with {STOCK_FLAGS}, afsd.fuse with {}.",
        size.text(),
        AFSD_SIZES.join(" "),
    );
    let cells: Vec<Cell<'_>> = [(Kind::Ours, "afar"), (Kind::Stock, "OpenAFS")]
        .into_iter()
        .map(|(kind, name)| Cell::new([("who", name.to_string())], move |lab| day(lab, kind, size)))
        .collect();
    interleave(lab, record, &cells, lab.repeats(3))?;
    let found = record.clone();
    let of = |who: &str, figure: &str| found.median(figure, &[who]);
    let note = format!(
        "OpenAFS: {} s; the image came at {} and {} MB/s",
        of("OpenAFS", STALLED).map_or("-".into(), short),
        of("afar", IMAGE_RATE).map_or("-".into(), short),
        of("OpenAFS", IMAGE_RATE).map_or("-".into(), short)
    );
    record.at_most(
        "A film at 12.5 ms beside an image and an annex",
        of("afar", STALLED),
        0.0,
        "s without a picture",
        &note,
    );
    Ok(())
}

impl Size {
    pub(super) fn of(lab: &Lab) -> Self {
        let annex =
            Invocation::new(Path::new("git-annex")).and(["version"]).start(Place::Here, &lab.interrupt);
        let has_annex = annex.and_then(|process| process.finish(TIMEOUT)).is_ok();
        let film_s = lab.choose(60, 6);
        let (image_bytes, photographs, photograph_bytes) =
            lab.choose((700_000_000, 100, 5_000_000), (50_000_000, 10, 1_000_000));
        Self { film_s, image_bytes, photographs, photograph_bytes, has_annex }
    }

    /// What the three do, for the record.
    pub(super) fn text(self) -> String {
        let (count, mb) = (self.photographs, short(self.photograph_bytes as f64 / 1e6));
        let third = if self.has_annex {
            format!(
                "`git annex get` of {count} files of {mb} MB in a clone on its disk of a repository in the cell"
            )
        } else {
            format!("`cp -r` of {count} files of {mb} MB (git-annex is not installed)")
        };
        format!(
            "All three begin at once, with empty caches. The film has {FILM_MBIT} Mbit/s: a player reads it 64 KiB at a time, begins when it has 2 s of it, and is at \
             most 10 s ahead; it plays for {} s. What it waits for bytes that are due is how long it stood still. The second client has an install image of {} MB. \
             The third runs {third}. It ends with the film.",
            self.film_s,
            self.image_bytes / 1_000_000,
        )
    }
}

/// One such day, with servers of its own.
fn day(lab: &Lab, kind: Kind, size: Size) -> Result<Run, Error> {
    match kind {
        Kind::Ours => {
            let cell = OurCell::new()?;
            let scene = Scene::open(lab, &cell, &LinkSpec::wan(RTT))?;
            let client = cell.client();
            let near = Mount::afar(lab, scene.near(), &client, None)?;
            prepare(lab, near.path(), size)?;
            near.stop()?;
            all_day(lab, kind, scene.far(), &client, size)
        }
        Kind::Stock => {
            let scene = CellScene::open(lab, Stack::OpenAfs, STOCK_FLAGS, &LinkSpec::wan(RTT))?;
            let client = scene.client();
            let clients = scene.cell().clients().map_err(Error::Run)?;
            let near = Mount::afsd(lab, Place::In(&clients), &client, None)?;
            prepare(lab, near.path(), size)?;
            near.stop()?;
            all_day(lab, kind, scene.far(), &client, size)
        }
    }
}

/// Makes film, image and repository, where they are served.
pub(super) fn prepare(lab: &Lab, at: &Path, size: Size) -> Result<(), Error> {
    let film_bytes = (FILM_MBIT * 1e6 / 8.0 * (size.film_s + 1) as f64) as u64;
    for (name, bytes) in [(FILM, film_bytes), (IMAGE, size.image_bytes)] {
        let file = at.join(name).display().to_string();
        work(lab, &[stream::NAME, "write", &file, &bytes.to_string()], TIMEOUT)?;
    }
    let (count, bytes) = (size.photographs, size.photograph_bytes);
    let source = folder("photographs");
    for number in 0..count {
        let path = source.path().join(format!("{number}.raw")).display().to_string();
        work(lab, &[paths::NAME, "make-file", &path, &bytes.to_string()], TIMEOUT)?;
        // No two alike, or an annex would keep one.
        fs::write(source.path().join(format!("{number}.name")), number.to_string())
            .map_err(failed("a name"))?;
        let mut one = fs::OpenOptions::new().append(true).open(&path).map_err(failed("a photograph"))?;
        std::io::Write::write_all(&mut one, number.to_string().as_bytes()).map_err(failed("a photograph"))?;
    }
    let to = at.join(ANNEX);
    if !size.has_annex {
        return shell(&format!("cp -r '{}' '{}'", source.path().display(), to.display()));
    }
    // A bare repository in the cell has the contents. It is made here and copied: afsd.fuse sets no times, which git wants to.
    let bare = folder("bare");
    shell(&format!(
        "set -e; cd '{source}'; {GIT}; git init -q; git annex init -q one; git annex add -q .; git commit -q -m photographs; \
         git clone -q --bare . '{bare}'; cd '{bare}'; git annex init -q cell; cd -; git remote add cell '{bare}'; git annex copy -q --to cell .; \
         git annex sync -q cell || true; chmod -R u+w . '{bare}'; cp -r '{bare}' '{to}'",
        source = source.path().display(),
        bare = bare.path().display(),
        to = to.display()
    ))
}

/// The settings that tell git who commits.
const GIT: &str = "export GIT_AUTHOR_NAME=bench GIT_AUTHOR_EMAIL=bench@localhost GIT_COMMITTER_NAME=bench GIT_COMMITTER_EMAIL=bench@localhost \
    GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'";

fn failed(what: &str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::run(format!("preparing {what}: {error}"))
}

fn shell(script: &str) -> Result<(), Error> {
    let output = Command::new("sh").args(["-c", script]).output().map_err(failed("files"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::run(format!("preparing files: {}: {}", output.status, said.trim())))
}

fn all_day(lab: &Lab, kind: Kind, far: Place<'_>, client: &ClientOf, size: Size) -> Result<Run, Error> {
    let mount = || match kind {
        Kind::Ours => Mount::afar(lab, far, client, None),
        Kind::Stock => Mount::afsd(lab, far, client, None),
    };
    let mounts = [mount()?, mount()?, mount()?];
    let run = three(lab, &mounts, "repeat", size, || Ok(()))?;
    for mount in mounts {
        mount.stop()?;
    }
    Ok(run)
}

/// The three programs at once, and what happens to them while the film plays. `image` is what a stream-worker does with the image.
pub(super) fn three(
    lab: &Lab,
    mounts: &[Mount; 3],
    image: &str,
    size: Size,
    meanwhile: impl FnOnce() -> Result<(), Error>,
) -> Result<Run, Error> {
    let [first, second, third] = mounts;
    let here = folder("third");
    let seconds = size.film_s.to_string();
    let film =
        lab.tools.bench().and([stream::NAME, "film", &first.file(FILM), &FILM_MBIT.to_string(), &seconds]);
    let image = lab.tools.bench().and([stream::NAME, image, &second.file(IMAGE), &seconds]);
    let getting = getting(&third.path().join(ANNEX), here.path(), size.has_annex);
    let mut run = Run {
        is_valid: true,
        commands: vec![first.command().to_string(), film.to_string(), image.to_string(), getting.to_string()],
        ..Run::default()
    };
    let mut getting = getting.start(Place::Here, &lab.interrupt)?;
    let mut imaging = image.start(Place::Here, &lab.interrupt)?;
    let mut filming = film.start(Place::Here, &lab.interrupt)?;
    meanwhile()?;
    let film = report(&mut filming)?;
    let image = report(&mut imaging)?;
    let got = folder_bytes(&here.path().join(CLONE));
    // What it has until the film ends is what counts; one that has failed is no client.
    match getting.try_wait()? {
        None => drop(getting),
        Some(_) => drop(getting.finish(TIMEOUT)?),
    }
    drop((filming, imaging));
    let mut figure = |name: &str, value: f64| run.figures.insert(name.to_string(), value);
    figure(STALLED, number(&film, "stalled_s"));
    figure("film, stalls", number(&film, "stalls"));
    figure("film begins after, s", number(&film, "begins_s"));
    figure(IMAGE_RATE, number(&image, "bytes") / 1e6 / number(&image, "seconds"));
    figure(GOT, got as f64 / 1e6);
    run.report = serde_json::json!({ "film": film, "image": image });
    Ok(run)
}

/// The folder that the third client has got.
const CLONE: &str = "clone";

/// The third client. What serves a clone does not see what git is told by the environment, but by a user's own settings.
fn getting(from: &Path, to: &Path, has_annex: bool) -> Invocation {
    let (from, to) = (from.display(), to.display());
    let script = if has_annex {
        format!(
            "set -e; export HOME='{to}/home'; mkdir \"$HOME\"; git config --global safe.directory '*'; git config --global user.name bench; \
             git config --global user.email bench@localhost; git clone -q '{from}' '{to}/{CLONE}'; cd '{to}/{CLONE}'; git annex init -q third; \
             git annex get -q ."
        )
    } else {
        format!("cp -r '{from}' '{to}/{CLONE}'")
    };
    Invocation::new(Path::new("sh")).and(["-c", &script])
}

fn report(process: &mut Process) -> Result<Value, Error> {
    let said = process.wait_for_line("end ", TIMEOUT)?;
    serde_json::from_str(&said).map_err(|e| Error::run(format!("a stream-worker said {said}: {e}")))
}

/// The bytes of all files below it.
fn folder_bytes(folder: &Path) -> u64 {
    let (mut bytes, mut unseen) = (0, vec![PathBuf::from(folder)]);
    while let Some(folder) = unseen.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => unseen.push(entry.path()),
                Ok(found) if found.is_file() => bytes += found.len(),
                _ => {}
            }
        }
    }
    bytes
}
