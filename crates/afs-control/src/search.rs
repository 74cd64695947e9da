//! The one rule for which clients one talks to that are not found by a file's path:
//!
//! 1. Only clients that the caller trusts: root's, and the caller's own. Every user may mount something that says to be ours. Whoever lends a
//!    privilege trusts root's alone.
//! 2. First the client of the current folder, then the others, the newest mount first.
//! 3. A client that does not answer is passed over, and reported. All are asked at the same time, so that those that hang take the time of one.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use afs_wire::control;
use afs_wire::ids::Name;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rxgen::{decode_reply, encode_request};

use crate::{Client, Failure, Mount, in_words, receive, send};

/// The pause between two attempts to connect to a client that has no time to take a connection.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The time for which an answer is waited for that has had its time already.
const LEAST_WAIT: Duration = Duration::from_millis(20);

/// The users whose clients may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Root.
    Root,
    /// Root, and this user.
    RootAnd(u32),
}

impl Trust {
    fn has(self, uid: u32) -> bool {
        uid == 0 || self == Self::RootAnd(uid)
    }
}

/// A search for clients.
#[derive(Debug, Clone)]
pub struct Search {
    /// The users whose clients may be asked.
    pub trust: Trust,
    /// The sockets of the clients, if the caller names them: then no others.
    pub named: Option<Vec<PathBuf>>,
    /// The current folder.
    pub here: Option<PathBuf>,
    /// The time, in all, for which clients are waited for that do not answer.
    pub patience: Duration,
    /// The time for which each later answer is waited for.
    pub answers_within: Duration,
}

/// The outcome of a search.
#[derive(Debug)]
pub struct Found {
    /// The clients that answer, in the order of the rule.
    pub clients: Vec<Client>,
    /// The others.
    pub passed_over: Vec<PassedOver>,
}

/// A client that was passed over.
#[derive(Debug)]
pub struct PassedOver {
    /// The folder in which it is mounted, or its socket.
    pub place: PathBuf,
    /// The reason.
    pub why: Failure,
}

impl Found {
    /// The reason why there is no client, in a case in which there is none: one that could be asked and does not answer, rather than one of
    /// somebody else's.
    #[must_use]
    pub fn refusal(self) -> Failure {
        let is_others = |one: &PassedOver| matches!(one.why, Failure::NotTrusted { .. });
        let first = self.passed_over.into_iter().min_by_key(is_others);
        first.map_or(Failure::NoClient, |one| one.why)
    }
}

/// A client that may be asked.
struct Candidate {
    socket: PathBuf,
    mount: Option<PathBuf>,
    is_here: bool,
}

/// A connection that is begun.
enum Begun {
    /// It is made, and the first question sent.
    Asked(UnixStream),
    /// Too many wait for one already.
    Busy,
}

impl Search {
    /// All clients that answer.
    #[must_use]
    pub fn all(&self) -> Found {
        self.find(usize::MAX)
    }

    /// The first client that answers.
    #[must_use]
    pub fn first(&self) -> Found {
        self.find(1)
    }

    fn find(&self, most: usize) -> Found {
        let until = Instant::now() + self.patience;
        let mut found = Found { clients: Vec::new(), passed_over: Vec::new() };
        let mut begun = Vec::new();
        for candidate in self.candidates(Mount::all(), &mut found.passed_over) {
            let one = self.begin(&candidate);
            begun.push((candidate, one));
        }
        for (candidate, one) in begun {
            if found.clients.len() == most {
                break;
            }
            match one.and_then(|one| self.finish(&candidate, one, until)) {
                Ok(client) => found.clients.push(client),
                Err(why) => found.passed_over.push(candidate.passed_over(why)),
            }
        }
        found
    }

    /// The clients that may be asked, in order. Those of others are passed over at once: they make nobody wait.
    fn candidates(&self, mounts: Vec<Mount>, passed_over: &mut Vec<PassedOver>) -> Vec<Candidate> {
        if let Some(named) = &self.named {
            return named
                .iter()
                .map(|socket| Candidate { socket: socket.clone(), mount: None, is_here: true })
                .collect();
        }
        let around = self.here.as_ref().and_then(|here| {
            let around = mounts.iter().enumerate().filter(|(_, mount)| here.starts_with(&mount.folder));
            around
                .max_by_key(|(number, mount)| (mount.folder.as_os_str().len(), *number))
                .map(|(number, _)| number)
        });
        let order = around.into_iter().chain((0..mounts.len()).rev());
        let mut candidates: Vec<Candidate> = Vec::new();
        for number in order {
            let (mount, is_here) = (&mounts[number], Some(number) == around);
            if candidates.iter().any(|other| other.socket == mount.socket) {
                continue;
            }
            let candidate =
                Candidate { socket: mount.socket.clone(), mount: Some(mount.folder.clone()), is_here };
            if self.trust.has(mount.owner) {
                candidates.push(candidate);
            } else {
                let why = Failure::NotTrusted { socket: mount.socket.clone(), uid: mount.owner };
                passed_over.push(candidate.passed_over(why));
            }
        }
        candidates
    }

