//! rxgk's two ends on endpoints in virtual time: calls at every level over good and bad networks, keys that are replaced in the middle of
//! calls, and what becomes of clients that are not who they say. The class by itself is tested in `rxgk/tests.rs`.

use afs_sim::world::{Job, Link, World, ms};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_proto::CallError;
use rx_proto::abort::AbortCode;
use rx_proto::config::Config;
use rx_proto::endpoint::ConnectionHandle;
use rx_proto::packet::{Header, PacketType};
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::rxgk::{AuthName, Client, Content, Dialect, ENCTYPES, Fault, Form, RxgkTime, Secret};
use rx_security::rxgk::{Server, ServerOptions, Token, seal};
use rx_security::time::Clock;
use rx_security::{Identity, Level, UnixTime};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);
const NOW: u32 = 1_700_000_000;

fn key(secret: u8) -> Key {
    Key::rxgk(2, EncType::AES256, &[secret; 32])
}

fn form(dialect: Dialect, level: Level) -> Form {
    Form { dialect, kind: EncType::AES128, level }
}

fn superuser(secret: u8, form: Form) -> Token {
    let keys = KeySet::of([key(secret)]).unwrap();
    Token::of_superuser(&keys, form, &mut StdRng::seed_from_u64(3)).unwrap()
}

/// A token that has its keys replaced after a time, and after so many bytes.
fn restless(lifetime: u32, bytelife: u32, level: Level) -> Token {
    let (dialect, kind) = (Dialect::Yfs, EncType::AES128);
    let secret = Secret::new(kind, &[3; 16]).unwrap();
    let (start, end) = (RxgkTime::NONE, RxgkTime::NONE);
    let content = Content { secret, level, start, lifetime, bytelife, end, names: Vec::new() };
    let token = seal(&key(1), dialect, &content, &mut StdRng::seed_from_u64(3)).unwrap();
    Token { dialect, secret: content.secret, level, lifetime, bytelife, end, token }
}

/// A clock that a test sets; both ends look at it.
fn clock(seconds: &Arc<AtomicU32>) -> Clock {
    let seconds = Arc::clone(seconds);
    Arc::new(move || UnixTime(seconds.load(Ordering::Relaxed)))
}

/// A client at node 0 and a server at node 1 with both dialects.
fn pair(
    config: Config,
    link: Link,
    min_level: Level,
    seconds: &Arc<AtomicU32>,
    token: Token,
) -> (World, ConnectionHandle) {
    let (world, connection, _) = with_server(config, link, min_level, seconds, token);
    (world, connection)
}

/// The same, with the server's part.
fn with_server(
    config: Config,
    link: Link,
    min_level: Level,
    seconds: &Arc<AtomicU32>,
    token: Token,
) -> (World, ConnectionHandle, Server) {
    let mut world = World::new(5);
    world.default_link = link;
    let options = ServerOptions { min_level, ..ServerOptions::of_cell("lab.test") };
    let keys = KeySet::of([key(1)]).unwrap();
    let server = Server::new(Dialect::Rxgk, keys, options, clock(seconds), [8; 32]);
    world.server_security = vec![Arc::new(server.clone()), Arc::new(server.in_dialect(Dialect::Yfs))];
    world.add(config.clone());
    world.add(config);
    let client = Client::new(Arc::new(token), clock(seconds), [9; 32]);
    let connection = world.connect_with(0, 1, Box::new(client));
    (world, connection, server)
}

fn simple(min_level: Level, token: Token) -> (World, ConnectionHandle) {
    pair(Config::default(), Link::default(), min_level, &Arc::new(AtomicU32::new(NOW)), token)
}

/// The key numbers of all DATA packets.
fn watch_numbers(world: &mut World) -> Rc<RefCell<BTreeSet<u16>>> {
    let numbers = Rc::new(RefCell::new(BTreeSet::new()));
    let seen = Rc::clone(&numbers);
    world.filter = Some(Box::new(move |_, _, packet| {
        let header = Header::parse(packet).unwrap();
        if header.kind == PacketType::DATA {
            seen.borrow_mut().insert(header.checksum);
        }
        true
    }));
    numbers
}

#[test]
fn calls_of_every_length_go_through_at_every_level() {
    for dialect in Dialect::ALL {
        for (kind, level) in ENCTYPES.into_iter().zip(Level::ALL.into_iter().cycle()) {
            for config in [Config::default(), Config::stock_like()] {
                let lossy =
                    Link { loss: 0.02, reorder: 0.02, rate: 50_000_000, mtu: 8972, ..Link::default() };
                let token = superuser(1, Form { kind, ..form(dialect, level) });
                let seconds = Arc::new(AtomicU32::new(NOW));
                let (mut world, connection) = pair(config, lossy, level, &seconds, token);
                for len in [0, 1, 1351, 1352, 1353, 1364, 1365, 1404, 1405, 1416, 1417, 50_000, 500_000] {
                    let result = world.call(0, connection, Job::new(len, len), LONG);
                    assert!(result.is_ok(), "{len} bytes at {level}: {result:?}");
                }
            }
        }
    }
}

