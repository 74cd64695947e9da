//! The files that are open, and the fate of those that lose their last name. AFS servers do not know which files are
//! open, so the client keeps these files under hidden names until they are closed. Its own listings leave the hidden
//! names out, as a local file system has none.
//!
//! **Opening a file that is being replaced.** The kernel looks a name up and opens what it found. If the file was
//! replaced in between, the kernel tries once more. This second attempt must not come too late again, so the client
//! holds the file that took the name for a second, as if it was open already. A hidden name that is about to be removed stays if somebody opens
//! the file before that.
//!
//! **A file that is closed counts as open for a moment**: the kernel tells of a close at once, by a flush, but of the last one, which ends the
//! handle, after the program has gone on. So a directory that is to be removed waits a while for the hidden names of such files.
//!
//! How a hidden name is removed is left to [`RemoveHiddenName`], how a file gets one to `names`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rx::Runtime;
use rx_proto::time::Instant;
use tokio::sync::Notify;

use afs_reach::fid::{Fid, User};
use afs_reach::wait::either;

/// The time for which a file is held for a program that could not open the file that it replaced, and for which the client
/// remembers the replacement.
const HELD_FOR: Duration = Duration::from_secs(1);

/// The longest that the removal of a directory waits for files in it that seem to be closed. A copy of a descriptor may have been closed,
/// and not the file; then the directory is not empty.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// Files that were replaced of late and are remembered.
const REPLACED_MAX: usize = 256;

/// The beginning of the names of open files that have no other name.
const HIDDEN: &str = ".__afs";

/// True if a name is one that clients give to open files. Others' are in listings.
pub(crate) fn is_hidden_name(name: &[u8]) -> bool {
    name.starts_with(HIDDEN.as_bytes())
}

/// Removes the names that were given to open files.
pub(crate) trait RemoveHiddenName: Send + Sync {
    /// Removes one in the background, as a user, and then says so by [`OpenFiles::note_removed`].
    fn remove_hidden_name(self: Arc<Self>, user: User, place: (Fid, String));
}

/// The files that are open, and the hidden names of those that have lost their own. Nobody opens a file between the look whether it
/// is open and the loss of its last name.
pub struct OpenFiles {
    table: Mutex<Table>,
    numbers: AtomicU64,
    /// Files that are losing their last name, all together; most of the time none.
    unlinking: AtomicUsize,
    /// A hidden name is no longer there.
    removed: Notify,
    /// A file that was held for a second attempt is to be let go.
    let_go: Notify,
    runtime: Arc<dyn Runtime>,
    /// Weak, as it has this. A file that is held keeps it.
    remover: Weak<dyn RemoveHiddenName>,
}

impl fmt::Debug for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFiles").field("table", &self.table).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<Fid, Open>,
    /// Hidden names by directory, from before they are made until they are removed.
    hidden: BTreeMap<(Fid, String), Hidden>,
    /// Directories that are being listed.
    listed: HashMap<Fid, BeingListed>,
    /// The replacements of late: the time, the old file and the new one.
    replaced: VecDeque<(Instant, Fid, Fid)>,
}

/// A directory that is being listed.
#[derive(Debug, Default)]
struct BeingListed {
    listings: usize,
    /// Hidden names that were removed meanwhile, which the pages of these may still have.
    removed: Vec<String>,
}

/// The file of a hidden name, and its state.
#[derive(Debug)]
struct Hidden {
    file: Fid,
    /// It is being removed, or is about to be, as nobody had the file open.
    is_going: bool,
}

#[derive(Debug, Default)]
struct Open {
    count: usize,
    /// The number of these that belong to no program yet: see the beginning of this file.
    held: usize,
    /// The number of these that a program has closed, as far as the kernel has told.
    closing: usize,
    hidden: Option<(Fid, String)>,
    /// Operations that are about to take its last name away.
    unlinking: usize,
    /// Somebody wanted to open it while it was losing its last name.
    is_missed: bool,
    /// One of those that take its name has ended.
    settled: Arc<Notify>,
}

