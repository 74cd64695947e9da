//! Sorts the datagrams of a capture into Rx connections, each a `Conversation` in the order of capture, and the DATA of a
//! conversation into calls. Only looks: what a packet should have been is for the tests to say. For a replay, take
//! `Conversation::sent_by` of one side and feed those datagrams into an endpoint that plays the other.

use super::pcap::{Capture, Datagram};
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
pub(crate) enum Side {
    /// Made the connection, and makes its calls.
    Client,
    /// Is called.
    Server,
}

/// One datagram of a conversation.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// Number in the file, as in Wireshark.
    pub(crate) frame: usize,
    /// Since the file's first frame.
    pub(crate) at: Instant,
    /// Who sent it, by its CLIENT_INITIATED flag.
    pub(crate) sender: Side,
    /// The address it came from.
    pub(crate) from: SocketAddr,
    /// Its header: of a jumbogram the first subpacket's.
    pub(crate) header: Header,
    /// All of it, header included.
    pub(crate) datagram: Bytes,
}

impl Packet {
    /// What follows the header.
    pub(crate) fn body(&self) -> Bytes {
        self.datagram.slice(HEADER_LEN..)
    }

    /// The DATA packets in it: several in a jumbogram, none if it is of another type.
    pub(crate) fn data(&self) -> impl Iterator<Item = (Header, Bytes)> {
        let is_data = self.header.kind == PacketType::DATA;
        is_data.then(|| Subpackets::new(self.header, self.body())).into_iter().flatten()
    }
}

/// All packets of one connection, in the order of capture.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) epoch: Epoch,
    pub(crate) connection: ConnectionId,
    pub(crate) security: SecurityIndex,
    pub(crate) service: ServiceId,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) packets: Vec<Packet>,
}

impl Conversation {
    /// The connections of a capture, by their first packet. DEBUG and VERSION packets are of none and left out, as are
    /// datagrams too short for a header.
    pub(crate) fn all_of(capture: &Capture) -> Vec<Self> {
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

    /// What one side sent.
    pub(crate) fn sent_by(&self, side: Side) -> impl Iterator<Item = &Packet> {
        self.packets.iter().filter(move |p| p.sender == side)
    }

    /// The address of one side.
    pub(crate) fn address(&self, side: Side) -> SocketAddr {
        match side {
            Side::Client => self.client,
            Side::Server => self.server,
        }
    }

    /// The calls that DATA or ABORT packets belong to, by channel and number.
    pub(crate) fn calls(&self) -> Vec<Call> {
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
pub(crate) struct Call {
    pub(crate) channel: Channel,
    pub(crate) number: CallNumber,
    /// The frame of its first packet.
    pub(crate) frame: usize,
    pub(crate) request: Stream,
    pub(crate) reply: Stream,
    /// The code it was aborted with.
    pub(crate) aborted: Option<AbortCode>,
}

impl Call {
    fn new(channel: Channel, number: CallNumber, frame: usize) -> Self {
        Self { channel, number, frame, request: Stream::default(), reply: Stream::default(), aborted: None }
    }
}

/// One direction of a call, put together from its DATA packets. With a security class other than null the bytes are
/// those of the wire: security headers included, encrypted or not.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    packets: BTreeMap<Seq, Bytes>,
    last: Option<Seq>,
    /// How many DATA packets came again.
    pub(crate) retransmissions: usize,
    /// Frames whose DATA differs from what the same sequence number held before: a sender never does that.
    pub(crate) contradictions: Vec<usize>,
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

    /// How many distinct packets there are.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is no packet at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether the packets run from 1 without a gap.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.packets.keys().zip(1..).all(|(seq, n)| seq.0 == n)
    }

    /// Whether the last packet is there and none before it is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_contiguous() && self.last.is_some_and(|l| l.0 as usize == self.packets.len())
    }

    /// The bytes of the packets that are there, in order.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.packets.values().flatten().copied().collect()
    }
}
