//! From a path to a file of a cell: `/afs/CELL/...` as in a mount, else from the root of the cell that is meant. Symbolic links are
//! followed here, because no kernel does it.

use super::{AfsioError, Session, Target};
use crate::codes::Code;
use afs_client::{CellIndex, Fid, Found, Kind};
use afs_wire::ids::{AfsFid, Uniquifier, VnodeNumber, VolumeId};
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;

/// Where everybody mounts all cells.
const MOUNT: &[u8] = b"/afs/";

/// Symbolic links on the way, at most: as many as Linux follows.
const LINKS_MAX: usize = 40;

/// The result of looking up a path.
pub(super) enum Place {
    /// It is there.
    There(Found),
    /// The directory exists, and the name does not.
    Missing { dir: Fid, name: Vec<u8> },
}

impl Session {
    /// The file of a command that needs one.
    pub(super) async fn find(&self, target: &Target) -> Result<Found, AfsioError> {
        let not_found = || AfsioError::new(Code::ENOENT, format!("file not found: {}", target.shown()));
        match self.place_of(target).await? {
            Place::There(found) => Ok(found),
            Place::Missing { .. } => Err(not_found()),
        }
    }

    /// Returns the place at a path, or of a fid.
    pub(super) async fn place_of(&self, target: &Target) -> Result<Place, AfsioError> {
        let what = || format!("file not found: {}", target.shown());
        if !target.is_fid {
            return self.walk(target.file.as_bytes(), &what()).await;
        }
        let fid = parse_fid(&target.shown()).ok_or_else(|| {
            AfsioError::new(Code::EINVAL, format!("invalid FID triple: {}", target.shown()))
        })?;
        let cell = self.cell().await?;
        let fid = Fid::new(cell, fid);
        let status = self.client.status(self.user, fid).await;
        let status = status.map_err(|error| AfsioError::of_client(&error, what()))?;
        Ok(Place::There(Found { fid, status }))
    }

    /// The number of the cell that is meant.
    async fn cell(&self) -> Result<CellIndex, AfsioError> {
        let root = self.client.root();
        let found = self.client.lookup(self.user, root, self.cell.as_bytes()).await;
        let what = || format!("looking for cell {}", self.cell);
        let mount = found.map_err(|error| AfsioError::of_client(&error, what()))?.fid;
        let target = self.client.target(self.user, mount).await;
        Ok(target.map_err(|error| AfsioError::of_client(&error, what()))?.cell)
    }

    async fn walk(&self, path: &[u8], what: &str) -> Result<Place, AfsioError> {
        let failed = |error: afs_client::Error| AfsioError::of_client(&error, what);
        let root = self.client.root();
        let mut at = Found { fid: root, status: self.client.status(self.user, root).await.map_err(failed)? };
        // Where `..` leads to.
        let mut above: Vec<Found> = Vec::new();
        let mut components = components(path, &self.cell);
        let mut links = 0;
        while let Some(name) = components.pop_front() {
            if name == b".." {
                at = above.pop().unwrap_or(at);
                continue;
            }
            if at.status.kind != Kind::Directory {
                return Err(AfsioError::new(Code::ENOTDIR, what));
            }
            let found = match self.client.lookup(self.user, at.fid, &name).await {
                Ok(found) => found,
                Err(afs_client::Error::NoEntry { .. }) if components.is_empty() => {
                    return Ok(Place::Missing { dir: at.fid, name });
                }
                Err(error) => return Err(failed(error)),
            };
            if found.status.kind != Kind::Symlink {
                above.push(at);
                at = found;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(AfsioError::new(Code::ELOOP, what));
            }
            let link = self.client.readlink(self.user, found.fid).await.map_err(failed)?;
            let is_absolute = link.starts_with(b"/");
            if is_absolute {
                let Some(beyond) = link.strip_prefix(MOUNT) else {
                    let target = String::from_utf8_lossy(&link).into_owned();
                    return Err(AfsioError::new(
                        Code::ENOENT,
                        format!("{what}: it leads to {target}, out of AFS"),
                    ));
                };
                let first = above.first().copied().unwrap_or(at);
                (at, above) = (first, Vec::new());
                split(beyond).into_iter().rev().for_each(|name| components.push_front(name));
            } else {
                split(&link).into_iter().rev().for_each(|name| components.push_front(name));
            }
        }
        Ok(Place::There(at))
    }
}

/// The names on the way, the cell first.
fn components(path: &[u8], cell: &str) -> VecDeque<Vec<u8>> {
    match path.strip_prefix(MOUNT) {
        Some(beyond) => split(beyond).into(),
        None => [cell.as_bytes().to_vec()].into_iter().chain(split(path)).collect(),
    }
}

fn split(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(<[u8]>::to_vec).collect()
}

/// Three numbers in decimal with dots between them.
fn parse_fid(text: &str) -> Option<AfsFid> {
    let mut numbers = text.split('.').map(|number| number.parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    let fid = AfsFid { volume: VolumeId(next()?), vnode: VnodeNumber(next()?), unique: Uniquifier(next()?) };
    numbers.next().is_none().then_some(fid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_with_its_cell() {
        let check = |path: &[u8], names: &[&str]| {
            let found: Vec<_> =
                components(path, "a.test").into_iter().map(|name| String::from_utf8(name).unwrap()).collect();
            assert_eq!(found, names);
        };
        check(b"/afs/b.test/dir/file", &["b.test", "dir", "file"]);
        check(b"/dir//./file", &["a.test", "dir", "file"]);
        check(b"file", &["a.test", "file"]);
        check(b"../file", &["a.test", "..", "file"]);
        check(b"/afs/", &[]);
    }

    #[test]
    fn a_fid_has_three_numbers() {
        let fid = AfsFid { volume: VolumeId(536_870_912), vnode: VnodeNumber(2), unique: Uniquifier(3) };
        assert_eq!(parse_fid("536870912.2.3"), Some(fid));
        for wrong in ["", "1.2", "1.2.3.4", "1.2.x", "4294967296.1.1"] {
            assert_eq!(parse_fid(wrong), None, "{wrong}");
        }
    }
}
