//! Telling the kernel what to forget when something changes elsewhere: in threads of its own, as a notice may have to wait for a
//! lock that the kernel holds while a request is with us.
//!
//! The client acknowledges a server's break of a promise when the notice of it is dropped here, which is when the
//! kernel has forgotten. There is one exception. To forget a name, the kernel takes the lock of the directory. It also
//! holds that lock for a program that changes the directory, until we have answered. The change may wait, at the
//! server, for another client, which cannot answer before a change of its own is answered, which waits for us. So
//! nobody waits for names in a directory that is being changed here: they are forgotten as soon as that change has been
//! answered. Who could not make that change, because of what others have done meanwhile, must not find the names of before: the
//! answer is ESTALE, once. The kernel then looks the whole path up again, and that waits until it has forgotten them.
//!
//! The kernel notes the answer to a look-up of a name that it knows without the directory's lock, and perhaps after a
//! notice that was sent later, because the thread that asked has to get a processor first. So if the kernel was told of
//! names in the directory a moment ago, these are forgotten again, twice.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::ffi::OsStr;
use std::io;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_client::{Change, Changed, Error, Notice, Notices};
use afs_wire::Errno;
use fuse_dev::{KernelLock, NodeId, Notifier};
use tokio::sync::mpsc;

use crate::data_invalidations::DataInvalidations;
use crate::file_system::FileSystem;
use crate::kernel_locks::{Held, KernelLocks};
use crate::nodes::{About, Forget, Node};

/// The longest that a thread of the kernel is taken to need to note an answer.
pub(crate) const NOTING: Duration = Duration::from_secs(1);

/// The times after which names are forgotten again that may have been noted after they were revoked: most are noted within microseconds.
const AGAIN: [Duration; 2] = [Duration::from_millis(20), NOTING];

/// The longest that a look-up waits until the kernel has forgotten names: a server takes a break for acknowledged much sooner.
const TOLD_MAX: Duration = Duration::from_secs(10);

/// Changes that were sent back and are remembered. Who comes back after more than these is told ESTALE.
const SENT_BACK_MAX: usize = 1024;

/// Runs until the client ends.
pub(crate) fn serve(fs: &Arc<FileSystem>, notifier: &Notifier, mut notices: Notices) {
    let (of, told, locks) = (Arc::downgrade(fs), notifier.clone(), Arc::clone(&fs.in_flight.locks));
    let mut data = DataInvalidations::new(move |id| {
        let number = of.upgrade().and_then(|fs| Some(fs.nodes.get(id)?.state().forgets.last()));
        send(&told, &locks, &Forget::Data(id));
        let Some((fs, number)) = of.upgrade().zip(number) else { return };
        if let Some(node) = fs.nodes.get(id) {
            let mut state = node.state();
            state.empty.clear();
            state.changes.note(fs.client.now());
            drop(state);
            fs.note_forgotten(&node, number);
        }
    });
    while let Some(notice) = notices.next_blocking() {
        let Changed { fid, change } = notice.changed;
        if let Change::Version(version) = change
            && fs.nodes.knows_none_but(fid, version)
        {
            // A notice would have the kernel throw the answer away by which it hears of this version: see `newest`.
            fs.pending.done();
            fs.nodes.forgotten.notify_waiters();
            continue;
        }
        let announced = fs.announce();
        let mut names: HashMap<NodeId, Vec<Vec<u8>>> = HashMap::new();
        let (mut files, mut attributes) = (Vec::new(), Vec::new());
        for forget in forgets(fs, notice.changed) {
            match forget {
                Forget::Name(dir, name) => names.entry(dir).or_default().push(name),
                Forget::Data(node) => files.push(node),
                Forget::Attributes(node) => attributes.push(node),
            }
        }
        if notice.changed.change == Change::Volume {
            // One `read` of pages that the kernel has, and of more, would be of two releases.
            for node in files.iter().filter_map(|id| fs.nodes.get(*id)) {
                node.state().changes.note_frequent(fs.client.now());
            }
        }
        // What is answered from here on is what is so after the change.
        fs.pending.done();
        fs.nodes.forgotten.notify_waiters();
        let notice = Arc::new(notice);
        fs.name_invalidations.wait(directory(fs, notice.changed), &Waiting::Notice(Arc::clone(&notice)));
        for (dir, names) in names {
            if fs.nodes.was_named_since(dir, fs.client.now() - NOTING) {
                fs.forget_names_again(dir, names.clone());
            }
            fs.forget_names(dir, names, Some(Arc::clone(&notice)));
        }
        attributes.into_iter().for_each(|node| fs.send_attributes_are_old(node));
        if !files.is_empty() {
            fs.let_short_answers_be_noted();
            data.tell(files, &notice);
        }
        drop(announced);
    }
}

