//! Handshakes as an attacker on the way would have them: messages that are changed, cut, replayed or stolen, wrong keys and cells.

use afs_join::{
    Chance, Channel, Door, HandshakeError, Initiator, KeyPair, Limits, PAYLOAD_MAX, Refusal, Shown,
};
use afs_wire::join::JOIN_MESSAGE_MAX;
use std::net::IpAddr;
use std::time::Duration;

const CELL: &str = "home.example";
const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));
const REQUEST: &[u8] = b"what the device wants";
const ANSWER: &[u8] = b"a token";

fn chance(number: u8) -> Chance {
    Chance::new([number; 32])
}

fn pair(number: u8) -> KeyPair {
    KeyPair::generate(chance(number))
}

/// A cell's server and a device that is about to join, at some time.
struct Scene {
    door: Door,
    now: Duration,
    cell: KeyPair,
    device: KeyPair,
}

impl Scene {
    fn new() -> Self {
        let door = Door::new(Limits::default(), [9; 32]);
        Self { door, now: Duration::from_secs(1000), cell: pair(1), device: pair(2) }
    }

    fn begin(&mut self, from: IpAddr, message: &[u8]) -> Result<(u64, Vec<u8>), Refusal> {
        let cookie = self.door.hello(self.now, from);
        self.door.begin((self.now, from), &cookie, (&self.cell, CELL), message, chance(4))
    }

    /// The first message of the device, and its state.
    fn first(&self) -> (Initiator, Vec<u8>) {
        Initiator::begin(&self.device, CELL, self.cell.public(), chance(3)).unwrap()
    }

    /// All up to the third message, which is returned with the number of the handshake and the device's channel.
    fn up_to_the_third(&mut self) -> (u64, Channel, Vec<u8>) {
        let (device, first) = self.first();
        let (session, second) = self.begin(HOME, &first).unwrap();
        let (channel, third) = device.finish(&second, REQUEST).unwrap();
        (session, channel, third)
    }

    fn finish(&mut self, session: u64, third: &[u8]) -> Result<Shown, Refusal> {
        self.door.finish(self.now, session, third)
    }
}

fn bytes(text: &str) -> [u8; 32] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

/// All messages that differ from this one in a bit, or end too early or too late.
fn changed(message: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let bits = (0..8 * message.len()).map(|bit| {
        let mut changed = message.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        changed
    });
    let cut = (0..message.len()).map(|length| message[..length].to_vec());
    bits.chain(cut).chain([[message, b"x"].concat(), vec![0; message.len()], vec![0; JOIN_MESSAGE_MAX + 1]])
}

#[test]
fn both_ends_learn_who_the_other_is_and_nobody_reads_what_they_say() {
    let mut scene = Scene::new();
    let (session, mut device, third) = scene.up_to_the_third();
    let mut shown = scene.finish(session, &third).unwrap();
    assert_eq!((shown.device, &shown.request[..]), (scene.device.public(), REQUEST));
    let sealed = shown.channel.seal(ANSWER).unwrap();
    for message in [&third, &sealed] {
        for secret in [REQUEST, ANSWER, &scene.device.public().0] {
            assert!(!message.windows(secret.len()).any(|bytes| bytes == secret));
        }
    }
    assert_eq!(&device.open(&sealed).unwrap()[..], ANSWER);
}

#[test]
fn a_changed_message_of_any_kind_ends_the_handshake() {
    let mut tried = 0;
    for first in changed(&Scene::new().first().1) {
        let mut scene = Scene::new();
        assert_eq!(scene.begin(HOME, &first).unwrap_err(), Refusal::BadMessage);
        tried += 1;
    }
    let mut scene = Scene::new();
    let (_, second) = scene.begin(HOME, &scene.first().1).unwrap();
    for second in changed(&second) {
        let error = scene.first().0.finish(&second, REQUEST).unwrap_err();
        assert!(matches!(error, HandshakeError::BadMessage | HandshakeError::TooLong));
        tried += 1;
    }
    let (_, _, third) = Scene::new().up_to_the_third();
    for third in changed(&third) {
        let mut scene = Scene::new();
        let (session, _, good) = scene.up_to_the_third();
        assert_eq!(scene.finish(session, &third).unwrap_err(), Refusal::BadMessage);
        assert_eq!(scene.finish(session, &good).unwrap_err(), Refusal::NoSession, "one attempt only");
        tried += 1;
    }
    let mut scene = Scene::new();
    let (session, _, third) = scene.up_to_the_third();
    let sealed = scene.finish(session, &third).unwrap().channel.seal(ANSWER).unwrap();
    for sealed in changed(&sealed) {
        let (_, mut device, _) = Scene::new().up_to_the_third();
        assert!(device.open(&sealed).is_err());
        tried += 1;
    }
    assert!(tried > 1500);
}

