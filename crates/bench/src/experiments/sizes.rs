//! Small and large files, as the University of Michigan's tables have them ("AFS and Performance"): hundred to a hundred thousand files of two pages,
//! five files of a hundred kilobytes to forty megabytes; the first line of a large file, and one byte changed in it. On the local disk,
//! in our mount and in OpenAFS's; beside the servers and far away.

use std::cell::OnceCell;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::far::{number, until_quiet, work};
use super::rtt_text;
use crate::cells::STOCK_FLAGS;
use crate::error::Error;
use crate::folder::folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{AFSD_SIZES, AFSD_SIZES_MANY, CellScene, Mount, OurCell, Scene};
use crate::network::{LinkSpec, NetworkBytes};
use crate::record::{Record, Run, short};
use crate::tools::{Place, Stack};
use crate::workers::{paths, stream};
use afs_lab::real::folder::Folder;

const RTT: Duration = Duration::from_micros(12_500);
/// Files of two pages.
const SMALL_BYTES: u64 = 8192;
/// In one directory: AFS's have room for some 65,000 names.
pub(super) const IN_DIRECTORY: usize = 10_000;
/// Files of each of the larger sizes.
const LARGE_FILES: usize = 5;
/// The file that nobody wants to fetch as a whole: sparse, with some lines at its beginning.
const HUGE: &str = "huge";
/// The longest time that a hundred thousand files may take at 12.5 ms with four round trips for each.
pub(super) const TIMEOUT: Duration = Duration::from_secs(7200);
/// The goals: for small files that were closed against OpenAFS, and for large ones against the local disk.
const GOAL_SMALL: f64 = 2.0;
const GOAL_LARGE: f64 = 2.0;

const SECONDS: &str = "s";
const CLOSED: &str = "until closes returned, s";

/// The options of afsd.fuse.
fn afsd_sizes(lab: &Lab) -> &'static [&'static str] {
    lab.choose(&AFSD_SIZES_MANY[..], &AFSD_SIZES[..])
}

/// The place of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Local,
    Ours,
    Stock,
}

const LOCAL: &str = "local disk";
const OURS: &str = "afar";
const STOCK: &str = "OpenAFS";

/// The work that is measured.
#[derive(Clone, Copy, Debug)]
enum What {
    /// So many files of so many bytes are made, and read by another client that has none of them.
    Files {
        count: usize,
        bytes: u64,
    },
    FirstLine,
    OneByte,
}

impl What {
    fn name(self) -> String {
        match self {
            What::Files { count, bytes: SMALL_BYTES } => format!("{count} files of 8 KiB"),
            What::Files { count, bytes } => format!("{count} files of {} MB", short(bytes as f64 / 1e6)),
            What::FirstLine => "first line of the large file".to_string(),
            What::OneByte => "one byte of it changed".to_string(),
        }
    }
}

/// The parts that all runs share: servers, which are opened when they are needed, and a link that the far clients have between.
struct Stages {
    huge_bytes: u64,
    local: Folder,
    ours: OurCell,
    our: OnceCell<Result<Scene, String>>,
    stock: OnceCell<Result<CellScene, String>>,
}

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let counts = lab.choose(&[100, 1_000, 10_000, 100_000][..], &[100]);
    let larger = lab.choose(&[100_000, 1_000_000, 10_000_000, 40_000_000][..], &[100_000]);
    let huge_bytes = lab.choose(10_000_000_000, 100_000_000);
    describe(lab, record, huge_bytes);
    let stages = Stages {
        huge_bytes,
        local: folder("local"),
        ours: OurCell::new()?,
        our: OnceCell::new(),
        stock: OnceCell::new(),
    };
    let is_long = |what: &What| matches!(what, What::Files { count, .. } if *count > IN_DIRECTORY);
    let is_slow =
        |what: &What| matches!(what, What::Files { count, bytes } if *count >= 1_000 || *bytes >= 10_000_000);
    let files = counts.iter().map(|count| What::Files { count: *count, bytes: SMALL_BYTES });
    let large = larger.iter().map(|bytes| What::Files { count: LARGE_FILES, bytes: *bytes });
    // The longest last: who interrupts it has all else.
    let (long, others): (Vec<_>, Vec<_>) =
        files.chain(large).chain([What::FirstLine, What::OneByte]).partition(is_long);
    for what in others.into_iter().chain(long) {
        // In quick runs, the delay only.
        for is_far in lab.choose(&[false, true][..], &[true]) {
            // What takes OpenAFS minutes says enough once: far away it is round trips, and they do not vary.
            let repeats = if is_long(&what) || (*is_far && is_slow(&what)) { 1 } else { lab.repeats(3) };
            let delay = if *is_far { rtt_text(RTT) } else { "none".to_string() };
            let mut cells = Vec::new();
            for (place, name) in [(Where::Local, LOCAL), (Where::Ours, OURS), (Where::Stock, STOCK)] {
                // The local disk is at no distance.
                if place == Where::Local && *is_far && !lab.is_quick {
                    continue;
                }
                let delay = if place == Where::Local { "none" } else { &delay };
                let labels =
                    [("what", what.name()), ("delay", delay.to_string()), ("where", name.to_string())];
                let stages = &stages;
                cells.push(Cell::new(labels, move |lab| stages.once(lab, what, place, *is_far)));
            }
            interleave(lab, record, &cells, repeats)?;
        }
    }
    judge(record, counts, larger);
    Ok(())
}

