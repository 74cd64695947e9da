//! The audit log: a line of JSON for each change, with who, what, from where, and what came of it. The services tell it through
//! `tracing`, as events of the target `audit` with the fields `rpc`, `what`, `caller`, `peer` and `code` (0 is done).

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// The target of the events that are written.
pub const TARGET: &str = "audit";

/// The file. Clones are the same one.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
    file: Arc<Mutex<File>>,
}

impl AuditLog {
    /// Opens a file to be appended to; made readable by its owner only.
    ///
    /// # Errors
    ///
    /// When it cannot be.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: Arc::new(Mutex::new(append(path)?)) })
    }

    /// Opens it again under its name, after whoever rotates logs has moved it away.
    ///
    /// # Errors
    ///
    /// When it cannot be; the old one is written on then.
    pub fn reopen(&self) -> io::Result<()> {
        let file = append(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    if file.metadata()?.is_file() && mode & 0o007 != 0 {
        // Who did what is nothing for all users of the machine; a group is there on purpose.
        let _ = file.set_permissions(Permissions::from_mode(mode & !0o007));
    }
    Ok(file)
}

impl<'a> MakeWriter<'a> for AuditLog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { log: self, bytes: Vec::new() }
    }
}

/// One line, written at once so that lines of several threads, or of two processes, do not mix.
#[derive(Debug)]
pub struct Line<'a> {
    log: &'a AuditLog,
    bytes: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let result = self.log.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&self.bytes);
        self.bytes.clear();
        result
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            // Not through the log, which may be what brought us here.
            eprintln!("afar: cannot write to the audit log {}: {error}", self.log.path.display());
        }
    }
}
