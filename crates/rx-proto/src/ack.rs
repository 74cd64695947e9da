//! The body of an ACK packet: what has been received, and in its trailer what the receiver can take (Rx notes 7). Reads
//! every form that peers are known to send, the striped table of "extended SACK" included, and writes the plain one; to
//! peers of our own, ranges instead (docs/rx-extensions.md). When to send one is decided in `receive`; what to make of one
//! in `transmit`.

use crate::ids::{Seq, Serial};
use crate::packet::PacketError;
use std::fmt;
use std::ops::Range;

/// The fixed part before the table, in bytes.
pub const ACK_FIXED_LEN: usize = 18;

/// Padding between table and trailer. Always there: it is not an alignment.
const PAD_LEN: usize = 3;

/// Length of a range, in bytes: a gap and a length.
pub const RANGE_LEN: usize = 4;

/// Most packets that a plain table describes: its count is one byte.
pub const MAX_TABLE: usize = 255;

macro_rules! reasons {
    ($($(#[$m:meta])* $number:literal $name:ident)*) => {
        /// The reason for which an ACK was sent. An open set.
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
    /// Asks whether the peer is there. Must be answered.
    6 PING
    /// Yes; `serial` names the ping.
    7 PING_RESPONSE
    /// The delayed-ACK timer ran out, or the window moved.
    8 DELAY
    /// Everything so far has come, and none of the others.
    9 IDLE
}

/// The capabilities of a peer of our own, in the fifth word of the trailer (docs/rx-extensions.md): the letters "afr",
/// then eight capability bits. Stock peers look at four words and ignore it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement(u8);

impl Announcement {
    const MAGIC: u32 = 0x6166_7200;

    /// The sender takes windows beyond 255 packets, acknowledges by our own rule and keeps what it has soft-acknowledged.
    pub const LARGE_WINDOWS: Self = Self(0x01);

    /// The sender reads ranges behind this word, and may be sent ACKs that have them instead of a table.
    pub const RANGES: Self = Self(0x02);

    /// The sender puts DATA packets together that come in pieces.
    pub const PIECES: Self = Self(0x04);

    /// The announcement of this program.
    const OURS: Self = Self(Self::LARGE_WINDOWS.0 | Self::RANGES.0 | Self::PIECES.0);

    /// True if all of `other` is said.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

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
    /// The number of packets, from `first` on, that the table describes.
    pub const fn len(&self) -> u32 {
        self.described
    }

    /// True if it speaks of none.
    pub const fn is_empty(&self) -> bool {
        self.described == 0
    }

    /// Tells whether packet `first + offset` has been received; `None` if the table does not speak of it: then
    /// it is neither lost nor received.
    pub fn is_received(&self, offset: u32) -> Option<bool> {
        if offset >= self.described {
            return None;
        }
        let (octet, bit) = if self.striped { (offset % 256, offset / 256) } else { (offset, 0) };
        let octet = if octet == 255 { self.last_octet? } else { *self.octets.get(octet as usize)? };
        Some(octet >> bit & 1 == 1)
    }
}

/// The ranges of an ACK between peers of our own: pairs of a gap and a length, of 16 bits each.
#[derive(Clone, Copy, Debug)]
struct RangeList<'a> {
    /// The packets from the highest one received downwards.
    newest: &'a [u8],
    /// The packets from `first` upwards. Empty when the others go down to there.
    oldest: &'a [u8],
}

impl<'a> RangeList<'a> {
    /// Reads what stands behind the announcement. `None` if there are no ranges: padding is a count of none.
    fn parse(bytes: &'a [u8]) -> Result<Option<Self>, PacketError> {
        let Some(counts) = bytes.first_chunk::<4>() else { return Ok(None) };
        let count = |at: usize| usize::from(u16::from_be_bytes([counts[at], counts[at + 1]])) * RANGE_LEN;
        let (newest, oldest, bytes) = (count(0), count(2), &bytes[4..]);
        if newest + oldest == 0 {
            return Ok(None);
        }
        if newest + oldest > bytes.len() {
            // A part of it would read as if the rest were missing.
            return Err(PacketError::Truncated { needed: newest + oldest, found: bytes.len() });
        }
        let (newest, rest) = bytes.split_at(newest);
        Ok(Some(Self { newest, oldest: &rest[..oldest] }))
    }
}

/// Gap and length of each entry.
fn pairs(entries: &[u8]) -> impl Iterator<Item = (u32, u32)> + '_ {
    entries
        .chunks_exact(RANGE_LEN)
        .map(|e| (u32::from(u16::from_be_bytes([e[0], e[1]])), u32::from(u16::from_be_bytes([e[2], e[3]]))))
}

/// The packets that an ACK describes: all from its `first` up to a first limit, and all from a second limit on. A packet that
/// the ACK describes and does not list as received is missing. The ACK says nothing about other packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Described {
    until: Seq,
    from: Seq,
}

