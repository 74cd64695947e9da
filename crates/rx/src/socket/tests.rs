//! The socket against the kernel's loopback interface. What needs a privilege says so and is left out without it.
#![expect(clippy::disallowed_methods, reason = "sockets are of the operating system, whose time they take")]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::mpsc;
use std::time::Instant;

use super::batch::BUFFER_BYTES;
use super::*;

const TIMEOUT: Duration = Duration::from_secs(30);

fn v4_loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn v6_loopback() -> SocketAddr {
    (Ipv6Addr::LOCALHOST, 0).into()
}

fn bind(address: SocketAddr) -> Socket {
    Socket::bind(address, &SocketOptions::default()).unwrap()
}

fn one<'a>(to: SocketAddr, contents: &'a [u8]) -> Transmit<'a> {
    Transmit { to, src_ip: None, segment_size: None, contents }
}

/// Receives until `count` single datagrams are there.
fn receive(socket: &Socket, batch: &mut RecvBatch, count: usize) -> Vec<Datagram> {
    let deadline = Instant::now() + TIMEOUT;
    let mut got = Vec::new();
    while got.iter().map(|datagram: &Datagram| datagram.segments().len()).sum::<usize>() < count {
        assert!(Instant::now() < deadline, "{count} datagrams expected, got {got:?}");
        socket.recv(batch, Some(TIMEOUT)).unwrap();
        got.extend(batch.drain());
    }
    got
}

fn receive_error(socket: &Socket) -> IcmpError {
    let deadline = Instant::now() + TIMEOUT;
    let mut batch = RecvBatch::new();
    loop {
        socket.recv(&mut batch, Some(TIMEOUT)).unwrap();
        if let Some(error) = batch.drain_errors().next() {
            return error;
        }
        assert!(Instant::now() < deadline, "no ICMP error came");
    }
}

/// Both ways between `a` and the address under which it sees `b`.
fn check_exchange(a: &Socket, b: &Socket, b_seen_by_a: SocketAddr, a_seen_by_b: SocketAddr) {
    let mut batch = RecvBatch::new();
    a.send(&one(b_seen_by_a, b"question")).unwrap();
    let question = receive(b, &mut batch, 1).remove(0);
    assert_eq!((question.from, &question.data[..]), (a_seen_by_b, &b"question"[..]));
    assert_eq!(question.to, Some(b_seen_by_a.ip()));
    let answer = Transmit { src_ip: question.to, ..one(question.from, b"answer") };
    b.send(&answer).unwrap();
    let answer = receive(a, &mut batch, 1).remove(0);
    assert_eq!((answer.from, &answer.data[..]), (b_seen_by_a, &b"answer"[..]));
}

#[test]
fn datagrams_travel_over_ipv4() {
    let (a, b) = (bind(v4_loopback()), bind(v4_loopback()));
    check_exchange(&a, &b, b.local_addr(), a.local_addr());
}

#[test]
fn datagrams_travel_over_ipv6() {
    let (a, b) = (bind(v6_loopback()), bind(v6_loopback()));
    check_exchange(&a, &b, b.local_addr(), a.local_addr());
}

#[test]
fn an_ipv6_wildcard_socket_serves_ipv4_peers_under_their_ipv4_addresses() {
    let server = bind((Ipv6Addr::UNSPECIFIED, 0).into());
    let port = server.local_addr().port();
    let (v4, v6) = (bind(v4_loopback()), bind(v6_loopback()));
    check_exchange(&v4, &server, (Ipv4Addr::LOCALHOST, port).into(), v4.local_addr());
    check_exchange(&v6, &server, (Ipv6Addr::LOCALHOST, port).into(), v6.local_addr());
    // The server also begins, and from an address of its choice.
    check_exchange(&server, &v4, v4.local_addr(), (Ipv4Addr::LOCALHOST, port).into());
    let from: IpAddr = Ipv4Addr::new(127, 0, 0, 9).into();
    server.send(&Transmit { src_ip: Some(from), ..one(v4.local_addr(), b"from nine") }).unwrap();
    let got = receive(&v4, &mut RecvBatch::new(), 1).remove(0);
    assert_eq!(got.from, (from, port).into());
}

