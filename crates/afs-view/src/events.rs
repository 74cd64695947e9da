//! Tells those who keep copies of what the client knows (the kernel's caches, through `afs-fuse`) what has changed.
//!
//! A [`Notice`] is handled when it is dropped. Before the client answers a server that breaks a promise, it waits (a bounded
//! time) until the notices of the break are handled: so an open that begins after a break was acknowledged sees the new data.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use afs_wire::ids::DataVersion;
use rx::Runtime;
use tokio::sync::mpsc;

use crate::vnodes::mounts::Mounts;
use afs_reach::fid::{Fid, User};

/// The longest time for which a server waits until the holders of copies have handled a break, apart from the time in which this process
/// stands still. Servers give up on clients after some two seconds, and every break holds a writer up.
pub const HANDLING_MAX: Duration = Duration::from_secs(1);

/// The kind of change of a vnode or volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Anything: its status, its data, the names in it. What a server's break says.
    Vnode,
    /// Its status, rights included; the data are the same.
    Status,
    /// Its data, and with them its status.
    Data,
    /// A file's data, and with them its status: a server has answered that it is of this version, which is another than was known. Whoever
    /// keeps nothing of an older version, as after a break, has nothing to forget.
    Version(DataVersion),
    /// The names in a directory, and with them its status.
    Names,
    /// Anything in the volume of the fid.
    Volume,
    /// Anything, anywhere.
    Everything,
    /// The identity of the one user whose copies these are: another person's names may be among them. See
    /// [`Audience::One`].
    Identity,
}

/// Something has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Changed {
    /// The vnode; of a volume any fid, for everything the root.
    pub fid: Fid,
    /// The change.
    pub change: Change,
}

/// A change that is to be handled: dropping it says that it is.
#[derive(Debug)]
pub struct Notice {
    /// The change.
    pub changed: Changed,
    _handled: Option<mpsc::Sender<Infallible>>,
}

/// The users whose copies a subscriber keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Copies that anybody may see, or that are asked for anew for each user: a change of a user's identity does not matter to them.
    Anybody,
    /// Copies of what this user was shown, by number.
    One(u32),
}

/// The changes, in the order in which they happened.
#[derive(Debug)]
pub struct Notices {
    receiver: mpsc::UnboundedReceiver<Notice>,
    pending: Pending,
}

/// Tells whether there are changes that a subscriber has not heard of yet. A fact that is found at the moment of a change may be true
/// already of what the notice of it is about to revoke.
#[derive(Debug, Clone, Default)]
pub struct Pending(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    told: AtomicU64,
    noted: AtomicU64,
}

impl Pending {
    /// True if there are any: also those that the subscriber has taken and not [noted](Self::done).
    pub fn any(&self) -> bool {
        !self.has_noted(self.told())
    }

    /// The number of changes so far. A change that somebody has found out is among them as soon as what was found out is answered.
    pub fn told(&self) -> u64 {
        self.0.told.load(Ordering::SeqCst)
    }

    /// True if the subscriber has noted so many.
    pub fn has_noted(&self, count: u64) -> bool {
        self.0.noted.load(Ordering::SeqCst) >= count
    }

    /// The subscriber has noted one of them.
    pub fn done(&self) {
        self.0.noted.fetch_add(1, Ordering::SeqCst);
    }

    fn begin(&self) {
        self.0.told.fetch_add(1, Ordering::SeqCst);
    }
}

impl Notices {
    /// The events that have not come yet.
    pub fn pending(&self) -> Pending {
        self.pending.clone()
    }

    /// The next change; `None` when the client has ended.
    pub async fn next(&mut self) -> Option<Notice> {
        self.receiver.recv().await
    }

    /// The same for a thread.
    pub fn next_blocking(&mut self) -> Option<Notice> {
        self.receiver.blocking_recv()
    }
}

/// Tells subscribers what they have to invalidate, under each fid by which they may know it.
#[derive(Debug)]
pub struct Invalidations {
    subscribers: Subscribers,
    /// The places where volumes are mounted, whose fids stand for these volumes' roots.
    pub(crate) mounts: Arc<Mounts>,
    runtime: Arc<dyn Runtime>,
    handling_max: Duration,
}

impl Invalidations {
    /// Makes invalidations without subscribers; volumes are mounted as told there.
    pub fn new(runtime: Arc<dyn Runtime>, mounts: Arc<Mounts>) -> Self {
        Self { subscribers: Subscribers::default(), mounts, runtime, handling_max: HANDLING_MAX }
    }

    /// Has servers wait for so long at most, in place of [`HANDLING_MAX`].
    #[must_use]
    pub fn handling_within(self, handling_max: Duration) -> Self {
        Self { handling_max, ..self }
    }

    /// One more who is told, from now on.
    pub fn subscribe(&self, audience: Audience) -> Notices {
        self.subscribers.subscribe(audience)
    }

