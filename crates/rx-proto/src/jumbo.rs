//! Jumbograms: several DATA packets of one call in one datagram (Rx notes 8). Parsed, since peers send them before they
//! have seen our ACK that asks for none; never sent, since a lost fragment costs all of them.

use crate::packet::{Flags, Header};
use bytes::Bytes;

/// Payload of every subpacket but the last.
pub const JUMBO_PAYLOAD_LEN: usize = 1412;

/// The header between two subpackets: flags, pad, checksum.
const JUMBO_HEADER_LEN: usize = 4;

/// The DATA packets in one datagram: one, or those of a jumbogram.
pub struct Subpackets {
    next: Option<(Header, Bytes)>,
}

impl Subpackets {
    /// The packets of the datagram whose header is `header` and whose bytes behind it are `payload`.
    pub const fn new(header: Header, payload: Bytes) -> Self {
        Self { next: Some((header, payload)) }
    }
}

impl Iterator for Subpackets {
    type Item = (Header, Bytes);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, mut payload) = self.next.take()?;
        if !header.flags.contains(Flags::JUMBO) {
            return Some((header, payload));
        }
        if payload.len() < JUMBO_PAYLOAD_LEN + JUMBO_HEADER_LEN {
            return None; // says that more follow, and nothing does: not to be trusted at all
        }
        let mut rest = payload.split_off(JUMBO_PAYLOAD_LEN);
        let jumbo = rest.split_to(JUMBO_HEADER_LEN);
        let following = Header {
            seq: header.seq.plus(1),
            serial: header.serial.next(),
            // The jumbo header's flags stand for those of the packet behind it, but the direction is the datagram's.
            flags: Flags(jumbo[0])
                .without(Flags::CLIENT_INITIATED)
                .with(Flags(header.flags.0 & Flags::CLIENT_INITIATED.0)),
            user_status: 0,
            checksum: u16::from_be_bytes([jumbo[2], jumbo[3]]),
            ..header
        };
        self.next = Some((following, rest));
        Some((Header { flags: header.flags.without(Flags::JUMBO), ..header }, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Seq, Serial};

    fn first(flags: u8) -> Header {
        let mut bytes = [0u8; 28];
        bytes[15] = 7; // seq
        bytes[19] = 40; // serial
        bytes[20] = 1;
        bytes[21] = flags;
        Header::parse(&bytes).unwrap()
    }

    #[test]
    fn three_subpackets_come_out_in_order() {
        let mut body = vec![1u8; 1412];
        body.extend_from_slice(&[0x20, 0, 0xab, 0xcd]);
        body.extend_from_slice(&[2u8; 1412]);
        body.extend_from_slice(&[0x04, 0, 0, 1]);
        body.extend_from_slice(&[3u8; 10]);
        let all: Vec<_> = Subpackets::new(first(0x21), body.into()).collect();
        assert_eq!(
            all.iter().map(|(h, p)| (h.seq, h.serial, p.len())).collect::<Vec<_>>(),
            [(Seq(7), Serial(40), 1412), (Seq(8), Serial(41), 1412), (Seq(9), Serial(42), 10)]
        );
        assert_eq!(all[1].0.checksum, 0xabcd);
        assert!(all[2].0.flags.contains(Flags::LAST_PACKET));
        assert!(all.iter().all(|(h, _)| h.is_from_client() && !h.flags.contains(Flags::JUMBO)));
    }

    #[test]
    fn a_truncated_jumbogram_gives_nothing_of_its_broken_part() {
        assert_eq!(Subpackets::new(first(0x20), vec![0u8; 1412].into()).count(), 0);
        let mut body = vec![1u8; 1412];
        body.extend_from_slice(&[0x20, 0, 0, 0]);
        body.extend_from_slice(&[2u8; 100]);
        assert_eq!(Subpackets::new(first(0x20), body.into()).count(), 1);
    }
}
