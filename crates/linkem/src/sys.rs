//! The system calls that std has no safe way to make: the only `unsafe` of this crate. Each function is safe
//! to call and does one thing; what they are for is said where they are used.

#![expect(unsafe_code, reason = "the one file with system calls that std does not offer")]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const TUNSETIFF: u32 = 0x4004_54ca;
const TUNSETOFFLOAD: u32 = 0x4004_54d0;
/// `TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN`.
const OFFLOAD_TCP: libc::c_ulong = 0x0f;
/// `TUN_F_USO4 | TUN_F_USO6`, since Linux 6.2.
const OFFLOAD_UDP: libc::c_ulong = 0x60;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// True if this process acts as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, so it is open; the call touches no memory of ours.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Moves the calling thread into a new network namespace, which ends with the thread.
pub(crate) fn enter_new_namespace() -> io::Result<()> {
    // SAFETY: takes flags only; without CLONE_FS and the like it changes this thread's network alone.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// A command that will run inside a network namespace; all else is as in [`Command::new`].
pub(crate) fn command_in(namespace: &Arc<File>, program: &OsStr) -> Command {
    let namespace = namespace.clone();
    let mut command = Command::new(program);
    // SAFETY: between fork and exec the closure makes one system call and reads errno; it allocates nothing
    // and takes no lock. It owns the descriptor, so that it is open.
    unsafe { command.pre_exec(move || enter_namespace(namespace.as_fd())) };
    command
}

/// Creates a TUN device in the calling thread's namespace: whole IP packets, each behind a
/// `virtio_net_hdr`; reads do not block. The device lives as long as the file. `name`: 1 to 15 bytes.
pub(crate) fn create_tun(name: &str) -> io::Result<File> {
    let mut request = [0u8; size_of::<libc::ifreq>()];
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::other("a device name has 1 to 15 bytes"));
    }
    request[..name.len()].copy_from_slice(name.as_bytes());
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as u16;
    request[libc::IFNAMSIZ..][..2].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the path is a C string.
    let fd =
        unsafe { libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC) };
    check(fd)?;
    // SAFETY: a new descriptor that nobody else has.
    let file = unsafe { File::from_raw_fd(fd) };
    // SAFETY: TUNSETIFF reads and writes a struct ifreq, and the buffer is as long as one.
    check(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF as _, request.as_mut_ptr()) })?;
    Ok(file)
}

/// Lets the kernel hand over unfinished checksums and super-packets: TCP, and UDP where it can (Linux 6.2).
pub(crate) fn enable_offloads(tun: &File) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes a number.
    let set =
        |flags: libc::c_ulong| check(unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETOFFLOAD as _, flags) });
    set(OFFLOAD_TCP | OFFLOAD_UDP).or_else(|_| set(OFFLOAD_TCP))
}

/// Sleeps up to `ns` nanoseconds; a descriptor among `wake` that becomes readable ends the sleep early.
/// Returns which of them are.
pub(crate) fn sleep(wake: [Option<BorrowedFd<'_>>; 3], ns: u64) -> [bool; 3] {
    // poll skips entries with a negative descriptor.
    let mut fds = wake.map(|fd| libc::pollfd {
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
    // SAFETY: the array and the time outlive the call, and the count is the array's.
    unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as _, &time, std::ptr::null()) };
    fds.map(|fd| fd.revents != 0)
}

/// Makes sleeps of the calling thread end on time rather than up to 50 us late.
pub(crate) fn use_fine_timers() {
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Runs the calling thread SCHED_FIFO at this priority, 1 to 99. Its children start as normal ones.
pub(crate) fn set_fifo_priority(priority: u8) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: libc::c_int::from(priority) };
    // SAFETY: the struct outlives the call; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &param) })
}

/// Pins the calling thread to a core.
pub(crate) fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::other("no core has such a number"));
    }
    // SAFETY: a cpu_set_t is plain bits, for which all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `core` was checked to be inside the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set outlives the call and its size is given; 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) })
}

/// Lets the process keep freed memory, as page faults on packet buffers would cost time on each burst.
pub(crate) fn keep_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator; allowed at any time.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX)
    };
}

/// CPU time of the calling thread: in all, and outside the kernel.
pub(crate) fn thread_cpu_time() -> (Duration, Duration) {
    // SAFETY: an rusage is plain numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes into the struct, which outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    let user = time(usage.ru_utime);
    (user + time(usage.ru_stime), user)
}

/// The signals by which a program is asked to end, taken as events instead.
pub struct Termination {
    signals: libc::sigset_t,
}

impl Termination {
    /// Keeps SIGTERM, SIGINT and SIGHUP from ending the process. Threads started before this still may be
    /// ended by them, so call it first. Commands started later get them as usual.
    pub fn block() -> io::Result<Termination> {
        // SAFETY: a sigset_t is plain bits; sigemptyset sets it up, and the signal numbers are valid.
        let signals = unsafe {
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut signals);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&mut signals, signal);
            }
            signals
        };
        // SAFETY: the set outlives the call; the old one is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) } {
            0 => Ok(Termination { signals }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits until one of them comes.
    pub fn wait(&self) {
        let mut signal = 0;
        // SAFETY: both outlive the call. It only fails for an invalid set, and then returns at once.
        unsafe { libc::sigwait(&self.signals, &mut signal) };
    }
}

/// Makes the socket cut what it sends into datagrams of `size` bytes (`UDP_SEGMENT`).
#[cfg(test)]
pub(crate) fn set_udp_segment(socket: &std::net::UdpSocket, size: u16) -> io::Result<()> {
    let value = libc::c_int::from(size);
    // SAFETY: the value outlives the call and its size is given.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    })
}
