//! The transport keys of a connection and the DATA packets that are sealed and opened with them (rxgk notes 3). Keys have numbers; each
//! packet says which one it is sealed with. The number that is sent with goes up when a key has been used for so long or for so many
//! bytes, and each end takes packets of the number before and of the one behind, so that no call has to wait.

use super::{Dialect, Fault, RxgkTime, Secret, usage};
use crate::Level;
use crate::kerberos::{self, CONFOUNDER, Checksum, Counter, Sealer};
use crate::keys::EncType;
use crate::time::UnixTime;
use bytes::Bytes;
use rand::RngCore;
use rand::rngs::StdRng;
use rx_proto::ids::{ConnectionId, Epoch};
use rx_proto::packet::Header;
use std::time::Duration;

/// Bytes of what a packet's place is told by, in front of its data.
const PSEUDO_HEADER: usize = 24;

/// Fewest bytes that a key is used for, whatever a token says: packets of three keys in a row must not be on their way at once, or the
/// oldest would end the connection.
const BYTES_MIN: u64 = 4 << 20;
/// Bytes after which a key is left though the peer has never used it: a long call in one direction brings no DATA back. By then the
/// peer has had packets that were sealed with it, since no window is as large.
const UNCONFIRMED_BYTES: u64 = 64 << 20;

/// The end of a connection that this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Client,
    Server,
}

/// When a key has been used enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Seconds; `None` for no limit.
    lifetime: Option<Duration>,
    /// Bytes of data.
    bytes: u64,
}

impl Limits {
    /// The limits that a token tells (rxgk notes 5.4).
    pub(super) fn of(dialect: Dialect, lifetime: u32, bytelife: u32) -> Self {
        let bytes = match (bytelife, dialect) {
            (0, _) | (63, _) => u64::MAX,
            (1..63, _) => 1 << bytelife,
            (_, Dialect::Rxgk) => u64::MAX,
            (literal, Dialect::Yfs) => literal.into(),
        };
        let lifetime = (lifetime != 0).then(|| Duration::from_secs(lifetime.into()));
        Self { lifetime, bytes: bytes.max(BYTES_MIN) }
    }
}

/// What a connection's transport keys are made of, besides their number.
pub(super) struct Origin {
    /// K0.
    pub(super) secret: Secret,
    pub(super) epoch: Epoch,
    pub(super) connection: ConnectionId,
    /// The client's word, as it is.
    pub(super) start: RxgkTime,
}

impl Origin {
    /// The transport key of a number (rxgk notes 3.1).
    pub(super) fn key(&self, number: u32) -> Secret {
        let mut seed = Vec::with_capacity(20);
        seed.extend_from_slice(&self.epoch.0.to_be_bytes());
        seed.extend_from_slice(&self.connection.0.to_be_bytes());
        seed.extend_from_slice(&self.start.0.to_be_bytes());
        seed.extend_from_slice(&number.to_be_bytes());
        let (kind, k0) = (self.secret.kind(), self.secret.bytes());
        let bytes = kerberos::prf_plus(kind, k0, Counter::Word(1), &seed, k0.len());
        Secret { kind, bytes: bytes.expect("secrets are of kinds that have one") }
    }
}

/// The keys of one direction.
enum DirectionKeys {
    Clear,
    Auth(Box<dyn Checksum>),
    Crypt(Box<dyn Sealer>),
}

impl DirectionKeys {
    fn new(key: &Secret, level: Level, sender: Role) -> Self {
        let (encrypt, sum) = match sender {
            Role::Client => (usage::CLIENT_ENCRYPT, usage::CLIENT_SUM),
            Role::Server => (usage::SERVER_ENCRYPT, usage::SERVER_SUM),
        };
        let known = "secrets are of kinds that have one";
        match level {
            Level::Clear => Self::Clear,
            Level::Auth => Self::Auth(kerberos::checksum(key.kind(), key.bytes(), sum).expect(known)),
            Level::Crypt => Self::Crypt(kerberos::sealer(key.kind(), key.bytes(), encrypt).expect(known)),
        }
    }
}

