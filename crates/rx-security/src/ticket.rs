//! Tickets: what a client shows and only the cell's servers can read (Security notes 3). Here they are opened, and made from the
//! cell's key, as OpenAFS's tools do with `-localauth`. The forms are in `ticket/kerberos.rs` and `ticket/v4.rs`.

pub(crate) mod der;
pub(crate) mod kerberos;
mod v4;

pub use kerberos::name_of_principal;

use crate::identity::Identity;
use crate::keys::{EncType, KeySet, KeyType};
use crate::rxkad::codes;
use crate::time::UnixTime;
use rand::CryptoRng;
use rx_proto::abort::AbortCode;
use std::fmt;
use std::time::Duration;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Longest ticket, in bytes: with all fields about it a RESPONSE still is one datagram (Security notes 2.3).
pub const TICKET_MAX: usize = 12_000;
/// Shortest ticket, in bytes.
pub const TICKET_MIN: usize = 32;

/// In place of a key's version: the ticket is a Kerberos EncryptedData.
pub const KVNO_ENCRYPTED_DATA: i32 = 213;
/// In place of a key's version: the ticket is a whole Kerberos Ticket.
pub const KVNO_TICKET: i32 = 256;
/// The versions of DES keys, in tickets of the older form.
const KVNO_DES_MAX: i32 = 255;

/// The time by which the clocks of servers may differ (KTC_TIME_UNCERTAINTY).
const CLOCK_SKEW: Duration = Duration::from_secs(15 * 60);
/// Longest life of a ticket that has both a start and an end (MAXKTCTICKETLIFETIME).
const LIFETIME_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The eight bytes that both ends of an rxkad connection share. Forgotten when dropped, and never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SessionKey([u8; 8]);

impl SessionKey {
    /// A key of these bytes.
    pub const fn new(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn bytes(&self) -> [u8; 8] {
        self.0
    }
}

impl PartialEq for SessionKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SessionKey {}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

/// A client's proof of its identity: a ticket, and the key that is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// The key.
    pub session_key: SessionKey,
    /// The ticket, as the server gets it.
    pub ticket: Vec<u8>,
    /// The form of the ticket, or the version of the DES key that it is encrypted with.
    pub kvno: i32,
    /// The time from which it is good.
    pub start: UnixTime,
    /// The time until which it is good.
    pub end: UnixTime,
}

impl Token {
    /// The token of a ticket that Kerberos has given for AFS's service principal, the whole Ticket in DER, with its session key
    /// and times. `None` for a session key of a kind that rxkad has no use for, and a ticket that is too long.
    pub fn of_kerberos(
        ticket: Vec<u8>,
        key_kind: EncType,
        key: &[u8],
        start: UnixTime,
        end: UnixTime,
    ) -> Option<Self> {
        let session_key = SessionKey::new(crate::kdf::derive(key_kind.0, key)?);
        (TICKET_MIN..=TICKET_MAX).contains(&ticket.len()).then_some(Self {
            session_key,
            ticket,
            kvno: KVNO_TICKET,
            start,
            end,
        })
    }
}

/// The content of a ticket, for a server that can open it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The key that the client has.
    pub session_key: SessionKey,
    /// First part of the principal.
    pub name: String,
    /// Second part, or "".
    pub instance: String,
    /// The principal's realm; empty in tickets made from the cell's key.
    pub realm: String,
    /// The time from which it is good.
    pub start: UnixTime,
    /// The time until which it is good.
    pub end: UnixTime,
}

/// The reason why a ticket is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TicketError {
    /// It has a length that none has.
    Length,
    /// There is no key of that version and kind.
    UnknownKey {
        /// The version.
        kvno: i32,
        /// The kind, for Kerberos tickets.
        kind: EncType,
    },
    /// It is not encrypted with the key, or no ticket.
    Bad(&'static str),
    /// Its end has passed.
    Expired,
    /// Its start is yet to come.
    NotYetValid,
    /// Its session key is of a kind that rxkad has no use for.
    SessionKey,
}

