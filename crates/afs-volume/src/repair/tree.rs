//! The tree of a volume: which names stay, what is in which directory, and the counts that follow from it. First all is looked at and
//! decided, then written, vnode by vnode.

mod orphans;

use super::names::{self, Name};
use super::rows::Rows;
use super::{Ledger, data};
use crate::fsck::links::{Known, Unreadable, Vnodes};
use crate::fsck::rows::each_record;
use crate::group::{self, GroupState};
use crate::keys::{self, Part};
use crate::pages::Directory;
use crate::records::{self, Counters, Layout, VnodeRecord};
use crate::{Kind, MAX_LINKS, Stamp, VnodeId, VnodeStatus, Volume, VolumeError};
use afs_store::lock;
use afs_wire::acl::Acl;
use afs_wire::directory::Slot;
use afs_wire::ids::{DataVersion, ViceId, VnodeNumber};
use std::collections::{BTreeMap, BTreeSet};

/// Data versions that are reserved at once, as elsewhere.
const BLOCK: u64 = 4096;
/// Directories above each other at most, in a path that is shown.
const DEPTH_MAX: usize = 100;

struct Tree<'a, 'l, 'u> {
    volume: &'a Volume,
    ledger: &'l mut Ledger<'u>,
    stamp: Stamp,
    vnodes: Vnodes,
    /// Directories of which pages are lost.
    partly: BTreeSet<VnodeNumber>,
    /// Names that go, by their places.
    dropped: BTreeMap<VnodeNumber, BTreeSet<Slot>>,
    /// Names that come.
    added: BTreeMap<VnodeNumber, Vec<(Vec<u8>, VnodeId)>>,
    /// Directories that are written anew.
    rebuilt: BTreeSet<VnodeNumber>,
    /// Vnodes that come to another directory, which `vnodes` has.
    moved: BTreeSet<VnodeNumber>,
    /// New directories.
    made: BTreeMap<VnodeNumber, VnodeRecord>,
    /// The directory for what no directory names, its path, and the number of things that came into it.
    folder: Option<(VnodeId, String, usize)>,
    version: Option<DataVersion>,
    is_changed: bool,
    rows: Rows<'a>,
}

/// Mends a volume, or what can be shown of it; returns the numbers of its vnodes that can be read.
pub(super) fn mend(
    volume: &Volume,
    ledger: &mut Ledger<'_>,
    stamp: Stamp,
) -> Result<Vec<VnodeNumber>, VolumeError> {
    // What came of a restore that is to go on is not looked at.
    if volume.is_restoring || lock(&volume.group.state).is_half {
        return Ok(Vec::new());
    }
    let mut tree = Tree {
        volume,
        ledger,
        stamp,
        vnodes: Vnodes::default(),
        partly: BTreeSet::new(),
        dropped: BTreeMap::new(),
        added: BTreeMap::new(),
        rebuilt: BTreeSet::new(),
        moved: BTreeSet::new(),
        made: BTreeMap::new(),
        folder: None,
        version: None,
        is_changed: false,
        rows: Rows::new(volume),
    };
    tree.find_vnodes()?;
    tree.find_names()?;
    tree.break_rings()?;
    tree.attach_orphans()?;
    tree.write()
}

