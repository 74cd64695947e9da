//! What no directory names, and directories that hang from nothing but each other: they get a name in a directory for them.

use super::{BLOCK, Tree, is_dots, path, put_numbers, shown};
use crate::fsck::links::Known;
use crate::repair::names::{self, Name};
use crate::vnode_set::VnodeSet;
use crate::{VnodeId, VolumeError};
use afs_store::lock;
use afs_wire::ids::{Uniquifier, VnodeNumber};
use std::collections::BTreeSet;

/// The directory for what no directory names. Only administrators may look into it: nobody knows who might see the things before.
const FOLDER: &str = "lost+found";
/// Things in one such directory: half of what fits, with these names.
const FOLDER_MAX: usize = 15_000;

impl Tree<'_, '_, '_> {
    /// Directories that name each other in a ring hang from nothing: one of them loses its name, and is an orphan.
    pub(super) fn break_rings(&mut self) -> Result<(), VolumeError> {
        let mut good = VnodeSet::default();
        good.insert(VnodeNumber::ROOT);
        for directory in self.directories() {
            let (mut path, mut at) = (BTreeSet::new(), directory);
            while !good.contains(at) {
                let Some(&mut Known { id, parent, names, .. }) = self.vnodes.get_mut(at) else { break };
                if names == 0 {
                    path.insert(at);
                    break;
                }
                if !path.insert(at) {
                    self.cut(id, parent.vnode)?;
                    break;
                }
                at = parent.vnode;
            }
            path.into_iter().for_each(|number| good.insert(number));
        }
        Ok(())
    }

    /// Takes away the name that a directory has in another one.
    fn cut(&mut self, id: VnodeId, parent: VnodeNumber) -> Result<(), VolumeError> {
        let Some(record) = self.record(parent)? else { return Ok(()) };
        let found = names::read(self.volume, &record)?.names;
        let kept = |name: &&Name| !self.dropped.get(&parent).is_some_and(|gone| gone.contains(&name.slot));
        let name = found.iter().filter(kept).find(|name| name.id == id && !is_dots(&name.name));
        let Some(name) = name else { return Ok(()) };
        self.say(
            format!("directory {parent}"),
            format!("removes '{}': directory {} is above it", shown(&name.name), id.vnode),
        );
        self.drop_name(parent, name.slot);
        if let Some(known) = self.vnodes.get_mut(id.vnode) {
            known.names = 0;
        }
        if let Some(known) = self.vnodes.get_mut(parent) {
            known.subdirectories -= 1;
        }
        Ok(())
    }

    /// Gives a name to what has none.
    pub(super) fn attach_orphans(&mut self) -> Result<(), VolumeError> {
        let is_orphan = |known: &&Known| {
            known.names == 0 && known.id != VnodeId::ROOT && !self.is_unknown(known.parent.vnode)
        };
        let orphans: Vec<(VnodeId, VnodeId)> =
            self.vnodes.known.iter().filter(is_orphan).map(|known| (known.id, known.parent)).collect();
        if self.vnodes.get_mut(VnodeNumber::ROOT).is_none() || self.is_unknown(VnodeNumber::ROOT) {
            return Ok(());
        }
        for (id, parent) in orphans {
            let kind = if id.vnode.is_directory() { "DIR" } else { "FILE" };
            let name = format!("__ORPHAN{kind}__.{}.{}", id.vnode, id.unique.0);
            let is_there = self.vnodes.get_mut(parent.vnode).is_some_and(|known| known.id == parent);
            let (folder, above) = match self.partly.contains(&parent.vnode) && is_there {
                true => (parent, path(self.volume, parent.vnode)),
                false => self.folder()?,
            };
            let path = format!("{}/{name}", above.trim_end_matches('/'));
            self.say(format!("vnode {}", id.vnode), format!("names it {path}: no directory names it"));
            self.put_below(id.vnode, folder);
            self.added.entry(folder.vnode).or_default().push((name.into_bytes(), id));
            self.rebuilt.insert(folder.vnode);
        }
        Ok(())
    }

    /// The directory for orphans that has room for one more, and its path.
    fn folder(&mut self) -> Result<(VnodeId, String), VolumeError> {
        if let Some((id, path, count)) = &mut self.folder
            && *count < FOLDER_MAX
        {
            *count += 1;
            return Ok((*id, path.clone()));
        }
        let record = self.record(VnodeNumber::ROOT)?;
        let found = record.map(|root| names::read(self.volume, &root)).transpose()?;
        let gone = self.dropped.get(&VnodeNumber::ROOT).cloned().unwrap_or_default();
        let mut taken: BTreeSet<Vec<u8>> = found
            .into_iter()
            .flat_map(|found| found.names)
            .filter(|name| !gone.contains(&name.slot))
            .map(|name| name.name)
            .collect();
        taken.extend(self.added.get(&VnodeNumber::ROOT).into_iter().flatten().map(|(name, _)| name.clone()));
        let numbered = (1..).map(|n| format!("{FOLDER}.{n}"));
        let name =
            std::iter::once(FOLDER.to_owned()).chain(numbered).find(|name| !taken.contains(name.as_bytes()));
        let name = name.expect("there are more numbers than names");
        let path = format!("/{name}");
        let id = self.new_id()?;
        let status = self.new_status(id, VnodeId::ROOT);
        self.make(status);
        self.put_below(id.vnode, VnodeId::ROOT);
        self.added.entry(VnodeNumber::ROOT).or_default().push((name.into_bytes(), id));
        self.rebuilt.insert(VnodeNumber::ROOT);
        self.folder = Some((id, path.clone(), 1));
        Ok((id, path))
    }

    /// A number for a new directory.
    fn new_id(&mut self) -> Result<VnodeId, VolumeError> {
        let state = &mut *lock(&self.volume.group.state);
        let record = &mut state.record;
        let vnode = VnodeNumber(record.next_directory);
        record.next_directory = vnode.0.checked_add(2).ok_or(VolumeError::TooMany)?;
        let unique = u32::try_from(record.next_unique).map_err(|_| VolumeError::TooMany)?;
        record.next_unique += 1;
        let highest = record.next_unique;
        if state.reserved[0] < highest {
            state.reserved[0] = highest + BLOCK;
        }
        put_numbers(&mut self.rows, self.volume, state);
        Ok(VnodeId { vnode, unique: Uniquifier(unique) })
    }
}