impl Described {
    /// Nothing is said of any packet.
    pub const NOTHING: Self = Self { until: Seq(0), from: Seq(u32::MAX) };
    /// All are spoken of.
    pub const ALL: Self = Self { until: Seq(u32::MAX), from: Seq(0) };

    /// True if it speaks of this packet, which is not before `first`.
    pub fn contains(self, seq: Seq) -> bool {
        seq < self.until || seq >= self.from
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
    /// The reason for which it was sent.
    pub reason: AckReason,
    /// The packets that have been received, from `first` on.
    pub table: AckTable<'a>,
    /// The sender's limits: what it can take.
    pub trailer: Trailer,
    ranges: Option<RangeList<'a>>,
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
        let announcement = trailer_word(4).and_then(Announcement::from_word);
        let ranges = match announcement {
            Some(a) if a.has(Announcement::RANGES) => RangeList::parse(after.get(20..).unwrap_or(&[]))?,
            _ => None,
        };
        Ok(Self {
            ranges,
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
                announcement,
            },
        })
    }

    /// True if it tells by ranges what was received: then its table is of no account.
    pub const fn has_ranges(&self) -> bool {
        self.ranges.is_some()
    }

    /// The ranges: newest first down to a break, then from the oldest upwards. None begins before `first`; a list that
    /// leads below it, or beyond the numbers there are, ends there.
    pub fn ranges(&self) -> impl Iterator<Item = Range<Seq>> + 'a {
        let first = self.first.0;
        let list = self.ranges.unwrap_or(RangeList { newest: &[], oldest: &[] });
        let newest = pairs(list.newest).scan(self.previous.0.checked_add(1), move |cursor, (gap, len)| {
            let end = cursor.take()?.checked_sub(gap)?;
            let start = end.checked_sub(len).filter(|start| *start >= first)?;
            *cursor = Some(start);
            Some(Seq(start)..Seq(end))
        });
        let oldest = pairs(list.oldest).scan(Some(first), |cursor, (gap, len)| {
            let start = cursor.take()?.checked_add(gap)?;
            let end = start.checked_add(len)?;
            *cursor = Some(end);
            Some(Seq(start)..Seq(end))
        });
        newest.chain(oldest).filter(|range| !range.is_empty())
    }

    /// The packets that it describes.
    pub fn described(&self) -> Described {
        let Some(list) = self.ranges else {
            // A table that is not full ends with the last packet received: it speaks of all behind it too.
            let len = self.table.len();
            let is_full = len >= MAX_TABLE as u32;
            return if is_full {
                Described { until: self.first.plus(len), ..Described::NOTHING }
            } else {
                Described::ALL
            };
        };
        if list.oldest.is_empty() {
            return Described::ALL;
        }
        let reach = |entries| pairs(entries).map(|(gap, len)| gap + len).fold(0, u32::saturating_add);
        Described {
            until: self.first.plus(reach(list.oldest)),
            from: Seq(self.previous.0.saturating_add(1).saturating_sub(reach(list.newest))),
        }
    }
}

