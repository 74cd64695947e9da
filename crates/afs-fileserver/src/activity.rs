//! The activity right now: calls, bytes and time by volume, user and client, and which calls wait for whom. For administrators who
//! look at a server; nothing here decides anything.
//!
//! Each table is bounded: what was not used for longest goes first, and its figures begin anew when it comes back. A call that
//! does not wait takes one lock and looks up its volume, user and client. A report holds this lock while it copies the rows of one
//! table, and sorts them afterwards.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use afs_wire::ids::{AfsFid, VolumeId};
use lru::LruCache;
use rx_proto::time::Instant;

use crate::failure::Failure;

/// Volumes, users and clients whose figures are kept, each; some 200 bytes a row. That is more than one server has busy at a time.
const MAX_ROWS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Kinds of refusal that are remembered.
const MAX_REFUSALS: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// The time after which the past work of a row counts half as much as its present work. The order of rows depends on it.
const HALF_LIFE_SECONDS: f64 = 30.0;
/// So many bytes count as much as a call.
const BYTES_OF_A_CALL: f64 = 65536.0;
/// The time between two moments at which the older calls of a busy row are made to count less.
const AGES_EVERY: Duration = Duration::from_secs(1);
/// The time for which it is told that somebody was refused and asked to come again.
const REFUSAL_LIFE: Duration = Duration::from_secs(60);
/// Clients that are named where a call waits for several.
const MAX_AWAITED: usize = 3;

/// Counts of what was done, since the row is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Calls that have ended.
    pub calls: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Bytes of files that were stored.
    pub stored_bytes: u64,
    /// Bytes of files that were fetched.
    pub fetched_bytes: u64,
    /// The time that the calls took together.
    pub time: Duration,
}

impl Figures {
    /// Counts a call.
    pub(crate) fn add(&mut self, ended: &Ended<'_>) {
        self.calls += 1;
        self.failed += u64::from(ended.failure.is_some());
        self.stored_bytes += ended.stored_bytes;
        self.fetched_bytes += ended.fetched_bytes;
        self.time += ended.took;
    }
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) volume: Option<VolumeId>,
    /// `None`: without a name.
    pub(crate) user: Option<&'a str>,
    pub(crate) client: SocketAddr,
    /// The reason why it failed, if it did.
    pub(crate) failure: Option<Failure>,
    pub(crate) stored_bytes: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) took: Duration,
}

/// The reason why a call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wait {
    /// The client was asked who it is, or is told something that it missed.
    Introduction,
    /// The protection database is asked for the caller's groups.
    Groups,
    /// Another call that changes the same file or directory.
    Change,
    /// Clients are told that the file has changed.
    Callbacks,
}

impl Wait {
    /// The words for it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Introduction => "client's answer",
            Self::Groups => "protection database",
            Self::Change => "another change",
            Self::Callbacks => "callbacks",
        }
    }
}

/// A call that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The reason.
    pub wait: Wait,
    /// The file, if it waits for one.
    pub fid: Option<AfsFid>,
    /// The caller; `None`: without a name.
    pub user: Option<String>,
    /// The address of the caller.
    pub client: SocketAddr,
    /// The time when it began to wait.
    pub since: Instant,
}

/// A call that waits, and for whom, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingCall {
    /// The call.
    pub call: Waiting,
    /// The time for which it has waited.
    pub waited: Duration,
    /// The clients it waits for: some of them, where there are many.
    pub awaited: Vec<SocketAddr>,
    /// The number of clients that it waits for.
    pub awaited_count: usize,
}

/// Clients that were refused with the request to come again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reason, in words.
    pub why: &'static str,
    /// The volume, if it was about one.
    pub volume: Option<VolumeId>,
    /// The client.
    pub client: SocketAddr,
    /// The number of times, since it is remembered.
    pub count: u64,
    /// The time since the last one.
    pub ago: Duration,
}

/// The past and present work of a server, the busiest first.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The figures of all calls.
    pub total: Figures,
    /// Figures by volume.
    pub volumes: Vec<(VolumeId, Figures)>,
    /// Figures by user.
    pub users: Vec<(String, Figures)>,
    /// Figures by client.
    pub clients: Vec<(SocketAddr, Figures)>,
    /// Calls that wait, those that wait for longest first.
    pub waiting: Vec<WaitingCall>,
    /// The number of calls that wait.
    pub waiting_count: usize,
    /// The clients that were asked to come again in the last minute, the last first.
    pub refused: Vec<Refused>,
}

/// The name of users without one.
pub const ANONYMOUS: &str = "anonymous";

