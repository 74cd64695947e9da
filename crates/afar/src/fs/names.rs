//! The entries of an access list that have nobody behind them: a server shows an id that the protection database does not know
//! as a number. But a user or group may have a number for its name, and a server may show an id because the name does not fit
//! into the list; so the database is asked.

use super::Served;
use crate::calls::Caller;
use crate::login::caller_or_nobody;
use afs_admin::ptdb::ProtectionDb;
use afs_wire::control;
use afs_wire::ids::ViceId;

/// The protection database of a cell, asked when there is something to ask.
pub(super) struct Directory<'a> {
    served: &'a Served,
    /// `None` until it is needed; then `None` inside where it cannot be asked.
    opened: Option<Option<(Caller, ProtectionDb)>>,
}

impl<'a> Directory<'a> {
    /// Makes the names of the cell where this is.
    pub(super) const fn of_cell(served: &'a Served) -> Self {
        Self { served, opened: None }
    }

    /// True if a name is a number that no user and no group has for a name or an id. Where the database does not answer, nobody
    /// is taken for nobody.
    pub(super) fn is_of_nobody(&mut self, name: &str) -> bool {
        is_number(name)
            && self.id_of(name) == Some(ViceId::ANONYMOUS)
            && self.has_no_such_id(name) == Some(true)
    }

    fn id_of(&mut self, name: &str) -> Option<ViceId> {
        let (caller, database) = self.open()?;
        caller.wait(database.ids_of(&[name])).ok()?.first().copied()
    }

    fn has_no_such_id(&mut self, number: &str) -> Option<bool> {
        let Ok(id) = number.parse() else { return Some(true) };
        let (caller, database) = self.open()?;
        let names = caller.wait(database.names_of(&[ViceId(id)])).ok()?;
        // Of an id that there is not, its digits are told.
        names.first().map(|name| *name == id.to_string())
    }

    fn open(&mut self) -> Option<&(Caller, ProtectionDb)> {
        self.opened.get_or_insert_with(|| open(self.served)).as_ref()
    }
}

fn open(served: &Served) -> Option<(Caller, ProtectionDb)> {
    let name = served.place.cell.clone();
    let cell = name.to_string();
    let servers = served.client.call(&control::FindCell { name }).ok()?.cell.servers;
    let caller = Caller::new().ok()?;
    let machines: Vec<_> = servers.iter().map(|server| server.ip()).collect();
    let login = caller_or_nobody(&caller, &cell);
    let database = ProtectionDb::new(caller.endpoint(), &machines, &login);
    Some((caller, database))
}

/// True if a name has digits and signs only.
fn is_number(name: &str) -> bool {
    name.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_are_looked_up() {
        for (name, is) in [("1234", true), ("-205", true), ("a1", false), ("system:anyuser", false)] {
            assert_eq!(is_number(name), is, "{name}");
        }
    }
}
