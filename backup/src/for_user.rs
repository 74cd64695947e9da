//! A backup restored for one user, into a folder: what they may read by its access lists (`src/rights.rs`), as files of whoever restores it,
//! without access lists and set-uid bits.
//!
//! Everything is made anew in folders that are open, so that no name and no link leads elsewhere, not even in a folder that others change
//! meanwhile. What cannot be decided or read is left out, and told of.

use crate::cell::Cell;
use crate::databases;
use crate::node;
use crate::progress::Bars;
use crate::repository::{Indexed, Store};
use crate::restore::{find, make_own, read};
use crate::rights::User;
use afs_wire::ids::VnodeNumber;
use afs_wire::rights::Rights;
use rustic_core::Progress;
use rustic_core::jiff::Timestamp;
use rustic_core::repofile::{Node, NodeType, SnapshotFile};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::fs::{fchmod, futimens, mkdirat, open, openat, symlinkat, unlinkat, utimensat};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Failures that are told one by one.
const FAILURES_SHOWN: u64 = 20;

/// The bits that let others at a file once its folder lets them in.
const MODE: u32 = 0o777;

/// The way in which folders are opened.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The way in which files are made.
const FILE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Folders in each other, as each is open meanwhile.
const DEPTH_MAX: usize = 500;

/// The user of a name, for a backup of their cell.
pub(crate) fn of_backup(cell: &Cell, snapshot: &SnapshotFile, user: &str) -> Result<User, String> {
    if snapshot.label == databases::LABEL {
        return Err("the cell's databases are for administrators".to_owned());
    }
    if snapshot.hostname != cell.name {
        return Err(format!(
            "the backup is of the cell {}, and what its access lists say of users does not count in {}",
            snapshot.hostname, cell.name
        ));
    }
    cell.user(user)
}

/// Restores what a user may read, of the whole volume or from a path on.
pub(crate) fn to_folder(
    store: &Store,
    snapshot: &SnapshotFile,
    path: &Path,
    (user, folder, bars): (&User, &Path, &Bars),
) -> Result<(), String> {
    let indexed = store.indexed()?;
    let nodes = find(&indexed, snapshot, path)?;
    let (last, above) = nodes.split_last().expect("the volume's folder is always there");
    let volume = &nodes[0];
    // Who may not see a folder's names may not follow a path through it.
    let way = if above.is_empty() { &nodes[..] } else { above };
    let mut rights = Rights::NONE;
    for folder in way {
        rights = user.rights_in(folder);
        if !user.may_list(rights, volume) {
            let folder = folder.name();
            return Err(format!("{} may not see what is in {} there", user.name, folder.display()));
        }
    }
    let own = make_own(folder, &snapshot.label)?;
    let failed = |error: io::Error| format!("{}: {error}", own.display());
    let mut into = open(&own, FOLDER, Mode::empty()).map_err(|error| failed(error.into()))?;
    let bar = bars.bytes("restoring");
    let done = Counts::default();
    let mut restoring = Restoring { indexed: &indexed, user, volume, bar, done, failed: 0 };
    match above {
        [] => {
            restoring.inside(into.as_fd(), volume, rights, &own)?;
            // Its mode stays: those who are let in are for the administrator to say.
            set_times(&into, volume).map_err(failed)?;
        }
        [_, between @ ..] => {
            for folder in between {
                into = make_folder(into.as_fd(), folder).map_err(failed)?;
            }
            restoring.entry(into.as_fd(), last, rights, &own.join(path))?;
        }
    }
    restoring.bar.finish();
    restoring.tell()
}

/// Things of each kind.
#[derive(Debug, Default)]
struct Counts {
    files: u64,
    folders: u64,
    links: u64,
    files_left_out: u64,
    folders_left_out: u64,
}

/// The reason why something was not restored.
enum Failed {
    /// It alone.
    One(String),
    /// Nor will what comes after it be.
    All(String),
}

impl Failed {
    fn of(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem => {
                Self::All(format!("{}: {error}", path.display()))
            }
            // A damaged folder may have a name twice.
            _ => Self::One(error.to_string()),
        }
    }
}

/// A restore at work.
struct Restoring<'a> {
    indexed: &'a Indexed,
    user: &'a User,
    /// The folder of the volume.
    volume: &'a Node,
    bar: Progress,
    done: Counts,
    failed: u64,
}

