//! Operations on files: opening in the way that the modes table says, reading, writing, storing.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::SystemTime;

use afs_client::{AtOnce, DataOf, Error, Fid, Found, Made, OpenFile, OpenFlags, SetStatus, Status, User};
use bytes::Bytes;
use fuse_dev::{Backing, Caller, Handle, Reply};

use crate::answer::Answer;
use crate::file_system::{FileSystem, Fresh, just, outcome};
use crate::handles::{FileHandle, Open};
use crate::locks::GivesUpLocks;
use crate::modes::{IoPath, OpenKind};
use crate::nodes::{Node, State};

/// Set-uid and set-gid bits. Servers take both away together.
pub(crate) const PRIVILEGES: u32 = 0o6000;

/// `FALLOC_FL_KEEP_SIZE`, `_PUNCH_HOLE` and `_ZERO_RANGE`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// Zeros that are written at once where a range is to become zero.
const ZEROS: usize = 1 << 20;

/// Zeros that a hole in the middle of a file is made of: they take room in the cache and at the server, and time to get there. What asks
/// for more does without.
const ZEROS_MAX: u64 = 64 << 20;

thread_local! {
    /// The buffer of reads from the cache. There is one for each thread that the kernel talks to.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The flags of `open(2)`, as the client has them.
fn flags_of(flags: u32) -> OpenFlags {
    let flags = flags as i32;
    let access = flags & libc::O_ACCMODE;
    OpenFlags {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        truncate: flags & libc::O_TRUNC != 0,
    }
}

/// The place where bytes are to be written: to append, the kernel's position is but where it believes the end to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) pos: u64,
    pub(crate) is_append: bool,
}

/// Marks a file that cannot be opened as the node that the kernel has.
struct Stale;

impl FileSystem {
    pub(crate) fn open(
        self: &Arc<Self>,
        caller: Caller,
        node: Arc<Node>,
        flags: u32,
        kills_privileges: bool,
        reply: Reply,
    ) {
        let (user, flags) = (self.user(caller), flags_of(flags));
        if node.state().is_retired {
            // The kernel then looks the name up again.
            return reply.error(libc::ESTALE);
        }
        let hit = |fresh| {
            let status = self.client.cached_status(user, node.fid).and_then(Result::ok);
            if status.is_some_and(|status| !node.kernel_length.is(status.length)) {
                return None;
            }
            let file = self.client.cached_open(user, node.fid, flags)?;
            Some(self.opened(&node, file, status, fresh))
        };
        let Err(reply) = self.answer_hit(reply, hit) else { return };
        let fs = Arc::clone(self);
        self.run(caller, reply, async move {
            let file = fs.client.open(user, node.fid, flags).await;
            if kills_privileges && file.is_ok() {
                fs.drop_privileges(user, node.fid).await;
            }
            if let Ok(file) = &file
                && !fs.has_length(&node, file).await
            {
                return just(Answer::Error(libc::ESTALE));
            }
            outcome(move |fs, fresh| {
                let status = fs.client.cached_status(user, node.fid).and_then(Result::ok);
                fs.opened(&node, file, status, fresh)
            })
        });
    }

    fn opened(
        &self,
        node: &Arc<Node>,
        file: Result<OpenFile, Error>,
        status: Option<Status>,
        fresh: Fresh,
    ) -> Answer {
        let file = match file {
            Ok(file) => file,
            Err(error) => return self.errno(&error),
        };
        match self.install(node, file, status, fresh) {
            Ok((handle, flags, backing)) => Answer::Opened(handle, flags, backing),
            Err(Stale) => Answer::Error(libc::ESTALE),
        }
    }

