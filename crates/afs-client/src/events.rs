//! What has changed without the asker's doing, for whoever keeps copies: the kernel's caches, through `afs-fuse`.
//!
//! A [`Notice`] is handled when it is dropped. Before the client answers a server that breaks a promise, it waits (a bounded
//! time) until the notices of the break are handled: so an open that begins after a break was acknowledged sees the new data.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::fid::Fid;

/// What about a vnode or volume has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Anything: its status, its data, the names in it. What a server's break says.
    Vnode,
    /// Its status, rights included; the data are the same.
    Status,
    /// Its data, and with them its status.
    Data,
    /// The names in a directory, and with them its status.
    Names,
    /// Anything in the volume of the fid.
    Volume,
    /// Anything, anywhere.
    Everything,
}

/// Something has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Changed {
    /// What it is about; of a volume any fid, for everything the root.
    pub fid: Fid,
    /// What has changed about it.
    pub change: Change,
}

/// A change that is to be handled: dropping it says that it is.
#[derive(Debug)]
pub struct Notice {
    /// The change.
    pub changed: Changed,
    _handled: Option<mpsc::Sender<Infallible>>,
}

/// The changes, in the order in which they happened.
#[derive(Debug)]
pub struct Notices {
    receiver: mpsc::UnboundedReceiver<Notice>,
    pending: Pending,
}

/// Whether changes have happened of which a subscriber has not heard yet. What is found out at the moment of a change may be true
/// already of what the notice of it is about to revoke.
#[derive(Debug, Clone, Default)]
pub struct Pending(Arc<AtomicUsize>);

impl Pending {
    /// Whether there are any: also those that the subscriber has taken, until he says [`Self::done`].
    pub fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// The subscriber has noted one of them.
    pub fn done(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn begin(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Notices {
    /// What has not come yet.
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

/// Those who want to know.
///
/// Their queues have no bound of their own: a change is a few words, there are at most as many as servers break promises, and
/// what is dropped here would be stale for hours.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    senders: Mutex<Vec<(mpsc::UnboundedSender<Notice>, Pending)>>,
}

/// When the notices of one event are handled.
#[derive(Debug)]
pub(crate) struct Handled(mpsc::Receiver<Infallible>);

impl Handled {
    /// Waits until all who were told have handled it.
    pub(crate) async fn wait(mut self) {
        // Nothing is ever sent: the channel ends with the last notice.
        let _ = self.0.recv().await;
    }
}

impl Subscribers {
    pub(crate) fn subscribe(&self) -> Notices {
        let (sender, receiver) = mpsc::unbounded_channel();
        let pending = Pending::default();
        self.lock().push((sender, pending.clone()));
        Notices { receiver, pending }
    }

    /// Tells all, and lets one know when it is handled.
    pub(crate) fn tell(&self, changes: &[Changed]) -> Handled {
        let (done, handled) = mpsc::channel(1);
        self.send(changes, Some(&done));
        Handled(handled)
    }

    /// Tells all.
    pub(crate) fn mention(&self, changes: &[Changed]) {
        self.send(changes, None);
    }

    fn send(&self, changes: &[Changed], done: Option<&mpsc::Sender<Infallible>>) {
        self.lock().retain(|(sender, pending)| {
            changes.iter().all(|&changed| {
                pending.begin();
                sender.send(Notice { changed, _handled: done.cloned() }).is_ok()
            })
        });
    }

    /// Ends all subscriptions.
    pub(crate) fn close(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(mpsc::UnboundedSender<Notice>, Pending)>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
