//! `fsync`: where a file is when it returns. It waits for the server as long as that answers. Once the client has known for a while that the
//! server is away, an `fsync` in a directory with write-behind returns when the journal is on this machine's disk, unless that is set otherwise.
//!
//! Such an `fsync` is a barrier later: the journal has a change for it ([`What::Sync`]), before which all goes that was changed and closed in the
//! volume before, and after which all that comes later. For changes of names the journal's order sees to that. Of data, what was closed after a
//! barrier is held back until it is done ([`Late`]). What the last run of the client has left counts as closed before all barriers.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afs_cache::{Change, What};
use futures_util::future::{Either, select};
use rx_proto::time::Instant;

use crate::data::files::{FileData, Files, local, lock};
use crate::data::open_file::OpenFile;
use crate::data::write::{noted, writer_of};
use crate::data::write_behind::WriteBehind;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::wait::either;

/// The time for which a server is known to be away before an `fsync` no longer waits for it: one that only starts anew is back by then.
const AWAY_FOR: Duration = Duration::from_secs(5);

/// The time between two looks whether a server is away, while an `fsync` waits for it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What an `fsync` means in directories with write-behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// The server has the file on its disk. Without the server, it fails.
    Server,
    /// The same, but when the server has been away for 5 seconds, or sending is paused: then this machine has it on its disk.
    #[default]
    JournalWhenAway,
}

/// Keeps a change that is made here, and has it sent.
pub(crate) trait Recorder: Send + Sync {
    /// Keeps one.
    ///
    /// # Errors
    ///
    /// The cache's.
    fn record(&self, user: User, change: Change<Fid>) -> Result<(), Error>;
}

/// What was closed after a barrier.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// The last barrier before which a file was clean: the file's data come after it.
    after: HashMap<Fid, u64>,
    /// The files that are to be stored once a barrier is done.
    held: Vec<(Arc<FileData>, User)>,
}

impl OpenFile {
    /// Has what was written be where it is safe: at the server, on its disk, with all that was closed of the volume's files before. Or on this
    /// machine's, if [`Fsync`] says so.
    ///
    /// # Errors
    ///
    /// Those of storing; the cache's.
    pub async fn fsync(&self) -> Result<(), Error> {
        let (files, fid) = (self.files(), self.fid());
        if files.behind.fsync == Fsync::Server || files.behind_at(fid).is_none() {
            return self.fsync_there().await;
        }
        loop {
            // Nothing is to be sent now, and the program need not know.
            if files.journal.pause.is_set() {
                match self.fsync_here().await {
                    Ok(()) => return Ok(()),
                    Err(Some(error)) => return Err(error),
                    Err(None) => {}
                }
            }
            let outcome = {
                let (there, away) = (pin!(self.fsync_there()), pin!(files.until_away(fid)));
                match select(there, away).await {
                    Either::Left((outcome, _)) => Some(outcome),
                    Either::Right(_) => None,
                }
            };
            let error = match outcome {
                Some(Err(error)) if error.is_passing() && files.away_since(fid).is_some() => error,
                Some(outcome) => return outcome,
                None => Error::Unreachable { what: format!("fsync of {fid}"), servers: Vec::new() },
            };
            if files.is_away(fid) {
                return self.fsync_here().await.map_err(|other| other.unwrap_or(error));
            }
            // It may be back before it has been away for long enough.
            let next = files.calls.runtime.sleep_until(files.now() + LOOK_EVERY);
            either(next, files.calls.servers.back.notified()).await;
        }
    }

    async fn fsync_there(&self) -> Result<(), Error> {
        if self.files().journal.syncs(self.fid()).is_some() {
            self.files().journal.settle_volume(self.fid().cell, self.fid().volume).await?;
        }
        if self.data.is_dirty() {
            self.data.store(self.user(), true).await?;
        }
        self.files().store_closed(self.fid()).await
    }

    /// The same on this machine's disk. The error is `None` if only the server can do it.
    async fn fsync_here(&self) -> Result<(), Option<Error>> {
        let (files, data) = (self.files(), &self.data);
        if data.is_dirty() {
            if !data.may_wait(files, self.user()) {
                return Err(None);
            }
            if !files.has_room_there(data, self.user()) {
                return Err(Some(Files::no_room(self.fid())));
            }
            files.note_closed(data);
            // What is below is synced, with all else.
            data.promise(WriteBehind::Second).await?;
        }
        let writer = writer_of(&files.users, self.user(), self.fid().cell);
        let change = Change { writer, time: files.time().0, what: What::Sync { of: self.fid() } };
        let recorder = files.recorder.upgrade().ok_or(Error::Closing)?;
        recorder.record(self.user(), change)?;
        let cache = files.cache.clone();
        rx::blocking::on_a_thread(move || cache.sync()).await.map_err(local)?;
        Ok(())
    }

