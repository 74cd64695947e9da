//! The control socket: what `fs` and `tokens` ask of this client, on a Unix stream socket beside its mount. The interface, and how
//! messages are cut, is `afs_wire::control`; what is done for each request is in `control/answers.rs`, through the client's
//! methods that everybody has.
//!
//! The caller is the socket's peer, as the kernel knows it. Anybody may connect: nobody can learn or change anything
//! that they could not by the mount and by calls of their own. The key of a token is given to those whose token it is: the same user,
//! in the same PAG. What concerns all users is for the superuser; emptying
//! the whole cache also for the user who runs the client.

mod answers;
mod behind;
mod pags;
mod peer;
mod pins;
mod places;

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use afs_wire::Errno;
use afs_wire::control::{Control as Interface, FRAME_HEADER, FRAME_MAX, frame_length, framed};
use rxgen::serve::serve_call;
use rxgen::{Abort, CallStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

use crate::client::Client;
use crate::service::control::places::{Place, Places};
use afs_reach::fid::User;

pub use peer::pags_of_processes;

/// The time within which a peer must send a request, or read an answer. Commands do both at once.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);

/// A control socket, as long as it is kept; dropping it removes the socket.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    task: JoinHandle<()>,
    pags: JoinHandle<()>,
}

/// A client's facts about itself on its control socket.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The program's version.
    pub version: String,
    /// The file in which it found its cells, for messages.
    pub cell_serv_db: PathBuf,
}

/// The time between two looks at which PAGs have processes.
const LOOK_FOR_PAGS_EVERY: Duration = Duration::from_secs(600);

/// A user with a connection.
struct Session {
    client: Client,
    about: Arc<About>,
    /// The user who asks, with their PAG.
    user: User,
    /// The number of the peer's user, even if they are in another user's PAG.
    uid: u32,
    /// The user who runs the client and owns the socket.
    owner: u32,
    /// The path of the socket.
    socket: Arc<Path>,
}

impl Control {
    /// Listens there from now on. What is left of an earlier client's socket is removed.
    ///
    /// # Errors
    ///
    /// When there is something else than a socket, or the folder cannot be written.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with I/O.
    pub fn serve(client: &Client, path: &Path, about: About) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(status) if status.file_type().is_socket() => std::fs::remove_file(path)?,
            // Binding tells what is wrong.
            Ok(_) | Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        // All users of the mount, whoever has mounted it. Before, nobody else could connect.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let owner = std::fs::metadata(path)?.uid();
        let task = tokio::spawn(accept(listener, client.clone(), Arc::new(about), owner, path.into()));
        let pags = tokio::spawn(look_for_pags(client.clone()));
        Ok(Self { path: path.to_owned(), task, pags })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        self.pags.abort();
        // If it is gone already, that is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Tells the client which PAGs have processes, from the beginning on: those of an earlier client may go on.
async fn look_for_pags(client: Client) {
    let mut ticks = tokio::time::interval(LOOK_FOR_PAGS_EVERY);
    loop {
        ticks.tick().await;
        let Ok(alive) = tokio::task::spawn_blocking(peer::pags_of_processes).await else { return };
        match alive {
            Ok(alive) => client.note_pags(&alive),
            Err(error) => tracing::warn!(%error, "cannot read which PAGs have processes"),
        }
    }
}

/// Takes connections. With it, those that it has taken end: their tasks are in its set.
async fn accept(listener: UnixListener, client: Client, about: Arc<About>, owner: u32, socket: Arc<Path>) {
    let places = Arc::new(Places::default());
    let mut sessions = tokio::task::JoinSet::new();
    loop {
        while sessions.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, say: there may be some in a while.
                tracing::warn!(%error, "a connection to the control socket was lost");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let Ok(peer) = stream.peer_cred() else { continue };
        let uid = peer.uid();
        let Some(place) = places.take(uid) else {
            tracing::warn!(uid, "too many connections to the control socket");
            continue;
        };
        // As they were when the peer connected.
        let user = match peer::groups(&stream) {
            // Of a peer the kernel does not tell the real user. No program of ours has a set-uid bit.
            Ok(groups) => client.user(uid, uid, groups.into_iter()),
            Err(error) => {
                tracing::warn!(uid, %error, "the groups of a peer of the control socket cannot be told");
                continue;
            }
        };
        let (about, socket) = (Arc::clone(&about), Arc::clone(&socket));
        let session = Session { client: client.clone(), about, user, uid, owner, socket };
        sessions.spawn(async move {
            if let Err(error) = session.run(stream, &place).await {
                tracing::debug!(%error, uid, "a connection to the control socket ended early");
            }
        });
    }
}

impl Session {
    /// Answers one request after the other until the peer has no more, or somebody else gets its place while it is idle.
    async fn run(&self, mut stream: UnixStream, place: &Place) -> io::Result<()> {
        loop {
            let Some(request) = of_peer(place, receive(&mut stream)).await? else { return Ok(()) };
            place.set_busy(true);
            // A command that is interrupted closes its end: then nobody waits for the answer, and what is done for it ends.
            let answer = tokio::select! {
                answer = self.answer(request) => answer,
                end = end_of(&stream) => return end,
            };
            place.set_busy(false);
            of_peer(place, stream.write_all(&Zeroizing::new(framed(&answer)))).await?;
        }
    }

