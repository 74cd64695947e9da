//! Kerberos's mechanism of GSS-API (RFC 4121, RFC 2743 and RFC 4402), as much as the negotiation of an rxgk token needs of it: one round
//! trip in which both ends show who they are, and then what they seal and sign for each other, and random bytes that both know.
//!
//! [`Initiator`] and [`accept`] are the ends of the round trip, [`Context`] is what both have then. Tickets and session keys come from
//! a Kerberos client; a service's keys are [`Key`]s of any type, of which version and enctype count. Only the enctypes of
//! [`rxgk`](crate::rxgk) are there.

mod messages;

use crate::kerberos::{self, Counter, prf_plus};
use crate::keys::{EncType, Key};
use crate::rxgk::Secret;
use crate::time::UnixTime;
use messages::{ApReply, ApRequest, Authenticator, ReplyPart, TicketPart};
use rand::{CryptoRng, Rng};
use std::fmt;
use std::time::Duration;
use zeroize::Zeroizing;

/// The time by which the clocks of clients, servers and Kerberos may differ, as MIT Kerberos has it.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// What a context is for: both ends are known, and messages can be sealed and signed. Both ends ask for all of it.
const FLAGS: u32 = MUTUAL | SEALS | SIGNS | 0x100;
const MUTUAL: u32 = 2;
const SEALS: u32 = 0x10;
const SIGNS: u32 = 0x20;

/// Key usages (RFC 4120 7.5.1 and RFC 4121 2).
mod usage {
    pub(super) const AUTHENTICATOR: u32 = 11;
    pub(super) const REPLY: u32 = 12;
    pub(super) const ACCEPTOR_SEAL: u32 = 22;
    pub(super) const ACCEPTOR_SIGN: u32 = 23;
    pub(super) const INITIATOR_SEAL: u32 = 24;
    pub(super) const INITIATOR_SIGN: u32 = 25;
}

/// The reason why a context was not made, or a message is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GssError {
    /// It is no token of this mechanism, or damaged.
    DefectiveToken,
    /// The service has no such key, or the client's ticket or key is not of an enctype that is used here.
    NoKey,
    /// The ticket is for another key, or not yet good.
    DefectiveCredential,
    /// The ticket has expired.
    Expired,
    /// The clocks differ too much.
    ClockSkew,
    /// The message is not what the other end sealed or signed.
    BadSignature,
    /// The other end asks for less than both ends known, sealing and signing.
    TooWeak,
}

impl fmt::Display for GssError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DefectiveToken => "it is no message of Kerberos's GSS-API mechanism, or damaged",
            Self::NoKey => "there is no key for the ticket, or its enctype is none of 17 to 20",
            Self::DefectiveCredential => "the ticket is for another key, or it is not yet good",
            Self::Expired => "the ticket has expired: get a new one with 'kinit'",
            Self::ClockSkew => "the clocks of client and server differ by more than five minutes",
            Self::BadSignature => "a message is not what its sender sealed or signed",
            Self::TooWeak => "the other end does not ask for encryption and mutual authentication",
        })
    }
}

impl std::error::Error for GssError {}

/// The client's end of the round trip, until the answer comes.
pub struct Initiator {
    session: Secret,
    subkey: Secret,
    time: UnixTime,
    micros: u32,
    sequence: u32,
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator").field("time", &self.time).finish_non_exhaustive()
    }
}

impl Initiator {
    /// Shows a ticket, the whole Ticket in DER, whose session key this is and which was given to a principal such as "user1" or
    /// "user1/admin" of a realm. Returns the end and the message for the acceptor.
    pub fn start(
        ticket: &[u8],
        session: Secret,
        (principal, realm): (&str, &str),
        now: UnixTime,
        rng: &mut impl CryptoRng,
    ) -> (Self, Vec<u8>) {
        let subkey = random_key(session.kind(), rng);
        let (micros, sequence) = (rng.random_range(0..1_000_000), random_sequence(rng));
        let authenticator = Authenticator {
            realm,
            names: principal.split('/').collect(),
            flags: FLAGS,
            micros,
            time: now,
            subkey: Some((subkey.kind(), subkey.bytes())),
            sequence,
        };
        let sealed = encrypt(&session, usage::AUTHENTICATOR, &authenticator.to_bytes(), rng);
        let request = ApRequest { is_mutual: true, ticket, kind: session.kind(), authenticator: &sealed };
        let message = request.to_bytes();
        (Self { session, subkey, time: now, micros, sequence }, message)
    }

    /// Takes the acceptor's answer: from then on it is known to have the service's key.
    ///
    /// # Errors
    /// If it is none, or the answer to another message.
    pub fn finish(self, answer: &[u8]) -> Result<Context, GssError> {
        let reply = ApReply::parse(answer).ok_or(GssError::DefectiveToken)?;
        if reply.kind != self.session.kind() {
            return Err(GssError::DefectiveToken);
        }
        let plain = decrypt(&self.session, usage::REPLY, reply.part).ok_or(GssError::BadSignature)?;
        let part = ReplyPart::parse(&plain).ok_or(GssError::DefectiveToken)?;
        if (part.time, part.micros) != (self.time, self.micros) {
            return Err(GssError::BadSignature);
        }
        let has_acceptor_key = part.subkey.is_some();
        let key = match part.subkey {
            Some((kind, bytes)) => Secret::new(kind, bytes).ok_or(GssError::NoKey)?,
            None => self.subkey,
        };
        Ok(Context { key, is_acceptor: false, has_acceptor_key, sequence: self.sequence.into() })
    }
}

