//! Both ends of rxgk against each other without a network: who is let in and as whom, and what is refused with which code. Keys and
//! packets by themselves are tested in `rxgk/transport/tests.rs`, and captured ones in `rxgk/tests/linux.rs`.

mod linux;

use super::response::{Authenticator, open_authenticator};
use super::*;
use crate::Level;
use crate::identity::Identity;
use crate::keys::{Key, KeySet, KeyType};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CHANNELS, CallNumber, Channel, ConnectionId, Epoch, Seq, ServiceId};
use rx_proto::packet::{HEADER_LEN, Header};
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};
use rxgen::xdr::Uuid;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const NOW: UnixTime = UnixTime(1_700_000_000);
const LATER: UnixTime = UnixTime(NOW.0 + 1000);

fn keys() -> KeySet {
    keys_of(7)
}

fn keys_of(secret: u8) -> KeySet {
    KeySet::of([Key::rxgk(2, EncType::AES256, &[secret; 32])]).unwrap()
}

fn rng() -> StdRng {
    StdRng::seed_from_u64(6)
}

fn server(dialect: Dialect, min_level: Level) -> Server {
    let options = ServerOptions { min_level, ..ServerOptions::of_cell("lab.test") };
    Server::new(dialect, keys(), options, Arc::new(|| NOW), [4; 32])
}

fn client(token: &Token) -> Client {
    Client::new(Arc::new(token.clone()), Arc::new(|| NOW), [5; 32])
}

fn facts() -> ConnectionFacts {
    ConnectionFacts {
        epoch: Epoch(0x8123_4567),
        connection: ConnectionId(0x40),
        service: ServiceId(1),
        calls: [3, 0, 9, 0].map(CallNumber),
        peer: ([192, 0, 2, 1], 7001).into(),
        checksum: 0,
    }
}

fn form(dialect: Dialect, level: Level) -> Form {
    Form { dialect, kind: EncType::AES256, level }
}

fn user(dialect: Dialect, level: Level, name: &str) -> Token {
    let who = Identity::parse(name).unwrap();
    Token::of_user(&keys(), form(dialect, level), &who, "lab.test", (NOW, LATER), &mut rng()).unwrap()
}

fn header(seq: u32) -> Header {
    let mut header = Header::parse(&[0; HEADER_LEN]).unwrap();
    (header.epoch, header.connection) = (facts().epoch, facts().connection);
    (header.channel, header.call, header.seq) = (Channel::of(1), CallNumber(2), Seq(seq));
    header
}

type Ends = (Box<dyn SecurityClass>, Client);

/// Returns the outcome of a challenge and of this client's answer.
fn meet(server: &Server, mut client: Client) -> (Ends, Result<[CallNumber; CHANNELS], AbortCode>) {
    let mut end = server.accept(&facts());
    let challenge = end.challenge(0x1_ffff_ffff);
    let result = client.handle_challenge(&facts(), &challenge).and_then(|response| {
        let facts = ConnectionFacts { checksum: client.response_checksum(), ..facts() };
        end.handle_response(&facts, &response)
    });
    ((end, client), result)
}

#[test]
fn a_caller_is_known_and_understood_at_every_level_in_each_dialect() {
    for dialect in Dialect::ALL {
        for kind in ENCTYPES {
            for level in Level::ALL {
                let form = Form { dialect, kind, level };
                let token = Token::of_superuser(&keys(), form, &mut rng()).unwrap();
                let ((mut end, mut client), result) = meet(&server(dialect, level), client(&token));
                assert_eq!(result, Ok(facts().calls));
                assert!(Identity::parse(end.identity().unwrap()).unwrap().is_local_superuser());
                assert_eq!((end.index(), client.index()), (dialect.index(), dialect.index()));
                assert_eq!(end.plaintext_capacity(1412), client.plaintext_capacity(1412));
                assert_eq!(end.level(), level.into());
                assert_eq!(end.authenticates_data(), level != Level::Clear);
                let (mut header, mut sealed) = (header(3), Vec::new());
                client.seal(&mut header, b"question", &mut sealed);
                assert_eq!(end.open(&header, sealed.into()).unwrap(), &b"question"[..]);
                let mut sealed = Vec::new();
                end.seal(&mut header, b"answer", &mut sealed);
                assert_eq!(client.open(&header, sealed.into()).unwrap(), &b"answer"[..]);
            }
        }
    }
}

