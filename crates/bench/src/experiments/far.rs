//! Far away: one long file read and written through a mount over a long link, with and without loss; OpenAFS's client and server,
//! as they are and tuned, each with ours as its peer, ours with ours, and TCP.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use linkem::Link;
use serde_json::Value;

use super::rtt_text;
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{AFSD_SIZES, CellScene, ClientOf, Mount, OurCell, Scene};
use crate::network::{LinkSpec, over_link};
use crate::process::Process;
use crate::record::{Record, Run, short};
use crate::tools::{Place, Stack};
use crate::transfer::{self, Window};
use crate::workers::stream;

/// Round trips; 0 is a link with the same rate and no delay.
const RTTS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_micros(12_500),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];
/// Shares of the packets that are lost, each for itself.
const LOSSES: [f64; 3] = [0.0, 0.001, 0.01];
/// The goals are at this distance, without loss: the share of the link, and times OpenAFS's rate. The latter over a link that has no rate of
/// its own: 50 times OpenAFS's is more than 1 Gbit/s carries.
const GOAL_RTT: Duration = Duration::from_micros(12_500);
const GOAL_TIMES: f64 = 50.0;
const GOAL_MBIT: f64 = 850.0;

/// The options with which sites make it faster (nilcons/openafs-tuning): larger buffers at the server, larger chunks at the client.
const TUNED_SERVER: &str = "-sendsize 4000000 -udpsize 4000000";
const TUNED_CLIENT: [&str; 10] =
    ["-blocks", "1000000", "-daemons", "6", "-chunksize", "22", "-stat", "20000", "-files", "4000"];

/// The memory of our servers and a client together, so that the servers have what `afar server` has by default.
const MEMORY: &str = "2G";

/// The file that is read.
const FILE: &str = "bulk";
/// The bytes of a call of OpenAFS's in flight: 32 packets of 1416 bytes.
const STOCK_WINDOW_BYTES: f64 = 32.0 * 1416.0;
/// A rate that no OpenAFS exceeds on this link without delay, bytes/s.
const STOCK_NEAR: f64 = 30e6;
/// The longest time of preparations, and of one read or write.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);
const TIMEOUT: Duration = Duration::from_secs(600);
/// The time between two looks at whether everything has arrived over the link.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The client that reads and writes, and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    Ours,
    OurClient,
    OurServer,
    Stock,
    Tuned,
}

const PAIRS: [(Pair, &str); 5] = [
    (Pair::Ours, "afar"),
    (Pair::OurClient, "afar's client, OpenAFS's server"),
    (Pair::OurServer, "OpenAFS's client, afar's server"),
    (Pair::Stock, "OpenAFS"),
    (Pair::Tuned, "OpenAFS, tuned"),
];
const WAYS: [&str; 2] = ["read", "write"];
const TCP: [&str; 2] = ["bbr", "cubic"];

/// Sizes and times of a run.
#[derive(Clone, Copy)]
struct Size {
    /// The bytes of our server's file, and of what is written to it.
    bytes: u64,
    /// The bytes of OpenAFS's file.
    stock_bytes: u64,
    /// The longest time of a read.
    time: Duration,
}

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let size = lab.choose(
        Size { bytes: 1_000_000_000, stock_bytes: 400_000_000, time: Duration::from_secs(10) },
        Size { bytes: 150_000_000, stock_bytes: 10_000_000, time: Duration::from_secs(2) },
    );
    describe(record, size);
    let ours = OurCell::new()?;
    let mut specs = Vec::new();
    for rtt in lab.choose(&RTTS[..], &[GOAL_RTT]) {
        specs.extend(
            lab.choose(&LOSSES[..], &[0.0])
                .iter()
                .map(|loss| LinkSpec { loss: *loss, ..LinkSpec::wan(*rtt) }),
        );
    }
    if !lab.is_quick {
        specs.push(LinkSpec::unlimited(GOAL_RTT));
    }
    for spec in specs {
        let condition = Condition {
            spec,
            ours: &ours,
            size,
            our: OnceCell::new(),
            stock: OnceCell::new(),
            tuned: OnceCell::new(),
        };
        measure(lab, record, &condition)?;
    }
    judge(record);
    Ok(())
}

