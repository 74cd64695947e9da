//! Damage that is found when a partition is opened: each such volume is offline, and the others are served (Volume
//! format 9).

use std::collections::BTreeMap;
use std::fmt;

use afs_wire::ids::VolumeId;

use crate::VolumeError;
use crate::keys::{GroupId, Snapshot};

/// A volume that cannot be shown.
#[derive(Debug, Clone)]
pub(crate) struct DamagedVolume {
    /// The damaged thing.
    pub(crate) what: String,
    /// The problem with it.
    pub(crate) why: String,
    /// The group, and what of it the volume shows, if that is known: a clone's snapshot, or what is newest.
    pub(crate) view: Option<(GroupId, Option<Snapshot>)>,
}

impl fmt::Display for DamagedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}; 'afar fsck' says more", self.what, self.why)
    }
}

/// All of that.
#[derive(Debug, Clone, Default)]
pub(crate) struct Damage {
    /// Volumes, by their ids.
    pub(crate) volumes: BTreeMap<VolumeId, DamagedVolume>,
    /// Groups whose own rows cannot be read: what is damaged, and what is wrong with it.
    pub(crate) groups: BTreeMap<GroupId, (String, String)>,
}

impl Damage {
    /// Notes a volume that is damaged; other errors are handed back, as they are not of it alone.
    pub(crate) fn of_volume(
        &mut self,
        id: VolumeId,
        view: Option<(GroupId, Option<Snapshot>)>,
        error: VolumeError,
    ) -> Result<(), VolumeError> {
        let VolumeError::Damaged { what, why } = error else { return Err(error) };
        self.volumes.insert(id, DamagedVolume { what, why, view });
        Ok(())
    }

    /// Notes a group that is damaged, as [`Damage::of_volume`].
    pub(crate) fn of_group(&mut self, group: GroupId, error: VolumeError) -> Result<(), VolumeError> {
        let VolumeError::Damaged { what, why } = error else { return Err(error) };
        self.groups.insert(group, (what, why));
        Ok(())
    }

    /// True if there is a volume that may show anything of any group, because its row cannot be read.
    pub(crate) fn hides_a_view(&self) -> bool {
        self.volumes.values().any(|damaged| damaged.view.is_none())
    }
}