#[test]
fn users_have_the_names_of_the_protection_database() {
    for dialect in Dialect::ALL {
        for name in ["user1", "user1.admin", "user1.admin@other.org"] {
            let ((end, _), result) =
                meet(&server(dialect, Level::Crypt), client(&user(dialect, Level::Crypt, name)));
            assert!(result.is_ok());
            assert_eq!(end.identity(), Some(name));
        }
        let named = user(dialect, Level::Crypt, "afs");
        let (_, result) = meet(&server(dialect, Level::Crypt), client(&named));
        assert_eq!(result, Err(Fault::NotAuth.code(dialect)), "a name does not make anybody a superuser");
    }
}

#[test]
fn a_token_of_the_other_dialect_is_not_read() {
    for (dialect, other) in [(Dialect::Rxgk, Dialect::Yfs), (Dialect::Yfs, Dialect::Rxgk)] {
        let token = Token { dialect, ..user(other, Level::Crypt, "user1") };
        let (_, result) = meet(&server(dialect, Level::Crypt), client(&token));
        assert_eq!(result, Err(Fault::BadToken.code(dialect)));
    }
    let both = server(Dialect::Rxgk, Level::Crypt);
    let token = user(Dialect::Yfs, Level::Crypt, "user1");
    assert!(meet(&both.in_dialect(Dialect::Yfs), client(&token)).1.is_ok(), "the keys are the same");
}

#[test]
fn the_level_is_at_least_that_of_the_server_and_that_of_the_token() {
    let dialect = Dialect::Yfs;
    assert_eq!(ServerOptions::of_cell("lab.test").min_level, Level::Crypt);
    for (given, least) in
        [(Level::Clear, Level::Auth), (Level::Clear, Level::Crypt), (Level::Auth, Level::Crypt)]
    {
        let (_, result) = meet(&server(dialect, least), client(&user(dialect, given, "user1")));
        assert_eq!(result, Err(Fault::BadLevel.code(dialect)));
        // A client that says another level than the token's, up or down.
        for (token, says) in [(given, least), (least, given)] {
            let token = Token { level: says, ..user(dialect, token, "user1") };
            let ((end, _), result) = meet(&server(dialect, Level::Clear), client(&token));
            assert_eq!(result, Err(Fault::BadChallenge.code(dialect)));
            assert!(!end.is_authenticated() && end.identity().is_none());
        }
    }
}