impl Tree<'_, '_, '_> {
    fn say(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.ledger.say(Some(self.volume.id), what, why);
    }

    fn find_vnodes(&mut self) -> Result<(), VolumeError> {
        let (vnodes, mut unreadable) = (&mut self.vnodes, Unreadable::default());
        let look = |record: &VnodeRecord| {
            vnodes.push(Known::new(&record.status));
            Ok(())
        };
        let (ledger, id) = (&mut *self.ledger, self.volume.id);
        each_record(self.volume, look, |hidden, what, why| {
            if ledger.is_salvage() {
                ledger.lose(Some(id), hidden.to_string(), format!("{what}: {why}"));
            }
            unreadable.insert(hidden);
        })?;
        self.vnodes.unreadable = unreadable;
        let has_root = self.vnodes.get_mut(VnodeNumber::ROOT).is_some_and(|known| known.id == VnodeId::ROOT);
        if self.ledger.is_salvage() && !has_root && !self.is_empty() {
            // Its pages may be there, and are looked at as those of others.
            let status = self.new_status(VnodeId::ROOT, VnodeId::ROOT);
            self.ledger.lose(
                Some(self.volume.id),
                "/",
                "the root directory's row cannot be read: its owner and rights are lost",
            );
            self.make(status);
            self.partly.insert(VnodeNumber::ROOT);
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.vnodes.known.is_empty() && self.vnodes.unreadable.is_empty()
    }

    fn new_status(&self, id: VnodeId, parent: VnodeId) -> VnodeStatus {
        VnodeStatus {
            id,
            kind: Kind::Directory,
            link_count: 2,
            length: 0,
            data_version: DataVersion(0),
            author: self.stamp.who,
            owner: ViceId(0),
            group: ViceId(0),
            mode: 0o755,
            parent,
            client_mod_time: self.stamp.now,
            server_mod_time: self.stamp.now,
        }
    }

    /// Adds a new directory.
    fn make(&mut self, status: VnodeStatus) {
        let number = status.id.vnode;
        let record = VnodeRecord { status, layout: Layout::Pages, acl: Acl::administrators() };
        let at = self.vnodes.known.partition_point(|known| known.id.vnode < number);
        if self.vnodes.known.get(at).is_some_and(|known| known.id.vnode == number) {
            self.vnodes.known.remove(at);
        }
        self.vnodes.known.insert(at, Known::new(&status));
        self.made.insert(number, record);
        self.rebuilt.insert(number);
    }

    /// A vnode's row as it is, but for what was made.
    fn record(&self, number: VnodeNumber) -> Result<Option<VnodeRecord>, VolumeError> {
        if let Some(record) = self.made.get(&number) {
            return Ok(Some(record.clone()));
        }
        let found =
            group::vnode(&self.volume.shared.store, self.volume.group.id, number, self.volume.view())?;
        Ok(found.map(|(_, record)| record))
    }

    /// True if what a directory names, or that it is there at all, is not known.
    fn is_unknown(&self, directory: VnodeNumber) -> bool {
        !self.ledger.is_salvage() && !self.vnodes.is_read(directory)
    }

    fn count_subdirectory(&mut self, directory: VnodeNumber) {
        if let Some(known) = self.vnodes.get_mut(directory) {
            known.subdirectories += 1;
        }
    }

    fn drop_name(&mut self, directory: VnodeNumber, slot: Slot) {
        self.dropped.entry(directory).or_default().insert(slot);
        self.rebuilt.insert(directory);
    }

    fn directories(&self) -> Vec<VnodeNumber> {
        self.vnodes.known.iter().map(|known| known.id.vnode).filter(|number| number.is_directory()).collect()
    }

    /// Decides on each name of each directory.
    fn find_names(&mut self) -> Result<(), VolumeError> {
        let mut elsewhere: Vec<(VnodeNumber, Name)> = Vec::new();
        for directory in self.directories() {
            let Some(record) = self.record(directory)? else { continue };
            let found = names::read(self.volume, &record)?;
            let what = format!("directory {directory}");
            if !found.is_whole && !self.ledger.is_salvage() {
                self.vnodes.unread.push(directory);
                continue;
            }
            if !found.is_whole {
                if !self.made.contains_key(&directory) {
                    let path = path(self.volume, directory);
                    self.ledger.lose(
                        Some(self.volume.id),
                        path,
                        "pages of the directory cannot be read: names are lost",
                    );
                }
                self.partly.insert(directory);
                self.rebuilt.insert(directory);
            } else if !found.is_sound {
                self.say(what.clone(), "makes its pages anew: they contradict each other");
                self.rebuilt.insert(directory);
            }
            self.check_dots(&record.status, &found.names, &what);
            let mut met = BTreeSet::new();
            for name in found.names.into_iter().filter(|name| !is_dots(&name.name)) {
                let shown = shown(&name.name);
                if !met.insert(name.name.clone()) {
                    self.say(
                        what.clone(),
                        format!("removes the second name '{shown}' (vnode {})", name.id.vnode),
                    );
                    self.drop_name(directory, name.slot);
                    continue;
                }
                self.find_name(&record.status, name, &what, &mut elsewhere);
            }
        }
        for (directory, name) in elsewhere {
            self.find_elsewhere(directory, name);
        }
        Ok(())
    }

    fn check_dots(&mut self, status: &VnodeStatus, names: &[Name], what: &str) {
        let parent = if status.id == VnodeId::ROOT { status.id } else { status.parent };
        for (dots, expected) in [(&b"."[..], status.id), (b"..", parent)] {
            let mut found = names.iter().filter(|name| name.name == dots).map(|name| name.id);
            if (found.next(), found.next()) != (Some(expected), None) && self.rebuilt.insert(status.id.vnode)
            {
                self.say(what, format!("lets '{}' be vnode {}", shown(dots), expected.vnode));
            }
        }
    }

    /// Decides on a name, or leaves that for when all directories were looked at.
    fn find_name(
        &mut self,
        directory: &VnodeStatus,
        name: Name,
        what: &str,
        elsewhere: &mut Vec<(VnodeNumber, Name)>,
    ) {
        let (number, target) = (directory.id.vnode, name.id);
        let is_directory = target.vnode.is_directory();
        let shown = shown(&name.name);
        let is_unreadable = self.vnodes.unreadable.contains(target.vnode) && target != VnodeId::ROOT;
        match self.vnodes.get_mut(target.vnode) {
            Some(known) if known.id == target && target != VnodeId::ROOT => {
                if known.parent != directory.id {
                    elsewhere.push((number, name));
                } else if is_directory && known.names > 0 {
                    self.say(what, format!("removes '{shown}': directory {} has another name", target.vnode));
                    self.drop_name(number, name.slot);
                } else {
                    known.names += 1;
                    if is_directory {
                        self.count_subdirectory(number);
                    }
                }
            }
            None if is_unreadable && !self.ledger.is_salvage() => {
                if is_directory {
                    self.count_subdirectory(number);
                }
            }
            None if is_unreadable => {
                let path = format!("{}/{shown}", path(self.volume, number).trim_end_matches('/'));
                self.ledger.lose(
                    Some(self.volume.id),
                    path,
                    format!("the row of vnode {} cannot be read", target.vnode),
                );
                self.drop_name(number, name.slot);
            }
            _ => {
                let why = if target == VnodeId::ROOT { "is the root directory" } else { "is not there" };
                self.say(what, format!("removes '{shown}': vnode {} {why}", target.vnode));
                self.drop_name(number, name.slot);
            }
        }
    }

    /// A name outside of the directory that its vnode says: the directory gets the vnode if nobody else names it.
    fn find_elsewhere(&mut self, directory: VnodeNumber, name: Name) {
        let what = format!("directory {directory}");
        let is_directory = name.id.vnode.is_directory();
        let Some(id) = self.vnodes.get_mut(directory).map(|known| known.id) else { return };
        let Some(&mut Known { parent, names, .. }) = self.vnodes.get_mut(name.id.vnode) else { return };
        if self.is_unknown(parent.vnode) {
            // That one may name it, too.
            if is_directory {
                self.count_subdirectory(directory);
            }
            return;
        }
        let is_another = names > 0 && parent == id && !is_directory;
        if names > 0 && !is_another {
            let why = format!(
                "removes '{}': vnode {} is in directory {}",
                shown(&name.name),
                name.id.vnode,
                parent.vnode
            );
            self.say(what, why);
            return self.drop_name(directory, name.slot);
        }
        if !is_another {
            self.say(
                what,
                format!(
                    "takes vnode {} as '{}': its own directory does not name it",
                    name.id.vnode,
                    shown(&name.name)
                ),
            );
            self.put_below(name.id.vnode, id);
        }
        if let Some(known) = self.vnodes.get_mut(name.id.vnode) {
            known.names += u32::from(is_another);
        }
    }

    /// Notes that a vnode has one name, in a directory.
    fn put_below(&mut self, number: VnodeNumber, directory: VnodeId) {
        let Some(known) = self.vnodes.get_mut(number) else { return };
        known.names = 1;
        if known.parent != directory {
            known.parent = directory;
            self.moved.insert(number);
            if number.is_directory() {
                self.rebuilt.insert(number);
            }
        }
        if number.is_directory() {
            self.count_subdirectory(directory.vnode);
        }
    }

    /// A version that no client was told, for all that is changed.
    fn version(&mut self) -> DataVersion {
        if let Some(version) = self.version {
            return version;
        }
        let mut state = lock(&self.volume.group.state);
        let version = state.reserved[1].max(1);
        state.reserved[1] = version + BLOCK;
        if !self.volume.is_writable() {
            // A newer clone under the same id has no version that this one had.
            state.record.version_floor = version;
            state.record.floor_since = state.record.current;
        }
        put_numbers(&mut self.rows, self.volume, &state);
        self.version = Some(DataVersion(version));
        DataVersion(version)
    }

    /// Writes down all that was decided.
    fn write(mut self) -> Result<Vec<VnodeNumber>, VolumeError> {
        let (mut used, mut count) = (0, 0);
        let numbers: Vec<VnodeNumber> = self.vnodes.known.iter().map(|known| known.id.vnode).collect();
        for number in numbers {
            let Some(record) = self.record(number)? else { continue };
            let mut new = record.clone();
            self.mend_vnode(&mut new)?;
            if new != record || self.made.contains_key(&number) {
                new.status.server_mod_time = self.stamp.now;
                self.rows.put(number, Part::Status, Some(new.encode()))?;
                self.is_changed = true;
            }
            used += new.blocks_kib();
            count += 1;
            self.rows.flush_some(self.ledger)?;
        }
        self.write_counters(used, count)?;
        self.rows.flush(self.ledger)?;
        Ok(self.vnodes.known.iter().map(|known| known.id.vnode).collect())
    }

    fn mend_vnode(&mut self, record: &mut VnodeRecord) -> Result<(), VolumeError> {
        let number = record.status.id.vnode;
        let what = format!("vnode {number}");
        let Some(&mut Known { parent, link_count, names, subdirectories, .. }) = self.vnodes.get_mut(number)
        else {
            return Ok(());
        };
        record.status.parent = parent;
        let is_counted = match number.is_directory() {
            true => !self.is_unknown(number),
            false => !self.is_unknown(parent.vnode) && names > 0,
        };
        let expected = if number.is_directory() { 2 + subdirectories } else { names };
        if is_counted && link_count != expected && expected <= MAX_LINKS {
            if !self.made.contains_key(&number) {
                self.say(what.clone(), format!("sets its link count from {link_count} to {expected}"));
            }
            record.status.link_count = expected;
        }
        let length = match record.layout {
            Layout::Pages if self.rebuilt.contains(&number) => {
                record.status.data_version = self.version();
                Some(self.rebuild(record)?)
            }
            Layout::Pages => return Ok(()),
            Layout::Inline | Layout::Chunks => data::length(self.volume, record)?,
        };
        let Some(length) = length.filter(|length| *length != record.status.length) else { return Ok(()) };
        if !number.is_directory() {
            self.say(
                what,
                format!("sets its length from {} to {length}, which its data have", record.status.length),
            );
            record.status.data_version = self.version();
        }
        record.status.length = length;
        Ok(())
    }

    /// Writes the pages of a directory anew; returns their length.
    fn rebuild(&mut self, record: &VnodeRecord) -> Result<u64, VolumeError> {
        let VnodeStatus { id, parent, .. } = record.status;
        let old = names::read(self.volume, record)?;
        let gone = self.dropped.remove(&id.vnode).unwrap_or_default();
        let mut pages = Directory::new(id, if id == VnodeId::ROOT { id } else { parent })?;
        for Name { name, id, .. } in
            old.names.iter().filter(|name| !gone.contains(&name.slot) && !is_dots(&name.name))
        {
            pages.insert(name, *id)?;
        }
        for (name, id) in self.added.remove(&id.vnode).into_iter().flatten() {
            pages.insert(&name, id)?;
        }
        let length = pages.length();
        let mut count = 0;
        for (n, page) in pages.into_changed() {
            if self.volume.part(id.vnode, Part::Page(n)).ok().flatten().as_deref() != Some(&page[..]) {
                self.rows.put(id.vnode, Part::Page(n), Some(page))?;
            }
            count = n + 1;
        }
        (count..old.pages).try_for_each(|n| self.rows.put(id.vnode, Part::Page(n), None))?;
        Ok(length)
    }

    fn write_counters(&mut self, used_kib: u64, files: u32) -> Result<(), VolumeError> {
        if !self.ledger.is_salvage() && !self.vnodes.unreadable.is_empty() {
            // Nobody knows what those use.
            return Ok(());
        }
        let old = *lock(&self.volume.counters);
        let mut new = Counters { used_kib, files, ..old };
        if new != old {
            let why = format!(
                "sets the space in use from {} to {used_kib} KiB, and the number of vnodes from {} to {files}",
                old.used_kib, old.files
            );
            self.say("header", why);
        }
        if self.volume.is_writable() && (new != old || self.is_changed) {
            new.update_date = self.stamp.now.0;
        }
        if new != old {
            self.rows.put_other(keys::counters(self.volume.id), new.encode());
            *lock(&self.volume.counters) = new;
        }
        Ok(())
    }
}

