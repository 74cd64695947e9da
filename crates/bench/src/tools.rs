//! The programs under test and beside it: where they are, how they are built, and command lines as values, to be run
//! and to be recorded.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use linkem::Namespace;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::Process;

/// A build from nothing on two cores takes a few minutes.
const BUILD_TIMEOUT: Duration = Duration::from_secs(1800);

/// The places of the programs.
pub(crate) struct Tools {
    afar: PathBuf,
    oafs_peer: PathBuf,
    bench: PathBuf,
}

/// The maker of a process's Rx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// Ours.
    Afar,
    /// OpenAFS's, in `oafs-peer`.
    OpenAfs,
}

impl Stack {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stack::Afar => "afar",
            Stack::OpenAfs => "OpenAFS",
        }
    }
}

/// A command line.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    program: PathBuf,
    arguments: Vec<String>,
    niceness: i32,
    core: Option<usize>,
}

/// The place where a process runs.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// The place where the bench runs.
    Here,
    /// In a namespace.
    In(&'a Namespace),
}

impl Tools {
    /// Builds what is under test, if wanted, and looks for the rest.
    pub(crate) fn find(root: &Path, builds: bool, interrupt: &Interrupt) -> Result<Tools, Error> {
        let bench = env::current_exe().map_err(|e| Error::setup(format!("finding this program: {e}")))?;
        let folder = bench.parent().unwrap_or(Path::new("."));
        let interop = folder.parent().unwrap_or(folder).join("interop");
        let tools = Tools { afar: folder.join("afar"), oafs_peer: interop.join("oafs-peer"), bench };
        if builds {
            let mut cargo = Command::new(root.join("scripts/rust.sh"));
            cargo.current_dir(root).args(["cargo", "build", "--release", "--package", "afar", "--bins"]);
            let mut make = Command::new("make");
            make.arg("-C").arg(root.join("interop/oafs-peer")).arg(format!("OUT={}", interop.display()));
            for (name, command) in [("cargo build", cargo), ("make oafs-peer", make)] {
                eprintln!("== {name}");
                Process::start(command, name, interrupt)?.finish(BUILD_TIMEOUT).map_err(fatal)?;
            }
        }
        for (program, remedy) in
            [(&tools.afar, "cargo build --release -p afar"), (&tools.oafs_peer, "make -C interop/oafs-peer")]
        {
            if !program.exists() {
                return Err(Error::setup(format!("{} is missing; {remedy} makes it", program.display())));
            }
        }
        let mut iperf3 = Command::new("iperf3");
        iperf3.arg("--version");
        Process::start(iperf3, "iperf3", interrupt)?.finish(Duration::from_secs(5)).map_err(fatal)?;
        Ok(tools)
    }

    /// An rxperf server of this kind; port 0: any.
    pub(crate) fn rxperf_server(&self, who: Stack, port: u16) -> Invocation {
        let invocation = match who {
            Stack::Afar => Invocation::new(&self.afar).and(["rxperf", "server"]),
            Stack::OpenAfs => Invocation::new(&self.oafs_peer).and(["rxperf-server"]),
        };
        invocation.and(["-p", &port.to_string()])
    }

    /// An rxperf client of this kind that prints JSON.
    pub(crate) fn rxperf_client(&self, who: Stack) -> Invocation {
        let invocation = match who {
            Stack::Afar => Invocation::new(&self.afar).and(["rxperf", "client"]),
            Stack::OpenAfs => Invocation::new(&self.oafs_peer).and(["rxperf-client"]),
        };
        invocation.and(["--json"])
    }

    /// TCP.
    pub(crate) fn iperf3(&self) -> Invocation {
        Invocation::new(Path::new("iperf3"))
    }

    /// The round trip of an empty link or of one under load.
    pub(crate) fn ping(&self) -> Invocation {
        Invocation::new(Path::new("ping"))
    }

    /// The program whose servers are measured.
    pub(crate) fn afar(&self) -> &Path {
        &self.afar
    }

    /// This program itself.
    pub(crate) fn bench(&self) -> Invocation {
        Invocation::new(&self.bench)
    }
}

/// Marks an error from before anything was measured: it would come again.
fn fatal(error: Error) -> Error {
    match error {
        Error::Run(message) => Error::Setup(message),
        other => other,
    }
}

impl Invocation {
    /// This program, without arguments.
    pub(crate) fn new(program: &Path) -> Invocation {
        Invocation { program: program.to_path_buf(), arguments: Vec::new(), niceness: 0, core: None }
    }

    /// Has it run on this core alone, with all its threads; none is wherever the system likes.
    pub(crate) fn on_core(mut self, core: Option<usize>) -> Invocation {
        self.core = core;
        self
    }

    /// Runs it at this niceness, -20 to 19; 0 is that of the bench.
    pub(crate) fn nice(mut self, niceness: i32) -> Invocation {
        self.niceness = niceness;
        self
    }

    /// Adds these arguments behind the others.
    pub(crate) fn and<S: AsRef<str>>(mut self, arguments: impl IntoIterator<Item = S>) -> Invocation {
        self.arguments.extend(arguments.into_iter().map(|a| a.as_ref().to_string()));
        self
    }

    /// The program and its arguments, for another program to run.
    pub(crate) fn words(&self) -> Vec<String> {
        [vec![self.program.display().to_string()], self.arguments.clone()].concat()
    }

    /// Starts it.
    pub(crate) fn start(&self, place: Place<'_>, interrupt: &Interrupt) -> Result<Process, Error> {
        // `nice` and `taskset` become the program, so that the process's number is the program's.
        let before = self.before();
        let program = before.first().map_or(self.program.as_path(), |first| Path::new(first));
        let mut command = match place {
            Place::Here => Command::new(program),
            Place::In(namespace) => namespace.command(program),
        };
        if !before.is_empty() {
            command.args(&before[1..]).arg(&self.program);
        }
        command.args(&self.arguments);
        Process::start(command, &self.to_string(), interrupt)
    }

    /// The words in front of a command that set niceness and core.
    fn before(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        if self.niceness != 0 {
            words.extend(["nice".to_string(), "-n".to_string(), self.niceness.to_string()]);
        }
        if let Some(core) = self.core {
            words.extend(["taskset".to_string(), "-c".to_string(), core.to_string()]);
        }
        words
    }
}

/// As it is recorded: without the folders of this machine.
impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.program.file_name().unwrap_or(self.program.as_os_str());
        for word in self.before() {
            write!(f, "{word} ")?;
        }
        write!(f, "{}", name.display())?;
        for argument in &self.arguments {
            write!(f, " {argument}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_recorded_without_folders_and_with_its_niceness() {
        let command = Invocation::new(Path::new("/some/where/afar")).and(["rxperf", "server"]);
        assert_eq!(command.to_string(), "afar rxperf server");
        let command = command.nice(-10);
        assert_eq!(command.to_string(), "nice -n -10 afar rxperf server");
        assert_eq!(command.on_core(Some(1)).to_string(), "nice -n -10 taskset -c 1 afar rxperf server");
    }
}
