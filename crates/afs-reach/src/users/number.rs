//! Who an identity is to a cell's servers: the number that they put into what it stores and makes. Tickets do not tell it to a client, so it is known
//! from the first such answer on. Whoever gave the token may have told it too, but need not be right.

use std::sync::PoisonError;

use afs_wire::ids::ViceId;

use super::{IdentityIndex, Users};

impl Users {
    /// True if an identity is the one whom servers name by this number, as the author of data or the owner of a file. `None`: that is not known.
    pub fn is_called(&self, who: IdentityIndex, number: ViceId) -> Option<bool> {
        if who == IdentityIndex::NOBODY {
            return Some(number == ViceId::ANONYMOUS);
        }
        let login = self.login(who)?;
        let shown = *login.number.lock().unwrap_or_else(PoisonError::into_inner);
        match shown {
            Some(shown) => Some(shown == number),
            None => (login.holder().id == Some(number)).then_some(true),
        }
    }

    /// A server has shown an identity's number, in what the identity has just stored or made.
    pub fn note_number(&self, who: IdentityIndex, number: ViceId) {
        if let Some(login) = self.login(who) {
            *login.number.lock().unwrap_or_else(PoisonError::into_inner) = Some(number);
        }
    }
}
