//! What rxdebug hears of an endpoint: every kind of question, lists that end, states of calls, and what it cannot do.

use afs_sim::world::{Job, Link, World, ms};
use bytes::Bytes;
use rx_proto::config::Config;
use rx_proto::debug::{
    self, CallMode, CallState, ConnectionFlags, ConnectionSide, DebugConnection, DebugKind, DebugPeer,
    DebugRequest, DebugStats, DebugVersion, RxStatistics,
};
use rx_proto::endpoint::Endpoint;
use rx_proto::ids::{CallNumber, Epoch, Serial};
use rx_proto::packet::{HEADER_LEN, Header, PacketType};
use std::cell::RefCell;
use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Asks a node and returns the body of the answer.
fn ask(world: &mut World, node: usize, kind: PacketType, body: &[u8]) -> Option<Vec<u8>> {
    let asker: SocketAddr = "192.0.2.77:33333".parse().unwrap();
    let question = debug::request_header(kind, CallNumber(101));
    let mut packet = question.to_bytes().to_vec();
    packet.extend_from_slice(body);
    let now = world.now;
    let endpoint: &mut Endpoint = &mut world.nodes[node].endpoint;
    let paths = endpoint.path_count();
    endpoint.handle_datagram(now, asker, Bytes::from(packet));
    let mut out = Vec::new();
    let t = endpoint.poll_transmit(now, &mut out)?;
    assert_eq!((t.to, t.segment_len), (asker, out.len()));
    let header = Header::parse(&out).unwrap();
    assert!(!header.is_from_client() && header.call == CallNumber(101) && header.kind == kind);
    assert!(endpoint.poll_transmit(now, &mut Vec::new()).is_none());
    assert_eq!(endpoint.path_count(), paths, "nothing is kept of an asker");
    Some(out.split_off(HEADER_LEN))
}

fn debug(world: &mut World, node: usize, kind: DebugKind, index: i32) -> Vec<u8> {
    ask(world, node, PacketType::DEBUG, &DebugRequest { kind, index }.to_bytes()).expect("an answer")
}

fn connections(world: &mut World, node: usize, kind: DebugKind) -> Vec<DebugConnection> {
    let ask = |i| DebugConnection::parse(&debug(world, node, kind, i), DebugVersion::CURRENT).unwrap();
    (0..).map(ask).take_while(|c| !c.is_end()).collect()
}

fn world() -> World {
    let mut world = World::new(2);
    world.default_link = Link::default();
    (0..3).for_each(|_| _ = world.add(Config::default()));
    world
}

#[test]
fn the_version_is_told_and_a_nat_ping_is_not_answered() {
    let mut world = world();
    let body = ask(&mut world, 1, PacketType::VERSION, &debug::VERSION_REQUEST).unwrap();
    assert_eq!(body.len(), debug::VERSION_LEN);
    assert!(debug::parse_version(&body).starts_with("afar "));
    let now = world.now;
    let endpoint = &mut world.nodes[1].endpoint;
    let mut ping = debug::NAT_PING.to_bytes().to_vec();
    ping.push(0);
    endpoint.handle_datagram(now, "192.0.2.77:1".parse().unwrap(), ping.into());
    assert!(endpoint.poll_transmit(now, &mut Vec::new()).is_none());
    assert_eq!(endpoint.path_count(), 0);
}

#[test]
fn what_is_not_known_is_answered_as_such_and_half_a_question_not_at_all() {
    let mut world = world();
    for kind in [0, 6, 77, -1, i32::MAX] {
        assert!(debug::is_not_supported(&debug(&mut world, 1, DebugKind(kind), 0)));
    }
    assert!(ask(&mut world, 1, PacketType::DEBUG, &[0, 0, 0, 1, 0, 0, 0]).is_none());
}

