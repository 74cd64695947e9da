//! What the endpoint owes a security class that is not null: requests held until the response is good, wrong ones ended with
//! the code, capacity and padding, restarts, lost challenges, and a bound on what strangers cost. The class is a toy: it adds
//! where a cipher would encrypt.

use afs_sim::world::{Job, Link, World, ms};
use bytes::Bytes;
use rx_proto::CallError;
use rx_proto::abort::AbortCode;
use rx_proto::config::Config;
use rx_proto::endpoint::ConnectionHandle;
use rx_proto::ids::{CHANNELS, CallNumber, SecurityIndex, Seq};
use rx_proto::packet::{Flags, HEADER_LEN, Header, PacketType};
use rx_proto::security::{ConnectionFacts, Null, SecurityClass, ServerSecurity};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const BAD_KEY: AbortCode = AbortCode(19_270_407);
const BAD_SEAL: AbortCode = AbortCode(19_270_408);
/// Length of the plain text, its sum, the packet's number.
const OVERHEAD: usize = 12;
const BLOCK: usize = 16;

/// One end of the toy.
#[derive(Debug)]
struct Toy {
    key: u8,
    is_client: bool,
    nonce: Option<u64>,
    authenticated: bool,
    identity: String,
}

impl Toy {
    fn client(key: u8) -> Box<dyn SecurityClass> {
        Box::new(Self { key, is_client: true, nonce: None, authenticated: true, identity: String::new() })
    }
}

fn sum(header: &Header, plain: &[u8]) -> u32 {
    plain.iter().fold(header.call.0 ^ header.seq.0, |sum, b| sum.rotate_left(3) ^ u32::from(*b))
}

impl SecurityClass for Toy {
    fn index(&self) -> SecurityIndex {
        SecurityIndex(200)
    }

    fn plaintext_capacity(&self, body: usize) -> usize {
        body / BLOCK * BLOCK - OVERHEAD
    }

    fn prepare(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        header.checksum = sum(header, plain) as u16;
        let start = out.len();
        out.extend_from_slice(&(plain.len() as u32).to_be_bytes());
        out.extend_from_slice(&sum(header, plain).to_be_bytes());
        out.extend_from_slice(&header.seq.0.to_be_bytes());
        out.extend_from_slice(plain);
        out.resize(start + (OVERHEAD + plain.len()).next_multiple_of(BLOCK), 0);
    }

    fn finish(&mut self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        bodies.flatten().for_each(|b| *b = b.wrapping_add(self.key));
    }

    fn open(&mut self, header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        assert!(self.authenticated, "nothing is opened before the client has shown who it is");
        let plain: Vec<u8> = body.iter().map(|b| b.wrapping_sub(self.key)).collect();
        let word = |at: usize| plain.get(at..at + 4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]]));
        let (len, seal, seq) = (word(0).ok_or(BAD_SEAL)?, word(4), word(8));
        let text = plain.get(OVERHEAD..OVERHEAD.saturating_add(len as usize)).ok_or(BAD_SEAL)?;
        let is_good = seal == Some(sum(header, text)) && seq == Some(header.seq.0);
        if is_good && header.checksum == sum(header, text) as u16 {
            Ok(Bytes::copy_from_slice(text))
        } else {
            Err(BAD_SEAL)
        }
    }

    fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    fn authenticates_data(&self) -> bool {
        self.authenticated
    }

    fn challenge(&mut self, nonce: u64) -> Vec<u8> {
        let nonce = *self.nonce.get_or_insert(nonce);
        nonce.to_be_bytes().to_vec()
    }

    fn handle_response(
        &mut self,
        _facts: &ConnectionFacts,
        body: &[u8],
    ) -> Result<[CallNumber; CHANNELS], AbortCode> {
        let nonce = self.nonce.ok_or(AbortCode::PROTOCOL_ERROR)?.to_be_bytes();
        let proof = body.get(..8).ok_or(AbortCode::PROTOCOL_ERROR)?;
        if !proof.iter().zip(nonce).all(|(p, n)| *p == n.wrapping_add(self.key)) {
            return Err(BAD_KEY);
        }
        self.authenticated = true;
        self.identity = "somebody".into();
        let word =
            |i: usize| body.get(8 + 4 * i..12 + 4 * i).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]]));
        Ok(std::array::from_fn(|i| CallNumber(word(i).unwrap_or(0))))
    }

    fn handle_challenge(&mut self, facts: &ConnectionFacts, body: &[u8]) -> Result<Vec<u8>, AbortCode> {
        assert!(self.is_client);
        let mut response: Vec<u8> = body.iter().map(|b| b.wrapping_add(self.key)).collect();
        facts.calls.iter().for_each(|c| response.extend_from_slice(&c.0.to_be_bytes()));
        Ok(response)
    }

    fn identity(&self) -> Option<&str> {
        self.authenticated.then_some(&self.identity)
    }
}

