//! Transport keys and packets against published vectors, and both ends against each other: how keys are replaced, and what is refused.

use super::*;
use crate::kerberos::bytes;
use crate::rxgk::ENCTYPES;
use crate::rxgk::response::Authenticator;
use rand::SeedableRng;
use rx_proto::ids::{CallNumber, Channel, Seq};
use rx_proto::packet::HEADER_LEN;

const NOW: UnixTime = UnixTime(1_700_000_000);
const NO_LIMITS: Limits = Limits { lifetime: None, bytes: u64::MAX };

fn secret(kind: EncType) -> Secret {
    Secret::new(kind, &(0..kind.key_len().unwrap() as u8).collect::<Vec<u8>>()).unwrap()
}

fn origin(kind: EncType) -> Origin {
    Origin {
        secret: secret(kind),
        epoch: Epoch(0x8000_1234),
        connection: ConnectionId(0xabcd_ef00),
        start: RxgkTime(0x001d_0000_0000_0000),
    }
}

fn end(kind: EncType, role: Role, level: Level, limits: Limits, number: u32) -> Transport {
    let rng = StdRng::seed_from_u64(match role {
        Role::Client => 1,
        Role::Server => 2,
    });
    Transport::new(origin(kind), role, Dialect::Rxgk, level, limits, number, rng)
}

fn pair(kind: EncType, level: Level, limits: Limits) -> (Transport, Transport) {
    (end(kind, Role::Client, level, limits, 0), end(kind, Role::Server, level, limits, 0))
}

fn header() -> Header {
    let mut header = Header::parse(&[0; HEADER_LEN]).unwrap();
    (header.epoch, header.connection) = (Epoch(0x8000_1234), ConnectionId(0xabcd_ef00));
    (header.channel, header.call, header.seq) = (Channel::of(1), CallNumber(7), Seq(3));
    header.security = Dialect::Rxgk.index();
    header
}

impl Transport {
    /// A packet with this in it: its header and its body.
    fn seal(&mut self, now: UnixTime, plain: &[u8]) -> (Header, Bytes) {
        let (mut header, mut out) = (header(), Vec::new());
        self.prepare(now, &mut header, plain, &mut out);
        self.finish(&mut std::iter::once(&mut out[..]));
        (header, out.into())
    }
}

/// Sends so many bytes of one end's to the other; returns the number of the last packet.
fn pass(from: &mut Transport, to: &mut Transport, now: UnixTime, bytes: u64) -> u32 {
    let plain = vec![7; 1 << 20];
    let mut number = from.number();
    for _ in 0..bytes.div_ceil(1 << 20) {
        let (header, body) = from.seal(now, &plain);
        assert_eq!(to.open(&header, body).unwrap(), plain);
        number = to.number();
    }
    number
}

/// Published vectors, the first four of OpenAFS's own tests.
#[test]
fn transport_keys_are_those_of_openafs() {
    let ascii = b"1234567890123456".to_vec();
    let long = [&ascii[..], &[0; 16]].concat();
    let dead = bytes("deadbeefbaddcafed0d0cacadeadc0de");
    let (start, zero) = (15_710_085_940_000_001, 0);
    let (a, b) = ((1_571_007_429, 0x760a_9c24), (1_571_000_000, 0xdead_b33f));
    for (k0, kind, (epoch, connection), start, number, want) in [
        (&ascii, EncType::AES128, a, start, 1, "618bbbaa4cb8d982b3097c679540409f"),
        (
            &long,
            EncType::AES256,
            a,
            start,
            1,
            "0bfde178018d4170e87452557a7a2caa3b36e4196b3c726c8c2c03a831388254",
        ),
        (&dead, EncType::AES128, b, zero, 9999, "826a16d594f92fca7c434ff1e735e281"),
        (&ascii, EncType::AES128, a, start, 2, "b93b233216910dd37f2d8d67ae07a863"),
    ] {
        let secret = Secret::new(kind, k0).unwrap();
        let (epoch, connection) = (Epoch(epoch), ConnectionId(connection));
        let origin = Origin { secret, epoch, connection, start: RxgkTime(start) };
        assert_eq!(origin.key(number).bytes(), bytes(want));
    }
}