/// The content of an ACK of our own side.
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
        let words =
            [self.max_packet_len, self.natural_packet_len, self.window, 1, Announcement::OURS.to_word()];
        for word in &words[..if announce { 5 } else { 4 }] {
            out.extend_from_slice(&word.to_be_bytes());
        }
    }

    /// Appends the body to `out` for a peer that reads ranges: without a table, with at most `limit` entries for `ranges`.
    /// The ranges are ascending; the first begins at `first` or later, and the last ends behind `previous`. If there are
    /// more, half of the entries are the newest ranges, where losses show first, and half the oldest, where packets that were
    /// sent again arrive.
    pub fn encode_ranges(
        &self,
        ranges: impl DoubleEndedIterator<Item = Range<Seq>> + Clone,
        limit: usize,
        out: &mut Vec<u8>,
    ) {
        self.encode(std::iter::empty(), true, out);
        let limit = limit.clamp(2, usize::from(u16::MAX));
        let counts_at = out.len();
        out.extend_from_slice(&[0; 4]);
        let most = if ranges.clone().nth(limit).is_some() { limit / 2 } else { limit };
        let mut newest = Entries { out: &mut *out, left: most, count: 0 };
        let mut cursor = self.previous.plus(1);
        let is_whole = ranges.clone().rev().all(|range| {
            let gap = cursor.after(range.end).expect("ranges are ascending and end with the highest");
            cursor = range.start;
            newest.push(gap, range.end.0 - range.start.0)
        });
        let newest = newest.count;
        let mut oldest = Entries { out: &mut *out, left: limit / 2, count: 0 };
        if !is_whole {
            let mut cursor = self.first;
            let all = ranges.clone().all(|range| {
                let gap = range.start.after(cursor).expect("ranges are ascending and begin with the first");
                cursor = range.end;
                oldest.push(gap, range.end.0 - range.start.0)
            });
            if oldest.count == 0 && !all {
                oldest.push(0, 0); // says that the ones above are not all
            }
        }
        let oldest = oldest.count;
        if newest + oldest == 0 {
            out.truncate(counts_at);
        } else {
            out[counts_at..counts_at + 2].copy_from_slice(&newest.to_be_bytes());
            out[counts_at + 2..counts_at + 4].copy_from_slice(&oldest.to_be_bytes());
        }
    }
}

/// Entries of a list of ranges, as they are written.
struct Entries<'a> {
    out: &'a mut Vec<u8>,
    left: usize,
    count: u16,
}

