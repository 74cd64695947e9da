//! Following: how an image keeps up with a store that other machines change too.
//!
//! One task watches the store and gives the image what others have changed. Another one asks the store, whenever a look-up
//! wants to know, which revision is the newest (a *round*), and waits until the image has it (both are in `follower.rs`). What a round has
//! found out counts for [`FRESH_FOR`] from the moment at which it began, and a server that makes a change waits so
//! long before it tells the caller. So a look-up that begins after that sees the change, on any machine: either its
//! image was confirmed after the change was made, or it waits for a round. Only the length of that time has to
//! be the same on all machines, not what their clocks show.
//!
//! While the store does not answer, look-ups are answered from memory, each after a question of its own: nobody can have been
//! told of a change meanwhile that the store did not make. Once the store is known to be silent, such a question gets [`GLANCE`] only, and
//! changes are refused at once. This ends after a limit. If the store answers, and the image lacks what it tells of, nobody is told
//! anything.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::mirror::Mirror;
use super::revision::{Revision, Stamp};
use super::{ChangeError, Image, Options};
use crate::serving::yield_once;
use crate::store::{Known, StoreError};

/// For how long an image counts as current after it was found to be so; so long does each change take longer. A database that is
/// looked at all the time has a round in half of this, 100 a second, which cost etcd some per cent of a core.
pub(crate) const FRESH_FOR: Duration = Duration::from_millis(20);

/// How long a look-up waits for its own question once the store is known to be silent: some times what an answer takes, and less than
/// users notice. It matters in the moment at which the store is there again, of which another server may have heard first.
const GLANCE: Duration = Duration::from_millis(50);

/// For how long the store counts as silent after it was last seen to be: some times what lies between two looks. A process that was
/// stopped for longer knows nothing when it goes on.
pub(super) const SILENCE: Duration = Duration::from_millis(300);

/// How long a conflict waits for the change that was faster. Whoever has waited in vain tries again.
const CONFLICT_TIMEOUT: Duration = Duration::from_secs(1);

/// Nobody knows what the store has, and what is in memory is too old, or known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoQuorum;

impl fmt::Display for NoQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the store of the cell's databases has not answered for longer than look-ups may do without, or has what is not in memory yet",
        )
    }
}

impl std::error::Error for NoQuorum {}

/// The state of an image that keeps up with its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// The time since the image was known to have everything.
    pub age: Duration,
    /// True if the store answered when it was asked last.
    pub has_quorum: bool,
    /// The machines of the store.
    pub machines: usize,
    /// Look-ups that were answered although the store did not.
    pub from_memory: u64,
    /// Changes that had to be made anew since another machine was faster.
    pub conflicts: u64,
    /// The number of times that everything was read anew.
    pub reloads: u64,
}

/// The state through which the tasks and the database's users tell each other things.
#[derive(Debug)]
pub(super) struct Following {
    options: Options,
    rounds: watch::Sender<Rounds>,
    /// Asks for a round.
    pub(super) wanted: Notify,
    /// The revision of the image.
    pub(super) revision: watch::Sender<Revision>,
    /// Asks for a watch at another machine.
    pub(super) late: Notify,
    /// True if the image and the store have gone different ways, so that everything is to be read anew.
    pub(super) is_astray: AtomicBool,
    /// True if somebody moves the database in, as far as this one has seen; then it cannot be read anew.
    is_filled: AtomicBool,
    /// Tells that nobody does any more.
    pub(super) whole: Notify,
    from_memory: AtomicU64,
    conflicts: AtomicU64,
    reloads: AtomicU64,
}

/// The reason why a round did not confirm the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The store did not answer.
    Silent,
    /// Somebody moves the database in. Nobody else can change it meanwhile.
    Filled,
    /// The store answered, and the image has not got what it told of.
    Behind,
}

impl Doubt {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Silent => "etcd has no leader, or cannot be reached",
            Self::Filled => "an 'afar import' or 'afar celldb copy' fills the database",
            Self::Behind => "this server has not read yet what others have changed",
        }
    }
}

/// When rounds began.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    /// The last one that found the image to be current.
    confirmed: Instant,
    /// The last one that did not; unless a later one was confirmed.
    failed: Option<Failed>,
}

/// A round that did not confirm the image.
#[derive(Clone, Copy, Debug)]
struct Failed {
    begun: Instant,
    doubt: Doubt,
    /// True if the image is known to be old: it stays so when the store falls silent after that.
    is_behind: bool,
    /// When the first of the questions began that have had no answer since, if it is that; and when this was last seen to be so.
    silent: Option<(Instant, Instant)>,
}

