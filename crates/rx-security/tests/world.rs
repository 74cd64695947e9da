//! rxkad's two ends on endpoints in virtual time: calls at every level over good and bad networks, and what becomes of clients that
//! are not who they say. The class by itself is tested in `rxkad/tests.rs`.

use afs_sim::world::{Job, Link, World, ms};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_proto::CallError;
use rx_proto::abort::AbortCode;
use rx_proto::config::Config;
use rx_proto::endpoint::ConnectionHandle;
use rx_proto::packet::{Header, PacketType};
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::rxkad::{self, Client, Level, ServerOptions, codes};
use rx_security::ticket::{self, Token};
use rx_security::{Identity, UnixTime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const NOW: UnixTime = UnixTime(1_700_000_000);

fn keys(secret: u8) -> KeySet {
    KeySet::of([Key::rxkad_krb5(2, EncType::AES256, &[secret; 32])]).unwrap()
}

fn superuser(secret: u8) -> Token {
    ticket::local_superuser(&keys(secret), &mut StdRng::seed_from_u64(3)).unwrap()
}

/// A client at node 0 and a server at node 1, whose clock is the one given.
fn pair(
    config: Config,
    link: Link,
    min_level: Level,
    clock: &Arc<AtomicU32>,
    client: Client,
) -> (World, ConnectionHandle) {
    let mut world = World::new(5);
    world.default_link = link;
    let options = ServerOptions { min_level, ..ServerOptions::of_cell("lab.test") };
    let clock = Arc::clone(clock);
    let server =
        rxkad::Server::new(keys(1), options, Arc::new(move || UnixTime(clock.load(Ordering::Relaxed))));
    world.server_security = vec![Arc::new(server)];
    world.add(config.clone());
    world.add(config);
    let connection = world.connect_with(0, 1, Box::new(client));
    (world, connection)
}

fn simple(min_level: Level, token: Token, level: Level) -> (World, ConnectionHandle) {
    let clock = Arc::new(AtomicU32::new(NOW.0));
    pair(Config::default(), Link::default(), min_level, &clock, Client::new(Arc::new(token), level))
}

#[test]
fn calls_of_every_length_go_through_at_every_level() {
    for level in Level::ALL {
        for config in [Config::default(), Config::stock_like()] {
            let lossy = Link { loss: 0.02, reorder: 0.02, rate: 50_000_000, mtu: 8972, ..Link::default() };
            let clock = Arc::new(AtomicU32::new(NOW.0));
            let client = Client::new(Arc::new(superuser(1)), level);
            let (mut world, connection) = pair(config, lossy, level, &clock, client);
            for len in [0, 1, 3, 4, 5, 1407, 1408, 1409, 1412, 1413, 1416, 1417, 50_000, 1_000_000] {
                let result = world.call(0, connection, Job::new(len, len), LONG);
                assert!(result.is_ok(), "{len} bytes at {level}: {result:?}");
            }
        }
    }
}

#[test]
fn the_first_call_is_asked_for_its_ticket_and_the_second_is_not() {
    let (mut world, connection) = simple(Level::Crypt, superuser(1), Level::Crypt);
    assert!(world.call(0, connection, Job::new(5000, 10), LONG).unwrap() < ms(35));
    assert!(world.call(0, connection, Job::new(5000, 10), LONG).unwrap() < ms(25));
    let sent = world.nodes[1].endpoint.stats().packets_sent;
    assert_eq!(sent[usize::from(PacketType::CHALLENGE.0)], 1);
    world.restart(1);
    assert!(world.call(0, connection, Job::new(5000, 10), LONG).is_ok(), "a restarted server asks again");
}

/// Tickets of people in many groups are longer than a packet: their RESPONSE was lost for ever, as it must not be fragmented.
#[test]
fn a_ticket_that_is_longer_than_a_packet_gets_through() {
    let mut token = superuser(1);
    token.ticket.resize(ticket::TICKET_MAX, 0); // what stands behind a ticket is passed over
    let (mut world, connection) = simple(Level::Crypt, token, Level::Crypt);
    world.both_links(0, 1, |link| link.mtu = 1472);
    let took = world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    assert!(took < ms(35), "{took:?}");
}

#[test]
fn nothing_of_a_secret_is_readable_at_level_crypt() {
    for level in Level::ALL {
        let (mut world, connection) = simple(level, superuser(1), level);
        let seen = std::rc::Rc::new(std::cell::Cell::new(false));
        let sees = std::rc::Rc::clone(&seen);
        // The world's pattern, as it stands somewhere in a request.
        let text: Vec<u8> = (500..540).map(afs_sim::world::pattern).collect();
        world.filter = Some(Box::new(move |_, _, packet| {
            sees.set(sees.get() | packet.windows(text.len()).any(|part| part == text));
            true
        }));
        world.call(0, connection, Job::new(5000, 5000), LONG).unwrap();
        assert_eq!(seen.get(), level != Level::Crypt, "{level}");
    }
}

/// Whatever is wrong with the client, its calls end with this code and nothing runs.
fn check_refused(min_level: Level, token: Token, level: Level, want: AbortCode) {
    let (mut world, connection) = simple(min_level, token, level);
    for _ in 0..2 {
        let result = world.call(0, connection, Job::new(100, 100), LONG);
        assert_eq!(result.unwrap_err().code(), want);
    }
    assert_eq!(world.nodes[1].served, 0, "nothing is served");
}

#[test]
fn a_client_that_is_not_who_it_says_is_refused_with_the_code() {
    let crypt = Level::Crypt;
    check_refused(crypt, superuser(2), crypt, codes::BADTICKET);
    let stolen = Token { session_key: rx_security::ticket::SessionKey::new([4; 8]), ..superuser(1) };
    check_refused(crypt, stolen, crypt, codes::SEALEDINCON);
    check_refused(crypt, Token { kvno: 7, ..superuser(1) }, crypt, codes::UNKNOWNKEY);
    check_refused(crypt, superuser(1), Level::Auth, codes::LEVELFAIL);
    let user = |start, end| {
        let who = Identity::parse("user1").unwrap();
        let mut rng = StdRng::seed_from_u64(1);
        ticket::for_user(&keys(1), &who, "lab.test", (UnixTime(start), UnixTime(end)), &mut rng).unwrap()
    };
    check_refused(crypt, user(NOW.0 - 5000, NOW.0 - 1), crypt, codes::EXPIRED);
    check_refused(crypt, user(NOW.0 + 1000, NOW.0 + 2000), crypt, codes::NOAUTH);
}

#[test]
fn a_call_under_way_ends_when_its_ticket_does() {
    let clock = Arc::new(AtomicU32::new(NOW.0));
    let who = Identity::parse("user1").unwrap();
    let times = (NOW, UnixTime(NOW.0 + 100));
    let token = ticket::for_user(&keys(1), &who, "lab.test", times, &mut StdRng::seed_from_u64(1)).unwrap();
    let client = Client::new(Arc::new(token), Level::Auth);
    let slow = Link { rate: 1_000_000, ..Link::default() };
    let (mut world, connection) = pair(Config::default(), slow, Level::Clear, &clock, client);
    let job = world.start(0, connection, Job::new(1_000_000, 10));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.nodes[0].jobs[job].result, None);
    clock.store(NOW.0 + 101, Ordering::Relaxed);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.nodes[0].jobs[job].result, Some(Err(CallError::AbortedByPeer(codes::EXPIRED))));
}

