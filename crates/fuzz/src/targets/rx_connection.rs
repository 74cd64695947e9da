//! An endpoint that is server and client at once gets a sequence of datagrams while time goes by. Whatever comes, it must
//! come to rest: so many packets and timers at a point in time, no more connections than packets.
//!
//! The input: a byte of modes, then steps, each a control byte, a length of two bytes and so many bytes of datagram.
//! Packets from a server get the epoch and connection of the endpoint's own client connection, so that captured ones fit.

use crate::shape::Shape;
use bytes::Bytes;
use rx_proto::abort::AbortCode;
use rx_proto::config::Config;
use rx_proto::endpoint::{CallHandle, Endpoint, Event, Read, Service};
use rx_proto::ids::ServiceId;
use rx_proto::packet::{HEADER_LEN, Header, PacketType};
use rx_proto::security::Null;
use rx_proto::time::Instant;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Bits of the first byte: behave as a stock peer; check that callers are reachable; do not read.
const STOCK: u8 = 1;
const CHECK_REACH: u8 = 2;
const LAZY: u8 = 4;

/// Bits of a control byte. The lower four are the time before the step: 0, or 2^n times 50 µs (up to 1.6 s).
const OTHER_ADDRESS: u8 = 0x10;
const ABORT_A_CALL: u8 = 0x20;
const AS_IT_IS: u8 = 0x40;
const TO_NEXT_TIMER: u8 = 0x80;

/// Packets or timers at one point in time, beyond which the endpoint is held to be in a loop.
const ENOUGH: usize = 5000;
/// Most timers run between two steps, so that an input's time is bounded.
const MAX_TIMERS: usize = 50;

struct World {
    endpoint: Endpoint,
    now: Instant,
    lazy: bool,
    calls: Vec<CallHandle>,
    client_header: Option<Header>,
    /// A bit for each type of packet sent, and from 16 on each kind of event.
    seen: u64,
    sent: usize,
}

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((modes, mut rest)) = input.split_first() else { return 0 };
    let mut world = World::new(*modes);
    let mut steps = 0;
    while let [control, high, low, tail @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        world.step(*control, &tail[..len]);
        (rest, steps) = (&tail[len..], steps + 1);
    }
    assert!(world.endpoint.connection_count() <= steps + 1);
    world.run_timers(None);
    world.shape()
}

impl World {
    fn new(modes: u8) -> Self {
        let config = if modes & STOCK == 0 { Config::default() } else { Config::stock_like() };
        let mut endpoint = Endpoint::new(config, [7; 32]);
        for (id, upgrades_to) in [(1, None), (52, Some(ServiceId(2503))), (147, None), (2503, None)] {
            endpoint.add_service(Service {
                id: ServiceId(id),
                security: vec![Arc::new(Null)],
                check_reach: modes & CHECK_REACH != 0,
                upgrades_to,
                limits: Default::default(),
            });
        }
        let now = Instant::ORIGIN + Duration::from_secs(1);
        let connection = endpoint.connect(now, address(0), ServiceId(1), Box::new(Null));
        let lazy = modes & LAZY != 0;
        let mut world =
            Self { endpoint, now, lazy, calls: Vec::new(), client_header: None, seen: 0, sent: 0 };
        for _ in 0..2 {
            let call =
                world.endpoint.open(now, connection).ok().flatten().expect("a new connection has channels");
            let _ = world.endpoint.write(now, call, Bytes::from_static(&[1; 4000]));
            let _ = world.endpoint.finish(now, call);
            world.calls.push(call);
        }
        world.pump();
        world
    }