    /// Connects without waiting, and asks how the client sees the caller: any client has an answer at once.
    fn begin(&self, candidate: &Candidate) -> Result<Begun, Failure> {
        let failed = |error| candidate.unreachable(error);
        let address = SocketAddrUnix::new(&candidate.socket).map_err(|errno| failed(errno.into()))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|errno| failed(errno.into()))?;
        match connect(&made, &address) {
            Ok(()) => {}
            // The program that listens on a socket of somebody else's may never take a connection.
            Err(Errno::AGAIN) => {
                let maker = fs::metadata(&candidate.socket).map_err(failed)?.uid();
                return if self.trust.has(maker) {
                    Ok(Begun::Busy)
                } else {
                    Err(failed(Errno::AGAIN.into()))
                };
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        let mut stream = UnixStream::from(made);
        let uid = socket_peercred(&stream).map_err(|errno| failed(errno.into()))?.uid.as_raw();
        if !self.trust.has(uid) {
            return Err(Failure::NotTrusted { socket: candidate.socket.clone(), uid });
        }
        // There is room for so little in any new connection.
        let asked =
            stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(self.answers_within)));
        asked.and_then(|()| send(&mut stream, &encode_request(&question()))).map_err(failed)?;
        Ok(Begun::Asked(stream))
    }

    fn finish(&self, candidate: &Candidate, mut begun: Begun, until: Instant) -> Result<Client, Failure> {
        let mut stream = loop {
            match begun {
                Begun::Asked(stream) => break stream,
                Begun::Busy if Instant::now() < until => thread::sleep(BUSY_PAUSE),
                Begun::Busy => return Err(candidate.unreachable(in_words(Errno::AGAIN.into()))),
            }
            begun = self.begin(candidate)?;
        };
        let left = until.saturating_duration_since(Instant::now()).max(LEAST_WAIT);
        let answer = stream.set_read_timeout(Some(left)).and_then(|()| receive(&mut stream));
        let answer = answer.map_err(|error| candidate.unreachable(in_words(error)))?;
        stream.set_read_timeout(Some(self.answers_within)).map_err(|error| candidate.unreachable(error))?;
        let pag = match answer.split_first_chunk::<4>() {
            Some(([0, 0, 0, 0], results)) => {
                decode_reply::<control::GetCaller>(results).ok().map(|reply| reply.pag)
            }
            // An older one does not know the question.
            Some(_) => None,
            None => return Err(Failure::Garbled { socket: candidate.socket.clone() }),
        };
        let (socket, mount) = (candidate.socket.clone(), candidate.mount.clone());
        Ok(Client { socket, mount, pag, is_here: candidate.is_here, stream: RefCell::new(stream) })
    }
}

fn question() -> control::GetCaller {
    control::GetCaller { cell: Name::default() }
}

impl Candidate {
    fn unreachable(&self, error: io::Error) -> Failure {
        Failure::Unreachable { socket: self.socket.clone(), error }
    }

    fn passed_over(&self, why: Failure) -> PassedOver {
        PassedOver { place: self.mount.clone().unwrap_or_else(|| self.socket.clone()), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;
    use rustix::net::{bind, listen};
    use rxgen::xdr::to_bytes;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;

    /// A socket that takes no connections, to which so many have connected as may.
    fn full(folder: &Folder, name: &str) -> (PathBuf, Vec<OwnedFd>) {
        let path = folder.join(name);
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

    /// A client that answers the first question: with a PAG, or as one that does not know it.
    fn client(folder: &Folder, name: &str, pag: Option<u32>) -> PathBuf {
        let path = folder.join(name);
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = vec![0; 4 + encode_request(&question()).len()];
                stream.read_exact(&mut request).unwrap();
                let answer = match pag {
                    Some(pag) => [&[0; 4][..], &to_bytes(&pag), &to_bytes(&false)].concat(),
                    None => 38_u32.to_be_bytes().to_vec(),
                };
                stream.write_all(&afs_wire::control::framed(&answer)).unwrap();
                thread::spawn(move || stream.read_exact(&mut [0]));
            }
        });
        path
    }