impl Open {
    fn is_of_interest(&self) -> bool {
        self.count > 0 || self.hidden.is_some() || self.unlinking > 0
    }
}

/// The effect of a name's end on programs that have the file open.
#[derive(Debug)]
pub(crate) enum Unlink<'a> {
    /// It is no file, or has other names.
    Unaffected,
    /// It is open, so that it has to be kept under another name. Until this is dropped it counts as open.
    Open { _held: Held },
    /// Nobody has it open, and nobody can open it as long as this is there.
    Closed { _unlinking: Unlinking<'a> },
}

/// A hidden name that a file may get. Dropped before, it is none.
#[derive(Debug)]
pub(crate) struct HiddenName<'a> {
    files: &'a OpenFiles,
    file: Fid,
    /// Some until it is dropped.
    place: Option<(Fid, String)>,
}

impl HiddenName<'_> {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.place.as_ref().map_or(b"", |(_, name)| name.as_bytes())
    }

    /// The file has it. One that it had before goes: what is returned is to be removed.
    pub(crate) fn given(mut self) -> Option<(Fid, String)> {
        let mut table = self.files.lock();
        let before =
            std::mem::replace(&mut table.files.entry(self.file).or_default().hidden, self.place.take());
        before.filter(|place| table.begins_to_go(place))
    }
}

impl Drop for HiddenName<'_> {
    fn drop(&mut self) {
        if let Some((dir, name)) = self.place.take() {
            self.files.note_removed(dir, name);
        }
    }
}

/// A listing is being made: what it is to leave out is remembered from here on until this is dropped.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    files: &'a OpenFiles,
    dir: Fid,
}

impl Listed<'_> {
    /// The hidden names that the directory has, or had when the pages were read that this listing may be made of.
    pub(crate) fn hidden(&self) -> Vec<String> {
        let table = self.files.lock();
        let removed = table.listed.get(&self.dir).into_iter().flat_map(|listed| &listed.removed).cloned();
        table.hidden_in(self.dir).map(|(name, _)| name.to_owned()).chain(removed).collect()
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut table = self.files.lock();
        let Some(listed) = table.listed.get_mut(&self.dir) else { return };
        listed.listings -= 1;
        if listed.listings == 0 {
            table.listed.remove(&self.dir);
        }
    }
}

/// What is known of a handle when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handle {
    InUse,
    /// It was counted as one that a program has closed.
    Closing,
    /// It was no program's yet.
    Nobodys,
}

/// A file that counts as open until this is dropped.
pub(crate) struct Held {
    files: Arc<OpenFiles>,
    remover: Arc<dyn RemoveHiddenName>,
    user: User,
    fid: Fid,
    handle: Handle,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(hidden) = self.files.note_close(self.fid, self.handle) {
            Arc::clone(&self.remover).remove_hidden_name(self.user, hidden);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("fid", &self.fid).finish_non_exhaustive()
    }
}

/// A file that nobody has open is about to lose its last name. Until this is dropped nobody can open it.
#[derive(Debug)]
pub(crate) struct Unlinking<'a> {
    files: &'a OpenFiles,
    fid: Fid,
}

