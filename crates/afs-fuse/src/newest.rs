//! Sees to it that the kernel's idea of a file is that of the newest version when a program has opened or locked it.
//!
//! The kernel gets a file's length with the attributes in our answers. It **throws the length of an answer away if a
//! notice about the file came after the request was made**, and goes on with the old one, although the program of an
//! `fstat` is told the new one. So a program that reads just then ends at the old length, and one that seeks to the end
//! overwrites what others have stored. Hence:
//!
//! * A version that an answer of a server brings is no reason for a notice if the kernel has nothing of an older one, as
//!   after a break ([`Told`]). That is the usual case: the break's own notice is with the kernel before the writer's
//!   `close` returns, so before a request that asks for what was stored.
//! * A file is opened when the notices on their way have arrived, and if the kernel's length is not the file's, the open
//!   is refused once with ESTALE: the kernel looks the name up, and gets the length with the answer.
//! * No look-up follows a lock, and `sendfile` and mappings ask for no attributes. So a longer file's last byte is put
//!   into the kernel's pages, which makes the file as long. Nothing makes it shorter; but `lseek` asks for the
//!   attributes, and a read that finds no data where the kernel expects some shortens the file (`kernel_length`).

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use afs_client::{Error, Fid, OpenFile, Status};
use afs_wire::ids::DataVersion;
use lru::LruCache;

use crate::file_system::{FileSystem, Fresh};
use crate::handles::FileHandle;
use crate::nodes::{Forget, Node};

/// The longest wait for notices, and for the kernel to take a length: both wait for pages that a server may be asked for. Servers
/// too take a break for acknowledged after this time.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The number of times that a length is told again because the file was changed again meanwhile.
const TELLS_MAX: usize = 3;

/// The time that a request may be on its way here: it may have been made before a notice that has ended since.
const REQUEST_TIME: Duration = Duration::from_millis(5);

/// Locked files that are remembered.
const LOCKED_MAX: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// The versions of a file of which the kernel was told anything since it last forgot what it knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Told {
    #[default]
    Nothing,
    Only(DataVersion),
    Several,
}

impl Told {
    /// Notes that it is told of one.
    pub(crate) fn note(&mut self, version: DataVersion) {
        *self = match *self {
            Self::Nothing => Self::Only(version),
            Self::Only(before) if before == version => Self::Only(version),
            Self::Only(_) | Self::Several => Self::Several,
        };
    }

    /// Notes that a store of ours has made what it knows another version.
    pub(crate) fn note_stored(&mut self, version: DataVersion) {
        if *self != Self::Nothing {
            *self = Self::Only(version);
        }
    }

    /// True if it was told of no version but this one.
    pub(crate) fn is_none_but(self, version: DataVersion) -> bool {
        self == Self::Nothing || self == Self::Only(version)
    }
}

/// The notices about a node that are on their way.
#[derive(Debug, Default)]
pub(crate) struct Forgets {
    /// Those about its data, by their numbers: the last that is to be sent, and the last that the kernel has.
    begun: u64,
    done: u64,
    /// Those about its attributes alone.
    attributes: u32,
    done_at: Option<Instant>,
}

impl Forgets {
    /// One about its data is to be sent.
    pub(crate) fn begin(&mut self) {
        self.begun += 1;
    }

    /// The number of the last one about its data. One that is sent from now on stands for all up to it.
    pub(crate) fn last(&self) -> u64 {
        self.begun
    }

    /// The kernel has all about its data up to this one.
    fn note_done(&mut self, number: u64) {
        self.done = self.done.max(number);
        self.done_at = Some(Instant::now());
    }

    /// One about its attributes is to be sent.
    pub(crate) fn begin_attributes(&mut self) {
        self.attributes += 1;
    }

    /// The kernel has it.
    pub(crate) fn end_attributes(&mut self) {
        self.attributes = self.attributes.saturating_sub(1);
        self.done_at = Some(Instant::now());
    }

    /// True if the kernel has them.
    pub(crate) fn are_done(&self) -> bool {
        self.done >= self.begun && self.attributes == 0
    }

