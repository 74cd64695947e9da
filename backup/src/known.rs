//! The files and links of the last backup by their vnodes, for those that an incremental dump only names: what is the same is taken from
//! there, whatever its name is now.

use crate::node;
use crate::repository::Indexed;
use afs_wire::ids::LocalFid;
use rustic_core::repofile::{Metadata, Node, NodeType, SnapshotFile};
use rustic_core::{DataId, LsOptions, RusticResult};
use std::collections::HashMap;

/// A file or link of the last backup. Millions of them are in memory at once.
#[derive(Debug)]
struct Known {
    unique: u32,
    kind: NodeType,
    meta: Metadata,
    content: Option<Box<[DataId]>>,
}

/// Those of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct KnownFiles(HashMap<u32, Known>);

impl KnownFiles {
    /// Reads those of a snapshot, without its directories: an incremental dump has all directories.
    pub(crate) fn of(repository: &Indexed, snapshot: &SnapshotFile) -> RusticResult<Self> {
        let root = repository.node_from_snapshot_and_path(snapshot, "")?;
        let mut known = HashMap::new();
        for entry in repository.ls(&root, &LsOptions::default())? {
            let (_, node) = entry?;
            let Some(fid) = node::fid(&node).filter(|_| !node.is_dir()) else { continue };
            let Node { node_type: kind, meta, content, .. } = node;
            let content = content.map(Vec::into_boxed_slice);
            known.insert(fid.vnode.0, Known { unique: fid.unique.0, kind, meta, content });
        }
        Ok(Self(known))
    }

    /// The node of a vnode that has not changed, with a new name.
    pub(crate) fn node(&self, name: &std::ffi::OsStr, fid: LocalFid) -> Option<Node> {
        let known = self.0.get(&fid.vnode.0).filter(|known| known.unique == fid.unique.0)?;
        let mut node = Node::new_node(name, known.kind.clone(), known.meta.clone());
        node.content = known.content.as_deref().map(<[DataId]>::to_vec);
        Some(node)
    }

    /// Tells whether it has a vnode.
    pub(crate) fn has(&self, fid: LocalFid) -> bool {
        self.0.get(&fid.vnode.0).is_some_and(|known| known.unique == fid.unique.0)
    }
}
