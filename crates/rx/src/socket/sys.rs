//! The system calls that neither `quinn-udp` nor `socket2` offers: forced buffer sizes, the socket's memory
//! counters, waiting on a socket together with a wake-up descriptor, and the raw error queue. All `unsafe` of this
//! crate is in this file; every function here is safe to call. What the bytes mean is left to the callers.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// Room for the sender's address in an error queue entry: that of `sockaddr_storage`.
const NAME_BYTES: usize = 128;

/// Room for the control messages of an error queue entry: the extended error with its address takes about 64 bytes,
/// the time stamp, packet info and traffic class that the socket also asks for about 100 more.
const CONTROL_BYTES: usize = 512;

/// An integer socket option's value.
#[cfg(test)]
pub(super) fn option(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` and `length` are live and writable for the call, and `length` is the size of `value`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, ptr::from_mut(&mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets an integer socket option.
pub(super) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let value: libc::c_int = value;
    // SAFETY: `value` is live and readable for the call, and the length given is its size.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The kernel's memory counters of a socket (`SO_MEMINFO`, socket(7)).
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryInfo {
    /// Bytes charged for what waits to be received.
    pub(super) receive_queued_bytes: u32,
    /// Packets dropped since the socket was made; wraps.
    pub(super) drops: u32,
}

/// Reads the socket's memory counters.
pub(super) fn memory_info(fd: BorrowedFd<'_>) -> io::Result<MemoryInfo> {
    // The kernel's SK_MEMINFO_VARS; a newer kernel with more of them cuts its answer to the length given.
    const VALUES: usize = 9;
    const RMEM_ALLOC: usize = 0;
    const DROPS: usize = 8;
    let mut values = [0u32; VALUES];
    let mut length = size_of_val(&values) as libc::socklen_t;
    // SAFETY: `values` and `length` are live and writable for the call, and `length` is the size of `values`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(MemoryInfo { receive_queued_bytes: values[RMEM_ALLOC], drops: values[DROPS] })
}

/// A descriptor that is not readable until [`raise`] is called on it, and readable ever after.
pub(super) fn wake_flag() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a [`wake_flag`] readable for good.
pub(super) fn raise(flag: BorrowedFd<'_>) {
    let one = 1u64;
    // A failing write means that the counter is full, hence that the flag is raised already.
    // SAFETY: `one` is live and readable for the call, and the length given is its size.
    let _ = unsafe { libc::write(flag.as_raw_fd(), ptr::from_ref(&one).cast(), size_of::<u64>()) };
}

/// Random bytes from the kernel.
pub(crate) fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        // SAFETY: `rest` is live and writable for the call, with the length given.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => filled += got,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(bytes)
}

/// Has timed waits of the calling thread end when they should: measured, a wait of 100 µs ends 27 µs late instead of 76, and
/// pacing waits like that. Does nothing where the kernel refuses.
pub fn wake_exactly() {
    const SLACK_NANOS: libc::c_ulong = 1000;
    // SAFETY: no pointers are passed; the unused arguments are zero.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NANOS, 0, 0, 0) };
}

/// The events that a socket is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interest {
    /// A datagram to receive.
    Readable,
    /// Room to send.
    Writable,
}

/// The events that [`wait`] found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Readiness {
    /// The event that was waited for has come.
    pub(super) ready: bool,
    /// The socket has a pending error or a filled error queue.
    pub(super) error: bool,
}

/// Waits until the socket has what `interest` asks for or has an error, until `flag` (if any) is raised, or until
/// `timeout` has passed (for ever with `None`). A signal ends the wait too, with nothing found.
pub(super) fn wait(
    socket: BorrowedFd<'_>,
    interest: Interest,
    flag: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> io::Result<Readiness> {
    let events = match interest {
        Interest::Readable => libc::POLLIN,
        Interest::Writable => libc::POLLOUT,
    };
    let mut fds = [
        libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 },
        // poll(2) skips a negative descriptor.
        libc::pollfd { fd: flag.map_or(-1, |flag| flag.as_raw_fd()), events: libc::POLLIN, revents: 0 },
    ];
    // SAFETY: a timespec is plain integers, for which all-zero bytes are a value.
    let mut limit: libc::timespec = unsafe { mem::zeroed() };
    let limit = match timeout {
        Some(timeout) => {
            limit.tv_sec = libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX);
            limit.tv_nsec = timeout.subsec_nanos() as _;
            &raw const limit
        }
        None => ptr::null(),
    };
    // SAFETY: `fds` is live and writable with the length given; `limit` is null or points to the timespec above,
    // which outlives the call; a null signal mask is allowed.
    let found = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit, ptr::null()) };
    if found < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted {
            Ok(Readiness::default())
        } else {
            Err(error)
        };
    }
    let socket = fds[0].revents;
    Ok(Readiness { ready: socket & events != 0, error: socket & libc::POLLERR != 0 })
}

/// An entry of a socket's error queue, as the kernel gave it.
#[derive(Debug)]
pub(super) struct RawError<const PAYLOAD: usize> {
    /// A `sockaddr`: where the packet that caused the error was sent to.
    pub(super) name: Buffer<NAME_BYTES>,
    /// Control messages (cmsg(3)).
    pub(super) control: Buffer<CONTROL_BYTES>,
    /// The start of that packet's payload, as far as the error quoted it.
    pub(super) payload: Buffer<PAYLOAD>,
}

/// A filled part of an array.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffer<const N: usize> {
    pub(super) bytes: [u8; N],
    pub(super) length: usize,
}

impl<const N: usize> Buffer<N> {
    const EMPTY: Self = Self { bytes: [0; N], length: 0 };

    /// The bytes that were filled in.
    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[..self.length.min(N)]
    }
}

/// Takes the oldest entry from the socket's error queue (`MSG_ERRQUEUE`, recv(2)); `None` when it is empty.
pub(super) fn take_error<const PAYLOAD: usize>(fd: BorrowedFd<'_>) -> io::Result<Option<RawError<PAYLOAD>>> {
    /// The kernel writes control messages in words.
    #[repr(align(8))]
    struct Aligned([u8; CONTROL_BYTES]);

    let mut control = Aligned([0; CONTROL_BYTES]);
    let mut raw = RawError { name: Buffer::EMPTY, control: Buffer::EMPTY, payload: Buffer::EMPTY };
    loop {
        let mut vector =
            libc::iovec { iov_base: raw.payload.bytes.as_mut_ptr().cast(), iov_len: raw.payload.bytes.len() };
        // SAFETY: a msghdr is integers and pointers, for which all-zero bytes are a value.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_name = raw.name.bytes.as_mut_ptr().cast();
        header.msg_namelen = NAME_BYTES as libc::socklen_t;
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
        // SAFETY: the name, the one vector with its bytes and the control buffer are live and writable for the
        // call, with the lengths given in `header`.
        let length = unsafe {
            libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
        };
        if let Ok(length) = usize::try_from(length) {
            raw.payload.length = length;
            raw.name.length = header.msg_namelen as usize;
            raw.control = Buffer { bytes: control.0, length: header.msg_controllen as usize };
            return Ok(Some(raw));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    }
}
