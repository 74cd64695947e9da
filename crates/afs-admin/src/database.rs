//! The servers of a cell's database, as their callers see them: any of them answers questions, one takes changes. A
//! call goes from one server to the next by the rule of `afs_failover`. The callers decide what is called.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_failover::{Candidate, Rotation, Step, Verdict, verdict};
use afs_wire::abort;
use rx::{Endpoint, Peer, PeerLimits, RpcError, Runtime};
use rx_proto::ids::ServiceId;
use rx_proto::time::Instant;
use rxgen::{Abort, Interface, Rpc};

use crate::error::{Error, is_undecided};
use crate::login::Login;

/// The time for which a call waits for servers that elect the one that takes changes, that are starting, or that have gone in the middle of an
/// operation, as those that are started again. Elections of stock
/// servers take up to a minute and more, but happen rarely; somebody who waits for a command wants to hear of it sooner.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause before servers that have gone are asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// A machine of a database, as the caller knows it.
pub trait Machine {
    /// The address of a service on it that is usually at this port.
    fn socket(&self, usual_port: u16) -> SocketAddr;
}

/// A machine by its address alone: the service is at its usual port.
impl Machine for Ipv4Addr {
    fn socket(&self, usual_port: u16) -> SocketAddr {
        SocketAddr::from((*self, usual_port))
    }
}

/// A machine with the port of the service.
impl Machine for SocketAddrV4 {
    fn socket(&self, _: u16) -> SocketAddr {
        SocketAddr::V4(*self)
    }
}

/// The servers of a database, called as one identity: by one login, or by one that is made for each connection.
pub struct DatabaseServers {
    runtime: Arc<dyn Runtime>,
    peers: Vec<Peer>,
    state: Mutex<State>,
    /// True if servers that have gone in the middle of an operation are waited for.
    is_patient: bool,
}

/// The state of the servers.
struct State {
    /// The one that answered last, which is asked first.
    current: usize,
    /// The time since which each gives no answer.
    down_since: Vec<Option<Instant>>,
    /// True if any has answered.
    has_answered: bool,
}

impl DatabaseServers {
    /// Makes the servers of interface `I` on these machines. The first is asked first.
    pub fn new<I: Interface>(endpoint: &Endpoint, machines: &[impl Machine], login: &Login) -> Self {
        let login = login.clone();
        Self { is_patient: true, ..Self::with_logins::<I>(endpoint, machines, move || login.clone()) }
    }

    /// The same for who runs for long: each new connection asks for a login, as tickets and keys end. Others wait for what is called here, so
    /// servers that have gone are not waited for.
    pub fn with_logins<I: Interface>(
        endpoint: &Endpoint,
        machines: &[impl Machine],
        login: impl Fn() -> Login + Clone + Send + Sync + 'static,
    ) -> Self {
        let peer = |address: SocketAddr| {
            let login = login.clone();
            let security = move || login().security();
            endpoint.peer(address, ServiceId(I::SERVICE_ID), PeerLimits::default(), security)
        };
        let state = State { current: 0, down_since: vec![None; machines.len()], has_answered: false };
        Self {
            runtime: Arc::clone(endpoint.runtime()),
            peers: machines.iter().map(|machine| peer(machine.socket(I::PORT))).collect(),
            state: Mutex::new(state),
            is_patient: false,
        }
    }

    /// Calls a procedure at the first server that can do it.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] with what a server has answered, [`Error::Repeated`] if another one may have carried out the call before;
    /// [`Error::NoServer`] when none could. [`Error::may_be_done`] says whether the call may have been carried out all the same.
    pub async fn call<R: Rpc>(&self, args: &R) -> Result<R::Reply, Error> {
        let mut rotation = Rotation::new(self.runtime.now(), TIMEOUT);
        let mut failures: Vec<(usize, RpcError)> = Vec::new();
        let (mut has_undecided, mut may_have_begun, mut is_ambiguous) = (false, false, false);
        let mut gone_since = None;
        loop {
            let now = self.runtime.now();
            let server = match rotation.step(now, &self.candidates(&failures)) {
                Step::Try(server) => server,
                Step::Wait(until) => {
                    self.runtime.sleep_until(until).await;
                    continue;
                }
                Step::LookAgain(_) | Step::GiveUp => {
                    // A move of two terabytes does not end because the one database server was started again. A server that was not there
                    // when the command began is not waited for.
                    let are_gone = self.is_patient
                        && self.state().has_answered
                        && !failures.is_empty()
                        && failures.iter().all(|(_, error)| verdict(error) == Verdict::Down);
                    if !are_gone || now.since(*gone_since.get_or_insert(now)) >= TIMEOUT {
                        break;
                    }
                    is_ambiguous |= rotation.is_ambiguous();
                    self.runtime.sleep_until(now + PAUSE).await;
                    self.state().down_since.fill(None);
                    rotation = Rotation::new(self.runtime.now(), TIMEOUT);
                    continue;
                }
            };
            let at = server as usize;
            let error = match self.peers[at].rpc(args).await {
                Ok(reply) => {
                    let mut state = self.state();
                    (state.current, state.has_answered) = (at, true);
                    state.down_since[at] = None;
                    return Ok(reply);
                }
                Err(error) => error,
            };
            let verdict = match verdict(&error) {
                // There is no other token, but another server may know the key of this one.
                Verdict::Login => Verdict::OtherSite,
                // Where volumes are is no matter here.
                Verdict::LookAgain => Verdict::Fail,
                verdict => verdict,
            };
            let now = self.runtime.now();
            let is_silent = verdict == Verdict::Down;
            self.state().down_since[at] = is_silent.then_some(now);
            if verdict == Verdict::Fail {
                let was_attempted =
                    is_ambiguous || rotation.is_ambiguous() || has_undecided || may_have_begun;
                return Err(if was_attempted { Error::Repeated(error) } else { Error::Call(error) });
            }
            tracing::debug!(server = %self.peers[at].address(), %error, ?verdict, "a database server failed");
            rotation.note(now, server, verdict);
            has_undecided |= is_undecided(&error);
            // Ours have not begun then, but a sync site of Ubik that loses its quorum during the change says it too.
            may_have_begun |= Abort(error.code().0) == abort::UNOQUORUM;
            failures.retain(|(of, _)| *of != at);
            failures.push((at, error));
        }
        let failures = failures.into_iter().map(|(_, error)| error).collect();
        let may_be_done = is_ambiguous || rotation.is_ambiguous() || has_undecided;
        Err(Error::NoServer { rpc: R::NAME, failures, may_be_done })
    }

    /// The servers in the order in which they are asked, those that gave no answer the last time behind the others. Nobody
    /// looks meanwhile whether they are back, so the call does so before it gives up, but it does not wait for them.
    fn candidates(&self, failures: &[(usize, RpcError)]) -> Vec<Candidate> {
        let state = self.state();
        let count = self.peers.len();
        let was_asked = |at: usize| failures.iter().any(|(of, _)| *of == at);
        let has_others = (0..count).any(|at| state.down_since[at].is_none() && !was_asked(at));
        let candidate = |at: usize| Candidate {
            server: at as u32,
            down_since: state.down_since[at].filter(|_| has_others || was_asked(at)),
            has_answered: false,
        };
        (state.current..state.current + count).map(|at| candidate(at % count)).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for DatabaseServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.peers.iter().map(Peer::address)).finish()
    }
}
