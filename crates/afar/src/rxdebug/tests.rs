//! Fixed facts and the text they come to. The expected text is what rxdebug of OpenAFS 1.8.9 prints of the same facts.

use super::*;
use crate::classic::Parsed;
use rx_proto::abort::AbortCode;
use rx_proto::debug::{
    CallFlags, CallMode, CallQueues, CallState, Clock, ConnectionFlags, ConnectionSide, SecurityFlags,
    SecurityKind, SecurityLevel, SecurityStats,
};
use rx_proto::ids::{CallNumber, ConnectionId, Epoch, SecurityIndex, Serial};
use std::time::{Duration, UNIX_EPOCH};

fn query(line: &str) -> Result<Query, String> {
    let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    match COMMAND.parse(&args) {
        Ok(Parsed::Run(given)) => Query::new(&given).map_err(|refusal| match refusal {
            Refusal::Misuse(misuse) => misuse.to_string(),
            Refusal::Value(sentence) => sentence,
        }),
        Ok(Parsed::Help) => Err("help".into()),
        Err(misuse) => Err(misuse.to_string()),
    }
}

/// The time 1000 hours after 1970.
fn check(line: &str, facts: &Facts, expected: &str) {
    let now = UNIX_EPOCH + Duration::from_secs(1000 * 3600);
    assert_eq!(text::facts(&query(line).unwrap(), facts, now), expected);
}

fn stats(version: u8) -> DebugStats {
    DebugStats {
        n_free_packets: 100,
        packet_reclaims: 2,
        calls_executed: 3,
        used_fds: 200,
        version: DebugVersion(version),
        n_waiting: 4,
        idle_threads: 5,
        n_waited: 6,
        n_packets: 7,
        ..DebugStats::default()
    }
}

fn connection() -> DebugConnection {
    DebugConnection {
        host: Ipv4Addr::new(10, 0, 0, 1),
        port: 7001,
        cid: ConnectionId(0x1000),
        epoch: Epoch(0x1234_5678),
        serial: Serial(7),
        call_number: [1, 2, 3, 4].map(CallNumber),
        side: ConnectionSide::SERVER,
        ..DebugConnection::default()
    }
}

#[test]
fn options_come_as_people_type_them() {
    let all =
        query("127.0.0.1 vlserver -allc -rx -pe -l -nod -onlyh 10.0.0.1 -onlyp 7001 -onlya crypt").unwrap();
    assert_eq!(all.address, "127.0.0.1:7003".parse().unwrap());
    assert!(
        all.wants_all && all.wants_statistics && all.wants_peers && all.is_long && all.filter.skips_dallying
    );
    assert_eq!(all.filter.only_host, Some(Ipv4Addr::new(10, 0, 0, 1)));
    assert_eq!(all.filter.only_port, Some(7001));
    assert_eq!(all.filter.only_auth, Some(filter::Auth::Kad(SecurityLevel::CRYPT)));
    assert_eq!(query("-s ::1").unwrap().address, "[::1]:7000".parse().unwrap());
    assert_eq!(query("[::1] 7001 --json").unwrap().address, "[::1]:7001".parse().unwrap());
}

#[test]
fn wrong_values_are_told() {
    for (line, error) in [
        ("-version", "-servers <server machine> is missing"),
        ("127.0.0.1 -only", "could be any of -onlyserver, -onlyclient, -onlyport, -onlyhost, -onlyauth"),
        ("127.0.0.1 -js", "there is no option -js"),
        ("127.0.0.1 70000", "'70000' is no port"),
        ("127.0.0.1 -onlyhost ::1", "'::1' has no IPv4 address"),
        ("127.0.0.1 -onlyauth strong", "unknown authentication level 'strong'"),
    ] {
        let told = query(line).map(|_| ()).unwrap_err();
        assert!(told.contains(error), "{told}");
    }
}

#[test]
fn what_a_server_tells_depends_on_its_version() {
    let line = "127.0.0.1 -noconns";
    let facts = |version| Facts { stats: stats(version), ..Facts::default() };
    let new = "Free packets: 100/7, packet reclaims: 2, calls: 3, used FDs: 200
not waiting for packets.
4 calls waiting for a thread
5 threads are idle
6 calls have waited for a thread
";
    check(line, &facts(b'S'), new);
    let old = "Free packets: 100, packet reclaims: 2, calls: 3, used FDs: 200\nnot waiting for packets.\n";
    check(line, &facts(b'M'), old);
    check(line, &facts(b'N'), &format!("{old}4 calls waiting for a thread\n"));
    check(line, &facts(b'Q'), &format!("{old}4 calls waiting for a thread\n5 threads are idle\n"));
}

