//! The time to read small cached files while a large cold one is being fetched through the same mount, far
//! away; beside the same client when it has nothing else to do, and OpenAFS's. Over a slower link as well, which leaves
//! the cores something: over the fast one they are full, and a program that wants a moment of them waits, whatever it
//! reads.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::far::work;
use super::rtt_text;
use crate::cells::STOCK_FLAGS;
use crate::distribution::Distribution;
use crate::error::Error;
use crate::folder::folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{AFSD_SIZES, CellScene, ClientOf, Mount, OurCell, Scene};
use crate::network::LinkSpec;
use crate::record::{Curve, Record, Run, short};
use crate::tools::{Place, Stack};
use crate::workers::{paths, stream};

const RTT: Duration = Duration::from_micros(12_500);
const LARGE: &str = "large";
const SMALL: &str = "small";
/// The number of the small files, which are read in turn, and the bytes of each.
const FILES: usize = 100;
const SMALL_BYTES: usize = 8192;
/// A read is due so often.
const EVERY_MS: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(300);
/// A large read may make the 99th percentile of small ones so many times the idle median, or so many ms.
const GOAL_MS: f64 = 5.0;

/// Small files on the local disk, read while our client fetches the large one: the cost of the two full cores, apart from the server
/// of the files.
const LOCAL: &str = "local disk beside afar";

const P99: &str = "p99 ms";
const IDLE: &str = "nothing else";
const BUSY: &str = "a large file is fetched";
const BUSY_SLOWER: &str = "a large file is fetched at 250 Mbit/s";
const SLOWER_MBIT: f64 = 250.0;

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let bytes: u64 = lab.choose(2_000_000_000, 100_000_000);
    let seconds: u64 = lab.choose(10, 2);
    record.headline = P99.into();
    record.compared = Some("client".into());
    record.placement = "Client in namespace A of an emulated link of 12.5 ms RTT, 1 Gbit/s, 50 ms queue, no loss, servers at its other end; nothing is pinned, \
        niceness 0, all on the cores of this machine."
        .into();
    record.method = format!(
        "A mount has read {FILES} files of {SMALL_BYTES} bytes. Every {EVERY_MS} ms a program opens, reads and closes the next of them, for {seconds} s, and is timed from \
         when that was due; in one run nothing else happens, in the other a second program reads a file of {} MB that is not in the cache through the same mount. \
         {LOCAL}: the small files are on the local disk, and our mount fetches the large one. {BUSY_SLOWER}: the link has that rate; measured after the others. OpenAFS: dafileserver with {STOCK_FLAGS}, afsd.fuse with {}.",
        bytes / 1_000_000,
        AFSD_SIZES.join(" ")
    );
    let cell = OurCell::new()?;
    let link = LinkSpec::wan(RTT);
    let scene = Scene::open(lab, &cell, &link)?;
    let client = cell.client();
    let near = Mount::afar(lab, scene.near(), &client, None)?;
    prepare(lab, &near, bytes)?;
    near.stop()?;
    let local = folder("meanwhile");
    make_small(lab, &local.path().join(SMALL))?;
    let stock = open_stock(lab, bytes).map_err(|error| error.to_string());
    let measure = |record: &mut Record, scene: &Scene, wanted: &[(&'static str, &'static str)]| {
        let (client, stock, local) = (&client, &stock, local.path());
        let cell = |&(meanwhile, name): &(&'static str, &'static str)| {
            let labels = [("meanwhile", meanwhile.to_string()), ("client", name.to_string())];
            Cell::new(labels, move |lab| {
                let mount = match (name, stock) {
                    ("afar" | LOCAL, _) => Mount::afar(lab, scene.far(), client, None)?,
                    (_, Ok(stock)) => Mount::afsd(lab, stock.far(), &stock.client(), None)?,
                    (_, Err(why)) => return Err(Error::run(why.clone())),
                };
                let small = if name == LOCAL { local.join(SMALL) } else { mount.file(SMALL).into() };
                once(lab, mount, &small, seconds, meanwhile != IDLE)
            })
        };
        interleave(lab, record, &wanted.iter().map(cell).collect::<Vec<_>>(), lab.repeats(5))
    };
    let busy = [(BUSY, "afar"), (BUSY, LOCAL), (BUSY, "OpenAFS")];
    // Quick runs look at OpenAFS's once.
    let idle = [(IDLE, "afar"), (IDLE, LOCAL), (IDLE, "OpenAFS")];
    measure(record, &scene, &[lab.choose(&idle[..], &idle[..1]), &busy].concat())?;
    // The servers of a cell run once.
    drop(scene);
    let slower = Scene::open(lab, &cell, &LinkSpec { rate_mbit: SLOWER_MBIT, ..link })?;
    measure(record, &slower, &[(BUSY_SLOWER, "afar"), (BUSY_SLOWER, LOCAL)])?;
    let median = |meanwhile: &str, name: &str| record.median(P99, &[meanwhile, name]);
    let ours = median(BUSY, "afar");
    let others = [
        median(IDLE, "afar"),
        median(BUSY, "OpenAFS"),
        median(IDLE, "OpenAFS"),
        median(BUSY, LOCAL),
        median(BUSY_SLOWER, "afar"),
        median(BUSY_SLOWER, LOCAL),
    ];
    let [b, c, d, e, f, g] = others.map(|value| value.map_or("-".to_string(), short));
    let note = format!(
        "ms: afar idle {b}; local files beside our fetch {e}; at {SLOWER_MBIT} Mbit/s afar {f}, local files {g}; OpenAFS {c}, idle {d}"
    );
    record.at_most(
        &format!("A small cached read beside a fetch at {}, p99", rtt_text(RTT)),
        ours,
        GOAL_MS,
        "ms",
        &note,
    );
    Ok(())
}

