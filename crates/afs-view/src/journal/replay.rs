//! Sending what was changed here: a few tasks take the changes that may be sent ([`super::order`]), make the call of each, and note its answer. What
//! cannot be sent now is tried again; what is refused is given up: the log tells it, what was written is put aside, and programs see again what
//! the server has.
//!
//! **An answer that was lost.** Nobody knows then whether the change was carried out; nor after a start, of what the last run has left. It is sent
//! again, and where the server says that it is so already, the client looks whether it is as its own attempt would have left it.

mod answers;
mod left;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use afs_cache::{Change, FileKey, NewKind, What};
use afs_wire::ids::{AfsTime, VolumeId};
use rx_proto::time::Instant;

use super::{Entry, Journal, SENT_AT_ONCE, Senders, State, order};
use crate::data::files::{Files, local, lock};
use crate::data::write::noted;
use crate::events::Change as Told;
use crate::names::directory::Directories;
use crate::vnodes::attributes::Statuses;
use crate::vnodes::table::Vnodes;
use crate::vnodes::vnode::{Effect, Vnode};
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, User};
use afs_reach::location::Queue;
use afs_reach::remote::Calls;
use afs_reach::wait::either;

/// The pause before a change is sent again, at first and at most; a server that answers again, or another token, cuts it short.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Sends the changes of a journal.
#[derive(Debug)]
pub struct Replay {
    /// The changes.
    pub journal: Arc<Journal>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) vnodes: Arc<Vnodes>,
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) directories: Arc<Directories>,
    pub(crate) files: Arc<Files>,
}

/// A change that is being sent.
#[derive(Debug, Clone)]
struct Sending {
    number: u64,
    change: Change<Fid>,
    user: User,
    may_be_done: bool,
}

/// What a change is about.
fn subject(change: &Change<Fid>) -> Fid {
    match &change.what {
        What::Make { made, .. } => *made,
        What::Link { of, .. }
        | What::Remove { of, .. }
        | What::Rename { of, .. }
        | What::Set { of, .. }
        | What::Sync { of } => *of,
    }
}

/// What could not be done, and what there is to keep of it: the target of a link. `None` of what changes nothing.
fn in_words(change: &Change<Fid>) -> Option<(String, &[u8])> {
    let name = |place: &afs_cache::Place<Fid>| format!("{:?}", String::from_utf8_lossy(&place.name));
    let what = match &change.what {
        What::Make { place, kind: NewKind::Symlink(target), .. } => {
            return Some((format!("{} could not be made", name(place)), target));
        }
        What::Make { place, .. } => format!("{} could not be made", name(place)),
        What::Link { place, .. } => format!("{} could not be made as another name of a file", name(place)),
        What::Remove { place, .. } => format!("{} could not be removed", name(place)),
        What::Rename { from, to, .. } => format!("{} could not be renamed to {}", name(from), name(to)),
        What::Set { .. } => "mode or time of modification could not be set".to_owned(),
        What::Sync { .. } => return None,
    };
    Some((what, &[]))
}

/// The effects of a change, by the vnodes that show them.
pub(crate) fn effects(change: &Change<Fid>) -> Vec<(Fid, Vec<Effect>)> {
    let named = |place: &afs_cache::Place<Fid>, fid: Fid, replaced: Option<Fid>| Effect::Name {
        name: place.name.clone(),
        fid: fid.in_volume(),
        replaced: replaced.map(Fid::in_volume),
    };
    let unnamed = |place: &afs_cache::Place<Fid>, fid: Fid| Effect::NoName {
        name: place.name.clone(),
        fid: fid.in_volume(),
    };
    match &change.what {
        What::Make { place, made, .. } => vec![(place.dir, vec![named(place, *made, None)])],
        What::Link { place, of } => {
            vec![(place.dir, vec![named(place, *of, None)]), (*of, vec![Effect::Links(1)])]
        }
        What::Remove { place, of, is_last } => {
            let mut all = vec![(place.dir, vec![unnamed(place, *of)])];
            if !is_last {
                all.push((*of, vec![Effect::Links(-1)]));
            }
            all
        }
        What::Rename { from, to, of, replaced, .. } => {
            let (gone, there) = (unnamed(from, *of), named(to, *of, *replaced));
            match from.dir == to.dir {
                true => vec![(from.dir, vec![gone, there])],
                false => vec![(from.dir, vec![gone]), (to.dir, vec![there])],
            }
        }
        What::Set { of, mode, modified } => {
            vec![(*of, vec![Effect::Attributes { mode: *mode, modified: modified.map(AfsTime) }])]
        }
        What::Sync { .. } => Vec::new(),
    }
}