fn check_connections(line: &str, connections: Vec<DebugConnection>, skipped: usize, expected: &str) {
    let facts = Facts { stats: stats(b'L'), connections: Some(connections), skipped, ..Facts::default() };
    let head = "Free packets: 100, packet reclaims: 2, calls: 3, used FDs: 200\nnot waiting for packets.\n";
    check(line, &facts, &format!("{head}{expected}"));
}

#[test]
fn a_connection_shows_its_flags_and_its_calls() {
    let shown = DebugConnection {
        error: AbortCode(-5),
        flags: ConnectionFlags(0xff),
        side: ConnectionSide::CLIENT,
        nat_mtu: 1400,
        call_state: [1, 2, 9, 0].map(CallState),
        call_mode: [1, 4, 0, 1].map(CallMode),
        call_flags: [0xff, 0x80, 0, 1].map(CallFlags),
        call_other: [3, 0, 2, 1].map(CallQueues),
        ..connection()
    };
    let flags = "MAKECALL_WAITING DESTROYED pktCksum knowWindow reset busy attachWait";
    let call_flags =
        "reader_wait window_alloc window_send wait_packets waiting_for_process receive_done call_cleared";
    let text = format!(
        "Connection from host 10.0.0.1, port 7001, Cuid 12345678/1000, error -5
  serial 7,  natMTU 1400, flags {flags}, security index 0, client conn
    call 0: # 1, state precall, mode: sending, flags: {call_flags}, has_input_packets, has_output_packets
    call 1: # 2, state active, mode: eof, flags:
    call 2: # 3, state mode: unknown, has_output_packets
    call 3: # 4, state not initialized
Done.
"
    );
    check_connections("127.0.0.1", vec![shown], 0, &text);
}

#[test]
fn a_connection_shows_its_security() {
    let kad = SecurityStats {
        kind: SecurityKind::KAD,
        level: SecurityLevel::CRYPT,
        flags: SecurityFlags(10),
        expires: 1002 * 3600 + 360,
        packets_received: 5,
        packets_sent: 6,
        bytes_received: 7,
        bytes_sent: 4_000_000_000,
        ..SecurityStats::default()
    };
    let traffic = "  Received 7 bytes in 5 packets\n  Sent 4000000000 bytes in 6 packets\n";
    let in_time = "  rxkad: level crypt, flags authenticated pktCksum, expires in 2.1 hours\n";
    let unknown_level = SecurityStats { level: SecurityLevel(3), flags: SecurityFlags(0), expires: 0, ..kad };
    let unallocated = SecurityStats { flags: SecurityFlags(1), expires: 1, ..kad };
    let null = SecurityStats { kind: SecurityKind::NULL, ..kad };
    for (index, sec_stats, security) in [
        (2, kad, format!("{in_time}{traffic}")),
        (2, unknown_level, format!("  rxkad: level unknown\n{traffic}")),
        (2, unallocated, "  rxkad: level crypt, flags unalloc, expires in -1000.0 hours\n".into()),
        (1, null, "  rxnull level=2, flags=10\n".into()),
        (4, SecurityStats { kind: SecurityKind(9), ..kad }, "  unknown\n".into()),
        (2, SecurityStats::default(), "  no GetStats procedure for security object\n".into()),
        (0, SecurityStats::default(), String::new()),
    ] {
        let shown = DebugConnection {
            epoch: Epoch(0),
            security_index: SecurityIndex(index),
            sec_stats,
            ..connection()
        };
        let text = format!(
            "Connection from host 10.0.0.1, port 7001, cid 1000
  serial 7,  natMTU 0, security index {index}, server conn
{security}    call 0: # 1, state not initialized
    call 1: # 2, state not initialized
    call 2: # 3, state not initialized
    call 3: # 4, state not initialized
Done.
"
        );
        check_connections("127.0.0.1", vec![shown], 0, &text);
    }
}

#[test]
fn conditions_are_named_before_the_connections() {
    let line = "127.0.0.1 -onlyport 7001 -onlyhost 10.0.0.1 -onlyauth none -onlyclient -onlyserver -allconnections -nodally";
    let text = "Showing only server connections
Showing only client connections
Showing only unauthenticated connections
Showing only connections from host 10.0.0.1
Showing only connections on port 7001
Done.
Skipped 3 dallying connections.
";
    check_connections(line, vec![], 3, text);
    check_connections(
        "127.0.0.1 -onlyauth crypt",
        vec![],
        0,
        "Showing only rxkad_crypt connections\nDone.\n",
    );
}

