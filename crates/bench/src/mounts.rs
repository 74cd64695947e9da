//! Mounts under measurement, each a guard: what is mounted is unmounted and its process has ended when it is dropped. What is
//! measured in them is in the experiments.
//!
//! # How to use it
//!
//! ```text
//! let cell = OurCell::new()?;                                  // a state folder, made by the first start
//! let scene = Scene::open(lab, &cell, &LinkSpec::wan(RTT))?;   // afar up --no-mount in B of a fresh link
//! let near = Mount::afar(lab, scene.near(), &cell.client(), core)?;   // afar mount, beside the servers: to make files
//! let far = Mount::afar(lab, scene.far(), &cell.client(), core)?;     // over the link, with an empty cache
//! far.path()                                                   // where anyone may write: the volume `scratch`
//! let read = work(lab, core, ["read", &far.file("big"), "1048576", "0", "1"])?;   // a program of `workers/paths.rs`
//! ```
//!
//! Each [`Mount`] begins with an empty cache in a folder of its own: a second one of the same cell reads cold. `CellScene` is the
//! same with a cell of OpenAFS's, or of ours that was made by vos; [`Mount::afsd`] mounts one by Debian's afsd.fuse.
//! [`Mount::mirror`] is an empty FUSE mount, and [`work`] runs a program in any folder. What `core` says holds for all threads of a
//! process; none leaves it to the system. Trees and caches are in `trees.rs`.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use afar_interop::cell::{self, ADDRESS, Cell, Machine, Servers};
use linkem::{Link, Namespace};
use serde_json::Value;

use crate::cells::servers_of;
use crate::error::Error;
use crate::folder::folder;
use crate::lab::Lab;
use crate::network::{LinkSpec, ip};
use crate::process::Process;
use crate::record::Summary;
use crate::tools::{Invocation, Place, Stack};
use crate::workers::{files, mirror, paths};
use afs_lab::real::folder::Folder;

/// The time within which servers or a mount must be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// The time within which one must end: it stores what is not stored.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time of a program in a mount: the slowest moves some 40 MB at 2.8 MB/s, or makes 10,000 files.
const WORK_TIMEOUT: Duration = Duration::from_secs(600);
/// The size of a client's cache: more than all that is read here.
const CACHE_SIZE: &str = "20G";
/// The options of afsd.fuse, as `interop/cell/client-up.sh` gives them, and the number of files of its cache: more than the cache has
/// chunks. By itself it makes some 31,000 before its first answer, which on ext4 takes 10 to 20 s.
pub(crate) const AFSD_SIZES: [&str; 10] =
    ["-blocks", "1000000", "-chunksize", "20", "-daemons", "6", "-stat", "20000", "-files", "4000"];
/// The same for many small files: as many files in the cache as it makes by itself.
pub(crate) const AFSD_SIZES_MANY: [&str; 8] =
    ["-blocks", "1000000", "-chunksize", "20", "-daemons", "6", "-stat", "20000"];
/// The address of the machine that joins a stock cell's network to a link: no machine of a cell has it.
const UPLINK: &str = "10.88.0.20/24";

/// A cell of ours that can be served again and again, here or there: its state folder.
pub(crate) struct OurCell {
    folder: Folder,
}

impl OurCell {
    /// One that is made by the first start of its servers.
    pub(crate) fn new() -> Result<OurCell, Error> {
        Ok(OurCell { folder: folder("cell") })
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The same of a client that is the cell's administrator.
    pub(crate) fn administrator(&self) -> ClientOf {
        ClientOf { options: vec!["--localauth".to_owned()], ..self.client() }
    }

    /// The facts of it that a client needs.
    pub(crate) fn client(&self) -> ClientOf {
        ClientOf {
            config: self.state().join("etc"),
            options: Vec::new(),
            // The dynamic root has the cell, and the cell a volume that anyone may write.
            writable: PathBuf::from("afar.local/scratch"),
        }
    }
}

/// The facts of a cell that a client needs.
pub(crate) struct ClientOf {
    /// The folder with ThisCell and CellServDB.
    config: PathBuf,
    /// More options of `afar mount`.
    options: Vec<String>,
    /// The folder in the mount that anyone may write.
    writable: PathBuf,
}

impl ClientOf {
    /// The same with another folder of configuration.
    pub(crate) fn configured(self, config: PathBuf) -> Self {
        Self { config, ..self }
    }

