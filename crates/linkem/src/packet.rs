//! Packets as a TUN device with offloads hands them over: plain ones, and super-packets of up to 64 KB that
//! the kernel has not yet cut into segments. Cuts any run of segments out of a super-packet, headers put
//! right. Knows nothing of rates or time (see direction) and does no I/O (see tun).

/// Bytes of the `virtio_net_hdr` that precedes each packet on the device.
pub(crate) const VNET_HEADER: usize = 10;
/// Longest IP + TCP/UDP header of a super-packet: 60 + 60 for IPv4; the rest is room for IPv6 extensions.
const HEADER_MAX: usize = 256;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds the sum over the pseudo-header only.
const VNET_NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: UDP segmentation; the other types are TCP.
const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: the first segment carries CWR.
const GSO_ECN: u8 = 0x80;
const TCP_FIN_PSH: u8 = 0x09;
const TCP_CWR: u8 = 0x80;

/// One packet as read from a TUN device: plain, or a super-packet of several segments.
pub(crate) struct Packet {
    needs_checksum: bool,
    gso_type: u8,
    gso_size: usize,
    /// The place where the checksum starts; for a super-packet the offset of its TCP/UDP header.
    checksum_start: usize,
    checksum_offset: usize,
    /// IP + TCP/UDP headers; 0 for a plain packet.
    header_len: usize,
    segments: u32,
    data: Box<[u8]>,
}

/// The front part of a packet to be written: `virtio_net_hdr`, then the headers of a super-packet's piece.
pub(crate) struct Head {
    bytes: [u8; VNET_HEADER + HEADER_MAX],
    len: usize,
}

impl Head {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Packet {
    /// `raw` is a `virtio_net_hdr` followed by the IP packet; None if it is too short to be one. A
    /// super-packet whose headers do not make sense is taken as one plain packet.
    pub(crate) fn parse(raw: &[u8]) -> Option<Packet> {
        if raw.len() <= VNET_HEADER {
            return None;
        }
        let field = |at: usize| usize::from(u16::from_ne_bytes([raw[at], raw[at + 1]]));
        let mut packet = Packet {
            needs_checksum: raw[0] & VNET_NEEDS_CHECKSUM != 0,
            gso_type: raw[1],
            gso_size: field(4),
            checksum_start: field(6),
            checksum_offset: field(8),
            header_len: 0,
            segments: 1,
            data: raw[VNET_HEADER..].into(),
        };
        if let Some(header_len) = packet.super_packet_header() {
            let segments = (packet.data.len() - header_len).div_ceil(packet.gso_size);
            if segments > 1 {
                packet.header_len = header_len;
                packet.segments = segments as u32;
            }
        }
        Some(packet)
    }

    /// Length of the headers, if this is a super-packet that can be cut.
    fn super_packet_header(&self) -> Option<usize> {
        if self.gso_type == 0 || self.gso_size == 0 {
            return None;
        }
        let l4 = self.checksum_start;
        let ip_header_min = match self.data[0] >> 4 {
            4 => 20,
            6 => 40,
            _ => return None,
        };
        let l4_header =
            if self.gso_type == GSO_UDP_L4 { 8 } else { usize::from(*self.data.get(l4 + 12)? >> 4) * 4 };
        let l4_header_min = if self.gso_type == GSO_UDP_L4 { 8 } else { 20 };
        let header_len = l4 + l4_header;
        let fits = l4 >= ip_header_min
            && l4_header >= l4_header_min
            && self.checksum_offset + 2 <= l4_header
            && header_len <= HEADER_MAX
            && header_len < self.data.len()
            && (ip_header_min == 40 || usize::from(self.data[0] & 15) * 4 <= l4);
        fits.then_some(header_len)
    }

    /// The number of packets of MTU size that this is on the wire; 1 for a plain packet.
    pub(crate) fn segments(&self) -> u32 {
        self.segments
    }

    /// Bytes of this segment at the IP layer.
    pub(crate) fn segment_len(&self, segment: u32) -> usize {
        if self.segments == 1 {
            return self.data.len();
        }
        let start = self.header_len + segment as usize * self.gso_size;
        self.header_len + self.gso_size.min(self.data.len() - start)
    }

    /// Segments `first..end` as one packet: what is to be written to a TUN device is the head, then the
    /// payload returned beside it.
    pub(crate) fn piece(&self, first: u32, end: u32) -> (Head, &[u8]) {
        assert!(first < end && end <= self.segments, "segments {first}..{end} of {}", self.segments);
        let mut head = Head { bytes: [0; VNET_HEADER + HEADER_MAX], len: VNET_HEADER + self.header_len };
        let (vnet, header) = head.bytes.split_at_mut(VNET_HEADER);
        let header = &mut header[..self.header_len];
        vnet[0] = if self.needs_checksum { VNET_NEEDS_CHECKSUM } else { 0 };
        vnet[6..8].copy_from_slice(&(self.checksum_start as u16).to_ne_bytes());
        vnet[8..10].copy_from_slice(&(self.checksum_offset as u16).to_ne_bytes());
        if self.segments == 1 {
            return (head, &self.data);
        }
        let from = self.header_len + first as usize * self.gso_size;
        let to = (self.header_len + end as usize * self.gso_size).min(self.data.len());
        let payload = &self.data[from..to];
        header.copy_from_slice(&self.data[..self.header_len]);
        self.fix_header(header, payload.len(), first, end);
        if end - first > 1 {
            vnet[1] = if first > 0 { self.gso_type & !GSO_ECN } else { self.gso_type };
            vnet[2..4].copy_from_slice(&(self.header_len as u16).to_ne_bytes());
            vnet[4..6].copy_from_slice(&(self.gso_size as u16).to_ne_bytes());
        }
        (head, payload)
    }

