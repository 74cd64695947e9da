//! Making users and groups, and the entries that every database begins with (PTDB notes 3 and 10).

use crate::caller::Caller;
use crate::database::Rows;

use super::access::{CallerEntry, Rules};
use super::change::{DEFAULT_QUOTA, Draft, is_one_word, is_user_name};
use super::errors::PtError;
use super::image::{Ptdb, View};
use super::membership::{ADMINISTRATORS, ANONYMOUS, ANY_USER, AUTH_USER, BACKUP, BAD_ID, VIEWERS};
use super::records::{Entry, Flags, MAX_NAME};

/// What the groups of other cells' users are called, before the `@` and the cell.
const FOREIGN_USERS: &[u8] = b"system:authuser";

/// How many users of another cell may be made, if nothing was set.
const FOREIGN_QUOTA: i32 = 30;

/// How many ids are tried from the last one on, as stock servers do.
const ID_TRIES: usize = 50;

/// The bits of what is asked for that do not make a user or group: a user of another cell is known by name.
const FOREIGN_FLAG: i32 = 0x10;
const GROUP_FLAG: i32 = 2;

/// A user or group that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPrincipal {
    /// The name, in lower case.
    pub name: Vec<u8>,
    /// The kind of entry, as it was sent: 0 is a user, 2 a group.
    pub flag: i32,
    /// The id; `None` for the next one.
    pub id: Option<i32>,
    /// The owner; 0 for the caller.
    pub owner: i32,
}

/// The user who administers a cell from the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Administrator {
    /// The administrator's name, in lower case.
    pub name: String,
    /// The administrator's id; `None` for the first.
    pub id: Option<i32>,
}

/// The entries of a new database: the system's groups, the anonymous user, and for a new cell an administrator in their group.
///
/// # Errors
///
/// If the administrator's name or id cannot be.
pub fn initialize(
    ptdb: &Ptdb,
    administrator: Option<&Administrator>,
    now: u32,
    rows: &mut Rows,
) -> Result<(), PtError> {
    if !ptdb.is_empty() {
        return Err(PtError::Exists);
    }
    let rules = Rules::default();
    let mut draft = Draft::new(ptdb, &rules, now);
    // In the order of stock servers, which is that of listings.
    for (id, name) in [
        (ADMINISTRATORS, "system:administrators"),
        (BACKUP, "system:backup"),
        (ANY_USER, "system:anyuser"),
        (AUTH_USER, "system:authuser"),
        (VIEWERS, "system:ptsviewers"),
        (ANONYMOUS, "anonymous"),
    ] {
        let flag = if id < 0 { GROUP_FLAG } else { 0 };
        let new = NewPrincipal { name: name.into(), flag, id: Some(id), owner: ADMINISTRATORS };
        create(&mut draft, &new, ADMINISTRATORS)?;
    }
    // Users are numbered from 1, not from behind the anonymous one.
    draft.header.max_user = 0;
    if let Some(administrator) = administrator {
        let name = administrator.name.clone().into_bytes();
        let new = NewPrincipal { name, flag: 0, id: administrator.id, owner: 0 };
        let id = create(&mut draft, &new, ADMINISTRATORS)?;
        draft.add_to(ADMINISTRATORS, id)?;
        draft.add_to(id, ADMINISTRATORS)?;
    }
    draft.finish(rows);
    Ok(())
}

impl Ptdb {
    /// Makes a user or group with the next id, and returns it (NewEntry). Users of another cell may make their own
    /// entries so.
    ///
    /// # Errors
    ///
    /// If the caller may not, or has used up their quota; if the name exists, or cannot be.
    pub fn new_entry(
        &self,
        rules: &Rules,
        caller: &Caller,
        new: &NewPrincipal,
        now: u32,
        rows: &mut Rows,
    ) -> Result<i32, PtError> {
        let mut draft = Draft::new(self, rules, now);
        let who = CallerEntry::of(&draft, rules, caller)?;
        let mut is_administrator = draft.is_administrator(who.id);
        let mut new = new.clone();
        if who.foreign.as_ref() == Some(&new.name) && !rules.is_restricted {
            if new.owner != 0 {
                return Err(PtError::Permission);
            }
            (is_administrator, new.owner) = (true, ADMINISTRATORS);
        }
        check_may_create(rules, who.id, &new, is_administrator)?;
        let id = create(&mut draft, &new, who.id)?;
        draft.finish(rows);
        Ok(id)
    }

