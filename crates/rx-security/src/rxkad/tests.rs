//! rxkad against what OpenAFS 1.8.9 put on the wire with a known session key, and both ends against each other without a network.
//! Whole captures are in tests/captures.rs.

use super::packet::Sealer;
use super::response::SealedResponse;
use super::*;
use crate::identity::{Identity, LocalRealms};
use crate::keys::{EncType, Key, KeySet};
use crate::ticket::{self, NameRules, SessionKey, Token};
use crate::time::UnixTime;
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CHANNELS, CallNumber, Channel, ConnectionId, Epoch, Seq, ServiceId};
use rx_proto::packet::{HEADER_LEN, Header};
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const KEY: SessionKey = SessionKey::new([1, 2, 4, 7, 8, 11, 13, 14]);
const NOW: UnixTime = UnixTime(1_700_000_000);

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

fn header(epoch: u32, connection: u32, channel: u32, call: u32, seq: u32) -> Header {
    let mut header = Header::parse(&[0; HEADER_LEN]).unwrap();
    (header.epoch, header.connection) = (Epoch(epoch), ConnectionId(connection));
    (header.channel, header.call, header.seq) = (Channel::of(channel), CallNumber(call), Seq(seq));
    header.security = INDEX;
    header
}

impl Sealer {
    fn seal(&self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        self.prepare(header, plain, out);
        self.finish(&mut std::iter::once(&mut out[start..]));
    }
}

/// An exchange that was captured (service 42; opcode 77 and twelve letters; answered by a count and 20 times 'R').
struct Exchange {
    level: Level,
    name: (u32, u32),
    /// The checksums of call 1 seq 1, call 2 seq 1, call 1 seq 2, and channel 3 call 5 seq 7.
    checksums: [u16; 4],
    nonce: u32,
    block: &'static str,
    request: &'static str,
    reply: Option<&'static str>,
}

const EXCHANGES: [Exchange; 3] = [
    Exchange {
        level: Level::Clear,
        name: (0xa727_64c0, 0xaa97_aba4),
        checksums: [0xac30, 0xe761, 0x33b5, 0x86e2],
        nonce: 0x5346_eff0,
        block: "f0a3388e688741a3 cde79e2ed6ff06b7 a2217a6212dd5f19 fbbfd4456a4205e0 54dd3b89ba9d12b0",
        request: "0000004d6162636465666768696a6b6c",
        reply: None,
    },
    Exchange {
        level: Level::Auth,
        name: (0xb307_7c0f, 0x3da2_3114),
        checksums: [0x7cb1, 0xb30c, 0x1e78, 0x6d0a],
        nonce: 0x5346_eff0,
        block: "3931004912a81211 735543f62feb15f3 db4426aa51a94e9d 413ea2c919b20b2b bd482a442863b89d",
        request: "739c5c83f2c46995 6162636465666768696a6b6c",
        reply: Some("6804dac301122ae3 5252525252525252525252525252525252525252"),
    },
    Exchange {
        level: Level::Crypt,
        name: (0x9b0d_0ba7, 0x85b8_4134),
        checksums: [0x9874, 0xe454, 0xc2f8, 0xe5f7],
        nonce: 0x30fd_9569,
        block: "7ed5032b53182e04 f3e2020b5776b99f 62e6077a7ae5e8b5 09505893746bbb6d 84a574865e3963db",
        request: "8726018e7a409a18 5c0a39162a2b2d74 e64735e6827bfaab",
        reply: Some("01334e0b11eb664f 64fb98de942e6e5d d0434b06c74bf677 460f8423d4946f39"),
    },
];

#[test]
fn packets_are_those_of_openafs() {
    for Exchange { level, name: (epoch, connection), checksums, request, reply, .. } in EXCHANGES {
        let sealer = Sealer::new(&KEY, Epoch(epoch), ConnectionId(connection), level);
        let places = [(0, 1, 1), (0, 2, 1), (0, 1, 2), (3, 5, 7)];
        for ((channel, call, seq), want) in places.into_iter().zip(checksums) {
            assert_eq!(sealer.checksum(&header(epoch, connection, channel, call, seq)), want, "{level}");
        }
        let request_text = [&77u32.to_be_bytes()[..], b"abcdefghijkl"].concat();
        let reply_text = [&12u32.to_be_bytes()[..], &[b'R'; 20]].concat();
        for (plain, wire) in [(request_text, Some(request)), (reply_text, reply)] {
            let Some(wire) = wire else { continue };
            let mut header = header(epoch, connection, 0, 1, 1);
            let mut sealed = vec![9]; // what is there stays
            sealer.seal(&mut header, &plain, &mut sealed);
            assert_eq!((sealed[0], &sealed[1..]), (9, &bytes(wire)[..]), "{level}");
            assert_eq!(header.checksum, checksums[0]);
            assert_eq!(sealer.open(&header, Bytes::from(bytes(wire))), Ok(Bytes::from(plain)));
        }
    }
}

