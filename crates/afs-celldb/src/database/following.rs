//! How an image keeps up with a store that other machines change too.
//!
//! One task watches the store and gives the image what others have changed. Another one asks the store, whenever a look-up
//! wants to know, which revision is the newest (a *round*), and waits until the image has it. What a round has
//! found out counts for [`FRESH_FOR`] from the moment at which it began, and whoever makes a change waits so
//! long before telling of it. So a look-up that begins after that sees the change, on any machine: either its
//! image was confirmed after the change was made, or it waits for a round. Only the length of that time has to
//! be the same on all machines, not what their clocks show.
//!
//! While the store cannot be asked, look-ups are answered from memory, each after a round of its own has failed: nobody can have been
//! told of a change meanwhile that the store did not make. This ends after a limit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::batch::Writer;
use super::mirror::{LOAD_ROWS, Mirror};
use super::revision::{REVISION, Revision, Stamp, writers};
use super::{ChangeError, Image, OpenError, Options, key};
use crate::serving::give_way;
use crate::store::{Changed, Known, Position, SharedStore, StoreError, Transaction};

/// For how long an image counts as current after it was found to be so; so long does each change take longer. A database that is
/// looked at all the time has a round in half of this, 100 a second, which cost etcd some per cent of a core.
pub(super) const FRESH_FOR: Duration = Duration::from_millis(20);

/// How long a round may take. Look-ups wait for it while etcd's machines hang, so it is what users hardly notice; a new
/// leader takes longer, and is found by the next rounds.
const ROUND: Duration = Duration::from_secs(1);

/// How often there is a round without a look-up, for the metrics and to find out that the store is there again.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// How long a change that is known to be made may take to arrive, before the watch is begun anew at another machine.
const WATCH_PATIENCE: Duration = Duration::from_millis(250);

/// Between two attempts to watch a store that fails, or to read it anew; the second time in a row twice as long, and so on to the
/// longest, as each attempt to read anew may read all rows.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long a conflict waits for the change that was faster. Whoever has waited in vain tries again.
const CONFLICT_PATIENCE: Duration = Duration::from_secs(1);

/// After so many seconds what a process left that made changes is removed: longer than any of its transactions can be under way.
const WRITER_LIFE: u32 = 86_400;

/// Nobody knows what the store has, and what is in memory is too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoQuorum;

impl fmt::Display for NoQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the store of the cell's databases has not answered for longer than look-ups may do without",
        )
    }
}

impl std::error::Error for NoQuorum {}

/// How well an image keeps up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// How long ago the image was known to have everything.
    pub age: Duration,
    /// Whether the store answered when it was asked last.
    pub has_quorum: bool,
    /// The machines of the store.
    pub machines: usize,
    /// Look-ups that were answered although the store did not.
    pub from_memory: u64,
    /// Changes that had to be made anew since another machine was faster.
    pub conflicts: u64,
    /// How often everything was read anew.
    pub reloads: u64,
}

/// What the tasks and those who use the database tell each other.
#[derive(Debug)]
pub(super) struct Following {
    options: Options,
    rounds: watch::Sender<Rounds>,
    /// Asks for a round.
    wanted: Notify,
    /// The revision of the image.
    revision: watch::Sender<Revision>,
    /// Asks for a watch at another machine.
    late: Notify,
    /// Whether the image and the store have gone different ways, so that everything is to be read anew.
    is_astray: AtomicBool,
    from_memory: AtomicU64,
    conflicts: AtomicU64,
    reloads: AtomicU64,
}

/// When rounds began.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    /// The last one that found the image to be current.
    confirmed: Instant,
    /// The last one that found out nothing, and why; unless a later one was confirmed.
    failed: Option<Instant>,
}

impl Following {
    pub(super) fn new(options: Options, loaded: Instant, revision: Revision) -> Self {
        Self {
            options,
            rounds: watch::Sender::new(Rounds { confirmed: loaded, failed: None }),
            wanted: Notify::new(),
            revision: watch::Sender::new(revision),
            late: Notify::new(),
            is_astray: AtomicBool::new(false),
            from_memory: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            reloads: AtomicU64::new(0),
        }
    }

    pub(super) fn stamp(&self, sequence: u64) -> Stamp {
        Stamp { writer: self.options.writer, sequence }
    }

    pub(super) fn freshness(&self, machines: usize) -> Freshness {
        let rounds = *self.rounds.borrow();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Freshness {
            age: rounds.confirmed.elapsed(),
            has_quorum: rounds.failed.is_none(),
            machines,
            from_memory: count(&self.from_memory),
            conflicts: count(&self.conflicts),
            reloads: count(&self.reloads),
        }
    }