/// The answer of a client that is not ours, with changes to the authenticator.
fn answer(
    token: &Token,
    challenge: &[u8],
    facts: &ConnectionFacts,
    change: impl FnOnce(&mut Authenticator<'_>),
) -> Vec<u8> {
    let start = RxgkTime(5);
    let (epoch, connection) = (facts.epoch, facts.connection);
    let origin = transport::Origin { secret: token.secret.clone(), epoch, connection, start };
    let mut authenticator = Authenticator {
        nonce: challenge.try_into().unwrap(),
        app_data: &[],
        level: token.level.number(),
        epoch,
        connection: connection.0,
        calls: facts.calls,
    };
    change(&mut authenticator);
    let authenticator = authenticator.seal(&origin.key(facts.checksum.into()), &mut rng());
    Response { start, token: &token.token, authenticator: &authenticator }.to_bytes()
}

#[test]
fn an_answer_to_another_question_or_of_another_connection_is_refused() {
    for dialect in Dialect::ALL {
        let (server, token) = (server(dialect, Level::Crypt), user(dialect, Level::Crypt, "user1"));
        let check = |change: fn(&mut Authenticator<'_>), want: Result<(), Fault>| {
            let mut end = server.accept(&facts());
            let challenge = end.challenge(5);
            assert_eq!(end.challenge(77), challenge, "asked again, the question is the same");
            let result = end.handle_response(&facts(), &answer(&token, &challenge, &facts(), change));
            assert_eq!(result.map(drop), want.map_err(|fault| fault.code(dialect)));
            assert_eq!(end.is_authenticated(), want.is_ok());
        };
        let bad = Err(Fault::BadChallenge);
        check(|_| (), Ok(()));
        check(|a| a.nonce[0] ^= 1, bad);
        check(|a| a.nonce[19] ^= 1, bad);
        check(|a| a.level = 1, bad);
        check(|a| a.level = 3, bad);
        check(|a| a.epoch.0 ^= 1, bad);
        check(|a| a.connection ^= 4, bad);
        check(|a| a.connection ^= 1, bad);
        check(|a| a.calls[3] = CallNumber(1 << 31), bad);
        check(|a| a.app_data = b"nonsense", Err(Fault::SealedIncon));
        // A key number that the header does not tell.
        let mut end = server.accept(&facts());
        let body = answer(&token, &end.challenge(5), &facts(), |_| ());
        let facts = ConnectionFacts { checksum: 1, ..facts() };
        assert_eq!(end.handle_response(&facts, &body), Err(Fault::SealedIncon.code(dialect)));
    }
}

/// Somebody on the network path keeps an answer, and shows it again: on another connection, to a server that has restarted, before
/// it was asked.
#[test]
fn an_answer_that_was_overheard_is_of_no_use() {
    for dialect in Dialect::ALL {
        let code = |fault: Fault| Err(fault.code(dialect));
        let (server, token) = (server(dialect, Level::Crypt), user(dialect, Level::Crypt, "user1"));
        let mut end = server.accept(&facts());
        let (mut ours, challenge) = (client(&token), end.challenge(5));
        let overheard = ours.handle_challenge(&facts(), &challenge).unwrap();
        assert!(end.handle_response(&facts(), &overheard).is_ok());
        let mut again = server.accept(&facts());
        assert_ne!(again.challenge(5), challenge, "no two questions are the same");
        assert_eq!(again.handle_response(&facts(), &overheard), code(Fault::BadChallenge));
        let unasked = server.accept(&facts()).handle_response(&facts(), &overheard);
        assert_eq!(unasked, code(Fault::BadChallenge));
        let other = ConnectionFacts { connection: ConnectionId(0x44), ..facts() };
        let mut elsewhere = server.accept(&other);
        elsewhere.challenge(5);
        assert_eq!(elsewhere.handle_response(&other, &overheard), code(Fault::SealedIncon));
        // The token alone, without its secret.
        let secret = Secret::new(EncType::AES256, &[1; 32]).unwrap();
        let stolen = Token { secret, ..token.clone() };
        assert_eq!(meet(&server, client(&stolen)).1, code(Fault::SealedIncon));
        // DATA of the old connection, on a new one of the same name.
        let (mut header, mut sealed) = (header(1), Vec::new());
        ours.seal(&mut header, b"delete it", &mut sealed);
        let newer = Client::new(Arc::new(token.clone()), Arc::new(|| NOW), [6; 32]);
        let ((mut newer, _), result) = meet(&server, newer);
        assert!(result.is_ok());
        assert_eq!(newer.open(&header, sealed.into()), Err(Fault::SealedIncon.code(dialect)));
    }
}

/// Every byte of a RESPONSE, in each dialect.
#[test]
fn an_answer_that_was_changed_anywhere_is_refused() {
    for dialect in Dialect::ALL {
        let (server, token) = (server(dialect, Level::Crypt), user(dialect, Level::Crypt, "user1"));
        let mut end = server.accept(&facts());
        let body = client(&token).handle_challenge(&facts(), &end.challenge(5)).unwrap();
        // Zeros that nobody reads stand behind what is sealed in the token, and nowhere else.
        let sealed_end = 24 + u32::from_be_bytes(body[20..24].try_into().unwrap()) as usize;
        let padding = sealed_end..12 + token.token.len();
        assert!(padding.len() < 4 && Response::parse(&body).unwrap().authenticator.len().is_multiple_of(4));
        for at in (0..body.len()).filter(|at| !padding.contains(at)) {
            let mut changed = body.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(end.handle_response(&facts(), &changed).is_err(), "byte {at} of {}", body.len());
            assert!(!end.is_authenticated());
        }
        for len in 0..body.len() {
            assert!(end.handle_response(&facts(), &body[..len]).is_err(), "{len} bytes");
        }
        assert!(end.handle_response(&facts(), &body).is_ok());
    }
}

#[test]
fn lengths_that_cannot_be_are_refused_before_anything_is_opened() {
    let mut body = vec![0; 12 + 4];
    for (len, want) in [(0u32, true), (1, false), (5, false), (16_385, false), (u32::MAX, false)] {
        body[8..12].copy_from_slice(&len.to_be_bytes());
        assert_eq!(Response::parse(&body).is_ok(), want, "{len}");
    }
    assert_eq!(Fault::Unreadable.code(Dialect::Rxgk), AbortCode(-453));
    let short = client(&user(Dialect::Yfs, Level::Crypt, "user1")).handle_challenge(&facts(), &[0; 19]);
    assert_eq!(short, Err(Fault::PacketShort.code(Dialect::Yfs)));
}

#[test]
fn every_byte_of_a_token_is_protected() {
    for dialect in Dialect::ALL {
        let token = user(dialect, Level::Crypt, "user1").token;
        let sealed_len = u32::from_be_bytes(token[8..12].try_into().unwrap()) as usize;
        for at in 0..12 + sealed_len {
            let mut changed = token.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(open(&keys(), dialect, &changed).is_err(), "byte {at} of {}", token.len());
        }
        for len in 0..token.len() {
            assert_eq!(open(&keys(), dialect, &token[..len]), Err(Fault::BadToken));
        }
        assert_eq!(open(&keys(), dialect, &token).unwrap().names.len(), 1);
    }
}

#[test]
fn tokens_of_all_enctypes_read_back() {
    for dialect in Dialect::ALL {
        for kind in ENCTYPES {
            let key = Key::rxgk(3, kind, &vec![1; kind.key_len().unwrap()]);
            let content = Content {
                secret: Secret::new(kind, &vec![2; kind.key_len().unwrap()]).unwrap(),
                level: Level::Auth,
                start: if dialect == Dialect::Yfs { RxgkTime::of(NOW) } else { RxgkTime::NONE },
                lifetime: 36_000,
                bytelife: 30,
                end: RxgkTime::of(LATER),
                names: vec![AuthName::of_principal("a@B"), AuthName::of_principal("c/d@E")],
            };
            let sealed = seal(&key, dialect, &content, &mut rng()).unwrap();
            let keys = KeySet::of([key.clone()]).unwrap();
            assert_eq!(open(&keys, dialect, &sealed), Ok(content.clone()));
            let none = KeySet::of([Key { kvno: 4, ..key }]).unwrap();
            assert_eq!(open(&none, dialect, &sealed), Err(Fault::BadKeyNo));
        }
        let mut foreign = user(dialect, Level::Crypt, "user1").token;
        foreign[7] = 23;
        assert_eq!(open(&keys(), dialect, &foreign), Err(Fault::BadEtype));
    }
}

#[test]
fn a_token_of_another_cell_is_refused() {
    let dialect = Dialect::Rxgk;
    let other = || keys_of(8);
    let make = |keys| Token::of_superuser(&keys, form(dialect, Level::Crypt), &mut rng()).unwrap();
    let server = server(dialect, Level::Crypt);
    assert_eq!(meet(&server, client(&make(other()))).1, Err(Fault::BadToken.code(dialect)));
    server.set_keys(other());
    assert!(meet(&server, client(&make(other()))).1.is_ok(), "new keys count at once");
    assert_eq!(meet(&server, client(&make(keys()))).1, Err(Fault::BadToken.code(dialect)));
    let no_key = Token::of_superuser(&KeySet::new(), form(dialect, Level::Crypt), &mut rng());
    assert_eq!(no_key, Err(MakeError::NoKey));
}

#[test]
fn a_token_for_a_key_that_was_just_added_is_opened() {
    let dialect = Dialect::Yfs;
    let newer = || KeySet::of([Key::rxgk(3, EncType::AES128, &[8; 16])]).unwrap();
    let server = server(dialect, Level::Crypt);
    let token = Token::of_superuser(&newer(), form(dialect, Level::Crypt), &mut rng()).unwrap();
    let shows = || meet(&server, client(&token)).1.map(drop);
    assert_eq!(shows(), Err(Fault::BadKeyNo.code(dialect)));
    let (weak, looks) = (server.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&looks);
    server.when_key_is_unknown(move || {
        count.fetch_add(1, Ordering::Relaxed);
        weak.set_keys(newer());
    });
    assert_eq!([shows(), shows()], [Ok(()), Ok(())]);
    assert_eq!(looks.load(Ordering::Relaxed), 1, "and is known from then on");
}

#[test]
fn a_connection_ends_with_its_token() {
    for dialect in Dialect::ALL {
        let clock = Arc::new(AtomicU32::new(NOW.0));
        let reads = Arc::clone(&clock);
        let clock_of_server = Arc::new(move || UnixTime(reads.load(Ordering::Relaxed)));
        let options = ServerOptions::of_cell("lab.test");
        let server = Server::new(dialect, keys(), options, clock_of_server, [4; 32]);
        let token = user(dialect, Level::Crypt, "user1");
        let ((mut end, mut ours), result) = meet(&server, client(&token));
        assert!(result.is_ok());
        let (mut header, mut sealed) = (header(1), Vec::new());
        ours.seal(&mut header, b"x", &mut sealed);
        clock.store(LATER.0, Ordering::Relaxed);
        assert!(end.open(&header, sealed.clone().into()).is_ok());
        clock.store(LATER.0 + 1, Ordering::Relaxed);
        assert_eq!(end.open(&header, sealed.into()), Err(Fault::Expired.code(dialect)));
        assert_eq!(meet(&server, client(&token)).1, Err(Fault::Expired.code(dialect)));
        // The clocks of who made it and of this server may differ, but not by an hour.
        for (ahead, want) in [(900, Ok(())), (901, Err(Fault::NotAuth.code(dialect)))] {
            clock.store(NOW.0 - ahead, Ordering::Relaxed);
            let want = if dialect == Dialect::Yfs { want } else { Ok(()) };
            assert_eq!(meet(&server, client(&token)).1.map(drop), want);
        }
    }
}

#[test]
fn a_device_that_is_revoked_is_refused_at_once_and_in_the_middle_of_a_connection() {
    let (revoked, time) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(NOW.0)));
    let token = |name: AuthName| {
        let secret = Secret::new(EncType::AES256, &[9; 32]).unwrap();
        let (start, end) = (RxgkTime::of(NOW), RxgkTime::of(LATER));
        let names = vec![name];
        let content = Content { secret, level: Level::Crypt, start, lifetime: 0, bytelife: 0, end, names };
        let sealed =
            seal(keys().newest(KeyType::RXGK).unwrap(), Dialect::Rxgk, &content, &mut rng()).unwrap();
        let Content { secret, level, lifetime, bytelife, end, .. } = content;
        Token { dialect: Dialect::Rxgk, secret, level, lifetime, bytelife, end, token: sealed }
    };
    let alice = Identity::parse("alice").unwrap();
    let of_device = |number| token(AuthName::of_device(&alice, "lab.test", number));
    let options = ServerOptions::of_cell("lab.test");
    let clock = Arc::clone(&time);
    let clock = Arc::new(move || UnixTime(clock.load(Ordering::Relaxed)));
    let server = Server::new(Dialect::Rxgk, keys(), options, clock, [4; 32]);
    let list = Arc::clone(&revoked);
    server.refuse_devices(move |device| device == list.load(Ordering::Relaxed));
    let ((mut end, mut client), result) = meet(&server, client(&of_device(7)));
    assert!(result.is_ok());
    assert_eq!(end.identity(), Some("alice"));
    let mut ask = |end: &mut Box<dyn SecurityClass>, seq| {
        let (mut header, mut sealed) = (header(seq), Vec::new());
        client.seal(&mut header, b"question", &mut sealed);
        end.open(&header, sealed.into()).map(drop)
    };
    assert_eq!((ask(&mut end, 3), end.may_go_on()), (Ok(()), Ok(())));
    revoked.store(7, Ordering::Relaxed);
    time.fetch_add(1, Ordering::Relaxed);
    let expired = Fault::Expired.code(Dialect::Rxgk);
    assert_eq!(end.may_go_on(), Err(expired), "in the next second, though its client receives alone");
    assert_eq!(ask(&mut end, 4), Err(expired));
    assert_eq!(meet(&server, super::tests::client(&of_device(7))).1, Err(expired), "on a new connection");
    assert!(meet(&server, super::tests::client(&of_device(8))).1.is_ok(), "another device of hers");
    let without = token(AuthName::of_principal("alice@LAB.TEST"));
    assert!(meet(&server, super::tests::client(&without)).1.is_ok(), "and her with a ticket");
}