    /// True if one is on its way, or was a moment ago: the kernel may throw attributes away that are answered now.
    fn are_near(&self) -> bool {
        !self.are_done() || self.done_at.is_some_and(|at| at.elapsed() < REQUEST_TIME)
    }
}

/// The files that were locked here of late: the kernel does not read them by itself, as what it reads then stays what it was.
#[derive(Debug)]
pub(crate) struct LockedFiles(Mutex<LruCache<Fid, ()>>);

impl LockedFiles {
    fn lock(&self) -> MutexGuard<'_, LruCache<Fid, ()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, fid: Fid) {
        self.lock().put(fid, ());
    }

    /// True if it was locked.
    pub(crate) fn has(&self, fid: Fid) -> bool {
        self.lock().get(&fid).is_some()
    }
}

impl Default for LockedFiles {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(LOCKED_MAX)))
    }
}

impl Node {
    /// Notes that an answer tells the kernel a status.
    pub(crate) fn note_told(&self, status: &Status, fresh: Fresh) {
        let is_sure = {
            let mut state = self.state();
            state.told.note(status.data_version);
            fresh.0 && !state.forgets.are_near()
        };
        self.kernel_length.note(status.length, is_sure);
    }
}

impl FileSystem {
    /// The kernel has the notices about a node's data up to this one.
    pub(crate) fn note_forgotten(&self, node: &Node, number: u64) {
        node.state().forgets.note_done(number);
        self.nodes.forgotten.notify_waiters();
    }

    /// Waits until the kernel has the notices about a node of all changes that have been heard of.
    async fn settle(&self, node: &Node) {
        let told = self.pending.told();
        let settled = async {
            loop {
                let mut forgotten = std::pin::pin!(self.nodes.forgotten.notified());
                forgotten.as_mut().enable();
                if self.pending.has_noted(told) && node.state().forgets.are_done() {
                    return;
                }
                forgotten.await;
            }
        };
        if tokio::time::timeout(WAIT_MAX, settled).await.is_err() {
            tracing::debug!(fid = %node.fid, "the kernel is not known to have forgotten what has changed");
        }
    }

    /// A file is about to be open: sees to it that the kernel has its length. False: it is to look the name up first.
    pub(crate) async fn has_length(self: &Arc<Self>, node: &Arc<Node>, file: &OpenFile) -> bool {
        self.settle(node).await;
        // Who opens it may know it for as long as it is promised, and else it is asked for with each use.
        let Some(Ok(status)) = self.client.cached_status(file.user(), node.fid) else { return true };
        let is_known = node.kernel_length.is(status.length);
        let was_refused = {
            let mut state = node.state();
            let before = state.was_refused;
            state.was_refused = !is_known && !before;
            before
        };
        if is_known || !was_refused {
            return is_known;
        }
        // Whoever opens a file by a descriptor looks no name up.
        self.lengthen(node, file).await;
        true
    }

    /// A program has got a lock: sees to it that what it reads from now on, and where the file ends, is what others have stored before.
    /// False: the kernel has read the file by itself, for whichever program, and it has changed since. It has to be opened anew, and then the
    /// kernel does so no more.
    ///
    /// # Errors
    ///
    /// Those of asking for the status.
    pub(crate) async fn show_newest(self: &Arc<Self>, open: &FileHandle) -> Result<bool, Error> {
        let (node, user) = (&open.node, open.file.user());
        let known = self.client.cached_status(user, node.fid);
        let was_known = known.is_some();
        let status = match known {
            Some(status) => status?,
            None => self.client.status(user, node.fid).await?,
        };
        self.settle(node).await;
        // Of what was promised a notice tells.
        if !was_known && !node.state().told.is_none_but(status.data_version) {
            self.forget_soon(node);
            self.settle(node).await;
        }
        self.nodes.locked.note(node.fid);
        if node.state().is_retired {
            return Ok(false);
        }
        // What is written next goes into this version, not behind the end of an older one.
        open.file.refresh().await?;
        self.lengthen(node, &open.file).await;
        Ok(true)
    }

