//! ICMP's errors about packets that a socket has sent: entries of the socket's error queue parsed into meaning.
//! Believes none of it: anyone can forge an ICMP message, so code that acts on one first checks that the quoted bytes
//! are of a packet of its own.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;

use super::normalised;
use super::sys::{self, RawError};

/// The bytes of a quoted packet that are kept: two Rx headers of 28, so that epoch, cid and what follows the
/// header can be compared. Routers need not quote any payload, Linux quotes about 500 bytes.
pub const QUOTED_BYTES: usize = 64;

/// Error queue entries taken at once. Limits how long a flood of ICMP messages keeps the receiver from its datagrams.
const ERRORS_PER_POLL: usize = 64;

/// An error that the network reported about a packet that was sent from the socket.
#[derive(Clone, Copy)]
pub struct IcmpError {
    /// The address that the packet was sent to; not who complains about it.
    pub peer: SocketAddr,
    /// The kind of error.
    pub kind: IcmpErrorKind,
    quoted: [u8; QUOTED_BYTES],
    quoted_length: u8,
}

/// The kinds of errors that ICMP reports about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpErrorKind {
    /// Nobody takes it there (ICMP type 3, ICMPv6 type 1).
    Unreachable {
        /// The code of that type: differs between IPv4 and IPv6. A port that no process has open is 3 in the one, 4 in the other.
        code: u8,
    },
    /// It does not fit through a link on the way (ICMP type 3 code 4, ICMPv6 type 2).
    PacketTooBig {
        /// Bytes that fit, IP header included; 0 from routers that do not say.
        mtu: u32,
    },
    /// Anything else, such as a hop limit exceeded.
    Other {
        /// The ICMP (or ICMPv6) type.
        icmp_type: u8,
        /// The code of that type.
        code: u8,
    },
}

impl IcmpError {
    /// The start of the UDP payload that the message quotes, up to [`QUOTED_BYTES`]; may be empty.
    pub fn sent_payload_prefix(&self) -> &[u8] {
        &self.quoted[..usize::from(self.quoted_length)]
    }
}

impl fmt::Debug for IcmpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IcmpError")
            .field("peer", &self.peer)
            .field("kind", &self.kind)
            .field("sent_payload_prefix", &self.sent_payload_prefix())
            .finish()
    }
}

/// Takes up to [`ERRORS_PER_POLL`] entries from the error queue and appends to `out` those that come from the network.
/// Returns how many it appended.
pub(super) fn poll_errors(socket: BorrowedFd<'_>, out: &mut Vec<IcmpError>) -> io::Result<usize> {
    let before = out.len();
    for _ in 0..ERRORS_PER_POLL {
        let Some(raw) = sys::take_error(socket)? else { break };
        out.extend(parse(&raw));
    }
    Ok(out.len() - before)
}

/// `None` for an entry that is not about a packet in the network, such as the kernel's own note that a datagram is
/// larger than the interface takes, which the send call has reported already.
fn parse(raw: &RawError<QUOTED_BYTES>) -> Option<IcmpError> {
    let extended = control_messages(raw.control.filled()).find_map(|message| {
        let is_error = matches!(
            (message.level, message.kind),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        );
        if is_error { ExtendedError::parse(message.data) } else { None }
    })?;
    let mut quoted = [0; QUOTED_BYTES];
    let payload = raw.payload.filled();
    quoted[..payload.len()].copy_from_slice(payload);
    Some(IcmpError {
        peer: normalised(socket_address(raw.name.filled())?),
        kind: extended.kind()?,
        quoted,
        quoted_length: payload.len() as u8,
    })
}

/// The start of the kernel's `sock_extended_err` (ip(7), `IP_RECVERR`).
struct ExtendedError {
    origin: u8,
    icmp_type: u8,
    code: u8,
    info: u32,
}

impl ExtendedError {
    fn parse(data: &[u8]) -> Option<Self> {
        Some(Self {
            origin: *data.get(4)?,
            icmp_type: *data.get(5)?,
            code: *data.get(6)?,
            info: u32::from_ne_bytes(array(data, 8)?),
        })
    }

    fn kind(&self) -> Option<IcmpErrorKind> {
        let &Self { origin, icmp_type, code, info } = self;
        match (origin, icmp_type, code) {
            (libc::SO_EE_ORIGIN_ICMP, 3, 4) | (libc::SO_EE_ORIGIN_ICMP6, 2, _) => {
                Some(IcmpErrorKind::PacketTooBig { mtu: info })
            }
            (libc::SO_EE_ORIGIN_ICMP, 3, _) | (libc::SO_EE_ORIGIN_ICMP6, 1, _) => {
                Some(IcmpErrorKind::Unreachable { code })
            }
            (libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6, _, _) => {
                Some(IcmpErrorKind::Other { icmp_type, code })
            }
            _ => None,
        }
    }
}

/// A control message of a `recvmsg` answer.
struct ControlMessage<'a> {
    level: i32,
    kind: i32,
    data: &'a [u8],
}

/// Walks over control messages: each is a length of one word (counted from its own start), level and type of four
/// bytes each, then the data; the next begins at the next whole word. A length that does not fit ends the walk.
fn control_messages(mut rest: &[u8]) -> impl Iterator<Item = ControlMessage<'_>> {
    const WORD: usize = size_of::<usize>();
    const HEADER: usize = WORD + 8;
    std::iter::from_fn(move || {
        let length = usize::from_ne_bytes(array(rest, 0)?);
        let level = i32::from_ne_bytes(array(rest, WORD)?);
        let kind = i32::from_ne_bytes(array(rest, WORD + 4)?);
        let data = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(WORD)..).unwrap_or_default();
        Some(ControlMessage { level, kind, data })
    })
}

/// Reads a `sockaddr_in` or a `sockaddr_in6`.
fn socket_address(name: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(array(name, 0)?));
    let port = u16::from_be_bytes(array(name, 2)?);
    match family {
        libc::AF_INET => {
            let address: [u8; 4] = array(name, 4)?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(address)), port))
        }
        libc::AF_INET6 => {
            let address: [u8; 16] = array(name, 8)?;
            let scope = u32::from_ne_bytes(array(name, 24)?);
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(address), port, 0, scope)))
        }
        _ => None,
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_message_with_a_false_length_ends_the_walk() {
        for length in [0usize, 15, 17, usize::MAX] {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend([0; 8]);
            assert_eq!(control_messages(&bytes).count(), 0, "length {length}");
        }
        let mut bytes = 16usize.to_ne_bytes().to_vec();
        bytes.extend([0; 8]);
        assert_eq!(control_messages(&bytes).count(), 1);
    }

    #[test]
    fn an_address_cut_short_is_none() {
        assert_eq!(socket_address(&[]), None);
        assert_eq!(socket_address(&(libc::AF_INET as u16).to_ne_bytes()), None);
        assert_eq!(socket_address(&[0; 28]), None);
    }
}
