//! A small kernel: the other end of the FUSE device, over a pair of sockets. It asks as Linux does, keeps names, attributes and pages for as
//! long as it was told, and forgets them when it is told. It needs neither root nor /dev/fuse.
//!
//! It holds no locks while a request is under way, so a notice never waits for an answer here; that is for tests of the real one.

mod names;

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

/// Numbers of `fuse.h`.
mod op {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const GETLK: u32 = 31;
    pub(super) const SETLK: u32 = 32;
    pub(super) const CREATE: u32 = 35;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const RENAME2: u32 = 45;
}

/// The root directory.
pub(crate) const ROOT: u64 = 1;

/// The longest that an answer or a notice is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// The time between two looks whether it is time to give up.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Bits of INIT that Linux 6.12 offers, but for passthrough, which takes a device.
const OFFERED: u64 = 0x0007_ffff_ffff & !(1 << 37);

/// What the file system says of an open file.
const DIRECT_IO: u32 = 1;
const KEEP_CACHE: u32 = 1 << 1;
const NO_FLUSH: u32 = 1 << 5;

/// The errno of a request that failed.
pub(crate) type Outcome<T> = Result<T, i32>;

/// What `stat` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) mtime: u64,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) node: u64,
    handle: u64,
    flags: u32,
    how: u32,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) node: u64,
    handle: u64,
}

/// What the kernel was told to forget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Attributes(u64),
    Data(u64),
    Name(u64, Vec<u8>),
}

#[derive(Debug, Default)]
struct Node {
    attributes: Option<(Attributes, Instant)>,
    /// The length that it goes by, also where the attributes are to be asked for again.
    size: u64,
    /// How often it was told attributes, or to forget them.
    heard: u64,
    pages: BTreeMap<u64, Vec<u8>>,
    lookups: u64,
}

impl Node {
    fn hear(&mut self, attributes: Attributes, until: Instant, is_newest: bool) {
        self.attributes = is_newest.then_some((attributes, until));
        if is_newest {
            if self.size != attributes.size {
                self.pages.retain(|page, _| (page + 1) * PAGE <= attributes.size.min(self.size));
            }
            self.size = attributes.size;
            self.heard += 1;
        }
    }

    fn be_long(&mut self, size: u64) {
        self.size = size;
        self.heard += 1;
        if let Some((attributes, _)) = &mut self.attributes {
            attributes.size = size;
        }
    }
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Notices so far: what was asked before one is not kept.
    notices: u64,
    answers: HashMap<u64, Outcome<Vec<u8>>>,
    /// The nodes of names; 0 of one that is not there.
    names: HashMap<(u64, Vec<u8>), (u64, Instant)>,
    nodes: HashMap<u64, Node>,
    told: Vec<Told>,
    /// Requests by their numbers.
    asked: HashMap<u32, usize>,
    /// Room for a message.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Shared {
    socket: OwnedFd,
    state: Mutex<State>,
}

/// A kernel with one mount. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Kernel(Arc<Shared>);

