//! A vnode as a node of a repository, and back. The repository's fields have what restic expects of them, except for two: `inode` is the
//! vnode's number, and `ctime` its uniquifier and data version, as they are what changes with each change of a file. The times of AFS are
//! whole seconds.

use crate::acl;
use afs_dump::{VnodeAttributes, VnodeKind};
use afs_wire::acl::Acl;
use afs_wire::ids::{AfsTime, DataVersion, LocalFid, Uniquifier, ViceId, VnodeNumber, VolumeId};
use base64::prelude::{BASE64_STANDARD, Engine};
use rustic_core::jiff::Timestamp;
use rustic_core::repofile::{Metadata, Node, NodeType};
use serde_json::json;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The bits of Go's `fs.FileMode`, which restic stores.
const GO_DIRECTORY: u32 = 1 << 31;
const GO_SYMLINK: u32 = 1 << 27;
const GO_SPECIAL: [(u32, u16); 3] = [(1 << 23, 0o4000), (1 << 22, 0o2000), (1 << 20, 0o1000)];

/// Makes the node of a vnode. `target` is that of a symbolic link, or the text of a mount point.
pub(crate) fn of_vnode(
    name: &OsStr,
    volume: VolumeId,
    fid: LocalFid,
    attributes: &VnodeAttributes,
    target: &[u8],
) -> Node {
    let (kind, bits) = match attributes.kind {
        VnodeKind::File => (NodeType::File, 0),
        VnodeKind::Directory => (NodeType::Dir, GO_DIRECTORY),
        VnodeKind::Symlink => (NodeType::from_link(Path::new(OsStr::from_bytes(target))), GO_SYMLINK),
    };
    let length = attributes.length.unwrap_or(0);
    let mtime = Some(time(attributes.client_mod_time));
    let acl = attributes.acl.as_ref().filter(|_| attributes.kind != VnodeKind::Symlink);
    let meta = Metadata {
        mode: Some(go_mode(attributes.mode) | bits),
        mtime,
        // Without one, restic would set a date before all others.
        atime: mtime,
        ctime: Some(version_time(fid.unique, attributes.data_version)),
        uid: Some(attributes.owner.0.cast_unsigned()),
        gid: Some(attributes.group.0.cast_unsigned()),
        inode: fid.vnode.0.into(),
        device_id: volume.0.into(),
        size: if attributes.kind == VnodeKind::Directory { 0 } else { length },
        links: attributes.link_count.into(),
        ..acl.map_or_else(Metadata::default, with_acl)
    };
    Node::new_node(name, kind, meta)
}

/// Metadata of an access list alone. rustic does not export the type of an extended attribute, but its form in a repository is restic's.
fn with_acl(acl: &Acl) -> Metadata {
    let value = BASE64_STANDARD.encode(acl::to_text(acl));
    let attributes = json!({ "extended_attributes": [{ "name": acl::ATTRIBUTE, "value": value }] });
    let mut meta = serde_json::to_value(Metadata::default()).expect("it is what repositories have");
    meta.as_object_mut().expect("a structure").extend(attributes.as_object().expect("as above").clone());
    serde_json::from_value(meta).expect("it is what repositories have")
}

/// The vnode of a node: its number and uniquifier, and what a dump says of it. A directory's length is for who makes its pages.
///
/// # Errors
///
/// The reason why the node is none of a volume.
pub(crate) fn to_vnode(node: &Node, parent: VnodeNumber) -> Result<(LocalFid, VnodeAttributes), String> {
    let meta = &node.meta;
    let kind = match node.node_type {
        NodeType::File => VnodeKind::File,
        NodeType::Dir => VnodeKind::Directory,
        NodeType::Symlink { .. } => VnodeKind::Symlink,
        _ => return Err("is of a kind that no volume has".to_owned()),
    };
    let fid = fid(node).ok_or("does not say which vnode it is: it was not saved by afar-backup")?;
    let acl = meta.extended_attributes.iter().find(|attribute| attribute.name == acl::ATTRIBUTE);
    let acl = acl.and_then(|attribute| attribute.value.as_deref()).map(acl::from_text).transpose();
    let acl = acl.map_err(|line| format!("has an access list with the line '{line}', which is no entry"))?;
    let seconds = meta.mtime.map_or(0, |time| time.as_second()).clamp(0, u32::MAX.into()) as u32;
    let attributes = VnodeAttributes {
        kind,
        link_count: u16::try_from(meta.links).unwrap_or(u16::MAX),
        data_version: meta.ctime.and_then(versions).map_or(DataVersion(1), |(_, version)| version),
        client_mod_time: AfsTime(seconds),
        author: ViceId(meta.uid.unwrap_or(0).cast_signed()),
        owner: ViceId(meta.uid.unwrap_or(0).cast_signed()),
        group: ViceId(meta.gid.unwrap_or(0).cast_signed()),
        mode: afs_mode(meta.mode.unwrap_or(0)),
        parent,
        server_mod_time: AfsTime(seconds),
        acl,
        length: Some(meta.size),
    };
    Ok((fid, attributes))
}

