//! Volumes in motion: a gigabyte dumped, restored, moved and released over a long link, beside one call of rxperf and beside OpenAFS's.
//! Also the release of a volume of many files, one of them changed, to one server and to three.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use afar_interop::cell::ADDRESS;
use serde_json::Value;

use crate::error::Error;
use crate::folder::folder;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::{CellScene, Mount, OurCell, Scene};
use crate::network::{Ends, LINK_TEXT, LinkSpec, add_addresses};
use crate::process::Process;
use crate::record::{Record, Run, short};
use crate::tools::{Invocation, Place, Stack};
use crate::transfer::{self, Window};
use afs_lab::real::folder::Folder;

const RTT: Duration = Duration::from_millis(50);
/// The part of rxperf's rate in the same run that is the goal.
const GOAL_SHARE: f64 = 0.9;
/// Seconds that the release of one changed file may take.
const GOAL_RELEASE_S: f64 = 1.0;
/// The goal for three servers, as a multiple of the time of the same release to one server.
const GOAL_THREE: f64 = 1.2;
/// The memory that servers may take for it beyond what they need without, whatever the volume's size.
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
const CHANGED_THREE: &str = "release to three servers, one file changed";
/// The servers in namespace A: the first has the link's own address.
const MORE_SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 21), Ipv4Addr::new(10, 99, 0, 22)];
const VOS_MEMORY: &str = "vos, most memory, MB";
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(600);
/// The time between two looks whether vos has ended.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Clone, Copy)]
struct Size {
    bytes: u64,
    stock_bytes: u64,
    /// The number of files in the volume where one file changes.
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
        lab.tools.rxperf_client(Stack::Afar).and(["-c", "send", "-b", RXPERF_BYTES]).and(window.rxperf());
    let mut cells = vec![Cell::new(ours(RXPERF), move |lab| {
        transfer::rxperf(lab, far.ends(), &transfer::server(Stack::Afar, &[]), &client, window)
    })];
    for verb in VERBS {
        cells.push(Cell::new(ours(verb), move |lab| far.measure(lab, verb, size)));
    }
    cells.push(Cell::new(ours(CHANGED), move |lab| far.release_changed(lab)));
    cells.push(Cell::new(ours(CHANGED_THREE), move |lab| far.release_changed_to_three(lab)));
    interleave(lab, record, &cells, lab.repeats(3))?;
    let dump = far.folder.path().join("part");
    far.vos(lab, &["dump", "part", "-file", &dump.display().to_string()])?;
    stock(lab, record, &dump, size)?;
    judge(record);
    Ok(())
}

fn describe(record: &mut Record, size: Size) {
    record.headline = MBIT.into();
    record.placement = "The cell's databases and a file server in namespace B, three file servers in namespace A, the emulator's thread \
        (SCHED_FIFO 10) in the bench's process; nothing is pinned, niceness 0, all on the cores of this machine."
        .into();
    record.method = format!(
        "{LINK_TEXT} Round trip {} ms. A volume of {} MB in {FILES} files; vos with its defaults (level crypt) and -localauth. dump: from the server in B \
         to a file, vos in A. restore: that file to the server in A, vos in B. move: from B to A and back, the mean. release: to a new site in A. Each is vos from its \
         start to its end, and what is sent is on the server's disk by then; what was written before it is on the disk when it begins. rxperf: one call, level clear, from A to B. \
         {CHANGED}: a volume of {} files in folders of 1000, released before, of which one file is written anew; {CHANGED_THREE}: \
         the same volume with three sites. Most memory is VmHWM: of vos, and of each server since the volumes were filled, by what it had then. OpenAFS: Debian's vos and \
         servers, {} MB, as its window of 32 packets a round trip takes minutes for more, a server in B with the databases and one in A, vos in A.",
        RTT.as_millis(),
        size.bytes / MB,
        size.files,
        size.stock_bytes / MB,
    );
}

/// Two file servers of a cell with a link between them.
struct Far {
    /// The mount. The fields are dropped in this order.
    mount: Mount,
    /// The file servers in namespace A.
    servers: Vec<Process>,
    scene: Scene,
    /// The path of the servers' keys.
    keys: String,
    folder: Folder,
    /// The memory of the servers before anything was sent, in bytes.
    memory: [f64; 2],
}