#[test]
fn times_that_mean_nothing_are_not_for_ever() {
    assert!(!RxgkTime::NONE.has_passed(UnixTime::NEVER));
    assert!(
        RxgkTime(-1).has_passed(NOW) && RxgkTime(i64::MIN).has_passed(NOW) && RxgkTime(1).has_passed(NOW)
    );
    assert!(!RxgkTime(i64::MAX).has_passed(NOW));
    let who = Identity::parse("user1").unwrap();
    for times in [(NOW, NOW), (LATER, NOW), (NOW, UnixTime::NEVER)] {
        let form = form(Dialect::Yfs, Level::Crypt);
        let token = Token::of_user(&keys(), form, &who, "lab.test", times, &mut rng());
        assert_eq!(token, Err(MakeError::BadTimes));
    }
}

/// A negotiation agrees on the secret, and the token for it is as good as any.
#[test]
fn a_token_for_a_secret_that_both_have_lets_its_user_in_until_its_end() {
    for dialect in Dialect::ALL {
        for kind in ENCTYPES {
            let secret = Secret::new(kind, &vec![3; kind.key_len().unwrap()]).unwrap();
            let grant =
                |name| Grant { secret: secret.clone(), level: Level::Crypt, name, start: NOW, end: LATER };
            let make = |grant| Token::granted(&keys(), dialect, grant, &mut rng());
            let who = Identity::parse("user1.admin").unwrap();
            let token = make(grant(AuthName::of_identity(&who, "lab.test"))).unwrap();
            assert_eq!(token.secret, secret);
            let ((end, _), result) = meet(&server(dialect, Level::Crypt), client(&token));
            assert!(result.is_ok());
            assert_eq!(end.identity(), Some("user1.admin"));
            let never = Grant { end: UnixTime::NEVER, ..grant(AuthName::of_principal("a@B")) };
            assert_eq!(make(never), Err(MakeError::BadTimes));
        }
    }
}

