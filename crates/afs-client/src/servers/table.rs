//! The servers that the client has heard of, with their addresses: which of them answer, and in which order they are preferred.
//!
//! Probing those that do not answer is left to `liveness`. Which of them an operation asks is decided in `afs_failover`, what is said to
//! them in `remote` and `location`.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use afs_failover::Candidate;
use afs_wire::Uuid;
use rx_proto::time::Instant;
use tokio::sync::Notify;

use crate::fid::CellIndex;

/// What a server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerKind {
    /// Files.
    File,
    /// The volume location database.
    Location,
}

/// How OpenAFS ranks by place; less is better (Client notes 4). `fs setserverprefs` speaks in these.
mod rank {
    /// This machine.
    pub(super) const SAME_HOST: u32 = 5000;
    /// The same network of 256 addresses.
    pub(super) const SAME_SUBNET: u32 = 20_000;
    /// The same network of 2^24 addresses.
    pub(super) const SAME_NET: u32 = 30_000;
    /// Anywhere else.
    pub(super) const FAR: u32 = 40_000;
    /// What a millisecond of round trip adds: with 100 ms, a server is as far as from another network.
    pub(super) const PER_MILLISECOND: u32 = 100;
    /// What a round trip adds at most.
    pub(super) const BY_ROUND_TRIP_MAX: u32 = 20_000;
}

/// Servers of which more is not remembered: in all cells together far more than there are.
const SERVERS_MAX: usize = 100_000;

/// The first pause between two probes of a server that is down; each next is twice as long.
pub(crate) const PROBE_FIRST: Duration = Duration::from_millis(500);

/// The longest pause between two probes. A server that is back is used at most this late.
pub(crate) const PROBE_MAX: Duration = Duration::from_secs(15);

/// How often file servers are probed that answer. One that has lost its memory meanwhile says so then, and what it had promised no
/// longer counts; and firewalls on the way go on to let its calls through.
pub(crate) const TOUCH_EVERY: Duration = Duration::from_secs(180);

/// How often at most a call from an unknown address makes the client ask the VLDB for a server's addresses: calls can be forged, and
/// a server rarely gets a new address.
const ASK_ANEW_EVERY: Duration = Duration::from_secs(10);

/// A server.
pub(crate) struct Server {
    /// Its number: the place in the table.
    pub(crate) id: u32,
    pub(crate) kind: ServerKind,
    pub(crate) cell: CellIndex,
    /// Its addresses, the best first.
    addresses: RwLock<Vec<Arc<Address>>>,
    /// How often it has said that all of its promises are off.
    resets: AtomicU64,
    /// The counter of its addresses in the VLDB, when they were asked for.
    pub(crate) unique: AtomicU32,
    /// When its addresses were last asked for because it seemed to call from a new one.
    asked_anew: Mutex<Option<Instant>>,
}

/// An address of a server.
pub(crate) struct Address {
    pub(crate) socket: SocketAddr,
    /// By place, or as the administrator has set it.
    rank: AtomicU32,
    health: Mutex<Health>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Health {
    has_answered: bool,
    down_since: Option<Instant>,
    /// Somebody probes it.
    is_probed: bool,
    rtt: Option<Duration>,
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
    fn new(socket: SocketAddr) -> Self {
        Self { socket, rank: AtomicU32::new(rank_by_place(socket)), health: Mutex::default() }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its rank; less is better.
    pub(crate) fn rank(&self) -> u32 {
        self.rank.load(Ordering::Relaxed)
    }

    /// What it is sorted by: the rank, and how far it was seen to be.
    fn order(&self) -> (bool, u32) {
        let health = self.health();
        let far = health.rtt.map_or(0, |rtt| {
            let milliseconds = u32::try_from(rtt.as_millis()).unwrap_or(u32::MAX);
            milliseconds.saturating_mul(rank::PER_MILLISECOND).min(rank::BY_ROUND_TRIP_MAX)
        });
        (health.down_since.is_some(), self.rank().saturating_add(far))
    }

    /// Since when it does not answer.
    pub(crate) fn down_since(&self) -> Option<Instant> {
        self.health().down_since
    }

    /// It has answered.
    pub(crate) fn note_answer(&self, rtt: Option<Duration>) -> bool {
        let mut health = self.health();
        health.has_answered = true;
        health.rtt = rtt.or(health.rtt);
        health.down_since.take().is_some()
    }

    /// It has not answered. Whether the caller is to probe it from now on, as nobody else does.
    pub(crate) fn note_silence(&self, now: Instant) -> bool {
        let mut health = self.health();
        health.down_since.get_or_insert(now);
        !std::mem::replace(&mut health.is_probed, true)
    }

    /// Nobody probes it any more.
    pub(crate) fn end_probing(&self) {
        self.health().is_probed = false;
    }
}

impl Server {
    /// Its addresses, those that answer and are near first.
    pub(crate) fn addresses(&self) -> Vec<Arc<Address>> {
        let mut all = self.addresses.read().unwrap_or_else(PoisonError::into_inner).clone();
        all.sort_by_key(|address| address.order());
        all
    }

    /// The address to ask now; `None` for a server without any.
    pub(crate) fn best(&self) -> Option<Arc<Address>> {
        self.addresses().into_iter().next()
    }

    /// Its addresses as they are now; those that stay keep what is known of them.
    pub(crate) fn set_addresses(&self, sockets: &[SocketAddr]) {
        let mut all = self.addresses.write().unwrap_or_else(PoisonError::into_inner);
        *all = sockets
            .iter()
            .map(|&socket| {
                let known = all.iter().find(|address| address.socket == socket);
                known.map_or_else(|| Arc::new(Address::new(socket)), Arc::clone)
            })
            .collect();
    }

    pub(crate) fn has(&self, socket: SocketAddr) -> bool {
        self.addresses.read().unwrap_or_else(PoisonError::into_inner).iter().any(|a| a.socket == socket)
    }

    /// Whether its addresses may be asked for now, as it seems to call from a new one: anybody can make it seem so.
    pub(crate) fn may_ask_anew(&self, now: Instant) -> bool {
        let mut asked = self.asked_anew.lock().unwrap_or_else(PoisonError::into_inner);
        let may = asked.is_none_or(|at| now.since(at) >= ASK_ANEW_EVERY);
        if may {
            *asked = Some(now);
        }
        may
    }

    /// How often it has said that its promises are off.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Acquire)
    }

    /// All of its promises are off.
    pub(crate) fn reset(&self) {
        self.resets.fetch_add(1, Ordering::AcqRel);
    }

    /// As `afs_failover` wants it: it is down when all of its addresses are.
    pub(crate) fn candidate(&self) -> Candidate {
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

    /// What servers are sorted by: of the best address.
    fn order(&self) -> (bool, u32) {
        self.best().map_or((true, u32::MAX), |address| address.order())
    }
}

/// All servers.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    table: RwLock<Table>,
    /// Told when a server that was down answers again.
    pub(crate) back: Notify,
}

#[derive(Debug, Default)]
struct Table {
    all: Vec<Arc<Server>>,
    by_uuid: HashMap<(CellIndex, ServerKind, Uuid), u32>,
    by_address: HashMap<(CellIndex, SocketAddr), u32>,
}

impl Servers {
    /// The server of this UUID or, where there is none, of the first of these addresses; made if it is new.
    pub(crate) fn get_or_add(
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
            addresses: RwLock::new(sockets.iter().map(|&socket| Arc::new(Address::new(socket))).collect()),
            resets: AtomicU64::new(0),
            unique: AtomicU32::new(0),
            asked_anew: Mutex::default(),
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
    pub(crate) fn by_uuid(&self, kind: ServerKind, cell: CellIndex, uuid: Uuid) -> Option<Arc<Server>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.by_uuid.get(&(cell, kind, uuid)).and_then(|&id| table.all.get(id as usize).map(Arc::clone))
    }