impl Far {
    fn start(lab: &Lab, cell: &OurCell) -> Result<Far, Error> {
        let scene = Scene::open(lab, cell, &LinkSpec::wan(RTT))?;
        let folder = folder("far");
        let keys = cell.state().join("etc/server");
        let Place::In(namespace) = scene.far() else { unreachable!("the scene is on a link") };
        add_addresses(namespace, MORE_SERVERS[0], MORE_SERVERS.len() as u32)?;
        let mut servers = Vec::new();
        for (n, address) in [linkem::ADDRESS_A].into_iter().chain(MORE_SERVERS).enumerate() {
            let state = folder.inner(&format!("state{n}"));
            let own = state.join("etc/server");
            let copied = fs::create_dir_all(&own).and_then(|()| {
                for entry in fs::read_dir(&keys)? {
                    let entry = entry?;
                    fs::copy(entry.path(), own.join(entry.file_name()))?;
                }
                Ok(())
            });
            copied.map_err(|e| Error::setup(format!("the configuration of the server at {address}: {e}")))?;
            let (state, address) = (state.display().to_string(), address.to_string());
            let server = Invocation::new(lab.tools.afar());
            let server =
                server.and(["server", "--roles", "file,vol,bos", "--state", &state, "--bind", &address]);
            servers.push(server.start(scene.far(), &lab.interrupt)?);
        }
        let mount = Mount::afar(lab, scene.near(), &cell.administrator(), None)?;
        let keys = keys.display().to_string();
        let far = Far { mount, servers, scene, keys, folder, memory: [0.0; 2] };
        let deadline = Instant::now() + READY_TIMEOUT;
        for address in [linkem::ADDRESS_A].into_iter().chain(MORE_SERVERS) {
            while let Err(error) = far.vos(lab, &["listvol", &address.to_string()]) {
                if Instant::now() > deadline {
                    return Err(error);
                }
            }
        }
        Ok(far)
    }

    fn ends(&self) -> Ends<'_> {
        Ends { client: self.scene.far(), server: self.scene.near(), host: linkem::ADDRESS_B, port: PORT }
    }

    /// Forgets what the servers needed until now.
    fn begin_memory(&mut self) -> Result<(), Error> {
        for pid in [self.scene.server(), self.servers[0].id()] {
            // proc(5): resets VmHWM.
            let reset = fs::write(format!("/proc/{pid}/clear_refs"), "5");
            reset.map_err(|e| Error::setup(format!("the memory of process {pid}: {e}")))?;
        }
        self.memory = self.most_memory();
        Ok(())
    }

    fn most_memory(&self) -> [f64; 2] {
        [self.scene.server(), self.servers[0].id()].map(most_memory_of)
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
            mount.start(self.scene.near(), &lab.interrupt)?.finish(TIMEOUT)?;
            write_files(Path::new(&at), files, bytes / files as u64)?;
        }
        let second = linkem::ADDRESS_A.to_string();
        self.vos(lab, &["addsite", &second, "a", "many"])?;
        self.vos(lab, &["release", "many"]).map(drop)
    }

    /// Runs vos beside the databases; says what it took.
    fn vos(&self, lab: &Lab, words: &[&str]) -> Result<Took, Error> {
        self.vos_at(lab, self.scene.near(), words)
    }

    fn vos_at(&self, lab: &Lab, place: Place<'_>, words: &[&str]) -> Result<Took, Error> {
        let vos = Invocation::new(lab.tools.afar()).and(["vos"]).and(words);
        let vos = vos.and(["-config", &self.keys, "-localauth"]);
        // Nobody pays for what was written before him.
        rustix::fs::sync();
        let began = Instant::now();
        let mut process = vos.start(place, &lab.interrupt)?;
        let mut memory = 0.0;
        while process.try_wait()?.is_none() && began.elapsed() < TIMEOUT {
            memory = most_memory_of(process.id()).max(memory);
            lab.interrupt.sleep(LOOK)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        process.finish(LOOK)?;
        Ok(Took { seconds, memory })
    }

    /// One verb on the large volume.
    fn measure(&self, lab: &Lab, verb: &str, size: Size) -> Result<Run, Error> {
        let [a, b] = [linkem::ADDRESS_A, linkem::ADDRESS_B].map(|address| address.to_string());
        let file = self.folder.path().join("dump").display().to_string();
        let took = match verb {
            "dump" => self.vos_at(lab, self.scene.far(), &["dump", "big", "-file", &file])?,
            "restore" => {
                self.vos(lab, &["dump", "big", "-file", &file])?;
                let took = self.vos(lab, &["restore", &a, "a", "back", "-file", &file])?;
                self.vos(lab, &["remove", "-id", "back"])?;
                took
            }
            "move" => {
                let there = self.vos(lab, &["move", "big", &b, "a", &a, "a"])?;
                let back = self.vos(lab, &["move", "big", &a, "a", &b, "a"])?;
                let seconds = (there.seconds + back.seconds) / 2.0;
                Took { seconds, memory: there.memory.max(back.memory) }
            }
            _ => {
                self.vos(lab, &["addsite", &a, "a", "big"])?;
                let took = self.vos(lab, &["release", "big"])?;
                self.vos(lab, &["remove", &a, "a", "big.readonly"])?;
                took
            }
        };
        let mut run = run_of(size.bytes, took.seconds);
        run.figures.insert(VOS_MEMORY.into(), took.memory / 1e6);
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
        let took = self.vos(lab, &["release", "many"])?;
        let mut run = Run { is_valid: true, ..Run::default() };
        run.figures.insert("s".into(), took.seconds);
        Ok(run)
    }

    fn release_changed_to_three(&self, lab: &Lab) -> Result<Run, Error> {
        let more = MORE_SERVERS.map(|address| address.to_string());
        for address in &more {
            self.vos(lab, &["addsite", address, "a", "many"])?;
        }
        self.vos(lab, &["release", "many"])?;
        let run = self.release_changed(lab)?;
        for address in &more {
            self.vos(lab, &["remove", address, "a", "many.readonly"])?;
        }
        Ok(run)
    }
}

