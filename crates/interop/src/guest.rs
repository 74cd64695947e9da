//! A machine with a stock kernel, in qemu or as user-mode Linux: a client of a cell by that kernel's own kAFS. It runs one command after the
//! other, and one that hangs hangs nothing else. scripts/kernels.sh has made what it starts from.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cell::Cell;
use crate::lab::Lab;
use crate::process;
use crate::suite::Trouble;
use afs_lab::real::process::Process;

/// The longest time until it takes commands: three seconds on a machine that does nothing else.
const BOOT: Duration = Duration::from_secs(300);

/// The time beyond its limit in which the answer to a command must come.
const GRACE: Duration = Duration::from_secs(120);

/// The name of its device in the clients' network.
const TAP: &str = "guest0";

/// The kernel's file, if it is a program: a user-mode Linux.
const USER_MODE: &str = "linux";

/// The address that the first process is to take, in place of this word.
const ADDRESS: &str = "10.88.0.50";

/// The end of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has ended, with this status and output.
    With(i32, String),
    /// It did not end in time. What it has printed, and the states of its processes.
    Hangs(String),
}

/// A machine; dropped, it is switched off.
#[derive(Debug)]
pub struct Guest {
    _machine: Process,
    commands: ChildStdin,
    said: Receiver<String>,
}

impl Guest {
    /// Tells why there cannot be a machine with this kernel, as "6.12", if so.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn available(lab: &Lab, version: &str) -> Result<(), Trouble> {
        let kernel = folder(lab, version);
        let is_startable = kernel.join(USER_MODE).exists()
            || process::run(Command::new("qemu-system-x86_64").arg("--version"), BOOT).is_ok();
        let missing = [
            (!kernel.join("initrd").exists(), "scripts/kernels.sh has not made a machine with this kernel"),
            (!is_startable, "there is no qemu-system-x86_64"),
            (!Path::new("/dev/net/tun").exists(), "there is no /dev/net/tun"),
        ];
        match missing.iter().find(|(is_missing, _)| *is_missing) {
            Some((_, reason)) => Err(Trouble::Skipped((*reason).to_owned())),
            None => Ok(()),
        }
    }

    /// Boots a machine in the network of a cell's clients.
    ///
    /// # Errors
    ///
    /// What the machine said last.
    pub fn boot(lab: &Lab, cell: &Cell, version: &str) -> Result<Self, Trouble> {
        let network = format!("{}-cli", cell.name());
        let tap = format!(
            "ip -n {network} tuntap add dev {TAP} mode tap && ip -n {network} link set {TAP} master cell0 up"
        );
        must(Command::new("sh").args(["-c", &tap]))?;
        let (kernel, at) = (folder(lab, version), cell.folder("srv"));
        let console = at.join("guest-console");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network]);
        let program = if kernel.join(USER_MODE).exists() { user_mode } else { emulated };
        program(lab, &kernel, &at, &console, &mut command)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut machine = Process::spawn(&mut command)?;
        let (commands, output) = (machine.child.stdin.take(), machine.child.stdout.take());
        let (Some(commands), Some(output)) = (commands, output) else {
            return Err("the machine has no pipes".to_owned().into());
        };
        let (sender, said) = mpsc::channel();
        thread::spawn(move || {
            // Bytes, as a command may print any.
            let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
            for line in lines {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    break;
                }
            }
        });
        let mut guest = Self { _machine: machine, commands, said };
        guest.answer(BOOT, "=ready ").map_err(|problem| {
            let console = fs::read(&console).unwrap_or_default();
            format!(
                "the machine with {version} does not start: {problem}\n{}",
                String::from_utf8_lossy(&console)
            )
        })?;
        Ok(guest)
    }

    /// Runs a command of the shell, in one line.
    ///
    /// # Errors
    ///
    /// When the machine itself does not answer.
    pub fn run(&mut self, limit: Duration, command: &str) -> Result<Ended, Trouble> {
        self.commands
            .write_all(format!("{} {command}\n", limit.as_secs()).as_bytes())
            .map_err(|error| format!("{command}: the machine has ended: {error}"))?;
        let (last, said) = self
            .answer(limit + GRACE, "=")
            .map_err(|problem| format!("{command}: the machine: {problem}"))?;
        Ok(match last.strip_prefix("=exit ").and_then(|status| status.parse().ok()) {
            Some(status) => Ended::With(status, said),
            None => Ended::Hangs(said),
        })
    }

    /// Runs a command that has to succeed, and gives what it printed.
    ///
    /// # Errors
    ///
    /// When it fails or hangs.
    pub fn expect(&mut self, limit: Duration, command: &str) -> Result<String, Trouble> {
        match self.run(limit, command)? {
            Ended::With(0, said) => Ok(said),
            Ended::With(status, said) => Err(format!("{command}: status {status}: {said}").into()),
            Ended::Hangs(said) => {
                Err(format!("{command}: hangs for more than {limit:?} in the kernel: {said}").into())
            }
        }
    }

    /// Waits for a line that begins so. Returns it, and what came before.
    fn answer(&mut self, patience: Duration, begin: &str) -> Result<(String, String), String> {
        let until = Instant::now() + patience;
        let mut before = String::new();
        loop {
            match self.said.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with(begin) => return Ok((line, before.trim().to_owned())),
                Ok(line) => before = before + &line + "\n",
                Err(RecvTimeoutError::Timeout) => return Err(format!("no answer in {patience:?}: {before}")),
                Err(RecvTimeoutError::Disconnected) => return Err(format!("it has ended: {before}")),
            }
        }
    }
}