fn check_bundle(a: &Socket, b: &Socket, segment_size: usize, total: usize) {
    let contents: Vec<u8> = (0..total).map(|index| (index / segment_size) as u8).collect();
    let transmit = Transmit { segment_size: Some(segment_size), ..one(b.local_addr(), &contents) };
    a.send(&transmit).unwrap();
    let count = total.div_ceil(segment_size);
    let got = receive(b, &mut RecvBatch::new(), count);
    let segments: Vec<_> = got.iter().flat_map(Datagram::segments).collect();
    assert_eq!(segments.len(), count);
    assert!(segments[..count - 1].iter().all(|segment| segment.len() == segment_size));
    assert_eq!(segments.concat(), contents);
}

#[test]
fn a_bundle_arrives_as_its_datagrams_in_order() {
    for address in [v4_loopback(), v6_loopback()] {
        let (a, b) = (bind(address), bind(address));
        check_bundle(&a, &b, 1472, 16 * 1472);
        check_bundle(&a, &b, 1472, 15 * 1472 + 7);
        check_bundle(&a, &b, 1412, 44 * 1412);
        check_bundle(&a, &b, 1, 3);
        // More than one system call takes, by segments and by bytes.
        check_bundle(&a, &b, 100, 200 * 100);
        check_bundle(&a, &b, 8_000, 12 * 8_000 + 1);
    }
}

#[test]
fn a_bundle_is_received_as_one_delivery_with_its_stride() {
    let (a, b) = (bind(v4_loopback()), bind(v4_loopback()));
    assert!(a.max_gso_segments() > 1, "this kernel has no GSO");
    let contents = vec![7; 16 * 1472 - 100];
    a.send(&Transmit { segment_size: Some(1472), ..one(b.local_addr(), &contents) }).unwrap();
    let mut batch = RecvBatch::new();
    assert_eq!(b.recv(&mut batch, Some(TIMEOUT)).unwrap(), 1);
    let got = batch.drain().next().unwrap();
    assert_eq!((got.segment_size, got.data.len()), (1472, contents.len()));
    assert_eq!(got.segments().len(), 16);
    assert_eq!(got.segments().last().unwrap().len(), 1372);
}

#[test]
fn small_packets_do_not_hold_a_whole_buffer() {
    let (a, b) = (bind(v4_loopback()), bind(v4_loopback()));
    a.send(&one(b.local_addr(), &[1; 1400])).unwrap();
    let got = receive(&b, &mut RecvBatch::new(), 1).remove(0);
    let own = got.data.try_into_mut().expect("memory of its own");
    assert!(own.capacity() < 2048, "holds {} bytes", own.capacity());
}

#[test]
fn buffers_come_back_when_their_last_datagram_is_dropped() {
    let (a, b) = (bind(v4_loopback()), bind(v4_loopback()));
    let mut batch = RecvBatch::new();
    let send = |byte| {
        let contents = vec![byte; 16 * 1472];
        a.send(&Transmit { segment_size: Some(1472), ..one(b.local_addr(), &contents) }).unwrap();
    };
    send(1);
    let first = receive(&b, &mut batch, 16);
    let kept = first[0].segments().nth(3).unwrap();
    drop(first);
    assert_eq!(batch.free_buffers(), 0, "a datagram is still held");
    // What is held stays as it is while other buffers are filled.
    send(2);
    drop(receive(&b, &mut batch, 16));
    assert_eq!(batch.free_buffers(), 1);
    assert_eq!(kept, vec![1; 1472]);
    drop(kept);
    assert_eq!(batch.free_buffers(), 2);
    // They are used again, and may outlive the batch.
    send(3);
    let third = receive(&b, &mut batch, 16);
    assert_eq!(batch.free_buffers(), 1);
    drop(batch);
    assert_eq!(third[0].data, vec![3; 16 * 1472]);
}