/// A context with who has begun it.
#[derive(Debug)]
pub struct Accepted {
    /// The message for the initiator.
    pub answer: Vec<u8>,
    /// The context.
    pub context: Context,
    /// The initiator's principal, as Kerberos writes it: "user1/admin@LAB.TEST".
    pub principal: String,
    /// The time until which its ticket is good.
    pub end: UnixTime,
}

/// The service's end of the round trip: opens the ticket with one of the service's keys.
///
/// The same message may be accepted twice. It is of no use to who has overheard it: the context has a new key, which only who has the
/// ticket's session key can read.
///
/// # Errors
/// Why there is no context.
pub fn accept(
    keys: &[Key],
    message: &[u8],
    now: UnixTime,
    rng: &mut impl CryptoRng,
) -> Result<Accepted, GssError> {
    let request = ApRequest::parse(message).ok_or(GssError::DefectiveToken)?;
    let sealed = messages::ticket_part(request.ticket).ok_or(GssError::DefectiveToken)?;
    let key = keys.iter().find(|key| (EncType(key.subtype), key.kvno) == (sealed.kind, sealed.kvno));
    let key = Secret::new(sealed.kind, &key.ok_or(GssError::NoKey)?.secret).ok_or(GssError::NoKey)?;
    let plain = decrypt(&key, kerberos::USAGE_TICKET, sealed.cipher).ok_or(GssError::DefectiveCredential)?;
    let ticket = TicketPart::parse(&plain).ok_or(GssError::DefectiveCredential)?;
    if ticket.is_invalid || ticket.start > now.plus(CLOCK_SKEW) {
        return Err(GssError::DefectiveCredential);
    }
    if ticket.end.plus(CLOCK_SKEW) < now {
        return Err(GssError::Expired);
    }
    let session = Secret::new(EncType(ticket.key_kind), ticket.key).ok_or(GssError::NoKey)?;
    if request.kind != session.kind() {
        return Err(GssError::DefectiveToken);
    }
    let plain =
        decrypt(&session, usage::AUTHENTICATOR, request.authenticator).ok_or(GssError::BadSignature)?;
    let authenticator = Authenticator::parse(&plain).ok_or(GssError::DefectiveToken)?;
    if (authenticator.realm, &authenticator.names[..]) != (ticket.realm, &ticket.names[..]) {
        return Err(GssError::BadSignature);
    }
    if authenticator.time > now.plus(CLOCK_SKEW) || authenticator.time.plus(CLOCK_SKEW) < now {
        return Err(GssError::ClockSkew);
    }
    let wanted = MUTUAL | SEALS | SIGNS;
    if !request.is_mutual || authenticator.flags & wanted != wanted {
        return Err(GssError::TooWeak);
    }
    let kind = match authenticator.subkey {
        Some((kind, bytes)) => Secret::new(kind, bytes).ok_or(GssError::NoKey)?.kind(),
        None => session.kind(),
    };
    let (key, sequence) = (random_key(kind, rng), random_sequence(rng));
    let part = ReplyPart {
        time: authenticator.time,
        micros: authenticator.micros,
        subkey: Some((key.kind(), key.bytes())),
        sequence,
    };
    let sealed = encrypt(&session, usage::REPLY, &part.to_bytes(), rng);
    let answer = ApReply { kind: session.kind(), part: &sealed }.to_bytes();
    let context = Context { key, is_acceptor: true, has_acceptor_key: true, sequence: sequence.into() };
    let principal = format!("{}@{}", ticket.names.join("/"), ticket.realm);
    Ok(Accepted { answer, context, principal, end: ticket.end })
}

/// What both ends have after the round trip.
pub struct Context {
    key: Secret,
    is_acceptor: bool,
    has_acceptor_key: bool,
    /// The number of this end's next message.
    sequence: u64,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("is_acceptor", &self.is_acceptor).finish_non_exhaustive()
    }
}

/// Bytes in front of what is sealed, and of a signature.
const HEADER: usize = 16;
/// The first bytes of both.
const SEALED: [u8; 2] = [5, 4];
const SIGNATURE: [u8; 2] = [4, 4];
/// Their flags.
const BY_ACCEPTOR: u8 = 1;
const IS_SEALED: u8 = 2;
const BY_ACCEPTOR_KEY: u8 = 4;

impl Context {
    /// Seals a message.
    pub fn wrap(&mut self, plain: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
        let mut out = self.header(SEALED, self.flags(self.is_acceptor) | IS_SEALED, [0; 4]).to_vec();
        let text = Zeroizing::new([plain, &out].concat());
        out.extend_from_slice(&encrypt(&self.key, self.seal_usage(self.is_acceptor), &text, rng));
        out
    }

