//! Names: what a name in a directory names, `.`, `..`, `@sys` and `.snapshots` among them. Which names a directory has is left to `directory`.

use std::sync::{Arc, PoisonError, RwLock};

use afs_config::CellName;
use afs_wire::ids::Name;

use crate::data::open_files::OpenFiles;
use crate::names::directory::Directories;
use crate::names::dynroot::{self, DynamicRoot};
use crate::names::mount_point::MountPoints;
use crate::names::snapshots;
use crate::vnodes::status::Status;
use crate::vnodes::table::Vnodes;
use afs_reach::dns::DnsCells;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};

/// The end of a name that stands for several, by the kind of machine.
const AT_SYS: &[u8] = b"@sys";

/// The file that a name leads to. Of a mount point it is the mount point's own fid, with the status of what is mounted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// Its fid.
    pub fid: Fid,
    /// Its status.
    pub status: Status,
}

/// The entry that an operation has made.
pub type Made = Found;

/// The number of times that a name is looked up that others give to one file after the other, before it counts as gone.
const LOOKUPS_MAX: u32 = 16;

/// Bytes of the longest name that is made here. The protocol allows one more, but programs have room for 255 and a NUL.
const NAME_MAX: usize = 255;

/// The name of something that is to be made, as it is sent.
///
/// # Errors
///
/// As [`checked_name`], and for names that programs have no room for.
pub(crate) fn new_name(name: &[u8]) -> Result<Name, Error> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong { bytes: name.len() });
    }
    checked_name(name)
}

/// The error for a missing name in a directory; for a name that cannot be given here, the error that it is too long.
fn no_entry(dir: Fid, name: &[u8]) -> Error {
    match new_name(name) {
        Err(error @ Error::NameTooLong { .. }) => error,
        Ok(_) | Err(_) => Error::NoEntry { dir, name: String::from_utf8_lossy(name).into_owned() },
    }
}

/// A name that may be there, as it is sent: other clients make names of 256 bytes.
///
/// # Errors
///
/// For what cannot be a name in a directory (File service notes 6.4).
pub(crate) fn checked_name(name: &[u8]) -> Result<Name, Error> {
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::BadName { name: String::from_utf8_lossy(name).into_owned() });
    }
    Name::new(name).map_err(|_| Error::NameTooLong { bytes: name.len() })
}

/// The names: the directories that have them, and what stands behind one that is looked up.
#[derive(Debug)]
pub struct Names {
    pub(crate) directories: Arc<Directories>,
    pub(crate) mount_points: Arc<MountPoints>,
    pub(crate) dynamic_root: Arc<DynamicRoot>,
    /// The names in the dynamic root that are cells that only the DNS knows.
    pub(crate) dns: Arc<DnsCells>,
    pub(crate) vnodes: Arc<Vnodes>,
    /// The open files whose names are just being taken.
    pub(crate) open_files: Arc<OpenFiles>,
    /// The values of `@sys`.
    pub sysnames: SysNames,
}

/// The names that `@sys` stands for, in the order in which they are looked for.
#[derive(Debug)]
pub struct SysNames(RwLock<Vec<String>>);

impl SysNames {
    /// These names, in the order in which they are tried.
    pub fn new(names: Vec<String>) -> Self {
        Self(RwLock::new(names))
    }

