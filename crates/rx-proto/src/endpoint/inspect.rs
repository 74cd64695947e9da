//! Answers to rxdebug and to questions for the version (Rx notes 14, 15), from anyone and about everyone: so they are few,
//! a question about one of many connections costs little, and nothing is told by which packets for somebody's connection could be made:
//! no epoch, no serial, and instead of a connection's id another number. And questions of our own, to those whom we call.

use super::Endpoint;
use crate::abort::AbortCode;
use crate::call::{Call, Stage};
use crate::connection::{Connection, Slot};
use crate::debug::{
    self, CallFlags, CallMode, CallQueues, CallState, Clock, ConnectionFlags, ConnectionSide,
    DebugConnection, DebugKind, DebugPeer, DebugRequest, DebugStats, DebugVersion, RxStatistics,
};
use crate::ids::{CHANNELS, CallNumber, ConnectionId};
use crate::packet::{Header, PacketType};
use crate::path::Path;
use crate::time::Instant;
use rand::Rng;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Bytes a second that answers may have, UDP and IPv4 headers included, over all askers: an answer may be eight times
/// its question, and nothing shows that the question came from the address that it names. Enough for a person's rxdebug
/// of some thousand connections a second, and nothing to a flood.
pub const ANSWER_RATE: u64 = 256 << 10;

/// The same to one address, with [`ANSWER_BURST`] at once: nobody can have much more sent to somebody else than a person reads.
pub const ANSWER_RATE_EACH: u64 = 32 << 10;

/// The bytes that an address may be sent at once: some 300 connections.
pub const ANSWER_BURST: u64 = 64 << 10;

/// Allowances of addresses, which share them by chance: enough that two who ask at a time seldom do.
const ASKERS: usize = 1024;

/// No answer is longer, the search for it left out.
const LONGEST_ANSWER: u64 = 1024;

/// Connections or peers that may be passed over for the price of a byte, on the way to the one that is asked for.
const STEPS_PER_BYTE: usize = 16;

/// Questions of ours whose answers are still taken; beyond it the oldest is given up.
const QUESTIONS_MAX: usize = 256;

/// UDP and IPv4 headers.
const UDP_OVERHEAD: usize = 28;

/// The allowance for answers, and where the last ones were found.
#[derive(Debug)]
pub(super) struct Inspection {
    /// For all askers, and for each of [`ASKERS`] groups of addresses, which are there from the first question on.
    all_askers: Allowance,
    askers: Vec<Allowance>,
    /// The secret with which addresses and names are hashed. Without it, nobody can tell which addresses share an allowance, or guess a
    /// name from its hash.
    secret: [u64; 2],
    /// The place of the last answer to each kind of question: the next question is most often for the next one.
    active: Cursor,
    all: Cursor,
    peers: Cursor,
    /// The peers that this endpoint has asked, and the number of each question.
    asked: VecDeque<(SocketAddr, CallNumber)>,
    answers: VecDeque<(SocketAddr, DebugStats)>,
}

/// Bytes that may be sent, which time fills up again.
#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    tokens: u64,
    filled_at: Option<Instant>,
}

impl Allowance {
    /// Time has passed: so many bytes a second are added, up to `most`.
    fn fill(&mut self, now: Instant, rate: u64, most: u64) {
        let Some(filled_at) = self.filled_at else {
            (self.tokens, self.filled_at) = (most, Some(now));
            return;
        };
        let gained = u128::from(rate) * now.since(filled_at).as_nanos() / 1_000_000_000;
        if gained > 0 {
            self.tokens = (u128::from(self.tokens) + gained).min(most.into()) as u64;
            // What is less than a byte is not lost.
            self.filled_at =
                Some(filled_at + Duration::from_nanos((gained * 1_000_000_000 / u128::from(rate)) as u64));
        }
    }

    /// True if the longest answer may go.
    const fn is_enough(&self) -> bool {
        self.tokens >= LONGEST_ANSWER
    }

    const fn spend(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(bytes);
    }
}

