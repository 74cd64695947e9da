//! Which volumes are mounted where, as far as somebody has been there. What a mount point means is left to `names::mount_point`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use afs_reach::fid::Fid;

/// Mount points of one volume that are remembered; with more, the first stay.
const MOUNTS_PER_VOLUME_MAX: usize = 1000;

/// The volume roots that are mounted, and where, as far as somebody has been there.
#[derive(Debug, Default)]
pub struct Mounts {
    at: Mutex<HashMap<Fid, Vec<Fid>>>,
}

impl Mounts {
    fn lock(&self) -> MutexGuard<'_, HashMap<Fid, Vec<Fid>>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody came to this root by this mount point.
    pub(crate) fn note(&self, root: Fid, mount: Fid) {
        let mut table = self.lock();
        let at = table.entry(root).or_default();
        if !at.contains(&mount) && at.len() < MOUNTS_PER_VOLUME_MAX {
            at.push(mount);
        }
    }

    /// The mount points of a volume's root.
    pub(crate) fn at(&self, root: Fid) -> Vec<Fid> {
        self.lock().get(&root).cloned().unwrap_or_default()
    }
}
