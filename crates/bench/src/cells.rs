//! Servers of files under measurement: a cell of ours and one of OpenAFS's, with partitions on the same disk, and the same
//! client program (`workers/files.rs`) for both. What is measured is in the experiments.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use afar_interop::cell::{self, ADDRESS, Cell, Machine, Servers};
use linkem::Namespace;
use serde_json::Value;

use crate::error::Error;
use crate::folder::folder;
use crate::lab::Lab;
use crate::process::{Process, cpu_seconds_of, memory_bytes_of};
use crate::record::Run;
use crate::tools::{Invocation, Place, Stack};
use crate::workers::files;
use afs_lab::real::folder::Folder;

/// dafileserver's flags, for many calls at once: its largest set of defaults, as many threads as it can have, large buffers, and
/// caches as large sites have them, which hold all that is asked for here. By default it has 9 threads and 400 vnodes.
pub(crate) const STOCK_FLAGS: &str =
    "-L -p 128 -s 2400 -l 2400 -vc 1200 -b 240 -cb 65535 -sendsize 4000000 -udpsize 4000000";

/// The text of the records about both.
pub(crate) const CELLS_TEXT: &str = "Servers: 'OpenAFS' is Debian's dafileserver with -L -p 128 -s 2400 -l 2400 -vc 1200 -b 240 -cb 65535 \
    -sendsize 4000000 -udpsize 4000000, \
    'afar' is `afar server` with its defaults, each in a cell of its own, with all servers of the cell on one machine (a network \
    namespace) and a folder of the same disk as partition. The client is the same program for both, afar-bench's file-worker, on our \
    Rx, anonymous (rxnull). CPU time is that of the process dafileserver or afar, user and kernel; the kernel does the receiver's \
    part of a loopback packet's way in the sender's time.";

/// The place where processes run.
pub(crate) const PLACEMENT_CELL: &str = "Client and servers are processes in one network namespace and talk over its loopback \
    interface, not pinned, niceness 0, on the cores of this machine.";

/// The servers that are compared; OpenAFS's twice for the noise.
pub(crate) const KINDS: [(&str, Stack); 3] =
    [("afar", Stack::Afar), ("OpenAFS", Stack::OpenAfs), ("OpenAFS again", Stack::OpenAfs)];

/// The longest time of preparations: volumes, access lists.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Both cells, up for a whole experiment. One that does not start is an error of its runs only.
pub(crate) struct Cells {
    ours: Result<Served, String>,
    stock: Result<Served, String>,
}

/// A cell whose file server is measured.
pub(crate) struct Served {
    cell: Cell,
    place: Namespace,
    program: &'static str,
    /// Its partition. Dropped after the cell.
    folder: Folder,
}

/// The work of a client between its "begin" and "end".
pub(crate) struct Measured {
    /// Its report.
    pub(crate) report: Value,
    /// The CPU time of the file server's process.
    pub(crate) server_cpu_s: f64,
    /// The CPU time of the client's process.
    pub(crate) client_cpu_s: f64,
}

/// The servers, as cells are told, and the name of the process that is the file server.
pub(crate) fn servers_of(lab: &Lab, who: Stack) -> (Servers, &'static str) {
    match who {
        Stack::Afar => (Servers::Afar(lab.tools.afar().to_path_buf()), "afar"),
        Stack::OpenAfs => (Servers::Stock, "dafileserver"),
    }
}

impl Cells {
    /// Starts both.
    ///
    /// Errors: cells cannot be had on this machine.
    pub(crate) fn start(lab: &Lab) -> Result<Cells, Error> {
        cell::available().map_err(Error::Setup)?;
        lab.interrupt.check()?;
        Ok(Cells { ours: Served::start(lab, Stack::Afar), stock: Served::start(lab, Stack::OpenAfs) })
    }

    pub(crate) fn of(&self, who: Stack) -> Result<&Served, Error> {
        let served = match who {
            Stack::Afar => &self.ours,
            Stack::OpenAfs => &self.stock,
        };
        served.as_ref().map_err(|why| Error::run(why.clone()))
    }
}