/// A published vector: what is the same packet at each level, and the authenticator of a connection.
struct Vector {
    kind: EncType,
    key: &'static str,
    client_sum: &'static str,
    server_sum: &'static str,
    encrypted: &'static str,
    authenticator: &'static str,
}

const VECTORS: [Vector; 4] = [
    Vector {
        kind: EncType::AES128,
        key: "c36d0f04bd55ae36222629552cc08d8e",
        client_sum: "3abf343d7d163b0e8e73e129",
        server_sum: "16cb8b83d02024db85aea49b",
        encrypted: "f24f17ca1edb68570b58a19c7f7e184435312eef646b3210f40fbbaf733016071c872530eaeaebc091dbe91633111fddc2b504ce07ad2b05e7",
        authenticator: "6d711d2926a6ac4d401fab0b623dd84c2a573bdf8989af062574557e2c5a6633a48e8c8edca012266c0ff83bf14b130a63bb8bbb09c33af0981214818d31d977f458dd6c064f17ec214bce29c3317929cec7feb9",
    },
    Vector {
        kind: EncType::AES256,
        key: "97e2a4a05779e6dc196f613b76974038f7503653266d1f84690b8007204f4628",
        client_sum: "62acb3ba6899f4c12dda9476",
        server_sum: "672186dab62a62cf7db5dbe0",
        encrypted: "27ff4906fbc1fa8df0523abebc7f04a1afb9a6b40aca7144db59e6a1f9d870429aa06b2e04cf2e0855ef2584aa2d5dd874aef6ab5d4ced23bb",
        authenticator: "f323b4df436dbdb16113e3a2e04f9dbb37769f829d6ce369a17ee1dd723f236f0ab5a2194d1b2be0727a4c9aac509ebcc4db780d118d460cff796f7fc78b95ceef095ba5fd3bd61197ab92c7a6a1a85651533b5e",
    },
    Vector {
        kind: EncType::AES128_SHA256,
        key: "0875675d531d2cc87c659f114129f66c",
        client_sum: "d6123e453e9b00904d6a6b2ee2a14d58",
        server_sum: "45784f9b4a0a7d8bd7b95ec0b23734c7",
        encrypted: "fdd96230dc30fff232514e404a82a58fae4381933c730f3de33b2dd8da0c143c09e5e2a1bbd1487044a394658985baa1d70d75325a6c2a4b14af59c2a5",
        authenticator: "9e0994652ccd1a16cec1e78d96aecaaee35b35b8be75dfea5370225917100cab838a46ac71bb4b0947f1e8da02c560883ee1ef56e1cfda61b9f05777497a21ce697641ee4a0de5a87dd1e108fa74fcdd8a06e7d6c3113986",
    },
    Vector {
        kind: EncType::AES256_SHA384,
        key: "8fc20630420d16dbfe5a9d3232007dec54a89c3ab90125749f7135dafe1a6329",
        client_sum: "193d647b16372ff4e35dd0293ef9faa974dda3d41ab62e0b",
        server_sum: "5786842c40beb3681a3c81eab8ec9f7c95e3ade3a11b9f9a",
        encrypted: "cecce313026c7cc0a3fd01c62a9233b69df7090a3f53478e7dcb2a2b8794eb5bc00c50ac81bb98e8085d1a824c9874e69743be00e66b002e21b09502f4c94568644dc4a9ab",
        authenticator: "c7b8f084e25d361bb1b960540489607a94ea60c5f367362e27599f29efba0a07e1c91a7ae7e266d3abe53b95582ea45b23dbe1faa21e95c642a0908b0c3b9b9e9db1d74c105167347504edccaf9329b58f9e20354c23ccb8bb78ec30768d3a5e",
    },
];

