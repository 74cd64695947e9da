//! The protection database of a cell, as its servers show it: names, ids, entries and lists. What is printed of it is for
//! the verbs.

use crate::calls::Caller;
use crate::codes::Code;
use afs_admin::{DatabaseServers, Login};
use afs_wire::ids::ViceId;
use afs_wire::pt::{self, PR_MAXNAMELEN, PrCheckEntry, PrListEntry, PrName, PrNameVec, SetFieldsMask};
use rxgen::Rpc;
use std::net::Ipv4Addr;

/// The protection servers of a cell.
pub(super) struct ProtectionDb {
    caller: Caller,
    servers: DatabaseServers,
}

/// A user or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) id: i32,
    pub(super) owner: i32,
    pub(super) creator: i32,
    /// Who may see and change it: eight bits.
    pub(super) flags: i32,
    /// How many groups it may make.
    pub(super) group_quota: i32,
    /// How many members it has, or groups it is in.
    pub(super) membership: i32,
}

impl ProtectionDb {
    /// The database at these machines.
    pub(super) fn new(caller: Caller, machines: &[Ipv4Addr], login: &Login) -> Self {
        let servers = caller.database::<pt::Pr>(machines, login);
        Self { caller, servers }
    }

    fn call<R: Rpc>(&self, args: &R) -> Result<R::Reply, Code> {
        self.caller.wait(self.servers.call(args))
    }

    // ---- names and ids

