//! The servers that answer. The client notes what calls show of it, and probes a server that does not answer until
//! it does. Now and then it calls file servers that have answered, so that they do not forget this client, and more often sends them a
//! packet that keeps the ways through routers open.
//!
//! What is known of each address is kept in `table`; what a failed call means for its caller is left to `afs-failover`.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use afs_failover::{Verdict, verdict};
use afs_wire::rxafs::{GetCapabilities, Rxafs};
use afs_wire::vl::{ProbeServer, Vl};
use rx::{RpcError, Runtime};
use tokio::sync::mpsc;

use crate::connections::Connections;
use crate::remote::{QUICK_ANSWER_TIMEOUT, call_once};
use crate::table::{Address, PROBE_FIRST, PROBE_MAX, Server, ServerKind, Servers};
use crate::table::{NAT_PING_EVERY, PINGS_PER_PROBE};
use crate::users::IdentityIndex;

/// A probe on its way.
type Probing<'a> = Pin<Box<dyn Future<Output = Result<(), RpcError>> + Send + 'a>>;

/// Asks servers whether they are there.
pub(crate) trait Probe: std::fmt::Debug + Send + Sync {
    /// Asks one. It fails with the error of the call, unless that is an answer too.
    fn probe(&self, kind: ServerKind, address: SocketAddr) -> Probing<'_>;

    /// The connections to it have broken: new ones are made.
    fn renew(&self, address: SocketAddr);

    /// Has routers on the way go on to let its calls through.
    fn ping_nat(&self, address: SocketAddr);

    /// The smallest round trip of late to one, as the transport has measured it.
    fn rtt(&self, address: SocketAddr) -> Option<Duration>;
}

/// The servers that are there, and the tasks that find them out.
#[derive(Debug)]
pub struct Liveness {
    servers: Arc<Servers>,
    probe: Arc<dyn Probe>,
    runtime: Arc<dyn Runtime>,
    has_ended: AtomicBool,
}

impl Liveness {
    /// Makes the prober. It asks nothing until a call fails, or [`Self::keep_in_touch`].
    pub(crate) fn new(servers: Arc<Servers>, probe: Arc<dyn Probe>, runtime: Arc<dyn Runtime>) -> Self {
        Self { servers, probe, runtime, has_ended: AtomicBool::new(false) }
    }

    /// Ends all questions to servers.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// A server has answered.
    pub(crate) fn note_answer(&self, address: &Address) {
        if let Some(rtt) = self.probe.rtt(address.socket) {
            address.note_rtt(rtt);
        }
        if address.note_answer() {
            tracing::info!(server = %address.socket.ip(), "the server answers again");
            self.servers.back.notify_waiters();
        }
    }

    /// A server does not answer: it is probed until it does.
    pub(crate) fn note_silence(self: &Arc<Self>, server: &Arc<Server>, address: &Arc<Address>) {
        let is_first = address.down_since().is_none();
        if is_first {
            tracing::warn!(server = %address.socket.ip(), kind = ?server.kind, "the server does not answer");
        }
        if address.note_silence(self.runtime.now()) {
            let (kind, address) = (server.kind, Arc::clone(address));
            self.runtime.spawn(Box::pin(probe_until_back(Arc::downgrade(self), kind, address)));
        }
    }

    /// A server was silent for so long that another one is asked, or the same one anew. Whether it is there is found out now, with all the
    /// time that a call has.
    pub fn note_suspicion(self: &Arc<Self>, server: &Arc<Server>, address: &Arc<Address>) {
        if !address.note_suspicion() {
            return;
        }
        tracing::info!(server = %address.socket.ip(), "the server is silent");
        let (this, server, address) = (Arc::clone(self), Arc::clone(server), Arc::clone(address));
        self.runtime.spawn(Box::pin(async move {
            this.ask_address(&server, &address).await;
        }));
    }

    /// Measures how far servers are among which there is a choice, if nobody has been asked to yet. Those that were asked once are
    /// asked again now and then, as all that have answered.
    pub(crate) fn measure(self: &Arc<Self>, servers: &[Arc<Server>]) {
        for server in servers.iter().filter(|server| server.is_to_be_measured()) {
            let (this, server) = (Arc::clone(self), Arc::clone(server));
            self.runtime.spawn(Box::pin(async move { this.ask_once(&server, true).await }));
        }
    }