    /// Decides in which way a file is open, and gives it a number.
    fn install(
        &self,
        node: &Arc<Node>,
        file: OpenFile,
        status: Option<Status>,
        fresh: Fresh,
    ) -> Result<(Handle, fuse_dev::OpenFlags, Option<Arc<Backing>>), Stale> {
        let is_write = file.flags().write;
        let version = status.filter(|_| fresh.0).map(|status| status.data_version);
        let is_large = status.is_some_and(|status| status.length >= self.passthrough.min_bytes);
        let may_pass = is_large && self.passthrough.is_on() && !self.nodes.locked.has(node.fid);
        let whole = if may_pass { file.backing() } else { None };
        let mut state = node.state();
        if state.is_retired {
            return Err(Stale);
        }
        let mut kind = match (is_write, &whole) {
            (true, _) => OpenKind::Write,
            (false, Some(_)) => OpenKind::ReadWhole,
            (false, None) => OpenKind::Read,
        };
        if state.mode.open(kind).1 == IoPath::Through && state.backing.is_none() {
            let whole = whole.as_ref().expect("only whole files are opened so at first");
            match self.device.open_backing(whole.as_fd()) {
                Ok(backing) => state.backing = Some((Arc::new(backing), Arc::clone(whole))),
                Err(error) => {
                    self.passthrough.switch_off(&error);
                    kind = OpenKind::Read;
                }
            }
        }
        let (mode, io) = state.mode.open(kind);
        let mut is_lent = false;
        let backing = match io {
            IoPath::Cached => None,
            IoPath::Through | IoPath::Beside => {
                let (backing, of) = state.backing.as_ref().expect("the first open has made it");
                let same = file.backing().is_some_and(|whole| Arc::ptr_eq(&whole, of));
                if !same {
                    // What the kernel reads is no longer what this file is: a new node is needed for it.
                    drop(state);
                    self.nodes.retire(node);
                    return Err(Stale);
                }
                if io == IoPath::Beside && file.flags().read {
                    // What is written to a mapping is not told.
                    if let Err(error) = file.lend() {
                        tracing::warn!(fid = %node.fid, %error, "what is written to a mapping may not outlast a crash");
                    }
                    is_lent = true;
                }
                let backing = Arc::clone(backing);
                if is_lent && state.lent.is_none() {
                    state.lent = written_at(&state);
                }
                Some(backing)
            }
        };
        state.mode = mode;
        let mut flags = fuse_dev::OpenFlags::NONE;
        match io {
            IoPath::Cached => {
                if version.is_some() && state.pages == version {
                    flags = flags.and(fuse_dev::OpenFlags::KEEP_CACHE);
                }
                state.pages = version;
                if !is_write && self.can_map_direct && state.changes.are_frequent(self.client.now()) {
                    // See `told`.
                    flags = flags.and(fuse_dev::OpenFlags::DIRECT_IO);
                }
            }
            // The kernel drops its pages for this open.
            IoPath::Through => state.pages = None,
            IoPath::Beside => {
                state.pages = None;
                flags = flags.and(fuse_dev::OpenFlags::DIRECT_IO);
            }
        }
        drop(state);
        if file.is_in_read_only_volume() {
            // FLUSH is for what was written and for the locks of `fcntl(2)`: see `set_lock`.
            flags = flags.and(fuse_dev::OpenFlags::NO_FLUSH);
        }
        let is_direct = flags.has(fuse_dev::OpenFlags::DIRECT_IO);
        let open = FileHandle { node: Arc::clone(node), file, is_lent, is_direct };
        let handle = self.handles.add(Open::File(Arc::new(open)));
        Ok((handle, flags, backing))
    }

    pub(crate) fn create(
        self: &Arc<Self>,
        caller: Caller,
        dir: Arc<Node>,
        name: &[u8],
        (mode, flags): (u32, u32),
        kills_privileges: bool,
        reply: Reply,
    ) {
        let (fs, name, user) = (Arc::clone(self), name.to_vec(), self.user(caller));
        let exclusive = flags as i32 & libc::O_EXCL != 0;
        let flags = flags_of(flags);
        let changing = self.changing(user, [(dir.id, &name)]);
        self.run_locked(caller, reply, async move {
            let mut created =
                fs.client.create_and_open(user, (dir.fid, &name), mode & 0o7777, flags, exclusive).await;
            // The bits of one that was there, when it was emptied.
            if let Ok((made, _)) = created.as_mut()
                && kills_privileges
            {
                fs.drop_privileges(user, made.fid).await;
                made.status.mode &= !PRIVILEGES;
            }
            changing.settle(&created);
            outcome(move |fs, fresh| match created {
                Ok((made, file)) => {
                    fs.nodes.drop_name(dir.id, &name);
                    fs.created(user, &dir, &name, (made, file), fresh)
                }
                Err(error) => {
                    fs.note_not_made(&dir, &name, &error);
                    match fs.has_to_come_back(caller.pid, &[(dir.id, &name)], &error) {
                        true => Answer::Error(libc::ESTALE),
                        false => fs.errno(&error),
                    }
                }
            })
        });
    }

