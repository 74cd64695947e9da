//! Directories as the client keeps them: the pages that the server sent, with what was changed here since. Who may list one is
//! decided here; which names are there, by the pages.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afs_wire::directory::{Directory, Entry, PAGE_SIZE, PAGES_MAX, Slot};
use afs_wire::ids::{AFSCBMAX, DataVersion};
use afs_wire::rights::Rights;
use futures_util::future::join_all;
use rx::Runtime;
use rx_proto::time::Instant;

use crate::data::open_files::{Listed, OpenFiles};
use crate::data::streams::Streams;
use crate::names::dynroot::{self, DynamicRoot};
use crate::names::mount_point::MountPoints;
use crate::names::snapshots::{self, Snapshots};
use crate::names::walk;
use crate::vnodes::attributes::Statuses;
use crate::vnodes::status::Kind;
use crate::vnodes::table::Vnodes;
use crate::vnodes::vnode::{Pages, Vnode};
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::users::Users;

/// The time, after a listing and after the last look at a name whose status was not known, in which the names in a directory are
/// expected to be looked at one after the other. Meanwhile the status of many is asked for at once.
const LISTED_FOR: Duration = Duration::from_secs(20);

/// Vnodes whose status is asked for when a directory is listed, before anybody asks: what two calls bring.
const AHEAD: usize = 2 * AFSCBMAX;

/// The number of times that pages are fetched while changes of ours go on in the directory.
const FETCHES_MAX: u32 = 8;

/// Directories of one directory that have to be listed until somebody is taken to go through all of them.
const WALK_AFTER: u32 = 2;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Its name: no NUL, no slash.
    pub name: &'a [u8],
    /// The fid that it names: of a mount point, its own fid.
    pub fid: Fid,
    /// Its kind, as far as the directory tells: directories, or `None` for what is a file, a link or a mount point.
    pub kind: Option<Kind>,
    /// The place to go on reading after it.
    pub next: u64,
}

/// The names in a directory as they were at one moment.
#[derive(Debug, Clone)]
pub struct Listing {
    dir: Fid,
    real: Fid,
    parent: Fid,
    pages: Pages,
    /// Names of this client's that it leaves out: of files that are open and have no other.
    hidden: Vec<String>,
    /// True if the directory of snapshots is among them, as the last one.
    shows_snapshots: bool,
}

/// The place to go on reading after the directory of snapshots: behind those of all slots.
const BEHIND_SNAPSHOTS: u64 = 1 << 16;

impl Listing {
    /// The directory. Of one that was asked for by its mount point, the mount point.
    pub fn dir(&self) -> Fid {
        self.dir
    }

    /// The directory that it is in; itself for the root of the client.
    pub fn parent(&self) -> Fid {
        self.parent
    }

    /// The data version of the directory that had these names.
    pub fn data_version(&self) -> DataVersion {
        self.pages.version
    }

    /// Its entries from a position on, `.` and `..` among them. 0 is the beginning, other positions are an entry's `next`,
    /// good for later listings of the directory too: names that stay are met exactly once.
    pub fn entries_from(&self, position: u64) -> impl Iterator<Item = DirEntry<'_>> {
        let slot = u16::try_from(position).map_or(Slot(u16::MAX), Slot);
        let is_hidden = |name: &[u8]| self.hidden.iter().any(|hidden| hidden.as_bytes() == name);
        // The kernel takes no listing with a name that has a slash, as only a damaged volume or a server of ill will has one.
        let is_shown = move |name: &[u8]| !name.is_empty() && !name.contains(&b'/') && !is_hidden(name);
        let entries = self.pages.directory.entries_from(slot).filter(move |entry| is_shown(entry.name));
        let snapshots = (self.shows_snapshots && position < BEHIND_SNAPSHOTS).then(|| DirEntry {
            name: snapshots::NAME,
            fid: self.real.snapshots(),
            kind: Some(Kind::Directory),
            next: BEHIND_SNAPSHOTS,
        });
        entries.map(move |entry| self.entry(&entry)).chain(snapshots)
    }

    /// The fid that a name names.
    pub fn find(&self, name: &[u8]) -> Option<Fid> {
        self.pages.directory.lookup(name).map(|entry| self.real.entry(entry.fid))
    }

    fn entry<'a>(&'a self, entry: &Entry<'a>) -> DirEntry<'a> {
        let fid = match entry.name {
            b"." => self.dir,
            b".." => self.parent,
            _ => self.real.entry(entry.fid),
        };
        let kind = match entry.name {
            b"." | b".." => Some(Kind::Directory),
            _ if fid.is_made_up() => dynroot::kind_of(fid),
            _ => fid.vnode.is_directory().then_some(Kind::Directory),
        };
        DirEntry { name: entry.name, fid, kind, next: u64::from(entry.next().0) }
    }
}

