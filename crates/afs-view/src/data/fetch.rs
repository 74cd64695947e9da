//! Fetches data that are not in the cache: by calls for the missing parts of a file, as many and as large as the server
//! and the path take ([`pace`]), and ahead of programs that read on in a file ([`readahead`]) or read one small file
//! after the other ([`prefetch`]). Bytes go into the cache as they come, and wake the readers that wait for them.
//!
//! A server tells the version of the data after the data. If it is not the version that was asked for, the client
//! removes what came from the cache, and the readers that wait look at the status again.

pub(crate) mod pace;
pub mod prefetch;
pub(crate) mod readahead;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_cache::ranges::RangeSet;
use afs_cache::{CacheFile, EXTENT};
use bytes::BytesMut;
use futures_util::FutureExt;
use rx_proto::debug::DebugVersion;
use tokio::sync::Notify;

use crate::data::files::{FileData, Files, lock};
use afs_reach::error::Error;
use afs_reach::fid::User;
use afs_reach::remote::Breaks;
use afs_reach::wait::either;
use pace::{CallKind, Pace, Threads};

/// Bytes that are put into the cache at once, if they come as fast: a write to a file costs some microseconds, however small.
const FILL_BYTES: usize = 128 << 10;

/// Files up to this length are fetched whole when any of them is wanted: one call, about as long as the least there is.
pub(crate) const WHOLE_BYTES: u64 = 256 << 10;

/// Data are fetched in multiples of this, in bytes: a stock server sends 45 kB in the round trip that any less takes too.
const GRAIN: u64 = 32 << 10;

/// The distance behind the data of a call in flight within which a reader waits for this call. A reader further off gets a call of its own.
const WAIT_BEHIND: u64 = 4 << 20;

/// The time within which a server must say how many of its threads are idle.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// Failures that are remembered for those who wait; they look within moments.
const FAILURES_MAX: usize = 32;

/// The calls to a server, and the fetches that wait to make one.
#[derive(Debug)]
pub(crate) struct ServerPace {
    pub(crate) pace: Mutex<Pace>,
    /// A call has ended.
    freed: Notify,
}

impl Default for ServerPace {
    fn default() -> Self {
        Self { pace: Mutex::new(Pace::new()), freed: Notify::new() }
    }
}

impl ServerPace {
    /// Begins a call, if the server takes another one now.
    fn begin(self: &Arc<Self>, kind: CallKind, is_waited_for: bool) -> Option<Slot> {
        let mut pace = lock(&self.pace);
        if !pace.may_begin(kind, is_waited_for) {
            return None;
        }
        pace.note_begun(kind);
        Some(Slot { server: Arc::clone(self), kind })
    }
}

/// A call that is under way, as its server counts it. When it is dropped, another may begin.
#[derive(Debug)]
struct Slot {
    server: Arc<ServerPace>,
    kind: CallKind,
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.server.pace).note_ended(self.kind);
        self.server.freed.notify_waiters();
    }
}

/// The fetching of a file.
#[derive(Debug, Default)]
pub(crate) struct Fetching {
    calls: Vec<Call>,
    next_id: u64,
    /// The range to fetch ahead, and the user for whom.
    ahead: Option<(Range<u64>, User)>,
    failures: VecDeque<Failed>,
    failed: u64,
}

/// A call that is under way.
#[derive(Debug)]
struct Call {
    id: u64,
    range: Range<u64>,
    /// The part of the range that has not arrived yet.
    rest: Range<u64>,
}

/// Bytes that will not come.
#[derive(Debug, Clone)]
struct Failed {
    number: u64,
    range: Range<u64>,
    /// The reason of the failure; `None` if the server has another version.
    error: Option<Error>,
}

/// The outcome of fetching a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FetchOutcome {
    /// It is here.
    Here,
    /// The server has another version, or this is no longer what is read.
    Stale,
}

