//! Volumes in motion: a gigabyte dumped, restored, moved and released over a long link, beside one call of rxperf and beside OpenAFS's; and the
//! release of a volume of many files of which one has changed.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use afar_interop::cell::ADDRESS;
use serde_json::Value;

use crate::error::Error;
use crate::folder::Folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{CellScene, Mount, OurCell, Scene};
use crate::network::{Ends, LINK_TEXT, LinkSpec};
use crate::process::Process;
use crate::record::{Record, Run, short};
use crate::tools::{Invocation, Place, Who};
use crate::transfer::{self, Window};

const RTT: Duration = Duration::from_millis(50);
/// Of rxperf's rate in the same run.
const GOAL_SHARE: f64 = 0.9;
/// Seconds that the release of one changed file may take.
const GOAL_RELEASE_S: f64 = 1.0;
/// What servers may take for it beyond what they need without, whatever the volume's size.
const GOAL_MEMORY_MB: f64 = 64.0;
const MB: u64 = 1_000_000;
const MBIT: &str = "Mbit/s";
/// The files of a volume; one changes.
const FILES: usize = 100;
const PORT: u16 = 7100;
const RXPERF_BYTES: &str = "4000000000";
const VERBS: [&str; 4] = ["dump", "restore", "move", "release"];
const RXPERF: &str = "rxperf";
const CHANGED: &str = "release, one file changed";
const READY_PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Clone, Copy)]
struct Size {
    bytes: u64,
    stock_bytes: u64,
    /// Of the volume of which one file changes.
    files: usize,
}

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let size = lab.choose(
        Size { bytes: 1000 * MB, stock_bytes: 20 * MB, files: 200_000 },
        Size { bytes: 100 * MB, stock_bytes: 4 * MB, files: 2_000 },
    );
    describe(record, size);
    let cell = OurCell::new()?;
    let mut far = Far::start(lab, &cell)?;
    far.fill(lab, size)?;
    far.begin_memory()?;
    let far = &far;
    let ours = |what: &str| [("what", what.to_string()), ("who", "afar".to_string())];
    let window = lab.choose(Window::new(2, 8), Window::new(1, 3));
    let client =
        lab.tools.rxperf_client(Who::Afar).and(["-c", "send", "-b", RXPERF_BYTES]).and(window.rxperf());
    let mut cells = vec![Cell::new(ours(RXPERF), move |lab| {
        transfer::rxperf(lab, far.ends(), &transfer::server(Who::Afar, &[]), &client, window)
    })];
    for verb in VERBS {
        cells.push(Cell::new(ours(verb), move |lab| far.measure(lab, verb, size)));
    }
    cells.push(Cell::new(ours(CHANGED), move |lab| far.release_changed(lab)));
    interleave(lab, record, &cells, lab.repeats(3))?;
    let dump = far.folder.path().join("part");
    far.vos(lab, &["dump", "part", "-file", &dump.display().to_string()])?;
    stock(lab, record, &dump, size)?;
    judge(record);
    Ok(())
}

fn describe(record: &mut Record, size: Size) {
    record.headline = MBIT.into();
    record.placement = "The cell's databases and a file server in namespace B, another file server in namespace A, the emulator's thread \
        (SCHED_FIFO 10) in the bench's process; nothing is pinned, niceness 0, all on the cores of this machine."
        .into();
    record.method = format!(
        "{LINK_TEXT} Round trip {} ms. A volume of {} MB in {FILES} files; vos with its defaults (level crypt) and -localauth. dump: from the server in B \
         to a file, vos in A. restore: that file to the server in A, vos in B. move: from B to A and back, the mean. release: to a new site in A. Each is vos from its \
         start to its end, and what is sent is on the server's disk by then. rxperf: one call, level clear, from A to B. \
         {CHANGED}: a volume of {} files in folders of 1000, released before, of which one file is written anew. Most memory is VmHWM of each server since the volumes were filled, by what it had then. OpenAFS: Debian's vos and \
         servers, {} MB, as its window of 32 packets a round trip takes minutes for more; move and release need a second server there and are not measured.",
        RTT.as_millis(),
        size.bytes / MB,
        size.files,
        size.stock_bytes / MB,
    );
}

/// Two file servers of a cell with a link between them.
struct Far {
    /// In the order of their drop.
    mount: Mount,
    second: Process,
    scene: Scene,
    /// Where the servers' keys are.
    keys: String,
    folder: Folder,
    /// What the servers had before anything was sent, bytes.
    memory: [f64; 2],
}

