//! The bodies of DEBUG and VERSION packets: what rxdebug asks of any Rx endpoint, and the answers (Rx notes 14 and 15).
//! All numbers are big-endian; the records are read whatever their length, so that those of older servers, and of newer
//! ones, make sense as far as they go. When to ask again and what to print is for the program; whom to answer and how
//! often for the endpoint.

mod numbers;
mod record;

pub use numbers::{
    CallFlags, CallMode, CallQueues, CallState, ConnectionFlags, ConnectionSide, DebugKind, DebugVersion,
    SecurityFlags, SecurityKind, SecurityLevel,
};
pub use record::Value;

use crate::abort::AbortCode;
use crate::ids::{CHANNELS, CallNumber, Channel, ConnectionId, Epoch, SecurityIndex, Seq, Serial, ServiceId};
use crate::packet::{Flags, Header, PacketError, PacketType};
use record::{Field, record};
use std::net::Ipv4Addr;

/// The number of packet types that the statistics count: types 1 to 13.
pub const PACKET_TYPES: usize = 13;

/// The epoch in the headers of tools that ask, and of NAT pings (Rx notes 11, 14).
pub const TOOL_EPOCH: Epoch = Epoch(999);

/// The call number of a tool's first question; observed: OpenAFS 1.8.9 counts from here.
pub const FIRST_QUESTION: CallNumber = CallNumber(101);

/// The header of a question, `kind` being DEBUG or VERSION; the reply is known by `number`.
pub const fn request_header(kind: PacketType, number: CallNumber) -> Header {
    Header {
        epoch: TOOL_EPOCH,
        connection: ConnectionId(0),
        channel: Channel::of(0),
        call: number,
        seq: Seq(0),
        serial: Serial(0),
        kind,
        flags: Flags::CLIENT_INITIATED.with(Flags::LAST_PACKET),
        user_status: 0,
        security: SecurityIndex(0),
        checksum: 0,
        service: ServiceId(0),
    }
}

/// The header of the answer to a DEBUG or VERSION packet; `None` if it wants none, as a NAT ping.
pub fn reply_header(request: &Header) -> Option<Header> {
    request
        .is_from_client()
        .then(|| Header { flags: request.flags.without(Flags::CLIENT_INITIATED), ..*request })
}

/// The header of a NAT ping, which keeps a way open and gets no answer (Rx notes 11); its body is [`VERSION_REQUEST`].
pub const NAT_PING: Header =
    Header { flags: Flags::LAST_PACKET, ..request_header(PacketType::VERSION, CallNumber(0)) };

/// The body of a question for the version, and of a NAT ping.
pub const VERSION_REQUEST: [u8; 1] = [0];

/// Length of the answer to it.
pub const VERSION_LEN: usize = 65;

/// The text in the body of a VERSION reply; what is longer than [`VERSION_LEN`] is cut. A peer may put anything there:
/// make control characters harmless before printing.
pub fn parse_version(body: &[u8]) -> String {
    let body = &body[..body.len().min(VERSION_LEN - 1)];
    let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
    String::from_utf8_lossy(&body[..end]).into_owned()
}

/// The body of a VERSION reply: as much of `text` as fits, and at least one NUL behind it.
pub fn version_body(text: &str) -> [u8; VERSION_LEN] {
    let mut body = [0; VERSION_LEN];
    let len = text.len().min(VERSION_LEN - 1);
    body[..len].copy_from_slice(&text.as_bytes()[..len]);
    body
}

/// A question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DebugRequest {
    /// The kind of question.
    pub kind: DebugKind,
    /// The index from 0, since connections and peers are asked for one by one.
    pub index: i32,
}

impl DebugRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// The body of the answer to a question that is not understood: it has the form of a question.
    pub const NOT_SUPPORTED: Self = Self { kind: DebugKind::NOT_SUPPORTED, index: -8 };

    /// Reads a question; bytes behind it are ignored.
    pub fn parse(body: &[u8]) -> Result<Self, PacketError> {
        let mut rest = at_least(body, Self::LEN)?;
        Ok(Self { kind: Field::take(&mut rest), index: Field::take(&mut rest) })
    }

    /// The question's bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let (kind, index) = (self.kind.0.to_be_bytes(), self.index.to_be_bytes());
        std::array::from_fn(|i| if i < 4 { kind[i] } else { index[i - 4] })
    }
}

