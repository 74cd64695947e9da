//! The last lines of the log, kept for administrators who ask for them through the overseer's service: by the names that the
//! logs of OpenAFS's servers have.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// The bytes of all lines that are kept: some thousand lines.
const MAX_BYTES: usize = 1 << 20;
/// Longest line.
const MAX_LINE_BYTES: usize = 8 << 10;

/// A log of OpenAFS's servers, whose lines these are: name, and how the targets of its lines begin.
const LOGS: &[(&str, &[&str])] = &[
    ("FileLog", &["afs_fileserver", "afs_volume", "afs_store", "afs_server::health", "afs_server::vice"]),
    ("VolserLog", &["afs_volserver", "afs_admin"]),
    ("VLLog", &["afs_celldb::vldb"]),
    ("PtLog", &["afs_celldb::ptdb"]),
    // All lines, whosever they are.
    ("BosLog", &[""]),
];

/// The last lines. Clones are the same ones.
#[derive(Debug, Clone, Default)]
pub struct Recent(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<(String, Vec<u8>)>,
    bytes: usize,
}

impl Recent {
    /// The lines of a log; `None` if there is no log of this name.
    pub(crate) fn log(&self, name: &str) -> Option<Vec<u8>> {
        let (_, targets) = LOGS.iter().find(|(log, _)| *log == name)?;
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_log = |(target, _): &&(String, Vec<u8>)| targets.iter().any(|begin| target.starts_with(begin));
        Some(lines.lines.iter().filter(of_log).flat_map(|(_, line)| line).copied().collect())
    }

    fn keep(&self, target: String, line: Vec<u8>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.bytes += target.len() + line.len();
        all.lines.push_back((target, line));
        while all.bytes > MAX_BYTES {
            let Some((target, line)) = all.lines.pop_front() else { break };
            all.bytes -= target.len() + line.len();
        }
    }
}

impl<'a> MakeWriter<'a> for Recent {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { recent: self.clone(), target: String::new(), text: Vec::new() }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        Line { recent: self.clone(), target: metadata.target().to_owned(), text: Vec::new() }
    }
}

/// A line that is being written, kept when it is dropped.
#[derive(Debug)]
pub struct Line {
    recent: Recent,
    target: String,
    text: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_LINE_BYTES.saturating_sub(self.text.len());
        self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut text = std::mem::take(&mut self.text);
        if !text.is_empty() {
            if !text.ends_with(b"\n") {
                text.push(b'\n');
            }
            self.recent.keep(std::mem::take(&mut self.target), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_in_the_log_of_the_server_whose_they_are_and_the_oldest_go_first() {
        let recent = Recent::default();
        recent.keep("afs_fileserver::clients".to_owned(), b"file\n".to_vec());
        recent.keep("afs_celldb::vldb::service".to_owned(), b"vl\n".to_vec());
        recent.keep("afar::server".to_owned(), b"all\n".to_vec());
        let log = |name| recent.log(name).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(log("FileLog").unwrap(), "file\n");
        assert_eq!(log("VLLog").unwrap(), "vl\n");
        assert_eq!(log("BosLog").unwrap(), "file\nvl\nall\n");
        assert_eq!(log("PtLog").unwrap(), "");
        assert_eq!(log("passwd"), None);
        let mut line = Line { recent: recent.clone(), target: "afs_volume".to_owned(), text: Vec::new() };
        line.write_all(&[b'x'; 2 * MAX_LINE_BYTES]).unwrap();
        drop(line);
        assert_eq!(log("FileLog").unwrap().len(), "file\n".len() + MAX_LINE_BYTES + 1);
        (0..3 * MAX_BYTES / 1000).for_each(|_| recent.keep("afs_volume".to_owned(), vec![b'y'; 1000]));
        let kept = log("BosLog").unwrap();
        assert!(kept.len() <= MAX_BYTES && kept.len() > MAX_BYTES / 2 && !kept.contains("all"));
    }
}
