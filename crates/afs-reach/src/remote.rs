//! Calls to file servers on behalf of a user: one typed call on a fid, with everything that it takes to get an answer. `Calls` is what
//! all operations ask servers through.
//!
//! Which server is asked next is left to `afs-failover`. The callers note the outcome of a call: nothing is known here of vnodes.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use afs_failover::{Candidate, Rotation, Step, Verdict, verdict};
use afs_wire::abort::RXKADLEVELFAIL;
use afs_wire::ids::VolumeId;
use afs_wire::rxafs::{FetchACL, FetchStatus, GetVolumeStatus, Rxafs};
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
use crate::users::{IdentityIndex, NotShown, Purpose, Shown, Users};
use crate::volumes::Volumes;
use crate::wait;
use crate::waiting::{Waiting, Why};

/// The time that a fetch may take until its length is told, or a small call until its answer, when the server is alive and
/// says nothing: servers wait some 2 s for other clients (OpenAFS's up to minutes), and disks may be slow. Beyond it, the
/// connection is taken to be broken.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(180);

/// The same for what a server answers at once, whatever it has to do: whether it is there, and where a volume is.
pub(crate) const QUICK_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time for which the servers of a read-only volume are waited for if none answers: longer than a server's restart. Programs that
/// read data which are not in the cache then get an error; cached data are read without asking.
const READ_ONLY_AWAY: Duration = Duration::from_secs(60);

/// The time without a packet from a server, in addition to a round trip, after which an operation goes on at another one that has the same
/// read-only volume. A reader goes on within two seconds: with 200 ms of round trip this is 0.8 s, and the first data from
/// the other server take five round trips. The transport pings six times in it, so that some datagrams that are lost turn
/// nobody away.
const SILENCE: Duration = Duration::from_millis(600);

/// The longest part of a round trip that counts for [`SILENCE`].
const ROUND_TRIP_MAX: Duration = Duration::from_millis(500);