impl Drop for Unlinking<'_> {
    fn drop(&mut self) {
        let mut table = self.files.lock();
        if let Some(open) = table.files.get_mut(&self.fid) {
            open.unlinking -= 1;
            open.settled.notify_waiters();
        }
        table.tidy(self.fid);
        self.files.unlinking.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Table {
    fn tidy(&mut self, fid: Fid) {
        if self.files.get(&fid).is_some_and(|open| !open.is_of_interest()) {
            self.files.remove(&fid);
        }
    }

    /// A hidden name is to be removed. False: somebody is about to do that.
    fn begins_to_go(&mut self, place: &(Fid, String)) -> bool {
        self.hidden.get_mut(place).is_some_and(|hidden| !std::mem::replace(&mut hidden.is_going, true))
    }

    /// Counts one more handle, which is nobody's yet. False: the file is losing its last name, and what takes the name is held then.
    fn hold(&mut self, fid: Fid) -> bool {
        let open = self.files.entry(fid).or_default();
        let may = open.unlinking == 0;
        open.count += usize::from(may);
        open.held += usize::from(may);
        open.is_missed |= !may;
        may
    }

    /// Somebody wanted to open a file that is gone. If it is just losing its last name, what takes the name is held then.
    fn note_missed(&mut self, fid: Fid) {
        if let Some(open) = self.files.get_mut(&fid) {
            open.is_missed |= open.unlinking > 0;
        }
    }

    fn hidden_in(&self, dir: Fid) -> impl Iterator<Item = (&str, &Hidden)> {
        let from = self.hidden.range((dir, String::new())..);
        from.take_while(move |((of, _), _)| *of == dir).map(|((_, name), hidden)| (&**name, hidden))
    }

    /// Returns the file that now has the name of this one, if it was replaced of late.
    fn successor(&self, now: Instant, fid: Fid) -> Option<Fid> {
        let mut found = None;
        for &(at, old, new) in &self.replaced {
            if old == found.unwrap_or(fid) && now.since(at) < HELD_FOR {
                found = Some(new);
            }
        }
        found
    }
}

impl OpenFiles {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more handle. `false`: the file is losing its last name just now, and cannot be opened.
    pub(crate) fn note_open(&self, fid: Fid) -> bool {
        let mut table = self.lock();
        let open = table.files.entry(fid).or_default();
        let may = open.unlinking == 0;
        open.count += usize::from(may);
        open.is_missed |= !may;
        may
    }

    /// A file is about to lose its last name. `None`: somebody has it open, and it counts as open once more.
    fn try_unlink(&self, fid: Fid) -> Option<Unlinking<'_>> {
        let mut table = self.lock();
        let open = table.files.entry(fid).or_default();
        if open.count > 0 {
            open.count += 1;
            return None;
        }
        open.unlinking += 1;
        self.unlinking.fetch_add(1, Ordering::AcqRel);
        Some(Unlinking { files: self, fid })
    }

    /// True if a file is losing its last name just now.
    pub(crate) fn is_being_unlinked(&self, fid: Fid) -> bool {
        self.unlinking.load(Ordering::Acquire) > 0
            && self.lock().files.get(&fid).is_some_and(|open| open.unlinking > 0)
    }

    /// True if this client is just removing a file: by its last name, or by the hidden one that it had while it was open.
    pub(crate) fn is_going(&self, fid: Fid) -> bool {
        self.is_being_unlinked(fid)
            || self.lock().hidden.values().any(|hidden| hidden.file == fid && hidden.is_going)
    }

    /// Waits until it is known what has become of a file that is losing its last name.
    pub(crate) async fn settled(&self, fid: Fid) {
        loop {
            let settled = match self.lock().files.get(&fid).filter(|open| open.unlinking > 0) {
                Some(open) => Arc::clone(&open.settled).notified_owned(),
                None => return,
            };
            settled.await;
        }
    }

    /// A file has the name of another now; whether somebody wanted to open that one and could not.
    fn note_replaced(&self, now: Instant, old: Fid, new: Fid) -> bool {
        let mut table = self.lock();
        let is_old = |&(at, ..): &(Instant, Fid, Fid)| now.since(at) >= HELD_FOR;
        while table.replaced.len() >= REPLACED_MAX || table.replaced.front().is_some_and(is_old) {
            table.replaced.pop_front();
        }
        table.replaced.push_back((now, old, new));
        table.files.get(&old).is_some_and(|open| open.is_missed || open.held > 0)
    }

    /// A program seems to have closed one handle.
    pub(crate) fn note_closing(&self, fid: Fid) {
        if let Some(open) = self.lock().files.get_mut(&fid) {
            open.closing += 1;
        }
    }

    /// A handle is closed. After the last one, the caller has to remove the file's hidden name; a removal of the directory waits for that.
    fn note_close(&self, fid: Fid, of: Handle) -> Option<(Fid, String)> {
        let mut table = self.lock();
        let open = table.files.get_mut(&fid)?;
        open.count = open.count.saturating_sub(1);
        open.held = open.held.saturating_sub(usize::from(of == Handle::Nobodys));
        open.closing = open.closing.saturating_sub(usize::from(of == Handle::Closing));
        if open.count > 0 {
            return None;
        }
        let hidden = open.hidden.clone();
        table.tidy(fid);
        hidden.filter(|place| table.begins_to_go(place))
    }

    /// A hidden name is about to be removed, as nobody had its file open. `None`: somebody has opened it since, and it keeps the name. If the file
    /// had no other name, nobody can open it as long as what is returned is there.
    pub(crate) fn begin_removal(&self, place: &(Fid, String)) -> Option<Option<Unlinking<'_>>> {
        let mut table = self.lock();
        let table = &mut *table;
        let Some(hidden) = table.hidden.get_mut(place) else { return Some(None) };
        let fid = hidden.file;
        let open = match table.files.get_mut(&fid) {
            Some(open) if open.hidden.as_ref() == Some(place) => open,
            // The file has another one, or needs none any more.
            _ => return Some(None),
        };
        if open.count > 0 {
            hidden.is_going = false;
            // A removal of the directory does not wait for it any longer.
            self.removed.notify_waiters();
            return None;
        }
        open.hidden = None;
        open.unlinking += 1;
        self.unlinking.fetch_add(1, Ordering::AcqRel);
        Some(Some(Unlinking { files: self, fid }))
    }

    /// The number of opens of the file.
    pub fn count(&self, fid: Fid) -> usize {
        self.lock().files.get(&fid).map_or(0, |open| open.count)
    }

    /// A name for a file that is to live on without one: nobody else in the cell makes the same.
    pub(crate) fn hidden_name(&self, dir: Fid, fid: Fid) -> HiddenName<'_> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let name = format!("{HIDDEN}{:x}.{:x}.{number:x}", fid.vnode.0, fid.unique.0);
        self.lock().hidden.insert((dir, name.clone()), Hidden { file: fid, is_going: false });
        HiddenName { files: self, file: fid, place: Some((dir, name)) }
    }

    /// True if the file has a hidden name.
    pub(crate) fn is_hidden(&self, fid: Fid) -> bool {
        self.lock().files.get(&fid).is_some_and(|open| open.hidden.is_some())
    }

    /// The hidden name of a file that needs it no longer, to be removed by the caller.
    pub(crate) fn take_hidden(&self, fid: Fid) -> Option<(Fid, String)> {
        let mut table = self.lock();
        let place = table.files.get_mut(&fid)?.hidden.take()?;
        table.tidy(fid);
        table.begins_to_go(&place).then_some(place)
    }

    /// A hidden name is no longer there, or never was.
    pub(crate) fn note_removed(&self, dir: Fid, name: String) {
        let mut table = self.lock();
        let place = (dir, name);
        table.hidden.remove(&place);
        if let Some(listed) = table.listed.get_mut(&dir) {
            listed.removed.push(place.1);
        }
        drop(table);
        self.removed.notify_waiters();
    }

    /// A listing of a directory is about to be made. Called before its pages are read.
    pub(crate) fn listed(&self, dir: Fid) -> Listed<'_> {
        self.lock().listed.entry(dir).or_default().listings += 1;
        Listed { files: self, dir }
    }

    /// Waits until the hidden names are removed in a directory whose files nobody has open.
    pub(crate) async fn none_going(&self, dir: Fid) {
        let until = self.runtime.now() + CLOSING_MAX;
        loop {
            let waits_for_closing = self.runtime.now() < until;
            let mut removed = std::pin::pin!(self.removed.notified());
            removed.as_mut().enable();
            let is_any_going = {
                let table = self.lock();
                let is_closed = |file| {
                    table.files.get(&file).is_none_or(|open| {
                        let closing = if waits_for_closing { open.closing } else { 0 };
                        open.count <= open.held + closing
                    })
                };
                table.hidden_in(dir).any(|(_, hidden)| hidden.is_going || is_closed(hidden.file))
            };
            if !is_any_going {
                return;
            }
            self.let_go.notify_waiters();
            if waits_for_closing {
                either(self.runtime.sleep_until(until), removed).await;
            } else {
                removed.await;
            }
        }
    }
}

