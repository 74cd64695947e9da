//! Copies a tree from a snapshot. What is written to is held open, directory by directory, and no symbolic link in it is followed: others who may
//! write there lead nothing astray. A file gets its name when it is whole.

use super::super::errors::{EACCES, EPERM, Failure};
use super::super::snapshots::Seen;
use super::{Client, Found, Fs, Links, Stop, kib_of};
use crate::output::text_of;
use crate::printer::complain;
use afs_wire::control;
use afs_wire::ids::{Name, Path as Target, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::AfsOpaque;
use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, linkat, mkdirat, openat, renameat, statat,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Bytes that are copied between two looks whether the user has had enough.
const PIECE: usize = 1 << 20;

/// The rights with which a directory can be filled, and its list set again.
const FILLS: Rights =
    Rights(Rights::READ.0 | Rights::LOOKUP.0 | Rights::INSERT.0 | Rights::WRITE.0 | Rights::ADMINISTER.0);

/// What was done.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    /// Files, links and mount points.
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) kib: u64,
    /// What is there as it was.
    pub(super) same: u64,
    pub(super) failed: u64,
    /// Access lists that the user may not set.
    pub(super) lists: u64,
}

/// The copying.
pub(super) struct Copy<'a> {
    fs: &'a Fs,
    client: Client,
    /// The snapshot: what is in another volume is behind a mount point.
    volume: VolumeId,
    is_over: bool,
    pub(super) counts: Counts,
    is_interrupted: Arc<AtomicBool>,
}

