//! The handshake of a device with its cell: each of its messages, the sealed answer, and what is in the last two. The first byte says which.

use crate::shape::Shape;
use afs_join::{Asked, Begun, Chance, Door, KeyPair, Limits, Membership, Refusal, Shown};
use afs_wire::ids::CellName;
use afs_wire::join::{JoinBegin, JoinName, JoinReply, JoinRequest, JoinSecret, JoinWant, reply};
use afs_wire::rxgk::RxgkEnctypes;
use rxgen::Xdr;
use rxgen::xdr::{Opaque, OpaqueFixed, from_bytes, to_bytes};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The name of the cell.
const CELL: &str = "home.example";
const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
const NOW: Duration = Duration::from_secs(1000);

/// A handshake whose random numbers are the same each time, up to what is to be fuzzed; `make_corpus` takes the good messages from it.
pub struct Handshake {
    door: Door,
    cell: KeyPair,
    member: Membership,
}

impl Default for Handshake {
    fn default() -> Self {
        let pair = |number| KeyPair::generate(Chance::new([number; 32]));
        let cell = pair(1);
        let name = CellName::new(CELL).expect("a good name");
        let member = Membership { cell: name, key: cell.public(), device: pair(2) };
        Self { door: Door::new(Limits::default(), [9; 32]), cell, member }
    }
}

/// What a device asks for.
pub fn request() -> JoinRequest {
    JoinRequest {
        want: JoinWant::JOIN,
        secret: JoinSecret([7; 20]),
        name: JoinName::new("laptop").expect("it is short"),
        enctypes: RxgkEnctypes::new(vec![18, 17]).expect("few"),
    }
}

impl Handshake {
    /// The device's first call.
    pub fn first(&self) -> (Begun, JoinBegin) {
        let hello = reply::JoinHello { cookie: OpaqueFixed(self.door.hello(NOW, HOME)) };
        self.member.begin(&hello, Chance::new([3; 32])).expect("a good key")
    }

    /// The server's answer to a first message.
    ///
    /// # Errors
    /// The server's.
    pub fn second(&mut self, message: &[u8]) -> Result<reply::JoinBegin, Refusal> {
        let cookie = self.door.hello(NOW, HOME);
        let to = (&self.cell, CELL);
        let (session, message) = self.door.begin((NOW, HOME), &cookie, to, message, Chance::new([4; 32]))?;
        Ok(reply::JoinBegin { session, message: Opaque::new(message).expect("it is short") })
    }

    /// All up to the third message: the number of the handshake, the device, and the message.
    pub fn third(&mut self) -> (u64, Asked, Vec<u8>) {
        let (begun, call) = self.first();
        let second = self.second(&call.message).expect("a good message");
        let (asked, call) = begun.finish(&second, &request()).expect("a good message");
        (call.session, asked, call.message.to_vec())
    }

    /// What the server makes of a third message.
    ///
    /// # Errors
    /// The server's.
    pub fn shown(&mut self, session: u64, message: &[u8]) -> Result<Shown, Refusal> {
        self.door.finish(NOW, session, message)
    }
}

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let shape = Shape::EMPTY.with(u64::from(mode % 6));
    let mut handshake = Handshake::default();
    let message = || Opaque::new(bytes).ok();
    let shape = match mode % 6 {
        0 => shape.with(u64::from(handshake.second(bytes).is_ok())),
        1 => {
            let (begun, call) = handshake.first();
            let good = handshake.second(&call.message).expect("a good message");
            let Some(message) = message() else { return shape.with(2).feature() };
            let is_good = message == good.message;
            let finished = begun.finish(&reply::JoinBegin { session: good.session, message }, &request());
            assert_eq!(finished.is_ok(), is_good, "nothing but what the cell sends is answered");
            shape.with(u64::from(is_good))
        }
        2 => {
            let (session, _, good) = handshake.third();
            let shown = handshake.shown(session, bytes);
            assert_eq!(shown.is_ok(), bytes == good, "nothing but what the device sends is taken");
            shape.with(u64::from(shown.is_ok()))
        }
        3 => {
            let (session, asked, third) = handshake.third();
            let mut shown = handshake.shown(session, &third).expect("a good message");
            // What was sealed is anything: a server of another release.
            let Ok(sealed) = shown.channel.seal(bytes) else { return shape.with(2).feature() };
            let message = Opaque::new(sealed).expect("the server has looked at its length");
            let answer = asked.answer(&reply::JoinFinish { message });
            assert_eq!(answer.ok(), from_bytes::<JoinReply>(bytes).ok());
            shape.with(u64::from(from_bytes::<JoinReply>(bytes).is_ok()))
        }
        4 => read::<JoinRequest>(shape, bytes),
        _ => read::<JoinReply>(shape, bytes),
    };
    shape.feature()
}

fn read<T: Xdr + PartialEq + std::fmt::Debug>(shape: Shape, bytes: &[u8]) -> Shape {
    match from_bytes::<T>(bytes) {
        Ok(value) => {
            assert_eq!(from_bytes(&to_bytes(&value)), Ok(value));
            shape.with(1)
        }
        Err(error) => shape.with(2).with_count(error.what.len()),
    }
}
