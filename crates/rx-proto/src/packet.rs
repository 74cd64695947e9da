//! The 28-byte header that opens every Rx packet, the packet types and the flags (Rx notes 2 to 4). Bodies are parsed
//! elsewhere: see `ack`, `jumbo`, `debug` and the security classes.

use crate::ids::{CallNumber, Channel, ConnectionId, Epoch, SecurityIndex, Seq, Serial, ServiceId};
use std::fmt;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 28;

/// The UDP payload of one packet that every Rx peer accepts, in bytes, header included: 1500 less 56 (Rx notes 8).
pub const BASE_PACKET_LEN: usize = 1444;

/// The largest packet that Rx allows, header included (Rx notes 8).
pub const MAX_PACKET_LEN: usize = 16384;

/// The smallest packet size a peer may ask for: 576 less 56 (Rx notes 8).
pub const MIN_PACKET_LEN: usize = 520;

/// A datagram that is not an Rx packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketError {
    /// Shorter than what it must hold.
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        found: usize,
    },
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, found } => {
                write!(f, "packet of {found} bytes is too short: {needed} needed")
            }
        }
    }
}

impl std::error::Error for PacketError {}

macro_rules! packet_types {
    ($($(#[$m:meta])* $number:literal $name:ident)*) => {
        /// The type of a packet. An open set: unknown types still print and round-trip.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct PacketType(pub u8);

        impl PacketType {
            $($(#[$m])* pub const $name: Self = Self($number);)*

            /// The name in the Rx notes, or `None` for a type without one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

packet_types! {
    /// Bytes of a call.
    1 DATA
    /// Tells what has been received of a call, and how much more may be sent.
    2 ACK
    /// The channel still works on an older call.
    3 BUSY
    /// The end of a call or of a connection, with a code.
    4 ABORT
    /// Everything of a call is acknowledged. Accepted, not sent.
    5 ACKALL
    /// A server asks who the client is.
    6 CHALLENGE
    /// The answer to that.
    7 RESPONSE
    /// rxdebug's questions and answers.
    8 DEBUG
    /// A placeholder; ignored.
    9 PARAMS
    /// Asks for a version text, or answers; also the NAT ping.
    13 VERSION
    /// A part of a DATA packet, only between endpoints of our own (docs/rx-extensions.md).
    97 PIECE
}

impl fmt::Debug for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "type {}", self.0),
        }
    }
}

/// The header's flag byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The sender is the client end of the connection.
    pub const CLIENT_INITIATED: Self = Self(0x01);
    /// The sender wants an ACK at once (DATA and ACK).
    pub const REQUEST_ACK: Self = Self(0x02);
    /// The last DATA packet of its direction.
    pub const LAST_PACKET: Self = Self(0x04);
    /// ACK: the acknowledgement table is striped (Rx notes 9). Parsed, never sent: Linux 6.1 aborts on such tables.
    pub const EXTENDED_SACK: Self = Self(0x08);
    /// DATA: another subpacket follows in this datagram.
    pub const JUMBO: Self = Self(0x20);
    /// ACK: OpenAFS sets it on each; it has no meaning today.
    pub const SLOW_START_OK: Self = Self(0x20);

    /// True if all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and those.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These without those.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}

/// A packet's header. Fields are as on the wire, the cid split into connection and channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The client instance that made the connection.
    pub epoch: Epoch,
    /// The connection.
    pub connection: ConnectionId,
    /// The channel of the connection.
    pub channel: Channel,
    /// The call on the channel; 0 for the whole connection.
    pub call: CallNumber,
    /// DATA: which packet of the call; else 0.
    pub seq: Seq,
    /// The number of the sender's transmission.
    pub serial: Serial,
    /// The type.
    pub kind: PacketType,
    /// Flags.
    pub flags: Flags,
    /// A byte that Rx hands to the application unseen (Rx notes 12).
    pub user_status: u8,
    /// The security class of the connection.
    pub security: SecurityIndex,
    /// rxkad's header checksum, or rxgk's key number; else 0.
    pub checksum: u16,
    /// The service that is called.
    pub service: ServiceId,
}

impl Header {
    /// Reads the header of a packet; what follows its 28 bytes is the body.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketError> {
        let Some(h) = packet.first_chunk::<HEADER_LEN>() else {
            return Err(PacketError::Truncated { needed: HEADER_LEN, found: packet.len() });
        };
        let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        Ok(Self {
            epoch: Epoch(word(0)),
            connection: ConnectionId::of(word(4)),
            channel: Channel::of(word(4)),
            call: CallNumber(word(8)),
            seq: Seq(word(12)),
            serial: Serial(word(16)),
            kind: PacketType(h[20]),
            flags: Flags(h[21]),
            user_status: h[22],
            security: SecurityIndex(h[23]),
            checksum: u16::from_be_bytes([h[24], h[25]]),
            service: ServiceId(u16::from_be_bytes([h[26], h[27]])),
        })
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut h = [0; HEADER_LEN];
        h[0..4].copy_from_slice(&self.epoch.0.to_be_bytes());
        h[4..8].copy_from_slice(&self.connection.with_channel(self.channel).to_be_bytes());
        h[8..12].copy_from_slice(&self.call.0.to_be_bytes());
        h[12..16].copy_from_slice(&self.seq.0.to_be_bytes());
        h[16..20].copy_from_slice(&self.serial.0.to_be_bytes());
        h[20] = self.kind.0;
        h[21] = self.flags.0;
        h[22] = self.user_status;
        h[23] = self.security.0;
        h[24..26].copy_from_slice(&self.checksum.to_be_bytes());
        h[26..28].copy_from_slice(&self.service.0.to_be_bytes());
        h
    }

    /// True if the sender is the connection's client.
    pub const fn is_from_client(&self) -> bool {
        self.flags.contains(Flags::CLIENT_INITIATED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The DATA packet of Rx notes 2, captured from OpenAFS 1.8.9: service 42, call 1, first packet.
    const CAPTURED: [u8; 28] = [
        0xaf, 0xd9, 0x1a, 0xe8, 0xe5, 0x67, 0x6e, 0x64, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 5, 0, 0, 0, 0,
        0, 0x2a,
    ];

    #[test]
    fn a_captured_header_reads_and_writes_back() {
        let header = Header::parse(&CAPTURED).unwrap();
        assert_eq!(header.kind, PacketType::DATA);
        assert_eq!(header.flags, Flags::CLIENT_INITIATED.with(Flags::LAST_PACKET));
        assert_eq!(header.service, ServiceId(42));
        assert_eq!(header.epoch, Epoch(0xafd9_1ae8));
        assert_eq!(header.to_bytes(), CAPTURED);
    }

    #[test]
    fn a_short_datagram_is_refused() {
        assert_eq!(Header::parse(&CAPTURED[..27]), Err(PacketError::Truncated { needed: 28, found: 27 }));
    }

    #[test]
    fn an_unknown_type_keeps_its_number() {
        let mut bytes = CAPTURED;
        bytes[20] = 77;
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(format!("{:?}", header.kind), "type 77");
        assert_eq!(header.to_bytes(), bytes);
    }
}