impl<'a> Copy<'a> {
    /// Prepares it: Ctrl-C ends it between two pieces from now on.
    pub(super) fn new(fs: &'a Fs, client: Client, volume: VolumeId, is_over: bool) -> Result<Self, Failure> {
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_interrupted);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::of_system(&error))?;
        let waits = move || {
            while runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                flag.store(true, Ordering::Relaxed);
            }
        };
        thread::Builder::new().spawn(waits).map_err(|error| Failure::of_system(&error))?;
        Ok(Self { fs, client, volume, is_over, counts: Counts::default(), is_interrupted })
    }

    fn check_interrupt(&self) -> io::Result<()> {
        match self.is_interrupted.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }

    /// Restores what is at a path of the snapshot, as a name in a directory; `live` is where it is or was.
    pub(super) fn entry(
        &mut self,
        from: &Path,
        dir: &OwnedFd,
        name: &OsStr,
        live: &Path,
    ) -> Result<(), Stop> {
        let done =
            self.check_interrupt().and_then(|()| self.try_entry(from, To { dir: dir.as_fd(), name }, live));
        match done {
            Ok(Some(made)) => self.fill(from, made, live),
            Ok(None) => Ok(()),
            Err(why) => self.fail(live, &why),
        }
    }

    /// Tells why something was not restored. Who has had enough, or has no room, gets nothing more.
    fn fail(&mut self, path: &Path, why: &io::Error) -> Result<(), Stop> {
        let shown = text_of(path.as_os_str());
        let errno = why.raw_os_error();
        let words = errno.map_or_else(|| why.to_string(), |errno| Failure::Errno(errno).to_string());
        match errno.map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => {
                return Err(Stop(format!("{shown}: no room is left: {words}")));
            }
            Some(Errno::INTR) => return Err(Stop("interrupted".to_owned())),
            None if why.kind() == io::ErrorKind::Interrupted => return Err(Stop("interrupted".to_owned())),
            _ => {}
        }
        self.counts.failed += 1;
        complain!(self.fs.printer, "fs: {shown}: {words}\n");
        Ok(())
    }

    /// Restores it but for what is in a directory, which is returned.
    fn try_entry(&mut self, from: &Path, to: To<'_>, live: &Path) -> io::Result<Option<Made>> {
        let status = fs::symlink_metadata(from);
        let is_here = Found::at(from, Links::Stay).is_ok_and(|found| found.fid.volume == self.volume);
        match status {
            Ok(status) if is_here && status.is_dir() => {
                return self.directory(from, status, to, live).map(Some);
            }
            Ok(status) if is_here => {
                let then = Seen::at(from).ok().flatten();
                if self.is_over && then.is_some() && then == Seen::at(&to.path()).ok().flatten() {
                    self.counts.same += 1;
                    return Ok(None);
                }
                match status.is_symlink() {
                    true => self.link(from, &status, to)?,
                    false => self.file(from, &status, to)?,
                }
                self.counts.kib += kib_of(status.len());
            }
            // Also where the volume is there no more.
            status => self.mount_point(from, to).map_err(|why| status.err().unwrap_or(why))?,
        }
        self.counts.files += 1;
        Ok(None)
    }

    fn directory(&mut self, from: &Path, status: Metadata, to: To<'_>, live: &Path) -> io::Result<Made> {
        let is_new = match mkdirat(to.dir, to.name, Mode::from_raw_mode(0o777)) {
            Ok(()) => true,
            Err(Errno::EXIST) if self.is_over => false,
            Err(errno) => return Err(errno.into()),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(to.dir, to.name, flags, Mode::empty())?;
        if !is_new {
            // A mount point that is in its place now leads into another volume.
            let volume = |path: &Path| Found::at(path, Links::Follow).map(|found| found.fid.volume).ok();
            let is_other = to.name != OsStr::new(".") && volume(&path_of(&dir)) != volume(&path_of(to.dir));
            return match is_other {
                true => Err(io::Error::other("a mount point is there now, and stays")),
                false => Ok(Made { dir, status, list: None, is_new }),
            };
        }
        self.counts.directories += 1;
        self.counts.kib += kib_of(status.len());
        // A list that was made stricter since is not undone: it is that of now, if the directory is there.
        let governs =
            if fs::symlink_metadata(live).is_ok_and(|status| status.is_dir()) { live } else { from };
        let mut list = self.list_of(governs, &dir);
        if let Some((text, rights)) = &list
            && rights.contains(FILLS)
        {
            // At once, so that nobody reads meanwhile who may not in the end.
            self.set_list(&dir, text.clone());
            list = None;
        }
        Ok(Made { dir, status, list: list.map(|(text, _)| text), is_new })
    }

    /// Restores what is in a directory, and then what of the directory itself could not be restored before.
    fn fill(&mut self, from: &Path, made: Made, live: &Path) -> Result<(), Stop> {
        let entries = fs::read_dir(from).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        match entries {
            Ok(entries) => {
                let mut names: Vec<_> = entries.into_iter().map(|entry| entry.file_name()).collect();
                names.sort_unstable();
                let mut linked = HashMap::new();
                for name in names {
                    let from = from.join(&name);
                    if !self.is_linked(&from, &made.dir, &name, &mut linked) {
                        self.entry(&from, &made.dir, &name, &live.join(&name))?;
                    }
                }
            }
            Err(why) => self.fail(live, &why)?,
        }
        if let Some(list) = made.list {
            self.set_list(&made.dir, list);
        }
        if made.is_new {
            let set = fchmod(&made.dir, permissions(&made.status));
            if let Err(errno) = set.and_then(|()| futimens(&made.dir, &times(&made.status))) {
                self.fail(live, &errno.into())?;
            }
        }
        Ok(())
    }

    /// True if a file has another name in its directory, by which it was just restored: it gets this one too. In AFS no other directory has one.
    fn is_linked(
        &mut self,
        from: &Path,
        dir: &OwnedFd,
        name: &OsStr,
        linked: &mut HashMap<u64, OsString>,
    ) -> bool {
        let Ok(status) = fs::symlink_metadata(from) else { return false };
        if !status.is_file() || status.nlink() < 2 || self.is_over {
            return false;
        }
        let Some(first) = linked.get(&status.ino()) else {
            linked.insert(status.ino(), name.to_owned());
            return false;
        };
        let is_linked = linkat(dir, first, dir, name, AtFlags::empty()).is_ok();
        self.counts.files += u64::from(is_linked);
        is_linked
    }

    fn file(&self, from: &Path, status: &Metadata, to: To<'_>) -> io::Result<()> {
        let mut source = File::open(from)?;
        to.replace(|name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(openat(to.dir, name, flags, Mode::from_raw_mode(0o600))?);
            let copied = self.copy(&mut source, &mut file, status);
            copied.inspect_err(|_| {
                let _ = unlinkat(to.dir, name, AtFlags::empty());
            })
        })
    }

    fn copy(&self, source: &mut File, file: &mut File, status: &Metadata) -> io::Result<()> {
        let mut piece = vec![0; usize::try_from(status.len()).unwrap_or(PIECE).clamp(1, PIECE)];
        loop {
            self.check_interrupt()?;
            match source.read(&mut piece)? {
                0 => break,
                read => file.write_all(&piece[..read])?,
            }
        }
        // What the server refuses, as for want of room, is told here; nobody is told by a close.
        file.sync_all()?;
        fchmod(&*file, permissions(status))?;
        Ok(futimens(&*file, &times(status))?)
    }

    fn link(&self, from: &Path, status: &Metadata, to: To<'_>) -> io::Result<()> {
        let target = fs::read_link(from)?;
        to.replace(|name| {
            symlinkat(&target, to.dir, name)?;
            // Not all servers let users set it.
            let _ = utimensat(to.dir, name, &times(status), AtFlags::SYMLINK_NOFOLLOW);
            Ok(())
        })
    }

    fn mount_point(&self, from: &Path, to: To<'_>) -> io::Result<()> {
        let dir = from.parent().ok_or(Errno::INVAL)?;
        let name = Name::new(from.file_name().unwrap_or_default().as_bytes()).map_err(|_| Errno::INVAL)?;
        let ask = || {
            let dir = Found::at(dir, Links::Follow)?.place()?;
            self.client.call(&control::ReadMountPoint { dir, name })
        };
        let target: Target = ask().map_err(|failure| of_failure(&failure))?.target;
        if self.is_over && statat(to.dir, to.name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(Errno::EXIST.into());
        }
        let make = || {
            let dir = Found::at(&path_of(to.dir), Links::Follow)?.place()?;
            let name =
                Name::new(to.name.as_bytes()).map_err(|_| Failure::Errno(Errno::INVAL.raw_os_error()))?;
            self.client.call(&control::MakeMountPoint { dir, name, target })
        };
        make().map(drop).map_err(|failure| of_failure(&failure))
    }

    /// The access list of a directory, if it differs from that which another has, and the user's rights by it.
    fn list_of(&self, path: &Path, other: &OwnedFd) -> Option<(AfsOpaque, Rights)> {
        let list = |path: &Path| {
            let place = Found::at(path, Links::Follow)?.place()?;
            let list = self.client.call(&control::GetAcl { place: place.clone() })?.access_list;
            Ok::<_, Failure>((list, self.client.call(&control::GetCallerAccess { place })?.rights))
        };
        // Who may not see it cannot set it either.
        let (text, rights) = list(path).ok()?;
        let has_it = list(&path_of(other)).is_ok_and(|(other, _)| other == text);
        (!has_it).then_some((text, rights))
    }

    fn set_list(&mut self, dir: &OwnedFd, access_list: AfsOpaque) {
        let set = Found::at(&path_of(dir), Links::Follow)
            .and_then(|found| self.client.call(&control::SetAcl { place: found.place()?, access_list }));
        match set {
            Ok(_) => {}
            Err(Failure::Errno(EACCES | EPERM)) => self.counts.lists += 1,
            Err(failure) => {
                self.counts.lists += 1;
                complain!(self.fs.printer, "fs: an access list: {failure}\n");
            }
        }
    }
}

