//! Operations on names: looking up, making, removing, renaming, linking.
//!
//! A file that loses its last name while it is open here is kept under another one until it is closed, as servers know nothing of
//! who has it open: under `.__afsVNODE.UNIQUE` in the same directory.

use std::sync::Arc;

use afs_client::{Client, Error, Fid, Found, Kind, User};
use fuse_dev::{Caller, Reply};

use crate::answer::Answer;
use crate::file_system::{FileSystem, Fresh, just, outcome};
use crate::nodes::{Kept, Node};

/// `RENAME_NOREPLACE`: there must be nothing of the new name.
const NO_REPLACE: u32 = 1;

/// The type bits of a mode, and those of a file.
const TYPE_MASK: u32 = libc::S_IFMT;

fn user(caller: Caller) -> User {
    User(caller.uid)
}

impl FileSystem {
    pub(crate) fn look_up(self: &Arc<Self>, caller: Caller, dir: Arc<Node>, name: &[u8], reply: Reply) {
        let user = user(caller);
        let hit = || {
            let found = self.client.cached_lookup(user, dir.fid, name)?;
            Some(self.found(user, &dir, name, found, Fresh(true)))
        };
        let Err(reply) = self.answer_hit(reply, hit) else { return };
        let (client, name) = (self.client.clone(), name.to_vec());
        self.run(caller, reply, async move {
            let found = client.lookup(user, dir.fid, &name).await;
            outcome(move |fs, fresh| fs.found(user, &dir, &name, found, fresh))
        });
    }

