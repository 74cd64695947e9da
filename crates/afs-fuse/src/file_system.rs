//! The file system as the kernel's threads see it: each request is answered from memory at once where that is possible, else a
//! task goes on with it. What the operations do is in the files beside.
//!
//! # Answers and notices
//!
//! An answer may say that something is true for hours. It must not reach the kernel after the notice that revokes it.
//! So answers are put together and sent inside the *gate*, and a notice closes the gate for a moment first. What was
//! found out before the gate was closed and is answered after it is not *fresh*, and the kernel may keep it for no time
//! at all. The same holds for what was found out while a notice is still on its way here: the request that found out
//! the change itself may be answered before the notice comes.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use afs_client::{Client, Error, Fid, Found, Pending, Status, User};
use fuse_dev::{
    Attributes, Caller, Device, Entry, FileSystemSpace, Handler, NodeId, Notifier, Operation, Reply, Request,
    Unique,
};
use rx_proto::time::Instant;
use std::os::unix::ffi::OsStrExt;
use tokio::runtime;

use crate::answer::{Answer, Taken};
use crate::attributes::{self, Owners, Serves};
use crate::files::Place;
use crate::handles::Handles;
use crate::in_flight::{EndedBy, InFlight};
use crate::inodes::Inodes;
use crate::nodes::{At, Node, Nodes};
use crate::notices::{NameInvalidations, SentBack, Waiting};

/// The space of the folder of cells, which has none of its own: programs that look there before they write below find room. It is what
/// OpenAFS's clients say.
const MADE_UP_KIB: u64 = i32::MAX as u64;

/// The longest that a directory is kept locked for a server that does not answer: longer than a server takes to start again, and short
/// beside the ten minutes for which data are waited for.
const LOCKED_MAX: Duration = Duration::from_secs(60);

/// The time between two looks at how long a request has waited, and at whether the server is only busy.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells whether what an answer says was found out since the last notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fresh(pub(crate) bool);

/// The result of an operation, to be made an answer inside the gate.
pub(crate) type Outcome = Box<dyn FnOnce(&Arc<FileSystem>, Fresh) -> Answer + Send>;

/// Makes an outcome of a function.
pub(crate) fn outcome(make: impl FnOnce(&Arc<FileSystem>, Fresh) -> Answer + Send + 'static) -> Outcome {
    Box::new(make)
}

/// An outcome that is always the same.
pub(crate) fn just(answer: Answer) -> Outcome {
    Box::new(move |_, _| answer)
}

/// A mounted file system.
#[derive(Debug)]
pub(crate) struct FileSystem {
    pub(crate) client: Client,
    pub(crate) runtime: runtime::Handle,
    pub(crate) nodes: Nodes,
    pub(crate) inodes: Inodes,
    pub(crate) handles: Handles,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) owners: Owners,
    pub(crate) serves: Serves,
    pub(crate) passthrough: Passthrough,
    pub(crate) device: Arc<Device>,
    pub(crate) notifier: Notifier,
    pub(crate) name_invalidations: NameInvalidations<Waiting>,
    pub(crate) sent_back: SentBack,
    /// True if the kernel gives each change of a file a time of its own once the last was looked at (Linux 6.13).
    pub(crate) has_fine_times: bool,
    /// True if what is read past the page cache can be mapped all the same (Linux 6.6).
    pub(crate) can_map_direct: bool,
    /// The number of notices so far; open for answers, closed by notices.
    gate: RwLock<u64>,
    /// The notices that have not come to the gate.
    pub(crate) pending: Pending,
    /// The number of notices so far, including those that wait for the gate; and the number of those under way.
    pub(crate) announced: AtomicU64,
    pub(crate) notices_in_flight: AtomicUsize,
    /// The time when the last notice had been sent.
    pub(crate) noticed: Mutex<Option<Instant>>,
    /// The time when the kernel was last answered that a file is shorter than it believed.
    pub(crate) shortened: Mutex<Option<Instant>>,
}

/// The kernel that a file system is mounted in.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) device: Arc<Device>,
    pub(crate) notifier: Notifier,
    /// See [`FileSystem::can_map_direct`].
    pub(crate) can_map_direct: bool,
}

