//! The servers that the client has heard of, with their addresses: which of them answer, and in which order they are preferred.
//!
//! Probing those that do not answer is left to `liveness`, how far they are to `ranking`. Which of them an operation asks is decided in `afs_failover`, what is said to
//! them in `remote` and `location`.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use afs_failover::Candidate;
use afs_wire::Uuid;
use rx_proto::time::Instant;
use tokio::sync::Notify;

use crate::callbacks::Keyed;
use crate::fid::CellIndex;
use crate::ranking::{Distance, Order};

/// The service that a server offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerKind {
    /// Files.
    File,
    /// The volume location database.
    Location,
}

/// Ranks that are kept for servers that were not heard of yet.
const RANKS_MAX: usize = 10_000;

/// The most servers that are remembered: in all cells together far more than there are.
const SERVERS_MAX: usize = 100_000;

/// The first pause between two probes of a server that is down; each next is twice as long.
pub(crate) const PROBE_FIRST: Duration = Duration::from_millis(500);

/// The longest pause between two probes. A server that is back is used at most this late.
pub const PROBE_MAX: Duration = Duration::from_secs(15);

/// The time between two packets by which NAT routers and firewalls on the way go on to let a file server's calls through: as often as
/// OpenAFS's client sends them (Rx notes 11). Some routers forget a way that nothing has taken for 30 s.
pub(crate) const NAT_PING_EVERY: Duration = Duration::from_secs(20);

/// A file server that answers is probed instead of each so many NAT pings, which is every three minutes. One that has lost its memory
/// meanwhile says so then, and what it had promised no longer counts.
pub(crate) const PINGS_PER_PROBE: u64 = 9;

/// The shortest time between two questions to the VLDB about a server's addresses that calls from unknown addresses cause: calls can be
/// forged, and a server rarely gets a new address.
const ASK_ANEW_EVERY: Duration = Duration::from_secs(10);

/// A server.
pub struct Server {
    /// Its number: the place in the table.
    pub id: u32,
    /// The service that it offers.
    pub kind: ServerKind,
    /// The cell that it is of.
    pub cell: CellIndex,
    /// Its id, if it has one.
    pub(crate) uuid: Option<Uuid>,
    /// Its addresses, the best first.
    addresses: RwLock<Vec<Arc<Address>>>,
    ranks: Arc<Ranks>,
    /// The number of times that it has said that all of its promises are off.
    resets: AtomicU64,
    /// The counter of its addresses in the VLDB, when they were asked for.
    pub(crate) unique: AtomicU32,
    /// The time when its addresses were last asked for because it seemed to call from a new one.
    asked_anew: Mutex<Option<Instant>>,
    /// How it calls back.
    pub(crate) keyed: Keyed,
}

/// An address of a server.
pub struct Address {
    /// The address and port.
    pub socket: SocketAddr,
    distance: Mutex<Distance>,
    health: Mutex<Health>,
}

/// The ranks of addresses that are met for the first time.
#[derive(Debug, Default)]
struct Ranks {
    /// The client's, so that not all clients prefer the same of equal servers.
    seed: u64,
    /// As the administrator has set them.
    set: Mutex<HashMap<(ServerKind, IpAddr), u32>>,
}

impl Ranks {
    fn address(&self, kind: ServerKind, socket: SocketAddr) -> Arc<Address> {
        let mut distance = Distance::new(socket, self.seed);
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&rank) = set.get(&(kind, socket.ip())) {
            distance.set(rank);
        }
        Arc::new(Address { socket, distance: Mutex::new(distance), health: Mutex::default() })
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Health {
    has_answered: bool,
    down_since: Option<Instant>,
    /// It was silent for so long that another was asked, and has not answered a probe since.
    is_suspected: bool,
    /// Somebody probes it.
    is_probed: bool,
    /// Somebody was asked to measure how far it is.
    is_to_be_measured: bool,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.addresses().iter().map(|a| a.socket).collect();
        f.debug_struct("Server")
            .field("kind", &self.kind)
            .field("addresses", &addresses)
            .finish_non_exhaustive()
    }
}

