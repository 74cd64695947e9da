//! The file of one call's trace: JSON lines. The first line names format and version. `docs/seeing.md` describes the
//! file. `rx_proto::trace` decides what of a call is recorded, and keeps long calls short.

use rx_proto::trace::{Acked, Record, Trace, What};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::Duration;

/// The contents of the first line.
const FORMAT: &str = "afar-trace";
const VERSION: u32 = 1;
/// Lines read. We write less than 25,000; a file of more is something else.
const MAX_LINES: usize = 1_000_000;
/// Bytes of a line read. Ours have some 250.
const MAX_LINE_BYTES: u64 = 4096;

/// The first line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Heading {
    format: String,
    version: u32,
    /// `client` or `server`: the end that was watched.
    pub(crate) role: String,
    /// The other end's address.
    pub(crate) peer: String,
    /// The time over which records are added up, in nanoseconds; 0 if each packet stands by itself.
    pub(crate) span_ns: u64,
    /// Losses and other marks that were left out.
    pub(crate) marks_left_out: u64,
    /// The number of lines that follow: fewer are a file that was cut.
    records: usize,
}

/// Any other line: a time in nanoseconds since the trace began, and what happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) ns: u64,
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// An event, as in [`What`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    Sent { first: u32, last: u32, packets: u32, bytes: u64, in_flight: u64 },
    Acked(AckedLine),
    Received { first: u32, last: u32, packets: u32, bytes: u64, held: u32, duplicates: u32, refused: u32 },
    AckSent { acks: u32, next: u32, window: u32 },
    Resent { seq: u32 },
    Lost { seq: u32 },
    TimedOut {},
    Probed {},
    AllAcked {},
    Phase { name: String },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct AckedLine {
    pub(crate) acks: u32,
    pub(crate) first: u32,
    pub(crate) previous: u32,
    pub(crate) acked: u64,
    pub(crate) lost: u64,
    pub(crate) spurious: u32,
    pub(crate) in_flight: u64,
    pub(crate) window: u64,
    pub(crate) peer_window: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<u64>,
    /// Smallest and largest round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rtt_ns: Option<(u64, u64)>,
}

/// A trace as its file has it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TraceFile {
    pub(crate) heading: Heading,
    /// In order of time.
    pub(crate) lines: Vec<Line>,
}

/// The reason why a file could not be read as a trace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// The first line is not that of a trace.
    #[error(
        "is no trace: its first line does not have \"format\":\"{FORMAT}\"; 'afar rxperf client --trace FILE' writes one"
    )]
    NoTrace,
    #[error("is a trace of version {0}, but this afar reads version {VERSION}: use the afar that wrote it")]
    Version(u32),
    #[error("is damaged in line {line}: {why}")]
    Damaged { line: usize, why: String },
    #[error("is cut: it has only {there} of its {wanted} records; trace the call again")]
    Cut { there: usize, wanted: usize },
}

impl From<&Trace> for TraceFile {
    fn from(trace: &Trace) -> Self {
        let lines: Vec<Line> = trace
            .records
            .iter()
            .map(|Record { at, what }| Line { ns: nanos(at.since(trace.started)), event: Event::from(what) })
            .collect();
        let heading = Heading {
            format: FORMAT.to_owned(),
            version: VERSION,
            role: if trace.is_client { "client" } else { "server" }.to_owned(),
            peer: trace.peer.to_string(),
            span_ns: nanos(trace.span),
            marks_left_out: trace.marks_left_out,
            records: lines.len(),
        };
        Self { heading, lines }
    }
}

