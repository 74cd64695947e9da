//! Operations on names: looking up, making, removing, renaming, linking. A file that loses its last name while it is open is kept
//! by the client, under a hidden one.

use std::sync::Arc;

use afs_client::{Client, Error, Fid, Found, Kind, Status, User};
use fuse_dev::{Caller, NodeId, Reply};

use crate::answer::Answer;
use crate::file_system::{FileSystem, just, outcome};
use crate::nodes::Node;
use crate::notices::Locked;

/// `RENAME_NOREPLACE`: there must be nothing of the new name.
const NO_REPLACE: u32 = 1;

/// The type bits of a mode, and those of a file.
const TYPE_MASK: u32 = libc::S_IFMT;

impl FileSystem {
    pub(crate) fn look_up(self: &Arc<Self>, caller: Caller, dir: Arc<Node>, name: &[u8], reply: Reply) {
        let user = self.user(caller);
        let hit = |fresh| {
            let found = self.client.cached_lookup(user, dir.fid, name)?;
            Some(self.found((user, caller.pid), &dir, name, found, fresh))
        };
        // The kernel may have come back for what it is to forget: see `notices`.
        let telling = self.nodes.directory_at(dir.id, name).and_then(|id| self.telling(id));
        let reply = match telling {
            Some(_) => reply,
            None => match self.answer_hit(reply, hit) {
                Ok(()) => return,
                Err(reply) => reply,
            },
        };
        let (client, name) = (self.client.clone(), name.to_vec());
        self.run_locked(caller, reply, async move {
            if let Some(telling) = telling {
                telling.await;
            }
            let found = client.lookup(user, dir.fid, &name).await;
            outcome(move |fs, fresh| fs.found((user, caller.pid), &dir, &name, found, fresh))
        });
    }

    /// Names whose change is about to be asked for.
    pub(crate) fn changing<const COUNT: usize>(
        self: &Arc<Self>,
        user: User,
        names: [(NodeId, &Vec<u8>); COUNT],
    ) -> Changing {
        let mut dirs: Vec<_> = names.iter().map(|(dir, _)| *dir).collect();
        // Those that are removed or moved are locked too, also where the kernel asks for the name each time.
        dirs.extend(names.iter().filter_map(|(dir, name)| {
            let known = || {
                let found = self.client.cached_lookup(user, self.nodes.get(*dir)?.fid, name)?.ok()?;
                self.nodes.of_fid(found.fid).filter(|node| node.fid.vnode.is_directory()).map(|node| node.id)
            };
            self.nodes.directory_at(*dir, name).or_else(known)
        }));
        let names = names.map(|(dir, name)| (dir, name.clone())).to_vec();
        Changing { fs: Arc::clone(self), names, _locked: self.locked(dirs) }
    }

    /// Makes something in a directory, and answers as a look-up of it.
    fn make(self: &Arc<Self>, caller: Caller, dir: Arc<Node>, name: &[u8], reply: Reply, make: Making) {
        let (client, name, user) = (self.client.clone(), name.to_vec(), self.user(caller));
        let changing = self.changing(user, [(dir.id, &name)]);
        self.run_locked(caller, reply, async move {
            let made = make.make(&client, user, dir.fid, &name).await;
            changing.settle(&made);
            outcome(move |fs, fresh| match made {
                Ok(found) => {
                    fs.nodes.drop_name(dir.id, &name);
                    Answer::Entry(fs.entry(user, &dir, &name, &found, fresh))
                }
                Err(error) => {
                    fs.note_not_made(&dir, &name, &error);
                    fs.refused(caller.pid, &[(dir.id, &name)], &error)
                }
            })
        });
    }

    /// Something could not be made. The kernel still has what it had of the name, and has to be told of what others do to it.
    pub(crate) fn note_not_made(self: &Arc<Self>, dir: &Node, name: &[u8], error: &Error) {
        if matches!(error, Error::Exists { .. }) {
            // It took the name for one that is not there.
            self.nodes.drop_name(dir.id, name);
            self.forget_names(dir.id, vec![name.to_vec()], None);
        }
    }