    /// The names, in the order in which they are tried.
    pub fn all(&self) -> Vec<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the names.
    pub fn set(&self, names: Vec<String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// The names that a name stands for, in the order in which they are looked for.
    fn candidates(&self, name: &[u8]) -> Vec<Vec<u8>> {
        match name.strip_suffix(AT_SYS) {
            Some(start) => {
                let sysnames = self.0.read().unwrap_or_else(PoisonError::into_inner);
                let expanded = sysnames.iter().map(|sysname| [start, sysname.as_bytes()].concat());
                // An entry of that very name is found last, if somebody has made one elsewhere.
                expanded.chain([name.to_vec()]).collect()
            }
            None => vec![name.to_vec()],
        }
    }
}

impl Names {
    /// The fid that a name in a real directory has; `.` and `..` are none.
    pub async fn entry(&self, user: User, dir: Fid, name: &[u8]) -> Result<Fid, Error> {
        checked_name(name)?;
        if dir == dynroot::ROOT {
            return match self.dynamic_root.entry(name) {
                Err(error) => match self.cell_to_ask_for(name) {
                    Some(cell) => {
                        self.dns.cell_named(cell.as_str()).await?;
                        self.dynamic_root.entry(name)
                    }
                    None => Err(error),
                },
                found => found,
            };
        }
        if dir == dynroot::VOLUMES {
            let mount = self.mount_points.of_volume(name).await?;
            return mount.ok_or_else(|| no_entry(dir, name));
        }
        let pages = self.directories.pages_of(user, dir).await?.directory;
        if dir.is_snapshots() {
            let found = pages.lookup(name).map(|entry| dir.entry(entry.fid));
            return found
                .inspect(|found| {
                    self.directories.snapshots.enter(user, dir.without_snapshots(), found.volume);
                })
                .ok_or_else(|| no_entry(dir, name));
        }
        for candidate in self.sysnames.candidates(name) {
            if let Some(entry) = pages.lookup(&candidate) {
                let fid = dir.sibling(entry.fid);
                if !fid.vnode.is_directory() {
                    self.vnodes.get_or_add(fid).set_parent(dir.in_volume());
                }
                self.directories.note_looked_up(user, dir, &pages, (fid, entry.slot)).await;
                return Ok(fid);
            }
        }
        Err(no_entry(dir, name))
    }

    /// The cell that the DNS is to be asked for, if a name that is not in the dynamic root may be one.
    fn cell_to_ask_for(&self, name: &[u8]) -> Option<CellName> {
        self.dns.asks_for(std::str::from_utf8(name).ok()?)
    }

    /// See `Client::cached_lookup`.
    pub fn known(&self, user: User, dir: Fid, name: &[u8]) -> Option<Result<Found, Error>> {
        if matches!(name, b"." | b"..") || checked_name(name).is_err() {
            return None;
        }
        let real = self.mount_points.known_real(user, dir)?;
        if real == dynroot::VOLUMES || real.is_snapshots() {
            return None;
        }
        let fid = if real == dynroot::ROOT {
            match self.dynamic_root.entry(name) {
                Ok(fid) => fid,
                Err(error) => {
                    return match self.cell_to_ask_for(name) {
                        Some(cell) => self.dns.known(&cell).map(Err),
                        None => Some(Err(error)),
                    };
                }
            }
        } else {
            let pages = match self.directories.known_pages(user, real)? {
                Ok(pages) => pages.directory,
                Err(error) => return Some(Err(error)),
            };
            let found = if name.ends_with(AT_SYS) {
                self.sysnames
                    .candidates(name)
                    .iter()
                    .find_map(|name| pages.lookup(name).map(|entry| entry.fid))
            } else {
                pages.lookup(name).map(|entry| entry.fid)
            };
            let Some(fid) = found else {
                if name == snapshots::NAME && self.directories.snapshots.are_known(user, real)? {
                    let fid = real.snapshots();
                    return Some(
                        self.mount_points.known_status(user, fid)?.map(|status| Found { fid, status }),
                    );
                }
                return Some(Err(no_entry(dir, name)));
            };
            let fid = real.sibling(fid);
            if !fid.vnode.is_directory() {
                self.vnodes.get(fid)?.set_parent(real.in_volume());
            }
            if self.open_files.is_being_unlinked(fid) {
                return None;
            }
            fid
        };
        Some(self.mount_points.known_status(user, fid)?.map(|status| Found { fid, status }))
    }