/// What scripts/kernels.sh has made.
fn folder(lab: &Lab, version: &str) -> PathBuf {
    lab.root().join("target/tools/kernels").join(version)
}

/// qemu, which starts a kernel of Debian's. Its second serial line is what the test talks to.
fn emulated(
    lab: &Lab,
    kernel: &Path,
    at: &Path,
    console: &Path,
    command: &mut Command,
) -> Result<(), Trouble> {
    // The kernel reads several archives as one.
    let (root, initrd) = (first_process(lab, at)?, at.join("guest-initrd"));
    let pack = format!(
        "cd {root} && {{ cat {base}; find . | busybox cpio -o -H newc | gzip; }} > {initrd}",
        root = root.display(),
        base = kernel.join("initrd").display(),
        initrd = initrd.display()
    );
    must(Command::new("sh").args(["-c", &pack]))?;
    command.args(["qemu-system-x86_64", "-accel", "tcg"]);
    command.args(["-cpu", "max,-erms,-fsrm", "-m", "256", "-nodefaults", "-no-user-config"]);
    command.args(["-display", "none", "-monitor", "none", "-no-reboot"]);
    command.arg("-kernel").arg(kernel.join("vmlinuz")).arg("-initrd").arg(&initrd);
    // Where the machine gets no time, the kernel would take its timer for a broken one.
    command.args(["-append", "console=ttyS0 panic=-1 quiet loglevel=5 no_timer_check random.trust_cpu=on"]);
    command.args(["-netdev", &format!("tap,id=net,ifname={TAP},script=no,downscript=no,vhost=off")]);
    command.args(["-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"]);
    command.arg("-serial").arg(format!("file:{}", console.display())).args(["-serial", "stdio"]);
    command.stderr(Stdio::null());
    Ok(())
}

/// A user-mode Linux: the kernel is the program, and its root is a folder of this machine.
fn user_mode(
    lab: &Lab,
    kernel: &Path,
    at: &Path,
    console: &Path,
    command: &mut Command,
) -> Result<(), Trouble> {
    let root = first_process(lab, at)?;
    let unpack =
        format!("cd {} && gzip -dc {} | busybox cpio -i", root.display(), kernel.join("initrd").display());
    must(Command::new("sh").args(["-c", &unpack]))?;
    // Its processes end with it.
    command.args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]).arg(kernel.join(USER_MODE));
    command.args(["mem=256M", "quiet", "loglevel=5", "panic=-1", "rw", "init=/init"]);
    command.args(["rootfstype=hostfs", &format!("rootflags={}", root.display())]);
    command.arg(format!("uml_dir={}/", at.display()));
    command.arg(format!("vec0:transport=tap,ifname={TAP},depth=128"));
    command.args(["con=null", "con0=null,fd:2", "ssl=null", "ssl1=fd:0,fd:1"]);
    let console = fs::File::create(console).map_err(|error| format!("{}: {error}", console.display()))?;
    command.stderr(console);
    Ok(())
}

/// Makes a folder with the first process and what it needs beside the programs.
fn first_process(lab: &Lab, at: &Path) -> Result<PathBuf, Trouble> {
    let folder = at.join("guest-root");
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder.join("bin")).map_err(told)?;
    let init = lab.read("interop/kernels/init")?.replace("ADDRESS", ADDRESS);
    for (name, content) in [("init", init), ("bin/cell-servers", lab.read("interop/kernels/cell-servers")?)] {
        let path = folder.join(name);
        fs::write(&path, content).map_err(told)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(told)?;
    }
    Ok(folder)
}

fn must(command: &mut Command) -> Result<(), Trouble> {
    let finished = process::run(command, BOOT)?;
    match finished.status {
        Some(0) => Ok(()),
        _ => Err(format!("{command:?}: {}", finished.stderr).into()),
    }
}
