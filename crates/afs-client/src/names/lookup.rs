//! Names: what a name in a directory names, `.`, `..` and `@sys` among them, and the targets of symbolic links.

use afs_config::CellName;
use afs_wire::ids::{AFSCBMAX, AFSPATHMAX, Name};
use bytes::Bytes;

use crate::client::{Client, Found, Inner};
use crate::error::Error;
use crate::fid::{Fid, User};
use crate::names::dynroot;
use crate::vnodes::status::Kind;

/// What ends a name that stands for several, by the kind of machine.
const AT_SYS: &[u8] = b"@sys";

/// How often a name is looked up that others give to one file after the other, before it counts as gone.
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

/// That there is no such name in a directory; of one that none can be given here, that it is too long.
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

impl Inner {
    /// The names that a name stands for, in the order in which they are looked for.
    fn candidates(&self, name: &[u8]) -> Vec<Vec<u8>> {
        match name.strip_suffix(AT_SYS) {
            Some(start) => {
                let sysnames = self.sysnames.read().unwrap_or_else(std::sync::PoisonError::into_inner);
                let expanded = sysnames.iter().map(|sysname| [start, sysname.as_bytes()].concat());
                // An entry of that very name is found last, if somebody has made one elsewhere.
                expanded.chain([name.to_vec()]).collect()
            }
            None => vec![name.to_vec()],
        }
    }

    /// The fid that a name in a real directory has; `.` and `..` are none.
    pub(crate) async fn entry(&self, user: User, dir: Fid, name: &[u8]) -> Result<Fid, Error> {
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
        let pages = self.pages_of(user, dir).await?.directory;
        for candidate in self.candidates(name) {
            if let Some(entry) = pages.lookup(&candidate) {
                let fid = dir.sibling(entry.fid);
                if !fid.vnode.is_directory() {
                    self.vnodes.get_or_add(fid).set_parent(dir.in_volume());
                }
                let vnode = self.vnodes.get_or_add(dir);
                let is_unknown =
                    || self.vnodes.get(fid).is_none_or(|v| v.promised_status(self.now()).is_none());
                if self.is_being_listed(&vnode) && is_unknown() {
                    self.note_goes_on(&vnode);
                    let who = self.users.who(user, dir.cell);
                    let near: Vec<_> = self.unknown_from(dir, &pages, entry.slot, AFSCBMAX).collect();
                    // What fails is told by who asks for it alone.
                    drop(self.statuses.fetch_statuses(who, &near).await);
                }
                return Ok(fid);
            }
        }
        Err(no_entry(dir, name))
    }

    /// The cell that the DNS is to be asked for, if a name that is not in the dynamic root may be one.
    fn cell_to_ask_for(&self, name: &[u8]) -> Option<CellName> {
        self.dns.asks_for(std::str::from_utf8(name).ok()?)
    }

    /// The text of a symbolic link or mount point. The caller has seen that the user may know its status.
    pub(crate) async fn link_text(&self, user: User, fid: Fid) -> Result<Bytes, Error> {
        let vnode = self.vnodes.get_or_add(fid);
        if let Some(text) = vnode.link() {
            return Ok(text);
        }
        let whole = self.client()?.fetch_whole(user, fid, AFSPATHMAX).await;
        let (text, _) = whole.map_err(|error| self.statuses.note_gone(fid, error))?;
        let text = Bytes::from(text);
        vnode.set_link(text.clone());
        Ok(text)
    }
}

impl Client {
    /// What a name in a directory names, from memory; that there is no such name, too.
    pub fn cached_lookup(&self, user: User, dir: Fid, name: &[u8]) -> Option<Result<Found, Error>> {
        let inner = &self.inner;
        if matches!(name, b"." | b"..") || checked_name(name).is_err() {
            return None;
        }
        let real = inner.known_real(user, dir)?;
        let fid = if real == dynroot::ROOT {
            match inner.dynamic_root.entry(name) {
                Ok(fid) => fid,
                Err(error) => {
                    return match inner.cell_to_ask_for(name) {
                        Some(cell) => inner.dns.known(&cell).map(Err),
                        None => Some(Err(error)),
                    };
                }
            }
        } else {
            let pages = match inner.known_pages(user, real)? {
                Ok(pages) => pages.directory,
                Err(error) => return Some(Err(error)),
            };
            let found = if name.ends_with(AT_SYS) {
                inner.candidates(name).iter().find_map(|name| pages.lookup(name).map(|entry| entry.fid))
            } else {
                pages.lookup(name).map(|entry| entry.fid)
            };
            let Some(fid) = found else { return Some(Err(no_entry(dir, name))) };
            let fid = real.sibling(fid);
            if !fid.vnode.is_directory() {
                inner.vnodes.get(fid)?.set_parent(real.in_volume());
            }
            if inner.open_files.is_being_unlinked(fid) {
                return None;
            }
            fid
        };
        Some(self.cached_status(user, fid)?.map(|status| Found { fid, status }))
    }

    /// What a name in a directory names: crosses mount points, knows `.`, `..` and `@sys`.
    ///
    /// # Errors
    ///
    /// [`Error::NoEntry`]; of a mount point those of finding its volume.
    pub async fn lookup(&self, user: User, dir: Fid, name: &[u8]) -> Result<Found, Error> {
        let inner = &self.inner;
        let mut real = inner.real(user, dir).await?;
        let special = match name {
            b"." => Some(dir),
            b".." => Some(self.read_dir(user, dir).await?.parent()),
            _ => None,
        };
        if let Some(fid) = special {
            return Ok(Found { fid, status: self.status(user, fid).await? });
        }
        let mut last_gone = None;
        for _ in 0..LOOKUPS_MAX {
            let fid = match inner.entry(user, real, name).await {
                Err(error) => {
                    real = inner.real_anew(user, dir, real, error).await?;
                    inner.entry(user, real, name).await?
                }
                Ok(fid) => fid,
            };
            if inner.open_files.is_being_unlinked(fid) {
                inner.open_files.settled(fid).await;
                continue;
            }
            match self.status(user, fid).await {
                // What has become of the name is not known here yet. There may be another file of it, and never was none.
                Err(Error::Gone { fid: gone }) if gone == fid && last_gone != Some(fid) => {
                    last_gone = Some(fid);
                    inner.vnodes.get_or_add(real).forget();
                }
                // The entry of a directory that is damaged.
                Err(Error::Gone { fid: gone }) if gone == fid => break,
                other => return Ok(Found { fid, status: other? }),
            }
        }
        Err(no_entry(dir, name))
    }

    /// The target of a symbolic link, from memory.
    pub fn cached_readlink(&self, user: User, fid: Fid) -> Option<Result<Bytes, Error>> {
        let inner = &self.inner;
        if let Some(target) = inner.dynamic_root.link_target(fid).filter(|_| fid.is_made_up()) {
            return Some(Ok(target));
        }
        match inner.statuses.known_status(user, fid, fid)? {
            Ok(status) if status.kind != Kind::Symlink => Some(Err(Error::NotALink { fid })),
            Ok(_) => inner.vnodes.get(fid)?.link().map(Ok),
            Err(error) => Some(Err(error)),
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`Error::NotALink`].
    pub async fn readlink(&self, user: User, fid: Fid) -> Result<Bytes, Error> {
        let inner = &self.inner;
        if let Some(known) = self.cached_readlink(user, fid) {
            return known;
        }
        if fid.is_made_up() || inner.statuses.own_status(user, fid, fid).await?.kind != Kind::Symlink {
            return Err(Error::NotALink { fid });
        }
        inner.link_text(user, fid).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
