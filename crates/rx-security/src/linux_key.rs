//! Tokens as Linux's AFS client takes them: what a key of type `rxrpc` is made of (rxgk notes 9). Putting the key into a keyring is left to
//! others.

use crate::rxgk::{self, Dialect, RxgkTime};
use crate::ticket::Token;
use crate::time::UnixTime;
use rxgen::Xdr;
use std::fmt;
use zeroize::Zeroizing;

/// The longest payload in bytes.
pub const PAYLOAD_MAX: usize = 16_384;

/// Bytes of the longest name of a cell in it.
const CELL_MAX: usize = 64;

/// The numbers of the classes.
const RXKAD: u32 = 2;
const YFS_RXGK: u32 = Dialect::Yfs.index().0 as u32;

/// The tokens of a user for a cell. Linux uses the first one in the payload whose class it knows, and that is rxgk's.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// That of rxgk, for Linux since 6.16.
    pub rxgk: Option<&'a rxgk::Token>,
    /// That of rxkad, and the user's number in the cell.
    pub rxkad: Option<(&'a Token, i32)>,
}

/// The reason why Linux would take no such key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PayloadError {
    /// There is no token.
    Empty,
    /// Linux has rxgk in the other dialect alone.
    Dialect,
    /// The cell's name is longer than Linux reads, or empty.
    Cell,
    /// The payload would be longer than Linux reads.
    TooLong(usize),
}

impl fmt::Display for PayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there is no token"),
            Self::Dialect => f.write_str("the token is not of the dialect of rxgk that Linux has"),
            Self::Cell => write!(f, "Linux takes names of cells of 1 to {CELL_MAX} bytes"),
            Self::TooLong(bytes) => {
                write!(
                    f,
                    "the tokens have {bytes} bytes, and Linux takes {PAYLOAD_MAX}: ask your realm for smaller tickets"
                )
            }
        }
    }
}

impl std::error::Error for PayloadError {}

/// The description of a cell's key.
pub fn description(cell: &str) -> String {
    format!("afs@{cell}")
}

/// The payload of a cell's key, from a time on.
///
/// # Errors
/// If Linux would not take it.
pub fn payload(cell: &str, tokens: Tokens<'_>, start: UnixTime) -> Result<Zeroizing<Vec<u8>>, PayloadError> {
    if cell.is_empty() || cell.len() > CELL_MAX {
        return Err(PayloadError::Cell);
    }
    let rxgk = tokens.rxgk.map(|token| of_rxgk(token, start)).transpose()?;
    let rxkad = tokens.rxkad.map(|(token, id)| of_rxkad(token, id));
    let count = [&rxgk, &rxkad].into_iter().flatten().count() as u32;
    // Room for all, so that no copy of the secrets is left behind.
    let mut out = Zeroizing::new(Vec::with_capacity(2 * PAYLOAD_MAX));
    0_u32.encode(&mut out);
    put_opaque(&mut out, cell.as_bytes());
    count.encode(&mut out);
    for token in [rxgk, rxkad].into_iter().flatten() {
        put_opaque(&mut out, &token);
    }
    match (count, out.len()) {
        (0, _) => Err(PayloadError::Empty),
        (_, length) if length > PAYLOAD_MAX => Err(PayloadError::TooLong(length)),
        _ => Ok(out),
    }
}

fn of_rxgk(token: &rxgk::Token, start: UnixTime) -> Result<Zeroizing<Vec<u8>>, PayloadError> {
    if token.dialect != Dialect::Yfs {
        return Err(PayloadError::Dialect);
    }
    let mut out = Zeroizing::new(Vec::with_capacity(128 + token.token.len()));
    YFS_RXGK.encode(&mut out);
    let (level, kind) = (token.level.number().into(), token.secret.kind().0.into());
    let lives = [token.lifetime.into(), token.bytelife.into()];
    for number in [RxgkTime::of(start).0, token.end.0, level, lives[0], lives[1], kind] {
        number.encode(&mut out);
    }
    put_opaque(&mut out, token.secret.bytes());
    put_opaque(&mut out, &token.token);
    Ok(out)
}

