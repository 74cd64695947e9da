//! Tokens: what a client shows and only the cell's servers can read (rxgk notes 5). They are sealed with a key of the cell of type rxgk;
//! here they are opened, and made from that key.

use super::response::{TOKEN_MAX, opaque, put_opaque};
use super::{AuthName, Dialect, ENCTYPES, Fault, RxgkTime, Secret, combine_for_server, usage};
use crate::identity::Identity;
use crate::keys::{EncType, Key, KeySet, KeyType};
use crate::time::UnixTime;
use crate::{Level, kerberos};
use rand::CryptoRng;
use rxgen::xdr::Uuid;
use rxgen::{DecodeError, Decoder, Xdr};
use std::fmt;
use zeroize::Zeroizing;

/// Most names that are read out of a token; more than one are refused later, by what they are.
const NAMES_MAX: usize = 64;
/// Longest K0 that is read, in bytes.
const SECRET_MAX: usize = 64;

/// How long a transport key of our own tokens is used, in seconds, and for how many bytes, as a power of two: what OpenAFS has.
pub(super) const LIFETIME: u32 = 36_000;
pub(super) const BYTELIFE: u32 = 30;

/// In place of a server, the question for a token of the dialect that Linux has, which is good at all servers of the cell (rxgk notes 7.2).
pub const FOR_LINUX: Uuid = Uuid {
    time_low: 0,
    time_mid: 0,
    time_hi_and_version: 0,
    clock_seq_hi_and_reserved: 0,
    clock_seq_low: 0,
    node: [0; 6],
};

/// A client's proof of its identity: what it shows, and the secret that is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// The form of it.
    pub dialect: Dialect,
    /// K0.
    pub secret: Secret,
    /// The level of connections with it.
    pub level: Level,
    /// How long a transport key is used, in seconds; 0 for ever.
    pub lifetime: u32,
    /// For how many bytes a transport key is used (rxgk notes 5.4); 0 for any number.
    pub bytelife: u32,
    /// The time until which it is good.
    pub end: RxgkTime,
    /// The token, as the server gets it.
    pub token: Vec<u8>,
}

/// What a token is made like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// The dialect of the servers.
    pub dialect: Dialect,
    /// The enctype of K0 and of transport keys.
    pub kind: EncType,
    /// The level of connections with it.
    pub level: Level,
}

/// What a database server says of the token that it has made for a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Combined {
    /// The token; empty if the server has no rxgk.
    pub token: Vec<u8>,
    /// The enctype of its secret.
    pub kind: EncType,
    /// The number of its level.
    pub level: u32,
    /// As of [`Token::lifetime`].
    pub lifetime: u32,
    /// As of [`Token::bytelife`].
    pub bytelife: u32,
    /// The time until which it is good.
    pub end: RxgkTime,
}

/// What a token says whose secret both ends have by other means: by a negotiation, or of another token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// K0.
    pub secret: Secret,
    /// The level of connections with it.
    pub level: Level,
    /// Its user: [`AuthName::of_principal`], [`AuthName::of_identity`].
    pub name: AuthName,
    /// The time from which it is good.
    pub start: UnixTime,
    /// The time until which it is good.
    pub end: UnixTime,
}

/// The reason why no token could be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MakeError {
    /// The set has no key for rxgk.
    NoKey,
    /// The enctype is none that rxgk has here.
    NoEnctype(EncType),
    /// A token's life must have an end, after its start.
    BadTimes,
}

impl fmt::Display for MakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey => {
                f.write_str("there is no key for rxgk among the cell's keys: it has type 3 in KeyFileExt")
            }
            Self::NoEnctype(kind) => {
                write!(f, "rxgk does not use the enctype {}: choose one of 17 to 20", kind.0)
            }
            Self::BadTimes => f.write_str("the token would end before it begins"),
        }
    }
}

impl std::error::Error for MakeError {}

impl Token {
    /// The numbers of the enctypes for a token of this one: its own first.
    pub fn enctypes(&self) -> Vec<i32> {
        let own = self.secret.kind();
        let others = ENCTYPES.into_iter().filter(|kind| *kind != own);
        [own].into_iter().chain(others).map(|kind| kind.0).collect()
    }

    /// A token for who has the cell's key, for ever: what servers call each other with.
    ///
    /// # Errors
    /// If there is no key, or no such enctype.
    pub fn of_superuser(keys: &KeySet, form: Form, rng: &mut impl CryptoRng) -> Result<Self, MakeError> {
        let Form { dialect, kind, level } = form;
        let (start, end, names) = (RxgkTime::NONE, RxgkTime::NONE, Vec::new());
        let (lifetime, bytelife) = (LIFETIME, BYTELIFE);
        let content = Content { secret: random(kind, rng)?, level, start, lifetime, bytelife, end, names };
        Self::sealed(keys, dialect, content, rng)
    }

