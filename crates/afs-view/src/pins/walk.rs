//! Going through a pin: all of its names, attributes and rights are asked for that are not known for long, and the data that are missing are fetched.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use afs_wire::directory::Directory;
use futures_util::future::join_all;

use super::{FETCHED_AT_ONCE, Pinned, Pins, Report, Room, Trouble};
use crate::data::fetch::FetchOutcome;
use crate::data::files::lock;
use crate::vnodes::status::{Kind, Status, is_mount_point, unix_time};
use crate::vnodes::vnode::Vnode;
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, Pag, User};
use afs_reach::users::IdentityIndex;

/// Bytes of a file that are asked for at once: a call that nobody has open a file for brings no more than 4 MiB.
const PIECE: u64 = 2 << 20;

/// The number of times that a file which others change all the time is begun anew in one walk.
const ATTEMPTS_MAX: u32 = 4;

/// Bytes of a path from which on it is not told to its end: a walk keeps one for each file.
const SHOWN_MAX: usize = 1024;

/// The bytes that a file takes in the cache beside its data, as the cache counts.
const FILE_OVERHEAD: u64 = 4096 + 512;

/// A file whose data are to be here.
#[derive(Debug, Clone)]
struct Wanted {
    fid: Fid,
    length: u64,
    path: Vec<u8>,
}

/// What a walk has found so far.
#[derive(Debug, Default)]
struct Walk {
    held: HashSet<Fid>,
    /// Those of them that the pin did not hold before.
    fresh: Vec<Fid>,
    /// The directories that were listed.
    dirs: Vec<Fid>,
    files: Vec<Wanted>,
    /// Files whose data have no room.
    left_out: Vec<Fid>,
    room: Room,
    used: Room,
    report: Report,
    /// True if something was not seen that may be there.
    is_partial: bool,
}

/// The path of a name in a directory, as it is shown: what is long is not told to its end.
fn path_of(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        b"" => name.to_vec(),
        dir if dir.len() >= SHOWN_MAX => dir.to_vec(),
        dir => [dir, b"/", name].concat(),
    }
}

impl Walk {
    /// Takes room for something, if there is some.
    fn takes(&mut self, more: Room) -> bool {
        let used = self.used.plus(more);
        let fits = used.fits_into(self.room);
        if fits {
            self.used = used;
        }
        fits
    }
}

impl Report {
    /// Something is missing.
    fn miss(&mut self, path: &[u8], count: impl FnOnce(&mut Self) -> &mut u64) {
        *count(self) += 1;
        if self.example.is_empty() {
            self.example = path.to_vec();
        }
    }

    fn miss_for(&mut self, path: &[u8], error: &Error) {
        self.miss(path, |report| match error {
            error if error.is_full_here() => &mut report.no_room,
            error if error.is_denied() => &mut report.no_rights,
            _ => &mut report.failed,
        });
    }

    fn note_fetched(&mut self, wanted: &Wanted, outcome: Result<u64, Error>) {
        match outcome {
            Ok(_) => {
                self.files_here += 1;
                self.bytes_here = self.bytes_here.saturating_add(wanted.length);
            }
            Err(error) => self.miss_for(&wanted.path, &error),
        }
    }

    fn is_complete(&self) -> bool {
        self.trouble == Trouble::None
            && self.files_here == self.files
            && self.no_room + self.no_rights + self.failed == 0
    }
}

impl Pins {
    /// The user as whom a pin is fetched: with a token of the person who pinned it, or anonymous as they were.
    fn user_of(&self, pinned: &Pinned, cell: CellIndex) -> Option<User> {
        let uid = pinned.pin.user;
        if pinned.pin.holder.is_empty() {
            return Some(User { uid, pag: Some(Pag::UNKNOWN) });
        }
        let mut persons = self.users.persons_of(uid, cell).into_iter();
        persons.find(|(.., name)| **name == *pinned.pin.holder).map(|(user, ..)| user)
    }

