//! `rxdebug` as a program, called by its classic name, against a server that gives the answers which a fileserver and a
//! vlserver of OpenAFS 1.8.9 once gave (captured; zeros at the end are left out).

use crate::mounted::our_program;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Output;
use std::thread;

const HEADER_LEN: usize = 28;

/// Question (type and index, or `VERSION`), length and first bytes of the answer.
const ANSWERS: &[((i32, i32), usize, &str)] = &[
    (VERSION, 65, "4f70656e41465320312e382e392d312b646562313275312d64656269616e20323032342d31322d3235"),
    ((1, 0), 56, "0000015f 00000000 000000d0 000a5300 00000000 00000001 00000000 0000038b"),
    (
        (3, 0),
        176,
        "0a580002 b47f0b88 00000006 00000006 00000000 00000000 00000000 00000000 a0580401 02000000 \
         00000000 00000000 00000000 00000000 03000000 00000000 00000000 0000000a 7fffffff 00000005 \
         00000002 00000214 00000004 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
         00000000 00000000 00000000 a307ff1b 000005a4",
    ),
    (
        (3, 1),
        176,
        "0a580001 7db18ce4 00000002 00000002 00000000 00000000 00000000 00000000 b86f0001 00000000 \
         03000000 04000000 20000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
         00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
         00000000 00000000 00000000 9e39e49c 000005a4",
    ),
    ((3, 2), 176, "00000000 ffffffff"),
    (
        (4, 0),
        284,
        "000004f9 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
         00000000 00000235 00000184 00000000 00000000 00000000 00000003 0000001a 0000006b 00000000 \
         00000000 00000000 00000000 00000000 00000235 00000184 00000000 0000000a 000002a8 0000017b \
         00000000 00000000 00000000 0000001a 00000003 00000000 00000000 00000000 00000000 00000000 \
         00000000 0000017b 00000000 00000000 00000000 00000297 00000011 00000000 00000460 00000000 \
         0008f6d7 00000000 0000000f 00000000 0000749d 00000153 00000027 00000024 00000027 00000025 \
         00000018 00000002",
    ),
    (
        (5, 0),
        132,
        "0a620006 1b5905a4 00000000 00030000 00000000 00000000 0000520e 00000bb1 00000000 00000000 \
         00000003 00000000 00000000 00000000 00000000 05a405a4 00010001 05a40002 00010000 00000000 \
         00000908 00000000 00000091",
    ),
    ((5, 1), 132, "ffffffff"),
];

const VERSION: (i32, i32) = (i32::MIN, 0);

fn bytes(hex: &str, len: usize) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    let mut bytes: Vec<u8> = digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect();
    bytes.resize(len, 0);
    bytes
}

/// Starts the server. It does not answer the first datagram, which may be lost on any network.
fn serve(address: IpAddr) -> SocketAddr {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let local = socket.local_addr().unwrap();
    let answers: HashMap<_, _> = ANSWERS.iter().map(|(q, len, hex)| (*q, bytes(hex, *len))).collect();
    thread::spawn(move || {
        let mut packet = [0; 2000];
        for count in 0.. {
            let (len, from) = socket.recv_from(&mut packet).unwrap();
            let (header, body) = packet[..len].split_at(HEADER_LEN);
            assert_eq!(header[..8], [0, 0, 3, 0xe7, 0, 0, 0, 0]); // epoch 999, cid 0
            assert_eq!(header[21], 5); // CLIENT_INITIATED, LAST_PACKET
            let question = match header[20] {
                13 => VERSION,
                _ => {
                    let word = |at: usize| i32::from_be_bytes(body[at..at + 4].try_into().unwrap());
                    (word(0), word(4))
                }
            };
            let mut reply = header.to_vec();
            reply[21] = 4;
            match answers.get(&question) {
                Some(answer) => reply.extend_from_slice(answer),
                None => reply.extend_from_slice(&bytes("fffffff8 fffffff8", 8)),
            }
            if count > 0 {
                socket.send_to(&reply, from).unwrap();
            }
        }
    });
    local
}

fn rxdebug(server: SocketAddr, options: &str) -> Output {
    let mut command = our_program();
    command.arg0("/usr/bin/rxdebug").arg(server.ip().to_string()).arg(server.port().to_string());
    command.args(options.split_whitespace()).output().unwrap()
}