    /// Opens a message that the other end has sealed. What it has only signed is none.
    ///
    /// # Errors
    /// If it is none.
    pub fn unwrap(&self, message: &[u8]) -> Result<Zeroizing<Vec<u8>>, GssError> {
        let (header, sealed) = message.split_first_chunk::<HEADER>().ok_or(GssError::DefectiveToken)?;
        let &[a, b, flags, 0xff, e, c, r, s, ..] = header else { return Err(GssError::DefectiveToken) };
        if [a, b] != SEALED || flags != self.flags(!self.is_acceptor) | IS_SEALED || sealed.is_empty() {
            return Err(GssError::DefectiveToken);
        }
        // Whoever fills up or turns round the text says by how much.
        let (filled, turned) = (u16::from_be_bytes([e, c]), u16::from_be_bytes([r, s]));
        let mut sealed = sealed.to_vec();
        let turned = usize::from(turned) % sealed.len();
        sealed.rotate_left(turned);
        let usage = self.seal_usage(!self.is_acceptor);
        let mut plain = decrypt(&self.key, usage, &sealed).ok_or(GssError::BadSignature)?;
        let mut repeated = *header;
        repeated[6..8].fill(0);
        let text = plain.strip_suffix(&repeated).ok_or(GssError::BadSignature)?;
        let len = text.len().checked_sub(filled.into()).ok_or(GssError::DefectiveToken)?;
        plain.truncate(len);
        Ok(plain)
    }

    /// Signs a message, which is not in the signature.
    pub fn sign(&mut self, message: &[u8]) -> Vec<u8> {
        let mut out = self.header(SIGNATURE, self.flags(self.is_acceptor), [0xff; 4]).to_vec();
        let header = out.clone();
        self.sum(self.is_acceptor).append(&[message, &header], &mut out);
        out
    }

    /// Checks the other end's signature of a message.
    ///
    /// # Errors
    /// If it is none.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), GssError> {
        let (header, sum) = signature.split_first_chunk::<HEADER>().ok_or(GssError::DefectiveToken)?;
        let [a, b, flags, fill @ ..] = header;
        let flags_are_good = *flags == self.flags(!self.is_acceptor);
        if [*a, *b] != SIGNATURE || !flags_are_good || fill[..5] != [0xff; 5] {
            return Err(GssError::DefectiveToken);
        }
        let is_good = self.sum(!self.is_acceptor).is_of(&[message, header], sum);
        if is_good { Ok(()) } else { Err(GssError::BadSignature) }
    }

    /// So many bytes that both ends know and nobody else, of a seed (GSS_C_PRF_KEY_FULL).
    pub fn pseudo_random(&self, seed: &[u8], len: usize) -> Zeroizing<Vec<u8>> {
        prf_plus(self.key.kind(), self.key.bytes(), Counter::Word(0), seed, len)
            .expect("secrets are of kinds that have one")
    }

    fn header(&mut self, id: [u8; 2], flags: u8, rest: [u8; 4]) -> [u8; HEADER] {
        let mut header = [0xff; HEADER];
        header[..2].copy_from_slice(&id);
        header[2] = flags;
        header[4..8].copy_from_slice(&rest);
        header[8..].copy_from_slice(&self.sequence.to_be_bytes());
        self.sequence += 1;
        header
    }

    fn flags(&self, by_acceptor: bool) -> u8 {
        let by_acceptor = if by_acceptor { BY_ACCEPTOR } else { 0 };
        by_acceptor | if self.has_acceptor_key { BY_ACCEPTOR_KEY } else { 0 }
    }

    fn seal_usage(&self, by_acceptor: bool) -> u32 {
        if by_acceptor { usage::ACCEPTOR_SEAL } else { usage::INITIATOR_SEAL }
    }

    fn sum(&self, by_acceptor: bool) -> Box<dyn kerberos::Checksum> {
        let usage = if by_acceptor { usage::ACCEPTOR_SIGN } else { usage::INITIATOR_SIGN };
        kerberos::checksum(self.key.kind(), self.key.bytes(), usage)
            .expect("secrets are of kinds that have one")
    }
}

fn encrypt(key: &Secret, usage: u32, plain: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
    kerberos::encrypt(key.kind(), key.bytes(), usage, plain, rng).expect("secrets are of kinds that encrypt")
}

fn decrypt(key: &Secret, usage: u32, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    kerberos::decrypt(key.kind(), key.bytes(), usage, sealed)
}

fn random_key(kind: EncType, rng: &mut impl CryptoRng) -> Secret {
    let mut bytes = Zeroizing::new(vec![0; kind.key_len().expect("secrets are of kinds that have one")]);
    rng.fill_bytes(&mut bytes);
    Secret::new(kind, &bytes).expect("it is of a secret's kind")
}

/// The number of an end's first message: below 2^30, as MIT Kerberos has it, since old ones take a larger one for negative.
fn random_sequence(rng: &mut impl CryptoRng) -> u32 {
    rng.random_range(0..1 << 30)
}

#[cfg(test)]
mod tests;
