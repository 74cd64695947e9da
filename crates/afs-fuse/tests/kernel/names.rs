//! What the kernel asks about names and attributes, and how long it keeps them; listings.

use std::time::{Duration, Instant};

use super::{Attributes, Kernel, OpenDirectory, Outcome, PAGE, ROOT, Reader, op, words};

impl Kernel {
    pub(super) fn keep(&self, dir: u64, name: &[u8], entry: &[u8], notices: u64) -> (u64, Attributes) {
        let mut reader = Reader(entry);
        let (node, _) = (reader.u64(), reader.u64());
        let (name_for, attributes_for) = (reader.u64(), reader.u64());
        let (name_nanos, attributes_nanos) = (reader.u32(), reader.u32());
        let attributes = reader.attributes();
        let mut state = self.state();
        let now = Instant::now();
        let is_new = state.notices == notices;
        // What was known before is no longer so.
        state.names.remove(&(dir, name.to_vec()));
        if is_new {
            let until = now + Duration::new(name_for.min(1 << 30), name_nanos);
            state.names.insert((dir, name.to_vec()), (node, until));
        }
        if node == 0 {
            return (node, attributes);
        }
        let kept = state.nodes.entry(node).or_default();
        kept.lookups += 1;
        let until = now + Duration::new(attributes_for.min(1 << 30), attributes_nanos);
        kept.hear(attributes, until, is_new);
        (node, attributes)
    }

    /// The node of a name, from memory or by LOOKUP.
    pub(crate) fn look_up(&self, dir: u64, name: &str) -> Outcome<u64> {
        let known = self.state().names.get(&(dir, name.as_bytes().to_vec())).copied();
        let node = match known.filter(|(_, until)| *until > Instant::now()) {
            Some((node, _)) => node,
            None => {
                let (answer, notices) = self.ask(op::LOOKUP, dir, &[name.as_bytes(), &[0]]);
                self.keep(dir, name.as_bytes(), &answer?, notices).0
            }
        };
        // A name that is not there may be remembered too.
        if node == 0 { Err(libc::ENOENT) } else { Ok(node) }
    }

    /// Does something on a path as Linux does: if it meets ESTALE, once more with all names asked for again.
    pub(super) fn again<T>(&self, work: impl Fn() -> Outcome<T>) -> Outcome<T> {
        match work() {
            Err(libc::ESTALE) => {
                self.state().names.clear();
                work()
            }
            done => done,
        }
    }

    /// The node of a path below the root, symbolic links not followed.
    pub(crate) fn walk(&self, path: &str) -> Outcome<u64> {
        path.split('/').filter(|part| !part.is_empty()).try_fold(ROOT, |dir, name| self.look_up(dir, name))
    }