/// The cost of a run of vos.
struct Took {
    seconds: f64,
    /// The most memory of vos itself, in bytes.
    memory: f64,
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

/// The same of OpenAFS's, over the same link.
fn stock(lab: &Lab, record: &mut Record, dump: &Path, size: Size) -> Result<(), Error> {
    let scene = CellScene::open(lab, Stack::OpenAfs, "", &LinkSpec::wan(RTT))?;
    let keys = scene.cell().folder("srv").join("etc/server").display().to_string();
    let copy = scene.cell().folder("srv").join("dump");
    fs::copy(dump, &copy).map_err(|e| Error::setup(format!("{}: {e}", copy.display())))?;
    let file = copy.display().to_string();
    let (scene, keys, file) = (&scene, &keys, &file);
    let vos = move |lab: &Lab, words: &[&str]| -> Result<f64, Error> {
        let vos = Invocation::new(Path::new("vos")).and(words).and(["-config", keys, "-localauth"]);
        let began = Instant::now();
        vos.start(scene.far(), &lab.interrupt)?.finish(TIMEOUT)?;
        Ok(began.elapsed().as_secs_f64())
    };
    let (address, far) = (ADDRESS.to_string(), scene.join_far()?.to_string());
    let (address, far) = (&address, &far);
    vos(lab, &["restore", address, "a", "part", "-file", file])?;
    let cells = VERBS.map(|verb| {
        Cell::new([("what", verb.to_string()), ("who", "OpenAFS".to_string())], move |lab| {
            let seconds = match verb {
                "dump" => vos(lab, &["dump", "part", "-file", file])?,
                "restore" => {
                    vos(lab, &["restore", address, "a", "part", "-file", file, "-overwrite", "full"])?
                }
                "move" => {
                    let there = vos(lab, &["move", "part", address, "a", far, "a"])?;
                    (there + vos(lab, &["move", "part", far, "a", address, "a"])?) / 2.0
                }
                _ => {
                    vos(lab, &["addsite", far, "a", "part"])?;
                    let seconds = vos(lab, &["release", "part"])?;
                    vos(lab, &["remove", far, "a", "part.readonly"])?;
                    seconds
                }
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
    let three = median(CHANGED_THREE, "s").zip(changed).map(|(three, one)| three / one);
    let vos = VERBS.iter().filter_map(|verb| median(verb, VOS_MEMORY)).max_by(f64::total_cmp);
    let memory = ["server in B, most memory more, MB", "server in A, most memory more, MB"].map(|figure| {
        let of = |verb: &&str| median(verb, figure);
        VERBS.iter().filter_map(of).max_by(f64::total_cmp)
    });
    for (claim, share, note) in shares {
        record.at_least(&claim, share, GOAL_SHARE, "times", &note);
    }
    record.at_most("Release of a volume with one changed file", changed, GOAL_RELEASE_S, "s", "");
    record.at_most("Release to three servers, by that to one", three, GOAL_THREE, "times", "");
    record.at_most("Memory of vos", vos, GOAL_MEMORY_MB, "MB", "");
    for (which, most) in ["sends", "receives"].into_iter().zip(memory) {
        let claim = format!("Memory of the server that {which}, more than before");
        record.at_most(&claim, most, GOAL_MEMORY_MB, "MB", "");
    }
}
