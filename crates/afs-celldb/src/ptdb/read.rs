//! Procedures that only read: names and ids, entries, lists, memberships (PTDB notes 10).

use std::ops::Bound;

use crate::caller::Caller;

use super::access::{CallerEntry, Right, Rules, may};
use super::errors::PtError;
use super::image::{Ptdb, position_of, slot_at};
use super::membership::{ADMINISTRATORS, ANONYMOUS, BAD_ID, add_networks, cps, hosts, is_member};
use super::records::Entry;

/// Ids that ListOwned returns at once: stock servers' `PR_MAXGROUPS`.
const MAX_OWNED: usize = 5000;

/// Entries that ListEntries returns at once, as stock servers do.
const MAX_ENTRIES: usize = 500;

/// The kinds of entries that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// Users.
    pub users: bool,
    /// Groups.
    pub groups: bool,
}

/// A part of a list, and where the next begins; `None` at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The items in this part.
    pub items: Vec<T>,
    /// The place to go on.
    pub next: Option<i32>,
}

/// An entry as DumpEntry shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// The entry.
    pub entry: Entry,
    /// The position of the first group that it owns; 0 is none.
    pub owned: i32,
    /// The position of the next group that its owner owns; 0 is none.
    pub next_owned: i32,
}

impl Ptdb {
    /// Ids of names; 32766 for those that are not there (NameToID). Anybody may ask. `is_local` knows the realms
    /// whose users are those of this cell.
    pub fn name_to_id(&self, name: &[u8], is_local: impl FnOnce(&str) -> bool) -> i32 {
        let mut wanted = name;
        if let Some(at) = name.iter().position(|byte| *byte == b'@') {
            let realm = String::from_utf8_lossy(&name[at + 1..]);
            if realm.is_empty() || is_local(&realm) {
                wanted = &name[..at];
            }
        }
        self.find_name(wanted).map_or(ANONYMOUS, |entry| entry.id)
    }

    /// Names of ids; the numbers of those that are not there (IDToName).
    ///
    /// # Errors
    ///
    /// If the caller may see nothing.
    pub fn id_to_name(&self, rules: &Rules, caller: &Caller, ids: &[i32]) -> Result<Vec<Vec<u8>>, PtError> {
        CallerEntry::reader_id(self, rules, caller)?;
        let name =
            |id: &i32| self.find_id(*id).map_or_else(|| id.to_string().into_bytes(), |e| e.name.clone());
        Ok(ids.iter().map(name).collect())
    }

    /// An entry (ListEntry).
    ///
    /// # Errors
    ///
    /// If there is none, or the caller may not see it.
    pub fn list_entry(&self, rules: &Rules, caller: &Caller, id: i32) -> Result<&Entry, PtError> {
        let caller = CallerEntry::reader_id(self, rules, caller)?;
        self.checked(rules, caller, id, Right::STATUS)
    }

    /// Entries from an index on (ListEntries). Administrators only.
    ///
    /// # Errors
    ///
    /// If the caller is none.
    pub fn list_entries(
        &self,
        rules: &Rules,
        caller: &Caller,
        kinds: Kinds,
        start: i32,
    ) -> Result<Page<&Entry>, PtError> {
        let caller = CallerEntry::local_id(self, rules, caller)?;
        if !rules.is_noauth && !is_member(self, rules, caller, ADMINISTRATORS) {
            return Err(PtError::Permission);
        }
        let start = u32::try_from(start).unwrap_or(0);
        let mut wanted = self
            .slots()
            .from(start)
            .filter(|(_, entry)| if entry.is_group() { kinds.groups } else { kinds.users });
        let items = wanted.by_ref().take(MAX_ENTRIES).map(|(_, entry)| entry).collect();
        Ok(Page { items, next: wanted.next().map(|(slot, _)| slot as i32) })
    }

    /// The groups of a user, or the members of a group (ListElements).
    ///
    /// # Errors
    ///
    /// If there is no such entry, or the caller may not see them.
    pub fn list_elements(&self, rules: &Rules, caller: &Caller, id: i32) -> Result<&[i32], PtError> {
        let caller = CallerEntry::local_id(self, rules, caller)?;
        Ok(&self.checked(rules, caller, id, Right::MEMBERS)?.list)
    }

    /// The groups that a group is in (ListSuperGroups).
    ///
    /// # Errors
    ///
    /// As [`Self::list_elements`].
    pub fn list_supergroups(&self, rules: &Rules, caller: &Caller, id: i32) -> Result<&[i32], PtError> {
        let caller = CallerEntry::reader_id(self, rules, caller)?;
        Ok(&self.checked(rules, caller, id, Right::MEMBERS)?.supergroups)
    }

    /// The groups that an entry owns, in parts (ListOwned); those that nobody does for 0. `after` is 0 at first, then what
    /// the part before said.
    ///
    /// # Errors
    ///
    /// If there is no such entry, or the caller may not see them.
    pub fn list_owned(
        &self,
        rules: &Rules,
        caller: &Caller,
        id: i32,
        after: i32,
    ) -> Result<Page<i32>, PtError> {
        let caller = CallerEntry::local_id(self, rules, caller)?;
        let first = slot_at(after).and_then(|slot| self.slots().get(slot));
        let first = first.filter(|entry| entry.is_group() && entry.owner == id).map(|entry| entry.id);
        // Who goes on was let in before.
        if first.is_none() {
            let is_allowed = match id {
                0 => may(self, rules, caller, None, Right::CHANGE),
                _ => self.checked(rules, caller, id, Right::OWNED).map(|_| true).or_else(
                    |error| match error {
                        PtError::Permission => Ok(false),
                        other => Err(other),
                    },
                )?,
            };
            if !is_allowed {
                return Err(PtError::Permission);
            }
        }
        let mut owned = self.owned_from(id, first.map_or(Bound::Unbounded, Bound::Included));
        let items = owned.by_ref().take(MAX_OWNED).collect();
        Ok(Page { items, next: owned.next().and_then(|id| self.slot_of(id)).map(position_of) })
    }