    /// Finds an address of a server that answers, before the server is called for the first time. Of several addresses some may be good in other
    /// networks only: that of a router from outside, and the one behind it from inside. All are asked at once, and the first answer is enough.
    pub(crate) async fn find_address(self: &Arc<Self>, server: &Arc<Server>) {
        let addresses = server.addresses();
        let candidate = server.candidate();
        if addresses.len() < 2 || candidate.has_answered || candidate.down_since.is_some() {
            return;
        }
        let (tell, mut told) = mpsc::channel(addresses.len());
        for address in addresses {
            let (this, server, tell) = (Arc::clone(self), Arc::clone(server), tell.clone());
            self.runtime.spawn(Box::pin(async move {
                this.ask_address(&server, &address).await;
                // Nobody waits any more once one has answered.
                let _ = tell.try_send(address.down_since().is_none());
            }));
        }
        drop(tell);
        while let Some(false) = told.recv().await {}
    }

    /// Asks the addresses of a server once whether it is there, or only the best of them, and notes it.
    pub async fn ask_once(self: &Arc<Self>, server: &Arc<Server>, only_best: bool) {
        let addresses = server.addresses();
        for address in addresses.iter().take(if only_best { 1 } else { addresses.len() }) {
            self.ask_address(server, address).await;
        }
    }

    async fn ask_address(self: &Arc<Self>, server: &Arc<Server>, address: &Arc<Address>) {
        match self.probe.probe(server.kind, address.socket).await {
            Ok(()) => self.note_answer(address),
            Err(_) => self.note_silence(server, address),
        }
    }

    /// Keeps in touch with the file servers that have answered, from now on until the end.
    pub fn keep_in_touch(self: &Arc<Self>) {
        self.runtime.spawn(Box::pin(keep_in_touch(Arc::downgrade(self))));
    }

    /// Waits for a pause; `None` when nobody is to be asked any more.
    async fn after(this: &Weak<Self>, pause: Duration) -> Option<Arc<Self>> {
        let goes_on = |liveness: &Arc<Self>| !liveness.has_ended.load(Ordering::Acquire);
        let runtime = Arc::clone(&this.upgrade().filter(goes_on)?.runtime);
        runtime.sleep_until(runtime.now() + pause).await;
        this.upgrade().filter(goes_on)
    }
}

/// Probes a server until it answers or the client has ended.
async fn probe_until_back(liveness: Weak<Liveness>, kind: ServerKind, address: Arc<Address>) {
    let mut pause = PROBE_FIRST;
    while let Some(liveness) = Liveness::after(&liveness, pause).await {
        pause = (pause * 2).min(PROBE_MAX);
        if address.down_since().is_none() {
            break;
        }
        if liveness.probe.probe(kind, address.socket).await.is_ok() {
            liveness.note_answer(&address);
            break;
        }
        liveness.probe.renew(address.socket);
    }
    address.end_probing();
}

/// See [`Liveness::keep_in_touch`].
async fn keep_in_touch(liveness: Weak<Liveness>) {
    for round in 1_u64.. {
        let Some(liveness) = Liveness::after(&liveness, NAT_PING_EVERY).await else { break };
        let mut servers = liveness.servers.all();
        servers.retain(|server| {
            let candidate = server.candidate();
            server.kind == ServerKind::File && candidate.has_answered && candidate.down_since.is_none()
        });
        if round.is_multiple_of(PINGS_PER_PROBE) {
            // Nobody waits for the one that does not answer.
            for server in servers {
                let this = Arc::clone(&liveness);
                liveness.runtime.spawn(Box::pin(async move { this.ask_once(&server, true).await }));
            }
        } else {
            let best = servers.iter().filter_map(|server| server.best());
            best.for_each(|address| liveness.probe.ping_nat(address.socket));
        }
    }
}

