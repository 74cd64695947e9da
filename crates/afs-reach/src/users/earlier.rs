//! Persons of an earlier run: users by their number on this machine and their name in a cell, as the client has known what they may do. Both count:
//! whoever gives another's name with a token that no server has seen yet is still not the user who had it.

use std::sync::Arc;

use super::{IdentityIndex, Users};
use crate::fid::CellIndex;

impl Users {
    /// The number that stands for a person of an earlier run, which is nobody's else: [`Self::as_earlier`] tells who that is now. Anonymous users
    /// are the same in each run.
    pub fn earlier_person(&self, cell: CellIndex, uid: u32, name: Arc<str>) -> IdentityIndex {
        if name.is_empty() {
            return IdentityIndex::NOBODY;
        }
        let mut identities = self.identities_mut();
        let next = identities.last.checked_add(1).expect("fewer than 2^32 persons in the life of a client");
        let who = *identities.earlier.entry((uid, cell, name)).or_insert(IdentityIndex(next));
        identities.last = identities.last.max(who.0);
        who
    }

    /// The person of an earlier run that an identity is, if what was known of it then is kept.
    pub fn as_earlier(&self, who: IdentityIndex) -> Option<IdentityIndex> {
        let identities = self.identities();
        if identities.earlier.is_empty() {
            return None;
        }
        let login = identities.logins.get(&who)?;
        let mut users = identities.who.iter().filter(|(_, theirs)| **theirs == who);
        users.find_map(|((user, cell), _)| {
            identities.earlier.get(&(user.uid, *cell, Arc::clone(&login.noted))).copied()
        })
    }

    /// The users who are an identity, by their numbers on this machine, with their name in the cell: none if nobody is it any more. An anonymous one
    /// has no name.
    pub fn persons(&self, who: IdentityIndex) -> Vec<(u32, Arc<str>)> {
        if who == IdentityIndex::NOBODY {
            return vec![(0, Arc::default())];
        }
        let identities = self.identities();
        let Some(login) = identities.logins.get(&who) else {
            let mut earlier = identities.earlier.iter().filter(|(_, theirs)| **theirs == who);
            return earlier.next().map(|((uid, _, name), _)| (*uid, Arc::clone(name))).into_iter().collect();
        };
        let users = identities.who.iter().filter(|(_, theirs)| **theirs == who);
        let mut uids: Vec<_> = users.map(|((user, _), _)| user.uid).collect();
        uids.sort_unstable();
        uids.dedup();
        uids.into_iter().map(|uid| (uid, Arc::clone(&login.noted))).collect()
    }
}