fn describe(record: &mut Record, size: Size) {
    record.headline = "Mbit/s".into();
    record.compared = Some("who".into());
    record.placement = "Client in namespace A, servers in namespace B or behind it, the emulator's thread (SCHED_FIFO 10) in the bench's \
        process; nothing is pinned, niceness 0, all on the cores of this machine."
        .into();
    record.method = format!(
        "Emulated link (linkem): 1 Gbit/s each way, drop-tail queue of 50 ms, MTU 1500, or delay alone ('no limit'); loss, where there is some, hits each packet by \
         itself in both directions. Each run is a mount of its own with an empty cache, in which the file's folder has been looked at. read: a file of {} MB (at OpenAFS's servers {} MB) from its \
         beginning on, to its end or for {} s, the file being in the server's page cache. write: a new file, from its opening until the \
         link has carried all of it and is quiet, as a close of OpenAFS's FUSE client does not wait for the store; {} MB, to or from OpenAFS \
         as much as its window of 32 packets a round trip would take in about {} s. OpenAFS: Debian's dafileserver and afsd.fuse \
         (no kernel module can be loaded here; afsd.fuse has the cache manager's code in a process), options of the client: {}. tuned: servers with \
         {TUNED_SERVER}, client with {}. afar: `afar up --no-mount --memory {MEMORY}`, with which the servers have as much as `afar server` by default, and `afar mount` with its defaults. TCP: iperf3 from client to server, its second \
         {} s. Repetitions in turns over one link for each delay and loss.",
        size.bytes / 1_000_000,
        size.stock_bytes / 1_000_000,
        size.time.as_secs(),
        size.bytes / 1_000_000,
        size.time.as_secs(),
        AFSD_SIZES.join(" "),
        TUNED_CLIENT.join(" "),
        size.time.as_secs(),
    );
}

/// One delay and loss, with the scenes that are opened when a row needs them. One that does not open is an error of its runs.
struct Condition<'a> {
    spec: LinkSpec,
    ours: &'a OurCell,
    size: Size,
    our: OnceCell<Result<Scene, String>>,
    stock: OnceCell<Result<CellScene, String>>,
    tuned: OnceCell<Result<CellScene, String>>,
}

/// The parts of a scene that a run needs.
struct Stage<'a> {
    link: &'a Link,
    far: Place<'a>,
    client: ClientOf,
}

impl Condition<'_> {
    fn our(&self, lab: &Lab) -> Result<Stage<'_>, Error> {
        let scene = self.our.get_or_init(|| self.open_our(lab).map_err(|error| error.to_string()));
        let scene = scene.as_ref().map_err(|why| Error::run(why.clone()))?;
        Ok(Stage { link: scene.link(), far: scene.far(), client: self.ours.client() })
    }

    fn open_our(&self, lab: &Lab) -> Result<Scene, Error> {
        let address = linkem::ADDRESS_B.to_string();
        let options = ["--bind", &address, "--memory", MEMORY];
        let scene = Scene::open_with(lab, self.ours, self.spec.start()?, None, &options)?;
        let near = Mount::afar(lab, scene.near(), &self.ours.client(), None)?;
        let there = std::fs::metadata(near.file(FILE)).is_ok_and(|found| found.len() == self.size.bytes);
        if !there {
            let bytes = self.size.bytes.to_string();
            work(lab, &[stream::NAME, "write", &near.file(FILE), &bytes], PREPARE_TIMEOUT)?;
        }
        near.stop()?;
        Ok(scene)
    }

    fn stock(&self, lab: &Lab, is_tuned: bool) -> Result<Stage<'_>, Error> {
        let (scene, flags) = if is_tuned { (&self.tuned, TUNED_SERVER) } else { (&self.stock, "") };
        let scene = scene.get_or_init(|| self.open_stock(lab, flags).map_err(|error| error.to_string()));
        let scene = scene.as_ref().map_err(|why| Error::run(why.clone()))?;
        Ok(Stage { link: scene.link(), far: scene.far(), client: scene.client() })
    }

    fn open_stock(&self, lab: &Lab, flags: &str) -> Result<CellScene, Error> {
        let scene = CellScene::open(lab, Stack::OpenAfs, flags, &self.spec)?;
        let clients = scene.cell().clients().map_err(Error::Run)?;
        let near = Mount::afsd(lab, Place::In(&clients), &scene.client(), None)?;
        let bytes = self.size.stock_bytes.to_string();
        work(lab, &[stream::NAME, "write", &near.file(FILE), &bytes], PREPARE_TIMEOUT)?;
        // By its end all is stored.
        near.stop()?;
        Ok(scene)
    }

    /// The bytes to write so that it takes about as long as everything else.
    fn to_write(&self, pair: Pair) -> u64 {
        if pair == Pair::Ours {
            return self.size.bytes;
        }
        let rtt = self.spec.rtt.as_secs_f64();
        let rate = if rtt > 0.0 { (STOCK_WINDOW_BYTES / rtt).min(STOCK_NEAR) } else { STOCK_NEAR };
        // Windows that shrink with each loss.
        let rate = rate
            * if self.spec.loss >= 0.01 {
                0.2
            } else if self.spec.loss > 0.0 {
                0.6
            } else {
                1.0
            };
        ((rate * self.size.time.as_secs_f64()) as u64).max(500_000)
    }

    fn stage(&self, lab: &Lab, pair: Pair) -> Result<Stage<'_>, Error> {
        match pair {
            Pair::Ours | Pair::OurServer => self.our(lab),
            Pair::OurClient | Pair::Stock => self.stock(lab, false),
            Pair::Tuned => self.stock(lab, true),
        }
    }
}

