//! A machine that runs systemd as PID 1, for tests of units, logins and timers: namespaces on this machine, whose root is a layer over this
//! machine's own. What is written there goes with it. Nothing is enabled; a test starts what it needs with `systemctl`. Its network is its
//! own `lo`. A process of [`Machine::command`] is in no unit: `systemd-run` starts one that is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::real::process;
use crate::skipped::skip_this;

/// How long something may take that takes a moment, on slow machines.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What makes the namespaces and becomes systemd in them.
const BOOT: &str = include_str!("systemd/boot.sh");

/// The status of [`BOOT`] when this machine cannot run it.
const CANNOT: i32 = 77;

/// Removes an empty cgroup with those below it: `GROUP PLACE`.
const REMOVE_GROUP: &str = "mount -t cgroup2 cgroup \"$2\" && find \"$2/$1\" -depth -type d -exec rmdir {} +";

/// What it takes.
const PROGRAMS: [&str; 9] = [
    "/lib/systemd/systemd",
    "/usr/bin/bash",
    "/usr/bin/env",
    "/usr/bin/mount",
    "/usr/bin/nsenter",
    "/usr/bin/setpriv",
    "/usr/bin/systemctl",
    "/usr/bin/unshare",
    "/usr/sbin/pivot_root",
];

/// A machine. It is switched off when it is dropped.
#[derive(Debug)]
pub struct Machine {
    place: PathBuf,
    group: String,
    /// Ends with the machine, and the machine with it.
    holder: Child,
    /// The number of its PID 1 here.
    init: u32,
}

impl Machine {
    /// Starts a machine, in which each of these files of this one is to be at another path too. `None`, told as skipped, where there can be
    /// none: that takes root and Debian's package systemd.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn boot(files: &[(&Path, &str)]) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if let Some(missing) = PROGRAMS.iter().find(|program| !Path::new(program).exists()) {
            return skip_this(&format!("there is no {missing}"));
        }
        if !process::run(Command::new("unshare").args(["--mount", "true"]), PATIENCE).status.success() {
            return skip_this("it takes root to make namespaces");
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let group = format!("afar-machine-{}-{number}", std::process::id());
        let place = std::env::temp_dir().join(&group);
        fs::create_dir(&place).expect("a folder");
        let log = fs::File::create(place.with_extension("log")).expect("a log");
        let mut boot = Command::new("unshare");
        boot.args(["--mount", "bash", "-c", BOOT, "boot", &group]).arg(&place);
        for (from, to) in files {
            boot.arg(from).arg(to);
        }
        let holder =
            boot.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("unshare runs");
        let mut machine = Self { place, group, holder, init: 0 };
        if machine.wait_for_init() {
            machine.wait_until_running();
            return Some(machine);
        }
        let said = machine.log();
        skip_this(said.lines().last().unwrap_or_default())
    }

    /// Waits for its PID 1. False if this machine cannot have one.
    fn wait_for_init(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(init) = child_of(self.holder.id())
                && fs::read_to_string(format!("/proc/{init}/comm")).is_ok_and(|name| name == "systemd\n")
            {
                self.init = init;
                return true;
            }
            match self.holder.try_wait().expect("a child") {
                Some(status) if status.code() == Some(CANNOT) => return false,
                Some(status) => panic!("{status}: {}", self.log()),
                None => assert!(Instant::now() < until, "no systemd: {}", self.log()),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until all that starts by itself has started.
    fn wait_until_running(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let said = self.run(&["systemctl", "is-system-running", "--wait"]);
            // Not connected yet, or starting.
            match String::from_utf8_lossy(&said.stdout).trim() {
                "running" => return,
                "degraded" => panic!("{}", self.succeed(&["systemctl", "--failed", "--no-pager"])),
                state => assert!(Instant::now() < until, "{state}: {said:?} {}", self.log()),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What systemd has said before it had a journal.
    fn log(&self) -> String {
        fs::read_to_string(self.place.with_extension("log")).unwrap_or_default()
    }

    /// The path here of a file there. An absolute symbolic link in it would lead out of the machine.
    #[must_use]
    pub fn path(&self, there: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{there}", self.init))
    }

    /// Writes a file there, and makes the folders above it.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn write(&self, there: &str, text: impl AsRef<[u8]>) {
        let path = self.path(there);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(&path, text).unwrap_or_else(|error| panic!("{there}: {error}"));
    }

    /// A program there, as root, in / and with an environment of its own.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string()]);
        command
            .args(["--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup", "--root", "--wd"])
            .arg(program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .env("LC_ALL", "C.UTF-8");
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program there to its end.
    ///
    /// # Panics
    ///
    /// If it does not end.
    pub fn run(&self, words: &[&str]) -> Output {
        process::run(self.command(words[0]).args(&words[1..]), PATIENCE)
    }

    /// Runs a program there that has to succeed; says what it wrote.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn succeed(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(output.status.success(), "{words:?}: {} {stdout}{stderr}", output.status);
        stdout
    }

    /// Waits until a program there succeeds; says what it wrote then.
    ///
    /// # Panics
    ///
    /// If it never does.
    pub fn until(&self, words: &[&str]) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let output = self.run(words);
            if output.status.success() {
                return String::from_utf8_lossy(&output.stdout).into_owned();
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(Instant::now() < until, "{words:?}: {} {said}\n{}", output.status, self.journal(&[]));
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// What its journal has, with these options of `journalctl`, such as `--unit=NAME`.
    ///
    /// # Panics
    ///
    /// If it cannot be read.
    pub fn journal(&self, options: &[&str]) -> String {
        self.succeed(&[&["journalctl", "--no-pager", "--output=short-monotonic"], options].concat())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // All of its processes end with PID 1, and its mounts with them. The holder waits for it.
        let _ = match self.init {
            0 => self.holder.kill(),
            init => Command::new("kill").args(["-KILL", &init.to_string()]).status().map(drop),
        };
        let _ = self.holder.wait();
        let mut remove = Command::new("unshare");
        remove.args(["--mount", "sh", "-c", REMOVE_GROUP, "sh", &self.group]).arg(&self.place);
        let _ = remove.stderr(Stdio::null()).status();
        let _ = fs::remove_dir(&self.place);
        let _ = fs::remove_file(self.place.with_extension("log"));
    }
}

/// The child of a process that has one at most.
fn child_of(parent: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    numbers.into_iter().find(|number| {
        // The name before the fields is in brackets, and has what the program likes.
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        fields.and_then(|fields| fields.split(' ').nth(1)?.parse().ok()) == Some(parent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_its_own_runs_systemd_and_leaves_nothing() {
        let Some(machine) = Machine::boot(&[]) else {
            return;
        };
        assert_eq!(machine.succeed(&["cat", "/proc/1/comm"]), "systemd\n");
        machine.write(
            "/etc/systemd/system/hello.service",
            "[Service]\nType=oneshot\nExecStart=/bin/echo hello there\n",
        );
        machine.succeed(&["systemctl", "start", "hello.service"]);
        assert!(machine.journal(&["--unit=hello.service"]).contains("hello there"));
        assert!(!Path::new("/etc/systemd/system/hello.service").exists());
        let place = machine.place.clone();
        drop(machine);
        assert!(!place.exists());
    }
}