    /// Goes through a pin once, and fetches what is missing: of data so many bytes.
    pub(super) async fn look_at(&self, pinned: &Pinned) -> u64 {
        let Some(&fid) = pinned.fid.get() else { return 0 };
        let Some(user) = self.user_of(pinned, fid.cell) else {
            lock(&pinned.state).report.trouble = Trouble::NoToken;
            return 0;
        };
        let who = self.users.who(user, fid.cell);
        let vnode = self.vnodes.get_or_add(fid);
        // Tells at once if no server answers, and whether it is still there.
        if let Err(error) = self.statuses.try_to_fetch_status(who, &vnode).await {
            self.note_trouble(pinned, &error);
            return 0;
        }
        let mut walk = Walk { room: self.room_for(pinned), ..Walk::default() };
        self.hold_for(pinned, &mut walk, fid);
        let way = self.way_to(pinned, user, fid).await;
        way.iter().for_each(|fid| self.hold_for(pinned, &mut walk, *fid));
        if fid.vnode.is_directory() {
            self.go_through(pinned, user, fid, &mut walk).await;
        } else {
            let outcome = self.statuses.own_status(user, fid, fid).await;
            self.note_file(&mut walk, fid, b"", outcome);
        }
        let dirs = std::mem::take(&mut walk.dirs).into_iter().chain(way).collect();
        self.learn_rights(pinned, who, fid.cell, dirs).await;
        walk.used.vnodes = walk.held.len() as u64;
        self.begin_report(pinned, &walk);
        let fetched = self.fetch_data(pinned, user, &walk.files).await;
        self.finish(pinned, walk);
        fetched
    }

    fn note_trouble(&self, pinned: &Pinned, error: &Error) {
        let trouble = match error {
            Error::Gone { .. } => Trouble::Gone,
            Error::Unreachable { .. } | Error::Closing => Trouble::Away,
            Error::NoToken { .. } | Error::TokenRefused { .. } => Trouble::NoToken,
            _ => Trouble::Failed,
        };
        let mut state = lock(&pinned.state);
        if state.report.trouble != trouble && trouble != Trouble::Away {
            tracing::warn!(path = %pinned.shown(), %error, "what is pinned cannot be fetched; 'fs pin -list' shows it");
        }
        state.report.trouble = trouble;
        if trouble == Trouble::Gone {
            let held = std::mem::take(&mut state.held);
            (state.used, state.report) = (Room::default(), Report { trouble, ..Report::default() });
            drop(state);
            self.release(held);
            self.note_seen(pinned);
        }
    }

    /// Holds a vnode for a walk, and so for its pin.
    fn hold_for(&self, pinned: &Pinned, walk: &mut Walk, fid: Fid) {
        self.keep(fid);
        if walk.held.insert(fid) && !lock(&pinned.state).held.contains(&fid) {
            self.hold(fid);
            walk.fresh.push(fid);
        }
    }

    /// All directories below one in its volume.
    async fn go_through(&self, pinned: &Pinned, user: User, top: Fid, walk: &mut Walk) {
        let mut left = VecDeque::from([(top, Vec::new())]);
        while let Some((dir, path)) = left.pop_front() {
            if pinned.is_removed() {
                return;
            }
            let pages = match self.directories.pages_of(user, dir).await {
                Ok(pages) => pages.directory,
                Err(error) => {
                    walk.is_partial |= !error.is_denied();
                    walk.report.miss_for(&path, &error);
                    match error {
                        // The rest waits for the next walk.
                        Error::Unreachable { .. } => return,
                        _ => continue,
                    }
                }
            };
            let page_bytes = pages.bytes().len() as u64;
            if !walk.takes(Room { page_bytes, ..Room::default() }) {
                walk.report.miss(&path, |report| &mut report.no_room);
                continue;
            }
            walk.dirs.push(dir);
            let entries = self.enter(pinned, walk, (dir, &path), &pages);
            let who = self.users.who(user, dir.cell);
            let is_due = |fid: &Fid| self.is_due(&self.vnodes.get_or_add(*fid), who);
            let due: Vec<_> = entries.iter().map(|(fid, _)| *fid).filter(is_due).collect();
            let refused = self.statuses.fetch_statuses(who, &due).await;
            for (fid, path) in entries {
                if fid.vnode.is_directory() {
                    left.push_back((fid, path));
                    continue;
                }
                let unknown = || Err(refused.get(&fid).cloned().unwrap_or(Error::Gone { fid }));
                let outcome = self.statuses.known_status(user, fid, fid).unwrap_or_else(unknown);
                self.note_other(user, walk, (fid, &path), outcome).await;
            }
        }
    }

