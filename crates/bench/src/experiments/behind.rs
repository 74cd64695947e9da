//! What programs wait for when they make and close small files: with write-behind and without, beside OpenAFS's client and the local disk,
//! at four distances; and how soon the server has all of it. What a single file costs without write-behind is in `create.rs`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use afar_interop::cell::ADDRESS;

use super::far::{until_quiet, work};
use super::sizes::{IN_DIRECTORY, Site, TIMEOUT, new_folder, seconds};
use super::{RTTS, rtt_text};
use crate::cells::STOCK_FLAGS;
use crate::crowd::{self, PROBE_BYTES, PROBE_EVERY_MS};
use crate::distribution::Distribution;
use crate::error::Error;
use crate::folder::folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{AFSD_SIZES_MANY, CellScene, Mount, OurCell, Scene};
use crate::network::{LinkSpec, NetworkBytes, note_link};
use crate::process::Process;
use crate::record::{Record, Run, short};
use crate::tools::{Place, Stack};
use crate::trees::{self, Shape};
use crate::workers::{paths, probe};
use afs_lab::real::folder::Folder;

const BYTES: u64 = 8192;
/// Files where a round trip is short, where it is long, and of the trees that programs make.
const SHORT: usize = 10_000;
const LONG: usize = 1_000;
/// More than a journal has seen in the other rows; only where nothing waits for a server.
const MANY: usize = 100_000;
const TREE: Shape = Shape { folders: 10, files: 30, bytes: BYTES as usize };
/// The distance from which on there are fewer files: what waits for the server takes two round trips each.
const IS_LONG: Duration = Duration::from_millis(50);

/// The label of the files, however many there are.
const FILES: &str = "files of 8 KiB";
/// The part that makes fewer files, as it waits for the server at each close: round trips do not vary.
const FEWER: usize = 10;

const RATE: &str = "closes/s";
const CLOSED: &str = "until programs went on, s";
const STORED: &str = "until the server had all, s";
const STORED_RATE: &str = "files/s at the server";

/// The writes of another user, in the order in which they are told: while nothing else happens, and while a mount with write-behind makes and
/// sends so many files.
const ALONE: &str = "p99 alone, ms";
const MEANWHILE: &str = "p99 meanwhile, ms";
const BESIDE: &str = "64 KiB of another user meanwhile";
/// The port of file servers.
const PORT: u16 = 7000;
const FOLDERS_BESIDE: &str = "4";
const PROBES: u32 = 150;
const SENT_BESIDE: usize = 30_000;
const SERVERS: [(&str, Stack, &str); 2] =
    [("afar's server", Stack::Afar, ""), ("dafileserver -p 23", Stack::OpenAfs, "-p 23")];
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const GOAL_BESIDE: f64 = 2.0;

const GOAL_SECOND: f64 = 2000.0;
const GOAL_ALWAYS: f64 = 0.7;
const GOAL_STORED: f64 = 2.0;
/// What one link carries, and the files that are under way at once, for the goal of what the server has.
const LINK_BYTES: f64 = 1e9 / 8.0;
const IN_FLIGHT: f64 = 64.0;

/// The place of the files, and how they are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Local,
    /// One record a file at the end of one file, each followed by fdatasync: the least that outlasts a loss of power.
    Records,
    Afar(Option<&'static str>),
    Stock,
}

const WHERE: [Where; 6] = [
    Where::Local,
    Where::Records,
    Where::Afar(Some("always")),
    Where::Afar(Some("second")),
    Where::Afar(None),
    Where::Stock,
];

impl Where {
    fn name(self) -> String {
        match self {
            Where::Local => "local disk".to_string(),
            Where::Records => "local disk, a record and fdatasync each".to_string(),
            Where::Afar(None) => "afar".to_string(),
            Where::Afar(Some(mode)) => format!("afar, write-behind {mode}"),
            Where::Stock => "OpenAFS".to_string(),
        }
    }