fn forgets(fs: &FileSystem, Changed { fid, change }: Changed) -> Vec<Forget> {
    match change {
        Change::Vnode => fs.nodes.on_change(fid, About::All),
        Change::Status => fs.nodes.on_change(fid, About::Status),
        Change::Data | Change::Version(_) => fs.nodes.on_change(fid, About::Data),
        Change::Names => fs.nodes.on_change(fid, About::Names),
        Change::Volume => fs.nodes.on_change_of(Some((fid.cell, fid.volume))),
        Change::Everything => fs.nodes.on_change_of(None),
        Change::Identity => fs.nodes.on_identity(),
    }
}

/// The directory whose names a change may be about; `None`: any.
fn directory(fs: &FileSystem, Changed { fid, change }: Changed) -> Option<NodeId> {
    match change {
        Change::Vnode | Change::Status | Change::Data | Change::Version(_) | Change::Names => {
            // A node that is not known has no names.
            Some(fs.nodes.of_fid(fid).map_or(NodeId(0), |node| node.id))
        }
        Change::Volume | Change::Everything | Change::Identity => None,
    }
}

/// Sends a notice, when the kernel holds no lock for it that only an answer of ours ends.
pub(crate) fn send(notifier: &Notifier, locks: &KernelLocks, forget: &Forget) {
    locks.wait(forget);
    send_at_once(notifier, forget);
}

/// Sends a notice for which that was waited for.
pub(crate) fn send_at_once(notifier: &Notifier, forget: &Forget) {
    let result: io::Result<()> = match forget {
        Forget::Data(node) => notifier.forget_data(*node),
        Forget::Attributes(node) => notifier.forget_attributes(*node),
        Forget::Name(dir, name) => notifier.forget_name(*dir, OsStr::from_bytes(name)),
    };
    if let Err(error) = result {
        tracing::warn!(?forget, %error, "the kernel did not take a notice");
    }
}

/// What waits until the kernel has forgotten names, and goes on when this is dropped.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "dropping them is what they are for")]
pub(crate) enum Waiting {
    Notice(Arc<Notice>),
    LookUp(mpsc::Sender<Infallible>),
}

/// The changes that were refused and sent back, each by its thread and the name that it is about, until the thread comes back with them.
#[derive(Debug, Default)]
pub(crate) struct SentBack(Mutex<VecDeque<(u32, NodeId, Vec<u8>)>>);

impl SentBack {
    /// True if a thread comes with a change for the first time.
    fn is_first(&self, change: (u32, NodeId, Vec<u8>)) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = all.iter().position(|known| *known == change) {
            all.remove(place);
            return false;
        }
        if all.len() >= SENT_BACK_MAX {
            all.pop_front();
        }
        all.push_back(change);
        true
    }
}

/// The names that the kernel is being told to forget, by directory.
#[derive(Debug)]
pub(crate) struct NameInvalidations<N> {
    directories: Mutex<HashMap<NodeId, Directory<N>>>,
}

impl<N> Default for NameInvalidations<N> {
    fn default() -> Self {
        Self { directories: Mutex::default() }
    }
}

