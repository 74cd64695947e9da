//! A DATA packet under rxkad: the checksum of its header and what is done to its body (Security notes 2.4 and 2.5). Both ends and
//! both directions are the same.

use super::{INDEX, Level, codes};
use crate::fcrypt::{BLOCK_LEN, Fcrypt};
use crate::ticket::SessionKey;
use bytes::Bytes;
use rx_proto::abort::AbortCode;
use rx_proto::ids::{ConnectionId, Epoch};
use rx_proto::packet::Header;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The bytes in front of the plain text: length and place, at level crypt a word of zero too.
const AUTH_HEADER: usize = 4;
const CRYPT_HEADER: usize = 8;
/// Packets that are encrypted at once: eight were no faster than four, and two much slower.
const SIDE_BY_SIDE: usize = 4;

/// The cipher that seals and opens the packets of a connection.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct Sealer {
    cipher: Fcrypt,
    /// The key again, as the initial vector; unlike the cipher's it has all its bits.
    iv: u64,
    /// The value that each packet's place is mixed with.
    place_mix: u64,
    #[zeroize(skip)]
    level: Level,
}

impl Sealer {
    pub(super) fn new(key: &SessionKey, epoch: Epoch, connection: ConnectionId, level: Level) -> Self {
        let (cipher, iv) = (Fcrypt::new(key.bytes()), u64::from_be_bytes(key.bytes()));
        let mut name = [0; 2 * BLOCK_LEN];
        for (place, word) in name.chunks_exact_mut(4).zip([epoch.0, connection.0, 0, u32::from(INDEX.0)]) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        cipher.encrypt_pcbc(iv, &mut name);
        let place_mix = u64::from_be_bytes(*name.last_chunk().expect("two blocks"));
        Self { cipher, iv, place_mix, level }
    }

    /// The 16 bits that say that this packet stands in this place.
    pub(super) fn checksum(&self, header: &Header) -> u16 {
        let place = (header.channel.index() as u32) << 30 | header.seq.0 & 0x3fff_ffff;
        let place = u64::from(header.call.0) << 32 | u64::from(place);
        let sealed = self.cipher.encrypt_block(place ^ self.place_mix) as u32;
        // 0 would say that there is none.
        ((sealed >> 16) as u16).max(1)
    }

    /// The bytes of plain text for which a body of so many bytes has room.
    pub(super) fn capacity(level: Level, body: usize) -> usize {
        match level {
            Level::Clear => body,
            // The four bytes that may be padding are needed for nothing else.
            Level::Auth => body.saturating_sub(AUTH_HEADER),
            Level::Crypt => (body / BLOCK_LEN * BLOCK_LEN).saturating_sub(CRYPT_HEADER),
        }
    }

    /// The first word: place and length.
    fn first_word(header: &Header, len: usize) -> [u8; 4] {
        let place = (header.seq.0 ^ header.call.0) << 16;
        (place | len as u32 & 0xffff).to_be_bytes()
    }

    /// As `SecurityClass::prepare`.
    pub(super) fn prepare(&self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        header.checksum = self.checksum(header);
        let start = out.len();
        match self.level {
            Level::Clear => out.extend_from_slice(plain),
            Level::Auth => {
                out.extend_from_slice(&Self::first_word(header, plain.len()));
                out.extend_from_slice(plain);
                if plain.len() < BLOCK_LEN - AUTH_HEADER {
                    out.resize(start + BLOCK_LEN, 0);
                }
            }
            Level::Crypt => {
                let len = (CRYPT_HEADER + plain.len()).next_multiple_of(BLOCK_LEN);
                out.reserve(len);
                out.extend_from_slice(&Self::first_word(header, plain.len()));
                out.extend_from_slice(&[0; CRYPT_HEADER - AUTH_HEADER]);
                out.extend_from_slice(plain);
                out.resize(start + len, 0);
            }
        }
    }

    /// As `SecurityClass::finish`.
    pub(super) fn finish(&self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        match self.level {
            Level::Clear => {}
            Level::Auth => bodies.for_each(|body| {
                let first =
                    body.first_chunk_mut::<BLOCK_LEN>().expect("prepared bodies have a block at least");
                *first = self.cipher.encrypt_block(u64::from_be_bytes(*first)).to_be_bytes();
            }),
            Level::Crypt => self.encrypt_all(bodies),
        }
    }

    fn encrypt_all(&self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        loop {
            match [(); SIDE_BY_SIDE].map(|()| bodies.next()) {
                [Some(a), Some(b), Some(c), Some(d)] if d.len() == a.len() => {
                    self.cipher.encrypt_chains(self.iv, [a, b, c, d]);
                }
                [None, ..] => return,
                few => few.into_iter().flatten().for_each(|body| self.cipher.encrypt_pcbc(self.iv, body)),
            }
        }
    }

    /// As `SecurityClass::open`.
    pub(super) fn open(&self, header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        if header.checksum != self.checksum(header) {
            return Err(codes::SEALEDINCON);
        }
        let (plain, header_len) = match self.level {
            Level::Clear => return Ok(body),
            Level::Auth => {
                let sealed = *body.first_chunk::<BLOCK_LEN>().ok_or(codes::PACKETSHORT)?;
                let first = self.cipher.decrypt_block(u64::from_be_bytes(sealed)).to_be_bytes();
                let [word @ .., _, _, _, _] = first;
                let len = Self::check_first_word(header, word, body.len() - AUTH_HEADER)?;
                let mut plain = Vec::with_capacity(body.len());
                plain.extend_from_slice(&first);
                plain.extend_from_slice(&body[BLOCK_LEN..]);
                plain.truncate(AUTH_HEADER + len);
                (plain, AUTH_HEADER)
            }
            Level::Crypt => {
                if body.len() < CRYPT_HEADER || !body.len().is_multiple_of(BLOCK_LEN) {
                    return Err(codes::PACKETSHORT);
                }
                // Copied since the datagram's buffer may be shared by others that came with it.
                let mut plain = body.to_vec();
                self.cipher.decrypt_pcbc(self.iv, &mut plain);
                let word = *plain.first_chunk().expect("a block at least");
                let len = Self::check_first_word(header, word, plain.len() - CRYPT_HEADER)?;
                plain.truncate(CRYPT_HEADER + len);
                (plain, CRYPT_HEADER)
            }
        };
        Ok(Bytes::from(plain).slice(header_len..))
    }

    /// The length that the first word tells, if the word is of this packet.
    fn check_first_word(header: &Header, word: [u8; 4], room: usize) -> Result<usize, AbortCode> {
        let [place @ .., high, low] = word;
        let wanted = Self::first_word(header, 0);
        if place != wanted[..2] {
            return Err(codes::SEALEDINCON);
        }
        let len = usize::from(u16::from_be_bytes([high, low]));
        if len > room { Err(codes::DATALEN) } else { Ok(len) }
    }
}