    /// True if each close takes round trips.
    fn waits(self) -> bool {
        matches!(self, Where::Afar(None) | Where::Stock)
    }
}

/// The work that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Files(usize),
    Program(&'static str),
}

/// Programs that make a tree out of a source on the local disk: with the paths of source and target.
const PROGRAMS: [(&str, &str); 3] = [
    ("tar x", "tar xf $0/tree.tar --no-same-owner -C $1"),
    ("rsync -a", "rsync -a --no-o --no-g $0/tree/ $1/tree"),
    ("git clone", "git clone -q --no-local $0/tree $1/clone"),
];

impl What {
    fn name(self) -> String {
        match self {
            What::Files(MANY) => format!("{MANY} {FILES}"),
            What::Files(_) => FILES.to_string(),
            What::Program(name) => format!("{name}, {} files", TREE.folders * TREE.files),
        }
    }

    fn files(self) -> usize {
        match self {
            What::Files(count) => count,
            What::Program(_) => TREE.folders * TREE.files,
        }
    }
}

/// Servers at one distance.
struct Stage<'a> {
    rtt: Duration,
    ours: &'a OurCell,
    our: Scene,
    stock: CellScene,
    local: &'a Folder,
    source: &'a Path,
}

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    record.headline = RATE.into();
    record.compared = Some("where".into());
    record.placement = "Clients in namespace A of an emulated link of this RTT, 1 Gbit/s, 50 ms queue, no loss; servers at its other end; \
        without delay beside the servers (ours) or on their network (OpenAFS's). Nothing is pinned, niceness 0, all on the cores of this \
        machine."
        .into();
    record.method = format!(
        "Each run is a mount of its own with an empty cache, after a sync of the machine. Files: a program makes one after the other, writes \
         each at once and closes it, in directories of at most {IN_DIRECTORY}. '{RATE}' is by the time until the last close returned; the server \
         has all when the network is quiet and has carried the bytes. 'local disk' makes the same files and syncs nothing; '{}' appends as \
         many records of 8 KiB to one file on the same disk, with fdatasync after each. tar, rsync and git have their source on that disk, \
         {} files in {} folders. OpenAFS: Debian's dafileserver with {STOCK_FLAGS}, and afsd.fuse with {}, whose close does not wait for the \
         store. afar: `afar up --no-mount` and `afar mount` with its defaults, or with --write-behind. At 0 and 12.5 ms there are {SHORT} files, \
         at 50 and 200 ms {LONG}, and once, without delay, {MANY}. With a delay, what waits for round trips at each close makes a tenth of them, once: a file takes as long as \
         any other. '{BESIDE}': {PROBES} times, each {PROBE_EVERY_MS} ms, alone and while a mount sends {SENT_BESIDE} files, which were made before \
         with sending paused. Else repetitions in turns.",
        Where::Records.name(),
        TREE.folders * TREE.files,
        TREE.folders,
        AFSD_SIZES_MANY.join(" "),
    );
    let (ours, local, source) = (OurCell::new()?, folder("local"), folder("source"));
    make_source(source.path())?;
    let rtts: Vec<Duration> =
        lab.choose(&[Duration::ZERO, RTTS[0], RTTS[1], RTTS[3]][..], &[RTTS[0]]).to_vec();
    for rtt in rtts {
        let count = lab.choose(if rtt < IS_LONG { SHORT } else { LONG }, 100);
        let spec = LinkSpec::wan(rtt);
        let stage = Stage {
            rtt,
            ours: &ours,
            our: Scene::open(lab, &ours, &spec)?,
            stock: CellScene::open(lab, Stack::OpenAfs, STOCK_FLAGS, &spec)?,
            local: &local,
            source: source.path(),
        };
        let (waiting, fast): (Vec<_>, Vec<_>) = WHERE.into_iter().partition(|place| place.waits());
        stage.compare(lab, record, What::Files(count), &fast, lab.repeats(3))?;
        let (fewer, repeats) = if rtt.is_zero() { (count, lab.repeats(3)) } else { (count / FEWER, 1) };
        stage.compare(lab, record, What::Files(fewer), &waiting, repeats)?;
        if rtt.is_zero() && !lab.is_quick {
            let places: Vec<_> = fast.iter().copied().filter(|place| *place != Where::Records).collect();
            stage.compare(lab, record, What::Files(MANY), &places, 1)?;
        }
        if rtt == RTTS[0] {
            for (name, _) in PROGRAMS {
                let places: Vec<_> = WHERE.into_iter().filter(|place| *place != Where::Records).collect();
                stage.compare(lab, record, What::Program(name), &places, 1)?;
            }
        }
        judge(record, &What::Files(count), rtt);
    }
    beside_others(lab, record)
}

