//! Names that end: removing them, and renaming, which may replace what had the new name. Files that are open and so lose their last
//! name get a hidden one; which files these are, and for how long, is left to `data::open_files`.

use std::sync::Arc;

use afs_wire::Errno;
use afs_wire::abort;
use afs_wire::ids::Name;
use afs_wire::rxafs::{RemoveDir, RemoveFile, Rename};
use afs_wire::status::FileType;
use rxgen::Rpc;

use crate::data::files::Files;
use crate::data::open_files::{RemoveHiddenName, Unlink, is_hidden_name};
use crate::names::changes::{Changes, Changing, says, text};
use crate::names::lookup::{checked_name, new_name};
use crate::vnodes::vnode::PendingChange;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};

/// A name in a directory, as the pages have it and as it is sent.
type Place<'a> = (&'a Changing, &'a [u8], Name);

/// Translates a server's EEXIST for a directory that is not empty, where others say ENOTEMPTY (File service notes 6.2).
fn not_empty(error: Error) -> Error {
    match error {
        Error::Refused { rpc, fid, code } if abort::errno(code) == Some(Errno::EEXIST) => {
            Error::Refused { rpc, fid, code: Errno::ENOTEMPTY.uae().unwrap_or(code) }
        }
        other => other,
    }
}

impl Changes {
    /// See `Client::remove`.
    pub async fn remove(self: &Arc<Self>, user: User, dir: Fid, name: &[u8]) -> Result<(), Error> {
        let wire_name = checked_name(name)?;
        let changing = self.changing(user, dir).await?;
        // It may be a name that only the server knows yet; it says so then.
        let fid = self.names.entry(user, changing.dir, name).await?;
        if fid.vnode.is_directory() {
            return Err(Error::IsADirectory { fid });
        }
        let unlink = self.begin_unlink_of_name(user, fid);
        if matches!(unlink, Unlink::Open { .. }) && !is_hidden_name(name) {
            let hidden = self.open_files.hidden_name(changing.dir, fid);
            match self.rename(user, (dir, name), (dir, hidden.as_bytes()), true).await {
                Ok(()) => {
                    if let Some(before) = hidden.given() {
                        Arc::clone(self).remove_hidden_name(user, before);
                    }
                    return Ok(());
                }
                // To give it another name takes more than to remove it: the right to insert, and room in the directory. Who has it open
                // goes on with what is here.
                Err(error @ Error::Refused { .. }) if error.errno() != Errno::ENOENT => {
                    tracing::debug!(%fid, %error, "an open file is removed for good, as it gets no hidden name");
                }
                Err(error) => return Err(error),
            }
        }
        let guard = changing.vnode.changing.lock().await;
        if self.remove_here(user, &changing, name, fid)? {
            return Ok(());
        }
        let in_cell = self.settled(&changing).await?;
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args = RemoveFile { dir: in_cell, name: wire_name };
        let answer = match self.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if failure.is_ambiguous && says(&failure, Errno::ENOENT) => {
                changing.vnode.forget();
                self.note_unlinked(fid);
                return Ok(());
            }
            Err(failure) => return Err(failure.of(RemoveFile::NAME, changing.dir)),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, self.now());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.remove(name).is_some());
        self.note_unlinked(fid);
        drop(guard);
        drop(unlink);
        Ok(())
    }

    /// See `Client::remove_dir`.
    pub async fn remove_dir(&self, user: User, dir: Fid, name: &[u8]) -> Result<(), Error> {
        let wire_name = checked_name(name)?;
        let changing = self.changing(user, dir).await?;
        let fid = self.names.entry(user, changing.dir, name).await?;
        if !fid.vnode.is_directory() {
            return Err(Error::NotADirectory { fid });
        }
        self.open_files.none_going(fid).await;
        let guard = changing.vnode.changing.lock().await;
        if self.remove_here(user, &changing, name, fid)? {
            return Ok(());
        }
        self.replay.journal.settle(fid).await?;
        let in_cell = self.settled(&changing).await?;
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args = RemoveDir { dir: in_cell, name: wire_name };
        let answer = match self.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if failure.is_ambiguous && says(&failure, Errno::ENOENT) => {
                changing.vnode.forget();
                self.vnodes.remove(fid);
                return Ok(());
            }
            Err(failure) => return Err(not_empty(failure.of(RemoveDir::NAME, changing.dir))),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, self.now());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.remove(name).is_some());
        self.vnodes.remove(fid);
        drop(guard);
        Ok(())
    }

    /// See `Client::rename`.
    pub async fn rename(
        self: &Arc<Self>,
        user: User,
        (from_dir, from_name): (Fid, &[u8]),
        (to_dir, to_name): (Fid, &[u8]),
        keep: bool,
    ) -> Result<(), Error> {
        let (old_name, new_name) = (checked_name(from_name)?, new_name(to_name)?);
        let from = self.changing(user, from_dir).await?;
        let to = self.changing(user, to_dir).await?;
        if (from.dir.cell, from.dir.volume) != (to.dir.cell, to.dir.volume) {
            return Err(Error::Apart { from: from_dir, to: to_dir });
        }
        let mut fid = self.names.entry(user, from.dir, from_name).await?;
        let mut replaced = self.replaced(user, &to, to_name).await?;
        if replaced == Some(fid) {
            if from.dir != to.dir {
                // What is in a directory is in no other, so one of them has changed since.
                from.vnode.forget();
                to.vnode.forget();
            }
            // The old name may have gone after it was looked at, and before the new one was.
            fid = self.names.entry(user, from.dir, from_name).await?;
            if from.dir != to.dir {
                replaced = self.replaced(user, &to, to_name).await?.filter(|replaced| *replaced != fid);
            }
        }
        if let (true, Some(replaced)) = (keep, replaced) {
            tracing::trace!(%replaced, "a rename that is to replace nothing");
            return Err(Error::Exists { dir: to_dir, name: text(to_name) });
        }
        if replaced == Some(fid) {
            // Two names of one file, or twice the same: nothing is to be done. Servers refuse it (File service notes 6.2).
            return Ok(());
        }
        let unlink = replaced.map(|replaced| self.begin_unlink_of_name(user, replaced));
        let is_hidden = match (replaced, &unlink) {
            (Some(replaced), Some(Unlink::Open { .. })) => self.hide(user, to.dir, replaced).await?,
            _ => false,
        };
        let renamed = self
            .rename_known(user, (fid, replaced), (&from, from_name, old_name), (&to, to_name, new_name))
            .await;
        match (replaced, &renamed) {
            (Some(replaced), Ok(())) => self.open_files.replaced(user, replaced, fid),
            // It has its name still.
            (Some(replaced), Err(_)) if is_hidden => {
                if let Some(hidden) = self.open_files.take_hidden(replaced) {
                    Arc::clone(self).remove_hidden_name(user, hidden);
                }
            }
            _ => {}
        }
        drop(unlink);
        renamed
    }

    /// The thing that a rename to this name replaces.
    async fn replaced(&self, user: User, to: &Changing, name: &[u8]) -> Result<Option<Fid>, Error> {
        match self.names.entry(user, to.dir, name).await {
            Ok(replaced) => Ok(Some(replaced)),
            Err(Error::NoEntry { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Does the rest of a rename when it is known what is renamed, and what it replaces.
    async fn rename_known(
        &self,
        user: User,
        (fid, replaced): (Fid, Option<Fid>),
        (from, from_name, old_name): Place<'_>,
        (to, to_name, new_name): Place<'_>,
    ) -> Result<(), Error> {
        let is_same = from.dir == to.dir;
        // Always in the same order, so that two renames do not wait for each other.
        let (first, second) = if from.dir <= to.dir { (from, to) } else { (to, from) };
        let first_guard = first.vnode.changing.lock().await;
        let second_guard = if is_same { None } else { Some(second.vnode.changing.lock().await) };
        if self.rename_here(user, (from, from_name), (to, to_name), (fid, replaced))? {
            return Ok(());
        }
        self.files.store_before_naming(user, fid).await?;
        self.replay.journal.settle(fid).await?;
        if let Some(replaced) = replaced {
            self.replay.journal.settle(replaced).await?;
        }
        let (old_dir, new_dir) = (self.settled(from).await?, self.settled(to).await?);
        let pending = PendingChange::new([Arc::clone(&from.vnode), Arc::clone(&to.vnode)]);
        let (from_before, to_before) = (from.vnode.snapshot(), to.vnode.snapshot());
        let who = from.who;
        let args = Rename { old_dir, old_name, new_dir, new_name };
        let answer = match self.calls.try_call(who, from.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if failure.is_ambiguous && says(&failure, Errno::ENOENT) => {
                from.vnode.forget();
                return match self.entry_anew(user, to, to_name).await {
                    Ok(there) if there == fid => Ok(()),
                    _ => Err(failure.of(Rename::NAME, from.dir)),
                };
            }
            Err(failure) => return Err(not_empty(failure.of(Rename::NAME, from.dir))),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let now = self.now();
        from.vnode.note_change(now, (&from_before, &responder), who, &reply.old_dir_status, None);
        let own = fid.in_volume();
        if is_same {
            from.vnode.edit_pages(reply.old_dir_status.data_version, |pages| {
                pages.remove(from_name).is_some()
                    && (pages.replace(to_name, own).is_some() || pages.insert(to_name, own).is_ok())
            });
        } else {
            to.vnode.note_change(now, (&to_before, &responder), who, &reply.new_dir_status, None);
            from.vnode
                .edit_pages(reply.old_dir_status.data_version, |pages| pages.remove(from_name).is_some());
            to.vnode.edit_pages(reply.new_dir_status.data_version, |pages| {
                pages.replace(to_name, own).is_some() || pages.insert(to_name, own).is_ok()
            });
            if let Some(moved) = self.vnodes.get(fid) {
                if fid.vnode.is_directory() {
                    // Its `..` is another now.
                    moved.forget();
                }
                moved.set_parent(to.dir.in_volume());
            }
        }
        if let Some(replaced) = replaced {
            if self.open_files.is_hidden(replaced) {
                if let Some(vnode) = self.vnodes.get(replaced) {
                    vnode.note_break();
                }
            } else {
                self.note_unlinked(replaced);
            }
        }
        drop((second_guard, first_guard));
        Ok(())
    }

    /// A name of something is about to go: what that means for those who have it open, or are about to open it.
    fn begin_unlink_of_name(&self, user: User, fid: Fid) -> Unlink<'_> {
        let last = self.vnodes.get(fid).and_then(|vnode| vnode.last_status());
        let is_last_of_file =
            last.is_none_or(|status| status.file_type == FileType::FILE && status.link_count <= 1);
        if fid.vnode.is_directory() || !is_last_of_file {
            return Unlink::Unaffected;
        }
        self.open_files.begin_unlink(user, fid)
    }

    /// Forgets a vnode that has lost a name: with its last one it is no longer there.
    pub(in crate::names) fn note_unlinked(&self, fid: Fid) {
        self.note_unlinked_by(fid, Files::note_removed);
    }

    /// The same, where this is to become of a file's data with its last name.
    pub(in crate::names) fn note_unlinked_by(&self, fid: Fid, end: impl FnOnce(&Files, Fid)) {
        let links =
            self.vnodes.get(fid).and_then(|vnode| vnode.last_status()).map(|status| status.link_count);
        match links {
            Some(2..) if !fid.vnode.is_directory() => {
                if let Some(vnode) = self.vnodes.get(fid) {
                    vnode.note_break();
                }
            }
            _ => {
                self.vnodes.remove(fid);
                end(&self.files, fid);
            }
        }
    }

    /// Gives a file that is open, and about to lose its last name, a hidden one, so that at no time there is neither it nor what
    /// replaces it. Whether it has one.
    async fn hide(self: &Arc<Self>, user: User, dir: Fid, fid: Fid) -> Result<bool, Error> {
        let hidden = self.open_files.hidden_name(dir, fid);
        match self.link(user, fid, dir, hidden.as_bytes()).await {
            Ok(_) => {
                if let Some(before) = hidden.given() {
                    Arc::clone(self).remove_hidden_name(user, before);
                }
                Ok(true)
            }
            Err(error) => {
                tracing::debug!(%fid, %error, "no hidden name for a file that is replaced");
                Ok(false)
            }
        }
    }
}

impl RemoveHiddenName for Changes {
    // In the background: nobody waits for it who could be interrupted.
    fn remove_hidden_name(self: Arc<Self>, user: User, place: (Fid, String)) {
        let runtime = Arc::clone(&self.calls.runtime);
        runtime.spawn(Box::pin(async move {
            let Some(_unlinking) = self.open_files.begin_removal(&place) else { return };
            let (dir, name) = place;
            if let Err(error) = self.remove(user, dir, name.as_bytes()).await {
                tracing::warn!(%dir, name, %error, "a file that was removed while it was open stays under a hidden name");
            }
            self.open_files.note_removed(dir, name);
        }));
    }
}