#[test]
fn responses_are_those_of_openafs() {
    for Exchange { level, name: (epoch, connection), nonce, block, .. } in EXCHANGES {
        let calls = [1, 0, 0, 0].map(CallNumber);
        let (epoch, connection) = (Epoch(epoch), ConnectionId(connection));
        let response = Response { epoch, connection, calls, nonce: nonce + 1, level: level.number() };
        let body = response.seal(&KEY, 3, &[0x61; 40]);
        assert_eq!(body[..8], bytes("00000002 00000000"));
        assert_eq!(body[8..48], bytes(block), "{level}");
        assert_eq!(body[48..56], bytes("00000003 00000028"));
        let sealed = SealedResponse::parse(&body).unwrap();
        assert_eq!((sealed.kvno, sealed.ticket), (3, &[0x61; 40][..]));
        assert_eq!(sealed.open(&KEY), Ok(response));
        assert_eq!(sealed.open(&SessionKey::new([7; 8])), Err(codes::SEALEDINCON));
    }
}

#[test]
fn plain_text_of_every_length_comes_back_and_fits() {
    for level in Level::ALL {
        let sealer = Sealer::new(&KEY, Epoch(1), ConnectionId(4), level);
        let capacity = Sealer::capacity(level, 1416);
        assert_eq!(capacity, [1416, 1412, 1408][level.number() as usize]);
        for len in (0..40).chain(capacity - 10..=capacity) {
            let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut header = header(1, 4, 2, 3, 70_000);
            let mut sealed = Vec::new();
            sealer.seal(&mut header, &plain, &mut sealed);
            assert!(sealed.len() <= 1416 && (level == Level::Clear || sealed.len() >= 8));
            assert_eq!(sealer.open(&header, sealed.into()), Ok(Bytes::from(plain)), "{len} bytes at {level}");
        }
    }
}

#[test]
fn packets_that_are_sealed_together_are_what_each_is_alone() {
    for level in Level::ALL {
        let sealer = Sealer::new(&KEY, Epoch(1), ConnectionId(4), level);
        for count in 1..14u32 {
            for last in [0, 1, 56, 57, 100] {
                let (mut together, mut alone) = (Vec::new(), Vec::new());
                let mut length = 0;
                for seq in 1..=count {
                    let plain = vec![seq as u8; if seq == count { last } else { 100 }];
                    sealer.prepare(&mut header(1, 4, 0, 3, seq), &plain, &mut together);
                    length = length.max(together.len() - alone.len());
                    sealer.seal(&mut header(1, 4, 0, 3, seq), &plain, &mut alone);
                }
                sealer.finish(&mut together.chunks_mut(length.max(1)));
                assert_eq!(together, alone, "{count} packets, {last} bytes in the last, at {level}");
            }
        }
    }
}

#[test]
fn a_packet_in_the_place_of_another_is_refused() {
    for level in Level::ALL {
        let sealer = Sealer::new(&KEY, Epoch(1), ConnectionId(4), level);
        let mut good = header(1, 4, 0, 7, 9);
        let mut sealed = Vec::new();
        sealer.seal(&mut good, &[5; 100], &mut sealed);
        let sealed = Bytes::from(sealed);
        let changed = [
            Header { seq: Seq(10), ..good },
            Header { call: CallNumber(8), ..good },
            Header { channel: Channel::of(1), ..good },
            Header { checksum: good.checksum ^ 1, ..good },
            Header { checksum: 0, ..good },
        ];
        for header in changed {
            assert_eq!(sealer.open(&header, sealed.clone()), Err(codes::SEALEDINCON), "{level}, {header:?}");
        }
        // With the right checksum the place in the body still tells.
        let mut elsewhere = Header { seq: Seq(11), ..good };
        elsewhere.checksum = sealer.checksum(&elsewhere);
        let got = sealer.open(&elsewhere, sealed.clone());
        assert_eq!(got.is_err(), level != Level::Clear);
        if level == Level::Clear {
            continue;
        }
        let mut damaged = sealed.to_vec();
        damaged[0] ^= 0x80;
        assert_eq!(sealer.open(&good, damaged.into()), Err(codes::SEALEDINCON));
        for short in [0, 4, 7] {
            assert_eq!(sealer.open(&good, sealed.slice(..short)), Err(codes::PACKETSHORT));
        }
        let first = sealer.open(&good, sealed.slice(..8));
        let second = sealer.open(&good, sealed.slice(..16));
        assert_eq!((first, second), (Err(codes::DATALEN), Err(codes::DATALEN)), "{level}");
    }
}

// ---- both ends

