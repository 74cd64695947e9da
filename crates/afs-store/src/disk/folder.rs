//! A folder of a real file system as a disk.

use super::{Disk, DiskFile, folder_of};
use nix::fcntl::{FallocateFlags, Flock, FlockArg, fallocate};
use nix::sys::statvfs::statvfs;
use nix::unistd::syncfs;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// From so many files on, the whole file system is synced instead of each: a sync of a new file costs a commit of the
/// file system's journal, 1 to 5 ms here, one of the file system hardly more.
const FILES_TO_SYNC_ONE_BY_ONE: usize = 8;
/// The file that whoever has the folder open holds a lock on.
const LOCK: &str = "lock";

/// A folder, locked for this process.
#[derive(Debug)]
pub struct FolderDisk {
    folder: PathBuf,
    /// The folder itself, for syncing its file system.
    handle: File,
    _lock: Flock<File>,
}

impl FolderDisk {
    /// Opens a folder that is there, and locks it.
    ///
    /// # Errors
    ///
    /// The system's; [`io::ErrorKind::WouldBlock`] if another process has it open.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let handle = File::open(folder)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(LOCK))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| io::Error::from(errno))?;
        Ok(Self { folder: folder.to_owned(), handle, _lock: lock })
    }
}

impl Disk for FolderDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.folder.join(name);
        match OpenOptions::new().read(true).write(true).open(&path) {
            // What is there is served: writing to it fails, if anybody does.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                Ok(Arc::new(File::open(path)?))
            }
            result => Ok(Arc::new(result?)),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.folder.join(name);
        let make = || OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(self.folder.join(folder_of(name)))?;
                Ok(Arc::new(make()?))
            }
            result => Ok(Arc::new(result?)),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let target = self.folder.join(to);
        if let Some(above) = target.parent() {
            fs::create_dir_all(above)?;
        }
        fs::rename(self.folder.join(from), target)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        match fs::read_dir(self.folder.join(folder)) {
            Ok(entries) => entries.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        File::open(self.folder.join(folder))?.sync_all()
    }

    fn sync_files(&self, names: &[String]) -> io::Result<()> {
        if names.len() > FILES_TO_SYNC_ONE_BY_ONE {
            return Ok(syncfs(&self.handle)?);
        }
        for name in names {
            match File::open(self.folder.join(name)) {
                Ok(file) => file.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(syncfs(&self.handle)?)
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        let space = statvfs(&self.folder)?;
        Ok((space.blocks() * space.fragment_size(), space.blocks_available() * space.fragment_size()))
    }

    fn boot(&self) -> io::Result<String> {
        Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
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
        match fallocate(self, FallocateFlags::empty(), 0, length.try_into().map_err(io::Error::other)?) {
            // A file system that cannot; then space runs out when it does.
            Err(nix::errno::Errno::EOPNOTSUPP) => self.set_len(length),
            result => Ok(result?),
        }
    }

    fn punch(&self, position: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let offset = |n: u64| i64::try_from(n).map_err(io::Error::other);
        match fallocate(self, flags, offset(position)?, offset(length)?) {
            // The space stays in use; what counts is that nobody takes it for data.
            Err(nix::errno::Errno::EOPNOTSUPP) => Ok(()),
            result => Ok(result?),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
