//! The facts that are known of a vnode, and for how long and for whom they count. `table` says which vnodes are known.
//!
//! ```text
//!               reply with a promise, not broken since the call began
//!    unknown ────────────────────────────────────────────────────▶ valid
//!       ▲                                                            │
//!       │  a reply without a promise, or with one that was broken    │ CallBack of the vnode, its volume, its server;
//!       │  on its way: told to the caller, and not kept as valid     │ the promise runs out
//!       └────────────────────────────── stale ◀──────────────────────┘
//! ```
//!
//! A stale status stays as what was last known: with it we see whether data are still good when the status is fetched again.
//!
//! **Breaks and replies race.** A server may break a promise while the reply that made it is on its way here, and both are handled
//! by different tasks. So each break advances a counter (of the vnode, of the volume, of the server); an operation takes a
//! [`Snapshot`] of them before its call begins, and a promise counts only if none of them has moved. A break of a vnode that is
//! not in the table counts as one of its volume's `strays`, for operations that make vnodes and cannot know their numbers before.
//!
//! **Rights** are those of the directory: what a file's status tells of rights comes from the access list of its directory, and when
//! that changes only the directory's promise is broken. So rights are kept with directories and asked of them for files.
//!
//! Asks nobody and reads no clock; `attributes` fetches, and `events` tells of changes. What was changed here and is not at the server
//! yet: `ahead`. What counts beyond promises while the server is away: `offline`. What was known in an earlier
//! run of the client, and what is kept for the next: `earlier`.

mod ahead;
mod earlier;
mod offline;
mod pending;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use afs_wire::directory::Directory;
use afs_wire::ids::{AfsTime, DataVersion, LocalFid};
use afs_wire::rights::Rights;
use afs_wire::status::{AfsCallBack, AfsFetchStatus, CallBackType, FileType};
use bytes::Bytes;
use rx_proto::time::Instant;

use ahead::Ahead;
pub(crate) use ahead::Effect;
use earlier::Guard;
pub(crate) use earlier::{Earlier, Sites, ToKeep};
pub use pending::PendingChange;

use afs_reach::fid::Fid;
use afs_reach::table::{Responder, Server};
use afs_reach::users::IdentityIndex;
use afs_reach::volumes::Volume;

use crate::vnodes::keeping::{Keeping, Kept};

/// Identities whose rights on a directory are kept; the ones first heard of go first. A directory is rarely used by more users
/// of a machine at a time.
const ACCESS_MAX: usize = 32;

/// A promise is taken to end this much before the server says, as the reply took its time and clocks run differently.
const PROMISE_MARGIN: Duration = Duration::from_secs(5);

/// Longest promise that is believed, as the number is a peer's: servers give four hours (File service notes 7.1).
const PROMISE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A promise of a server.
#[derive(Debug, Clone)]
struct Promise {
    until: Instant,
    server: Arc<Server>,
    resets: u64,
    volume_breaks: u64,
    /// It is of an earlier run of the client.
    sites: Option<Arc<Sites>>,
}

impl Promise {
    fn is_good(&self, now: Instant, volume: &Volume) -> bool {
        let is_promised = now < self.until && self.server.resets() == self.resets;
        let is_away = || volume.is_away(now) && self.sites.as_ref().is_none_or(|sites| sites.count(now));
        (is_promised || is_away()) && volume.breaks() == self.volume_breaks
    }
}

/// The pages of a directory, and the version that they are of.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    pub(crate) directory: Arc<Directory>,
    pub(crate) version: DataVersion,
}

/// The data that were written here and are not at the server yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unstored {
    /// Bytes of the file.
    pub(crate) length: u64,
    /// The time when it was written.
    pub(crate) modified: AfsTime,
}

/// The data of a file that somebody has open, or that are not stored yet.
pub(crate) trait LocalData: std::fmt::Debug + Send + Sync {
    /// The file's state here, beyond what the server has; `None` when all is stored.
    fn unstored(&self) -> Option<Unstored>;
}

/// The cause of the status that a reply tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Nobody's here: it was asked for.
    Asked,
    /// A change of our own.
    Change,
    /// A change of our own that programs were shown before, made at this time: data that were written and are stored, for one.
    Shown(AfsTime),
}

