//! `afar mount --localauth`: the user who mounts is a user of the cell by its key, which is in the folder of the
//! servers' configuration. The client makes their tickets, as that of `afar up` does. All others are anonymous, as
//! without the option.

use crate::calls::Caller;
use crate::classic::Given;
use crate::login;
use afs_admin::Login;
use afs_admin::ptdb::ProtectionDb;
use afs_client::Config;
use afs_client::config::LocalUser;
use afs_config::CellName;
use afs_fuse::Owner;
use afs_wire::ids::ViceId;
use rustix::process::getuid;
use rx_security::KeySet;
use std::path::Path;

/// The name of the servers' configuration in that of the client.
const SERVER_FOLDER: &str = "server";

/// Logs the user in who mounts, if that is wished. Returns their number in the cell if it differs from the one here;
/// their files are shown as theirs.
///
/// # Errors
///
/// When there is no key, or nobody whom it could be for.
pub(super) fn log_in(given: &Given, folder: &Path, client: &mut Config) -> Result<Option<Owner>, String> {
    if !given.has("localauth") {
        return match given.has("as") {
            true => Err("--as works only with --localauth".to_owned()),
            false => Ok(None),
        };
    }
    let folder = folder.join(SERVER_FOLDER);
    let keys = KeySet::load(&folder)
        .map_err(|error| format!("cannot read the key of the cell in {}: {error}", folder.display()))?;
    let name = match given.word("as") {
        Some(name) => name.to_owned(),
        None => login::first_superuser(&folder)
            .map_err(|error| format!("{error}; give your name in the cell with --as"))?,
    };
    let (uid, cell) = (getuid().as_raw(), client.cell.clone());
    client.keys = vec![(cell.clone(), keys)];
    client.users = vec![LocalUser { uid, cell: cell.clone(), name: name.clone() }];
    let by_key = |caller: &Caller| {
        let (_, keys) = client.keys.first()?;
        login::user_by_key(keys, &name, cell.as_str(), caller.seed().ok()?).ok()
    };
    Ok(match id_of(client, &cell, &name, by_key) {
        Some(ViceId::ANONYMOUS) => {
            return Err(format!("there is no user {name} in the cell {cell}: give another name with --as"));
        }
        Some(id) if i64::from(id.0) == i64::from(uid) => None,
        Some(id) => Some(Owner { cell, id, uid }),
        // The databases may come later. Files are shown with the cell's numbers then.
        None => None,
    })
}

/// The number of a user, if the databases of their cell answer. The user asks, so that nobody on the way hears the name.
pub(super) fn id_of(
    client: &Config,
    cell: &CellName,
    name: &str,
    user: impl FnOnce(&Caller) -> Option<Login>,
) -> Option<ViceId> {
    let servers = &client.cells.find(cell.as_str())?.servers;
    let caller = Caller::new().ok()?;
    let machines: Vec<_> = servers.iter().map(|server| server.address).collect();
    let database = ProtectionDb::new(caller.endpoint(), &machines, &user(&caller)?);
    caller.wait(database.ids_of(&[name])).ok()?.first().copied()
}
