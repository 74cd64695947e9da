//! `afsio write` and `append`: bytes from the standard input, a local file or made up, to a file of a cell. What has a length goes in
//! one call; from a pipe, a piece is stored while the next is read.

use super::path::Place;
use super::read::tell_md5;
use super::{AfsioError, Session, Target, is_link};
use crate::codes::Code;
use crate::progress::bar;
use crate::standard_input;
use afs_client::streams::{InMemory, StoreRange, StoreSource};
use afs_client::{Error, Fid, Found, Kind};
use bytes::{Bytes, BytesMut};
use indicatif::ProgressBar;
use md5::{Digest, Md5};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Mode of a new file.
const MODE: u32 = 0o644;

/// Bytes of a pipe that one store carries. The next piece is read at the same time. Each store begins with a round trip and
/// ends with one, which is 7 % of the time at 100 MB/s and 12.5 ms.
const PIECE_BYTES: usize = 32 << 20;

/// What is read from a pipe at once.
const READ_BYTES: usize = 1 << 20;

/// Made-up data say at each such offset where they are.
const PATTERN_BYTES: u64 = 4096;

/// The data that are to be written, and how.
pub(super) struct Order {
    pub(super) from: Option<PathBuf>,
    /// So many bytes of a pattern instead.
    pub(super) synthesize: Option<u64>,
    pub(super) is_forced: bool,
    pub(super) has_md5: bool,
}

/// Where the bytes come from.
enum Input {
    /// So many, to be had in any order.
    Counted(Counted),
    /// As they come.
    Piped(Box<dyn Read + Send>),
}

/// Bytes of which the number is known.
struct Counted {
    from: Arc<Origin>,
    length: u64,
}

enum Origin {
    /// A file, written from that offset on.
    File(File, u64),
    Pattern,
}

impl Session {
    pub(super) async fn write(&self, target: &Target, order: Order) -> Result<(), AfsioError> {
        let input = Input::open(&order)?;
        let found = match self.place_of(target).await? {
            Place::There(found) => {
                check_is_file(&found, target)?;
                if !order.is_forced && (!target.is_fid || found.status.length != 0) {
                    return Err(AfsioError::new(Code::EEXIST, "use -force to overwrite"));
                }
                found
            }
            Place::Missing { dir, name } => {
                let made = self.client.create(self.user, dir, &name, MODE).await;
                made.map_err(|error| {
                    let (name, dir) = (String::from_utf8_lossy(&name), dir.in_cell());
                    AfsioError::of_client(&error, format!("could not create file {name} in directory {dir}"))
                })?
            }
        };
        self.transfer(target, &order, input, found.fid, 0).await
    }

    pub(super) async fn append(&self, target: &Target, order: Order) -> Result<(), AfsioError> {
        let input = Input::open(&order)?;
        let found = match self.place_of(target).await? {
            Place::There(found) => found,
            Place::Missing { .. } => {
                return Err(AfsioError::new(Code::ENOENT, "cannot append to non-existent file"));
            }
        };
        check_is_file(&found, target)?;
        self.transfer(target, &order, input, found.fid, found.status.length).await
    }

    async fn transfer(
        &self,
        target: &Target,
        order: &Order,
        input: Input,
        fid: Fid,
        pos: u64,
    ) -> Result<(), AfsioError> {
        let opened = Instant::now();
        self.tell_start(opened);
        let md5 = Arc::new(if order.has_md5 { Summed::new() } else { Summed::default() });
        let stored = match input {
            Input::Counted(counted) => {
                let bar = bar(Some(counted.length), self.has_bar);
                let result = self.store_counted(&counted, fid, pos, &md5, &bar).await;
                bar.finish_and_clear();
                result
            }
            Input::Piped(pipe) => {
                let bar = bar(None, self.has_bar);
                let result = self.store_piped(pipe, fid, pos, &md5, &bar).await;
                bar.finish_and_clear();
                result
            }
        };
        let what = || format!("failed to write {}", target.shown());
        let bytes = stored.map_err(|failure| match failure {
            Failure::Client(error) => AfsioError::of_client(&error, what()),
            Failure::Input(error) => AfsioError::of_system(&error, "cannot read what is to be written"),
        })?;
        if let Some(md5) = md5.finish() {
            tell_md5(md5, &target.last());
        }
        self.tell_rate(opened, bytes, "write");
        Ok(())
    }

    async fn store_counted(
        &self,
        counted: &Counted,
        fid: Fid,
        pos: u64,
        md5: &Arc<Summed>,
        bar: &ProgressBar,
    ) -> Result<u64, Failure> {
        let range = range(pos, counted.length);
        let source = Source {
            origin: Arc::clone(&counted.from),
            begin: pos,
            md5: Arc::clone(md5),
            bar: bar.clone(),
            seen: AtomicU64::new(0),
        };
        self.client.store(self.user, fid, range, &source).await.map_err(Failure::Client)?;
        Ok(counted.length)
    }