/// A directory that is there.
struct Made {
    dir: OwnedFd,
    /// What it was then.
    status: Metadata,
    /// The access list that it gets when it is full.
    list: Option<AfsOpaque>,
    is_new: bool,
}

/// A name in a directory.
#[derive(Clone, Copy)]
struct To<'a> {
    dir: BorrowedFd<'a>,
    name: &'a OsStr,
}

impl To<'_> {
    fn path(&self) -> PathBuf {
        path_of(self.dir).join(self.name)
    }

    /// Has something made under another name, and gives it its own: what had that is gone then. Directories stay.
    fn replace(&self, make: impl FnOnce(&OsStr) -> io::Result<()>) -> io::Result<()> {
        let other = OsString::from(format!(".restored-{}", process::id()));
        let is_directory =
            |mode| rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Directory;
        match statat(self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if is_directory(there.st_mode) => return Err(Errno::ISDIR.into()),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        make(&other)?;
        renameat(self.dir, &other, self.dir, self.name).map_err(|errno| {
            let _ = unlinkat(self.dir, &other, AtFlags::empty());
            errno.into()
        })
    }
}

/// The path of what is held open.
fn path_of(fd: impl AsFd) -> PathBuf {
    Path::new("/proc/self/fd").join(fd.as_fd().as_raw_fd().to_string())
}

/// Permissions without the bits by which a program gets the owner's rights.
fn permissions(status: &Metadata) -> Mode {
    Mode::from_raw_mode(status.mode() & 0o777)
}

fn times(status: &Metadata) -> Timestamps {
    let modified = Timespec { tv_sec: status.mtime(), tv_nsec: status.mtime_nsec() };
    Timestamps { last_access: modified, last_modification: modified }
}

fn of_failure(failure: &Failure) -> io::Error {
    match failure.errno() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(failure.to_string()),
    }
}
