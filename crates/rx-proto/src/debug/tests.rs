//! Tests that what a real server said reads as it should, and writes back byte by byte. The bytes are from a capture of
//! OpenAFS
//! 1.8.9's rxdebug; zeros at the end are left out.

use super::*;

/// Frame 4: a fileserver.
const STATS: &str = "00000184 00000000 000000b9 00275300 00000000 0000000b 00000000 00000319";

/// Frame 6: the same.
const STATISTICS: &str = "\
    000004f9 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
    00000000 00000235 00000184 00000000 00000000 00000000 00000003 0000001a 0000006b 00000000 \
    00000000 00000000 00000000 00000000 00000235 00000184 00000000 0000000a 000002a8 0000017b \
    00000000 00000000 00000000 0000001a 00000003 00000000 00000000 00000000 00000000 00000000 \
    00000000 0000017b 00000000 00000000 00000000 00000297 00000011 00000000 00000460 00000000 \
    0008f6d7 00000000 0000000f 00000000 0000749d 00000153 00000027 00000024 00000027 00000025 \
    00000018 00000002";

/// Frame 14: a vlserver, rxkad.
const KERBEROS_CONNECTION: &str = "\
    0a580002 b47f0b88 00000006 00000006 00000000 00000000 00000000 00000000 a0580401 02000000 \
    00000000 00000000 00000000 00000000 03000000 00000000 00000000 0000000a 7fffffff 00000005 \
    00000002 00000214 00000004 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
    00000000 00000000 00000000 a307ff1b 000005a4";

/// Frame 18: a vlserver, no security, a call in channel 0 that dallies.
const CALL_CONNECTION: &str = "\
    0a580001 7db18ce4 00000002 00000002 00000000 00000000 00000000 00000000 b86f0001 00000000 \
    03000000 04000000 20000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
    00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
    00000000 00000000 00000000 9e39e49c 000005a4";

/// Frame 256: a cache manager, seen by a vlserver.
const PEER: &str = "\
    0a620006 1b5905a4 00000000 00030000 00000000 00000000 0000520e 00000bb1 00000000 00000000 \
    00000003 00000000 00000000 00000000 00000000 05a405a4 00010001 05a40002 00010000 00000000 \
    00000908 00000000 00000091";

fn hex(text: &str, len: usize) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |d: u8| char::from(d).to_digit(16).unwrap() as u8;
    let mut bytes: Vec<u8> = digits.chunks(2).map(|d| digit(d[0]) << 4 | digit(d[1])).collect();
    bytes.resize(len, 0);
    bytes
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

#[test]
fn the_sizes_are_those_on_the_wire() {
    let sizes = [DebugStats::LEN, RxStatistics::LEN, DebugConnection::LEN, DebugPeer::LEN];
    assert_eq!(sizes, [56, 284, 176, 132]);
}

#[test]
fn captured_stats_read_and_write_back() {
    let body = hex(STATS, DebugStats::LEN);
    let stats = DebugStats::parse(&body).unwrap();
    assert_eq!((stats.n_free_packets, stats.calls_executed, stats.n_packets), (388, 185, 793));
    assert_eq!((stats.idle_threads, stats.used_fds, stats.version), (11, 39, DebugVersion::CURRENT));
    assert_eq!(encoded(|out| stats.encode(out)), body);
}

#[test]
fn captured_statistics_read_and_write_back() {
    let body = hex(STATISTICS, RxStatistics::LEN);
    let all = RxStatistics::parse(&body).unwrap();
    assert_eq!((all.packet_requests, all.packets_read[0], all.packets_read[7]), (1273, 565, 107));
    assert_eq!((all.data_packets_sent, all.n_rtt_samples, all.n_client_conns), (663, 339, 36));
    assert_eq!((all.total_rtt, all.n_call_structs), (Clock { sec: 0, usec: 587_479 }, 37));
    assert_eq!(encoded(|out| all.encode(out)), body);
}

