//! Any datagram, as it comes from the socket: the header must write back as it was read; each body goes to the target for
//! its type.

use super::{rx_ack, rx_debug, rx_jumbo};
use crate::shape::Shape;
use rx_proto::abort::AbortCode;
use rx_proto::packet::{HEADER_LEN, Header, PacketType};

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Ok(header) = Header::parse(input) else {
        assert!(input.len() < HEADER_LEN);
        return Shape::EMPTY.with_count(input.len()).feature();
    };
    assert_eq!(header.to_bytes(), input[..HEADER_LEN]);
    let (body, shape) = (&input[HEADER_LEN..], Shape::EMPTY.with(u64::from(header.kind.0)));
    let body_feature = match header.kind {
        PacketType::DATA => rx_jumbo::run(input),
        PacketType::ACK => rx_ack::run(body),
        PacketType::DEBUG | PacketType::VERSION => rx_debug::run(body),
        PacketType::ABORT => {
            let code = body.first_chunk().map(|c| AbortCode(i32::from_be_bytes(*c)));
            drop(format!("{code:?}"));
            u64::from(code.is_some_and(|c| c.name().is_some()))
        }
        kind => {
            drop(format!("{kind:?}"));
            0
        }
    };
    shape.with(u64::from(header.is_from_client())).with(body_feature).feature()
}
