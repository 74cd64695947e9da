//! The enctypes with AES (RFC 3962 and 8009), with keys that are made once for a usage and then used for many messages: those of
//! rxgk's packets, and Kerberos's own.

use super::derive::{self, CHECKSUM, ENCRYPTION, INTEGRITY, purpose};
use super::{cipher, stealing};
use crate::keys::EncType;
use aes::cipher::consts::U16;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt};
use aes::{Aes128, Aes256};
use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha384};
use std::marker::PhantomData;
use subtle::ConstantTimeEq;

/// Random bytes in front of what is encrypted.
pub(crate) const CONFOUNDER: usize = stealing::BLOCK;

/// The bytes of a checksum, which is also what encryption adds behind; `None` for enctypes without AES.
pub(crate) fn mac_len(kind: EncType) -> Option<usize> {
    match kind {
        EncType::AES128 | EncType::AES256 => Some(12),
        EncType::AES128_SHA256 => Some(16),
        EncType::AES256_SHA384 => Some(24),
        _ => None,
    }
}

/// Encrypts and decrypts with a key for one usage.
pub(crate) trait Sealer: Send + Sync {
    /// Makes `out` from `start` on, a confounder and the plain text behind it, as long as it will be.
    fn prepare(&self, out: &mut Vec<u8>, start: usize);

    /// Encrypts what was prepared, in place. Bodies of one length that stand together are encrypted side by side.
    fn finish(&self, bodies: &mut dyn Iterator<Item = &mut [u8]>);

    /// Returns the confounder and the plain text behind it; `None` for damage and what is too short.
    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>>;
}

/// Makes checksums with a key for one usage.
pub(crate) trait Checksum: Send + Sync {
    /// Appends the checksum of these parts, one behind the other.
    fn append(&self, parts: &[&[u8]], out: &mut Vec<u8>);

    /// True if `found` is the checksum. It takes the same time whatever it finds.
    fn is_of(&self, parts: &[&[u8]], found: &[u8]) -> bool;
}

/// The keys for encryption. `None` for enctypes without AES, and a key of the wrong length.
pub(crate) fn sealer(kind: EncType, key: &[u8], usage: u32) -> Option<Box<dyn Sealer>> {
    if kind.key_len()? != key.len() {
        return None;
    }
    match kind {
        EncType::AES128 => Some(Box::new(Keys::<Aes128Sha1>::new(key, usage))),
        EncType::AES256 => Some(Box::new(Keys::<Aes256Sha1>::new(key, usage))),
        EncType::AES128_SHA256 => Some(Box::new(Keys::<Aes128Sha256>::new(key, usage))),
        EncType::AES256_SHA384 => Some(Box::new(Keys::<Aes256Sha384>::new(key, usage))),
        _ => None,
    }
}

/// The key for checksums. `None` as of [`sealer`].
pub(crate) fn checksum(kind: EncType, key: &[u8], usage: u32) -> Option<Box<dyn Checksum>> {
    if kind.key_len()? != key.len() {
        return None;
    }
    match kind {
        EncType::AES128 => Some(Box::new(Sum::<Aes128Sha1>::new(key, usage))),
        EncType::AES256 => Some(Box::new(Sum::<Aes256Sha1>::new(key, usage))),
        EncType::AES128_SHA256 => Some(Box::new(Sum::<Aes128Sha256>::new(key, usage))),
        EncType::AES256_SHA384 => Some(Box::new(Sum::<Aes256Sha384>::new(key, usage))),
        _ => None,
    }
}