    /// A mount with more options of `afar mount`.
    pub(crate) fn with<S: Into<String>>(mut self, options: impl IntoIterator<Item = S>) -> Self {
        self.options.extend(options.into_iter().map(Into::into));
        self
    }
}

/// Our servers at one end of a link, and room for clients at both.
pub(crate) struct Scene {
    /// The server. The fields are dropped in this order.
    server: Process,
    link: Link,
    command: String,
}

impl Scene {
    /// Makes the link and starts the servers in B. They are ready when this returns.
    pub(crate) fn open(lab: &Lab, cell: &OurCell, spec: &LinkSpec) -> Result<Scene, Error> {
        Self::open_on(lab, cell, spec, None)
    }

    /// The same with the servers on a core.
    pub(crate) fn open_on(
        lab: &Lab,
        cell: &OurCell,
        spec: &LinkSpec,
        core: Option<usize>,
    ) -> Result<Scene, Error> {
        Self::open_with(lab, cell, spec.start()?, core, &["--bind", &linkem::ADDRESS_B.to_string()])
    }

    /// The same over a link that is there, with these options of `afar up`, which say where the servers are, too.
    pub(crate) fn open_with(
        lab: &Lab,
        cell: &OurCell,
        link: Link,
        core: Option<usize>,
        options: &[&str],
    ) -> Result<Scene, Error> {
        lab.interrupt.check()?;
        let state = cell.state().display().to_string();
        let up = Invocation::new(lab.tools.afar()).on_core(core);
        let up = up.and(["up", "--no-mount", "--state", &state]).and(options);
        let mut server = up.start(Place::In(link.b()), &lab.interrupt)?;
        server.wait_for_line("ready ", READY_TIMEOUT)?;
        Ok(Scene { server, link, command: up.to_string() })
    }

    /// The place where clients have no delay: beside the servers.
    pub(crate) fn near(&self) -> Place<'_> {
        Place::In(self.link.b())
    }

    /// The place where clients have the link's delay.
    pub(crate) fn far(&self) -> Place<'_> {
        Place::In(self.link.a())
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// The servers' process.
    pub(crate) fn server(&self) -> u32 {
        self.server.id()
    }

    /// CPU seconds of the servers so far.
    pub(crate) fn server_cpu_s(&self) -> f64 {
        self.server.cpu_seconds().unwrap_or(f64::NAN)
    }

    /// The command that started the servers.
    pub(crate) fn command(&self) -> &str {
        &self.command
    }
}

/// A cell on a machine of its own, and a link whose B leads to it: a client in A has the link between.
pub(crate) struct CellScene {
    /// The cell. The fields are dropped in this order.
    cell: Cell,
    servers: Namespace,
    link: Link,
    volume: String,
    program: &'static str,
    _folder: Folder,
}

impl CellScene {
    /// Starts the cell with these flags of dafileserver or of afar server, and a volume root.afs that anyone may write.
    pub(crate) fn open(lab: &Lab, who: Stack, flags: &str, spec: &LinkSpec) -> Result<CellScene, Error> {
        cell::available().map_err(Error::Setup)?;
        cell::can_mount().map_err(Error::Setup)?;
        lab.interrupt.check()?;
        let folder = folder("vice");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let vice = folder.inner("a");
        let (servers, program) = servers_of(lab, who);
        let machine = Machine { servers, flags: flags.to_string(), partition: Some(vice) };
        let cell = Cell::up(&root, &machine).map_err(Error::Run)?;
        for line in
            ["pts createuser admin -id 1 -localauth", "pts adduser admin system:administrators -localauth"]
        {
            cell.expect(line).map_err(Error::Run)?;
        }
        let create = format!("vos create {ADDRESS} a root.afs -maxquota 0 -localauth");
        let said = cell.expect(&create).map_err(Error::Run)?;
        let volume = said.split_whitespace().nth(1).unwrap_or_default().to_string();
        let keys = cell.folder("srv").join("etc/server").display().to_string();
        let prepare = lab.tools.bench().and([files::NAME, "prepare", &ADDRESS.to_string(), &volume, &keys]);
        let servers = cell.servers().map_err(Error::Run)?;
        prepare.start(Place::In(&servers), &lab.interrupt)?.finish(READY_TIMEOUT)?;
        let link = spec.start()?;
        join(&cell, &link)?;
        Ok(CellScene { cell, servers, link, volume, program, _folder: folder })
    }

