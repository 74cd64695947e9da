//! What strangers and liars may cost: spoofed, cut, oversized and replayed packets end in bounded memory and time and never
//! in a panic, and an address that has not been shown to be reachable gets at most three bytes for one.

use crate::support::raw_server::{Copies, LONG, Server, ack, address, header, packet, request};
use afs_sim::world::{Job, Link, World, ms};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::abort::AbortCode;
use rx_proto::config::Config;
use rx_proto::debug;
use rx_proto::endpoint::{ANSWER_BURST, ANSWER_RATE, ANSWER_RATE_EACH, Event};
use rx_proto::ids::{CallNumber, Channel, ConnectionId, Seq, Serial, ServiceId};
use rx_proto::packet::{Flags, HEADER_LEN, Header, PacketType};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

#[test]
fn an_address_that_shows_nothing_gets_three_bytes_for_one() {
    let mut rng = StdRng::seed_from_u64(1);
    for check_reach in [true, false] {
        let mut server = Server::new(check_reach, Config::default());
        for round in 0..3000u32 {
            let from = address(round % 40);
            let kind =
                [PacketType::DATA, PacketType::DATA, PacketType::DATA, PacketType::ACK, PacketType::ABORT]
                    [rng.random_range(0..5)];
            let mut h = header(kind, round % 60);
            h.channel = Channel::of(rng.random());
            h.call = CallNumber(rng.random_range(0..3));
            h.seq = Seq(rng.random_range(0..40));
            let more = [Flags::NONE, Flags::LAST_PACKET, Flags::REQUEST_ACK][rng.random_range(0..3)];
            h.flags = h.flags.with(more);
            if rng.random_bool(0.2) {
                h.service = ServiceId(9);
                h.connection = ConnectionId(rng.random::<u32>() & !3);
            }
            let body = match kind {
                PacketType::ACK => {
                    ack(rng.random_range(0..4), 9, rng.random_range(0..5), 7, &[1; 9], &[1444, 1444, 255, 1])
                }
                _ => vec![0; [4, 100, 1416, 9000][rng.random_range(0..4)]],
            };
            server.receive(from, packet(h, &body));
            server.send();
            server.pass(ms(rng.random_range(0..300)));
            for (to, sent) in &server.sent {
                let received = server.received.get(to).copied().unwrap_or(0);
                assert!(*sent <= 3 * received, "{to} gave {received} and got {sent}");
            }
        }
        assert!(!server.sent.is_empty());
    }
}

/// kAFS asks for an ACK with every request. The ACK used up what a request of four bytes pays for, and the ping was withheld.
#[test]
fn the_smallest_request_pays_for_the_ping() {
    let mut server = Server::new(true, Config::default());
    let mut h = header(PacketType::DATA, 1);
    h.flags = h.flags.with(Flags::LAST_PACKET).with(Flags::REQUEST_ACK);
    server.receive(address(1), packet(h, &[0; 4]));
    let [(_, ping)] = &server.send()[..] else { panic!("one packet") };
    assert_eq!((ping[20], ping[HEADER_LEN + 16]), (PacketType::ACK.0, 6));
    assert_eq!(ping[HEADER_LEN + 4..HEADER_LEN + 8], [0, 0, 0, 2], "and it acknowledges the request");
}

/// Serials of a server began at 1, and whoever named 1 in an ACK had shown to be there.
#[test]
fn reachability_is_not_shown_by_guessing() {
    for check_reach in [true, false] {
        let mut server = Server::new(check_reach, Config::default());
        let from = address(1);
        server.receive(from, request(1, 4));
        server.send();
        for serial in 0..2000 {
            for reason in [7, 1, 9] {
                let body = ack(2, 1, serial, reason, &[1], &[1444, 1444, 255, 1]);
                server.receive(from, packet(header(PacketType::ACK, 1), &body));
            }
        }
        server.send();
        assert!(!server.endpoint.path_to(from).unwrap().is_verified());
    }
}

