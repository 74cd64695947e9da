//! The calls that changes become, and what their answers mean.

use std::sync::Arc;

use afs_cache::{FileKey, NewKind, Place, RealId, What};
use afs_wire::Errno;
use afs_wire::abort;
use afs_wire::ids::{AfsFid, AfsTime, LocalFid, Name, Path, ViceId};
use afs_wire::rxafs::{
    CreateFile, FetchStatus, Link, MakeDir, RemoveDir, RemoveFile, Rename, StoreStatus, Symlink,
};
use afs_wire::status::{AfsCallBack, AfsFetchStatus, AfsStoreStatus, FileType, StoreMask};
use rxgen::Rpc;

use super::{Replay, Sending, order};
use crate::data::files::local;
use crate::data::write::noted;
use crate::names::lookup::checked_name;
use crate::vnodes::local_ids::is_local;
use crate::vnodes::status::SetStatus;
use crate::vnodes::vnode::{Cause, Snapshot, Vnode};
use afs_reach::error::Error;
use afs_reach::fid::Fid;
use afs_reach::remote::{Answer, Asked, Failure};
use afs_reach::table::Responder;
use afs_reach::users::{IdentityIndex, NoToken};

/// The status of something new, as far as it is known here: the owner is the local user's number, as cells tend to give it; `None` for nobody in particular.
pub(crate) fn new_status(
    dir: Fid,
    kind: &NewKind,
    mode: u32,
    modified: AfsTime,
    owner: Option<u32>,
) -> AfsFetchStatus {
    let owner = owner.and_then(|owner| i32::try_from(owner).ok()).map_or(ViceId::ANONYMOUS, ViceId);
    let (file_type, link_count, length) = match kind {
        NewKind::File => (FileType::FILE, 1, 0),
        NewKind::Directory => (FileType::DIRECTORY, 2, 2048),
        NewKind::Symlink(target) => (FileType::SYMLINK, 1, target.len() as u64),
    };
    AfsFetchStatus {
        interface_version: AfsFetchStatus::VERSION,
        file_type,
        link_count,
        length,
        author: owner,
        owner,
        unix_mode_bits: mode & 0o7777,
        parent_vnode: dir.vnode,
        parent_unique: dir.unique,
        residency_mask: 1,
        client_mod_time: modified,
        server_mod_time: modified,
        ..AfsFetchStatus::failed(0)
    }
}

/// A directory while a change of it is under way.
struct Dir {
    in_cell: AfsFid,
    vnode: Arc<Vnode>,
    before: Snapshot,
    is_answered: bool,
}

impl Dir {
    /// The change has led to this status.
    fn answered(
        &mut self,
        replay: &Replay,
        number: u64,
        responder: &Responder,
        who: IdentityIndex,
        status: &AfsFetchStatus,
    ) {
        self.is_answered = true;
        self.vnode.end_made_there(number, status.data_version);
        self.vnode.note_change(replay.statuses.now(), (&self.before, responder), who, status, None);
        self.vnode.note_answered(Some(status.data_version));
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if !self.is_answered {
            self.vnode.note_answered(None);
        }
    }
}

/// A file whose names a call changes, until it is answered.
struct Relinked(Arc<Vnode>);

impl Relinked {
    fn sent(file: Arc<Vnode>) -> Self {
        file.note_sent();
        Self(file)
    }
}

impl Drop for Relinked {
    fn drop(&mut self) {
        self.0.note_answered(None);
    }
}

/// Something that the server has made.
struct New<'a> {
    fid: AfsFid,
    status: AfsFetchStatus,
    callback: Option<AfsCallBack>,
    responder: &'a Responder,
    /// It was made by this answer, and not found.
    is_new: bool,
}

fn says(failure: &Failure, errno: Errno) -> bool {
    failure.code().and_then(abort::errno) == Some(errno)
}

fn contradicted(fid: Fid, place: &Place<Fid>) -> Error {
    let name = String::from_utf8_lossy(&place.name);
    Error::Invalid { what: format!("{name:?} in {fid} was made or renamed by others meanwhile") }
}