    /// A token for anybody. `cell` stands for the realm of local names.
    ///
    /// # Errors
    /// If there is no key, or no such enctype, or it would not end, or before it begins.
    pub fn of_user(
        keys: &KeySet,
        form: Form,
        who: &Identity,
        cell: &str,
        (start, end): (UnixTime, UnixTime),
        rng: &mut impl CryptoRng,
    ) -> Result<Self, MakeError> {
        let Form { dialect, kind, level } = form;
        let name = AuthName::of_identity(who, cell);
        Self::granted(keys, dialect, Grant { secret: random(kind, rng)?, level, name, start, end }, rng)
    }

    /// A token for who has its secret already, sealed with the newest key of the cell.
    ///
    /// # Errors
    /// If there is no key, or it would not end, or before it begins.
    pub fn granted(
        keys: &KeySet,
        dialect: Dialect,
        Grant { secret, level, name, start, end }: Grant,
        rng: &mut impl CryptoRng,
    ) -> Result<Self, MakeError> {
        if start >= end || end == UnixTime::NEVER {
            return Err(MakeError::BadTimes);
        }
        let (start, end) = (RxgkTime::of(start), RxgkTime::of(end));
        let (lifetime, bytelife, names) = (LIFETIME, BYTELIFE, vec![name]);
        let content = Content { secret, level, start, lifetime, bytelife, end, names };
        Self::sealed(keys, dialect, content, rng)
    }

    /// The token for one server of the cell, or [`FOR_LINUX`], that is made of another token, whose content this is (rxgk notes 5.5): as good
    /// for as long, of the same user, with a secret of its own.
    ///
    /// # Errors
    /// If there is no key, or no such enctype.
    pub fn for_server(
        keys: &KeySet,
        Form { dialect, kind, level }: Form,
        user: Content,
        server: Uuid,
        rng: &mut impl CryptoRng,
    ) -> Result<Self, MakeError> {
        let secret = combine_for_server(&user.secret, server, kind).ok_or(MakeError::NoEnctype(kind))?;
        Self::sealed(keys, dialect, Content { secret, level, ..user }, rng)
    }

    /// The token for one server, or [`FOR_LINUX`], that a database server has made of this one, by what it says. `None`: that server has no
    /// rxgk.
    ///
    /// # Errors
    /// If it is not for an enctype that rxgk has here, or of another level than this one.
    pub fn combined(&self, server: Uuid, made: Combined) -> Result<Option<Self>, Fault> {
        let Combined { token, kind, level, lifetime, bytelife, end } = made;
        if token.is_empty() {
            return Ok(None);
        }
        let secret = combine_for_server(&self.secret, server, kind).ok_or(Fault::BadEtype)?;
        if level != self.level.number() {
            return Err(Fault::BadLevel);
        }
        let dialect = if server == FOR_LINUX { Dialect::Yfs } else { self.dialect };
        let level = self.level;
        Ok(Some(Self { dialect, secret, level, lifetime, bytelife, end, token }))
    }

    fn sealed(
        keys: &KeySet,
        dialect: Dialect,
        content: Content,
        rng: &mut impl CryptoRng,
    ) -> Result<Self, MakeError> {
        let key = keys.newest(KeyType::RXGK).ok_or(MakeError::NoKey)?;
        let token = seal(key, dialect, &content, rng).ok_or(MakeError::NoKey)?;
        let Content { secret, level, lifetime, bytelife, end, .. } = content;
        Ok(Self { dialect, secret, level, lifetime, bytelife, end, token })
    }
}

pub(super) fn random(kind: EncType, rng: &mut impl CryptoRng) -> Result<Secret, MakeError> {
    let mut bytes = Zeroizing::new(vec![0; kind.key_len().ok_or(MakeError::NoEnctype(kind))?]);
    rng.fill_bytes(&mut bytes);
    Secret::new(kind, &bytes).ok_or(MakeError::NoEnctype(kind))
}

/// The content of a token, for a server that can open it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// K0, which the client has.
    pub secret: Secret,
    /// The level of connections with it.
    pub level: Level,
    /// The time from which it is good, which only [`Dialect::Yfs`] tells.
    pub start: RxgkTime,
    /// As of [`Token::lifetime`].
    pub lifetime: u32,
    /// As of [`Token::bytelife`].
    pub bytelife: u32,
    /// The time until which it is good.
    pub end: RxgkTime,
    /// The names of its user: without any, it is of who has the cell's key.
    pub names: Vec<AuthName>,
}

impl Content {
    /// Checks that it is good now.
    ///
    /// # Errors
    /// If it has expired, or is not yet good.
    pub fn check_times(&self, now: UnixTime) -> Result<(), Fault> {
        if self.end.has_passed(now) {
            return Err(Fault::Expired);
        }
        if self.start.is_ahead(now) { Err(Fault::NotAuth) } else { Ok(()) }
    }