/// The keys of both directions of a number, made once.
struct Generation {
    number: u32,
    ours: DirectionKeys,
    theirs: DirectionKeys,
}

/// The transport keys of one end, and what has been done with them.
pub(super) struct Transport {
    origin: Origin,
    role: Role,
    dialect: Dialect,
    level: Level,
    limits: Limits,
    /// Those of numbers that are sent with or taken: each stands at its number's remainder. Anybody can have one made by a packet of its
    /// number, but only one, until it has been used.
    generations: [Option<Generation>; 3],
    /// The number that is sent with, and the middle of those that are taken.
    current: u32,
    /// The time when it was first sent with.
    since: Option<UnixTime>,
    /// Bytes that were sent with it.
    sent: u64,
    /// True if the peer has used it.
    is_confirmed: bool,
    /// The number that bodies were prepared with which are not finished.
    prepared: Option<u32>,
    /// The source of confounders.
    rng: StdRng,
}

impl Transport {
    /// An end of a connection that begins with a key number.
    pub(super) fn new(
        origin: Origin,
        role: Role,
        dialect: Dialect,
        level: Level,
        limits: Limits,
        number: u32,
        rng: StdRng,
    ) -> Self {
        Self {
            origin,
            role,
            dialect,
            level,
            limits,
            generations: [const { None }; 3],
            current: number,
            since: None,
            sent: 0,
            is_confirmed: false,
            prepared: None,
            rng,
        }
    }

    /// The level.
    pub(super) const fn level(&self) -> Level {
        self.level
    }

    /// What the keys are made of.
    pub(super) const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The number that is sent with.
    pub(super) const fn number(&self) -> u32 {
        self.current
    }

    /// Random numbers of this end.
    pub(super) fn rng(&mut self) -> &mut StdRng {
        &mut self.rng
    }

    /// As `SecurityClass::plaintext_capacity`.
    pub(super) fn capacity(&self, body: usize) -> usize {
        body.saturating_sub(overhead(self.level, self.origin.secret.kind()))
    }

    /// As `SecurityClass::prepare`.
    pub(super) fn prepare(&mut self, now: UnixTime, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        if self.prepared.is_none() {
            self.turn_if_due(now);
        }
        let number = *self.prepared.get_or_insert(self.current);
        self.sent = self.sent.saturating_add(plain.len() as u64);
        header.checksum = number as u16;
        let place = pseudo_header(self.dialect, header, plain.len());
        let start = out.len();
        if self.level == Level::Crypt {
            out.resize(start + CONFOUNDER, 0);
            self.rng.fill_bytes(&mut out[start..]);
        }
        match &self.keys(number).ours {
            DirectionKeys::Clear => out.extend_from_slice(plain),
            DirectionKeys::Auth(checksum) => {
                checksum.append(&[&place, plain], out);
                out.extend_from_slice(plain);
            }
            DirectionKeys::Crypt(sealer) => {
                out.extend_from_slice(&place);
                out.extend_from_slice(plain);
                sealer.prepare(out, start);
            }
        }
    }

    /// As `SecurityClass::finish`.
    pub(super) fn finish(&mut self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        let Some(number) = self.prepared.take() else { return };
        if let DirectionKeys::Crypt(sealer) = &self.keys(number).ours {
            sealer.finish(bodies);
        }
    }

