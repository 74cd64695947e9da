//! The last lines of the log, kept for administrators who ask for them through the overseer's service: by the names that the
//! logs of OpenAFS's servers have.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use afs_volserver::{OF_VOLUMES, ORDERS};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// The bytes of all lines that are kept: some thousand lines.
const MAX_BYTES: usize = 1 << 20;
/// The bytes of those among them that tell what administrators did to volumes, of which a night's job may make thousands.
const MAX_ORDERS_BYTES: usize = MAX_BYTES / 2;
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
    /// Bytes of orders among them.
    orders_bytes: usize,
}

fn is_order(target: &str) -> bool {
    [ORDERS, OF_VOLUMES].contains(&target)
}

impl Lines {
    /// Removes the line at this place.
    fn remove(&mut self, at: usize) {
        let Some((target, line)) = self.lines.remove(at) else { return };
        let bytes = target.len() + line.len();
        self.bytes -= bytes;
        self.orders_bytes -= if is_order(&target) { bytes } else { 0 };
    }
}

/// The form of the lines, which is that of the logs of OpenAFS's servers: the local time as ctime has it, and the text. A warning or an error
/// says that it is one.
#[derive(Debug)]
pub(super) struct Classic;

impl<S, N> FormatEvent<S, N> for Classic
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let now = Timestamp::now().to_zoned(TimeZone::system());
        write!(writer, "{} ", now.strftime("%a %b %e %H:%M:%S %Y"))?;
        match *event.metadata().level() {
            Level::ERROR => writer.write_str("ERROR: ")?,
            Level::WARN => writer.write_str("WARNING: ")?,
            _ => {}
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
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
        let bytes = target.len() + line.len();
        all.bytes += bytes;
        all.orders_bytes += if is_order(&target) { bytes } else { 0 };
        all.lines.push_back((target, line));
        while all.orders_bytes > MAX_ORDERS_BYTES {
            let Some(oldest) = all.lines.iter().position(|(target, _)| is_order(target)) else { break };
            all.remove(oldest);
        }
        while all.bytes > MAX_BYTES && !all.lines.is_empty() {
            all.remove(0);
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

    #[test]
    fn a_night_of_backups_does_not_drive_other_lines_out() {
        let recent = Recent::default();
        recent.keep("afs_volume".to_owned(), b"a disk has failed\n".to_vec());
        for n in 0..20_000 {
            recent
                .keep(ORDERS.to_owned(), format!("Volser: Clone: volume {n}, and more of it\n").into_bytes());
        }
        let log = |name| String::from_utf8(recent.log(name).unwrap()).unwrap();
        assert_eq!(log("FileLog"), "a disk has failed\n");
        assert!(log("VolserLog").contains("volume 19999,") && !log("VolserLog").contains("volume 1,"));
    }
}