#[test]
fn a_million_first_packets_leave_no_more_than_the_strangers_allowed() {
    let config = Config::default();
    let allowed = config.max_unverified;
    let mut server = Server::new(true, config);
    for n in 0..1_000_000 {
        server.endpoint.handle_datagram(server.now, address(n), request(n, 4).into());
        if n % 64 == 0 {
            server.now += Duration::from_micros(64);
            server.send();
            server.sent.clear();
        }
    }
    let usage = server.endpoint.usage();
    assert!(usage.connections <= allowed && usage.paths <= allowed + 64, "{usage:?}");
    assert!(usage.timers <= 2 * (usage.connections + usage.paths) + 64, "{usage:?}");
    server.pass(Duration::from_secs(720));
    assert_eq!(server.endpoint.usage(), rx_proto::endpoint::Usage::default());
}

#[test]
fn the_same_while_the_socket_takes_nothing() {
    let config = Config { max_unverified: 100, ..Config::default() };
    let mut server = Server::new(true, config);
    for n in 0..100_000 {
        let mut bad = header(PacketType::DATA, n);
        bad.service = ServiceId(9);
        let question = packet(debug::request_header(PacketType::VERSION, CallNumber(1)), &[0]);
        for packet in [request(n, 4), packet(bad, &[0; 4]), question] {
            server.endpoint.handle_datagram(server.now, address(n), packet.into());
        }
    }
    let usage = server.endpoint.usage();
    assert!(usage.connections <= 100 && usage.paths <= 400, "{usage:?}");
}

/// The list of strangers held those that had since shown to be there; with all of them so, the newcomer itself was dropped
/// and then used.
#[test]
fn a_newcomer_finds_room_after_many_that_turned_out_well() {
    let config = Config { max_unverified: 10, ..Config::default() };
    let mut server = Server::new(true, config);
    for n in 0..100 {
        let from = address(n);
        server.receive(from, request(n, 4));
        let pings = server.send();
        let ping = pings.iter().find(|(to, p)| *to == from && p[20] == 2 && p[HEADER_LEN + 16] == 6);
        let serial = Header::parse(&ping.expect("it is asked").1).unwrap().serial;
        let body = ack(1, 0, serial.0, 7, &[], &[1444, 1444, 255, 1]);
        server.receive(from, packet(header(PacketType::ACK, n), &body));
        server.send();
        assert!(server.endpoint.path_to(from).unwrap().is_verified());
    }
    assert_eq!(server.endpoint.stats().evicted, 0);
    assert_eq!(server.endpoint.connection_count(), 100);
}

/// Room was made by dropping the oldest stranger, whose path was that of the newcomer, and went with it.
#[test]
fn a_full_server_makes_room_even_from_the_same_address() {
    let config = Config { max_connections: 1, ..Config::default() };
    let mut server = Server::new(true, config);
    for n in 0..10 {
        server.receive(address(1), request(n, 4));
    }
    server.receive(address(2), request(100, 4));
    let usage = server.endpoint.usage();
    assert_eq!((usage.connections, usage.paths), (1, 1));
}

#[test]
fn questions_are_answered_up_to_the_allowance_whoever_asks() {
    let mut server = Server::new(true, Config::default());
    let mut sent = 0;
    for n in 0..100_000u32 {
        let request = debug::DebugRequest { kind: debug::DebugKind(n as i32 % 7), index: n as i32 % 5 };
        let header = debug::request_header(
            if n % 3 == 0 { PacketType::VERSION } else { PacketType::DEBUG },
            CallNumber(n),
        );
        server.receive(address(n % 5000), packet(header, &request.to_bytes()));
        server.send();
        server.now += Duration::from_micros(50);
        sent = server.sent.values().sum::<u64>();
    }
    // Five seconds, and the second that is saved up.
    assert!((4 * ANSWER_RATE..=6 * ANSWER_RATE + 2000).contains(&sent), "{sent}");
    assert_eq!(server.endpoint.path_count(), 0);
}

#[test]
fn a_stranger_fills_no_window() {
    let mut server = Server::new(true, Config::default());
    for channel in 0..4 {
        for seq in (2..=255).rev() {
            let h = Header { channel: Channel::of(channel), seq: Seq(seq), ..header(PacketType::DATA, 1) };
            server.receive(address(1), packet(h, &[0; 1416]));
        }
    }
    let far = Header { call: CallNumber(2), seq: Seq(65_000), ..header(PacketType::DATA, 1) };
    server.receive(address(1), packet(far, &[0; 1416]));
    server.send();
    server.pass(Duration::from_secs(13));
    let usage = server.endpoint.usage();
    assert_eq!(usage.calls, 0, "a call without its beginning ends: {usage:?}");
}

