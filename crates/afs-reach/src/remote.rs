//! Calls to file servers on behalf of a user: one typed call on a fid, with everything that it takes to get an answer. `Calls` is what
//! all operations ask servers through.
//!
//! Which server is asked next is left to `afs-failover`. The callers note the outcome of a call: nothing is known here of vnodes.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use afs_failover::{Verdict, verdict};
use afs_wire::abort::RXKADLEVELFAIL;
use afs_wire::ids::VolumeId;
use afs_wire::rxafs::{FetchACL, FetchStatus, GetSnapshots, GetVolumeStatus, Rxafs};
use rx::{CallError, ClientCall, Peer, RpcError, Runtime};
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_proto::time::Instant;
use rx_security::rxgk::CallbackKeys;
use rxgen::{Abort, Rpc};

use crate::cells::Cells;
use crate::closing::Closing;
use crate::connections::Connections;
use crate::dns::DnsCells;
use crate::error::Error;
use crate::fid::{CellIndex, Fid};
use crate::liveness::Liveness;
use crate::location::Locations;
use crate::offers::Offers;
use crate::table::{Address, Responder, Server, Servers};
use crate::told::Told;
use crate::users::{IdentityIndex, Purpose, Shown, Users};
use crate::volumes::Volumes;
use crate::waiting::Waiting;

mod asking;

use asking::Asking;

/// The time that a fetch may take until its length is told, or a small call until its answer, when the server is alive and
/// says nothing: servers wait some 2 s for other clients (OpenAFS's up to minutes), and disks may be slow. Beyond it, the
/// connection is taken to be broken.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(180);

/// The same for what a server answers at once, whatever it has to do: whether it is there, and where a volume is.
pub(crate) const QUICK_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of times that a call which broke in the middle is made again, and the pause before; each next pause is twice as long. The
/// servers are waited for in the next call, as in each.
const BREAKS_MAX: u32 = 8;
const BREAK_PAUSE: Duration = Duration::from_millis(50);

/// The number of times that a call of an operation broke in the middle of its data.
#[derive(Debug, Default)]
pub struct Breaks(u32);

impl Breaks {
    /// Waits until it may be asked for again.
    ///
    /// # Errors
    ///
    /// The error, if that is no reason to ask again, or if it was too often.
    pub async fn wait(&mut self, calls: &Calls, error: Error) -> Result<(), Error> {
        if !matches!(error, Error::Broken { .. }) || self.0 >= BREAKS_MAX || calls.closing.has_begun() {
            return Err(error);
        }
        let pause = BREAK_PAUSE * (1 << self.0);
        self.0 += 1;
        calls.runtime.sleep_until(calls.runtime.now() + pause).await;
        Ok(())
    }
}

/// The server, or the servers, to ask.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// Whichever of these servers answers.
    Servers(&'a [Arc<Server>]),
    /// A server that has a volume.
    Volume(CellIndex, VolumeId),
    /// The same, where it is told at once if no server answers: what is here is only to be confirmed, or is asked again by the caller.
    Known(CellIndex, VolumeId),
}

impl Asked<'_> {
    fn volume(self) -> Option<(CellIndex, VolumeId)> {
        match self {
            Self::Servers(_) => None,
            Self::Volume(cell, volume) | Self::Known(cell, volume) => Some((cell, volume)),
        }
    }
}

/// The purpose of a procedure of the file service. Those that are named here change nothing.
fn purpose_of<R: Rpc>() -> Purpose {
    let reads = [FetchStatus::OPCODE, FetchACL::OPCODE, GetSnapshots::OPCODE, GetVolumeStatus::OPCODE];
    if reads.contains(&R::OPCODE) { Purpose::Read } else { Purpose::Change }
}

/// One attempt of an operation: which address is asked, and whether its silence is waited for.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The address of the server.
    pub socket: SocketAddr,
    /// What is shown to the server.
    pub shown: Option<Shown>,
    /// The limits of its calls in place of their connection's, if another server is asked soon.
    limits: Option<CallLimits>,
}