/// True if the body of a reply says that the question is not understood. Ask this before parsing a record.
pub fn is_not_supported(reply: &[u8]) -> bool {
    DebugRequest::parse(reply) == Ok(DebugRequest::NOT_SUPPORTED)
}

record! {
    /// A time or a span, `struct clock`.
    Clock {
        /// Seconds.
        sec: i32
        /// Microseconds.
        usec: i32
    }
}

impl Clock {
    /// The time in seconds.
    pub fn seconds(self) -> f64 {
        f64::from(self.sec) + f64::from(self.usec) / 1e6
    }
}

record! {
    /// The packet pool and the threads: `rx_debugStats`. Which fields mean something depends on `version`.
    DebugStats {
        /// Packet buffers free.
        n_free_packets: i32
        /// The number of times that buffers were taken away from calls.
        packet_reclaims: i32
        /// Calls served since the start.
        calls_executed: i32
        /// Is not 0 while a call waits for a buffer.
        waiting_for_packets: u8
        /// File descriptors in use.
        used_fds: u8
        /// The version that says which questions the server can answer.
        version: DebugVersion
        /// Unused.
        spare1: u8
        /// Calls waiting for a thread.
        n_waiting: i32
        /// Threads without a call.
        idle_threads: i32
        /// Calls that had to wait for a thread, since the start.
        n_waited: i32
        /// Packet buffers altogether.
        n_packets: i32
        /// Unused.
        spare2: [i32; 6]
    }
}

impl DebugStats {
    /// Up to the version.
    const MIN_LEN: usize = 16;

    /// Reads a reply of any version: it must reach to the version, and what is missing behind that is 0.
    pub fn parse(body: &[u8]) -> Result<Self, PacketError> {
        Ok(Self::take(&mut at_least(body, Self::MIN_LEN)?))
    }

    /// Appends the reply's body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
    }
}

record! {
    /// A connection's facts from its security class: `rx_securityObjectStats`.
    SecurityStats {
        /// The class.
        kind: SecurityKind
        /// The level of protection.
        level: SecurityLevel
        /// Unused.
        sparec: [u8; 10]
        /// Flags.
        flags: SecurityFlags
        /// The time when the ticket runs out, in seconds since 1970; 0 if never.
        expires: u32
        /// Packets received.
        packets_received: u32
        /// Packets sent.
        packets_sent: u32
        /// Bytes received.
        bytes_received: u32
        /// Bytes sent.
        bytes_sent: u32
        /// Unused.
        spares: [u16; 4]
        /// Unused.
        sparel: [i32; 8]
    }
}

record! {
    /// A connection: `rx_debugConn`.
    DebugConnection {
        /// The peer's address.
        host: Ipv4Addr
        /// Its id as the server holds it, or [`DebugConnection::END`].
        cid: ConnectionId
        /// The last serial sent.
        serial: Serial
        /// The number of each channel's call.
        call_number: [CallNumber; CHANNELS]
        /// The reason why the connection is in error; 0 if it is not.
        error: AbortCode
        /// The peer's port.
        port: u16
        /// Flags.
        flags: ConnectionFlags
        /// The end of the connection that the server is.
        side: ConnectionSide
        /// The security class.
        security_index: SecurityIndex
        /// Unused.
        sparec: [u8; 3]
        /// The state of each channel's call.
        call_state: [CallState; CHANNELS]
        /// The mode of each channel's call.
        call_mode: [CallMode; CHANNELS]
        /// The flags of each channel's call.
        call_flags: [CallFlags; CHANNELS]
        /// The queues of each channel's call.
        call_other: [CallQueues; CHANNELS]
        /// The security class's facts.
        sec_stats: SecurityStats
        /// The client instance; 0 from servers that do not tell.
        epoch: Epoch
        /// Packet size found usable on this path, in bytes; 0 if none was.
        nat_mtu: i32
        /// Unused.
        sparel: [i32; 9]
    }
}

impl DebugConnection {
    /// The `cid` that ends the list of connections.
    pub const END: ConnectionId = ConnectionId(0xffff_ffff);

