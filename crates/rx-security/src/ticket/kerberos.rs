//! Kerberos 5 tickets (RFC 4120 5.3), as far as AFS looks into them (Security notes 3.1).

use super::der::{self, Reader};
use super::{NameRules, Opened, SessionKey, TicketError};
use crate::identity::PART_MAX;
use crate::kdf;
use crate::kerberos::{USAGE_TICKET, decrypt, encrypt};
use crate::keys::{EncType, Key, KeySet, KeyType};
use crate::time::UnixTime;
use rand::CryptoRng;
use zeroize::Zeroizing;

/// The kind of session key that our own tickets have: eight bytes, used as they are.
const SESSION_KEY_KIND: i32 = 1;
/// The flag "invalid", counted from the first bit.
const FLAG_INVALID: usize = 7;
/// A name of the usual kind: the principal itself.
const NT_PRINCIPAL: i32 = 1;

const NO_TICKET: TicketError = TicketError::Bad("not a Kerberos ticket");
const BAD_CONTENT: TicketError = TicketError::Bad("not the content of a Kerberos ticket");

/// Decrypts a whole Ticket.
pub(super) fn decrypt_ticket(keys: &KeySet, ticket: &[u8]) -> Result<Zeroizing<Vec<u8>>, TicketError> {
    decrypt_encrypted_data(keys, encrypted_part(ticket).ok_or(NO_TICKET)?)
}

/// The EncryptedData in a Ticket, with its tag.
pub(crate) fn encrypted_part(ticket: &[u8]) -> Option<&[u8]> {
    let mut fields = Reader::new(ticket).within(der::application(1))?.within(der::SEQUENCE)?;
    if fields.within(der::context(0))?.integer()? != 5 {
        return None;
    }
    fields.value(der::context(1))?; // the service's realm
    fields.value(der::context(2))?; // and its name: the key tells whether it is ours
    fields.value(der::context(3))
}

/// Decrypts an EncryptedData.
pub(super) fn decrypt_encrypted_data(keys: &KeySet, data: &[u8]) -> Result<Zeroizing<Vec<u8>>, TicketError> {
    let (kind, kvno, sealed) = parse_encrypted_data(data).ok_or(NO_TICKET)?;
    let key = match kind.0 {
        1..=3 => keys.get(KeyType::RXKAD, kvno, 0),
        _ => keys.get(KeyType::RXKAD_KRB5, kvno, kind.0),
    };
    let key = key.ok_or(TicketError::UnknownKey { kvno, kind })?;
    decrypt(kind, &key.secret, USAGE_TICKET, sealed)
        .ok_or(TicketError::Bad("its key is another one, or it is damaged"))
}

/// The enctype, the key's version, and what is encrypted.
pub(crate) fn parse_encrypted_data(data: &[u8]) -> Option<(EncType, i32, &[u8])> {
    let mut fields = Reader::new(data).within(der::SEQUENCE)?;
    let kind = EncType(fields.within(der::context(0))?.integer()?);
    let kvno = match fields.optional(der::context(1))? {
        Some(mut field) => field.integer()?,
        None => 0,
    };
    let sealed = fields.within(der::context(2))?.value(der::OCTET_STRING)?;
    Some((kind, kvno, sealed))
}

/// Reads an EncTicketPart.
pub(super) fn read(plain: &[u8], now: UnixTime, rules: NameRules) -> Result<Opened, TicketError> {
    let fields = TicketPart::parse(plain).ok_or(BAD_CONTENT)?;
    if fields.is_invalid {
        return Err(TicketError::NotYetValid);
    }
    if now > fields.end {
        return Err(TicketError::Expired);
    }
    let session_key = kdf::derive(fields.key_kind, fields.key).ok_or(TicketError::SessionKey)?;
    let (name, instance) = names(&fields, rules)?;
    if fields.realm.len() > PART_MAX {
        return Err(TicketError::Bad("its realm is too long"));
    }
    Ok(Opened {
        session_key: SessionKey::new(session_key),
        name,
        instance,
        realm: fields.realm.to_owned(),
        start: fields.start,
        end: fields.end,
    })
}

/// The fields of an EncTicketPart that AFS looks at.
pub(crate) struct TicketPart<'a> {
    pub(crate) is_invalid: bool,
    pub(crate) key_kind: i32,
    pub(crate) key: &'a [u8],
    pub(crate) realm: &'a str,
    /// The parts of the principal, at least one.
    pub(crate) names: Vec<&'a str>,
    pub(crate) start: UnixTime,
    pub(crate) end: UnixTime,
}