    pub(crate) fn make_directory(
        self: &Arc<Self>,
        caller: Caller,
        dir: Arc<Node>,
        name: &[u8],
        mode: u32,
        reply: Reply,
    ) {
        self.make(caller, dir, name, reply, Making::Directory { mode: mode & 0o7777 });
    }

    pub(crate) fn symlink(
        self: &Arc<Self>,
        caller: Caller,
        dir: Arc<Node>,
        name: &[u8],
        target: &[u8],
        reply: Reply,
    ) {
        self.make(caller, dir, name, reply, Making::Symlink { target: target.to_vec() });
    }

    /// AFS has files, directories and links: no pipes, sockets or devices.
    pub(crate) fn make_node(
        self: &Arc<Self>,
        caller: Caller,
        dir: Arc<Node>,
        name: &[u8],
        mode: u32,
        reply: Reply,
    ) {
        if ![0, libc::S_IFREG].contains(&(mode & TYPE_MASK)) {
            return reply.error(libc::EPERM);
        }
        self.make(caller, dir, name, reply, Making::File { mode: mode & 0o7777 });
    }

    pub(crate) fn link(
        self: &Arc<Self>,
        caller: Caller,
        existing: Arc<Node>,
        dir: Arc<Node>,
        name: &[u8],
        reply: Reply,
    ) {
        self.make(caller, dir, name, reply, Making::Link { existing: existing.fid });
    }

    pub(crate) fn unlink(self: &Arc<Self>, caller: Caller, dir: Arc<Node>, name: &[u8], reply: Reply) {
        let (client, name, user) = (self.client.clone(), name.to_vec(), self.user(caller));
        let last = self.last_name_of(user, dir.fid, &name);
        let changing = self.changing(user, [(dir.id, &name)]);
        self.run_locked(caller, reply, async move {
            let removed = client.remove(user, dir.fid, &name).await;
            changing.settle(&removed);
            outcome(move |fs, _| {
                fs.note_removed(&dir, &name, &removed);
                fs.note_nameless(last.filter(|_| removed.is_ok()));
                fs.named(caller.pid, &[(dir.id, &name)], removed)
            })
        });
    }

    /// A name was to be removed. If it was not, the kernel has it still, and has to be told of what others do to it.
    fn note_removed(&self, dir: &Node, name: &[u8], removed: &Result<(), Error>) {
        if removed.is_ok() {
            self.nodes.drop_name(dir.id, name);
        }
    }

    /// The file of this name that is open here, if it has no other.
    fn last_name_of(&self, user: User, dir: Fid, name: &[u8]) -> Option<Arc<Node>> {
        let found = self.client.cached_lookup(user, dir, name)?.ok()?;
        let node = self.nodes.of_fid(found.fid).filter(|_| found.status.links == 1)?;
        let is_open = !node.state().mode.is_closed();
        is_open.then_some(node)
    }

    /// A file that is open has lost its last name: `fstat` tells that it has none.
    fn note_nameless(&self, node: Option<Arc<Node>>) {
        if let Some(node) = node {
            node.state().is_nameless = true;
        }
    }

    /// The directory of this name that the kernel knows, and its status.
    fn directory_of(&self, user: User, dir: Fid, name: &[u8]) -> Option<(Arc<Node>, Status)> {
        let found = self.client.cached_lookup(user, dir, name)?.ok()?;
        let is_directory = found.status.kind == Kind::Directory && !found.status.is_volume_root;
        let node = self.nodes.of_fid(found.fid).filter(|_| is_directory)?;
        Some((node, found.status))
    }

