//! What users have pinned: files, and directories with what is below them in their volume, that this client keeps in its cache. It fetches them as
//! the user who pinned them, and again when others change them, so that they are here when their server is away: then they count beyond the
//! server's promises, as what is in a volume with write-behind does (`vnodes::vnode`), and so do the directories on the way to them.
//!
//! Each pin has a task ([`task`]). Now and then, and soon after something in it was changed by others, the task goes through all of it ([`walk`]),
//! asks for what is not promised for long, and fetches data that are missing. It goes to the pin by its path ([`way`]).
//!
//! All pins together hold at most half of what the table of vnodes, the pages of directories and the cache have room for. What does not fit is told
//! ([`Told`]), and what is there stays. The cache lets go of other files first.

mod task;
mod walk;
mod way;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use afs_cache::{FileKey, Pin};
use afs_wire::Errno;
use afs_wire::ids::{AfsFid, AfsTime, Uniquifier, VnodeNumber, VolumeId};
use afs_wire::rights::Rights;
use tokio::sync::{Notify, Semaphore};

use crate::data::files::{Files, local, lock};
use crate::events::Invalidations;
use crate::names::changes::Changes;
use crate::names::directory::Directories;
use crate::names::links::Links;
use crate::names::lookup::Names;
use crate::names::mount_point::MountPoints;
use crate::vnodes::attributes::Statuses;
use crate::vnodes::status::Kind;
use crate::vnodes::table::Vnodes;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::remote::Calls;
use afs_reach::users::Users;

/// Pins of all users together: each has a task. A user other than root may have half of what others leave of these, so that nobody takes them all.
const PINS_MAX: usize = 256;

/// Files that are fetched at a time for all pins: the servers, and the way to them, are for programs first.
const FETCHED_AT_ONCE: usize = 4;

/// The part of each limit, of vnodes, pages and data, that pins may fill: one of so many.
const PART: u64 = 2;

/// The limits of all pins together.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The vnodes that the table has room for, of which pins take a part.
    pub vnodes: usize,
    /// The bytes of directories' pages that are kept.
    pub page_bytes: usize,
    /// The time for which what is pinned counts without its server.
    pub offline_max: Duration,
}

/// The room that something takes, or that there is.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    vnodes: u64,
    page_bytes: u64,
    bytes: u64,
}

impl Room {
    fn plus(self, other: Self) -> Self {
        Self {
            vnodes: self.vnodes + other.vnodes,
            page_bytes: self.page_bytes + other.page_bytes,
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn fits_into(self, all: Self) -> bool {
        self.vnodes <= all.vnodes && self.page_bytes <= all.page_bytes && self.bytes <= all.bytes
    }
}

/// The reason why nothing of a pin, or nothing more, can be fetched now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trouble {
    /// There is none.
    #[default]
    None,
    /// It was not looked at yet since the client began.
    New,
    /// The server does not answer.
    Away,
    /// The user who pinned it, as who they were then, has no token that is good.
    NoToken,
    /// It is no longer there.
    Gone,
    /// Something else: the log tells it.
    Failed,
}

/// What is here of a pin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Files that it has.
    pub files: u64,
    /// Those of which all data are here.
    pub files_here: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Those of files that are here.
    pub bytes_here: u64,
    /// Files and directories that pins have no room for.
    pub no_room: u64,
    /// Those that the user may not read.
    pub no_rights: u64,
    /// Those that could not be had for other reasons.
    pub failed: u64,
    /// Mount points, behind which nothing is pinned.
    pub mount_points: u64,
    /// The path below the pin of the first that is missing.
    pub example: Vec<u8>,
    /// The trouble with all of it.
    pub trouble: Trouble,
    /// The time when all of it was here last; 0 if it never was since the client began.
    pub complete: AfsTime,
}

/// A pin, with what is here of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The cell.
    pub cell: String,
    /// The file or directory.
    pub fid: AfsFid,
    /// The local user who has pinned it.
    pub user: u32,
    /// The path from the client's root; empty if it is not known.
    pub path: Vec<u8>,
    /// What is here.
    pub report: Report,
}