impl Served {
    fn start(lab: &Lab, who: Stack) -> Result<Served, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = folder(who.name());
        let (servers, program) = servers_of(lab, who);
        let flags = match who {
            Stack::Afar => "",
            Stack::OpenAfs => STOCK_FLAGS,
        };
        let machine =
            Machine { servers, flags: flags.to_string(), partition: Some(folder.path().to_path_buf()) };
        let cell = Cell::up(&root, &machine)?;
        cell.expect("pts createuser admin -id 1 -localauth")?;
        cell.expect("pts adduser admin system:administrators -localauth")?;
        let place = cell.servers()?;
        Ok(Served { cell, place, program, folder })
    }

    /// The cell itself.
    pub(crate) fn cell(&self) -> &Cell {
        &self.cell
    }

    /// The place of its servers.
    pub(crate) fn place(&self) -> Place<'_> {
        Place::In(&self.place)
    }

    /// The client program, to be started where the servers are: what to do, then the server's address, then the rest.
    pub(crate) fn client<S: AsRef<str>>(
        &self,
        lab: &Lab,
        what: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Invocation {
        lab.tools.bench().and([files::NAME, what, &ADDRESS.to_string()]).and(arguments)
    }

    /// The folder with the cell's key.
    pub(crate) fn keys(&self) -> String {
        self.cell.folder("srv").join("etc/server").display().to_string()
    }

    /// A new volume that anyone may write, without a quota; its number.
    pub(crate) fn volume(&self, lab: &Lab, name: &str) -> Result<String, Error> {
        let said = self
            .cell
            .expect(&format!("vos create {ADDRESS} a {name} -maxquota 0 -localauth"))
            .map_err(Error::Run)?;
        let number = said.split_whitespace().nth(1).unwrap_or_default().to_string();
        let prepare = self.client(lab, "prepare", [&number, &self.keys()]);
        prepare.start(self.place(), &lab.interrupt)?.finish(TIMEOUT)?;
        Ok(number)
    }

    /// Removes it again.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Error> {
        self.cell.expect(&format!("vos remove {ADDRESS} a {name} -localauth")).map(drop).map_err(Error::Run)
    }

    /// CPU seconds of the file server so far.
    pub(crate) fn cpu_s(&self) -> Result<f64, Error> {
        let pids = self.cell.processes("srv", self.program);
        if pids.is_empty() {
            return Err(Error::run(format!("there is no process {} in the cell", self.program)));
        }
        Ok(pids.into_iter().filter_map(cpu_seconds_of).sum())
    }

    /// The folder of its partition.
    pub(crate) fn partition(&self) -> &Path {
        self.folder.path()
    }

    /// Bytes of memory that are the file server's own now.
    pub(crate) fn memory_bytes(&self) -> Result<f64, Error> {
        let pids = self.cell.processes("srv", self.program);
        let bytes: u64 = pids.into_iter().filter_map(memory_bytes_of).sum();
        if bytes == 0 { Err(Error::run("the file server has no memory")) } else { Ok(bytes as f64) }
    }

    /// Runs a client that says "begin" and "end".
    pub(crate) fn measure(
        &self,
        lab: &Lab,
        client: &Invocation,
        patience: Duration,
    ) -> Result<Measured, Error> {
        let mut client = client.start(self.place(), &lab.interrupt)?;
        client.wait_for_line("begin", patience)?;
        let cpu_s = |client: &Process| client.cpu_seconds().ok_or_else(|| Error::run("the client has ended"));
        let before = (self.cpu_s()?, cpu_s(&client)?);
        let report = client.wait_for_line("end ", patience)?;
        let after = (self.cpu_s()?, cpu_s(&client)?);
        let report = serde_json::from_str(&report)
            .map_err(|e| Error::run(format!("the client said {report}: {e}")))?;
        client.say("done")?;
        client.finish(TIMEOUT)?;
        Ok(Measured { report, server_cpu_s: after.0 - before.0, client_cpu_s: after.1 - before.1 })
    }
}

impl Measured {
    /// A number of the client's report.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.report.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN)
    }

    /// A valid run of these figures.
    pub(crate) fn into_run(
        self,
        client: &Invocation,
        figures: impl IntoIterator<Item = (&'static str, f64)>,
    ) -> Run {
        let figures: BTreeMap<String, f64> =
            figures.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        let odd: Vec<String> = figures
            .iter()
            .filter(|(_, value)| !value.is_finite())
            .map(|(name, _)| format!("{name} was not measured"))
            .collect();
        Run {
            is_valid: odd.is_empty(),
            problems: odd,
            figures,
            commands: vec![client.to_string()],
            report: self.report,
            ..Run::default()
        }
    }
}
