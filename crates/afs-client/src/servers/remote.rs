//! Calls to file servers on behalf of a user: one typed call on a fid, with everything that it takes to get an answer, and the
//! streams of data in both directions.
//!
//! The callers note the outcome of a call in the table of vnodes; streams do it themselves when they end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afs_failover::{Rotation, Step, Verdict, verdict};
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::rxafs::{FetchData64, Rxafs, StoreData64};
use afs_wire::status::{AfsFetchStatus, AfsStoreStatus, StoreMask};
use bytes::Bytes;
use rx::{CallError, ClientCall, Peer, RpcError};
use rx_proto::time::Instant;
use rxgen::{Abort, Rpc};

use crate::client::{Client, Inner};
use crate::error::Error;
use crate::fid::{CellIndex, Fid, User};
use crate::servers::table::{Address, Server, Servers};
use crate::servers::users::Who;
use crate::servers::waiting::Why;
use crate::vnodes::table::{PendingChange, Responder, Snapshot, Vnode};
use crate::wait;

/// Bytes given to the transport at once in a store, as it asks for.
pub const STORE_PIECE_BYTES: usize = 128 << 10;

/// How long a fetch may take until its length is told, or a small call until its answer, when the server is alive and says
/// nothing: servers wait some 2 s for other clients (OpenAFS's up to minutes), and disks may be slow. Beyond it, the
/// connection is taken to be broken.
const ANSWER_PATIENCE: Duration = Duration::from_secs(180);

/// The same for what a server answers at once, whatever it has to do: whether it is there, and where a volume is.
pub(crate) const QUICK_ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// How often what broke in the middle is asked for again, and the pause before; each next is twice as long. The servers are waited
/// for in the next call, as in each.
const BREAKS_MAX: u32 = 8;
const BREAK_PAUSE: Duration = Duration::from_millis(50);

/// How often a call broke in the middle of its data that an operation needs.
#[derive(Debug, Default)]
pub(crate) struct Breaks(u32);

impl Breaks {
    /// Waits until it may be asked for again.
    ///
    /// # Errors
    ///
    /// The error, if that is no reason to ask again, or if it was too often.
    pub(crate) async fn wait(&mut self, inner: &Inner, error: Error) -> Result<(), Error> {
        if !matches!(error, Error::Broken { .. }) || self.0 >= BREAKS_MAX || inner.is_closing() {
            return Err(error);
        }
        let pause = BREAK_PAUSE * (1 << self.0);
        self.0 += 1;
        inner.runtime.sleep_until(inner.now() + pause).await;
        Ok(())
    }
}

/// Who is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asked<'a> {
    /// Whichever of these servers answers.
    Servers(&'a [Arc<Server>]),
    /// A server that has a volume.
    Volume(CellIndex, VolumeId),
}

/// Why nobody's answer was good.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The last failed call, if any was made.
    last: Option<RpcError>,
    /// What that came to.
    verdict: Option<Verdict>,
    /// Looking for the servers failed.
    lookup: Option<Error>,
    servers: Vec<SocketAddr>,
    /// An attempt may have been carried out though it failed.
    pub(crate) is_ambiguous: bool,
}

impl Failure {
    /// The code with which the last call was aborted.
    pub(crate) fn code(&self) -> Option<Abort> {
        match &self.last {
            Some(RpcError::Call { source: CallError::Aborted { code, .. }, .. }) => Some(Abort(code.0)),
            Some(RpcError::Call { .. } | RpcError::Reply { .. }) | None => None,
        }
    }

    /// As if a call was aborted with a code.
    #[cfg(test)]
    pub(crate) fn of_code(code: Abort) -> Self {
        let (peer, service) = (SocketAddr::from(([192, 0, 2, 9], 7003)), rx_proto::ids::ServiceId(52));
        let code = rx_proto::abort::AbortCode(code.0);
        let last = RpcError::Call { rpc: "Test", source: CallError::Aborted { peer, service, code } };
        Self {
            verdict: Some(verdict(&last)),
            last: Some(last),
            lookup: None,
            servers: Vec::new(),
            is_ambiguous: false,
        }
    }

