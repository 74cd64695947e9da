//! Changes of entries: each function looks at the database, makes the checks of stock servers in their order
//! (PTDB notes 10), and says which rows change. Making entries is in `create.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::caller::Caller;
use crate::database::Rows;
use crate::slots::free_row;

use super::access::{CallerEntry, Right, Rules, may};
use super::create::correct_group_name;
use super::errors::PtError;
use super::image::{HEADER_KEY, MAX_SLOTS, Ptdb, View, entry_key};
use super::membership::{ADMINISTRATORS, ANONYMOUS, ANY_USER, AUTH_USER, is_member};
use super::records::{Entry, Flags, Header, MAX_NAME};

/// Most members of a group, and groups of a user: what a list can carry (PTDB notes 2).
const MAX_LIST: usize = 500_000;

/// The quota of those who have none of their own.
pub(crate) const DEFAULT_QUOTA: i32 = 20;

/// The database as a change has made it so far.
pub(crate) struct Draft<'a> {
    base: &'a Ptdb,
    pub(crate) rules: &'a Rules,
    /// Seconds since 1970.
    pub(crate) now: u32,
    pub(crate) header: Header,
    /// Entries that are changed, by place.
    changed: BTreeMap<u32, Entry>,
    /// Places that are free now, and the free place behind each.
    freed: BTreeMap<u32, Option<u32>>,
    /// What has become of ids and names: the place of each, or that it is not there any more.
    ids: BTreeMap<i32, Option<u32>>,
    names: BTreeMap<Vec<u8>, Option<u32>>,
}

impl View for Draft<'_> {
    fn by_id(&self, id: i32) -> Option<&Entry> {
        self.entry(self.slot_of(id)?)
    }

    fn by_name(&self, name: &[u8]) -> Option<&Entry> {
        let slot = self.names.get(name).copied().unwrap_or_else(|| self.base.slot_of_name(name));
        self.entry(slot?)
    }
}