/// The time of change that is shown of a change that was shown before it was at the server: the one that was shown then. The server's time is
/// that of the store; programs such as git, which note a file's times before they close it, would take it for another change.
#[derive(Debug, Clone, Copy)]
struct Stored {
    version: DataVersion,
    /// The server's time, by which a later change is known.
    told: AfsTime,
    shown: AfsTime,
}

/// The root that is mounted at a mount point, and the time until which it need not be looked up again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mounted {
    pub(crate) root: Fid,
    pub(crate) until: Instant,
}

/// The facts that are known of a vnode.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// As the server told it, but for the time of change: see [`Stored`].
    status: Option<AfsFetchStatus>,
    stored: Option<Stored>,
    promise: Option<Promise>,
    /// It was made here, and no server knows it: see [`ahead`].
    is_here_only: bool,
    ahead: Ahead,
    breaks: u64,
    /// Changes of our own that are done.
    changes: u64,
    /// Statuses that were noted.
    notes: u64,
    access: Vec<(IdentityIndex, Rights)>,
    /// Rights that were forgotten, as the token ended, and count only while the server is away.
    ended_access: Vec<(IdentityIndex, Rights)>,
    /// The number of times that rights were forgotten.
    forgets: u64,
    /// The directory that a file was found in, or says that it is in.
    parent: Option<LocalFid>,
    pub(super) pages: Option<Pages>,
    /// The target of a symbolic link or mount point, which never changes.
    link: Option<Bytes>,
    mounted: Option<Mounted>,
    /// Its data, as long as somebody has them open or they are not stored: what is not at the server is asked of them.
    data: Option<Weak<dyn LocalData>>,
    /// All this is of an earlier run, and no server has said it since.
    is_earlier: bool,
}

/// A vnode in the table.
#[derive(Debug)]
pub struct Vnode {
    /// Its fid.
    pub fid: Fid,
    /// The volume that it is in.
    pub volume: Arc<Volume>,
    state: Mutex<State>,
    pub(super) keeping: Arc<Keeping>,
    pub(crate) kept: Kept,
    /// Asked for since the sweep last came by.
    pub(super) is_used: AtomicBool,
    /// The time when a directory was last listed, in nanoseconds of the client's time; 0 is never.
    pub(crate) listed_at: AtomicU64,
    /// The time in nanoseconds for which it counts without its server, as it is pinned; 0 if it is not.
    pinned_for: AtomicU64,
    /// The number of directories in it that were listed since.
    pub(crate) listed_inside: AtomicU32,
    /// The data version of a file that the cache was seen to have completely: a hint, as it may have let go of parts since.
    pub(crate) whole_version: AtomicU64,
    /// Held while its status or pages are fetched, so that others wait for the answer and do not ask the same.
    pub(crate) fetching: tokio::sync::Mutex<()>,
    /// Held while it is changed at the server: our changes of one vnode come one after the other.
    pub changing: tokio::sync::Mutex<()>,
}

/// The counters before a call began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    breaks: u64,
    changes: u64,
    notes: u64,
    forgets: u64,
    pub(super) volume_breaks: u64,
    pub(super) strays: u64,
}

/// The changes that a reply has made to what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The data are others than those last known, and it was not our doing.
    pub(crate) is_other_data: bool,
    /// The status is promised.
    pub(crate) is_valid: bool,
}

/// The facts that are known of a vnode for one identity, and promised.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) status: AfsFetchStatus,
    pub(crate) until: Instant,
    pub(crate) unstored: Option<Unstored>,
    /// The identity's rights, if known; of directories only.
    pub(crate) rights: Option<Rights>,
    pub(crate) parent: Option<LocalFid>,
}

