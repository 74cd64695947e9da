//! A folder of a real file system as a disk.

use super::{Disk, DiskFile, folder_of};
use crate::rows::lock;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, fadvise, fallocate, flock, fstatvfs, syncfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The whole file system is synced from so many files on, instead of each: a sync of a new file costs a commit of the
/// file system's journal, 1 to 5 ms here, one of the file system hardly more.
const FILES_TO_SYNC_ONE_BY_ONE: usize = 8;
/// Folders of which is known what was made in them since they were synced: beyond, all are forgotten.
const FOLDERS_KNOWN_MAX: usize = 65_536;
/// The file on which the process that has the folder open holds a lock.
const LOCK: &str = "lock";
/// The file that says how often a sync has failed since the machine was started (Volume format 8): its boot id, a blank, a
/// number. Anything else counts as once.
const FAILED: &str = "failed";
/// Modes of what is made: who may read a file is said by access lists that the system does not know.
const FILE_MODE: u32 = 0o600;
/// See [`FILE_MODE`].
const FOLDER_MODE: u32 = 0o700;
/// The system's name for this start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A folder, locked for this process unless others use it too.
#[derive(Debug)]
pub struct FolderDisk {
    folder: PathBuf,
    /// The folder itself, for syncing its file system.
    handle: File,
    /// None in a folder that others use too, and on a file system that nobody can write to.
    lock: Option<File>,
    /// Syncs that have failed since the machine was started.
    failed: AtomicU64,
    names: Mutex<Names>,
}

/// The names that were made, changed or removed in folders, so that a folder is not synced again where there is nothing new: each sync
/// waits for the disk.
#[derive(Debug, Default)]
struct Names {
    /// Changes so far, in all folders.
    changes: u64,
    /// The last change in each folder. Those of which nothing is known have to be synced.
    changed: HashMap<String, u64>,
    /// The last change before the last sync of each folder.
    synced: HashMap<String, u64>,
}

impl Names {
    fn note_change(&mut self, folder: &str) {
        if self.changed.len() > FOLDERS_KNOWN_MAX {
            self.forget();
        }
        self.changes += 1;
        self.changed.insert(folder.to_owned(), self.changes);
    }

    /// Forgets all but the count: a sync that is under way must not be taken for one of a later change.
    fn forget(&mut self) {
        self.changed.clear();
        self.synced.clear();
    }

    /// The last change in a folder, if there was one since the last sync, or nothing is known of it.
    fn unsynced(&mut self, folder: &str) -> Option<u64> {
        if !self.changed.contains_key(folder) {
            self.note_change(folder);
        }
        let last = self.changed[folder];
        (self.synced.get(folder) != Some(&last)).then_some(last)
    }
}

impl FolderDisk {
    /// Opens a folder that is there, and locks it unless its file system can only be read.
    ///
    /// # Errors
    ///
    /// The system's; [`io::ErrorKind::WouldBlock`] if another process has it open.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let handle = File::open(folder)?;
        close_to_others(&handle)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(FILE_MODE);
        let lock = match options.open(folder.join(LOCK)) {
            // No server has it open; another reader may.
            Err(error) if error.kind() == ReadOnlyFilesystem => None,
            result => Some(result?),
        };
        if let Some(lock) = &lock {
            flock(lock, FlockOperation::NonBlockingLockExclusive)?;
        }
        Self::of(folder, handle, lock)
    }

    /// Opens a folder that is there and that others use too, for files that only this process writes: it is not locked, and its
    /// mode stays as it is.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn among_others(folder: &Path) -> io::Result<Self> {
        Self::of(folder, File::open(folder)?, None)
    }

    /// A name was made, changed or removed, and folders above it may have been made.
    fn note_name(&self, name: &str) {
        let mut names = lock(&self.names);
        let mut folder = folder_of(name);
        names.note_change(folder);
        while !folder.is_empty() {
            folder = folder_of(folder);
            names.note_change(folder);
        }
    }

    fn of(folder: &Path, handle: File, lock: Option<File>) -> io::Result<Self> {
        let failed = AtomicU64::new(failures(folder)?);
        Ok(Self { folder: folder.to_owned(), handle, lock, failed, names: Mutex::default() })
    }
}