fn open_stock(lab: &Lab, bytes: u64) -> Result<CellScene, Error> {
    let scene = CellScene::open(lab, Stack::OpenAfs, STOCK_FLAGS, &LinkSpec::wan(RTT))?;
    let clients = scene.cell().clients().map_err(Error::Run)?;
    let client: ClientOf = scene.client();
    let near = Mount::afsd(lab, Place::In(&clients), &client, None)?;
    prepare(lab, &near, bytes)?;
    near.stop()?;
    Ok(scene)
}

fn prepare(lab: &Lab, mount: &Mount, bytes: u64) -> Result<(), Error> {
    work(lab, &[stream::NAME, "write", &mount.file(LARGE), &bytes.to_string()], TIMEOUT)?;
    make_small(lab, mount.file(SMALL).as_ref())
}

fn make_small(lab: &Lab, small: &Path) -> Result<(), Error> {
    let small = &small.display().to_string();
    std::fs::create_dir(small).map_err(|e| Error::run(format!("making {small}: {e}")))?;
    let [files, size] = [FILES, SMALL_BYTES].map(|number| number.to_string());
    work(lab, &[paths::NAME, "make-tree", small, "1", &files, &size], TIMEOUT).map(drop)
}

fn once(lab: &Lab, mount: Mount, small: &Path, seconds: u64, is_busy: bool) -> Result<Run, Error> {
    let small = &small.display().to_string();
    work(lab, &[paths::NAME, "small", small, "1"], TIMEOUT)?;
    let fetch = lab.tools.bench().and([stream::NAME, "read", &mount.file(LARGE), &(seconds + 5).to_string()]);
    let fetching = if is_busy { Some(fetch.start(Place::Here, &lab.interrupt)?) } else { None };
    let words = [stream::NAME, "latencies", small, &EVERY_MS.to_string(), &seconds.to_string()];
    let (report, command) = work(lab, &words, TIMEOUT)?;
    drop(fetching);
    let mut run =
        Run { is_valid: true, commands: vec![mount.command().to_string(), command], ..Run::default() };
    if is_busy {
        run.commands.push(fetch.to_string());
    }
    let ms: Vec<f64> = report["ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    let times = Distribution::of(ms);
    let figures =
        [("p50 ms", times.percentile(50.0)), (P99, times.percentile(99.0)), ("longest, ms", times.max())];
    run.figures.extend(figures.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))));
    run.curves.push(Curve { name: "small reads".to_string(), points: times.curve() });
    run.report = report;
    mount.stop()?;
    Ok(run)
}
