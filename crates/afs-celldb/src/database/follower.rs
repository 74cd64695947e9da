//! The tasks that keep an image up to date with a store that other machines change too, and find out how current it is (see
//! `following.rs`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::batch::Writer;
use super::following::{Doubt, FRESH_FOR, Following, SILENCE};
use super::mirror::{LOAD_ROWS, Mirror};
use super::revision::{REVISION, Revision, writers};
use super::{FILLING, Image, OpenError, key};
use crate::store::{Changed, Changes, Known, Position, SharedStore, StoreError, Transaction};

/// How long an answer to a question may take, and then how long until the image has what it tells of. Look-ups wait for it until the store
/// is known to be silent, so it is what users hardly notice; a new leader takes longer, and is found by the next questions.
const ROUND: Duration = Duration::from_secs(1);

/// How often there is a round without a look-up, for the metrics and to find out that the store is there again; and while it is silent.
const HEARTBEAT: Duration = Duration::from_millis(500);
const SILENT_HEARTBEAT: Duration = Duration::from_millis(100);

/// The pause between two questions to a silent store, so that at most 50 wait for an answer.
const GAP: Duration = FRESH_FOR;

/// How long a change that is known to be made may take to arrive, before the watch is begun anew at another machine: twice as long each
/// time that this has brought nothing, up to the longest, as what comes first may be many changes over a slow link.
const WATCH_TIMEOUT: Duration = Duration::from_millis(250);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause between two attempts to watch a store that fails, or to read it anew; the second time in a row twice as long, and so on to the
/// longest, as each attempt to read anew may read all rows.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// After so many seconds what a process left that made changes is removed: longer than any of its transactions can be under way.
const WRITER_LIFE: u32 = 86_400;

/// The tasks that keep an image up to date with a store that others change too.
#[derive(Debug)]
pub(super) struct Follower<I> {
    mirror: Arc<Mirror<I>>,
    /// Held while everything is read anew.
    writer: Arc<Mutex<Writer>>,
    following: Arc<Following>,
    /// How long the image has been at a revision that is known to be old.
    behind: std::sync::Mutex<Behind>,
}

/// An image that waits for the watch to move it on.
#[derive(Debug)]
struct Behind {
    at: Revision,
    /// The time when the watch is begun anew.
    until: Option<Instant>,
    patience: Duration,
}

impl<I: Image> Follower<I> {
    pub(super) fn new(mirror: Arc<Mirror<I>>, writer: Arc<Mutex<Writer>>, following: Arc<Following>) -> Self {
        let behind = Behind { at: mirror.revision(), until: None, patience: WATCH_TIMEOUT };
        Self { mirror, writer, following, behind: std::sync::Mutex::new(behind) }
    }

    /// The time until which the watch may take to move the image on from a revision; `again` if that was over.
    fn patience(&self, at: Revision, again: bool) -> Instant {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        if again {
            behind.patience = (2 * behind.patience).min(LONGEST_TIMEOUT);
        }
        let patience = behind.patience;
        if again || behind.at != at {
            (behind.at, behind.until) = (at, None);
        }
        *behind.until.get_or_insert_with(|| Instant::now() + patience)
    }

    /// The image is current.
    fn caught_up(&self) {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        (behind.until, behind.patience) = (None, WATCH_TIMEOUT);
    }

    /// Starts the tasks, for an image of this moment.
    pub(super) fn start(self, position: Position) -> Vec<AbortHandle> {
        let told = Told { position, revision: self.mirror.revision() };
        let follower = Arc::new(self);
        let rounds = tokio::spawn(Arc::clone(&follower).ask());
        let watch = tokio::spawn(Arc::clone(&follower).listen(told));
        let sweep = tokio::spawn(follower.sweep());
        [rounds, watch, sweep].iter().map(tokio::task::JoinHandle::abort_handle).collect()
    }

    fn store(&self) -> &dyn SharedStore {
        self.mirror.store.shared().expect("only such a store is followed")
    }

    /// Asks what the newest revision is.
    async fn question(self: Arc<Self>) -> Question {
        let (begun, before) = (Instant::now(), self.mirror.revision());
        let row = key::<I>(REVISION);
        let answer = timeout(ROUND, self.store().read(&row)).await.unwrap_or_else(|_| {
            let why = format!("there was no answer within {ROUND:?}");
            Err(StoreError::new(asking::<I>(), why))
        });
        Question { begun, before, answer }
    }