/// The server that makes it and the client whose token it is made of come to the same secret, and who only saw the token on its way
/// does not.
#[test]
fn a_token_for_a_server_is_the_users_and_has_a_secret_of_its_own() {
    let destination = Uuid::from_bytes([0x84; 16]);
    for dialect in Dialect::ALL {
        let own = user(dialect, Level::Crypt, "user1");
        let content = open(&keys(), dialect, &own.token).unwrap();
        let form = Form { kind: EncType::AES128, ..form(dialect, Level::Crypt) };
        let made = Token::for_server(&keys(), form, content, destination, &mut rng()).unwrap();
        let said = |token: &[u8], level| Combined {
            token: token.to_vec(),
            kind: EncType::AES128,
            level,
            lifetime: made.lifetime,
            bytelife: made.bytelife,
            end: made.end,
        };
        assert_eq!(own.combined(destination, said(&made.token, 2)), Ok(Some(made.clone())));
        assert_ne!(made.secret, own.secret);
        assert_eq!(made.end, own.end, "it lives no longer");
        let ((end, _), result) = meet(&server(dialect, Level::Crypt), client(&made));
        assert!(result.is_ok());
        assert_eq!(end.identity(), Some("user1"));
        assert_eq!(own.combined(destination, said(&[], 0)), Ok(None), "that server has no rxgk");
        assert_eq!(own.combined(destination, said(&made.token, 0)), Err(Fault::BadLevel));
    }
}