fn keys() -> KeySet {
    KeySet::of([Key::rxkad_krb5(2, EncType::AES256, &[7; 32])]).unwrap()
}

fn rng() -> StdRng {
    StdRng::seed_from_u64(6)
}

fn server(min_level: Level) -> Server {
    let options = ServerOptions { min_level, ..ServerOptions::of_cell("lab.test") };
    Server::new(keys(), options, Arc::new(|| NOW))
}

fn facts() -> ConnectionFacts {
    let calls = [3, 0, 9, 0].map(CallNumber);
    ConnectionFacts {
        epoch: Epoch(0x8123_4567),
        connection: ConnectionId(0x40),
        service: ServiceId(1),
        calls,
        peer: ([192, 0, 2, 1], 7001).into(),
        checksum: 0,
    }
}

fn superuser() -> Token {
    ticket::local_superuser(&keys(), &mut rng()).unwrap()
}

type Ends = (Box<dyn SecurityClass>, Client);

/// Returns the outcome of a challenge and of this client's answer.
fn meet(server: &Server, client: Client) -> (Ends, Result<[CallNumber; CHANNELS], AbortCode>) {
    let (mut end, mut client) = (server.accept(&facts()), client);
    let challenge = end.challenge(0x1_ffff_ffff);
    let result = client
        .handle_challenge(&facts(), &challenge)
        .and_then(|response| end.handle_response(&facts(), &response));
    ((end, client), result)
}

#[test]
fn a_ticket_for_a_key_that_was_just_added_is_opened() {
    let server = server(Level::Clear);
    let newer = || KeySet::of([Key::rxkad_krb5(3, EncType::AES256, &[8; 32])]).unwrap();
    let token = Arc::new(ticket::local_superuser(&newer(), &mut rng()).unwrap());
    let shows = || meet(&server, Client::new(Arc::clone(&token), Level::Crypt)).1.map(drop);
    assert_eq!(shows(), Err(codes::UNKNOWNKEY));
    let (weak, looks) = (server.clone(), Arc::new(std::sync::atomic::AtomicU32::new(0)));
    let count = Arc::clone(&looks);
    server.when_key_is_unknown(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        weak.set_keys(newer());
    });
    assert_eq!([shows(), shows()], [Ok(()), Ok(())]);
    assert_eq!(looks.load(std::sync::atomic::Ordering::Relaxed), 1, "and is known from then on");
}

#[test]
fn a_superuser_is_known_and_understood_at_every_level() {
    for level in Level::ALL {
        let ((mut end, mut client), result) = meet(&server(level), Client::new(Arc::new(superuser()), level));
        assert_eq!(result, Ok(facts().calls));
        assert!(Identity::parse(end.identity().unwrap()).unwrap().is_local_superuser());
        assert_eq!(end.plaintext_capacity(1416), client.plaintext_capacity(1416));
        let mut header = header(facts().epoch.0, facts().connection.0, 1, 2, 3);
        let mut sealed = Vec::new();
        client.seal(&mut header, b"question", &mut sealed);
        assert_eq!(end.open(&header, sealed.into()).unwrap(), &b"question"[..]);
        let mut sealed = Vec::new();
        end.seal(&mut header, b"answer", &mut sealed);
        assert_eq!(client.open(&header, sealed.into()).unwrap(), &b"answer"[..]);
    }
}

#[test]
fn the_level_is_at_least_that_of_the_server() {
    for (client_level, server_level) in
        [(Level::Clear, Level::Auth), (Level::Clear, Level::Crypt), (Level::Auth, Level::Crypt)]
    {
        let server = server(server_level);
        let (_, result) = meet(&server, Client::new(Arc::new(superuser()), client_level));
        assert_eq!(result, Err(codes::LEVELFAIL), "the client knows already");
        // A client that does not look at what is asked.
        let ((mut end, _), _) = meet(&server, Client::new(Arc::new(superuser()), client_level));
        let token = superuser();
        let facts = facts();
        let response = Response {
            epoch: facts.epoch,
            connection: facts.connection,
            calls: facts.calls,
            nonce: 0,
            level: client_level.number(),
        };
        let body = response.seal(&token.session_key, token.kvno, &token.ticket);
        assert_eq!(end.handle_response(&facts, &body), Err(codes::LEVELFAIL));
        assert!(!end.is_authenticated() && end.identity().is_none());
        let unknown = Response { level: 3, ..response }.seal(&token.session_key, token.kvno, &token.ticket);
        assert_eq!(end.handle_response(&facts, &unknown), Err(codes::LEVELFAIL));
    }
}

