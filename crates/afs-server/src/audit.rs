//! The audit log: a line of JSON for each change, with who, what, from where, and what came of it. The services tell it through
//! `tracing`, as events of the target `audit` with the fields `rpc`, `what`, `caller`, `peer` and `code` (0 is done).
//!
//! All that was done is there, and all that somebody known was refused. Of what strangers were refused there are so many lines a minute, and
//! then how many were left out: the file is on the disk of the databases.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// The target of the events that are written.
pub const TARGET: &str = "audit";

/// Lines of refused strangers in each [`PERIOD`].
const REFUSED: u32 = 60;
const PERIOD: Duration = Duration::from_secs(60);

/// The file. Clones are the same one.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
    output: Arc<Mutex<Output>>,
    refused: Arc<Mutex<Refused>>,
    began: Instant,
}

#[derive(Debug)]
struct Output {
    file: File,
    /// True if a part of a line may be at its end, as where the disk is full.
    is_torn: bool,
}

/// The refusals of strangers in the present period.
#[derive(Debug, Default)]
struct Refused {
    since: Duration,
    written: u32,
    left_out: u64,
}

impl Refused {
    /// Returns how many refusals were left out before this one, if one more may be written.
    fn admit(&mut self, now: Duration) -> Option<u64> {
        if now.saturating_sub(self.since) >= PERIOD {
            (self.since, self.written) = (now, 0);
        }
        if self.written == REFUSED {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// True if a line tells that somebody without a name was refused something. Quotation marks in what they sent are escaped.
fn is_refused_stranger(line: &[u8]) -> bool {
    let has = |text: &[u8]| line.windows(text.len()).any(|part| part == text);
    has(b"\"caller\":\"anonymous\"") && !has(b"\"code\":0}") && !has(b"\"code\":0,")
}

impl AuditLog {
    /// Opens a file to be appended to; made readable by its owner only.
    ///
    /// # Errors
    ///
    /// When it cannot be.
    pub fn open(path: &Path) -> io::Result<Self> {
        let output = Arc::new(Mutex::new(append(path)?));
        Ok(Self { path: path.to_owned(), output, refused: Arc::default(), began: Instant::now() })
    }

    /// Opens it again under its name, after the program that rotates logs has moved it away.
    ///
    /// # Errors
    ///
    /// When it cannot be; the old one is written on then.
    pub fn reopen(&self) -> io::Result<()> {
        let output = append(&self.path)?;
        *self.output.lock().unwrap_or_else(PoisonError::into_inner) = output;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<Output> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    if file.metadata()?.is_file() && mode & 0o007 != 0 {
        // Who did what is nothing for all users of the machine; a group is there on purpose.
        let _ = file.set_permissions(Permissions::from_mode(mode & !0o007));
    }
    // A file that cannot be read is written to all the same.
    let mut last = [b'\n'];
    if file.metadata()?.is_file()
        && let Some(at) = file.metadata()?.len().checked_sub(1)
    {
        let _ = File::open(path).and_then(|file| file.read_at(&mut last, at));
    }
    Ok(Output { file, is_torn: last != [b'\n'] })
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
        if is_refused_stranger(&self.bytes) {
            let mut refused = self.log.refused.lock().unwrap_or_else(PoisonError::into_inner);
            match refused.admit(self.log.began.elapsed()) {
                None => {
                    self.bytes.clear();
                    return Ok(());
                }
                Some(0) => {}
                Some(left_out) => {
                    let text = format!(
                        "{{\"message\":\"refused calls of strangers were left out\",\"lines\":{left_out}}}\n"
                    );
                    self.bytes.splice(..0, text.into_bytes());
                }
            }
        }
        let mut output = self.log.output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.is_torn {
            self.bytes.insert(0, b'\n');
        }
        let result = output.file.write_all(&self.bytes);
        output.is_torn = result.is_err();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_which_a_full_disk_took_a_part_does_not_spoil_the_next() {
        let path = std::env::temp_dir().join(format!("afar-audit-torn-{}", std::process::id()));
        std::fs::write(&path, "{\"rpc\":\"Cre").unwrap();
        let log = AuditLog::open(&path).unwrap();
        log.make_writer().write_all(b"{\"rpc\":\"One\"}\n").unwrap();
        log.output.lock().unwrap().is_torn = true;
        log.make_writer().write_all(b"{\"rpc\":\"Two\"}\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "{\"rpc\":\"Cre\n{\"rpc\":\"One\"}\n\n{\"rpc\":\"Two\"}\n");
    }

    #[test]
    fn a_stranger_cannot_fill_the_audit_log_with_refused_calls() {
        let path = std::env::temp_dir().join(format!("afar-audit-{}", std::process::id()));
        let log = AuditLog::open(&path).unwrap();
        let write = |line: &str| log.make_writer().write_all(line.as_bytes()).unwrap();
        for n in 0..1000 {
            write(&format!(
                "{{\"rpc\":\"NewEntry\",\"what\":\"{n}\",\"caller\":\"anonymous\",\"code\":267269}}\n"
            ));
        }
        for n in 0..100 {
            write(&format!(
                "{{\"what\":\"{n} \\\"caller\\\":\\\"anonymous\\\"\",\"caller\":\"alice\",\"code\":267269}}\n"
            ));
            write(&format!("{{\"what\":\"{n}\",\"caller\":\"anonymous\",\"code\":0}}\n"));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let refused = text.lines().filter(|line| line.contains("NewEntry")).count();
        assert_eq!((refused, text.lines().count()), (60, 260));
        let mut counts = Refused::default();
        let at = Duration::from_secs;
        assert_eq!((0..70).filter(|_| counts.admit(at(5)).is_some()).count(), 60);
        assert_eq!(
            (counts.admit(at(59)), counts.admit(at(65)), counts.admit(at(66))),
            (None, Some(11), Some(0))
        );
    }
}