    fn search(trust: Trust, named: &[&PathBuf]) -> Search {
        let named = Some(named.iter().copied().cloned().collect());
        Search {
            trust,
            named,
            here: None,
            patience: Duration::from_secs(60),
            answers_within: Duration::from_secs(60),
        }
    }

    fn own() -> Trust {
        Trust::RootAnd(rustix::process::geteuid().as_raw())
    }

    #[test]
    fn what_does_not_answer_is_passed_over_and_told() {
        let folder = Folder::new("passed-over");
        let (full, _held) = full(&folder, "full");
        let hangs = folder.join("hangs");
        let _listener = UnixListener::bind(&hangs).unwrap();
        let dead = folder.join("dead");
        drop(UnixListener::bind(&dead).unwrap());
        let missing = folder.join("missing");
        let (good, old) = (client(&folder, "good", Some(0x4100_0007)), client(&folder, "old", None));
        // Those that hang have had the time by then that the others are given in any case.
        let all = [&good, &full, &hangs, &dead, &missing, &old];
        let patience = Duration::from_secs(2);
        let found = Search { patience, ..search(own(), &all) }.all();
        let answering: Vec<_> =
            found.clients.iter().map(|client| (client.socket.clone(), client.pag)).collect();
        assert_eq!(answering, [(good, Some(0x4100_0007)), (old, None)]);
        assert!(!found.clients[0].has_session_of(&found.clients[1]));
        let mut told: Vec<_> = found.passed_over.iter().map(|one| one.place.clone()).collect();
        told.sort();
        assert_eq!(told, [dead, full, hangs.clone(), missing]);
        let why = found.passed_over.iter().find(|one| one.place == hangs).map(|one| format!("{:?}", one.why));
        assert!(why.as_ref().is_some_and(|why| why.contains("has not answered in time")), "{why:?}");
    }

    #[test]
    fn a_client_of_somebody_who_is_not_trusted_is_asked_nothing() {
        let folder = Folder::new("trust");
        let good = client(&folder, "good", Some(0));
        let own = rustix::process::geteuid();
        if own.is_root() {
            return;
        }
        // Whoever lends a privilege trusts root's clients only.
        let found = search(Trust::Root, &[&good]).first();
        assert!(found.clients.is_empty());
        let refusal = found.refusal();
        assert!(
            matches!(&refusal, Failure::NotTrusted { socket, uid } if *socket == good && *uid == own.as_raw())
        );
        assert_eq!(search(Trust::RootAnd(own.as_raw()), &[&good]).first().clients.len(), 1);
    }

    #[test]
    fn the_current_folders_client_comes_first_and_then_the_newest() {
        let mount = |folder: &str, socket: &str, owner: u32| {
            format!("61 28 0:50 / {folder} rw - fuse.afar afs:{socket} rw,user_id={owner}")
        };
        let lines = [
            mount("/afs", "/run/1", 0),
            mount("/srv/al/afs", "/run/2", 7),
            mount("/afs/inner", "/run/3", 0),
            mount("/tmp/evil", "/tmp/evil/s", 8),
            mount("/mnt/adm", "/run/5", 0),
            // The first again, bound elsewhere.
            mount("/srv/afs", "/run/1", 0),
        ]
        .join("\n");
        let order = |here: Option<&str>, trust| {
            let search = Search { named: None, here: here.map(PathBuf::from), ..search(trust, &[]) };
            let mut others = Vec::new();
            let found = search.candidates(Mount::all_in(lines.as_bytes()), &mut others);
            let sockets: Vec<_> = found.into_iter().map(|one| one.socket.display().to_string()).collect();
            (sockets.join(" "), others.len())
        };
        assert_eq!(order(None, Trust::RootAnd(7)), ("/run/1 /run/5 /run/3 /run/2".to_owned(), 1));
        assert_eq!(order(Some("/afs/inner/x"), Trust::Root), ("/run/3 /run/1 /run/5".to_owned(), 2));
        assert_eq!(order(Some("/srv/al/afs/x"), Trust::RootAnd(7)).0, "/run/2 /run/1 /run/5 /run/3");
        assert_eq!(order(Some("/tmp/evil"), Trust::RootAnd(7)).0, "/run/1 /run/5 /run/3 /run/2");
        assert_eq!(order(Some("/afsx"), Trust::Root).0, "/run/1 /run/5 /run/3");
    }
}