    /// Holds what a directory names. Returns it, with its path.
    fn enter(
        &self,
        pinned: &Pinned,
        walk: &mut Walk,
        (dir, path): (Fid, &[u8]),
        pages: &Directory,
    ) -> Vec<(Fid, Vec<u8>)> {
        let mut entries = Vec::new();
        for entry in pages.entries().filter(|entry| !entry.is_dot()) {
            let fid = dir.sibling(entry.fid);
            let path = path_of(path, entry.name);
            // It has several names, or is damaged and above itself.
            if walk.held.contains(&fid) {
                continue;
            }
            if walk.held.len() as u64 >= walk.room.vnodes {
                walk.report.miss(&path, |report| &mut report.no_room);
                continue;
            }
            let vnode = self.vnodes.get_or_add(fid);
            if !fid.vnode.is_directory() && vnode.parent().is_none() {
                vnode.set_parent(dir.in_volume());
            }
            self.hold_for(pinned, walk, fid);
            entries.push((fid, path));
        }
        entries
    }

    /// Notes what is no directory: a file, a link, or a mount point, which is not crossed.
    async fn note_other(
        &self,
        user: User,
        walk: &mut Walk,
        (fid, path): (Fid, &[u8]),
        outcome: Result<Status, Error>,
    ) {
        let is_link = matches!(&outcome, Ok(status) if status.kind == Kind::Symlink);
        if !is_link {
            return self.note_file(walk, fid, path, outcome);
        }
        if let Err(error) = self.links.text(user, fid).await {
            walk.report.miss_for(path, &error);
        }
        let status = self.vnodes.get(fid).and_then(|vnode| vnode.last_status());
        walk.report.mount_points += u64::from(status.is_some_and(|status| is_mount_point(&status)));
    }

    /// Notes a file, and whether its data are to be here.
    fn note_file(&self, walk: &mut Walk, fid: Fid, path: &[u8], outcome: Result<Status, Error>) {
        let status = match outcome {
            Ok(status) => status,
            Err(error) => {
                walk.is_partial |= !error.is_denied();
                return walk.report.miss_for(path, &error);
            }
        };
        let length = status.length;
        walk.report.files += 1;
        walk.report.bytes = walk.report.bytes.saturating_add(length);
        if !status.may_read() {
            walk.report.miss(path, |report| &mut report.no_rights);
        } else if walk.takes(Room { bytes: length.saturating_add(FILE_OVERHEAD), ..Room::default() }) {
            walk.files.push(Wanted { fid, length, path: path.to_vec() });
        } else {
            walk.report.miss(path, |report| &mut report.no_room);
            walk.left_out.push(fid);
        }
    }

    /// Asks what the same local user may do as somebody else, as in another session: what is not known counts for nobody without the server.
    async fn learn_rights(&self, pinned: &Pinned, done: IdentityIndex, cell: CellIndex, mut dirs: Vec<Fid>) {
        dirs.retain(|dir| dir.cell == cell && dir.vnode.is_directory());
        for (_, who, _) in self.users.persons_of(pinned.pin.user, cell) {
            let knows = |dir: &Fid| {
                let vnode = self.vnodes.get_or_add(*dir);
                vnode.is_here_only()
                    || self.statuses.known(&vnode, who).is_some_and(|known| known.rights.is_some())
            };
            let mut unknown: Vec<Fid> = dirs.iter().copied().filter(|dir| !knows(dir)).collect();
            if who == done || unknown.is_empty() {
                continue;
            }
            unknown.sort_unstable();
            for dirs in unknown.chunk_by(|a, b| a.volume == b.volume) {
                // Who may not do anything there learns that as well.
                drop(self.statuses.fetch_statuses(who, dirs).await);
            }
        }
    }

    /// Tells what was found, before data are fetched.
    fn begin_report(&self, pinned: &Pinned, walk: &Walk) {
        let keys = |fids: &mut dyn Iterator<Item = Fid>| -> Vec<_> {
            fids.filter_map(|fid| self.files.key(fid).ok()).collect()
        };
        self.files.cache.set_pinned(&keys(&mut walk.left_out.iter().copied()), false);
        self.files.cache.set_pinned(&keys(&mut walk.files.iter().map(|wanted| wanted.fid)), true);
        let mut state = lock(&pinned.state);
        let Report { complete, no_room, .. } = state.report;
        if walk.report.no_room > 0 && no_room == 0 {
            let path = pinned.shown();
            tracing::warn!(
                path,
                count = walk.report.no_room,
                "not all of what is pinned has room; 'fs pin -list' shows it"
            );
        }
        state.report = Report { complete, ..walk.report.clone() };
        state.used = walk.used;
    }