#[derive(Debug)]
struct ToyServer;

impl ServerSecurity for ToyServer {
    fn index(&self) -> SecurityIndex {
        SecurityIndex(200)
    }

    fn accept(&self, _facts: &ConnectionFacts) -> Box<dyn SecurityClass> {
        Box::new(Toy { key: 7, is_client: false, nonce: None, authenticated: false, identity: String::new() })
    }
}

fn pair_of(config: Config, link: Link, key: u8) -> (World, ConnectionHandle) {
    let mut world = World::new(5);
    world.default_link = link;
    world.server_security = vec![Arc::new(ToyServer)];
    world.add(config.clone());
    world.add(config);
    let connection = world.connect_with(0, 1, Toy::client(key));
    (world, connection)
}

fn pair(key: u8) -> (World, ConnectionHandle) {
    pair_of(Config::default(), Link::default(), key)
}

/// Lets only packets pass that `passes` likes.
fn filter(world: &mut World, mut passes: impl FnMut(SocketAddr, &Header) -> bool + 'static) {
    world.filter = Some(Box::new(move |_, from, packet| passes(from, &Header::parse(packet).unwrap())));
}

#[test]
fn the_first_call_costs_one_more_round_trip_and_holds_what_came() {
    let (mut world, connection) = pair(7);
    let first = world.call(0, connection, Job::new(15_000, 10), LONG).unwrap();
    let second = world.call(0, connection, Job::new(15_000, 10), LONG).unwrap();
    assert!(first < ms(35), "request and challenge, response, reply: {first:?}");
    assert!(second < ms(25), "{second:?}");
    assert_eq!(world.nodes[0].endpoint.stats().data_resent, 0, "the request was held");
    assert_eq!(world.nodes[1].endpoint.stats().packets_sent[usize::from(PacketType::CHALLENGE.0)], 1);
}

#[test]
fn sealed_data_arrive_whole_whatever_their_length() {
    for config in [Config::default(), Config::stock_like()] {
        let lossy = Link { loss: 0.03, rate: 50_000_000, mtu: 8972, ..Link::default() };
        let (mut world, connection) = pair_of(config, lossy, 7);
        for len in [0, 1, 1375, 1376, 1377, 1388, 1389, 1400, 1416, 100_000, 2_000_000] {
            world.call(0, connection, Job::new(len, len), LONG).unwrap();
        }
    }
}

/// Sealed packets fall short of the packet size by padding, and each made a bundle of its own.
#[test]
fn packets_that_padding_keeps_short_of_the_limit_still_go_in_bundles() {
    let (mut world, connection) = pair(7);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    let now = world.now;
    let client = &mut world.nodes[0].endpoint;
    let call = client.open(now, connection).unwrap().unwrap();
    client.write(now, call, vec![0; 100_000].into()).unwrap();
    let mut out = Vec::new();
    let bundle = client.poll_transmit(now, &mut out).unwrap();
    assert!(out.len() >= 8 * bundle.segment_len, "{} bytes in packets of {}", out.len(), bundle.segment_len);
}

#[test]
fn a_wrong_response_ends_the_connection_with_the_code() {
    let (mut world, connection) = pair(8);
    let result = world.call(0, connection, Job::new(10, 10), LONG);
    assert_eq!(result, Err(CallError::AbortedByPeer(BAD_KEY)));
    let again = world.call(0, connection, Job::new(10, 10), LONG);
    assert_eq!(again, Err(CallError::AbortedByPeer(BAD_KEY)), "and it stays so");
    assert_eq!(world.nodes[1].served, 0);
}