#[test]
fn the_largest_datagram_is_not_cut() {
    let (a, b) = (bind(v4_loopback()), bind(v4_loopback()));
    let contents = vec![9; MAX_TRANSMIT_BYTES];
    a.send(&one(b.local_addr(), &contents)).unwrap();
    let got = receive(&b, &mut RecvBatch::new(), 1).remove(0);
    assert!(got.data == contents && contents.len() < BUFFER_BYTES);
}

#[test]
fn a_datagram_larger_than_the_interface_takes_is_refused_and_leaves_nothing_behind() {
    let (a, b) = (bind(v6_loopback()), bind(v6_loopback()));
    let contents = vec![9; MAX_TRANSMIT_BYTES + 1];
    let error = a.send(&one(b.local_addr(), &contents)).unwrap_err();
    assert!(matches!(error, SendError::TooLarge { bytes, .. } if bytes == contents.len()), "{error}");
    // The kernel's own note about that in the error queue is not mistaken for ICMP.
    let mut batch = RecvBatch::new();
    assert_eq!(a.recv(&mut batch, Some(Duration::from_millis(20))).unwrap(), 0);
    assert_eq!(batch.drain_errors().count(), 0);
    a.send(&one(b.local_addr(), b"next")).unwrap();
    assert_eq!(receive(&b, &mut batch, 1)[0].data, &b"next"[..]);
}

#[test]
fn an_empty_datagram_is_ignored() {
    let (a, b) = (bind(v4_loopback()), bind(v4_loopback()));
    a.send(&one(b.local_addr(), b"")).unwrap();
    a.send(&one(b.local_addr(), b"full")).unwrap();
    let got = receive(&b, &mut RecvBatch::new(), 1);
    assert_eq!((got.len(), &got[0].data[..]), (1, &b"full"[..]));
}

#[test]
fn packets_are_never_fragmented() {
    for address in [v4_loopback(), v6_loopback(), (Ipv6Addr::UNSPECIFIED, 0).into()] {
        let socket = bind(address);
        assert!(!socket.may_fragment());
        let fd = socket.socket.as_fd();
        let v4 = sys::option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER).unwrap();
        assert_eq!(v4, libc::IP_PMTUDISC_PROBE, "{address}");
        if address.is_ipv6() {
            let v6 = sys::option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER).unwrap();
            assert_eq!(v6, libc::IPV6_PMTUDISC_PROBE, "{address}");
            assert_eq!(sys::option(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG).unwrap(), 1);
        }
    }
}

#[test]
fn a_closed_port_shows_up_as_unreachable_and_does_not_hinder_others() {
    for (address, local) in [
        (v4_loopback(), v4_loopback()),
        (v6_loopback(), v6_loopback()),
        (v4_loopback(), (Ipv6Addr::UNSPECIFIED, 0).into()),
    ] {
        let closed = bind(address).local_addr();
        let (a, open) = (bind(local), bind(address));
        for byte in 0..4 {
            a.send(&one(closed, &[byte; 100])).unwrap();
            a.send(&one(open.local_addr(), &[byte; 100])).unwrap();
        }
        assert_eq!(receive(&open, &mut RecvBatch::new(), 4).len(), 4);
        let error = receive_error(&a);
        assert_eq!(error.peer, closed, "{error:?}");
        let code = if closed.is_ipv4() { 3 } else { 4 };
        assert_eq!(error.kind, IcmpErrorKind::Unreachable { code }, "{error:?}");
        assert_eq!(error.sent_payload_prefix(), [0; QUOTED_BYTES]);
    }
}

#[test]
fn pending_icmp_errors_do_not_delay_what_is_received() {
    let (a, b) = (bind(v4_loopback()), bind(v4_loopback()));
    let closed = bind(v4_loopback()).local_addr();
    b.send(&one(a.local_addr(), b"data")).unwrap();
    a.send(&one(closed, b"lost")).unwrap();
    let mut batch = RecvBatch::new();
    let (mut data, mut errors) = (0, 0);
    for _ in 0..3 {
        data += a.recv(&mut batch, Some(Duration::from_millis(50))).unwrap();
        errors += batch.drain_errors().count();
    }
    assert_eq!((data, errors), (1, 1));
}