impl Replay {
    /// Makes a change at the server, and notes its answer.
    ///
    /// # Errors
    ///
    /// Those of the call; [`Error::NoToken`]; [`Error::Exists`] and others where somebody else has changed the same.
    pub(super) async fn send(&self, sending: &Sending) -> Result<(), Error> {
        let change = &sending.change;
        let cell = super::subject(change).cell;
        if let What::Sync { of } = change.what {
            self.files.store_closed_before(of, sending.number).await?;
            return self.end(sending, None);
        }
        let who = self.calls.users.who_wrote(noted(&change.writer), cell);
        let who = who.map_err(|NoToken| Error::NoToken { cell: self.calls.cells.name_of(cell) })?;
        match &change.what {
            What::Make { place, made, kind, mode, modified } => {
                let status = AfsStoreStatus {
                    mask: StoreMask::MODE | StoreMask::MOD_TIME,
                    unix_mode_bits: mode & 0o7777,
                    client_mod_time: AfsTime(*modified),
                    ..AfsStoreStatus::default()
                };
                self.send_make(sending, who, (place, *made), kind, status).await
            }
            What::Link { place, of } => self.send_link(sending, who, place, *of).await,
            What::Remove { place, of, .. } => self.send_remove(sending, who, place, *of).await,
            What::Rename { from, to, of, is_barrier, .. } => {
                if *is_barrier {
                    self.files.try_to_store_promised(*of, change.writer.user).await;
                }
                self.files.store_promised_of(sending.user, *of).await?;
                self.send_rename(sending, who, (from, to), *of).await
            }
            What::Set { of, mode, modified } => self.send_set(sending, who, *of, (*mode, *modified)).await,
            What::Sync { .. } => unreachable!("it is no call, and done above"),
        }
    }

    /// One call. Who cannot reach a server is told so at once, and asks again later.
    async fn call<R: Rpc>(
        &self,
        sending: &Sending,
        who: IdentityIndex,
        fid: Fid,
        args: R,
    ) -> Result<Answer<R::Reply>, Failure> {
        let answer = self.calls.call_about(Asked::Known(fid.cell, fid.volume), who, args).await;
        answer.inspect_err(|failure| {
            if failure.is_ambiguous || failure.is_of_another_start {
                self.journal.note_ambiguous(sending.number);
            }
        })
    }

    async fn dir(&self, fid: Fid) -> Result<Dir, Error> {
        let in_cell = self.vnodes.local_ids.at_server(fid).await?.in_cell();
        let vnode = self.vnodes.get_or_add(fid);
        let before = vnode.snapshot();
        vnode.note_sent();
        Ok(Dir { in_cell, vnode, before, is_answered: false })
    }

    /// A change is at the server.
    fn end(&self, sending: &Sending, made: Option<(FileKey, RealId)>) -> Result<(), Error> {
        if let Some(fid) = order::removed(&sending.change) {
            // First, as the next start would put aside what is left of it.
            self.files.note_removed(fid);
        }
        self.files.cache.end_changes(&[sending.number], made).map_err(local)
    }

    async fn send_make(
        &self,
        sending: &Sending,
        who: IdentityIndex,
        (place, made): (&Place<Fid>, Fid),
        kind: &NewKind,
        status: AfsStoreStatus,
    ) -> Result<(), Error> {
        let mut dir = self.dir(place.dir).await?;
        let (name, in_cell) = (checked_name(&place.name)?, dir.in_cell);
        // Their replies differ in nothing but the promise.
        let answer = match kind {
            NewKind::File => {
                let answer =
                    self.call(sending, who, place.dir, CreateFile { dir: in_cell, name, status }).await;
                answer.map(|Answer { reply, responder, .. }| {
                    (reply.fid, reply.status, reply.dir_status, Some(reply.callback), responder)
                })
            }
            NewKind::Directory => {
                let answer = self.call(sending, who, place.dir, MakeDir { dir: in_cell, name, status }).await;
                answer.map(|Answer { reply, responder, .. }| {
                    (reply.fid, reply.status, reply.dir_status, Some(reply.callback), responder)
                })
            }
            NewKind::Symlink(target) => {
                let contents =
                    Path::new(&**target).map_err(|_| Error::NameTooLong { bytes: target.len() })?;
                let args = Symlink { dir: in_cell, name, contents, status };
                let answer = self.call(sending, who, place.dir, args).await;
                answer.map(|Answer { reply, responder, .. }| {
                    (reply.fid, reply.status, reply.dir_status, None, responder)
                })
            }
        };
        let (fid, status, dir_status, callback, responder) = match answer {
            Ok(answer) => answer,
            Err(failure) if says(&failure, Errno::EEXIST) => {
                drop(dir);
                return self.settle_existing(sending, who, (place, made), kind, &status).await;
            }
            Err(failure) => return Err(failure.of(CreateFile::NAME, place.dir)),
        };
        let new = New { fid, status, callback, responder: &responder, is_new: true };
        self.note_made(sending, who, (place.dir, made), &new, &dir.before)?;
        dir.answered(self, sending.number, &responder, who, &dir_status);
        Ok(())
    }