impl From<&What> for Event {
    fn from(what: &What) -> Self {
        match what {
            What::Sent(s) => Self::Sent {
                first: s.seqs.0.0,
                last: s.seqs.1.0,
                packets: s.packets,
                bytes: s.bytes,
                in_flight: s.in_flight,
            },
            What::Acked(acked) => Self::Acked(acked.into()),
            What::Received(r) => Self::Received {
                first: r.seqs.0.0,
                last: r.seqs.1.0,
                packets: r.packets,
                bytes: r.bytes,
                held: r.held,
                duplicates: r.duplicates,
                refused: r.refused,
            },
            What::AckSent(a) => Self::AckSent { acks: a.acks, next: a.next.0, window: a.window },
            What::Resent { seq } => Self::Resent { seq: seq.0 },
            What::Lost { seq } => Self::Lost { seq: seq.0 },
            What::TimedOut => Self::TimedOut {},
            What::Probed => Self::Probed {},
            What::AllAcked => Self::AllAcked {},
            What::Phase(name) => Self::Phase { name: name.to_string() },
        }
    }
}

impl From<&Acked> for AckedLine {
    fn from(acked: &Acked) -> Self {
        Self {
            acks: acked.acks,
            first: acked.first.0,
            previous: acked.previous.0,
            acked: acked.acked,
            lost: acked.lost,
            spurious: acked.spurious,
            in_flight: acked.in_flight,
            window: acked.window,
            peer_window: acked.peer_window,
            rate: acked.rate,
            rtt_ns: acked.rtt.map(|(min, max)| (nanos(min), nanos(max))),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl TraceFile {
    /// Writes the file; replaces one that is there.
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        let mut out = BufWriter::new(File::create(path)?);
        self.write(&mut out)?;
        out.flush()
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, &self.heading)?;
        for line in &self.lines {
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut *out, line)?;
        }
        out.write_all(b"\n")
    }

    /// Reads a file.
    pub(crate) fn load(path: &Path) -> Result<Self, TraceError> {
        Self::read(BufReader::new(File::open(path).map_err(TraceError::Read)?))
    }

    fn read(mut input: impl BufRead) -> Result<Self, TraceError> {
        let mut text = String::new();
        let first = match next_line(&mut input, &mut text) {
            Ok(_) => serde_json::from_str::<Value>(&text).unwrap_or_default(),
            // Not text, or one endless line.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Value::Null,
            Err(error) => return Err(TraceError::Read(error)),
        };
        if first["format"] != FORMAT {
            return Err(TraceError::NoTrace);
        }
        let damaged =
            |line: usize, why: &dyn fmt::Display| TraceError::Damaged { line, why: why.to_string() };
        let version = first["version"].as_u64().ok_or_else(|| damaged(1, &"there is no version"))?;
        if version != u64::from(VERSION) {
            return Err(TraceError::Version(u32::try_from(version).unwrap_or(u32::MAX)));
        }
        let heading: Heading = serde_json::from_value(first).map_err(|error| damaged(1, &error))?;
        if heading.records > MAX_LINES {
            return Err(damaged(1, &format!("it tells of {} records", heading.records)));
        }
        let mut lines: Vec<Line> = Vec::new();
        while lines.len() < heading.records {
            let number = lines.len() + 2;
            match next_line(&mut input, &mut text) {
                Ok(0) => return Err(TraceError::Cut { there: lines.len(), wanted: heading.records }),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(damaged(number, &error));
                }
                Err(error) => return Err(TraceError::Read(error)),
            }
            if !text.ends_with('\n') {
                return Err(TraceError::Cut { there: lines.len(), wanted: heading.records });
            }
            let line: Line = serde_json::from_str(&text).map_err(|error| damaged(number, &error))?;
            if lines.last().is_some_and(|last| last.ns > line.ns) {
                return Err(damaged(number, &"it is earlier than the line before"));
            }
            lines.push(line);
        }
        match next_line(&mut input, &mut text) {
            Ok(0) => Ok(Self { heading, lines }),
            _ => Err(damaged(lines.len() + 2, &"there are more lines than the first tells")),
        }
    }
}