    /// As `SecurityClass::open`.
    pub(super) fn open(&mut self, header: &Header, body: Bytes) -> Result<Bytes, Fault> {
        let number = self.number_of(header.checksum).ok_or(Fault::BadKeyNo)?;
        let (dialect, mac) = (self.dialect, self.mac_len());
        let data = match &self.keys(number).theirs {
            DirectionKeys::Clear => body,
            DirectionKeys::Auth(checksum) => {
                let (found, data) = body.split_at_checked(mac).ok_or(Fault::PacketShort)?;
                if !checksum.is_of(&[&pseudo_header(dialect, header, data.len()), data], found) {
                    return Err(Fault::SealedIncon);
                }
                body.slice(mac..)
            }
            DirectionKeys::Crypt(sealer) => {
                if body.len() < DATA_AT + mac {
                    return Err(Fault::PacketShort);
                }
                let plain = sealer.open(&body).ok_or(Fault::SealedIncon)?;
                let len = u32::from_be_bytes(*plain[..DATA_AT].last_chunk().expect("longer than a word"));
                let len = len as usize;
                if plain[CONFOUNDER..DATA_AT] != pseudo_header(dialect, header, len) {
                    return Err(Fault::SealedIncon);
                }
                // Linux, too, passes over what stands behind.
                if len > plain.len() - DATA_AT {
                    return Err(Fault::DataLen);
                }
                Bytes::from(plain).slice(DATA_AT..DATA_AT + len)
            }
        };
        if number > self.current {
            self.turn(number);
        }
        self.is_confirmed |= number == self.current;
        Ok(data)
    }

    fn mac_len(&self) -> usize {
        kerberos::mac_len(self.origin.secret.kind()).expect("secrets are of kinds that have one")
    }

    /// The number of which a packet has the lower half, if it is one that is taken.
    fn number_of(&self, lower: u16) -> Option<u32> {
        match lower.wrapping_sub(self.current as u16) as i16 {
            0 => Some(self.current),
            1 => self.current.checked_add(1),
            -1 => self.current.checked_sub(1),
            _ => None,
        }
    }

    /// The keys of a number.
    fn keys(&mut self, number: u32) -> &Generation {
        let place = number as usize % self.generations.len();
        if self.generations[place].as_ref().is_none_or(|keys| keys.number != number) {
            let key = self.origin.key(number);
            let keys = |sender| DirectionKeys::new(&key, self.level, sender);
            let (client, server) = (keys(Role::Client), keys(Role::Server));
            let (ours, theirs) = match self.role {
                Role::Client => (client, server),
                Role::Server => (server, client),
            };
            self.generations[place] = Some(Generation { number, ours, theirs });
        }
        self.generations[place].as_ref().expect("it was made above")
    }

    /// Goes on to the next number when the current one has been used enough.
    fn turn_if_due(&mut self, now: UnixTime) {
        let since = *self.since.get_or_insert(now);
        let is_due = self.sent >= self.limits.bytes
            || self.limits.lifetime.is_some_and(|lifetime| now >= since.plus(lifetime));
        // Before the peer has it, two numbers further would be too far for it.
        let may_turn = self.is_confirmed || self.sent >= UNCONFIRMED_BYTES;
        if is_due
            && may_turn
            && let Some(next) = self.current.checked_add(1)
        {
            self.turn(next);
            self.since = Some(now);
        }
    }

    fn turn(&mut self, number: u32) {
        (self.current, self.since, self.sent, self.is_confirmed) = (number, None, 0, false);
    }
}

/// The place of the data in a body that is encrypted.
const DATA_AT: usize = CONFOUNDER + PSEUDO_HEADER;

/// The most that is added to data at any level and with any enctype.
pub(super) const OVERHEAD_MAX: usize = DATA_AT + 24;

/// The bytes that are added to data.
pub(super) fn overhead(level: Level, kind: EncType) -> usize {
    let mac = kerberos::mac_len(kind).expect("secrets are of kinds that have one");
    match level {
        Level::Clear => 0,
        Level::Auth => mac,
        Level::Crypt => DATA_AT + mac,
    }
}

/// The place of a packet and the length of its data, as both ends know them (rxgk notes 3.2).
fn pseudo_header(dialect: Dialect, header: &Header, len: usize) -> [u8; PSEUDO_HEADER] {
    let words = [
        header.epoch.0,
        header.connection.with_channel(header.channel),
        header.call.0,
        header.seq.0,
        dialect.index().0.into(),
        len as u32,
    ];
    let mut bytes = [0; PSEUDO_HEADER];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests;