#[test]
fn the_first_call_is_asked_for_its_token_and_the_second_is_not() {
    let (mut world, connection) = simple(Level::Crypt, superuser(1, form(Dialect::Rxgk, Level::Crypt)));
    assert!(world.call(0, connection, Job::new(5000, 10), LONG).unwrap() < ms(35));
    assert!(world.call(0, connection, Job::new(5000, 10), LONG).unwrap() < ms(25));
    let sent = world.nodes[1].endpoint.stats().packets_sent;
    assert_eq!(sent[usize::from(PacketType::CHALLENGE.0)], 1);
    world.restart(1);
    assert!(world.call(0, connection, Job::new(5000, 10), LONG).is_ok(), "a restarted server asks again");
}

/// As a cache manager's with a user of many names: such a RESPONSE travels as fragments.
#[test]
fn a_token_that_is_longer_than_a_packet_gets_through() {
    let mut names = vec![AuthName::of_principal("user1@LAB.TEST")];
    names[0].display = vec![b'x'; 2048];
    let (dialect, level) = (Dialect::Yfs, Level::Crypt);
    let secret = Secret::new(EncType::AES128, &[3; 16]).unwrap();
    let (start, end) = (RxgkTime::NONE, RxgkTime::NONE);
    let content = Content { secret, level, start, lifetime: 0, bytelife: 0, end, names };
    let token = seal(&key(1), dialect, &content, &mut StdRng::seed_from_u64(3)).unwrap();
    let token = Token { dialect, secret: content.secret, level, lifetime: 0, bytelife: 0, end, token };
    let (mut world, connection) = simple(Level::Crypt, token);
    world.both_links(0, 1, |link| link.mtu = 1472);
    let took = world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    assert!(took < ms(35), "{took:?}");
}