    /// What is sealed; [`read`] reads it.
    pub fn to_bytes(&self, dialect: Dialect) -> Zeroizing<Vec<u8>> {
        let names: usize = self.names.iter().map(|name| 20 + name.data.len() + name.display.len()).sum();
        // Room for all, so that no copy of the secret is left behind.
        let mut out = Zeroizing::new(Vec::with_capacity(128 + names));
        self.secret.kind().0.encode(&mut out);
        put_opaque(&mut out, self.secret.bytes());
        self.level.number().encode(&mut out);
        if dialect == Dialect::Yfs {
            self.start.0.encode(&mut out);
        }
        self.lifetime.encode(&mut out);
        self.bytelife.encode(&mut out);
        self.end.0.encode(&mut out);
        (self.names.len() as u32).encode(&mut out);
        for name in &self.names {
            name.kind.encode(&mut out);
            put_opaque(&mut out, &name.data);
            put_opaque(&mut out, &name.display);
        }
        out
    }
}

/// Seals a token with a key of the cell. `None` for a key of an enctype that rxgk does not have here.
pub fn seal(key: &Key, dialect: Dialect, content: &Content, rng: &mut impl CryptoRng) -> Option<Vec<u8>> {
    let kind = EncType(key.subtype);
    if !ENCTYPES.contains(&kind) {
        return None;
    }
    let sealed = kerberos::encrypt(kind, &key.secret, usage::TOKEN, &content.to_bytes(dialect), rng)?;
    let mut out = Vec::with_capacity(12 + sealed.len() + 3);
    key.kvno.encode(&mut out);
    kind.0.encode(&mut out);
    put_opaque(&mut out, &sealed);
    Some(out)
}

/// Opens a token with the key of the cell that it names. Whether it is good now is not looked at: see [`Content::check_times`].
///
/// # Errors
/// Why it is refused: [`Fault::BadKeyNo`] if there is no such key.
pub fn open(keys: &KeySet, dialect: Dialect, token: &[u8]) -> Result<Content, Fault> {
    let container = |fields: &mut Decoder<'_>| {
        let (kvno, kind) = (i32::decode(fields)?, EncType(i32::decode(fields)?));
        let sealed = opaque(fields, TOKEN_MAX, "sealed token")?.to_vec();
        fields.finish()?;
        Ok::<_, DecodeError>((kvno, kind, sealed))
    };
    let (kvno, kind, sealed) = container(&mut Decoder::new(token)).map_err(|_| Fault::BadToken)?;
    if !ENCTYPES.contains(&kind) {
        return Err(Fault::BadEtype);
    }
    let key = keys.get(KeyType::RXGK, kvno, kind.0).ok_or(Fault::BadKeyNo)?;
    let plain = kerberos::decrypt(kind, &key.secret, usage::TOKEN, &sealed).ok_or(Fault::BadToken)?;
    read(dialect, &plain)
}

/// Reads what was sealed.
///
/// # Errors
/// If it is no content of a token, or its secret is of an enctype that rxgk does not have here.
pub fn read(dialect: Dialect, plain: &[u8]) -> Result<Content, Fault> {
    let fields = &mut Decoder::new(plain);
    let (kind, bytes, rest) = read_fields(dialect, fields).map_err(|_| Fault::BadToken)?;
    if !ENCTYPES.contains(&kind) {
        return Err(Fault::BadEtype);
    }
    let secret = Secret::new(kind, bytes).ok_or(Fault::BadToken)?;
    let level = Level::of_number(rest.level).ok_or(Fault::BadToken)?;
    let Rest { start, lifetime, bytelife, end, names, .. } = rest;
    Ok(Content { secret, level, start, lifetime, bytelife, end, names })
}

/// What stands behind K0 in a token.
struct Rest {
    level: u32,
    start: RxgkTime,
    lifetime: u32,
    bytelife: u32,
    end: RxgkTime,
    names: Vec<AuthName>,
}

fn read_fields<'a>(
    dialect: Dialect,
    fields: &mut Decoder<'a>,
) -> Result<(EncType, &'a [u8], Rest), DecodeError> {
    let kind = EncType(i32::decode(fields)?);
    let secret = opaque(fields, SECRET_MAX, "K0")?;
    let level = fields.word("level")?;
    let start = match dialect {
        Dialect::Rxgk => RxgkTime::NONE,
        Dialect::Yfs => RxgkTime(i64::decode(fields)?),
    };
    let (lifetime, bytelife) = (fields.word("lifetime")?, fields.word("bytelife")?);
    let end = RxgkTime(i64::decode(fields)?);
    let count = fields.count(NAMES_MAX, 12, "identities")?;
    let name = |fields: &mut Decoder<'a>| {
        Ok(AuthName {
            kind: i32::decode(fields)?,
            data: opaque(fields, AuthName::LEN_MAX, "identity")?.to_vec(),
            display: opaque(fields, AuthName::LEN_MAX, "identity's text")?.to_vec(),
        })
    };
    let names = (0..count).map(|_| name(fields)).collect::<Result<_, DecodeError>>()?;
    fields.finish()?;
    Ok((kind, secret, Rest { level, start, lifetime, bytelife, end, names }))
}