impl Vnode {
    pub(super) fn new(fid: Fid, volume: Arc<Volume>, keeping: Arc<Keeping>) -> Self {
        Self {
            fid,
            volume,
            keeping,
            kept: Kept::default(),
            state: Mutex::default(),
            is_used: AtomicBool::new(true),
            listed_at: AtomicU64::new(0),
            pinned_for: AtomicU64::new(0),
            whole_version: AtomicU64::new(u64::MAX),
            listed_inside: AtomicU32::new(0),
            fetching: tokio::sync::Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn state(&self) -> Guard<'_> {
        Guard::new(self.state.lock().unwrap_or_else(PoisonError::into_inner), self)
    }

    /// Has to be taken before a call begins whose reply is to be noted.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state();
        Snapshot {
            breaks: state.breaks,
            changes: state.changes,
            notes: state.notes,
            forgets: state.forgets,
            volume_breaks: self.volume.breaks(),
            strays: self.volume.strays(),
        }
    }

    /// The promised status, and the rights of an identity.
    pub(crate) fn known(&self, now: Instant, who: IdentityIndex) -> Option<Known> {
        // Before the status: what is stored meanwhile is in the status then, and the other way round it would be in neither.
        let unstored = self.unstored();
        let state = self.state();
        let until = self.good_until(&state, now)?;
        let status = state.status?;
        let of = |access: &[(IdentityIndex, Rights)]| {
            access.iter().find(|(theirs, _)| *theirs == who).map(|(_, rights)| *rights)
        };
        let ended = || of(&state.ended_access).filter(|_| self.offline_until(&state, now).is_some());
        let rights = of(&state.access).or_else(ended);
        Some(Known { status, until, unstored, rights, parent: state.parent })
    }

    fn promised_until(&self, state: &State, now: Instant) -> Option<Instant> {
        state.good_until(now, |promise| promise.is_good(now, &self.volume))
    }

    fn good_until(&self, state: &State, now: Instant) -> Option<Instant> {
        self.promised_until(state, now).or_else(|| self.offline_until(state, now))
    }

    /// The status, if it is promised. It is the same for all who ask.
    pub(crate) fn promised_status(&self, now: Instant) -> Option<AfsFetchStatus> {
        let state = self.state();
        self.promised_until(&state, now).and(state.status)
    }

    /// True if a status is known that counts, promised or as its server is away.
    pub(crate) fn has_status(&self, now: Instant) -> bool {
        let state = self.state();
        state.status.is_some() && self.good_until(&state, now).is_some()
    }

    /// The server that promises it, and the time that is left of the promise.
    pub fn promise(&self, now: Instant) -> Option<(Arc<Server>, Duration)> {
        let state = self.state();
        let promise = state.promise.as_ref().filter(|promise| promise.is_good(now, &self.volume))?;
        Some((Arc::clone(&promise.server), promise.until.since(now)))
    }

    /// The last known status, promised or not.
    pub fn last_status(&self) -> Option<AfsFetchStatus> {
        self.state().status
    }

    /// The file's state here, beyond what the server has; `None` when all is stored.
    pub(crate) fn unstored(&self) -> Option<Unstored> {
        // Letting go of the data takes locks.
        let data = self.state().data.as_ref().and_then(Weak::upgrade);
        data?.unstored()
    }

    /// Notes that somebody has its data open.
    pub(crate) fn set_data(&self, data: Weak<dyn LocalData>) {
        self.state().unkept().data = Some(data);
    }

    /// Notes that nobody has these data open any more. What points to them would keep their memory.
    pub(crate) fn data_closed(&self, data: &dyn LocalData) {
        self.state().unkept().data.take_if(|kept| std::ptr::addr_eq(kept.as_ptr(), data));
    }

    /// The directory that it is in.
    pub(crate) fn parent(&self) -> Option<LocalFid> {
        self.state().parent
    }

    /// Notes that it was found in this directory.
    pub(crate) fn set_parent(&self, dir: LocalFid) {
        self.state().parent = Some(dir);
    }

    /// The target of a symbolic link, if known.
    pub(crate) fn link(&self) -> Option<Bytes> {
        self.state().link.clone()
    }

    pub(crate) fn set_link(&self, target: Bytes) {
        self.state().link = Some(target);
    }

    /// The root that is mounted, if it is known and need not be looked up again.
    pub fn mounted(&self, now: Instant) -> Option<Fid> {
        self.state().mounted.filter(|mounted| now < mounted.until).map(|mounted| mounted.root)
    }

    /// The root that was mounted when it was last looked up.
    pub(crate) fn last_mounted(&self) -> Option<Fid> {
        self.state().mounted.map(|mounted| mounted.root)
    }