    /// All, in the order in which they were heard of.
    pub(crate) fn all(&self) -> Vec<Arc<Server>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).all.clone()
    }

    /// The file servers that have this address and port, one for each cell that knows it; none for a stranger. What a caller says of
    /// itself does not count here, as anybody can say it.
    pub(crate) fn calling(&self, from: SocketAddr) -> Vec<Arc<Server>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let files = table.all.iter().filter(|server| server.kind == ServerKind::File);
        files.filter(|server| server.has(from)).map(Arc::clone).collect()
    }

    /// Sorts servers by preference.
    pub(crate) fn sort(servers: &mut [Arc<Server>]) {
        servers.sort_by_cached_key(|server| server.order());
    }

    /// Sets the rank of an address, of all servers that have it. Whether there is one.
    pub(crate) fn set_rank(&self, host: IpAddr, kind: ServerKind, rank: u32) -> bool {
        let mut found = false;
        for server in self.all().iter().filter(|server| server.kind == kind) {
            for address in server.addresses().iter().filter(|address| address.socket.ip() == host) {
                address.rank.store(rank, Ordering::Relaxed);
                found = true;
            }
        }
        found
    }
}

/// The rank of an address, from which of our own we would call it: nothing is sent for that.
fn rank_by_place(socket: SocketAddr) -> u32 {
    let own = UdpSocket::bind("0.0.0.0:0").and_then(|probe| {
        probe.connect(socket)?;
        probe.local_addr()
    });
    match (own.map(|own| own.ip()), socket.ip()) {
        (Ok(own), there) if own == there || there.is_loopback() => rank::SAME_HOST,
        (Ok(IpAddr::V4(own)), IpAddr::V4(there)) => match (own.to_bits() ^ there.to_bits()).leading_zeros() {
            24.. => rank::SAME_SUBNET,
            8.. => rank::SAME_NET,
            _ => rank::FAR,
        },
        _ => rank::FAR,
    }
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
        assert!(first.note_answer(None), "it was down");
        assert_eq!((server.candidate().down_since, server.candidate().has_answered), (None, true));
    }

    #[test]
    fn near_servers_come_before_far_ones_and_those_that_are_down_last() {
        let servers = Servers::default();
        let (slow, fast, down) = (server(&servers, 1), server(&servers, 2), server(&servers, 3));
        slow.best().unwrap().note_answer(Some(Duration::from_millis(80)));
        fast.best().unwrap().note_answer(Some(Duration::from_millis(2)));
        down.best().unwrap().note_answer(Some(Duration::from_millis(1)));
        down.best().unwrap().note_silence(at(1));
        let mut order = vec![slow.clone(), fast.clone(), down.clone()];
        Servers::sort(&mut order);
        assert_eq!(order.iter().map(|s| s.id).collect::<Vec<_>>(), [fast.id, slow.id, down.id]);
        assert!(servers.set_rank(socket(1).ip(), ServerKind::File, 1));
        Servers::sort(&mut order);
        assert_eq!(order[0].id, slow.id, "what the administrator sets counts more");
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
