//! The way to what is pinned: by which names it is reached from the client's root, and that it can be reached so without the servers. The directories
//! on the way are held as what is pinned is, each alone: what else is in them is not.

use std::collections::HashSet;

use super::task::LOOK_EVERY;
use super::{Pinned, Pins};
use crate::data::files::{local, lock};
use crate::data::store_behind::DEPTH_MAX;
use crate::vnodes::vnode::Vnode;
use afs_cache::Pin;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::users::IdentityIndex;

impl Pins {
    /// The names from the client's root to a file or directory, as somebody has come there; `None` if that is not known.
    pub(super) async fn path_of(&self, user: User, fid: Fid) -> Option<Vec<u8>> {
        let (root, mut at, mut names) = (self.mount_points.root(), fid, Vec::new());
        for _ in 0..DEPTH_MAX {
            if at == root {
                names.reverse();
                return Some(names.join(&b'/'));
            }
            let (entry, dir) = match at.is_root() {
                true => self.mount_points.place_of(at)?,
                false if at.vnode.is_directory() => {
                    let pages = self.directories.pages_of(user, at).await.ok()?.directory;
                    (at, at.sibling(pages.lookup(b"..")?.fid))
                }
                false => (at, self.vnodes.parent_of(&*self.vnodes.get(at)?)?),
            };
            let listing = self.directories.list(user, dir).await.ok()?;
            let mut entries = listing.entries_from(0).filter(|found| !matches!(found.name, b"." | b".."));
            names.push(entries.find(|found| found.fid == entry)?.name.to_vec());
            at = dir;
        }
        None
    }

    /// Goes to a pin by its path. Returns what it meets on its way. If the path leads elsewhere by now, another one is looked for and kept.
    pub(super) async fn way_to(&self, pinned: &Pinned, user: User, fid: Fid) -> HashSet<Fid> {
        let path = lock(&pinned.path).clone();
        let mut way = HashSet::new();
        let mut is_there = matches!(self.go(user, &path, &mut way).await, Ok(end) if end == fid);
        if !is_there && let Some(other) = self.path_of(user, fid).await.filter(|other| *other != path) {
            way.clear();
            is_there = matches!(self.go(user, &other, &mut way).await, Ok(end) if end == fid);
            if is_there {
                self.note_path(pinned, other).await;
            }
        }
        if !fid.vnode.is_directory() && !is_there {
            // Its rights are those of its directory, however that is reached.
            way.extend(self.vnodes.get(fid).and_then(|vnode| self.vnodes.parent_of(&vnode)));
        }
        way.remove(&fid);
        way
    }

    async fn note_path(&self, pinned: &Pinned, path: Vec<u8>) {
        lock(&pinned.path).clone_from(&path);
        let (cache, pin) = (self.files.cache.clone(), Pin { path, ..pinned.pin.clone() });
        if let Err(error) = rx::blocking::on_a_thread(move || cache.keep_pin(&pin)).await.map_err(local) {
            tracing::warn!(%error, "the new path of what is pinned is not kept");
        }
    }

    /// Goes by names from the client's root, and notes what is met: directories with their names, mount points with what they say. Returns where it
    /// comes to.
    async fn go(&self, user: User, path: &[u8], way: &mut HashSet<Fid>) -> Result<Fid, Error> {
        let mut real = self.mount_points.real(user, self.mount_points.root()).await?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if !real.is_made_up() {
                self.meet(user, real, way).await?;
                self.directories.pages_of(user, real).await?;
            }
            let entry = self.names.entry(user, real, name).await?;
            real = self.mount_points.real(user, entry).await?;
            if entry == real {
                continue;
            }
            if entry.is_made_up() {
                way.insert(entry);
            } else {
                self.meet(user, entry, way).await?;
                self.links.text(user, entry).await?;
            }
        }
        Ok(real)
    }

    /// Notes something on the way, and asks for its status.
    async fn meet(&self, user: User, fid: Fid, way: &mut HashSet<Fid>) -> Result<(), Error> {
        way.insert(fid);
        let (who, vnode) = (self.users.who(user, fid.cell), self.vnodes.get_or_add(fid));
        if self.is_due(&vnode, who) {
            self.statuses.try_to_fetch_status(who, &vnode).await?;
        }
        Ok(())
    }

    /// True if the status of a vnode is to be asked for: it is not promised for long, or of a directory it is not known what the identity may do.
    pub(super) fn is_due(&self, vnode: &Vnode, who: IdentityIndex) -> bool {
        if vnode.is_here_only() {
            return false;
        }
        let is_short = vnode.promise(self.calls.runtime.now()).is_none_or(|(_, left)| left < LOOK_EVERY);
        let has_rights = || self.statuses.known(vnode, who).is_some_and(|known| known.rights.is_some());
        is_short || vnode.last_status().is_none() || vnode.fid.vnode.is_directory() && !has_rights()
    }
}
