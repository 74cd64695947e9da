//! One pair of a local port and a peer's address: round-trip time, congestion control, pacing and packet size, shared by all
//! calls over it. Which of them sends next is in `owner_queues`. Knows calls by name only; packets are built in `endpoint::egress`.

mod pings;

use crate::ack::{Announcement, Trailer};
use crate::config::Config;
use crate::congestion::{AckSample, Controller, bytes_in, quantum};
use crate::ids::ChannelRef;
use crate::ids::Serial;
use crate::mtu::MtuSearch;
use crate::owner_queues::OwnerQueues;
use crate::pacer::Pacer;
use crate::packet::{BASE_PACKET_LEN, MAX_PACKET_LEN, MIN_PACKET_LEN};
use crate::receive::PathView;
use crate::reordering::Reordering;
use crate::rtt::Rtt;
use crate::time::Instant;
use crate::train::Train;
use crate::transmit::{AckOutcome, Lost, Stamp};
use bytes::Bytes;
use pings::{Ping, Pings};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// Window before a peer's first trailer (Rx notes 9).
const FIRST_WINDOW: u32 = 16;
/// Largest window honoured from a peer that is not of our own: one more than a plain ACK describes.
const STOCK_MAX_WINDOW: u32 = 255;
/// A flight from an idle path may leave at once up to so many packets, within the window that the path has earned: a
/// 128 KiB reply is 93.
const BURST_FROM_IDLE: u64 = 128;
/// The same on a path that has not carried anything yet.
const FIRST_BURST: u64 = 16;
/// The longest time for which a stock peer may hold back an ACK, as far as we wait for one (Rx notes 10: rx_minPeerTimeout).
const STOCK_ACK_DELAY: Duration = Duration::from_millis(200);
/// The same for a peer of our own: its 5 ms and as much for its scheduler.
const OWN_ACK_DELAY: Duration = Duration::from_millis(10);
/// UDP and IPv4 headers, counted when a sender must be proportionate to what it received.
const UDP_OVERHEAD: u64 = 28;
/// The bytes that may be sent to an address that has not been shown to be reachable, for each byte that came from it.
const AMPLIFICATION: u64 = 3;
/// Packets that may stand in [`Path::control`]. They are sent before anything else, so they pile up only while the socket takes none.
/// If a peer asks for more, the rest is dropped, and the peer has to ask again.
const MAX_CONTROL: usize = 1024;

/// Something small to send, ahead of all data.
#[derive(Debug)]
pub(crate) enum Control {
    /// The ACK that a call's receiving half has due; built when it goes.
    Ack(ChannelRef),
    /// A packet that is ready; `whole` if the kernel must not fragment it.
    Packet { bytes: Bytes, dont_fragment: bool },
}

/// The kind of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PeerKind {
    /// No trailer seen yet.
    #[default]
    Unknown,
    /// OpenAFS, Linux, or anything else that has not announced itself.
    Stock,
    /// Another of our own kind.
    Own,
}

/// The permission to send data, or the reason to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Permit {
    Go,
    /// It may send after something is acknowledged.
    Full,
    /// It may send at this time.
    At(Instant),
    /// It may send when the peer has shown to be reachable.
    Unverified,
}

/// Counters of a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathStats {
    /// UDP payload bytes sent.
    pub bytes_sent: u64,
    /// UDP payload bytes received.
    pub bytes_received: u64,
    /// DATA packets sent, again included.
    pub data_sent: u64,
    /// DATA packets sent again.
    pub data_resent: u64,
    /// Bytes found lost.
    pub bytes_lost: u64,
    /// Timeouts after which all under way counted as lost.
    pub timeouts: u64,
    /// Packets that had been given up and arrived after all.
    pub spurious: u64,
}

