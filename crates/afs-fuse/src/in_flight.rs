//! The requests that wait for something, and what becomes of them when their caller gets a signal.
//!
//! The kernel says INTERRUPT at most once for a request: at the first signal that its caller neither blocks nor ignores, also one
//! that the program handles without meaning to give up (a child that ended, a timer). Then it waits on, even for a process that is being killed. So a request is given up
//! when one of the signals is pending that mean it: then the program gets EINTR. Until then the caller is looked at from time to time.
//! A wait for a lock is given up for any signal, as on a local file system: programs bound it by an alarm. The kernel begins it again
//! where the program's handler asks for that.
//!
//! If a signal ends a program with files open, the kernel says nothing of it. It closes the files while it takes the
//! program down, and waits for each, with no signal pending any more. So the process that closes a file is looked at
//! without being told.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuse_dev::{Reply, Unique};
use tokio::task::AbortHandle;

use crate::answer::{Answer, Taken};
use crate::kernel_locks::{Held, KernelLocks};

/// The time between two looks at callers with a signal that may mean nothing.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// `PF_EXITING` among the flags of a thread: it is being taken down.
const EXITING: u64 = 4;

/// SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM: what people and programs send to have something end.
const MEANT: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 8 | 1 << 14;

/// The signals that end a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// Those that are sent to have something end.
    Meant,
    /// Any signal that the kernel tells of: one that is neither blocked nor ignored.
    Any,
}

#[derive(Debug)]
struct Request {
    /// None while it is being started.
    task: Option<AbortHandle>,
    is_given_up: bool,
    pid: u32,
    ended_by: EndedBy,
    is_watched: bool,
}

impl Request {
    /// The task that is to be aborted, with nothing locked: it may be dropped there, and takes itself out of the table.
    fn give_up(&mut self) -> Option<AbortHandle> {
        self.is_given_up = true;
        self.task.clone()
    }
}

/// The requests that are in flight: received, and not answered yet.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    table: Mutex<HashMap<Unique, Request>>,
    /// The locks that the kernel holds for them.
    pub(crate) locks: Arc<KernelLocks>,
}

/// The answer that a waiting request is to get. Dropped without one, it says EINTR.
#[derive(Debug)]
pub(crate) struct Due {
    reply: Option<Reply>,
    unique: Unique,
    in_flight: Arc<InFlight>,
    _held: Option<Held>,
}

impl Due {
    pub(crate) fn answer(mut self, answer: Answer) -> Taken {
        self.in_flight.lock().remove(&self.unique);
        let reply = self.reply.take().expect("it is answered once");
        answer.send(reply)
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            self.in_flight.lock().remove(&self.unique);
            reply.error(libc::EINTR);
        }
    }
}

impl InFlight {
    fn lock(&self) -> MutexGuard<'_, HashMap<Unique, Request>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task for a request that cannot be answered at once. `start` is given what the answer is to be put into.
    pub(crate) fn begin(
        self: &Arc<Self>,
        pid: u32,
        ended_by: EndedBy,
        reply: Reply,
        start: impl FnOnce(Due) -> AbortHandle,
    ) {
        let unique = reply.unique();
        let held = reply.locked().map(|lock| self.locks.hold(lock));
        let due = Due { reply: Some(reply), unique, in_flight: Arc::clone(self), _held: held };
        let request = Request { task: None, is_given_up: false, pid, ended_by, is_watched: false };
        self.lock().insert(unique, request);
        // With nothing locked, as when it is aborted: a runtime that ends drops it at once.
        let task = start(due);
        let is_given_up = match self.lock().get_mut(&unique) {
            Some(request) => {
                request.task = Some(task.clone());
                request.is_given_up
            }
            None => false,
        };
        if is_given_up {
            task.abort();
        }
    }

    /// The caller of a request got a signal. False: there is no such request (yet).
    pub(crate) fn interrupt(self: &Arc<Self>, unique: Unique, runtime: &tokio::runtime::Handle) -> bool {
        let (ended_by, pid) = match self.lock().get(&unique) {
            None => return false,
            Some(request) => (request.ended_by, request.pid),
        };
        if ended_by == EndedBy::Any || is_meant(pid) {
            self.give_up(unique);
        } else {
            self.look_at(unique, runtime);
        }
        true
    }

    fn give_up(&self, unique: Unique) {
        let task = self.lock().get_mut(&unique).and_then(Request::give_up);
        if let Some(task) = task {
            task.abort();
        }
    }