impl Attempt {
    /// Begins a call.
    ///
    /// # Errors
    ///
    /// The transport's.
    pub async fn begin(&self, peer: &Peer) -> Result<ClientCall, CallError> {
        let mut call = peer.call().await?;
        call.set_timeout(ANSWER_TIMEOUT);
        if let Some(limits) = self.limits {
            call.set_limits(limits);
        }
        Ok(call)
    }

    /// True if its calls end soon when the server is silent.
    pub fn is_hasty(&self) -> bool {
        self.limits.is_some()
    }
}

/// True if a call has ended because its server was silent.
pub fn is_silence(error: &RpcError) -> bool {
    let RpcError::Call { source: CallError::Failed { code, .. }, .. } = error else { return false };
    *code == AbortCode::CALL_DEAD
}

/// The reason why nobody's answer was good.
#[derive(Debug)]
pub struct Failure {
    /// The last failed call, if any was made.
    last: Option<RpcError>,
    /// The verdict about that call.
    verdict: Option<Verdict>,
    /// Looking for the servers failed.
    lookup: Option<Error>,
    servers: Vec<SocketAddr>,
    /// An attempt may have been carried out though it failed.
    pub is_ambiguous: bool,
    /// The server said during the last attempt that its promises are off. If it was started anew, it may have got the call from the one before
    /// it, which had carried it out: what is sent again after a packet was lost is the same call to whoever gets it first.
    pub is_of_another_start: bool,
}

impl Failure {
    /// The peer's code with which the last call ended.
    pub fn code(&self) -> Option<Abort> {
        match &self.last {
            Some(RpcError::Call { source, .. }) => afs_failover::peers_code(source),
            Some(RpcError::Reply { .. }) | None => None,
        }
    }

    /// True if the token of whoever asked is what failed, and nobody's call might be answered.
    pub(crate) fn is_of_token(&self) -> bool {
        matches!(self.lookup, Some(Error::TokenRefused { .. }))
    }