impl Inspection {
    pub(super) fn new(secret: [u64; 2]) -> Self {
        Self {
            all_askers: Allowance::default(),
            askers: Vec::new(),
            secret,
            active: Cursor::default(),
            all: Cursor::default(),
            peers: Cursor::default(),
            asked: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    fn hash(&self, what: impl Hash) -> u64 {
        // SipHash, with the secret as the head of what is hashed.
        let mut hasher = DefaultHasher::new();
        (self.secret, what).hash(&mut hasher);
        hasher.finish()
    }

    /// True if an asker may be answered now. Who is on this machine is limited by the sum alone: nothing from elsewhere can seem to
    /// come from there.
    fn may_answer(&mut self, now: Instant, asker: IpAddr) -> bool {
        let place = self.place_of(asker);
        self.all_askers.fill(now, ANSWER_RATE, ANSWER_RATE);
        self.askers[place].fill(now, ANSWER_RATE_EACH, ANSWER_BURST);
        self.all_askers.is_enough() && (asker.is_loopback() || self.askers[place].is_enough())
    }

    /// An answer cost so much.
    fn spend(&mut self, asker: IpAddr, bytes: u64) {
        let place = self.place_of(asker);
        self.all_askers.spend(bytes);
        self.askers[place].spend(bytes);
    }

    fn place_of(&mut self, asker: IpAddr) -> usize {
        self.askers.resize(ASKERS, Allowance::default());
        let network = match asker.to_canonical() {
            IpAddr::V4(ip) => u128::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits() >> 64, // a host has a network of them
        };
        (self.hash(network) % ASKERS as u64) as usize
    }
}

/// The slot in which the connection of that index was found.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    index: usize,
    slot: usize,
}

impl Cursor {
    /// The slot of the `index`-th of those that `counts`, and how many slots were looked at. Starts from where the last
    /// answer was, if it was before. What came or went meanwhile may be missed or told twice, as with any list that is
    /// asked for one by one.
    fn find(
        &mut self,
        index: usize,
        slots: usize,
        mut counts: impl FnMut(usize) -> bool,
    ) -> (Option<usize>, usize) {
        let from = if self.index <= index { *self } else { Self::default() };
        let mut left = index - from.index;
        for slot in from.slot..slots {
            if !counts(slot) {
                continue;
            }
            if left == 0 {
                *self = Self { index, slot };
                return (Some(slot), slot - from.slot);
            }
            left -= 1;
        }
        (None, slots.saturating_sub(from.slot))
    }
}

impl Endpoint {
    /// Asks a peer for the statistics that rxdebug shows first (Rx notes 14). The answer, if one comes, is given by
    /// [`poll_answer`](Self::poll_answer). False: there is no connection to it, so nothing is asked.
    pub fn ask_statistics(&mut self, peer: SocketAddr) -> bool {
        let Some(&index) = self.by_peer.get(&peer) else { return false };
        // Whoever answers has seen the question.
        let number = CallNumber(self.rng.random());
        if self.inspect.asked.len() >= QUESTIONS_MAX {
            self.inspect.asked.pop_front();
        }
        self.inspect.asked.push_back((peer, number));
        let question = DebugRequest { kind: DebugKind::STATS, index: 0 };
        self.push_packet(index, debug::request_header(PacketType::DEBUG, number), &question.to_bytes());
        self.wake_path(index);
        true
    }

    /// Returns the next answer of a peer, and the peer.
    pub fn poll_answer(&mut self) -> Option<(SocketAddr, DebugStats)> {
        self.inspect.answers.pop_front()
    }

    /// A DEBUG or VERSION packet from somebody who was asked came, or a NAT ping.
    fn handle_answer(&mut self, from: SocketAddr, header: &Header, body: &[u8]) {
        let asked = &mut self.inspect.asked;
        let Some(place) = asked.iter().position(|question| *question == (from, header.call)) else { return };
        asked.remove(place);
        if header.kind == PacketType::DEBUG && !debug::is_not_supported(body) {
            self.inspect.answers.extend(DebugStats::parse(body).map(|stats| (from, stats)));
        }
    }