    pub(crate) fn set_mounted(&self, mounted: Option<Mounted>) {
        self.state().mounted = mounted;
    }

    /// Forgets what is mounted. Returns true if anything was.
    pub fn forget_mounted(&self) -> bool {
        self.state().mounted.take().is_some()
    }

    /// The pages of a directory, whatever their version.
    pub(crate) fn pages(&self) -> Option<Pages> {
        self.state().pages.clone()
    }

    /// The pages, if they are those of the promised status.
    pub(crate) fn good_pages(&self, now: Instant) -> Option<Pages> {
        let state = self.state();
        let version = self.good_until(&state, now).and(state.status)?.data_version;
        state.pages.clone().filter(|pages| state.ahead.bridges(pages.version, version))
    }

    /// Keeps pages that were fetched, unless those are there that belong to the status and these do not. Returns them as they are shown.
    pub(super) fn set_pages(&self, pages: Pages) -> Pages {
        let mut state = self.state();
        let pages = state.with_ahead(pages);
        let version = state.status.map(|status| status.data_version);
        let is_current = |pages: &Pages| Some(pages.version) == version;
        if is_current(&pages) || !state.pages.as_ref().is_some_and(is_current) {
            state.pages = Some(pages.clone());
        }
        pages
    }

    /// The promise is broken, and what was known of rights is off.
    pub(crate) fn note_break(&self) {
        let mut state = self.state();
        state.breaks += 1;
        state.promise = None;
        if !state.is_here_only {
            state.forget_access();
        }
    }

    /// Forgets the promise, so that it is asked for anew, though no server has said so.
    pub fn forget(&self) {
        self.note_break();
        self.drop_pages();
        self.state().mounted = None;
    }

    /// Notes a status that a server told as `who`'s, with its promise if there is one.
    pub(crate) fn note(
        &self,
        now: Instant,
        (before, responder): (&Snapshot, &Responder),
        who: IdentityIndex,
        status: &AfsFetchStatus,
        callback: Option<&AfsCallBack>,
    ) -> Noted {
        self.note_caused(now, (before, responder), who, (status, Cause::Asked), callback)
    }

    /// The same of the status that a change of our own has led to.
    pub(crate) fn note_change(
        &self,
        now: Instant,
        (before, responder): (&Snapshot, &Responder),
        who: IdentityIndex,
        status: &AfsFetchStatus,
        callback: Option<&AfsCallBack>,
    ) -> Noted {
        self.note_caused(now, (before, responder), who, (status, Cause::Change), callback)
    }

    /// The same, with the cause.
    pub(crate) fn note_caused(
        &self,
        now: Instant,
        (before, responder): (&Snapshot, &Responder),
        who: IdentityIndex,
        (status, cause): (&AfsFetchStatus, Cause),
        callback: Option<&AfsCallBack>,
    ) -> Noted {
        let is_own_change = cause != Cause::Asked;
        let mut state = self.state();
        state.end_earlier();
        let old = state.status;
        // Versions only grow, but for a volume that is restored: so one is old only beside one that came while it was asked for.
        let has_newer = old.is_some_and(|old| status.data_version < old.data_version);
        let is_older = (has_newer && state.notes != before.notes)
            // Said before a change of ours was done, and told after it.
            || (!is_own_change && state.changes != before.changes);
        if is_own_change {
            state.changes += 1;
        }
        let is_broken = state.breaks != before.breaks
            || self.volume.breaks() != before.volume_breaks
            || responder.server.resets() != responder.resets;
        let was_good = self.promised_until(&state, now).is_some();
        if is_older {
            return Noted { is_other_data: false, is_valid: was_good };
        }
        let is_other_data = !is_own_change && old.is_some_and(|old| old.data_version != status.data_version);
        let (version, told) = (status.data_version, status.server_mod_time);
        match (cause, old) {
            (Cause::Asked, _) => {}
            (Cause::Shown(modified), Some(old)) => {
                state.stored = Some(Stored { version, told, shown: old.server_mod_time.max(modified) });
            }
            (Cause::Shown(_) | Cause::Change, _) => state.stored = None,
        }
        let stored = state.stored.filter(|stored| (stored.version, stored.told) == (version, told));
        let server_mod_time = stored.map_or(told, |stored| stored.shown);
        if !is_own_change && !was_good {
            let pages = state.pages.as_ref().map(|pages| pages.version);
            state.ahead.note_news(pages, version);
        }
        let mut shown = AfsFetchStatus { server_mod_time, ..*status };
        state.ahead.apply_to_status(&mut shown, old.as_ref());
        state.status = Some(shown);
        state.notes += 1;
        if status.file_type != FileType::DIRECTORY && state.parent.is_none() {
            state.parent = Some(LocalFid { vnode: status.parent_vnode, unique: status.parent_unique });
        }
        if let Some(promise) = callback.filter(|_| !is_broken).and_then(|c| promised(now, c)) {
            state.promise = Some(Promise {
                until: promise,
                server: Arc::clone(&responder.server),
                resets: responder.resets,
                volume_breaks: before.volume_breaks,
                sites: None,
            });
        } else if is_broken || !was_good || callback.is_some() {
            // Without a new promise, an old one goes on to count for the new status, if it still does: the reply to a change
            // of our own carries none, and does not end it.
            state.promise = None;
        }
        let is_valid = state.promise.is_some();
        if status.file_type == FileType::DIRECTORY {
            if !was_good {
                state.forget_access();
            }
            if is_valid && state.forgets == before.forgets {
                state.set_access(who, status.caller_access);
            }
        }
        Noted { is_other_data, is_valid }
    }