#[test]
fn a_peer_shows_more_when_asked() {
    let peer = DebugPeer {
        host: Ipv4Addr::new(10, 0, 0, 1),
        port: 7001,
        if_mtu: 1444,
        rtt: 17,
        rtt_dev: 5,
        timeout: Clock { sec: 1, usec: 34_567 },
        n_sent: 10,
        re_sends: 3,
        in_packet_skew: 1,
        out_packet_skew: 2,
        nat_mtu: 1400,
        max_mtu: 5692,
        max_dgram_packets: 4,
        if_dgram_packets: 3,
        mtu: 1444,
        cwind: 8,
        n_dgram_packets: 2,
        bytes_sent: 0x1_0000_0002,
        bytes_received: 5,
        ..DebugPeer::default()
    };
    let facts = Facts { stats: stats(b'M'), peers: Some(vec![peer]), ..Facts::default() };
    let short = "Free packets: 100, packet reclaims: 2, calls: 3, used FDs: 200
not waiting for packets.
Peer at host 10.0.0.1, port 7001
\tifMTU 1444\tnatMTU 1400\tmaxMTU 5692
\tpackets sent 10\tpacket resends 3
\tbytes sent high 1 low 2
\tbytes received high 0 low 5
\trtt 2 msec, rtt_dev 1 msec
\ttimeout 1.034 sec
";
    let long = "\tin/out packet skew: 1/2
\tcongestion window 8, MTU 1444
\tcurrent/if/max jumbogram size: 2/3/4
";
    check("127.0.0.1 -peers -noconns", &facts, &format!("{short}Done.\n"));
    check("127.0.0.1 -peers -noconns -long", &facts, &format!("{short}{long}Done.\n"));
}

/// Each counter has another value: its place in the record, and 1000.
#[test]
fn every_counter_stands_in_its_place() {
    let body: Vec<u8> = (1000..1071_u32).flat_map(u32::to_be_bytes).collect();
    let statistics = RxStatistics::parse(&body).unwrap();
    let facts = |len| Facts { stats: stats(b'P'), statistics: Some((statistics, len)), ..Facts::default() };
    let head = "Free packets: 100, packet reclaims: 2, calls: 3, used FDs: 200
not waiting for packets.
4 calls waiting for a thread
5 threads are idle
";
    let text = "rx stats: free packets 100, allocs 1000, alloc-failures(rcv 1001/1064,send 1002/1065,ack 1003)
   greedy 1004, bogusReads 1005 (last from host 3ee), noPackets 1007, noBuffers 1008, selects 1009, sendSelects 1010
   packets read: data 1011 ack 1012 busy 1013 abort 1014 ackall 1015 challenge 1016 response 1017 debug 1018 \
params 1019 unused 1020 unused 1021 unused 1022 version 1023 \n   \
other read counters: data 1024, ack 1025, dup 1026 spurious 1027 dally 1063
   packets sent: data 1028 ack 1029 busy 1030 abort 1031 ackall 1032 challenge 1033 response 1034 debug 1035 \
params 1036 unused 1037 unused 1038 unused 1039 version 1040 \n   \
other send counters: ack 1041, data 1045 (not resends), resends 1046, pushed 1047, acked&ignored 1048
   \t(these should be small) sendFailed 1061, fatalErrors 1062
   Average rtt is 0.994, with 1055 samples
   Minimum rtt is 1051.001, maximum is 1053.001
   1056 server connections, 1057 client connections, 1058 peer structs, 1059 call structs, 1060 free call structs
";
    check("127.0.0.1 -rxstats -noconns", &facts(284), &format!("{head}{text}"));
    let short = "WARNING: returned Rx statistics of unexpected size (got 240)\n";
    check("127.0.0.1 -rxstats -noconns", &facts(240), &format!("{head}{short}{text}"));
}

#[test]
fn a_failure_ends_the_text_where_it_came() {
    let failure = |kind| Some(Failure { kind, error: ProbeError::Silence(Duration::from_secs(31)) });
    let nothing = Facts { failure: failure(DebugKind::STATS), ..Facts::default() };
    check("127.0.0.1", &nothing, "getstats call failed with code -1\n");
    let connections = Some(vec![]);
    let half = Facts {
        stats: stats(b'M'),
        connections,
        failure: failure(DebugKind::CONNECTION),
        ..Facts::default()
    };
    let head = "Free packets: 100, packet reclaims: 2, calls: 3, used FDs: 200\nnot waiting for packets.\n";
    check("127.0.0.1", &half, &format!("{head}getconn call failed with code -1\n"));
}
