//! The body of an ACK, as both forms of table: every entry that the table speaks of can be asked for, none beyond, and what
//! we would write for a plain one reads back. The ranges of our own kind: in bounds, and as written.

use crate::shape::Shape;
use rx_proto::ack::{Ack, AckFields, Described, MAX_TABLE};
use rx_proto::ids::Seq;
use std::ops::Range;

/// Most packets that any table describes: eight bits of 256 octets.
const MAX_STRIPED: u32 = 2048;

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let shape = Shape::EMPTY.with(read(input, false)).with(read(input, true));
    if let Ok(ack) = Ack::parse(input, false) {
        write_back(&ack);
    }
    shape.feature()
}

fn read(body: &[u8], striped: bool) -> u64 {
    let Ok(ack) = Ack::parse(body, striped) else { return 1 };
    let len = ack.table.len();
    assert!(len <= MAX_STRIPED && (striped || len as usize <= MAX_TABLE));
    assert_eq!(ack.table.is_empty(), len == 0);
    let received = (0..len).filter(|i| ack.table.is_received(*i).expect("it speaks of it")).count();
    assert!(
        [len, len.saturating_add(1), 256.max(len), u32::MAX]
            .iter()
            .all(|i| ack.table.is_received(*i).is_none())
    );
    let trailer = ack.trailer;
    let (ranges, reach) = read_ranges(&ack);
    Shape::EMPTY
        .with_count(ranges)
        .with(u64::from(reach))
        .with(u64::from(ack.reason.0.min(10)))
        .with_count(len as usize)
        .with_count(received)
        .with(u64::from(trailer.max_packet_len.is_some()) + u64::from(trailer.max_jumbo.is_some()))
        .with(u64::from(trailer.announcement.is_some()))
        .with(ack.first.cmp(&ack.previous) as u64)
        .feature()
}

/// Returns the number of ranges, and whether the ACK describes all packets.
fn read_ranges(ack: &Ack<'_>) -> (usize, bool) {
    assert!(ack.has_ranges() || ack.ranges().count() == 0);
    let described = ack.described();
    for range in ack.ranges() {
        assert!(ack.first <= range.start && range.start < range.end);
        assert!(described.contains(range.start) && described.contains(Seq(range.end.0 - 1)));
    }
    (ack.ranges().count(), described == Described::ALL)
}

/// The ranges, in order and joined as our own side has them.
fn ascending(ack: &Ack<'_>) -> Vec<Range<Seq>> {
    let mut ranges: Vec<_> = ack.ranges().collect();
    ranges.sort_by_key(|r| r.start);
    let mut joined: Vec<Range<Seq>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

fn write_ranges_back(fields: AckFields, ranges: &[Range<Seq>]) {
    let Some(last) = ranges.last() else { return };
    let fields = AckFields { previous: Seq(last.end.0 - 1), ..fields };
    for limit in [2, 32, 100_000] {
        let mut body = Vec::new();
        fields.encode_ranges(ranges.iter().cloned(), limit, &mut body);
        let again = Ack::parse(&body, false).expect("we read what we write");
        assert!(again.has_ranges());
        let read = ascending(&again);
        if again.described() == Described::ALL {
            assert_eq!(read, ranges);
        } else {
            let holds = |r: &Range<Seq>| ranges.iter().any(|w| w.start <= r.start && r.end <= w.end);
            assert!(read.iter().all(holds));
        }
    }
}

fn write_back(ack: &Ack<'_>) {
    let fields = AckFields {
        first: ack.first,
        previous: ack.previous,
        serial: ack.serial,
        reason: ack.reason,
        window: ack.trailer.window.unwrap_or(1),
        max_packet_len: ack.trailer.max_packet_len.unwrap_or(1444),
        natural_packet_len: ack.trailer.natural_packet_len.unwrap_or(1444),
    };
    write_ranges_back(fields, &ascending(ack));
    let table: Vec<bool> = (0..ack.table.len()).filter_map(|i| ack.table.is_received(i)).collect();
    for announce in [false, true] {
        let mut body = Vec::new();
        fields.encode(table.iter().copied(), announce, &mut body);
        let again = Ack::parse(&body, false).expect("we read what we write");
        assert_eq!((again.first, again.previous, again.serial), (ack.first, ack.previous, ack.serial));
        assert_eq!((again.reason, again.trailer.window), (ack.reason, Some(fields.window)));
        assert_eq!(again.trailer.announcement.is_some(), announce);
        assert_eq!(again.table.len() as usize, table.len());
        assert!((0..again.table.len()).zip(&table).all(|(i, was)| again.table.is_received(i) == Some(*was)));
    }
}