/// Each packet of a wide spread of bad ones, thrown at both ends in mid-call. The call may end; nothing else may.
#[test]
fn mutated_packets_of_a_call_never_panic() {
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let config = if seed % 2 == 0 { Config::default() } else { Config::stock_like() };
        let mut world = World::pair(seed, config, Link { rate: 50_000_000, ..Link::default() });
        let connection = world.connect(0, 1);
        let copies = Copies::default();
        let copy = Rc::clone(&copies);
        world.filter = Some(Box::new(move |_, from, packet| {
            copy.borrow_mut().push((from, packet.to_vec()));
            true
        }));
        let job = world.start(0, connection, Job { think: ms(20), ..Job::new(100_000, 100_000) });
        for _ in 0..60 {
            world.run_for(ms(rng.random_range(0..5)));
            let (from, mut bytes) = {
                let copies = copies.borrow();
                copies[rng.random_range(0..copies.len())].clone()
            };
            for _ in 0..rng.random_range(0..4) {
                let at = match rng.random_bool(0.5) {
                    true => rng.random_range(8..HEADER_LEN + 18).min(bytes.len() - 1),
                    false => rng.random_range(0..bytes.len()),
                };
                bytes[at] = [0, 1, 255, rng.random()][rng.random_range(0..4)];
            }
            if rng.random_bool(0.2) {
                bytes.truncate(rng.random_range(0..=bytes.len()));
            } else if rng.random_bool(0.05) {
                bytes.resize(60_000, 0xaa);
            }
            let from = if rng.random_bool(0.2) { address(rng.random_range(0..9)) } else { from };
            // Data may be anything now: the applications' own checks are not the subject.
            let is_data = bytes.get(20) == Some(&1);
            if !is_data {
                let to = usize::from(from == world.nodes[0].address);
                world.inject(to, from, bytes.into());
            }
        }
        assert!(world.run_until(LONG, |w| w.nodes[0].jobs[job].result.is_some()), "seed {seed}");
        world.close_connections();
        world.run_for(Duration::from_secs(2200));
        for node in &world.nodes {
            assert_eq!(node.endpoint.usage(), rx_proto::endpoint::Usage::default(), "seed {seed}");
        }
    }
}

/// Throws these ACKs of a client at a server that sends a long reply to it.
fn lie(acks: &[Vec<u8>]) -> Server {
    let mut server = Server::new(false, Config::default());
    let from = address(1);
    server.receive(from, request(1, 1416));
    let first = server.send();
    let serial = Header::parse(&first.last().unwrap().1).unwrap().serial.0;
    // Once an honest one, so that it is believed.
    server
        .receive(from, packet(header(PacketType::ACK, 1), &ack(1, 0, serial, 1, &[], &[1444, 1444, 16, 1])));
    server.send();
    for (n, body) in acks.iter().enumerate() {
        let mut h = header(PacketType::ACK, 1);
        h.serial = Serial(n as u32 + 10);
        server.receive(from, packet(h, body));
        server.now += ms(1);
        server.endpoint.handle_timeout(server.now);
        server.send();
    }
    server
}

