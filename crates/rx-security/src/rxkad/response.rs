//! The bodies of CHALLENGE and RESPONSE (Security notes 2.2 and 2.3).

use super::{INDEX, Level, codes};
use crate::fcrypt::Fcrypt;
use crate::ticket::{SessionKey, TICKET_MAX, TICKET_MIN};
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CHANNELS, CallNumber, ConnectionId, Epoch};
use zeroize::Zeroizing;

/// The version of both that is spoken; the first had no checksums, and nobody has it any more.
const VERSION: u32 = 2;
/// Length of a CHALLENGE.
pub const CHALLENGE_LEN: usize = 16;
/// The place of the encrypted block in a RESPONSE, and the beginning of the ticket.
const BLOCK: std::ops::Range<usize> = 8..48;
const TICKET_AT: usize = 56;
/// The place of the checksum.
const CHECKSUM: std::ops::Range<usize> = 16..20;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// A server's challenge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Challenge {
    /// A random number, for the answer to be of this moment.
    pub nonce: u32,
    /// The least level that the server takes, as a number: a later version may have more of them.
    pub min_level: u32,
}

impl Challenge {
    /// The body.
    pub fn to_bytes(self) -> [u8; CHALLENGE_LEN] {
        let mut out = [0; CHALLENGE_LEN];
        for (place, word) in out.chunks_exact_mut(4).zip([VERSION, self.nonce, self.min_level, 0]) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        out
    }

    /// Reads the body.
    ///
    /// # Errors
    /// If it is too short or of another version.
    pub fn parse(body: &[u8]) -> Result<Self, AbortCode> {
        let body: &[u8; CHALLENGE_LEN] = body.first_chunk().ok_or(codes::PACKETSHORT)?;
        if word(body, 0) != VERSION {
            return Err(codes::INCONSISTENCY);
        }
        Ok(Self { nonce: word(body, 4), min_level: word(body, 8) })
    }
}

/// A client's answer to a challenge, without the ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response {
    /// The connection it is for.
    pub epoch: Epoch,
    /// The connection it is for.
    pub connection: ConnectionId,
    /// The number of each channel's running call, or of its next one; 0 if there was none yet.
    pub calls: [CallNumber; CHANNELS],
    /// The challenge's nonce and one more.
    pub nonce: u32,
    /// The level of the connection, as a number.
    pub level: u32,
}

/// A RESPONSE before its ticket has been opened: nothing in it is to be believed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SealedResponse<'a> {
    fixed: &'a [u8; TICKET_AT],
    pub(super) ticket: &'a [u8],
    pub(super) kvno: i32,
}

impl<'a> SealedResponse<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, AbortCode> {
        let (fixed, rest) = body.split_first_chunk::<TICKET_AT>().ok_or(codes::PACKETSHORT)?;
        if word(fixed, 0) != VERSION {
            return Err(codes::INCONSISTENCY);
        }
        let len = word(fixed, 52) as usize;
        if !(TICKET_MIN..=TICKET_MAX).contains(&len) {
            return Err(codes::TICKETLEN);
        }
        let ticket = rest.get(..len).ok_or(codes::PACKETSHORT)?;
        Ok(Self { fixed, ticket, kvno: word(fixed, 48) as i32 })
    }

    /// Opens the block with the ticket's session key. What it says has still to be compared.
    pub(super) fn open(&self, key: &SessionKey) -> Result<Response, AbortCode> {
        let mut fixed = Zeroizing::new(*self.fixed);
        Fcrypt::new(key.bytes()).decrypt_pcbc(u64::from_be_bytes(key.bytes()), &mut fixed[BLOCK]);
        let found = word(&fixed[..], CHECKSUM.start);
        fixed[CHECKSUM].fill(0);
        // The wrong key shows itself here.
        if found != checksum(&fixed) || word(&fixed[..], 20) != u32::from(INDEX.0) {
            return Err(codes::SEALEDINCON);
        }
        Ok(Response {
            epoch: Epoch(word(&fixed[..], 8)),
            connection: ConnectionId(word(&fixed[..], 12)),
            calls: std::array::from_fn(|i| CallNumber(word(&fixed[..], 24 + 4 * i))),
            nonce: word(&fixed[..], 40),
            level: word(&fixed[..], 44),
        })
    }
}

impl Response {
    /// The body of a RESPONSE with this in it.
    pub(super) fn seal(&self, key: &SessionKey, kvno: i32, ticket: &[u8]) -> Vec<u8> {
        let [a, b, c, d] = self.calls.map(|call| call.0);
        let words = [
            VERSION,
            0,
            self.epoch.0,
            self.connection.0,
            0, // the checksum
            u32::from(INDEX.0),
            a,
            b,
            c,
            d,
            self.nonce,
            self.level,
            kvno as u32,
            ticket.len() as u32,
        ];
        let mut fixed = [0; TICKET_AT];
        for (place, word) in fixed.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        let sum = checksum(&fixed);
        fixed[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        Fcrypt::new(key.bytes()).encrypt_pcbc(u64::from_be_bytes(key.bytes()), &mut fixed[BLOCK]);
        [&fixed, ticket].concat()
    }

    /// The level, if there is one of that number.
    pub fn level(&self) -> Option<Level> {
        Level::of_number(self.level)
    }
}

/// The checksum of a RESPONSE up to its ticket, in plain text and with zeros in the checksum's own place.
fn checksum(fixed: &[u8; TICKET_AT]) -> u32 {
    fixed
        .iter()
        .fold(1_000_003, |sum: u32, byte| sum.wrapping_mul(0x1020_4081).wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_openafs() {
        let mut fixed: [u8; TICKET_AT] = std::array::from_fn(|i| i as u8);
        fixed[CHECKSUM].fill(0);
        assert_eq!(checksum(&fixed), 0x40b8_e201);
    }

    #[test]
    fn a_challenge_is_sixteen_bytes() {
        let body = [0, 0, 0, 2, 0x53, 0x46, 0xef, 0xf0, 0, 0, 0, 0, 0, 0, 0, 0];
        let challenge = Challenge { nonce: 0x5346_eff0, min_level: 0 };
        assert_eq!(Challenge::parse(&body), Ok(challenge));
        assert_eq!(challenge.to_bytes(), body);
        assert_eq!(Challenge::parse(&body[..15]), Err(codes::PACKETSHORT));
        assert_eq!(Challenge::parse(&[0; 16]), Err(codes::INCONSISTENCY));
    }

    #[test]
    fn lengths_that_cannot_be_are_refused_before_anything_is_opened() {
        let mut body = vec![0; 56 + 40];
        body[3] = 2;
        for (len, want) in [
            (31u32, Err(codes::TICKETLEN)),
            (32, Ok(32)),
            (40, Ok(40)),
            (41, Err(codes::PACKETSHORT)),
            (12_000, Err(codes::PACKETSHORT)),
            (12_001, Err(codes::TICKETLEN)),
            (u32::MAX, Err(codes::TICKETLEN)),
        ] {
            body[52..56].copy_from_slice(&len.to_be_bytes());
            assert_eq!(SealedResponse::parse(&body).map(|r| r.ticket.len()), want);
        }
        body[3] = 1;
        assert_eq!(SealedResponse::parse(&body), Err(codes::INCONSISTENCY));
        assert_eq!(SealedResponse::parse(&body[..55]), Err(codes::PACKETSHORT));
    }
}
