//! The way to a client of ours on this machine: its control socket, and calls to it, one after the other.
//!
//! A client says where its socket is by the source of its mount, in `/proc/self/mountinfo`: so a command finds the one that
//! serves a file, and needs neither configuration nor the rights of anybody else. The client knows by the socket who asks.

use super::errors::Failure;
use crate::control_socket::SOURCE;
use afs_wire::control::{FRAME_HEADER, frame_length, framed};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use rxgen::xdr::from_bytes;
use rxgen::{Rpc, decode_reply, encode_request};
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};
use zeroize::Zeroizing;

/// The kind of file system that our mounts are, as the kernel shows it.
pub(crate) const FILE_SYSTEM: &str = "fuse.afar";

/// The file in which the kernel lists mounts.
const MOUNT_INFO: &str = "/proc/self/mountinfo";

/// The time, in all, for which a client for tokens is waited for that has no time to take a connection, and the pause between two
/// attempts.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The time within which the client for tokens must answer: longer than its servers are waited for.
const TOKENS_TIMEOUT: Duration = Duration::from_secs(600);

/// The environment variable that names the client for tokens by its socket, as `pam_afar` does with its option `socket`. Empty, it names
/// none.
const SOCKET_VARIABLE: &str = "AFAR_SOCKET";

/// A mount of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Its path.
    pub(crate) folder: PathBuf,
    /// The socket on which its client listens.
    pub(crate) socket: PathBuf,
    /// The device of all files in it.
    device: u64,
}

/// Connection to a client.
pub(crate) struct Client {
    socket: PathBuf,
    stream: RefCell<UnixStream>,
}

impl Mount {
    /// All mounts of ours that this process sees, the newest last.
    pub(crate) fn all() -> Vec<Self> {
        let text = fs::read(MOUNT_INFO).unwrap_or_default();
        text.split(|byte| *byte == b'\n').filter_map(Self::parse).collect()
    }

    /// The mount that a file of this device is in.
    pub(crate) fn of_device(device: u64) -> Option<Self> {
        Self::all().into_iter().rev().find(|mount| mount.device == device)
    }

    /// The mount of a command that is about no file: that of the current folder, else the newest.
    pub(crate) fn any() -> Option<Self> {
        let all = Self::all();
        let here = env::current_dir().unwrap_or_default();
        let around = all.iter().rev().find(|mount| here.starts_with(&mount.folder));
        around.or_else(|| all.last()).cloned()
    }

    /// Reads a line: number, number of the parent, device, root, folder, options, any number of more fields, a dash, the kind,
    /// the source, options. Blanks in a field are written as `\040`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = std::str::from_utf8(fields.nth(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let folder = unescaped(fields.nth(1)?);
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        if fields.next()? != FILE_SYSTEM.as_bytes() {
            return None;
        }
        let source = unescaped(fields.next()?);
        let socket = OsStr::from_bytes(source.as_bytes().strip_prefix(SOURCE.as_bytes())?);
        let device = device_number(major.parse().ok()?, minor.parse().ok()?);
        Some(Self { folder: folder.into(), socket: socket.into(), device })
    }
}

/// A device as `stat` tells it.
const fn device_number(major: u64, minor: u64) -> u64 {
    ((major & 0xffff_f000) << 32) | ((major & 0xfff) << 8) | ((minor & 0xffff_ff00) << 12) | (minor & 0xff)
}

