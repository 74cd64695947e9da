//! Changes of names that are made here, with write-behind: programs see them at once, and the journal has them sent soon. A directory takes part
//! whose names and the user's rights in it are known under a promise; else the change is made at the server, after all that was changed here
//! in the directory.

use std::time::Duration;

use afs_cache::{Change, NewKind, Place, What};
use afs_wire::directory::PAGES_MAX;
use afs_wire::ids::AfsFid;
use afs_wire::rights::Rights;
use afs_wire::status::{AfsFetchStatus, FileType};

use super::{Changes, Changing, text};
use crate::data::files::Files;
use crate::data::write::{noted, writer_of};
use crate::journal::new_status;
use crate::vnodes::local_ids::is_local;
use crate::vnodes::status::{SetStatus, unix_time};
use crate::vnodes::vnode::Pages;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};

/// Pages of a directory that are left for what others make meanwhile: whether there is room for a name, the server has the say.
const PAGES_LEFT: usize = 8;

/// Mode bits that the server has the say about: set-user-id, set-group-id, sticky.
const SPECIAL_MODES: u32 = 0o7000;

/// The time for which a change that is not made here waits for those before it, while their server does not answer.
const SETTLED_MAX: Duration = Duration::from_secs(60);

fn place(changing: &Changing, name: &[u8]) -> Place<Fid> {
    Place { dir: changing.dir, name: name.to_vec() }
}

impl Changes {
    /// Has all that was changed here in a directory made at the server, before something is changed there that is not made here. Returns the
    /// server's fid of it.
    pub(super) async fn settled(&self, changing: &Changing) -> Result<AfsFid, Error> {
        self.at_server(changing.dir).await
    }

    /// The same of any vnode: of what was changed of it, or in it.
    ///
    /// # Errors
    ///
    /// Its server is away, for as long as the change itself would be waited for; others of making it there.
    pub async fn at_server(&self, fid: Fid) -> Result<AfsFid, Error> {
        // Servers are waited for, as by the change itself.
        let until = self.now() + SETTLED_MAX;
        while let Err(error) = self.replay.journal.settle(fid).await {
            if !error.is_passing() || matches!(error, Error::Closing) || self.now() >= until {
                return Err(error);
            }
        }
        Ok(self.vnodes.local_ids.at_server(fid).await?.in_cell())
    }

    /// The pages of a directory, if a change in it may be made here.
    fn pages_to_change(&self, user: User, changing: &Changing, needed: Rights) -> Option<Pages> {
        if self.files.behind_at(changing.dir).is_none()
            || self.replay.journal.is_full()
            || self.replay.is_behind(changing.dir)
        {
            return None;
        }
        let pages = self.directories.known_pages(user, changing.dir)?.ok()?;
        let rights = self.statuses.known(&changing.vnode, changing.who)?.rights?;
        let may = rights.contains(needed)
            && self.can_be_sent(user, changing.dir)
            && pages.directory.pages() + PAGES_LEFT <= PAGES_MAX
            && self.files.has_room_behind()
            && self.vnodes.local_ids.have_room();
        may.then_some(pages)
    }

    /// True if the user has a token, or needs none.
    fn can_be_sent(&self, user: User, fid: Fid) -> bool {
        let writer = writer_of(&self.calls.users, user, fid.cell);
        self.calls.users.who_wrote(noted(&writer), fid.cell).is_ok()
    }

    fn record(&self, user: User, fid: Fid, what: What<Fid>) -> Result<(), Error> {
        let writer = writer_of(&self.calls.users, user, fid.cell);
        let time = unix_time(&*self.calls.runtime).0;
        self.replay.record(user, Change { writer, time, what })
    }