    /// The ids of names, of which capitals do not count; [`ViceId::ANONYMOUS`] for those that do not exist.
    pub(super) fn ids_of(&self, names: &[&str]) -> Result<Vec<i32>, Code> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let lowered: Result<Vec<_>, _> =
            names.iter().map(|name| name_in_list(&name.to_ascii_lowercase())).collect();
        let names = lowered?.try_into().map_err(|_| Code::PRINTERNAL)?;
        let ids = self.call(&pt::NameToID { names })?.ids;
        Ok(ids.iter().map(|id| id.0).collect())
    }

    /// The id of a name that must exist.
    pub(super) fn id_of(&self, name: &str) -> Result<i32, Code> {
        match self.ids_of(&[name])?[..] {
            [id] if id == ViceId::ANONYMOUS.0 => Err(Code::PRNOENT),
            [id] => Ok(id),
            _ => Err(Code::PRINTERNAL),
        }
    }

    /// The names of ids; digits for those that do not exist.
    pub(super) fn names_of(&self, ids: &[i32]) -> Result<Vec<String>, Code> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let count = ids.len();
        let ids: Vec<ViceId> = ids.iter().copied().map(ViceId).collect();
        let names = self.call(&pt::IDToName { ids: ids.try_into().map_err(|_| Code::PRINTERNAL)? })?.names;
        if names.len() != count {
            return Err(Code::PRINTERNAL);
        }
        Ok(names.iter().map(text).collect())
    }

    // ---- entries

    /// Makes a user, with this id if there is one, and says its id.
    pub(super) fn create_user(&self, name: &str, id: Option<i32>) -> Result<i32, Code> {
        self.create(name, pt::PRUSER, id, 0)
    }

    /// Makes a group.
    pub(super) fn create_group(&self, name: &str, owner: Option<&str>, id: Option<i32>) -> Result<i32, Code> {
        name_in_list(name)?;
        let owner = owner.map_or(Ok(0), |owner| self.id_of(owner))?;
        self.create(name, pt::PRGRP, id, owner)
    }

    fn create(&self, name: &str, flag: i32, id: Option<i32>, owner: i32) -> Result<i32, Code> {
        let (name, owner) = (name_alone(&name.to_ascii_lowercase())?, ViceId(owner));
        match id {
            Some(id) => self.call(&pt::INewEntry { name, id: ViceId(id), owner }).map(|_| id),
            None => self.call(&pt::NewEntry { name, flag, owner }).map(|reply| reply.id.0),
        }
    }

    /// Removes an entry.
    pub(super) fn delete(&self, id: i32) -> Result<(), Code> {
        self.call(&pt::Delete { id: ViceId(id) }).map(drop)
    }

    /// An entry.
    pub(super) fn entry(&self, id: i32) -> Result<Entry, Code> {
        let PrCheckEntry { flags, id, owner, creator, ngroups, nusers: _, count, reserved: _, name } =
            self.call(&pt::ListEntry { id: ViceId(id) })?.entry;
        let (id, owner, creator, flags) = (id.0, owner.0, creator.0, flags.0);
        Ok(Entry { name: text(&name), id, owner, creator, flags, group_quota: ngroups, membership: count })
    }

    /// Entries from a place on, and the place of the next part, if there is one.
    pub(super) fn entries(
        &self,
        flags: pt::ListEntriesFlags,
        start_index: i32,
    ) -> Result<(Vec<Entry>, Option<i32>), Code> {
        let reply = self.call(&pt::ListEntries { flags, start_index })?;
        let entry = |entry: &PrListEntry| {
            let PrListEntry { flags, id, owner, creator, ngroups, nusers: _, count, reserved: _, name } =
                entry;
            let (id, owner, creator, flags) = (id.0, owner.0, creator.0, flags.0);
            Entry { name: text(name), id, owner, creator, flags, group_quota: *ngroups, membership: *count }
        };
        let next = (reply.next_start_index != -1).then_some(reply.next_start_index);
        Ok((reply.entries.iter().map(entry).collect(), next))
    }

    /// Changes the name or the owner of an entry.
    pub(super) fn change(&self, name: &str, new_name: &str, new_owner: Option<&str>) -> Result<(), Code> {
        let id = self.id_of(name)?;
        let owner = new_owner.filter(|owner| !owner.is_empty()).map_or(Ok(0), |owner| self.id_of(owner))?;
        let (id, name, owner) = (ViceId(id), name_alone(new_name)?, ViceId(owner));
        self.call(&pt::ChangeEntry { id, name, owner, new_id: ViceId(0) }).map(drop)
    }

    /// Sets privacy and quota of an entry, what of them there is.
    pub(super) fn set_fields(
        &self,
        id: i32,
        flags: Option<i32>,
        group_quota: Option<i32>,
    ) -> Result<(), Code> {
        let mut mask = SetFieldsMask::NONE;
        if flags.is_some() {
            mask |= SetFieldsMask::ALL_FLAGS;
        }
        if group_quota.is_some() {
            mask |= SetFieldsMask::NGROUPS;
        }
        let (flags, ngroups) = (flags.unwrap_or(0), group_quota.unwrap_or(0));
        let id = ViceId(id);
        self.call(&pt::SetFieldsEntry { id, mask, flags, ngroups, nusers: 0, spare1: 0, spare2: 0 }).map(drop)
    }

    // ---- groups

    /// Puts a user into a group.
    pub(super) fn add(&self, user: &str, group: &str) -> Result<(), Code> {
        let (uid, gid) = self.pair(user, group)?;
        self.call(&pt::AddToGroup { uid, gid }).map(drop)
    }

    /// Takes a user out of a group.
    pub(super) fn remove(&self, user: &str, group: &str) -> Result<(), Code> {
        let (id, gid) = self.pair(user, group)?;
        self.call(&pt::RemoveFromGroup { id, gid }).map(drop)
    }

    fn pair(&self, user: &str, group: &str) -> Result<(ViceId, ViceId), Code> {
        match self.ids_of(&[user, group])?[..] {
            [user, group] if user != ViceId::ANONYMOUS.0 && group != ViceId::ANONYMOUS.0 => {
                Ok((ViceId(user), ViceId(group)))
            }
            [_, _] => Err(Code::PRNOENT),
            _ => Err(Code::PRINTERNAL),
        }
    }

    /// Whether a user is in a group.
    pub(super) fn is_member(&self, user: &str, group: &str) -> Result<bool, Code> {
        match self.ids_of(&[user, group])?[..] {
            [uid, gid] => {
                let (uid, gid) = (ViceId(uid), ViceId(gid));
                self.call(&pt::IsAMemberOf { uid, gid }).map(|reply| reply.flag != 0)
            }
            _ => Err(Code::PRINTERNAL),
        }
    }

    /// The members of a group, or the groups of a user, and whether there are more than a reply can hold.
    pub(super) fn elements(&self, id: i32) -> Result<(Vec<i32>, bool), Code> {
        let reply = self.call(&pt::ListElements { id: ViceId(id) })?;
        Ok((reply.ids.iter().map(|id| id.0).collect(), reply.over != 0))
    }

    /// The groups that a group is in.
    pub(super) fn supergroups(&self, id: i32) -> Result<(Vec<i32>, bool), Code> {
        let reply = self.call(&pt::ListSuperGroups { id: ViceId(id) })?;
        Ok((reply.ids.iter().map(|id| id.0).collect(), reply.over != 0))
    }

    /// The groups that an entry owns, one part of them, and what to ask for the next with; 0 is both the beginning and the
    /// end.
    pub(super) fn owned(&self, id: i32, last: i32) -> Result<(Vec<i32>, i32), Code> {
        let reply = self.call(&pt::ListOwned { id: ViceId(id), last })?;
        Ok((reply.ids.iter().map(|id| id.0).collect(), reply.last))
    }

    // ---- ids that are given

    /// The highest id of a user and the lowest of a group.
    pub(super) fn max(&self) -> Result<(i32, i32), Code> {
        self.call(&pt::ListMax {}).map(|reply| (reply.uid.0, reply.gid.0))
    }

    /// Sets the highest id of a user.
    pub(super) fn set_max_user(&self, id: i32) -> Result<(), Code> {
        self.call(&pt::SetMax { id: ViceId(id), gflag: pt::PRUSER }).map(drop)
    }

    /// Sets the lowest id of a group.
    pub(super) fn set_max_group(&self, id: i32) -> Result<(), Code> {
        self.call(&pt::SetMax { id: ViceId(id), gflag: pt::PRGRP }).map(drop)
    }
}

fn name_in_list(name: &str) -> Result<PrNameVec, Code> {
    PrNameVec::from_text(name).map_err(|_| Code::PRNAMETOOLONG)
}

/// A name as an argument of its own, which must fit into an entry too.
fn name_alone(name: &str) -> Result<PrName, Code> {
    if name.len() >= PR_MAXNAMELEN {
        return Err(Code::PRNAMETOOLONG);
    }
    PrName::try_from(name).map_err(|_| Code::PRNAMETOOLONG)
}

fn text(name: &PrNameVec) -> String {
    crate::output::harmless(&String::from_utf8_lossy(name.text()))
}