#[derive(Debug, Clone, Copy)]
struct Row {
    figures: Figures,
    /// Calls and bytes, older ones counting less.
    weight: f64,
    weighed: Instant,
}

impl Row {
    fn weight_at(&self, now: Instant) -> f64 {
        self.weight * (-now.since(self.weighed).as_secs_f64() / HALF_LIFE_SECONDS).exp2()
    }

    fn count(&mut self, now: Instant, ended: &Ended<'_>) {
        // Not at each call, as there are 100,000 a second.
        if now.since(self.weighed) >= AGES_EVERY {
            (self.weight, self.weighed) = (self.weight_at(now), now);
        }
        let bytes = (ended.stored_bytes + ended.fetched_bytes) as f64;
        self.weight += 1.0 + bytes / BYTES_OF_A_CALL;
        self.figures.add(ended);
    }
}

#[derive(Debug)]
struct Table<K: Hash + Eq>(LruCache<K, Row>);

impl<K: Hash + Eq + Clone> Table<K> {
    fn new() -> Self {
        Self(LruCache::new(MAX_ROWS))
    }

    fn note<'q, Q>(&mut self, now: Instant, key: &'q Q, owned: impl FnOnce(&'q Q) -> K, ended: &Ended<'_>)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(row) = self.0.get_mut(key) {
            return row.count(now, ended);
        }
        let mut row = Row { figures: Figures::default(), weight: 0.0, weighed: now };
        row.count(now, ended);
        self.0.put(owned(key), row);
    }

    /// A copy of all rows, to be sorted without the table.
    fn rows(&self) -> Vec<(K, Row)> {
        self.0.iter().map(|(key, row)| (key.clone(), *row)).collect()
    }
}

/// The busiest rows.
fn first<K>(now: Instant, most: usize, rows: Vec<(K, Row)>) -> impl Iterator<Item = (K, Figures)> {
    let mut rows: Vec<_> =
        rows.into_iter().map(|(key, row)| (row.weight_at(now), key, row.figures)).collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows.into_iter().take(most).map(|(_, key, figures)| (key, figures))
}

#[derive(Debug)]
struct Tables {
    total: Figures,
    volumes: Table<VolumeId>,
    // So that a copy costs no memory of its own.
    users: Table<Arc<str>>,
    clients: Table<SocketAddr>,
    refused: LruCache<(&'static str, Option<VolumeId>, SocketAddr), (u64, Instant)>,
}

/// Calls that wait; each has a number while it does.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Activity {
    tables: Mutex<Tables>,
    queue: Arc<Mutex<Queue>>,
}

impl Default for Activity {
    fn default() -> Self {
        let (volumes, users, clients) = (Table::new(), Table::new(), Table::new());
        let refused = LruCache::new(MAX_REFUSALS);
        let tables = Tables { total: Figures::default(), volumes, users, clients, refused };
        Self { tables: Mutex::new(tables), queue: Arc::default() }
    }
}

/// A call that waits, until it is dropped.
#[derive(Debug)]
struct InQueue(Arc<Mutex<Queue>>, u64);