    fn step(&mut self, control: u8, datagram: &[u8]) {
        let wait = Duration::from_micros(if control & 15 == 0 { 0 } else { 50 << (control & 15) });
        let until = self.now + wait;
        self.run_timers(if control & TO_NEXT_TIMER != 0 {
            self.endpoint.poll_timeout()
        } else {
            Some(until)
        });
        let mut datagram = datagram.to_vec();
        if let (Ok(header), Some(ours)) = (Header::parse(&datagram), self.client_header)
            && control & AS_IT_IS == 0
            && !header.is_from_client()
        {
            let header = Header { epoch: ours.epoch, connection: ours.connection, ..header };
            datagram[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        }
        let from = address(u8::from(control & OTHER_ADDRESS != 0));
        self.endpoint.handle_datagram(self.now, from, datagram.into());
        if control & ABORT_A_CALL != 0
            && let Some(call) = self.calls.pop()
        {
            self.endpoint.abort(self.now, call, AbortCode::USER_ABORT);
            self.endpoint.release(self.now, call);
        }
        self.pump();
    }

    /// Lets time go on to `until`; or, without it, from timer to timer. Only so many timers are run.
    fn run_timers(&mut self, until: Option<Instant>) {
        let mut at_once = 0;
        for _ in 0..MAX_TIMERS {
            let Some(next) =
                self.endpoint.poll_timeout().filter(|next| until.is_none_or(|until| *next <= until))
            else {
                break;
            };
            at_once = if next > self.now { 0 } else { at_once + 1 };
            assert!(at_once < MAX_TIMERS / 2, "the timer at {next:?} does not go away");
            self.now = self.now.max(next);
            self.endpoint.handle_timeout(self.now);
            self.pump();
        }
        self.now = until.unwrap_or(self.now).max(self.now);
    }

    fn shape(&self) -> u64 {
        let stats = self.endpoint.stats();
        let counts = [
            stats.spurious_packets,
            stats.duplicate_packets,
            stats.data_resent,
            stats.pings_sent,
            stats.calls,
            stats.calls_failed,
            stats.busies,
            stats.withheld,
            stats.bytes_read,
            self.sent as u64,
            self.endpoint.connection_count() as u64,
        ];
        counts.iter().fold(Shape::EMPTY.with(self.seen), |shape, n| shape.with_count(*n as usize)).feature()
    }

    fn pump(&mut self) {
        let mut out = Vec::new();
        for rounds in 0.. {
            assert!(rounds < ENOUGH, "packets and events do not end");
            if let Some(event) = self.endpoint.poll_event() {
                self.handle_event(event);
            } else if let Some(sent) = self.endpoint.poll_transmit(self.now, &mut out) {
                assert!(sent.segment_len >= HEADER_LEN && out.len() >= HEADER_LEN);
                out.chunks(sent.segment_len).for_each(|packet| self.note_sent(packet));
            } else {
                break;
            }
        }
    }

    fn note_sent(&mut self, packet: &[u8]) {
        let header = Header::parse(packet).expect("we send packets");
        self.seen |= 1 << (header.kind.0 & 15);
        self.sent += 1;
        if header.is_from_client() && header.kind == PacketType::DATA {
            self.client_header.get_or_insert(header);
        }
    }

    fn handle_event(&mut self, event: Event) {
        let (bit, call) = match event {
            Event::Incoming(call) => (16, Some(call)),
            Event::Readable(call) => (17, Some(call)),
            Event::Writable(_) => (18, None),
            Event::Closed(call, error) => {
                self.endpoint.release(self.now, call);
                (if error.is_some() { 19 } else { 20 }, None)
            }
            Event::ChannelFree(_) => (21, None),
        };
        self.seen |= 1 << bit;
        if let (Some(call), false) = (call, self.lazy) {
            self.read_all(call, event);
        }
    }

    /// Reads what there is; a whole request is answered with a reply of three packets.
    fn read_all(&mut self, call: CallHandle, event: Event) {
        if matches!(event, Event::Incoming(_)) {
            self.calls.push(call);
        }
        for rounds in 0.. {
            assert!(rounds < ENOUGH, "the stream does not end");
            match self.endpoint.read(self.now, call) {
                Ok(Read::Data(piece)) => assert!(!piece.is_empty()),
                Ok(Read::End) => break,
                Ok(Read::Blocked) | Err(_) => return,
            }
        }
        self.seen |= 1 << 22;
        let is_ours = self.endpoint.write(self.now, call, Bytes::from_static(&[2; 4000])).is_err();
        if !is_ours {
            let _ = self.endpoint.finish(self.now, call);
        }
        self.endpoint.release(self.now, call);
    }
}

fn address(which: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + which], 7000))
}