#[test]
fn lies_in_acks_cost_no_more_than_the_call() {
    let full = [1444, 1444, 255, 1];
    let mut cases: Vec<Vec<Vec<u8>>> = vec![
        vec![ack(1, 0, 0, 1, &[], &[1444, 1444, u32::MAX, 1])],
        vec![ack(1, 0, 0, 1, &[], &[0, 0, 0, 0])],
        vec![ack(1, 0, 0, 1, &[], &[u32::MAX; 6])],
        vec![ack(u32::MAX, u32::MAX, u32::MAX, 7, &[1; 255], &full)],
        vec![ack(0, 0, 0, 9, &[0; 255], &full)],
        vec![ack(1000, 1000, 0, 9, &[1; 255], &full), ack(1, 0, 0, 9, &[1; 255], &full)],
        vec![
            ack(2, 0, 0, 9, &[1; 255], &full),
            ack(1, 0, 0, 9, &[0; 255], &full),
            ack(3, 9, 0, 3, &[], &full),
        ],
    ];
    let mut short = ack(1, 0, 0, 3, &[1; 255], &[]);
    short.truncate(18 + 3);
    cases.push(vec![short]);
    cases.push((0..500).map(|n| ack(1, 20, 0, 3, &[(n % 2) as u8; 15], &full)).collect());
    for case in cases {
        let server = lie(&case);
        let path = server.endpoint.path_to(address(1)).unwrap();
        assert!(path.in_flight() < 2_000_000, "{case:?}");
        assert!(server.sent[&address(1)] < 4_000_000, "{} bytes", server.sent[&address(1)]);
    }
}

#[test]
fn a_hundred_thousand_connections_of_one_client_cost_each_packet_the_same() {
    let config = Config { max_unverified: 200_000, max_connections_of_host: 200_000, ..Config::default() };
    let mut server = Server::new(true, config);
    let from = address(1);
    for n in 0..100_000 {
        server.endpoint.handle_datagram(server.now, from, request(n, 4).into());
    }
    let pings = server.send();
    let ping =
        Header::parse(&pings.iter().find(|(_, p)| p[20] == 2 && p[HEADER_LEN + 16] == 6).unwrap().1).unwrap();
    // All of them wait for this one answer; then each is answered and acknowledged.
    let answer = ack(1, 0, ping.serial.0, 7, &[], &[1444, 1444, 255, 1]);
    let h = Header { connection: ping.connection, ..header(PacketType::ACK, 0) };
    server.receive(from, packet(h, &answer));
    let mut events = 0;
    while let Some(event) = server.endpoint.poll_event() {
        if let Event::Incoming(call) = event {
            events += 1;
            server.endpoint.abort(server.now, call, AbortCode(5));
            server.endpoint.release(server.now, call);
        }
    }
    assert_eq!(events, 100_000);
    server.send();
    server.pass(Duration::from_secs(1500));
    assert_eq!(server.endpoint.usage(), rx_proto::endpoint::Usage::default());
}

/// Answers are longer than questions, and who asks may name somebody else as the asker.
#[test]
fn no_address_is_sent_many_answers_whoever_asks_in_its_name() {
    let mut server = Server::new(true, Config::default());
    let question = |n| {
        let request = debug::DebugRequest { kind: debug::DebugKind::RX_STATISTICS, index: 0 };
        packet(debug::request_header(PacketType::DEBUG, CallNumber(n)), &request.to_bytes())
    };
    for n in 0..50_000 {
        server.receive(address(1), question(n));
        server.send();
        server.now += Duration::from_micros(200);
    }
    let sent = server.sent[&address(1)];
    let allowed = ANSWER_BURST + 10 * ANSWER_RATE_EACH;
    assert!((allowed - 2000..=allowed + 2000).contains(&sent), "{sent}");
    server.receive(address(2), question(1));
    server.send();
    assert!(server.sent.contains_key(&address(2)), "others are still answered");
}

/// Makes a client's connection whose first call is through; returns the server and the client's address.
fn known_client() -> (Server, SocketAddr) {
    let mut server = Server::new(false, Config::default());
    let from = address(1);
    server.receive(from, request(1, 1416));
    let first = server.send();
    let serial = Header::parse(&first.last().unwrap().1).unwrap().serial.0;
    server
        .receive(from, packet(header(PacketType::ACK, 1), &ack(1, 0, serial, 1, &[], &[1444, 1444, 16, 1])));
    server.send();
    (server, from)
}