/// The directories: their pages, where these come from, and what is asked for before a program that has listed one asks for it.
#[derive(Debug)]
pub struct Directories {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) users: Arc<Users>,
    pub(crate) vnodes: Arc<Vnodes>,
    pub(crate) statuses: Arc<Statuses>,
    /// The streams that bring pages.
    pub streams: Streams,
    pub(crate) dynamic_root: Arc<DynamicRoot>,
    pub(crate) snapshots: Arc<Snapshots>,
    /// True if listings of the root directories of volumes show their directories of snapshots.
    pub(crate) shows_snapshots: bool,
    /// The mounts, and so the directory that one is in.
    pub(crate) mount_points: Arc<MountPoints>,
    /// The open files, whose hidden names listings leave out.
    pub(crate) open_files: Arc<OpenFiles>,
}

impl Directories {
    fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// The pages of a directory, if they are here, promised, and the user may list it.
    pub(crate) fn known_pages(&self, user: User, dir: Fid) -> Option<Result<Pages, Error>> {
        let (now, who) = (self.now(), self.users.who(user, dir.cell));
        let vnode = self.vnodes.get(dir)?;
        let rights = self.statuses.known(&vnode, who)?.rights?;
        if !rights.contains(Rights::LOOKUP) {
            return Some(Err(Error::NoAccess { fid: dir, needed: Rights::LOOKUP }));
        }
        vnode.good_pages(now).map(Ok)
    }

    /// The pages of a directory: a real one, nothing is crossed.
    pub(crate) async fn pages_of(&self, user: User, dir: Fid) -> Result<Pages, Error> {
        if let Some(pages) = self.dynamic_root.pages_of(dir) {
            return Ok(pages);
        }
        if dir.is_snapshots() {
            let shown = dir.without_snapshots();
            self.pages_of_volume(user, shown).await?;
            return self.snapshots.pages(user, shown).await;
        }
        self.pages_of_volume(user, dir).await
    }

    async fn pages_of_volume(&self, user: User, dir: Fid) -> Result<Pages, Error> {
        if !dir.vnode.is_directory() || dir.is_made_up() {
            return Err(Error::NotADirectory { fid: dir });
        }
        if let Some(known) = self.known_pages(user, dir) {
            return known;
        }
        let vnode = self.vnodes.get_or_add(dir);
        let _fetching = vnode.fetching.lock().await;
        if let Some(known) = self.known_pages(user, dir) {
            return known;
        }
        let who = self.users.who(user, dir.cell);
        let has_pages = vnode.pages().is_some();
        let is_known = self.statuses.known(&vnode, who).is_some_and(|known| known.rights.is_some());
        if has_pages && !is_known {
            // They may still be good, and the status is small.
            let status = self.statuses.fetch_status(who, &vnode).await;
            // Also if nobody answers, as what was known may go on to count.
            if let Some(known) = self.known_pages(user, dir) {
                return known;
            }
            let status = status?;
            if !status.caller_access.contains(Rights::LOOKUP) {
                return Err(Error::NoAccess { fid: dir, needed: Rights::LOOKUP });
            }
            // The rights may count for this answer only.
            if let Some(pages) = vnode.good_pages(self.now()) {
                return Ok(pages);
            }
        }
        self.fetch_pages(user, &vnode).await
    }

    /// Fetches the pages of a directory, with its status.
    async fn fetch_pages(&self, user: User, vnode: &Vnode) -> Result<Pages, Error> {
        let fid = vnode.fid;
        let limit = PAGES_MAX * PAGE_SIZE;
        let mut looks = 0;
        let (bytes, status) = loop {
            let whole = self.streams.fetch_whole(user, fid, limit).await;
            let (bytes, status) = whole.map_err(|error| self.statuses.note_gone(fid, error))?;
            looks += 1;
            // A change of ours may have been answered meanwhile. A volume that was restored stays behind.
            if !vnode.is_before_own(status.data_version) || looks == FETCHES_MAX {
                break (bytes, status);
            }
        };
        let directory = Directory::parse(bytes).map_err(|problem| Error::BadDirectory { fid, problem })?;
        let pages = Pages { directory: Arc::new(directory), version: status.data_version };
        Ok(self.vnodes.keep_pages(vnode, pages))
    }