/// What a cache manager says of itself goes to file servers alone, and to none that is another one than it thinks.
#[test]
fn a_cache_manager_names_the_file_server_that_it_means() {
    let (this, other) = (Uuid::from_bytes([1; 16]), Uuid::from_bytes([0xf2; 16]));
    for dialect in Dialect::ALL {
        let server = server(dialect, Level::Crypt).of_file_server(this);
        let token = user(dialect, Level::Crypt, "user1");
        let means = |server| {
            let callback = None;
            Arc::new(AppData {
                client: Uuid::from_bytes([9; 16]),
                server,
                capabilities: Vec::new(),
                callback,
            })
        };
        assert!(meet(&server, client(&token).with_app_data(means(this))).1.is_ok());
        assert!(meet(&server, client(&token)).1.is_ok(), "servers call it too");
        let (_, result) = meet(&server, client(&token).with_app_data(means(other)));
        assert_eq!(result, Err(Fault::SealedIncon.code(dialect)));
        for (service, is_told) in [(1, true), (2500, true), (52, false), (2503, false)] {
            let facts = ConnectionFacts { service: ServiceId(service), ..facts() };
            let mut client = client(&token).with_app_data(means(this));
            let body = client.handle_challenge(&facts, &[0; 20]).unwrap();
            let response = Response::parse(&body).unwrap();
            let secret = token.secret.clone();
            let (epoch, connection) = (facts.epoch, facts.connection);
            let origin = transport::Origin { secret, epoch, connection, start: response.start };
            let plain = open_authenticator(&origin.key(0), response.authenticator).unwrap();
            let authenticator = Authenticator::parse(&plain).unwrap();
            assert_eq!(!authenticator.app_data.is_empty(), is_told, "service {service}");
        }
    }
}

