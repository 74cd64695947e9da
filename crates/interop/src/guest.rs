//! A machine with a stock kernel, in qemu: a client of a cell by that kernel's own kAFS. It runs one command after the other, and one that
//! hangs hangs nothing else. scripts/kernels.sh has made what it starts from.

use std::fs;
use std::io::{BufRead, BufReader, Write};
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
    _qemu: Process,
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
        let has_qemu = process::run(Command::new("qemu-system-x86_64").arg("--version"), BOOT).is_ok();
        let missing = [
            (!kernel.join("initrd").exists(), "scripts/kernels.sh has not made a machine with this kernel"),
            (!has_qemu, "there is no qemu-system-x86_64"),
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
        let kernel = folder(lab, version);
        let initrd = cell.folder("srv").join("guest-initrd");
        assemble(lab, &kernel.join("initrd"), &initrd)?;
        let console = cell.folder("srv").join("guest-console");
        let network = format!("{}-cli", cell.name());
        let tap = format!(
            "ip -n {network} tuntap add dev {TAP} mode tap && ip -n {network} link set {TAP} master cell0 up"
        );
        must(Command::new("sh").args(["-c", &tap]))?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network, "qemu-system-x86_64", "-accel", "tcg"]);
        command.args(["-cpu", "max,-erms,-fsrm", "-m", "256", "-nodefaults", "-no-user-config"]);
        command.args(["-display", "none", "-monitor", "none", "-no-reboot"]);
        command.arg("-kernel").arg(kernel.join("vmlinuz")).arg("-initrd").arg(&initrd);
        // Where the machine gets no time, the kernel would take its timer for a broken one.
        command
            .args(["-append", "console=ttyS0 panic=-1 quiet loglevel=5 no_timer_check random.trust_cpu=on"]);
        command.args(["-netdev", &format!("tap,id=net,ifname={TAP},script=no,downscript=no,vhost=off")]);
        command.args(["-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"]);
        command.arg("-serial").arg(format!("file:{}", console.display())).args(["-serial", "stdio"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut qemu = Process::spawn(&mut command)?;
        let (commands, output) = (qemu.child.stdin.take(), qemu.child.stdout.take());
        let (Some(commands), Some(output)) = (commands, output) else {
            return Err("qemu has no pipes".to_owned().into());
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
        let mut guest = Self { _qemu: qemu, commands, said };
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

/// Puts the first process behind what a kernel's machine has: the kernel reads several archives as one.
fn assemble(lab: &Lab, base: &Path, to: &Path) -> Result<(), Trouble> {
    let folder = to.with_extension("files");
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder.join("bin")).map_err(told)?;
    let init = lab.read("interop/kernels/init")?.replace("ADDRESS", ADDRESS);
    for (name, content) in [("init", init), ("bin/cell-servers", lab.read("interop/kernels/cell-servers")?)] {
        fs::write(folder.join(name), content).map_err(told)?;
    }
    let pack = format!(
        "cd {folder} && chmod 755 init bin/cell-servers && {{ cat {base}; find . | busybox cpio -o -H newc | gzip; }} > {to}",
        folder = folder.display(),
        base = base.display(),
        to = to.display()
    );
    must(Command::new("sh").args(["-c", &pack]))
}

fn must(command: &mut Command) -> Result<(), Trouble> {
    let finished = process::run(command, BOOT)?;
    match finished.status {
        Some(0) => Ok(()),
        _ => Err(format!("{command:?}: {}", finished.stderr).into()),
    }
}