/// The device's bytes are recorded and sent again, to the same server and to another of the cell's.
#[test]
fn replayed_messages_are_of_no_use() {
    let mut scene = Scene::new();
    let (session, _, third) = scene.up_to_the_third();
    scene.finish(session, &third).unwrap();
    assert_eq!(scene.finish(session, &third).unwrap_err(), Refusal::NoSession);
    // A new handshake from the recorded first message: the third is for the server's other ephemeral key.
    let first = scene.first().1;
    let cookie = scene.door.hello(scene.now, HOME);
    let begun = scene.door.begin((scene.now, HOME), &cookie, (&scene.cell, CELL), &first, chance(77));
    let (session, _) = begun.unwrap();
    assert_eq!(scene.finish(session, &third).unwrap_err(), Refusal::BadMessage);
}

#[test]
fn who_has_not_the_cells_key_learns_nothing_of_a_device() {
    let mut scene = Scene::new();
    let (device, first) = scene.first();
    scene.cell = pair(66);
    assert_eq!(scene.begin(HOME, &first).unwrap_err(), Refusal::BadMessage);
    // A server in the middle that answers with what it has.
    let (_, second) = scene
        .begin(HOME, &Initiator::begin(&pair(5), CELL, scene.cell.public(), chance(6)).unwrap().1)
        .unwrap();
    assert_eq!(device.finish(&second, REQUEST).unwrap_err(), HandshakeError::BadMessage);
}

#[test]
fn a_handshake_for_another_cell_fails_whatever_its_keys() {
    let mut scene = Scene::new();
    let (_, first) =
        Initiator::begin(&scene.device, "other.example", scene.cell.public(), chance(3)).unwrap();
    assert_eq!(scene.begin(HOME, &first).unwrap_err(), Refusal::BadMessage);
    let (_, first) = Initiator::begin(&scene.device, "HOME.Example", scene.cell.public(), chance(3)).unwrap();
    assert!(scene.begin(HOME, &first).is_ok(), "names of cells have no case");
}

#[test]
fn without_a_cookie_nothing_is_computed_counted_or_kept() {
    let mut scene = Scene::new();
    let first = scene.first().1;
    let elsewhere = scene.door.hello(scene.now, "192.0.2.10".parse().unwrap());
    for cookie in [[0; 16], elsewhere] {
        for _ in 0..1000 {
            let begun = scene.door.begin((scene.now, HOME), &cookie, (&scene.cell, CELL), &first, chance(4));
            assert_eq!(begun.unwrap_err(), Refusal::Cookie);
        }
    }
    assert!(scene.begin(HOME, &first).is_ok());
}

#[test]
fn one_address_cannot_keep_a_server_busy() {
    let mut scene = Scene::new();
    let first = scene.first().1;
    let allowed = (0..1000).filter(|_| scene.begin(HOME, &first).is_ok()).count();
    assert_eq!(allowed, Limits::default().burst_of_source as usize);
    assert_eq!(scene.begin(HOME, &first).unwrap_err(), Refusal::Busy);
    assert!(scene.begin("192.0.2.10".parse().unwrap(), &first).is_ok(), "others go on");
}

#[test]
fn a_handshake_that_takes_too_long_or_was_never_begun_is_refused() {
    let mut scene = Scene::new();
    let (session, _, third) = scene.up_to_the_third();
    assert_eq!(scene.finish(session ^ 1, &third).unwrap_err(), Refusal::NoSession);
    scene.now += Duration::from_secs(30);
    assert_eq!(scene.finish(session, &third).unwrap_err(), Refusal::NoSession);
}

#[test]
fn a_request_that_is_too_long_is_not_sent() {
    let mut scene = Scene::new();
    let (device, first) = scene.first();
    let (session, second) = scene.begin(HOME, &first).unwrap();
    let error = scene.first().0.finish(&second, &vec![0; PAYLOAD_MAX + 1]).unwrap_err();
    assert_eq!(error, HandshakeError::TooLong);
    let (_, third) = device.finish(&second, &vec![7; PAYLOAD_MAX]).unwrap();
    assert!(third.len() <= JOIN_MESSAGE_MAX);
    assert_eq!(scene.finish(session, &third).unwrap().request.len(), PAYLOAD_MAX);
}

/// RFC 7748 6.1: a private key gives the public key that other programs would give it.
#[test]
fn keys_are_those_of_x25519() {
    let bob = KeyPair::of_private(bytes("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
    assert_eq!(bob.public().0, bytes("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"));
    assert_eq!(format!("{bob:?}"), format!("KeyPair({:?})", bob.public()), "a private key is not printed");
}