fn describe(lab: &Lab, record: &mut Record, huge_bytes: u64) {
    record.headline = SECONDS.into();
    record.compared = Some("where".into());
    record.placement = "Far clients in namespace A of an emulated link of 12.5 ms RTT, 1 Gbit/s, 50 ms queue, no loss; servers at its other \
        end; clients without delay beside the servers (ours) or on their network (OpenAFS's). Nothing is pinned, niceness 0, all on the cores of this machine."
        .into();
    record.method = format!(
        "Each run is a mount of its own with an empty cache. Files: a program makes one after the other, writes each at once and closes it, in \
         directories of at most {IN_DIRECTORY}; the time is until the network is quiet and has carried them all, as a close of OpenAFS's FUSE client \
         does not wait for the store. 'cold read' is another mount, with an empty cache, that opens, reads and closes all of them. On the local disk (that \
         of partitions and caches) nothing is synced, and what is read is in the page cache. The large file has {} bytes, some lines and then nothing \
         (sparse); its first line is read with a buffer of 4 KiB by a client that has none of it; in its middle one byte is read, written with \
         another value, and the file closed. OpenAFS: Debian's dafileserver with {STOCK_FLAGS}, and afsd.fuse with {} (no kernel \
         module can be loaded here). afar: `afar up --no-mount` and `afar mount` with their defaults. Repetitions in turns.",
        huge_bytes,
        afsd_sizes(lab).join(" "),
    );
}

impl Stages {
    fn our(&self, lab: &Lab) -> Result<&Scene, Error> {
        let open = || {
            let scene = Scene::open(lab, &self.ours, &LinkSpec::wan(RTT))?;
            let mount = Mount::afar(lab, scene.near(), &self.ours.client(), None)?;
            self.make_huge(lab, mount.path())?;
            mount.stop()?;
            Ok(scene)
        };
        let scene = self.our.get_or_init(|| open().map_err(|error: Error| error.to_string()));
        scene.as_ref().map_err(|why| Error::run(why.clone()))
    }

    fn stock(&self, lab: &Lab) -> Result<&CellScene, Error> {
        let open = || {
            let scene = CellScene::open(lab, Stack::OpenAfs, STOCK_FLAGS, &LinkSpec::wan(RTT))?;
            let clients = scene.cell().clients().map_err(Error::Run)?;
            let mount = Mount::afsd(lab, Place::In(&clients), &scene.client(), None)?;
            self.make_huge(lab, mount.path())?;
            mount.stop()?;
            Ok(scene)
        };
        let scene = self.stock.get_or_init(|| open().map_err(|error: Error| error.to_string()));
        scene.as_ref().map_err(|why| Error::run(why.clone()))
    }

    fn make_huge(&self, lab: &Lab, folder: &Path) -> Result<(), Error> {
        let file = folder.join(HUGE).display().to_string();
        work(lab, &[paths::NAME, "make-lines", &file, &self.huge_bytes.to_string()], TIMEOUT).map(drop)
    }

    fn once(&self, lab: &Lab, what: What, place: Where, is_far: bool) -> Result<Run, Error> {
        match place {
            Where::Local => {
                if !self.local.path().join(HUGE).exists() {
                    self.make_huge(lab, self.local.path())?;
                }
                measure(lab, what, None, || Ok(Site::Local(self.local.path())))
            }
            Where::Ours => {
                let scene = self.our(lab)?;
                let at = if is_far { scene.far() } else { scene.near() };
                let client = self.ours.client();
                measure(lab, what, Some(at), || Mount::afar(lab, at, &client, None).map(Site::Mount))
            }
            Where::Stock => {
                let scene = self.stock(lab)?;
                let clients = scene.cell().clients().map_err(Error::Run)?;
                let at = if is_far { scene.far() } else { Place::In(&clients) };
                let client = scene.client();
                let sizes = afsd_sizes(lab);
                measure(lab, what, Some(at), || {
                    Mount::afsd_with(lab, at, &client, None, sizes).map(Site::Mount)
                })
            }
        }
    }
}

/// A folder to work in.
pub(super) enum Site<'a> {
    Local(&'a Path),
    Mount(Mount),
}

impl Site<'_> {
    fn path(&self) -> &Path {
        match self {
            Site::Local(path) => path,
            Site::Mount(mount) => mount.path(),
        }
    }

    fn name(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    pub(super) fn command(&self) -> Option<String> {
        match self {
            Site::Local(_) => None,
            Site::Mount(mount) => Some(mount.command().to_string()),
        }
    }

    fn end(self) -> Result<(), Error> {
        match self {
            Site::Local(_) => Ok(()),
            Site::Mount(mount) => mount.stop(),
        }
    }
}