    /// A DEBUG or VERSION packet came.
    pub(super) fn handle_question(&mut self, now: Instant, from: SocketAddr, header: &Header, body: &[u8]) {
        // Answers and NAT pings have CLIENT_INITIATED clear: nothing is said to them (Rx notes 11).
        let Some(reply) = debug::reply_header(header) else { return self.handle_answer(from, header, body) };
        if !self.inspect.may_answer(now, from.ip()) {
            // It is not even looked for.
            self.stats.withheld += 1;
            return;
        }
        let mut bytes = reply.to_bytes().to_vec();
        let steps = match header.kind {
            PacketType::VERSION => {
                bytes.extend_from_slice(&debug::version_body(&self.config.version));
                0
            }
            _ => {
                let Ok(request) = DebugRequest::parse(body) else { return };
                self.answer(now, request, &mut bytes)
            }
        };
        let cost = bytes.len() + UDP_OVERHEAD + steps / STEPS_PER_BYTE;
        self.inspect.spend(from.ip(), cost as u64);
        let Some(index) = self.path_for_answer(now, from) else { return };
        let path = &mut self.paths[index];
        if path.connections == 0 && !path.is_verified() {
            // The allowance above is the limit here; the path goes as soon as the answer is out.
            path.grant_to_stranger(bytes.len());
        }
        self.push_bytes(index, bytes.into(), true);
        self.wake_path(index);
    }

    /// Appends the answer; returns how many slots were looked at for it.
    fn answer(&mut self, now: Instant, request: DebugRequest, out: &mut Vec<u8>) -> usize {
        let index = usize::try_from(request.index).unwrap_or(usize::MAX);
        match request.kind {
            DebugKind::STATS => self.debug_stats().encode(out),
            DebugKind::RX_STATISTICS => self.rx_statistics().encode(out),
            DebugKind::CONNECTION | DebugKind::ANY_CONNECTION => {
                let only_active = request.kind == DebugKind::CONNECTION;
                let connections = &self.connections;
                let is_counted = |slot| {
                    connections
                        .get(slot)
                        .is_some_and(|c| !only_active || c.slots.iter().any(|s| s.call.is_some()))
                };
                let cursor = if only_active { &mut self.inspect.active } else { &mut self.inspect.all };
                let (found, steps) = match index < connections.len() {
                    true => cursor.find(index, connections.capacity(), is_counted),
                    false => (None, 0),
                };
                let answer = match found {
                    Some(slot) => self.debug_connection(&self.connections[slot]),
                    None => DebugConnection::end(),
                };
                answer.encode(DebugVersion::CURRENT, out);
                return steps;
            }
            DebugKind::PEER => {
                let paths = &self.paths;
                let (found, steps) = match index < paths.len() {
                    true => self.inspect.peers.find(index, paths.capacity(), |slot| paths.contains(slot)),
                    false => (None, 0),
                };
                let answer = match found {
                    Some(slot) => debug_peer(now, &self.paths[slot]),
                    None => DebugPeer::end(),
                };
                answer.encode(out);
                return steps;
            }
            _ => out.extend_from_slice(&DebugRequest::NOT_SUPPORTED.to_bytes()),
        }
        0
    }

    fn debug_stats(&self) -> DebugStats {
        DebugStats {
            calls_executed: word(self.stats.calls),
            version: DebugVersion::CURRENT,
            ..DebugStats::default()
        }
    }