    /// See `Client::is_name_beside`.
    pub fn is_name_beside(&self, user: User, (other, name): (Fid, &[u8]), (dir, fid): (Fid, Fid)) -> bool {
        // Nobody changes a snapshot: a directory in it is found by its name and in its directory of snapshots, for ever.
        if other.is_snapshots() || dir.is_snapshots() {
            return true;
        }
        let real = self.mount_points.known_real(user, dir);
        if other != dir && !real.is_some_and(|real| self.mount_points.is_place_of(other, real)) {
            let real = self.mount_points.known_real(user, other).unwrap_or(other);
            if let Some(vnode) = self.vnodes.get(real) {
                vnode.note_break();
            }
            return false;
        }
        if real.is_some_and(Fid::is_made_up) {
            return true;
        }
        let Some(Ok(pages)) = real.and_then(|real| self.directories.known_pages(user, real)) else {
            return false;
        };
        let mut candidates = self.sysnames.candidates(name).into_iter();
        let entry = candidates.find_map(|name| pages.directory.lookup(&name));
        entry.is_some_and(|entry| entry.fid == fid.in_volume())
    }

    /// See `Client::lookup`.
    pub async fn look_up(&self, user: User, dir: Fid, name: &[u8]) -> Result<Found, Error> {
        let mut real = self.mount_points.real(user, dir).await?;
        let special = match name {
            b"." => Some(dir),
            b".." => Some(self.directories.list(user, dir).await?.parent()),
            _ => None,
        };
        if let Some(fid) = special {
            return Ok(Found { fid, status: self.mount_points.status(user, fid).await? });
        }
        let mut last_gone = None;
        for _ in 0..LOOKUPS_MAX {
            let fid = match self.entry(user, real, name).await {
                Err(Error::NoEntry { .. }) if name == snapshots::NAME && !real.is_made_up() => {
                    if !self.directories.snapshots.are_told(user, real).await? {
                        break;
                    }
                    real.snapshots()
                }
                Err(error) => {
                    real = self.mount_points.real_anew(user, dir, real, error).await?;
                    self.entry(user, real, name).await?
                }
                Ok(fid) => fid,
            };
            if self.open_files.is_being_unlinked(fid) {
                self.open_files.settled(fid).await;
                continue;
            }
            match self.mount_points.status(user, fid).await {
                // What has become of the name is not known here yet. There may be another file of it, and never was none.
                Err(Error::Gone { fid: gone }) if gone == fid && last_gone != Some(fid) => {
                    last_gone = Some(fid);
                    self.vnodes.get_or_add(real).forget();
                }
                // The entry of a directory that is damaged.
                Err(Error::Gone { fid: gone }) if gone == fid => break,
                // A snapshot that was removed a moment ago.
                Err(Error::NoVolume { .. }) if real.is_snapshots() => break,
                other => return Ok(Found { fid, status: other? }),
            }
        }
        Err(no_entry(dir, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_sys_stands_for_each_of_its_names_in_order_and_last_for_itself() {
        let sysnames = SysNames::new(vec!["amd64_linux26".to_owned(), "linux".to_owned()]);
        let candidates = |name: &[u8]| sysnames.candidates(name);
        assert_eq!(candidates(b"bin.@sys"), [&b"bin.amd64_linux26"[..], b"bin.linux", b"bin.@sys"]);
        assert_eq!(candidates(b"@sys"), [&b"amd64_linux26"[..], b"linux", b"@sys"]);
        assert_eq!(candidates(b"@sys.bin"), [b"@sys.bin"], "it is only the end of a name");
        sysnames.set(vec!["arm64".to_owned()]);
        assert_eq!(candidates(b"@sys"), [&b"arm64"[..], b"@sys"]);
    }

    #[test]
    fn names_that_no_directory_has_are_not_sent() {
        for (name, errno) in [(&b""[..], 22), (b"a/b", 22), (b"a\0b", 22), (&[b'x'; 257], 36)] {
            assert_eq!(checked_name(name).unwrap_err().errno().0, errno, "{name:?}");
        }
        assert!(checked_name(&[b'x'; 256]).is_ok(), "others may have made it");
        assert_eq!(new_name(&[b'x'; 256]).unwrap_err().errno().0, 36);
        assert!(new_name(&[b'x'; 255]).is_ok());
        assert!(checked_name(b"\xff\xfe").is_ok(), "names are bytes");
    }
}
