//! The mounts, as the kernel lists them, and the state of a folder that is to be a mount point: whether it is free,
//! in use, or left by a file system whose process is gone.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::io::Errno;

/// The time within which a file system must say what its root is. One that hangs must not make others hang.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A mount, as a line of `/proc/self/mountinfo` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// The path.
    pub path: PathBuf,
    /// The kind of file system, such as `ext4` or `fuse.afar`.
    pub kind: String,
    /// The source that is mounted, in the file system's own words.
    pub source: OsString,
    /// The device number, by which `/sys/class/bdi/MAJOR:MINOR` knows it.
    pub device: String,
}

impl MountPoint {
    /// True if it is of FUSE.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }
}

/// The state of a mount point.
#[derive(Debug)]
pub enum StateOf {
    /// There is nothing of this name.
    Missing,
    /// It is no folder.
    NotAFolder,
    /// A folder with nothing mounted on it.
    Folder {
        /// True if there is nothing in it.
        is_empty: bool,
    },
    /// Something is mounted there and answers.
    Mounted(MountPoint),
    /// A FUSE file system is mounted there whose process is gone ("Transport endpoint is not connected").
    Dead(MountPoint),
    /// A FUSE file system is mounted there and does not answer.
    Hanging(MountPoint),
    /// It cannot be looked at.
    Unreadable(io::Error),
}

/// The mounts in this process's view, the latest last.
///
/// # Errors
///
/// When `/proc` is not there.
pub fn mount_points() -> io::Result<Vec<MountPoint>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// The state of a mount point. A path with symbolic links is resolved where that is possible.
pub fn state_of(path: &Path) -> StateOf {
    let mounts = match mount_points() {
        Ok(mounts) => mounts,
        Err(error) => return StateOf::Unreadable(error),
    };
    // The last component is not looked at: it might hang.
    let resolved = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize().map(|parent| parent.join(name)),
        _ => Ok(path.to_owned()),
    };
    let resolved = resolved.unwrap_or_else(|_| path.to_owned());
    if let Some(mount) = mounts.into_iter().rev().find(|mount| mount.path == resolved) {
        if !mount.is_fuse() {
            return StateOf::Mounted(mount);
        }
        let (send, receive) = mpsc::channel();
        let ask = resolved.clone();
        // It may hang as long as the file system does; its end is of no interest then. Not its attributes: those of a dead one the kernel
        // may still have.
        thread::spawn(move || send.send(access(&ask, Access::READ_OK)));
        return match receive.recv_timeout(TIMEOUT) {
            Ok(Err(Errno::NOTCONN)) => StateOf::Dead(mount),
            // Any other error is an answer: of a file system of another user, for example.
            Ok(_) => StateOf::Mounted(mount),
            Err(_) => StateOf::Hanging(mount),
        };
    }
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_dir() => StateOf::NotAFolder,
        Ok(_) => match std::fs::read_dir(path) {
            Ok(mut entries) => StateOf::Folder { is_empty: entries.next().is_none() },
            Err(error) => StateOf::Unreadable(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => StateOf::Missing,
        Err(error) => StateOf::Unreadable(error),
    }
}

/// A line of mountinfo: id, parent, device, root, mount point, options, optional fields up to a hyphen, then kind, source and
/// more options.
fn parse(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let path = PathBuf::from(unescaped(fields.nth(1)?));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = unescaped(rest.next()?).to_string_lossy().into_owned();
    let source = unescaped(rest.next()?);
    Some(MountPoint { path, kind, source, device })
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|d| *first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match digits {
            Some(digits) => {
                text.push(
                    digits.iter().fold(0u8, |byte, digit| byte.wrapping_mul(8).wrapping_add(digit - b'0')),
                );
                rest = &after[3..];
            }
            None => {
                text.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(text)
}

/// True if a path can be an option's value without ending it.
pub(crate) fn is_plain(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b',' | b'\\' | b'\n' | 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read_with_its_escapes() {
        let line =
            br"36 35 0:45 / /mnt/a\040b rw,nosuid shared:7 master:1 - fuse.afar /run/x\134y rw,user_id=0";
        let expected = MountPoint {
            path: "/mnt/a b".into(),
            kind: "fuse.afar".into(),
            source: r"/run/x\y".into(),
            device: "0:45".into(),
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b"36 35 0:45 / /mnt"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn this_machine_has_a_root_and_folders_are_told_from_files() {
        assert!(mount_points().unwrap().iter().any(|mount| mount.path == Path::new("/")));
        assert!(matches!(state_of(Path::new("/proc/self/status")), StateOf::NotAFolder));
        assert!(matches!(state_of(Path::new("/proc/nothing")), StateOf::Missing));
        assert!(matches!(state_of(Path::new("/proc")), StateOf::Mounted(mount) if mount.kind == "proc"));
        assert!(matches!(state_of(Path::new("/usr/share/")), StateOf::Folder { is_empty: false }));
    }
}
