//! Notes of what was replaced (Volume format 2): that none is missing, and none is left.

use super::Report;
use crate::VolumeError;
use crate::group::GroupHandle;
use crate::keys::{GroupId, Replaced, Snapshot};
use afs_store::{Store, after, lock};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Checks that a note may still be of use.
pub(super) fn check(
    store: &Store,
    groups: &BTreeMap<GroupId, Arc<GroupHandle>>,
    note: Replaced,
    report: &mut Report,
) -> Result<(), VolumeError> {
    let Replaced { at, version } = note;
    let what = || format!("note of vnode {} of volume group {}", version.vnode, version.group.0);
    let Some(group) = groups.get(&version.group) else {
        report.find(None, what(), "its group is not there");
        return Ok(());
    };
    let is_checked = {
        let state = lock(&group.state);
        !state.record.needs_sweep && !state.is_half && is_left(state.views.keys().copied(), note)
    };
    if is_checked && report.take(None, store.get(&version.key()).map_err(VolumeError::from))? == Some(None) {
        let (part, snapshot) = (version.part, version.snapshot.0);
        let why = format!("{part:?} of snapshot {snapshot}, replaced in {}, is not there", at.0);
        report.find(None, what(), why);
    }
    Ok(())
}

/// True if no view tells what was replaced from what came in its place. Where one does, the version may have gone early, as it said that there
/// is nothing: then its note goes when the view does.
pub(crate) fn is_left(mut views: impl Iterator<Item = Snapshot>, note: Replaced) -> bool {
    !views.any(|view| (note.version.snapshot..note.at).contains(&view))
}

/// True if it is noted that a version was replaced: in the snapshot of `note`, or in one before that no view tells from it.
pub(crate) fn is_noted(store: &Store, views: &[Snapshot], note: Replaced) -> Result<bool, VolumeError> {
    if store.get(&note.key())?.is_some() {
        return Ok(true);
    }
    let Replaced { at, version } = note;
    let before = views.iter().filter(|view| **view < at).max().map_or(0, |view| view.0);
    let end = after(&note.key().0);
    let mut from = Replaced { at: Snapshot(before.max(version.snapshot.0).saturating_add(1)), version };
    // Each look-up leads to a snapshot in which something was replaced.
    while from.at <= at
        && let Some((key, _)) = store.first(&from.key(), &end)?
    {
        let Some(found) = Replaced::parse(&key) else { break };
        if found.version == version {
            return Ok(true);
        }
        let is_before = found.at > from.at && found.key() < (Replaced { at: found.at, version }).key();
        from.at = match (is_before, found.at.0.checked_add(1)) {
            (true, _) => found.at,
            (false, Some(next)) => Snapshot(next),
            (false, None) => break,
        };
    }
    Ok(false)
}