impl FileData {
    /// Brings a range, and begins to bring what is `ahead` of it. Returns when the range is here.
    ///
    /// # Errors
    ///
    /// The server's; the cache's.
    pub(crate) async fn bring(
        self: &Arc<Self>,
        user: User,
        file: &Arc<CacheFile>,
        want: Range<u64>,
        ahead: u64,
    ) -> Result<FetchOutcome, Error> {
        let files = self.files()?;
        let mut since = lock(&self.fetching).failed;
        let mut breaks = Breaks::default();
        let (want, ahead) = if file.server_length() <= WHOLE_BYTES {
            (0..file.length().max(want.end), 0)
        } else {
            (want.start / GRAIN * GRAIN..want.end.next_multiple_of(GRAIN), ahead)
        };
        let want = want.start..want.end.min(file.length());
        loop {
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            let pace = files.pace_of(self.vnode.fid);
            let mut freed = pin!(pace.freed.notified());
            freed.as_mut().enable();
            if file.has(&want) && !self.may_be_mixed(file, &want) {
                self.fetch_ahead(&files, user, file, want.end..want.end.saturating_add(ahead));
                return Ok(FetchOutcome::Here);
            }
            if !self.current().is_some_and(|current| Arc::ptr_eq(&current, file)) {
                return Ok(FetchOutcome::Stale);
            }
            let failed = {
                let fetching = lock(&self.fetching);
                let overlaps = |f: &&Failed| f.range.start < want.end && want.start < f.range.end;
                let failed = fetching.failures.iter().filter(|f| f.number > since).find(overlaps);
                let failed = failed.map(|failed| failed.error.clone());
                since = fetching.failed;
                failed
            };
            match failed {
                Some(Some(error)) => breaks.wait(&files.calls, error).await?,
                Some(None) => return Ok(FetchOutcome::Stale),
                None => {}
            }
            self.begin_calls(&files, user, file, &want, want.end.saturating_add(ahead));
            either(arrived, freed).await;
        }
    }

    /// True if bytes that are here may be of two releases of a read-only volume: what one call has brought so far is of one version, which
    /// the server tells after it. Bytes of two calls are told together only when both have ended. A reader that waits for that, waits for
    /// `arrived`.
    pub(crate) fn may_be_mixed(&self, file: &CacheFile, range: &Range<u64>) -> bool {
        if !self.vnode.volume.is_read_only() || range.is_empty() {
            return false;
        }
        let parts: Vec<_> = file.unconfirmed().within(range.clone()).collect();
        if parts.is_empty() {
            return false;
        }
        let fetching = lock(&self.fetching);
        let overlapping = |range: &Range<u64>| {
            let (start, end) = (range.start, range.end);
            fetching.calls.iter().filter(move |call| call.range.start < end && start < call.range.end)
        };
        let mut calls = overlapping(range);
        if let (Some(call), None) = (calls.next(), calls.next())
            && parts == [range.clone()]
            && call.range.start <= range.start
            && range.end <= call.range.end
        {
            return false;
        }
        for part in parts {
            // Of a call that has broken, and that no call on its way confirms.
            if overlapping(&part).next().is_none() {
                file.take_out(part);
            }
        }
        true
    }

    /// True if bytes that were just read from here may be told: see [`Self::may_be_mixed`].
    pub(crate) fn may_be_told(&self, file: &CacheFile, pos: u64, length: u64) -> bool {
        if !self.vnode.volume.is_read_only() {
            return true;
        }
        let range = Self::clip(file, pos, length);
        // What was taken out meanwhile was of another version.
        file.has(&range) && !self.may_be_mixed(file, &range)
    }

    /// A call has ended before its version was told. What it brought stays only if it may be of the version of data that come later: the same
    /// server may have another release of a read-only volume by then.
    fn leave_unconfirmed(&self, file: &CacheFile, range: Range<u64>) {
        if self.vnode.volume.is_read_only() {
            file.take_out(range);
        }
    }

    /// Begins to bring a range that nobody waits for yet. Whether a call was begun.
    pub(crate) fn fetch_ahead(
        self: &Arc<Self>,
        files: &Arc<Files>,
        user: User,
        file: &Arc<CacheFile>,
        range: Range<u64>,
    ) -> bool {
        !range.is_empty()
            && !file.is_complete()
            && self.begin_calls(files, user, file, &(range.start..range.start), range.end)
    }

    /// Begins to bring a small file that nobody waits for yet, as soon as the server takes another call.
    async fn bring_ahead(self: &Arc<Self>, files: &Arc<Files>, user: User, file: &Arc<CacheFile>) {
        loop {
            let pace = files.pace_of(self.vnode.fid);
            let mut freed = pin!(pace.freed.notified());
            freed.as_mut().enable();
            let is_current = self.current().is_some_and(|current| Arc::ptr_eq(&current, file));
            let is_done = file.is_complete() || !lock(&self.fetching).calls.is_empty();
            if !is_current || is_done || self.fetch_ahead(files, user, file, 0..file.length()) {
                return;
            }
            freed.await;
        }
    }