    fn of_lookup(error: Error, is_ambiguous: bool) -> Self {
        Self { last: None, verdict: None, lookup: Some(error), servers: Vec::new(), is_ambiguous }
    }

    /// What to tell the user of a procedure that was about a fid.
    pub(crate) fn of(self, rpc: &'static str, fid: Fid) -> Error {
        match (&self.last, self.verdict, self.code()) {
            (_, Some(Verdict::Wait | Verdict::Offline), Some(code)) => Error::Busy { rpc, fid, code },
            (Some(error), Some(verdict), _) if verdict != Verdict::Down => Error::of_rpc(rpc, fid, error),
            _ => self.about(format!("{rpc} of {fid}")),
        }
    }

    /// The same of what was not about a fid.
    pub(crate) fn about(self, what: String) -> Error {
        match (self.lookup, self.last, self.verdict) {
            (Some(error), _, _) => error,
            (None, Some(RpcError::Call { source: CallError::EndpointClosed, .. }), _) => Error::Closing,
            (None, Some(error), Some(verdict)) if verdict != Verdict::Down => {
                Error::BadReply { what, problem: error.to_string() }
            }
            _ => Error::Unreachable { what, servers: self.servers },
        }
    }
}

/// What a call on a fid came to.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) reply: T,
    pub(crate) responder: Responder,
}

impl Inner {
    /// Asks one of several servers, by the rules of `afs_failover`.
    pub(crate) async fn ask<T, F, W>(
        &self,
        asked: Asked<'_>,
        who: Who,
        mut attempt: F,
    ) -> Result<(T, Responder), Failure>
    where
        F: FnMut(SocketAddr) -> W,
        W: Future<Output = Result<T, RpcError>>,
    {
        let mut rotation = Rotation::new(self.now(), self.config.patience);
        let mut servers = self.servers_for(asked).await.map_err(|error| Failure::of_lookup(error, false))?;
        let mut last: Option<(RpcError, Verdict)> = None;
        // It counts as waiting also while it asks again.
        let mut waits = None;
        loop {
            if self.is_closing() {
                return Err(Failure::of_lookup(Error::Closing, rotation.is_ambiguous()));
            }
            // From here on no return of a server is missed.
            let mut back = pin!(self.servers.back.notified());
            back.as_mut().enable();
            Servers::sort(&mut servers);
            let candidates: Vec<_> = servers.iter().map(|server| server.candidate()).collect();
            match rotation.step(self.now(), &candidates) {
                Step::Try(id) => {
                    let server = servers.iter().find(|server| server.id == id).expect("a candidate");
                    let Some(address) = server.best() else {
                        rotation.note(self.now(), id, Verdict::OtherSite);
                        continue;
                    };
                    let responder = Responder { server: Arc::clone(server), resets: server.resets() };
                    match attempt(address.socket).await {
                        Ok(reply) => {
                            self.liveness.note_answer(&address);
                            return Ok((reply, responder));
                        }
                        Err(error) => {
                            let verdict = self.note_failure(server, &address, who, &error);
                            tracing::debug!(server = %address.socket, %error, ?verdict, "a call failed");
                            // Another address of the same server is tried first.
                            if verdict != Verdict::Down || server.candidate().down_since.is_some() {
                                rotation.note(self.now(), id, verdict);
                            }
                            last = Some((error, verdict));
                        }
                    }
                }
                Step::LookAgain(at) => {
                    let Asked::Volume(cell, volume) = asked else {
                        return Err(failure(last, &servers, &rotation));
                    };
                    if at > self.now() {
                        self.runtime.sleep_until(at).await;
                    }
                    self.locations.forget(cell, volume);
                    servers = self
                        .servers_for(asked)
                        .await
                        .map_err(|error| Failure::of_lookup(error, rotation.is_ambiguous()))?;
                    rotation.note_looked();
                    if servers.is_empty() && last.is_none() {
                        let error = Error::NoSite { cell: self.cells.name_of(cell), volume };
                        return Err(Failure::of_lookup(error, false));
                    }
                }
                Step::Wait(at) => {
                    let is_away = candidates.iter().all(|candidate| candidate.down_since.is_some());
                    drop(waits.replace(self.waiting.begin(if is_away { Why::Away } else { Why::Busy })));
                    wait::until(&self.runtime, at, back).await;
                }
                Step::GiveUp => return Err(failure(last, &servers, &rotation)),
            }
        }
    }

