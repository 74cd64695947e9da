//! The body of an ACK packet: what has been received, and in its trailer what the receiver can take (Rx notes 7). Reads
//! every form that peers are known to send, the striped table of "extended SACK" included, and writes the plain one.
//! When to send one is decided in `receive`; what to make of one in `transmit`.

use crate::ids::{Seq, Serial};
use crate::packet::PacketError;
use std::fmt;

/// The fixed part before the table, in bytes.
pub const ACK_FIXED_LEN: usize = 18;

/// Padding between table and trailer. Always there: it is not an alignment.
const PAD_LEN: usize = 3;

/// Most packets that a plain table describes: its count is one byte.
pub const MAX_TABLE: usize = 255;

macro_rules! reasons {
    ($($(#[$m:meta])* $number:literal $name:ident)*) => {
        /// Why an ACK was sent. An open set.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct AckReason(pub u8);

        impl AckReason {
            $($(#[$m])* pub const $name: Self = Self($number);)*
        }

        impl fmt::Debug for AckReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($number => f.write_str(stringify!($name)),)*
                    n => write!(f, "reason {n}"),
                }
            }
        }
    };
}

reasons! {
    /// A packet asked for it.
    1 REQUESTED
    /// A packet came twice.
    2 DUPLICATE
    /// A packet is missing before one that came.
    3 OUT_OF_SEQUENCE
    /// A packet beyond the window came and was dropped.
    4 EXCEEDS_WINDOW
    /// Out of buffers; a packet was dropped.
    5 NOSPACE
    /// Are you there? Must be answered.
    6 PING
    /// Yes; `serial` names the ping.
    7 PING_RESPONSE
    /// The delayed-ACK timer ran out, or the window moved.
    8 DELAY
    /// Everything so far has come, and none of the others.
    9 IDLE
}

/// What a peer of our own says in the fifth word of the trailer (docs/rx-extensions.md): the letters "afr", then eight
/// capability bits. Stock peers look at four words and ignore it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement(u8);

impl Announcement {
    const MAGIC: u32 = 0x6166_7200;

    /// The sender takes windows beyond 255 packets, acknowledges by our own rule and keeps what it has soft-acknowledged.
    pub const LARGE_WINDOWS: Self = Self(0x01);

    fn from_word(word: u32) -> Option<Self> {
        (word & 0xffff_ff00 == Self::MAGIC).then_some(Self(word as u8))
    }

    const fn to_word(self) -> u32 {
        Self::MAGIC | self.0 as u32
    }
}

/// The trailer: what the sender of the ACK can take. A word that was absent is `None`; presence is told by length alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trailer {
    /// Largest packet it can receive, Rx header included, in bytes.
    pub max_packet_len: Option<u32>,
    /// "Natural" packet size on this path, Rx header included, in bytes.
    pub natural_packet_len: Option<u32>,
    /// Receive window in packets, counted from `first`.
    pub window: Option<u32>,
    /// Most subpackets in one jumbogram; 0 from kernels that do path MTU discovery.
    pub max_jumbo: Option<u32>,
    /// Set when the sender is of our own kind.
    pub announcement: Option<Announcement>,
}

/// The table: which of the packets from `first` on have been received.
#[derive(Clone, Copy, Debug)]
pub struct AckTable<'a> {
    octets: &'a [u8],
    /// The octet for offset 255, which only a striped table has.
    last_octet: Option<u8>,
    described: u32,
    striped: bool,
}

impl<'a> AckTable<'a> {
    /// Of how many packets from `first` on the table speaks.
    pub const fn len(&self) -> u32 {
        self.described
    }

    /// Whether it speaks of none.
    pub const fn is_empty(&self) -> bool {
        self.described == 0
    }

