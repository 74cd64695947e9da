//! The protection database of a cell: names, ids, entries and lists (PTDB notes). Names are compared without regard to capitals.

use afs_wire::abort::{PRBADNAM, PRINTERNAL, PRNAMETOOLONG, PRNOENT};
use afs_wire::ids::ViceId;
use afs_wire::pt::{
    self, IdList, ListEntriesFlags, PR_MAXNAMELEN, PrCheckEntry, PrDebugEntry, PrListEntry, PrName,
    PrNameVec, Privacy, SetFieldsMask,
};
use rx::Endpoint;
use rxgen::Rpc;

use crate::database::{DatabaseServers, Machine};
use crate::error::Error;
use crate::login::Login;
use crate::text::shown;

/// The protection database of a cell, called as one identity.
#[derive(Debug)]
pub struct ProtectionDb {
    servers: DatabaseServers,
}

/// A user or group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its id, negative for a group.
    pub id: ViceId,
    /// The owner.
    pub owner: ViceId,
    /// The creator.
    pub creator: ViceId,
    /// The right to see and change it.
    pub flags: Privacy,
    /// The number of groups that it may make.
    pub group_quota: i32,
    /// The number of its members, or of the groups that it is in.
    pub membership: i32,
}

/// Ids that a server gives in one list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// The ids.
    pub ids: Vec<ViceId>,
    /// True if there are more than a reply can hold.
    pub is_cut: bool,
}

impl ProtectionDb {
    /// The database on these machines.
    pub fn new(endpoint: &Endpoint, machines: &[impl Machine], login: &Login) -> Self {
        Self { servers: DatabaseServers::new::<pt::Pr>(endpoint, machines, login) }
    }

    async fn call<R: Rpc>(&self, args: R) -> Result<R::Reply, Error> {
        self.servers.call(&args).await
    }

    // ---- names and ids