    async fn servers_for(&self, asked: Asked<'_>) -> Result<Vec<Arc<Server>>, Error> {
        match asked {
            Asked::Servers(servers) => Ok(servers.to_vec()),
            Asked::Volume(index, volume) => {
                let cell = self.cell(index)?;
                self.locations.sites_of(self, &cell, volume).await.inspect_err(|error| {
                    if matches!(error, Error::NoVolume { .. }) {
                        self.note_no_volume(index, volume);
                    }
                })
            }
        }
    }

    /// The cell does not have this volume any more. What was mounted there is looked up by name again: there may be a new one of
    /// that name.
    fn note_no_volume(&self, cell: CellIndex, volume: VolumeId) {
        self.locations.forget(cell, volume);
        let root = Fid::root_of(cell, volume);
        for mount in self.mounts.at(root) {
            if let Some(vnode) = self.vnodes.get(mount) {
                vnode.set_mounted(None);
            }
        }
    }

    /// Calls a procedure of the file service that is about a fid.
    ///
    /// # Errors
    ///
    /// What is left when everything was tried.
    pub(crate) async fn call<R: Rpc>(&self, who: Who, fid: Fid, args: R) -> Result<Answer<R::Reply>, Error> {
        self.try_call(who, fid, args).await.map_err(|failure| failure.of(R::NAME, fid))
    }

    /// The same, telling more of a failure.
    pub(crate) async fn try_call<R: Rpc>(
        &self,
        who: Who,
        fid: Fid,
        args: R,
    ) -> Result<Answer<R::Reply>, Failure> {
        let asking = self.ask(Asked::Volume(fid.cell, fid.volume), who, |socket| {
            let peer = self.connections.to::<Rxafs>(socket, who);
            let args = &args;
            async move { call_once(&peer, args, ANSWER_PATIENCE).await }
        });
        let (reply, responder) = asking.await?;
        Ok(Answer { reply, responder })
    }

    /// Notes what a failed call says of a server, and starts to cure it.
    pub(crate) fn note_failure(
        &self,
        server: &Arc<Server>,
        address: &Arc<Address>,
        who: Who,
        error: &RpcError,
    ) -> Verdict {
        let mut verdict = verdict(error);
        match verdict {
            Verdict::Down => self.liveness.note_silence(server, address),
            Verdict::Login => {
                if who == Who::NOBODY || !self.users.refused(who) {
                    verdict = Verdict::Fail;
                }
                self.connections.renew(who);
            }
            Verdict::Anew => self.connections.renew_to(address.socket, who),
            Verdict::Fail | Verdict::Wait | Verdict::Offline | Verdict::LookAgain | Verdict::OtherSite => {
                self.liveness.note_answer(address);
            }
        }
        verdict
    }

    /// The connections of a user to a server, for streams.
    fn file_peer(&self, socket: SocketAddr, who: Who) -> Peer {
        self.connections.to::<Rxafs>(socket, who)
    }
}

/// Makes one call to one server, which may take so long to answer while it is alive.
///
/// # Errors
///
/// The call's.
pub(crate) async fn call_once<R: Rpc>(
    peer: &Peer,
    args: &R,
    patience: Duration,
) -> Result<R::Reply, RpcError> {
    let mut call = peer.call().await.map_err(|source| RpcError::Call { rpc: R::NAME, source })?;
    call.set_timeout(patience);
    call.rpc(args).await
}

