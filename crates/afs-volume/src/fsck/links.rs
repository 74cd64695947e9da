//! The vnodes of a volume that is checked, and whether directories name them as often as they say.

use super::{AT_ONCE, Report};
use crate::{MAX_LINKS, VnodeId, VnodeStatus, Volume};
use afs_wire::ids::VnodeNumber;
use std::fmt;

/// The facts that are kept of each vnode while a volume is checked, so that one of millions of files costs bounded
/// memory.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) id: VnodeId,
    pub(crate) parent: VnodeId,
    pub(crate) link_count: u32,
    /// Names in directories.
    pub(crate) names: u32,
    /// Directories below it.
    pub(crate) subdirectories: u32,
}

impl Known {
    pub(crate) fn new(status: &VnodeStatus) -> Self {
        let VnodeStatus { id, parent, link_count, .. } = *status;
        Self { id, parent, link_count, names: 0, subdirectories: 0 }
    }
}

/// Vnodes whose rows cannot be read: those from one number to before another, as far as they are there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hidden {
    pub(crate) from: VnodeNumber,
    pub(crate) before: VnodeNumber,
}

impl fmt::Display for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.before.0.saturating_sub(self.from.0) {
            0 | 1 => write!(f, "vnode {}", self.from),
            _ => write!(f, "vnodes from {} to before {}", self.from, self.before),
        }
    }
}

/// All of these, by number.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(Vec<Hidden>);

impl Unreadable {
    /// Adds those that come next.
    pub(crate) fn insert(&mut self, hidden: Hidden) {
        match self.0.last_mut() {
            Some(last) if last.before >= hidden.from => last.before = last.before.max(hidden.before),
            _ => self.0.push(hidden),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, vnode: VnodeNumber) -> bool {
        let at = self.0.partition_point(|hidden| hidden.from <= vnode);
        at > 0 && vnode < self.0[at - 1].before
    }
}

/// The vnodes of a volume.
#[derive(Debug, Default)]
pub(crate) struct Vnodes {
    /// Vnodes by number.
    pub(crate) known: Vec<Known>,
    /// Directories whose names could not be read, by number.
    pub(crate) unread: Vec<VnodeNumber>,
    /// Vnodes whose rows cannot be read.
    pub(crate) unreadable: Unreadable,
}

impl Vnodes {
    /// Adds the one with the next number. Grows by an eighth: a vector that doubles takes up to three times what is in it, hundreds of MB for
    /// millions of files. It does not take what the header says, which may be damaged.
    pub(crate) fn push(&mut self, known: Known) {
        if self.known.len() == self.known.capacity() {
            self.known.reserve_exact(AT_ONCE.max(self.known.len() / 8));
        }
        self.known.push(known);
    }

    pub(crate) fn get_mut(&mut self, number: VnodeNumber) -> Option<&mut Known> {
        let i = self.known.binary_search_by_key(&number, |known| known.id.vnode).ok()?;
        Some(&mut self.known[i])
    }

    /// True if its names are known: those of a directory that is not there are none.
    pub(crate) fn is_read(&self, directory: VnodeNumber) -> bool {
        self.unread.binary_search(&directory).is_err() && !self.unreadable.contains(directory)
    }
}

pub(crate) fn check_links(volume: &Volume, vnodes: &Vnodes, report: &mut Report) {
    let id = Some(volume.id());
    let has_root = vnodes.unreadable.contains(VnodeNumber::ROOT)
        || vnodes.known.iter().any(|known| known.id == VnodeId::ROOT);
    if !vnodes.known.is_empty() && !has_root {
        report.find(id, "vnode 1", "the root directory is not there");
    }
    for &Known { id: vnode, parent, link_count, names, subdirectories } in &vnodes.known {
        let what = format!("vnode {}", vnode.vnode);
        let is_root = vnode == VnodeId::ROOT;
        let is_directory = vnode.vnode.is_directory();
        // What is in a directory that could not be read may well have its names there.
        let is_counted = vnodes.is_read(if is_directory { vnode.vnode } else { parent.vnode });
        let expected = if is_directory { 2 + subdirectories } else { names };
        if names == 0 && !is_root && vnodes.is_read(parent.vnode) {
            report.find(id, what.clone(), "is an orphan: no directory names it");
        } else if link_count > MAX_LINKS {
            report.find(
                id,
                what.clone(),
                format!("has link count {link_count}, and {MAX_LINKS} is the most"),
            );
        } else if is_counted && link_count != expected {
            report.find(id, what.clone(), format!("has link count {link_count}, and should have {expected}"));
        }
        if is_directory && names > u32::from(!is_root) {
            report.find(id, what, format!("is a directory with {names} names"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_takes_some_30_bytes_for_each_vnode() {
        let mut vnodes = Vnodes::default();
        let id = VnodeId::ROOT;
        for n in 0..3_000_000 {
            vnodes.push(Known { id, parent: id, link_count: 1, names: 1, subdirectories: 0 });
            let taken = vnodes.known.capacity() * size_of::<Known>();
            assert!(taken <= 32 * n + 64 * AT_ONCE, "{taken} bytes for {n} vnodes");
        }
    }
}