/// What another user of the server waits for while a mount sends what programs have closed long ago.
fn beside_others(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let delay = rtt_text(crowd::RTT);
    let cells = SERVERS.map(|(name, who, flags)| {
        let labels = [("what", BESIDE), ("delay", &delay), ("where", name)]
            .map(|(label, value)| (label, value.to_string()));
        Cell::new(labels, move |lab| beside(lab, who, flags))
    });
    interleave(lab, record, &cells, lab.repeats(3))?;
    for (name, ..) in SERVERS {
        let [alone, meanwhile] = [ALONE, MEANWHILE].map(|figure| record.median(figure, &[BESIDE, name]));
        let text = |value: Option<f64>| value.map_or("-".to_string(), short);
        let note = format!("ms: {} alone, {} meanwhile", text(alone), text(meanwhile));
        let ratio = alone.zip(meanwhile).map(|(alone, meanwhile)| meanwhile / alone);
        record.at_most(
            &format!("{BESIDE}, {name}, 99th percentile by that alone"),
            ratio,
            GOAL_BESIDE,
            "times",
            &note,
        );
    }
    Ok(())
}

fn beside(lab: &Lab, who: Stack, flags: &str) -> Result<Run, Error> {
    let spec = LinkSpec::unlimited(crowd::RTT);
    let scene = CellScene::open(lab, who, flags, &spec)?;
    let site =
        Site::Mount(Mount::afar(lab, scene.far(), &scene.client().with(["--write-behind", "second"]), None)?);
    let folder = new_folder(&site)?;
    let server = SocketAddr::from((ADDRESS, PORT)).to_string();
    let [from, bytes, every] =
        [linkem::ADDRESS_A.to_string(), PROBE_BYTES.to_string(), PROBE_EVERY_MS.to_string()];
    let options = [
        "--server",
        &server,
        "--volume",
        scene.volume(),
        "--from",
        &from,
        "--bytes",
        &bytes,
        "--every",
        &every,
    ];
    let probing = lab.tools.bench().and([probe::NAME]).and(options);
    let mut process = probing.start(scene.far(), &lab.interrupt)?;
    process.wait_for_line("ready", READY_TIMEOUT)?;
    let count = lab.choose(PROBES, 15);
    let alone = crowd::probe(&mut process, count)?;
    // Made before, so that server and maker do not want the same processors.
    let fs = |words: &[&str]| {
        let mut command = Command::new(lab.tools.afar());
        command.arg("fs").args(words);
        Process::start(command, "afar fs", &lab.interrupt)?.finish(TIMEOUT)
    };
    fs(&["storebehind", "-pause", &folder])?;
    let files = lab.choose(SENT_BESIDE, 5000).to_string();
    let making =
        lab.tools.bench().and([paths::NAME, "create", &folder, &files, &BYTES.to_string(), FOLDERS_BESIDE]);
    let mut maker = making.start(Place::Here, &lab.interrupt)?;
    maker.wait_for_line("end ", TIMEOUT)?;
    fs(&["storebehind", "-resume", &folder])?;
    let before = scene.link().counters();
    let meanwhile = crowd::probe(&mut process, count)?;
    let counters = scene.link().counters().since(&before);
    let waits = fs(&["whatwaits"])?;
    let mut run = Run { is_valid: true, ..Run::default() };
    if waits.starts_with("Nothing") {
        run.is_valid = false;
        run.problems.push("all was sent before the last write of the other user".into());
    }
    run.commands.extend(site.command().into_iter().chain([probing.to_string(), making.to_string()]));
    note_link(&mut run, &spec, counters);
    for (figure, report) in [(ALONE, alone), (MEANWHILE, meanwhile)] {
        let of = Distribution::of(report.ms);
        run.figures.insert(figure.into(), of.percentile(99.0).unwrap_or(f64::NAN));
        run.figures.insert(figure.replace("p99", "median"), of.percentile(50.0).unwrap_or(f64::NAN));
    }
    Ok(run)
}