    /// Whether packet `first + offset` has been received; `None` if the table does not speak of it: then it is
    /// neither lost nor received.
    pub fn is_received(&self, offset: u32) -> Option<bool> {
        if offset >= self.described {
            return None;
        }
        let (octet, bit) = if self.striped { (offset % 256, offset / 256) } else { (offset, 0) };
        let octet = if octet == 255 { self.last_octet? } else { *self.octets.get(octet as usize)? };
        Some(octet >> bit & 1 == 1)
    }
}

/// The body of an ACK.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// Every packet before this one has been received for good.
    pub first: Seq,
    /// The last, or the highest, packet received. Unreliable: for the reorder check alone (Rx notes 17.6).
    pub previous: Seq,
    /// The transmission that prompted this ACK, or [`Serial::NONE`].
    pub serial: Serial,
    /// Why it was sent.
    pub reason: AckReason,
    /// What has been received from `first` on.
    pub table: AckTable<'a>,
    /// What the sender can take.
    pub trailer: Trailer,
}

impl<'a> Ack<'a> {
    /// Reads an ACK's body. `striped` is the header's EXTENDED_SACK flag. Bytes behind the fields are ignored: MTU probes
    /// are ACKs padded with up to 16 kB.
    pub fn parse(body: &'a [u8], striped: bool) -> Result<Self, PacketError> {
        let Some(fixed) = body.first_chunk::<ACK_FIXED_LEN>() else {
            return Err(PacketError::Truncated { needed: ACK_FIXED_LEN, found: body.len() });
        };
        let word = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let count = usize::from(fixed[17]);
        let rest = &body[ACK_FIXED_LEN..];
        // Some peers say more than they send: take what is there (Rx notes 7.3).
        let octets = &rest[..count.min(rest.len())];
        let pads = rest.get(count..count + PAD_LEN);
        let after = rest.get(count + PAD_LEN..).unwrap_or(&[]);
        let trailer_word =
            |i: usize| after.get(i * 4..i * 4 + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        let (first, previous) = (Seq(word(4)), Seq(word(8)));
        let last_octet = if striped && count == MAX_TABLE { pads.map(|p| p[0]) } else { None };
        let described = if striped && count == MAX_TABLE && last_octet.is_some() {
            previous.after(first).map_or(0, |n| n.saturating_add(1)).min(8 * 256)
        } else {
            octets.len() as u32
        };
        Ok(Self {
            first,
            previous,
            serial: Serial(word(12)),
            reason: AckReason(fixed[16]),
            table: AckTable { octets, last_octet, described, striped: last_octet.is_some() },
            trailer: Trailer {
                max_packet_len: trailer_word(0),
                natural_packet_len: trailer_word(1),
                window: trailer_word(2),
                max_jumbo: trailer_word(3),
                announcement: trailer_word(4).and_then(Announcement::from_word),
            },
        })
    }
}

/// What our own side puts in an ACK.
#[derive(Clone, Copy, Debug)]
pub struct AckFields {
    /// See [`Ack::first`].
    pub first: Seq,
    /// The highest packet received; never falls.
    pub previous: Seq,
    /// See [`Ack::serial`].
    pub serial: Serial,
    /// See [`Ack::reason`].
    pub reason: AckReason,
    /// Our receive window in packets, at least 1.
    pub window: u32,
    /// The largest packet we take, header included.
    pub max_packet_len: u32,
    /// The packet size we would use on this path ourselves.
    pub natural_packet_len: u32,
}

impl AckFields {
    /// Appends the body to `out`: fields, `table` (one entry a packet from `first` on, at most 255), pads, trailer. We take
    /// no jumbograms; with `announce` the fifth word says what we are.
    pub fn encode(&self, table: impl ExactSizeIterator<Item = bool>, announce: bool, out: &mut Vec<u8>) {
        let count = table.len().min(MAX_TABLE);
        out.extend_from_slice(&[0; 4]); // bufferSpace, maxSkew: obsolete
        out.extend_from_slice(&self.first.0.to_be_bytes());
        out.extend_from_slice(&self.previous.0.to_be_bytes());
        out.extend_from_slice(&self.serial.0.to_be_bytes());
        out.push(self.reason.0);
        out.push(count as u8);
        out.extend(table.take(count).map(u8::from));
        out.extend_from_slice(&[0; PAD_LEN]);
        let words = [
            self.max_packet_len,
            self.natural_packet_len,
            self.window,
            1,
            Announcement::LARGE_WINDOWS.to_word(),
        ];
        for word in &words[..if announce { 5 } else { 4 }] {
            out.extend_from_slice(&word.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
    }

    /// Rx notes 7: captured from OpenAFS 1.8.9 on loopback.
    #[test]
    fn a_captured_ack_reads_as_the_notes_say() {
        let body =
            hex("0000 0000 00000002 00000001 00000000 08 00 000000 0000163c 000005a4 00000020 00000004");
        let ack = Ack::parse(&body, false).unwrap();
        assert_eq!((ack.first, ack.previous, ack.serial), (Seq(2), Seq(1), Serial::NONE));
        assert_eq!(ack.reason, AckReason::DELAY);
        assert!(ack.table.is_empty());
        let expected = Trailer {
            max_packet_len: Some(5692),
            natural_packet_len: Some(1444),
            window: Some(32),
            max_jumbo: Some(4),
            announcement: None,
        };
        assert_eq!(ack.trailer, expected);
    }

    #[test]
    fn what_we_write_reads_back_and_announces_us() {
        let fields = AckFields {
            first: Seq(10),
            previous: Seq(14),
            serial: Serial(99),
            reason: AckReason::OUT_OF_SEQUENCE,
            window: 3000,
            max_packet_len: 16384,
            natural_packet_len: 1444,
        };
        let mut body = Vec::new();
        fields.encode([false, true, true, false, true].into_iter(), true, &mut body);
        body.resize(9000, 0); // as an MTU probe
        let ack = Ack::parse(&body, false).unwrap();
        let table: Vec<_> = (0..6).map(|i| ack.table.is_received(i)).collect();
        assert_eq!(table, [Some(false), Some(true), Some(true), Some(false), Some(true), None]);
        assert_eq!(ack.trailer.window, Some(3000));
        assert_eq!(ack.trailer.announcement, Some(Announcement::LARGE_WINDOWS));
    }

    #[test]
    fn every_truncation_is_an_answer_and_not_a_panic() {
        let mut body = hex("0000 0000 00000002 00000041 00000000 03 ff");
        body.resize(18 + 255 + 3 + 20, 1);
        for len in 0..body.len() {
            for striped in [false, true] {
                let parsed = Ack::parse(&body[..len], striped);
                assert_eq!(parsed.is_err(), len < ACK_FIXED_LEN);
                if let Ok(ack) = parsed {
                    (0..3000).for_each(|i| _ = ack.table.is_received(i));
                }
            }
        }
    }

    /// The layout is from public mails alone (Rx notes 9), no peer sends it to us yet.
    #[test]
    fn a_striped_table_is_read() {
        let mut body = hex("0000 0000 00000001 00000200 00000000 03 ff");
        let mut table = vec![1u8; 256];
        table[7] |= 2; // offset 256 + 7
        table[255] = 2; // offset 511, not 255
        body.extend_from_slice(&table[..255]);
        body.extend_from_slice(&[table[255], 4, 0]);
        let ack = Ack::parse(&body, true).unwrap();
        assert_eq!(ack.table.len(), 512);
        assert_eq!(ack.table.is_received(254), Some(true));
        assert_eq!(ack.table.is_received(255), Some(false));
        assert_eq!(ack.table.is_received(256), Some(false));
        assert_eq!(ack.table.is_received(263), Some(true));
        assert_eq!(ack.table.is_received(511), Some(true));
        assert_eq!(ack.table.is_received(512), None);
    }
}