    /// Waits until the image has what the store answered.
    async fn round(self: &Arc<Self>, mut question: Question) -> Result<(), (Doubt, StoreError)> {
        let following = &self.following;
        let behind = |error: &dyn std::fmt::Display| (Doubt::Behind, StoreError::new(asking::<I>(), error));
        let mut revision = following.revision.subscribe();
        loop {
            let Question { before, answer, .. } = &question;
            let newest = match answer {
                Ok(Some(row)) => Revision::from_row(row).map_err(|error| behind(&error))?,
                Ok(None) => Revision::default(),
                Err(error) => return Err((Doubt::Silent, error.clone())),
            };
            let now = *revision.borrow_and_update();
            // It may be ahead of what was read, but only by what was changed since.
            if now == newest || before.is_behind(now) && newest.is_behind(now) && !newest.is_behind(*before) {
                self.caught_up();
                return Ok(());
            }
            if following.is_filled() {
                let mark = self.store().read(&key::<I>(FILLING)).await;
                if mark.map_err(|error| (Doubt::Silent, error))?.is_some() {
                    let why = Doubt::Filled.reason();
                    return Err((Doubt::Filled, StoreError::new(asking::<I>(), why)));
                }
                tracing::warn!(
                    database = I::NAME,
                    "the database is whole again: look-ups are refused until it is read"
                );
                following.made_whole();
            } else if now.is_behind(newest) {
                if timeout_at(self.patience(now, false), revision.changed()).await.is_err() {
                    following.late.notify_one();
                    self.patience(now, true);
                }
                continue;
            } else {
                following.go_astray();
            }
            // It is read anew, and what was asked before that says nothing about it.
            if let Err(error) = revision.changed().await {
                return Err(behind(&error));
            }
            question = Arc::clone(self).question().await;
        }
    }