    /// A directory was removed that programs may have open: once the server says that it is gone, `fstat` goes on telling what it was.
    fn note_gone(&self, last: Option<(Arc<Node>, Status)>) {
        if let Some((node, status)) = last {
            let attributes = fuse_dev::Attributes { links: 0, ..self.attributes(&status) };
            node.state().gone = Some(Box::new(attributes));
        }
    }

    pub(crate) fn remove_directory(
        self: &Arc<Self>,
        caller: Caller,
        dir: Arc<Node>,
        name: &[u8],
        reply: Reply,
    ) {
        let (client, name, user) = (self.client.clone(), name.to_vec(), self.user(caller));
        let last = self.directory_of(user, dir.fid, &name);
        let changing = self.changing(user, [(dir.id, &name)]);
        self.run_locked(caller, reply, async move {
            let removed = client.remove_dir(user, dir.fid, &name).await;
            changing.settle(&removed);
            outcome(move |fs, _| {
                fs.note_removed(&dir, &name, &removed);
                fs.note_gone(last.filter(|_| removed.is_ok()));
                fs.named(caller.pid, &[(dir.id, &name)], removed)
            })
        });
    }

    pub(crate) fn rename(
        self: &Arc<Self>,
        caller: Caller,
        (from, name): (Arc<Node>, Vec<u8>),
        (to, new_name): (Arc<Node>, Vec<u8>),
        flags: u32,
        reply: Reply,
    ) {
        if flags & !NO_REPLACE != 0 {
            // Exchanging two names is nothing that servers can do.
            return reply.error(libc::EINVAL);
        }
        let (client, user) = (self.client.clone(), self.user(caller));
        let keep = flags & NO_REPLACE != 0;
        let last = self.last_name_of(user, to.fid, &new_name);
        let replaced = self.directory_of(user, to.fid, &new_name);
        let changing = self.changing(user, [(from.id, &name), (to.id, &new_name)]);
        self.run_locked(caller, reply, async move {
            let renamed = client.rename(user, (from.fid, &name), (to.fid, &new_name), keep).await;
            changing.settle(&renamed);
            outcome(move |fs, fresh| {
                let (old, new) = ((from.id, name.as_slice()), (to.id, new_name.as_slice()));
                match renamed {
                    // The kernel moves the name with what it has of it, also one that it was just being told to forget.
                    Ok(()) if fresh.0 && fs.nodes.move_name(old, new, fs.client.now()) => {}
                    Ok(()) => {
                        // In this order: a notice waits for what is on its way to the kernel, or finds the name.
                        fs.forget_names(to.id, vec![new_name.clone()], None);
                        fs.nodes.drop_name(from.id, &name);
                        fs.nodes.revoke(to.id, &new_name);
                    }
                    // The kernel has both as before, or forgets them. It may have taken the new name for one that is not there.
                    Err(_) => fs.forget_names(to.id, vec![new_name.clone()], None),
                }
                fs.note_nameless(last.filter(|_| renamed.is_ok()));
                fs.note_gone(replaced.filter(|_| renamed.is_ok()));
                fs.named(caller.pid, &[old, new], renamed)
            })
        });
    }

    /// The answer to a thread's change of names, which has nothing to tell.
    fn named(&self, thread: u32, names: &[(NodeId, &[u8])], result: Result<(), Error>) -> Answer {
        match result {
            Ok(()) => Answer::Ok,
            Err(error) => self.refused(thread, names, &error),
        }
    }

    /// The answer to a thread's change of names that was refused.
    fn refused(&self, thread: u32, names: &[(NodeId, &[u8])], error: &Error) -> Answer {
        match self.has_to_come_back(thread, names, error) {
            true => Answer::Error(libc::ESTALE),
            false => self.errno_of_name(error),
        }
    }

    /// The answer to an operation that has nothing to tell.
    pub(crate) fn done(&self, result: Result<(), Error>) -> Answer {
        match result {
            Ok(()) => Answer::Ok,
            Err(error) => self.errno(&error),
        }
    }

