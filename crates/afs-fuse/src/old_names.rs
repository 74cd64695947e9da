//! Names that others have taken from what the kernel still has by them.
//!
//! Linux does not ask the file system for a rename whose two names are one inode to it: it says yes at once. If another client has just
//! given a file the new name, the kernel may have the old one in its hands, and cannot be told to forget it: the rename has locked both
//! directories. So what is found under one name, while the kernel may have it by another that no longer counts, is not answered as the
//! same inode. A file that nobody has open gets a new node. Of what is open, and of directories, there is one inode only; there the
//! caller has to look the whole path up again (ESTALE), and a rename then finds that its old name is gone.

use std::sync::Arc;

use afs_client::{Fid, Found, Kind, User};
use fuse_dev::NodeId;

use crate::file_system::FileSystem;
use crate::nodes::{Forget, Node};
use crate::notices::send;

/// The number of times that a thread is told to look again: the kernel asks about a name that it has, and then, if it is told no, looks
/// it up.
const TIMES: usize = 2;

/// Threads that are told to look one node up again until the kernel has forgotten its old names; beyond that, no more are.
const TOLD_MAX: usize = 1024;

impl FileSystem {
    /// True if a thread has to look up again what it found under a name, as the kernel may have it by another name that is no longer its.
    pub(crate) fn has_to_look_again(
        self: &Arc<Self>,
        (user, thread): (User, u32),
        dir: &Node,
        name: &[u8],
        found: &Found,
    ) -> bool {
        let Some(node) = self.nodes.of_fid(found.fid) else { return false };
        let old = self.old_names(user, &node, (dir, name));
        if old.is_empty() {
            return false;
        }
        let is_directory = found.status.kind == Kind::Directory;
        if !is_directory && let Some(kept) = self.nodes.retire_closed(&node) {
            for (dir, name) in kept {
                self.forget_names(dir, vec![name], None);
            }
            return false;
        }
        let mut state = node.state();
        let is_first = state.told_again.is_empty();
        let told = state.told_again.iter().filter(|told| **told == thread).count();
        if told >= TIMES || state.told_again.len() >= TOLD_MAX {
            return false;
        }
        state.told_again.push(thread);
        drop(state);
        if is_first {
            self.forget_old_names(node, old);
        }
        true
    }

    /// The names by which the kernel may have a node that was just found under another, and that are its names no longer.
    fn old_names(&self, user: User, node: &Node, (dir, name): (&Node, &[u8])) -> Vec<(NodeId, Vec<u8>)> {
        if matches!(name, b"." | b"..") {
            return Vec::new();
        }
        let mut names = self.nodes.other_names(node.id, dir.id, name);
        names.retain(|(id, name)| {
            let is_name = |of: Fid| self.client.is_name_beside(user, (of, name), (dir.fid, node.fid));
            // For a change of ours the kernel has the directory locked, so no other rename has a name of it.
            !matches!(name.as_slice(), b"." | b"..")
                && !self.name_invalidations.is_changing(*id)
                && self.nodes.peek(*id).is_some_and(|of| !is_name(of.fid))
        });
        names
    }

    /// Has the kernel forget them, in the background: until then each thread is told once to look again.
    fn forget_old_names(self: &Arc<Self>, node: Arc<Node>, names: Vec<(NodeId, Vec<u8>)>) {
        let fs = Arc::clone(self);
        self.runtime.spawn_blocking(move || {
            for (dir, name) in names {
                send(&fs.notifier, &fs.in_flight.locks, &Forget::Name(dir, name.clone()));
                fs.nodes.note_place_forgotten(node.id, dir, &name);
            }
            node.state().told_again.clear();
        });
    }
}