impl<'a> Draft<'a> {
    pub(crate) fn new(base: &'a Ptdb, rules: &'a Rules, now: u32) -> Self {
        Self {
            base,
            rules,
            now,
            header: base.header(),
            changed: BTreeMap::new(),
            freed: BTreeMap::new(),
            ids: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    fn slot_of(&self, id: i32) -> Option<u32> {
        self.ids.get(&id).copied().unwrap_or_else(|| self.base.slot_of(id))
    }

    fn entry(&self, slot: u32) -> Option<&Entry> {
        if self.freed.contains_key(&slot) {
            return None;
        }
        self.changed.get(&slot).or_else(|| self.base.slots().get(slot))
    }

    /// An entry and its place.
    pub(crate) fn find(&self, id: i32) -> Option<(u32, Entry)> {
        let slot = self.slot_of(id)?;
        Some((slot, self.entry(slot)?.clone()))
    }

    /// Sets the entry at a place.
    pub(crate) fn put(&mut self, slot: u32, entry: Entry) {
        self.forget(slot);
        self.freed.remove(&slot);
        self.ids.insert(entry.id, Some(slot));
        self.names.insert(entry.name.clone(), Some(slot));
        self.changed.insert(slot, entry);
    }

    /// Takes the id and the name of a place's entry away from it.
    fn forget(&mut self, slot: u32) {
        if let Some((id, name)) = self.entry(slot).map(|old| (old.id, old.name.clone())) {
            self.ids.insert(id, None);
            self.names.insert(name, None);
        }
    }

    /// A place for an entry.
    pub(crate) fn allocate(&mut self) -> Result<u32, PtError> {
        if let Some(slot) = self.header.free {
            let next = self.freed.get(&slot).copied().unwrap_or_else(|| self.base.slots().next_free(slot));
            self.header.free = next;
            return Ok(slot);
        }
        let new = self.changed.keys().next_back().map_or(0, |slot| slot + 1);
        let slot = self.base.slots().len().max(new);
        if slot < MAX_SLOTS { Ok(slot) } else { Err(PtError::DatabaseFailed) }
    }

    fn free(&mut self, slot: u32) {
        self.forget(slot);
        self.changed.remove(&slot);
        self.freed.insert(slot, self.header.free);
        self.header.free = Some(slot);
    }

    pub(crate) fn finish(self, rows: &mut Rows) {
        for (slot, next) in &self.freed {
            rows.put(entry_key(*slot), free_row(*next));
        }
        for (slot, entry) in &self.changed {
            rows.put(entry_key(*slot), entry.to_row());
        }
        if self.header != self.base.header() {
            rows.put(HEADER_KEY.to_vec(), self.header.to_row());
        }
    }

    /// True if this id may do everything.
    pub(crate) fn is_administrator(&self, id: i32) -> bool {
        is_member(self, self.rules, id, ADMINISTRATORS)
    }

    fn may(&self, caller: i32, entry: Option<&Entry>, right: Right) -> bool {
        may(self, self.rules, caller, entry, right)
    }

    /// Adds an id to an entry's list: a member to a group, or a group to a user.
    pub(crate) fn add_to(&mut self, entry: i32, id: i32) -> Result<(), PtError> {
        self.change_list(entry, id, |entry| &mut entry.list, true)
    }

    /// Removes an id from an entry's list.
    fn remove_from(&mut self, entry: i32, id: i32) -> Result<(), PtError> {
        self.change_list(entry, id, |entry| &mut entry.list, false)
    }

    fn change_list(
        &mut self,
        entry: i32,
        id: i32,
        list: fn(&mut Entry) -> &mut Vec<i32>,
        is_added: bool,
    ) -> Result<(), PtError> {
        if entry == id {
            return Err(PtError::Inconsistent);
        }
        let (slot, mut entry) = self.find(entry).ok_or(PtError::NoEntry)?;
        if is_added {
            entry.added = self.now;
        } else {
            entry.removed = self.now;
        }
        let list = list(&mut entry);
        match (list.binary_search(&id), is_added) {
            (Ok(_), true) => return Err(PtError::IdExists),
            (Err(_), false) => return Err(PtError::NoEntry),
            (Err(_), true) if list.len() >= MAX_LIST => return Err(PtError::NoMore),
            (Err(at), true) => list.insert(at, id),
            (Ok(at), false) => drop(list.remove(at)),
        }
        self.put(slot, entry);
        Ok(())
    }

    /// What the member's entry has of a group: its list, or if it is a group too that of the groups that it is in.
    fn change_membership(&mut self, member: &Entry, group: i32, is_added: bool) -> Result<(), PtError> {
        let list: fn(&mut Entry) -> &mut Vec<i32> =
            if member.is_group() { |entry| &mut entry.supergroups } else { |entry| &mut entry.list };
        self.change_list(member.id, group, list, is_added)
    }
}

/// The changes of an entry (SetFieldsEntry).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldChange {
    /// The bits of who may see and change it that are set, and what to.
    pub privacy: Option<(u16, u16)>,
    /// The number of groups that it may make.
    pub group_quota: Option<i32>,
    /// The number of users of other cells that it may make.
    pub user_quota: Option<i32>,
}

/// The changes of an entry (ChangeEntry).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renaming {
    /// The name; empty to leave it, but for the owner's part if that changes.
    pub name: Vec<u8>,
    /// The owner; 0 to leave it.
    pub owner: i32,
    /// The id; 0 to leave it.
    pub id: i32,
}

impl Ptdb {
    /// Adds a user to a group (AddToGroup), or a group if groups may be in groups.
    ///
    /// # Errors
    ///
    /// If the caller may not, there are no such entries, or the user is in the group.
    pub fn add_to_group(
        &self,
        rules: &Rules,
        caller: &Caller,
        id: i32,
        group: i32,
        now: u32,
        rows: &mut Rows,
    ) -> Result<(), PtError> {
        if group == ANY_USER || group == AUTH_USER || id == ANONYMOUS {
            return Err(PtError::Permission);
        }
        let mut draft = Draft::new(self, rules, now);
        let caller = CallerEntry::local_id(&draft, rules, caller)?;
        let (_, member) = draft.find(id).ok_or(PtError::NoEntry)?;
        if member.is_group() && rules.supergroups.is_none() {
            return Err(PtError::NotUser);
        }
        let (_, entry) = draft.find(group).ok_or(PtError::NoEntry)?;
        if !entry.is_group() {
            return Err(PtError::NotGroup);
        }
        if !draft.may(caller, Some(&entry), Right::ADD) {
            return Err(PtError::Permission);
        }
        draft.add_to(group, id)?;
        draft.change_membership(&member, group, true)?;
        draft.finish(rows);
        Ok(())
    }