impl TicketError {
    /// Returns the code that the client is told (Security notes 3.1 and 3.5).
    pub const fn code(self) -> AbortCode {
        match self {
            Self::Length => codes::TICKETLEN,
            Self::UnknownKey { .. } => codes::UNKNOWNKEY,
            Self::Bad(_) => codes::BADTICKET,
            Self::Expired => codes::EXPIRED,
            Self::NotYetValid => codes::NOAUTH,
            Self::SessionKey => codes::BADTICKET,
        }
    }
}

impl fmt::Display for TicketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("a ticket of an impossible length"),
            Self::UnknownKey { kvno, kind: EncType(0) } => {
                write!(f, "a ticket for a DES key of kvno {kvno}, which is not among the cell's keys")
            }
            Self::UnknownKey { kvno, kind } => {
                let name = kind.name().unwrap_or("of an unknown kind");
                write!(f, "a ticket for a key {name} of kvno {kvno}, which is not among the cell's keys")
            }
            Self::Bad(what) => write!(f, "a bad ticket: {what}"),
            Self::Expired => f.write_str("a ticket that has expired"),
            Self::NotYetValid => f.write_str("a ticket that is not yet good: compare the clocks"),
            Self::SessionKey => f.write_str("a session key of a kind that rxkad cannot use"),
        }
    }
}

impl std::error::Error for TicketError {}

/// A server's rules for names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NameRules {
    /// True if the first part of a principal may have a dot in it. Off by default, as in OpenAFS: `a.b` and `a/b` are one name to
    /// AFS, and not always one person to Kerberos.
    pub allow_dotted: bool,
}

/// The format of a ticket's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Kerberos 5's EncTicketPart.
    Kerberos,
    /// Kerberos 4's strings and numbers.
    V4,
}

/// Opens a ticket and checks its times.
///
/// # Errors
/// Why it is refused; the client is told [`TicketError::code`].
pub fn open(
    keys: &KeySet,
    kvno: i32,
    ticket: &[u8],
    now: UnixTime,
    rules: NameRules,
) -> Result<Opened, TicketError> {
    let (form, content) = decrypt(keys, kvno, ticket)?;
    read(form, &content, now, rules)
}

/// The first half of [`open`]: decrypts a ticket.
///
/// # Errors
/// If there is no such key, or it is the wrong one.
pub fn decrypt(keys: &KeySet, kvno: i32, ticket: &[u8]) -> Result<(Form, Zeroizing<Vec<u8>>), TicketError> {
    if !(TICKET_MIN..=TICKET_MAX).contains(&ticket.len()) {
        return Err(TicketError::Length);
    }
    let v4 = || Ok((Form::V4, v4::decrypt(keys, kvno, ticket)?));
    let kerberos = |content| (Form::Kerberos, content);
    match kvno {
        // There may also be a DES key of that version.
        KVNO_ENCRYPTED_DATA => match kerberos::decrypt_encrypted_data(keys, ticket).map(kerberos) {
            Err(_) if keys.get(KeyType::RXKAD, kvno, 0).is_some() => v4(),
            result => result,
        },
        KVNO_TICKET => kerberos::decrypt_ticket(keys, ticket).map(kerberos),
        0..=KVNO_DES_MAX => v4(),
        _ => Err(TicketError::UnknownKey { kvno, kind: EncType(0) }),
    }
}

/// The second half of [`open`]: reads what was decrypted and checks its times.
///
/// # Errors
/// If it is no content of a ticket, or of one that is not good now.
pub fn read(form: Form, content: &[u8], now: UnixTime, rules: NameRules) -> Result<Opened, TicketError> {
    let opened = match form {
        Form::Kerberos => kerberos::read(content, now, rules)?,
        Form::V4 => v4::read(content)?,
    };
    check_times(opened.start, opened.end, now)?;
    Ok(opened)
}

