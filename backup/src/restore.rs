//! A backup restored into a folder by rustic. Owners and set-uid bits are restored only by root, and access lists as the extended attribute
//! `user.afs.acl`. `src/for_user.rs` restores what one user may read.

use crate::list::nodes_to;
use crate::repository::{Indexed, Store};
use crate::warnings;
use bytes::Bytes;
use rustic_core::repofile::{Node, SnapshotFile};
use rustic_core::{LocalDestination, LsOptions, RestoreOptions, RusticError};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// Restores into a folder, which is made if it is not there: the whole volume, or what is at a path in it.
pub(crate) fn to_folder(
    store: &Store,
    snapshot: &SnapshotFile,
    path: &Path,
    folder: &Path,
) -> Result<(), String> {
    let text = folder.to_str().ok_or("the folder's name is no text")?;
    let before = warnings::count();
    let indexed = store.indexed()?;
    let of_path = match path == Path::new("") {
        true => None,
        false => Some(find(&indexed, snapshot, path)?.pop().expect("it is the last")),
    };
    // A link that an earlier restore has left there would lead elsewhere.
    let own = make_own(folder, &snapshot.label)?;
    let full = Path::new(&snapshot.label).join(path);
    let inside = full.parent().unwrap_or(Path::new(""));
    if of_path.is_some() {
        fs::create_dir_all(folder.join(inside)).map_err(|error| format!("{}: {error}", own.display()))?;
    }
    let restored = || {
        let root = indexed.node_from_snapshot_and_path(snapshot, "")?;
        // Entries have paths from the node on that is listed; of a file that is its own name.
        let (listed, above, itself) = match of_path {
            None => (root, PathBuf::new(), None),
            Some(node) if node.is_dir() => (node.clone(), full.clone(), Some((full.clone(), node))),
            Some(node) => (node, inside.to_owned(), None),
        };
        let below = indexed.ls(&listed, &LsOptions::default())?;
        let below = below.map(move |entry| entry.map(|(path, node)| (above.join(path), node)));
        let nodes = itself.into_iter().map(Ok::<_, Box<RusticError>>).chain(below);
        let target = LocalDestination::new(text, true, false)?;
        let mut options = RestoreOptions::default();
        options.numeric_id = true;
        options.no_ownership = !rustix::process::geteuid().is_root();
        options.verify_existing = true;
        let plan = indexed.prepare_restore(&options, nodes.clone(), &target, false)?;
        indexed.restore(plan, &options, nodes, &target)
    };
    restored().map_err(|error| error.display_log())?;
    match warnings::count() - before {
        0 => Ok(()),
        _ => Err(format!("{text} lacks something: see above")),
    }
}

/// The nodes on the way to a path of a backup.
pub(crate) fn find(indexed: &Indexed, snapshot: &SnapshotFile, path: &Path) -> Result<Vec<Node>, String> {
    let nodes = nodes_to(indexed, snapshot, path)?;
    nodes.ok_or_else(|| {
        let backup = snapshot.id.to_string();
        format!("the backup {} of {} has no {}", &backup[..8], snapshot.label, path.display())
    })
}

/// Makes a folder for what is restored in one that may be there. Nobody else may enter it yet.
pub(crate) fn make_own(folder: &Path, name: &str) -> Result<PathBuf, String> {
    if name.is_empty() || name.contains('/') || matches!(name, "." | "..") {
        return Err("the backup is none of afar-backup's: restore it with restic".to_owned());
    }
    let own = folder.join(name);
    let made = fs::create_dir_all(folder).and_then(|()| DirBuilder::new().mode(0o700).create(&own));
    match made {
        Ok(()) => Ok(own),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(format!("{} is there: restore into another folder, or move it away", own.display()))
        }
        Err(error) => Err(format!("{}: {error}", own.display())),
    }
}

/// Reads the data of a backup's file, piece by piece.
pub(crate) fn read(
    indexed: &Indexed,
    node: &Node,
    mut give: impl FnMut(Bytes) -> io::Result<()>,
) -> io::Result<()> {
    let failed = |error: Box<RusticError>| io::Error::other(error.display_log());
    let file = indexed.open_file(node).map_err(failed)?;
    let mut at = 0;
    while at < node.meta.size {
        let length = usize::try_from(node.meta.size - at).unwrap_or(usize::MAX).min(PIECE_BYTES);
        let data = indexed.read_file_at(&file, at as usize, length).map_err(failed)?;
        if data.is_empty() {
            return Err(io::Error::other(format!("the backup has {at} of its {} bytes", node.meta.size)));
        }
        at += data.len() as u64;
        give(data)?;
    }
    Ok(())
}