    /// Removes a user from a group (RemoveFromGroup).
    ///
    /// # Errors
    ///
    /// If the caller may not, there are no such entries, or the user is not in the group.
    pub fn remove_from_group(
        &self,
        rules: &Rules,
        caller: &Caller,
        id: i32,
        group: i32,
        now: u32,
        rows: &mut Rows,
    ) -> Result<(), PtError> {
        let mut draft = Draft::new(self, rules, now);
        let caller = CallerEntry::local_id(&draft, rules, caller)?;
        let (_, member) = draft.find(id).ok_or(PtError::NoEntry)?;
        let (_, entry) = draft.find(group).ok_or(PtError::NoEntry)?;
        if !entry.is_group() {
            return Err(PtError::NotGroup);
        }
        if member.is_group() && rules.supergroups.is_none() {
            return Err(PtError::NotUser);
        }
        if !draft.may(caller, Some(&entry), Right::REMOVE) {
            return Err(PtError::Permission);
        }
        draft.remove_from(group, id)?;
        draft.change_membership(&member, group, false)?;
        draft.finish(rows);
        Ok(())
    }

    /// Deletes an entry (Delete). Groups that it owns have no owner then, and those that it was in lose it.
    ///
    /// # Errors
    ///
    /// If the caller may not, there is none, or it is the group of another cell's users and has some.
    pub fn delete(
        &self,
        rules: &Rules,
        caller: &Caller,
        id: i32,
        now: u32,
        rows: &mut Rows,
    ) -> Result<(), PtError> {
        if [ADMINISTRATORS, ANY_USER, AUTH_USER, ANONYMOUS].contains(&id) {
            return Err(PtError::Permission);
        }
        let mut draft = Draft::new(self, rules, now);
        let caller = CallerEntry::local_id(&draft, rules, caller)?;
        let (slot, entry) = draft.find(id).ok_or(PtError::NoEntry)?;
        if !owns(&draft, caller, &entry) {
            return Err(PtError::Permission);
        }
        if entry.is_foreign() {
            if entry.is_group() && !entry.list.is_empty() {
                return Err(PtError::BadArgument);
            }
            if !entry.is_group()
                && let Some((slot, mut cell)) = draft.find(entry.cell_group)
                && cell.flags.has(Flags::QUOTA)
            {
                cell.group_quota = cell.group_quota.saturating_add(1);
                draft.put(slot, cell);
            }
        }
        for other in &entry.list {
            // A group that is in this one has it among the groups that it is in.
            let Some((_, member)) = draft.find(*other) else { continue };
            if entry.is_group() {
                draft.change_membership(&member, id, false)?;
            } else {
                draft.remove_from(*other, id)?;
            }
        }
        for group in &entry.supergroups {
            draft.remove_from(*group, id)?;
        }
        for owned in self.owned(id).filter(|owned| *owned != id) {
            if let Some((slot, group)) = draft.find(owned) {
                draft.put(slot, Entry { owner: 0, ..group });
            }
        }
        draft.free(slot);
        if entry.is_group()
            && let Some((slot, mut creator)) = draft.find(entry.creator)
            && creator.flags.has(Flags::QUOTA)
            && !(draft.is_administrator(entry.creator) && creator.group_quota >= DEFAULT_QUOTA)
        {
            creator.group_quota = creator.group_quota.saturating_add(1);
            draft.put(slot, creator);
        }
        draft.finish(rows);
        Ok(())
    }