    /// A user is somebody else to a cell from now on, or nobody; without one, processes of one user may be different people. Who keeps what anybody may see need not know: a user who logs in over and
    /// over takes nothing away from others.
    pub fn mention_identity(&self, user: Option<User>, root: Fid) {
        let changed = Changed { fid: root, change: Change::Identity };
        self.subscribers.send(&[changed], None, |audience| match audience {
            Audience::Anybody => false,
            Audience::One(uid) => user.is_none_or(|user| user.uid == uid),
        });
    }

    /// The client ends: nothing changes any more.
    pub fn close(&self) {
        self.subscribers.close();
    }

    /// A change of a vnode, and the same of the mount points at which it is.
    pub fn changes(&self, fid: Fid, change: Change) -> Vec<Changed> {
        let mut all = vec![Changed { fid, change }];
        let (root, at_mounts) = match change {
            Change::Volume => (Fid::root_of(fid.cell, fid.volume), Change::Vnode),
            Change::Everything | Change::Identity => return all,
            Change::Vnode | Change::Status | Change::Data | Change::Version(_) | Change::Names => {
                (fid, change)
            }
        };
        if root.is_root() {
            all.extend(self.mounts.at(root).into_iter().map(|fid| Changed { fid, change: at_mounts }));
        }
        all
    }

    /// Tells of a change, and waits for nobody.
    pub(crate) fn mention(&self, fid: Fid, change: Change) {
        self.subscribers.mention(&self.changes(fid, change));
    }

    /// Tells of changes, and waits until they are handled, for a limited time.
    pub async fn tell_and_wait(&self, changes: &[Changed]) {
        let handled = self.subscribers.tell(changes);
        let until = self.runtime.now() + self.handling_max;
        if rx::in_time(&*self.runtime, until, handled.wait()).await.is_none() {
            tracing::warn!("a change is answered before the kernel's copies are gone");
        }
    }

    /// Does something for a command that changes what the kernel may have copies of, and tells of it afterwards: servers do not tell us
    /// of our own changes, nor does the kernel know of it. Also if it fails, or is given up: it may have come to something.
    pub async fn telling<T>(&self, changes: &[Changed], work: impl Future<Output = T>) -> T {
        struct Untold<'a>(&'a Subscribers, &'a [Changed]);
        impl Drop for Untold<'_> {
            fn drop(&mut self) {
                self.0.mention(self.1);
            }
        }
        let mut untold = Untold(&self.subscribers, changes);
        let output = work.await;
        untold.1 = &[];
        self.tell_and_wait(changes).await;
        output
    }

    /// Tells that the names in a directory have changed: a look-up from here on finds what it is now.
    pub async fn tell_of_names(&self, dir: Fid) {
        self.tell_and_wait(&self.changes(dir, Change::Names)).await;
    }
}

/// Those who want to know.
///
/// Their queues have no bound of their own: a change is a few words, there are at most as many as servers break promises, and
/// what is dropped here would be stale for hours.
#[derive(Debug, Default)]
struct Subscribers {
    all: Mutex<Vec<Subscriber>>,
}

#[derive(Debug)]
struct Subscriber {
    audience: Audience,
    sender: mpsc::UnboundedSender<Notice>,
    pending: Pending,
}

/// The end of the handling of one event's notices.
#[derive(Debug)]
struct Handled(mpsc::Receiver<Infallible>);

impl Handled {
    /// Waits until all who were told have handled it.
    async fn wait(mut self) {
        // Nothing is ever sent: the channel ends with the last notice.
        let _ = self.0.recv().await;
    }
}

impl Subscribers {
    fn subscribe(&self, audience: Audience) -> Notices {
        let (sender, receiver) = mpsc::unbounded_channel();
        let pending = Pending::default();
        self.lock().push(Subscriber { audience, sender, pending: pending.clone() });
        Notices { receiver, pending }
    }

    /// Tells all, and lets one know when it is handled.
    fn tell(&self, changes: &[Changed]) -> Handled {
        let (done, handled) = mpsc::channel(1);
        self.send(changes, Some(&done), |_| true);
        Handled(handled)
    }

    /// Tells all.
    fn mention(&self, changes: &[Changed]) {
        self.send(changes, None, |_| true);
    }

    fn send(
        &self,
        changes: &[Changed],
        done: Option<&mpsc::Sender<Infallible>>,
        is_meant: impl Fn(Audience) -> bool,
    ) {
        self.lock().retain(|Subscriber { audience, sender, pending }| {
            !is_meant(*audience)
                || changes.iter().all(|&changed| {
                    pending.begin();
                    sender.send(Notice { changed, _handled: done.cloned() }).is_ok()
                })
        });
    }