#[test]
fn the_statistics_are_of_todays_version_and_count() {
    let mut world = world();
    let connection = world.connect(0, 1);
    for _ in 0..7 {
        world.call(0, connection, Job::new(5000, 5000), LONG).unwrap();
    }
    let stats = DebugStats::parse(&debug(&mut world, 1, DebugKind::STATS, 0)).unwrap();
    assert_eq!((stats.version, stats.calls_executed), (DebugVersion::CURRENT, 7));
    let body = debug(&mut world, 1, DebugKind::RX_STATISTICS, 0);
    assert_eq!(body.len(), RxStatistics::LEN);
    let stats = RxStatistics::parse(&body).unwrap();
    // The first packet of the first call is a short one.
    assert_eq!((stats.data_packets_sent, stats.data_packets_read), (28, 29));
    assert_eq!(stats.packets_sent[0], 28, "type 1 comes first");
    assert_eq!(stats.ack_packets_read, stats.packets_read[1]);
    assert_eq!((stats.n_server_conns, stats.n_client_conns, stats.n_peer_structs), (1, 0, 1));
    let stats = RxStatistics::parse(&debug(&mut world, 0, DebugKind::RX_STATISTICS, 0)).unwrap();
    assert_eq!((stats.n_server_conns, stats.n_client_conns), (0, 1));
}

#[test]
fn a_peer_is_asked_for_its_statistics_and_only_its_answer_is_taken() {
    let mut world = world();
    let peer = world.nodes[1].address;
    assert!(!world.nodes[0].endpoint.ask_statistics(peer), "there is no connection");
    let connection = world.connect(0, 1);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    assert!(world.nodes[0].endpoint.ask_statistics(peer));
    // An answer to a question that was not asked.
    let header = debug::reply_header(&debug::request_header(PacketType::DEBUG, CallNumber(1))).unwrap();
    let mut forged = header.to_bytes().to_vec();
    DebugStats { idle_threads: 99, ..DebugStats::default() }.encode(&mut forged);
    world.inject(0, peer, forged.into());
    world.run_for(ms(500));
    let (from, stats) = world.nodes[0].endpoint.poll_answer().expect("an answer");
    assert_eq!((from, stats.calls_executed, stats.idle_threads), (peer, 1, 0));
    assert_eq!(world.nodes[0].endpoint.poll_answer(), None);
}

#[test]
fn connections_are_listed_to_the_end_with_the_states_of_their_calls() {
    let mut world = world();
    let idle = world.connect(2, 1);
    world.call(2, idle, Job::new(10, 10), LONG).unwrap();
    let busy = world.connect(0, 1);
    world.call(0, busy, Job::new(10, 10), LONG).unwrap();
    world.start(0, busy, Job { think: ms(5000), ..Job::new(10, 10) });
    world.run_for(ms(500));

    assert_eq!(connections(&mut world, 1, DebugKind::ANY_CONNECTION).len(), 2);
    let active = connections(&mut world, 1, DebugKind::CONNECTION);
    let [server] = active.as_slice() else { panic!("one has an active call: {active:?}") };
    assert_eq!((server.host, server.port), (Ipv4Addr::new(10, 0, 0, 1), 7000));
    assert_eq!(server.side, ConnectionSide::SERVER);
    assert_eq!(server.call_number[0], CallNumber(2));
    assert_eq!((server.call_state[0], server.call_mode[0]), (CallState::ACTIVE, CallMode::RECEIVING));
    assert_eq!(server.call_state[1], CallState::NOT_INITIALIZED);
    let all = connections(&mut world, 0, DebugKind::ANY_CONNECTION);
    let [client] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((client.side, client.port), (ConnectionSide::CLIENT, 7001));
    assert_eq!((client.call_state[0], client.call_mode[0]), (CallState::ACTIVE, CallMode::SENDING));

    world.run_for(ms(6000));
    let all = connections(&mut world, 1, DebugKind::ANY_CONNECTION);
    assert!(all.iter().all(|c| c.call_state[0] == CallState::DALLY), "{all:?}");
    assert!(connections(&mut world, 1, DebugKind::CONNECTION).is_empty());
}

