//! Child processes that end with their guard: their lines, their CPU time and memory, their end. What they are is
//! said by `tools.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::interrupt::{Interrupt, POLL};
use crate::sys;

/// The time within which a process must end after SIGTERM before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of standard error that are kept for messages: the last ones.
const STDERR_KEPT: usize = 2000;

/// A running child. Dropped, it is asked to end, then killed.
pub(crate) struct Process {
    child: Child,
    name: String,
    lines: Receiver<String>,
    stderr: Arc<Mutex<String>>,
    interrupt: Interrupt,
}

impl Process {
    /// Starts it with pipes on all three standard streams. To be called on the main thread, with whose end it dies.
    pub(crate) fn start(mut command: Command, name: &str, interrupt: &Interrupt) -> Result<Process, Error> {
        interrupt.check()?;
        sys::end_with_parent(&mut command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Error::setup(format!("starting {name}: {e}")))?;
        let (sender, lines) = channel();
        let stdout = child.stdout.take().expect("it was asked to be a pipe");
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let mut pipe = child.stderr.take().expect("it was asked to be a pipe");
        let kept = Arc::clone(&stderr);
        thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                let mut text = kept.lock().unwrap_or_else(PoisonError::into_inner);
                text.push_str(&String::from_utf8_lossy(&buffer[..length]));
                let surplus = text.len().saturating_sub(STDERR_KEPT);
                let cut = (surplus..text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(0);
                text.drain(..cut);
            }
        });
        Ok(Process { child, name: name.to_string(), lines, stderr, interrupt: interrupt.clone() })
    }

    /// Waits for a line that begins so, and returns what follows it; lines before it are dropped.
    pub(crate) fn wait_for_line(&mut self, prefix: &str, patience: Duration) -> Result<String, Error> {
        let deadline = Instant::now() + patience;
        loop {
            self.interrupt.check()?;
            match self.lines.recv_timeout(POLL) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(prefix) {
                        return Ok(rest.trim().to_string());
                    }
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => (),
                Err(RecvTimeoutError::Timeout) => {
                    let wait = patience.as_secs();
                    return Err(self.failed(&format!("did not print '{prefix}' within {wait} s")));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.failed(&format!("ended without printing '{prefix}'")));
                }
            }
        }
    }

    /// Writes a line to its standard input.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), Error> {
        let stdin = self.child.stdin.as_mut().expect("it was asked to be a pipe, and is closed in finish()");
        let result = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        result.map_err(|e| self.failed(&format!("does not listen: {e}")))
    }

    /// Waits until it ends by itself; what it printed since the last line that was waited for, if it succeeded.
    pub(crate) fn finish(mut self, patience: Duration) -> Result<String, Error> {
        let status = self.wait(patience)?;
        // The pipe is closed by now, or by whoever inherited it soon.
        let mut output = String::new();
        while let Ok(line) = self.lines.recv_timeout(POLL) {
            output += &line;
            output.push('\n');
        }
        if status.success() {
            return Ok(output);
        }
        let code = status.code().map_or("by a signal".to_string(), |code| format!("with status {code}"));
        // Some say on standard output what went wrong.
        let said = output.lines().last().unwrap_or_default();
        Err(self.failed(&format!("ended {code} {said}")))
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    pub(crate) fn stop(self, patience: Duration) -> Result<(), Error> {
        sys::terminate(self.child.id());
        self.finish(patience).map(drop)
    }

    /// Does the same for a program that only has to be there when it is asked; how it ends does not matter.
    pub(crate) fn stop_however(mut self, patience: Duration) -> Result<(), Error> {
        if let Some(status) = self.try_wait()? {
            return Err(self.failed(&format!("was to be ended, and had ended before ({status})")));
        }
        sys::terminate(self.child.id());
        self.wait(patience).map(drop)
    }

    fn wait(&mut self, patience: Duration) -> Result<ExitStatus, Error> {
        let deadline = Instant::now() + patience;
        drop(self.child.stdin.take());
        loop {
            self.interrupt.check()?;
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(self.failed(&format!("did not end within {} s", patience.as_secs())));
            }
            thread::sleep(POLL);
        }
    }

    /// CPU seconds so far, of all its threads, also those that have ended; 10 ms exact. None if it has ended.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        cpu_seconds_of(self.child.id())
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of memory that are its own now (resident, anonymous). None if it has ended.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        memory_bytes_of(self.child.id())
    }

    /// The status with which it has ended, if it has.
    pub(crate) fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child.try_wait().map_err(|e| Error::setup(format!("waiting for {}: {e}", self.name)))
    }

    /// An error of this process, with what it said last.
    fn failed(&self, what: &str) -> Error {
        let stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let said = stderr.trim();
        Error::run(format!("{} {}{}{said}", self.name, what.trim(), if said.is_empty() { "" } else { ": " }))
    }
}