#[test]
fn packets_are_those_that_were_published() {
    for Vector { kind, key, client_sum, server_sum, encrypted, .. } in VECTORS {
        assert_eq!(origin(kind).key(1).bytes(), bytes(key), "{kind:?}");
        let header = Header { checksum: 1, ..header() };
        for (sender, sum) in [(Role::Client, client_sum), (Role::Server, server_sum)] {
            let receiver = if sender == Role::Client { Role::Server } else { Role::Client };
            let packet = [bytes(sum), b"hello".to_vec()].concat();
            let (_, ours) = end(kind, sender, Level::Auth, NO_LIMITS, 1).seal(NOW, b"hello");
            assert_eq!(ours, packet, "{kind:?}");
            let theirs = end(kind, receiver, Level::Auth, NO_LIMITS, 1).open(&header, packet.into());
            assert_eq!(theirs.unwrap(), &b"hello"[..]);
        }
        let encrypted = bytes(encrypted);
        let opened =
            end(kind, Role::Server, Level::Crypt, NO_LIMITS, 1).open(&header, encrypted.clone().into());
        assert_eq!(opened.unwrap(), &b"hello"[..], "{kind:?}");
        let opened =
            end(kind, Role::Client, Level::Crypt, NO_LIMITS, 1).open(&header, encrypted.clone().into());
        assert_eq!(opened, Err(Fault::SealedIncon), "the other direction has other keys");
        // With the confounder of the vector.
        let place = pseudo_header(Dialect::Rxgk, &header, 5);
        let confounder: Vec<u8> = (0xa0..0xb0).collect();
        let mut text = [&confounder[..], &place, b"hello"].concat();
        let sealer = kerberos::sealer(kind, &bytes(key), usage::CLIENT_ENCRYPT).unwrap();
        sealer.prepare(&mut text, 0);
        sealer.finish(&mut std::iter::once(&mut text[..]));
        assert_eq!(text, encrypted, "{kind:?}");
    }
}

#[test]
fn authenticators_are_those_that_were_published() {
    for Vector { kind, authenticator, .. } in VECTORS {
        let sealed = bytes(authenticator);
        let key = origin(kind).key(1);
        let plain = super::super::response::open_authenticator(&key, &sealed).unwrap();
        let want = Authenticator {
            nonce: std::array::from_fn(|i| i as u8),
            app_data: &[],
            level: 1,
            epoch: Epoch(0x8000_1234),
            connection: 0xabcd_ef00,
            calls: [0, 6, 0, 0].map(CallNumber),
        };
        assert_eq!(Authenticator::parse(&plain), Ok(want.clone()), "{kind:?}");
        let ours = want.seal(&key, &mut StdRng::seed_from_u64(1));
        assert_eq!(ours.len(), sealed.len());
        assert_eq!(super::super::response::open_authenticator(&key, &ours).unwrap(), plain);
    }
}

#[test]
fn data_of_every_length_come_back_and_fit() {
    for kind in ENCTYPES {
        for level in Level::ALL {
            let (mut client, mut server) = pair(kind, level, NO_LIMITS);
            // As rxgk notes 2.1 has it.
            let mac = kerberos::mac_len(kind).unwrap();
            let capacity = client.capacity(1412);
            assert_eq!(capacity, [1412, 1412 - mac, 1372 - mac][level.number() as usize]);
            for len in (0..70).chain(capacity - 20..=capacity).chain([16_300, 65_000]) {
                let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let (header, body) = client.seal(NOW, &plain);
                assert_eq!(body.len(), len + overhead(level, kind));
                assert_eq!(server.open(&header, body).unwrap(), plain, "{len} bytes at {level}, {kind:?}");
            }
        }
    }
}

#[test]
fn packets_that_are_sealed_together_open_each() {
    for kind in ENCTYPES {
        for level in Level::ALL {
            let (mut client, mut server) = pair(kind, level, NO_LIMITS);
            for (count, last) in [(1, 0), (4, 100), (8, 99), (16, 1), (17, 100)] {
                let (mut headers, mut out) = (Vec::new(), Vec::new());
                for n in 1..=count {
                    let mut header = Header { seq: Seq(n), ..header() };
                    let plain = vec![n as u8; if n == count { last } else { 100 }];
                    client.prepare(NOW, &mut header, &plain, &mut out);
                    headers.push((header, plain));
                }
                let length = 100 + overhead(level, kind);
                client.finish(&mut out.chunks_mut(length));
                for ((header, plain), body) in headers.iter().zip(out.chunks(length)) {
                    assert_eq!(server.open(header, Bytes::copy_from_slice(body)).unwrap(), plain);
                }
            }
        }
    }
}

