//! Notices to the kernel, which has not asked for them: to forget a node's data and attributes, a name, or nodes that
//! nobody uses; and to take data.
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
const STORE: u32 = 4;
/// Flag of the latter: the name is asked for again when it is used, and what is mounted on it stays. Since protocol 7.38.
const EXPIRE_ONLY: u32 = 1;
/// Nodes that nobody uses are to be let go. Since protocol 7.45 (Linux 6.18).
const PRUNE: u32 = 9;
pub(crate) const PRUNE_SINCE: u32 = 45;
/// Nodes of one such notice: as many as the kernel works through at once.
const PRUNED_AT_ONCE: usize = 512;

/// Sends notices.
#[derive(Debug, Clone)]
pub struct Notifier {
    device: Arc<Device>,
    can_expire: bool,
    can_prune: bool,
}

impl Notifier {
    pub(crate) fn new(device: Arc<Device>, can_expire: bool, can_prune: bool) -> Self {
        Self { device, can_expire, can_prune }
    }

    /// True if the kernel takes [`Self::prune`].
    pub fn can_prune(&self) -> bool {
        self.can_prune
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

    /// Puts bytes into a node's data, as if it had been read there. If they end behind the file's end, it is as long from now on, whatever
    /// attributes the kernel has asked for before. May wait for these pages.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn put(&self, node: NodeId, pos: u64, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let words = Words::<24>::new().u64(node.0).u64(pos).u32(length).u32(0);
        self.send(STORE, [words.bytes(), bytes, &[]])
    }

    /// A name in a directory no longer is what it was. What is mounted on it is unmounted, unless the kernel can just have it
    /// asked for again.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_name(&self, directory: NodeId, name: &OsStr) -> io::Result<()> {
        self.entry(directory, name, if self.can_expire { EXPIRE_ONLY } else { 0 })
    }

    fn entry(&self, directory: NodeId, name: &OsStr, flags: u32) -> io::Result<()> {
        let length = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let words = Words::<16>::new().u64(directory.0).u32(length).u32(flags);
        self.send(INVALIDATE_ENTRY, [words.bytes(), name.as_bytes(), &[0]])
    }

    /// The kernel may have this name no longer: unlike after [`Self::forget_name`] it lets go of the node too, if nobody uses that.
    /// What is mounted on the name is unmounted, and a program that uses the node without having opened it finds it nameless.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn drop_name(&self, directory: NodeId, name: &OsStr) -> io::Result<()> {
        self.entry(directory, name, 0)
    }

    /// These nodes are to be let go, as when the machine is short of memory: those that nobody uses, with all their names. FORGETs
    /// say which they were.
    ///
    /// # Errors
    ///
    /// When the kernel refuses; `Unsupported` where [`Self::can_prune`] says no.
    pub fn prune(&self, nodes: &[NodeId]) -> io::Result<()> {
        if !self.can_prune {
            return Err(io::ErrorKind::Unsupported.into());
        }
        for nodes in nodes.chunks(PRUNED_AT_ONCE) {
            let words = Words::<16>::new().u32(nodes.len() as u32).u32(0).u64(0);
            let ids: Vec<u8> = nodes.iter().flat_map(|node| node.0.to_ne_bytes()).collect();
            self.send(PRUNE, [words.bytes(), &ids, &[]])?;
        }
        Ok(())
    }
}