    pub(crate) fn read_link(self: &Arc<Self>, caller: Caller, node: Arc<Node>, reply: Reply) {
        let user = self.user(caller);
        let answer = |fs: &FileSystem, target| match target {
            Ok(target) => Answer::Data(target),
            Err(error) => fs.errno(&error),
        };
        let hit = |_| Some(answer(self, self.client.cached_readlink(user, node.fid)?));
        let Err(reply) = self.answer_hit(reply, hit) else { return };
        let client = self.client.clone();
        self.run(caller, reply, async move {
            let target = client.readlink(user, node.fid).await;
            outcome(move |fs, _| answer(fs, target))
        });
    }

    /// The attributes by which programs learn what a file is called in AFS, as kAFS has them.
    pub(crate) fn get_xattr(
        self: &Arc<Self>,
        caller: Caller,
        node: Arc<Node>,
        name: &[u8],
        room: u32,
        reply: Reply,
    ) {
        let (client, user) = (self.client.clone(), self.user(caller));
        let fid = node.fid;
        let wanted = match name {
            b"afs.fid" => Xattr::Fid,
            b"afs.cell" => Xattr::Cell,
            b"afs.volume" => Xattr::Volume,
            _ => return reply.error(libc::ENODATA),
        };
        self.run(caller, reply, async move {
            let value = async {
                let fid = client.at_server(client.target(user, fid).await?).await?;
                let text = match wanted {
                    Xattr::Fid => {
                        let fid = fid.in_cell();
                        format!("{:x}:{:x}:{:x}", fid.volume.0, fid.vnode.0, fid.unique.0)
                    }
                    // As OpenAFS calls it.
                    Xattr::Cell if fid.is_made_up() => afs_wire::control::DYNROOT.to_owned(),
                    Xattr::Volume if fid.is_made_up() => return Ok(None),
                    Xattr::Cell => match client.cell_name(fid.cell) {
                        Some(name) => name.to_string(),
                        None => return Ok(None),
                    },
                    Xattr::Volume => {
                        let status = client.volume_status(user, fid).await?;
                        String::from_utf8_lossy(&status.name).into_owned()
                    }
                };
                Ok(Some(text))
            };
            match value.await {
                Ok(Some(text)) => just(Answer::Sized(text.into_bytes().into(), room)),
                Ok(None) => just(Answer::Error(libc::ENODATA)),
                Err(error) => outcome(move |fs, _| fs.errno(&error)),
            }
        });
    }
}

/// Names that a caller has asked to change. If the caller gives up before the outcome is known, nobody knows it: the
/// kernel asks again.
#[derive(Debug)]
pub(crate) struct Changing {
    fs: Arc<FileSystem>,
    names: Vec<(NodeId, Vec<u8>)>,
    _locked: Locked,
}

impl Changing {
    /// Ends it. What nobody has answered may have come to something.
    pub(crate) fn settle<T>(mut self, outcome: &Result<T, Error>) {
        if !matches!(outcome, Err(Error::Unreachable { .. } | Error::Broken { .. })) {
            self.names.clear();
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        for (dir, name) in self.names.drain(..) {
            self.fs.nodes.revoke(dir, &name);
            self.fs.forget_names(dir, vec![name], None);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Xattr {
    Fid,
    Cell,
    Volume,
}

/// Something to be made in a directory.
enum Making {
    File { mode: u32 },
    Directory { mode: u32 },
    Symlink { target: Vec<u8> },
    Link { existing: Fid },
}

impl Making {
    async fn make(self, client: &Client, user: User, dir: Fid, name: &[u8]) -> Result<Found, Error> {
        match self {
            Self::File { mode } => client.create(user, dir, name, mode).await,
            Self::Directory { mode } => client.make_dir(user, dir, name, mode).await,
            Self::Symlink { target } => client.symlink(user, dir, name, &target).await,
            Self::Link { existing } => client.link(user, existing, dir, name).await,
        }
    }
}