    fn rx_statistics(&self) -> RxStatistics {
        let stats = &self.stats;
        let read = |kind: PacketType| word(stats.packets_read[usize::from(kind.0)]);
        let sent = |kind: PacketType| word(stats.packets_sent[usize::from(kind.0)]);
        let data_sent = stats.packets_sent[usize::from(PacketType::DATA.0)];
        let data_read = stats.packets_read[usize::from(PacketType::DATA.0)];
        RxStatistics {
            bogus_packet_on_read: word(stats.bogus_packets),
            // Types 1 to 13; the table here begins with 0.
            packets_read: std::array::from_fn(|i| word(stats.packets_read[i + 1])),
            data_packets_read: word(data_read.saturating_sub(stats.duplicate_packets)),
            ack_packets_read: read(PacketType::ACK),
            dup_packets_read: word(stats.duplicate_packets),
            spurious_packets_read: word(stats.spurious_packets),
            packets_sent: std::array::from_fn(|i| word(stats.packets_sent[i + 1])),
            ack_packets_sent: sent(PacketType::ACK),
            ping_packets_sent: word(stats.pings_sent),
            abort_packets_sent: sent(PacketType::ABORT),
            busy_packets_sent: sent(PacketType::BUSY),
            data_packets_sent: word(data_sent.saturating_sub(stats.data_resent)),
            data_packets_re_sent: word(stats.data_resent),
            n_server_conns: word(self.connections.len() as u64 - self.client_connections),
            n_client_conns: word(self.client_connections),
            n_peer_structs: word(self.paths.len() as u64),
            n_call_structs: word(self.calls as u64),
            n_busies: word(stats.busies),
            ..RxStatistics::default()
        }
    }

    /// The id that stands for a connection in answers: the same each time, and of no use in packets for the connection.
    fn shown_id(&self, connection: &Connection) -> ConnectionId {
        let key = &connection.key;
        let hash = self.inspect.hash((key.epoch, key.connection, connection.is_client()));
        ConnectionId((hash as u32 & !3) & 0x7fff_ffff) // the end of a list is all ones
    }

    fn debug_connection(&self, connection: &Connection) -> DebugConnection {
        let (host, port) = address(self.paths[connection.path].peer());
        let is_client = connection.is_client();
        let mut flags = ConnectionFlags::default();
        if connection.wants_channel {
            flags = flags.with(ConnectionFlags::MAKE_CALL_WAITING);
        }
        if is_client && !connection.is_open {
            flags = flags.with(ConnectionFlags::DESTROYED);
        }
        if connection.waiting != 0 {
            flags = flags.with(ConnectionFlags::ATTACH_WAIT);
        }
        let per_channel =
            |f: &dyn Fn(&Slot) -> u8| -> [u8; CHANNELS] { std::array::from_fn(|i| f(&connection.slots[i])) };
        DebugConnection {
            host,
            cid: self.shown_id(connection),
            call_number: std::array::from_fn(|i| CallNumber(connection.slots[i].number.0)),
            error: connection.error.unwrap_or(AbortCode(0)),
            port,
            flags,
            side: if is_client { ConnectionSide::CLIENT } else { ConnectionSide::SERVER },
            security_index: connection.security_index(),
            call_state: per_channel(&|s| call_state(s, is_client).0).map(CallState),
            call_mode: per_channel(&|s| match s.call.as_deref() {
                Some(call) => call_mode(call, is_client).0,
                // A call of which only its end is kept is shown as OpenAFS shows one that dallies.
                None => s.ended.map_or(0, |_| CallMode::EOF.0),
            })
            .map(CallMode),
            call_flags: per_channel(&|s| match s.call.as_deref() {
                Some(call) => call_flags(call).0,
                None => s.ended.map_or(0, |_| CallFlags::RECEIVE_DONE.0),
            })
            .map(CallFlags),
            call_other: per_channel(&|s| s.call.as_deref().map_or(0, |c| call_queues(c).0)).map(CallQueues),
            nat_mtu: self.paths[connection.path].packet_len() as i32,
            ..DebugConnection::default()
        }
    }
}

/// Counters wrap at 2³², as OpenAFS's do.
fn word(n: u64) -> i32 {
    n as u32 as i32
}

/// The records have room for IPv4 alone; other addresses are shown as 0.
fn address(peer: SocketAddr) -> (Ipv4Addr, u16) {
    let host = match peer.ip() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED),
    };
    (host, peer.port())
}