#[derive(Debug)]
struct Directory<N> {
    /// The number of changes of it that are being asked for here: the kernel holds its lock for them.
    changes: usize,
    /// True if a thread tells the kernel.
    is_told: bool,
    /// The names that the thread tells next, and the notices that are handled then.
    names: Vec<Vec<u8>>,
    notices: Vec<N>,
    /// The notices that are handled when what it tells now is told.
    told: Vec<N>,
}

impl<N> Default for Directory<N> {
    fn default() -> Self {
        Self { changes: 0, is_told: false, names: Vec::new(), notices: Vec::new(), told: Vec::new() }
    }
}

impl<N> NameInvalidations<N> {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Directory<N>>> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names are to be told of. True: by a thread that the caller starts.
    fn add(&self, dir: NodeId, names: Vec<Vec<u8>>, notice: Option<N>) -> bool {
        let mut directories = self.lock();
        let directory = directories.entry(dir).or_default();
        directory.names.extend(names);
        if directory.changes == 0 {
            directory.notices.extend(notice);
        }
        !mem::replace(&mut directory.is_told, true)
    }

    /// A notice is about a directory, or about any. Of names of it that the kernel is being told for another reason nothing more is known
    /// here, so the notice has no names of them: it is handled when these are told.
    fn wait(&self, dir: Option<NodeId>, notice: &N)
    where
        N: Clone,
    {
        for (id, directory) in self.lock().iter_mut() {
            if dir.is_none_or(|dir| dir == *id) && directory.is_told && directory.changes == 0 {
                directory.notices.push(notice.clone());
            }
        }
    }

    /// Marks the names as told that were returned last, and returns the names to tell next. If it returns none, another thread has to be
    /// started for more.
    fn next(&self, dir: NodeId) -> Vec<Vec<u8>> {
        let mut directories = self.lock();
        let Some(directory) = directories.get_mut(&dir) else { return Vec::new() };
        directory.told = mem::take(&mut directory.notices);
        let names = mem::take(&mut directory.names);
        if names.is_empty() {
            directory.is_told = false;
            directory.told.clear();
            self.drop_if_idle(directories, dir);
        }
        names
    }

    /// A change of the directory is asked for: nobody waits any longer until names in it are told of.
    fn begin_change(&self, dir: NodeId) {
        let mut directories = self.lock();
        let directory = directories.entry(dir).or_default();
        directory.changes += 1;
        directory.notices.clear();
        directory.told.clear();
    }

    /// True if the kernel is being told of names in a directory.
    fn is_told(&self, dir: NodeId) -> bool {
        self.lock().get(&dir).is_some_and(|directory| directory.is_told)
    }

    /// True if the kernel holds a directory's lock for a change that is asked for here.
    pub(crate) fn is_changing(&self, dir: NodeId) -> bool {
        self.lock().get(&dir).is_some_and(|directory| directory.changes > 0)
    }

    fn end_change(&self, dir: NodeId) {
        let mut directories = self.lock();
        if let Some(directory) = directories.get_mut(&dir) {
            directory.changes -= 1;
        }
        self.drop_if_idle(directories, dir);
    }

    fn drop_if_idle(&self, mut directories: MutexGuard<'_, HashMap<NodeId, Directory<N>>>, dir: NodeId) {
        if directories.get(&dir).is_some_and(|directory| directory.changes == 0 && !directory.is_told) {
            directories.remove(&dir);
        }
    }
}

/// Directories for whose change the kernel holds their locks.
#[derive(Debug)]
pub(crate) struct Locked {
    fs: Arc<FileSystem>,
    dirs: Vec<NodeId>,
    _held: Vec<Held>,
}

impl Drop for Locked {
    fn drop(&mut self) {
        for dir in self.dirs.drain(..) {
            self.fs.name_invalidations.end_change(dir);
        }
    }
}

impl FileSystem {
    /// A change of directories has come. What is returned is dropped when nothing is waited for any longer to answer it.
    pub(crate) fn locked(self: &Arc<Self>, dirs: Vec<NodeId>) -> Locked {
        for dir in &dirs {
            self.name_invalidations.begin_change(*dir);
        }
        let held = dirs.iter().map(|dir| self.in_flight.locks.hold(KernelLock::Names(*dir))).collect();
        Locked { fs: Arc::clone(self), dirs, _held: held }
    }