/// An ICMP "fragmentation needed" as a router would send it, for a UDP datagram from `from` to `to`.
fn fragmentation_needed(from: SocketAddr, to: SocketAddr, mtu: u16, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!("IPv4 only") };
    let mut packet = vec![3, 4, 0, 0, 0, 0];
    packet.extend(mtu.to_be_bytes());
    packet.extend([0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    for field in [from.port(), to.port(), 1480, 0] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend(payload);
    let sum: u32 = packet
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[test]
fn packet_too_big_brings_the_mtu_and_the_quoted_packet() {
    let Ok(raw) = socket2::Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)) else {
        eprintln!("left out: forging an ICMP message needs CAP_NET_RAW");
        return;
    };
    for local in [v4_loopback(), (Ipv6Addr::UNSPECIFIED, 0).into()] {
        let a = bind(local);
        let source = SocketAddr::from((Ipv4Addr::LOCALHOST, a.local_addr().port()));
        // The kernel remembers the MTU for this destination, so let it be one that nobody else uses.
        let peer = SocketAddr::from((Ipv4Addr::new(127, 77, 3, 9), 7000));
        for payload in [&[0xab; 28][..], &[0xcd; 200], &[]] {
            let message = fragmentation_needed(source, peer, 1280, payload);
            raw.send_to(&message, &v4_loopback().into()).unwrap();
            let error = receive_error(&a);
            assert_eq!((error.peer, error.kind), (peer, IcmpErrorKind::PacketTooBig { mtu: 1280 }));
            assert_eq!(error.sent_payload_prefix(), &payload[..payload.len().min(QUOTED_BYTES)]);
        }
        // Path MTU is the caller's business: the kernel still sends what is larger.
        a.send(&one(peer, &[0; 4000])).unwrap();
    }
}

#[test]
fn buffers_are_forced_by_default_and_limited_when_configured() {
    let rmem_max = std::fs::read_to_string("/proc/sys/net/core/rmem_max")
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
        .unwrap_or(212_992);
    let granted = |options: &SocketOptions| {
        Socket::bind(v4_loopback(), options).unwrap().granted_receive_bytes().unwrap()
    };
    let unforced = granted(&SocketOptions { allow_force: false, ..SocketOptions::default() });
    assert_eq!(unforced, DEFAULT_RECEIVE_BUFFER_BYTES.min(2 * rmem_max));
    let forced = granted(&SocketOptions::default());
    if forced == unforced {
        eprintln!("left out: forcing the buffer needs CAP_NET_ADMIN, or rmem_max is large enough");
    } else {
        assert_eq!(forced, DEFAULT_RECEIVE_BUFFER_BYTES);
    }
    for limit in [100_000, 1 << 30] {
        let options = SocketOptions { receive_buffer_bytes: Some(limit), ..SocketOptions::default() };
        assert_eq!(granted(&options), limit.min(2 * rmem_max));
    }
}

#[test]
fn what_overflows_the_receive_buffer_is_counted() {
    let options = SocketOptions { receive_buffer_bytes: Some(8192), ..SocketOptions::default() };
    let b = Socket::bind(v4_loopback(), &options).unwrap();
    let a = bind(v4_loopback());
    assert_eq!((b.dropped().unwrap(), b.queued_bytes().unwrap()), (0, 0));
    for _ in 0..100 {
        a.send(&one(b.local_addr(), &[0; 1400])).unwrap();
    }
    assert!(b.queued_bytes().unwrap() > 0);
    let dropped = b.dropped().unwrap();
    assert!((80..100).contains(&dropped), "{dropped} dropped");
    let mut batch = RecvBatch::new();
    let mut received = 0;
    while b.queued_bytes().unwrap() > 0 {
        received += b.recv(&mut batch, Some(Duration::ZERO)).unwrap() as u64;
    }
    assert_eq!(received + dropped, 100);
    assert_eq!(b.dropped().unwrap(), dropped);
}

