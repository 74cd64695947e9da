//! The program `afar` that a test runs, and its commands.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Seconds for which servers wait for clients, and those for their kernel: on a busy machine a mount may stand still for longer than
/// people want to wait, and shows for a moment what was changed.
pub const CALLBACK_WAIT: u32 = 60;

/// Its path: cargo has built it for the tests of its own package, beside the folder of their program.
///
/// # Panics
///
/// If it is not there.
pub fn path() -> PathBuf {
    let test = std::env::current_exe().expect("a test runs");
    let path = test.ancestors().nth(2).expect("cargo has put it into a folder").join("afar");
    assert!(path.exists(), "{} is not built: this is not a test of its package", path.display());
    path
}

/// The program alone.
pub fn program() -> Command {
    Command::new(path())
}

/// A command, which knows nothing of whoever runs the tests.
pub fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = program();
    command.args(args).env_remove("NOTIFY_SOCKET").env_remove("SUDO_UID").stdin(Stdio::null());
    wait(&mut command, Some(CALLBACK_WAIT));
    command
}

/// `afar server`, with its log at warnings.
pub fn server(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = program();
    command.arg("server").args(args).env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// `afar up` with its state in a folder, at an address.
pub fn up(folder: &Path, address: Ipv4Addr, more: &[&str]) -> Command {
    let mut command = command(["up", "--state"]);
    command.arg(folder.join("state")).args(["--bind", &address.to_string()]).args(more);
    command
}

/// A command of our suites, given as a line, that asks a server with this state and rights such as `-localauth`. Names such as `ONE`
/// stand for addresses. Ctrl-C ends it even where the tests run in the background of a script.
pub fn suite(state: &Path, line: &str, names: &[(&str, Ipv4Addr)], rights: &str) -> Command {
    let mut command = interruptible(path());
    for word in line.split_whitespace() {
        match names.iter().find(|(name, _)| *name == word) {
            Some((_, address)) => command.arg(address.to_string()),
            None => command.arg(word),
        };
    }
    command.args([rights, "-config"]).arg(state.join("etc/server"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Copies it to where another user can run it. By another process: one that a test beside this starts at this moment would have
/// the copy open for writing, and what is open for writing cannot be run.
///
/// # Panics
///
/// If it cannot be copied.
pub fn copy_to(to: &Path) {
    let copied = Command::new("cp").arg(path()).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{}", to.display());
}

/// Has a command wait for so many seconds where it would wait [`CALLBACK_WAIT`]; no longer than for people if none are given.
pub(super) fn wait(command: &mut Command, callback_wait: Option<u32>) {
    match callback_wait {
        Some(seconds) => command.env("AFAR_CALLBACK_WAIT", seconds.to_string()),
        None => command.env_remove("AFAR_CALLBACK_WAIT"),
    };
}

/// A program that Ctrl-C ends, even if the tests run where it is ignored: in the background of a script.
pub fn interruptible(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(program);
    command
}

/// Returns all that a command has said.
pub fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