    /// A directory was listed: what is in it will be looked at.
    fn note_listed(self: &Arc<Self>, user: User, vnode: &Arc<Vnode>, pages: &Directory) {
        self.note_goes_on(vnode);
        vnode.listed_inside.store(0, Ordering::Relaxed);
        let who = self.users.who(user, vnode.fid.cell);
        let ahead: Vec<_> = self.unknown_from(vnode.fid, pages, Slot(0), AHEAD).collect();
        let walk = self.walked_next(vnode.fid, pages);
        // What fails here is told by who asks for it.
        if !ahead.is_empty() {
            let statuses = Arc::clone(&self.statuses);
            self.runtime.spawn(Box::pin(async move {
                drop(statuses.fetch_statuses(who, &ahead).await);
            }));
        }
        if !walk.is_empty() {
            let directories = Arc::clone(self);
            self.runtime.spawn(Box::pin(async move {
                let own = &*directories;
                let fetches = walk.iter().map(|&dir| async move {
                    let Ok(pages) = own.pages_of(user, dir).await else { return };
                    let ahead: Vec<_> = own.unknown_from(dir, &pages.directory, Slot(0), AHEAD).collect();
                    drop(own.statuses.fetch_statuses(who, &ahead).await);
                });
                join_all(fetches).await;
            }));
        }
    }

    /// The directories that will be listed next, if the one that was listed shows that somebody goes through a tree.
    pub(super) fn walked_next(&self, listed: Fid, pages: &Directory) -> Vec<Fid> {
        let parent = pages.lookup(b"..").map(|entry| listed.sibling(entry.fid)).filter(|&dir| dir != listed);
        let Some(parent) = parent.and_then(|dir| self.vnodes.get(dir)) else { return Vec::new() };
        if !self.is_being_listed(&parent)
            || parent.listed_inside.fetch_add(1, Ordering::Relaxed) + 1 < WALK_AFTER
        {
            return Vec::new();
        }
        let now = self.now();
        let Some(siblings) = parent.good_pages(now) else { return Vec::new() };
        let next = walk::next_directories(&siblings.directory, listed.in_volume());
        let mut next: Vec<_> = next.into_iter().map(|fid| listed.sibling(fid)).collect();
        // Last: those that are here already count, else each listing would reach further than the one before.
        next.retain(|&fid| self.vnodes.get(fid).is_none_or(|vnode| vnode.good_pages(now).is_none()));
        next
    }

    /// A name was found, whose status is wanted next. If the names in its directory are being looked at one after the other, those that
    /// come after it are asked for with it.
    pub(crate) async fn note_looked_up(
        &self,
        user: User,
        dir: Fid,
        pages: &Directory,
        (fid, slot): (Fid, Slot),
    ) {
        let vnode = self.vnodes.get_or_add(dir);
        let is_unknown = || self.vnodes.get(fid).is_none_or(|vnode| !vnode.has_status(self.now()));
        if self.is_being_listed(&vnode) && is_unknown() {
            self.note_goes_on(&vnode);
            let who = self.users.who(user, dir.cell);
            let near: Vec<_> = self.unknown_from(dir, pages, slot, AFSCBMAX).collect();
            // What fails is told by who asks for it alone.
            drop(self.statuses.fetch_statuses(who, &near).await);
        }
    }

    /// The names in a directory are still being looked at one after the other.
    pub(super) fn note_goes_on(&self, vnode: &Vnode) {
        vnode.listed_at.store(self.now().as_nanos(), Ordering::Relaxed);
    }

    /// True if the names in a directory are being looked at one after the other.
    fn is_being_listed(&self, vnode: &Vnode) -> bool {
        let at = Instant::from_nanos(vnode.listed_at.load(Ordering::Relaxed));
        at > Instant::ORIGIN && self.now().since(at) < LISTED_FOR
    }

