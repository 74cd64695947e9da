//! `afar mount` of a machine that has joined the cell: the user who mounts is the one for whom it is a device, by the key in the folder of
//! configuration. All others are anonymous.

use super::key_holder::id_of;
use crate::calls::Caller;
use crate::joined::Joined;
use crate::login::clock;
use afs_admin::Login;
use afs_client::join::{Device, Refused};
use afs_client::{Client, Config, User};
use afs_config::CellName;
use afs_fuse::Owner;
use afs_wire::ids::ViceId;
use rustix::process::getuid;
use rx::Endpoint;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Mutex;

/// The device whose key is in a folder.
///
/// # Errors
///
/// When the file cannot be read or is damaged, or the machine has not joined to the end.
pub(crate) fn of_folder(folder: &Path) -> Result<Option<(PathBuf, Device)>, String> {
    let Some(Joined { member, servers, registered }) = Joined::read(folder)? else { return Ok(None) };
    let Some((user, _)) = registered else {
        return Err(format!(
            "this machine has not joined {} yet: 'afar join --folder {}' was cut off; run it again",
            member.cell,
            folder.display()
        ));
    };
    Ok(Some((folder.to_owned(), Device { member, servers, user })))
}

/// The user who mounts, if they have another number in the cell, and its databases answer.
pub(super) fn owner((folder, device): &mut (PathBuf, Device), client: &Config) -> Option<Owner> {
    let cell = CellName::new(device.member.cell.as_str())?;
    let uid = getuid().as_raw();
    let name = device.user.clone();
    let by_device = |caller: &Caller| {
        let token = caller.run(device.renew(caller.endpoint())).ok()?;
        keep(folder, device);
        Some(Login::anonymous().and_rxgk(token, clock(), caller.seed().ok()?))
    };
    let id = id_of(client, &cell, &name, by_device)?;
    let is_other = id != ViceId::ANONYMOUS && i64::from(id.0) != i64::from(uid);
    is_other.then_some(Owner { cell, id, uid })
}

/// Has the client get tokens for the user who mounts.
///
/// # Errors
///
/// When the client does not know the cell.
pub(super) async fn log_in(client: &Client, folder: PathBuf, device: Device) -> Result<(), String> {
    let (cell, name) = (device.member.cell.as_str().to_owned(), device.user.clone());
    let of = Arc::new((folder, Mutex::new(device)));
    let ask = move |endpoint: Endpoint| {
        let of = Arc::clone(&of);
        async move {
            let mut device = of.1.lock().await;
            let token = device.renew(&endpoint).await?;
            keep(&of.0, &device);
            Ok::<_, Refused>(token)
        }
    };
    let logged_in = client.log_in_by_device(User::of(getuid().as_raw()), (&cell, &name), ask).await;
    logged_in.map_err(|error| error.to_string())
}

/// Keeps the key by which the cell is known, if it is another one: the cell takes the old one no more some day.
pub(crate) fn keep(folder: &Path, device: &Device) {
    let kept = Joined::read(folder).and_then(|joined| match joined {
        Some(mut joined) if joined.member.key != device.member.key => {
            joined.member.key = device.member.key;
            joined.write(folder)
        }
        Some(_) | None => Ok(()),
    });
    if let Err(error) = kept {
        tracing::warn!(
            error,
            "the cell's new key cannot be kept: join again if the device gets no tokens some day"
        );
    }
}