fn measure(lab: &Lab, record: &mut Record, condition: &Condition<'_>) -> Result<(), Error> {
    let rtt = link_text(&condition.spec);
    let loss = loss_text(condition.spec.loss);
    let mut cells = Vec::new();
    for way in WAYS {
        // In quick runs the others are left out.
        let is_wanted = |pair: Pair| lab.choose(true, matches!(pair, Pair::Ours | Pair::Stock));
        for (pair, name) in PAIRS.into_iter().filter(|(pair, _)| is_wanted(*pair)) {
            let labels = [
                ("RTT", rtt.clone()),
                ("loss", loss.clone()),
                ("who", name.to_string()),
                ("way", way.to_string()),
            ];
            cells.push(Cell::new(labels, move |lab| once(lab, condition, pair, way)));
        }
    }
    for control in TCP {
        let labels = [
            ("RTT", rtt.clone()),
            ("loss", loss.clone()),
            ("who", format!("TCP {control}")),
            ("way", "write".to_string()),
        ];
        cells.push(Cell::new(labels, move |lab| {
            let window = Window::new(lab.choose(3, 2), condition.size.time.as_secs());
            over_link(lab, &condition.spec, |lab, ends| transfer::iperf3(lab, ends, &["-C", control], window))
        }));
    }
    interleave(lab, record, &cells, lab.repeats(3))
}

/// One read or write through a mount of its own.
fn once(lab: &Lab, condition: &Condition<'_>, pair: Pair, way: &str) -> Result<Run, Error> {
    let stage = condition.stage(lab, pair)?;
    let mount = match pair {
        Pair::Ours | Pair::OurClient => Mount::afar(lab, stage.far, &stage.client, None)?,
        Pair::OurServer | Pair::Stock => Mount::afsd(lab, stage.far, &stage.client, None)?,
        Pair::Tuned => Mount::afsd_with(lab, stage.far, &stage.client, None, &TUNED_CLIENT)?,
    };
    // The first look at a mount of afsd.fuse takes a while, in which it makes the files of its cache.
    std::fs::metadata(mount.path()).map_err(|e| Error::run(format!("the mount's root: {e}")))?;
    let before = stage.link.counters();
    let (bytes, seconds, closed_s, command);
    if way == "read" {
        let time = condition.size.time.as_secs().to_string();
        let report;
        (report, command) = work(lab, &[stream::NAME, "read", &mount.file(FILE), &time], TIMEOUT)?;
        (bytes, seconds, closed_s) = (number(&report, "bytes"), number(&report, "seconds"), None);
    } else {
        let wanted = condition.to_write(pair);
        let report;
        (report, command) =
            work(lab, &[stream::NAME, "write", &mount.file(way), &wanted.to_string()], TIMEOUT)?;
        (bytes, closed_s) = (number(&report, "bytes"), Some(number(&report, "seconds")));
        let carried = || Ok(stage.link.counters().a_to_b.bytes_out - before.a_to_b.bytes_out);
        seconds =
            number(&report, "seconds") + until_quiet(lab, carried, wanted, condition.spec.rtt, TIMEOUT)?;
    }
    let counters = stage.link.counters().since(&before);
    let mut run = Run {
        is_valid: true,
        commands: vec![mount.command().to_string(), command],
        link: Some(counters.clone()),
        ..Run::default()
    };
    let mut figure = |name: &str, value: f64| run.figures.insert(name.to_string(), value);
    figure("Mbit/s", bytes * 8.0 / seconds.max(1e-9) / 1e6);
    figure("MB", bytes / 1e6);
    if let Some(closed) = closed_s {
        figure("until close returned, s", closed);
    }
    figure("client, CPU s/GB", mount.cpu_s() / (bytes / 1e9).max(1e-9));
    figure("late packets, %", counters.late_share() * 100.0);
    figure("dropped by the queue, packets", (counters.a_to_b.drop_queue + counters.b_to_a.drop_queue) as f64);
    if let Err(invalid) = counters.check()
        && condition.spec.is_judged
    {
        run.is_valid = false;
        run.problems.push(invalid.to_string());
    }
    if bytes == 0.0 {
        run.is_valid = false;
        run.problems.push(format!("no byte came of the {way}"));
    }
    // What it wrote is on its way no longer, and nobody needs it.
    if way == "write" {
        let _ = std::fs::remove_file(mount.file(way));
    }
    mount.stop()?;
    Ok(run)
}