/// Measures one run; `open` gives a client with an empty cache, `network` is where it is.
fn measure<'a>(
    lab: &Lab,
    what: What,
    network: Option<Place<'_>>,
    open: impl Fn() -> Result<Site<'a>, Error>,
) -> Result<Run, Error> {
    let mut run = Run { is_valid: true, ..Run::default() };
    let site = open()?;
    run.commands.extend(site.command());
    let before = NetworkBytes::of(network)?;
    let (report, expected) = match what {
        What::Files { count, bytes } => {
            let folder = new_folder(&site)?;
            let (folders, files) = (count.div_ceil(IN_DIRECTORY), count.min(IN_DIRECTORY));
            let [files, each, folders] = [files.to_string(), bytes.to_string(), folders.to_string()];
            let words = [paths::NAME, "create", &folder, &files, &each, &folders];
            let (report, command) = work(lab, &words, TIMEOUT)?;
            run.commands.push(command);
            let closed: f64 = seconds(&report);
            let stored = match network {
                None => closed,
                Some(place) => {
                    let carried = || Ok(NetworkBytes::of(Some(place))?.since(before).sent);
                    closed + until_quiet(lab, carried, count as u64 * bytes, RTT, TIMEOUT)?
                }
            };
            run.figures.insert(SECONDS.into(), stored);
            run.figures.insert(CLOSED.into(), closed);
            run.figures.insert("files/s".into(), count as f64 / stored);
            run.figures.insert("MB/s".into(), (count as u64 * bytes) as f64 / 1e6 / stored);
            let relative =
                Path::new(&folder).strip_prefix(site.path()).unwrap_or(Path::new(&folder)).to_path_buf();
            site.end()?;
            // Another client, which has none of it.
            let reader = open()?;
            let (read, command) = work(
                lab,
                &[paths::NAME, "small", &reader.path().join(relative).display().to_string(), "1"],
                TIMEOUT,
            )?;
            run.commands.push(command);
            run.figures.insert("cold read, s".into(), seconds(&read));
            reader.end()?;
            return Ok(run);
        }
        What::FirstLine => {
            let words = [paths::NAME, "first-line", &site.name(HUGE)];
            (work(lab, &words, TIMEOUT)?, 0)
        }
        What::OneByte => {
            let size = std::fs::metadata(site.path().join(HUGE))
                .map_err(|e| Error::run(format!("{HUGE}: {e}")))?
                .len();
            let words = [stream::NAME, "change", &site.name(HUGE), &(size / 2).to_string()];
            (work(lab, &words, TIMEOUT)?, 1)
        }
    };
    let (report, command) = report;
    run.commands.push(command);
    let closed = seconds(&report);
    let mut stored = closed;
    if let Some(place) = network {
        if expected > 0 {
            let carried = || Ok(NetworkBytes::of(Some(place))?.since(before).sent);
            stored += until_quiet(lab, carried, expected, RTT, TIMEOUT)?;
        }
        let moved = NetworkBytes::of(network)?.since(before);
        run.figures.insert("received, KB".into(), moved.received as f64 / 1e3);
        run.figures.insert("sent, KB".into(), moved.sent as f64 / 1e3);
    }
    run.figures.insert(SECONDS.into(), stored);
    run.figures.insert(CLOSED.into(), closed);
    site.end()?;
    Ok(run)
}

/// A folder that no other run has.
pub(super) fn new_folder(site: &Site<'_>) -> Result<String, Error> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let path = site.path().join(format!("run-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir(&path).map_err(|e| Error::run(format!("making {}: {e}", path.display())))?;
    Ok(path.display().to_string())
}

/// The seconds of all passes together.
pub(super) fn seconds(report: &Value) -> f64 {
    match &report["seconds"] {
        Value::Array(passes) => passes.iter().filter_map(Value::as_f64).sum(),
        _ => number(report, "seconds"),
    }
}

fn judge(record: &mut Record, counts: &[usize], larger: &[u64]) {
    for count in counts {
        let what = What::Files { count: *count, bytes: SMALL_BYTES }.name();
        for delay in ["none".to_string(), rtt_text(RTT)] {
            let [ours, stock] = [OURS, STOCK].map(|name| record.median(SECONDS, &[&what, &delay, name]));
            let ratio = ours.zip(stock).map(|(ours, stock)| stock / ours);
            let [a, b] = [ours, stock].map(|value| value.map_or("-".to_string(), short));
            let claim = format!("{what} stored, delay {delay}, against OpenAFS");
            record.at_least(&claim, ratio, GOAL_SMALL, "times", &format!("s: afar {a}, OpenAFS {b}"));
        }
    }
    for bytes in larger {
        let what = What::Files { count: LARGE_FILES, bytes: *bytes }.name();
        let [ours, local, stock] =
            [OURS, LOCAL, STOCK].map(|name| record.median(SECONDS, &[&what, "none", name]));
        let ratio = ours.zip(local).map(|(ours, local)| ours / local);
        let [a, b, c] = [ours, local, stock].map(|value| value.map_or("-".to_string(), short));
        let claim = format!("{what} stored, no delay, time against the local disk");
        record.at_most(&claim, ratio, GOAL_LARGE, "times", &format!("s: afar {a}, local {b}, OpenAFS {c}"));
    }
}