#[test]
fn the_wait_ends_after_the_timeout() {
    let socket = bind(v4_loopback());
    let begin = Instant::now();
    assert_eq!(socket.recv(&mut RecvBatch::new(), Some(Duration::from_millis(30))).unwrap(), 0);
    assert!((Duration::from_millis(30)..TIMEOUT).contains(&begin.elapsed()));
}

#[test]
fn shutting_down_wakes_every_receiver_and_still_sends() {
    let socket = bind(v4_loopback());
    let (woken, wakings) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..3 {
            let (woken, socket) = (woken.clone(), &socket);
            scope.spawn(move || {
                let mut batch = RecvBatch::new();
                while !socket.is_shut_down() {
                    assert_eq!(socket.recv(&mut batch, None).unwrap(), 0);
                }
                woken.send(()).unwrap();
            });
        }
        assert!(wakings.recv_timeout(Duration::from_millis(50)).is_err(), "nobody wakes before");
        socket.shut_down();
        for _ in 0..3 {
            wakings.recv_timeout(TIMEOUT).expect("every receiver wakes");
        }
    });
    let other = bind(v4_loopback());
    socket.send(&one(other.local_addr(), b"last words")).unwrap();
    assert_eq!(receive(&other, &mut RecvBatch::new(), 1)[0].data, &b"last words"[..]);
    // What comes after is left alone.
    other.send(&one(socket.local_addr(), b"too late")).unwrap();
    assert_eq!(socket.recv(&mut RecvBatch::new(), Some(TIMEOUT)).unwrap(), 0);
}

#[test]
fn a_port_is_shared_only_on_request() {
    let first = bind(v4_loopback());
    let error = Socket::bind(first.local_addr(), &SocketOptions::default()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    let message = error.to_string();
    assert!(
        message.contains(&first.local_addr().to_string()) && message.contains("choose another port"),
        "{message}"
    );

    let sharing = SocketOptions { reuse_port: true, ..SocketOptions::default() };
    let first = Socket::bind(v4_loopback(), &sharing).unwrap();
    let second = Socket::bind(first.local_addr(), &sharing).unwrap();
    assert_eq!(first.local_addr(), second.local_addr());
}

#[test]
fn an_address_of_another_host_is_refused_with_advice() {
    // 192.0.2.0/24 is for documentation (RFC 5737): no host has it.
    let elsewhere: SocketAddr = "192.0.2.1:7001".parse().unwrap();
    let error = Socket::bind(elsewhere, &SocketOptions::default()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("192.0.2.1:7001"), "{error}");
    let (a, b) = (bind(v4_loopback()), bind(v4_loopback()));
    let transmit =
        Transmit { src_ip: Some(elsewhere.ip()), segment_size: Some(2), ..one(b.local_addr(), b"spoof") };
    let error = a.send(&transmit).unwrap_err();
    // Which of the two depends on the kernel.
    assert!(matches!(error, SendError::Io { .. } | SendError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
    // That failure costs later bundles nothing.
    check_bundle(&a, &b, 1000, 16_000);
    a.send(&Transmit { segment_size: Some(1000), ..one(b.local_addr(), &[0; 8000]) }).unwrap();
    let mut batch = RecvBatch::new();
    assert_eq!(b.recv(&mut batch, Some(TIMEOUT)).unwrap(), 1);
    assert_eq!(batch.drain().next().unwrap().data.len(), 8000);
}

/// A packet cut before its path turned out narrower may be fragmented; the next may not.
#[test]
fn only_what_may_be_fragmented_is() {
    for address in [v4_loopback(), v6_loopback()] {
        let (a, b) = (bind(address), bind(address));
        let discover = || match address {
            SocketAddr::V4(_) => sys::option(a.socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            SocketAddr::V6(_) => sys::option(a.socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        };
        let before = discover().unwrap();
        a.send_fragmentable(&one(b.local_addr(), &[1; 3000])).unwrap();
        assert_eq!(discover().unwrap(), before);
        let got = receive(&b, &mut RecvBatch::new(), 1);
        assert_eq!(got[0].data.len(), 3000);
    }
}