    fn created(
        &self,
        user: User,
        dir: &Node,
        name: &[u8],
        (made, file): (Made, OpenFile),
        fresh: Fresh,
    ) -> Answer {
        let found: Found = made;
        let entry = self.entry(user, dir, name, &found, fresh);
        let node = self.nodes.get(entry.node).expect("it has just been looked up");
        let status = self.client.cached_status(user, node.fid).and_then(Result::ok);
        match self.install(&node, file, status, fresh) {
            Ok((handle, flags, None)) => Answer::Created(entry, handle, flags),
            // A file that was there, and that others read by passthrough: the kernel opens it anew.
            Ok((handle, _, Some(_))) => {
                self.release(handle);
                self.nodes.forget(node.id, 1);
                Answer::Error(libc::ESTALE)
            }
            Err(Stale) => {
                self.nodes.forget(node.id, 1);
                Answer::Error(libc::ESTALE)
            }
        }
    }

    /// Takes an open file or directory back.
    pub(crate) fn release(&self, handle: Handle) {
        let Some(Open::File(file)) = self.handles.remove(handle) else { return };
        self.note_lent(&file, true);
        let mut state = file.node.state();
        state.mode = state.mode.release();
        // Giving it up asks the kernel, which is not done with the state locked.
        let backing = if state.mode.is_closed() { state.backing.take() } else { None };
        if state.mode.is_closed() {
            state.lent = None;
        }
        drop(state);
        drop(backing);
    }