    /// Vnodes of a directory from a slot on whose status is not promised, as many as wanted of the first four times as many.
    pub(super) fn unknown_from<'a>(
        &'a self,
        dir: Fid,
        pages: &'a Directory,
        slot: Slot,
        wanted: usize,
    ) -> impl Iterator<Item = Fid> + 'a {
        let now = self.now();
        let entries = pages.entries_from(slot).filter(|entry| !entry.is_dot()).take(4 * wanted);
        entries
            .map(move |entry| dir.sibling(entry.fid))
            .filter(move |&fid| {
                let vnode = self.vnodes.get_or_add(fid);
                if !fid.vnode.is_directory() && vnode.parent().is_none() {
                    vnode.set_parent(dir.in_volume());
                }
                !vnode.has_status(now)
            })
            .take(wanted)
    }

    /// See `Client::cached_read_dir`.
    pub fn known_listing(self: &Arc<Self>, user: User, dir: Fid) -> Option<Result<Listing, Error>> {
        let real = self.mount_points.known_real(user, dir)?;
        let listed = self.open_files.listed(real);
        let pages = match self.dynamic_root.pages_of(real) {
            Some(pages) => pages,
            None => match self.known_pages(user, real)? {
                Ok(pages) => pages,
                Err(error) => return Some(Err(error)),
            },
        };
        let shows_snapshots =
            self.may_show_snapshots(real, &pages) && self.snapshots.are_known(user, real)?;
        Some(Ok(self.listing(user, (dir, real), (pages, shows_snapshots), &listed)))
    }

    /// True if a listing of these pages is to have the directory of snapshots, if there is one.
    fn may_show_snapshots(&self, real: Fid, pages: &Pages) -> bool {
        let is_root = real.is_root() && !real.is_made_up();
        self.shows_snapshots && is_root && pages.directory.lookup(snapshots::NAME).is_none()
    }

    /// See `Client::read_dir`.
    pub async fn list(self: &Arc<Self>, user: User, dir: Fid) -> Result<Listing, Error> {
        if let Some(known) = self.known_listing(user, dir) {
            return known;
        }
        let mut real = self.mount_points.real(user, dir).await?;
        let mut listed = self.open_files.listed(real);
        let pages = match self.pages_of(user, real).await {
            Err(error) => {
                real = self.mount_points.real_anew(user, dir, real, error).await?;
                listed = self.open_files.listed(real);
                self.pages_of(user, real).await?
            }
            Ok(pages) => pages,
        };
        // Who cannot be told of them is shown the others.
        let shows_snapshots = self.may_show_snapshots(real, &pages)
            && self.snapshots.are_told(user, real).await.unwrap_or(false);
        Ok(self.listing(user, (dir, real), (pages, shows_snapshots), &listed))
    }

    fn listing(
        self: &Arc<Self>,
        user: User,
        (dir, real): (Fid, Fid),
        (pages, shows_snapshots): (Pages, bool),
        listed: &Listed<'_>,
    ) -> Listing {
        if !real.is_made_up() {
            self.note_listed(user, &self.vnodes.get_or_add(real), &pages.directory);
        }
        let dot_dot = pages.directory.lookup(b"..").map(|entry| real.sibling(entry.fid));
        let parent = self.mount_points.parent_of(dir, real, dot_dot);
        Listing { dir, real, parent, pages, hidden: listed.hidden(), shows_snapshots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_reach::fid::CellIndex;
    use afs_wire::ids::{LocalFid, Uniquifier, VnodeNumber, VolumeId};

    /// The kernel refuses a listing with such a name, and programs saw none of the names behind it.
    #[test]
    fn a_name_with_a_slash_is_left_out_of_a_listing() {
        let root = Fid::root_of(CellIndex(1), VolumeId(7));
        let fid = |vnode| LocalFid { vnode: VnodeNumber(vnode), unique: Uniquifier(1) };
        let entries = [(&b"aa"[..], fid(2)), (b"a/b", fid(4)), (b"ok", fid(6))];
        let own = root.in_volume();
        let directory = Arc::new(Directory::build(own, own, entries).unwrap());
        let pages = Pages { directory, version: DataVersion(1) };
        let hidden = vec!["hidden".to_owned()];
        let listing = Listing { dir: root, real: root, parent: root, pages, hidden, shows_snapshots: false };
        let mut names: Vec<_> = listing.entries_from(0).map(|entry| entry.name).collect();
        names.sort_unstable();
        assert_eq!(names, [&b"."[..], b"..", b"aa", b"ok"]);
    }
}