    /// Makes something here. `None`: it has to be made at the server.
    pub(super) fn make_here(
        &self,
        user: User,
        changing: &Changing,
        name: &[u8],
        kind: &NewKind,
        mode: u32,
    ) -> Result<Option<Fid>, Error> {
        if mode & SPECIAL_MODES != 0 {
            return Ok(None);
        }
        let Some(pages) = self.pages_to_change(user, changing, Rights::INSERT) else { return Ok(None) };
        if pages.directory.lookup(name).is_some() {
            return Err(Error::Exists { dir: changing.dir, name: text(name) });
        }
        // What is still held is copied when it is changed.
        drop(pages);
        let (dir, who) = (changing.dir, changing.who);
        let modified = unix_time(&*self.calls.runtime);
        let rights = self.statuses.known(&changing.vnode, who).and_then(|known| known.rights);
        let anonymous_access =
            changing.vnode.last_status().map_or(Rights::NONE, |status| status.anonymous_access);
        let holder = self.calls.users.noted_name(user, dir.cell);
        let owner = (!holder.is_empty()).then_some(user.uid);
        let made = self.vnodes.local_ids.give(dir, *kind == NewKind::Directory);
        let vnode = self.vnodes.get_or_add(made);
        let status = AfsFetchStatus { anonymous_access, ..new_status(dir, kind, mode, modified, owner) };
        vnode.set_made_here(&status, dir.in_volume(), rights.map(|rights| (who, rights)));
        if let NewKind::Symlink(target) = kind {
            vnode.set_link(target.clone().into());
        }
        let place = place(changing, name);
        let what = What::Make { place, made, kind: kind.clone(), mode: mode & 0o7777, modified: modified.0 };
        self.record(user, dir, what).inspect_err(|_| {
            self.vnodes.local_ids.note_never(made, Error::Gone { fid: made });
            self.vnodes.remove(made);
        })?;
        Ok(Some(made))
    }

    /// Gives a file one more name here. False: it has to be done at the server.
    pub(super) fn link_here(
        &self,
        user: User,
        changing: &Changing,
        name: &[u8],
        fid: Fid,
    ) -> Result<bool, Error> {
        let Some(pages) = self.pages_to_change(user, changing, Rights::INSERT) else { return Ok(false) };
        let Some(file) = self.vnodes.get(fid) else { return Ok(false) };
        let is_file = file.last_status().is_some_and(|status| status.file_type == FileType::FILE);
        if !is_file || self.vnodes.parent_of(&file) != Some(changing.dir) {
            return Ok(false);
        }
        if pages.directory.lookup(name).is_some() {
            return Err(Error::Exists { dir: changing.dir, name: text(name) });
        }
        drop(pages);
        self.record(user, changing.dir, What::Link { place: place(changing, name), of: fid })?;
        Ok(true)
    }

    /// Removes a name here. False: it has to be done at the server.
    pub(super) fn remove_here(
        &self,
        user: User,
        changing: &Changing,
        name: &[u8],
        fid: Fid,
    ) -> Result<bool, Error> {
        let Some(pages) = self.pages_to_change(user, changing, Rights::DELETE) else { return Ok(false) };
        if pages.directory.lookup(name).is_none_or(|entry| entry.fid != fid.in_volume()) {
            return Ok(false);
        }
        drop(pages);
        let mut is_last = true;
        if fid.vnode.is_directory() {
            match self.directories.known_pages(user, fid) {
                Some(Ok(inside)) if inside.directory.is_empty() => {}
                _ => return Ok(false),
            }
        } else {
            match self.vnodes.get(fid).and_then(|vnode| vnode.last_status()) {
                Some(status) if !self.replay.journal.is_unsure(fid) => is_last = status.link_count <= 1,
                _ => return Ok(false),
            }
        }
        let taken_back = if is_local(fid) { self.replay.journal.take_back(fid) } else { None };
        match taken_back {
            Some(numbers) => {
                self.replay.forget(fid, &numbers)?;
                changing.vnode.take_back(&numbers, name);
                self.note_unlinked(fid);
            }
            None => {
                let what = What::Remove { place: place(changing, name), of: fid, is_last };
                self.record(user, changing.dir, what)?;
                if is_last {
                    self.note_unlinked_by(fid, Files::note_going);
                }
            }
        }
        Ok(true)
    }