    async fn store_piped(
        &self,
        pipe: Box<dyn Read + Send>,
        fid: Fid,
        begin: u64,
        md5: &Arc<Summed>,
        bar: &ProgressBar,
    ) -> Result<u64, Failure> {
        let mut pos = begin;
        let (mut pipe, mut piece) = read_piece(pipe).await?;
        let mut is_first = true;
        // A file that is to be empty is stored too: it may have had bytes.
        while is_first || !piece.is_empty() {
            is_first = false;
            md5.update(pos - begin, &piece);
            let length = piece.len() as u64;
            let source = InMemory { pos, bytes: piece };
            let stored = self.client.store(self.user, fid, range(pos, length), &source);
            let (stored, read) = tokio::join!(stored, read_piece(pipe));
            stored.map_err(Failure::Client)?;
            (pipe, piece) = read?;
            pos += length;
            bar.set_position(pos - begin);
        }
        Ok(pos - begin)
    }
}

/// A store after which the file ends.
const fn range(pos: u64, length: u64) -> StoreRange {
    StoreRange { pos, length, file_length: pos + length, modified: None, sync: true, is_hasty: false }
}

fn check_is_file(found: &Found, target: &Target) -> Result<(), AfsioError> {
    match found.status.kind {
        Kind::File => Ok(()),
        Kind::Directory => {
            let shown = target.shown();
            Err(AfsioError::new(Code::EISDIR, format!("{shown} is a directory, not a file")))
        }
        Kind::Symlink => Err(is_link(target)),
    }
}

/// The reason why it could not be stored.
enum Failure {
    Client(Error),
    Input(io::Error),
}

impl Input {
    fn open(order: &Order) -> Result<Self, AfsioError> {
        if let Some(length) = order.synthesize {
            return Ok(Self::Counted(Counted { from: Arc::new(Origin::Pattern), length }));
        }
        let failed = |error: io::Error, path: &Path| {
            AfsioError::of_system(&error, format!("cannot read {}", path.display()))
        };
        let (file, path) = match &order.from {
            Some(path) => (File::open(path).map_err(|error| failed(error, path))?, path.as_path()),
            // A duplicate, which reads from where the shell has left it.
            None => {
                let stdin = Path::new("the standard input");
                let input = standard_input::get().and_then(|input| Ok(rustix::io::dup(input)?));
                (input.map_err(|error| failed(error, stdin))?.into(), stdin)
            }
        };
        Self::of(file).map_err(|error| failed(error, path))
    }

    fn of(mut file: File) -> io::Result<Self> {
        let status = file.metadata()?;
        if status.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        // What says that it is empty may have bytes nevertheless, as in /proc.
        if !status.is_file() || status.len() == 0 {
            return Ok(Self::Piped(Box::new(file)));
        }
        let begin = file.stream_position()?;
        let length = status.len().saturating_sub(begin);
        Ok(Self::Counted(Counted { from: Arc::new(Origin::File(file, begin)), length }))
    }
}

/// Reads the next piece; an empty one is the end.
async fn read_piece(mut pipe: Box<dyn Read + Send>) -> Result<(Box<dyn Read + Send>, Bytes), Failure> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = BytesMut::new();
        while piece.len() < PIECE_BYTES {
            let filled = piece.len();
            piece.resize(PIECE_BYTES.min(filled + READ_BYTES), 0);
            match pipe.read(&mut piece[filled..]) {
                Ok(0) => {
                    piece.truncate(filled);
                    break;
                }
                Ok(bytes) => piece.truncate(filled + bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => piece.truncate(filled),
                Err(error) => return Err(error),
            }
        }
        Ok((pipe, piece.freeze()))
    });
    match read.await {
        Ok(read) => read.map_err(Failure::Input),
        Err(error) => Err(Failure::Input(io::Error::other(error))),
    }
}

/// The checksum of what was stored, of which some may be read twice.
#[derive(Default)]
struct Summed {
    md5: Option<Mutex<Md5>>,
    /// Bytes that are in it.
    bytes: AtomicU64,
}

impl Summed {
    fn new() -> Self {
        Self { md5: Some(Mutex::new(Md5::new())), bytes: AtomicU64::new(0) }
    }

    /// Bytes from an offset on. What was there already does not count again.
    fn update(&self, offset: u64, bytes: &[u8]) {
        let Some(md5) = &self.md5 else { return };
        let mut md5 = md5.lock().unwrap_or_else(PoisonError::into_inner);
        let summed = self.bytes.load(Ordering::Relaxed);
        let new = usize::try_from(summed.saturating_sub(offset)).ok().and_then(|known| bytes.get(known..));
        if let Some(new) = new {
            md5.update(new);
            self.bytes.store(summed + new.len() as u64, Ordering::Relaxed);
        }
    }