    /// The answer to a request: 0 and the results, or an errno.
    async fn answer(&self, request: Zeroizing<Vec<u8>>) -> Zeroizing<Vec<u8>> {
        let mut exchange = Exchange { request, taken: 0, reply: Zeroizing::new(vec![0; 4]) };
        let result = serve_call::<Interface, Self>(self, &mut exchange, FRAME_MAX).await;
        match result {
            Ok(()) if exchange.reply.len() <= FRAME_MAX => exchange.reply,
            Ok(()) => Zeroizing::new(Errno::EIO.0.to_be_bytes().to_vec()),
            Err(abort) => Zeroizing::new(errno_of(abort).to_be_bytes().to_vec()),
        }
    }
}

/// Waits for what the peer has to do, for as long as it has its place.
async fn of_peer<T>(place: &Place, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::select! {
        done = tokio::time::timeout(PEER_TIMEOUT, work) => done.unwrap_or(Err(io::ErrorKind::TimedOut.into())),
        () = place.is_lost() => Err(io::Error::other("its place was needed")),
    }
}

fn errno_of(abort: Abort) -> i32 {
    match abort {
        Abort::OPCODE => Errno::ENOSYS.0,
        Abort(errno) if errno > 0 => errno,
        _ => Errno::EINVAL.0,
    }
}

/// The next request; `None` at the end. It may have a token's key in it.
async fn receive(stream: &mut UnixStream) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut header = [0; FRAME_HEADER];
    match stream.read_exact(&mut header).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let length = frame_length(header)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a request that is too long"))?;
    let mut request = Zeroizing::new(vec![0; length]);
    stream.read_exact(&mut request).await?;
    Ok(Some(request))
}