fn failure(last: Option<(RpcError, Verdict)>, servers: &[Arc<Server>], rotation: &Rotation) -> Failure {
    let (last, verdict) = last.unzip();
    let servers = servers.iter().flat_map(|s| s.addresses()).map(|address| address.socket).collect();
    Failure { last, verdict, lookup: None, servers, is_ambiguous: rotation.is_ambiguous() }
}

/// Data on their way from a server: the bytes of a range, as they come.
///
/// How many there will be is known from the start. When all have come, [`Self::end`] tells the status that they belong to.
#[derive(Debug)]
pub struct Fetch {
    client: Client,
    who: Who,
    vnode: Arc<Vnode>,
    before: Snapshot,
    responder: Responder,
    call: ClientCall,
    length: u64,
    missing: u64,
    /// When something was last known to come, to some seconds.
    heard_at: Instant,
}

impl Fetch {
    /// Bytes that the server sends: fewer than asked for at the end of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes that have not been given out.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// The smoothed and the smallest round-trip time to the server, as far as known.
    pub fn rtt(&self) -> Option<(Duration, Duration)> {
        self.call.rtt()
    }

    /// Whether the server is one of our own, which sends as much in one call as the way carries; `None` if it has not said.
    pub fn is_own(&self) -> Option<bool> {
        self.call.peer_is_own()
    }

    /// The server.
    pub fn server(&self) -> SocketAddr {
        self.call.peer()
    }

    /// The bytes that come next, some at a time; `None` when all have come.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`] when the call breaks. What was given out before is good if a later fetch tells the same data version;
    /// ask again for the rest, and another server may give it.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.missing == 0 {
            return Ok(None);
        }
        let now = self.client.inner.now();
        if now.since(self.heard_at) >= ANSWER_PATIENCE / 4 {
            self.heard_at = now;
            self.call.set_deadline(now + ANSWER_PATIENCE);
        }
        let received = match self.call.recv().await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(CallError::StreamEnded { peer: self.call.peer() }),
            Err(error) => Err(error),
        };
        let mut piece = received
            .map_err(|error| self.failed(RpcError::Call { rpc: FetchData64::NAME, source: error }))?;
        if piece.len() as u64 > self.missing {
            let rest = piece.split_off(self.missing as usize);
            self.call.unread(rest);
        }
        self.missing -= piece.len() as u64;
        Ok(Some(piece))
    }

    /// The status of the data, when all have come. It is noted for everybody.
    ///
    /// # Errors
    ///
    /// When the call breaks.
    pub async fn end(mut self) -> Result<AfsFetchStatus, Error> {
        while self.next().await?.is_some() {}
        let Self { client, who, vnode, before, responder, call, .. } = self;
        let server = call.peer();
        match call.reply::<FetchData64>().await {
            Ok(reply) => {
                let inner = &client.inner;
                inner.note_volume(&vnode, &reply.sync);
                inner.note_status(&vnode, (&before, &responder), who, &reply.status, Some(&reply.callback));
                Ok(reply.status)
            }
            Err(error) => Err(note_broken(&client, &responder, server, who, vnode.fid, error)),
        }
    }

    fn failed(&self, error: RpcError) -> Error {
        note_broken(&self.client, &self.responder, self.call.peer(), self.who, self.vnode.fid, error)
    }
}

/// A stream broke: notes that of the server, and says what to tell.
fn note_broken(
    client: &Client,
    responder: &Responder,
    socket: SocketAddr,
    who: Who,
    fid: Fid,
    error: RpcError,
) -> Error {
    let inner = &client.inner;
    let address = responder.server.addresses().into_iter().find(|address| address.socket == socket);
    let verdict =
        address.map_or_else(|| verdict(&error), |a| inner.note_failure(&responder.server, &a, who, &error));
    match verdict {
        Verdict::Fail | Verdict::OtherSite => Error::of_rpc(FetchData64::NAME, fid, &error),
        // The next call waits for the server, looks for another one, or shows another ticket.
        Verdict::Down
        | Verdict::Wait
        | Verdict::Offline
        | Verdict::LookAgain
        | Verdict::Login
        | Verdict::Anew => Error::Broken { what: format!("fetching {fid}"), problem: error.to_string() },
    }
}

