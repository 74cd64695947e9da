//! What a user may read of a backup: the rules of a file server (`afs_fileserver`'s `access.rs`), by the access lists that the backup has. They
//! leave out what a server gives to administrators, and to the machine that somebody calls from.

use crate::node;
use afs_dump::VnodeAttributes;
use afs_wire::ids::{ViceId, VnodeNumber};
use afs_wire::rights::Rights;
use rustic_core::repofile::Node;

/// A file with neither of these bits, to read or run it, is for its owner alone.
const READABLE: u16 = 0o500;

/// A user, and the ids that count for them in access lists.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) name: String,
    id: ViceId,
    /// Their own, those of their groups, and those that all users have; sorted.
    ids: Vec<ViceId>,
}

impl User {
    /// Makes the user of a name and id.
    pub(crate) fn new(name: &str, id: ViceId, mut ids: Vec<ViceId>) -> Self {
        ids.push(id);
        ids.sort_unstable();
        ids.dedup();
        Self { name: name.to_owned(), id, ids }
    }

    /// The rights in a folder. If the backup does not say who has any, there are none.
    pub(crate) fn rights_in(&self, folder: &Node) -> Rights {
        let attributes = node::to_vnode(folder, VnodeNumber(0)).map(|(_, attributes)| attributes);
        attributes
            .ok()
            .and_then(|attributes| attributes.acl)
            .map_or(Rights::NONE, |acl| acl.rights_of(&self.ids))
    }

    /// Tells whether they may see the names in a folder where they have these rights, and where links lead. `volume` is the folder of the whole
    /// volume, whose owner may see all names.
    pub(crate) fn may_list(&self, rights: Rights, volume: &Node) -> bool {
        let owner = ViceId(volume.meta.uid.unwrap_or(0).cast_signed());
        rights.contains(Rights::LOOKUP)
            || owner == self.id
            || owner.0 < 0 && self.ids.binary_search(&owner).is_ok()
    }

    /// Tells whether they may read a file in a folder where they have these rights.
    pub(crate) fn may_read(&self, rights: Rights, file: &VnodeAttributes) -> bool {
        let is_own = file.owner == self.id;
        (rights.contains(Rights::READ) || is_own && rights.contains(Rights::INSERT))
            && (file.mode & READABLE != 0 || is_own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_dump::VnodeKind;
    use afs_wire::acl::Acl;
    use afs_wire::ids::{AfsTime, DataVersion, LocalFid, Uniquifier, VolumeId};
    use std::ffi::OsStr;

    const ALICE: ViceId = ViceId(7);
    const FRIENDS: ViceId = ViceId(-210);

    fn attributes(kind: VnodeKind, owner: ViceId, mode: u16, acl: Option<Acl>) -> VnodeAttributes {
        VnodeAttributes {
            kind,
            link_count: 1,
            data_version: DataVersion(1),
            client_mod_time: AfsTime(1),
            author: owner,
            owner,
            group: ViceId(0),
            mode,
            parent: VnodeNumber(1),
            server_mod_time: AfsTime(1),
            acl,
            length: Some(0),
        }
    }

    fn folder(owner: ViceId, acl: Option<Acl>) -> Node {
        let fid = LocalFid { vnode: VnodeNumber(1), unique: Uniquifier(1) };
        let attributes = attributes(VnodeKind::Directory, owner, 0o755, acl);
        node::of_vnode(OsStr::new("folder"), VolumeId(5), fid, &attributes, b"")
    }

    fn acl(positive: &[(ViceId, &str)], negative: &[(ViceId, &str)]) -> Option<Acl> {
        let list = |entries: &[(ViceId, &str)]| {
            entries.iter().map(|(id, rights)| (*id, Rights::from_letters(rights).expect("letters"))).collect()
        };
        Some(Acl { positive: list(positive), negative: list(negative) })
    }

    #[test]
    fn what_is_denied_or_not_known_is_not_given() {
        let alice = User::new("alice", ALICE, vec![FRIENDS, ViceId::SYSTEM_ANYUSER, ViceId::SYSTEM_AUTHUSER]);
        for (list, letters) in [
            (None, ""),
            (acl(&[], &[]), ""),
            (acl(&[(ALICE, "rl")], &[]), "rl"),
            (acl(&[(FRIENDS, "l"), (ViceId::SYSTEM_ANYUSER, "r")], &[]), "rl"),
            (acl(&[(ViceId(8), "rlidwka"), (ViceId::SYSTEM_ADMINISTRATORS, "rlidwka")], &[]), ""),
            (acl(&[(ALICE, "rl")], &[(FRIENDS, "r")]), "l"),
            (acl(&[(ViceId::SYSTEM_AUTHUSER, "rl")], &[(ALICE, "rl")]), ""),
        ] {
            assert_eq!(alice.rights_in(&folder(ViceId(0), list.clone())).letters(), letters, "{list:?}");
        }
        let mut damaged = folder(ViceId(0), acl(&[(ALICE, "rl")], &[]));
        damaged.meta.extended_attributes[0].value = Some(b"7 nonsense\n".to_vec());
        assert_eq!(alice.rights_in(&damaged), Rights::NONE);
    }

    #[test]
    fn a_file_needs_r_and_a_mode_or_that_its_owner_asks() {
        let alice = User::new("alice", ALICE, vec![]);
        for (rights, owner, mode, may) in [
            ("rl", ViceId(8), 0o644, true),
            ("l", ViceId(8), 0o644, false),
            ("rl", ViceId(8), 0o077, false),
            ("rl", ViceId(8), 0o100, true),
            ("rl", ALICE, 0, true),
            ("li", ALICE, 0o644, true),
            ("li", ViceId(8), 0o644, false),
        ] {
            let file = attributes(VnodeKind::File, owner, mode, None);
            let granted = Rights::from_letters(rights).expect("letters");
            assert_eq!(alice.may_read(granted, &file), may, "{rights} {owner:?} {mode:o}");
        }
    }

    #[test]
    fn names_are_for_those_with_l_and_the_volumes_owner() {
        let alice = User::new("alice", ALICE, vec![FRIENDS]);
        for (letters, owner, may) in [
            ("l", ViceId(0), true),
            ("r", ViceId(0), false),
            ("", ALICE, true),
            ("", FRIENDS, true),
            ("", ViceId(8), false),
        ] {
            let granted = Rights::from_letters(letters).expect("letters");
            assert_eq!(alice.may_list(granted, &folder(owner, None)), may, "{letters} {owner:?}");
        }
    }
}