    /// True if a thread's change of names was refused for what others may have done, and the kernel has not forgotten the names of before:
    /// the thread is to come back. The first of the names is the one that the change is about.
    pub(crate) fn has_to_come_back(&self, thread: u32, names: &[(NodeId, &[u8])], error: &Error) -> bool {
        matches!(error.errno(), Errno::ENOENT | Errno::EEXIST | Errno::ENOTEMPTY)
            && names.iter().any(|(dir, _)| self.name_invalidations.is_told(*dir))
            && self.sent_back.is_first((thread, names[0].0, names[0].1.to_vec()))
    }

    /// What tells when the kernel has forgotten the names in a directory that it is being told to forget, or when it holds the directory
    /// locked for a change. `None`: at once.
    pub(crate) fn telling(&self, dir: NodeId) -> Option<impl Future<Output = ()> + Send + use<>> {
        if !self.name_invalidations.is_told(dir) {
            return None;
        }
        let (sender, mut told) = mpsc::channel(1);
        self.name_invalidations.wait(Some(dir), &Waiting::LookUp(sender));
        Some(async move {
            // Nothing is ever sent.
            let _ = tokio::time::timeout(TOLD_MAX, told.recv()).await;
        })
    }

    /// Has attributes asked for again. The kernel takes no lock for that, so a thread that answers the kernel may call
    /// this.
    pub(crate) fn forget_attributes(&self, node: &Node) {
        node.kernel_length.note_notice();
        node.state().forgets.begin_attributes();
        self.send_attributes_are_old(node.id);
    }

    /// Sends the notice that was begun.
    fn send_attributes_are_old(&self, id: NodeId) {
        send_at_once(&self.notifier, &Forget::Attributes(id));
        if let Some(node) = self.nodes.get(id) {
            node.state().forgets.end_attributes();
            self.nodes.forgotten.notify_waiters();
        }
    }

    /// Has names asked for again, in the background: a thread that answers the kernel must not wait for its locks.
    pub(crate) fn forget_names(
        self: &Arc<Self>,
        dir: NodeId,
        names: Vec<Vec<u8>>,
        notice: Option<Arc<Notice>>,
    ) {
        if !self.name_invalidations.add(dir, names, notice.map(Waiting::Notice)) {
            return;
        }
        let fs = Arc::clone(self);
        self.runtime.spawn_blocking(move || {
            loop {
                let names = fs.name_invalidations.next(dir);
                if names.is_empty() {
                    return;
                }
                for name in names {
                    let (told, forget) = (fs.nodes.told(), Forget::Name(dir, name));
                    send(&fs.notifier, &fs.in_flight.locks, &forget);
                    if let Forget::Name(_, name) = forget {
                        fs.nodes.note_forgotten(dir, &name, told);
                    }
                }
            }
        });
    }

