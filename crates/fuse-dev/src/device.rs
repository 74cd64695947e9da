//! The device /dev/fuse: reading requests, writing answers, a clone of the device for each thread, and files that
//! the kernel may read by itself.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use crate::sys;

/// The path of the device.
const PATH: &str = "/dev/fuse";

/// An open device that belongs to a mount. An answer has to go back through the device that read the request.
#[derive(Debug)]
pub struct Device {
    file: File,
}

impl Device {
    /// Opens the device anew. It belongs to no mount yet.
    ///
    /// # Errors
    ///
    /// When there is none, or it may not be opened.
    pub(crate) fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(PATH);
        Ok(Self { file: file.map_err(|error| io::Error::new(error.kind(), format!("{PATH}: {error}")))? })
    }

    /// The device as somebody else has opened it: `fusermount3`, or a test that is the kernel at the other end of a pair of sockets, which keep
    /// the bounds of messages as the device does (`SOCK_SEQPACKET`).
    pub fn of(descriptor: OwnedFd) -> Self {
        Self { file: File::from(descriptor) }
    }

    /// A clone of the device for the same mount, so that threads do not wait for each other.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn clone_device(&self) -> io::Result<Self> {
        let new = Self::open()?;
        sys::clone_device(new.file.as_fd(), self.file.as_fd())?;
        Ok(new)
    }

    /// Waits for the next request. `Ok(None)`: the mount is gone.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&self.file).read(buffer) {
                Ok(0) => return Ok(None),
                Ok(length) => return Ok(Some(length)),
                Err(error) => match error.raw_os_error() {
                    // ENOENT: the request was taken back before it was read.
                    Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => {}
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Sends a whole message: the kernel takes all of it or nothing.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        (&self.file).write_vectored(parts).map(|_| ())
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Registers a file whose contents the kernel may give out for files of this mount.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN, or if passthrough was not agreed on; ELOOP when the file's own file system is stacked.
    pub fn open_backing(self: &Arc<Self>, file: BorrowedFd<'_>) -> io::Result<Backing> {
        let id = sys::open_backing(self.file.as_fd(), file)?;
        Ok(Backing { device: Arc::downgrade(self), id })
    }
}

/// A file that the kernel may read for files of the mount. All that have one node open by passthrough at a time have to use the
/// same (FUSE notes 3). Given up when dropped.
#[derive(Debug)]
pub struct Backing {
    device: Weak<Device>,
    pub(crate) id: u32,
}

impl Drop for Backing {
    fn drop(&mut self) {
        // Without the device the kernel has given it up by itself.
        if let Some(device) = self.device.upgrade()
            && let Err(error) = sys::close_backing(device.as_fd(), self.id)
        {
            tracing::warn!(id = self.id, %error, "a backing file could not be given up");
        }
    }
}
