//! A vnode's record in a dump: the values of its tags, and what is wrong with a vnode by itself. The order of tags and the data behind
//! are left to the parent.

use super::{Reader, State, Step};
use crate::error::{DumpError, Fault};
use crate::fields::number;
use crate::records::{VnodeAttributes, VnodeKind, VnodeRecord};
use afs_wire::acl::Acl;
use afs_wire::directory::{PAGE_SIZE, PAGES_MAX};
use afs_wire::ids::{AFSPATHMAX, AfsTime, DataVersion, LocalFid, ViceId, VnodeNumber};

/// A vnode that has been read in part.
#[derive(Debug, Clone)]
pub(super) struct VnodeBuilder {
    pub(super) at: u64,
    pub(super) record: VnodeRecord,
    /// Filled as tags come.
    pub(super) attributes: VnodeAttributes,
    /// A type of 0 is no vnode.
    pub(super) has_kind: bool,
    pub(super) has_attributes: bool,
    /// True if it has been told, which is when its data begin.
    pub(super) is_told: bool,
}

impl VnodeBuilder {
    pub(super) fn new(fid: LocalFid, at: u64) -> Self {
        let attributes = VnodeAttributes {
            kind: VnodeKind::File,
            link_count: 0,
            data_version: DataVersion(0),
            client_mod_time: AfsTime(0),
            author: ViceId(0),
            owner: ViceId(0),
            group: ViceId(0),
            mode: 0,
            parent: VnodeNumber(0),
            server_mod_time: AfsTime(0),
            acl: None,
            length: None,
        };
        let record = VnodeRecord { fid, attributes: None };
        Self { at, record, attributes, has_kind: false, has_attributes: false, is_told: false }
    }
}

impl Reader {
    pub(super) fn handle_vnode_value<'i>(&mut self, tag: u8, held: &[u8]) -> Result<Step<'i>, DumpError> {
        if self.vnode.is_told {
            return Err(self.bad_vnode("has attributes behind its data"));
        }
        self.vnode.has_attributes = true;
        let attributes = &mut self.vnode.attributes;
        let value = if held.len() <= 8 { number(held) } else { 0 };
        let word = value as u32;
        match tag {
            b't' => {
                self.vnode.has_kind = true;
                attributes.kind = match word {
                    1 => VnodeKind::File,
                    2 => VnodeKind::Directory,
                    3 => VnodeKind::Symlink,
                    _ => return Err(self.bad_vnode("is neither a file nor a directory nor a symbolic link")),
                };
            }
            b'l' => attributes.link_count = word as u16,
            b'v' => attributes.data_version = DataVersion(word.into()),
            b'm' => attributes.client_mod_time = AfsTime(word),
            b'a' => attributes.author = ViceId(word.cast_signed()),
            b'o' => attributes.owner = ViceId(word.cast_signed()),
            b'g' => attributes.group = ViceId(word.cast_signed()),
            b'b' => attributes.mode = word as u16,
            b'p' => attributes.parent = VnodeNumber(word),
            b's' => attributes.server_mod_time = AfsTime(word),
            b'A' => {
                let stored = held.try_into().expect("an access list has its size");
                match Acl::from_stored(stored) {
                    Ok(acl) => attributes.acl = Some(acl),
                    Err(why) => {
                        let directory = self.vnode.record.fid;
                        return Err(self.at_item(Fault::BadAcl { directory, why }));
                    }
                }
            }
            _ => {
                self.complete_vnode(Some(value))?;
                self.vnode.is_told = true;
                self.state = match self.vnode.attributes.kind {
                    _ if value == 0 => State::Tag,
                    VnodeKind::Directory => {
                        State::Pages { next: 0, count: (value / PAGE_SIZE as u64) as u32 }
                    }
                    VnodeKind::File | VnodeKind::Symlink => State::Data(value),
                };
                return Ok(Step::Vnode);
            }
        }
        Ok(Step::Go)
    }

    /// Checks the record of a vnode whose attributes were all read. It may be told then.
    pub(super) fn complete_vnode(&mut self, length: Option<u64>) -> Result<(), DumpError> {
        let VnodeBuilder { record, attributes, .. } = &self.vnode;
        let is_directory = record.fid.vnode.is_directory();
        let why = match (attributes.kind, length) {
            _ if !self.vnode.has_attributes => None,
            _ if !self.vnode.has_kind => Some("does not say what it is"),
            (VnodeKind::Directory, _) if !is_directory => Some("is a directory and has a file's number"),
            (VnodeKind::File | VnodeKind::Symlink, _) if is_directory => {
                Some("has a directory's number and is none")
            }
            (VnodeKind::Directory, None | Some(0)) => Some("is a directory without pages"),
            (VnodeKind::Directory, Some(length)) if !length.is_multiple_of(PAGE_SIZE as u64) => {
                Some("is a directory whose length is no number of pages")
            }
            (VnodeKind::Directory, Some(length)) if length > (PAGES_MAX * PAGE_SIZE) as u64 => {
                Some("is a directory of more pages than one can have")
            }
            (VnodeKind::Directory, _) if attributes.acl.is_none() => {
                Some("is a directory without an access list")
            }
            (VnodeKind::Symlink, Some(length)) if length > AFSPATHMAX as u64 => {
                Some("is a symbolic link that is longer than one can be")
            }
            (VnodeKind::File, Some(length)) if length > i64::MAX as u64 => {
                Some("is a file that is longer than one can be")
            }
            _ => None,
        };
        if let Some(why) = why {
            return Err(self.bad_vnode(why));
        }
        if self.vnode.has_attributes {
            self.vnode.attributes.length = length;
            self.vnode.record.attributes = Some(self.vnode.attributes.clone());
        }
        Ok(())
    }
}