/// The setting whether the kernel may read files of the cache by itself.
#[derive(Debug)]
pub(crate) struct Passthrough {
    /// Files from this length on; it costs more to open than the page cache does.
    pub(crate) min_bytes: u64,
    is_on: AtomicBool,
}

impl Passthrough {
    pub(crate) fn new(min_bytes: Option<u64>) -> Self {
        Self { min_bytes: min_bytes.unwrap_or(u64::MAX), is_on: AtomicBool::new(min_bytes.is_some()) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Notes that it does not work here.
    pub(crate) fn switch_off(&self, why: &std::io::Error) {
        if self.is_on.swap(false, Ordering::Relaxed) {
            tracing::warn!(%why, "no passthrough: cached files are read through the page cache");
        }
    }
}

impl FileSystem {
    pub(crate) fn new(
        client: Client,
        runtime: runtime::Handle,
        owners: Owners,
        serves: Serves,
        passthrough: Passthrough,
        Kernel { device, notifier, can_map_direct }: Kernel,
        pending: Pending,
    ) -> Self {
        let nodes = Nodes::new(client.root(), client.config().kernel_nodes);
        Self {
            client,
            runtime,
            nodes,
            inodes: Inodes::default(),
            handles: Handles::default(),
            in_flight: Arc::default(),
            owners,
            serves,
            passthrough,
            device,
            notifier,
            name_invalidations: NameInvalidations::default(),
            sent_back: SentBack::default(),
            has_fine_times: has_fine_times(),
            can_map_direct,
            gate: RwLock::new(0),
            pending,
            announced: AtomicU64::new(0),
            notices_in_flight: AtomicUsize::new(0),
            noticed: Mutex::default(),
            shortened: Mutex::default(),
        }
    }

    /// Opens the gate for an answer. Nothing is waited for inside.
    pub(crate) fn enter(&self) -> RwLockReadGuard<'_, u64> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the answers that are being sent are with the kernel. What was found out before is not fresh from here on.
    pub(crate) fn close_gate(&self) {
        *self.gate.write().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Answers at once, if `hit` can; else gives the reply back.
    pub(crate) fn answer_hit(
        self: &Arc<Self>,
        reply: Reply,
        hit: impl FnOnce(Fresh) -> Option<Answer>,
    ) -> Result<(), Reply> {
        let gate = self.enter();
        let Some(answer) = hit(Fresh(!self.pending.any())) else { return Err(reply) };
        let taken = answer.send(reply);
        drop(gate);
        self.take_back(taken);
        Ok(())
    }

    /// Runs work that may have to wait, and answers. The first steps are done here: if the work then need not wait, it changes no
    /// thread.
    pub(crate) fn run(
        self: &Arc<Self>,
        caller: Caller,
        reply: Reply,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) {
        self.run_until(EndedBy::Meant, caller, reply, work);
    }

    /// The same for what the kernel does with a directory locked: nobody else gets at names in it until this is answered, and not even
    /// SIGKILL ends their wait. So it fails in bounded time where nobody answers.
    pub(crate) fn run_locked(
        self: &Arc<Self>,
        caller: Caller,
        reply: Reply,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) {
        let client = self.client.clone();
        self.run(caller, reply, async move {
            let outcome = bounded(work, (LOCKED_MAX, LOOK_EVERY), || client.waits_in_vain()).await;
            outcome.unwrap_or_else(|| just(Answer::Error(libc::ETIMEDOUT)))
        });
    }

    /// See [`Self::run`]; says which signals of the caller end it.
    pub(crate) fn run_until(
        self: &Arc<Self>,
        ended_by: EndedBy,
        caller: Caller,
        reply: Reply,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) {
        // What follows is the same for all, and compiled once.
        self.run_boxed(ended_by, caller, reply, Box::pin(work));
    }

    fn run_boxed(
        self: &Arc<Self>,
        ended_by: EndedBy,
        caller: Caller,
        reply: Reply,
        mut work: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    ) {
        let began = *self.enter();
        {
            let _entered = self.runtime.enter();
            if let Poll::Ready(outcome) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return self.finish(began, outcome, move |answer| answer.send(reply));
            }
        }
        let fs = Arc::clone(self);
        self.in_flight.begin(caller.pid, ended_by, reply, |due| {
            let task = async move {
                let outcome = work.await;
                fs.finish(began, outcome, move |answer| due.answer(answer));
            };
            self.runtime.spawn(task).abort_handle()
        });
    }

    fn finish(
        self: &Arc<Self>,
        began: u64,
        outcome: Outcome,
        send: impl FnOnce(Answer) -> Taken + Send + 'static,
    ) {
        let gate = self.enter();
        let answer = outcome(self, Fresh(*gate == began && !self.pending.any()));
        if matches!(answer, Answer::AskAgain) {
            drop(gate);
            return self.ask_again(Box::new(move || {
                let _ = send(answer);
            }));
        }
        let taken = send(answer);
        drop(gate);
        self.take_back(taken);
    }

    /// The kernel did not take an answer, so it will not undo it.
    fn take_back(self: &Arc<Self>, taken: Taken) {
        if let Some(handle) = taken.not_opened {
            self.release(handle);
        }
        if let Some(node) = taken.not_looked_up {
            self.nodes.forget(node, 1);
        }
    }

    /// The error for a program.
    pub(crate) fn errno(&self, error: &Error) -> Answer {
        tracing::debug!(%error, "a request failed");
        match error {
            // The kernel looks the path up again then, and finds what has the name now. With ENOENT there would be a moment without
            // any file when one is renamed over another.
            Error::Gone { .. } => Answer::Error(libc::ESTALE),
            other => Answer::Error(other.errno().0),
        }
    }

    /// The same of an operation on a name in a directory. One that is gone has no names, as with a local file system: nothing is left to
    /// be looked up again, and programs that remove a tree go on when somebody else was faster.
    pub(crate) fn errno_of_name(&self, error: &Error) -> Answer {
        match error {
            Error::Gone { .. } => {
                tracing::debug!(%error, "there is no such name");
                Answer::Error(libc::ENOENT)
            }
            other => self.errno(other),
        }
    }

    /// The attributes for `stat`, given a status.
    pub(crate) fn attributes(&self, status: &Status) -> Attributes {
        let uid = self.owners.uid(&self.client, status.fid.cell, status.owner);
        attributes::of_status(status, uid, self.inodes.number(status.fid))
    }

    /// The time for which the kernel may keep names of a directory.
    pub(crate) fn name_ttl(&self, user: User, dir: Fid) -> Duration {
        match self.client.cached_status(user, dir) {
            Some(Ok(status)) => attributes::name_ttl(self.client.now(), self.serves(), &status),
            Some(Err(_)) | None => Duration::ZERO,
        }
    }

    /// The answer to what was found under a name. Counts as a look-up.
    pub(crate) fn entry(&self, user: User, dir: &Node, name: &[u8], found: &Found, fresh: Fresh) -> Entry {
        let (mut name_ttl, mut attributes_ttl) = (Duration::ZERO, Duration::ZERO);
        if fresh.0 {
            name_ttl = self.name_ttl(user, dir.fid);
            attributes_ttl = attributes::attributes_ttl(self.client.now(), &found.status);
        }
        let at = At { dir: dir.id, name, is_kept: !name_ttl.is_zero() };
        let node = self.nodes.look_up(found.fid, at, self.client.now());
        node.note_told(&found.status, fresh);
        Entry { node: node.id, attributes: self.attributes(&found.status), name_ttl, attributes_ttl }
    }

    /// The answer to a thread's look-up.
    pub(crate) fn found(
        self: &Arc<Self>,
        (user, thread): (User, u32),
        dir: &Node,
        name: &[u8],
        found: Result<Found, Error>,
        fresh: Fresh,
    ) -> Answer {
        match found {
            Ok(found) if self.has_to_look_again((user, thread), dir, name, &found) => {
                Answer::Error(libc::ESTALE)
            }
            Ok(found) => Answer::Entry(self.entry(user, dir, name, &found, fresh)),
            Err(Error::NoEntry { .. }) => {
                let ttl = if fresh.0 { self.name_ttl(user, dir.fid) } else { Duration::ZERO };
                let is_kept = !ttl.is_zero() && self.nodes.note_absent(dir.id, name, self.client.now());
                Answer::Absent(if is_kept { ttl } else { Duration::ZERO })
            }
            Err(error) => self.errno_of_name(&error),
        }
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.nodes.forget(node, lookups);
    }

    fn interrupt(&self, request: Unique, reply: Reply) {
        if self.in_flight.interrupt(request, &self.runtime) {
            reply.nothing();
        } else {
            // It may not have come so far yet; if it is answered meanwhile, the kernel knows.
            reply.error(libc::EAGAIN);
        }
    }

    fn space(self: &Arc<Self>, caller: Caller, fid: Fid, reply: Reply) {
        let (client, user) = (self.client.clone(), self.user(caller));
        self.run(caller, reply, async move {
            if fid.is_made_up() {
                return just(Answer::Space(FileSystemSpace {
                    block_size: 1024,
                    blocks: MADE_UP_KIB,
                    free: MADE_UP_KIB,
                    available: MADE_UP_KIB,
                    name_max: 255,
                    ..Default::default()
                }));
            }
            match client.space(user, fid).await {
                Ok(space) => just(Answer::Space(FileSystemSpace {
                    block_size: 1024,
                    blocks: space.total_kib,
                    free: space.free_kib,
                    available: space.free_kib,
                    name_max: 255,
                    ..Default::default()
                })),
                Err(error) => outcome(move |fs, _| fs.errno(&error)),
            }
        });
    }
}

/// Returns the result of work; `None` if the work has taken longer than the limit and waits in vain, which is checked now and then. A
/// time in which this process stood still counts for one look: it says nothing of those who are waited for.
async fn bounded<T>(
    work: impl Future<Output = T>,
    (limit, look_every): (Duration, Duration),
    waits_in_vain: impl Fn() -> bool,
) -> Option<T> {
    let mut work = pin!(work);
    let mut waited = Duration::ZERO;
    loop {
        if let Ok(output) = tokio::time::timeout(look_every, work.as_mut()).await {
            return Some(output);
        }
        waited += look_every;
        if waited >= limit && waits_in_vain() {
            return None;
        }
    }
}

/// Handles the kernel's requests for a file system.
#[derive(Debug)]
pub(crate) struct KernelHandler(pub(crate) Arc<FileSystem>);

impl Handler for KernelHandler {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let fs = &self.0;
        fs.client.notice_suspension();
        let caller = request.caller;
        match request.operation {
            Operation::Forget { lookups } => {
                fs.forget(request.node, lookups);
                return reply.nothing();
            }
            Operation::BatchForget(nodes) => {
                nodes.for_each(|(node, lookups)| fs.forget(node, lookups));
                return reply.nothing();
            }
            Operation::Interrupt { request } => return fs.interrupt(request, reply),
            Operation::Destroy => return reply.ok(),
            _ => {}
        }
        let Some(node) = fs.nodes.get(request.node) else { return reply.error(libc::ESTALE) };
        match request.operation {
            Operation::Lookup { name } => fs.look_up(caller, node, name.as_bytes(), reply),
            Operation::GetAttributes { handle } => fs.get_attributes(caller, node, handle, reply),
            Operation::SetAttributes(set) => fs.set_attributes(caller, node, set, reply),
            Operation::Access(access) => fs.access(caller, node, access, reply),
            Operation::ReadLink => fs.read_link(caller, node, reply),
            Operation::Symlink { name, target } => {
                fs.symlink(caller, node, name.as_bytes(), target.as_bytes(), reply);
            }
            Operation::MakeNode { name, mode, .. } => {
                fs.make_node(caller, node, name.as_bytes(), mode, reply)
            }
            Operation::MakeDirectory { name, mode, .. } => {
                fs.make_directory(caller, node, name.as_bytes(), mode, reply);
            }
            Operation::Unlink { name } => fs.unlink(caller, node, name.as_bytes(), reply),
            Operation::RemoveDirectory { name } => fs.remove_directory(caller, node, name.as_bytes(), reply),
            Operation::Rename { name, to, new_name, flags } => {
                let names = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
                match fs.nodes.get(to) {
                    Some(to) => fs.rename(caller, (node, names.0), (to, names.1), flags, reply),
                    None => reply.error(libc::ESTALE),
                }
            }
            Operation::Link { existing, name } => match fs.nodes.get(existing) {
                Some(existing) => fs.link(caller, existing, node, name.as_bytes(), reply),
                None => reply.error(libc::ESTALE),
            },
            Operation::Open { flags, kills_privileges } => {
                fs.open(caller, node, flags, kills_privileges, reply);
            }
            Operation::Create { name, mode, flags, kills_privileges, .. } => {
                fs.create(caller, node, name.as_bytes(), (mode, flags), kills_privileges, reply);
            }
            Operation::Read { handle, pos, length, is_direct } => {
                fs.read(caller, handle, (pos, length), is_direct, reply);
            }
            Operation::Write { handle, pos, data, is_from_cache, kills_privileges, is_append } => {
                let place = Place { pos, is_append: is_append && !is_from_cache };
                fs.write(caller, handle, (place, data), kills_privileges, reply);
            }
            Operation::Flush { handle, owner } => fs.flush(caller, handle, owner, reply),
            Operation::Release { handle, flock_owner } => {
                fs.give_up_locks_of(&node, handle, flock_owner);
                fs.release(handle);
                reply.ok();
            }
            Operation::Sync { handle, .. } => fs.sync(caller, handle, reply),
            Operation::Allocate { handle, pos, length, mode } => {
                fs.allocate(caller, handle, (pos, length), mode, reply);
            }
            Operation::OpenDirectory { .. } => fs.open_directory(caller, node, reply),
            Operation::ReadDirectory { handle, pos, room } => {
                fs.read_directory(caller, handle, (pos, room), false, reply);
            }
            Operation::ReadDirectoryPlus { handle, pos, room } => {
                fs.read_directory(caller, handle, (pos, room), true, reply);
            }
            Operation::ReleaseDirectory { handle } => {
                fs.release(handle);
                reply.ok();
            }
            // The servers have what was done to a directory before it is answered.
            Operation::SyncDirectory { .. } | Operation::SyncFileSystem => reply.ok(),
            Operation::StatFs => fs.space(caller, node.fid, reply),
            Operation::GetXattr { name, room } => fs.get_xattr(caller, node, name.as_bytes(), room, reply),
            // As kAFS has it: names that tools would copy are not listed.
            Operation::ListXattr { room } => reply.sized(&[], room),
            Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => reply.error(libc::EOPNOTSUPP),
            Operation::GetLock(lock) => fs.get_lock(&node, lock, reply),
            Operation::SetLock { lock, waits } => fs.set_lock(caller, node, lock, waits, reply),
            // The kernel does these by itself once it has heard so.
            Operation::Seek { .. } | Operation::CopyRange { .. } | Operation::Other { .. } => {
                reply.error(libc::ENOSYS)
            }
            Operation::Forget { .. }
            | Operation::BatchForget(_)
            | Operation::Interrupt { .. }
            | Operation::Destroy => unreachable!("answered above"),
        }
    }
}

fn has_fine_times() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|text| text.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 13)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_locked_directory_is_let_go_of_where_nobody_answers_and_kept_for_who_is_busy() {
        let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let times = (Duration::from_millis(20), Duration::from_millis(1));
        let slow = || tokio::time::sleep(Duration::from_millis(40));
        runtime.block_on(async {
            assert_eq!(bounded(std::future::pending::<()>(), times, || true).await, None);
            assert_eq!(bounded(slow(), times, || false).await, Some(()));
            assert_eq!(bounded(std::future::ready(1), times, || true).await, Some(1));
            let looks = Cell::new(0);
            let in_the_end = || looks.replace(looks.get() + 1) > 3;
            assert_eq!(bounded(std::future::pending::<()>(), times, in_the_end).await, None);
        });
    }

    /// A client that was stopped for a minute in the middle of an operation failed it with ETIMEDOUT, though the answer was there.
    #[test]
    fn a_client_that_stood_still_does_not_let_go_of_a_locked_directory_for_that() {
        let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let times = (Duration::from_millis(50), Duration::from_millis(1));
        let answer = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let stands_still = async { std::thread::sleep(Duration::from_millis(100)) };
        let (outcome, ()) =
            runtime.block_on(async { tokio::join!(bounded(answer, times, || true), stands_still) });
        assert_eq!(outcome, Some(()));
    }
}
