//! The line of an invitation, which people copy, send and at times type:
//!
//! ```text
//! afar1/example.org/192.0.2.7,198.51.100.9:7103/4kx0...qv/m3x2a9wd
//!       cell        database servers            key, secret  checksum
//! ```
//!
//! The third part is the cell's public key and the secret, in Crockford's base 32: letters of either case, without those that look like
//! digits. The checksum is over all that stands before it, so that a line that was mistyped is told from one that is refused.
//! Whoever has the line can join as its user once.

use crate::keys::{KEY_BYTES, PublicKey};
use afs_wire::ids::CellName;
use afs_wire::join::{JOIN_SECRET_BYTES, JoinSecret};
use sha2::{Digest, Sha256};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::str::FromStr;
use zeroize::Zeroizing;

/// What a line begins with: the number is that of its form.
const MARK: &str = "afar1";

/// The port of a database server for which a line names none: that of the volume location service.
pub const PORT: u16 = 7003;

/// Most database servers in a line. A cell has three or five.
pub const SERVERS_MAX: usize = 16;

/// Longest line that is looked at, in bytes: a cell's name, all servers, key, secret and checksum, and some blanks.
const LINE_MAX: usize = 2048;

/// Bytes of the checksum: one of 10^12 lines that were mistyped at random passes it.
const SUM_BYTES: usize = 5;

/// Crockford's digits.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// An invitation, as its line has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invitation {
    /// The cell.
    pub cell: CellName,
    /// Its database servers, one at least.
    pub servers: Vec<SocketAddrV4>,
    /// Its public key.
    pub key: PublicKey,
    /// The secret, which is good once.
    pub secret: JoinSecret,
}

/// The reason why a line is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineError {
    /// It does not begin as one does.
    NoInvitation,
    /// It is of a form that this program does not know.
    OtherForm,
    /// It does not have all parts.
    CutShort,
    /// It was changed: its checksum is of another line.
    Mistyped,
    /// Its cell, a server or a length cannot be, though the checksum is right.
    Malformed(&'static str),
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInvitation => {
                write!(f, "this is no invitation: one begins with {MARK}/ and is printed by 'afar invite'")
            }
            Self::OtherForm => f.write_str("the invitation is of a later release of afar: use that release here too"),
            Self::CutShort => {
                f.write_str("the invitation is cut short: copy the whole line, with the part behind its last /")
            }
            Self::Mistyped => {
                f.write_str("the invitation was mistyped: its checksum is wrong. Copy the line again; it can still be used")
            }
            Self::Malformed(what) => write!(f, "the invitation has a bad {what}: ask for another"),
        }
    }
}

impl std::error::Error for LineError {}

impl Invitation {
    /// The line, which is a secret.
    pub fn to_line(&self) -> Zeroizing<String> {
        let mut line = Zeroizing::new(format!("{MARK}/{}/", self.cell.as_str().to_ascii_lowercase()));
        for (index, server) in self.servers.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match server.port() {
                PORT => *line += &format!("{comma}{}", server.ip()),
                port => *line += &format!("{comma}{}:{port}", server.ip()),
            }
        }
        line.push('/');
        let mut bytes = Zeroizing::new([0; KEY_BYTES + JOIN_SECRET_BYTES]);
        bytes[..KEY_BYTES].copy_from_slice(&self.key.0);
        bytes[KEY_BYTES..].copy_from_slice(&self.secret.0);
        encode(&bytes[..], &mut line);
        let sum = sum(&line);
        line.push('/');
        encode(&sum, &mut line);
        line
    }

    /// The SHA-256 of the secret, by which servers know it.
    pub fn digest(&self) -> [u8; 32] {
        digest(&self.secret)
    }
}

/// The SHA-256 of a secret, by which servers know it. They need nothing slower: it has 160 random bits, which nobody guesses from it.
pub fn digest(secret: &JoinSecret) -> [u8; 32] {
    Sha256::digest(secret.0).into()
}

impl FromStr for Invitation {
    type Err = LineError;