impl Drop for InQueue {
    fn drop(&mut self) {
        locked(&self.0).waiting.remove(&self.1);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Activity {
    /// Counts a call.
    pub(crate) fn note(&self, now: Instant, ended: &Ended<'_>) {
        let mut tables = locked(&self.tables);
        tables.total.add(ended);
        if let Some(volume) = ended.volume {
            tables.volumes.note(now, &volume, |id| *id, ended);
        }
        tables.users.note(now, ended.user.unwrap_or(ANONYMOUS), Arc::from, ended);
        tables.clients.note(now, &ended.client, |client| *client, ended);
        let why = match ended.failure {
            Some(Failure::BUSY) => "volume busy",
            Some(Failure::AGAIN) => "file locked",
            _ => return,
        };
        let (count, last) = tables.refused.get_or_insert_mut((why, ended.volume, ended.client), || (0, now));
        (*count, *last) = (*count + 1, now);
    }

    /// Runs the work of a call, and shows the call as waiting while the work is not done.
    pub(crate) async fn waits<T>(
        &self,
        describe: impl FnOnce() -> Waiting,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        let first = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
        if let Poll::Ready(done) = first {
            return done;
        }
        let _in_queue = self.enqueue(describe());
        work.await
    }

    fn enqueue(&self, waiting: Waiting) -> InQueue {
        let mut queue = locked(&self.queue);
        let number = queue.next;
        queue.next += 1;
        queue.waiting.insert(number, waiting);
        InQueue(Arc::clone(&self.queue), number)
    }

    /// Reports what was done and is waited for; at most so many rows of each kind. `awaited` knows for which clients a
    /// call waits.
    pub(crate) fn report(
        &self,
        now: Instant,
        most: usize,
        awaited: impl Fn(&Waiting) -> Vec<SocketAddr>,
    ) -> Report {
        let (waiting, waiting_count) = {
            let queue = locked(&self.queue);
            (queue.waiting.values().take(most).cloned().collect::<Vec<_>>(), queue.waiting.len())
        };
        let told = |call: Waiting| {
            let mut awaited = awaited(&call);
            let awaited_count = awaited.len();
            awaited.truncate(MAX_AWAITED);
            WaitingCall { waited: now.since(call.since), awaited, awaited_count, call }
        };
        let waiting = waiting.into_iter().map(told).collect();
        // Every call takes this lock at its end: each time it is only held while something is copied.
        let total = locked(&self.tables).total;
        let volumes = locked(&self.tables).volumes.rows();
        let users = locked(&self.tables).users.rows();
        let clients = locked(&self.tables).clients.rows();
        let refused: Vec<_> = locked(&self.tables).refused.iter().map(|(who, what)| (*who, *what)).collect();
        let refused = refused.into_iter().map(|((why, volume, client), (count, last))| Refused {
            why,
            volume,
            client,
            count,
            ago: now.since(last),
        });
        Report {
            total,
            volumes: first(now, most, volumes).collect(),
            users: first(now, most, users).map(|(user, figures)| (user.to_string(), figures)).collect(),
            clients: first(now, most, clients).collect(),
            waiting,
            waiting_count,
            refused: refused.filter(|refused| refused.ago <= REFUSAL_LIFE).take(most).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(volume: u32, fetched_bytes: u64) -> Ended<'static> {
        Ended {
            volume: Some(VolumeId(volume)),
            user: None,
            client: SocketAddr::from(([10, 0, 0, 1], 7001)),
            failure: None,
            stored_bytes: 0,
            fetched_bytes,
            took: Duration::from_millis(2),
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 * seconds)
    }

    fn volumes(activity: &Activity, now: Instant, most: usize) -> Vec<u32> {
        let report = activity.report(now, most, |_| Vec::new());
        report.volumes.iter().map(|(id, _)| id.0).collect()
    }

    #[test]
    fn what_is_busy_now_comes_before_what_was_busier_long_ago() {
        let activity = Activity::default();
        (0..1000).for_each(|_| activity.note(at(1), &ended(1, 0)));
        activity.note(at(1), &ended(2, 100 << 20));
        assert_eq!(volumes(&activity, at(1), 10), [2, 1], "bytes count too");
        (0..10).for_each(|_| activity.note(at(600), &ended(3, 0)));
        assert_eq!(volumes(&activity, at(600), 10), [3, 2, 1]);
        assert_eq!(volumes(&activity, at(600), 2), [3, 2]);
        let total = activity.report(at(600), 1, |_| Vec::new()).total;
        assert_eq!((total.calls, total.fetched_bytes), (1011, 100 << 20));
    }

    #[test]
    fn any_number_of_volumes_takes_a_bounded_room() {
        let activity = Activity::default();
        (0..3 * MAX_ROWS.get() as u32).for_each(|id| activity.note(at(1), &ended(id, 0)));
        assert_eq!(volumes(&activity, at(1), usize::MAX).len(), MAX_ROWS.get());
    }

    #[test]
    fn calls_can_end_while_a_report_asks_whom_others_wait_for() {
        let activity = Activity::default();
        let client = ended(1, 0).client;
        let _waits =
            activity.enqueue(Waiting { wait: Wait::Callbacks, fid: None, user: None, client, since: at(1) });
        let report = activity.report(at(2), 10, |_| {
            assert!(activity.tables.try_lock().is_ok() && activity.queue.try_lock().is_ok());
            vec![client]
        });
        assert_eq!(report.waiting[0].awaited, [client]);
    }

    #[test]
    fn who_was_refused_is_told_for_a_minute() {
        let activity = Activity::default();
        for _ in 0..3 {
            activity.note(at(5), &Ended { failure: Some(Failure::BUSY), ..ended(7, 0) });
        }
        activity.note(at(5), &Ended { failure: Some(Failure::ACCESS), ..ended(7, 0) });
        let report = activity.report(at(60), 10, |_| Vec::new());
        assert_eq!(report.refused.len(), 1);
        assert_eq!((report.refused[0].why, report.refused[0].count), ("volume busy", 3));
        assert_eq!(report.total.failed, 4);
        assert!(activity.report(at(66), 10, |_| Vec::new()).refused.is_empty());
    }
}
