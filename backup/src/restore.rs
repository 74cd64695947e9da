//! A backup restored into a folder. Owners and set-uid bits are restored only by root, and access lists as the extended attribute
//! `user.afs.acl`.

use crate::repository::Store;
use crate::warnings;
use rustic_core::repofile::SnapshotFile;
use rustic_core::{LocalDestination, LsOptions, RestoreOptions};
use std::path::Path;

/// Restores into a folder, which is made if it is not there; what is in it besides stays.
pub(crate) fn to_folder(store: &Store, snapshot: &SnapshotFile, folder: &Path) -> Result<(), String> {
    let text = folder.to_str().ok_or("the folder's name is no text")?;
    let before = warnings::count();
    let indexed = store.indexed()?;
    let restored = || {
        let root = indexed.node_from_snapshot_and_path(snapshot, "")?;
        let nodes = indexed.ls(&root, &LsOptions::default())?;
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