/// The time until the network had carried so many bytes, and then nothing more: seconds from now.
pub(super) fn until_quiet(
    lab: &Lab,
    carried: impl Fn() -> Result<u64, Error>,
    bytes: u64,
    rtt: Duration,
    patience: Duration,
) -> Result<f64, Error> {
    let quiet = Duration::from_millis(300) + 4 * rtt;
    let begin = Instant::now();
    let (mut last, mut at) = (carried()?, begin);
    loop {
        let carried = carried()?;
        // Keepalives and acknowledgements are not what was written.
        if carried > last + 4096 {
            (last, at) = (carried, Instant::now());
        }
        if carried >= bytes && at.elapsed() > quiet {
            return Ok((at - begin).as_secs_f64());
        }
        if begin.elapsed() > patience {
            return Err(Error::run(format!(
                "of {bytes} bytes {carried} have left in {} s",
                patience.as_secs()
            )));
        }
        lab.interrupt.sleep(LOOK_EVERY)?;
    }
}

/// Runs one of this program's workers to its end; what it said, and how it was started.
pub(super) fn work(lab: &Lab, words: &[&str], patience: Duration) -> Result<(Value, String), Error> {
    let program = lab.tools.bench().and(words);
    let mut process: Process = program.start(Place::Here, &lab.interrupt)?;
    let said = process.wait_for_line("end ", patience)?;
    process.finish(PREPARE_TIMEOUT)?;
    let report =
        serde_json::from_str(&said).map_err(|e| Error::run(format!("{program} said {said}: {e}")))?;
    Ok((report, program.to_string()))
}

/// A number of what a worker said.
pub(super) fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or(f64::NAN)
}

/// A link's delay, and that it has no limit of its rate.
fn link_text(spec: &LinkSpec) -> String {
    let rtt = rtt_text(spec.rtt);
    if spec.rate_mbit > 0.0 { rtt } else { format!("{rtt}, no limit") }
}

fn loss_text(loss: f64) -> String {
    format!("{} %", loss * 100.0)
}

fn judge(record: &mut Record) {
    let (rtt, loss) = (rtt_text(GOAL_RTT), loss_text(0.0));
    let free = link_text(&LinkSpec::unlimited(GOAL_RTT));
    for way in WAYS {
        let ours = record.median("Mbit/s", &[&rtt, &loss, "afar", way]);
        record.at_least(&format!("{way} at {rtt}"), ours, GOAL_MBIT, "Mbit/s", "85 % of the link");
        if record.is_quick {
            continue;
        }
        let [ours, stock, tuned] = ["afar", "OpenAFS", "OpenAFS, tuned"]
            .map(|who| record.median("Mbit/s", &[&free, &loss, who, way]));
        let ratio = ours.zip(stock).map(|(ours, stock)| ours / stock);
        let [a, b, c] = [ours, stock, tuned].map(|value| value.map_or("-".to_string(), short));
        let note = format!("Mbit/s: afar {a}, OpenAFS {b}, tuned {c}");
        record.at_least(&format!("{way} at {free}, against OpenAFS"), ratio, GOAL_TIMES, "times", &note);
    }
}
