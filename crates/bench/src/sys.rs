//! The system calls that std has no safe way to make: the only `unsafe` of this crate.

#![expect(unsafe_code, reason = "the one file with system calls that std does not offer")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the process killed when the thread that starts it ends, so that nothing outlives a bench that was itself
/// killed. Also unblocks the signals that the bench's parent may have blocked, so that SIGTERM ends the process.
pub(crate) fn end_with_parent(command: &mut Command) {
    let tie = || {
        // SAFETY: takes numbers only.
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a set of signals is plain numbers, and `sigemptyset` makes it one whatever it was; both calls may be
        // made between fork and exec. They fail for wrong arguments only.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(tie) };
}

/// Asks a process to end, by SIGTERM. `pid` is to be a child that has not been waited for: else it may be
/// somebody else's by now.
pub(crate) fn terminate(pid: u32) {
    // SAFETY: takes numbers only. It cannot fail for a child of ours.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGTERM) };
}

/// Stops a child in its tracks: it neither runs nor answers, and says so to nobody. It can only be killed then.
pub(crate) fn freeze(pid: u32) {
    // SAFETY: takes numbers only. It cannot fail for a child of ours.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGSTOP) };
}

/// Ends a child by SIGKILL. `pid` as in [`terminate`].
pub(crate) fn kill(pid: u32) {
    // SAFETY: takes numbers only. It cannot fail for a child of ours.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
}

/// Gives a thread a niceness, -20 to 19.
pub(crate) fn set_niceness(thread: u32, niceness: i32) -> io::Result<()> {
    // SAFETY: takes numbers only.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, niceness) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes a file, which says what could not be stored; std's drop is silent about it.
pub(crate) fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor was the file's alone, and the file is gone.
    let result = unsafe { libc::close(file.into_raw_fd()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Clock ticks a second, the unit of CPU times in `/proc`.
pub(crate) fn clock_ticks() -> f64 {
    // SAFETY: takes a number, returns one.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) as f64 }
}

/// Maps a file of at least this length, and adds up its whole words of eight bytes.
pub(crate) fn sum_mapped(file: &File, length: usize) -> io::Result<u64> {
    if length < 8 {
        return Ok(0);
    }
    // SAFETY: the kernel chooses the address; the descriptor is open, as `file` is borrowed.
    let start = unsafe {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0)
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let words = start.cast::<u64>().cast_const();
    // SAFETY: `length` bytes from `start` on are mapped, which is the beginning of a page, until the end of this function. The
    // file may change meanwhile, which a volatile read of plain numbers may see; it is not shortened: nobody but this bench
    // knows it.
    let sum =
        (0..length / 8).fold(0u64, |sum, at| sum.wrapping_add(unsafe { words.add(at).read_volatile() }));
    // SAFETY: it was mapped above with this length, and nothing refers to it any more.
    unsafe { libc::munmap(start, length) };
    Ok(sum)
}