/// A pin that somebody has made.
#[derive(Debug)]
struct Pinned {
    pin: Pin,
    /// Its file or directory, as soon as its cell is known.
    fid: OnceLock<Fid>,
    /// The path by which it is reached now.
    path: Mutex<Vec<u8>>,
    is_removed: AtomicBool,
    /// An earlier client has kept it, and what is in it is not known again yet.
    is_unseen: AtomicBool,
    /// It is to be looked at soon.
    wake: Notify,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Vnodes that are held for it, those on the way to it too.
    held: HashSet<Fid>,
    used: Room,
    report: Report,
}

impl Pinned {
    fn new(pin: Pin, earlier: Option<HashSet<Fid>>) -> Self {
        let is_unseen = earlier.is_some();
        let report = Report { trouble: Trouble::New, ..Report::default() };
        let state = State { held: earlier.unwrap_or_default(), report, ..State::default() };
        Self {
            fid: OnceLock::new(),
            path: Mutex::new(pin.path.clone()),
            pin,
            is_removed: AtomicBool::new(false),
            is_unseen: AtomicBool::new(is_unseen),
            wake: Notify::new(),
            state: Mutex::new(state),
        }
    }

    fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Its path, for the log.
    fn shown(&self) -> String {
        String::from_utf8_lossy(&lock(&self.path)).into_owned()
    }

    fn id(&self) -> (FileKey, u32) {
        (self.pin.key, self.pin.user)
    }
}

/// All pins, and what it takes to keep what is pinned.
#[derive(Debug)]
pub struct Pins {
    calls: Arc<Calls>,
    users: Arc<Users>,
    vnodes: Arc<Vnodes>,
    statuses: Arc<Statuses>,
    invalidations: Arc<Invalidations>,
    directories: Arc<Directories>,
    mount_points: Arc<MountPoints>,
    names: Arc<Names>,
    links: Arc<Links>,
    files: Arc<Files>,
    limits: Limits,
    all: Mutex<BTreeMap<(FileKey, u32), Arc<Pinned>>>,
    /// Held while a pin is made: they are counted first.
    adding: tokio::sync::Mutex<()>,
    /// Vnodes that are held, and for how many pins.
    holds: Mutex<HashMap<Fid, u32>>,
    fetches: Semaphore,
    /// True if a task hears of changes.
    is_listening: AtomicBool,
}

impl Pins {
    /// Makes the table. Nothing is pinned before [`Self::load`].
    pub fn new(changes: &Changes, limits: Limits) -> Self {
        Self {
            calls: Arc::clone(&changes.calls),
            users: Arc::clone(&changes.calls.users),
            vnodes: Arc::clone(&changes.vnodes),
            statuses: Arc::clone(&changes.statuses),
            invalidations: Arc::clone(&changes.statuses.invalidations),
            directories: Arc::clone(&changes.directories),
            mount_points: Arc::clone(&changes.mount_points),
            names: Arc::clone(&changes.names),
            links: Arc::clone(&changes.links),
            files: Arc::clone(&changes.files),
            limits,
            all: Mutex::default(),
            adding: tokio::sync::Mutex::default(),
            holds: Mutex::default(),
            fetches: Semaphore::new(FETCHED_AT_ONCE),
            is_listening: AtomicBool::new(false),
        }
    }