    /// The ids of names; [`ViceId::ANONYMOUS`] for those that do not exist.
    ///
    /// # Errors
    ///
    /// The database's, and PRNAMETOOLONG for a name that no entry can have.
    pub async fn ids_of(&self, names: &[&str]) -> Result<Vec<ViceId>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let lowered: Result<Vec<_>, _> =
            names.iter().map(|name| name_in_list(&name.to_ascii_lowercase())).collect();
        let names = lowered?.try_into().map_err(|_| too_many())?;
        Ok(self.call(pt::NameToID { names }).await?.ids.into_vec())
    }

    /// The id of a name that must exist.
    ///
    /// # Errors
    ///
    /// The database's; PRNOENT if it does not exist.
    pub async fn id_of(&self, name: &str) -> Result<ViceId, Error> {
        match self.ids_of(&[name]).await?[..] {
            [id] => existing(id, name),
            _ => Err(wrong_count()),
        }
    }

    /// The names of ids; digits for those that do not exist.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn names_of(&self, ids: &[ViceId]) -> Result<Vec<String>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let list: IdList = ids.to_vec().try_into().map_err(|_| too_many())?;
        let names = self.call(pt::IDToName { ids: list }).await?.names;
        if names.len() != ids.len() {
            return Err(wrong_count());
        }
        Ok(names.iter().map(|name| shown(name.text())).collect())
    }

    // ---- entries

    /// Makes a user, with this id if one is given, and says its id.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn create_user(&self, name: &str, id: Option<ViceId>) -> Result<ViceId, Error> {
        self.create(name, pt::PRUSER, id, ViceId(0)).await
    }

    /// Makes a group, owned by the caller if no owner is given, and says its id.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn create_group(
        &self,
        name: &str,
        owner: Option<&str>,
        id: Option<ViceId>,
    ) -> Result<ViceId, Error> {
        name_in_list(name)?;
        let owner = match owner {
            Some(owner) => self.id_of(owner).await?,
            None => ViceId(0),
        };
        self.create(name, pt::PRGRP, id, owner).await
    }

    async fn create(
        &self,
        name: &str,
        flag: i32,
        id: Option<ViceId>,
        owner: ViceId,
    ) -> Result<ViceId, Error> {
        let name = name_alone(&name.to_ascii_lowercase())?;
        match id {
            Some(id) => self.call(pt::INewEntry { name, id, owner }).await.map(|_| id),
            None => self.call(pt::NewEntry { name, flag, owner }).await.map(|reply| reply.id),
        }
    }

    /// Removes an entry.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn delete(&self, id: ViceId) -> Result<(), Error> {
        self.call(pt::Delete { id }).await.map(drop)
    }

    /// An entry.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn entry(&self, id: ViceId) -> Result<Entry, Error> {
        let PrCheckEntry { flags, id, owner, creator, ngroups, nusers: _, count, reserved: _, name } =
            self.call(pt::ListEntry { id }).await?.entry;
        let name = shown(name.text());
        Ok(Entry { name, id, owner, creator, flags, group_quota: ngroups, membership: count })
    }

    /// All that the database has of an entry, but for most of its list. Administrators may ask for it.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn dump(&self, id: ViceId) -> Result<PrDebugEntry, Error> {
        let pos = self.call(pt::WhereIsIt { id }).await?.pos;
        self.call(pt::DumpEntry { pos }).await.map(|reply| reply.entry)
    }

    /// Entries from a place on, and the place of the next part, if there is one.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn entries(
        &self,
        flags: ListEntriesFlags,
        start_index: i32,
    ) -> Result<(Vec<Entry>, Option<i32>), Error> {
        let reply = self.call(pt::ListEntries { flags, start_index }).await?;
        let entry = |entry: &PrListEntry| Entry {
            name: shown(entry.name.text()),
            id: entry.id,
            owner: entry.owner,
            creator: entry.creator,
            flags: entry.flags,
            group_quota: entry.ngroups,
            membership: entry.count,
        };
        // A server that gives the same place again would give it for ever.
        let next = Some(reply.next_start_index).filter(|next| *next > start_index);
        Ok((reply.entries.iter().map(entry).collect(), next))
    }

    /// Gives an entry another name.
    ///
    /// # Errors
    ///
    /// PRBADNAM for an empty name; the database's.
    pub async fn rename(&self, name: &str, new_name: &str) -> Result<(), Error> {
        if new_name.is_empty() {
            // Servers take it for a change of something else.
            let what = "a user or group cannot have an empty name".to_owned();
            return Err(Error::Local { what, code: PRBADNAM });
        }
        let id = self.id_of(name).await?;
        let name = name_alone(new_name)?;
        self.call(pt::ChangeEntry { id, name, owner: ViceId(0), new_id: ViceId(0) }).await.map(drop)
    }

    /// Gives an entry another owner.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn change_owner(&self, name: &str, owner: &str) -> Result<(), Error> {
        let id = self.id_of(name).await?;
        let owner = if owner.is_empty() { ViceId(0) } else { self.id_of(owner).await? };
        self.call(pt::ChangeEntry { id, name: name_alone("")?, owner, new_id: ViceId(0) }).await.map(drop)
    }

    /// Sets privacy and quota of an entry, those of them that are given.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn set_fields(
        &self,
        id: ViceId,
        flags: Option<Privacy>,
        group_quota: Option<i32>,
    ) -> Result<(), Error> {
        let mut mask = SetFieldsMask::NONE;
        if flags.is_some() {
            mask |= SetFieldsMask::ALL_FLAGS;
        }
        if group_quota.is_some() {
            mask |= SetFieldsMask::NGROUPS;
        }
        let (flags, ngroups) = (flags.map_or(0, |flags| flags.0), group_quota.unwrap_or(0));
        let fields = pt::SetFieldsEntry { id, mask, flags, ngroups, nusers: 0, spare1: 0, spare2: 0 };
        self.call(fields).await.map(drop)
    }

    // ---- groups

    /// Puts a user into a group.
    ///
    /// # Errors
    ///
    /// The database's; PRNOENT if one of them does not exist.
    pub async fn add(&self, user: &str, group: &str) -> Result<(), Error> {
        let (uid, gid) = self.pair(user, group).await?;
        self.add_to_group(uid, gid).await
    }

    /// Puts a user into a group by their ids.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn add_to_group(&self, uid: ViceId, gid: ViceId) -> Result<(), Error> {
        self.call(pt::AddToGroup { uid, gid }).await.map(drop)
    }

    /// Takes a user out of a group.
    ///
    /// # Errors
    ///
    /// The database's; PRNOENT if one of them does not exist.
    pub async fn remove(&self, user: &str, group: &str) -> Result<(), Error> {
        let (id, gid) = self.pair(user, group).await?;
        self.call(pt::RemoveFromGroup { id, gid }).await.map(drop)
    }

    async fn pair(&self, user: &str, group: &str) -> Result<(ViceId, ViceId), Error> {
        match self.ids_of(&[user, group]).await?[..] {
            [uid, gid] => Ok((existing(uid, user)?, existing(gid, group)?)),
            _ => Err(wrong_count()),
        }
    }

    /// Tells whether a user is in a group.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn is_member(&self, user: &str, group: &str) -> Result<bool, Error> {
        match self.ids_of(&[user, group]).await?[..] {
            [uid, gid] => self.call(pt::IsAMemberOf { uid, gid }).await.map(|reply| reply.flag != 0),
            _ => Err(wrong_count()),
        }
    }

    /// The members of a group, or the groups of a user.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn elements(&self, id: ViceId) -> Result<Ids, Error> {
        let reply = self.call(pt::ListElements { id }).await?;
        Ok(Ids { ids: reply.ids.into_vec(), is_cut: reply.over != 0 })
    }

    /// All ids with which a user is on access lists: their own, and those of groups, also of the groups of all users.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn access_ids(&self, id: ViceId) -> Result<Ids, Error> {
        let reply = self.call(pt::GetCPS { id }).await?;
        Ok(Ids { ids: reply.ids.into_vec(), is_cut: reply.over != 0 })
    }

    /// The groups that a group is in.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn supergroups(&self, id: ViceId) -> Result<Ids, Error> {
        let reply = self.call(pt::ListSuperGroups { id }).await?;
        Ok(Ids { ids: reply.ids.into_vec(), is_cut: reply.over != 0 })
    }

    /// The groups that an entry owns, one part of them, and what to ask for the next with; 0 is both the beginning and the
    /// end.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn owned(&self, id: ViceId, last: i32) -> Result<(Vec<ViceId>, i32), Error> {
        let reply = self.call(pt::ListOwned { id, last }).await?;
        Ok((reply.ids.into_vec(), reply.last))
    }

    // ---- ids that are given

    /// The highest id of a user and the lowest of a group.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn max(&self) -> Result<(ViceId, ViceId), Error> {
        self.call(pt::ListMax {}).await.map(|reply| (reply.uid, reply.gid))
    }

    /// Sets the highest id of a user.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn set_max_user(&self, id: ViceId) -> Result<(), Error> {
        self.call(pt::SetMax { id, gflag: pt::PRUSER }).await.map(drop)
    }

    /// Sets the lowest id of a group.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn set_max_group(&self, id: ViceId) -> Result<(), Error> {
        self.call(pt::SetMax { id, gflag: pt::PRGRP }).await.map(drop)
    }
}

fn existing(id: ViceId, name: &str) -> Result<ViceId, Error> {
    if id != ViceId::ANONYMOUS {
        return Ok(id);
    }
    Err(Error::Local { what: format!("no user or group is called {name}"), code: PRNOENT })
}

fn too_long(name: &str) -> Error {
    let what = format!("the name {name} is longer than the {} bytes of an entry", PR_MAXNAMELEN - 1);
    Error::Local { what, code: PRNAMETOOLONG }
}

fn too_many() -> Error {
    Error::Local { what: "more names or ids than a call can have".to_owned(), code: PRINTERNAL }
}

fn wrong_count() -> Error {
    let what = "the protection server gave more or fewer names or ids than it was asked for".to_owned();
    Error::Local { what, code: PRINTERNAL }
}

fn name_in_list(name: &str) -> Result<PrNameVec, Error> {
    PrNameVec::from_text(name).map_err(|_| too_long(name))
}

/// A name as an argument of its own, which must fit into an entry too.
fn name_alone(name: &str) -> Result<PrName, Error> {
    if name.len() >= PR_MAXNAMELEN {
        return Err(too_long(name));
    }
    PrName::try_from(name).map_err(|_| too_long(name))
}
