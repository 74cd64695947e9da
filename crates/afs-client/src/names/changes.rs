//! Changes of names: making and removing entries, links, renaming. Each change is one call. Its reply tells what has
//! changed, and the client edits its copy of the directory's pages if nothing else has happened to the directory.
//!
//! **Repeated calls.** If a call breaks, nobody knows whether the server has carried it out. The client makes it again.
//! If it then fails because the result is there already, the client looks: what is as the first attempt would have left
//! it counts as success.
//!
//! **Files that are open** and lose their last name live on under the name `.__afs` and a number in their directory
//! until they are closed, as with OpenAFS, because AFS servers do not know which files are open. While a file that
//! nobody has open loses its last name, nobody can open it: a program that tries looks the name up again, and that
//! waits for the outcome.

use std::sync::Arc;

use afs_wire::Errno;
use afs_wire::abort;
use afs_wire::ids::{AfsTime, Name, Path};
use afs_wire::rxafs::{CreateFile, Link, MakeDir, RemoveDir, RemoveFile, Rename, Symlink};
use afs_wire::status::{AfsStoreStatus, FileType, StoreMask};
use rxgen::Rpc;

use crate::client::{Client, Found, Inner, Made};
use crate::data::open_files::{RemoveHiddenName, Unlink, is_hidden_name};
use crate::error::Error;
use crate::fid::{Fid, User};
use crate::names::lookup::{checked_name, new_name};
use crate::servers::remote::Failure;
use crate::servers::users::Who;
use crate::vnodes::status::Kind;
use crate::vnodes::vnode::{PendingChange, Vnode};

/// The mode of symbolic links. The x bits say that they are no mount points (File service notes 11).
const LINK_MODE: u32 = 0o777;

/// The mode of mount points.
const MOUNT_MODE: u32 = 0o644;

/// A directory that is about to be changed, by one of us at a time.
struct Changing {
    who: Who,
    dir: Fid,
    vnode: Arc<Vnode>,
}

/// A name in a directory, as the pages have it and as it is sent.
type Place<'a> = (&'a Changing, &'a [u8], Name);

/// Whether a failure says that something is there, or is not.
fn says(failure: &Failure, errno: Errno) -> bool {
    failure.code().and_then(abort::errno) == Some(errno)
}

/// What a server says with EISDIR of the link to what is no file, a symbolic link too: POSIX has EPERM for that.
fn not_linked(error: Error) -> Error {
    match error {
        Error::Refused { rpc, fid, code } if abort::errno(code) == Some(Errno::EISDIR) => {
            Error::Refused { rpc, fid, code: Errno::EPERM.uae().unwrap_or(code) }
        }
        other => other,
    }
}