/// What is to be stored of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreRange {
    /// Where the bytes begin.
    pub pos: u64,
    /// How many.
    pub length: u64,
    /// Bytes of the file when all that is to be stored is stored. The server cuts the file to this first, if it is longer
    /// (File service notes 6.2).
    pub file_length: u64,
    /// The modification time to be set; the server's clock without.
    pub modified: Option<AfsTime>,
    /// Whether the server is to have it on its disk before it answers.
    pub sync: bool,
}

/// Where the bytes of a store come from. Asked for the same bytes again when a call has to be repeated.
pub trait StoreSource: Sync {
    /// Bytes at a position of the file: at least one, at most `length`.
    ///
    /// # Errors
    ///
    /// The store fails with it.
    fn read(&self, pos: u64, length: usize) -> impl Future<Output = io::Result<Bytes>> + Send;
}

/// Bytes in memory, that begin at a position of the file.
#[derive(Debug, Clone)]
pub struct InMemory {
    /// Where they begin.
    pub pos: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl StoreSource for InMemory {
    async fn read(&self, pos: u64, length: usize) -> io::Result<Bytes> {
        let start = pos.checked_sub(self.pos).and_then(|start| usize::try_from(start).ok());
        let start = start.filter(|start| *start < self.bytes.len());
        let start = start.ok_or_else(|| io::Error::other("bytes beyond those that are to be stored"))?;
        Ok(self.bytes.slice(start..self.bytes.len().min(start + length)))
    }
}

/// Why one attempt of a store ended.
enum StoreFailure {
    Rpc(RpcError),
    Source(io::Error),
}

/// The data of files, as the cache asks for them. `fid` is a file's, a directory's or a link's own; nothing is crossed.
impl Client {
    /// Begins to fetch bytes of a vnode's data.
    ///
    /// # Errors
    ///
    /// What is left when everything was tried.
    pub async fn fetch(&self, user: User, fid: Fid, pos: u64, length: u64) -> Result<Fetch, Error> {
        let inner = &self.inner;
        let too_large = |_| Error::TooLarge { fid };
        let args = FetchData64 {
            fid: fid.in_cell(),
            pos: i64::try_from(pos).map_err(too_large)?,
            length: i64::try_from(length).map_err(too_large)?,
        };
        let who = inner.users.who(user, fid.cell);
        let vnode = inner.vnodes.get_or_add(fid);
        let before = vnode.snapshot();
        let asking = inner.ask(Asked::Volume(fid.cell, fid.volume), who, |socket| {
            let peer = inner.file_peer(socket, who);
            let args = &args;
            async move {
                let failed = |source| RpcError::Call { rpc: FetchData64::NAME, source };
                let mut call = peer.call().await.map_err(failed)?;
                call.set_timeout(ANSWER_PATIENCE);
                call.send_request(args).await?;
                call.finish().map_err(failed)?;
                // Two words, the high one first, then so many bytes, then the results (XDR notes 2.1).
                let mut words = [0; 8];
                call.read_exact(&mut words).await.map_err(failed)?;
                Ok((call, u64::from_be_bytes(words)))
            }
        });
        let ((call, coming), responder) =
            asking.await.map_err(|failure| failure.of(FetchData64::NAME, fid))?;
        if coming > length {
            let what = format!("fetching {length} bytes of {fid}");
            return Err(Error::BadReply { what, problem: format!("the server sends {coming} bytes") });
        }
        let client = self.clone();
        let heard_at = inner.now();
        Ok(Fetch { client, who, vnode, before, responder, call, length: coming, missing: coming, heard_at })
    }

