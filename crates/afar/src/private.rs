//! Privacy towards other users of this machine, who may not have of ours: files that are made, folders that an older release or an
//! administrator has left open, and the keys in a process's memory.

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit, umask};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// The public part of a state folder: clients and tools find the cell there. Its folder `server` is not public.
const PUBLIC: &str = "etc";

/// Prepares a process that holds keys: the files that it makes are for its user alone, it leaves no core dump, and no process of the same
/// user looks into its memory.
pub(crate) fn begin() {
    umask(Mode::from_raw_mode(0o077));
    hide_memory();
}

/// The part of it for a process that makes files for others too.
pub(crate) fn hide_memory() {
    // Where the system refuses one of these there is nothing that its user could do.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Makes a folder that its owner alone may enter, or takes others' rights away from one that is there: so nothing below it is theirs,
/// whatever its mode.
///
/// # Errors
///
/// When it cannot be made, or belongs to somebody else.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    if !path.exists() {
        return fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    }
    set_mode(path, 0o700)
}

/// Does the same for a folder with the state of servers. Its `etc` stays public.
///
/// # Errors
///
/// As [`folder`].
pub(crate) fn state_folder(path: &Path) -> io::Result<()> {
    if !path.exists() {
        fs::DirBuilder::new().recursive(true).mode(0o711).create(path)?;
    }
    // Others may pass through it, and not see what is in it.
    set_mode(path, 0o711)?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match (entry.file_type()?, entry.file_name() == PUBLIC) {
            (kind, true) if kind.is_dir() => public_folder(&entry.path())?,
            (kind, false) if kind.is_dir() => set_mode(&entry.path(), 0o700)?,
            (kind, false) if kind.is_file() => set_mode(&entry.path(), 0o600)?,
            _ => {}
        }
    }
    Ok(())
}

/// `etc` and the files in it are for everybody; what is in `etc/server` is not.
///
/// # Errors
///
/// As [`folder`].
pub(crate) fn public_folder(path: &Path) -> io::Result<()> {
    set_mode(path, 0o755)?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            set_mode(&entry.path(), 0o700)?;
        } else if kind.is_file() {
            set_mode(&entry.path(), 0o644)?;
        }
    }
    Ok(())
}

/// Sets a mode, unless it is so. A file system without modes, or another's folder in ours, is left as it is.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let has = fs::symlink_metadata(path)?.permissions().mode() & 0o7777;
    // A mode that gives less is somebody's wish.
    if has & !mode == 0 {
        return Ok(());
    }
    match fs::set_permissions(path, Permissions::from_mode(mode)) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        // It is somebody else's, who gives this user what is needed; whether that is enough is found out where it is used.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::warn!(path = %path.display(), "others may read this, and it belongs to somebody else");
            Ok(())
        }
        set => set,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_that_was_open_is_closed_but_for_what_clients_need() {
        let folder = std::env::temp_dir().join(format!("afar-private-{}", std::process::id()));
        fs::create_dir_all(folder.join("etc/server")).unwrap();
        fs::create_dir_all(folder.join("cache/data")).unwrap();
        for name in ["lock", "etc/CellServDB", "etc/server/KeyFileExt", "cache/data/file"] {
            fs::write(folder.join(name), "").unwrap();
            fs::set_permissions(folder.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        for name in ["", "etc", "etc/server", "cache"] {
            fs::set_permissions(folder.join(name), Permissions::from_mode(0o755)).unwrap();
        }
        state_folder(&folder).unwrap();
        let modes = [
            ("", 0o711),
            ("lock", 0o600),
            ("cache", 0o700),
            ("etc", 0o755),
            ("etc/CellServDB", 0o644),
            ("etc/server", 0o700),
        ];
        for (name, mode) in modes {
            let has = fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o7777;
            assert_eq!(has, mode, "{name}: {has:o}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