#[test]
fn a_packet_that_does_not_open_ends_the_connection_with_the_code() {
    let (mut world, connection) = pair(7);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    let seen = Rc::new(Cell::new(None));
    let sees = Rc::clone(&seen);
    let client = world.nodes[0].address;
    filter(&mut world, move |from, header| {
        if from == client && header.kind == PacketType::DATA {
            sees.set(Some(*header));
        }
        true
    });
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    let header = seen.get().unwrap();
    let forged = Header { call: header.call.next(), ..header };
    let mut packet = forged.to_bytes().to_vec();
    packet.extend_from_slice(&[9; 48]);
    world.inject(1, client, packet.into());
    world.run_for(ms(20));
    let result = world.call(0, connection, Job::new(10, 10), LONG);
    assert_eq!(result, Err(CallError::AbortedByPeer(BAD_SEAL)));
}

#[test]
fn a_restarted_server_learns_the_call_numbers_from_the_response() {
    let (mut world, connection) = pair(7);
    for _ in 0..3 {
        for _ in 0..5 {
            world.call(0, connection, Job::new(3000, 3000), LONG).unwrap();
        }
        world.restart(1);
    }
    let took = world.call(0, connection, Job::new(3000, 3000), LONG).unwrap();
    assert!(took < ms(30), "{took:?}");
    assert_eq!(world.nodes[0].endpoint.stats().calls_failed, 0);
}

/// A copy of an old call's packet must not run again after a restart.
#[test]
fn a_restarted_server_does_not_run_an_old_call_again() {
    let (mut world, connection) = pair(7);
    let client = world.nodes[0].address;
    let copies: Rc<std::cell::RefCell<Vec<Bytes>>> = Rc::default();
    let copy = Rc::clone(&copies);
    world.filter = Some(Box::new(move |_, from, packet| {
        if from == client && Header::parse(packet).unwrap().kind == PacketType::DATA {
            copy.borrow_mut().push(Bytes::copy_from_slice(packet));
        }
        true
    }));
    for _ in 0..3 {
        world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    }
    world.filter = None;
    world.restart(1);
    let old = copies.borrow()[0].clone();
    world.inject(1, client, old);
    world.run_for(ms(100)); // challenged, and the client's answer says that it is at call 3
    assert_eq!(world.nodes[1].served, 3, "none of them anew");
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    assert_eq!(world.nodes[1].served, 4);
}

#[test]
fn a_lost_challenge_and_a_lost_response_are_made_up() {
    for lost in [PacketType::CHALLENGE, PacketType::RESPONSE] {
        let (mut world, connection) = pair(7);
        let mut left = 2;
        filter(&mut world, move |_, header| {
            let is_lost = header.kind == lost && left > 0;
            left -= i32::from(is_lost);
            !is_lost
        });
        let took = world.call(0, connection, Job::new(10, 10), LONG).unwrap();
        assert!(took < ms(4500), "{lost:?}: {took:?}");
    }
}

#[test]
fn a_client_that_never_answers_is_asked_fifty_times_and_costs_little() {
    let (mut world, connection) = pair(7);
    filter(&mut world, |_, header| header.kind != PacketType::RESPONSE);
    world.start(0, connection, Job::new(1_000_000, 10));
    world.run_for(Duration::from_secs(30));
    let server = &world.nodes[1].endpoint;
    assert!(server.usage().unproven < 200_000, "{:?}", server.usage());
    assert_eq!((server.usage().calls, server.usage().promised), (0, 0));
    world.run_for(Duration::from_secs(100));
    let server = &world.nodes[1].endpoint;
    assert!(server.stats().packets_sent[usize::from(PacketType::CHALLENGE.0)] <= 51);
    assert_eq!(server.usage().connections, 0);
    assert_eq!(server.usage().unproven, 0);
}