#[test]
fn a_call_whose_client_must_yet_show_where_it_is_waits_as_precall() {
    let mut world = world();
    let connection = world.connect(0, 1);
    world.start(0, connection, Job::new(10, 10));
    world.run_for(ms(7));
    let [server] = connections(&mut world, 1, DebugKind::CONNECTION)[..] else { panic!("one") };
    assert_eq!(server.call_state[0], CallState::PRECALL);
    assert!(server.flags.contains(ConnectionFlags::ATTACH_WAIT));
}

#[test]
fn peers_are_listed_with_their_round_trip_in_eighths_of_a_millisecond() {
    let mut world = world();
    for node in [0, 2] {
        let connection = world.connect(node, 1);
        world.call(node, connection, Job::new(100_000, 100_000), LONG).unwrap();
    }
    let ask = |i| DebugPeer::parse(&debug(&mut world, 1, DebugKind::PEER, i)).unwrap();
    let peers: Vec<DebugPeer> = (0..).map(ask).take_while(|p| !p.is_end()).collect();
    assert_eq!(peers.iter().map(|p| p.port).collect::<Vec<_>>(), [7000, 7002]);
    for peer in peers {
        assert!((80..100).contains(&peer.rtt), "10 ms are 80 eighths: {}", peer.rtt);
        assert!(peer.bytes_received > 100_000 && peer.bytes_sent > 100_000 && peer.n_sent > 0);
        assert_eq!(peer.ref_count, 1);
    }
}

#[test]
fn a_list_asked_out_of_order_with_gaps_is_told_right() {
    let mut world = world();
    let handles: Vec<_> = (0..50).map(|_| world.connect(0, 1)).collect();
    let now = world.now;
    handles.iter().step_by(3).for_each(|&c| world.nodes[0].endpoint.close_connection(now, c));
    world.run_for(ms(1));
    let all = connections(&mut world, 0, DebugKind::ANY_CONNECTION);
    assert_eq!(all.len(), 33);
    for index in [32, 0, 5, 31, 6, 6, 20] {
        let body = debug(&mut world, 0, DebugKind::ANY_CONNECTION, index);
        let one = DebugConnection::parse(&body, DebugVersion::CURRENT).unwrap();
        assert_eq!(one.cid, all[index as usize].cid);
    }
    for index in [33, 1000, i32::MAX, -1, i32::MIN] {
        let body = debug(&mut world, 0, DebugKind::ANY_CONNECTION, index);
        assert!(DebugConnection::parse(&body, DebugVersion::CURRENT).unwrap().is_end());
    }
}

/// With epoch, id and serials of a connection a stranger could send packets for it, and show to be where he was not.
#[test]
fn nothing_is_told_by_which_packets_for_a_connection_could_be_made() {
    let mut world = world();
    let handles = [world.connect(0, 1), world.connect(0, 1), world.connect(2, 1)];
    let names: Rc<RefCell<HashSet<u32>>> = Rc::default();
    let seen = Rc::clone(&names);
    world.filter = Some(Box::new(move |_, _, packet| {
        seen.borrow_mut().insert(Header::parse(packet).unwrap().connection.0);
        true
    }));
    for (node, handle) in [0, 0, 2].into_iter().zip(handles) {
        world.call(node, handle, Job::new(10, 10), LONG).unwrap();
    }
    for node in [0, 1] {
        let all = connections(&mut world, node, DebugKind::ANY_CONNECTION);
        assert!(all.iter().all(|c| (c.epoch, c.serial) == (Epoch(0), Serial(0))), "{all:?}");
        assert!(all.iter().all(|c| !names.borrow().contains(&c.cid.0)), "{all:?}");
        let shown: HashSet<u32> = all.iter().map(|c| c.cid.0).collect();
        assert_eq!(shown.len(), all.len(), "and still they can be told apart");
        assert_eq!(all, connections(&mut world, node, DebugKind::ANY_CONNECTION));
    }
}