    /// Looks at the caller of a request from time to time. The request is given up when the caller gets a signal that
    /// means it, or is taken down by one: nobody will hear the answer then.
    pub(crate) fn look_at(self: &Arc<Self>, unique: Unique, runtime: &tokio::runtime::Handle) {
        let mut table = self.lock();
        let Some(request) = table.get_mut(&unique).filter(|request| !request.is_watched) else { return };
        request.is_watched = true;
        let (in_flight, pid) = (Arc::clone(self), request.pid);
        drop(table);
        runtime.spawn(async move { in_flight.watch(unique, pid).await });
    }

    /// See [`Self::look_at`].
    async fn watch(&self, unique: Unique, pid: u32) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if !self.lock().contains_key(&unique) {
                return;
            }
            if is_meant(pid) || is_killed(pid) {
                return self.give_up(unique);
            }
        }
    }

    /// Gives all requests up: the mount ends.
    pub(crate) fn end(&self) {
        let tasks: Vec<_> = self.lock().values_mut().filter_map(Request::give_up).collect();
        tasks.iter().for_each(AbortHandle::abort);
    }
}

/// True if a signal is pending for a thread that means that it is to give up. Of callers that cannot be seen from here every
/// signal counts.
fn is_meant(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) if pid != 0 => pending(&status) & MEANT != 0,
        _ => true,
    }
}

/// True if a thread is being taken down by a signal.
///
/// A thread that is executing another program closes files, too, and waits for what they answer. Until then whoever reads its
/// `/proc/PID/stat` waits for the thread (the kernel's `exec_update_lock`): never read that of one that has memory. `status` waits for nothing.
fn is_killed(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !has_memory(&status))
        && fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| ends_by_signal(&stat))
}

/// True if a thread has memory: one that is taken down has given it up before its files are closed.
fn has_memory(status: &str) -> bool {
    status.lines().any(|line| line.starts_with("VmSize:"))
}

/// True if the line of `/proc/PID/stat` says so: the flags are its ninth field, the code with which it ends the 52nd, and in that the
/// signal is the lowest seven bits. The second, the name, may have anything in it.
fn ends_by_signal(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_whitespace().skip(9 - 3);
    let mut number =
        |skipped: usize| fields.nth(skipped).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let (flags, code) = (number(0), number(52 - 9 - 1));
    flags & EXITING != 0 && code & 0x7f != 0
}

/// The signals that wait for a thread and for its process, as bits, signal 1 the lowest.
fn pending(status: &str) -> u64 {
    let set = |line: &str| {
        let hex = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(hex.trim(), 16).ok()
    };
    status.lines().filter_map(set).fold(0, |all, set| all | set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_taken_down_by_a_signal_is_known_from_who_ends_by_himself() {
        let stat = |flags: u64, code: u64| {
            let between = "0 ".repeat(52 - 9 - 1);
            format!("77 (a ) S b) R 1 77 77 0 -1 {flags} {between}{code}\n")
        };
        assert!(ends_by_signal(&stat(EXITING | 0x40_0000, 2)) && ends_by_signal(&stat(EXITING, 9 | 0x80)));
        assert!(!ends_by_signal(&stat(EXITING, 0)) && !ends_by_signal(&stat(EXITING, 1 << 8)));
        assert!(!ends_by_signal(&stat(0x40_0000, 9)) && !ends_by_signal(""));
        assert!(!is_killed(std::process::id()));
        assert!(has_memory(&fs::read_to_string("/proc/self/status").unwrap()));
        assert!(!has_memory("Name:\tVmSize:\nThreads:\t1\n"));
    }

    #[test]
    fn only_signals_that_end_something_are_meant() {
        let status = |thread: u64, process: u64| {
            format!(
                "Name:\tx\nSigQ:\t0/1\nSigPnd:\t{thread:016x}\nShdPnd:\t{process:016x}\nSigBlk:\tffffffffffffffff\n"
            )
        };
        let bit = |signal: i32| 1u64 << (signal - 1);
        let is_meant = |text: &str| pending(text) & MEANT != 0;
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGKILL] {
            assert!(is_meant(&status(bit(signal), 0)) && is_meant(&status(0, bit(signal))), "{signal}");
        }
        for signal in [libc::SIGCHLD, libc::SIGALRM, libc::SIGURG, libc::SIGWINCH, libc::SIGUSR1] {
            assert!(!is_meant(&status(bit(signal), bit(signal))), "{signal}");
        }
        assert!(!super::is_meant(std::process::id()));
        assert!(super::is_meant(0) && super::is_meant(u32::MAX));
    }
}