impl Kernel {
    /// A kernel, and the device that it reads and writes the other end of. INIT is asked at once.
    pub(crate) fn new() -> (Self, OwnedFd) {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, device) = pair.expect("a pair of sockets");
        let state = State { buffer: vec![0; (1 << 20) + 4096], ..State::default() };
        let kernel = Self(Arc::new(Shared { socket: ours, state: Mutex::new(state) }));
        let words = [7u32, 45, 128 << 10, OFFERED as u32 | 1 << 30, (OFFERED >> 32) as u32];
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).chain([0; 44]).collect();
        kernel.send(op::INIT, 0, &[&body]);
        (kernel, device)
    }

    /// The mount is gone: the file system reads the end of the device.
    pub(crate) fn end(&self) {
        rustix::net::shutdown(&self.0.socket, rustix::net::Shutdown::Both).expect("it was open");
    }

    /// What it knows, after all that the file system has said. A notice is done when it is sent, as with Linux.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = mem::take(&mut state.buffer);
        while let Ok((length, _)) = recv(self.0.socket.as_fd(), &mut buffer[..], RecvFlags::DONTWAIT) {
            if length == 0 {
                break;
            }
            state.hear(&buffer[..length]);
        }
        state.buffer = buffer;
        state
    }

    /// Sends a request, and gives its number.
    fn send(&self, operation: u32, node: u64, parts: &[&[u8]]) -> u64 {
        let unique = {
            let mut state = self.state();
            state.last += 2;
            *state.asked.entry(operation).or_default() += 1;
            state.last
        };
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let mut bytes = Vec::with_capacity(40 + body);
        bytes.extend((40 + body as u32).to_ne_bytes());
        bytes.extend(operation.to_ne_bytes());
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(node.to_ne_bytes());
        // The caller: this process.
        for word in
            [rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw(), std::process::id(), 0]
        {
            bytes.extend(word.to_ne_bytes());
        }
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        send(self.0.socket.as_fd(), &bytes, SendFlags::NOSIGNAL).expect("the file system reads");
        unique
    }

    /// Sends a request and waits for its answer; also returns how many notices there had been when it was sent.
    fn ask(&self, operation: u32, node: u64, parts: &[&[u8]]) -> (Outcome<Vec<u8>>, u64) {
        let notices = self.state().notices;
        let unique = self.send(operation, node, parts);
        let answer = self.wait(&format!("an answer to request {operation} of node {node}"), |state| {
            state.answers.remove(&unique)
        });
        (answer, notices)
    }

    fn wait<T>(&self, what: &str, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(&mut self.state()) {
                return found;
            }
            assert!(Instant::now() < until, "waited in vain for {what}");
            let mut ready = [PollFd::new(&self.0.socket, PollFlags::IN)];
            poll(&mut ready, Some(&LOOK_EVERY)).expect("the socket is open");
        }
    }

    /// Waits until the file system has told to forget something.
    pub(crate) fn is_told(&self, what: &Told) {
        self.wait(&format!("{what:?}"), |state| state.told.contains(what).then_some(()));
    }

    /// What it was told to forget since this was last called.
    pub(crate) fn take_told(&self) -> Vec<Told> {
        std::mem::take(&mut self.state().told)
    }

    /// How often it has asked for the attributes, a name, or data.
    pub(crate) fn asked(&self) -> [usize; 3] {
        let state = self.state();
        [op::GETATTR, op::LOOKUP, op::READ].map(|number| state.asked.get(&number).copied().unwrap_or(0))
    }

    // ---- files

    /// Opens a file with flags of `open(2)`; makes it if they say so.
    pub(crate) fn open(&self, path: &str, flags: i32) -> Outcome<Opened> {
        self.again(|| {
            let (dir, name) = self.parent(path)?;
            let flags = flags as u32;
            let found = self.look_up(dir, name);
            if let (Err(libc::ENOENT), true) = (&found, flags & libc::O_CREAT as u32 != 0) {
                let head = words(&[flags, libc::S_IFREG | 0o644, 0o022, 0]);
                let (answer, notices) = self.ask(op::CREATE, dir, &[&head, name.as_bytes(), &[0]]);
                let answer = answer?;
                let (node, _) = self.keep(dir, name.as_bytes(), &answer, notices);
                self.state().nodes.entry(dir).or_default().attributes = None;
                return Ok(self.opened(node, flags, &answer[128..]));
            }
            let node = found?;
            if flags & libc::O_EXCL as u32 != 0 {
                return Err(libc::EEXIST);
            }
            let of_open = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u32;
            let answer = self.ask(op::OPEN, node, &[&words(&[of_open, 0])]).0?;
            let opened = self.opened(node, flags, &answer);
            if flags & libc::O_TRUNC as u32 != 0 {
                self.set(node, 1 << 3, 0, 0)?;
            }
            Ok(opened)
        })
    }

    fn opened(&self, node: u64, flags: u32, answer: &[u8]) -> Opened {
        let mut reader = Reader(answer);
        let (handle, how) = (reader.u64(), reader.u32());
        if how & (KEEP_CACHE | DIRECT_IO) == 0 {
            self.state().nodes.entry(node).or_default().pages.clear();
        }
        Opened { node, handle, flags, how }
    }

    fn fetch(&self, file: &Opened, pos: u64, length: u32) -> (Outcome<Vec<u8>>, u64) {
        let mut body = file.handle.to_ne_bytes().to_vec();
        body.extend(pos.to_ne_bytes());
        body.extend(words(&[length, 0, 0, 0, file.flags, 0]));
        self.ask(op::READ, file.node, &[&body])
    }

    fn heard(&self, node: u64) -> u64 {
        self.state().nodes.get(&node).map_or(0, |node| node.heard)
    }

    /// `pread`: through the pages that it keeps, unless the file system wants every read. As Linux does, it takes a short answer for the file's
    /// end if it has heard nothing of the file since it asked, and else fills the page with zeros.
    pub(crate) fn read(&self, file: &Opened, pos: u64, length: u32) -> Outcome<Vec<u8>> {
        if file.how & DIRECT_IO != 0 {
            return self.fetch(file, pos, length).0;
        }
        let size = self.attributes(file.node)?.size;
        let believed = self.state().nodes.get(&file.node).map_or(0, |node| node.size).max(size);
        let mut end = size.min(pos + u64::from(length));
        let mut bytes = Vec::new();
        for page in pos / PAGE.. {
            if page * PAGE >= end {
                break;
            }
            let known = self.state().nodes.get(&file.node).and_then(|node| node.pages.get(&page).cloned());
            let mut data = match known {
                Some(data) => data,
                None => {
                    let mut heard = self.heard(file.node);
                    // Linux asks ahead of the reader, and once more for the reader where that failed.
                    let (mut data, mut notices) = self.fetch(file, page * PAGE, PAGE as u32);
                    if data.is_err() {
                        heard = self.heard(file.node);
                        (data, notices) = self.fetch(file, page * PAGE, PAGE as u32);
                    }
                    let mut data = data?;
                    let until = page * PAGE + data.len() as u64;
                    let is_short = data.len() < PAGE as usize && until < end;
                    data.resize(PAGE as usize, 0);
                    let mut state = self.state();
                    let is_newest = state.notices == notices;
                    let node = state.nodes.entry(file.node).or_default();
                    if is_short && node.heard == heard {
                        node.be_long(until);
                        end = until;
                    } else if node.size > believed {
                        end = node.size.min(pos + u64::from(length));
                    }
                    if is_newest {
                        node.pages.insert(page, data.clone());
                    }
                    data
                }
            };
            data.truncate((end.saturating_sub(page * PAGE)).min(PAGE) as usize);
            bytes.extend_from_slice(&data[(pos.saturating_sub(page * PAGE) as usize).min(data.len())..]);
        }
        Ok(bytes)
    }

    /// `pwrite`, past the pages; those that it has are changed too.
    pub(crate) fn write(&self, file: &Opened, pos: u64, data: &[u8]) -> Outcome<u32> {
        let mut body = file.handle.to_ne_bytes().to_vec();
        body.extend(pos.to_ne_bytes());
        body.extend(words(&[data.len() as u32, 0, 0, 0, file.flags, 0]));
        let answer = self.ask(op::WRITE, file.node, &[&body, data]).0?;
        let mut state = self.state();
        let node = state.nodes.entry(file.node).or_default();
        node.attributes = None;
        node.size = node.size.max(pos + data.len() as u64);
        node.heard += 1;
        for (page, kept) in &mut node.pages {
            for (place, byte) in kept.iter_mut().enumerate() {
                let at = (page * PAGE + place as u64).checked_sub(pos).and_then(|at| data.get(at as usize));
                *byte = at.copied().unwrap_or(*byte);
            }
        }
        Ok(Reader(&answer).u32())
    }

    pub(crate) fn sync(&self, file: &Opened) -> Outcome<()> {
        let body: Vec<u8> = file.handle.to_ne_bytes().into_iter().chain([0; 8]).collect();
        self.ask(op::FSYNC, file.node, &[&body]).0.map(drop)
    }

    /// `lseek` to the end, from where Linux asks a network file system.
    pub(crate) fn end_of(&self, file: &Opened) -> Outcome<u64> {
        Ok(self.attributes(file.node)?.size)
    }

    /// `close`: what FLUSH says of it.
    pub(crate) fn close(&self, file: Opened) -> Outcome<()> {
        let flushed = self.flush(&file, 0);
        let mut body = file.handle.to_ne_bytes().to_vec();
        body.extend(words(&[file.flags, 0, 0, 0]));
        self.ask(op::RELEASE, file.node, &[&body]).0?;
        flushed
    }

    /// `close` of a descriptor by a lock's owner, after which the file stays open by another.
    pub(crate) fn flush(&self, file: &Opened, owner: u64) -> Outcome<()> {
        let body: Vec<u8> = [file.handle, 0, owner].into_iter().flat_map(u64::to_ne_bytes).collect();
        match file.how & NO_FLUSH {
            0 => self.ask(op::FLUSH, file.node, &[&body]).0.map(drop),
            _ => Ok(()),
        }
    }

    /// `fallocate` with these flags.
    pub(crate) fn allocate(&self, file: &Opened, flags: u32, pos: u64, length: u64) -> Outcome<()> {
        let head = [file.handle, pos, length].into_iter().flat_map(u64::to_ne_bytes);
        let body: Vec<u8> = head.chain(words(&[flags, 0])).collect();
        self.ask(op::FALLOCATE, file.node, &[&body]).0?;
        let mut state = self.state();
        let node = state.nodes.entry(file.node).or_default();
        node.attributes = None;
        node.heard += 1;
        // Those that are cut out are no longer kept.
        node.pages.clear();
        Ok(())
    }

    /// Sets or asks for a lock of `fcntl(2)` on a whole file, for an owner: 0 to read, 1 to write, 2 for none.
    pub(crate) fn lock(&self, file: &Opened, owner: u64, kind: u32) -> Outcome<()> {
        self.ask(op::SETLK, file.node, &[&lock_body(file, owner, kind)]).0.map(drop)
    }

    /// The kind of lock that is in the way of one.
    pub(crate) fn in_the_way(&self, file: &Opened, owner: u64, kind: u32) -> Outcome<u32> {
        let answer = self.ask(op::GETLK, file.node, &[&lock_body(file, owner, kind)]).0?;
        let mut reader = Reader(&answer);
        reader.take(16);
        Ok(reader.u32())
    }

    // ---- whole files

    /// Writes a file anew, and closes it.
    pub(crate) fn write_all(&self, path: &str, data: &[u8]) -> Outcome<()> {
        let file = self.open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)?;
        for (number, part) in data.chunks(128 << 10).enumerate() {
            self.write(&file, (number as u64) * (128 << 10), part)?;
        }
        self.close(file)
    }

    /// Reads a file as `cat` does: until there is no more.
    pub(crate) fn read_all(&self, path: &str) -> Outcome<Vec<u8>> {
        let file = self.open(path, libc::O_RDONLY)?;
        let mut bytes = Vec::new();
        let read = loop {
            match self.read(&file, bytes.len() as u64, 128 << 10) {
                Ok(more) if !more.is_empty() => bytes.extend(more),
                end => break end.map(drop),
            }
        };
        self.close(file)?;
        read.map(|()| bytes)
    }
}

