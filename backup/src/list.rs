//! Backups as they are listed, found by what a user types, and compared.

use crate::repository::{Indexed, PARTIAL, Store};
use rustic_core::LsOptions;
use rustic_core::jiff::Timestamp;
use rustic_core::repofile::{Node, SnapshotFile};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Prints the backups, the oldest first.
pub(crate) fn list(store: &Store, volume: Option<&str>) -> Result<(), String> {
    for snapshot in store.snapshots()? {
        if volume.is_none_or(|volume| snapshot.label == volume) {
            let mark = if snapshot.tags.contains(PARTIAL) { "  partial" } else { "" };
            let id = snapshot.id.to_string();
            println!("{}  {}  {}  {}{mark}", &id[..8], when(&snapshot), snapshot.hostname, snapshot.label);
        }
    }
    Ok(())
}

/// Finds a backup: by the beginning of its id, as VOLUME for the latest one that is whole, or as VOLUME@TIME.
pub(crate) fn find(store: &Store, wanted: &str) -> Result<SnapshotFile, String> {
    let snapshots = store.snapshots()?;
    let by_id = || snapshots.iter().filter(|snapshot| snapshot.id.to_string().starts_with(wanted));
    if wanted.len() >= 4 && by_id().count() == 1 {
        return Ok(by_id().next().expect("there is one").clone());
    }
    let (volume, until) = match wanted.rsplit_once('@') {
        None => (wanted, None),
        Some((volume, time)) => {
            let time: Timestamp = time
                .parse()
                .map_err(|error| format!("'{time}' is no time such as 2026-11-30T03:00:00Z: {error}"))?;
            (volume, Some(time))
        }
    };
    let is_it = |snapshot: &&SnapshotFile| {
        snapshot.label == volume
            && !snapshot.tags.contains(PARTIAL)
            && until.is_none_or(|until| snapshot.time.timestamp() <= until)
    };
    let found = snapshots.iter().filter(is_it).max().cloned();
    found.ok_or_else(|| {
        format!(
            "there is no backup '{wanted}', nor a whole one of a volume of that name: see afar-backup list"
        )
    })
}

/// Prints the paths that differ: `+` only in the later backup, `-` only in the earlier one, `M` with other contents, `U` with other
/// attributes.
pub(crate) fn diff(store: &Store, earlier: &str, later: &str) -> Result<(), String> {
    let (earlier, later) = (find(store, earlier)?, find(store, later)?);
    let indexed = store.indexed()?;
    let (old, mut new) = (nodes(&indexed, &earlier)?, nodes(&indexed, &later)?);
    let mut lines = BTreeMap::new();
    for (path, was) in old {
        let mark = match new.remove(&path) {
            None => '-',
            Some(is) if (&is.node_type, &is.content) != (&was.node_type, &was.content) => 'M',
            Some(is) if attributes(&is) != attributes(&was) => 'U',
            Some(_) => continue,
        };
        lines.insert(path, mark);
    }
    lines.extend(new.into_keys().map(|path| (path, '+')));
    for (path, mark) in lines {
        println!("{mark} {}", path.display());
    }
    Ok(())
}

/// The attributes that users set.
fn attributes(node: &Node) -> impl PartialEq + use<> {
    let meta = &node.meta;
    let dates = meta.mtime.filter(|_| !node.is_dir());
    (meta.mode, meta.uid, meta.gid, dates, meta.extended_attributes.clone())
}

fn nodes(indexed: &Indexed, snapshot: &SnapshotFile) -> Result<BTreeMap<PathBuf, Node>, String> {
    let failed = |error: Box<rustic_core::RusticError>| error.display_log();
    let root = indexed.node_from_snapshot_and_path(snapshot, "").map_err(failed)?;
    let all = indexed.ls(&root, &LsOptions::default()).map_err(failed)?;
    all.collect::<Result<_, _>>().map_err(failed)
}

fn when(snapshot: &SnapshotFile) -> String {
    snapshot.time.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