/// The tree that programs copy: as it is, in one archive, and as a repository of git.
fn make_source(folder: &Path) -> Result<(), Error> {
    let failed = |e: String| Error::setup(format!("the tree of files: {e}"));
    let tree = folder.join("tree");
    std::fs::create_dir(&tree)
        .and_then(|()| trees::make_tree(&tree, TREE))
        .map_err(|e| failed(e.to_string()))?;
    let script = "cd $0 && tar cf tree.tar tree && cd tree && git init -q && git add . && \
        git -c user.name=afar -c user.email=afar@localhost commit -qm tree";
    let done =
        Command::new("sh").args(["-c", script]).arg(folder).status().map_err(|e| failed(e.to_string()))?;
    if done.success() { Ok(()) } else { Err(failed(format!("{script}: {done}"))) }
}

impl Stage<'_> {
    fn delay(&self) -> String {
        if self.rtt.is_zero() { "none".to_string() } else { rtt_text(self.rtt) }
    }

    fn compare(
        &self,
        lab: &Lab,
        record: &mut Record,
        what: What,
        places: &[Where],
        repeats: usize,
    ) -> Result<(), Error> {
        let cells: Vec<_> = places
            .iter()
            .map(|place| {
                let labels = [("what", what.name()), ("delay", self.delay()), ("where", place.name())];
                Cell::new(labels, move |lab| self.once(lab, what, *place))
            })
            .collect();
        interleave(lab, record, &cells, repeats)
    }

    fn once(&self, lab: &Lab, what: What, place: Where) -> Result<Run, Error> {
        // The disk has nothing else to do.
        let synced = Command::new("sync").status().map_err(|e| Error::setup(format!("sync: {e}")))?;
        if !synced.success() {
            return Err(Error::setup(format!("sync: {synced}")));
        }
        let is_far = !self.rtt.is_zero();
        match place {
            Where::Local | Where::Records => {
                measure(lab, what, place, &Site::Local(self.local.path()), None, self)
            }
            Where::Afar(mode) => {
                let at = if is_far { self.our.far() } else { self.our.near() };
                let client = self.ours.client().with(mode.iter().flat_map(|mode| ["--write-behind", mode]));
                measure(lab, what, place, &Site::Mount(Mount::afar(lab, at, &client, None)?), Some(at), self)
            }
            Where::Stock => {
                let clients = self.stock.cell().clients().map_err(Error::Run)?;
                let at = if is_far { self.stock.far() } else { Place::In(&clients) };
                let mount = Mount::afsd_with(lab, at, &self.stock.client(), None, &AFSD_SIZES_MANY)?;
                measure(lab, what, place, &Site::Mount(mount), Some(at), self)
            }
        }
    }
}