    /// Makes a user or group with a given id, whose sign says which (INewEntry).
    ///
    /// # Errors
    ///
    /// As [`Self::new_entry`], and if the id exists.
    pub fn new_entry_with_id(
        &self,
        rules: &Rules,
        caller: &Caller,
        new: &NewPrincipal,
        id: i32,
        now: u32,
        rows: &mut Rows,
    ) -> Result<(), PtError> {
        let mut draft = Draft::new(self, rules, now);
        let caller = CallerEntry::local_id(&draft, rules, caller)?;
        let is_administrator = draft.is_administrator(caller);
        // No entry can have the number that stands for no id.
        if id == 0 || id == BAD_ID {
            return Err(PtError::Permission);
        }
        let is_next = id == draft.header.max_group.wrapping_sub(1);
        if id < 0 && !is_administrator && !rules.is_noauth && !is_next {
            return Err(PtError::Permission);
        }
        if draft.by_id(id).is_some() {
            return Err(PtError::IdExists);
        }
        let flag = if id < 0 { GROUP_FLAG } else { 0 };
        let new = NewPrincipal { flag, id: Some(id), ..new.clone() };
        check_may_create(rules, caller, &new, is_administrator)?;
        create(&mut draft, &new, caller)?;
        draft.finish(rows);
        Ok(())
    }
}

fn check_may_create(
    rules: &Rules,
    caller: i32,
    new: &NewPrincipal,
    is_administrator: bool,
) -> Result<(), PtError> {
    let is_allowed = if rules.is_restricted && !is_administrator || new.flag & FOREIGN_FLAG != 0 {
        false
    } else if new.flag & GROUP_FLAG != 0 {
        // Nobody in particular makes groups for others only, and only if nobody is asked for authentication.
        caller != ANONYMOUS || new.owner != 0 && rules.is_noauth
    } else {
        new.owner != ANONYMOUS && (is_administrator || rules.is_noauth)
    };
    if is_allowed { Ok(()) } else { Err(PtError::Permission) }
}

/// Makes an entry, in the name of `creator`; returns its id.
fn create(draft: &mut Draft<'_>, new: &NewPrincipal, creator: i32) -> Result<i32, PtError> {
    let rules = draft.rules;
    let is_administrator = rules.is_noauth || draft.is_administrator(creator);
    let is_group = new.flag & GROUP_FLAG != 0;
    let owner = if new.owner == 0 || new.owner == ANONYMOUS { creator } else { new.owner };
    if is_group {
        if correct_group_name(draft, &new.name, owner, is_administrator)? != new.name
            || !is_one_word(&new.name)
        {
            return Err(PtError::BadName);
        }
    } else if !is_user_name(&new.name) {
        return Err(PtError::BadName);
    }
    if draft.by_name(&new.name).is_some() {
        return Err(PtError::Exists);
    }
    if !is_group && new.flag != 0 {
        return Err(PtError::BadArgument);
    }
    let mut entry = Entry {
        created: draft.now,
        flags: if is_group { Flags::GROUP } else { Flags::default() },
        owner: if is_group { owner } else { ADMINISTRATORS },
        creator,
        name: new.name.clone(),
        ..Entry::default()
    };
    let cell = entry.name.iter().position(|byte| *byte == b'@');
    if let Some(at) = cell {
        if !is_group {
            return create_foreign_user(draft, entry, at, new.id);
        }
        if &entry.name[..at] != FOREIGN_USERS {
            return Err(PtError::BadName);
        }
    }
    entry.id = match new.id {
        Some(id) => id,
        None => next_id(draft, is_group)?,
    };
    if is_group {
        draft.header.max_group = draft.header.max_group.min(entry.id);
        charge(draft, creator)?;
    } else {
        draft.header.max_user = draft.header.max_user.max(entry.id);
        entry.flags = entry.flags.with(Flags::QUOTA);
        (entry.group_quota, entry.user_quota) = (DEFAULT_QUOTA, DEFAULT_QUOTA);
    }
    if is_group && owner != entry.id && draft.by_id(owner).is_none() {
        return Err(PtError::NoEntry);
    }
    let id = entry.id;
    let slot = draft.allocate()?;
    draft.put(slot, entry);
    Ok(id)
}

/// Takes a group from the quota of who makes it. Administrators have no quota, but are given the numbers of one.
fn charge(draft: &mut Draft<'_>, creator: i32) -> Result<(), PtError> {
    let is_exempt = draft.is_administrator(creator);
    let Some((slot, mut entry)) = draft.find(creator) else { return Ok(()) };
    if !entry.flags.has(Flags::QUOTA) {
        entry.flags = entry.flags.with(Flags::QUOTA);
        (entry.group_quota, entry.user_quota) = (DEFAULT_QUOTA, DEFAULT_QUOTA);
    }
    if !is_exempt {
        if entry.group_quota > 0 {
            entry.group_quota -= 1;
        } else if !draft.rules.is_noauth {
            return Err(PtError::NoMore);
        }
    }
    draft.put(slot, entry);
    Ok(())
}

