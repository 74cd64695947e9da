//! DATA packets under rxgk, as both ends get them. The first byte tells dialect, level and enctype.

use super::rxgk_response::{asking, facts, keys};
use crate::shape::Shape;
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_proto::packet::{HEADER_LEN, Header};
use rx_proto::security::SecurityClass;
use rx_security::Level;
use rx_security::rxgk::{Client, Dialect, ENCTYPES, Form, Token};
use rx_security::time::UnixTime;
use std::sync::Arc;

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let mode = usize::from(*mode);
    let (dialect, level, kind) = (Dialect::ALL[mode % 2], Level::ALL[mode / 2 % 3], ENCTYPES[mode / 6 % 4]);
    let shape = Shape::EMPTY.with(mode as u64 % 24);
    let Ok(mut header) = Header::parse(bytes) else { return shape.feature() };
    let body = Bytes::copy_from_slice(&bytes[HEADER_LEN..]);
    (header.epoch, header.connection) = (facts().epoch, facts().connection);
    let form = Form { dialect, kind, level };
    let token = Token::of_superuser(&keys(), form, &mut StdRng::seed_from_u64(1)).expect("there is a key");
    let mut client = Client::new(Arc::new(token), Arc::new(|| UnixTime(1)), [2; 32]);
    let (mut server, challenge) = asking(dialect);
    let answer = client.handle_challenge(&facts(), &challenge).expect("a challenge of the server's");
    server.handle_response(&facts(), &answer).expect("an answer of the client's");
    let number = header.checksum;
    // As it came, to both; and what a good end makes of the same data.
    let as_it_came = [client.open(&header, body.clone()), server.open(&header, body.clone())];
    if level != Level::Clear {
        assert!(as_it_came.iter().all(Result::is_err), "nobody guesses a checksum");
    }
    let mut sealed = Vec::new();
    client.seal(&mut header, &body, &mut sealed);
    assert_eq!(server.open(&header, sealed.clone().into()).as_ref(), Ok(&body));
    let elsewhere = Header { seq: rx_proto::ids::Seq(header.seq.0 ^ 1), ..header };
    assert_eq!(server.open(&elsewhere, sealed.into()).is_ok(), level == Level::Clear);
    as_it_came
        .into_iter()
        .fold(shape, |shape, result| {
            shape.with(result.map_or_else(|code| code.0 as u64, |data| u64::from(data.is_empty())))
        })
        .with(u64::from(number.wrapping_add(1).min(3)))
        .with_count(body.len())
        .feature()
}