    /// Makes something in a directory, and answers as a look-up of it.
    fn make(
        self: &Arc<Self>,
        caller: Caller,
        dir: Arc<Node>,
        name: &[u8],
        reply: Reply,
        make: Making,
    ) {
        let (client, name, user) = (self.client.clone(), name.to_vec(), user(caller));
        self.run(caller, reply, async move {
            let made = make.make(&client, user, dir.fid, &name).await;
            outcome(move |fs, fresh| {
                fs.nodes.drop_name(dir.id, &name);
                match made {
                    Ok(found) => Answer::Entry(fs.entry(user, &dir, &name, &found, fresh)),
                    Err(error) => fs.errno(&error),
                }
            })
        });
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
    pub(crate) fn make_node(self: &Arc<Self>, caller: Caller, dir: Arc<Node>, name: &[u8], mode: u32, reply: Reply) {
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
        let (fs, name, user) = (Arc::clone(self), name.to_vec(), user(caller));
        self.run(caller, reply, async move {
            let removed = fs.remove(user, dir.fid, &name).await;
            outcome(move |fs, _| {
                fs.nodes.drop_name(dir.id, &name);
                fs.done(removed)
            })
        });
    }

    async fn remove(&self, user: User, dir: Fid, name: &[u8]) -> Result<(), Error> {
        let Some((node, found)) = self.open_here(user, dir, name).await else {
            return self.client.remove(user, dir, name).await;
        };
        let kept = Kept { dir, name: kept_name(found.fid), user };
        self.client.rename(user, (dir, name), (dir, &kept.name), false).await?;
        self.keep(&node, kept);
        Ok(())
    }

    /// The file of this name, if it is open here and has no other name.
    async fn open_here(&self, user: User, dir: Fid, name: &[u8]) -> Option<(Arc<Node>, Found)> {
        let found = match self.client.cached_lookup(user, dir, name) {
            Some(found) => found.ok()?,
            None => self.client.lookup(user, dir, name).await.ok()?,
        };
        if found.status.kind != Kind::File || found.status.links > 1 {
            return None;
        }
        let node = self.nodes.of_fid(found.fid)?;
        let state = node.state();
        let is_open = !state.mode.is_closed() && state.kept.is_none();
        drop(state);
        is_open.then_some((node, found))
    }

    /// A file has no name any more but the one under which it is kept; if it was closed meanwhile, it goes at once.
    fn keep(&self, node: &Arc<Node>, kept: Kept) {
        let mut state = node.state();
        if state.mode.is_closed() {
            drop(state);
            self.remove_kept(kept);
        } else {
            state.kept = Some(kept);
        }
    }

    /// Removes, in the background, a file that was kept for those who had it open.
    pub(crate) fn remove_kept(&self, kept: Kept) {
        let client = self.client.clone();
        self.runtime.spawn(async move {
            if let Err(error) = client.remove(kept.user, kept.dir, &kept.name).await {
                let name = String::from_utf8_lossy(&kept.name).into_owned();
                tracing::warn!(dir = %kept.dir, name, %error, "a file that nobody uses any more could not be removed");
            }
        });
    }

    pub(crate) fn remove_directory(self: &Arc<Self>, caller: Caller, dir: Arc<Node>, name: &[u8], reply: Reply) {
        let (client, name, user) = (self.client.clone(), name.to_vec(), user(caller));
        self.run(caller, reply, async move {
            let removed = client.remove_dir(user, dir.fid, &name).await;
            outcome(move |fs, _| {
                fs.nodes.drop_name(dir.id, &name);
                fs.done(removed)
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
        let (fs, user) = (Arc::clone(self), user(caller));
        let keep = flags & NO_REPLACE != 0;
        self.run(caller, reply, async move {
            let renamed = fs.rename_over(user, (from.fid, &name), (to.fid, &new_name), keep).await;
            outcome(move |fs, fresh| {
                match renamed {
                    // The kernel moves the name with what it has of it.
                    Ok(()) if fresh.0 => fs.nodes.move_name((from.id, &name), (to.id, &new_name)),
                    Ok(()) | Err(_) => {
                        fs.nodes.drop_name(from.id, &name);
                        fs.nodes.drop_name(to.id, &new_name);
                        fs.expire(to.id, &new_name);
                    }
                }
                fs.done(renamed)
            })
        });
    }

    /// Renames; a file that is replaced and open here gets one more name first, so that it outlives this.
    async fn rename_over(&self, user: User, from: (Fid, &[u8]), to: (Fid, &[u8]), keep: bool) -> Result<(), Error> {
        let replaced = if keep { None } else { self.open_here(user, to.0, to.1).await };
        let Some((node, found)) = replaced else {
            return self.client.rename(user, from, to, keep).await;
        };
        let kept = Kept { dir: to.0, name: kept_name(found.fid), user };
        // Both names may be of the same file; then nothing is to happen at all, and there is nothing to be kept.
        let is_kept = self.client.link(user, found.fid, to.0, &kept.name).await.is_ok();
        let renamed = self.client.rename(user, from, to, keep).await;
        match (&renamed, is_kept) {
            (Ok(()), true) => self.keep(&node, kept),
            (Err(_), true) => self.remove_kept(kept),
            (_, false) => {}
        }
        renamed
    }

    /// The answer to an operation that has nothing to tell.
    pub(crate) fn done(&self, result: Result<(), Error>) -> Answer {
        match result {
            Ok(()) => Answer::Ok,
            Err(error) => self.errno(&error),
        }
    }

    pub(crate) fn read_link(self: &Arc<Self>, caller: Caller, node: Arc<Node>, reply: Reply) {
        let user = user(caller);
        let answer = |fs: &FileSystem, target| match target {
            Ok(target) => Answer::Data(target),
            Err(error) => fs.errno(&error),
        };
        let hit = || Some(answer(self, self.client.cached_readlink(user, node.fid)?));
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
        let (client, user) = (self.client.clone(), user(caller));
        let fid = node.fid;
        let wanted = match name {
            b"afs.fid" => Xattr::Fid,
            b"afs.cell" => Xattr::Cell,
            b"afs.volume" => Xattr::Volume,
            _ => return reply.error(libc::ENODATA),
        };
        self.run(caller, reply, async move {
            let value = async {
                let fid = client.target(user, fid).await?;
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

/// The name of a file that is kept for those who have it open.
fn kept_name(fid: Fid) -> Vec<u8> {
    format!(".__afs{:x}.{:x}", fid.vnode.0, fid.unique.0).into_bytes()
}