    /// Changes name, owner and id of an entry (ChangeEntry). A group's new name must have its owner's before the colon; if
    /// only the owner changes, that part of the name does too.
    ///
    /// # Errors
    ///
    /// If the caller may not, there is no such entry, or the name or id exists.
    pub fn change_entry(
        &self,
        rules: &Rules,
        caller: &Caller,
        id: i32,
        to: &Renaming,
        now: u32,
        rows: &mut Rows,
    ) -> Result<(), PtError> {
        if [ADMINISTRATORS, ANY_USER, AUTH_USER, ANONYMOUS].contains(&id) {
            return Err(PtError::Permission);
        }
        let mut draft = Draft::new(self, rules, now);
        let caller = CallerEntry::local_id(&draft, rules, caller)?;
        let (slot, mut entry) = draft.find(id).ok_or(PtError::NoEntry)?;
        if !owns(&draft, caller, &entry) {
            return Err(PtError::Permission);
        }
        let is_administrator = rules.is_noauth || draft.is_administrator(caller);
        entry.changed = now;
        if to.id != 0 && to.id != id {
            if !is_administrator {
                return Err(PtError::Permission);
            }
            if draft.by_id(to.id).is_some() {
                return Err(PtError::IdExists);
            }
            if (to.id < 0) != (id < 0) {
                return Err(PtError::Permission);
            }
            self.renumber(&mut draft, slot, &mut entry, to.id)?;
        }
        let is_given_away = to.owner != 0 && to.owner != entry.owner;
        if is_given_away {
            if !entry.is_group() || entry.is_foreign() {
                return Err(PtError::Permission);
            }
            if draft.by_id(to.owner).is_none() {
                return Err(PtError::NoEntry);
            }
            entry.owner = to.owner;
            draft.put(slot, entry.clone());
        }
        let follows_owner = is_given_away && to.name.is_empty();
        if follows_owner || !to.name.is_empty() && to.name != entry.name {
            let name = if follows_owner { entry.name.clone() } else { to.name.clone() };
            let new = new_name(&draft, caller, &mut entry, name, is_administrator, follows_owner)?;
            if new != entry.name {
                if draft.by_name(&new).is_some() {
                    return Err(PtError::Exists);
                }
                entry.name = new;
            }
        }
        draft.put(slot, entry);
        draft.finish(rows);
        Ok(())
    }

    /// Gives an entry another id, also where others have it.
    fn renumber(&self, draft: &mut Draft<'_>, slot: u32, entry: &mut Entry, to: i32) -> Result<(), PtError> {
        let from = entry.id;
        let members: BTreeSet<i32> = entry.list.iter().chain(&entry.supergroups).copied().collect();
        for other in members {
            let Some((slot, mut other)) = draft.find(other) else { continue };
            for list in [&mut other.list, &mut other.supergroups] {
                if let Ok(at) = list.binary_search(&from) {
                    list.remove(at);
                    let at = list.binary_search(&to).unwrap_or_else(|at| at);
                    list.insert(at, to);
                }
            }
            draft.put(slot, other);
        }
        for owned in self.owned(from).filter(|owned| *owned != from) {
            if let Some((slot, group)) = draft.find(owned) {
                draft.put(slot, Entry { owner: to, ..group });
            }
        }
        entry.id = to;
        if entry.owner == from {
            entry.owner = to;
        }
        draft.put(slot, entry.clone());
        draft.header.max_user = draft.header.max_user.max(to);
        Ok(())
    }

    /// Sets who may see and change an entry, and its quotas (SetFieldsEntry).
    ///
    /// # Errors
    ///
    /// If the caller may not, there is no such entry, or a quota is negative.
    pub fn set_fields(
        &self,
        rules: &Rules,
        caller: &Caller,
        id: i32,
        change: &FieldChange,
        now: u32,
        rows: &mut Rows,
    ) -> Result<(), PtError> {
        if [ANY_USER, AUTH_USER, ANONYMOUS].contains(&id) {
            return Err(PtError::Permission);
        }
        let mut draft = Draft::new(self, rules, now);
        let caller = CallerEntry::local_id(&draft, rules, caller)?;
        let (slot, mut entry) = draft.find(id).ok_or(PtError::NoEntry)?;
        let changes_quota = change.group_quota.is_some() || change.user_quota.is_some();
        if !draft.may(caller, Some(&entry).filter(|_| !changes_quota), Right::CHANGE) {
            return Err(PtError::Permission);
        }
        if changes_quota && !entry.flags.has(Flags::QUOTA) {
            (entry.group_quota, entry.user_quota) = (DEFAULT_QUOTA, DEFAULT_QUOTA);
        }
        if let Some((mask, bits)) = change.privacy {
            let (mask, bits) = (u32::from(mask), u32::from(bits));
            let kept = entry.flags.0 & !(mask << Flags::PRIVACY_SHIFT);
            entry.flags = Flags(kept | (bits & mask) << Flags::PRIVACY_SHIFT).with(Flags::ACCESS);
        }
        for (quota, field) in
            [(change.group_quota, &mut entry.group_quota), (change.user_quota, &mut entry.user_quota)]
        {
            let Some(quota) = quota else { continue };
            if quota < 0 {
                return Err(PtError::BadArgument);
            }
            *field = quota;
            entry.flags = entry.flags.with(Flags::QUOTA);
        }
        draft.put(slot, entry);
        draft.finish(rows);
        Ok(())
    }