    /// The facts of it that our client needs: root.afs is at the root of the mount, as afsd.fuse has it.
    pub(crate) fn client(&self) -> ClientOf {
        ClientOf {
            config: self.cell.folder("srv").join("etc"),
            options: vec!["-nodynroot".to_owned()],
            writable: PathBuf::new(),
        }
    }

    /// The place where clients have no delay: beside the servers.
    pub(crate) fn near(&self) -> Place<'_> {
        Place::In(&self.servers)
    }

    /// Adds a second file server of OpenAFS's at the other end of the link, in A.
    pub(crate) fn join_far(&self) -> Result<Ipv4Addr, Error> {
        let address = self.cell.join(3, &Machine::new(Servers::Stock)).map_err(Error::Setup)?;
        let [cli, srv, fs3] = ["cli", "srv", "fs3"].map(|machine| format!("{}-{machine}", self.cell.name()));
        let (a, b, uplink) = (self.link.a(), self.link.b().name(), address_of(UPLINK));
        // Its network has been plugged into the cell's; now A has the other end of its wire.
        ip(&format!("-n {cli} link set fs3 nomaster netns {}", a.name()))?;
        for line in [
            format!("-n {} link set fs3 up", a.name()),
            format!("-n {} route add {address}/32 dev fs3", a.name()),
            format!("-n {b} route add {address}/32 via {}", linkem::ADDRESS_A),
            format!("-n {srv} route add {address}/32 via {uplink}"),
            format!("-n {fs3} route add {} via {uplink}", network_of_a()),
        ] {
            ip(&line)?;
        }
        // It looks for the others of its network on its wire, where A answers for them.
        let settings = ["ip_forward", "conf/fs3/proxy_arp"];
        let set = move || settings.map(|name| fs::write(format!("/proc/sys/net/ipv4/{name}"), "1"));
        for result in a.run_in(set)? {
            result.map_err(|e| Error::setup(format!("forwarding in {}: {e}", a.name())))?;
        }
        Ok(address)
    }

    /// The cell itself.
    pub(crate) fn cell(&self) -> &Cell {
        &self.cell
    }

    /// The place where clients have the link's delay.
    pub(crate) fn far(&self) -> Place<'_> {
        Place::In(self.link.a())
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// The number of the volume root.afs.
    pub(crate) fn volume(&self) -> &str {
        &self.volume
    }

    /// The name of the program that is the file server.
    pub(crate) fn program(&self) -> &str {
        self.program
    }

    /// Its process.
    pub(crate) fn file_server(&self) -> Result<u32, Error> {
        let found = self.cell.processes("srv", self.program).first().copied();
        found.ok_or_else(|| Error::run(format!("there is no process {} in the cell", self.program)))
    }
}

/// Makes a way from A of the link through B to the network of the cell, and back.
fn join(cell: &Cell, link: &Link) -> Result<(), Error> {
    let (b, cli, srv) = (link.b().name(), format!("{}-cli", cell.name()), format!("{}-srv", cell.name()));
    let (net_a, gateway) = (network_of_a(), address_of(UPLINK));
    let net_cell = UPLINK.replace(".20/", ".0/");
    let via_b = linkem::ADDRESS_B.to_string();
    let lines = [
        format!("-n {b} link add uplink type veth peer name uplink netns {cli}"),
        format!("-n {b} addr add {UPLINK} dev uplink"),
        format!("-n {b} link set uplink up"),
        format!("-n {cli} link set uplink master cell0 up"),
        format!("-n {srv} route add {net_a} via {gateway}"),
        format!("-n {} route add {net_cell} via {via_b}", link.a().name()),
    ];
    for line in lines {
        ip(&line)?;
    }
    let forward = || fs::write("/proc/sys/net/ipv4/ip_forward", "1");
    link.b().run_in(forward)?.map_err(|e| Error::setup(format!("forwarding in {b}: {e}")))
}

/// The network of the link.
fn network_of_a() -> String {
    let [a, b, c, _] = linkem::ADDRESS_A.octets();
    format!("{a}.{b}.{c}.0/24")
}

/// An address without the length of its network.
fn address_of(text: &str) -> &str {
    text.split('/').next().unwrap_or(text)
}