impl Entries<'_> {
    /// Adds a range that follows the last after `gap`; what is longer than a field holds, in pieces. Returns whether it fits.
    fn push(&mut self, gap: u32, len: u32) -> bool {
        let (Ok(mut gap), mut len) = (u16::try_from(gap), len) else { return false };
        loop {
            if self.left == 0 {
                return false;
            }
            let piece = u16::try_from(len).unwrap_or(u16::MAX);
            self.out.extend_from_slice(&gap.to_be_bytes());
            self.out.extend_from_slice(&piece.to_be_bytes());
            (self.left, self.count) = (self.left - 1, self.count + 1);
            (gap, len) = (0, len - u32::from(piece));
            if len == 0 {
                return true;
            }
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
        assert_eq!(ack.trailer.announcement, Some(Announcement::OURS));
        assert!(!ack.has_ranges() && ack.described() == Described::ALL);
    }

    /// Writes ranges (first and last of each), and reads back what they and the ACK's scope are.
    fn through_the_wire(
        first: u32,
        ranges: &[(u32, u32)],
        limit: usize,
    ) -> (usize, Vec<(u32, u32)>, Described) {
        let previous = ranges.last().map_or(first - 1, |r| r.1);
        let fields = AckFields {
            first: Seq(first),
            previous: Seq(previous),
            serial: Serial(7),
            reason: AckReason::OUT_OF_SEQUENCE,
            window: 30_000,
            max_packet_len: 16384,
            natural_packet_len: 1444,
        };
        let mut body = Vec::new();
        fields.encode_ranges(ranges.iter().map(|&(s, e)| Seq(s)..Seq(e + 1)), limit, &mut body);
        let len = body.len();
        body.resize(len + 3000, 0); // as an MTU probe
        let ack = Ack::parse(&body, false).unwrap();
        assert_eq!((ack.previous, ack.trailer.window, ack.table.len()), (Seq(previous), Some(30_000), 0));
        assert_eq!(ack.has_ranges(), !ranges.is_empty());
        (len, ack.ranges().map(|r| (r.start.0, r.end.0 - 1)).collect(), ack.described())
    }

    const BARE: usize = ACK_FIXED_LEN + PAD_LEN + 20;

    #[test]
    fn ranges_read_back_newest_first_and_speak_of_all() {
        let (len, read, described) = through_the_wire(10, &[(12, 14), (17, 17), (300, 9000)], 32);
        assert_eq!((len, described), (BARE + 4 + 3 * RANGE_LEN, Described::ALL));
        assert_eq!(read, [(300, 9000), (17, 17), (12, 14)]);
        assert_eq!(through_the_wire(10, &[(10, 11)], 32).1, [(10, 11)], "what has come but is not read");
        let (len, read, described) = through_the_wire(10, &[], 32);
        assert_eq!((len, read.len(), described), (BARE, 0, Described::ALL), "all has come up to there");
    }

    #[test]
    fn too_many_ranges_are_told_from_both_ends() {
        let ranges: Vec<(u32, u32)> = (1..=100).map(|i| (10 * i, 10 * i + 5)).collect();
        let (len, read, described) = through_the_wire(8, &ranges, 6);
        assert_eq!(len, BARE + 4 + 6 * RANGE_LEN);
        assert_eq!(read, [(1000, 1005), (990, 995), (980, 985), (10, 15), (20, 25), (30, 35)]);
        assert_eq!(described, Described { until: Seq(36), from: Seq(980) });
        let speaks_of: Vec<bool> = [8, 35, 36, 979, 980, 5000].map(|s| described.contains(Seq(s))).to_vec();
        assert_eq!(speaks_of, [true, true, false, false, true, true]);
    }

    #[test]
    fn ranges_and_gaps_that_no_field_holds() {
        let (_, read, described) = through_the_wire(1, &[(2, 200_001)], 32);
        assert_eq!(read, [(134_467, 200_001), (68_932, 134_466), (3397, 68_931), (2, 3396)]);
        assert_eq!(described, Described::ALL);
        let (_, read, described) = through_the_wire(1, &[(2, 3), (90_000, 90_001)], 32);
        assert_eq!(read, [(90_000, 90_001), (2, 3)]);
        assert_eq!(described, Described { until: Seq(4), from: Seq(90_000) });
        let (_, read, described) = through_the_wire(1, &[(80_000, 80_001), (160_000, 160_001)], 32);
        assert_eq!(read, [(160_000, 160_001)]);
        assert_eq!(described, Described { until: Seq(1), from: Seq(160_000) });
    }

    #[test]
    fn ranges_are_read_only_from_who_reads_them_and_only_whole() {
        let fields = AckFields {
            first: Seq(5),
            previous: Seq(9),
            serial: Serial(0),
            reason: AckReason::DELAY,
            window: 30,
            max_packet_len: 1444,
            natural_packet_len: 1444,
        };
        let mut body = Vec::new();
        fields.encode_ranges([Seq(7)..Seq(10)].into_iter(), 32, &mut body);
        assert!(Ack::parse(&body, false).unwrap().has_ranges());
        assert!(Ack::parse(&body[..BARE + 7], false).is_err(), "a part would speak of what it has not");
        body[BARE - 1] = 1;
        assert!(!Ack::parse(&body, false).unwrap().has_ranges(), "LARGE_WINDOWS alone");
        // Gaps and lengths that lead out of the numbers end the list.
        body[BARE - 1] = 3;
        for (at, bytes) in [(4, [0xff, 0xff, 0, 1]), (4, [0, 1, 0xff, 0xff])] {
            body[BARE + at..BARE + at + 4].copy_from_slice(&bytes);
            assert_eq!(Ack::parse(&body, false).unwrap().ranges().count(), 0);
        }
        body[BARE..BARE + 4].copy_from_slice(&[0, 0, 0, 1]);
        body[4..8].copy_from_slice(&[0xff; 4]);
        assert_eq!(Ack::parse(&body, false).unwrap().ranges().count(), 0);
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
