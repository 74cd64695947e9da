//! The files and links of the last backup by their vnodes, for those that an incremental dump only names: what is the same is taken from
//! there, whatever its name is now. A volume may have millions of them, so each takes 80 bytes.

use crate::node;
use crate::repository::Indexed;
use afs_dump::{VnodeAttributes, VnodeKind};
use afs_wire::ids::{AfsTime, DataVersion, LocalFid, ViceId, VnodeNumber, VolumeId};
use rustic_core::repofile::{Node, SnapshotFile};
use rustic_core::{DataId, LsOptions};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A file or link of the last backup.
#[derive(Debug)]
struct Known {
    fid: LocalFid,
    version: u32,
    mtime: AfsTime,
    owner: ViceId,
    group: ViceId,
    mode: u16,
    link_count: u16,
    length: u64,
    data: Data,
}

/// The data of a file, or the target of a link.
#[derive(Debug)]
enum Data {
    Piece(DataId),
    Pieces(Box<[DataId]>),
    Target(Box<[u8]>),
}

/// Those of a snapshot, by number.
#[derive(Debug, Default)]
pub(crate) struct KnownFiles(Vec<Known>);

impl KnownFiles {
    /// Reads those of a snapshot, without its directories: an incremental dump has all directories.
    pub(crate) fn of(repository: &Indexed, snapshot: &SnapshotFile) -> Result<Self, String> {
        let failed = |error: Box<rustic_core::RusticError>| error.display_log();
        let root = repository.node_from_snapshot_and_path(snapshot, "").map_err(failed)?;
        let mut known = Vec::new();
        for entry in repository.ls(&root, &LsOptions::default()).map_err(failed)? {
            let (path, node) = entry.map_err(failed)?;
            // The volume's header is no vnode.
            if node.is_dir() || node::fid(&node).is_none() {
                continue;
            }
            let attributes = node::to_vnode(&node, VnodeNumber(0));
            known.push(Known::of(attributes.map_err(|why| format!("{}: {why}", path.display()))?, &node));
        }
        known.sort_unstable_by_key(|known| known.fid.vnode);
        Ok(Self(known))
    }

    /// The node of a vnode that has not changed, with a new name.
    pub(crate) fn node(&self, name: &OsStr, volume: VolumeId, fid: LocalFid) -> Option<Node> {
        self.find(fid).map(|known| known.node(name, volume))
    }

    /// Tells whether it has a vnode.
    pub(crate) fn has(&self, fid: LocalFid) -> bool {
        self.find(fid).is_some()
    }

    /// The bytes of a file; 0 for what is none.
    pub(crate) fn size(&self, fid: LocalFid) -> u64 {
        let file = self.find(fid).filter(|known| !matches!(known.data, Data::Target(_)));
        file.map_or(0, |known| known.length)
    }

    fn find(&self, fid: LocalFid) -> Option<&Known> {
        let at = self.0.binary_search_by_key(&fid.vnode, |known| known.fid.vnode).ok()?;
        Some(&self.0[at]).filter(|known| known.fid == fid)
    }
}

impl Known {
    fn of((fid, attributes): (LocalFid, VnodeAttributes), node: &Node) -> Self {
        let data = match (attributes.kind, node.content.as_deref().unwrap_or_default()) {
            (VnodeKind::Symlink, _) => Data::Target(node.node_type.to_link().as_os_str().as_bytes().into()),
            (VnodeKind::File | VnodeKind::Directory, [piece]) => Data::Piece(*piece),
            (VnodeKind::File | VnodeKind::Directory, pieces) => Data::Pieces(pieces.into()),
        };
        Self {
            fid,
            // A dump has no more of it.
            version: attributes.data_version.0 as u32,
            mtime: attributes.client_mod_time,
            owner: attributes.owner,
            group: attributes.group,
            mode: attributes.mode,
            link_count: attributes.link_count,
            length: attributes.length.unwrap_or(0),
            data,
        }
    }

    fn node(&self, name: &OsStr, volume: VolumeId) -> Node {
        let (kind, target) = match &self.data {
            Data::Piece(_) | Data::Pieces(_) => (VnodeKind::File, &[][..]),
            Data::Target(target) => (VnodeKind::Symlink, &**target),
        };
        let attributes = VnodeAttributes {
            kind,
            link_count: self.link_count,
            data_version: DataVersion(self.version.into()),
            client_mod_time: self.mtime,
            author: self.owner,
            owner: self.owner,
            group: self.group,
            mode: self.mode,
            parent: VnodeNumber(0),
            server_mod_time: self.mtime,
            acl: None,
            length: Some(self.length),
        };
        let mut node = node::of_vnode(name, volume, self.fid, &attributes, target);
        node.content = match &self.data {
            Data::Piece(piece) => Some(vec![*piece]),
            Data::Pieces(pieces) => Some(pieces.to_vec()),
            Data::Target(_) => None,
        };
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::Uniquifier;

    #[test]
    fn a_file_that_is_known_is_the_one_that_was_saved() {
        let piece = |n: u8| -> DataId { format!("{n:02x}").repeat(32).parse().expect("it is an id") };
        for (kind, pieces) in [
            (VnodeKind::File, Some(vec![])),
            (VnodeKind::File, Some(vec![piece(1)])),
            (VnodeKind::File, Some(vec![piece(1), piece(2)])),
            (VnodeKind::Symlink, None),
        ] {
            let attributes = VnodeAttributes {
                kind,
                link_count: 2,
                data_version: DataVersion(7),
                client_mod_time: AfsTime(1000),
                author: ViceId(3),
                owner: ViceId(4),
                group: ViceId(5),
                mode: 0o4711,
                parent: VnodeNumber(1),
                server_mod_time: AfsTime(1001),
                acl: None,
                length: Some(6),
            };
            let fid = LocalFid { vnode: VnodeNumber(8), unique: Uniquifier(9) };
            let mut node = node::of_vnode(OsStr::new("name"), VolumeId(7), fid, &attributes, b"#a.vol");
            node.content = pieces;
            let read = node::to_vnode(&node, VnodeNumber(1)).expect("it is one");
            let files = KnownFiles(vec![Known::of(read, &node)]);
            assert_eq!(files.node(OsStr::new("name"), VolumeId(7), fid), Some(node));
            assert!(!files.has(LocalFid { unique: Uniquifier(10), ..fid }));
            assert!(!files.has(LocalFid { vnode: VnodeNumber(10), ..fid }));
        }
    }

    #[test]
    fn a_file_that_is_known_takes_eighty_bytes() {
        assert!(size_of::<Known>() <= 80, "{}", size_of::<Known>());
    }
}
