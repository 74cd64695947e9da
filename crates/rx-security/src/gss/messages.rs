//! The messages of the round trip, in DER (RFC 4120 5.5 and RFC 4121 4.1), with what is encrypted in them.

use crate::keys::EncType;
use crate::ticket::der::{self, Reader};
pub(super) use crate::ticket::kerberos::TicketPart;
use crate::ticket::kerberos::{encrypted_part, format_time, parse_encrypted_data, principal, time};
use crate::time::UnixTime;
use zeroize::Zeroizing;

/// What stands in front of a message: the mechanism, and the kind of message behind it.
const MECHANISM: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";
const REQUEST: [u8; 2] = [1, 0];
const REPLY: [u8; 2] = [2, 0];

/// The version of Kerberos, and the numbers of its two messages.
const VERSION: i32 = 5;
const AP_REQ: i32 = 14;
const AP_REP: i32 = 15;
/// The option of a request that asks for an answer.
const MUTUAL_REQUIRED: u8 = 0x20;
/// The kind of "checksum" that tells what a context is for.
const GSS_CHECKSUM: i32 = 0x8003;
/// The length of the part of it in front of the flags, as it says itself.
const BINDINGS_LEN: u32 = 16;
const NT_PRINCIPAL: i32 = 1;

fn frame(kind: [u8; 2], message: &[u8]) -> Vec<u8> {
    der::tagged(der::application(0), &[MECHANISM, &kind, message].concat())
}

fn unframe(kind: [u8; 2], bytes: &[u8]) -> Option<Reader<'_>> {
    let content = Reader::new(bytes).value(der::application(0))?;
    content.strip_prefix(MECHANISM)?.strip_prefix(&kind).map(Reader::new)
}

fn field(number: u8, value: &[u8]) -> Vec<u8> {
    der::tagged(der::context(number), value)
}

fn sequence(fields: &[Vec<u8>]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(der::tagged(der::SEQUENCE, &Zeroizing::new(fields.concat())))
}

fn encrypted_data(kind: EncType, cipher: &[u8]) -> Zeroizing<Vec<u8>> {
    sequence(&[field(0, &der::integer(kind.0)), field(2, &der::tagged(der::OCTET_STRING, cipher))])
}

/// What is encrypted in a ticket.
pub(super) struct Sealed<'a> {
    pub(super) kind: EncType,
    pub(super) kvno: i32,
    pub(super) cipher: &'a [u8],
}

/// Finds the encrypted part of a whole Ticket.
pub(super) fn ticket_part(ticket: &[u8]) -> Option<Sealed<'_>> {
    let (kind, kvno, cipher) = parse_encrypted_data(encrypted_part(ticket)?)?;
    Some(Sealed { kind, kvno, cipher })
}

/// The initiator's message: an AP-REQ.
pub(super) struct ApRequest<'a> {
    pub(super) is_mutual: bool,
    /// The whole Ticket.
    pub(super) ticket: &'a [u8],
    /// The enctype of the session key, and what is encrypted with it.
    pub(super) kind: EncType,
    pub(super) authenticator: &'a [u8],
}

impl<'a> ApRequest<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let mut fields = unframe(REQUEST, message)?.within(der::application(14))?.within(der::SEQUENCE)?;
        expect(&mut fields, 0, VERSION)?;
        expect(&mut fields, 1, AP_REQ)?;
        let options = fields.within(der::context(2))?.value(der::BIT_STRING)?;
        // The first byte counts unused bits.
        let is_mutual = options.get(1)? & MUTUAL_REQUIRED != 0;
        let ticket = fields.value(der::context(3))?;
        let (kind, _, authenticator) = parse_encrypted_data(fields.value(der::context(4))?)?;
        Some(Self { is_mutual, ticket, kind, authenticator })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let options = [0, if self.is_mutual { MUTUAL_REQUIRED } else { 0 }, 0, 0, 0];
        let fields = sequence(&[
            field(0, &der::integer(VERSION)),
            field(1, &der::integer(AP_REQ)),
            field(2, &der::tagged(der::BIT_STRING, &options)),
            field(3, self.ticket),
            field(4, &encrypted_data(self.kind, self.authenticator)),
        ]);
        frame(REQUEST, &der::tagged(der::application(14), &fields))
    }
}

/// The acceptor's message: an AP-REP.
pub(super) struct ApReply<'a> {
    pub(super) kind: EncType,
    pub(super) part: &'a [u8],
}

impl<'a> ApReply<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let mut fields = unframe(REPLY, message)?.within(der::application(15))?.within(der::SEQUENCE)?;
        expect(&mut fields, 0, VERSION)?;
        expect(&mut fields, 1, AP_REP)?;
        let (kind, _, part) = parse_encrypted_data(fields.value(der::context(2))?)?;
        Some(Self { kind, part })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let fields = sequence(&[
            field(0, &der::integer(VERSION)),
            field(1, &der::integer(AP_REP)),
            field(2, &encrypted_data(self.kind, self.part)),
        ]);
        frame(REPLY, &der::tagged(der::application(15), &fields))
    }
}

/// The initiator's word, encrypted with the session key.
pub(super) struct Authenticator<'a> {
    pub(super) realm: &'a str,
    pub(super) names: Vec<&'a str>,
    /// What the context is for.
    pub(super) flags: u32,
    pub(super) micros: u32,
    pub(super) time: UnixTime,
    pub(super) subkey: Option<(EncType, &'a [u8])>,
    pub(super) sequence: u32,
}