impl Journal {
    /// The next change for a task that sends those of this queue, which ends if there is none.
    fn next(&self, queue: Queue, queue_of: impl Fn(CellIndex, VolumeId) -> Queue) -> Option<Sending> {
        let mut state = lock(&self.state);
        let State { order, senders, .. } = &mut *state;
        let senders = senders.entry(queue).or_insert_with(|| Senders::new(SENT_AT_ONCE));
        let next = match self.pause.is_on() || !senders.may_go_on() {
            true => None,
            false => order.next(|cell, volume| queue_of(cell, volume) == queue),
        };
        let Some(number) = next else {
            senders.end_one();
            return None;
        };
        let entry = &state.entries[&number];
        let (change, user, may_be_done) = (entry.change.clone(), entry.user, entry.may_be_done);
        Some(Sending { number, change, user, may_be_done })
    }

    /// Counts tasks that are to be started for what may be sent, and tells the queue of each.
    fn start_senders(&self, queue_of: impl Fn(CellIndex, VolumeId) -> Queue) -> Vec<Queue> {
        if self.pause.is_on() {
            return Vec::new();
        }
        let mut state = lock(&self.state);
        let State { order, senders, .. } = &mut *state;
        let mut started = Vec::new();
        for ((cell, volume), ready) in order.ready() {
            let queue = queue_of(cell, volume);
            let more = senders.entry(queue).or_insert_with(|| Senders::new(SENT_AT_ONCE)).start(ready);
            started.extend(std::iter::repeat_n(queue, more));
        }
        started
    }

    /// A change was sent, and this has come of it after this time.
    fn note_took(
        &self,
        queue: Queue,
        now: Instant,
        took: Duration,
        what: &What<Fid>,
        outcome: &Result<(), Error>,
    ) {
        let mut state = lock(&self.state);
        let Some(Senders { window, .. }) = state.senders.get_mut(&queue) else { return };
        match (outcome, what) {
            (Err(Error::Busy { .. }), _) => window.note_busy(),
            // The others wait for data to be stored.
            (Ok(()), What::Make { .. } | What::Link { .. } | What::Remove { .. } | What::Set { .. }) => {
                window.note_answer(now, took);
            }
            _ => {}
        }
    }

    fn done(&self, number: u64) {
        let mut state = lock(&self.state);
        state.order.done(number);
        if let Some(Entry { change: Change { what: What::Sync { of }, .. }, .. }) =
            state.entries.remove(&number)
            && let Some(syncs) = state.syncs.get_mut(&(of.cell, of.volume))
        {
            syncs.remove(&number);
            if syncs.is_empty() {
                state.syncs.remove(&(of.cell, of.volume));
            }
        }
        drop(state);
        self.settled.notify_waiters();
    }

    fn note_ambiguous(&self, number: u64) {
        if let Some(entry) = lock(&self.state).entries.get_mut(&number) {
            entry.may_be_done = true;
        }
    }

    /// An attempt has failed, and there is to be another one. True if nobody sees to that yet.
    fn stall(&self, number: u64, error: &Error) -> bool {
        let mut state = lock(&self.state);
        state.failures += 1;
        let failures = state.failures;
        if let Some(Entry { failure, .. }) = state.entries.get_mut(&number) {
            *failure = Some((failures, error.clone()));
            state.stalled.insert(number);
        }
        let is_first = !std::mem::replace(&mut state.is_retrying, true);
        drop(state);
        self.settled.notify_waiters();
        is_first
    }

    /// Has all that has failed sent again. False if there is nothing.
    fn send_stalled(&self) -> bool {
        let mut state = lock(&self.state);
        let stalled = std::mem::take(&mut state.stalled);
        for number in &stalled {
            state.order.again(*number);
        }
        state.is_retrying = !stalled.is_empty();
        state.is_retrying
    }