fn measure(
    lab: &Lab,
    what: What,
    place: Where,
    site: &Site<'_>,
    network: Option<Place<'_>>,
    stage: &Stage<'_>,
) -> Result<Run, Error> {
    let mut run = Run { is_valid: true, ..Run::default() };
    run.commands.extend(site.command());
    let folder = new_folder(site)?;
    let before = NetworkBytes::of(network)?;
    let (count, bytes) = (what.files(), BYTES.to_string());
    let (report, command) = match what {
        What::Files(_) if place == Where::Records => work(
            lab,
            &[paths::NAME, "records", &format!("{folder}/records"), &count.to_string(), &bytes],
            TIMEOUT,
        )?,
        What::Files(_) => {
            let [files, folders] =
                [count.min(IN_DIRECTORY), count.div_ceil(IN_DIRECTORY)].map(|n| n.to_string());
            work(lab, &[paths::NAME, "create", &folder, &files, &bytes, &folders], TIMEOUT)?
        }
        What::Program(name) => {
            let script =
                PROGRAMS.iter().find(|(program, _)| *program == name).map_or("false", |(_, script)| script);
            work(
                lab,
                &[paths::NAME, "run", "sh", "-c", script, &stage.source.display().to_string(), &folder],
                TIMEOUT,
            )?
        }
    };
    run.commands.push(command);
    let closed = seconds(&report);
    run.figures.insert(CLOSED.into(), closed);
    run.figures.insert(RATE.into(), count as f64 / closed);
    if let Some(at) = network {
        let carried = || Ok(NetworkBytes::of(Some(at))?.since(before).sent);
        let stored = closed + until_quiet(lab, carried, count as u64 * BYTES, stage.rtt, TIMEOUT)?;
        run.figures.insert(STORED.into(), stored);
        run.figures.insert(STORED_RATE.into(), count as f64 / stored);
    }
    Ok(run)
}

fn judge(record: &mut Record, what: &What, rtt: Duration) {
    let delay = if rtt.is_zero() { "none".to_string() } else { rtt_text(rtt) };
    let what = (what.name(), what.files() as f64);
    let median =
        |record: &Record, figure, place: Where| record.median(figure, &[&what.0, &delay, &place.name()]);
    let [always, second] = [Some("always"), Some("second")].map(Where::Afar);
    let [ours, stock, without] =
        [second, Where::Stock, Where::Afar(None)].map(|place| median(record, RATE, place));
    let text = |value: Option<f64>| value.map_or("-".to_string(), short);
    let note = format!("OpenAFS {}, afar without write-behind {}", text(stock), text(without));
    record.at_least(&format!("'second', delay {delay}"), ours, GOAL_SECOND, RATE, &note);
    let [ours, records] = [always, Where::Records].map(|place| median(record, RATE, place));
    let ratio = ours.zip(records).map(|(ours, records)| ours / records);
    let note = format!("closes/s: afar {}, records {}", text(ours), text(records));
    record.at_least(
        &format!("'always', delay {delay}, against a record and fdatasync each"),
        ratio,
        GOAL_ALWAYS,
        "times",
        &note,
    );
    if !rtt.is_zero() {
        let least = (what.1 * BYTES as f64 / LINK_BYTES).max(what.1 / IN_FLIGHT * rtt.as_secs_f64());
        // Without delay and write-behind, one processor at a time works on a file, at one end or the other.
        let rate = record.median(RATE, &[FILES, "none", &Where::Afar(None).name()]);
        let worked = rate.map(|rate| what.1 / rate);
        let allowed = worked.map_or(GOAL_STORED * least, |worked| worked.max(GOAL_STORED * least));
        for place in [always, second] {
            let stored = median(record, STORED, place);
            let claim = format!(
                "all at the server, {}, delay {delay}, of {GOAL_STORED} times what link and {IN_FLIGHT} creates at once take, or of the processors' time",
                place.name()
            );
            let note = format!(
                "s: {}; link and creates {}, processors {}",
                text(stored),
                short(least),
                text(worked)
            );
            record.at_most(&claim, stored.map(|stored| stored / allowed), 1.0, "times", &note);
        }
    }
}
