//! A server that is sent packets one by one, made by hand.

use afs_sim::world::SERVICE;
use bytes::Bytes;
use rx_proto::config::{CallLimits, Config};
use rx_proto::endpoint::{Endpoint, Event, Read, Service};
use rx_proto::ids::{CallNumber, Channel, ConnectionId, Epoch, SecurityIndex, Seq, Serial};
use rx_proto::packet::{Flags, Header, PacketType};
use rx_proto::security::Null;
use rx_proto::time::Instant;
use rx_proto::totals::Totals;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const LONG: Duration = Duration::from_secs(60);
/// UDP and IPv4 headers.
pub(crate) const OVERHEAD: u64 = 28;

/// Packets that were sent, and from where.
pub(crate) type Copies = Rc<RefCell<Vec<(SocketAddr, Vec<u8>)>>>;

/// A server that answers each request with much, driven by hand.
pub(crate) struct Server {
    pub(crate) endpoint: Endpoint,
    pub(crate) now: Instant,
    /// Bytes to each address, with headers.
    pub(crate) sent: HashMap<SocketAddr, u64>,
    pub(crate) received: HashMap<SocketAddr, u64>,
}

impl Server {
    pub(crate) fn new(check_reach: bool, config: Config) -> Self {
        Self::with_totals(check_reach, config, &Totals::default())
    }

    pub(crate) fn with_totals(check_reach: bool, config: Config, totals: &Totals) -> Self {
        let mut endpoint = Endpoint::with_totals(config, [3; 32], totals);
        endpoint.add_service(Service {
            id: SERVICE,
            security: vec![Arc::new(Null)],
            check_reach,
            upgrades_to: None,
            limits: CallLimits::default(),
        });
        let now = Instant::ORIGIN + Duration::from_secs(1);
        Self { endpoint, now, sent: HashMap::new(), received: HashMap::new() }
    }

    pub(crate) fn receive(&mut self, from: SocketAddr, packet: Vec<u8>) {
        *self.received.entry(from).or_default() += packet.len() as u64 + OVERHEAD;
        self.endpoint.handle_datagram(self.now, from, packet.into());
    }

    /// Lets the application answer, and sends; returns what was sent last.
    pub(crate) fn send(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut packets = Vec::new();
        loop {
            while let Some(event) = self.endpoint.poll_event() {
                if let Event::Incoming(call) = event {
                    while matches!(self.endpoint.read(self.now, call), Ok(Read::Data(_))) {}
                    let _ = self.endpoint.write(self.now, call, Bytes::from(vec![1; 200_000]));
                    let _ = self.endpoint.finish(self.now, call);
                } else if let Event::Closed(call, _) = event {
                    self.endpoint.release(self.now, call);
                }
            }
            let mut out = Vec::new();
            let Some(t) = self.endpoint.poll_transmit(self.now, &mut out) else { break };
            for segment in out.chunks(t.segment_len) {
                *self.sent.entry(t.to).or_default() += segment.len() as u64 + OVERHEAD;
                packets.push((t.to, segment.to_vec()));
            }
        }
        packets
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.endpoint.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.endpoint.handle_timeout(self.now);
            self.send();
        }
        self.now = end;
    }
}

pub(crate) fn header(kind: PacketType, connection: u32) -> Header {
    Header {
        epoch: Epoch(0x8123_4567),
        connection: ConnectionId(connection << 2),
        channel: Channel::of(0),
        call: CallNumber(1),
        seq: Seq(u32::from(kind == PacketType::DATA)),
        serial: Serial(1),
        kind,
        flags: Flags::CLIENT_INITIATED,
        user_status: 0,
        security: SecurityIndex(0),
        checksum: 0,
        service: SERVICE,
    }
}

pub(crate) fn packet(header: Header, body: &[u8]) -> Vec<u8> {
    let mut packet = header.to_bytes().to_vec();
    packet.extend_from_slice(body);
    packet
}

pub(crate) fn request(connection: u32, len: usize) -> Vec<u8> {
    let header = header(PacketType::DATA, connection);
    packet(Header { flags: header.flags.with(Flags::LAST_PACKET), ..header }, &vec![0; len])
}

pub(crate) fn address(n: u32) -> SocketAddr {
    SocketAddr::from(((0x0a00_0000 + n).to_be_bytes(), 7001))
}

/// An ACK's body.
pub(crate) fn ack(
    first: u32,
    previous: u32,
    serial: u32,
    reason: u8,
    table: &[u8],
    words: &[u32],
) -> Vec<u8> {
    let mut body = vec![0; 4];
    [first, previous, serial].iter().for_each(|w| body.extend_from_slice(&w.to_be_bytes()));
    body.extend_from_slice(&[reason, table.len() as u8]);
    body.extend_from_slice(table);
    body.extend_from_slice(&[0; 3]);
    words.iter().for_each(|w| body.extend_from_slice(&w.to_be_bytes()));
    body
}