    /// Begins calls for what is missing of `want`, and behind it up to `upto`, as far as the server takes them now. Whether it took any.
    fn begin_calls(
        self: &Arc<Self>,
        files: &Arc<Files>,
        user: User,
        file: &Arc<CacheFile>,
        want: &Range<u64>,
        upto: u64,
    ) -> bool {
        let server = files.pace_of(self.vnode.fid);
        let upto = upto.min(file.length());
        let mut fetching = lock(&self.fetching);
        if upto > want.end {
            fetching.ahead = Some((want.end..upto, user));
        }
        // What is missing and not on its way.
        let mut missing: RangeSet = file.missing(want.start..upto).into_iter().collect();
        for call in &fetching.calls {
            let soon = call.rest.start..call.rest.end.min(call.rest.start + WAIT_BEHIND);
            missing.remove(soon.clone());
            // Beyond what comes soon only who waits for it asks again.
            let later = soon.end..call.rest.end;
            missing.remove(later.start.max(want.end)..later.end.max(want.end));
        }
        let total = missing.total();
        let mut left = total;
        let kind = if file.server_length() <= WHOLE_BYTES { CallKind::SmallFile } else { CallKind::Piece };
        let mut has_begun = false;
        for gap in missing.iter() {
            let mut at = gap.start;
            while at < gap.end {
                let is_waited_for = at < want.end;
                let Some(slot) = server.begin(kind, is_waited_for) else { return has_begun };
                has_begun = true;
                let mut end = gap.end.min(at + lock(&server.pace).piece(left.max(1)));
                if end < gap.end && end - at > EXTENT {
                    end -= end % EXTENT; // one call has all of an extent
                }
                left -= end - at;
                fetching.next_id += 1;
                let id = fetching.next_id;
                fetching.calls.push(Call { id, range: at..end, rest: at..end });
                let task =
                    run_call(Arc::clone(files), Arc::clone(self), user, Arc::clone(file), id, at..end, slot);
                files.calls.runtime.spawn(Box::pin(task));
                at = end;
            }
        }
        has_begun
    }

    /// A call has ended: another one may begin.
    fn go_on(self: &Arc<Self>, files: &Arc<Files>, file: &Arc<CacheFile>) {
        let ahead = lock(&self.fetching).ahead.clone();
        let is_read = self.handles.load(Ordering::Acquire) > 0
            && self.current().is_some_and(|current| Arc::ptr_eq(&current, file));
        if let Some((range, user)) = ahead.filter(|_| is_read) {
            self.fetch_ahead(files, user, file, range);
        }
    }

    fn note_failed(&self, range: Range<u64>, error: Option<Error>) {
        let mut fetching = lock(&self.fetching);
        fetching.failed += 1;
        // Nobody is to fetch ahead into the same trouble.
        fetching.ahead = None;
        let number = fetching.failed;
        fetching.failures.push_back(Failed { number, range, error });
        if fetching.failures.len() > FAILURES_MAX {
            fetching.failures.pop_front();
        }
    }
}

/// One call, from its beginning to its end.
async fn run_call(
    files: Arc<Files>,
    data: Arc<FileData>,
    user: User,
    file: Arc<CacheFile>,
    id: u64,
    range: Range<u64>,
    slot: Slot,
) {
    let outcome = fetch_range(&files, &data, user, &file, id, range.clone()).await;
    lock(&data.fetching).calls.retain(|call| call.id != id);
    match outcome {
        Ok(FetchOutcome::Here) => {}
        Ok(FetchOutcome::Stale) => data.note_failed(range, None),
        Err(error) => {
            let error = files.statuses.note_gone(data.vnode.fid, error);
            if matches!(error, Error::Busy { .. }) {
                lock(&slot.server.pace).note_busy(files.now());
            }
            tracing::debug!(fid = %data.vnode.fid, ?range, %error, "a fetch failed");
            data.note_failed(range, Some(error));
        }
    }
    drop(slot);
    data.arrived.notify_waiters();
    data.go_on(&files, &file);
}