/// Held packets had no bound in bytes: 4096 strangers times 32 packets of 64 KB were 8 GB.
#[test]
fn what_is_held_for_strangers_is_bounded_over_all_of_them() {
    let (mut world, _) = pair(7);
    let mut most = 0;
    for stranger in 0..3000u32 {
        for seq in 1..=40 {
            let mut header = Header::parse(&[0; HEADER_LEN]).unwrap();
            header.epoch = rx_proto::ids::Epoch(0x8000_0000);
            header.connection = rx_proto::ids::ConnectionId(stranger << 2);
            (header.call, header.seq) = (CallNumber(1), rx_proto::ids::Seq(seq));
            (header.kind, header.flags) = (PacketType::DATA, Flags::CLIENT_INITIATED);
            (header.security, header.service) = (SecurityIndex(200), afs_sim::world::SERVICE);
            let mut packet = header.to_bytes().to_vec();
            packet.resize(16_000, 0);
            let from = SocketAddr::from(([172, 16, (stranger >> 8) as u8, stranger as u8], 7001));
            world.nodes[1].endpoint.handle_datagram(world.now, from, packet.into());
        }
        most = most.max(world.nodes[1].endpoint.usage().unproven);
    }
    assert!(most <= 33 << 20, "{most} bytes held");
    assert!(world.nodes[1].endpoint.usage().connections < 1000);
}

#[test]
fn the_peer_is_known_by_name_once_it_has_shown_who_it_is() {
    let (mut world, connection) = pair(7);
    let job = world.start(0, connection, Job { think: ms(100), ..Job::new(10, 10) });
    world.run_for(ms(80));
    assert!(world.nodes[0].jobs[job].result.is_none());
    world.run_for(ms(1000));
    assert_eq!(world.nodes[0].jobs[job].result, Some(Ok(())));
    assert_eq!(world.nodes[0].endpoint.identity(connection), Some(""));
}

/// What the server sends, and where, after datagrams from `from`.
fn answers_to(world: &mut World, from: SocketAddr, datagrams: &[Vec<u8>]) -> Vec<(SocketAddr, Vec<u8>)> {
    let now = world.now;
    let server = &mut world.nodes[1].endpoint;
    let (mut sent, mut out) = (Vec::new(), Vec::new());
    for datagram in datagrams {
        server.handle_datagram(now, from, Bytes::copy_from_slice(datagram));
        while let Some(t) = server.poll_transmit(now, &mut out) {
            sent.extend(out.chunks(t.segment_len).map(|packet| (t.to, packet.to_vec())));
        }
    }
    sent
}

/// All that the client sends from now on.
fn copies(world: &mut World) -> Rc<std::cell::RefCell<Vec<Vec<u8>>>> {
    let copies: Rc<std::cell::RefCell<Vec<Vec<u8>>>> = Rc::default();
    let (copy, client) = (Rc::clone(&copies), world.nodes[0].address);
    world.filter = Some(Box::new(move |_, from, packet| {
        if from == client {
            copy.borrow_mut().push(packet.to_vec());
        }
        true
    }));
    copies
}