/// The path; see the module.
#[derive(Debug)]
pub struct Path {
    pub(crate) peer: SocketAddr,
    pub(crate) rtt: Rtt,
    pub(crate) mtu: MtuSearch,
    pub(crate) stats: PathStats,
    controller: Box<dyn Controller>,
    fixed_rate: Option<u64>,
    pacer: Pacer,
    peer_kind: PeerKind,
    /// The peer reads ranges in ACKs, and takes packets in pieces.
    takes_ranges: bool,
    takes_pieces: bool,
    pub(crate) reordering: Reordering,
    peer_packet_len: usize,
    /// The window that a new call starts with: what the peer offered in the newest first ACK of a call, or more that it has offered
    /// since.
    window_hint: u32,
    /// The longest datagrams that have come from it in this second of the clock, and in the last in which any came.
    longest: u16,
    longest_before: u16,
    longest_second: u32,
    /// Window that a new call from this peer is offered.
    pub(crate) receive_window: u32,
    in_flight: u64,
    /// Bytes found lost since the controller last heard of an ACK.
    newly_lost: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    app_limited_until: u64,
    round_end: u64,
    train: Train,
    pub(crate) control: VecDeque<Control>,
    /// Calls with data to send.
    pub(crate) owner_queues: OwnerQueues,
    /// True if it stands in the endpoint's list of paths to be asked for what they have to send.
    pub(crate) is_ready: bool,
    pub(crate) pings: Pings,
    verified: bool,
    /// Bytes received from and sent to a peer that has not shown to be there, with UDP and IPv4 headers.
    stranger_received: u64,
    stranger_sent: u64,
    /// Bytes of DATA from it that count against the endpoint's bound.
    pub(crate) unproven: u64,
    /// Calls that wait for it to show that it is there, oldest first.
    pub(crate) waiting: VecDeque<ChannelRef>,
    reach_pinged_at: Option<Instant>,
    pub(crate) connections: u32,
    pub(crate) last_used: Instant,
    pub(crate) armed: Option<Instant>,
    pub(crate) send_at: Option<Instant>,
}

impl Path {
    pub(crate) fn new(now: Instant, peer: SocketAddr, config: &Config, seed: u64) -> Self {
        let packet_len = BASE_PACKET_LEN.min(config.max_packet_len);
        Self {
            peer,
            rtt: Rtt::new(),
            mtu: MtuSearch::new(config.max_packet_len),
            stats: PathStats::default(),
            controller: config.controller.start(packet_len, seed),
            fixed_rate: config.fixed_rate,
            pacer: Pacer::new(),
            peer_kind: PeerKind::Unknown,
            takes_ranges: false,
            takes_pieces: false,
            reordering: Reordering::new(),
            peer_packet_len: BASE_PACKET_LEN,
            window_hint: FIRST_WINDOW,
            longest: 0,
            longest_before: 0,
            longest_second: 0,
            receive_window: config.initial_window,
            in_flight: 0,
            newly_lost: 0,
            delivered: 0,
            delivered_at: now,
            first_sent_at: now,
            app_limited_until: 0,
            round_end: 0,
            train: Train::default(),
            control: VecDeque::new(),
            owner_queues: OwnerQueues::default(),
            is_ready: false,
            pings: Pings::default(),
            verified: false,
            stranger_received: 0,
            stranger_sent: 0,
            unproven: 0,
            waiting: VecDeque::new(),
            reach_pinged_at: None,
            connections: 0,
            last_used: now,
            armed: None,
            send_at: None,
        }
    }

    /// The peer's address.
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Round-trip times.
    pub const fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Counters.
    pub const fn stats(&self) -> &PathStats {
        &self.stats
    }

    /// The kind of the peer.
    pub const fn peer_kind(&self) -> PeerKind {
        self.peer_kind
    }

    /// Bytes under way over all calls.
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Bytes that may be under way.
    pub fn window(&self) -> u64 {
        // A fixed rate is the only limit: what is under way at it must fit, with a queue and repairs on top.
        let fixed = self.fixed_rate.map_or(0, |rate| 4 * bytes_in(rate, self.rtt.smoothed()));
        self.controller.window().max(fixed)
    }