impl<'a> Authenticator<'a> {
    pub(super) fn parse(plain: &'a [u8]) -> Option<Self> {
        let mut fields = Reader::new(plain).within(der::application(2))?.within(der::SEQUENCE)?;
        expect(&mut fields, 0, VERSION)?;
        let realm = fields.within(der::context(1))?.text()?;
        let names = principal(fields.within(der::context(2))?)?;
        let mut checksum = fields.within(der::context(3))?.within(der::SEQUENCE)?;
        expect(&mut checksum, 0, GSS_CHECKSUM)?;
        let content = checksum.within(der::context(1))?.value(der::OCTET_STRING)?;
        // Length of the bindings, the bindings, which nobody has here, and the flags: the only numbers with the lowest byte first.
        let (len, rest) = content.split_first_chunk::<4>()?;
        let (_, rest) = rest.split_at_checked(BINDINGS_LEN as usize)?;
        let flags = u32::from_le_bytes(*rest.first_chunk()?);
        if u32::from_le_bytes(*len) != BINDINGS_LEN {
            return None;
        }
        let micros = micros(fields.within(der::context(4))?)?;
        let time = time(fields.within(der::context(5))?)?;
        let (subkey, sequence) = subkey_and_sequence(&mut fields, 6)?;
        // Authorization data may follow.
        Some(Self { realm, names, flags, micros, time, subkey, sequence })
    }

    pub(super) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let text = |text: &&str| der::tagged(der::GENERAL_STRING, text.as_bytes());
        let names = sequence(&self.names.iter().map(text).collect::<Vec<_>>());
        let name = sequence(&[field(0, &der::integer(NT_PRINCIPAL)), field(1, &names)]);
        let content =
            [&BINDINGS_LEN.to_le_bytes()[..], &[0; BINDINGS_LEN as usize], &self.flags.to_le_bytes()]
                .concat();
        let checksum = sequence(&[
            field(0, &der::integer(GSS_CHECKSUM)),
            field(1, &der::tagged(der::OCTET_STRING, &content)),
        ]);
        let mut fields = vec![
            field(0, &der::integer(VERSION)),
            field(1, &text(&self.realm)),
            field(2, &name),
            field(3, &checksum),
            field(4, &der::integer(self.micros as i32)),
            field(5, &time_field(self.time)),
        ];
        put_subkey_and_sequence(&mut fields, 6, self.subkey, self.sequence);
        let out = Zeroizing::new(der::tagged(der::application(2), &sequence(&fields)));
        fields.iter_mut().for_each(|field| field.fill(0));
        out
    }
}

/// The acceptor's word, encrypted with the session key.
pub(super) struct ReplyPart<'a> {
    pub(super) time: UnixTime,
    pub(super) micros: u32,
    pub(super) subkey: Option<(EncType, &'a [u8])>,
    pub(super) sequence: u32,
}

impl<'a> ReplyPart<'a> {
    pub(super) fn parse(plain: &'a [u8]) -> Option<Self> {
        let mut fields = Reader::new(plain).within(der::application(27))?.within(der::SEQUENCE)?;
        let time = time(fields.within(der::context(0))?)?;
        let micros = micros(fields.within(der::context(1))?)?;
        let (subkey, sequence) = subkey_and_sequence(&mut fields, 2)?;
        Some(Self { time, micros, subkey, sequence })
    }

    pub(super) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut fields = vec![field(0, &time_field(self.time)), field(1, &der::integer(self.micros as i32))];
        put_subkey_and_sequence(&mut fields, 2, self.subkey, self.sequence);
        let out = Zeroizing::new(der::tagged(der::application(27), &sequence(&fields)));
        fields.iter_mut().for_each(|field| field.fill(0));
        out
    }
}

/// A number that has to be this one.
fn expect(fields: &mut Reader<'_>, number: u8, wanted: i32) -> Option<()> {
    (fields.within(der::context(number))?.integer()? == wanted).then_some(())
}

fn micros(mut field: Reader<'_>) -> Option<u32> {
    u32::try_from(field.integer()?).ok().filter(|micros| *micros < 1_000_000)
}

fn time_field(time: UnixTime) -> Vec<u8> {
    der::tagged(der::GENERALIZED_TIME, format_time(time).as_bytes())
}

type Subkey<'a> = Option<(EncType, &'a [u8])>;

fn subkey_and_sequence<'a>(fields: &mut Reader<'a>, number: u8) -> Option<(Subkey<'a>, u32)> {
    let subkey = match fields.optional(der::context(number))? {
        Some(mut field) => {
            let mut key = field.within(der::SEQUENCE)?;
            let kind = EncType(key.within(der::context(0))?.integer()?);
            Some((kind, key.within(der::context(1))?.value(der::OCTET_STRING)?))
        }
        None => None,
    };
    let sequence = match fields.optional(der::context(number + 1))? {
        Some(mut field) => field.integer()? as u32,
        None => 0,
    };
    Some((subkey, sequence))
}

fn put_subkey_and_sequence(out: &mut Vec<Vec<u8>>, number: u8, subkey: Subkey<'_>, sequence_number: u32) {
    if let Some((kind, bytes)) = subkey {
        let bytes = Zeroizing::new(der::tagged(der::OCTET_STRING, bytes));
        let key = sequence(&[field(0, &der::integer(kind.0)), field(1, &bytes)]);
        out.push(field(number, &key));
    }
    out.push(field(number + 1, &der::integer(sequence_number as i32)));
}