    /// Has the kernel take a file for as long as it is, if the kernel may believe it shorter.
    pub(crate) async fn lengthen(self: &Arc<Self>, node: &Arc<Node>, file: &OpenFile) {
        for _ in 0..TELLS_MAX {
            let Some(Ok(status)) = self.client.cached_status(file.user(), node.fid) else { return };
            // What the kernel reads by itself has its own length.
            if node.kernel_length.is_at_least(status.length) || node.state().backing.is_some() {
                return;
            }
            // The kernel may have the page already, so the byte has to be the right one.
            let last = status.length - 1;
            let Ok(byte) = file.read(last, 1).await else { return };
            let now = self.client.cached_status(file.user(), node.fid);
            let is_same = now.is_some_and(|now| {
                now.is_ok_and(|now| (now.data_version, now.length) == (status.data_version, status.length))
            });
            if !is_same || byte.len() != 1 {
                continue;
            }
            let (fs, of, user) = (Arc::clone(self), Arc::clone(node), file.user());
            let put = self.runtime.spawn_blocking(move || {
                fs.in_flight.locks.wait(&Forget::Data(of.id));
                match fs.notifier.put(of.id, last, &byte) {
                    Ok(()) => {
                        of.kernel_length.note_put(last + 1);
                        // Of the rest of the page the kernel has nothing.
                        of.state().empty.note_written(&(last..last + 1));
                        let now = fs.client.cached_status(user, of.fid);
                        if !now.is_some_and(|now| now.is_ok_and(|now| now.length == last + 1)) {
                            // It took so long that others have changed the file.
                            fs.forget_soon(&of);
                        }
                    }
                    Err(error) => tracing::warn!(fid = %of.fid, %error, "the kernel did not take a length"),
                }
            });
            // It waits for pages, and these perhaps for a server.
            let _ = tokio::time::timeout(WAIT_MAX, put).await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{About, At, Nodes};
    use afs_client::CellIndex;
    use afs_wire::ids::{VnodeNumber, VolumeId};
    use fuse_dev::NodeId;

    #[test]
    fn a_version_is_news_to_a_kernel_that_was_told_of_another_one() {
        let [one, two] = [1, 2].map(DataVersion);
        let mut told = Told::default();
        assert!(told.is_none_but(one), "it knows nothing");
        told.note(one);
        told.note(one);
        assert!(told.is_none_but(one) && !told.is_none_but(two));
        told.note(two);
        assert!(!told.is_none_but(two), "it may have some of each");
        told.note_stored(two);
        assert!(told.is_none_but(two), "what it has was stored");
        let mut nothing = Told::Nothing;
        nothing.note_stored(two);
        assert!(nothing.is_none_but(one));
    }

    /// A file that another client had made longer was read to its old end: the server's answer to the question for its length led to a second
    /// notice, and the kernel threw the length away.
    #[test]
    fn after_a_break_the_version_that_a_server_tells_is_no_reason_for_a_notice() {
        let fid = |vnode| Fid { vnode: VnodeNumber(vnode), ..Fid::root_of(CellIndex(1), VolumeId(7)) };
        let nodes = Nodes::new(fid(1), 100);
        let [one, two] = [1, 2].map(DataVersion);
        let node = nodes.look_up(
            fid(2),
            At { dir: NodeId::ROOT, name: b"f", is_kept: false },
            rx_proto::time::Instant::ORIGIN,
        );
        assert!(nodes.knows_none_but(fid(2), one) && nodes.knows_none_but(fid(4), one));
        node.state().told.note(one);
        assert!(!nodes.knows_none_but(fid(2), two), "nobody has told the kernel");
        assert_eq!(nodes.on_change(fid(2), About::All), [Forget::Data(node.id)]);
        assert!(nodes.knows_none_but(fid(2), two) && !node.state().forgets.are_done());
    }

    #[test]
    fn attributes_that_are_answered_beside_a_notice_may_be_thrown_away() {
        let mut forgets = Forgets::default();
        assert!(forgets.are_done() && !forgets.are_near());
        forgets.begin();
        forgets.begin();
        forgets.begin_attributes();
        forgets.note_done(forgets.last());
        assert!(!forgets.are_done() && forgets.are_near(), "of data, one stands for those before it");
        forgets.end_attributes();
        assert!(forgets.are_done());
        assert!(forgets.are_near(), "the request may have been made before");
        forgets.note_done(1);
        assert!(forgets.are_done());
    }
}