    /// Takes over what was pinned before the client began. Of these vnodes something is known from then: each stays pinned until the pins whose it
    /// may be have been gone through again.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub fn load(self: &Arc<Self>, known: &[Fid]) -> Result<(), Error> {
        let mut kept = self.files.cache.pins().map_err(local)?;
        kept.truncate(PINS_MAX);
        let volumes: HashSet<u32> = kept.iter().map(|pin| pin.key.volume).collect();
        for pin in kept {
            self.files.cache.set_pinned(&[pin.key.of_volume()], true);
            // What is in no pin's volume is on the way to one.
            let may_be_its = |fid: &Fid| fid.volume.0 == pin.key.volume || !volumes.contains(&fid.volume.0);
            let its: HashSet<Fid> = known.iter().copied().filter(may_be_its).collect();
            for &fid in &its {
                self.keep(fid);
                self.hold(fid);
            }
            drop(self.begin(pin, Some(its)));
        }
        Ok(())
    }

    /// Pins a file, or a directory with what is below it in its volume, as a user. It is fetched in the background.
    ///
    /// # Errors
    ///
    /// [`Error::NoAccess`] if the user may not read it; too much is pinned; it is of no volume; the cache's.
    pub async fn pin(self: &Arc<Self>, user: User, fid: Fid) -> Result<(), Error> {
        if fid.is_made_up() {
            return Err(Error::Invalid { what: "to pin what is in no volume".to_owned() });
        }
        let status = self.statuses.own_status(user, fid, fid).await?;
        let needed = match status.kind {
            Kind::Directory => Rights::LOOKUP,
            Kind::File => Rights::READ,
            Kind::Symlink => return Err(Error::Invalid { what: format!("to pin the symbolic link {fid}") }),
        };
        if !status.may_read() {
            return Err(Error::NoAccess { fid, needed });
        }
        let at_server = self.vnodes.local_ids.at_server(fid).await?;
        let pin = Pin {
            key: self.files.key(at_server)?,
            user: user.uid,
            holder: self.users.noted_name(user, fid.cell).to_string(),
            path: self.path_of(user, fid).await.unwrap_or_default(),
        };
        let _adding = self.adding.lock().await;
        let known = lock(&self.all).get(&(pin.key, pin.user)).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.pin.holder == pin.holder) {
            known.wake.notify_one();
            return Ok(());
        }
        // One whose place it takes does not count twice.
        if known.is_none() && !self.may_have_more(pin.user) {
            let what = format!("pinning more than half of what other users leave of {PINS_MAX} pins");
            return Err(Error::local(what, io::Error::from_raw_os_error(Errno::ENOSPC.0)));
        }
        let (cache, kept) = (self.files.cache.clone(), pin.clone());
        rx::blocking::on_a_thread(move || cache.keep_pin(&kept)).await.map_err(local)?;
        if let Some(former) = self.begin(pin, None) {
            // The same user, who was somebody else to the cell then.
            self.end(&former);
        }
        Ok(())
    }

    /// True if there is room for one more pin of a user.
    fn may_have_more(&self, uid: u32) -> bool {
        let all = lock(&self.all);
        let own = all.values().filter(|pinned| pinned.pin.user == uid).count();
        let left = PINS_MAX.saturating_sub(all.len() - own);
        own < if uid == 0 { left } else { left / 2 }
    }

    /// Takes a user's pin back, or everybody's of this file or directory for the superuser.
    ///
    /// # Errors
    ///
    /// EPERM if only others have pinned it, ENODATA if nobody has; the cache's.
    pub async fn unpin(&self, uid: u32, key: FileKey) -> Result<(), Error> {
        let of_key: Vec<_> =
            lock(&self.all).range((key, 0)..=(key, u32::MAX)).map(|(_, pinned)| Arc::clone(pinned)).collect();
        let is_any = !of_key.is_empty();
        let (theirs, _): (Vec<_>, Vec<_>) =
            of_key.into_iter().partition(|pinned| uid == 0 || pinned.pin.user == uid);
        if theirs.is_empty() {
            let errno = if is_any { Errno::EPERM } else { Errno::ENODATA };
            return Err(Error::local("taking a pin back", io::Error::from_raw_os_error(errno.0)));
        }
        for pinned in theirs {
            let (cache, user) = (self.files.cache.clone(), pinned.pin.user);
            rx::blocking::on_a_thread(move || cache.forget_pin(key, user)).await.map_err(local)?;
            let mut all = lock(&self.all);
            if all.get(&pinned.id()).is_some_and(|current| Arc::ptr_eq(current, &pinned)) {
                all.remove(&pinned.id());
            }
            drop(all);
            self.end(&pinned);
        }
        Ok(())
    }

    /// The key under which a place is pinned.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub async fn key_of(&self, fid: Fid) -> Result<FileKey, Error> {
        self.files.key(self.vnodes.local_ids.at_server(fid).await?)
    }

    /// What is pinned, in the order of their numbers, with what is here of it: what a user has pinned, or for the superuser all.
    pub fn list(&self, uid: u32) -> Vec<Told> {
        let all: Vec<_> = lock(&self.all).values().map(Arc::clone).collect();
        let theirs = all.into_iter().filter(|pinned| uid == 0 || pinned.pin.user == uid);
        theirs.map(|pinned| self.told(&pinned)).collect()
    }

    fn told(&self, pinned: &Pinned) -> Told {
        let mut report = lock(&pinned.state).report.clone();
        let vnode = pinned.fid.get().and_then(|fid| self.vnodes.get(*fid));
        if vnode.is_some_and(|vnode| vnode.is_cut_off(self.calls.runtime.now())) {
            report.trouble = Trouble::Away;
        }
        let FileKey { cell, volume, vnode, unique } = pinned.pin.key;
        Told {
            cell: self.files.cache.cell_name(cell).unwrap_or_default(),
            fid: AfsFid { volume: VolumeId(volume), vnode: VnodeNumber(vnode), unique: Uniquifier(unique) },
            user: pinned.pin.user,
            path: lock(&pinned.path).clone(),
            report,
        }
    }

    /// Begins to look after a pin. If an earlier client has kept it, these vnodes are held for it. Returns the one whose place it takes.
    fn begin(self: &Arc<Self>, pin: Pin, earlier: Option<HashSet<Fid>>) -> Option<Arc<Pinned>> {
        let pinned = Arc::new(Pinned::new(pin, earlier));
        self.vnodes.begin_keeping();
        let former = lock(&self.all).insert(pinned.id(), Arc::clone(&pinned));
        self.listen();
        let runtime = Arc::clone(&self.calls.runtime);
        self.calls.runtime.spawn(Box::pin(task::run(Arc::downgrade(self), pinned, runtime)));
        former
    }

    /// Ends a pin: nothing is held for it any more.
    fn end(&self, pinned: &Pinned) {
        pinned.is_removed.store(true, Ordering::Release);
        pinned.wake.notify_one();
        let held = std::mem::take(&mut lock(&pinned.state).held);
        self.release(held);
        self.note_seen(pinned);
    }

    /// It is known again what is in a pin: no more than that is kept for it in the cache.
    fn note_seen(&self, pinned: &Pinned) {
        if !pinned.is_unseen.swap(false, Ordering::AcqRel) {
            return;
        }
        let volume = pinned.pin.key.of_volume();
        let is_unseen =
            |other: &Pinned| other.pin.key.of_volume() == volume && other.is_unseen.load(Ordering::Acquire);
        if !lock(&self.all).values().any(|other| is_unseen(other)) {
            self.files.cache.set_pinned(&[volume], false);
        }
    }

    /// Holds a vnode for one pin more.
    fn hold(&self, fid: Fid) {
        *lock(&self.holds).entry(fid).or_insert(0) += 1;
    }

    /// Has a vnode stay in the table, and count without its server. To be said again now and then, as it may have been there anew.
    fn keep(&self, fid: Fid) {
        self.vnodes.get_or_add(fid).set_pinned(Some(self.limits.offline_max));
    }

    /// Holds vnodes for one pin less.
    fn release(&self, fids: impl IntoIterator<Item = Fid>) {
        let mut gone = Vec::new();
        for fid in fids {
            let mut holds = lock(&self.holds);
            let Some(count) = holds.get_mut(&fid) else { continue };
            *count -= 1;
            if *count == 0 {
                holds.remove(&fid);
                drop(holds);
                if let Some(vnode) = self.vnodes.get(fid) {
                    vnode.set_pinned(None);
                }
                if !fid.is_made_up() {
                    gone.extend(self.files.key(fid));
                }
            }
        }
        self.files.cache.set_pinned(&gone, false);
    }

    /// The room that a pin may take: what the others leave.
    fn room_for(&self, pinned: &Pinned) -> Room {
        let part = |limit: u64| limit / PART;
        let others: Vec<_> = lock(&self.all).values().map(Arc::clone).collect();
        let taken = others
            .iter()
            .filter(|other| other.id() != pinned.id())
            .map(|other| lock(&other.state).used)
            .fold(Room::default(), Room::plus);
        Room {
            vnodes: part(self.limits.vnodes as u64).saturating_sub(taken.vnodes),
            page_bytes: part(self.limits.page_bytes as u64).saturating_sub(taken.page_bytes),
            bytes: part(self.files.cache.usage().limit_bytes).saturating_sub(taken.bytes),
        }
    }
}