#[test]
fn nothing_of_a_secret_is_readable_at_level_crypt() {
    for level in Level::ALL {
        let (mut world, connection) = simple(level, superuser(1, form(Dialect::Yfs, level)));
        let seen = Rc::new(Cell::new(false));
        let sees = Rc::clone(&seen);
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

/// A network that loses, repeats and reorders, and keys of 4 MiB in calls of 20: no packet is refused, and nothing stands still.
#[test]
fn keys_are_replaced_in_the_middle_of_calls_without_a_pause() {
    for level in [Level::Auth, Level::Crypt] {
        for lossy in [false, true] {
            let took = [0, 22].map(|bytelife| {
                let mut link = Link { rate: 400_000_000, ..Link::default() };
                if lossy {
                    (link.loss, link.reorder, link.duplicate) = (0.002, 0.01, 0.002);
                }
                let seconds = Arc::new(AtomicU32::new(NOW));
                let token = restless(0, bytelife, level);
                let (mut world, connection) = pair(Config::default(), link, level, &seconds, token);
                let numbers = watch_numbers(&mut world);
                // Both directions at once: either confirms the other's keys.
                let jobs = [Job::new(20 << 20, 10), Job::new(10, 20 << 20)]
                    .map(|job| world.start(0, connection, job));
                world.run_until(LONG, |world| world.is_done());
                for job in jobs {
                    assert_eq!(world.nodes[0].jobs[job].result, Some(Ok(())), "{level}");
                }
                let last = numbers.borrow().last().copied();
                assert!(if bytelife == 0 { last == Some(0) } else { last >= Some(4) }, "{last:?}");
                let ended = jobs.map(|job| world.nodes[0].jobs[job].ended.unwrap());
                ended[0].max(ended[1]).since(world.nodes[0].jobs[jobs[0]].started)
            });
            assert!(took[1] < took[0] + took[0] / 20, "{took:?} at {level}");
        }
    }
}

#[test]
fn keys_are_replaced_by_time_and_an_old_packet_is_not_taken_again() {
    let seconds = Arc::new(AtomicU32::new(NOW));
    let token = restless(60, 0, Level::Crypt);
    let (mut world, connection) = pair(Config::default(), Link::default(), Level::Crypt, &seconds, token);
    let numbers = watch_numbers(&mut world);
    for minute in 0..5 {
        seconds.store(NOW + 60 * minute, Ordering::Relaxed);
        assert!(world.call(0, connection, Job::new(5000, 5000), LONG).is_ok());
    }
    assert_eq!(*numbers.borrow(), (0..5).collect());
    // Who has recorded a packet of the first key and sends it under the number of today's is refused.
    world.rewrite = Some(Box::new(|packet| {
        let header = Header::parse(packet).unwrap();
        if header.kind == PacketType::DATA && header.is_from_client() {
            packet[24..26].copy_from_slice(&0u16.to_be_bytes());
        }
    }));
    let result = world.call(0, connection, Job::new(10, 10), LONG);
    assert_eq!(result, Err(CallError::AbortedByPeer(Fault::BadKeyNo.code(Dialect::Yfs))));
}

/// Whatever is wrong with the client, its calls end with this code and nothing runs.
fn check_refused(min_level: Level, token: Token, want: AbortCode) {
    let (mut world, connection) = simple(min_level, token);
    for _ in 0..2 {
        let result = world.call(0, connection, Job::new(100, 100), LONG);
        assert_eq!(result.unwrap_err().code(), want);
    }
    assert_eq!(world.nodes[1].served, 0, "nothing is served");
}

#[test]
fn a_client_that_is_not_who_it_says_is_refused_with_the_code() {
    for dialect in Dialect::ALL {
        let (crypt, code) = (Level::Crypt, |fault: Fault| fault.code(dialect));
        check_refused(crypt, superuser(2, form(dialect, crypt)), code(Fault::BadToken));
        let secret = Secret::new(EncType::AES128, &[4; 16]).unwrap();
        let stolen = Token { secret, ..superuser(1, form(dialect, crypt)) };
        check_refused(crypt, stolen, code(Fault::SealedIncon));
        check_refused(crypt, superuser(1, form(dialect, Level::Auth)), code(Fault::BadLevel));
        let who = Identity::parse("user1").unwrap();
        let (keys, times) = (KeySet::of([key(1)]).unwrap(), (UnixTime(NOW - 5000), UnixTime(NOW - 1)));
        let rng = &mut StdRng::seed_from_u64(1);
        let late = Token::of_user(&keys, form(dialect, crypt), &who, "lab.test", times, rng).unwrap();
        check_refused(crypt, late, code(Fault::Expired));
    }
}

/// Long calls over a slow link: a store, whose client sends data, and a fetch, whose client only acknowledges. `end` happens in the middle.
fn check_ended(token: &Token, refuse: impl Fn(&Server), end: impl Fn(&AtomicU32)) {
    let slow = Link { rate: 1_000_000, ..Link::default() };
    for job in [Job::new(1_000_000, 10), Job::new(10, 1_000_000)] {
        let seconds = Arc::new(AtomicU32::new(NOW));
        let (mut world, connection, server) =
            with_server(Config::default(), slow.clone(), Level::Crypt, &seconds, token.clone());
        refuse(&server);
        let running = world.start(0, connection, job);
        world.run_for(Duration::from_secs(1));
        assert_eq!(world.nodes[0].jobs[running].result, None);
        end(&seconds);
        world.run_for(Duration::from_secs(2));
        let expired = Fault::Expired.code(token.dialect);
        let result = world.nodes[0].jobs[running].result;
        assert_eq!(result, Some(Err(CallError::AbortedByPeer(expired))), "{job:?}");
    }
}

#[test]
fn a_call_under_way_ends_when_its_token_does() {
    let who = Identity::parse("user1").unwrap();
    let (keys, times) = (KeySet::of([key(1)]).unwrap(), (UnixTime(NOW), UnixTime(NOW + 100)));
    let (form, rng) = (form(Dialect::Yfs, Level::Crypt), &mut StdRng::seed_from_u64(1));
    let token = Token::of_user(&keys, form, &who, "lab.test", times, rng).unwrap();
    check_ended(&token, |_| {}, |seconds| seconds.store(NOW + 101, Ordering::Relaxed));
}

/// A thief reads a long file from a laptop that was reported as stolen.
#[test]
fn a_fetch_under_way_ends_when_its_device_is_revoked() {
    let (dialect, level) = (Dialect::Rxgk, Level::Crypt);
    let secret = Secret::new(EncType::AES128, &[3; 16]).unwrap();
    let (start, end) = (RxgkTime::NONE, RxgkTime::NONE);
    let names = vec![AuthName::of_device(&Identity::parse("alice").unwrap(), "lab.test", 7)];
    let content = Content { secret, level, start, lifetime: 0, bytelife: 0, end, names };
    let sealed = seal(&key(1), dialect, &content, &mut StdRng::seed_from_u64(3)).unwrap();
    let token =
        Token { dialect, secret: content.secret, level, lifetime: 0, bytelife: 0, end, token: sealed };
    let revoked = Arc::new(AtomicU32::new(0));
    check_ended(
        &token,
        |server| {
            revoked.store(0, Ordering::Relaxed);
            let revoked = Arc::clone(&revoked);
            server.refuse_devices(move |device| device == revoked.load(Ordering::Relaxed));
        },
        |seconds| {
            revoked.store(7, Ordering::Relaxed);
            seconds.store(NOW + 1, Ordering::Relaxed);
        },
    );
}

/// Nobody can change a byte, or move a packet, unnoticed, without the key.
#[test]
fn a_packet_that_was_changed_on_its_way_ends_the_connection() {
    for level in [Level::Auth, Level::Crypt] {
        let (mut world, connection) = simple(level, superuser(1, form(Dialect::Rxgk, level)));
        world.call(0, connection, Job::new(10, 10), LONG).unwrap();
        world.rewrite = Some(Box::new(|packet| {
            let header = Header::parse(packet).unwrap();
            if header.kind == PacketType::DATA && header.is_from_client() {
                *packet.last_mut().unwrap() ^= 1;
            }
        }));
        let result = world.call(0, connection, Job::new(10, 10), LONG);
        let code = Fault::SealedIncon.code(Dialect::Rxgk);
        assert_eq!(result, Err(CallError::AbortedByPeer(code)), "{level}");
        assert_eq!(world.nodes[1].served, 1);
    }
}