impl<'a> TicketPart<'a> {
    pub(crate) fn parse(plain: &'a [u8]) -> Option<Self> {
        let mut fields = Reader::new(plain).within(der::application(3))?.within(der::SEQUENCE)?;
        let flags = fields.within(der::context(0))?.value(der::BIT_STRING)?;
        let mut key = fields.within(der::context(1))?.within(der::SEQUENCE)?;
        let key_kind = key.within(der::context(0))?.integer()?;
        let key = key.within(der::context(1))?.value(der::OCTET_STRING)?;
        let realm = fields.within(der::context(2))?.text()?;
        let names = principal(fields.within(der::context(3))?)?;
        fields.value(der::context(4))?; // the realms it has passed
        let authenticated = time(fields.within(der::context(5))?)?;
        let start = match fields.optional(der::context(6))? {
            Some(field) => time(field)?,
            None => authenticated,
        };
        let end = time(fields.within(der::context(7))?)?;
        // What follows, renewal, addresses and authorization data, is passed over. The first byte of flags counts unused bits.
        let is_invalid =
            flags.get(1 + FLAG_INVALID / 8).is_some_and(|byte| byte & 0x80 >> (FLAG_INVALID % 8) != 0);
        Some(Self { is_invalid, key_kind, key, realm, names, start, end })
    }
}

/// The parts of a PrincipalName, at least one.
pub(crate) fn principal(mut field: Reader<'_>) -> Option<Vec<&str>> {
    let mut name = field.within(der::SEQUENCE)?;
    name.value(der::context(0))?; // the kind of name
    let mut parts = name.within(der::context(1))?.within(der::SEQUENCE)?;
    let mut names = vec![parts.text()?];
    while !parts.is_empty() {
        names.push(parts.text()?);
    }
    Some(names)
}

/// Services whose names in Kerberos 4 had the first part of their host's name as instance. Only "host" was called otherwise there.
const HOST_SERVICES: [&str; 38] = [
    "host",
    "discuss",
    "rvdsrv",
    "sample",
    "olc",
    "pop",
    "sis",
    "rfs",
    "imap",
    "ftp",
    "ecat",
    "daemon",
    "gnats",
    "moira",
    "prms",
    "mandarin",
    "register",
    "changepw",
    "sms",
    "afpserver",
    "gdss",
    "news",
    "abs",
    "nfs",
    "tftp",
    "http",
    "khttp",
    "pgpsigner",
    "irc",
    "mandarin-agent",
    "write",
    "palladium",
    "smtp",
    "lmtp",
    "ldap",
    "acap",
    "argus",
    "mupdate",
];

/// The name and instance of a principal.
fn names(fields: &TicketPart<'_>, rules: NameRules) -> Result<(String, String), TicketError> {
    match fields.names[..] {
        [name] => name_of_principal(name, None, rules),
        [name, second] => name_of_principal(name, Some(second), rules),
        _ => Err(TicketError::Bad("its principal has more than two parts")),
    }
}

/// The name and instance that a principal of one or two parts has in AFS, by the rules of Security notes 3.1.
///
/// # Errors
/// If AFS has no name for it.
pub fn name_of_principal(
    name: &str,
    second: Option<&str>,
    rules: NameRules,
) -> Result<(String, String), TicketError> {
    if !rules.allow_dotted && name.contains('.') {
        return Err(TicketError::Bad("its principal has a dot in the first part"));
    }
    let (mut name, mut instance) = (name, second.unwrap_or_default());
    if second.is_some() && HOST_SERVICES.contains(&name) {
        name = if name == "host" { "rcmd" } else { name };
        instance = instance.split('.').next().unwrap_or_default();
    }
    if name.len() > PART_MAX || instance.len() > PART_MAX {
        return Err(TicketError::Bad("its principal is too long"));
    }
    Ok((name.to_owned(), instance.to_owned()))
}

/// Makes an EncryptedData.
pub(super) fn make_encrypted_data(key: &Key, content: &Opened, rng: &mut impl CryptoRng) -> Option<Vec<u8>> {
    let kind = EncType(key.subtype);
    let sealed = encrypt(kind, &key.secret, USAGE_TICKET, &make_content(content), rng)?;
    let fields = [
        der::tagged(der::context(0), &der::integer(kind.0)),
        der::tagged(der::context(1), &der::integer(key.kvno)),
        der::tagged(der::context(2), &der::tagged(der::OCTET_STRING, &sealed)),
    ];
    Some(der::tagged(der::SEQUENCE, &fields.concat()))
}

