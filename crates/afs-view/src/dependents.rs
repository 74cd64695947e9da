//! What depends on where volumes are, and on which cells there are: it hears of changes from those who ask servers and the DNS.

use std::sync::Arc;

use afs_wire::ids::VolumeId;

use crate::data::locks::Locks;
use crate::events::{Change, Invalidations};
use crate::names::dynroot;
use crate::vnodes::table::Vnodes;
use afs_reach::fid::{CellIndex, Fid};
use afs_reach::told::Told;

/// The parts that hear of it.
#[derive(Debug)]
pub struct Dependents {
    /// The vnodes, which know what is mounted at them.
    pub vnodes: Arc<Vnodes>,
    /// The locks, which a server that gets a volume does not have.
    pub locks: Arc<Locks>,
    /// Those who keep copies.
    pub invalidations: Arc<Invalidations>,
}

impl Told for Dependents {
    fn volume_moved(&self, cell: CellIndex, volume: VolumeId) {
        self.locks.renew(cell, volume);
    }

    fn volume_gone(&self, cell: CellIndex, volume: VolumeId) {
        // What was mounted there is looked up by name again.
        for mount in self.invalidations.mounts.at(Fid::root_of(cell, volume)) {
            if let Some(vnode) = self.vnodes.get(mount) {
                vnode.set_mounted(None);
            }
        }
    }

    fn cells_changed(&self) {
        // Not waited for: the kernel may be in the middle of looking this name up.
        self.invalidations.mention(dynroot::ROOT, Change::Names);
    }
}