/// A server that has restarted learns the number of the client's key with the answer, and goes on from there.
#[test]
fn a_restarted_server_goes_on_with_the_clients_key() {
    let dialect = Dialect::Yfs;
    let (server, token) = (server(dialect, Level::Crypt), user(dialect, Level::Crypt, "user1"));
    let token = Token { lifetime: 10, ..token };
    let clock = Arc::new(AtomicU32::new(NOW.0));
    let reads = Arc::clone(&clock);
    let clock_of_client = Arc::new(move || UnixTime(reads.load(Ordering::Relaxed)));
    let ((mut end, mut client), result) =
        meet(&server, Client::new(Arc::new(token), clock_of_client, [5; 32]));
    assert!(result.is_ok());
    for seq in 1..5 {
        let (mut there, mut back) = (header(seq), header(seq));
        let (mut question, mut answer) = (Vec::new(), Vec::new());
        client.seal(&mut there, b"x", &mut question);
        assert_eq!(u32::from(there.checksum), seq - 1);
        end.open(&there, question.into()).unwrap();
        end.seal(&mut back, b"y", &mut answer);
        client.open(&back, answer.into()).unwrap();
        clock.fetch_add(10, Ordering::Relaxed);
    }
    let ((mut end, mut client), result) = meet(&server, client);
    assert!(result.is_ok(), "key number {}", client.response_checksum());
    let (mut there, mut question) = (header(9), Vec::new());
    client.seal(&mut there, b"x", &mut question);
    assert_eq!(there.checksum, 4, "the next, as time has passed");
    assert!(end.open(&there, question.into()).is_ok());
}

#[test]
fn no_key_is_in_any_debug_text() {
    let dialect = Dialect::Yfs;
    let secret = Secret::new(EncType::AES256, &[0xab; 32]).unwrap();
    let token = Token { secret: secret.clone(), ..user(dialect, Level::Crypt, "user1") };
    let server = server(dialect, Level::Clear);
    let ((end, client), _) = meet(&server, client(&user(dialect, Level::Crypt, "user1")));
    let text = format!("{server:?} {end:?} {client:?} {secret:?}");
    let text = format!("{text} {:?}", Token { token: Vec::new(), ..token });
    for byte in [0xab, 7] {
        assert!(!text.contains(&format!("{byte}, {byte}")), "{text}");
    }
}

#[test]
fn connections_of_a_factory_have_confounders_and_times_of_their_own() {
    let make = Client::factory(user(Dialect::Yfs, Level::Crypt, "user1"), Arc::new(|| NOW), rng().random());
    let packets = [(); 3].map(|()| {
        let (mut header, mut sealed) = (header(1), Vec::new());
        make().seal(&mut header, b"the same", &mut sealed);
        sealed
    });
    assert!(packets[0] != packets[1] && packets[1] != packets[2]);
}