impl Far {
    fn start(lab: &Lab, cell: &OurCell) -> Result<Far, Error> {
        let scene = Scene::open(lab, cell, &LinkSpec::wan(RTT))?;
        let folder = Folder::new("second")?;
        let keys = cell.state().join("etc/server");
        let state = folder.inner("state")?;
        let own = state.join("etc/server");
        let copied = fs::create_dir_all(&own).and_then(|()| {
            for entry in fs::read_dir(&keys)? {
                let entry = entry?;
                fs::copy(entry.path(), own.join(entry.file_name()))?;
            }
            Ok(())
        });
        copied.map_err(|e| Error::setup(format!("the configuration of the second server: {e}")))?;
        let (state, address) = (state.display().to_string(), linkem::ADDRESS_A.to_string());
        let server = Invocation::new(lab.tools.afar());
        let server = server.and(["server", "--roles", "file,vol,bos", "--state", &state, "--bind", &address]);
        let second = server.start(scene.far(), &lab.interrupt)?;
        let mount = Mount::afar(lab, scene.near(), &cell.administrator(), None)?;
        let keys = keys.display().to_string();
        let far = Far { mount, second, scene, keys, folder, memory: [0.0; 2] };
        let deadline = Instant::now() + READY_PATIENCE;
        while let Err(error) = far.vos(lab, &["listvol", &address]) {
            if Instant::now() > deadline {
                return Err(error);
            }
        }
        Ok(far)
    }

    fn ends(&self) -> Ends<'_> {
        Ends { client: self.scene.far(), server: self.scene.near(), host: linkem::ADDRESS_B, port: PORT }
    }

    /// Forgets what the servers needed until now.
    fn begin_memory(&mut self) -> Result<(), Error> {
        for pid in [self.scene.server(), self.second.id()] {
            // proc(5): resets VmHWM.
            let reset = fs::write(format!("/proc/{pid}/clear_refs"), "5");
            reset.map_err(|e| Error::setup(format!("the memory of process {pid}: {e}")))?;
        }
        self.memory = self.most_memory();
        Ok(())
    }

    fn most_memory(&self) -> [f64; 2] {
        [self.scene.server(), self.second.id()].map(most_memory_of)
    }

    /// Makes and fills the volumes.
    fn fill(&self, lab: &Lab, size: Size) -> Result<(), Error> {
        for (volume, files, bytes) in [
            ("big", FILES, size.bytes),
            ("part", FILES, size.stock_bytes),
            ("many", size.files, 8 * size.files as u64),
        ] {
            self.vos(lab, &["create", &linkem::ADDRESS_B.to_string(), "a", volume, "-maxquota", "0"])?;
            let at = self.mount.file(volume);
            let mount = Invocation::new(lab.tools.afar()).and(["fs", "mkmount", &at, volume]);
            mount.start(self.scene.near(), &lab.interrupt)?.finish(PATIENCE)?;
            write_files(Path::new(&at), files, bytes / files as u64)?;
        }
        let second = linkem::ADDRESS_A.to_string();
        self.vos(lab, &["addsite", &second, "a", "many"])?;
        self.vos(lab, &["release", "many"]).map(drop)
    }

    /// Runs vos beside the databases; says what it took and what it wrote.
    fn vos(&self, lab: &Lab, words: &[&str]) -> Result<(f64, String), Error> {
        self.vos_at(lab, self.scene.near(), words)
    }

    fn vos_at(&self, lab: &Lab, place: Place<'_>, words: &[&str]) -> Result<(f64, String), Error> {
        let vos = Invocation::new(lab.tools.afar()).and(["vos"]).and(words);
        let vos = vos.and(["-config", &self.keys, "-localauth"]);
        let began = Instant::now();
        let said = vos.start(place, &lab.interrupt)?.finish(PATIENCE)?;
        Ok((began.elapsed().as_secs_f64(), said))
    }

    /// One verb on the large volume.
    fn measure(&self, lab: &Lab, verb: &str, size: Size) -> Result<Run, Error> {
        let [a, b] = [linkem::ADDRESS_A, linkem::ADDRESS_B].map(|address| address.to_string());
        let file = self.folder.path().join("dump").display().to_string();
        let seconds = match verb {
            "dump" => self.vos_at(lab, self.scene.far(), &["dump", "big", "-file", &file])?.0,
            "restore" => {
                self.vos(lab, &["dump", "big", "-file", &file])?;
                let took = self.vos(lab, &["restore", &a, "a", "back", "-file", &file])?.0;
                self.vos(lab, &["remove", "-id", "back"])?;
                took
            }
            "move" => {
                let there = self.vos(lab, &["move", "big", &b, "a", &a, "a"])?.0;
                (there + self.vos(lab, &["move", "big", &a, "a", &b, "a"])?.0) / 2.0
            }
            _ => {
                self.vos(lab, &["addsite", &a, "a", "big"])?;
                let took = self.vos(lab, &["release", "big"])?.0;
                self.vos(lab, &["remove", &a, "a", "big.readonly"])?;
                took
            }
        };
        let mut run = run_of(size.bytes, seconds);
        let names = ["server in B, most memory more, MB", "server in A, most memory more, MB"];
        for ((name, now), before) in names.into_iter().zip(self.most_memory()).zip(self.memory) {
            run.figures.insert(name.into(), (now - before) / 1e6);
        }
        Ok(run)
    }

    fn release_changed(&self, lab: &Lab) -> Result<Run, Error> {
        let name = self.mount.file("many/d0/f0");
        let text = format!("{:?}", Instant::now());
        fs::write(&name, text).map_err(|e| Error::run(format!("{name}: {e}")))?;
        // The release clones what was written before it in another second.
        lab.interrupt.sleep(Duration::from_millis(1100))?;
        let (seconds, _) = self.vos(lab, &["release", "many"])?;
        let mut run = Run { is_valid: true, ..Run::default() };
        run.figures.insert("s".into(), seconds);
        Ok(run)
    }
}