impl Address {
    fn distance(&self) -> MutexGuard<'_, Distance> {
        self.distance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its rank; less is better.
    pub fn rank(&self) -> u32 {
        self.distance().rank()
    }

    /// The key by which it is sorted: whether it answers, and how far it is.
    fn order(&self) -> (bool, bool, Order) {
        let health = *self.health();
        (health.down_since.is_some(), health.is_suspected, self.distance().order())
    }

    /// The key by which the addresses of one server are sorted: one that was never heard of may be good in other networks only.
    fn order_at_server(&self) -> (bool, bool, bool, Order) {
        let (is_down, is_suspected, order) = self.order();
        (is_down, is_suspected, !self.health().has_answered, order)
    }

    /// The time since which it does not answer.
    pub fn down_since(&self) -> Option<Instant> {
        self.health().down_since
    }

    /// The round trip to it, if one was measured.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.distance().rtt()
    }

    /// The smallest round trip to it of late, as measured just now.
    pub(crate) fn note_rtt(&self, rtt: Duration) {
        self.distance().note_rtt(rtt);
    }

    /// Notes that it has answered. Returns whether it was down.
    pub(crate) fn note_answer(&self) -> bool {
        let mut health = self.health();
        health.has_answered = true;
        health.is_suspected = false;
        health.down_since.take().is_some()
    }

    /// Notes that it was silent for so long that another server is asked: until it answers, others come first. Returns whether the caller
    /// is to ask it, as nobody else does.
    pub(crate) fn note_suspicion(&self) -> bool {
        let mut health = self.health();
        let is_known = health.down_since.is_some() || std::mem::replace(&mut health.is_suspected, true);
        !is_known
    }

    /// True if it answers, as far as is known.
    fn is_trusted(&self) -> bool {
        let health = self.health();
        health.down_since.is_none() && !health.is_suspected
    }

    /// True if the caller is to measure how far it is: nobody was asked to yet, and no call has told it.
    fn is_to_be_measured(&self) -> bool {
        let mut health = self.health();
        let is_known = health.has_answered || health.down_since.is_some() || health.is_to_be_measured;
        health.is_to_be_measured = true;
        !is_known
    }

    /// Notes that it has not answered. Returns whether the caller is to probe it from now on, as nobody else does.
    pub(crate) fn note_silence(&self, now: Instant) -> bool {
        let mut health = self.health();
        health.down_since.get_or_insert(now);
        !std::mem::replace(&mut health.is_probed, true)
    }

    /// Notes that nobody probes it any more.
    pub(crate) fn end_probing(&self) {
        self.health().is_probed = false;
    }
}

impl Server {
    /// Its addresses, those that answer and are near first.
    pub fn addresses(&self) -> Vec<Arc<Address>> {
        let mut all = self.addresses.read().unwrap_or_else(PoisonError::into_inner).clone();
        all.sort_by_key(|address| address.order_at_server());
        all
    }

    /// The address to ask now; `None` for a server without any.
    pub fn best(&self) -> Option<Arc<Address>> {
        self.addresses().into_iter().next()
    }

    /// Its addresses as they are now; those that stay keep what is known of them.
    pub(crate) fn set_addresses(&self, sockets: &[SocketAddr]) {
        let mut all = self.addresses.write().unwrap_or_else(PoisonError::into_inner);
        *all = sockets
            .iter()
            .map(|&socket| {
                let known = all.iter().find(|address| address.socket == socket);
                known.map_or_else(|| self.ranks.address(self.kind, socket), Arc::clone)
            })
            .collect();
    }

    /// Its place among the servers of its cell, as the cell's administrator wishes it.
    pub(crate) fn set_place(&self, place: u16) {
        let all = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().for_each(|address| address.distance().set_place(place));
    }

