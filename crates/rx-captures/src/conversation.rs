//! Sorts the datagrams of a capture into Rx connections, each a `Conversation` in the order of capture, and the DATA of a
//! conversation into calls. Only looks: what a packet should have been is for the tests to say. For a replay, take
//! `Conversation::sent_by` of one side and feed those datagrams into an endpoint that plays the other.

use crate::pcap::{Capture, Datagram};
use bytes::Bytes;
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CallNumber, Channel, ConnectionId, Epoch, SecurityIndex, Seq, ServiceId};
use rx_proto::jumbo::Subpackets;
use rx_proto::packet::{Flags, HEADER_LEN, Header, PacketType};
use rx_proto::time::Instant;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// An end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    /// The side that made the connection, and makes its calls.
    Client,
    /// The side that is called.
    Server,
}

/// One datagram of a conversation.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Number in the file, as in Wireshark.
    pub frame: usize,
    /// The time since the file's first frame.
    pub at: Instant,
    /// The side that sent it, by its CLIENT_INITIATED flag.
    pub sender: Side,
    /// The address it came from.
    pub from: SocketAddr,
    /// Its header: of a jumbogram the first subpacket's.
    pub header: Header,
    /// All of it, header included.
    pub datagram: Bytes,
}

impl Packet {
    /// The bytes behind the header.
    pub fn body(&self) -> Bytes {
        self.datagram.slice(HEADER_LEN..)
    }

    /// The DATA packets in it: several in a jumbogram, none if it is of another type.
    pub fn data(&self) -> impl Iterator<Item = (Header, Bytes)> {
        let is_data = self.header.kind == PacketType::DATA;
        is_data.then(|| Subpackets::new(self.header, self.body())).into_iter().flatten()
    }
}

/// All packets of one connection, in the order of capture.
#[derive(Debug)]
pub struct Conversation {
    /// The epoch of all its packets.
    pub epoch: Epoch,
    /// The number that names it within the epoch.
    pub connection: ConnectionId,
    /// The security class of its first packet.
    pub security: SecurityIndex,
    /// The service of its first packet.
    pub service: ServiceId,
    /// The address of the client in its first packet.
    pub client: SocketAddr,
    /// The address of the server in its first packet.
    pub server: SocketAddr,
    /// The packets of both sides.
    pub packets: Vec<Packet>,
}

impl Conversation {
    /// The connections of a capture, by their first packet. DEBUG and VERSION packets are of none and left out, as are
    /// datagrams too short for a header.
    pub fn all_of(capture: &Capture) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let mut by_name = BTreeMap::new();
        for datagram in capture.rx() {
            let Ok(header) = Header::parse(&datagram.payload) else { continue };
            if matches!(header.kind, PacketType::DEBUG | PacketType::VERSION) {
                continue;
            }
            let index = *by_name.entry((header.epoch, header.connection)).or_insert_with(|| {
                found.push(Self::opened_by(datagram, &header));
                found.len() - 1
            });
            found[index].packets.push(Packet {
                frame: datagram.frame,
                at: datagram.at,
                sender: sender(&header),
                from: datagram.from,
                header,
                datagram: datagram.payload.clone(),
            });
        }
        found
    }

    fn opened_by(datagram: &Datagram, header: &Header) -> Self {
        let (client, server) = match sender(header) {
            Side::Client => (datagram.from, datagram.to),
            Side::Server => (datagram.to, datagram.from),
        };
        Self {
            epoch: header.epoch,
            connection: header.connection,
            security: header.security,
            service: header.service,
            client,
            server,
            packets: Vec::new(),
        }
    }

    /// The packets of one side.
    pub fn sent_by(&self, side: Side) -> impl Iterator<Item = &Packet> {
        self.packets.iter().filter(move |p| p.sender == side)
    }

    /// The address of one side.
    pub fn address(&self, side: Side) -> SocketAddr {
        match side {
            Side::Client => self.client,
            Side::Server => self.server,
        }
    }

    /// The calls that DATA or ABORT packets belong to, by channel and number.
    pub fn calls(&self) -> Vec<Call> {
        let mut calls: BTreeMap<(Channel, CallNumber), Call> = BTreeMap::new();
        for packet in &self.packets {
            let header = packet.header;
            let is_of_call = matches!(header.kind, PacketType::DATA | PacketType::ABORT);
            if !is_of_call || header.call == CallNumber::CONNECTION {
                continue;
            }
            let call = calls
                .entry((header.channel, header.call))
                .or_insert_with(|| Call::new(header.channel, header.call, packet.frame));
            if header.kind == PacketType::ABORT {
                call.aborted = packet.body().first_chunk().map(|c| AbortCode(i32::from_be_bytes(*c)));
            }
            let stream = match packet.sender {
                Side::Client => &mut call.request,
                Side::Server => &mut call.reply,
            };
            packet.data().for_each(|(header, payload)| stream.take(header, payload, packet.frame));
        }
        calls.into_values().collect()
    }
}

fn sender(header: &Header) -> Side {
    if header.is_from_client() { Side::Client } else { Side::Server }
}

/// One call: its two streams.
#[derive(Debug)]
pub struct Call {
    /// The channel it is on.
    pub channel: Channel,
    /// Its number on that channel.
    pub number: CallNumber,
    /// The frame of its first packet.
    pub frame: usize,
    /// The data of the client.
    pub request: Stream,
    /// The data of the server.
    pub reply: Stream,
    /// The code it was aborted with.
    pub aborted: Option<AbortCode>,
}

impl Call {
    fn new(channel: Channel, number: CallNumber, frame: usize) -> Self {
        Self { channel, number, frame, request: Stream::default(), reply: Stream::default(), aborted: None }
    }
}

/// One direction of a call, put together from its DATA packets. With a security class other than null the bytes are
/// those of the wire: security headers included, encrypted or not.
#[derive(Debug, Default)]
pub struct Stream {
    packets: BTreeMap<Seq, Bytes>,
    last: Option<Seq>,
    /// The number of DATA packets that came again.
    pub retransmissions: usize,
    /// Frames whose DATA differs from what the same sequence number held before: a sender never does that.
    pub contradictions: Vec<usize>,
}

impl Stream {
    fn take(&mut self, header: Header, payload: Bytes, frame: usize) {
        let is_last = header.flags.contains(Flags::LAST_PACKET);
        let known = self.packets.get(&header.seq);
        let changed = known.is_some_and(|k| *k != payload);
        if changed || (is_last && self.last.is_some_and(|l| l != header.seq)) {
            self.contradictions.push(frame);
        }
        self.retransmissions += usize::from(known.is_some());
        if is_last {
            self.last = Some(header.seq);
        }
        self.packets.entry(header.seq).or_insert(payload);
    }

    /// The number of distinct packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// True if there is no packet at all.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// True if the packets run from 1 without a gap.
    pub fn is_contiguous(&self) -> bool {
        self.packets.keys().zip(1..).all(|(seq, n)| seq.0 == n)
    }

    /// True if the last packet is there and none before it is missing.
    pub fn is_complete(&self) -> bool {
        self.is_contiguous() && self.last.is_some_and(|l| l.0 as usize == self.packets.len())
    }

    /// The bytes of the packets that are there, in order.
    pub fn bytes(&self) -> Vec<u8> {
        self.packets.values().flatten().copied().collect()
    }
}