    /// All bytes of a vnode's data, at most so many, and the status that they belong to: of a directory or link. Asks again
    /// when a call breaks.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch`].
    pub(crate) async fn fetch_whole(
        &self,
        user: User,
        fid: Fid,
        limit: usize,
    ) -> Result<(Vec<u8>, AfsFetchStatus), Error> {
        let mut breaks = Breaks::default();
        loop {
            let mut fetch = self.fetch(user, fid, 0, limit as u64).await?;
            let once = async {
                let mut bytes = Vec::with_capacity(usize::try_from(fetch.length()).unwrap_or(0).min(limit));
                while let Some(piece) = fetch.next().await? {
                    bytes.extend_from_slice(&piece);
                }
                Ok::<_, Error>((bytes, fetch.end().await?))
            };
            match once.await {
                Ok(whole) => return Ok(whole),
                Err(error) => breaks.wait(&self.inner, error).await?,
            }
        }
    }

    /// Stores bytes of a file. The status that it has led to is noted for everybody.
    ///
    /// # Errors
    ///
    /// What is left when everything was tried; the source's.
    pub async fn store<S: StoreSource>(
        &self,
        user: User,
        fid: Fid,
        range: StoreRange,
        source: &S,
    ) -> Result<AfsFetchStatus, Error> {
        let inner = &self.inner;
        let who = inner.users.who(user, fid.cell);
        let vnode = inner.vnodes.get_or_add(fid);
        let pending = PendingChange::new([Arc::clone(&vnode)]);
        let before = vnode.snapshot();
        let mut status = AfsStoreStatus::default();
        if let Some(modified) = range.modified {
            status.mask |= StoreMask::MOD_TIME;
            status.client_mod_time = modified;
        }
        if range.sync {
            status.mask |= StoreMask::FSYNC;
        }
        let args = StoreData64 {
            fid: fid.in_cell(),
            status,
            pos: range.pos,
            length: range.length,
            file_length: range.file_length,
        };
        let asking = inner.ask(Asked::Volume(fid.cell, fid.volume), who, |socket| {
            let peer = inner.file_peer(socket, who);
            let args = &args;
            async move {
                match store_once(&peer, args, source).await {
                    Ok(reply) => Ok(Ok(reply)),
                    Err(StoreFailure::Rpc(error)) => Err(error),
                    // No server is at fault.
                    Err(StoreFailure::Source(error)) => Ok(Err(error)),
                }
            }
        });
        let (reply, responder) = asking.await.map_err(|failure| failure.of(StoreData64::NAME, fid))?;
        let reply =
            reply.map_err(|error| Error::local(format!("reading what is to be stored of {fid}"), error))?;
        pending.done();
        inner.note_volume(&vnode, &reply.sync);
        vnode.note_change(inner.now(), (&before, &responder), who, &reply.status, None);
        Ok(reply.status)
    }
}

async fn store_once<S: StoreSource>(
    peer: &Peer,
    args: &StoreData64,
    source: &S,
) -> Result<afs_wire::rxafs::reply::StoreData64, StoreFailure> {
    let failed = |source| StoreFailure::Rpc(RpcError::Call { rpc: StoreData64::NAME, source });
    let mut call = peer.call().await.map_err(failed)?;
    call.send_request(args).await.map_err(StoreFailure::Rpc)?;
    let (mut pos, end) = (args.pos, args.pos + args.length);
    while pos < end {
        let wanted = usize::try_from(end - pos).unwrap_or(usize::MAX).min(STORE_PIECE_BYTES);
        let piece = source.read(pos, wanted).await.map_err(StoreFailure::Source)?;
        assert!(!piece.is_empty() && piece.len() <= wanted, "the source gives what it was asked for");
        pos += piece.len() as u64;
        match call.send(piece).await {
            Ok(()) => {}
            // It refuses, and its reply says why.
            Err(CallError::NotSending { .. }) => break,
            Err(error) => return Err(failed(error)),
        }
    }
    call.reply::<StoreData64>().await.map_err(StoreFailure::Rpc)
}

impl Inner {
    /// Whether the client is ending.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}
