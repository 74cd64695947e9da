//! The journal: changes of names and attributes that were made here, that programs see, and that are sent to servers soon, in order. It stands
//! above asking servers and below the names: [`crate::names`] makes changes here ([`Replay::record`]), or has all of a vnode sent first
//! ([`Journal::settle`]) before it makes one at the server.
//!
//! The rows are the cache's ([`afs_cache::Change`]): they are in one log with what was written into files, so that a loss of power takes the end
//! of both, and nothing in between. What shows of a change is in `vnodes` ([`crate::vnodes::vnode`]), the numbers of what was made here are in
//! [`crate::vnodes::local_ids`]. In which order changes are sent: [`order`]. How one is sent, and what an answer means: [`replay`].

mod order;
mod replay;
mod window;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex};

use afs_cache::{CellNumber, Change, What};
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, User};
use afs_reach::location::Queue;
use afs_wire::ids::{AfsTime, VolumeId};
use tokio::sync::Notify;

use crate::data::files::lock;
use crate::pause::Pause;
use order::{Order, Thing};

pub use replay::Replay;
pub(crate) use replay::new_status;
pub(crate) use window::Senders;

/// Changes, and files to be stored, that are under way to a server at a time, at most: others are not held up by one that does not answer.
pub(crate) const SENT_AT_ONCE: usize = 64;

/// Changes that wait at most. Beyond that programs wait for the server, as without a journal.
const CHANGES_MAX: usize = 1_000_000;

/// A change and what has become of it so far.
#[derive(Debug)]
struct Entry {
    change: Change<Fid>,
    user: User,
    /// It may have been carried out already, by an attempt that was not answered.
    may_be_done: bool,
    /// The number of the last attempt that has failed, and its error.
    failure: Option<(u64, Error)>,
}

#[derive(Debug, Default)]
struct State {
    order: Order,
    entries: BTreeMap<u64, Entry>,
    /// Changes that have failed and wait for their next attempt.
    stalled: BTreeSet<u64>,
    /// The changes that are syncs: most of the time none.
    syncs: BTreeMap<(CellIndex, VolumeId), BTreeSet<u64>>,
    next: u64,
    /// Counts attempts that have failed.
    failures: u64,
    /// Tasks that send.
    senders: HashMap<Queue, Senders>,
    is_retrying: bool,
    /// Cells that are not known yet and in which the last run has left changes: how many, and the time of the oldest.
    unknown: BTreeMap<CellNumber, (usize, u32)>,
}

/// The changes that are not at a server yet.
#[derive(Debug, Default)]
pub struct Journal {
    state: Mutex<State>,
    /// One is done, or an attempt has failed.
    settled: Notify,
    pub(crate) pause: Arc<Pause>,
}

impl Journal {
    /// None yet, which are sent unless this has them wait.
    pub(crate) fn new(pause: Arc<Pause>) -> Self {
        Self { pause, ..Self::default() }
    }

    /// True if what waits is not sent, as somebody has asked for that.
    pub fn is_paused(&self) -> bool {
        self.pause.is_set()
    }

    /// The number of changes that wait, and the time of the oldest; 0 without any.
    pub fn waiting(&self) -> (usize, AfsTime) {
        let state = lock(&self.state);
        let first = state.entries.values().next().map(|entry| entry.change.time);
        let oldest = first.into_iter().chain(state.unknown.values().map(|(_, oldest)| *oldest)).min();
        let unknown: usize = state.unknown.values().map(|(changes, _)| changes).sum();
        (state.entries.len() + unknown, AfsTime(oldest.unwrap_or(0)))
    }