fn call_state(slot: &Slot, is_client: bool) -> CallState {
    match &slot.call {
        // Nothing but how far it came is kept, to answer for it: OpenAFS's "dally".
        None if slot.ended.is_some() => CallState::DALLY,
        None => CallState::NOT_INITIALIZED,
        Some(call) if call.stage.has_ended() => CallState::DALLY,
        Some(call) if !is_client && !call.announced => CallState::PRECALL,
        Some(call) if !is_client && call.tx.is_finished() => CallState::HOLD,
        Some(_) => CallState::ACTIVE,
    }
}

fn call_mode(call: &Call, is_client: bool) -> CallMode {
    match call.stage {
        Stage::Failed => CallMode::ERROR,
        Stage::Done => CallMode::EOF,
        Stage::Request if is_client => CallMode::SENDING,
        Stage::Request => CallMode::RECEIVING,
        Stage::Reply if is_client => CallMode::RECEIVING,
        Stage::Reply if call.tx.is_finished() => CallMode::EOF,
        Stage::Reply => CallMode::SENDING,
    }
}

fn call_flags(call: &Call) -> CallFlags {
    let flags = [
        (call.wants_read, CallFlags::READER_WAITS),
        (call.wants_write, CallFlags::WAITS_TO_SEND),
        (call.rx.is_complete(), CallFlags::RECEIVE_DONE),
    ];
    flags.iter().filter(|(is_set, _)| *is_set).fold(CallFlags::default(), |all, (_, flag)| all.with(*flag))
}

fn call_queues(call: &Call) -> CallQueues {
    let input = if call.rx.has_unread() { CallQueues::INPUT } else { CallQueues::default() };
    if call.tx.buffered() > 0 { input.with(CallQueues::OUTPUT) } else { input }
}

fn debug_peer(now: Instant, path: &Path) -> DebugPeer {
    let (host, port) = address(path.peer());
    let rtt = path.rtt();
    let size = u16::try_from(path.packet_len()).unwrap_or(u16::MAX);
    let stats = path.stats();
    let eighths = |d: Duration, parts: u128| i32::try_from(d.as_micros() * parts / 1000).unwrap_or(i32::MAX);
    let known = |d: Duration| if rtt.is_known() { d } else { Duration::ZERO };
    let timeout = rtt.timeout(path.peer_delay());
    DebugPeer {
        host,
        port,
        if_mtu: size,
        idle_when: u32::try_from(now.since(path.last_used).as_secs()).unwrap_or(u32::MAX),
        ref_count: u16::try_from(path.connections).unwrap_or(u16::MAX),
        rtt: eighths(known(rtt.smoothed()), 8),
        rtt_dev: eighths(known(rtt.deviation()), 4),
        timeout: Clock {
            sec: i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX),
            usec: timeout.subsec_micros() as i32,
        },
        n_sent: word(stats.data_sent),
        re_sends: word(stats.data_resent),
        nat_mtu: size,
        max_mtu: u16::try_from(path.peer_limit()).unwrap_or(u16::MAX),
        max_dgram_packets: 1,
        if_dgram_packets: 1,
        mtu: size,
        cwind: u16::try_from(path.window() / u64::from(size.max(1))).unwrap_or(u16::MAX),
        n_dgram_packets: 1,
        bytes_sent: stats.bytes_sent,
        bytes_received: stats.bytes_received,
        ..DebugPeer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// Both are made of one seed, and every peer is told the epoch and the connection: it would have half of the secret.
    #[test]
    fn what_peers_are_told_says_nothing_of_the_secret_behind_the_ids_that_are_shown() {
        // Of the rest each has been changed.
        const TOLD: u32 = 0x3fff_fffc;
        for seed in 0..16 {
            let endpoint = Endpoint::new(Config::default(), [seed; 32]);
            let secret = endpoint.inspect.secret.iter().flat_map(|half| [*half as u32, (half >> 32) as u32]);
            for told in [endpoint.epoch.0, endpoint.next_connection.0] {
                assert!(secret.clone().all(|part| (part ^ told) & TOLD != 0), "seed {seed}: {told:#x}");
            }
        }
    }
}