impl Drop for FolderDisk {
    fn drop(&mut self) {
        // Closing it is not enough: a child of this process has it open, too, until it executes its program.
        if let Some(lock) = &self.lock {
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }
}

/// Takes the rights of other users to a folder that has people's files: its files may have been made when it was open. If the
/// process does not own the folder, it cannot do this, and the owner decides.
fn close_to_others(folder: &File) -> io::Result<()> {
    let mode = folder.metadata()?.permissions().mode() & 0o7777;
    if mode & !FOLDER_MODE & 0o777 == 0 {
        return Ok(());
    }
    match folder.set_permissions(Permissions::from_mode(mode & !0o077)) {
        Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => Ok(()),
        result => result,
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string(BOOT_ID)?.trim().to_owned())
}

/// The number of failures in this start of the machine, by [`FAILED`].
fn failures(folder: &Path) -> io::Result<u64> {
    let text = match fs::read_to_string(folder.join(FAILED)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        // It is there, and that is what it says.
        Err(_) => String::new(),
    };
    match text.trim().split_once(' ') {
        Some((boot, number)) if boot == boot_id()? => Ok(number.parse().unwrap_or(1)),
        // Of an earlier start: whatever was not on the disk is gone from memory, too.
        Some(_) => Ok(0),
        None => Ok(1),
    }
}

impl Disk for FolderDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.folder.join(name);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            // What is there is served: writing to it fails, if anybody does.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path)?,
            result => result?,
        };
        if self.failed.load(Ordering::Relaxed) > 0 && folder_of(name).is_empty() {
            // What a sync could not write counts as written from then on, for as long as it is in memory.
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Ok(Arc::new(file))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.folder.join(name);
        let make = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).mode(FILE_MODE).open(&path)
        };
        let file = match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folder(&self.folder.join(folder_of(name)))?;
                make()?
            }
            result => result?,
        };
        self.note_name(name);
        Ok(Arc::new(file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))?;
        self.note_name(name);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let target = self.folder.join(to);
        if let Some(above) = target.parent() {
            make_folder(above)?;
        }
        fs::rename(self.folder.join(from), target)?;
        self.note_name(from);
        self.note_name(to);
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        match fs::read_dir(self.folder.join(folder)) {
            Ok(entries) => entries.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        let Some(last) = lock(&self.names).unsynced(folder) else { return Ok(()) };
        File::open(self.folder.join(folder))?.sync_all()?;
        lock(&self.names).synced.insert(folder.to_owned(), last);
        Ok(())
    }

    fn sync_files(&self, names: &[String]) -> io::Result<()> {
        if names.len() > FILES_TO_SYNC_ONE_BY_ONE {
            return Ok(syncfs(&self.handle)?);
        }
        // All of them, whatever fails: a file tells of an earlier failed write once, and what is not asked now would fail the
        // next attempt.
        let mut outcome = Ok(());
        for name in names {
            let synced = File::open(self.folder.join(name)).and_then(|file| file.sync_data());
            if let Err(error) = synced
                && error.kind() != io::ErrorKind::NotFound
            {
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(syncfs(&self.handle)?)
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        let space = fstatvfs(&self.handle)?;
        // What only root may use is no part of it, as in OpenAFS's servers and df's percentage.
        let of_root = space.f_bfree.saturating_sub(space.f_bavail);
        let usable = space.f_blocks.saturating_sub(of_root);
        Ok((usable * space.f_frsize, space.f_bavail * space.f_frsize))
    }

    fn boot(&self) -> io::Result<String> {
        let boot = boot_id()?;
        Ok(match self.failed.load(Ordering::Relaxed) {
            0 => boot,
            failed => format!("{boot}.{failed}"),
        })
    }

    fn distrust(&self) {
        let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.names).forget();
        // As good as it can be on a disk that fails: it is needed for as long as the rest is in memory.
        let _ = boot_id().and_then(|boot| fs::write(self.folder.join(FAILED), format!("{boot} {failed}\n")));
    }
}

