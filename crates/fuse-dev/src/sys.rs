//! The system calls that std and rustix have no safe way to make: the only `unsafe` of this crate. Each function is safe to call and
//! does one thing.

#![expect(unsafe_code, reason = "the one file with system calls that std and rustix do not offer")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct fuse_backing_map` of `fuse.h`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, uint32_t)`.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
/// `FUSE_DEV_IOC_BACKING_OPEN`: `_IOW(229, 1, struct fuse_backing_map)`.
const BACKING_OPEN: libc::Ioctl = 0x4010_e501_u32 as libc::Ioctl;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502_u32 as libc::Ioctl;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes a newly opened /dev/fuse a clone of another: it serves the same connection.
pub(crate) fn clone_device(new: BorrowedFd<'_>, of: BorrowedFd<'_>) -> io::Result<()> {
    let source = of.as_raw_fd() as u32;
    // SAFETY: both descriptors are borrowed, so they are open; the kernel reads one word, which lives until it returns.
    check(unsafe { libc::ioctl(new.as_raw_fd(), CLONE, &raw const source) }).map(|_| ())
}

/// Registers a file as one that the kernel may read for files of this mount. The number lasts until it is closed.
pub(crate) fn open_backing(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<u32> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: both descriptors are borrowed, so they are open; the kernel reads the structure, which lives until it returns.
    let id = check(unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) })?;
    Ok(id as u32)
}

/// Gives a registered file up.
pub(crate) fn close_backing(device: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, so it is open; the kernel reads one word, which lives until it returns.
    check(unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const id) }).map(|_| ())
}