    /// Up to the queues of the calls, in the layout without padding; servers before `L` say no more.
    const MIN_LEN: usize = 53;

    /// The offset of the padding today.
    const PADDING: usize = 37;

    /// The offset of the padding before `M`: behind the queues of the calls, for the alignment of what follows.
    const OLD_PADDING: usize = 53;

    /// Reads the reply of a server of this version: what is missing at the end is 0. The layout before `M` is as
    /// OpenAFS's rx.h declares it; no such server has been seen.
    pub fn parse(body: &[u8], version: DebugVersion) -> Result<Self, PacketError> {
        let body = at_least(body, Self::MIN_LEN)?;
        if version.has(DebugVersion::ALIGNED_CONNECTIONS) {
            return Ok(Self::take(&mut &body[..]));
        }
        let (packed, rest) = body.split_at(Self::OLD_PADDING);
        let (padding, rest) = rest.split_at(rest.len().min(3));
        let mut today = packed[..Self::PADDING].to_vec();
        today.extend_from_slice(padding);
        today.resize(Self::PADDING + 3, 0);
        today.extend_from_slice(&packed[Self::PADDING..]);
        today.extend_from_slice(rest);
        Ok(Self::take(&mut &today[..]))
    }

    /// Appends the reply's body, in the layout of this version, to `out`.
    pub fn encode(&self, version: DebugVersion, out: &mut Vec<u8>) {
        let start = out.len();
        self.put(out);
        if version.has(DebugVersion::ALIGNED_CONNECTIONS) {
            return;
        }
        // The three bytes move behind the calls, and the record has one spare word less.
        out[start + Self::PADDING..start + Self::OLD_PADDING + 3].rotate_left(3);
        let len = match version.has(DebugVersion::SECURITY_STATS) {
            true => Self::LEN - 4,
            false => Self::OLD_PADDING + 3,
        };
        out.truncate(start + len);
    }

    /// The record that stands behind the last connection.
    pub fn end() -> Self {
        Self { cid: Self::END, ..Self::default() }
    }

    /// True if this is no connection but the end of the list.
    pub fn is_end(&self) -> bool {
        self.cid == Self::END
    }
}

record! {
    /// Another host and port the server talks to: `rx_debugPeer`.
    DebugPeer {
        /// Its address, or [`DebugPeer::END`].
        host: Ipv4Addr
        /// Its port.
        port: u16
        /// Packet size of the interface, in bytes, header included.
        if_mtu: u16
        /// The time when it was last used. Observed: 1.8.9 sends 0.
        idle_when: u32
        /// Connections to it, and other uses.
        ref_count: u16
        /// Obsolete.
        burst_size: u8
        /// Obsolete.
        burst: u8
        /// Obsolete.
        burst_wait: Clock
        /// Smoothed round trip time, in eighths of a millisecond.
        rtt: i32
        /// Its deviation, in quarters of a millisecond.
        rtt_dev: i32
        /// Retransmission timeout. Observed: 1.8.9 sends 0.
        timeout: Clock
        /// Packets sent.
        n_sent: i32
        /// Packets sent again.
        re_sends: i32
        /// Obsolete: how far packets came out of order. Observed: 1.8.9 sends 0.
        in_packet_skew: i32
        /// Obsolete: the same, as the peer says.
        out_packet_skew: i32
        /// Obsolete.
        rate_flag: i32
        /// Packet size agreed with the peer, in bytes, header included.
        nat_mtu: u16
        /// Largest packet the peer takes, in bytes, header included.
        max_mtu: u16
        /// Most subpackets in a jumbogram that the peer takes.
        max_dgram_packets: u16
        /// The same for the interface.
        if_dgram_packets: u16
        /// Packet size in use, in bytes, header included.
        mtu: u16
        /// Congestion window in packets, as the last call left it.
        cwind: u16
        /// Subpackets in a jumbogram, in use.
        n_dgram_packets: u16
        /// Counts the changes of the congestion window.
        congest_seq: u16
        /// Bytes sent.
        bytes_sent: u64
        /// Bytes received.
        bytes_received: u64
        /// Unused.
        sparel: [i32; 10]
    }
}

