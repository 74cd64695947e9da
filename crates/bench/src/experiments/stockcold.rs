//! A file read cold from OpenAFS's file server over 12.5 ms, by our client and by OpenAFS's own in FUSE; and what another client
//! of that server notices of it.

use std::time::Duration;

use crate::distribution::Distribution;
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{CellScene, Mount, work};
use crate::network::{LINK_TEXT, LinkSpec, add_addresses};
use crate::record::{Record, Run, short};
use crate::tools::Stack;
use crate::workers::files;

const RTT: Duration = Duration::from_micros(12_500);
/// The options of the server, as it is by default and as large sites have it; and the wanted multiple of afsd.fuse's rate.
const SERVERS: [(&str, &str, f64); 2] = [("-p 9", "-p 9", 5.0), ("-L -p 128", "-L -p 128", 15.0)];
const WHO: [&str; 2] = ["afar mount", "afsd.fuse"];
/// The other client: an address of its own at this end of the link, and how many times its idle p99 its calls may take.
const OTHER: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 99, 0, 3);
const GOAL_OTHER: f64 = 2.0;

const MB: &str = "MB/s";
const IDLE: &str = "another client, idle p99 ms";
const LOADED: &str = "another client, p99 ms";
const FACTOR: &str = "another client, p99 / idle p99";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    // afsd.fuse carries some 3 MB/s.
    let (bytes, stock_bytes): (u64, u64) = lab.choose((400_000_000, 40_000_000), (60_000_000, 10_000_000));
    record.headline = MB.into();
    record.placement = "The clients in namespace A, the servers in a namespace behind B, the emulator's thread (SCHED_FIFO 10) in the \
        bench's process; nothing is pinned, niceness 0, all on the cores of this machine."
        .into();
    record.method = format!(
        "{LINK_TEXT} The server is Debian's dafileserver with the options that the rows name. A file is read from its beginning on in MiB \
         by a program in a mount whose cache is empty: {bytes} bytes by our client, {stock_bytes} by afsd.fuse (-chunksize 20 -daemons 6), \
         from its open to the last byte. Meanwhile another client, with an address of its own in A, calls FetchStatus of another file \
         every 20 ms, none left out, each timed from when it was due; before that it does so for {} s while nothing else is going on. \
         Repetitions in turns, each with a fresh mount.",
        idle_s(lab)
    );
    for (name, flags, _) in SERVERS {
        let scene = CellScene::open(lab, Stack::OpenAfs, flags, &LinkSpec::wan(RTT))?;
        add_addresses(scene.link().a(), OTHER, 1)?;
        prepare(lab, &scene, bytes)?;
        let scene = &scene;
        let cells = WHO.map(|who| {
            let labels = [("dafileserver", name.to_string()), ("client", who.to_string())];
            Cell::new(labels, move |lab| {
                measure(lab, scene, who, if who == WHO[0] { bytes } else { stock_bytes })
            })
        });
        interleave(lab, record, &cells, lab.repeats(3))?;
    }
    for (name, _, goal) in SERVERS {
        let [ours, theirs] = WHO.map(|who| record.median(MB, &[name, who]));
        let text = |value: Option<f64>| value.map_or("-".to_string(), short);
        let note = format!("MB/s: {} and afsd.fuse {}", text(ours), text(theirs));
        let claim = format!("Cold read from dafileserver {name} at 12.5 ms, by afsd.fuse");
        record.at_least(&claim, ours.zip(theirs).map(|(a, b)| a / b), goal, "times", &note);
        let [factor, idle, loaded] =
            [FACTOR, IDLE, LOADED].map(|figure| record.median(figure, &[name, WHO[0]]));
        let note = format!("ms: {} and idle {}", text(loaded), text(idle));
        let claim = format!("Another client's FetchStatus p99 during that ({name}), by its idle p99");
        record.at_most(&claim, factor, GOAL_OTHER, "times", &note);
    }
    Ok(())
}

fn idle_s(lab: &Lab) -> u32 {
    lab.choose(10, 3)
}

/// Stores the file that is read, by our client beside the servers.
fn prepare(lab: &Lab, scene: &CellScene, bytes: u64) -> Result<(), Error> {
    let mount = Mount::afar(lab, scene.near(), &scene.client(), None)?;
    work(lab, None, ["make-file", &mount.file("file"), &bytes.to_string()])?;
    mount.stop()
}

fn measure(lab: &Lab, scene: &CellScene, who: &str, bytes: u64) -> Result<Run, Error> {
    let mount = match who {
        "afsd.fuse" => Mount::afsd(lab, scene.far(), &scene.client(), None)?,
        _ => Mount::afar(lab, scene.far(), &scene.client(), None)?,
    };
    std::fs::metadata(mount.path()).map_err(|e| Error::run(format!("the mount's root: {e}")))?;
    let (host, other) = (afar_interop::cell::ADDRESS.to_string(), OTHER.to_string());
    let pulse = lab.tools.bench().and([files::NAME, "pulse", &host, scene.volume(), &other]);
    let mut pulse = pulse.start(scene.far(), &lab.interrupt)?;
    pulse.wait_for_line("begin", Duration::from_secs(30))?;
    lab.interrupt.sleep(Duration::from_secs(idle_s(lab).into()))?;
    let taken = |process: &mut crate::process::Process| -> Result<Distribution, Error> {
        process.say("take")?;
        let said = process.wait_for_line("took ", Duration::from_secs(60))?;
        let ms: Vec<f64> =
            serde_json::from_str(&said).map_err(|e| Error::run(format!("took {said}: {e}")))?;
        Ok(Distribution::of(ms))
    };
    let idle = taken(&mut pulse)?;
    let before = scene.link().counters();
    let cpu = mount.cpu_s();
    let worked = work(lab, None, ["read", &mount.file("file"), "1048576", &bytes.to_string(), "1"])?;
    let loaded = taken(&mut pulse)?;
    drop(pulse);
    let counters = scene.link().counters().since(&before);
    let mut run = Run { is_valid: true, ..Run::default() };
    run.commands = vec![mount.command().to_owned(), worked.command.clone()];
    if let Err(invalid) = counters.check() {
        run.is_valid = false;
        run.problems.push(invalid.to_string());
    }
    let mut figure = |name: &str, value: Option<f64>| {
        run.figures.extend(value.map(|value| (name.to_string(), value)));
    };
    figure(MB, Some(worked.mb_per_s()));
    figure("client, CPU s/GB", Some((mount.cpu_s() - cpu) / (worked.bytes / 1e9)));
    let (idle_p99, p99) = (idle.percentile(99.0), loaded.percentile(99.0));
    figure(IDLE, idle_p99);
    figure(LOADED, p99);
    figure("another client, median ms", loaded.percentile(50.0));
    figure("another client, idle median ms", idle.percentile(50.0));
    figure(FACTOR, p99.zip(idle_p99).map(|(p99, idle)| p99 / idle));
    let drops = counters.a_to_b.drop_queue + counters.b_to_a.drop_queue;
    figure("dropped by the queue, packets", Some(drops as f64));
    run.link = Some(counters);
    Ok(run)
}