/// Bytes of memory that are a process's own now (resident, anonymous). None if there is none of this number.
pub(crate) fn memory_bytes_of(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// CPU seconds so far of any process, all its threads; 10 ms exact. None if there is none of this number.
pub(crate) fn cpu_seconds_of(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(cpu_ticks(&stat)? / sys::clock_ticks())
}

/// CPU seconds so far of each thread of a process that lives, by their numbers; 10 ms exact. Empty if it has ended.
pub(crate) fn thread_cpu_seconds_of(pid: u32) -> BTreeMap<u32, f64> {
    told_of_threads(pid, "stat", |stat| Some(cpu_ticks(stat)? / sys::clock_ticks()))
}

/// The seconds for which each of a process's threads has waited for a core; empty where the kernel does not tell.
pub(crate) fn thread_waits_of(pid: u32) -> BTreeMap<u32, f64> {
    told_of_threads(pid, "schedstat", waited_seconds)
}

/// The values in a file of `/proc` for each of a process's threads.
fn told_of_threads(pid: u32, file: &str, read: impl Fn(&str) -> Option<f64>) -> BTreeMap<u32, f64> {
    let of = |thread| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/{file}")).ok()?;
        Some((thread, read(&text)?))
    };
    threads_of(pid).filter_map(of).collect()
}

/// Gives all threads of a process a niceness; those that they start later have it from them.
pub(crate) fn renice(pid: u32, niceness: i32) -> Result<(), Error> {
    for thread in threads_of(pid) {
        sys::set_niceness(thread, niceness)
            .map_err(|e| Error::setup(format!("the niceness {niceness} of the process {pid}: {e}")))?;
    }
    Ok(())
}

/// The numbers of a process's threads.
fn threads_of(pid: u32) -> impl Iterator<Item = u32> {
    let folder = fs::read_dir(format!("/proc/{pid}/task"));
    folder.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// User and system time of a `stat` file of `/proc`, clock ticks.
fn cpu_ticks(stat: &str) -> Option<f64> {
    // The second field is the program's name in brackets, which may contain anything; 14 and 15 are wanted.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

impl Drop for Process {
    fn drop(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        // One that was waited for is not signalled: its number may be another's.
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            sys::terminate(self.child.id());
            thread::sleep(POLL);
        }
    }
}

/// The seconds of waiting for a core in a `schedstat` file of `/proc`.
fn waited_seconds(schedstat: &str) -> Option<f64> {
    // What it ran, what it waited, both in nanoseconds, and how often.
    let waited: f64 = schedstat.split_whitespace().nth(1)?.parse().ok()?;
    Some(waited / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 120 30 0 0 20 0 3 0 99";
        assert_eq!(cpu_ticks(stat), Some(150.0));
        assert_eq!(cpu_ticks("7 (a"), None);
    }

    #[test]
    fn what_a_thread_waited_is_told_apart_from_what_it_ran() {
        assert_eq!(waited_seconds("5000000000 1500000000 7\n"), Some(1.5));
        assert_eq!(waited_seconds("5000000000\n"), None);
    }
}