    /// True if it has this address.
    pub fn has(&self, socket: SocketAddr) -> bool {
        self.addresses.read().unwrap_or_else(PoisonError::into_inner).iter().any(|a| a.socket == socket)
    }

    /// True if its addresses may be asked for now, as it seems to call from a new one: anybody can make it seem so.
    pub fn may_ask_anew(&self, now: Instant) -> bool {
        let mut asked = self.asked_anew.lock().unwrap_or_else(PoisonError::into_inner);
        let may = asked.is_none_or(|at| now.since(at) >= ASK_ANEW_EVERY);
        if may {
            *asked = Some(now);
        }
        may
    }

    /// The number of times that it has said that its promises are off.
    pub fn resets(&self) -> u64 {
        self.resets.load(Ordering::Acquire)
    }

    /// Notes that all of its promises are off.
    pub fn reset(&self) {
        self.resets.fetch_add(1, Ordering::AcqRel);
    }

    /// The server as `afs_failover` wants it: it is down when all of its addresses are.
    pub fn candidate(&self) -> Candidate {
        let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        let healths = addresses.iter().map(|address| *address.health());
        let mut has_answered = false;
        let mut down_since = None;
        let mut is_up = false;
        for health in healths {
            has_answered |= health.has_answered;
            is_up |= health.down_since.is_none();
            down_since = down_since.max(health.down_since);
        }
        Candidate { server: self.id, down_since: if is_up { None } else { down_since }, has_answered }
    }

    /// The time since when none of its addresses answers; `None` if one does, as far as is known.
    pub fn down_since(&self) -> Option<Instant> {
        self.candidate().down_since
    }

    /// True if one of its addresses answers, as far as is known.
    pub(crate) fn is_trusted(&self) -> bool {
        let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        addresses.iter().any(|address| address.is_trusted())
    }

    /// True if the caller is to measure how far it is, as it is one of several to choose from.
    pub(crate) fn is_to_be_measured(&self) -> bool {
        self.best().is_some_and(|address| address.is_to_be_measured())
    }

    /// The key by which servers are sorted: that of the best address.
    fn order(&self) -> (bool, bool, Order) {
        self.best().map_or((true, true, Order::LAST), |address| address.order())
    }
}

/// All servers.
#[derive(Debug, Default)]
pub struct Servers {
    table: RwLock<Table>,
    ranks: Arc<Ranks>,
    /// Told when a server that was down answers again.
    pub back: Notify,
}

#[derive(Debug, Default)]
struct Table {
    all: Vec<Arc<Server>>,
    by_uuid: HashMap<(CellIndex, ServerKind, Uuid), u32>,
    by_address: HashMap<(CellIndex, SocketAddr), u32>,
}

impl Servers {
    /// None yet. The seed is this client's: which of several equal servers it prefers follows from it.
    pub(crate) fn new(seed: u64) -> Self {
        Self { ranks: Arc::new(Ranks { seed, ..Ranks::default() }), ..Self::default() }
    }