/// Waits until the peer closes its end. It is an error if the peer sends more before it was answered.
async fn end_of(stream: &UnixStream) -> io::Result<()> {
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                let what = "a request before the last was answered";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// A request and its reply in memory, as a call.
struct Exchange {
    request: Zeroizing<Vec<u8>>,
    taken: usize,
    /// It may have a token's key in it, too.
    reply: Zeroizing<Vec<u8>>,
}

impl CallStream for Exchange {
    fn poll_send(
        &mut self,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<Result<usize, Abort>> {
        self.reply.extend_from_slice(bytes);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_receive(
        &mut self,
        _: &mut std::task::Context<'_>,
        out: &mut [u8],
    ) -> std::task::Poll<Result<usize, Abort>> {
        let left = &self.request[self.taken..];
        let length = left.len().min(out.len());
        out[..length].copy_from_slice(&left[..length]);
        self.taken += length;
        std::task::Poll::Ready(Ok(length))
    }

    fn peer(&self) -> std::net::SocketAddr {
        std::net::SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0))
    }

    fn security(&self) -> &str {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use afs_config::{CellName, CellServDb};
    use afs_wire::control;
    use rxgen::{Rpc, decode_reply, encode_request};

    /// A client of a cell whose servers nobody asks, with its socket in a folder that goes with the test.
    struct Served {
        folder: PathBuf,
        client: Client,
        control: Option<Control>,
    }

    impl Served {
        async fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("afs-control-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let text = ">one.test #\n192.0.2.1 #a\n>two.test #\n192.0.2.2 #b\n";
            let cells = CellServDb::parse(text, Path::new("F")).unwrap();
            let mut config = Config::new(CellName::new("two.test").unwrap(), cells);
            config.bind = ([127, 0, 0, 1], 0).into();
            let client = Client::start(config).await.unwrap();
            let about = About { version: "1".to_owned(), ..About::default() };
            let control = Control::serve(&client, &folder.join("control"), about).unwrap();
            Self { folder, client, control: Some(control) }
        }

        async fn connect(&self) -> UnixStream {
            UnixStream::connect(self.folder.join("control")).await.unwrap()
        }

        async fn end(mut self) {
            drop(self.control.take());
            assert!(!self.folder.join("control").exists(), "the socket goes with it");
            self.client.shut_down().await;
            std::fs::remove_dir_all(&self.folder).unwrap();
        }
    }

    async fn ask<R: Rpc>(stream: &mut UnixStream, args: &R) -> Result<R::Reply, i32> {
        stream.write_all(&framed(&encode_request(args))).await.unwrap();
        let answer = receive(stream).await.unwrap().expect("an answer");
        let (code, results) = answer.split_first_chunk().unwrap();
        match i32::from_be_bytes(*code) {
            0 => Ok(decode_reply::<R>(results).unwrap()),
            errno => Err(errno),
        }
    }

    /// A user with sub-uids could keep everybody from the socket with silent connections, root too.
    #[tokio::test]
    async fn silent_connections_keep_nobody_out() {
        let served = Served::new("silent").await;
        let mut silent = Vec::new();
        for _ in 0..2 * places::PER_USER_MAX {
            silent.push(served.connect().await);
        }
        let mut stream = served.connect().await;
        assert!(ask(&mut stream, &control::GetOwnCell {}).await.is_ok());
        let first = &mut silent[0];
        assert!(matches!(tokio::time::timeout(PEER_TIMEOUT, first.read(&mut [0])).await, Ok(Ok(0) | Err(_))));
        served.end().await;
    }

    #[tokio::test]
    async fn a_connection_asks_one_thing_after_the_other() {
        let served = Served::new("asks").await;
        let mut stream = served.connect().await;
        let own = ask(&mut stream, &control::GetOwnCell {}).await.unwrap().name;
        assert_eq!(&own[..], b"two.test");
        for (index, name) in [(0, "one.test"), (1, "two.test")] {
            let cell = ask(&mut stream, &control::GetCell { index }).await.unwrap().cell;
            assert_eq!((&cell.name[..], cell.servers.len()), (name.as_bytes(), 1));
        }
        assert_eq!(ask(&mut stream, &control::GetCell { index: 2 }).await, Err(Errno::EDOM.0));
        let about = ask(&mut stream, &control::About {}).await.unwrap();
        assert_eq!((&about.version[..], about.uuid), (&b"1"[..], served.client.uuid()));
        drop(stream);
        served.end().await;
    }

    #[tokio::test]
    async fn who_is_not_root_changes_nothing_for_all() {
        let served = Served::new("root").await;
        let mut stream = served.connect().await;
        let is_root = stream.peer_cred().unwrap().uid() == 0;
        let new_names = control::SysNames::new(vec!["here".try_into().unwrap()]).unwrap();
        let set = ask(&mut stream, &control::SysName { new_names }).await;
        let names = ask(&mut stream, &control::SysName { new_names: control::SysNames::default() }).await;
        let is_set = &names.unwrap().names[0][..] == b"here";
        assert_eq!((set.is_ok(), is_set), (is_root, is_root));
        drop(stream);
        served.end().await;
    }

    #[tokio::test]
    async fn what_is_no_request_is_told_or_ends_the_connection() {
        let served = Served::new("wrong").await;
        let mut stream = served.connect().await;
        for (message, errno) in [
            (&[0, 0, 0xff, 0xff][..], Errno::ENOSYS),
            (&[0, 0], Errno::EINVAL),
            (&[], Errno::EINVAL),
            // GetCell without its argument.
            (&[0, 0, 0, 51], Errno::EINVAL),
        ] {
            stream.write_all(&framed(message)).await.unwrap();
            let answer = receive(&mut stream).await.unwrap().expect("an answer");
            assert_eq!(answer[..], errno.0.to_be_bytes(), "{message:?}");
        }
        stream.write_all(&[0xff; 4]).await.unwrap();
        assert_eq!(stream.read(&mut [0; 4]).await.unwrap_or(0), 0, "a message that is too long ends it");
        served.end().await;
    }

    #[tokio::test]
    async fn a_token_is_given_back_to_its_owner_for_the_cell_of_its_name_alone() {
        let served = Served::new("token").await;
        let mut stream = served.connect().await;
        let name = |text: &str| afs_wire::ids::Name::try_from(text).unwrap();
        let token = control::GivenToken {
            cell: name("two.test"),
            holder: name("alice"),
            id: afs_wire::ids::ViceId(7),
            kvno: 256,
            session_key: control::SessionKey([1; 8]),
            start: afs_wire::ids::AfsTime(1),
            end: afs_wire::ids::AfsTime(u32::MAX),
            ticket: rxgen::xdr::Opaque::new(vec![9; 40]).unwrap(),
        };
        let set = control::SetToken { token: token.clone(), is_forced: false };
        assert!(ask(&mut stream, &set).await.unwrap().is_new);
        let given = ask(&mut stream, &control::GetToken { cell: name("two.test") }).await.unwrap().token;
        assert_eq!(given, token);
        // The beginning of its name is enough for `fs`; another cell's servers must not be shown this token.
        for other in ["two", "one.test", "three.test"] {
            let refused = ask(&mut stream, &control::GetToken { cell: name(other) }).await;
            assert_eq!(refused.unwrap_err(), Errno::ENOTCONN.0, "{other}");
        }
        drop(stream);
        served.end().await;
    }

    #[tokio::test]
    async fn what_an_earlier_client_has_left_is_replaced_and_nothing_else() {
        let mut served = Served::new("stale").await;
        drop(served.control.take());
        let path = served.folder.join("control");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "as after kill -9");
        served.control = Some(Control::serve(&served.client, &path, About::default()).unwrap());
        let mut stream = served.connect().await;
        assert!(ask(&mut stream, &control::GetOwnCell {}).await.is_ok());
        let file = served.folder.join("file");
        std::fs::write(&file, b"bytes").unwrap();
        assert!(Control::serve(&served.client, &file, About::default()).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"bytes");
        drop(stream);
        served.end().await;
    }

    #[test]
    fn what_is_wrong_with_a_request_is_an_errno() {
        assert_eq!(errno_of(Abort(13)), 13);
        assert_eq!(errno_of(Abort::OPCODE), 38);
        assert_eq!(errno_of(Abort::SS_UNMARSHAL), 22);
        assert_eq!(errno_of(Abort::DECODE), 22);
    }
}