/// Each byte of a packet, and each field of its header that says where it belongs.
#[test]
fn a_packet_that_was_changed_anywhere_is_refused() {
    for kind in ENCTYPES {
        for level in [Level::Auth, Level::Crypt] {
            let (mut client, mut server) = pair(kind, level, NO_LIMITS);
            let (header, body) = client.seal(NOW, &[5; 100]);
            for at in 0..body.len() {
                let mut changed = body.to_vec();
                changed[at] ^= 1 << (at % 8);
                let got = server.open(&header, changed.into());
                assert_eq!(got, Err(Fault::SealedIncon), "byte {at} at {level}, {kind:?}");
            }
            for len in 0..body.len() {
                let got = server.open(&header, body.slice(..len)).unwrap_err();
                let is_short = len < overhead(level, kind);
                assert_eq!(
                    got,
                    if is_short { Fault::PacketShort } else { Fault::SealedIncon },
                    "{len} bytes"
                );
            }
            let longer = [&body[..], &[0]].concat();
            assert_eq!(server.open(&header, longer.into()), Err(Fault::SealedIncon));
            for changed in [
                Header { epoch: Epoch(header.epoch.0 ^ 1), ..header },
                Header { connection: ConnectionId(header.connection.0 ^ 4), ..header },
                Header { channel: Channel::of(2), ..header },
                Header { call: CallNumber(8), ..header },
                Header { seq: Seq(4), ..header },
                Header { checksum: 1, ..header },
            ] {
                assert_eq!(server.open(&changed, body.clone()), Err(Fault::SealedIncon), "{changed:?}");
            }
            for checksum in [2, 3, 0x7fff, 0x8000, 0xffff] {
                let changed = Header { checksum, ..header };
                assert_eq!(server.open(&changed, body.clone()), Err(Fault::BadKeyNo), "{checksum}");
            }
            assert!(server.open(&header, body).is_ok(), "and what is good still opens");
            assert_eq!(server.number(), 0, "nobody has turned it by a bad packet");
        }
    }
}

/// The connection's other direction, another connection, another time and another dialect have other keys or another place.
#[test]
fn a_packet_of_elsewhere_is_refused() {
    for level in [Level::Auth, Level::Crypt] {
        let kind = EncType::AES256;
        let (mut client, mut server) = pair(kind, level, NO_LIMITS);
        let (header, body) = client.seal(NOW, &[5; 100]);
        assert_eq!(client.open(&header, body.clone()), Err(Fault::SealedIncon), "its own, sent back");
        let elsewhere = |change: fn(&mut Transport)| {
            let mut other = end(kind, Role::Server, level, NO_LIMITS, 0);
            change(&mut other);
            assert_eq!(other.open(&header, body.clone()), Err(Fault::SealedIncon));
        };
        elsewhere(|other| other.origin.connection = ConnectionId(0xabcd_ef04));
        elsewhere(|other| other.origin.epoch = Epoch(0x8000_1235));
        elsewhere(|other| other.origin.start = RxgkTime(other.origin.start.0 + 1));
        elsewhere(|other| other.dialect = Dialect::Yfs);
        elsewhere(|other| other.origin.secret = Secret::new(EncType::AES256, &[9; 32]).unwrap());
        assert!(server.open(&header, body).is_ok());
    }
}