/// What a server says with EEXIST where others say that a directory is not empty (File service notes 6.2).
fn not_empty(error: Error) -> Error {
    match error {
        Error::Refused { rpc, fid, code } if abort::errno(code) == Some(Errno::EEXIST) => {
            Error::Refused { rpc, fid, code: Errno::ENOTEMPTY.uae().unwrap_or(code) }
        }
        other => other,
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl Inner {
    async fn changing(&self, user: User, dir: Fid) -> Result<Changing, Error> {
        let real = self.real(user, dir).await?;
        if real.is_made_up() {
            return Err(Error::ReadOnly { fid: dir });
        }
        if !real.vnode.is_directory() {
            return Err(Error::NotADirectory { fid: dir });
        }
        let vnode = self.vnodes.get_or_add(real);
        if vnode.volume.is_read_only() {
            return Err(Error::ReadOnly { fid: dir });
        }
        Ok(Changing { who: self.users.who(user, real.cell), dir: real, vnode })
    }

    /// The status to make something with.
    fn made_with(&self, mode: u32) -> AfsStoreStatus {
        AfsStoreStatus {
            mask: StoreMask::MODE | StoreMask::MOD_TIME,
            unix_mode_bits: mode & 0o7777,
            client_mod_time: self.time(),
            ..AfsStoreStatus::default()
        }
    }

    /// The entry of a name, as the server has it now.
    async fn entry_anew(&self, user: User, changing: &Changing, name: &[u8]) -> Result<Fid, Error> {
        changing.vnode.forget();
        self.entry(user, changing.dir, name).await
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
    fn note_unlinked(&self, fid: Fid) {
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
                self.files.note_removed(fid);
            }
        }
    }

    /// Gives a file that is open, and about to lose its last name, a hidden one, so that at no time there is neither it nor what
    /// replaces it. Whether it has one.
    async fn hide(&self, user: User, dir: Fid, fid: Fid) -> Result<bool, Error> {
        let hidden = self.open_files.hidden_name(dir, fid);
        match self.client()?.link(user, fid, dir, hidden.as_bytes()).await {
            Ok(_) => {
                if let Some(before) = hidden.given() {
                    self.remove_hidden_name(user, before);
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

impl RemoveHiddenName for Inner {
    // In the background: nobody waits for it who could be interrupted.
    fn remove_hidden_name(&self, user: User, (dir, name): (Fid, String)) {
        let Ok(client) = self.client() else { return };
        self.runtime.spawn(Box::pin(async move {
            if let Err(error) = client.remove(user, dir, name.as_bytes()).await {
                tracing::warn!(%dir, name, %error, "a file that was removed while it was open stays under a hidden name");
            }
            client.inner.open_files.note_removed(dir, name);
        }));
    }
}

impl Client {
    /// Makes an empty file.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; the server's.
    pub async fn create(&self, user: User, dir: Fid, name: &[u8], mode: u32) -> Result<Made, Error> {
        let inner = &self.inner;
        let wire_name = new_name(name)?;
        let changing = inner.changing(user, dir).await?;
        let guard = changing.vnode.changing.lock().await;
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args = CreateFile { dir: changing.dir.in_cell(), name: wire_name, status: inner.made_with(mode) };
        let answer = match inner.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if says(&failure, Errno::EEXIST) => {
                let was_ambiguous = failure.is_ambiguous;
                let fid = inner.entry_anew(user, &changing, name).await;
                drop(guard);
                if let (true, Ok(fid)) = (was_ambiguous, fid) {
                    let status = self.status(user, fid).await?;
                    if status.kind == Kind::File && status.length == 0 {
                        return Ok(Found { fid, status });
                    }
                }
                return Err(Error::Exists { dir, name: text(name) });
            }
            Err(failure) => return Err(failure.of(CreateFile::NAME, changing.dir)),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, inner.now());
        let fid = changing.dir.sibling(reply.fid.local());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.insert(name, fid.in_volume()).is_ok());
        let in_dir = (who, changing.dir.in_volume());
        let callback = Some(&reply.callback);
        inner.vnodes.note_made(now, fid, (&before, &responder), in_dir, &reply.status, callback);
        drop(guard);
        Ok(Found { fid, status: self.status(user, fid).await? })
    }

    /// Makes a directory, with its parent's access list.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub async fn make_dir(&self, user: User, dir: Fid, name: &[u8], mode: u32) -> Result<Made, Error> {
        let inner = &self.inner;
        let wire_name = new_name(name)?;
        let changing = inner.changing(user, dir).await?;
        let guard = changing.vnode.changing.lock().await;
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args = MakeDir { dir: changing.dir.in_cell(), name: wire_name, status: inner.made_with(mode) };
        let answer = match inner.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if says(&failure, Errno::EEXIST) => {
                let was_ambiguous = failure.is_ambiguous;
                let fid = inner.entry_anew(user, &changing, name).await;
                drop(guard);
                if let (true, Ok(fid)) = (was_ambiguous, fid)
                    && fid.vnode.is_directory()
                    && inner.pages_of(user, fid).await?.directory.is_empty()
                {
                    return Ok(Found { fid, status: self.status(user, fid).await? });
                }
                return Err(Error::Exists { dir, name: text(name) });
            }
            Err(failure) => return Err(failure.of(MakeDir::NAME, changing.dir)),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, inner.now());
        let fid = changing.dir.sibling(reply.fid.local());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.insert(name, fid.in_volume()).is_ok());
        let in_dir = (who, changing.dir.in_volume());
        let callback = Some(&reply.callback);
        inner.vnodes.note_made(now, fid, (&before, &responder), in_dir, &reply.status, callback);
        drop(guard);
        Ok(Found { fid, status: self.status(user, fid).await? })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub async fn symlink(&self, user: User, dir: Fid, name: &[u8], target: &[u8]) -> Result<Made, Error> {
        let fid = self.link_with_text(user, dir, name, target, LINK_MODE).await?;
        Ok(Found { fid, status: self.inner.statuses.own_status(user, fid, fid).await? })
    }

    /// Makes a mount point with this text, such as `#root.cell.`; whether there is such a volume is not looked at.
    ///
    /// # Errors
    ///
    /// As [`Self::create`]; it takes the right to administer the directory.
    pub async fn make_mount(&self, user: User, dir: Fid, name: &[u8], text: &str) -> Result<Fid, Error> {
        if crate::names::mount_point::MountText::parse(text.as_bytes()).is_none() {
            return Err(Error::Invalid { what: format!("{text:?} cannot be a mount point's text") });
        }
        self.link_with_text(user, dir, name, text.as_bytes(), MOUNT_MODE).await
    }

    async fn link_with_text(
        &self,
        user: User,
        dir: Fid,
        name: &[u8],
        target: &[u8],
        mode: u32,
    ) -> Result<Fid, Error> {
        let inner = &self.inner;
        let wire_name = new_name(name)?;
        let contents = Path::new(target).map_err(|_| Error::NameTooLong { bytes: target.len() })?;
        let changing = inner.changing(user, dir).await?;
        let _guard = changing.vnode.changing.lock().await;
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args =
            Symlink { dir: changing.dir.in_cell(), name: wire_name, contents, status: inner.made_with(mode) };
        let answer = match inner.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if says(&failure, Errno::EEXIST) => {
                let was_ambiguous = failure.is_ambiguous;
                let fid = inner.entry_anew(user, &changing, name).await;
                if let (true, Ok(fid)) = (was_ambiguous, fid)
                    && inner.link_text(user, fid).await.is_ok_and(|text| text == target)
                {
                    return Ok(fid);
                }
                return Err(Error::Exists { dir, name: text(name) });
            }
            Err(failure) => return Err(failure.of(Symlink::NAME, changing.dir)),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, inner.now());
        let fid = changing.dir.sibling(reply.fid.local());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.insert(name, fid.in_volume()).is_ok());
        let in_dir = (who, changing.dir.in_volume());
        let made = inner.vnodes.note_made(now, fid, (&before, &responder), in_dir, &reply.status, None);
        made.set_link(target.to_vec().into());
        Ok(fid)
    }

    /// Gives a file one more name in its directory.
    ///
    /// # Errors
    ///
    /// As [`Self::create`], and [`Error::Apart`] for another directory.
    pub async fn link(&self, user: User, fid: Fid, dir: Fid, name: &[u8]) -> Result<Made, Error> {
        let inner = &self.inner;
        let wire_name = new_name(name)?;
        let changing = inner.changing(user, dir).await?;
        if (fid.cell, fid.volume) != (changing.dir.cell, changing.dir.volume) {
            return Err(Error::Apart { from: fid, to: dir });
        }
        let file = inner.vnodes.get_or_add(fid);
        let guard = changing.vnode.changing.lock().await;
        let pending = PendingChange::new([Arc::clone(&changing.vnode), Arc::clone(&file)]);
        let (before, file_before) = (changing.vnode.snapshot(), file.snapshot());
        let who = changing.who;
        let args = Link { dir: changing.dir.in_cell(), name: wire_name, existing: fid.in_cell() };
        let answer = match inner.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if says(&failure, Errno::EEXIST) => {
                let was_ambiguous = failure.is_ambiguous;
                let there = inner.entry_anew(user, &changing, name).await;
                drop(guard);
                if was_ambiguous && there.is_ok_and(|there| there == fid) {
                    file.note_break();
                    return Ok(Found { fid, status: self.status(user, fid).await? });
                }
                return Err(Error::Exists { dir, name: text(name) });
            }
            Err(failure) => return Err(not_linked(failure.of(Link::NAME, changing.dir))),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, inner.now());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.insert(name, fid.in_volume()).is_ok());
        file.note_change(now, (&file_before, &responder), who, &reply.status, None);
        drop(guard);
        Ok(Found { fid, status: self.status(user, fid).await? })
    }

    /// Takes away a name of a file or symbolic link, or a mount point.
    ///
    /// # Errors
    ///
    /// [`Error::IsADirectory`]; the server's.
    pub async fn remove(&self, user: User, dir: Fid, name: &[u8]) -> Result<(), Error> {
        let inner = &self.inner;
        let wire_name = checked_name(name)?;
        let changing = inner.changing(user, dir).await?;
        // It may be a name that only the server knows yet; it says so then.
        let fid = inner.entry(user, changing.dir, name).await?;
        if fid.vnode.is_directory() {
            return Err(Error::IsADirectory { fid });
        }
        let unlink = inner.begin_unlink_of_name(user, fid);
        if matches!(unlink, Unlink::Open { .. }) && !is_hidden_name(name) {
            let hidden = inner.open_files.hidden_name(changing.dir, fid);
            match self.rename(user, (dir, name), (dir, hidden.as_bytes()), true).await {
                Ok(()) => {
                    if let Some(before) = hidden.given() {
                        inner.remove_hidden_name(user, before);
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
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args = RemoveFile { dir: changing.dir.in_cell(), name: wire_name };
        let answer = match inner.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if failure.is_ambiguous && says(&failure, Errno::ENOENT) => {
                changing.vnode.forget();
                inner.note_unlinked(fid);
                return Ok(());
            }
            Err(failure) => return Err(failure.of(RemoveFile::NAME, changing.dir)),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, inner.now());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.remove(name).is_some());
        inner.note_unlinked(fid);
        drop(guard);
        drop(unlink);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotADirectory`]; the server's: ENOTEMPTY where there is something in it.
    pub async fn remove_dir(&self, user: User, dir: Fid, name: &[u8]) -> Result<(), Error> {
        let inner = &self.inner;
        let wire_name = checked_name(name)?;
        let changing = inner.changing(user, dir).await?;
        let fid = inner.entry(user, changing.dir, name).await?;
        if !fid.vnode.is_directory() {
            return Err(Error::NotADirectory { fid });
        }
        inner.open_files.none_going(fid).await;
        let guard = changing.vnode.changing.lock().await;
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args = RemoveDir { dir: changing.dir.in_cell(), name: wire_name };
        let answer = match inner.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if failure.is_ambiguous && says(&failure, Errno::ENOENT) => {
                changing.vnode.forget();
                inner.vnodes.remove(fid);
                return Ok(());
            }
            Err(failure) => return Err(not_empty(failure.of(RemoveDir::NAME, changing.dir))),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, inner.now());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.remove(name).is_some());
        inner.vnodes.remove(fid);
        drop(guard);
        Ok(())
    }

    /// Gives something another name, in the same volume. What has that name is replaced, unless `keep` says that there must
    /// be nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Apart`] between volumes; the server's.
    pub async fn rename(
        &self,
        user: User,
        (from_dir, from_name): (Fid, &[u8]),
        (to_dir, to_name): (Fid, &[u8]),
        keep: bool,
    ) -> Result<(), Error> {
        let inner = &self.inner;
        let (old_name, new_name) = (checked_name(from_name)?, new_name(to_name)?);
        let from = inner.changing(user, from_dir).await?;
        let to = inner.changing(user, to_dir).await?;
        if (from.dir.cell, from.dir.volume) != (to.dir.cell, to.dir.volume) {
            return Err(Error::Apart { from: from_dir, to: to_dir });
        }
        let fid = inner.entry(user, from.dir, from_name).await?;
        let replaced = match inner.entry(user, to.dir, to_name).await {
            Ok(replaced) if keep => {
                tracing::trace!(%replaced, "a rename that is to replace nothing");
                return Err(Error::Exists { dir: to_dir, name: text(to_name) });
            }
            Ok(replaced) => Some(replaced),
            Err(Error::NoEntry { .. }) => None,
            Err(error) => return Err(error),
        };
        if replaced == Some(fid) {
            // Two names of one file, or twice the same: nothing is to be done. Servers refuse it (File service notes 6.2).
            return Ok(());
        }
        let unlink = replaced.map(|replaced| inner.begin_unlink_of_name(user, replaced));
        let is_hidden = match (replaced, &unlink) {
            (Some(replaced), Some(Unlink::Open { .. })) => inner.hide(user, to.dir, replaced).await?,
            _ => false,
        };
        let renamed =
            inner.rename(user, (fid, replaced), (&from, from_name, old_name), (&to, to_name, new_name)).await;
        match (replaced, &renamed) {
            (Some(replaced), Ok(())) => inner.open_files.replaced(user, replaced, fid),
            // It has its name still.
            (Some(replaced), Err(_)) if is_hidden => {
                if let Some(hidden) = inner.open_files.take_hidden(replaced) {
                    inner.remove_hidden_name(user, hidden);
                }
            }
            _ => {}
        }
        drop(unlink);
        renamed
    }
}

impl Inner {
    /// What is left of a rename when it is known what is renamed, and what it replaces.
    async fn rename(
        &self,
        user: User,
        (fid, replaced): (Fid, Option<Fid>),
        (from, from_name, old_name): Place<'_>,
        (to, to_name, new_name): Place<'_>,
    ) -> Result<(), Error> {
        let inner = self;
        let is_same = from.dir == to.dir;
        // Always in the same order, so that two renames do not wait for each other.
        let (first, second) = if from.dir <= to.dir { (from, to) } else { (to, from) };
        let first_guard = first.vnode.changing.lock().await;
        let second_guard = if is_same { None } else { Some(second.vnode.changing.lock().await) };
        let pending = PendingChange::new([Arc::clone(&from.vnode), Arc::clone(&to.vnode)]);
        let (from_before, to_before) = (from.vnode.snapshot(), to.vnode.snapshot());
        let who = from.who;
        let args = Rename { old_dir: from.dir.in_cell(), old_name, new_dir: to.dir.in_cell(), new_name };
        let answer = match inner.calls.try_call(who, from.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if failure.is_ambiguous && says(&failure, Errno::ENOENT) => {
                from.vnode.forget();
                return match inner.entry_anew(user, to, to_name).await {
                    Ok(there) if there == fid => Ok(()),
                    _ => Err(failure.of(Rename::NAME, from.dir)),
                };
            }
            Err(failure) => return Err(not_empty(failure.of(Rename::NAME, from.dir))),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let now = inner.now();
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
            if let Some(moved) = inner.vnodes.get(fid) {
                if fid.vnode.is_directory() {
                    // Its `..` is another now.
                    moved.forget();
                } else {
                    moved.set_parent(to.dir.in_volume());
                }
            }
        }
        if let Some(replaced) = replaced {
            if inner.open_files.is_hidden(replaced) {
                if let Some(vnode) = inner.vnodes.get(replaced) {
                    vnode.note_break();
                }
            } else {
                inner.note_unlinked(replaced);
            }
        }
        drop((second_guard, first_guard));
        Ok(())
    }

    /// Seconds since 1970.
    pub(crate) fn time(&self) -> AfsTime {
        AfsTime(rx_security::UnixTime::of(self.runtime.wall_clock()).0)
    }
}