    pub(super) fn parent<'a>(&self, path: &'a str) -> Outcome<(u64, &'a str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.walk(dir)?, name))
    }

    fn make(&self, operation: u32, path: &str, parts: &[&[u8]]) -> Outcome<u64> {
        self.again(|| {
            let (dir, name) = self.parent(path)?;
            let (answer, notices) = self.ask(operation, dir, parts);
            self.state().nodes.entry(dir).or_default().attributes = None;
            Ok(self.keep(dir, name.as_bytes(), &answer?, notices).0)
        })
    }

    pub(crate) fn make_directory(&self, path: &str, mode: u32) -> Outcome<u64> {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.make(op::MKDIR, path, &[&words(&[mode, 0o022]), name.as_bytes(), &[0]])
    }

    pub(crate) fn symlink(&self, target: &str, path: &str) -> Outcome<u64> {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.make(op::SYMLINK, path, &[name.as_bytes(), &[0], target.as_bytes(), &[0]])
    }

    pub(crate) fn link(&self, existing: &str, path: &str) -> Outcome<u64> {
        let (node, name) = (self.walk(existing)?, path.rsplit('/').next().unwrap_or(path));
        self.state().nodes.entry(node).or_default().attributes = None;
        self.make(op::LINK, path, &[&node.to_ne_bytes(), name.as_bytes(), &[0]])
    }

    fn remove(&self, operation: u32, path: &str) -> Outcome<()> {
        self.again(|| {
            let (dir, name) = self.parent(path)?;
            let known = self.look_up(dir, name)?;
            self.ask(operation, dir, &[name.as_bytes(), &[0]]).0?;
            let mut state = self.state();
            state.names.remove(&(dir, name.as_bytes().to_vec()));
            for node in [dir, known] {
                state.nodes.entry(node).or_default().attributes = None;
            }
            Ok(())
        })
    }

    pub(crate) fn unlink(&self, path: &str) -> Outcome<()> {
        self.remove(op::UNLINK, path)
    }

    pub(crate) fn remove_directory(&self, path: &str) -> Outcome<()> {
        self.remove(op::RMDIR, path)
    }

    /// `renameat2(2)` with these flags.
    pub(crate) fn rename(&self, from: &str, to: &str, flags: u32) -> Outcome<()> {
        self.again(|| {
            let ((old, name), (new, new_name)) = (self.parent(from)?, self.parent(to)?);
            self.look_up(old, name)?;
            let head: Vec<u8> = new.to_ne_bytes().into_iter().chain(words(&[flags, 0])).collect();
            self.ask(op::RENAME2, old, &[&head, name.as_bytes(), &[0], new_name.as_bytes(), &[0]]).0?;
            let mut state = self.state();
            state.names.remove(&(old, name.as_bytes().to_vec()));
            state.names.remove(&(new, new_name.as_bytes().to_vec()));
            for node in [old, new] {
                state.nodes.entry(node).or_default().attributes = None;
            }
            Ok(())
        })
    }

    pub(crate) fn read_link(&self, path: &str) -> Outcome<String> {
        self.again(|| {
            let node = self.walk(path)?;
            Ok(String::from_utf8(self.ask(op::READLINK, node, &[]).0?).expect("a target of ours"))
        })
    }

    /// `opendir`.
    pub(crate) fn open_directory(&self, path: &str) -> Outcome<OpenDirectory> {
        self.again(|| {
            let node = self.walk(path)?;
            let opened = self.ask(op::OPENDIR, node, &[&words(&[0, 0])]).0?;
            Ok(OpenDirectory { node, handle: Reader(&opened).u64() })
        })
    }

    /// Names in an open directory and their inodes, from its beginning, sorted, without `.` and `..`.
    pub(crate) fn entries(&self, directory: &OpenDirectory) -> Outcome<Vec<(String, u64)>> {
        let (mut names, mut next) = (Vec::new(), 0u64);
        loop {
            let head = [directory.handle, next].into_iter().flat_map(u64::to_ne_bytes);
            let body: Vec<u8> = head.chain(words(&[512, 0])).collect();
            let listed = self.ask(op::READDIR, directory.node, &[&body, &[0; 16]]).0?;
            if listed.is_empty() {
                names.retain(|(name, _)| name != "." && name != "..");
                names.sort();
                return Ok(names);
            }
            let mut reader = Reader(&listed);
            while !reader.0.is_empty() {
                let inode = reader.u64();
                next = reader.u64();
                let (length, _kind) = (reader.u32() as usize, reader.u32());
                let name = String::from_utf8(reader.take(length).to_vec()).expect("a name of ours");
                reader.take(length.next_multiple_of(8) - length);
                names.push((name, inode));
            }
        }
    }

    /// `closedir`.
    pub(crate) fn close_directory(&self, directory: OpenDirectory) -> Outcome<()> {
        let body: Vec<u8> = directory.handle.to_ne_bytes().into_iter().chain([0; 16]).collect();
        self.ask(op::RELEASEDIR, directory.node, &[&body]).0.map(drop)
    }

    /// Names in a directory, as [`Self::entries`].
    pub(crate) fn list(&self, path: &str) -> Outcome<Vec<String>> {
        let directory = self.open_directory(path)?;
        let entries = self.entries(&directory);
        self.close_directory(directory)?;
        Ok(entries?.into_iter().map(|(name, _)| name).collect())
    }

    /// Lets go of a node and all its names, as when memory is short.
    pub(crate) fn forget(&self, node: u64) {
        let lookups = {
            let mut state = self.state();
            state.names.retain(|_, (named, _)| *named != node);
            state.nodes.remove(&node).map_or(0, |node| node.lookups)
        };
        self.send(op::FORGET, node, &[&lookups.to_ne_bytes()]);
    }

    // ---- attributes

    fn keep_attributes(&self, node: u64, answer: &[u8], notices: u64) -> Attributes {
        let mut reader = Reader(answer);
        let (seconds, nanos, _) = (reader.u64(), reader.u32(), reader.u32());
        let attributes = reader.attributes();
        let until = Instant::now() + Duration::new(seconds.min(1 << 30), nanos);
        let mut state = self.state();
        let is_newest = state.notices == notices;
        let kept = state.nodes.entry(node).or_default();
        kept.hear(attributes, until, is_newest);
        attributes
    }

    /// The attributes of a node, from memory or by GETATTR.
    pub(crate) fn attributes(&self, node: u64) -> Outcome<Attributes> {
        let known = self.state().nodes.get(&node).and_then(|node| node.attributes);
        if let Some((attributes, _)) = known.filter(|(_, until)| *until > Instant::now()) {
            return Ok(attributes);
        }
        let (answer, notices) = self.ask(op::GETATTR, node, &[&[0; 16]]);
        Ok(self.keep_attributes(node, &answer?, notices))
    }

    /// Has them asked for anew.
    pub(crate) fn no_attributes(&self, node: u64) {
        self.state().nodes.entry(node).or_default().attributes = None;
    }

    /// `lstat`.
    pub(crate) fn stat(&self, path: &str) -> Outcome<Attributes> {
        self.again(|| self.attributes(self.walk(path)?))
    }

    pub(super) fn set(&self, node: u64, valid: u32, size: u64, mode: u32) -> Outcome<Attributes> {
        let mut body = words(&[valid, 0]);
        body.extend(0u64.to_ne_bytes());
        body.extend(size.to_ne_bytes());
        // Lock owner; times and their nanoseconds.
        body.extend([0; 8 + 24 + 12]);
        body.extend(words(&[mode, 0, 0, 0, 0]));
        let (answer, notices) = self.ask(op::SETATTR, node, &[&body]);
        let attributes = self.keep_attributes(node, &answer?, notices);
        if valid & 1 << 3 != 0 {
            let mut state = self.state();
            let node = state.nodes.entry(node).or_default();
            node.size = size;
            node.pages.retain(|page, _| page * PAGE < size / PAGE * PAGE);
        }
        Ok(attributes)
    }

    pub(crate) fn truncate(&self, path: &str, size: u64) -> Outcome<Attributes> {
        self.again(|| self.set(self.walk(path)?, 1 << 3, size, 0))
    }

    pub(crate) fn change_mode(&self, path: &str, mode: u32) -> Outcome<Attributes> {
        self.again(|| self.set(self.walk(path)?, 1, 0, mode))
    }

    pub(crate) fn get_attribute(&self, path: &str, name: &str) -> Outcome<String> {
        let node = self.walk(path)?;
        let value = self.ask(op::GETXATTR, node, &[&words(&[4096, 0]), name.as_bytes(), &[0]]).0?;
        Ok(String::from_utf8_lossy(&value).trim_end_matches('\0').to_owned())
    }

    /// What `statfs` tells of the root: blocks, those that there is room for, and the longest name.
    pub(crate) fn space(&self) -> Outcome<(u64, u64, u32)> {
        let answer = self.ask(op::STATFS, ROOT, &[]).0?;
        let mut reader = Reader(&answer);
        let [blocks, _free, available, ..] = [0; 5].map(|_| reader.u64());
        reader.take(4);
        Ok((blocks, available, reader.u32()))
    }
}