#[test]
fn an_answer_to_another_question_or_of_another_connection_is_refused() {
    let server = server(Level::Clear);
    let (facts, token) = (facts(), superuser());
    let good =
        Response { epoch: facts.epoch, connection: facts.connection, calls: facts.calls, nonce: 6, level: 2 };
    let mut calls = facts.calls;
    calls[3] = CallNumber(1 << 31);
    for (response, want) in [
        (good, Ok(facts.calls)),
        (Response { nonce: 5, ..good }, Err(codes::OUTOFSEQUENCE)),
        (Response { epoch: Epoch(1), ..good }, Err(codes::SEALEDINCON)),
        (Response { connection: ConnectionId(0x44), ..good }, Err(codes::SEALEDINCON)),
        (Response { calls, ..good }, Err(codes::SEALEDINCON)),
    ] {
        let mut end = server.accept(&facts);
        assert_eq!(end.challenge(5), end.challenge(77), "asked again, the question is the same");
        let body = response.seal(&token.session_key, token.kvno, &token.ticket);
        assert_eq!(end.handle_response(&facts, &body), want, "{response:?}");
        assert_eq!(end.is_authenticated(), want.is_ok());
    }
    let body = good.seal(&SessionKey::new([9; 8]), token.kvno, &token.ticket);
    let mut end = server.accept(&facts);
    end.challenge(5);
    assert_eq!(
        end.handle_response(&facts, &body),
        Err(codes::SEALEDINCON),
        "a ticket that was only overheard"
    );
    assert_eq!(server.accept(&facts).handle_response(&facts, &body), Err(codes::OUTOFSEQUENCE), "unasked");
}

#[test]
fn a_ticket_of_another_cell_is_refused() {
    let other = KeySet::of([Key::rxkad_krb5(2, EncType::AES256, &[8; 32])]).unwrap();
    let token = ticket::local_superuser(&other, &mut rng()).unwrap();
    let server = server(Level::Clear);
    let (_, result) = meet(&server, Client::new(Arc::new(token.clone()), Level::Crypt));
    assert_eq!(result, Err(codes::BADTICKET));
    server.set_keys(other);
    let (_, result) = meet(&server, Client::new(Arc::new(token), Level::Crypt));
    assert!(result.is_ok(), "new keys count at once");
    let (_, result) = meet(&server, Client::new(Arc::new(superuser()), Level::Crypt));
    assert_eq!(result, Err(codes::BADTICKET));
}

#[test]
fn a_connection_ends_with_its_ticket() {
    let clock = Arc::new(AtomicU32::new(NOW.0));
    let reads = Arc::clone(&clock);
    let options = ServerOptions::of_cell("lab.test");
    let server = Server::new(keys(), options, Arc::new(move || UnixTime(reads.load(Ordering::Relaxed))));
    let who = Identity::parse("user1").unwrap();
    let times = (NOW, NOW.plus(Duration::from_secs(100)));
    let token = Arc::new(ticket::for_user(&keys(), &who, "lab.test", times, &mut rng()).unwrap());
    let ((mut end, mut client), result) = meet(&server, Client::new(Arc::clone(&token), Level::Crypt));
    assert!(result.is_ok());
    assert_eq!(end.identity(), Some("user1"));
    let mut header = header(facts().epoch.0, facts().connection.0, 0, 2, 1);
    let mut sealed = Vec::new();
    client.seal(&mut header, b"x", &mut sealed);
    clock.store(times.1.0, Ordering::Relaxed);
    assert!(end.open(&header, sealed.clone().into()).is_ok());
    clock.store(times.1.0 + 1, Ordering::Relaxed);
    assert_eq!(end.open(&header, sealed.into()), Err(codes::EXPIRED));
    let (_, result) = meet(&server, Client::new(token, Level::Crypt));
    assert_eq!(result, Err(codes::EXPIRED));
}

#[test]
fn users_of_other_realms_are_named_with_theirs() {
    let realms = LocalRealms::of_cell("lab.test");
    let options = ServerOptions { min_level: Level::Clear, realms, names: NameRules::default() };
    let server = Server::new(keys(), options, Arc::new(|| NOW));
    let who = Identity::parse("user1.admin@other.org").unwrap();
    let token = ticket::for_user(&keys(), &who, "lab.test", (NOW, UnixTime::NEVER), &mut rng()).unwrap();
    let ((end, _), result) = meet(&server, Client::new(Arc::new(token), Level::Auth));
    assert!(result.is_ok());
    assert_eq!(end.identity(), Some("user1.admin@other.org"));
}

#[test]
fn no_key_is_in_any_debug_text() {
    let token = superuser();
    let server = server(Level::Clear);
    let ((end, client), _) = meet(&server, Client::new(Arc::new(token.clone()), Level::Clear));
    let text = format!("{server:?} {end:?} {client:?} {:?}", token.session_key);
    let (session, cell) = (format!("{:?}", token.session_key.bytes()), format!("{:?}", [7u8; 32]));
    for secret in [session, cell] {
        assert!(!text.contains(secret.trim_matches(['[', ']'])), "{text}");
    }
}
