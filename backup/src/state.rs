//! What a backup notes of its volume, in the snapshot's description: whether the volume has changed since, and whether only changes
//! need to be dumped.

use crate::cell::Located;
use crate::databases;
use crate::repository::PARTIAL;
use afs_wire::afsvol::VolintInfo;
use rustic_core::repofile::SnapshotFile;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::time::Duration;

/// A volume that has not changed for so long before a backup has nothing of the backup's time that the backup lacks: changes have whole
/// seconds, and the clocks of two machines may differ.
const SETTLED: Duration = Duration::from_secs(60);

/// The copy of a volume that was backed up, and its state before the backup began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    volume: u32,
    server: Ipv4Addr,
    partition: i32,
    /// The dates of its making and of this copy's. Either changes when the volume is moved or restored.
    created: u32,
    copied: u32,
    /// The date and the count of its changes.
    pub(crate) updated: u32,
    updates: i32,
    /// The time of the backup, by the clock of the machine that made it.
    taken: u64,
}

impl State {
    /// The state that a server tells of.
    pub(crate) fn of(at: &Located, info: &VolintInfo, now: Duration) -> Self {
        Self {
            volume: at.id.0,
            server: at.server,
            partition: at.partition.0,
            created: info.creation_date.0,
            copied: info.copy_date.0,
            updated: info.update_date.0,
            updates: info.spare2,
            taken: now.as_secs(),
        }
    }

    /// The state that a snapshot notes.
    pub(crate) fn of_snapshot(snapshot: &SnapshotFile) -> Option<Self> {
        serde_json::from_str(snapshot.description.as_deref()?).ok()
    }

    /// The text of a snapshot's description.
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("numbers and an address")
    }

    /// True if changes alone bring a backup of the earlier state to this one: it is the same copy, and was changed since.
    pub(crate) fn continues(&self, earlier: &Self) -> bool {
        let copy = |state: &Self| (state.volume, state.server, state.partition, state.created, state.copied);
        copy(self) == copy(earlier) && self.updated >= earlier.updated
    }

    /// True if the volume is as it was at the earlier backup.
    pub(crate) fn is_unchanged(&self, earlier: &Self) -> bool {
        self.continues(earlier)
            && (self.updated, self.updates) == (earlier.updated, earlier.updates)
            && earlier.taken >= u64::from(earlier.updated) + SETTLED.as_secs()
    }
}

/// The latest whole backup of a volume.
pub(crate) fn latest_good<'a>(
    snapshots: &'a [SnapshotFile],
    cell: &str,
    volume: &str,
) -> Option<&'a SnapshotFile> {
    snapshots.iter().filter(|snapshot| is_of(snapshot, cell, volume) && is_good(snapshot)).max()
}

/// True if a snapshot is one of a volume.
pub(crate) fn is_of(snapshot: &SnapshotFile, cell: &str, volume: &str) -> bool {
    snapshot.hostname == cell && snapshot.label == volume
}

/// True if a snapshot lacks nothing.
pub(crate) fn is_good(snapshot: &SnapshotFile) -> bool {
    !snapshot.tags.contains(PARTIAL) && is_ours(snapshot)
}

/// True if a snapshot is one of ours: others may use the repository too.
pub(crate) fn is_ours(snapshot: &SnapshotFile) -> bool {
    snapshot.label == databases::LABEL || State::of_snapshot(snapshot).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let server = Ipv4Addr::LOCALHOST;
        State { volume: 1, server, partition: 0, created: 5, copied: 6, updated: 100, updates: 7, taken: 200 }
    }

    #[test]
    fn only_a_volume_that_had_settled_counts_as_unchanged() {
        let now = State { taken: 900, ..state() };
        assert!(now.is_unchanged(&state()));
        assert!(
            !now.is_unchanged(&State { taken: 159, ..state() }),
            "changed within the second of the backup"
        );
        assert!(!State { updates: 8, ..now.clone() }.is_unchanged(&state()));
        assert!(!State { updated: 101, ..now }.is_unchanged(&state()));
    }

    #[test]
    fn another_copy_is_dumped_in_full() {
        assert!(State { updated: 300, ..state() }.continues(&state()));
        for other in [
            State { volume: 2, ..state() },
            State { server: Ipv4Addr::new(10, 0, 0, 1), ..state() },
            State { partition: 1, ..state() },
            State { created: 6, ..state() },
            State { copied: 7, ..state() },
            State { updated: 99, ..state() },
        ] {
            assert!(!other.continues(&state()), "{other:?}");
        }
    }
}