    /// Makes the failure of a call that was aborted with a code.
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
            is_of_another_start: false,
        }
    }

    pub(crate) fn of_lookup(error: Error, is_ambiguous: bool) -> Self {
        let (servers, is_of_another_start) = (Vec::new(), false);
        Self { last: None, verdict: None, lookup: Some(error), servers, is_ambiguous, is_of_another_start }
    }

    /// Makes the error for the user of a procedure that was about a fid.
    pub fn of(self, rpc: &'static str, fid: Fid) -> Error {
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

/// The outcome of a call on a fid.
#[derive(Debug)]
pub struct Answer<T> {
    /// The server's reply.
    pub reply: T,
    /// The server that has answered.
    pub responder: Responder,
    /// The time when the call was made, by [`Runtime::boot_time`].
    pub asked: Instant,
}

/// The parts that it takes to get an answer from a server: who the servers are, where volumes are, as whom users call, and what
/// is known of servers, volumes and connections.
#[derive(Debug)]
pub struct Calls {
    /// The runtime that is waited through.
    pub runtime: Arc<dyn Runtime>,
    /// The time for which servers that are away or busy are waited for.
    pub(crate) patience: Duration,
    /// The time for which a call goes on with a server that is silent, if there is no other one.
    pub(crate) dead_after: Duration,
    /// The users and their tokens.
    pub users: Arc<Users>,
    /// The servers, with their addresses.
    pub servers: Arc<Servers>,
    /// The cells.
    pub cells: Arc<Cells>,
    /// The cells that the DNS tells of.
    pub dns: Arc<DnsCells>,
    /// The places of volumes.
    pub locations: Arc<Locations>,
    /// The connections to servers.
    pub connections: Arc<Connections>,
    /// The servers that answer.
    pub liveness: Arc<Liveness>,
    /// The volumes that nobody writes, and the release of them that each server has.
    pub(crate) volumes: Arc<Volumes>,
    /// Told of volumes that have moved or are gone.
    pub(crate) told: Arc<dyn Told>,
    /// The operations that wait.
    pub waiting: Waiting,
    /// What database servers say that file servers have.
    pub(crate) offers: Offers,
    /// What file servers get, to call back with, is made with these.
    pub(crate) callback_keys: CallbackKeys,
    /// The flag that the client ends.
    pub closing: Closing,
}

impl Calls {
    /// Asks one of several servers, by the rules of `afs_failover`.
    pub async fn ask<T, F, W>(
        &self,
        asked: Asked<'_>,
        who: IdentityIndex,
        purpose: Purpose,
        mut attempt: F,
    ) -> Result<(T, Responder), Failure>
    where
        F: FnMut(Attempt) -> W,
        W: Future<Output = Result<T, RpcError>>,
    {
        let (mut asking, mut next) = Asking::begin(self, asked, who, purpose).await?;
        loop {
            match attempt(next.attempt()).await {
                Ok(reply) => return Ok((reply, asking.note_answer(next))),
                Err(error) => asking.note_failure(&next, error),
            }
            next = asking.next().await?;
        }
    }

    /// Calls a procedure of the file service that is about a fid.
    ///
    /// # Errors
    ///
    /// What is left when everything was tried.
    pub async fn call<R: Rpc>(
        &self,
        who: IdentityIndex,
        fid: Fid,
        args: R,
    ) -> Result<Answer<R::Reply>, Error> {
        self.try_call(who, fid, args).await.map_err(|failure| failure.of(R::NAME, fid))
    }

    /// The same, telling more of a failure.
    pub async fn try_call<R: Rpc>(
        &self,
        who: IdentityIndex,
        fid: Fid,
        args: R,
    ) -> Result<Answer<R::Reply>, Failure> {
        self.call_about(Asked::Volume(fid.cell, fid.volume), who, args).await
    }

    /// The same of what is asked otherwise.
    pub async fn call_about<R: Rpc>(
        &self,
        asked: Asked<'_>,
        who: IdentityIndex,
        args: R,
    ) -> Result<Answer<R::Reply>, Failure> {
        let asking = self.ask(asked, who, purpose_of::<R>(), |attempt| {
            let peer = self.file_peer(&attempt, who);
            let args = &args;
            async move {
                let call = attempt.begin(&peer).await;
                let call = call.map_err(|source| RpcError::Call { rpc: R::NAME, source })?;
                let asked = self.runtime.boot_time();
                call.rpc(args).await.map(|reply| (reply, asked))
            }
        });
        let ((reply, asked), responder) = asking.await?;
        Ok(Answer { reply, responder, asked })
    }

    /// Notes what a failed call says of a server, and starts to cure it; the call was made by somebody who has shown this.
    pub fn note_failure(
        &self,
        server: &Arc<Server>,
        address: &Arc<Address>,
        (who, shown): (IdentityIndex, Option<&Shown>),
        error: &RpcError,
    ) -> Verdict {
        let mut verdict = verdict(error);
        match verdict {
            Verdict::Down => self.liveness.note_silence(server, address),
            Verdict::Login => {
                if !self.users.refused(who, shown) {
                    verdict = Verdict::Fail;
                }
                self.connections.renew(who);
            }
            Verdict::Anew => self.connections.renew_to(address.socket, who),
            Verdict::Fail | Verdict::Wait | Verdict::Offline | Verdict::LookAgain | Verdict::OtherSite => {
                if error.code().0 == RXKADLEVELFAIL.0 {
                    self.users.level_refused(address.socket);
                }
                self.liveness.note_answer(address);
            }
        }
        verdict
    }

    /// The connections of a user to the file server of an attempt.
    pub fn file_peer(&self, attempt: &Attempt, who: IdentityIndex) -> Peer {
        self.connections.showing::<Rxafs>(attempt.socket, who, attempt.shown.as_ref())
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

#[cfg(test)]
mod tests;
