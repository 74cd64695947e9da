//! Packets of a peer to rxkad: to a server a RESPONSE, to a client a CHALLENGE, and to both DATA. The first byte says which.

use crate::shape::Shape;
use bytes::Bytes;
use rx_proto::ids::{CHANNELS, CallNumber, ConnectionId, Epoch, ServiceId};
use rx_proto::packet::{HEADER_LEN, Header};
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};
use rx_security::keys::KeySet;
use rx_security::rxkad::{CHALLENGE_LEN, Client, Level, Server, ServerOptions};
use rx_security::ticket::{SessionKey, Token};
use rx_security::time::UnixTime;
use std::sync::Arc;

/// The keys of the throw-away cell whose conversations rx-proto's captures are.
const KEYS: &[u8] = include_bytes!("../../../rx-security/tests/captures/KeyFileExt");
/// The time when those were captured.
const NOW: UnixTime = UnixTime(1_795_000_000);

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let shape = Shape::EMPTY.with(u64::from(mode % 5));
    let facts = |bytes: &[u8]| {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4).map_or([0; 4], |word| word.try_into().expect("four bytes"));
            u32::from_be_bytes(word)
        };
        ConnectionFacts {
            epoch: Epoch(word(0)),
            connection: ConnectionId::of(word(4)),
            service: ServiceId(1),
            calls: [CallNumber(1); CHANNELS],
            peer: ([192, 0, 2, 1], 7001).into(),
            checksum: 0,
        }
    };
    let token = Token {
        session_key: SessionKey::new([1, 2, 4, 7, 8, 11, 13, 14]),
        ticket: vec![0; 40],
        kvno: 3,
        start: UnixTime::ORIGIN,
        end: UnixTime::NEVER,
    };
    let client = |level| Client::new(Arc::new(token), level);
    match mode % 5 {
        0 => {
            // Connection and challenge stand in front, as a response is good for one alone.
            let Some((front, body)) = bytes.split_at_checked(12) else { return shape.feature() };
            let keys = KeySet::parse_key_file_ext(KEYS).expect("asetkey wrote it");
            let options = ServerOptions::of_cell("lab.test");
            let mut end = Server::new(keys, options, Arc::new(|| NOW)).accept(&facts(front));
            let [.., a, b, c, d] = *front else { unreachable!("twelve bytes") };
            end.challenge(u32::from_be_bytes([a, b, c, d]).into());
            let result = end.handle_response(&facts(front), body);
            assert_eq!(result.is_ok(), end.is_authenticated());
            assert_eq!(result.is_ok(), end.identity().is_some());
            shape.with(result.map_or_else(|code| code.0 as u64, |calls| u64::from(calls[1].0 > 0))).feature()
        }
        1 => {
            let result = client(Level::Auth).handle_challenge(&facts(&[]), bytes);
            assert!(bytes.len() >= CHALLENGE_LEN || result.is_err());
            shape.with(result.map_or_else(|code| code.0 as u64, |response| response.len() as u64)).feature()
        }
        level => {
            let Ok(header) = Header::parse(bytes) else { return shape.feature() };
            let level = Level::of_number(u32::from(level) - 2).expect("three levels");
            let (body, mut client) = (&bytes[HEADER_LEN..], client(level));
            // The right checksum, as without it nothing is looked at.
            let mut good = header;
            let mut sealed = Vec::new();
            client.seal(&mut good, body, &mut sealed);
            let again = client.open(&good, sealed.into());
            if body.len() <= usize::from(u16::MAX) {
                assert_eq!(again.as_deref(), Ok(body));
            }
            let opened = client.open(&good, Bytes::copy_from_slice(body));
            let is_wrong = client.open(&header, Bytes::copy_from_slice(body)).is_err();
            shape
                .with(u64::from(is_wrong))
                .with(opened.map_or_else(|code| code.0 as u64, |plain| u64::from(plain.is_empty())))
                .with_count(body.len())
                .feature()
        }
    }
}