/// What tells one enctype from another.
trait Profile: Send + Sync + 'static {
    type Cipher: BlockCipherEncrypt<BlockSize = U16>
        + BlockCipherDecrypt<BlockSize = U16>
        + super::Cipher
        + Send
        + Sync;
    type Mac: Mac + KeyInit + Clone + Send + Sync;
    const MAC_LEN: usize;
    /// True if the MAC is of the plain text (RFC 3961 5.3), false if it is of zeros and the cipher text (RFC 8009 4).
    const MAC_IS_OF_PLAIN: bool;

    /// A key for a purpose.
    fn derive(key: &[u8], usage: u32, last: u8) -> super::Plain {
        let purpose = purpose(usage, last);
        if Self::MAC_IS_OF_PLAIN {
            return derive::by_cipher::<Self::Cipher>(key, &purpose);
        }
        let len = if last == ENCRYPTION { key.len() } else { Self::MAC_LEN };
        derive::by_hash::<Self::Mac>(key, &purpose, &[], len)
    }

    /// The MAC with a key for a purpose.
    fn mac(key: &[u8], usage: u32, last: u8) -> Self::Mac {
        <Self::Mac as KeyInit>::new_from_slice(&Self::derive(key, usage, last))
            .expect("an HMAC takes keys of any length")
    }
}

macro_rules! profiles {
    ($($name:ident: $cipher:ty, $hash:ty, $mac_len:literal bytes, of plain: $of_plain:literal;)*) => { $(
        struct $name;

        impl Profile for $name {
            type Cipher = $cipher;
            type Mac = Hmac<$hash>;
            const MAC_LEN: usize = $mac_len;
            const MAC_IS_OF_PLAIN: bool = $of_plain;
        }
    )* };
}

profiles! {
    Aes128Sha1: Aes128, Sha1, 12 bytes, of plain: true;
    Aes256Sha1: Aes256, Sha1, 12 bytes, of plain: true;
    Aes128Sha256: Aes128, Sha256, 16 bytes, of plain: false;
    Aes256Sha384: Aes256, Sha384, 24 bytes, of plain: false;
}

/// The initial vector as the MAC of RFC 8009 has it.
const ZEROS: [u8; stealing::BLOCK] = [0; stealing::BLOCK];

struct Keys<P: Profile> {
    cipher: P::Cipher,
    mac: P::Mac,
}

impl<P: Profile> Keys<P> {
    fn new(key: &[u8], usage: u32) -> Self {
        Self { cipher: cipher(&P::derive(key, usage, ENCRYPTION)), mac: P::mac(key, usage, INTEGRITY) }
    }

    fn mac_of(&self, parts: &[&[u8]]) -> impl AsRef<[u8]> + use<P> {
        mac_of(&self.mac, parts)
    }
}

/// The MAC, as long as the hash.
fn mac_of<M: Mac + Clone>(keyed: &M, parts: &[&[u8]]) -> impl AsRef<[u8]> + use<M> {
    let mut mac = keyed.clone();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes()
}

impl<P: Profile> Sealer for Keys<P> {
    fn prepare(&self, out: &mut Vec<u8>, start: usize) {
        if P::MAC_IS_OF_PLAIN {
            let mac = self.mac_of(&[&out[start..]]);
            out.extend_from_slice(&mac.as_ref()[..P::MAC_LEN]);
        } else {
            out.resize(out.len() + P::MAC_LEN, 0);
        }
    }

    fn finish(&self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        let text = |body: &[u8]| body.len() - P::MAC_LEN;
        if P::MAC_IS_OF_PLAIN {
            let texts = bodies.map(|body| {
                let len = text(body);
                &mut body[..len]
            });
            return stealing::encrypt(&self.cipher, &mut { texts });
        }
        let mut bodies: Vec<&mut [u8]> = bodies.collect();
        let texts = bodies.iter_mut().map(|body| {
            let len = text(body);
            &mut body[..len]
        });
        stealing::encrypt(&self.cipher, &mut { texts });
        for body in bodies {
            let (text, mac) = body.split_at_mut(text(body));
            mac.copy_from_slice(&self.mac_of(&[&ZEROS, text]).as_ref()[..P::MAC_LEN]);
        }
    }

    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (text, found) = sealed.split_at_checked(sealed.len().checked_sub(P::MAC_LEN)?)?;
        if text.len() < CONFOUNDER {
            return None;
        }
        let is_good = |mac: &[u8]| bool::from(mac[..P::MAC_LEN].ct_eq(found));
        if P::MAC_IS_OF_PLAIN {
            let plain = stealing::decrypt(&self.cipher, text);
            is_good(self.mac_of(&[&plain]).as_ref()).then_some(plain)
        } else {
            is_good(self.mac_of(&[&ZEROS, text]).as_ref()).then(|| stealing::decrypt(&self.cipher, text))
        }
    }
}