/// The names of a connection in an ACK from elsewhere were enough to be sent its replies.
#[test]
fn who_names_a_connection_or_repeats_its_packets_from_elsewhere_gets_nothing_of_it() {
    for security in [Toy::client(7), Box::new(Null) as Box<dyn SecurityClass>] {
        let mut world = World::new(5);
        world.server_security = vec![Arc::new(ToyServer), Arc::new(Null)];
        (0..2).for_each(|_| _ = world.add(Config::default()));
        let connection = world.connect_with(0, 1, security);
        let copies = copies(&mut world);
        world.call(0, connection, Job::new(10, 10), LONG).unwrap();
        let job = world.start(0, connection, Job { think: ms(1000), ..Job::new(5000, 100_000) });
        world.run_for(ms(100));
        let attacker: SocketAddr = "192.0.2.66:7001".parse().unwrap();
        let mut forged: Vec<Vec<u8>> = copies.borrow().clone();
        let data = Header::parse(forged.last().unwrap()).unwrap();
        for kind in
            [PacketType::ACK, PacketType::DATA, PacketType::ABORT, PacketType::ACKALL, PacketType::BUSY]
        {
            for call in [0, data.call.0, data.call.0 + 1] {
                let flags = Flags::CLIENT_INITIATED.with(Flags::REQUEST_ACK);
                let header = Header { kind, call: CallNumber(call), seq: Seq(9), flags, ..data };
                let mut packet = header.to_bytes().to_vec();
                packet.resize(HEADER_LEN + 100, 0);
                forged.push(packet);
            }
        }
        let before = world.nodes[1].endpoint.connection_count();
        let sent = answers_to(&mut world, attacker, &forged);
        let to_attacker: Vec<_> = sent.iter().filter(|(to, _)| *to == attacker).collect();
        if data.security == SecurityIndex(200) {
            assert!(to_attacker.is_empty(), "{to_attacker:?}");
            assert_eq!(world.nodes[1].endpoint.connection_count(), before);
        } else {
            let is_data = |packet: &[u8]| Header::parse(packet).unwrap().kind == PacketType::DATA;
            assert!(
                !to_attacker.iter().any(|(_, packet)| is_data(packet)),
                "a stranger's connection of his own"
            );
        }
        assert!(world.run_until(ms(2000), |w| w.nodes[0].jobs[job].result.is_some()));
        assert_eq!(world.nodes[0].jobs[job].result, Some(Ok(())));
        assert_eq!(world.nodes[1].served, 2);
    }
}

#[test]
fn a_client_that_moves_while_it_sends_is_found_again() {
    let (mut world, connection) = pair_of(Config::default(), Link { rate: 20_000_000, ..Link::default() }, 7);
    world.rebind(0, "192.0.2.1:4001".parse().unwrap());
    let index = world.start(0, connection, Job::new(10_000_000, 10));
    for port in [4002, 4001, 4003, 4001, 4002] {
        world.run_for(ms(2500));
        world.rebind(0, SocketAddr::from(([192, 0, 2, 1], port)));
    }
    assert!(world.run_until(LONG, World::is_done));
    world.nodes[0].jobs[index].result.unwrap().unwrap();
    assert_eq!(world.nodes[1].endpoint.connection_count(), 1);
}

#[test]
fn a_client_that_moved_between_calls_goes_on_with_its_connection() {
    let (mut world, connection) = pair(7);
    world.rebind(0, "192.0.2.1:4001".parse().unwrap());
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    world.rebind(0, "192.0.2.1:4002".parse().unwrap());
    let took = world.call(0, connection, Job::new(10, 100_000), LONG).unwrap();
    assert!(took < ms(2000), "{took:?}");
    assert_eq!(world.nodes[1].endpoint.connection_count(), 1);
}

/// An attacker on the way can send a packet on from elsewhere before the client's own comes, and answer the question.
#[test]
fn a_client_that_goes_on_calling_from_its_address_keeps_its_connection() {
    let (mut world, connection) = pair(7);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    let copies = copies(&mut world);
    world.start(0, connection, Job::new(500_000, 10));
    let own: SocketAddr = world.nodes[0].address;
    let attacker: SocketAddr = "192.0.2.66:7001".parse().unwrap();
    let all = copies.borrow().clone();
    let data: Vec<_> = all.into_iter().filter(|p| p[20] == PacketType::DATA.0).collect();
    let sent = answers_to(&mut world, attacker, &data[..1]);
    let (_, ping) = sent.iter().find(|(to, _)| *to == attacker).expect("that address is asked");
    let question = Header::parse(ping).unwrap();
    answers_to(&mut world, own, &data[1..2]);
    let mut answer =
        Header { kind: PacketType::ACK, seq: Seq(0), flags: Flags::CLIENT_INITIATED, ..question }
            .to_bytes()
            .to_vec();
    answer.extend_from_slice(&[0; 12]);
    answer.extend_from_slice(&question.serial.0.to_be_bytes());
    answer.extend_from_slice(&[7, 0, 0, 0, 0]);
    answers_to(&mut world, attacker, &[answer]);
    assert!(!world.nodes[1].endpoint.path_to(attacker).is_some_and(|p| p.is_verified()));
    assert!(world.run_until(LONG, World::is_done));
}
