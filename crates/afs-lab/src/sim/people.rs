//! A protection database that is a table.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use afs_fileserver::{Answer, Membership, Protection};
use afs_wire::ids::ViceId;

/// The name of the user who administers.
pub const ADMINISTRATOR: &str = "admin";

/// The groups that are there without being made.
const SYSTEM: [(&str, ViceId); 3] = [
    ("system:anyuser", ViceId::SYSTEM_ANYUSER),
    ("system:authuser", ViceId::SYSTEM_AUTHUSER),
    ("system:administrators", ViceId::SYSTEM_ADMINISTRATORS),
];

/// Users and groups, by name and id. Clones share their members.
#[derive(Clone, Debug, Default)]
pub struct People {
    names: Vec<(String, ViceId)>,
    /// The users that were put into groups; nobody stands for all hosts.
    members: Arc<Mutex<Vec<(ViceId, ViceId)>>>,
}

impl People {
    /// These, beside the system's groups.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = (S, ViceId)>) -> Self {
        let names = names.into_iter().map(|(name, id)| (name.into(), id));
        let system = SYSTEM.map(|(name, id)| (name.to_owned(), id));
        Self { names: names.chain(system).collect(), members: Arc::default() }
    }

    /// Puts a user into a group.
    pub fn add(&self, user: ViceId, group: ViceId) {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).push((user, group));
    }

    /// Puts all hosts into a group.
    pub fn add_hosts(&self, group: ViceId) {
        self.add(ViceId::ANONYMOUS, group);
    }

    fn groups_of(&self, user: ViceId) -> Vec<ViceId> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.iter().filter(|(member, _)| *member == user).map(|(_, group)| *group).collect()
    }

    fn id(&self, name: &str) -> Option<ViceId> {
        self.names.iter().find(|(known, _)| known == name).map(|(_, id)| *id)
    }
}

impl Protection for People {
    fn membership<'a>(&'a self, identity: &'a str) -> Answer<'a, Membership> {
        Box::pin(async move {
            let Some(id) = self.id(identity) else { return Ok(Membership::anonymous()) };
            let mut groups = vec![id, ViceId::SYSTEM_ANYUSER, ViceId::SYSTEM_AUTHUSER];
            groups.extend(self.is_superuser(identity).then_some(ViceId::SYSTEM_ADMINISTRATORS));
            groups.extend(self.groups_of(id));
            Ok(Membership { id, groups })
        })
    }

    fn host_groups(&self, _host: IpAddr) -> Answer<'_, Vec<ViceId>> {
        Box::pin(async { Ok(self.groups_of(ViceId::ANONYMOUS)) })
    }

    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>> {
        Box::pin(async move { Ok(names.iter().map(|name| self.id(name)).collect()) })
    }

    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>> {
        let name = |id: &ViceId| {
            let found = self.names.iter().find(|(_, known)| known == id);
            found.map_or_else(|| id.to_string(), |(name, _)| name.clone())
        };
        let names = ids.iter().map(name).collect();
        Box::pin(async move { Ok(names) })
    }

    fn is_superuser(&self, identity: &str) -> bool {
        identity == ADMINISTRATOR
    }
}