/// Asks a server how many of its threads are idle: more calls are to be made only if it has some for others too.
async fn ask_for_threads(files: Arc<Files>, server: SocketAddr, pace: Arc<ServerPace>) {
    let stats = files.calls.connections.endpoint().statistics_of(server, ANSWER_WAIT).await;
    let stats = stats.filter(|stats| stats.version.has(DebugVersion::IDLE_THREADS));
    let threads = stats.map(|stats| Threads { idle: stats.idle_threads, waiting: stats.n_waiting });
    lock(&pace.pace).note_threads(files.now(), threads);
    pace.freed.notify_waiters();
}

async fn fetch_range(
    files: &Arc<Files>,
    data: &Arc<FileData>,
    user: User,
    file: &Arc<CacheFile>,
    id: u64,
    range: Range<u64>,
) -> Result<FetchOutcome, Error> {
    let fid = data.vnode.fid;
    let version = file.version();
    // What came before this call and was of no known version is of this one, if this call's data are.
    let mut unconfirmed = file.unconfirmed();
    for call in &lock(&data.fetching).calls {
        unconfirmed.remove(call.range.clone());
    }
    let began = files.now();
    let mut fetch = files.streams.fetch(user, fid, range.start, range.end - range.start).await?;
    let now = files.now();
    let actual = files.note_server(fid, fetch.server());
    if lock(&actual.pace).note_answer(now, now.since(began), fetch.is_own()) {
        let asked = ask_for_threads(Arc::clone(files), fetch.server(), Arc::clone(&actual));
        files.calls.runtime.spawn(Box::pin(asked));
    }
    let mut arriving =
        Arriving { files, data, file, id, at: range.start, end: range.end, pieces: BytesMut::new() };
    loop {
        // What is there already is put in with what follows; what is waited for is not held up.
        let next = match fetch.next().now_or_never() {
            Some(next) => next,
            None => {
                arriving.put()?;
                fetch.next().await
            }
        };
        match next {
            Ok(Some(bytes)) => arriving.add(&bytes)?,
            Ok(None) => break,
            Err(error) => {
                // What came may be good; that is for a later call to say.
                arriving.put()?;
                data.leave_unconfirmed(file, range.start..arriving.at);
                return Err(error);
            }
        }
        let is_wanted = data.handles.load(Ordering::Acquire) > 0 || data.is_removed();
        if !is_wanted && fetch.missing() > WAIT_BEHIND {
            data.leave_unconfirmed(file, range.start..arriving.at);
            return Ok(FetchOutcome::Here);
        }
    }
    arriving.put()?;
    let at = arriving.at;
    let status = match fetch.end().await {
        Ok(status) => status,
        Err(error) => {
            data.leave_unconfirmed(file, range.start..at);
            return Err(error);
        }
    };
    let told = status.data_version.0;
    // Our own stores advance it meanwhile.
    if told != version && told != file.version() {
        file.take_out(range.start..at);
        return Ok(FetchOutcome::Stale);
    }
    if at < range.end.min(file.server_length()) {
        let what = format!("fetching {} bytes of {fid} at {}", range.end - range.start, range.start);
        return Err(Error::BadReply { what, problem: format!("{} came", at - range.start) });
    }
    file.confirm(range);
    // What came before of a read-only volume may be of another release.
    if !data.vnode.volume.is_read_only() {
        for earlier in unconfirmed.iter() {
            file.confirm(earlier);
        }
    }
    Ok(FetchOutcome::Here)
}

/// The data of a call, on their way into the cache.
struct Arriving<'a> {
    files: &'a Files,
    data: &'a FileData,
    file: &'a CacheFile,
    id: u64,
    /// The place of the next byte that is put in, and the end of the call.
    at: u64,
    end: u64,
    pieces: BytesMut,
}

impl Arriving<'_> {
    /// Takes bytes that came, and puts them into the cache when they are many.
    fn add(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // Copied: a call brings them in packets, and a write for each would cost more.
        self.pieces.extend_from_slice(bytes);
        if self.pieces.len() >= FILL_BYTES { self.put() } else { Ok(()) }
    }

    /// Puts what there is into the cache.
    fn put(&mut self) -> Result<(), Error> {
        if self.pieces.is_empty() {
            return Ok(());
        }
        let len = self.pieces.len() as u64;
        self.file.lay_out(self.at, len, self.end);
        self.file.fill(self.at, &self.pieces).map_err(|error| self.files.failed(error))?;
        self.at += len;
        self.pieces.clear();
        if let Some(call) = lock(&self.data.fetching).calls.iter_mut().find(|call| call.id == self.id) {
            call.rest.start = self.at;
        }
        self.data.arrived.notify_waiters();
        Ok(())
    }
}