    /// Fetches the data that are not here, a few files at a time. If the server goes away, the rest waits for the next walk.
    async fn fetch_data(&self, pinned: &Pinned, user: User, files: &[Wanted]) -> u64 {
        let (next, fetched) = (Mutex::new(files.iter()), AtomicU64::new(0));
        let is_away = AtomicBool::new(false);
        let fetchers = (0..FETCHED_AT_ONCE).map(|_| async {
            loop {
                let wanted = lock(&next).next();
                let may_go_on = !pinned.is_removed() && !is_away.load(Ordering::Relaxed);
                let Some(wanted) = wanted.filter(|_| may_go_on) else { return };
                let outcome = self.bring(user, wanted.fid).await;
                is_away.fetch_or(matches!(outcome, Err(Error::Unreachable { .. })), Ordering::Relaxed);
                fetched.fetch_add(*outcome.as_ref().unwrap_or(&0), Ordering::Relaxed);
                lock(&pinned.state).report.note_fetched(wanted, outcome);
            }
        });
        join_all(fetchers).await;
        fetched.into_inner()
    }

    /// Has all data of a file here, if they are not. Returns how many bytes were asked for.
    async fn bring(&self, user: User, fid: Fid) -> Result<u64, Error> {
        let (vnode, mut asked) = (self.vnodes.get_or_add(fid), 0);
        if self.has_all(&vnode) {
            return Ok(asked);
        }
        let _permit = self.fetches.acquire().await.map_err(|_| Error::Closing)?;
        let data = self.files.of(&vnode)?;
        for _ in 0..ATTEMPTS_MAX {
            let version = self.statuses.own_status(user, fid, fid).await?.data_version;
            data.adopt_known(&self.files, user)?;
            // What was written here and is not stored yet is kept in any case.
            let Some(file) = data.current().filter(|file| !file.is_dirty()) else { return Ok(asked) };
            let mut is_current = true;
            for gap in file.missing(0..file.length()) {
                let mut at = gap.start;
                while at < gap.end && is_current {
                    let end = gap.end.min(at.saturating_add(PIECE));
                    is_current = data.bring(user, &file, at..end, 0).await? == FetchOutcome::Here;
                    asked += end - at;
                    at = end;
                }
            }
            if is_current && file.missing(0..file.length()).is_empty() {
                vnode.whole_version.store(version.0, Ordering::Relaxed);
                return Ok(asked);
            }
            if !is_current {
                vnode.note_break();
            }
        }
        Err(Error::Busy { rpc: "FetchData64", fid, code: afs_wire::abort::VBUSY })
    }

    /// True if the cache has all of the file's version, as far as can be told without opening it.
    fn has_all(&self, vnode: &Arc<Vnode>) -> bool {
        let Some(status) = vnode.last_status() else { return false };
        vnode.whole_version.load(Ordering::Relaxed) == status.data_version.0
            && self.files.key(vnode.fid).is_ok_and(|key| self.files.cache.present_bytes(key) >= status.length)
    }

    /// Lets go of what is no longer in a pin. What was not seen this time may be there still, and stays.
    fn finish(&self, pinned: &Pinned, mut walk: Walk) {
        let mut state = lock(&pinned.state);
        if pinned.is_removed() {
            drop(state);
            // What was held before, its end releases.
            return self.release(walk.fresh);
        }
        if walk.is_partial && (state.held.len() as u64) <= walk.room.vnodes {
            walk.held.extend(state.held.iter().copied());
        }
        let is_whole = !walk.is_partial;
        let gone: Vec<Fid> = state.held.difference(&walk.held).copied().collect();
        state.held = walk.held;
        state.used.vnodes = state.held.len() as u64;
        if state.report.is_complete() {
            state.report.complete = unix_time(&*self.calls.runtime);
        }
        drop(state);
        self.release(gone);
        if is_whole {
            self.note_seen(pinned);
        }
    }
}