/// The next line, newline included; an error if it is too long.
fn next_line(input: &mut impl BufRead, text: &mut String) -> io::Result<usize> {
    text.clear();
    let read = input.by_ref().take(MAX_LINE_BYTES).read_line(text)?;
    if read as u64 == MAX_LINE_BYTES && !text.ends_with('\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"));
    }
    Ok(read)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rx_proto::ids::Seq;
    use rx_proto::time::Instant;
    use rx_proto::trace::{AckSent, ReceivedData, Sent};

    /// A trace with everything in it.
    pub(crate) fn sample() -> Trace {
        let whats = [
            What::Sent(Sent { seqs: (Seq(1), Seq(9)), packets: 9, bytes: 12_744, in_flight: 12_996 }),
            What::Phase("startup".into()),
            What::Acked(Acked {
                acks: 2,
                first: Seq(3),
                previous: Seq(9),
                acked: 8000,
                lost: 1444,
                spurious: 1,
                in_flight: 3552,
                window: 92_416,
                peer_window: 255,
                rate: Some(1_250_000),
                rtt: Some((Duration::from_millis(20), Duration::from_millis(25))),
            }),
            What::Lost { seq: Seq(3) },
            What::Resent { seq: Seq(3) },
            What::Probed,
            What::TimedOut,
            What::AllAcked,
            What::Received(ReceivedData {
                seqs: (Seq(1), Seq(2)),
                packets: 2,
                bytes: 2832,
                held: 1,
                duplicates: 0,
                refused: 0,
            }),
            What::AckSent(AckSent { acks: 1, next: Seq(3), window: 512 }),
        ];
        let started = Instant::ORIGIN + Duration::from_secs(5);
        let records = whats
            .into_iter()
            .zip(1..)
            .map(|(what, i)| Record { at: started + Duration::from_millis(10 * i), what })
            .collect();
        Trace {
            started,
            is_client: true,
            peer: ([192, 0, 2, 1], 7009).into(),
            span: Duration::from_micros(50),
            marks_left_out: 3,
            records,
        }
    }

    fn text() -> String {
        let mut out = Vec::new();
        TraceFile::from(&sample()).write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn error(text: &str) -> String {
        TraceFile::read(text.as_bytes()).expect_err(text).to_string()
    }

    #[test]
    fn a_file_reads_back_as_it_was_written() {
        let file = TraceFile::from(&sample());
        assert_eq!(TraceFile::read(text().as_bytes()).unwrap(), file);
        assert_eq!(file.lines.len(), sample().records.len());
    }

    /// The lines that others may rely on: the page in docs shows them.
    #[test]
    fn the_lines_are_as_documented() {
        let page = include_str!("../../../docs/seeing.md");
        for line in text().lines() {
            assert!(page.lines().any(|shown| shown.trim() == line), "docs/seeing.md lacks {line}");
        }
    }

    #[test]
    fn what_is_no_trace_is_told_apart_from_a_damaged_one() {
        for other in ["", "\n", "hello\n", "{}\n", "{\"format\":\"pcap\"}\n", &"x".repeat(100_000)] {
            assert!(error(other).contains("is no trace"), "{other:.20}");
        }
        assert!(TraceFile::read(&[0xff_u8, 0xfe, 0x00][..]).unwrap_err().to_string().contains("is no trace"));
        let newer = text().replacen("\"version\":1", "\"version\":2", 1);
        assert!(error(&newer).contains("version 2"));
        assert!(error("{\"format\":\"afar-trace\"}\n").contains("line 1"));
    }

    #[test]
    fn a_damaged_file_says_where() {
        let text = text();
        let line = |i: usize| text.lines().nth(i).unwrap();
        assert!(
            error(&text.replacen("\"resent\"", "\"resemt\"", 1)).contains("line 6"),
            "an event there is not"
        );
        assert!(error(&text.replacen("12744", "-1", 1)).contains("line 2"), "bytes below nothing");
        let swapped =
            text.replacen(&format!("{}\n{}", line(4), line(5)), &format!("{}\n{}", line(5), line(4)), 1);
        assert!(error(&swapped).contains("line 6") && error(&swapped).contains("earlier"));
        assert!(error(&format!("{text}{}\n", line(2))).contains("more lines"));
    }

    #[test]
    fn a_file_that_was_cut_says_so_wherever_it_was() {
        let text = text();
        for end in text.find('\n').unwrap() + 1..text.len() {
            let message = error(&text[..end]);
            assert!(message.contains("is cut: "), "{end}: {message}");
        }
    }
}
