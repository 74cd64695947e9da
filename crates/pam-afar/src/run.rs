//! Runs `aklog` for a login: as the user, in the PAG, with nothing of the program that logs somebody in, and not for ever.

#![expect(
    unsafe_code,
    reason = "std has no safe way to set the groups of a program that it starts, nor to close its files"
)]

use nix::unistd::User;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The time for which a login waits for its tokens: longer than it takes to ask several KDCs if the first ones are down.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The time between two looks whether the program has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// The time for which its end is waited for when it is killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs `aklog` as a user, in a PAG or in none, with the environment of the login, and waits for it. What else this process has open is root's, and not
/// for the program. One that has not ended in time is killed.
pub(crate) fn run_as(
    user: &User,
    pag: Option<u32>,
    program: &Path,
    environment: &[(String, String)],
    patience: Duration,
) -> io::Result<()> {
    let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
    let groups: Vec<u32> = [gid].into_iter().chain(pag).collect();
    let mut command = Command::new(program);
    command.arg("aklog").env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &user.dir);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    let become_user = move || {
        // SAFETY: system calls, in the one thread that there is after a fork; the groups live in this. Files are closed by the exec and not
        // before, as std needs one until then.
        let is_done = unsafe {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) == 0
                && libc::setgroups(groups.len(), groups.as_ptr()) == 0
                && libc::setgid(gid) == 0
                && libc::setuid(uid) == 0
        };
        if is_done { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: what runs between fork and exec makes system calls only.
    let mut child = unsafe { command.pre_exec(become_user) }.spawn()?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() >= patience {
            child.kill()?;
            // It may be in a wait of the kernel's that no signal ends, and the login is not to wait for that.
            let killed = Instant::now();
            while child.try_wait()?.is_none() && killed.elapsed() < KILL_TIMEOUT {
                thread::sleep(PAUSE);
            }
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it has not ended in time and was killed"));
        }
        thread::sleep(PAUSE);
    };
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    /// Runs a script as `aklog`; `None` without the rights for that.
    fn run(name: &str, script: &str, patience: Duration) -> Option<(io::Result<()>, PathBuf)> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let folder = std::env::temp_dir().join(format!("pam-afar-{name}-{}", std::process::id()));
        // Left by an earlier process of this number.
        drop(fs::remove_dir_all(&folder));
        fs::create_dir(&folder).unwrap();
        let program = folder.join("program");
        // By another process: one that a test beside this starts at this moment would have it open for writing, and that cannot be run.
        let mut write = Command::new("sh");
        write.args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\""]);
        assert!(write.arg(&program).arg(script).status().unwrap().success());
        let root = User::from_uid(nix::unistd::Uid::from_raw(0)).unwrap().unwrap();
        let environment = [("FOLDER".to_owned(), folder.display().to_string())];
        let result = loop {
            match run_as(&root, Some(0x4100_0009), &program, &environment, patience) {
                // A child that another test has just made has the program open as we have written it, until it executes its own.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => thread::sleep(PAUSE),
                result => break result,
            }
        };
        Some((result, folder))
    }

    #[test]
    fn the_users_program_gets_no_file_that_the_login_has_open() {
        let secret = fs::File::open("/etc/passwd").unwrap();
        rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
        let open = format!(
            "test -e /proc/$$/fd/{} && echo open > $FOLDER/seen; id -G > $FOLDER/groups",
            secret.as_raw_fd()
        );
        let Some((result, folder)) = run("files", &open, TIMEOUT) else { return };
        let (seen, groups) = (folder.join("seen").exists(), fs::read_to_string(folder.join("groups")));
        fs::remove_dir_all(&folder).unwrap();
        result.unwrap();
        assert!(!seen, "it could read what root has opened");
        assert_eq!(groups.unwrap().trim(), "0 1090519049");
    }

    #[test]
    fn a_program_that_does_not_end_keeps_nobody_from_logging_in() {
        let Some((result, folder)) = run("forever", "exec sleep 1000", Duration::from_millis(50)) else {
            return;
        };
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