impl OpenFiles {
    /// None yet.
    pub(crate) fn new(runtime: Arc<dyn Runtime>, remover: Weak<dyn RemoveHiddenName>) -> Self {
        Self {
            table: Mutex::default(),
            numbers: AtomicU64::default(),
            unlinking: AtomicUsize::default(),
            removed: Notify::default(),
            let_go: Notify::default(),
            runtime,
            remover,
        }
    }

    /// A file is about to lose its last name: what that means for those who have it open, or are about to open it.
    pub(crate) fn begin_unlink(self: &Arc<Self>, user: User, fid: Fid) -> Unlink<'_> {
        match (self.try_unlink(fid), self.remover.upgrade()) {
            (Some(unlinking), _) => Unlink::Closed { _unlinking: unlinking },
            (None, Some(remover)) => Unlink::Open { _held: self.held(remover, user, fid, Handle::InUse) },
            // Nothing is kept of a client that ends.
            (None, None) => Unlink::Unaffected,
        }
    }

    /// A handle is closed.
    pub(crate) fn close(&self, user: User, fid: Fid, is_closing: bool) {
        let of = if is_closing { Handle::Closing } else { Handle::InUse };
        if let (Some(hidden), Some(remover)) = (self.note_close(fid, of), self.remover.upgrade()) {
            remover.remove_hidden_name(user, hidden);
        }
    }

    /// A file has the name of another now.
    pub(crate) fn replaced(self: &Arc<Self>, user: User, old: Fid, new: Fid) {
        if self.note_replaced(self.runtime.now(), old, new) {
            self.hold_for_a_while(user, new);
        }
    }

    /// A program could not open a file any more: what has its name now, or will have it in a moment, is held for the second attempt.
    pub fn hold_successor(self: &Arc<Self>, user: User, fid: Fid) {
        let held = {
            let mut table = self.lock();
            match table.successor(self.runtime.now(), fid) {
                Some(successor) => table.hold(successor).then_some(successor),
                None => {
                    table.note_missed(fid);
                    None
                }
            }
        };
        if let Some(fid) = held {
            self.let_go_later(user, fid);
        }
    }

    /// Holds a file for a second, as if it was open. If it is losing its name too, what replaces it is held.
    fn hold_for_a_while(self: &Arc<Self>, user: User, fid: Fid) {
        if self.lock().hold(fid) {
            self.let_go_later(user, fid);
        }
    }

    fn let_go_later(self: &Arc<Self>, user: User, fid: Fid) {
        let Some(remover) = self.remover.upgrade() else { return };
        let held = self.held(remover, user, fid, Handle::Nobodys);
        let until = self.runtime.now() + HELD_FOR;
        self.runtime.spawn(Box::pin(async move {
            either(held.files.runtime.sleep_until(until), held.files.let_go.notified()).await;
            drop(held);
        }));
    }

    fn held(
        self: &Arc<Self>,
        remover: Arc<dyn RemoveHiddenName>,
        user: User,
        fid: Fid,
        handle: Handle,
    ) -> Held {
        Held { files: Arc::clone(self), remover, user, fid, handle }
    }
}

#[cfg(test)]
mod tests;
