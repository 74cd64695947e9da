//! The folder on which a client is mounted: which one by default, whether it is free, and what a crash has left there.

use fuse_dev::{MountPoint, StateOf, state_of};
use rustix::fs::FsWord;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Mounts left by crashes that are removed from one folder, one upon the other. More are somebody's loop.
const DEAD_MAX: usize = 16;

/// The kind of file system that we mount, as the kernel lists it.
pub(crate) const OUR_KIND: &str = "fuse.afar";

/// The default path at which a cell is mounted: /afs for root, if that is free, else in the home folder.
pub(crate) fn default_for(is_root: bool, home: Option<&Path>) -> Result<PathBuf, String> {
    let usual = Path::new("/afs");
    if is_root {
        let is_free = match state_of(usual) {
            StateOf::Missing | StateOf::Folder { is_empty: true } => true,
            StateOf::Dead(mount) => mount.kind == OUR_KIND,
            StateOf::NotAFolder
            | StateOf::Folder { is_empty: false }
            | StateOf::Mounted(_)
            | StateOf::Hanging(_)
            | StateOf::Unreadable(_) => false,
        };
        if is_free {
            return Ok(usual.to_owned());
        }
    }
    match home {
        Some(home) => Ok(home.join("afs")),
        None => Err("HOME is not set: say where to mount with --mount DIR".to_owned()),
    }
}

/// Makes a folder fit to be mounted on: it is made if it is missing, and what a crash has left is unmounted. Says what was done
/// that its owner should know.
///
/// # Errors
///
/// Why it cannot be used, and what to do.
pub(crate) fn prepare(path: &Path) -> Result<Vec<String>, String> {
    let mut notes = Vec::new();
    for _ in 0..DEAD_MAX {
        match state_of(path) {
            StateOf::Dead(mount) => {
                remove_dead(path, &mount)?;
                notes.push(format!("{}: removed a dead mount that a crash had left", path.display()));
            }
            state => return check(path, state).map(|()| notes),
        }
    }
    Err(format!("{}: too many dead mounts lie on each other: unmount them with 'umount -l'", path.display()))
}

fn remove_dead(path: &Path, mount: &MountPoint) -> Result<(), String> {
    if !mount.kind.starts_with("fuse") {
        return Err(format!("{}: a dead {} is mounted there: unmount it", path.display(), mount.kind));
    }
    fuse_dev::mount::unmount(path, true).map_err(|error| {
        format!(
            "{}: a file system whose process has ended is mounted there, and afar cannot unmount it ({error}): as root, run \
             'umount -l {}'",
            path.display(),
            path.display()
        )
    })
}

/// Makes the folder, and those above it, for everybody to pass through, whatever this process makes otherwise.
fn make(path: &Path) -> std::io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    for folder in missing.iter().rev() {
        fs::create_dir(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn check(path: &Path, state: StateOf) -> Result<(), String> {
    let shown = path.display();
    match state {
        StateOf::Folder { is_empty: true } => Ok(()),
        StateOf::Missing => make(path)
            .map_err(|error| format!("cannot make the mount point {shown}: {error}; choose another folder")),
        StateOf::NotAFolder => Err(format!("{shown} is not a folder: choose another mount point")),
        StateOf::Folder { is_empty: false } => Err(format!(
            "{shown} is not empty, and the mount would hide its files: choose another mount point"
        )),
        StateOf::Mounted(mount) => {
            let who = if mount.kind == OUR_KIND { "another afar" } else { mount.kind.as_str() };
            Err(format!("{who} is mounted on {shown} already: unmount it, or choose another mount point"))
        }
        StateOf::Hanging(mount) => Err(format!(
            "a {} that does not answer is mounted on {shown}: end its process, or run 'umount -l {shown}'",
            mount.kind
        )),
        StateOf::Unreadable(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(format!("{shown} cannot be read: {error}; choose another mount point"))
        }
        StateOf::Unreadable(error) => Err(format!("{shown} cannot be read: {error}")),
        StateOf::Dead(mount) => remove_dead(path, &mount),
    }
}

/// True if a folder is on a file system that is stacked on others, as in containers.
pub(crate) fn is_stacked(folder: &Path) -> bool {
    /// `OVERLAYFS_SUPER_MAGIC` of `statfs(2)`.
    const OVERLAY: FsWord = 0x794c_7630;
    rustix::fs::statfs(folder).is_ok_and(|stat| stat.f_type == OVERLAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_made_and_has_to_be_empty() {
        let root = std::env::temp_dir().join(format!("afar-mount-point-{}", std::process::id()));
        let path = root.join("a/b");
        assert_eq!(prepare(&path), Ok(Vec::new()));
        assert_eq!(prepare(&path), Ok(Vec::new()), "it may be there already");
        fs::write(path.join("file"), "").unwrap();
        assert!(prepare(&path).unwrap_err().contains("is not empty"));
        assert!(prepare(&path.join("file")).unwrap_err().contains("is not a folder"));
        assert!(prepare(Path::new("/proc")).unwrap_err().contains("proc is mounted"));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn ordinary_users_mount_in_their_home() {
        assert_eq!(default_for(false, Some(Path::new("/srv/x"))), Ok(PathBuf::from("/srv/x/afs")));
        assert!(default_for(false, None).is_err());
    }
}