    /// Rewrites the copied headers of a super-packet for its segments `first..end`: lengths, IPv4
    /// identification and checksum, TCP sequence number and flags, and the unfinished TCP/UDP checksum.
    fn fix_header(&self, header: &mut [u8], payload_len: usize, first: u32, end: u32) {
        let l4 = self.checksum_start;
        let old_l4_len = self.data.len() - l4;
        let new_l4_len = header.len() - l4 + payload_len;
        if header[0] >> 4 == 4 {
            put16(header, 2, (l4 + new_l4_len) as u16);
            let id = be16(header, 4).wrapping_add(first as u16);
            put16(header, 4, id);
            put16(header, 10, 0);
            let ip_header = usize::from(header[0] & 15) * 4;
            put16(header, 10, !fold(sum16(&header[..ip_header])));
        } else {
            put16(header, 4, (l4 - 40 + new_l4_len) as u16);
        }
        if self.gso_type == GSO_UDP_L4 {
            put16(header, l4 + 4, new_l4_len as u16);
        } else {
            let seq = u32::from_be_bytes([header[l4 + 4], header[l4 + 5], header[l4 + 6], header[l4 + 7]]);
            let seq = seq.wrapping_add(first * self.gso_size as u32);
            header[l4 + 4..l4 + 8].copy_from_slice(&seq.to_be_bytes());
            if end != self.segments {
                header[l4 + 13] &= !TCP_FIN_PSH;
            }
            if first != 0 {
                header[l4 + 13] &= !TCP_CWR;
            }
        }
        // The checksum field holds the sum over the pseudo-header, which contains the length: replace that.
        let at = l4 + self.checksum_offset;
        let sum = u32::from(be16(header, at)) + u32::from(!(old_l4_len as u16)) + new_l4_len as u32;
        put16(header, at, fold(sum));
    }