    /// Something is made. Who waits for it goes on.
    fn note_made(
        &self,
        sending: &Sending,
        who: IdentityIndex,
        (dir, made): (Fid, Fid),
        new: &New<'_>,
        dir_before: &Snapshot,
    ) -> Result<(), Error> {
        let real = new.fid.local();
        if new.is_new {
            self.calls.users.note_number(who, new.status.owner);
        }
        let kept = RealId { vnode: real.vnode.0, unique: real.unique.0 };
        self.end(sending, Some((self.files.key(made)?, kept)))?;
        let vnode = self.vnodes.get_or_add(made);
        let shown_at = AfsTime(sending.change.time);
        vnode.set_made_there(new.status.data_version, new.is_new);
        if new.status.file_type == FileType::FILE {
            self.files.note_made(made, &new.status)?;
        }
        // Before it has numbers: what is stored into it afterwards counts more.
        self.vnodes.note_made(
            self.statuses.now(),
            made,
            (dir_before, new.responder),
            (who, dir.in_volume()),
            (&new.status, Cause::Shown(shown_at)),
            new.callback.as_ref(),
        );
        self.vnodes.local_ids.note_made(made, real);
        // A break of the real number, which nobody knew until now.
        vnode.note_strays(dir_before);
        Ok(())
    }

    /// There is something of the name: it is ours if an attempt was not answered, it is the same user's, was made with the same attributes and has
    /// nothing that is not here; a directory will do in any case. That the same user has made an empty file of the name in the same second on
    /// another machine cannot be told from it: then it is one file for both, of which the last to close it decides.
    async fn settle_existing(
        &self,
        sending: &Sending,
        who: IdentityIndex,
        (place, made): (&Place<Fid>, Fid),
        kind: &NewKind,
        asked: &AfsStoreStatus,
    ) -> Result<(), Error> {
        let exists =
            || Error::Exists { dir: place.dir, name: String::from_utf8_lossy(&place.name).into_owned() };
        let Some(found) = self.entry_at_server(sending, place).await? else {
            // Others have removed it meanwhile: the name is free.
            return Err(Error::Busy { rpc: CreateFile::NAME, fid: place.dir, code: abort::VBUSY });
        };
        if is_local(place.dir.sibling(found)) {
            return Err(exists());
        }
        let before = self.vnodes.get_or_add(place.dir).snapshot();
        let fid = AfsFid { volume: place.dir.volume, vnode: found.vnode, unique: found.unique };
        let answer = self.call(sending, who, place.dir, FetchStatus { fid }).await;
        let Answer { reply, responder, .. } =
            answer.map_err(|failure| failure.of(FetchStatus::NAME, place.dir))?;
        let status = reply.status;
        let real = place.dir.sibling(found);
        let is_anothers = self.calls.users.is_called(who, status.owner) == Some(false);
        let is_ours = match kind {
            NewKind::Directory => status.file_type == FileType::DIRECTORY,
            _ if is_anothers || !self.journal.may_be_done(sending.number) => false,
            NewKind::File => {
                // One that is empty has nothing but its attributes to tell whose it is: others may be about to write into theirs.
                status.file_type == FileType::FILE
                    && status.unix_mode_bits & 0o7777 == asked.unix_mode_bits
                    && (status.length > 0 || status.client_mod_time == asked.client_mod_time)
                    && self.files.has_all_of(sending.user, (made, real), status.length).await?
            }
            NewKind::Symlink(target) => {
                let is_link = status.file_type == FileType::SYMLINK
                    && status.unix_mode_bits & 0o7777 == asked.unix_mode_bits;
                is_link && self.files.is_text(sending.user, real, target).await?
            }
        };
        // What was asked about it is told under our number from now on.
        self.vnodes.remove(real);
        if !is_ours {
            return Err(exists());
        }
        let callback = Some(reply.callback);
        let new = New { fid, status, callback, responder: &responder, is_new: false };
        self.note_made(sending, who, (place.dir, made), &new, &before)?;
        let dir = self.vnodes.get_or_add(place.dir);
        dir.end_made_here(sending.number);
        dir.forget();
        Ok(())
    }

    /// What the server has under a name, where it is not what is shown here.
    async fn entry_at_server(
        &self,
        sending: &Sending,
        place: &Place<Fid>,
    ) -> Result<Option<LocalFid>, Error> {
        let dir = self.vnodes.get_or_add(place.dir);
        dir.forget();
        self.directories.pages_of(sending.user, place.dir).await?;
        Ok(dir.found_instead(sending.number))
    }