impl Failed {
    /// True if the store is known to be silent now.
    fn is_silence(self) -> bool {
        self.silent.is_some_and(|(_, seen)| seen.elapsed() < SILENCE)
    }
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
            is_filled: AtomicBool::new(false),
            whole: Notify::new(),
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
        let is_too_old = || self.rounds.borrow().confirmed.elapsed() > self.options.memory_limit;
        let glance = if is_too_old() { Duration::ZERO } else { GLANCE };
        match self.confirm(glance).await {
            Ok(()) => Ok(()),
            // What is in memory is known to be old.
            Err(Doubt::Behind) => Err(NoQuorum),
            Err(Doubt::Silent | Doubt::Filled) if is_too_old() => Err(NoQuorum),
            Err(Doubt::Silent | Doubt::Filled) => {
                self.from_memory.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// The same for a change, which cannot do without.
    pub(super) async fn can_change(&self) -> Result<(), ChangeError> {
        self.confirm(Duration::ZERO).await.map_err(refusal)
    }

    /// Whether the image has all that was told of before now. While the store is known to be silent, a new question gets so much time.
    async fn confirm(&self, glance: Duration) -> Result<(), Doubt> {
        let now = Instant::now();
        let is_recent = |confirmed: Instant| confirmed + FRESH_FOR >= now;
        let confirmed = self.rounds.borrow().confirmed;
        if is_recent(confirmed) {
            if confirmed + FRESH_FOR / 2 < now {
                self.wanted.notify_one();
            }
            return Ok(());
        }
        // From here on it takes a while, which it must not on the thread that brings the calls.
        yield_once().await;
        let mut rounds = self.rounds.subscribe();
        self.wanted.notify_one();
        let mut until = None;
        loop {
            let Rounds { confirmed, failed } = *rounds.borrow_and_update();
            if is_recent(confirmed) {
                return Ok(());
            }
            let silence =
                if failed.is_some_and(|failed| failed.is_behind) { Doubt::Behind } else { Doubt::Silent };
            if let Some(failed) = failed.filter(|failed| failed.begun >= now) {
                return Err(if failed.doubt == Doubt::Silent { silence } else { failed.doubt });
            }
            // The sender is `self`.
            if failed.is_some_and(Failed::is_silence) {
                let until = *until.get_or_insert_with(|| Instant::now() + glance);
                if Instant::now() >= until {
                    return Err(silence);
                }
                let _ = timeout_at(until, rounds.changed()).await;
            } else if rounds.changed().await.is_err() {
                return Err(silence);
            }
        }
    }

    /// A round that began then has confirmed the image. Whether the last one did not.
    pub(super) fn confirmed(&self, begun: Instant) -> bool {
        self.rounds.send_replace(Rounds { confirmed: begun, failed: None }).failed.is_some()
    }

    /// A round that began then has not confirmed the image. Whether it is the first one.
    pub(super) fn failed(&self, begun: Instant, doubt: Doubt) -> bool {
        let mut is_first = false;
        self.rounds.send_modify(|rounds| {
            is_first = rounds.failed.is_none();
            let since = rounds.failed.and_then(|failed| failed.silent).map_or(begun, |(since, _)| since);
            let silent = (doubt == Doubt::Silent).then(|| (since, Instant::now()));
            let last = rounds.failed.map_or(begun, |failed| failed.begun);
            let was_behind = rounds.failed.is_some_and(|failed| failed.is_behind);
            let is_behind = doubt == Doubt::Behind || doubt == Doubt::Silent && was_behind;
            rounds.failed = Some(Failed { begun: begun.max(last), doubt, is_behind, silent });
        });
        is_first
    }

    /// The store still has not answered.
    pub(super) fn still_silent(&self) {
        self.rounds.send_if_modified(|rounds| {
            if let Some((_, seen)) = rounds.failed.as_mut().and_then(|failed| failed.silent.as_mut()) {
                *seen = Instant::now();
            }
            // Nobody waits for this.
            false
        });
    }

    /// The store may answer: it is not known to be silent any more.
    pub(super) fn may_answer(&self) {
        self.rounds.send_modify(|rounds| {
            if let Some(failed) = &mut rounds.failed {
                failed.silent = None;
            }
        });
    }

    /// Waits until the store has been silent for so long.
    pub(super) async fn silence(&self, length: Duration) {
        let mut rounds = self.rounds.subscribe();
        loop {
            let silent = rounds.borrow_and_update().failed.and_then(|failed| failed.silent);
            let change = rounds.changed();
            match silent {
                // The sender is `self`.
                Some((since, _)) => {
                    if timeout_at(since + length, change).await.is_err() {
                        return;
                    }
                }
                None => drop(change.await),
            }
        }
    }

    /// True if somebody moves the database in.
    pub(super) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Relaxed)
    }

    /// Somebody moves the database in.
    pub(super) fn fills(&self) {
        self.is_filled.store(true, Ordering::Relaxed);
        // The round that waits for the image looks at it.
        self.revision.send_modify(|_| ());
    }

    /// Nobody moves the database in any more: it is to be read anew, and what is in memory is old.
    pub(super) fn made_whole(&self) {
        self.is_filled.store(false, Ordering::Relaxed);
        self.whole.notify_one();
    }

    /// The image was read anew.
    pub(super) fn reloaded<I: Image>(&self, mirror: &Mirror<I>) {
        self.reloads.fetch_add(1, Ordering::Relaxed);
        // First: a round that finds the image where it was has it read anew once more.
        self.moved(mirror);
        self.is_astray.store(false, Ordering::Relaxed);
        self.is_filled.store(false, Ordering::Relaxed);
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
        if timeout(CONFLICT_TIMEOUT, moves).await.is_err() {
            self.late.notify_one();
        }
    }

    pub(super) fn go_astray(&self) {
        self.is_astray.store(true, Ordering::Relaxed);
        self.late.notify_one();
    }
}

/// The error with which changes are refused while rounds do not confirm the image.
pub(super) fn refusal(doubt: Doubt) -> ChangeError {
    StoreError::new("changing the cell's databases", doubt.reason()).with(Known::NotDone).into()
}
