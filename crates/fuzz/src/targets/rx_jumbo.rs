//! A DATA datagram, split: numbers go on by one, no part is longer than it may be, and no byte comes out twice.

use crate::shape::Shape;
use bytes::Bytes;
use rx_proto::jumbo::{JUMBO_PAYLOAD_LEN, Subpackets};
use rx_proto::packet::{Flags, HEADER_LEN, Header};

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Ok(header) = Header::parse(input) else { return Shape::EMPTY.feature() };
    let body = &input[HEADER_LEN..];
    let parts: Vec<_> = Subpackets::new(header, Bytes::copy_from_slice(body)).collect();
    let mut expected = (header.seq, header.serial);
    let mut at = 0;
    for (n, (part, payload)) in parts.iter().enumerate() {
        assert_eq!((part.seq, part.serial), expected);
        expected = (part.seq.plus(1), part.serial.next());
        assert_eq!(part.is_from_client(), header.is_from_client());
        assert!(!part.flags.contains(Flags::JUMBO));
        assert!(payload.len() == JUMBO_PAYLOAD_LEN || n == parts.len() - 1);
        assert_eq!(payload[..], body[at..at + payload.len()]);
        at += payload.len() + 4;
    }
    assert!(parts.len() <= 1 + body.len() / (JUMBO_PAYLOAD_LEN + 4));
    let last = parts.last().map_or(usize::MAX, |(_, payload)| payload.len());
    let is_whole = at >= body.len() + 4;
    Shape::EMPTY
        .with_count(parts.len())
        .with(u64::from(is_whole))
        .with_count(last)
        .with(u64::from(header.flags.0 & 0x2f))
        .feature()
}