/// The test that all forms have in common (Security notes 3.1). A start in 1970 is none, and then life has no limit.
fn check_times(start: UnixTime, end: UnixTime, now: UnixTime) -> Result<(), TicketError> {
    if start >= end {
        return Err(TicketError::Bad("its end is not after its start"));
    }
    if start > now.plus(CLOCK_SKEW) {
        return Err(TicketError::NotYetValid);
    }
    if end.plus(CLOCK_SKEW) < now {
        return Err(TicketError::Expired);
    }
    if start != UnixTime::ORIGIN && end != UnixTime::NEVER && end > start.plus(LIFETIME_MAX) {
        return Err(TicketError::Bad("its life is longer than 30 days"));
    }
    Ok(())
}

/// The reason why no ticket could be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ForgeError {
    /// The set has no key for rxkad that can be encrypted with.
    NoKey,
    /// The name does not fit into a ticket.
    BadName,
    /// The times are not those of a ticket.
    BadTimes(TicketError),
}

impl fmt::Display for ForgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey => f.write_str("there is no key for rxkad: add one with 'afar key add KEYTAB'"),
            Self::BadName => {
                f.write_str("the name is empty, too long, or has characters that a ticket must not have")
            }
            Self::BadTimes(error) => write!(f, "it would be {error}"),
        }
    }
}

impl std::error::Error for ForgeError {}

/// A token for the cell's own superuser, for ever: what servers call each other with, and tools with `-localauth` (Security notes
/// 3.4). Encrypted with the newest Kerberos key, or else the newest DES key.
///
/// # Errors
/// If there is no key.
pub fn local_superuser(keys: &KeySet, rng: &mut impl CryptoRng) -> Result<Token, ForgeError> {
    forge(keys, &Identity::local_superuser(), "", UnixTime::ORIGIN, UnixTime::NEVER, rng)
}

/// A token for anybody, as the cell's Kerberos would give it: for tests, and for tools that hold the cell's key. `cell` stands for
/// the realm of local names.
///
/// # Errors
/// If there is no key, or the times are those of no good ticket.
pub fn for_user(
    keys: &KeySet,
    who: &Identity,
    cell: &str,
    (start, end): (UnixTime, UnixTime),
    rng: &mut impl CryptoRng,
) -> Result<Token, ForgeError> {
    check_times(start, end, start).map_err(ForgeError::BadTimes)?;
    forge(keys, who, &cell.to_uppercase(), start, end, rng)
}

/// Makes a ticket, whatever it says.
fn forge(
    keys: &KeySet,
    who: &Identity,
    local_realm: &str,
    start: UnixTime,
    end: UnixTime,
    rng: &mut impl CryptoRng,
) -> Result<Token, ForgeError> {
    let mut bytes = Zeroizing::new([0; 8]);
    loop {
        rng.fill_bytes(&mut bytes[..]);
        crate::des::set_odd_parity(&mut bytes[..]);
        if !crate::des::is_weak(*bytes) {
            break;
        }
    }
    let realm = who.realm().map_or_else(|| local_realm.to_owned(), str::to_uppercase);
    let opened = Opened {
        session_key: SessionKey::new(*bytes),
        name: who.name().to_owned(),
        instance: who.instance().to_owned(),
        realm,
        start,
        end,
    };
    let (kvno, ticket) = if let Some(key) = keys.newest(KeyType::RXKAD_KRB5) {
        (KVNO_ENCRYPTED_DATA, kerberos::make_encrypted_data(key, &opened, rng).ok_or(ForgeError::NoKey)?)
    } else {
        let key = keys.newest(KeyType::RXKAD).ok_or(ForgeError::NoKey)?;
        (key.kvno, v4::make(key, &opened).ok_or(ForgeError::BadName)?)
    };
    let Opened { session_key, .. } = opened;
    Ok(Token { session_key, ticket, kvno, start, end })
}

#[cfg(test)]
mod tests;