fn run_of(bytes: u64, seconds: f64) -> Run {
    let mut run = Run { is_valid: true, report: Value::Null, ..Run::default() };
    run.figures.insert(MBIT.into(), bytes as f64 * 8.0 / 1e6 / seconds);
    run
}

/// `VmHWM` of a process, in bytes.
fn most_memory_of(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|text| text.trim().split(' ').next()?.parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib * 1024.0)
}

/// Writes files of a length in folders of 1000.
fn write_files(at: &Path, files: usize, bytes: u64) -> Result<(), Error> {
    let content: Vec<u8> = (0..bytes).map(|n| ((n * 2_654_435_761) >> 7) as u8).collect();
    for n in 0..files {
        let folder = at.join(format!("d{}", n / 1000));
        let made = if n % 1000 == 0 { fs::create_dir(&folder) } else { Ok(()) };
        let written = made.and_then(|()| fs::write(folder.join(format!("f{n}")), &content));
        written.map_err(|e| Error::setup(format!("filling {}: {e}", at.display())))?;
    }
    Ok(())
}

/// Dump and restore of OpenAFS's, over the same link.
fn stock(lab: &Lab, record: &mut Record, dump: &Path, size: Size) -> Result<(), Error> {
    let scene = CellScene::open(lab, Who::OpenAfs, "", &LinkSpec::wan(RTT))?;
    let keys = scene.cell().folder("srv").join("etc/server").display().to_string();
    let copy = scene.cell().folder("srv").join("dump");
    fs::copy(dump, &copy).map_err(|e| Error::setup(format!("{}: {e}", copy.display())))?;
    let file = copy.display().to_string();
    let (scene, keys, file) = (&scene, &keys, &file);
    let vos = move |lab: &Lab, words: &[&str]| -> Result<f64, Error> {
        let vos = Invocation::new(Path::new("vos")).and(words).and(["-config", keys, "-localauth"]);
        let began = Instant::now();
        vos.start(scene.far(), &lab.interrupt)?.finish(PATIENCE)?;
        Ok(began.elapsed().as_secs_f64())
    };
    let address = ADDRESS.to_string();
    let address = &address;
    vos(lab, &["restore", address, "a", "part", "-file", file])?;
    let cells = ["dump", "restore"].map(|verb| {
        Cell::new([("what", verb.to_string()), ("who", "OpenAFS".to_string())], move |lab| {
            let seconds = match verb {
                "dump" => vos(lab, &["dump", "part", "-file", file])?,
                _ => vos(lab, &["restore", address, "a", "part", "-file", file, "-overwrite", "full"])?,
            };
            Ok(run_of(size.stock_bytes, seconds))
        })
    });
    interleave(lab, record, &cells, lab.repeats(3))
}

fn judge(record: &mut Record) {
    let median = |what: &str, figure: &str| record.median(figure, &[what, "afar"]);
    let plain = median(RXPERF, MBIT);
    let shares = VERBS.map(|verb| {
        let (rate, stock) = (median(verb, MBIT), record.median(MBIT, &[verb, "OpenAFS"]));
        let text = |value: Option<f64>| value.map_or("-".to_string(), short);
        let note = format!("Mbit/s: {}, rxperf {}, OpenAFS {}", text(rate), text(plain), text(stock));
        (format!("{verb} of a gigabyte, by rxperf"), rate.zip(plain).map(|(rate, plain)| rate / plain), note)
    });
    let changed = median(CHANGED, "s");
    let memory = ["server in B, most memory more, MB", "server in A, most memory more, MB"].map(|figure| {
        let of = |verb: &&str| median(verb, figure);
        VERBS.iter().filter_map(of).max_by(f64::total_cmp)
    });
    for (claim, share, note) in shares {
        record.at_least(&claim, share, GOAL_SHARE, "times", &note);
    }
    record.at_most("Release of a volume with one changed file", changed, GOAL_RELEASE_S, "s", "");
    for (which, most) in ["sends", "receives"].into_iter().zip(memory) {
        let claim = format!("Memory of the server that {which}, more than before");
        record.at_most(&claim, most, GOAL_MEMORY_MB, "MB", "");
    }
}
