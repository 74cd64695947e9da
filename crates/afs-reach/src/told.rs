//! What is told upwards: those who keep what depends on where volumes are, and on which cells there are, hear of changes that a question
//! to a server or to the DNS has brought to light. What they do then is left to them.

use std::fmt;

use afs_wire::ids::VolumeId;

use crate::fid::CellIndex;

/// Hears of changes. It is called in the middle of an operation, so it waits for nobody.
pub trait Told: fmt::Debug + Send + Sync {
    /// A volume is at other servers than before, and no server takes locks with it.
    fn volume_moved(&self, cell: CellIndex, volume: VolumeId);

    /// The cell does not have this volume any more. There may be a new one of its name.
    fn volume_gone(&self, cell: CellIndex, volume: VolumeId);

    /// A cell is known that was not.
    fn cells_changed(&self);
}