#[test]
fn a_captured_server_is_shown_as_text() {
    let server = serve(Ipv4Addr::LOCALHOST.into());
    let output = rxdebug(server, "-allconnections -rxstats -peers -long -onlyserver");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = String::from_utf8(output.stdout).unwrap();
    // The one line that depends on the day.
    let at = text.find("expires in ").unwrap();
    let end = at + text[at..].find(" hours").unwrap();
    let text = format!("{}expires in N{}", &text[..at], &text[end..]);
    let expected = format!(
        "Trying 127.0.0.1 (port {}):
Free packets: 351/907, packet reclaims: 0, calls: 208, used FDs: 10
not waiting for packets.
0 calls waiting for a thread
1 threads are idle
0 calls have waited for a thread
rx stats: free packets 351, allocs 1273, alloc-failures(rcv 0/0,send 0/0,ack 0)
   greedy 0, bogusReads 0 (last from host 0), noPackets 0, noBuffers 0, selects 0, sendSelects 0
   packets read: data 565 ack 388 busy 0 abort 0 ackall 0 challenge 3 response 26 debug 107 params 0 \
unused 0 unused 0 unused 0 version 0 \n   \
other read counters: data 565, ack 388, dup 0 spurious 10 dally 0
   packets sent: data 680 ack 379 busy 0 abort 0 ackall 0 challenge 26 response 3 debug 0 params 0 \
unused 0 unused 0 unused 0 version 0 \n   \
other send counters: ack 379, data 663 (not resends), resends 17, pushed 0, acked&ignored 1120
   \t(these should be small) sendFailed 2, fatalErrors 0
   Average rtt is 0.002, with 339 samples
   Minimum rtt is 0.000, maximum is 0.030
   39 server connections, 36 client connections, 39 peer structs, 37 call structs, 24 free call structs
Showing only server connections
Connection from host 10.88.0.2, port 41048, Cuid a307ff1b/b47f0b88
  serial 6,  natMTU 1444, flags pktCksum, security index 2, server conn
  rxkad: level clear, flags authenticated pktCksum, expires in N hours
  Received 532 bytes in 5 packets
  Sent 4 bytes in 2 packets
    call 0: # 6, state not initialized
    call 1: # 0, state not initialized
    call 2: # 0, state not initialized
    call 3: # 0, state not initialized
Connection from host 10.88.0.1, port 47215, Cuid 9e39e49c/7db18ce4
  serial 2,  natMTU 1444, security index 0, server conn
    call 0: # 2, state dally, mode: eof, flags: receive_done
    call 1: # 0, state not initialized
    call 2: # 0, state not initialized
    call 3: # 0, state not initialized
Done.
Peer at host 10.98.0.6, port 7001
\tifMTU 1444\tnatMTU 1444\tmaxMTU 1444
\tpackets sent 3\tpacket resends 0
\tbytes sent high 0 low 2312
\tbytes received high 0 low 145
\trtt 2625 msec, rtt_dev 748 msec
\ttimeout 0.000 sec
\tin/out packet skew: 0/0
\tcongestion window 2, MTU 1444
\tcurrent/if/max jumbogram size: 1/1/1
Done.
",
        server.port()
    );
    assert_eq!(text, expected);
}

#[test]
fn a_captured_server_is_shown_as_json() {
    let server = serve(Ipv4Addr::LOCALHOST.into());
    let output = rxdebug(server, "-allconnections -rxstats -peers -nodally -json");
    assert!(output.status.success(), "{output:?}");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["host"], "127.0.0.1");
    assert_eq!(all["stats"]["version"], "S");
    assert_eq!(all["stats"]["n_packets"], 907);
    assert_eq!(all["rx_statistics"]["packets_read"][6], 26);
    assert_eq!(all["rx_statistics"]["max_rtt"]["usec"], 29853);
    assert_eq!(all["skipped_dallying"], 2);
    assert_eq!(all["connections"], serde_json::json!([]));
    assert_eq!(all["peers"][0]["host"], "10.98.0.6");
    assert_eq!(all["peers"][0]["bytes_sent"], 2312);
    assert!(all["peers"][0].get("sparel").is_none());

    let output = rxdebug(server, "-allconnections --json");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let connection = &all["connections"][0];
    assert_eq!((&connection["epoch"], &connection["cid"]), (&"a307ff1b".into(), &"b47f0b88".into()));
    assert_eq!(connection["security"]["level"], "clear");
    assert_eq!(connection["security"]["flags"], serde_json::json!(["authenticated", "pktCksum"]));
    assert_eq!(all["connections"][1]["calls"][0]["state"], "dally");
    assert!(all.get("peers").is_none() && all.get("rx_statistics").is_none());
}

#[test]
fn the_version_is_shown_over_ipv6_too() {
    let loopbacks: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for address in loopbacks {
        if UdpSocket::bind((address, 0)).is_err() {
            continue; // no IPv6 here
        }
        let server = serve(address);
        let output = rxdebug(server, "-version");
        let expected = format!(
            "Trying {address} (port {}):\nAFS version: OpenAFS 1.8.9-1+deb12u1-debian 2024-12-25\n",
            server.port()
        );
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        assert!(output.status.success());
    }
}

/// It answers no question of type 2, so this server cannot show its connections.
#[test]
fn a_question_without_an_answer_is_a_failure() {
    let server = serve(Ipv4Addr::LOCALHOST.into());
    let output = rxdebug(server, "");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("getconn call failed with code -1\n"));
    let error = format!("rxdebug: {server}: connection: the server does not know this question\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), error);
}

#[test]
fn a_wrong_command_line_is_a_failure_and_help_is_none() {
    let run = |name: &str, args: &str| {
        let mut command = our_program();
        command.arg0(name).args(args.split_whitespace()).output().unwrap().status.code()
    };
    assert_eq!(run("rxdebug", "-bogus"), Some(2));
    assert_eq!(run("rxdebug", "localhost no-port"), Some(1));
    assert_eq!(run("rxdebug", "-help"), Some(0));
    assert_eq!(run("afar", "rxdebug -help"), Some(0));
    assert_eq!(run("afar", "help"), Some(0));
    assert_eq!(run("afar", ""), Some(2));
    assert_eq!(run("afar", "no-such-command"), Some(2));
}