impl DiskFile for File {
    fn as_file(&self) -> Option<&File> {
        Some(self)
    }

    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() {
            match FileExt::read_at(self, &mut out[done..], position + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_at_once(&self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() {
            let mut rest = [IoSliceMut::new(&mut out[done..])];
            match preadv2(self, &mut rest, position + done as u64, ReadWriteFlags::NOWAIT) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                // A file system that cannot tell.
                Err(Errno::OPNOTSUPP) => return DiskFile::read_at(self, position, out),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, position)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        match fallocate(self, FallocateFlags::empty(), 0, length) {
            // A file system that cannot; then space runs out when it does.
            Err(Errno::OPNOTSUPP) => self.set_len(length),
            result => Ok(result?),
        }
    }

    fn punch(&self, position: u64, length: u64) -> io::Result<()> {
        match fallocate(self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, position, length) {
            // The space stays in use; what counts is that nobody takes it for data.
            Err(Errno::OPNOTSUPP) => Ok(()),
            result => Ok(result?),
        }
    }

    fn begin_sync(&self) {
        // posix_fadvise(2): begins to write dirty pages, and lets go of clean ones, of which a file that was just written has none. What
        // cannot be written the next sync tells.
        let _ = fadvise(self, 0, None, Advice::DontNeed);
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_synced_after_each_new_name_in_it_and_not_again() {
        let mut names = Names::default();
        assert!(names.unsynced("data").is_some(), "nobody knows what was there before");
        let last = names.unsynced("data").expect("it was not synced yet");
        names.synced.insert("data".to_owned(), last);
        assert_eq!(names.unsynced("data"), None);
        names.note_change("data");
        let last = names.unsynced("data").expect("there is a new name");
        // Another comes while it is synced.
        names.note_change("data");
        names.synced.insert("data".to_owned(), last);
        assert!(names.unsynced("data").is_some(), "the sync may have missed it");
        assert!(names.unsynced("other").is_some());
        for folder in 0..=FOLDERS_KNOWN_MAX {
            names.note_change(&folder.to_string());
        }
        assert!(names.unsynced("data").is_some(), "it was forgotten");
    }

    #[test]
    fn a_failed_sync_is_remembered_until_the_machine_starts_anew() {
        let folder = std::env::temp_dir().join(format!("afs-store-failed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let boot = || FolderDisk::open(&folder).unwrap().boot().unwrap();
        let id = boot_id().unwrap();
        assert_eq!(boot(), id);
        let disk = FolderDisk::open(&folder).unwrap();
        disk.create("log.1").unwrap().write_at(0, b"bytes").unwrap();
        disk.distrust();
        assert_eq!(disk.boot().unwrap(), format!("{id}.1"));
        disk.distrust();
        drop(disk);
        assert_eq!(boot(), format!("{id}.2"), "another process knows of it");
        let mut bytes = [0; 5];
        let disk = FolderDisk::open(&folder).unwrap();
        assert_eq!(
            disk.open("log.1").unwrap().read_at(0, &mut bytes).unwrap(),
            5,
            "what can be read is read"
        );
        drop(disk);
        fs::write(folder.join(FAILED), "").unwrap();
        assert_eq!(boot(), format!("{id}.1"), "an administrator may say it");
        fs::write(folder.join(FAILED), "00000000-another-start 7\n").unwrap();
        assert_eq!(boot(), id, "the machine was started anew");
        fs::remove_dir_all(folder).unwrap();
    }

    /// `df` in a client showed a disk as fuller than it was: a total with what only root may use, and a free part without.
    #[test]
    fn a_partitions_total_leaves_out_what_is_kept_for_root() {
        let folder = std::env::temp_dir().join(format!("afs-store-space-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let space = fstatvfs(File::open(&folder).unwrap()).unwrap();
        let disk = FolderDisk::open(&folder).unwrap();
        let used = (space.f_blocks - space.f_bfree) * space.f_frsize;
        let (total, free) = disk.space().unwrap();
        // Others use the disk meanwhile.
        assert!((total - free).abs_diff(used) < 1 << 30, "{total} {free} {used}");
        drop(disk);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn nobody_else_of_the_machine_can_read_what_is_in_the_folder() {
        let folder = std::env::temp_dir().join(format!("afs-store-modes-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let disk = FolderDisk::open(&folder).unwrap();
        disk.create("top").unwrap();
        disk.create("data/0/deep").unwrap();
        disk.rename("top", "moved/top").unwrap();
        for name in ["", "lock", "data", "data/0", "data/0/deep", "moved", "moved/top"] {
            let mode = folder.join(name).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{name}: {mode:o}");
        }
        drop(disk);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_others_use_too_stays_open_to_them() {
        let folder = std::env::temp_dir().join(format!("afs-store-among-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let disk = FolderDisk::among_others(&folder).unwrap();
        disk.create("ours").unwrap();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(folder.join("ours").metadata().unwrap().permissions().mode() & 0o777, FILE_MODE);
        assert!(!folder.join(LOCK).exists());
        drop((FolderDisk::open(&folder).unwrap(), disk));
        fs::remove_dir_all(folder).unwrap();
    }
}