/// The vnode that a node is of.
pub(crate) fn fid(node: &Node) -> Option<LocalFid> {
    let vnode = u32::try_from(node.meta.inode).ok().filter(|number| *number != 0)?;
    let (unique, _) = node.meta.ctime.and_then(versions)?;
    (unique.0 != 0).then_some(LocalFid { vnode: VnodeNumber(vnode), unique })
}

/// A time that two versions of a file do not share: uniquifier and data version as nanoseconds. The latest is in the year 2554.
pub(crate) fn version_time(unique: Uniquifier, version: DataVersion) -> Timestamp {
    let nanoseconds = i128::from(unique.0) << 32 | i128::from(version.0 as u32);
    Timestamp::from_nanosecond(nanoseconds).expect("the year is below 9999")
}

/// The uniquifier and data version of such a time.
fn versions(time: Timestamp) -> Option<(Uniquifier, DataVersion)> {
    let both = u64::try_from(time.as_nanosecond()).ok()?;
    Some((Uniquifier((both >> 32) as u32), DataVersion(both & 0xffff_ffff)))
}

/// The time of a date.
pub(crate) fn time(seconds: AfsTime) -> Timestamp {
    Timestamp::from_second(seconds.0.into()).expect("32 bits of seconds are a date")
}

fn go_mode(mode: u16) -> u32 {
    let special = GO_SPECIAL.iter().filter(|(_, bit)| mode & bit != 0).fold(0, |all, (go, _)| all | go);
    u32::from(mode & 0o777) | special
}

fn afs_mode(mode: u32) -> u16 {
    let special = GO_SPECIAL.iter().filter(|(go, _)| mode & go != 0).fold(0, |all, (_, bit)| all | bit);
    (mode & 0o777) as u16 | special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vnode_is_what_its_node_says() {
        for (kind, number, mode) in
            [(VnodeKind::File, 2, 0o4755), (VnodeKind::Directory, 3, 0o3777), (VnodeKind::Symlink, 4, 0o644)]
        {
            let attributes = VnodeAttributes {
                kind,
                link_count: 3,
                data_version: DataVersion(0xffff_fffe),
                client_mod_time: AfsTime(0xffff_ffff),
                author: ViceId(-7),
                owner: ViceId(-7),
                group: ViceId(9),
                mode,
                parent: VnodeNumber(1),
                server_mod_time: AfsTime(0xffff_ffff),
                acl: (kind == VnodeKind::Directory).then(Acl::administrators),
                length: Some(if kind == VnodeKind::Directory { 0 } else { 5 }),
            };
            let fid = LocalFid { vnode: VnodeNumber(number), unique: Uniquifier(u32::MAX) };
            let node = of_vnode(OsStr::new("name"), VolumeId(5), fid, &attributes, b"#root.cell.");
            assert_eq!(to_vnode(&node, VnodeNumber(1)), Ok((fid, attributes)));
        }
    }

    #[test]
    fn no_two_versions_share_a_time() {
        let times: Vec<Timestamp> = [(1, 1), (1, 2), (2, 1), (u32::MAX, 0), (u32::MAX, u32::MAX.into())]
            .into_iter()
            .map(|(unique, version)| version_time(Uniquifier(unique), DataVersion(version)))
            .collect();
        assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    }
}