    /// Reads a line. Blanks and line ends in it, which mail programs add, mean nothing, and neither does the case of letters.
    fn from_str(text: &str) -> Result<Self, LineError> {
        if text.len() > LINE_MAX {
            return Err(LineError::NoInvitation);
        }
        let mut line = Zeroizing::new(String::with_capacity(text.len()));
        line.extend(text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_ascii_lowercase()));
        let (mark, rest) = line.split_once('/').ok_or(LineError::NoInvitation)?;
        if mark != MARK {
            let is_ours = mark.strip_prefix("afar").is_some_and(|form| form.parse::<u32>().is_ok());
            return Err(if is_ours { LineError::OtherForm } else { LineError::NoInvitation });
        }
        let mut parts = rest.split('/');
        let (Some(cell), Some(servers), Some(keys), Some(check), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(LineError::CutShort);
        };
        // What is typed as a letter that looks like a digit is that digit, for the checksum too.
        let keys = canonical(keys);
        let covered = Zeroizing::new(format!("{MARK}/{cell}/{servers}/{}", &*keys));
        let mut want = String::new();
        encode(&sum(&covered), &mut want);
        if *canonical(check) != want {
            return Err(LineError::Mistyped);
        }
        let mut bytes = Zeroizing::new([0; KEY_BYTES + JOIN_SECRET_BYTES]);
        decode(&keys, &mut bytes[..]).ok_or(LineError::Malformed("key"))?;
        let (key, secret) = bytes.split_first_chunk().expect("the secret is behind the key");
        let secret = secret.try_into().expect("the rest is the secret");
        let servers = servers.split(',').map(server).collect::<Option<Vec<_>>>();
        let servers = servers.filter(|servers| servers.len() <= SERVERS_MAX);
        Ok(Self {
            cell: CellName::new(cell).map_err(|_| LineError::Malformed("cell"))?,
            servers: servers.ok_or(LineError::Malformed("server"))?,
            key: PublicKey(*key),
            secret: JoinSecret(secret),
        })
    }
}

fn server(text: &str) -> Option<SocketAddrV4> {
    let (address, port) = match text.split_once(':') {
        Some((address, port)) => (address, port.parse().ok().filter(|port| *port != 0)?),
        None => (text, PORT),
    };
    let address: Ipv4Addr = address.parse().ok()?;
    (!address.is_unspecified() && !address.is_multicast() && !address.is_broadcast())
        .then(|| SocketAddrV4::new(address, port))
}

fn sum(covered: &str) -> [u8; SUM_BYTES] {
    *Sha256::digest(covered).first_chunk().expect("SHA-256 gives 32 bytes")
}

/// Returns what stands before the checksum with a right one behind it.
pub(crate) fn with_checksum(covered: &str) -> String {
    let mut line = format!("{covered}/");
    encode(&sum(covered), &mut line);
    line
}

/// Digits as they are written: a letter that looks like one becomes it.
fn canonical(digits: &str) -> Zeroizing<String> {
    let digit = |c| match c {
        'o' => '0',
        'i' | 'l' => '1',
        other => other,
    };
    let mut out = Zeroizing::new(String::with_capacity(digits.len()));
    out.extend(digits.chars().map(digit));
    out
}

/// Appends bytes in base 32, the first bits first; bits that are left over in the last digit are 0.
pub(crate) fn encode(bytes: &[u8], out: &mut String) {
    let (mut bits, mut count) = (0u32, 0);
    let digit = |bits: u32| char::from(DIGITS[(bits & 31) as usize]);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            out.push(digit(bits >> count));
        }
        bits &= (1 << count) - 1;
    }
    if count > 0 {
        out.push(digit(bits << (5 - count)));
    }
}

/// Fills `out` with what digits stand for; `None` unless they are as many as [`encode`] writes for so many bytes.
fn decode(digits: &str, out: &mut [u8]) -> Option<()> {
    if digits.len() != (out.len() * 8).div_ceil(5) {
        return None;
    }
    let (mut bits, mut count) = (0u32, 0);
    let mut places = out.iter_mut();
    for digit in digits.bytes() {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        bits = bits << 5 | value as u32;
        count += 5;
        if count >= 8 {
            count -= 8;
            *places.next()? = (bits >> count) as u8;
        }
        bits &= (1 << count) - 1;
    }
    (bits == 0).then_some(())
}
