//! The clients of this machine, as commands and the PAM module see them: which of them one talks to (docs/client.md has the rule), and calls over
//! their control sockets, one after the other.
//!
//! A client says where its socket is by the source of its mount, in `/proc/self/mountinfo`: so a command needs neither configuration nor the
//! rights of anybody else. The client knows by the socket who asks. What is asked is in `afs_wire::control`.
//!
//! # What to open for a change
//!
//! - Which clients a command talks to: [`search`], [`mounts`].
//! - What is asked: `crates/afs-wire/src/interfaces/control.rs`; what the client answers:
//!   `crates/afs-client/src/service/control/answers.rs`.

#![forbid(unsafe_code)]

mod mounts;
mod search;

pub use mounts::{FILE_SYSTEM, Mount, SOURCE};
pub use search::{Found, PassedOver, Search, Trust};

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use afs_wire::control::{FRAME_HEADER, frame_length, framed};
use rxgen::{Rpc, decode_reply, encode_request};
use zeroize::Zeroizing;

/// The reason why a client did not do something.
#[derive(Debug)]
pub enum Failure {
    /// It says so: an errno.
    Errno(i32),
    /// No client of ours is mounted here.
    NoClient,
    /// The client that is mounted does not answer.
    Unreachable {
        /// The place where it should listen.
        socket: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The client belongs to somebody whom the caller does not trust.
    NotTrusted {
        /// The place where it listens.
        socket: PathBuf,
        /// The user who runs it.
        uid: u32,
    },
    /// The client answers what cannot be understood.
    Garbled {
        /// The place where it listens.
        socket: PathBuf,
    },
}

/// Connection to a client.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    mount: Option<PathBuf>,
    pag: Option<u32>,
    is_here: bool,
    stream: RefCell<UnixStream>,
}

impl Client {
    /// Connects to the client that listens there, and waits for its answers as long as they take: it has limits of its own.
    ///
    /// # Errors
    ///
    /// [`Failure::Unreachable`].
    pub fn connect(socket: &Path) -> Result<Self, Failure> {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                let (socket, stream) = (socket.to_owned(), RefCell::new(stream));
                Ok(Self { socket, mount: None, pag: None, is_here: true, stream })
            }
            Err(error) => Err(Failure::Unreachable { socket: socket.to_owned(), error }),
        }
    }

    /// The place where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The folder in which it is mounted; where the client was named by its socket, that.
    #[must_use]
    pub fn place(&self) -> &Path {
        self.mount.as_deref().unwrap_or(&self.socket)
    }

    /// True if the caller means this one: the current folder is in its mount, or it was named.
    #[must_use]
    pub const fn is_here(&self) -> bool {
        self.is_here
    }

    /// True if the caller is in the same session for both: their tokens there are for the same processes. A client that does not know a PAG
    /// takes its processes for the user's others.
    #[must_use]
    pub fn has_session_of(&self, other: &Self) -> bool {
        // An older one does not tell. It knows its own PAGs alone.
        self.pag.unwrap_or(0) == other.pag.unwrap_or(0)
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    ///
    /// The client's errno, or why there is no answer.
    pub fn call<R: Rpc>(&self, args: &R) -> Result<R::Reply, Failure> {
        let answer = self
            .exchange(&Zeroizing::new(encode_request(args)))
            .map_err(|error| Failure::Unreachable { socket: self.socket.clone(), error })?;
        let garbled = || Failure::Garbled { socket: self.socket.clone() };
        let (code, results) = answer.split_first_chunk::<4>().ok_or_else(garbled)?;
        match i32::from_be_bytes(*code) {
            0 => decode_reply::<R>(results).map_err(|_| garbled()),
            errno if errno > 0 => Err(Failure::Errno(errno)),
            _ => Err(garbled()),
        }
    }

    fn exchange(&self, request: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
        let stream = &mut *self.stream.borrow_mut();
        send(stream, request).and_then(|()| receive(stream)).map_err(in_words)
    }
}

/// Sends a request. It may have a token's key in it.
fn send(stream: &mut UnixStream, request: &[u8]) -> io::Result<()> {
    stream.write_all(&Zeroizing::new(framed(request)))
}

/// Receives an answer, which may have a key in it too.
fn receive(stream: &mut UnixStream) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header)?;
    let length = frame_length(header)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"))?;
    let mut answer = Zeroizing::new(vec![0; length]);
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// The system says "Resource temporarily unavailable" when the time is over.
fn in_words(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
            io::ErrorKind::TimedOut,
            "it has not answered in time: it hangs, or the machine is overloaded",
        ),
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection")
        }
        _ => error,
    }
}