#[test]
fn a_packet_that_says_to_be_longer_than_it_is_is_refused() {
    let (kind, key) = (EncType::AES256, origin(EncType::AES256).key(0));
    let mut server = end(kind, Role::Server, Level::Crypt, NO_LIMITS, 0);
    for (len, want) in [(6, Err(Fault::DataLen)), (u32::MAX, Err(Fault::DataLen)), (5, Ok(5)), (2, Ok(2))] {
        let mut text =
            [&[1; CONFOUNDER][..], &pseudo_header(Dialect::Rxgk, &header(), len as usize), b"hello"].concat();
        let sealer = kerberos::sealer(kind, key.bytes(), usage::CLIENT_ENCRYPT).unwrap();
        sealer.prepare(&mut text, 0);
        sealer.finish(&mut std::iter::once(&mut text[..]));
        assert_eq!(server.open(&header(), text.into()).map(|data| data.len()), want, "{len}");
    }
}

// ---- keys that are replaced

#[test]
fn a_key_is_replaced_after_so_many_bytes_and_the_other_end_follows() {
    for level in [Level::Auth, Level::Crypt] {
        let limits = Limits::of(Dialect::Rxgk, 0, 22);
        let (mut client, mut server) = pair(EncType::AES128, level, limits);
        pass(&mut client, &mut server, NOW, BYTES_MIN);
        assert_eq!(pass(&mut server, &mut client, NOW, 1), 0, "which also shows that the server has it");
        assert_eq!(pass(&mut client, &mut server, NOW, 1), 1, "the next is of the next key");
        assert_eq!(pass(&mut server, &mut client, NOW, 1), 1, "and so is the answer");
        // Either end may be the one whose bytes are used up.
        pass(&mut server, &mut client, NOW, BYTES_MIN);
        assert_eq!((server.number(), client.number()), (2, 2));
    }
}

#[test]
fn a_key_is_replaced_after_its_time() {
    let limits = Limits::of(Dialect::Yfs, 100, 0);
    let (mut client, mut server) = pair(EncType::AES128, Level::Crypt, limits);
    assert_eq!(pass(&mut client, &mut server, NOW, 1), 0);
    assert_eq!(pass(&mut server, &mut client, NOW, 1), 0);
    assert_eq!(pass(&mut client, &mut server, UnixTime(NOW.0 + 99), 1), 0);
    assert_eq!(pass(&mut client, &mut server, UnixTime(NOW.0 + 100), 1), 1);
    // The server's count of its own begins when it first sends with it.
    assert_eq!(pass(&mut server, &mut client, UnixTime(NOW.0 + 150), 1), 1);
    assert_eq!(pass(&mut client, &mut server, UnixTime(NOW.0 + 199), 1), 1);
    assert_eq!(pass(&mut client, &mut server, UnixTime(NOW.0 + 200), 1), 2);
}

/// The peer takes one number further than its own, and no more.
#[test]
fn a_key_that_the_peer_has_not_used_is_kept_unless_it_must_have_come() {
    let limits = Limits::of(Dialect::Rxgk, 1, 22);
    let (mut client, mut server) = pair(EncType::AES128, Level::Auth, limits);
    let later = |n: u32| UnixTime(NOW.0 + 100 * n);
    for n in 0..10 {
        assert_eq!(pass(&mut client, &mut server, later(n), BYTES_MIN), 0, "without an answer");
    }
    pass(&mut client, &mut server, later(11), UNCONFIRMED_BYTES);
    assert_eq!(client.number(), 1, "a call in one direction goes on with others");
}

#[test]
fn packets_of_the_key_before_and_of_the_one_behind_are_taken() {
    for level in [Level::Auth, Level::Crypt] {
        let (mut client, mut server) = pair(EncType::AES256_SHA384, level, NO_LIMITS);
        let sealed: Vec<_> = (0..4u32)
            .map(|number| {
                client.turn(number);
                client.seal(NOW, &[number as u8; 50])
            })
            .collect();
        let mut opens = |number: usize| {
            let (header, body) = sealed[number].clone();
            server.open(&header, body).map(|_| server.number())
        };
        assert_eq!(opens(2), Err(Fault::BadKeyNo), "two further");
        assert_eq!(opens(1), Ok(1));
        assert_eq!(opens(0), Ok(1), "late");
        assert_eq!(opens(2), Ok(2));
        assert_eq!(opens(1), Ok(2));
        assert_eq!(opens(0), Err(Fault::BadKeyNo), "too late");
        assert_eq!(opens(3), Ok(3));
    }
}