impl State {
    /// An answer or a notice.
    fn hear(&mut self, bytes: &[u8]) {
        let mut message = Reader(bytes);
        let (whole, error, unique) = (message.u32(), message.u32().cast_signed(), message.u64());
        assert_eq!(whole as usize, bytes.len(), "a message has the length that it says");
        if unique == 0 {
            return self.note(error, message);
        }
        let answer = if error == 0 { Ok(message.0.to_vec()) } else { Err(-error) };
        self.answers.insert(unique, answer);
    }

    /// Does what a notice says.
    fn note(&mut self, code: i32, mut message: Reader<'_>) {
        self.notices += 1;
        match code {
            2 => {
                let (id, pos, _) = (message.u64(), message.u64().cast_signed(), message.u64());
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.attributes = None;
                    node.heard += 1;
                    if pos >= 0 {
                        node.pages.clear();
                    }
                }
                self.told.push(if pos >= 0 { Told::Data(id) } else { Told::Attributes(id) });
            }
            3 => {
                let (dir, length, _) = (message.u64(), message.u32() as usize, message.u32());
                let name = message.take(length).to_vec();
                self.names.remove(&(dir, name.clone()));
                if let Some(dir) = self.nodes.get_mut(&dir) {
                    dir.attributes = None;
                }
                self.told.push(Told::Name(dir, name));
            }
            4 => {
                let (id, pos, length, _) =
                    (message.u64(), message.u64(), message.u32() as usize, message.u32());
                let (data, end) = (message.take(length), pos + length as u64);
                let node = self.nodes.entry(id).or_default();
                for (place, byte) in data.iter().enumerate() {
                    let at = pos + place as u64;
                    if let Some(page) = node.pages.get_mut(&(at / PAGE)) {
                        page[(at % PAGE) as usize] = *byte;
                    }
                }
                if end > node.size {
                    node.be_long(end);
                }
            }
            other => panic!("a notice {other} that this kernel does not know"),
        }
    }
}

fn lock_body(file: &Opened, owner: u64, kind: u32) -> Vec<u8> {
    let mut body = file.handle.to_ne_bytes().to_vec();
    body.extend(owner.to_ne_bytes());
    body.extend(0u64.to_ne_bytes());
    body.extend((i64::MAX as u64).to_ne_bytes());
    body.extend(words(&[kind, std::process::id(), 0, 0]));
    body
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Reads what the file system says.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    /// `struct fuse_attr`.
    fn attributes(&mut self) -> Attributes {
        let (inode, size, _blocks) = (self.u64(), self.u64(), self.u64());
        let [_, mtime, _] = [self.u64(), self.u64(), self.u64()];
        self.take(12);
        let [mode, links, uid, ..] = [0; 7].map(|_| self.u32());
        Attributes { inode, size, mode, links, uid, mtime }
    }
}