fn put_numbers(rows: &mut Rows<'_>, volume: &Volume, state: &GroupState) {
    let group = volume.group.id;
    rows.put_other(keys::group(group), state.record.encode());
    rows.put_other(keys::group_reservation(group), records::encode_reservation(state.reserved));
}

/// The path of a vnode as far as it can be told, for people.
pub(super) fn path(volume: &Volume, number: VnodeNumber) -> String {
    let read = |number| {
        let found = group::vnode(&volume.shared.store, volume.group.id, number, volume.view());
        found.ok().flatten().map(|(_, record)| record)
    };
    let (mut path, mut at) = (String::new(), number);
    for _ in 0..DEPTH_MAX {
        if at == VnodeNumber::ROOT {
            return if path.is_empty() { "/".into() } else { path };
        }
        let Some(VnodeStatus { id, parent, .. }) = read(at).map(|record| record.status) else { break };
        let names = read(parent.vnode).and_then(|record| names::read(volume, &record).ok());
        let mut names = names.into_iter().flat_map(|found| found.names);
        let Some(name) = names.find(|name| name.id == id && !is_dots(&name.name)) else { break };
        path = format!("/{}{path}", shown(&name.name));
        at = parent.vnode;
    }
    format!("vnode {at}{path}")
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// As it is shown on terminals.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}
