//! Small files made in a mount, each stored when it is closed: beside an empty FUSE mount and the calls that it takes.
//!
//! ext4 gives an inode that was freed within the last five minutes to nobody, and looks at each of them whenever a file is made: after
//! another experiment has removed its tens of thousands of files that took 330 us a file (perf). So nothing is removed for as long.

use std::time::Duration;

use crate::error::Error;
use crate::folder::folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{Mount, OurCell, Scene, work};
use crate::network::{Ends, LinkSpec};
use crate::record::{Record, Run, short};
use crate::tools::Stack;
use crate::transfer::{self, Window};

/// The program and the file system under it, or the caller; and the servers.
const CORE: Option<usize> = Some(0);
const SERVER_CORE: Option<usize> = Some(1);

const BYTES: &str = "8192";
/// CreateFile and StoreData.
const CALLS: f64 = 2.0;
const GOAL: f64 = 1.5;
const US: &str = "µs/file";
const CALL_US: &str = "µs/call";
const WHAT: [&str; 4] = ["empty mount", "empty mount again", "empty calls", "afar"];
/// The time for which ext4 keeps inodes that were freed (`recently_deleted` of the kernel's).
const FREED_FOR: Duration = Duration::from_secs(300);
/// A port for rxperf where nothing else of the cell is.
const PORT: u16 = 7009;

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let files = lab.choose(10_000, 1_000).to_string();
    let window = lab.choose(Window::new(1, 5), Window::new(0, 2));
    record.headline = US.into();
    record.placement = "The program that makes files and the file system under it on core 0, or the caller of empty calls; the servers on \
        core 1; all in one network namespace, over its loopback interface; niceness 0."
        .into();
    record.method = format!(
        "{files} files of {BYTES} bytes in one new folder, each created, written and closed before the next: a close stores. 'empty mount' \
         is a FUSE file system on our fuse-dev that serves a local folder on the same disk with the same flags as the client's mount. \
         'empty calls' are rxperf's rpc with no bytes either way, one after the other. Repetitions in turns; 'empty mount again' is the \
         same as 'empty mount', so their difference is noise. Nothing was removed for five minutes before, as ext4 makes files slowly after \
         that."
    );
    lab.interrupt.sleep(lab.choose(FREED_FOR, Duration::ZERO))?;
    let cell = OurCell::new()?;
    let scene = Scene::open_on(lab, &cell, &LinkSpec::none(), SERVER_CORE)?;
    let local = folder("local");
    let mount = Mount::afar(lab, scene.near(), &cell.client(), CORE)?;
    let mirror = Mount::mirror(lab, local.path(), CORE)?;
    let (scene, mount, mirror, files) = (&scene, &mount, &mirror, &files);
    let cells = WHAT.map(|what| {
        Cell::new([("what", what.to_string())], move |lab| match what {
            "empty calls" => calls(lab, scene, window),
            "afar" => {
                let before = (mount.cpu_s(), scene.server_cpu_s());
                let (mut run, made) = create(lab, mount, files)?;
                run.figures.insert("client, CPU µs/file".into(), (mount.cpu_s() - before.0) * 1e6 / made);
                run.figures
                    .insert("server, CPU µs/file".into(), (scene.server_cpu_s() - before.1) * 1e6 / made);
                Ok(run)
            }
            _ => Ok(create(lab, mirror, files)?.0),
        })
    });
    interleave(lab, record, &cells, lab.repeats(5))?;

    let [empty, again, _, ours] = WHAT.map(|what| record.median(US, &[what]));
    let call = record.median(CALL_US, &["empty calls"]);
    let floor = empty.zip(again).zip(call).map(|((a, b), call)| (a + b) / 2.0 + CALLS * call);
    let text = |value: Option<f64>| value.map_or("-".to_string(), short);
    let note = format!(
        "µs: {} a file, empty mount {} and {}, an empty call {}",
        text(ours),
        text(empty),
        text(again),
        text(call)
    );
    let claim = "Small files created, by an empty FUSE mount and two empty calls";
    record.at_most(claim, ours.zip(floor).map(|(ours, floor)| ours / floor), GOAL, "times", &note);
    Ok(())
}

/// Makes the files in a mount; how many there were.
fn create(lab: &Lab, mount: &Mount, files: &str) -> Result<(Run, f64), Error> {
    let worked = work(lab, CORE, ["create", &mount.file(""), files, BYTES, "1"])?;
    let mut run = Run { is_valid: true, ..Run::default() };
    run.commands = vec![mount.command().to_owned(), worked.command.clone()];
    run.figures.insert(US.into(), worked.us_per_file());
    Ok((run, worked.files))
}

fn calls(lab: &Lab, scene: &Scene, window: Window) -> Result<Run, Error> {
    let place = scene.near();
    let ends = Ends { client: place, server: place, host: linkem::ADDRESS_B, port: PORT };
    let client = lab.tools.rxperf_client(Stack::Afar).on_core(CORE);
    let client = client.and(["-c", "rpc", "-S", "0", "-R", "0", "-t", "1"]).and(window.rxperf());
    let server =
        |tools: &crate::tools::Tools, port| tools.rxperf_server(Stack::Afar, port).on_core(SERVER_CORE);
    let mut run = transfer::rxperf(lab, ends, &server, &client, window)?;
    run.figures.remove("Mbit/s");
    let rate = run.figures.get("calls/s").copied().unwrap_or(f64::NAN);
    run.figures.insert(CALL_US.into(), 1e6 / rate);
    Ok(run)
}