/// The number of times that one operation goes on at another server because of [`SILENCE`]; after that, each server has all the time that
/// calls have.
const SILENCES_MAX: u32 = 3;

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
    let reads = [FetchStatus::OPCODE, FetchACL::OPCODE, GetVolumeStatus::OPCODE];
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
    fn now(&self) -> Instant {
        self.runtime.now()
    }

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
        let mut servers = self.servers_for(asked).await.map_err(|error| Failure::of_lookup(error, false))?;
        let patience = self.patience;
        let mut rotation = match asked.volume() {
            None => Rotation::new(self.now(), patience),
            Some(volume) => {
                let away = if self.is_read_only(volume) { READ_ONLY_AWAY } else { patience };
                Rotation::of_volume(self.now(), patience, away)
            }
        };
        let mut last: Option<(RpcError, Verdict)> = None;
        let (mut silences, mut has_looked, mut is_reset) = (0, false, false);
        // It counts as waiting also while it asks again.
        let mut waits = None;
        loop {
            if self.closing.has_begun() {
                return Err(Failure::of_lookup(Error::Closing, rotation.is_ambiguous()));
            }
            // From here on no return of a server is missed.
            let mut back = pin!(self.servers.back.notified());
            back.as_mut().enable();
            // The order changes with what this operation and others have met meanwhile.
            Servers::sort(&mut servers);
            let usable = self.usable(asked, &servers);
            // One whose disk fails here and there is better than none.
            let avoids = matches!(last, None | Some((_, Verdict::Wait)));
            let candidates = self.candidates(asked, &usable, avoids);
            match rotation.step(self.now(), &candidates) {
                Step::Try(id) => {
                    let server = usable.iter().find(|server| server.id == id).expect("a candidate");
                    self.liveness.find_address(server).await;
                    let Some(address) = server.best() else {
                        rotation.note(self.now(), id, Verdict::OtherSite);
                        continue;
                    };
                    // Taken before the call: a reset that comes during it ends what the reply promises.
                    let responder = Responder { server: Arc::clone(server), resets: server.resets() };
                    let limits = if silences < SILENCES_MAX {
                        self.hasty_limits(asked, &usable, id, &address)
                    } else {
                        None
                    };
                    // Asked for each attempt: after a refusal or a renewal it is another one, or none.
                    let shown = match self.users.shown(who, purpose) {
                        Ok(shown) => shown,
                        Err(why) => {
                            let cell = self.cells.name_of(server.cell);
                            let error = match why {
                                NotShown::Ended => Error::NoToken { cell },
                                NotShown::Refused { name, is_device } => {
                                    Error::TokenRefused { cell, name, is_device }
                                }
                            };
                            return Err(Failure::of_lookup(error, rotation.is_ambiguous()));
                        }
                    };
                    let shown = match shown {
                        Some(own) => Some(self.shown_to(server, address.socket, who, own).await),
                        None => None,
                    };
                    if shown.as_ref().is_some_and(Shown::is_nothing) {
                        let error = Error::NoRxgk { server: address.socket };
                        return Err(Failure::of_lookup(error, rotation.is_ambiguous()));
                    }
                    let (socket, showing) = (address.socket, shown.clone());
                    match attempt(Attempt { socket, shown: showing, limits }).await {
                        Ok(reply) => {
                            self.liveness.note_answer(&address);
                            if let Some((cell, volume)) = asked.volume().filter(|_| has_looked) {
                                self.told.volume_moved(cell, volume);
                            }
                            return Ok((reply, responder));
                        }
                        Err(error) if limits.is_some() && is_silence(&error) => {
                            silences += 1;
                            self.liveness.note_suspicion(server, &address);
                            // It may only be slow: as a busy one it is asked again if the others do not answer either.
                            rotation.note(self.now(), id, Verdict::Wait);
                            last = Some((error, Verdict::Down));
                        }
                        Err(error) => {
                            let verdict = self.note_failure(server, &address, (who, shown.as_ref()), &error);
                            tracing::debug!(server = %address.socket, %error, ?verdict, "a call failed");
                            is_reset = server.resets() != responder.resets;
                            // Another address of the same server is tried first.
                            if verdict != Verdict::Down || server.candidate().down_since.is_some() {
                                rotation.note(self.now(), id, verdict);
                            }
                            last = Some((error, verdict));
                        }
                    }
                }
                Step::LookAgain(at) => {
                    let Some((cell, volume)) = asked.volume() else {
                        return Err(failure(last, &servers, &rotation, is_reset));
                    };
                    if at > self.now() {
                        self.runtime.sleep_until(at).await;
                    }
                    self.locations.forget(cell, volume);
                    servers = self
                        .servers_for(asked)
                        .await
                        .map_err(|error| Failure::of_lookup(error, rotation.is_ambiguous()))?;
                    rotation.note_looked(self.locations.is_worked_on(cell, volume));
                    has_looked = true;
                    // If a server was asked before, its failure says more than that none is left.
                    if servers.is_empty() && last.is_none() {
                        let error = Error::NoSite { cell: self.cells.name_of(cell), volume };
                        return Err(Failure::of_lookup(error, false));
                    }
                }
                Step::Wait(at) => {
                    let is_away = candidates.iter().all(|candidate| candidate.down_since.is_some());
                    if is_away && matches!(asked, Asked::Known(..)) {
                        return Err(failure(last, &servers, &rotation, is_reset));
                    }
                    // The next begins before the last one ends, so that nobody sees none in between.
                    drop(waits.replace(self.waiting.begin(if is_away { Why::Away } else { Why::Busy })));
                    wait::until(&self.runtime, at, back).await;
                }
                Step::GiveUp => return Err(failure(last, &servers, &rotation, is_reset)),
            }
        }
    }

    fn is_read_only(&self, (cell, volume): (CellIndex, VolumeId)) -> bool {
        self.volumes.get_or_add(cell, volume).is_read_only()
    }

    /// The limits of calls to a server whose silence turns an operation to another one. They exist for volumes that nobody writes, while
    /// another server that has them answers.
    fn hasty_limits(
        &self,
        asked: Asked<'_>,
        servers: &[Arc<Server>],
        id: u32,
        address: &Address,
    ) -> Option<CallLimits> {
        let volume = asked.volume()?;
        let has_other = servers.iter().any(|server| server.id != id && server.is_trusted());
        if !has_other || !self.is_read_only(volume) {
            return None;
        }
        let silence = SILENCE + address.rtt().unwrap_or_default().min(ROUND_TRIP_MAX);
        Some(CallLimits { dead: self.dead_after, silence: Some(silence), ..CallLimits::default() })
    }

    async fn servers_for(&self, asked: Asked<'_>) -> Result<Vec<Arc<Server>>, Error> {
        match asked {
            Asked::Servers(servers) => Ok(servers.to_vec()),
            Asked::Volume(index, volume) | Asked::Known(index, volume) => {
                let cell = self.cells.numbered(index)?;
                let servers = self.locations.sites_of(self, &cell, volume).await.inspect_err(|error| {
                    if matches!(error, Error::NoVolume { .. }) {
                        self.locations.forget(index, volume);
                        self.told.volume_gone(index, volume);
                    }
                })?;
                if servers.len() > 1 {
                    self.liveness.measure(&servers);
                }
                Ok(servers)
            }
        }
    }

    /// Returns the servers of a read-only volume that have its newest release, if one of them answers; else all.
    fn usable(&self, asked: Asked<'_>, servers: &[Arc<Server>]) -> Vec<Arc<Server>> {
        let mut usable = servers.to_vec();
        let Some((cell, volume)) = asked.volume().filter(|_| servers.len() > 1) else { return usable };
        let (now, volume) = (self.now(), self.volumes.get_or_add(cell, volume));
        let is_behind = |server: &Arc<Server>| volume.is_behind(now, server.id);
        let has_newest = |server: &Arc<Server>| server.candidate().down_since.is_none() && !is_behind(server);
        if servers.iter().any(has_newest) {
            usable.retain(|server| !is_behind(server));
        }
        usable
    }

    /// The servers among these that are asked. A server that could not read a read-only volume of late is avoided if another one answers.
    fn candidates(&self, asked: Asked<'_>, usable: &[Arc<Server>], avoids: bool) -> Vec<Candidate> {
        let all: Vec<_> = usable.iter().map(|server| server.candidate()).collect();
        let Some((cell, volume)) = asked.volume().filter(|_| avoids && usable.len() > 1) else { return all };
        let (now, volume) = (self.now(), self.volumes.get_or_add(cell, volume));
        let is_good = |candidate: &&Candidate| !volume.is_troubled(now, candidate.server);
        let good: Vec<_> = all.iter().filter(is_good).copied().collect();
        if good.iter().any(|candidate| candidate.down_since.is_none()) { good } else { all }
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

fn failure(
    last: Option<(RpcError, Verdict)>,
    servers: &[Arc<Server>],
    rotation: &Rotation,
    is_of_another_start: bool,
) -> Failure {
    let (last, verdict) = last.unzip();
    let servers = servers.iter().flat_map(|s| s.addresses()).map(|address| address.socket).collect();
    let is_ambiguous = rotation.is_ambiguous();
    Failure { last, verdict, lookup: None, servers, is_ambiguous, is_of_another_start }
}

#[cfg(test)]
mod tests;