    /// Changes the mode and time of something that is to be made and was not sent yet, and has that kept. False if it was sent.
    fn amend_new(
        &self,
        fid: Fid,
        (mode, modified): (Option<u32>, Option<u32>),
        keep: impl FnOnce(u64, &Change<Fid>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut state = lock(&self.state);
        let users = state.order.users(&super::Thing::Vnode(fid));
        let &[number] = &*users else { return Ok(false) };
        if state.order.is_sent(number) {
            return Ok(false);
        }
        let Some(entry) = state.entries.get_mut(&number).filter(|entry| !entry.may_be_done) else {
            return Ok(false);
        };
        match &mut entry.change.what {
            What::Make { made, mode: own_mode, modified: own_modified, .. } if *made == fid => {
                *own_mode = mode.unwrap_or(*own_mode);
                *own_modified = modified.unwrap_or(*own_modified);
            }
            _ => return Ok(false),
        }
        // While nobody can send it: a row that is kept after it was sent would be sent twice.
        keep(number, &entry.change)?;
        Ok(true)
    }
}

impl Replay {
    fn in_cache(&self, change: &Change<Fid>) -> Result<Change<FileKey>, Error> {
        let mut problem = None;
        let kept = change.clone().map(|fid| self.files.key(fid).map_err(|error| problem = Some(error)).ok());
        kept.ok_or_else(|| problem.unwrap_or(Error::Closing))
    }

    /// Keeps a change that was made here, shows it, and has it sent soon.
    ///
    /// # Errors
    ///
    /// The cache's; then nothing is changed.
    pub(crate) fn record(self: &Arc<Self>, user: User, change: Change<Fid>) -> Result<(), Error> {
        let number = self.journal.next_number();
        self.files.cache.keep_change(number, &self.in_cache(&change)?).map_err(local)?;
        self.show(number, &change);
        self.journal.add(number, change, user, false);
        self.start();
        Ok(())
    }

    /// Sets attributes of something that is to be made and was not sent yet. False if it was sent.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub(crate) fn amend_new(
        &self,
        fid: Fid,
        attributes: (Option<u32>, Option<u32>),
        time: AfsTime,
    ) -> Result<bool, Error> {
        self.journal.amend_new(fid, attributes, |number, change| {
            self.files.cache.keep_change(number, &self.in_cache(change)?).map_err(local)?;
            let (mode, modified) = (attributes.0, attributes.1.map(AfsTime));
            let vnode = self.vnodes.get_or_add(fid);
            vnode.note_made_here(number, time, vec![Effect::Attributes { mode, modified }]);
            vnode.end_made_here(number);
            Ok(())
        })
    }

    /// Forgets changes of something that no server has heard of.
    pub(crate) fn forget(&self, fid: Fid, changes: &[u64]) -> Result<(), Error> {
        self.vnodes.local_ids.note_never(fid, Error::Gone { fid });
        self.files.cache.end_changes(changes, None).map_err(local)
    }

    fn show(&self, number: u64, change: &Change<Fid>) {
        for (fid, effects) in effects(change) {
            self.vnodes.get_or_add(fid).note_made_here(number, AfsTime(change.time), effects);
        }
    }

    /// Has what waits not be sent until this is taken back or the client ends, but for what somebody waits for.
    pub fn set_paused(self: &Arc<Self>, is_paused: bool) {
        if self.journal.pause.set(is_paused) || !is_paused {
            // Who looks after it since it was set does the rest.
            return;
        }
        let me = Arc::downgrade(self);
        let pause = Arc::clone(&self.journal.pause);
        self.calls.runtime.spawn(Box::pin(async move {
            loop {
                let mut changes = pin!(pause.changes());
                changes.as_mut().enable();
                let is_over = !pause.is_set();
                if !pause.is_on() {
                    let Some(replay) = me.upgrade() else { return };
                    replay.start();
                    replay.files.start_storing();
                    // What waits for its next attempt need not wait.
                    replay.calls.servers.back.notify_waiters();
                }
                if is_over {
                    return;
                }
                changes.await;
            }
        }));
    }

    fn start(self: &Arc<Self>) {
        let locations = &self.calls.locations;
        for queue in self.journal.start_senders(|cell, volume| locations.queue_of(cell, volume)) {
            let me = Arc::downgrade(self);
            self.calls.runtime.spawn(Box::pin(Self::send_while_there_are(me, queue)));
        }
    }

    async fn send_while_there_are(me: Weak<Self>, queue: Queue) {
        while let Some(replay) = me.upgrade() {
            let locations = &replay.calls.locations;
            let next = replay.journal.next(queue, |cell, volume| locations.queue_of(cell, volume));
            let Some(sending) = next else { return };
            let began = replay.calls.runtime.now();
            let outcome = replay.send(&sending).await;
            let now = replay.calls.runtime.now();
            replay.journal.note_took(queue, now, now.since(began), &sending.change.what, &outcome);
            replay.note_outcome(&sending, outcome);
            replay.start();
        }
    }