fn unescaped(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        let escaped = match rest {
            [b'\\', digits @ ..] => digits.get(..3).and_then(octal),
            _ => None,
        };
        match escaped {
            Some(byte) => {
                plain.push(byte);
                rest = &rest[4..];
            }
            None => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(plain)
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

impl Client {
    /// Connects to the client that listens there.
    pub(crate) fn connect(socket: &Path) -> Result<Self, Failure> {
        match UnixStream::connect(socket) {
            Ok(stream) => Ok(Self { socket: socket.to_owned(), stream: RefCell::new(stream) }),
            Err(error) => Err(Failure::Unreachable { socket: socket.to_owned(), error }),
        }
    }

    /// Finds the client that the caller's tokens are for. Every user who mounts something may say that it is a mount of ours, and where
    /// its client listens. So the mount has to be root's, or the caller's own. The environment may name one; else, of several, it is
    /// that of the current folder or the newest.
    pub(crate) fn for_tokens() -> Result<Self, Failure> {
        Self::for_tokens_within(TOKENS_TIMEOUT)
    }

    /// The same for a command that goes on without tokens if there is no answer for so long.
    pub(crate) fn for_tokens_within(patience: Duration) -> Result<Self, Failure> {
        let own = geteuid().as_raw();
        let sockets = match env::var_os(SOCKET_VARIABLE) {
            Some(named) if named.is_empty() => Vec::new(),
            Some(named) => vec![PathBuf::from(named)],
            None => {
                let mounts = Mount::any().into_iter().chain(Mount::all().into_iter().rev());
                mounts.map(|mount| mount.socket).collect()
            }
        };
        Self::first_trusted(sockets.into_iter(), |uid| uid == 0 || uid == own, (BUSY_TIMEOUT, patience))
    }

    /// The first client of somebody who is trusted. What others have mounted makes nobody wait, also where it takes no connections.
    fn first_trusted(
        sockets: impl Iterator<Item = PathBuf>,
        trusts: impl Fn(u32) -> bool,
        (busy, answer): (Duration, Duration),
    ) -> Result<Self, Failure> {
        let until = Instant::now() + busy;
        let mut refusal = Failure::NoClient;
        for socket in sockets {
            let is_first = matches!(refusal, Failure::NoClient);
            let stream = match connect_unless_busy(&socket, &trusts, until) {
                Ok(stream) => stream,
                Err(error) if is_first => {
                    refusal = Failure::Unreachable { socket, error };
                    continue;
                }
                Err(_) => continue,
            };
            match socket_peercred(&stream).map(|peer| peer.uid.as_raw()) {
                Ok(uid) if trusts(uid) => {
                    let set = stream
                        .set_read_timeout(Some(answer))
                        .and_then(|()| stream.set_write_timeout(Some(answer)));
                    set.map_err(|error| Failure::Unreachable { socket: socket.clone(), error })?;
                    return Ok(Self { socket, stream: RefCell::new(stream) });
                }
                Ok(uid) if is_first => refusal = Failure::NotTrusted { socket, uid },
                Ok(_) | Err(_) => {}
            }
        }
        Err(refusal)
    }

    /// Asks, and waits for the answer as long as it takes: the client has limits of its own.
    pub(crate) fn call<R: Rpc>(&self, args: &R) -> Result<R::Reply, Failure> {
        let answer = self
            .exchange(&Zeroizing::new(encode_request(args)))
            .map_err(|error| Failure::Unreachable { socket: self.socket.clone(), error })?;
        let garbled = || Failure::Garbled { socket: self.socket.clone() };
        let (code, results) = answer.split_first_chunk::<4>().ok_or_else(garbled)?;
        match from_bytes::<i32>(code).map_err(|_| garbled())? {
            0 => decode_reply::<R>(results).map_err(|_| garbled()),
            errno if errno > 0 => Err(Failure::Errno(errno)),
            _ => Err(garbled()),
        }
    }

    /// Either may have a token's key in it.
    fn exchange(&self, request: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut stream = self.stream.borrow_mut();
        stream.write_all(&Zeroizing::new(framed(request)))?;
        let mut header = [0; FRAME_HEADER];
        stream.read_exact(&mut header)?;
        let length = frame_length(header)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"))?;
        let mut answer = Zeroizing::new(vec![0; length]);
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }
}

/// Connects at once. If too many programs already wait for a connection, tries again until `until`, but only if a trusted user made the
/// socket: the program that listens on another one may never accept a connection.
fn connect_unless_busy(
    socket: &Path,
    trusts: impl Fn(u32) -> bool,
    until: Instant,
) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match connect(&made, &address) {
            Ok(()) => {
                let stream = UnixStream::from(made);
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(Errno::AGAIN) if Instant::now() < until && trusts(fs::metadata(socket)?.uid()) => {
                thread::sleep(BUSY_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;

    const TIMEOUT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("afar-fs-client-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// A socket that takes no connections, to which so many have connected as may.
        fn full(&self, name: &str) -> (PathBuf, Vec<OwnedFd>) {
            let path = self.0.join(name);
            let address = SocketAddrUnix::new(&path).unwrap();
            let make = || {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
            };
            let listener = make();
            bind(&listener, &address).unwrap();
            listen(&listener, 1).unwrap();
            let mut held = vec![listener];
            loop {
                let one = make();
                match connect(&one, &address) {
                    Ok(()) => held.push(one),
                    Err(error) => {
                        assert_eq!(error, Errno::AGAIN);
                        return (path, held);
                    }
                }
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_socket_that_takes_no_connection_keeps_nobody_from_his_tokens() {
        let folder = Folder::new("full");
        let (full, _held) = folder.full("full");
        let good = folder.0.join("good");
        let _listener = UnixListener::bind(&good).unwrap();
        // Whoever made it.
        let sockets = || [full.clone(), good.clone()].into_iter();
        let client = Client::first_trusted(sockets(), |_| true, TIMEOUT).unwrap_or_else(|_| panic!("none"));
        assert_eq!(client.socket, good);
        let alone = Client::first_trusted([full.clone()].into_iter(), |_| false, TIMEOUT);
        assert!(matches!(alone, Err(Failure::Unreachable { socket, .. }) if socket == full));
        let untrusted = Client::first_trusted([good.clone()].into_iter(), |_| false, TIMEOUT);
        assert!(matches!(untrusted, Err(Failure::NotTrusted { socket, .. }) if socket == good));
    }

    #[test]
    fn mounts_of_ours_are_found_among_the_others() {
        let ours =
            b"61 28 0:50 / /home/a\\040b/afs rw,nosuid shared:3 - fuse.afar afs:/run/x\\134y/control rw,user_id=0";
        let mount = Mount::parse(ours).unwrap();
        assert_eq!(mount.folder, Path::new("/home/a b/afs"));
        assert_eq!(mount.socket, Path::new("/run/x\\y/control"));
        assert_eq!(mount.device, 50);
        for other in [
            &b"61 28 0:50 / /afs rw - fuse.other afs:/run/control rw"[..],
            b"61 28 0:50 / /afs rw fuse.afar afs:/run/control rw",
            b"61 28 x / /afs rw - fuse.afar afs:/run/control rw",
            b"61 28 0:50 / /afs rw - fuse.afar afs rw",
            b"61 28 0:50 / /afs rw -",
            b"",
        ] {
            assert_eq!(Mount::parse(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn devices_have_the_numbers_of_stat() {
        assert_eq!(device_number(0, 50), 50);
        assert_eq!(device_number(8, 1), 0x801);
        assert_eq!(device_number(0, 256), 0x0010_0000);
        assert_eq!(device_number(0x1000, 0), 0x1000_0000_0000);
    }

    #[test]
    fn only_octal_digits_are_escapes() {
        assert_eq!(unescaped(b"a\\040b\\"), "a b\\");
        assert_eq!(unescaped(b"\\04"), "\\04");
        assert_eq!(unescaped(b"\\999x"), "\\999x");
    }
}