    /// The controller's phase, for traces.
    pub fn phase(&self) -> &'static str {
        self.controller.phase()
    }

    /// Bytes a second that data leave at, once known.
    pub fn rate(&self) -> Option<u64> {
        let first = || self.rtt.is_known().then(|| rate_of(2 * self.controller.window(), self.rtt.min()));
        self.fixed_rate.or_else(|| self.controller.pacing_rate()).or_else(first)
    }

    /// True if the peer has answered a question of ours, so that its address is not spoofed.
    pub const fn is_verified(&self) -> bool {
        self.verified
    }

    pub(crate) const fn is_own(&self) -> bool {
        matches!(self.peer_kind, PeerKind::Own)
    }

    pub(crate) fn view(&self) -> PathView {
        PathView { is_own: self.is_own(), takes_ranges: self.takes_ranges, rtt: self.rtt.smoothed() }
    }

    pub(crate) const fn peer_delay(&self) -> Duration {
        if self.is_own() { OWN_ACK_DELAY } else { STOCK_ACK_DELAY }
    }

    /// Size of the DATA packets that go out, Rx header included.
    pub fn packet_len(&self) -> usize {
        let len = self.mtu.current().min(self.peer_packet_len);
        if self.is_own() { len } else { len.min(BASE_PACKET_LEN) }
    }

    pub(crate) const fn takes_pieces(&self) -> bool {
        self.takes_pieces
    }

    /// The size of the datagrams that a packet goes in if it does not go whole.
    pub(crate) fn piece_len(&self) -> usize {
        if self.mtu.is_in_doubt() { MIN_PACKET_LEN } else { self.packet_len() }
    }

    /// The largest packet that the MTU search tries for this peer.
    pub(crate) const fn peer_limit(&self) -> usize {
        if self.is_own() { self.peer_packet_len } else { BASE_PACKET_LEN }
    }

    /// The window a call starts to send with.
    pub(crate) const fn first_window(&self) -> u32 {
        self.window_hint
    }

    /// Reads what the peer says of itself in a trailer; returns the window to send with, if it names one.
    pub(crate) fn handle_trailer(
        &mut self,
        trailer: &Trailer,
        believes: bool,
        max_window: u32,
    ) -> Option<u32> {
        self.peer_kind = match (trailer.announcement, believes) {
            (Some(_), true) => PeerKind::Own,
            _ if self.is_own() => PeerKind::Own,
            _ => PeerKind::Stock,
        };
        if let Some(announcement) = trailer.announcement {
            self.takes_ranges = believes && announcement.has(Announcement::RANGES);
            self.takes_pieces = believes && announcement.has(Announcement::PIECES);
            if self.takes_pieces {
                self.mtu.forbid_fragments();
            }
        }
        let limit = if self.is_own() { max_window } else { STOCK_MAX_WINDOW };
        let lens = [trailer.max_packet_len, trailer.natural_packet_len.filter(|_| !self.is_own())];
        if let Some(len) = lens.into_iter().flatten().min() {
            self.peer_packet_len = (len as usize).clamp(MIN_PACKET_LEN, MAX_PACKET_LEN);
        }
        Some(trailer.window?.min(limit))
    }

    /// A call saw this window: later calls start with it. A call's first packet is always sent: nothing else would open a window that
    /// is shut.
    pub(crate) fn note_window(&mut self, window: u32) {
        self.window_hint = window.max(1);
    }

    pub(crate) fn handle_received(&mut self, now: Instant, len: usize) {
        self.stats.bytes_received += len as u64;
        let second = (now.as_nanos() / 1_000_000_000) as u32;
        if second != self.longest_second {
            (self.longest_before, self.longest, self.longest_second) = (self.longest, 0, second);
        }
        self.longest = self.longest.max(u16::try_from(len).unwrap_or(u16::MAX));
        if !self.verified {
            self.stranger_received += len as u64 + UDP_OVERHEAD;
        }
        self.last_used = now;
    }

    /// The longest datagram that has come from there in the last second or two: a peer that has found larger ones not to pass
    /// is counted by what it sends now.
    pub(crate) fn longest_received(&self) -> usize {
        self.longest.max(self.longest_before).into()
    }

    /// The peer's address is not spoofed.
    pub(crate) const fn set_verified(&mut self) {
        self.verified = true;
    }

    /// True if `len` bytes more would be too many for an address that may be spoofed.
    pub(crate) const fn is_within_reach_limit(&self, len: usize) -> bool {
        self.verified
            || self.stranger_sent + len as u64 + UDP_OVERHEAD <= AMPLIFICATION * self.stranger_received
    }

    /// A packet of `len` bytes goes out.
    pub(crate) const fn note_sent(&mut self, len: usize) {
        self.stats.bytes_sent += len as u64;
        if !self.verified {
            self.stranger_sent += len as u64 + UDP_OVERHEAD;
        }
    }

    /// Allows `len` bytes to be sent though the peer has not earned them: another limit applies to them.
    pub(crate) const fn grant_to_stranger(&mut self, len: usize) {
        self.stranger_received += (len as u64 + UDP_OVERHEAD).div_ceil(AMPLIFICATION);
    }

    /// True if it is time to ask the peer now if it is there (Rx notes 11: every 2 s until answered).
    pub(crate) fn wants_reach_ping(&mut self, now: Instant) -> bool {
        let due = self.reach_pinged_at.is_none_or(|at| now.since(at) >= Duration::from_secs(2));
        if due && !self.verified {
            self.reach_pinged_at = Some(now);
        }
        due && !self.verified
    }

    pub(crate) fn reach_ping_due(&self) -> Option<Instant> {
        if self.verified { None } else { self.reach_pinged_at.map(|at| at + Duration::from_secs(2)) }
    }

    /// Notes that nobody waits for the peer to show that it is there.
    pub(crate) const fn forget_reach_ping(&mut self) {
        self.reach_pinged_at = None;
    }

    /// An answer to a ping of this connection came: measures it. Returns the ping, if it was one of ours.
    pub(crate) fn handle_ping_response(
        &mut self,
        now: Instant,
        connection: usize,
        serial: Serial,
    ) -> Option<Ping> {
        let found = self.pings.take(connection, serial)?;
        self.rtt.handle_sample(now, now.since(found.sent_at));
        Some(found)
    }

    // ---- what is small

    /// Adds a small packet.
    pub(crate) fn push_control(&mut self, control: Control) {
        if self.control.len() < MAX_CONTROL || matches!(control, Control::Ack(_)) {
            self.control.push_back(control);
        }
    }

    /// Takes a call's ACK out of the queue.
    pub(crate) fn remove_ack(&mut self, call: ChannelRef) {
        self.control.retain(|c| !matches!(c, Control::Ack(at) if *at == call));
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.control.is_empty() || !self.owner_queues.is_empty()
    }

    /// Notes, if the path could carry more, that what is measured now is the application's rate, or with `by_peer` what the peer's
    /// window allows.
    pub(crate) fn note_app_limited(&mut self, by_peer: bool) {
        if by_peer || self.in_flight < self.controller.window() {
            self.app_limited_until = (self.delivered + self.in_flight).max(1);
        }
    }

    /// Notes that no call has anything to send, or with `by_peer` may.
    pub(crate) fn note_nothing_to_send(&mut self, by_peer: bool) {
        self.pacer.rest();
        self.note_app_limited(by_peer);
    }

    // ---- how much and when

    /// Decides whether a packet of `len` bytes may go.
    pub(crate) fn permit(&mut self, now: Instant, len: usize) -> Permit {
        if !self.is_within_reach_limit(len) {
            return Permit::Unverified;
        }
        let window = self.window() + self.train.allowance();
        if self.in_flight > 0 && self.in_flight + len as u64 > window {
            self.pacer.rest();
            return Permit::Full;
        }
        let Some(rate) = self.rate() else { return Permit::Go };
        let bundle = self.bundle(rate, len as u64);
        let floor = bundle.max(2 * quantum(rate, len as u64));
        let late = self.controller.catch_up();
        let mut tokens = self.pacer.fill(now, rate, floor, late);
        if self.in_flight == 0 && self.fixed_rate.is_none() {
            let burst = if self.delivered == 0 { FIRST_BURST } else { BURST_FROM_IDLE };
            self.pacer.grant(window.min(burst * len as u64));
            tokens = self.pacer.fill(now, rate, floor, late);
        }
        if tokens >= len as u64 {
            return Permit::Go;
        }
        Permit::At(self.pacer.ready_at(rate, bundle))
    }

    /// The number of bytes to wait for, so that offload pays: those of a thirty-second of the round trip, but of at least half a
    /// millisecond and at most four. It is at least one packet, and at most a quantum, or eight packets if these are more. With a
    /// crowd of slow paths each bundle is a system call, here and at every hop.
    fn bundle(&self, rate: u64, len: u64) -> u64 {
        let time = (self.rtt.smoothed() / 32).clamp(Duration::from_micros(500), Duration::from_millis(4));
        bytes_in(rate, time).clamp(len, quantum(rate, len).max(8 * len))
    }

    /// A DATA packet of `len` bytes goes out.
    pub(crate) fn handle_data_sent(&mut self, now: Instant, len: usize, again: bool) -> Stamp {
        if self.in_flight == 0 {
            (self.first_sent_at, self.delivered_at) = (now, now);
        }
        self.note_sent(len);
        self.in_flight += len as u64;
        self.pacer.spend(len as u64);
        self.stats.data_sent += 1;
        self.stats.data_resent += u64::from(again);
        let train = if again { 0 } else { self.train.handle_sent(now, len as u64) };
        Stamp { train, ..self.stamp(now) }
    }

    /// The path as it is now.
    pub(crate) const fn stamp(&self, now: Instant) -> Stamp {
        Stamp {
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            in_flight: self.in_flight,
            // Until more is delivered than was on its way then: also for the first packet after all of that was.
            app_limited: self.app_limited_until != 0,
            train: 0,
        }
    }

    /// Bytes left the flight without being acknowledged or lost: their call ended.
    pub(crate) fn forget_in_flight(&mut self, bytes: u64) {
        self.in_flight -= bytes;
    }

    /// An ACK of one of the calls was read.
    pub(crate) fn handle_ack(&mut self, now: Instant, out: &AckOutcome) {
        self.in_flight -= out.landed + out.lost.bytes + out.left;
        self.stats.bytes_lost += out.lost.bytes + out.repaired;
        self.stats.spurious += u64::from(out.spurious);
        if let Some(rtt) = out.rtt {
            self.rtt.handle_sample(now, rtt);
        }
        self.mtu.handle_delivered(out.largest);
        self.mtu.handle_lost(now, out.lost.largest, self.rtt.smoothed(), self.takes_pieces);
        let mut sample = AckSample {
            now,
            acked: out.acked,
            delivered: self.delivered + out.acked,
            in_flight: self.in_flight,
            sent_in_flight: out.newest.map_or(0, |stamp| stamp.in_flight),
            lost: out.lost.bytes + out.repaired + std::mem::take(&mut self.newly_lost),
            spurious: out.spurious_bytes,
            delivery_rate: None,
            app_limited: false,
            rtt: out.rtt,
            min_rtt: self.rtt.min(),
            min_rtt_age: self.rtt.min_age(now),
            smoothed_rtt: self.rtt.smoothed(),
            round_start: false,
            train_rate: None,
        };
        if let Some(stamp) = out.newest {
            self.delivered += out.acked;
            self.delivered_at = now;
            self.first_sent_at = stamp.sent_at;
            if self.app_limited_until != 0 && self.delivered > self.app_limited_until {
                self.app_limited_until = 0;
            }
            let interval = stamp.sent_at.since(stamp.first_sent_at).max(now.since(stamp.delivered_at));
            if self.rtt.is_known() && interval >= self.rtt.min() {
                let bytes = u128::from(self.delivered.saturating_sub(stamp.delivered));
                sample.delivery_rate = Some((bytes * 1_000_000_000 / interval.as_nanos().max(1)) as u64);
            }
            sample.app_limited = stamp.app_limited;
            if stamp.delivered >= self.round_end {
                self.round_end = self.delivered;
                sample.round_start = true;
            }
        }
        sample.train_rate = self.train.handle_acked(now, out.train);
        self.controller.handle_ack(&sample);
        let wanted = self.controller.wanted_train();
        if self.train.handle_round(sample.round_start, wanted) {
            self.pacer.grant(wanted);
        }
    }

    /// A call waited in vain: what of it is under way leaves the flight.
    pub(crate) fn handle_timeout(&mut self, now: Instant, lost: Lost) {
        self.in_flight -= lost.bytes;
        self.stats.bytes_lost += lost.bytes;
        self.stats.timeouts += 1;
        self.controller.handle_timeout(now);
        self.mtu.handle_timeout(lost.largest, self.takes_pieces);
    }

    /// The kernel refused a packet of `len` bytes. Returns whether packets become smaller.
    pub(crate) fn handle_too_large(&mut self, len: usize) -> bool {
        let smaller = self.mtu.handle_too_large(len, self.takes_pieces);
        smaller.into_iter().for_each(|len| self.controller.set_packet_len(len));
        smaller.is_some()
    }

    /// Some packets turned out lost without an ACK; `left` bytes leave the flight with an unknown fate.
    pub(crate) fn handle_lost(&mut self, now: Instant, lost: Lost, left: u64) {
        self.in_flight -= lost.bytes + left;
        self.newly_lost += lost.bytes;
        self.stats.bytes_lost += lost.bytes;
        self.mtu.handle_lost(now, lost.largest, self.rtt.smoothed(), self.takes_pieces);
    }

    /// The packet size changed.
    pub(crate) fn handle_packet_len(&mut self, len: usize) {
        self.controller.set_packet_len(len);
    }
    /// The time when time alone changes something here.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let probe = self.mtu.deadline(self.rtt.timeout(self.peer_delay()));
        [probe, self.send_at, self.reach_ping_due()].into_iter().flatten().min()
    }
}

/// The rate at which `bytes` take `time`, in bytes a second.
fn rate_of(bytes: u64, time: Duration) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1)) as u64
}