    /// Takes what others have changed; whether that fits to the image. `told` becomes the revision that the last of these changes made.
    fn take_others(&self, changed: &Changed, told: &mut Revision) -> bool {
        for rows in &changed.transactions {
            let own = |row: &(Vec<u8>, _)| row.0[I::PREFIX.len()..].to_vec();
            if rows.iter().any(|row| own(row) == FILLING) {
                return false;
            }
            let marks = rows.iter().filter(|row| own(row) == REVISION).filter_map(|row| row.1.as_deref());
            let Some(Ok(to)) = marks.map(Revision::from_row).next_back() else { return false };
            *told = to;
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
    async fn reload(&self) -> Result<Told, OpenError> {
        let following = &self.following;
        // Nobody changes the image meanwhile: the watch is the caller.
        let writer = self.writer.lock().await;
        let position = self.mirror.reload(&writer).await?;
        let told = Told { position, revision: self.mirror.revision() };
        following.reloaded(&self.mirror);
        self.caught_up();
        tracing::info!(database = I::NAME, "the database was read anew");
        Ok(told)
    }

    /// Makes the rounds.
    async fn ask(self: Arc<Self>) {
        let following = &self.following;
        loop {
            // Without a look-up there is one all the same.
            let _ = timeout(HEARTBEAT, following.wanted.notified()).await;
            let mut question = Arc::clone(&self).question().await;
            if let Err(error) = &question.answer {
                self.failed(question.begun, Doubt::Silent, error);
                let answered = self.wait_for_answer(question.begun).await;
                // A look-up may have asked a later one, which is given up now.
                following.wanted.notify_one();
                match answered {
                    Some(answered) => question = answered,
                    None => continue,
                }
            }
            let begun = question.begun;
            let result = timeout(ROUND, self.round(question)).await.unwrap_or_else(|_| {
                let why = format!("what is there has not arrived within {ROUND:?}");
                // While somebody fills it, it may be the mark that was not told.
                let doubt = if following.is_filled() { Doubt::Filled } else { Doubt::Behind };
                Err((doubt, StoreError::new(asking::<I>(), why)))
            });
            match result {
                Ok(()) if following.confirmed(begun) => {
                    tracing::info!(database = I::NAME, "etcd answers again");
                }
                Ok(()) => {}
                Err((doubt, error)) => {
                    self.failed(begun, doubt, &error);
                    following.may_answer();
                }
            }
        }
    }

    /// A round has failed.
    fn failed(&self, begun: Instant, doubt: Doubt, error: &StoreError) {
        if self.following.failed(begun, doubt) {
            let what = match doubt {
                Doubt::Silent | Doubt::Filled => "look-ups are answered from memory, changes are refused",
                Doubt::Behind => "look-ups and changes are refused",
            };
            tracing::warn!(database = I::NAME, %error, "{what}");
        }
    }

    /// Asks a silent store again and again, without waiting for the answers to earlier questions, until there is one. `None` if this was
    /// stopped meanwhile, so that the store may have answered long ago.
    async fn wait_for_answer(self: &Arc<Self>, begun: Instant) -> Option<Question> {
        let following = &self.following;
        // A question that fails at once leaves no time in which this may have been stopped.
        let (mut seen, mut asked) = ((begun + ROUND).min(Instant::now()), begun);
        let mut questions = JoinSet::new();
        let answered = loop {
            let now = Instant::now();
            if now > seen + SILENCE {
                break None;
            }
            seen = now.max(seen);
            following.still_silent();
            let next = async {
                sleep_until(asked + GAP).await;
                let _ = timeout_at(asked + SILENT_HEARTBEAT, following.wanted.notified()).await;
            };
            tokio::select! {
                biased;
                Some(answered) = questions.join_next() => {
                    let question: Question = answered.expect("a question does not panic");
                    match &question.answer {
                        Ok(_) => break Some(question),
                        Err(error) => self.failed(question.begun, Doubt::Silent, error),
                    }
                }
                () = next => {
                    asked = Instant::now();
                    questions.spawn(Arc::clone(self).question());
                }
            }
        };
        following.may_answer();
        answered
    }

    /// Begins a watch, if the history that the store has now leads to the image: etcd may have been restored from a snapshot and changed
    /// since. Then the first change behind this position may count as the next one, although its predecessors are others than the image's.
    async fn watch(&self, told: Told) -> Result<Box<dyn Changes + '_>, StoreError> {
        let (store, row) = (self.store(), key::<I>(REVISION));
        let changes = store.watch(I::PREFIX, told.position).await?;
        // Only now: if the store is restored after this look, the watch ends. No two transactions give the row the same value, so if it
        // was the same at that moment, all before it was too.
        let page = tokio::select! {
            page = store.scan(&row, None, 1, Some(told.position)) => page?,
            () = self.following.late.notified() => return Err(StoreError::new("watching", "it is late")),
        };
        if page.rows.first().map(|(_, row)| row) != told.revision.to_row().as_ref() {
            return Err(StoreError::new("watching", "etcd has another history").with(Known::Forgotten));
        }
        Ok(changes)
    }

    /// Gives the image what others change.
    async fn listen(self: Arc<Self>, mut told: Told) {
        let following = &self.following;
        let mut attempts = Attempts::default();
        loop {
            if following.is_astray.load(Ordering::Relaxed) {
                let _ = timeout(attempts.pause(), following.whole.notified()).await;
                match self.reload().await {
                    Ok(read) => told = read,
                    Err(error) => {
                        let is_filled = matches!(error, OpenError::Unfinished { .. });
                        if is_filled {
                            following.fills();
                        }
                        match attempts.is_news(&error) {
                            true if is_filled => tracing::warn!(
                                database = I::NAME,
                                "{}: it is read anew when that is done",
                                Doubt::Filled.reason()
                            ),
                            true => {
                                tracing::warn!(database = I::NAME, %error, "the database cannot be read anew yet");
                            }
                            false => {}
                        }
                        continue;
                    }
                }
            }
            let error = match self.watch(told).await {
                Err(error) => error,
                Ok(mut changes) => loop {
                    let changed = tokio::select! {
                        changed = changes.next() => changed,
                        () = following.late.notified() => break StoreError::new("watching", "it is late"),
                    };
                    match changed {
                        Err(error) => break error,
                        Ok(changed) if self.take_others(&changed, &mut told.revision) => {
                            told.position = changed.position;
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

/// How far the store has told what was changed. The image may be ahead of it, by this server's own changes.
#[derive(Clone, Copy, Debug)]
struct Told {
    position: Position,
    /// The revision of the database at that moment.
    revision: Revision,
}

/// A question for the newest revision.
#[derive(Debug)]
struct Question {
    begun: Instant,
    /// The revision of the image at that moment.
    before: Revision,
    /// The row of the newest.
    answer: Result<Option<Vec<u8>>, StoreError>,
}

fn asking<I: Image>() -> String {
    format!("asking for the revision of the {}", I::NAME)
}

/// Attempts to read a database anew since the last change that fitted to the image.
#[derive(Debug, Default)]
struct Attempts {
    pause: Duration,
    /// The reason of the last failure that was told of.
    told: Option<OpenError>,
}

impl Attempts {
    /// How long to wait before the next one. The first one is made at once.
    fn pause(&mut self) -> Duration {
        let next = (self.pause * 2).clamp(PAUSE, LONGEST_PAUSE);
        std::mem::replace(&mut self.pause, next)
    }

    /// True if this error was not the last one that was told.
    fn is_news(&mut self, error: &OpenError) -> bool {
        let is_news = self.told.as_ref() != Some(error);
        self.told = Some(error.clone());
        is_news
    }
}

#[cfg(test)]
mod tests;