    /// Waits until the image is known to be current.
    pub(super) async fn catch_up(&self) -> Result<(), NoQuorum> {
        if self.confirm().await {
            return Ok(());
        }
        let age = self.rounds.borrow().confirmed.elapsed();
        if age > self.options.memory_limit {
            return Err(NoQuorum);
        }
        self.from_memory.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The same for a change, which cannot do without.
    pub(super) async fn can_change(&self) -> Result<(), ChangeError> {
        if self.confirm().await {
            return Ok(());
        }
        let error =
            StoreError::new("changing the cell's databases", "etcd has no leader, or cannot be reached");
        Err(error.with(Known::NotDone).into())
    }

    /// Whether the image has all that was told of before now.
    async fn confirm(&self) -> bool {
        let now = Instant::now();
        let is_recent = |confirmed: Instant| confirmed + FRESH_FOR >= now;
        let confirmed = self.rounds.borrow().confirmed;
        if is_recent(confirmed) {
            if confirmed + FRESH_FOR / 2 < now {
                self.wanted.notify_one();
            }
            return true;
        }
        // From here on it takes a while, which it must not on the thread that brings the calls.
        give_way().await;
        let mut rounds = self.rounds.subscribe();
        self.wanted.notify_one();
        loop {
            let Rounds { confirmed, failed } = *rounds.borrow_and_update();
            if is_recent(confirmed) {
                return true;
            }
            // The sender is `self`.
            if failed.is_some_and(|begun| begun >= now) || rounds.changed().await.is_err() {
                return false;
            }
        }
    }

    /// The image has moved on. Two may say so at once, and the one that comes last may have moved it first: so this asks what it is at.
    pub(super) fn moved<I: Image>(&self, mirror: &Mirror<I>) {
        self.revision.send_modify(|revision| *revision = mirror.revision());
    }

    /// Waits until the image has moved on from a revision that is no longer the newest.
    pub(super) async fn wait_for_others(&self, from: Revision) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
        let mut revision = self.revision.subscribe();
        let moves = revision.wait_for(|now| *now != from);
        if timeout(CONFLICT_PATIENCE, moves).await.is_err() {
            self.late.notify_one();
        }
    }

    fn go_astray(&self) {
        self.is_astray.store(true, Ordering::Relaxed);
        self.late.notify_one();
    }
}

/// The tasks that keep an image up to date with a store that others change too.
#[derive(Debug)]
pub(super) struct Follower<I> {
    mirror: Arc<Mirror<I>>,
    /// Held while everything is read anew.
    writer: Arc<Mutex<Writer>>,
    following: Arc<Following>,
}

impl<I: Image> Follower<I> {
    pub(super) fn new(mirror: Arc<Mirror<I>>, writer: Arc<Mutex<Writer>>, following: Arc<Following>) -> Self {
        Self { mirror, writer, following }
    }

    /// Starts the tasks, for an image of this moment.
    pub(super) fn start(self, position: Position) -> Vec<AbortHandle> {
        let follower = Arc::new(self);
        let rounds = tokio::spawn(Arc::clone(&follower).ask());
        let watch = tokio::spawn(Arc::clone(&follower).listen(position));
        let sweep = tokio::spawn(follower.sweep());
        [rounds, watch, sweep].iter().map(tokio::task::JoinHandle::abort_handle).collect()
    }

    fn store(&self) -> &dyn SharedStore {
        self.mirror.store.shared().expect("only such a store is followed")
    }

    /// Finds out what the newest revision is, and waits until the image has it.
    async fn round(&self) -> Result<(), StoreError> {
        let following = &self.following;
        let asking = || format!("asking for the revision of the {}", I::NAME);
        let before = self.mirror.revision();
        let newest = match self.store().read(&key::<I>(REVISION)).await? {
            Some(row) => Revision::from_row(&row).map_err(|error| StoreError::new(asking(), error))?,
            None => Revision::default(),
        };
        let mut revision = following.revision.subscribe();
        loop {
            let now = *revision.borrow_and_update();
            // It may be ahead of what was read, but only by what was changed since.
            if now == newest || before.is_behind(now) && newest.is_behind(now) && !newest.is_behind(before) {
                return Ok(());
            }
            if !now.is_behind(newest) {
                following.go_astray();
                return Err(StoreError::new(asking(), "it is not a later one; the database is read anew"));
            }
            if timeout(WATCH_PATIENCE, revision.changed()).await.is_err() {
                following.late.notify_one();
            }
        }
    }