impl Probe for Connections {
    fn probe(&self, kind: ServerKind, address: SocketAddr) -> Probing<'_> {
        Box::pin(async move {
            let failed = match kind {
                ServerKind::File => {
                    let peer = self.to::<Rxafs>(address);
                    call_once(&peer, &GetCapabilities {}, QUICK_ANSWER_TIMEOUT).await.err()
                }
                ServerKind::Location => {
                    let peer = self.to::<Vl>(address);
                    call_once(&peer, &ProbeServer {}, QUICK_ANSWER_TIMEOUT).await.err()
                }
            };
            match failed {
                Some(error) if matches!(verdict(&error), Verdict::Down | Verdict::Anew) => Err(error),
                // Whatever it says, it is there.
                Some(_) | None => Ok(()),
            }
        })
    }

    fn renew(&self, address: SocketAddr) {
        self.renew_to(address, IdentityIndex::NOBODY);
    }

    fn ping_nat(&self, address: SocketAddr) {
        self.endpoint().ping_nat(address);
    }

    fn rtt(&self, address: SocketAddr) -> Option<Duration> {
        self.endpoint().rtt_to(address).map(|(_, smallest)| smallest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fid::CellIndex;
    use std::sync::Mutex;

    /// Answers as told, and remembers who was asked.
    #[derive(Debug, Default)]
    struct Answers {
        is_silent: AtomicBool,
        /// The address that answers nothing, not even an error.
        never: Mutex<Option<SocketAddr>>,
        asked: Mutex<Vec<SocketAddr>>,
    }

    impl Probe for Answers {
        fn probe(&self, _: ServerKind, address: SocketAddr) -> Probing<'_> {
            self.asked.lock().unwrap().push(address);
            if *self.never.lock().unwrap() == Some(address) {
                return Box::pin(std::future::pending());
            }
            let silent = RpcError::Call { rpc: "Test", source: rx::CallError::EndpointClosed };
            let answer = if self.is_silent.load(Ordering::Relaxed) { Err(silent) } else { Ok(()) };
            Box::pin(std::future::ready(answer))
        }

        fn renew(&self, _: SocketAddr) {}

        fn ping_nat(&self, _: SocketAddr) {}

        fn rtt(&self, address: SocketAddr) -> Option<Duration> {
            Some(Duration::from_millis(address.port().into()) - Duration::from_millis(6990))
        }
    }

    fn liveness() -> (Arc<Answers>, Arc<Server>, Arc<Liveness>) {
        let (answers, servers) = (Arc::<Answers>::default(), Arc::<Servers>::default());
        let sockets = [7000, 7001].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let server = servers.get_or_add(ServerKind::File, CellIndex(1), None, &sockets).unwrap();
        let runtime = Arc::new(rx::TokioRuntime::current());
        let probe: Arc<dyn Probe> = answers.clone();
        (answers, server, Arc::new(Liveness::new(servers, probe, runtime)))
    }

    #[tokio::test]
    async fn a_silent_server_is_down_until_a_probe_is_answered_and_those_who_wait_are_woken() {
        let (answers, server, liveness) = liveness();
        answers.is_silent.store(true, Ordering::Relaxed);
        liveness.ask_once(&server, false).await;
        assert_eq!(answers.asked.lock().unwrap().len(), 2, "it has two addresses");
        assert!(server.candidate().down_since.is_some());
        let mut back = std::pin::pin!(liveness.servers.back.notified());
        back.as_mut().enable();
        answers.is_silent.store(false, Ordering::Relaxed);
        back.await;
        assert!(server.candidate().down_since.is_none());
    }

    #[tokio::test]
    async fn a_server_that_is_suspected_is_asked_at_once_and_is_down_only_if_it_does_not_answer() {
        for is_silent in [false, true] {
            let (answers, server, liveness) = liveness();
            answers.is_silent.store(is_silent, Ordering::Relaxed);
            let address = server.best().unwrap();
            liveness.note_suspicion(&server, &address);
            liveness.note_suspicion(&server, &address);
            assert!(server.is_trusted(), "by its other address");
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            assert_eq!(*answers.asked.lock().unwrap(), [address.socket], "once");
            assert_eq!(address.down_since().is_some(), is_silent);
        }
    }

    #[tokio::test]
    async fn servers_to_choose_from_are_measured_once() {
        let (answers, server, liveness) = liveness();
        for _ in 0..3 {
            liveness.measure(&[Arc::clone(&server)]);
            tokio::task::yield_now().await;
        }
        assert_eq!(answers.asked.lock().unwrap().len(), 1);
        assert_eq!(server.best().unwrap().rtt(), Some(Duration::from_millis(10)));
    }

    /// A server behind a router has told the router's address and its own, which leads nowhere from outside, or to another machine. The first
    /// call waited for that one for as long as calls wait.
    #[tokio::test]
    async fn of_a_server_with_two_addresses_the_one_that_answers_is_called_first() {
        let (answers, server, liveness) = liveness();
        let silent = server.best().unwrap().socket;
        *answers.never.lock().unwrap() = Some(silent);
        liveness.find_address(&server).await;
        let best = server.best().unwrap();
        assert_ne!(best.socket, silent);
        assert_eq!(server.addresses().last().unwrap().socket, silent);
        let asked = answers.asked.lock().unwrap().len();
        liveness.find_address(&server).await;
        assert_eq!((asked, answers.asked.lock().unwrap().len()), (2, 2), "once");
    }

    #[tokio::test]
    async fn nobody_is_asked_after_the_end() {
        let (answers, server, liveness) = liveness();
        liveness.end();
        liveness.note_silence(&server, &server.addresses()[0]);
        assert!(Liveness::after(&Arc::downgrade(&liveness), Duration::ZERO).await.is_none());
        assert!(answers.asked.lock().unwrap().is_empty());
    }
}