/// Nobody can change a byte of what is encrypted, or move a packet, unnoticed, without the key.
#[test]
fn a_packet_that_was_changed_on_its_way_ends_the_connection() {
    let (mut world, connection) = simple(Level::Crypt, superuser(1), Level::Crypt);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    world.rewrite = Some(Box::new(|packet| {
        let header = Header::parse(packet).unwrap();
        if header.kind == PacketType::DATA && header.is_from_client() {
            packet[29] ^= 1;
        }
    }));
    let result = world.call(0, connection, Job::new(10, 10), LONG);
    assert_eq!(result, Err(CallError::AbortedByPeer(codes::SEALEDINCON)));
    assert_eq!(world.nodes[1].served, 1);
}

/// A server that has restarted knows nothing of the calls before, and takes the client's word. Somebody on the network path has recorded one
/// of them, which was over.
#[test]
fn a_call_that_is_over_is_not_executed_again_by_a_restarted_server() {
    let (mut world, connection) = simple(Level::Crypt, superuser(1), Level::Crypt);
    let recorded = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let records = std::rc::Rc::clone(&recorded);
    world.filter = Some(Box::new(move |_, _, packet| {
        let header = Header::parse(packet).unwrap();
        if header.kind == PacketType::DATA && header.is_from_client() {
            records.borrow_mut().push(bytes::Bytes::copy_from_slice(packet));
        }
        true
    }));
    // Two calls at once, on two channels.
    for _ in 0..2 {
        world.start(0, connection, Job::new(100, 100));
    }
    world.run_until(LONG, World::is_done);
    let recorded = std::mem::take(&mut *recorded.borrow_mut());
    world.filter = None;
    world.restart(1);
    assert!(world.call(0, connection, Job::new(100, 100), LONG).is_ok());
    let served = world.nodes[1].served;
    for packet in recorded {
        let (now, from) = (world.now, world.nodes[0].address);
        world.nodes[1].endpoint.handle_datagram(now, from, packet);
    }
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.nodes[1].served, served, "no call runs twice");
}