    pub(crate) fn read(
        self: &Arc<Self>,
        caller: Caller,
        handle: Handle,
        (pos, length): (u64, u32),
        is_direct: bool,
        reply: Reply,
    ) {
        let Some(open) = self.handles.file(handle) else { return reply.error(libc::EBADF) };
        // What goes past the kernel's pages may be as short as it is.
        let is_direct = is_direct || open.is_direct;
        let range = pos..pos.saturating_add(length.into());
        let asked = self.asked(&open.node, &range);
        let length = length as usize;
        let mut is_on_disk = false;
        let reply = BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < length {
                buffer.resize(length, 0);
            }
            match open.file.cached_read_at_once(pos, &mut buffer[..length]) {
                // It is to be longer first.
                Ok((AtOnce::Read(_), Some(of))) if !is_direct && self.is_outgrown(&open.node, &range, of) => {
                    Some(reply)
                }
                // It ended before this when it was asked for. To ask the server takes so long that it may have changed once more.
                Ok((AtOnce::Read(count), of)) => {
                    let _gate = self.enter();
                    if is_direct || self.agrees(&open.node, asked, &range, (count, of)) {
                        reply.data(&buffer[..count]);
                    } else {
                        self.ask_again(Box::new(move || reply.error(libc::EINTR)));
                    }
                    None
                }
                Err(error) => {
                    self.errno(&error).send(reply);
                    None
                }
                Ok((not_at_once, _)) => {
                    is_on_disk = not_at_once == AtOnce::OnDisk;
                    Some(reply)
                }
            }
        });
        let Some(reply) = reply else { return };
        let fs = Arc::clone(self);
        self.run(caller, reply, async move {
            let here = if is_on_disk { read_from_disk(Arc::clone(&open), pos, length).await } else { None };
            let data = match here {
                Some(data) => data,
                None => open.file.read_of(pos, length).await,
            };
            let (data, of) = match data {
                Ok(read) => read,
                Err(error) => return outcome(move |fs, _| fs.errno(&error)),
            };
            if !is_direct && fs.is_outgrown(&open.node, &range, of) {
                fs.lengthen_soon(&open, asked, &range, of).await;
            }
            outcome(move |fs, _| {
                // The outcome is found, and sent, inside the gate.
                match is_direct || fs.agrees(&open.node, asked, &range, (data.len(), Some(of))) {
                    true => Answer::Data(data),
                    false => Answer::AskAgain,
                }
            })
        });
    }

    pub(crate) fn write(
        self: &Arc<Self>,
        caller: Caller,
        handle: Handle,
        (place, data): (Place, &[u8]),
        kills_privileges: bool,
        reply: Reply,
    ) {
        let Some(open) = self.handles.file(handle) else { return reply.error(libc::EBADF) };
        let length = data.len() as u32;
        if !kills_privileges {
            let written = match place.is_append {
                true => open.file.cached_append(data),
                false => open.file.cached_write(place.pos, data).map(|done| done.map(|()| place.pos)),
            };
            if let Some(written) = written {
                let _ = self.written(&open.node, place, length, written).send(reply);
                return;
            }
        }
        let fs = Arc::clone(self);
        // The request's buffer takes the next one as soon as this returns.
        let data = Bytes::copy_from_slice(data);
        self.run(caller, reply, async move {
            if kills_privileges {
                fs.drop_privileges(open.file.user(), open.file.fid()).await;
            }
            let written = match place.is_append {
                true => open.file.append(data).await,
                false => open.file.write(place.pos, data).await.map(|()| place.pos),
            };
            outcome(move |fs, _| fs.written(&open.node, place, length, written))
        });
    }

    /// The answer to a write, which went to some position.
    fn written(
        self: &Arc<Self>,
        node: &Arc<Node>,
        place: Place,
        length: u32,
        written: Result<u64, Error>,
    ) -> Answer {
        let mut state = node.state();
        if state.lent.is_some() {
            // The file that the kernel reads by itself is another now.
            state.lent = written_at(&state);
        }
        let at = match written {
            Ok(at) => at,
            Err(error) => return self.errno(&error),
        };
        let end = place.pos + u64::from(length);
        node.kernel_length.note_written(end);
        state.empty.note_written(&(place.pos..end));
        if at != place.pos {
            // The kernel has them in another place.
            state.pages = None;
            drop(state);
            self.forget_soon(node);
        }
        Answer::Written(length)
    }

    pub(crate) fn flush(self: &Arc<Self>, caller: Caller, handle: Handle, owner: u64, reply: Reply) {
        let Some(open) = self.handles.file(handle) else { return reply.error(libc::EBADF) };
        open.file.note_closing();
        // Also by a descriptor that is open to read: the kernel tells of a close in no other way, and any close of a program's ends its locks.
        let locks = GivesUpLocks { fs: Arc::clone(self), open: Arc::clone(&open), owner };
        let has_lock = self.has_whole_lock(&open.node, owner);
        if !open.file.flags().write && !has_lock {
            drop(locks);
            return reply.ok();
        }
        self.note_lent(&open, false);
        let unique = reply.unique();
        self.run(caller, reply, async move {
            // Who is given the lock has to find at the server what was written under it.
            let flushed = match has_lock {
                true => open.file.flush().await,
                false => open.file.close().await,
            };
            // Who gets them then finds what was written.
            drop(locks);
            outcome(move |fs, _| {
                if flushed.is_ok() {
                    fs.note_stored(&open);
                }
                fs.done(flushed)
            })
        });
        self.in_flight.look_at(unique, &self.runtime);
    }

    pub(crate) fn sync(self: &Arc<Self>, caller: Caller, handle: Handle, reply: Reply) {
        let Some(open) = self.handles.file(handle) else { return reply.error(libc::EBADF) };
        self.note_lent(&open, false);
        self.run(caller, reply, async move {
            let synced = open.file.fsync().await;
            outcome(move |fs, _| {
                if synced.is_ok() {
                    fs.note_stored(&open);
                }
                fs.done(synced)
            })
        });
    }

    /// Finds out whether something was written to a mapping since our last write, and if so has it stored. Its time tells, where
    /// the kernel gives each change a time of its own; elsewhere it is taken for written always.
    pub(crate) fn note_lent(&self, open: &FileHandle, is_over: bool) {
        if !open.is_lent {
            return;
        }
        let mut state = open.node.state();
        let now = written_at(&state);
        let has_changed = now.is_none() || now != state.lent || !self.has_fine_times;
        state.lent = now;
        drop(state);
        if let Err(error) = open.file.note_lent(has_changed, is_over) {
            tracing::error!(fid = %open.node.fid, %error, "what was written to a mapping cannot be stored");
        }
    }

    /// A store of ours has made a new version: the kernel's pages, which had it before, are of that one, unless there was a notice.
    pub(crate) fn note_stored(&self, open: &FileHandle) {
        if let Some(Ok(status)) = self.client.cached_status(open.file.user(), open.node.fid) {
            let mut state = open.node.state();
            if state.pages.is_some() {
                state.pages = Some(status.data_version);
            }
            state.told.note_stored(status.data_version);
        }
    }

    /// A write by somebody who might not have been given them takes set-uid and set-gid bits away. The kernel asks for the mode anew.
    async fn drop_privileges(&self, user: User, fid: Fid) {
        if let Ok(status) = self.client.status(user, fid).await
            && status.mode & PRIVILEGES != 0
        {
            let set = SetStatus { mode: Some(status.mode & 0o7777 & !PRIVILEGES), ..SetStatus::default() };
            // The mount ignores the bits anyway, unless it was told not to.
            if let Err(error) = self.client.set_status(user, fid, set).await {
                tracing::warn!(%fid, %error, "set-uid bits stay after a write");
            }
            if let Some(node) = self.nodes.of_fid(fid) {
                self.forget_attributes(&node);
            }
        }
    }

    pub(crate) fn allocate(
        self: &Arc<Self>,
        caller: Caller,
        handle: Handle,
        (pos, length): (u64, u64),
        mode: u32,
        reply: Reply,
    ) {
        let Some(open) = self.handles.file(handle) else { return reply.error(libc::EBADF) };
        let Some(end) = pos.checked_add(length) else { return reply.error(libc::EFBIG) };
        // Space cannot be reserved at a server, but what programs rely on, lengths and zeros, can be had.
        if mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) != 0 {
            return reply.error(libc::EOPNOTSUPP);
        }
        let fs = Arc::clone(self);
        self.run(caller, reply, async move {
            let allocate = async {
                // The kernel leaves it to us, and does not say whether the caller may keep them, as root may.
                if caller.uid != 0 {
                    fs.drop_privileges(open.file.user(), open.file.fid()).await;
                }
                let status = fs.client.status(open.file.user(), open.file.fid()).await?;
                let last = end.min(status.length);
                if mode & (PUNCH_HOLE | ZERO_RANGE) != 0 && last.saturating_sub(pos) > ZEROS_MAX {
                    if last < status.length {
                        return Ok(false);
                    }
                    // What was cut off is read as zeros when the file is as long again.
                    open.file.truncate(pos).await?;
                    open.file.truncate(last).await?;
                } else if mode & (PUNCH_HOLE | ZERO_RANGE) != 0 {
                    let zeros = Bytes::from(vec![0; ZEROS.min(length as usize)]);
                    let mut at = pos;
                    while at < last {
                        let count = (last - at).min(zeros.len() as u64);
                        open.file.write(at, zeros.slice(..count as usize)).await?;
                        at += count;
                    }
                }
                if mode & KEEP_SIZE == 0 && end > status.length {
                    open.file.truncate(end).await?;
                    open.node.kernel_length.note_written(end);
                }
                Ok(true)
            };
            let allocated: Result<bool, Error> = allocate.await;
            outcome(move |fs, _| match allocated {
                Ok(false) => Answer::Error(libc::EOPNOTSUPP),
                Ok(true) => Answer::Ok,
                Err(error) => fs.errno(&error),
            })
        });
    }
}

/// The time when the file that the kernel reads by itself was written.
fn written_at(state: &State) -> Option<SystemTime> {
    state.backing.as_ref()?.1.metadata().ok()?.modified().ok()
}

/// The length of the data that a retired node stands for.
pub(crate) fn retired_length(state: &State) -> Option<u64> {
    let (_, file) = state.backing.as_ref()?;
    file.metadata().ok().map(|metadata| metadata.len())
}
/// Reads what is in the cache, in a thread that may wait for the disk: those that answer the kernel and the network do not. `None`: it has
/// gone from the cache.
async fn read_from_disk(
    open: Arc<FileHandle>,
    pos: u64,
    length: usize,
) -> Option<Result<(Bytes, DataOf), Error>> {
    let read = move || {
        let mut bytes = vec![0; length];
        let read = open.file.cached_read_of(pos, &mut bytes)?;
        Some(read.map(|(count, of)| {
            bytes.truncate(count);
            (Bytes::from(bytes), of)
        }))
    };
    // It fails when the runtime ends, and then nobody is answered.
    tokio::task::spawn_blocking(read).await.ok().flatten()
}
