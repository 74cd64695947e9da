//! Requests to the client of the machine: by a thread that is the user, as the client knows by its socket who asks.

use afs_wire::control::{self, FRAME_HEADER, frame_length, framed};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use rxgen::{Rpc, decode_reply, encode_request};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time for which a login waits for the client.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The kind of our mounts, and how their source begins, with the control socket behind it.
const FILE_SYSTEM: &str = "fuse.afar";
const SOURCE: &str = "afs:";

/// The user who asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    /// The user.
    pub(crate) uid: u32,
    /// Their group.
    pub(crate) gid: u32,
    /// The PAG that they are in.
    pub(crate) pag: Option<u32>,
}

/// A new PAG for a user.
pub(crate) fn new_pag(asker: Asker, socket: Option<PathBuf>) -> Result<u32, String> {
    let group = as_user(asker, socket, &control::NewPag {})?.group;
    if super::is_pag(group) { Ok(group) } else { Err("the client's answer is no PAG".to_owned()) }
}

/// Ends a PAG, with its tokens.
pub(crate) fn end_pag(asker: Asker, socket: Option<PathBuf>) -> Result<(), String> {
    as_user(asker, socket, &control::EndPag {}).map(drop)
}

fn as_user<R: Rpc + Sync>(asker: Asker, socket: Option<PathBuf>, args: &R) -> Result<R::Reply, String>
where
    R::Reply: Send,
{
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            become_user(asker).map_err(|error| format!("acting as the user: {error}"))?;
            call(socket, args)
        });
        asking.join().unwrap_or_else(|_| Err("asking the client failed".to_owned()))
    })
}

/// Makes this thread, and no other, the user's.
fn become_user(asker: Asker) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(asker.uid), Gid::from_raw(asker.gid));
    let pag: Vec<Gid> = asker.pag.map(Gid::from_raw).into_iter().collect();
    set_thread_groups(&pag)?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

fn call<R: Rpc>(socket: Option<PathBuf>, args: &R) -> Result<R::Reply, String> {
    let sockets = socket.map_or_else(sockets, |socket| vec![socket]);
    let mut last = "no client of root's is mounted here".to_owned();
    for socket in sockets {
        match exchange(&socket, &encode_request(args)) {
            Ok(answer) => {
                let garbled = || format!("{}: an answer that cannot be understood", socket.display());
                let (code, results) = answer.split_first_chunk::<4>().ok_or_else(garbled)?;
                return match i32::from_be_bytes(*code) {
                    0 => decode_reply::<R>(results).map_err(|_| garbled()),
                    errno => Err(io::Error::from_raw_os_error(errno).to_string()),
                };
            }
            Err(error) => last = format!("{}: {error}", socket.display()),
        }
    }
    Err(last)
}

fn exchange(socket: &Path, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = connect_within(socket, TIMEOUT)?;
    if !socket_peercred(&stream)?.uid.is_root() {
        return Err(io::Error::other("its client is not root's"));
    }
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&framed(request))?;
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header)?;
    let length = frame_length(header).ok_or_else(|| io::Error::other("an answer that is too long"))?;
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Connects, and waits no longer than that for a client that takes no connections: to Linux, the time for sending counts for this too.
fn connect_within(socket: &Path, patience: Duration) -> io::Result<UnixStream> {
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(patience))?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(UnixStream::from(stream))
}

/// The control sockets of our mounts that root has made, the newest first. One of somebody else's may make a login wait.
fn sockets() -> Vec<PathBuf> {
    sockets_in(&fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// The same by a list of what is mounted, as the kernel shows it. Names in it are bytes, and anybody may choose some of them.
fn sockets_in(mounts: &[u8]) -> Vec<PathBuf> {
    let socket = |line: &[u8]| {
        // Spaces in names are written as numbers.
        let mut fields = line.split(|byte| *byte == b' ').skip_while(|field| *field != b"-").skip(1);
        let is_ours = fields.next()? == FILE_SYSTEM.as_bytes();
        let socket = fields.next()?.strip_prefix(SOURCE.as_bytes())?;
        let is_roots = fields.next()?.split(|byte| *byte == b',').any(|option| option == b"user_id=0");
        let socket = std::str::from_utf8(socket).ok()?;
        (is_ours && is_roots).then(|| PathBuf::from(socket.replace("\\040", " ")))
    };
    let mut sockets: Vec<PathBuf> = mounts.split(|byte| *byte == b'\n').filter_map(socket).collect();
    sockets.reverse();
    sockets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_takes_no_connections_does_not_keep_a_login_for_ever() {
        let path = std::env::temp_dir().join(format!("pam-afar-busy-{}", std::process::id()));
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let connect = || connect_within(&path, Duration::from_millis(50));
        let first = connect().expect("there is place for one");
        let refused = connect().map(drop);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
    }

    /// The list was read as a text, and nobody got a PAG any more.
    #[test]
    fn a_mount_with_an_odd_name_hides_no_other() {
        let line = |place: &[u8], kind: &str, rest: &str| {
            [b"36 35 0:40 / ", place, format!(" rw - {kind} {rest}\n").as_bytes()].concat()
        };
        let mounts = [
            line(b"/a", FILE_SYSTEM, "afs:/run/a\\040b rw,user_id=0,group_id=0"),
            line(b"/\xff\xfe", "fuse", "odd\u{fffd} rw,user_id=1000"),
            line(b"/c", FILE_SYSTEM, "afs:/run/c rw,user_id=1000,group_id=0"),
            line(b"/-", FILE_SYSTEM, "afs:/run/d rw,user_id=0"),
        ];
        assert_eq!(sockets_in(&mounts.concat()), [PathBuf::from("/run/d"), PathBuf::from("/run/a b")]);
    }
}