#[test]
fn a_captured_kerberos_connection_reads_and_writes_back() {
    let body = hex(KERBEROS_CONNECTION, DebugConnection::LEN);
    let conn = DebugConnection::parse(&body, DebugVersion::CURRENT).unwrap();
    assert_eq!((conn.host, conn.port), (Ipv4Addr::new(10, 88, 0, 2), 41048));
    assert_eq!((conn.epoch, conn.cid), (Epoch(0xa307_ff1b), ConnectionId(0xb47f_0b88)));
    assert_eq!((conn.side, conn.security_index), (ConnectionSide::SERVER, SecurityIndex(2)));
    assert_eq!(conn.flags, ConnectionFlags::PACKET_CHECKSUM);
    let security = conn.sec_stats;
    assert_eq!((security.kind, security.level), (SecurityKind::KAD, SecurityLevel::CLEAR));
    assert_eq!(security.flags, SecurityFlags::AUTHENTICATED.with(SecurityFlags::PACKET_CHECKSUM));
    assert_eq!((security.packets_received, security.packets_sent), (5, 2));
    assert_eq!((security.bytes_received, security.bytes_sent), (532, 4));
    assert_eq!((conn.nat_mtu, conn.is_end()), (1444, false));
    assert_eq!(encoded(|out| conn.encode(DebugVersion::CURRENT, out)), body);
}

#[test]
fn a_captured_call_is_seen_in_its_connection() {
    let body = hex(CALL_CONNECTION, DebugConnection::LEN);
    let conn = DebugConnection::parse(&body, DebugVersion::CURRENT).unwrap();
    assert_eq!(conn.call_number[0], CallNumber(2));
    assert_eq!(conn.call_state[0], CallState::DALLY);
    assert_eq!(conn.call_mode[0], CallMode::EOF);
    assert_eq!(conn.call_flags[0], CallFlags::RECEIVE_DONE);
    assert_eq!(conn.call_state[1..], [CallState::NOT_INITIALIZED; 3]);
    assert_eq!(encoded(|out| conn.encode(DebugVersion::CURRENT, out)), body);
}

#[test]
fn a_captured_peer_reads_and_writes_back() {
    let body = hex(PEER, DebugPeer::LEN);
    let peer = DebugPeer::parse(&body).unwrap();
    assert_eq!((peer.host, peer.port), (Ipv4Addr::new(10, 98, 0, 6), 7001));
    assert_eq!((peer.rtt, peer.rtt_dev), (21006, 2993));
    assert_eq!((peer.nat_mtu, peer.max_mtu, peer.mtu, peer.cwind), (1444, 1444, 1444, 2));
    assert_eq!((peer.bytes_sent, peer.bytes_received, peer.n_sent), (2312, 145, 3));
    assert_eq!(encoded(|out| peer.encode(out)), body);
}

#[test]
fn the_ends_of_the_lists_are_as_captured() {
    let conns = encoded(|out| DebugConnection::end().encode(DebugVersion::CURRENT, out));
    assert_eq!(conns, hex("00000000 ffffffff", DebugConnection::LEN)); // frame 146
    assert!(DebugConnection::parse(&conns, DebugVersion::CURRENT).unwrap().is_end());
    let peers = encoded(|out| DebugPeer::end().encode(out));
    assert_eq!(peers, hex("ffffffff", DebugPeer::LEN)); // frame 284
    assert!(DebugPeer::parse(&peers).unwrap().is_end());
}

/// Before `M` the three bytes of padding stood elsewhere, and before `L` nothing stood behind them.
#[test]
fn connections_of_old_servers_read_and_write_back() {
    let today: Vec<u8> = (1..=176).collect();
    let conn = DebugConnection::parse(&today, DebugVersion::CURRENT).unwrap();
    for (version, len) in [(DebugVersion(b'L'), 172), (DebugVersion(b'K'), 56)] {
        let old = encoded(|out| conn.encode(version, out));
        assert_eq!(old.len(), len);
        assert_eq!((old[36], old[37], old[53]), (today[36], today[40], today[37]));
        let read = DebugConnection::parse(&old, version).unwrap();
        assert_eq!((read.call_state, read.call_other), (conn.call_state, conn.call_other));
        assert_eq!(encoded(|out| read.encode(version, out)), old);
        let read = DebugConnection::parse(&old[..53], version).unwrap();
        assert_eq!(read.call_other, conn.call_other);
    }
}