    /// All ids with which an entry is on access lists (GetCPS).
    ///
    /// # Errors
    ///
    /// If there is none, or the caller may not see them.
    pub fn get_cps(&self, rules: &Rules, caller: &Caller, id: i32) -> Result<Vec<i32>, PtError> {
        let caller = CallerEntry::reader_id(self, rules, caller)?;
        let entry = self.checked(rules, caller, id, Right::MEMBERS)?;
        Ok(cps(self, rules, entry, None))
    }

    /// The same, with the groups of the host that it is at (GetCPS2). The number that is no id, 0x80000000, asks for the host alone.
    ///
    /// # Errors
    ///
    /// As [`Self::get_cps`].
    pub fn get_cps_at(
        &self,
        rules: &Rules,
        caller: &Caller,
        id: i32,
        address: u32,
    ) -> Result<Vec<i32>, PtError> {
        let (host, networks) = hosts(self, address);
        let ids = if id == BAD_ID {
            host.map(|host| host.list.clone()).unwrap_or_default()
        } else {
            self.find_id(id).ok_or(PtError::NoEntry)?;
            let caller = CallerEntry::local_id(self, rules, caller)?;
            cps(self, rules, self.checked(rules, caller, id, Right::MEMBERS)?, host)
        };
        Ok(add_networks(ids, &networks))
    }

    /// The groups of a host (GetHostCPS).
    ///
    /// # Errors
    ///
    /// If the caller may see nothing.
    pub fn host_cps(&self, rules: &Rules, caller: &Caller, address: u32) -> Result<Vec<i32>, PtError> {
        CallerEntry::reader_id(self, rules, caller)?;
        let (host, networks) = hosts(self, address);
        let ids = host.map(|host| host.list.clone()).unwrap_or_default();
        Ok(add_networks(ids, &networks))
    }

    /// Tells whether a user is in a group (IsAMemberOf).
    ///
    /// # Errors
    ///
    /// If there are no such entries, they are not of those kinds, or the caller may not see it.
    pub fn is_member_of(&self, rules: &Rules, caller: &Caller, id: i32, group: i32) -> Result<bool, PtError> {
        let (user, entry) = self.find_id(id).zip(self.find_id(group)).ok_or(PtError::NoEntry)?;
        let caller = CallerEntry::local_id(self, rules, caller)?;
        if user.is_group() && rules.supergroups.is_none() || !entry.is_group() {
            return Err(PtError::BadArgument);
        }
        if !may(self, rules, caller, Some(user), Right::MEMBERSHIP)
            && !may(self, rules, caller, Some(entry), Right::MEMBERS)
        {
            return Err(PtError::Permission);
        }
        Ok(is_member(self, rules, id, group))
    }

    /// The highest id of a user that was given, and the lowest of a group (ListMax).
    ///
    /// # Errors
    ///
    /// If the caller may see nothing.
    pub fn list_max(&self, rules: &Rules, caller: &Caller) -> Result<(i32, i32), PtError> {
        CallerEntry::reader_id(self, rules, caller)?;
        Ok((self.header().max_user, self.header().max_group))
    }

    /// The place of an entry (WhereIsIt): for [`Self::dump`], and nothing else.
    ///
    /// # Errors
    ///
    /// If there is none, or the caller may see nothing.
    pub fn where_is(&self, rules: &Rules, caller: &Caller, id: i32) -> Result<i32, PtError> {
        CallerEntry::reader_id(self, rules, caller)?;
        self.slot_of(id).map(position_of).ok_or(PtError::NoEntry)
    }

    /// The entry at a position (DumpEntry).
    ///
    /// # Errors
    ///
    /// If there is none, or the caller may not see all.
    pub fn dump(&self, rules: &Rules, caller: &Caller, position: i32) -> Result<Dump, PtError> {
        let caller = CallerEntry::local_id(self, rules, caller)?;
        let entry = slot_at(position).and_then(|slot| self.slots().get(slot)).ok_or(PtError::BadAddress)?;
        if !may(self, rules, caller, None, Right::STATUS_OF_ALL) {
            return Err(PtError::Permission);
        }
        let position = |id: Option<i32>| id.and_then(|id| self.slot_of(id)).map_or(0, position_of);
        // A set may have all groups of a cell, so none is looked through.
        let mut behind = self.owned_from(entry.owner, Bound::Excluded(entry.id));
        let next = if entry.is_group() { behind.next() } else { None };
        Ok(Dump {
            owned: position(self.owned(entry.id).next()),
            next_owned: position(next),
            entry: entry.clone(),
        })
    }

    /// An entry to which a caller has a right.
    fn checked(&self, rules: &Rules, caller: i32, id: i32, right: Right) -> Result<&Entry, PtError> {
        let entry = self.find_id(id).ok_or(PtError::NoEntry)?;
        if may(self, rules, caller, Some(entry), right) { Ok(entry) } else { Err(PtError::Permission) }
    }
}