/// Makes a user of another cell, who is in the group of that cell's users from the beginning.
fn create_foreign_user(
    draft: &mut Draft<'_>,
    mut entry: Entry,
    at: usize,
    id: Option<i32>,
) -> Result<i32, PtError> {
    let group_name = [FOREIGN_USERS, &entry.name[at..]].concat();
    let group = draft.by_name(&group_name).map(|group| group.id).ok_or(PtError::BadName)?;
    let (group_slot, mut cell) = draft.find(group).ok_or(PtError::BadName)?;
    let low = group & 0xffff;
    let id = match id {
        Some(id) if id & 0xffff != low => return Err(PtError::BadArgument),
        Some(id) => {
            cell.user_quota = cell.user_quota.max(id >> 16);
            id
        }
        None => {
            // The upper half tells the cell's users apart. Beyond 0x7fff it would be the id of a group.
            let mut numbers = cell.user_quota.max(0).saturating_add(1)..=0x7fff;
            let number = numbers.find(|number| draft.by_id(number << 16 | low).is_none());
            let number = number.ok_or(PtError::NoIds)?;
            cell.user_quota = number;
            number << 16 | low
        }
    };
    if !cell.flags.has(Flags::QUOTA) {
        cell.flags = cell.flags.with(Flags::QUOTA);
        cell.group_quota = FOREIGN_QUOTA;
    }
    if cell.group_quota <= 0 && !draft.rules.is_noauth {
        return Err(PtError::NoMore);
    }
    cell.group_quota = cell.group_quota.saturating_sub(1);
    draft.put(group_slot, cell);
    (entry.id, entry.cell_group) = (id, group);
    let slot = draft.allocate()?;
    draft.put(slot, entry);
    draft.add_to(group, id)?;
    draft.add_to(id, group)?;
    Ok(id)
}

/// The next id that is free, near the last one.
fn next_id(draft: &mut Draft<'_>, is_group: bool) -> Result<i32, PtError> {
    let (last, step) = if is_group { (draft.header.max_group, -1) } else { (draft.header.max_user, 1) };
    let ids = std::iter::successors(last.checked_add(step), |id| id.checked_add(step));
    let mut ids = ids.take(ID_TRIES).filter(|id| *id != BAD_ID && *id != 0);
    ids.find(|id| draft.by_id(*id).is_none()).ok_or(PtError::NoIds)
}

/// The name that a group of this owner has to have if it is to be called `name`: the owner's, a colon, and the part behind
/// the colon. Administrators may leave owner and colon out.
pub(crate) fn correct_group_name(
    draft: &Draft<'_>,
    name: &[u8],
    owner: i32,
    is_administrator: bool,
) -> Result<Vec<u8>, PtError> {
    if name.len() > MAX_NAME {
        return Err(PtError::BadName);
    }
    let prefix = match draft.by_id(owner) {
        _ if owner == ADMINISTRATORS => Some(&b"system"[..]),
        Some(entry) if entry.is_group() => {
            if entry.list.is_empty() && !is_administrator {
                return Err(PtError::GroupEmpty);
            }
            entry.name.split(|byte| *byte == b':').next()
        }
        Some(entry) => Some(&entry.name[..]),
        // An administrator makes a group that owns itself so.
        None if is_administrator => None,
        None => return Err(PtError::NoEntry),
    };
    if prefix == Some(b"system") && !is_administrator {
        return Err(PtError::Permission);
    }
    let colon = name.iter().position(|byte| *byte == b':');
    let correct = match (prefix, colon) {
        (None, _) => name.to_vec(),
        _ if draft.rules.is_noauth => name.to_vec(),
        (Some(_), None) if !is_administrator => return Err(PtError::BadName),
        (Some(_), None) => name.to_vec(),
        (Some(prefix), Some(colon)) => [prefix, &name[colon..]].concat(),
    };
    let is_legal = match correct.iter().position(|byte| *byte == b':') {
        Some(colon) => !correct.contains(&b'\n') && !correct[colon + 1..].contains(&b':'),
        None => is_user_name(&correct),
    };
    if is_legal && correct.len() <= MAX_NAME { Ok(correct) } else { Err(PtError::BadName) }
}
