//! Errors between a command and the client, in the words of OpenAFS's `fs`.

use crate::codes::Code;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The reason why the client did not do something.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It says so, or the system does: an errno.
    Errno(i32),
    /// No client of ours is mounted here.
    NoClient,
    /// The client that is mounted does not answer.
    Unreachable { socket: PathBuf, error: io::Error },
    /// The client belongs to somebody whom the caller's tokens are not for.
    NotTrusted { socket: PathBuf, uid: u32 },
    /// The client answers what cannot be understood.
    Garbled { socket: PathBuf },
}

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EMFILE: i32 = 24;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const EROFS: i32 = 30;
pub(crate) const EDOM: i32 = 33;
pub(crate) const ENODATA: i32 = 61;
pub(crate) const EOPNOTSUPP: i32 = 95;
pub(crate) const ESRCH: i32 = 3;

impl From<afs_control::Failure> for Failure {
    fn from(failure: afs_control::Failure) -> Self {
        match failure {
            afs_control::Failure::Errno(errno) => Self::Errno(errno),
            afs_control::Failure::NoClient => Self::NoClient,
            afs_control::Failure::Unreachable { socket, error } => Self::Unreachable { socket, error },
            afs_control::Failure::NotTrusted { socket, uid } => Self::NotTrusted { socket, uid },
            afs_control::Failure::Garbled { socket } => Self::Garbled { socket },
        }
    }
}

impl Failure {
    /// Takes the system's error.
    pub(crate) fn of_system(error: &io::Error) -> Self {
        Self::Errno(error.raw_os_error().unwrap_or(EIO))
    }

    /// The errno, where it is one.
    pub(crate) const fn errno(&self) -> Option<i32> {
        match self {
            Self::Errno(errno) => Some(*errno),
            Self::NoClient | Self::Unreachable { .. } | Self::NotTrusted { .. } | Self::Garbled { .. } => {
                None
            }
        }
    }

    /// The line in which `fs` says it, of a file or of nothing in particular.
    pub(crate) fn line(&self, file: Option<&str>) -> String {
        let Self::Errno(errno) = self else {
            return match file {
                Some(file) => format!("fs:'{file}': {self}\n"),
                None => format!("fs: {self}\n"),
            };
        };
        match (*errno, file) {
            (EINVAL, Some(file)) => {
                format!("fs: Invalid argument; it is possible that {file} is not in AFS.\n")
            }
            (EINVAL, None) => "fs: Invalid argument.\n".to_owned(),
            (ENOENT, Some(file)) => format!("fs: File '{file}' doesn't exist\n"),
            (ENOENT, None) => "fs: no such file returned\n".to_owned(),
            (EROFS, _) => "fs: You can not change a backup or readonly volume\n".to_owned(),
            (EACCES | EPERM, Some(file)) => {
                format!("fs: You don't have the required access rights on '{file}'\n")
            }
            (EACCES | EPERM, None) => {
                "fs: You do not have the required rights to do this operation\n".to_owned()
            }
            (ESRCH, _) => "fs: Cell name not recognized.\n".to_owned(),
            (_, Some(file)) => format!("fs:'{file}': {self}\n"),
            (_, None) => format!("fs: {self}\n"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => f.write_str(&Code(*errno).message()),
            Self::NoClient => f.write_str(
                "no client of afar is mounted here; 'afar up' makes a cell and mounts it, 'afar mount' mounts others",
            ),
            Self::Unreachable { socket, error } => write!(
                f,
                "the client that is mounted does not answer at {}: {error}; if it has ended, 'umount' and mount it again",
                socket.display()
            ),
            Self::NotTrusted { socket, uid } => write!(
                f,
                "the client at {} is run by the user with number {uid}, who could use your tokens: they are only given to clients of \
                 root's and your own",
                socket.display()
            ),
            Self::Garbled { socket } => write!(
                f,
                "the client at {} answers otherwise than expected: is it of another version?",
                socket.display()
            ),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_words_of_openafs() {
        for (errno, of_file, of_nothing) in [
            (
                EINVAL,
                "fs: Invalid argument; it is possible that x is not in AFS.\n",
                "fs: Invalid argument.\n",
            ),
            (ENOENT, "fs: File 'x' doesn't exist\n", "fs: no such file returned\n"),
            (
                EROFS,
                "fs: You can not change a backup or readonly volume\n",
                "fs: You can not change a backup or readonly volume\n",
            ),
            (
                EACCES,
                "fs: You don't have the required access rights on 'x'\n",
                "fs: You do not have the required rights to do this operation\n",
            ),
            (ESRCH, "fs: Cell name not recognized.\n", "fs: Cell name not recognized.\n"),
            (19, "fs:'x': No such device\n", "fs: No such device\n"),
            (110, "fs:'x': Connection timed out\n", "fs: Connection timed out\n"),
        ] {
            assert_eq!(Failure::Errno(errno).line(Some("x")), of_file);
            assert_eq!(Failure::Errno(errno).line(None), of_nothing);
        }
    }

    #[test]
    fn a_missing_client_is_told_with_what_to_do() {
        let line = Failure::NoClient.line(Some("x"));
        assert!(line.starts_with("fs:'x': no client") && line.contains("'afar up'"));
    }
}
