//! The path of a mount point, split into the directory that has it and its name there: asked as a whole, the kernel would answer
//! for the volume that is mounted.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LastComponent {
    pub(super) dir: PathBuf,
    pub(super) name: OsString,
    /// True if the path was that of a symbolic link, which was followed.
    pub(super) via_symlink: bool,
}

impl LastComponent {
    /// Finds the mount point of a path. A symbolic link is followed once. The error is the complaint.
    pub(super) fn of(path: &Path) -> Result<Self, String> {
        let path = without_slashes(path);
        let mut plain = if path.is_absolute() { path.clone() } else { Path::new(".").join(&path) };
        // What cannot be looked at, such as the mount point of a volume that is offline, is no symbolic link.
        let via_symlink = fs::symlink_metadata(&plain).is_ok_and(|status| status.is_symlink());
        if via_symlink {
            let target = match fs::read_link(&plain) {
                Ok(target) if !target.as_os_str().is_empty() => target,
                Ok(_) | Err(_) => {
                    let shown = plain.display();
                    return Err(format!("fs: Can't read target name for '{shown}' symbolic link!\n"));
                }
            };
            let written = Self::written(&plain);
            plain = without_slashes(&written.dir.join(target));
        }
        let found = Self { via_symlink, ..Self::written(&plain) };
        if found.name == "." || found.name == ".." {
            return Err("fs: you may not use '.' or '..' as the last component\n\
                        fs: of a name in this fs command.\n"
                .to_owned());
        }
        Ok(found)
    }

    /// Makes the mount point of a path as it is written.
    pub(super) fn written(path: &Path) -> Self {
        let path = without_slashes(path);
        let bytes = path.as_os_str().as_bytes();
        let (dir, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
            Some(0) => (&b"/"[..], &bytes[1..]),
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (&b"."[..], bytes),
        };
        let (dir, name) = (OsStr::from_bytes(dir), OsStr::from_bytes(name));
        Self { dir: dir.into(), name: name.into(), via_symlink: false }
    }
}

/// The directory in which a path is.
pub(super) fn parent(path: &Path) -> PathBuf {
    LastComponent::written(path).dir
}

/// A path without the slashes at its end, which completion in a shell leaves there.
fn without_slashes(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(bytes.len().min(1), |last| last + 1);
    OsStr::from_bytes(&bytes[..end]).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;
    use std::os::unix::fs::symlink;

    fn check(path: &str, dir: &str, name: &str) {
        let LastComponent { dir: found, name: called, .. } = LastComponent::of(Path::new(path)).unwrap();
        assert_eq!((found.as_path(), called.as_os_str()), (Path::new(dir), OsStr::new(name)), "{path}");
    }

    #[test]
    fn a_path_is_split_at_its_last_slash() {
        check("/afs/cell/mp", "/afs/cell", "mp");
        check("/afs/cell/mp//", "/afs/cell", "mp");
        check("/mp", "/", "mp");
        check("mp", ".", "mp");
        check("a/mp", "./a", "mp");
        assert_eq!(parent(Path::new("a/mp")), Path::new("a"));
        assert_eq!(parent(Path::new("mp")), Path::new("."));
        assert_eq!(parent(Path::new("/mp")), Path::new("/"));
    }

    #[test]
    fn dots_name_no_mount_point() {
        for path in [".", "..", "a/..", "/afs/."] {
            assert!(LastComponent::of(Path::new(path)).unwrap_err().contains("may not use '.' or '..'"));
        }
    }

    #[test]
    fn a_symbolic_link_is_followed_once() {
        let folder = Folder::new("mount-point");
        for (link, target, dir, name) in [
            ("absolute", "/afs/cell/mp", PathBuf::from("/afs/cell"), "mp"),
            ("relative", "sub/mp", folder.join("sub"), "mp"),
            ("beside", "mp", folder.to_path_buf(), "mp"),
        ] {
            symlink(target, folder.join(link)).unwrap();
            let found = LastComponent::of(&folder.join(link)).unwrap();
            assert_eq!(found, LastComponent { dir, name: name.into(), via_symlink: true });
        }
    }
}