fn of_rxkad(token: &Token, id: i32) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(64 + token.ticket.len()));
    RXKAD.encode(&mut out);
    id.encode(&mut out);
    token.kvno.encode(&mut out);
    out.extend_from_slice(&Zeroizing::new(token.session_key.bytes())[..]);
    token.start.0.encode(&mut out);
    token.end.0.encode(&mut out);
    // The primary flag, which nobody reads.
    0_u32.encode(&mut out);
    put_opaque(&mut out, &token.ticket);
    out
}

/// Appends a count, so many bytes, and zeros up to a word.
fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    (bytes.len() as u32).encode(out);
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::keys::EncType;
    use crate::rxgk::Secret;
    use crate::ticket::SessionKey;

    fn rxgk_token(dialect: Dialect, length: usize) -> rxgk::Token {
        rxgk::Token {
            dialect,
            secret: Secret::new(EncType::AES128, &[0xa5; 16]).unwrap(),
            level: Level::Crypt,
            lifetime: 36_000,
            bytelife: 30,
            end: RxgkTime(0x0102_0304_0506_0708),
            token: vec![0x77; length],
        }
    }

    fn rxkad_token(length: usize) -> Token {
        Token {
            session_key: SessionKey::new([0x5e; 8]),
            ticket: vec![0x66; length],
            kvno: 256,
            start: UnixTime(0x1111_1111),
            end: UnixTime(0x2222_2222),
        }
    }

    #[test]
    fn linux_reads_each_field_at_its_place_and_the_token_of_rxgk_first() {
        let (rxgk, rxkad) = (rxgk_token(Dialect::Yfs, 5), rxkad_token(6));
        let tokens = Tokens { rxgk: Some(&rxgk), rxkad: Some((&rxkad, 1001)) };
        let payload = payload("lab.test", tokens, UnixTime(1000)).unwrap();
        let word = u32::to_be_bytes;
        let long = i64::to_be_bytes;
        let first = [
            &word(6)[..],
            &long(10_000_000_000),
            &long(0x0102_0304_0506_0708),
            &long(2),
            &long(36_000),
            &long(30),
            &long(17),
            &word(16),
            &[0xa5; 16],
            &word(5),
            &[0x77, 0x77, 0x77, 0x77, 0x77, 0, 0, 0],
        ]
        .concat();
        let second = [
            &word(2)[..],
            &word(1001),
            &word(256),
            &[0x5e; 8],
            &[0x11; 4],
            &[0x22; 4],
            &word(0),
            &word(6),
            &[0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0, 0],
        ]
        .concat();
        let lengths = (word(first.len() as u32), word(second.len() as u32));
        let head = [&word(0)[..], &word(8), b"lab.test", &word(2)].concat();
        let want = [&head[..], &lengths.0, &first, &lengths.1, &second].concat();
        assert_eq!(payload.to_vec(), want);
        assert_eq!(description("lab.test"), "afs@lab.test");
    }

    #[test]
    fn what_linux_would_refuse_is_refused_with_the_reason() {
        let (yfs, ours) = (rxgk_token(Dialect::Yfs, 8), rxgk_token(Dialect::Rxgk, 8));
        let large = rxkad_token(PAYLOAD_MAX);
        let check = |cell: &str, rxgk, rxkad: Option<&Token>, want| {
            let tokens = Tokens { rxgk, rxkad: rxkad.map(|token| (token, 1)) };
            assert_eq!(payload(cell, tokens, UnixTime(0)).map(|_| ()), want);
        };
        check("a", Some(&yfs), None, Ok(()));
        check("a", None, Some(&rxkad_token(40)), Ok(()));
        check("a", None, None, Err(PayloadError::Empty));
        check("a", Some(&ours), None, Err(PayloadError::Dialect));
        for cell in ["", &"c".repeat(CELL_MAX + 1)] {
            check(cell, Some(&yfs), None, Err(PayloadError::Cell));
        }
        check(&"c".repeat(CELL_MAX), Some(&yfs), None, Ok(()));
        // Flags, a name, a count; then a length and nine words about the ticket.
        check("a", None, Some(&large), Err(PayloadError::TooLong(PAYLOAD_MAX + 16 + 4 + 36)));
    }
}