    /// The server of this UUID or, where there is none, of the first of these addresses; made if it is new.
    pub fn get_or_add(
        &self,
        kind: ServerKind,
        cell: CellIndex,
        uuid: Option<Uuid>,
        sockets: &[SocketAddr],
    ) -> Option<Arc<Server>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let known = match uuid {
            Some(uuid) => table.by_uuid.get(&(cell, kind, uuid)).copied(),
            None => sockets.first().and_then(|&first| table.by_address.get(&(cell, first)).copied()),
        };
        if let Some(id) = known {
            return table.all.get(id as usize).map(Arc::clone);
        }
        if table.all.len() >= SERVERS_MAX {
            return None;
        }
        let id = u32::try_from(table.all.len()).expect("SERVERS_MAX fits");
        let server = Arc::new(Server {
            id,
            kind,
            cell,
            uuid,
            addresses: RwLock::new(sockets.iter().map(|&socket| self.ranks.address(kind, socket)).collect()),
            ranks: Arc::clone(&self.ranks),
            resets: AtomicU64::new(0),
            unique: AtomicU32::new(0),
            asked_anew: Mutex::default(),
            keyed: Keyed::default(),
        });
        match (uuid, sockets.first()) {
            (Some(uuid), _) => drop(table.by_uuid.insert((cell, kind, uuid), id)),
            (None, Some(&first)) => drop(table.by_address.insert((cell, first), id)),
            (None, None) => return None,
        }
        table.all.push(Arc::clone(&server));
        Some(server)
    }

    /// The server of this UUID.
    pub fn by_uuid(&self, kind: ServerKind, cell: CellIndex, uuid: Uuid) -> Option<Arc<Server>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.by_uuid.get(&(cell, kind, uuid)).and_then(|&id| table.all.get(id as usize).map(Arc::clone))
    }

    /// The server of a number.
    pub fn by_id(&self, id: u32) -> Option<Arc<Server>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).all.get(id as usize).map(Arc::clone)
    }

    /// The number of servers.
    pub(crate) fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).all.len()
    }

    /// All, in the order in which they were heard of.
    pub fn all(&self) -> Vec<Arc<Server>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).all.clone()
    }

    /// The file servers that have this address and port, one for each cell that knows it; none for a stranger. What a caller says of
    /// itself does not count here, as anybody can say it.
    pub fn calling(&self, from: SocketAddr) -> Vec<Arc<Server>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let files = table.all.iter().filter(|server| server.kind == ServerKind::File);
        files.filter(|server| server.has(from)).map(Arc::clone).collect()
    }

    /// Sorts servers by preference.
    pub fn sort(servers: &mut [Arc<Server>]) {
        servers.sort_by_cached_key(|server| server.order());
    }

    /// Sets the rank of an address, of all servers that have it or will be heard of with it. Whether there was room to remember it.
    pub fn set_rank(&self, host: IpAddr, kind: ServerKind, rank: u32) -> bool {
        let mut set = self.ranks.set.lock().unwrap_or_else(PoisonError::into_inner);
        if set.len() >= RANKS_MAX && !set.contains_key(&(kind, host)) {
            return false;
        }
        set.insert((kind, host), rank);
        drop(set);
        for server in self.all().iter().filter(|server| server.kind == kind) {
            for address in server.addresses().iter().filter(|address| address.socket.ip() == host) {
                address.distance().set(rank);
            }
        }
        true
    }

    /// The ranks that the administrator has set for servers of a kind.
    pub fn ranks_set(&self, kind: ServerKind) -> Vec<(IpAddr, u32)> {
        let set = self.ranks.set.lock().unwrap_or_else(PoisonError::into_inner);
        set.iter().filter(|((of, _), _)| *of == kind).map(|((_, host), rank)| (*host, *rank)).collect()
    }
}