    /// Takes what others have changed; whether that fits to the image.
    fn take_others(&self, changed: &Changed) -> bool {
        for rows in &changed.transactions {
            let own = |row: &(Vec<u8>, _)| row.0[I::PREFIX.len()..].to_vec();
            let marks = rows.iter().filter(|row| own(row) == REVISION).filter_map(|row| row.1.as_deref());
            let Some(Ok(to)) = marks.map(Revision::from_row).next_back() else { return false };
            let from = self.mirror.revision();
            if to == from || to.is_behind(from) {
                continue;
            }
            let rows: Vec<_> = rows.iter().map(|row| (own(row), row.1.clone())).collect();
            let rows: Vec<_> = rows.into_iter().filter(|(key, _)| key != REVISION).collect();
            if !to.follows(from) {
                return false;
            }
            match self.mirror.take(&rows, from, to) {
                Ok(true) => self.following.moved(&self.mirror),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(database = I::NAME, %error, "another server has made a row that this one cannot read");
                    return false;
                }
            }
        }
        true
    }

    /// Reads everything anew.
    async fn reload(&self) -> Result<Position, OpenError> {
        let following = &self.following;
        // Nobody changes the image meanwhile: the watch is the caller.
        let writer = self.writer.lock().await;
        let position = self.mirror.reload(&writer).await?;
        following.reloads.fetch_add(1, Ordering::Relaxed);
        following.is_astray.store(false, Ordering::Relaxed);
        following.moved(&self.mirror);
        tracing::info!(database = I::NAME, "the database was read anew");
        Ok(position)
    }

    /// Makes the rounds.
    async fn ask(self: Arc<Self>) {
        let following = &self.following;
        loop {
            // Without a look-up there is one all the same.
            let _ = timeout(HEARTBEAT, following.wanted.notified()).await;
            let begun = Instant::now();
            let result = timeout(ROUND, self.round()).await.unwrap_or_else(|_| {
                let why = format!("there was no answer within {ROUND:?}");
                Err(StoreError::new(format!("asking for the revision of the {}", I::NAME), why))
            });
            let failed = result.as_ref().err();
            let was_good = following.rounds.borrow().failed.is_none();
            match failed {
                Some(error) if was_good => {
                    tracing::warn!(database = I::NAME, %error, "look-ups are answered from memory, changes are refused");
                }
                None if !was_good => tracing::info!(database = I::NAME, "etcd answers again"),
                _ => {}
            }
            following.rounds.send_modify(|rounds| match failed {
                None => *rounds = Rounds { confirmed: begun, failed: None },
                Some(_) => rounds.failed = Some(begun),
            });
        }
    }

    /// Gives the image what others change.
    async fn listen(self: Arc<Self>, mut position: Position) {
        let (following, store) = (&self.following, self.store());
        let mut attempts = Attempts::default();
        loop {
            if following.is_astray.load(Ordering::Relaxed) {
                sleep(attempts.pause()).await;
                match self.reload().await {
                    Ok(read) => position = read,
                    Err(error) => {
                        if attempts.is_news(&error) {
                            tracing::warn!(database = I::NAME, %error, "the database cannot be read anew yet");
                        }
                        continue;
                    }
                }
            }
            let error = match store.watch(I::PREFIX, position).await {
                Err(error) => error,
                Ok(mut changes) => loop {
                    let changed = tokio::select! {
                        changed = changes.next() => changed,
                        () = following.late.notified() => break StoreError::new("watching", "it is late"),
                    };
                    match changed {
                        Err(error) => break error,
                        Ok(changed) if self.take_others(&changed) => {
                            position = changed.position;
                            attempts = Attempts::default();
                        }
                        Ok(_) => {
                            following.go_astray();
                            break StoreError::new("watching", "what others changed does not fit")
                                .with(Known::Forgotten);
                        }
                    }
                },
            };
            tracing::debug!(database = I::NAME, %error, "the watch is begun anew");
            if error.known == Known::Forgotten {
                following.is_astray.store(true, Ordering::Relaxed);
            } else {
                sleep(PAUSE).await;
            }
        }
    }

    /// Removes what processes left behind that have ended long ago, once.
    async fn sweep(self: Arc<Self>) {
        let store = self.store();
        let Ok(page) = store.scan(&writers(I::PREFIX), None, LOAD_ROWS, None).await else { return };
        let made = |row: &[u8]| row.last_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let newest = page.rows.iter().map(|(_, row)| made(row)).max().unwrap_or(0);
        let old = page.rows.into_iter().filter(|(_, row)| made(row).saturating_add(WRITER_LIFE) < newest);
        for (key, row) in old {
            let changes = vec![(key.clone(), None)];
            // What cannot be removed now is removed by the next process.
            let _ =
                store.commit(Transaction { expected: vec![(key, Some(row))], changes, witness: None }).await;
        }
    }
}

/// Attempts to read a database anew since the last change that fitted to the image.
#[derive(Debug, Default)]
struct Attempts {
    pause: Duration,
    /// Why the last one failed that was told of.
    told: Option<OpenError>,
}

impl Attempts {
    /// How long to wait before the next one. The first one is made at once.
    fn pause(&mut self) -> Duration {
        let next = (self.pause * 2).clamp(PAUSE, LONGEST_PAUSE);
        std::mem::replace(&mut self.pause, next)
    }

    /// Whether this error was not the last one that was told.
    fn is_news(&mut self, error: &OpenError) -> bool {
        let is_news = self.told.as_ref() != Some(error);
        self.told = Some(error.clone());
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_cannot_be_read_anew_is_tried_ever_less_often_and_told_of_once() {
        let mut attempts = Attempts::default();
        let pauses: Vec<_> = (0..10).map(|_| attempts.pause().as_millis()).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        let unfinished = OpenError::Unfinished { database: "VLDB" };
        assert!(attempts.is_news(&unfinished) && !attempts.is_news(&unfinished));
        let other = OpenError::Unfinished { database: "PTDB" };
        assert!(attempts.is_news(&other) && attempts.is_news(&unfinished));
    }
}
