//! The data of vnodes as streams in both directions: [`Streams`] begins a [`Fetch`], and stores; each is one call that is repeated
//! until a server has carried it out, by the rules of `afs_reach::remote`.
//!
//! What is fetched ahead, kept and stored when is left to `files` and its neighbours.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use afs_failover::{Verdict, verdict};
use afs_wire::ids::AfsTime;
use afs_wire::rxafs::{FetchData64, StoreData64};
use afs_wire::status::{AfsFetchStatus, AfsStoreStatus, StoreMask};
use bytes::Bytes;
use rx::{CallError, ClientCall, Peer, RpcError};
use rx_proto::config::CallLimits;
use rx_proto::time::Instant;
use rxgen::Rpc;

use crate::vnodes::attributes::Statuses;
use crate::vnodes::vnode::{Cause, PendingChange, Snapshot, Vnode};
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::releases::ReleaseSeen;
use afs_reach::remote::{ANSWER_TIMEOUT, Asked, Breaks, is_silence};
use afs_reach::table::Responder;
use afs_reach::users::{IdentityIndex, Purpose, Shown};

/// The time without a packet after which data on their way are asked for anew. A router may have given this client another port, and a server
/// follows a client by the requests that it sends.
const SILENCE: Duration = Duration::from_secs(3);

/// Bytes given to the transport at once in a store, as it asks for.
pub const STORE_PIECE_BYTES: usize = 128 << 10;

/// Data on their way from a server: the bytes of a range, as they come.
///
/// How many there will be is known from the start. When all have come, [`Self::end`] tells the status that they belong to.
#[derive(Debug)]
pub struct Fetch {
    statuses: Arc<Statuses>,
    who: IdentityIndex,
    shown: Option<Shown>,
    vnode: Arc<Vnode>,
    before: Snapshot,
    responder: Responder,
    call: ClientCall,
    length: u64,
    missing: u64,
    began: Instant,
    /// The time when something was last known to come, to some seconds.
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

    /// Tells whether the server is one of our own, which sends as much in one call as the way carries; `None` if it has not
    /// said.
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
        let now = self.statuses.now();
        if now.since(self.heard_at) >= ANSWER_TIMEOUT / 4 {
            self.heard_at = now;
            self.call.set_deadline(now + ANSWER_TIMEOUT);
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
        let broken = self.broken();
        let Self { statuses, who, vnode, before, responder, call, .. } = self;
        match call.reply::<FetchData64>().await {
            Ok(reply) => {
                if statuses.note_volume(&vnode, &responder, &reply.sync) == ReleaseSeen::Behind {
                    let (what, problem) =
                        (format!("fetching {}", vnode.fid), "of an older release".to_owned());
                    return Err(Error::Broken { what, problem });
                }
                let (responder, callback) = ((&before, &responder), Some(&reply.callback));
                statuses.note_status(&vnode, responder, who, &reply.status, callback);
                Ok(reply.status)
            }
            Err(error) => Err(broken.note(error)),
        }
    }

    fn failed(&self, error: RpcError) -> Error {
        self.broken().note(error)
    }

    fn broken(&self) -> Broken {
        Broken {
            statuses: Arc::clone(&self.statuses),
            responder: self.responder.clone(),
            socket: self.call.peer(),
            began: self.began,
            who: self.who,
            shown: self.shown.clone(),
            vnode: Arc::clone(&self.vnode),
        }
    }
}

/// A stream that may break.
struct Broken {
    statuses: Arc<Statuses>,
    responder: Responder,
    socket: SocketAddr,
    began: Instant,
    who: IdentityIndex,
    shown: Option<Shown>,
    vnode: Arc<Vnode>,
}

impl Broken {
    /// Notes of the server that the call broke, and returns the error to tell.
    fn note(self, error: RpcError) -> Error {
        let calls = &self.statuses.calls;
        let server = &self.responder.server;
        let address = server.addresses().into_iter().find(|address| address.socket == self.socket);
        let verdict = match address {
            None => verdict(&error),
            Some(address) if is_silence(&error) => {
                calls.liveness.note_suspicion(server, &address);
                Verdict::Wait
            }
            Some(address) => calls.note_failure(server, &address, (self.who, self.shown.as_ref()), &error),
        };
        let fid = self.vnode.fid;
        match verdict {
            Verdict::OtherSite
                if !self.vnode.volume.note_trouble(self.statuses.now(), server.id, self.began) =>
            {
                Error::of_rpc(FetchData64::NAME, fid, &error)
            }
            Verdict::Fail => Error::of_rpc(FetchData64::NAME, fid, &error),
            // The next call waits for the server, looks for another one, or shows another ticket.
            Verdict::OtherSite
            | Verdict::Down
            | Verdict::Wait
            | Verdict::Offline
            | Verdict::LookAgain
            | Verdict::Login
            | Verdict::Anew => Error::Broken { what: format!("fetching {fid}"), problem: error.to_string() },
        }
    }
}

