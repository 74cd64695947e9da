//! Backups as they are listed, found by what a user types, and compared.

use crate::repository::{Indexed, PARTIAL, Store};
use rustic_core::LsOptions;
use rustic_core::jiff::Timestamp;
use rustic_core::repofile::{Node, SnapshotFile};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// Prints the backups, the oldest first; those alone that have a file or folder, if one is named.
pub(crate) fn list(store: &Store, volume: Option<&str>, path: &Path) -> Result<(), String> {
    let indexed = (path != Path::new("")).then(|| store.indexed()).transpose()?;
    for snapshot in store.snapshots()? {
        if volume.is_some_and(|volume| snapshot.label != volume) {
            continue;
        }
        let found = indexed.as_ref().map(|indexed| nodes_to(indexed, &snapshot, path)).transpose()?;
        let file = match &found {
            None => String::new(),
            Some(None) => continue,
            Some(Some(nodes)) => nodes.last().map_or_else(String::new, version),
        };
        let mark = if snapshot.tags.contains(PARTIAL) { "  partial" } else { "" };
        let id = snapshot.id.to_string();
        let time = when(snapshot.time.timestamp());
        println!("{}  {time}  {}  {}{mark}{file}", &id[..8], snapshot.hostname, snapshot.label);
    }
    Ok(())
}

/// What a list says of a file.
fn version(node: &Node) -> String {
    let time = node.meta.mtime.map_or_else(String::new, |time| format!(" of {}", when(time)));
    match node.is_dir() {
        true => format!("  folder{time}"),
        false => format!("  {} bytes{time}", node.meta.size),
    }
}

/// A path within a volume, as users type it: `/` before or behind it does not count.
pub(crate) fn path(text: &str) -> Result<PathBuf, String> {
    let names = Path::new(text).components();
    let names = names.filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    let path: PathBuf = names.clone().collect();
    match names.clone().all(|part| matches!(part, Component::Normal(_))) && path != Path::new("") {
        true => Ok(path),
        false => Err("give a path within the volume, without '..'".to_owned()),
    }
}

/// The folder of a backup's volume, and what is on the way from there to a path. `None` if the backup does not have it.
pub(crate) fn nodes_to(
    indexed: &Indexed,
    snapshot: &SnapshotFile,
    path: &Path,
) -> Result<Option<Vec<Node>>, String> {
    let (mut tree, mut nodes) = (Some(snapshot.tree), Vec::new());
    for name in [OsStr::new(&snapshot.label)].into_iter().chain(path) {
        let Some(id) = tree else { return Ok(None) };
        let inside = indexed.get_tree(&id).map_err(|error| error.display_log())?.nodes;
        let Some(node) = inside.into_iter().find(|node| node.name() == name) else { return Ok(None) };
        tree = node.subtree;
        nodes.push(node);
    }
    Ok(Some(nodes))
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

/// Prints the paths that differ, from one on: `+` only in the later backup, `-` only in the earlier one, `M` with other contents, `U` with other
/// attributes.
pub(crate) fn diff(store: &Store, earlier: &str, later: &str, path: &Path) -> Result<(), String> {
    let (earlier, later) = (find(store, earlier)?, find(store, later)?);
    let indexed = store.indexed()?;
    let (old, mut new) = (nodes(&indexed, &earlier, path)?, nodes(&indexed, &later, path)?);
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

fn nodes(indexed: &Indexed, snapshot: &SnapshotFile, path: &Path) -> Result<BTreeMap<PathBuf, Node>, String> {
    let failed = |error: Box<rustic_core::RusticError>| error.display_log();
    let root = indexed.node_from_snapshot_and_path(snapshot, "").map_err(failed)?;
    let all = indexed.ls(&root, &LsOptions::default()).map_err(failed)?;
    let is_all = path == Path::new("");
    let below = Path::new(&snapshot.label).join(path);
    let is_meant = |path: &Path| is_all || path.starts_with(&below);
    let meant = all.filter(|entry| entry.as_ref().map_or(true, |(path, _)| is_meant(path)));
    meant.collect::<Result<_, _>>().map_err(failed)
}

fn when(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_within_its_volume() {
        for (text, is) in
            [("docs/letters", "docs/letters"), ("/docs//letters/", "docs/letters"), ("./a", "a")]
        {
            assert_eq!(path(text), Ok(is.into()), "{text}");
        }
        for text in ["", "/", ".", "..", "docs/../../other"] {
            assert!(path(text).is_err(), "{text}");
        }
    }
}
