//! DATA packets in several datagrams, between endpoints of our own (docs/rx-extensions.md). A packet that is cut stays as it is: the peer may
//! have it. So when the path turns out narrower than the packets that are under way, these go on in pieces.

use crate::packet::{HEADER_LEN, MAX_PACKET_LEN, PacketType};
use bytes::Bytes;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The bytes between a piece's header and what it carries: its index, the number of pieces, and two that are 0.
const PIECE_HEADER_LEN: usize = 4;

/// Most pieces of a packet: as many as the largest has of the smallest size.
const MAX_PIECES: u8 = 34;

/// Packets of which some pieces are here, over all peers of one kind: 1 MB. The oldest goes. Its sender sends it again.
const MAX_OPEN: usize = 64;

/// Place of the packet type in a header.
const KIND: usize = 20;

/// Cuts a DATA packet into datagrams of `len` bytes; the last is shorter.
pub(crate) fn split(packet: &mut Vec<u8>, len: usize) {
    let whole = std::mem::take(packet);
    let (header, body) = whole.split_at(HEADER_LEN);
    let each = len - HEADER_LEN - PIECE_HEADER_LEN;
    let count = body.len().div_ceil(each) as u8;
    for (index, part) in (0..).zip(body.chunks(each)) {
        let start = packet.len();
        packet.extend_from_slice(header);
        packet[start + KIND] = PacketType::PIECE.0;
        packet.extend_from_slice(&[index, count, 0, 0]);
        packet.extend_from_slice(part);
    }
}

/// The packets of which some pieces have come.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Those of peers that have shown to be there. Others cannot crowd them out.
    known: VecDeque<Unfinished>,
    strangers: VecDeque<Unfinished>,
}

#[derive(Debug)]
struct Unfinished {
    from: SocketAddr,
    /// The same in all pieces of one transmission.
    header: [u8; HEADER_LEN],
    parts: Vec<Option<Bytes>>,
    len: usize,
}

impl Pieces {
    /// A piece came. Returns the packet if it was the last that was missing.
    pub(crate) fn handle(&mut self, from: SocketAddr, datagram: &[u8], is_known: bool) -> Option<Bytes> {
        let header = *datagram.first_chunk::<HEADER_LEN>()?;
        let [index, count, ..] = *datagram[HEADER_LEN..].first_chunk::<PIECE_HEADER_LEN>()?;
        let part = &datagram[HEADER_LEN + PIECE_HEADER_LEN..];
        if index >= count || count > MAX_PIECES || part.is_empty() {
            return None;
        }
        let open = if is_known { &mut self.known } else { &mut self.strangers };
        let is_same =
            |u: &Unfinished| u.from == from && u.header == header && u.parts.len() == usize::from(count);
        let place = open.iter().position(is_same).unwrap_or_else(|| {
            if open.len() == MAX_OPEN {
                open.pop_front();
            }
            open.push_back(Unfinished { from, header, parts: vec![None; count.into()], len: HEADER_LEN });
            open.len() - 1
        });
        let packet = &mut open[place];
        let slot = &mut packet.parts[usize::from(index)];
        if slot.is_none() && packet.len + part.len() <= MAX_PACKET_LEN {
            packet.len += part.len();
            // A copy, as what was received may hold a whole bundle in memory.
            *slot = Some(Bytes::copy_from_slice(part));
        }
        if packet.parts.iter().any(Option::is_none) {
            return None;
        }
        let packet = open.remove(place)?;
        let mut whole = Vec::with_capacity(packet.len);
        whole.extend_from_slice(&header);
        whole[KIND] = PacketType::DATA.0;
        packet.parts.iter().flatten().for_each(|part| whole.extend_from_slice(part));
        Some(whole.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(serial: u8, len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..len).map(|i| i as u8).collect();
        (packet[19], packet[KIND]) = (serial, PacketType::DATA.0);
        packet
    }

    fn peer(n: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], n))
    }

    #[test]
    fn a_packet_comes_out_as_it_went_in_in_whatever_order_its_pieces_arrive() {
        for (len, size, turn) in
            [(1444, 520, 0), (16384, 520, 5), (1444, 1443, 1), (600, 520, 1), (8972, 1232, 3)]
        {
            let (mut pieces, whole) = (Pieces::default(), packet(1, len));
            let mut out = whole.clone();
            split(&mut out, size);
            let mut parts: Vec<&[u8]> = out.chunks(size).collect();
            parts.rotate_left(turn);
            let (last, first) = parts.split_last().unwrap();
            for part in first.iter().chain(first) {
                assert_eq!(pieces.handle(peer(1), part, true), None, "not all have come");
            }
            assert_eq!(pieces.handle(peer(2), last, true), None, "another peer's");
            assert_eq!(pieces.handle(peer(1), last, true).unwrap(), whole, "{len} in {size}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_dropped_and_what_is_kept_is_bounded() {
        let mut pieces = Pieces::default();
        let piece = |serial: u8, extra: &[u8]| {
            let mut piece = packet(serial, HEADER_LEN);
            piece.extend_from_slice(extra);
            piece
        };
        for extra in
            [&[][..], &[0, 1, 0], &[0, 1, 0, 0], &[1, 1, 0, 0, 9], &[0, 0, 0, 0, 9], &[0, 35, 0, 0, 9]]
        {
            assert_eq!(pieces.handle(peer(1), &piece(1, extra), false), None);
        }
        assert_eq!(pieces.handle(peer(1), &[0; 10], false), None);
        assert!(pieces.strangers.is_empty());
        // Two parts that are more than a packet together.
        for index in [0, 1] {
            let mut long = piece(1, &[index, 2, 0, 0]);
            long.resize(9000, 1);
            assert_eq!(pieces.handle(peer(1), &long, false), None);
        }
        for serial in 0..200 {
            assert_eq!(pieces.handle(peer(1), &piece(serial, &[0, 2, 0, 0, 9]), false), None);
        }
        assert_eq!(pieces.strangers.len(), MAX_OPEN);
        assert!(pieces.known.is_empty());
    }
}