/// Something mounted. Its cache is empty at first, and goes with it.
pub(crate) struct Mount {
    /// None once it was stopped.
    process: Option<Process>,
    /// The mount point.
    at: PathBuf,
    /// The folder in which a program can work.
    path: PathBuf,
    command: String,
    /// True if it ends as it should. afsd.fuse does not always: told to end, it often runs into a segmentation fault (17 times
    /// in one run of the quick experiments).
    ends_well: bool,
    /// Has mount point and cache.
    _folder: Folder,
}

impl Mount {
    /// `afar mount`.
    pub(crate) fn afar(
        lab: &Lab,
        place: Place<'_>,
        of: &ClientOf,
        core: Option<usize>,
    ) -> Result<Mount, Error> {
        let folder = folder("client");
        let (at, cache) = (folder.inner("mnt"), folder.inner("cache"));
        let words = [
            "mount".to_owned(),
            at.display().to_string(),
            "--config".to_owned(),
            of.config.display().to_string(),
            "--cache".to_owned(),
            cache.display().to_string(),
            "--cache-size".to_owned(),
            CACHE_SIZE.to_owned(),
        ];
        let mount = Invocation::new(lab.tools.afar()).on_core(core).and(words).and(&of.options);
        let process = mount.start(place, &lab.interrupt)?;
        let path = at.join(&of.writable);
        let mut mount = Mount {
            process: Some(process),
            at,
            path,
            command: mount.to_string(),
            ends_well: true,
            _folder: folder,
        };
        mount.wait_until_ready("ready ")?;
        Ok(mount)
    }

    /// Debian's afsd.fuse, with [`AFSD_SIZES`]. It mounts root.afs, so `of` is to be a cell that has one: OpenAFS's, or ours.
    pub(crate) fn afsd(
        lab: &Lab,
        place: Place<'_>,
        of: &ClientOf,
        core: Option<usize>,
    ) -> Result<Mount, Error> {
        Self::afsd_with(lab, place, of, core, &AFSD_SIZES)
    }

    /// The same with other sizes.
    pub(crate) fn afsd_with(
        lab: &Lab,
        place: Place<'_>,
        of: &ClientOf,
        core: Option<usize>,
        sizes: &[&str],
    ) -> Result<Mount, Error> {
        let folder = folder("afsd");
        let (at, cache, config) = (folder.inner("mnt"), folder.inner("cache"), folder.inner("conf"));
        let failed = |e| Error::setup(format!("the configuration of afsd.fuse: {e}"));
        for name in ["ThisCell", "CellServDB"] {
            fs::copy(of.config.join(name), config.join(name)).map_err(failed)?;
        }
        let info = format!("{}:{}:1000000\n", at.display(), cache.display());
        fs::write(config.join("cacheinfo"), info).map_err(failed)?;
        let [mnt, cache, config] = [&at, &cache, &config].map(|path| path.display().to_string());
        let words = ["-f", "-confdir", &config, "-cachedir", &cache, "-mountdir", &mnt];
        let mount = Invocation::new(Path::new("afsd.fuse")).on_core(core).and(words).and(sizes);
        let process = mount.start(place, &lab.interrupt)?;
        let mut mount = Mount {
            process: Some(process),
            path: at.join(&of.writable),
            at,
            command: mount.to_string(),
            ends_well: false,
            _folder: folder,
        };
        mount.wait_until_mounted(lab)?;
        Ok(mount)
    }

    /// An empty FUSE mount of a local folder (`workers/mirror.rs`).
    pub(crate) fn mirror(lab: &Lab, of: &Path, core: Option<usize>) -> Result<Mount, Error> {
        let folder = folder("mirror");
        let at = folder.inner("mnt");
        let words = [mirror::NAME.to_owned(), of.display().to_string(), at.display().to_string()];
        let mount = lab.tools.bench().on_core(core).and(words);
        let process = mount.start(Place::Here, &lab.interrupt)?;
        let mut mount = Mount {
            process: Some(process),
            path: at.clone(),
            at,
            command: mount.to_string(),
            ends_well: true,
            _folder: folder,
        };
        mount.wait_until_ready("ready")?;
        Ok(mount)
    }

    /// Runs a command of the shell in a new PAG of this mount's.
    fn in_pag(&self, lab: &Lab, command: &str) -> Invocation {
        const SCRIPT: &str = "cd \"$1\" && exec \"$2\" pagsh -c \"exec $3\"";
        let (at, afar) = (self.at.display().to_string(), lab.tools.afar().display().to_string());
        Invocation::new(Path::new("sh")).and(["-c", SCRIPT, "sh", &at, &afar, command])
    }