/// Makes an EncTicketPart.
fn make_content(content: &Opened) -> Zeroizing<Vec<u8>> {
    let text = |text: &str| der::tagged(der::GENERAL_STRING, text.as_bytes());
    let at = |time| der::tagged(der::GENERALIZED_TIME, format_time(time).as_bytes());
    let secret = Zeroizing::new(der::tagged(der::OCTET_STRING, &content.session_key.bytes()));
    let key = Zeroizing::new(
        [
            der::tagged(der::context(0), &der::integer(SESSION_KEY_KIND)),
            der::tagged(der::context(1), &secret),
        ]
        .concat(),
    );
    let mut names = text(&content.name);
    if !content.instance.is_empty() {
        names.extend(text(&content.instance));
    }
    let client = [
        der::tagged(der::context(0), &der::integer(NT_PRINCIPAL)),
        der::tagged(der::context(1), &der::tagged(der::SEQUENCE, &names)),
    ];
    let transited = [
        der::tagged(der::context(0), &der::integer(0)),
        der::tagged(der::context(1), &der::tagged(der::OCTET_STRING, &[])),
    ];
    let fields = [
        der::tagged(der::BIT_STRING, &[0; 5]),
        der::tagged(der::SEQUENCE, &key),
        text(&content.realm),
        der::tagged(der::SEQUENCE, &client.concat()),
        der::tagged(der::SEQUENCE, &transited.concat()),
        at(content.start),
    ];
    let mut all = Zeroizing::new(Vec::with_capacity(512));
    for (n, field) in fields.iter().enumerate() {
        der::put(&mut all, der::context(n as u8), field);
    }
    der::put(&mut all, der::context(7), &at(content.end));
    Zeroizing::new(der::tagged(der::application(3), &Zeroizing::new(der::tagged(der::SEQUENCE, &all))))
}

// ---- times

/// A KerberosTime, "YYYYMMDDhhmmssZ", cut to what has a number.
pub(crate) fn time(mut field: Reader<'_>) -> Option<UnixTime> {
    let text = field.value(der::GENERALIZED_TIME)?;
    let (digits, zone) = text.split_at_checked(14)?;
    if zone != b"Z" || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number =
        |from: usize, to: usize| digits[from..to].iter().fold(0u32, |n, d| n * 10 + u32::from(d - b'0'));
    let (year, month, day) = (number(0, 4), number(4, 6), number(6, 8));
    let (hour, minute, second) = (number(8, 10), number(10, 12), number(12, 14));
    // 60: a second that was put in.
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_before(i64::from(year), i64::from(month)) + i64::from(day) - 1;
    let seconds = days * 86_400 + i64::from(hour * 3600 + minute * 60 + second);
    Some(UnixTime(u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)))
}

pub(crate) fn format_time(time: UnixTime) -> String {
    let (days, second) = (i64::from(time.0 / 86_400), time.0 % 86_400);
    let year = (1970..).find(|year| days_before(year + 1, 1) > days).expect("years go on");
    let month = (1..12).find(|month| days_before(year, month + 1) > days).unwrap_or(12);
    let day = days - days_before(year, month) + 1;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}Z")
}

/// Days from 1970 to the first of a month.
fn days_before(year: i64, month: i64) -> i64 {
    // Counted in years that begin with March, so that the day that leap years have comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        for (seconds, text) in [
            (0, "19700101000000Z"),
            (951_868_799, "20000229235959Z"),
            (951_868_800, "20000301000000Z"),
            (0x7fff_ffff, "20380119031407Z"),
            (u32::MAX, "21060207062815Z"),
        ] {
            assert_eq!(format_time(UnixTime(seconds)), text);
            let field = der::tagged(der::GENERALIZED_TIME, text.as_bytes());
            assert_eq!(time(Reader::new(&field)), Some(UnixTime(seconds)));
        }
        for (text, want) in [
            ("19691231235959Z", Some(UnixTime(0))),
            ("99991231235959Z", Some(UnixTime::NEVER)),
            ("00000101000000Z", Some(UnixTime(0))),
            ("20001301000000Z", None),
            ("2000010100000Z", None),
            ("20000101000000", None),
            ("2000010100000xZ", None),
        ] {
            let field = der::tagged(der::GENERALIZED_TIME, text.as_bytes());
            assert_eq!(time(Reader::new(&field)), want, "{text}");
        }
    }
}
