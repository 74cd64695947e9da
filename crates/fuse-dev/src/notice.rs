//! What the kernel is told without having asked: to forget a node's data and attributes, or a name.
//!
//! A notice may wait for a lock that the kernel holds while a request is with us: whoever sends one must not be who answers
//! that request (FUSE notes 4).

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::answer::Words;
use crate::device::Device;
use crate::operation::NodeId;

/// Numbers of notices in `fuse.h`, which stand where an answer has its error.
const INVALIDATE_INODE: u32 = 2;
const INVALIDATE_ENTRY: u32 = 3;
/// Flag of the latter: the name is asked for again when it is used, and what is mounted on it stays. Since protocol 7.38.
const EXPIRE_ONLY: u32 = 1;

/// Sends notices.
#[derive(Debug, Clone)]
pub struct Notifier {
    device: Arc<Device>,
    can_expire: bool,
}

impl Notifier {
    pub(crate) fn new(device: Arc<Device>, can_expire: bool) -> Self {
        Self { device, can_expire }
    }

    fn send(&self, code: u32, parts: [&[u8]; 3]) -> io::Result<()> {
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(16 + body).map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = Words::<16>::new().u32(length).u32(code).u64(0);
        let slices = [header.bytes(), parts[0], parts[1], parts[2]].map(IoSlice::new);
        match self.device.send(&slices) {
            // The kernel has forgotten it by itself, or is gone.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR)) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// The attributes of a node are no longer true, and neither are its data.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_data(&self, node: NodeId) -> io::Result<()> {
        let words = Words::<24>::new().u64(node.0).u64(0).u64(0);
        self.send(INVALIDATE_INODE, [words.bytes(), &[], &[]])
    }

    /// The attributes of a node are no longer true; its data stay.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_attributes(&self, node: NodeId) -> io::Result<()> {
        // A negative position: no data.
        let words = Words::<24>::new().u64(node.0).u64((-1i64) as u64).u64(0);
        self.send(INVALIDATE_INODE, [words.bytes(), &[], &[]])
    }

    /// A name in a directory no longer is what it was. What is mounted on it is unmounted, unless the kernel can just have it
    /// asked for again.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_name(&self, directory: NodeId, name: &OsStr) -> io::Result<()> {
        let length = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = if self.can_expire { EXPIRE_ONLY } else { 0 };
        let words = Words::<16>::new().u64(directory.0).u32(length).u32(flags);
        self.send(INVALIDATE_ENTRY, [words.bytes(), name.as_bytes(), &[0]])
    }
}