    fn note_outcome(self: &Arc<Self>, sending: &Sending, outcome: Result<(), Error>) {
        let (number, change) = (sending.number, &sending.change);
        let error = match outcome {
            Ok(()) => return self.note_done(sending),
            Err(error) => error,
        };
        if self.may_pass(change, &error) {
            tracing::debug!(number, ?change, %error, "a change is sent again later");
            let about = subject(change);
            self.vnodes.local_ids.note_failures(about.cell, about.volume, &error);
            for (fid, _) in effects(change) {
                self.vnodes.get_or_add(fid).note_doubt();
            }
            if self.journal.stall(number, &error) {
                self.retry();
            }
            return;
        }
        self.give_up(sending, &error);
        self.note_done(sending);
    }

    fn note_done(&self, sending: &Sending) {
        self.journal.done(sending.number);
        if matches!(sending.change.what, What::Sync { .. }) {
            self.files.let_held_go();
        }
    }

    /// True if a change that has failed may succeed later: when servers are back, or when its user has a token again.
    fn may_pass(&self, change: &Change<Fid>, error: &Error) -> bool {
        let (users, cell) = (&self.calls.users, subject(change).cell);
        let waits = || users.waits_for_login(noted(&change.writer), cell);
        match error {
            Error::NoToken { .. } => waits(),
            _ => {
                error.is_passing()
                    || error.is_denied() && users.is_without_token(noted(&change.writer), cell) && waits()
            }
        }
    }

    /// A change will never be at the server: programs see what is there, and what was written is put aside.
    fn give_up(&self, sending: &Sending, error: &Error) {
        let (number, change) = (sending.number, &sending.change);
        tracing::error!(user = change.writer.user, what = ?change.what, why = %error,
            "a change that was made here could not be made at the server and is given up");
        if let Err(error) = self.files.cache.end_changes(&[number], None) {
            tracing::error!(%error, "a change that was given up stays in the cache");
        }
        self.show_anew(change, |vnode| vnode.end_made_here(number));
        if let Some(fid) = order::removed(change) {
            self.files.note_stays(fid);
            self.statuses.invalidations.mention(fid, Told::Vnode);
        }
        let Some((what, data)) = in_words(change) else { return };
        let why = Error::Invalid { what: format!("{what}: {error}") };
        let mut is_kept = false;
        if let What::Make { made, .. } = &change.what {
            self.vnodes.local_ids.note_never(*made, why.clone());
            is_kept = self.files.give_up(*made, &why);
            self.vnodes.remove(*made);
            self.statuses.invalidations.mention(*made, Told::Vnode);
        }
        if !is_kept
            && let Ok(key) = self.files.key(subject(change))
            && let Err(error) =
                self.files.cache.keep_given_up(key, change.writer.user, &why.to_string(), data)
        {
            tracing::error!(%error, "a change that was given up is in the log alone");
        }
    }

    /// Has programs look anew at what a change shows in, once this is done with it.
    fn show_anew(&self, change: &Change<Fid>, end: impl Fn(&Vnode)) {
        let shown: BTreeSet<_> = effects(change).into_iter().map(|(fid, _)| fid).collect();
        for fid in shown {
            let vnode = self.vnodes.get_or_add(fid);
            end(&vnode);
            vnode.forget();
            let told = if fid.vnode.is_directory() { Told::Names } else { Told::Vnode };
            self.statuses.invalidations.mention(fid, told);
        }
    }

    /// Has what has failed sent again until nothing has.
    fn retry(self: &Arc<Self>) {
        let (me, runtime) = (Arc::downgrade(self), Arc::clone(&self.calls.runtime));
        self.calls.runtime.spawn(Box::pin(async move {
            let mut pause = RETRY_FIRST;
            while let Some(replay) = me.upgrade() {
                if replay.calls.closing.has_begun() {
                    return;
                }
                let until = runtime.now() + pause;
                let (back, login) =
                    (replay.calls.servers.back.notified(), replay.calls.users.changed.notified());
                either(runtime.sleep_until(until), either(back, login)).await;
                pause = (pause * 2).min(RETRY_MAX);
                if !replay.journal.send_stalled() {
                    return;
                }
                replay.start();
            }
        }));
    }
}

pub(crate) use answers::new_status;