    /// Notes that an identity has these rights on this directory, as the status of a file in it has told, if the promise of the
    /// directory has held since before. OpenAFS's servers tell of a file without the right to administer, which is about directories: who
    /// is known to have it keeps it.
    pub(crate) fn note_rights(&self, now: Instant, before: &Snapshot, who: IdentityIndex, rights: Rights) {
        let mut state = self.state();
        let is_good = self.promised_until(&state, now).is_some();
        let is_before = state.breaks != before.breaks
            || state.forgets != before.forgets
            || self.volume.breaks() != before.volume_breaks;
        if is_good && !is_before {
            let known = state.access.iter().find(|(theirs, _)| *theirs == who);
            let may_administer = known.is_some_and(|(_, rights)| rights.contains(Rights::ADMINISTER));
            let kept = if may_administer { Rights::ADMINISTER } else { Rights::NONE };
            state.set_access(who, rights | kept);
        }
    }

    /// Makes a change of our own to the pages, if the status that it has led to says that nothing else has happened: the version
    /// grew by exactly one. Else they are dropped.
    pub(crate) fn edit_pages(&self, version: DataVersion, edit: impl FnOnce(&mut Directory) -> bool) {
        let mut state = self.state();
        let Some(mut pages) = state.pages.take() else { return };
        if pages.version == version {
            // They were fetched after the change was made, and before its reply was here.
            state.pages = Some(pages);
            return;
        }
        // What a listing still reads is copied; else it is changed where it is.
        if pages.version.next() == version && edit(Arc::make_mut(&mut pages.directory)) {
            pages.version = version;
            state.pages = Some(pages);
        }
    }
}

impl State {
    fn forget_access(&mut self) {
        self.access.clear();
        self.ended_access.clear();
    }

    fn set_access(&mut self, who: IdentityIndex, rights: Rights) {
        if let Some(entry) = self.access.iter_mut().find(|(theirs, _)| *theirs == who) {
            entry.1 = rights;
            return;
        }
        if self.access.len() >= ACCESS_MAX {
            self.access.remove(0);
        }
        self.access.push((who, rights));
    }
}

/// The time until which a promise is taken to hold; `None` for what is none.
fn promised(now: Instant, callback: &AfsCallBack) -> Option<Instant> {
    let is_one = matches!(callback.kind, CallBackType::SHARED | CallBackType::EXCLUSIVE);
    let told = Duration::from_secs(callback.expiration_seconds.into()).min(PROMISE_MAX);
    let life = told.checked_sub(PROMISE_MARGIN)?;
    (is_one && !life.is_zero()).then(|| now + life)
}

#[cfg(test)]
pub(crate) mod tests;