    /// Finds out whether a name has what a change of it was made on; or, after an attempt that nobody has answered, what `of` has: then it is
    /// that attempt's.
    async fn check(
        &self,
        sending: &Sending,
        who: IdentityIndex,
        place: &Place<Fid>,
        of: Fid,
    ) -> Result<(), Error> {
        let dir = self.vnodes.get_or_add(place.dir);
        if dir.take_doubt() {
            // Before anything is forgotten that programs see while the server is away.
            let fid = self.vnodes.local_ids.at_server(place.dir).await?.in_cell();
            let answer = self.call(sending, who, place.dir, FetchStatus { fid }).await;
            answer
                .map_err(|failure| failure.of(FetchStatus::NAME, place.dir))
                .inspect_err(|_| dir.note_doubt())?;
            dir.forget();
        }
        self.directories.pages_of(sending.user, place.dir).await?;
        let Some(found) = dir.found_instead(sending.number) else { return Ok(()) };
        let found = place.dir.sibling(found);
        let is_rename = matches!(sending.change.what, What::Rename { .. });
        if !sending.may_be_done || !is_rename || is_local(found) {
            return Err(contradicted(place.dir, place));
        }
        let own = self.vnodes.local_ids.at_server(of).await?;
        let is_same = self.files.are_same_there(sending.user, (own, found)).await?;
        self.vnodes.remove(found);
        if is_same { Ok(()) } else { Err(contradicted(place.dir, place)) }
    }

    async fn send_link(
        &self,
        sending: &Sending,
        who: IdentityIndex,
        place: &Place<Fid>,
        of: Fid,
    ) -> Result<(), Error> {
        self.files.store_promised_of(sending.user, of).await?;
        let existing = self.vnodes.local_ids.at_server(of).await?.in_cell();
        let mut dir = self.dir(place.dir).await?;
        let file = self.vnodes.get_or_add(of);
        let before = file.snapshot();
        let args = Link { dir: dir.in_cell, name: checked_name(&place.name)?, existing };
        let relinked = Relinked::sent(Arc::clone(&file));
        match self.call(sending, who, place.dir, args).await {
            Ok(Answer { reply, responder, .. }) => {
                self.end(sending, None)?;
                dir.answered(self, sending.number, &responder, who, &reply.dir_status);
                file.end_made_here(sending.number);
                drop(relinked);
                file.note_change(self.statuses.now(), (&before, &responder), who, &reply.status, None);
                if file.last_status().is_some_and(|last| last.data_version != reply.status.data_version) {
                    // What was told of a store meanwhile may have the new name in it.
                    file.note_break();
                }
                Ok(())
            }
            Err(failure) if self.journal.may_be_done(sending.number) && says(&failure, Errno::EEXIST) => {
                match self.entry_at_server(sending, place).await? {
                    None => self.end_as_it_is(sending, &[place.dir, of]),
                    Some(_) => Err(failure.of(Link::NAME, place.dir)),
                }
            }
            Err(failure) => Err(failure.of(Link::NAME, place.dir)),
        }
    }

    /// A change is at the server already; what these have is asked for anew.
    fn end_as_it_is(&self, sending: &Sending, fids: &[Fid]) -> Result<(), Error> {
        self.end(sending, None)?;
        for &fid in fids {
            let vnode = self.vnodes.get_or_add(fid);
            vnode.end_made_here(sending.number);
            vnode.forget();
        }
        Ok(())
    }

    async fn send_remove(
        &self,
        sending: &Sending,
        who: IdentityIndex,
        place: &Place<Fid>,
        of: Fid,
    ) -> Result<(), Error> {
        if self.vnodes.local_ids.at_server(of).await.is_err() {
            // It was never made.
            return self.end_as_it_is(sending, &[place.dir, of]);
        }
        let checked = self.check(sending, who, place, of).await;
        let is_others = checked.as_ref().is_err_and(|error| !error.is_passing());
        if is_others && sending.may_be_done && self.is_gone(sending, who, of).await? {
            // The attempt that was not answered has removed it, and others have made something of the name since.
            return self.end_as_it_is(sending, &[place.dir, of]);
        }
        checked?;
        let mut dir = self.dir(place.dir).await?;
        let name: Name = checked_name(&place.name)?;
        let _relinked = self.vnodes.get(of).filter(|_| !of.vnode.is_directory()).map(Relinked::sent);
        let answer = match of.vnode.is_directory() {
            true => {
                let answer = self.call(sending, who, place.dir, RemoveDir { dir: dir.in_cell, name }).await;
                answer.map(|Answer { reply, responder, .. }| (reply.dir_status, responder))
            }
            false => {
                let answer = self.call(sending, who, place.dir, RemoveFile { dir: dir.in_cell, name }).await;
                answer.map(|Answer { reply, responder, .. }| (reply.dir_status, responder))
            }
        };
        match answer {
            Ok((dir_status, responder)) => {
                self.end(sending, None)?;
                dir.answered(self, sending.number, &responder, who, &dir_status);
                if let Some(vnode) = self.vnodes.get(of) {
                    // It may have other names.
                    vnode.end_made_here(sending.number);
                    vnode.note_break();
                }
                Ok(())
            }
            Err(failure) if says(&failure, Errno::ENOENT) => {
                drop(dir);
                self.end_as_it_is(sending, &[place.dir, of])
            }
            Err(failure) => Err(failure.of(RemoveFile::NAME, place.dir)),
        }
    }