#[test]
fn every_length_of_a_record_is_an_answer_and_not_a_panic() {
    let body = vec![0x5a; 400];
    for len in 0..body.len() {
        let body = &body[..len];
        assert_eq!(DebugStats::parse(body).is_ok(), len >= 16);
        assert_eq!(DebugPeer::parse(body).is_ok(), len >= 8);
        assert_eq!(RxStatistics::parse(body).is_ok(), len >= 4);
        for version in [b'A', b'L', b'S', 0xff] {
            assert_eq!(DebugConnection::parse(body, DebugVersion(version)).is_ok(), len >= 53);
        }
        assert_eq!(DebugRequest::parse(body).is_ok(), len >= 8);
        parse_version(body);
        assert!(!is_not_supported(body));
    }
}

#[test]
fn what_is_missing_is_zero_and_what_is_more_is_ignored() {
    let body = hex(STATS, 60);
    assert_eq!(DebugStats::parse(&body[..16]).unwrap().n_packets, 0);
    assert_eq!(DebugStats::parse(&body), DebugStats::parse(&body[..56]));
}

#[test]
fn questions_read_and_write_back() {
    let question = DebugRequest { kind: DebugKind::PEER, index: 0x42 };
    assert_eq!(question.to_bytes(), [0, 0, 0, 5, 0, 0, 0, 0x42]);
    assert_eq!(DebugRequest::parse(&question.to_bytes()), Ok(question));
    // Observed: 1.8.9 answers a question of type 99 with these eight bytes.
    assert_eq!(DebugRequest::NOT_SUPPORTED.to_bytes(), *hex("fffffff8 fffffff8", 8));
    assert!(is_not_supported(&DebugRequest::NOT_SUPPORTED.to_bytes()));
    assert_eq!(format!("{:?}", DebugKind(99)), "DebugKind(99)");
}

#[test]
fn headers_are_as_captured() {
    let request = request_header(PacketType::DEBUG, FIRST_QUESTION);
    let reply = reply_header(&request).unwrap();
    assert_eq!(request.to_bytes(), *hex("000003e7 00000000 00000065 00000000 00000000 0805", 28)); // frame 3
    assert_eq!(reply.to_bytes(), *hex("000003e7 00000000 00000065 00000000 00000000 0804", 28)); // frame 4
    // The NAT ping of another capture: no answer.
    assert_eq!(NAT_PING.to_bytes(), *hex("000003e7 00000000 00000000 00000000 00000000 0d04", 28));
    assert_eq!(reply_header(&NAT_PING), None);
}

#[test]
fn a_version_text_is_cut_and_padded() {
    let body = version_body("afar 0.1");
    assert_eq!(parse_version(&body), "afar 0.1");
    let long = "x".repeat(100);
    assert_eq!(parse_version(&version_body(&long)), long[..64]);
    assert_eq!(parse_version(long.as_bytes()), long[..64]);
    assert_eq!(parse_version(b""), "");
    assert_eq!(parse_version(b"\xffA\0B"), "\u{fffd}A");
}

#[test]
fn fields_come_by_name_and_without_the_spare_ones() {
    let fields = DebugStats::parse(&hex(STATS, 56)).unwrap().fields();
    assert_eq!(fields[0], ("n_free_packets", Value::Number(388)));
    assert_eq!(fields.last(), Some(&("n_packets", Value::Number(793))));
    assert_eq!(RxStatistics::default().fields().len(), 40);
}

#[test]
fn flags_come_as_words() {
    let words: Vec<_> = ConnectionFlags(0xa4).words().collect();
    assert_eq!(words, ["pktCksum", "busy"]);
    assert_eq!(CallFlags(0x80).words().count(), 0);
    assert_eq!(format!("{:?}", CallState(9)), "CallState(9)");
}
