//! One operation that asks servers: which one is asked next, at which address, what it is shown, and what its answer or its failure means for
//! the next one. The rules are `afs-failover`'s; the calls themselves are made by [`Calls::ask`].
//!
//! It knows no procedure, and its futures are boxed: each procedure would else have all of this compiled for it, in each crate that calls it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use afs_failover::{Candidate, Rotation, Step, Verdict};
use afs_wire::ids::VolumeId;
use rx::RpcError;
use rx_proto::config::CallLimits;

use super::{Asked, Attempt, Calls, Failure, is_silence};
use crate::error::Error;
use crate::fid::CellIndex;
use crate::table::{Address, Responder, Server, Servers};
use crate::users::{IdentityIndex, NotShown, Purpose, Shown};
use crate::wait;
use crate::waiting::{Waits, Why};

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

/// What is asked next.
pub(super) struct Next {
    address: Arc<Address>,
    /// Taken before the call: a reset that comes during it ends what the reply promises.
    responder: Responder,
    shown: Option<Shown>,
    limits: Option<CallLimits>,
}

impl Next {
    pub(super) fn attempt(&self) -> Attempt {
        Attempt { socket: self.address.socket, shown: self.shown.clone(), limits: self.limits }
    }
}

/// An operation that asks one server after the other.
pub(super) struct Asking<'a> {
    calls: &'a Calls,
    asked: Asked<'a>,
    who: IdentityIndex,
    purpose: Purpose,
    servers: Vec<Arc<Server>>,
    rotation: Rotation,
    /// The last failed call.
    last: Option<(RpcError, Verdict)>,
    /// The number of times that it went on elsewhere as a server was silent.
    silences: u32,
    /// It has looked again where the volume is.
    has_looked: bool,
    /// The server said during the last attempt that its promises are off.
    is_reset: bool,
    /// It counts as waiting also while it asks again.
    waits: Option<Waits<'a>>,
}

type Found<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