    /// True if no more can wait.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting().0 >= CHANGES_MAX
    }

    /// Takes no number up to this one again.
    fn note_number(&self, number: u64) {
        let mut state = lock(&self.state);
        state.next = state.next.max(number);
    }

    /// A number for a change that comes after all others.
    pub(crate) fn next_number(&self) -> u64 {
        let mut state = lock(&self.state);
        state.next += 1;
        state.next
    }

    /// Adds a change that the cache keeps under this number.
    fn add(&self, number: u64, change: Change<Fid>, user: User, may_be_done: bool) {
        let mut state = lock(&self.state);
        state.next = state.next.max(number);
        state.order.add(number, order::uses(&change));
        if let What::Sync { of } = change.what {
            state.syncs.entry((of.cell, of.volume)).or_default().insert(number);
        }
        state.entries.insert(number, Entry { change, user, may_be_done, failure: None });
    }

    /// True if a change may have been carried out already, by an attempt whose answer nobody has.
    fn may_be_done(&self, number: u64) -> bool {
        lock(&self.state).entries.get(&number).is_some_and(|entry| entry.may_be_done)
    }

    /// True if a change of a vnode waits that may have been made already: its status may have it twice.
    pub(crate) fn is_unsure(&self, fid: Fid) -> bool {
        let state = lock(&self.state);
        state.order.users(&Thing::Vnode(fid)).iter().any(|number| state.entries[number].may_be_done)
    }

    /// The numbers of the first and the last sync that waits in a volume.
    pub(crate) fn syncs(&self, fid: Fid) -> Option<(u64, u64)> {
        let state = lock(&self.state);
        let syncs = state.syncs.get(&(fid.cell, fid.volume))?;
        Some((*syncs.first()?, *syncs.last()?))
    }

    /// True if a change waits that removes a file.
    pub(crate) fn removes(&self, fid: Fid) -> bool {
        let state = lock(&self.state);
        let users = state.order.users(&Thing::Vnode(fid));
        users.iter().any(|number| order::removed(&state.entries[number].change) == Some(fid))
    }

    /// Takes the changes of a file back that no server has heard of, if these are all that there is of it. Returns their numbers.
    pub(crate) fn take_back(&self, fid: Fid) -> Option<Vec<u64>> {
        let mut state = lock(&self.state);
        let numbers = state.order.users(&Thing::Vnode(fid));
        let is_new = numbers.iter().any(
            |number| matches!(&state.entries[number].change.what, What::Make { made, .. } if *made == fid),
        );
        let can = |number: &u64| {
            let entry = &state.entries[number];
            order::is_about_only(&entry.change, fid)
                && !entry.may_be_done
                && entry.failure.is_none()
                && !state.order.is_sent(*number)
        };
        if !is_new || !numbers.iter().all(can) {
            return None;
        }
        for number in &numbers {
            state.order.done(*number);
            state.entries.remove(number);
        }
        drop(state);
        self.settled.notify_waiters();
        Some(numbers)
    }

    /// Returns when what was changed of a vnode, or in it, is at the server.
    ///
    /// # Errors
    ///
    /// That of an attempt that fails meanwhile, of these or of what they wait for.
    pub(crate) async fn settle(&self, fid: Fid) -> Result<(), Error> {
        let numbers = lock(&self.state).order.users(&Thing::Vnode(fid));
        self.settle_these(numbers).await
    }

    /// The same of all that was changed in a volume.
    ///
    /// # Errors
    ///
    /// As [`Self::settle`].
    pub(crate) async fn settle_volume(&self, cell: CellIndex, volume: VolumeId) -> Result<(), Error> {
        let numbers = lock(&self.state).order.users(&Thing::Volume(cell, volume));
        self.settle_these(numbers).await
    }

    /// The same of all changes.
    ///
    /// # Errors
    ///
    /// As [`Self::settle`].
    pub async fn settle_all(&self) -> Result<(), Error> {
        let numbers = lock(&self.state).entries.keys().copied().collect();
        self.settle_these(numbers).await
    }

    async fn settle_these(&self, mut meant: Vec<u64>) -> Result<(), Error> {
        let _passing = self.pause.pass();
        let failures = lock(&self.state).failures;
        let mut seen = failures;
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            {
                let state = lock(&self.state);
                meant.retain(|number| state.entries.contains_key(number));
                if std::mem::replace(&mut seen, state.failures) != state.failures {
                    // Of what waits for one that fails, there is no attempt.
                    let all = state.order.with_those_before(&meant);
                    let mut failed = all.iter().filter_map(|number| state.entries[number].failure.as_ref());
                    if let Some((_, error)) = failed.find(|(at, _)| *at > failures) {
                        return Err(error.clone());
                    }
                }
            }
            if meant.is_empty() {
                return Ok(());
            }
            settled.await;
        }
    }
}