    /// Sets the id near which the next ones are looked for (SetMax): of groups or of users.
    ///
    /// # Errors
    ///
    /// If the caller may not, or the id is not of that kind.
    pub fn set_max(
        &self,
        rules: &Rules,
        caller: &Caller,
        id: i32,
        of_groups: bool,
        rows: &mut Rows,
    ) -> Result<(), PtError> {
        let mut draft = Draft::new(self, rules, 0);
        let caller = CallerEntry::local_id(&draft, rules, caller)?;
        if !draft.may(caller, None, Right::CHANGE) {
            return Err(PtError::Permission);
        }
        if of_groups && id > 0 || !of_groups && id < 0 {
            return Err(PtError::BadArgument);
        }
        *(if of_groups { &mut draft.header.max_group } else { &mut draft.header.max_user }) = id;
        draft.finish(rows);
        Ok(())
    }

    /// Has the indexes of an entry made again (UpdateEntry); here they cannot be wrong, so it is only looked whether the
    /// caller may, and whether there is such an entry. By name if the id is 0.
    ///
    /// # Errors
    ///
    /// If not.
    pub fn repair(&self, rules: &Rules, caller: &Caller, id: i32, name: &[u8]) -> Result<(), PtError> {
        if [ADMINISTRATORS, ANY_USER, AUTH_USER, ANONYMOUS].contains(&id) {
            return Err(PtError::Permission);
        }
        let caller = CallerEntry::local_id(self, rules, caller)?;
        if !rules.is_noauth && !is_member(self, rules, caller, ADMINISTRATORS) {
            return Err(PtError::Permission);
        }
        let found = if id == 0 { self.find_name(name) } else { self.find_id(id) };
        found.map(drop).ok_or(PtError::NoEntry)
    }
}

/// True if a caller may delete or rename an entry.
fn owns(draft: &Draft<'_>, caller: i32, entry: &Entry) -> bool {
    let rules = draft.rules;
    let is_administrator = draft.is_administrator(caller);
    if rules.is_restricted && !is_administrator {
        return false;
    }
    rules.is_noauth
        || is_administrator
        || entry.owner == caller
        || is_member(draft, rules, caller, entry.owner)
}

/// The name that an entry is to have, when its owner has changed or it is given a name.
fn new_name(
    draft: &Draft<'_>,
    caller: i32,
    entry: &mut Entry,
    name: Vec<u8>,
    is_administrator: bool,
    follows_owner: bool,
) -> Result<Vec<u8>, PtError> {
    if entry.is_group() {
        if entry.is_foreign() {
            return Err(PtError::Permission);
        }
        if entry.owner == 0 || entry.owner == ANONYMOUS {
            entry.owner = caller;
        }
        let correct = correct_group_name(draft, &name, entry.owner, is_administrator)?;
        if !follows_owner && (correct != name || !is_one_word(&name)) {
            return Err(PtError::BadName);
        }
        return Ok(correct);
    }
    let cell = |name: &[u8]| name.iter().position(|byte| *byte == b'@').map(|at| name[at..].to_vec());
    if cell(&name) != cell(&entry.name) {
        return Err(PtError::Permission);
    }
    if is_user_name(&name) { Ok(name) } else { Err(PtError::BadName) }
}

/// True if a user may be called so.
pub(crate) fn is_user_name(name: &[u8]) -> bool {
    name.len() <= MAX_NAME && is_one_word(name) && !name.contains(&b':')
}

/// True if a name can stand in the text of an access list, where blanks and ends of lines part it from the rights: with another
/// one in it no client could read the list any more, and its owner could not mend it. Stock servers take most of them, so that
/// entries may have such names; those stay as they are, and can be renamed and removed.
pub(crate) fn is_one_word(name: &[u8]) -> bool {
    !name.is_empty() && !name.iter().any(|byte| *byte == b' ' || byte.is_ascii_control())
}