    /// As [`Self::flush`], after what was told to be safe before, while the server was away.
    pub(super) async fn flush_after_syncs(&self) -> Result<(), Error> {
        let (journal, fid) = (&self.files().journal, self.fid());
        if self.data.is_dirty() && journal.syncs(fid).is_some() {
            // Where that fails, the server is away still, and what the close waits for fails too.
            let _ = journal.settle_volume(fid.cell, fid.volume).await;
        }
        self.flush().await
    }
}

impl Files {
    /// Returns when all that was changed and closed in the volume of a file before is at the server.
    ///
    /// # Errors
    ///
    /// Something is not there yet, and is tried again.
    pub async fn settle_volume(self: &Arc<Self>, fid: Fid) -> Result<(), Error> {
        let _passing = self.journal.pause.pass();
        self.store_closed(fid).await
    }

    /// The time since when the servers of a file are known to be away.
    fn away_since(&self, fid: Fid) -> Option<Instant> {
        self.calls.locations.away_since(fid.cell, fid.volume)
    }

    /// True if the servers of a file are known to have been away for long enough.
    fn is_away(&self, fid: Fid) -> bool {
        self.away_since(fid).is_some_and(|since| self.now().since(since) >= AWAY_FOR)
    }

    /// Returns when that is so.
    async fn until_away(&self, fid: Fid) {
        while !self.is_away(fid) {
            let at = match self.away_since(fid) {
                Some(since) => since + AWAY_FOR,
                None => self.now() + LOOK_EVERY,
            };
            self.calls.runtime.sleep_until(at).await;
        }
    }

    /// A file is about to be closed or synced here: if it was clean, its data come after the barriers that there are.
    pub(super) fn note_closed(&self, data: &FileData) {
        if data.is_promised() {
            return;
        }
        let fid = data.vnode.fid;
        let mut late = lock(&self.behind.late);
        match self.journal.syncs(fid) {
            Some((_, last)) => drop(late.after.insert(fid, last)),
            None => drop(late.after.remove(&fid)),
        }
    }

    /// True if a file's data are not to be sent now: somebody has paused that, or they come after a barrier that is not done.
    pub(super) fn is_held_back(&self, fid: Fid) -> bool {
        if self.journal.pause.is_on() && self.behind_at(fid).is_some() {
            return true;
        }
        let Some((first, _)) = self.journal.syncs(fid) else { return false };
        lock(&self.behind.late).after.get(&fid).is_some_and(|after| *after >= first)
    }

    /// Keeps a file that was closed from being stored, if its data come after a barrier that is not done.
    pub(super) fn hold_back(&self, data: &Arc<FileData>, user: User) -> bool {
        let fid = data.vnode.fid;
        // Locked before the look, so that the end of the barrier finds what is held.
        let mut late = lock(&self.behind.late);
        let first = self.journal.syncs(fid).map(|(first, _)| first);
        let is_late = first.is_some_and(|first| late.after.get(&fid).is_some_and(|after| *after >= first));
        if is_late {
            data.is_behind.store(true, Ordering::Release);
            late.held.push((Arc::clone(data), user));
        }
        is_late
    }

    /// A barrier is done: what was held back is stored, if no other barrier holds it.
    pub(crate) fn let_held_go(self: &Arc<Self>) {
        let held = {
            let mut late = lock(&self.behind.late);
            let Late { after, held } = &mut *late;
            after.retain(|fid, after| self.journal.syncs(*fid).is_some_and(|(first, _)| *after >= first));
            std::mem::take(held)
        };
        for (data, user) in held {
            data.is_behind.store(false, Ordering::Release);
            self.store_behind(&data, user);
        }
    }

    /// Stores all that was closed in the volume of a file before a barrier.
    ///
    /// # Errors
    ///
    /// Something is not there yet, and is tried again. What has no token to be stored with holds nobody up.
    pub(crate) async fn store_closed_before(self: &Arc<Self>, fid: Fid, barrier: u64) -> Result<(), Error> {
        let mut before = self.promised_in(fid)?;
        before.retain(|data| {
            let after = lock(&self.behind.late).after.get(&data.vnode.fid).copied();
            let writer = data.change(|file| file.writer()).unwrap_or_default();
            after.is_none_or(|after| after < barrier)
                && !self.users.is_without_token(noted(&writer), fid.cell)
        });
        self.store_each(before).await
    }
}