    /// Ends all subscriptions.
    fn close(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Subscriber>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_reach::fid::CellIndex;
    use afs_sim::Sim;
    use afs_wire::ids::{Uniquifier, VnodeNumber, VolumeId};
    use std::sync::atomic::AtomicBool;

    const ROOT: Fid = Fid::root_of(CellIndex(1), VolumeId(7));
    const MOUNT: Fid =
        Fid { cell: CellIndex(1), volume: VolumeId(1), vnode: VnodeNumber(20), unique: Uniquifier(5) };

    fn invalidations() -> Invalidations {
        let mounts = Arc::<Mounts>::default();
        mounts.note(ROOT, MOUNT);
        Invalidations::new(Arc::new(rx::TokioRuntime::current()), mounts)
    }

    #[tokio::test]
    async fn a_volumes_root_changes_under_its_mount_point_too() {
        let invalidations = invalidations();
        let mut notices = invalidations.subscribe(Audience::Anybody);
        let file = Fid { vnode: VnodeNumber(4), ..ROOT };
        invalidations.mention(file, Change::Data);
        invalidations.mention(ROOT, Change::Names);
        invalidations.mention(file, Change::Volume);
        invalidations.close();
        let mut heard = Vec::new();
        while let Some(notice) = notices.next().await {
            heard.push((notice.changed.fid, notice.changed.change));
        }
        let expected = [
            (file, Change::Data),
            (ROOT, Change::Names),
            (MOUNT, Change::Names),
            (file, Change::Volume),
            (MOUNT, Change::Vnode),
        ];
        assert_eq!(heard, expected);
    }

    #[tokio::test]
    async fn a_change_is_waited_for_until_the_last_subscriber_has_handled_it() {
        let invalidations = invalidations();
        let subscribe = || invalidations.subscribe(Audience::Anybody);
        let (mut one, mut other) = (subscribe(), subscribe());
        let mut told = std::pin::pin!(invalidations.tell_of_names(MOUNT));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(told.as_mut().poll(&mut context).is_pending());
        drop(one.next().await);
        assert!(told.as_mut().poll(&mut context).is_pending(), "the other has not");
        drop(other.next().await);
        told.await;
    }

    /// A name that was made over the control socket was not there for the kernel, which had asked for it before.
    #[tokio::test]
    async fn what_a_command_does_is_told_before_it_ends_and_also_if_it_is_given_up() {
        let invalidations = invalidations();
        let mut notices = invalidations.subscribe(Audience::Anybody);
        let changes = invalidations.changes(MOUNT, Change::Names);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        {
            let mut done = std::pin::pin!(invalidations.telling(&changes, async { 7 }));
            assert!(done.as_mut().poll(&mut context).is_pending(), "the kernel has its copies still");
            assert_eq!(notices.next().await.unwrap().changed, changes[0]);
            assert_eq!(done.await, 7);
        }
        {
            let given_up = std::pin::pin!(invalidations.telling(&changes, std::future::pending::<()>()));
            assert!(given_up.poll(&mut context).is_pending());
        }
        invalidations.close();
        assert_eq!(notices.next().await.unwrap().changed, changes[0]);
        assert!(notices.next().await.is_none(), "each was told once");
    }

    /// A process without CPU for over a second acknowledged a break before the threads that tell the kernel had run: the writer's `close`
    /// returned, and programs here read the old data for some more milliseconds.
    #[test]
    fn a_break_is_not_acknowledged_before_it_is_handled_because_this_process_stood_still() {
        let sim = Sim::new(Duration::ZERO);
        let invalidations = Invalidations::new(Arc::new(sim.clone()), Arc::<Mounts>::default());
        let mut notices = invalidations.subscribe(Audience::Anybody);
        let is_handled = Arc::new(AtomicBool::new(false));
        let (clock, handled) = (sim.clone(), Arc::clone(&is_handled));
        sim.spawn(Box::pin(async move {
            let notice = notices.next().await;
            clock.stand_still(Duration::from_millis(1500));
            clock.sleep_until(clock.now() + Duration::from_millis(10)).await;
            handled.store(true, Ordering::Relaxed);
            drop(notice);
        }));
        sim.block_on(async move { invalidations.tell_of_names(MOUNT).await });
        assert!(is_handled.load(Ordering::Relaxed));
    }

    /// Anybody can log in over and over. Each time, the kernel was told to forget everything of everybody's.
    #[tokio::test]
    async fn who_logs_in_takes_nothing_from_the_caches_of_others() {
        let invalidations = invalidations();
        let audiences = [Audience::Anybody, Audience::One(1), Audience::One(2)];
        let mut all = audiences.map(|audience| invalidations.subscribe(audience));
        for _ in 0..1000 {
            invalidations.mention_identity(Some(User::of(1)), ROOT);
        }
        let told = || all.iter().map(|notices| notices.pending().told()).collect::<Vec<_>>();
        assert_eq!(told(), [0, 1000, 0]);
        assert_eq!(all[1].next().await.unwrap().changed.change, Change::Identity);
    }
}