    /// True if the server says that there is no such file or directory any more.
    async fn is_gone(&self, sending: &Sending, who: IdentityIndex, of: Fid) -> Result<bool, Error> {
        let fid = self.vnodes.local_ids.at_server(of).await?.in_cell();
        match self.call(sending, who, of, FetchStatus { fid }).await {
            Ok(_) => Ok(false),
            Err(failure) if failure.code() == Some(abort::VNOVNODE) => Ok(true),
            Err(failure) => Err(failure.of(FetchStatus::NAME, of)),
        }
    }

    async fn send_rename(
        &self,
        sending: &Sending,
        who: IdentityIndex,
        (from, to): (&Place<Fid>, &Place<Fid>),
        of: Fid,
    ) -> Result<(), Error> {
        self.check(sending, who, from, of).await?;
        self.check(sending, who, to, of).await?;
        let (mut old, is_same) = (self.dir(from.dir).await?, from.dir == to.dir);
        let mut new = if is_same { None } else { Some(self.dir(to.dir).await?) };
        let new_dir = new.as_ref().map_or(old.in_cell, |dir| dir.in_cell);
        let (old_name, new_name) = (checked_name(&from.name)?, checked_name(&to.name)?);
        let args = Rename { old_dir: old.in_cell, old_name, new_dir, new_name };
        match self.call(sending, who, from.dir, args).await {
            Ok(Answer { reply, responder, .. }) => {
                self.end(sending, None)?;
                old.answered(self, sending.number, &responder, who, &reply.old_dir_status);
                if let Some(new) = &mut new {
                    new.answered(self, sending.number, &responder, who, &reply.new_dir_status);
                }
                Ok(())
            }
            Err(failure) if self.journal.may_be_done(sending.number) && says(&failure, Errno::ENOENT) => {
                drop((old, new));
                match self.entry_at_server(sending, to).await? {
                    None => self.end_as_it_is(sending, &[from.dir, to.dir]),
                    Some(_) => Err(failure.of(Rename::NAME, of)),
                }
            }
            Err(failure) => Err(failure.of(Rename::NAME, from.dir)),
        }
    }

    async fn send_set(
        &self,
        sending: &Sending,
        who: IdentityIndex,
        of: Fid,
        (mode, modified): (Option<u32>, Option<u32>),
    ) -> Result<(), Error> {
        let is_written_later = self.files.is_written_after(of, sending.change.time);
        // What was written goes first: a store afterwards would change the time again, and may be refused by the mode.
        self.files.store_dirty(sending.user, of).await?;
        let fid = self.vnodes.local_ids.at_server(of).await?.in_cell();
        let vnode = self.vnodes.get_or_add(of);
        // A command that changes a directory at the server has this, and waits for what was changed in it before.
        let _changing = match of.vnode.is_directory() {
            true => None,
            false => Some(vnode.changing.lock().await),
        };
        let before = vnode.snapshot();
        // A later write has a later time.
        let modified = modified.filter(|_| !is_written_later).map(AfsTime);
        let status = SetStatus { mode, modified, ..SetStatus::default() }.to_wire();
        let answer = self.call(sending, who, of, StoreStatus { fid, status }).await;
        let Answer { reply, responder, .. } = answer.map_err(|failure| failure.of(StoreStatus::NAME, of))?;
        self.end(sending, None)?;
        vnode.end_made_here(sending.number);
        let cause = Cause::Shown(AfsTime(sending.change.time));
        vnode.note_caused(self.statuses.now(), (&before, &responder), who, (&reply.status, cause), None);
        Ok(())
    }
}