#[test]
fn packets_that_are_sealed_together_have_one_key() {
    let limits = Limits::of(Dialect::Rxgk, 0, 22);
    let (mut client, mut server) = pair(EncType::AES128, Level::Crypt, limits);
    let plain = vec![1; 1 << 20];
    pass(&mut client, &mut server, NOW, BYTES_MIN - (1 << 20));
    pass(&mut server, &mut client, NOW, 1);
    let (mut headers, mut out) = (Vec::new(), Vec::new());
    for n in 1..=3 {
        let mut header = Header { seq: Seq(n), ..header() };
        client.prepare(NOW, &mut header, &plain, &mut out);
        headers.push(header);
    }
    client.finish(&mut out.chunks_mut(plain.len() + overhead(Level::Crypt, EncType::AES128)));
    assert_eq!(headers.iter().map(|header| header.checksum).collect::<Vec<_>>(), [0; 3]);
    for (header, body) in headers.iter().zip(out.chunks(out.len() / 3)) {
        assert_eq!(server.open(header, Bytes::copy_from_slice(body)).unwrap(), plain);
    }
    assert_eq!(client.seal(NOW, b"x").0.checksum, 1);
}

/// Anybody can send a packet of any number, and each would have keys made for it.
#[test]
fn forged_numbers_have_few_keys_made() {
    let (mut client, mut server) = pair(EncType::AES128, Level::Auth, NO_LIMITS);
    client.turn(5);
    server.turn(5);
    for checksum in 0..=u16::MAX {
        let forged = Header { checksum, ..header() };
        assert!(server.open(&forged, Bytes::from_static(&[0; 100])).is_err());
    }
    let numbers = server.generations.each_ref().map(|keys| keys.as_ref().map(|keys| keys.number));
    assert_eq!(numbers, [Some(6), Some(4), Some(5)], "its own, and those beside it");
    let (header, body) = client.seal(NOW, b"x");
    assert!(server.open(&header, body).is_ok());
}

/// The header has the lower half of a number.
#[test]
fn numbers_go_on_beyond_sixteen_bits_and_end_with_the_last() {
    let (mut client, mut server) = pair(EncType::AES128, Level::Crypt, NO_LIMITS);
    for number in [0xffff, 0x1_0000, 0x1_0001] {
        client.turn(number);
        server.turn(number - 1);
        let (header, body) = client.seal(NOW, b"x");
        assert_eq!(header.checksum, number as u16);
        assert!(server.open(&header, body).is_ok());
        assert_eq!(server.number(), number);
    }
    let limits = Limits { lifetime: None, bytes: 1 };
    let mut last = end(EncType::AES128, Role::Client, Level::Crypt, limits, u32::MAX);
    last.is_confirmed = true;
    last.seal(NOW, &[0; 100]);
    assert_eq!(last.seal(NOW, b"x").0.checksum, 0xffff);
    assert_eq!(last.number(), u32::MAX);
    assert_eq!(last.number_of(0), None);
}

#[test]
fn limits_are_those_of_each_dialect() {
    for (dialect, bytelife, want) in [
        (Dialect::Rxgk, 0, u64::MAX),
        (Dialect::Rxgk, 1, BYTES_MIN),
        (Dialect::Rxgk, 30, 1 << 30),
        (Dialect::Rxgk, 62, 1 << 62),
        (Dialect::Rxgk, 63, u64::MAX),
        (Dialect::Rxgk, 64, u64::MAX),
        (Dialect::Yfs, 0, u64::MAX),
        (Dialect::Yfs, 30, 1 << 30),
        (Dialect::Yfs, 63, u64::MAX),
        (Dialect::Yfs, 64, BYTES_MIN),
        (Dialect::Yfs, u32::MAX, u32::MAX.into()),
    ] {
        assert_eq!(Limits::of(dialect, 0, bytelife), Limits { lifetime: None, bytes: want }, "{bytelife}");
    }
    assert_eq!(Limits::of(Dialect::Yfs, 9, 0).lifetime, Some(Duration::from_secs(9)));
}