/// The part of a file that is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreRange {
    /// The place where the bytes begin.
    pub pos: u64,
    /// The number of bytes.
    pub length: u64,
    /// Bytes of the file when all that is to be stored is stored. The server cuts the file to this first, if it is longer
    /// (File service notes 6.2).
    pub file_length: u64,
    /// The modification time to be set; the server's clock without.
    pub modified: Option<AfsTime>,
    /// True if the server is to have it on its disk before it answers.
    pub sync: bool,
    /// True if it fails as soon as no server answers, and the caller tries again: it has to find out first what has become of the file.
    pub is_hasty: bool,
}

/// The source of the bytes of a store. It is asked for the same bytes again when a call has to be repeated.
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
    /// The place where they begin.
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

/// What came of a store.
#[derive(Debug, Clone, Copy)]
pub struct StoreAnswer {
    /// The status that it has led to.
    pub status: AfsFetchStatus,
    /// The server was started anew meanwhile: the start before it may have carried out the same call.
    pub is_of_another_start: bool,
}

/// The reason why one attempt of a store ended.
enum StoreFailure {
    Rpc(RpcError),
    Source(io::Error),
}

/// The parts that it takes to fetch and to store data: the statuses that come with them, and the calls that these ask servers
/// through. A fid is a file's, a directory's or a link's own; nothing is crossed.
#[derive(Debug, Clone)]
pub struct Streams {
    statuses: Arc<Statuses>,
}

impl Streams {
    pub(crate) fn new(statuses: Arc<Statuses>) -> Self {
        Self { statuses }
    }

    /// Begins to fetch bytes of a vnode's data.
    ///
    /// # Errors
    ///
    /// What is left when everything was tried.
    pub async fn fetch(&self, user: User, fid: Fid, pos: u64, length: u64) -> Result<Fetch, Error> {
        let calls = &self.statuses.calls;
        let too_large = |_| Error::TooLarge { fid };
        let args = FetchData64 {
            fid: self.statuses.vnodes.local_ids.at_server(fid).await?.in_cell(),
            pos: i64::try_from(pos).map_err(too_large)?,
            length: i64::try_from(length).map_err(too_large)?,
        };
        let who = calls.users.who(user, fid.cell);
        let vnode = self.statuses.vnodes.get_or_add(fid);
        let (before, began) = (vnode.snapshot(), calls.runtime.now());
        let asking = calls.ask(Asked::Volume(fid.cell, fid.volume), who, Purpose::Read, |attempt| {
            let peer = calls.file_peer(&attempt, who);
            let args = &args;
            async move {
                let failed = |source| RpcError::Call { rpc: FetchData64::NAME, source };
                let mut call = attempt.begin(&peer).await.map_err(failed)?;
                call.send_request(args).await?;
                call.finish().map_err(failed)?;
                // Two words, the high one first, then so many bytes, then the results (XDR notes 2.1).
                let mut words = [0; 8];
                call.read_exact(&mut words).await.map_err(failed)?;
                if !attempt.is_hasty() {
                    call.set_limits(CallLimits { silence: Some(SILENCE), ..CallLimits::default() });
                }
                Ok((call, attempt.shown, u64::from_be_bytes(words)))
            }
        });
        let ((call, shown, coming), responder) =
            asking.await.map_err(|failure| failure.of(FetchData64::NAME, fid))?;
        if coming > length {
            let what = format!("fetching {length} bytes of {fid}");
            return Err(Error::BadReply { what, problem: format!("the server sends {coming} bytes") });
        }
        let heard_at = calls.runtime.now();
        Ok(Fetch {
            statuses: Arc::clone(&self.statuses),
            who,
            shown,
            vnode,
            before,
            responder,
            call,
            length: coming,
            missing: coming,
            began,
            heard_at,
        })
    }

    /// Fetches all bytes of a vnode's data, at most so many, and the status that they belong to: of a directory or link. Asks
    /// again when a call breaks.
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
                Err(error) => breaks.wait(&self.statuses.calls, error).await?,
            }
        }
    }

    /// Stores bytes of a file as an identity. The status that it has led to is noted for everybody.
    ///
    /// # Errors
    ///
    /// What is left when everything was tried; the source's.
    pub async fn store<S: StoreSource>(
        &self,
        who: IdentityIndex,
        fid: Fid,
        range: StoreRange,
        source: &S,
    ) -> Result<StoreAnswer, Error> {
        let calls = &self.statuses.calls;
        let in_cell = self.statuses.vnodes.local_ids.at_server(fid).await?.in_cell();
        let vnode = self.statuses.vnodes.get_or_add(fid);
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
            fid: in_cell,
            status,
            pos: range.pos,
            length: range.length,
            file_length: range.file_length,
        };
        let asked = match range.is_hasty {
            true => Asked::Known(fid.cell, fid.volume),
            false => Asked::Volume(fid.cell, fid.volume),
        };
        let asking = calls.ask(asked, who, Purpose::Change, |attempt| {
            let peer = calls.file_peer(&attempt, who);
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
        let cause = range.modified.map_or(Cause::Change, Cause::Shown);
        vnode.note_caused(calls.runtime.now(), (&before, &responder), who, (&reply.status, cause), None);
        calls.users.note_number(who, reply.status.author);
        let is_of_another_start = responder.server.resets() != responder.resets;
        Ok(StoreAnswer { status: reply.status, is_of_another_start })
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
