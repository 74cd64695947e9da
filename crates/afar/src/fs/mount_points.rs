//! Mount points: `lsmount`, `mkmount`, `rmmount`, `flushmount`. What the path of one names, which the kernel would follow into
//! the volume that is mounted there, is in `mount_points/path.rs`.

mod path;

use super::client::Client;
use super::errors::{EINVAL, ENOENT, Failure};
use super::place::{Found, Links, client_of};
use super::{FAILURE, Fs, Target};
use crate::calls::Caller;
use crate::classic::Given;
use crate::codes::Code;
use crate::login::caller_or_nobody;
use crate::output::{harmless, text_of};
use crate::printer::{complain, say};
use afs_admin::vldb::LocationDb;
use afs_wire::control::{self, KnownCell, Place};
use afs_wire::ids;
use path::{LastComponent, parent};
use serde_json::{Value, json};
use std::path::Path;

/// Bytes that the name of a volume has less than, as `mkmount` sees it.
const VOLUME_NAME_MAX: usize = 64;

/// `fs lsmount`.
pub(super) fn list(fs: &Fs, given: &Given) -> u8 {
    let mut told = Vec::new();
    let status = each(fs, given, "dir", |target, component| {
        let (client, dir, name) = component.directory()?;
        let reply = client.call(&control::ReadMountPoint { dir, name })?;
        let volume = harmless(&String::from_utf8_lossy(&reply.target));
        let via = if component.via_symlink { "symbolic link, leading to a " } else { "" };
        match given.has("json") {
            true => told.push(json!({ "path": target.shown, "target": volume })),
            false => say!(fs.printer, "'{}' is a {via}mount point for volume '{volume}'\n", target.shown),
        }
        Ok(())
    });
    if given.has("json") {
        fs.printer.say_json(&Value::Array(told));
    }
    status
}

/// `fs flushmount`.
pub(super) fn flush(fs: &Fs, given: &Given) -> u8 {
    each(fs, given, "path", |_, component| {
        let (client, dir, name) = component.directory()?;
        client.call(&control::FlushMountPoint { dir, name }).map(drop)
    })
}

/// Runs `work` for one mount point after the other.
fn each(
    fs: &Fs,
    given: &Given,
    option: &str,
    mut work: impl FnMut(&Target, &LastComponent) -> Result<(), Failure>,
) -> u8 {
    let mut status = 0;
    for target in &Target::all(given, option) {
        let done = match LastComponent::of(&target.path) {
            Ok(component) => work(target, &component),
            Err(complaint) => {
                complain!(fs.printer, "{complaint}");
                status = FAILURE;
                continue;
            }
        };
        if let Err(failure) = done {
            status = FAILURE;
            match failure.errno() {
                Some(EINVAL) => complain!(fs.printer, "'{}' is not a mount point.\n", target.shown),
                _ => fs.complain(&failure, Some(&target.shown)),
            }
        }
    }
    status
}

/// `fs rmmount`.
pub(super) fn remove(fs: &Fs, given: &Given) -> u8 {
    let mut status = 0;
    for target in &Target::all(given, "dir") {
        let removed = LastComponent::written(&target.path)
            .directory()
            .and_then(|(client, dir, name)| client.call(&control::RemoveMountPoint { dir, name }).map(drop));
        if let Err(failure) = removed {
            status = FAILURE;
            match failure.errno() {
                Some(EINVAL) => complain!(fs.printer, "fs: '{}' is not a mount point.\n", target.shown),
                _ => fs.complain(&failure, Some(&target.shown)),
            }
        }
    }
    status
}

/// `fs mkmount`.
pub(super) fn make(fs: &Fs, given: &Given) -> u8 {
    match try_make(fs, given) {
        Ok(()) => 0,
        Err(status) => status,
    }
}

fn try_make(fs: &Fs, given: &Given) -> Result<(), u8> {
    let complain = |text: &str| {
        complain!(fs.printer, "fs: {text}\n");
        FAILURE
    };
    let target = Target::all(given, "dir").into_iter().next().ok_or(FAILURE)?;
    let wanted = given.word("vol").unwrap_or_default();
    if wanted.len() >= VOLUME_NAME_MAX {
        return Err(complain("volume name too long (length must be < 64 characters)"));
    }
    let (cell, volume) = match (wanted.split_once(':'), given.word("cell")) {
        (Some((cell, _)), Some(given)) if !cell.eq_ignore_ascii_case(given) => {
            return Err(complain("cellnames do not match."));
        }
        (Some((cell, volume)), _) => (Some(cell), volume),
        (None, cell) => (cell, wanted),
    };
    let folder = parent(&target.path);
    let found = match Found::at(&folder, Links::Follow) {
        Ok(found) => found,
        Err(Failure::Errno(EINVAL | ENOENT)) => {
            return Err(complain("mount points must be created within the AFS file system"));
        }
        Err(failure) => {
            fs.complain(&failure, Some(&text_of(folder.as_os_str())));
            return Err(FAILURE);
        }
    };
    let client = client_of(&folder, Links::Follow).map_err(|failure| {
        fs.complain(&failure, Some(&target.shown));
        FAILURE
    })?;
    let known = fs.find_cell(&client, cell.unwrap_or(&found.cell))?;
    if !given.has("fast") && is_unknown(&known, volume) {
        let cell = cell.unwrap_or(&found.cell);
        complain!(fs.printer, "fs: warning, volume {volume} does not exist in cell {cell}.\n");
    }
    let kind = if given.has("rw") { '%' } else { '#' };
    let prefix = if cell.is_some() { format!("{}:", known.name) } else { String::new() };
    let made = LastComponent::written(&target.path).name().and_then(|name| {
        let target = format!("{kind}{prefix}{volume}");
        let target = ids::Path::new(target).map_err(|_| Failure::Errno(EINVAL))?;
        client.call(&control::MakeMountPoint { dir: found.place()?, name, target }).map(drop)
    });
    made.map_err(|failure| {
        fs.complain(&failure, Some(&target.shown));
        FAILURE
    })
}

/// True if the cell's database says that it has no such volume. Where it says nothing, that is no reason to warn.
fn is_unknown(cell: &KnownCell, volume: &str) -> bool {
    let Ok(caller) = Caller::new() else { return false };
    let machines: Vec<_> = cell.servers.iter().map(|server| server.ip()).collect();
    let login = caller_or_nobody(&caller, &cell.name.to_string());
    let database = LocationDb::new(caller.endpoint(), &machines, &login);
    matches!(caller.wait(database.entry_by_name(volume)), Err(Code::VL_NOENT))
}

impl LastComponent {
    /// The directory, with the client that serves it, and the name in it.
    fn directory(&self) -> Result<(Client, Place, ids::Name), Failure> {
        let name = self.name()?;
        let dir: &Path = &self.dir;
        let place = Found::at(dir, Links::Follow)?.place()?;
        Ok((client_of(dir, Links::Follow)?, place, name))
    }

    fn name(&self) -> Result<ids::Name, Failure> {
        use std::os::unix::ffi::OsStrExt;
        if self.name.is_empty() {
            return Err(Failure::Errno(ENOENT));
        }
        ids::Name::new(self.name.as_bytes()).map_err(|_| Failure::Errno(EINVAL))
    }
}