    /// A plain packet of `len` bytes of nothing, for tests of what treats packets as opaque.
    #[cfg(test)]
    pub(crate) fn plain(len: usize) -> Packet {
        Packet::parse(&vec![0; VNET_HEADER + len]).expect("long enough")
    }
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn put16(b: &mut [u8], at: usize, v: u16) {
    b[at..at + 2].copy_from_slice(&v.to_be_bytes());
}

/// Sum of the big-endian 16-bit words of an even number of bytes.
fn sum16(b: &[u8]) -> u32 {
    b.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const GSO_TCPV4: u8 = 1;
    const GSO_TCPV6: u8 = 4;
    const TCP_ACK: u8 = 0x10;

    /// The pseudo-header's sum for these headers and this L4 length.
    fn pseudo_sum(header: &[u8], l4_len: usize, protocol: u8) -> u16 {
        let addresses = if header[0] >> 4 == 4 { &header[12..20] } else { &header[8..40] };
        fold(sum16(addresses) + l4_len as u32 + u32::from(protocol))
    }

    /// A super-packet with payload bytes 0, 1, 2, ... as the kernel would hand it over.
    fn super_packet(v6: bool, gso_type: u8, gso_size: usize, payload_len: usize) -> Vec<u8> {
        let udp = gso_type == GSO_UDP_L4;
        let (l4, l4_header, protocol) =
            (if v6 { 40 } else { 20 }, if udp { 8 } else { 32 }, if udp { 17 } else { 6 });
        let mut ip = vec![0u8; l4 + l4_header];
        let l4_len = l4_header + payload_len;
        if v6 {
            ip[0] = 0x60;
            put16(&mut ip, 4, l4_len as u16);
            ip[6] = protocol;
            ip[8..40].copy_from_slice(&[0x5a; 32]);
        } else {
            ip[0] = 0x45;
            put16(&mut ip, 2, (l4 + l4_len) as u16);
            put16(&mut ip, 4, 0xfffe);
            ip[9] = protocol;
            ip[12..20].copy_from_slice(&[10, 99, 0, 1, 10, 99, 0, 2]);
        }
        let checksum_offset = if udp {
            put16(&mut ip, l4 + 4, l4_len as u16);
            6
        } else {
            ip[l4 + 4..l4 + 8].copy_from_slice(&0xffff_ff00u32.to_be_bytes());
            ip[l4 + 12] = 8 << 4;
            ip[l4 + 13] = TCP_ACK | TCP_FIN_PSH | TCP_CWR;
            16
        };
        let pseudo = pseudo_sum(&ip, l4_len, protocol);
        put16(&mut ip, l4 + checksum_offset, pseudo);
        let mut raw = vec![0u8; VNET_HEADER];
        raw[0] = VNET_NEEDS_CHECKSUM;
        raw[1] = gso_type;
        raw[4..6].copy_from_slice(&(gso_size as u16).to_ne_bytes());
        raw[6..8].copy_from_slice(&(l4 as u16).to_ne_bytes());
        raw[8..10].copy_from_slice(&(checksum_offset as u16).to_ne_bytes());
        raw.extend(ip);
        raw.extend((0..payload_len).map(|i| i as u8));
        raw
    }

    /// Cuts every run of segments and checks lengths, checksums, sequence number, flags and payload.
    fn check_all_pieces(v6: bool, gso_type: u8, gso_size: usize, payload_len: usize) {
        let raw = super_packet(v6, gso_type, gso_size, payload_len);
        let packet = Packet::parse(&raw).unwrap();
        let udp = gso_type & !GSO_ECN == GSO_UDP_L4;
        let (l4, protocol) = (if v6 { 40 } else { 20 }, if udp { 17 } else { 6 });
        let count = payload_len.div_ceil(gso_size) as u32;
        assert_eq!(packet.segments(), count);
        for first in 0..count {
            for end in first + 1..=count {
                let (head, payload) = packet.piece(first, end);
                let (vnet, header) = head.bytes().split_at(VNET_HEADER);
                let from = first as usize * gso_size;
                let to = (end as usize * gso_size).min(payload_len);
                assert_eq!(payload, &raw[raw.len() - payload_len..][from..to]);
                let total = header.len() + payload.len();
                let expected: usize = (first..end).map(|s| packet.segment_len(s)).sum();
                assert_eq!(expected - (end - first - 1) as usize * header.len(), total);
                if v6 {
                    assert_eq!(usize::from(be16(header, 4)), total - 40);
                } else {
                    assert_eq!(usize::from(be16(header, 2)), total);
                    assert_eq!(be16(header, 4), 0xfffeu16.wrapping_add(first as u16));
                    assert_eq!(fold(sum16(&header[..20])), 0xffff, "IP checksum");
                }
                let sum_at = l4 + if udp { 6 } else { 16 };
                assert_eq!(be16(header, sum_at), pseudo_sum(header, total - l4, protocol));
                if udp {
                    assert_eq!(usize::from(be16(header, l4 + 4)), total - l4);
                } else {
                    let seq = u32::from_be_bytes(header[l4 + 4..l4 + 8].try_into().unwrap());
                    assert_eq!(seq, 0xffff_ff00u32.wrapping_add(from as u32));
                    let flags = header[l4 + 13];
                    assert_eq!(flags & TCP_FIN_PSH != 0, end == count, "FIN and PSH go out last");
                    assert_eq!(flags & TCP_CWR != 0, first == 0, "CWR goes out first");
                }
                let is_super = end - first > 1;
                let ecn_kept = if first == 0 { GSO_ECN } else { 0 };
                assert_eq!(vnet[1], if is_super { gso_type & (!GSO_ECN | ecn_kept) } else { 0 });
                assert_eq!(vnet[0], VNET_NEEDS_CHECKSUM);
            }
        }
    }

    #[test]
    fn tcp_super_packets_are_cut_with_right_headers() {
        check_all_pieces(false, GSO_TCPV4, 1448, 1448 * 4 + 7);
        check_all_pieces(false, GSO_TCPV4 | GSO_ECN, 100, 400);
        check_all_pieces(true, GSO_TCPV6, 1428, 1428 * 3 + 1);
    }

    #[test]
    fn udp_super_packets_are_cut_with_right_headers() {
        check_all_pieces(false, GSO_UDP_L4, 1200, 1200 * 5);
        check_all_pieces(true, GSO_UDP_L4, 1200, 1200 * 2 + 300);
    }

    #[test]
    fn a_plain_packet_passes_unchanged() {
        let mut raw = super_packet(false, GSO_UDP_L4, 1200, 800);
        let one_segment = Packet::parse(&raw).unwrap();
        assert_eq!((one_segment.segments(), one_segment.segment_len(0)), (1, 828));
        raw[1] = 0;
        let packet = Packet::parse(&raw).unwrap();
        let (head, payload) = packet.piece(0, 1);
        assert_eq!(payload, &raw[VNET_HEADER..]);
        assert_eq!((head.bytes()[0], head.bytes().len()), (VNET_NEEDS_CHECKSUM, VNET_HEADER));
    }

    #[test]
    fn nonsense_headers_never_panic() {
        let raw = super_packet(false, GSO_TCPV4, 1448, 4000);
        for len in 0..80 {
            for at in 0..len.min(VNET_HEADER + 40) {
                for value in [0u8, 1, 0x40, 0x7f, 0xff] {
                    let mut broken = raw[..len].to_vec();
                    broken[at] = value;
                    if let Some(packet) = Packet::parse(&broken) {
                        for segment in 0..packet.segments() {
                            packet.segment_len(segment);
                            packet.piece(segment, segment + 1);
                        }
                    }
                }
            }
        }
        assert!(Packet::parse(&raw[..VNET_HEADER]).is_none());
    }
}