impl DebugPeer {
    /// The `host` that ends the list of peers.
    pub const END: Ipv4Addr = Ipv4Addr::BROADCAST;

    /// Address, port and packet size: less says nothing.
    const MIN_LEN: usize = 8;

    /// Reads a reply; what is missing at the end is 0.
    pub fn parse(body: &[u8]) -> Result<Self, PacketError> {
        Ok(Self::take(&mut at_least(body, Self::MIN_LEN)?))
    }

    /// Appends the reply's body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    /// The record that stands behind the last peer.
    pub fn end() -> Self {
        Self { host: Self::END, ..Self::default() }
    }

    /// True if this is no peer but the end of the list.
    pub fn is_end(&self) -> bool {
        self.host == Self::END
    }
}

record! {
    /// The whole endpoint's counters since its start: `rx_statistics`. Counters wrap at 2³².
    RxStatistics {
        /// Packet buffers asked for.
        packet_requests: i32
        /// Times there was none to receive into.
        receive_pkt_alloc_failures: i32
        /// Times there was none to send from.
        send_pkt_alloc_failures: i32
        /// Times there was none for ACKs and the like.
        special_pkt_alloc_failures: i32
        /// True if the socket got a large buffer.
        socket_greedy: i32
        /// Datagrams too short to be packets.
        bogus_packet_on_read: i32
        /// The sender of the last of those.
        bogus_host: i32
        /// Reads that found no packet.
        no_packet_on_read: i32
        /// Packets dropped for lack of buffers.
        no_packet_buffers_on_read: i32
        /// Waits for a packet or a timer.
        selects: i32
        /// Waits while sending.
        send_selects: i32
        /// Packets received, by type.
        packets_read: [i32; PACKET_TYPES]
        /// DATA packets received, each once.
        data_packets_read: i32
        /// ACKs received.
        ack_packets_read: i32
        /// DATA packets received again.
        dup_packets_read: i32
        /// DATA packets that made no sense.
        spurious_packets_read: i32
        /// Packets sent, by type.
        packets_sent: [i32; PACKET_TYPES]
        /// ACKs sent.
        ack_packets_sent: i32
        /// Pings sent.
        ping_packets_sent: i32
        /// ABORTs sent.
        abort_packets_sent: i32
        /// BUSYs sent.
        busy_packets_sent: i32
        /// DATA packets sent, each once.
        data_packets_sent: i32
        /// DATA packets sent again.
        data_packets_re_sent: i32
        /// Those of them that an ACK called for.
        data_packets_pushed: i32
        /// Acknowledged packets met when sending.
        ignore_acked_packet: i32
        /// Sum of all round trips measured.
        total_rtt: Clock
        /// The shortest.
        min_rtt: Clock
        /// The longest.
        max_rtt: Clock
        /// The number of them.
        n_rtt_samples: i32
        /// Server connections.
        n_server_conns: i32
        /// Client connections.
        n_client_conns: i32
        /// Peers.
        n_peer_structs: i32
        /// Calls, free ones included.
        n_call_structs: i32
        /// Free calls.
        n_free_call_structs: i32
        /// Sends that the system refused.
        net_send_failures: i32
        /// Errors that end the program.
        fatal_errors: i32
        /// Packets dropped as their call dallies.
        ignore_packet_dally: i32
        /// Times there was no continuation buffer to receive into.
        receive_cbuf_pkt_alloc_failures: i32
        /// Times there was none to send from.
        send_cbuf_pkt_alloc_failures: i32
        /// Calls refused as there were too many.
        n_busies: i32
        /// Unused.
        spares: [i32; 4]
    }
}

impl RxStatistics {
    /// Reads a reply of at least one word; what is missing at the end is 0. Servers of another version may send less or
    /// more than [`RxStatistics::LEN`].
    pub fn parse(body: &[u8]) -> Result<Self, PacketError> {
        Ok(Self::take(&mut at_least(body, 4)?))
    }

    /// Appends the reply's body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
    }
}

fn at_least(body: &[u8], needed: usize) -> Result<&[u8], PacketError> {
    match body.len() < needed {
        true => Err(PacketError::Truncated { needed, found: body.len() }),
        false => Ok(body),
    }
}

#[cfg(test)]
mod tests;
