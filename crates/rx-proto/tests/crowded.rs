//! Ports that many callers or one greedy host would fill: what each may have kept, and who loses it when room is needed.

use crate::support::raw_server::{Server, ack, address, header, packet, request};
use rx_proto::config::Config;
use rx_proto::ids::{Channel, Seq};
use rx_proto::packet::{HEADER_LEN, Header, PacketType};
use rx_proto::totals::Totals;
use std::net::SocketAddr;
use std::time::Duration;

/// Answers the ping that asks an address whether it is there.
fn show_to_be_there(server: &mut Server, from: SocketAddr, connection: u32) {
    let pings = server.send();
    let ping = pings.iter().find(|(to, p)| *to == from && p[20] == 2 && p[HEADER_LEN + 16] == 6);
    let serial = Header::parse(&ping.expect("it is asked").1).unwrap().serial;
    server.receive(
        from,
        packet(header(PacketType::ACK, connection), &ack(1, 0, serial.0, 7, &[], &[1444, 1444, 255, 1])),
    );
    server.send();
}

/// 60 connections whose calls had holes took 87 MB, 1,500 took 2 GB.
#[test]
fn one_host_with_holes_in_its_calls_leaves_memory_for_others() {
    const BUDGET: u64 = 4 << 20;
    let config = Config { strangers_memory: BUDGET, ..Config::default() };
    let mut server = Server::new(true, config);
    let data = |connection: u32, channel: u32, seq: u32| {
        let header = header(PacketType::DATA, connection);
        packet(Header { channel: Channel::of(channel), seq: Seq(seq), ..header }, &[0; 1400])
    };
    let attacker = address(1);
    server.receive(attacker, request(0, 4));
    show_to_be_there(&mut server, attacker, 0);
    for connection in 1..100 {
        for channel in 0..4 {
            (2..=255).for_each(|seq| server.receive(attacker, data(connection, channel, seq)));
        }
    }
    let usage = server.endpoint.usage();
    assert!(usage.strangers <= BUDGET / 2, "{usage:?}");
    // Another's packets that overtake each other are kept, and its call goes on.
    let other = address(2);
    server.receive(other, request(1000, 4));
    show_to_be_there(&mut server, other, 1000);
    (2..=100).for_each(|seq| server.receive(other, data(1001, 0, seq)));
    let held = server.endpoint.usage().strangers - usage.strangers;
    assert_eq!(held, 99 * 1400 + 1428, "and room for the one that is missing");
    server.receive(other, data(1001, 0, 1));
    server.send();
    assert_eq!(server.endpoint.usage().strangers, usage.strangers, "it was read");
    server.pass(Duration::from_secs(1500));
    assert_eq!(server.endpoint.usage(), rx_proto::endpoint::Usage::default());
}

/// A port with many threads held as much for each of them.
#[test]
fn a_port_with_several_endpoints_keeps_no_more_for_strangers_than_one() {
    const BUDGET: u64 = 1 << 20;
    let totals = Totals::default();
    let config = Config { strangers_memory: BUDGET, max_connections: 50, ..Config::default() };
    let mut shards = [0; 4].map(|_| Server::with_totals(true, config.clone(), &totals));
    for (number, server) in (0..).zip(&mut shards) {
        let host = address(1 + number);
        server.receive(host, request(0, 4));
        show_to_be_there(server, host, 0);
    }
    for (number, server) in (0..).zip(&mut shards) {
        let host = address(1 + number);
        for connection in 1..40 {
            for seq in 2..=60 {
                let header = Header { seq: Seq(seq), ..header(PacketType::DATA, connection) };
                server.receive(host, packet(header, &[0; 1400]));
            }
        }
    }
    let held = |shards: &[Server]| shards.iter().map(|s| s.endpoint.usage().strangers).sum::<u64>();
    assert!((BUDGET / 2..=BUDGET).contains(&held(&shards)), "{}", held(&shards));
    let connections: usize = shards.iter().map(|server| server.endpoint.connection_count()).sum();
    assert_eq!(connections, 50);
    drop(shards);
    let mut server = Server::with_totals(true, config, &totals);
    server.receive(address(9), request(0, 4));
    assert_eq!(server.endpoint.connection_count(), 1, "what endpoints had goes with them");
}

/// An endpoint ends connections of its own only, so those of the others at its port must not use up all there may be.
#[test]
fn a_newcomer_finds_room_at_each_endpoint_of_a_port_that_is_full() {
    let totals = Totals::default();
    let config = Config { max_connections: 128, ..Config::default() };
    let [mut one, mut other] = [0; 2].map(|_| Server::with_totals(true, config.clone(), &totals));
    one.receive(address(1), request(0, 4));
    show_to_be_there(&mut one, address(1), 0);
    (1..200).for_each(|connection| one.receive(address(1), request(connection, 4)));
    assert_eq!(one.endpoint.connection_count(), 128);
    other.receive(address(2), request(0, 4));
    show_to_be_there(&mut other, address(2), 0);
    (1..10).for_each(|connection| other.receive(address(2), request(connection, 4)));
    assert_eq!(other.endpoint.connection_count(), 2);
}

#[test]
fn a_host_with_too_many_connections_loses_its_own_oldest() {
    let config = Config { max_connections_of_host: 10, max_connections: 15, ..Config::default() };
    let mut server = Server::new(true, config);
    let is_there = |server: &Server, host: u32| server.endpoint.path_to(address(host)).is_some();
    server.receive(address(2), request(1000, 4));
    show_to_be_there(&mut server, address(2), 1000);
    for n in 0..100 {
        server.receive(address(1), request(n, 4));
        if n == 0 {
            show_to_be_there(&mut server, address(1), 0);
        }
        server.send();
        // It takes the reply: the connection is idle.
        let header = header(PacketType::ABORT, n);
        server.receive(address(1), packet(header, &[0, 0, 0, 5]));
        server.send();
    }
    assert_eq!(server.endpoint.connection_count(), 11);
    assert!(is_there(&server, 2), "another host's stays");
    // A full table makes room by the host that has the most.
    for n in 0..10 {
        server.receive(address(3 + n), request(2000 + n, 4));
        show_to_be_there(&mut server, address(3 + n), 2000 + n);
    }
    assert_eq!(server.endpoint.connection_count(), 15);
    assert!((2..13).all(|host| is_there(&server, host)));
}
