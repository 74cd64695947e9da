//! The vnodes of a volume that is checked, and whether directories name them as often as they say.

use super::{AT_ONCE, Report};
use crate::{MAX_LINKS, VnodeId, Volume};
use afs_wire::ids::VnodeNumber;

/// The facts that are kept of each vnode while a volume is checked, so that one of millions of files costs bounded
/// memory.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) id: VnodeId,
    pub(super) parent: VnodeId,
    pub(super) link_count: u32,
    /// Names in directories.
    pub(super) names: u32,
    /// Directories below it.
    pub(super) subdirectories: u32,
}

/// The vnodes of a volume.
#[derive(Debug, Default)]
pub(super) struct Vnodes {
    /// By number.
    pub(super) known: Vec<Known>,
    /// Directories whose names could not be read, by number.
    pub(super) unread: Vec<VnodeNumber>,
}

impl Vnodes {
    /// Adds the one with the next number. Grows by an eighth: a vector that doubles takes up to three times what is in it, hundreds of MB for
    /// millions of files. It does not take what the header says, which may be damaged.
    pub(super) fn push(&mut self, known: Known) {
        if self.known.len() == self.known.capacity() {
            self.known.reserve_exact(AT_ONCE.max(self.known.len() / 8));
        }
        self.known.push(known);
    }

    pub(super) fn get_mut(&mut self, number: VnodeNumber) -> Option<&mut Known> {
        let i = self.known.binary_search_by_key(&number, |known| known.id.vnode).ok()?;
        Some(&mut self.known[i])
    }

    pub(super) fn is_read(&self, directory: VnodeNumber) -> bool {
        self.unread.binary_search(&directory).is_err()
    }
}

pub(super) fn check_links(volume: &Volume, vnodes: &Vnodes, report: &mut Report) {
    let id = Some(volume.id());
    if !vnodes.known.is_empty() && vnodes.known.iter().all(|known| known.id != VnodeId::ROOT) {
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
