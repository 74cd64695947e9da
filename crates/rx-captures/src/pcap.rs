//! Reads classic pcap files as far as our own captures need it: Ethernet II or raw IP, IPv4 with fragments put together,
//! UDP. All else (ARP, IPv6, TCP) is passed over. Knows nothing of Rx but which UDP ports are not of it. The files are
//! ours, so a malformed one is a broken test, and panics.

use bytes::Bytes;
use rx_proto::time::Instant;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Little-endian file, timestamps in microseconds.
const MAGIC: [u8; 4] = [0xd4, 0xc3, 0xb2, 0xa1];
const LINK_ETHERNET: u32 = 1;
const LINK_RAW_IP: u32 = 101;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERNET_HEADER_LEN: usize = 14;
const PROTOCOL_UDP: u8 = 17;
const UDP_HEADER_LEN: usize = 8;
const KERBEROS_PORT: u16 = 88;

/// A UDP datagram.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The frame's number in the file, from 1, as in Wireshark; of a fragmented datagram the frame that completed it.
    pub frame: usize,
    /// The time of the capture; the origin is the file's first frame.
    pub at: Instant,
    /// The address that sent it.
    pub from: SocketAddr,
    /// The address that it was sent to.
    pub to: SocketAddr,
    /// The bytes that UDP carried.
    pub payload: Bytes,
    /// The number of its IP packets: 1 if it was not fragmented.
    pub fragments: usize,
}

/// The content of a file.
#[derive(Debug)]
pub struct Capture {
    /// The datagrams, in the order of the file.
    pub datagrams: Vec<Datagram>,
    /// Frames in the file, of all kinds.
    pub frames: usize,
    /// Fragmented datagrams of which a part is missing.
    pub incomplete: usize,
}

impl Capture {
    /// Reads a whole file.
    ///
    /// # Panics
    ///
    /// If it is malformed.
    pub fn parse(file: &[u8]) -> Self {
        assert_eq!(file[..4], MAGIC, "not a classic little-endian pcap file");
        let link = le32(file, 20);
        assert!(link == LINK_ETHERNET || link == LINK_RAW_IP, "unknown link type {link}");
        let (mut datagrams, mut fragments) = (Vec::new(), Fragments::default());
        let (mut rest, mut frames, mut origin) = (&file[24..], 0, None);
        while !rest.is_empty() {
            let nanos = u64::from(le32(rest, 0)) * 1_000_000_000 + u64::from(le32(rest, 4)) * 1000;
            let (captured, original) = (le32(rest, 8) as usize, le32(rest, 12) as usize);
            assert_eq!(captured, original, "frame {} is cut", frames + 1);
            let frame = &rest[16..16 + captured];
            rest = &rest[16 + captured..];
            frames += 1;
            let at = Instant::from_nanos(nanos - *origin.get_or_insert(nanos));
            if let Some((from, to, udp, parts)) = ipv4_of(link, frame).and_then(|ip| fragments.take(ip)) {
                datagrams.push(datagram(frames, at, from, to, &udp, parts));
            }
        }
        Self { datagrams, frames, incomplete: fragments.waiting.len() }
    }

    /// The datagrams that carry Rx packets: all but those of Kerberos.
    pub fn rx(&self) -> impl Iterator<Item = &Datagram> {
        self.datagrams.iter().filter(|d| d.from.port() != KERBEROS_PORT && d.to.port() != KERBEROS_PORT)
    }
}

fn datagram(
    frame: usize,
    at: Instant,
    from: Ipv4Addr,
    to: Ipv4Addr,
    udp: &[u8],
    fragments: usize,
) -> Datagram {
    let len = usize::from(be16(udp, 4));
    let address = |ip: Ipv4Addr, port_at| SocketAddr::new(IpAddr::V4(ip), be16(udp, port_at));
    let payload = Bytes::copy_from_slice(&udp[UDP_HEADER_LEN..len]);
    Datagram { frame, at, from: address(from, 0), to: address(to, 2), payload, fragments }
}

/// The IPv4 packet in a frame, without the padding that Ethernet may add; `None` if it holds something else.
fn ipv4_of(link: u32, frame: &[u8]) -> Option<&[u8]> {
    let ip = match link {
        LINK_ETHERNET if be16(frame, 12) != ETHERTYPE_IPV4 => return None,
        LINK_ETHERNET => &frame[ETHERNET_HEADER_LEN..],
        _ => frame,
    };
    (ip[0] >> 4 == 4).then(|| &ip[..usize::from(be16(ip, 2))])
}

/// Names the datagram that a fragment belongs to: source, destination and the IP identification.
type FragmentKey = (Ipv4Addr, Ipv4Addr, u16);

/// The fragments of one datagram so far, by offset, and its length once the last one has come.
#[derive(Default)]
struct Parts {
    by_offset: BTreeMap<usize, Vec<u8>>,
    total: Option<usize>,
}

#[derive(Default)]
struct Fragments {
    waiting: BTreeMap<FragmentKey, Parts>,
}

impl Fragments {
    /// Takes an IPv4 packet; gives addresses, UDP header with payload, and the number of fragments, once complete.
    fn take(&mut self, ip: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr, Vec<u8>, usize)> {
        if ip[9] != PROTOCOL_UDP {
            return None;
        }
        let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
        let (from, to) = (address(12), address(16));
        let body = ip[usize::from(ip[0] & 15) * 4..].to_vec();
        let (more, offset) = (be16(ip, 6) & 0x2000 != 0, usize::from(be16(ip, 6) & 0x1fff) * 8);
        if !more && offset == 0 {
            return Some((from, to, body, 1));
        }
        let key = (from, to, be16(ip, 4));
        let parts = self.waiting.entry(key).or_default();
        if !more {
            parts.total = Some(offset + body.len());
        }
        parts.by_offset.insert(offset, body);
        let covered: usize = parts.by_offset.values().map(Vec::len).sum();
        if parts.total != Some(covered) {
            return None;
        }
        let parts = self.waiting.remove(&key)?;
        let count = parts.by_offset.len();
        Some((from, to, parts.by_offset.into_values().flatten().collect(), count))
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