    /// Renames something here. False: it has to be done at the server.
    pub(super) fn rename_here(
        &self,
        user: User,
        (from, from_name): (&Changing, &[u8]),
        (to, to_name): (&Changing, &[u8]),
        (fid, replaced): (Fid, Option<Fid>),
    ) -> Result<bool, Error> {
        let to_needed = if replaced.is_some() { Rights::INSERT | Rights::DELETE } else { Rights::INSERT };
        let pages = self.pages_to_change(user, from, Rights::DELETE);
        let (Some(old), Some(new)) = (pages, self.pages_to_change(user, to, to_needed)) else {
            return Ok(false);
        };
        let named = |pages: &Pages, name| pages.directory.lookup(name).map(|entry| entry.fid);
        if named(&old, from_name) != Some(fid.in_volume())
            || named(&new, to_name) != replaced.map(Fid::in_volume)
        {
            return Ok(false);
        }
        drop((old, new));
        let status = |fid| self.vnodes.get(fid).and_then(|vnode| vnode.last_status());
        let Some(moved) = status(fid) else { return Ok(false) };
        // The `..` of a directory would be another, and all names of a file are in one directory.
        let may_be_linked = || moved.link_count > 1 || self.replay.journal.is_unsure(fid);
        if from.dir != to.dir && (fid.vnode.is_directory() || may_be_linked()) {
            return Ok(false);
        }
        if let Some(replaced) = replaced
            && (replaced.vnode.is_directory()
                || self.replay.journal.is_unsure(replaced)
                || status(replaced).is_none_or(|status| status.link_count > 1))
        {
            return Ok(false);
        }
        let is_barrier = moved.file_type != FileType::FILE;
        let (from_place, to_place) = (place(from, from_name), place(to, to_name));
        let what = What::Rename { from: from_place, to: to_place, of: fid, replaced, is_barrier };
        self.record(user, from.dir, what)?;
        if let Some(vnode) = self.vnodes.get(fid).filter(|_| from.dir != to.dir) {
            vnode.set_parent(to.dir.in_volume());
        }
        if let Some(replaced) = replaced.filter(|replaced| !self.open_files.is_hidden(*replaced)) {
            self.note_unlinked_by(replaced, Files::note_going);
        }
        Ok(true)
    }

    /// Sets attributes here. False: it has to be done at the server, where all that was changed of the vnode here is by now.
    ///
    /// # Errors
    ///
    /// The cache's; those of sending what was changed before.
    pub async fn set_here(&self, user: User, fid: Fid, set: SetStatus) -> Result<bool, Error> {
        if self.can_be_set_here(user, fid, set) {
            let time = unix_time(&*self.calls.runtime);
            let modified = set.modified.map(|time| time.0);
            // What is stored later would set the time when it was written.
            if let (Some(modified), Some(data)) = (set.modified, self.files.opened(fid))
                && data.is_dirty()
            {
                data.note_written(modified);
            }
            let mode = set.mode.map(|mode| mode & 0o7777);
            if !self.replay.amend_new(fid, (mode, modified), time)? {
                self.record(user, fid, What::Set { of: fid, mode, modified })?;
            }
            return Ok(true);
        }
        self.replay.journal.settle(fid).await?;
        Ok(false)
    }

    fn can_be_set_here(&self, user: User, fid: Fid, set: SetStatus) -> bool {
        if self.files.behind_at(fid).is_none()
            || self.replay.journal.is_full()
            || self.replay.is_behind(fid)
            || set.length.is_some()
            || set.mode.is_some_and(|mode| mode & SPECIAL_MODES != 0)
            || set.owner.is_some()
            || set.group.is_some()
            || !self.can_be_sent(user, fid)
        {
            return false;
        }
        // What was made here is the user's own. Who may change another file is who may write into it.
        match self.statuses.known_status(user, fid, fid) {
            Some(Ok(status)) if fid.vnode.is_directory() => {
                is_local(fid) && status.rights.contains(Rights::INSERT)
            }
            Some(Ok(status)) => is_local(fid) || status.rights.contains(Rights::WRITE),
            _ => false,
        }
    }
}