    fn finish(&self) -> Option<Md5> {
        let md5 = self.md5.as_ref()?;
        Some(md5.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// What a store asks for its bytes.
struct Source {
    origin: Arc<Origin>,
    /// Where in the file of the cell they begin.
    begin: u64,
    md5: Arc<Summed>,
    bar: ProgressBar,
    /// Bytes that were asked for at least once.
    seen: AtomicU64,
}

impl StoreSource for Source {
    async fn read(&self, pos: u64, length: usize) -> io::Result<Bytes> {
        let offset = pos - self.begin;
        let origin = Arc::clone(&self.origin);
        let read = tokio::task::spawn_blocking(move || origin.read(offset, length)).await;
        let bytes = read.map_err(io::Error::other)??;
        self.md5.update(offset, &bytes);
        let seen = offset + bytes.len() as u64;
        if self.seen.fetch_max(seen, Ordering::Relaxed) < seen {
            self.bar.set_position(seen);
        }
        Ok(bytes)
    }
}

impl Origin {
    fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        match self {
            Self::Pattern => Ok(pattern(offset, length)),
            Self::File(file, begin) => {
                let mut piece = BytesMut::zeroed(length);
                match file.read_at(&mut piece, begin + offset)? {
                    0 => Err(io::Error::other("it has become shorter meanwhile")),
                    bytes => {
                        piece.truncate(bytes);
                        Ok(piece.freeze())
                    }
                }
            }
        }
    }
}

/// Bytes of the pattern: at each multiple of 4096 a line that says where it is, then zeros.
fn pattern(offset: u64, length: usize) -> Bytes {
    let mut bytes = BytesMut::zeroed(length);
    let end = offset + length as u64;
    let mut line_at = offset - offset % PATTERN_BYTES;
    while line_at < end {
        let line = format!("Offset (0x{:x}, 0x{:x})\n", line_at >> 32, line_at & 0xffff_ffff);
        for (place, byte) in (line_at..).zip(line.bytes()) {
            if (offset..end).contains(&place) {
                bytes[(place - offset) as usize] = byte;
            }
        }
        line_at += PATTERN_BYTES;
    }
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_the_same_in_whatever_pieces() {
        let whole = pattern(0, 10_000);
        assert!(whole.starts_with(b"Offset (0x0, 0x0)\n\0"));
        assert_eq!(whole[4096..][..20], *b"Offset (0x0, 0x1000)");
        assert_eq!(pattern(5 << 32, 20), b"Offset (0x5, 0x0)\n\0\0"[..]);
        let pieces: Vec<u8> =
            (0..10_000).step_by(777).flat_map(|at| pattern(at, 777.min(10_000 - at as usize))).collect();
        assert_eq!(pieces, whole);
    }

    #[test]
    fn bytes_that_are_read_again_are_summed_once() {
        let summed = Summed::new();
        summed.update(0, b"ab");
        summed.update(0, b"abc");
        summed.update(2, b"c");
        summed.update(3, b"d");
        assert_eq!(summed.finish().unwrap().finalize(), Md5::digest(b"abcd"));
        assert!(Summed::default().finish().is_none());
    }

    #[test]
    fn a_file_is_read_from_where_its_reader_is() {
        let path = std::env::temp_dir().join(format!("afar-afsio-{}", std::process::id()));
        std::fs::write(&path, b"abcdef").unwrap();
        let mut file = File::open(&path).unwrap();
        file.seek(io::SeekFrom::Start(2)).unwrap();
        let Ok(Input::Counted(counted)) = Input::of(file) else { panic!("it has a length") };
        assert_eq!(counted.length, 4);
        assert_eq!(counted.from.read(0, 3).unwrap(), b"cde"[..]);
        assert_eq!(counted.from.read(3, 100).unwrap(), b"f"[..]);
        assert!(counted.from.read(4, 1).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Input::of(File::open("/proc/self/stat").unwrap()), Ok(Input::Piped(_))));
        assert!(Input::of(File::open("/proc").unwrap()).is_err());
    }

    #[tokio::test]
    async fn a_pipe_is_read_in_pieces_up_to_its_end() {
        let bytes = vec![7_u8; PIECE_BYTES + 5];
        let pipe: Box<dyn Read + Send> = Box::new(io::Cursor::new(bytes));
        let Ok((pipe, first)) = read_piece(pipe).await else { panic!("it can be read") };
        let Ok((pipe, second)) = read_piece(pipe).await else { panic!("it can be read") };
        let Ok((_, third)) = read_piece(pipe).await else { panic!("it can be read") };
        assert_eq!([first.len(), second.len(), third.len()], [PIECE_BYTES, 5, 0]);
    }
}
