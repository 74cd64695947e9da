//! Named network namespaces that go away with their guard, ways to run things inside them, and the removal
//! of those a killed process left behind. Knows nothing of what is in them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;
use crate::sys;

/// The folder in which `ip netns` keeps the names.
const NAMES_DIR: &str = "/run/netns";
/// The beginning of the made-up names; then process id, its start time, a number, and the end (a or b).
const NAME_PREFIX: &str = "linkem-";

/// Numbers of one process's links. None is given twice: one thread would find the name that another is about to remove.
static NEXT_LINK: AtomicU32 = AtomicU32::new(0);

/// A named network namespace, as `ip netns` makes them, removed when this is dropped unless it was only opened. What
/// still runs inside keeps it alive without the name.
pub struct Namespace {
    handle: NamespaceHandle,
    /// True if the name goes with this.
    owns_name: bool,
}

/// A handle by which to enter a namespace; it does not own the name.
#[derive(Clone)]
pub(crate) struct NamespaceHandle {
    name: String,
    file: Arc<File>,
}

impl NamespaceHandle {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Moves the calling thread into the namespace, for good.
    pub(crate) fn enter(&self) -> Result<(), Error> {
        sys::enter_namespace(self.file.as_fd())
            .map_err(Error::system(format!("entering network namespace {}", self.name)))
    }
}

impl Namespace {
    /// Creates a namespace with nothing in it but `lo`, which is down.
    pub(crate) fn create(name: &str) -> Result<Namespace, Error> {
        let path = Path::new(NAMES_DIR).join(name);
        if name.is_empty() || name.contains('/') || name.starts_with(['.', '-']) {
            return Err(Error::option("namespace", name, "not usable as a namespace's name"));
        }
        match ip(&["netns", "add", name], "") {
            Ok(()) => (),
            Err(_) if path.exists() => return Err(Error::NamespaceExists { name: name.to_string() }),
            Err(error) => return Err(error),
        }
        match File::open(&path) {
            Ok(file) => {
                let handle = NamespaceHandle { name: name.to_string(), file: Arc::new(file) };
                Ok(Namespace { handle, owns_name: true })
            }
            Err(e) => {
                remove(name);
                Err(Error::system(format!("opening {}", path.display()))(e))
            }
        }
    }

    /// A namespace that somebody else has made, and will remove.
    ///
    /// # Errors
    ///
    /// There is none of this name.
    pub fn open(name: &str) -> Result<Namespace, Error> {
        let path = Path::new(NAMES_DIR).join(name);
        let file = File::open(&path).map_err(Error::system(format!("opening {}", path.display())))?;
        Ok(Namespace {
            handle: NamespaceHandle { name: name.to_string(), file: Arc::new(file) },
            owns_name: false,
        })
    }

    /// Creates a namespace of no link, under a name that no other has, with nothing in it but `lo`, which is down.
    ///
    /// # Errors
    ///
    /// It cannot be made: see [`crate::available`].
    pub fn new() -> Result<Namespace, Error> {
        let [name, _] = made_up_names();
        Namespace::create(&name)
    }

    /// Creates two namespaces under names that no other link has.
    pub(crate) fn create_pair() -> Result<(Namespace, Namespace), Error> {
        let [a, b] = made_up_names();
        Ok((Namespace::create(&a)?, Namespace::create(&b)?))
    }

    /// The name, for `ip netns exec` and `ip -n`.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// A command that will run inside this namespace. Only its network differs: mounts, files and users are
    /// those of this process (`ip netns exec` would give it mounts of its own).
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        sys::command_in(&self.handle.file, program.as_ref())
    }

    /// Runs `work` on a thread that has entered this namespace, and waits for it. Sockets opened there stay in
    /// the namespace wherever they are used later, and so do threads started there (an async runtime built
    /// there, for instance). A panic of `work` goes on in the caller.
    ///
    /// Errors: the kernel refused to enter the namespace, or to start a thread.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name(format!("in {}", self.name()))
                .spawn_scoped(scope, || {
                    self.handle.enter()?;
                    Ok(work())
                })
                .map_err(Error::system("starting a thread"))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs the lines of an `ip -batch` inside this namespace.
    pub(crate) fn ip_batch(&self, lines: &str) -> Result<(), Error> {
        ip(&["-n", self.name(), "-batch", "-"], lines)
    }

    /// A way in for another thread.
    pub(crate) fn handle(&self) -> NamespaceHandle {
        self.handle.clone()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if self.owns_name {
            remove(self.name());
        }
    }
}

/// Removes namespaces with made-up names whose process is gone. What cannot be removed stays: somebody else
/// may be removing it right now.
pub(crate) fn remove_stale() {
    let Ok(entries) = fs::read_dir(NAMES_DIR) else { return };
    for entry in entries.flatten() {
        if let Some(name) = entry.file_name().to_str()
            && let Some((pid, start)) = owner(name)
            && start_time(pid) != Some(start)
        {
            remove(name);
        }
    }
}

/// The names of the two ends of a link that no other has.
fn made_up_names() -> [String; 2] {
    let pid = std::process::id();
    let start = start_time(pid).unwrap_or(0);
    let number = NEXT_LINK.fetch_add(1, Ordering::Relaxed);
    ['a', 'b'].map(|end| format!("{NAME_PREFIX}{pid}-{start}-{number}-{end}"))
}

/// The process a made-up name is of: its id and start time. None for names of any other kind.
fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(NAME_PREFIX)?.split('-');
    let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let _number: u64 = parts.next()?.parse().ok()?;
    let end_is_known = matches!(parts.next(), Some("a" | "b"));
    (end_is_known && parts.next().is_none()).then_some((pid, start))
}

/// The time when a process started, in clock ticks since boot: tells it from a later one with the same id. None if
/// there is no such process.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets, which may contain anything; field 22 is wanted.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn remove(name: &str) {
    // In a drop there is nobody to tell; what stays is removed as stale later.
    let _ = ip(&["netns", "del", name], "");
}

/// Runs `ip` with this on its standard input.
fn ip(arguments: &[&str], input: &str) -> Result<(), Error> {
    let failed = |problem: String| Error::Ip { arguments: arguments.join(" "), problem };
    let run = || {
        let mut child = Command::new("ip")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // When ip gives up early the pipe breaks; its own message is the better one.
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output()
    };
    let output = run().map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_names_carry_their_process() {
        assert_eq!(owner("linkem-17-4711-0-a"), Some((17, 4711)));
        assert_eq!(owner("linkem-17-4711-12-b"), Some((17, 4711)));
        assert!(start_time(std::process::id()).is_some_and(|ticks| ticks > 0));
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn other_names_are_nobodys() {
        for name in ["linkem-", "linkem-12-a", "linkem-1-2-3-c", "linkem-1-2-3-a-b", "linkem-x-2-3-a", "mine"]
        {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
