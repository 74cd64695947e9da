//! How a client of rxgk shows its token: to a server a RESPONSE, what is sealed in it, and to a client a CHALLENGE. The first byte says
//! which, and in which dialect.

use crate::shape::Shape;
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CHANNELS, CallNumber, ConnectionId, Epoch, ServiceId};
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};
use rx_security::Level;
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::rxgk::{Authenticator, CHALLENGE_LEN, Client, Dialect, Response};
use rx_security::rxgk::{RxgkTime, Secret, Server, ServerOptions, Token};
use rx_security::time::UnixTime;
use std::sync::Arc;

/// The time when all of the corpus is good.
const NOW: UnixTime = UnixTime(1_795_000_000);

/// The connection that all answers are for.
pub fn facts() -> ConnectionFacts {
    ConnectionFacts {
        epoch: Epoch(0x8123_4567),
        connection: ConnectionId(0x40),
        service: ServiceId(1),
        calls: [CallNumber(1); CHANNELS],
        peer: ([192, 0, 2, 1], 7001).into(),
        checksum: 0,
    }
}

/// The key of the server.
pub fn keys() -> KeySet {
    KeySet::of([Key::rxgk(2, EncType::AES128, &[7; 16])]).expect("a good key")
}

/// The server's end of the connection, which has asked who the client is; and what it has asked.
pub fn asking(dialect: Dialect) -> (Box<dyn SecurityClass>, Vec<u8>) {
    let options = ServerOptions { min_level: Level::Clear, ..ServerOptions::of_cell("lab.test") };
    let mut end = Server::new(dialect, keys(), options, Arc::new(|| NOW), [1; 32]).accept(&facts());
    let challenge = end.challenge(0);
    (end, challenge)
}

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let dialect = Dialect::ALL[usize::from(mode % 2)];
    let shape = Shape::EMPTY.with(u64::from(mode % 6));
    let refused = |code: AbortCode| shape.with(code.0 as u64);
    let shape = match mode % 6 / 2 {
        0 => {
            let parts = Response::parse(bytes);
            if let Ok(parts) = parts {
                assert!(parts.token.len() + parts.authenticator.len() <= bytes.len());
                assert_eq!(Response::parse(&parts.to_bytes()), Ok(parts));
            }
            let (mut end, _) = asking(dialect);
            let result = end.handle_response(&facts(), bytes);
            assert_eq!(result.is_ok(), end.is_authenticated());
            assert_eq!(result.is_ok(), end.identity().is_some());
            assert!(result.is_err() || parts.is_ok());
            let shape = shape.with(u64::from(parts.is_ok()));
            result
                .map_or_else(|code| shape.with(code.0 as u64), |calls| shape.with(u64::from(calls[1].0 > 0)))
        }
        1 => Authenticator::parse(bytes).map_or_else(
            |fault| refused(fault.code(dialect)),
            |authenticator| {
                let calls = authenticator.calls.iter().filter(|call| call.0 > 0).count();
                shape.with(1).with(calls as u64).with_count(authenticator.app_data.len())
            },
        ),
        _ => {
            let secret = Secret::new(EncType::AES128, &[3; 16]).expect("a good length");
            let token = Token {
                dialect,
                secret,
                level: Level::Crypt,
                lifetime: 0,
                bytelife: 0,
                end: RxgkTime::NONE,
                token: vec![0; 40],
            };
            let mut client = Client::new(Arc::new(token), Arc::new(|| NOW), [2; 32]);
            let result = client.handle_challenge(&facts(), bytes);
            assert_eq!(result.is_ok(), bytes.len() >= CHALLENGE_LEN);
            result.map_or_else(refused, |response| shape.with(1).with_count(response.len()))
        }
    };
    shape.feature()
}