    /// Has them asked for again after a while, once more after [`NOTING`].
    fn forget_names_again(self: &Arc<Self>, dir: NodeId, names: Vec<Vec<u8>>) {
        // The mount may end meanwhile.
        let fs = Arc::downgrade(self);
        self.runtime.spawn(async move {
            for pause in AGAIN {
                tokio::time::sleep(pause).await;
                let Some(fs) = fs.upgrade() else { return };
                fs.forget_names(dir, names.clone(), None);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: NodeId = NodeId(7);

    fn names(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_notice_is_handled_when_its_names_are_told() {
        let (invalidations, one, two) = (NameInvalidations::default(), Arc::new(1), Arc::new(2));
        assert!(invalidations.add(DIR, names(&["a", "b"]), Some(Arc::clone(&one))));
        assert_eq!(invalidations.next(DIR), names(&["a", "b"]));
        assert!(!invalidations.add(DIR, names(&["c"]), Some(Arc::clone(&two))), "the same thread tells it");
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&two)), (2, 2));
        assert_eq!(invalidations.next(DIR), names(&["c"]));
        assert_eq!((Arc::strong_count(&one), Arc::strong_count(&two)), (1, 2));
        assert!(invalidations.next(DIR).is_empty());
        assert_eq!(Arc::strong_count(&two), 1);
        assert!(invalidations.lock().is_empty());
    }

    /// A thread that tells names has taken them out of the table, where a later notice of the directory no longer finds them.
    #[test]
    fn a_notice_without_names_waits_for_those_that_are_being_told() {
        let (invalidations, notice) = (NameInvalidations::default(), Arc::new(1));
        invalidations.wait(Some(DIR), &notice);
        assert_eq!(Arc::strong_count(&notice), 1, "there is nothing to wait for");
        assert!(invalidations.add(DIR, names(&["a"]), None));
        assert_eq!(invalidations.next(DIR), names(&["a"]));
        invalidations.wait(Some(NodeId(8)), &notice);
        assert_eq!(Arc::strong_count(&notice), 1, "it is about another directory");
        invalidations.wait(Some(DIR), &notice);
        invalidations.wait(None, &notice);
        assert_eq!(Arc::strong_count(&notice), 3);
        assert!(invalidations.next(DIR).is_empty());
        assert_eq!(Arc::strong_count(&notice), 1);
        invalidations.begin_change(DIR);
        assert!(invalidations.add(DIR, names(&["b"]), None));
        invalidations.wait(Some(DIR), &notice);
        assert_eq!(Arc::strong_count(&notice), 1, "the kernel holds its lock");
    }

    /// A program could not rename a file, as another client had been faster, and found that the file had neither name.
    #[test]
    fn who_could_not_change_names_comes_back_once_while_the_kernel_has_those_of_before() {
        let (invalidations, sent_back) = (NameInvalidations::<Arc<u32>>::default(), SentBack::default());
        invalidations.begin_change(DIR);
        assert!(!invalidations.is_told(DIR));
        assert!(invalidations.add(DIR, names(&["a"]), None));
        invalidations.end_change(DIR);
        assert!(invalidations.is_told(DIR), "the kernel has them until the change is answered");
        let change = |thread, name: &str| (thread, DIR, name.as_bytes().to_vec());
        assert!(sent_back.is_first(change(1, "a")) && sent_back.is_first(change(2, "a")));
        assert!(!sent_back.is_first(change(1, "a")), "it has come back");
        assert!(sent_back.is_first(change(1, "a")) && sent_back.is_first(change(1, "b")));
        assert_eq!(invalidations.next(DIR), names(&["a"]));
        assert!(invalidations.is_told(DIR) && invalidations.next(DIR).is_empty());
        assert!(!invalidations.is_told(DIR));
    }

    #[test]
    fn nobody_waits_for_names_in_a_directory_that_is_changed_here() {
        let (invalidations, before, meanwhile) = (NameInvalidations::default(), Arc::new(1), Arc::new(2));
        assert!(invalidations.add(DIR, names(&["a"]), Some(Arc::clone(&before))));
        assert_eq!(invalidations.next(DIR), names(&["a"]));
        assert!(!invalidations.add(DIR, names(&["b"]), Some(Arc::clone(&before))));
        assert_eq!(Arc::strong_count(&before), 3);
        invalidations.begin_change(DIR);
        assert_eq!(Arc::strong_count(&before), 1, "neither those that are told nor those that are to be");
        invalidations.begin_change(DIR);
        invalidations.end_change(DIR);
        assert!(!invalidations.add(DIR, names(&["c"]), Some(Arc::clone(&meanwhile))));
        assert_eq!(Arc::strong_count(&meanwhile), 1);
        assert_eq!(invalidations.next(DIR), names(&["b", "c"]), "the kernel is told nevertheless");
        assert!(invalidations.next(DIR).is_empty());
        invalidations.end_change(DIR);
        assert!(invalidations.lock().is_empty());
    }
}
