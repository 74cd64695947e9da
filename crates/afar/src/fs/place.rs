//! The file and the cell that a path names. The file says it itself, by the attributes `afs.cell` and `afs.fid`, as those
//! of Linux's kAFS do.

use super::client::{Client, Mount};
use super::errors::{EINVAL, ENOENT, Failure};
use afs_wire::control::Place;
use afs_wire::ids::{AfsFid, Uniquifier, VnodeNumber, VolumeId};
use rustix::fs::{getxattr, lgetxattr};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The longest cell name and the longest fid are shorter.
const ATTRIBUTE_MAX: usize = 512;

/// The choice whether a symbolic link at the end of a path stands for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// For the place that it leads to.
    Follow,
    /// For itself.
    Stay,
}

/// The place to which a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The cell.
    pub(crate) cell: String,
    /// The file there.
    pub(crate) fid: AfsFid,
}

impl Found {
    /// Returns the place that a path names. `EINVAL` where it is in no cell.
    pub(crate) fn at(path: &Path, links: Links) -> Result<Self, Failure> {
        let cell = attribute(path, "afs.cell", links)?;
        let fid = parse_fid(&attribute(path, "afs.fid", links)?).ok_or(Failure::Errno(EINVAL))?;
        Ok(Self { cell, fid })
    }

    /// The place, as the control socket has it.
    pub(crate) fn place(&self) -> Result<Place, Failure> {
        Place::new(&self.cell, self.fid).map_err(|_| Failure::Errno(EINVAL))
    }
}

/// The client that serves a path; `EINVAL` where none of ours does.
pub(crate) fn client_of(path: &Path, links: Links) -> Result<Client, Failure> {
    let status = match links {
        Links::Follow => fs::metadata(path),
        Links::Stay => fs::symlink_metadata(path),
    };
    let device = status.map_err(|error| Failure::of_system(&error))?.dev();
    let mount = Mount::of_device(device).ok_or(Failure::Errno(EINVAL))?;
    Client::connect(&mount.socket)
}

fn attribute(path: &Path, name: &str, links: Links) -> Result<String, Failure> {
    if path.as_os_str().is_empty() {
        return Err(Failure::Errno(ENOENT));
    }
    let mut value = [0; ATTRIBUTE_MAX];
    let read = match links {
        Links::Follow => getxattr(path, name, &mut value[..]),
        Links::Stay => lgetxattr(path, name, &mut value[..]),
    };
    match read {
        Ok(length) => {
            let text = std::str::from_utf8(&value[..length]).map_err(|_| Failure::Errno(EINVAL))?;
            Ok(text.trim_end_matches('\0').to_owned())
        }
        // Neither has other file systems' files such an attribute, nor do they all have attributes.
        Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS) => Err(Failure::Errno(EINVAL)),
        Err(errno) => Err(Failure::Errno(errno.raw_os_error())),
    }
}

/// Volume, vnode and uniquifier in hexadecimal, with colons between them.
fn parse_fid(text: &str) -> Option<AfsFid> {
    let mut numbers = text.split(':').map(|number| u32::from_str_radix(number, 16).ok());
    let mut next = || numbers.next().flatten();
    let fid = AfsFid { volume: VolumeId(next()?), vnode: VnodeNumber(next()?), unique: Uniquifier(next()?) };
    numbers.next().is_none().then_some(fid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fids_are_hexadecimal() {
        let fid =
            AfsFid { volume: VolumeId(0x2000_0001), vnode: VnodeNumber(0x1a), unique: Uniquifier(0x1f) };
        assert_eq!(parse_fid("20000001:1a:1f"), Some(fid));
        for wrong in ["", "1:2", "1:2:3:4", "1:2:x", "100000000:1:1", "1::1"] {
            assert_eq!(parse_fid(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn files_of_other_file_systems_are_in_no_cell() {
        for (path, errno) in [("/proc", EINVAL), ("/nonexistent", ENOENT), ("", ENOENT)] {
            let failure = Found::at(Path::new(path), Links::Follow).unwrap_err();
            assert_eq!(failure.errno(), Some(errno), "{path}");
        }
        assert_eq!(client_of(Path::new("/proc"), Links::Follow).err().and_then(|f| f.errno()), Some(EINVAL));
    }
}
