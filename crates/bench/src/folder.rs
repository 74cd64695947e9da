//! Folders on the disk that has the build: partitions, caches, mount points and the files beside them that they are compared
//! with are all on the same one.

use std::path::Path;

use afs_lab::real::folder::Folder;

/// A folder of this process alone, which goes with its guard; `name` says what it is for.
pub(crate) fn folder(name: &str) -> Folder {
    Folder::below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench-cells"), name)
}