impl<'a> Asking<'a> {
    /// Finds the servers, and who is asked first.
    pub(super) fn begin(
        calls: &'a Calls,
        asked: Asked<'a>,
        who: IdentityIndex,
        purpose: Purpose,
    ) -> Found<'a, (Self, Next)> {
        Box::pin(async move {
            let servers = calls.servers_for(asked).await.map_err(|error| Failure::of_lookup(error, false))?;
            let (now, patience) = (calls.runtime.now(), calls.patience);
            let rotation = match asked.volume() {
                None => Rotation::new(now, patience),
                Some(volume) => {
                    let away = if calls.is_read_only(volume) { READ_ONLY_AWAY } else { patience };
                    Rotation::of_volume(now, patience, away)
                }
            };
            let (last, silences, has_looked, is_reset, waits) = (None, 0, false, false, None);
            let mut asking = Self {
                calls,
                asked,
                who,
                purpose,
                servers,
                rotation,
                last,
                silences,
                has_looked,
                is_reset,
                waits,
            };
            let next = asking.find_next().await?;
            Ok((asking, next))
        })
    }

    /// Says who is asked after a failure, once that is due.
    pub(super) fn next(&mut self) -> Found<'_, Next> {
        Box::pin(self.find_next())
    }

    async fn find_next(&mut self) -> Result<Next, Failure> {
        let (calls, asked) = (self.calls, self.asked);
        loop {
            if calls.closing.has_begun() {
                return Err(self.lookup_failed(Error::Closing));
            }
            // From here on no return of a server is missed.
            let mut back = pin!(calls.servers.back.notified());
            back.as_mut().enable();
            // The order changes with what this operation and others have met meanwhile.
            Servers::sort(&mut self.servers);
            let usable = calls.usable(asked, &self.servers);
            // One whose disk fails here and there is better than none.
            let avoids = matches!(self.last, None | Some((_, Verdict::Wait)));
            let candidates = calls.candidates(asked, &usable, avoids);
            match self.rotation.step(calls.runtime.now(), &candidates) {
                Step::Try(id) => {
                    let server = usable.iter().find(|server| server.id == id).expect("a candidate");
                    calls.liveness.find_address(server).await;
                    let Some(address) = server.best() else {
                        self.rotation.note(calls.runtime.now(), id, Verdict::OtherSite);
                        continue;
                    };
                    let responder = Responder { server: Arc::clone(server), resets: server.resets() };
                    let limits = match self.silences < SILENCES_MAX {
                        true => calls.hasty_limits(asked, &usable, id, &address),
                        false => None,
                    };
                    let shown = self.shown_to(server, &address).await?;
                    return Ok(Next { address, responder, shown, limits });
                }
                Step::LookAgain(at) => {
                    let Some((cell, volume)) = asked.volume() else { return Err(self.failed()) };
                    if at > calls.runtime.now() {
                        calls.runtime.sleep_until(at).await;
                    }
                    calls.locations.forget(cell, volume);
                    let servers = calls.servers_for(asked).await;
                    self.servers = servers.map_err(|error| self.lookup_failed(error))?;
                    self.rotation.note_looked(calls.locations.is_worked_on(cell, volume));
                    self.has_looked = true;
                    // If a server was asked before, its failure says more than that none is left.
                    if self.servers.is_empty() && self.last.is_none() {
                        let error = Error::NoSite { cell: calls.cells.name_of(cell), volume };
                        return Err(Failure::of_lookup(error, false));
                    }
                }
                Step::Wait(at) => {
                    let is_away = candidates.iter().all(|candidate| candidate.down_since.is_some());
                    if is_away && matches!(asked, Asked::Known(..)) {
                        return Err(self.failed());
                    }
                    // The next begins before the last one ends, so that nobody sees none in between.
                    drop(self.waits.replace(calls.waiting.begin(if is_away {
                        Why::Away
                    } else {
                        Why::Busy
                    })));
                    wait::until(&calls.runtime, at, back).await;
                }
                Step::GiveUp => return Err(self.failed()),
            }
        }
    }

    /// What is shown to a server. It is asked for at each attempt: after a refusal or a renewal it is another one, or none.
    async fn shown_to(&self, server: &Server, address: &Address) -> Result<Option<Shown>, Failure> {
        let own = self.calls.users.shown(self.who, self.purpose).map_err(|why| {
            let cell = self.calls.cells.name_of(server.cell);
            self.lookup_failed(match why {
                NotShown::Ended => Error::NoToken { cell },
                NotShown::Refused { name, is_device } => Error::TokenRefused { cell, name, is_device },
            })
        })?;
        let Some(own) = own else { return Ok(None) };
        let shown = self.calls.shown_to(server, address.socket, self.who, own).await;
        match shown.is_nothing() {
            true => Err(self.lookup_failed(Error::NoRxgk { server: address.socket })),
            false => Ok(Some(shown)),
        }
    }

    /// Notes a good answer, and says whose it is.
    pub(super) fn note_answer(&self, next: Next) -> Responder {
        self.calls.liveness.note_answer(&next.address);
        if let Some((cell, volume)) = self.asked.volume().filter(|_| self.has_looked) {
            self.calls.told.volume_moved(cell, volume);
        }
        next.responder
    }

    /// Notes what a failed call says of its server.
    pub(super) fn note_failure(&mut self, next: &Next, error: RpcError) {
        let Next { address, responder: Responder { server, resets }, shown, limits } = next;
        let now = self.calls.runtime.now();
        if limits.is_some() && is_silence(&error) {
            self.silences += 1;
            self.calls.liveness.note_suspicion(server, address);
            // It may only be slow: as a busy one it is asked again if the others do not answer either.
            self.rotation.note(now, server.id, Verdict::Wait);
            self.last = Some((error, Verdict::Down));
            return;
        }
        let verdict = self.calls.note_failure(server, address, (self.who, shown.as_ref()), &error);
        tracing::debug!(server = %address.socket, %error, ?verdict, "a call failed");
        self.is_reset = server.resets() != *resets;
        // Another address of the same server is tried first.
        if verdict != Verdict::Down || server.candidate().down_since.is_some() {
            self.rotation.note(now, server.id, verdict);
        }
        self.last = Some((error, verdict));
    }

    fn lookup_failed(&self, error: Error) -> Failure {
        Failure::of_lookup(error, self.rotation.is_ambiguous())
    }

    /// What is left when nobody's answer was good.
    fn failed(&mut self) -> Failure {
        let (last, verdict) = self.last.take().unzip();
        let addresses = self.servers.iter().flat_map(|server| server.addresses());
        Failure {
            last,
            verdict,
            lookup: None,
            servers: addresses.map(|address| address.socket).collect(),
            is_ambiguous: self.rotation.is_ambiguous(),
            is_of_another_start: self.is_reset,
        }
    }
}

impl Calls {
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
        let (now, volume) = (self.runtime.now(), self.volumes.get_or_add(cell, volume));
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
        let (now, volume) = (self.runtime.now(), self.volumes.get_or_add(cell, volume));
        let is_good = |candidate: &&Candidate| !volume.is_troubled(now, candidate.server);
        let good: Vec<_> = all.iter().filter(is_good).copied().collect();
        if good.iter().any(|candidate| candidate.down_since.is_none()) { good } else { all }
    }
}