    /// A session with a PAG of its own, for as long as it is not dropped.
    pub(crate) fn session(&self, lab: &Lab) -> Result<Process, Error> {
        let mut session =
            self.in_pag(lab, "sh -c 'echo ready; exec sleep 1000000'").start(Place::Here, &lab.interrupt)?;
        session.wait_for_line("ready", READY_TIMEOUT)?;
        Ok(session)
    }

    fn wait_until_ready(&mut self, line: &str) -> Result<(), Error> {
        let process = self.process.as_mut().expect("it has just been started");
        process.wait_for_line(line, READY_TIMEOUT).map(drop)
    }

    /// afsd.fuse says nothing when it is ready.
    fn wait_until_mounted(&mut self, lab: &Lab) -> Result<(), Error> {
        let deadline = std::time::Instant::now() + READY_TIMEOUT;
        while !is_mounted(&self.at) {
            if std::time::Instant::now() > deadline {
                return Err(Error::run(format!("{} does not mount", self.command)));
            }
            lab.interrupt.sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// The path at which a program can work in it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A name in it.
    pub(crate) fn file(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// The command that mounted it.
    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    /// CPU seconds of its process so far.
    pub(crate) fn cpu_s(&self) -> f64 {
        self.process.as_ref().and_then(Process::cpu_seconds).unwrap_or(f64::NAN)
    }

    /// Unmounts it and waits for its end, by which all that was written is stored.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(process) if self.ends_well => process.stop(END_TIMEOUT),
            Some(process) => process.stop_however(END_TIMEOUT),
            None => Ok(()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // It unmounts when it is asked to end; what was killed does not.
        drop(self.process.take());
        if is_mounted(&self.at) {
            let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        }
    }
}

/// True if something is mounted there, by the kernel's table.
fn is_mounted(at: &Path) -> bool {
    let at = at.display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(at.as_str()))
}

/// The findings of a program of `workers/paths.rs`.
#[derive(Clone, Debug)]
pub(crate) struct Worked {
    /// The seconds of each pass.
    pub(crate) seconds: Vec<f64>,
    /// Bytes of a pass, if it moves some.
    pub(crate) bytes: f64,
    /// Files of a pass, if it is about files.
    pub(crate) files: f64,
    /// The command that started it.
    pub(crate) command: String,
}

impl Worked {
    /// The median pass, in seconds.
    pub(crate) fn median_s(&self) -> f64 {
        Summary::of(self.seconds.clone()).map_or(f64::NAN, |summary| summary.median)
    }

    /// MB (10^6 bytes) a second of the median pass.
    pub(crate) fn mb_per_s(&self) -> f64 {
        self.bytes / 1e6 / self.median_s()
    }

    /// Microseconds a file of the median pass.
    pub(crate) fn us_per_file(&self) -> f64 {
        self.median_s() * 1e6 / self.files
    }
}

/// Runs a program of `workers/paths.rs`, on a core, to its end.
pub(crate) fn work<S: AsRef<str>>(
    lab: &Lab,
    core: Option<usize>,
    words: impl IntoIterator<Item = S>,
) -> Result<Worked, Error> {
    measure(lab, &lab.tools.bench().on_core(core).and([paths::NAME]).and(words))
}

/// The same in a new PAG of a mount's.
pub(crate) fn work_in_pag<S: AsRef<str>>(
    lab: &Lab,
    core: Option<usize>,
    mount: &Mount,
    words: impl IntoIterator<Item = S>,
) -> Result<Worked, Error> {
    let program = lab.tools.bench().and([paths::NAME]).and(words);
    measure(lab, &mount.in_pag(lab, &program.words().join(" ")).on_core(core))
}

fn measure(lab: &Lab, program: &Invocation) -> Result<Worked, Error> {
    let mut process = program.start(Place::Here, &lab.interrupt)?;
    let said = process.wait_for_line("end ", WORK_TIMEOUT)?;
    process.finish(END_TIMEOUT)?;
    let report: Value =
        serde_json::from_str(&said).map_err(|e| Error::run(format!("{program} said {said}: {e}")))?;
    let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
    let seconds = report["seconds"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    let (bytes, files) = (number("bytes"), number("files"));
    Ok(Worked { seconds, bytes, files, command: program.to_string() })
}
