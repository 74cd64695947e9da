//! The disk under a store: files with names in folders, that are read, written and synced. A trait, so that tests
//! can put one there that loses what was not synced ([`SimulatedDisk`]); [`FolderDisk`] is the real one, and
//! [`ScratchDisk`] keeps what is written away from it.

mod folder;
mod scratch;
mod simulated;

pub use folder::FolderDisk;
pub use scratch::ScratchDisk;
pub use simulated::{Cut, Flip, SimulatedDisk};

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// Files of one folder. Names are relative to it, with `/` between folder and file, and made by its owner alone.
///
/// What is written can be read at once and outlasts the process; what is synced outlasts a power loss: a file's bytes
/// with [`DiskFile::sync`], that it has its name, or no longer has it, with [`Disk::sync_folder`] of its folder.
pub trait Disk: Debug + Send + Sync {
    /// Opens a file that is there, for reading and writing.
    ///
    /// # Errors
    ///
    /// The system's; not found, if it is not there.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes an empty file, in place of one that has the name; and its folder, if that is not there.
    ///
    /// # Errors
    ///
    /// The system's.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Removes a file. One that is open can still be read.
    ///
    /// # Errors
    ///
    /// The system's; not found, if it is not there.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name, in place of one that has it; makes the new name's folder, if that is not there.
    ///
    /// # Errors
    ///
    /// The system's; not found, if it is not there.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// The names in a folder, in no order; none where there is no such folder.
    ///
    /// # Errors
    ///
    /// The system's.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Makes it certain that the names in a folder are as they are; "" is the disk's own.
    ///
    /// # Errors
    ///
    /// The system's.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Syncs many files at once, where the system has a cheaper way than one after the other.
    ///
    /// # Errors
    ///
    /// The system's. A file that is not there any more is none.
    fn sync_files(&self, names: &[String]) -> io::Result<()>;

    /// Syncs all files and folders there are.
    ///
    /// # Errors
    ///
    /// The system's.
    fn sync_all(&self) -> io::Result<()>;

    /// Bytes in all, and free.
    ///
    /// # Errors
    ///
    /// The system's.
    fn space(&self) -> io::Result<(u64, u64)>;

    /// A text that is another one after each start of the machine, and so after each power loss; and after
    /// [`Disk::distrust`].
    ///
    /// # Errors
    ///
    /// The system's.
    fn boot(&self) -> io::Result<String>;

    /// True if what is written is kept in memory, so that no more is to be written than has to be.
    fn is_scratch(&self) -> bool {
        false
    }

    /// A sync has failed: what it was to bring to the disk may be gone, though it can still be read, and no later sync fails for
    /// it. From now on [`Disk::boot`] is another, for this process and, where that can be written down, for later ones; and what
    /// is opened at the top of the folder is read as it is on the disk. A disk whose syncs do not fail has nothing to do.
    fn distrust(&self) {}
}

/// An open file of a [`Disk`].
pub trait DiskFile: Debug + Send + Sync {
    /// The file itself, where there is one: to be handed to the kernel.
    fn as_file(&self) -> Option<&std::fs::File> {
        None
    }

    /// Reads from a position on; fewer bytes than asked for only at the end.
    ///
    /// # Errors
    ///
    /// The system's.
    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<usize>;

    /// The same, if it need not wait for the disk.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`], with anything in `out`; the system's.
    fn read_at_once(&self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        self.read_at(position, out)
    }

    /// Writes all of it.
    ///
    /// # Errors
    ///
    /// The system's; some of it may have been written.
    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()>;

    /// Its length in bytes.
    ///
    /// # Errors
    ///
    /// The system's.
    fn length(&self) -> io::Result<u64>;

    /// Cuts it, or adds zeros.
    ///
    /// # Errors
    ///
    /// The system's.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Gives it this length and the space for it, so that writing there does not run out of space.
    ///
    /// # Errors
    ///
    /// The system's.
    fn reserve(&self, length: u64) -> io::Result<()>;

    /// Gives the space of a range back, whose bytes nobody may ask for any more. Where the system cannot, nothing is done.
    ///
    /// # Errors
    ///
    /// The system's.
    fn punch(&self, position: u64, length: u64) -> io::Result<()>;

    /// Has the system begin to bring its bytes to the disk, and does not wait: a sync of many files has less to do then. A hint.
    fn begin_sync(&self) {}

    /// Returns when its bytes and length outlast a power loss.
    ///
    /// # Errors
    ///
    /// The system's. What was written since the last sync may then be lost, also if another sync succeeds.
    fn sync(&self) -> io::Result<()>;
}

/// The folder of a file's name.
pub(crate) fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}