/// The server that answered an attempt of a call.
#[derive(Debug, Clone)]
pub struct Responder {
    /// The server.
    pub server: Arc<Server>,
    /// The server's resets before the call began.
    pub resets: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(last: u8) -> SocketAddr {
        SocketAddr::from(([198, 51, 100, last], 7000))
    }

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN + Duration::from_secs(seconds)
    }

    fn server(servers: &Servers, last: u8) -> Arc<Server> {
        servers.get_or_add(ServerKind::File, CellIndex(1), None, &[socket(last)]).unwrap()
    }

    #[test]
    fn the_same_address_is_the_same_server_but_for_another_cell() {
        let servers = Servers::default();
        let one = server(&servers, 1);
        assert_eq!(server(&servers, 1).id, one.id);
        assert_ne!(server(&servers, 2).id, one.id);
        let other = servers.get_or_add(ServerKind::File, CellIndex(2), None, &[socket(1)]).unwrap();
        assert_ne!(other.id, one.id);
        assert_eq!(servers.calling(socket(1)).len(), 2, "a call from there may be for either");
        assert_eq!(servers.calling(socket(3)).len(), 0, "nobody knows it");
        let other_port = SocketAddr::new(socket(1).ip(), 7001);
        assert_eq!(servers.calling(other_port).len(), 0, "another program of that machine");
    }

    #[test]
    fn a_server_is_down_when_none_of_its_addresses_answers() {
        let servers = Servers::default();
        let server = servers
            .get_or_add(ServerKind::File, CellIndex(1), Some(Uuid::default()), &[socket(1), socket(2)])
            .unwrap();
        let first = server.best().unwrap();
        assert!(first.note_silence(at(1)), "the first who notices probes");
        assert!(!first.note_silence(at(2)), "one is enough");
        assert_eq!(server.candidate().down_since, None);
        let second = server.best().unwrap();
        assert_ne!(second.socket, first.socket, "the one that answers is better now");
        second.note_silence(at(3));
        assert_eq!(server.candidate().down_since, Some(at(3)));
        assert!(first.note_answer(), "it was down");
        assert_eq!((server.candidate().down_since, server.candidate().has_answered), (None, true));
    }

    #[test]
    fn near_servers_come_before_far_ones_and_those_that_are_down_last() {
        let servers = Servers::default();
        let (slow, fast, down) = (server(&servers, 1), server(&servers, 2), server(&servers, 3));
        for (server, ms) in [(&slow, 80), (&fast, 2), (&down, 1)] {
            server.best().unwrap().note_rtt(Duration::from_millis(ms));
        }
        down.best().unwrap().note_silence(at(1));
        let mut order = vec![slow.clone(), fast.clone(), down.clone()];
        Servers::sort(&mut order);
        assert_eq!(order.iter().map(|s| s.id).collect::<Vec<_>>(), [fast.id, slow.id, down.id]);
        assert!(servers.set_rank(socket(1).ip(), ServerKind::File, 1));
        Servers::sort(&mut order);
        assert_eq!(order[0].id, slow.id, "what the administrator sets counts more");
    }

    #[test]
    fn a_server_that_is_suspected_comes_behind_those_that_answer_until_it_does() {
        let servers = Servers::default();
        let (near, far) = (server(&servers, 1), server(&servers, 2));
        near.best().unwrap().note_rtt(Duration::from_millis(1));
        far.best().unwrap().note_rtt(Duration::from_millis(80));
        assert!(near.best().unwrap().note_suspicion(), "the first who notices asks it");
        assert!(!near.best().unwrap().note_suspicion(), "one is enough");
        let first = || {
            let mut order = vec![near.clone(), far.clone()];
            Servers::sort(&mut order);
            order[0].id
        };
        assert_eq!((first(), near.is_trusted()), (far.id, false));
        assert_eq!(near.candidate().down_since, None, "it is not known to be down");
        assert!(!near.best().unwrap().note_answer(), "nor was it");
        assert_eq!((first(), near.is_trusted()), (near.id, true));
    }

    #[test]
    fn a_rank_is_kept_for_a_server_that_is_heard_of_later() {
        let servers = Servers::default();
        assert!(servers.set_rank(socket(1).ip(), ServerKind::File, 7));
        assert_eq!(server(&servers, 1).best().unwrap().rank(), 7);
        assert_eq!(servers.ranks_set(ServerKind::File), [(socket(1).ip(), 7)]);
        assert_eq!(servers.ranks_set(ServerKind::Location), []);
        let database = SocketAddr::new(socket(1).ip(), 7003);
        let other = servers.get_or_add(ServerKind::Location, CellIndex(1), None, &[database]).unwrap();
        assert_ne!(other.best().unwrap().rank(), 7, "that is another kind");
    }

    #[test]
    fn addresses_that_stay_keep_what_is_known_of_them() {
        let servers = Servers::default();
        let server = server(&servers, 1);
        server.best().unwrap().note_silence(at(1));
        server.set_addresses(&[socket(9), socket(1)]);
        let known: Vec<_> = server.addresses().iter().map(|a| (a.socket, a.down_since())).collect();
        assert_eq!(known, [(socket(9), None), (socket(1), Some(at(1)))]);
    }
}