impl Restoring<'_> {
    /// Restores what is in a folder, into one that is open.
    fn inside(
        &mut self,
        into: BorrowedFd<'_>,
        folder: &Node,
        rights: Rights,
        path: &Path,
    ) -> Result<(), String> {
        let tree = folder.subtree.ok_or_else(|| "is no folder".to_owned());
        let tree = tree.and_then(|id| self.indexed.get_tree(&id).map_err(|error| error.display_log()));
        match tree {
            Err(why) => self.fail(path, &why),
            Ok(tree) => {
                for node in tree.nodes {
                    self.entry(into, &node, rights, &path.join(node.name()))?;
                }
            }
        }
        Ok(())
    }

    /// Restores a node, if the rights in its folder allow it. An error ends the whole restore: there is no room, or the folder has gone.
    fn entry(
        &mut self,
        into: BorrowedFd<'_>,
        node: &Node,
        rights: Rights,
        path: &Path,
    ) -> Result<(), String> {
        match self.make(into, node, rights, path) {
            Ok(()) => Ok(()),
            Err(Failed::One(why)) => {
                self.fail(path, &why);
                Ok(())
            }
            Err(Failed::All(why)) => Err(why),
        }
    }

    fn make(&mut self, into: BorrowedFd<'_>, node: &Node, rights: Rights, path: &Path) -> Result<(), Failed> {
        let failed = |error: io::Error| Failed::of(path, &error);
        let name = node.name();
        let is_name = |byte: &u8| !matches!(byte, 0 | b'/');
        if matches!(name.as_bytes(), b"" | b"." | b"..") || !name.as_bytes().iter().all(is_name) {
            return Err(Failed::One("no file can have this name".to_owned()));
        }
        let (_, attributes) = node::to_vnode(node, VnodeNumber(0)).map_err(Failed::One)?;
        match &node.node_type {
            NodeType::Symlink { .. } if self.user.may_list(rights, self.volume) => {
                let times = times(node.meta.mtime);
                symlinkat(node.node_type.to_link(), into, &*name)
                    .and_then(|()| utimensat(into, &*name, &times, AtFlags::SYMLINK_NOFOLLOW))
                    .map_err(|error| failed(error.into()))?;
                self.done.links += 1;
            }
            NodeType::File if self.user.may_read(rights, &attributes) => {
                let made = openat(into, &*name, FILE, Mode::from_raw_mode(0o600));
                let mut file = File::from(made.map_err(|error| failed(error.into()))?);
                let mut unwritten = None;
                let whole = read(self.indexed, node, |data| {
                    self.bar.inc(data.len() as u64);
                    file.write_all(&data).map_err(|error| {
                        unwritten = Some(failed(error));
                        io::ErrorKind::Other.into()
                    })
                });
                if let Err(error) = whole {
                    // A part of a file looks like a file.
                    let removed = unlinkat(into, &*name, AtFlags::empty());
                    removed.map_err(|error| failed(error.into()))?;
                    return Err(unwritten.unwrap_or_else(|| Failed::One(error.to_string())));
                }
                finish(&file, node).map_err(failed)?;
                self.done.files += 1;
            }
            NodeType::Dir => {
                let rights = self.user.rights_in(node);
                if !self.user.may_list(rights, self.volume) {
                    self.done.folders_left_out += 1;
                    return Ok(());
                }
                if path.components().count() > DEPTH_MAX {
                    return Err(Failed::One("is too deep: restore it with --path".to_owned()));
                }
                let made = make_folder(into, node).map_err(failed)?;
                self.inside(made.as_fd(), node, rights, path).map_err(Failed::All)?;
                finish(&made, node).map_err(failed)?;
                self.done.folders += 1;
            }
            _ => self.done.files_left_out += 1,
        }
        Ok(())
    }

    fn fail(&mut self, path: &Path, why: &str) {
        self.failed += 1;
        if self.failed <= FAILURES_SHOWN {
            eprintln!("afar-backup: {}: {why}", path.display());
        }
    }

    /// Tells what became of everything.
    fn tell(&self) -> Result<(), String> {
        let (Counts { files, folders, links, files_left_out, folders_left_out }, name) =
            (&self.done, &self.user.name);
        println!("restored for {name}: {files} files, {folders} folders, {links} links");
        if files_left_out + folders_left_out > 0 {
            println!(
                "left out, as {name} may not read them: {files_left_out} files, and {folders_left_out} folders with all in them"
            );
        }
        match self.failed {
            0 => Ok(()),
            failed => Err(format!("{failed} files or folders could not be restored: see above")),
        }
    }
}

/// Makes a folder for a node in one that is open, and opens it.
fn make_folder(into: BorrowedFd<'_>, node: &Node) -> io::Result<OwnedFd> {
    let name = node.name();
    mkdirat(into, &*name, Mode::from_raw_mode(0o700))?;
    Ok(openat(into, &*name, FOLDER, Mode::empty())?)
}

/// Sets mode and time, last.
fn finish(file: &impl AsFd, node: &Node) -> io::Result<()> {
    fchmod(file, Mode::from_raw_mode(node.meta.mode.unwrap_or(0o700) & MODE))?;
    set_times(file, node)
}

fn set_times(file: &impl AsFd, node: &Node) -> io::Result<()> {
    Ok(futimens(file, &times(node.meta.mtime))?)
}

fn times(time: Option<Timestamp>) -> Timestamps {
    let time = Timespec { tv_sec: time.map_or(0, Timestamp::as_second), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}