/// Linux 7.2 pings for a call whose only packet was lost, and gives it up if nobody answers.
#[test]
fn a_client_that_asks_for_a_call_of_which_nothing_came_is_told_so() {
    let (mut server, from) = known_client();
    let before = server.endpoint.usage();
    let h = Header {
        call: CallNumber(2),
        serial: Serial(77),
        flags: Flags::CLIENT_INITIATED.with(Flags::REQUEST_ACK),
        ..header(PacketType::ACK, 1)
    };
    let ping = packet(h, &ack(1, 0, 0, 6, &[], &[1444, 1444, 255, 1]));
    server.receive(from, ping.clone());
    let sent = server.send();
    let answer = sent.iter().map(|(_, p)| p).find(|p| Header::parse(p).unwrap().call == CallNumber(2));
    let answer = answer.expect("an answer");
    let body = rx_proto::ack::Ack::parse(&answer[HEADER_LEN..], false).unwrap();
    assert_eq!(body.reason, rx_proto::ack::AckReason::PING_RESPONSE);
    assert_eq!((body.first, body.serial), (Seq(1), Serial(77)));
    assert_eq!(answer[HEADER_LEN + 17], 0, "nothing has come");
    assert_eq!(server.endpoint.usage().calls, before.calls, "and nothing is kept");
    // A stranger hears nothing.
    server.receive(address(2), ping);
    assert!(server.send().iter().all(|(to, _)| *to == from));
}

#[test]
fn a_client_whose_window_is_shut_is_sent_nothing_until_it_opens() {
    let (mut server, from) = known_client();
    let newest = |packets: &[(SocketAddr, Vec<u8>)]| {
        let data =
            packets.iter().map(|(_, p)| Header::parse(p).unwrap()).filter(|h| h.kind == PacketType::DATA);
        data.map(|h| h.seq.0).max()
    };
    let sent = server.endpoint.path_to(from).unwrap().stats().data_sent as u32;
    let mut have = sent;
    let tell = |server: &mut Server, have: u32, window: u32, n: u32| {
        let h = Header { serial: Serial(100 + n), ..header(PacketType::ACK, 1) };
        let body = ack(have + 1, have, 0, 1, &[], &[1444, 1444, window, 1]);
        server.receive(from, packet(h, &body));
    };
    for n in 0..50 {
        tell(&mut server, have, 0, n);
        let packets = server.send();
        have = newest(&packets).map_or(have, |seq| seq.max(have));
        assert_eq!(have, sent, "nothing new goes");
        server.now += ms(100);
    }
    // The ACK that opens it is lost: the server asks by itself.
    let pings = |server: &Server| server.endpoint.stats().pings_sent;
    let before = pings(&server);
    server.pass(ms(4000));
    assert!(pings(&server) > before, "it is asked for");
    tell(&mut server, have, 255, 1000);
    assert!(newest(&server.send()).is_some_and(|seq| seq > sent), "and goes on");
}

/// A reply from any host with the server's port was taken.
#[test]
fn a_client_hears_a_server_from_its_own_addresses_alone() {
    let mut world = World::pair(1, Config::default(), Link::default());
    let connection = world.connect(0, 1);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    let seen = Copies::default();
    let sees = Rc::clone(&seen);
    world.filter = Some(Box::new(move |_, from, packet| {
        sees.borrow_mut().push((from, packet.to_vec()));
        true
    }));
    let job = world.start(0, connection, Job { think: ms(60_000), ..Job::new(10, 10) });
    world.run_for(ms(100));
    let request = Header::parse(&seen.borrow()[0].1).unwrap();
    let abort = Header { kind: PacketType::ABORT, seq: Seq(0), flags: Flags::NONE, ..request };
    let forged = Bytes::from(packet(abort, &77i32.to_be_bytes()));
    let elsewhere: SocketAddr = "10.0.0.99:7001".parse().unwrap();
    assert_eq!(elsewhere.port(), world.nodes[1].address.port());
    world.inject(0, elsewhere, forged.clone());
    world.run_for(ms(100));
    assert_eq!(world.nodes[0].jobs[job].result, None);
    let server = world.nodes[1].address.ip();
    world.nodes[0].endpoint.know_host(&[server, elsewhere.ip()]);
    world.inject(0, "10.0.0.99:7002".parse().unwrap(), forged.clone());
    assert_eq!(world.nodes[0].jobs[job].result, None, "another port is another program");
    world.inject(0, elsewhere, forged);
    let code = rx_proto::CallError::AbortedByPeer(AbortCode(77));
    assert_eq!(world.nodes[0].jobs[job].result, Some(Err(code)), "a server with several addresses");
}
