//! `afsio read`: a file's bytes to the standard output or a local file, fetched in a few calls at once, which end in order.

use super::{AfsioError, Session, Target, is_link};
use crate::codes::Code;
use crate::progress::bar;
use afs_client::{Client, Error, Fid, Kind, User};
use afs_wire::ids::DataVersion;
use bytes::Bytes;
use md5::{Digest, Md5};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What one call fetches. A stock server gives a call 32 packets a round trip, so that several are needed at once; from ours one
/// fills the path, and each begins with a round trip: less than 4 % of the time, at 100 MB/s and 1.5 ms.
const PART_BYTES: u64 = 4 << 20;

/// Calls at once over a short way.
const CALLS_NEAR: usize = 4;

/// Calls at once over a long one, where a call of a stock server mostly waits. No more: it has few threads, for everybody.
const CALLS_FAR: usize = 8;

/// A way is long from this round trip on: 32 packets in it are 11 MB/s.
const FAR: Duration = Duration::from_millis(4);

/// Pieces of a part that wait to be written: all of it, so that no call is held up by the one before.
const PIECES_MAX: usize = 4096;

/// How often a part that broke is asked for again.
const ATTEMPTS: u32 = 5;

/// A part on its way.
struct Part {
    pieces: mpsc::Receiver<Bytes>,
    task: JoinHandle<Result<Fetched, Error>>,
}

/// A part that has come.
#[derive(Debug, Clone, Copy)]
struct Fetched {
    version: DataVersion,
    rtt: Option<Duration>,
}

impl Session {
    pub(super) async fn read(
        &self,
        target: &Target,
        to: Option<&Path>,
        has_md5: bool,
    ) -> Result<(), AfsioError> {
        let found = self.find(target).await?;
        match found.status.kind {
            Kind::File => {}
            Kind::Directory => {
                let shown = target.shown();
                return Err(AfsioError::new(Code::ENOENT, format!("{shown} is a directory, not a file")));
            }
            Kind::Symlink => return Err(is_link(target)),
        }
        let opened = Instant::now();
        self.tell_start(opened);
        let mut out = Output::open(to)?;
        let length = found.status.length;
        // A bar between the lines of a file on the same terminal helps nobody.
        let bar = bar(Some(length), self.has_bar && !out.is_terminal());
        let mut md5 = has_md5.then(Md5::new);
        let mut parts = VecDeque::new();
        let (mut next, mut calls) = (0, CALLS_NEAR);
        let failed =
            |error: &Error| AfsioError::of_client(error, format!("failed to read {}", target.shown()));
        loop {
            while parts.len() < calls && next < length {
                let bytes = PART_BYTES.min(length - next);
                parts.push_back(fetch(&self.client, self.user, found.fid, next, bytes));
                next += bytes;
            }
            let Some(Part { mut pieces, task }) = parts.pop_front() else { break };
            while let Some(piece) = pieces.recv().await {
                if let Some(md5) = &mut md5 {
                    md5.update(&piece);
                }
                bar.inc(piece.len() as u64);
                out = out.write(piece).await?;
            }
            let fetched = task.await.map_err(|error| AfsioError::new(Code::EIO, error.to_string()))?;
            let fetched = fetched.map_err(|error| failed(&error))?;
            if fetched.version != found.status.data_version {
                let what = format!("{} was changed while it was read: read it again", target.shown());
                return Err(AfsioError::new(Code::EAGAIN, what));
            }
            if fetched.rtt.is_some_and(|rtt| rtt >= FAR) {
                calls = CALLS_FAR;
            }
        }
        out.finish().await?;
        bar.finish_and_clear();
        if let Some(md5) = md5 {
            tell_md5(md5, &target.last());
        }
        self.tell_rate(opened, length, "read");
        Ok(())
    }
}

/// As `md5sum` writes it, to the standard error.
pub(super) fn tell_md5(md5: Md5, name: &str) {
    let digest: String = md5.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    eprintln!("{digest}  {name}");
}

/// Begins to fetch a part.
fn fetch(client: &Client, user: User, fid: Fid, pos: u64, length: u64) -> Part {
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let client = client.clone();
    let task = tokio::spawn(async move { fetch_part(&client, user, fid, (pos, length), sender).await });
    Part { pieces, task }
}

/// Fetches a part, going on where it broke. Versions only grow: if the last attempt tells the version that the file had when it
/// was found, so had the bytes of all attempts before.
async fn fetch_part(
    client: &Client,
    user: User,
    fid: Fid,
    (mut pos, length): (u64, u64),
    out: mpsc::Sender<Bytes>,
) -> Result<Fetched, Error> {
    let end = pos + length;
    let mut attempts = 0;
    loop {
        let start = pos;
        match fetch_once(client, user, fid, (&mut pos, end), &out).await {
            Ok(fetched) => return Ok(fetched),
            Err(error) => {
                attempts = if pos > start { 1 } else { attempts + 1 };
                if attempts >= ATTEMPTS || out.is_closed() {
                    return Err(error);
                }
            }
        }
    }
}

async fn fetch_once(
    client: &Client,
    user: User,
    fid: Fid,
    (pos, end): (&mut u64, u64),
    out: &mpsc::Sender<Bytes>,
) -> Result<Fetched, Error> {
    let mut fetch = client.fetch(user, fid, *pos, end - *pos).await?;
    while let Some(piece) = fetch.next().await? {
        *pos += piece.len() as u64;
        // Nobody wants it any more: what is read is given up.
        if out.send(piece).await.is_err() {
            return Err(Error::Closing);
        }
    }
    let rtt = fetch.rtt().map(|(_, smallest)| smallest);
    let status = fetch.end().await?;
    Ok(Fetched { version: status.data_version, rtt })
}

/// Where the bytes go.
enum Output {
    Stdout,
    File(File, String),
}

impl Output {
    fn open(to: Option<&Path>) -> Result<Self, AfsioError> {
        let Some(path) = to else { return Ok(Self::Stdout) };
        let shown = path.display().to_string();
        match File::create(path) {
            Ok(file) => Ok(Self::File(file, shown)),
            Err(error) => Err(AfsioError::of_system(&error, format!("cannot write {shown}"))),
        }
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Self::Stdout) && io::stdout().is_terminal()
    }

    /// Writes, where a slow reader holds up nothing but this.
    async fn write(self, bytes: Bytes) -> Result<Self, AfsioError> {
        self.blocking(move |mut out| out.write_all(&bytes)).await
    }

    async fn finish(self) -> Result<Self, AfsioError> {
        self.blocking(|mut out| out.flush()).await
    }

    async fn blocking(
        self,
        work: impl FnOnce(Box<dyn Write + '_>) -> io::Result<()> + Send + 'static,
    ) -> Result<Self, AfsioError> {
        let done = tokio::task::spawn_blocking(move || {
            let written = match &self {
                Self::Stdout => work(Box::new(io::stdout().lock())),
                Self::File(file, _) => work(Box::new(file)),
            };
            match written {
                Ok(()) => Ok(self),
                Err(error) => Err(AfsioError::of_system(&error, format!("cannot write {}", self.shown()))),
            }
        });
        done.await.map_err(|error| AfsioError::new(Code::EIO, error.to_string()))?
    }

    fn shown(&self) -> &str {
        match self {
            Self::Stdout => "to the standard output",
            Self::File(_, shown) => shown,
        }
    }
}