struct Sum<P: Profile> {
    mac: P::Mac,
    profile: PhantomData<P>,
}

impl<P: Profile> Sum<P> {
    fn new(key: &[u8], usage: u32) -> Self {
        Self { mac: P::mac(key, usage, CHECKSUM), profile: PhantomData }
    }
}

impl<P: Profile> Checksum for Sum<P> {
    fn append(&self, parts: &[&[u8]], out: &mut Vec<u8>) {
        out.extend_from_slice(&mac_of(&self.mac, parts).as_ref()[..P::MAC_LEN]);
    }

    fn is_of(&self, parts: &[&[u8]], found: &[u8]) -> bool {
        mac_of(&self.mac, parts).as_ref()[..P::MAC_LEN].ct_eq(found).into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes;
    use super::*;

    #[test]
    fn stealing_is_that_of_rfc_3962() {
        let cipher: Aes128 = cipher(b"chicken teriyaki");
        let text = b"I would like the General Gau's Chicken, please, and wonton soup.";
        for (len, want) in [
            (17, "c6353568f2bf8cb4d8a580362da7ff7f97"),
            (31, "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5"),
            (32, "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584"),
            (
                47,
                "97687268d6ecccc0c07b25e25ecfe584 b3fffd940c16a18c1b5549d2f838029e 39312523a78662d5be7fcbcc98ebf5",
            ),
            (
                48,
                "97687268d6ecccc0c07b25e25ecfe584 9dad8bbb96c4cdc03bc103e1a194bbd8 39312523a78662d5be7fcbcc98ebf5a8",
            ),
            (
                64,
                "97687268d6ecccc0c07b25e25ecfe584 39312523a78662d5be7fcbcc98ebf5a8 4807efe836ee89a526730dbc2f7bc840 9dad8bbb96c4cdc03bc103e1a194bbd8",
            ),
        ] {
            let mut data = text[..len].to_vec();
            stealing::encrypt(&cipher, &mut std::iter::once(&mut data[..]));
            assert_eq!(data, bytes(want), "{len} bytes");
            assert_eq!(stealing::decrypt(&cipher, &data), text[..len]);
        }
    }

    /// The samples of RFC 8009, appendix A: key, usage 2, and per sample confounder, plain text and cipher text.
    #[test]
    fn text_that_is_sealed_with_sha2_is_that_of_rfc_8009() {
        let plain: Vec<u8> = (0..=20).collect();
        let samples = [
            (
                EncType::AES128_SHA256,
                "3705d96080c17728a0e800eab6e0d23c",
                vec![
                    (
                        0,
                        "7e5895eaf2672435bad817f545a37148",
                        "ef85fb890bb8472f4dab20394dca781dad877eda39d50c870c0d5a0a8e48c718",
                    ),
                    (
                        6,
                        "7bca285e2fd4130fb55b1a5c83bc5b24",
                        "84d7f30754ed987bab0bf3506beb09cfb55402cef7e6877ce99e247e52d16ed4421dfdf8976c",
                    ),
                    (
                        16,
                        "56ab21713ff62c0a1457200f6fa9948f",
                        "3517d640f50ddc8ad3628722b3569d2ae07493fa8263254080ea65c1008e8fc295fb4852e7d83e1e7c48c37eebe6b0d3",
                    ),
                    (
                        21,
                        "a7a4e29a4728ce10664fb64e49ad3fac",
                        "720f73b18d9859cd6ccb4346115cd336c70f58edc0c4437c5573544c31c813bce1e6d072c186b39a413c2f92ca9b8334a287ffcbfc",
                    ),
                ],
            ),
            (
                EncType::AES256_SHA384,
                "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52",
                vec![
                    (
                        0,
                        "f764e9fa15c276478b2c7d0c4e5f58e4",
                        "41f53fa5bfe7026d91faf9be959195a058707273a96a40f0a01960621ac612748b9bbfbe7eb4ce3c",
                    ),
                    (
                        6,
                        "b80d3251c1f6471494256ffe712d0b9a",
                        "4ed7b37c2bcac8f74f23c1cf07e62bc7b75fb3f637b9f559c7f664f69eab7b6092237526ea0d1f61cb20d69d10f2",
                    ),
                    (
                        16,
                        "53bf8a0d105265d4e276428624ce5e63",
                        "bc47ffec7998eb91e8115cf8d19dac4bbbe2e163e87dd37f49beca92027764f68cf51f14d798c2273f35df574d1f932e40c4ff255b36a266",
                    ),
                    (
                        21,
                        "763e65367e864f02f55153c7e3b58af1",
                        "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2b2a602ac86fef6ecb647d6295fae077a1feb517508d2c16b4192e01f62",
                    ),
                ],
            ),
        ];
        for (kind, key, samples) in samples {
            let sealer = sealer(kind, &bytes(key), 2).unwrap();
            for (len, confounder, want) in samples {
                let mut text = [bytes(confounder), plain[..len].to_vec()].concat();
                sealer.prepare(&mut text, 0);
                sealer.finish(&mut std::iter::once(&mut text[..]));
                assert_eq!(text, bytes(want), "{len} bytes, {kind:?}");
                assert_eq!(sealer.open(&text).unwrap()[CONFOUNDER..], plain[..len]);
            }
        }
        let checks = [
            (EncType::AES128_SHA256, "3705d96080c17728a0e800eab6e0d23c", "d78367186643d67b411cba9139fc1dee"),
            (
                EncType::AES256_SHA384,
                "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52",
                "45ee791567eefca37f4ac1e0222de80d43c3bfa06699672a",
            ),
        ];
        for (kind, key, want) in checks {
            let (checksum, mut out) = (checksum(kind, &bytes(key), 2).unwrap(), vec![9]);
            checksum.append(&[&plain[..7], &plain[7..]], &mut out);
            assert_eq!((out[0], &out[1..]), (9, &bytes(want)[..]));
            assert!(checksum.is_of(&[&plain], &out[1..]));
            assert!(!checksum.is_of(&[&plain], &out[..16]) && !checksum.is_of(&[&plain[1..]], &out[1..]));
        }
    }

    #[test]
    fn bodies_that_are_sealed_together_are_what_each_is_alone() {
        for kind in [EncType::AES128, EncType::AES256, EncType::AES128_SHA256, EncType::AES256_SHA384] {
            let key = vec![5; kind.key_len().unwrap()];
            let sealer = sealer(kind, &key, 1026).unwrap();
            for count in 1..20 {
                for (len, last) in [(16, 16), (16, 17), (47, 20), (48, 48), (100, 99), (113, 16)] {
                    let text = |n: usize| vec![n as u8; if n + 1 == count { last } else { len }];
                    let mut bodies: Vec<Vec<u8>> = (0..count).map(text).collect();
                    bodies.iter_mut().for_each(|body| sealer.prepare(body, 0));
                    let mut alone = bodies.clone();
                    sealer.finish(&mut bodies.iter_mut().map(|body| &mut body[..]));
                    alone.iter_mut().for_each(|body| sealer.finish(&mut std::iter::once(&mut body[..])));
                    assert_eq!(bodies, alone, "{count} of {len} and {last} bytes, {kind:?}");
                    for (n, body) in bodies.iter().enumerate() {
                        assert_eq!(sealer.open(body), Some(text(n)));
                    }
                }
            }
        }
    }
}
